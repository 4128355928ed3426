/* tests/grad/test_grad.c – gradients of whole graphs against central differences: repeats of every
 * form by hand, a small Llama block, and random graphs with nested repeats; each with remat none
 * and full.
 *
 * Single ops are in tests/op. The engine is the best of this machine, or TESSERA_ISA.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "op/harness.h"

static ts_engine *engine;

/* ---- repeats by hand ------------------------------------------------------------------------- */

/* in: a carry [2,3], xs [4,2,3], a const [2,3]. */
#define SCAN IN(X(2, 3), X(4, 2, 3), X(2, 3))

static int carry_only(ts_builder *b, const test_case *c, ts_value **in, ts_value **out)
{
    ts_value *h;
    (void)c;
    ts_repeat *r = ts_repeat_begin(b, 3, false, &in[0], 1, NULL, 0, &h, NULL);
    ts_value *next = ts_sin(b, ts_add(b, ts_mul(b, h, h), in[2]));
    ts_repeat_end(b, r, &next, NULL, NULL, 0, out);
    return 1;
}

static int map_only(ts_builder *b, const test_case *c, ts_value **in, ts_value **out)
{
    ts_value *x;
    (void)c;
    ts_repeat *r = ts_repeat_begin(b, 4, false, NULL, 0, &in[1], 1, NULL, &x);
    ts_value *y = ts_mul(b, ts_tanh(b, x), in[2]);
    ts_repeat_end(b, r, NULL, &y, (const bool[]){false}, 1, out);
    return 1;
}

static int sum_only(ts_builder *b, const test_case *c, ts_value **in, ts_value **out)
{
    ts_value *x;
    (void)c;
    ts_repeat *r = ts_repeat_begin(b, 4, true, NULL, 0, &in[1], 1, NULL, &x);
    ts_value *ys[2] = {ts_mul(b, ts_exp(b, ts_neg(b, ts_mul(b, x, x))), in[2]), x};
    ts_repeat_end(b, r, NULL, ys, (const bool[]){true, true}, 2, out);
    return 2;
}

/* Accumulated before stacked, in a repeat that runs backwards. */
static int reversed(ts_builder *b, const test_case *c, ts_value **in, ts_value **out)
{
    ts_value *h, *x;
    (void)c;
    ts_repeat *r = ts_repeat_begin(b, 4, true, &in[0], 1, &in[1], 1, &h, &x);
    ts_value *next = ts_tanh(b, ts_add(b, ts_mul(b, h, x), in[2]));
    ts_value *ys[3] = {ts_mul(b, next, in[2]), h, ts_mul(b, next, x)};
    ts_repeat_end(b, r, &next, ys, (const bool[]){true, false, true}, 3, out);
    return 4;
}

/* Two carries that change places, and one that passes through untouched. */
static int swapped(ts_builder *b, const test_case *c, ts_value **in, ts_value **out)
{
    ts_value *start[3] = {in[0], in[2], in[0]}, *h[3], *x;
    (void)c;
    ts_repeat *r = ts_repeat_begin(b, 4, false, start, 3, &in[1], 1, h, &x);
    ts_value *next[3] = {h[1], ts_add(b, ts_mul(b, h[0], x), ts_sin(b, h[2])), h[2]};
    ts_repeat_end(b, r, next, NULL, NULL, 0, out);
    return 3;
}

/* What the body yields is an argument or an outer value itself. */
static int arguments(ts_builder *b, const test_case *c, ts_value **in, ts_value **out)
{
    ts_value *h, *x;
    (void)c;
    ts_repeat *r = ts_repeat_begin(b, 4, false, &in[0], 1, &in[1], 1, &h, &x);
    ts_value *ys[4] = {x, in[2], in[2], h};
    ts_repeat_end(b, r, &x, ys, (const bool[]){false, false, true, true}, 4, out);
    return 5;
}

