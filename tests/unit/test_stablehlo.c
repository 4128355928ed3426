/* test_stablehlo.c – the text of programs: what stands in it, what does not, and what is refused with which words.
 *
 * That plugins take the text and compute the right values is shown by the op table and by test_xla_collectives.c;
 * here is what no number shows: loops or none, donation, precision, groups, locations, names.
 */
#include "unit/ir_help.h"
#include "xla/stablehlo.h"

/* The program of g; the caller frees it with ts_free. */
static char *written(const ts_graph *g, ts_precision precision, bool carry)
{
    const ts_stablehlo_options o = {.precision = precision, .carry_graph = carry};
    ts_string s = ts_string_new(64 << 20);
    OK(ts__stablehlo_write(g, &o, &s, &err));
    return s.data;
}

static ts_graph *parsed(const char *text)
{
    ts_graph *g = NULL;
    OK(ts_graph_parse(text, strlen(text), &g, &err));
    return g;
}

static char *program(const char *text)
{
    ts_graph *g = parsed(text);
    char *s = written(g, TS_PRECISION_HIGHEST, false);
    ts_graph_free(g);
    return s;
}

static int count(const char *text, const char *word)
{
    int n = 0;
    for (const char *s = text; (s = strstr(s, word)); s += strlen(word)) n++;
    return n;
}

#define HAS(text, word)                                                                            \
    do {                                                                                           \
        if (!strstr(text, word)) fail_msg("line %d: no '%s' in\n%s", __LINE__, word, text);        \
    } while (0)
#define LACKS(text, word)                                                                          \
    do {                                                                                           \
        if (strstr(text, word)) fail_msg("line %d: '%s' in\n%s", __LINE__, word, text);            \
    } while (0)

static const char train[] =
    "graph \"step 1\" {\n"
    "  in %0 \"w\" f32[2,3]\n"
    "  in %1 \"x \\\"q\\\"\" f32[3]\n"
    "  in %2 \"v\" f32[2,3]\n"
    "  %3 = broadcast(%1) shape=[2,3] map=[1] : f32[2,3] @\"src/models/llama.c\":41 "
    "scope=\"layers.3.q_proj\"\n"
    "  %4 = mul(%0, %3) : f32[2,3] @\"src/models/llama.c\":41 scope=\"layers.3.q_proj\" backward\n"
    "  %5 = add(%2, %4) : f32[2,3] scope=\"head\"\n"
    "  %6 = neg(%5) : f32[2,3] @\"odd \\\"name\\\".c\":7\n"
    "  %7 = exp(%6) : f32[2,3]\n"
    "  out \"loss\" %7\n"
    "  out \"new v\" %5 replaces=%2\n"
    "  out \"new w\" %6 replaces=%0\n"
    "}\n";

static void test_whole(void **state)
{
    (void)state;
    static const char want[] =
        "// Tessera graph \"step 1\": 3 inputs, 3 outputs\n"
        "module @step_1 {\n"
        "  func.func public @main(\n"
        "      %arg0: tensor<2x3xf32> {tf.aliasing_output = 2 : i32} loc(\"w\"),\n"
        "      %arg1: tensor<3xf32> loc(\"x \\22q\\22\"),\n"
        "      %arg2: tensor<2x3xf32> {tf.aliasing_output = 1 : i32} loc(\"v\")) -> (\n"
        "      tensor<2x3xf32>, // \"loss\"\n"
        "      tensor<2x3xf32>, // \"new v\"\n"
        "      tensor<2x3xf32> // \"new w\"\n"
        "  ) {\n"
        "\n"
        "    // layers.3.q_proj\n"
        "    %0 = stablehlo.broadcast_in_dim %arg1, dims = [1] : (tensor<3xf32>) -> tensor<2x3xf32> "
        "loc(#loc1)\n"
        "    %1 = stablehlo.multiply %arg0, %0 : tensor<2x3xf32> loc(#loc2)\n"
        "\n"
        "    // head\n"
        "    %2 = stablehlo.add %arg2, %1 : tensor<2x3xf32> loc(#loc3)\n"
        "    %3 = stablehlo.negate %2 : tensor<2x3xf32> loc(#loc4)\n"
        "    %4 = stablehlo.exponential %3 : tensor<2x3xf32> loc(#loc5)\n"
        "    return %4, %2, %3 : tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>\n"
        "  }\n"
        "}\n"
        "#loc1 = loc(\"q_proj\"(\"layers.3.q_proj (llama.c)\":41:0))\n"
        "#loc2 = loc(\"q_proj backward\"(\"layers.3.q_proj backward (llama.c)\":41:0))\n"
        "#loc3 = loc(\"head\"(\"head\":0:0))\n"
        "#loc4 = loc(\"neg\"(\"neg (odd \\22name\\22.c)\":7:0))\n"
        "#loc5 = loc(\"exp\"(\"exp\":0:0))\n";
    char *text = program(train);
    assert_string_equal(text, want);
    ts_free(text);
}

