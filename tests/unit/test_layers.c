/* tests/unit/test_layers.c – ts_layers and parameters: segments, names, initial values, and that a
 * model of several kinds of layers is the same function with the same gradient whether its layers
 * are stacked into repeats or unrolled, whatever the remat policy.
 *
 * The toy model has three kinds of layers: a gated residual, a scaled one, and one with a repeat of
 * its own whose body uses a parameter and values of both outer regions. Engine: cpu, plain C.
 */
#undef TS_NO_LINES /* this file is model code: its lines belong into messages */
#include "engine_help.h"

#include <math.h>
#include <stdlib.h>

#include "grad/grad.h"
#include "nn/layers.h"
#include "train/program.h"
#include "train/state.h"

/* ---- segments -------------------------------------------------------------------------------- */

static void check_segments(const uint64_t *s, int n, bool unroll, const ts_segment *want,
                           int n_want)
{
    ts_segment got[64];
    assert_true(n <= 64);
    assert_int_equal(ts_layer_segments(s, n, unroll, got), n_want);
    for (int i = 0; i < n_want; i++) {
        assert_int_equal(got[i].first, want[i].first);
        assert_int_equal(got[i].period, want[i].period);
        assert_int_equal(got[i].count, want[i].count);
    }
}
#define SEGMENTS(s, n, unroll, ...)                                                                \
    check_segments(s, n, unroll, (const ts_segment[]){__VA_ARGS__},                                \
                   (int)(sizeof((const ts_segment[]){__VA_ARGS__}) / sizeof(ts_segment)))

/* Gemma 4 E2B: four sliding layers, one full; 13 and 14 export keys and values, 15 … 34 use them.
 */
static void test_segments_e2b(void **state)
{
    uint64_t s[35];
    (void)state;
    for (int i = 0; i < 35; i++) s[i] = (i % 5 == 4 ? 2 : 1) + (i >= 15 ? 10 : 0);
    s[13] = 3;
    s[14] = 4;
    SEGMENTS(s, 35, false, {0, 5, 2}, {10, 1, 1}, {11, 1, 1}, {12, 1, 1}, {13, 1, 1}, {14, 1, 1},
             {15, 5, 4});
}

static void test_segments_forms(void **state)
{
    static const uint64_t same[32] = {0}, one[1] = {7}, different[4] = {1, 2, 3, 4};
    static const uint64_t odd[7] = {1, 2, 1, 2, 1, 2, 1}, late[6] = {9, 1, 2, 1, 2, 8};
    uint64_t eight[16], nine[18];
    (void)state;
    for (int i = 0; i < 16; i++) eight[i] = (uint64_t)(i % 8);
    for (int i = 0; i < 18; i++) nine[i] = (uint64_t)(i % 9);
    SEGMENTS(same, 32, false, {0, 1, 32});
    SEGMENTS(same, 3, true, {0, 1, 1}, {1, 1, 1}, {2, 1, 1});
    SEGMENTS(one, 1, false, {0, 1, 1});
    SEGMENTS(one, 1, true, {0, 1, 1});
    SEGMENTS(different, 4, false, {0, 1, 1}, {1, 1, 1}, {2, 1, 1}, {3, 1, 1});
    SEGMENTS(odd, 7, false, {0, 2, 3}, {6, 1, 1});
    SEGMENTS(late, 6, false, {0, 1, 1}, {1, 2, 2}, {5, 1, 1});
    SEGMENTS(eight, 16, false, {0, 8, 2});
    ts_segment got[18];
    assert_int_equal(ts_layer_segments(nine, 18, false, got), 18); /* a period of 9 is too long */
}

/* Any signatures: the segments lie side by side, and every repeat repeats. */
static void test_segments_random(void **state)
{
    (void)state;
    for (uint32_t round = 0; round < 2000; round++) {
        uint64_t s[40];
        ts_segment seg[40];
        int n = 1 + (int)(help_hash(round) % 40), kinds = 1 + (int)(help_hash(round + 77) % 3),
            at = 0;
        for (int i = 0; i < n; i++) s[i] = help_hash(round * 64u + (uint32_t)i) % (uint32_t)kinds;
        int m = ts_layer_segments(s, n, false, seg);
        for (int k = 0; k < m; k++) {
            assert_int_equal(seg[k].first, at);
            assert_true(seg[k].period >= 1 && seg[k].period <= 8 && seg[k].count >= 1);
            assert_true(seg[k].count > 1 || seg[k].period == 1);
            at += seg[k].period * seg[k].count;
            for (int i = seg[k].first + seg[k].period; i < at; i++)
                assert_int_equal(s[i], s[i - seg[k].period]);
        }
        assert_int_equal(at, n);
    }
}

