/* grad/vjp_shape.c – VJP rules of ops that move, select or reduce elements, and of composites.
 *
 * Each rule is the transpose of its op: a slice pads, a broadcast sums, a take scatters. Composites have a
 * gradient op of their own, so that an engine can fuse it and the partitioner sees one row.
 * Not here: dot (vjp_dot.c), repeat (repeat.c).
 */
#include "grad/rules.h"

#define X (n->in[0])
#define D (dout[0])

/* Axes 0 … rank−1 without those in `without`. */
static int other_axes(int rank, const ts_dims *without, int64_t *out)
{
    int n = 0;
    for (int i = 0; i < rank; i++) {
        bool listed = false;
        for (int j = 0; j < without->n; j++) listed |= without->v[j] == i;
        if (!listed) out[n++] = i;
    }
    return n;
}

void ts__vjp_reshape(ts_grad_pass *g, ts_node *n, ts_value *const *dout)
{
    ts__push(g, n, 0, ts_reshape(g->b, D, X->type.dim, X->type.rank));
}

void ts__vjp_transpose(ts_grad_pass *g, ts_node *n, ts_value *const *dout)
{
    const ts_dims *perm = &n->attr.transpose.perm;
    int64_t inverse[TS_MAX_RANK];
    for (int i = 0; i < perm->n; i++) inverse[perm->v[i]] = i;
    ts__push(g, n, 0, ts_transpose(g->b, D, inverse, perm->n));
}

/* Sum over the repeated dimensions; map need not be ascending. */
void ts__vjp_broadcast(ts_grad_pass *g, ts_node *n, ts_value *const *dout)
{
    const ts_dims *map = &n->attr.broadcast.map;
    int64_t axes[TS_MAX_RANK], perm[TS_MAX_RANK];
    int count = other_axes(n->out[0]->type.rank, map, axes);
    ts_value *d = count ? ts_reduce_sum(g->b, D, axes, count) : D;
    bool sorted = true;
    for (int i = 0; i < map->n; i++) {
        perm[i] = 0;
        for (int j = 0; j < map->n; j++) perm[i] += map->v[j] < map->v[i];
        sorted &= perm[i] == i;
    }
    ts__push(g, n, 0, sorted ? d : ts_transpose(g->b, d, perm, map->n));
}

void ts__vjp_slice(ts_grad_pass *g, ts_node *n, ts_value *const *dout)
{
    int axis = (int)n->attr.slice.axis;
    int64_t size = X->type.dim[axis].size;
    ts__push(g, n, 0, ts_pad(g->b, D, axis, n->attr.slice.start, size - n->attr.slice.limit, 0));
}

void ts__vjp_concat(ts_grad_pass *g, ts_node *n, ts_value *const *dout)
{
    int axis = (int)n->attr.axis.axis;
    int64_t at = 0;
    for (int i = 0; i < n->n_in; i++) {
        int64_t size = n->in[i]->type.dim[axis].size;
        if (ts__needs(g, n, i)) ts__push(g, n, i, ts_slice(g->b, D, axis, at, at + size));
        at += size;
    }
}

void ts__vjp_pad(ts_grad_pass *g, ts_node *n, ts_value *const *dout)
{
    int axis = (int)n->attr.pad.axis;
    int64_t low = n->attr.pad.low;
    ts__push(g, n, 0, ts_slice(g->b, D, axis, low, low + X->type.dim[axis].size));
}

static ts_value *zeros_like(ts_builder *b, const ts_value *v, ts_dtype dtype)
{
    return ts_constant(b, 0, dtype, v->type.dim, v->type.rank);
}

void ts__vjp_dynamic_slice(ts_grad_pass *g, ts_node *n, ts_value *const *dout)
{
    ts_value *zero = zeros_like(g->b, X, D->type.dtype);
    ts__push(g, n, 0, ts_dynamic_update(g->b, zero, D, n->in[1], (int)n->attr.dynamic.axis));
}

