/* tests/unit/test_kernels.c – every fast kernel against cpu/ref, at every isa this machine has.
 *
 * A line makes one node with random operands and runs it by both tables, with one thread and with
 * two. Shapes are larger than the op table's (tests/op), so that vectors, tiles, panels and chunks
 * are passed and their tails met. Buffers have guard bytes behind them, scratch starts as NaN, and
 * every in_place bit is tried. f32 may differ by 1e-5 of the tensor's largest value, bf16 by 1e-2,
 * integers and predicates not at all. Allocation in run is a failure. Not here: gradients, engines
 * (tests/op, tests/grad). */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "cpu/fast.h"
#include "ir/builder.h"

enum { GUARD = 64, MOST = 16 };

static uint32_t seed = 1;

static double uniform(void)
{
    seed = seed * 1664525u + 1013904223u;
    return (double)(seed >> 8) / (1 << 24);
}

typedef struct operand {
    ts_dtype dtype;
    int rank;
    int64_t dim[TS_MAX_RANK];
    double low, high;
    const void *data;
} operand;
#define T(dt, lo, hi, ...)                                                                         \
    {                                                                                              \
        dt, (int)(sizeof((int64_t[]){__VA_ARGS__}) / 8), {__VA_ARGS__}, lo, hi, NULL               \
    }
#define S(dt, v)                                                                                   \
    {                                                                                              \
        .dtype = dt, .low = v, .high = v                                                           \
    }

typedef struct run {
    const ts_node *node;
    void *in[MOST], *out[MOST];
} run;

static double at(const void *p, ts_dtype t, int64_t i)
{
    switch (t) {
    case TS_F32: return (double)((const float *)p)[i];
    case TS_BF16: return (double)ts_bf16_to_f32(((const uint16_t *)p)[i]);
    case TS_PRED: return ((const uint8_t *)p)[i];
    case TS_U32: return ((const uint32_t *)p)[i];
    default: return ((const int32_t *)p)[i];
    }
}

static void put(void *p, ts_dtype t, int64_t i, double v)
{
    switch (t) {
    case TS_F32: ((float *)p)[i] = (float)v; break;
    case TS_BF16: ((uint16_t *)p)[i] = ts_bf16_from_f32((float)v); break;
    case TS_PRED: ((uint8_t *)p)[i] = v >= 0.5; break;
    default: ((int32_t *)p)[i] = (int32_t)floor(v); break;
    }
}

static void *guarded(const ts_type *t)
{
    char *p = ts_alloc(ts_type_bytes(t) + GUARD);
    assert_non_null(p);
    memset(p, 0x7f, ts_type_bytes(t) + GUARD);
    return p;
}

static void check_guard(const void *p, const ts_type *t)
{
    for (size_t i = 0; i < GUARD; i++)
        assert_int_equal(((const char *)p)[ts_type_bytes(t) + i], 0x7f);
}

static void *filled(const ts_type *t, const operand *o)
{
    void *p = guarded(t);
    if (o->data)
        memcpy(p, o->data, ts_type_bytes(t));
    else
        for (int64_t i = 0; i < ts_type_elements(t); i++)
            put(p, t->dtype, i, o->low + (o->high - o->low) * uniform());
    return p;
}

static void execute(const ts_cpu_kernel *k, run *r, void *const *in, int threads)
{
    ts_cpu_prepared prepared = {0};
    ts_error err = {0};
    if (k->prepare && k->prepare(r->node, threads, &prepared, &err) != TS_OK)
        fail_msg("%s: %s", k->name, err.msg);
    char *scratch = ts_alloc(prepared.scratch_bytes + GUARD);
    assert_non_null(scratch);
    memset(scratch, 0xff, prepared.scratch_bytes);
    memset(scratch + prepared.scratch_bytes, 0x7f, GUARD);
    const ts_cpu_call c = {r->node, in, r->out, scratch, prepared.state, threads};
    const uint64_t before = ts_alloc_count();
    k->run(&c);
    if (ts_alloc_count() != before) fail_msg("%s allocates in run", k->name);
    for (int i = 0; i < GUARD; i++)
        assert_int_equal(scratch[prepared.scratch_bytes + (size_t)i], 0x7f);
    if (k->release) k->release(prepared.state);
    ts_free(scratch);
    for (int i = 0; i < r->node->n_out; i++) check_guard(r->out[i], &r->node->out[i]->type);
}

