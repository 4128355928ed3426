/* xla/executable.c – a graph compiled for the plugin's devices, or loaded as it was compiled
 * before.
 *
 * Replica d of the program, or partition d, runs on device d of the engine: that is what the device
 * assignment asks for, and what is read back. A plugin may list an executable's devices in any
 * order; `order` maps its places to replicas.
 * Not here: running it (execute.c), the program's text (stablehlo.c), the file of a compiled
 * program (saved.c).
 */
#include <inttypes.h>
#include <stdio.h>

#include "base/file.h"
#include "base/log.h"
#include "xla/compile_options.h"
#include "xla/run.h"
#include "xla/saved.h"
#include "xla/topology.h"

static const size_t max_program = (size_t)1 << 30;

static PJRT_Executable *executable_of(const ts_xla_executable *x, ts_error *err)
{
    PJRT_ARGS(PJRT_LoadedExecutable_GetExecutable_Args, a);
    a.loaded_executable = x->loaded;
    ts_status status = ts__pjrt_check(x->engine->pjrt,
                                      x->engine->pjrt->api->PJRT_LoadedExecutable_GetExecutable(&a),
                                      "looking at the compiled program", err);
    return status == TS_OK ? a.executable : NULL;
}

static void release(const ts_xla_executable *x, PJRT_Executable *executable)
{
    PJRT_ARGS(PJRT_Executable_Destroy_Args, a);
    ts_error ignored = {0};
    a.executable = executable;
    ts_status status =
        ts__pjrt_check(x->engine->pjrt, x->engine->pjrt->api->PJRT_Executable_Destroy(&a),
                       "freeing the compiled program", &ignored);
    (void)status;
}

void ts__xla_executable_free(ts_executable *executable)
{
    ts_xla_executable *x = (ts_xla_executable *)executable;
    ts_error ignored = {0};
    while (x->in_flight) { /* nobody asks any more; their buffers must not point here */
        ts_status status = ts__xla_wait(executable, &ignored);
        (void)status;
    }
    if (x->loaded) {
        PJRT_ARGS(PJRT_LoadedExecutable_Destroy_Args, a);
        a.executable = x->loaded;
        ts_status status =
            ts__pjrt_check(x->engine->pjrt, x->engine->pjrt->api->PJRT_LoadedExecutable_Destroy(&a),
                           "freeing the program", &ignored);
        (void)status;
    }
    for (int i = 0; i < TS_XLA_IN_FLIGHT; i++) {
        ts_free(x->slot[i].event);
        ts_free(x->slot[i].written);
    }
    ts_free(x->order);
    ts_free(x->argument);
    ts_free(x->result);
    ts_free(x->argument_list);
    ts_free(x->result_list);
    ts_free(x->local);
    ts_free(x);
}

/* ---- what the plugin made of it -------------------------------------------------------------- */

static ts_status check_outputs(const ts_xla_executable *x, PJRT_Executable *executable,
                               ts_error *err)
{
    PJRT_ARGS(PJRT_Executable_NumOutputs_Args, a);
    a.executable = executable;
    TS_TRY(ts__pjrt_check(x->engine->pjrt, x->engine->pjrt->api->PJRT_Executable_NumOutputs(&a),
                          "counting the program's outputs", err));
    if (a.num_outputs == x->n_out) return TS_OK;
    return TS_ERROR(err, TS_FAILED_PRECONDITION,
                    "the compiled program has %zu outputs and the graph %s has %zu", a.num_outputs,
                    x->base.graph->name, x->n_out);
}

static void take_figures(ts_exec_stats *s, const ts_pjrt_figures *f)
{
    s->memory = (ts_memory_stats){.arguments = (size_t)f->argument_bytes,
                                  .outputs = (size_t)f->output_bytes,
                                  .aliased = (size_t)f->alias_bytes,
                                  .temporary = (size_t)f->temp_bytes,
                                  .constants = (size_t)f->code_bytes,
                                  .peak = (size_t)f->peak_bytes};
    s->flops = f->flops;
    s->bytes = f->bytes;
}

/* ---- device assignment ----------------------------------------------------------------------- */

/* A number of a protobuf; false at its end or when it is broken. */
static bool read_varint(const unsigned char **p, const unsigned char *end, uint64_t *v)
{
    *v = 0;
    for (int shift = 0; shift < 64 && *p < end; shift += 7) {
        unsigned char byte = *(*p)++;
        *v |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) return true;
    }
    return false;
}

