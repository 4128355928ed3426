/* cpu/program.h – a compiled program of the CPU engine: steps with addresses, loops, memory sizes.
 *
 * An address is a base (the arena, the constants, an input's or an output's buffer), an offset, and a
 * stride for each enclosing loop; it is resolved just before the call. Each device has bases of its
 * own; the steps are shared, so devices run in lockstep, segment by segment: a segment is a run of
 * steps without a collective and without a loop's beginning or end.
 */
#ifndef TS_CPU_PROGRAM_H
#define TS_CPU_PROGRAM_H

#include "cpu/code.h"
#include "cpu/collective.h"
#include "exec/engine.h"

enum { TS_BASE_ARENA, TS_BASE_CONSTANTS, TS_BASE_INPUTS }; /* then inputs, then outputs */

typedef struct ts_cpu_address {
    int base;
    int64_t offset, stride[TS_CPU_MAX_LOOPS];
} ts_cpu_address;

typedef struct ts_cpu_step {
    ts_code_kind kind;
    const ts_node *node;
    const ts_cpu_kernel *kernel;
    void *state;            /* owns; kernel->release frees it */
    const ts_cpu_collective *collective; /* COLLECTIVE; INDEX: its axis */
    int n_in, n_out, depth; /* depth: number of enclosing loops */
    ts_cpu_address *at;     /* in, out, scratch */
    size_t bytes;           /* moved: COPY, STACK, ADD */
    ts_dtype dtype;         /* ADD */
    int loop;               /* BEGIN, END */
    int segment_end;        /* first step behind this one that is no plain step */
} ts_cpu_step;

typedef struct ts_cpu_loop {
    int64_t n;
    bool reverse;
    int depth, begin;
} ts_cpu_loop;

/* Zeroed memory: huge pages where it is large. */
typedef struct ts_cpu_memory {
    void *data;
    size_t bytes, mapped;
} ts_cpu_memory;
ts_status ts__cpu_memory_new(size_t bytes, const char *what, ts_cpu_memory *out, ts_error *err);
void ts__cpu_memory_free(ts_cpu_memory *m);
size_t ts__cpu_memory_bytes(size_t bytes); /* that so many take: large ones whole huge pages */

typedef struct ts_cpu_program {
    const ts_graph *graph;
    ts_arena *storage; /* steps, loops, addresses */
    ts_cpu_step *step;
    ts_cpu_loop *loop;
    int n_step, n_loop, max_args, threads;
    ts_cpu_memory constants;
    size_t arena_bytes;
    double flops, bytes, calls; /* of one execute, loops multiplied out */
} ts_cpu_program;

/* share = false: no value shares memory with another (for tests). */
ts_status ts__cpu_program_new(const ts_graph *g, ts_isa isa, int threads, bool share,
                              ts_cpu_program **out, ts_error *err);
void ts__cpu_program_free(ts_cpu_program *p);
/* What that program would ask for, without memory for it: bytes of a device's arena, and of the constants of all. */
ts_status ts__cpu_program_sizes(const ts_graph *g, ts_isa isa, int threads, size_t *arena_bytes,
                                size_t *constant_bytes, ts_error *err);

/* One device's memory during a run. */
typedef struct ts_cpu_device {
    void **base;    /* [TS_BASE_INPUTS + inputs + outputs] */
    void **pointer; /* [program->max_args], scratch of one call */
    ts_cpu_memory arena;
} ts_cpu_device;

typedef struct ts_cpu_timeline {
    ts_profile_event *event;
    size_t n, max;
    uint64_t unrecorded; /* beyond max */
    double origin;
} ts_cpu_timeline;
/* place: scratch, [2 · n_devices]. timeline may be NULL. Allocates nothing. */
void ts__cpu_run(const ts_cpu_program *p, ts_cpu_device *device, int n_devices, void **place,
                 ts_cpu_timeline *timeline);

/* The CPU engine's own entry: as ts_compile, with sharing as a choice. */
ts_status ts_cpu_compile(ts_engine *e, const ts_graph *g, bool share, ts_executable **out,
                         ts_error *err);
/* The memory of one device that compiling g would lead to; nothing of it is allocated. The graph's mesh may have any
 * number of devices. */
ts_status ts_cpu_plan(ts_engine *e, const ts_graph *g, ts_memory_stats *out, ts_error *err);
/* The plan for people and tests: steps, addresses, bytes. */
void ts_cpu_plan_text(const ts_executable *x, ts_string *out);
void ts__cpu_program_text(const ts_cpu_program *p, ts_string *out);

#endif
