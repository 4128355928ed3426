/* xla/install.c – a plugin from the package index into a folder, whole or not at all.
 *
 * Everything is made in FOLDER/.NAME.tmp-PID and takes its place by one rename at the end; an older plugin is
 * swapped for it in the same step. Whoever installs holds FOLDER/.lock, so a temporary folder found under the
 * lock belongs to a process that died, and is removed. A folder that we did not make is never touched.
 * Not here: the download (pip.c), the archive (wheel.c), the record (plugin_record.c), trying it (probe.c).
 */
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include "base/file.h"
#include "xla/pip.h"
#include "xla/plugin.h"
#include "xla/wheel.h"

static const uint64_t max_library = (uint64_t)4 << 30;
enum { MAX_LICENSE = 4 << 20, LICENSE_LINES = 4 };

typedef struct install {
    const ts_plugin_install_options *o;
    const ts_plugin_kind *kind;
    const char *file;       /* the library's own name */
    char folder[4096];      /* where plugins live */
    char *target;           /* folder/NAME */
    char *temporary;        /* folder/.NAME.tmp-PID */
    char *download, *fresh; /* in it: what pip writes, and what becomes the target */
    char *license;          /* in it: the licence's text; NULL where the package has none */
    ts_plugin_record record;
} install;

void ts_plugin_install_options_default(ts_plugin_install_options *o)
{
    *o = (ts_plugin_install_options){.struct_size = sizeof *o};
}

TS_PRINTF(2, 3) static void say(const install *x, const char *fmt, ...)
{
    char text[1000];
    va_list ap;
    if (!x->o->line) return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    x->o->line(x->o->context, text);
}

/* ---- what is there --------------------------------------------------------------------------- */

static ts_status unknown_name(const char *name, ts_error *err)
{
    const char *names[8];
    int n = ts_plugin_kind_count < 8 ? ts_plugin_kind_count : 8;
    for (int i = 0; i < n; i++) names[i] = ts_plugin_kinds[i].name;
    const char *near = name ? ts_nearest_word(name, names, (size_t)n) : NULL;
    return TS_ERROR(err, TS_INVALID_ARGUMENT,
                    "no plugin \"%s\" can be installed; expected cpu, tpu or cuda%s%s%s",
                    name ? name : "", near ? "; did you mean " : "", near ? near : "",
                    near ? "?" : "");
}

static ts_status check_license(const ts_plugin_kind *kind, const ts_plugin_install_options *o,
                               ts_error *err)
{
    if (!kind->terms || o->accept_license) return TS_OK;
    return TS_ERROR(err, TS_FAILED_PRECONDITION,
                    "%s Read them; who accepts them adds --accept-license. Nothing was downloaded",
                    kind->terms);
}

/* *done: the very version is there and whole. Another's folder is refused. */
static ts_status look_at_target(install *x, bool *done, ts_error *err)
{
    ts_plugin_record r;
    ts_error why = {0};
    *done = false;
    ts_path_kind there = ts_path_kind_of(x->target);
    if (there == TS_PATH_NONE) return TS_OK;
    ts_status status =
        there == TS_PATH_FOLDER ? ts__plugin_record_read(x->target, &r, &why) : TS_NOT_FOUND;
    if (status == TS_NOT_FOUND)
        return TS_ERROR(
            err, TS_ALREADY_EXISTS,
            "%s is there and was not made by `tessera plugins install`; move it away, or "
            "choose another --folder",
            x->target);
    if (status == TS_OK) status = ts__plugin_record_check(x->target, &r, &why);
    if (status != TS_OK) {
        say(x, "what is installed is damaged and will be replaced: %s", why.msg);
        return TS_OK;
    }
    bool same = strcmp(r.package, x->kind->package) == 0 && x->kind->version &&
                strcmp(r.version, x->kind->version) == 0;
    if (!same) say(x, "%s has %s %s, which will be replaced", x->target, r.package, r.version);
    *done = same && !x->o->again;
    if (*done) {
        say(x, "%s %s is already there: %s/%s", r.package, r.version, x->target, r.file);
        x->record = r;
    }
    return TS_OK;
}

/* ---- temporary folders ----------------------------------------------------------------------- */

static bool is_temporary(const char *name)
{
    for (int i = 0; i < ts_plugin_kind_count; i++) {
        char begin[64];
        int n = snprintf(begin, sizeof begin, ".%s.tmp-", ts_plugin_kinds[i].name);
        if (strncmp(name, begin, (size_t)n) == 0) return true;
    }
    return false;
}

/* Under the lock: nobody is at work on any of them. */
static ts_status remove_stale(const install *x, ts_error *err)
{
    char **names;
    size_t n;
    TS_TRY(ts_list_folder(x->folder, &names, &n, err));
    ts_status status = TS_OK;
    for (size_t i = 0; i < n && status == TS_OK; i++) {
        if (!is_temporary(names[i])) continue;
        char *path = ts_path_join(x->folder, names[i]);
        say(x, "removing what an interrupted install left: %s", path ? path : names[i]);
        status = path ? ts_remove_tree(path, err)
                      : TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "%s: out of memory", x->folder);
        ts_free(path);
    }
    ts_names_free(names, n);
    return status;
}

