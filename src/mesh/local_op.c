/* mesh/local_op.c – an operation on one device's operands.
 *
 * Most ops are what they were, on smaller shapes. Attributes that state a shape are cut down; an op that reads rows
 * in ranges gets ids less the first row that the device has; a cross-entropy over a split vocabulary becomes its parts
 * with the sums between them (ir/build_xent.c).
 */
#include "mesh/partition_internal.h"

static void cut_shape(const ts_partitioner *p, ts_shape *shape, const ts_spec *s)
{
    for (int d = 0; d < shape->rank; d++) shape->dim[d].size /= ts_spec_ways(p->mesh, s, d);
}

/* The factor of dimension 0 of operand k, and how it is split. */
static int range_of(const ts_factors *f, const ts_assignment *a, const int8_t (*row)[TS_ROW_MERGED])
{
    int k = row[0][0];
    return k >= 0 && f->kind[k] == TS_FACTOR_RANGE && a->n[k] ? k : -1;
}

/* ids less the first of `rows` local rows. */
static ts_value *localize(ts_partitioner *p, const ts_assignment *a, int factor, ts_value *ids,
                          int64_t rows)
{
    ts_builder *b = &p->b;
    ts_value *first = ts__mesh_index(p, a->axis[factor], a->n[factor], rows);
    return ts_sub(b, ids, ts_broadcast(b, first, ids->type.dim, ids->type.rank, NULL, 0));
}

static int64_t local_size(const ts_partitioner *p, const ts_factors *f, const ts_assignment *a, int factor)
{
    int64_t n = f->size[factor];
    for (int i = 0; i < a->n[factor]; i++) n /= p->mesh->axis[a->axis[factor][i]].size;
    return n;
}

static void plain(ts_partitioner *p, const ts_node *n, const ts_attr *attr, ts_value *const *in,
                  ts_value **out)
{
    ts_node *made = ts__op_n(&p->b, n->op, in, n->n_in, attr);
    for (int i = 0; i < n->n_out; i++) out[i] = made ? made->out[i] : p->b.poison;
}

static void make_take(ts_partitioner *p, const ts_node *n, const ts_factors *f, const ts_assignment *a,
                      ts_value *const *in, ts_value **out)
{
    int k = range_of(f, a, ts__factors_in(f, 0));
    ts_value *local[2] = {in[0], in[1]};
    ts_attr attr = n->attr;
    attr.take.no_grad_row = -1; /* the gradient was taken before, and this may be no row of the local table */
    if (k >= 0) local[1] = localize(p, a, k, in[1], local_size(p, f, a, k));
    plain(p, n, &attr, local, out);
}

/* no_grad_row is a row of the whole table. */
static void make_scatter(ts_partitioner *p, const ts_node *n, const ts_factors *f,
                         const ts_assignment *a, ts_value *const *in, ts_value **out)
{
    ts_builder *b = &p->b;
    int k = range_of(f, a, ts__factors_out(f, 0));
    ts_attr attr = n->attr;
    ts_value *local[2] = {in[0], in[1]};
    if (k >= 0) {
        attr.scatter.rows.dim[0].size = local_size(p, f, a, k);
        local[0] = localize(p, a, k, in[0], attr.scatter.rows.dim[0].size);
        if (attr.scatter.no_grad_row >= 0) {
            const ts_type *t = &in[0]->type;
            ts_value *row = ts_constant(b, (double)attr.scatter.no_grad_row, TS_I32, t->dim, t->rank);
            ts_value *none = ts_constant(b, -1, TS_I32, t->dim, t->rank);
            local[0] = ts_select(b, ts_compare(b, TS_EQ, in[0], row), none, local[0]);
            attr.scatter.no_grad_row = -1;
        }
    }
    plain(p, n, &attr, local, out);
}

/* ---- cross-entropy over a split vocabulary --------------------------------------------------- */

static ts_value *reduce(ts_partitioner *p, const ts_assignment *a, int k, ts_value *x, int how)
{
    for (int i = 0; i < a->n[k]; i++)
        x = ts__collective(&p->b, p->mesh, TS_OP_all_reduce, x, a->axis[k][i], 0, 0, how);
    return x;
}

/* x, y [T] as [2,T] summed over the devices in one go. */
static void reduce_pair(ts_partitioner *p, const ts_assignment *a, int k, ts_value **x, ts_value **y)
{
    ts_builder *b = &p->b;
    ts_dim T = (*x)->type.dim[0], row[2] = {{NULL, 1}, T};
    ts_value *both[2] = {ts_reshape(b, *x, row, 2), ts_reshape(b, *y, row, 2)};
    ts_value *sum = reduce(p, a, k, ts_concat(b, both, 2, 0), 0);
    *x = ts_reshape(b, ts_slice(b, sum, 0, 0, 1), &T, 1);
    *y = ts_reshape(b, ts_slice(b, sum, 0, 1, 2), &T, 1);
}

