/* cpu/gemm.c – matrix products: oneDNN, and what it does not do by itself. On machines with AVX2
 * alone every product is matmul_avx2.c's, which says why.
 *
 * f32 × f32, and bf16 × bf16 where the machine has fast bf16 products, are one oneDNN primitive on
 * the operands' own strides. Everything else (bf16 storage without bf16 products, mixed dtypes,
 * strides that oneDNN only takes in its slow reference) goes in panels: a panel is widened to f32
 * into scratch, multiplied, and its result narrowed. Sums are f32 always. Invariants: primitives
 * and memory objects are made in ts__gemm_new; run sets handles and executes. One engine and stream
 * serve the process and are never freed; run is for one thread at a time. Not here: which
 * dimensions of a dot form m, n and k (dot.c). */
#include <oneapi/dnnl/dnnl.h>
#include <pthread.h>

#include "cpu/fast.h"

enum { PANEL_FLOATS = 4 << 20, MIN_PANEL = 64 };

static dnnl_engine_t engine;
static dnnl_stream_t stream;
static dnnl_status_t engine_status;
static pthread_once_t engine_once = PTHREAD_ONCE_INIT;

static void engine_open(void)
{
    engine_status = dnnl_engine_create(&engine, dnnl_cpu, 0);
    if (engine_status == dnnl_success)
        engine_status = dnnl_stream_create(&stream, engine, dnnl_stream_default_flags);
}

/* One oneDNN matmul with the memory objects it reads and writes. */
typedef struct product {
    dnnl_primitive_t primitive;
    dnnl_memory_t x, y, out, scratch;
    size_t scratch_bytes;
    ts__gemm_spec own; /* m > 0: matmul_avx2.c computes it */
} product;

struct ts__gemm {
    ts__gemm_spec s;
    ts_isa isa;
    int threads;
    bool panels;                 /* else one product for everything */
    bool pack_x, pack_y, narrow; /* what panels convert */
    int64_t batches, mb, nb;     /* elements of the batch; panel sizes */
    product p[2][2];             /* [last m panel is shorter][last n panel …] */
    size_t y_at, out_at, scratch_at,
        scratch_bytes; /* scratch: x panel, y panel, out panel, oneDNN's */
};

/* ---- one product ----------------------------------------------------------------------------- */

static dnnl_data_type_t dnnl_type(ts_dtype t)
{
    return t == TS_BF16 ? dnnl_bf16 : dnnl_f32;
}

static void product_free(product *p)
{
    if (p->primitive) dnnl_primitive_destroy(p->primitive);
    if (p->x) dnnl_memory_destroy(p->x);
    if (p->y) dnnl_memory_destroy(p->y);
    if (p->out) dnnl_memory_destroy(p->out);
    if (p->scratch) dnnl_memory_destroy(p->scratch);
    *p = (product){0};
}

/* A stride of a dimension of size one is never used; oneDNN wants it to look dense all the same. */
static void matrix_strides(int64_t rows, int64_t cols, int64_t *row, int64_t *col)
{
    if (cols == 1) *col = *row == 1 && rows > 1 ? rows : 1;
    if (rows == 1) *row = *col == 1 ? cols : 1;
}

