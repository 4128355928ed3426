/* fault.c – what the fake plugin does wrong, and what it counts: errors, faults from the environment, live objects.
 *
 * Every entry of the table passes fake_enter, which counts the call, logs it and looks into the environment for what
 * shall go wrong with it. The environment is read by the caller's thread alone: the device thread gets what it
 * needs in its task, because getenv and a test's setenv may not meet.
 */
#include "fake/fake.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t fake_changed = PTHREAD_COND_INITIALIZER;

enum { MAX_NAMES = 128 };

typedef struct tally {
    const char *name; /* a literal */
    int64_t n;
} tally;

static tally call_count[MAX_NAMES], live_count[MAX_NAMES];
static uint64_t counters[FAKE_COUNTERS];
static int flight, most_flight;

/* ---- counting ----------------------------------------------------------------------------------- */

/* Under fake_lock. */
static int64_t *tally_of(tally *t, const char *name)
{
    int i = 0;
    while (i < MAX_NAMES - 1 && t[i].name && strcmp(t[i].name, name) != 0) i++;
    if (!t[i].name) t[i].name = name;
    return &t[i].n;
}

static int64_t tally_add(tally *t, const char *name, int64_t change)
{
    pthread_mutex_lock(&fake_lock);
    int64_t n = *tally_of(t, name) += change;
    pthread_mutex_unlock(&fake_lock);
    return n;
}

void fake_born(const char *kind)
{
    tally_add(live_count, kind, 1);
}

void fake_died(const char *kind)
{
    tally_add(live_count, kind, -1);
}

uint64_t fake_count(fake_counter c)
{
    pthread_mutex_lock(&fake_lock);
    uint64_t n = ++counters[c];
    pthread_mutex_unlock(&fake_lock);
    return n;
}

void fake_flight(int change)
{
    pthread_mutex_lock(&fake_lock);
    flight += change;
    if (flight > most_flight) most_flight = flight;
    pthread_mutex_unlock(&fake_lock);
}

static void test_reset(void)
{
    pthread_mutex_lock(&fake_lock);
    memset(call_count, 0, sizeof call_count);
    memset(counters, 0, sizeof counters);
    most_flight = flight;
    pthread_mutex_unlock(&fake_lock);
}

static uint64_t test_executes(void)
{
    pthread_mutex_lock(&fake_lock);
    uint64_t n = counters[FAKE_EXECUTES];
    pthread_mutex_unlock(&fake_lock);
    return n;
}

static uint64_t test_donated(void)
{
    pthread_mutex_lock(&fake_lock);
    uint64_t n = counters[FAKE_DONATED];
    pthread_mutex_unlock(&fake_lock);
    return n;
}

static uint64_t test_calls(const char *function)
{
    uint64_t n = 0;
    pthread_mutex_lock(&fake_lock);
    for (int i = 0; i < MAX_NAMES && call_count[i].name; i++)
        if (strcmp(call_count[i].name, function) == 0) n = (uint64_t)call_count[i].n;
    pthread_mutex_unlock(&fake_lock);
    return n;
}

static int64_t test_live(const char *kind)
{
    int64_t n = 0;
    pthread_mutex_lock(&fake_lock);
    for (int i = 0; i < MAX_NAMES && live_count[i].name; i++)
        if (!kind || strcmp(live_count[i].name, kind) == 0) n += live_count[i].n;
    pthread_mutex_unlock(&fake_lock);
    return n;
}

static int test_in_flight(void)
{
    pthread_mutex_lock(&fake_lock);
    int n = most_flight;
    pthread_mutex_unlock(&fake_lock);
    return n;
}

fake_extension fake_test_extension = {
    .base = {.struct_size = sizeof(fake_extension),
             .type = (PJRT_Extension_Type)FAKE_EXTENSION_TYPE},
    .reset = test_reset,
    .executes = test_executes,
    .calls = test_calls,
    .live = test_live,
    .donated = test_donated,
    .in_flight = test_in_flight,
};

/* ---- errors ------------------------------------------------------------------------------------- */

PJRT_Error *fake_error(int code, const char *fmt, ...)
{
    static const char room[4096];
    PJRT_Error *e = ts_alloc(sizeof *e + sizeof room);
    TS_ASSERT(e);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(e->message, sizeof room, fmt, ap);
    va_end(ap);
    e->code = code;
    fake_born("error");
    return e;
}

PJRT_Error *fake_problem_error(const fake_problem *p)
{
    return p->code ? fake_error(p->code, "%s", p->message) : NULL;
}