/* ---- patterns and names ---------------------------------------------------------------------- */

static void test_patterns(void **state)
{
    (void)state;
    assert_true(ts_pattern_match("*", ""));
    assert_true(ts_pattern_match("", ""));
    assert_false(ts_pattern_match("", "a"));
    assert_true(ts_pattern_match("*norm*", "model.layers.0.input_layernorm.weight"));
    assert_false(ts_pattern_match("norm", "model.norm.weight"));
    assert_true(ts_pattern_match("model.embed_tokens.*", "model.embed_tokens.weight"));
    assert_true(
        ts_pattern_match("model.layers.?.mlp.*.weight", "model.layers.3.mlp.up_proj.weight"));
    assert_false(
        ts_pattern_match("model.layers.?.mlp.*.weight", "model.layers.13.mlp.up_proj.weight"));
    assert_true(ts_pattern_match("*a*b*c", "xxaabbabcc"));
    assert_false(ts_pattern_match("*a*b*c", "xxaabbabcd"));
    assert_true(ts_pattern_match("**", "x"));
    assert_false(ts_pattern_match("?", ""));
    assert_true(ts_pattern_match("*ab", "aab"));
}

static void test_names(void **state)
{
    char name[512];
    ts_param_info p = {.name = "model.layers.{1..31:2}.mlp.up_proj.weight",
                       .first = 1,
                       .step = 2,
                       .count = 16,
                       .file_rank = 2,
                       .file_dim = {3, 5}};
    ts_param_info plain = {.name = "model.norm.weight", .file_rank = 1, .file_dim = {7}};
    (void)state;
    assert_string_equal(ts_param_name(&p, 0, name, sizeof name),
                        "model.layers.1.mlp.up_proj.weight");
    assert_string_equal(ts_param_name(&p, 15, name, sizeof name),
                        "model.layers.31.mlp.up_proj.weight");
    assert_string_equal(ts_param_name(&plain, 0, name, sizeof name), "model.norm.weight");
    assert_int_equal(ts_param_elements(&p), 15);
    assert_int_equal(ts_param_elements(&plain), 7);
}

/* ---- initial values -------------------------------------------------------------------------- */

static void test_initial_values(void **state)
{
    enum { N = 200000 };
    float *x = malloc(N * sizeof *x), *y = malloc(N * sizeof *y);
    double sum = 0, square = 0, fourth = 0;
    int differ = 0;
    (void)state;
    ts_init_values("model.layers.3.mlp.up_proj.weight", 0.5, 7, 0, N, x);
    for (int i = 0; i < N; i++) sum += (double)x[i];
    double mean = sum / N;
    for (int i = 0; i < N; i++) {
        double d = (double)x[i] - mean;
        square += d * d;
        fourth += d * d * d * d;
    }
    double variance = square / N;
    assert_true(fabs(mean) < 5 * 0.5 / sqrt(N));
    assert_true(fabs(sqrt(variance) - 0.5) < 5 * 0.5 / sqrt(2.0 * N));
    assert_true(fabs(fourth / N / (variance * variance) - 3) < 5 * sqrt(24.0 / N));
    /* Any piece is the same values. */
    ts_init_values("model.layers.3.mlp.up_proj.weight", 0.5, 7, 1234, 5000, y);
    assert_memory_equal(y, x + 1234, 5000 * sizeof *x);
    ts_init_values("model.layers.3.mlp.up_proj.weight", 0.5, 8, 0, 100, y);
    for (int i = 0; i < 100; i++) differ += x[i] != y[i];
    assert_true(differ > 95);
    ts_init_values("model.layers.4.mlp.up_proj.weight", 0.5, 7, 0, 100, y);
    differ = 0;
    for (int i = 0; i < 100; i++) differ += x[i] != y[i];
    assert_true(differ > 95);
    ts_init_values("a", TS_INIT_ONES, 1, 0, 3, x);
    ts_init_values("a", TS_INIT_ZEROS, 1, 0, 3, y);
    for (int i = 0; i < 3; i++) assert_true(x[i] == 1.0f && y[i] == 0.0f);
    free(x);
    free(y);
}

