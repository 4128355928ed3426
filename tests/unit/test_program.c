/* tests/unit/test_program.c – the graphs a run executes: what is in them, what must not be, and
 * that one step does what it says.
 *
 * Sizes are chosen so that tokens × vocabulary is larger than every tensor that may be there and no
 * other dimension is as long as the sequence: a walk over all values then finds what should not
 * exist. Numbers: accumulation against one batch, skipped steps bit by bit. The optimizer is in
 * test_optimizer.c.
 */
#include "engine_help.h"

#include <math.h>
#include <stdlib.h>

#include "ir/attrs.h"
#include "train/program.h"
#include "train/run.h"
#include "train/sampler.h"

enum { VOCAB = 101, SEQ = 23, ROWS = 2, LAYERS = 3 };

static const ts_model_config model = {.arch = TS_ARCH_LLAMA,
                                      .vocab = VOCAB,
                                      .hidden = 20,
                                      .ffn = 28,
                                      .layers = LAYERS,
                                      .heads = 4,
                                      .kv_heads = 2,
                                      .head_dim = 6,
                                      .max_positions = 64,
                                      .norm_eps = 1e-5,
                                      .rope_theta = 1e4,
                                      .bos_id = -1,
                                      .eos_id = -1,
                                      .pad_id = -1};

static ts_program_options options(ts_remat remat, bool scan)
{
    return (ts_program_options){.model = &model,
                                .rows = ROWS,
                                .sequence = SEQ,
                                .accumulation = 1,
                                .compute = TS_F32,
                                .remat = remat,
                                .scan_layers = scan,
                                .optimizer = {.adamw = {0.9, 0.95, 1e-8, 0.1}, .clip = 1}};
}

static ts_graph *train_graph(const ts_program_options *o)
{
    ts_graph *g = NULL;
    ts_error err = {0};
    if (ts_program_train(o, &g, &err) != TS_OK) fail_msg("%s", err.msg);
    return g;
}

/* ---- every value of a graph ------------------------------------------------------------------ */

typedef void visit(const ts_value *v, const ts_node *n, void *context);

static void walk(const ts_region *r, visit *f, void *context)
{
    for (int i = 0; i < r->n_arg; i++) f(r->arg[i], NULL, context);
    for (const ts_node *n = r->first; n; n = n->next) {
        for (int i = 0; i < n->n_out; i++) f(n->out[i], n, context);
        if (n->body) walk(n->body, f, context);
    }
}

static void check_size(const ts_value *v, const ts_node *n, void *context)
{
    int long_dims = 0;
    char text[400];
    (void)context;
    for (int i = 0; i < v->type.rank; i++) long_dims += v->type.dim[i].size == SEQ;
    if (long_dims > 1 || ts_type_elements(&v->type) >= (int64_t)ROWS * SEQ * VOCAB)
        fail_msg("%s makes %s", n ? ts_op_infos[n->op].name : "an argument",
                 ts_type_text(&v->type, text, sizeof text));
}

/* Activations of the forward pass and all state: every dimension has its logical axis. */
static void check_names(const ts_value *v, const ts_node *n, void *context)
{
    bool is_float = v->type.dtype == TS_F32 || v->type.dtype == TS_BF16;
    char text[400];
    (void)context;
    if (!is_float || (n && n->backward)) return;
    for (int i = 0; i < v->type.rank; i++)
        if (!v->type.dim[i].name)
            fail_msg("%s makes %s without an axis", n ? ts_op_infos[n->op].name : "an argument",
                     ts_type_text(&v->type, text, sizeof text));
}

/* ---- what the partitioner is told ------------------------------------------------------------ */

static bool same_sizes(const ts_value *a, const ts_value *b)
{
    bool same = a->type.rank == b->type.rank;
    for (int i = 0; same && i < a->type.rank; i++)
        same = a->type.dim[i].size == b->type.dim[i].size;
    return same;
}

/* Backward nodes are copies of their primal, or say what of it they are like, and that has the same shape. Sums of
 * cotangents belong to no rule. */