static dnnl_status_t descriptors(const ts__gemm_spec *s, dnnl_memory_desc_t md[3])
{
    const int r = s->n_batch + 2;
    dnnl_dims_t dx, dy, dout, sx, sy, sout;
    int64_t x_m = s->x_m, x_k = s->x_k, y_k = s->y_k, y_n = s->y_n, dense = s->m * s->n;
    matrix_strides(s->m, s->k, &x_m, &x_k);
    matrix_strides(s->k, s->n, &y_k, &y_n);
    for (int i = s->n_batch - 1; i >= 0; i--) {
        dx[i] = dy[i] = dout[i] = s->batch[i];
        sx[i] = s->x_batch[i];
        sy[i] = s->y_batch[i];
        sout[i] = dense;
        dense *= s->batch[i];
    }
    dx[r - 2] = dout[r - 2] = s->m;
    dx[r - 1] = dy[r - 2] = s->k;
    dy[r - 1] = dout[r - 1] = s->n;
    sx[r - 2] = x_m, sx[r - 1] = x_k;
    sy[r - 2] = y_k, sy[r - 1] = y_n;
    sout[r - 2] = s->n, sout[r - 1] = 1;
    dnnl_status_t e = dnnl_memory_desc_init_by_strides(&md[0], r, dx, dnnl_type(s->x), sx);
    if (!e) e = dnnl_memory_desc_init_by_strides(&md[1], r, dy, dnnl_type(s->y), sy);
    if (!e) e = dnnl_memory_desc_init_by_strides(&md[2], r, dout, dnnl_type(s->out), sout);
    return e;
}

/* Descriptor of the fastest implementation; *slow when that is only the reference. */
static dnnl_status_t choose(const ts__gemm_spec *s, dnnl_memory_desc_t md[3],
                            dnnl_primitive_desc_t *pd, bool *slow)
{
    dnnl_matmul_desc_t desc;
    dnnl_primitive_attr_t attr = NULL;
    dnnl_post_ops_t ops = NULL;
    const char *name = "";
    dnnl_status_t e = descriptors(s, md);
    if (!e) e = dnnl_matmul_desc_init(&desc, &md[0], &md[1], NULL, &md[2]);
    if (!e) e = dnnl_primitive_attr_create(&attr);
    if (!e) e = dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
    if (!e && s->accumulate) {
        e = dnnl_post_ops_create(&ops);
        if (!e) e = dnnl_post_ops_append_sum(ops, 1.0f);
        if (!e) e = dnnl_primitive_attr_set_post_ops(attr, ops);
    }
    if (!e) e = dnnl_primitive_desc_create(pd, &desc, attr, engine, NULL);
    if (!e) e = dnnl_primitive_desc_query(*pd, dnnl_query_impl_info_str, 0, &name);
    *slow = !strncmp(name, "ref", 3) || !strncmp(name, "gemm", 4);
    if (ops) dnnl_post_ops_destroy(ops);
    if (attr) dnnl_primitive_attr_destroy(attr);
    return e;
}

static ts_status dnnl_failed(dnnl_status_t e, const ts__gemm_spec *s, ts_error *err)
{
    return TS_ERROR(
        err, e == dnnl_out_of_memory ? TS_RESOURCE_EXHAUSTED : TS_INTERNAL,
        "oneDNN refused a matrix product (status %d): %s × %s → %s, m %lld, n %lld, k %lld, "
        "%d batch dimensions",
        (int)e, ts_dtype_name(s->x), ts_dtype_name(s->y), ts_dtype_name(s->out), (long long)s->m,
        (long long)s->n, (long long)s->k, s->n_batch);
}

static void own_product(const ts__gemm *g, const ts__gemm_spec *s, product *p)
{
    p->own = *s;
    p->scratch_bytes = ts__matmul_scratch(s, g->threads);
}

static dnnl_status_t dnnl_product(product *p, dnnl_primitive_desc_t pd,
                                  const dnnl_memory_desc_t md[3])
{
    dnnl_status_t e = dnnl_primitive_create(&p->primitive, pd);
    if (!e) {
        const dnnl_memory_desc_t *scratch =
            dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
        p->scratch_bytes = dnnl_memory_desc_get_size(scratch);
        e = dnnl_memory_create(&p->scratch, scratch, engine, DNNL_MEMORY_NONE);
    }
    if (!e) e = dnnl_memory_create(&p->x, &md[0], engine, DNNL_MEMORY_NONE);
    if (!e) e = dnnl_memory_create(&p->y, &md[1], engine, DNNL_MEMORY_NONE);
    if (!e) e = dnnl_memory_create(&p->out, &md[2], engine, DNNL_MEMORY_NONE);
    return e;
}

