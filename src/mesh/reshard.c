/* mesh/reshard.c – a value from one layout to another: one collective over one axis at a time.
 *
 * The next step is the first that applies of slice, reduce_scatter, all_reduce, all_to_all, all_gather, and masking,
 * which makes a whole value a partial sum (zero but on index 0). An axis joins or leaves a dimension at its minor
 * end, so every step is one collective on contiguous pieces. Uses of one value in one layout share it within a scope.
 */
#include "mesh/partition_internal.h"

typedef enum step_kind { SLICE, SCATTER, REDUCE, EXCHANGE, GATHER, MASK } step_kind;
typedef struct step {
    step_kind kind;
    int axis, dim, from;
} step;

/* ---- which step ------------------------------------------------------------------------------ */

static int common(const ts_spec *a, const ts_spec *b, int dim)
{
    int k = 0;
    while (k < a->n[dim] && k < b->n[dim] && a->axis[dim][k] == b->axis[dim][k]) k++;
    return k;
}

static int dim_of(const ts_spec *s, int axis)
{
    for (int d = 0; d < s->rank; d++)
        for (int k = 0; k < s->n[d]; k++)
            if (s->axis[d][k] == axis) return d;
    return -1;
}

static step join(ts_spec *cur, step_kind kind, int axis, int dim, int from)
{
    cur->axis[dim][cur->n[dim]++] = (uint8_t)axis;
    return (step){kind, axis, dim, from};
}

/* The next axis that dimension dim of to is waiting for, or −1. */
static int awaited(const ts_spec *cur, const ts_spec *to, int dim)
{
    int c = common(cur, to, dim);
    return cur->n[dim] == c && c < to->n[dim] ? to->axis[dim][c] : -1;
}

static bool take_sum(ts_spec *cur, const ts_spec *to, step *s)
{
    uint16_t sums = cur->partial & (uint16_t)~to->partial & (uint16_t)~ts_spec_axes(to);
    if (!sums) return false;
    int a = __builtin_ctz(sums);
    cur->partial &= (uint16_t)~(1u << a);
    *s = (step){REDUCE, a, 0, 0};
    return true;
}

static bool take_exchange(ts_spec *cur, const ts_spec *to, step *s)
{
    for (int j = 0; j < cur->rank; j++) {
        int a = awaited(cur, to, j), i = a < 0 ? -1 : dim_of(cur, a);
        if (i < 0 || cur->axis[i][cur->n[i] - 1] != a || cur->n[i] <= common(cur, to, i)) continue;
        cur->n[i]--;
        *s = join(cur, EXCHANGE, a, j, i);
        return true;
    }
    return false;
}

/* Changes *cur by one step towards to, which differs. */
static step next_step(ts_spec *cur, const ts_spec *to)
{
    step s;
    for (int pass = 0; pass < 2; pass++)
        for (int j = 0; j < cur->rank; j++) {
            int a = awaited(cur, to, j);
            if (a < 0) continue;
            bool partial = cur->partial >> a & 1;
            if (pass == 0 && !partial && dim_of(cur, a) < 0) return join(cur, SLICE, a, j, 0);
            if (pass == 1 && partial) {
                cur->partial &= (uint16_t)~(1u << a);
                return join(cur, SCATTER, a, j, 0);
            }
        }
    if (take_sum(cur, to, &s) || take_exchange(cur, to, &s)) return s;
    for (int i = 0; i < cur->rank; i++)
        if (cur->n[i] > common(cur, to, i)) return (step){GATHER, cur->axis[i][--cur->n[i]], i, 0};
    uint16_t missing = to->partial & (uint16_t)~cur->partial;
    TS_ASSERT(missing);
    int a = __builtin_ctz(missing);
    cur->partial |= (uint16_t)(1u << a);
    return (step){MASK, a, 0, 0};
}

