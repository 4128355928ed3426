/* ckpt/checkpoint_read.c – lists, verifies and opens checkpoints.
 *
 * A checkpoint is used only when everything about it holds: the manifest parses and names this step,
 * its state has the hash it was written with, the shard has its length and XXH3, and the strict
 * safetensors reader accepts it. Anything else is skipped for the one before, with the reason in the
 * log. Trouble that is not the checkpoint's own (no permission, memory out) is returned at once:
 * skipping would silently throw training away.
 */
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "ckpt/checkpoint_internal.h"

enum { PIECE_BYTES = 1 << 20, SAME_FAILURES_MAX = 3 };

struct ts_checkpoint {
    char *path;
    int64_t step;
    json_t *manifest;
    ts_tensors *tensors;
};

bool ts__checkpoint_state_hash(const json_t *state, uint64_t *hash)
{
    char *text = ts_json_dump(state, JSON_COMPACT | JSON_SORT_KEYS);
    if (!text) return false;
    *hash = XXH3_64bits(text, strlen(text));
    ts_free(text);
    return true;
}

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
    if (ts_path_kind_of(folder) == TS_PATH_NONE) return TS_OK;
    TS_TRY(ts_list_folder(folder, &names, &n_names, err));
    int64_t *found = ts_alloc(n_names * sizeof *found);
    ts_status status =
        found ? TS_OK : TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "%s: out of memory", folder);
    for (size_t i = 0; i < n_names && status == TS_OK; i++) {
        int64_t step;
        if (!ts__checkpoint_step_of(names[i], strlen(names[i]), &step)) continue;
        char *path = ts_path_join(folder, names[i]);
        if (!path)
            status = TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "%s: out of memory", folder);
        else if (ts_path_kind_of(path) == TS_PATH_FOLDER)
            found[(*n)++] = step;
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

/* ---- verification ---------------------------------------------------------------------------- */

typedef struct shard_record {
    const char *file;
    uint64_t bytes, hash;
    size_t tensors;
} shard_record;

static bool take_hash(const json_t *value, uint64_t *out)
{
    const char *text = json_string_value(value);
    if (!text || strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16) return false;
    *out = strtoull(text, NULL, 16);
    return true;
}

/* The fixed part of the manifest. */
static ts_status check_manifest(const char *path, const json_t *root, int64_t *step,
                                shard_record *s, ts_error *err)
{
    const char *format = json_string_value(json_object_get(root, "format"));
    if (!format || strcmp(format, TS__CHECKPOINT_FORMAT) != 0)
        return TS_ERROR(err, TS_DATA_LOSS,
                        "%s: is not the manifest of a checkpoint; expected \"format\": \"%s\"",
                        path, TS__CHECKPOINT_FORMAT);
    json_int_t version = json_integer_value(json_object_get(root, "version"));
    if (version != TS__CHECKPOINT_VERSION)
        return TS_ERROR(err, TS_DATA_LOSS, "%s: version %lld; this program reads version %d", path,
                        (long long)version, TS__CHECKPOINT_VERSION);
    const json_t *number = json_object_get(root, "step"), *shards = json_object_get(root, "shards");
    const json_t *one = json_array_get(shards, 0), *state = json_object_get(root, "state");
    const json_t *bytes = json_object_get(one, "bytes"), *tensors = json_object_get(one, "tensors");
    uint64_t state_hash, wanted;
    s->file = json_string_value(json_object_get(one, "file"));
    bool sound = json_is_integer(number) && json_is_object(state) && json_is_integer(bytes) &&
                 json_is_integer(tensors) && s->file &&
                 take_hash(json_object_get(one, "xxh3"), &s->hash) &&
                 take_hash(json_object_get(root, "state_xxh3"), &wanted);
    if (!sound)
        return TS_ERROR(err, TS_DATA_LOSS, "%s: fields are missing or of the wrong type", path);
    if (json_array_size(shards) != 1 || strcmp(s->file, TS__CHECKPOINT_SHARD) != 0)
        return TS_ERROR(err, TS_DATA_LOSS,
                        "%s: lists %zu shards, the first \"%.100s\"; expected one, \"%s\"", path,
                        json_array_size(shards), s->file, TS__CHECKPOINT_SHARD);
    if (!ts__checkpoint_state_hash(state, &state_hash))
        return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "%s: out of memory", path);
    if (state_hash != wanted)
        return TS_ERROR(err, TS_DATA_LOSS, "%s: the state does not have the hash it was saved with",
                        path);
    *step = json_integer_value(number);
    s->bytes = (uint64_t)json_integer_value(bytes);
    s->tensors = (size_t)json_integer_value(tensors);
    return TS_OK;
}

