/* xla/pjrt.c – a PJRT plugin as every caller needs it: loaded, its errors and events turned into ours, clients.
 *
 * A library is initialised once in a process, however often it is asked for. Functions that every plugin has are
 * called without asking; younger ones only behind TS_PJRT_HAS. A plugin's messages may be very long and end in
 * stack traces: what is kept is their beginning.
 * Not here: programs and buffers (engine.c and its neighbours), trying a plugin in a child (probe.c).
 */
#include "xla/pjrt.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "xla/preload.h"

enum { MAX_LOADED = 16, MAX_MESSAGE = 1800 };

/* Libraries of this process: the path as it was resolved. */
static struct {
    char *path;
    void *library;
} loaded[MAX_LOADED];
static int n_loaded;

/* ---- loading --------------------------------------------------------------------------------- */

static char *resolved(const char *path)
{
    char *real = realpath(path, NULL), *copy = ts_strdup(real ? real : path);
    (free)(real); /* realpath's own */
    return copy;
}

static int find_loaded(const char *real)
{
    for (int i = 0; i < n_loaded; i++)
        if (strcmp(loaded[i].path, real) == 0) return i;
    return -1;
}

bool ts__pjrt_loaded(const char *path)
{
    char *real = resolved(path);
    bool yes = real && find_loaded(real) >= 0;
    ts_free(real);
    return yes;
}

/* What dlopen says begins with a path: the library's own, or the one that it needs. */
static ts_status cannot_load(const ts_pjrt *p, const char *why, ts_error *err)
{
    const char *absent = strstr(why, ": cannot open shared object file");
    if (absent && strncmp(why, p->path, strlen(p->path)) != 0)
        TS_ERROR(err, TS_UNAVAILABLE,
                 "the plugin %s needs the library %.*s, which is not on this machine", p->path,
                 (int)(absent - why), why);
    else
        TS_ERROR(err, TS_UNAVAILABLE, "the plugin %s cannot be loaded: %s", p->path, why);
    return TS_UNAVAILABLE;
}

static ts_status open_library(ts_pjrt *p, ts_error *err)
{
    ts_string missing = ts_string_new(4000);
    if (ts_path_kind_of(p->path) == TS_PATH_NONE)
        return TS_ERROR(err, TS_NOT_FOUND, "the plugin %s does not exist", p->path);
    if (ts_path_kind_of(p->path) == TS_PATH_FOLDER)
        return TS_ERROR(err, TS_NOT_FOUND, "the plugin %s is a folder; expected a library",
                        p->path);
    ts__preload(p->path, &missing);
    setenv("TF_CPP_MIN_LOG_LEVEL", "1", 0); /* XLA's own progress is not for our standard error */
    p->missing = missing.data;
    p->library = dlopen(p->path, RTLD_NOW | RTLD_LOCAL);
    if (!p->library) {
        const char *why = dlerror();
        return cannot_load(p, why ? why : "the loader does not say why", err);
    }
    return TS_OK;
}

/* Without these nothing can be done at all; the others are asked for where they are used. */
static const struct {
    const char *name;
    size_t offset;
} needed[] = {
#define NEEDED(f)                                                                                  \
    {                                                                                              \
#f, offsetof(PJRT_Api, f)                                                                  \
    }
    NEEDED(PJRT_Error_Destroy),
    NEEDED(PJRT_Error_Message),
    NEEDED(PJRT_Error_GetCode),
    NEEDED(PJRT_Event_Destroy),
    NEEDED(PJRT_Event_Await),
    NEEDED(PJRT_Event_IsReady),
    NEEDED(PJRT_Client_Create),
    NEEDED(PJRT_Client_Destroy),
    NEEDED(PJRT_Client_PlatformName),
    NEEDED(PJRT_Client_PlatformVersion),
    NEEDED(PJRT_Client_Devices),
    NEEDED(PJRT_Client_AddressableDevices),
    NEEDED(PJRT_Client_Compile),
    NEEDED(PJRT_Client_BufferFromHostBuffer),
    NEEDED(PJRT_DeviceDescription_Id),
    NEEDED(PJRT_DeviceDescription_Attributes),
    NEEDED(PJRT_DeviceDescription_Kind),
    NEEDED(PJRT_Device_GetDescription),
    NEEDED(PJRT_Executable_Destroy),
    NEEDED(PJRT_Executable_NumOutputs),
    NEEDED(PJRT_Executable_GetCostAnalysis),
    NEEDED(PJRT_Executable_Serialize),
    NEEDED(PJRT_LoadedExecutable_Destroy),
    NEEDED(PJRT_LoadedExecutable_GetExecutable),
    NEEDED(PJRT_LoadedExecutable_AddressableDevices),
    NEEDED(PJRT_LoadedExecutable_Execute),
    NEEDED(PJRT_Executable_DeserializeAndLoad),
    NEEDED(PJRT_Buffer_Destroy),
    NEEDED(PJRT_Buffer_IsDeleted),
    NEEDED(PJRT_Buffer_ToHostBuffer),
#undef NEEDED
};