static void check_like(const ts_value *v, const ts_node *n, void *context)
{
    const ts_node *p = n ? n->primal : NULL;
    int *counts = context;
    if (!n || v != n->out[0]) return;
    if (!p) {
        assert_null(n->like);
        assert_true(!n->backward || n->op == TS_OP_add_n || n->op == TS_OP_repeat ||
                    n->op == TS_OP_barrier || n->op == TS_OP_constant || n->op == TS_OP_convert);
        return;
    }
    assert_true(n->backward && n->op != TS_OP_add_n);
    counts[n->like != NULL]++;
    if (!n->like) {
        assert_true(n->op == p->op && n->n_in == p->n_in && !p->backward);
        assert_true(ts__attr_same(ts_op_infos[n->op].attr, &n->attr, &p->attr));
        for (int i = 0; i < n->n_out; i++) assert_ptr_equal(n->out[i]->pin, p->out[i]->pin);
        return;
    }
    for (int i = 0; i < n->n_in + n->n_out; i++) {
        const ts_value *mine = i < n->n_in ? n->in[i] : n->out[i - n->n_in];
        int k = n->like[i];
        if (k < 0) continue;
        if (!same_sizes(mine, k < p->n_in ? p->in[k] : p->out[k - p->n_in]))
            fail_msg("value %d of a %s is not like place %d of its %s", i, ts_op_infos[n->op].name,
                     k, ts_op_infos[p->op].name);
    }
    if (n->op == TS_OP_dot) /* of the cotangent and one operand the other's cotangent */
        assert_true(n->like[0] == 2 && (n->like[1] == 0 || n->like[1] == 1) &&
                    n->like[1] + n->like[2] == 1);
    if (n->op == TS_OP_attention_grad)
        for (int i = 0; i < 3; i++) assert_true(n->like[i] == i && n->like[n->n_in + i] == i);
}

static void check_batch_pins(const ts_graph *g, bool micro)
{
    static const char *const names[] = {"tokens", "labels", "segments", "positions"};
    for (int i = 0; i < 4; i++) {
        int at = ts_graph_input_index(g, names[i]);
        const ts_value *v = at < 0 ? NULL : g->top->arg[at];
        if (!v) continue;
        assert_int_equal(v->type.rank, 2 + micro);
        assert_string_equal(v->pin->name[micro], "batch");
        assert_int_equal(v->type.dim[micro].size, ROWS);
        for (int k = 0; k < v->type.rank; k++) assert_true(k == micro || !v->pin->name[k]);
    }
    const ts_value *cos = g->top->arg[ts_graph_input_index(g, "rope.cos")];
    assert_true(cos->pin && !cos->pin->name[0] && !cos->pin->name[1]);
}

static char *text_of(const ts_graph *g)
{
    ts_string s = ts_string_new(1 << 24);
    ts_graph_print(g, &s);
    assert_false(s.failed);
    return s.data;
}

static void check_round_trip(const ts_graph *g)
{
    ts_graph *again = NULL;
    ts_error err = {0};
    char *first = text_of(g);
    if (ts_graph_verify(g, &err) != TS_OK) fail_msg("%s", err.msg);
    if (ts_graph_parse(first, strlen(first), &again, &err) != TS_OK) fail_msg("%s", err.msg);
    if (ts_graph_verify(again, &err) != TS_OK) fail_msg("%s", err.msg);
    char *second = text_of(again);
    assert_string_equal(first, second);
    assert_int_equal(again->n_param, g->n_param);
    ts_free(first);
    ts_free(second);
    ts_graph_free(again);
}