static ts_status hash_file(ts_file *f, uint64_t *hash, ts_error *err)
{
    unsigned char *piece = ts_alloc(PIECE_BYTES);
    XXH3_state_t *state = ts_alloc(sizeof *state);
    ts_status status = TS_OK;
    if (!piece || !state)
        status = TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "%s: out of memory", ts_file_path(f));
    else
        XXH3_64bits_reset(state);
    uint64_t size = ts_file_size(f);
    for (uint64_t at = 0; at < size && status == TS_OK; at += PIECE_BYTES) {
        size_t n = size - at < PIECE_BYTES ? (size_t)(size - at) : PIECE_BYTES;
        status = ts_file_read_at(f, at, piece, n, err);
        if (status == TS_OK) XXH3_64bits_update(state, piece, n);
    }
    if (status == TS_OK) *hash = XXH3_64bits_digest(state);
    ts_free(state);
    ts_free(piece);
    return status;
}

static ts_status check_shard(const char *path, const shard_record *s, ts_error *err)
{
    ts_file *f;
    uint64_t hash = 0;
    TS_TRY(ts_file_open(path, &f, err));
    ts_status status;
    if (ts_file_size(f) != s->bytes)
        status = TS_ERROR(err, TS_DATA_LOSS, "%s: has %llu bytes; the manifest says %llu", path,
                          (unsigned long long)ts_file_size(f), (unsigned long long)s->bytes);
    else if ((status = hash_file(f, &hash, err)) == TS_OK && hash != s->hash)
        status = TS_ERROR(err, TS_DATA_LOSS,
                          "%s: its XXH3 hash is %016llx; the manifest says %016llx (the file is "
                          "damaged)",
                          path, (unsigned long long)hash, (unsigned long long)s->hash);
    ts_file_close(f);
    return status;
}

/* The last part of a path, without slashes at its end. */
static bool step_of_path(const char *path, int64_t *step)
{
    size_t end = strlen(path);
    while (end > 0 && path[end - 1] == '/') end--;
    size_t begin = end;
    while (begin > 0 && path[begin - 1] != '/') begin--;
    return ts__checkpoint_step_of(path + begin, end - begin, step);
}

static ts_status open_parts(ts_checkpoint *c, ts_error *err)
{
    char *manifest = ts_path_join(c->path, TS__CHECKPOINT_MANIFEST);
    char *shard_path = ts_path_join(c->path, TS__CHECKPOINT_SHARD);
    shard_record s = {0};
    int64_t named;
    ts_status status = TS_OK;
    if (!manifest || !shard_path)
        status = TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "%s: out of memory", c->path);
    else if (ts_path_kind_of(c->path) == TS_PATH_FOLDER &&
             ts_path_kind_of(manifest) == TS_PATH_NONE)
        status = TS_ERROR(err, TS_DATA_LOSS,
                          "%s: has no %s: the save never finished, or this is no checkpoint",
                          c->path, TS__CHECKPOINT_MANIFEST);
    if (status == TS_OK)
        status =
            ts_json_read(manifest, TS__MANIFEST_BYTES, TS__CHECKPOINT_DEPTH, &c->manifest, err);
    if (status == TS_OK) status = check_manifest(manifest, c->manifest, &c->step, &s, err);
    if (status == TS_OK && step_of_path(c->path, &named) && named != c->step)
        status = TS_ERROR(err, TS_DATA_LOSS, "%s: is of step %lld; its folder says %lld", manifest,
                          (long long)c->step, (long long)named);
    if (status == TS_OK) status = check_shard(shard_path, &s, err);
    if (status == TS_OK) status = ts_tensors_open(shard_path, &c->tensors, err);
    if (status == TS_OK && ts_tensors_count(c->tensors) != s.tensors)
        status = TS_ERROR(err, TS_DATA_LOSS, "%s: holds %zu tensors; the manifest says %zu",
                          shard_path, ts_tensors_count(c->tensors), s.tensors);
    ts_free(shard_path);
    ts_free(manifest);
    return status;
}

