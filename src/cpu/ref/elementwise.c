/* cpu/ref/elementwise.c – one value in, one value out: arithmetic, comparison, select, convert.
 *
 * Work goes in blocks: operands are loaded (a scalar repeats), the block is computed in f32 or u32
 * and stored. A block is read whole before it is written, so a result may lie in an operand's
 * buffer. Integers wrap; their division truncates and x / 0 = −1 (all bits), INT_MIN / −1 =
 * INT_MIN.
 */
#include "cpu/ref/ref.h"

/* Heads a loop over blocks from `at` of `count` elements, on all threads of call `c` when that
 * pays. */
#define FOR_BLOCKS                                                                          \
    _Pragma("omp parallel for num_threads(c->threads) if (count >= TS__REF_PARALLEL)")     \
    for (int64_t at = 0; at < count; at += TS__REF_BLOCK)

static inline int block_size(int64_t count, int64_t at)
{
    return (int)(count - at < TS__REF_BLOCK ? count - at : TS__REF_BLOCK);
}

static inline bool finite_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return (u & 0x7f800000u) != 0x7f800000u;
}

/* ---- one operand ----------------------------------------------------------------------------- */

#define EACH(e) for (int i = 0; i < n; i++) { const float v = x[i]; x[i] = (e); } break

static void unary_float(ts_op op, float *x, int n)
{
    switch (op) {
    case TS_OP_neg: EACH(-v);
    case TS_OP_abs: EACH(fabsf(v));
    case TS_OP_exp: EACH(expf(v));
    case TS_OP_log: EACH(logf(v));
    case TS_OP_sqrt: EACH(sqrtf(v));
    case TS_OP_rsqrt: EACH(1.0f / sqrtf(v));
    case TS_OP_tanh: EACH(tanhf(v));
    case TS_OP_logistic: EACH(1.0f / (1.0f + expf(-v)));
    case TS_OP_sin: EACH(sinf(v));
    case TS_OP_cos: EACH(cosf(v));
    default: TS_ASSERT(!"an op without a float rule");
    }
}
#undef EACH

static void unary_int(ts_op op, ts_dtype t, uint32_t *x, int n)
{
    for (int i = 0; i < n; i++) {
        const uint32_t v = x[i];
        switch (op) {
        case TS_OP_neg: x[i] = 0u - v; break;
        case TS_OP_abs: x[i] = t == TS_I32 && (v >> 31) ? 0u - v : v; break;
        case TS_OP_not: x[i] = t == TS_PRED ? !v : ~v; break;
        default: TS_ASSERT(!"an op without an integer rule");
        }
    }
}

void ts__ref_unary(const ts_cpu_call *c)
{
    const ts_value *x = c->node->in[0];
    const ts_dtype t = x->type.dtype;
    const int64_t count = ts__ref_count(x);
    FOR_BLOCKS {
        const int n = block_size(count, at);
        if (ts__ref_is_float(t)) {
            float v[TS__REF_BLOCK];
            ts__ref_load(x, c->in[0], at, n, v);
            unary_float(c->node->op, v, n);
            ts__ref_store(t, c->out[0], at, n, v);
        } else {
            uint32_t v[TS__REF_BLOCK];
            ts__ref_load_int(x, c->in[0], at, n, v);
            unary_int(c->node->op, t, v, n);
            ts__ref_store_int(t, c->out[0], at, n, v);
        }
    }
}

void ts__ref_is_finite(const ts_cpu_call *c)
{
    const ts_value *x = c->node->in[0];
    const int64_t count = ts__ref_count(x);
    FOR_BLOCKS {
        const int n = block_size(count, at);
        float v[TS__REF_BLOCK];
        ts__ref_load(x, c->in[0], at, n, v);
        for (int i = 0; i < n; i++)
            ((uint8_t *)c->out[0])[at + i] = finite_bits(v[i]);
    }
}

/* ---- convert --------------------------------------------------------------------------------- */

static uint32_t saturate(double v, ts_dtype to)
{
    if (isnan(v)) return 0;
    if (to == TS_U32) return v <= 0 ? 0 : v >= 4294967295.0 ? UINT32_MAX : (uint32_t)v;
    return (uint32_t)(v <= -2147483648.0 ? INT32_MIN : v >= 2147483647.0 ? INT32_MAX : (int32_t)v);
}

