/* ir/shape.c – the shape rules of primitives: which operands an op takes and what types it gives.
 *
 * One table over ops.def; an op without a rule or without dtypes does not build. Rules check
 * everything about a node that its operands' types and attributes decide, so a node that passed is
 * safe to execute. Names of dimensions pass through: elementwise ops take the first operand that
 * has one, reductions drop them, reshape and broadcast take the attribute's.
 * Operands are never broadcast here: the builder inserts broadcasts of rank-0 operands.
 * Composites, collectives and repeat: shape_fused.c.
 */
#include <stdio.h>

#include "ir/shape.h"

/* ---- the table ------------------------------------------------------------------------------- */

enum {
    F32 = 1 << TS_F32, U32 = 1 << TS_U32, I32 = 1 << TS_I32, FLOATS = F32 | 1 << TS_BF16, INTS
    = I32 | U32, NUMBERS = FLOATS | INTS, BITS = INTS | 1 << TS_PRED, ANY = NUMBERS | 1 <<
    TS_PRED
};

/* clang-format off */
/* Dtypes of the first operand (select: x, the second; sources: the result). A missing name fails
 * the build. */
enum {
    claim_constant = ANY, claim_iota = NUMBERS, claim_axis_index = I32, claim_neg = FLOATS |
    I32, claim_abs = FLOATS | I32, claim_exp = FLOATS, claim_log = FLOATS, claim_sqrt = FLOATS,
    claim_rsqrt = FLOATS, claim_tanh = FLOATS, claim_logistic = FLOATS, claim_sin = FLOATS,
    claim_cos = FLOATS, claim_not = BITS, claim_is_finite = FLOATS, claim_convert = ANY,
    claim_add = NUMBERS, claim_sub = NUMBERS, claim_mul = NUMBERS, claim_div = NUMBERS,
    claim_max = NUMBERS, claim_min = NUMBERS, claim_pow = FLOATS, claim_and = BITS, claim_or =
    BITS, claim_xor = BITS, claim_shift_left = INTS, claim_shift_right = INTS, claim_add_n =
    NUMBERS, claim_compare = ANY, claim_select = ANY, claim_reshape = ANY, claim_transpose =
    ANY, claim_broadcast = ANY, claim_slice = ANY, claim_concat = ANY, claim_pad = ANY,
    claim_dynamic_slice = ANY, claim_dynamic_update = ANY, claim_reduce_sum = NUMBERS,
    claim_reduce_max = NUMBERS, claim_argmax = NUMBERS, claim_top_k = NUMBERS, claim_dot =
    FLOATS, claim_take = NUMBERS, claim_scatter_add = I32, claim_barrier = ANY, claim_repeat =
    ANY, claim_all_reduce = NUMBERS, claim_all_gather = ANY, claim_reduce_scatter = NUMBERS,
    claim_all_to_all = ANY, claim_collective_permute = ANY, claim_random_bits = U32,
    claim_rms_norm = FLOATS, claim_rms_norm_grad = FLOATS, claim_rope = FLOATS, claim_attention
    = FLOATS, claim_attention_grad = FLOATS, claim_gated = FLOATS, claim_gated_grad = FLOATS,
    claim_expert_rows = I32, claim_grouped_dot = FLOATS, claim_grouped_dot_grad = FLOATS,
    claim_linear_xent = FLOATS, claim_linear_xent_grad = FLOATS, claim_xent_rows = FLOATS,
    claim_adamw = F32
};
/* clang-format on */

static const struct {
    ts_rule_fn *rule;
    unsigned dtypes;
} rules[TS_OPS] = {
#define OP(name, ...) [TS_OP_##name] = {ts__rule_##name, claim_##name},
#include "ir/ops.def"
#undef OP
};

unsigned ts_op_dtypes(ts_op op) { return rules[op].dtypes; }

static ts_status check_claim(ts_rule *r)
{
    int i = r->op == TS_OP_select ? 1 : 0;
    unsigned claimed = ts_op_dtypes(r->op);
    char list[64] = "";
    size_t n = 0;
    if (!r->n_in || claimed >> r->in[i]->type.dtype & 1) return TS_OK;
    for (int t = 0; t < TS_DTYPES; t++)
        if (claimed >> t & 1)
            n += (size_t)snprintf(list + n, sizeof list - n, "%s%s", n ? ", " : "",
                                  ts_dtype_name((ts_dtype)t));
    return TS_RULE_ERROR(r, "operand %d is %s; it takes %s", i, TS_TEXT(&r->in[i]->type), list);
}

