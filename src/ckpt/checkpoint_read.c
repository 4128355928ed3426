/* ckpt/checkpoint_read.c – opens one checkpoint and verifies it.
 *
 * A checkpoint is used only when everything about it holds: the manifest has the hash at its end and names this step,
 * the files it lists are there with their length and XXH3, every index says of every entry of its shard which box of
 * which tensor it is, and the boxes cover each tensor once. Whatever is wrong is DATA_LOSS with the file, what was
 * found and what was expected. Files that the manifest does not list are not looked at.
 *
 * Not here: which checkpoint of a run is taken (checkpoint_newest.c), how boxes become tensors (safetensors_join.c).
 */
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "ckpt/checkpoint_internal.h"
#include "ckpt/safetensors_internal.h"

enum { PIECE_BYTES = 1 << 20, HASH_TAIL = 30 /* "\n\"xxh3\": \"0123456789abcdef\"\n}\n" */ };

struct ts_checkpoint {
    char *path;
    int64_t step;
    int devices;
    double score;
    json_t *manifest;
    ts__file_record *file; /* [n_file], as the manifest lists them */
    size_t n_file;
    ts_tensors *tensors;
};

static ts_status out_of_memory(const char *path, ts_error *err)
{
    return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "%s: out of memory", path);
}

/* ---- manifest -------------------------------------------------------------------------------- */

static bool take_hash(const json_t *value, uint64_t *out)
{
    const char *text = json_string_value(value);
    if (!text || strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16) return false;
    *out = strtoull(text, NULL, 16);
    return true;
}

/* The hash at the end is of every byte before it. */
static ts_status check_tail(const char *path, const char *text, size_t n, ts_error *err)
{
    char tail[HASH_TAIL + 1];
    size_t body = n >= HASH_TAIL ? n - HASH_TAIL : 0;
    snprintf(tail, sizeof tail, "\n\"xxh3\": \"%016llx\"\n}\n",
             (unsigned long long)ts__checkpoint_hash(text, body));
    if (n >= HASH_TAIL && memcmp(text + body, tail, HASH_TAIL) == 0) return TS_OK;
    const char old[] = "\"version\": 1,";
    if (n < INT32_MAX && memmem(text, n < 200 ? n : 200, old, sizeof old - 1))
        return TS_ERROR(err, TS_DATA_LOSS,
                        "%s: is of format 1, written by an earlier program; this one reads format %d",
                        path, TS__CHECKPOINT_VERSION);
    return TS_ERROR(err, TS_DATA_LOSS,
                    "%s: does not end with the XXH3 hash of its text, %016llx (it was cut, or is "
                    "damaged)",
                    path, (unsigned long long)ts__checkpoint_hash(text, body));
}

/* Only the names that a save makes: nothing else is ever opened. */
static bool take_file(const json_t *value, int devices, ts__file_record *r)
{
    const char *name = json_string_value(json_object_get(value, "name")), *digits;
    const json_t *bytes = json_object_get(value, "bytes");
    if (!name || !json_is_integer(bytes) || json_integer_value(bytes) < 0 ||
        !take_hash(json_object_get(value, "xxh3"), &r->hash))
        return false;
    r->bytes = (uint64_t)json_integer_value(bytes);
    digits = strpbrk(name, "0123456789");
    r->device = digits ? (int)strtol(digits, NULL, 10) : -1; /* clipped; the name is compared below */
    if (r->device < 0 || r->device >= devices) return false;
    for (int kind = 0; kind < TS__FILE_KINDS; kind++) {
        r->kind = (ts__file_kind)kind;
        ts__checkpoint_file_name(r->kind, r->device, devices, r->name);
        if (strcmp(r->name, name) == 0) return true;
    }
    return false;
}

/* Each shard is followed by its index, and there are no other files. */
static bool take_files(ts_checkpoint *c, const json_t *files)
{
    const size_t n = json_array_size(files);
    bool sound = json_is_array(files) && n % 2 == 0 && n <= (size_t)TS__FILE_KINDS * (size_t)c->devices;
    for (size_t i = 0; sound && i < n; i++) {
        ts__file_record *r = &c->file[i];
        sound = take_file(json_array_get(files, i), c->devices, r);
        bool index = r->kind == TS__FILE_INDEX || r->kind == TS__FILE_FROZEN_INDEX;
        sound = sound && index == (i % 2 == 1);
        if (sound && index) sound = r->device == r[-1].device && r->kind == r[-1].kind + 1;
        /* ascending: nothing is listed twice */
        if (sound && !index && i > 0)
            sound = r[-2].kind < r->kind || (r[-2].kind == r->kind && r[-2].device < r->device);
    }
    c->n_file = sound ? n : 0;
    return sound;
}

