/* xla/stablehlo_elementwise.c – constants, one value in and one out, comparison, select, convert.
 *
 * What StableHLO leaves to its implementations is written out: division of integers by zero, shifts by 32 and more,
 * floats that no integer can hold. The guards fall away where the operand is a constant. bf16 is computed op by
 * op, as the graph says; only add_n sums in f32 and rounds once.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "xla/stablehlo_emit.h"

/* ---- constants ------------------------------------------------------------------------------- */

/* A float's shortest decimal form that reads back, with the point that MLIR's grammar wants; by its bits where it
 * is no number. */
static void float_text(double value, ts_dtype t, char *buf, size_t n)
{
    float f = (float)value;
    uint32_t bits;
    if (t == TS_BF16) f = ts_bf16_to_f32(ts_bf16_from_f32(f));
    memcpy(&bits, &f, 4);
    if (!isfinite(f)) {
        if (t == TS_BF16) snprintf(buf, n, "0x%04" PRIX32, bits >> 16);
        else snprintf(buf, n, "0x%08" PRIX32, bits);
        return;
    }
    if (f == floorf(f) && fabsf(f) < 1e6f) {
        snprintf(buf, n, "%.1f", (double)f);
        return;
    }
    for (int digits = 1; digits <= 9; digits++) {
        snprintf(buf, n, "%.*e", digits, (double)f);
        if (strtof(buf, NULL) == f) return;
    }
}

/* A whole number's low 32 bits, as every engine takes a constant. */
static uint32_t bits_of(double value)
{
    if (!(value > INT32_MIN)) return isnan(value) ? 0 : (uint32_t)INT32_MIN;
    return value < 0 ? (uint32_t)(int32_t)value : value < UINT32_MAX ? (uint32_t)value : UINT32_MAX;
}

static void number_text(double value, ts_dtype t, char *buf, size_t n)
{
    switch (t) {
    case TS_PRED: snprintf(buf, n, "%s", value != 0 ? "true" : "false"); break;
    case TS_I32: snprintf(buf, n, "%" PRId32, (int32_t)bits_of(value)); break;
    case TS_U32: snprintf(buf, n, "%" PRIu32, bits_of(value)); break;
    default: float_text(value, t, buf, n);
    }
}

ts_type ts__shlo_like(const ts_type *t, ts_dtype dtype)
{
    ts_type u = *t;
    u.dtype = dtype;
    return u;
}

ts_shlo_value ts__shlo_splat(ts_shlo *e, double value, const ts_type *t)
{
    char text[64] = "";
    if (ts_type_elements(t)) number_text(value, t->dtype, text, sizeof text);
    return ts__shlo_op(e, t, "constant dense<$s> : $t", text, t);
}

ts_shlo_value ts__shlo_scalar(ts_shlo *e, double value, ts_dtype t)
{
    const ts_type type = ts_type_make(t, NULL, 0);
    ts_shlo_scalars *s = &e->scalars;
    for (int i = 0; i < s->n; i++)
        if (s->at[i].v.type.dtype == t && memcmp(&s->at[i].value, &value, sizeof value) == 0)
            return s->at[i].v;
    ts_shlo_value v = ts__shlo_splat(e, value, &type);
    if (s->n < (int)(sizeof s->at / sizeof s->at[0])) {
        s->at[s->n].value = value;
        s->at[s->n++].v = v;
    }
    return v;
}

void ts__stablehlo_constant(ts_shlo *e, const ts_node *n)
{
    ts__shlo_set(e, n, 0, ts__shlo_splat(e, n->attr.constant.value, &n->out[0]->type));
}

/* bf16 cannot count beyond 256; i32 can, and is rounded. */
void ts__stablehlo_iota(ts_shlo *e, const ts_node *n)
{
    const ts_type *t = &n->out[0]->type, count = ts__shlo_like(t, TS_I32);
    const ts_type *made = t->dtype == TS_BF16 ? &count : t;
    ts_shlo_value v = ts__shlo_op(e, made, "iota dim = $i : $t", n->attr.iota.axis, made);
    ts__shlo_set(e, n, 0, ts__shlo_convert(e, v, t->dtype));
}

/* Whether every element of an integer v is one number, and which: its low 32 bits. */
static bool is_constant(const ts_value *v, uint32_t *bits)
{
    while (v->node && (v->node->op == TS_OP_broadcast || v->node->op == TS_OP_reshape))
        v = v->node->in[0];
    if (!v->node || v->node->op != TS_OP_constant) return false;
    *bits = bits_of(v->node->attr.constant.value);
    return true;
}

/* ---- shared ---------------------------------------------------------------------------------- */

ts_shlo_value ts__shlo_binary(ts_shlo *e, const char *op, ts_shlo_value x, ts_shlo_value y)
{
    return ts__shlo_op(e, &x.type, "$s $v, $v : $t", op, &x, &y, &x.type);
}

