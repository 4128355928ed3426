/* test_partition.c – what a partitioned train step asks of the wire, against closed formulas; what a device holds; what
 * is refused.
 *
 * The formulas are for an untied Llama of L layers whose sizes all axes divide, remat full, f32: which collectives a
 * layer needs is the table of docs/mesh.md, times L, and what stands outside the layers. Any collective beyond is a
 * mistake, and so is one that is missing.
 */
#include "base/log.h"
#include "mesh_help.h"

#include "train/program.h"

enum { V = 16, E = 32, F = 64, L = 3, K = 4, G = 2, D = 8, S = 16, B = 8 };

static const ts_model_config model = {.arch = TS_ARCH_LLAMA,
                                      .vocab = V,
                                      .hidden = E,
                                      .ffn = F,
                                      .layers = L,
                                      .heads = K * G,
                                      .kv_heads = K,
                                      .head_dim = D,
                                      .max_positions = 64,
                                      .norm_eps = 1e-5,
                                      .rope_theta = 1e4,
                                      .bos_id = -1,
                                      .eos_id = -1,
                                      .pad_id = -1};

static ts_program_options options(const ts_model_config *m)
{
    return (ts_program_options){.model = m,
                                .rows = B,
                                .sequence = S,
                                .accumulation = 1,
                                .compute = TS_F32,
                                .remat = TS_REMAT_FULL,
                                .scan_layers = true,
                                .optimizer = {.adamw = {0.9, 0.95, 1e-8, 0.1}, .clip = 1}};
}

static ts_graph *train_graph(const ts_program_options *o)
{
    ts_graph *g = NULL;
    ts_error err = {0};
    if (ts_program_train(o, &g, &err) != TS_OK) fail_msg("%s", err.msg);
    return g;
}

static int64_t head_bytes; /* 0: as users have it */

static ts_status partition(const ts_graph *g, const ts_mesh *m, double tolerance, ts_partition **out, ts_error *err)
{
    ts_partition_options o = {
        .struct_size = sizeof o, .mesh = m, .tolerance = tolerance, .quiet = true, .head_bytes = head_bytes};
    return ts_partition_new(g, &o, out, err);
}

static ts_partition *partition_of(const ts_graph *g, const ts_mesh *m)
{
    ts_partition *p = NULL;
    ts_error err = {0};
    if (partition(g, m, 1, &p, &err) != TS_OK) fail_msg("%s", err.msg);
    return p;
}

/* ---- closed formulas ------------------------------------------------------------------------- */

typedef struct asked {
    int64_t count;
    double bytes;
} asked;

static asked found(const ts_graph *g, ts_op op, const char *axis)
{
    ts_wire w[64];
    size_t n = ts_wire_of(g, w, 64);
    for (size_t i = 0; i < n; i++)
        if (w[i].op == op && strcmp(w[i].axis, axis) == 0) return (asked){w[i].count, w[i].bytes};
    return (asked){0, 0};
}

static int64_t rows_in_all(const ts_graph *g)
{
    ts_wire w[64];
    size_t n = ts_wire_of(g, w, 64);
    int64_t sum = 0;
    for (size_t i = 0; i < n; i++) sum += w[i].count;
    return sum;
}

typedef struct expected {
    ts_op op;
    const char *axis;
    int64_t count;
    double bytes;
} expected;

static void check(const char *what, const ts_graph *g, const expected *e, int n)
{
    int64_t sum = 0;
    for (int i = 0; i < n; i++) {
        asked a = found(g, e[i].op, e[i].axis);
        printf("%-16s %-15s %-7s %4lld (expected %4lld) %10.0f B (expected %10.0f)\n", what,
               ts_op_infos[e[i].op].name, e[i].axis, (long long)a.count, (long long)e[i].count, a.bytes, e[i].bytes);
        assert_int_equal(a.count, e[i].count);
        assert_true(fabs(a.bytes - e[i].bytes) < 0.5);
        sum += e[i].count;
    }
    assert_int_equal(rows_in_all(g), sum); /* and nothing else */
}

