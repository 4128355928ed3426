/* test_xla_sharded.c – shard_mode=auto: the global program with shardings, cut by XLA's
 * partitioner, gives what one device gives.
 *
 * A small Llama on meshes of four and eight devices of XLA's CPU plugin: loss, logits and every
 * gradient, and what a training step leaves of the state. f32, 1e-5 of a tensor's largest. Every
 * device is handed its piece and no more: the executable refuses another type, and the plugin
 * counts the bytes. Skipped without the plugin (TESSERA_PLUGIN_PATH).
 */
#include "mesh_help.h"

#include "train/program.h"
#include "xla/aot.h"
#include "xla/plugin.h"

static const ts_model_config llama = {.arch = TS_ARCH_LLAMA,
                                      .vocab = 48,
                                      .hidden = 32,
                                      .ffn = 64,
                                      .layers = 2,
                                      .heads = 4,
                                      .kv_heads = 2,
                                      .head_dim = 8,
                                      .max_positions = 64,
                                      .norm_eps = 1e-5,
                                      .rope_theta = 1e4,
                                      .bos_id = -1,
                                      .eos_id = -1,
                                      .pad_id = -1};

static const ts_program_options options = {.model = &llama,
                                           .rows = 8,
                                           .sequence = 16,
                                           .accumulation = 1,
                                           .compute = TS_F32,
                                           .remat = TS_REMAT_FULL,
                                           .scan_layers = true,
                                           .optimizer = {.adamw = {0.9, 0.95, 1e-8, 0.1}, .clip = 1}};

/* ---- values ---------------------------------------------------------------------------------- */

/* Element k of input i: whole numbers below the vocabulary, small weights, second moments that are
 * none below zero. */
static void fill(const ts_value *v, int i, void *out)
{
    bool positive = strncmp(v->name, "adam.v.", 7) == 0 || strstr(v->name, "norm") != NULL;
    for (int64_t k = 0; k < ts_type_elements(&v->type); k++) {
        uint32_t h = (uint32_t)(i * 100003 + k) * 0x9e3779b9u;
        h = (h ^ h >> 15) * 0x846ca68bu;
        double u = (double)(h >> 8) / (1 << 24);
        if (strcmp(v->name, "step") == 0) ((int32_t *)out)[k] = 7;
        else if (strcmp(v->name, "lr") == 0) ((float *)out)[k] = 0.01f;
        else if (v->type.dtype == TS_I32) ((int32_t *)out)[k] = (int32_t)(h % 48);
        else ((float *)out)[k] = (float)(positive ? 0.5 + u : (u - 0.5) * 0.6);
    }
}

/* ---- programs -------------------------------------------------------------------------------- */

static ts_spec pin_of(const void *context, const ts_value *v)
{
    return ts_partition_pin(context, NULL, v);
}

static mesh_program compile(ts_engine *e, const ts_graph *g, const ts_partition *p)
{
    const ts_sharding s = {.mesh = &p->mesh, .in = p->in, .out = p->out, .pin = pin_of, .context = p};
    const ts_type *local;
    int n_in = g->top->n_arg, n_out = g->top->n_result, n = p->mesh.devices;
    mesh_program x = {.engine = e, .graph = g, .devices = n};
    ts_error err = {0};
    if (e->vtable->compile_sharded(e, g, &s, &x.executable, &err) != TS_OK) fail_msg("%s", err.msg);
    local = x.executable->local;
    assert_non_null(local);
    x.in = ts_alloc_zero((size_t)(n * n_in + 1) * sizeof *x.in);
    x.out = ts_alloc_zero((size_t)(n * n_out + 1) * sizeof *x.out);
    for (int d = 0; d < n; d++) {
        for (int i = 0; i < n_in; i++)
            assert_int_equal(ts_buffer_new(e, d, &local[i], &x.in[d * n_in + i], &err), TS_OK);
        for (int i = 0; i < n_out; i++)
            if (g->output[i].replaces >= 0)
                x.out[d * n_out + i] = x.in[d * n_in + g->output[i].replaces];
            else
                assert_int_equal(ts_buffer_new(e, d, &local[n_in + i], &x.out[d * n_out + i], &err), TS_OK);
    }
    return x;
}

