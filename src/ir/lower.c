/* ir/lower.c – composites written in primitives: the driver, and the lowerings of random bits,
 * norms, rope, gated activations and adamw. Attention and cross-entropy have files of their own.
 *
 * What an engine without a fused kernel runs, and what the fused kernels are tested against.
 * Inside, all arithmetic is f32; bf16 operands are converted first and results last. New nodes
 * stand where the composite stood and keep its line, scope, half (backward) and primal, its results' pins too.
 * Not here: shapes (the builder checks them), fusing back.
 */
#include "ir/lower.h"

#include <math.h>

/* ---- the driver ------------------------------------------------------------------------------ */

static ts_lower_fn *const lowerings[TS_OPS] = {
#define LOWER_PRIMITIVE(name) NULL
#define LOWER_COLLECTIVE(name) NULL
#define LOWER_COMPOSITE(name) ts__lower_##name
#define OP(name, lo, hi, results, kind, ...) [TS_OP_##name] = LOWER_##kind(name),
#include "ir/ops.def"
#undef OP
};

static bool is_operand(const ts_node *n, const ts_value *v)
{
    for (int i = 0; i < n->n_in; i++)
        if (n->in[i] == v) return true;
    return false;
}

/* What stands for a pinned result is pinned alike. An operand that is its own result keeps what it has. */
static void move_pin(const ts_node *n, const ts_value *from, ts_value *to)
{
    if (from->pin && !to->pin && !is_operand(n, to)) to->pin = from->pin;
}

/* same: by a value's id, what stands for the result of a composite that is gone; uses follow as they are reached. */
static ts_status lower_node(ts_graph *g, ts_node *n, ts_value **same, ts_error *err)
{
    ts_value *out[4] = {NULL};
    ts_builder b;
    ts_scope scope = {n->scope, NULL};
    ts__builder_over(&b, g, n->region, n);
    TS_ASSERT(n->n_out <= 4);
    b.loc = n->loc;
    b.scope = n->scope ? &scope : NULL;
    b.backward = n->backward;
    b.primal = n->primal;
    lowerings[n->op](&b, n, out);
    if (b.error.code != TS_OK)
        return TS_ERROR(err, b.error.code, "lowering %s: %s", ts_op_infos[n->op].name, b.error.msg);
    for (int i = 0; i < n->n_out; i++) {
        move_pin(n, n->out[i], out[i]);
        same[n->out[i]->id] = out[i];
    }
    ts__node_remove(n);
    return TS_OK;
}

static void follow(ts_value *const *same, ts_value **v, int n)
{
    for (int i = 0; i < n; i++)
        if (same[v[i]->id]) v[i] = same[v[i]->id];
}

/* New values have ids beyond `same`, but only nodes that were there before are reached. */
static ts_status lower_region(ts_graph *g, ts_region *r, bool (*keep)(const ts_node *n),
                              ts_value **same, ts_error *err)
{
    for (ts_node *n = r->first, *next; n; n = next) {
        next = n->next;
        follow(same, n->in, n->n_in);
        if (n->body) TS_TRY(lower_region(g, n->body, keep, same, err));
        else if (lowerings[n->op] && !(keep && keep(n))) TS_TRY(lower_node(g, n, same, err));
    }
    follow(same, r->result, r->n_result);
    return TS_OK;
}

ts_status ts_graph_lower(ts_graph *g, bool (*keep)(const ts_node *n), ts_error *err)
{
    ts_value **same = ts_alloc_zero((size_t)g->next_id * sizeof *same + 1);
    if (!same)
        return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out while lowering graph %s", g->name);
    ts_status status = lower_region(g, g->top, keep, same, err);
    ts_free(same);
    return status;
}

/* ---- shared ---------------------------------------------------------------------------------- */

ts_value *ts__lower_spread(ts_builder *b, ts_value *x, const ts_value *shape, const int64_t *map,
                           int n)
{
    return ts_broadcast(b, x, shape->type.dim, shape->type.rank, map, n);
}

