/* tests/unit/test_optimizer.c – the optimizer as a graph against the same in double precision:
 * global norm, clipping, AdamW with and without decay, steps that are skipped; and the state's
 * tensors: larger than the host buffer they are moved through, to a file and back.
 *
 * Gradients are inputs here, so that every number is known. Every ISA that this process may use is
 * the engine's choice (TESSERA_ISA).
 */
#include "engine_help.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/file.h"
#include "ckpt/safetensors.h"
#include "nn/layers.h"
#include "train/state.h"

enum { PARAMS = 3, MOST = 40 };
static const int64_t sizes[PARAMS][2] = {{5, 7}, {3, 13}, {1, 11}};
static const char *const names[PARAMS] = {"a.weight", "b.norm.weight", "c.weight"};
static const char *const mask[] = {"*norm*"};

static ts_graph *optimizer_graph(const ts_optimizer_options *o)
{
    ts_builder *b = ts_builder_new("optimizer");
    ts_value *grads[PARAMS], *ok;
    int trained[PARAMS];
    ts_optimizer_inputs in = {ts_input(b, "lr", TS_F32, TS_SCALAR),
                              ts_input(b, "step", TS_I32, TS_SCALAR)};
    ts_value *loss = ts_input(b, "loss", TS_F32, TS_SCALAR);
    for (int i = 0; i < PARAMS; i++) {
        const ts_dim dims[2] = {{"rows", sizes[i][0]}, {"columns", sizes[i][1]}};
        char name[64];
        snprintf(name, sizeof name, "g.%s", names[i]);
        ts_param(b, names[i], dims, 2, 1, 0.5);
        grads[i] = ts_input(b, ts_arena_strdup(b->graph->arena, name), TS_F32, dims, 2);
        trained[i] = i;
    }
    ts_value *norm = ts_optimizer_apply(b, o, &in, trained, grads, PARAMS, loss, &ok);
    ts_output(b, "norm", norm, NULL);
    ts_output(b, "ok", ok, NULL);
    return help_finish(b);
}

/* The same in double: Loshchilov and Hutter 2019, with the moments' correction of Kingma and Ba
 * 2015. */
typedef struct reference {
    double p[PARAMS][MOST], m[PARAMS][MOST], v[PARAMS][MOST];
} reference;

static double reference_step(reference *r, const ts_optimizer_options *o, float (*g)[MOST],
                             double lr, int step)
{
    double norm = 0;
    for (int i = 0; i < PARAMS; i++)
        for (int64_t k = 0; k < sizes[i][0] * sizes[i][1]; k++)
            norm += (double)g[i][k] * (double)g[i][k];
    norm = sqrt(norm);
    double scale = o->clip > 0 && norm > o->clip ? o->clip / norm : 1;
    for (int i = 0; i < PARAMS; i++)
        for (int64_t k = 0; k < sizes[i][0] * sizes[i][1]; k++) {
            double x = (double)g[i][k] * scale,
                   decay = i == 1 && o->n_no_decay ? 0 : o->adamw.weight_decay;
            r->m[i][k] = o->adamw.b1 * r->m[i][k] + (1 - o->adamw.b1) * x;
            r->v[i][k] = o->adamw.b2 * r->v[i][k] + (1 - o->adamw.b2) * x * x;
            double m = r->m[i][k] / (1 - pow(o->adamw.b1, step)),
                   v = r->v[i][k] / (1 - pow(o->adamw.b2, step));
            r->p[i][k] -= lr * (m / (sqrt(v) + o->adamw.eps) + decay * r->p[i][k]);
        }
    return norm;
}

typedef struct job {
    ts_engine *e;
    ts_graph *g;
    ts_state *state;
    ts_bound *b;
} job;

static job start(const ts_optimizer_options *o)
{
    job j = {.e = help_engine(NULL, 1), .g = optimizer_graph(o)};
    ts_error err = {0};
    assert_int_equal(ts_state_new(j.e, j.g, &j.state, &err), TS_OK);
    assert_int_equal(ts_state_initialise(j.state, 11, &err), TS_OK);
    if (ts_bound_new(j.e, j.g, j.state, &j.b, &err) != TS_OK) fail_msg("%s", err.msg);
    return j;
}

static void stop(job *j)
{
    ts_bound_free(j->b);
    ts_state_free(j->state);
    ts_graph_free(j->g);
    ts_engine_close(j->e);
}

static void make_gradients(float (*g)[MOST], uint32_t seed, float size)
{
    for (int i = 0; i < PARAMS; i++)
        for (int64_t k = 0; k < sizes[i][0] * sizes[i][1]; k++)
            g[i][k] = size * ((float)(help_hash(seed * 1000u + (uint32_t)(i * MOST + k)) >> 8) /
                                  (1 << 23) -
                              1.0f);
}

