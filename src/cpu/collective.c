/* cpu/collective.c – collectives among virtual devices: plain functions over all devices' buffers.
 *
 * The devices of a group differ in one coordinate of the graph's mesh. What one sends another is a *block*: rows of
 * contiguous bytes with a stride on each side. A block is cut into pieces that stay in the first cache; threads share
 * (device, piece) pairs, so nothing is copied twice and no thread waits for another.
 *
 * Sums and maxima take the devices in the order of their coordinate, and all of a piece is read before any of it is
 * written: the bits depend on neither threads nor timing, and an all_reduce may work in place, as may a permutation,
 * which goes round its cycles piece by piece. bf16 is summed in f32 and rounded once. Integers wrap.
 *
 * Not here: axes of one device, whose collectives are views (view.c), and where operands and results lie.
 */
#include <string.h>

#include "cpu/collective.h"
#include "cpu/fast.h"

enum { PIECE = 16384, SUM = 2048 }; /* bytes moved, elements summed at a time */

/* ---- what a node asks for --------------------------------------------------------------------- */

bool ts__cpu_axis_of(const ts_graph *g, const ts_node *n, ts_cpu_axis *out)
{
    bool found = false;
    *out = (ts_cpu_axis){.devices = 1, .n = n->attr.collective.n, .stride = 1};
    for (int i = 0; i < g->n_axis; i++) {
        out->devices *= g->axis[i].size;
        if (found)
            out->stride *= g->axis[i].size;
        else
            found = strcmp(g->axis[i].name, n->attr.collective.axis) == 0;
    }
    return found;
}

uint64_t ts__cpu_collective_in_place(const ts_node *n)
{
    return n->op == TS_OP_all_reduce || n->op == TS_OP_collective_permute;
}

/* Appends a dimension of the block unless it continues the one before. */
static void add_dim(ts_cpu_collective *c, int64_t size, int64_t src, int64_t dst)
{
    const int p = c->rank - 1;
    if (size == 1) return;
    if (p >= 0 && c->src[p] == src * size && c->dst[p] == dst * size) {
        c->dim[p] *= size;
        c->src[p] = src;
        c->dst[p] = dst;
        return;
    }
    c->dim[c->rank] = size;
    c->src[c->rank] = src;
    c->dst[c->rank++] = dst;
}

/* shape: of the block; its dimension d is src[d] bytes apart in the sender's tensor, dst[d] in the receiver's. */
static void set_block(ts_cpu_collective *c, const ts_type *shape, const int64_t *src,
                      const int64_t *dst, int64_t piece)
{
    const int64_t bytes = (int64_t)ts_dtype_bytes(shape->dtype);
    c->rank = 0;
    for (int d = 0; d < shape->rank; d++) add_dim(c, shape->dim[d].size, src[d], dst[d]);
    c->run = bytes;
    if (c->rank > 0 && c->src[c->rank - 1] == bytes && c->dst[c->rank - 1] == bytes)
        c->run *= c->dim[--c->rank];
    c->rows = 1;
    for (int d = 0; d < c->rank; d++) c->rows *= c->dim[d];
    c->cut = c->run > piece ? piece : c->run;
    c->cuts = (c->run + c->cut - 1) / c->cut;
    c->bunch = piece / c->run > 1 ? piece / c->run : 1;
    c->pieces = (c->rows + c->bunch - 1) / c->bunch * c->cuts;
}

static void strides(const ts_type *t, int64_t stride[TS_MAX_RANK])
{
    int64_t s = (int64_t)ts_dtype_bytes(t->dtype);
    for (int d = t->rank - 1; d >= 0; d--) {
        stride[d] = s;
        s *= t->dim[d].size;
    }
}

void ts__cpu_collective_make(const ts_node *n, const ts_cpu_axis *axis, ts_isa isa,
                             ts_cpu_collective *c)
{
    const ts_type *x = &n->in[0]->type, *y = &n->out[0]->type;
    const int64_t dim = n->attr.collective.dim, dim2 = n->attr.collective.dim2, devices = axis->n;
    const int64_t bytes = (int64_t)ts_dtype_bytes(x->dtype);
    int64_t from[TS_MAX_RANK], to[TS_MAX_RANK];
    ts_type block = *x;
    *c = (ts_cpu_collective){.axis = *axis, .op = n->op, .dtype = x->dtype, .isa = isa};
    c->max = n->op == TS_OP_all_reduce && n->attr.collective.reduce == 1;
    c->shift = ((n->attr.collective.shift % devices) + devices) % devices;
    strides(x, from);
    strides(y, to);
    if (n->op == TS_OP_reduce_scatter || n->op == TS_OP_all_to_all) {
        block.dim[dim].size /= devices;
        c->src_step = block.dim[dim].size * from[dim];
    }
    if (n->op == TS_OP_all_gather) c->dst_step = block.dim[dim].size * to[dim];
    if (n->op == TS_OP_all_to_all) c->dst_step = block.dim[dim2].size * to[dim2];
    const bool sums = n->op == TS_OP_all_reduce || n->op == TS_OP_reduce_scatter;
    set_block(c, &block, from, to, sums ? SUM * bytes : PIECE);
}