ts_value *ts__lower_mul_by(ts_builder *b, ts_value *x, double c)
{
    return c == 1 ? x : ts_mul(b, x, ts_scalar(b, c, x->type.dtype));
}

ts_value *ts__lower_add_to(ts_builder *b, ts_value *x, double c)
{
    return ts_add(b, x, ts_scalar(b, c, x->type.dtype));
}

ts_value *ts__lower_cap(ts_builder *b, ts_value *x, double cap)
{
    return cap == 0 ? x : ts__lower_mul_by(b, ts_tanh(b, ts__lower_mul_by(b, x, 1 / cap)), cap);
}

ts_value *ts__lower_cap_slope(ts_builder *b, ts_value *capped, double cap)
{
    ts_value *t = ts__lower_mul_by(b, capped, 1 / cap);
    return ts_sub(b, ts_scalar(b, 1, TS_F32), ts_mul(b, t, t));
}

static ts_value *f32(ts_builder *b, ts_value *x) { return ts_convert(b, x, TS_F32); }

/* ---- random bits: Threefry-2x32 with 20 rounds (Salmon et al. 2011) -------------------------- */

static ts_value *u32(ts_builder *b, uint32_t v) { return ts_scalar(b, v, TS_U32); }

static ts_value *key_word(ts_builder *b, ts_value *key, int i)
{
    return ts_reshape(b, ts_slice(b, key, 0, i, i + 1), TS_SCALAR);
}

/* The first word of block (index, 0), for each element's index in row-major order. */
void ts__lower_random_bits(ts_builder *b, const ts_node *n, ts_value **out)
{
    static const int rotation[8] = {13, 15, 26, 6, 17, 29, 16, 24};
    const ts_shape *s = &n->attr.shape.shape;
    int64_t count = ts_type_elements(&n->out[0]->type);
    if (count > (int64_t)1 << 32) {
        ts__mistake(b, TS_UNIMPLEMENTED,
                    "more than 2^32 elements need the counter's second word; split the shape");
        return;
    }
    ts_value *key[3] = {key_word(b, n->in[0], 0), key_word(b, n->in[0], 1), NULL};
    key[2] = ts_xor(b, ts_xor(b, key[0], key[1]), u32(b, 0x1bd11bdau));
    ts_value *x0 = ts_add(b, ts_iota(b, TS_U32, TS_DIMS({NULL, count}), 0), key[0]); /* [count] */
    ts_value *x1 = ts_broadcast(b, key[1], TS_DIMS({NULL, count}), NULL, 0);
    for (int r = 0; r < 20; r++) {
        x0 = ts_add(b, x0, x1);
        ts_value *high = ts_shift_left(b, x1, u32(b, (uint32_t)rotation[r % 8]));
        ts_value *low = ts_shift_right(b, x1, u32(b, 32 - (uint32_t)rotation[r % 8]));
        x1 = ts_xor(b, ts_or(b, high, low), x0);
        if (r % 4 != 3) continue;
        int k = r / 4 + 1;
        x0 = ts_add(b, x0, key[k % 3]);
        x1 = ts_add(b, x1, ts_add(b, key[(k + 1) % 3], u32(b, (uint32_t)k)));
    }
    out[0] = ts_reshape(b, x0, s->dim, s->rank);
}

/* ---- rms_norm -------------------------------------------------------------------------------- */

typedef struct norm {
    ts_value *x, *w;                 /* f32 [.., E], both */
    ts_value *r;                     /* rsqrt(mean(x²) + eps) [.., E] */
    int64_t last, axes[TS_MAX_RANK]; /* 0 … last − 1: the leading axes */
    double per;                      /* 1/E */
} norm;

/* The mean over the last axis, repeated along it. */
static ts_value *mean(ts_builder *b, const norm *m, ts_value *x)
{
    ts_value *sum = ts_reduce_sum(b, x, &m->last, 1); /* [..] */
    return ts__lower_mul_by(b, sum, m->per);
}

