/* ir/shape_fused.c – the shape rules of composites, collectives and repeat (the rest: shape.c).
 *
 * A composite's rule fixes what a fused kernel and its lowering may rely on: layouts as in
 * tessera.h, statistics (log-sum-exp, losses, weights' gradients of norms and heads) in f32,
 * gradients of activations in the activations' dtype. A repeat's rule ties its operands to its
 * region's arguments and results. Attribute ranges are checked here too, so the verifier needs no
 * second list.
 */
#include <math.h>
#include <stdio.h>

#include "ir/shape.h"

/* A real attribute that must be finite and ≥ 0. */
static ts_status check_real(ts_rule *r, const char *what, double v)
{
    if (isfinite(v) && v >= 0) return TS_OK;
    return TS_RULE_ERROR(r, "%s is %g; expected a finite number ≥ 0", what, v);
}

static ts_type with_dtype(const ts_type *t, ts_dtype dtype)
{
    ts_type u = *t;
    u.dtype = dtype;
    return u;
}

/* ---- norms, rope, activations ---------------------------------------------------------------- */

ts_status ts__rule_random_bits(ts_rule *r)
{
    const ts_shape *s = &r->attr->shape.shape;
    ts_type key = ts_type_make(TS_U32, TS_DIMS({NULL, 2})),
            t = ts_type_make(TS_U32, s->dim, s->rank);
    TS_TRY(ts__rule_exactly(r, 0, "key", &key, ""));
    return ts__rule_out(r, &t);
}

static ts_status check_norm(ts_rule *r)
{
    const ts_type *x = &r->in[0]->type, *w = &r->in[1]->type;
    TS_TRY(check_real(r, "eps", r->attr->rms_norm.eps));
    if (x->rank < 1)
        return TS_RULE_ERROR(r, "x is %s; expected a last dimension to normalise", TS_TEXT(x));
    ts_type expected =
        ts_type_make(w->dtype == TS_F32 ? TS_F32 : x->dtype, &x->dim[x->rank - 1], 1);
    return ts__rule_exactly(r, 1, "w", &expected, "x's last dimension, f32 or x's dtype");
}

ts_status ts__rule_rms_norm(ts_rule *r)
{
    TS_TRY(check_norm(r));
    return ts__rule_out(r, &r->in[0]->type);
}

ts_status ts__rule_rms_norm_grad(ts_rule *r)
{
    TS_TRY(check_norm(r));
    TS_TRY(ts__rule_same(r, 2, "dy", 0, "x"));
    ts_type dw = with_dtype(&r->in[1]->type, TS_F32);
    TS_TRY(ts__rule_out(r, &r->in[0]->type));
    return ts__rule_out(r, &dw);
}

ts_status ts__rule_rope(ts_rule *r)
{
    const ts_type *x = &r->in[0]->type, *cos = &r->in[1]->type;
    if (x->rank < 3) return TS_RULE_ERROR(r, "x is %s; expected [B,S,…,D]", TS_TEXT(x));
    ts_dim half = {NULL, x->dim[x->rank - 1].size / 2};
    if (x->dim[x->rank - 1].size % 2)
        return TS_RULE_ERROR(r, "the last dimension of x, %s, is odd; pairs need an even one",
                             TS_TEXT(x));
    ts_type shared = ts_type_make(TS_F32, TS_DIMS(x->dim[1], half));          /* [S,D/2] */
    ts_type each = ts_type_make(TS_F32, TS_DIMS(x->dim[0], x->dim[1], half)); /* [B,S,D/2] */
    if (cos->rank == 3) TS_TRY(ts__rule_exactly(r, 1, "cos", &each, "[B,S,D/2] of x"));
    else TS_TRY(ts__rule_exactly(r, 1, "cos", &shared, "[S,D/2] or [B,S,D/2] of x"));
    TS_TRY(ts__rule_same(r, 2, "sin", 1, "cos"));
    return ts__rule_out(r, x);
}

static ts_status check_gated(ts_rule *r)
{
    if (r->attr->gated.act != TS_SILU && r->attr->gated.act != TS_GELU_TANH)
        return TS_RULE_ERROR(r, "activation %d does not exist", r->attr->gated.act);
    return ts__rule_same(r, 1, "up", 0, "gate");
}

ts_status ts__rule_gated(ts_rule *r)
{
    TS_TRY(check_gated(r));
    return ts__rule_out(r, &r->in[0]->type);
}