/* ---- pieces ----------------------------------------------------------------------------------- */

/* Rows [row, row + rows) of a block, of each the bytes [at, at + bytes). */
typedef struct piece {
    int64_t row, rows, at, bytes;
} piece;

static piece piece_of(const ts_cpu_collective *c, int64_t i)
{
    const int64_t row = i / c->cuts * c->bunch, at = i % c->cuts * c->cut;
    return (piece){row, c->rows - row < c->bunch ? c->rows - row : c->bunch, at,
                   c->run - at < c->cut ? c->run - at : c->cut};
}

/* Walks the rows of a piece: where each begins on the two sides. */
typedef struct walk {
    int64_t index[TS_MAX_RANK], src, dst;
} walk;

static walk walk_from(const ts_cpu_collective *c, const piece *p)
{
    walk w = {.src = p->at, .dst = p->at};
    int64_t row = p->row;
    for (int d = c->rank - 1; d >= 0; d--) {
        w.index[d] = row % c->dim[d];
        row /= c->dim[d];
        w.src += w.index[d] * c->src[d];
        w.dst += w.index[d] * c->dst[d];
    }
    return w;
}

static void walk_on(const ts_cpu_collective *c, walk *w)
{
    for (int d = c->rank - 1; d >= 0; d--) {
        w->src += c->src[d];
        w->dst += c->dst[d];
        if (++w->index[d] < c->dim[d]) return;
        w->index[d] = 0;
        w->src -= c->dim[d] * c->src[d];
        w->dst -= c->dim[d] * c->dst[d];
    }
}

/* Device `coordinate` of the group that `first` begins. */
static int64_t member(const ts_cpu_axis *a, int64_t first, int64_t coordinate)
{
    return first + coordinate * a->stride;
}

static int64_t group_first(const ts_cpu_axis *a, int64_t group)
{
    return group / a->stride * a->stride * a->n + group % a->stride;
}

/* ---- moves ------------------------------------------------------------------------------------ */

static void copy_piece(const ts_cpu_collective *c, const piece *p, const char *from, char *to)
{
    walk w = walk_from(c, p);
    for (int64_t r = 0; r < p->rows; r++, walk_on(c, &w))
        memcpy(to + w.dst, from + w.src, (size_t)p->bytes);
}

/* One piece of what a device sends: to each of its group, or to the one `shift` further. */
static void send_piece(const ts_cpu_collective *c, int64_t device, const piece *p,
                       void *const *from, void *const *to)
{
    const ts_cpu_axis *a = &c->axis;
    const int64_t me = ts__cpu_coordinate(a, device), first = device - me * a->stride;
    if (c->op == TS_OP_collective_permute) {
        copy_piece(c, p, from[device], to[member(a, first, (me + c->shift) % a->n)]);
        return;
    }
    for (int64_t k = 0; k < a->n; k++)
        copy_piece(c, p, (const char *)from[device] + k * c->src_step,
                   (char *)to[member(a, first, k)] + me * c->dst_step);
}

/* One piece of a whole group, in place: round each cycle against the shift, so that only one piece is kept aside. */
static void rotate_piece(const ts_cpu_collective *c, int64_t group, const piece *p,
                         void *const *data)
{
    const ts_cpu_axis *a = &c->axis;
    const int64_t first = group_first(a, group), n = a->n;
    const size_t bytes = (size_t)p->bytes;
    char kept[PIECE];
    int64_t left = n;
    for (int64_t start = 0; left > 0; start++) {
        int64_t to = start;
        memcpy(kept, (char *)data[member(a, first, start)] + p->at, bytes);
        for (left--;; left--) {
            const int64_t from = (to - c->shift + n) % n;
            if (from == start) break;
            memcpy((char *)data[member(a, first, to)] + p->at,
                   (char *)data[member(a, first, from)] + p->at, bytes);
            to = from;
        }
        memcpy((char *)data[member(a, first, to)] + p->at, kept, bytes);
    }
}

static void move(const ts_cpu_collective *c, void *const *from, void *const *to, int threads)
{
    const bool in_place = from[0] == to[0], permutes = c->op == TS_OP_collective_permute;
    const int64_t senders = c->axis.devices / (in_place ? c->axis.n : 1);
    const int use = ts__threads(c->axis.devices * c->rows * c->run / 4, threads);
    if (in_place && c->shift == 0) return;
    TS_ASSERT(!in_place || permutes);
#pragma omp parallel for num_threads(use) if (use > 1) schedule(static)
    for (int64_t i = 0; i < senders * c->pieces; i++) {
        const piece p = piece_of(c, i % c->pieces);
        if (in_place)
            rotate_piece(c, i / c->pieces, &p, to);
        else
            send_piece(c, i / c->pieces, &p, from, to);
    }
}

/* ---- sums and maxima -------------------------------------------------------------------------- */

typedef union numbers {
    float f[SUM];
    int32_t i[SUM];
    uint32_t u[SUM];
} numbers;

