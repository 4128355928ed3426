/* test_ir_passes.c – what dead code and common-subexpression elimination remove, and what they must
 * not. */
#include "unit/ir_help.h"

static const ts_dim N = {NULL, 4};

static void check(ts_graph *g)
{
    OK(ts_graph_verify(g, &err));
    ts_graph_free(round_trip(g, __LINE__));
    ts_graph_free(g);
}

static void test_dce_nodes(void **state)
{
    (void)state;
    ts_builder *b = ts_builder_new("dce");
    ts_value *x = ts_input(b, "x", TS_F32, TS_DIMS(N)),
             *unused = ts_input(b, "unused", TS_F32, TS_DIMS(N));
    ts_value *kept = ts_exp(b, x), *values, *indices;
    ts_log_e(b, ts_add(b, unused, kept));
    ts_top_k(b, x, 2, &values, &indices);
    ts_output(b, "kept", kept, NULL);
    ts_output(b, "values", values, NULL);
    ts_graph *g = finish(b);
    OK(ts_graph_dce(g, &err));
    assert_int_equal(count_nodes(g->top), 2);
    assert_int_equal(g->top->n_arg, 2); /* inputs are the interface */
    check(g);
}

static void test_dce_barrier(void **state)
{
    (void)state;
    ts_builder *b = ts_builder_new("dce");
    ts_value *x = ts_input(b, "x", TS_F32, TS_DIMS(N)),
             *in[3] = {ts_exp(b, x), ts_neg(b, x), ts_abs(b, x)}, *out[3];
    ts_barrier(b, in, 3, out);
    ts_output(b, "o", out[1], NULL);
    ts_graph *g = finish(b);
    OK(ts_graph_dce(g, &err));
    ts_node *barrier = find_op(g->top, TS_OP_barrier);
    assert_int_equal(barrier->n_in, 1);
    assert_int_equal(barrier->n_out, 1);
    assert_int_equal(barrier->in[0]->node->op, TS_OP_neg);
    assert_int_equal(count_nodes(g->top), 2);
    check(g);
}

/* Carries: 0 used; 1 feeds itself alone; 2 unread at the end but read by 0; 3 read by 1 alone.
 * xs: 0 used, 1 only by a dead y. Consts: c used, d only by a dead y. ys: stack kept, stack dead,
 * sum dead, sum kept. */
static ts_graph *repeat_with_dead_parts(bool keep_all)
{
    ts_builder *b = ts_builder_new("dce");
    ts_value *x = ts_input(b, "x", TS_F32, TS_DIMS(N)), *c = ts_input(b, "c", TS_F32, TS_DIMS(N));
    ts_value *d = ts_input(b, "d", TS_F32, TS_DIMS(N)),
             *s = ts_input(b, "s", TS_F32, TS_DIMS({NULL, 3}, N));
    ts_value *t = ts_input(b, "t", TS_F32, TS_DIMS({NULL, 3}, N));
    ts_value *carry[4] = {x, c, d, ts_exp(b, x)}, *xs[2] = {s, t}, *a[4], *slice[2], *next[4],
             *ys[4], *results[8];
    static const bool accumulate[4] = {false, false, true, true};
    ts_repeat *r = ts_repeat_begin(b, 3, false, carry, 4, xs, 2, a, slice);
    next[0] = ts_add(b, a[0], ts_mul(b, a[2], slice[0]));
    next[1] = ts_add(b, a[1], a[3]);
    next[2] = ts_neg(b, a[2]);
    next[3] = ts_sin(b, a[3]);
    ys[0] = ts_mul(b, a[0], c);
    ys[1] = ts_mul(b, slice[1], d);
    ys[2] = ts_cos(b, slice[1]);
    ys[3] = ts_tanh(b, a[0]);
    ts_repeat_end(b, r, next, ys, accumulate, 4, results);
    ts_output(b, "carry", results[0], NULL);
    ts_output(b, "stack", results[4], NULL);
    ts_output(b, "sum", results[7], NULL);
    for (int i = 0; i < 8 && keep_all; i++)
        if (i != 0 && i != 4 && i != 7) {
            char name[16];
            snprintf(name, sizeof name, "r%d", i);
            ts_output(b, name, results[i], NULL);
        }
    return finish(b);
}

