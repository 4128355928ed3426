/* device.c – the fake plugin's clients, their devices, and topologies that nobody has.
 *
 * Devices stand in a grid; hosts hold 2 × 2 of it. A topology lists its devices host by host, so that the index in
 * the list is not the id (in a grid wider than a host), as on a TPU. With FAKE_PJRT_ORDER=reversed a client's ids
 * are 100000 and up, and the addressable ones come last first.
 */
#include "fake/fake.h"

#include <stdio.h>
#include <stdlib.h>

static void describe(PJRT_DeviceDescription *d, int id, int host)
{
    d->id = id;
    d->host = host;
    const char *kind = getenv("FAKE_PJRT_KIND");
    snprintf(d->kind, sizeof d->kind, "%s", kind && *kind ? kind : "Fake device");
    snprintf(d->text, sizeof d->text, "FakeDevice(id=%d, host=%d)", id, host);
    bool nowhere = strcmp(d->kind, "nowhere") == 0;
    d->attribute[0] = (PJRT_NamedValue){.struct_size = PJRT_NamedValue_SIZE,
                                        .name = nowhere ? "colour" : "coords",
                                        .name_size = 6,
                                        .type = PJRT_NamedValue_kInt64List,
                                        .int64_array_value = d->coords,
                                        .value_size = 3};
    d->attribute[1] = (PJRT_NamedValue){.struct_size = PJRT_NamedValue_SIZE,
                                        .name = "core_on_chip",
                                        .name_size = 12,
                                        .type = PJRT_NamedValue_kInt64,
                                        .int64_value = 0,
                                        .value_size = 1};
}

static bool reversed(void)
{
    const char *order = getenv("FAKE_PJRT_ORDER");
    return order && strcmp(order, "reversed") == 0;
}

static int first_id(void)
{
    return reversed() ? 100000 : 0;
}

/* ---- topologies --------------------------------------------------------------------------------- */

static void topology_free(PJRT_TopologyDescription *t)
{
    if (!t) return;
    ts_free(t->description);
    ts_free(t->list);
    ts_free(t);
}

PJRT_Error *fake_topology_make(const char *name, const int64_t grid[3],
                               PJRT_TopologyDescription **out)
{
    int64_t n = grid[0] * grid[1] * grid[2], hosts_y = (grid[1] + 1) / 2;
    int64_t hosts = (grid[0] + 1) / 2 * hosts_y * grid[2];
    PJRT_TopologyDescription *t = ts_alloc_zero(sizeof *t);
    TS_ASSERT(t);
    t->description = ts_alloc_zero((size_t)n * sizeof *t->description);
    t->list = ts_alloc_zero((size_t)n * sizeof *t->list);
    TS_ASSERT(t->description && t->list);
    snprintf(t->name, sizeof t->name, "%s", name);
    for (int64_t i = 0; i < n; i++) {
        PJRT_DeviceDescription *d = &t->description[i];
        int64_t x = i / grid[1] % grid[0], y = i % grid[1], z = i / (grid[0] * grid[1]);
        d->coords[0] = x, d->coords[1] = y, d->coords[2] = z;
        describe(d, first_id() + (int)i, (int)(z * (hosts / grid[2]) + x / 2 * hosts_y + y / 2));
    }
    for (int64_t h = 0; h < hosts; h++)
        for (int64_t i = 0; i < n; i++)
            if (t->description[i].host == h) t->list[t->n++] = &t->description[i];
    t->attribute[0] = (PJRT_NamedValue){.struct_size = PJRT_NamedValue_SIZE,
                                        .name = "bounds",
                                        .name_size = 6,
                                        .type = PJRT_NamedValue_kInt64List,
                                        .int64_array_value = t->description[n - 1].coords,
                                        .value_size = 3};
    *out = t;
    return NULL;
}

PJRT_Error *fake_TopologyDescription_Create(PJRT_TopologyDescription_Create_Args *a)
{
    char name[80];
    int64_t grid[3] = {1, 1, 1};
    snprintf(name, sizeof name, "%.*s", (int)a->topology_name_size, a->topology_name);
    const char *at = strchr(name, ':');
    for (int i = 0; at && i < 3; i++) {
        char *end;
        grid[i] = strtol(at + 1, &end, 10);
        if (end == at + 1 || grid[i] < 1 || grid[i] > 64)
            at = NULL;
        else if (!*end)
            break;
        else
            at = *end == 'x' ? end : NULL;
    }
    int64_t n = grid[0] * grid[1] * grid[2] * 2;
    if (!at || n > FAKE_MAX_DEVICES)
        return fake_error(PJRT_Error_Code_INVALID_ARGUMENT, "unknown topology '%s'", name);
    if (strncmp(name, "tpu7x:", 6) == 0) grid[0] *= 2; /* two devices a chip */
    int64_t odd = fake_number("FAKE_PJRT_TOPOLOGY", 0);
    if (odd > 0 && odd <= FAKE_MAX_DEVICES) grid[0] = odd, grid[1] = grid[2] = 1;
    PJRT_Error *e = fake_topology_make(name, grid, &a->topology);
    if (!e) fake_born("topology");
    return e;
}

