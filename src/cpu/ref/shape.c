/* cpu/ref/shape.c – sources and moves: nothing here looks at a value but iota and constant, which
 * make them. Elements are copied as 1, 2 or 4 bytes whatever their dtype.
 *
 * Collectives over an axis of one device are copies. Over more devices they need the other devices'
 * buffers, which a kernel cannot reach: the engine runs those (collective.c), and prepare refuses them.
 */
#include "cpu/ref/ref.h"

/* ---- sources --------------------------------------------------------------------------------- */

static void put_number(void *p, ts_dtype t, int64_t i, double value)
{
    if (ts__ref_is_float(t))
        ts__ref_put(p, t, i, value);
    else if (t == TS_PRED)
        ((uint8_t *)p)[i] = value != 0;
    else
        ((uint32_t *)p)[i] = value < 0 ? (uint32_t)(int32_t)value : (uint32_t)value;
}

/* p[i] = p[0] for i < n, of size bytes each. */
static void repeat_first(void *p, size_t size, int64_t n)
{
    for (int64_t i = 1; i < n; i++)
        memcpy((char *)p + (size_t)i * size, p, size);
}

void ts__ref_constant(const ts_cpu_call *c)
{
    const ts_value *y = c->node->out[0];
    const int64_t n = ts__ref_count(y);
    if (n == 0) return;
    put_number(c->out[0], y->type.dtype, 0, c->node->attr.constant.value);
    repeat_first(c->out[0], ts_dtype_bytes(y->type.dtype), n);
}

void ts__ref_iota(const ts_cpu_call *c)
{
    const ts_value *y = c->node->out[0];
    const ts__ref_split s = ts__ref_split_at(&y->type, c->node->attr.iota.axis);
    for (int64_t o = 0; o < s.outer; o++)
        for (int64_t a = 0; a < s.axis; a++)
            for (int64_t i = 0; i < s.inner; i++)
                put_number(c->out[0], y->type.dtype, (o * s.axis + a) * s.inner + i, (double)a);
}

/* ---- copies ---------------------------------------------------------------------------------- */

ts_status ts__ref_prepare_collective(const ts_node *n, int threads, ts_cpu_prepared *out,
                                     ts_error *err)
{
    if (n->attr.collective.n > 1)
        return TS_ERROR(
            err, TS_FAILED_PRECONDITION,
            "%s runs over axis \"%s\" of %lld devices, but this program has one device; open the engine "
            "with as many devices as the mesh has",
            ts_op_infos[n->op].name, n->attr.collective.axis ? n->attr.collective.axis : "",
            (long long)n->attr.collective.n);
    return ts__ref_scratch(n, threads, 0, 0, 0, out, err);
}

void ts__ref_axis_index(const ts_cpu_call *c)
{
    *(int32_t *)c->out[0] = 0;
}

void ts__ref_copy(const ts_cpu_call *c)
{
    ts__ref_copy_bytes(c->out[0], c->in[0], ts_type_bytes(&c->node->out[0]->type));
}

void ts__ref_barrier(const ts_cpu_call *c)
{
    for (int i = 0; i < c->node->n_out; i++)
        ts__ref_copy_bytes(c->out[i], c->in[i], ts_type_bytes(&c->node->out[i]->type));
}

/* ---- strided gathers ------------------------------------------------------------------------- */

#define GATHER_ROW(type)                                                            \
    for (int64_t i = 0; i < n; i++)                                                 \
        ((type *)out)[at + i] = ((const type *)in)[from + i * step]

static void gather_row(void *out, int64_t at, const void *in, int64_t from, int64_t step, int64_t n,
                       size_t size)
{
    if (size == 4)
        GATHER_ROW(uint32_t);
    else if (size == 2)
        GATHER_ROW(uint16_t);
    else
        GATHER_ROW(uint8_t);
}

/* Row-major result of this shape; operand element = Σ index[i] · stride[i]. */
static void gather(const ts_cpu_call *c, const int64_t stride[TS_MAX_RANK])
{
    const ts_type *t = &c->node->out[0]->type;
    const size_t size = ts_dtype_bytes(t->dtype);
    const int64_t count = ts_type_elements(t);
    if (count == 0) return;
    if (t->rank == 0) {
        memcpy(c->out[0], c->in[0], size);
        return;
    }
    const int last = t->rank - 1;
    const int64_t n = t->dim[last].size, rows = count / n;
#pragma omp parallel for num_threads(c->threads) if (count >= TS__REF_PARALLEL)
    for (int64_t r = 0; r < rows; r++) {
        int64_t from = 0, rest = r;
        for (int i = last - 1; i >= 0; i--) {
            from += rest % t->dim[i].size * stride[i];
            rest /= t->dim[i].size;
        }
        gather_row(c->out[0], r * n, c->in[0], from, stride[last], n, size);
    }
}

