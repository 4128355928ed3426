/* cpu/xent.c – cross-entropy of logits x·wᵀ, its rows where the vocabulary is split, and its
 * gradient, a panel of logits at a time.
 *
 * The logits of `tokens` tokens × `classes` classes are one matrix product into scratch that stays
 * in cache. Panels go over the vocabulary outside and over tokens inside: w is read once, dw is
 * written once, forward keeps a running maximum and total a token, and backward needs only the
 * log-sum-exp of forward. dx grows over the panels in f32. Never tokens × vocabulary. bf16
 * gradients of logits where bf16 products exist. A label outside [0, V) is ignored: loss 0; its
 * log-sum-exp is still that of the logits. The chunk attribute bounds the tokens of a panel. Not
 * here: the products (gemm.c), rows (xent_body.h). */
#include <math.h>

#include "cpu/xent.h"

enum { TOKENS = 1024, CLASSES = 512, WHOLE = 1024 }; /* a panel; vocabularies up to WHOLE are one */
enum { X, W, LABELS, LSE, DLOSS, DLSE };             /* operands; the first three in forward */

typedef struct xent {
    int64_t T, V, E, tokens, classes;
    float softcap;
    bool h, half; /* x, w are bf16; so are the logits' gradients */
    const ts__xent_rows *rows;
    ts__gemm *logits[2][2], *dx[2][2], *dw[2][2]; /* [last tokens are fewer][last classes …] */
    /* scratch: logits; their gradients in bf16; dx f32 [T,E]; most, total, picked [T]; the
     * products' */
    size_t half_at, dx_at, token_at, gemm_at;
} xent;

static void release(void *state)
{
    xent *s = state;
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++) {
            ts__gemm_free(s->logits[i][j]);
            ts__gemm_free(s->dx[i][j]);
            ts__gemm_free(s->dw[i][j]);
        }
    ts_free(s);
}

static ts_status products(xent *s, int i, int j, bool grad, ts_isa isa, int threads, size_t *most,
                          ts_error *err)
{
    const int64_t t = i ? s->T % s->tokens : s->tokens, v = j ? s->V % s->classes : s->classes;
    const ts_dtype d = s->h ? TS_BF16 : TS_F32, g = s->half ? TS_BF16 : TS_F32;
    const ts__gemm_spec logits = {.m = t,
                                  .n = v,
                                  .k = s->E,
                                  .x_m = s->E,
                                  .x_k = 1,
                                  .y_k = 1,
                                  .y_n = s->E,
                                  .x = d,
                                  .y = d,
                                  .out = TS_F32};
    const ts__gemm_spec dx = {.m = t,
                              .n = s->E,
                              .k = v,
                              .x_m = v,
                              .x_k = 1,
                              .y_k = s->E,
                              .y_n = 1,
                              .x = g,
                              .y = d,
                              .out = TS_F32,
                              .accumulate = true};
    const ts__gemm_spec dw = {.m = v,
                              .n = s->E,
                              .k = t,
                              .x_m = 1,
                              .x_k = v,
                              .y_k = s->E,
                              .y_n = 1,
                              .x = g,
                              .y = d,
                              .out = TS_F32,
                              .accumulate = s->tokens < s->T};
    if (t == 0 || v == 0) return TS_OK;
    TS_TRY(ts__gemm_new(&logits, isa, threads, &s->logits[i][j], err));
    if (ts__gemm_scratch(s->logits[i][j]) > *most) *most = ts__gemm_scratch(s->logits[i][j]);
    if (!grad) return TS_OK;
    TS_TRY(ts__gemm_new(&dx, isa, threads, &s->dx[i][j], err));
    TS_TRY(ts__gemm_new(&dw, isa, threads, &s->dw[i][j], err));
    if (ts__gemm_scratch(s->dx[i][j]) > *most) *most = ts__gemm_scratch(s->dx[i][j]);
    if (ts__gemm_scratch(s->dw[i][j]) > *most) *most = ts__gemm_scratch(s->dw[i][j]);
    return TS_OK;
}

