/* exec/footprint.c – what lives when in a lowered graph, and what its kernels compute and move.
 *
 * Nodes stand in a line, loops as a stretch of it. A value with memory (footprint_fuse.c) is a
 * *block*, which lives from its definition to the last read of anything computed from it; what is
 * read inside a loop lives as long as the loop. A loop's stacked and summed results live from its
 * beginning. A carry is one block inside the body and its new value another, which take each
 * other's place between iterations; its initial value ends where the loop begins. Element-wise
 * arithmetic may write over an operand that ends there. Peak is the largest sum of what lives at
 * one place: a compiler may do better by another order, and worse by gaps.
 *
 * Invariant: a block's first place is not behind its last.
 * Not here: tiles, on-chip memory, the order that a compiler chooses.
 */
#include "exec/footprint_internal.h"

typedef struct block {
    const ts_value *value;   /* NULL: an input, which is counted elsewhere */
    const ts_region *region; /* where it lives */
    int64_t bytes;
    int first, last;
    bool gradient, top, backward;
    bool awaited; /* the backward half reads it */
} block;

typedef struct walk {
    const ts_graph *g;
    ts_fuse_value *value; /* [next_id] */
    int *block_of;        /* [next_id] block of a value; −1 */
    int *place;           /* [next_id] where the value is made */
    int *stamp;           /* [next_id] of the last visit */
    bool *gradient;       /* [next_id] part of a parameter's gradient */
    block *block;
    int n_block, now, visit;
    int64_t on_chip;
    bool backward; /* what reads now */
    ts_footprint *out;
} walk;

static int64_t capped_add(int64_t a, int64_t b)
{
    int64_t v;
    return ts_add_i64(a, b, &v) ? INT64_MAX : v;
}

/* ---- blocks ---------------------------------------------------------------------------------- */

static int new_block(walk *w, const ts_value *v, const ts_region *home, int first)
{
    int k = w->n_block++;
    const ts_node *n = v->node;
    w->block[k] = (block){.value = v,
                          .region = home,
                          .bytes = (int64_t)ts_type_bytes(&v->type),
                          .first = first,
                          .last = first,
                          .gradient = w->gradient[v->id],
                          .top = !home->owner,
                          .backward = n ? n->backward : home->owner && home->owner->backward};
    w->block_of[v->id] = k;
    return k;
}

/* Bytes of a block, or of an input (−1), that go through device memory. */
static void move(walk *w, int k, double bytes, double runs)
{
    bool stays = k >= 0 && !w->block[k].top && w->block[k].bytes <= w->on_chip;
    if (!stays) w->out->traffic += runs * bytes;
}

/* Reads of v at a place: every block that it is computed from. most: elements that are read of it. */
static void read(walk *w, const ts_value *v, int at, int64_t most, double runs)
{
    int64_t n = ts_type_elements(&v->type);
    if (n < most) most = n;
    const ts_value *outer = v->node ? NULL : ts__fuse_outer(v);
    int k = w->block_of[v->id];
    if (w->stamp[v->id] == w->visit) return;
    w->stamp[v->id] = w->visit;
    if (outer) {
        read(w, outer, at, most, runs);
        return;
    }
    if (k >= 0 && at > w->block[k].last) w->block[k].last = at;
    if (k >= 0 && w->backward) w->block[k].awaited = true;
    if (k >= 0 || !v->node) {
        move(w, k, (double)most * (double)ts_dtype_bytes(v->type.dtype), runs);
        return;
    }
    const ts_node *d = v->node;
    if (ts__fuse_class(d) == TS_FUSE_RENAME)
        read(w, d->in[v->index], at, most, runs);
    else
        for (int i = 0; i < d->n_in; i++) read(w, d->in[i], at, most, runs);
}

/* All operands of a kernel, each block once. */
static void read_operands(walk *w, const ts_node *n, double runs)
{
    int64_t most = n->op == TS_OP_dynamic_update ? ts_type_elements(&n->in[1]->type) : INT64_MAX;
    w->visit++;
    for (int i = 0; i < n->n_in; i++) read(w, n->in[i], w->now, most, runs);
}

/* v is written at this place; element-wise arithmetic over one of its operands, if one of that size
 * ends here. */
static void write(walk *w, const ts_value *v, double runs)
{
    int k = new_block(w, v, v->region, w->now);
    bool update = v->node->op == TS_OP_dynamic_update;
    move(w, k, (double)ts_type_bytes(update ? &v->node->in[1]->type : &v->type), runs);
    if (!update && (ts__fuse_class(v->node) != TS_FUSE_ELEMENT || w->value[v->id].kernel)) return;
    for (int i = k - 1; i >= 0; i--) {
        block *b = &w->block[i];
        if (b->last != w->now || b->first >= w->now || b->bytes != w->block[k].bytes ||
            b->region != v->region || w->stamp[b->value->id] != w->visit)
            continue;
        b->last = w->now - 1;
        return;
    }
}

