/* ckpt/checkpoint.c – saves a checkpoint so that a crash at any point leaves the old or the new one.
 *
 * By rename: everything is written beside its place and synced, file by file, then the folder; it is renamed; the
 * parent is synced. Before the rename nothing of the run has changed; after it everything is on disk. By manifest: the
 * files are written in place and synced, then the folder, then the manifest, then the folder and its parent; a folder
 * without a manifest is no checkpoint. A failed fsync gives the checkpoint up: the kernel may have dropped the pages,
 * so a second fsync that succeeds would prove nothing.
 *
 * Leftovers of killed saves are found by name and removed at the next save, when their process is gone.
 * Not here: what the files hold (checkpoint_write.c), reading (checkpoint_read.c), which ones stay (checkpoint_keep.c).
 */
#include "ckpt/checkpoint.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "ckpt/checkpoint_internal.h"

enum { HOST_BYTES = 64, STALE_SECONDS = 24 * 3600 };

/* ---- names ----------------------------------------------------------------------------------- */

/* This host, with every character that could confuse a path replaced. */
static void host_name(char host[HOST_BYTES + 1])
{
    if (gethostname(host, HOST_BYTES) != 0) memcpy(host, "host", 5);
    host[HOST_BYTES] = '\0';
    for (char *p = host; *p; p++) {
        bool fine = (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') ||
                    (*p >= '0' && *p <= '9') || *p == '.';
        if (!fine) *p = '_';
    }
}

char *ts__checkpoint_step_path(const char *folder, int64_t step, bool temporary)
{
    char name[HOST_BYTES + 64], host[HOST_BYTES + 1];
    int n = snprintf(name, sizeof name, "%lld", (long long)step);
    if (temporary) {
        host_name(host);
        snprintf(name + n, sizeof name - (size_t)n, ".tmp-%s-%ld", host, (long)getpid());
    }
    return ts_path_join(folder, name);
}

static ts_status out_of_memory(const char *path, ts_error *err)
{
    return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "%s: out of memory", path);
}

/* ---- leftovers ------------------------------------------------------------------------------- */

/* "<step>.tmp-<host>-<pid>". Another host's processes cannot be asked, so what they leave must be a day old. */
ts__temporary ts__checkpoint_temporary(const char *path, const char *name, int64_t *step)
{
    const char *mark = strstr(name, ".tmp-"), *dash = strrchr(name, '-');
    int64_t pid;
    if (!mark || !ts__checkpoint_step_of(name, (size_t)(mark - name), step))
        return TS__TEMPORARY_NONE;
    const char *host = mark + strlen(".tmp-");
    if (dash < host || !ts__checkpoint_step_of(dash + 1, strlen(dash + 1), &pid))
        return TS__TEMPORARY_NONE;
    char here[HOST_BYTES + 1];
    host_name(here);
    size_t host_bytes = (size_t)(dash - host);
    if (strlen(here) == host_bytes && memcmp(here, host, host_bytes) == 0) {
        if (pid == getpid()) return TS__TEMPORARY_LEFT; /* one save at a time: an earlier one of this number */
        bool gone = pid <= 0 || pid > INT32_MAX || (kill((pid_t)pid, 0) != 0 && errno == ESRCH);
        return gone ? TS__TEMPORARY_LEFT : TS__TEMPORARY_WRITTEN;
    }
    struct stat st;
    bool old = stat(path, &st) == 0 && time(NULL) - st.st_mtime > STALE_SECONDS;
    return old ? TS__TEMPORARY_LEFT : TS__TEMPORARY_ELSEWHERE;
}

static ts_status remove_leftovers(const char *folder, ts_error *err)
{
    char **names;
    size_t n;
    TS_TRY(ts_list_folder(folder, &names, &n, err));
    for (size_t i = 0; i < n; i++) {
        char *path = ts_path_join(folder, names[i]);
        ts_error why = {0};
        int64_t step;
        if (!path || ts__checkpoint_temporary(path, names[i], &step) != TS__TEMPORARY_LEFT) {
            ts_free(path);
            continue;
        }
        if (ts_remove_tree(path, &why) == TS_OK)
            ts_log(TS_LOG_INFO, "removed %s, the rest of an interrupted save", path);
        else
            ts_log(TS_LOG_WARNING, "cannot remove the rest of an interrupted save: %s", why.msg);
        ts_free(path);
    }
    ts_names_free(names, n);
    return TS_OK;
}

