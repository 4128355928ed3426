/* random_graph.h – random global graphs, for tests of what is made of them.
 *
 * Values come in a few shapes: streams [B,S,E], matrices, a table, norms, scalars, ids, stacks of N. A recipe makes
 * another from some of them: elementwise ops, shapes, products, fused ops, and loops whose bodies are made by the same
 * recipes. Most graphs end in a gradient, some take it inside a loop as micro-batches do, some have an optimizer. Pins
 * with any logical names stand anywhere.
 *
 * Values are kept small (tanh before what amplifies), and nothing compares floats that were computed: no rounding
 * changes a choice.
 */
#ifndef TS_TEST_RANDOM_GRAPH_H
#define TS_TEST_RANDOM_GRAPH_H

#include "mesh_help.h"

#include "grad/grad.h"

enum { B = 4, S = 6, K = 2, G = 2, D = 4, E = K * G * D, V = 12, N = 3, POOL = 24 };

/* stream [B,S,E], matrix [E,E], table [V,E], norm [E], scalar, ids [B,S], streams [N,B,S,E], matrices [N,E,E] */
typedef enum shape { STREAM, MATRIX, TABLE, NORM, SCALAR, IDS, STREAMS, MATRICES, SHAPES } shape;
static const int64_t sizes[SHAPES][4] = {{B, S, E}, {E, E}, {V, E},       {E},
                                         {0},       {B, S}, {N, B, S, E}, {N, E, E}};
static const int ranks[SHAPES] = {3, 2, 2, 1, 0, 2, 4, 3};
static const char *const logical[] = {NULL,  "batch", "sequence", "kv_heads", "group",
                                      "mlp", "vocab", "embed",    "norm"};
enum { LOGICAL = sizeof logical / sizeof *logical };

typedef struct maker {
    ts_builder *b;
    uint64_t state;
    ts_value *pool[SHAPES][POOL];
    int n[SHAPES], depth, size;
    ts_value *param[8];
    int n_param;
    bool grad; /* it was taken, or never will be */
} maker;

static int pick(maker *m, int n)
{
    m->state = m->state * 6364136223846793005u + 1442695040888963407u;
    return (int)((m->state >> 33) % (uint64_t)n);
}

static ts_shape shape_of(shape s)
{
    ts_shape t = {.rank = ranks[s]};
    for (int d = 0; d < t.rank; d++) t.dim[d].size = sizes[s][d];
    return t;
}

#define DIMS(s) shape_of(s).dim, ranks[s]

static void pin(maker *m, ts_value *v)
{
    const char *name[TS_MAX_RANK];
    for (int d = 0; d < v->type.rank; d++) name[d] = logical[pick(m, LOGICAL)];
    ts__pin(m->b, v, name);
}

static ts_value *any(maker *m, shape s)
{
    int n = m->n[s];
    return m->pool[s][pick(m, 3) ? n - 1 - pick(m, n < 4 ? n : 4) : pick(m, n)];
}

/* One of the inputs as often as another. */
static ts_value *weight(maker *m, shape s)
{
    return pick(m, 2) ? m->pool[s][pick(m, 2)] : any(m, s);
}

static void keep(maker *m, shape s, ts_value *v)
{
    if (pick(m, 7) == 0 && v->node) pin(m, v);
    m->pool[s][m->n[s] < POOL ? m->n[s]++ : pick(m, POOL)] = v;
}

static ts_value *scaled(maker *m, ts_value *v, double by)
{
    return ts_mul(m->b, v, ts_scalar(m->b, by, v->type.dtype));
}

static ts_value *calm(maker *m, ts_value *v)
{
    return ts_tanh(m->b, v);
}

static ts_value *like(maker *m, shape s, ts_value *v) /* v in another shape of as many elements */
{
    return ts_reshape(m->b, v, DIMS(s));
}

/* ---- recipes --------------------------------------------------------------------------------- */

