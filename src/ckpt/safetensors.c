/* ckpt/safetensors.c – opens safetensors files and reads from their tensors.
 *
 * Headers and data come by pread in bounded pieces; files are never mapped, because a mapped file
 * that shrinks is SIGBUS. A list may span several files (the shards of a model); names are unique
 * over all of them. The machine is little-endian, as the format is.
 */
#include "ckpt/safetensors.h"

#include <stdlib.h>

#include "base/json.h"
#include "ckpt/safetensors_internal.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "tensors are read as they lie in the file");

/* More files than KEEP_OPEN are opened only while they are read: descriptors are few. */
enum { SCRATCH_BYTES = 64 << 10, INDEX_BYTES = 64 << 20, SHARDS_MAX = 4096, KEEP_OPEN = 256 };
static const uint64_t HEADER_BYTES = 100000000;

void ts_tensors_close(ts_tensors *t)
{
    if (!t) return;
    for (int i = 0; i < t->n_files; i++) ts_file_close(t->file[i]);
    ts_free(t->file);
    ts_free(t->path);
    ts_free(t->tensor);
    ts_free(t->metadata);
    ts_arena_free(t->arena);
    ts_free(t);
}

ts_tensors *ts__tensors_new(int max_files)
{
    ts_tensors *t = ts_alloc_zero(sizeof *t);
    if (!t) return NULL;
    t->arena = ts_arena_new();
    t->file = ts_alloc_zero((size_t)max_files * sizeof *t->file);
    t->path = ts_alloc_zero((size_t)max_files * sizeof *t->path);
    t->max_files = max_files;
    if (t->arena && t->file && t->path) return t;
    ts_tensors_close(t);
    return NULL;
}

/* The header's text; owns: caller. */
static ts_status read_header(ts_file *f, char **text, size_t *n, ts_error *err)
{
    const char *path = ts_file_path(f);
    uint64_t size = ts_file_size(f);
    unsigned char word[8];
    if (size < 8)
        return TS_ERROR(err, TS_DATA_LOSS, "%s: has %llu bytes; a safetensors file has at least 8",
                        path, (unsigned long long)size);
    TS_TRY(ts_file_read_at(f, 0, word, 8, err));
    uint64_t length = 0;
    for (int i = 7; i >= 0; i--) length = length << 8 | word[i];
    if (length > HEADER_BYTES)
        return TS_ERROR(err, TS_DATA_LOSS,
                        "%s: byte 0 says that the header has %llu bytes; expected at most "
                        "100000000 (is this a safetensors file?)",
                        path, (unsigned long long)length);
    if (length > size - 8)
        return TS_ERROR(err, TS_DATA_LOSS,
                        "%s: byte 0 says that the header has %llu bytes, but only %llu follow (the "
                        "file was cut)",
                        path, (unsigned long long)length, (unsigned long long)(size - 8));
    *text = ts_alloc((size_t)length);
    if (!*text)
        return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "%s: out of memory for its header", path);
    *n = (size_t)length;
    ts_status status = ts_file_read_at(f, 8, *text, *n, err);
    if (status != TS_OK) {
        ts_free(*text);
        *text = NULL;
    }
    return status;
}

/* Grows by doubling: thousands of shards have millions of tensors. */
static ts_status append(ts_tensors *t, const ts_tensor *more, size_t n, const char *path,
                        ts_error *err)
{
    size_t wanted, capacity = t->capacity ? t->capacity : 64, bytes;
    bool fits = !ts_add_size(t->n, n, &wanted);
    while (fits && capacity < wanted) fits = !ts_mul_size(capacity, 2, &capacity);
    fits = fits && !ts_mul_size(capacity, sizeof *t->tensor, &bytes);
    if (fits && (capacity > t->capacity || !t->tensor)) {
        ts_tensor *all = ts_realloc(t->tensor, t->capacity * sizeof *all, bytes);
        fits = all != NULL;
        if (fits) t->tensor = all;
        if (fits) t->capacity = capacity;
    }
    if (!fits)
        return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "%s: out of memory for its list of tensors",
                        path);
    if (n) memcpy(t->tensor + t->n, more, n * sizeof *more);
    t->n += n;
    return TS_OK;
}

static ts_status parse_file(ts_tensors *t, ts_file *f, int index, const char *path, ts_error *err)
{
    char *text = NULL;
    size_t n = 0;
    TS_TRY(read_header(f, &text, &n, err));
    ts_st_header h;
    ts_status status = ts__safetensors_parse(text, n, ts_file_size(f), path, t->arena, &h, err);
    ts_free(text);
    TS_TRY(status);
    for (size_t i = 0; i < h.n; i++) h.tensor[i].file = index;
    status = append(t, h.tensor, h.n, path, err);
    if (index == 0) {
        t->metadata = h.metadata;
        t->n_metadata = h.n_metadata;
        h.metadata = NULL;
    }
    ts__safetensors_header_free(&h);
    return status;
}