/* ---- unpacking ------------------------------------------------------------------------------- */

/* The first lines of the licence, so that it is not only named. */
static void show_license(install *x)
{
    char *text;
    size_t n;
    ts_error err = {0};
    if (ts_file_read_all(x->license, MAX_LICENSE, &text, &n, &err) != TS_OK) return;
    const char *at = text;
    for (int lines = 0; *at && lines < LICENSE_LINES; at += strcspn(at, "\n"), at += *at == '\n') {
        size_t length = strcspn(at, "\n"), space = strspn(at, " \t");
        if (space >= length) continue;
        say(x, "  | %.*s", (int)(length - space), at + space);
        lines++;
    }
    if (*at) say(x, "  | …");
    ts_free(text);
}

static ts_status unpack_license(install *x, ts_wheel *w, ts_error *err)
{
    static const char *const names[] = {"LICENSE", "LICENSE.txt", "THIRD_PARTY_NOTICES"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        uint64_t bytes;
        ts_error several = {0};
        if (ts__wheel_find(w, names[i], &bytes, &several) != TS_OK || bytes > MAX_LICENSE) continue;
        char *path = ts_path_join(x->fresh, names[i]);
        if (!path) return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "%s: out of memory", x->fresh);
        ts_status status = ts__wheel_unpack(w, path, MAX_LICENSE, NULL, NULL, err);
        if (status == TS_OK && !x->license && i < 2)
            x->license = path;
        else
            ts_free(path);
        TS_TRY(status);
    }
    if (x->license) {
        say(x, "licence: %s, its text in %s/%s:", x->kind->license, x->target,
            strrchr(x->license, '/') + 1);
        show_license(x);
    } else {
        say(x, "licence: %s (the package has no text of it)", x->kind->license);
    }
    return TS_OK;
}

static ts_status is_library(const char *path, ts_error *err)
{
    unsigned char head[4] = {0};
    ts_file *f;
    TS_TRY(ts_file_open(path, &f, err));
    ts_status status = ts_file_read_at(f, 0, head, sizeof head, err);
    ts_file_close(f);
    if (status == TS_OK && memcmp(head, "\177ELF", 4) != 0)
        status = TS_ERROR(err, TS_DATA_LOSS,
                          "%s: begins with bytes %02x %02x %02x %02x; expected a "
                          "library (ELF)",
                          path, head[0], head[1], head[2], head[3]);
    return status;
}

static ts_status unpack_library(install *x, ts_wheel *w, ts_error *err)
{
    uint64_t bytes;
    TS_TRY(ts__wheel_find(w, x->kind->member, &bytes, err));
    if (bytes == UINT64_MAX)
        return TS_ERROR(err, TS_DATA_LOSS, "the wheel of %s has no %s in it", x->kind->package,
                        x->kind->member);
    char *path = ts_path_join(x->fresh, x->file);
    if (!path) return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "%s: out of memory", x->fresh);
    say(x, "unpacking %s, %.0f MB", x->file, (double)bytes / 1e6);
    ts_status status = ts__wheel_unpack(w, path, max_library, x->o->stop, x->o->context, err);
    if (status == TS_OK) status = is_library(path, err);
    ts_free(path);
    return status;
}

static ts_status unpack(install *x, const char *wheel, ts_error *err)
{
    ts_wheel *w;
    TS_TRY(ts__wheel_open(wheel, &w, err));
    ts_status status = unpack_library(x, w, err);
    if (status == TS_OK) status = unpack_license(x, w, err);
    ts__wheel_close(w);
    return status;
}

/* name-version-tags.whl: the version that came, where none was asked for. */
static void version_of(const char *wheel, char *version, size_t n)
{
    const char *name = strrchr(wheel, '/');
    const char *dash = strchr(name ? name : wheel, '-');
    if (dash) snprintf(version, n, "%.*s", (int)strcspn(dash + 1, "-"), dash + 1);
}

static ts_status record(install *x, const char *wheel, ts_error *err)
{
    ts_plugin_record *r = &x->record;
    snprintf(r->name, sizeof r->name, "%s", x->kind->name);
    snprintf(r->package, sizeof r->package, "%s", x->kind->package);
    version_of(wheel, r->version, sizeof r->version);
    if (x->kind->version) snprintf(r->version, sizeof r->version, "%s", x->kind->version);
    snprintf(r->file, sizeof r->file, "%s", x->file);
    snprintf(r->license, sizeof r->license, "%s", x->kind->license);
    snprintf(r->source, sizeof r->source, "pip download, %.250s", strrchr(wheel, '/') + 1);
    TS_TRY(ts__plugin_record_measure(x->fresh, r, err));
    TS_TRY(ts__plugin_record_write(x->fresh, r, err));
    return ts_sync_folder(x->fresh, err);
}

/* ---- taking its place ------------------------------------------------------------------------ */

/* Where two paths cannot be exchanged there is a moment with neither: the old one then lies in the temporary
 * folder, and goes back if the new one cannot take its place. */