static ts_status take_manifest(ts_checkpoint *c, const char *path, ts_error *err)
{
    const json_t *root = c->manifest, *number = json_object_get(root, "step"),
                 *devices = json_object_get(root, "devices"),
                 *score = json_object_get(root, "score"), *files = json_object_get(root, "files");
    const char *format = json_string_value(json_object_get(root, "format"));
    if (!format || strcmp(format, TS__CHECKPOINT_FORMAT) != 0)
        return TS_ERROR(err, TS_DATA_LOSS,
                        "%s: is not the manifest of a checkpoint; expected \"format\": \"%s\"",
                        path, TS__CHECKPOINT_FORMAT);
    json_int_t version = json_integer_value(json_object_get(root, "version"));
    if (version != TS__CHECKPOINT_VERSION)
        return TS_ERROR(err, TS_DATA_LOSS, "%s: format %lld; this program reads format %d", path,
                        (long long)version, TS__CHECKPOINT_VERSION);
    bool sound = json_is_integer(number) && json_integer_value(number) >= 0 &&
                 json_is_object(json_object_get(root, "state")) && json_is_integer(devices) &&
                 json_integer_value(devices) >= 1 &&
                 json_integer_value(devices) <= TS__CHECKPOINT_DEVICES &&
                 json_is_integer(json_object_get(root, "tensors")) && json_is_array(files) &&
                 (json_is_null(score) || json_is_number(score));
    if (sound) {
        c->step = json_integer_value(number);
        c->devices = (int)json_integer_value(devices);
        c->score = json_is_number(score) ? json_number_value(score) : (double)NAN;
        c->file = ts_alloc_zero((json_array_size(files) + 1) * sizeof *c->file);
        if (!c->file) return out_of_memory(path, err);
        sound = take_files(c, files);
    }
    if (!sound)
        return TS_ERROR(err, TS_DATA_LOSS, "%s: fields are missing, of the wrong type, or name files "
                                           "that no save makes",
                        path);
    return TS_OK;
}

static ts_status read_manifest(ts_checkpoint *c, const char *path, ts_error *err)
{
    char *text = NULL;
    size_t n = 0;
    TS_TRY(ts_file_read_all(path, TS__MANIFEST_BYTES, &text, &n, err));
    ts_status status = check_tail(path, text, n, err);
    if (status == TS_OK)
        status = ts_json_parse(text, n, TS__CHECKPOINT_DEPTH, path, &c->manifest, err);
    ts_free(text);
    return status == TS_OK ? take_manifest(c, path, err) : status;
}

const ts__file_record *ts__checkpoint_file(const ts_checkpoint *c, const char *name)
{
    for (size_t i = 0; i < c->n_file; i++)
        if (strcmp(c->file[i].name, name) == 0) return &c->file[i];
    return NULL;
}

/* ---- files ----------------------------------------------------------------------------------- */

typedef bool (*progress)(void *context, uint64_t bytes);

static ts_status hash_pieces(ts_file *f, unsigned char *piece, XXH3_state_t *state, progress done,
                             void *context, ts_error *err)
{
    uint64_t size = ts_file_size(f);
    XXH3_64bits_reset(state);
    for (uint64_t at = 0; at < size; at += PIECE_BYTES) {
        size_t n = size - at < PIECE_BYTES ? (size_t)(size - at) : PIECE_BYTES;
        TS_TRY(ts_file_read_at(f, at, piece, n, err));
        XXH3_64bits_update(state, piece, n);
        if (done && !done(context, n)) return TS_ERROR(err, TS_CANCELLED, "stopped");
    }
    return TS_OK;
}

ts_status ts__checkpoint_hash_file(const char *path, progress done, void *context, uint64_t *hash,
                                   uint64_t *bytes, ts_error *err)
{
    ts_file *f;
    unsigned char *piece = ts_alloc(PIECE_BYTES);
    XXH3_state_t *state = ts_alloc(sizeof *state); /* needs 64-byte alignment, which we give */
    ts_status status = piece && state ? ts_file_open(path, &f, err) : out_of_memory(path, err);
    if (status == TS_OK) {
        *bytes = ts_file_size(f);
        status = hash_pieces(f, piece, state, done, context, err);
        if (status == TS_OK) *hash = XXH3_64bits_digest(state);
        ts_file_close(f);
    }
    ts_free(state);
    ts_free(piece);
    return status;
}

