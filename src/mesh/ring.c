/* mesh/ring.c – collective_matmul=ring: which gathers before products, and scatters after them, become rings.
 *
 * A gather is one where every use is a product; then each use takes the pieces, the first one as they arrive and later
 * ones as they are kept, so nothing travels twice. A scatter is one where it alone reads a product. Gathers that meet
 * the same operand share a ring (q, k, v; gate, up): their pieces travel side by side and the operand's slice is taken
 * once; so do scatters of products that slice the same operand. What else reads a gather keeps it whole, and plain.
 *
 * Replicas stay equal bit by bit. A gather's ring has another order on every device: of additions
 * where the gathered dimension is contracted, of products everywhere. So there is one only where
 * the other operand varies along its axis (vary.c): there the product differs between the devices
 * anyway, and no layout calls it replicated. A scatter's ring needs no such care. A piece's sum
 * has one order, that of the device it goes to, and that device alone keeps the piece; replicas
 * over another axis stand at the same place of this one, and a copy made later is gathered from
 * that one sum.
 *
 * Runs on a partitioned graph; a graph without candidates stays as it is. Forward and backward never share.
 * Not here: how a ring is written (ring_emit.c), where collectives come from (partition.c).
 */
#include "mesh/partition.h"
#include <stdlib.h>

#include "mesh/ring_internal.h"

enum { MAX_DEPTH = 8 };

static ts_status memory_out(const ts_ring *r, ts_error *err)
{
    return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out for the rings of graph %s", r->graph->name);
}

/* ---- places in a region ---------------------------------------------------------------------- */

static intptr_t place(const ts_node *n) { return (intptr_t)n->user; }

static void number(const ts_region *r, bool clear)
{
    intptr_t i = 0;
    for (ts_node *n = r->first; n; n = n->next) n->user = clear ? NULL : (void *)++i;
}

/* Could v be there before `at`? Cheap nodes may move up, a few deep. */
static bool can_stand(const ts_value *v, const ts_node *at, int depth)
{
    const ts_node *n = v->node;
    if (!n || place(n) < place(at)) return true;
    ts_op_kind kind = ts_op_infos[n->op].kind;
    if (depth == 0 || n->body || n->op == TS_OP_dot || n->op == TS_OP_barrier || kind == TS_COMPOSITE ||
        (kind == TS_COLLECTIVE && n->op != TS_OP_all_gather))
        return false;
    for (int i = 0; i < n->n_in; i++)
        if (!can_stand(n->in[i], at, depth - 1)) return false;
    return true;
}

static void move_up(ts_value *v, ts_node *at)
{
    ts_node *n = v->node;
    if (!n || place(n) < place(at)) return;
    for (int i = 0; i < n->n_in; i++) move_up(n->in[i], at);
    ts__node_remove(n);
    n->prev = at->prev;
    n->next = at;
    if (at->prev) at->prev->next = n;
    else at->region->first = n;
    at->prev = n;
    n->user = (void *)(place(at) - 1);
}

/* ---- products -------------------------------------------------------------------------------- */

static int index_of(const ts_dims *d, int64_t v)
{
    for (int i = 0; i < d->n; i++)
        if (d->v[i] == v) return i;
    return -1;
}

/* The product as dimension dim of operand side sees it. */
static ts_ring_dot see_operand(ts_node *dot, int side, int dim)
{
    const ts_dims *batch[2] = {&dot->attr.dot.x_batch, &dot->attr.dot.y_batch},
                  *sum[2] = {&dot->attr.dot.x_contract, &dot->attr.dot.y_contract};
    ts_ring_dot d = {dot, {-1, -1}, -1};
    int k = index_of(sum[side], dim), rank = dot->in[0]->type.rank;
    d.dim[side] = dim;
    if (k >= 0) {
        d.dim[1 - side] = (int)sum[1 - side]->v[k];
        return d;
    }
    if ((k = index_of(batch[side], dim)) >= 0) {
        d.dim[1 - side] = (int)batch[1 - side]->v[k];
        d.out_dim = k;
        return d;
    }
    /* Results: batch, x's free dimensions, y's. */
    d.out_dim = side ? rank - sum[0]->n : batch[0]->n;
    for (int i = 0; i < dim; i++) d.out_dim += index_of(sum[side], i) < 0 && index_of(batch[side], i) < 0;
    return d;
}

