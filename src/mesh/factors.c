/* mesh/factors.c – the rows of sources, elementwise ops, shape ops and reductions, and the table
 * over all ops.
 *
 * A row says of every dimension of every operand and result which factor it is. What follows from
 * it – who gets an axis, which results are partial – is the partitioner's. A dimension is WHOLE
 * where an op must see all of it or where its pieces would not be equal to pieces of the result.
 * Rows read types and attributes and nothing else.
 *
 * Products, composites and what is indexed: factors_fused.c.
 */
#include "mesh/rows.h"

static ts_row_fn *const rows[TS_OPS] = {
#define OP(name, ...) [TS_OP_##name] = ts__row_##name,
#include "ir/ops.def"
#undef OP
};

ts_status ts__factors(const ts_node *n, ts_factors *out, ts_error *err)
{
    ts_row r = {.n = n, .f = out, .err = err};
    memset(out, 0, sizeof *out);
    memset(out->map, -1, sizeof out->map);
    /* Elementwise on any number of operands of one shape: the first stands for all. */
    out->alike = n->op == TS_OP_add_n || n->op == TS_OP_concat || n->op == TS_OP_barrier;
    out->n_in = out->alike ? 1 : n->n_in;
    return rows[n->op](&r);
}

/* ---- helpers --------------------------------------------------------------------------------- */

int8_t ts__row_factor(ts_row *r, int64_t size, ts_factor_kind kind)
{
    TS_ASSERT(r->f->nf < TS_MAX_FACTORS);
    r->f->size[r->f->nf] = size;
    r->f->kind[r->f->nf] = (uint8_t)kind;
    return (int8_t)r->f->nf++;
}

void ts__row_factors(ts_row *r, const ts_type *t, int rank, int8_t ids[TS_MAX_RANK])
{
    for (int d = 0; d < rank; d++) ids[d] = ts__row_factor(r, t->dim[d].size, TS_FACTOR_PASS);
}

void ts__row_in(ts_row *r, int i, int dim, int8_t f)
{
    TS_ASSERT(i < r->f->n_in && i < TS_ROW_VALUES && dim < TS_MAX_RANK);
    r->f->map[i][dim][0] = f;
}

void ts__row_out(ts_row *r, int i, int dim, int8_t f)
{
    TS_ASSERT(r->f->n_in + i < TS_ROW_VALUES && dim < TS_MAX_RANK);
    r->f->map[r->f->n_in + i][dim][0] = f;
}

/* ---- sources --------------------------------------------------------------------------------- */

ts_status ts__row_none(ts_row *r)
{
    return TS_ERROR(r->err, TS_UNIMPLEMENTED, "%s has no factors: it is the partitioner's own",
                    ts_op_infos[r->n->op].name);
}

ts_status ts__row_constant(ts_row *r)
{
    const ts_type *t = &r->n->out[0]->type;
    int8_t id[TS_MAX_RANK];
    ts__row_factors(r, t, t->rank, id);
    for (int d = 0; d < t->rank; d++) ts__row_out(r, 0, d, id[d]);
    return TS_OK;
}

/* A piece along the counted dimension starts at its own first index. */
ts_status ts__row_iota(ts_row *r)
{
    TS_TRY(ts__row_constant(r));
    r->f->kind[r->n->attr.iota.axis] = TS_FACTOR_RANGE;
    return TS_OK;
}

/* An element's bits are those of its index in the whole. */
ts_status ts__row_random_bits(ts_row *r)
{
    TS_TRY(ts__row_constant(r));
    for (int k = 0; k < r->f->nf; k++) r->f->kind[k] = TS_FACTOR_WHOLE;
    ts__row_in(r, 0, 0, ts__row_factor(r, 2, TS_FACTOR_WHOLE));
    return TS_OK;
}

/* ---- elementwise ----------------------------------------------------------------------------- */

/* Scalars beside tensors (select's predicate, what adamw is told) have no dimensions, so no
 * factors. */
ts_status ts__row_elementwise(ts_row *r)
{
    const ts_type *t = &r->n->out[0]->type;
    int8_t id[TS_MAX_RANK];
    ts__row_factors(r, t, t->rank, id);
    for (int i = 0; i < r->f->n_in; i++)
        for (int d = 0; d < r->n->in[i]->type.rank; d++) ts__row_in(r, i, d, id[d]);
    for (int i = 0; i < r->n->n_out; i++)
        for (int d = 0; d < t->rank; d++) ts__row_out(r, i, d, id[d]);
    return TS_OK;
}

ts_status ts__row_linear(ts_row *r)
{
    r->f->linear = true;
    return ts__row_elementwise(r);
}

/* Operands need not be alike and each lies as it likes: one operand is a row, several are the
 * partitioner's. */
ts_status ts__row_barrier(ts_row *r)
{
    return r->n->n_in == 1 ? ts__row_elementwise(r) : ts__row_none(r);
}

/* ---- shape ----------------------------------------------------------------------------------- */

ts_status ts__row_transpose(ts_row *r)
{
    const ts_type *x = &r->n->in[0]->type;
    int8_t id[TS_MAX_RANK];
    ts__row_factors(r, x, x->rank, id);
    for (int d = 0; d < x->rank; d++) {
        ts__row_in(r, 0, d, id[d]);
        ts__row_out(r, 0, d, id[r->n->attr.transpose.perm.v[d]]);
    }
    r->f->linear = true;
    return TS_OK;
}

/* A repeated dimension is a factor of the result alone. */
ts_status ts__row_broadcast(ts_row *r)
{
    const ts_dims *map = &r->n->attr.broadcast.map;
    TS_TRY(ts__row_constant(r));
    for (int d = 0; d < map->n; d++) ts__row_in(r, 0, d, (int8_t)map->v[d]);
    return TS_OK;
}