static ts_status wrong_hash(const char *path, uint64_t found, uint64_t expected, ts_error *err)
{
    return TS_ERROR(err, TS_DATA_LOSS,
                    "%s: its XXH3 hash is %016llx; the manifest says %016llx (the file is damaged)",
                    path, (unsigned long long)found, (unsigned long long)expected);
}

static ts_status check_length(const char *path, const ts__file_record *r, ts_error *err)
{
    ts_file *f;
    ts_error why = {0};
    ts_status status = ts_file_open(path, &f, &why);
    if (status == TS_NOT_FOUND)
        return TS_ERROR(err, TS_DATA_LOSS, "%s: is missing; the manifest lists it", path);
    if (status != TS_OK) return TS_ERROR(err, status, "%s", why.msg);
    uint64_t size = ts_file_size(f);
    ts_file_close(f);
    if (size == r->bytes) return TS_OK;
    return TS_ERROR(err, TS_DATA_LOSS, "%s: has %llu bytes; the manifest says %llu", path,
                    (unsigned long long)size, (unsigned long long)r->bytes);
}

ts_status ts_checkpoint_verify(ts_checkpoint *c, progress done, void *context, ts_error *err)
{
    for (size_t i = 0; i < c->n_file; i++) {
        uint64_t hash = 0, bytes = 0;
        char *path = ts_path_join(c->path, c->file[i].name);
        if (!path) return out_of_memory(c->path, err);
        ts_status status = check_length(path, &c->file[i], err);
        if (status == TS_OK)
            status = ts__checkpoint_hash_file(path, done, context, &hash, &bytes, err);
        if (status == TS_OK && hash != c->file[i].hash)
            status = wrong_hash(path, hash, c->file[i].hash, err);
        ts_free(path);
        TS_TRY(status);
    }
    return TS_OK;
}

/* ---- index ----------------------------------------------------------------------------------- */

static bool take_dims(const json_t *list, int *rank, int64_t *dim)
{
    size_t n = json_array_size(list);
    if (!json_is_array(list) || n > TS_TENSOR_RANK) return false;
    *rank = (int)n;
    for (size_t i = 0; i < n; i++) {
        const json_t *value = json_array_get(list, i);
        dim[i] = json_integer_value(value);
        if (!json_is_integer(value) || dim[i] < 0 || dim[i] >= INT64_C(1) << 48) return false;
    }
    return true;
}

/* {"dtype": "F32", "shape": …, ["grid": …,] "offset": …, "extent": …} of the entry x. */
static bool take_place(const json_t *value, const ts_tensor *x, ts__tensor_place *p)
{
    const json_t *grid = json_object_get(value, "grid");
    const char *dtype = json_string_value(json_object_get(value, "dtype"));
    int ranks[3] = {0};
    size_t elements = 1;
    *p = (ts__tensor_place){0};
    bool sound = json_is_object(value) && dtype && strcmp(dtype, ts_file_dtype_name(x->dtype)) == 0 &&
                 take_dims(json_object_get(value, "shape"), &p->rank, p->dim) &&
                 take_dims(grid ? grid : json_object_get(value, "shape"), &ranks[0], p->box.global) &&
                 take_dims(json_object_get(value, "offset"), &ranks[1], p->box.offset) &&
                 take_dims(json_object_get(value, "extent"), &ranks[2], p->box.local) &&
                 ranks[0] == ranks[1] && ranks[0] == ranks[2] && x->rank == ranks[0];
    p->box.rank = ranks[0];
    for (int i = 0; sound && i < x->rank; i++) sound = x->dim[i] == p->box.local[i];
    for (int i = 0; sound && i < p->rank; i++)
        sound = !ts_mul_size(elements, (size_t)p->dim[i], &elements);
    size_t whole = 1;
    sound = sound && ts_box_finish(&p->box); /* the product of the grid does not overflow then */
    for (int i = 0; sound && i < p->box.rank; i++) whole *= (size_t)p->box.global[i];
    return sound && whole == elements;
}

/* Entries first … of the list, of one shard, by what its index says. */
static ts_status take_index(ts_tensors *t, size_t first, const char *path, const char *shard,
                            const json_t *root, ts__tensor_place *place, ts_error *err)
{
    const char *format = json_string_value(json_object_get(root, "format"));
    const char *of = json_string_value(json_object_get(root, "shard"));
    const json_t *entries = json_object_get(root, "tensors");
    if (!format || strcmp(format, TS__INDEX_FORMAT) != 0 || !of || strcmp(of, shard) != 0 ||
        !json_is_object(entries) || json_object_size(entries) != t->n - first)
        return TS_ERROR(err, TS_DATA_LOSS,
                        "%s: is not the index of %s and its %zu entries", path, shard, t->n - first);
    for (size_t i = first; i < t->n; i++)
        if (!take_place(json_object_get(entries, t->tensor[i].name), &t->tensor[i], &place[i]))
            return TS_ERROR(err, TS_DATA_LOSS,
                            "%s: says nothing, or nothing that fits, of tensor \"%s\" in %s", path,
                            t->tensor[i].name, shard);
    return TS_OK;
}

