/* xla/stablehlo_shape.c – moves, reductions, products, rows by number.
 *
 * The largest element's index is found with two plain reductions, top_k with a stable sort, both under one order:
 * NaN above everything, the first of equals first. Products and sums of bf16 are made in f32 and rounded once.
 * A gather clamps its ids, so rows outside are cleared behind it; a scatter drops them by itself.
 * Results without elements never get here (stablehlo.c); operands without may.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "xla/stablehlo_emit.h"

static bool is_empty(const ts_value *v) { return ts_type_elements(&v->type) == 0; }

/* ---- moves ----------------------------------------------------------------------------------- */

ts_shlo_value ts__shlo_reshape(ts_shlo *e, ts_shlo_value x, const ts_type *t)
{
    if (ts_type_same(&x.type, t)) return x;
    return ts__shlo_op(e, t, "reshape $v : ($t) -> $t", &x, &x.type, t);
}

ts_shlo_value ts__shlo_broadcast(ts_shlo *e, ts_shlo_value x, const ts_type *t,
                                 const ts_dims *map)
{
    return ts__shlo_op(e, t, "broadcast_in_dim $v, dims = [$l] : ($t) -> $t", &x, map, &x.type, t);
}

void ts__stablehlo_reshape(ts_shlo *e, const ts_node *n)
{
    ts__shlo_set(e, n, 0, ts__shlo_reshape(e, ts__shlo_in(e, n, 0), &n->out[0]->type));
}

void ts__stablehlo_transpose(ts_shlo *e, const ts_node *n)
{
    ts_shlo_value x = ts__shlo_in(e, n, 0);
    const ts_type *t = &n->out[0]->type;
    ts__shlo_set(e, n, 0,
                 ts__shlo_op(e, t, "transpose $v, dims = [$l] : ($t) -> $t", &x,
                             &n->attr.transpose.perm, &x.type, t));
}

void ts__stablehlo_broadcast(ts_shlo *e, const ts_node *n)
{
    ts__shlo_set(e, n, 0,
                 ts__shlo_broadcast(e, ts__shlo_in(e, n, 0), &n->out[0]->type,
                                    &n->attr.broadcast.map));
}

/* [start, limit) of one axis, all of the others. */
static ts_shlo_value slice(ts_shlo *e, ts_shlo_value x, int64_t axis, int64_t start, int64_t limit)
{
    char text[TS_MAX_RANK * 44] = "";
    size_t at = 0;
    ts_type t = x.type;
    t.dim[axis].size = limit - start;
    for (int i = 0; i < t.rank; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "%s%" PRId64 ":%" PRId64, i ? ", " : "",
                               i == axis ? start : 0, i == axis ? limit : t.dim[i].size);
    return ts__shlo_op(e, &t, "slice $v [$s] : ($t) -> $t", &x, text, &x.type, &t);
}

void ts__stablehlo_slice(ts_shlo *e, const ts_node *n)
{
    ts__shlo_set(e, n, 0,
                 slice(e, ts__shlo_in(e, n, 0), n->attr.slice.axis, n->attr.slice.start,
                       n->attr.slice.limit));
}

void ts__stablehlo_concat(ts_shlo *e, const ts_node *n)
{
    ts_shlo_value out;
    const char *comma = "";
    ts__shlo_begin(e, &n->out[0]->type, 1, &out);
    ts__shlo_put(e, "stablehlo.concatenate ");
    for (int i = 0; i < n->n_in; i++) {
        ts_shlo_value x = ts__shlo_in(e, n, i);
        if (is_empty(n->in[i])) continue;
        ts__shlo_put(e, "$s$v", comma, &x);
        comma = ", ";
    }
    ts__shlo_put(e, ", dim = $i : (", n->attr.axis.axis);
    comma = "";
    for (int i = 0; i < n->n_in; i++) {
        if (is_empty(n->in[i])) continue;
        ts__shlo_put(e, "$s$t", comma, &n->in[i]->type);
        comma = ", ";
    }
    ts__shlo_put(e, ") -> $t", &out.type);
    ts__shlo_end(e);
    ts__shlo_set(e, n, 0, out);
}