/* An integer counter beside the float carry chooses what happens; its results are integers too. */
static int counted(ts_builder *b, const test_case *c, ts_value **in, ts_value **out)
{
    ts_value *start[2] = {in[0], ts_scalar(b, 0, TS_I32)}, *h[2], *x;
    (void)c;
    ts_repeat *r = ts_repeat_begin(b, 4, false, start, 2, &in[1], 1, h, &x);
    ts_value *odd =
        ts_compare(b, TS_EQ, ts_and(b, h[1], ts_scalar(b, 1, TS_I32)), ts_scalar(b, 1, TS_I32));
    ts_value *next[2] = {ts_select(b, odd, ts_mul(b, h[0], x), ts_tanh(b, ts_add(b, h[0], x))),
                         ts_add(b, h[1], ts_scalar(b, 1, TS_I32))};
    ts_value *rows = ts_dynamic_slice(b, in[1], h[1], 0, 1); /* f32[1,2,3] of an outer value */
    ts_value *ys[2] = {next[1], ts_reshape(b, rows, TS_DIMS({NULL, 2}, {NULL, 3}))};
    ts_repeat_end(b, r, next, ys, (const bool[]){false, true}, 2, out);
    return 4;
}

/* A repeat in a repeat; the inner one uses values of both outer regions. */
static int nested(ts_builder *b, const test_case *c, ts_value **in, ts_value **out)
{
    ts_value *h, *x, *g, *y, *inner[2];
    (void)c;
    ts_repeat *r = ts_repeat_begin(b, 4, false, &in[0], 1, &in[1], 1, &h, &x);
    ts_value *scale = ts_sin(b, x);
    ts_repeat *q = ts_repeat_begin(b, 4, true, &h, 1, &in[1], 1, &g, &y);
    ts_value *step = ts_tanh(b, ts_add(b, ts_mul(b, g, scale), ts_mul(b, y, in[2])));
    ts_value *z = ts_mul(b, step, h);
    ts_repeat_end(b, q, &step, &z, (const bool[]){true}, 1, inner);
    ts_repeat_end(b, r, &inner[0], &inner[1], (const bool[]){false}, 1, out);
    return 2;
}

/* One repeat's stacked result is the next one's xs. */
static int chained(ts_builder *b, const test_case *c, ts_value **in, ts_value **out)
{
    ts_value *h, *x, *mid[2];
    (void)c;
    ts_repeat *r = ts_repeat_begin(b, 4, false, &in[0], 1, &in[1], 1, &h, &x);
    ts_value *next = ts_tanh(b, ts_add(b, h, x));
    ts_repeat_end(b, r, &next, &next, (const bool[]){false}, 1, mid);
    r = ts_repeat_begin(b, 4, true, &mid[0], 1, &mid[1], 1, &h, &x);
    next = ts_add(b, ts_mul(b, h, x), in[2]);
    ts_repeat_end(b, r, &next, NULL, NULL, 0, out);
    return 1;
}

/* The const reaches the result only through one carry after another: which carries vary is a
 * fixpoint that takes as many rounds as there are carries. */
static int delayed(ts_builder *b, const test_case *c, ts_value **in, ts_value **out)
{
    ts_value *zero = ts_constant(b, 0, ts_type_of(in[0])->dtype, TS_DIMS({NULL, 2}, {NULL, 3}));
    ts_value *start[3] = {zero, zero, zero}, *h[3], *results[3];
    (void)c;
    ts_repeat *r = ts_repeat_begin(b, 5, false, start, 3, NULL, 0, h, NULL);
    ts_value *next[3] = {ts_tanh(b, ts_add(b, in[2], h[0])), ts_sin(b, h[0]),
                         ts_add(b, h[2], ts_mul(b, h[1], h[1]))};
    ts_repeat_end(b, r, next, NULL, NULL, 0, results);
    out[0] = results[2];
    return 1;
}

