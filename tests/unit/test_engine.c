/* test_engine.c – the CPU engine on small graphs with known answers: loops, swaps, nesting, donation,
 * views, in-place hazards, empty tensors; what it refuses; statistics and the timeline. Every graph
 * also runs with each value in memory of its own, and must give the same bits. */
#include "engine_help.h"

#include <stdlib.h>

#define D(n)                                                                                       \
    {                                                                                              \
        NULL, (n)                                                                                  \
    }

static ts_engine *engine;

static int set_up(void **unused)
{
    (void)unused;
    engine = help_engine("ref", 2);
    return 0;
}

static int tear_down(void **unused)
{
    (void)unused;
    ts_engine_close(engine);
    return 0;
}

static void check_floats(const help_run *r, int k, const float *want, int n)
{
    assert_int_equal(r->bytes[k], (size_t)n * sizeof(float));
    for (int i = 0; i < n; i++) {
        float got = ((const float *)r->out[k])[i];
        if (memcmp(&got, &want[i], sizeof got) != 0)
            fail_msg("output %d [%d] is %g, expected %g\n%s", k, i, (double)got, (double)want[i],
                     r->plan.data);
    }
}

static bool plan_has(const help_run *r, const char *word)
{
    return strstr(r->plan.data, word) != NULL;
}

static help_run run(ts_builder *b, const void *const *data)
{
    ts_graph *g = help_finish(b);
    help_run r = help_compare(engine, g, data, 1);
    ts_graph_free(g);
    return r;
}

/* (a, b) → (b, a + b): a shift and a sum in one parallel copy. */
static void fibonacci(void **unused)
{
    (void)unused;
    ts_builder *b = ts_builder_new("fibonacci");
    ts_value *carry[2] = {ts_scalar(b, 0, TS_F32), ts_scalar(b, 1, TS_F32)}, *arg[2], *out[2];
    ts_repeat *r = ts_repeat_begin(b, 10, false, carry, 2, NULL, 0, arg, NULL);
    ts_value *next[2] = {arg[1], ts_add(b, arg[0], arg[1])};
    ts_repeat_end(b, r, next, NULL, NULL, 0, out);
    ts_output(b, "a", out[0], NULL);
    ts_output(b, "b", out[1], NULL);
    help_run x = run(b, NULL);
    check_floats(&x, 0, (float[]){55}, 1);
    check_floats(&x, 1, (float[]){89}, 1);
    help_run_free(&x);
}

/* A swap of two carries, a rotation of three, and one that never changes. */
static void carries_swap(void **unused)
{
    (void)unused;
    ts_builder *b = ts_builder_new("swap");
    ts_value *carry[6], *arg[6], *out[6];
    for (int k = 0; k < 6; k++) carry[k] = ts_constant(b, k, TS_F32, TS_DIMS(D(3)));
    ts_repeat *r = ts_repeat_begin(b, 5, false, carry, 6, NULL, 0, arg, NULL);
    ts_value *next[6] = {arg[1], arg[0], arg[3], arg[4], arg[2], arg[5]};
    ts_repeat_end(b, r, next, NULL, NULL, 0, out);
    for (int k = 0; k < 6; k++) ts_output(b, (char[]){(char)('a' + k), 0}, out[k], NULL);
    help_run x = run(b, NULL);
    const float want[6] = {1, 0, 4, 2, 3, 5};
    for (int k = 0; k < 6; k++) check_floats(&x, k, (float[]){want[k], want[k], want[k]}, 3);
    help_run_free(&x);
}