static norm norm_of(ts_builder *b, const ts_node *n)
{
    norm m = {.x = f32(b, n->in[0]), .last = n->in[0]->type.rank - 1};
    int64_t E = n->in[0]->type.dim[m.last].size;
    m.per = E ? 1 / (double)E : 0;
    for (int i = 0; i < m.last; i++) m.axes[i] = i;
    m.w = ts__lower_spread(b, f32(b, n->in[1]), n->in[0], &m.last, 1);
    ts_value *r =
        ts_rsqrt(b, ts__lower_add_to(b, mean(b, &m, ts_mul(b, m.x, m.x)), n->attr.rms_norm.eps));
    m.r = ts__lower_spread(b, r, n->in[0], m.axes, (int)m.last);
    return m;
}

void ts__lower_rms_norm(ts_builder *b, const ts_node *n, ts_value **out)
{
    norm m = norm_of(b, n);
    out[0] = ts_convert(b, ts_mul(b, ts_mul(b, m.x, m.r), m.w), n->out[0]->type.dtype);
}

/* With x̂ = x·r and d = dy·w: dx = r·(d − x̂·mean(d·x̂)), dw = Σ dy·x̂ over the leading axes. */
void ts__lower_rms_norm_grad(ts_builder *b, const ts_node *n, ts_value **out)
{
    norm m = norm_of(b, n);
    ts_value *dy = f32(b, n->in[2]), *x_hat = ts_mul(b, m.x, m.r),
             *d = ts_mul(b, dy, m.w); /* [.., E] */
    ts_value *c =
        ts__lower_spread(b, mean(b, &m, ts_mul(b, d, x_hat)), n->in[0], m.axes, (int)m.last);
    out[0] =
        ts_convert(b, ts_mul(b, m.r, ts_sub(b, d, ts_mul(b, x_hat, c))), n->out[0]->type.dtype);
    out[1] = ts_reduce_sum(b, ts_mul(b, dy, x_hat), m.axes, (int)m.last);
}

/* ---- rope ------------------------------------------------------------------------------------ */

/* Halves x1, x2 of the last dimension: (x1·cos − x2·sin, x2·cos + x1·sin). */
void ts__lower_rope(ts_builder *b, const ts_node *n, ts_value **out)
{
    ts_value *x = f32(b, n->in[0]); /* [B,S,…,D] */
    int last = x->type.rank - 1;
    int64_t half = n->in[0]->type.dim[n->in[0]->type.rank - 1].size / 2;
    bool each = n->in[1]->type.rank == 3; /* tables [B,S,D/2], else [S,D/2] */
    int64_t map[3] = {0, 1, last};
    ts_value *x1 = ts_slice(b, x, last, 0, half), *x2 = ts_slice(b, x, last, half, 2 * half);
    ts_value *cos = ts__lower_spread(b, n->in[1], x1, each ? map : map + 1, each ? 3 : 2);
    ts_value *sin = ts__lower_spread(b, n->in[2], x1, each ? map : map + 1, each ? 3 : 2);
    if (n->attr.rope.inverse) sin = ts_neg(b, sin);
    ts_value *turned[2] = {ts_sub(b, ts_mul(b, x1, cos), ts_mul(b, x2, sin)),
                           ts_add(b, ts_mul(b, x2, cos), ts_mul(b, x1, sin))};
    out[0] = ts_convert(b, ts_concat(b, turned, 2, last), n->out[0]->type.dtype);
}

/* ---- gated activations ----------------------------------------------------------------------- */

/* The constants of gelu's tanh form (Hendrycks & Gimpel 2016): √(2/π)·(x + 0.044715·x³). */
#define GELU_SCALE 0.79788456080286535588
#define GELU_CUBE 0.044715