static int once(ts_builder *b, const test_case *c, ts_value **in, ts_value **out)
{
    ts_value *h, *x, *one = ts_slice(b, in[1], 0, 2, 3);
    (void)c;
    ts_repeat *r = ts_repeat_begin(b, 1, false, &in[0], 1, &one, 1, &h, &x);
    ts_value *next = ts_mul(b, h, x);
    ts_repeat_end(b, r, &next, &next, (const bool[]){false}, 1, out);
    return 2;
}

/* ---- a small Llama over stacked parameters --------------------------------------------------- */

enum { BATCH = 2, SEQ = 5, KV = 2, GROUP = 2, HEAD = 4, WIDTH = 6, HIDDEN = 7, LAYERS = 3 };

static ts_value *product(ts_builder *b, ts_value *x, ts_value *w, int n_in, ts_dtype dtype)
{
    ts_dot_dims d = {.n_contract = n_in};
    const int x_rank = ts_type_of(x)->rank, w_rank = ts_type_of(w)->rank;
    for (int i = 0; i < n_in; i++) {
        d.x_contract[i] = x_rank - n_in + i;
        d.y_contract[i] = w_rank - n_in + i;
    }
    return ts_dot(b, x, ts_convert(b, w, dtype), &d, dtype);
}

/* in: x [B,S,E], then stacked: norm [L,E], wq [L,K,G,D,E], wk, wv [L,K,D,E], wo [L,E,K,G,D], gate,
 * up [L,F,E], down [L,E,F]. The compute dtype is x's; parameters are f32. */
static int llama(ts_builder *b, const test_case *c, ts_value **in, ts_value **out)
{
    const ts_dtype t = ts_type_of(in[0])->dtype;
    const ts_attention_options o = {.causal = true};
    ts_value *h, *w[8];
    (void)c;
    ts_repeat *r = ts_repeat_begin(b, LAYERS, false, &in[0], 1, &in[1], 8, &h, w);
    ts_value *n = ts_rms_norm(b, h, w[0], 1e-5);                                  /* [B,S,E] */
    ts_value *q = product(b, n, w[1], 1, t);                                      /* [B,S,K,G,D] */
    ts_value *k = product(b, n, w[2], 1, t), *v = product(b, n, w[3], 1, t);      /* [B,S,K,D] */
    ts_value *a = ts_attention(b, q, k, v, NULL, &o, NULL);
    ts_value *mid = ts_add(b, h, product(b, a, w[4], 3, t));
    ts_value *m = ts_rms_norm(b, mid, w[0], 1e-5);
    ts_value *f = ts_gated(b, TS_SILU, product(b, m, w[5], 1, t), product(b, m, w[6], 1, t));
    ts_value *next = ts_add(b, mid, product(b, f, w[7], 1, t));
    ts_repeat_end(b, r, &next, NULL, NULL, 0, out);
    return 1;
}

#define LLAMA                                                                                   \
    IN(X(BATCH, SEQ, WIDTH), F32(LAYERS, WIDTH), F32(LAYERS, KV, GROUP, HEAD, WIDTH),            \
       F32(LAYERS, KV, HEAD, WIDTH), F32(LAYERS, KV, HEAD, WIDTH),                               \
       F32(LAYERS, WIDTH, KV, GROUP, HEAD), F32(LAYERS, HIDDEN, WIDTH),                          \
       F32(LAYERS, HIDDEN, WIDTH), F32(LAYERS, WIDTH, HIDDEN))

/* ---- random graphs --------------------------------------------------------------------------- */

typedef struct source {
    ts_builder *b;
    uint64_t state;
    ts_value **in;                       /* see RANDOM */
    ts_value *pool[64];                  /* values [2,3] that may be used here */
    int n;
} source;

static int pick(source *s, int n)
{
    s->state = s->state * 6364136223846793005u + 1442695040888963407u;
    return (int)((s->state >> 33) % (uint64_t)n);
}

static ts_value *any(source *s) { return s->pool[pick(s, s->n)]; }

