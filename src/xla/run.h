/* xla/run.h – what the files of the xla engine share: the engine, its buffers, its executables.
 *
 * engine.c opens and describes, buffer.c moves bytes, executable.c compiles and loads, execute.c runs and waits,
 * profile.c records. Device d of the engine is the addressable device with the d-th smallest global id, and runs
 * replica or partition d of every program.
 */
#ifndef TS_XLA_RUN_H
#define TS_XLA_RUN_H

#include "exec/engine.h"
#include "xla/pjrt.h"
#include "xla/profiler_abi.h"
#include "xla/saved.h"
#include "xla/stablehlo.h"

typedef struct ts_xla {
    ts_engine base;
    ts_pjrt *pjrt;
    PJRT_Client *client;
    int n_devices;
    PJRT_Device **device; /* [n_devices], by global id */
    int *id;              /* [n_devices] their global ids, ascending */
    ts_precision precision;
    char *dump_to;        /* NULL: none */
    char **flag;          /* [n_flag] "name=value" */
    int n_flag;
    char platform[64], version[640], kind[64], text[400];
    PLUGIN_Profiler *profiler; /* NULL: not recording */
} ts_xla;

/* Where a buffer's bytes are. Host memory beside the device's is kept only while it is needed. */
typedef enum ts_xla_place {
    TS_XLA_ZERO,   /* nowhere yet: all zero */
    TS_XLA_HOST,   /* in host: being uploaded piece by piece */
    TS_XLA_DEVICE, /* in remote; host, when not NULL, is a copy that is being read piece by piece */
    TS_XLA_LOST,   /* given to an execute that failed */
} ts_xla_place;

typedef struct ts_xla_slot ts_xla_slot;

typedef struct ts_xla_buffer {
    ts_buffer base; /* its engine is a ts_xla */
    ts_xla_place place;
    size_t bytes;
    unsigned char *host; /* [bytes] or NULL */
    size_t written;      /* HOST: bytes uploaded since it came to be */
    bool holes; /* HOST, after LOST: only the first `written` bytes are any, so pieces must come in order */
    PJRT_Buffer *remote;
    ts_xla_slot *slot; /* the execute in flight that writes it; NULL: none */
    size_t slot_at;    /* slot->written[slot_at] is this buffer */
} ts_xla_buffer;

/* One execute that nobody has waited for. */
struct ts_xla_slot {
    uint64_t number; /* of the executable's executes, from 1 */
    double dispatched;
    PJRT_Event **event;      /* [n_devices]; entries may be NULL */
    ts_xla_buffer **written; /* [n_devices × outputs]; NULL where the buffer has moved on */
};

enum { TS_XLA_IN_FLIGHT = 2 };

typedef struct ts_xla_executable {
    ts_executable base;
    ts_xla *engine;
    PJRT_LoadedExecutable *loaded;
    int *order; /* [n_devices]: at place p of the plugin's lists runs replica order[p] */
    size_t n_in, n_out;
    ts_type *local; /* base.local; owned */
    PJRT_Buffer **argument, **result;            /* [n_devices × n_in], [n_devices × n_out] */
    PJRT_Buffer *const **argument_list, ***result_list; /* [n_devices] */
    ts_xla_slot slot[TS_XLA_IN_FLIGHT];
    int oldest, in_flight;
    uint64_t executes; /* given to the plugin */
    ts_exec_stats stats;
} ts_xla_executable;

/* ---- buffer.c ---- */

ts_status ts__xla_buffer_new(ts_engine *e, int device, const ts_type *type, ts_buffer **out,
                             ts_error *err);
void ts__xla_buffer_free(ts_buffer *b);
ts_status ts__xla_upload(ts_buffer *b, const void *data, size_t offset, size_t bytes, ts_error *err);
ts_status ts__xla_download(ts_buffer *b, void *data, size_t offset, size_t bytes, ts_error *err);
/* Sees to it that b->remote holds its bytes. */
ts_status ts__xla_buffer_flush(ts_xla_buffer *b, ts_error *err);
/* The buffer's bytes are those of remote from now on (which it owns); what it had is given up. */
void ts__xla_buffer_take(ts_xla_buffer *b, PJRT_Buffer *remote);
void ts__xla_buffer_lose(ts_xla_buffer *b);
void ts__xla_buffer_leave_slot(ts_xla_buffer *b);

/* ---- executable.c, execute.c, profile.c ---- */

ts_status ts__xla_compile(ts_engine *e, const ts_graph *g, ts_executable **out, ts_error *err);
ts_status ts__xla_load(ts_engine *e, const ts_graph *g, const char *path, ts_executable **out,
                       ts_error *err);
ts_status ts__xla_compile_sharded(ts_engine *e, const ts_graph *g, const ts_sharding *sharding,
                                  ts_executable **out, ts_error *err);
ts_status ts__xla_load_sharded(ts_engine *e, const ts_graph *g, const ts_sharding *sharding,
                               const char *path, ts_executable **out, ts_error *err);
/* The program's text as it stands, for a graph whose inputs and outputs it has: compile's second half. */
ts_status ts__xla_compile_text(ts_xla *e, const ts_graph *g, const char *text, size_t n,
                               ts_executable **out, ts_error *err);
/* Adds to a compiler's refusal of a program the line that it names and the part of the model that is (refusal.c). */
void ts__xla_explain_refusal(const char *text, size_t n, ts_error *err);
/* What a file of this program must have been made for. */
ts_status ts__xla_key(ts_xla *e, const ts_graph *g, const ts_sharding *sharding, ts_saved_key *key,
                      ts_error *err);
/* The client's slice as topology.h takes it, "v6e:4x4": from the kind and the coordinates of all its devices. */
ts_status ts__xla_slice_name(const ts_xla *e, char *name, size_t n, ts_error *err);
void ts__xla_executable_free(ts_executable *x);
/* The compiled program as bytes (ts_free), which ts__saved_write takes. */
ts_status ts__xla_serialize(ts_executable *x, void **bytes, size_t *n, ts_error *err);
ts_status ts__xla_execute(ts_executable *x, ts_buffer *const *in, ts_buffer *const *out,
                          ts_error *err);
ts_status ts__xla_wait(ts_executable *x, ts_error *err);
ts_status ts__xla_wait_each(ts_executable *x, double *done, ts_error *err);
ts_status ts__xla_trace_begin(ts_engine *e, ts_error *err);
ts_status ts__xla_trace_end(ts_engine *e, const char *path, ts_error *err);
void ts__xla_trace_drop(ts_xla *e);

#endif
