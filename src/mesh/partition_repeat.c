/* mesh/partition_repeat.c – a repeat on one device: what goes in, what is carried, what comes out.
 *
 * A carry lies as its initial value does and is never partial; the body's result is brought to it. xs are never split
 * along the dimension that is sliced, so parameters stay parameters inside and are gathered there, one layer at a
 * time. Stacked and summed results that are gradients lie as their parameter does; over the axes on which that is
 * replicated they stay partial, and are summed once behind the loop.
 */
#include "mesh/partition_internal.h"

typedef struct parts {
    const ts_node *n;
    int n_carry, n_xs, n_stack;
    ts_spec *carry;                               /* [n_carry] */
    ts_value **carry_in, **xs_in, **carry_arg, **xs_arg; /* local */
    ts_value **next, **ys, **results;
    bool *sum;
} parts;

ts_spec ts__spec_inner(const ts_spec *s)
{
    ts_spec t = ts_spec_whole(s->rank - 1);
    for (int d = 1; d < s->rank; d++) {
        t.n[d - 1] = s->n[d];
        memcpy(t.axis[d - 1], s->axis[d], s->n[d]);
    }
    t.partial = s->partial;
    return t;
}

static ts_spec with_first(const ts_spec *s)
{
    ts_spec t = ts_spec_whole(s->rank + 1);
    for (int d = 0; d < s->rank; d++) {
        t.n[d + 1] = s->n[d];
        memcpy(t.axis[d + 1], s->axis[d], s->n[d]);
    }
    t.partial = s->partial;
    return t;
}

/* A layout for a carry that begins as a constant: that of its next value, where the graph says it. */
static ts_spec guess_carry(ts_partitioner *p, const ts_node *n, int i)
{
    const ts_value *next = n->body->result[i];
    const ts_node *made = next->node;
    const ts_pin *pin = next->pin;
    for (int k = 0; made && !pin && k < made->n_in; k++)
        if (ts_type_same(&made->in[k]->type, &next->type)) pin = made->in[k]->pin;
    return pin ? ts_rules_spec(p->mesh, p->rules, pin->name, &next->type, NULL)
               : ts_spec_whole(next->type.rank);
}

static void place(ts_partitioner *p, const ts_value *v, const ts_spec *s, ts_value *local)
{
    *ts__placement(p, v) = (ts_placement){.spec = *s, .use = *s, .local = local, .known = true};
}

/* ---- operands -------------------------------------------------------------------------------- */

static void bring_carry(ts_partitioner *p, parts *w, int i)
{
    const ts_value *v = w->n->in[i];
    const ts_placement *at = ts__placement(p, v);
    w->carry[i] = at->free ? guess_carry(p, w->n, i) : at->spec;
    w->carry[i].partial = 0;
    w->carry_in[i] = ts__reshard(p, v, &w->carry[i]);
}

/* The layout that a sliced or constant operand has while the loop runs. */
static ts_spec settled(const ts_value *v, const ts_placement *at, bool sliced)
{
    ts_spec s = at->free ? ts_spec_whole(v->type.rank) : at->spec;
    if (sliced) s.n[0] = 0;
    s.partial = 0;
    return s;
}

static void bring_xs(ts_partitioner *p, parts *w, int i)
{
    const ts_value *v = w->n->in[w->n_carry + i];
    ts_spec s = settled(v, ts__placement(p, v), true);
    w->xs_in[i] = ts__reshard(p, v, &s);
}

static void place_xs(ts_partitioner *p, parts *w, int i)
{
    const ts_value *v = w->n->in[w->n_carry + i], *arg = w->n->body->arg[w->n_carry + i];
    const ts_placement *at = ts__placement(p, v);
    ts_spec s = settled(v, at, true), inner = ts__spec_inner(&s), use = ts__spec_inner(&at->use);
    place(p, arg, &inner, w->xs_arg[i]);
    if (at->param) {
        p->place[arg->id].param = true;
        p->place[arg->id].use = use;
    }
}

/* Free values are made inside; the others are seen from inside, brought to their layout once. */
static void place_const(ts_partitioner *p, const ts_value *v, const ts_value *arg)
{
    ts_placement *at = ts__placement(p, v);
    if (at->free) {
        p->place[arg->id] = *at;
        return;
    }
    ts_spec s = settled(v, at, false);
    ts_value *local = ts__reshard(p, v, &s);
    at = ts__placement(p, v);
    place(p, arg, &s, local);
    p->place[arg->id].param = at->param;
    if (at->param) p->place[arg->id].use = at->use;
}