ts_status ts__tensors_add_file(ts_tensors *t, const char *path, ts_error *err)
{
    ts_file *f;
    TS_ASSERT(t->n_files < t->max_files);
    char *copy = ts_arena_strdup(t->arena, path);
    if (!copy) return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "%s: out of memory", path);
    TS_TRY(ts_file_open(path, &f, err));
    int index = t->n_files++;
    t->path[index] = copy;
    ts_status status = parse_file(t, f, index, path, err);
    if (t->max_files <= KEEP_OPEN)
        t->file[index] = f;
    else
        ts_file_close(f);
    return status;
}

ts_status ts_tensors_open(const char *path, ts_tensors **out, ts_error *err)
{
    *out = NULL;
    ts_tensors *t = ts__tensors_new(1);
    if (!t) return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "%s: out of memory", path);
    ts_status status = ts__tensors_add_file(t, path, err);
    if (status == TS_OK)
        *out = t;
    else
        ts_tensors_close(t);
    return status;
}

/* ---- model folders --------------------------------------------------------------------------- */

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int tensor_by_name(const void *a, const void *b)
{
    return strcmp(((const ts_tensor *)a)->name, ((const ts_tensor *)b)->name);
}

/* The distinct shard names of weight_map, sorted; owns: caller (the strings belong to map). */
static ts_status shard_names(const char *index, const json_t *map, const char ***out, size_t *n,
                             ts_error *err)
{
    if (!json_is_object(map))
        return TS_ERROR(err, TS_DATA_LOSS,
                        "%s: \"weight_map\" is missing or no object; expected {tensor: shard file}",
                        index);
    size_t count = json_object_size(map), k = 0;
    if (count == 0) return TS_ERROR(err, TS_DATA_LOSS, "%s: \"weight_map\" is empty", index);
    const char **names = ts_alloc(count * sizeof *names);
    if (!names) return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "%s: out of memory", index);
    const char *tensor;
    json_t *value;
    ts_status status = TS_OK;
    json_object_foreach((json_t *)(uintptr_t)map, tensor, value)
    {
        const char *shard = json_string_value(value);
        if (!shard)
            status = TS_ERROR(err, TS_DATA_LOSS,
                              "%s: weight_map[\"%.200s\"] is no string; expected a file name",
                              index, tensor);
        else if (!*shard || strpbrk(shard, "/\\") || strcmp(shard, ".") == 0 || strstr(shard, ".."))
            status =
                TS_ERROR(err, TS_DATA_LOSS,
                         "%s: weight_map[\"%.200s\"] is \"%.200s\"; expected the name of a file "
                         "beside the index, without folders or \"..\"",
                         index, tensor, shard);
        if (status != TS_OK) break;
        names[k++] = shard;
    }
    if (status != TS_OK) {
        ts_free(names);
        return status;
    }
    qsort(names, count, sizeof *names, by_bytes);
    size_t distinct = 1;
    for (size_t i = 1; i < count; i++)
        if (strcmp(names[i], names[distinct - 1]) != 0) names[distinct++] = names[i];
    *out = names;
    *n = distinct;
    return TS_OK;
}

/* Sorted by name, nothing twice, and every tensor of the map in the shard that the map says. */
static ts_status check_map(ts_tensors *t, const char *index, const json_t *map,
                           const char *const *shards, ts_error *err)
{
    if (t->n) qsort(t->tensor, t->n, sizeof *t->tensor, tensor_by_name);
    for (size_t i = 1; i < t->n; i++)
        if (strcmp(t->tensor[i - 1].name, t->tensor[i].name) == 0)
            return TS_ERROR(err, TS_DATA_LOSS, "%s: the tensor \"%s\" is in two shards, %s and %s",
                            index, t->tensor[i].name, shards[t->tensor[i - 1].file],
                            shards[t->tensor[i].file]);
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)map, name, value)
    {
        const ts_tensor *x = ts_tensors_find(t, name);
        const char *shard = json_string_value(value);
        if (!x || strcmp(shards[x->file], shard) != 0)
            return TS_ERROR(
                err, TS_DATA_LOSS,
                "%s: the tensor \"%.200s\" should be in %s, but that file does not hold it", index,
                name, shard);
    }
    return TS_OK;
}