static void compare(const char *what, const ts_cpu_kernel *k, const run *fast, const run *ref)
{
    for (int o = 0; o < fast->node->n_out; o++) {
        const ts_type *t = &fast->node->out[o]->type;
        char text[400];
        /* Gradients of bf16 logits are themselves rounded to bf16 before their products. */
        const bool half = t->dtype == TS_BF16 || (fast->node->op == TS_OP_linear_xent_grad &&
                                                  fast->node->in[0]->type.dtype == TS_BF16);
        const double bound = half ? 1e-2 : t->dtype == TS_F32 ? 1e-5 : 0;
        double largest = 1e-37; /* subnormals may be lost */
        for (int64_t i = 0; i < ts_type_elements(t); i++) {
            const double v = fabs(at(ref->out[o], t->dtype, i));
            if (v > largest && isfinite(v)) largest = v;
        }
        for (int64_t i = 0; i < ts_type_elements(t); i++) {
            const double a = at(fast->out[o], t->dtype, i), b = at(ref->out[o], t->dtype, i);
            if (a == b || (isnan(a) && isnan(b)) || fabs(a - b) <= bound * largest) continue;
            fail_msg(
                "%s, %s: result %d of %s, element %lld is %.9g, cpu/ref has %.9g (largest %.3g)",
                what, k->name, o, ts_type_text(t, text, sizeof text), (long long)i, a, b, largest);
        }
    }
}

/* Results in the operands' buffers, one bit of the mask at a time. */
static void check_in_place(const char *what, const ts_cpu_kernel *k, run *fast, const run *ref)
{
    const ts_node *n = fast->node;
    for (int bit = 0; bit < 64; bit++) {
        const int o = bit / 8, i = bit % 8;
        if (!(k->in_place >> bit & 1) || o >= n->n_out || i >= n->n_in) continue;
        if (ts_type_bytes(&n->in[i]->type) != ts_type_bytes(&n->out[o]->type)) continue;
        void *in[MOST], *kept = fast->out[o];
        memcpy(in, fast->in, sizeof in);
        in[i] = guarded(&n->in[i]->type);
        memcpy(in[i], fast->in[i], ts_type_bytes(&n->in[i]->type));
        fast->out[o] = in[i];
        execute(k, fast, in, 2);
        compare(what, k, fast, ref);
        fast->out[o] = kept;
        ts_free(in[i]);
    }
}

