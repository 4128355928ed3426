/* mesh/rows.h – what the rows of the ops (factors.c, factors_fused.c) share. Others call
 * ts__factors.
 *
 * A row function fills f->map for every operand, then every result, from n's types. An op added to
 * ops.def without ts__row_NAME does not link; one that is like another's is a line here.
 */
#ifndef TS_ROWS_H
#define TS_ROWS_H

#include "mesh/factors.h"

typedef struct ts_row {
    const ts_node *n;
    ts_factors *f;
    ts_error *err;
} ts_row;
typedef ts_status ts_row_fn(ts_row *r);

/* A new factor; returns its number. */
int8_t ts__row_factor(ts_row *r, int64_t size, ts_factor_kind kind);
/* As many PASS factors as the type has dimensions, for its first `rank` ones; ids gets their
 * numbers. */
void ts__row_factors(ts_row *r, const ts_type *t, int rank, int8_t ids[TS_MAX_RANK]);
/* Dimension dim of operand or result i consists of factor f alone (−1: of none). */
void ts__row_in(ts_row *r, int i, int dim, int8_t f);
void ts__row_out(ts_row *r, int i, int dim, int8_t f);

/* Elementwise: every operand of rank > 0 and every result have the dimensions of the largest
 * one. */
#define ts__row_abs            ts__row_elementwise
#define ts__row_exp            ts__row_elementwise
#define ts__row_log            ts__row_elementwise
#define ts__row_sqrt           ts__row_elementwise
#define ts__row_rsqrt          ts__row_elementwise
#define ts__row_tanh           ts__row_elementwise
#define ts__row_logistic       ts__row_elementwise
#define ts__row_sin            ts__row_elementwise
#define ts__row_cos            ts__row_elementwise
#define ts__row_not            ts__row_elementwise
#define ts__row_is_finite      ts__row_elementwise
#define ts__row_convert        ts__row_elementwise
#define ts__row_add            ts__row_elementwise
#define ts__row_sub            ts__row_elementwise
#define ts__row_max            ts__row_elementwise
#define ts__row_min            ts__row_elementwise
#define ts__row_pow            ts__row_elementwise
#define ts__row_and            ts__row_elementwise
#define ts__row_or             ts__row_elementwise
#define ts__row_xor            ts__row_elementwise
#define ts__row_shift_left     ts__row_elementwise
#define ts__row_shift_right    ts__row_elementwise
#define ts__row_compare        ts__row_elementwise
#define ts__row_select         ts__row_elementwise
#define ts__row_gated          ts__row_elementwise
#define ts__row_gated_grad     ts__row_elementwise
#define ts__row_adamw          ts__row_elementwise
#define ts__row_add_n          ts__row_elementwise
#define ts__row_neg            ts__row_linear
#define ts__row_mul            ts__row_linear
#define ts__row_div            ts__row_linear
/* One dimension is touched: it is WHOLE in every operand and result. */
#define ts__row_slice          ts__row_along
#define ts__row_pad            ts__row_along
#define ts__row_dynamic_slice  ts__row_along
#define ts__row_dynamic_update ts__row_along
#define ts__row_top_k          ts__row_along
#define ts__row_concat         ts__row_along
#define ts__row_rms_norm_grad  ts__row_rms_norm
/* The partitioner walks into a repeat and makes the collectives. */
#define ts__row_repeat             ts__row_none
#define ts__row_axis_index         ts__row_none
#define ts__row_all_reduce         ts__row_none
#define ts__row_all_gather         ts__row_none
#define ts__row_reduce_scatter     ts__row_none
#define ts__row_all_to_all         ts__row_none
#define ts__row_collective_permute ts__row_none

#define OP(name, ...) ts_row_fn ts__row_##name;
#include "ir/ops.def"
#undef OP

#endif