static void test_train_graphs(void **state)
{
    (void)state;
    for (int form = 0; form < 48; form++) {
        ts_program_options o = options((ts_remat)(form % 3), form & 2);
        int counts[2] = {0, 0}; /* copies, made by rules */
        o.accumulation = form & 4 ? 2 : 1;
        o.packed = form & 8;
        o.compute = form & 16 ? TS_BF16 : TS_F32;
        ts_graph *g = train_graph(&o);
        check_round_trip(g);
        walk(g->top, check_size, NULL);
        walk(g->top, check_names, NULL);
        walk(g->top, check_like, counts);
        /* A layer's rules make 14 products and 6 other nodes. Again it computes 7 conversions of weights; minimal also
         * two norms, two ropes, an add and the activation; full also six products and attention. */
        int layers = o.scan_layers ? 1 : LAYERS, bf16 = o.compute == TS_BF16;
        int again = o.remat == TS_REMAT_NONE ? 0 : o.remat == TS_REMAT_MINIMAL ? 6 : 13;
        assert_int_equal(counts[0], layers * (again + 7 * bf16));
        assert_int_equal(counts[1], layers * 20 + 7 + bf16);
        check_batch_pins(g, o.accumulation > 1);
        assert_true(ts_graph_output_index(g, "loss") >= 0 && ts_graph_output_index(g, "ok") >= 0);
        ts_graph_free(g);
    }
}

static void test_other_graphs(void **state)
{
    (void)state;
    for (int form = 0; form < 4; form++) {
        ts_program_options o = options(TS_REMAT_NONE, form & 1);
        ts_graph *g[3];
        ts_error err = {0};
        o.compute = form & 2 ? TS_BF16 : TS_F32;
        assert_int_equal(ts_program_eval(&o, &g[0], &err), TS_OK);
        assert_int_equal(ts_program_logits(&o, &g[1], &err), TS_OK);
        assert_int_equal(ts_program_probe(&o, &g[2], &err), TS_OK);
        walk(g[0]->top, check_size, NULL);
        walk(g[1]->top, check_size, NULL);
        for (int i = 0; i < LAYERS; i++) {
            char name[32];
            snprintf(name, sizeof name, "hidden.%d", i);
            assert_true(ts_graph_output_index(g[2], name) >= 0);
        }
        for (int i = 0; i < 3; i++) {
            check_round_trip(g[i]);
            ts_graph_free(g[i]);
        }
    }
}

/* ---- what a layer keeps ---------------------------------------------------------------------- */

static const ts_node *layers_repeat(const ts_region *r)
{
    for (const ts_node *n = r->first; n; n = n->next)
        if (n->op == TS_OP_repeat && !n->backward && n->attr.repeat.n == LAYERS) return n;
    return NULL;
}

static void test_saved(void **state)
{
    (void)state;
    for (int bf16 = 0; bf16 < 2; bf16++) {
        ts_program_options o = options(TS_REMAT_FULL, true);
        o.compute = bf16 ? TS_BF16 : TS_F32;
        ts_graph *g = train_graph(&o);
        const ts_node *n = layers_repeat(g->top);
        assert_non_null(n);
        assert_int_equal(n->attr.repeat.n_carry, 1);
        assert_int_equal(n->n_out, 2); /* the carry, and its stack */
        assert_int_equal(ts_type_elements(&n->out[1]->type),
                         LAYERS * ts_type_elements(&n->out[0]->type));
        assert_ptr_equal(n->body->result[1], n->body->arg[0]);
        assert_int_equal(n->out[1]->type.dtype, o.compute);
        ts_graph_free(g);
    }
    ts_program_options o = options(TS_REMAT_NONE, true);
    ts_graph *g = train_graph(&o);
    assert_true(layers_repeat(g->top)->n_out > 5);
    /* No stacked copy of a weight: what is saved has the tokens' dimensions. */
    const ts_node *n = layers_repeat(g->top);
    for (int i = 1; i < n->n_out; i++) assert_int_equal(n->out[i]->type.dim[1].size, ROWS);
    ts_graph_free(g);
}

static int count_dots(const ts_region *r, bool backward)
{
    int n = 0;
    for (const ts_node *k = r->first; k; k = k->next)
        n += (k->op == TS_OP_dot && k->backward == backward) +
             (k->body ? count_dots(k->body, backward) : 0);
    return n;
}

