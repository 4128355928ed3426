/* cpu/elementwise_body.h – one element in, one element out, for f32 and bf16; included by
 * elementwise_*.c.
 *
 * One loop a formula and dtype; operands have the result's shape. Arithmetic is f32; bf16 rounds
 * once, at the store. Every vector is read before its place is written, so a result may lie in the
 * buffer of any operand of the same size. Elements are independent: any thread count, the same
 * bits. Not here: integer arithmetic, log, sin, cos, pow (cpu/ref). */
#include "cpu/fast.h"
#include "cpu/vec_math.h"

/* One call's view. */
typedef struct span {
    const void *a, *b, *pred;
    void *out;
    bool h; /* operands are bf16 */
} span;
typedef void span_fn(const span *s, int64_t begin, int64_t end);

/* Calls body with a constant dtype, so that each is a loop of its own. */
#define SPECIALISE(body)                                                                           \
    do {                                                                                           \
        if (s->h)                                                                                  \
            body(s, true, begin, end);                                                             \
        else                                                                                       \
            body(s, false, begin, end);                                                            \
    } while (0)

#define BINARY(name, expr)                                                                         \
    INLINE void name##_body(const span *s, bool h, int64_t i, int64_t end)                         \
    {                                                                                              \
        for (; i + VN <= end; i += VN) {                                                           \
            vf x = v_get(h, s->a, i), y = v_get(h, s->b, i);                                       \
            v_put(h, s->out, i, expr);                                                             \
        }                                                                                          \
        if (i == end) return;                                                                      \
        vf x = v_get_n(h, s->a, i, end - i), y = v_get_n(h, s->b, i, end - i);                     \
        v_put_n(h, s->out, i, expr, end - i);                                                      \
    }                                                                                              \
    static void name(const span *s, int64_t begin, int64_t end)                                    \
    {                                                                                              \
        SPECIALISE(name##_body);                                                                   \
    }

BINARY(span_add, x + y)
BINARY(span_sub, x - y)
BINARY(span_mul, (x) * (y))
BINARY(span_div, x / y)
BINARY(span_max, v_max(x, y))
BINARY(span_min, v_min(x, y))

#define UNARY(name, expr)                                                                          \
    INLINE void name##_body(const span *s, bool h, int64_t i, int64_t end)                         \
    {                                                                                              \
        for (; i + VN <= end; i += VN) {                                                           \
            vf x = v_get(h, s->a, i);                                                              \
            v_put(h, s->out, i, expr);                                                             \
        }                                                                                          \
        if (i == end) return;                                                                      \
        vf x = v_get_n(h, s->a, i, end - i);                                                       \
        v_put_n(h, s->out, i, expr, end - i);                                                      \
    }                                                                                              \
    static void name(const span *s, int64_t begin, int64_t end)                                    \
    {                                                                                              \
        if (s->h)                                                                                  \
            name##_body(s, true, begin, end);                                                      \
        else                                                                                       \
            name##_body(s, false, begin, end);                                                     \
    }

UNARY(span_neg, v_neg(x))
UNARY(span_abs, v_abs(x))
UNARY(span_exp, v_exp(x))
UNARY(span_sqrt, v_sqrt(x))
UNARY(span_rsqrt, v_set1(1.0f) / v_sqrt(x))
UNARY(span_tanh, v_tanh(x))
UNARY(span_logistic, v_logistic(x))

/* ---- results that are predicates ------------------------------------------------------------- */

#define COMPARE(name, how)                                                                         \
    INLINE void name##_body(const span *s, bool h, int64_t i, int64_t end)                         \
    {                                                                                              \
        uint8_t *out = s->out, last[VN];                                                           \
        for (; i + VN <= end; i += VN) {                                                           \
            vf x = v_get(h, s->a, i), y = v_get(h, s->b, i);                                       \
            v_store_pred(out + i, v_cmp(x, y, how));                                               \
        }                                                                                          \
        if (i == end) return;                                                                      \
        vf x = v_get_n(h, s->a, i, end - i), y = v_get_n(h, s->b, i, end - i);                     \
        v_store_pred(last, v_cmp(x, y, how));                                                      \
        memcpy(out + i, last, (size_t)(end - i));                                                  \
    }                                                                                              \
    static void name(const span *s, int64_t begin, int64_t end)                                    \
    {                                                                                              \
        SPECIALISE(name##_body);                                                                   \
    }

COMPARE(span_eq, _CMP_EQ_OQ)
COMPARE(span_ne, _CMP_NEQ_UQ)
COMPARE(span_lt, _CMP_LT_OQ)
COMPARE(span_le, _CMP_LE_OQ)
COMPARE(span_gt, _CMP_GT_OQ)
COMPARE(span_ge, _CMP_GE_OQ)

INLINE void finite_body(const span *s, bool h, int64_t i, int64_t end)
{
    /* |x| < ∞ is false for NaN as well: a comparison, not arithmetic, so no flag can break it. */
    const vf inf = v_from_bits(v_seti(0x7f800000));
    uint8_t *out = s->out, last[VN];
    for (; i + VN <= end; i += VN)
        v_store_pred(out + i, v_cmp(v_abs(v_get(h, s->a, i)), inf, _CMP_LT_OQ));
    if (i == end) return;
    v_store_pred(last, v_cmp(v_abs(v_get_n(h, s->a, i, end - i)), inf, _CMP_LT_OQ));
    memcpy(out + i, last, (size_t)(end - i));
}

static void span_is_finite(const span *s, int64_t begin, int64_t end)
{
    if (s->h)
        finite_body(s, true, begin, end);
    else
        finite_body(s, false, begin, end);
}

/* ---- select, convert, add_n ------------------------------------------------------------------ */

INLINE void select_body(const span *s, bool h, int64_t i, int64_t end)
{
    const uint8_t *pred = s->pred;
    for (; i + VN <= end; i += VN) {
        v_put(h, s->out, i, v_blend(v_load_pred(pred + i), v_get(h, s->a, i), v_get(h, s->b, i)));
    }
    if (i == end) return;
    uint8_t last[16] = {0};
    memcpy(last, pred + i, (size_t)(end - i));
    vf x = v_get_n(h, s->a, i, end - i), y = v_get_n(h, s->b, i, end - i);
    v_put_n(h, s->out, i, v_blend(v_load_pred(last), x, y), end - i);
}

static void span_select(const span *s, int64_t begin, int64_t end)
{
    SPECIALISE(select_body);
}

void ISA(ts__widen)(const uint16_t *x, float *y, int64_t n)
{
    int64_t i = 0;
    for (; i + VN <= n; i += VN) v_store(y + i, v_load_h(x + i));
    if (i < n) v_store_n(y + i, v_load_h_n(x + i, n - i), n - i);
}

void ISA(ts__narrow)(const float *x, uint16_t *y, int64_t n)
{
    int64_t i = 0;
    for (; i + VN <= n; i += VN) v_store_h(y + i, v_load(x + i));
    if (i < n) v_store_h_n(y + i, v_load_n(x + i, n - i), n - i);
}

/* h: from bf16 to f32; else from f32 to bf16. */
static void span_convert(const span *s, int64_t begin, int64_t end)
{
    if (s->h)
        ISA(ts__widen)((const uint16_t *)s->a + begin, (float *)s->out + begin, end - begin);
    else
        ISA(ts__narrow)((const float *)s->a + begin, (uint16_t *)s->out + begin, end - begin);
}

INLINE void add_n_body(bool h, void *const *in, int n, void *out, int64_t i, int64_t end)
{
    for (; i < end; i += VN) {
        const int64_t left = end - i < VN ? end - i : VN;
        vf sum = v_get_n(h, in[0], i, left);
        for (int k = 1; k < n; k++) sum = sum + v_get_n(h, in[k], i, left);
        v_put_n(h, out, i, sum, left);
    }
}

static void run_add_n(const ts_cpu_call *c)
{
    const int64_t n = ts_type_elements(ts__out_type(c->node, 0));
    const bool h = ts__out_type(c->node, 0)->dtype == TS_BF16;
    const int threads = ts__threads(n * c->node->n_in, c->threads);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int t = 0; t < threads; t++) {
        int64_t begin, end;
        ts__split(n, threads, t, 64, &begin, &end);
        if (h)
            add_n_body(true, c->in, c->node->n_in, c->out[0], begin, end);
        else
            add_n_body(false, c->in, c->node->n_in, c->out[0], begin, end);
    }
}

/* ---- choosing and running -------------------------------------------------------------------- */

static span_fn *const span_of[TS_OPS] = {
    [TS_OP_add] = span_add,           [TS_OP_sub] = span_sub,
    [TS_OP_mul] = span_mul,           [TS_OP_div] = span_div,
    [TS_OP_max] = span_max,           [TS_OP_min] = span_min,
    [TS_OP_neg] = span_neg,           [TS_OP_abs] = span_abs,
    [TS_OP_exp] = span_exp,           [TS_OP_sqrt] = span_sqrt,
    [TS_OP_rsqrt] = span_rsqrt,       [TS_OP_tanh] = span_tanh,
    [TS_OP_logistic] = span_logistic, [TS_OP_is_finite] = span_is_finite,
    [TS_OP_select] = span_select,     [TS_OP_convert] = span_convert,
};
static span_fn *const compare_of[] = {
    [TS_EQ] = span_eq, [TS_NE] = span_ne, [TS_LT] = span_lt,
    [TS_LE] = span_le, [TS_GT] = span_gt, [TS_GE] = span_ge,
};

static void run_spans(const ts_cpu_call *c)
{
    const ts_node *node = c->node;
    const int64_t n = ts_type_elements(ts__out_type(node, 0));
    const int first = node->op == TS_OP_select;
    const bool one = node->n_in - first > 1;
    const span s = {
        .pred = c->in[0],
        .a = c->in[first],
        .b = one ? c->in[first + 1] : NULL,
        .out = c->out[0],
        .h = ts__in_type(node, first)->dtype == TS_BF16,
    };
    span_fn *fn =
        node->op == TS_OP_compare ? compare_of[node->attr.compare.dir] : span_of[node->op];
    const int threads =
        ts__threads(node->op == TS_OP_tanh || node->op == TS_OP_exp ? n * 4 : n, c->threads);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int t = 0; t < threads; t++) {
        int64_t begin, end;
        ts__split(n, threads, t, 64, &begin, &end);
        if (begin < end) fn(&s, begin, end);
    }
}