static ts_status check_functions(const ts_pjrt *p, ts_error *err)
{
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
        void *f = NULL;
        if (needed[i].offset + sizeof f <= p->api->struct_size)
            memcpy(&f, (const char *)p->api + needed[i].offset, sizeof f);
        if (!f)
            return TS_ERROR(
                err, TS_UNIMPLEMENTED,
                "the plugin %s (PJRT %d.%d) has no %s, which Tessera needs; take a newer version "
                "of the plugin",
                p->path, p->major, p->minor, needed[i].name);
    }
    return TS_OK;
}

static ts_status check_version(ts_pjrt *p, ts_error *err)
{
    void *symbol = dlsym(p->library, "GetPjrtApi");
    PJRT_GetApi *get;
    if (!symbol)
        return TS_ERROR(err, TS_UNAVAILABLE,
                        "the library %s has no function GetPjrtApi, so it is not a PJRT plugin",
                        p->path);
    memcpy(&get, &symbol,
           sizeof get); /* C has no conversion from an object's address to a function's */
    p->api = get();
    if (!p->api)
        return TS_ERROR(err, TS_UNAVAILABLE, "the plugin %s gives no table of functions", p->path);
    p->major = p->api->pjrt_api_version.major_version;
    p->minor = p->api->pjrt_api_version.minor_version;
    if (p->major != PJRT_API_MAJOR)
        return TS_ERROR(err, TS_UNIMPLEMENTED,
                        "the plugin %s speaks version %d.%d of the PJRT C API and Tessera speaks "
                        "version %d; take another version of the plugin",
                        p->path, p->major, p->minor, PJRT_API_MAJOR);
    return check_functions(p, err);
}

static ts_status read_attributes(ts_pjrt *p, ts_error *err)
{
    PJRT_ARGS(PJRT_Plugin_Attributes_Args, a);
    if (!TS_PJRT_HAS(p, PJRT_Plugin_Attributes)) return TS_OK;
    TS_TRY(ts__pjrt_check(p, p->api->PJRT_Plugin_Attributes(&a), "reading the plugin's attributes",
                          err));
    const PJRT_NamedValue *v =
        ts__pjrt_value(a.attributes, a.num_attributes, "stablehlo_current_version");
    if (v && v->type == PJRT_NamedValue_kInt64List && v->value_size == 3)
        snprintf(p->stablehlo, sizeof p->stablehlo, "%lld.%lld.%lld",
                 (long long)v->int64_array_value[0], (long long)v->int64_array_value[1],
                 (long long)v->int64_array_value[2]);
    v = ts__pjrt_value(a.attributes, a.num_attributes, "tessera_graph");
    p->carries_graph = v && v->type == PJRT_NamedValue_kBool && v->bool_value;
    return TS_OK;
}