/* The original's text follows, line by line; the original is as it was. */
static void test_carried(void **state)
{
    (void)state;
    ts_graph *g = parsed(train);
    char *text = written(g, TS_PRECISION_HIGHEST, true), *own = text_of(g);
    const char *mark = strstr(text, "\n" TS_STABLEHLO_GRAPH_MARK);
    assert_non_null(mark);
    ts_string s = ts_string_new(1 << 20);
    for (const char *line = mark + 1 + strlen(TS_STABLEHLO_GRAPH_MARK); *line;) {
        size_t n = strcspn(line, "\n") + 1;
        assert_memory_equal(line, "// ", 3);
        ts_string_add_bytes(&s, line + 3, n - 3);
        line += n;
    }
    assert_string_equal(s.data, own);
    ts_string_free(&s);
    ts_free(text);
    ts_free(own);
    ts_graph_free(g);
}

#define REPEAT(n)                                                                                  \
    "graph \"r\" { in %0 \"h\" f32[2] in %1 \"xs\" f32[" #n ",2] in %2 \"c\" f32[2] "              \
    "%3, %4, %5 = repeat(%0, %1, %2) n=" #n " reverse=REVERSE n_carry=1 n_xs=1 n_consts=1 "        \
    "n_stack=1 remat=0 : f32[2], f32[" #n ",2], f32[2] { arg %6 f32[2] arg %7 f32[2] arg %8 f32[2] " \
    "%9 = mul(%6, %7) : f32[2] %10 = add(%9, %8) : f32[2] yield %10, %9, %7 } "                    \
    "out \"h\" %3 out \"ys\" %4 out \"sum\" %5 }"

static char *repeat(const char *text, const char *reverse)
{
    ts_string s = ts_string_new(1 << 20);
    const char *at = strstr(text, "REVERSE");
    ts_string_add_bytes(&s, text, (size_t)(at - text));
    ts_string_printf(&s, "%s%s", reverse, at + strlen("REVERSE"));
    char *out = program(s.data);
    ts_string_free(&s);
    return out;
}

static void test_repeat(void **state)
{
    (void)state;
    char *loop = repeat(REPEAT(5), "false"), *back = repeat(REPEAT(5), "true"),
         *once = repeat(REPEAT(1), "false");
    assert_int_equal(count(loop, "stablehlo.while("), 1);
    assert_int_equal(count(loop, "dynamic_slice "), 1);
    assert_int_equal(count(loop, "dynamic_update_slice"), 1);
    HAS(loop, "dense<5> : tensor<i32>");
    HAS(loop, " : tensor<i32>, tensor<2xf32>, tensor<5x2xf32>, tensor<2xf32>, tensor<5x2xf32>, "
              "tensor<2xf32> cond {");
    LACKS(loop, "subtract");
    HAS(back, "dense<4> : tensor<i32>");
    assert_int_equal(count(back, "stablehlo.subtract"), 1);
    LACKS(once, "while");
    LACKS(once, "dynamic");
    assert_int_equal(count(once, "stablehlo.multiply"), 1);
    assert_int_equal(count(once, "stablehlo.reshape"), 2); /* the slice, and the stack of one */
    ts_free(loop);
    ts_free(back);
    ts_free(once);
}

