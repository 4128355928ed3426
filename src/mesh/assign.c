/* mesh/assign.c – who gets an axis: every mesh axis goes to at most one factor of an op, without search.
 *
 * In this order: factor pins (the vocabulary of take and of the cross-entropy); the primal's assignment, which is all
 * that an op of a gradient or of a recomputation gets; factors in no result (contractions), from activations; pins of
 * results; the other activations; parameters. Where activations contend, and for a table that take could read where it
 * is stored, the bytes on the wire decide. Whatever is assigned is right, since operands are brought to the layout
 * that the assignment says: the order is about bytes on wires.
 */
#include <math.h>

#include "mesh/partition_internal.h"

typedef struct turn {
    const ts_partitioner *p;
    const ts_factors *f;
    ts_assignment *a;
    uint16_t used;
    bool closed[TS_MAX_FACTORS];
} turn;

/* Gives factor k these axes behind those it has, up to the first that it cannot have. */
static void put(turn *t, int k, const uint8_t *axis, int n)
{
    if (k < 0) return;
    uint8_t *have = t->a->axis[k];
    int64_t product = 1;
    for (int i = 0; i < t->a->n[k]; i++) product *= t->p->mesh->axis[have[i]].size;
    for (int i = 0; i < n; i++) {
        if (i < t->a->n[k]) {
            if (have[i] == axis[i]) continue;
            return;
        }
        int64_t size = t->p->mesh->axis[axis[i]].size;
        if (t->closed[k] || t->f->kind[k] == TS_FACTOR_WHOLE || (t->used >> axis[i] & 1) ||
            t->f->size[k] % (product * size))
            return;
        have[t->a->n[k]++] = axis[i];
        t->used |= (uint16_t)(1u << axis[i]);
        product *= size;
    }
}

static const int8_t (*row_of(const ts_factors *f, const ts_node *n, int k))[TS_ROW_MERGED]
{
    return k < n->n_in ? ts__factors_in(f, k) : ts__factors_out(f, k - n->n_in);
}

static const ts_value *value_of(const ts_node *n, int k)
{
    return k < n->n_in ? n->in[k] : n->out[k - n->n_in];
}

/* What an operand offers: of a parameter its use, but to the optimizer, which works on what is stored. */
static const ts_spec *seen(const turn *t, const ts_node *n, int k)
{
    const ts_placement *at = &t->p->place[n->in[k]->id];
    return n->op == TS_OP_adamw ? &at->spec : &at->use;
}

static bool in_a_result(const ts_factors *f, const ts_node *n, int k)
{
    for (int i = 0; i < n->n_out; i++)
        for (int d = 0; d < n->out[i]->type.rank; d++)
            for (int j = 0; j < TS_ROW_MERGED; j++)
                if (ts__factors_out(f, i)[d][j] == k) return true;
    return false;
}

typedef enum which { CONTRACTED, ACTIVATIONS, PARAMETERS } which;

static void follow_operand(turn *t, const ts_node *n, int k, which w)
{
    const ts_spec *s = seen(t, n, k);
    const int8_t (*row)[TS_ROW_MERGED] = ts__factors_in(t->f, k);
    for (int d = 0; d < n->in[k]->type.rank; d++) {
        int factor = row[d][0];
        if (factor < 0 || (w == CONTRACTED && in_a_result(t->f, n, factor))) continue;
        put(t, factor, s->axis[d], s->n[d]);
    }
}

/* first: the operand that comes before the others. */
static void follow(turn *t, const ts_node *n, which w, int first)
{
    for (int i = 0; i < n->n_in; i++) {
        int k = i == 0 ? first : i <= first ? i - 1 : i;
        const ts_placement *at = &t->p->place[n->in[k]->id];
        bool parameter = at->param && n->op != TS_OP_adamw;
        if (!at->free && parameter == (w == PARAMETERS)) follow_operand(t, n, k, w);
    }
}

static void follow_pins(turn *t, const ts_node *n)
{
    for (int i = 0; i < n->n_out; i++) {
        if (!n->out[i]->pin) continue;
        ts_spec s = ts_rules_spec(t->p->mesh, t->p->rules, n->out[i]->pin->name, &n->out[i]->type, NULL);
        const int8_t (*row)[TS_ROW_MERGED] = ts__factors_out(t->f, i);
        for (int d = 0; d < s.rank; d++) {
            put(t, row[d][0], s.axis[d], s.n[d]);
            for (int j = 0; j < TS_ROW_MERGED; j++)
                if (row[d][j] >= 0) t->closed[row[d][j]] = true;
        }
    }
}

