/* test_engine_alloc.c – a step allocates nothing: none through our seam, none of 4 KiB or more in the
 * whole process, and resident memory is flat over 1,000 executes. (oneDNN makes a few tiny ones.)
 *
 * malloc and its relatives are interposed by this executable; under AddressSanitizer its own hooks
 * count. Where neither sees a probe (some checkers replace malloc) the test says so and skips.
 */
#include "engine_help.h"

#include "cpu/kernel.h"
#include "ir/builder.h"
#include "malloc_count.h"

#include <sys/wait.h>
#include <unistd.h>

enum { WARM = 20, EXECUTES = 1000 };

static bool counted; /* hooks_work saw its probe */

#define D(n)                                                                                       \
    {                                                                                              \
        NULL, (n)                                                                                  \
    }
enum { B = 2, S = 32, K = 2, G = 2, HEAD = 16, E = K * G * HEAD, F = 96, V = 50, LAYERS = 3 };

static ts_value *matmul(ts_builder *b, ts_value *x, ts_value *w) /* [T,I] · [O,I] → [T,O] */
{
    ts_dot_dims d = {.n_contract = 1, .x_contract = {1}, .y_contract = {1}};
    return ts_dot(b, x, w, &d, TS_F32);
}

/* One layer on x [B·S,E]: norm, attention, norm, gated MLP. w: qkvo [4,E,E], gate, up, down [3,F,E]. */
static ts_value *layer(ts_builder *b, ts_value *x, ts_value *attn, ts_value *mlp)
{
    ts_value *one = ts_constant(b, 1, TS_F32, TS_DIMS(D(E))), *h = ts_rms_norm(b, x, one, 1e-5),
             *w[7];
    for (int k = 0; k < 4; k++)
        w[k] = ts_reshape(b, ts_slice(b, attn, 0, k, k + 1), TS_DIMS(D(E), D(E)));
    for (int k = 0; k < 3; k++)
        w[4 + k] = ts_reshape(b, ts_slice(b, mlp, 0, k, k + 1), TS_DIMS(D(F), D(E)));
    ts_value *q = ts_reshape(b, matmul(b, h, w[0]), TS_DIMS(D(B), D(S), D(K), D(G), D(HEAD)));
    ts_dot_dims half = {.n_contract = 1, .x_contract = {1}, .y_contract = {1}};
    ts_value *wk = ts_slice(b, w[1], 0, 0, K * HEAD), *wv = ts_slice(b, w[2], 0, 0, K * HEAD);
    ts_value *k =
        ts_reshape(b, ts_dot(b, h, wk, &half, TS_F32), TS_DIMS(D(B), D(S), D(K), D(HEAD)));
    ts_value *v =
        ts_reshape(b, ts_dot(b, h, wv, &half, TS_F32), TS_DIMS(D(B), D(S), D(K), D(HEAD)));
    ts_attention_options o = {.causal = true};
    ts_value *a = ts_reshape(b, ts_attention(b, q, k, v, NULL, &o, NULL), TS_DIMS(D(B * S), D(E)));
    x = ts_add(b, x, matmul(b, a, w[3]));
    h = ts_rms_norm(b, x, one, 1e-5);
    ts_value *f = ts_gated(b, TS_SILU, matmul(b, h, w[4]), matmul(b, h, w[5]));
    ts_dot_dims down = {.n_contract = 1, .x_contract = {1}, .y_contract = {0}};
    return ts_add(b, x, ts_dot(b, f, w[6], &down, TS_F32));
}

/* Tokens h [B·S,E] through experts w [9,F,E] by ids [B·S], and back. How many rows an expert gets
 * is known in the step only, which must not allocate for them. */
static void experts(ts_builder *b, ts_value *h, ts_value *w, ts_value *ids)
{
    ts_value *token, *assignment, *in[4];
    ids = ts_reshape(b, ids, TS_DIMS(D(B * S / 2), D(2)));
    ts_expert_rows(b, ids, 9, &token, &assignment, &in[2]);
    in[0] = ts_take(b, h, token, -1);
    in[1] = ts_reshape(b, w, TS_DIMS(D(9), D(F), D(E)));
    in[3] = ts_grouped_dot(b, in[0], in[1], in[2]);
    ts_node *n = ts__op_n(b, TS_OP_grouped_dot_grad, in, 4, NULL);
    ts_output(b, "routed", in[3], NULL);
    ts_output(b, "drouted", n->out[0], NULL);
    ts_output(b, "dexperts", n->out[1], NULL);
}

/* A step with the parts of training: embedding, layers, experts, cross-entropy, AdamW on donated
 * state. */