/* The product as dimension dim of its result sees it. */
static ts_ring_dot see_result(ts_node *dot, int dim)
{
    for (int side = 0; side < 2; side++)
        for (int i = 0; i < dot->in[side]->type.rank; i++) {
            ts_ring_dot d = see_operand(dot, side, i);
            if (d.out_dim == dim) return d;
        }
    return (ts_ring_dot){dot, {-1, -1}, -1};
}

/* Over an axis that was named, of few enough devices, and with places that an i32 can say? */
static bool named(const ts_ring *r, const ts_node *n)
{
    const int64_t size = n->attr.collective.n;
    const ts_value *whole = n->op == TS_OP_all_gather ? n->out[0] : n->in[0];
    if (size < 2 || size > TS_RING_MAX || whole->type.dim[n->attr.collective.dim].size > INT32_MAX / 2)
        return false;
    for (int i = 0; i < r->graph->n_axis; i++)
        if (strcmp(r->graph->axis[i].name, n->attr.collective.axis) == 0)
            return !r->axes || r->axes >> i & 1;
    return false;
}

static bool same_axis(const ts_node *a, const ts_node *b)
{
    return strcmp(a->attr.collective.axis, b->attr.collective.axis) == 0 && a->backward == b->backward;
}

/* ---- gathers --------------------------------------------------------------------------------- */

typedef struct uses {
    ts_ring_use *v; /* in the region's order once sorted */
    int n, capacity;
} uses;

typedef struct scatters {
    ts_ring_scatter *v;
    int n, capacity;
} scatters;

/* What of a region becomes rings, each product at most once. */
typedef struct plan {
    uses uses;
    scatters scatters;
} plan;

static bool is_result(const ts_region *r, const ts_value *v)
{
    for (int i = 0; i < r->n_result; i++)
        if (r->result[i] == v) return true;
    return false;
}

static bool claimed(const plan *p, const ts_node *dot)
{
    for (int i = 0; i < p->uses.n; i++)
        if (p->uses.v[i].dot.dot == dot) return true;
    for (int i = 0; i < p->scatters.n; i++)
        if (p->scatters.v[i].dot.dot == dot) return true;
    return false;
}

/* Does the product of a gather with this operand differ between the devices that gather? */
static bool differs(const ts_ring *r, const ts_node *gather, const ts_value *other)
{
    for (int i = 0; i < r->graph->n_axis; i++)
        if (strcmp(r->graph->axis[i].name, gather->attr.collective.axis) == 0)
            return r->vary[other->id] >> i & 1;
    return false;
}

/* Appends the uses of a gather; none where one of them is no product, is claimed already or is the same everywhere. */
static ts_status add_uses(ts_ring *r, ts_ring_gather *g, plan *p, ts_error *err)
{
    uses *u = &p->uses;
    const ts_value *v = g->gather->out[0];
    const int before = u->n, dim = (int)g->gather->attr.collective.dim;
    if (is_result(r->region, v)) return TS_OK;
    for (ts_node *n = g->gather->next; n; n = n->next) {
        int times = 0, side = 0;
        for (int i = 0; i < n->n_in; i++)
            if (n->in[i] == v) {
                times++;
                side = i;
            }
        if (!times) continue;
        if (n->op != TS_OP_dot || times > 1 || claimed(p, n) || !differs(r, g->gather, n->in[1 - side])) {
            u->n = before;
            return TS_OK;
        }
        if (!ts__arena_grow(r->arena, &u->v, &u->capacity, u->n, sizeof *u->v)) return memory_out(r, err);
        u->v[u->n++] = (ts_ring_use){.dot = see_operand(n, side, dim), .from = g, .side = side};
    }
    return TS_OK;
}

static int by_place(const void *a, const void *b)
{
    intptr_t x = place(((const ts_ring_use *)a)->dot.dot), y = place(((const ts_ring_use *)b)->dot.dot);
    return x < y ? -1 : x > y;
}