/* ---- the line -------------------------------------------------------------------------------- */

static double dot_flops(const ts_node *n)
{
    double m = 2 * (double)ts_type_elements(&n->out[0]->type);
    for (int i = 0; i < n->attr.dot.x_contract.n; i++)
        m *= (double)n->in[0]->type.dim[n->attr.dot.x_contract.v[i]].size;
    return m;
}

static void walk_region(walk *w, const ts_region *r, double runs);

/* Places that a region takes. */
static int length(const ts_region *r)
{
    int places = 0;
    for (const ts_node *n = r->first; n; n = n->next) places += n->body ? length(n->body) + 3 : 1;
    return places;
}

/* What the body reads of the outside is read until the loop ends: the next iteration reads it too. */
static void walk_repeat(walk *w, const ts_node *n, double runs)
{
    const ts_region *body = n->body;
    int carries = (int)n->attr.repeat.n_carry, begin = w->now;
    int end = begin + length(body) + 2; /* the yield stands before it */
    w->visit++;
    for (int i = 0; i < n->n_in; i++) read(w, n->in[i], i < carries ? begin : end, INT64_MAX, 0);
    for (int i = 0; i < n->n_out; i++) {
        int k = new_block(w, n->out[i], n->region, i < carries ? end : begin);
        w->block[k].last = end;
    }
    w->now = begin + 1;
    for (int i = 0; i < carries; i++) new_block(w, body->arg[i], body, w->now);
    walk_region(w, body, runs * (double)n->attr.repeat.n);
    w->now = end;
}

/* What the region yields is kept until its end, or written into a stack, a sum, an input where it
 * is made. */
static void read_yields(walk *w, const ts_region *r, double runs)
{
    w->backward = r->owner && r->owner->backward;
    for (int i = 0; i < r->n_result; i++) {
        const ts_value *v = r->result[i];
        bool written =
            r->owner ? i >= r->owner->attr.repeat.n_carry : w->g->output[i].replaces >= 0;
        w->visit++;
        read(w, v, written && v->node ? w->place[v->id] : w->now, INT64_MAX, written ? runs : 0);
        if (written) w->out->traffic += runs * (double)ts_type_bytes(&v->type);
    }
}

static void walk_node(walk *w, const ts_node *n, double runs)
{
    ts_fuse_class c = ts__fuse_class(n);
    bool writes = false;
    for (int i = 0; i < n->n_out; i++) {
        w->place[n->out[i]->id] = w->now;
        writes = writes || w->value[n->out[i]->id].memory;
    }
    if (n->op == TS_OP_dot) w->out->flops += runs * dot_flops(n);
    w->backward = n->backward;
    if (n->body) {
        walk_repeat(w, n, runs);
        return;
    }
    if (!writes) return;
    read_operands(w, n, runs);
    for (int i = 0; i < n->n_out; i++)
        if (w->value[n->out[i]->id].memory && (c != TS_FUSE_RENAME || i == 0))
            write(w, n->out[i], runs);
}

static void walk_region(walk *w, const ts_region *r, double runs)
{
    for (const ts_node *n = r->first; n; n = n->next) {
        walk_node(w, n, runs);
        w->now++;
    }
    read_yields(w, r, runs);
    w->now++;
}

/* ---- which values are gradients of parameters ------------------------------------------------ */

/* Back from what an optimizer reads through everything that only moves or adds. */
static void mark_gradient(walk *w, const ts_value *v)
{
    const ts_node *n = v->node;
    if (w->gradient[v->id]) return;
    w->gradient[v->id] = true;
    if (n && n->body) mark_gradient(w, n->body->result[v->index]);
    if (!n || n->body || n->op == TS_OP_dot) return;
    ts_fuse_class c = ts__fuse_class(n);
    bool moves = c == TS_FUSE_RENAME || n->op == TS_OP_convert || n->op == TS_OP_add ||
                 n->op == TS_OP_add_n || (ts_op_infos[n->op].kind == TS_COLLECTIVE && n->n_in == 1);
    if (!moves) return;
    if (c == TS_FUSE_RENAME)
        mark_gradient(w, n->in[v->index]);
    else
        for (int i = 0; i < n->n_in; i++) mark_gradient(w, n->in[i]);
}

/* What a new state is computed from, in its own size, and either has memory or was made by the
 * backward half: a lowered optimizer step reads p, m and v, which are inputs, and the gradient. */
