/* ir/build_ops.c – the builder functions of tessera.h that make one node each.
 *
 * Only conveniences are added to the plain op: a rank-0 operand of an elementwise op is broadcast,
 * conversions and reshapes that change nothing make no node, and scale 0 of attention becomes
 * head_dim^-½. Shapes are checked by the shape rules (shape.c).
 */
#include <math.h>

#include "ir/builder.h"

static ts_shape shape_of(ts_builder *b, const ts_dim *dims, int rank)
{
    ts_shape s = {.rank = rank};
    if (rank < 0 || rank > TS_MAX_RANK) {
        ts__mistake(b, TS_INVALID_ARGUMENT, "rank %d is outside 0 … %d", rank, TS_MAX_RANK);
        s.rank = 0;
        return s;
    }
    for (int i = 0; i < rank; i++) s.dim[i] = dims[i];
    return s;
}

static ts_dims dims_of(ts_builder *b, const int64_t *v, int n)
{
    ts_dims d = {.n = n};
    if (n < 0 || n > TS_MAX_RANK) {
        ts__mistake(b, TS_INVALID_ARGUMENT, "a list of %d axes; at most %d are possible", n,
                    TS_MAX_RANK);
        d.n = 0;
        return d;
    }
    for (int i = 0; i < n; i++) d.v[i] = v[i];
    return d;
}

/* ---- sources --------------------------------------------------------------------------------- */

ts_value *ts_constant(ts_builder *b, double value, ts_dtype dtype, const ts_dim *dims, int rank)
{
    ts_attr a = {.constant = {value, dtype, shape_of(b, dims, rank)}};
    return ts__op(b, TS_OP_constant, NULL, 0, &a);
}

ts_value *ts_scalar(ts_builder *b, double value, ts_dtype dtype)
{
    return ts_constant(b, value, dtype, TS_SCALAR);
}

ts_value *ts_iota(ts_builder *b, ts_dtype dtype, const ts_dim *dims, int rank, int axis)
{
    ts_attr a = {.iota = {axis, dtype, shape_of(b, dims, rank)}};
    return ts__op(b, TS_OP_iota, NULL, 0, &a);
}

ts_value *ts_random_bits(ts_builder *b, ts_value *key, const ts_dim *dims, int rank)
{
    ts_attr a = {.shape = {shape_of(b, dims, rank)}};
    return ts__op(b, TS_OP_random_bits, &key, 1, &a);
}

/* ---- elementwise ----------------------------------------------------------------------------- */

