/* fake_help.h – the fake plugin for tests of src/xla: where it lies, its faults, what it counted.
 *
 * Libraries for tests are in $(BUILD)/tests/fake, beside the folder of this program. Faults are environment
 * variables (fake/fake.h lists them) and end with fault_none(), which every test calls first and last.
 * Programs that try the plugin in a child must not call fake_counts() or fake_open(): these load it.
 */
#ifndef TS_TEST_FAKE_HELP_H
#define TS_TEST_FAKE_HELP_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <dlfcn.h>

#include <cmocka.h>

#include "exec/engine.h"
#include "fake/fake_pjrt.h"

/* "fake_pjrt" → …/tests/fake/libfake_pjrt.so, in one of four buffers. */
static inline const char *fake_library(const char *name)
{
    static char path[4][4096];
    static int at;
    char *p = path[at = (at + 1) % 4];
    ssize_t n = readlink("/proc/self/exe", p, 3900);
    if (n <= 0) fail_msg("where this program lies is not known");
    p[n] = 0;
    for (int up = 0; up < 2; up++) *strrchr(p, '/') = 0;
    sprintf(p + strlen(p), "/fake/lib%s.so", name);
    return p;
}

/* "FAIL" → FAKE_PJRT_FAIL. */
static inline void fault(const char *name, const char *value)
{
    char variable[80];
    snprintf(variable, sizeof variable, "FAKE_PJRT_%s", name);
    setenv(variable, value, 1);
}

static inline void fault_none(void)
{
    static const char *const names[] = {
        "FAIL",     "ABORT",     "EXIT",     "HANG",        "EVENT_FAIL", "MISSING", "API",
        "SIZE",     "STABLEHLO", "NO_GRAPH", "NO_PROFILER", "DEVICES",    "ORDER",   "LOG",
        "TOPOLOGY", "PLATFORM",  "VERSION",  "SLOW_MS",     "ODD",        "KIND",    "DUMP",
        "LIE",      "LAG"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char variable[80];
        snprintf(variable, sizeof variable, "FAKE_PJRT_%s", names[i]);
        unsetenv(variable);
    }
}

/* The fake's own table, which loads it into this process. */
static inline const fake_extension *fake_counts(void)
{
    static const fake_extension *found;
    if (found) return found;
    void *library = dlopen(fake_library("fake_pjrt"), RTLD_NOW | RTLD_LOCAL);
    if (!library) fail_msg("%s", dlerror());
    void *symbol = dlsym(library, "GetPjrtApi");
    PJRT_GetApi *get;
    memcpy(&get, &symbol, sizeof get);
    for (PJRT_Extension_Base *e = get()->extension_start; e; e = e->next)
        if ((int)e->type == FAKE_EXTENSION_TYPE) found = (const fake_extension *)e;
    assert_non_null(found);
    return found;
}

/* Replaces each '$' of text by the path of the fake plugin, each '#' by mark. */
static inline const char *fake_words(const char *text, const char *mark)
{
    static char out[16384];
    const char *path = fake_library("fake_pjrt");
    size_t n = 0;
    for (; *text && n < sizeof out / 2; text++) {
        if (*text == '$' || *text == '#')
            n += (size_t)snprintf(out + n, sizeof out - n, "%s", *text == '$' ? path : mark);
        else
            out[n++] = *text;
    }
    out[n] = 0;
    return out;
}

/* Seconds that suffice for a plugin to be loaded and to begin to hang; valgrind takes its time. */
static inline const char *fake_limit(void)
{
    return getenv("VALGRIND") ? "15" : "1";
}

/* w: f32[4] replaced by w + x; y = x · w. */
static inline ts_graph *fake_small_graph(void)
{
    ts_graph *g = NULL;
    ts_error err = {0};
    ts_builder *b = ts_builder_new("small");
    ts_dim dims[1] = {{"embed", 4}};
    ts_value *w = ts_input(b, "w", TS_F32, dims, 1), *x = ts_input(b, "x", TS_F32, dims, 1);
    ts_output(b, "w", ts_add(b, w, x), w);
    ts_output(b, "y", ts_mul(b, x, w), NULL);
    if (ts_builder_finish(b, &g, &err) != TS_OK) fail_msg("%s", err.msg);
    return g;
}

static inline ts_status fake_open(int devices, ts_engine **e, ts_error *err)
{
    ts_engine_options o = {.struct_size = sizeof o,
                           .name = "xla",
                           .devices = devices,
                           .plugin = fake_library("fake_pjrt")};
    return ts_engine_open(&o, e, err);
}

/* No object of the plugin is left alive. */
static inline void fake_nothing_left(const char *after)
{
    static const char *const kinds[] = {"error",
                                        "event",
                                        "client",
                                        "buffer",
                                        "executable",
                                        "loaded executable",
                                        "serialized executable",
                                        "device assignment",
                                        "topology",
                                        "profiler"};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (fake_counts()->live(kinds[i]))
            fail_msg("%s: %lld × %s left", after, (long long)fake_counts()->live(kinds[i]),
                     kinds[i]);
    assert_int_equal(fake_counts()->live(NULL), 0);
}

#endif