/* Prefix sums over xs, forwards and backwards, with every kind of result. */
static void sums(bool reverse)
{
    ts_builder *b = ts_builder_new("sums");
    ts_value *xs = ts_input(b, "xs", TS_F32, TS_DIMS(D(4), D(2))),
             *zero = ts_constant(b, 0, TS_F32, TS_DIMS(D(2)));
    ts_value *arg, *x, *out[4];
    ts_repeat *r = ts_repeat_begin(b, 4, reverse, &zero, 1, &xs, 1, &arg, &x);
    ts_value *next = ts_add(b, arg, x);
    ts_value *ys[3] = {ts_mul(b, next, ts_scalar(b, 2, TS_F32)), arg, next};
    ts_repeat_end(b, r, &next, ys, (const bool[]){false, false, true}, 3, out);
    for (int k = 0; k < 4; k++) ts_output(b, (char[]){(char)('a' + k), 0}, out[k], NULL);
    const float data[8] = {1, 10, 2, 20, 3, 30, 4, 40};
    help_run e = run(b, (const void *const[]){data});
    check_floats(&e, 0, (float[]){10, 100}, 2);
    if (!reverse) {
        check_floats(&e, 1, (float[]){2, 20, 6, 60, 12, 120, 20, 200}, 8);
        check_floats(&e, 2, (float[]){0, 0, 1, 10, 3, 30, 6, 60}, 8);
        check_floats(&e, 3, (float[]){20, 200}, 2);
    } else {
        check_floats(&e, 1, (float[]){20, 200, 18, 180, 14, 140, 8, 80}, 8);
        check_floats(&e, 2, (float[]){9, 90, 7, 70, 4, 40, 0, 0}, 8);
        check_floats(&e, 3, (float[]){30, 300}, 2);
    }
    help_run_free(&e);
}

static void prefix_sums(void **unused)
{
    (void)unused;
    sums(false);
    sums(true);
}

/* Stacked results that are born in the loop are written where they belong. */
static void stack_is_direct(void **unused)
{
    (void)unused;
    ts_builder *b = ts_builder_new("direct");
    ts_value *xs = ts_input(b, "xs", TS_F32, TS_DIMS(D(3), D(5))),
             *carry = ts_input(b, "c", TS_F32, TS_DIMS(D(5)));
    ts_value *arg, *x, *out[2];
    ts_repeat *r = ts_repeat_begin(b, 3, false, &carry, 1, &xs, 1, &arg, &x);
    ts_value *y = ts_neg(b, ts_add(b, x, arg)), *next = ts_mul(b, arg, x);
    ts_repeat_end(b, r, &next, &y, (const bool[]){false}, 1, out);
    ts_output(b, "last", out[0], NULL);
    ts_output(b, "ys", out[1], NULL);
    help_run e = run(b, NULL);
    assert_false(plan_has(&e, "stack"));
    assert_true(plan_has(&e, "→ys+0+20·i0"));
    help_run_free(&e);
}

/* out[i] = Σ_j (i·10 + j) over an inner loop whose bounds use the outer carry; three levels. */
static void nested(void **unused)
{
    (void)unused;
    ts_builder *b = ts_builder_new("nested");
    ts_value *zero = ts_scalar(b, 0, TS_F32), *one = ts_scalar(b, 1, TS_F32), *i, *j, *k, *out[3],
             *mid[2], *low[1];
    ts_repeat *r1 = ts_repeat_begin(b, 3, false, &zero, 1, NULL, 0, &i, NULL);
    ts_repeat *r2 = ts_repeat_begin(b, 2, false, &zero, 1, NULL, 0, &j, NULL);
    ts_repeat *r3 = ts_repeat_begin(b, 4, false, &j, 1, NULL, 0, &k, NULL);
    ts_value *k1 = ts_add(b, k, i);
    ts_repeat_end(b, r3, &k1, NULL, NULL, 0, low);
    ts_value *j1 = ts_add(b, j, one);
    ts_repeat_end(b, r2, &j1, low, (const bool[]){true}, 1, mid);
    ts_value *i1 = ts_add(b, i, one), *ys[2] = {mid[1], mid[0]};
    ts_repeat_end(b, r1, &i1, ys, (const bool[]){false, true}, 2, out);
    for (int n = 0; n < 3; n++) ts_output(b, (char[]){(char)('a' + n), 0}, out[n], NULL);
    help_run e = run(b, NULL);
    check_floats(&e, 0, (float[]){3}, 1);
    check_floats(&e, 1, (float[]){1, 9, 17}, 3);
    check_floats(&e, 2, (float[]){6}, 1);
    help_run_free(&e);
}

