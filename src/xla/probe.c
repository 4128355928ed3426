/* xla/probe.c – is a plugin usable? It is loaded, and its devices counted, in a child process that may come to any end.
 *
 * The child writes what it has found after each stage, so that of a plugin which dies while it opens its devices the
 * versions are still known. Whatever happens, the answer is one sentence. A TPU plugin on a
 * machine without TPU devices is told not to ask the cloud's metadata server, which would take it minutes.
 * Not here: where plugins are (plugin.c).
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "xla/child.h"
#include "xla/devices.h"
#include "xla/pjrt.h"
#include "xla/plugin.h"

typedef struct probe {
    const char *path;
    bool with_client;
    int devices;
} probe;

/* What crosses the pipe: both ends are one program. */
typedef struct finding {
    ts_plugin_info info;
} finding;

static const double default_timeout = 60;

/* ---- in the child ---------------------------------------------------------------------------- */

static ts_status look_at_devices(const ts_pjrt *p, const probe *w, ts_plugin_info *i, ts_error *err)
{
    PJRT_Client *client;
    PJRT_Device *const *device;
    size_t n;
    ts_status status = ts__pjrt_client_new(p, w->devices, &client, err);
    if (status == TS_NOT_FOUND || status == TS_FAILED_PRECONDITION) {
        /* How libtpu and CUDA say that there is no such device. */
        ts__error_context(err, "no device");
        return err->code = TS_UNAVAILABLE;
    }
    if (status != TS_OK) return status;
    status = ts__pjrt_platform(p, client, i->platform, sizeof i->platform, i->platform_version,
                               sizeof i->platform_version, err);
    if (status == TS_OK) status = ts__pjrt_devices(p, client, &device, &n, err);
    if (status == TS_OK) {
        i->devices = (int)n;
        if (n == 0)
            status = TS_ERROR(err, TS_UNAVAILABLE,
                              "no device: the plugin opened, and has none to offer");
        else
            status = ts__pjrt_device_describe(p, device[0], NULL, i->device_kind,
                                              sizeof i->device_kind, err);
    }
    ts__pjrt_client_free(p, client);
    return status;
}

static void try_it(void *context, int fd)
{
    const probe *w = context;
    finding f = {0};
    ts_error err = {0};
    ts_pjrt *p = NULL;
    ts_plugin_info *i = &f.info;
    i->status = ts__pjrt_load(w->path, &p, &err);
    if (i->status == TS_OK) {
        i->api_major = p->major;
        i->api_minor = p->minor;
        snprintf(i->stablehlo, sizeof i->stablehlo, "%s", p->stablehlo);
        (void)ts__child_send(fd, &f, sizeof f);
        if (w->with_client) i->status = look_at_devices(p, w, i, &err);
    }
    if (i->status != TS_OK && !strstr(err.msg, w->path))
        ts__error_context(&err, "the plugin %s", w->path);
    snprintf(i->problem, sizeof i->problem, "%.*s", (int)sizeof i->problem - 1, err.msg);
    (void)ts__child_send(fd, &f, sizeof f);
    ts__pjrt_free(p);
}

/* ---- in the parent --------------------------------------------------------------------------- */

static double time_limit(void)
{
    const char *text = getenv("TESSERA_PLUGIN_TIMEOUT");
    char *end;
    if (!text || !*text) return default_timeout;
    double seconds = strtod(text, &end);
    return *end == '\0' && seconds > 0 && seconds < 1e6 ? seconds : default_timeout;
}

/* Of a trial: where the plugin may leave files, and what libtpu needs on a machine without a TPU. There is no type of
 * accelerator on purpose: with one libtpu looks for the whole slice and not for a device. */
typedef struct surroundings {
    char folder[4200]; /* removed behind it; "": none could be made */
    char tmpdir[4300];
    const char *env[TS_LIBTPU_ALONE + 1];
    int n;
} surroundings;

static void prepare(const char *path, surroundings *s)
{
    char file[128];
    const char *slash = strrchr(path, '/');
    s->n = 0;
    s->folder[0] = '\0';
    if (!strstr(slash ? slash : path, "tpu")) return;
    const char *device = ts__devices_find("", file, sizeof file);
    if (!device || strcmp(device, "tpu") != 0)
        for (; s->n < TS_LIBTPU_ALONE; s->n++) s->env[s->n] = ts_libtpu_alone[s->n];
    /* libtpu logs to files whatever it is told. */
    if (ts__child_folder(NULL, "plugin", s->folder, sizeof s->folder, NULL) != TS_OK) {
        s->folder[0] = '\0';
        return;
    }
    snprintf(s->tmpdir, sizeof s->tmpdir, "TMPDIR=%s", s->folder);
    s->env[s->n++] = s->tmpdir;
}

ts_status ts__plugin_probe(const char *name, const char *path, bool with_client, int devices,
                           ts_plugin_info *out, ts_error *err)
{
    probe w = {path, with_client, devices};
    surroundings around;
    ts_child_result r;
    ts_error own = {0};
    char what[4200];
    snprintf(what, sizeof what, "the plugin %s, tried in a process of its own,", path);
    prepare(path, &around);
    ts_status status =
        ts__child_run(what, time_limit(), around.env, around.n, try_it, &w, &r, &own);
    if (around.folder[0]) (void)ts_remove_tree(around.folder, NULL);
    *out = (ts_plugin_info){0};
    size_t n = r.bytes.length / sizeof(finding);
    if (n) *out = ((const finding *)(const void *)r.bytes.data)[n - 1].info;
    if (status == TS_OK && n)
        status = out->status;
    else if (status == TS_OK)
        status = TS_ERROR(&own, TS_UNAVAILABLE, "%s ended without an answer", what);
    if (own.code != TS_OK)
        snprintf(out->problem, sizeof out->problem, "%.*s", (int)sizeof out->problem - 1, own.msg);
    ts__child_result_free(&r);
    out->status = status;
    snprintf(out->name, sizeof out->name, "%s", name ? name : "");
    snprintf(out->path, sizeof out->path, "%s", path);
    if (status != TS_OK) return TS_ERROR(err, status, "%s", out->problem);
    return TS_OK;
}
