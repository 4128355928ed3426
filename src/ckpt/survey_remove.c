/* ckpt/survey_remove.c – removes a row of a survey, and knows what that gives back.
 *
 * A frozen file has a name in every step that shares it: only the last name frees bytes. So what
 * the disk gives back follows from the names at the moment of the removal; where it is only asked
 * for, from those that would be left.
 * Not here: how a checkpoint is removed safely (checkpoint_keep.c).
 */
#include <stdlib.h>
#include <sys/stat.h>

#include "base/file.h"
#include "ckpt/checkpoint_internal.h"
#include "ckpt/survey.h"

static int by_inode(const void *a, const void *b)
{
    const ts__survey_file *p = a, *q = b;
    if (p->device != q->device) return p->device < q->device ? -1 : 1;
    if (p->inode != q->inode) return p->inode < q->inode ? -1 : 1;
    return (p->row > q->row) - (p->row < q->row);
}

static bool same_file(const ts__survey_file *a, const ts__survey_file *b)
{
    return a->device == b->device && a->inode == b->inode;
}

/* Sorts the files, so that the names of one stand together. */
uint64_t ts__survey_linked(ts__survey *s)
{
    uint64_t twice = 0;
    if (s->n_file) qsort(s->file, s->n_file, sizeof *s->file, by_inode);
    for (size_t i = 1; i < s->n_file; i++)
        if (same_file(&s->file[i - 1], &s->file[i])) twice += s->file[i].bytes;
    return twice;
}

/* Marks the row's names as removed. A file is freed with the last of its names. */
static void count(ts__survey *s, size_t row, uint64_t *freed, uint64_t *shared)
{
    *freed = *shared = 0;
    for (size_t first = 0, end; first < s->n_file; first = end) {
        uint64_t removed = 0, of_row = 0;
        for (end = first; end < s->n_file && same_file(&s->file[first], &s->file[end]); end++) {
            bool now = s->file[end].row == row && !s->file[end].removed;
            s->file[end].removed |= now;
            of_row += now;
            removed += s->file[end].removed;
        }
        if (of_row == 0) continue;
        if (removed >= s->file[first].links)
            *freed += s->file[first].bytes;
        else
            *shared += s->file[first].bytes;
    }
}

static ts_status out_of_memory(const char *path, ts_error *err)
{
    return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "%s: out of memory", path);
}

/* A folder of any name: its manifest goes first, so that half of it is none. */
static ts_status remove_folder(const char *path, ts_error *err)
{
    char *manifest = ts_path_join(path, TS__CHECKPOINT_MANIFEST);
    if (!manifest) return out_of_memory(path, err);
    ts_status status = ts_folder_may_change(path, err); /* else it would end half way */
    if (status == TS_OK) status = ts_remove_tree(manifest, err);
    ts_free(manifest);
    if (status == TS_OK) status = ts_sync_folder(path, err);
    return status == TS_OK ? ts_remove_tree(path, err) : status;
}

/* The path of a row, without links or dots at its end. Owns: caller. */
static char *path_of(const ts__survey *s, size_t row)
{
    return s->public.is_step ? ts_path_join(s->public.folder, s->name)
                             : ts_strdup(s->public.row[row].path);
}

static ts_status remove_row(const ts__survey *s, size_t row, ts_error *err)
{
    char *path = path_of(s, row);
    int64_t step;
    if (!path) return out_of_memory(s->public.row[row].path, err);
    const char *name = strrchr(path, '/') + 1; /* a row lies in a folder */
    ts_path_kind kind;
    ts_status status = ts_path_find(path, &kind, err);
    if (status != TS_OK)
        ; /* it stays */
    else if (kind == TS_PATH_NONE)
        status = TS_ERROR(err, TS_NOT_FOUND, "%s: is gone already", path);
    else if (ts__checkpoint_step_of(name, strlen(name), &step))
        status = ts_checkpoint_remove(s->public.folder, step, err);
    else
        status = remove_folder(path, err);
    ts_free(path);
    return status;
}

/* What removing a folder gives back, by the names that its files have at this moment: a run may have linked more. */
static void measure(const char *path, uint64_t *freed, uint64_t *shared)
{
    char **names;
    size_t n;
    if (ts_list_folder(path, &names, &n, NULL) != TS_OK) return;
    for (size_t i = 0; i < n; i++) {
        char *file = ts_path_join(path, names[i]);
        struct stat st;
        if (file && lstat(file, &st) == 0 && S_ISREG(st.st_mode))
            *(st.st_nlink == 1 ? freed : shared) += (uint64_t)st.st_size;
        ts_free(file);
    }
    ts_names_free(names, n);
}

ts_status ts_survey_remove(ts_survey *s, size_t row, bool dry, uint64_t *freed, uint64_t *shared,
                           ts_error *err)
{
    *freed = *shared = 0;
    TS_ASSERT(s->row[row].state != TS_SURVEY_WRITING);
    struct stat st;
    char *path = path_of((ts__survey *)s, row);
    if (!path) return out_of_memory(s->row[row].path, err);
    const bool link = lstat(path, &st) == 0 && S_ISLNK(st.st_mode); /* what it leads to stays */
    ts_status status = dry ? ts_folder_may_change(path, err) : TS_OK;
    if (status == TS_OK) count((ts__survey *)s, row, freed, shared);
    if (status == TS_OK && !dry) {
        *freed = *shared = 0;
        measure(path, freed, shared);
        status = remove_row((ts__survey *)s, row, err);
        if (status == TS_OK || status == TS_NOT_FOUND) s->row[row].state = TS_SURVEY_GONE;
    }
    if (status != TS_OK || link) *freed = *shared = 0;
    ts_free(path);
    return status;
}