/* What a body may yield besides its own values: arguments, consts, slices, one value twice. */
static void odd_yields(void **unused)
{
    (void)unused;
    ts_builder *b = ts_builder_new("odd");
    ts_value *xs = ts_input(b, "xs", TS_F32, TS_DIMS(D(3), D(2))),
             *k = ts_input(b, "k", TS_F32, TS_DIMS(D(2)));
    ts_value *carry[4] = {k, k, k, k}, *arg[4], *x, *out[9];
    ts_repeat *r = ts_repeat_begin(b, 3, false, carry, 4, &xs, 1, arg, &x);
    ts_value *sum = ts_add(b, arg[0], x), *next[4] = {sum, sum, x, k};
    ts_value *ys[5] = {sum, sum, k, x, k};
    ts_repeat_end(b, r, next, ys, (const bool[]){false, false, false, false, true}, 5, out);
    for (int n = 0; n < 9; n++) ts_output(b, (char[]){(char)('a' + n), 0}, out[n], NULL);
    const float x_data[6] = {1, 2, 3, 4, 5, 6}, k_data[2] = {10, 20};
    help_run e = run(b, (const void *const[]){x_data, k_data});
    for (int n = 0; n < 2; n++) {
        check_floats(&e, n, (float[]){19, 32}, 2);
        check_floats(&e, 4 + n, (float[]){11, 22, 14, 26, 19, 32}, 6);
    }
    check_floats(&e, 2, (float[]){5, 6}, 2);
    check_floats(&e, 3, k_data, 2);
    check_floats(&e, 6, (float[]){10, 20, 10, 20, 10, 20}, 6);
    check_floats(&e, 7, x_data, 6);
    check_floats(&e, 8, (float[]){30, 60}, 2);
    help_run_free(&e);
}

/* The output is made in the input's buffer, without a copy and without temporaries. */
static void donation_in_place(void **unused)
{
    (void)unused;
    ts_builder *b = ts_builder_new("donate");
    ts_value *x = ts_input(b, "x", TS_F32, TS_DIMS(D(3)));
    ts_output(b, "y", ts_neg(b, ts_add(b, x, ts_scalar(b, 1, TS_F32))), x);
    help_run e = run(b, (const void *const[]){(float[]){1, 2, 3}});
    check_floats(&e, 0, (float[]){-2, -3, -4}, 3);
    assert_false(plan_has(&e, "copy"));
    if (e.stats.memory.temporary) fail_msg("%s", e.plan.data);
    assert_int_equal(e.stats.memory.aliased, 12);
    help_run_free(&e);
}

/* The input is read after the output is made: a temporary and one copy. */
static void donation_read_later(void **unused)
{
    (void)unused;
    ts_builder *b = ts_builder_new("late");
    ts_value *x = ts_input(b, "x", TS_F32, TS_DIMS(D(3))),
             *y = ts_add(b, x, ts_scalar(b, 1, TS_F32));
    ts_output(b, "y", y, x);
    ts_output(b, "z", ts_mul(b, y, x), NULL);
    ts_output(b, "w", x, NULL);
    help_run e = run(b, (const void *const[]){(float[]){1, 2, 3}});
    check_floats(&e, 0, (float[]){2, 3, 4}, 3);
    check_floats(&e, 1, (float[]){2, 6, 12}, 3);
    check_floats(&e, 2, (float[]){1, 2, 3}, 3);
    help_run_free(&e);
}

static void donation_swapped(void **unused)
{
    (void)unused;
    ts_builder *b = ts_builder_new("swapped");
    ts_value *x = ts_input(b, "x", TS_F32, TS_DIMS(D(2))),
             *y = ts_input(b, "y", TS_F32, TS_DIMS(D(2)));
    ts_output(b, "a", y, x);
    ts_output(b, "b", x, y);
    ts_output(b, "c", ts_add(b, x, y), NULL);
    help_run e = run(b, (const void *const[]){(float[]){1, 2}, (float[]){3, 4}});
    check_floats(&e, 0, (float[]){3, 4}, 2);
    check_floats(&e, 1, (float[]){1, 2}, 2);
    check_floats(&e, 2, (float[]){4, 6}, 2);
    help_run_free(&e);
}

