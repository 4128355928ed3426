/* engine_help.h – running a graph on the CPU engine in tests: fills inputs from a seed, executes, hands
 * back the outputs' bytes; checks by the way that inputs which no output replaces stay as they were
 * and that a second execute gives the same bits. */
#ifndef TS_TEST_ENGINE_HELP_H
#define TS_TEST_ENGINE_HELP_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "cpu/program.h"

enum { HELP_MAX = 32, HELP_DEVICES = 8 };

typedef struct help_run {
    int n;
    void *out[HELP_MAX]; /* owns */
    size_t bytes[HELP_MAX];
    ts_exec_stats stats;
    ts_string plan;
} help_run;

/* isa NULL: TESSERA_ISA, else the best. */
static inline ts_engine *help_engine_of(const char *isa, int threads, int devices)
{
    ts_engine *e = NULL;
    ts_error err = {0};
    ts_engine_options o = {
        .struct_size = sizeof o, .name = "cpu", .devices = devices, .threads = threads, .isa = isa};
    if (ts_engine_open(&o, &e, &err) != TS_OK) fail_msg("%s", err.msg);
    return e;
}
static inline ts_engine *help_engine(const char *isa, int threads)
{
    return help_engine_of(isa, threads, 1);
}

static inline uint32_t help_hash(uint32_t x)
{
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    return x ^ x >> 16;
}

/* f32 and bf16 in [−1, 1), integers 0 … 7, pred 0 or 1. */
static inline void help_fill(void *p, const ts_type *t, uint32_t seed)
{
    int64_t n = ts_type_elements(t);
    for (int64_t i = 0; i < n; i++) {
        uint32_t h = help_hash(seed * 7919u + (uint32_t)i);
        float f = (float)(h >> 8) / (1 << 23) - 1.0f;
        switch (t->dtype) {
        case TS_F32: ((float *)p)[i] = f; break;
        case TS_BF16: ((uint16_t *)p)[i] = ts_bf16_from_f32(f); break;
        case TS_PRED: ((uint8_t *)p)[i] = h & 1; break;
        default: ((uint32_t *)p)[i] = h & 7; break;
        }
    }
}

static inline void help_upload(ts_buffer *b, uint32_t seed)
{
    size_t bytes = ts_type_bytes(&b->type);
    void *p = ts_alloc_zero(bytes);
    help_fill(p, &b->type, seed);
    assert_int_equal(ts_upload(b, p, 0, bytes, NULL), TS_OK);
    ts_free(p);
}

static inline void help_check_unchanged(ts_buffer *b, uint32_t seed)
{
    size_t bytes = ts_type_bytes(&b->type);
    void *p = ts_alloc_zero(bytes), *q = ts_alloc_zero(bytes);
    help_fill(p, &b->type, seed);
    assert_int_equal(ts_download(b, q, 0, bytes, NULL), TS_OK);
    assert_memory_equal(p, q, bytes);
    ts_free(p);
    ts_free(q);
}

static inline uint32_t help_seed(uint32_t seed, int k, int device)
{
    return seed + (uint32_t)k + (uint32_t)device * 1009u;
}

/* Inputs get help_seed unless data[index] is given. Outputs come device after device. */
static inline help_run help_execute(ts_engine *e, const ts_graph *g, bool share,
                                    const void *const *data, uint32_t seed)
{
    help_run r = {.plan = ts_string_new(1 << 20), .n = g->top->n_result};
    ts_error err = {0};
    ts_executable *x = NULL;
    ts_buffer *in[HELP_DEVICES * HELP_MAX + 1] = {0}, *out[HELP_DEVICES * HELP_MAX + 1] = {0};
    const int n_in = g->top->n_arg, devices = e->vtable->devices(e);
    bool replaced[HELP_MAX] = {0};
    assert_true(n_in <= HELP_MAX && r.n <= HELP_MAX && devices <= HELP_DEVICES);
    if (ts_cpu_compile(e, g, share, &x, &err) != TS_OK) fail_msg("%s", err.msg);
    ts_cpu_plan_text(x, &r.plan);
    for (int i = 0; i < devices * n_in; i++)
        assert_int_equal(
            ts_buffer_new(e, i / n_in, &g->top->arg[i % n_in]->type, &in[i], &err), TS_OK);
    for (int i = 0; i < devices * r.n; i++) {
        const int d = i / r.n, k = i % r.n, replaces = g->output[k].replaces;
        if (replaces >= 0) replaced[replaces] = true;
        if (replaces >= 0)
            out[i] = in[d * n_in + replaces];
        else
            assert_int_equal(ts_buffer_new(e, d, &g->top->result[k]->type, &out[i], &err), TS_OK);
        r.bytes[k] = (size_t)devices * ts_type_bytes(&g->top->result[k]->type);
    }
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < devices * n_in; i++) {
            const int k = i % n_in;
            if (data && data[k])
                assert_int_equal(ts_upload(in[i], data[k], 0, ts_type_bytes(&in[i]->type), &err),
                                 TS_OK);
            else
                help_upload(in[i], help_seed(seed, k, i / n_in));
        }
        if (ts_execute(x, in, out, &err) != TS_OK || ts_wait(x, &err) != TS_OK)
            fail_msg("%s", err.msg);
        for (int k = 0; k < r.n; k++) {
            const size_t bytes = r.bytes[k] / (size_t)devices;
            char *p = ts_alloc_zero(r.bytes[k]);
            for (int d = 0; d < devices; d++)
                assert_int_equal(
                    ts_download(out[d * r.n + k], p + (size_t)d * bytes, 0, bytes, &err), TS_OK);
            if (round) assert_memory_equal(p, r.out[k], r.bytes[k]);
            if (round)
                ts_free(p);
            else
                r.out[k] = p;
        }
    }
    for (int i = 0; i < devices * n_in; i++)
        if (!replaced[i % n_in] && !(data && data[i % n_in]))
            help_check_unchanged(in[i], help_seed(seed, i % n_in, i / n_in));
    x->vtable->stats(x, &r.stats);
    ts_executable_free(x);
    for (int i = 0; i < devices * n_in; i++) ts_buffer_free(in[i]);
    for (int i = 0; i < devices * r.n; i++)
        if (g->output[i % r.n].replaces < 0) ts_buffer_free(out[i]);
    return r;
}

static inline void help_run_free(help_run *r)
{
    for (int k = 0; k < r->n; k++) ts_free(r->out[k]);
    ts_string_free(&r->plan);
}

static inline ts_graph *help_finish(ts_builder *b)
{
    ts_graph *g = NULL;
    ts_error err = {0};
    if (ts_builder_finish(b, &g, &err) != TS_OK) fail_msg("%s", err.msg);
    return g;
}

/* Both ways, same bits; returns the shared run. */
static inline help_run help_compare(ts_engine *e, const ts_graph *g, const void *const *data,
                                    uint32_t seed)
{
    help_run plain = help_execute(e, g, false, data, seed),
             shared = help_execute(e, g, true, data, seed);
    for (int k = 0; k < plain.n; k++)
        if (memcmp(plain.out[k], shared.out[k], plain.bytes[k]) != 0) {
            ts_string text = ts_string_new(1 << 20);
            ts_graph_print(g, &text);
            fail_msg("output %d (%s) differs when values share memory (seed %u):\n%s\n%s", k,
                     g->output[k].name, seed, text.data, shared.plan.data);
        }
    help_run_free(&plain);
    return shared;
}

#endif
