/* cpu/move.c – ops that only move elements, and the strided copy behind them.
 *
 * A copy is a list of dimensions with a stride on each side; neighbours that form one stride are
 * merged first, so most copies end as a few long memcpys. Where the contiguous direction of the
 * source is not the destination's last, tiles keep both sides in cache. dtypes are just bytes here.
 * Invariant: source and destination do not overlap, except for dynamic_update in its operand's
 * buffer. */
#include "cpu/fast.h"

enum { TILE = 16 };

/* ---- the strided copy ------------------------------------------------------------------------ */

static ts__copy merged(const ts__copy *c)
{
    ts__copy m = {.bytes = c->bytes};
    for (int i = 0; i < c->rank; i++) {
        if (c->dim[i] == 1) continue;
        const int p = m.rank - 1;
        if (p >= 0 && m.src[p] == c->src[i] * c->dim[i] && m.dst[p] == c->dst[i] * c->dim[i]) {
            m.dim[p] *= c->dim[i];
            m.src[p] = c->src[i], m.dst[p] = c->dst[i];
            continue;
        }
        m.dim[m.rank] = c->dim[i], m.src[m.rank] = c->src[i], m.dst[m.rank] = c->dst[i];
        m.rank++;
    }
    if (m.rank == 0) m.dim[0] = 1, m.src[0] = m.dst[0] = 1, m.rank = 1;
    return m;
}

#define COPY_ROW(T)                                                                                \
    do {                                                                                           \
        const T *s = src;                                                                          \
        T *d = dst;                                                                                \
        if (ss == 0)                                                                               \
            for (int64_t i = 0; i < n; i++) d[i * ds] = *s;                                        \
        else                                                                                       \
            for (int64_t i = 0; i < n; i++) d[i * ds] = s[i * ss];                                 \
    } while (0)

static void copy_row(const void *src, int64_t ss, void *dst, int64_t ds, int64_t n, size_t bytes)
{
    if (ss == 1 && ds == 1)
        memcpy(dst, src, (size_t)n * bytes);
    else if (bytes == 4)
        COPY_ROW(uint32_t);
    else if (bytes == 2)
        COPY_ROW(uint16_t);
    else
        COPY_ROW(uint8_t);
}

/* dst[r·ds + c] = src[c·ss + r] for one tile. */
#define TURN_TILE(T)                                                                               \
    do {                                                                                           \
        const T *s = src;                                                                          \
        T *d = dst;                                                                                \
        for (int64_t r = 0; r < rows; r++)                                                         \
            for (int64_t c = 0; c < cols; c++) d[r * ds + c] = s[c * ss + r];                      \
    } while (0)

static void turn_tile(const void *src, int64_t ss, void *dst, int64_t ds, int64_t rows,
                      int64_t cols, size_t bytes)
{
    if (bytes == 4)
        TURN_TILE(uint32_t);
    else if (bytes == 2)
        TURN_TILE(uint16_t);
    else
        TURN_TILE(uint8_t);
}

/* Offsets of the index-th element of the dims but for those in skip (bits). */
static void offsets(const ts__copy *c, unsigned skip, int64_t index, int64_t *src, int64_t *dst)
{
    *src = *dst = 0;
    for (int i = c->rank - 1; i >= 0; i--) {
        if (skip >> i & 1) continue;
        *src += index % c->dim[i] * c->src[i];
        *dst += index % c->dim[i] * c->dst[i];
        index /= c->dim[i];
    }
}

/* Dimension `turn` is contiguous in the source, the last one in the destination. */
static void copy_turned(const ts__copy *c, int turn, const char *src, char *dst, int threads)
{
    const int last = c->rank - 1;
    const int64_t rows = c->dim[turn], cols = c->dim[last], blocks = (rows + TILE - 1) / TILE;
    int64_t outer = 1;
    for (int i = 0; i < last; i++) outer *= i == turn ? 1 : c->dim[i];
    const int use = ts__threads(outer * rows * cols, threads);
#pragma omp parallel for num_threads(use) if (use > 1)
    for (int64_t u = 0; u < outer * blocks; u++) {
        int64_t s0, d0, r = u % blocks * TILE;
        const int64_t n = rows - r < TILE ? rows - r : TILE;
        offsets(c, 1u << turn | 1u << last, u / blocks, &s0, &d0);
        for (int64_t k = 0; k < cols; k += TILE) {
            const int64_t m = cols - k < TILE ? cols - k : TILE;
            turn_tile(src + (s0 + r + k * c->src[last]) * (int64_t)c->bytes, c->src[last],
                      dst + (d0 + r * c->dst[turn] + k) * (int64_t)c->bytes, c->dst[turn], n, m,
                      c->bytes);
        }
    }
}

