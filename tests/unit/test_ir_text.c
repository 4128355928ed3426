/* test_ir_text.c – the text form: exact round trips, a golden text, every refusal, no crash on
 * garbage. */
#include "unit/ir_help.h"

static const char golden[] =
    "graph \"g \\\"1\\\"\\x0a\" mesh(\"odd axis\"=2, fsdp=4) {\n"
    "  in %0 \"tokens\" i32[batch:2,3] pin=[batch,-]\n"
    "  in %1 \"table\" f32[\"odd name\":7,embed:4]\n"
    "  in %2 \"w\" f32[layers:5,embed:4]\n"
    "  %3 = take(%1, %0) no_grad_row=-1 : f32[batch:2,3,embed:4] pin=[batch,\"odd pin\",-] "
    "@\"tiny.c\":12 scope=\"embed\"\n"
    "  %4 = constant() value=-inf dtype=f32 shape=[] : f32[]\n"
    "  %5 = constant() value=nan dtype=bf16 shape=[a:0] : bf16[a:0]\n"
    "  %6 = constant() value=0.1 dtype=f32 shape=[] : f32[]\n"
    "  %7 = compare(%4, %6) dir=le : pred[]\n"
    "  %8 = all_gather(%0) axis=\"fsdp\" n=4 dim=1 dim2=0 shift=0 reduce=sum : i32[batch:2,12]\n"
    "  %9, %10, %11 = repeat(%3, %2, %6) n=5 reverse=true n_carry=1 n_xs=1 n_consts=1 n_stack=1 "
    "remat=1 : "
    "f32[batch:2,3,embed:4], f32[layers:5,embed:4], f32[] {\n"
    "    arg %12 f32[batch:2,3,embed:4]\n"
    "    arg %13 f32[embed:4]\n"
    "    arg %14 f32[] pin=[]\n"
    "    %15 = broadcast(%13) shape=[batch:2,3,embed:4] map=[2] : f32[batch:2,3,embed:4]\n"
    "    %16 = mul(%12, %15) : f32[batch:2,3,embed:4] scope=\"\" backward primal=%3 like=[2,-1,0]\n"
    "    yield %16, %13, %14\n"
    "  }\n"
    "  out \"h\" %9\n"
    "  out \"new w\" %10 replaces=%2\n"
    "  param \"layers.{}.w\" %2 first=0 step=1 count=5 file=[4] init=0.02\n"
    "  param \"table\" %1 first=0 step=0 count=0 file=[7,4] init=-1\n"
    "}\n";

static void test_golden(void **state)
{
    (void)state;
    ts_graph *g;
    OK(ts_graph_parse(golden, sizeof golden - 1, &g, &err));
    char *text = text_of(g);
    assert_string_equal(text, golden);
    ts_free(text);
    assert_string_equal(g->name, "g \"1\"\n");
    assert_int_equal(g->n_axis, 2);
    assert_string_equal(g->axis[0].name, "odd axis");
    assert_int_equal(g->axis[1].size, 4);
    const ts_node *take = find_op(g->top, TS_OP_take), *mul = find_op(g->top, TS_OP_mul);
    assert_string_equal(take->loc.file, "tiny.c");
    assert_int_equal(take->loc.line, 12);
    assert_string_equal(take->scope, "embed");
    assert_ptr_equal(mul->primal, take);
    assert_true(mul->backward && !take->backward);
    assert_true(mul->like && !take->like && mul->like[0] == 2 && mul->like[1] == -1);
    assert_string_equal(take->out[0]->pin->name[1], "odd pin");
    assert_null(take->out[0]->pin->name[2]);
    assert_null(mul->out[0]->pin);
    assert_true(isinf(find_op(g->top, TS_OP_constant)->attr.constant.value));
    assert_int_equal(g->n_param, 2);
    assert_int_equal(g->output[1].replaces, 2);
    assert_string_equal(g->top->arg[1]->type.dim[0].name, "odd name");
    ts_graph_free(g);
}

/* Spaces, comments and numbers in any order are read; printing makes them canonical. */
static void test_loose(void **state)
{
    (void)state;
    static const char loose[] =
        "# a comment\ngraph\"x\"{in %7\"a\"f32[ 2 , b : 3 ]%3=neg(%7):f32[2,b:3]out\"o\"%3}# end";
    ts_graph *g;
    OK(ts_graph_parse(loose, sizeof loose - 1, &g, &err));
    char *text = text_of(g);
    assert_string_equal(text, "graph \"x\" {\n  in %0 \"a\" f32[2,b:3]\n  %1 = neg(%0) : "
                              "f32[2,b:3]\n  out \"o\" %1\n}\n");
    ts_free(text);
    ts_graph_free(g);
}

