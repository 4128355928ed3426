/* ir/lower_attention.c – attention and its gradient in primitives, with whole score matrices.
 *
 * Inside, dimensions are in the order [B,K,S,G,T]: batch and kv head lead, as dot gives them. A
 * query at position i + T − S sees key j as tessera.h says. Masked scores are −inf; a row that sees
 * nothing has maximum −inf, which is replaced by 0 before it is subtracted, so it gives zeros and a
 * log-sum-exp of −inf and never a NaN, while a NaN in a score still spoils its row.
 * This is the plain form: memory is B·K·G·S·T floats. Backward: Dao et al. 2022.
 */
#include "ir/lower.h"

#include <math.h>

static const int64_t to_rows[5] = {0, 2, 1, 3, 4}; /* [B,K,S,G,D] ↔ [B,S,K,G,D] */
static const int64_t to_keys[4] = {0, 2, 1, 3};    /* [B,K,T,D] ↔ [B,T,K,D] */
static const int64_t row_map[4] = {0, 1, 2, 3};    /* [B,K,S,G] into [B,K,S,G,·] */

typedef struct scores {
    ts_value *raw;    /* scaled and capped, f32 [B,K,S,G,T] */
    ts_value *masked; /* −inf where unseen */
} scores;

/* Who sees whom: pred [S,T], or [B,S,T] with segments; NULL: everybody everything. */
static ts_value *visible(ts_builder *b, const ts_node *n, ts_value *segments)
{
    const ts_type *q = &n->in[0]->type, *k = &n->in[1]->type;
    int64_t S = q->dim[1].size, T = k->dim[1].size, window = n->attr.attention.window;
    ts_value *seen = NULL;
    if (n->attr.attention.causal || (window > 0 && window < S + T)) {
        ts_value *key = ts_iota(b, TS_I32, TS_DIMS(q->dim[1], k->dim[1]), 1);
        ts_value *query = ts_iota(b, TS_I32, TS_DIMS(q->dim[1], k->dim[1]), 0);
        ts_value *ahead =
            ts_sub(b, ts__lower_add_to(b, query, (double)(T - S)), key); /* position − j */
        if (n->attr.attention.causal) seen = ts_compare(b, TS_GE, ahead, ts_scalar(b, 0, TS_I32));
        if (window > 0 && window < S + T) {
            ts_value *near = ts_compare(b, TS_LT, ahead, ts_scalar(b, (double)window, TS_I32));
            seen = seen ? ts_and(b, seen, near) : near;
        }
    }
    if (!segments) return seen;
    ts_dim dims[3] = {q->dim[0], q->dim[1], k->dim[1]}; /* [B,S,T] */
    ts_value *same = ts_compare(b, TS_EQ, ts_broadcast(b, segments, dims, 3, TS_INTS(0, 1)),
                                ts_broadcast(b, segments, dims, 3, TS_INTS(0, 2)));
    return seen ? ts_and(b, same, ts_broadcast(b, seen, dims, 3, TS_INTS(1, 2))) : same;
}

static scores scores_of(ts_builder *b, const ts_node *n, ts_value *segments)
{
    static const int64_t wide[3] = {0, 2, 4};
    ts_dot_dims d = {2, 1, {0, 2}, {0, 2}, {4}, {3}};
    scores s;
    ts_value *qk = ts_dot(b, n->in[0], n->in[1], &d, TS_F32); /* [B,K,S,G,T] */
    s.raw = ts__lower_cap(b, ts__lower_mul_by(b, qk, n->attr.attention.scale),
                          n->attr.attention.softcap);
    s.masked = s.raw;
    ts_value *seen = visible(b, n, segments);
    if (seen) {
        bool all = seen->type.rank == 2;
        seen = ts__lower_spread(b, seen, s.raw, all ? wide + 1 : wide, all ? 2 : 3);
        s.masked = ts_select(b, seen, s.raw, ts_scalar(b, -INFINITY, TS_F32));
    }
    return s;
}

/* x, but other where x is −inf. */
static ts_value *unless_empty(ts_builder *b, ts_value *x, double other)
{
    ts_value *empty = ts_compare(b, TS_EQ, x, ts_scalar(b, -INFINITY, TS_F32));
    return ts_select(b, empty, ts_scalar(b, other, TS_F32), x);
}

