/* xla/engine.c – the xla engine behind the vtable of exec/engine.h: a plugin found, tried, loaded, its
 * devices chosen.
 *
 * The plugin is tried in a child process before it is loaded, unless this process has loaded it already. Device d
 * is the addressable device with the d-th smallest global id; the first `devices` of them are used, 0: all.
 * The timeline of single instructions belongs to the device's own profile (profile.c), so there are no events here.
 */
#include <stdio.h>
#include <stdlib.h>

#include "xla/plugin.h"
#include "xla/run.h"
#include "xla/topology.h"

static void xla_close(ts_engine *engine)
{
    ts_xla *e = (ts_xla *)engine;
    if (e->pjrt) {
        ts__xla_trace_drop(e);
        ts__pjrt_client_free(e->pjrt, e->client);
    }
    ts__pjrt_free(e->pjrt);
    for (int i = 0; e->flag && i < e->n_flag; i++) ts_free(e->flag[i]);
    ts_free(e->flag);
    ts_free(e->dump_to);
    ts_free(e->device);
    ts_free(e->id);
    ts_free(e);
}

static const char *xla_describe(const ts_engine *e)
{
    return ((const ts_xla *)e)->text;
}

static int xla_devices(const ts_engine *e)
{
    return ((const ts_xla *)e)->n_devices;
}

static int xla_device_id(const ts_engine *e, int device)
{
    return ((const ts_xla *)e)->id[device];
}

static void xla_stats(const ts_executable *x, ts_exec_stats *out)
{
    *out = ((const ts_xla_executable *)x)->stats;
}

static void xla_profile_next(ts_executable *x)
{
    (void)x; /* nothing to switch on */
}

static size_t xla_profile(const ts_executable *x, ts_profile_event *out, size_t max)
{
    (void)x;
    (void)out;
    (void)max;
    return 0;
}

/* ---- open ------------------------------------------------------------------------------------ */

static ts_status copy_options(ts_xla *e, const ts_engine_options *o, ts_error *err)
{
    static const char *const words = "default, bfloat16, high or highest";
    const char *precision = o->precision && *o->precision ? o->precision : "default";
    if (!ts__precision_parse(precision, &e->precision))
        return TS_ERROR(err, TS_INVALID_ARGUMENT, "matmul_precision=%s: expected %s", precision,
                        words);
    bool ok = true;
    if (o->dump_to && *o->dump_to) ok = (e->dump_to = ts_strdup(o->dump_to)) != NULL;
    e->n_flag = o->n_xla_flag;
    e->flag = ts_alloc_zero(((size_t)e->n_flag + 1) * sizeof *e->flag);
    ok = ok && e->flag;
    for (int i = 0; ok && i < e->n_flag; i++) ok = (e->flag[i] = ts_strdup(o->xla_flag[i])) != NULL;
    return ok ? TS_OK
              : TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "out of memory while opening the xla engine");
}

static ts_status load_plugin(ts_xla *e, const char *name, int devices, ts_error *err)
{
    char path[4096];
    TS_TRY(ts__plugin_find(name, path, sizeof path, err));
    if (!ts__pjrt_loaded(path)) {
        ts_plugin_info *info = ts_alloc(sizeof *info);
        if (!info)
            return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "out of memory while trying a plugin");
        ts_status status = ts__plugin_probe(name, path, true, devices, info, err);
        ts_free(info);
        TS_TRY(status);
    }
    TS_TRY(ts__pjrt_load(path, &e->pjrt, err));
    TS_TRY(ts__pjrt_client_new(e->pjrt, devices, &e->client, err));
    return ts__pjrt_platform(e->pjrt, e->client, e->platform, sizeof e->platform, e->version,
                             sizeof e->version, err);
}

