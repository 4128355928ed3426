/* test_xla_programs.c – programs of the xla engine on a real plugin: refused, dumped, saved, loaded. */
#include "unit/xla_engine_help.h"

/* A refusal of the compiler names the graph and the place in the program. */
static void compiler_refuses(void **state)
{
    (void)state;
    ts_engine *e = open_engine(1, NULL);
    ts_graph *g = accumulate("refused");
    ts_executable *x;
    const char *text = "module @m {\n  func.func @main(%a: tensor<2xf32>) -> tensor<3xf32> {\n"
                       "    return %a : tensor<3xf32>\n  }\n}\n";
    FAILS(ts__xla_compile_text((ts_xla *)e, g, text, strlen(text), &x, err), TS_UNKNOWN,
          "compiling the graph refused");
    assert_null(x);
    text =
        "module @m {\n  func.func @main(%a: tensor<2x3xf32>, %b: tensor<2x3xf32>) -> tensor<2x3xf32> {\n"
        "    return %a : tensor<2x3xf32>\n  }\n}\n";
    FAILS(ts__xla_compile_text((ts_xla *)e, g, text, strlen(text), &x, err), TS_FAILED_PRECONDITION,
          "1 outputs and the graph refused has 2");
    ts_graph_free(g);
    ts_engine_close(e);
}

/* What the compiler finds while it checks an op, and what it finds while it reads: both lead into the model. */
static void refusals_name_the_model(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to, *words[3];
    } mistakes[] = {
        {"stablehlo.tanh %0 : tensor<2x3xf32>",
         "stablehlo.slice %0 [0:9, 0:3] : (tensor<2x3xf32>) -> tensor<2x3xf32>",
         {"layers.3.q_proj (llama.c)", ":42:", "'stablehlo.slice' op"}},
        {"stablehlo.tanh",
         "stablehlo.tann",
         {"stablehlo.tann' is unknown", "of the program: %1 = stablehlo.tann %0",
          "which comes from \"q_proj\"(\"layers.3.q_proj (llama.c)\":42:"}},
    };
    ts_engine *e = open_engine(1, NULL);
    ts_builder *b = ts_builder_new("train_step");
    ts_scope_push(b, "layers.3.q_proj");
    ts_value *x = ts_input(b, "x", TS_F32, TS_DIMS({NULL, 2}, {NULL, 3}));
    ts_builder_at(b, "llama.c", 41);
    x = ts_exp(b, x);
    ts_builder_at(b, "llama.c", 42);
    ts_output(b, "y", ts_tanh(b, x), NULL);
    ts_graph *g = finish(b);
    ts_stablehlo_options o = {.precision = TS_PRECISION_HIGHEST};
    ts_string text = ts_string_new(1 << 20);
    ts_executable *compiled;
    OK(ts__stablehlo_write(g, &o, &text, err));
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        ts_string wrong = ts_string_new(1 << 20);
        const char *at = strstr(text.data, mistakes[i].from);
        assert_non_null(at);
        ts_string_add_bytes(&wrong, text.data, (size_t)(at - text.data));
        ts_string_add(&wrong, mistakes[i].to);
        ts_string_add(&wrong, at + strlen(mistakes[i].from));
        for (int w = 0; w < 3; w++)
            FAILS(ts__xla_compile_text((ts_xla *)e, g, wrong.data, wrong.length, &compiled, err),
                  TS_UNKNOWN, mistakes[i].words[w]);
        ts_string_free(&wrong);
    }
    ts_string_free(&text);
    ts_graph_free(g);
    ts_engine_close(e);
}

static void dumps(void **state)
{
    (void)state;
    char folder[] = "/tmp/tessera-xla-XXXXXX", path[200], **name, *text;
    size_t n, files;
    assert_non_null(mkdtemp(folder));
    ts_engine *e = open_engine(1, folder);
    ts_graph *g = accumulate("dumped");
    ts_executable *x;
    OK(ts_compile(e, g, &x, err));
    snprintf(path, sizeof path, "%s/dumped.mlir", folder);
    OK(ts_file_read_all(path, 1 << 20, &text, &n, err));
    assert_non_null(strstr(text, "stablehlo.add"));
    OK(ts_list_folder(folder, &name, &files, err));
    assert_true(files > 1); /* and what XLA made of it */
    ts_names_free(name, files);
    ts_free(text);
    ts_executable_free(x);
    ts_graph_free(g);
    ts_engine_close(e);
    OK(ts_remove_tree(folder, err));
}