static ts_status find_uses(ts_ring *r, const char *axis, plan *p, ts_error *err)
{
    for (ts_node *n = r->region->first; n; n = n->next) {
        if (n->op != TS_OP_all_gather || !named(r, n) || strcmp(n->attr.collective.axis, axis) != 0)
            continue;
        ts_ring_gather *g = ts_arena_alloc(r->arena, sizeof *g);
        if (!g) return memory_out(r, err);
        *g = (ts_ring_gather){.gather = n};
        TS_TRY(add_uses(r, g, p, err));
    }
    return TS_OK;
}

static ts_value *other(const ts_ring_use *u) { return u->dot.dot->in[1 - u->side]; }

/* Do a gather's pieces meet the same slices of the same operand as the seed's? */
static bool shares(const ts_ring_use *seed, const ts_ring_use *u)
{
    return !u->from->taken && other(u) == other(seed) && same_axis(u->from->gather, seed->from->gather) &&
           u->dot.dot->backward == seed->dot.dot->backward &&
           u->dot.dim[1 - u->side] == seed->dot.dim[1 - seed->side] &&
           can_stand(u->from->gather->in[0], seed->dot.dot, MAX_DEPTH);
}

/* The ring that begins with use `first`: it, what shares it, and what else its gathers' pieces can serve at once. */
static ts_status one_ring(ts_ring *r, uses *u, int first, bool *done, ts_error *err)
{
    ts_ring_gather *gather[TS_RING_SHARED];
    ts_ring_use *use[TS_RING_SHARED], *seed = &u->v[first];
    ts_node *at = seed->dot.dot;
    const bool later = seed->from->taken;
    int n_gather = 0, n_use = 0;
    for (int i = first; i < u->n && n_use < TS_RING_SHARED; i++) {
        ts_ring_use *x = &u->v[i];
        bool mine = x->from == seed->from;
        for (int k = 0; k < n_gather; k++) mine |= gather[k] == x->from;
        if (done[i] || (later && i != first) || !can_stand(other(x), at, MAX_DEPTH)) continue;
        if (!mine && !shares(seed, x)) continue;
        if (!x->from->taken) {
            gather[n_gather++] = x->from;
            x->from->taken = true;
        }
        use[n_use++] = x;
        done[i] = true;
    }
    for (int i = 0; i < n_gather; i++) move_up(gather[i]->gather->in[0], at);
    for (int i = 0; i < n_use; i++) move_up(other(use[i]), at);
    TS_TRY(ts__ring_gather(r, at, gather, n_gather, use, n_use, err));
    number(r->region, false);
    return TS_OK;
}

static ts_status gather_rings(ts_ring *r, uses *u, ts_error *err)
{
    if (!u->n) return TS_OK;
    qsort(u->v, (size_t)u->n, sizeof *u->v, by_place);
    bool *done = ts_arena_alloc(r->arena, (size_t)u->n);
    if (!done) return memory_out(r, err);
    for (int i = 0; i < u->n; i++) done[i] = false;
    for (int i = 0; i < u->n; i++)
        if (!done[i]) TS_TRY(one_ring(r, u, i, done, err));
    return TS_OK;
}

/* ---- scatters -------------------------------------------------------------------------------- */

/* The first node that reads v; NULL: only the region's results do, or nothing. */
static ts_node *first_use(const ts_value *v)
{
    ts_node *n = v->node->next;
    for (; n; n = n->next)
        for (int i = 0; i < n->n_in; i++)
            if (n->in[i] == v) return n;
    return NULL;
}

static bool alone(const ts_ring *r, const ts_value *product, const ts_node *scatter)
{
    if (is_result(r->region, product) || first_use(product) != scatter) return false;
    for (const ts_node *n = scatter->next; n; n = n->next)
        for (int i = 0; i < n->n_in; i++)
            if (n->in[i] == product) return false;
    return true;
}

static ts_status find_scatters(ts_ring *r, const char *axis, plan *p, ts_error *err)
{
    scatters *s = &p->scatters;
    for (ts_node *n = r->region->first; n; n = n->next) {
        if (n->op != TS_OP_reduce_scatter || !named(r, n) || strcmp(n->attr.collective.axis, axis) != 0)
            continue;
        ts_node *dot = n->in[0]->node;
        if (!dot || dot->op != TS_OP_dot || claimed(p, dot) || !alone(r, n->in[0], n)) continue;
        if (!ts__arena_grow(r->arena, &s->v, &s->capacity, s->n, sizeof *s->v)) return memory_out(r, err);
        s->v[s->n++] = (ts_ring_scatter){.scatter = n, .dot = see_result(dot, (int)n->attr.collective.dim)};
    }
    return TS_OK;
}