/* The rows of a parameter that an op reads in ranges lie where the parameter does; stationary: its other dimensions
 * stay where they are stored, too. */
static void follow_ranges(turn *t, const ts_node *n, bool stationary)
{
    for (int k = 0; k < n->n_in; k++) {
        const ts_placement *at = &t->p->place[n->in[k]->id];
        if (!at->param) continue;
        for (int d = 0; d < n->in[k]->type.rank; d++) {
            int factor = ts__factors_in(t->f, k)[d][0];
            if (factor < 0) continue;
            bool range = t->f->kind[factor] == TS_FACTOR_RANGE;
            if (range || stationary) put(t, factor, at->use.axis[d], at->use.n[d]);
            if (stationary) put(t, factor, at->spec.axis[d], at->spec.n[d]);
            if (range) t->closed[factor] = true;
        }
    }
}

/* ---- the primal ------------------------------------------------------------------------------ */

static const ts_node *primal_of(const ts_node *n)
{
    const ts_node *p = n->primal;
    if (!p || p->op == TS_OP_repeat || p->op == TS_OP_barrier || !p->n_out) return NULL;
    bool copy = !n->like && p->op == n->op && p->n_in == n->n_in && p->n_out == n->n_out;
    return n->like || copy ? p : NULL;
}

static void follow_primal(turn *t, const ts_node *n, const ts_node *primal)
{
    ts_partitioner *p = (ts_partitioner *)t->p; /* a pruned primal is placed now */
    ts_factors row;
    if (!p->assigned[primal->out[0]->id]) ts__place_pruned(p, primal);
    const ts_assignment *a = p->assigned[primal->out[0]->id];
    if (!a || ts__factors(primal, &row, NULL) != TS_OK) return;
    for (int k = 0; k < n->n_in + n->n_out; k++) {
        int l = n->like ? n->like[k] : k;
        if (l < 0) continue;
        const ts_value *mine = value_of(n, k), *its = value_of(primal, l);
        if (mine->type.rank != its->type.rank) continue;
        for (int d = 0; d < mine->type.rank; d++) {
            int f = row_of(&row, primal, l)[d][0];
            if (f >= 0) put(t, row_of(t->f, n, k)[d][0], a->axis[f], a->n[f]);
        }
    }
    for (int k = 0; n->like && k < n->n_in; k++)
        if (n->like[k] < 0 && !p->place[n->in[k]->id].free) follow_operand(t, n, k, ACTIVATIONS);
}

/* ---- choices by cost ------------------------------------------------------------------------- */

/* Bytes that a device sends to bring the operands to this assignment, and the result from it to its pin. */
static double cost(const turn *t, const ts_node *n, uint16_t keep)
{
    const ts_partitioner *p = t->p;
    double bytes = 0;
    for (int k = 0; k < n->n_in; k++) {
        const ts_placement *at = &p->place[n->in[k]->id];
        ts_spec to = ts__assigned_spec(n->in[k], ts__factors_in(t->f, k), t->a);
        to.partial = at->spec.partial & keep;
        if (!at->free) bytes += ts__reshard_bytes(p->mesh, &n->in[k]->type, at->spec, &to);
    }
    for (int i = 0; i < n->n_out; i++) {
        const int8_t (*row)[TS_ROW_MERGED] = ts__factors_out(t->f, i);
        const ts_type *type = &n->out[i]->type;
        if (!n->out[i]->pin) continue;
        ts_spec has = ts__assigned_spec(n->out[i], row, t->a);
        ts_spec pin = ts_rules_spec(p->mesh, p->rules, n->out[i]->pin->name, type, NULL);
        has.partial = ts__lacking(t->f, t->a, row, type->rank);
        bytes += ts__reshard_bytes(p->mesh, type, has, &pin);
    }
    return bytes;
}

static void in_order(turn *t, const ts_node *n, int first, bool stationary)
{
    follow_ranges(t, n, stationary);
    follow(t, n, CONTRACTED, first);
    follow_pins(t, n);
    follow(t, n, ACTIVATIONS, first);
    follow(t, n, PARAMETERS, first);
}

/* May operand k come first? An activation whose layout differs from that of the first one. */
static bool contends(const turn *t, const ts_node *n, int k)
{
    const ts_placement *at = &t->p->place[n->in[k]->id];
    return !at->free && !at->param && n->in[k]->type.rank > 0 && ts_spec_axes(&at->spec);
}