/* Where oneDNN has nothing fast that allocates nothing: *slow becomes true and p stays empty, or, with slow =
 * NULL, which only panels of f32 give, the product is our own. */
static ts_status product_new(const ts__gemm *g, const ts__gemm_spec *s, product *p, bool *slow,
                             ts_error *err)
{
    dnnl_memory_desc_t md[3];
    dnnl_primitive_desc_t pd = NULL;
    bool is_slow = g->isa == TS_ISA_AVX2;
    dnnl_status_t e = dnnl_success;
    if (!is_slow) e = choose(s, md, &pd, &is_slow);
    if (e == dnnl_unimplemented) {
        e = dnnl_success;
        is_slow = true;
    }
    if (slow) *slow = is_slow;
    if (!e && !is_slow) e = dnnl_product(p, pd, md);
    if (!e && is_slow && !slow) own_product(g, s, p);
    if (pd) dnnl_primitive_desc_destroy(pd);
    if (!e) return TS_OK;
    product_free(p);
    return dnnl_failed(e, s, err);
}

static void product_run(const product *p, const void *x, const void *y, void *out, void *scratch,
                        int threads)
{
    if (p->own.m > 0) {
        ts__matmul_avx2(&p->own, x, y, out, scratch, threads);
        return;
    }
    dnnl_exec_arg_t args[4] = {
        {DNNL_ARG_SRC, p->x},
        {DNNL_ARG_WEIGHTS, p->y},
        {DNNL_ARG_DST, p->out},
        {DNNL_ARG_SCRATCHPAD, p->scratch},
    };
    dnnl_memory_set_data_handle(p->x, (void *)(uintptr_t)x);
    dnnl_memory_set_data_handle(p->y, (void *)(uintptr_t)y);
    dnnl_memory_set_data_handle(p->out, out);
    dnnl_memory_set_data_handle(p->scratch, scratch);
    dnnl_status_t e = dnnl_primitive_execute(p->primitive, stream, 4, args);
    TS_ASSERT(e == dnnl_success);
}

/* ---- panels ---------------------------------------------------------------------------------- */

/* A panel keeps its operand's contiguous direction: rows of `inner` elements, one after the other.
 */
typedef struct packing {
    int64_t outer, inner, outer_stride, inner_stride;
} packing;

static packing packing_of(int64_t rows, int64_t cols, int64_t row, int64_t col)
{
    if (row == 1 && col != 1) return (packing){cols, rows, col, row};
    return (packing){rows, cols, row, col};
}

static void pack(packing p, ts_dtype dtype, ts_isa isa, const void *x, float *out, int threads)
{
    const int use = ts__threads(p.outer * p.inner, threads);
#pragma omp parallel for num_threads(use) if (use > 1)
    for (int64_t i = 0; i < p.outer; i++) {
        const float *f = (const float *)x + i * p.outer_stride;
        const uint16_t *h = (const uint16_t *)x + i * p.outer_stride;
        float *o = out + i * p.inner;
        if (dtype == TS_BF16 && p.inner_stride == 1)
            ts__widen(isa, h, o, p.inner);
        else if (dtype == TS_BF16)
            for (int64_t j = 0; j < p.inner; j++) o[j] = ts_bf16_to_f32(h[j * p.inner_stride]);
        else
            for (int64_t j = 0; j < p.inner; j++) o[j] = f[j * p.inner_stride];
    }
}

static int64_t panel(int64_t size, int64_t k)
{
    int64_t most = PANEL_FLOATS / (k > 0 ? k : 1);
    most = most < MIN_PANEL ? MIN_PANEL : most / MIN_PANEL * MIN_PANEL;
    return size < most ? size : most;
}

