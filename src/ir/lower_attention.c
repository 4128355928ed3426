/* ir/lower_attention.c – attention and its gradient in primitives: a repeat over kv heads (none for
 * one) of a few blocks of queries, each with the keys that its mask lets it see.
 *
 * Never a value of S·T elements. A block's scores are [B,block,G,keys], where the range of keys is
 * static: under a causal mask those up to the block's last query, under a window those from its
 * first query's oldest. Only q, k, v, lse and rowsum(do·o) enter the backward half; each block makes
 * its scores again. Masked scores are −inf; a row that sees nothing has maximum −inf, which is
 * replaced by 0 before it is subtracted, so it gives zeros and a log-sum-exp of −inf and never a
 * NaN, while a NaN in a score still spoils its row. Softmax is f32; probabilities and ds take the
 * operands' dtype before the products, which sum in f32, as in Dao et al. 2022.
 * Not here: the cpu engine's kernel, and how many blocks are fastest on a device (docs/engines.md).
 */
#include "ir/lower.h"

#include <math.h>

/* A quarter of the queries each, so that a causal mask skips 3/8 of the scores; more blocks save
 * little more (half at most) and each one is code to compile. Multiples of 128, the lanes of a
 * matrix unit; at most 2,048 queries, because scores of a block grow with its size times T. The
 * last bound keeps the program finite where a sequence is absurdly long. */
enum { QUARTERS = 4, LANES = 128, MOST_QUERIES = 2048, MOST_BLOCKS = 64 };

static const int64_t head_first[5] = {2, 0, 1, 3, 4}; /* [B,S,K,..] → [K,B,S,..] */
static const int64_t head_third[5] = {1, 2, 0, 3, 4}; /* and back */
static const int64_t row_map[3] = {0, 1, 2};          /* [B,s,G] into [B,s,G,·] */

enum { Q, K, V, LSE, DO, DELTA, OPERANDS }; /* of one kv head: q, do [B,S,G,D], k, v [B,T,D] */

/* Queries from … to − 1, and the keys low … high − 1 that one of them may see. */
typedef struct block {
    int64_t from, to, low, high;
} block;

typedef struct scores {
    ts_value *raw;    /* scaled and capped, f32 [B,s,G,t] */
    ts_value *masked; /* −inf where unseen */
} scores;

/* ---- blocks ---------------------------------------------------------------------------------- */

static int64_t queries(const ts_node *n) { return n->in[0]->type.dim[1].size; }
static int64_t keys(const ts_node *n) { return n->in[1]->type.dim[1].size; }

static int64_t rounded_up(int64_t n, int64_t by) { return (n + by - 1) / by * by; }

static int64_t block_size(int64_t S)
{
    int64_t size = rounded_up((S + QUARTERS - 1) / QUARTERS, LANES);
    if (size > MOST_QUERIES) size = MOST_QUERIES;
    if (size < LANES) size = LANES;
    int64_t least = rounded_up((S + MOST_BLOCKS - 1) / MOST_BLOCKS, LANES);
    return size < least ? least : size;
}

static int64_t within(int64_t v, int64_t low, int64_t high)
{
    return v < low ? low : v > high ? high : v;
}

/* The window, or 0 where it hides nothing. */
static int64_t window_of(const ts_node *n)
{
    int64_t window = n->attr.attention.window;
    return window < queries(n) + keys(n) ? window : 0;
}

static block block_at(const ts_node *n, int64_t from)
{
    int64_t S = queries(n), T = keys(n), window = window_of(n);
    block k = {from, within(from + block_size(S), from, S), 0, T};
    if (n->attr.attention.causal) k.high = within(k.to + T - S, 0, T);
    if (window > 0) k.low = within(from + T - S - window + 1, 0, k.high);
    if (k.from == k.to) k.high = k.low;
    return k;
}