/* A state that goes through a loop stays in its buffer. */
static void donation_through_loop(void **unused)
{
    (void)unused;
    ts_builder *b = ts_builder_new("state");
    ts_value *x = ts_input(b, "x", TS_F32, TS_DIMS(D(2))), *arg, *out;
    ts_repeat *r = ts_repeat_begin(b, 3, false, &x, 1, NULL, 0, &arg, NULL);
    ts_value *next = ts_mul(b, arg, ts_scalar(b, 2, TS_F32));
    ts_repeat_end(b, r, &next, NULL, NULL, 0, &out);
    ts_output(b, "y", out, x);
    help_run e = run(b, (const void *const[]){(float[]){1, 2}});
    check_floats(&e, 0, (float[]){8, 16}, 2);
    assert_false(plan_has(&e, "copy"));
    assert_int_equal(e.stats.memory.temporary, 0);
    help_run_free(&e);
}

/* Reshapes, row slices, moves of unit dimensions: no instruction; a column slice is one. */
static void views_cost_nothing(void **unused)
{
    (void)unused;
    ts_builder *b = ts_builder_new("views");
    ts_value *x = ts_input(b, "x", TS_F32, TS_DIMS(D(4), D(3)));
    ts_value *rows = ts_slice(b, x, 0, 1, 3),
             *flat = ts_reshape(b, rows, TS_DIMS(D(1), D(6), D(1)));
    ts_value *turned = ts_transpose(b, flat, TS_INTS(2, 0, 1)),
             *part = ts_slice(b, turned, 2, 2, 5), *same;
    ts_barrier(b, &part, 1, &same);
    ts_output(b, "y", ts_neg(b, same), NULL);
    const float data[12] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    help_run e = run(b, (const void *const[]){data});
    check_floats(&e, 0, (float[]){-5, -6, -7}, 3);
    assert_non_null(strstr(e.plan.data, "1 steps"));
    assert_true(plan_has(&e, "x+20"));
    help_run_free(&e);
}

/* Sums of every dtype, lengths that are no multiple of a vector, one trip, and moves large enough for
 * several threads: s ← Σ x (n times), a and b swapped. */
static void moves_and_sums(int64_t n, int64_t size)
{
    const ts_dtype dtypes[3] = {TS_F32, TS_BF16, TS_I32};
    ts_builder *b = ts_builder_new("moves");
    ts_value *x[3], *carry[2], *arg[2], *out[5];
    for (int k = 0; k < 3; k++)
        x[k] = ts_input(b, (char[]){(char)('x' + k), 0}, dtypes[k], TS_DIMS(D(size)));
    carry[0] = ts_neg(b, x[0]);
    carry[1] = ts_abs(b, x[0]);
    ts_repeat *r = ts_repeat_begin(b, n, false, carry, 2, NULL, 0, arg, NULL);
    ts_value *next[2] = {arg[1], arg[0]};
    ts_repeat_end(b, r, next, x, (const bool[]){true, true, true}, 3, out);
    for (int k = 0; k < 5; k++) ts_output(b, (char[]){(char)('a' + k), 0}, out[k], NULL);
    help_run e = run(b, NULL);
    float *f = ts_alloc((size_t)size * 4);
    uint16_t *h = ts_alloc((size_t)size * 2);
    int32_t *w = ts_alloc((size_t)size * 4);
    ts_type t = ts_type_make(TS_F32, TS_DIMS(D(size)));
    help_fill(f, &t, 1); /* run's seed, then one more an input */
    t.dtype = TS_BF16;
    help_fill(h, &t, 2);
    t.dtype = TS_I32;
    help_fill(w, &t, 3);
    for (int64_t i = 0; i < size; i++) {
        float a = n % 2 ? (f[i] < 0 ? -f[i] : f[i]) : -f[i], sum = 0;
        uint16_t half = h[i];
        for (int64_t k = 0; k < n; k++) sum += f[i];
        for (int64_t k = 1; k < n; k++)
            half = ts_bf16_from_f32(ts_bf16_to_f32(half) + ts_bf16_to_f32(h[i]));
        if (((float *)e.out[0])[i] != a || ((float *)e.out[2])[i] != sum ||
            ((uint16_t *)e.out[3])[i] != half || ((int32_t *)e.out[4])[i] != (int32_t)n * w[i])
            fail_msg("element %lld after %lld trips", (long long)i, (long long)n);
    }
    ts_free(f);
    ts_free(h);
    ts_free(w);
    help_run_free(&e);
}

