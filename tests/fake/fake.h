/* fake/fake.h – a PJRT plugin for tests: runs the graph that a program carries on the CPU engine, and fails on demand.
 *
 * The program is a shared library with the PJRT C API of src/xla/pjrt_abi.h that links Tessera into itself. It takes
 * programs whose trailing comments carry the graph's text (TS_STABLEHLO_GRAPH_MARK); it cannot read StableHLO. It is
 * strict where real plugins are: sizes of argument structs, types, devices, deleted buffers; device work runs
 * behind the caller's back, on a thread of its own, in the order it was asked for.
 *
 * Read from the environment at each call (F is a function, "PJRT_Client_Compile" or "GetPjrtApi"; F@3 its third
 * call since the reset; several are separated by ';'):
 *   FAKE_PJRT_FAIL=F=13:text    F returns this code and message. Of a ..._Destroy: after it has destroyed
 *   FAKE_PJRT_ABORT=F, _EXIT=F, _HANG=F   F says so on standard error, then aborts, calls exit(3), or never returns
 *   FAKE_PJRT_EVENT_FAIL=3      the third execute fails while it runs: its event and its results carry an error.
 *                               "upload@2", "download@1": the same for a transfer
 *   FAKE_PJRT_MISSING=F         the table has NULL there
 *   FAKE_PJRT_API=1.90          the version it says; "none": GetPjrtApi returns NULL
 *   FAKE_PJRT_SIZE=200          the table's struct_size
 *   FAKE_PJRT_STABLEHLO=0.9.0   the version it says; "none": it does not say
 *   FAKE_PJRT_NO_GRAPH=1        does not ask for the graph's text (and so can compile nothing)
 *   FAKE_PJRT_NO_PROFILER=1     no profiler extension
 *   FAKE_PJRT_DEVICES=8         devices of a client; else its option cpu_device_count; else 1
 *   FAKE_PJRT_ORDER=reversed    addressable devices from the last to the first; ids 100000, 100001, …, of
 *                               topologies as well
 *   FAKE_PJRT_ODD=what          of a compiled program: "assignment": reported reversed, "garbage": as none;
 *                               "outputs": one more; "few", "twice", "strange": its addressable devices
 *   FAKE_PJRT_TOPOLOGY=3        a topology has 3 devices, whatever its name says
 *   FAKE_PJRT_PLATFORM=name     the platform's name ("fake"); FAKE_PJRT_VERSION=text, its version;
 *                               FAKE_PJRT_KIND=text, its devices' kind ("Fake device"); "nowhere": without coordinates
 *   FAKE_PJRT_DUMP=file         takes xla_dump_to, which else is an unknown option, and writes this file's text there
 *                               as the optimized program
 *   FAKE_PJRT_LIE=3             the device with this id tells the last number of every f32 buffer wrong
 *   FAKE_PJRT_LAG=3             of each execute, the device with this id ends 40 ms after the others
 *   FAKE_PJRT_SLOW_MS=50        each execute takes at least this long
 *   FAKE_PJRT_THREADS=1         of the CPU engine
 *   FAKE_PJRT_LOG=file          a line for each call, in order, and for the end of each piece of device work
 * Not here: several processes.
 */
#ifndef FAKE_H
#define FAKE_H

#include <pthread.h>

#include "exec/engine.h"
#include "fake/fake_pjrt.h"

/* Prototypes of the implementations, behind the table's wrappers. */
#define FUNCTION(name) PJRT_Error *fake_##name(PJRT_##name##_Args *a);
#include "fake/fake_functions.def"
#undef FUNCTION

enum { FAKE_MESSAGE = 600, FAKE_MAX_DEVICES = 512 };

struct PJRT_Error {
    int code;
    char message[];
};
typedef struct fake_problem { /* code 0: none */
    int code;
    char message[FAKE_MESSAGE];
} fake_problem;

/* One lock for all that the caller's threads and the device thread share. */
extern pthread_mutex_t fake_lock;
extern pthread_cond_t fake_changed;

/* ---- fault.c ------------------------------------------------------------------------------------ */

PJRT_Error *fake_error(int code, const char *fmt, ...) TS_PRINTF(2, 3);
PJRT_Error *fake_problem_error(const fake_problem *p); /* NULL where there is none */
PJRT_Error *fake_status_error(const ts_error *err);
/* What the environment says about this call of F: aborts, exits, hangs, or returns the error; counts and logs. */
PJRT_Error *fake_enter(const char *function);
/* Whether NAME's list ("F;F@3") has this function, whatever its count. */
bool fake_listed(const char *variable, const char *function);
/* Event faults: the count-th "execute", "upload" or "download" shall fail. */
bool fake_event_fails(const char *kind, uint64_t count, fake_problem *p);
void fake_log(const char *fmt, ...) TS_PRINTF(1, 2);
int64_t fake_number(const char *variable, int64_t otherwise);
/* Objects given to the caller; kind: "buffer", "event", … */
void fake_born(const char *kind);
void fake_died(const char *kind);
typedef enum fake_counter { FAKE_EXECUTES, FAKE_UPLOADS, FAKE_DOWNLOADS, FAKE_DONATED, FAKE_COUNTERS } fake_counter;
uint64_t fake_count(fake_counter c); /* counts one, returns the sum */
void fake_flight(int change);
extern fake_extension fake_test_extension;