/* Minimal keeps the layer's input, six of its seven products (nothing asks for the last) and attention's two results;
 * no product is computed twice. */
static void test_minimal(void **state)
{
    (void)state;
    for (int form = 0; form < 4; form++) {
        ts_program_options o = options(TS_REMAT_NONE, true);
        o.compute = form & 1 ? TS_BF16 : TS_F32;
        o.packed = form & 2;
        ts_graph *none = train_graph(&o);
        o.remat = TS_REMAT_MINIMAL;
        ts_graph *g = train_graph(&o);
        const ts_node *n = layers_repeat(g->top);
        int input = 0, dots = 0, attention = 0;
        for (int i = 1; i < n->n_out; i++) {
            const ts_value *v = n->body->result[i];
            input += v == n->body->arg[0];
            dots += v->node && v->node->op == TS_OP_dot;
            attention += v->node && v->node->op == TS_OP_attention;
        }
        assert_int_equal(n->n_out, 1 + 9);
        assert_int_equal(input, 1);
        assert_int_equal(dots, 6);
        assert_int_equal(attention, 2);
        assert_int_equal(count_dots(g->top, true), count_dots(none->top, true));
        assert_int_equal(count_dots(g->top, true), 14);
        ts_graph_free(none);
        ts_graph_free(g);
    }
}

/* ---- running a step -------------------------------------------------------------------------- */

typedef struct job {
    ts_engine *e;
    ts_graph *g;
    ts_state *state;
    ts_bound *b;
    int64_t rows;
} job;

static job start(const ts_program_options *o)
{
    job j = {.e = help_engine("ref", 1), .g = train_graph(o), .rows = o->rows * o->accumulation};
    ts_error err = {0};
    assert_int_equal(ts_state_new(j.e, j.g, &j.state, &err), TS_OK);
    assert_int_equal(ts_state_initialise(j.state, 3, &err), TS_OK);
    if (ts_bound_new(j.e, j.g, j.state, &j.b, &err) != TS_OK) fail_msg("%s", err.msg);
    assert_int_equal(ts__set_rope(j.b, &model, SEQ, &err), TS_OK);
    return j;
}

static void stop(job *j)
{
    ts_bound_free(j->b);
    ts_state_free(j->state);
    ts_graph_free(j->g);
    ts_engine_close(j->e);
}

/* Rows of the same text, of which each has another number of trained tokens; the last has none. */
static void set_batch(job *j, bool packed)
{
    int32_t tokens[8 * SEQ], labels[8 * SEQ], segments[8 * SEQ], positions[8 * SEQ];
    size_t bytes = (size_t)j->rows * SEQ * sizeof(int32_t);
    for (int r = 0; r < j->rows; r++)
        for (int s = 0; s < SEQ; s++) {
            int at = r * SEQ + s;
            tokens[at] = (int32_t)(help_hash((uint32_t)at) % VOCAB);
            labels[at] = s >= 3 + 5 * r && r < j->rows - 1
                             ? (int32_t)(help_hash((uint32_t)at + 999) % VOCAB)
                             : -1;
            segments[at] = 1 + (s >= 9);
            positions[at] = s >= 9 ? s - 9 : s;
        }
    assert_int_equal(ts_bound_set(j->b, "tokens", tokens, bytes, NULL), TS_OK);
    assert_int_equal(ts_bound_set(j->b, "labels", labels, bytes, NULL), TS_OK);
    if (!packed) return;
    assert_int_equal(ts_bound_set(j->b, "segments", segments, bytes, NULL), TS_OK);
    assert_int_equal(ts_bound_set(j->b, "positions", positions, bytes, NULL), TS_OK);
}

