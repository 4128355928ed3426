/* exec/footprint_fuse.c – which values of a lowered graph get memory when a compiler fuses as XLA
 * does.
 *
 * The rules, in the order in which they are applied: 1. Products, reductions, concatenations and
 * the like write memory, collectives and loops too. What adds up or converts a kernel's result and
 * is its only reader is taken along: then only the end of that chain is written. 2. Slices,
 * broadcasts, conversions and element-wise arithmetic are computed where they are read, without
 * memory of their own, unless something reads them that cannot compute: a product after arithmetic,
 * a collective, a loop. 3. Arithmetic over several large values that is read by more than one
 * kernel is written once: to compute it twice would keep all that it is made of. Of one large value
 * it is computed twice. 4. What only replaces inputs (an optimizer's state) is written where the
 * input lies.
 *
 * Invariant: the rules look at the graph, never at a device or a size that was fitted.
 * Not here: what lives when (footprint.c).
 */
#include "exec/footprint_internal.h"

ts_fuse_class ts__fuse_class(const ts_node *n)
{
    switch (n->op) {
    case TS_OP_constant:
    case TS_OP_iota:
    case TS_OP_axis_index: return TS_FUSE_SOURCE;
    case TS_OP_reshape:
    case TS_OP_transpose:
    case TS_OP_barrier: return TS_FUSE_RENAME;
    case TS_OP_slice:
    case TS_OP_broadcast:
    case TS_OP_convert:
    case TS_OP_dynamic_slice: return TS_FUSE_MOVE;
    case TS_OP_dot:
    case TS_OP_reduce_sum:
    case TS_OP_reduce_max:
    case TS_OP_concat:
    case TS_OP_take:
    case TS_OP_scatter_add:
    case TS_OP_dynamic_update:
    case TS_OP_argmax:
    case TS_OP_top_k: return TS_FUSE_KERNEL;
    case TS_OP_repeat: return TS_FUSE_WHOLE;
    default: return ts_op_infos[n->op].kind == TS_COLLECTIVE ? TS_FUSE_WHOLE : TS_FUSE_ELEMENT;
    }
}

const ts_value *ts__fuse_outer(const ts_value *arg)
{
    const ts_node *owner = arg->region->owner;
    if (arg->node || !owner || arg->index < owner->attr.repeat.n_carry) return NULL;
    return owner->in[arg->index];
}

static int64_t elements(const ts_value *v)
{
    return ts_type_elements(&v->type);
}

/* ---- forward: uses, sources, what a kernel takes along --------------------------------------- */

static void count_uses(const ts_region *r, int *order, ts_fuse_value *value)
{
    for (const ts_node *n = r->first; n; n = n->next) {
        for (int i = 0; i < n->n_out; i++) value[n->out[i]->id].order = ++*order;
        for (int i = 0; i < n->n_in; i++) {
            value[n->in[i]->id].uses++;
            value[n->in[i]->id].user = n;
        }
        if (n->body) count_uses(n->body, order, value);
    }
    for (int i = 0; i < r->n_result; i++) {
        value[r->result[i]->id].uses++;
        value[r->result[i]->id].user = NULL;
    }
}

/* Operands of a sixteenth of the result, and less, do not count: rows' factors, scalars. */
static int source_of(const ts_node *n, const ts_value *out, const ts_fuse_value *value)
{
    int source = FUSE_NONE;
    for (int i = 0; i < n->n_in; i++) {
        int s = value[n->in[i]->id].source;
        if (elements(n->in[i]) * 16 <= elements(out) || s == FUSE_NONE || s == source) continue;
        source = source == FUSE_NONE ? s : FUSE_MANY;
    }
    return source;
}

/* The value behind a kernel's result that is written in its place; NULL: none. Of several operands
 * the one that is made last takes it along: the others are there by then. */
static const ts_value *taken_along(const ts_value *v, const ts_fuse_value *value)
{
    const ts_fuse_value *f = &value[v->id];
    const ts_node *n = f->uses == 1 ? f->user : NULL;
    if (!n || n->n_out != 1 || value[n->out[0]->id].kernel || elements(n->out[0]) != elements(v))
        return NULL;
    for (int i = 0; i < n->n_in; i++)
        if (value[n->in[i]->id].order > f->order) return NULL;
    ts_fuse_class c = ts__fuse_class(n);
    return c == TS_FUSE_ELEMENT || c == TS_FUSE_RENAME || n->op == TS_OP_convert ? n->out[0] : NULL;
}

