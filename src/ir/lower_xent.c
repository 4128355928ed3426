/* ir/lower_xent.c – cross-entropy of logits x·wᵀ and its gradient in primitives.
 *
 * With a chunk that divides the tokens, asked for or chosen because the logits are many, a repeat over
 * chunks holds the logits of one chunk only and adds up dw; otherwise one piece. Backward, where the logits are many,
 * prefers pieces of the vocabulary: the log-sum-exp is known then. A label outside [0, V)
 * is ignored: its loss is 0 and sends no gradient, but its log-sum-exp is that of its logits. The
 * label's logit is picked by comparing with an iota, which a vocabulary split over devices can do
 * locally.
 */
#include "ir/lower.h"

enum { X, W, LABELS, LSE, DLOSS, DLSE }; /* operands */

typedef struct piece {
    ts_value *logits;  /* capped, f32 [t,V] */
    ts_value *hit;     /* pred [t,V]: the class is the label */
    ts_value *counted; /* pred [t]: the label is a class */
} piece;

static const int64_t row[1] = {0}; /* [t] into [t,V] */

static piece piece_of(ts_builder *b, ts_value *x, ts_value *w, ts_value *labels, double cap)
{
    ts_dot_dims d = {0, 1, {0}, {0}, {1}, {1}};
    piece p;
    p.logits = ts__lower_cap(b, ts_dot(b, x, w, &d, TS_F32), cap);
    const ts_type *t = &p.logits->type;
    ts_value *class = ts_iota(b, TS_I32, t->dim, t->rank, 1);
    p.hit = ts_compare(b, TS_EQ, class, ts__lower_spread(b, labels, p.logits, row, 1));
    ts_value *zero = ts_scalar(b, 0, TS_I32),
             *end = ts_scalar(b, (double)w->type.dim[0].size, TS_I32);
    p.counted = ts_and(b, ts_compare(b, TS_GE, labels, zero), ts_compare(b, TS_LT, labels, end));
    return p;
}

/* x [t,E], labels [t] → the largest logit, Σ exp(logit − largest), the label's logit or 0; [t]. */
static void rows(ts_builder *b, ts_value *x, ts_value *w, ts_value *labels, double cap,
                 ts_value **out)
{
    piece p = piece_of(b, x, w, labels, cap);
    ts_value *zero = ts_scalar(b, 0, TS_F32), *most = ts_reduce_max(b, p.logits, TS_INTS(1));
    ts_value *e = ts_exp(b, ts_sub(b, p.logits, ts__lower_spread(b, most, p.logits, row, 1)));
    out[0] = most;
    out[1] = ts_reduce_sum(b, e, TS_INTS(1));
    out[2] = ts_reduce_sum(b, ts_select(b, p.hit, p.logits, zero), TS_INTS(1));
}

/* x [t,E], labels [t] → loss, lse [t]. */
static void forward(ts_builder *b, ts_value *x, ts_value *w, ts_value *labels, double cap,
                    ts_value **out)
{
    ts_value *part[3];
    rows(b, x, w, labels, cap, part);
    ts__xent_finish(b, part, labels, w->type.dim[0].size, &out[0], &out[1]);
}

/* in: x [t,E], w, labels, lse, dloss, dlse [t] → dx [t,E] in dtype, dw f32 [V,E]. */
static void backward(ts_builder *b, ts_value *const *in, double cap, ts_dtype dtype, ts_value **out)
{
    ts_dot_dims to_x = {0, 1, {0}, {0}, {1}, {0}}, to_w = {0, 1, {0}, {0}, {0}, {0}};
    piece p = piece_of(b, in[X], in[W], in[LABELS], cap);
    ts_value *zero = ts_scalar(b, 0, TS_F32), *dloss = ts_select(b, p.counted, in[DLOSS], zero);
    ts_value *prob = ts_exp(b, ts_sub(b, p.logits, ts__lower_spread(b, in[LSE], p.logits, row, 1)));
    ts_value *both = ts__lower_spread(b, ts_add(b, dloss, in[DLSE]), p.logits, row, 1);
    ts_value *label = ts_select(b, p.hit, ts__lower_spread(b, dloss, p.logits, row, 1), zero);
    ts_value *g = ts_sub(b, ts_mul(b, prob, both), label); /* [t,V] */
    if (cap > 0) g = ts_mul(b, g, ts__lower_cap_slope(b, p.logits, cap));
    g = ts_convert(b, g, in[X]->type.dtype); /* bf16 products; their sums are f32 */
    out[0] = ts_convert(b, ts_dot(b, g, in[W], &to_x, TS_F32), dtype);
    out[1] = ts_dot(b, g, in[X], &to_w, TS_F32);
}

/* Where no chunk is asked for: none while all logits take little, else the largest part of the tokens up to
 * MOST_TOKENS that divides them. Much smaller parts would read w too often. */
static int64_t default_chunk(int64_t T, int64_t V)
{
    enum { LEAST_TOKENS = 128, MOST_TOKENS = 1024, FEW_LOGITS = 1 << 26 };
    if (T <= MOST_TOKENS || V < 1 || T <= FEW_LOGITS / V) return T;
    for (int64_t c = MOST_TOKENS; c >= LEAST_TOKENS; c--)
        if (T % c == 0) return c;
    return T;
}

/* How many chunks, or 1. */
static int64_t chunks(const ts_node *n)
{
    int64_t T = n->in[X]->type.dim[0].size, chunk = n->attr.xent.chunk;
    if (chunk == 0) chunk = default_chunk(T, n->in[W]->type.dim[0].size);
    return chunk > 0 && chunk < T && T % chunk == 0 ? T / chunk : 1;
}