static void keep(source *s, ts_value *v)
{
    if (s->n < 64) s->pool[s->n++] = v;
}

/* One op over the pool; what could grow is folded back by a bounded function. */
static ts_value *random_op(source *s)
{
    ts_builder *b = s->b;
    ts_value *x = any(s), *y = any(s);
    const ts_dot_dims right = {.n_contract = 1, .x_contract = {1}, .y_contract = {0}};
    switch (pick(s, 11)) {
    case 0: return ts_add(b, x, y);
    case 1: return ts_tanh(b, ts_mul(b, x, y));
    case 2: return ts_sub(b, ts_sin(b, x), y);
    case 3: return ts_logistic(b, x);
    case 4: return ts_rms_norm(b, x, s->in[3], 0.1);
    case 5: return ts_dot(b, x, s->in[2], &right, TS_F32);
    case 6: return ts_gated(b, TS_GELU_TANH, x, ts_cos(b, y));
    case 7: return ts_take(b, s->in[2], ts_slice(b, s->in[5], 0, 1, 3), -1);
    case 8: return ts_div(b, x, ts_add(b, ts_scalar(b, 1, TS_F32), ts_mul(b, y, y)));
    case 9: {
        ts_value *sum = ts_reduce_sum(b, x, TS_INTS(0));
        return ts_add(b, ts_broadcast(b, ts_sin(b, sum), TS_DIMS({NULL, 2}, {NULL, 3}), TS_INTS(1)),
                      y);
    }
    default: {
        ts_value *parts[2] = {ts_slice(b, x, 0, 1, 2), ts_slice(b, y, 0, 0, 1)};
        return ts_concat(b, parts, 2, 0);
    }
    }
}

static void random_region(source *s, int depth);

/* A repeat with random carries, xs and results, whose results join the pool. */
static void random_repeat(source *s, int depth)
{
    ts_builder *b = s->b;
    const int n_carry = pick(s, 3), n_xs = pick(s, 3), before = s->n;
    ts_value *start[2] = {NULL}, *carry[2], *xs[2] = {s->in[4], s->in[6]}, *x[2], *next[2], *ys[2],
             *results[4];
    const bool accumulate[2] = {pick(s, 2) == 0, pick(s, 2) == 0};
    for (int i = 0; i < n_carry; i++) start[i] = any(s);
    ts_repeat *r = ts_repeat_begin(b, 4, pick(s, 2) == 0, start, n_carry, xs, n_xs, carry, x);
    for (int i = 0; i < n_carry; i++) keep(s, carry[i]);
    for (int i = 0; i < n_xs; i++) keep(s, x[i]);
    random_region(s, depth);
    for (int i = 0; i < n_carry; i++) next[i] = ts_tanh(b, any(s));
    for (int i = 0; i < 2; i++) ys[i] = any(s);
    ts_repeat_end(b, r, next, ys, accumulate, 2, results);
    s->n = before;                       /* the body's values end here */
    for (int i = 0; i < n_carry; i++) keep(s, results[i]);
    for (int i = 0; i < 2; i++) {
        ts_value *y = results[n_carry + i];
        keep(s, accumulate[i] ? ts_tanh(b, y)
                              : ts_tanh(b, ts_reduce_sum(b, ts_mul(b, y, s->in[4]), TS_INTS(0))));
    }
}

static void random_region(source *s, int depth)
{
    const int steps = 2 + pick(s, 4);
    for (int i = 0; i < steps; i++) {
        if (depth > 0 && pick(s, 3) == 0)
            random_repeat(s, depth - 1);
        else
            keep(s, random_op(s));
    }
}

static int random_graph(ts_builder *b, const test_case *c, ts_value **in, ts_value **out)
{
    source s = {
        .b = b, .state = c->seed * 2654435761u + 1, .in = in, .pool = {in[0], in[1]}, .n = 2};
    random_region(&s, 2);
    random_repeat(&s, 1);
    for (int i = 0; i < 3; i++) out[i] = ts_tanh(b, s.pool[s.n - 1 - i % s.n]);
    return 3;
}

