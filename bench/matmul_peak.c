/* bench/matmul_peak.c – how many floating-point operations a second oneDNN's matrix product reaches
 * on this machine with these threads: the yardstick that the training step is measured against.
 *
 * Square products of several sizes, f32 and bf16 (with f32 results), each repeated for a while; the
 * best size counts, the median of its repetitions. bf16 is null where the CPU has no such units,
 * because oneDNN then emulates it and the number would say nothing.
 *
 * Usage: matmul_peak     prints one JSON object: {"threads": N, "f32_flops": X, "bf16_flops": Y}
 */
#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { REPEATS_MAX = 400 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void check(dnnl_status_t status, const char *what)
{
    if (status != dnnl_success) {
        fprintf(stderr, "matmul_peak: %s: oneDNN status %d\n", what, (int)status);
        exit(1);
    }
}

/* A memory of n × n with small values in it. */
static dnnl_memory_t matrix(dnnl_engine_t engine, const dnnl_memory_desc_t *desc)
{
    dnnl_memory_t m;
    check(dnnl_memory_create(&m, desc, engine, DNNL_MEMORY_ALLOCATE), "memory");
    void *data;
    check(dnnl_memory_get_data_handle(m, &data), "handle");
    memset(data, 0x3c,
           dnnl_memory_desc_get_size(desc)); /* about 0.01 in both types: no NaN, no denormals */
    return m;
}

/* Operations a second of C[n,n] = A[n,n]·B[n,n]. */
static double measure(dnnl_engine_t engine, dnnl_stream_t stream, dnnl_data_type_t type, int n)
{
    dnnl_dims_t dims = {n, n};
    dnnl_memory_desc_t in, packed, out;
    check(dnnl_memory_desc_init_by_tag(&in, 2, dims, type, dnnl_ab), "descriptor");
    check(dnnl_memory_desc_init_by_tag(&out, 2, dims, dnnl_f32, dnnl_ab), "descriptor");
    /* Weights in whatever layout is fastest: they may be packed once and used often. */
    check(dnnl_memory_desc_init_by_tag(&packed, 2, dims, type, dnnl_format_tag_any), "descriptor");
    dnnl_matmul_desc_t desc;
    check(dnnl_matmul_desc_init(&desc, &in, &packed, NULL, &out), "matmul");
    dnnl_primitive_desc_t primitive_desc;
    check(dnnl_primitive_desc_create(&primitive_desc, &desc, NULL, engine, NULL), "matmul");
    dnnl_primitive_t primitive;
    check(dnnl_primitive_create(&primitive, primitive_desc), "matmul");
    const dnnl_memory_desc_t *weights =
        dnnl_primitive_desc_query_md(primitive_desc, dnnl_query_weights_md, 0);
    dnnl_memory_t a = matrix(engine, &in), b = matrix(engine, weights), c = matrix(engine, &out);
    dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}, {DNNL_ARG_DST, c}};

    static double seconds[REPEATS_MAX];
    int repeats = 0;
    for (double until = now() + 1.0; repeats < 5 || (now() < until && repeats < REPEATS_MAX);
         repeats++) {
        double from = now();
        check(dnnl_primitive_execute(primitive, stream, 3, args), "execute");
        check(dnnl_stream_wait(stream), "execute");
        seconds[repeats] = now() - from;
    }
    qsort(seconds, (size_t)repeats, sizeof *seconds, by_value);
    dnnl_memory_destroy(a);
    dnnl_memory_destroy(b);
    dnnl_memory_destroy(c);
    dnnl_primitive_destroy(primitive);
    dnnl_primitive_desc_destroy(primitive_desc);
    return 2.0 * n * n * n / seconds[repeats / 2];
}

static double best(dnnl_engine_t engine, dnnl_stream_t stream, dnnl_data_type_t type)
{
    static const int sizes[] = {512, 1024, 2048};
    double most = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        double flops = measure(engine, stream, type, sizes[i]);
        most = flops > most ? flops : most;
    }
    return most;
}

int main(void)
{
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    check(dnnl_engine_create(&engine, dnnl_cpu, 0), "engine");
    check(dnnl_stream_create(&stream, engine, dnnl_stream_default_flags), "stream");
    printf("{\"threads\": %d, \"f32_flops\": %.4g, ", omp_get_max_threads(),
           best(engine, stream, dnnl_f32));
    dnnl_cpu_isa_t isa = dnnl_get_effective_cpu_isa();
    if ((isa & dnnl_cpu_isa_avx512_core_bf16) == dnnl_cpu_isa_avx512_core_bf16)
        printf("\"bf16_flops\": %.4g}\n", best(engine, stream, dnnl_bf16));
    else
        printf("\"bf16_flops\": null}\n");
    dnnl_stream_destroy(stream);
    dnnl_engine_destroy(engine);
    return 0;
}