void ts__vjp_dynamic_update(ts_grad_pass *g, ts_node *n, ts_value *const *dout)
{
    int axis = (int)n->attr.dynamic.axis;
    if (ts__needs(g, n, 0))
        ts__push(
            g, n, 0,
            ts_dynamic_update(g->b, D, zeros_like(g->b, n->in[1], D->type.dtype), n->in[2], axis));
    if (ts__needs(g, n, 1))
        ts__push(g, n, 1, ts_dynamic_slice(g->b, D, n->in[2], axis, n->in[1]->type.dim[axis].size));
}

/* v, which lacks the axes, repeated along them to the shape of x. */
static ts_value *spread(ts_builder *b, ts_value *v, const ts_value *x, const ts_dims *axes)
{
    int64_t kept[TS_MAX_RANK];
    int count = other_axes(x->type.rank, axes, kept);
    return ts_broadcast(b, v, x->type.dim, x->type.rank, kept, count);
}

void ts__vjp_reduce_sum(ts_grad_pass *g, ts_node *n, ts_value *const *dout)
{
    ts__push(g, n, 0, spread(g->b, D, X, &n->attr.reduce.axes));
}

/* Shared equally among equal maxima. */
void ts__vjp_reduce_max(ts_grad_pass *g, ts_node *n, ts_value *const *dout)
{
    ts_builder *b = g->b;
    const ts_dims *axes = &n->attr.reduce.axes;
    ts_value *hit = ts_compare(b, TS_EQ, X, spread(b, n->out[0], X, axes));
    ts_value *ones = ts_convert(b, hit, TS_F32);
    ts_value *share = ts_div(b, ts_convert(b, D, TS_F32), ts_reduce_sum(b, ones, axes->v, axes->n));
    ts__push(g, n, 0, ts_mul(b, spread(b, share, X, axes), ones));
}

/* dx[.., j] = Σ_k d[.., k] · (j = index[.., k]). */
void ts__vjp_top_k(ts_grad_pass *g, ts_node *n, ts_value *const *dout)
{
    ts_builder *b = g->b;
    int rank = X->type.rank;
    if (!D) return;
    if (rank == TS_MAX_RANK) {
        ts__mistake(b, TS_UNIMPLEMENTED, "the gradient of top_k is limited to rank %d",
                    TS_MAX_RANK - 1);
        return;
    }
    ts_dim dims[TS_MAX_RANK];
    int64_t map[TS_MAX_RANK];
    for (int i = 0; i < rank; i++) {
        dims[i] = n->out[0]->type.dim[i];
        map[i] = i;
    }
    dims[rank] = X->type.dim[rank - 1];
    ts_value *index = ts_broadcast(b, n->out[1], dims, rank + 1, map, rank);
    ts_value *hit = ts_compare(b, TS_EQ, index, ts_iota(b, TS_I32, dims, rank + 1, rank));
    ts_value *d = ts_broadcast(b, D, dims, rank + 1, map, rank);
    ts_value *parts = ts_select(b, hit, d, ts_scalar(b, 0, D->type.dtype));
    ts__push(g, n, 0, ts_reduce_sum(b, parts, TS_INTS(rank - 1)));
}

/* Summed in the dtype that the table's cotangent has, f32 for a converted one. */
void ts__vjp_take(ts_grad_pass *g, ts_node *n, ts_value *const *dout)
{
    ts_value *d = ts_convert(g->b, D, ts__cotangent_dtype(X));
    ts__push(g, n, 0, ts_scatter_add(g->b, n->in[1], d, X->type.dim[0], n->attr.take.no_grad_row));
}

void ts__vjp_scatter_add(ts_grad_pass *g, ts_node *n, ts_value *const *dout)
{
    ts_builder *b = g->b;
    int64_t dropped = n->attr.scatter.no_grad_row;
    ts_value *ids = n->in[0];
    if (dropped >= 0) {
        ts_value *hit = ts_compare(b, TS_EQ, ids, ts_scalar(b, (double)dropped, TS_I32));
        ids = ts_select(b, hit, ts_scalar(b, -1, TS_I32), ids);
    }
    ts__push(g, n, 1, ts_take(b, D, ids, -1));
}