void ts__lower_attention(ts_builder *b, const ts_node *n, ts_value **out)
{
    ts_dot_dims d = {2, 1, {0, 1}, {0, 2}, {4}, {1}};
    scores s = scores_of(b, n, n->n_in > 3 ? n->in[3] : NULL);
    ts_value *most = unless_empty(b, ts_reduce_max(b, s.masked, TS_INTS(4)), 0); /* [B,K,S,G] */
    ts_value *e = ts_exp(b, ts_sub(b, s.masked, ts__lower_spread(b, most, s.raw, row_map, 4)));
    ts_value *total = ts_reduce_sum(b, e, TS_INTS(4));                         /* [B,K,S,G] */
    ts_value *sum = ts_dot(b, e, ts_convert(b, n->in[2], TS_F32), &d, TS_F32); /* [B,K,S,G,D] */
    /* A row that sees something has total ≥ 1; an empty one divides 0 by 1. */
    ts_value *zero = ts_compare(b, TS_EQ, total, ts_scalar(b, 0, TS_F32));
    ts_value *by = ts_select(b, zero, ts_scalar(b, 1, TS_F32), total);
    ts_value *o = ts_div(b, sum, ts__lower_spread(b, by, sum, row_map, 4));
    out[0] = ts_convert(b, ts_transpose(b, o, to_rows, 5), n->out[0]->type.dtype);
    out[1] = ts_transpose(b, ts_add(b, most, ts_log_e(b, total)), to_rows, 4);
}

/* Operands q, k, v, o, lse, do, segments. With p = exp(s − lse): dv = pᵀ·do,
 * ds = p·(do·vᵀ − do·o). */
void ts__lower_attention_grad(ts_builder *b, const ts_node *n, ts_value **out)
{
    ts_dot_dims to_v = {2, 2, {0, 1}, {0, 2}, {2, 3}, {1, 3}},
                to_p = {2, 1, {0, 2}, {0, 2}, {4}, {3}};
    ts_dot_dims to_q = {2, 1, {0, 1}, {0, 2}, {4}, {1}};
    scores s = scores_of(b, n, n->n_in > 6 ? n->in[6] : NULL);
    ts_value *q = ts_convert(b, n->in[0], TS_F32), *k = ts_convert(b, n->in[1], TS_F32);
    ts_value *v = ts_convert(b, n->in[2], TS_F32), *o = ts_convert(b, n->in[3], TS_F32);
    ts_value *dout = ts_convert(b, n->in[5], TS_F32);                          /* [B,S,K,G,D] */
    ts_value *lse = unless_empty(b, ts_transpose(b, n->in[4], to_rows, 4), 0); /* [B,K,S,G] */
    ts_value *p = ts_exp(b, ts_sub(b, s.masked, ts__lower_spread(b, lse, s.raw, row_map, 4)));
    ts_value *mean = ts_transpose(b, ts_reduce_sum(b, ts_mul(b, dout, o), TS_INTS(4)), to_rows, 4);
    ts_value *dp = ts_dot(b, dout, v, &to_p, TS_F32); /* [B,K,S,G,T] */
    ts_value *ds = ts_mul(b, p, ts_sub(b, dp, ts__lower_spread(b, mean, s.raw, row_map, 4)));
    double cap = n->attr.attention.softcap;
    if (cap > 0) ds = ts_mul(b, ds, ts__lower_cap_slope(b, s.raw, cap));
    ds = ts__lower_mul_by(b, ds, n->attr.attention.scale);
    out[0] = ts_transpose(b, ts_dot(b, ds, k, &to_q, TS_F32), to_rows, 5);
    out[1] = ts_transpose(b, ts_dot(b, ds, q, &to_v, TS_F32), to_keys, 4); /* from [B,K,T,D] */
    out[2] = ts_transpose(b, ts_dot(b, p, dout, &to_v, TS_F32), to_keys, 4);
    for (int i = 0; i < 3; i++) out[i] = ts_convert(b, out[i], n->out[i]->type.dtype);
}