/* Elements of one layer's matrices; of all trained tensors; of all norms' scales. */
static const double layer = 2.0 * K * G * D * E + 2.0 * K * D * E + 3.0 * F * E;
static const double norms = (2.0 * L + 1) * E;

static double all_reduce(double n, double bytes)
{
    return 2 * (n - 1) / n * bytes;
}

/* data d: each gradient once, the norms' together; loss and the number of tokens. acc micro-batches: still once. */
static void data_parallel(void **state)
{
    (void)state;
    for (int acc = 1; acc <= 3; acc += 2) {
        ts_program_options o = options(&model);
        o.accumulation = acc;
        ts_graph *g = train_graph(&o);
        ts_mesh m = mesh_of(4, 1, 1, K, G);
        ts_partition *p = partition_of(g, &m);
        double gradients = L * layer + 2.0 * V * E + norms;
        const expected e[] = {{TS_OP_all_reduce, "data", 7 + 2 + 1 + 2, all_reduce(4, 4 * (gradients + 2))}};
        check(acc == 1 ? "data 4" : "data 4, 3 micro", p->graph, e, 1);
        ts_partition_free(p);
        ts_graph_free(g);
    }
}

/* fsdp f: per layer 7 gathers forward and 7 backward, 7 scatters; the embedding once, the head both ways. The sums:
 * loss, tokens, norm of the gradient, the norms' gradients together. */
static void fully_sharded(void **state)
{
    (void)state;
    for (int acc = 1; acc <= 3; acc += 2) {
        ts_program_options o = options(&model);
        o.accumulation = acc;
        ts_graph *g = train_graph(&o);
        ts_mesh m = mesh_of(1, 4, 1, K, G);
        ts_partition *p = partition_of(g, &m);
        double part = 3.0 / 4 * 4;
        const expected e[] = {
            {TS_OP_all_gather, "fsdp", acc * (14 * L + 3), acc * part * (2 * L * layer + 3.0 * V * E)},
            {TS_OP_reduce_scatter, "fsdp", acc * (7 * L + 2), acc * part * (L * layer + 2.0 * V * E)},
            {TS_OP_all_reduce, "fsdp", 4, all_reduce(4, 4 * (norms + 3))}};
        check(acc == 1 ? "fsdp 4" : "fsdp 4, 3 micro", p->graph, e, 3);
        ts_partition_free(p);
        ts_graph_free(g);
    }
}

/* Of the stream over tensor t, rows b a device: per layer 2 gathers and 2 scatters forward; 2 + 2 gathers, 2 scatters
 * and, with remat, one more backward. Outside: the embedding's scatter, the head's gather and scatter, dx of the
 * embedding gathered. Of the cross-entropy: the maximum, then two numbers a token. */
#define TENSOR_ROWS(b, t, part)                                                                                \
    {TS_OP_all_gather, "tensor", 6 * L + 2, (part) * (6 * L + 2) * (double)(b) * S * E * 4},                   \
        {TS_OP_reduce_scatter, "tensor", 5 * L + 2, (part) * (5 * L + 2) * (double)(b) * S * E * 4},           \
    {                                                                                                          \
        TS_OP_all_reduce, "tensor", 4, all_reduce(t, 4 * (3.0 * (b) * S + norms + 1))                          \
    }

static void tensor_parallel(void **state)
{
    (void)state;
    ts_program_options o = options(&model);
    ts_graph *g = train_graph(&o);
    ts_mesh m = mesh_of(1, 1, 4, K, G);
    ts_partition *p = partition_of(g, &m);
    const expected e[] = {TENSOR_ROWS(B, 4, 3.0 / 4)};
    check("tensor 4", p->graph, e, 3);
    ts_partition_free(p);
    ts_graph_free(g);
}

