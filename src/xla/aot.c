/* xla/aot.c – the parent's half of ts__aot_compile: the folder for XLA's dump, the child, the report, the file.
 *
 * Nothing is left behind by whatever end: the dump's folder is removed unless it was asked for, and the file appears
 * whole or not at all.
 * Not here: the plugin (aot_child.c), the dump (aot_dump.c), what is compiled (train/compile.c).
 */
#include "xla/aot.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "xla/aot_internal.h"
#include "xla/child.h"
#include "xla/devices.h"

static const double hour = 3600;

/* ---- the folder of the dump ------------------------------------------------------------------ */

/* Beside its last place where that is asked for, so that files can be moved there. */
static ts_status make_folder(const ts_aot_job *job, char folder[4200], ts_error *err)
{
    const char *base = job->dump_to && *job->dump_to ? job->dump_to : NULL;
    if (base) TS_TRY(ts_make_folders(base, err));
    return ts__child_folder(base, "compile", folder, 4200, err);
}

/* Every file of the dump to the folder that was asked for; older ones of the same name are replaced. */
static ts_status keep_dump(const char *folder, const char *to, ts_error *err)
{
    char **names;
    size_t n;
    TS_TRY(ts_list_folder(folder, &names, &n, err));
    ts_status status = TS_OK;
    for (size_t i = 0; i < n && status == TS_OK; i++) {
        if (strncmp(names[i], "tpu_driver.", 11) == 0) continue; /* libtpu's log */
        char *from = ts_path_join(folder, names[i]), *path = ts_path_join(to, names[i]);
        if (!from || !path) status = TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out");
        if (status == TS_OK && ts_path_kind_of(path) == TS_PATH_FOLDER)
            status = ts_remove_tree(path, err);
        if (status == TS_OK) status = ts_rename(from, path, err);
        ts_free(from);
        ts_free(path);
    }
    ts_names_free(names, n);
    return status;
}

/* ---- the child ------------------------------------------------------------------------------- */

/* temporary: libtpu writes a log there whatever it is told. */
static int environment(const ts_topology *t, const char *temporary, char accelerator[64],
                       const char *env[16])
{
    int n = 0;
    env[n++] = temporary;
    env[n++] = "TF_CPP_MIN_LOG_LEVEL=2";
    if (strcmp(t->plugin, "tpu") == 0) {
        snprintf(accelerator, 64, "TPU_ACCELERATOR_TYPE=%s", t->accelerator);
        env[n++] = accelerator;
    }
    /* For cpu:1 too: plugin=PATH may be libtpu by mistake, which would wait for a server of its cloud. */
    for (int i = 0; i < TS_LIBTPU_ALONE; i++) env[n++] = ts_libtpu_alone[i];
    return n;
}

/* "(66.50G)" behind word: binary units. 0: not there. */
static int64_t size_behind(const char *message, const char *word)
{
    const char *p = strstr(message, word), *units = "KMGTP";
    char *end;
    if (!p || !(p = strchr(p, '('))) return 0;
    double v = strtod(p + 1, &end);
    const char *unit = *end ? strchr(units, *end) : NULL;
    if (end == p + 1 || !(v > 0) || v > 1e15) return 0;
    for (int k = unit ? (int)(unit - units) + 1 : 0; k > 0; k--) v *= 1024;
    return v < 9e18 ? (int64_t)v : 0;
}

/* XLA's CPU plugin leaves the temporaries out of its peak; there they are one block that lives for the whole step. */
static int64_t peak_of(const ts_aot_job *job, const ts_pjrt_figures *f)
{
    int64_t all = f->argument_bytes + f->output_bytes - f->alias_bytes + f->temp_bytes;
    bool cpu = strcmp(job->topology->plugin, "cpu") == 0;
    return cpu && all > f->peak_bytes ? all : f->peak_bytes;
}