/* act(x), and its derivative where slope is not NULL. */
static ts_value *activate(ts_builder *b, int act, ts_value *x, ts_value **slope)
{
    ts_value *one = ts_scalar(b, 1, TS_F32);
    if (act == TS_SILU) {
        ts_value *s = ts_logistic(b, x), *y = ts_mul(b, x, s);
        /* σ + x·σ·(1 − σ) */
        if (slope) *slope = ts_add(b, s, ts_mul(b, y, ts_sub(b, one, s)));
        return y;
    }
    ts_value *square = ts_mul(b, x, x);
    ts_value *inner =
        ts__lower_add_to(b, ts__lower_mul_by(b, square, GELU_SCALE * GELU_CUBE), GELU_SCALE);
    ts_value *t = ts_tanh(b, ts_mul(b, x, inner));
    ts_value *half = ts__lower_mul_by(b, ts__lower_add_to(b, t, 1), 0.5); /* ½(1 + t) */
    if (slope) {
        ts_value *du = ts__lower_add_to(b, ts__lower_mul_by(b, square, 3 * GELU_SCALE * GELU_CUBE),
                                        GELU_SCALE);
        ts_value *dt = ts_mul(b, ts_sub(b, one, ts_mul(b, t, t)), du);
        *slope = ts_add(b, half, ts_mul(b, ts__lower_mul_by(b, x, 0.5), dt));
    }
    return ts_mul(b, x, half);
}

void ts__lower_gated(ts_builder *b, const ts_node *n, ts_value **out)
{
    ts_value *y =
        ts_mul(b, activate(b, n->attr.gated.act, f32(b, n->in[0]), NULL), f32(b, n->in[1]));
    out[0] = ts_convert(b, y, n->out[0]->type.dtype);
}

void ts__lower_gated_grad(ts_builder *b, const ts_node *n, ts_value **out)
{
    ts_value *slope = NULL, *act = activate(b, n->attr.gated.act, f32(b, n->in[0]), &slope),
             *dy = f32(b, n->in[2]);
    out[0] =
        ts_convert(b, ts_mul(b, ts_mul(b, dy, f32(b, n->in[1])), slope), n->out[0]->type.dtype);
    out[1] = ts_convert(b, ts_mul(b, dy, act), n->out[1]->type.dtype);
}

/* ---- adamw ----------------------------------------------------------------------------------- */

/* 1 − βᵗ. In f32 1 − 0.999 loses four digits, so it is −expm1(t·ln β) = −2h/(1 − h) with
 * h = tanh(t·ln β / 2). */
static ts_value *bias(ts_builder *b, double beta, ts_value *step)
{
    ts_value *h = ts_tanh(b, ts__lower_mul_by(b, step, log(beta) / 2));
    return ts_div(b, ts__lower_mul_by(b, h, -2), ts_sub(b, ts_scalar(b, 1, TS_F32), h));
}

void ts__lower_adamw(ts_builder *b, const ts_node *n, ts_value **out)
{
    ts_value *p = n->in[0], *m = n->in[2], *v = n->in[3], *ok = n->in[7], *step = f32(b, n->in[5]);
    double b1 = n->attr.adamw.b1, b2 = n->attr.adamw.b2;
    ts_value *g = ts_mul(b, n->in[1], n->in[6]);
    ts_value *m1 = ts_add(b, ts__lower_mul_by(b, m, b1), ts__lower_mul_by(b, g, 1 - b1));
    ts_value *v1 =
        ts_add(b, ts__lower_mul_by(b, v, b2), ts__lower_mul_by(b, ts_mul(b, g, g), 1 - b2));
    ts_value *m_hat = ts_div(b, m1, bias(b, b1, step)), *v_hat = ts_div(b, v1, bias(b, b2, step));
    ts_value *move = ts_div(b, m_hat, ts__lower_add_to(b, ts_sqrt(b, v_hat), n->attr.adamw.eps));
    move = ts_add(b, move, ts__lower_mul_by(b, p, n->attr.adamw.weight_decay));
    out[0] = ts_select(b, ok, ts_sub(b, p, ts_mul(b, n->in[4], move)), p);
    out[1] = ts_select(b, ok, m1, m);
    out[2] = ts_select(b, ok, v1, v);
}
