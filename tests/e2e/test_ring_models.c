/* test_ring_models.c – whole partitioned models with rings equal those without: loss, logits and every gradient.
 *
 * What a partitioner leaves is more than the forms of test_ring.c: rings over several axes, in repeats and unrolled,
 * with recomputation and without, next to collectives that stay. Two rewrites each: over fsdp alone, and over all axes.
 */
#include "mesh_help.h"

#include "train/program.h"
#include "xla/plugin.h"

static const ts_model_config llama = {.arch = TS_ARCH_LLAMA,
                                      .vocab = 48,
                                      .hidden = 32,
                                      .ffn = 64,
                                      .layers = 3,
                                      .heads = 8,
                                      .kv_heads = 4,
                                      .head_dim = 8,
                                      .max_positions = 64,
                                      .norm_eps = 1e-5,
                                      .rope_theta = 1e4,
                                      .bos_id = -1,
                                      .eos_id = -1,
                                      .pad_id = -1};

static ts_graph *program(ts_dtype compute, ts_remat remat, bool scan)
{
    ts_program_options o = {.model = &llama,
                            .rows = 8,
                            .sequence = 16,
                            .accumulation = 1,
                            .compute = compute,
                            .remat = remat,
                            .scan_layers = scan,
                            .optimizer = {.adamw = {0.9, 0.95, 1e-8, 0.1}, .clip = 1}};
    ts_graph *g = NULL;
    ts_error err = {0};
    if (ts_program_probe(&o, &g, &err) != TS_OK) fail_msg("%s", err.msg);
    return g;
}

/* Tokens, rope tables, weights; the same on every device that holds them. */
static void *global(const ts_value *v, int input)
{
    const int64_t n = ts_type_elements(&v->type);
    float *x = ts_alloc(ts_type_bytes(&v->type) + 1);
    for (int64_t i = 0; i < n; i++) {
        uint32_t h = ((uint32_t)input * 100003u + (uint32_t)i + 1u) * 0x9e3779b9u;
        h = (h ^ h >> 15) * 0x85ebca6bu;
        double u = (double)(h >> 8) / (1 << 24);
        int32_t token = (int32_t)((h >> 8) % (uint32_t)llama.vocab);
        if (v->type.dtype == TS_I32) memcpy(x + i, &token, 4);
        else x[i] = (float)(strstr(v->name, "norm") ? 0.5 + u : strstr(v->name, "rope") ? cos(6 * u) : (u - 0.5) * 0.6);
    }
    return x;
}

/* Every output of the whole mesh, as one array each. */
static void **run(const char *engine, const ts_partition *p, const ts_graph *local)
{
    const ts_graph *g = p->global;
    ts_engine *e = mesh_engine(engine, p->mesh.devices);
    mesh_program x = mesh_compile(e, local, p->mesh.devices);
    void **out = ts_alloc((size_t)g->top->n_result * sizeof *out);
    for (int i = 0; i < g->top->n_arg; i++) {
        void *whole = global(g->top->arg[i], i);
        mesh_set(&x, &p->mesh, &p->in[i], &g->top->arg[i]->type, i, whole);
        ts_free(whole);
    }
    mesh_execute(&x);
    for (int i = 0; i < g->top->n_result; i++) {
        const ts_type *t = &g->top->result[i]->type;
        out[i] = ts_alloc_zero(ts_type_bytes(t) + 1);
        mesh_get(&x, &p->mesh, &p->out[i], t, i, out[i], g->output[i].name);
    }
    mesh_free(&x);
    ts_engine_close(e);
    return out;
}

static double number(const void *x, ts_dtype d, int64_t i)
{
    return d == TS_BF16 ? (double)ts_bf16_to_f32(((const uint16_t *)x)[i]) : (double)((const float *)x)[i];
}

/* The worst output's difference against its largest element. */
static double difference(const ts_graph *g, void **a, void **b)
{
    double worst = 0;
    for (int i = 0; i < g->top->n_result; i++) {
        const ts_type *t = &g->top->result[i]->type;
        double largest = 0, error = 0;
        for (int64_t k = 0; k < ts_type_elements(t); k++) {
            double x = number(a[i], t->dtype, k), d = fabs(x - number(b[i], t->dtype, k));
            if (!(d <= error)) error = isfinite(d) ? d : INFINITY;
            if (fabs(x) > largest) largest = fabs(x);
        }
        if (error > worst * largest) worst = largest > 0 ? error / largest : INFINITY;
    }
    return worst;
}

