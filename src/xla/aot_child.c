/* xla/aot_child.c – the half of ts__aot_compile that runs in the child: the plugin, the topology, the compiler.
 *
 * A cpu plugin has no topologies: there a client with as many devices compiles. Everything that is found out is
 * written as one ts_aot_answer, then the serialized program where a file is wanted; the parent judges it. Nothing is
 * freed that the end of the process frees.
 */
#include <stdio.h>
#include <stdlib.h>

#include "xla/aot_internal.h"
#include "xla/child.h"
#include "xla/compile_options.h"
#include "xla/pjrt.h"

static const size_t max_program = (size_t)1 << 30;

typedef struct compiler {
    const ts_aot_job *job;
    const char *folder;
    ts_pjrt *pjrt;
    PJRT_TopologyDescription *topology; /* NULL: of the client */
    PJRT_Client *client;                /* NULL: none */
    int *id;                            /* of the topology's devices, ascending */
    size_t n_id;
    ts_string program;
    PJRT_Executable *executable;
    const char *bytes; /* serialized; NULL: not wanted */
    char platform[64];
    ts_aot_answer answer;
} compiler;

static int by_number(const void *a, const void *b)
{
    int x = *(const int *)a, y = *(const int *)b;
    return (x > y) - (x < y);
}

static ts_status make_ids(compiler *c, size_t n, ts_error *err)
{
    c->n_id = n;
    c->id = ts_alloc((n + 1) * sizeof *c->id);
    if (!c->id) return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out for device numbers");
    if (n >= (size_t)c->job->replicas) return TS_OK;
    return TS_ERROR(err, TS_INVALID_ARGUMENT, "the plugin's %s has %zu devices; %d are needed",
                    c->job->topology->name, n, c->job->replicas);
}

/* ---- the devices ----------------------------------------------------------------------------- */

static ts_status name_platform(compiler *c, ts_error *err)
{
    PJRT_ARGS(PJRT_TopologyDescription_PlatformName_Args, n);
    PJRT_ARGS(PJRT_TopologyDescription_PlatformVersion_Args, v);
    n.topology = v.topology = c->topology;
    TS_TRY(ts__pjrt_check(c->pjrt, c->pjrt->api->PJRT_TopologyDescription_PlatformName(&n),
                          "asking for the platform", err));
    TS_TRY(ts__pjrt_check(c->pjrt, c->pjrt->api->PJRT_TopologyDescription_PlatformVersion(&v),
                          "asking for its version", err));
    ts__pjrt_copy(c->platform, sizeof c->platform, n.platform_name, n.platform_name_size);
    ts__pjrt_copy(c->answer.version, sizeof c->answer.version, v.platform_version,
                  v.platform_version_size);
    return TS_OK;
}

/* What a program may use, where the plugin tells; a service, so failing is no failure. */
static void ask_capacity(compiler *c)
{
    PJRT_ARGS(PJRT_TopologyDescription_Attributes_Args, a);
    ts_error ignored = {0};
    a.topology = c->topology;
    if (!TS_PJRT_HAS(c->pjrt, PJRT_TopologyDescription_Attributes) ||
        ts__pjrt_check(c->pjrt, c->pjrt->api->PJRT_TopologyDescription_Attributes(&a), "attributes",
                       &ignored) != TS_OK)
        return;
    const PJRT_NamedValue *v =
        ts__pjrt_value(a.attributes, a.num_attributes, "device_memory_bytes_limit");
    if (v && v->type == PJRT_NamedValue_kInt64 && v->int64_value > 0)
        c->answer.capacity_bytes = v->int64_value;
}

