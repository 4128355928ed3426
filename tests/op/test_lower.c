/* test_lower.c – a graph with every composite gives the same numbers before and after lowering,
 * after dead code and common subexpressions are gone, and after a trip through text. All in double
 * precision, so the bounds are tight: a wrong sign, mask or mean cannot hide in rounding. */
#include "unit/ir_help.h"

#include "op/eval_f64.h"

enum { MAX = 32 };
typedef struct tensors {
    double *v[MAX];
    int n;
} tensors;

static double noise(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (double)(*state >> 8) / (double)(1 << 23) - 1;
}

static double element(const char *name, const ts_type *t, int64_t i, uint32_t *seed)
{
    if (strcmp(name, "segments") == 0) return (double)(i % t->dim[1].size / 3);
    if (strcmp(name, "labels") == 0) return i == 3 ? -1 : (double)(i * 7 % 11);
    if (strcmp(name, "key") == 0) return 4026531841.0 + (double)i;
    if (strcmp(name, "step") == 0) return 3;
    if (t->dtype == TS_PRED) return 1;
    double v = noise(seed);
    return strcmp(name, "w") == 0 ? 1.5 + v : v;
}

static tensors inputs_of(const ts_graph *g)
{
    tensors in = {.n = g->top->n_arg};
    uint32_t seed = 12345;
    assert_in_range(in.n, 0, MAX);
    for (int i = 0; i < in.n; i++) {
        const ts_type *t = &g->top->arg[i]->type;
        int64_t n = ts_type_elements(t);
        in.v[i] = ts_alloc((size_t)(n + 1) * sizeof(double));
        for (int64_t k = 0; k < n; k++) in.v[i][k] = element(g->top->arg[i]->name, t, k, &seed);
    }
    return in;
}

static tensors run(const ts_graph *g, const tensors *in)
{
    tensors out = {.n = g->top->n_result};
    assert_in_range(out.n, 0, MAX);
    for (int i = 0; i < out.n; i++)
        out.v[i] = ts_alloc_zero((size_t)(ts_type_elements(&g->top->result[i]->type) + 1) *
                                 sizeof(double));
    f64_eval(g, in->v, out.v);
    return out;
}

static void drop(tensors *t)
{
    for (int i = 0; i < t->n; i++) ts_free(t->v[i]);
}

static void compare(const ts_graph *g, const tensors *want, const tensors *found, const char *when)
{
    for (int i = 0; i < want->n; i++) {
        int64_t n = ts_type_elements(&g->top->result[i]->type);
        double most = 1;
        for (int64_t k = 0; k < n; k++)
            if (isfinite(want->v[i][k])) most = fmax(most, fabs(want->v[i][k]));
        for (int64_t k = 0; k < n; k++) {
            double a = want->v[i][k], b = found->v[i][k];
            if (a == b || fabs(a - b) <= 1e-9 * most) continue;
            fail_msg("%s: %s[%lld] is %.17g, before %.17g", when, g->output[i].name, (long long)k,
                     b, a);
        }
    }
}

static void same_after_lowering(ts_graph *g)
{
    tensors in = inputs_of(g), want = run(g, &in), found;
    OK(ts_graph_lower(g, NULL, &err));
    found = run(g, &in);
    compare(g, &want, &found, "lowered");
    drop(&found);
    OK(ts_graph_cse(g, &err));
    OK(ts_graph_dce(g, &err));
    OK(ts_graph_verify(g, &err));
    ts_graph *again = round_trip(g, __LINE__);
    found = run(again, &in);
    compare(again, &want, &found, "after cse, dce and text");
    drop(&found);
    drop(&want);
    drop(&in);
    ts_graph_free(again);
    ts_graph_free(g);
}

static void test_every_composite(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++)
        same_after_lowering(every_composite(TS_F32, i & 1 ? 5 : 0, i & 2 ? 0.7 : 0, i & 4));
}

/* Attention alone: more or fewer keys than queries, so that some rows see nothing. Long ones have a
 * batch of 1, those of odd length one kv head. */
