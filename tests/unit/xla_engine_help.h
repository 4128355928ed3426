/* tests/unit/xla_engine_help.h – an engine on the plugin under test, small programs and buffers for it.
 *
 * The plugin is "cpu", found by TESSERA_PLUGIN_PATH, or the one that TESSERA_TEST_PLUGIN names; tests are skipped where
 * there is none, and under valgrind.
 */
#ifndef TS_TEST_XLA_ENGINE_HELP_H
#define TS_TEST_XLA_ENGINE_HELP_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "ir/builder.h"
#include "xla/plugin.h"
#include "xla/run.h"

static inline const char *plugin(void)
{
    const char *name = getenv("TESSERA_TEST_PLUGIN");
    return name && *name ? name : "cpu";
}

static inline ts_engine *open_engine(int devices, const char *dump_to)
{
    ts_engine *e = NULL;
    ts_error err = {0};
    ts_engine_options o = {.struct_size = sizeof o,
                           .name = "xla",
                           .devices = devices,
                           .plugin = plugin(),
                           .dump_to = dump_to};
    char path[4096];
    if (getenv("VALGRIND")) {
        puts("SKIP: the plugins' own code does not pass valgrind");
        skip();
    }
    if (ts__plugin_find(plugin(), path, sizeof path, &err) != TS_OK) {
        printf("SKIP: %s\n", err.msg);
        skip();
    }
    if (ts_engine_open(&o, &e, &err) != TS_OK) fail_msg("%s", err.msg);
    return e;
}

#define OK(call)                                                                                   \
    do {                                                                                           \
        ts_error err_ = {0}, *err = &err_;                                                         \
        if ((call) != TS_OK) fail_msg("%s", err_.msg);                                             \
    } while (0)
/* The call fails with this code and says these words. */
#define FAILS(call, status, words)                                                                 \
    do {                                                                                           \
        ts_error err_ = {0}, *err = &err_;                                                         \
        ts_status got_ = (call);                                                                   \
        if (got_ != (status) || !strstr(err_.msg, words))                                          \
            fail_msg("%s: %s\nexpected %s with \"%s\"", ts_status_name(got_), err_.msg,            \
                     ts_status_name(status), words);                                               \
    } while (0)

static inline ts_graph *finish(ts_builder *b)
{
    ts_graph *g = NULL;
    OK(ts_builder_finish(b, &g, err));
    return g;
}

/* state [2,3] ← state + x; total = Σ state. */
static inline ts_graph *accumulate(const char *name)
{
    ts_builder *b = ts_builder_new(name);
    ts_value *state = ts_input(b, "state", TS_F32, TS_DIMS({NULL, 2}, {NULL, 3}));
    ts_value *x = ts_input(b, "x", TS_F32, TS_DIMS({NULL, 2}, {NULL, 3}));
    ts_value *next = ts_add(b, state, x);
    ts_output(b, "state", next, state);
    ts_output(b, "total", ts_reduce_sum(b, next, TS_INTS(0, 1)), NULL);
    return finish(b);
}

typedef struct program {
    ts_engine *e;
    ts_graph *g;
    ts_executable *x;
    ts_buffer *in[16], *out[16]; /* device by device: state, x; state, total */
    int devices;
} program;

static inline void make_buffers(program *p)
{
    for (int d = 0; d < p->devices; d++) {
        for (int k = 0; k < 2; k++) {
            OK(ts_buffer_new(p->e, d, &p->g->top->arg[k]->type, &p->in[2 * d + k], err));
            if (p->g->output[k].replaces < 0)
                OK(ts_buffer_new(p->e, d, &p->g->top->result[k]->type, &p->out[2 * d + k], err));
            else
                p->out[2 * d + k] = p->in[2 * d + p->g->output[k].replaces];
        }
    }
}

static inline program open_program(int devices)
{
    program p = {.devices = devices};
    p.e = open_engine(devices, NULL);
    p.g = accumulate("accumulate");
    OK(ts_compile(p.e, p.g, &p.x, err));
    make_buffers(&p);
    return p;
}

static inline void close_program(program *p)
{
    for (int d = 0; d < p->devices; d++) {
        ts_buffer_free(p->in[2 * d]);
        ts_buffer_free(p->in[2 * d + 1]);
        ts_buffer_free(p->out[2 * d + 1]);
    }
    ts_executable_free(p->x);
    ts_engine_close(p->e);
    ts_graph_free(p->g);
}

static inline void put(ts_buffer *b, float from, float step)
{
    float v[6];
    for (int i = 0; i < 6; i++) v[i] = from + step * (float)i;
    OK(ts_upload(b, v, 0, sizeof v, err));
}

static inline void expect(ts_buffer *b, float from, float step)
{
    float v[6] = {0};
    OK(ts_download(b, v, 0, sizeof v, err));
    for (int i = 0; i < 6; i++)
        if (v[i] != from + step * (float)i)
            fail_msg("element %d is %g, expected %g", i, (double)v[i],
                     (double)(from + step * (float)i));
}

static inline float total_of(ts_buffer *b)
{
    float v = -1;
    OK(ts_download(b, &v, 0, sizeof v, err));
    return v;
}

#endif
