/* grad/grad_internal.h – what the VJP rules (vjp_*.c) see of the differentiation under way. */
#ifndef TS_GRAD_INTERNAL_H
#define TS_GRAD_INTERNAL_H

#include "grad/grad.h"

/* Pointers by value id, growing. */
typedef struct ts_idmap {
    void **slot;
    size_t n;
} ts_idmap;
void *ts__idmap_get(const ts_idmap *m, const ts_value *v);
bool ts__idmap_set(ts_builder *b, ts_idmap *m, const ts_value *v, void *p);

typedef struct ts_cotangent ts_cotangent;

/* One region being differentiated. Rules append to b->region. */
typedef struct ts_grad_pass {
    ts_builder *b;
    const ts_region *primal; /* the region whose nodes are walked backwards */
    ts_idmap varied;         /* depends on something asked for */
    ts_idmap cotangent;      /* value → list of contributions */
    ts_idmap pushed;         /* what a rule made → 1 + the operand whose cotangent it is */
} ts_grad_pass;

/* dout[i]: cotangent of result i, NULL where it is zero. */
typedef void (*ts_vjp)(ts_grad_pass *g, ts_node *n, ts_value *const *dout);
extern const ts_vjp ts__vjps[TS_OPS]; /* NULL: NOGRAD */

/* Does operand i of n need a cotangent? */
bool ts__needs(const ts_grad_pass *g, const ts_node *n, int i);
/* Adds d to the cotangent of operand i (nothing when it needs none). */
void ts__push(ts_grad_pass *g, const ts_node *n, int i, ts_value *d);
/* bf16 values that came from f32 keep f32 cotangents. */
ts_dtype ts__cotangent_dtype(const ts_value *v);

/* Walks `primal` backwards. seeds[i] (value of primal) has cotangent d[i] (NULL: none); then out[j] is
 * the cotangent of wants[j], NULL where zero. */
void ts__differentiate(ts_builder *b, const ts_region *primal, ts_value *const *seeds,
                       ts_value *const *d, int n_seeds, ts_value *const *wants, int n_wants,
                       ts_value **out);
/* Marks what varies in region when wants do; for a repeat's body the carries reach a fixpoint first. */
void ts__mark_varied(ts_builder *b, const ts_region *region, ts_idmap *varied);

/* What stands for v of the region being differentiated in the backward body r: NULL while nothing does. */
ts_value *ts__stand_in(const ts_repeat *r, const ts_value *v);
/* Says of each node from first to before what of n it is like (ts_node.like). */
void ts__mark_like(ts_grad_pass *g, const ts_node *n, ts_value *const *dout, ts_node *first,
                   const ts_node *before);

void ts__vjp_repeat(ts_grad_pass *g, ts_node *n, ts_value *const *dout);

#endif
