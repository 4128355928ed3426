/* cpu/reduce_body.h – reduce_sum, reduce_max and argmax of f32 and bf16; included by reduce_*.c.
 *
 * The operand is seen as [outer, red, inner]. Work units are chunks of red whose size depends on
 * the shape alone; their f32 partial results lie in scratch and are combined in order, so the
 * thread count never shows in the bits, and long sums lose little. Wide inner dimensions are cut
 * into columns instead. Not here: reduced axes with a kept one between them, integers (cpu/ref). /
 */
#include "cpu/fast.h"
#include "cpu/vec_math.h"

enum { CHUNK = 16384, COLUMNS = 2048 };

typedef struct view {
    int64_t outer, red, inner;
    int64_t rows, chunks;   /* of red a chunk; chunks of red */
    int64_t width, columns; /* of inner a unit; units across inner */
} view;

/* False when a kept dimension lies between reduced ones. */
static bool view_of(const ts_type *t, const ts_dims *axes, view *v)
{
    bool reduced[TS_MAX_RANK] = {false};
    int first = t->rank, last = -1;
    *v = (view){.outer = 1, .red = 1, .inner = 1};
    for (int i = 0; i < axes->n; i++) reduced[axes->v[i]] = true;
    for (int d = 0; d < t->rank; d++)
        if (reduced[d] && t->dim[d].size != 1) {
            if (first == t->rank) first = d;
            last = d;
        }
    for (int d = 0; d < t->rank; d++) {
        const int64_t size = t->dim[d].size;
        if (d < first)
            v->outer *= size;
        else if (d > last)
            v->inner *= size;
        else if (reduced[d] || size == 1)
            v->red *= size;
        else
            return false;
    }
    if (last < 0) v->inner = v->outer, v->outer = 1;
    v->width = v->inner < COLUMNS ? v->inner : COLUMNS;
    v->rows = v->inner >= COLUMNS ? v->red : CHUNK / (v->inner > 0 ? v->inner : 1);
    if (v->rows < 1) v->rows = 1;
    v->chunks = v->red > 0 ? (v->red + v->rows - 1) / v->rows : 1;
    v->columns = v->width > 0 ? (v->inner + v->width - 1) / v->width : 0;
    return true;
}

INLINE vf join(bool max, vf a, vf b)
{
    if (max) return v_max(a, b);
    return a + b;
}

INLINE vf start(bool max)
{
    return max ? v_set1(-__builtin_inff()) : v_zero();
}

INLINE vf fill_rest(bool max, vf x, int64_t n)
{
    if (!max) return x;
    float buf[VN];
    v_store(buf, x);
    for (int64_t i = n; i < VN; i++) buf[i] = -__builtin_inff();
    return v_load(buf);
}

/* All of x[at, at + n) in one number. */
INLINE float row(bool max, bool h, const void *x, int64_t at, int64_t n)
{
    vf a[4] = {start(max), start(max), start(max), start(max)};
    int64_t i = 0;
    for (; i + 4 * VN <= n; i += 4 * VN)
        UNROLL for (int k = 0; k < 4; k++) a[k] = join(max, a[k], v_get(h, x, at + i + k * VN));
    for (; i + VN <= n; i += VN) a[0] = join(max, a[0], v_get(h, x, at + i));
    if (i < n) a[1] = join(max, a[1], fill_rest(max, v_get_n(h, x, at + i, n - i), n - i));
    vf all = join(max, join(max, a[0], a[1]), join(max, a[2], a[3]));
    if (!max) return v_sum(all);
    return v_any(v_is_nan(all)) ? __builtin_nanf("") : v_max_of(all);
}

/* out[c] = over r of x[at + r·stride + c] for one vector of columns. */
INLINE vf column(bool max, bool h, const void *x, int64_t at, int64_t stride, int64_t rows,
                 int64_t n)
{
    vf a = start(max), b = start(max);
    int64_t r = 0;
    if (n == VN)
        for (; r + 2 <= rows; r += 2) {
            a = join(max, a, v_get(h, x, at + r * stride));
            b = join(max, b, v_get(h, x, at + (r + 1) * stride));
        }
    for (; r < rows; r++) a = join(max, a, v_get_n(h, x, at + r * stride, n));
    return join(max, a, b);
}

/* One unit into out [width] (f32 partial, or the result itself). */
INLINE void unit(bool max, bool h, const view *v, const void *x, int64_t u, void *out, bool out_h,
                 int64_t out_at)
{
    const int64_t col = u % v->columns * v->width, chunk = u / v->columns % v->chunks,
                  o = u / v->columns / v->chunks;
    const int64_t r0 = chunk * v->rows, rows = v->red - r0 < v->rows ? v->red - r0 : v->rows;
    const int64_t at = (o * v->red + r0) * v->inner + col;
    const int64_t width = v->inner - col < v->width ? v->inner - col : v->width;
    if (v->inner == 1) {
        const float r = row(max, h, x, at, rows);
        if (out_h)
            ((uint16_t *)out)[out_at] = ts_bf16_from_f32(r);
        else
            ((float *)out)[out_at] = r;
        return;
    }
    for (int64_t i = 0; i < width; i += VN) {
        const int64_t n = width - i < VN ? width - i : VN;
        v_put_n(out_h, out, out_at + i, column(max, h, x, at + i, v->inner, rows, n), n);
    }
}