/* Field 1 of a computation, packed or not, into id behind the count that are there; the new count,
 * −1: broken. */
static int read_ids(const unsigned char *p, const unsigned char *stop, int64_t *id, int count, int max)
{
    uint64_t key, n, v;
    while (p < stop) {
        if (!read_varint(&p, stop, &key) || key >> 3 != 1) return -1;
        const unsigned char *list_end = stop;
        if ((key & 7) == 2) {
            if (!read_varint(&p, stop, &n) || n > (uint64_t)(stop - p)) return -1;
            list_end = p + n;
        }
        do {
            if (p == list_end) break; /* an empty list */
            if (!read_varint(&p, list_end, &v) || count == max) return -1;
            id[count++] = (int64_t)v;
        } while ((key & 7) == 2 && p < list_end);
    }
    return count;
}

/* DeviceAssignmentProto: the devices of its computations (field 3), one after the other, each
 * replica by replica. Returns how many were read, −1 where it is not such a message. */
static int read_assignment(const unsigned char *p, const unsigned char *end, int64_t *id, int max)
{
    uint64_t key, n, v;
    int count = 0;
    while (read_varint(&p, end, &key)) {
        if ((key & 7) == 0) {
            if (!read_varint(&p, end, &v)) return -1;
            continue;
        }
        if ((key & 7) != 2 || !read_varint(&p, end, &n) || n > (uint64_t)(end - p)) return -1;
        if (key >> 3 == 3 && (count = read_ids(p, p + n, id, count, max)) < 0) return -1;
        p += n;
    }
    return count ? count : -1;
}

/* Refuses a program whose replica d does not run on device d: its arguments would lie elsewhere. */
static ts_status check_assignment(const ts_xla_executable *x, ts_error *err)
{
    const ts_xla *e = x->engine;
    PJRT_ARGS(PJRT_LoadedExecutable_GetDeviceAssignment_Args, a);
    if (!TS_PJRT_HAS(e->pjrt, PJRT_LoadedExecutable_GetDeviceAssignment)) return TS_OK;
    a.executable = x->loaded;
    ts_status status =
        ts__pjrt_check(e->pjrt, e->pjrt->api->PJRT_LoadedExecutable_GetDeviceAssignment(&a),
                       "asking which device runs which replica", err);
    if (status == TS_UNIMPLEMENTED) {
        if (err) *err = (ts_error){0};
        return TS_OK;
    }
    TS_TRY(status);
    int64_t *id = ts_alloc_zero(((size_t)e->n_devices + 1) * sizeof *id);
    const unsigned char *bytes = (const unsigned char *)a.serialized_bytes;
    int n =
        !id ? -2 : read_assignment(bytes, bytes + a.serialized_bytes_size, id, e->n_devices + 1);
    if (a.serialized_device_assignment_deleter)
        a.serialized_device_assignment_deleter(a.serialized_device_assignment);
    if (n == -2)
        status = TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "out of memory for a device assignment");
    else if (n < 0)
        status = TS_ERROR(err, TS_INTERNAL,
                          "the plugin's device assignment of the program cannot be read");
    else if (n != e->n_devices)
        status = TS_ERROR(err, TS_INTERNAL,
                          "the plugin's device assignment of the program has %d replicas; "
                          "%d were asked for",
                          n, e->n_devices);
    for (int d = 0; status == TS_OK && d < n; d++)
        if (id[d] != e->id[d])
            status = TS_ERROR(err, TS_INTERNAL,
                              "the plugin runs replica %d on device %" PRId64
                              "; device %d was asked for",
                              d, id[d], e->id[d]);
    ts_free(id);
    return status;
}