/* Runs one node by both tables; results of cpu/ref stay in *keep when it is not NULL. */
static void check(const char *what, ts_op op, const ts_attr *attr, const operand *o, int n,
                  void **keep)
{
    ts_builder *b = ts_builder_new("kernel");
    ts_value *in[MOST];
    for (int i = 0; i < n; i++) {
        char name[16];
        ts_dim dims[TS_MAX_RANK] = {{0}};
        for (int d = 0; d < o[i].rank; d++) dims[d].size = o[i].dim[d];
        snprintf(name, sizeof name, "x%d", i);
        in[i] = ts_input(b, name, o[i].dtype, dims, o[i].rank);
    }
    run ref = {.node = ts__op_n(b, op, in, n, attr)}, fast;
    if (!ref.node) fail_msg("%s: %s", what, b->error.msg);
    for (int i = 0; i < n; i++) ref.in[i] = filled(&in[i]->type, &o[i]);
    for (int i = 0; i < ref.node->n_out; i++) ref.out[i] = guarded(&ref.node->out[i]->type);
    execute(&ts_cpu_ref[op], &ref, ref.in, 2);
    for (ts_isa isa = TS_ISA_AVX2; isa <= ts_isa_detect(); isa++) {
        const ts_cpu_kernel *k = ts_cpu_fast(ref.node, isa);
        if (!k) fail_msg("%s has no kernel at %s", what, ts_isa_name(isa));
        fast = ref;
        for (int i = 0; i < ref.node->n_out; i++) fast.out[i] = guarded(&ref.node->out[i]->type);
        for (int threads = 1; threads <= 2; threads++) {
            /* Both ways to a bf16 product, whichever this machine would take. */
            for (int how = isa == TS_ISA_AVX512_BF16; how >= 0; how--) {
                ts__bf16_products_force(how);
                execute(k, &fast, fast.in, threads);
                compare(what, k, &fast, &ref);
            }
        }
        ts__bf16_products_force(-1);
        check_in_place(what, k, &fast, &ref);
        for (int i = 0; i < ref.node->n_out; i++) ts_free(fast.out[i]);
    }
    for (int i = 0; i < n; i++) {
        check_guard(ref.in[i], &in[i]->type);
        ts_free(ref.in[i]);
    }
    for (int i = 0; i < ref.node->n_out; i++) {
        if (keep)
            keep[i] = ref.out[i];
        else
            ts_free(ref.out[i]);
    }
    ts_builder_free(b);
}
#define CHECK(op, attr, ...)                                                                       \
    check(#op, TS_OP_##op, (attr), (operand[]){__VA_ARGS__},                                       \
          (int)(sizeof((operand[]){__VA_ARGS__}) / sizeof(operand)), NULL)

static const ts_dtype floats[] = {TS_F32, TS_BF16};
#define EACH_DTYPE                                                                                 \
    for (int i_ = 0; i_ < 2; i_++)                                                                 \
        for (ts_dtype t = floats[i_], once = 1; once; once = 0)

/* ---- elementwise, moves, reductions ---------------------------------------------------------- */

static void test_elementwise(void **state)
{
    (void)state;
    static const ts_op unary[] = {TS_OP_neg, TS_OP_abs, TS_OP_exp, TS_OP_tanh, TS_OP_logistic};
    static const ts_op binary[] = {TS_OP_add, TS_OP_sub, TS_OP_mul,
                                   TS_OP_div, TS_OP_max, TS_OP_min};
    static const int64_t sizes[] = {0, 1, 7, 16, 33, 1000, 40003};
    EACH_DTYPE for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
    {
        for (size_t u = 0; u < sizeof unary / sizeof *unary; u++)
            check("unary", unary[u], NULL, (operand[]){T(t, -9, 9, sizes[s])}, 1, NULL);
        for (size_t u = 0; u < sizeof binary / sizeof *binary; u++)
            check("binary", binary[u], NULL,
                  (operand[]){T(t, -2, 2, sizes[s]), T(t, 0.5, 2, sizes[s])}, 2, NULL);
        for (int dir = TS_EQ; dir <= TS_GE; dir++) {
            ts_attr a = {.compare = {dir}};
            CHECK(compare, &a, T(t, 0, 0.01, sizes[s]), T(t, 0, 0.01, sizes[s]));
        }
        CHECK(sqrt, NULL, T(t, 0, 9, sizes[s]));
        CHECK(rsqrt, NULL, T(t, 0.1, 9, sizes[s]));
        CHECK(is_finite, NULL, T(t, -1, 1, sizes[s]));
        CHECK(add_n, NULL, T(t, -1, 1, sizes[s]), T(t, -1, 1, sizes[s]), T(t, -1, 1, sizes[s]));
        CHECK(select, NULL, T(TS_PRED, 0, 1, sizes[s]), T(t, -1, 1, sizes[s]),
              T(t, -1, 1, sizes[s]));
        CHECK(select, NULL, S(TS_PRED, 1), T(t, -1, 1, sizes[s]), T(t, -1, 1, sizes[s]));
        ts_attr to = {.convert = {t == TS_F32 ? TS_BF16 : TS_F32}};
        CHECK(convert, &to, T(t, -1, 1, sizes[s]));
    }
}