INLINE void units(bool max, bool h, const view *v, const ts_cpu_call *c, bool partial)
{
    const bool out_h = h && !partial;
    void *out = partial ? c->scratch : c->out[0];
    const int64_t n = v->outer * v->chunks * v->columns;
    const int use = ts__threads(v->outer * v->red * v->inner, c->threads);
#pragma omp parallel for num_threads(use) if (use > 1)
    for (int64_t u = 0; u < n; u++)
        unit(max, h, v, c->in[0], u, out, out_h,
             u / v->columns * v->inner + u % v->columns * v->width);
}

/* Partials [outer, chunks, inner] to the result [outer, inner]. */
static void combine(const view *v, const ts_cpu_call *c, bool max, bool h)
{
    const float *p = c->scratch;
    for (int64_t o = 0; o < v->outer; o++, p += v->chunks * v->inner)
        for (int64_t i = 0; i < v->inner; i++) {
            double r = p[i];
            for (int64_t k = 1; k < v->chunks; k++) {
                const double y = p[k * v->inner + i];
                if (!max)
                    r += y;
                else if (r == r && !(y <= r))
                    r = y;
            }
            if (h)
                ((uint16_t *)c->out[0])[o * v->inner + i] = ts_bf16_from_f32((float)r);
            else
                ((float *)c->out[0])[o * v->inner + i] = (float)r;
        }
}

static void run_reduce(const ts_cpu_call *c)
{
    view v;
    view_of(ts__in_type(c->node, 0), &c->node->attr.reduce.axes, &v);
    const bool max = c->node->op == TS_OP_reduce_max, h = ts__in_type(c->node, 0)->dtype == TS_BF16;
    const bool partial = v.chunks > 1;
    if (max && h)
        units(true, true, &v, c, partial);
    else if (max)
        units(true, false, &v, c, partial);
    else if (h)
        units(false, true, &v, c, partial);
    else
        units(false, false, &v, c, partial);
    if (partial) combine(&v, c, max, h);
}

static ts_status prepare_reduce(const ts_node *n, int threads, ts_cpu_prepared *out, ts_error *err)
{
    view v;
    (void)threads;
    (void)err;
    view_of(ts__in_type(n, 0), &n->attr.reduce.axes, &v);
    if (v.chunks > 1) out->scratch_bytes = (size_t)(v.outer * v.chunks * v.inner) * sizeof(float);
    out->flops = (double)ts_type_elements(ts__in_type(n, 0));
    out->bytes = ts__node_bytes(n);
    return TS_OK;
}

/* ---- argmax of the last axis ----------------------------------------------------------------- */

INLINE int32_t argmax_row(bool h, const void *x, int64_t at, int64_t n)
{
    const float best = row(true, h, x, at, n);
    for (int64_t i = 0; i < n; i++) {
        const float y = v_get1(h, x, at + i);
        if (y == best || y != y) return (int32_t)i;
    }
    return 0;
}

static void run_argmax(const ts_cpu_call *c)
{
    const ts_type *t = ts__in_type(c->node, 0);
    const int64_t n = t->dim[t->rank - 1].size, rows = ts__product(t, 0, t->rank - 1);
    const int use = ts__threads(rows * n, c->threads);
    int32_t *out = c->out[0];
#pragma omp parallel for num_threads(use) if (use > 1)
    for (int64_t r = 0; r < rows; r++)
        out[r] = t->dtype == TS_BF16 ? argmax_row(true, c->in[0], r * n, n)
                                     : argmax_row(false, c->in[0], r * n, n);
}

static const ts_cpu_kernel reduce_kernel = {"ts_cpu_reduce_" ISA_TEXT, prepare_reduce, run_reduce,
                                            NULL, 0};
static const ts_cpu_kernel argmax_kernel = {"ts_cpu_argmax_" ISA_TEXT, ts__prepare_plain,
                                            run_argmax, NULL, 0};

const ts_cpu_kernel *ISA(ts__pick_reduce)(const ts_node *n)
{
    view v;
    if (n->n_in != 1 || !ts__is_float(ts__in_type(n, 0)->dtype)) return NULL;
    const ts_type *t = ts__in_type(n, 0);
    if (n->op == TS_OP_argmax)
        return t->rank > 0 && n->attr.axis.axis == t->rank - 1 && t->dim[t->rank - 1].size > 0
                   ? &argmax_kernel
                   : NULL;
    if (n->op != TS_OP_reduce_sum && n->op != TS_OP_reduce_max) return NULL;
    return view_of(t, &n->attr.reduce.axes, &v) ? &reduce_kernel : NULL;
}