/* Fills x->order from the executable's own list of devices. */
static ts_status find_order(ts_xla_executable *x, ts_error *err)
{
    const ts_xla *e = x->engine;
    PJRT_ARGS(PJRT_LoadedExecutable_AddressableDevices_Args, a);
    a.executable = x->loaded;
    TS_TRY(ts__pjrt_check(e->pjrt, e->pjrt->api->PJRT_LoadedExecutable_AddressableDevices(&a),
                          "asking for the program's devices", err));
    if (a.num_addressable_devices != (size_t)e->n_devices)
        return TS_ERROR(err, TS_FAILED_PRECONDITION,
                        "the compiled program runs on %zu of this process's devices; "
                        "%d were asked for",
                        a.num_addressable_devices, e->n_devices);
    for (int place = 0; place < e->n_devices; place++) {
        int id = -1, replica = -1;
        TS_TRY(ts__pjrt_device_describe(e->pjrt, a.addressable_devices[place], &id, NULL, 0, err));
        for (int d = 0; d < e->n_devices; d++)
            if (e->id[d] == id) replica = d;
        for (int before = 0; before < place; before++)
            if (x->order[before] == replica) replica = -1;
        if (replica < 0)
            return TS_ERROR(err, TS_INTERNAL,
                            "the compiled program runs on device %d, which is not one of those "
                            "it was compiled for or comes twice",
                            id);
        x->order[place] = replica;
    }
    return check_assignment(x, err);
}

/* ---- making one ------------------------------------------------------------------------------ */

static ts_status make_lists(ts_xla_executable *x, ts_error *err)
{
    size_t n = (size_t)x->engine->n_devices, in = n * x->n_in, out = n * x->n_out;
    x->order = ts_alloc_zero(n * sizeof *x->order);
    x->argument = ts_alloc_zero((in + 1) * sizeof *x->argument);
    x->result = ts_alloc_zero((out + 1) * sizeof *x->result);
    x->argument_list = ts_alloc_zero(n * sizeof *x->argument_list);
    x->result_list = ts_alloc_zero(n * sizeof *x->result_list);
    bool ok = x->order && x->argument && x->result && x->argument_list && x->result_list;
    for (int i = 0; i < TS_XLA_IN_FLIGHT; i++) {
        x->slot[i].event = ts_alloc_zero(n * sizeof(PJRT_Event *));
        x->slot[i].written = ts_alloc_zero((out + 1) * sizeof(ts_xla_buffer *));
        ok = ok && x->slot[i].event && x->slot[i].written;
    }
    if (!ok) return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "out of memory for an executable");
    for (size_t d = 0; d < n; d++) {
        x->argument_list[d] = x->argument + d * x->n_in;
        x->result_list[d] = x->result + d * x->n_out;
    }
    return TS_OK;
}

/* What a device's buffers are where the graph is global. */
static ts_status make_local(ts_xla_executable *x, const ts_sharding *s, ts_error *err)
{
    const ts_region *top = x->base.graph->top;
    x->base.local = x->local = ts_alloc((x->n_in + x->n_out + 1) * sizeof *x->local);
    if (!x->local) return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "out of memory for an executable");
    for (size_t i = 0; i < x->n_in; i++)
        x->local[i] = ts_spec_local(s->mesh, &s->in[i], &top->arg[i]->type);
    for (size_t i = 0; i < x->n_out; i++)
        x->local[x->n_in + i] = ts_spec_local(s->mesh, &s->out[i], &top->result[i]->type);
    return TS_OK;
}

/* Takes loaded in any case. */
static ts_status wrap(ts_xla *e, const ts_graph *g, const ts_sharding *sharding,
                      PJRT_LoadedExecutable *loaded, ts_executable **out, ts_error *err)
{
    ts_xla_executable *x = ts_alloc_zero(sizeof *x);
    ts_xla_executable bare = {.engine = e, .loaded = loaded};
    if (!x) {
        PJRT_ARGS(PJRT_LoadedExecutable_Destroy_Args, a);
        a.executable = bare.loaded;
        TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "out of memory for an executable");
        return ts__pjrt_check(e->pjrt, e->pjrt->api->PJRT_LoadedExecutable_Destroy(&a), "freeing",
                              NULL) == TS_OK
                   ? TS_RESOURCE_EXHAUSTED
                   : TS_INTERNAL;
    }
    *x = bare;
    x->base = (ts_executable){.vtable = &ts_xla_engine, .engine = &e->base, .graph = g};
    x->n_in = (size_t)g->top->n_arg;
    x->n_out = (size_t)g->top->n_result;
    ts_status status = make_lists(x, err);
    if (status == TS_OK && sharding) status = make_local(x, sharding, err);
    PJRT_Executable *executable = status == TS_OK ? executable_of(x, err) : NULL;
    if (status == TS_OK && !executable)
        status = err && err->code != TS_OK ? err->code : TS_INTERNAL;
    if (status == TS_OK) status = check_outputs(x, executable, err);
    if (status == TS_OK) status = find_order(x, err);
    if (status == TS_OK) {
        ts_pjrt_figures figures = ts__pjrt_figures(e->pjrt, executable);
        take_figures(&x->stats, &figures);
    }
    if (executable) release(x, executable);
    if (status != TS_OK) {
        ts__xla_executable_free(&x->base);
        return status;
    }
    *out = &x->base;
    return TS_OK;
}