/* Insertion by id: a plugin may list its devices in any order. */
static ts_status sort_devices(ts_xla *e, PJRT_Device *const *device, int n, ts_error *err)
{
    for (int i = 0; i < n; i++) {
        int id, at = i;
        TS_TRY(ts__pjrt_device_describe(e->pjrt, device[i], &id, e->kind, sizeof e->kind, err));
        for (; at > 0 && e->id[at - 1] > id; at--) {
            e->id[at] = e->id[at - 1];
            e->device[at] = e->device[at - 1];
        }
        e->id[at] = id;
        e->device[at] = device[i];
    }
    return TS_OK;
}

static ts_status choose_devices(ts_xla *e, int wanted, ts_error *err)
{
    PJRT_Device *const *device;
    size_t n;
    TS_TRY(ts__pjrt_devices(e->pjrt, e->client, &device, &n, err));
    const int least = wanted ? wanted : 1;
    if (n < (size_t)least)
        return TS_ERROR(
            err, TS_FAILED_PRECONDITION,
            "%d device%s asked for and the plugin %s has %zu in this process; ask for no "
            "more than that",
            least, least == 1 ? " was" : "s were", e->pjrt->path, n);
    e->device = ts_alloc_zero(n * sizeof *e->device);
    e->id = ts_alloc_zero(n * sizeof *e->id);
    if (!e->device || !e->id)
        return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "out of memory while opening the xla engine");
    TS_TRY(sort_devices(e, device, (int)n, err));
    e->n_devices = wanted ? wanted : (int)n;
    return ts__pjrt_device_describe(e->pjrt, e->device[0], NULL, e->kind, sizeof e->kind, err);
}

/* The names of TPU generations, by the kind that their devices give. */
static const struct {
    const char *kind, *name;
    int rank;
} generations[] = {{"TPU v5 lite", "v5e", 2}, {"TPU v5e", "v5e", 2},  {"TPU v6 lite", "v6e", 2},
                   {"TPU v6e", "v6e", 2},     {"TPU v5p", "v5p", 3},  {"TPU v5", "v5p", 3},
                   {"TPU7x", "tpu7x", 3},     {"TPU v7x", "tpu7x", 3}};

/* Grows size to hold the device's coordinates. */
static ts_status reach(const ts_xla *e, PJRT_Device *device, int64_t size[3], ts_error *err)
{
    PJRT_ARGS(PJRT_Device_GetDescription_Args, d);
    PJRT_ARGS(PJRT_DeviceDescription_Attributes_Args, a);
    d.device = device;
    TS_TRY(ts__pjrt_check(e->pjrt, e->pjrt->api->PJRT_Device_GetDescription(&d),
                          "describing a device", err));
    a.device_description = d.device_description;
    TS_TRY(ts__pjrt_check(e->pjrt, e->pjrt->api->PJRT_DeviceDescription_Attributes(&a),
                          "asking for a device's coordinates", err));
    const PJRT_NamedValue *v = ts__pjrt_value(a.attributes, a.num_attributes, "coords");
    if (!v || v->type != PJRT_NamedValue_kInt64List || v->value_size > 3)
        return TS_ERROR(err, TS_UNIMPLEMENTED,
                        "the devices of %s do not say where they are, so no compiled "
                        "program can be matched to them",
                        e->pjrt->path);
    for (size_t i = 0; i < v->value_size; i++)
        if (v->int64_array_value[i] >= size[i]) size[i] = v->int64_array_value[i] + 1;
    return TS_OK;
}

ts_status ts__xla_slice_name(const ts_xla *e, char *name, size_t n, ts_error *err)
{
    int64_t size[3] = {1, 1, 1};
    PJRT_ARGS(PJRT_Client_Devices_Args, a);
    a.client = e->client;
    TS_TRY(
        ts__pjrt_check(e->pjrt, e->pjrt->api->PJRT_Client_Devices(&a), "listing all devices", err));
    for (size_t i = 0; i < a.num_devices; i++) TS_TRY(reach(e, a.devices[i], size, err));
    for (size_t i = 0; i < sizeof generations / sizeof *generations; i++) {
        if (strcmp(generations[i].kind, e->kind) != 0) continue;
        int at = snprintf(name, n, "%s:%lldx%lld", generations[i].name, (long long)size[0],
                          (long long)size[1]);
        if (generations[i].rank == 3)
            snprintf(name + at, n - (size_t)at, "x%lld", (long long)size[2]);
        return TS_OK;
    }
    return TS_ERROR(err, TS_UNIMPLEMENTED, "devices of the kind \"%s\" have no compiled programs",
                    e->kind);
}