static void free_all(const ts_graph *g, void **out)
{
    for (int i = 0; i < g->top->n_result; i++) ts_free(out[i]);
    ts_free(out);
}

static int permutes(const ts_region *r)
{
    int n = 0;
    for (const ts_node *x = r->first; x; x = x->next)
        n += x->op == TS_OP_collective_permute ? 1 : x->body ? permutes(x->body) : 0;
    return n;
}

static void compare(const char *engine, const ts_graph *g, const mesh_case *c, double bound)
{
    ts_error err = {0};
    ts_partition *p = NULL;
    ts_mesh mesh = mesh_of(c->data, c->fsdp, c->tensor, llama.kv_heads, llama.heads / llama.kv_heads);
    ts_partition_options o = {.struct_size = sizeof o, .mesh = &mesh, .tolerance = 1, .quiet = true};
    if (ts_partition_new(g, &o, &p, &err) != TS_OK) fail_msg("%s", err.msg);
    uint16_t fsdp = 0;
    for (int i = 0; i < mesh.n; i++)
        if (mesh.axis[i].user == TS_AXIS_FSDP) fsdp |= (uint16_t)(1u << i);
    int over_fsdp = 0;
    void **plain = run(engine, p, p->graph);
    for (int all = 0; all < 2; all++) {
        ts_graph *ring = NULL;
        if (ts_graph_clone(p->graph, &ring, &err) != TS_OK) fail_msg("%s", err.msg);
        if (ts_ring_rewrite(ring, p->in, all ? 0 : fsdp, &err) != TS_OK) fail_msg("%s", err.msg);
        /* No weight's ring is given up for an activation's. */
        assert_true(permutes(ring->top) > 0 && permutes(ring->top) >= over_fsdp);
        if (!all) over_fsdp = permutes(ring->top);
        void **rings = run(engine, p, ring);
        double d = difference(g, plain, rings);
        printf("%-4s %lldx%lldx%lld %s: %d permutes, %.1e\n", engine, (long long)c->data, (long long)c->fsdp,
               (long long)c->tensor, all ? "all axes" : "fsdp", permutes(ring->top), d);
        assert_true(d <= bound);
        free_all(g, rings);
        ts_graph_free(ring);
    }
    free_all(g, plain);
    ts_partition_free(p);
}

static void on_virtual_devices(void **state)
{
    static const mesh_case c[] = {{1, 2, 1}, {2, 2, 2}, {1, 4, 2}, {1, 2, 4}, {1, 8, 1}, {1, 4, 4}, {1, 1, 4}};
    (void)state;
    for (int remat = 0; remat < 2; remat++)
        for (int scan = 0; scan < 2; scan++) {
            ts_graph *g = program(TS_F32, (ts_remat)remat, scan);
            for (size_t i = 0; i < sizeof c / sizeof *c; i++) compare("cpu", g, &c[i], 1e-5);
            ts_graph_free(g);
        }
    /* Three layers forth and back in bf16. */
    ts_graph *g = program(TS_BF16, TS_REMAT_FULL, true);
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) compare("cpu", g, &c[i], 5e-2);
    ts_graph_free(g);
}

static void on_the_plugin(void **state)
{
    static const mesh_case c = {1, 4, 2};
    char path[4096];
    ts_error err = {0};
    (void)state;
    if (getenv("VALGRIND")) {
        puts("SKIP: the plugins' own code does not pass valgrind");
        skip();
    }
    if (ts__plugin_find("cpu", path, sizeof path, &err) != TS_OK) {
        printf("SKIP: %s\n", err.msg);
        skip();
    }
    ts_graph *g = program(TS_F32, TS_REMAT_FULL, true);
    compare("xla", g, &c, 1e-5);
    ts_graph_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(on_virtual_devices), cmocka_unit_test(on_the_plugin)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
