/* xla/plugin_record.c – plugin.json, the record that lies beside an installed plugin.
 *
 * One flat object: name, package, version, file, bytes, xxh3, license, source. The file name is a name
 * alone, so that a record can never point out of its folder. Members that we do not know are ignored: a newer
 * version may write more. The hash tells damage, not intent: who can write the library can write the record.
 * Not here: who is asked for which record (plugin.c), how it comes to be (install.c).
 */
#include <inttypes.h>
#include <stdio.h>
#include <xxhash.h>

#include "base/file.h"
#include "base/json.h"
#include "xla/plugin.h"

enum { RECORD_BYTES = 1 << 16, RECORD_DEPTH = 8, HASH_BYTES = 1 << 20 };
static const char record_name[] = "plugin.json";

/* ---- reading --------------------------------------------------------------------------------- */

static ts_status text_member(const json_t *object, const char *key, bool empty_is_fine,
                             const char *where, char *to, size_t n, ts_error *err)
{
    const json_t *v = json_object_get(object, key);
    if (!json_is_string(v))
        return TS_ERROR(err, TS_DATA_LOSS, "%s: \"%s\" is %s; expected a text", where, key,
                        v ? "no text" : "missing");
    const char *text = json_string_value(v);
    if (strlen(text) >= n || (!*text && !empty_is_fine))
        return TS_ERROR(err, TS_DATA_LOSS, "%s: \"%s\" has %zu bytes; expected %d … %zu", where,
                        key, strlen(text), empty_is_fine ? 0 : 1, n - 1);
    memcpy(to, text, strlen(text) + 1);
    return TS_OK;
}

static bool is_plain_name(const char *name)
{
    return !strchr(name, '/') && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

static ts_status members(const json_t *object, const char *where, ts_plugin_record *r,
                         ts_error *err)
{
    if (!json_is_object(object))
        return TS_ERROR(err, TS_DATA_LOSS, "%s: expected one JSON object", where);
#define TEXT(key, empty) text_member(object, #key, empty, where, r->key, sizeof r->key, err)
    TS_TRY(TEXT(name, false));
    TS_TRY(TEXT(package, true));
    TS_TRY(TEXT(version, true));
    TS_TRY(TEXT(file, false));
    TS_TRY(TEXT(xxh3, false));
    TS_TRY(TEXT(license, true));
    TS_TRY(TEXT(source, true));
#undef TEXT
    if (!is_plain_name(r->file))
        return TS_ERROR(err, TS_DATA_LOSS,
                        "%s: \"file\" is \"%s\"; expected the name of a file beside it", where,
                        r->file);
    if (strlen(r->xxh3) != 32 || strspn(r->xxh3, "0123456789abcdef") != 32)
        return TS_ERROR(err, TS_DATA_LOSS, "%s: \"xxh3\" is \"%s\"; expected 32 hex digits", where,
                        r->xxh3);
    const json_t *bytes = json_object_get(object, "bytes");
    if (!json_is_integer(bytes) || json_integer_value(bytes) < 0)
        return TS_ERROR(err, TS_DATA_LOSS, "%s: \"bytes\" is %s; expected a whole number", where,
                        bytes ? "not one" : "missing");
    r->bytes = (uint64_t)json_integer_value(bytes);
    return TS_OK;
}

ts_status ts__plugin_record_parse(const char *text, size_t n, const char *where,
                                  ts_plugin_record *out, ts_error *err)
{
    json_t *object;
    *out = (ts_plugin_record){0};
    TS_TRY(ts_json_parse(text, n, RECORD_DEPTH, where, &object, err));
    ts_status status = members(object, where, out, err);
    json_decref(object);
    return status;
}

static ts_status out_of_memory(const char *folder, ts_error *err)
{
    return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "%s: out of memory", folder);
}

ts_status ts__plugin_record_read(const char *folder, ts_plugin_record *out, ts_error *err)
{
    char *path = ts_path_join(folder, record_name), *text = NULL;
    size_t n;
    *out = (ts_plugin_record){0};
    if (!path) return out_of_memory(folder, err);
    ts_status status = ts_file_read_all(path, RECORD_BYTES, &text, &n, err);
    if (status == TS_OK) status = ts__plugin_record_parse(text, n, path, out, err);
    ts_free(text);
    ts_free(path);
    return status;
}

