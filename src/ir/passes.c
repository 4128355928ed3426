/* ir/passes.c – dead code elimination and common-subexpression elimination.
 *
 * Dead code: what no output needs goes, inside repeats too – stacked and accumulated results,
 * carries that only feed themselves, sliced and constant operands, unused halves of a barrier.
 * Inputs of the graph stay: they are its interface. Common subexpressions: within one region and
 * between two barriers, nodes with the same operation, attributes and operands become the first of
 * them; it takes over their pins, and two different pins never merge. Forward and backward never
 * merge, or what remat computes again would be kept instead; repeats, barriers and collectives never
 * merge (who gathers twice means to keep nothing in between). Both passes are deterministic and leave
 * a graph that verifies.
 * Not here: algebra, constant folding.
 */
#include "ir/attrs.h"

static ts_status memory_out(const ts_graph *g, ts_error *err)
{
    return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out in a pass over graph %s", g->name);
}

/* ---- dead code: marking ---------------------------------------------------------------------- */

/* live, by value id. Marking only ever adds, so it is repeated until nothing changes where carries
 * make a cycle. */
static void mark_region(const ts_region *r, uint8_t *live);

static bool mark_one(const ts_value *v, uint8_t *live)
{
    bool fresh = !live[v->id];
    live[v->id] = 1;
    return fresh;
}

static void mark_repeat(const ts_node *n, uint8_t *live)
{
    const ts_region *body = n->body;
    int64_t n_carry = n->attr.repeat.n_carry;
    bool changed = true;
    while (changed) {
        changed = false;
        for (int i = 0; i < body->n_result; i++)
            if (live[n->out[i]->id] || (i < n_carry && live[body->arg[i]->id]))
                mark_one(body->result[i], live);
        mark_region(body, live);
        /* A carry whose argument is read must be computed, whoever reads its final value. */
        for (int64_t i = 0; i < n_carry; i++)
            if (live[body->arg[i]->id] && mark_one(body->result[i], live)) changed = true;
    }
    for (int i = 0; i < n->n_in; i++)
        if (live[body->arg[i]->id] || (i < n_carry && live[n->out[i]->id]))
            mark_one(n->in[i], live);
}

static bool any_live(const ts_node *n, const uint8_t *live)
{
    for (int i = 0; i < n->n_out; i++)
        if (live[n->out[i]->id]) return true;
    return false;
}

static void mark_region(const ts_region *r, uint8_t *live)
{
    for (const ts_node *n = r->last; n; n = n->prev) {
        if (!any_live(n, live)) continue;
        if (n->op == TS_OP_repeat) mark_repeat(n, live);
        else
            for (int i = 0; i < n->n_in; i++)
                if (n->op != TS_OP_barrier || live[n->out[i]->id]) mark_one(n->in[i], live);
    }
}

/* ---- dead code: sweeping --------------------------------------------------------------------- */

/* Keeps v[i] where keep[i]; renumbers their index where they are arguments or results. */
static int keep_values(ts_value **v, int n, const bool *keep, bool renumber)
{
    int kept = 0;
    for (int i = 0; i < n; i++) {
        if (!keep[i]) continue;
        v[kept] = v[i];
        if (renumber) v[kept]->index = kept;
        kept++;
    }
    return kept;
}

static int64_t count(const bool *keep, int64_t from, int64_t to)
{
    int64_t n = 0;
    for (int64_t i = from; i < to; i++) n += keep[i];
    return n;
}

static void sweep_repeat(ts_node *n, const uint8_t *live, bool *keep_in, bool *keep_out)
{
    ts_region *body = n->body;
    ts_attr *a = &n->attr;
    int64_t n_carry = a->repeat.n_carry, xs_end = n_carry + a->repeat.n_xs,
            stack_end = n_carry + a->repeat.n_stack;
    for (int i = 0; i < n->n_in; i++)
        keep_in[i] = live[body->arg[i]->id] || (i < n_carry && live[n->out[i]->id]);
    for (int i = 0; i < n->n_out; i++) keep_out[i] = i < n_carry ? keep_in[i] : live[n->out[i]->id];
    a->repeat.n_carry = count(keep_in, 0, n_carry);
    a->repeat.n_xs = count(keep_in, n_carry, xs_end);
    a->repeat.n_consts = count(keep_in, xs_end, n->n_in);
    a->repeat.n_stack = count(keep_out, n_carry, stack_end);
    body->n_arg = keep_values(body->arg, body->n_arg, keep_in, true);
    body->n_result = keep_values(body->result, body->n_result, keep_out, false);
    n->n_out = keep_values(n->out, n->n_out, keep_out, true);
    n->n_in = keep_values(n->in, n->n_in, keep_in, false);
}

static ts_status sweep_region(ts_region *r, const uint8_t *live, ts_error *err)
{
    for (ts_node *n = r->first, *next; n; n = next) {
        next = n->next;
        if (!any_live(n, live)) {
            ts__node_remove(n);
            continue;
        }
        if (n->op != TS_OP_repeat && n->op != TS_OP_barrier) continue;
        bool *keep = ts_alloc_zero((size_t)(n->n_in + n->n_out) + 1);
        if (!keep) return memory_out(r->graph, err);
        ts_status status = TS_OK;
        if (n->op == TS_OP_repeat) {
            status = sweep_region(n->body, live, err);
            sweep_repeat(n, live, keep, keep + n->n_in);
        } else {
            for (int i = 0; i < n->n_in; i++) keep[i] = live[n->out[i]->id];
            n->n_in = keep_values(n->in, n->n_in, keep, false);
            n->n_out = keep_values(n->out, n->n_out, keep, true);
        }
        ts_free(keep);
        TS_TRY(status);
    }
    return TS_OK;
}