#define RANDOM IN(F32(2, 3), F32(2, 3), F32(3, 3), F32(3), F32(4, 2, 3), I32(0, 3, 4), F32(4, 2, 3))

/* ---- running --------------------------------------------------------------------------------- */

#define HAND(fn)                                                                               \
    {.text = #fn, .op = TS_OP_repeat, SCAN, .build = fn,                                       \
     .fwd = 3e-6, .fwd16 = 3e-2, .grad = 2e-5, .grad16 = 8e-2},

static const test_case by_hand[] = {HAND(carry_only) HAND(map_only) HAND(sum_only) HAND(reversed)
                                        HAND(swapped) HAND(arguments) HAND(counted) HAND(nested)
                                            HAND(chained) HAND(once) HAND(delayed)};

static void repeats_by_hand(void **state)
{
    int failures = 0;
    (void)state;
    for (size_t i = 0; i < sizeof by_hand / sizeof by_hand[0]; i++)
        failures += test_case_run(engine, &by_hand[i], TS_F32, true) +
                    test_case_run(engine, &by_hand[i], TS_BF16, true);
    assert_int_equal(failures, 0);
}

static void a_llama_block(void **state)
{
    const test_case c = {.text = "llama",
                         .op = TS_OP_repeat,
                         LLAMA,
                         .build = llama,
                         .fwd = 1e-5,
                         .fwd16 = 5e-2,
                         .grad = 1e-4,
                         .grad16 = 2e-1};
    (void)state;
    assert_int_equal(
        test_case_run(engine, &c, TS_F32, true) + test_case_run(engine, &c, TS_BF16, true), 0);
}

/* ---- what the gradient is made of ------------------------------------------------------------ */

static int count_ops(const ts_region *r, ts_op op)
{
    int n = 0;
    for (const ts_node *k = r->first; k; k = k->next)
        n += (k->op == op) + (k->body ? count_ops(k->body, op) : 0);
    return n;
}

static int dots_of_llama(unsigned fixed, ts_remat remat)
{
    const test_case c = {.text = "llama", .op = TS_OP_repeat, LLAMA, .build = llama, .grad = 1,
                         .fixed = fixed};
    ts_error err = {0};
    ts_graph *g = test_graph(&c, TS_F32, true, remat, &err);
    assert_non_null(g);
    assert_int_equal(ts_graph_cse(g, &err), TS_OK);
    assert_int_equal(ts_graph_dce(g, &err), TS_OK);
    const int n = count_ops(g->top, TS_OP_dot);
    ts_graph_free(g);
    return n;
}

/* Seven products forward, fourteen backward; a frozen matrix saves its own; with everything frozen
 * but the norms' weight no weight has a product; remat full computes six of the seven again, minimal none. */
static void frozen_weights_cost_nothing(void **state)
{
    (void)state;
    assert_int_equal(dots_of_llama(0, TS_REMAT_NONE), 21);
    assert_int_equal(dots_of_llama(1u << 8, TS_REMAT_NONE), 20);
    assert_int_equal(dots_of_llama(0x1fc, TS_REMAT_NONE), 14);
    assert_int_equal(dots_of_llama(0x1ff, TS_REMAT_NONE), 7);
    const int full = dots_of_llama(0, TS_REMAT_FULL);
    assert_in_range(full, 27, 28);
    assert_int_equal(dots_of_llama(0, TS_REMAT_MINIMAL), 21);
}

