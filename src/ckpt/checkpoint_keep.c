/* ckpt/checkpoint_keep.c – which checkpoints of a run stay, and how one is removed.
 *
 * What is removed stops being a checkpoint in one step: it is renamed, or its manifest goes first. Only whole ones
 * count as kept, so that a damaged one never takes the place of a good one; damaged ones stay for people to look at,
 * and so does a folder in which someone put a file.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "ckpt/checkpoint_internal.h"
#include "ckpt/survey.h"

static ts_status out_of_memory(const char *path, ts_error *err)
{
    return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "%s: out of memory", path);
}

/* ---- removing -------------------------------------------------------------------------------- */

static ts_status remove_by_manifest(const char *final, ts_error *err)
{
    char *manifest = ts_path_join(final, TS__CHECKPOINT_MANIFEST);
    ts_status status = manifest ? ts_remove_tree(manifest, err) : out_of_memory(final, err);
    if (status == TS_OK) status = ts_sync_folder(final, err);
    if (status == TS_OK) status = ts_remove_tree(final, err);
    ts_free(manifest);
    return status;
}

/* A removal that ended before it took anything: the checkpoint is whole and has its name again. Half of one stays what
 * it is, a rest that the next save removes. */
static void put_back(const char *folder, const char *temporary, const char *final)
{
    ts_checkpoint *c = NULL;
    if (ts__checkpoint_glance(temporary, &c, NULL) != TS_OK) return;
    ts_checkpoint_close(c);
    if (ts_rename(temporary, final, NULL) == TS_OK) (void)ts_sync_folder(folder, NULL);
}

ts_status ts_checkpoint_remove(const char *folder, int64_t step, ts_error *err)
{
    char *temporary = ts__checkpoint_step_path(folder, step, true);
    char *final = ts__checkpoint_step_path(folder, step, false);
    ts_status status = temporary && final ? TS_OK : out_of_memory(folder, err);
    ts_path_kind kind = TS_PATH_NONE;
    if (status == TS_OK) status = ts_path_find(final, &kind, err);
    if (status == TS_OK && kind == TS_PATH_NONE)
        status = TS_ERROR(err, TS_NOT_FOUND, "%s: holds no checkpoint of step %lld", folder,
                          (long long)step);
    if (status == TS_OK) status = ts_folder_may_change(final, err); /* else it would end half way */
    if (status == TS_OK) {
        bool renamed = ts_checkpoint_commit_of(folder) == TS_COMMIT_RENAME &&
                       ts_rename(final, temporary, NULL) == TS_OK;
        /* The new name is durable before anything inside is removed: after a loss of power too, half of it never
         * carries a step's name. */
        if (renamed) status = ts_sync_folder(folder, err);
        if (status == TS_OK)
            status = renamed ? ts_remove_tree(temporary, err) : remove_by_manifest(final, err);
        if (status != TS_OK && renamed) put_back(folder, temporary, final);
    }
    ts_free(temporary);
    ts_free(final);
    return status;
}

/* ---- keeping --------------------------------------------------------------------------------- */

typedef struct kept {
    int64_t step;
    double score; /* NaN: none */
    bool whole, begun; /* begun: it has no manifest, so it never became whole. Neither: it is let be */
    bool newest, best;
} kept;

/* why: it is not whole. */
static ts_status look(const char *folder, kept *k, ts_error *why, ts_error *err)
{
    ts_checkpoint *c = NULL;
    *why = (ts_error){0};
    char *path = ts__checkpoint_step_path(folder, k->step, false);
    char *manifest = path ? ts_path_join(path, TS__CHECKPOINT_MANIFEST) : NULL;
    ts_status status = TS_OK;
    if (!manifest) {
        status = out_of_memory(folder, err);
    } else {
        ts_path_kind kind;
        bool known = ts_path_find(manifest, &kind, NULL) == TS_OK;
        status = ts__checkpoint_glance(path, &c, why);
        k->begun = known && kind == TS_PATH_NONE && status == TS_DATA_LOSS;
        k->whole = status == TS_OK;
        k->score = k->whole ? ts_checkpoint_score(c) : (double)NAN;
        ts_checkpoint_close(c);
        status = status == TS_RESOURCE_EXHAUSTED ? TS_ERROR(err, status, "%s", why->msg) : TS_OK;
    }
    ts_free(manifest);
    ts_free(path);
    return status;
}