static float run_step(job *j, float (*g)[MOST], float loss, float lr, int32_t step)
{
    float norm;
    for (int i = 0; i < PARAMS; i++) {
        char name[64];
        snprintf(name, sizeof name, "g.%s", names[i]);
        assert_int_equal(
            ts_bound_set(j->b, name, g[i], (size_t)(sizes[i][0] * sizes[i][1]) * 4, NULL), TS_OK);
    }
    assert_int_equal(ts_bound_set(j->b, "loss", &loss, 4, NULL), TS_OK);
    assert_int_equal(ts_bound_set(j->b, "lr", &lr, 4, NULL), TS_OK);
    assert_int_equal(ts_bound_set(j->b, "step", &step, 4, NULL), TS_OK);
    assert_int_equal(ts_bound_execute(j->b, NULL), TS_OK);
    assert_int_equal(ts_bound_get(j->b, "norm", &norm, 4, NULL), TS_OK);
    return norm;
}

/* Parameters, first and second moments, one after the other. */
static void read_all(const job *j, float (*out)[PARAMS][MOST])
{
    for (size_t i = 0; i < ts_state_tensor_count(j->state); i++) {
        ts_state_tensor t;
        ts_state_tensor_at(j->state, i, &t);
        assert_int_equal(ts_state_read(&t, 0, t.elements, out[i / PARAMS][i % PARAMS], NULL),
                         TS_OK);
    }
}

static void check_close(const char *what, int i, const float *got, const double *want,
                        double relative)
{
    double most = 0, gap = 0;
    for (int64_t k = 0; k < sizes[i][0] * sizes[i][1]; k++) {
        most = fmax(most, fabs(want[k]));
        gap = fmax(gap, fabs((double)got[k] - want[k]));
    }
    if (!(most > 0 && gap <= relative * most))
        fail_msg("%s of %s: %g of %g", what, names[i], gap, most);
}

static void check_against_reference(const ts_optimizer_options *o, float size)
{
    job j = start(o);
    static reference r;
    float got[3][PARAMS][MOST] = {{{0}}}, g[PARAMS][MOST];
    memset(&r, 0, sizeof r);
    read_all(&j, got);
    for (int i = 0; i < PARAMS; i++)
        for (int64_t k = 0; k < sizes[i][0] * sizes[i][1]; k++) r.p[i][k] = (double)got[0][i][k];
    for (int step = 1; step <= 6; step++) {
        float lr = 0.01f / (float)step;
        make_gradients(g, (uint32_t)step,
                       step % 2 ? size : size / 50); /* clipped, and perhaps not */
        double norm = (double)run_step(&j, g, 2.5f, lr, step),
               want = reference_step(&r, o, g, (double)lr, step);
        assert_true(fabs(norm / want - 1) < 1e-6);
    }
    read_all(&j, got);
    for (int i = 0; i < PARAMS; i++) {
        check_close("the value", i, got[0][i], r.p[i], 2e-6);
        check_close("the first moment", i, got[1][i], r.m[i], 2e-6);
        check_close("the second moment", i, got[2][i], r.v[i], 4e-6);
    }
    stop(&j);
}

static void test_adamw(void **state)
{
    const ts_adamw_options usual = {0.9, 0.95, 1e-8, 0.1}, other = {0.8, 0.999, 1e-3, 0},
                           plain = {0, 0.5, 1e-8, 0.5};
    (void)state;
    check_against_reference(
        &(ts_optimizer_options){.adamw = usual, .clip = 1, .no_decay = mask, .n_no_decay = 1}, 3);
    check_against_reference(&(ts_optimizer_options){.adamw = usual, .clip = 0}, 3);
    check_against_reference(&(ts_optimizer_options){.adamw = other, .clip = 0.1}, 1);
    check_against_reference(&(ts_optimizer_options){.adamw = plain, .clip = 1e-3}, 1e-4f);
}

/* NaN or infinity in a gradient or the loss: not one bit moves, whatever the rest of the step says.
 */
