/* test_mesh_models.c – whole models on meshes of 2 to 16 devices: loss, logits and every gradient equal the program of
 * one device, every tensor is held as thinly as the mesh allows, and collectives are those that closed formulas say.
 *
 * Two models: Llama 3 with grouped heads, and one with what is awkward of Gemma's: tied and frozen embeddings, a single
 * kv head, an odd number of heads, sizes that tensor axes do not divide. f32; the bound is 1e-5 of a tensor's largest.
 */
#include "mesh_help.h"

#include "slow.h"
#include "train/program.h"
#include "xla/plugin.h"

static const ts_model_config llama = {.arch = TS_ARCH_LLAMA,
                                      .vocab = 512, /* large: the embedding stays where it is stored */
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

static const ts_model_config awkward = {.arch = TS_ARCH_LLAMA,
                                        .vocab = 50,
                                        .hidden = 32,
                                        .ffn = 36,
                                        .layers = 2,
                                        .heads = 3,
                                        .kv_heads = 1,
                                        .head_dim = 6,
                                        .max_positions = 64,
                                        .norm_eps = 1e-6,
                                        .tied = true,
                                        .rope_theta = 1e4,
                                        .bos_id = -1,
                                        .eos_id = -1,
                                        .pad_id = -1};

static const mesh_case meshes[] = {{2, 1, 1}, {1, 2, 1}, {1, 1, 2}, {2, 2, 1}, {1, 4, 1}, {1, 1, 4}, {1, 2, 2},
                                   {2, 1, 2}, {2, 2, 2}, {1, 2, 4}, {1, 8, 1}, {1, 1, 8}, {2, 2, 4}, {1, 4, 4}};
enum { MESHES = sizeof meshes / sizeof *meshes };

static ts_program_options options(const ts_model_config *m, int64_t sequence)
{
    static const char *const frozen[] = {"model.embed_tokens.*"};
    return (ts_program_options){.model = m,
                                .rows = 8,
                                .sequence = sequence,
                                .accumulation = 1,
                                .compute = TS_F32,
                                .remat = TS_REMAT_FULL,
                                .scan_layers = true,
                                .frozen = frozen,
                                .n_frozen = m->tied,
                                .optimizer = {.adamw = {0.9, 0.95, 1e-8, 0.1}, .clip = 1}};
}

/* ---- values ---------------------------------------------------------------------------------- */

static uint32_t hash(uint32_t x)
{
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    return x ^ x >> 16;
}

/* Tokens, labels (some ignored), rope tables, weights of a size at which the loss has gradients everywhere. */
static void fill(const ts_graph *g, int i, int64_t vocab, void *out)
{
    const ts_value *v = g->top->arg[i];
    int64_t n = ts_type_elements(&v->type);
    bool labels = strcmp(v->name, "labels") == 0;
    for (int64_t k = 0; k < n; k++) {
        uint32_t h = hash((uint32_t)(i * 100003 + k));
        double u = (double)(h >> 8) / (1 << 24);
        if (strcmp(v->name, "positions") == 0) ((int32_t *)out)[k] = (int32_t)(k % 5);
        else if (strcmp(v->name, "segments") == 0) ((int32_t *)out)[k] = (int32_t)(k / 5 % 4);
        else if (v->type.dtype == TS_I32)
            ((int32_t *)out)[k] = labels && k % 7 == 3 ? -100 : (int32_t)(h % (uint32_t)vocab);
        else if (strcmp(v->name, "rope.cos") == 0) ((float *)out)[k] = (float)cos(6.28 * u);
        else if (strcmp(v->name, "rope.sin") == 0) ((float *)out)[k] = (float)sin(6.28 * u);
        else if (strstr(v->name, "norm")) ((float *)out)[k] = (float)(0.5 + u);
        else ((float *)out)[k] = (float)(u - 0.5) * 0.6f;
    }
}

static mesh_values inputs_of(const ts_graph *g, int64_t vocab)
{
    mesh_values x = {.n = g->top->n_arg};
    for (int i = 0; i < x.n; i++) {
        x.v[i] = ts_alloc(ts_type_bytes(&g->top->arg[i]->type) + 1);
        fill(g, i, vocab, x.v[i]);
    }
    return x;
}

/* Of one device (p NULL) or a mesh. */
static mesh_values run(const char *engine, const ts_graph *g, const ts_partition *p, mesh_values *in)
{
    int devices = p ? p->mesh.devices : 1;
    ts_engine *e = mesh_engine(engine, devices);
    mesh_program x = mesh_compile(e, p ? p->graph : g, devices);
    mesh_values out = mesh_run(&x, g, p, in);
    ts_engine_close(e);
    return out;
}

/* ---- equality -------------------------------------------------------------------------------- */

static int64_t head_bytes; /* 0: as users have it */

static ts_partition *partition(const ts_graph *g, const ts_model_config *m, const mesh_case *c)
{
    ts_error err = {0};
    ts_partition *p = NULL;
    ts_mesh mesh = mesh_of(c->data, c->fsdp, c->tensor, m->kv_heads, m->heads / m->kv_heads);
    ts_partition_options o = {
        .struct_size = sizeof o, .mesh = &mesh, .tolerance = 1, .quiet = true, .head_bytes = head_bytes};
    if (ts_partition_new(g, &o, &p, &err) != TS_OK) fail_msg("%s", err.msg);
    return p;
}

static void compare_with(const char *engine, const char *name, const ts_program_options *o,
                         const mesh_case *c, int n)
{
    const ts_model_config *m = o->model;
    long long sequence = (long long)o->sequence;
    ts_graph *g = NULL;
    ts_error err = {0};
    if (ts_program_probe(o, &g, &err) != TS_OK) fail_msg("%s", err.msg);
    mesh_values in = inputs_of(g, m->vocab), want = run("cpu", g, NULL, &in);
    for (int i = 0; i < n; i++) {
        const char *where = "";
        ts_partition *p = partition(g, m, &c[i]);
        mesh_values have = run(engine, g, p, &in);
        double e = mesh_worst(g, &have, &want, &where);
        printf("%-4s %-8s S=%lld %lldx%lldx%lld: %.1e %s\n", engine, name, sequence, (long long)c[i].data,
               (long long)c[i].fsdp, (long long)c[i].tensor, e, where);
        assert_true(e <= 1e-5);
        mesh_free_values(&have);
        ts_partition_free(p);
    }
    mesh_free_values(&in);
    mesh_free_values(&want);
    ts_graph_free(g);
}

static void compare(const char *engine, const char *name, const ts_model_config *m, int64_t sequence,
                    const mesh_case *c, int n)
{
    ts_program_options o = options(m, sequence);
    compare_with(engine, name, &o, c, n);
}

/* What backward keeps, layers as repeats or one behind the other, packed rows: the partitioner sees other graphs. */
static void variants_are_equal(void **state)
{
    static const mesh_case c[] = {{2, 2, 2}, {1, 2, 4}};
    static const char *const name[] = {"none", "full", "minimal"};
    (void)state;
    for (int remat = 0; remat < 3; remat++)
        for (int scan = 0; scan < 2; scan++) {
            ts_program_options o = options(&llama, 16);
            o.remat = (ts_remat)remat;
            o.scan_layers = scan;
            o.packed = true;
            compare_with("cpu", name[remat], &o, c, 2);
        }
}

/* A head that is gathered in pieces, as large ones are: 512 rows of 128 bytes in pieces of 1 KiB. */
static void head_in_pieces(void **state)
{
    static const mesh_case c[] = {{1, 4, 1}, {1, 2, 4}, {2, 2, 2}, {1, 8, 1}};
    (void)state;
    head_bytes = 1 << 10;
    compare("cpu", "pieces", &llama, 16, c, 4);
    ts_model_config tied = llama;
    tied.tied = true;
    compare("cpu", "tied", &tied, 15, c, 4);
    head_bytes = 0;
}

static void equal_on_cpu(void **state)
{
    (void)state;
    compare("cpu", "llama", &llama, 16, meshes, MESHES);
    compare("cpu", "llama", &llama, 15, meshes, MESHES); /* no tensor axis divides the sequence */
    compare("cpu", "awkward", &awkward, 12, meshes, MESHES);
}

/* The last eight: from 4 to 16 devices. */
static void equal_on_xla(void **state)
{
    char path[4096];
    ts_error err = {0};
    (void)state;
    if (ts__plugin_find("cpu", path, sizeof path, &err) != TS_OK) {
        printf("SKIP: %s\n", err.msg);
        skip();
    }
    int first = MESHES - 8, n = test_is_slow() ? 1 : 8;
    compare("xla", "llama", &llama, 16, meshes + first, n);
    compare("xla", "awkward", &awkward, 12, meshes + first, n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(equal_on_cpu), cmocka_unit_test(variants_are_equal),
                                       cmocka_unit_test(head_in_pieces),
                                       cmocka_unit_test(equal_on_xla)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