/* exp, tanh and logistic at the ends of their range, against libm. */
static void test_special(void **state)
{
    (void)state;
    static const float x[] = {NAN,   INFINITY, -INFINITY, 0.0f,    -0.0f,   88.7f,
                              88.8f, -87.4f,   -100.0f,   -103.9f, -110.0f, 1e-30f,
                              1e-5f, -1e-5f,   3e38f,     -3e38f,  9.1f};
    enum { N = sizeof x / sizeof *x };
    static const ts_op ops[] = {TS_OP_exp, TS_OP_tanh, TS_OP_logistic, TS_OP_max};
    for (size_t u = 0; u < 4; u++)
        for (int i = 0; i < N; i++) {
            /* Alone in its tensor, so that the bound is its own. */
            float v[2] = {x[i], u == 3 ? x[(i + 7) % N] : 0};
            operand o[2] = {T(TS_F32, 0, 0, 1), T(TS_F32, 0, 0, 1)};
            o[0].data = &v[0], o[1].data = &v[1];
            check("special", ops[u], NULL, o, u == 3 ? 2 : 1, NULL);
        }
}

static void test_moves(void **state)
{
    (void)state;
    EACH_DTYPE
    {
        const ts_attr turn = {.transpose = {{2, {1, 0}}}}, mix = {.transpose = {{4, {2, 0, 3, 1}}}};
        CHECK(transpose, &turn, T(t, -1, 1, 37, 130));
        CHECK(transpose, &turn, T(t, -1, 1, 300, 257));
        CHECK(transpose, &mix, T(t, -1, 1, 3, 18, 5, 33));
        const ts_attr heads = {.transpose = {{4, {0, 2, 1, 3}}}};
        CHECK(transpose, &heads, T(t, -1, 1, 2, 17, 3, 32));
        ts_attr wide = {.broadcast = {.shape = {3, {{0, 5}, {0, 70}, {0, 33}}}, .map = {1, {1}}}};
        CHECK(broadcast, &wide, T(t, -1, 1, 70));
        wide.broadcast.map = (ts_dims){2, {2, 0}};
        CHECK(broadcast, &wide, T(t, -1, 1, 33, 5));
        wide.broadcast.map = (ts_dims){0, {0}};
        CHECK(broadcast, &wide, S(t, 3));
        const ts_attr cut = {.slice = {1, 3, 40}}, join = {.axis = {1}},
                      some = {.dynamic = {1, 20}};
        CHECK(slice, &cut, T(t, -1, 1, 9, 50, 7));
        CHECK(concat, &join, T(t, -1, 1, 9, 50, 7), T(t, -1, 1, 9, 0, 7), T(t, -1, 1, 9, 3, 7));
        CHECK(dynamic_slice, &some, T(t, -1, 1, 9, 50, 7), S(TS_I32, 12));
        CHECK(dynamic_slice, &some, T(t, -1, 1, 9, 50, 7), S(TS_I32, 99));
        const ts_attr where = {.dynamic = {.axis = 1}};
        CHECK(dynamic_update, &where, T(t, -1, 1, 9, 50, 7), T(t, -1, 1, 9, 4, 7), S(TS_I32, -3));
        CHECK(dynamic_update, &where, T(t, -1, 1, 9, 50, 7), T(t, -1, 1, 9, 4, 7), S(TS_I32, 30));
        const ts_attr pad_row = {.take = {3}}, rows = {.scatter = {{1, {{0, 11}}}, 3}},
                      many = {.scatter = {{1, {{0, 700}}}, -1}};
        CHECK(take, &pad_row, T(t, -1, 1, 11, 65), T(TS_I32, -2, 13, 5, 40));
        CHECK(scatter_add, &rows, T(TS_I32, -2, 13, 5, 40), T(t, -1, 1, 5, 40, 165));
        CHECK(scatter_add, &many, T(TS_I32, -2, 710, 3000), T(t, -1, 1, 3000, 9));
        CHECK(scatter_add, &rows, T(TS_I32, -2, 13, 0), T(t, -1, 1, 0, 165));
    }
}