/* ---- event.c ------------------------------------------------------------------------------------ */

PJRT_Event *fake_event_new(void); /* two references: the caller's handle and the producer's */
void fake_event_set(PJRT_Event *e, const fake_problem *p); /* the producer's last act on it */

/* ---- device.c: devices, descriptions, topologies, clients --------------------------------------- */

struct PJRT_DeviceDescription {
    int id, process, host;
    int64_t coords[3];
    char kind[32], text[80];
    PJRT_NamedValue attribute[2];
};
struct PJRT_Device {
    PJRT_DeviceDescription description;
    PJRT_Client *client;
    int local;
};
struct PJRT_Client {
    ts_engine *engine; /* one CPU engine for all devices: they run one after the other, where no mesh joins them */
    PJRT_Device *device;
    PJRT_Device **all, **addressable;
    int n;
    int64_t live; /* buffers and executables */
    size_t bytes, peak;
    struct PJRT_TopologyDescription *topology;
    struct fake_task *first, *last; /* the device's queue */
    pthread_t thread;
    bool running, stop;
};
struct PJRT_TopologyDescription {
    char name[80];
    PJRT_DeviceDescription *description;
    PJRT_DeviceDescription **list; /* host by host */
    int n;
    bool of_client;
    PJRT_NamedValue attribute[1];
};
PJRT_Device *fake_device_by_id(PJRT_Client *c, int id);
PJRT_Error *fake_engine_open(int devices, ts_engine **out);
/* A grid's descriptions; x · y · z = n, hosts of 2 × 2. */
PJRT_Error *fake_topology_make(const char *name, const int64_t grid[3], PJRT_TopologyDescription **out);

/* ---- buffer.c ----------------------------------------------------------------------------------- */

typedef struct fake_storage { /* memory on a device; a donated input's goes over to the output */
    int references;           /* under fake_lock */
    PJRT_Client *client;
    ts_buffer *data;
    size_t bytes;
    fake_problem problem;     /* written by the device thread */
} fake_storage;
struct PJRT_Buffer {
    PJRT_Device *device;
    fake_storage *storage; /* NULL: deleted or donated */
    ts_type type;
    int64_t dims[TS_MAX_RANK];
};
PJRT_Error *fake_buffer_new(PJRT_Device *d, const ts_type *type, PJRT_Buffer **out);
PJRT_Buffer *fake_buffer_with(PJRT_Device *d, const ts_type *type, fake_storage *s); /* takes the reference */
void fake_storage_take(fake_storage *s);
void fake_storage_drop(fake_storage *s);
bool fake_dtype_from(PJRT_Buffer_Type t, ts_dtype *out);

/* ---- queue.c: work of the device ---------------------------------------------------------------- */

typedef struct fake_task {
    struct fake_task *next;
    const char *name;
    void (*run)(struct fake_task *t, fake_problem *p);
    void (*finish)(struct fake_task *t, const fake_problem *p); /* may be NULL: frees what the task owns */
    fake_storage *storage; /* of a transfer */
    const void *from;
    void *to;
    struct fake_run *execute;
    PJRT_Event **event; /* owns; [n_event], each set when the task ends */
    int n_event;
    uint64_t number;
    bool now; /* on the caller's thread */
    fake_problem injected;
    int slow_ms;
    int lags;  /* 1 + which of the events comes later than the others; 0: none */
    bool lies; /* a download of a device that shall tell a number wrong */
} fake_task;
PJRT_Error *fake_task_new(const char *name, int n_event, fake_task **out);
void fake_queue_add(PJRT_Client *c, fake_task *t);
void fake_queue_stop(PJRT_Client *c); /* waits for all work */

/* ---- program.c, execute.c ------------------------------------------------------------------------ */

typedef struct fake_program {
    int references;
    ts_graph *graph;
    char *text; /* the graph's */
    size_t n_text;
    ts_engine *engine;
    bool owns_engine; /* compiled for a topology, so without a client; or for a mesh, with a device for each replica */
    ts_executable *executable;
    int replicas, device_id[FAKE_MAX_DEVICES];
    ts_exec_stats stats;
} fake_program;
struct PJRT_Executable {
    fake_program *program;
    PJRT_NamedValue property[2];
};
struct PJRT_LoadedExecutable {
    fake_program *program;
    PJRT_Client *client;
    PJRT_Device **device; /* addressable, [replicas]; the order of argument lists */
};
struct PJRT_SerializedExecutable {
    char *bytes;
};
struct PJRT_DeviceAssignmentSerialized {
    char *bytes;
};
void fake_program_drop(fake_program *p);

/* options.c */
PJRT_Error *fake_options_read(const char *bytes, size_t n, fake_program *p, char dump_to[4096]);
PJRT_Error *fake_dump(const char *folder);
size_t fake_assignment_write(const int *id, int n, char *out); /* out: 16 + 6n bytes */

#endif