static ts_value *elementwise(maker *m, shape s)
{
    ts_builder *b = m->b;
    ts_value *x = any(m, s), *y = any(m, s), *z = any(m, s), *out[3];
    ts_value *scalar = any(m, SCALAR);
    switch (pick(m, 16)) {
    case 0: return ts_neg(b, x);
    case 1: return ts_tanh(b, x);
    case 2: return ts_add(b, x, y);
    case 3: return ts_sub(b, x, y);
    case 4: return ts_max(b, calm(m, x), ts_constant(b, 0.01, TS_F32, DIMS(s)));
    case 5: return ts_mul(b, x, calm(m, y));
    case 6: return ts_add_n(b, (ts_value *[]){x, y, z}, 3);
    case 7: return ts_gated(b, pick(m, 2) ? TS_SILU : TS_GELU_TANH, calm(m, x), y);
    case 8: return ts_mul(b, x, calm(m, scalar));
    case 9: return ts_mul(b, calm(m, scalar), x);
    case 10: return ts_div(b, x, ts_add(b, ts_exp(b, calm(m, y)), ts_scalar(b, 1, TS_F32)));
    case 11:
        return ts_select(
            b,
            ts_compare(
                b, TS_GT,
                ts_reshape(b,
                           ts_slice(b, ts_reshape(b, any(m, IDS), TS_DIMS({NULL, B * S})), 0, 3, 4),
                           TS_SCALAR),
                ts_scalar(b, 2, TS_I32)),
            x, y);
    case 12: ts_barrier(b, (ts_value *[]){x, scalar, y}, 3, out); return ts_sub(b, out[0], out[2]);
    case 13: return ts_add(b, x, ts_broadcast(b, scalar, DIMS(s), NULL, 0));
    case 14:
        if (!ranks[s]) return ts_add(b, y, ts_scalar(b, 0.5, TS_F32));
        return ts_sub(b, x, ts_convert(b, ts_iota(b, TS_I32, DIMS(s), pick(m, ranks[s])), TS_F32));
    default: return ts_div(b, x, ts_scalar(b, 3, TS_F32));
    }
}

/* A stream through other shapes and back. */
static ts_value *shapes(maker *m)
{
    ts_builder *b = m->b;
    ts_value *x = any(m, STREAM), *y = any(m, STREAM), *t;
    int axis = pick(m, 3), n = (int)sizes[STREAM][axis], at = 1 + pick(m, n - 1);
    ts_dim split[4][4] = {{{NULL, B * S}, {NULL, E}},
                          {{NULL, B}, {NULL, S * E}},
                          {{NULL, S}, {NULL, B}, {NULL, E}},
                          {{NULL, 2}, {NULL, B * S * E / 4}, {NULL, 2}}};
    static const int split_rank[4] = {2, 2, 3, 3};
    int64_t perm[3][3] = {{1, 0, 2}, {2, 0, 1}, {0, 2, 1}};
    ts_value *start = ts_reshape(
        b, ts_slice(b, ts_reshape(b, any(m, IDS), TS_DIMS({NULL, B * S})), 0, 5, 6), TS_SCALAR);
    switch (pick(m, 11)) {
    case 0:
        return ts_concat(
            b, (ts_value *[]){ts_slice(b, x, axis, n - at, n), ts_slice(b, y, axis, 0, n - at)}, 2,
            axis);
    case 1: return ts_pad(b, ts_slice(b, x, axis, at, n), axis, 0, at, 0.5);
    case 2: return ts_dynamic_update(b, x, ts_dynamic_slice(b, y, start, axis, at), start, axis);
    case 3:
    case 4: {
        int k = pick(m, 4);
        t = ts_reshape(b, x, split[k], split_rank[k]);
        if (pick(m, 2)) pin(m, t);
        return like(m, STREAM, pick(m, 2) ? ts_tanh(b, t) : ts_neg(b, t));
    }
    case 5: /* in another order, read as a stream again */
        return like(m, STREAM, ts_transpose(b, x, perm[axis], 3));
    case 6: {
        int64_t kept[3][2] = {{1, 2}, {0, 2}, {0, 1}};
        t = pick(m, 3) ? ts_reduce_sum(b, x, TS_INTS(axis)) : ts_reduce_max(b, x, TS_INTS(axis));
        if (pick(m, 2)) pin(m, t);
        return ts_broadcast(b, t, DIMS(STREAM), kept[axis], 2);
    }
    case 7: return ts_broadcast(b, any(m, NORM), DIMS(STREAM), TS_INTS(2));
    case 8: t = ts_slice(b, any(m, STREAMS), 0, 1, 2); return like(m, STREAM, t);
    case 9: /* sums that bf16 rounds, exact before */
        axis %= 2;
        t = ts_reduce_sum(b, scaled(m, any(m, IDS), 97), TS_INTS(axis));
        t = ts_convert(b, ts_convert(b, t, TS_BF16), TS_F32);
        return scaled(m, ts_broadcast(b, t, DIMS(STREAM), TS_INTS(1 - axis)), 1 / 1024.);
    default:
        return ts_select(b,
                         ts_compare(b, TS_GE,
                                    ts_broadcast(b, any(m, IDS), DIMS(STREAM), TS_INTS(0, 1)),
                                    ts_iota(b, TS_I32, DIMS(STREAM), axis)),
                         x, y);
    }
}

