/* mesh/ring_emit.c – a ring, written out: permutes and partial products, unrolled step by step.
 *
 * Of n devices on an axis device i has piece i. Pieces travel both ways at once, at most n/2 hops: those of
 * i + 1, i + 2, … come down the axis and those of i − 1, … up it, and in each step the product of a piece at hand is
 * made while the next ones are under way. No permute of a gather depends on a product. A scatter is the same
 * backwards: two sums travel towards their device and each takes in the partial product of every device that it
 * passes; the device's own is made last.
 *
 * Sums are f32 and are rounded once, as the plain product is; what travels has the dtype that the collective had.
 * Not here: which products may be written so (ring.c).
 */
#include "mesh/ring_internal.h"

/* ---- steps ----------------------------------------------------------------------------------- */

static int64_t ways(const ts_node *collective) { return collective->attr.collective.n; }

/* The piece of step k is that of device axis_index + offset: 0, 1, −1, 2, −2, … */
static int64_t offset_of(int64_t k) { return k % 2 ? (k + 1) / 2 : -(k / 2); }

static ts_value *permute(ts_builder *b, ts_value *x, const ts_node *like, int64_t shift)
{
    ts_attr a = {.collective = {.axis = like->attr.collective.axis,
                                .n = like->attr.collective.n,
                                .shift = shift}};
    return ts__op(b, TS_OP_collective_permute, &x, 1, &a);
}

/* ---- where pieces begin ---------------------------------------------------------------------- */

static ts_value *known_start(const ts_ring *r, const char *axis, int64_t offset, int64_t size)
{
    for (int i = 0; i < r->n_start; i++) {
        const ts_ring_start *s = &r->start[i];
        if (strcmp(s->axis, axis) == 0 && s->offset == offset && s->size == size) return s->value;
    }
    return NULL;
}

static ts_value *remember_start(ts_ring *r, ts_builder *b, const char *axis, int64_t offset, int64_t size,
                                ts_value *v)
{
    if (b->error.code != TS_OK) return v;
    if (!ts__arena_grow(r->arena, &r->start, &r->cap_start, r->n_start, sizeof *r->start))
        return ts__mistake(b, TS_RESOURCE_EXHAUSTED, "memory is out for rings over %s", axis);
    r->start[r->n_start++] = (ts_ring_start){axis, offset, size, v};
    return v;
}

static ts_value *i32(ts_builder *b, int64_t v) { return ts_scalar(b, (double)v, TS_I32); }

/* (axis_index + offset) mod n, times size: i32, at the head of the region, where every ring finds it. */
static ts_value *start_of(ts_ring *r, ts_builder *err, const ts_node *like, int64_t offset, int64_t size)
{
    const char *axis = like->attr.collective.axis;
    const int64_t n = ways(like);
    ts_builder b;
    offset = (offset % n + n) % n;
    ts_value *v = known_start(r, axis, offset, size);
    if (v || err->error.code != TS_OK) return v ? v : err->poison;
    ts__builder_over(&b, r->graph, r->region, r->region->first);
    ts_value *index = known_start(r, axis, 0, 0);
    if (!index) {
        ts_attr a = {.collective = {.axis = axis, .n = n}};
        index = remember_start(r, &b, axis, 0, 0, ts__op(&b, TS_OP_axis_index, NULL, 0, &a));
    } else {
        b.before = index->node->next;
    }
    v = index;
    if (offset) {
        v = ts_add(&b, v, i32(&b, offset));
        v = ts_select(&b, ts_compare(&b, TS_LT, v, i32(&b, n)), v, ts_sub(&b, v, i32(&b, n)));
    }
    v = remember_start(r, &b, axis, offset, size, ts_mul(&b, v, i32(&b, size)));
    if (b.error.code != TS_OK) return ts__mistake(err, b.error.code, "%s", b.error.msg);
    return v;
}

/* ---- products -------------------------------------------------------------------------------- */

/* Slices that one step has taken already: a ring's products often read the same operand. */
typedef struct slices {
    ts_value *of[2 * TS_RING_MAX], *start[2 * TS_RING_MAX], *is[2 * TS_RING_MAX];
    int dim[2 * TS_RING_MAX], n;
} slices;

static ts_value *slice_of(slices *s, ts_builder *b, ts_value *x, int dim, ts_value *start, int64_t size)
{
    for (int i = 0; i < s->n; i++)
        if (s->of[i] == x && s->dim[i] == dim && s->start[i] == start) return s->is[i];
    ts_value *v = ts_dynamic_slice(b, x, start, dim, size);
    if (s->n < 2 * TS_RING_MAX) {
        s->of[s->n] = x;
        s->dim[s->n] = dim;
        s->start[s->n] = start;
        s->is[s->n++] = v;
    }
    return v;
}