static void convert_from_float(const float *x, int n, ts_dtype to, void *out, int64_t at)
{
    if (ts__ref_is_float(to)) {
        ts__ref_store(to, out, at, n, x);
        return;
    }
    uint32_t v[TS__REF_BLOCK];
    for (int i = 0; i < n; i++)
        v[i] = to == TS_PRED ? (uint32_t)(x[i] != 0) : saturate((double)x[i], to);
    ts__ref_store_int(to, out, at, n, v);
}

static void convert_from_int(const uint32_t *x, int n, ts_dtype from, ts_dtype to, void *out,
                             int64_t at)
{
    if (!ts__ref_is_float(to)) {
        ts__ref_store_int(to, out, at, n, x);           /* i32 ↔ u32 keeps the bits */
        return;
    }
    float v[TS__REF_BLOCK];
    for (int i = 0; i < n; i++)
        v[i] = from == TS_I32 ? (float)(int32_t)x[i] : (float)x[i];
    ts__ref_store(to, out, at, n, v);
}

void ts__ref_convert(const ts_cpu_call *c)
{
    const ts_value *x = c->node->in[0];
    const ts_dtype from = x->type.dtype, to = c->node->out[0]->type.dtype;
    const int64_t count = ts__ref_count(x);
    FOR_BLOCKS {
        const int n = block_size(count, at);
        if (ts__ref_is_float(from)) {
            float v[TS__REF_BLOCK];
            ts__ref_load(x, c->in[0], at, n, v);
            convert_from_float(v, n, to, c->out[0], at);
        } else {
            uint32_t v[TS__REF_BLOCK];
            ts__ref_load_int(x, c->in[0], at, n, v);
            convert_from_int(v, n, from, to, c->out[0], at);
        }
    }
}

/* ---- two operands ---------------------------------------------------------------------------- */

#define EACH(e) for (int i = 0; i < n; i++) { const float a = x[i], b = y[i]; x[i] = (e); } break

static void binary_float(ts_op op, float *x, const float *y, int n)
{
    switch (op) {
    case TS_OP_add: EACH(a + b);
    case TS_OP_sub: EACH(a - b);
    case TS_OP_mul: EACH(a * b);
    case TS_OP_div: EACH(a / b);
    case TS_OP_max: EACH(a > b || isnan(a) ? a : b);    /* a NaN b fails a > b and is taken */
    case TS_OP_min: EACH(a < b || isnan(a) ? a : b);
    case TS_OP_pow: EACH(powf(a, b));
    default: TS_ASSERT(!"an op without a float rule");
    }
}
#undef EACH

static uint32_t divide(uint32_t a, uint32_t b, ts_dtype t)
{
    if (b == 0) return UINT32_MAX;
    if (t != TS_I32) return a / b;
    if (b == UINT32_MAX) return 0u - a;                 /* INT_MIN / −1 does not trap */
    return (uint32_t)((int32_t)a / (int32_t)b);
}

static bool less(uint32_t a, uint32_t b, ts_dtype t)
{
    return t == TS_I32 ? (int32_t)a < (int32_t)b : a < b;
}

static uint32_t binary_int_one(ts_op op, ts_dtype t, uint32_t a, uint32_t b)
{
    switch (op) {
    case TS_OP_add: return a + b;
    case TS_OP_sub: return a - b;
    case TS_OP_mul: return a * b;
    case TS_OP_div: return divide(a, b, t);
    case TS_OP_max: return less(a, b, t) ? b : a;
    case TS_OP_min: return less(b, a, t) ? b : a;
    case TS_OP_and: return a & b;
    case TS_OP_or: return a | b;
    case TS_OP_xor: return a ^ b;
    case TS_OP_shift_left: return b >= 32 ? 0 : a << b;
    case TS_OP_shift_right: return b >= 32 ? 0 : a >> b;
    default: TS_ASSERT(!"an op without an integer rule"); return 0;
    }
}

void ts__ref_binary(const ts_cpu_call *c)
{
    const ts_value *x = c->node->in[0], *y = c->node->in[1];
    const ts_op op = c->node->op;
    const ts_dtype t = x->type.dtype;
    const int64_t count = ts__ref_count(c->node->out[0]);
    FOR_BLOCKS {
        const int n = block_size(count, at);
        if (ts__ref_is_float(t)) {
            float a[TS__REF_BLOCK], b[TS__REF_BLOCK];
            ts__ref_load(x, c->in[0], at, n, a);
            ts__ref_load(y, c->in[1], at, n, b);
            binary_float(op, a, b, n);
            ts__ref_store(t, c->out[0], at, n, a);
        } else {
            uint32_t a[TS__REF_BLOCK], b[TS__REF_BLOCK];
            ts__ref_load_int(x, c->in[0], at, n, a);
            ts__ref_load_int(y, c->in[1], at, n, b);
            for (int i = 0; i < n; i++)
                a[i] = binary_int_one(op, t, a[i], b[i]);
            ts__ref_store_int(t, c->out[0], at, n, a);
        }
    }
}