static ts_value *attend(maker *m, ts_value *q, ts_value *k, ts_value *v)
{
    ts_builder *b = m->b;
    ts_dim head[5] = {{NULL, B}, {NULL, S}, {NULL, K}, {NULL, G}, {NULL, D}},
           kv[4] = {head[0], head[1], head[2], head[4]};
    ts_dim table[2] = {{NULL, S}, {NULL, D / 2}};
    ts_attention_options o = {.causal = pick(m, 2), .window = pick(m, 2) * 3};
    ts_value *angle = ts_convert(b, ts_iota(b, TS_I32, table, 2, 0), TS_F32), *lse;
    q = ts_rope(b, ts_reshape(b, calm(m, q), head, 5), ts_cos(b, angle), ts_sin(b, angle));
    k = ts_reshape(b, ts_slice(b, calm(m, k), 2, 0, K * D), kv, 4);
    v = ts_reshape(b, ts_slice(b, v, 2, K * D, 2 * K * D), kv, 4);
    if (pick(m, 2)) pin(m, q);
    if (pick(m, 2)) pin(m, k);
    ts_value *segments =
        pick(m, 2) ? ts_and(b, any(m, IDS), ts_constant(b, 1, TS_I32, DIMS(IDS))) : NULL;
    ts_value *a = like(m, STREAM, ts_attention(b, q, k, v, segments, &o, &lse));
    if (!m->grad) return a; /* no gradient passes through the log-sum-exp */
    return ts_add(
        b, a, ts_broadcast(b, ts_reduce_sum(b, lse, TS_INTS(2, 3)), DIMS(STREAM), TS_INTS(0, 1)));
}

static ts_value *losses(maker *m) /* [B,S] → a stream */
{
    ts_builder *b = m->b;
    ts_value *lse, *x = ts_reshape(b, calm(m, any(m, STREAM)), TS_DIMS({NULL, B * S}, {NULL, E}));
    ts_value *labels = ts_reshape(b, any(m, IDS), TS_DIMS({NULL, B * S}));
    ts_value *loss =
        ts_linear_xent(b, x, weight(m, TABLE), labels, pick(m, 2) * 5.0, 4 + pick(m, 9), &lse);
    if (pick(m, 3) == 0) loss = ts_add(b, loss, lse);
    return ts_broadcast(b, ts_reshape(b, loss, DIMS(IDS)), DIMS(STREAM), TS_INTS(0, 1));
}

/* Tokens through the matrices of a stack as experts, and back. */
static ts_value *experts(maker *m)
{
    ts_builder *b = m->b;
    ts_value *x = ts_reshape(b, any(m, STREAM), TS_DIMS({NULL, B * S}, {NULL, E}));
    ts_value *ids = ts_reshape(b, any(m, IDS), TS_DIMS({NULL, B * S}, {NULL, 1}));
    ts_value *token, *assignment, *offsets;
    ts_expert_rows(b, ts_and(b, ids, ts_scalar(b, 3, TS_I32)), N, &token, &assignment, &offsets);
    ts_value *rows = ts_grouped_dot(b, ts_take(b, x, token, -1), weight(m, MATRICES), offsets);
    if (pick(m, 2)) pin(m, rows);
    rows = ts_scatter_add(b, token, rows, (ts_dim){NULL, B * S}, -1);
    return ts_mul(b, like(m, STREAM, rows), ts_scalar(b, 0.25, TS_F32));
}

