/* cpu/grouped.c – grouped_dot and its gradient: the rows of each expert times the expert's matrix.
 *
 * How many rows an expert has is known in the step, and nothing may be made there: so there is one
 * product (gemm.c) for each of a few heights, made in prepare, and an expert's rows are cut into
 * panels of them, tallest first. Blocks of expert_rows are multiples of 8, so the height 1 is for
 * offsets of other origin. Rows of no expert are never read; their results are zero. dx takes the
 * same panels; dw adds them up in order, in f32. Experts go one after the other and each product
 * uses all threads: any run gives the same bits. Not here: the order of rows (cpu/ref/expert.c). */
#include "cpu/fast.h"

enum { X, W, OFFSETS, DY }; /* operands; the first three in forward */
enum { HEIGHTS = 4 };
static const int64_t heights[HEIGHTS] = {256, 64, TS_EXPERT_ALIGN, 1};

typedef struct grouped {
    int64_t R, X, F, E;
    size_t bytes;                                     /* of an element of x, w, y */
    ts__gemm *y[HEIGHTS], *dx[HEIGHTS], *dw[HEIGHTS]; /* NULL: taller than R, or not asked for */
    double flops;                                     /* of the last run */
} grouped;

double ts__grouped_flops(const void *state)
{
    return ((const grouped *)state)->flops;
}

/* ---- prepare --------------------------------------------------------------------------------- */

static void release(void *state)
{
    grouped *s = state;
    for (int i = 0; i < HEIGHTS; i++) {
        ts__gemm_free(s->y[i]);
        ts__gemm_free(s->dx[i]);
        ts__gemm_free(s->dw[i]);
    }
    ts_free(s);
}

/* One product; *most becomes the largest scratch. */
static ts_status product(const ts__gemm_spec *spec, ts_isa isa, int threads, ts__gemm **out,
                         size_t *most, ts_error *err)
{
    TS_TRY(ts__gemm_new(spec, isa, threads, out, err));
    const size_t scratch = ts__gemm_scratch(*out);
    if (scratch > *most) *most = scratch;
    return TS_OK;
}

static ts_status products(grouped *s, ts_dtype t, bool grad, int i, ts_isa isa, int threads,
                          size_t *most, ts_error *err)
{
    const int64_t m = heights[i], F = s->F, E = s->E;
    /* [m,E]·[E,F], [m,F]·[F,E] and [F,m]·[m,E]; w is [F,E]. */
    const ts__gemm_spec y = {
        .m = m, .n = F, .k = E, .x_m = E, .x_k = 1, .y_k = 1, .y_n = E, .x = t, .y = t, .out = t};
    const ts__gemm_spec dx = {
        .m = m, .n = E, .k = F, .x_m = F, .x_k = 1, .y_k = E, .y_n = 1, .x = t, .y = t, .out = t};
    const ts__gemm_spec dw = {.m = F,
                              .n = E,
                              .k = m,
                              .x_m = 1,
                              .x_k = F,
                              .y_k = E,
                              .y_n = 1,
                              .x = t,
                              .y = t,
                              .out = TS_F32,
                              .accumulate = true};
    if (!grad) return product(&y, isa, threads, &s->y[i], most, err);
    TS_TRY(product(&dx, isa, threads, &s->dx[i], most, err));
    return product(&dw, isa, threads, &s->dw[i], most, err);
}

static ts_status prepare(const ts_node *n, bool grad, ts_isa isa, int threads, ts_cpu_prepared *out,
                         ts_error *err)
{
    const ts_type *x = ts__in_type(n, X), *w = ts__in_type(n, W);
    grouped *s = ts_alloc_zero(sizeof *s);
    if (!s) return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "no memory for the plan of grouped_dot");
    s->R = x->dim[0].size, s->E = x->dim[1].size;
    s->X = w->dim[0].size, s->F = w->dim[1].size;
    s->bytes = ts_dtype_bytes(x->dtype);
    size_t most = 0;
    for (int i = 0; i < HEIGHTS; i++) {
        if (heights[i] > s->R) continue;
        const ts_status status = products(s, x->dtype, grad, i, isa, threads, &most, err);
        if (status == TS_OK) continue;
        release(s);
        return status;
    }
    out->scratch_bytes = most;
    out->state = s;
    out->flops = (grad ? 4.0 : 2.0) * (double)s->R * (double)s->F * (double)s->E;
    out->bytes = ts__node_bytes(n);
    return TS_OK;
}

/* ---- running --------------------------------------------------------------------------------- */