static ts_status write_options(const ts_xla *e, bool partitioned, const char *dump_to,
                               ts_string *options, ts_error *err)
{
    const ts_compile_options o = {e->n_devices, e->id, (const char *const *)e->flag, e->n_flag,
                                  partitioned};
    return ts__compile_options_for(e->platform, &o, dump_to, options, err);
}

typedef struct request { /* what the compiler is asked for */
    const ts_graph *g;
    const ts_sharding *sharding; /* NULL: partitioned already */
    const char *text;
    size_t n;
} request;

static ts_status call_compiler(const ts_xla *e, const request *r, const char *dump_to,
                               PJRT_LoadedExecutable **out, ts_error *err)
{
    char what[300];
    ts_string options = ts_string_new(1 << 20);
    PJRT_ARGS(PJRT_Program, program);
    PJRT_ARGS(PJRT_Client_Compile_Args, a);
    ts_status status = write_options(e, r->sharding != NULL, dump_to, &options, err);
    if (status == TS_OK) {
        program.code = (char *)r->text;
        program.code_size = r->n;
        program.format = "mlir";
        program.format_size = 4;
        a.client = e->client;
        a.program = &program;
        a.compile_options = options.data;
        a.compile_options_size = options.length;
        snprintf(what, sizeof what, "compiling the graph %.200s", r->g->name);
        status = ts__pjrt_check(e->pjrt, e->pjrt->api->PJRT_Client_Compile(&a), what, err);
    }
    if (status == TS_OK) *out = a.executable;
    ts_string_free(&options);
    return status;
}

static ts_status compile_request(ts_xla *e, const request *r, ts_executable **out, ts_error *err)
{
    PJRT_LoadedExecutable *loaded = NULL;
    ts_error first = {0};
    *out = NULL;
    if (e->dump_to) {
        TS_TRY(ts_make_folders(e->dump_to, err));
        TS_TRY(ts__stablehlo_save(e->dump_to, r->g->name, r->text, r->n, err));
    }
    ts_status status = call_compiler(e, r, e->dump_to, &loaded, &first);
    if (status != TS_OK && e->dump_to && strstr(first.msg, "xla_dump_to")) {
        ts_log(TS_LOG_WARNING,
               "the plugin does not take xla_dump_to: only the program that it is given is in %s",
               e->dump_to);
        first = (ts_error){0};
        status = call_compiler(e, r, NULL, &loaded, &first);
    }
    if (status != TS_OK) {
        ts__xla_explain_refusal(r->text, r->n, &first);
        return TS_ERROR(err, status, "%s", first.msg);
    }
    return wrap(e, r->g, r->sharding, loaded, out, err);
}

ts_status ts__xla_compile_text(ts_xla *e, const ts_graph *g, const char *text, size_t n,
                               ts_executable **out, ts_error *err)
{
    return compile_request(e, &(request){g, NULL, text, n}, out, err);
}

/* A plugin that runs a graph's own text has no partitioner: it is not given one that is global. */
static ts_status write_program(const ts_xla *e, const ts_graph *g, const ts_sharding *sharding,
                               ts_string *text, ts_error *err)
{
    const ts_stablehlo_options o = {.struct_size = sizeof o,
                                    .precision = e->precision,
                                    .carry_graph = e->pjrt->carries_graph && !sharding,
                                    .devices = e->n_devices,
                                    .sharding = sharding};
    return ts__stablehlo_write(g, &o, text, err);
}

ts_status ts__xla_compile_sharded(ts_engine *engine, const ts_graph *g, const ts_sharding *sharding,
                                  ts_executable **out, ts_error *err)
{
    ts_xla *e = (ts_xla *)engine;
    ts_string text = ts_string_new(max_program);
    *out = NULL;
    ts_status status = write_program(e, g, sharding, &text, err);
    if (status == TS_OK)
        status = compile_request(e, &(request){g, sharding, text.data, text.length}, out, err);
    ts_string_free(&text);
    return status;
}

