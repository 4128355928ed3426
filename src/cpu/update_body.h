/* cpu/update_body.h – the gated activation and its gradient, adamw, scatter_add; included by
 * update_*.c.
 *
 * gated and adamw are one pass over their operands: every vector is read before its place is
 * written, so results may lie in the operands' buffers. scatter_add gives each thread columns (or
 * rows, where they are narrow) of the result: ids are added in their order whatever the thread
 * count.
 * adamw: Loshchilov & Hutter 2019; where ok is false p, m and v stay bit for bit. */
#include <math.h>

#include "cpu/fast.h"
#include "cpu/vec_math.h"

/* ---- act(gate) · up -------------------------------------------------------------------------- */

/* act(g) and its derivative; silu or the tanh form of gelu. */
INLINE vf activate(int act, vf g, vf *slope)
{
    const vf one = v_set1(1.0f);
    if (act == TS_SILU) {
        vf s = v_logistic(g);
        *slope = s * v_fma(g, one - s, one);
        return g * s;
    }
    const vf k = v_set1(0.797884561f), cubic = v_set1(0.044715f), half = v_set1(0.5f);
    vf gg = g * g, th = v_tanh(k * v_fma(gg * g, cubic, g));
    vf inner = k * v_fma(gg, v_set1(3 * 0.044715f), one);
    *slope = v_fma(half * g * v_fnma(th, th, one), inner, half * (one + th));
    return half * g * (one + th);
}

INLINE void gated_span(int act, bool h, const ts_cpu_call *c, int64_t begin, int64_t end)
{
    for (int64_t i = begin; i < end; i += VN) {
        vf slope, a = activate(act, v_get_some(h, c->in[0], i, end - i), &slope);
        v_put_some(h, c->out[0], i, a * v_get_some(h, c->in[1], i, end - i), end - i);
    }
}

INLINE void gated_grad_span(int act, bool h, const ts_cpu_call *c, int64_t begin, int64_t end)
{
    for (int64_t i = begin; i < end; i += VN) {
        const int64_t left = end - i;
        vf slope, a = activate(act, v_get_some(h, c->in[0], i, left), &slope);
        vf up = v_get_some(h, c->in[1], i, left), dy = v_get_some(h, c->in[2], i, left);
        v_put_some(h, c->out[0], i, dy * up * slope, left);
        v_put_some(h, c->out[1], i, dy * a, left);
    }
}

#define GATED(name)                                                                                \
    static void name##_part(const ts_cpu_call *c, int64_t begin, int64_t end)                      \
    {                                                                                              \
        const bool h = ts__in_type(c->node, 0)->dtype == TS_BF16,                                  \
                   silu = c->node->attr.gated.act == TS_SILU;                                      \
        if (silu && h)                                                                             \
            name##_span(TS_SILU, true, c, begin, end);                                             \
        else if (silu)                                                                             \
            name##_span(TS_SILU, false, c, begin, end);                                            \
        else if (h)                                                                                \
            name##_span(TS_GELU_TANH, true, c, begin, end);                                        \
        else                                                                                       \
            name##_span(TS_GELU_TANH, false, c, begin, end);                                       \
    }
GATED(gated)
GATED(gated_grad)

static void run_parts(const ts_cpu_call *c, void (*part)(const ts_cpu_call *, int64_t, int64_t),
                      int64_t cost)
{
    const int64_t n = ts_type_elements(ts__in_type(c->node, 0));
    const int threads = ts__threads(n * cost, c->threads);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int t = 0; t < threads; t++) {
        int64_t begin, end;
        ts__split(n, threads, t, 64, &begin, &end);
        if (begin < end) part(c, begin, end);
    }
}

static void run_gated(const ts_cpu_call *c)
{
    run_parts(c, gated_part, 4);
}
static void run_gated_grad(const ts_cpu_call *c)
{
    run_parts(c, gated_grad_part, 4);
}

/* ---- adamw: (p, g, m, v, lr, step, scale, ok) → p, m, v -------------------------------------- */

static void adamw_part(const ts_cpu_call *c, int64_t begin, int64_t end)
{
    const double b1 = c->node->attr.adamw.b1, b2 = c->node->attr.adamw.b2;
    const double lr = *(const float *)c->in[4], step = *(const int32_t *)c->in[5];
    const vf scale = v_set1(*(const float *)c->in[6]), eps = v_set1((float)c->node->attr.adamw.eps);
    const vf vb1 = v_set1((float)b1), nb1 = v_set1((float)(1 - b1)), vb2 = v_set1((float)b2),
             nb2 = v_set1((float)(1 - b2));
    const vf fix1 = v_set1((float)(lr / (1 - pow(b1, step)))),
             fix2 = v_set1((float)(1 / (1 - pow(b2, step))));
    const vf decay = v_set1((float)(lr * c->node->attr.adamw.weight_decay));
    for (int64_t i = begin; i < end; i += VN) {
        const int64_t left = end - i;
        vf p = v_get_some(false, c->in[0], i, left),
           g = v_get_some(false, c->in[1], i, left) * scale;
        vf m = v_fma(vb1, v_get_some(false, c->in[2], i, left), nb1 * g);
        vf v = v_fma(vb2, v_get_some(false, c->in[3], i, left), nb2 * g * g);
        vf by = v_fma(decay, p, m * fix1 / (v_sqrt(v * fix2) + eps));
        v_put_some(false, c->out[0], i, p - by, left);
        v_put_some(false, c->out[1], i, m, left);
        v_put_some(false, c->out[2], i, v, left);
    }
}