static void mark(kept *k, size_t n, size_t newest, size_t best)
{
    for (size_t i = n; i-- > 0 && newest > 0;)
        if (k[i].whole) k[i].newest = true, newest--;
    for (; best > 0; best--) {
        kept *least = NULL; /* of equals the later one */
        for (size_t i = 0; i < n; i++)
            if (k[i].whole && !k[i].best && !isnan(k[i].score) &&
                (!least || k[i].score <= least->score))
                least = &k[i];
        if (!least) return;
        least->best = true;
    }
}

/* Does the folder hold something that no save made? It is someone's, and stays. */
static bool has_strangers(const char *folder, int64_t step)
{
    char **names = NULL, *path = ts__checkpoint_step_path(folder, step, false);
    size_t n = 0;
    bool has = !path || ts_list_folder(path, &names, &n, NULL) != TS_OK;
    for (size_t i = 0; i < n; i++) has |= !ts__survey_is_saved_name(names[i]);
    ts_names_free(names, n);
    ts_free(path);
    return has;
}

static ts_status remove_others(const char *folder, const kept *k, size_t n, int64_t saved_step,
                               ts_error *err)
{
    for (size_t i = 0; i < n; i++) {
        if (k[i].step == saved_step || k[i].newest || k[i].best || !(k[i].whole || k[i].begun))
            continue;
        ts_error why = {0};
        if (has_strangers(folder, k[i].step)) continue;
        ts_status status = ts_checkpoint_remove(folder, k[i].step, &why);
        if (status != TS_OK && status != TS_NOT_FOUND) /* else someone removed it just now */
            return TS_ERROR(err, status, "%s", why.msg);
    }
    return TS_OK;
}

static bool is_among(int64_t step, const int64_t *steps, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (steps[i] == step) return true;
    return false;
}

ts_status ts_checkpoint_keep(const char *folder, int64_t saved_step, size_t newest, size_t best,
                             ts_error *err)
{
    return ts_checkpoint_keep_sound(folder, saved_step, newest, best, NULL, 0, err);
}

ts_status ts_checkpoint_keep_sound(const char *folder, int64_t saved_step, size_t newest, size_t best,
                                   const int64_t *damaged, size_t n_damaged, ts_error *err)
{
    int64_t *steps;
    size_t n;
    bool there = false;
    ts_error why = {0};
    if (newest == 0) return TS_OK;
    TS_TRY(ts_checkpoint_list(folder, &steps, &n, err));
    while (n > 0 && steps[n - 1] > saved_step) n--;
    kept *k = ts_alloc_zero((n + 1) * sizeof *k);
    ts_status status = k ? TS_OK : out_of_memory(folder, err);
    for (size_t i = 0; i < n && status == TS_OK; i++) {
        k[i].step = steps[i];
        status = look(folder, &k[i], &why, err); /* the last one is the saved one, if it is there */
        there |= k[i].step == saved_step && k[i].whole;
        if (k[i].step != saved_step && is_among(k[i].step, damaged, n_damaged)) k[i].whole = false;
    }
    if (status == TS_OK && !there)
        status = TS_ERROR(err, TS_DATA_LOSS,
                          "%s: the checkpoint of step %lld was just saved and is not there%s%.3000s; "
                          "nothing older is removed",
                          folder, (long long)saved_step, why.msg[0] ? ": " : "", why.msg);
    if (status == TS_OK) {
        mark(k, n, newest, best);
        status = remove_others(folder, k, n, saved_step, err);
    }
    ts_free(k);
    ts_free(steps);
    return status;
}