static void fully_sharded_and_tensor_parallel(void **state)
{
    (void)state;
    ts_program_options o = options(&model);
    ts_graph *g = train_graph(&o);
    ts_mesh m = mesh_of(1, 2, 4, K, G);
    ts_partition *p = partition_of(g, &m);
    double part = 1.0 / 2 * 4 / 4; /* a tensor's part of the weights */
    const expected e[] = {TENSOR_ROWS(B / 2, 4, 3.0 / 4),
                          {TS_OP_all_gather, "fsdp", 14 * L + 3, part * (2 * L * layer + 3.0 * V * E)},
                          {TS_OP_reduce_scatter, "fsdp", 7 * L + 2, part * (L * layer + 2.0 * V * E)},
                          {TS_OP_all_reduce, "fsdp", 4, all_reduce(2, 4 * (norms + 3))}};
    check("fsdp 2, tensor 4", p->graph, e, 6);
    ts_partition_free(p);
    ts_graph_free(g);
}

/* What travels for the weights is bf16 where products are, and their gradients are f32. */
static void dtypes_on_the_wire(void **state)
{
    (void)state;
    ts_program_options o = options(&model);
    o.compute = TS_BF16;
    ts_graph *g = train_graph(&o);
    ts_mesh m = mesh_of(1, 4, 1, K, G);
    ts_partition *p = partition_of(g, &m);
    const expected e[] = {
        {TS_OP_all_gather, "fsdp", 14 * L + 3, 3.0 / 4 * 2 * (2 * L * layer + 3.0 * V * E)},
        {TS_OP_reduce_scatter, "fsdp", 7 * L + 2, 3.0 / 4 * 4 * (L * layer + 2.0 * V * E)},
        {TS_OP_all_reduce, "fsdp", 4, all_reduce(4, 4 * (norms + 3))}};
    check("fsdp 4, bf16", p->graph, e, 3);
    ts_partition_free(p);
    ts_graph_free(g);
}

/* A sequence that the axis does not divide: the stream is whole, each pair of gather and scatter one all_reduce. */
static void sequence_that_does_not_divide(void **state)
{
    (void)state;
    ts_program_options o = options(&model);
    o.sequence = S - 1;
    ts_graph *g = train_graph(&o);
    ts_mesh m = mesh_of(1, 1, 4, K, G);
    ts_partition *p = partition_of(g, &m);
    double stream = (double)B * (S - 1) * E;
    /* forward: o, down; backward: d of both norms' outputs, o again; the embedding; dx of the head; the three of the
     * cross-entropy less one, as its pair goes together. Norms' gradients are whole. */
    const expected e[] = {{TS_OP_all_reduce, "tensor", 5 * L + 2 + 2 + 1,
                           all_reduce(4, 4 * ((5 * L + 2) * stream + 3.0 * B * (S - 1) + 1))}};
    check("tensor 4, S=15", p->graph, e, 1);
    ts_partition_free(p);
    ts_graph_free(g);
}

/* A table that is large beside the batch stays where it is stored: ids are gathered, rows exchanged, each way. */
static void large_embedding_is_stationary(void **state)
{
    (void)state;
    ts_model_config wide = model;
    wide.vocab = 1024;
    ts_program_options o = options(&wide);
    ts_graph *g = train_graph(&o);
    ts_mesh m = mesh_of(1, 4, 1, K, G);
    ts_partition *p = partition_of(g, &m);
    double part = 3.0 / 4 * 4, head = 1024.0 * E, stream = (double)B / 4 * S * E;
    const expected e[] = {
        /* ids forward and backward; the head twice */
        {TS_OP_all_gather, "fsdp", 14 * L + 2 + 2, part * (2 * L * layer + 2 * head + 2.0 * B * S)},
        {TS_OP_reduce_scatter, "fsdp", 7 * L + 1, part * (L * layer + head)},
        {TS_OP_all_to_all, "fsdp", 2, part * 2 * stream},
        {TS_OP_all_reduce, "fsdp", 4, all_reduce(4, 4 * (norms + 3))}};
    check("stationary", p->graph, e, 4);
    ts_partition_free(p);
    ts_graph_free(g);
}