static void test_reductions(void **state)
{
    (void)state;
    static const ts_dims axes[] = {{1, {0}},    {1, {1}},       {1, {2}}, {2, {0, 1}},
                                   {2, {1, 2}}, {3, {0, 1, 2}}, {0, {0}}};
    static const int64_t shapes[][3] = {{3, 5, 7},     {1, 1, 1},     {2, 0, 3},    {700, 30, 3},
                                        {5, 90000, 1}, {3, 40, 2050}, {130, 1, 257}};
    EACH_DTYPE for (size_t s = 0; s < sizeof shapes / sizeof *shapes;
                    s++) for (size_t a = 0; a < sizeof axes / sizeof *axes; a++)
    {
        const ts_attr attr = {.reduce = {axes[a]}};
        const int64_t *d = shapes[s];
        CHECK(reduce_sum, &attr, T(t, -0.3, 1, d[0], d[1], d[2]));
        CHECK(reduce_max, &attr, T(t, -3, -1, d[0], d[1], d[2]));
    }
    EACH_DTYPE
    {
        const ts_attr last = {.axis = {1}};
        CHECK(argmax, &last, T(t, -3, -1, 5, 1));
        CHECK(argmax, &last, T(t, -3, 1, 9, 5003));
    }
}

/* ---- rows ------------------------------------------------------------------------------------ */

static void test_rows(void **state)
{
    (void)state;
    static const int64_t widths[] = {1, 8, 31, 256, 577};
    EACH_DTYPE for (size_t s = 0; s < sizeof widths / sizeof *widths; s++)
    {
        const int64_t E = widths[s];
        const ts_attr norm = {.rms_norm = {1e-5}};
        CHECK(rms_norm, &norm, T(t, -2, 2, 3, 67, E), T(TS_F32, 0.5, 2, E));
        CHECK(rms_norm, &norm, T(t, -2, 2, 3, 67, E), T(t, 0.5, 2, E));
        CHECK(rms_norm_grad, &norm, T(t, -2, 2, 3, 67, E), T(TS_F32, 0.5, 2, E),
              T(t, -2, 2, 3, 67, E));
        CHECK(rms_norm_grad, &norm, T(t, -2, 2, 3, 67, E), T(t, 0.5, 2, E), T(t, -2, 2, 3, 67, E));
        for (int inverse = 0; inverse < 2; inverse++) {
            const ts_attr rope = {.rope = {inverse}};
            CHECK(rope, &rope, T(t, -2, 2, 3, 9, 4, 2 * E), T(TS_F32, -1, 1, 9, E),
                  T(TS_F32, -1, 1, 9, E));
            CHECK(rope, &rope, T(t, -2, 2, 3, 9, 2, 3, 2 * E), T(TS_F32, -1, 1, 3, 9, E),
                  T(TS_F32, -1, 1, 3, 9, E));
        }
        for (int act = TS_SILU; act <= TS_GELU_TANH; act++) {
            const ts_attr gated = {.gated = {act}};
            CHECK(gated, &gated, T(t, -9, 9, 101, E), T(t, -2, 2, 101, E));
            CHECK(gated_grad, &gated, T(t, -9, 9, 101, E), T(t, -2, 2, 101, E),
                  T(t, -2, 2, 101, E));
        }
        if (t == TS_BF16) continue;
        const ts_attr adamw = {.adamw = {0.9, 0.95, 1e-8, 0.1}};
        for (int ok = 0; ok < 2; ok++)
            CHECK(adamw, &adamw, T(t, -1, 1, 101, E), T(t, -1, 1, 101, E), T(t, -1, 1, 101, E),
                  T(t, 0, 1, 101, E), S(TS_F32, 0.01), S(TS_I32, 7), S(TS_F32, 0.25),
                  S(TS_PRED, ok));
    }
}

/* ---- products -------------------------------------------------------------------------------- */