static void test_dce_repeat(void **state)
{
    (void)state;
    ts_graph *g = repeat_with_dead_parts(false);
    OK(ts_graph_dce(g, &err));
    ts_node *r = find_op(g->top, TS_OP_repeat);
    assert_int_equal(r->attr.repeat.n_carry, 2);
    assert_int_equal(r->attr.repeat.n_xs, 1);
    assert_int_equal(r->attr.repeat.n_consts, 1);
    assert_int_equal(r->attr.repeat.n_stack, 1);
    assert_int_equal(r->n_out, 4); /* carries 0 and 2, one stacked, one summed */
    assert_string_equal(r->in[0]->name, "x");
    assert_string_equal(r->in[1]->name, "d");
    assert_string_equal(r->in[2]->name, "s");
    assert_string_equal(r->in[3]->name, "c");
    assert_int_equal(count_nodes(r->body), 5);
    assert_int_equal(count_op(g->top, TS_OP_exp), 0);
    check(g);

    g = repeat_with_dead_parts(true);
    char *before = text_of(g);
    OK(ts_graph_dce(g, &err));
    char *after = text_of(g);
    assert_string_equal(before, after); /* nothing was dead */
    ts_free(before);
    ts_free(after);
    check(g);
}

/* A value needed only by a repeat inside a repeat, through consts of both. */
static void test_dce_nested(void **state)
{
    (void)state;
    ts_builder *b = ts_builder_new("dce");
    ts_value *x = ts_input(b, "x", TS_F32, TS_DIMS(N)), *far = ts_exp(b, x), *near = ts_neg(b, x),
             *a, *i, *out, *end;
    ts_value *two[2] = {x, x}, *arg[2], *next[2], *results[2];
    ts_repeat *outer = ts_repeat_begin(b, 2, false, two, 2, NULL, 0, arg, NULL);
    ts_repeat *inner = ts_repeat_begin(b, 3, true, &arg[0], 1, NULL, 0, &a, NULL);
    i = ts_mul(b, a, far);
    ts_repeat_end(b, inner, &i, NULL, NULL, 0, &out);
    next[0] = out;
    next[1] = ts_mul(b, arg[1], near); /* dead: nobody reads carry 1 */
    ts_repeat_end(b, outer, next, NULL, NULL, 0, results);
    end = results[0];
    ts_output(b, "o", end, NULL);
    ts_graph *g = finish(b);
    OK(ts_graph_dce(g, &err));
    assert_int_equal(count_op(g->top, TS_OP_exp), 1);
    assert_int_equal(count_op(g->top, TS_OP_neg), 0);
    assert_int_equal(count_op(g->top, TS_OP_mul), 1);
    assert_int_equal(find_op(g->top, TS_OP_repeat)->n_in, 2);
    check(g);
}

static void test_dce_whole_repeat(void **state)
{
    (void)state;
    ts_builder *b = ts_builder_new("dce");
    ts_value *x = ts_input(b, "x", TS_F32, TS_DIMS(N)), *a, *next, *out;
    ts_repeat *r = ts_repeat_begin(b, 2, false, &x, 1, NULL, 0, &a, NULL);
    next = ts_exp(b, a);
    ts_repeat_end(b, r, &next, NULL, NULL, 0, &out);
    ts_output(b, "x", x, NULL);
    ts_graph *g = finish(b);
    OK(ts_graph_dce(g, &err));
    assert_int_equal(count_nodes(g->top), 0);
    check(g);
}

/* ---- common subexpressions ------------------------------------------------------------------- */

