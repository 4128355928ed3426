/* test_ir_lower.c – what lowering leaves behind: only primitives, the same results' types, and
 * nodes that know where they come from. That the numbers are the same is tests/op/test_lower.c. */
#include "unit/ir_help.h"

static int composites(const ts_region *r)
{
    int n = 0;
    for (int op = 0; op < TS_OPS; op++)
        if (ts_op_infos[op].kind == TS_COMPOSITE) n += count_op(r, (ts_op)op);
    return n;
}

static void test_every_composite(void **state)
{
    (void)state;
    for (int i = 0; i < 16; i++) {
        ts_graph *g =
            every_composite(i & 1 ? TS_BF16 : TS_F32, i & 2 ? 5 : 0, i & 4 ? 30 : 0, i & 8);
        ts_type before[32];
        int n = g->top->n_result, repeats = count_op(g->top, TS_OP_repeat);
        assert_in_range(n, 1, 32);
        for (int op = 0; op < TS_OPS; op++)
            if (ts_op_infos[op].kind == TS_COMPOSITE && !count_op(g->top, (ts_op)op))
                fail_msg("%s is not in the graph", ts_op_infos[op].name);
        for (int k = 0; k < n; k++) before[k] = g->top->result[k]->type;
        OK(ts_graph_lower(g, NULL, &err));
        OK(ts_graph_verify(g, &err));
        assert_int_equal(composites(g->top), 0);
        for (int k = 0; k < n; k++) assert_true(ts_type_same(&before[k], &g->top->result[k]->type));
        /* Experts are a repeat, forward and backward; so are tokens in chunks, and their rows. */
        assert_int_equal(count_op(g->top, TS_OP_repeat), repeats + 2 + (i & 2 ? 3 : 0));
        ts_graph_free(g);
    }
}

static bool keep_attention(const ts_node *n)
{
    return n->op == TS_OP_attention || n->op == TS_OP_gated;
}

static void test_keep(void **state)
{
    (void)state;
    ts_graph *g = every_composite(TS_F32, 0, 0, true);
    int gated = count_op(g->top, TS_OP_gated);
    OK(ts_graph_lower(g, keep_attention, &err));
    OK(ts_graph_verify(g, &err));
    assert_int_equal(count_op(g->top, TS_OP_attention), 1);
    assert_int_equal(count_op(g->top, TS_OP_gated), gated);
    assert_int_equal(composites(g->top), 1 + gated);
    ts_graph_free(g);
}

/* Lowered nodes take the place, line, scope, half and primal of their composite. */
static void test_origin(void **state)
{
    (void)state;
    ts_builder *b = ts_builder_new("origin");
    ts_value *x = ts_input(b, "x", TS_BF16, TS_DIMS({"a", 2}, {"b", 4}));
    ts_value *w = ts_input(b, "w", TS_F32, TS_DIMS({"b", 4})), *first = ts_exp(b, x);
    ts_scope_push(b, "norm");
    ts_builder_at(b, "model.c", 7);
    b->backward = true;
    b->primal = first->node;
    ts_value *y = ts_rms_norm(b, first, w, 1e-6);
    b->backward = false;
    b->primal = NULL;
    ts_scope_pop(b);
    ts_output(b, "z", ts_neg(b, y), NULL);
    ts_graph *g = finish(b);
    OK(ts_graph_lower(g, NULL, &err));
    OK(ts_graph_verify(g, &err));
    assert_int_equal(g->top->first->op, TS_OP_exp);
    assert_int_equal(g->top->last->op, TS_OP_neg);
    for (const ts_node *n = g->top->first->next; n != g->top->last; n = n->next) {
        assert_string_equal(n->loc.file, "model.c");
        assert_int_equal(n->loc.line, 7);
        assert_string_equal(n->scope, "norm");
        assert_true(n->backward);
        assert_ptr_equal(n->primal, first->node);
    }
    /* The sum is made in f32 and the result is converted back. */
    assert_int_equal(find_op(g->top, TS_OP_reduce_sum)->out[0]->type.dtype, TS_F32);
    assert_int_equal(g->top->result[0]->type.dtype, TS_BF16);
    ts_graph_free(g);
}

/* Logits of all tokens are never one value when chunks divide them. */
static void test_chunks(void **state)
{
    (void)state;
    static const struct {
        int64_t tokens, chunk, widest;
    } cases[] = {{12, 4, 4},  {12, 1, 1},    {12, 12, 12}, {12, 5, 12},
                 {12, 0, 12}, {12, 100, 12}, {0, 4, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ts_builder *b = ts_builder_new("chunks");
        ts_value *x = ts_input(b, "x", TS_F32, TS_DIMS({NULL, cases[i].tokens}, {NULL, 3}));
        ts_value *w = ts_input(b, "w", TS_F32, TS_DIMS({NULL, 7}, {NULL, 3}));
        ts_value *labels = ts_input(b, "labels", TS_I32, TS_DIMS({NULL, cases[i].tokens}));
        ts_output(b, "loss", ts_linear_xent(b, x, w, labels, 0, cases[i].chunk, NULL), NULL);
        ts_graph *g = finish(b);
        OK(ts_graph_lower(g, NULL, &err));
        OK(ts_graph_verify(g, &err));
        const ts_node *logits = find_op(g->top, TS_OP_dot);
        assert_int_equal(logits->out[0]->type.dim[0].size, cases[i].widest);
        ts_graph_free(g);
    }
}

static void test_limits(void **state)
{
    (void)state;
    ts_error err = {0};
    ts_builder *b = ts_builder_new("bits");
    ts_value *key = ts_input(b, "key", TS_U32, TS_DIMS({NULL, 2}));
    ts_output(b, "bits", ts_random_bits(b, key, TS_DIMS({NULL, 3}, {NULL, (int64_t)1 << 31})),
              NULL);
    ts_graph *g = finish(b);
    assert_int_equal(ts_graph_lower(g, NULL, &err), TS_UNIMPLEMENTED);
    assert_non_null(strstr(err.msg, "lowering random_bits: "));
    ts_graph_free(g);
}

static void test_memory_out(void **state)
{
    (void)state;
    int refused = 0;
    for (uint64_t n = 1; n < 40; n++) {
        ts_graph *g = every_composite(TS_BF16, 5, 30, true);
        ts_error err = {0};
        ts_alloc_fail_at(n);
        ts_status status = ts_graph_lower(g, NULL, &err);
        ts_alloc_fail_at(0);
        assert_true(status == TS_OK || status == TS_RESOURCE_EXHAUSTED);
        refused += status != TS_OK;
        ts_graph_free(g);
    }
    assert_true(refused > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_composite), cmocka_unit_test(test_keep),
        cmocka_unit_test(test_origin),          cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_limits),          cmocka_unit_test(test_memory_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