/* All devices of a slice that is known by its name; a part of one, and what has no coordinates, is no torus. */
static int xla_torus(const ts_engine *engine, int64_t size[TS_MAX_RANK])
{
    const ts_xla *e = (const ts_xla *)engine;
    char name[64];
    ts_topology t;
    ts_error none = {0};
    if (ts__xla_slice_name(e, name, sizeof name, &none) != TS_OK ||
        ts__topology_parse(name, 1, &t, &none) != TS_OK || t.devices != e->n_devices)
        return 0;
    for (int i = 0; i < t.n_torus; i++) size[i] = t.torus[i];
    return t.n_torus;
}

/* Versions of platforms are whole paragraphs; their first word or two are for people. */
static void describe(ts_xla *e)
{
    size_t n = strcspn(e->version, "\n;(,");
    if (n > 40) n = ts_utf8_valid_prefix(e->version, 40);
    while (n && e->version[n - 1] == ' ') n--;
    if (strncmp(e->version, e->platform, n) == 0) n = 0; /* the cpu plugin's version is "cpu" */
    int at = snprintf(e->text, sizeof e->text, "xla: %s%s%.*s, %d × %s, PJRT %d.%d", e->platform,
                      n ? " " : "", (int)n, e->version, e->n_devices, e->kind, e->pjrt->major,
                      e->pjrt->minor);
    if (*e->pjrt->stablehlo && at > 0 && (size_t)at < sizeof e->text)
        snprintf(e->text + at, sizeof e->text - (size_t)at, ", StableHLO %s", e->pjrt->stablehlo);
}

static ts_status xla_open(const ts_engine_options *o, ts_engine **out, ts_error *err)
{
    *out = NULL;
    int devices = o->devices;
    if (devices < 0 || o->n_xla_flag < 0)
        return TS_ERROR(err, TS_INVALID_ARGUMENT, "xla engine: devices=%d; expected at least 1, or 0 for all",
                        devices);
    ts_xla *e = ts_alloc_zero(sizeof *e);
    if (!e)
        return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "out of memory while opening the xla engine");
    e->base.vtable = &ts_xla_engine;
    ts_status status = copy_options(e, o, err);
    if (status == TS_OK) /* XLA's CPU plugin makes as many devices as it is told: one, unless more are asked for */
        status = load_plugin(e, o->plugin && *o->plugin ? o->plugin : "cpu",
                             devices ? devices : 1, err);
    if (status == TS_OK) status = choose_devices(e, devices, err);
    if (status != TS_OK) {
        xla_close(&e->base);
        return status;
    }
    describe(e);
    *out = &e->base;
    return TS_OK;
}

const ts_engine_vtable ts_xla_engine = {
    .name = "xla",
    .asynchronous = true,
    .open = xla_open,
    .close = xla_close,
    .describe = xla_describe,
    .devices = xla_devices,
    .torus = xla_torus,
    .compile = ts__xla_compile,
    .load = ts__xla_load,
    .compile_sharded = ts__xla_compile_sharded,
    .load_sharded = ts__xla_load_sharded,
    .executable_free = ts__xla_executable_free,
    .buffer_new = ts__xla_buffer_new,
    .buffer_free = ts__xla_buffer_free,
    .upload = ts__xla_upload,
    .download = ts__xla_download,
    .execute = ts__xla_execute,
    .wait = ts__xla_wait,
    .stats = xla_stats,
    .profile_next = xla_profile_next,
    .profile = xla_profile,
    .trace_begin = ts__xla_trace_begin,
    .trace_end = ts__xla_trace_end,
    .device_id = xla_device_id,
    .wait_each = ts__xla_wait_each,
};