void ts__stablehlo_pad(ts_shlo *e, const ts_node *n)
{
    ts_shlo_value x = ts__shlo_in(e, n, 0);
    ts_dims low = {.n = x.type.rank}, high = low, none = low;
    const ts_type *t = &n->out[0]->type;
    if (is_empty(n->in[0])) {
        ts__shlo_set(e, n, 0, ts__shlo_splat(e, n->attr.pad.value, t));
        return;
    }
    low.v[n->attr.pad.axis] = n->attr.pad.low;
    high.v[n->attr.pad.axis] = n->attr.pad.high;
    ts_shlo_value with = ts__shlo_scalar(e, n->attr.pad.value, x.type.dtype);
    ts__shlo_set(e, n, 0,
                 ts__shlo_op(e, t, "pad $v, $v, low = [$l], high = [$l], interior = [$l] : "
                             "($t, $t) -> $t", &x, &with, &low, &high, &none, &x.type, &with.type,
                             t));
}

/* ", %at, %zero" and their types: `at` on one axis, 0 on the others. */
static void put_starts(ts_shlo *e, const ts_shlo_value *at, const ts_shlo_value *zero, int64_t axis,
                       int rank, bool types)
{
    for (int i = 0; i < rank; i++) {
        const ts_shlo_value *v = i == axis ? at : zero;
        if (types) ts__shlo_put(e, ", $t", &v->type);
        else ts__shlo_put(e, ", $v", v);
    }
}

ts_shlo_value ts__shlo_slice_at(ts_shlo *e, ts_shlo_value x, ts_shlo_value at, int64_t axis,
                                const ts_type *t)
{
    ts_shlo_value out, zero = t->rank > 1 ? ts__shlo_scalar(e, 0, TS_I32) : at;
    ts_dims sizes = {.n = t->rank};
    for (int i = 0; i < t->rank; i++) sizes.v[i] = t->dim[i].size;
    ts__shlo_begin(e, t, 1, &out);
    ts__shlo_put(e, "stablehlo.dynamic_slice $v", &x);
    put_starts(e, &at, &zero, axis, t->rank, false);
    ts__shlo_put(e, ", sizes = [$l] : ($t", &sizes, &x.type);
    put_starts(e, &at, &zero, axis, t->rank, true);
    ts__shlo_put(e, ") -> $t", t);
    ts__shlo_end(e);
    return out;
}

ts_shlo_value ts__shlo_update_at(ts_shlo *e, ts_shlo_value x, ts_shlo_value update,
                                 ts_shlo_value at, int64_t axis)
{
    ts_shlo_value out, zero = x.type.rank > 1 ? ts__shlo_scalar(e, 0, TS_I32) : at;
    ts__shlo_begin(e, &x.type, 1, &out);
    ts__shlo_put(e, "stablehlo.dynamic_update_slice $v, $v", &x, &update);
    put_starts(e, &at, &zero, axis, x.type.rank, false);
    ts__shlo_put(e, " : ($t, $t", &x.type, &update.type);
    put_starts(e, &at, &zero, axis, x.type.rank, true);
    ts__shlo_put(e, ") -> $t", &x.type);
    ts__shlo_end(e);
    return out;
}

void ts__stablehlo_dynamic_slice(ts_shlo *e, const ts_node *n)
{
    ts__shlo_set(e, n, 0,
                 ts__shlo_slice_at(e, ts__shlo_in(e, n, 0), ts__shlo_in(e, n, 1),
                                   n->attr.dynamic.axis, &n->out[0]->type));
}

void ts__stablehlo_dynamic_update(ts_shlo *e, const ts_node *n)
{
    ts_shlo_value x = ts__shlo_in(e, n, 0);
    if (!is_empty(n->in[1]))
        x = ts__shlo_update_at(e, x, ts__shlo_in(e, n, 1), ts__shlo_in(e, n, 2),
                               n->attr.dynamic.axis);
    ts__shlo_set(e, n, 0, x);
}