static ts_value *product(maker *m, ts_value *x, int xc, ts_value *y, int yc, double by)
{
    ts_dot_dims d = {.n_contract = 1, .x_contract = {xc}, .y_contract = {yc}};
    return scaled(m, ts_dot(m->b, x, y, &d, TS_F32), by);
}

static ts_value *streams(maker *m)
{
    ts_builder *b = m->b;
    ts_value *x = any(m, STREAM), *y = any(m, STREAM), *w;
    ts_dot_dims scores = {.n_batch = 1, .n_contract = 1, .x_contract = {2}, .y_contract = {2}};
    switch (pick(m, 11)) {
    case 0:
    case 1: return product(m, x, 2, weight(m, MATRIX), pick(m, 2), 0.25);
    case 2:
        return ts_add(
            b, y,
            product(m, ts_rms_norm(b, x, weight(m, NORM), 0.1), 2, weight(m, MATRIX), 0, 0.25));
    case 3:
        x = ts_dot(b, calm(m, x), calm(m, y), &scores, TS_F32);
        scores.y_contract[0] = 1;
        return scaled(m, ts_dot(b, calm(m, x), y, &scores, TS_F32), 0.25);
    case 4: return ts_rms_norm(b, x, weight(m, NORM), 0.1);
    case 5: return attend(m, x, y, any(m, STREAM));
    case 6:
    case 7: return ts_take(b, weight(m, TABLE), any(m, IDS), pick(m, 3) - 1);
    case 8: return losses(m);
    case 9: return experts(m);
    default: /* a slice of a stack of matrices */
        w = ts_slice(b, weight(m, MATRICES), 0, 2, 3);
        return product(m, x, 2, like(m, MATRIX, w), 0, 0.25);
    }
}

static void matrices(maker *m)
{
    ts_builder *b = m->b;
    ts_dot_dims rows = {.n_contract = 2, .x_contract = {0, 1}, .y_contract = {0, 1}};
    switch (pick(m, 9)) {
    case 0:
        keep(m, MATRIX,
             scaled(m, ts_dot(b, any(m, STREAM), any(m, STREAM), &rows, TS_F32), 1 / 16.));
        break;
    case 1:
        keep(m, MATRIX,
             product(m, weight(m, MATRIX), pick(m, 2), weight(m, MATRIX), pick(m, 2), 0.25));
        break;
    case 2: keep(m, MATRIX, ts_transpose(b, weight(m, MATRIX), TS_INTS(1, 0))); break;
    case 3:
        keep(m, TABLE,
             ts_scatter_add(b, any(m, IDS), any(m, STREAM), (ts_dim){NULL, V}, pick(m, 3) - 1));
        break;
    case 4: keep(m, TABLE, product(m, weight(m, TABLE), 1, weight(m, MATRIX), 0, 0.25)); break;
    case 5:
        keep(m, NORM, ts_reduce_sum(b, scaled(m, any(m, STREAM), 1 / 8.), TS_INTS(0, 1)));
        break;
    case 6:
        keep(m, SCALAR, ts_reduce_sum(b, scaled(m, weight(m, TABLE), 1 / 64.), TS_INTS(0, 1)));
        break;
    case 7:
        keep(m, STREAMS, ts_broadcast(b, any(m, STREAM), DIMS(STREAMS), TS_INTS(1, 2, 3)));
        break;
    default:
        keep(m, SCALAR, ts_reduce_sum(b, scaled(m, any(m, STREAM), 1 / 64.), TS_INTS(0, 1, 2)));
        break;
    }
}