static void dots(ts_dtype t, ts_dtype out)
{
    const ts_attr linear = {.dot = {.x_contract = {1, {2}}, .y_contract = {1, {1}}, .dtype = out}};
    CHECK(dot, &linear, T(t, -1, 1, 3, 37, 65), T(t, -1, 1, 130, 65));
    CHECK(dot, &linear, T(t, -1, 1, 1, 1, 65), T(t, -1, 1, 130, 65));
    CHECK(dot, &linear, T(t, -1, 1, 3, 37, 0), T(t, -1, 1, 130, 0));
    CHECK(dot, &linear, T(t, -1, 1, 3, 0, 65), T(t, -1, 1, 130, 65));
    CHECK(dot, &linear, T(t, -1, 1, 3, 37, 1), T(t, -1, 1, 1, 1));
    const ts_attr weight = {
        .dot = {.x_contract = {2, {0, 1}}, .y_contract = {2, {0, 1}}, .dtype = out}};
    CHECK(dot, &weight, T(t, -1, 1, 3, 37, 65), T(t, -1, 1, 3, 37, 4, 9));
    const ts_attr crossed = {
        .dot = {.x_contract = {2, {1, 0}}, .y_contract = {2, {0, 2}}, .dtype = out}};
    CHECK(dot, &crossed, T(t, -1, 1, 3, 37, 65), T(t, -1, 1, 37, 5, 3));
    /* q [B,S,K,G,D] · k [B,T,K,D]: batch B, K; m is (S, G), which is no single stride. */
    const ts_attr scores = {.dot = {.x_batch = {2, {0, 2}},
                                    .y_batch = {2, {0, 2}},
                                    .x_contract = {1, {4}},
                                    .y_contract = {1, {3}},
                                    .dtype = out}};
    CHECK(dot, &scores, T(t, -1, 1, 2, 19, 3, 2, 16), T(t, -1, 1, 2, 23, 3, 16));
    const ts_attr outer = {.dot = {.dtype = out}};
    CHECK(dot, &outer, T(t, -1, 1, 19), T(t, -1, 1, 40));
    const ts_attr inner = {.dot = {.x_contract = {1, {0}}, .y_contract = {1, {0}}, .dtype = out}};
    CHECK(dot, &inner, T(t, -1, 1, 1900), T(t, -1, 1, 1900));
    const ts_attr batch = {.dot = {.x_batch = {1, {0}}, .y_batch = {1, {0}}, .dtype = out}};
    CHECK(dot, &batch, T(t, -1, 1, 19), T(t, -1, 1, 19));
}

static void test_dot(void **state)
{
    (void)state;
    EACH_DTYPE
    {
        dots(t, TS_F32);
        dots(t, TS_BF16);
    }
    /* Wide enough for several panels of converted operands. */
    const ts_attr linear = {
        .dot = {.x_contract = {1, {1}}, .y_contract = {1, {1}}, .dtype = TS_F32}};
    CHECK(dot, &linear, T(TS_BF16, -1, 1, 70, 70000), T(TS_BF16, -1, 1, 67, 70000));
}

/* ---- attention and cross-entropy ------------------------------------------------------------- */

typedef struct attention_case {
    int64_t B, S, T, K, G, D;
    bool causal, segments;
    int64_t window;
    double softcap;
} attention_case;

