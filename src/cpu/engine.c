/* cpu/engine.c – the CPU engine behind the vtable of exec/engine.h: devices, buffers, executables.
 *
 * Synchronous: execute returns when the program has run, wait repeats its status. Executables of one
 * engine share nothing but the thread count. Devices are virtual: each has memory, bases and argument lists of its own,
 * and run.c takes them through the program in lockstep, so there may be far more of them than cores. A
 * device's memory is zero pages until something is written there.
 *
 * An executable is not to be executed from two threads at once: its arena and pointers are its own.
 */
#include "cpu/program.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct cpu_engine {
    ts_engine base;
    ts_isa isa;
    int threads, n_devices;
    char text[120];
} cpu_engine;

typedef struct cpu_buffer {
    ts_buffer base;
    ts_cpu_memory memory;
} cpu_buffer;

typedef struct cpu_executable {
    ts_executable base;
    ts_cpu_program *program;
    ts_cpu_device *device; /* [n_devices] */
    void **place; /* [2 · n_devices], for run.c */
    int n_devices;
    ts_status status; /* of the last execute */
    ts_exec_stats stats;
    ts_cpu_timeline timeline;
    bool profile_next;
} cpu_executable;

enum { MAX_THREADS = 1024, MAX_DEVICES = 4096, MAX_EVENTS = 1 << 20 };

/* ---- engine ---------------------------------------------------------------------------------- */

/* Cores that the process may use: taskset and containers count. */
static int allowed_cores(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    int n = CPU_COUNT(&set);
    return n < 1 ? 1 : n;
}

static ts_status cpu_open(const ts_engine_options *o, ts_engine **out, ts_error *err)
{
    ts_isa isa;
    *out = NULL;
    if (o->devices < 0 || o->devices > MAX_DEVICES || o->threads < 0 || o->threads > MAX_THREADS)
        return TS_ERROR(
            err, TS_INVALID_ARGUMENT,
            "cpu engine: devices=%d threads=%d; devices must be 1 … %d and threads 1 … %d (0: all cores)",
            o->devices, o->threads, MAX_DEVICES, MAX_THREADS);
    TS_TRY(ts_isa_choose(o->isa, &isa, err));
    cpu_engine *e = ts_alloc_zero(sizeof *e);
    if (!e)
        return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "out of memory while opening the cpu engine");
    e->base.vtable = &ts_cpu_engine;
    e->isa = isa;
    e->n_devices = o->devices ? o->devices : 1;
    e->threads = o->threads ? o->threads : allowed_cores();
    char virtual[40] = "";
    if (e->n_devices > 1) snprintf(virtual, sizeof virtual, "%d virtual devices, ", e->n_devices);
    snprintf(e->text, sizeof e->text, "cpu: %s%d thread%s, %s", virtual, e->threads,
             e->threads == 1 ? "" : "s", ts_isa_name(isa));
    *out = &e->base;
    return TS_OK;
}

static void cpu_close(ts_engine *e)
{
    ts_free(e);
}

static const char *cpu_describe(const ts_engine *e)
{
    return ((const cpu_engine *)e)->text;
}

static int cpu_devices(const ts_engine *e)
{
    return ((const cpu_engine *)e)->n_devices;
}

/* ---- buffers --------------------------------------------------------------------------------- */

static ts_status cpu_buffer_new(ts_engine *engine, int device, const ts_type *type, ts_buffer **out,
                                ts_error *err)
{
    cpu_engine *e = (cpu_engine *)engine;
    char text[400];
    *out = NULL;
    if (device < 0 || device >= e->n_devices)
        return TS_ERROR(err, TS_OUT_OF_RANGE, "a buffer on device %d: the cpu engine has %d",
                        device, e->n_devices);
    cpu_buffer *b = ts_alloc_zero(sizeof *b);
    if (!b) return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "out of memory for a buffer");
    ts_status status = ts__cpu_memory_new(ts_type_bytes(type),
                                          ts_type_text(type, text, sizeof text), &b->memory, err);
    if (status != TS_OK) {
        ts_free(b);
        return status;
    }
    b->base = (ts_buffer){
        .vtable = &ts_cpu_engine, .engine = engine, .type = *type, .device = device};
    *out = &b->base;
    return TS_OK;
}

static void cpu_buffer_free(ts_buffer *buffer)
{
    cpu_buffer *b = (cpu_buffer *)buffer;
    ts__cpu_memory_free(&b->memory);
    ts_free(b);
}