static void integers(maker *m)
{
    ts_builder *b = m->b;
    ts_value *x = any(m, IDS), *y = any(m, IDS), *t;
    int axis = pick(m, 2), n = (int)sizes[IDS][axis];
    switch (pick(m, 12)) {
    case 0: t = ts_add(b, x, y); break;
    case 1: t = ts_mul(b, x, y); break;
    case 2: t = ts_sub(b, x, ts_iota(b, TS_I32, DIMS(IDS), axis)); break;
    case 3: t = ts_div(b, x, ts_scalar(b, 3, TS_I32)); break;
    case 4:
        t = ts_broadcast(b, ts_reduce_sum(b, x, TS_INTS(axis)), DIMS(IDS), TS_INTS(1 - axis));
        break;
    case 5: t = ts_broadcast(b, ts_argmax(b, x, axis), DIMS(IDS), TS_INTS(1 - axis)); break;
    case 6:
        t = ts_concat(b, (ts_value *[]){ts_slice(b, x, axis, 1, n), ts_slice(b, y, axis, 0, 1)}, 2,
                      axis);
        break;
    case 7: t = ts_select(b, ts_compare(b, TS_LT, x, y), x, ts_and(b, y, x)); break;
    case 8: t = like(m, IDS, ts_transpose(b, x, TS_INTS(1, 0))); break;
    case 9: t = ts_xor(b, ts_min(b, x, y), y); break;
    case 10: ts_top_k(b, x, S, &y, &t); break;
    default:
        t = ts_random_bits(b, ts_constant(b, 7, TS_U32, TS_DIMS({NULL, 2})), DIMS(IDS));
        if (pick(m, 2)) pin(m, t);
        t = ts_convert(b, t, TS_I32);
        break;
    }
    keep(m, IDS, ts_and(b, t, ts_constant(b, 15, TS_I32, DIMS(IDS))));
}

static void steps(maker *m, int n);

/* A scalar that depends on the last values. */
static ts_value *total(maker *m)
{
    ts_builder *b = m->b;
    ts_value *last = m->pool[STREAM][m->n[STREAM] - 1];
    ts_value *x = ts_rms_norm(b, ts_add(b, last, any(m, STREAM)), weight(m, NORM), 0.1);
    if (pick(m, 2)) x = ts_rms_norm(b, ts_add(b, x, last), weight(m, NORM), 0.1);
    keep(m, STREAM, x);
    x = pick(m, 2) ? losses(m) : ts_mul(b, x, calm(m, any(m, STREAM)));
    x = ts_reduce_sum(b, calm(m, x), TS_INTS(0, 1, 2));
    x = ts_add(b, x, ts_reduce_sum(b, calm(m, any(m, MATRIX)), TS_INTS(0, 1)));
    return scaled(m, pick(m, 2) ? ts_add(b, x, calm(m, any(m, SCALAR))) : x, 0.25);
}

/* Carries, xs and results of a repeat are of any shape; gradients of a loss within may be among the results. */
static void loop(maker *m)
{
    ts_builder *b = m->b;
    static const shape carried[] = {STREAM, STREAM, MATRIX, NORM, SCALAR, IDS, TABLE};
    shape kind[3], y_kind[12] = {0};
    ts_value *carry[3], *arg[3], *xs[2], *x[2], *next[3], *ys[12], *out[15];
    bool sum[12];
    int n_carry = pick(m, 4), n_xs = pick(m, 3), n_ys = (n_carry ? 0 : 1) + pick(m, 3);
    maker outer = *m;
    for (int k = 0; k < n_carry; k++) {
        kind[k] = carried[pick(m, 7)];
        carry[k] = pick(m, 4) ? any(m, kind[k])
                              : ts_constant(b, 0, kind[k] == IDS ? TS_I32 : TS_F32, DIMS(kind[k]));
    }
    for (int k = 0; k < n_xs; k++) xs[k] = any(m, k ? STREAMS : MATRICES);
    b->remat = (ts_remat)pick(m, 3);
    ts_repeat *r = ts_repeat_begin(b, N, pick(m, 2), carry, n_carry, xs, n_xs, arg, x);
    m->depth++;
    for (int k = 0; k < n_carry; k++) keep(m, kind[k], arg[k]);
    for (int k = 0; k < n_xs; k++) keep(m, k ? STREAM : MATRIX, x[k]);
    steps(m, 3 + pick(m, 7));
    for (int k = 0; k < n_carry; k++)
        next[k] = kind[k] == IDS || kind[k] == SCALAR ? any(m, kind[k]) : elementwise(m, kind[k]);
    for (int k = 0; k < n_ys; k++) {
        y_kind[k] = carried[pick(m, 7)];
        ys[k] = any(m, y_kind[k]);
        sum[k] = (y_kind[k] != STREAM && y_kind[k] != MATRIX) || pick(m, 2);
    }
    bool inside = !m->grad && m->depth == 1 && m->n_param && pick(m, 5) == 0;
    int n_grad = inside ? m->n_param : 0;
    if (inside && ts_grad(b, total(m), m->param, n_grad, ys + n_ys, NULL) == TS_OK) {
        for (int k = 0; k < n_grad; k++) sum[n_ys + k] = true;
    }
    ts_repeat_end(b, r, next, ys, sum, n_ys + n_grad, out);
    outer.state = m->state;
    outer.grad |= inside;
    *m = outer;
    for (int k = 0; k < n_carry; k++) keep(m, kind[k], out[k]);
    for (int k = 0; k < n_ys; k++) {
        shape s = y_kind[k];
        keep(m, sum[k] ? s : s == STREAM ? STREAMS : MATRICES, out[n_carry + k]);
    }
    for (int k = 0; k < n_grad; k++) {
        char name[40];
        snprintf(name, sizeof name, "grad.%s", m->param[k]->name);
        ts_output(b, name, out[n_carry + n_ys + k], NULL);
    }
}

