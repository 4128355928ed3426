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
        /* Experts are a repeat, forward and backward, as kv heads are; so are tokens in chunks, and
         * their rows. */
        assert_int_equal(count_op(g->top, TS_OP_repeat), repeats + 4 + (i & 2 ? 3 : 0));
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

/* ---- attention in blocks --------------------------------------------------------------------- */

/* Attention of S queries and keys and its gradient, lowered. */
static ts_graph *attention(ts_dtype dtype, int64_t S, int64_t K, bool causal, int64_t window)
{
    ts_builder *b = ts_builder_new("attention");
    ts_dim B = {"batch", 1}, s = {"sequence", S}, k = {"kv_heads", K}, G = {"heads", 2},
           D = {NULL, 8};
    ts_value *in[6] = {ts_input(b, "q", dtype, TS_DIMS(B, s, k, G, D)),
                       ts_input(b, "k", dtype, TS_DIMS(B, s, k, D)),
                       ts_input(b, "v", dtype, TS_DIMS(B, s, k, D))};
    ts_attention_options o = {.causal = causal, .window = window};
    in[3] = ts_attention(b, in[0], in[1], in[2], NULL, &o, &in[4]);
    in[5] = in[0];
    ts_attr attr = in[4]->node->attr;
    ts_node *n = ts__op_n(b, TS_OP_attention_grad, in, 6, &attr);
    ts_output(b, "o", in[3], NULL);
    for (int i = 0; i < 3 && n; i++)
        ts_output(b, i == 0 ? "dq" : i == 1 ? "dk" : "dv", n->out[i], NULL);
    ts_graph *g = finish(b);
    OK(ts_graph_lower(g, NULL, &err));
    OK(ts_graph_verify(g, &err));
    return g;
}

static int64_t largest_value(const ts_region *r)
{
    int64_t most = 0;
    for (const ts_node *n = r->first; n; n = n->next) {
        for (int i = 0; i < n->n_out; i++) {
            int64_t size = ts_type_elements(&n->out[i]->type);
            if (size > most) most = size;
        }
        int64_t inner = n->body ? largest_value(n->body) : 0;
        if (inner > most) most = inner;
    }
    return most;
}

/* Queries and keys of the scores, in order: results f32 [B,s,G,t] of dots of q with k. */
static int scores(const ts_region *r, int64_t (*size)[2])
{
    int n = 0;
    for (const ts_node *node = r->first; node; node = node->next) {
        if (node->body) n += scores(node->body, size + n);
        if (node->op != TS_OP_exp) continue;
        size[n][0] = node->out[0]->type.dim[1].size;
        size[n++][1] = node->out[0]->type.dim[3].size;
    }
    return n;
}

static void check_blocks(int64_t S, int64_t window, bool causal, int count, int64_t size)
{
    for (int64_t K = 1; K < 3; K++) {
        int64_t found[160][2];
        ts_graph *g = attention(TS_BF16, S, K, causal, window);
        assert_int_equal(scores(g->top, found), 2 * count); /* forward, then backward */
        for (int i = 0; i < 2 * count; i++) {
            int64_t from = i % count * size, to = from + size < S ? from + size : S;
            int64_t low = window && from > window - 1 ? from - window + 1 : 0,
                    high = causal ? to : S;
            assert_int_equal(found[i][0], to - from);
            assert_int_equal(found[i][1], high - low);
            if (window) assert_true(found[i][1] < size + window);
        }
        /* One kv head needs no loop; its halves are kept apart by a barrier. */
        assert_int_equal(count_op(g->top, TS_OP_repeat), K == 1 ? 0 : 2);
        assert_int_equal(count_op(g->top, TS_OP_barrier), K == 1 ? 1 : 0);
        ts_graph_free(g);
    }
}

static void test_attention_blocks(void **state)
{
    (void)state;
    check_blocks(1, 0, true, 1, 128);
    check_blocks(128, 0, true, 1, 128);
    check_blocks(129, 0, true, 2, 128);
    check_blocks(512, 0, true, 4, 128);
    check_blocks(513, 0, true, 3, 256); /* multiples of 128 */
    check_blocks(4096, 0, true, 4, 1024);
    check_blocks(4096, 512, true, 4, 1024);
    check_blocks(8192, 0, true, 4, 2048);
    check_blocks(16384, 0, true, 8, 2048);
    check_blocks(16384, 1024, true, 8, 2048);
    check_blocks(2048, 0, false, 4, 512);
    check_blocks(1 << 20, 4096, true, 64, 16384); /* never more than 64 blocks */
}

/* Nothing of a long sequence is S·S, whatever is stored or passed; products have the dtype of the
 * operands and sums are f32. */
static void test_attention_memory(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        const int64_t S = 4096, block = 1024;
        ts_graph *g = attention(i & 1 ? TS_BF16 : TS_F32, S, 2, true, i & 2 ? 512 : 0);
        assert_true(largest_value(g->top) <= 2 * block * (i & 2 ? block + 511 : S)); /* G = 2 */
        for (ts_node *r = g->top->first; r; r = r->next)
            for (ts_node *n = r->body ? r->body->first : NULL; n; n = n->next) {
                if (n->op != TS_OP_dot) continue;
                assert_int_equal(n->in[0]->type.dtype, i & 1 ? TS_BF16 : TS_F32);
                assert_int_equal(n->in[1]->type.dtype, i & 1 ? TS_BF16 : TS_F32);
                assert_int_equal(n->out[0]->type.dtype, TS_F32);
            }
        ts_graph_free(g);
    }
}

/* A later block of one key looks no further than its mask; a whole visible range needs none. */
static void test_attention_masks(void **state)
{
    (void)state;
    ts_graph *g = attention(TS_F32, 2048, 1, false, 0);
    assert_int_equal(count_op(g->top, TS_OP_iota), 0);
    ts_graph_free(g);
    g = attention(TS_F32, 1, 1, true, 0);
    assert_int_equal(count_op(g->top, TS_OP_iota), 0);
    ts_graph_free(g);
    g = attention(TS_F32, 2048, 1, true, 2048); /* the window hides nothing that is causal */
    assert_int_equal(count_op(g->top, TS_OP_iota), 16);
    assert_int_equal(count_op(g->top, TS_OP_and), 0);
    ts_graph_free(g);
}

/* A product of bf16 tokens and classes is one of bf16, forward and backward. */
static void test_products(void **state)
{
    (void)state;
    ts_graph *g = every_composite(TS_BF16, 5, 30, true);
    OK(ts_graph_lower(g, NULL, &err));
    int dots = 0;
    for (const ts_node *r = g->top->first; r; r = r->next)
        for (const ts_node *n = r->body ? r->body->first : NULL; n; n = n->next) {
            if (n->op != TS_OP_dot) continue;
            assert_int_equal(n->in[0]->type.dtype, TS_BF16);
            assert_int_equal(n->in[1]->type.dtype, TS_BF16);
            dots++;
        }
    assert_true(dots >= 12);
    ts_graph_free(g);
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
        cmocka_unit_test(test_attention_blocks),
        cmocka_unit_test(test_attention_memory),
        cmocka_unit_test(test_attention_masks), cmocka_unit_test(test_products),
        cmocka_unit_test(test_limits),          cmocka_unit_test(test_memory_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