static float step(job *j, int32_t number)
{
    float lr = 1e-3f, loss;
    assert_int_equal(ts_bound_set(j->b, "lr", &lr, sizeof lr, NULL), TS_OK);
    assert_int_equal(ts_bound_set(j->b, "step", &number, sizeof number, NULL), TS_OK);
    assert_int_equal(ts_bound_execute(j->b, NULL), TS_OK);
    assert_int_equal(ts_bound_get(j->b, "loss", &loss, sizeof loss, NULL), TS_OK);
    return loss;
}

static float scalar(job *j, const char *name)
{
    float x;
    assert_int_equal(ts_bound_get(j->b, name, &x, sizeof x, NULL), TS_OK);
    return x;
}

static float *state_tensor(const ts_state *s, const char *name, size_t *n)
{
    for (size_t i = 0; i < ts_state_tensor_count(s); i++) {
        ts_state_tensor t;
        ts_state_tensor_at(s, i, &t);
        if (strcmp(t.name, name) != 0) continue;
        float *data = malloc(t.elements * sizeof *data);
        assert_int_equal(ts_state_read(&t, 0, t.elements, data, NULL), TS_OK);
        *n = t.elements;
        return data;
    }
    fail_msg("%s is not in the state", name);
    return NULL;
}

/* First moments after one step are the clipped gradients, so they tell all of them. */
static void check_moments(const job *a, const job *b)
{
    for (size_t i = 0; i < ts_state_tensor_count(a->state); i++) {
        ts_state_tensor t;
        size_t n, m;
        ts_state_tensor_at(a->state, i, &t);
        if (strncmp(t.name, "adam.m.", 7) != 0) continue;
        float *x = state_tensor(a->state, t.name, &n), *y = state_tensor(b->state, t.name, &m);
        double most = 0, gap = 0;
        assert_int_equal(n, m);
        for (size_t k = 0; k < n; k++) {
            most = fmax(most, fabs((double)x[k]));
            gap = fmax(gap, fabs((double)x[k] - (double)y[k]));
        }
        if (!(most > 0 && gap <= 5e-6 * most))
            fail_msg("%s differs by %g of %g", t.name, gap, most);
        free(x);
        free(y);
    }
}

/* Four rows at once, as two micro-batches of two and four of one, with both layouts of layers: rows
 * with different numbers of trained tokens and one with none weigh as in the whole batch. */
static void test_accumulation(void **state)
{
    (void)state;
    for (int packed = 0; packed < 2; packed++) {
        ts_program_options o = options(TS_REMAT_NONE, true);
        o.packed = packed;
        o.rows = 4;
        job whole = start(&o);
        set_batch(&whole, packed);
        double loss = (double)step(&whole, 1);
        assert_true(loss > 1 && scalar(&whole, "weights") == 20 + 15 + 10);
        for (int form = 0; form < 3; form++) {
            o.accumulation = form == 0 ? 2 : form == 1 ? 4 : 1;
            o.rows = 4 / o.accumulation;
            o.scan_layers = form == 0;
            o.remat = form == 1 ? TS_REMAT_NONE : TS_REMAT_FULL;
            job parts = start(&o);
            set_batch(&parts, packed);
            assert_true(fabs((double)step(&parts, 1) - loss) < 2e-6);
            assert_true(
                fabs((double)scalar(&parts, "grad_norm") / (double)scalar(&whole, "grad_norm") -
                     1) < 5e-6);
            assert_true(scalar(&parts, "weights") == scalar(&whole, "weights"));
            check_moments(&whole, &parts);
            stop(&parts);
        }
        stop(&whole);
    }
}

static uint64_t hash_state(const ts_state *s)
{
    uint64_t h = 14695981039346656037u;
    for (size_t i = 0; i < ts_state_tensor_count(s); i++) {
        ts_state_tensor t;
        ts_state_tensor_at(s, i, &t);
        const size_t bytes = t.elements * sizeof(float);
        unsigned char *data = malloc(bytes);
        assert_int_equal(ts_state_read(&t, 0, t.elements, (float *)data, NULL), TS_OK);
        for (size_t k = 0; k < bytes; k++) h = (h ^ data[k]) * 1099511628211u;
        free(data);
    }
    return h;
}