/* Do both slice the same dimension of the same operand? */
static bool slice_alike(const ts_ring_scatter *a, const ts_ring_scatter *b)
{
    for (int i = 0; i < 2; i++)
        for (int k = 0; k < 2; k++)
            if (a->dot.dim[i] >= 0 && a->dot.dim[i] == b->dot.dim[k] &&
                a->dot.dot->in[i] == b->dot.dot->in[k]) /* so pieces are of one size */
                return same_axis(a->scatter, b->scatter);
    return false;
}

/* May the results of all of them come as late as `at`? */
static bool can_wait(ts_ring_scatter *const *s, int n, const ts_node *at)
{
    for (int i = 0; i < n; i++) {
        const ts_node *use = first_use(s[i]->scatter->out[0]);
        if (use && place(use) <= place(at)) return false;
    }
    return true;
}

/* Of the ring before, what nothing reads up to `at`; a barrier there can stand for it. */
static void keep_idle(ts_ring *r, const ts_node *at)
{
    int kept = 0;
    for (int i = 0; i < r->n_before; i++) {
        const ts_value *v = r->before[i];
        const ts_node *use = first_use(v);
        if (place(v->node) < place(at) && (!use || place(use) > place(at))) r->before[kept++] = r->before[i];
    }
    r->n_before = kept;
}

static ts_status scatter_rings(ts_ring *r, scatters *s, ts_error *err)
{
    for (int i = 0; i < s->n; i++) {
        ts_ring_scatter *member[TS_RING_SHARED] = {&s->v[i]};
        int n = 1;
        if (s->v[i].taken) continue;
        for (int k = i + 1; k < s->n && n < TS_RING_SHARED; k++) {
            ts_ring_scatter *x = &s->v[k];
            if (x->taken || !slice_alike(&s->v[i], x) || !can_wait(member, n, x->scatter)) continue;
            x->taken = true;
            member[n++] = x;
        }
        keep_idle(r, member[n - 1]->scatter);
        TS_TRY(ts__ring_scatter(r, member[n - 1]->scatter, member, n, err));
        number(r->region, false);
    }
    return TS_OK;
}

/* ---- the pass -------------------------------------------------------------------------------- */

/* Both operands of a product may be gathered and its result scattered, but only one of the three can come or go in
 * pieces: what the mesh's major axis asks for, so a weight over fsdp before an activation over tensor. */
static ts_status find(ts_ring *r, plan *p, ts_error *err)
{
    for (int i = 0; i < r->graph->n_axis; i++) {
        TS_TRY(find_uses(r, r->graph->axis[i].name, p, err));
        TS_TRY(find_scatters(r, r->graph->axis[i].name, p, err));
    }
    return TS_OK;
}

static ts_status rewrite(ts_ring *r, ts_region *region, ts_error *err)
{
    plan p = {0};
    for (ts_node *n = region->first; n; n = n->next)
        if (n->body) TS_TRY(rewrite(r, n->body, err));
    r->region = region;
    r->n_start = r->n_before = 0;
    number(region, false);
    ts_status status = find(r, &p, err);
    if (status == TS_OK) status = gather_rings(r, &p.uses, err);
    if (status == TS_OK) status = scatter_rings(r, &p.scatters, err);
    number(region, true);
    return status;
}

ts_status ts_ring_rewrite(ts_graph *g, const ts_spec *in, uint16_t axes, ts_error *err)
{
    ts_ring r = {.graph = g, .axes = axes, .arena = ts_arena_new()};
    if (!r.arena) return memory_out(&r, err);
    r.vary = ts__vary(g, in, r.arena);
    ts_status status = r.vary ? rewrite(&r, g->top, err) : memory_out(&r, err);
    ts_arena_free(r.arena);
    if (status != TS_OK || !r.changed) return status;
    TS_TRY(ts_graph_dce(g, err));
    return ts_graph_verify(g, err);
}