/* ---- commit ---------------------------------------------------------------------------------- */

/* Without an exchange of folders the old one would be missing for a moment: only a useless one may be. Its manifest
 * goes first, so that what is left of it is none. */
static ts_status make_room(const char *final, ts_error *err)
{
    ts_checkpoint *old = NULL;
    for (int i = 0; i < 2; i++) { /* it is removed for that: it must be so twice */
        if (ts_checkpoint_open(final, &old, NULL) == TS_DATA_LOSS) continue;
        ts_checkpoint_close(old);
        return TS_ERROR(err, TS_ALREADY_EXISTS,
                        "%s: a checkpoint of this step is there and this file system cannot exchange "
                        "folders; remove it (tessera checkpoint rm), or save another step",
                        final);
    }
    char *manifest = ts_path_join(final, TS__CHECKPOINT_MANIFEST);
    ts_status status = manifest ? ts_remove_tree(manifest, err) : out_of_memory(final, err);
    ts_free(manifest);
    if (status == TS_OK) status = ts_sync_folder(final, err);
    return status == TS_OK ? ts_remove_tree(final, err) : status;
}

static ts_status rename_folder(const char *temporary, const char *final, ts_error *err)
{
    ts_error why = {0};
    ts_status status = ts_rename(temporary, final, &why);
    if (status == TS_OK) return TS_OK;
    return TS_ERROR(err, status, "%s (checkpoint_commit=manifest needs no rename of a folder)",
                    why.msg);
}

/* Puts the durable temporary folder in its place. *replaced: temporary now holds the old one. */
static ts_status put_in_place(const char *temporary, const char *final, bool *replaced,
                              ts_error *err)
{
    ts_path_kind kind;
    *replaced = false;
    TS_TRY(ts_path_find(final, &kind, err));
    if (kind == TS_PATH_NONE) return rename_folder(temporary, final, err);
    ts_error why = {0};
    ts_status status = ts_exchange(temporary, final, &why);
    if (status == TS_OK) return *replaced = true, TS_OK;
    if (status != TS_UNIMPLEMENTED) {
        if (err && err->code == TS_OK) *err = why;
        return status;
    }
    TS_TRY(make_room(final, err));
    return rename_folder(temporary, final, err);
}

/* The checkpoint whose frozen files can be taken; NULL: none, and they are written. */
static ts_checkpoint *find_frozen(const ts__save *s)
{
    ts_checkpoint *c = NULL;
    if (!s->o->frozen_from || ts__checkpoint_glance(s->o->frozen_from, &c, NULL) != TS_OK) return NULL;
    if (ts__save_matches_frozen(s, c)) return c;
    ts_checkpoint_close(c);
    return NULL;
}

bool ts_checkpoint_has_frozen(const ts_checkpoint_save_options *o)
{
    ts__save s;
    if (ts__save_open(o, &s, NULL) != TS_OK) return false;
    ts_checkpoint *c = find_frozen(&s);
    ts__save_close(&s);
    ts_checkpoint_close(c);
    return c != NULL;
}

/* Everything of the checkpoint durable in s->folder; the manifest last, when the names of the others are durable. */
static ts_status write_all(ts__save *s, ts_error *err)
{
    TS_TRY(ts_make_folders(s->folder, err));
    TS_TRY(ts__save_files(s, err));
    TS_TRY(ts_sync_folder(s->folder, err));
    TS_TRY(ts__save_manifest(s, err));
    return ts_sync_folder(s->folder, err);
}