static void large_moves_and_sums(void **unused)
{
    (void)unused;
    for (int64_t n = 1; n <= 3; n++) {
        moves_and_sums(n, 37);
        moves_and_sums(n, 700001);
    }
}

/* One operand in place while another lies in the same memory elsewhere. */
static void in_place_hazards(void **unused)
{
    (void)unused;
    ts_builder *b = ts_builder_new("hazards");
    ts_value *x = ts_input(b, "x", TS_F32, TS_DIMS(D(4)));
    ts_value *t = ts_neg(b, x), *twice = ts_add(b, t, t);
    ts_value *u = ts_abs(b, x), *head = ts_reshape(b, ts_slice(b, u, 0, 0, 1), TS_SCALAR);
    ts_value *scaled = ts_mul(b, u, head); /* the scalar is u's first element */
    ts_output(b, "twice", twice, NULL);
    ts_output(b, "scaled", scaled, NULL);
    help_run e = run(b, (const void *const[]){(float[]){2, -1, -3, 4}});
    check_floats(&e, 0, (float[]){-4, 2, 6, -8}, 4);
    check_floats(&e, 1, (float[]){4, 2, 6, 8}, 4);
    help_run_free(&e);
}

/* −(w[k + 1] + w[k]): two overlapping views of a value that dies; long enough that a kernel which worked
 * over either of them would read what it wrote. */
static void overlapping_views(void **unused)
{
    (void)unused;
    enum { N = 5000 };
    static float data[N], want[N - 1];
    ts_builder *b = ts_builder_new("overlap");
    ts_value *w = ts_neg(b, ts_input(b, "x", TS_F32, TS_DIMS(D(N))));
    ts_output(b, "y", ts_neg(b, ts_add(b, ts_slice(b, w, 0, 1, N), ts_slice(b, w, 0, 0, N - 1))),
              NULL);
    for (int k = 0; k < N; k++) data[k] = (float)(k * k % 1000);
    for (int k = 0; k < N - 1; k++) want[k] = data[k] + data[k + 1];
    help_run e = run(b, (const void *const[]){data});
    check_floats(&e, 0, want, N - 1);
    help_run_free(&e);
}

static void empty_tensors(void **unused)
{
    (void)unused;
    ts_builder *b = ts_builder_new("empty");
    ts_value *x = ts_input(b, "x", TS_F32, TS_DIMS(D(3), D(0))), *arg, *s, *out[2];
    ts_value *sum = ts_reduce_sum(b, ts_neg(b, x), TS_INTS(1));
    ts_repeat *r = ts_repeat_begin(b, 3, false, &sum, 1, &x, 1, &arg, &s);
    ts_value *y = ts_add(b, s, s), *next = ts_add(b, arg, ts_scalar(b, 1, TS_F32));
    ts_repeat_end(b, r, &next, &y, (const bool[]){false}, 1, out);
    ts_output(b, "sum", out[0], NULL);
    ts_output(b, "none", out[1], NULL);
    ts_output(b, "same", x, NULL);
    help_run e = run(b, NULL);
    check_floats(&e, 0, (float[]){3, 3, 3}, 3);
    help_run_free(&e);
}

/* Splats of one value share the longest; inside loops constants are made once. */
static void constants_are_shared(void **unused)
{
    (void)unused;
    ts_builder *b = ts_builder_new("constants");
    ts_value *x = ts_input(b, "x", TS_F32, TS_DIMS(D(64))), *arg, *out;
    ts_repeat *r = ts_repeat_begin(b, 2, false, &x, 1, NULL, 0, &arg, NULL);
    ts_value *y = ts_add(b, arg, ts_constant(b, 3, TS_F32, TS_DIMS(D(64))));
    ts_value *next = ts_mul(b, y, ts_scalar(b, 3, TS_F32));
    ts_repeat_end(b, r, &next, NULL, NULL, 0, &out);
    ts_output(b, "y", ts_add(b, out, ts_iota(b, TS_F32, TS_DIMS(D(64)), 0)), NULL);
    float zeros[64] = {0}, want[64];
    for (int k = 0; k < 64; k++) want[k] = 36 + (float)k;
    help_run e = run(b, (const void *const[]){zeros});
    check_floats(&e, 0, want, 64);
    assert_int_equal(e.stats.memory.constants, 512);
    help_run_free(&e);
}