static void test_cse(void **state)
{
    (void)state;
    ts_builder *b = ts_builder_new("cse");
    ts_value *x = ts_input(b, "x", TS_F32, TS_DIMS(N)), *y = ts_input(b, "y", TS_F32, TS_DIMS(N));
    ts_value *s = ts_add(b, ts_exp(b, x), ts_scalar(b, 2, TS_F32));
    ts_value *t = ts_add(b, ts_exp(b, x), ts_scalar(b, 2, TS_F32));
    ts_output(b, "same", ts_mul(b, s, t), NULL); /* becomes s·s */
    ts_output(b, "order", ts_sub(b, x, y), NULL);
    ts_output(b, "other", ts_sub(b, y, x), NULL); /* other operands */
    ts_output(b, "attr", ts_slice(b, x, 0, 0, 2), NULL);
    ts_output(b, "attr2", ts_slice(b, x, 0, 0, 3), NULL); /* other attributes */
    ts_output(b, "attr3", ts_slice(b, x, 0, 0, 2), NULL); /* merged into attr */
    ts_graph *g = finish(b);
    OK(ts_graph_cse(g, &err));
    assert_int_equal(count_op(g->top, TS_OP_exp), 1);
    assert_int_equal(count_op(g->top, TS_OP_constant), 1);
    assert_int_equal(count_op(g->top, TS_OP_add), 1);
    assert_int_equal(count_op(g->top, TS_OP_sub), 2);
    assert_int_equal(count_op(g->top, TS_OP_slice), 2);
    ts_node *mul = find_op(g->top, TS_OP_mul);
    assert_ptr_equal(mul->in[0], mul->in[1]);
    assert_ptr_equal(g->top->result[3], g->top->result[5]);
    check(g);
}

/* 0 and −0 are different constants, and so are the names of dimensions. */
static void test_cse_attributes(void **state)
{
    (void)state;
    ts_builder *b = ts_builder_new("cse");
    ts_output(b, "a", ts_scalar(b, 0.0, TS_F32), NULL);
    ts_output(b, "b", ts_scalar(b, -0.0, TS_F32), NULL);
    ts_output(b, "c", ts_scalar(b, 0.0, TS_BF16), NULL);
    ts_output(b, "d", ts_constant(b, 0.0, TS_F32, TS_DIMS({"a", 1})), NULL);
    ts_output(b, "e", ts_constant(b, 0.0, TS_F32, TS_DIMS({"b", 1})), NULL);
    ts_graph *g = finish(b);
    OK(ts_graph_cse(g, &err));
    assert_int_equal(count_nodes(g->top), 5);
    check(g);
}

static void test_cse_barrier(void **state)
{
    (void)state;
    ts_builder *b = ts_builder_new("cse");
    ts_value *x = ts_input(b, "x", TS_F32, TS_DIMS(N)), *out[2];
    ts_output(b, "before", ts_exp(b, x), NULL);
    ts_barrier(b, &x, 1, &out[0]);
    ts_barrier(b, &x, 1, &out[1]);
    ts_output(b, "across", ts_exp(b, x), NULL);
    ts_output(b, "through", ts_exp(b, out[0]), NULL);
    ts_output(b, "through2", ts_exp(b, out[1]), NULL);
    ts_output(b, "again", ts_exp(b, out[1]), NULL); /* the only one to merge */
    ts_graph *g = finish(b);
    OK(ts_graph_cse(g, &err));
    assert_int_equal(count_op(g->top, TS_OP_barrier), 2);
    assert_int_equal(count_op(g->top, TS_OP_exp), 4);
    check(g);
}

static void test_cse_backward(void **state)
{
    (void)state;
    ts_builder *b = ts_builder_new("cse");
    ts_value *x = ts_input(b, "x", TS_F32, TS_DIMS(N)), *first = ts_exp(b, x);
    ts_output(b, "forward", first, NULL);
    b->backward = true;
    b->primal = first->node;
    ts_output(b, "again", ts_exp(b, x), NULL);
    ts_output(b, "twice", ts_exp(b, x), NULL);
    ts_graph *g = finish(b);
    OK(ts_graph_cse(g, &err));
    assert_int_equal(count_op(g->top, TS_OP_exp), 2);
    check(g);
}

/* What was made from a node that merged away comes from its twin afterwards. */
static void test_cse_primal(void **state)
{
    (void)state;
    ts_builder *b = ts_builder_new("cse");
    ts_value *x = ts_input(b, "x", TS_F32, TS_DIMS(N)), *first = ts_exp(b, x), *twin = ts_exp(b, x);
    ts_output(b, "forward", ts_mul(b, first, twin), NULL);
    b->backward = true;
    b->primal = twin->node;
    ts_output(b, "grad", ts_neg(b, first), NULL);
    ts_graph *g = finish(b);
    OK(ts_graph_cse(g, &err));
    assert_int_equal(count_op(g->top, TS_OP_exp), 1);
    assert_ptr_equal(find_op(g->top, TS_OP_neg)->primal, first->node);
    check(g);
}