/* What the plugin counts as arguments is what the pieces have, so nothing was handed over whole. */
static void check_bytes(const mesh_program *x, const ts_partition *p)
{
    const ts_graph *g = x->graph;
    size_t pieces = 0, whole = 0;
    ts_exec_stats stats;
    x->executable->vtable->stats(x->executable, &stats);
    for (int i = 0; i < g->top->n_arg; i++) {
        ts_type t = ts_spec_local(&p->mesh, &p->in[i], &g->top->arg[i]->type);
        assert_true(ts_type_same(&t, &x->executable->local[i]));
        pieces += ts_type_bytes(&t);
        whole += ts_type_bytes(&g->top->arg[i]->type);
    }
    assert_true(stats.memory.arguments < pieces + 64 * (size_t)g->top->n_arg);
    assert_true(pieces < whole);
}

/* One device on the cpu engine (p NULL), or a mesh on XLA. */
static mesh_values run(const ts_graph *g, const ts_partition *p, mesh_values *in)
{
    ts_engine *e = mesh_engine(p ? "xla" : "cpu", p ? p->mesh.devices : 1);
    mesh_program x = p ? compile(e, g, p) : mesh_compile(e, g, 1);
    if (p) check_bytes(&x, p);
    mesh_values out = mesh_run(&x, g, p, in);
    ts_engine_close(e);
    return out;
}

static void compare(const ts_graph *g, const mesh_case *c, int n)
{
    mesh_values in = {.n = g->top->n_arg}, want;
    ts_error err = {0};
    for (int i = 0; i < in.n; i++) {
        in.v[i] = ts_alloc(ts_type_bytes(&g->top->arg[i]->type) + 1);
        fill(g->top->arg[i], i, in.v[i]);
    }
    want = run(g, NULL, &in);
    for (int i = 0; i < n; i++) {
        const char *where = "";
        ts_partition *p = NULL;
        ts_mesh mesh = mesh_of(c[i].data, c[i].fsdp, c[i].tensor, llama.kv_heads,
                               llama.heads / llama.kv_heads);
        ts_partition_options o = {.struct_size = sizeof o, .mesh = &mesh, .tolerance = 1, .quiet = true};
        if (ts_partition_pins(g, &o, &p, &err) != TS_OK) fail_msg("%s", err.msg);
        mesh_values have = run(g, p, &in);
        double e = mesh_worst(g, &have, &want, &where);
        printf("%s, %d devices (%dx%dx%d): %.1e %s\n", g->name, mesh.devices, (int)c[i].data,
               (int)c[i].fsdp, (int)c[i].tensor, e, where);
        assert_true(e <= 1e-5);
        mesh_free_values(&have);
        ts_partition_free(p);
    }
    mesh_free_values(&in);
    mesh_free_values(&want);
}

static void need_plugin(const char *name)
{
    char path[4096];
    ts_error why = {0};
    if (getenv("VALGRIND")) {
        puts("SKIP: the plugins' own code does not pass valgrind");
        skip();
    }
    if (ts__plugin_find(name, path, sizeof path, &why) != TS_OK) {
        printf("SKIP: %s\n", why.msg);
        skip();
    }
}

static void gradients_are_equal(void **state)
{
    ts_graph *g = NULL;
    ts_error err = {0};
    (void)state;
    need_plugin("cpu");
    static const mesh_case meshes[] = {{1, 2, 2}, {2, 2, 2}, {1, 2, 4}};
    if (ts_program_probe(&options, &g, &err) != TS_OK) fail_msg("%s", err.msg);
    compare(g, meshes, 3);
    ts_graph_free(g);
}

static void a_step_is_equal(void **state)
{
    ts_graph *g = NULL;
    ts_error err = {0};
    (void)state;
    need_plugin("cpu");
    static const mesh_case meshes[] = {{4, 1, 1}, {1, 4, 2}};
    if (ts_program_train(&options, &g, &err) != TS_OK) fail_msg("%s", err.msg);
    compare(g, meshes, 2);
    ts_graph_free(g);
}