/* [T, …] as [count, T/count, …]. */
static ts_value *split(ts_builder *b, ts_value *x, int64_t count)
{
    ts_dim dims[TS_MAX_RANK] = {{NULL, count},
                                {x->type.dim[0].name, x->type.dim[0].size / count},
                                x->type.dim[1]};
    return ts_reshape(b, x, dims, x->type.rank + 1);
}

static ts_value *join(ts_builder *b, ts_value *x, const ts_value *shape)
{
    return ts_reshape(b, x, shape->type.dim, shape->type.rank);
}

typedef void body_fn(ts_builder *b, ts_value *x, ts_value *w, ts_value *labels, double cap,
                     ts_value **out);

/* x, w, labels → what body gives for the tokens, in chunks where there are several. */
static void in_chunks(ts_builder *b, const ts_node *n, body_fn *body, ts_value **out)
{
    int64_t count = chunks(n);
    double cap = n->attr.xent.softcap;
    if (count == 1) {
        body(b, n->in[X], n->in[W], n->in[LABELS], cap, out);
        return;
    }
    ts_value *xs[2] = {split(b, n->in[X], count), split(b, n->in[LABELS], count)}, *arg[2], *ys[3],
             *results[3];
    ts_repeat *r = ts_repeat_begin(b, count, false, NULL, 0, xs, 2, NULL, arg);
    body(b, arg[0], ts__use(b, n->in[W]), arg[1], cap, ys);
    ts_repeat_end(b, r, NULL, ys, NULL, n->n_out, results);
    for (int i = 0; i < n->n_out; i++) out[i] = join(b, results[i], n->out[i]);
}

void ts__lower_linear_xent(ts_builder *b, const ts_node *n, ts_value **out)
{
    in_chunks(b, n, forward, out);
}

void ts__lower_xent_rows(ts_builder *b, const ts_node *n, ts_value **out)
{
    in_chunks(b, n, rows, out);
}

/* ---- backward, in pieces of the vocabulary --------------------------------------------------- */

/* How many pieces, or 1: where the logits are many and the vocabulary divides well, since w is then read and dw written
 * once, and no sum of dw is carried from chunk to chunk. */
static int64_t vocabulary_pieces(const ts_node *n)
{
    enum { MOST_LOGITS = 1 << 25, MOST_PIECES = 64 };
    int64_t T = n->in[X]->type.dim[0].size, V = n->in[W]->type.dim[0].size;
    if (n->attr.xent.chunk != 0 || default_chunk(T, V) == T) return 1;
    int64_t least = (V + MOST_LOGITS / T - 1) / (MOST_LOGITS / T > 0 ? MOST_LOGITS / T : 1);
    for (int64_t k = least; k <= 2 * least && k <= MOST_PIECES; k++)
        if (V % k == 0) return k;
    return 1;
}

/* A piece knows its own classes, so labels of others count through dlse alone, as on a split vocabulary. */
static void in_pieces(ts_builder *b, const ts_node *n, int64_t count, ts_value **out)
{
    static const bool accumulate[2] = {true, false};
    int64_t V = n->in[W]->type.dim[0].size;
    ts_dim one = {NULL, count}, T = n->in[LABELS]->type.dim[0];
    ts_value *first = ts_mul(b, ts_iota(b, TS_I32, &one, 1, 0),
                             ts_constant(b, (double)(V / count), TS_I32, &one, 1));
    ts_value *xs[2] = {split(b, n->in[W], count), first}, *arg[2], *in[6], *ys[2], *results[2];
    ts_repeat *r = ts_repeat_begin(b, count, false, NULL, 0, xs, 2, NULL, arg);
    for (int i = 0; i < 6; i++) in[i] = i == W ? arg[0] : ts__use(b, n->in[i]);
    ts_value *local = ts_sub(b, in[LABELS], ts_broadcast(b, arg[1], &T, 1, NULL, 0));
    in[DLSE] = ts__xent_shard_dlse(b, in[LABELS], V, local, V / count, in[DLOSS], in[DLSE]);
    in[LABELS] = local;
    backward(b, in, n->attr.xent.softcap, TS_F32, ys);
    ts_repeat_end(b, r, NULL, ys, accumulate, 2, results);
    out[0] = ts_convert(b, results[0], n->in[X]->type.dtype);
    out[1] = join(b, results[1], n->out[1]);
}

void ts__lower_linear_xent_grad(ts_builder *b, const ts_node *n, ts_value **out)
{
    static const int sliced[5] = {X, LABELS, LSE, DLOSS, DLSE};
    static const bool accumulate[2] = {false, true};
    int64_t count = chunks(n), pieces = vocabulary_pieces(n);
    double cap = n->attr.xent.softcap;
    ts_dtype dtype = n->in[X]->type.dtype;
    if (pieces > 1) {
        in_pieces(b, n, pieces, out);
        return;
    }
    if (count == 1) {
        backward(b, n->in, cap, dtype, out);
        return;
    }
    ts_value *xs[5], *arg[5], *in[6], *ys[2], *results[2];
    for (int i = 0; i < 5; i++) xs[i] = split(b, n->in[sliced[i]], count);
    ts_repeat *r = ts_repeat_begin(b, count, false, NULL, 0, xs, 5, NULL, arg);
    for (int i = 0; i < 5; i++) in[sliced[i]] = arg[i];
    in[W] = ts__use(b, n->in[W]);
    backward(b, in, cap, dtype, ys);
    ts_repeat_end(b, r, NULL, ys, accumulate, 2, results);
    out[0] = join(b, results[0], n->out[0]);
    out[1] = results[1];
}