static void copy_rows(const ts__copy *c, const char *src, char *dst, int threads)
{
    const int last = c->rank - 1;
    int64_t outer = 1;
    for (int i = 0; i < last; i++) outer *= c->dim[i];
    const int use = ts__threads(outer * c->dim[last], threads);
    /* Few rows: every thread takes a part of each. */
    const bool split_rows = outer < 4 * use;
#pragma omp parallel for num_threads(use) if (use > 1)
    for (int t = 0; t < use; t++) {
        int64_t from = 0, to = outer, begin = 0, end = c->dim[last], s0, d0;
        if (split_rows)
            ts__split(c->dim[last], use, t, 64, &begin, &end);
        else
            ts__split(outer, use, t, 1, &from, &to);
        for (int64_t u = from; u < to; u++) {
            offsets(c, 1u << last, u, &s0, &d0);
            copy_row(src + (s0 + begin * c->src[last]) * (int64_t)c->bytes, c->src[last],
                     dst + (d0 + begin * c->dst[last]) * (int64_t)c->bytes, c->dst[last],
                     end - begin, c->bytes);
        }
    }
}

void ts__copy_run(const ts__copy *copy, const void *src, void *dst, int threads)
{
    for (int i = 0; i < copy->rank; i++)
        if (copy->dim[i] == 0) return;
    const ts__copy c = merged(copy);
    const int last = c.rank - 1;
    if (c.src[last] != 1 && c.src[last] != 0 && c.dst[last] == 1)
        for (int i = 0; i < last; i++)
            if (c.src[i] == 1) {
                copy_turned(&c, i, src, dst, threads);
                return;
            }
    copy_rows(&c, src, dst, threads);
}

void ts__copy_flat(const void *src, void *dst, size_t bytes, int threads)
{
    if (src == dst || bytes == 0) return;
    const ts__copy c = {.rank = 1, .dim = {(int64_t)bytes}, .src = {1}, .dst = {1}, .bytes = 1};
    ts__copy_run(&c, src, dst, threads);
}

/* ---- ops that are one copy ------------------------------------------------------------------- */

static void dense(const ts_type *t, int64_t stride[TS_MAX_RANK])
{
    int64_t s = 1;
    for (int d = t->rank - 1; d >= 0; d--) {
        stride[d] = s;
        s *= t->dim[d].size;
    }
}

/* All of the result, dense; source strides still to be set. */
static ts__copy into_result(const ts_node *n)
{
    const ts_type *t = ts__out_type(n, 0);
    ts__copy c = {.rank = t->rank, .bytes = ts_dtype_bytes(t->dtype)};
    for (int i = 0; i < t->rank; i++) c.dim[i] = t->dim[i].size;
    dense(t, c.dst);
    return c;
}

static void run_transpose(const ts_cpu_call *c)
{
    int64_t stride[TS_MAX_RANK];
    ts__copy copy = into_result(c->node);
    dense(ts__in_type(c->node, 0), stride);
    for (int i = 0; i < copy.rank; i++) copy.src[i] = stride[c->node->attr.transpose.perm.v[i]];
    ts__copy_run(&copy, c->in[0], c->out[0], c->threads);
}

static void run_broadcast(const ts_cpu_call *c)
{
    int64_t stride[TS_MAX_RANK];
    ts__copy copy = into_result(c->node);
    dense(ts__in_type(c->node, 0), stride);
    for (int i = 0; i < c->node->attr.broadcast.map.n; i++)
        copy.src[c->node->attr.broadcast.map.v[i]] = stride[i];
    ts__copy_run(&copy, c->in[0], c->out[0], c->threads);
}

static void run_copy(const ts_cpu_call *c)
{
    for (int i = 0; i < c->node->n_in; i++)
        ts__copy_flat(c->in[i], c->out[i], ts_type_bytes(ts__out_type(c->node, i)), c->threads);
}

/* ---- ops along one axis: outer rows of axis · inner elements --------------------------------- */

typedef struct axis_view {
    int64_t outer, size, inner;
    size_t bytes;
} axis_view;

static axis_view view_of(const ts_type *t, int64_t axis)
{
    return (axis_view){ts__product(t, 0, (int)axis), t->dim[axis].size,
                       ts__product(t, (int)axis + 1, t->rank), ts_dtype_bytes(t->dtype)};
}

/* `size` elements of the axis from from_at in `from` to to_at in `to`. */
static void copy_axis(axis_view from, int64_t from_at, const void *src, axis_view to, int64_t to_at,
                      void *dst, int64_t size, int threads)
{
    const ts__copy c = {.rank = 2,
                        .dim = {from.outer, size * from.inner},
                        .src = {from.size * from.inner, 1},
                        .dst = {to.size * to.inner, 1},
                        .bytes = from.bytes};
    ts__copy_run(&c, (const char *)src + from_at * from.inner * (int64_t)from.bytes,
                 (char *)dst + to_at * to.inner * (int64_t)to.bytes, threads);
}

