/* train/profile.c – where the time of some steps goes.
 *
 * profiler=trace, on the cpu engine: every instruction of the recorded steps, as Chrome's trace JSON in
 * <run folder>/profile/trace.json, and a line with the dearest ops. profiler=xplane, where the device's plugin has a
 * profiler: its own recording, where TensorBoard looks for it. Recorded are profiler_steps steps behind the first
 * skip_first_n_steps_for_profiler of this start.
 *
 * The engine records into a buffer it made before; copies are made between steps. KEPT events go into the file, later
 * steps only into the sums, and the line says so. A profile is an extra: one that cannot be written is a warning.
 * Not here: reading the clock around an instruction (cpu/run.c), the plugin's profiler (xla/).
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/file.h"
#include "base/log.h"
#include "train/run.h"

enum {
    KEPT = 1 << 20,
    SHOWN = 5,
    NAMES = TS_OPS + 1
}; /* the last name: moves that belong to no op */

typedef struct recorded {
    int64_t step;
    double requested, fed, sent, dispatched, seconds;
    size_t first, n; /* events that are kept */
    double ops;      /* seconds of all events */
} recorded;

struct ts_profile {
    bool trace; /* else xplane */
    bool placed, active, over;
    int64_t first, last; /* steps [first, last) */
    recorded *step;
    size_t n_step, cap_step;
    ts_profile_event *event;
    size_t n_event, cap_event;
    uint64_t left_out; /* events that happened and are not kept */
    bool no_memory;
    double by_op[NAMES][2]; /* seconds, forward and backward */
};

/* ---- window ---------------------------------------------------------------------------------- */

/* Whether the device can be profiled is asked before the first step. */
static ts_status try_device(ts_run *r, ts_error *err)
{
    const ts_engine_vtable *v = r->engine->vtable;
    ts_status status = v->trace_begin ? v->trace_begin(r->engine, err)
                                      : TS_ERROR(err, TS_UNIMPLEMENTED, "it has no profiler");
    if (status == TS_OK) status = v->trace_end(r->engine, NULL, err);
    if (status == TS_OK) return TS_OK;
    ts_error why = *err;
    *err = (ts_error){0};
    return TS_ERROR(err, TS_FAILED_PRECONDITION,
                    "profiler=xplane does not work with %s: %s; leave profiler out",
                    v->describe(r->engine), why.msg);
}

ts_status ts__profile_open(ts_run *r, ts_error *err)
{
    const char *kind = r->config->profiler;
    if (!*kind) return TS_OK;
    ts_error why = {0};
    bool trace = strcmp(kind, "trace") == 0;
    if (!trace && try_device(r, &why) != TS_OK) return TS_ERROR(err, why.code, "%s", why.msg);
    if (!(r->profile = ts_alloc_zero(sizeof *r->profile)))
        return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out for the profile");
    r->profile->trace = trace;
    return TS_OK;
}

bool ts__profile_is_due(const ts_run *r, int64_t step)
{
    const ts_profile *p = r->profile;
    return p && p->placed && (step == p->first || step == p->last);
}

/* ---- recording ------------------------------------------------------------------------------- */

void ts__profile_dispatch(ts_run *r)
{
    ts_executable *x = ts_bound_executable(r->train);
    if (r->profile && r->profile->active && r->profile->trace) x->vtable->profile_next(x);
}

/* Room for n more events and one more step. */
static bool grow(ts_profile *p, size_t n)
{
    if (p->n_step == p->cap_step) {
        size_t cap = p->cap_step ? 2 * p->cap_step : 8;
        recorded *step = ts_realloc(p->step, p->cap_step * sizeof *step, cap * sizeof *step);
        if (!step) return false;
        p->step = step;
        p->cap_step = cap;
    }
    if (p->n_event + n <= p->cap_event) return true;
    size_t cap = 2 * p->cap_event > p->n_event + n ? 2 * p->cap_event : p->n_event + n;
    ts_profile_event *event =
        ts_realloc(p->event, p->cap_event * sizeof *event, cap * sizeof *event);
    if (!event) return false;
    p->event = event;
    p->cap_event = cap;
    return true;
}