static void attention(ts_dtype t, const attention_case *a)
{
    const ts_attr attr = {.attention = {a->causal, a->window, 1 / sqrt((double)a->D), a->softcap}};
    void *kept[2], *in[3];
    operand o[7] = {T(t, -2, 2, a->B, a->S, a->K, a->G, a->D), T(t, -2, 2, a->B, a->T, a->K, a->D),
                    T(t, -2, 2, a->B, a->T, a->K, a->D), T(TS_I32, 0, 3, a->B, a->S)};
    const int64_t sizes[3] = {a->B * a->S * a->K * a->G * a->D, a->B * a->T * a->K * a->D,
                              a->B * a->T * a->K * a->D};
    for (int i = 0; i < 3; i++) {
        in[i] = ts_alloc((size_t)sizes[i] * 4);
        for (int64_t e = 0; e < sizes[i]; e++) put(in[i], t, e, uniform() * 4 - 2);
        o[i].data = in[i];
    }
    int32_t *segments = ts_alloc((size_t)(a->B * a->S) * 4);
    for (int64_t i = 0; i < a->B * a->S; i++) segments[i] = (int32_t)(i % a->S * 3 / a->S);
    o[3].data = segments;
    check("attention", TS_OP_attention, &attr, o, a->segments ? 4 : 3, kept);
    operand g[7] = {o[0], o[1], o[2], o[0], T(TS_F32, 0, 0, a->B, a->S, a->K, a->G), o[0], o[3]};
    g[3].data = kept[0], g[4].data = kept[1], g[5].data = NULL;
    check("attention_grad", TS_OP_attention_grad, &attr, g, a->segments ? 7 : 6, NULL);
    for (int i = 0; i < 3; i++) ts_free(in[i]);
    ts_free(segments);
    ts_free(kept[0]);
    ts_free(kept[1]);
}

static void test_attention(void **state)
{
    (void)state;
    static const attention_case cases[] = {
        {2, 150, 150, 2, 2, 32, .causal = true},
        {1, 150, 150, 1, 3, 64, .causal = true},
        {1, 101, 101, 2, 1, 17, .causal = false},
        {1, 5, 200, 1, 4, 16, .causal = true},
        {1, 40, 9, 1, 2, 8, .causal = true}, /* the first rows see no key */
        {1, 1, 130, 3, 1, 128, .causal = true},
        {1, 110, 110, 1, 80, 8, .causal = true}, /* a group wider than a tile */
        {1, 220, 220, 1, 2, 16, .causal = true, .window = 50},
        {1, 220, 220, 1, 2, 16, .window = 30},
        {2, 130, 130, 1, 2, 48, .causal = true, .segments = true},
        {1, 130, 130, 1, 2, 24, .causal = true, .softcap = 1.5},
        {1, 130, 130, 1, 2, 24, .causal = true, .segments = true, .window = 40, .softcap = 5},
        {1, 30, 30, 1, 1, 512, .causal = true},
        {1, 1, 1, 1, 1, 1},
        {0, 4, 4, 1, 1, 8},
        {1, 4, 0, 1, 1, 8},
    };
    EACH_DTYPE for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) attention(t, &cases[i]);
}

static void xent(ts_dtype t, int64_t tokens, int64_t V, int64_t E, double softcap, int64_t chunk)
{
    const ts_attr attr = {.xent = {chunk, softcap}};
    void *kept[2], *x = ts_alloc((size_t)(tokens * E) * 4), *w = ts_alloc((size_t)(V * E) * 4);
    for (int64_t i = 0; i < tokens * E; i++) put(x, t, i, uniform() * 2 - 1);
    for (int64_t i = 0; i < V * E; i++) put(w, t, i, uniform() * 2 - 1);
    int32_t *labels = ts_alloc((size_t)tokens * 4 + 4);
    for (int64_t i = 0; i < tokens; i++) labels[i] = (int32_t)(uniform() * (double)(V + 8)) - 4;
    operand o[6] = {T(t, 0, 0, tokens, E),   T(t, 0, 0, V, E),         T(TS_I32, 0, 0, tokens),
                    T(TS_F32, 0, 0, tokens), T(TS_F32, -1, 1, tokens), T(TS_F32, -1, 1, tokens)};
    o[0].data = x, o[1].data = w, o[2].data = labels;
    check("xent_rows", TS_OP_xent_rows, &attr, o, 3, NULL);
    check("linear_xent", TS_OP_linear_xent, &attr, o, 3, kept);
    o[3].data = kept[1];
    check("linear_xent_grad", TS_OP_linear_xent_grad, &attr, o, 6, NULL);
    ts_free(x);
    ts_free(w);
    ts_free(labels);
    ts_free(kept[0]);
    ts_free(kept[1]);
}