/* ---- what is refused ---------------------------------------------------------------------------- */

static void bad_options(void **unused)
{
    (void)unused;
    ts_engine *e;
    ts_error err = {0};
    ts_engine_options o = {.struct_size = sizeof o, .name = "cpu", .devices = 4097};
    assert_int_equal(ts_engine_open(&o, &e, &err), TS_INVALID_ARGUMENT);
    assert_non_null(strstr(err.msg, "1 … 4096"));
    o = (ts_engine_options){.struct_size = sizeof o, .name = "tpu"};
    err.code = TS_OK;
    assert_int_equal(ts_engine_open(&o, &e, &err), TS_UNAVAILABLE);
    assert_non_null(strstr(err.msg, "cpu"));
    o = (ts_engine_options){.struct_size = sizeof o, .name = "cpu", .isa = "sse9"};
    err.code = TS_OK;
    assert_int_equal(ts_engine_open(&o, &e, &err), TS_INVALID_ARGUMENT);
    assert_non_null(strstr(err.msg, "ref"));
    assert_null(e);
}

static void bad_buffers(void **unused)
{
    (void)unused;
    ts_builder *b = ts_builder_new("buffers");
    ts_value *x = ts_input(b, "x", TS_F32, TS_DIMS(D(2))),
             *y = ts_input(b, "y", TS_F32, TS_DIMS(D(2)));
    ts_output(b, "a", ts_add(b, x, y), x);
    ts_output(b, "b", ts_mul(b, x, y), NULL);
    ts_graph *g = help_finish(b);
    ts_executable *e;
    ts_buffer *u, *v, *w, *odd;
    ts_type three = ts_type_make(TS_F32, TS_DIMS(D(3)));
    assert_int_equal(ts_compile(engine, g, &e, NULL), TS_OK);
    assert_int_equal(ts_buffer_new(engine, 0, ts_type_of(x), &u, NULL), TS_OK);
    assert_int_equal(ts_buffer_new(engine, 0, ts_type_of(x), &v, NULL), TS_OK);
    assert_int_equal(ts_buffer_new(engine, 0, ts_type_of(x), &w, NULL), TS_OK);
    assert_int_equal(ts_buffer_new(engine, 0, &three, &odd, NULL), TS_OK);
    assert_int_equal(ts_buffer_new(engine, 1, &three, &(ts_buffer *){NULL}, NULL), TS_OUT_OF_RANGE);
    ts_buffer *bad[][4] = {{odd, v, odd, w}, {u, NULL, u, w}, {u, v, w, w},
                           {u, v, u, v},     {u, v, u, u},    {u, u, u, w}};
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        ts_error err = {0};
        if (ts_execute(e, bad[k], bad[k] + 2, &err) != TS_INVALID_ARGUMENT)
            fail_msg("case %zu was accepted", k);
        assert_int_equal(ts_wait(e, NULL), TS_INVALID_ARGUMENT);
        assert_true(strlen(err.msg) > 10);
    }
    assert_int_equal(ts_execute(e, (ts_buffer *[]){u, v}, (ts_buffer *[]){u, w}, NULL), TS_OK);
    char bytes[16];
    assert_int_equal(ts_upload(u, bytes, 4, 8, NULL), TS_OUT_OF_RANGE);
    assert_int_equal(ts_download(u, bytes, SIZE_MAX, 2, NULL), TS_OUT_OF_RANGE);
    ts_executable_free(e);
    ts_buffer_free(u);
    ts_buffer_free(v);
    ts_buffer_free(w);
    ts_buffer_free(odd);
    ts_graph_free(g);
}

/* ---- statistics, timeline, memory out -------------------------------------------------------------- */