/* The spec of one panel's product: packed operands are dense f32. */
static ts__gemm_spec panel_spec(const ts__gemm *g, int64_t m, int64_t n)
{
    ts__gemm_spec s = g->s;
    s.n_batch = 0;
    s.m = m, s.n = n;
    if (g->pack_x) {
        const bool columns = s.x_m == 1 && s.x_k != 1;
        s.x = TS_F32, s.x_m = columns ? 1 : s.k, s.x_k = columns ? m : 1;
    }
    if (g->pack_y) {
        const bool columns = s.y_k == 1 && s.y_n != 1;
        s.y = TS_F32, s.y_k = columns ? 1 : n, s.y_n = columns ? s.k : 1;
    }
    s.out = TS_F32;
    return s;
}

static ts_status panels_new(ts__gemm *g, ts_error *err)
{
    const ts__gemm_spec *s = &g->s;
    g->panels = true;
    g->mb = panel(s->m, s->k), g->nb = panel(s->n, s->k);
    /* A result panel is dense in scratch, unless panels are whole rows of an f32 result. */
    g->narrow = s->out != TS_F32 || g->nb < s->n;
    if (g->narrow && g->mb > panel(s->m, g->nb)) g->mb = panel(s->m, g->nb);
    size_t bytes = 0;
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++) {
            const int64_t m = i ? s->m % g->mb : g->mb, n = j ? s->n % g->nb : g->nb;
            if (m == 0 || n == 0) continue;
            ts__gemm_spec ps = panel_spec(g, m, n);
            if (g->narrow) ps.accumulate = false;
            TS_TRY(product_new(g, &ps, &g->p[i][j], NULL, err));
            if (g->p[i][j].scratch_bytes > bytes) bytes = g->p[i][j].scratch_bytes;
        }
    g->y_at = g->pack_x ? ts_round_up((size_t)(g->mb * s->k) * 4, 64) : 0;
    g->out_at = g->y_at + (g->pack_y ? ts_round_up((size_t)(g->nb * s->k) * 4, 64) : 0);
    g->scratch_at = g->out_at + (g->narrow ? ts_round_up((size_t)(g->mb * g->nb) * 4, 64) : 0);
    g->scratch_bytes = g->scratch_at + bytes;
    return TS_OK;
}

/* Result panel [m, n] of scratch into its place in out. */
static void unpack(const ts__gemm *g, const float *from, void *out, int64_t at, int64_t m,
                   int64_t n, int threads)
{
    const int use = ts__threads(m * n, threads);
#pragma omp parallel for num_threads(use) if (use > 1)
    for (int64_t i = 0; i < m; i++) {
        const float *row = from + i * n;
        const int64_t to = at + i * g->s.n;
        if (g->s.out == TS_BF16)
            ts__narrow(g->isa, row, (uint16_t *)out + to, n);
        else if (g->s.accumulate)
            for (int64_t j = 0; j < n; j++) ((float *)out)[to + j] += row[j];
        else
            memcpy((float *)out + to, row, (size_t)n * 4);
    }
}

static const void *at_element(const void *p, ts_dtype t, int64_t i)
{
    return (const char *)p + i * (int64_t)ts_dtype_bytes(t);
}

/* One matrix of the batch. */
static void panels_run(const ts__gemm *g, const void *x, const void *y, void *out, char *scratch,
                       int threads)
{
    const ts__gemm_spec *s = &g->s;
    for (int64_t n0 = 0; n0 < s->n; n0 += g->nb) {
        const int64_t n = s->n - n0 < g->nb ? s->n - n0 : g->nb;
        const void *yp = at_element(y, s->y, n0 * s->y_n);
        if (g->pack_y) {
            pack(packing_of(s->k, n, s->y_k, s->y_n), s->y, g->isa, yp,
                 (float *)(scratch + g->y_at), threads);
            yp = scratch + g->y_at;
        }
        for (int64_t m0 = 0; m0 < s->m; m0 += g->mb) {
            const int64_t m = s->m - m0 < g->mb ? s->m - m0 : g->mb;
            const void *xp = at_element(x, s->x, m0 * s->x_m);
            if (g->pack_x) {
                /* The only panel of x is still there from the last round. */
                if (n0 == 0 || g->mb < s->m)
                    pack(packing_of(m, s->k, s->x_m, s->x_k), s->x, g->isa, xp, (float *)scratch,
                         threads);
                xp = scratch;
            }
            const product *p = &g->p[m < g->mb][n < g->nb];
            void *to = g->narrow ? scratch + g->out_at : (char *)out + m0 * s->n * 4;
            product_run(p, xp, yp, to, scratch + g->scratch_at, threads);
            if (g->narrow) unpack(g, to, out, m0 * s->n + n0, m, n, threads);
        }
    }
}