/* Of two equal nodes the one that stays has the pin of either; two different pins are two values. */
static void test_cse_pins(void **state)
{
    (void)state;
    static const char *const pin[] = {NULL, "batch", "tensor", "batch"};
    ts_builder *b = ts_builder_new("cse");
    ts_value *x = ts_input(b, "x", TS_F32, TS_DIMS(N)), *y[5];
    for (int i = 0; i < 5; i++) y[i] = ts_exp(b, x);
    for (int i = 1; i < 4; i++) ts__pin(b, y[i], &pin[i]);
    ts_output(b, "o", ts_add_n(b, y, 5), NULL);
    ts_graph *g = finish(b);
    OK(ts_graph_cse(g, &err));
    assert_int_equal(count_op(g->top, TS_OP_exp), 2);
    const ts_node *n = g->top->first;
    assert_string_equal(n->out[0]->pin->name[0], "batch");
    assert_string_equal(n->next->out[0]->pin->name[0], "tensor");
    const ts_node *sum = find_op(g->top, TS_OP_add_n);
    for (int i = 0; i < 5; i++) assert_ptr_equal(sum->in[i], (i == 2 ? n->next : n)->out[0]);
    check(g);
}

/* Inside a body nodes merge; with the outside, and as whole repeats, they do not. */
static void test_cse_repeat(void **state)
{
    (void)state;
    ts_builder *b = ts_builder_new("cse");
    ts_value *x = ts_input(b, "x", TS_F32, TS_DIMS(N)), *a, *next, *out[2], *outside = ts_exp(b, x);
    for (int i = 0; i < 2; i++) {
        ts_repeat *r = ts_repeat_begin(b, 2, false, &x, 1, NULL, 0, &a, NULL);
        next = ts_mul(b, ts_exp(b, a), ts_add(b, ts_exp(b, a), x));
        ts_repeat_end(b, r, &next, NULL, NULL, 0, &out[i]);
    }
    ts_output(b, "o", ts_add(b, ts_add(b, out[0], out[1]), outside), NULL);
    ts_graph *g = finish(b);
    OK(ts_graph_cse(g, &err));
    assert_int_equal(count_op(g->top, TS_OP_repeat), 2);
    assert_int_equal(count_op(g->top, TS_OP_exp), 3);
    check(g);
}

/* The same text twice over; a failing allocation is reported (the graph is then only good for
 * freeing). */
static void test_deterministic_and_memory(void **state)
{
    (void)state;
    char *text[2];
    for (int i = 0; i < 2; i++) {
        ts_graph *g = every_composite(TS_F32, 5, 0, true);
        OK(ts_graph_lower(g, NULL, &err));
        OK(ts_graph_cse(g, &err));
        OK(ts_graph_dce(g, &err));
        OK(ts_graph_verify(g, &err));
        text[i] = text_of(g);
        OK(ts_graph_cse(g, &err));
        OK(ts_graph_dce(g, &err));
        char *again = text_of(g);
        assert_string_equal(text[i], again); /* nothing is left to do */
        ts_free(again);
        ts_graph_free(g);
    }
    assert_string_equal(text[0], text[1]);
    for (int i = 0; i < 2; i++) ts_free(text[i]);
    for (int pass = 0; pass < 2; pass++)
        for (uint64_t n = 1; n < 8; n++) {
            ts_graph *g = repeat_with_dead_parts(false);
            ts_error err = {0};
            ts_alloc_fail_at(n);
            ts_status status = pass ? ts_graph_cse(g, &err) : ts_graph_dce(g, &err);
            ts_alloc_fail_at(0);
            assert_true(status == TS_OK || status == TS_RESOURCE_EXHAUSTED);
            assert_true(n > 1 || status != TS_OK);
            ts_graph_free(g);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dce_nodes),
        cmocka_unit_test(test_dce_barrier),
        cmocka_unit_test(test_dce_repeat),
        cmocka_unit_test(test_dce_nested),
        cmocka_unit_test(test_dce_whole_repeat),
        cmocka_unit_test(test_cse),
        cmocka_unit_test(test_cse_attributes),
        cmocka_unit_test(test_cse_barrier),
        cmocka_unit_test(test_cse_backward),
        cmocka_unit_test(test_cse_primal),
        cmocka_unit_test(test_cse_pins),
        cmocka_unit_test(test_cse_repeat),
        cmocka_unit_test(test_deterministic_and_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