/* ---- pins ------------------------------------------------------------------------------------ */

/* "batch,-,mlp": the names of a pin. */
static void check_pin(const ts_value *v, const char *expected)
{
    char text[200] = "";
    assert_non_null(v->pin);
    for (int i = 0; i < v->type.rank; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", i ? "," : "",
                 v->pin->name[i] ? v->pin->name[i] : "-");
    assert_string_equal(text, expected);
}

static void test_pins(void **state)
{
    const ts_dim B = {"batch", 2}, S = {"sequence", 4}, E = {"embed", 6}, K = {"kv_heads", 2},
                 G = {"group", 3}, D = {"head_dim", 2}, F = {"mlp", 5}, V = {"vocab", 7};
    (void)state;
    ts_builder *b = ts_builder_new("pins");
    ts_set_compute_dtype(b, TS_BF16);
    ts_value *ids = ts_input(b, "ids", TS_I32, TS_DIMS(B, S));
    ts_value *x = ts_embedding(b, ts_param(b, "table", TS_DIMS(V, E), 1, 1), ids);
    check_pin(x, "batch,sequence,-");
    assert_int_equal(x->node->in[0]->type.dtype, TS_BF16); /* converted before it is gathered */
    x = ts_norm(b, x, "norm", 1e-5);
    assert_null(x->pin);
    ts_value *q = ts_linear(b, x, "q", TS_DIMS(K, G, D));
    check_pin(q, "batch,-,kv_heads,group,-");
    check_pin(ts_linear(b, x, "k", TS_DIMS(K, D)), "batch,-,kv_heads,-");
    check_pin(ts_linear(b, x, "up", TS_DIMS(F)), "batch,-,mlp");
    check_pin(ts_linear(b, x, "square", TS_DIMS(E)), "batch,-,-");
    check_pin(ts_linear_in(b, q, 3, "o", E), "batch,sequence,-");
    /* A sequence is the stream's only beside a batch; names that say nothing are whole. */
    ts_value *alone = ts_input(b, "alone", TS_F32, TS_DIMS(S, F));
    check_pin(ts_linear_in(b, alone, 1, "alone.o", E), "-,-");
    ts_value *rows = ts_input(b, "rows", TS_F32, TS_DIMS({"rows", 3}, B, B, {NULL, 2}));
    check_pin(ts_linear(b, rows, "rows.w", TS_DIMS({NULL, 3})), "-,batch,-,-");
    check_pin(ts_linear_in(b, rows, 2, "rows.o", E), "-,batch,-");
    /* A norm's scale is told from a matrix by its rank in files, in a stack too. */
    for (int i = 0; i < b->graph->n_param; i++)
        assert_int_equal(b->graph->param[i].file_rank,
                         strcmp(b->graph->param[i].name, "norm") == 0 ? 1 : 2);
    ts_graph_free(help_finish(b));
}

/* ---- the toy model --------------------------------------------------------------------------- */

enum { ROWS = 3, WIDTH = 6, MOST_NAMES = 200 };

typedef struct toy {
    int n;
    const uint64_t *kind;
    bool unroll;
    ts_remat remat;
    ts_value *outer; /* a value computed before the layers, [ROWS,WIDTH] */
} toy;

static ts_value *inner_repeat(ts_builder *b, const toy *t, ts_value *x, const ts_dim *e)
{
    ts_value *g, *result, *gain = ts_logistic(b, x);
    ts_repeat *r = ts_repeat_begin(b, 3, false, &x, 1, NULL, 0, &g, NULL);
    ts_value *w = ts_param(b, "inner.weight", e, 1, 0, 0.3); /* [E], first used inside */
    ts_value *y = ts_rms_norm(b, ts_add(b, g, ts_mul(b, t->outer, gain)), w, 1e-3);
    ts_value *next = ts_add(b, g, ts_mul(b, ts_tanh(b, y), gain));
    ts_repeat_end(b, r, &next, NULL, NULL, 0, &result);
    return result;
}

static ts_value *toy_layer(ts_builder *b, const void *context, int i, ts_value *x)
{
    const toy *t = context;
    const ts_dim e = {"embed", WIDTH}, wide = {"mlp", 5};
    if (t->kind[i] == 0) {
        ts_value *h = ts_norm(b, x, "norm.weight", 1e-5);
        ts_value *f = ts_gated(b, TS_SILU, ts_linear(b, h, "gate.weight", &wide, 1),
                               ts_linear(b, h, "up.weight", &wide, 1));
        return ts_add(b, x, ts_linear_in(b, f, 1, "down.weight", e));
    }
    if (t->kind[i] == 1) {
        ts_value *y = ts_linear(b, x, "square.weight", &e, 1);
        return ts_add(b, ts_mul(b, x, ts_logistic(b, y)), t->outer);
    }
    return inner_repeat(b, t, x, &e);
}