/* Who of a block sees whom: pred [s,t], or [B,s,t] with segments; NULL: everybody everything. */
static ts_value *visible(ts_builder *b, const ts_node *n, ts_value *segments, const block *k)
{
    ts_dim dims[3] = {n->in[0]->type.dim[0], {NULL, k->to - k->from}, {NULL, k->high - k->low}};
    int64_t shift = queries(n) - keys(n), window = window_of(n); /* position = query − shift */
    bool ahead = n->attr.attention.causal && k->high - 1 > k->from - shift;
    bool behind = window > 0 && k->low <= k->to - 1 - shift - window;
    ts_value *seen = NULL;
    if (ahead || behind) {
        ts_value *query = ts_iota(b, TS_I32, dims + 1, 2, 0),
                 *key = ts_iota(b, TS_I32, dims + 1, 2, 1);
        query = ts__lower_add_to(b, query, (double)(k->from - shift - k->low));
        ts_value *past = ts_sub(b, query, key); /* position − j */
        if (ahead) seen = ts_compare(b, TS_GE, past, ts_scalar(b, 0, TS_I32));
        if (behind) {
            ts_value *near = ts_compare(b, TS_LT, past, ts_scalar(b, (double)window, TS_I32));
            seen = seen ? ts_and(b, seen, near) : near;
        }
    }
    if (!segments) return seen;
    ts_value *own = ts_slice(b, segments, 1, k->from, k->to),
             *other = ts_slice(b, segments, 1, k->low, k->high);
    ts_value *same = ts_compare(b, TS_EQ, ts_broadcast(b, own, dims, 3, TS_INTS(0, 1)),
                                ts_broadcast(b, other, dims, 3, TS_INTS(0, 2)));
    return seen ? ts_and(b, same, ts_broadcast(b, seen, dims, 3, TS_INTS(1, 2))) : same;
}