ts_status ts__rule_gated_grad(ts_rule *r)
{
    TS_TRY(check_gated(r));
    TS_TRY(ts__rule_same(r, 2, "dy", 0, "gate"));
    TS_TRY(ts__rule_out(r, &r->in[0]->type));
    return ts__rule_out(r, &r->in[1]->type);
}

/* ---- attention ------------------------------------------------------------------------------- */

/* q [B,S,K,G,D], k, v [B,T,K,D], segments i32 [B,S] as operand `segments` where it exists. */
static ts_status check_attention(ts_rule *r, int segments)
{
    const ts_type *q = &r->in[0]->type, *k = &r->in[1]->type;
    if (r->attr->attention.window < 0)
        return TS_RULE_ERROR(r, "window is %" PRId64 "; expected 0 (no limit) or more",
                             r->attr->attention.window);
    if (!(r->attr->attention.scale > 0) || !isfinite(r->attr->attention.scale))
        return TS_RULE_ERROR(r,
                             "scale is %g; expected a positive number (the builder makes "
                             "head_dim^-½ of 0)",
                             r->attr->attention.scale);
    TS_TRY(check_real(r, "softcap", r->attr->attention.softcap));
    TS_TRY(ts__rule_rank(r, 0, "q [B,S,K,G,D]", 5));
    TS_TRY(ts__rule_rank(r, 1, "k [B,T,K,D]", 4));
    ts_type expected = ts_type_make(q->dtype, TS_DIMS(q->dim[0], k->dim[1], q->dim[2], q->dim[4]));
    TS_TRY(ts__rule_exactly(r, 1, "k", &expected, "[B,T,K,D] of q [B,S,K,G,D]"));
    TS_TRY(ts__rule_same(r, 2, "v", 1, "k"));
    if (r->n_in <= segments) return TS_OK;
    if (q->dim[1].size != k->dim[1].size)
        return TS_RULE_ERROR(r,
                             "segments need as many keys as queries; q has %" PRId64
                             ", k has %" PRId64,
                             q->dim[1].size, k->dim[1].size);
    expected = ts_type_make(TS_I32, q->dim, 2);
    return ts__rule_exactly(r, segments, "segments", &expected, "[B,S] of q");
}

ts_status ts__rule_attention(ts_rule *r)
{
    TS_TRY(check_attention(r, 3));
    ts_type lse = ts_type_make(TS_F32, r->in[0]->type.dim, 4); /* [B,S,K,G] */
    TS_TRY(ts__rule_out(r, &r->in[0]->type));
    return ts__rule_out(r, &lse);
}

ts_status ts__rule_attention_grad(ts_rule *r)
{
    TS_TRY(check_attention(r, 6));
    ts_type lse = ts_type_make(TS_F32, r->in[0]->type.dim, 4); /* [B,S,K,G] */
    TS_TRY(ts__rule_same(r, 3, "o", 0, "q"));
    TS_TRY(ts__rule_exactly(r, 4, "lse", &lse, "[B,S,K,G] of q"));
    TS_TRY(ts__rule_same(r, 5, "do", 0, "q"));
    for (int i = 0; i < 3; i++) TS_TRY(ts__rule_out(r, &r->in[i]->type));
    return TS_OK;
}

/* ---- experts --------------------------------------------------------------------------------- */

/* X + 1 row numbers. */
static ts_status offsets_type(ts_rule *r, int64_t experts, ts_type *t)
{
    int64_t n;
    if (experts < 1 || ts_add_i64(experts, 1, &n))
        return TS_RULE_ERROR(r, "there are %" PRId64 " experts; expected at least 1", experts);
    *t = ts_type_make(TS_I32, TS_DIMS({NULL, n}));
    return TS_OK;
}

/* ids [T,k] and X experts need at most T·k rows and 7 unused ones an expert. */
ts_status ts__rule_expert_rows(ts_rule *r)
{
    const ts_type *ids = &r->in[0]->type;
    const int64_t X = r->attr->expert_rows.experts;
    int64_t assignments, unused, R;
    ts_type offsets;
    TS_TRY(ts__rule_rank(r, 0, "ids [T,k]", 2));
    TS_TRY(offsets_type(r, X, &offsets));
    if (ts_mul_i64(ids->dim[0].size, ids->dim[1].size, &assignments) ||
        ts_mul_i64(X, TS_EXPERT_ALIGN, &unused) || ts_add_i64(assignments, unused, &R) ||
        R > INT32_MAX)
        return TS_RULE_ERROR(r,
                             "ids is %s and there are %" PRId64
                             " experts; ids and %d rows an expert must be fewer than 2^31",
                             TS_TEXT(ids), X, TS_EXPERT_ALIGN);
    ts_type rows = ts_type_make(TS_I32, TS_DIMS({NULL, R}));
    TS_TRY(ts__rule_out(r, &rows));
    TS_TRY(ts__rule_out(r, &rows));
    return ts__rule_out(r, &offsets);
}

