/* grad/like.c – which values of a forward op the nodes of its gradient are made of (ts_node.like).
 *
 * The partitioner lays a gradient out exactly as its primal, so it must know of each operand
 * which of the primal's values it is: that value itself, what stands for it in a backward body
 * (repeat.c), or its cotangent. It is looked up by identity once the rule is done, so that the
 * rules say nothing of it. Where one value is several operands of the primal (x·x), the place
 * that the rule's own order of operands suggests is taken.
 */
#include "grad/grad_internal.h"

/* Place k of n as a value: its operands, its results. */
static const ts_value *place(const ts_node *n, int k)
{
    return k < n->n_in ? n->in[k] : n->out[k - n->n_in];
}

static bool is_place(const ts_grad_pass *g, const ts_node *n, ts_value *const *dout,
                     const ts_value *v, int k)
{
    const ts_value *is = place(n, k);
    if (g->b->region != g->primal) is = ts__stand_in(g->b->region->user, is);
    return v == is || (k >= n->n_in && v == dout[k - n->n_in]);
}

/* The operand whose cotangent v is; −1 none. */
static int cotangent_of(const ts_grad_pass *g, const ts_value *v)
{
    return (int)(intptr_t)ts__idmap_get(&g->pushed, v) - 1;
}

/* own: the operand whose cotangent the node makes, which a product does not read; at: where v stands. */
static int place_of(const ts_grad_pass *g, const ts_node *n, ts_value *const *dout,
                    const ts_value *v, int own, int at)
{
    int found = -1, places = n->n_in + n->n_out;
    for (int k = 0; k < places; k++) {
        if (!is_place(g, n, dout, v, k)) continue;
        if (found < 0 || found == own || (k == at && k != own)) found = k;
    }
    return found < 0 ? cotangent_of(g, v) : found;
}

/* Is m the recomputed n rather than what its rule made? */
static bool is_copy(const ts_grad_pass *g, const ts_node *n, const ts_node *m)
{
    return g->b->region != g->primal &&
           ts__stand_in(g->b->region->user, n->out[0]) == m->out[0];
}

static bool mark(ts_grad_pass *g, const ts_node *n, ts_value *const *dout, ts_node *m)
{
    int8_t *like = ts_arena_alloc(g->b->graph->arena, (size_t)(m->n_in + m->n_out) + 1);
    if (!like) return false;
    int own = m->n_out == 1 ? cotangent_of(g, m->out[0]) : -1;
    for (int i = 0; i < m->n_in + m->n_out; i++) {
        int k = i < m->n_in ? place_of(g, n, dout, m->in[i], own, i)
                            : cotangent_of(g, m->out[i - m->n_in]);
        like[i] = (int8_t)(k <= INT8_MAX ? k : -1);
    }
    m->like = like;
    return true;
}

void ts__mark_like(ts_grad_pass *g, const ts_node *n, ts_value *const *dout, ts_node *first,
                   const ts_node *before)
{
    for (ts_node *m = first; m && m != before; m = m->next) {
        if (m->primal != n || is_copy(g, n, m)) continue;
        if (!mark(g, n, dout, m)) {
            ts__mistake(g->b, TS_RESOURCE_EXHAUSTED, "memory is out while differentiating graph %s",
                        g->b->graph->name);
            return;
        }
    }
}