void ts__ref_transpose(const ts_cpu_call *c)
{
    int64_t in_stride[TS_MAX_RANK], stride[TS_MAX_RANK] = {0};
    ts__ref_strides(&c->node->in[0]->type, in_stride);
    for (int i = 0; i < c->node->out[0]->type.rank; i++)
        stride[i] = in_stride[c->node->attr.transpose.perm.v[i]];
    gather(c, stride);
}

void ts__ref_broadcast(const ts_cpu_call *c)
{
    const ts_dims *map = &c->node->attr.broadcast.map;
    int64_t in_stride[TS_MAX_RANK], stride[TS_MAX_RANK] = {0};
    ts__ref_strides(&c->node->in[0]->type, in_stride);
    for (int i = 0; i < map->n; i++)
        stride[map->v[i]] = in_stride[i];
    gather(c, stride);
}

/* ---- pieces of one axis ---------------------------------------------------------------------- */

/* Copies n steps of the axis: from position `from` of in (whose axis has in_axis steps) to `to` of
 * out. */
static void copy_axis(void *out, int64_t out_axis, int64_t to, const void *in, int64_t in_axis,
                      int64_t from, int64_t n, int64_t outer, size_t step_bytes)
{
    if (n == 0 || step_bytes == 0) return;
    for (int64_t o = 0; o < outer; o++)
        memcpy((char *)out + (size_t)(o * out_axis + to) * step_bytes,
               (const char *)in + (size_t)(o * in_axis + from) * step_bytes,
               (size_t)n * step_bytes);
}

static size_t step_bytes(const ts_value *v, const ts__ref_split *s)
{
    return (size_t)s->inner * ts_dtype_bytes(v->type.dtype);
}

void ts__ref_slice(const ts_cpu_call *c)
{
    const ts_value *x = c->node->in[0];
    const int64_t start = c->node->attr.slice.start, n = c->node->attr.slice.limit - start;
    const ts__ref_split s = ts__ref_split_at(&x->type, c->node->attr.slice.axis);
    copy_axis(c->out[0], n, 0, c->in[0], s.axis, start, n, s.outer, step_bytes(x, &s));
}

void ts__ref_concat(const ts_cpu_call *c)
{
    const int64_t axis = c->node->attr.axis.axis, total = c->node->out[0]->type.dim[axis].size;
    int64_t to = 0;
    for (int i = 0; i < c->node->n_in; i++) {
        const ts_value *x = c->node->in[i];
        const ts__ref_split s = ts__ref_split_at(&x->type, axis);
        copy_axis(c->out[0], total, to, c->in[i], s.axis, 0, s.axis, s.outer, step_bytes(x, &s));
        to += s.axis;
    }
}

void ts__ref_pad(const ts_cpu_call *c)
{
    const ts_value *x = c->node->in[0], *y = c->node->out[0];
    const int64_t axis = c->node->attr.pad.axis, low = c->node->attr.pad.low, n = ts__ref_count(y);
    const ts__ref_split s = ts__ref_split_at(&x->type, axis);
    if (n == 0) return;
    put_number(c->out[0], y->type.dtype, 0, c->node->attr.pad.value);
    repeat_first(c->out[0], ts_dtype_bytes(y->type.dtype), n);
    copy_axis(c->out[0], y->type.dim[axis].size, low, c->in[0], s.axis, 0, s.axis, s.outer,
              step_bytes(x, &s));
}

static int64_t clamped_start(const void *start, int64_t axis, int64_t size)
{
    const int64_t at = *(const int32_t *)start, most = axis - size;
    return at < 0 ? 0 : at > most ? most : at;
}

void ts__ref_dynamic_slice(const ts_cpu_call *c)
{
    const ts_value *x = c->node->in[0];
    const int64_t n = c->node->attr.dynamic.size;
    const ts__ref_split s = ts__ref_split_at(&x->type, c->node->attr.dynamic.axis);
    copy_axis(c->out[0], n, 0, c->in[0], s.axis, clamped_start(c->in[1], s.axis, n), n, s.outer,
              step_bytes(x, &s));
}

void ts__ref_dynamic_update(const ts_cpu_call *c)
{
    const ts_value *x = c->node->in[0], *u = c->node->in[1];
    const int64_t axis = c->node->attr.dynamic.axis, n = u->type.dim[axis].size;
    const ts__ref_split s = ts__ref_split_at(&x->type, axis);
    ts__ref_copy_bytes(c->out[0], c->in[0], ts_type_bytes(&x->type));
    copy_axis(c->out[0], s.axis, clamped_start(c->in[2], s.axis, n), c->in[1], n, 0, n, s.outer,
              step_bytes(x, &s));
}