ts_shlo_value ts__shlo_compare(ts_shlo *e, const char *dir, ts_shlo_value x, ts_shlo_value y)
{
    const ts_type t = ts__shlo_like(&x.type, TS_PRED);
    const char *kind = x.type.dtype == TS_I32                              ? "SIGNED"
                       : x.type.dtype == TS_U32 || x.type.dtype == TS_PRED ? "UNSIGNED"
                                                                           : "FLOAT";
    return ts__shlo_op(e, &t, "compare $s, $v, $v, $s : ($t, $t) -> $t", dir, &x, &y, kind, &x.type,
                       &y.type, &t);
}

ts_shlo_value ts__shlo_select(ts_shlo *e, ts_shlo_value pred, ts_shlo_value x, ts_shlo_value y)
{
    return ts__shlo_op(e, &x.type, "select $v, $v, $v : $t, $t", &pred, &x, &y, &pred.type,
                       &x.type);
}

ts_shlo_value ts__shlo_convert(ts_shlo *e, ts_shlo_value x, ts_dtype t)
{
    const ts_type type = ts__shlo_like(&x.type, t);
    if (x.type.dtype == t) return x;
    return ts__shlo_op(e, &type, "convert $v : ($t) -> $t", &x, &x.type, &type);
}

static ts_shlo_value bitcast(ts_shlo *e, ts_shlo_value x, ts_dtype t)
{
    const ts_type type = ts__shlo_like(&x.type, t);
    if (x.type.dtype == t) return x;
    return ts__shlo_op(e, &type, "bitcast_convert $v : ($t) -> $t", &x, &x.type, &type);
}

/* The same number in every element, in the type of v. */
static ts_shlo_value like(ts_shlo *e, double number, ts_shlo_value v)
{
    return ts__shlo_splat(e, number, &v.type);
}

/* ---- one operand ----------------------------------------------------------------------------- */

#define UNARY(name, op)                                                                            \
    void ts__stablehlo_##name(ts_shlo *e, const ts_node *n)                                             \
    {                                                                                              \
        ts_shlo_value x = ts__shlo_in(e, n, 0);                                                    \
        ts__shlo_set(e, n, 0, ts__shlo_op(e, &x.type, op " $v : $t", &x, &x.type));                \
    }
UNARY(neg, "negate")
UNARY(abs, "abs")
UNARY(exp, "exponential")
UNARY(log, "log")
UNARY(sqrt, "sqrt")
UNARY(rsqrt, "rsqrt")
UNARY(tanh, "tanh")
UNARY(logistic, "logistic")
UNARY(sin, "sine")
UNARY(cos, "cosine")
UNARY(not, "not")

/* The exponent's bits are not all ones: true whatever a flag lets the compiler assume of NaN. */
void ts__stablehlo_is_finite(ts_shlo *e, const ts_node *n)
{
    ts_shlo_value bits = bitcast(e, ts__shlo_convert(e, ts__shlo_in(e, n, 0), TS_F32), TS_U32);
    ts_shlo_value ones = like(e, 0x7f800000, bits);
    ts__shlo_set(e, n, 0, ts__shlo_compare(e, "NE", ts__shlo_binary(e, "and", bits, ones), ones));
}

/* Saturating, NaN to 0. Lanes that do not fit are computed too and thrown away. */
static ts_shlo_value float_to_int(ts_shlo *e, ts_shlo_value x, ts_dtype to)
{
    x = ts__shlo_convert(e, x, TS_F32);
    const bool wide = to == TS_U32;
    const double low = wide ? 0 : -2147483648.0, high = wide ? 4294967296.0 : 2147483648.0;
    ts_shlo_value fits = ts__shlo_compare(e, "LT", x, like(e, high, x));
    ts_shlo_value above = ts__shlo_compare(e, "GT", x, like(e, low, x));
    ts_shlo_value number = ts__shlo_compare(e, "EQ", x, x);
    ts_shlo_value v = ts__shlo_convert(e, x, to);
    v = ts__shlo_select(e, fits, v, like(e, high - 1, v));
    v = ts__shlo_select(e, above, v, like(e, low, v));
    return ts__shlo_select(e, number, v, like(e, 0, v));
}

void ts__stablehlo_convert(ts_shlo *e, const ts_node *n)
{
    ts_shlo_value x = ts__shlo_in(e, n, 0);
    const ts_dtype from = x.type.dtype, to = n->out[0]->type.dtype;
    const bool from_float = from == TS_F32 || from == TS_BF16;
    ts_shlo_value v;
    if (from == to) v = x;
    else if (to == TS_PRED) v = ts__shlo_compare(e, "NE", x, like(e, 0, x));
    else if (from_float && (to == TS_I32 || to == TS_U32)) v = float_to_int(e, x, to);
    else if ((from == TS_I32 && to == TS_U32) || (from == TS_U32 && to == TS_I32))
        v = bitcast(e, x, to);
    else v = ts__shlo_convert(e, x, to);
    ts__shlo_set(e, n, 0, v);
}