/* x [R,E], w [X,F,E], offsets i32 [X+1]; *y gets [R,F]. */
static ts_status check_grouped(ts_rule *r, ts_type *y)
{
    const ts_type *x = &r->in[0]->type, *w = &r->in[1]->type;
    ts_type offsets;
    TS_TRY(ts__rule_rank(r, 0, "x [R,E]", 2));
    TS_TRY(ts__rule_rank(r, 1, "w [X,F,E]", 3));
    if (x->dim[0].size > INT32_MAX)
        return TS_RULE_ERROR(r, "x is %s; offsets are i32 and reach 2^31 − 1 rows", TS_TEXT(x));
    ts_type expected = ts_type_make(x->dtype, TS_DIMS(w->dim[0], w->dim[1], x->dim[1]));
    TS_TRY(ts__rule_exactly(r, 1, "w", &expected, "[X,F,E] of x [R,E]"));
    TS_TRY(offsets_type(r, w->dim[0].size, &offsets));
    TS_TRY(ts__rule_exactly(r, 2, "offsets", &offsets, "[X+1] of w [X,F,E]"));
    *y = ts_type_make(x->dtype, TS_DIMS(x->dim[0], w->dim[1]));
    return TS_OK;
}

ts_status ts__rule_grouped_dot(ts_rule *r)
{
    ts_type y;
    TS_TRY(check_grouped(r, &y));
    return ts__rule_out(r, &y);
}

ts_status ts__rule_grouped_dot_grad(ts_rule *r)
{
    ts_type y, dw = with_dtype(&r->in[1]->type, TS_F32);
    TS_TRY(check_grouped(r, &y));
    TS_TRY(ts__rule_exactly(r, 3, "dy", &y, "[R,F] of x [R,E] and w [X,F,E]"));
    TS_TRY(ts__rule_out(r, &r->in[0]->type));
    return ts__rule_out(r, &dw);
}

/* ---- linear + cross-entropy, adamw ----------------------------------------------------------- */

/* x [T,E], w [V,E], labels i32 [T]; *row gets f32 [T]. */
static ts_status check_xent(ts_rule *r, ts_type *row)
{
    const ts_type *x = &r->in[0]->type, *w = &r->in[1]->type;
    if (r->attr->xent.chunk < 0)
        return TS_RULE_ERROR(r, "chunk is %" PRId64 "; expected 0 (one piece) or more tokens",
                             r->attr->xent.chunk);
    TS_TRY(check_real(r, "softcap", r->attr->xent.softcap));
    TS_TRY(ts__rule_rank(r, 0, "x [T,E]", 2));
    TS_TRY(ts__rule_rank(r, 1, "w [V,E]", 2));
    ts_type expected = ts_type_make(x->dtype, TS_DIMS(w->dim[0], x->dim[1]));
    TS_TRY(ts__rule_exactly(r, 1, "w", &expected, "[V,E] of x [T,E]"));
    if (w->dim[0].size == 0)
        return TS_RULE_ERROR(r, "w is %s; expected at least one class", TS_TEXT(w));
    expected = ts_type_make(TS_I32, x->dim, 1);
    TS_TRY(ts__rule_exactly(r, 2, "labels", &expected, "[T] of x"));
    *row = with_dtype(&expected, TS_F32);
    return TS_OK;
}

ts_status ts__rule_linear_xent(ts_rule *r)
{
    ts_type row;
    TS_TRY(check_xent(r, &row));
    TS_TRY(ts__rule_out(r, &row));
    return ts__rule_out(r, &row);
}

ts_status ts__rule_linear_xent_grad(ts_rule *r)
{
    static const char *const what[] = {"lse", "dloss", "dlse"};
    ts_type row, dw = with_dtype(&r->in[1]->type, TS_F32);
    TS_TRY(check_xent(r, &row));
    for (int i = 0; i < 3; i++) TS_TRY(ts__rule_exactly(r, 3 + i, what[i], &row, "[T] of x"));
    TS_TRY(ts__rule_out(r, &r->in[0]->type));
    return ts__rule_out(r, &dw);
}