static void note_result(const ts_node *n, const ts_value *v, ts_fuse_value *value)
{
    ts_fuse_class c = ts__fuse_class(n);
    ts_fuse_value *f = &value[v->id];
    f->root = FUSE_NONE;
    f->source = c == TS_FUSE_SOURCE                ? FUSE_NONE
                : c >= TS_FUSE_KERNEL || f->kernel ? (int)v->id
                                                   : source_of(n, v, value);
    if (c == TS_FUSE_WHOLE) f->memory = true;
    if (c == TS_FUSE_KERNEL) f->kernel = true;
    if (!f->kernel) return;
    const ts_value *next = taken_along(v, value);
    if (next)
        value[next->id].kernel = true;
    else
        f->memory = true;
}

static void forward(const ts_region *r, ts_fuse_value *value)
{
    for (int i = 0; i < r->n_arg; i++) {
        ts_fuse_value *f = &value[r->arg[i]->id];
        f->memory = !ts__fuse_outer(r->arg[i]);
        f->source = (int)r->arg[i]->id;
        f->root = FUSE_NONE;
    }
    for (const ts_node *n = r->first; n; n = n->next) {
        for (int i = 0; i < n->n_out; i++) note_result(n, n->out[i], value);
        if (n->body) forward(n->body, value);
    }
}

/* ---- backward: who needs memory -------------------------------------------------------------- */

static void join_root(ts_fuse_value *f, int root)
{
    if (f->root == FUSE_NONE)
        f->root = root;
    else if (f->root != root)
        f->root = FUSE_MANY;
}

/* Is v computed without arithmetic of what has memory? */
static bool only_moves(const ts_value *v, const ts_fuse_value *value)
{
    while (!value[v->id].memory && v->node) {
        ts_fuse_class c = ts__fuse_class(v->node);
        if (c == TS_FUSE_SOURCE) return true;
        if (c != TS_FUSE_RENAME && c != TS_FUSE_MOVE) return false;
        v = v->node->in[c == TS_FUSE_RENAME ? v->index : 0];
    }
    return true;
}

/* Something reads v that does not compute. Layouts are the compiler's: a new shape needs no memory. */
static void need(const ts_value *v, bool moves_too, ts_fuse_value *value)
{
    while (!value[v->id].memory && v->node && ts__fuse_class(v->node) == TS_FUSE_RENAME)
        v = v->node->in[v->index];
    if (!v->node || ts__fuse_class(v->node) == TS_FUSE_SOURCE) return;
    if (moves_too || !only_moves(v, value)) value[v->id].memory = true;
}

/* Which of n's operands must lie in memory: all of a collective or loop; those of a product that
 * are not merely moved. */
static void need_operands(const ts_node *n, ts_fuse_value *value)
{
    bool whole = ts__fuse_class(n) == TS_FUSE_WHOLE;
    for (int i = 0; i < n->n_in; i++)
        if (whole || n->op == TS_OP_dot || n->op == TS_OP_take || n->op == TS_OP_scatter_add ||
            n->op == TS_OP_top_k)
            need(n->in[i], whole, value);
}

static void backward_node(const ts_node *n, ts_fuse_value *value)
{
    ts_fuse_class c = ts__fuse_class(n);
    for (int i = 0; i < n->n_out; i++) {
        ts_fuse_value *f = &value[n->out[i]->id];
        if (c == TS_FUSE_ELEMENT && f->root == FUSE_MANY && f->source == FUSE_MANY)
            f->memory = true;
    }
    need_operands(n, value);
    for (int i = 0; i < n->n_in; i++) {
        const ts_value *out = n->out[c == TS_FUSE_RENAME ? i : 0];
        join_root(&value[n->in[i]->id], value[out->id].memory || c >= TS_FUSE_KERNEL
                                            ? (int)out->id
                                            : value[out->id].root);
    }
}

static void backward_yields(const ts_graph *g, const ts_region *r, ts_fuse_value *value)
{
    for (int i = 0; i < r->n_result; i++) {
        const ts_value *v = r->result[i];
        const ts_node *owner = r->owner;
        bool update = !owner && g->output[i].replaces >= 0;
        bool carry = owner && i < owner->attr.repeat.n_carry;
        if (carry || (!owner && !update)) need(v, true, value);
        join_root(&value[v->id], update ? FUSE_UPDATE : (int)v->id);
        /* A product that a loop stacks or adds up is written where it belongs. */
        if (owner && !carry && value[v->id].kernel && value[v->id].uses == 1)
            value[v->id].memory = false;
    }
}

static void backward(const ts_graph *g, const ts_region *r, ts_fuse_value *value)
{
    backward_yields(g, r, value);
    for (const ts_node *n = r->last; n; n = n->prev) {
        if (n->body) backward(g, n->body, value);
        backward_node(n, value);
    }
}

void ts__fuse(const ts_graph *g, ts_fuse_value *value)
{
    int order = 0;
    count_uses(g->top, &order, value);
    forward(g->top, value);
    backward(g, g->top, value);
}
