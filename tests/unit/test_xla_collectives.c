/* test_xla_collectives.c – collectives on a real plugin: eight devices as a mesh, values checked.
 *
 * Every collective over either axis of a=2, b=4, in f32, bf16 and i32, and over an axis in the middle of four; once
 * at the top and once an iteration of a repeat, against what the definition gives when it is written down device by
 * device. Values are small whole numbers, so sums are exact in each dtype. Runs on the plugin "cpu" that is found
 * (TESSERA_PLUGIN_PATH), or the one that TESSERA_TEST_PLUGIN names; skipped where there is none.
 */
#include "unit/ir_help.h"
#include "exec/engine.h"
#include "xla/plugin.h"

enum { DEVICES = 8, TIMES = 3, ROWS = 4, COLS = 8, OPS = 8 };

static const struct {
    const char *name;
    ts_op op;
    ts_attr attr; /* without the axis */
} ops[OPS] = {
    {"sum", TS_OP_all_reduce, {.collective = {.reduce = 0}}},
    {"max", TS_OP_all_reduce, {.collective = {.reduce = 1}}},
    {"gather", TS_OP_all_gather, {.collective = {.dim = 1}}},
    {"scatter", TS_OP_reduce_scatter, {.collective = {.dim = 0}}},
    {"exchange", TS_OP_all_to_all, {.collective = {.dim = 1, .dim2 = 0}}},
    {"next", TS_OP_collective_permute, {.collective = {.shift = 1}}},
    {"previous", TS_OP_collective_permute, {.collective = {.shift = -1}}},
    {"index", TS_OP_axis_index, {.collective = {.dim = 0}}},
};

typedef struct axis {
    const char *name;
    int64_t n, stride; /* devices a step along it are `stride` apart */
} axis;
typedef struct mesh {
    axis axis[4];
    int n;
} mesh;
static const mesh flat = {{{"a", 2, 4}, {"b", 4, 1}}, 2},
                  deep = {{{"a", 2, 4}, {"one", 1, 4}, {"m", 2, 2}, {"b", 2, 1}}, 4};

/* ---- what is expected ------------------------------------------------------------------------ */

/* Element (row, col) of x on a device in an iteration: −8 … 7, different everywhere. */
static double element(int64_t device, int64_t time, int64_t row, int64_t col)
{
    uint32_t h = (uint32_t)(((device * TIMES + time) * ROWS + row) * COLS + col) * 0x9e3779b9u;
    return (double)(h >> 28) - 8;
}

/* Element i of op k's result on a device in an iteration. */
static double expected(int k, const axis *x, int64_t d, int64_t t, int64_t i)
{
    const int64_t c = d / x->stride % x->n, first = d - c * x->stride;
    const bool scatters = ops[k].op == TS_OP_reduce_scatter;
    int64_t row = i / COLS, col = i % COLS, from;
    double v = ops[k].attr.collective.reduce ? -INFINITY : 0;
    switch (ops[k].op) {
    case TS_OP_axis_index: return (double)c;
    case TS_OP_all_gather: /* [ROWS, n·COLS] */
        row = i / (COLS * x->n);
        col = i % (COLS * x->n);
        return element(first + col / COLS * x->stride, t, row, col % COLS);
    case TS_OP_all_to_all: /* [n·ROWS, COLS/n]: rows of device p are its columns for us */
        row = i / (COLS / x->n);
        col = i % (COLS / x->n);
        return element(first + row / ROWS * x->stride, t, row % ROWS, c * (COLS / x->n) + col);
    case TS_OP_collective_permute:
        from = (c - ops[k].attr.collective.shift + x->n) % x->n;
        return element(first + from * x->stride, t, row, col);
    default:
        if (scatters) row += c * (ROWS / x->n); /* [ROWS/n, COLS] */
        for (int64_t p = 0; p < x->n; p++) {
            double w = element(first + p * x->stride, t, row, col);
            v = ops[k].attr.collective.reduce ? (w > v ? w : v) : v + w;
        }
        return v;
    }
}

/* ---- the program ----------------------------------------------------------------------------- */

static ts_value *apply(ts_builder *b, int k, const axis *a, ts_value *x)
{
    ts_attr attr = ops[k].attr;
    attr.collective.axis = a->name;
    attr.collective.n = a->n;
    return ts__op(b, ops[k].op, &x, ops[k].op == TS_OP_axis_index ? 0 : 1, &attr);
}

/* Outputs: op by op at the top, of iteration 0; then op by op stacked over the iterations. */
static ts_graph *program(const mesh *m, const axis *a, ts_dtype dtype)
{
    char name[40];
    ts_builder *b = ts_builder_new("collectives");
    ts_dim dims[3] = {{NULL, TIMES}, {NULL, ROWS}, {NULL, COLS}};
    ts_value *x = ts_input(b, "x", dtype, dims, 3), *arg, *ys[OPS], *results[OPS];
    ts_value *first = ts_reshape(b, ts_slice(b, x, 0, 0, 1), dims + 1, 2);
    for (int k = 0; k < OPS; k++) ts_output(b, ops[k].name, apply(b, k, a, first), NULL);
    ts_repeat *r = ts_repeat_begin(b, TIMES, false, NULL, 0, &x, 1, NULL, &arg);
    for (int k = 0; k < OPS; k++) ys[k] = apply(b, k, a, arg);
    ts_repeat_end(b, r, NULL, ys, NULL, OPS, results);
    for (int k = 0; k < OPS; k++) {
        snprintf(name, sizeof name, "each %s", ops[k].name);
        ts_output(b, name, results[k], NULL);
    }
    ts_graph *g = finish(b);
    g->n_axis = m->n;
    for (int i = 0; i < m->n; i++) {
        g->axis[i].name = m->axis[i].name;
        g->axis[i].size = m->axis[i].n;
    }
    return g;
}