PJRT_Error *fake_TopologyDescription_Destroy(PJRT_TopologyDescription_Destroy_Args *a)
{
    if (a->topology->of_client)
        return fake_error(PJRT_Error_Code_INVALID_ARGUMENT, "the topology belongs to its client");
    fake_died("topology");
    topology_free(a->topology);
    return NULL;
}

static void platform_name(const char **text, size_t *n)
{
    const char *name = getenv("FAKE_PJRT_PLATFORM");
    *text = name && *name ? name : "fake";
    *n = strlen(*text);
}

static void platform_version(const char **text, size_t *n)
{
    const char *version = getenv("FAKE_PJRT_VERSION");
    *text = version && *version ? version : "fake plugin 1.0";
    *n = strlen(*text);
}

PJRT_Error *fake_TopologyDescription_PlatformName(PJRT_TopologyDescription_PlatformName_Args *a)
{
    platform_name(&a->platform_name, &a->platform_name_size);
    return NULL;
}

PJRT_Error *fake_TopologyDescription_PlatformVersion(
    PJRT_TopologyDescription_PlatformVersion_Args *a)
{
    platform_version(&a->platform_version, &a->platform_version_size);
    return NULL;
}

PJRT_Error *fake_TopologyDescription_GetDeviceDescriptions(
    PJRT_TopologyDescription_GetDeviceDescriptions_Args *a)
{
    a->descriptions = a->topology->list;
    a->num_descriptions = (size_t)a->topology->n;
    return NULL;
}

PJRT_Error *fake_TopologyDescription_Attributes(PJRT_TopologyDescription_Attributes_Args *a)
{
    a->attributes = a->topology->attribute;
    a->num_attributes = 1;
    return NULL;
}

/* ---- clients ------------------------------------------------------------------------------------ */

PJRT_Error *fake_engine_open(int devices, ts_engine **out)
{
    ts_error err = {0};
    ts_engine_options o = {.struct_size = sizeof o,
                           .name = "cpu",
                           .devices = devices,
                           .threads = (int)fake_number("FAKE_PJRT_THREADS", 1)};
    return ts_engine_open(&o, out, &err) == TS_OK ? NULL : fake_status_error(&err);
}

/* How many devices: the environment, the option, one. Other options are refused, as real plugins do. */
static PJRT_Error *device_count(const PJRT_Client_Create_Args *a, int64_t *n)
{
    *n = 1;
    for (size_t i = 0; i < a->num_options; i++) {
        const PJRT_NamedValue *v = &a->create_options[i];
        if (v->name_size != 16 || memcmp(v->name, "cpu_device_count", 16) != 0)
            return fake_error(PJRT_Error_Code_INVALID_ARGUMENT, "unexpected option name '%.*s'",
                              (int)v->name_size, v->name);
        if (v->type != PJRT_NamedValue_kInt64 || v->value_size != 1)
            return fake_error(PJRT_Error_Code_INVALID_ARGUMENT, "cpu_device_count is no int64");
        *n = v->int64_value;
    }
    *n = fake_number("FAKE_PJRT_DEVICES", *n);
    if (*n < 0 || *n > FAKE_MAX_DEVICES)
        return fake_error(PJRT_Error_Code_INVALID_ARGUMENT, "%lld devices", (long long)*n);
    return NULL;
}

static void client_free(PJRT_Client *c)
{
    ts_engine_close(c->engine);
    ts_free(c->device);
    ts_free(c->all);
    ts_free(c->addressable);
    topology_free(c->topology);
    ts_free(c);
}

PJRT_Error *fake_Client_Create(PJRT_Client_Create_Args *a)
{
    int64_t n, grid[3] = {1, 1, 1};
    PJRT_Error *e = device_count(a, &n);
    if (e) return e;
    PJRT_Client *c = ts_alloc_zero(sizeof *c);
    TS_ASSERT(c);
    c->n = (int)n;
    c->device = ts_alloc_zero((size_t)n * sizeof *c->device);
    c->all = ts_alloc_zero((size_t)n * sizeof *c->all);
    c->addressable = ts_alloc_zero((size_t)n * sizeof *c->addressable);
    TS_ASSERT(c->device && c->all && c->addressable);
    grid[0] = n > 0 ? n : 1;
    e = fake_topology_make("fake client", grid, &c->topology);
    if (!e) e = fake_engine_open(1, &c->engine);
    if (e) {
        client_free(c);
        return e;
    }
    c->topology->of_client = true;
    for (int i = 0; i < c->n; i++) {
        PJRT_Device *d = &c->device[i];
        describe(&d->description, first_id() + i, 0);
        d->description.coords[0] = i;
        d->client = c;
        d->local = i;
        c->all[i] = d;
        c->addressable[reversed() ? c->n - 1 - i : i] = d;
    }
    fake_born("client");
    a->client = c;
    return NULL;
}