ts_status ts__rule_xent_rows(ts_rule *r)
{
    ts_type row;
    TS_TRY(check_xent(r, &row));
    for (int i = 0; i < 3; i++) TS_TRY(ts__rule_out(r, &row));
    return TS_OK;
}

ts_status ts__rule_adamw(ts_rule *r)
{
    static const char *const what[] = {"p", "g", "m", "v", "lr", "step", "scale", "ok"};
    static const ts_dtype scalar[] = {TS_F32, TS_I32, TS_F32, TS_PRED};
    double b1 = r->attr->adamw.b1, b2 = r->attr->adamw.b2;
    if (!(b1 >= 0 && b1 < 1 && b2 >= 0 && b2 < 1))
        return TS_RULE_ERROR(r, "b1 is %g, b2 is %g; expected 0 ≤ b < 1", b1, b2);
    TS_TRY(check_real(r, "eps", r->attr->adamw.eps));
    TS_TRY(check_real(r, "weight_decay", r->attr->adamw.weight_decay));
    for (int i = 1; i < 4; i++) TS_TRY(ts__rule_same(r, i, what[i], 0, "p"));
    for (int i = 4; i < 8; i++) {
        ts_type t = ts_type_make(scalar[i - 4], NULL, 0);
        TS_TRY(ts__rule_exactly(r, i, what[i], &t, "a scalar"));
    }
    for (int i = 0; i < 3; i++) TS_TRY(ts__rule_out(r, &r->in[i ? i + 1 : 0]->type));
    return TS_OK;
}

/* ---- collectives ----------------------------------------------------------------------------- */

static ts_status check_collective(ts_rule *r)
{
    if (!r->attr->collective.axis || !*r->attr->collective.axis)
        return TS_RULE_ERROR(r, "%s", "the mesh axis has no name");
    if (r->attr->collective.n < 1)
        return TS_RULE_ERROR(r, "mesh axis %s has %" PRId64 " devices; expected at least 1",
                             r->attr->collective.axis, r->attr->collective.n);
    if (r->attr->collective.reduce != 0 && r->attr->collective.reduce != 1)
        return TS_RULE_ERROR(r, "reduction %d does not exist; 0 is sum, 1 is max",
                             r->attr->collective.reduce);
    return TS_OK;
}

static ts_status divide(ts_rule *r, ts_type *t, int64_t dim)
{
    int64_t n = r->attr->collective.n;
    TS_TRY(ts__rule_axis(r, dim, t));
    if (t->dim[dim].size % n)
        return TS_RULE_ERROR(r,
                             "dimension %" PRId64 " of %s does not divide by the %" PRId64
                             " devices of %s",
                             dim, TS_TEXT(t), n, r->attr->collective.axis);
    t->dim[dim].size /= n;
    return TS_OK;
}

static ts_status multiply(ts_rule *r, ts_type *t, int64_t dim)
{
    TS_TRY(ts__rule_axis(r, dim, t));
    if (ts_mul_i64(t->dim[dim].size, r->attr->collective.n, &t->dim[dim].size))
        return TS_RULE_ERROR(r, "dimension %" PRId64 " overflows", dim);
    return TS_OK;
}

ts_status ts__rule_axis_index(ts_rule *r)
{
    ts_type t = ts_type_make(TS_I32, NULL, 0);
    TS_TRY(check_collective(r));
    return ts__rule_out(r, &t);
}

ts_status ts__rule_all_reduce(ts_rule *r)
{
    TS_TRY(check_collective(r));
    return ts__rule_out(r, &r->in[0]->type);
}

ts_status ts__rule_collective_permute(ts_rule *r) { return ts__rule_all_reduce(r); }

ts_status ts__rule_all_gather(ts_rule *r)
{
    ts_type t = r->in[0]->type;
    TS_TRY(check_collective(r));
    TS_TRY(multiply(r, &t, r->attr->collective.dim));
    return ts__rule_out(r, &t);
}

ts_status ts__rule_reduce_scatter(ts_rule *r)
{
    ts_type t = r->in[0]->type;
    TS_TRY(check_collective(r));
    TS_TRY(divide(r, &t, r->attr->collective.dim));
    return ts__rule_out(r, &t);
}

ts_status ts__rule_all_to_all(ts_rule *r)
{
    ts_type t = r->in[0]->type;
    TS_TRY(check_collective(r));
    TS_TRY(divide(r, &t, r->attr->collective.dim));
    TS_TRY(multiply(r, &t, r->attr->collective.dim2));
    return ts__rule_out(r, &t);
}

