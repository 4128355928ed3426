/* profiler.c – the fake plugin's profiler: sessions in the right order, and a few bytes that stand for a profile.
 *
 * The bytes are a well-formed XSpace protobuf with one hostname, "fake". Faults by the names PLUGIN_Profiler_Create,
 * _Start, _Stop, _CollectData, _Destroy.
 */
#include "fake/fake.h"

#include "xla/profiler_abi.h"

enum { CREATED, STARTED, STOPPED };

struct PLUGIN_Profiler {
    int state;
};
struct PLUGIN_Profiler_Error {
    PJRT_Error *error;
};

static uint8_t profile[] = {0x22, 4, 'f', 'a', 'k', 'e'}; /* XSpace: 4 = hostnames */

static PLUGIN_Profiler_Error *wrap(PJRT_Error *e)
{
    if (!e) return NULL;
    PLUGIN_Profiler_Error *p = ts_alloc(sizeof *p);
    TS_ASSERT(p);
    p->error = e;
    return p;
}

static PLUGIN_Profiler_Error *out_of_order(const char *what)
{
    return wrap(fake_error(PJRT_Error_Code_FAILED_PRECONDITION, "%s out of order", what));
}

static void error_destroy(PLUGIN_Profiler_Error_Destroy_Args *a)
{
    if (!a->error) return;
    ts_free(a->error->error);
    ts_free(a->error);
    fake_died("error");
}

static void error_message(PLUGIN_Profiler_Error_Message_Args *a)
{
    a->message = a->error->error->message;
    a->message_size = strlen(a->message);
}

static PLUGIN_Profiler_Error *error_get_code(PLUGIN_Profiler_Error_GetCode_Args *a)
{
    a->code = a->error->error->code;
    return NULL;
}

static PLUGIN_Profiler_Error *create(PLUGIN_Profiler_Create_Args *a)
{
    PJRT_Error *e = fake_enter("PLUGIN_Profiler_Create");
    if (e) return wrap(e);
    a->profiler = ts_alloc_zero(sizeof *a->profiler);
    TS_ASSERT(a->profiler);
    fake_born("profiler");
    return NULL;
}

static PLUGIN_Profiler_Error *destroy(PLUGIN_Profiler_Destroy_Args *a)
{
    PJRT_Error *e = fake_enter("PLUGIN_Profiler_Destroy");
    ts_free(a->profiler);
    fake_died("profiler");
    return wrap(e);
}

static PLUGIN_Profiler_Error *start(PLUGIN_Profiler_Start_Args *a)
{
    PJRT_Error *e = fake_enter("PLUGIN_Profiler_Start");
    if (e) return wrap(e);
    if (a->profiler->state != CREATED) return out_of_order("start");
    a->profiler->state = STARTED;
    return NULL;
}

static PLUGIN_Profiler_Error *stop(PLUGIN_Profiler_Stop_Args *a)
{
    PJRT_Error *e = fake_enter("PLUGIN_Profiler_Stop");
    if (e) return wrap(e);
    if (a->profiler->state != STARTED) return out_of_order("stop");
    a->profiler->state = STOPPED;
    return NULL;
}

/* The plugin keeps the bytes; a caller with room of its own gets a copy. */
static PLUGIN_Profiler_Error *collect_data(PLUGIN_Profiler_CollectData_Args *a)
{
    PJRT_Error *e = fake_enter("PLUGIN_Profiler_CollectData");
    if (e) return wrap(e);
    if (a->profiler->state != STOPPED) return out_of_order("collect");
    if (a->buffer)
        memcpy(a->buffer, profile, sizeof profile);
    else
        a->buffer = profile;
    a->buffer_size_in_bytes = sizeof profile;
    return NULL;
}

static PLUGIN_Profiler_Api api = {
    .struct_size = sizeof api,
    .error_destroy = error_destroy,
    .error_message = error_message,
    .error_get_code = error_get_code,
    .create = create,
    .destroy = destroy,
    .start = start,
    .stop = stop,
    .collect_data = collect_data,
};

PJRT_Profiler_Extension fake_profiler_extension = {
    .base = {.struct_size = sizeof fake_profiler_extension, .type = PJRT_Extension_Type_Profiler},
    .profiler_api = &api,
};