/* Sums in operand order; floats in f32, rounded once. */
void ts__ref_add_n(const ts_cpu_call *c)
{
    const ts_node *node = c->node;
    const ts_dtype t = node->out[0]->type.dtype;
    const int64_t count = ts__ref_count(node->out[0]);
    FOR_BLOCKS {
        const int n = block_size(count, at);
        float sum[TS__REF_BLOCK], v[TS__REF_BLOCK];
        uint32_t isum[TS__REF_BLOCK], u[TS__REF_BLOCK];
        const bool real = ts__ref_is_float(t);
        if (real)
            ts__ref_load(node->in[0], c->in[0], at, n, sum);
        else
            ts__ref_load_int(node->in[0], c->in[0], at, n, isum);
        for (int k = 1; k < node->n_in; k++) {
            if (real)
                ts__ref_load(node->in[k], c->in[k], at, n, v);
            else
                ts__ref_load_int(node->in[k], c->in[k], at, n, u);
            for (int i = 0; i < n; i++) {
                if (real)
                    sum[i] += v[i];
                else
                    isum[i] += u[i];
            }
        }
        if (real)
            ts__ref_store(t, c->out[0], at, n, sum);
        else
            ts__ref_store_int(t, c->out[0], at, n, isum);
    }
}

/* less, equal and greater are all false for a NaN: only ne holds. */
static bool compared(int dir, bool lt, bool eq, bool gt)
{
    switch (dir) {
    case TS_EQ: return eq;
    case TS_NE: return !eq;
    case TS_LT: return lt;
    case TS_LE: return lt || eq;
    case TS_GT: return gt;
    case TS_GE: return gt || eq;
    default: TS_ASSERT(!"an unknown comparison"); return false;
    }
}

void ts__ref_compare(const ts_cpu_call *c)
{
    const ts_value *x = c->node->in[0], *y = c->node->in[1];
    const ts_dtype t = x->type.dtype;
    const int64_t count = ts__ref_count(c->node->out[0]);
    const int dir = c->node->attr.compare.dir;
    FOR_BLOCKS {
        const int n = block_size(count, at);
        float a[TS__REF_BLOCK], b[TS__REF_BLOCK];
        uint32_t u[TS__REF_BLOCK], w[TS__REF_BLOCK];
        const bool real = ts__ref_is_float(t);
        if (real) {
            ts__ref_load(x, c->in[0], at, n, a);
            ts__ref_load(y, c->in[1], at, n, b);
        } else {
            ts__ref_load_int(x, c->in[0], at, n, u);
            ts__ref_load_int(y, c->in[1], at, n, w);
        }
        for (int i = 0; i < n; i++)
            ((uint8_t *)c->out[0])[at + i] =
                real ? compared(dir, a[i] < b[i], a[i] == b[i], a[i] > b[i])
                     : compared(dir, less(u[i], w[i], t), u[i] == w[i], less(w[i], u[i], t));
    }
}

void ts__ref_select(const ts_cpu_call *c)
{
    const ts_node *node = c->node;
    const int64_t count = ts__ref_count(node->out[0]);
    const int64_t step[3] = {node->in[0]->type.rank > 0, node->in[1]->type.rank > 0,
                             node->in[2]->type.rank > 0};
    const uint8_t *pred = c->in[0];
    const size_t size = ts_dtype_bytes(node->out[0]->type.dtype);
#pragma omp parallel for num_threads(c->threads) if (count >= TS__REF_PARALLEL)
    for (int64_t i = 0; i < count; i++) {
        const int from = pred[i * step[0]] ? 1 : 2;
        const int64_t k = i * step[from];
        if (size == 4)
            ((uint32_t *)c->out[0])[i] = ((const uint32_t *)c->in[from])[k];
        else if (size == 2)
            ((uint16_t *)c->out[0])[i] = ((const uint16_t *)c->in[from])[k];
        else
            ((uint8_t *)c->out[0])[i] = ((const uint8_t *)c->in[from])[k];
    }
}
