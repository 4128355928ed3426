/* xla/profile.c – a plugin's own profile of what runs between two calls, as the XSpace protobuf that it makes.
 *
 * Goes through the profiler extension (profiler_abi.h); a plugin without it is UNIMPLEMENTED. One session at a time.
 * The bytes are written as they come: what reads them is TensorBoard or XProf.
 */
#include "base/file.h"
#include "xla/run.h"

static const PLUGIN_Profiler_Api *profiler_of(const ts_xla *e)
{
    for (const PJRT_Extension_Base *x = e->pjrt->api->extension_start; x; x = x->next)
        if (x->type == PJRT_Extension_Type_Profiler) {
            const PLUGIN_Profiler_Api *api =
                ((const PJRT_Profiler_Extension *)(const void *)x)->profiler_api;
            return api && api->struct_size >= sizeof *api ? api : NULL;
        }
    return NULL;
}

static ts_status check(const PLUGIN_Profiler_Api *api, PLUGIN_Profiler_Error *e, const char *what,
                       ts_error *err)
{
    if (!e) return TS_OK;
    PLUGIN_Profiler_Error_GetCode_Args c = {PLUGIN_Profiler_Error_GetCode_Args_SIZE, NULL, e, 0};
    PLUGIN_Profiler_Error_Message_Args m = {PLUGIN_Profiler_Error_Message_Args_SIZE, NULL, e, NULL,
                                            0};
    PLUGIN_Profiler_Error_Destroy_Args d = {PLUGIN_Profiler_Error_Destroy_Args_SIZE, NULL, e};
    PLUGIN_Profiler_Error *failed = api->error_get_code(&c);
    api->error_message(&m);
    ts_status code =
        !failed && c.code > TS_OK && c.code <= TS_DATA_LOSS ? (ts_status)c.code : TS_UNKNOWN;
    int n =
        m.message_size > 1800 ? (int)ts_utf8_valid_prefix(m.message, 1800) : (int)m.message_size;
    TS_ERROR(err, code, "%s: %.*s", what, n, m.message ? m.message : "");
    api->error_destroy(&d);
    if (failed) {
        d.error = failed;
        api->error_destroy(&d);
    }
    return code;
}

void ts__xla_trace_drop(ts_xla *e)
{
    if (!e->profiler) return;
    const PLUGIN_Profiler_Api *api = profiler_of(e);
    PLUGIN_Profiler_Destroy_Args d = {PLUGIN_Profiler_Destroy_Args_SIZE, e->profiler};
    ts_status status = check(api, api->destroy(&d), "ending the profile", NULL);
    (void)status; /* the session is over for us either way */
    e->profiler = NULL;
}

ts_status ts__xla_trace_begin(ts_engine *engine, ts_error *err)
{
    ts_xla *e = (ts_xla *)engine;
    const PLUGIN_Profiler_Api *api = profiler_of(e);
    if (!api)
        return TS_ERROR(err, TS_UNIMPLEMENTED,
                        "the plugin %s has no profiler extension", e->pjrt->path);
    if (e->profiler)
        return TS_ERROR(err, TS_FAILED_PRECONDITION, "a profile is being recorded already");
    PLUGIN_Profiler_Create_Args c = {PLUGIN_Profiler_Create_Args_SIZE, NULL, 0, NULL};
    c.options = "";
    TS_TRY(check(api, api->create(&c), "making a profile", err));
    e->profiler = c.profiler;
    PLUGIN_Profiler_Start_Args s = {PLUGIN_Profiler_Start_Args_SIZE, e->profiler};
    ts_status status = check(api, api->start(&s), "starting the profile", err);
    if (status != TS_OK) ts__xla_trace_drop(e);
    return status;
}

/* The session's bytes: the plugin's own, or *owned where it wants room from us. */
static ts_status collect(const ts_xla *e, const PLUGIN_Profiler_Api *api, const uint8_t **bytes,
                         size_t *n, uint8_t **owned, ts_error *err)
{
    PLUGIN_Profiler_CollectData_Args a = {PLUGIN_Profiler_CollectData_Args_SIZE, e->profiler, NULL,
                                          0};
    TS_TRY(check(api, api->collect_data(&a), "collecting the profile", err));
    if (!a.buffer && a.buffer_size_in_bytes) {
        a.buffer = *owned = ts_alloc(a.buffer_size_in_bytes);
        if (!*owned)
            return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "out of memory: a profile of %zu bytes",
                            a.buffer_size_in_bytes);
        TS_TRY(check(api, api->collect_data(&a), "collecting the profile", err));
    }
    *bytes = a.buffer;
    *n = a.buffer_size_in_bytes;
    return TS_OK;
}

static ts_status write_file(const char *path, const uint8_t *bytes, size_t n, ts_error *err)
{
    ts_writer *w;
    TS_TRY(ts_writer_open(path, false, &w, err));
    ts_status status = n ? ts_writer_write(w, bytes, n, err) : TS_OK;
    if (status == TS_OK) return ts_writer_close(w, false, err);
    ts_writer_abandon(w);
    return status;
}

ts_status ts__xla_trace_end(ts_engine *engine, const char *path, ts_error *err)
{
    ts_xla *e = (ts_xla *)engine;
    const PLUGIN_Profiler_Api *api = profiler_of(e);
    const uint8_t *bytes = NULL;
    uint8_t *owned = NULL;
    size_t n = 0;
    if (!e->profiler) return TS_ERROR(err, TS_FAILED_PRECONDITION, "no profile is being recorded");
    PLUGIN_Profiler_Stop_Args s = {PLUGIN_Profiler_Stop_Args_SIZE, e->profiler};
    ts_status status = check(api, api->stop(&s), "stopping the profile", err);
    if (status == TS_OK && path) status = collect(e, api, &bytes, &n, &owned, err);
    if (status == TS_OK && path) status = write_file(path, bytes, n, err);
    ts_free(owned);
    ts__xla_trace_drop(e);
    return status;
}