static void make_rows(ts_partitioner *p, const ts_node *n, const ts_factors *f, const ts_assignment *a,
                      ts_value *const *in, ts_value *part[3])
{
    int k = range_of(f, a, ts__factors_in(f, 1));
    ts_value *local[3] = {in[0], in[1], localize(p, a, k, in[2], local_size(p, f, a, k))};
    ts_node *rows = ts__op_n(&p->b, TS_OP_xent_rows, local, 3, &n->attr);
    for (int i = 0; rows && i < 3; i++) part[i] = rows->out[i];
}

static void make_xent(ts_partitioner *p, const ts_node *n, const ts_factors *f, const ts_assignment *a,
                      ts_value *const *in, ts_value **out)
{
    ts_builder *b = &p->b;
    int k = range_of(f, a, ts__factors_in(f, 1)), v = ts__factors_in(f, 1)[0][0];
    int64_t pieces = ts__head_pieces(p, n);
    if (k < 0 && pieces == 1) {
        plain(p, n, &n->attr, in, out);
        return;
    }
    ts_value *part[3] = {b->poison, b->poison, b->poison};
    if (pieces > 1) ts__head_rows(p, n, a, v, pieces, in, part);
    else make_rows(p, n, f, a, in, part);
    k = v;
    ts_value *most = reduce(p, a, k, part[0], 1), *sum = ts__xent_rescale(b, part, most);
    ts_value *target = part[2];
    if (a->n[k]) reduce_pair(p, a, k, &sum, &target);
    ts__xent_finish(b, (ts_value *[3]){most, sum, target}, in[2], f->size[k], &out[0], &out[1]);
}

static void make_xent_grad(ts_partitioner *p, const ts_node *n, const ts_factors *f,
                           const ts_assignment *a, ts_value *const *in, ts_value **out,
                           ts_spec *layout)
{
    int k = range_of(f, a, ts__factors_in(f, 1));
    int64_t pieces = ts__head_pieces(p, n);
    ts_value *local[6];
    if (pieces > 1) {
        ts__head_grad(p, n, a, ts__factors_in(f, 1)[0][0], pieces, &layout[1], in, out);
        return;
    }
    memcpy(local, in, sizeof local);
    if (k >= 0) {
        int64_t V = local_size(p, f, a, k);
        local[2] = localize(p, a, k, in[2], V);
        local[5] = ts__xent_shard_dlse(&p->b, in[2], f->size[k], local[2], V, in[4], in[5]);
    }
    plain(p, n, &n->attr, local, out);
}

/* ---- all of them ----------------------------------------------------------------------------- */

void ts__emit_local(ts_partitioner *p, const ts_node *n, const ts_factors *f, const ts_assignment *a,
                    ts_value *const *in, ts_value **out, ts_spec *layout)
{
    ts_spec result = ts__assigned_spec(n->out[0], ts__factors_out(f, 0), a);
    ts_attr attr = n->attr;
    switch (n->op) {
    case TS_OP_take: make_take(p, n, f, a, in, out); return;
    case TS_OP_scatter_add: make_scatter(p, n, f, a, in, out); return;
    case TS_OP_linear_xent: make_xent(p, n, f, a, in, out); return;
    case TS_OP_linear_xent_grad: make_xent_grad(p, n, f, a, in, out, layout); return;
    case TS_OP_reshape: cut_shape(p, &attr.shape.shape, &result); break;
    case TS_OP_broadcast: cut_shape(p, &attr.broadcast.shape, &result); break;
    default: break;
    }
    plain(p, n, &attr, in, out);
}

/* iota along a split dimension begins at the device's first index. */
static ts_value *make_iota(ts_partitioner *p, const ts_node *n, const ts_spec *s)
{
    ts_builder *b = &p->b;
    ts_shape shape = n->attr.iota.shape;
    int axis = (int)n->attr.iota.axis;
    cut_shape(p, &shape, s);
    ts_value *x = ts_iota(b, n->attr.iota.dtype, shape.dim, shape.rank, axis);
    if (!s->n[axis]) return x;
    ts_value *first = ts__mesh_index(p, s->axis[axis], s->n[axis], shape.dim[axis].size);
    first = ts_convert(b, first, n->attr.iota.dtype);
    return ts_add(b, x, ts_broadcast(b, first, shape.dim, shape.rank, NULL, 0));
}

ts_value *ts__emit_free(ts_partitioner *p, const ts_node *n, const ts_spec *s)
{
    ts_builder *b = &p->b;
    ts_spec none = ts_spec_whole(0);
    switch (n->op) {
    case TS_OP_constant: {
        ts_shape shape = n->attr.constant.shape;
        cut_shape(p, &shape, s);
        return ts_constant(b, n->attr.constant.value, n->attr.constant.dtype, shape.dim, shape.rank);
    }
    case TS_OP_iota: return make_iota(p, n, s);
    case TS_OP_broadcast: {
        ts_shape shape = n->attr.broadcast.shape;
        cut_shape(p, &shape, s);
        return ts_broadcast(b, ts__reshard(p, n->in[0], &none), shape.dim, shape.rank, NULL, 0);
    }
    default: /* a conversion of one of these */
        TS_ASSERT(n->op == TS_OP_convert);
        return ts_convert(b, ts__reshard(p, n->in[0], s), n->attr.convert.dtype);
    }
}