static void test_precision(void **state)
{
    (void)state;
    static const struct {
        ts_precision precision;
        const char *says;
    } rows[] = {{TS_PRECISION_HIGHEST, "[HIGHEST, HIGHEST]"}, {TS_PRECISION_HIGH, "[HIGH, HIGH]"}};
    static const char *const words[] = {"default", "highest", "high", "bfloat16"};
    static const ts_precision means[] = {TS_PRECISION_HIGHEST, TS_PRECISION_HIGHEST,
                                         TS_PRECISION_HIGH, TS_PRECISION_DEFAULT};
    ts_precision p;
    ts_graph *g = parsed(
        "graph \"d\" { in %0 \"x\" f32[2,3] in %1 \"y\" f32[2,5,3] in %2 \"z\" bf16[4,3] "
        "%3 = dot(%0, %1) x_batch=[0] y_batch=[0] x_contract=[1] y_contract=[2] dtype=bf16 : bf16[2,5] "
        "%4 = dot(%2, %2) x_batch=[] y_batch=[] x_contract=[1] y_contract=[1] dtype=f32 : f32[4,4] "
        "out \"a\" %3 out \"b\" %4 }");
    for (int i = 0; i < 2; i++) {
        char *text = written(g, rows[i].precision, false);
        assert_int_equal(count(text, "precision = "), 1); /* of the bf16 product none */
        HAS(text, "batching_dims = [0] x [0], contracting_dims = [1] x [2], precision = ");
        HAS(text, rows[i].says);
        HAS(text, "contracting_dims = [1] x [1] : (tensor<4x3xbf16>, tensor<4x3xbf16>) -> "
                  "tensor<4x4xf32>");
        ts_free(text);
    }
    char *text = written(g, TS_PRECISION_DEFAULT, false);
    LACKS(text, "precision");
    ts_free(text);
    ts_graph_free(g);
    for (int i = 0; i < 4; i++) assert_true(ts__precision_parse(words[i], &p) && p == means[i]);
    assert_false(ts__precision_parse("float32", &p));
}

/* ---- devices --------------------------------------------------------------------------------- */

static const char meshed[] =
    "graph \"m\" mesh(a=2, b=4, one=1) { in %0 \"x\" f32[4,8] "
    "%1 = all_reduce(%0) axis=\"AXIS\" n=N dim=0 dim2=0 shift=0 reduce=max : f32[4,8] @\"m.c\":9 "
    "scope=\"layers.0\" "
    "%2 = axis_index() axis=\"AXIS\" n=N dim=0 dim2=0 shift=0 reduce=sum : i32[] "
    "%3 = collective_permute(%0) axis=\"AXIS\" n=N dim=0 dim2=0 shift=1 reduce=sum : f32[4,8] "
    "out \"y\" %1 out \"i\" %2 out \"z\" %3 }";

static char *replaced(const char *text, const char *axis, int n)
{
    ts_string s = ts_string_new(1 << 20);
    for (const char *c = text; *c; c++) {
        if (strncmp(c, "AXIS", 4) == 0) {
            ts_string_add(&s, axis);
            c += 3;
        } else if (strncmp(c, "n=N", 3) == 0) {
            ts_string_printf(&s, "n=%d", n);
            c += 2;
        } else {
            ts_string_add_bytes(&s, c, 1);
        }
    }
    return s.data;
}

static char *over(const char *axis, int n)
{
    char *graph = replaced(meshed, axis, n), *text = program(graph);
    ts_free(graph);
    return text;
}