/* For sixteen TPUs that are not there: XLA's collectives are told by the mesh's axes. */
static void ahead_of_time(void **state)
{
    char path[4096];
    ts_graph *g = NULL;
    ts_error err = {0};
    ts_partition *p = NULL;
    ts_topology t;
    ts_aot_report r;
    (void)state;
    need_plugin("tpu");
    assert_int_equal(ts__plugin_find("tpu", path, sizeof path, &err), TS_OK);
    if (ts_program_probe(&options, &g, &err) != TS_OK) fail_msg("%s", err.msg);
    ts_mesh mesh = mesh_of(1, 4, 4, llama.kv_heads, llama.heads / llama.kv_heads);
    ts_partition_options o = {.struct_size = sizeof o, .mesh = &mesh, .tolerance = 1, .quiet = true};
    if (ts_partition_pins(g, &o, &p, &err) != TS_OK) fail_msg("%s", err.msg);
    assert_int_equal(ts__topology_parse("v6e:4x4", 1, &t, &err), TS_OK);
    const ts_sharding s = {.mesh = &p->mesh, .in = p->in, .out = p->out, .pin = pin_of, .context = p};
    const ts_aot_job job = {.struct_size = sizeof job,
                            .plugin = path,
                            .topology = &t,
                            .replicas = 16,
                            .graph = g,
                            .sharding = &s,
                            .precision = TS_PRECISION_HIGHEST};
    if (ts__aot_compile(&job, &r, &err) != TS_OK) fail_msg("%s", err.msg);
    assert_true(r.fits);
    for (size_t i = 0; i < r.n_collective; i++) {
        const ts_aot_collective *c = &r.collective[i];
        printf("%-18s %-16s %3lld × sync %7lld B, async %7lld B, behind products %7lld B  %s\n", c->kind, c->axis,
               (long long)c->count, (long long)c->sync_bytes, (long long)c->async_bytes,
               (long long)c->overlapped_bytes, c->kept_as);
        assert_int_equal(c->sync_bytes + c->async_bytes, c->bytes);
        assert_true(*c->axis != '\0');
    }
    assert_true(r.n_collective > 0);
    ts_aot_report_free(&r);
    ts_partition_free(p);
    ts_graph_free(g);
}

static void refused(ts_engine *e, const ts_graph *g, const ts_sharding *s, ts_status code, const char *words)
{
    ts_executable *x = NULL;
    ts_error err = {0};
    assert_int_equal(e->vtable->compile_sharded(e, g, s, &x, &err), code);
    if (!strstr(err.msg, words)) fail_msg("%s: expected \"%s\"", err.msg, words);
}

/* A sharding that does not fit the graph or the devices is refused before XLA sees it. */
static void others_are_refused(void **state)
{
    ts_graph *g = NULL;
    ts_error err = {0};
    ts_partition *p = NULL;
    (void)state;
    need_plugin("cpu");
    if (ts_program_probe(&options, &g, &err) != TS_OK) fail_msg("%s", err.msg);
    ts_mesh mesh = mesh_of(1, 2, 2, 2, 2);
    ts_partition_options o = {.struct_size = sizeof o, .mesh = &mesh, .tolerance = 1, .quiet = true};
    if (ts_partition_pins(g, &o, &p, &err) != TS_OK) fail_msg("%s", err.msg);
    ts_sharding s = {.mesh = &p->mesh, .in = p->in, .out = p->out};
    ts_engine *two = mesh_engine("xla", 2), *four = mesh_engine("xla", 4);
    refused(two, g, &s, TS_FAILED_PRECONDITION, "over a mesh of 4 devices and would run on 2");
    p->in[0].partial = 1;
    refused(four, g, &s, TS_INVALID_ARGUMENT, "is partial");
    p->in[0] = ts_spec_whole(p->in[0].rank);
    p->in[0].n[0] = 2;
    p->in[0].axis[0][0] = p->in[0].axis[0][1] = 0;
    refused(four, g, &s, TS_INVALID_ARGUMENT, "or the sharding has twice");
    ts_engine_close(two);
    ts_engine_close(four);
    ts_partition_free(p);
    ts_graph_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(gradients_are_equal), cmocka_unit_test(a_step_is_equal),
                                       cmocka_unit_test(others_are_refused), cmocka_unit_test(ahead_of_time)};
    setenv("TF_CPP_MIN_LOG_LEVEL", "2", 0); /* XLA tells of every partition that costs a copy */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
