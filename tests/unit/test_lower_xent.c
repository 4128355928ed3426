/* test_lower_xent.c – the cross-entropy of many logits in primitives: forward in chunks of tokens,
 * backward in pieces of the vocabulary. Equal to the fused kernels, with labels that are ignored,
 * in the first, the last and other pieces, and with a cap; and no value holds more than half of
 * the logits.
 */
#include "mesh_help.h"

#include "grad/grad.h"

enum { T = 2048, V = 40960, E = 4 };

static ts_graph *loss_graph(double cap)
{
    ts_builder *b = ts_builder_new("xent");
    ts_graph *g = NULL;
    ts_error err = {0};
    ts_value *x = ts_input(b, "x", TS_F32, TS_DIMS({"tokens", T}, {"embed", E}));
    ts_value *w = ts_input(b, "w", TS_F32, TS_DIMS({"vocab", V}, {"embed", E}));
    ts_value *labels = ts_input(b, "labels", TS_I32, TS_DIMS({"tokens", T})), *lse;
    ts_value *rows = ts_linear_xent(b, x, w, labels, cap, 0, &lse);
    /* the log-sum-exp counts too, so that its cotangent is not zero */
    ts_value *loss = ts_reduce_sum(b, ts_add(b, rows, ts_mul(b, lse, lse)), TS_INTS(0));
    ts_value *wrt[2] = {x, w}, *grad[2];
    ts_grad(b, loss, wrt, 2, grad, &err);
    ts_output(b, "loss", loss, NULL);
    ts_output(b, "dx", grad[0], NULL);
    ts_output(b, "dw", grad[1], NULL);
    if (ts_builder_finish(b, &g, &err) != TS_OK) fail_msg("%s", err.msg);
    return g;
}

static void run(const ts_graph *g, float *x, float *w, int32_t *labels, float *out[3])
{
    ts_engine *e = mesh_engine("cpu", 1);
    mesh_program p = mesh_compile(e, g, 1);
    void *in[3] = {x, w, labels};
    for (int i = 0; i < 3; i++) mesh_set(&p, NULL, NULL, &g->top->arg[i]->type, i, in[i]);
    mesh_execute(&p);
    for (int i = 0; i < 3; i++) mesh_get(&p, NULL, NULL, &g->top->result[i]->type, i, out[i], "result");
    mesh_free(&p);
    ts_engine_close(e);
}

static int64_t largest(const ts_region *r)
{
    int64_t most = 0;
    for (const ts_node *n = r->first; n; n = n->next) {
        for (int i = 0; i < n->n_out; i++)
            if (ts_type_elements(&n->out[i]->type) > most) most = ts_type_elements(&n->out[i]->type);
        int64_t inner = n->body ? largest(n->body) : 0;
        if (inner > most) most = inner;
    }
    return most;
}

static void pieces_equal_fused(void **state)
{
    float *x = ts_alloc(T * E * 4), *w = ts_alloc((size_t)V * E * 4), *out[2][3];
    int32_t *labels = ts_alloc(T * 4);
    const size_t n[3] = {1, T * E, (size_t)V * E};
    (void)state;
    for (int i = 0; i < T * E; i++) x[i] = (float)((i * 7919) % 1009) / 500 - 1;
    for (int i = 0; i < V * E; i++) w[i] = (float)((i * 104729LL) % 10007) / 5000 - 1;
    for (int i = 0; i < T; i++) labels[i] = i % 5 == 0 ? -100 : i % 5 == 1 ? 0 : i % 5 == 2 ? V - 1 : (i * 7919) % V;
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < 3; i++) out[k][i] = ts_alloc(n[i] * 4);
    ts_error err = {0};
    ts_graph *g = loss_graph(3);
    run(g, x, w, labels, out[0]);
    if (ts_graph_lower(g, NULL, &err) != TS_OK || ts_graph_verify(g, &err) != TS_OK) fail_msg("%s", err.msg);
    assert_true(largest(g->top) <= (int64_t)T * V / 2);
    run(g, x, w, labels, out[1]);
    for (int i = 0; i < 3; i++) {
        double most = 0, error = 0;
        for (size_t k = 0; k < n[i]; k++) {
            most = fmax(most, fabs((double)out[0][i][k]));
            double d = fabs((double)out[0][i][k] - (double)out[1][i][k]);
            if (!(d <= error)) error = isfinite(d) ? d : INFINITY;
        }
        printf("%s: %.1e of %.3g\n", g->output[i].name, error, most);
        assert_true(error <= 1e-5 * most);
    }
    ts_graph_free(g);
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < 3; i++) ts_free(out[k][i]);
    ts_free(x);
    ts_free(w);
    ts_free(labels);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(pieces_equal_fused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