/* A value that is several operands of one op: its products with itself and attention over it, in a repeat. */
static int alone(ts_builder *b, const test_case *c, ts_value **in, ts_value **out)
{
    const ts_dot_dims d = {1, 1, {0}, {0}, {2}, {2}};
    const ts_attention_options o = {.causal = true};
    ts_value *h;
    (void)c;
    ts_repeat *r = ts_repeat_begin(b, 2, false, &in[0], 1, NULL, 0, &h, NULL);
    ts_value *q = ts_reshape(b, h, TS_DIMS({NULL, 2}, {NULL, 3}, {NULL, 1}, {NULL, 1}, {NULL, 4}));
    ts_value *k = ts_reshape(b, h, TS_DIMS({NULL, 2}, {NULL, 3}, {NULL, 1}, {NULL, 4}));
    ts_value *a = ts_attention(b, q, k, k, NULL, &o, NULL);
    ts_value *s = ts_dot(b, h, h, &d, ts_type_of(h)->dtype); /* [2,3,3] */
    ts_value *sum = ts_reduce_sum(b, s, TS_INTS(2));
    ts_value *next = ts_tanh(b, ts_mul(b, ts_reshape(b, a, ts_type_of(h)->dim, 3),
                                       ts_broadcast(b, sum, ts_type_of(h)->dim, 3, TS_INTS(0, 1))));
    ts_repeat_end(b, r, &next, NULL, NULL, 0, out);
    return 1;
}

static void like_is(const ts_region *r, ts_op op, const int8_t *like, int *found)
{
    for (const ts_node *n = r->first; n; n = n->next) {
        *found += n->op == op && n->like &&
                  memcmp(n->like, like, (size_t)(n->n_in + n->n_out)) == 0;
        if (n->body) like_is(n->body, op, like, found);
    }
}

static void one_value_as_two_operands(void **state)
{
    static const int8_t product[2][3] = {{2, 1, 0}, {2, 0, 1}};
    static const int8_t attention[] = {0, 1, 2, 3, 4, 3, 0, 1, 2};
    const test_case c = {.text = "alone", .op = TS_OP_repeat, IN(X(2, 3, 4)), .build = alone,
                         .fwd = 1e-5, .fwd16 = 5e-2, .grad = 1e-4, .grad16 = 2e-1};
    (void)state;
    assert_int_equal(test_case_run(engine, &c, TS_F32, true), 0);
    for (int remat = TS_REMAT_NONE; remat <= TS_REMAT_MINIMAL; remat++) {
        ts_error err = {0};
        ts_graph *g = test_graph(&c, TS_F32, true, (ts_remat)remat, &err);
        assert_non_null(g);
        int found[3] = {0};
        for (int i = 0; i < 2; i++) like_is(g->top, TS_OP_dot, product[i], &found[i]);
        like_is(g->top, TS_OP_attention_grad, attention, &found[2]);
        for (int i = 0; i < 3; i++) assert_int_equal(found[i], 1);
        ts_graph_free(g);
    }
}

/* The gradient of what the loss does not depend on is zero, of its type; an integer path gives
 * none. */
static int ignores(ts_builder *b, const test_case *c, ts_value **in, ts_value **out)
{
    (void)c;
    out[0] = ts_sin(b, in[0]);
    out[1] = ts_convert(b, ts_convert(b, in[1], TS_I32), TS_F32);
    return 2;
}

static void independent_values_get_zeros(void **state)
{
    const test_case c = {.text = "ignores", .op = TS_OP_repeat, IN(F32(2, 3), F32(2), F32(4, 5)),
                         .build = ignores, .fwd = 1e-6, .grad = 1e-5, .quiet = 2};
    (void)state;
    assert_int_equal(test_case_run(engine, &c, TS_F32, true), 0);
}

/* Σ_i L(x_i, w): the gradient made inside the body and accumulated equals the gradient through the
 * repeat. This is how micro-batches are trained. */
static ts_value *micro_loss(ts_builder *b, ts_value *x, ts_value *w)
{
    const ts_dot_dims d = {.n_contract = 1, .x_contract = {1}, .y_contract = {0}};
    ts_value *y = ts_tanh(b, ts_dot(b, x, w, &d, TS_F32));
    return ts_reduce_sum(b, ts_mul(b, y, y), TS_INTS(0, 1));
}

