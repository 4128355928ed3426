/* cpu/coalesce.c – lets values share memory: removes copies, and lets kernels work in place.
 *
 * A block may be merged into a place in another block when none of their lives meet. Two lives may
 * touch at one position – one read there for the last time, the other written – if that instruction
 * is a kernel or a collective that may write the result over this operand (in_place), and the operand lies exactly
 * where the result will, and no other operand lies in that block elsewhere; or if it is a copy from
 * the one to the other. A value that becomes slice i of a stacked result is written there directly
 * when it is born in that very loop and nothing overwrites it later: the stack is needed from the
 * loop's beginning, so its lives cover the slice's.
 *
 * Order: outputs (donation), new carries, stacked results, initial carries, then in-place kernels from
 * the first to the last, then the copies that were left once more.
 * Never merged away: constants, inputs, outputs; nothing is written into constants and into inputs
 * that no output replaces.
 */
#include "cpu/code.h"

bool ts__code_same_place(const ts_code_ref *a, const ts_code_ref *b)
{
    return a->block == b->block && a->offset == b->offset &&
           memcmp(a->stride, b->stride, sizeof a->stride) == 0;
}

ts_code_ref ts__code_resolve(const ts_code *c, ts_code_ref ref)
{
    while (c->block[ref.block].parent >= 0) {
        const ts_code_block *b = &c->block[ref.block];
        ref.offset += b->offset;
        for (int d = 0; d < TS_CPU_MAX_LOOPS; d++) ref.stride[d] += b->stride[d];
        ref.block = b->parent;
    }
    return ref;
}

static bool has_stride(const ts_code_ref *r)
{
    for (int d = 0; d < TS_CPU_MAX_LOOPS; d++)
        if (r->stride[d]) return true;
    return false;
}

/* Whether i may write result o although it reads operands of the same block. A collective meets
 * the same places on every device, so one device's plan speaks for all. */
static bool may_overwrite(const ts_code *c, const ts_code_instr *i, int o, int reader)
{
    ts_code_ref out = ts__code_resolve(c, i->out[o].ref);
    bool reads = false;
    for (int k = 0; k < i->n_in; k++) {
        ts_code_ref in = ts__code_resolve(c, i->in[k].ref);
        if (in.block != out.block) continue;
        bool allowed = k < 8 && o < 8 && i->in_place >> (o * 8 + k) & 1;
        if (!allowed || i->in[k].bytes != i->out[o].bytes || !ts__code_same_place(&in, &out))
            return false;
        reads |= i->in[k].life == reader;
    }
    return reads;
}

/* Lives that touch at position at: reader is read there for the last time, writer is written. */
static bool contact(const ts_code *c, int32_t at, int reader, int writer)
{
    if (at < 0 || at >= c->n_instr) return false;
    const ts_code_instr *i = c->instr[at];
    for (int o = 0; o < i->n_out; o++) {
        if (i->out[o].life != writer) continue;
        if (i->in_place) return may_overwrite(c, i, o, reader);
        if (i->kind != TS_CODE_COPY || i->in[o].life != reader) return false;
        ts_code_ref in = ts__code_resolve(c, i->in[o].ref),
                    out = ts__code_resolve(c, i->out[o].ref);
        return ts__code_same_place(&in, &out);
    }
    return false;
}

static bool lives_meet(const ts_code *c, int first_a, int first_b)
{
    for (int ia = first_a; ia >= 0; ia = c->life[ia].next)
        for (int ib = first_b; ib >= 0; ib = c->life[ib].next) {
            const ts_code_life *a = &c->life[ia], *b = &c->life[ib];
            if (a->first > b->last || b->first > a->last) continue;
            if (a->last == b->first && contact(c, a->last, ia, ib)) continue;
            if (b->last == a->first && contact(c, b->last, ib, ia)) continue;
            return true;
        }
    return false;
}