static ts_status read_index(const char *path, const ts__file_record *r, json_t **root,
                            ts_error *err)
{
    char *text = NULL;
    size_t n = 0;
    ts_error why = {0};
    ts_status status = ts_file_read_all(path, TS__INDEX_BYTES, &text, &n, &why);
    if (status == TS_NOT_FOUND)
        return TS_ERROR(err, TS_DATA_LOSS, "%s: is missing; the manifest lists it", path);
    if (status != TS_OK) return TS_ERROR(err, status, "%s", why.msg);
    uint64_t hash = ts__checkpoint_hash(text, n);
    status = n == r->bytes && hash == r->hash
                 ? ts_json_parse(text, n, 8, path, root, err)
                 : wrong_hash(path, hash, r->hash, err);
    ts_free(text);
    return status;
}

/* ---- tensors --------------------------------------------------------------------------------- */

/* A shard and its index, behind those before. *place grows with the list. */
static ts_status add_shard(ts_checkpoint *c, const ts__file_record *r, ts__tensor_place **place,
                           size_t *capacity, ts_error *err)
{
    size_t first = c->tensors->n;
    char *shard = ts_path_join(c->path, r[0].name), *index = ts_path_join(c->path, r[1].name);
    json_t *root = NULL;
    ts_status status = shard && index ? TS_OK : out_of_memory(c->path, err);
    if (status == TS_OK) status = check_length(shard, &r[0], err);
    if (status == TS_OK) status = ts__tensors_add_file(c->tensors, shard, err);
    if (status == TS_OK) status = read_index(index, &r[1], &root, err);
    if (status == TS_OK && c->tensors->n > *capacity) {
        size_t wanted = 2 * c->tensors->n;
        ts__tensor_place *more =
            ts_realloc(*place, *capacity * sizeof *more, wanted * sizeof *more);
        if (more)
            *place = more;
        else
            status = out_of_memory(c->path, err);
        if (more) *capacity = wanted;
    }
    if (status == TS_OK)
        status = take_index(c->tensors, first, index, r[0].name, root, *place, err);
    json_decref(root);
    ts_free(index);
    ts_free(shard);
    return status;
}

static ts_status open_tensors(ts_checkpoint *c, const char *manifest, ts_error *err)
{
    ts__tensor_place *place = NULL;
    size_t capacity = 0;
    c->tensors = ts__tensors_new((int)(c->n_file / 2) + 1);
    ts_status status = c->tensors ? TS_OK : out_of_memory(c->path, err);
    for (size_t i = 0; i < c->n_file && status == TS_OK; i += 2)
        status = add_shard(c, &c->file[i], &place, &capacity, err);
    if (status == TS_OK) status = ts__tensors_join(c->tensors, place, c->path, err);
    json_int_t wanted = json_integer_value(json_object_get(c->manifest, "tensors"));
    if (status == TS_OK && (json_int_t)c->tensors->n != wanted)
        status = TS_ERROR(err, TS_DATA_LOSS, "%s: says %lld tensors; its shards hold %zu", manifest,
                          (long long)wanted, c->tensors->n);
    ts_free(place);
    return status;
}

/* ---- opening --------------------------------------------------------------------------------- */

/* The last part of a path, without slashes at its end. */
static bool step_of_path(const char *path, int64_t *step)
{
    size_t end = strlen(path);
    while (end > 0 && path[end - 1] == '/') end--;
    size_t begin = end;
    while (begin > 0 && path[begin - 1] != '/') begin--;
    return ts__checkpoint_step_of(path + begin, end - begin, step);
}

bool ts__checkpoint_is_committed(const char *path)
{
    char *manifest = ts_path_join(path, TS__CHECKPOINT_MANIFEST), *text = NULL;
    size_t n = 0;
    bool is = manifest && ts_file_read_all(manifest, TS__MANIFEST_BYTES, &text, &n, NULL) == TS_OK &&
              check_tail(manifest, text, n, NULL) == TS_OK;
    ts_free(text);
    ts_free(manifest);
    return is;
}