static ts_status check_range(const cpu_buffer *b, const char *what, size_t offset, size_t bytes,
                             ts_error *err)
{
    if (offset <= b->memory.bytes && bytes <= b->memory.bytes - offset) return TS_OK;
    return TS_ERROR(err, TS_OUT_OF_RANGE, "%s of %zu bytes at %zu: the buffer has %zu bytes", what,
                    bytes, offset, b->memory.bytes);
}

static ts_status cpu_upload(ts_buffer *buffer, const void *data, size_t offset, size_t bytes,
                            ts_error *err)
{
    cpu_buffer *b = (cpu_buffer *)buffer;
    TS_TRY(check_range(b, "upload", offset, bytes, err));
    if (bytes) memcpy((char *)b->memory.data + offset, data, bytes);
    return TS_OK;
}

static ts_status cpu_download(ts_buffer *buffer, void *data, size_t offset, size_t bytes,
                              ts_error *err)
{
    cpu_buffer *b = (cpu_buffer *)buffer;
    TS_TRY(check_range(b, "download", offset, bytes, err));
    if (bytes) memcpy(data, (char *)b->memory.data + offset, bytes);
    return TS_OK;
}

/* ---- executables ----------------------------------------------------------------------------- */

static void cpu_executable_free(ts_executable *executable)
{
    cpu_executable *x = (cpu_executable *)executable;
    for (int d = 0; x->device && d < x->n_devices; d++) {
        ts__cpu_memory_free(&x->device[d].arena);
        ts_free(x->device[d].base);
        ts_free(x->device[d].pointer);
    }
    ts_free(x->device);
    ts_free(x->place);
    ts_free(x->timeline.event);
    ts__cpu_program_free(x->program);
    ts_free(x);
}

static ts_status make_devices(cpu_executable *x, int n, ts_error *err)
{
    const ts_cpu_program *p = x->program;
    size_t n_base =
        (size_t)TS_BASE_INPUTS + (size_t)p->graph->top->n_arg + (size_t)p->graph->top->n_result;
    x->device = ts_alloc_zero((size_t)n * sizeof *x->device);
    x->place = ts_alloc_zero(2 * (size_t)n * sizeof *x->place);
    if (!x->device || !x->place)
        return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "out of memory for an executable");
    x->n_devices = n;
    for (int d = 0; d < n; d++) {
        ts_cpu_device *v = &x->device[d];
        TS_TRY(ts__cpu_memory_new(p->arena_bytes, "the temporary values of the program", &v->arena,
                                  err));
        v->base = ts_alloc_zero(n_base * sizeof *v->base);
        v->pointer = ts_alloc_zero(((size_t)p->max_args + 1) * sizeof *v->pointer);
        if (!v->base || !v->pointer)
            return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "out of memory for an executable");
        v->base[TS_BASE_ARENA] = v->arena.data;
        v->base[TS_BASE_CONSTANTS] = p->constants.data;
    }
    return TS_OK;
}

static void count_memory(const ts_graph *g, size_t arena, size_t constants, ts_memory_stats *m)
{
    for (int k = 0; k < g->top->n_arg; k++) m->arguments += ts_type_bytes(&g->top->arg[k]->type);
    for (int k = 0; k < g->top->n_result; k++) {
        size_t bytes = ts_type_bytes(&g->top->result[k]->type);
        m->outputs += bytes;
        if (g->output[k].replaces >= 0) m->aliased += bytes;
    }
    m->temporary = arena;
    m->constants = constants;
    m->peak = m->arguments + m->outputs - m->aliased + m->temporary + m->constants;
}

ts_status ts_cpu_plan(ts_engine *engine, const ts_graph *g, ts_memory_stats *out, ts_error *err)
{
    const cpu_engine *e = (cpu_engine *)engine;
    size_t arena, constants;
    *out = (ts_memory_stats){0};
    TS_TRY(ts__cpu_program_sizes(g, e->isa, e->threads, &arena, &constants, err));
    count_memory(g, arena, constants, out);
    return TS_OK;
}

ts_status ts_cpu_compile(ts_engine *engine, const ts_graph *g, bool share, ts_executable **out,
                         ts_error *err)
{
    cpu_engine *e = (cpu_engine *)engine;
    *out = NULL;
    TS_TRY(ts_graph_verify(g, err));
    TS_TRY(ts__check_mesh(g, e->n_devices, err));
    cpu_executable *x = ts_alloc_zero(sizeof *x);
    if (!x) return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "out of memory for an executable");
    x->base = (ts_executable){.vtable = &ts_cpu_engine, .engine = engine, .graph = g};
    ts_status status = ts__cpu_program_new(g, e->isa, e->threads, share, &x->program, err);
    if (status == TS_OK) status = make_devices(x, e->n_devices, err);
    if (status != TS_OK) {
        cpu_executable_free(&x->base);
        return status;
    }
    x->stats.flops = x->program->flops;
    x->stats.bytes = x->program->bytes;
    count_memory(g, x->program->arena_bytes, x->program->constants.bytes, &x->stats.memory);
    *out = &x->base;
    return TS_OK;
}