static void steps(maker *m, int n)
{
    for (; n > 0; n--) switch (pick(m, 12)) {
        case 0:
        case 1: keep(m, STREAM, elementwise(m, STREAM)); break;
        case 2: keep(m, STREAM, shapes(m)); break;
        case 3:
        case 4:
        case 5: keep(m, STREAM, streams(m)); break;
        case 6:
        case 7: matrices(m); break;
        case 8: integers(m); break;
        case 9: {
            shape s = (shape[]){MATRIX, TABLE, NORM, SCALAR, STREAMS, MATRICES}[pick(m, 6)];
            keep(m, s, elementwise(m, s));
            break;
        }
        default:
            if (m->depth < 2) loop(m);
        }
}

/* ---- graphs ---------------------------------------------------------------------------------- */

static ts_shape named(shape s, const char *const *name)
{
    ts_shape t = shape_of(s);
    for (int d = 0; d < t.rank; d++) t.dim[d].name = name[d];
    return t;
}

/* A parameter as the model sees it: as it is, or rounded to bf16 where it is used. */
static void parameter(maker *m, shape s, const char *name, const char *const *dims)
{
    ts_builder *b = m->b;
    ts_shape t = named(s, dims);
    ts_value *v = ts_param(b, name, t.dim, t.rank, t.rank == 1 ? 0 : 1, 0.1);
    ts_param_info *q = b->graph->n_param ? &b->graph->param[b->graph->n_param - 1] : NULL;
    if (q && s == MATRICES) *q = (ts_param_info){q->name, q->value, 0, 1, N, 2, {E, E}, 0.1};
    m->param[m->n_param++] = v;
    keep(m, s, pick(m, 2) ? v : ts_convert(b, ts_convert(b, v, TS_BF16), TS_F32));
}

static void inputs(maker *m, bool params)
{
    ts_builder *b = m->b;
    static const char *const kinds[SHAPES] = {"x", "w", "t", "n", "s", "i", "xs", "ws"};
    static const char *const plain[4] = {NULL}, *const in_out[] = {"embed", "mlp"},
                             *const out_in[] = {"mlp", "embed"}, *const rows[] = {"vocab", "embed"},
                             *const stack[] = {"layer", "embed", "mlp"};
    for (int s = 0; s < SHAPES; s++)
        for (int k = 0; k < 2; k++) {
            char name[20];
            snprintf(name, sizeof name, "%s%d", kinds[s], k);
            if (params && k == 0 && s == MATRIX)
                parameter(m, s, name, in_out);
            else if (params && k == 1 && s == MATRIX)
                parameter(m, s, name, out_in);
            else if (params && k == 0 && s == TABLE)
                parameter(m, s, name, rows);
            else if (params && s == NORM)
                parameter(m, s, name, plain);
            else if (params && k == 0 && s == MATRICES)
                parameter(m, s, "ws.{0..2:1}", stack);
            else {
                ts_value *v = ts_input(b, name, s == IDS ? TS_I32 : TS_F32, DIMS(s));
                if (pick(m, 2)) pin(m, v);
                m->pool[s][m->n[s]++] = v;
            }
        }
}