static double number(const void *p, ts_dtype t, int64_t i)
{
    return t == TS_F32    ? (double)((const float *)p)[i]
           : t == TS_BF16 ? (double)ts_bf16_to_f32(((const uint16_t *)p)[i])
                          : (double)((const int32_t *)p)[i];
}

static void upload(ts_buffer *b, ts_dtype t, int64_t device)
{
    uint32_t data[TIMES * ROWS * COLS];
    for (int64_t i = 0; i < TIMES * ROWS * COLS; i++) {
        float f = (float)element(device, i / (ROWS * COLS), i / COLS % ROWS, i % COLS);
        if (t == TS_F32) memcpy((float *)data + i, &f, 4);
        else if (t == TS_BF16) ((uint16_t *)data)[i] = ts_bf16_from_f32(f);
        else ((int32_t *)data)[i] = (int32_t)f;
    }
    OK(ts_upload(b, data, 0, ts_type_bytes(&b->type), &err));
}

static void check(ts_buffer *b, int output, const axis *a, int64_t device)
{
    const int k = output % OPS;
    const int64_t n = ts_type_elements(&b->type), each = output < OPS ? n : n / TIMES;
    void *got = ts_alloc(ts_type_bytes(&b->type));
    OK(ts_download(b, got, 0, ts_type_bytes(&b->type), &err));
    for (int64_t i = 0; i < n; i++) {
        double want = expected(k, a, device, i / each, i % each);
        if (number(got, b->type.dtype, i) != want)
            fail_msg("%s over %s in %s%s, device %d, element %d: found %g, expected %g", ops[k].name,
                     a->name, ts_dtype_name(b->type.dtype), output < OPS ? "" : " in a repeat",
                     (int)device, (int)i, number(got, b->type.dtype, i), want);
    }
    ts_free(got);
}

static void run(ts_engine *e, const mesh *m, const axis *a, ts_dtype dtype)
{
    ts_executable *x;
    ts_buffer *in[DEVICES], *out[DEVICES * 2 * OPS];
    ts_exec_stats stats;
    ts_graph *g = program(m, a, dtype);
    OK(ts_compile(e, g, &x, &err));
    for (int d = 0; d < DEVICES; d++) {
        OK(ts_buffer_new(e, d, &g->top->arg[0]->type, &in[d], &err));
        upload(in[d], dtype, d);
        for (int i = 0; i < 2 * OPS; i++)
            OK(ts_buffer_new(e, d, &g->top->result[i]->type, &out[d * 2 * OPS + i], &err));
    }
    OK(ts_execute(x, in, out, &err));
    OK(ts_wait(x, &err));
    x->vtable->stats(x, &stats);
    assert_int_equal(stats.executes, 1); /* it was the plugin that ran it */
    for (int i = 0; i < DEVICES * 2 * OPS; i++) {
        check(out[i], i % (2 * OPS), a, i / (2 * OPS));
        ts_buffer_free(out[i]);
    }
    for (int d = 0; d < DEVICES; d++) ts_buffer_free(in[d]);
    ts_executable_free(x);
    ts_graph_free(g);
}

/* A mesh of fewer devices than there are: XLA would take it and index its axis beyond its end. */
static void refuse(ts_engine *e)
{
    static const mesh four = {{{"a", 4, 1}}, 1};
    ts_executable *x = NULL;
    ts_error why = {0};
    ts_graph *g = program(&four, &four.axis[0], TS_F32);
    assert_int_equal(ts_compile(e, g, &x, &why), TS_FAILED_PRECONDITION);
    assert_non_null(strstr(why.msg, "made for a mesh of 4 devices and would run on 8"));
    ts_graph_free(g);
}

static void test_collectives(void **state)
{
    const char *given = getenv("TESSERA_TEST_PLUGIN"), *plugin = given && *given ? given : "cpu";
    ts_engine *e = NULL;
    ts_error why = {0};
    char path[4096];
    (void)state;
    if (getenv("VALGRIND")) {
        puts("SKIP: the plugins' own code does not pass valgrind");
        skip();
    }
    if (ts__plugin_find(plugin, path, sizeof path, &why) != TS_OK) {
        printf("SKIP: %s\n", why.msg);
        skip();
    }
    const ts_engine_options o = {sizeof o, .name = "xla", .devices = DEVICES, .plugin = plugin};
    OK(ts_engine_open(&o, &e, &err));
    for (int i = 0; i < 2; i++) {
        run(e, &flat, &flat.axis[i], TS_F32);
        run(e, &flat, &flat.axis[i], TS_BF16);
        run(e, &flat, &flat.axis[i], TS_I32);
    }
    run(e, &deep, &deep.axis[1], TS_F32); /* costs nothing, and is no error */
    run(e, &deep, &deep.axis[2], TS_F32);
    refuse(e);
    ts_engine_close(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_collectives)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
