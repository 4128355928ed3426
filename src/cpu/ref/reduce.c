/* cpu/ref/reduce.c – sums, maxima, argmax, top_k.
 *
 * Each result element is made by one thread in operand order, so thread counts do not change bits.
 * A NaN is larger than everything, and of equal values the first wins.
 */
#include "cpu/ref/ref.h"

typedef struct walk { int rank; int64_t size[TS_MAX_RANK], stride[TS_MAX_RANK], count; } walk;

/* Splits x's dimensions into those that stay and those that are reduced. */
static void split_axes(const ts_type *x, const ts_dims *axes, walk *kept, walk *reduced)
{
    int64_t stride[TS_MAX_RANK];
    ts__ref_strides(x, stride);
    *kept = *reduced = (walk){.count = 1};
    for (int i = 0; i < x->rank; i++) {
        walk *w = kept;
        for (int k = 0; k < axes->n; k++)
            if (axes->v[k] == i) w = reduced;
        w->size[w->rank] = x->dim[i].size;
        w->stride[w->rank++] = stride[i];
        w->count *= x->dim[i].size;
    }
}

static int64_t offset_of(const walk *w, int64_t n)
{
    int64_t at = 0;
    for (int i = w->rank - 1; i >= 0; i--) {
        at += n % w->size[i] * w->stride[i];
        n /= w->size[i];
    }
    return at;
}

static bool larger(double a, double b)
{
    return a > b || (isnan(a) && !isnan(b));
}

/* One result element of a float operand: the innermost reduced dimension is a plain loop. */
static double reduce_float(const void *x, ts_dtype t, int64_t from, const walk *r, bool sum)
{
    double value = sum ? 0.0 : -INFINITY;
    const int64_t n = r->rank ? r->size[r->rank - 1] : 1,
                  step = r->rank ? r->stride[r->rank - 1] : 0;
    for (int64_t k = 0; k < r->count; k += n) {
        const int64_t at = from + offset_of(r, k);
        for (int64_t i = 0; i < n; i++) {
            const double v = (double)ts__ref_get(x, t, at + i * step);
            if (sum)
                value += v;
            else if (larger(v, value))
                value = v;
        }
    }
    return value;
}

/* Sums wrap. pred counts as u32 0 and 1: the largest is "any". */
static uint32_t reduce_int(const void *x, ts_dtype t, int64_t from, const walk *r, bool sum)
{
    uint32_t value = !sum && t == TS_I32 ? 0x80000000u : 0u;
    for (int64_t k = 0; k < r->count; k++) {
        const int64_t at = from + offset_of(r, k);
        const uint32_t v = t == TS_PRED ? ((const uint8_t *)x)[at] : ((const uint32_t *)x)[at];
        if (sum)
            value += v;
        else if (t == TS_I32 ? (int32_t)v > (int32_t)value : v > value)
            value = v;
    }
    return value;
}

void ts__ref_reduce(const ts_cpu_call *c)
{
    const ts_value *x = c->node->in[0];
    const ts_dtype t = x->type.dtype;
    const bool sum = c->node->op == TS_OP_reduce_sum;
    const int64_t work = ts__ref_count(x);
    walk kept, reduced;
    split_axes(&x->type, &c->node->attr.reduce.axes, &kept, &reduced);
#pragma omp parallel for num_threads(c->threads) if (work >= TS__REF_PARALLEL)
    for (int64_t i = 0; i < kept.count; i++) {
        const int64_t from = offset_of(&kept, i);
        if (ts__ref_is_float(t)) {
            ts__ref_put(c->out[0], t, i, reduce_float(c->in[0], t, from, &reduced, sum));
        } else {
            const uint32_t v = reduce_int(c->in[0], t, from, &reduced, sum);
            ts__ref_store_int(t, c->out[0], i, 1, &v);
        }
    }
}

/* Any number as a double: exact for every dtype. */
static double number(const void *p, ts_dtype t, int64_t i)
{
    switch (t) {
    case TS_I32: return ((const int32_t *)p)[i];
    case TS_U32: return ((const uint32_t *)p)[i];
    case TS_PRED: return ((const uint8_t *)p)[i];
    default: return (double)ts__ref_get(p, t, i);
    }
}

void ts__ref_argmax(const ts_cpu_call *c)
{
    const ts_value *x = c->node->in[0];
    const ts__ref_split s = ts__ref_split_at(&x->type, c->node->attr.axis.axis);
    for (int64_t o = 0; o < s.outer; o++) {
        for (int64_t i = 0; i < s.inner; i++) {
            int64_t best = 0;
            for (int64_t a = 1; a < s.axis; a++)
                if (larger(number(c->in[0], x->type.dtype, (o * s.axis + a) * s.inner + i),
                           number(c->in[0], x->type.dtype, (o * s.axis + best) * s.inner + i)))
                    best = a;
            ((int32_t *)c->out[0])[o * s.inner + i] = (int32_t)best;
        }
    }
}

/* Whether element a stands before element b in descending order, the first of equals first. */
static bool before(const void *p, ts_dtype t, int64_t row, int64_t a, int64_t b)
{
    const double va = number(p, t, row + a), vb = number(p, t, row + b);
    if (larger(va, vb)) return true;
    if (larger(vb, va)) return false;
    return a < b;
}

void ts__ref_top_k(const ts_cpu_call *c)
{
    const ts_type *t = &c->node->in[0]->type;
    const int64_t n = t->dim[t->rank - 1].size, k = c->node->attr.top_k.k;
    const int64_t rows = n ? ts_type_elements(t) / n : 0;
    const size_t size = ts_dtype_bytes(t->dtype);
    for (int64_t r = 0; r < rows; r++) {
        int64_t last = -1;
        for (int64_t j = 0; j < k; j++) {
            int64_t best = -1;
            for (int64_t i = 0; i < n; i++) {
                const bool free =
                    last < 0 || (i != last && before(c->in[0], t->dtype, r * n, last, i));
                if (free && (best < 0 || before(c->in[0], t->dtype, r * n, i, best))) best = i;
            }
            memcpy((char *)c->out[0] + (size_t)(r * k + j) * size,
                   (const char *)c->in[0] + (size_t)(r * n + best) * size, size);
            ((int32_t *)c->out[1])[r * k + j] = (int32_t)best;
            last = best;
        }
    }
}
