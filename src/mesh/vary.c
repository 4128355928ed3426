/* mesh/vary.c – along which axes of the mesh a value of a device's program may differ between devices.
 *
 * A forward data-flow analysis over the program that the partitioner wrote. What differs comes from inputs, by their
 * layouts, from axis_index, and from collectives that leave each device a piece of its own; gathers and all_reduces
 * end it along their axis. All else differs where one of its operands does, a barrier's results each with its operand.
 * Sets only grow, so passes over the whole end when one of them changes nothing: carries of repeats are followed to
 * their fixed point, however deep.
 *
 * What is not said to vary along an axis is equal there to the last bit, and so is all that a layout calls replicated:
 * the partitioner makes replicas of nothing else. Not here: layouts themselves (partition.c).
 */
#include "mesh/ring_internal.h"

typedef struct analysis {
    const ts_graph *graph;
    uint16_t *of; /* by value; a bit an axis */
    bool changed;
} analysis;

static void join(analysis *a, const ts_value *v, uint16_t axes)
{
    if (!(axes & ~a->of[v->id])) return;
    a->of[v->id] |= axes;
    a->changed = true;
}

static uint16_t axis_bit(const ts_graph *g, const ts_node *collective)
{
    for (int i = 0; i < g->n_axis; i++)
        if (strcmp(g->axis[i].name, collective->attr.collective.axis) == 0) return (uint16_t)(1u << i);
    return 0;
}

/* The results of an op without a region, of which at least one operand is in `axes`. */
static uint16_t transfer(const analysis *a, const ts_node *n, uint16_t axes)
{
    switch (n->op) {
    case TS_OP_all_reduce:
    case TS_OP_all_gather: return axes & (uint16_t)~axis_bit(a->graph, n);
    case TS_OP_axis_index:
    case TS_OP_reduce_scatter:
    case TS_OP_all_to_all: return axes | axis_bit(a->graph, n);
    default: return axes; /* a permute too: what is equal everywhere is equal when it has moved */
    }
}

static void follow(analysis *a, const ts_region *r);

static void follow_repeat(analysis *a, const ts_node *n)
{
    const ts_region *body = n->body;
    const int n_carry = (int)n->attr.repeat.n_carry;
    for (int i = 0; i < n->n_in; i++) join(a, body->arg[i], a->of[n->in[i]->id]);
    follow(a, body);
    for (int i = 0; i < n_carry; i++) {
        join(a, body->arg[i], a->of[body->result[i]->id]);
        join(a, n->out[i], a->of[body->arg[i]->id]);
    }
    for (int i = n_carry; i < n->n_out; i++) join(a, n->out[i], a->of[body->result[i]->id]);
}

static void follow(analysis *a, const ts_region *r)
{
    for (const ts_node *n = r->first; n; n = n->next) {
        uint16_t axes = 0;
        if (n->body) {
            follow_repeat(a, n);
            continue;
        }
        for (int i = 0; i < n->n_in; i++) axes |= a->of[n->in[i]->id];
        for (int i = 0; i < n->n_out; i++)
            join(a, n->out[i], n->op == TS_OP_barrier ? a->of[n->in[i]->id] : transfer(a, n, axes));
    }
}

const uint16_t *ts__vary(const ts_graph *g, const ts_spec *in, ts_arena *arena)
{
    analysis a = {.graph = g, .of = ts_arena_alloc(arena, ((size_t)g->next_id + 1) * sizeof *a.of)};
    if (!a.of) return NULL;
    for (int i = 0; i < g->top->n_arg; i++)
        join(&a, g->top->arg[i], in ? ts_spec_axes(&in[i]) | in[i].partial : UINT16_MAX);
    do {
        a.changed = false;
        follow(&a, g->top);
    } while (a.changed);
    return a.of;
}