static void saved_and_loaded(void **state)
{
    (void)state;
    char path[] = "/tmp/tessera-saved-XXXXXX";
    program p = open_program(2);
    ts_saved_key key;
    void *bytes;
    size_t n;
    close(mkstemp(path));
    OK(ts__xla_key((ts_xla *)p.e, p.g, NULL, &key, err));
    assert_string_equal(key.topology, "cpu:2");
    OK(ts__xla_serialize(p.x, &bytes, &n, err));
    OK(ts__saved_write(path, &key, bytes, n, err));
    ts_free(bytes);
    ts_executable_free(p.x);
    OK(p.e->vtable->load(p.e, p.g, path, &p.x, err));
    for (int d = 0; d < 2; d++) put(p.in[2 * d], (float)d, 1);
    for (int d = 0; d < 2; d++) put(p.in[2 * d + 1], 5, 0);
    OK(ts_execute(p.x, p.in, p.out, err));
    OK(ts_wait(p.x, err));
    for (int d = 0; d < 2; d++) expect(p.out[2 * d], (float)(d + 5), 1);
    ts_graph *other = accumulate("another_name");
    other->top->first->scope = "elsewhere";
    ts_executable *x;
    FAILS(p.e->vtable->load(p.e, other, path, &x, err), TS_FAILED_PRECONDITION, key.program);
    ts_engine *one = open_engine(1, NULL);
    FAILS(one->vtable->load(one, p.g, path, &x, err), TS_FAILED_PRECONDITION, "cpu:1");
    ts_engine_close(one);
    ts_graph_free(other);
    close_program(&p);
    unlink(path);
}

/* Everything once, with the n-th allocation of ours refused: one sentence, nothing left behind. */
static ts_status whole_life(const char *path, const ts_graph *g, ts_error *err)
{
    ts_engine *e = NULL;
    ts_executable *x = NULL;
    ts_buffer *in[2] = {0}, *total = NULL;
    float v[6] = {1, 2, 3, 4, 5, 6};
    const char *flag[] = {"xla_cpu_enable_fast_math=false"};
    ts_engine_options o = {.struct_size = sizeof o,
                           .name = "xla",
                           .devices = 1,
                           .plugin = path,
                           .xla_flag = flag,
                           .n_xla_flag = 1};
    ts_status status = ts_engine_open(&o, &e, err);
    if (status == TS_OK) status = ts_compile(e, g, &x, err);
    for (int k = 0; k < 2 && status == TS_OK; k++)
        status = ts_buffer_new(e, 0, &g->top->arg[k]->type, &in[k], err);
    if (status == TS_OK) status = ts_buffer_new(e, 0, &g->top->result[1]->type, &total, err);
    if (status == TS_OK) status = ts_upload(in[0], v, 0, 12, err);
    ts_buffer *out[2] = {in[0], total};
    if (status == TS_OK) status = ts_execute(x, in, out, err);
    if (status == TS_OK) status = ts_wait(x, err);
    if (status == TS_OK) status = ts_download(in[0], v, 4, 8, err);
    if (status == TS_OK && (v[0] != 2 || v[1] != 3)) fail_msg("%g %g", (double)v[0], (double)v[1]);
    if (total) ts_buffer_free(total);
    for (int k = 0; k < 2; k++)
        if (in[k]) ts_buffer_free(in[k]);
    if (x) ts_executable_free(x);
    if (e) ts_engine_close(e);
    return status;
}

static void memory_runs_out(void **state)
{
    (void)state;
    ts_engine_close(
        open_engine(1, NULL)); /* the plugin is loaded now: what follows is this process's own */
    ts_graph *g = accumulate("short_of_memory");
    char path[4096];
    int failed = 0;
    OK(ts__plugin_find(plugin(), path, sizeof path, err));
    for (uint64_t n = 1;; n++) {
        ts_error err = {0};
        ts_alloc_fail_at(n);
        uint64_t before = ts_alloc_count();
        ts_status status = whole_life(path, g, &err);
        bool over = ts_alloc_count() - before < n;
        ts_alloc_fail_at(0);
        if (over) {
            if (status != TS_OK) fail_msg("%s", err.msg);
            break;
        }
        failed += status != TS_OK;
        if (status != TS_OK && (status != TS_RESOURCE_EXHAUSTED || !strstr(err.msg, "memory")))
            fail_msg("allocation %d: %s: %s", (int)n, ts_status_name(status), err.msg);
    }
    assert_true(failed > 20);
    ts_graph_free(g);
}

static void no_profiler(void **state)
{
    (void)state;
    ts_engine *e = open_engine(1, NULL);
    FAILS(e->vtable->trace_end(e, "/tmp/x", err), TS_FAILED_PRECONDITION, "no profile");
    ts_error err = {0};
    ts_status status = e->vtable->trace_begin(e, &err);
    if (status != TS_OK)
        assert_int_equal(status, TS_UNIMPLEMENTED); /* no plugin for CPUs has one so far */
    ts_engine_close(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(compiler_refuses),
        cmocka_unit_test(refusals_name_the_model),
        cmocka_unit_test(dumps),
        cmocka_unit_test(saved_and_loaded),
        cmocka_unit_test(memory_runs_out),
        cmocka_unit_test(no_profiler),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