/* ---- two operands and more ------------------------------------------------------------------- */

#define BINARY(name, op)                                                                           \
    void ts__stablehlo_##name(ts_shlo *e, const ts_node *n)                                             \
    {                                                                                              \
        ts__shlo_set(e, n, 0, ts__shlo_binary(e, op, ts__shlo_in(e, n, 0), ts__shlo_in(e, n, 1))); \
    }
BINARY(add, "add")
BINARY(sub, "subtract")
BINARY(mul, "multiply")
BINARY(max, "maximum")
BINARY(min, "minimum")
BINARY(pow, "power")
BINARY(and, "and")
BINARY(or, "or")
BINARY(xor, "xor")

/* Integers: y = 0 gives −1, and the smallest number over −1 gives itself. */
void ts__stablehlo_div(ts_shlo *e, const ts_node *n)
{
    ts_shlo_value x = ts__shlo_in(e, n, 0), y = ts__shlo_in(e, n, 1), one, zero, is_zero, minus, v;
    const ts_dtype t = x.type.dtype;
    uint32_t c = 0;
    if ((t != TS_I32 && t != TS_U32) || (is_constant(n->in[1], &c) && c != 0 && c != UINT32_MAX)) {
        ts__shlo_set(e, n, 0, ts__shlo_binary(e, "divide", x, y));
        return;
    }
    one = like(e, 1, y);
    zero = like(e, 0, y);
    is_zero = ts__shlo_compare(e, "EQ", y, zero);
    minus = like(e, -1, y);
    ts_shlo_value safe = ts__shlo_select(e, is_zero, one, y);
    if (t == TS_I32) {
        ts_shlo_value is_minus = ts__shlo_compare(e, "EQ", y, minus);
        v = ts__shlo_binary(e, "divide", x, ts__shlo_select(e, is_minus, one, safe));
        v = ts__shlo_select(e, is_minus, ts__shlo_binary(e, "subtract", zero, x), v);
    } else {
        v = ts__shlo_binary(e, "divide", x, safe);
    }
    ts__shlo_set(e, n, 0, ts__shlo_select(e, is_zero, minus, v));
}

static void shift(ts_shlo *e, const ts_node *n, const char *op)
{
    ts_shlo_value x = ts__shlo_in(e, n, 0), y = ts__shlo_in(e, n, 1);
    ts_shlo_value v = ts__shlo_binary(e, op, x, y);
    uint32_t c;
    if (!is_constant(n->in[1], &c) || c > 31) {
        ts_shlo_value bits = bitcast(e, y, TS_U32);
        v = ts__shlo_select(e, ts__shlo_compare(e, "LT", bits, like(e, 32, bits)), v,
                            like(e, 0, v));
    }
    ts__shlo_set(e, n, 0, v);
}

void ts__stablehlo_shift_left(ts_shlo *e, const ts_node *n) { shift(e, n, "shift_left"); }
void ts__stablehlo_shift_right(ts_shlo *e, const ts_node *n) { shift(e, n, "shift_right_logical"); }

void ts__stablehlo_add_n(ts_shlo *e, const ts_node *n)
{
    const ts_dtype t = n->out[0]->type.dtype, inside = t == TS_BF16 && n->n_in > 2 ? TS_F32 : t;
    ts_shlo_value sum = ts__shlo_convert(e, ts__shlo_in(e, n, 0), inside);
    for (int i = 1; i < n->n_in; i++)
        sum = ts__shlo_binary(e, "add", sum, ts__shlo_convert(e, ts__shlo_in(e, n, i), inside));
    ts__shlo_set(e, n, 0, ts__shlo_convert(e, sum, t));
}

void ts__stablehlo_compare(ts_shlo *e, const ts_node *n)
{
    static const char *const dirs[] = {"EQ", "NE", "LT", "LE", "GT", "GE"};
    ts__shlo_set(e, n, 0,
                 ts__shlo_compare(e, dirs[n->attr.compare.dir], ts__shlo_in(e, n, 0),
                                  ts__shlo_in(e, n, 1)));
}

/* A scalar pred is spread: not every plugin's select takes it as it is. */
void ts__stablehlo_select(ts_shlo *e, const ts_node *n)
{
    static const ts_dims nowhere;
    ts_shlo_value pred = ts__shlo_in(e, n, 0), x = ts__shlo_in(e, n, 1);
    const ts_type mask = ts__shlo_like(&x.type, TS_PRED);
    if (pred.type.rank != mask.rank) pred = ts__shlo_broadcast(e, pred, &mask, &nowhere);
    ts__shlo_set(e, n, 0, ts__shlo_select(e, pred, x, ts__shlo_in(e, n, 2)));
}