ts_status ts_checkpoint_open(const char *path, ts_checkpoint **out, ts_error *err)
{
    *out = NULL;
    ts_checkpoint *c = ts_alloc_zero(sizeof *c);
    if (c) c->path = ts_strdup(path);
    ts_status status = c && c->path
                           ? open_parts(c, err)
                           : TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "%s: out of memory", path);
    if (status == TS_OK)
        *out = c;
    else
        ts_checkpoint_close(c);
    return status;
}

/* ---- the newest ------------------------------------------------------------------------------ */

/* Is it this checkpoint that is bad, or our access to all of them? */
static bool is_its_own_fault(ts_status status)
{
    return status == TS_DATA_LOSS || status == TS_NOT_FOUND || status == TS_INVALID_ARGUMENT;
}

/* From the newest backwards; stops when the same check fails three times running. */
static ts_status try_steps(const char *folder, const int64_t *steps, size_t n, ts_checkpoint **out,
                           ts_error *err)
{
    ts_error first = {0}, last = {0};
    int same = 0;
    size_t tried = 0;
    for (size_t i = n; i-- > 0 && same < SAME_FAILURES_MAX;) {
        char name[32];
        snprintf(name, sizeof name, "%lld", (long long)steps[i]);
        char *path = ts_path_join(folder, name);
        if (!path) return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "%s: out of memory", folder);
        ts_error why = {0};
        ts_status status = ts_checkpoint_open(path, out, &why);
        ts_free(path);
        if (status == TS_OK) return TS_OK;
        if (!is_its_own_fault(status)) {
            if (err && err->code == TS_OK) *err = why;
            return status;
        }
        ts_log(TS_LOG_WARNING, "skipped the checkpoint of step %s: %s", name, why.msg);
        same = tried > 0 && why.line == last.line && why.file == last.file ? same + 1 : 1;
        if (tried++ == 0) first = why;
        last = why;
    }
    return TS_ERROR(err, TS_DATA_LOSS,
                    "%s: none of the newest %zu of %zu checkpoints can be used; step %lld: %.3000s",
                    folder, tried, n, (long long)steps[n - 1], first.msg);
}

ts_status ts_checkpoint_open_newest(const char *folder, ts_checkpoint **out, ts_error *err)
{
    int64_t *steps;
    size_t n;
    *out = NULL;
    TS_TRY(ts_checkpoint_list(folder, &steps, &n, err));
    ts_status status = n ? try_steps(folder, steps, n, out, err)
                         : TS_ERROR(err, TS_NOT_FOUND, "%s: holds no checkpoint", folder);
    ts_free(steps);
    return status;
}

void ts_checkpoint_close(ts_checkpoint *c)
{
    if (!c) return;
    ts_tensors_close(c->tensors);
    json_decref(c->manifest);
    ts_free(c->path);
    ts_free(c);
}

int64_t ts_checkpoint_step(const ts_checkpoint *c)
{
    return c->step;
}

const char *ts_checkpoint_path(const ts_checkpoint *c)
{
    return c->path;
}

const json_t *ts_checkpoint_state(const ts_checkpoint *c)
{
    return json_object_get(c->manifest, "state");
}

const char *ts_checkpoint_program(const ts_checkpoint *c)
{
    const char *program = json_string_value(json_object_get(c->manifest, "program"));
    return program ? program : "unknown";
}

ts_tensors *ts_checkpoint_tensors(const ts_checkpoint *c)
{
    return c->tensors;
}