static ts_status open_topology(compiler *c, ts_error *err)
{
    const ts_topology *t = c->job->topology;
    char what[160];
    PJRT_ARGS(PJRT_TopologyDescription_Create_Args, a);
    PJRT_ARGS(PJRT_TopologyDescription_GetDeviceDescriptions_Args, d);
    if (!TS_PJRT_HAS(c->pjrt, PJRT_TopologyDescription_Create) ||
        !TS_PJRT_HAS(c->pjrt, PJRT_Compile) ||
        !TS_PJRT_HAS(c->pjrt, PJRT_TopologyDescription_GetDeviceDescriptions))
        return TS_ERROR(err, TS_UNAVAILABLE,
                        "the plugin %s (PJRT %d.%d) cannot compile for devices that are not there; "
                        "take a newer version of it",
                        c->pjrt->path, c->pjrt->major, c->pjrt->minor);
    a.topology_name = t->name;
    a.topology_name_size = strlen(t->name);
    snprintf(what, sizeof what, "the plugin refuses the topology %s", t->name);
    TS_TRY(ts__pjrt_check(c->pjrt, c->pjrt->api->PJRT_TopologyDescription_Create(&a), what, err));
    d.topology = c->topology = a.topology;
    TS_TRY(ts__pjrt_check(c->pjrt, c->pjrt->api->PJRT_TopologyDescription_GetDeviceDescriptions(&d),
                          "listing the topology's devices", err));
    TS_TRY(make_ids(c, d.num_descriptions, err));
    for (size_t i = 0; i < c->n_id; i++)
        TS_TRY(ts__pjrt_describe(c->pjrt, d.descriptions[i], &c->id[i], c->answer.kind,
                                 sizeof c->answer.kind, err));
    ask_capacity(c);
    return name_platform(c, err);
}

static ts_status open_client(compiler *c, ts_error *err)
{
    PJRT_Device *const *device;
    size_t n;
    TS_TRY(ts__pjrt_client_new(c->pjrt, c->job->topology->devices, &c->client, err));
    TS_TRY(ts__pjrt_devices(c->pjrt, c->client, &device, &n, err));
    TS_TRY(make_ids(c, n, err));
    for (size_t i = 0; i < n; i++)
        TS_TRY(ts__pjrt_device_describe(c->pjrt, device[i], &c->id[i], c->answer.kind,
                                        sizeof c->answer.kind, err));
    TS_TRY(ts__pjrt_platform(c->pjrt, c->client, c->platform, sizeof c->platform, c->answer.version,
                             sizeof c->answer.version, err));
    return TS_OK;
}

static ts_status open_devices(compiler *c, ts_error *err)
{
    bool cpu = strcmp(c->job->topology->plugin, "cpu") == 0;
    ts_status status = ts__pjrt_load(c->job->plugin, &c->pjrt, err);
    /* Why it is none is its own affair; to the user it is a plugin that is not there. */
    if (status != TS_OK) return status == TS_RESOURCE_EXHAUSTED ? status : (err->code = TS_UNAVAILABLE);
    TS_TRY(cpu ? open_client(c, err) : open_topology(c, err));
    qsort(c->id, c->n_id, sizeof *c->id, by_number);
    return TS_OK;
}

/* ---- the program ----------------------------------------------------------------------------- */

static ts_status write_options(const compiler *c, bool dump, ts_string *options, ts_error *err)
{
    const ts_aot_job *job = c->job;
    const ts_compile_options o = {job->replicas, c->id, job->flag, job->n_flag,
                                  job->sharding != NULL};
    *options = ts_string_new(1 << 20);
    return ts__compile_options_for(c->platform, &o, dump ? c->folder : NULL, options, err);
}

/* The key leaves out where the dump goes: a training run dumps elsewhere or not at all. */
static ts_status make_key(compiler *c, ts_error *err)
{
    ts_saved_key *key = &c->answer.key;
    ts_string options;
    TS_TRY(write_options(c, false, &options, err));
    ts__saved_key_plugin(c->pjrt, c->platform, c->answer.version, key);
    ts__saved_key_program(c->program.data, c->program.length, options.data, options.length,
                          key->program);
    snprintf(key->topology, sizeof key->topology, "%s", c->job->topology->name);
    ts_string_free(&options);
    return TS_OK;
}

static ts_status call_compiler(compiler *c, const ts_string *options, ts_error *err)
{
    const ts_pjrt *p = c->pjrt;
    PJRT_ARGS(PJRT_Program, program);
    program.code = c->program.data;
    program.code_size = c->program.length;
    program.format = "mlir";
    program.format_size = 4;
    if (c->topology) {
        PJRT_ARGS(PJRT_Compile_Args, a);
        a.topology = c->topology;
        a.program = &program;
        a.compile_options = options->data;
        a.compile_options_size = options->length;
        TS_TRY(ts__pjrt_check(p, p->api->PJRT_Compile(&a), "compiling", err));
        c->executable = a.executable;
        return TS_OK;
    }
    PJRT_ARGS(PJRT_Client_Compile_Args, a);
    PJRT_ARGS(PJRT_LoadedExecutable_GetExecutable_Args, e);
    a.client = c->client;
    a.program = &program;
    a.compile_options = options->data;
    a.compile_options_size = options->length;
    TS_TRY(ts__pjrt_check(p, p->api->PJRT_Client_Compile(&a), "compiling", err));
    e.loaded_executable = a.executable;
    TS_TRY(ts__pjrt_check(p, p->api->PJRT_LoadedExecutable_GetExecutable(&e),
                          "looking at the compiled program", err));
    c->executable = e.executable;
    return TS_OK;
}