static ts_status check_lengths(const ts_checkpoint *c, ts_error *err)
{
    for (size_t i = 0; i < c->n_file; i++) {
        char *path = ts_path_join(c->path, c->file[i].name);
        ts_status status = path ? check_length(path, &c->file[i], err) : out_of_memory(c->path, err);
        ts_free(path);
        TS_TRY(status);
    }
    return TS_OK;
}

typedef enum how { GLANCE, LOOK, VERIFY } how;

static ts_status open_parts(ts_checkpoint *c, how h, ts_error *err)
{
    char *manifest = ts_path_join(c->path, TS__CHECKPOINT_MANIFEST);
    int64_t named;
    ts_path_kind folder = TS_PATH_NONE, file = TS_PATH_NONE;
    ts_status status = manifest ? ts_path_find(c->path, &folder, err) : out_of_memory(c->path, err);
    if (status == TS_OK) status = ts_path_find(manifest, &file, err);
    if (status == TS_OK && folder == TS_PATH_FOLDER && file == TS_PATH_NONE)
        status = TS_ERROR(err, TS_DATA_LOSS,
                          "%s: has no %s: the save never finished, or this is no checkpoint",
                          c->path, TS__CHECKPOINT_MANIFEST);
    if (status == TS_OK) status = read_manifest(c, manifest, err);
    if (status == TS_OK && step_of_path(c->path, &named) && named != c->step)
        status = TS_ERROR(err, TS_DATA_LOSS, "%s: is of step %lld; its folder says %lld", manifest,
                          (long long)c->step, (long long)named);
    if (status == TS_OK && h == GLANCE) status = check_lengths(c, err);
    if (status == TS_OK && h == VERIFY) {
        const double gigabytes = (double)ts_checkpoint_bytes(c) / 1e9;
        if (gigabytes > 1) ts_log(TS_LOG_INFO, "verifying %s, %.1f GB", c->path, gigabytes);
        status = ts_checkpoint_verify(c, NULL, NULL, err);
    }
    if (status == TS_OK && h != GLANCE) status = open_tensors(c, manifest, err);
    ts_free(manifest);
    return status;
}

static ts_status open_checkpoint(const char *path, how h, ts_checkpoint **out, ts_error *err)
{
    *out = NULL;
    ts_checkpoint *c = ts_alloc_zero(sizeof *c);
    if (c) c->path = ts_strdup(path);
    ts_status status = c && c->path ? open_parts(c, h, err) : out_of_memory(path, err);
    if (status == TS_OK)
        *out = c;
    else
        ts_checkpoint_close(c);
    return status;
}

ts_status ts_checkpoint_open(const char *path, ts_checkpoint **out, ts_error *err)
{
    return open_checkpoint(path, VERIFY, out, err);
}

ts_status ts_checkpoint_look(const char *path, ts_checkpoint **out, ts_error *err)
{
    return open_checkpoint(path, LOOK, out, err);
}

ts_status ts__checkpoint_glance(const char *path, ts_checkpoint **out, ts_error *err)
{
    return open_checkpoint(path, GLANCE, out, err);
}

void ts_checkpoint_close(ts_checkpoint *c)
{
    if (!c) return;
    ts_tensors_close(c->tensors);
    json_decref(c->manifest);
    ts_free(c->file);
    ts_free(c->path);
    ts_free(c);
}

/* ---- what it says of itself ------------------------------------------------------------------ */

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

static const char *text_of(const ts_checkpoint *c, const char *key, const char *otherwise)
{
    const char *text = json_string_value(json_object_get(c->manifest, key));
    return text ? text : otherwise;
}

const char *ts_checkpoint_program(const ts_checkpoint *c)
{
    return text_of(c, "program", "unknown");
}

const char *ts_checkpoint_mesh(const ts_checkpoint *c)
{
    return text_of(c, "mesh", "");
}

const char *ts_checkpoint_written(const ts_checkpoint *c)
{
    return text_of(c, "written", "");
}

double ts_checkpoint_score(const ts_checkpoint *c)
{
    return c->score;
}

int ts_checkpoint_devices(const ts_checkpoint *c)
{
    return c->devices;
}

static uint64_t bytes_of(const ts_checkpoint *c, bool frozen_only)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < c->n_file; i++)
        if (!frozen_only || c->file[i].kind == TS__FILE_FROZEN) sum += c->file[i].bytes;
    return sum;
}

uint64_t ts_checkpoint_bytes(const ts_checkpoint *c)
{
    return bytes_of(c, false);
}

uint64_t ts_checkpoint_frozen_bytes(const ts_checkpoint *c)
{
    return bytes_of(c, true);
}

ts_tensors *ts_checkpoint_tensors(const ts_checkpoint *c)
{
    return c->tensors;
}