static ts_status replace(const install *x, ts_error *err)
{
    ts_error no_exchange = {0};
    if (ts_path_kind_of(x->target) == TS_PATH_NONE) return ts_rename(x->fresh, x->target, err);
    ts_status status = ts_exchange(x->fresh, x->target, &no_exchange);
    if (status == TS_OK) return TS_OK;
    if (status != TS_UNIMPLEMENTED) {
        if (err && err->code == TS_OK) *err = no_exchange;
        return status;
    }
    char *old = ts_path_join(x->temporary, "old");
    if (!old) return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "%s: out of memory", x->temporary);
    status = ts_rename(x->target, old, err);
    if (status == TS_OK) {
        status = ts_rename(x->fresh, x->target, err);
        ts_error ignored = {0};
        if (status != TS_OK && ts_rename(old, x->target, &ignored) != TS_OK)
            say(x, "the plugin of before lies in %s", old);
    }
    ts_free(old);
    return status;
}

static ts_status make(install *x, ts_error *err)
{
    char wheel[4096];
    TS_TRY(ts_make_folders(x->download, err));
    TS_TRY(ts_make_folders(x->fresh, err));
    TS_TRY(ts__pip_download(x->kind->package, x->kind->version, x->download, x->o, wheel,
                            sizeof wheel, err));
    TS_TRY(unpack(x, wheel, err));
    TS_TRY(record(x, wheel, err));
    if (x->o->stop && x->o->stop(x->o->context))
        return TS_ERROR(err, TS_CANCELLED, "interrupted before %s was put into place", x->target);
    TS_TRY(replace(x, err));
    TS_TRY(ts_sync_folder(x->folder, err));
    say(x, "installed %s %s: %s/%s", x->record.package, x->record.version, x->target, x->file);
    return TS_OK;
}

static ts_status make_under_lock(install *x, ts_error *err)
{
    ts_lock *lock = NULL;
    ts_error unlocked = {0};
    char *path = ts_path_join(x->folder, ".lock");
    if (!path) return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "%s: out of memory", x->folder);
    ts_status status = ts_lock_take(path, &lock, &unlocked);
    ts_free(path);
    if (status == TS_FAILED_PRECONDITION)
        return TS_ERROR(err, status, "another install is going on: %s", unlocked.msg);
    if (status != TS_OK && status != TS_UNIMPLEMENTED) {
        if (err && err->code == TS_OK) *err = unlocked;
        return status;
    }
    status = lock ? remove_stale(x, err) : TS_OK;
    if (status == TS_OK) status = make(x, err);
    ts_error left = {0};
    if (ts_remove_tree(x->temporary, &left) != TS_OK)
        say(x, "could not be removed, the next install will: %s", left.msg);
    ts_lock_release(lock);
    return status;
}

/* ---- the whole ------------------------------------------------------------------------------- */

static ts_status name_paths(install *x, ts_error *err)
{
    char name[64];
    snprintf(name, sizeof name, ".%s.tmp-%ld", x->kind->name, (long)getpid());
    const char *slash = strrchr(x->kind->member, '/');
    x->file = slash ? slash + 1 : x->kind->member;
    x->target = ts_path_join(x->folder, x->kind->name);
    x->temporary = ts_path_join(x->folder, name);
    if (x->temporary) {
        x->download = ts_path_join(x->temporary, "download");
        x->fresh = ts_path_join(x->temporary, "new");
    }
    if (x->target && x->download && x->fresh) return TS_OK;
    return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "%s: out of memory", x->folder);
}

/* How usable it is here is the caller's to tell, not an error of the install. */
static ts_status describe(const install *x, ts_plugin_info *out, ts_error *err)
{
    ts_error problem = {0};
    char *library = ts_path_join(x->target, x->record.file);
    if (!library) return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "%s: out of memory", x->target);
    out->status = ts__plugin_probe(x->kind->name, library, true, 0, out, &problem);
    snprintf(out->package, sizeof out->package, "%s", x->record.package);
    snprintf(out->version, sizeof out->version, "%s", x->record.version);
    ts_free(library);
    return TS_OK;
}

ts_status ts_plugin_install(const ts_plugin_install_options *o, ts_plugin_info *out, ts_error *err)
{
    TS_ASSERT(o->struct_size == sizeof *o);
    install x = {.o = o, .kind = o->name ? ts__plugin_kind(o->name) : NULL};
    bool done;
    if (!x.kind) return unknown_name(o->name, err);
    TS_TRY(ts__plugin_folder(o->folder, x.folder, sizeof x.folder, err));
    ts_status status = name_paths(&x, err);
    if (status == TS_OK) status = look_at_target(&x, &done, err);
    if (status == TS_OK && !done) status = check_license(x.kind, o, err);
    if (status == TS_OK && !done) status = ts_make_folders(x.folder, err);
    if (status == TS_OK && !done) status = make_under_lock(&x, err);
    if (status == TS_OK) status = describe(&x, out, err);
    ts_free(x.target);
    ts_free(x.temporary);
    ts_free(x.download);
    ts_free(x.fresh);
    ts_free(x.license);
    return status;
}