static void test_groups(void **state)
{
    (void)state;
    char *a = over("a", 2), *b = over("b", 4), *one = over("one", 1);
    HAS(a, "mesh \"a\" = 2, \"b\" = 4, \"one\" = 1");
    HAS(a, "replica_groups = dense<[[0, 4], [1, 5], [2, 6], [3, 7]]> : tensor<4x2xi64>");
    HAS(a, "dense<[[0, 4], [4, 0], [1, 5], [5, 1], [2, 6], [6, 2], [3, 7], [7, 3]]> : tensor<8x2xi64>");
    HAS(a, "stablehlo.divide");
    LACKS(a, "stablehlo.remainder");
    HAS(a, "stablehlo.maximum %x, %y : tensor<f32>");
    HAS(b, "replica_groups = dense<[[0, 1, 2, 3], [4, 5, 6, 7]]> : tensor<2x4xi64>");
    HAS(b, "[[0, 1], [1, 2], [2, 3], [3, 0], [4, 5], [5, 6], [6, 7], [7, 4]]");
    HAS(b, "stablehlo.remainder");
    LACKS(b, "stablehlo.divide");
    LACKS(a, "channel");
    LACKS(a, "use_global_device_ids");
    LACKS(one, "replica"); /* one device: nothing to send */
    ts_free(a);
    ts_free(b);
    ts_free(one);
}

static void refused(ts_graph *g, ts_status status, const char *says)
{
    const ts_stablehlo_options o = {.precision = TS_PRECISION_HIGHEST};
    ts_string s = ts_string_new(1 << 20);
    ts_error err = {0};
    ts_status got = ts__stablehlo_write(g, &o, &s, &err);
    if (got != status || !strstr(err.msg, says))
        fail_msg("expected %s '%s', found %s '%s'", ts_status_name(status), says,
                 ts_status_name(got), err.msg);
    ts_string_free(&s);
    ts_graph_free(g);
}

static void test_refusals(void **state)
{
    (void)state;
    char *graph = replaced(meshed, "b", 4);
    ts_graph *g = parsed(graph);
    g->n_axis = 0;
    refused(g, TS_FAILED_PRECONDITION,
            "all_reduce in layers.0 at m.c:9: it runs over axis \"b\" of 4 devices, but the graph has no "
            "mesh with such an axis");
    g = parsed(graph);
    g->axis[1].name = "c";
    refused(g, TS_INVALID_ARGUMENT,
            "all_reduce in layers.0 at m.c:9: it runs over axis b, which the graph's mesh does not have");
    ts_free(graph);
    refused(parsed("graph \"l\" { in %0 \"x\" f32[4294967296] %1 = repeat(%0) n=4294967296 "
                   "reverse=false n_carry=0 n_xs=1 n_consts=0 n_stack=0 remat=0 : f32[] { arg %2 f32[] "
                   "yield %2 } out \"s\" %1 }"),
            TS_UNIMPLEMENTED, "4294967296 iterations; a loop's counter is i32");
}

/* ---- corners --------------------------------------------------------------------------------- */