static ts_status initialize(ts_pjrt *p, ts_error *err)
{
    PJRT_ARGS(PJRT_Plugin_Initialize_Args, a);
    char *real = resolved(p->path);
    if (!real) return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "out of memory while loading a plugin");
    ts_status status = TS_OK;
    if (find_loaded(real) < 0) {
        if (n_loaded == MAX_LOADED)
            status = TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "one process loads %d plugins at most",
                              MAX_LOADED);
        if (status == TS_OK && TS_PJRT_HAS(p, PJRT_Plugin_Initialize))
            status = ts__pjrt_check(p, p->api->PJRT_Plugin_Initialize(&a),
                                    "initialising the plugin", err);
        if (status == TS_OK) {
            loaded[n_loaded].path = real;
            loaded[n_loaded++].library = p->library;
            real = NULL;
        }
    }
    ts_free(real);
    return status;
}

ts_status ts__pjrt_load(const char *path, ts_pjrt **out, ts_error *err)
{
    *out = NULL;
    ts_pjrt *p = ts_alloc_zero(sizeof *p);
    if (!p || !(p->path = ts_strdup(path))) {
        ts_free(p);
        return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "out of memory while loading a plugin");
    }
    ts_status status = open_library(p, err);
    if (status == TS_OK) status = check_version(p, err);
    if (status == TS_OK) status = initialize(p, err);
    if (status == TS_OK) status = read_attributes(p, err);
    if (status != TS_OK) {
        ts__pjrt_free(p);
        return status;
    }
    *out = p;
    return TS_OK;
}

void ts__pjrt_free(ts_pjrt *p)
{
    if (!p) return;
    ts_free(p->missing);
    ts_free(p->path);
    ts_free(p);
}

/* ---- errors, events, values ------------------------------------------------------------------ */

/* The beginning of a message: no stack trace, no more than fits a terminal. */
static size_t worth_keeping(const char *text, size_t n)
{
    static const char *const trace[] = {"\n*** Begin stack trace", "\n\t@ ", "\n    @ ",
                                        "\nStack trace", "\n*** Check failure stack"};
    if (n > MAX_MESSAGE) n = ts_utf8_valid_prefix(text, MAX_MESSAGE);
    for (size_t i = 0; i < sizeof trace / sizeof *trace; i++) {
        const char *at = memmem(text, n, trace[i], strlen(trace[i]));
        if (at) n = (size_t)(at - text);
    }
    while (n && ((unsigned char)text[n - 1] <= ' ')) n--;
    return n;
}

static ts_status code_of(const ts_pjrt *p, const PJRT_Error *e)
{
    PJRT_ARGS(PJRT_Error_GetCode_Args, a);
    a.error = e;
    PJRT_Error *failed = p->api->PJRT_Error_GetCode(&a);
    if (failed) {
        PJRT_ARGS(PJRT_Error_Destroy_Args, d);
        d.error = failed;
        p->api->PJRT_Error_Destroy(&d);
        return TS_UNKNOWN;
    }
    int code = (int)a.code; /* 16, unauthenticated, has no number of ours */
    if (code == PJRT_Error_Code_UNAUTHENTICATED) return TS_PERMISSION_DENIED;
    return code > TS_OK && code <= TS_DATA_LOSS ? (ts_status)code : TS_UNKNOWN;
}

ts_status ts__pjrt_check(const ts_pjrt *p, PJRT_Error *e, const char *what, ts_error *err)
{
    if (!e) return TS_OK;
    PJRT_ARGS(PJRT_Error_Message_Args, m);
    PJRT_ARGS(PJRT_Error_Destroy_Args, d);
    ts_status code = code_of(p, e);
    m.error = e;
    p->api->PJRT_Error_Message(&m);
    size_t n = m.message ? worth_keeping(m.message, m.message_size) : 0;
    TS_ERROR(err, code, "%s: %.*s%s", what, (int)n, n ? m.message : "",
             n ? "" : "the plugin does not say why");
    d.error = e;
    p->api->PJRT_Error_Destroy(&d);
    return code;
}