ts_status ts__infer(ts_op op, ts_value *const *in, int n_in, const ts_attr *attr,
                    const ts_region *body, ts_type *out, int max, int *n_out, ts_error *err)
{
    TS_ASSERT((unsigned)op < TS_OPS);
    const ts_op_info *info = &ts_op_infos[op];
    ts_rule r = {.op = op,
                 .in = in,
                 .n_in = n_in,
                 .attr = attr,
                 .body = body,
                 .err = err,
                 .out = out,
                 .max = max};
    *n_out = 0;
    if (n_in < info->min_in || (info->max_in >= 0 && n_in > info->max_in))
        return TS_RULE_ERROR(&r, "found %d operands; it takes %d%s", n_in, info->min_in,
                             info->max_in < 0              ? " or more"
                             : info->max_in > info->min_in ? " or one more"
                                                           : "");
    if (!attr && info->attr != TS_ATTR_none)
        return TS_RULE_ERROR(&r, "%s", "its attributes are missing");
    if ((body != NULL) != (op == TS_OP_repeat))
        return TS_RULE_ERROR(&r, "%s", "only repeat has, and needs, a body");
    TS_TRY(check_claim(&r));
    TS_TRY(rules[op].rule(&r));
    for (int i = 0; i < r.n_out; i++) TS_TRY(ts__type_check(&out[i], info->name, err));
    *n_out = r.n_out;
    return TS_OK;
}

/* ---- shared checks --------------------------------------------------------------------------- */

ts_status ts__rule_out(ts_rule *r, const ts_type *t)
{
    if (r->n_out >= r->max)
        return TS_ERROR(r->err, TS_INTERNAL, "%s: has more than %d results",
                        ts_op_infos[r->op].name, r->max);
    r->out[r->n_out++] = *t;
    return TS_OK;
}

ts_status ts__rule_dtype(ts_rule *r, int i, const char *what, ts_dtype t)
{
    if (r->in[i]->type.dtype == t) return TS_OK;
    return TS_RULE_ERROR(r, "%s is %s; expected %s", what, TS_TEXT(&r->in[i]->type),
                         ts_dtype_name(t));
}

ts_status ts__rule_rank(ts_rule *r, int i, const char *what, int rank)
{
    if (r->in[i]->type.rank == rank) return TS_OK;
    return TS_RULE_ERROR(r, "%s is %s; expected %d dimension%s", what, TS_TEXT(&r->in[i]->type),
                         rank, rank == 1 ? "" : "s");
}

ts_status ts__rule_same(ts_rule *r, int i, const char *what_i, int j, const char *what_j)
{
    if (ts_type_same(&r->in[i]->type, &r->in[j]->type)) return TS_OK;
    return TS_RULE_ERROR(r, "%s is %s, %s is %s; they must be equal", what_i,
                         TS_TEXT(&r->in[i]->type), what_j, TS_TEXT(&r->in[j]->type));
}

ts_status ts__rule_exactly(ts_rule *r, int i, const char *what, const ts_type *t,
                           const char *meaning)
{
    if (ts_type_same(&r->in[i]->type, t)) return TS_OK;
    return TS_RULE_ERROR(r, "%s is %s; expected %s%s%s%s", what, TS_TEXT(&r->in[i]->type),
                         TS_TEXT(t), *meaning ? " (" : "", meaning, *meaning ? ")" : "");
}

ts_status ts__rule_axis(ts_rule *r, int64_t axis, const ts_type *t)
{
    if (axis >= 0 && axis < t->rank) return TS_OK;
    return TS_RULE_ERROR(r, "axis %" PRId64 " is not one of the %d dimensions of %s", axis, t->rank,
                         TS_TEXT(t));
}

/* A shape attribute as a type, refused early when its rank could not be stored. */
static ts_status shape_type(ts_rule *r, ts_dtype dtype, const ts_shape *shape, ts_type *t)
{
    *t = ts_type_make(dtype, shape->dim, shape->rank);
    return ts__type_check(t, ts_op_infos[r->op].name, r->err);
}

/* Where t has no name for a dimension, other's. */
static void take_names(ts_type *t, const ts_type *other)
{
    for (int i = 0; i < t->rank && i < other->rank; i++)
        if (!t->dim[i].name) t->dim[i].name = other->dim[i].name;
}