void ts__profile_finish(ts_run *r, const ts_flight *f)
{
    ts_profile *p = r->profile;
    ts_executable *x = ts_bound_executable(r->train);
    ts_exec_stats s;
    if (!p || !p->active || !p->trace) return;
    size_t n = x->vtable->profile(x, NULL, 0);
    if (!grow(p, n)) {
        p->no_memory = true;
        return;
    }
    recorded *t = &p->step[p->n_step++];
    *t = (recorded){f->info.step,    f->requested, f->fed, f->sent, f->dispatched,
                    f->info.seconds, p->n_event,   n,      0};
    ts_profile_event *e = p->event + p->n_event;
    x->vtable->profile(x, e, n);
    x->vtable->stats(x, &s);
    p->left_out += s.unrecorded;
    for (size_t i = 0; i < n; i++) {
        const ts_node *node = e[i].node;
        t->ops += e[i].seconds;
        p->by_op[node ? node->op : TS_OPS][node && node->backward] += e[i].seconds;
    }
    if (p->n_event + n > KEPT) {
        p->left_out += n;
        t->n = 0;
    } else
        p->n_event += n;
}

/* ---- Chrome's trace -------------------------------------------------------------------------- */

static const char *name_of(const ts_node *node)
{
    return node ? ts_op_infos[node->op].name : "move";
}

static void add_text(ts_string *s, const char *text)
{
    ts_string_add(s, "\"");
    for (const char *c = text; *c; c++) {
        if ((unsigned char)*c < 0x20)
            ts_string_printf(s, "\\u%04x", (unsigned)*c);
        else if (*c == '"' || *c == '\\')
            ts_string_printf(s, "\\%c", *c);
        else
            ts_string_add_bytes(s, c, 1);
    }
    ts_string_add(s, "\"");
}

/* One complete event ("X"), microseconds from the profile's beginning. The caller adds its args and closes it. */
static void begin_event(ts_string *s, const char *name, const char *kind, double at, double seconds)
{
    ts_string_add(s, ",\n{\"name\": ");
    add_text(s, name);
    ts_string_printf(
        s, ", \"cat\": \"%s\", \"ph\": \"X\", \"pid\": 1, \"tid\": 1, \"ts\": %.3f, \"dur\": %.3f",
        kind, 1e6 * at, 1e6 * (seconds > 0 ? seconds : 0));
}

static void add_op(ts_string *s, const ts_profile_event *e, double at)
{
    const ts_node *node = e->node;
    begin_event(s, name_of(node), "op", at, e->seconds);
    ts_string_add(s, ", \"args\": {");
    if (node) {
        ts_string_add(s, "\"scope\": ");
        add_text(s, node->scope ? node->scope : "");
        ts_string_printf(s, ", \"backward\": %s, ", node->backward ? "true" : "false");
        if (node->loc.file) {
            ts_string_add(s, "\"line\": ");
            const char *slash = strrchr(node->loc.file, '/');
            add_text(s, slash ? slash + 1 : node->loc.file);
            s->length--; /* the closing quote */
            ts_string_printf(s, ":%d\", ", node->loc.line);
        }
    }
    ts_string_printf(s, "\"iteration\": %lld}}", (long long)e->iteration);
}

/* A step, and what comes before its ops: the batch, and its way to the engine. */
static void begin_step(ts_string *s, const recorded *t, double origin)
{
    char name[40];
    double at = t->requested - origin;
    snprintf(name, sizeof name, "step %lld", (long long)t->step);
    begin_event(s, name, "step", at, t->seconds);
    ts_string_printf(s, ", \"args\": {\"step\": %lld, \"op_seconds\": %.9f}}", (long long)t->step,
                     t->ops);
    begin_event(s, "batch", "host", at, t->fed - t->requested);
    ts_string_add(s, "}");
    begin_event(s, "upload", "host", t->fed - origin, t->sent - t->fed);
    ts_string_add(s, "}");
}

/* What comes behind them: loss and norm, read back. */
static void end_step(ts_string *s, const recorded *t, double origin)
{
    begin_event(s, "results", "host", t->dispatched - origin,
                t->requested + t->seconds - t->dispatched);
    ts_string_add(s, "}");
}

static ts_status flush(ts_writer *w, ts_string *s, ts_error *err)
{
    if (s->failed) return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out for the profile");
    ts_status status = ts_writer_write(w, s->data, s->length, err);
    s->length = 0;
    return status;
}