static void take_answer(const ts_aot_job *job, const ts_aot_answer *a, ts_aot_report *out)
{
    snprintf(out->device_kind, sizeof out->device_kind, "%s", a->kind);
    snprintf(out->plugin_version, sizeof out->plugin_version, "%s", a->version);
    out->argument_bytes = a->figures.argument_bytes;
    out->output_bytes = a->figures.output_bytes;
    out->alias_bytes = a->figures.alias_bytes;
    out->temp_bytes = a->figures.temp_bytes;
    out->peak_bytes = peak_of(job, &a->figures);
    out->code_bytes = a->figures.code_bytes;
    out->capacity_bytes = a->capacity_bytes ? a->capacity_bytes : job->topology->capacity_bytes;
    out->flops = a->figures.flops;
    out->bytes_accessed = a->figures.bytes;
    out->compile_seconds = a->compile_seconds;
    out->fits = !a->too_big;
    if (!a->too_big) return;
    out->needed_bytes = size_behind(a->message, "required");
    if (!out->capacity_bytes) out->capacity_bytes = size_behind(a->message, "available");
}

/* The child's answer, and the serialized program behind it (borrowed from r). */
static ts_status run_child(const ts_aot_job *job, const char *folder, ts_child_result *r,
                           ts_aot_answer *a, ts_error *err)
{
    char what[4300], temporary[4300], accelerator[64];
    const char *env[16];
    ts_aot_work work = {job, folder};
    snprintf(temporary, sizeof temporary, "TMPDIR=%s", folder);
    int n = environment(job->topology, temporary, accelerator, env);
    snprintf(what, sizeof what, "compiling for %s with %s", job->topology->name, job->plugin);
    TS_TRY(ts__child_run(what, job->timeout > 0 ? job->timeout : hour, env, n, ts__aot_child, &work,
                         r, err));
    if (r->bytes.length < sizeof *a)
        return TS_ERROR(err, TS_UNAVAILABLE, "%s ended without an answer", what);
    memcpy(a, r->bytes.data, sizeof *a);
    if (a->status != TS_OK)
        return TS_ERROR(err, a->status == TS_NOT_FOUND ? TS_UNAVAILABLE : a->status, "%s: %s", what,
                        a->message);
    if (a->executable_bytes != r->bytes.length - sizeof *a)
        return TS_ERROR(err, TS_UNAVAILABLE, "%s ended before its program was handed over", what);
    return TS_OK;
}

static ts_status report(const ts_aot_job *job, const char *folder, ts_aot_report *out, ts_error *err)
{
    ts_child_result r;
    ts_aot_answer *a = ts_alloc_zero(sizeof *a);
    if (!a) return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out for a report");
    ts_status status = run_child(job, folder, &r, a, err);
    if (status == TS_OK) {
        take_answer(job, a, out);
        out->host_peak_bytes = (int64_t)r.peak_bytes;
        status = ts__aot_read_dump(job, folder, out, err);
    }
    /* Memory of another kind than the device's main one ran out, or nobody can say how much: the words are all. */
    if (status == TS_OK && !out->fits &&
        (!out->needed_bytes ||
         (out->needed_bytes <= out->capacity_bytes && !strcasestr(a->message, "hbm"))))
        status = TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "compiling for %s with %s: %s",
                          job->topology->name, job->plugin, a->message);
    if (status == TS_OK && out->fits && job->save_to && *job->save_to) {
        status = ts__saved_write(job->save_to, &a->key, r.bytes.data + sizeof *a,
                                 a->executable_bytes, err);
        if (status == TS_OK) snprintf(out->file, sizeof out->file, "%s", job->save_to);
    }
    ts__child_result_free(&r);
    ts_free(a);
    return status;
}

ts_status ts__aot_compile(const ts_aot_job *job, ts_aot_report *out, ts_error *err)
{
    char folder[4200];
    memset(out, 0, sizeof *out);
    snprintf(out->topology, sizeof out->topology, "%s", job->topology->name);
    out->devices = job->topology->devices;
    TS_TRY(make_folder(job, folder, err));
    ts_status status = report(job, folder, out, err);
    if (status == TS_OK && job->dump_to && *job->dump_to) status = keep_dump(folder, job->dump_to, err);
    ts_error ignored = {0};
    (void)ts_remove_tree(folder, &ignored);
    if (status != TS_OK) ts_aot_report_free(out);
    return status;
}

void ts_aot_report_free(ts_aot_report *r)
{
    ts_free(r->collective);
    ts_free(r->buffer);
    r->collective = NULL;
    r->buffer = NULL;
    r->n_collective = r->n_buffer = 0;
}