/* A large head in pieces: more gathers and scatters, the same bytes. */
static void head_in_pieces(void **state)
{
    (void)state;
    ts_program_options o = options(&model);
    ts_graph *g = train_graph(&o);
    ts_mesh m = mesh_of(1, 4, 1, K, G);
    head_bytes = V * E * 4 / 8;
    ts_partition *p = partition_of(g, &m);
    head_bytes = 0;
    double part = 3.0 / 4 * 4;
    const expected e[] = {
        {TS_OP_all_gather, "fsdp", 14 * L + 1 + 2 * 8, part * (2 * L * layer + 3.0 * V * E)},
        {TS_OP_reduce_scatter, "fsdp", 7 * L + 1 + 8, part * (L * layer + 2.0 * V * E)},
        {TS_OP_all_reduce, "fsdp", 4, all_reduce(4, 4 * (norms + 3))}};
    check("head in pieces", p->graph, e, 3);
    ts_partition_free(p);
    ts_graph_free(g);
}

/* ---- what a device holds --------------------------------------------------------------------- */

static void parameters_are_split(void **state)
{
    static const int64_t meshes[][3] = {{2, 1, 1}, {1, 4, 1}, {1, 1, 4}, {1, 2, 4}, {2, 2, 2}, {1, 4, 4}, {1, 16, 1}};
    ts_model_config odd = model;
    (void)state;
    odd.kv_heads = 1;
    odd.heads = 3;
    const ts_model_config *models[2] = {&model, &odd};
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++) {
            ts_program_options o = options(models[k]);
            o.rows = 16;
            ts_graph *g = train_graph(&o);
            ts_mesh m = mesh_of(meshes[i][0], meshes[i][1], meshes[i][2], models[k]->kv_heads,
                                models[k]->heads / models[k]->kv_heads);
            ts_partition *p = partition_of(g, &m);
            double all = 0, held = 0, scales = 0, ways = (double)(meshes[i][1] * meshes[i][2]);
            for (int q = 0; q < g->n_param; q++) {
                double n = (double)ts_type_elements(&g->param[q].value->type);
                all += n;
                held += (double)ts_type_elements(&p->graph->param[q].value->type);
                scales += g->param[q].file_rank == 1 ? n : 0;
            }
            double unsplit = p->unsplit + scales / all; /* norms' scales are whole by rule */
            assert_true(held / all <= 1 / ways + unsplit + 1e-12);
            if (k == 0) assert_true(p->unsplit == 0);
            else if (meshes[i][2] > 1) assert_true(p->unsplit > 0);
            ts_partition_free(p);
            ts_graph_free(g);
        }
}

/* ---- what is refused ------------------------------------------------------------------------- */

static void refusals(void **state)
{
    (void)state;
    ts_error err = {0};
    ts_partition *p = NULL;
    ts_program_options o = options(&model);
    o.rows = 6;
    ts_graph *g = train_graph(&o);
    ts_mesh m = mesh_of(1, 4, 1, K, G);
    assert_int_equal(partition(g, &m, 1, &p, &err), TS_INVALID_ARGUMENT);
    assert_null(p);
    assert_non_null(strstr(err.msg, "a batch of 6 rows does not divide among the 4 devices of data and fsdp"));
    assert_non_null(strstr(err.msg, "per_device_batch_size 1 or 2"));
    ts_graph_free(g);

    ts_model_config odd = model;
    odd.kv_heads = 3;
    odd.heads = 9;
    o = options(&odd);
    g = train_graph(&o);
    m = mesh_of(1, 1, 4, 3, 3);
    err = (ts_error){0};
    assert_int_equal(partition(g, &m, 0.02, &p, &err), TS_INVALID_ARGUMENT);
    printf("%s\n", err.msg);
    assert_non_null(strstr(err.msg, "sharding_tolerance="));
    double allowed = atof(strstr(err.msg, "sharding_tolerance=") + strlen("sharding_tolerance="));
    assert_non_null(strstr(err.msg, "ici_fsdp_parallelism=4 ici_tensor_parallelism=1"));
    if (partition(g, &m, allowed, &p, &err) != TS_OK) fail_msg("%s", err.msg); /* the values it names work */
    ts_partition_free(p);
    m = mesh_of(1, 4, 1, 3, 3);
    if (partition(g, &m, 0.02, &p, &err) != TS_OK) fail_msg("%s", err.msg);
    ts_partition_free(p);
    ts_graph_free(g);

    /* Only sizes of parameters are to blame for what parameters hold, not the rows that stay whole. */
    o = options(&model);
    o.rows = 1;
    g = train_graph(&o);
    m = mesh_of(1, 5, 1, K, G);
    ts_partition_options whole = {
        .struct_size = sizeof whole, .mesh = &m, .tolerance = 0.02, .quiet = true, .whole_batch = true};
    err = (ts_error){0};
    assert_int_equal(ts_partition_new(g, &whole, &p, &err), TS_INVALID_ARGUMENT);
    printf("%s\n", err.msg);
    assert_non_null(strstr(err.msg, "because of embed="));
    assert_null(strstr(err.msg, "batch="));
    ts_graph_free(g);
}