/* With buffers or executables alive, a real plugin's end is undefined: here it is refused, and the client leaks. */
PJRT_Error *fake_Client_Destroy(PJRT_Client_Destroy_Args *a)
{
    pthread_mutex_lock(&fake_lock);
    int64_t live = a->client->live;
    pthread_mutex_unlock(&fake_lock);
    if (live)
        return fake_error(PJRT_Error_Code_FAILED_PRECONDITION,
                          "the client still has %lld buffers and executables", (long long)live);
    fake_queue_stop(a->client);
    fake_died("client");
    client_free(a->client);
    return NULL;
}

PJRT_Error *fake_Client_PlatformName(PJRT_Client_PlatformName_Args *a)
{
    platform_name(&a->platform_name, &a->platform_name_size);
    return NULL;
}

PJRT_Error *fake_Client_PlatformVersion(PJRT_Client_PlatformVersion_Args *a)
{
    platform_version(&a->platform_version, &a->platform_version_size);
    return NULL;
}

PJRT_Error *fake_Client_ProcessIndex(PJRT_Client_ProcessIndex_Args *a)
{
    a->process_index = 0;
    return NULL;
}

PJRT_Error *fake_Client_Devices(PJRT_Client_Devices_Args *a)
{
    a->devices = a->client->all;
    a->num_devices = (size_t)a->client->n;
    return NULL;
}

PJRT_Error *fake_Client_AddressableDevices(PJRT_Client_AddressableDevices_Args *a)
{
    a->addressable_devices = a->client->addressable;
    a->num_addressable_devices = (size_t)a->client->n;
    return NULL;
}

PJRT_Error *fake_Client_TopologyDescription(PJRT_Client_TopologyDescription_Args *a)
{
    a->topology = a->client->topology;
    return NULL;
}

/* ---- devices ------------------------------------------------------------------------------------ */

PJRT_Device *fake_device_by_id(PJRT_Client *c, int id)
{
    for (int i = 0; i < c->n; i++)
        if (c->device[i].description.id == id) return &c->device[i];
    return NULL;
}

PJRT_Error *fake_Device_GetDescription(PJRT_Device_GetDescription_Args *a)
{
    a->device_description = &a->device->description;
    return NULL;
}

PJRT_Error *fake_Device_LocalHardwareId(PJRT_Device_LocalHardwareId_Args *a)
{
    a->local_hardware_id = a->device->local;
    return NULL;
}

PJRT_Error *fake_Device_MemoryStats(PJRT_Device_MemoryStats_Args *a)
{
    pthread_mutex_lock(&fake_lock);
    a->bytes_in_use = (int64_t)a->device->client->bytes;
    a->peak_bytes_in_use = (int64_t)a->device->client->peak;
    pthread_mutex_unlock(&fake_lock);
    a->peak_bytes_in_use_is_set = true;
    a->bytes_limit = (int64_t)1 << 30;
    a->bytes_limit_is_set = true;
    return NULL;
}

PJRT_Error *fake_DeviceDescription_Id(PJRT_DeviceDescription_Id_Args *a)
{
    a->id = a->device_description->id;
    return NULL;
}

PJRT_Error *fake_DeviceDescription_ProcessIndex(PJRT_DeviceDescription_ProcessIndex_Args *a)
{
    a->process_index = a->device_description->host;
    return NULL;
}

PJRT_Error *fake_DeviceDescription_Attributes(PJRT_DeviceDescription_Attributes_Args *a)
{
    a->attributes = a->device_description->attribute;
    a->num_attributes = 2;
    return NULL;
}

PJRT_Error *fake_DeviceDescription_Kind(PJRT_DeviceDescription_Kind_Args *a)
{
    a->device_kind = a->device_description->kind;
    a->device_kind_size = strlen(a->device_kind);
    return NULL;
}

PJRT_Error *fake_DeviceDescription_DebugString(PJRT_DeviceDescription_DebugString_Args *a)
{
    a->debug_string = a->device_description->text;
    a->debug_string_size = strlen(a->debug_string);
    return NULL;
}
