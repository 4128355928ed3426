/* nn/optimizer.c – global-norm clipping, AdamW and the guard against non-finite steps, as a graph.
 *
 * The norm is over all trained parameters, before clipping; the scale is min(1, clip / norm), as
 * optax's clip_by_global_norm. A step whose loss or norm is not finite is undone by a select inside
 * adamw, so no host decision is needed after the inputs were donated.
 */
#include "nn/nn.h"

static ts_value *global_norm(ts_builder *b, ts_value *const *grads, int n)
{
    ts_value **squares = ts_arena_alloc(b->graph->arena, (size_t)(n + 1) * sizeof *squares);
    if (!squares)
        return ts__mistake(b, TS_RESOURCE_EXHAUSTED, "memory is out while building graph %s",
                           b->graph->name);
    for (int i = 0; i < n; i++) {
        ts_dot_dims all = {.n_contract = grads[i]->type.rank};
        for (int d = 0; d < all.n_contract; d++) all.x_contract[d] = all.y_contract[d] = d;
        squares[i] = ts_dot(b, grads[i], grads[i], &all, TS_F32);
    }
    return n ? ts_sqrt(b, ts_add_n(b, squares, n)) : ts_scalar(b, 0, TS_F32);
}

static ts_value *moment(ts_builder *b, const char *kind, const ts_param_info *p)
{
    const char *name = ts_arena_printf(b->graph->arena, "adam.%s.%s", kind, p->name);
    if (!name)
        return ts__mistake(b, TS_RESOURCE_EXHAUSTED, "memory is out while building graph %s",
                           b->graph->name);
    return ts_input(b, name, TS_F32, p->value->type.dim, p->value->type.rank);
}

ts_value *ts_optimizer_apply(ts_builder *b, const ts_optimizer_options *o,
                             const ts_optimizer_inputs *in, const int *trained,
                             ts_value *const *grads, int n, ts_value *loss, ts_value **ok)
{
    ts_scope_push(b, "optimizer");
    ts_value *norm = global_norm(b, grads, n), *one = ts_scalar(b, 1, TS_F32), *scale = one;
    *ok = ts_and(b, ts_is_finite(b, loss), ts_is_finite(b, norm));
    if (o->clip > 0) {
        ts_value *limit = ts_scalar(b, o->clip, TS_F32);
        scale = ts_select(b, ts_compare(b, TS_GT, norm, limit), ts_div(b, limit, norm), one);
    }
    for (int i = 0; i < n && b->error.code == TS_OK; i++) {
        const ts_param_info *p = &b->graph->param[trained[i]];
        ts_adamw_options a = o->adamw;
        if (ts_param_matches(b, p, o->no_decay, o->n_no_decay, "adamw_mask")) a.weight_decay = 0;
        ts_value *m = moment(b, "m", p), *v = moment(b, "v", p), *next[3];
        if (b->error.code != TS_OK) break;
        ts_adamw(b, p->value, grads[i], m, v, in->lr, in->step, scale, *ok, &a, next);
        ts_output(b, p->name, next[0], p->value);
        ts_output(b, m->name, next[1], m);
        ts_output(b, v->name, next[2], v);
    }
    ts_scope_pop(b);
    return norm;
}