typedef void panel_fn(const ts_cpu_call *c, grouped *s, int i, int64_t row, int64_t expert);

static char *part(const void *p, int64_t element, size_t bytes)
{
    return (char *)(uintptr_t)p + (size_t)element * bytes;
}

/* An offset raised to the one before and cut to [0, R]. */
static int64_t raised(int64_t before, int32_t offset, int64_t R)
{
    const int64_t o = offset < before ? before : offset;
    return o < R ? o : R;
}

/* Every panel of every expert; rows of result 0, `width` elements each, are zero where none is. */
static void each_panel(const ts_cpu_call *c, grouped *s, int64_t width, panel_fn *run)
{
    const int32_t *offset = c->in[OFFSETS];
    const size_t row_bytes = (size_t)width * s->bytes;
    int64_t row = raised(0, offset[0], s->R);
    memset(c->out[0], 0, (size_t)row * row_bytes);
    s->flops = 0;
    for (int64_t e = 0; e < s->X; e++) {
        const int64_t end = raised(row, offset[e + 1], s->R);
        for (int i = 0; i < HEIGHTS; i++)
            for (; end - row >= heights[i]; row += heights[i]) run(c, s, i, row, e);
    }
    memset(part(c->out[0], row, row_bytes), 0, (size_t)(s->R - row) * row_bytes);
}

static double product_flops(const grouped *s, int i)
{
    return 2.0 * (double)heights[i] * (double)s->F * (double)s->E;
}

static void forward_panel(const ts_cpu_call *c, grouped *s, int i, int64_t row, int64_t expert)
{
    ts__gemm_run(s->y[i], part(c->in[X], row * s->E, s->bytes),
                 part(c->in[W], expert * s->F * s->E, s->bytes),
                 part(c->out[0], row * s->F, s->bytes), c->scratch, c->threads);
    s->flops += product_flops(s, i);
}

static void run_forward(const ts_cpu_call *c)
{
    grouped *s = c->state;
    each_panel(c, s, s->F, forward_panel);
}

static void backward_panel(const ts_cpu_call *c, grouped *s, int i, int64_t row, int64_t expert)
{
    const void *dy = part(c->in[DY], row * s->F, s->bytes);
    ts__gemm_run(s->dx[i], dy, part(c->in[W], expert * s->F * s->E, s->bytes),
                 part(c->out[0], row * s->E, s->bytes), c->scratch, c->threads);
    ts__gemm_run(s->dw[i], dy, part(c->in[X], row * s->E, s->bytes),
                 part(c->out[1], expert * s->F * s->E, sizeof(float)), c->scratch, c->threads);
    s->flops += 2 * product_flops(s, i);
}

static void run_backward(const ts_cpu_call *c)
{
    grouped *s = c->state;
    const int64_t rows = s->X * s->F; /* of dw */
    const int threads = ts__threads(rows * s->E, c->threads);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t r = 0; r < rows; r++)
        memset((float *)c->out[1] + r * s->E, 0, (size_t)s->E * sizeof(float));
    each_panel(c, s, s->E, backward_panel);
}

/* ---- choosing -------------------------------------------------------------------------------- */

#define KERNELS(isa, ISA)                                                                          \
    static ts_status forward_##isa(const ts_node *n, int threads, ts_cpu_prepared *out,            \
                                   ts_error *err)                                                  \
    {                                                                                              \
        return prepare(n, false, ISA, threads, out, err);                                          \
    }                                                                                              \
    static ts_status backward_##isa(const ts_node *n, int threads, ts_cpu_prepared *out,           \
                                    ts_error *err)                                                 \
    {                                                                                              \
        return prepare(n, true, ISA, threads, out, err);                                           \
    }                                                                                              \
    static const ts_cpu_kernel kernels_##isa[2] = {                                                \
        {"ts_cpu_grouped_dot_" #isa, forward_##isa, run_forward, release, 0},                      \
        {"ts_cpu_grouped_dot_grad_" #isa, backward_##isa, run_backward, release, 0},               \
    };
KERNELS(avx2, TS_ISA_AVX2)
KERNELS(avx512, TS_ISA_AVX512)
KERNELS(avx512_bf16, TS_ISA_AVX512_BF16)

const ts_cpu_kernel *ts__pick_grouped(const ts_node *n, ts_isa isa)
{
    const bool grad = n->op == TS_OP_grouped_dot_grad;
    switch (isa) {
    case TS_ISA_AVX512_BF16: return &kernels_avx512_bf16[grad];
    case TS_ISA_AVX512: return &kernels_avx512[grad];
    default: return &kernels_avx2[grad];
    }
}