static ts_graph *loop_graph(void)
{
    ts_builder *b = ts_builder_new("loop");
    ts_value *x = ts_input(b, "x", TS_F32, TS_DIMS(D(4), D(4))),
             *w = ts_input(b, "w", TS_F32, TS_DIMS(D(3), D(4), D(4)));
    ts_value *arg, *wi, *out[3];
    ts_repeat *r = ts_repeat_begin(b, 3, false, &x, 1, &w, 1, &arg, &wi);
    ts_dot_dims dims = {.n_contract = 1, .x_contract = {1}, .y_contract = {0}};
    ts_value *next = ts_tanh(b, ts_dot(b, arg, wi, &dims, TS_F32)), *ys[2] = {next, wi};
    ts_repeat_end(b, r, &next, ys, (const bool[]){false, true}, 2, out);
    for (int k = 0; k < 3; k++) ts_output(b, (char[]){(char)('a' + k), 0}, out[k], NULL);
    return help_finish(b);
}

static void timeline(void **unused)
{
    (void)unused;
    ts_graph *g = loop_graph();
    ts_executable *e;
    ts_buffer *in[2], *out[3];
    assert_int_equal(ts_compile(engine, g, &e, NULL), TS_OK);
    for (int k = 0; k < 2; k++)
        assert_int_equal(ts_buffer_new(engine, 0, &g->top->arg[k]->type, &in[k], NULL), TS_OK);
    for (int k = 0; k < 3; k++)
        assert_int_equal(ts_buffer_new(engine, 0, &g->top->result[k]->type, &out[k], NULL), TS_OK);
    e->vtable->profile_next(e);
    assert_int_equal(ts_execute(e, in, out, NULL), TS_OK);
    ts_profile_event event[100];
    size_t n = e->vtable->profile(e, event, 100), dots = 0;
    assert_true(n > 6 && n < 100);
    for (size_t k = 0; k < n; k++) {
        if (k) assert_true(event[k].start_seconds >= event[k - 1].start_seconds);
        if (event[k].node && event[k].node->op == TS_OP_dot)
            assert_int_equal(event[k].iteration, dots++);
    }
    assert_int_equal(dots, 3);
    assert_int_equal(ts_execute(e, in, out, NULL), TS_OK);
    assert_int_equal(e->vtable->profile(e, NULL, 0), 0);
    ts_exec_stats s;
    e->vtable->stats(e, &s);
    assert_int_equal(s.executes, 2);
    assert_true(s.flops >= 3 * 2 * 64);
    assert_int_equal(s.memory.arguments, 64 + 192);
    ts_executable_free(e);
    for (int k = 0; k < 2; k++) ts_buffer_free(in[k]);
    for (int k = 0; k < 3; k++) ts_buffer_free(out[k]);
    ts_graph_free(g);
}

/* Every allocation of compile fails once: an error, nothing lost (the sanitizers look). */
static void memory_out(void **unused)
{
    (void)unused;
    ts_graph *g = loop_graph();
    ts_executable *e = NULL;
    uint64_t nth = 1;
    for (;; nth++) {
        ts_alloc_fail_at(nth);
        ts_status status = ts_compile(engine, g, &e, NULL);
        ts_alloc_fail_at(0);
        if (status == TS_OK) break;
        assert_int_equal(status, TS_RESOURCE_EXHAUSTED);
        assert_null(e);
    }
    assert_true(nth > 10);
    ts_executable_free(e);
    ts_graph_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fibonacci),
        cmocka_unit_test(carries_swap),
        cmocka_unit_test(prefix_sums),
        cmocka_unit_test(stack_is_direct),
        cmocka_unit_test(nested),
        cmocka_unit_test(odd_yields),
        cmocka_unit_test(donation_in_place),
        cmocka_unit_test(donation_read_later),
        cmocka_unit_test(donation_swapped),
        cmocka_unit_test(donation_through_loop),
        cmocka_unit_test(views_cost_nothing),
        cmocka_unit_test(in_place_hazards),
        cmocka_unit_test(overlapping_views),
        cmocka_unit_test(large_moves_and_sums),
        cmocka_unit_test(empty_tensors),
        cmocka_unit_test(constants_are_shared),
        cmocka_unit_test(bad_options),
        cmocka_unit_test(bad_buffers),
        cmocka_unit_test(timeline),
        cmocka_unit_test(memory_out),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