/* Each of the list's axes is a dimension of t and occurs once; *mask gets their bits. */
static ts_status axis_list(ts_rule *r, const char *what, const ts_dims *list, const ts_type *t,
                           unsigned *mask)
{
    if (list->n < 0 || list->n > TS_MAX_RANK)
        return TS_RULE_ERROR(r, "%s lists %d axes; expected 0 to %d", what, list->n, TS_MAX_RANK);
    for (int i = 0; i < list->n; i++) {
        int64_t a = list->v[i];
        if (a < 0 || a >= t->rank)
            return TS_RULE_ERROR(r, "%s names axis %" PRId64 ", which %s does not have", what, a,
                                 TS_TEXT(t));
        if (*mask >> a & 1)
            return TS_RULE_ERROR(r, "%s names axis %" PRId64 " of %s twice", what, a, TS_TEXT(t));
        *mask |= 1u << a;
    }
    return TS_OK;
}

static void append_dim(ts_type *t, ts_dim d)
{
    if (t->rank >= 0 && t->rank < TS_MAX_RANK) t->dim[t->rank++] = d;
    else t->rank = -1; /* ts__type_check refuses it */
}

/* ---- sources and elementwise ----------------------------------------------------------------- */

ts_status ts__rule_constant(ts_rule *r)
{
    ts_type t;
    TS_TRY(shape_type(r, r->attr->constant.dtype, &r->attr->constant.shape, &t));
    return ts__rule_out(r, &t);
}

ts_status ts__rule_iota(ts_rule *r)
{
    ts_type t;
    TS_TRY(shape_type(r, r->attr->iota.dtype, &r->attr->iota.shape, &t));
    TS_TRY(ts__rule_axis(r, r->attr->iota.axis, &t));
    if (!(ts_op_dtypes(TS_OP_iota) >> t.dtype & 1))
        return TS_RULE_ERROR(r, "%s has no indices; it takes f32, bf16, i32, u32", TS_TEXT(&t));
    return ts__rule_out(r, &t);
}

ts_status ts__rule_as_operand(ts_rule *r) { return ts__rule_out(r, &r->in[0]->type); }

ts_status ts__rule_alike(ts_rule *r)
{
    ts_type t = r->in[0]->type;
    for (int i = 1; i < r->n_in; i++) {
        char what[32];
        snprintf(what, sizeof what, "operand %d", i);
        TS_TRY(ts__rule_same(r, 0, "operand 0", i, what));
        take_names(&t, &r->in[i]->type);
    }
    return ts__rule_out(r, &t);
}

ts_status ts__rule_is_finite(ts_rule *r)
{
    ts_type t = r->in[0]->type;
    t.dtype = TS_PRED;
    return ts__rule_out(r, &t);
}

ts_status ts__rule_convert(ts_rule *r)
{
    ts_type t = r->in[0]->type;
    t.dtype = r->attr->convert.dtype;
    return ts__rule_out(r, &t);
}

ts_status ts__rule_compare(ts_rule *r)
{
    if (r->attr->compare.dir < TS_EQ || r->attr->compare.dir > TS_GE)
        return TS_RULE_ERROR(r, "direction %d does not exist", r->attr->compare.dir);
    TS_TRY(ts__rule_alike(r));
    r->out[0].dtype = TS_PRED;
    return TS_OK;
}

ts_status ts__rule_select(ts_rule *r)
{
    const ts_type *pred = &r->in[0]->type;
    ts_type t = r->in[1]->type, shape = t;
    TS_TRY(ts__rule_dtype(r, 0, "pred", TS_PRED));
    TS_TRY(ts__rule_same(r, 1, "x", 2, "y"));
    take_names(&t, &r->in[2]->type);
    shape.dtype = TS_PRED;
    if (pred->rank && !ts_type_same(pred, &shape))
        return TS_RULE_ERROR(r, "pred is %s, x is %s; pred must be a scalar or have x's shape",
                             TS_TEXT(pred), TS_TEXT(&t));
    if (pred->rank) take_names(&t, pred);
    return ts__rule_out(r, &t);
}

/* ---- shape ----------------------------------------------------------------------------------- */

ts_status ts__rule_reshape(ts_rule *r)
{
    const ts_type *x = &r->in[0]->type;
    ts_type t;
    TS_TRY(shape_type(r, x->dtype, &r->attr->shape.shape, &t));
    if (ts_type_elements(&t) != ts_type_elements(x))
        return TS_RULE_ERROR(r,
                             "x is %s with %" PRId64 " elements, the result %s with %" PRId64
                             "; they must be equal",
                             TS_TEXT(x), ts_type_elements(x), TS_TEXT(&t), ts_type_elements(&t));
    return ts__rule_out(r, &t);
}

