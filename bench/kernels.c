/* bench/kernels.c – each CPU kernel alone, at the shapes of the byte model (4 × 256) and of
 * SmolLM2-135M.
 *
 * Prints one line a kernel and isa: microseconds of the fastest call, GFLOP/s or GB/s of the
 * estimate that prepare gives, f32 and bf16. Operands are random and warm; what the step does to
 * the caches between two kernels does not show here. Usage: kernels [PART OF A NAME] [THREADS];
 * TESSERA_ISA caps the isa. Not here: any judgement or peer (bench/train.sh compares whole steps).
 */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "cpu/kernel.h"
#include "ir/builder.h"

enum { MOST = 16, CALLS = 101 };
#define BUDGET_SECONDS 0.25

typedef struct operand {
    ts_dtype dtype;
    int rank;
    int64_t dim[TS_MAX_RANK];
} operand;
#define T(dt, ...)                                                                                 \
    {                                                                                              \
        dt, (int)(sizeof((int64_t[]){__VA_ARGS__}) / 8),                                           \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
#define S(dt)                                                                                      \
    {                                                                                              \
        .dtype = dt                                                                                \
    }

static const char *filter;
static int threads;
static ts_isa best;

static void fill(void *p, const ts_type *t, int64_t limit)
{
    uint32_t x = 12345;
    for (int64_t i = 0; i < ts_type_elements(t); i++) {
        x = x * 1664525u + 1013904223u;
        const float f = (float)(x >> 8) / (1 << 24);
        if (t->dtype == TS_F32)
            ((float *)p)[i] = f;
        else if (t->dtype == TS_BF16)
            ((uint16_t *)p)[i] = ts_bf16_from_f32(f);
        else if (t->dtype == TS_PRED)
            ((uint8_t *)p)[i] = 1;
        else
            ((int32_t *)p)[i] = (int32_t)((x >> 8) % (uint32_t)limit) + (t->rank == 0);
    }
}

/* One thread: its own processor time, which a busy machine disturbs least. */
static double now(void)
{
    struct timespec t;
    clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(const char *what, const ts_cpu_kernel *k, const ts_node *n, void *const *in,
                    void *const *out)
{
    ts_cpu_prepared p = {0};
    ts_error err = {0};
    double seconds[CALLS], begin = now();
    int calls = 0;
    if (k->prepare && k->prepare(n, threads, &p, &err) != TS_OK) {
        printf("%-34s %s\n", what, err.msg);
        return;
    }
    void *scratch = ts_alloc_zero(p.scratch_bytes);
    if (!scratch) exit(3);
    const ts_cpu_call c = {n, in, out, scratch, p.state, threads};
    k->run(&c);
    for (; calls < CALLS && (calls < 3 || now() - begin < BUDGET_SECONDS); calls++) {
        const double t = now();
        k->run(&c);
        seconds[calls] = now() - t;
    }
    qsort(seconds, (size_t)calls, sizeof *seconds, by_value);
    const double least = seconds[0];
    printf("%-34s %-38s %10.1f us %8.1f GFLOP/s %7.1f GB/s  scratch %6.1f MB\n", what, k->name,
           least * 1e6, p.flops / least / 1e9, p.bytes / least / 1e9,
           (double)p.scratch_bytes / 1e6);
    if (k->release) k->release(p.state);
    ts_free(scratch);
}

static void bench(const char *what, ts_op op, ts_attr attr, const operand *o, int n, int64_t limit)
{
    if (filter && !strstr(what, filter)) return;
    ts_builder *b = ts_builder_new("bench");
    ts_value *in[MOST];
    void *data[MOST], *out[MOST];
    for (int i = 0; i < n; i++) {
        char name[8];
        ts_dim dims[TS_MAX_RANK] = {{0}};
        for (int d = 0; d < o[i].rank; d++) dims[d].size = o[i].dim[d];
        snprintf(name, sizeof name, "x%d", i);
        in[i] = ts_input(b, name, o[i].dtype, dims, o[i].rank);
        data[i] = ts_alloc(ts_type_bytes(&in[i]->type));
        fill(data[i], &in[i]->type, limit);
    }
    const ts_node *node = ts__op_n(b, op, in, n, &attr);
    if (!node) {
        printf("%s: %s\n", what, b->error.msg);
        exit(1);
    }
    for (int i = 0; i < node->n_out; i++)
        out[i] = ts_alloc_zero(ts_type_bytes(&node->out[i]->type));
    const ts_cpu_kernel *last = NULL;
    for (ts_isa isa = TS_ISA_AVX2; isa <= best; isa++) {
        const ts_cpu_kernel *k = ts_cpu_select(node, isa);
        if (k != last) measure(what, k, node, data, out);
        last = k;
    }
    for (int i = 0; i < n; i++) ts_free(data[i]);
    for (int i = 0; i < node->n_out; i++) ts_free(out[i]);
    ts_builder_free(b);
}
#define BENCH(what, op, attr, limit, ...)                                                          \
    bench(what, TS_OP_##op, (ts_attr)attr, (operand[]){__VA_ARGS__},                               \
          (int)(sizeof((operand[]){__VA_ARGS__}) / sizeof(operand)), limit)
#define ATTR(...)                                                                                  \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }

typedef struct model {
    const char *name;
    int64_t B, S, E, K, G, D, F, V;
} model;

static void products(const model *m, ts_dtype t, const char *d)
{
    char name[80];
    const int64_t rows = m->B * m->S, heads = m->K * m->G * m->D;
    const struct {
        const char *what;
        int64_t in, out;
    } linear[] = {
        {"q", m->E, heads},
        {"kv", m->E, m->K * m->D},
        {"up", m->E, m->F},
        {"down", m->F, m->E},
    };
    for (size_t i = 0; i < sizeof linear / sizeof *linear; i++) {
        snprintf(name, sizeof name, "%s %s dot %s", m->name, d, linear[i].what);
        BENCH(name, dot, ATTR(.dot = {.x_contract = {1, {1}}, .y_contract = {1, {1}}, .dtype = t}),
              1, T(t, rows, linear[i].in), T(t, linear[i].out, linear[i].in));
        snprintf(name, sizeof name, "%s %s dot %s dx", m->name, d, linear[i].what);
        BENCH(name, dot, ATTR(.dot = {.x_contract = {1, {1}}, .y_contract = {1, {0}}, .dtype = t}),
              1, T(t, rows, linear[i].out), T(t, linear[i].out, linear[i].in));
        snprintf(name, sizeof name, "%s %s dot %s dw", m->name, d, linear[i].what);
        BENCH(name, dot,
              ATTR(.dot = {.x_contract = {1, {0}}, .y_contract = {1, {0}}, .dtype = TS_F32}), 1,
              T(t, rows, linear[i].out), T(t, rows, linear[i].in));
    }
}

static void fused(const model *m, ts_dtype t, const char *d)
{
    char name[80];
    const int64_t B = m->B, S = m->S, E = m->E, K = m->K, G = m->G, D = m->D, rows = B * S;
#define NAMED(what) (snprintf(name, sizeof name, "%s %s " what, m->name, d), name)
    BENCH(NAMED("attention"), attention, ATTR(.attention = {true, 0, 0.2, 0}), 1,
          T(t, B, S, K, G, D), T(t, B, S, K, D), T(t, B, S, K, D));
    BENCH(NAMED("attention_grad"), attention_grad, ATTR(.attention = {true, 0, 0.2, 0}), 1,
          T(t, B, S, K, G, D), T(t, B, S, K, D), T(t, B, S, K, D), T(t, B, S, K, G, D),
          T(TS_F32, B, S, K, G), T(t, B, S, K, G, D));
    BENCH(NAMED("rms_norm"), rms_norm, ATTR(.rms_norm = {1e-5}), 1, T(t, B, S, E), T(TS_F32, E));
    BENCH(NAMED("rms_norm_grad"), rms_norm_grad, ATTR(.rms_norm = {1e-5}), 1, T(t, B, S, E),
          T(TS_F32, E), T(t, B, S, E));
    BENCH(NAMED("rope"), rope, ATTR(.rope = {false}), 1, T(t, B, S, K, G, D), T(TS_F32, S, D / 2),
          T(TS_F32, S, D / 2));
    BENCH(NAMED("gated"), gated, ATTR(.gated = {TS_SILU}), 1, T(t, rows, m->F), T(t, rows, m->F));
    BENCH(NAMED("gated_grad"), gated_grad, ATTR(.gated = {TS_SILU}), 1, T(t, rows, m->F),
          T(t, rows, m->F), T(t, rows, m->F));
    BENCH(NAMED("linear_xent"), linear_xent, ATTR(.xent = {0, 0}), m->V, T(t, rows, E),
          T(t, m->V, E), T(TS_I32, rows));
    BENCH(NAMED("linear_xent_grad"), linear_xent_grad, ATTR(.xent = {0, 0}), m->V, T(t, rows, E),
          T(t, m->V, E), T(TS_I32, rows), T(TS_F32, rows), T(TS_F32, rows), T(TS_F32, rows));
    BENCH(NAMED("take"), take, ATTR(.take = {-1}), m->V, T(t, m->V, E), T(TS_I32, rows));
    BENCH(NAMED("scatter_add"), scatter_add, ATTR(.scatter = {{1, {{0, m->V}}}, -1}), m->V,
          T(TS_I32, rows), T(t, rows, E));
    BENCH(NAMED("add"), add, ATTR(.axis = {0}), 1, T(t, rows, E), T(t, rows, E));
    BENCH(NAMED("transpose"), transpose, ATTR(.transpose = {{2, {1, 0}}}), 1, T(t, rows, E));
    BENCH(NAMED("heads"), transpose, ATTR(.transpose = {{4, {0, 2, 1, 3}}}), 1,
          T(t, B, S, K * G, D));
    BENCH(NAMED("reduce rows"), reduce_sum, ATTR(.reduce = {{1, {1}}}), 1, T(t, rows, E));
    BENCH(NAMED("reduce columns"), reduce_sum, ATTR(.reduce = {{1, {0}}}), 1, T(t, rows, E));
    BENCH(NAMED("reduce all"), reduce_sum, ATTR(.reduce = {{2, {0, 1}}}), 1, T(t, rows, E));
    if (t != TS_F32) {
        BENCH(NAMED("convert"), convert, ATTR(.convert = {TS_F32}), 1, T(t, rows, E));
        return;
    }
    BENCH(NAMED("exp"), exp, ATTR(.axis = {0}), 1, T(t, rows, E));
    BENCH(NAMED("tanh"), tanh, ATTR(.axis = {0}), 1, T(t, rows, E));
    BENCH(NAMED("convert"), convert, ATTR(.convert = {TS_BF16}), 1, T(t, rows, E));
    BENCH(NAMED("adamw"), adamw, ATTR(.adamw = {0.9, 0.95, 1e-8, 0.1}), 9, T(t, 4, m->F, E),
          T(t, 4, m->F, E), T(t, 4, m->F, E), T(t, 4, m->F, E), S(TS_F32), S(TS_I32), S(TS_F32),
          S(TS_PRED));
}

int main(int argc, char **argv)
{
    static const model models[] = {{"byte", 16, 256, 256, 4, 2, 32, 704, 320},
                                   {"smol", 2, 512, 576, 3, 3, 64, 1536, 49152}};
    ts_error err = {0};
    filter = argc > 1 && *argv[1] ? argv[1] : NULL;
    threads = argc > 2 ? atoi(argv[2]) : omp_get_num_procs();
    if (ts_isa_choose(NULL, &best, &err) != TS_OK) {
        fprintf(stderr, "%s\n", err.msg);
        return 2;
    }
    printf("%d threads, up to %s\n", threads, ts_isa_name(best));
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        for (int t = 0; t < 2; t++) {
            products(&models[i], t ? TS_BF16 : TS_F32, t ? "bf16" : "f32");
            fused(&models[i], t ? TS_BF16 : TS_F32, t ? "bf16" : "f32");
        }
    return 0;
}