/* ---- results --------------------------------------------------------------------------------- */

static ts_spec result_layout(ts_partitioner *p, const ts_value *v, const ts_spec *want, bool sum)
{
    const ts_placement *at = ts__placement(p, v);
    ts_spec s = at->free ? ts_spec_whole(v->type.rank) : at->spec;
    uint16_t partial = s.partial;
    if (want) {
        s = *want;
        s.partial = partial & (uint16_t)~ts_spec_axes(want);
    } else if (!sum) {
        s.partial = 0;
    }
    return s;
}

static void bring_results(ts_partitioner *p, parts *w, ts_spec *layout)
{
    const ts_region *body = w->n->body;
    for (int i = 0; i < w->n_carry; i++) w->next[i] = ts__reshard(p, body->result[i], &w->carry[i]);
    for (int i = w->n_carry; i < body->n_result; i++) {
        bool sum = i >= w->n_carry + w->n_stack;
        const ts_value *v = body->result[i];
        layout[i] = result_layout(p, v, p->want[v->id], sum);
        w->ys[i - w->n_carry] = ts__reshard(p, v, &layout[i]);
        w->sum[i - w->n_carry] = sum;
    }
}

static void place_results(ts_partitioner *p, parts *w, const ts_spec *layout)
{
    for (int i = 0; i < w->n->n_out; i++) {
        ts_spec s = i < w->n_carry ? w->carry[i] : layout[i];
        if (i >= w->n_carry && i < w->n_carry + w->n_stack) s = with_first(&s);
        place(p, w->n->out[i], &s, w->results[i]);
    }
}

/* ---- the loop -------------------------------------------------------------------------------- */

static bool make_lists(ts_partitioner *p, parts *w, ts_spec **layout)
{
    size_t n = (size_t)(w->n->n_in + w->n->n_out + 1);
    ts_value **v = ts__partition_alloc(p, 7 * n * sizeof *v);
    w->carry = ts__partition_alloc(p, n * sizeof *w->carry);
    w->sum = ts__partition_alloc(p, n);
    *layout = ts__partition_alloc(p, n * sizeof **layout);
    if (!v || !w->carry || !w->sum || !*layout) return false;
    w->carry_in = v;
    w->xs_in = v + n;
    w->carry_arg = v + 2 * n;
    w->xs_arg = v + 3 * n;
    w->next = v + 4 * n;
    w->ys = v + 5 * n;
    w->results = v + 6 * n;
    return true;
}

void ts__partition_repeat(ts_partitioner *p, const ts_node *n)
{
    ts_builder *b = &p->b;
    parts w = {.n = n,
               .n_carry = (int)n->attr.repeat.n_carry,
               .n_xs = (int)n->attr.repeat.n_xs,
               .n_stack = (int)n->attr.repeat.n_stack};
    ts_spec *layout;
    if (!make_lists(p, &w, &layout)) return;
    for (int i = 0; i < w.n_carry; i++) bring_carry(p, &w, i);
    for (int i = 0; i < w.n_xs; i++) bring_xs(p, &w, i);
    for (int i = w.n_carry + w.n_xs; i < n->n_in; i++) place_const(p, n->in[i], n->body->arg[i]);
    b->remat = (ts_remat)n->attr.repeat.remat;
    ts_repeat *r = ts_repeat_begin(b, n->attr.repeat.n, n->attr.repeat.reverse, w.carry_in, w.n_carry,
                                   w.xs_in, w.n_xs, w.carry_arg, w.xs_arg);
    if (b->error.code != TS_OK) return;
    for (int i = 0; i < w.n_carry; i++) place(p, n->body->arg[i], &w.carry[i], w.carry_arg[i]);
    for (int i = 0; i < w.n_xs; i++) place_xs(p, &w, i);
    ts__partition_region(p, n->body);
    bring_results(p, &w, layout);
    if (b->error.code != TS_OK) return;
    ts_scope scope = {n->scope, NULL}; /* what stands behind the body is the loop's again */
    b->loc = n->loc;
    b->scope = n->scope ? &scope : NULL;
    b->backward = n->backward;
    ts_repeat_end(b, r, w.next, w.ys, w.sum, n->n_out - w.n_carry, w.results);
    b->scope = NULL;
    place_results(p, &w, layout);
}