static ts_status cpu_compile(ts_engine *e, const ts_graph *g, ts_executable **out, ts_error *err)
{
    return ts_cpu_compile(e, g, true, out, err);
}

/* ---- execute --------------------------------------------------------------------------------- */

/* Binds every device's buffers. */
static void bind(cpu_executable *x, ts_buffer *const *in, ts_buffer *const *out)
{
    int n_in = x->base.graph->top->n_arg, n_out = x->base.graph->top->n_result;
    for (int d = 0; d < x->n_devices; d++, in += n_in, out += n_out) {
        void **base = x->device[d].base + TS_BASE_INPUTS;
        for (int k = 0; k < n_in; k++) base[k] = ((cpu_buffer *)in[k])->memory.data;
        for (int k = 0; k < n_out; k++) base[n_in + k] = ((cpu_buffer *)out[k])->memory.data;
    }
}

static ts_status cpu_execute(ts_executable *executable, ts_buffer *const *in, ts_buffer *const *out,
                             ts_error *err)
{
    cpu_executable *x = (cpu_executable *)executable;
    ts_cpu_timeline *timeline = x->profile_next && x->timeline.event ? &x->timeline : NULL;
    x->status = ts__check_buffers(&x->base, x->n_devices, in, out, err);
    if (x->status != TS_OK) return x->status;
    bind(x, in, out);
    double start = ts_clock_seconds();
    x->timeline.n = 0;
    x->timeline.unrecorded = 0;
    x->timeline.origin = start;
    ts__cpu_run(x->program, x->device, x->n_devices, x->place, timeline);
    x->stats.last_done = ts_clock_seconds();
    x->stats.last_seconds = x->stats.last_done - start;
    x->stats.unrecorded = x->timeline.unrecorded;
    x->stats.executes++;
    x->profile_next = false;
    return TS_OK;
}

static ts_status cpu_wait(ts_executable *executable, ts_error *err)
{
    cpu_executable *x = (cpu_executable *)executable;
    if (x->status == TS_OK) return TS_OK;
    return TS_ERROR(err, x->status, "the last execute was refused: %s", ts_status_name(x->status));
}

/* ---- what it did ----------------------------------------------------------------------------- */

static void cpu_stats(const ts_executable *x, ts_exec_stats *out)
{
    *out = ((const cpu_executable *)x)->stats;
}

/* Room for every step of one execute; beyond MAX_EVENTS the rest is not recorded. */
static void cpu_profile_next(ts_executable *executable)
{
    cpu_executable *x = (cpu_executable *)executable;
    double n = x->program->calls * x->n_devices;
    if (!x->timeline.event) {
        x->timeline.max = n < MAX_EVENTS ? (size_t)n + 1 : MAX_EVENTS;
        x->timeline.event = ts_alloc(x->timeline.max * sizeof *x->timeline.event);
    }
    x->profile_next = true;
}

static size_t cpu_profile(const ts_executable *executable, ts_profile_event *out, size_t max)
{
    const cpu_executable *x = (const cpu_executable *)executable;
    size_t n = x->timeline.n < max ? x->timeline.n : max;
    if (out && n) memcpy(out, x->timeline.event, n * sizeof *out);
    return x->timeline.n;
}

void ts_cpu_plan_text(const ts_executable *x, ts_string *out)
{
    ts__cpu_program_text(((const cpu_executable *)x)->program, out);
}

const ts_engine_vtable ts_cpu_engine = {
    .name = "cpu",
    .shares_inputs = true,
    .open = cpu_open,
    .close = cpu_close,
    .describe = cpu_describe,
    .devices = cpu_devices,
    .compile = cpu_compile,
    .executable_free = cpu_executable_free,
    .buffer_new = cpu_buffer_new,
    .buffer_free = cpu_buffer_free,
    .upload = cpu_upload,
    .download = cpu_download,
    .execute = cpu_execute,
    .wait = cpu_wait,
    .stats = cpu_stats,
    .profile_next = cpu_profile_next,
    .profile = cpu_profile,
};
