/* test_stablehlo_sharding.c – a global graph as XLA's partitioner gets it: the mesh, arguments and
 * results, pinned values at the top, in loops and as results of composites; and shardings that are
 * refused.
 */
#include "unit/ir_help.h"
#include "xla/stablehlo.h"

#define HAS(text, word)                                                                            \
    do {                                                                                           \
        if (!strstr(text, word)) fail_msg("line %d: no '%s' in\n%s", __LINE__, word, text);        \
    } while (0)

static const char *const stream[] = {"batch", "embed"};
static const ts_mesh mesh = {.n = 3,
                             .devices = 8,
                             .axis = {{"fsdp", 2, TS_AXIS_FSDP},
                                      {"tensor0", 2, TS_AXIS_TENSOR},
                                      {"tensor1", 2, TS_AXIS_TENSOR}}};

/* x through rms_norm, pinned, then w·x three times, pinned; w is its own next value. */
static ts_graph *program(void)
{
    const ts_dot_dims d = {0, 1, {0}, {0}, {1}, {0}};
    ts_builder *b = ts_builder_new("global");
    ts_value *x = ts_input(b, "x", TS_F32, TS_DIMS({NULL, 8}, {NULL, 16})), *slice, *y;
    ts_value *w = ts_input(b, "w", TS_F32, TS_DIMS({NULL, 3}, {NULL, 16}, {NULL, 16}));
    ts_value *scale = ts_input(b, "scale", TS_F32, TS_DIMS({NULL, 16})), *h;
    ts_value *normed = ts__pin(b, ts_rms_norm(b, x, scale, 1e-5), stream);
    ts_repeat *r = ts_repeat_begin(b, 3, false, &normed, 1, &w, 1, &h, &slice);
    h = ts__pin(b, ts_dot(b, h, slice, &d, TS_F32), stream);
    ts_repeat_end(b, r, &h, NULL, NULL, 0, &y);
    ts_output(b, "w", ts_mul(b, w, w), w);
    ts_output(b, "y", y, NULL);
    return finish(b);
}

static ts_spec spec(int rank, int dim, int n, int first)
{
    ts_spec s = ts_spec_whole(rank);
    if (n) s.n[dim] = (uint8_t)n;
    for (int i = 0; i < n; i++) s.axis[dim][i] = (uint8_t)(first + i);
    return s;
}

static ts_spec pin_of(const void *context, const ts_value *v)
{
    assert_string_equal(v->pin->name[0], "batch");
    return *(const ts_spec *)context;
}

typedef struct sharded {
    ts_graph *g;
    ts_spec in[3], out[2], pin;
    ts_sharding s;
    ts_stablehlo_options o;
} sharded;

static sharded *make(void)
{
    static sharded x;
    x = (sharded){.g = program(),
                  .in = {spec(2, 0, 1, 0), spec(3, 2, 2, 1), spec(1, 0, 0, 0)},
                  .out = {spec(3, 2, 2, 1), spec(2, 0, 1, 0)},
                  .pin = spec(2, 1, 2, 1)};
    x.pin.n[0] = 1;
    x.s = (ts_sharding){&mesh, x.in, x.out, pin_of, &x.pin};
    x.o = (ts_stablehlo_options){.struct_size = sizeof x.o, .devices = 8, .sharding = &x.s};
    return &x;
}

static void written(void **state)
{
    sharded *x = make();
    ts_string t = ts_string_new(1 << 20);
    int constraints = 0;
    (void)state;
    OK(ts__stablehlo_write(x->g, &x->o, &t, &err));
    HAS(t.data, "module @global {\n  sdy.mesh @mesh = <[\"fsdp\"=2, \"tensor0\"=2, \"tensor1\"=2]>\n  func.func");
    HAS(t.data, "%arg0: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{\"fsdp\"}, {}]>} loc(\"x\")");
    HAS(t.data, "%arg1: tensor<3x16x16xf32> {tf.aliasing_output = 0 : i32, sdy.sharding = "
                "#sdy.sharding<@mesh, [{}, {}, {\"tensor0\", \"tensor1\"}]>} loc(\"w\")");
    HAS(t.data, "%arg2: tensor<16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>}");
    HAS(t.data, "tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{\"fsdp\"}, {}]>} // \"y\"");
    for (const char *p = t.data; (p = strstr(p, "sdy.sharding_constraint %")); p++, constraints++)
        HAS(p, " <@mesh, [{\"fsdp\"}, {\"tensor0\", \"tensor1\"}]> : tensor<8x16xf32> loc(");
    assert_int_equal(constraints, 2); /* of the lowered norm, and in the loop */
    ts_string_free(&t);
    x->s.pin = NULL;
    OK(ts__stablehlo_write(x->g, &x->o, &t, &err));
    assert_null(strstr(t.data, "sdy.sharding_constraint"));
    ts_string_free(&t);
    ts_graph_free(x->g);
}

static void refused(sharded *x, ts_status code, const char *words)
{
    ts_string t = ts_string_new(1 << 20);
    ts_error err = {0};
    assert_int_equal(ts__stablehlo_write(x->g, &x->o, &t, &err), code);
    if (!strstr(err.msg, words)) fail_msg("%s: expected \"%s\"", err.msg, words);
    ts_string_free(&t);
    ts_graph_free(x->g);
}

static void refusals(void **state)
{
    (void)state;
    sharded *x = make();
    x->o.devices = 4;
    refused(x, TS_FAILED_PRECONDITION, "over a mesh of 8 devices and would run on 4");
    x = make();
    x->g->n_axis = 1;
    x->g->axis[0].name = "fsdp";
    x->g->axis[0].size = 8;
    refused(x, TS_FAILED_PRECONDITION, "is partitioned already");
    x = make();
    x->in[0].rank = 1;
    refused(x, TS_INVALID_ARGUMENT, "input x has rank 1; expected rank 2");
    x = make();
    x->out[1].partial = 1;
    refused(x, TS_INVALID_ARGUMENT, "output y has rank 2 and is partial");
    x = make();
    x->in[0].axis[0][0] = 3;
    refused(x, TS_INVALID_ARGUMENT, "names axis 3");
    x = make();
    x->in[1] = spec(3, 0, 1, 0);
    refused(x, TS_INVALID_ARGUMENT, "cuts dimension 0 of 3 into 2 pieces");
    x = make();
    x->in[1] = spec(3, 1, 2, 1);
    refused(x, TS_INVALID_ARGUMENT, "output w takes the buffer of input w and is sharded otherwise");
    x = make();
    x->pin.partial = 2;
    refused(x, TS_INVALID_ARGUMENT, "a pinned value of global has rank 2 and is partial");
}

static void memory_out(void **state)
{
    bool passed = false;
    (void)state;
    sharded *x = make();
    for (uint64_t n = 1; !passed && n < 5000; n++) {
        ts_string t = ts_string_new(1 << 20);
        ts_error err = {0};
        ts_alloc_fail_at(n);
        ts_status status = ts__stablehlo_write(x->g, &x->o, &t, &err);
        ts_alloc_fail_at(0);
        passed = status == TS_OK;
        if (!passed) assert_int_equal(status, TS_RESOURCE_EXHAUSTED);
        ts_string_free(&t);
    }
    assert_true(passed);
    ts_graph_free(x->g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(written), cmocka_unit_test(refusals),
                                       cmocka_unit_test(memory_out)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