/* q [B,s,G,D], key [B,t,D]. */
static scores scores_of(ts_builder *b, const ts_node *n, ts_value *segments, const block *k,
                        ts_value *q, ts_value *key)
{
    static const int64_t wide[3] = {0, 1, 3};
    ts_dot_dims d = {1, 1, {0}, {0}, {3}, {2}};
    scores s;
    ts_value *qk = ts_dot(b, q, key, &d, TS_F32); /* [B,s,G,t] */
    s.raw = ts__lower_cap(b, ts__lower_mul_by(b, qk, n->attr.attention.scale),
                          n->attr.attention.softcap);
    s.masked = s.raw;
    ts_value *seen = visible(b, n, segments, k);
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

/* f32, every element v, in the shape of x with size in place of dimension 1. */
static ts_value *filled(ts_builder *b, double v, const ts_value *x, int64_t size)
{
    ts_type t = x->type;
    t.dim[1].size = size;
    return ts_constant(b, v, TS_F32, t.dim, t.rank);
}

/* ---- one kv head, forward -------------------------------------------------------------------- */

static ts_value *joined(ts_builder *b, ts_value *const *part, int n)
{
    return n == 1 ? part[0] : ts_concat(b, part, n, 1);
}

/* → o [B,s,G,D] f32, lse [B,s,G]. */
static void forward_block(ts_builder *b, const ts_node *n, ts_value *segments, const block *k,
                          ts_value *const *in, ts_value **o, ts_value **lse)
{
    ts_dot_dims d = {1, 1, {0}, {0}, {3}, {1}};
    ts_value *q = ts_slice(b, in[Q], 1, k->from, k->to);
    if (k->high == k->low) {
        ts_type rows = ts_type_make(TS_F32, q->type.dim, 3);
        *o = ts_constant(b, 0, TS_F32, q->type.dim, 4);
        *lse = ts_constant(b, -INFINITY, TS_F32, rows.dim, 3);
        return;
    }
    ts_value *v = ts_slice(b, in[V], 1, k->low, k->high);
    scores s = scores_of(b, n, segments, k, q, ts_slice(b, in[K], 1, k->low, k->high));
    ts_value *most = unless_empty(b, ts_reduce_max(b, s.masked, TS_INTS(3)), 0); /* [B,s,G] */
    ts_value *e = ts_exp(b, ts_sub(b, s.masked, ts__lower_spread(b, most, s.raw, row_map, 3)));
    ts_value *total = ts_reduce_sum(b, e, TS_INTS(3));                         /* [B,s,G] */
    ts_value *sum = ts_dot(b, ts_convert(b, e, v->type.dtype), v, &d, TS_F32); /* [B,s,G,D] */
    /* A row that sees something has total ≥ 1; an empty one divides 0 by 1. */
    ts_value *zero = ts_compare(b, TS_EQ, total, ts_scalar(b, 0, TS_F32));
    ts_value *by = ts_select(b, zero, ts_scalar(b, 1, TS_F32), total);
    *o = ts_div(b, sum, ts__lower_spread(b, by, sum, row_map, 3));
    *lse = ts_add(b, most, ts_log_e(b, total));
}

static void forward(ts_builder *b, const ts_node *n, ts_value *segments, ts_value *const *in,
                    ts_value **out)
{
    ts_value *o[MOST_BLOCKS + 1], *lse[MOST_BLOCKS + 1];
    int count = 0;
    int64_t at = 0;
    do {
        block k = block_at(n, at);
        forward_block(b, n, segments, &k, in, &o[count], &lse[count]);
        at = k.to;
        count++;
    } while (at < queries(n));
    out[0] = ts_convert(b, joined(b, o, count), n->out[0]->type.dtype);
    out[1] = joined(b, lse, count);
}

/* ---- one kv head, backward ------------------------------------------------------------------- */

/* sum + x, x being rows low … low + t − 1 of T; sum may be NULL. */
static ts_value *added(ts_builder *b, ts_value *sum, ts_value *x, int64_t low, int64_t T)
{
    int64_t above = T - low - x->type.dim[1].size;
    if (low > 0 || above > 0) x = ts_pad(b, x, 1, low, above, 0);
    return sum ? ts_add(b, sum, x) : x;
}

/* Returns dq [B,s,G,D] and adds to dk, dv [B,T,D], all f32. With p = exp(s − lse): dv = pᵀ·do,
 * ds = p·(do·vᵀ − rowsum(do·o)). */
static ts_value *backward_block(ts_builder *b, const ts_node *n, ts_value *segments,
                                const block *k, ts_value *const *in, ts_value **dk, ts_value **dv)
{
    ts_dot_dims to_q = {1, 1, {0}, {0}, {3}, {1}}, to_p = {1, 1, {0}, {0}, {3}, {2}};
    ts_dot_dims to_k = {1, 2, {0}, {0}, {1, 2}, {1, 2}};
    ts_value *row[OPERANDS], *v = ts_slice(b, in[V], 1, k->low, k->high);
    ts_value *key = ts_slice(b, in[K], 1, k->low, k->high);
    double scale = n->attr.attention.scale, cap = n->attr.attention.softcap;
    for (int i = 0; i < OPERANDS; i++)
        row[i] = i == K || i == V ? NULL : ts_slice(b, in[i], 1, k->from, k->to);
    if (k->high == k->low) return filled(b, 0, in[Q], k->to - k->from);
    scores s = scores_of(b, n, segments, k, row[Q], key);
    ts_value *lse = ts__lower_spread(b, unless_empty(b, row[LSE], 0), s.raw, row_map, 3);
    ts_value *p = ts_exp(b, ts_sub(b, s.masked, lse));
    ts_value *dp = ts_dot(b, row[DO], v, &to_p, TS_F32); /* [B,s,G,t] */
    ts_value *ds = ts_sub(b, dp, ts__lower_spread(b, row[DELTA], s.raw, row_map, 3));
    ds = ts_mul(b, p, ds);
    if (cap > 0) ds = ts_mul(b, ds, ts__lower_cap_slope(b, s.raw, cap));
    ds = ts_convert(b, ts__lower_mul_by(b, ds, scale), key->type.dtype);
    p = ts_convert(b, p, row[DO]->type.dtype);
    *dk = added(b, *dk, ts_dot(b, ds, row[Q], &to_k, TS_F32), k->low, keys(n));
    *dv = added(b, *dv, ts_dot(b, p, row[DO], &to_k, TS_F32), k->low, keys(n));
    return ts_dot(b, ds, key, &to_q, TS_F32);
}

static void backward(ts_builder *b, const ts_node *n, ts_value *segments, ts_value *const *in,
                     ts_value **out)
{
    ts_value *dq[MOST_BLOCKS + 1], *dk = NULL, *dv = NULL;
    int count = 0;
    int64_t at = 0;
    do {
        block k = block_at(n, at);
        dq[count++] = backward_block(b, n, segments, &k, in, &dk, &dv);
        at = k.to;
    } while (at < queries(n));
    out[0] = joined(b, dq, count);
    out[1] = dk ? dk : filled(b, 0, in[K], keys(n));
    out[2] = dv ? dv : filled(b, 0, in[V], keys(n));
    for (int i = 0; i < 3; i++) out[i] = ts_convert(b, out[i], n->out[i]->type.dtype);
}

/* ---- over kv heads --------------------------------------------------------------------------- */

typedef void head_fn(ts_builder *b, const ts_node *n, ts_value *segments, ts_value *const *in,
                     ts_value **out);

/* What body makes of each kv head's part of in[i] [B,·,K,…]; its results are put together again. */
static void each_head(ts_builder *b, const ts_node *n, ts_value *segments, head_fn *body,
                      ts_value *const *in, int n_in, ts_value **out)
{
    int64_t heads = n->in[0]->type.dim[2].size;
    ts_value *xs[OPERANDS], *arg[OPERANDS], *ys[3], *results[3];
    ts_repeat *r = NULL;
    if (heads == 0) { /* nothing at all */
        for (int i = 0; i < n->n_out; i++) out[i] = ts__zeros(b, &n->out[i]->type);
        return;
    }
    for (int i = 0; i < n_in; i++) {
        int rank = in[i]->type.rank;
        xs[i] = ts_transpose(b, in[i], head_first, rank);
        if (heads == 1) arg[i] = ts_reshape(b, xs[i], xs[i]->type.dim + 1, rank - 1);
    }
    if (b->error.code != TS_OK) return;
    if (heads != 1) r = ts_repeat_begin(b, heads, false, NULL, 0, xs, n_in, NULL, arg);
    /* Where no loop keeps them apart, a compiler would merge the backward half's scores with the
     * forward half's, and so keep all of them. */
    else if (body == backward) ts_barrier(b, arg, n_in, arg);
    body(b, n, segments, arg, ys);
    if (r) ts_repeat_end(b, r, NULL, ys, NULL, n->n_out, results);
    for (int i = 0; i < n->n_out; i++) {
        const ts_type *t = &n->out[i]->type;
        out[i] = r ? ts_transpose(b, results[i], head_third, t->rank)
                   : ts_reshape(b, ys[i], t->dim, t->rank);
    }
}

void ts__lower_attention(ts_builder *b, const ts_node *n, ts_value **out)
{
    each_head(b, n, n->n_in > 3 ? n->in[3] : NULL, forward, n->in, 3, out);
}

/* Operands q, k, v, o, lse, do, segments. */
void ts__lower_attention_grad(ts_builder *b, const ts_node *n, ts_value **out)
{
    ts_value *o = ts_convert(b, n->in[3], TS_F32), *dout = ts_convert(b, n->in[5], TS_F32);
    ts_value *delta = ts_reduce_sum(b, ts_mul(b, dout, o), TS_INTS(4)); /* [B,S,K,G] */
    ts_value *in[OPERANDS] = {n->in[0], n->in[1], n->in[2], n->in[4], n->in[5], delta};
    each_head(b, n, n->n_in > 6 ? n->in[6] : NULL, backward, in, OPERANDS, out);
}