/* The cheapest of: each activation first, and of take: the table where it is stored. Ties go to the first. */
static void choose(turn *t, const ts_node *n, uint16_t keep)
{
    ts_assignment chosen = {{0}}, tried;
    double least = INFINITY;
    bool table = n->op == TS_OP_take && t->p->place[n->in[0]->id].param && !t->p->o->stationary_off;
    int candidates = n->op == TS_OP_adamw ? 1 : n->n_in > 0 ? n->n_in : 1;
    for (int k = 0; k < candidates + table; k++) {
        bool stationary = k == candidates;
        if (k > 0 && !stationary && !contends(t, n, k)) continue;
        turn next = *t;
        tried = (ts_assignment){{0}};
        next.a = &tried;
        in_order(&next, n, stationary ? 0 : k, stationary);
        double bytes = cost(&next, n, keep);
        if (bytes >= least) continue;
        least = bytes;
        chosen = tried;
    }
    *t->a = chosen;
}

/* ---- an assignment --------------------------------------------------------------------------- */

const ts_assignment *ts__assign(ts_partitioner *p, const ts_node *n, const ts_factors *f, uint16_t keep)
{
    ts_assignment *a = ts__partition_alloc(p, sizeof *a);
    if (!a) return NULL;
    turn t = {.p = p, .f = f, .a = a, .used = keep};
    p->assigned[n->out[0]->id] = a;
    if (p->hooks && p->hooks->node == n) {
        for (int k = 0; k < f->nf; k++) put(&t, k, p->hooks->force->axis[k], p->hooks->force->n[k]);
        return a;
    }
    const ts_node *primal = primal_of(n);
    if (primal) follow_primal(&t, n, primal);
    else choose(&t, n, keep);
    return a;
}

ts_spec ts__assigned_spec(const ts_value *v, const int8_t (*map)[TS_ROW_MERGED], const ts_assignment *a)
{
    ts_spec s = ts_spec_whole(v->type.rank);
    for (int d = 0; d < v->type.rank; d++) {
        int k = map[d][0];
        if (k < 0) continue;
        s.n[d] = a->n[k];
        memcpy(s.axis[d], a->axis[k], a->n[k]);
    }
    return s;
}

uint16_t ts__lacking(const ts_factors *f, const ts_assignment *a, const int8_t (*map)[TS_ROW_MERGED], int rank)
{
    uint16_t axes = 0;
    for (int k = 0; k < f->nf; k++) {
        bool has = false;
        for (int d = 0; d < rank; d++)
            for (int j = 0; j < TS_ROW_MERGED; j++) has |= map[d][j] == k;
        for (int i = 0; !has && i < a->n[k]; i++) axes |= (uint16_t)(1u << a->axis[k][i]);
    }
    return axes;
}

/* ---- partial sums that pass ------------------------------------------------------------------ */

static const ts_spec *layout(const ts_partitioner *p, const ts_value *v)
{
    return &p->place[v->id].use;
}

/* Of a sum of all operands. Unequal masks are widened: a whole value becomes one that is zero but on index 0. */
static uint16_t passing_sum(const ts_partitioner *p, const ts_node *n)
{
    uint16_t all = 0, split = 0, first = layout(p, n->in[0])->partial;
    bool some_whole = false, same = true;
    for (int k = 0; k < n->n_in; k++) {
        const ts_spec *s = layout(p, n->in[k]);
        all |= s->partial;
        split |= ts_spec_axes(s);
        some_whole |= !s->partial;
        same &= s->partial == first;
    }
    if (same) return first;
    bool scalar = n->out[0]->type.rank == 0; /* one sum later costs less than several now */
    if (p->o->widen_off || (some_whole && !scalar) || (all & split)) return 0;
    return all;
}

uint16_t ts__passing(const ts_partitioner *p, const ts_node *n, const ts_factors *f)
{
    if (n->n_in == 0) return 0;
    uint16_t first = layout(p, n->in[0])->partial;
    switch (n->op) {
    case TS_OP_add:
    case TS_OP_sub:
    case TS_OP_add_n: return passing_sum(p, n);
    case TS_OP_mul:
    case TS_OP_div: {
        const ts_spec *x = layout(p, n->in[0]), *y = layout(p, n->in[1]);
        ts_dtype t = n->out[0]->type.dtype;
        if (n->op == TS_OP_div && t != TS_F32 && t != TS_BF16) return 0; /* it truncates */
        if (x->partial && !y->partial && !(x->partial & ts_spec_axes(y))) return x->partial;
        if (n->op == TS_OP_mul && y->partial && !x->partial && !(y->partial & ts_spec_axes(x)))
            return y->partial;
        return 0;
    }
    default: return f->linear && n->n_in == 1 ? first : 0;
    }
}