static void output_hidden(ts_builder *b)
{
    for (int i = 0; i < b->n_hidden; i++) {
        const ts_hidden h = b->hidden[i];
        for (int k = 0; k < h.count; k++) {
            char name[64];
            snprintf(name, sizeof name, "hidden.%d", h.first + k * h.step);
            ts_output(
                b, ts_arena_strdup(b->graph->arena, name),
                ts_reshape(b, ts_slice(b, h.value, 0, k, k + 1), ts_type_of(h.value)->dim + 1, 2),
                NULL);
        }
    }
}

/* Outputs y, loss, dx, hidden.N, and the gradient of every parameter under "grad." and its name. */
static ts_graph *toy_graph(toy *t)
{
    ts_builder *b = ts_builder_new("toy");
    ts_value *wrt[64], *d[64];
    b->unroll_layers = t->unroll;
    b->keep_hidden = true;
    ts_set_remat(b, t->remat);
    ts_value *x = ts_input(b, "x", TS_F32, TS_DIMS({"batch", ROWS}, {"embed", WIDTH}));
    t->outer = ts_sin(b, x);
    ts_value *y = ts_layers(b, "toy", t->n, t->kind, toy_layer, t, x);
    ts_value *loss = ts_reduce_sum(b, ts_mul(b, y, y), TS_INTS(0, 1));
    ts_output(b, "y", y, NULL);
    ts_output(b, "loss", loss, NULL);
    output_hidden(b);
    int n = b->graph->n_param;
    assert_true(n < 63);
    for (int i = 0; i < n; i++) wrt[i] = b->graph->param[i].value;
    wrt[n] = x;
    ts_error err = {0};
    if (ts_grad(b, loss, wrt, n + 1, d, &err) != TS_OK) fail_msg("%s", err.msg);
    for (int i = 0; i < n; i++)
        ts_output(b, ts_arena_printf(b->graph->arena, "grad.%s", b->graph->param[i].name), d[i],
                  NULL);
    ts_output(b, "dx", d[n], NULL);
    return help_finish(b);
}

typedef struct results {
    int n;
    char name[MOST_NAMES][100];
    float *value[MOST_NAMES];
    int64_t count[MOST_NAMES];
} results;

static void add_result(results *r, const char *name, const float *value, int64_t n)
{
    assert_true(r->n < MOST_NAMES);
    snprintf(r->name[r->n], sizeof r->name[0], "%s", name);
    r->value[r->n] = malloc((size_t)n * sizeof(float));
    memcpy(r->value[r->n], value, (size_t)n * sizeof(float));
    r->count[r->n++] = n;
}

static void results_free(results *r)
{
    for (int i = 0; i < r->n; i++) free(r->value[i]);
}

/* Everything by published names: outputs, gradients layer by layer, initial values. */
static void collect(const ts_graph *g, ts_bound *b, const ts_state *s, results *r)
{
    float data[4096];
    char name[512], full[600];
    for (int i = 0; i < g->top->n_result; i++) {
        const ts_type *t = &g->top->result[i]->type;
        assert_true(ts_type_bytes(t) <= sizeof data);
        assert_int_equal(ts_bound_get(b, g->output[i].name, data, ts_type_bytes(t), NULL), TS_OK);
        if (strncmp(g->output[i].name, "grad.", 5) != 0)
            add_result(r, g->output[i].name, data, ts_type_elements(t));
        for (int k = 0; k < g->n_param; k++) {
            const ts_param_info *p = &g->param[k];
            if (strcmp(g->output[i].name + 5, p->name) != 0 ||
                strncmp(g->output[i].name, "grad.", 5) != 0)
                continue;
            for (int j = 0; j < (p->count ? p->count : 1); j++) {
                snprintf(full, sizeof full, "grad.%s", ts_param_name(p, j, name, sizeof name));
                add_result(r, full, data + j * ts_param_elements(p), ts_param_elements(p));
            }
        }
    }
    for (size_t i = 0; i < ts_state_tensor_count(s); i++) {
        ts_state_tensor t;
        ts_state_tensor_at(s, i, &t);
        assert_int_equal(ts_state_read(&t, 0, t.elements, data, NULL), TS_OK);
        add_result(r, t.name, data, (int64_t)t.elements);
    }
}