ts_status ts_graph_dce(ts_graph *g, ts_error *err)
{
    uint8_t *live = ts_alloc_zero((size_t)g->next_id + 1);
    if (!live) return memory_out(g, err);
    for (int i = 0; i < g->top->n_result; i++) mark_one(g->top->result[i], live);
    mark_region(g->top, live);
    ts_status status = sweep_region(g->top, live, err);
    ts_free(live);
    return status;
}

/* ---- common subexpressions ------------------------------------------------------------------- */

typedef struct merger {
    ts_value **same; /* by value id: what stands for it, or NULL for itself */
    ts_node **slot;  /* open addressing, [capacity], a power of two */
    uint64_t *hash;
    size_t capacity, used;
} merger;

static uint64_t hash_node(const ts_node *n)
{
    uint64_t h = (uint64_t)n->op * 2 + n->backward;
    for (int i = 0; i < n->n_in; i++) h = (h ^ n->in[i]->id) * 0x9e3779b97f4a7c15u + (h >> 29);
    h = ts__attr_hash(ts_op_infos[n->op].attr, &n->attr, h);
    return h ^ h >> 32;
}

/* One of them may be unpinned. */
static bool pins_agree(const ts_value *a, const ts_value *b)
{
    for (int i = 0; a->pin && b->pin && i < a->type.rank; i++) {
        const char *x = a->pin->name[i], *y = b->pin->name[i];
        if (!x != !y || (x && strcmp(x, y) != 0)) return false;
    }
    return true;
}

static bool same_node(const ts_node *a, const ts_node *b)
{
    if (a->op != b->op || a->backward != b->backward || a->n_in != b->n_in) return false;
    for (int i = 0; i < a->n_in; i++)
        if (a->in[i] != b->in[i]) return false;
    for (int i = 0; i < a->n_out; i++)
        if (!pins_agree(a->out[i], b->out[i])) return false;
    return ts__attr_same(ts_op_infos[a->op].attr, &a->attr, &b->attr);
}

static void clear(merger *m)
{
    if (m->used) memset(m->slot, 0, m->capacity * sizeof *m->slot);
    m->used = 0;
}

/* An equal node seen since the last barrier, or NULL after remembering this one. */
static ts_node *find_or_add(merger *m, ts_node *n)
{
    uint64_t h = hash_node(n);
    size_t i = h & (m->capacity - 1);
    while (m->slot[i]) {
        if (m->hash[i] == h && same_node(m->slot[i], n)) return m->slot[i];
        i = (i + 1) & (m->capacity - 1);
    }
    m->slot[i] = n;
    m->hash[i] = h;
    m->used++;
    return NULL;
}

static void rewrite(const merger *m, ts_value **v, int n)
{
    for (int i = 0; i < n; i++)
        if (m->same[v[i]->id]) v[i] = m->same[v[i]->id];
}

static ts_status merge_region(ts_region *r, ts_value **same, ts_error *err)
{
    merger m = {.same = same, .capacity = 16};
    size_t nodes = 0;
    for (const ts_node *n = r->first; n; n = n->next) nodes++;
    while (m.capacity < 2 * nodes) m.capacity *= 2;
    m.slot = ts_alloc_zero(m.capacity * sizeof *m.slot);
    m.hash = ts_alloc_zero(m.capacity * sizeof *m.hash);
    ts_status status = m.slot && m.hash ? TS_OK : memory_out(r->graph, err);
    for (ts_node *n = r->first, *next; n && status == TS_OK; n = next) {
        next = n->next;
        rewrite(&m, n->in, n->n_in);
        if (n->op == TS_OP_barrier) {
            clear(&m);
        } else if (n->body) {
            status = merge_region(n->body, same, err);
        } else if (ts_op_infos[n->op].kind != TS_COLLECTIVE || n->op == TS_OP_axis_index) {
            ts_node *first = find_or_add(&m, n);
            if (!first) continue;
            for (int i = 0; i < n->n_out; i++) {
                same[n->out[i]->id] = first->out[i];
                if (!first->out[i]->pin) first->out[i]->pin = n->out[i]->pin;
            }
            ts__node_remove(n);
        }
    }
    if (status == TS_OK) rewrite(&m, r->result, r->n_result);
    ts_free(m.slot);
    ts_free(m.hash);
    return status;
}

/* A node made from one that was merged away now comes from the one that stands for it. */
static void move_primals(ts_region *r, ts_value *const *same)
{
    for (ts_node *n = r->first; n; n = n->next) {
        const ts_value *made = n->primal && n->primal->n_out ? n->primal->out[0] : NULL;
        if (made && same[made->id]) n->primal = same[made->id]->node;
        if (n->body) move_primals(n->body, same);
    }
}

ts_status ts_graph_cse(ts_graph *g, ts_error *err)
{
    ts_value **same = ts_alloc_zero((size_t)g->next_id * sizeof *same + 1);
    if (!same) return memory_out(g, err);
    ts_status status = merge_region(g->top, same, err);
    if (status == TS_OK) move_primals(g->top, same);
    ts_free(same);
    return status;
}
