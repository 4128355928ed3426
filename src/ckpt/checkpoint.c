/* ckpt/checkpoint.c – saves a checkpoint so that a crash at any point leaves the old or the new one.
 *
 * Order: write the shard and sync it; write the manifest with the shard's length and hash and sync
 * it; sync the temporary folder; rename it; sync the parent. Before the rename nothing of the run has
 * changed; after it everything is on disk. A failed fsync gives the checkpoint up: the kernel may
 * have dropped the pages, so a second fsync that succeeds would prove nothing.
 *
 * Leftovers of killed saves are found by name and removed at the next save, when their process is
 * gone. Not here: reading (checkpoint_read.c), several shards, object stores, asynchronous saves.
 */
#include "ckpt/checkpoint.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "ckpt/checkpoint_internal.h"

enum { PIECE = 1 << 18, HOST_BYTES = 64, STALE_SECONDS = 24 * 3600 };

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

/* folder/step, and with temporary the place where it is written. Owns: caller. */
static char *step_path(const char *folder, int64_t step, bool temporary)
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

/* Is "<step>.tmp-<host>-<pid>" of a save that can no longer be running? Another host's processes
 * cannot be asked, so its leftovers must be a day old. */
static bool is_leftover(const char *path, const char *name)
{
    const char *mark = strstr(name, ".tmp-"), *dash = strrchr(name, '-');
    int64_t step, pid;
    if (!mark || !ts__checkpoint_step_of(name, (size_t)(mark - name), &step)) return false;
    const char *host = mark + strlen(".tmp-");
    if (dash < host || !ts__checkpoint_step_of(dash + 1, strlen(dash + 1), &pid)) return false;
    char here[HOST_BYTES + 1];
    host_name(here);
    size_t host_bytes = (size_t)(dash - host);
    if (strlen(here) == host_bytes && memcmp(here, host, host_bytes) == 0) {
        if (pid == getpid()) return true; /* one save at a time: an earlier one of this number */
        return pid <= 0 || pid > INT32_MAX || (kill((pid_t)pid, 0) != 0 && errno == ESRCH);
    }
    struct stat st;
    return stat(path, &st) == 0 && time(NULL) - st.st_mtime > STALE_SECONDS;
}

