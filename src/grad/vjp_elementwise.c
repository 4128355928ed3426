/* grad/vjp_elementwise.c – VJP rules of elementwise ops.
 *
 * X, Y are operands, O the result, D its cotangent. A rule computes in the cotangent's dtype, which may be
 * f32 where the values are bf16 (grad.h), and asks for a primal value only where it needs one: what is not
 * asked for is not kept by a repeat. At kinks: |x| has derivative 0 at 0, of equal operands of max and min
 * the first takes all.
 */
#include "grad/rules.h"

#define X (n->in[0])
#define Y (n->in[1])
#define O (n->out[0])
#define D (dout[0])

static ts_value *times(ts_builder *b, ts_value *x, double c)
{
    return ts_mul(b, x, ts_scalar(b, c, x->type.dtype));
}
/* Rules compute in the cotangent's dtype. */
static ts_value *as(ts_builder *b, ts_value *v, const ts_value *d)
{
    return ts_convert(b, v, d->type.dtype);
}

void ts__vjp_neg(ts_grad_pass *g, ts_node *n, ts_value *const *dout)
{
    ts__push(g, n, 0, ts_neg(g->b, D));
}

/* The derivative at 0 is 0. */
void ts__vjp_abs(ts_grad_pass *g, ts_node *n, ts_value *const *dout)
{
    ts_builder *b = g->b;
    ts_value *zero = ts_scalar(b, 0, X->type.dtype), *none = ts_scalar(b, 0, D->type.dtype);
    ts_value *minus = ts_select(b, ts_compare(b, TS_LT, X, zero), ts_neg(b, D), none);
    ts__push(g, n, 0, ts_select(b, ts_compare(b, TS_GT, X, zero), D, minus));
}

void ts__vjp_exp(ts_grad_pass *g, ts_node *n, ts_value *const *dout)
{
    ts__push(g, n, 0, ts_mul(g->b, D, as(g->b, O, D)));
}
void ts__vjp_log(ts_grad_pass *g, ts_node *n, ts_value *const *dout)
{
    ts__push(g, n, 0, ts_div(g->b, D, as(g->b, X, D)));
}

void ts__vjp_sqrt(ts_grad_pass *g, ts_node *n, ts_value *const *dout)
{
    ts__push(g, n, 0, ts_div(g->b, times(g->b, D, 0.5), as(g->b, O, D)));
}

void ts__vjp_rsqrt(ts_grad_pass *g, ts_node *n, ts_value *const *dout) /* −½ o³ d */
{
    ts_value *o = as(g->b, O, D);
    ts__push(g, n, 0, ts_mul(g->b, times(g->b, D, -0.5), ts_mul(g->b, o, ts_mul(g->b, o, o))));
}

void ts__vjp_tanh(ts_grad_pass *g, ts_node *n, ts_value *const *dout) /* d (1 − o²) */
{
    ts_value *o = as(g->b, O, D);
    ts__push(g, n, 0,
             ts_mul(g->b, D, ts_sub(g->b, ts_scalar(g->b, 1, D->type.dtype), ts_mul(g->b, o, o))));
}

void ts__vjp_logistic(ts_grad_pass *g, ts_node *n, ts_value *const *dout) /* d o (1 − o) */
{
    ts_value *o = as(g->b, O, D);
    ts__push(g, n, 0,
             ts_mul(g->b, D, ts_mul(g->b, o, ts_sub(g->b, ts_scalar(g->b, 1, D->type.dtype), o))));
}

void ts__vjp_sin(ts_grad_pass *g, ts_node *n, ts_value *const *dout)
{
    ts__push(g, n, 0, ts_mul(g->b, D, as(g->b, ts_cos(g->b, X), D)));
}

void ts__vjp_cos(ts_grad_pass *g, ts_node *n, ts_value *const *dout)
{
    ts__push(g, n, 0, ts_neg(g->b, ts_mul(g->b, D, as(g->b, ts_sin(g->b, X), D))));
}

