/* grad/grad.h – reverse-mode automatic differentiation on the global graph, one table of VJP rules.
 *
 * The gradient is built into the graph, in the builder's region. A value needs a cotangent only
 * where it depends on something asked for and the loss depends on it (activity); integers never
 * do. A repeat gets a reversed repeat; what its backward body needs of the forward is stacked
 * (TS_REMAT_NONE), computed again from the carry (TS_REMAT_FULL), or from that and stacked
 * products (TS_REMAT_MINIMAL). Cotangents of f32 → bf16 conversions stay f32, so a weight's
 * gradient is never rounded to bf16.
 */
#ifndef TS_GRAD_H
#define TS_GRAD_H

#include "ir/builder.h"

/* dloss/dwrt[i] for a scalar f32 loss; zeros where the loss does not depend on wrt[i]. wrt are values
 * of the builder's region or of outer ones. out[i] has wrt[i]'s shape, f32 where wrt[i] is f32. */
ts_status ts_grad(ts_builder *b, ts_value *loss, ts_value *const *wrt, int n, ts_value **out,
                  ts_error *err);

#endif