/* The product of one piece: in[side] (−1: neither) is given, what else has the dimension is sliced. */
static ts_value *partial(slices *s, ts_builder *b, const ts_ring_dot *d, int side, ts_value *piece,
                         ts_value *start, int64_t size, ts_dtype dtype)
{
    ts_value *in[2];
    ts_attr attr = d->dot->attr;
    for (int i = 0; i < 2; i++) {
        in[i] = d->dot->in[i];
        if (i == side) in[i] = piece;
        else if (d->dim[i] >= 0) in[i] = slice_of(s, b, in[i], d->dim[i], start, size);
    }
    attr.dot.dtype = dtype;
    return ts__op(b, TS_OP_dot, in, 2, &attr);
}

static void as_node(ts_builder *b, ts_scope *scope, const ts_node *n)
{
    *scope = (ts_scope){n->scope, NULL};
    b->loc = n->loc;
    b->scope = n->scope ? scope : NULL;
    b->backward = n->backward;
    b->primal = n->primal;
}

/* One piece more of a use. Behind the barrier a sum is one buffer that each product adds to; without it XLA keeps
 * all partial products and adds them at the end. */
static void add_piece(ts_ring *r, ts_builder *b, slices *s, ts_ring_use *u, int64_t step)
{
    const ts_node *gather = u->from->gather, *dot = u->dot.dot;
    ts_value *piece = u->from->piece[step];
    int64_t size = gather->in[0]->type.dim[gather->attr.collective.dim].size;
    ts_value *start = start_of(r, b, gather, offset_of(step), size);
    const bool sums = u->dot.out_dim < 0;
    ts_value *v = partial(s, b, &u->dot, u->side, piece, start, size,
                          sums ? TS_F32 : dot->attr.dot.dtype);
    if (sums) {
        u->value = step ? ts_add(b, u->value, v) : v;
        if (step && step + 1 < ways(gather)) ts_barrier(b, &u->value, 1, &u->value);
        return;
    }
    if (!step) u->value = ts__zeros(b, &dot->out[0]->type);
    u->value = ts_dynamic_update(b, u->value, v, start, u->dot.out_dim);
}

static ts_status finished(const ts_builder *b, const ts_node *at, ts_error *err)
{
    if (b->error.code == TS_OK) return TS_OK;
    return TS_ERROR(err, b->error.code, "a ring for %s: %s", ts_op_infos[at->op].name, b->error.msg);
}

/* The permutes that may start once the piece of this step is here. */
static void send(ts_builder *b, ts_ring_gather *g, int64_t step)
{
    const int64_t n = ways(g->gather), next = step + 2;
    if (!step) {
        g->piece[0] = g->gather->in[0];
        g->piece[1] = permute(b, g->piece[0], g->gather, -1);
    }
    if (next < n) g->piece[next] = permute(b, g->piece[step], g->gather, next % 2 ? -1 : 1);
}

ts_status ts__ring_gather(ts_ring *r, ts_node *at, ts_ring_gather *const *gather, int n_gather,
                          ts_ring_use *const *use, int n_use, ts_error *err)
{
    const int64_t n = ways(use[0]->from->gather);
    ts_builder b;
    ts_scope scope;
    ts__builder_over(&b, r->graph, r->region, at);
    for (int64_t step = 0; step < n; step++) {
        slices s = {.n = 0};
        for (int i = 0; i < n_gather; i++) {
            as_node(&b, &scope, gather[i]->gather);
            send(&b, gather[i], step);
        }
        for (int i = 0; i < n_use; i++) {
            as_node(&b, &scope, use[i]->dot.dot);
            add_piece(r, &b, &s, use[i], step);
        }
    }
    for (int i = 0; i < n_use; i++) {
        as_node(&b, &scope, use[i]->dot.dot);
        use[i]->value = ts_convert(&b, use[i]->value, use[i]->dot.dot->attr.dot.dtype);
    }
    TS_TRY(finished(&b, at, err));
    for (int i = 0; i < n_use; i++) {
        ts__replace_uses(r->region, use[i]->dot.dot->out[0], use[i]->value);
        ts__node_remove(use[i]->dot.dot);
    }
    r->changed = true;
    return TS_OK;
}

/* ---- scatters -------------------------------------------------------------------------------- */

