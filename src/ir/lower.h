/* ir/lower.h – what the lowerings share (lower*.c). */
#ifndef TS_LOWER_H
#define TS_LOWER_H

#ifndef TS_NO_LINES
#define TS_NO_LINES /* lowered nodes keep the line of their composite */
#endif
#include "ir/builder.h"

/* Writes primitives for n through b and puts what stands for result i in out[i]. */
typedef void ts_lower_fn(ts_builder *b, const ts_node *n, ts_value **out);

#define LOWER_PRIMITIVE(name)
#define LOWER_COLLECTIVE(name)
#define LOWER_COMPOSITE(name) ts_lower_fn ts__lower_##name;
#define OP(name, lo, hi, results, kind, ...) LOWER_##kind(name)
#include "ir/ops.def"
#undef OP
#undef LOWER_PRIMITIVE
#undef LOWER_COLLECTIVE
#undef LOWER_COMPOSITE

/* x in the shape of `shape`: dimension i of x becomes dimension map[i]. */
ts_value *ts__lower_spread(ts_builder *b, ts_value *x, const ts_value *shape, const int64_t *map,
                           int n);
/* y = op(x, c) for a constant c. */
ts_value *ts__lower_mul_by(ts_builder *b, ts_value *x, double c);
ts_value *ts__lower_add_to(ts_builder *b, ts_value *x, double c);
/* cap·tanh(x/cap), or x where cap is 0; and what a gradient is multiplied with: 1 − (capped/cap)².
 */
ts_value *ts__lower_cap(ts_builder *b, ts_value *x, double cap);
ts_value *ts__lower_cap_slope(ts_builder *b, ts_value *capped, double cap);

#endif