static void run_adamw(const ts_cpu_call *c)
{
    if (*(const uint8_t *)c->in[7]) {
        run_parts(c, adamw_part, 4);
        return;
    }
    const size_t bytes = ts_type_bytes(ts__out_type(c->node, 0));
    ts__copy_flat(c->in[0], c->out[0], bytes, c->threads);
    ts__copy_flat(c->in[2], c->out[1], bytes, c->threads);
    ts__copy_flat(c->in[3], c->out[2], bytes, c->threads);
}

/* ---- scatter_add: (ids [n], updates [n, width]) → f32 [rows, width] -------------------------- */

enum { NARROW = 32 }; /* columns a thread, below which rows are dealt out */

INLINE void add_row(bool h, const void *updates, int64_t from, float *to, int64_t n)
{
    for (int64_t i = 0; i < n; i += VN)
        v_put_some(false, to, i,
                   v_get_some(false, to, i, n - i) + v_get_some(h, updates, from + i, n - i),
                   n - i);
}

/* Thread k of `threads`: columns [begin, end) of every row, or all columns of rows k, k + threads,
 * … */
static void scatter_part(const ts_cpu_call *c, int64_t width, bool by_rows, int k, int threads)
{
    const int64_t count = ts_type_elements(ts__in_type(c->node, 0)),
                  rows = ts__out_type(c->node, 0)->dim[0].size;
    const int32_t *ids = c->in[0], skip = (int32_t)c->node->attr.scatter.no_grad_row;
    const bool h = ts__in_type(c->node, 1)->dtype == TS_BF16;
    float *out = c->out[0];
    int64_t begin = 0, end = width;
    if (!by_rows) ts__split(width, threads, k, 16, &begin, &end);
    for (int64_t r = by_rows ? k : 0; r < rows; r += by_rows ? threads : 1)
        memset(out + r * width + begin, 0, (size_t)(end - begin) * 4);
    for (int64_t i = 0; i < count; i++) {
        if (ids[i] < 0 || ids[i] >= rows || ids[i] == skip || (by_rows && ids[i] % threads != k))
            continue;
        float *to = out + ids[i] * width + begin;
        if (h)
            add_row(true, c->in[1], i * width + begin, to, end - begin);
        else
            add_row(false, c->in[1], i * width + begin, to, end - begin);
    }
}

static void run_scatter_add(const ts_cpu_call *c)
{
    const ts_type *t = ts__out_type(c->node, 0);
    const int64_t width = ts__product(t, 1, t->rank), n = ts_type_elements(ts__in_type(c->node, 1));
    const int threads = ts__threads(n + ts_type_elements(t), c->threads);
    const bool by_rows = width < (int64_t)NARROW * threads;
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int k = 0; k < threads; k++) scatter_part(c, width, by_rows, k, threads);
}

static const ts_cpu_kernel gated_kernel = {"ts_cpu_gated_" ISA_TEXT, ts__prepare_plain, run_gated,
                                           NULL, 3};
static const ts_cpu_kernel gated_grad_kernel = {
    "ts_cpu_gated_grad_" ISA_TEXT, ts__prepare_plain, run_gated_grad, NULL, 7 | 7 << 8,
};
static const ts_cpu_kernel adamw_kernel = {
    "ts_cpu_adamw_" ISA_TEXT, ts__prepare_plain, run_adamw, NULL, 1 | 1 << 10 | 1 << 19,
};
static const ts_cpu_kernel scatter_kernel = {"ts_cpu_scatter_add_" ISA_TEXT, ts__prepare_plain,
                                             run_scatter_add, NULL, 0};

const ts_cpu_kernel *ISA(ts__pick_update)(const ts_node *n)
{
    switch (n->op) {
    case TS_OP_gated: return &gated_kernel;
    case TS_OP_gated_grad: return &gated_grad_kernel;
    case TS_OP_adamw: return ts__in_type(n, 1)->dtype == TS_F32 ? &adamw_kernel : NULL;
    case TS_OP_scatter_add: return ts__is_float(ts__in_type(n, 1)->dtype) ? &scatter_kernel : NULL;
    default: return NULL;
    }
}