ts_status ts__pjrt_await(const ts_pjrt *p, PJRT_Event *event, const char *what, ts_error *err)
{
    if (!event) return TS_OK;
    PJRT_ARGS(PJRT_Event_Await_Args, a);
    PJRT_ARGS(PJRT_Event_Destroy_Args, d);
    a.event = d.event = event;
    ts_status status = ts__pjrt_check(p, p->api->PJRT_Event_Await(&a), what, err);
    ts_error second = {0}; /* the first is told */
    ts_status destroyed = ts__pjrt_check(p, p->api->PJRT_Event_Destroy(&d), what,
                                         status == TS_OK ? err : &second);
    return status != TS_OK ? status : destroyed;
}

const PJRT_NamedValue *ts__pjrt_value(const PJRT_NamedValue *v, size_t n, const char *name)
{
    size_t length = strlen(name);
    for (size_t i = 0; i < n; i++)
        if (v[i].name_size == length && memcmp(v[i].name, name, length) == 0) return &v[i];
    return NULL;
}

static double positive(const PJRT_NamedValue *v)
{
    return v && v->type == PJRT_NamedValue_kFloat && v->float_value > 0 ? v->float_value : 0;
}

/* Figures are a service of the plugin: failing to give them is no failure. */
ts_pjrt_figures ts__pjrt_figures(const ts_pjrt *p, PJRT_Executable *e)
{
    ts_pjrt_figures f = {0};
    ts_error ignored = {0};
    PJRT_ARGS(PJRT_Executable_GetCompiledMemoryStats_Args, m);
    PJRT_ARGS(PJRT_Executable_GetCostAnalysis_Args, c);
    m.executable = c.executable = e;
    if (TS_PJRT_HAS(p, PJRT_Executable_GetCompiledMemoryStats) &&
        ts__pjrt_check(p, p->api->PJRT_Executable_GetCompiledMemoryStats(&m), "memory", &ignored) ==
            TS_OK) {
        f.argument_bytes = m.argument_size_in_bytes;
        f.output_bytes = m.output_size_in_bytes;
        f.alias_bytes = m.alias_size_in_bytes;
        f.temp_bytes = m.temp_size_in_bytes;
        f.code_bytes = m.generated_code_size_in_bytes;
        f.peak_bytes = m.peak_memory_in_bytes;
    }
    if (ts__pjrt_check(p, p->api->PJRT_Executable_GetCostAnalysis(&c), "cost", &ignored) != TS_OK)
        return f;
    f.flops = positive(ts__pjrt_value(c.properties, c.num_properties, "flops"));
    f.bytes = positive(ts__pjrt_value(c.properties, c.num_properties, "bytes accessed"));
    return f;
}

void ts__pjrt_copy(char *to, size_t room, const char *text, size_t n)
{
    if (!to || !room) return;
    if (n > room - 1) n = ts_utf8_valid_prefix(text, room - 1);
    if (n) memcpy(to, text, n);
    to[n] = '\0';
}

/* ---- clients and devices --------------------------------------------------------------------- */

static ts_status create_client(const ts_pjrt *p, int devices, PJRT_Client **out, ts_error *err)
{
    PJRT_ARGS(PJRT_Client_Create_Args, a);
    PJRT_ARGS(PJRT_NamedValue, count);
    count.name = "cpu_device_count";
    count.name_size = strlen(count.name);
    count.type = PJRT_NamedValue_kInt64;
    count.int64_value = devices;
    count.value_size = 1;
    if (devices > 0) {
        a.create_options = &count;
        a.num_options = 1;
    }
    ts_status status = ts__pjrt_check(p, p->api->PJRT_Client_Create(&a),
                                      "the plugin cannot open its devices", err);
    if (status == TS_OK) *out = a.client;
    if (status != TS_OK && err && p->missing) {
        size_t n = strlen(err->msg);
        snprintf(err->msg + n, sizeof err->msg - n,
                 "; of NVIDIA's libraries these could not be loaded: %s", p->missing);
    }
    return status;
}

