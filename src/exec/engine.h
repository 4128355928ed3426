/* exec/engine.h – what an engine is: compile a graph, hold buffers, execute, tell what it did.
 *
 * One process, one engine at a time, any number of local devices. A buffer belongs to one device; where the engine
 * shares inputs it may be given to other devices as well, as an input that nothing overwrites. An
 * executable runs the graph's program on every device in lockstep; arguments are listed device by
 * device. Execution may be asynchronous: executes end in the order they were made, and wait reports the error of
 * the oldest one. A donated input (an output `replaces` it) is consumed: the output's buffer takes its place.
 */
#ifndef TS_ENGINE_H
#define TS_ENGINE_H

#include "mesh/mesh.h"

typedef struct ts_engine ts_engine;
typedef struct ts_executable ts_executable;
typedef struct ts_buffer ts_buffer;

typedef struct ts_engine_options {
    size_t struct_size;
    const char *name; /* "cpu", "xla" */
    int devices;      /* local devices; the cpu engine's are virtual, 1 … 4096; 0: 1 */
    int threads;      /* cpu: 0 = all allowed cores */
    const char *isa;  /* cpu: "ref", "avx2", …; NULL = TESSERA_ISA, else the best */
    const char *plugin;    /* xla: "cpu", "tpu", "cuda" or a path; NULL: "cpu" */
    const char *precision; /* xla: matmul_precision, of f32 products; NULL: "default" */
    const char *dump_to;   /* xla: folder for the programs it compiles; NULL or "": none */
    const char *const *xla_flag; /* xla: "name=value", passed with every compilation */
    int n_xla_flag;
} ts_engine_options;

/* How the inputs, outputs and pinned values of a *global* graph lie on a mesh, for an engine that
 * partitions by itself. */
typedef struct ts_sharding {
    const ts_mesh *mesh;
    const ts_spec *in, *out; /* [inputs], [outputs]; never partial */
    /* The spec of a value that has a pin; the value may be a copy's: its pin and type say all. NULL: none. */
    ts_spec (*pin)(const void *context, const ts_value *v);
    const void *context; /* given to pin */
} ts_sharding;

typedef struct ts_memory_stats { /* of one device, bytes */
    size_t arguments, outputs, aliased, temporary, constants, peak;
} ts_memory_stats;

typedef struct ts_exec_stats {
    uint64_t executes;     /* finished: of xla, calls of the plugin that came back without an error */
    double last_seconds;   /* of the execute waited for last */
    double last_done;      /* ts_clock_seconds() at its end */
    double flops, bytes; /* of one device and execute, loops multiplied out */
    ts_memory_stats memory;
    uint64_t unrecorded; /* events of the last profiled execute beyond what is kept of one */
} ts_exec_stats;

/* One timed instruction of a profiled execute. */
typedef struct ts_profile_event {
    const ts_node *node;
    double start_seconds, seconds;
    int64_t iteration;
} ts_profile_event;