/* A scalar predicate chooses a whole operand. */
static void run_select_scalar(const ts_cpu_call *c)
{
    const void *from = *(const uint8_t *)c->in[0] ? c->in[1] : c->in[2];
    ts__copy_flat(from, c->out[0], ts_type_bytes(ts__out_type(c->node, 0)), c->threads);
}

#define KERNEL(what, fn, mask)                                                                     \
    {                                                                                              \
        "ts_cpu_" what "_" ISA_TEXT, ts__prepare_plain, fn, NULL, mask                             \
    }
static const ts_cpu_kernel unary_kernel = KERNEL("unary", run_spans, 1);
static const ts_cpu_kernel binary_kernel = KERNEL("binary", run_spans, 3);
static const ts_cpu_kernel other_kernel = KERNEL("compare_convert", run_spans, 0);
static const ts_cpu_kernel select_kernel = KERNEL("select", run_spans, 6);
static const ts_cpu_kernel select_scalar_kernel = KERNEL("select_scalar", run_select_scalar, 6);
static const ts_cpu_kernel add_n_kernel = KERNEL("add_n", run_add_n, 0xff);

static const ts_cpu_kernel *pick_select(const ts_node *n)
{
    const ts_type *out = ts__out_type(n, 0);
    if (out->rank > 0 && ts__in_type(n, 0)->rank == 0) return &select_scalar_kernel;
    /* An integer passes through f32 lanes unchanged. */
    return ts_dtype_bytes(out->dtype) == 4 || out->dtype == TS_BF16 ? &select_kernel : NULL;
}

const ts_cpu_kernel *ISA(ts__pick_elementwise)(const ts_node *n)
{
    if (n->op == TS_OP_select) return pick_select(n);
    if (n->n_in < 1 || !ts__is_float(ts__in_type(n, 0)->dtype)) return NULL;
    const ts_dtype from = ts__in_type(n, 0)->dtype, to = ts__out_type(n, 0)->dtype;
    switch (n->op) {
    case TS_OP_neg:
    case TS_OP_abs:
    case TS_OP_exp:
    case TS_OP_sqrt:
    case TS_OP_rsqrt:
    case TS_OP_tanh:
    case TS_OP_logistic: return &unary_kernel;
    case TS_OP_add:
    case TS_OP_sub:
    case TS_OP_mul:
    case TS_OP_div:
    case TS_OP_max:
    case TS_OP_min: return &binary_kernel;
    case TS_OP_compare:
    case TS_OP_is_finite: return &other_kernel;
    case TS_OP_convert: return ts__is_float(to) && from != to ? &other_kernel : NULL;
    case TS_OP_add_n: return &add_n_kernel;
    default: return NULL;
    }
}