double ts__reshard_bytes(const ts_mesh *m, const ts_type *global, ts_spec cur, const ts_spec *to)
{
    double sent = 0;
    while (!ts_spec_same(&cur, to)) {
        ts_type before = ts_spec_local(m, &cur, global);
        step s = next_step(&cur, to);
        ts_type after = ts_spec_local(m, &cur, global);
        double n = (double)m->axis[s.axis].size, part = (n - 1) / n;
        double in = (double)ts_type_bytes(&before), out = (double)ts_type_bytes(&after);
        switch (s.kind) {
        case SLICE:
        case MASK: break;
        case REDUCE: sent += 2 * part * in; break;
        case SCATTER:
        case EXCHANGE: sent += part * in; break;
        case GATHER: sent += part * out; break;
        }
    }
    return sent;
}

/* ---- making it ------------------------------------------------------------------------------- */

ts_value *ts__collective(ts_builder *b, const ts_mesh *m, ts_op op, ts_value *x, int axis, int dim,
                         int dim2, int reduce)
{
    ts_attr attr = {.collective = {.axis = ts_arena_strdup(b->graph->arena, m->axis[axis].name),
                                   .n = m->axis[axis].size,
                                   .dim = dim,
                                   .dim2 = dim2,
                                   .reduce = reduce}};
    if (!attr.collective.axis)
        return ts__mistake(b, TS_RESOURCE_EXHAUSTED, "memory is out while partitioning");
    return ts__op(b, op, &x, x ? 1 : 0, &attr);
}

static bool same_scope(const ts_reshard_scope *a, const ts_reshard_scope *b)
{
    return a->region == b->region && a->backward == b->backward && a->part == b->part;
}

ts_value *ts__mesh_index(ts_partitioner *p, const uint8_t *axis, int n, int64_t scale)
{
    ts_builder *b = &p->b;
    for (ts_index_memo *k = p->index; k; k = k->next)
        if (same_scope(&k->scope, &p->scope) && k->n == n && k->scale == scale &&
            memcmp(k->axis, axis, (size_t)n) == 0)
            return k->local;
    ts_index_memo *k = ts__partition_alloc(p, sizeof *k);
    if (!k) return b->poison;
    *k = (ts_index_memo){.scope = p->scope, .n = (uint8_t)n, .scale = scale, .next = p->index};
    memcpy(k->axis, axis, (size_t)n);
    ts_value *sum = NULL;
    for (int i = n - 1; i >= 0; i--) {
        ts_value *at = ts__collective(b, p->mesh, TS_OP_axis_index, NULL, axis[i], 0, 0, 0);
        if (scale != 1) at = ts_mul(b, at, ts_scalar(b, (double)scale, TS_I32));
        sum = sum ? ts_add(b, sum, at) : at;
        scale *= p->mesh->axis[axis[i]].size;
    }
    k->local = sum;
    p->index = k;
    return sum;
}

static ts_value *make_slice(ts_partitioner *p, ts_value *x, int axis, int dim)
{
    int64_t size = x->type.dim[dim].size / p->mesh->axis[axis].size;
    uint8_t one = (uint8_t)axis;
    return ts_dynamic_slice(&p->b, x, ts__mesh_index(p, &one, 1, size), dim, size);
}

static ts_value *make_mask(ts_partitioner *p, ts_value *x, int axis)
{
    uint8_t one = (uint8_t)axis;
    ts_builder *b = &p->b;
    ts_value *first = ts_compare(b, TS_EQ, ts__mesh_index(p, &one, 1, 1), ts_scalar(b, 0, TS_I32));
    return ts_select(b, first, x, ts__zeros(b, &x->type));
}

static ts_value *make_step(ts_partitioner *p, ts_value *x, const step *s)
{
    ts_builder *b = &p->b;
    const ts_mesh *m = p->mesh;
    switch (s->kind) {
    case SLICE: return make_slice(p, x, s->axis, s->dim);
    case SCATTER: return ts__collective(b, m, TS_OP_reduce_scatter, x, s->axis, s->dim, 0, 0);
    case REDUCE: return ts__collective(b, m, TS_OP_all_reduce, x, s->axis, 0, 0, 0);
    case EXCHANGE: return ts__collective(b, m, TS_OP_all_to_all, x, s->axis, s->dim, s->from, 0);
    case GATHER: return ts__collective(b, m, TS_OP_all_gather, x, s->axis, s->dim, 0, 0);
    case MASK: return make_mask(p, x, s->axis);
    }
    return x;
}

