/* api.c – the table of the fake plugin, and its one symbol.
 *
 * Every function stands behind a wrapper that checks the argument struct's size, as real plugins do, and lets the
 * environment's faults happen (fake.h). What destroys does so even where it is told to fail, so that a test that
 * counts objects sees what the client forgot and not what the fault kept.
 */
#include "fake/fake.h"

#include <stdio.h>
#include <stdlib.h>

#include "xla/profiler_abi.h"

extern PJRT_Profiler_Extension fake_profiler_extension;
__attribute__((visibility("default"))) const PJRT_Api *GetPjrtApi(void);

/* ---- wrappers ----------------------------------------------------------------------------------- */

static bool destroys(const char *name)
{
    size_t n = strlen(name);
    return n > 8 && strcmp(name + n - 8, "_Destroy") == 0;
}

static PJRT_Error *check_size(const char *name, size_t found, size_t wanted)
{
    if (found >= wanted) return NULL;
    return fake_error(PJRT_Error_Code_INVALID_ARGUMENT,
                      "%s: unexpected struct_size %zu, it has %zu", name, found, wanted);
}

#define FUNCTION(name)                                                                             \
    static PJRT_Error *enter_##name(PJRT_##name##_Args *a)                                         \
    {                                                                                              \
        PJRT_Error *e = fake_enter("PJRT_" #name);                                                 \
        if (!e) e = check_size("PJRT_" #name, a->struct_size, (size_t)PJRT_##name##_Args_SIZE);    \
        if (e && !destroys("PJRT_" #name)) return e;                                               \
        PJRT_Error *f = fake_##name(a);                                                            \
        return e ? e : f;                                                                          \
    }
#include "fake/fake_functions.def"
#undef FUNCTION

static void error_destroy(PJRT_Error_Destroy_Args *a)
{
    if (!a->error) return;
    fake_died("error");
    ts_free(a->error);
}

static void error_message(PJRT_Error_Message_Args *a)
{
    a->message = a->error->message;
    a->message_size = strlen(a->error->message);
}

/* ---- about the plugin --------------------------------------------------------------------------- */

PJRT_Error *fake_Plugin_Initialize(PJRT_Plugin_Initialize_Args *a)
{
    (void)a;
    return NULL;
}

PJRT_Error *fake_Plugin_Attributes(PJRT_Plugin_Attributes_Args *a)
{
    static int64_t version[3];
    static PJRT_NamedValue value[3];
    const char *stablehlo = getenv("FAKE_PJRT_STABLEHLO");
    size_t n = 0;
    int v[3] = {1, 20, 0};
    if (stablehlo && *stablehlo) sscanf(stablehlo, "%d.%d.%d", &v[0], &v[1], &v[2]);
    for (int i = 0; i < 3; i++) version[i] = v[i];
    value[n++] = (PJRT_NamedValue){.struct_size = PJRT_NamedValue_SIZE,
                                   .name = "xla_version",
                                   .name_size = 11,
                                   .type = PJRT_NamedValue_kInt64,
                                   .int64_value = 2,
                                   .value_size = 1};
    if (!stablehlo || strcmp(stablehlo, "none") != 0)
        value[n++] = (PJRT_NamedValue){.struct_size = PJRT_NamedValue_SIZE,
                                       .name = "stablehlo_current_version",
                                       .name_size = 25,
                                       .type = PJRT_NamedValue_kInt64List,
                                       .int64_array_value = version,
                                       .value_size = 3};
    if (!fake_number("FAKE_PJRT_NO_GRAPH", 0))
        value[n++] = (PJRT_NamedValue){.struct_size = PJRT_NamedValue_SIZE,
                                       .name = "tessera_graph",
                                       .name_size = 13,
                                       .type = PJRT_NamedValue_kBool,
                                       .bool_value = true,
                                       .value_size = 1};
    a->attributes = value;
    a->num_attributes = n;
    return NULL;
}

static void set_version(PJRT_Api *api, const char *text)
{
    int major = PJRT_API_MAJOR, minor = PJRT_API_MINOR;
    if (text && *text) sscanf(text, "%d.%d", &major, &minor);
    api->pjrt_api_version = (PJRT_Api_Version){
        .struct_size = PJRT_Api_Version_SIZE, .major_version = major, .minor_version = minor};
}

const PJRT_Api *GetPjrtApi(void)
{
    static PJRT_Api api;
    const char *version = getenv("FAKE_PJRT_API");
    PJRT_Error *ignored = fake_enter("GetPjrtApi"); /* it has no way to say so */
    if (ignored) error_destroy(&(PJRT_Error_Destroy_Args){.error = ignored});
    if (version && strcmp(version, "none") == 0) return NULL;
    memset(&api, 0, sizeof api);
    api.struct_size = (size_t)fake_number("FAKE_PJRT_SIZE", (int64_t)sizeof api);
    set_version(&api, version);
    fake_test_extension.base.next = NULL;
    if (!fake_number("FAKE_PJRT_NO_PROFILER", 0)) {
        fake_profiler_extension.base.next = NULL;
        fake_test_extension.base.next = &fake_profiler_extension.base;
    }
    api.extension_start = &fake_test_extension.base;
    if (!fake_listed("FAKE_PJRT_MISSING", "PJRT_Error_Destroy"))
        api.PJRT_Error_Destroy = error_destroy;
    if (!fake_listed("FAKE_PJRT_MISSING", "PJRT_Error_Message"))
        api.PJRT_Error_Message = error_message;
#define FUNCTION(name)                                                                             \
    if (!fake_listed("FAKE_PJRT_MISSING", "PJRT_" #name)) api.PJRT_##name = enter_##name;
#include "fake/fake_functions.def"
#undef FUNCTION
    if (api.struct_size < sizeof api) /* what an old table does not have is not there by accident */
        memset((char *)&api + api.struct_size, 0, sizeof api - api.struct_size);
    return &api;
}
