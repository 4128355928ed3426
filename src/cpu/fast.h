/* cpu/fast.h – what the fast kernels share: who exports what, how work is split, matrix products.
 *
 * A pick function returns the kernel of its group for a node, or NULL when the group does not cover
 * the node's dtypes or shape. One object file an isa exports one pick a group; fast.c asks them in
 * turn. */
#ifndef TS_CPU_FAST_H
#define TS_CPU_FAST_H

#include <omp.h>

#include "cpu/kernel.h"

typedef const ts_cpu_kernel *ts__pick(const ts_node *n);
ts__pick ts__pick_elementwise_avx2, ts__pick_elementwise_avx512;
ts__pick ts__pick_reduce_avx2, ts__pick_reduce_avx512;
ts__pick ts__pick_rows_avx2, ts__pick_rows_avx512;     /* rms_norm, rope */
ts__pick ts__pick_update_avx2, ts__pick_update_avx512; /* gated, adamw, scatter_add */
ts__pick ts__pick_attention_avx2, ts__pick_attention_avx512;
ts__pick ts__pick_move; /* copies: any isa */
const ts_cpu_kernel *ts__pick_dot(const ts_node *n, ts_isa isa);
const ts_cpu_kernel *ts__pick_xent(const ts_node *n, ts_isa isa);
const ts_cpu_kernel *ts__pick_grouped(const ts_node *n, ts_isa isa);
/* Floating-point operations of the last run with this state of a grouped_dot or its gradient. */
double ts__grouped_flops(const void *state);

/* ---- splitting work -------------------------------------------------------------------------- */

/* Part i of parts of [0, n), in whole multiples of align but for the last. */
static inline void ts__split(int64_t n, int parts, int i, int64_t align, int64_t *begin,
                             int64_t *end)
{
    int64_t units = (n + align - 1) / align, base = units / parts, more = units % parts;
    int64_t first = i * base + (i < more ? i : more), count = base + (i < more);
    *begin = first * align < n ? first * align : n;
    *end = (first + count) * align < n ? (first + count) * align : n;
}

/* Waking a second thread costs a few microseconds: work is in elements touched. */
static inline int ts__threads(int64_t work, int threads)
{
    int64_t useful = work / 8192 + 1;
    return useful < threads ? (int)useful : threads;
}

static inline bool ts__is_float(ts_dtype t)
{
    return t == TS_F32 || t == TS_BF16;
}
static inline const ts_type *ts__in_type(const ts_node *n, int i)
{
    return &n->in[i]->type;
}
static inline const ts_type *ts__out_type(const ts_node *n, int i)
{
    return &n->out[i]->type;
}
/* Product of the sizes of dims [first, limit). */
static inline int64_t ts__product(const ts_type *t, int first, int limit)
{
    int64_t p = 1;
    for (int d = first; d < limit; d++) p *= t->dim[d].size;
    return p;
}
static inline double ts__node_bytes(const ts_node *n)
{
    double b = 0;
    for (int i = 0; i < n->n_in; i++) b += (double)ts_type_bytes(&n->in[i]->type);
    for (int i = 0; i < n->n_out; i++) b += (double)ts_type_bytes(&n->out[i]->type);
    return b;
}
/* Prepare of a kernel without state: only the estimate, flops counted once per element of result 0.
 */
ts_status ts__prepare_plain(const ts_node *n, int threads, ts_cpu_prepared *out, ts_error *err);

/* ---- dtype conversion by isa (elementwise_body.h) -------------------------------------------- */

void ts__widen_avx2(const uint16_t *x, float *y, int64_t n);
void ts__widen_avx512(const uint16_t *x, float *y, int64_t n);
void ts__narrow_avx2(const float *x, uint16_t *y, int64_t n);
void ts__narrow_avx512(const float *x, uint16_t *y, int64_t n);
static inline void ts__widen(ts_isa isa, const uint16_t *x, float *y, int64_t n)
{
    if (isa >= TS_ISA_AVX512)
        ts__widen_avx512(x, y, n);
    else
        ts__widen_avx2(x, y, n);
}
static inline void ts__narrow(ts_isa isa, const float *x, uint16_t *y, int64_t n)
{
    if (isa >= TS_ISA_AVX512)
        ts__narrow_avx512(x, y, n);
    else
        ts__narrow_avx2(x, y, n);
}

/* ---- strided copies (move.c) ----------------------------------------------------------------- */

/* dst[Σ i·dst_stride] = src[Σ i·src_stride] over dims; strides in elements of `bytes` bytes. */
typedef struct ts__copy {
    int rank;
    int64_t dim[TS_MAX_RANK], src[TS_MAX_RANK], dst[TS_MAX_RANK];
    size_t bytes;
} ts__copy;
void ts__copy_run(const ts__copy *c, const void *src, void *dst, int threads);
void ts__copy_flat(const void *src, void *dst, size_t bytes, int threads);

/* Whether the bf16 product instruction beats widening to f32; only on a machine that has it. */
bool ts__bf16_products_pay(void);
/* Tests: 1 yes, 0 no, −1 as measured. For what is prepared from now on. */
void ts__bf16_products_force(int how);
/* Whether bf16 operands go into a product as they are. */
static inline bool ts__bf16_products(ts_isa isa)
{
    return isa >= TS_ISA_AVX512_BF16 && ts__bf16_products_pay();
}

/* ---- matrix products (gemm.c) ---------------------------------------------------------------- */

/* out[b, m, n] (+)= Σₖ x[b, m, k] · y[b, k, n]; x and y by element strides, out dense. */
typedef struct ts__gemm_spec {
    int n_batch;
    int64_t batch[TS_MAX_RANK], x_batch[TS_MAX_RANK], y_batch[TS_MAX_RANK];
    int64_t m, n, k, x_m, x_k, y_k, y_n;
    ts_dtype x, y, out; /* f32 or bf16 */
    bool accumulate;    /* f32 results only */
} ts__gemm_spec;
typedef struct ts__gemm ts__gemm;
ts_status ts__gemm_new(const ts__gemm_spec *s, ts_isa isa, int threads, ts__gemm **out,
                       ts_error *err);
size_t ts__gemm_scratch(const ts__gemm *g);
void ts__gemm_run(const ts__gemm *g, const void *x, const void *y, void *out, void *scratch,
                  int threads);
void ts__gemm_free(ts__gemm *g);

/* f32 on AVX2 alone (matmul_avx2.c): one matrix of a spec, its batch dimensions ignored. */
size_t ts__matmul_scratch(const ts__gemm_spec *s, int threads);
void ts__matmul_avx2(const ts__gemm_spec *s, const float *x, const float *y, float *out,
                     float *scratch, int threads);

#endif