/* What is kept and what is computed again are the same bits. */
static void test_remats_agree(void **state)
{
    (void)state;
    for (int scan = 0; scan < 2; scan++) {
        uint64_t hash[3];
        float loss[3];
        for (int remat = TS_REMAT_NONE; remat <= TS_REMAT_MINIMAL; remat++) {
            ts_program_options o = options((ts_remat)remat, scan);
            job j = start(&o);
            set_batch(&j, false);
            for (int32_t i = 1; i <= 2; i++) loss[remat] = step(&j, i);
            hash[remat] = hash_state(j.state);
            stop(&j);
        }
        assert_true(loss[0] == loss[1] && loss[0] == loss[2] && loss[0] > 1);
        assert_true(hash[0] == hash[1] && hash[0] == hash[2]);
    }
}

/* A step with a NaN inside changes no bit of weights or moments, and the next good one goes on. */
static void test_nonfinite(void **state)
{
    (void)state;
    ts_program_options o = options(TS_REMAT_FULL, true);
    job j = start(&o);
    uint8_t ok;
    float table[SEQ * 3];
    set_batch(&j, false);
    step(&j, 1);
    uint64_t before = hash_state(j.state);
    for (int i = 0; i < SEQ * 3; i++) table[i] = i == 40 ? NAN : 1.0f;
    assert_int_equal(ts_bound_set(j.b, "rope.cos", table, sizeof table, NULL), TS_OK);
    assert_false(isfinite(step(&j, 2)));
    assert_int_equal(ts_bound_get(j.b, "ok", &ok, 1, NULL), TS_OK);
    assert_int_equal(ok, 0);
    assert_true(hash_state(j.state) == before);
    assert_int_equal(ts__set_rope(j.b, &model, SEQ, NULL), TS_OK);
    assert_true(isfinite(step(&j, 2)));
    assert_int_equal(ts_bound_get(j.b, "ok", &ok, 1, NULL), TS_OK);
    assert_int_equal(ok, 1);
    assert_false(hash_state(j.state) == before);
    stop(&j);
}

/* A batch without a trained token: loss 0, no NaN. */
static void test_nothing_trained(void **state)
{
    (void)state;
    ts_program_options o = options(TS_REMAT_NONE, true);
    job j = start(&o);
    int32_t labels[ROWS * SEQ];
    set_batch(&j, false);
    for (int i = 0; i < ROWS * SEQ; i++) labels[i] = -1;
    assert_int_equal(ts_bound_set(j.b, "labels", labels, sizeof labels, NULL), TS_OK);
    assert_true(step(&j, 1) == 0.0f);
    assert_true(scalar(&j, "grad_norm") == 0.0f && scalar(&j, "weights") == 0.0f);
    stop(&j);
}

/* The losses of rows are a row's trained tokens each, in the order of the rows; state and loss are those of a step that
 * is not asked for them, to the bit. */
static void test_row_losses(void **state)
{
    (void)state;
    for (int form = 0; form < 8; form++) {
        ts_program_options o = options((ts_remat)(form % 3), form & 1);
        o.rows = form & 2 ? 4 : 2;
        o.accumulation = form & 2 ? 1 : 2;
        o.packed = form & 4;
        job plain = start(&o);
        o.row_losses = true;
        job rows = start(&o);
        float each[4], sum = 0;
        assert_null(ts_bound_output_type(plain.b, "row_loss"));
        for (int i = 1; i < 3; i++) {
            set_batch(&plain, o.packed);
            set_batch(&rows, o.packed);
            const float a = step(&plain, i), b = step(&rows, i);
            assert_memory_equal(&a, &b, sizeof a);
            assert_true(hash_state(plain.state) == hash_state(rows.state));
        }
        assert_int_equal(ts_bound_get(rows.b, "row_loss", each, sizeof each, NULL), TS_OK);
        for (int i = 0; i < 4; i++) sum += each[i];
        assert_true(fabsf(sum / scalar(&rows, "weights") - scalar(&rows, "loss")) < 1e-5f);
        assert_true(each[0] > each[1] && each[1] > each[2] && each[2] > 0); /* fewer and fewer tokens */
        assert_true(each[3] == 0);                                          /* and none */
        stop(&plain);
        stop(&rows);
    }
}