static void test_round_trips(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++) {
        ts_graph *g = every_composite(i & 1 ? TS_BF16 : TS_F32, i & 2 ? 5 : 0, i & 4 ? 30 : 0,
                                      i & 1),
                 *again;
        again = round_trip(g, __LINE__);
        ts_graph_free(again);
        OK(ts_graph_lower(g, NULL, &err));
        again = round_trip(g, __LINE__);
        assert_int_equal(count_nodes(again->top), count_nodes(g->top));
        ts_graph_free(again);
        ts_graph_free(g);
    }
}

/* A copy prints as its original, which may be gone by then, and shares no string with it. */
static void test_clone(void **state)
{
    (void)state;
    ts_graph *g, *copy;
    OK(ts_graph_parse(golden, sizeof golden - 1, &g, &err));
    OK(ts_graph_clone(g, &copy, &err));
    OK(ts_graph_verify(copy, &err));
    const ts_node *n = find_op(copy->top, TS_OP_take), *m = find_op(g->top, TS_OP_take);
    assert_true(n->scope != m->scope && n->loc.file != m->loc.file);
    assert_true(copy->axis[0].name != g->axis[0].name);
    assert_true(n->out[0]->pin->name[1] != m->out[0]->pin->name[1]);
    assert_true(find_op(copy->top, TS_OP_mul)->like != find_op(g->top, TS_OP_mul)->like);
    ts_graph_free(g);
    char *text = text_of(copy);
    assert_string_equal(text, golden);
    ts_free(text);
    ts_graph_free(copy);
    for (int i = 0; i < 4; i++) {
        g = every_composite(i & 1 ? TS_BF16 : TS_F32, 0, 0, i & 1);
        if (i & 2) OK(ts_graph_lower(g, NULL, &err));
        char *first = text_of(g);
        OK(ts_graph_clone(g, &copy, &err));
        ts_graph_free(g);
        OK(ts_graph_lower(copy, NULL, &err)); /* a pass over the copy finds all it needs */
        ts_graph_free(copy);
        OK(ts_graph_parse(first, strlen(first), &g, &err));
        OK(ts_graph_clone(g, &copy, &err));
        text = text_of(copy);
        assert_string_equal(text, first);
        ts_free(text);
        ts_free(first);
        ts_graph_free(copy);
        ts_graph_free(g);
    }
}

static void test_clone_memory_out(void **state)
{
    (void)state;
    bool passed = false;
    ts_graph *g;
    OK(ts_graph_parse(golden, sizeof golden - 1, &g, &err));
    for (uint64_t n = 1; !passed && n < 1000; n++) {
        ts_graph *copy = g;
        ts_error err = {0};
        ts_alloc_fail_at(n);
        ts_status status = ts_graph_clone(g, &copy, &err);
        ts_alloc_fail_at(0);
        passed = status == TS_OK;
        if (passed) ts_graph_free(copy);
        else assert_true(status == TS_RESOURCE_EXHAUSTED && !copy);
    }
    ts_graph_free(g);
    assert_true(passed);
}

/* Doubles survive exactly. */
static void test_reals(void **state)
{
    (void)state;
    static const double values[] = {0,
                                    -0.0,
                                    1,
                                    1e-8,
                                    0.1,
                                    1.0 / 3,
                                    5e-324,
                                    1.7976931348623157e308,
                                    0x1.fffffffffffffp-3,
                                    INFINITY,
                                    -INFINITY,
                                    123456789012345678.0};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        ts_builder *b = ts_builder_new("r");
        ts_output(b, "o", ts_scalar(b, values[i], TS_F32), NULL);
        ts_graph *g = finish(b), *again = round_trip(g, __LINE__);
        double v = find_op(again->top, TS_OP_constant)->attr.constant.value;
        assert_memory_equal(&v, &values[i], sizeof v);
        ts_graph_free(again);
        ts_graph_free(g);
    }
}