static void run_slice(const ts_cpu_call *c)
{
    const int64_t axis = c->node->attr.slice.axis;
    const axis_view x = view_of(ts__in_type(c->node, 0), axis),
                    y = view_of(ts__out_type(c->node, 0), axis);
    copy_axis(x, c->node->attr.slice.start, c->in[0], y, 0, c->out[0], y.size, c->threads);
}

static void run_concat(const ts_cpu_call *c)
{
    const int64_t axis = c->node->attr.axis.axis;
    const axis_view y = view_of(ts__out_type(c->node, 0), axis);
    int64_t at = 0;
    for (int i = 0; i < c->node->n_in; i++) {
        const axis_view x = view_of(ts__in_type(c->node, i), axis);
        copy_axis(x, 0, c->in[i], y, at, c->out[0], x.size, c->threads);
        at += x.size;
    }
}

static int64_t clamped(const ts_cpu_call *c, int operand, int64_t most)
{
    const int32_t start = *(const int32_t *)c->in[operand];
    return start < 0 ? 0 : start > most ? most : start;
}

static void run_dynamic_slice(const ts_cpu_call *c)
{
    const int64_t axis = c->node->attr.dynamic.axis;
    const axis_view x = view_of(ts__in_type(c->node, 0), axis),
                    y = view_of(ts__out_type(c->node, 0), axis);
    copy_axis(x, clamped(c, 1, x.size - y.size), c->in[0], y, 0, c->out[0], y.size, c->threads);
}

static void run_dynamic_update(const ts_cpu_call *c)
{
    const int64_t axis = c->node->attr.dynamic.axis;
    const axis_view u = view_of(ts__in_type(c->node, 1), axis),
                    y = view_of(ts__out_type(c->node, 0), axis);
    ts__copy_flat(c->in[0], c->out[0], ts_type_bytes(ts__out_type(c->node, 0)), c->threads);
    copy_axis(u, 0, c->in[1], y, clamped(c, 2, y.size - u.size), c->out[0], u.size, c->threads);
}

static void run_take(const ts_cpu_call *c)
{
    const ts_type *table = ts__in_type(c->node, 0);
    const int64_t rows = table->dim[0].size, count = ts_type_elements(ts__in_type(c->node, 1));
    const size_t bytes = (size_t)ts__product(table, 1, table->rank) * ts_dtype_bytes(table->dtype);
    const int32_t *ids = c->in[1];
    const int use = ts__threads(count * (int64_t)bytes / 4, c->threads);
#pragma omp parallel for num_threads(use) if (use > 1)
    for (int64_t i = 0; i < count; i++) {
        char *to = (char *)c->out[0] + (size_t)i * bytes;
        if (ids[i] >= 0 && ids[i] < rows)
            memcpy(to, (const char *)c->in[0] + (size_t)ids[i] * bytes, bytes);
        else
            memset(to, 0, bytes);
    }
}

/* ---- choosing -------------------------------------------------------------------------------- */

static const ts_cpu_kernel transpose_kernel = {"ts_cpu_transpose", ts__prepare_plain, run_transpose,
                                               NULL, 0};
static const ts_cpu_kernel broadcast_kernel = {"ts_cpu_broadcast", ts__prepare_plain, run_broadcast,
                                               NULL, 0};
static const ts_cpu_kernel copy_kernel = {"ts_cpu_copy", ts__prepare_plain, run_copy, NULL, 1};
static const ts_cpu_kernel slice_kernel = {"ts_cpu_slice", ts__prepare_plain, run_slice, NULL, 0};
static const ts_cpu_kernel concat_kernel = {"ts_cpu_concat", ts__prepare_plain, run_concat, NULL,
                                            0};
static const ts_cpu_kernel dynamic_slice_kernel = {"ts_cpu_dynamic_slice", ts__prepare_plain,
                                                   run_dynamic_slice, NULL, 0};
static const ts_cpu_kernel dynamic_update_kernel = {"ts_cpu_dynamic_update", ts__prepare_plain,
                                                    run_dynamic_update, NULL, 1};
static const ts_cpu_kernel take_kernel = {"ts_cpu_take", ts__prepare_plain, run_take, NULL, 0};

const ts_cpu_kernel *ts__pick_move(const ts_node *n)
{
    switch (n->op) {
    case TS_OP_transpose: return &transpose_kernel;
    case TS_OP_broadcast: return &broadcast_kernel;
    case TS_OP_reshape: return &copy_kernel;
    case TS_OP_slice: return &slice_kernel;
    case TS_OP_concat: return &concat_kernel;
    case TS_OP_dynamic_slice: return &dynamic_slice_kernel;
    case TS_OP_dynamic_update: return &dynamic_update_kernel;
    case TS_OP_take: return &take_kernel;
    default: return NULL;
    }
}