PJRT_Error *fake_status_error(const ts_error *err)
{
    return fake_error(err->code ? (int)err->code : PJRT_Error_Code_INTERNAL, "%s", err->msg);
}

PJRT_Error *fake_Error_GetCode(PJRT_Error_GetCode_Args *a)
{
    a->code = (PJRT_Error_Code)a->error->code;
    return NULL;
}

/* ---- the environment ---------------------------------------------------------------------------- */

int64_t fake_number(const char *variable, int64_t otherwise)
{
    const char *v = getenv(variable);
    return v && *v ? strtoll(v, NULL, 10) : otherwise;
}

static char log_path[4096]; /* under fake_lock */

/* On the caller's thread: the device thread logs to where the last call did. */
static void choose_log(void)
{
    const char *path = getenv("FAKE_PJRT_LOG");
    pthread_mutex_lock(&fake_lock);
    snprintf(log_path, sizeof log_path, "%s", path ? path : "");
    pthread_mutex_unlock(&fake_lock);
}

void fake_log(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    pthread_mutex_lock(&fake_lock);
    FILE *f = log_path[0] ? fopen(log_path, "a") : NULL;
    if (f) {
        vfprintf(f, fmt, ap);
        fputc('\n', f);
        fclose(f);
    }
    pthread_mutex_unlock(&fake_lock);
    va_end(ap);
}

/* Finds "F", "F@3" or either with "=rest" in a list; count 0 fits every number. *rest: what follows '=', or NULL. */
static bool find(const char *variable, const char *function, uint64_t count, const char **rest,
                 size_t *n_rest)
{
    const char *at = getenv(variable);
    size_t n = strlen(function);
    while (at && *at) {
        size_t entry = strcspn(at, ";");
        const char *p = at + n;
        if (entry >= n && strncmp(at, function, n) == 0 && strchr("@=;", *p)) {
            char *end = (char *)p;
            uint64_t wanted = *p == '@' ? strtoull(p + 1, &end, 10) : 0;
            if (wanted == 0 || count == 0 || wanted == count) {
                *rest = *end == '=' ? end + 1 : NULL;
                *n_rest = *rest ? entry - (size_t)(*rest - at) : 0;
                return true;
            }
        }
        at += entry;
        at += *at == ';';
    }
    return false;
}

bool fake_listed(const char *variable, const char *function)
{
    const char *rest;
    size_t n;
    return find(variable, function, 0, &rest, &n);
}

/* Faults without a way back. */
static void end_here(const char *function, uint64_t count)
{
    const char *rest;
    size_t n;
    if (find("FAKE_PJRT_ABORT", function, count, &rest, &n)) {
        fprintf(stderr, "F0000 fake plugin: check failed in %s\n", function);
        abort();
    }
    if (find("FAKE_PJRT_EXIT", function, count, &rest, &n)) {
        fprintf(stderr, "E0000 fake plugin: unknown flag, leaving from %s\n", function);
        exit(3);
    }
    if (find("FAKE_PJRT_HANG", function, count, &rest, &n)) {
        fprintf(stderr, "I0000 fake plugin: waiting for a metadata server in %s\n", function);
        for (;;) pause();
    }
}

PJRT_Error *fake_enter(const char *function)
{
    const char *rest;
    size_t n;
    uint64_t count = (uint64_t)tally_add(call_count, function, 1);
    choose_log();
    fake_log("%s", function);
    end_here(function, count);
    if (!find("FAKE_PJRT_FAIL", function, count, &rest, &n)) return NULL;
    char *end = NULL;
    int code = rest ? (int)strtol(rest, &end, 10) : PJRT_Error_Code_INTERNAL;
    if (!rest || *end != ':') return fake_error(code, "%s fails by order", function);
    end++;
    return fake_error(code, "%.*s", (int)(n - (size_t)(end - rest)), end);
}

bool fake_event_fails(const char *kind, uint64_t count, fake_problem *p)
{
    const char *v = getenv("FAKE_PJRT_EVENT_FAIL");
    if (!v || !*v) return false;
    char *end;
    const char *at = strchr(v, '@');
    size_t n = at ? (size_t)(at - v) : strlen("execute");
    if (strncmp(at ? v : "execute", kind, n) != 0 || kind[n] != 0) return false;
    if (strtoull(at ? at + 1 : v, &end, 10) != count) return false;
    p->code = PJRT_Error_Code_INTERNAL;
    snprintf(p->message, sizeof p->message, "the device was lost in %s %llu", kind,
             (unsigned long long)count);
    return true;
}