#define UNARY(fn, op)                                                                              \
    ts_value *fn(ts_builder *b, ts_value *x)                                                       \
    {                                                                                              \
        return ts__op(b, TS_OP_##op, &x, 1, NULL);                                                 \
    }
UNARY(ts_neg, neg)
UNARY(ts_abs, abs)
UNARY(ts_exp, exp)
UNARY(ts_log_e, log)
UNARY(ts_sqrt, sqrt)
UNARY(ts_rsqrt, rsqrt)
UNARY(ts_tanh, tanh)
UNARY(ts_logistic, logistic)
UNARY(ts_sin, sin)
UNARY(ts_cos, cos)
UNARY(ts_not, not )
UNARY(ts_is_finite, is_finite)

static ts_value *like(ts_builder *b, ts_value *x, const ts_value *shape)
{
    if (x->type.rank != 0 || shape->type.rank == 0 || b->error.code != TS_OK) return x;
    return ts_broadcast(b, x, shape->type.dim, shape->type.rank, NULL, 0);
}

static ts_value *binary(ts_builder *b, ts_op op, ts_value *x, ts_value *y, const ts_attr *attr)
{
    ts_value *in[2] = {like(b, x, y), like(b, y, x)};
    return ts__op(b, op, in, 2, attr);
}

#define BINARY(fn, op)                                                                             \
    ts_value *fn(ts_builder *b, ts_value *x, ts_value *y)                                          \
    {                                                                                              \
        return binary(b, TS_OP_##op, x, y, NULL);                                                  \
    }
BINARY(ts_add, add)
BINARY(ts_sub, sub)
BINARY(ts_mul, mul)
BINARY(ts_div, div)
BINARY(ts_max, max)
BINARY(ts_min, min)
BINARY(ts_pow, pow)
BINARY(ts_and, and)
BINARY(ts_or, or)
BINARY(ts_xor, xor)
BINARY(ts_shift_left, shift_left)
BINARY(ts_shift_right, shift_right)

ts_value *ts_add_n(ts_builder *b, ts_value *const *xs, int n)
{
    return n == 1 ? ts__use(b, xs[0]) : ts__op(b, TS_OP_add_n, xs, n, NULL);
}

ts_value *ts_compare(ts_builder *b, ts_compare_dir dir, ts_value *x, ts_value *y)
{
    ts_attr a = {.compare = {(int)dir}};
    return binary(b, TS_OP_compare, x, y, &a);
}

ts_value *ts_select(ts_builder *b, ts_value *pred, ts_value *x, ts_value *y)
{
    ts_value *shape = x->type.rank ? x : y;
    ts_value *in[3] = {pred, like(b, x, shape), like(b, y, shape)};
    return ts__op(b, TS_OP_select, in, 3, NULL);
}

ts_value *ts_convert(ts_builder *b, ts_value *x, ts_dtype dtype)
{
    ts_attr a = {.convert = {dtype}};
    return x->type.dtype == dtype ? ts__use(b, x) : ts__op(b, TS_OP_convert, &x, 1, &a);
}

/* ---- shape ----------------------------------------------------------------------------------- */

ts_value *ts_reshape(ts_builder *b, ts_value *x, const ts_dim *dims, int rank)
{
    ts_attr a = {.shape = {shape_of(b, dims, rank)}};
    return ts__op(b, TS_OP_reshape, &x, 1, &a);
}

ts_value *ts_transpose(ts_builder *b, ts_value *x, const int64_t *perm, int rank)
{
    ts_attr a = {.transpose = {dims_of(b, perm, rank)}};
    return ts__op(b, TS_OP_transpose, &x, 1, &a);
}

ts_value *ts_broadcast(ts_builder *b, ts_value *x, const ts_dim *dims, int rank, const int64_t *map,
                       int n)
{
    ts_attr a = {.broadcast = {shape_of(b, dims, rank), dims_of(b, map, n)}};
    return ts__op(b, TS_OP_broadcast, &x, 1, &a);
}

ts_value *ts_slice(ts_builder *b, ts_value *x, int axis, int64_t start, int64_t limit)
{
    ts_attr a = {.slice = {axis, start, limit}};
    return ts__op(b, TS_OP_slice, &x, 1, &a);
}

ts_value *ts_concat(ts_builder *b, ts_value *const *xs, int n, int axis)
{
    ts_attr a = {.axis = {axis}};
    return ts__op(b, TS_OP_concat, xs, n, &a);
}

ts_value *ts_pad(ts_builder *b, ts_value *x, int axis, int64_t low, int64_t high, double value)
{
    ts_attr a = {.pad = {axis, low, high, value}};
    return ts__op(b, TS_OP_pad, &x, 1, &a);
}

ts_value *ts_dynamic_slice(ts_builder *b, ts_value *x, ts_value *start, int axis, int64_t size)
{
    ts_value *in[2] = {x, start};
    ts_attr a = {.dynamic = {axis, size}};
    return ts__op(b, TS_OP_dynamic_slice, in, 2, &a);
}

ts_value *ts_dynamic_update(ts_builder *b, ts_value *x, ts_value *update, ts_value *start, int axis)
{
    ts_value *in[3] = {x, update, start};
    ts_attr a = {.dynamic = {axis, ts_dim_of(update, axis)}};
    return ts__op(b, TS_OP_dynamic_update, in, 3, &a);
}

/* ---- reductions, products, rows -------------------------------------------------------------- */

ts_value *ts_reduce_sum(ts_builder *b, ts_value *x, const int64_t *axes, int n)
{
    ts_attr a = {.reduce = {dims_of(b, axes, n)}};
    return ts__op(b, TS_OP_reduce_sum, &x, 1, &a);
}

ts_value *ts_reduce_max(ts_builder *b, ts_value *x, const int64_t *axes, int n)
{
    ts_attr a = {.reduce = {dims_of(b, axes, n)}};
    return ts__op(b, TS_OP_reduce_max, &x, 1, &a);
}

ts_value *ts_argmax(ts_builder *b, ts_value *x, int axis)
{
    ts_attr a = {.axis = {axis}};
    return ts__op(b, TS_OP_argmax, &x, 1, &a);
}

void ts_top_k(ts_builder *b, ts_value *x, int64_t k, ts_value **values, ts_value **indices)
{
    ts_attr a = {.top_k = {k}};
    ts_node *n = ts__op_n(b, TS_OP_top_k, &x, 1, &a);
    *values = n ? n->out[0] : b->poison;
    *indices = n ? n->out[1] : b->poison;
}

ts_value *ts_dot(ts_builder *b, ts_value *x, ts_value *y, const ts_dot_dims *d, ts_dtype out)
{
    ts_value *in[2] = {x, y};
    ts_attr a = {.dot = {dims_of(b, d->x_batch, d->n_batch), dims_of(b, d->y_batch, d->n_batch),
                         dims_of(b, d->x_contract, d->n_contract),
                         dims_of(b, d->y_contract, d->n_contract), out}};
    return ts__op(b, TS_OP_dot, in, 2, &a);
}

ts_value *ts_take(ts_builder *b, ts_value *table, ts_value *ids, int64_t no_grad_row)
{
    ts_value *in[2] = {table, ids};
    ts_attr a = {.take = {no_grad_row}};
    return ts__op(b, TS_OP_take, in, 2, &a);
}

ts_value *ts_scatter_add(ts_builder *b, ts_value *ids, ts_value *updates, ts_dim rows,
                         int64_t no_grad_row)
{
    ts_value *in[2] = {ids, updates};
    ts_attr a = {.scatter = {{.rank = 1, .dim = {rows}}, no_grad_row}};
    return ts__op(b, TS_OP_scatter_add, in, 2, &a);
}

void ts_barrier(ts_builder *b, ts_value *const *xs, int n, ts_value **out)
{
    ts_node *node = n ? ts__op_n(b, TS_OP_barrier, xs, n, NULL) : NULL;
    for (int i = 0; i < n; i++) out[i] = node ? node->out[i] : b->poison;
}

/* ---- composites ------------------------------------------------------------------------------ */

ts_value *ts_rms_norm(ts_builder *b, ts_value *x, ts_value *w, double eps)
{
    ts_value *in[2] = {x, w};
    ts_attr a = {.rms_norm = {eps}};
    return ts__op(b, TS_OP_rms_norm, in, 2, &a);
}

ts_value *ts_rope(ts_builder *b, ts_value *x, ts_value *cos, ts_value *sin)
{
    ts_value *in[3] = {x, cos, sin};
    ts_attr a = {.rope = {false}};
    return ts__op(b, TS_OP_rope, in, 3, &a);
}

ts_value *ts_attention(ts_builder *b, ts_value *q, ts_value *k, ts_value *v, ts_value *segments,
                       const ts_attention_options *o, ts_value **lse)
{
    ts_value *in[4] = {q, k, v, segments};
    double D = q->type.rank == 5 ? (double)q->type.dim[4].size : 1;
    ts_attr a = {
        .attention = {o->causal, o->window, o->scale != 0 ? o->scale : 1 / sqrt(D), o->softcap}};
    ts_node *n = ts__op_n(b, TS_OP_attention, in, segments ? 4 : 3, &a);
    if (lse) *lse = n ? n->out[1] : b->poison;
    return n ? n->out[0] : b->poison;
}

ts_value *ts_gated(ts_builder *b, ts_activation act, ts_value *gate, ts_value *up)
{
    ts_value *in[2] = {gate, up};
    ts_attr a = {.gated = {(int)act}};
    return ts__op(b, TS_OP_gated, in, 2, &a);
}

ts_value *ts_linear_xent(ts_builder *b, ts_value *x, ts_value *w, ts_value *labels, double softcap,
                         int64_t chunk, ts_value **lse)
{
    ts_value *in[3] = {x, w, labels};
    ts_attr a = {.xent = {chunk, softcap}};
    ts_node *n = ts__op_n(b, TS_OP_linear_xent, in, 3, &a);
    if (lse) *lse = n ? n->out[1] : b->poison;
    return n ? n->out[0] : b->poison;
}

void ts_xent_rows(ts_builder *b, ts_value *x, ts_value *w, ts_value *labels, double softcap,
                  int64_t chunk, ts_value *out[3])
{
    ts_value *in[3] = {x, w, labels};
    ts_attr a = {.xent = {chunk, softcap}};
    ts_node *n = ts__op_n(b, TS_OP_xent_rows, in, 3, &a);
    for (int i = 0; i < 3; i++) out[i] = n ? n->out[i] : b->poison;
}

void ts_expert_rows(ts_builder *b, ts_value *ids, int64_t experts, ts_value **token,
                    ts_value **assignment, ts_value **offsets)
{
    ts_attr a = {.expert_rows = {experts}};
    ts_node *n = ts__op_n(b, TS_OP_expert_rows, &ids, 1, &a);
    *token = n ? n->out[0] : b->poison;
    *assignment = n ? n->out[1] : b->poison;
    *offsets = n ? n->out[2] : b->poison;
}

ts_value *ts_grouped_dot(ts_builder *b, ts_value *x, ts_value *w, ts_value *offsets)
{
    ts_value *in[3] = {x, w, offsets};
    return ts__op(b, TS_OP_grouped_dot, in, 3, NULL);
}

void ts_adamw(ts_builder *b, ts_value *p, ts_value *g, ts_value *m, ts_value *v, ts_value *lr,
              ts_value *step, ts_value *scale, ts_value *ok, const ts_adamw_options *o,
              ts_value *out[3])
{
    ts_value *in[8] = {p, g, m, v, lr, step, scale, ok};
    ts_attr a = {.adamw = {o->b1, o->b2, o->eps, o->weight_decay}};
    ts_node *n = ts__op_n(b, TS_OP_adamw, in, 8, &a);
    for (int i = 0; i < 3; i++) out[i] = n ? n->out[i] : b->poison;
}