ts_status ts__rule_transpose(ts_rule *r)
{
    const ts_type *x = &r->in[0]->type;
    const ts_dims *perm = &r->attr->transpose.perm;
    ts_type t = {.dtype = x->dtype};
    unsigned seen = 0;
    TS_TRY(axis_list(r, "perm", perm, x, &seen));
    if (perm->n != x->rank)
        return TS_RULE_ERROR(r, "perm lists %d axes, x is %s; it must list each of the %d once",
                             perm->n, TS_TEXT(x), x->rank);
    for (int i = 0; i < perm->n; i++) append_dim(&t, x->dim[perm->v[i]]);
    return ts__rule_out(r, &t);
}

ts_status ts__rule_broadcast(ts_rule *r)
{
    const ts_type *x = &r->in[0]->type;
    const ts_dims *map = &r->attr->broadcast.map;
    ts_type t;
    unsigned seen = 0;
    TS_TRY(shape_type(r, x->dtype, &r->attr->broadcast.shape, &t));
    TS_TRY(axis_list(r, "map", map, &t, &seen));
    if (map->n != x->rank)
        return TS_RULE_ERROR(r, "map lists %d axes, x is %s; it must place each of the %d", map->n,
                             TS_TEXT(x), x->rank);
    for (int i = 0; i < map->n; i++) {
        ts_dim *d = &t.dim[map->v[i]];
        if (d->size != x->dim[i].size)
            return TS_RULE_ERROR(r,
                                 "dimension %d of x has %" PRId64 ", dimension %" PRId64
                                 " of the result %" PRId64 "; they must be equal",
                                 i, x->dim[i].size, map->v[i], d->size);
        if (!d->name) d->name = x->dim[i].name;
    }
    return ts__rule_out(r, &t);
}

ts_status ts__rule_slice(ts_rule *r)
{
    ts_type t = r->in[0]->type;
    int64_t axis = r->attr->slice.axis, start = r->attr->slice.start, limit = r->attr->slice.limit;
    TS_TRY(ts__rule_axis(r, axis, &t));
    if (start < 0 || limit < start || limit > t.dim[axis].size)
        return TS_RULE_ERROR(r,
                             "[%" PRId64 ", %" PRId64 ") of dimension %" PRId64
                             " of %s; expected 0 ≤ start ≤ limit ≤ "
                             "%" PRId64,
                             start, limit, axis, TS_TEXT(&t), t.dim[axis].size);
    t.dim[axis].size = limit - start;
    return ts__rule_out(r, &t);
}

ts_status ts__rule_concat(ts_rule *r)
{
    ts_type t = r->in[0]->type;
    int64_t axis = r->attr->axis.axis;
    TS_TRY(ts__rule_axis(r, axis, &t));
    for (int i = 1; i < r->n_in; i++) {
        ts_type x = r->in[i]->type;
        int64_t size = x.rank == t.rank ? x.dim[axis].size : 0, total = t.dim[axis].size;
        if (x.rank == t.rank) x.dim[axis].size = total;
        if (!ts_type_same(&x, &t))
            return TS_RULE_ERROR(r,
                                 "operand 0 is %s, operand %d is %s; only dimension %" PRId64
                                 " may differ",
                                 TS_TEXT(&r->in[0]->type), i, TS_TEXT(&r->in[i]->type), axis);
        take_names(&t, &x);
        if (ts_add_i64(total, size, &t.dim[axis].size))
            return TS_RULE_ERROR(r, "the sizes of dimension %" PRId64 " overflow", axis);
    }
    return ts__rule_out(r, &t);
}

ts_status ts__rule_pad(ts_rule *r)
{
    ts_type t = r->in[0]->type;
    int64_t axis = r->attr->pad.axis, low = r->attr->pad.low, high = r->attr->pad.high, size;
    TS_TRY(ts__rule_axis(r, axis, &t));
    if (low < 0 || high < 0)
        return TS_RULE_ERROR(r,
                             "%" PRId64 " low and %" PRId64
                             " high elements; neither may be negative",
                             low, high);
    if (ts_add_i64(t.dim[axis].size, low, &size) || ts_add_i64(size, high, &size))
        return TS_RULE_ERROR(r, "the size of dimension %" PRId64 " overflows", axis);
    t.dim[axis].size = size;
    return ts__rule_out(r, &t);
}

