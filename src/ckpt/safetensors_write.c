/* ckpt/safetensors_write.c – writes a safetensors file in one pass.
 *
 * The header needs only names, dtypes and shapes, so it goes first and the data streams after it:
 * memory is the header and one buffer, whatever the size of the model. The XXH3-64 of the whole file
 * is computed as the bytes pass, for the checkpoint's manifest. What is written here reads back by
 * the strict reader: the same limits on names, rank and sizes are checked before the file is made.
 */
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

#include <stdlib.h>
#include <utf8proc.h>

#include "base/file.h"
#include "ckpt/safetensors.h"

struct ts_tensor_writer {
    XXH3_state_t hash; /* needs 64-byte alignment, which our allocator gives */
    ts_writer *file;
    char *path;
    uint64_t written, expected; /* bytes of data */
    uint64_t header;            /* bytes before the data */
};

static bool is_utf8(const char *s)
{
    const utf8proc_uint8_t *p = (const utf8proc_uint8_t *)s;
    size_t left = strlen(s);
    while (left > 0) {
        utf8proc_int32_t code;
        utf8proc_ssize_t n = utf8proc_iterate(p, (utf8proc_ssize_t)(left < 4 ? left : 4), &code);
        if (n <= 0) return false;
        p += n;
        left -= (size_t)n;
    }
    return true;
}

static void add_json_string(ts_string *s, const char *text)
{
    ts_string_add(s, "\"");
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\')
            ts_string_printf(s, "\\%c", c);
        else if (c < 0x20)
            ts_string_printf(s, "\\u%04x", c);
        else
            ts_string_add_bytes(s, text, 1);
    }
    ts_string_add(s, "\"");
}

/* Bytes of the tensor, or an error that names it. */
static ts_status spec_bytes(const char *path, const ts_tensor_spec *x, uint64_t *bytes,
                            ts_error *err)
{
    if (!*x->name || strlen(x->name) > TS_TENSOR_NAME_BYTES || !is_utf8(x->name) ||
        strcmp(x->name, "__metadata__") == 0)
        return TS_ERROR(err, TS_INVALID_ARGUMENT,
                        "%s: \"%.100s\" cannot be a tensor's name; expected 1 to %d bytes of "
                        "UTF-8",
                        path, x->name, TS_TENSOR_NAME_BYTES);
    if (x->rank < 0 || x->rank > TS_TENSOR_RANK)
        return TS_ERROR(err, TS_INVALID_ARGUMENT, "%s: tensor \"%s\" has rank %d; expected 0 to %d",
                        path, x->name, x->rank, TS_TENSOR_RANK);
    uint64_t bits = (uint64_t)ts_file_dtype_bits(x->dtype);
    bool overflow = false;
    for (int i = 0; i < x->rank; i++) {
        overflow |= x->dim[i] < 0 || x->dim[i] >= INT64_C(1) << 48;
        overflow |= __builtin_mul_overflow(bits, (uint64_t)x->dim[i], &bits);
    }
    if (overflow || bits % 8)
        return TS_ERROR(err, TS_INVALID_ARGUMENT,
                        "%s: tensor \"%s\" has a shape that cannot be stored", path, x->name);
    *bytes = bits / 8;
    return TS_OK;
}

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static ts_status check_unique(const char *path, const ts_tensor_spec *specs, size_t n,
                              ts_error *err)
{
    if (n < 2) return TS_OK;
    const char **names = ts_alloc(n * sizeof *names);
    if (!names) return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "%s: out of memory", path);
    for (size_t i = 0; i < n; i++) names[i] = specs[i].name;
    qsort(names, n, sizeof *names, by_bytes);
    ts_status status = TS_OK;
    for (size_t i = 1; i < n && status == TS_OK; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            status = TS_ERROR(err, TS_INVALID_ARGUMENT, "%s: the tensor \"%s\" is listed twice",
                              path, names[i]);
    ts_free(names);
    return status;
}

static void add_tensor(ts_string *s, const ts_tensor_spec *x, uint64_t begin, uint64_t end)
{
    add_json_string(s, x->name);
    ts_string_printf(s, ":{\"dtype\":\"%s\",\"shape\":[", ts_file_dtype_name(x->dtype));
    for (int i = 0; i < x->rank; i++)
        ts_string_printf(s, "%s%lld", i ? "," : "", (long long)x->dim[i]);
    ts_string_printf(s, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)begin,
                     (unsigned long long)end);
}