static ts_status prepare(const ts_node *n, bool grad, ts_isa isa, int threads, ts_cpu_prepared *out,
                         ts_error *err)
{
    const ts_type *x = ts__in_type(n, X), *w = ts__in_type(n, W);
    xent *s = ts_alloc_zero(sizeof *s);
    if (!s)
        return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "no memory for the plan of a cross-entropy");
    s->T = x->dim[0].size, s->E = x->dim[1].size, s->V = w->dim[0].size;
    const int64_t chunk = n->attr.xent.chunk > 0 ? n->attr.xent.chunk : TOKENS;
    s->tokens = s->T < chunk ? s->T : chunk;
    s->classes = s->V <= WHOLE ? s->V : CLASSES;
    if (s->tokens == 0) s->tokens = 1;
    if (s->classes == 0) s->classes = 1;
    s->softcap = (float)n->attr.xent.softcap;
    s->h = x->dtype == TS_BF16;
    s->half = grad && s->h && ts__bf16_products(isa);
    s->rows = isa >= TS_ISA_AVX512 ? &ts__xent_rows_avx512 : &ts__xent_rows_avx2;
    size_t most = 0;
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++) {
            ts_status status = products(s, i, j, grad, isa, threads, &most, err);
            if (status == TS_OK) continue;
            release(s);
            return status;
        }
    const size_t panel = (size_t)(s->tokens * s->classes);
    s->half_at = ts_round_up(panel * 4, 64);
    s->dx_at = s->half_at + (s->half ? ts_round_up(panel * 2, 64) : 0);
    s->token_at = s->dx_at + (grad && s->h ? ts_round_up((size_t)(s->T * s->E) * 4, 64) : 0);
    s->gemm_at = s->token_at;
    if (n->op == TS_OP_linear_xent) s->gemm_at += ts_round_up((size_t)s->T * 12, 64);
    out->scratch_bytes = s->gemm_at + most;
    out->state = s;
    out->flops = (grad ? 6.0 : 2.0) * (double)s->T * (double)s->V * (double)s->E;
    out->bytes = ts__node_bytes(n);
    return TS_OK;
}

/* ---- running --------------------------------------------------------------------------------- */

/* The panel of tokens [t, t + tn) × classes [v, v + vn). */
typedef struct panel {
    int64_t t, tn, v, vn;
    int i, j;
} panel;

static panel panel_at(const xent *s, int64_t t, int64_t v)
{
    panel p = {.t = t,
               .tn = s->T - t < s->tokens ? s->T - t : s->tokens,
               .v = v,
               .vn = s->V - v < s->classes ? s->V - v : s->classes};
    p.i = p.tn < s->tokens, p.j = p.vn < s->classes;
    return p;
}

static const char *row_of(const xent *s, const void *x, int64_t row)
{
    return (const char *)x + row * s->E * (s->h ? 2 : 4);
}

static void logits(const ts_cpu_call *c, const xent *s, const panel *p)
{
    char *scratch = c->scratch;
    ts__gemm_run(s->logits[p->i][p->j], row_of(s, c->in[X], p->t), row_of(s, c->in[W], p->v),
                 scratch, scratch + s->gemm_at, c->threads);
}

/* A number each token [T]: the largest logit so far, Σ exp(logit − largest), the label's logit. */
typedef struct tokens {
    float *most, *total, *picked;
} tokens;

static void forward_panel(const ts_cpu_call *c, const xent *s, const panel *p, const tokens *k)
{
    float *z = c->scratch;
    const int32_t *label = c->in[LABELS];
    const int threads = ts__threads(p->tn * p->vn * 4, c->threads);
    logits(c, s, p);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t r = 0; r < p->tn; r++) {
        const int64_t t = p->t + r, at = label[t] - p->v;
        s->rows->forward(z + r * p->vn, p->vn, s->softcap, &k->most[t], &k->total[t]);
        if (at >= 0 && at < p->vn) k->picked[t] = z[r * p->vn + at];
    }
}

static void forward_panels(const ts_cpu_call *c, const xent *s, const tokens *k)
{
    for (int64_t t = 0; t < s->T; t++) k->most[t] = -INFINITY, k->total[t] = k->picked[t] = 0;
    for (int64_t v = 0; v < s->V; v += s->classes)
        for (int64_t t = 0; t < s->T; t += s->tokens) {
            const panel p = panel_at(s, t, v);
            forward_panel(c, s, &p, k);
        }
}

