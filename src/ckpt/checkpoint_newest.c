/* ckpt/checkpoint_newest.c – the checkpoints of a folder, and the newest of them that can be used.
 *
 * What does not verify is skipped for the one before, with the reason in the log. When three fail alike, the cause is
 * not one checkpoint's, and the run stops. A folder that says it is unfinished is what a save began that commits by
 * manifest: no checkpoint, so neither a failure nor a reason not to begin. Trouble that is not the checkpoint's own (no
 * permission, memory out) is returned at once: skipping would silently throw training away.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/log.h"
#include "ckpt/checkpoint_internal.h"

enum { SAME_FAILURES_MAX = 3 };

bool ts__checkpoint_step_of(const char *name, size_t n, int64_t *step)
{
    int64_t value = 0;
    if (n == 0 || (n > 1 && name[0] == '0')) return false;
    for (size_t i = 0; i < n; i++) {
        if (name[i] < '0' || name[i] > '9') return false;
        if (ts_mul_i64(value, 10, &value) || ts_add_i64(value, name[i] - '0', &value)) return false;
    }
    *step = value;
    return true;
}

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

ts_status ts_checkpoint_list(const char *folder, int64_t **steps, size_t *n, ts_error *err)
{
    char **names;
    size_t n_names;
    *steps = NULL;
    *n = 0;
    ts_path_kind kind;
    TS_TRY(ts_path_find(folder, &kind, err));
    if (kind == TS_PATH_NONE) return TS_OK;
    TS_TRY(ts_list_folder(folder, &names, &n_names, err));
    int64_t *found = ts_alloc(n_names * sizeof *found);
    ts_status status =
        found ? TS_OK : TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "%s: out of memory", folder);
    for (size_t i = 0; i < n_names && status == TS_OK; i++) {
        int64_t step;
        if (!ts__checkpoint_step_of(names[i], strlen(names[i]), &step)) continue;
        char *path = ts_path_join(folder, names[i]);
        status = path ? ts_path_find(path, &kind, err)
                      : TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "%s: out of memory", folder);
        if (status == TS_OK && kind == TS_PATH_FOLDER) found[(*n)++] = step;
        ts_free(path);
    }
    ts_names_free(names, n_names);
    if (status != TS_OK) {
        ts_free(found);
        *n = 0;
        return status;
    }
    if (*n) qsort(found, *n, sizeof *found, by_value);
    *steps = found;
    return TS_OK;
}

/* ---- the newest ------------------------------------------------------------------------------ */

bool ts__checkpoint_own_fault(ts_status status)
{
    return status == TS_DATA_LOSS || status == TS_NOT_FOUND || status == TS_INVALID_ARGUMENT;
}

/* It has the mark of a save in place and no manifest, or the mark was not even made. A whole one may have kept its
 * mark: that one was finished, and what is wrong with it is damage. */
static bool is_unfinished(const char *path)
{
    char **names;
    size_t n;
    if (ts_list_folder(path, &names, &n, NULL) != TS_OK) return false;
    bool marked = false;
    for (size_t i = 0; i < n; i++) marked |= strcmp(names[i], TS__CHECKPOINT_UNFINISHED) == 0;
    ts_names_free(names, n);
    return n == 0 || (marked && !ts__checkpoint_is_committed(path));
}

/* From the newest backwards; stops when the same check fails three times running. */
static ts_status try_steps(const char *folder, const int64_t *steps, size_t n, ts_checkpoint **out,
                           ts_error *err)
{
    ts_error first = {0}, last = {0};
    int same = 0;
    int64_t first_step = -1;
    size_t tried = 0;
    for (size_t i = n; i-- > 0 && same < SAME_FAILURES_MAX;) {
        char name[32];
        snprintf(name, sizeof name, "%lld", (long long)steps[i]);
        char *path = ts_path_join(folder, name);
        if (!path) return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "%s: out of memory", folder);
        ts_error why = {0};
        ts_status status = ts_checkpoint_open(path, out, &why);
        if (ts__checkpoint_own_fault(status)) { /* training is thrown away for it: it must be so twice */
            why = (ts_error){0};
            status = ts_checkpoint_open(path, out, &why);
        }
        bool begun = status != TS_OK && is_unfinished(path);
        ts_free(path);
        if (status == TS_OK) return TS_OK;
        if (!ts__checkpoint_own_fault(status)) {
            if (err && err->code == TS_OK) *err = why;
            return status;
        }
        ts_log(TS_LOG_WARNING, "skipped the checkpoint of step %s: %s", name, why.msg);
        if (begun) continue;
        same = tried > 0 && why.line == last.line && why.file == last.file ? same + 1 : 1;
        if (tried++ == 0) {
            first = why;
            first_step = steps[i];
        }
        last = why;
    }
    if (tried == 0)
        return TS_ERROR(err, TS_NOT_FOUND, "%s: holds no checkpoint that was finished", folder);
    return TS_ERROR(err, TS_DATA_LOSS,
                    "%s: none of the newest %zu of %zu checkpoints can be used; step %lld: %.3000s; `tessera "
                    "checkpoint ls` tells of all of them, another run_name begins anew, "
                    "load_full_state_path takes one by its path",
                    folder, tried, n, (long long)first_step, first.msg);
}

static ts_status newest_step(const char *folder, int64_t *step, ts_error *err)
{
    int64_t *steps;
    size_t n;
    TS_TRY(ts_checkpoint_list(folder, &steps, &n, err));
    *step = n ? steps[n - 1] : -1;
    ts_free(steps);
    return TS_OK;
}

/* Beside a run that saves and removes old ones, all that were listed may be gone by the time they are read: then there
 * is a newer one. */
ts_status ts_checkpoint_open_newest(const char *folder, ts_checkpoint **out, ts_error *err)
{
    *out = NULL;
    for (;;) {
        int64_t *steps, listed, now;
        size_t n;
        ts_error why = {0};
        TS_TRY(ts_checkpoint_list(folder, &steps, &n, err));
        listed = n ? steps[n - 1] : -1;
        ts_status status = n ? try_steps(folder, steps, n, out, &why)
                             : TS_ERROR(&why, TS_NOT_FOUND, "%s: holds no checkpoint", folder);
        ts_free(steps);
        if (status == TS_OK) return TS_OK;
        TS_TRY(newest_step(folder, &now, err));
        if (now <= listed) return TS_ERROR(err, status, "%s", why.msg);
    }
}