/* ---- reductions ------------------------------------------------------------------------------ */

/* The smallest number, which the largest of nothing is. */
static double least(ts_dtype t)
{
    return t == TS_I32 ? INT32_MIN : t == TS_F32 || t == TS_BF16 ? -INFINITY : 0;
}

/* t without the axes. */
static ts_type reduced(const ts_type *t, const ts_dims *axes)
{
    ts_type r = {.dtype = t->dtype};
    for (int i = 0; i < t->rank; i++) {
        bool drop = false;
        for (int k = 0; k < axes->n; k++) drop |= axes->v[k] == i;
        if (!drop) r.dim[r.rank++] = t->dim[i];
    }
    return r;
}

static ts_shlo_value reduce(ts_shlo *e, const char *op, ts_shlo_value x, double init,
                            const ts_dims *axes)
{
    const ts_type t = reduced(&x.type, axes);
    if (!axes->n) return x;
    if (ts_type_elements(&x.type) == 0) return ts__shlo_splat(e, init, &t);
    ts_shlo_value first = ts__shlo_scalar(e, init, x.type.dtype);
    return ts__shlo_op(e, &t, "reduce($v init: $v) applies stablehlo.$s across dimensions = [$l] : "
                       "($t, $t) -> $t", &x, &first, op, axes, &x.type, &first.type, &t);
}

void ts__stablehlo_reduce_sum(ts_shlo *e, const ts_node *n)
{
    const ts_dtype t = n->in[0]->type.dtype;
    ts_shlo_value x = ts__shlo_in(e, n, 0);
    if (t == TS_BF16 && n->attr.reduce.axes.n) x = ts__shlo_convert(e, x, TS_F32);
    x = reduce(e, "add", x, 0, &n->attr.reduce.axes);
    ts__shlo_set(e, n, 0, ts__shlo_convert(e, x, t));
}

void ts__stablehlo_reduce_max(ts_shlo *e, const ts_node *n)
{
    ts_shlo_value x = ts__shlo_in(e, n, 0);
    ts__shlo_set(e, n, 0,
                 reduce(e, "maximum", x, least(x.type.dtype), &n->attr.reduce.axes));
}

/* The smallest index of an element that equals the largest one, or is NaN: if any is, the largest is NaN too, and
 * equals none. */
void ts__stablehlo_argmax(ts_shlo *e, const ts_node *n)
{
    ts_shlo_value x = ts__shlo_in(e, n, 0);
    const ts_dims axes = {1, {n->attr.axis.axis}};
    const ts_type index = ts__shlo_like(&x.type, TS_I32);
    ts_dims map = {0};
    for (int i = 0; i < x.type.rank; i++)
        if (i != axes.v[0]) map.v[map.n++] = i;
    ts_shlo_value most = reduce(e, "maximum", x, least(x.type.dtype), &axes);
    most = ts__shlo_broadcast(e, most, &x.type, &map);
    ts_shlo_value hit = ts__shlo_compare(e, "EQ", x, most);
    if (x.type.dtype == TS_F32 || x.type.dtype == TS_BF16)
        hit = ts__shlo_binary(e, "or", hit, ts__shlo_compare(e, "NE", x, x));
    ts_shlo_value at = ts__shlo_op(e, &index, "iota dim = $i : $t", axes.v[0], &index);
    ts_shlo_value none = ts__shlo_splat(e, INT32_MAX, &index);
    at = ts__shlo_select(e, hit, at, none);
    ts__shlo_set(e, n, 0, reduce(e, "minimum", at, INT32_MAX, &axes));
}