static void run_toy(toy *t, results *r)
{
    ts_engine *e = help_engine("ref", 1);
    ts_graph *g = toy_graph(t);
    ts_state *s;
    ts_bound *b;
    float x[ROWS * WIDTH];
    *r = (results){0};
    for (int i = 0; i < ROWS * WIDTH; i++) x[i] = sinf((float)i * 0.7f);
    assert_int_equal(ts_state_new(e, g, &s, NULL), TS_OK);
    assert_int_equal(ts_state_initialise(s, 5, NULL), TS_OK);
    assert_int_equal(ts_bound_new(e, g, s, &b, NULL), TS_OK);
    assert_int_equal(ts_bound_set(b, "x", x, sizeof x, NULL), TS_OK);
    assert_int_equal(ts_bound_execute(b, NULL), TS_OK);
    collect(g, b, s, r);
    ts_bound_free(b);
    ts_state_free(s);
    ts_graph_free(g);
    ts_engine_close(e);
}

static void check_same(const results *a, const results *b, double tolerance)
{
    assert_int_equal(a->n, b->n);
    for (int i = 0; i < a->n; i++) {
        int k = 0;
        while (k < b->n && strcmp(a->name[i], b->name[k]) != 0) k++;
        if (k == b->n) fail_msg("%s is only on one side", a->name[i]);
        assert_int_equal(a->count[i], b->count[k]);
        double most = 0, gap = 0;
        for (int64_t j = 0; j < a->count[i]; j++) {
            most = fmax(most, fabs((double)a->value[i][j]));
            gap = fmax(gap, fabs((double)a->value[i][j] - (double)b->value[k][j]));
        }
        bool initial = strncmp(a->name[i], "toy.", 4) == 0;
        if (!(most > 0)) fail_msg("%s is all zero", a->name[i]);
        if (!(gap <= (initial ? 0 : tolerance * most)))
            fail_msg("%s differs by %g of %g", a->name[i], gap, most);
    }
}

/* Stacked and unrolled, every remat policy: one function, one gradient, the same initial values.
 */
static void check_kinds(const uint64_t *kind, int n, int repeats)
{
    results want, got;
    toy t = {.n = n, .kind = kind, .unroll = true};
    run_toy(&t, &want);
    assert_true(want.n > 3 + n);
    for (int form = 0; form < 5; form++) {
        t = (toy){.n = n,
                  .kind = kind,
                  .unroll = form == 2 || form == 4,
                  .remat = form == 0   ? TS_REMAT_NONE
                           : form <= 2 ? TS_REMAT_FULL
                                       : TS_REMAT_MINIMAL};
        ts_graph *g = toy_graph(&t);
        int stacked = 0;
        for (const ts_node *k = g->top->first; k; k = k->next)
            stacked += k->op == TS_OP_repeat && !k->backward && k->attr.repeat.n > 1 && t.n > 1 &&
                       !t.unroll;
        if (!t.unroll) assert_int_equal(stacked, repeats);
        ts_graph_free(g);
        run_toy(&t, &got);
        check_same(&want, &got, 2e-6);
        results_free(&got);
    }
    results_free(&want);
}

static void test_period_2(void **state)
{
    static const uint64_t kind[] = {0, 1, 0, 1, 0, 1};
    (void)state;
    check_kinds(kind, 6, 1);
}

static void test_period_3(void **state)
{
    static const uint64_t kind[] = {0, 1, 2, 0, 1, 2, 0, 1, 2};
    (void)state;
    check_kinds(kind, 9, 1);
}

/* Repeats between unrolled layers. */
static void test_mixed(void **state)
{
    static const uint64_t kind[] = {2, 0, 1, 0, 1, 2, 1, 0, 0};
    (void)state;
    check_kinds(kind, 9, 1);
}

static void test_equal_layers(void **state)
{
    static const uint64_t kind[] = {2, 2, 2, 2};
    (void)state;
    check_kinds(kind, 4, 1);
}

/* ---- patterns of stacked parameters ---------------------------------------------------------- */