ts_status ts__pjrt_client_new(const ts_pjrt *p, int devices, PJRT_Client **out, ts_error *err)
{
    char platform[64];
    size_t n = 0;
    PJRT_Device *const *device;
    *out = NULL;
    const char *slash = strrchr(p->path, '/');
    bool is_cpu = p->carries_graph || strstr(slash ? slash : p->path, "cpu");
    TS_TRY(create_client(p, is_cpu ? devices : 0, out, err));
    if (is_cpu || devices <= 0) return TS_OK;
    /* The name did not tell, the platform does: only a cpu plugin can make as many devices as it is told. */
    ts_status status = ts__pjrt_platform(p, *out, platform, sizeof platform, NULL, 0, err);
    if (status == TS_OK) status = ts__pjrt_devices(p, *out, &device, &n, err);
    bool again = status == TS_OK && strcmp(platform, "cpu") == 0 && n < (size_t)devices;
    if (status == TS_OK && !again) return TS_OK;
    ts__pjrt_client_free(p, *out);
    *out = NULL;
    return status == TS_OK ? create_client(p, devices, out, err) : status;
}

void ts__pjrt_client_free(const ts_pjrt *p, PJRT_Client *c)
{
    if (!c) return;
    PJRT_ARGS(PJRT_Client_Destroy_Args, a);
    ts_error ignored = {0};
    a.client = c;
    ts_status status =
        ts__pjrt_check(p, p->api->PJRT_Client_Destroy(&a), "closing the plugin's client", &ignored);
    (void)status; /* there is nobody left to tell, and nothing to undo */
}

ts_status ts__pjrt_devices(const ts_pjrt *p, PJRT_Client *c, PJRT_Device *const **out, size_t *n,
                           ts_error *err)
{
    PJRT_ARGS(PJRT_Client_AddressableDevices_Args, a);
    *out = NULL;
    *n = 0;
    a.client = c;
    TS_TRY(
        ts__pjrt_check(p, p->api->PJRT_Client_AddressableDevices(&a), "listing the devices", err));
    *out = a.addressable_devices;
    *n = a.num_addressable_devices;
    return TS_OK;
}

ts_status ts__pjrt_describe(const ts_pjrt *p, PJRT_DeviceDescription *d, int *id, char *kind,
                            size_t n, ts_error *err)
{
    PJRT_ARGS(PJRT_DeviceDescription_Id_Args, i);
    PJRT_ARGS(PJRT_DeviceDescription_Kind_Args, k);
    i.device_description = k.device_description = d;
    TS_TRY(ts__pjrt_check(p, p->api->PJRT_DeviceDescription_Id(&i), "asking for a device's number",
                          err));
    TS_TRY(ts__pjrt_check(p, p->api->PJRT_DeviceDescription_Kind(&k), "asking for a device's kind",
                          err));
    if (id) *id = i.id;
    ts__pjrt_copy(kind, n, k.device_kind, k.device_kind_size);
    return TS_OK;
}

ts_status ts__pjrt_device_describe(const ts_pjrt *p, PJRT_Device *device, int *id, char *kind,
                                   size_t n, ts_error *err)
{
    PJRT_ARGS(PJRT_Device_GetDescription_Args, d);
    d.device = device;
    TS_TRY(ts__pjrt_check(p, p->api->PJRT_Device_GetDescription(&d), "describing a device", err));
    return ts__pjrt_describe(p, d.device_description, id, kind, n, err);
}

ts_status ts__pjrt_platform(const ts_pjrt *p, PJRT_Client *c, char *name, size_t n, char *version,
                            size_t n_version, ts_error *err)
{
    PJRT_ARGS(PJRT_Client_PlatformName_Args, a);
    PJRT_ARGS(PJRT_Client_PlatformVersion_Args, v);
    a.client = v.client = c;
    TS_TRY(ts__pjrt_check(p, p->api->PJRT_Client_PlatformName(&a), "asking for the platform", err));
    ts__pjrt_copy(name, n, a.platform_name, a.platform_name_size);
    TS_TRY(
        ts__pjrt_check(p, p->api->PJRT_Client_PlatformVersion(&v), "asking for its version", err));
    ts__pjrt_copy(version, n_version, v.platform_version, v.platform_version_size);
    return TS_OK;
}
