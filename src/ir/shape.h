/* ir/shape.h – what the shape rules share (shape.c, shape_fused.c). Other rooms use ts__infer. */
#ifndef TS_SHAPE_H
#define TS_SHAPE_H

#include <inttypes.h>

#include "ir/graph.h"

/* One call of a rule: it reads the first half and writes out[0 … n_out−1]. */
typedef struct ts_rule {
    ts_op op;
    ts_value *const *in;
    int n_in;
    const ts_attr *attr;
    const ts_region *body;
    ts_error *err;
    ts_type *out;
    int max, n_out;
} ts_rule;
typedef ts_status ts_rule_fn(ts_rule *r);

/* Operations whose result has the type of their first operand. */
#define ts__rule_neg ts__rule_as_operand
#define ts__rule_abs ts__rule_as_operand
#define ts__rule_exp ts__rule_as_operand
#define ts__rule_log ts__rule_as_operand
#define ts__rule_sqrt ts__rule_as_operand
#define ts__rule_rsqrt ts__rule_as_operand
#define ts__rule_tanh ts__rule_as_operand
#define ts__rule_logistic ts__rule_as_operand
#define ts__rule_sin ts__rule_as_operand
#define ts__rule_cos ts__rule_as_operand
#define ts__rule_not ts__rule_as_operand
/* Operations on operands of one type, which the result has too. */
#define ts__rule_add ts__rule_alike
#define ts__rule_sub ts__rule_alike
#define ts__rule_mul ts__rule_alike
#define ts__rule_div ts__rule_alike
#define ts__rule_max ts__rule_alike
#define ts__rule_min ts__rule_alike
#define ts__rule_pow ts__rule_alike
#define ts__rule_and ts__rule_alike
#define ts__rule_or ts__rule_alike
#define ts__rule_xor ts__rule_alike
#define ts__rule_shift_left ts__rule_alike
#define ts__rule_shift_right ts__rule_alike
#define ts__rule_add_n ts__rule_alike
/* Both drop the reduced axes. */
#define ts__rule_reduce_sum ts__rule_reduce
#define ts__rule_reduce_max ts__rule_reduce

#define OP(name, ...) ts_rule_fn ts__rule_##name;
#include "ir/ops.def"
#undef OP

/* A mistake, named after the op. */
#define TS_RULE_ERROR(r, fmt, ...) \
    TS_ERROR((r)->err, TS_INVALID_ARGUMENT, "%s: " fmt, ts_op_infos[(r)->op].name, __VA_ARGS__)

/* Room for one type in text, for messages. */
typedef struct ts_type_buf {
    char s[400];
} ts_type_buf;
#define TS_TEXT(t) ts_type_text((t), (ts_type_buf){{0}}.s, sizeof(ts_type_buf))

/* Sets result i, whose names are those of t; fails when there is no room. */
ts_status ts__rule_out(ts_rule *r, const ts_type *t);
/* Operand i must have dtype t, rank, or the type of operand j. `what` names the operand in
 * messages. */
ts_status ts__rule_dtype(ts_rule *r, int i, const char *what, ts_dtype t);
ts_status ts__rule_rank(ts_rule *r, int i, const char *what, int rank);
ts_status ts__rule_same(ts_rule *r, int i, const char *what_i, int j, const char *what_j);
/* Operand i must be exactly dtype[sizes…]; meaning explains where the expectation comes from. */
ts_status ts__rule_exactly(ts_rule *r, int i, const char *what, const ts_type *t,
                           const char *meaning);
ts_status ts__rule_axis(ts_rule *r, int64_t axis, const ts_type *t);

#endif