static ts_status check_start(ts_rule *r, int i)
{
    ts_type scalar = ts_type_make(TS_I32, NULL, 0);
    return ts__rule_exactly(r, i, "start", &scalar, "");
}

ts_status ts__rule_dynamic_slice(ts_rule *r)
{
    ts_type t = r->in[0]->type;
    int64_t axis = r->attr->dynamic.axis, size = r->attr->dynamic.size;
    TS_TRY(ts__rule_axis(r, axis, &t));
    TS_TRY(check_start(r, 1));
    if (size < 0 || size > t.dim[axis].size)
        return TS_RULE_ERROR(r,
                             "size %" PRId64 " of dimension %" PRId64
                             " of %s; expected 0 to %" PRId64,
                             size, axis, TS_TEXT(&t), t.dim[axis].size);
    t.dim[axis].size = size;
    return ts__rule_out(r, &t);
}

ts_status ts__rule_dynamic_update(ts_rule *r)
{
    const ts_type *x = &r->in[0]->type, *update = &r->in[1]->type;
    int64_t axis = r->attr->dynamic.axis;
    ts_type t = *x;
    TS_TRY(ts__rule_axis(r, axis, x));
    TS_TRY(check_start(r, 2));
    if (update->rank == t.rank) t.dim[axis].size = update->dim[axis].size;
    if (!ts_type_same(update, &t) || t.dim[axis].size > x->dim[axis].size)
        return TS_RULE_ERROR(r,
                             "x is %s, update is %s; it must fit in x and differ only in dimension "
                             "%" PRId64,
                             TS_TEXT(x), TS_TEXT(update), axis);
    return ts__rule_out(r, x);
}

/* ---- reductions and products ----------------------------------------------------------------- */

ts_status ts__rule_reduce(ts_rule *r)
{
    const ts_type *x = &r->in[0]->type;
    ts_type t = {.dtype = x->dtype};
    unsigned dropped = 0;
    TS_TRY(axis_list(r, "axes", &r->attr->reduce.axes, x, &dropped));
    for (int i = 0; i < x->rank; i++)
        if (!(dropped >> i & 1)) append_dim(&t, x->dim[i]);
    return ts__rule_out(r, &t);
}

ts_status ts__rule_argmax(ts_rule *r)
{
    const ts_type *x = &r->in[0]->type;
    int64_t axis = r->attr->axis.axis;
    ts_type t = {.dtype = TS_I32};
    TS_TRY(ts__rule_axis(r, axis, x));
    if (x->dim[axis].size == 0)
        return TS_RULE_ERROR(r, "dimension %" PRId64 " of %s is empty; it has no largest element",
                             axis, TS_TEXT(x));
    for (int i = 0; i < x->rank; i++)
        if (i != axis) append_dim(&t, x->dim[i]);
    return ts__rule_out(r, &t);
}

ts_status ts__rule_top_k(ts_rule *r)
{
    ts_type t = r->in[0]->type;
    int64_t k = r->attr->top_k.k;
    TS_TRY(ts__rule_axis(r, t.rank - 1, &t));
    if (k < 1 || k > t.dim[t.rank - 1].size)
        return TS_RULE_ERROR(r,
                             "k is %" PRId64 ", the last dimension of x has %" PRId64
                             "; expected 1 to that",
                             k, t.dim[t.rank - 1].size);
    t.dim[t.rank - 1] = (ts_dim){NULL, k};
    TS_TRY(ts__rule_out(r, &t));
    t.dtype = TS_I32;
    return ts__rule_out(r, &t);
}

static ts_status dot_pairs(ts_rule *r, const char *what, const ts_dims *a, const ts_dims *b)
{
    const ts_type *x = &r->in[0]->type, *y = &r->in[1]->type;
    if (a->n != b->n)
        return TS_RULE_ERROR(r, "%d %s dimensions of x, %d of y; they must be equally many", a->n,
                             what, b->n);
    for (int i = 0; i < a->n; i++)
        if (x->dim[a->v[i]].size != y->dim[b->v[i]].size)
            return TS_RULE_ERROR(r,
                                 "%s dimension %" PRId64 " of x has %" PRId64 ", dimension %" PRId64
                                 " of y has %" PRId64 "; they must be equal",
                                 what, a->v[i], x->dim[a->v[i]].size, b->v[i],
                                 y->dim[b->v[i]].size);
    return TS_OK;
}