static void test_constants(void **state)
{
    (void)state;
    static const struct {
        const char *value, *dtype, *says;
    } rows[] = {
        {"0.1", "f32", "dense<1.0e-01> : tensor<f32>"},
        {"1", "f32", "dense<1.0> :"},          {"-0", "f32", "dense<-0.0> :"},
        {"3e38", "f32", "dense<3.0e+38> :"},   {"nan", "f32", "dense<0x7FC00000> :"},
        {"-inf", "f32", "dense<0xFF800000> :"}, {"inf", "bf16", "dense<0x7F80> :"},
        {"3.1415926", "bf16", "dense<3.140625e+00> :"}, {"1e39", "f32", "dense<0x7F800000> :"},
        {"-1", "u32", "dense<4294967295> : tensor<ui32>"}, {"4294967295", "i32", "dense<-1> :"},
        {"2", "pred", "dense<true> : tensor<i1>"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char graph[300];
        snprintf(graph, sizeof graph,
                 "graph \"c\" { %%0 = constant() value=%s dtype=%s shape=[] : %s[] out \"c\" %%0 }",
                 rows[i].value, rows[i].dtype, rows[i].dtype);
        char *text = program(graph);
        HAS(text, rows[i].says);
        ts_free(text);
    }
}

/* A guard falls away only where the constant's bits say so: 0.5 is the integer 0. */
static void test_guards(void **state)
{
    (void)state;
    static const struct {
        const char *op, *value, *dtype;
        bool guarded;
    } rows[] = {{"div", "7", "i32", false},  {"div", "0.5", "i32", true}, {"div", "nan", "i32", true},
                {"div", "-1", "i32", true},  {"div", "4294967295", "i32", true},
                {"shift_left", "31", "u32", false}, {"shift_left", "32", "u32", true},
                {"shift_left", "-1", "u32", true}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char graph[400];
        snprintf(graph, sizeof graph,
                 "graph \"c\" { in %%0 \"x\" %s[2] %%1 = constant() value=%s dtype=%s shape=[2] : %s[2] "
                 "%%2 = %s(%%0, %%1) : %s[2] out \"y\" %%2 }",
                 rows[i].dtype, rows[i].value, rows[i].dtype, rows[i].dtype, rows[i].op, rows[i].dtype);
        char *text = program(graph);
        if ((count(text, "stablehlo.select") > 0) != rows[i].guarded)
            fail_msg("%s by %s:\n%s", rows[i].op, rows[i].value, text);
        ts_free(text);
    }
}

/* A program of every composite has none left, and is the same each time. */
static void test_composites(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        ts_graph *g = every_composite(i ? TS_BF16 : TS_F32, 5, 30, true);
        char *before = text_of(g), *text = written(g, TS_PRECISION_HIGHEST, false),
             *again = written(g, TS_PRECISION_HIGHEST, false), *after = text_of(g);
        assert_string_equal(text, again);
        assert_string_equal(before, after);
        LACKS(text, "custom_call");
        HAS(text, "stablehlo.while(");
        ts_free(before);
        ts_free(after);
        ts_free(text);
        ts_free(again);
        ts_graph_free(g);
    }
}

static void test_memory_out(void **state)
{
    (void)state;
    const ts_stablehlo_options o = {.precision = TS_PRECISION_HIGHEST, .carry_graph = true};
    char *graph = replaced(meshed, "b", 4);
    bool passed = false;
    for (int which = 0; which < 2; which++, passed = false) {
        ts_graph *g = which ? parsed(graph) : every_composite(TS_BF16, 5, 30, true);
        for (uint64_t n = 1; !passed && n < 20000; n += which ? 1 : 37) {
            ts_string s = ts_string_new(64 << 20);
            ts_error err = {0};
            ts_alloc_fail_at(n);
            ts_status status = ts__stablehlo_write(g, &o, &s, &err);
            ts_alloc_fail_at(0);
            passed = status == TS_OK;
            if (!passed) assert_int_equal(status, TS_RESOURCE_EXHAUSTED);
            ts_string_free(&s);
        }
        assert_true(passed);
        ts_graph_free(g);
    }
    ts_free(graph);
    ts_graph *g = parsed(train);
    ts_string s = ts_string_new(100); /* a text that may not grow */
    ts_error err = {0};
    assert_int_equal(ts__stablehlo_write(g, &o, &s, &err), TS_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(err.msg, "more than 100 bytes"));
    ts_string_free(&s);
    ts_graph_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole),      cmocka_unit_test(test_carried),
        cmocka_unit_test(test_repeat),     cmocka_unit_test(test_precision),
        cmocka_unit_test(test_groups),     cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_constants), cmocka_unit_test(test_guards),  cmocka_unit_test(test_composites),
        cmocka_unit_test(test_memory_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