static void test_xent(void **state)
{
    (void)state;
    EACH_DTYPE
    {
        xent(t, 100, 256, 32, 0, 0);
        xent(t, 100, 1100, 17, 0, 0);
        xent(t, 1100, 300, 9, 0, 0);
        xent(t, 100, 1540, 33, 3, 30);
        xent(t, 7, 1, 5, 0, 2);
        xent(t, 0, 20, 5, 0, 0);
    }
}

/* Blocks of expert_rows, of one row, and offsets that fall and leave [0, R]. */
static void test_grouped(void **state)
{
    (void)state;
    static const struct {
        int64_t R, X, F, E;
        int32_t offset[6];
    } cases[] = {
        {400, 4, 100, 33, {0, 8, 8, 336, 360}},
        {700, 5, 17, 70, {0, 0, 616, 616, 624, 632}},
        {90, 3, 40, 48, {3, 4, 15, 80}},
        {90, 4, 9, 5, {-7, 30, 20, 200, 60}},
        {90, 2, 9, 5, {90, 90, 90}},
        {5, 2, 3, 4, {0, 5, 5}},
    };
    EACH_DTYPE for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    {
        const int64_t R = cases[i].R, X = cases[i].X, F = cases[i].F, E = cases[i].E;
        operand o[4] = {T(t, -1, 1, R, E), T(t, -1, 1, X, F, E), T(TS_I32, 0, 0, X + 1),
                        T(t, -1, 1, R, F)};
        o[2].data = cases[i].offset;
        check("grouped_dot", TS_OP_grouped_dot, NULL, o, 3, NULL);
        check("grouped_dot_grad", TS_OP_grouped_dot_grad, NULL, o, 4, NULL);
    }
}

/* Rows that no other row touches: one thread and two give the same bits. */
static void test_bits(void **state)
{
    (void)state;
    ts_builder *b = ts_builder_new("bits");
    const operand o[3] = {T(TS_F32, -2, 2, 2, 130, 2, 2, 32), T(TS_F32, -2, 2, 2, 130, 2, 32),
                          T(TS_F32, -2, 2, 2, 130, 2, 32)};
    const ts_attr attr = {.attention = {true, 0, 0.2, 0}};
    ts_value *in[3];
    run r = {0};
    for (int i = 0; i < 3; i++) {
        char name[16];
        ts_dim dims[TS_MAX_RANK] = {{0}};
        for (int d = 0; d < o[i].rank; d++) dims[d].size = o[i].dim[d];
        snprintf(name, sizeof name, "x%d", i);
        in[i] = ts_input(b, name, TS_F32, dims, o[i].rank);
        r.in[i] = filled(&in[i]->type, &o[i]);
    }
    r.node = ts__op_n(b, TS_OP_attention, in, 3, &attr);
    assert_non_null(r.node);
    for (ts_isa isa = TS_ISA_AVX2; isa <= ts_isa_detect(); isa++) {
        void *first[2];
        for (int threads = 1; threads <= 3; threads++) {
            for (int i = 0; i < 2; i++) r.out[i] = guarded(&r.node->out[i]->type);
            execute(ts_cpu_fast(r.node, isa), &r, r.in, threads);
            for (int i = 0; i < 2; i++) {
                if (threads == 1)
                    first[i] = r.out[i];
                else {
                    assert_memory_equal(first[i], r.out[i], ts_type_bytes(&r.node->out[i]->type));
                    ts_free(r.out[i]);
                }
            }
        }
        ts_free(first[0]);
        ts_free(first[1]);
    }
    for (int i = 0; i < 3; i++) ts_free(r.in[i]);
    ts_builder_free(b);
}

int main(void)
{
    if (ts_isa_detect() < TS_ISA_AVX2) {
        printf("SKIP: this machine has no AVX2, so no fast kernels\n");
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_elementwise), cmocka_unit_test(test_special),
        cmocka_unit_test(test_moves),       cmocka_unit_test(test_reductions),
        cmocka_unit_test(test_rows),        cmocka_unit_test(test_dot),
        cmocka_unit_test(test_attention),   cmocka_unit_test(test_xent),
        cmocka_unit_test(test_grouped),     cmocka_unit_test(test_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