static ts_status open_shards(const char *index, const json_t *map, ts_tensors **out, ts_error *err)
{
    const char **shards = NULL;
    size_t n = 0;
    TS_TRY(shard_names(index, map, &shards, &n, err));
    ts_status status = TS_OK;
    ts_tensors *t = NULL;
    if (n > SHARDS_MAX)
        status = TS_ERROR(err, TS_DATA_LOSS, "%s: names %zu shards; expected at most %d", index, n,
                          SHARDS_MAX);
    else if (!(t = ts__tensors_new((int)n)))
        status = TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "%s: out of memory", index);
    const char *slash = strrchr(index, '/');
    size_t folder_bytes = slash ? (size_t)(slash - index) + 1 : 0;
    for (size_t i = 0; i < n && status == TS_OK; i++) {
        ts_string path = ts_string_new(1 << 16);
        ts_string_add_bytes(&path, index, folder_bytes);
        ts_string_add(&path, shards[i]);
        if (path.failed)
            status = TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "%s: out of memory", index);
        else if ((status = ts__tensors_add_file(t, path.data, err)) == TS_NOT_FOUND && err)
            ts__error_context(err, "%s names a shard that is missing", index);
        ts_string_free(&path);
    }
    if (status == TS_OK) status = check_map(t, index, map, shards, err);
    ts_free(shards);
    if (status == TS_OK)
        *out = t;
    else
        ts_tensors_close(t);
    return status;
}

static ts_status open_index(const char *index, ts_tensors **out, ts_error *err)
{
    json_t *root;
    TS_TRY(ts_json_read(index, INDEX_BYTES, 8, &root, err));
    ts_status status = open_shards(index, json_object_get(root, "weight_map"), out, err);
    json_decref(root);
    return status;
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

ts_status ts_tensors_open_model(const char *path, ts_tensors **out, ts_error *err)
{
    *out = NULL;
    if (ts_path_kind_of(path) != TS_PATH_FOLDER)
        return ends_with(path, ".index.json") ? open_index(path, out, err)
                                              : ts_tensors_open(path, out, err);
    char *single = ts_path_join(path, "model.safetensors");
    char *index = ts_path_join(path, "model.safetensors.index.json");
    ts_status status;
    if (!single || !index)
        status = TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "%s: out of memory", path);
    else if (ts_path_kind_of(single) != TS_PATH_NONE)
        status = ts_tensors_open(single, out, err);
    else if (ts_path_kind_of(index) != TS_PATH_NONE)
        status = open_index(index, out, err);
    else
        status = TS_ERROR(err, TS_NOT_FOUND,
                          "%s: holds neither model.safetensors nor model.safetensors.index.json; "
                          "expected a model folder in Hugging Face layout",
                          path);
    ts_free(single);
    ts_free(index);
    return status;
}

/* ---- the list -------------------------------------------------------------------------------- */

size_t ts_tensors_count(const ts_tensors *t)
{
    return t->n;
}

const ts_tensor *ts_tensors_at(const ts_tensors *t, size_t i)
{
    TS_ASSERT(i < t->n);
    return &t->tensor[i];
}

const ts_tensor *ts_tensors_find(const ts_tensors *t, const char *name)
{
    ts_tensor key = {.name = name};
    return t->n ? bsearch(&key, t->tensor, t->n, sizeof key, tensor_by_name) : NULL;
}

const char *ts_tensors_path_of(const ts_tensors *t, const ts_tensor *x)
{
    return t->path[x->file];
}

const char *ts_tensors_metadata(const ts_tensors *t, const char *key)
{
    for (size_t i = 0; i < t->n_metadata; i++)
        if (strcmp(t->metadata[i].key, key) == 0) return t->metadata[i].value;
    return NULL;
}

/* ---- reading --------------------------------------------------------------------------------- */

ts_status ts__tensors_read_file(ts_tensors *t, int file, uint64_t offset, void *to, size_t n,
                                ts_error *err)
{
    ts_file *f = t->file[file];
    if (!f) TS_TRY(ts_file_open(t->path[file], &f, err));
    ts_status status = ts_file_read_at(f, offset, to, n, err);
    if (!t->file[file]) ts_file_close(f);
    return status;
}

ts_status ts_tensors_read(ts_tensors *t, const ts_tensor *x, uint64_t first, void *to, size_t n,
                          ts_error *err)
{
    if (first > x->bytes || n > x->bytes - first)
        return TS_ERROR(err, TS_OUT_OF_RANGE,
                        "%s: tensor \"%s\" has %llu bytes; %zu from byte %llu were asked for",
                        ts_tensors_path_of(t, x), x->name, (unsigned long long)x->bytes, n,
                        (unsigned long long)first);
    size_t element = (size_t)ts_file_dtype_bits(x->dtype) / 8;
    TS_ASSERT(!x->n_part || (first % element == 0 && n % element == 0));
    ts_status status =
        x->n_part ? ts__tensors_read_parts(t, x, first / element, to, n / element, element, err)
                  : ts__tensors_read_file(t, x->file, x->offset + first, to, n, err);
    if (status != TS_OK && err) ts__error_context(err, "tensor \"%s\"", x->name);
    return status;
}