ts_value *ts__reshard_local(ts_partitioner *p, ts_value *x, ts_spec cur, const ts_spec *to)
{
    while (p->b.error.code == TS_OK && !ts_spec_same(&cur, to)) {
        step s = next_step(&cur, to);
        x = make_step(p, x, &s);
    }
    return x;
}

/* A small gradient, whole but for sums: those over the same axes can be summed in one go. */
static bool packs(const ts_partitioner *p, const ts_value *v)
{
    const ts_placement *at = &p->place[v->id];
    return v->node && p->small[v->id] && at->known && at->local && at->spec.partial && ts_spec_axes(&at->spec) == 0;
}

ts_value *ts__reshard(ts_partitioner *p, const ts_value *v, const ts_spec *to)
{
    ts_placement *at = ts__placement(p, v);
    if (p->b.error.code != TS_OK) return p->b.poison;
    if (!to->partial && packs(p, v)) {
        ts__reduce_packed(p, v);
        if (p->b.error.code != TS_OK) return p->b.poison;
    }
    if (!at->free && ts_spec_same(&at->spec, to)) return at->local;
    for (ts_reshard_memo *k = p->memo[v->id]; k; k = k->next)
        if (same_scope(&k->scope, &p->scope) && ts_spec_same(&k->to, to)) return k->local;
    ts_reshard_memo *k = ts__partition_alloc(p, sizeof *k);
    if (!k) return p->b.poison;
    ts_value *x;
    if (at->free) {
        ts_spec whole = *to;
        whole.partial = 0;
        x = ts__reshard_local(p, ts__emit_free(p, at->made, &whole), whole, to);
    } else {
        TS_ASSERT(at->local);
        x = ts__reshard_local(p, at->local, at->spec, to);
    }
    *k = (ts_reshard_memo){*to, p->scope, x, p->memo[v->id]};
    p->memo[v->id] = k;
    return x;
}

/* ---- packed sums ----------------------------------------------------------------------------- */

/* One all_reduce an axis of the values behind each other. */
static void reduce_list(ts_partitioner *p, const ts_value *const *list, int n)
{
    ts_builder *b = &p->b;
    ts_value **flat = ts__partition_alloc(p, (size_t)n * sizeof(ts_value *));
    if (!flat) return;
    for (int i = 0; i < n; i++) {
        ts_value *x = p->place[list[i]->id].local;
        flat[i] = ts_reshape(b, x, TS_DIMS({NULL, ts_type_elements(&x->type)}));
    }
    ts_value *all = n == 1 ? flat[0] : ts_concat(b, flat, n, 0);
    for (int a = 0; a < p->mesh->n; a++)
        if (p->place[list[0]->id].spec.partial >> a & 1)
            all = ts__collective(b, p->mesh, TS_OP_all_reduce, all, a, 0, 0, 0);
    int64_t at = 0;
    for (int i = 0; i < n && b->error.code == TS_OK; i++) {
        ts_placement *q = &p->place[list[i]->id];
        int64_t size = ts_type_elements(&q->local->type);
        ts_value *piece = n == 1 ? all : ts_slice(b, all, 0, at, at + size);
        at += size;
        q->local = ts_reshape(b, piece, q->local->type.dim, q->local->type.rank);
        q->spec.partial = 0;
        q->use = q->spec;
    }
}

void ts__reduce_packed(ts_partitioner *p, const ts_value *v)
{
    const ts_placement *like = &p->place[v->id];
    const uint16_t sums = like->spec.partial;
    const ts_dtype dtype = like->local->type.dtype;
    const ts_value **list = NULL;
    int n = 0;
    /* Counted, then listed: in the order in which they were made, so that the program is the same every time. */
    for (int pass = 0; pass < 2; pass++) {
        int k = 0;
        for (const ts_node *node = v->region->first; node; node = node->next)
            for (int i = 0; i < node->n_out; i++) {
                const ts_placement *at = &p->place[node->out[i]->id];
                if (!packs(p, node->out[i]) || at->spec.partial != sums || at->local->type.dtype != dtype) continue;
                if (list) list[k] = node->out[i];
                k++;
            }
        n = k;
        if (!list && !(list = ts__partition_alloc(p, (size_t)n * sizeof *list))) return;
    }
    reduce_list(p, list, n);
}