/* ---- the whole ------------------------------------------------------------------------------- */

static void use_threads(int threads)
{
    if (omp_get_max_threads() != threads) omp_set_num_threads(threads);
}

static ts_status gemm_build(ts__gemm *g, int threads, ts_error *err)
{
    const ts__gemm_spec *s = &g->s;
    g->batches = 1;
    for (int i = 0; i < s->n_batch; i++) g->batches *= s->batch[i];
    if (g->batches == 0 || s->m == 0 || s->n == 0 || s->k == 0) return TS_OK;
    pthread_once(&engine_once, engine_open);
    if (engine_status != dnnl_success) return dnnl_failed(engine_status, s, err);
    use_threads(threads);
    const bool f32 = s->x == TS_F32 && s->y == TS_F32;
    const bool bf16 = s->x == TS_BF16 && s->y == TS_BF16 && ts__bf16_products(g->isa);
    if ((f32 && s->out == TS_F32) || bf16) {
        bool slow;
        TS_TRY(product_new(g, s, &g->p[0][0], &slow, err));
        g->scratch_bytes = g->p[0][0].scratch_bytes;
        if (!slow) return TS_OK;
    }
    /* Strides that are no matrix's are packed like another dtype. */
    g->pack_x = s->x == TS_BF16 || (s->x_m != 1 && s->x_k != 1);
    g->pack_y = s->y == TS_BF16 || (s->y_k != 1 && s->y_n != 1);
    return panels_new(g, err);
}

ts_status ts__gemm_new(const ts__gemm_spec *s, ts_isa isa, int threads, ts__gemm **out,
                       ts_error *err)
{
    TS_ASSERT(!s->accumulate || s->out == TS_F32);
    ts__gemm *g = ts_alloc_zero(sizeof *g);
    if (!g)
        return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "no memory for the plan of a matrix product");
    g->s = *s;
    g->isa = isa;
    g->threads = threads;
    ts_status status = gemm_build(g, threads, err);
    if (status == TS_OK)
        *out = g;
    else
        ts__gemm_free(g);
    return status;
}

size_t ts__gemm_scratch(const ts__gemm *g)
{
    return g->scratch_bytes;
}

void ts__gemm_run(const ts__gemm *g, const void *x, const void *y, void *out, void *scratch,
                  int threads)
{
    const ts__gemm_spec *s = &g->s;
    if (g->batches == 0 || s->m == 0 || s->n == 0) return;
    if (s->k == 0) {
        if (!s->accumulate)
            memset(out, 0, (size_t)(g->batches * s->m * s->n) * ts_dtype_bytes(s->out));
        return;
    }
    use_threads(threads);
    if (!g->panels) {
        product_run(&g->p[0][0], x, y, out, scratch, threads);
        return;
    }
    for (int64_t b = 0; b < g->batches; b++) {
        int64_t rest = b, x_at = 0, y_at = 0;
        for (int i = s->n_batch - 1; i >= 0; i--) {
            x_at += rest % s->batch[i] * s->x_batch[i];
            y_at += rest % s->batch[i] * s->y_batch[i];
            rest /= s->batch[i];
        }
        char *to = (char *)out + (size_t)(b * s->m * s->n) * ts_dtype_bytes(s->out);
        panels_run(g, at_element(x, s->x, x_at), at_element(y, s->y, y_at), to, scratch, threads);
    }
}

void ts__gemm_free(ts__gemm *g)
{
    if (!g) return;
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++) product_free(&g->p[i][j]);
    ts_free(g);
}
