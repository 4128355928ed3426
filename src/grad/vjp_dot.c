/* grad/vjp_dot.c – the VJP of dot, and the table of all rules.
 *
 * o = dot(x, y): batch, x's free, y's free dimensions. dx = dot(d, y) over y's free dimensions gives
 * batch, x's free, then x's contracted dimensions in the order in which y holds them; a transpose puts
 * them where x has them. dy is the mirror image, with d first again, so that the gradient of a weight
 * [out…, in] comes out in its own layout without one.
 */
#include "grad/rules.h"

const ts_vjp ts__vjps[TS_OPS] = {
#define OP(name, ...) [TS_OP_##name] = ts__vjp_##name,
#include "ir/ops.def"
#undef OP
};

static int find(const ts_dims *d, int64_t v)
{
    for (int i = 0; i < d->n; i++)
        if (d->v[i] == v) return i;
    return -1;
}

/* Cotangent of one operand `mine` (its batch and contracted dims) given the other one. free_at: where
 * the other's free dimensions start in d. */
static ts_value *side(ts_builder *b, ts_value *d, ts_value *mine, const ts_dims *m_batch,
                      const ts_dims *m_contract, ts_value *other, const ts_dims *o_batch,
                      const ts_dims *o_contract, int free_at)
{
    ts_dot_dims dd = {.n_batch = m_batch->n};
    int64_t perm[TS_MAX_RANK];
    int rank = mine->type.rank, n_free = rank - m_batch->n - m_contract->n, at = free_at;
    for (int i = 0; i < m_batch->n; i++) {
        dd.x_batch[i] = i;
        dd.y_batch[i] = o_batch->v[i];
    }
    for (int i = 0; i < other->type.rank; i++) {
        if (find(o_batch, i) >= 0 || find(o_contract, i) >= 0) continue;
        dd.x_contract[dd.n_contract] = at++;
        dd.y_contract[dd.n_contract++] = i;
    }
    ts_dtype dtype = ts__cotangent_dtype(mine);
    ts_value *r = ts_dot(b, d, other, &dd, dtype);
    /* The result's dimensions: batch, mine's free, then other's contracted in ascending order. */
    bool same = true;
    int free_seen = 0;
    for (int i = 0; i < rank; i++) {
        int k = find(m_batch, i), c = find(m_contract, i);
        if (k >= 0)
            perm[i] = k;
        else if (c < 0)
            perm[i] = m_batch->n + free_seen++;
        else {
            perm[i] = m_batch->n + n_free;
            for (int j = 0; j < o_contract->n; j++) perm[i] += o_contract->v[j] < o_contract->v[c];
        }
        same &= perm[i] == i;
    }
    return same ? r : ts_transpose(b, r, perm, rank);
}

void ts__vjp_dot(ts_grad_pass *g, ts_node *n, ts_value *const *dout)
{
    ts_value *x = n->in[0], *y = n->in[1], *d = dout[0];
    const ts_dims *xb = &n->attr.dot.x_batch, *yb = &n->attr.dot.y_batch;
    const ts_dims *xc = &n->attr.dot.x_contract, *yc = &n->attr.dot.y_contract;
    int x_free = x->type.rank - xb->n - xc->n;
    /* bf16 products take bf16 cotangents; the sum inside is f32. */
    if (x->type.dtype == y->type.dtype) d = ts_convert(g->b, d, x->type.dtype);
    if (ts__needs(g, n, 0)) ts__push(g, n, 0, side(g->b, d, x, xb, xc, y, yb, yc, xb->n + x_free));
    if (ts__needs(g, n, 1)) ts__push(g, n, 1, side(g->b, d, y, yb, yc, x, xb, xc, xb->n));
}