/* The program of every device is the same text, and the same each time. */
static void repeatable(void **state)
{
    (void)state;
    ts_program_options o = options(&model);
    ts_graph *g = train_graph(&o);
    ts_mesh m = mesh_of(2, 2, 2, K, G);
    ts_string text[2] = {ts_string_new(1 << 22), ts_string_new(1 << 22)};
    for (int i = 0; i < 2; i++) {
        ts_partition *p = partition_of(g, &m);
        ts_graph_print(p->graph, &text[i]);
        ts_partition_free(p);
    }
    assert_string_equal(text[0].data, text[1].data);
    ts_string_free(&text[0]);
    ts_string_free(&text[1]);
    ts_graph_free(g);
}

static int warnings;

static void count_warning(void *about, ts_log_level level, const char *line)
{
    warnings += level == TS_LOG_WARNING && strstr(line, about) != NULL;
}

/* Dimensions that do not divide are held whole, and one line says which; a batch is never one of them. */
static void what_stays_whole_is_told(void **unused)
{
    (void)unused;
    ts_program_options o = options(&model);
    ts_mesh m = mesh_of(1, 2, 4, K, G);
    ts_partition_options how = {.struct_size = sizeof how, .mesh = &m, .tolerance = 0.02};
    ts_partition *p = NULL;
    ts_error err = {0};
    for (int odd = 0; odd < 2; odd++) {
        o.sequence = odd ? S - 1 : S;
        ts_graph *g = train_graph(&o);
        warnings = 0;
        ts_log_set_sink(count_warning, "sequence=15;");
        assert_int_equal(ts_partition_new(g, &how, &p, &err), TS_OK);
        ts_log_set_sink(NULL, NULL);
        assert_int_equal(warnings, odd);
        ts_partition_free(p);
        ts_graph_free(g);
    }
}

/* Whichever allocation fails, the answer is that memory is out; a sanitizer sees that nothing is left behind. */
static void memory_fails(void **unused)
{
    (void)unused;
    ts_program_options o = options(&model);
    ts_mesh m = mesh_of(1, 2, 2, K, G);
    o.accumulation = 2;
    ts_graph *g = train_graph(&o);
    head_bytes = 512; /* the head in pieces, too */
    for (uint64_t nth = 1;; nth++) {
        ts_partition *p = NULL;
        ts_error err = {0};
        assert_true(nth < 2000);
        ts_alloc_fail_at(nth);
        ts_status status = partition(g, &m, 0.02, &p, &err);
        ts_alloc_fail_at(0);
        ts_partition_free(p);
        if (status == TS_OK) break;
        if (status != TS_RESOURCE_EXHAUSTED) fail_msg("allocation %d fails: %s", (int)nth, err.msg);
        assert_null(p);
        assert_non_null(strstr(err.msg, "memory"));
    }
    head_bytes = 0;
    ts_graph_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(data_parallel),
        cmocka_unit_test(fully_sharded),
        cmocka_unit_test(tensor_parallel),
        cmocka_unit_test(fully_sharded_and_tensor_parallel),
        cmocka_unit_test(dtypes_on_the_wire),
        cmocka_unit_test(sequence_that_does_not_divide),
        cmocka_unit_test(large_embedding_is_stationary),
        cmocka_unit_test(head_in_pieces),
        cmocka_unit_test(parameters_are_split),
        cmocka_unit_test(refusals),
        cmocka_unit_test(repeatable),
        cmocka_unit_test(what_stays_whole_is_told),
        cmocka_unit_test(memory_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
