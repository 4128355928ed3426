/* cpu/rows_body.h – rms_norm, its gradient, and rope; included by rows_*.c.
 *
 * A row [E] is read twice and fits in the first cache. All inside is f32. Rows are independent, so
 * dx, y and rope have the same bits for any thread count; dw sums rows in blocks, one total a
 * thread, added in thread order: the same bits for the same thread count.
 * rms_norm: Zhang & Sennrich 2019. rope: Su et al. 2021, rotate-half layout. */
#include "cpu/fast.h"
#include "cpu/vec_math.h"

enum { DW_BLOCK = 64 }; /* rows summed before they join the total */

/* Calls body(h, wh, …) with constants: x f32 or bf16, w f32 or bf16. */
#define BY_DTYPE(h, wh, body, ...)                                                                 \
    do {                                                                                           \
        if (!(h) && !(wh))                                                                         \
            body(false, false, __VA_ARGS__);                                                       \
        else if (!(wh))                                                                            \
            body(true, false, __VA_ARGS__);                                                        \
        else if (h)                                                                                \
            body(true, true, __VA_ARGS__);                                                         \
        else                                                                                       \
            body(false, true, __VA_ARGS__);                                                        \
    } while (0)

typedef struct norm {
    const void *x, *w, *dy;
    void *out;
    float *dw;
    int64_t width;
    float eps;
} norm;

static int64_t rows_of(const ts_type *t)
{
    return t->dim[t->rank - 1].size > 0 ? ts__product(t, 0, t->rank - 1) : 0;
}

/* ---- forward --------------------------------------------------------------------------------- */

INLINE float inverse_rms(bool h, const norm *n, int64_t at)
{
    vf a = v_zero(), b = v_zero();
    int64_t i = 0;
    for (; i + 2 * VN <= n->width; i += 2 * VN) {
        vf x = v_get(h, n->x, at + i), y = v_get(h, n->x, at + i + VN);
        a = v_fma(x, x, a);
        b = v_fma(y, y, b);
    }
    for (; i < n->width; i += VN) {
        vf x = v_get_some(h, n->x, at + i, n->width - i);
        a = v_fma(x, x, a);
    }
    return 1.0f / __builtin_sqrtf(v_sum(a + b) / (float)n->width + n->eps);
}

INLINE void norm_rows(bool h, bool wh, const norm *n, int64_t begin, int64_t end)
{
    for (int64_t r = begin; r < end; r++) {
        const int64_t at = r * n->width;
        const vf s = v_set1(inverse_rms(h, n, at));
        for (int64_t i = 0; i < n->width; i += VN) {
            const int64_t left = n->width - i;
            v_put_some(h, n->out, at + i,
                       v_get_some(h, n->x, at + i, left) * s * v_get_some(wh, n->w, i, left), left);
        }
    }
}

static void run_norm(const ts_cpu_call *c)
{
    const ts_type *t = ts__in_type(c->node, 0);
    const int64_t rows = rows_of(t);
    const norm n = {.x = c->in[0],
                    .w = c->in[1],
                    .out = c->out[0],
                    .width = t->dim[t->rank - 1].size,
                    .eps = (float)c->node->attr.rms_norm.eps};
    const bool h = t->dtype == TS_BF16, wh = ts__in_type(c->node, 1)->dtype == TS_BF16;
    const int threads = ts__threads(rows * n.width, c->threads);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int k = 0; k < threads; k++) {
        int64_t begin, end;
        ts__split(rows, threads, k, 1, &begin, &end);
        BY_DTYPE(h, wh, norm_rows, &n, begin, end);
    }
}

/* ---- backward: s = inverse rms; dx = s·w·dy − x·s³·mean(w·dy·x), dw = Σ dy·x·s --------------- */

INLINE void grad_row(bool h, bool wh, const norm *n, int64_t at, float *dw)
{
    vf xx = v_zero(), wdyx = v_zero();
    for (int64_t i = 0; i < n->width; i += VN) {
        const int64_t left = n->width - i;
        vf x = v_get_some(h, n->x, at + i, left), dy = v_get_some(h, n->dy, at + i, left);
        xx = v_fma(x, x, xx);
        wdyx = v_fma(x * dy, v_get_some(wh, n->w, i, left), wdyx);
    }
    const float s = 1.0f / __builtin_sqrtf(v_sum(xx) / (float)n->width + n->eps);
    const vf vs = v_set1(s), vc = v_set1(v_sum(wdyx) / (float)n->width * s * s * s);
    for (int64_t i = 0; i < n->width; i += VN) {
        const int64_t left = n->width - i;
        vf x = v_get_some(h, n->x, at + i, left), sdy = v_get_some(h, n->dy, at + i, left) * vs;
        v_put_some(false, dw, i, v_fma(sdy, x, v_get_some(false, dw, i, left)), left);
        v_put_some(h, n->out, at + i, v_fnma(vc, x, sdy * v_get_some(wh, n->w, i, left)), left);
    }
}