static void test_skipped(void **state)
{
    const ts_optimizer_options o = {.adamw = {0.9, 0.95, 1e-8, 0.1}, .clip = 1};
    float g[PARAMS][MOST], before[3][PARAMS][MOST], after[3][PARAMS][MOST];
    uint8_t ok;
    (void)state;
    memset(before, 0, sizeof before);
    memset(after, 0, sizeof after);
    job j = start(&o);
    make_gradients(g, 1, 1);
    run_step(&j, g, 1, 0.01f, 1);
    read_all(&j, before);
    for (int kind = 0; kind < 6; kind++) {
        float loss = kind == 0 ? NAN : kind == 1 ? INFINITY : 1.0f;
        make_gradients(g, 2, 1);
        if (kind == 2) g[1][3] = NAN;
        if (kind == 3) g[0][0] = INFINITY;
        if (kind == 4) g[2][10] = -INFINITY;
        if (kind == 5) g[2][10] = 3e38f; /* the square is infinite */
        run_step(&j, g, loss, 0.01f, 2);
        assert_int_equal(ts_bound_get(j.b, "ok", &ok, 1, NULL), TS_OK);
        assert_int_equal(ok, 0);
        read_all(&j, after);
        assert_memory_equal(before, after, sizeof before);
    }
    make_gradients(g, 2, 1);
    run_step(&j, g, 1, 0.01f, 2);
    read_all(&j, after);
    assert_memory_not_equal(before, after, sizeof before);
    stop(&j);
}

/* ---- state ----------------------------------------------------------------------------------- */

enum { TALL = 70001, ROW = 64 }; /* 17.9 MB: more than one piece */

static ts_graph *tall_graph(void)
{
    ts_builder *b = ts_builder_new("tall");
    const ts_dim dims[2] = {{"vocab", TALL}, {"embed", ROW}};
    ts_value *w = ts_param(b, "table", dims, 2, 1, 0.5);
    ts_output(b, "y", ts_slice(b, w, 0, 0, 1), NULL);
    return help_finish(b);
}

static void write_table(const char *path, const char *name, int64_t rows, const float *data,
                        size_t bytes)
{
    const ts_tensor_spec spec = {.name = name, .dtype = TS_FILE_F32, .rank = 2, .dim = {rows, ROW}};
    ts_tensor_writer *w;
    assert_int_equal(ts_tensor_writer_open(path, &spec, 1, NULL, 0, &w, NULL), TS_OK);
    assert_int_equal(ts_tensor_writer_add(w, data, bytes, NULL), TS_OK);
    assert_int_equal(ts_tensor_writer_close(w, false, NULL, NULL, NULL), TS_OK);
}

static ts_status load_table(ts_state *s, const char *path, ts_error *err)
{
    ts_tensors *t;
    *err = (ts_error){0};
    assert_int_equal(ts_tensors_open(path, &t, NULL), TS_OK);
    ts_status status = ts_state_load(s, t, err);
    ts_tensors_close(t);
    return status;
}

static void test_large_state(void **state)
{
    const size_t count = (size_t)TALL * ROW, bytes = count * sizeof(float);
    float *want = malloc(bytes), *got = malloc(bytes);
    char path[] = "/tmp/tessera-state-XXXXXX";
    ts_engine *e = help_engine(NULL, 1);
    ts_graph *g = tall_graph();
    ts_state *s;
    ts_error err = {0};
    (void)state;
    close(mkstemp(path));
    assert_int_equal(ts_state_new(e, g, &s, &err), TS_OK);
    assert_int_equal(ts_state_parameters(s), (int64_t)count);
    assert_int_equal(ts_state_initialise(s, 9, &err), TS_OK);
    ts_init_values("table", 0.5, 9, 0, (int64_t)count, want);
    assert_int_equal(ts_download(ts_state_find(s, "table", 0, NULL), got, 0, bytes, &err), TS_OK);
    assert_memory_equal(got, want, bytes);
    for (size_t i = 0; i < count; i++) want[i] = (float)i;
    write_table(path, "table", TALL, want, bytes);
    if (load_table(s, path, &err) != TS_OK) fail_msg("%s", err.msg);
    assert_int_equal(ts_download(ts_state_find(s, "table", 0, NULL), got, 0, bytes, &err), TS_OK);
    assert_memory_equal(got, want, bytes);
    /* Another shape, another name: told by name and shape. */
    write_table(path, "table", TALL - 1, want, bytes - ROW * sizeof(float));
    assert_int_equal(load_table(s, path, &err), TS_DATA_LOSS);
    assert_non_null(strstr(err.msg, "[70000,64]"));
    assert_non_null(strstr(err.msg, "[70001,64]"));
    write_table(path, "chair", TALL, want, bytes);
    assert_int_equal(load_table(s, path, &err), TS_DATA_LOSS);
    assert_non_null(strstr(err.msg, "chair"));
    assert_int_equal(unlink(path), 0);
    ts_state_free(s);
    ts_graph_free(g);
    ts_engine_close(e);
    free(want);
    free(got);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_adamw),
        cmocka_unit_test(test_skipped),
        cmocka_unit_test(test_large_state),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