ts_status ts__rule_dot(ts_rule *r)
{
    const ts_type *x = &r->in[0]->type, *y = &r->in[1]->type;
    const ts_dims *xb = &r->attr->dot.x_batch, *yb = &r->attr->dot.y_batch;
    ts_type t = {.dtype = r->attr->dot.dtype};
    unsigned in_x = 0, in_y = 0;
    TS_TRY(axis_list(r, "x's batch and contracted list", xb, x, &in_x));
    TS_TRY(axis_list(r, "x's batch and contracted list", &r->attr->dot.x_contract, x, &in_x));
    TS_TRY(axis_list(r, "y's batch and contracted list", yb, y, &in_y));
    TS_TRY(axis_list(r, "y's batch and contracted list", &r->attr->dot.y_contract, y, &in_y));
    TS_TRY(dot_pairs(r, "batch", xb, yb));
    TS_TRY(dot_pairs(r, "contracted", &r->attr->dot.x_contract, &r->attr->dot.y_contract));
    if (x->dtype != y->dtype)
        return TS_RULE_ERROR(r, "x is %s, y is %s; they must have one dtype", TS_TEXT(x),
                             TS_TEXT(y));
    if (t.dtype != TS_F32 && t.dtype != TS_BF16)
        return TS_RULE_ERROR(r, "the result's dtype is %s; expected f32 or bf16",
                             ts_dtype_name(t.dtype));
    for (int i = 0; i < xb->n; i++) {
        ts_dim d = x->dim[xb->v[i]];
        if (!d.name) d.name = y->dim[yb->v[i]].name;
        append_dim(&t, d);
    }
    for (int i = 0; i < x->rank; i++)
        if (!(in_x >> i & 1)) append_dim(&t, x->dim[i]);
    for (int i = 0; i < y->rank; i++)
        if (!(in_y >> i & 1)) append_dim(&t, y->dim[i]);
    return ts__rule_out(r, &t);
}

/* A row that gets no gradient must be one of the table's, or −1. */
static ts_status check_row(ts_rule *r, int64_t row, int64_t rows)
{
    if (row >= -1 && row < rows) return TS_OK;
    return TS_RULE_ERROR(r,
                         "no_grad_row is %" PRId64 "; expected -1 or one of the %" PRId64 " rows",
                         row, rows);
}

ts_status ts__rule_take(ts_rule *r)
{
    const ts_type *table = &r->in[0]->type, *ids = &r->in[1]->type;
    ts_type t = {.dtype = table->dtype};
    if (table->rank < 1)
        return TS_RULE_ERROR(r, "the table is %s; expected a dimension of rows", TS_TEXT(table));
    TS_TRY(ts__rule_dtype(r, 1, "ids", TS_I32));
    TS_TRY(check_row(r, r->attr->take.no_grad_row, table->dim[0].size));
    for (int i = 0; i < ids->rank; i++) append_dim(&t, ids->dim[i]);
    for (int i = 1; i < table->rank; i++) append_dim(&t, table->dim[i]);
    return ts__rule_out(r, &t);
}

ts_status ts__rule_scatter_add(ts_rule *r)
{
    const ts_type *ids = &r->in[0]->type, *updates = &r->in[1]->type;
    const ts_shape *rows = &r->attr->scatter.rows;
    ts_type t = {.dtype = TS_F32}, head = *updates;
    TS_TRY(ts__rule_dtype(r, 0, "ids", TS_I32));
    if (updates->dtype != TS_F32 && updates->dtype != TS_BF16)
        return TS_RULE_ERROR(r, "updates is %s; expected f32 or bf16", TS_TEXT(updates));
    if (rows->rank != 1) return TS_RULE_ERROR(r, "rows has %d dimensions; expected 1", rows->rank);
    TS_TRY(check_row(r, r->attr->scatter.no_grad_row, rows->dim[0].size));
    head.dtype = TS_I32;
    if (head.rank > ids->rank) head.rank = ids->rank;
    if (!ts_type_same(&head, ids))
        return TS_RULE_ERROR(r,
                             "ids is %s, updates is %s; updates must start with the dimensions of "
                             "ids",
                             TS_TEXT(ids), TS_TEXT(updates));
    append_dim(&t, rows->dim[0]);
    for (int i = ids->rank; i < updates->rank; i++) append_dim(&t, updates->dim[i]);
    return ts__rule_out(r, &t);
}

ts_status ts__rule_barrier(ts_rule *r)
{
    for (int i = 0; i < r->n_in; i++) TS_TRY(ts__rule_out(r, &r->in[i]->type));
    return TS_OK;
}