typedef struct refusal {
    const char *text, *says;
} refusal;
#define G "graph \"g\" {\n"
#define X G "in %0 \"x\" f32[2]\n"
static const refusal refusals[] = {
    {"", "1:1: found the end; expected graph"},
    {"graph g", "expected '\"'"},
    {"graph \"g", "a string is not closed"},
    {"graph \"g\\q\" {}", "an escape is none of"},
    {"graph \"g\\x00\" {}", "not 00"},
    {"graph \"g\" {} x", "text follows the graph"},
    {G, "expected a word"},
    {"graph \"g\" mesh {}", "expected '('"},
    {"graph \"g\" mesh() {}", "expected a word"},
    {"graph \"g\" mesh(a) {}", "expected '='"},
    {"graph \"g\" mesh(a=2,) {}", "expected a word"},
    {"graph \"g\" mesh(a=2 {}", "expected ')'"},
    {"graph \"g\" mesh(a=0) {}", "axis a of its mesh has 0 devices"},
    {"graph \"g\" mesh(a=2, a=2) {}", "two axes of its mesh are named a"},
    {"graph \"g\" mesh(a=1024, b=1025) {}", "at most 2^20"},
    {"graph \"g\" mesh(a=1, b=1, c=1, d=1, e=1, f=1, g=1, h=1, i=1) {}", "more than 8 axes"},
    {"graph \"g\" mesh(a=2) {\nin %0 \"x\" f32[2]\n%1 = all_reduce(%0) axis=\"a\" n=4 dim=0 dim2=0 "
     "shift=0 reduce=sum : f32[2] }",
     "it runs over 4 devices of axis a, which has 2"},
    {G "in %0 \"x\" f64[2] }", "2:14: found 'f64'; expected a dtype"},
    {G "in %0 \"x\" f32[-2] }", "found -2; expected 0 to"},
    {G "in %0 \"x\" f32[1,1,1,1,1,1,1] }", "more than 6 dimensions"},
    {G "in %0 \"x\" f32[99999999999999999999] }", "expected an integer of 64 bits"},
    {G "in %0 \"x\" f32[281474976710657] }", "more than 2^48"},
    {G "in %99999999 \"x\" f32[2] }", "found 99999999"},
    {G "in %9999 \"x\" f32[2] }", "beyond what the text can hold"},
    {X "in %0 \"y\" f32[2] }", "%0 is defined twice"},
    {X "in %1 \"x\" f32[2] }", "two inputs are named x"},
    {X "%1 = frobnicate(%0) : f32[2] }", "there is no operation 'frobnicate'"},
    {X "%1 = neg(%2) : f32[2] }", "%2 is not defined here"},
    {X "%1 = neg(%1) : f32[2] }", "%1 is not defined here"},
    {X "%1 = neg() : f32[2] }", "found 0 operands; it takes 1"},
    {X "%1 = neg(%0) : f32[3] }", "stated as f32[3]; its operands make it f32[2]"},
    {X "%1 = neg(%0) }", "1 are named and 0 have a type"},
    {X "%1, %2 = neg(%0) : f32[2] }", "2 are named and 1 have a type"},
    {X "neg(%0) : f32[2] }", "0 are named and 1 have a type"},
    {X "%1 = neg(%0) : f32[2] backward primal=%0 }", "primal=%0 is no node's result"},
    {X "%1 = neg(%0) : f32[2] backward like=[0,0] }", "there is no operation 'like'"},
    {X "%1 = neg(%0) : f32[2] %2 = neg(%1) : f32[2] primal=%1 like=[0] }",
     "like has 1 places; neg has 1 operands and 1 results"},
    {X "%1 = neg(%0) : f32[2] %2 = neg(%1) : f32[2] primal=%1 like=[0,2] }",
     "its value 1 is like place 2 of a primal of 2"},
    {X "%1 = neg(%0) : f32[2] %2 = neg(%1) : f32[2] primal=%1 like=[-2,0] }", "expected -1 to 127"},
    {X "%1 = barrier(%0) : f32[2] %2 = neg(%1) : f32[2] primal=%1 like=[0,0] }",
     "a repeat or barrier is like nothing"},
    {X "%1 = neg(%0) : f32[2] pin=[] }", "expected a word"},
    {X "%1 = neg(%0) : f32[2] pin=[a,-] }", "expected ']'"},
    {X "%1 = slice(%0) axis=0 start=1 : f32[2] }", "expected limit"},
    {X "%1 = slice(%0) axis=0 start=1 limit=3 : f32[2] }", "0 ≤ start ≤ limit ≤ 2"},
    {X "%1 = compare(%0, %0) dir=up : pred[2] }", "'up' is no dir"},
    {X "%1 = reduce_sum(%0) axes=[0,0,0,0,0,0,0] : f32[] }", "more than 6 integers"},
    {X "%1 = repeat(%0) n=1 reverse=maybe n_carry=1 n_xs=0 n_consts=0 n_stack=0 remat=0 : f32[2] { "
       "yield } }",
     "expected false"},
    {X "%1 = repeat(%0) n=1 reverse=true n_carry=1 n_xs=0 n_consts=0 n_stack=0 remat=0 : f32[2] { "
       "yield } }",
     "its region has 0 arguments"},
    {X "%1 = repeat(%0) n=1 reverse=true n_carry=1 n_xs=0 n_consts=0 n_stack=0 remat=0 : f32[2] { "
       "arg %2 f32[2] yield %0 }}",
     "%0 belongs to another region"},
    {X "%1 = repeat(%0) n=1 reverse=true n_carry=1 n_xs=0 n_consts=0 n_stack=0 remat=0 : f32[2]",
     "expected '{'"},
    {X "out \"o\" %0 out \"o\" %0 }", "two outputs are named o"},
    {X "in %1 \"y\" f32[3] out \"o\" %0 replaces=%1 }", "they must be equal"},
    {X "%1 = neg(%0) : f32[2] out \"o\" %0 replaces=%1 }", "replaces what is no input"},
    {X "param \"p\" %0 first=0 step=0 count=0 file=[3] init=0 }", "has 3 elements in files"},
    {X "param \"p\" %0 first=-1 step=0 count=0 file=[2] init=0 }", "found -1; expected 0 to"},
};