void ts__vjp_barrier(ts_grad_pass *g, ts_node *n, ts_value *const *dout)
{
    for (int i = 0; i < n->n_in; i++)
        if (dout[i]) ts__push(g, n, i, dout[i]);
}

/* ---- composites ------------------------------------------------------------------------------ */

void ts__vjp_rms_norm(ts_grad_pass *g, ts_node *n, ts_value *const *dout)
{
    ts_value *in[3] = {X, n->in[1], ts_convert(g->b, D, X->type.dtype)};
    ts_node *d = ts__op_n(g->b, TS_OP_rms_norm_grad, in, 3, &n->attr);
    if (!d) return;
    ts__push(g, n, 0, d->out[0]);
    ts__push(g, n, 1, d->out[1]);
}

void ts__vjp_rope(ts_grad_pass *g, ts_node *n, ts_value *const *dout)
{
    if (ts__needs(g, n, 1) || ts__needs(g, n, 2))
        ts__mistake(
            g->b, TS_UNIMPLEMENTED,
            "rope has no gradient for its tables; pass them as inputs that are not trained");
    ts_value *in[3] = {D, n->in[1], n->in[2]};
    ts_attr a = {.rope = {!n->attr.rope.inverse}};
    ts__push(g, n, 0, ts__op(g->b, TS_OP_rope, in, 3, &a));
}

void ts__vjp_attention(ts_grad_pass *g, ts_node *n, ts_value *const *dout)
{
    if (dout[1])
        ts__mistake(g->b, TS_UNIMPLEMENTED,
                    "attention has no gradient through its log-sum-exp, only through its output");
    if (!D) return;
    ts_value *in[7] = {X,
                       n->in[1],
                       n->in[2],
                       n->out[0],
                       n->out[1],
                       ts_convert(g->b, D, X->type.dtype),
                       n->n_in == 4 ? n->in[3] : NULL};
    ts_node *d = ts__op_n(g->b, TS_OP_attention_grad, in, n->n_in == 4 ? 7 : 6, &n->attr);
    for (int i = 0; d && i < 3; i++) ts__push(g, n, i, d->out[i]);
}

void ts__vjp_gated(ts_grad_pass *g, ts_node *n, ts_value *const *dout)
{
    ts_value *in[3] = {X, n->in[1], ts_convert(g->b, D, X->type.dtype)};
    ts_node *d = ts__op_n(g->b, TS_OP_gated_grad, in, 3, &n->attr);
    for (int i = 0; d && i < 2; i++) ts__push(g, n, i, d->out[i]);
}

void ts__vjp_grouped_dot(ts_grad_pass *g, ts_node *n, ts_value *const *dout)
{
    ts_value *in[4] = {X, n->in[1], n->in[2], ts_convert(g->b, D, X->type.dtype)};
    ts_node *d = ts__op_n(g->b, TS_OP_grouped_dot_grad, in, 4, NULL);
    for (int i = 0; d && i < 2; i++) ts__push(g, n, i, d->out[i]);
}

void ts__vjp_linear_xent(ts_grad_pass *g, ts_node *n, ts_value *const *dout)
{
    ts_value *zero = dout[0] && dout[1] ? NULL : zeros_like(g->b, n->out[0], TS_F32);
    ts_value *in[6] = {
        X, n->in[1], n->in[2], n->out[1], dout[0] ? dout[0] : zero, dout[1] ? dout[1] : zero};
    ts_node *d = ts__op_n(g->b, TS_OP_linear_xent_grad, in, 6, &n->attr);
    if (!d) return;
    ts__push(g, n, 0, d->out[0]);
    ts__push(g, n, 1, d->out[1]);
}
