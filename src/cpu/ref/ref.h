/* cpu/ref/ref.h – what the plain-C kernels share: counting, loading and storing of any dtype,
 * strided walks, checked scratch.
 *
 * These kernels are the oracle: clear loops, any shape and dtype the op claims, sums in double and
 * rounded once at the end. They are also what runs where no faster kernel exists, so nothing here
 * is slower by an order than it must be. Floats travel in blocks of f32, integers in blocks of u32.
 * Not here: repeat (the engine runs it) and instruction sets.
 */
#ifndef TS_CPU_REF_H
#define TS_CPU_REF_H

#include <math.h>
#include <omp.h>

#include "cpu/kernel.h"

enum { TS__REF_BLOCK = 512 };

/* Elementwise loops of at least this many elements are worth waking other threads for. */
enum { TS__REF_PARALLEL = 1 << 15 };

static inline int64_t ts__ref_count(const ts_value *v) { return ts_type_elements(&v->type); }
static inline bool ts__ref_is_float(ts_dtype t) { return t == TS_F32 || t == TS_BF16; }

static inline float ts__ref_get(const void *p, ts_dtype t, int64_t i)
{
    return t == TS_F32 ? ((const float *)p)[i] : ts_bf16_to_f32(((const uint16_t *)p)[i]);
}

static inline void ts__ref_put(void *p, ts_dtype t, int64_t i, double value)
{
    if (t == TS_F32)
        ((float *)p)[i] = (float)value;
    else
        ((uint16_t *)p)[i] = ts_bf16_from_f32((float)value);
}

/* Elements outside, along and inside one axis: row-major offset = (outer · axis + i) · inner +
 * rest. */
typedef struct ts__ref_split { int64_t outer, axis, inner; } ts__ref_split;
ts__ref_split ts__ref_split_at(const ts_type *t, int64_t axis);

void ts__ref_strides(const ts_type *t, int64_t stride[TS_MAX_RANK]);
void ts__ref_copy_bytes(void *out, const void *in, size_t bytes);

/* Floats (f32, bf16) to and from f32; a rank-0 value repeats. */
void ts__ref_load(const ts_value *v, const void *p, int64_t at, int n, float *out);
void ts__ref_store(ts_dtype t, void *p, int64_t at, int n, const float *in);
/* i32, u32 as they are, pred as 0 and 1. */
void ts__ref_load_int(const ts_value *v, const void *p, int64_t at, int n, uint32_t *out);
void ts__ref_store_int(ts_dtype t, void *p, int64_t at, int n, const uint32_t *in);

/* scratch = threads · per_thread + shared, with each thread's part rounded to cache lines. */
ts_status ts__ref_scratch(const ts_node *n, int threads, int64_t per_thread_doubles,
                          int64_t shared_doubles, double flops, ts_cpu_prepared *out,
                          ts_error *err);
/* Thread t's doubles of a scratch made with these sizes; t = threads: the shared part. */
static inline double *ts__ref_part(const ts_cpu_call *c, int64_t per_thread_doubles, int t)
{
    return (double *)c->scratch + ((per_thread_doubles + 7) / 8 * 8) * t;
}

/* Which part of the scratch is this thread's. */
static inline int ts__ref_thread(void) { return omp_get_thread_num(); }

#define TS__REF_RUN(name) void ts__ref_##name(const ts_cpu_call *c)
TS__REF_RUN(constant); TS__REF_RUN(iota); TS__REF_RUN(axis_index); TS__REF_RUN(random_bits);
TS__REF_RUN(unary);
TS__REF_RUN(is_finite);
TS__REF_RUN(convert);
TS__REF_RUN(binary);
TS__REF_RUN(add_n);
TS__REF_RUN(compare); TS__REF_RUN(select);
TS__REF_RUN(copy);
TS__REF_RUN(barrier);
TS__REF_RUN(transpose);
TS__REF_RUN(broadcast);
TS__REF_RUN(slice);
TS__REF_RUN(concat); TS__REF_RUN(pad); TS__REF_RUN(dynamic_slice); TS__REF_RUN(dynamic_update);
TS__REF_RUN(reduce); TS__REF_RUN(argmax); TS__REF_RUN(top_k); TS__REF_RUN(dot); TS__REF_RUN(take);
TS__REF_RUN(scatter_add);
TS__REF_RUN(rms_norm); TS__REF_RUN(rms_norm_grad); TS__REF_RUN(rope); TS__REF_RUN(attention);
TS__REF_RUN(attention_grad); TS__REF_RUN(gated); TS__REF_RUN(gated_grad); TS__REF_RUN(linear_xent);
TS__REF_RUN(linear_xent_grad); TS__REF_RUN(xent_rows); TS__REF_RUN(adamw);
TS__REF_RUN(expert_rows); TS__REF_RUN(grouped_dot); TS__REF_RUN(grouped_dot_grad);

#define TS__REF_PREPARE(name)                                                                      \
    ts_status ts__ref_prepare_##name(const ts_node *n, int threads, ts_cpu_prepared *out,          \
                                     ts_error *err)
TS__REF_PREPARE(dot);
TS__REF_PREPARE(scatter_add);
TS__REF_PREPARE(rms_norm_grad);
TS__REF_PREPARE(grouped_dot_grad);
TS__REF_PREPARE(attention);
TS__REF_PREPARE(attention_grad); TS__REF_PREPARE(linear_xent); TS__REF_PREPARE(linear_xent_grad);
TS__REF_PREPARE(collective);

#endif