static ts_graph *micro_batches(bool inside, ts_error *err)
{
    ts_builder *b = ts_builder_new("micro");
    ts_value *w = ts_input(b, "w", TS_F32, TS_DIMS({NULL, 3}, {NULL, 3}));
    ts_value *xs = ts_input(b, "x", TS_F32, TS_DIMS({NULL, 4}, {NULL, 2}, {NULL, 3}));
    ts_value *x, *results[2], *d = NULL;
    ts_graph *g = NULL;
    ts_status status = TS_OK;
    ts_repeat *r = ts_repeat_begin(b, 4, false, NULL, 0, &xs, 1, NULL, &x);
    ts_value *ys[2] = {micro_loss(b, x, w), NULL};
    if (inside) status = ts_grad(b, ys[0], &w, 1, &ys[1], err);
    ts_repeat_end(b, r, NULL, ys, (const bool[]){true, true}, inside ? 2 : 1, results);
    if (inside) d = results[1];
    if (!inside) status = ts_grad(b, results[0], &w, 1, &d, err);
    if (status == TS_OK) {
        ts_output(b, "loss", results[0], NULL);
        ts_output(b, "dw", d, NULL);
        return ts_builder_finish(b, &g, err) == TS_OK ? g : NULL;
    }
    ts_builder_free(b);
    return NULL;
}

static void gradients_accumulate_inside_a_repeat(void **state)
{
    double w[9], x[24], loss[2], dw[2][9], *in[2] = {w, x};
    (void)state;
    for (int i = 0; i < 9; i++) w[i] = sin(i * 1.7);
    for (int i = 0; i < 24; i++) x[i] = cos(i * 2.3);
    for (int k = 0; k < 2; k++) {
        ts_error err = {0};
        ts_graph *g = micro_batches(k == 1, &err);
        if (!g) printf("%s\n", err.msg);
        assert_non_null(g);
        double *out[2] = {&loss[k], dw[k]};
        assert_int_equal(test_execute(engine, g, in, out, &err), TS_OK);
        ts_graph_free(g);
    }
    assert_true(fabs(loss[0] - loss[1]) < 1e-6 && loss[0] > 0.1);
    for (int i = 0; i < 9; i++) assert_true(fabs(dw[0][i] - dw[1][i]) < 1e-5);
}

static void random_graphs(void **state)
{
    const char *more = getenv("TESSERA_SLOW"), *one = getenv("TESSERA_SEED");
    const int n = more ? 60 : 12;
    int failures = 0;
    (void)state;
    for (int i = 0; i < n; i++) {
        test_case c = {.text = "a random graph",
                       .op = TS_OP_repeat,
                       RANDOM,
                       .build = random_graph,
                       .fwd = 1e-5,
                       .grad = 1e-4};
        c.seed = one ? strtoull(one, NULL, 10) : (uint64_t)i;
        const int wrong = test_case_run(engine, &c, TS_F32, true);
        if (wrong) printf("  (seed %llu)\n", (unsigned long long)c.seed);
        failures += wrong;
        if (one) break;
    }
    assert_int_equal(failures, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(repeats_by_hand),
        cmocka_unit_test(a_llama_block),
        cmocka_unit_test(frozen_weights_cost_nothing),
        cmocka_unit_test(one_value_as_two_operands),
        cmocka_unit_test(independent_values_get_zeros),
        cmocka_unit_test(gradients_accumulate_inside_a_repeat),
        cmocka_unit_test(random_graphs),
    };
    ts_error err = {0};
    engine = test_engine("cpu", NULL, &err);
    if (!engine) {
        printf("the engine does not open: %s\n", err.msg);
        return 1;
    }
    const int failed = cmocka_run_group_tests_name("gradients", tests, NULL, NULL);
    ts_engine_close(engine);
    return failed;
}