static void test_refusals(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        ts_graph *g = (ts_graph *)&g;
        ts_error err = {0};
        ts_status status = ts_graph_parse(refusals[i].text, strlen(refusals[i].text), &g, &err);
        if (status != TS_DATA_LOSS || !strstr(err.msg, refusals[i].says))
            fail_msg("%s\nexpected '%s', found %s '%s'", refusals[i].text, refusals[i].says,
                     ts_status_name(status), err.msg);
        assert_null(g);
    }
}

/* 17 repeats inside each other. */
static void test_depth(void **state)
{
    (void)state;
    ts_string s = ts_string_new(1 << 20);
    ts_string_add(&s, G);
    for (int i = 0; i < 100000 / 70; i++)
        ts_string_add(&s,
                      "repeat() n=1 reverse=false n_carry=0 n_xs=0 n_consts=0 n_stack=0 remat=0 {");
    ts_graph *g;
    ts_error err = {0};
    assert_int_equal(ts_graph_parse(s.data, s.length, &g, &err), TS_DATA_LOSS);
    assert_non_null(strstr(err.msg, "nested more than 16 deep"));
    ts_string_free(&s);
}

/* Every prefix, and the text with each byte changed, parses or is refused; what parses,
 * round-trips. */
static void test_garbage(void **state)
{
    (void)state;
    static const char bytes[] = {0, '"', '%', '{', '}', '-', '9', '[', '\xff'};
    char text[sizeof golden];
    ts_graph *g;
    for (size_t n = 0; n < sizeof golden - 2; n++) {
        char *cut = ts_alloc(n); /* exactly as long, so that a sanitizer sees one byte too many */
        ts_error err = {0};
        memcpy(cut, golden, n);
        assert_int_equal(ts_graph_parse(cut, n, &g, &err), TS_DATA_LOSS);
        ts_free(cut);
    }
    for (size_t i = 0; i < sizeof golden - 1; i++)
        for (size_t k = 0; k < sizeof bytes; k++) {
            ts_error err = {0};
            memcpy(text, golden, sizeof text);
            text[i] = bytes[k];
            ts_status status = ts_graph_parse(text, sizeof golden - 1, &g, &err);
            assert_true(status == TS_OK || status == TS_DATA_LOSS);
            if (status != TS_OK) continue;
            ts_graph_free(round_trip(g, __LINE__));
            ts_graph_free(g);
        }
}

static void test_memory_out(void **state)
{
    (void)state;
    bool passed = false;
    for (uint64_t n = 1; !passed && n < 1000; n++) {
        ts_graph *g;
        ts_error err = {0};
        ts_alloc_fail_at(n);
        ts_status status = ts_graph_parse(golden, sizeof golden - 1, &g, &err);
        ts_alloc_fail_at(0);
        passed = status == TS_OK;
        if (passed) ts_graph_free(g);
        else assert_int_equal(status, TS_RESOURCE_EXHAUSTED);
    }
    assert_true(passed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),      cmocka_unit_test(test_loose),
        cmocka_unit_test(test_round_trips), cmocka_unit_test(test_reals),
        cmocka_unit_test(test_refusals),    cmocka_unit_test(test_depth),
        cmocka_unit_test(test_garbage),     cmocka_unit_test(test_memory_out),
        cmocka_unit_test(test_clone),       cmocka_unit_test(test_clone_memory_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