static void test_param_matches(void **state)
{
    ts_builder *b = ts_builder_new("patterns");
    const ts_param_info stack = {
        .name = "model.layers.{0..3:1}.mlp.up_proj.weight", .step = 1, .count = 4};
    const char *const all[] = {"*mlp*"}, *const each[] = {"model.layers.[0-3].*",
                                                          "model.layers.?.mlp.*"};
    const char *const none[] = {"model.norm.*"}, *const one[] = {"lm_head.*", "model.layers.2.*"};
    (void)state;
    assert_true(ts_param_matches(b, &stack, all, 1, "frozen_parameters"));
    assert_true(ts_param_matches(b, &stack, each, 2, "frozen_parameters"));
    assert_false(ts_param_matches(b, &stack, none, 1, "frozen_parameters"));
    assert_false(ts_param_matches(b, &stack, NULL, 0, "frozen_parameters"));
    assert_int_equal(b->error.code, TS_OK);
    ts_param_matches(b, &stack, one, 2, "frozen_parameters");
    assert_int_equal(b->error.code, TS_INVALID_ARGUMENT);
    assert_non_null(strstr(b->error.msg, "frozen_parameters"));
    assert_non_null(strstr(b->error.msg, "model.layers.2.mlp"));
    assert_non_null(strstr(b->error.msg, "scan_layers=false"));
    ts_builder_free(b);
}

/* ---- mistakes tell the line of the model ----------------------------------------------------- */

static int wrong_line;

static ts_value *wrong_layer(ts_builder *b, const void *context, int i, ts_value *x)
{
    const ts_dim other = {"mlp", 5};
    (void)context;
    (void)i;
    ts_value *y = ts_linear(b, x, "up.weight", &other, 1);
    wrong_line = __LINE__ + 1;
    x = ts_add(b, x, y);
    return ts_mul(b, x, x);
}

static void test_mistake(void **state)
{
    static const uint64_t same[3] = {0};
    ts_builder *b = ts_builder_new("wrong");
    ts_graph *g = (ts_graph *)b;
    ts_error err = {0};
    char place[64];
    (void)state;
    ts_value *x = ts_input(b, "x", TS_F32, TS_DIMS({"batch", 2}, {"embed", 4}));
    ts_output(b, "y", ts_layers(b, "toy", 3, same, wrong_layer, NULL, x), NULL);
    assert_int_equal(ts_builder_finish(b, &g, &err), TS_INVALID_ARGUMENT);
    assert_null(g);
    snprintf(place, sizeof place, "test_layers.c:%d", wrong_line);
    if (!strstr(err.msg, place) || !strstr(err.msg, "layers.0"))
        fail_msg("%s lacks %s or the layer", err.msg, place);
}

/* The published model does too: rope tables of another head size. */
static void test_mistake_in_llama(void **state)
{
    const ts_model_config m = {.arch = TS_ARCH_LLAMA,
                               .vocab = 11,
                               .hidden = 8,
                               .ffn = 6,
                               .layers = 2,
                               .heads = 2,
                               .kv_heads = 1,
                               .head_dim = 4,
                               .norm_eps = 1e-5,
                               .rope_theta = 1e4};
    ts_builder *b = ts_builder_new("wrong");
    ts_graph *g;
    ts_error err = {0};
    (void)state;
    ts_forward_inputs in = {
        .tokens = ts_input(b, "tokens", TS_I32, TS_DIMS({"batch", 2}, {"sequence", 3})),
        .cos = ts_input(b, "cos", TS_F32, TS_DIMS({"sequence", 3}, {NULL, 3})),
        .sin = ts_input(b, "sin", TS_F32, TS_DIMS({"sequence", 3}, {NULL, 3}))};
    ts_output(b, "y", ts_model_forward(b, &m, &in).stream, NULL);
    assert_int_equal(ts_builder_finish(b, &g, &err), TS_INVALID_ARGUMENT);
    if (!strstr(err.msg, "llama.c:")) fail_msg("no line of the model: %s", err.msg);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_segments_e2b),
        cmocka_unit_test(test_segments_forms),
        cmocka_unit_test(test_segments_random),
        cmocka_unit_test(test_patterns),      cmocka_unit_test(test_pins),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_initial_values),
        cmocka_unit_test(test_period_2),
        cmocka_unit_test(test_period_3),
        cmocka_unit_test(test_mixed),
        cmocka_unit_test(test_equal_layers),
        cmocka_unit_test(test_param_matches),
        cmocka_unit_test(test_mistake),
        cmocka_unit_test(test_mistake_in_llama),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