/* This device's part of the piece that begins at start, in f32. */
static ts_value *due(ts_builder *b, slices *s, const ts_ring_scatter *c, ts_value *start)
{
    int64_t size = c->scatter->out[0]->type.dim[c->scatter->attr.collective.dim].size;
    return partial(s, b, &c->dot, -1, NULL, start, size, TS_F32);
}

static ts_value *due_at(ts_ring *r, ts_builder *b, const ts_ring_scatter *c, int64_t offset)
{
    int64_t size = c->scatter->out[0]->type.dim[c->scatter->attr.collective.dim].size;
    return start_of(r, b, c->scatter, offset, size);
}

static ts_value *arrive(ts_builder *b, const ts_ring_scatter *c, ts_value *own)
{
    for (int i = 0; i < 2; i++)
        if (c->sum[i]) own = ts_add(b, ts_convert(b, c->sum[i], TS_F32), own);
    return ts_convert(b, own, c->scatter->in[0]->type.dtype);
}

/* One step of all members: their parts of the piece at *start join what came, and go on. Behind a barrier with what
 * goes stands the start of the next piece, so that its products are not made before this step's sums are on their
 * way: a compiler that made them early would have nothing left to do meanwhile. */
static void scatter_step(ts_builder *b, ts_ring_scatter *const *scatter, int n, int64_t offset, ts_value **start,
                         ts_value *next)
{
    ts_value *go[TS_RING_SHARED + 1];
    slices s = {.n = 0};
    ts_scope scope;
    for (int i = 0; i < n; i++) {
        ts_ring_scatter *c = scatter[i];
        ts_value *came = c->sum[offset < 0];
        as_node(b, &scope, c->dot.dot);
        go[i] = due(b, &s, c, *start);
        as_node(b, &scope, c->scatter);
        if (came) go[i] = ts_add(b, ts_convert(b, came, TS_F32), go[i]);
        go[i] = ts_convert(b, go[i], c->scatter->in[0]->type.dtype);
    }
    go[n] = next;
    ts_barrier(b, go, n + 1, go);
    *start = go[n];
    for (int i = 0; i < n; i++) {
        ts_ring_scatter *c = scatter[i];
        as_node(b, &scope, c->scatter);
        c->sum[offset < 0] = permute(b, go[i], c->scatter, offset < 0 ? -1 : 1);
    }
}

/* The ring begins once the one before it has arrived: a scheduler that sees results that nothing but the end of a
 * region asks for would leave all of them to that end, where no product is left beside which they could travel. */
static ts_value *after_before(ts_ring *r, ts_builder *b, ts_value *start)
{
    ts_value *go[TS_RING_SHARED + 1];
    const int n = r->n_before;
    if (!n) return start;
    memcpy(go, r->before, (size_t)n * sizeof *go);
    go[n] = start;
    ts_barrier(b, go, n + 1, go);
    if (b->error.code != TS_OK) return start;
    ts_node *barrier = go[n]->node;
    for (int i = 0; i < n; i++) {
        ts__replace_uses(r->region, r->before[i], go[i]);
        barrier->in[i] = r->before[i];
    }
    return go[n];
}

ts_status ts__ring_scatter(ts_ring *r, ts_node *at, ts_ring_scatter *const *scatter, int n, ts_error *err)
{
    const int64_t size = ways(scatter[0]->scatter);
    ts_builder b;
    ts_scope scope;
    slices s = {.n = 0};
    ts__builder_over(&b, r->graph, r->region, at);
    ts_value *start = after_before(r, &b, due_at(r, &b, scatter[0], offset_of(size - 1)));
    /* Farthest first: the sum for device + k has k hops to go. */
    for (int64_t step = size - 1; step > 0; step--)
        scatter_step(&b, scatter, n, offset_of(step), &start,
                     due_at(r, &b, scatter[0], offset_of(step - 1)));
    for (int i = 0; i < n; i++) {
        ts_ring_scatter *c = scatter[i];
        as_node(&b, &scope, c->dot.dot);
        ts_value *own = due(&b, &s, c, start);
        as_node(&b, &scope, c->scatter);
        c->sum[0] = arrive(&b, c, own);
    }
    TS_TRY(finished(&b, at, err));
    for (int i = 0; i < n; i++) {
        ts__replace_uses(r->region, scatter[i]->scatter->out[0], scatter[i]->sum[0]);
        ts__node_remove(scatter[i]->scatter);
        ts__node_remove(scatter[i]->dot.dot);
        r->before[i] = scatter[i]->sum[0];
    }
    r->n_before = n;
    r->changed = true;
    return TS_OK;
}
