/* cpu/dot.c – the dot op as one batched matrix product.
 *
 * The dimensions of each group (batch, free of x, free of y, contracted) are merged where their
 * strides allow; contracted ones are first put in the order of x's memory, which a sum does not
 * notice. An operand whose free or contracted dimensions do not merge into one stride is copied
 * into scratch in the order batch, free, contracted. The result is dense in exactly that order by
 * definition. Not here: the product itself (gemm.c). */
#include "cpu/fast.h"

typedef struct group {
    int n;
    int64_t size[TS_MAX_RANK], x[TS_MAX_RANK], y[TS_MAX_RANK];
} group;

typedef struct dot {
    ts__gemm *gemm;
    bool pack_x, pack_y;
    ts__copy copy_x, copy_y;
    size_t y_at, scratch_at; /* scratch: packed x, packed y, the product's */
} dot;

static void dense_strides(const ts_type *t, int64_t stride[TS_MAX_RANK])
{
    int64_t s = 1;
    for (int d = t->rank - 1; d >= 0; d--) {
        stride[d] = s;
        s *= t->dim[d].size;
    }
}

static void group_add(group *g, int64_t size, int64_t x, int64_t y)
{
    if (size == 1) return;
    g->size[g->n] = size, g->x[g->n] = x, g->y[g->n] = y;
    g->n++;
}

static bool has(const ts_dims *d, int64_t v)
{
    for (int i = 0; i < d->n; i++)
        if (d->v[i] == v) return true;
    return false;
}

static group free_dims(const ts_type *t, const int64_t *stride, const ts_dims *batch,
                       const ts_dims *contract)
{
    group g = {0};
    for (int d = 0; d < t->rank; d++)
        if (!has(batch, d) && !has(contract, d))
            group_add(&g, t->dim[d].size, stride[d], stride[d]);
    return g;
}

static void sort_by_x(group *g)
{
    for (int i = 1; i < g->n; i++)
        for (int j = i; j > 0 && g->x[j] > g->x[j - 1]; j--) {
            int64_t s = g->size[j], x = g->x[j], y = g->y[j];
            g->size[j] = g->size[j - 1], g->x[j] = g->x[j - 1], g->y[j] = g->y[j - 1];
            g->size[j - 1] = s, g->x[j - 1] = x, g->y[j - 1] = y;
        }
}

static int64_t total(const group *g)
{
    int64_t n = 1;
    for (int i = 0; i < g->n; i++) n *= g->size[i];
    return n;
}

/* Whether all dims are one with a single stride; 1 where the group is empty. */
static bool one_stride(const group *g, const int64_t *stride, int64_t *out)
{
    *out = g->n ? stride[g->n - 1] : 1;
    for (int i = 0; i + 1 < g->n; i++)
        if (stride[i] != stride[i + 1] * g->size[i + 1]) return false;
    return true;
}

/* Neighbours of the batch that are one stride in both operands become one. */
static void merge_batch(group *g)
{
    int n = 0;
    for (int i = 0; i < g->n; i++) {
        const bool joins =
            n > 0 && g->x[n - 1] == g->x[i] * g->size[i] && g->y[n - 1] == g->y[i] * g->size[i];
        const int at = joins ? n - 1 : n;
        g->size[at] = joins ? g->size[at] * g->size[i] : g->size[i];
        g->x[at] = g->x[i], g->y[at] = g->y[i];
        n = at + 1;
    }
    g->n = n;
}

/* The copy that brings an operand to batch, free, contracted; its batch strides become dense. */
static ts__copy packing(group *batch, int64_t *batch_stride, const group *f, const int64_t *fs,
                        const group *k, const int64_t *ks, size_t bytes)
{
    ts__copy c = {.bytes = bytes};
    for (int i = 0; i < batch->n; i++)
        c.dim[c.rank] = batch->size[i], c.src[c.rank++] = batch_stride[i];
    for (int i = 0; i < f->n; i++) c.dim[c.rank] = f->size[i], c.src[c.rank++] = fs[i];
    for (int i = 0; i < k->n; i++) c.dim[c.rank] = k->size[i], c.src[c.rank++] = ks[i];
    int64_t s = 1;
    for (int i = c.rank - 1; i >= 0; i--) {
        c.dst[i] = s;
        s *= c.dim[i];
    }
    for (int i = 0; i < batch->n; i++) batch_stride[i] = c.dst[i];
    return c;
}