/* The header's text, padded with blanks so that the data begins at a multiple of 64. */
static ts_status make_header(const char *path, const ts_tensor_spec *specs, size_t n,
                             const char *const (*metadata)[2], size_t n_metadata, ts_string *s,
                             uint64_t *data_bytes, ts_error *err)
{
    uint64_t at = 0, bytes = 0;
    TS_TRY(check_unique(path, specs, n, err));
    ts_string_add(s, "{");
    for (size_t i = 0; i < n_metadata; i++) {
        if (!is_utf8(metadata[i][0]) || !is_utf8(metadata[i][1]))
            return TS_ERROR(err, TS_INVALID_ARGUMENT, "%s: metadata must be UTF-8", path);
        ts_string_add(s, i ? "," : "\"__metadata__\":{");
        add_json_string(s, metadata[i][0]);
        ts_string_add(s, ":");
        add_json_string(s, metadata[i][1]);
    }
    if (n_metadata) ts_string_add(s, n ? "}," : "}");
    for (size_t i = 0; i < n; i++) {
        TS_TRY(spec_bytes(path, &specs[i], &bytes, err));
        uint64_t size = (uint64_t)ts_file_dtype_bits(specs[i].dtype) / 8;
        if (size > 1 && at % size)
            return TS_ERROR(err, TS_INVALID_ARGUMENT,
                            "%s: tensor \"%s\" would not be aligned; list wide dtypes first", path,
                            specs[i].name);
        if (bytes > INT64_MAX - TS_TENSOR_HEADER_WRITE_BYTES - 8 - at)
            return TS_ERROR(err, TS_INVALID_ARGUMENT, "%s: the tensors together exceed 2^63 bytes",
                            path);
        if (i) ts_string_add(s, ",");
        add_tensor(s, &specs[i], at, at + bytes);
        at += bytes;
    }
    ts_string_add(s, "}");
    while (!s->failed && (s->length + 8) % 64) ts_string_add(s, " ");
    *data_bytes = at;
    if (s->failed && s->length + 1024 > s->max)
        return TS_ERROR(err, TS_INVALID_ARGUMENT,
                        "%s: the header of %zu tensors exceeds 16 MiB; write several shards", path,
                        n);
    if (s->failed)
        return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "%s: out of memory for the header", path);
    return TS_OK;
}

static ts_status put(ts_tensor_writer *w, const void *data, size_t n, ts_error *err)
{
    XXH3_64bits_update(&w->hash, data, n);
    return ts_writer_write(w->file, data, n, err);
}

ts_status ts_tensor_writer_open(const char *path, const ts_tensor_spec *specs, size_t n,
                                const char *const (*metadata)[2], size_t n_metadata,
                                ts_tensor_writer **out, ts_error *err)
{
    *out = NULL;
    ts_string header = ts_string_new(TS_TENSOR_HEADER_WRITE_BYTES);
    uint64_t data_bytes = 0;
    ts_tensor_writer *w = NULL;
    ts_status status = make_header(path, specs, n, metadata, n_metadata, &header, &data_bytes, err);
    if (status == TS_OK) {
        w = ts_alloc_zero(sizeof *w);
        if (w) w->path = ts_strdup(path);
        if (!w || !w->path)
            status = TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "%s: out of memory", path);
    }
    if (status == TS_OK) status = ts_writer_open(path, false, &w->file, err);
    if (status == TS_OK) {
        unsigned char word[8];
        for (int i = 0; i < 8; i++) word[i] = (unsigned char)((uint64_t)header.length >> 8 * i);
        w->expected = data_bytes;
        w->header = 8 + header.length;
        XXH3_64bits_reset(&w->hash);
        status = put(w, word, 8, err);
        if (status == TS_OK) status = put(w, header.data, header.length, err);
    }
    ts_string_free(&header);
    if (status == TS_OK)
        *out = w;
    else
        ts_tensor_writer_abandon(w);
    return status;
}

ts_status ts_tensor_writer_add(ts_tensor_writer *w, const void *data, size_t n, ts_error *err)
{
    if (n > w->expected - w->written)
        return TS_ERROR(err, TS_FAILED_PRECONDITION,
                        "%s: %zu bytes more than its %llu announced bytes of tensors", w->path,
                        n - (size_t)(w->expected - w->written), (unsigned long long)w->expected);
    w->written += n;
    return put(w, data, n, err);
}

ts_status ts_tensor_writer_close(ts_tensor_writer *w, bool sync, uint64_t *hash, uint64_t *bytes,
                                 ts_error *err)
{
    ts_status status = TS_OK;
    if (w->written != w->expected)
        status = TS_ERROR(err, TS_FAILED_PRECONDITION, "%s: got %llu of %llu bytes of tensors",
                          w->path, (unsigned long long)w->written, (unsigned long long)w->expected);
    if (status == TS_OK) {
        status = ts_writer_close(w->file, sync, err);
        w->file = NULL;
    }
    if (hash) *hash = XXH3_64bits_digest(&w->hash);
    if (bytes) *bytes = w->header + w->written;
    ts_tensor_writer_abandon(w);
    return status;
}

void ts_tensor_writer_abandon(ts_tensor_writer *w)
{
    if (!w) return;
    ts_writer_abandon(w->file);
    ts_free(w->path);
    ts_free(w);
}