/* Gradients of the parameters, clipped by their norm; an optimizer for some. */
static void gradients(maker *m)
{
    ts_builder *b = m->b;
    ts_value *grad[8], *norm = NULL, *out[3];
    ts_adamw_options o = {0.9, 0.95, 1e-3, 0.1};
    bool adamw = pick(m, 2);
    b->remat = (ts_remat)pick(m, 3);
    if (ts_grad(b, total(m), m->param, m->n_param, grad, NULL) != TS_OK) return;
    for (int k = 0; k < m->n_param; k++) {
        const ts_type *t = &grad[k]->type;
        int64_t axes[] = {0, 1, 2};
        ts_value *square = ts_reduce_sum(b, ts_mul(b, grad[k], grad[k]), axes, t->rank);
        norm = norm ? ts_add(b, norm, square) : square;
    }
    ts_value *scale = ts_rsqrt(b, ts_add(b, norm, ts_scalar(b, 1, TS_F32)));
    ts_output(b, "norm", norm, NULL);
    for (int k = 0; k < m->n_param; k++) {
        const char *name = m->param[k]->name;
        const ts_type *t = &m->param[k]->type;
        char text[3][200];
        if (!adamw || pick(m, 3) == 0) {
            snprintf(text[0], 200, "grad.%s", name);
            ts_output(b, text[0], pick(m, 2) ? grad[k] : ts_mul(b, grad[k], scale), NULL);
            continue;
        }
        snprintf(text[1], 50, "%s.m", name);
        snprintf(text[2], 50, "%s.v", name);
        ts_value *m1 = ts_input(b, text[1], TS_F32, t->dim, t->rank),
                 *m2 = ts_input(b, text[2], TS_F32, t->dim, t->rank);
        ts_adamw(b, m->param[k], grad[k], m1, ts_mul(b, m2, m2), ts_scalar(b, 0.1, TS_F32),
                 ts_scalar(b, 3, TS_I32), scale, ts_is_finite(b, norm), &o, out);
        snprintf(text[0], 200, "%.60s.next", name);
        ts_output(b, text[0], out[0], m->param[k]);
        snprintf(text[0], 200, "%.60s.next", text[1]);
        ts_output(b, text[0], out[1], m1);
    }
}

static ts_graph *random_graph(uint64_t seed, bool params)
{
    maker m = {.b = ts_builder_new("random"), .state = seed * 0x9e3779b97f4a7c15u};
    ts_graph *g = NULL;
    ts_error err = {0};
    inputs(&m, params);
    if (!params) /* what a gradient is taken of are inputs with any layout */
        for (int s = MATRIX; s <= NORM; s++) m.param[m.n_param++] = m.pool[s][0];
    m.grad = pick(&m, 4) == 0;
    steps(&m, 4 + pick(&m, 12));
    if (!m.grad) gradients(&m);
    for (int s = 0; s < SHAPES; s++) {
        char name[20];
        snprintf(name, sizeof name, "out%d", s);
        ts_output(m.b, name, pick(&m, 2) ? any(&m, (shape)s) : m.pool[s][m.n[s] - 1], NULL);
    }
    if (ts_builder_finish(m.b, &g, &err) != TS_OK) {
        if (strstr(err.msg, "of rank 6 inside a repeat"))
            return NULL; /* what a gradient keeps would have too many dimensions */
        fail_msg("seed %llu: %s", (unsigned long long)seed, err.msg);
    }
    if (pick(&m, 2)) assert_int_equal(ts_graph_cse(g, &err), TS_OK);
    if (pick(&m, 4)) assert_int_equal(ts_graph_dce(g, &err), TS_OK);
    return g;
}

#endif