typedef struct ts_engine_vtable {
    const char *name;
    bool asynchronous; /* execute returns before the program has run */
    /* One buffer may be an input of several devices, whichever it was made for, where no output replaces it. */
    bool shares_inputs;
    ts_status (*open)(const ts_engine_options *o, ts_engine **out, ts_error *err);
    void (*close)(ts_engine *e);
    /* One line for people: "cpu: 2 threads, avx512_bf16 (…)". Until close. */
    const char *(*describe)(const ts_engine *e);
    int (*devices)(const ts_engine *e);
    /* The torus that the devices form, in the order of their numbers: dimensions, major first, and how many; 0: none.
     * NULL: none. */
    int (*torus)(const ts_engine *e, int64_t size[TS_MAX_RANK]);
    /* The graph is borrowed until the executable is freed. FAILED_PRECONDITION when its mesh has another number of
     * devices than the engine; a graph without a mesh runs on each of them. */
    ts_status (*compile)(ts_engine *e, const ts_graph *g, ts_executable **out, ts_error *err);
    /* The same program from a file of ts_aot_compile, if it was made for just this program, these devices and this
     * plugin: FAILED_PRECONDITION names what differs. NULL: the engine has no such files. */
    ts_status (*load)(ts_engine *e, const ts_graph *g, const char *path, ts_executable **out,
                      ts_error *err);
    /* The same two for a global graph that the engine partitions over its devices: buffers are of one device's part of
     * each type, device d is the mesh's device d. NULL: the engine has no partitioner. sharding: of the call only. */
    ts_status (*compile_sharded)(ts_engine *e, const ts_graph *g, const ts_sharding *sharding,
                                 ts_executable **out, ts_error *err);
    ts_status (*load_sharded)(ts_engine *e, const ts_graph *g, const ts_sharding *sharding,
                              const char *path, ts_executable **out, ts_error *err);
    void (*executable_free)(ts_executable *x);
    ts_status (*buffer_new)(ts_engine *e, int device, const ts_type *type, ts_buffer **out,
                            ts_error *err); /* zeroed */
    void (*buffer_free)(ts_buffer *b);
    ts_status (*upload)(ts_buffer *b, const void *data, size_t offset, size_t bytes, ts_error *err);
    ts_status (*download)(ts_buffer *b, void *data, size_t offset, size_t bytes, ts_error *err);
    /* in [devices × inputs], out [devices × outputs]: buffers of the caller; for an output that replaces
     * an input, out[i] is that input's buffer (checked). */
    ts_status (*execute)(ts_executable *x, ts_buffer *const *in, ts_buffer *const *out,
                         ts_error *err);
    /* Waits for the oldest execute that nobody has waited for; TS_OK at once when there is none. */
    ts_status (*wait)(ts_executable *x, ts_error *err);
    void (*stats)(const ts_executable *x, ts_exec_stats *out);
    /* Events of the next execute are recorded; count, then fill. 0 where the engine has no timeline. */
    void (*profile_next)(ts_executable *x);
    size_t (*profile)(const ts_executable *x, ts_profile_event *out, size_t max);
    /* The device's own profile (XLA's xplane protobuf) of what runs in between, into path; path NULL drops it. Begin
     * is UNIMPLEMENTED where the device has no profiler. NULL: the engine has none. */
    ts_status (*trace_begin)(ts_engine *e, ts_error *err);
    ts_status (*trace_end)(ts_engine *e, const char *path, ts_error *err);
    /* The number that a device has beyond this process. NULL: its own. */
    int (*device_id)(const ts_engine *e, int device);
    /* Wait; done [devices] gets when each device had ended, in ts_clock_seconds(). Keeps a core busy while it waits.
     * NULL: devices have one clock. */
    ts_status (*wait_each)(ts_executable *x, double *done, ts_error *err);
} ts_engine_vtable;

struct ts_engine {
    const ts_engine_vtable *vtable;
};
struct ts_executable {
    const ts_engine_vtable *vtable;
    ts_engine *engine;
    const ts_graph *graph;
    const ts_type *local; /* [inputs + outputs] types of one device's buffers; NULL: the graph's */
};
struct ts_buffer {
    const ts_engine_vtable *vtable;
    ts_engine *engine;
    ts_type type;
    int device;
    uint64_t mark; /* scratch of ts__check_buffers */
};

/* For engines: INVALID_ARGUMENT where the buffers [devices × inputs], [devices × outputs] are not what execute asks
 * for. */
ts_status ts__check_buffers(const ts_executable *x, int devices, ts_buffer *const *in,
                            ts_buffer *const *out, ts_error *err);
/* FAILED_PRECONDITION when the graph is made for a mesh of another number of devices. */
ts_status ts__check_mesh(const ts_graph *g, int devices, ts_error *err);

/* By name; UNAVAILABLE with the known names. */
ts_status ts_engine_open(const ts_engine_options *o, ts_engine **out, ts_error *err);
const char *const *ts_engine_names(void); /* NULL-terminated */

static inline void ts_engine_close(ts_engine *e)
{
    if (e) e->vtable->close(e);
}
static inline ts_status ts_compile(ts_engine *e, const ts_graph *g, ts_executable **out,
                                   ts_error *err)
{
    return e->vtable->compile(e, g, out, err);
}
static inline void ts_executable_free(ts_executable *x)
{
    if (x) x->vtable->executable_free(x);
}
static inline ts_status ts_buffer_new(ts_engine *e, int device, const ts_type *t, ts_buffer **out,
                                      ts_error *err)
{
    return e->vtable->buffer_new(e, device, t, out, err);
}
static inline void ts_buffer_free(ts_buffer *b)
{
    if (b) b->vtable->buffer_free(b);
}
static inline ts_status ts_upload(ts_buffer *b, const void *p, size_t at, size_t n, ts_error *err)
{
    return b->vtable->upload(b, p, at, n, err);
}
static inline ts_status ts_download(ts_buffer *b, void *p, size_t at, size_t n, ts_error *err)
{
    return b->vtable->download(b, p, at, n, err);
}
static inline ts_status ts_execute(ts_executable *x, ts_buffer *const *in, ts_buffer *const *out,
                                   ts_error *err)
{
    return x->vtable->execute(x, in, out, err);
}
static inline ts_status ts_wait(ts_executable *x, ts_error *err)
{
    return x->vtable->wait(x, err);
}

extern const ts_engine_vtable ts_cpu_engine, ts_xla_engine;

#endif