static int64_t touched(const ts_node *n)
{
    switch (n->op) {
    case TS_OP_slice: return n->attr.slice.axis;
    case TS_OP_pad: return n->attr.pad.axis;
    case TS_OP_top_k: return n->in[0]->type.rank - 1;
    case TS_OP_concat:
    case TS_OP_argmax: return n->attr.axis.axis;
    default: return n->attr.dynamic.axis;
    }
}

/* Operands without dimensions are starts. */
ts_status ts__row_along(ts_row *r)
{
    const ts_type *x = &r->n->in[0]->type;
    const int64_t axis = touched(r->n);
    int8_t id[TS_MAX_RANK], other = -1; /* other: what the touched dimension became */
    ts__row_factors(r, x, x->rank, id);
    r->f->kind[id[axis]] = TS_FACTOR_WHOLE;
    for (int i = 0; i < r->f->n_in + r->n->n_out; i++) {
        const bool in = i < r->f->n_in;
        const ts_type *t = in ? &r->n->in[i]->type : &r->n->out[i - r->f->n_in]->type;
        for (int d = 0; d < t->rank; d++) {
            const int64_t size = t->dim[d].size;
            int8_t f = id[d];
            if (size != x->dim[d].size) {
                if (other < 0 || r->f->size[other] != size)
                    other = ts__row_factor(r, size, TS_FACTOR_WHOLE);
                f = other;
            }
            if (in)
                ts__row_in(r, i, d, f);
            else
                ts__row_out(r, i - r->f->n_in, d, f);
        }
    }
    return TS_OK;
}

/* Groups of dimensions whose products are equal, major first. Of a group the major factor, which
 * divides the first dimension of both sides, may be split: its pieces are runs of rows on both
 * sides. All that is minor to it is WHOLE. */
static void reshape_group(ts_row *r, const int *x, int n_x, const int *y, int n_y)
{
    const ts_type *a = &r->n->in[0]->type, *b = &r->n->out[0]->type;
    int64_t p = a->dim[x[0]].size, q = b->dim[y[0]].size;
    while (q) {
        int64_t rest = p % q;
        p = q;
        q = rest;
    }
    const int8_t major = ts__row_factor(r, p, TS_FACTOR_PASS);
    ts__row_in(r, 0, x[0], major);
    ts__row_out(r, 0, y[0], major);
    for (int side = 0; side < 2; side++) {
        const ts_type *t = side ? b : a;
        const int *dim = side ? y : x, n = side ? n_y : n_x;
        int8_t(*map)[TS_ROW_MERGED] = r->f->map[side];
        for (int k = 0; k < n; k++) {
            const int64_t rest = t->dim[dim[k]].size / (k ? 1 : p);
            if (k || rest > 1) map[dim[k]][k ? 0 : 1] = ts__row_factor(r, rest, TS_FACTOR_WHOLE);
        }
    }
}

/* Dimensions of t that are not 1, into list; true where one is empty. */
static bool proper_dims(const ts_type *t, int *list, int *n)
{
    bool empty = false;
    *n = 0;
    for (int d = 0; d < t->rank; d++) {
        if (t->dim[d].size != 1) list[(*n)++] = d;
        empty |= !t->dim[d].size;
    }
    return empty;
}

ts_status ts__row_reshape(ts_row *r)
{
    const ts_type *a = &r->n->in[0]->type, *b = &r->n->out[0]->type;
    int x[TS_MAX_RANK], y[TS_MAX_RANK], n_x, n_y;
    const bool nothing_in = proper_dims(a, x, &n_x), nothing_out = proper_dims(b, y, &n_y);
    r->f->linear = true;
    if (nothing_in || nothing_out) return TS_OK;
    for (int i = 0, j = 0; i < n_x && j < n_y;) {
        int i0 = i, j0 = j;
        int64_t p = a->dim[x[i++]].size, q = b->dim[y[j++]].size;
        while (p != q) {
            if (p < q)
                p *= a->dim[x[i++]].size;
            else
                q *= b->dim[y[j++]].size;
        }
        reshape_group(r, x + i0, i - i0, y + j0, j - j0);
    }
    return TS_OK;
}

/* ---- reductions ------------------------------------------------------------------------------ */

/* The result has the dimensions of x whose bit in `dropped` is not set. */
static void drop(ts_row *r, unsigned dropped, ts_factor_kind kind)
{
    const ts_type *x = &r->n->in[0]->type;
    int8_t id[TS_MAX_RANK];
    ts__row_factors(r, x, x->rank, id);
    for (int d = 0, o = 0; d < x->rank; d++) {
        ts__row_in(r, 0, d, id[d]);
        if (dropped >> d & 1)
            r->f->kind[id[d]] = (uint8_t)kind;
        else
            ts__row_out(r, 0, o++, id[d]);
    }
}

static unsigned reduced(const ts_node *n)
{
    unsigned mask = 0;
    for (int k = 0; k < n->attr.reduce.axes.n; k++) mask |= 1u << n->attr.reduce.axes.v[k];
    return mask;
}

ts_status ts__row_reduce_sum(ts_row *r)
{
    drop(r, reduced(r->n), TS_FACTOR_PASS);
    r->f->linear = true;
    return TS_OK;
}

ts_status ts__row_reduce_max(ts_row *r)
{
    drop(r, reduced(r->n), TS_FACTOR_WHOLE);
    return TS_OK;
}

ts_status ts__row_argmax(ts_row *r)
{
    drop(r, 1u << touched(r->n), TS_FACTOR_WHOLE);
    return TS_OK;
}
