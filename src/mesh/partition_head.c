/* mesh/partition_head.c – the cross-entropy of a large head: its weights are gathered a piece of the vocabulary at a
 * time.
 *
 * What fsdp stores of a head [V, E] is used whole, which for a vocabulary of 128,256 is a gigabyte gathered and two of
 * gradient. A loop over pieces of the vocabulary gathers one, uses it, and scatters its gradient before the next, as
 * layers are; the bytes on the wire are the same. Forward carries the largest logit, Σ exp below it and the label's
 * logit; backward knows the log-sum-exp and adds up dx, f32.
 */
#include "mesh/partition_internal.h"

enum { MOST_BYTES = 64 << 20, MOST_PIECES = 64, X = 0, W = 1, LABELS = 2, LSE = 3, DLOSS = 4, DLSE = 5 };

/* A head in pieces: of the op's operands all but w are brought to the assignment. */
typedef struct head {
    ts_partitioner *p;
    const ts_node *n;
    const ts_assignment *a;
    int factor;              /* the vocabulary */
    int64_t pieces, rows, V; /* of the device; rows of a piece; of the whole vocabulary */
    ts_spec stored, used;    /* of w */
    ts_value *const *in;     /* in[W]: as stored */
    ts_reshard_scope outside;
} head;

/* How many pieces, 1 where the head is small, is not gathered, or does not divide. */
int64_t ts__head_pieces(ts_partitioner *p, const ts_node *n)
{
    if (n->op != TS_OP_linear_xent && n->op != TS_OP_linear_xent_grad) return 1;
    const ts_placement *w = ts__placement(p, n->in[W]);
    if (!w->param || ts_spec_same(&w->spec, &w->use) || ts_spec_ways(p->mesh, &w->use, 1) > 1) return 1;
    if (w->spec.n[0] != w->use.n[0]) return 1; /* a piece of each device's rows would be no run of the vocabulary */
    ts_type t = ts_spec_local(p->mesh, &w->use, &n->in[W]->type);
    int64_t most = p->o->head_bytes ? p->o->head_bytes : MOST_BYTES;
    int64_t V = t.dim[0].size, least = ((int64_t)ts_type_bytes(&t) + most - 1) / most;
    for (int64_t k = least; k <= 2 * least && k <= MOST_PIECES; k++)
        if (V % k == 0) return k;
    return 1;
}

/* ---- the loop -------------------------------------------------------------------------------- */

/* w as stored [V/…, E/…] in pieces, and the first class of each, i32 [pieces]. */
static void make_xs(const head *h, ts_value *xs[2])
{
    ts_builder *b = &h->p->b;
    const ts_type *t = &h->in[W]->type;
    ts_dim count = {NULL, h->pieces};
    xs[0] = ts_reshape(b, h->in[W], TS_DIMS(count, {t->dim[0].name, h->rows}, t->dim[1]));
    xs[1] = ts_mul(b, ts_iota(b, TS_I32, &count, 1, 0), ts_constant(b, (double)h->rows, TS_I32, &count, 1));
    if (!h->a->n[h->factor]) return;
    ts_value *first =
        ts__mesh_index(h->p, h->a->axis[h->factor], h->a->n[h->factor], h->rows * h->pieces);
    xs[1] = ts_add(b, xs[1], ts_broadcast(b, first, &count, 1, NULL, 0));
}

/* Layouts within a body are not those outside: what is remembered there must not be used here, nor the other way. */
static void enter(head *h)
{
    h->outside = h->p->scope;
    h->p->scope.part = 3 + h->p->bodies++;
}

static ts_value *local_labels(const head *h, ts_value *first)
{
    ts_builder *b = &h->p->b;
    const ts_type *t = &h->in[LABELS]->type;
    return ts_sub(b, ts__use(b, h->in[LABELS]), ts_broadcast(b, first, t->dim, t->rank, NULL, 0));
}

/* ---- forward --------------------------------------------------------------------------------- */