ts_status ts__xla_compile(ts_engine *e, const ts_graph *g, ts_executable **out, ts_error *err)
{
    return ts__xla_compile_sharded(e, g, NULL, out, err);
}

/* ---- compiled before ------------------------------------------------------------------------- */

ts_status ts__xla_serialize(ts_executable *executable, void **bytes, size_t *n, ts_error *err)
{
    ts_xla_executable *x = (ts_xla_executable *)executable;
    const ts_pjrt *p = x->engine->pjrt;
    ts_error own = {0};
    PJRT_ARGS(PJRT_Executable_Serialize_Args, a);
    *bytes = NULL;
    PJRT_Executable *e = executable_of(x, &own);
    if (!e) return TS_ERROR(err, own.code, "%s", own.msg);
    a.executable = e;
    ts_status status =
        ts__pjrt_check(p, p->api->PJRT_Executable_Serialize(&a), "serializing the program", err);
    if (status == TS_OK) {
        *n = a.serialized_bytes_size;
        *bytes = ts_alloc(*n);
        if (*bytes && *n) memcpy(*bytes, a.serialized_bytes, *n);
        if (a.serialized_executable_deleter)
            a.serialized_executable_deleter(a.serialized_executable);
        if (!*bytes)
            status =
                TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "out of memory: %zu bytes of a program", *n);
    }
    release(x, e);
    return status;
}

/* The slice that a file must have been compiled for: counted on a cpu, else by the devices' kind
 * and coordinates. */
static ts_status topology_key(const ts_xla *e, char *key, size_t n, ts_error *err)
{
    ts_topology t;
    char text[64];
    if (strcmp(e->platform, "tpu") != 0) {
        snprintf(key, n, "%.40s:%d", e->platform, e->n_devices);
        return TS_OK;
    }
    TS_TRY(ts__xla_slice_name(e, text, sizeof text, err));
    TS_TRY(ts__topology_parse(text, 1, &t, err));
    snprintf(key, n, "%s", t.name);
    return TS_OK;
}

static ts_status deserialize(ts_xla *e, const request *r, const char *path, ts_executable **out,
                             ts_error *err)
{
    char what[4400];
    PJRT_ARGS(PJRT_Executable_DeserializeAndLoad_Args, a);
    snprintf(what, sizeof what, "loading the compiled program %s", path);
    a.client = e->client;
    a.serialized_executable = r->text;
    a.serialized_executable_size = r->n;
    TS_TRY(
        ts__pjrt_check(e->pjrt, e->pjrt->api->PJRT_Executable_DeserializeAndLoad(&a), what, err));
    return wrap(e, r->g, r->sharding, a.loaded_executable, out, err);
}

ts_status ts__xla_key(ts_xla *e, const ts_graph *g, const ts_sharding *sharding, ts_saved_key *key,
                      ts_error *err)
{
    ts_string text = ts_string_new(max_program), options = ts_string_new(1 << 20);
    *key = (ts_saved_key){0};
    ts_status status = topology_key(e, key->topology, sizeof key->topology, err);
    if (status == TS_OK) status = write_program(e, g, sharding, &text, err);
    if (status == TS_OK) status = write_options(e, sharding != NULL, NULL, &options, err);
    if (status == TS_OK) {
        ts__saved_key_program(text.data, text.length, options.data, options.length, key->program);
        ts__saved_key_plugin(e->pjrt, e->platform, e->version, key);
    }
    ts_string_free(&text);
    ts_string_free(&options);
    return status;
}

ts_status ts__xla_load_sharded(ts_engine *engine, const ts_graph *g, const ts_sharding *sharding,
                               const char *path, ts_executable **out, ts_error *err)
{
    ts_xla *e = (ts_xla *)engine;
    ts_saved_key key;
    void *bytes = NULL;
    size_t n = 0;
    *out = NULL;
    TS_TRY(ts__xla_key(e, g, sharding, &key, err));
    TS_TRY(ts__saved_read(path, &key, &bytes, &n, err));
    ts_status status = deserialize(e, &(request){g, sharding, bytes, n}, path, out, err);
    ts_free(bytes);
    return status;
}

ts_status ts__xla_load(ts_engine *e, const ts_graph *g, const char *path, ts_executable **out,
                       ts_error *err)
{
    return ts__xla_load_sharded(e, g, NULL, path, out, err);
}