static ts_status check_elements(ts_tensors *t, const ts_tensor *x, uint64_t first, uint64_t count,
                                ts_error *err)
{
    if (first <= x->count && count <= x->count - first) return TS_OK;
    return TS_ERROR(err, TS_OUT_OF_RANGE,
                    "%s: tensor \"%s\" has %llu elements; %llu from element %llu were asked for",
                    ts_tensors_path_of(t, x), x->name, (unsigned long long)x->count,
                    (unsigned long long)count, (unsigned long long)first);
}

static float f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 1023,
             bits;
    if (exponent == 0) { /* zero or subnormal: mantissa · 2^-24, exact in f32 */
        float value = (float)mantissa * 0x1p-24f;
        return sign ? -value : value;
    }
    bits = exponent == 31 ? sign | 0x7f800000u | mantissa << 13
                          : sign | (exponent + 112) << 23 | mantissa << 13;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

static void to_f32(ts_file_dtype dtype, const unsigned char *from, size_t n, float *to)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t half;
        double wide;
        if (dtype == TS_FILE_F64) {
            memcpy(&wide, from + 8 * i, 8);
            to[i] = (float)wide;
        } else {
            memcpy(&half, from + 2 * i, 2);
            to[i] = dtype == TS_FILE_BF16 ? ts_bf16_to_f32(half) : f16_to_f32(half);
        }
    }
}

ts_status ts_tensors_read_f32(ts_tensors *t, const ts_tensor *x, uint64_t first, uint64_t count,
                              float *to, ts_error *err)
{
    bool known = x->dtype == TS_FILE_F32 || x->dtype == TS_FILE_BF16 || x->dtype == TS_FILE_F16 ||
                 x->dtype == TS_FILE_F64;
    if (!known)
        return TS_ERROR(err, TS_DATA_LOSS,
                        "%s: tensor \"%s\" has dtype %s; expected F32, BF16, F16 or F64",
                        ts_tensors_path_of(t, x), x->name, ts_file_dtype_name(x->dtype));
    TS_TRY(check_elements(t, x, first, count, err));
    if (x->dtype == TS_FILE_F32)
        return ts_tensors_read(t, x, 4 * first, to, (size_t)(4 * count), err);
    _Alignas(64) unsigned char scratch[SCRATCH_BYTES];
    size_t size = (size_t)ts_file_dtype_bits(x->dtype) / 8;
    while (count > 0) {
        size_t n = count < SCRATCH_BYTES / size ? (size_t)count : SCRATCH_BYTES / size;
        TS_TRY(ts_tensors_read(t, x, first * size, scratch, n * size, err));
        to_f32(x->dtype, scratch, n, to);
        first += n;
        count -= n;
        to += n;
    }
    return TS_OK;
}

ts_status ts_tensors_read_i32(ts_tensors *t, const ts_tensor *x, uint64_t first, uint64_t count,
                              int32_t *to, ts_error *err)
{
    if (x->dtype != TS_FILE_I32 && x->dtype != TS_FILE_I64)
        return TS_ERROR(err, TS_DATA_LOSS, "%s: tensor \"%s\" has dtype %s; expected I32 or I64",
                        ts_tensors_path_of(t, x), x->name, ts_file_dtype_name(x->dtype));
    TS_TRY(check_elements(t, x, first, count, err));
    if (x->dtype == TS_FILE_I32)
        return ts_tensors_read(t, x, 4 * first, to, (size_t)(4 * count), err);
    int64_t scratch[SCRATCH_BYTES / 8];
    while (count > 0) {
        size_t n = count < SCRATCH_BYTES / 8 ? (size_t)count : SCRATCH_BYTES / 8;
        TS_TRY(ts_tensors_read(t, x, 8 * first, scratch, 8 * n, err));
        for (size_t i = 0; i < n; i++) {
            if (scratch[i] < INT32_MIN || scratch[i] > INT32_MAX)
                return TS_ERROR(
                    err, TS_DATA_LOSS,
                    "%s: tensor \"%s\": element %llu is %lld, which does not fit 32 bits",
                    ts_tensors_path_of(t, x), x->name, (unsigned long long)(first + i),
                    (long long)scratch[i]);
            to[i] = (int32_t)scratch[i];
        }
        first += n;
        count -= n;
        to += n;
    }
    return TS_OK;
}