/* ---- frozen parameters ----------------------------------------------------------------------- */

static void test_frozen(void **state)
{
    static const char *const patterns[] = {"*.self_attn.*", "model.embed_tokens.weight"};
    static const char *const one_layer[] = {"model.layers.1.*"};
    ts_program_options o = options(TS_REMAT_FULL, true);
    ts_graph *g = NULL;
    ts_error err = {0};
    size_t n;
    (void)state;
    o.frozen = patterns;
    o.n_frozen = 2;
    job j = start(&o);
    for (int i = 0; i < j.g->top->n_arg; i++) {
        const char *name = j.g->top->arg[i]->name;
        assert_false(strncmp(name, "adam.", 5) == 0 &&
                     (strstr(name, "self_attn") || strstr(name, "embed_tokens")));
    }
    float *q = state_tensor(j.state, "model.layers.1.self_attn.q_proj.weight", &n);
    float *up = state_tensor(j.state, "model.layers.1.mlp.up_proj.weight", &n);
    set_batch(&j, false);
    step(&j, 1);
    float *q2 = state_tensor(j.state, "model.layers.1.self_attn.q_proj.weight", &n);
    assert_memory_equal(q, q2, n * sizeof *q);
    float *up2 = state_tensor(j.state, "model.layers.1.mlp.up_proj.weight", &n);
    assert_memory_not_equal(up, up2, n * sizeof *up);
    free(q);
    free(q2);
    free(up);
    free(up2);
    stop(&j);
    /* One layer of a stack: refused, and possible where layers are tensors of their own. */
    o.frozen = one_layer;
    o.n_frozen = 1;
    assert_int_equal(ts_program_train(&o, &g, &err), TS_INVALID_ARGUMENT);
    assert_non_null(strstr(err.msg, "frozen_parameters"));
    o.scan_layers = false;
    g = train_graph(&o);
    assert_true(ts_graph_input_index(g, "adam.m.model.layers.0.mlp.up_proj.weight") >= 0);
    assert_true(ts_graph_input_index(g, "adam.m.model.layers.1.mlp.up_proj.weight") < 0);
    ts_graph_free(g);
}

/* ---- next tokens of stacked and unrolled models ---------------------------------------------- */

static void test_sampler(void **state)
{
    const int32_t ids[4] = {5, 17, 3, 88};
    float *want = malloc(VOCAB * sizeof *want);
    (void)state;
    for (int scan = 1; scan >= 0; scan--) {
        ts_program_options o = options(TS_REMAT_NONE, scan);
        job j = start(&o);
        ts_sampler *s;
        const float *got;
        double most = 0;
        assert_int_equal(ts_sampler_new(j.e, &model, j.state, TS_F32, NULL, &s, NULL), TS_OK);
        assert_int_equal(ts_sampler_logits(s, ids, 4, &got, NULL), TS_OK);
        for (int i = 0; i < VOCAB; i++) {
            if (scan) want[i] = got[i];
            assert_true(fabsf(got[i] - want[i]) < 1e-5f);
            most = fmax(most, fabs((double)got[i]));
        }
        assert_true(most > 0.1);
        ts_sampler_free(s);
        stop(&j);
    }
    free(want);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_train_graphs), cmocka_unit_test(test_other_graphs),
        cmocka_unit_test(test_saved),        cmocka_unit_test(test_accumulation),
        cmocka_unit_test(test_minimal),      cmocka_unit_test(test_remats_agree),
        cmocka_unit_test(test_nonfinite),    cmocka_unit_test(test_nothing_trained),
        cmocka_unit_test(test_row_losses),
        cmocka_unit_test(test_frozen),       cmocka_unit_test(test_sampler),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