/* ---- writing --------------------------------------------------------------------------------- */

ts_status ts__plugin_record_write(const char *folder, const ts_plugin_record *r, ts_error *err)
{
    char *path = ts_path_join(folder, record_name), *text = NULL;
    ts_writer *w = NULL;
    ts_status status = TS_OK;
    json_t *object =
        json_pack("{s:s, s:s, s:s, s:s, s:I, s:s, s:s, s:s}", "name", r->name, "package",
                  r->package, "version", r->version, "file", r->file, "bytes", (json_int_t)r->bytes,
                  "xxh3", r->xxh3, "license", r->license, "source", r->source);
    if (object) text = ts_json_dump(object, JSON_INDENT(2));
    if (!path || !text) status = out_of_memory(folder, err);
    if (status == TS_OK) status = ts_writer_open(path, false, &w, err);
    if (status == TS_OK) {
        status = ts_writer_write(w, text, strlen(text), err);
        if (status == TS_OK) status = ts_writer_write(w, "\n", 1, err);
        ts_status closed = ts_writer_close(w, true, err);
        if (status == TS_OK) status = closed;
    }
    json_decref(object);
    ts_free(text);
    ts_free(path);
    return status;
}

/* ---- checking -------------------------------------------------------------------------------- */

static ts_status hash_of(ts_file *f, char hex[33], ts_error *err)
{
    uint64_t size = ts_file_size(f);
    XXH3_state_t *state = XXH3_createState();
    unsigned char *buffer = ts_alloc(HASH_BYTES);
    ts_status status = TS_OK;
    if (!state || !buffer || XXH3_128bits_reset(state) != XXH_OK)
        status = out_of_memory(ts_file_path(f), err);
    for (uint64_t at = 0; status == TS_OK && at < size;) {
        size_t n = size - at < HASH_BYTES ? (size_t)(size - at) : HASH_BYTES;
        status = ts_file_read_at(f, at, buffer, n, err);
        if (status == TS_OK) XXH3_128bits_update(state, buffer, n);
        at += n;
    }
    if (status == TS_OK) {
        XXH128_hash_t h = XXH3_128bits_digest(state);
        snprintf(hex, 33, "%016" PRIx64 "%016" PRIx64, (uint64_t)h.high64, (uint64_t)h.low64);
    }
    XXH3_freeState(state);
    ts_free(buffer);
    return status;
}

ts_status ts__plugin_record_measure(const char *folder, ts_plugin_record *r, ts_error *err)
{
    char *path = ts_path_join(folder, r->file);
    ts_file *f = NULL;
    if (!path) return out_of_memory(folder, err);
    ts_status status = ts_file_open(path, &f, err);
    if (status == TS_OK) {
        r->bytes = ts_file_size(f);
        status = hash_of(f, r->xxh3, err);
    }
    ts_file_close(f);
    ts_free(path);
    return status;
}

ts_status ts__plugin_record_check(const char *folder, const ts_plugin_record *r, ts_error *err)
{
    char *path = ts_path_join(folder, r->file), hex[33];
    ts_file *f = NULL;
    if (!path) return out_of_memory(folder, err);
    ts_status status = ts_file_open(path, &f, err);
    if (status == TS_OK && ts_file_size(f) != r->bytes)
        status =
            TS_ERROR(err, TS_DATA_LOSS,
                     "%s has %" PRIu64 " bytes, %s says %" PRIu64 ": the library is damaged or "
                     "was replaced",
                     path, ts_file_size(f), record_name, r->bytes);
    if (status == TS_OK) status = hash_of(f, hex, err);
    if (status == TS_OK && strcmp(hex, r->xxh3) != 0)
        status = TS_ERROR(err, TS_DATA_LOSS,
                          "%s has the XXH3 hash %s, %s says %s: the library is damaged or was "
                          "replaced",
                          path, hex, record_name, r->xxh3);
    ts_file_close(f);
    ts_free(path);
    return status;
}