/* Two parts of one row: largest logit, Σ exp(logit − largest), label's logit; f32 [T]. */
static void combine(ts_builder *b, ts_value *const *x, ts_value *const *y, ts_value **out)
{
    out[0] = ts_max(b, x[0], y[0]);
    out[1] = ts_add(b, ts__xent_rescale(b, x, out[0]), ts__xent_rescale(b, y, out[0]));
    out[2] = ts_add(b, x[2], y[2]);
}

void ts__head_rows(ts_partitioner *p, const ts_node *n, const ts_assignment *a, int factor, int64_t pieces,
                   ts_value *const *in, ts_value *part[3])
{
    const ts_placement *w = ts__placement(p, n->in[W]);
    head h = {p, n, a, factor, pieces, in[W]->type.dim[0].size / pieces, n->in[W]->type.dim[0].size,
              w->spec, w->use, in, {0}};
    ts_builder *b = &p->b;
    ts_dim T = in[LABELS]->type.dim[0];
    ts_value *xs[2], *arg[2], *carry[3], *next[3];
    ts_value *zero = ts_constant(b, 0, TS_F32, &T, 1);
    ts_value *init[3] = {ts_constant(b, -1e30, TS_F32, &T, 1), zero, zero};
    make_xs(&h, xs);
    ts_repeat *r = ts_repeat_begin(b, pieces, false, init, 3, xs, 2, carry, arg);
    enter(&h);
    ts_value *rows_in[3] = {ts__use(b, in[X]), ts__reshard_local(p, arg[0], h.stored, &h.used),
                            local_labels(&h, arg[1])};
    ts_node *made = ts__op_n(b, TS_OP_xent_rows, rows_in, 3, &n->attr);
    ts_value *own[3] = {b->poison, b->poison, b->poison};
    for (int i = 0; made && i < 3; i++) own[i] = made->out[i];
    combine(b, carry, own, next);
    ts_repeat_end(b, r, next, NULL, NULL, 0, part);
    p->scope = h.outside;
}

/* ---- backward -------------------------------------------------------------------------------- */

/* dx [T,E], partial over the vocabulary's axes; dw as stored, partial over what is left of the tokens' axes. */
void ts__head_grad(ts_partitioner *p, const ts_node *n, const ts_assignment *a, int factor, int64_t pieces,
                   ts_spec *dw, ts_value *const *in, ts_value *out[2])
{
    static const bool accumulate[2] = {true, false};
    const ts_placement *w = ts__placement(p, n->in[W]);
    head h = {p, n, a, factor, pieces, in[W]->type.dim[0].size / pieces, n->in[W]->type.dim[0].size,
              w->spec, w->use, in, {0}};
    ts_builder *b = &p->b;
    ts_value *xs[2], *arg[2], *ys[2] = {b->poison, b->poison}, *result[2], *local[6];
    ts_spec made_dw = *dw;
    *dw = h.stored;
    dw->partial = made_dw.partial & (uint16_t)~ts_spec_axes(dw);
    make_xs(&h, xs);
    ts_repeat *r = ts_repeat_begin(b, pieces, false, NULL, 0, xs, 2, NULL, arg);
    enter(&h);
    for (int i = 0; i < 6; i++) local[i] = i == W ? NULL : ts__use(b, in[i]);
    local[W] = ts__reshard_local(p, arg[0], h.stored, &h.used);
    local[LABELS] = local_labels(&h, arg[1]);
    local[DLSE] = ts__xent_shard_dlse(b, ts__use(b, in[LABELS]), h.V, local[LABELS], h.rows, local[DLOSS], local[DLSE]);
    ts_node *made = ts__op_n(b, TS_OP_linear_xent_grad, local, 6, &n->attr);
    if (made) {
        ys[0] = ts_convert(b, made->out[0], TS_F32);
        ys[1] = ts__reshard_local(p, made->out[1], made_dw, dw);
    }
    ts_repeat_end(b, r, NULL, ys, accumulate, 2, result);
    p->scope = h.outside;
    out[0] = ts_convert(b, result[0], in[X]->type.dtype);
    const ts_type *t = &in[W]->type;
    out[1] = ts_reshape(b, result[1], t->dim, t->rank);
}