static ts_status compile(compiler *c, ts_error *err)
{
    const ts_stablehlo_options o = {.struct_size = sizeof o,
                                    .precision = c->job->precision,
                                    .carry_graph = c->pjrt->carries_graph && !c->job->sharding,
                                    .devices = c->job->replicas,
                                    .sharding = c->job->sharding};
    ts_string with_dump, without;
    ts_error first = {0};
    c->program = ts_string_new(max_program);
    TS_TRY(ts__stablehlo_write(c->job->graph, &o, &c->program, err));
    TS_TRY(ts__stablehlo_save(c->folder, c->job->graph->name, c->program.data, c->program.length,
                              err)); /* beside what XLA dumps */
    TS_TRY(make_key(c, err));
    TS_TRY(write_options(c, true, &with_dump, err));
    double start = ts_clock_seconds();
    ts_status status = call_compiler(c, &with_dump, &first);
    if (status != TS_OK && status != TS_RESOURCE_EXHAUSTED && strstr(first.msg, "xla_dump_to")) {
        TS_TRY(write_options(c, false, &without, err)); /* no XLA of its own: no dump */
        first = (ts_error){0};
        status = call_compiler(c, &without, &first);
    }
    c->answer.compile_seconds = ts_clock_seconds() - start;
    if (status == TS_RESOURCE_EXHAUSTED) {
        c->answer.too_big = true;
        ts__pjrt_copy(c->answer.message, sizeof c->answer.message, first.msg, strlen(first.msg));
        return TS_OK;
    }
    return status == TS_OK ? TS_OK : TS_ERROR(err, status, "%s", first.msg);
}

/* ---- what came out --------------------------------------------------------------------------- */

static ts_status serialize_once(compiler *c, ts_error *err)
{
    PJRT_ARGS(PJRT_Executable_Serialize_Args, a);
    a.executable = c->executable;
    TS_TRY(ts__pjrt_check(c->pjrt, c->pjrt->api->PJRT_Executable_Serialize(&a),
                          "serializing the program", err));
    c->bytes = a.serialized_bytes;
    c->answer.executable_bytes = a.serialized_bytes_size;
    return TS_OK;
}

/* A program may carry its options along, and would dump again wherever it is loaded: such a one is compiled a
 * second time, without. */
static ts_status serialize(compiler *c, ts_error *err)
{
    ts_string options;
    if (!c->job->save_to || !*c->job->save_to) return TS_OK;
    TS_TRY(serialize_once(c, err));
    if (!memmem(c->bytes, c->answer.executable_bytes, c->folder, strlen(c->folder))) return TS_OK;
    TS_TRY(write_options(c, false, &options, err));
    TS_TRY(call_compiler(c, &options, err));
    return serialize_once(c, err);
}

void ts__aot_child(void *context, int fd)
{
    const ts_aot_work *w = context;
    static compiler c; /* large, and once in a process */
    ts_error err = {0};
    c.job = w->job;
    c.folder = w->folder;
    ts_status status = open_devices(&c, &err);
    if (status == TS_OK) status = compile(&c, &err);
    if (status == TS_OK && !c.answer.too_big) {
        c.answer.figures = ts__pjrt_figures(c.pjrt, c.executable);
        status = serialize(&c, &err);
    }
    c.answer.status = status;
    if (status != TS_OK)
        ts__pjrt_copy(c.answer.message, sizeof c.answer.message, err.msg, strlen(err.msg));
    if (ts__child_send(fd, &c.answer, sizeof c.answer) && status == TS_OK && c.bytes)
        (void)ts__child_send(fd, c.bytes, c.answer.executable_bytes);
}