static ts__gemm_spec dot_spec(const ts_node *n, dot *d)
{
    const ts_type *x = ts__in_type(n, 0), *y = ts__in_type(n, 1);
    int64_t sx[TS_MAX_RANK], sy[TS_MAX_RANK];
    dense_strides(x, sx);
    dense_strides(y, sy);
    group b = {0}, k = {0};
    for (int i = 0; i < n->attr.dot.x_batch.n; i++) {
        const int64_t xd = n->attr.dot.x_batch.v[i], yd = n->attr.dot.y_batch.v[i];
        group_add(&b, x->dim[xd].size, sx[xd], sy[yd]);
    }
    for (int i = 0; i < n->attr.dot.x_contract.n; i++) {
        const int64_t xd = n->attr.dot.x_contract.v[i], yd = n->attr.dot.y_contract.v[i];
        group_add(&k, x->dim[xd].size, sx[xd], sy[yd]);
    }
    group fx = free_dims(x, sx, &n->attr.dot.x_batch, &n->attr.dot.x_contract);
    group fy = free_dims(y, sy, &n->attr.dot.y_batch, &n->attr.dot.y_contract);
    sort_by_x(&k);
    ts__gemm_spec s = {.m = total(&fx),
                       .n = total(&fy),
                       .k = total(&k),
                       .x = x->dtype,
                       .y = y->dtype,
                       .out = ts__out_type(n, 0)->dtype};
    const bool x_free = one_stride(&fx, fx.x, &s.x_m), x_sum = one_stride(&k, k.x, &s.x_k);
    const bool y_free = one_stride(&fy, fy.y, &s.y_n), y_sum = one_stride(&k, k.y, &s.y_k);
    d->pack_x = !x_free || !x_sum;
    d->pack_y = !y_free || !y_sum;
    if (d->pack_x) {
        d->copy_x = packing(&b, b.x, &fx, fx.x, &k, k.x, ts_dtype_bytes(x->dtype));
        s.x_m = s.k, s.x_k = 1;
    }
    if (d->pack_y) {
        d->copy_y = packing(&b, b.y, &fy, fy.y, &k, k.y, ts_dtype_bytes(y->dtype));
        s.y_n = s.k, s.y_k = 1;
    }
    merge_batch(&b);
    s.n_batch = b.n;
    memcpy(s.batch, b.size, sizeof s.batch);
    memcpy(s.x_batch, b.x, sizeof s.x_batch);
    memcpy(s.y_batch, b.y, sizeof s.y_batch);
    return s;
}

static void dot_release(void *state)
{
    dot *d = state;
    ts__gemm_free(d->gemm);
    ts_free(d);
}

static ts_status dot_prepare(const ts_node *n, ts_isa isa, int threads, ts_cpu_prepared *out,
                             ts_error *err)
{
    dot *d = ts_alloc_zero(sizeof *d);
    if (!d) return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "no memory for the plan of a dot");
    const ts__gemm_spec s = dot_spec(n, d);
    ts_status status = ts__gemm_new(&s, isa, threads, &d->gemm, err);
    if (status != TS_OK) {
        dot_release(d);
        return status;
    }
    d->y_at = d->pack_x ? ts_round_up(ts_type_bytes(ts__in_type(n, 0)), 64) : 0;
    d->scratch_at = d->y_at + (d->pack_y ? ts_round_up(ts_type_bytes(ts__in_type(n, 1)), 64) : 0);
    out->scratch_bytes = d->scratch_at + ts__gemm_scratch(d->gemm);
    out->state = d;
    out->flops = 2.0 * (double)ts_type_elements(ts__out_type(n, 0)) * (double)s.k;
    out->bytes = ts__node_bytes(n);
    return TS_OK;
}

static void dot_run(const ts_cpu_call *c)
{
    const dot *d = c->state;
    const void *x = c->in[0], *y = c->in[1];
    char *scratch = c->scratch;
    if (d->pack_x) {
        ts__copy_run(&d->copy_x, x, scratch, c->threads);
        x = scratch;
    }
    if (d->pack_y) {
        ts__copy_run(&d->copy_y, y, scratch + d->y_at, c->threads);
        y = scratch + d->y_at;
    }
    ts__gemm_run(d->gemm, x, y, c->out[0], scratch + d->scratch_at, c->threads);
}

#define PREPARE(isa, ISA)                                                                          \
    static ts_status prepare_##isa(const ts_node *n, int threads, ts_cpu_prepared *out,            \
                                   ts_error *err)                                                  \
    {                                                                                              \
        return dot_prepare(n, ISA, threads, out, err);                                             \
    }
PREPARE(avx2, TS_ISA_AVX2)
PREPARE(avx512, TS_ISA_AVX512)
PREPARE(bf16, TS_ISA_AVX512_BF16)

static const ts_cpu_kernel dot_kernel[TS_ISAS] = {
    [TS_ISA_AVX2] = {"ts_cpu_dot_avx2", prepare_avx2, dot_run, dot_release, 0},
    [TS_ISA_AVX512] = {"ts_cpu_dot_avx512", prepare_avx512, dot_run, dot_release, 0},
    [TS_ISA_AVX512_BF16] = {"ts_cpu_dot_avx512_bf16", prepare_bf16, dot_run, dot_release, 0},
};

const ts_cpu_kernel *ts__pick_dot(const ts_node *n, ts_isa isa)
{
    const bool floats = ts__is_float(ts__in_type(n, 0)->dtype) &&
                        ts__is_float(ts__in_type(n, 1)->dtype) &&
                        ts__is_float(ts__out_type(n, 0)->dtype);
    return n->op == TS_OP_dot && floats ? &dot_kernel[isa] : NULL;
}