/* The inner loop has a fixed length so that -O2 turns it into vectors. */
#define EACH(expression)                                                                           \
    do {                                                                                           \
        int64_t k = 0;                                                                             \
        for (; k + 16 <= n; k += 16)                                                               \
            for (int64_t j = k; j < k + 16; j++) expression;                                       \
        for (int64_t j = k; j < n; j++) expression;                                                \
    } while (0)

static void join_f32(float *restrict s, const float *restrict v, int64_t n, bool max)
{
    if (max)
        EACH(s[j] = v[j] > s[j] || v[j] != v[j] ? v[j] : s[j]); /* a NaN stays */
    else
        EACH(s[j] += v[j]);
}

static void join_i32(int32_t *restrict s, const int32_t *restrict v, int64_t n)
{
    EACH(s[j] = v[j] > s[j] ? v[j] : s[j]);
}

static void join_u32(uint32_t *restrict s, const uint32_t *restrict v, int64_t n, bool max)
{
    if (max)
        EACH(s[j] = v[j] > s[j] ? v[j] : s[j]);
    else
        EACH(s[j] += v[j]);
}

static void widen(ts_isa isa, const uint16_t *x, float *y, int64_t n)
{
    if (isa >= TS_ISA_AVX2)
        ts__widen(isa, x, y, n);
    else
        for (int64_t i = 0; i < n; i++) y[i] = ts_bf16_to_f32(x[i]);
}

static void narrow(ts_isa isa, const float *x, uint16_t *y, int64_t n)
{
    if (isa >= TS_ISA_AVX2)
        ts__narrow(isa, x, y, n);
    else
        for (int64_t i = 0; i < n; i++) y[i] = ts_bf16_from_f32(x[i]);
}

/* s[at …] joined with n elements of x; the first one to come is taken as it is. */
static void join(const ts_cpu_collective *c, numbers *s, int64_t at, const void *x, int64_t n,
                 bool first)
{
    float wide[SUM];
    if (c->dtype == TS_BF16) {
        widen(c->isa, x, first ? s->f + at : wide, n);
        if (!first) join_f32(s->f + at, wide, n, c->max);
    } else if (first)
        memcpy(s->u + at, x, (size_t)n * 4);
    else if (c->dtype == TS_F32)
        join_f32(s->f + at, x, n, c->max);
    else if (c->dtype == TS_I32 && c->max)
        join_i32(s->i + at, x, n);
    else
        join_u32(s->u + at, x, n, c->max); /* sums wrap, with or without a sign */
}

static void store(const ts_cpu_collective *c, const numbers *s, int64_t at, void *to, int64_t n)
{
    if (c->dtype == TS_BF16)
        narrow(c->isa, s->f + at, to, n);
    else
        memcpy(to, s->u + at, (size_t)n * 4);
}

/* One piece of the group's sum, for device `receiver` of it, or for all of them when that is −1. */
static void sum_piece(const ts_cpu_collective *c, int64_t first, int64_t receiver, const piece *p,
                      void *const *from, void *const *to)
{
    const ts_cpu_axis *a = &c->axis;
    const int64_t n = p->bytes / (int64_t)ts_dtype_bytes(c->dtype), src = receiver < 0 ? 0 : receiver;
    numbers s;
    for (int64_t k = 0; k < a->n; k++) {
        const char *x = (const char *)from[member(a, first, k)] + src * c->src_step;
        walk w = walk_from(c, p);
        for (int64_t r = 0; r < p->rows; r++, walk_on(c, &w)) join(c, &s, r * n, x + w.src, n, k == 0);
    }
    for (int64_t k = 0; k < a->n; k++) {
        if (receiver >= 0 && k != receiver) continue;
        walk w = walk_from(c, p);
        for (int64_t r = 0; r < p->rows; r++, walk_on(c, &w))
            store(c, &s, r * n, (char *)to[member(a, first, k)] + w.dst, n);
    }
}

static void sum(const ts_cpu_collective *c, void *const *from, void *const *to, int threads)
{
    const ts_cpu_axis *a = &c->axis;
    const bool scatters = c->op == TS_OP_reduce_scatter;
    const int64_t receivers = scatters ? a->devices : a->devices / a->n;
    const int use = ts__threads(a->devices * c->rows * c->run / 4, threads);
#pragma omp parallel for num_threads(use) if (use > 1) schedule(static)
    for (int64_t i = 0; i < receivers * c->pieces; i++) {
        const piece p = piece_of(c, i % c->pieces);
        const int64_t who = i / c->pieces, me = scatters ? ts__cpu_coordinate(a, who) : -1;
        sum_piece(c, scatters ? who - me * a->stride : group_first(a, who), me, &p, from, to);
    }
}

void ts__cpu_collective_run(const ts_cpu_collective *c, void *const *from, void *const *to,
                            int threads)
{
    if (c->op == TS_OP_all_reduce || c->op == TS_OP_reduce_scatter)
        sum(c, from, to, threads);
    else
        move(c, from, to, threads);
}
