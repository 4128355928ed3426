/* ir/graph.c – graphs, regions, values and nodes: making, linking, removing. No shape knowledge.
 *
 * Everything is allocated from the graph's arena and never freed singly; arrays grow by doubling and
 * leave the old copy behind. A node appended to a region stands after all its operands because the
 * builder appends in order; passes that insert say before which node.
 */
#include "ir/graph.h"

const ts_op_info ts_op_infos[TS_OPS] = {
#define OP(name, lo, hi, results, kind, attr, doc)                                                 \
    [TS_OP_##name] = {#name, lo, hi, results, TS_##kind, TS_ATTR_##attr, doc},
#include "ir/ops.def"
#undef OP
};

ts_graph *ts__graph_new(const char *name)
{
    ts_arena *arena = ts_arena_new();
    if (!arena) return NULL;
    ts_graph *g = ts_arena_alloc(arena, sizeof *g);
    if (g) {
        g->arena = arena;
        g->name = ts_arena_strdup(arena, name);
        g->top = ts__region_new(g, NULL);
    }
    if (!g || !g->name || !g->top) {
        ts_arena_free(arena);
        return NULL;
    }
    return g;
}

void ts_graph_free(ts_graph *g)
{
    if (g) ts_arena_free(g->arena);
}

ts_region *ts__region_new(ts_graph *g, ts_region *parent)
{
    ts_region *r = ts_arena_alloc(g->arena, sizeof *r);
    if (!r) return NULL;
    r->graph = g;
    r->parent = parent;
    return r;
}

bool ts__arena_grow(ts_arena *a, void *array, int *capacity, int n, size_t element)
{
    if (n < *capacity) return true;
    int want = *capacity ? 2 * *capacity : 8;
    while (want <= n) want *= 2;
    void *grown = ts_arena_alloc(a, (size_t)want * element);
    if (!grown) return false;
    void **slot = array;
    if (*capacity) memcpy(grown, *slot, (size_t)*capacity * element);
    *slot = grown;
    *capacity = want;
    return true;
}

static ts_value *value_new(ts_region *r, const ts_type *type, int index)
{
    ts_value *v = ts_arena_alloc(r->graph->arena, sizeof *v);
    if (!v) return NULL;
    v->type = *type;
    v->region = r;
    v->index = index;
    v->id = r->graph->next_id++;
    return v;
}

ts_value *ts__region_add_arg(ts_region *r, const ts_type *type, const char *name)
{
    ts_arena *a = r->graph->arena;
    if (!ts__arena_grow(a, &r->arg, &r->cap_arg, r->n_arg, sizeof *r->arg)) return NULL;
    ts_value *v = value_new(r, type, r->n_arg);
    if (!v) return NULL;
    if (name && !(v->name = ts_arena_strdup(a, name))) return NULL;
    return r->arg[r->n_arg++] = v;
}

bool ts__region_add_result(ts_region *r, ts_value *v)
{
    TS_ASSERT(v->region == r);
    if (!ts__arena_grow(r->graph->arena, &r->result, &r->cap_result, r->n_result,
                        sizeof *r->result))
        return false;
    r->result[r->n_result++] = v;
    return true;
}

static void link_node(ts_region *r, ts_node *before, ts_node *n)
{
    n->region = r;
    n->next = before;
    n->prev = before ? before->prev : r->last;
    if (n->prev)
        n->prev->next = n;
    else
        r->first = n;
    if (before)
        before->prev = n;
    else
        r->last = n;
}

static int result_count(ts_op op, int n_in, const ts_region *body)
{
    if (op == TS_OP_repeat) return body ? body->n_result : 0;
    return ts_op_infos[op].n_out < 0 ? n_in : ts_op_infos[op].n_out;
}

ts_node *ts__node_new(ts_region *r, ts_node *before, ts_op op, ts_value *const *in, int n_in,
                      const ts_attr *attr, ts_region *body, ts_error *err)
{
    static const ts_attr none;
    ts_graph *g = r->graph;
    if (!attr) attr = &none;
    for (int i = 0; i < n_in; i++) TS_ASSERT(in[i] && in[i]->region == r);
    int n_out = result_count(op, n_in, body), got = 0;
    ts_node *n = ts_arena_alloc(g->arena, sizeof *n);
    ts_type *types = ts_arena_alloc(g->arena, (size_t)(n_out + 1) * sizeof *types);
    if (!n || !types || !(n->in = ts_arena_alloc(g->arena, (size_t)(n_in + 1) * sizeof *n->in)) ||
        !(n->out = ts_arena_alloc(g->arena, (size_t)(n_out + 1) * sizeof *n->out))) {
        TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out while building graph %s", g->name);
        return NULL;
    }
    if (ts__infer(op, in, n_in, attr, body, types, n_out, &got, err) != TS_OK) return NULL;
    TS_ASSERT(got == n_out);
    n->op = op;
    n->attr = *attr;
    n->body = body;
    n->n_in = n_in;
    n->n_out = n_out;
    for (int i = 0; i < n_in; i++) n->in[i] = in[i];
    for (int i = 0; i < n_out; i++) {
        if (!(n->out[i] = value_new(r, &types[i], i))) {
            TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out while building graph %s", g->name);
            return NULL;
        }
        n->out[i]->node = n;
    }
    if (body) body->owner = n;
    link_node(r, before, n);
    return n;
}

ts_value *ts__repeat_add_result(ts_node *n, int index, const ts_type *type)
{
    TS_ASSERT(n->op == TS_OP_repeat && index >= 0 && index <= n->n_out);
    ts_value **out = ts_arena_alloc(n->region->graph->arena, (size_t)(n->n_out + 2) * sizeof *out);
    ts_value *v = value_new(n->region, type, index);
    if (!out || !v) return NULL;
    for (int i = 0; i < index; i++) out[i] = n->out[i];
    for (int i = index; i < n->n_out; i++) {
        out[i + 1] = n->out[i];
        out[i + 1]->index = i + 1;
    }
    v->node = n;
    out[index] = v;
    n->out = out;
    n->n_out++;
    n->like = NULL;
    return v;
}

void ts__node_remove(ts_node *n)
{
    ts_region *r = n->region;
    if (n->prev)
        n->prev->next = n->next;
    else
        r->first = n->next;
    if (n->next)
        n->next->prev = n->prev;
    else
        r->last = n->prev;
    n->prev = n->next = NULL;
}

void ts__replace_uses(ts_region *r, ts_value *from, ts_value *to)
{
    TS_ASSERT(from->region == r && to->region == r);
    for (ts_node *n = r->first; n; n = n->next)
        for (int i = 0; i < n->n_in; i++)
            if (n->in[i] == from) n->in[i] = to;
    for (int i = 0; i < r->n_result; i++)
        if (r->result[i] == from) r->result[i] = to;
}

int ts_graph_input_index(const ts_graph *g, const char *name)
{
    for (int i = 0; i < g->top->n_arg; i++)
        if (strcmp(g->top->arg[i]->name, name) == 0) return i;
    return -1;
}

int ts_graph_output_index(const ts_graph *g, const char *name)
{
    for (int i = 0; i < g->top->n_result; i++)
        if (strcmp(g->output[i].name, name) == 0) return i;
    return -1;
}

/* ---- copies ---------------------------------------------------------------------------------- */

static ts_node *clone_node(ts_region *to, const ts_node *n, ts_error *err)
{
    ts_value *local[16], **in = local;
    if (n->n_in > 16 && !(in = ts_arena_alloc(to->graph->arena, (size_t)n->n_in * sizeof *in)))
        return NULL;
    for (int i = 0; i < n->n_in; i++) in[i] = n->in[i]->user;
    ts_region *body = NULL;
    if (n->body && !(body = ts__region_clone(n->body, to, err))) return NULL;
    ts_node *c = ts__node_new(to, NULL, n->op, in, n->n_in, &n->attr, body, err);
    if (!c) return NULL;
    c->loc = n->loc;
    c->scope = n->scope;
    c->primal = n->primal;
    c->backward = n->backward;
    c->like = n->like;
    for (int i = 0; i < n->n_out; i++) {
        c->out[i]->pin = n->out[i]->pin;
        n->out[i]->user = c->out[i];
    }
    return c;
}

ts_region *ts__region_clone(const ts_region *from, ts_region *parent, ts_error *err)
{
    ts_region *to = ts__region_new(from->graph, parent);
    bool ok = to != NULL;
    for (int i = 0; ok && i < from->n_arg; i++) {
        ts_value *arg = ts__region_add_arg(to, &from->arg[i]->type, NULL);
        if (!(ok = arg != NULL)) break;
        arg->pin = from->arg[i]->pin;
        from->arg[i]->user = arg;
    }
    for (const ts_node *n = from->first; ok && n; n = n->next) ok = clone_node(to, n, err) != NULL;
    for (int i = 0; ok && i < from->n_result; i++)
        ok = ts__region_add_result(to, from->result[i]->user);
    if (ok) return to;
    TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out while building graph %s",
             from->graph->name);
    return NULL;
}
