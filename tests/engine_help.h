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

enum { HELP_MAX = 32 };

typedef struct help_run {
    int n;
    void *out[HELP_MAX]; /* owns */
    size_t bytes[HELP_MAX];
    ts_exec_stats stats;
    ts_string plan;
} help_run;

/* isa NULL: TESSERA_ISA, else the best. */
static inline ts_engine *help_engine(const char *isa, int threads)
{
    ts_engine *e = NULL;
    ts_error err = {0};
    ts_engine_options o = {
        .struct_size = sizeof o, .name = "cpu", .devices = 1, .threads = threads, .isa = isa};
    if (ts_engine_open(&o, &e, &err) != TS_OK) fail_msg("%s", err.msg);
    return e;
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

/* Inputs get seeds seed + index unless data[index] is given. */
static inline help_run help_execute(ts_engine *e, const ts_graph *g, bool share,
                                    const void *const *data, uint32_t seed)
{
    help_run r = {.plan = ts_string_new(1 << 20), .n = g->top->n_result};
    ts_error err = {0};
    ts_executable *x = NULL;
    ts_buffer *in[HELP_MAX + 1] = {0}, *out[HELP_MAX + 1] = {0};
    int n_in = g->top->n_arg;
    bool replaced[HELP_MAX] = {0};
    assert_true(n_in <= HELP_MAX && r.n <= HELP_MAX);
    if (ts_cpu_compile(e, g, share, &x, &err) != TS_OK) fail_msg("%s", err.msg);
    ts_cpu_plan_text(x, &r.plan);
    for (int k = 0; k < n_in; k++)
        assert_int_equal(ts_buffer_new(e, 0, &g->top->arg[k]->type, &in[k], &err), TS_OK);
    for (int k = 0; k < r.n; k++) {
        int replaces = g->output[k].replaces;
        if (replaces >= 0) replaced[replaces] = true;
        if (replaces >= 0)
            out[k] = in[replaces];
        else
            assert_int_equal(ts_buffer_new(e, 0, &g->top->result[k]->type, &out[k], &err), TS_OK);
        r.bytes[k] = ts_type_bytes(&g->top->result[k]->type);
    }
    for (int round = 0; round < 2; round++) {
        for (int k = 0; k < n_in; k++) {
            if (data && data[k])
                assert_int_equal(ts_upload(in[k], data[k], 0, ts_type_bytes(&in[k]->type), &err),
                                 TS_OK);
            else
                help_upload(in[k], seed + (uint32_t)k);
        }
        if (ts_execute(x, in, out, &err) != TS_OK || ts_wait(x, &err) != TS_OK)
            fail_msg("%s", err.msg);
        for (int k = 0; k < r.n; k++) {
            void *p = ts_alloc_zero(r.bytes[k]);
            assert_int_equal(ts_download(out[k], p, 0, r.bytes[k], &err), TS_OK);
            if (round) assert_memory_equal(p, r.out[k], r.bytes[k]);
            if (round)
                ts_free(p);
            else
                r.out[k] = p;
        }
    }
    for (int k = 0; k < n_in; k++)
        if (!replaced[k] && !(data && data[k])) help_check_unchanged(in[k], seed + (uint32_t)k);
    x->vtable->stats(x, &r.stats);
    ts_executable_free(x);
    for (int k = 0; k < n_in; k++) ts_buffer_free(in[k]);
    for (int k = 0; k < r.n; k++)
        if (g->output[k].replaces < 0) ts_buffer_free(out[k]);
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