static ts_status write_events(const ts_run *r, ts_writer *w, ts_string *s, ts_error *err)
{
    const ts_profile *p = r->profile;
    double origin = p->step[0].requested;
    ts_string_add(s,
                  "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n"
                  "{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": 1, \"args\": {\"name\": ");
    ts_string_printf(s, "\"tessera %s\"", TS_VERSION);
    ts_string_add(s, "}},\n{\"name\": \"thread_name\", \"ph\": \"M\", \"pid\": 1, \"tid\": 1, "
                     "\"args\": {\"name\": ");
    add_text(s, r->engine->vtable->describe(r->engine));
    ts_string_add(s, "}}");
    for (size_t k = 0; k < p->n_step; k++) {
        const recorded *t = &p->step[k];
        begin_step(s, t, origin);
        for (size_t i = t->first; i < t->first + t->n; i++) {
            add_op(s, &p->event[i], t->sent - origin + p->event[i].start_seconds);
            TS_TRY(flush(w, s, err));
        }
        end_step(s, t, origin);
        TS_TRY(flush(w, s, err)); /* a step whose ops are left out too */
    }
    ts_string_printf(s, "\n], \"otherData\": {\"left_out\": %llu}}\n",
                     (unsigned long long)p->left_out);
    return flush(w, s, err);
}

/* Beside its place first: a full disk leaves the file of before. */
static ts_status write_trace(const ts_run *r, const char *folder, const char *path, ts_error *err)
{
    ts_string part = ts_string_new(1 << 16), text = ts_string_new(1 << 16);
    ts_writer *w = NULL;
    ts_string_printf(&part, "%s.part", path);
    ts_status status = ts_make_folders(folder, err);
    if (status == TS_OK && part.failed)
        status = TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out for the profile");
    if (status == TS_OK) status = ts_writer_open(part.data, false, &w, err);
    if (status == TS_OK) {
        status = write_events(r, w, &text, err);
        ts_status closed = ts_writer_close(w, false, status == TS_OK ? err : NULL);
        if (status == TS_OK) status = closed;
        if (status == TS_OK) status = ts_rename(part.data, path, err);
        if (status != TS_OK) (void)ts_remove_tree(part.data, NULL);
    }
    ts_string_free(&part);
    ts_string_free(&text);
    return status;
}

/* ---- the lines ------------------------------------------------------------------------------- */

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The part of a step that its ops explain: median over the steps; 0 when memory is out. */
static double explained(const ts_profile *p)
{
    double *share = ts_alloc(p->n_step * sizeof *share), median;
    if (!share) return 0;
    for (size_t k = 0; k < p->n_step; k++) share[k] = p->step[k].ops / p->step[k].seconds;
    qsort(share, p->n_step, sizeof *share, ascending);
    median = (share[p->n_step / 2] + share[(p->n_step - 1) / 2]) / 2;
    ts_free(share);
    return median;
}

/* "; dot 40.1 %, dot (backward) 33.0 %, …" */
static void add_dearest(ts_profile *p, ts_string *s)
{
    double all = 0;
    for (int k = 0; k < 2 * NAMES; k++) all += p->by_op[k / 2][k % 2];
    for (int shown = 0; shown < SHOWN; shown++) {
        int best = 0;
        for (int k = 1; k < 2 * NAMES; k++)
            if (p->by_op[k / 2][k % 2] > p->by_op[best / 2][best % 2]) best = k;
        if (p->by_op[best / 2][best % 2] <= 0) return;
        ts_string_printf(s, "%s%s%s %.1f %%", shown ? ", " : "; dearest: ",
                         best / 2 < TS_OPS ? ts_op_infos[best / 2].name : "move",
                         best % 2 ? " (backward)" : "", 100 * p->by_op[best / 2][best % 2] / all);
        p->by_op[best / 2][best % 2] = 0;
    }
}

