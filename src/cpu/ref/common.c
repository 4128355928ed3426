/* cpu/ref/common.c – loads, stores, strides and scratch of the plain-C kernels.
 *
 * A rank-0 operand repeats for every element of the result: the elementwise rule of the graph.
 * Loads and stores of bf16 widen exactly and round to nearest even.
 */
#include "cpu/ref/ref.h"

ts__ref_split ts__ref_split_at(const ts_type *t, int64_t axis)
{
    ts__ref_split s = {1, t->dim[axis].size, 1};
    for (int64_t i = 0; i < axis; i++)
        s.outer *= t->dim[i].size;
    for (int64_t i = axis + 1; i < t->rank; i++)
        s.inner *= t->dim[i].size;
    return s;
}

void ts__ref_strides(const ts_type *t, int64_t stride[TS_MAX_RANK])
{
    int64_t n = 1;
    for (int i = t->rank - 1; i >= 0; i--) {
        stride[i] = n;
        n *= t->dim[i].size;
    }
}

void ts__ref_copy_bytes(void *out, const void *in, size_t bytes)
{
    if (out != in && bytes > 0) memcpy(out, in, bytes);
}

void ts__ref_load(const ts_value *v, const void *p, int64_t at, int n, float *out)
{
    const ts_dtype t = v->type.dtype;
    if (v->type.rank == 0) {
        const float x = ts__ref_get(p, t, 0);
        for (int i = 0; i < n; i++)
            out[i] = x;
    } else if (t == TS_F32) {
        memcpy(out, (const float *)p + at, (size_t)n * sizeof *out);
    } else {
        for (int i = 0; i < n; i++)
            out[i] = ts_bf16_to_f32(((const uint16_t *)p)[at + i]);
    }
}

void ts__ref_store(ts_dtype t, void *p, int64_t at, int n, const float *in)
{
    if (t == TS_F32) {
        memcpy((float *)p + at, in, (size_t)n * sizeof *in);
        return;
    }
    for (int i = 0; i < n; i++)
        ((uint16_t *)p)[at + i] = ts_bf16_from_f32(in[i]);
}

void ts__ref_load_int(const ts_value *v, const void *p, int64_t at, int n, uint32_t *out)
{
    const bool scalar = v->type.rank == 0, pred = v->type.dtype == TS_PRED;
    for (int i = 0; i < n; i++) {
        const int64_t k = scalar ? 0 : at + i;
        out[i] = pred ? (uint32_t)(((const uint8_t *)p)[k] != 0) : ((const uint32_t *)p)[k];
    }
}

void ts__ref_store_int(ts_dtype t, void *p, int64_t at, int n, const uint32_t *in)
{
    if (t != TS_PRED) {
        memcpy((uint32_t *)p + at, in, (size_t)n * sizeof *in);
        return;
    }
    for (int i = 0; i < n; i++)
        ((uint8_t *)p)[at + i] = in[i] != 0;
}

ts_status ts__ref_scratch(const ts_node *n, int threads, int64_t per_thread_doubles,
                          int64_t shared_doubles, double flops, ts_cpu_prepared *out, ts_error *err)
{
    int64_t all;
    *out = (ts_cpu_prepared){.flops = flops};
    if (per_thread_doubles > (INT64_MAX >> 8) ||
        ts_mul_i64((per_thread_doubles + 7) / 8 * 8, threads, &all) ||
        ts_add_i64(all, shared_doubles, &all) ||
        ts_mul_size((size_t)all, sizeof(double), &out->scratch_bytes) ||
        out->scratch_bytes > PTRDIFF_MAX)
        return TS_ERROR(err, TS_RESOURCE_EXHAUSTED,
                        "%s: the scratch memory of one call does not fit an address space",
                        ts_op_infos[n->op].name);
    for (int i = 0; i < n->n_in; i++)
        out->bytes += (double)ts_type_bytes(&n->in[i]->type);
    for (int i = 0; i < n->n_out; i++)
        out->bytes += (double)ts_type_bytes(&n->out[i]->type);
    return TS_OK;
}