static ts_graph *step_graph(void)
{
    ts_builder *b = ts_builder_new("step");
    ts_value *ids = ts_input(b, "ids", TS_I32, TS_DIMS(D(B * S))),
             *table = ts_input(b, "table", TS_F32, TS_DIMS(D(V), D(E)));
    ts_value *m = ts_input(b, "m", TS_F32, TS_DIMS(D(V), D(E))),
             *v = ts_input(b, "v", TS_F32, TS_DIMS(D(V), D(E)));
    ts_value *count_in = ts_input(b, "step", TS_I32, TS_SCALAR);
    ts_value *w[2] = {ts_input(b, "attn", TS_F32, TS_DIMS(D(LAYERS), D(4), D(E), D(E))),
                      ts_input(b, "mlp", TS_F32, TS_DIMS(D(LAYERS), D(3), D(F), D(E)))};
    ts_value *x = ts_take(b, table, ids, -1), *arg, *wi[2], *out[2];
    ts_repeat *r = ts_repeat_begin(b, LAYERS, false, &x, 1, w, 2, &arg, wi);
    ts_value *next = layer(b, arg, wi[0], wi[1]), *ys = arg;
    ts_repeat_end(b, r, &next, &ys, (const bool[]){false}, 1, out);
    experts(b, out[0], w[1], ids);
    ts_value *loss = ts_linear_xent(b, out[0], table, ids, 0, 16, NULL);
    ts_value *g = ts_scatter_add(b, ids, out[0], (ts_dim)D(V), -1), *new[3];
    ts_value *finite = ts_is_finite(b, ts_reduce_sum(b, loss, TS_INTS(0)));
    ts_adamw_options o = {.b1 = 0.9, .b2 = 0.99, .eps = 1e-8, .weight_decay = 0.1};
    ts_value *step = ts_add(b, count_in, ts_scalar(b, 1, TS_I32));
    ts_adamw(b, table, g, m, v, ts_scalar(b, 1e-3, TS_F32), step, ts_scalar(b, 1, TS_F32), finite,
             &o, new);
    ts_output(b, "loss", loss, NULL);
    ts_output(b, "saved", out[1], NULL);
    ts_output(b, "table", new[0], table);
    ts_output(b, "m", new[1], m);
    ts_output(b, "v", new[2], v);
    ts_output(b, "step", step, count_in);
    return help_finish(b);
}

static void steps_allocate_nothing(void **unused)
{
    (void)unused;
    ts_engine *e;
    ts_error err = {0};
    ts_engine_options o = {.struct_size = sizeof o, .name = "cpu", .devices = 1, .threads = 2};
    if (ts_engine_open(&o, &e, &err) != TS_OK) fail_msg("%s", err.msg);
    ts_graph *g = step_graph();
    ts_executable *x;
    ts_buffer *in[HELP_MAX], *out[HELP_MAX];
    if (ts_compile(e, g, &x, &err) != TS_OK) fail_msg("%s", err.msg);
    int n_in = g->top->n_arg, n_out = g->top->n_result;
    for (int k = 0; k < n_in; k++) {
        assert_int_equal(ts_buffer_new(e, 0, &g->top->arg[k]->type, &in[k], NULL), TS_OK);
        help_upload(in[k], (uint32_t)k);
    }
    for (int k = 0; k < n_out; k++) {
        out[k] = g->output[k].replaces >= 0 ? in[g->output[k].replaces] : NULL;
        if (!out[k])
            assert_int_equal(ts_buffer_new(e, 0, &g->top->result[k]->type, &out[k], NULL), TS_OK);
    }
    for (int k = 0; k < WARM; k++) assert_int_equal(ts_execute(x, in, out, NULL), TS_OK);
    /* A checker that replaces malloc is slow, and nothing but our seam is counted under it. */
    int executes = counted ? EXECUTES : WARM;
    uint64_t ours = ts_alloc_count();
    size_t before = resident_bytes();
    atomic_store(&counting, 1);
    for (int k = 0; k < executes; k++)
        if (ts_execute(x, in, out, NULL) != TS_OK) fail();
    atomic_store(&counting, 0);
    size_t after = resident_bytes();
    print_message("%s: %d small allocations an execute, %d large ones, resident %zu → %zu KiB\n",
                  e->vtable->describe(e), atomic_load(&small) / executes, atomic_load(&large),
                  before >> 10, after >> 10);
    assert_int_equal(ts_alloc_count(), ours);
    assert_int_equal(atomic_load(&large), 0);
#ifndef TEST_ASAN /* its quarantine grows by the small ones */
    assert_true(!counted || after <= before + (128 << 10));
#endif
    ts_executable_free(x);
    for (int k = 0; k < n_out; k++)
        if (g->output[k].replaces < 0) ts_buffer_free(out[k]);
    for (int k = 0; k < n_in; k++) ts_buffer_free(in[k]);
    ts_graph_free(g);
    ts_engine_close(e);
}

static void hooks_work(void **unused)
{
    (void)unused;
    counted = malloc_is_counted();
    if (counted) return;
    print_message(
        "SKIP: malloc is replaced by a checker, so allocations of other libraries cannot be counted\n");
    skip();
}

/* oneDNN is capped once a process, so each instruction set has one of its own. */
static void on_isa(void **state)
{
    const ts_isa isa = (ts_isa)(uintptr_t)*state;
    int status = 0;
    if (isa > ts_isa_detect()) {
        print_message("SKIP: this machine has no %s\n", ts_isa_name(isa));
        skip();
    }
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        setenv("TESSERA_ISA", ts_isa_name(isa), 1);
        execl("/proc/self/exe", "test_engine_alloc", (char *)NULL);
        _exit(127);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static int all_isas(void)
{
    struct CMUnitTest tests[TS_ISAS];
    for (int i = 0; i < TS_ISAS; i++)
        tests[i] =
            (struct CMUnitTest){ts_isa_name((ts_isa)i), on_isa, NULL, NULL, (void *)(uintptr_t)i};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(void)
{
    if (!getenv("TESSERA_ISA")) return all_isas();
    install();
    const struct CMUnitTest tests[] = {cmocka_unit_test(hooks_work),
                                       cmocka_unit_test(steps_allocate_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