static ts_status save_by_rename(ts__save *s, const char *temporary, const char *final,
                                ts_error *err)
{
    bool replaced = false;
    s->folder = temporary;
    ts_status status = write_all(s, err);
    if (status == TS_OK) status = put_in_place(temporary, final, &replaced, err);
    if (status != TS_OK) {
        (void)ts_remove_tree(temporary, NULL); /* what cannot be removed now goes at the next save */
        return status;
    }
    TS_TRY(ts_sync_folder(s->o->folder, err));
    if (replaced) (void)ts_remove_tree(temporary, NULL);
    return TS_OK;
}

/* Of a save that failed: without its manifest it is none, whatever reads of it; the rest is room given back. */
static void take_back(const char *final)
{
    char *manifest = ts_path_join(final, TS__CHECKPOINT_MANIFEST);
    if (manifest && ts_remove_file(manifest, NULL) == TS_OK && ts_sync_folder(final, NULL) == TS_OK)
        (void)ts_remove_tree(final, NULL);
    ts_free(manifest);
}

static ts_status begin_in_place(const char *final, const char *mark, ts_error *err)
{
    ts_writer *w;
    TS_TRY(ts_make_folders(final, err));
    TS_TRY(ts_writer_open(mark, false, &w, err));
    TS_TRY(ts_writer_close(w, true, err));
    return ts_sync_folder(final, err);
}

static ts_status save_by_manifest(ts__save *s, const char *final, ts_error *err)
{
    char *mark = ts_path_join(final, TS__CHECKPOINT_UNFINISHED);
    s->folder = final;
    ts_path_kind kind = TS_PATH_NONE;
    ts_status status = mark ? ts_path_find(final, &kind, err) : out_of_memory(final, err);
    if (status == TS_OK && kind != TS_PATH_NONE) status = make_room(final, err);
    if (status != TS_OK) {
        ts_free(mark);
        return status;
    }
    status = begin_in_place(final, mark, err);
    if (status == TS_OK) status = write_all(s, err);
    if (status != TS_OK)
        take_back(final);
    else
        status = ts_sync_folder(s->o->folder, err);
    if (status == TS_OK) (void)ts_remove_file(mark, NULL); /* beside a whole one it says nothing */
    ts_free(mark);
    return status;
}

static ts_status save(ts__save *s, const char *temporary, const char *final, ts_error *err)
{
    const ts_checkpoint_save_options *o = s->o;
    TS_TRY(ts_make_folders(o->folder, err));
    TS_TRY(ts_sync_parent(o->folder, err));
    TS_TRY(remove_leftovers(o->folder, err));
    ts_commit commit = o->commit == TS_COMMIT_AUTO ? ts_checkpoint_commit_of(o->folder) : o->commit;
    s->frozen = find_frozen(s);
    ts_status status = commit == TS_COMMIT_RENAME ? save_by_rename(s, temporary, final, err)
                                                  : save_by_manifest(s, final, err);
    ts_checkpoint_close(s->frozen);
    return status;
}

void ts_checkpoint_save_options_default(ts_checkpoint_save_options *o)
{
    *o = (ts_checkpoint_save_options){.struct_size = sizeof *o, .devices = 1, .score = (double)NAN};
}

ts_commit ts_checkpoint_commit_of(const char *folder)
{
    return ts_is_fuse(folder) ? TS_COMMIT_MANIFEST : TS_COMMIT_RENAME;
}

ts_status ts_checkpoint_save(const ts_checkpoint_save_options *o, ts_error *err)
{
    ts__save s = {0};
    TS_ASSERT(o->step >= 0 && json_is_object(o->state));
    char *temporary = ts__checkpoint_step_path(o->folder, o->step, true);
    char *final = ts__checkpoint_step_path(o->folder, o->step, false);
    ts_status status = temporary && final ? TS_OK : out_of_memory(o->folder, err);
    if (status == TS_OK) status = ts__save_open(o, &s, err);
    if (status == TS_OK) status = save(&s, temporary, final, err);
    if (status != TS_OK)
        ts__error_context(err,
                          "the checkpoint of step %lld was not saved, earlier ones are untouched",
                          (long long)o->step);
    ts__save_close(&s);
    ts_free(temporary);
    ts_free(final);
    return status;
}
