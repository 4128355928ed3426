/* grad/grad.c – the walk: activity, cotangents, one VJP rule a node, from the last node to the first.
 *
 * A region is differentiated into the builder's current region, which is the same one at the top and the
 * backward body for a repeat's body (repeat.c). Contributions to a cotangent are collected and summed by
 * one n-ary add where the value is reached, so the partitioner sees one sum.
 */
#include "grad/grad_internal.h"

struct ts_cotangent {
    ts_value *value;
    ts_cotangent *next; /* later contributions follow */
};

void *ts__idmap_get(const ts_idmap *m, const ts_value *v)
{
    return v->id < m->n ? m->slot[v->id] : NULL;
}

bool ts__idmap_set(ts_builder *b, ts_idmap *m, const ts_value *v, void *p)
{
    if (v->id >= m->n) {
        size_t n = (size_t)b->graph->next_id + b->graph->next_id / 2 + 64;
        void **grown = ts_arena_alloc(b->graph->arena, n * sizeof *grown);
        if (!grown) {
            ts__mistake(b, TS_RESOURCE_EXHAUSTED, "memory is out while differentiating graph %s",
                        b->graph->name);
            return false;
        }
        if (m->n) memcpy(grown, m->slot, m->n * sizeof *grown);
        m->slot = grown;
        m->n = n;
    }
    m->slot[v->id] = p;
    return true;
}

static bool is_float(const ts_value *v)
{
    return v->type.dtype == TS_F32 || v->type.dtype == TS_BF16;
}

ts_dtype ts__cotangent_dtype(const ts_value *v)
{
    const ts_node *n = v->node;
    bool from_f32 = n && n->op == TS_OP_convert && n->in[0]->type.dtype == TS_F32;
    return from_f32 ? TS_F32 : v->type.dtype;
}

bool ts__needs(const ts_grad_pass *g, const ts_node *n, int i)
{
    return is_float(n->in[i]) && ts__idmap_get(&g->varied, n->in[i]);
}

/* Returns what is added: d in the dtype of v's cotangent; NULL after a mistake. */
static ts_value *add_cotangent(ts_builder *b, ts_idmap *map, ts_value *v, ts_value *d)
{
    ts_cotangent *c = ts_arena_alloc(b->graph->arena, sizeof *c), *list = ts__idmap_get(map, v);
    if (!c) {
        ts__mistake(b, TS_RESOURCE_EXHAUSTED, "memory is out while differentiating graph %s",
                    b->graph->name);
        return NULL;
    }
    c->value = ts_convert(b, d, ts__cotangent_dtype(v));
    if (!list) {
        ts__idmap_set(b, map, v, c);
        return c->value;
    }
    while (list->next) list = list->next;
    list->next = c;
    return c->value;
}

/* The first push is by the rule that made d. */
static void remember(ts_grad_pass *g, const ts_value *d, int i)
{
    if (!ts__idmap_get(&g->pushed, d)) ts__idmap_set(g->b, &g->pushed, d, (void *)(intptr_t)(i + 1));
}

void ts__push(ts_grad_pass *g, const ts_node *n, int i, ts_value *d)
{
    if (g->b->error.code != TS_OK || !ts__needs(g, n, i)) return;
    remember(g, d, i);
    ts_value *given = add_cotangent(g->b, &g->cotangent, n->in[i], d);
    if (given) remember(g, given, i);
}

/* The sum of all contributions to v, or NULL. */
static ts_value *total(ts_grad_pass *g, const ts_value *v)
{
    ts_cotangent *first = ts__idmap_get(&g->cotangent, v);
    int n = 0;
    for (ts_cotangent *c = first; c; c = c->next) n++;
    if (n <= 1) return first ? first->value : NULL;
    ts_value **all = ts_arena_alloc(g->b->graph->arena, (size_t)n * sizeof *all);
    if (!all)
        return ts__mistake(g->b, TS_RESOURCE_EXHAUSTED,
                           "memory is out while differentiating graph %s", g->b->graph->name);
    n = 0;
    for (ts_cotangent *c = first; c; c = c->next) all[n++] = c->value;
    first->value = ts_add_n(g->b, all, n);
    first->next = NULL;
    return first->value;
}

static bool any_varied(const ts_node *n, const ts_idmap *varied)
{
    for (int i = 0; i < n->n_in; i++)
        if (is_float(n->in[i]) && ts__idmap_get(varied, n->in[i])) return true;
    return false;
}