static ts_status remove_leftovers(const char *folder, ts_error *err)
{
    char **names;
    size_t n;
    TS_TRY(ts_list_folder(folder, &names, &n, err));
    for (size_t i = 0; i < n; i++) {
        char *path = ts_path_join(folder, names[i]);
        ts_error why = {0};
        if (!path || !is_leftover(path, names[i])) {
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

/* ---- shard and manifest ---------------------------------------------------------------------- */

static ts_status write_entry(ts_tensor_writer *w, const ts_checkpoint_entry *e, float *piece,
                             ts_error *err)
{
    uint64_t count = 1; /* the writer has checked that this does not overflow */
    for (int i = 0; i < e->rank; i++) count *= (uint64_t)e->dim[i];
    for (uint64_t first = 0; first < count; first += PIECE) {
        size_t n = count - first < PIECE ? (size_t)(count - first) : PIECE;
        if (!e->data) {
            ts_status status = e->fill(e->context, first, n, piece, err);
            if (status != TS_OK) return ts__error_context(err, "values of \"%s\"", e->name), status;
        }
        TS_TRY(ts_tensor_writer_add(w, e->data ? e->data + first : piece, n * sizeof *piece, err));
    }
    return TS_OK;
}

typedef struct shard {
    uint64_t hash, bytes;
} shard;

static ts_status write_shard(const char *path, const ts_checkpoint_entry *entries, size_t n,
                             shard *out, ts_error *err)
{
    static const char *const metadata[][2] = {{"format", "pt"}};
    size_t bytes;
    ts_tensor_spec *specs = ts_mul_size(n, sizeof *specs, &bytes) ? NULL : ts_alloc(bytes);
    float *piece = ts_alloc(PIECE * sizeof *piece);
    ts_tensor_writer *w = NULL;
    ts_status status = specs && piece ? TS_OK : out_of_memory(path, err);
    if (status == TS_OK) {
        for (size_t i = 0; i < n; i++) {
            TS_ASSERT(entries[i].rank >= 0 && entries[i].rank <= TS_TENSOR_RANK);
            TS_ASSERT(entries[i].data || entries[i].fill);
            specs[i] = (ts_tensor_spec){
                .name = entries[i].name, .dtype = TS_FILE_F32, .rank = entries[i].rank};
            memcpy(specs[i].dim, entries[i].dim, sizeof specs[i].dim);
        }
        status = ts_tensor_writer_open(path, specs, n, metadata, 1, &w, err);
    }
    for (size_t i = 0; i < n && status == TS_OK; i++)
        status = write_entry(w, &entries[i], piece, err);
    if (status == TS_OK) {
        status = ts_tensor_writer_close(w, true, &out->hash, &out->bytes, err);
        w = NULL;
    }
    ts_tensor_writer_abandon(w);
    ts_free(piece);
    ts_free(specs);
    return status;
}

/* Not built as a JSON tree: that would copy the state, and a tree can lose a key when memory is out. */
static ts_status make_manifest(int64_t step, const json_t *state, size_t tensors, const shard *s,
                               ts_string *out)
{
    uint64_t state_hash;
    char *text = ts_json_dump(state, JSON_INDENT(2));
    if (!text || !ts__checkpoint_state_hash(state, &state_hash)) {
        ts_free(text);
        return TS_RESOURCE_EXHAUSTED;
    }
    ts_string_printf(out, "{\n\"format\": \"%s\",\n\"version\": %d,\n", TS__CHECKPOINT_FORMAT,
                     TS__CHECKPOINT_VERSION);
    ts_string_printf(out, "\"program\": \"tessera %s\",\n\"step\": %lld,\n", TS_VERSION,
                     (long long)step);
    ts_string_printf(out, "\"shards\": [{\"file\": \"%s\", \"bytes\": %llu, ", TS__CHECKPOINT_SHARD,
                     (unsigned long long)s->bytes);
    ts_string_printf(out, "\"xxh3\": \"%016llx\", \"tensors\": %zu}],\n",
                     (unsigned long long)s->hash, tensors);
    ts_string_printf(out,
                     "\"state_xxh3\": \"%016llx\",\n\"state\": ", (unsigned long long)state_hash);
    ts_string_add(out, text);
    ts_string_add(out, "\n}\n");
    ts_free(text);
    return out->failed ? TS_RESOURCE_EXHAUSTED : TS_OK;
}

static ts_status write_manifest(const char *path, const ts_string *text, ts_error *err)
{
    ts_writer *w;
    TS_TRY(ts_writer_open(path, false, &w, err));
    ts_status status = ts_writer_write(w, text->data, text->length, err);
    if (status == TS_OK) return ts_writer_close(w, true, err);
    ts_writer_abandon(w);
    return status;
}

/* Everything of the checkpoint in the temporary folder, durable. */
static ts_status write_all(const char *temporary, int64_t step, const ts_checkpoint_entry *entries,
                           size_t n, const json_t *state, ts_error *err)
{
    char *shard_path = ts_path_join(temporary, TS__CHECKPOINT_SHARD);
    char *manifest_path = ts_path_join(temporary, TS__CHECKPOINT_MANIFEST);
    ts_string text = ts_string_new(TS__MANIFEST_BYTES);
    shard s;
    ts_status status = shard_path && manifest_path ? TS_OK : out_of_memory(temporary, err);
    if (status == TS_OK) status = ts_make_folders(temporary, err);
    if (status == TS_OK) status = write_shard(shard_path, entries, n, &s, err);
    if (status == TS_OK) {
        bool made = make_manifest(step, state, n, &s, &text) == TS_OK;
        status =
            made ? write_manifest(manifest_path, &text, err)
                 : TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "%s: no memory for it, or over %d bytes",
                            manifest_path, TS__MANIFEST_BYTES);
    }
    if (status == TS_OK) status = ts_sync_folder(temporary, err);
    ts_string_free(&text);
    ts_free(manifest_path);
    ts_free(shard_path);
    return status;
}

/* ---- commit ---------------------------------------------------------------------------------- */

/* Puts the durable temporary folder in its place. *replaced: temporary now holds the old one. */
static ts_status put_in_place(const char *temporary, const char *final, bool *replaced,
                              ts_error *err)
{
    *replaced = false;
    if (ts_path_kind_of(final) == TS_PATH_NONE) return ts_rename(temporary, final, err);
    ts_error why = {0};
    ts_status status = ts_exchange(temporary, final, &why);
    if (status == TS_OK) return *replaced = true, TS_OK;
    if (status != TS_UNIMPLEMENTED) {
        if (err && err->code == TS_OK) *err = why;
        return status;
    }
    /* Without an exchange the old one would be missing for a moment: only a useless one may be. */
    ts_checkpoint *old = NULL;
    if (ts_checkpoint_open(final, &old, NULL) != TS_DATA_LOSS) {
        ts_checkpoint_close(old);
        return TS_ERROR(err, TS_ALREADY_EXISTS,
                        "%s: a checkpoint of this step is there and the file "
                        "system cannot exchange folders; remove it, or save another step",
                        final);
    }
    TS_TRY(ts_remove_tree(final, err));
    return ts_rename(temporary, final, err);
}

/* The folder that holds this folder. Owns: caller. */
static char *parent_of(const char *path)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    while (n > 0 && path[n - 1] != '/') n--;
    if (n == 0) return ts_strdup(".");
    char *parent = ts_strdup(path);
    if (parent) parent[n] = '\0';
    return parent;
}

static ts_status save(const char *folder, const char *temporary, const char *final, int64_t step,
                      const ts_checkpoint_entry *entries, size_t n, const json_t *state,
                      ts_error *err)
{
    bool replaced = false;
    char *parent = parent_of(folder);
    ts_status status = parent ? ts_make_folders(folder, err) : out_of_memory(folder, err);
    if (status == TS_OK) status = ts_sync_folder(parent, err);
    ts_free(parent);
    TS_TRY(status);
    TS_TRY(remove_leftovers(folder, err));
    status = write_all(temporary, step, entries, n, state, err);
    if (status == TS_OK) status = put_in_place(temporary, final, &replaced, err);
    if (status != TS_OK) {
        (void)ts_remove_tree(temporary,
                             NULL); /* what cannot be removed now goes at the next save */
        return status;
    }
    TS_TRY(ts_sync_folder(folder, err));
    if (replaced) (void)ts_remove_tree(temporary, NULL);
    return TS_OK;
}

ts_status ts_checkpoint_save(const char *folder, int64_t step, const ts_checkpoint_entry *entries,
                             size_t n, const json_t *state, ts_error *err)
{
    TS_ASSERT(step >= 0 && json_is_object(state));
    char *temporary = step_path(folder, step, true), *final = step_path(folder, step, false);
    ts_status status = temporary && final ? TS_OK : out_of_memory(folder, err);
    if (status == TS_OK) status = save(folder, temporary, final, step, entries, n, state, err);
    if (status != TS_OK)
        ts__error_context(err,
                          "the checkpoint of step %lld was not saved, earlier ones are untouched",
                          (long long)step);
    ts_free(temporary);
    ts_free(final);
    return status;
}

/* Renamed first, so that a half removed folder never carries a step's name. */
static ts_status remove_step(const char *folder, int64_t step, ts_error *err)
{
    char *temporary = step_path(folder, step, true), *final = step_path(folder, step, false);
    ts_status status = temporary && final ? TS_OK : out_of_memory(folder, err);
    if (status == TS_OK) status = ts_rename(final, temporary, err);
    if (status == TS_OK) status = ts_remove_tree(temporary, err);
    ts_free(temporary);
    ts_free(final);
    return status;
}

ts_status ts_checkpoint_keep(const char *folder, int64_t saved_step, size_t keep, ts_error *err)
{
    int64_t *steps;
    size_t n;
    TS_TRY(ts_checkpoint_list(folder, &steps, &n, err));
    if (keep == 0) keep = 1;
    while (n > 0 && steps[n - 1] > saved_step) n--;
    ts_status status = TS_OK;
    for (size_t i = 0; i + keep < n && status == TS_OK; i++)
        status = remove_step(folder, steps[i], err);
    ts_free(steps);
    return status;
}