static void say_trace(ts_run *r, const char *path)
{
    ts_profile *p = r->profile;
    ts_string s = ts_string_new(2000);
    ts_string_printf(&s, "profile: ops are %.1f %% of a step (median of %zu)", 100 * explained(p),
                     p->n_step);
    add_dearest(p, &s);
    ts__run_line(r, "profile of steps %lld to %lld: %s, for Perfetto or chrome://tracing",
                 (long long)p->step[0].step, (long long)p->step[p->n_step - 1].step, path);
    if (s.data && !s.failed) ts__run_line(r, "%s", s.data);
    if (p->left_out)
        ts__run_line(r, "profile: %llu ops are not in the file, which holds %d at most",
                     (unsigned long long)p->left_out, KEPT);
    ts_string_free(&s);
}

/* ---- beginning and end ----------------------------------------------------------------------- */

static ts_status end_trace(ts_run *r, ts_error *err)
{
    const ts_profile *p = r->profile;
    if (p->n_step == 0)
        return TS_ERROR(err, p->no_memory ? TS_RESOURCE_EXHAUSTED : TS_CANCELLED,
                        p->no_memory ? "memory is out for the events of a step"
                                     : "no step was recorded");
    char *folder = ts_path_join(r->config->run_folder, "profile");
    char *path = folder ? ts_path_join(folder, "trace.json") : NULL;
    ts_status status = path ? write_trace(r, folder, path, err)
                            : TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out");
    if (status == TS_OK) say_trace(r, path);
    ts_free(folder);
    ts_free(path);
    return status;
}

/* <run folder>/profile/plugins/profile/DATE/host.xplane.pb: TensorBoard's folders. */
static ts_status end_device(ts_run *r, ts_error *err)
{
    char date[40] = "profile", folder[4200], path[4300];
    time_t now = time(NULL);
    struct tm parts;
    if (localtime_r(&now, &parts)) strftime(date, sizeof date, "%Y_%m_%d_%H_%M_%S", &parts);
    int n = snprintf(folder, sizeof folder, "%s/profile/plugins/profile/%s", r->config->run_folder,
                     date);
    snprintf(path, sizeof path, "%s/host.xplane.pb", folder);
    ts_status status = n < (int)sizeof folder
                           ? ts_make_folders(folder, err)
                           : TS_ERROR(err, TS_INVALID_ARGUMENT, "the run's path is too long");
    ts_status ended = r->engine->vtable->trace_end(r->engine, status == TS_OK ? path : NULL,
                                                   status == TS_OK ? err : NULL);
    if (status == TS_OK && ended == TS_OK)
        ts__run_line(r, "profile of steps %lld to %lld: %s, for TensorBoard",
                     (long long)r->profile->first, (long long)r->step - 1, path);
    return status == TS_OK ? ended : status;
}

static void warn(ts_run *r, const char *why)
{
    ts_log(TS_LOG_WARNING, "no profile: %s", why);
    r->profile->over = true;
    r->profile->active = false;
}

static void begin(ts_run *r)
{
    ts_error err = {0};
    ts_profile *p = r->profile;
    p->active = true;
    if (!p->trace && r->engine->vtable->trace_begin(r->engine, &err) != TS_OK) warn(r, err.msg);
}

static void end(ts_run *r)
{
    ts_error err = {0};
    ts_profile *p = r->profile;
    ts_status status = p->trace ? end_trace(r, &err) : end_device(r, &err);
    p->active = false;
    p->over = true;
    if (status != TS_OK) warn(r, err.msg);
}

void ts__profile_between(ts_run *r, bool last)
{
    ts_profile *p = r->profile;
    if (!p || p->over) return;
    if (!p->placed) {
        p->placed = true;
        p->first = r->step + r->config->skip_first_n_steps_for_profiler;
        if (ts_add_i64(p->first, r->config->profiler_steps, &p->last)) p->last = INT64_MAX;
    }
    if (p->active && (last || r->step >= p->last))
        end(r);
    else if (last && !p->active)
        ts_log(TS_LOG_WARNING, "no profile: the run ended before step %lld", (long long)p->first);
    else if (!p->active && r->step >= p->first)
        begin(r);
}

void ts__profile_close(ts_run *r)
{
    ts_profile *p = r->profile;
    ts_error unsaid = {0};
    if (!p) return;
    if (p->active && !p->trace) (void)r->engine->vtable->trace_end(r->engine, NULL, &unsaid);
    ts_free(p->step);
    ts_free(p->event);
    ts_free(p);
    r->profile = NULL;
}
