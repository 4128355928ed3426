/* mesh/wire.c – what a partitioned graph asks of the wire, from its text alone: collectives by op
 * and axis, loops multiplied out.
 *
 * The ring model: of n devices each sends (n−1)/n of the whole in a gather, a scatter or an
 * exchange, twice that in an all_reduce, and its operand in a permute. What a compiler makes of
 * them is not here (xla/hlo.c reads that).
 */
#include "mesh/partition.h"

static const ts_op wired[] = {TS_OP_all_reduce, TS_OP_all_gather, TS_OP_reduce_scatter,
                              TS_OP_all_to_all, TS_OP_collective_permute};
enum { WIRED = sizeof wired / sizeof *wired };

typedef struct wire_table {
    const ts_graph *g;
    ts_wire row[WIRED][TS_MAX_AXES];
} wire_table;

/* The bytes a device sends. */
static double sent(const ts_node *n, double in, double out)
{
    const double parts = (double)n->attr.collective.n, most = (parts - 1) / parts;
    switch (n->op) {
    case TS_OP_all_reduce: return 2 * most * in;
    case TS_OP_all_gather: return most * out;
    case TS_OP_collective_permute: return n->attr.collective.shift % n->attr.collective.n ? in : 0;
    default: return most * in;
    }
}

static void count(wire_table *t, const ts_node *n, int64_t runs)
{
    int op = 0, axis = 0;
    while (op < WIRED && wired[op] != n->op) op++;
    if (op == WIRED) return;
    while (axis < t->g->n_axis && strcmp(t->g->axis[axis].name, n->attr.collective.axis)) axis++;
    if (axis == t->g->n_axis) return;
    const size_t in = ts_type_bytes(&n->in[0]->type), out = ts_type_bytes(&n->out[0]->type);
    const size_t larger = in > out ? in : out;
    ts_wire *w = &t->row[op][axis];
    if (ts_add_i64(w->count, runs, &w->count)) w->count = INT64_MAX;
    w->bytes += (double)runs * sent(n, (double)in, (double)out);
    w->payload += (double)runs * (double)in;
    if ((int64_t)larger > w->largest) w->largest = (int64_t)larger;
}

static void walk(wire_table *t, const ts_region *r, int64_t runs)
{
    for (const ts_node *n = r->first; n; n = n->next) {
        int64_t inner = runs;
        count(t, n, runs);
        if (!n->body) continue;
        if (ts_mul_i64(runs, n->attr.repeat.n, &inner)) inner = INT64_MAX;
        walk(t, n->body, inner); /* the verifier bounds the depth */
    }
}

size_t ts_wire_of(const ts_graph *g, ts_wire *out, size_t max)
{
    wire_table t = {.g = g};
    size_t n = 0;
    walk(&t, g->top, 1);
    for (int op = 0; op < WIRED; op++)
        for (int axis = 0; axis < g->n_axis; axis++) {
            ts_wire *w = &t.row[op][axis];
            if (!w->count) continue;
            w->op = wired[op];
            w->axis = g->axis[axis].name;
            if (n < max) out[n] = *w;
            n++;
        }
    return n;
}