/* What must hold before a block can move as a whole: ref is all of a temporary. */
static bool movable(const ts_code *c, const ts_code_ref *ref, size_t bytes)
{
    const ts_code_block *b = &c->block[ref->block];
    return b->kind == TS_BLOCK_TEMP && ref->offset == 0 && !has_stride(ref) && b->bytes == bytes &&
           bytes > 0;
}

static void attach(ts_code *c, int block, const ts_code_ref *to)
{
    ts_code_block *b = &c->block[block];
    b->parent = to->block;
    b->offset = to->offset;
    memcpy(b->stride, to->stride, sizeof b->stride);
}

/* Merges the block of from (resolved, movable) into place to (resolved); false when they conflict. */
static bool merge(ts_code *c, const ts_code_ref *from, const ts_code_ref *to, size_t bytes)
{
    if (from->block == to->block || !movable(c, from, bytes)) return false;
    ts_code_block *s = &c->block[from->block], *d = &c->block[to->block];
    if (d->read_only || has_stride(to)) return false;
    attach(c, from->block, to); /* contact looks at places as they would be */
    if (lives_meet(c, s->first_life, d->first_life)) {
        s->parent = -1;
        s->offset = 0;
        return false;
    }
    c->life[d->last_life].next = s->first_life;
    d->last_life = s->last_life;
    return true;
}

static void merge_either(ts_code *c, const ts_code_arg *a, const ts_code_arg *b)
{
    ts_code_ref ra = ts__code_resolve(c, a->ref), rb = ts__code_resolve(c, b->ref);
    if (a->bytes != b->bytes || merge(c, &ra, &rb, a->bytes)) return;
    merge(c, &rb, &ra, a->bytes);
}

static bool inside(const ts_code *c, int loop, int outer)
{
    while (loop >= 0 && loop != outer) loop = c->loop[loop].parent;
    return loop == outer;
}

/* Slice i of a stacked result is where the value is made. */
static void merge_stack(ts_code *c, const ts_code_instr *i)
{
    ts_code_ref from = ts__code_resolve(c, i->in[0].ref), to = ts__code_resolve(c, i->out[0].ref);
    if (from.block == to.block || !movable(c, &from, i->in[0].bytes)) return;
    ts_code_block *s = &c->block[from.block];
    for (int l = s->first_life; l >= 0; l = c->life[l].next) {
        if (!inside(c, c->life[l].loop, i->loop)) return;
        if (l != i->in[0].life && c->life[l].last > c->life[i->in[0].life].first) return;
    }
    attach(c, from.block, &to);
}

static void merge_copies(ts_code *c, bool inner, bool new_carries)
{
    for (int at = 0; at < c->n_instr; at++) {
        const ts_code_instr *i = c->instr[at];
        if (i->kind != TS_CODE_COPY) continue;
        bool last = at + 1 == c->n_instr;
        bool closes = !last && c->instr[at + 1]->kind == TS_CODE_END;
        if (last == inner || (inner && closes != new_carries)) continue;
        for (int k = 0; k < i->n_in; k++) merge_either(c, &i->in[k], &i->out[k]);
    }
}

static void merge_stacks(ts_code *c)
{
    for (int at = 0; at < c->n_instr; at++)
        if (c->instr[at]->kind == TS_CODE_STACK) merge_stack(c, c->instr[at]);
}

static void merge_in_place(ts_code *c)
{
    for (int at = 0; at < c->n_instr; at++) {
        const ts_code_instr *i = c->instr[at];
        if (!i->in_place) continue;
        for (int o = 0; o < i->n_out && o < 8; o++)
            for (int k = 0; k < i->n_in && k < 8; k++)
                if (i->in_place >> (o * 8 + k) & 1) merge_either(c, &i->in[k], &i->out[o]);
    }
}

void ts__code_coalesce(ts_code *c)
{
    merge_copies(c, false, false); /* outputs */
    merge_copies(c, true, true);   /* new carries */
    merge_stacks(c);
    merge_copies(c, true, false); /* initial carries */
    merge_in_place(c);
    merge_copies(c, false, false);
    merge_copies(c, true, true);
    merge_copies(c, true, false);
}