static ts_graph *attention(int64_t S, int64_t T, bool causal, int64_t window, double softcap,
                           bool segments)
{
    ts_builder *b = ts_builder_new("attention");
    ts_dim B = {NULL, S > 100 ? 1 : 2}, K = {NULL, S & 1 ? 1 : 2}, D = {NULL, 3};
    ts_value *q = ts_input(b, "q", TS_F32, TS_DIMS(B, {NULL, S}, K, {NULL, 2}, D)), *in[7], *lse;
    in[0] = q;
    in[1] = ts_input(b, "k", TS_F32, TS_DIMS(B, {NULL, T}, K, D));
    in[2] = ts_input(b, "v", TS_F32, TS_DIMS(B, {NULL, T}, K, D));
    in[6] = segments ? ts_input(b, "segments", TS_I32, TS_DIMS(B, {NULL, S})) : NULL;
    ts_attention_options o = {.causal = causal, .window = window, .softcap = softcap};
    in[3] = ts_attention(b, q, in[1], in[2], in[6], &o, &lse);
    in[4] = lse;
    in[5] = ts_input(b, "do", TS_F32, TS_DIMS(B, {NULL, S}, K, {NULL, 2}, D));
    ts_attr attr = lse->node->attr;
    ts_node *n = ts__op_n(b, TS_OP_attention_grad, in, segments ? 7 : 6, &attr);
    ts_output(b, "o", in[3], NULL);
    ts_output(b, "lse", lse, NULL);
    for (int i = 0; i < 3 && n; i++)
        ts_output(b, i == 0 ? "dq" : i == 1 ? "dk" : "dv", n->out[i], NULL);
    return finish(b);
}

static void test_attention(void **state)
{
    (void)state;
    for (int i = 0; i < 24; i++) {
        int64_t window = i % 3 == 0 ? 0 : i % 3 == 1 ? 2 : 100;
        bool causal = i / 3 & 1, segments = i / 6 & 1;
        double softcap = i / 12 ? 0.9 : 0;
        same_after_lowering(attention(4, 4, causal, window, softcap, segments));
        same_after_lowering(attention(5, 5, causal, window, softcap, segments));
        same_after_lowering(attention(2, 6, causal, window, softcap, false));
        same_after_lowering(attention(6, 2, causal, window, softcap, false));
        same_after_lowering(attention(1, 1, causal, window, softcap, segments));
        same_after_lowering(attention(3, 0, causal, window, softcap, false));
        same_after_lowering(attention(0, 0, causal, window, softcap, segments));
    }
}

/* Long enough for several blocks of queries, with another remainder each, and ranges of keys that
 * begin late, end early, or are empty (more queries than keys: the first see nothing). */
static void test_attention_in_blocks(void **state)
{
    (void)state;
    static const struct { int64_t S, T, window; double softcap; bool causal, segments; } cases[] = {
        {300, 300, 0, 0, true, false},    {300, 300, 0, 0, false, false},
        {300, 300, 90, 0.9, true, false}, {300, 300, 90, 0, false, false},
        {300, 300, 0, 0, true, true},     {257, 257, 200, 0.9, true, true},
        {140, 333, 0, 0.9, true, false},  {140, 333, 70, 0, true, false},
        {300, 20, 0, 0, true, false},     {300, 150, 10, 0.9, false, false},
        {600, 600, 1, 0, true, false},    {300, 0, 0, 0, true, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        same_after_lowering(attention(cases[i].S, cases[i].T, cases[i].causal, cases[i].window,
                                      cases[i].softcap, cases[i].segments));
}

/* Rope with tables of their own for each row of a batch, forth and back. */
static void test_rope(void **state)
{
    (void)state;
    ts_builder *b = ts_builder_new("rope");
    ts_dim dims[5] = {{NULL, 2}, {NULL, 3}, {NULL, 2}, {NULL, 2}, {NULL, 4}},
           table[3] = {{NULL, 2}, {NULL, 3}, {NULL, 2}};
    ts_value *in[3] = {ts_input(b, "x", TS_F32, dims, 5), ts_input(b, "cos", TS_F32, table, 3),
                       ts_input(b, "sin", TS_F32, table, 3)};
    ts_attr inverse = {.rope = {true}};
    ts_output(b, "y", ts_rope(b, in[0], in[1], in[2]), NULL);
    ts_output(b, "z", ts__op(b, TS_OP_rope, in, 3, &inverse), NULL);
    same_after_lowering(finish(b));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_composite),
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_attention_in_blocks),
        cmocka_unit_test(test_rope),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