static void run_forward(const ts_cpu_call *c)
{
    const xent *s = c->state;
    float *most = (float *)(void *)((char *)c->scratch + s->token_at);
    const tokens k = {most, most + s->T, most + 2 * s->T};
    const int32_t *label = c->in[LABELS];
    forward_panels(c, s, &k);
    for (int64_t t = 0; t < s->T; t++) {
        const float lse = k.total[t] == 0 ? most[t] : most[t] + logf(k.total[t]);
        ((float *)c->out[0])[t] = label[t] >= 0 && label[t] < s->V ? lse - k.picked[t] : 0.0f;
        ((float *)c->out[1])[t] = lse;
    }
}

static void run_rows(const ts_cpu_call *c)
{
    const tokens k = {c->out[0], c->out[1], c->out[2]};
    forward_panels(c, c->state, &k);
}

static void backward_panel(const ts_cpu_call *c, const xent *s, const panel *p, float *dx)
{
    char *scratch = c->scratch;
    float *z = c->scratch;
    uint16_t *half = s->half ? (uint16_t *)(void *)(scratch + s->half_at) : NULL;
    const int32_t *label = c->in[LABELS];
    const float *lse = c->in[LSE], *dloss = c->in[DLOSS], *dlse = c->in[DLSE];
    const int threads = ts__threads(p->tn * p->vn * 4, c->threads);
    logits(c, s, p);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t r = 0; r < p->tn; r++) {
        const int64_t t = p->t + r, at = label[t] - p->v;
        const bool counted = label[t] >= 0 && label[t] < s->V;
        s->rows->backward(z + r * p->vn, half ? half + r * p->vn : NULL, p->vn, s->softcap, lse[t],
                          (counted ? dloss[t] : 0.0f) + dlse[t], at >= 0 && at < p->vn ? at : -1,
                          dloss[t]);
    }
    const void *g = half ? (const void *)half : z;
    ts__gemm_run(s->dx[p->i][p->j], g, row_of(s, c->in[W], p->v), dx + p->t * s->E,
                 scratch + s->gemm_at, c->threads);
    ts__gemm_run(s->dw[p->i][p->j], g, row_of(s, c->in[X], p->t), (float *)c->out[1] + p->v * s->E,
                 scratch + s->gemm_at, c->threads);
}

static void run_backward(const ts_cpu_call *c)
{
    const xent *s = c->state;
    float *dx = s->h ? (float *)(void *)((char *)c->scratch + s->dx_at) : c->out[0];
    memset(dx, 0, (size_t)(s->T * s->E) * 4);
    /* One panel of tokens writes dw; several add to it. */
    if (s->tokens < s->T || s->T == 0) memset(c->out[1], 0, (size_t)(s->V * s->E) * 4);
    for (int64_t v = 0; v < s->V; v += s->classes)
        for (int64_t t = 0; t < s->T; t += s->tokens) {
            const panel p = panel_at(s, t, v);
            backward_panel(c, s, &p, dx);
        }
    if (!s->h) return;
    if (s->rows == &ts__xent_rows_avx512)
        ts__narrow_avx512(dx, c->out[0], s->T * s->E);
    else
        ts__narrow_avx2(dx, c->out[0], s->T * s->E);
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
    }
KERNELS(avx2, TS_ISA_AVX2)
KERNELS(avx512, TS_ISA_AVX512)
KERNELS(bf16, TS_ISA_AVX512_BF16)

enum { FORWARD, ROWS, BACKWARD, WAYS };
#define WAYS_OF(isa, prepared)                                                                     \
    {                                                                                              \
        [FORWARD] = {"ts_cpu_linear_xent_" #isa, forward_##prepared, run_forward, release, 0},     \
        [ROWS] = {"ts_cpu_xent_rows_" #isa, forward_##prepared, run_rows, release, 0},             \
        [BACKWARD] = {"ts_cpu_linear_xent_grad_" #isa, backward_##prepared, run_backward, release, \
                      0},                                                                          \
    }
static const ts_cpu_kernel kernels[TS_ISAS][WAYS] = {
    [TS_ISA_AVX2] = WAYS_OF(avx2, avx2),
    [TS_ISA_AVX512] = WAYS_OF(avx512, avx512),
    [TS_ISA_AVX512_BF16] = WAYS_OF(avx512_bf16, bf16),
};

const ts_cpu_kernel *ts__pick_xent(const ts_node *n, ts_isa isa)
{
    const int way = n->op == TS_OP_linear_xent_grad ? BACKWARD
                    : n->op == TS_OP_xent_rows      ? ROWS
                                                    : FORWARD;
    return &kernels[isa][way];
}