static void find_gradients(walk *w)
{
    const ts_region *top = w->g->top;
    for (int i = 0; i < top->n_result; i++) {
        if (w->g->output[i].replaces < 0) continue;
        const ts_value *stack[256] = {top->result[i]};
        int n = 1;
        w->visit++;
        while (n > 0) {
            const ts_value *v = stack[--n];
            if (!v->node || w->stamp[v->id] == w->visit) continue;
            w->stamp[v->id] = w->visit;
            if (ts_type_elements(&v->type) != ts_type_elements(&top->result[i]->type)) continue;
            if (w->value[v->id].memory || v->node->backward) {
                mark_gradient(w, v);
                continue;
            }
            for (int k = 0; k < v->node->n_in && n < 256; k++) stack[n++] = v->node->in[k];
        }
    }
}

/* ---- the peak -------------------------------------------------------------------------------- */

static bool is_kept(const block *b)
{
    return b->awaited && !b->backward && !b->gradient;
}

/* What lives at each place, from where blocks begin and end. */
static ts_status find_peak(walk *w, ts_error *err)
{
    int n = w->now + 2, peak = 0;
    int64_t *change = ts_alloc_zero((size_t)n * 2 * sizeof *change), *kept = change + n, all = 0,
            waiting = 0;
    if (!change)
        return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out while planning graph %s",
                        w->g->name);
    for (int k = 0; k < w->n_block; k++) {
        const block *b = &w->block[k];
        TS_ASSERT(b->last + 1 < n && b->first <= b->last + 1);
        change[b->first] = capped_add(change[b->first], b->bytes);
        change[b->last + 1] = capped_add(change[b->last + 1], -b->bytes);
        if (!is_kept(b)) continue;
        kept[b->first] = capped_add(kept[b->first], b->bytes);
        kept[b->last + 1] = capped_add(kept[b->last + 1], -b->bytes);
    }
    for (int at = 0; at < n; at++) {
        all = capped_add(all, change[at]);
        waiting = capped_add(waiting, kept[at]);
        if (waiting > w->out->kept) w->out->kept = waiting;
        if (all <= w->out->temporary) continue;
        w->out->temporary = all;
        peak = at;
    }
    for (int k = 0; k < w->n_block; k++) {
        const block *b = &w->block[k];
        if (b->first > peak || b->last < peak) continue;
        if (b->gradient) w->out->gradients = capped_add(w->out->gradients, b->bytes);
        if (is_kept(b)) w->out->activations = capped_add(w->out->activations, b->bytes);
    }
    ts_free(change);
    return TS_OK;
}

/* ---- all together ---------------------------------------------------------------------------- */

static ts_status measure(const ts_graph *g, int64_t on_chip, ts_footprint *out, ts_error *err)
{
    size_t n = (size_t)g->next_id + 1;
    walk w = {.g = g,
              .value = ts_alloc_zero(n * sizeof *w.value),
              .block_of = ts_alloc(n * sizeof *w.block_of),
              .place = ts_alloc_zero(n * sizeof *w.place),
              .stamp = ts_alloc_zero(n * sizeof *w.stamp),
              .gradient = ts_alloc_zero(n),
              .block = ts_alloc(n * sizeof *w.block),
              .on_chip = on_chip,
              .out = out};
    ts_status status = TS_OK;
    if (!w.value || !w.block_of || !w.place || !w.stamp || !w.gradient || !w.block)
        status =
            TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out while planning graph %s", g->name);
    if (status == TS_OK) {
        for (size_t i = 0; i < n; i++) w.block_of[i] = -1;
        ts__fuse(g, w.value);
        find_gradients(&w);
        walk_region(&w, g->top, 1);
        for (int i = 0; i < g->top->n_arg; i++)
            out->arguments =
                capped_add(out->arguments, (int64_t)ts_type_bytes(&g->top->arg[i]->type));
        status = find_peak(&w, err);
    }
    ts_free(w.value);
    ts_free(w.block_of);
    ts_free(w.place);
    ts_free(w.stamp);
    ts_free(w.gradient);
    ts_free(w.block);
    return status;
}

ts_status ts_footprint_of(const ts_graph *g, int64_t on_chip, ts_footprint *out, ts_error *err)
{
    ts_graph *copy;
    *out = (ts_footprint){0};
    TS_TRY(ts_graph_clone(g, &copy, err));
    ts_status status = ts_graph_lower(copy, NULL, err);
    if (status == TS_OK) status = ts_graph_cse(copy, err);
    if (status == TS_OK) status = ts_graph_dce(copy, err);
    if (status == TS_OK) status = measure(copy, on_chip, out, err);
    ts_graph_free(copy);
    return status;
}