void ts__mark_varied(ts_builder *b, const ts_region *region, ts_idmap *varied)
{
    for (ts_node *n = region->first; n; n = n->next)
        if (any_varied(n, varied))
            for (int i = 0; i < n->n_out; i++)
                if (is_float(n->out[i])) ts__idmap_set(b, varied, n->out[i], n->out[i]);
}

static void apply_rule(ts_grad_pass *g, ts_node *n)
{
    ts_builder *b = g->b;
    if (!any_varied(n, &g->varied)) return;
    ts_value *local[16], **dout = local;
    bool some = false;
    if (n->n_out > 16 &&
        !(dout = ts_arena_alloc(b->graph->arena, (size_t)n->n_out * sizeof *dout))) {
        ts__mistake(b, TS_RESOURCE_EXHAUSTED, "memory is out while differentiating graph %s",
                    b->graph->name);
        return;
    }
    for (int i = 0; i < n->n_out; i++) some |= ts__idmap_get(&g->cotangent, n->out[i]) != NULL;
    if (!some) return;
    ts_scope scope = {n->scope, b->scope}, *outer = b->scope;
    b->loc = n->loc;
    b->scope = n->scope ? &scope : NULL;
    for (int i = 0; i < n->n_out; i++) dout[i] = total(g, n->out[i]);
    ts_node *last = b->before ? b->before->prev : b->region->last;
    bool alike = n->op != TS_OP_repeat && n->op != TS_OP_barrier; /* the others: see ts_node.like */
    b->primal = alike ? n : NULL;
    if (ts__vjps[n->op])
        ts__vjps[n->op](g, n, dout);
    else
        ts__mistake(b, TS_UNIMPLEMENTED,
                    "the loss depends on a trained value through %s, which has no gradient",
                    ts_op_infos[n->op].name);
    b->scope = outer;
    b->primal = NULL;
    if (alike && b->error.code == TS_OK)
        ts__mark_like(g, n, dout, last ? last->next : b->region->first, b->before);
}

void ts__differentiate(ts_builder *b, const ts_region *primal, ts_value *const *seeds,
                       ts_value *const *d, int n_seeds, ts_value *const *wants, int n_wants,
                       ts_value **out)
{
    ts_grad_pass g = {.b = b, .primal = primal};
    ts_node *last = primal->last; /* what the rules append comes after it */
    for (int i = 0; i < n_wants; i++) ts__idmap_set(b, &g.varied, wants[i], wants[i]);
    ts__mark_varied(b, primal, &g.varied);
    for (int i = 0; i < n_seeds; i++)
        if (d[i] && is_float(seeds[i]) && ts__idmap_get(&g.varied, seeds[i]))
            add_cotangent(b, &g.cotangent, seeds[i], d[i]);
    for (ts_node *n = last; n && b->error.code == TS_OK; n = n->prev) apply_rule(&g, n);
    for (int i = 0; i < n_wants; i++) out[i] = b->error.code == TS_OK ? total(&g, wants[i]) : NULL;
}

ts_status ts_grad(ts_builder *b, ts_value *loss, ts_value *const *wrt, int n, ts_value **out,
                  ts_error *err)
{
    ts_loc loc = b->loc;
    ts_scope *scope = b->scope;
    if (b->error.code == TS_OK && (loss->type.rank != 0 || loss->type.dtype != TS_F32)) {
        char text[400];
        ts__mistake(b, TS_INVALID_ARGUMENT, "the loss is %s; a gradient needs a scalar f32",
                    ts_type_text(&loss->type, text, sizeof text));
    }
    ts_value **inside = ts_arena_alloc(b->graph->arena, (size_t)(n + 1) * sizeof *inside);
    if (!inside)
        ts__mistake(b, TS_RESOURCE_EXHAUSTED, "memory is out while differentiating graph %s",
                    b->graph->name);
    for (int i = 0; inside && i < n; i++) inside[i] = ts__use(b, wrt[i]);
    if (b->error.code == TS_OK) {
        b->backward = true;
        loss = ts__use(b, loss);
        ts_value *one = ts_scalar(b, 1, TS_F32);
        ts__differentiate(b, b->region, &loss, &one, 1, inside, n, out);
        for (int i = 0; i < n && b->error.code == TS_OK; i++) {
            ts_type t = inside[i]->type;
            if (!out[i]) out[i] = ts__zeros(b, &t);
        }
        b->backward = false;
    }
    b->loc = loc;
    b->scope = scope;
    for (int i = 0; b->error.code != TS_OK && i < n; i++) out[i] = b->poison;
    if (b->error.code != TS_OK && err) *err = b->error;
    return b->error.code;
}