/* The cotangent keeps its own dtype here; push rounds it only where the operand is not of f32 origin. */
void ts__vjp_convert(ts_grad_pass *g, ts_node *n, ts_value *const *dout)
{
    ts__push(g, n, 0, D);
}

void ts__vjp_add(ts_grad_pass *g, ts_node *n, ts_value *const *dout)
{
    ts__push(g, n, 0, D);
    ts__push(g, n, 1, D);
}

void ts__vjp_sub(ts_grad_pass *g, ts_node *n, ts_value *const *dout)
{
    ts__push(g, n, 0, D);
    if (ts__needs(g, n, 1)) ts__push(g, n, 1, ts_neg(g->b, D));
}

void ts__vjp_mul(ts_grad_pass *g, ts_node *n, ts_value *const *dout)
{
    if (ts__needs(g, n, 0)) ts__push(g, n, 0, ts_mul(g->b, D, as(g->b, Y, D)));
    if (ts__needs(g, n, 1)) ts__push(g, n, 1, ts_mul(g->b, D, as(g->b, X, D)));
}

void ts__vjp_div(ts_grad_pass *g, ts_node *n, ts_value *const *dout) /* d/y, −o d/y */
{
    ts_value *q = ts_div(g->b, D, as(g->b, Y, D));
    ts__push(g, n, 0, q);
    if (ts__needs(g, n, 1)) ts__push(g, n, 1, ts_neg(g->b, ts_mul(g->b, q, as(g->b, O, D))));
}

/* Of equals the first operand takes all. */
static void pick(ts_grad_pass *g, ts_node *n, ts_value *d, ts_compare_dir first)
{
    ts_value *p = ts_compare(g->b, first, X, Y), *zero = ts_scalar(g->b, 0, d->type.dtype);
    if (ts__needs(g, n, 0)) ts__push(g, n, 0, ts_select(g->b, p, d, zero));
    if (ts__needs(g, n, 1)) ts__push(g, n, 1, ts_select(g->b, p, zero, d));
}

void ts__vjp_max(ts_grad_pass *g, ts_node *n, ts_value *const *dout)
{
    pick(g, n, D, TS_GE);
}
void ts__vjp_min(ts_grad_pass *g, ts_node *n, ts_value *const *dout)
{
    pick(g, n, D, TS_LE);
}

/* y xʸ⁻¹ d; o ln x d, which is 0 at x = 0. */
void ts__vjp_pow(ts_grad_pass *g, ts_node *n, ts_value *const *dout)
{
    ts_builder *b = g->b;
    ts_value *one = ts_scalar(b, 1, X->type.dtype), *zero = ts_scalar(b, 0, X->type.dtype);
    if (ts__needs(g, n, 0)) {
        ts_value *slope = ts_mul(b, Y, ts_pow(b, X, ts_sub(b, Y, one)));
        ts__push(g, n, 0, ts_mul(b, D, as(b, slope, D)));
    }
    if (ts__needs(g, n, 1)) {
        ts_value *positive = ts_compare(b, TS_GT, X, zero);
        ts_value *log = ts_log_e(b, ts_select(b, positive, X, one));
        ts__push(g, n, 1, ts_mul(b, D, as(b, ts_mul(b, O, log), D)));
    }
}

void ts__vjp_add_n(ts_grad_pass *g, ts_node *n, ts_value *const *dout)
{
    for (int i = 0; i < n->n_in; i++) ts__push(g, n, i, D);
}

void ts__vjp_select(ts_grad_pass *g, ts_node *n, ts_value *const *dout)
{
    ts_value *zero = ts_scalar(g->b, 0, D->type.dtype);
    if (ts__needs(g, n, 1)) ts__push(g, n, 1, ts_select(g->b, X, D, zero));
    if (ts__needs(g, n, 2)) ts__push(g, n, 2, ts_select(g->b, X, zero, D));
}