/* dw [2, width]: the total, and the running block's. */
INLINE void grad_rows(bool h, bool wh, const norm *n, int64_t begin, int64_t end, float *dw)
{
    float *block = dw + n->width;
    memset(dw, 0, (size_t)n->width * 4);
    for (int64_t r = begin; r < end;) {
        const int64_t stop = end - r < DW_BLOCK ? end : r + DW_BLOCK;
        memset(block, 0, (size_t)n->width * 4);
        for (; r < stop; r++) grad_row(h, wh, n, r * n->width, block);
        for (int64_t i = 0; i < n->width; i++) dw[i] += block[i];
    }
}

static void run_norm_grad(const ts_cpu_call *c)
{
    const ts_type *t = ts__in_type(c->node, 0);
    const int64_t rows = rows_of(t), width = t->dim[t->rank - 1].size;
    const norm n = {.x = c->in[0],
                    .w = c->in[1],
                    .dy = c->in[2],
                    .out = c->out[0],
                    .width = width,
                    .eps = (float)c->node->attr.rms_norm.eps};
    const bool h = t->dtype == TS_BF16, wh = ts__in_type(c->node, 1)->dtype == TS_BF16;
    const int threads = ts__threads(rows * width, c->threads);
    float *dw = c->scratch, *out = c->out[1];
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int k = 0; k < threads; k++) {
        int64_t begin, end;
        ts__split(rows, threads, k, 1, &begin, &end);
        BY_DTYPE(h, wh, grad_rows, &n, begin, end, dw + 2 * width * k);
    }
    for (int64_t i = 0; i < width; i++) {
        float sum = 0;
        for (int k = 0; k < threads; k++) sum += dw[2 * width * k + i];
        out[i] = sum;
    }
}

static ts_status prepare_norm_grad(const ts_node *n, int threads, ts_cpu_prepared *out,
                                   ts_error *err)
{
    const ts_type *t = ts__in_type(n, 0);
    TS_TRY(ts__prepare_plain(n, threads, out, err));
    out->scratch_bytes = (size_t)t->dim[t->rank - 1].size * 2 * sizeof(float) * (size_t)threads;
    out->flops *= 8;
    return TS_OK;
}

/* ---- rope: x [B,S,…,D], cos and sin [S,D/2] or [B,S,D/2] ------------------------------------- */

INLINE void turn_rows(bool h, const ts_cpu_call *c, int64_t half, int64_t heads, int64_t positions,
                      int64_t begin, int64_t end)
{
    const vf sign = c->node->attr.rope.inverse ? v_set1(-0.0f) : v_zero();
    for (int64_t r = begin; r < end; r++) {
        const int64_t at = r * 2 * half, table = r / heads % positions * half;
        for (int64_t i = 0; i < half; i += VN) {
            const int64_t left = half - i;
            vf cosine = v_get_some(false, c->in[1], table + i, left);
            vf sine = v_xor(v_get_some(false, c->in[2], table + i, left), sign);
            vf a = v_get_some(h, c->in[0], at + i, left),
               b = v_get_some(h, c->in[0], at + half + i, left);
            v_put_some(h, c->out[0], at + i, v_fnma(b, sine, a * cosine), left);
            v_put_some(h, c->out[0], at + half + i, v_fma(a, sine, b * cosine), left);
        }
    }
}

static void run_rope(const ts_cpu_call *c)
{
    const ts_type *x = ts__in_type(c->node, 0);
    const int64_t half = x->dim[x->rank - 1].size / 2, rows = rows_of(x),
                  heads = ts__product(x, 2, x->rank - 1);
    const int64_t positions =
        ts__product(ts__in_type(c->node, 1), 0, ts__in_type(c->node, 1)->rank - 1);
    const int threads = ts__threads(rows * half * 2, c->threads);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int k = 0; k < threads; k++) {
        int64_t begin, end;
        ts__split(rows, threads, k, 1, &begin, &end);
        if (x->dtype == TS_BF16)
            turn_rows(true, c, half, heads, positions, begin, end);
        else
            turn_rows(false, c, half, heads, positions, begin, end);
    }
}

static const ts_cpu_kernel norm_kernel = {"ts_cpu_rms_norm_" ISA_TEXT, ts__prepare_plain, run_norm,
                                          NULL, 1};
static const ts_cpu_kernel norm_grad_kernel = {
    "ts_cpu_rms_norm_grad_" ISA_TEXT, prepare_norm_grad, run_norm_grad, NULL, 1 | 1 << 2,
};
static const ts_cpu_kernel rope_kernel = {"ts_cpu_rope_" ISA_TEXT, ts__prepare_plain, run_rope,
                                          NULL, 1};

const ts_cpu_kernel *ISA(ts__pick_rows)(const ts_node *n)
{
    switch (n->op) {
    case TS_OP_rms_norm: return &norm_kernel;
    case TS_OP_rms_norm_grad: return &norm_grad_kernel;
    case TS_OP_rope: return &rope_kernel;
    default: return NULL;
    }
}