/* ---- repeat ---------------------------------------------------------------------------------- */

static ts_status repeat_counts(ts_rule *r)
{
    const ts_attr *a = r->attr;
    int64_t c = a->repeat.n_carry, x = a->repeat.n_xs, k = a->repeat.n_consts,
            s = a->repeat.n_stack;
    if (a->repeat.n < 1)
        return TS_RULE_ERROR(r, "runs %" PRId64 " times; expected at least 1", a->repeat.n);
    if (a->repeat.remat < TS_REMAT_NONE || a->repeat.remat > TS_REMAT_MINIMAL)
        return TS_RULE_ERROR(r, "remat policy %" PRId64 " does not exist", a->repeat.remat);
    if (c < 0 || x < 0 || k < 0 || c > r->n_in || x > r->n_in || c + x > r->n_in ||
        k != r->n_in - c - x)
        return TS_RULE_ERROR(r,
                             "%" PRId64 " carries, %" PRId64 " xs and %" PRId64
                             " consts, but %d operands",
                             c, x, k, r->n_in);
    if (r->body->n_arg != r->n_in)
        return TS_RULE_ERROR(r,
                             "%d operands, but its region has %d arguments; they must be equally "
                             "many",
                             r->n_in, r->body->n_arg);
    if (s < 0 || s > r->body->n_result || c > r->body->n_result - s)
        return TS_RULE_ERROR(r,
                             "%" PRId64 " carries and %" PRId64
                             " stacked results, but its region yields %d values",
                             c, s, r->body->n_result);
    return TS_OK;
}

/* An xs operand [n, …] without its leading dimension. */
static ts_status repeat_slice(ts_rule *r, int i, ts_type *t)
{
    const ts_type *x = &r->in[i]->type;
    if (x->rank < 1 || x->dim[0].size != r->attr->repeat.n)
        return TS_RULE_ERROR(r,
                             "operand %d is sliced and is %s; its first dimension must be the "
                             "%" PRId64 " iterations",
                             i, TS_TEXT(x), r->attr->repeat.n);
    *t = ts_type_make(x->dtype, x->dim + 1, x->rank - 1);
    return TS_OK;
}

static ts_status repeat_operands(ts_rule *r)
{
    const ts_attr *a = r->attr;
    for (int i = 0; i < r->n_in; i++) {
        ts_type t = r->in[i]->type;
        bool carry = i < a->repeat.n_carry, xs = !carry && i < a->repeat.n_carry + a->repeat.n_xs;
        if (xs) TS_TRY(repeat_slice(r, i, &t));
        if (!ts_type_same(&t, &r->body->arg[i]->type))
            return TS_RULE_ERROR(
                r, "operand %d (%s) is %s, argument %d of its region is %s; expected %s", i,
                carry ? "carry" : xs ? "xs" : "const",
                TS_TEXT(&r->in[i]->type), i, TS_TEXT(&r->body->arg[i]->type), TS_TEXT(&t));
        if (carry && !ts_type_same(&t, &r->body->result[i]->type))
            return TS_RULE_ERROR(r,
                                 "carry %d starts as %s, its region yields %s; they must be equal",
                                 i, TS_TEXT(&t), TS_TEXT(&r->body->result[i]->type));
    }
    return TS_OK;
}

ts_status ts__rule_repeat(ts_rule *r)
{
    TS_TRY(repeat_counts(r));
    TS_TRY(repeat_operands(r));
    int64_t n_carry = r->attr->repeat.n_carry, n_stack = r->attr->repeat.n_stack;
    for (int i = 0; i < r->body->n_result; i++) {
        ts_type t = r->body->result[i]->type;
        if (i >= n_carry && i < n_carry + n_stack) {
            if (t.rank == TS_MAX_RANK)
                return TS_RULE_ERROR(r, "result %d is %s; stacking it would exceed %d dimensions",
                                     i, TS_TEXT(&t), TS_MAX_RANK);
            memmove(t.dim + 1, t.dim, (size_t)t.rank++ * sizeof *t.dim);
            t.dim[0] = (ts_dim){r->attr->repeat.n_xs ? r->in[n_carry]->type.dim[0].name : NULL,
                                r->attr->repeat.n};
        } else if (i >= n_carry && t.dtype == TS_PRED) {
            return TS_RULE_ERROR(r, "result %d is accumulated and is %s; pred cannot be summed", i,
                                 TS_TEXT(&t));
        }
        TS_TRY(ts__rule_out(r, &t));
    }
    return TS_OK;
}