/* ({ ^bb0(x, y, their indices): x stands before y }) */
static void put_before(ts_shlo *e, ts_dtype dtype)
{
    const ts_type t = ts_type_make(dtype, NULL, 0), index = ts_type_make(TS_I32, NULL, 0),
                  pred = ts_type_make(TS_PRED, NULL, 0);
    const bool real = dtype == TS_F32 || dtype == TS_BF16;
    ts__shlo_put(e, " ({$n^bb0(%x: $t, %y: $t, %i: $t, %j: $t):", &t, &t, &index, &index);
    e->depth++;
    ts__shlo_put(e, "$n%gt = stablehlo.compare GT, %x, %y, $s : ($t, $t) -> $t",
                 real              ? "FLOAT"
                 : dtype == TS_I32 ? "SIGNED"
                                   : "UNSIGNED",
                 &t, &t, &pred);
    if (real) {
        ts__shlo_put(e, "$n%xn = stablehlo.compare NE, %x, %x, FLOAT : ($t, $t) -> $t", &t, &t, &pred);
        ts__shlo_put(e, "$n%yn = stablehlo.compare EQ, %y, %y, FLOAT : ($t, $t) -> $t", &t, &t, &pred);
        ts__shlo_put(e, "$n%nan = stablehlo.and %xn, %yn : $t", &pred);
        ts__shlo_put(e, "$n%first = stablehlo.or %gt, %nan : $t", &pred);
    }
    ts__shlo_put(e, "$nstablehlo.return $s : $t", real ? "%first" : "%gt", &pred);
    e->depth--;
    ts__shlo_put(e, "$n})");
}

void ts__stablehlo_top_k(ts_shlo *e, const ts_node *n)
{
    ts_shlo_value x = ts__shlo_in(e, n, 0), sorted[2];
    const int64_t last = x.type.rank - 1;
    const ts_type types[2] = {x.type, ts__shlo_like(&x.type, TS_I32)};
    ts_shlo_value index = ts__shlo_op(e, &types[1], "iota dim = $i : $t", last, &types[1]);
    ts__shlo_begin(e, types, 2, sorted);
    ts__shlo_put(e, "\"stablehlo.sort\"($v, $v) <{dimension = $i : i64, is_stable = true}>", &x,
                 &index, last);
    put_before(e, x.type.dtype);
    ts__shlo_put(e, " : ($t, $t) -> ($t, $t)", &types[0], &types[1], &types[0], &types[1]);
    ts__shlo_end(e);
    for (int i = 0; i < 2; i++)
        ts__shlo_set(e, n, i, slice(e, sorted[i], last, 0, n->attr.top_k.k));
}

/* ---- products -------------------------------------------------------------------------------- */

void ts__stablehlo_dot(ts_shlo *e, const ts_node *n)
{
    static const char *const precision[] = {
        [TS_PRECISION_DEFAULT] = "",
        [TS_PRECISION_HIGH] = ", precision = [HIGH, HIGH]",
        [TS_PRECISION_HIGHEST] = ", precision = [HIGHEST, HIGHEST]",
    };
    ts_shlo_value x = ts__shlo_in(e, n, 0), y = ts__shlo_in(e, n, 1), out;
    const ts_type t = ts__shlo_like(&n->out[0]->type, TS_F32);
    const ts_dims *xb = &n->attr.dot.x_batch, *yb = &n->attr.dot.y_batch;
    if (is_empty(n->in[0]) || is_empty(n->in[1])) {
        ts__shlo_set(e, n, 0, ts__shlo_splat(e, 0, &n->out[0]->type));
        return;
    }
    ts__shlo_begin(e, &t, 1, &out);
    ts__shlo_put(e, "stablehlo.dot_general $v, $v", &x, &y);
    if (xb->n) ts__shlo_put(e, ", batching_dims = [$l] x [$l]", xb, yb);
    ts__shlo_put(e, ", contracting_dims = [$l] x [$l]$s", &n->attr.dot.x_contract,
                 &n->attr.dot.y_contract, x.type.dtype == TS_F32 ? precision[e->precision] : "");
    ts__shlo_put(e, " : ($t, $t) -> $t", &x.type, &y.type, &t);
    ts__shlo_end(e);
    ts__shlo_set(e, n, 0, ts__shlo_convert(e, out, n->out[0]->type.dtype));
}

/* ---- rows by number -------------------------------------------------------------------------- */

/* rank dimensions from first on. */
static ts_dims counted(int first, int rank)
{
    ts_dims d = {0};
    for (int i = 0; i < rank; i++) d.v[d.n++] = first + i;
    return d;
}

void ts__stablehlo_take(ts_shlo *e, const ts_node *n)
{
    ts_shlo_value table = ts__shlo_in(e, n, 0), ids = ts__shlo_in(e, n, 1), out;
    const ts_type *t = &n->out[0]->type;
    const int rank = ids.type.rank, rest = table.type.rank - 1;
    const ts_dims window = counted(rank, rest), map = counted(0, rank);
    ts_dims sizes = {.n = table.type.rank};
    if (is_empty(n->in[0])) {
        ts__shlo_set(e, n, 0, ts__shlo_splat(e, 0, t));
        return;
    }
    sizes.v[0] = 1;
    for (int i = 1; i <= rest; i++) sizes.v[i] = table.type.dim[i].size;
    ts__shlo_begin(e, t, 1, &out);
    ts__shlo_put(e, "\"stablehlo.gather\"($v, $v) <{dimension_numbers = #stablehlo.gather<", &table,
                 &ids);
    if (rest) ts__shlo_put(e, "offset_dims = [$l], ", &window);
    ts__shlo_put(e, "collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = $i>, "
                 "indices_are_sorted = false, slice_sizes = array<i64: $l>}> : ($t, $t) -> $t",
                 (int64_t)rank, &sizes, &table.type, &ids.type, t);
    ts__shlo_end(e);
    ts_shlo_value zero = ts__shlo_splat(e, 0, &ids.type),
                  rows = ts__shlo_splat(e, (double)table.type.dim[0].size, &ids.type);
    ts_shlo_value inside = ts__shlo_binary(e, "and", ts__shlo_compare(e, "GE", ids, zero),
                                           ts__shlo_compare(e, "LT", ids, rows));
    const ts_type mask = ts__shlo_like(t, TS_PRED);
    if (rest) inside = ts__shlo_broadcast(e, inside, &mask, &map);
    ts__shlo_set(e, n, 0, ts__shlo_select(e, inside, out, ts__shlo_splat(e, 0, t)));
}

void ts__stablehlo_scatter_add(ts_shlo *e, const ts_node *n)
{
    ts_shlo_value ids = ts__shlo_in(e, n, 0), updates = ts__shlo_in(e, n, 1), out;
    const ts_type *t = &n->out[0]->type;
    const int rank = ids.type.rank, rest = updates.type.rank - rank;
    const ts_dims window = counted(rank, rest);
    ts_shlo_value zeros = ts__shlo_splat(e, 0, t);
    if (is_empty(n->in[1])) {
        ts__shlo_set(e, n, 0, zeros);
        return;
    }
    updates = ts__shlo_convert(e, updates, TS_F32);
    if (n->attr.scatter.no_grad_row >= 0) {
        ts_shlo_value row = ts__shlo_splat(e, (double)n->attr.scatter.no_grad_row, &ids.type);
        ts_shlo_value nowhere = ts__shlo_splat(e, -1, &ids.type);
        ids = ts__shlo_select(e, ts__shlo_compare(e, "EQ", ids, row), nowhere, ids);
    }
    ts__shlo_begin(e, t, 1, &out);
    ts__shlo_put(e, "\"stablehlo.scatter\"($v, $v, $v) <{indices_are_sorted = false, "
                 "scatter_dimension_numbers = #stablehlo.scatter<", &zeros, &ids, &updates);
    if (rest) ts__shlo_put(e, "update_window_dims = [$l], ", &window);
    ts__shlo_put(e, "inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], "
                 "index_vector_dim = $i>, unique_indices = false}>", (int64_t)rank);
    ts__shlo_combiner(e, "add", TS_F32);
    ts__shlo_put(e, " : ($t, $t, $t) -> $t", t, &ids.type, &updates.type, t);
    ts__shlo_end(e);
    ts__shlo_set(e, n, 0, out);
}
