/* xla/saved.c – writes and reads the files of saved.h.
 *
 * Reading holds nothing larger than what the file justifies: the two lines are bounded, and the bytes are allocated
 * once their count agrees with the file's size. A file that was made for something else is told apart from one that
 * is damaged: the first needs another compilation, the second another copy.
 * Not here: what the bytes mean (the plugin's), whether they run (executable.c).
 */
#include "xla/saved.h"

#include <stdio.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/file.h"
#include "base/json.h"

static const char magic[] = "tessera executable 1\n";
enum { MAGIC = sizeof magic - 1, MAX_HEADER = 64 << 10 };
static const size_t max_bytes = (size_t)2 << 30;

void ts__saved_key_program(const char *text, size_t n, const char *options, size_t n_options,
                           char out[40])
{
    XXH128_hash_t a = XXH3_128bits(text, n), b = XXH3_128bits(options, n_options);
    XXH128_hash_t both[2] = {a, b};
    XXH128_hash_t h = XXH3_128bits(both, sizeof both);
    snprintf(out, 40, "%016llx%016llx", (unsigned long long)h.high64, (unsigned long long)h.low64);
}

void ts__saved_key_plugin(const ts_pjrt *plugin, const char *platform, const char *version,
                          ts_saved_key *key)
{
    snprintf(key->plugin, sizeof key->plugin, "%.60s %.480s, PJRT %d.%d, StableHLO %s", platform,
             version, plugin->major, plugin->minor,
             *plugin->stablehlo ? plugin->stablehlo : "unknown");
}

/* ---- writing --------------------------------------------------------------------------------- */

static ts_status header_text(const ts_saved_key *key, const void *bytes, size_t n, char **out,
                             ts_error *err)
{
    char hash[24];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)XXH3_64bits(bytes, n));
    json_t *j = json_pack("{s:s,s:s,s:s,s:I,s:s}", "topology", key->topology, "program",
                          key->program, "plugin", key->plugin, "bytes", (json_int_t)n, "xxh3", hash);
    *out = j ? ts_json_dump(j, JSON_COMPACT) : NULL;
    json_decref(j);
    return *out ? TS_OK
                : TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out for a saved executable");
}

static ts_status write_all(const char *path, const char *header, const void *bytes, size_t n,
                           ts_error *err)
{
    ts_writer *w;
    TS_TRY(ts_writer_open(path, false, &w, err));
    ts_status status = ts_writer_write(w, magic, MAGIC, err);
    if (status == TS_OK) status = ts_writer_write(w, header, strlen(header), err);
    if (status == TS_OK) status = ts_writer_write(w, "\n", 1, err);
    if (status == TS_OK) status = ts_writer_write(w, bytes, n, err);
    if (status == TS_OK) return ts_writer_close(w, true, err);
    ts_writer_abandon(w);
    return status;
}

/* The folder that path lies in, which gets its new entry synced. */
static ts_status sync_parent(const char *path, ts_error *err)
{
    const char *slash = strrchr(path, '/');
    char *folder = ts_strdup(slash ? path : ".");
    if (!folder) return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out");
    if (slash) folder[slash == path ? 1 : slash - path] = '\0';
    ts_status status = ts_sync_folder(folder, err);
    ts_free(folder);
    return status;
}

ts_status ts__saved_place(const char *path, ts_error *err)
{
    char start[MAGIC];
    ts_file *f;
    if (ts_path_kind_of(path) == TS_PATH_NONE) return TS_OK;
    TS_TRY(ts_file_open(path, &f, err));
    size_t n = ts_file_size(f) < MAGIC ? (size_t)ts_file_size(f) : MAGIC;
    ts_status status = ts_file_read_at(f, 0, start, n, err);
    ts_file_close(f);
    if (status != TS_OK || memcmp(start, magic, n) == 0) return status; /* an empty file may go too */
    return TS_ERROR(err, TS_INVALID_ARGUMENT,
                    "%s exists and is no compiled train step; it would be overwritten. Name another "
                    "file, or remove it",
                    path);
}

ts_status ts__saved_write(const char *path, const ts_saved_key *key, const void *bytes, size_t n,
                          ts_error *err)
{
    ts_string part = ts_string_new(1 << 16);
    char *header = NULL;
    ts_string_printf(&part, "%s.part-%ld", path, (long)getpid());
    ts_status status = part.failed
                           ? TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "no room for the name of a file")
                           : header_text(key, bytes, n, &header, err);
    if (status == TS_OK) {
        status = write_all(part.data, header, bytes, n, err);
        if (status == TS_OK) status = ts_rename(part.data, path, err);
        if (status == TS_OK)
            status = sync_parent(path, err);
        else
            (void)ts_remove_tree(part.data, NULL);
    }
    ts_free(header);
    ts_string_free(&part);
    return status;
}

/* ---- reading --------------------------------------------------------------------------------- */

typedef struct header {
    ts_saved_key key;
    char xxh3[24];
    size_t at, bytes; /* of the executable in the file */
} header;

static bool take_text(const json_t *j, const char *name, char *out, size_t n)
{
    const char *s = json_string_value(json_object_get(j, name));
    if (!s || strlen(s) >= n) return false;
    memcpy(out, s, strlen(s) + 1);
    return true;
}

static ts_status read_header(ts_file *f, header *h, ts_error *err)
{
    const char *path = ts_file_path(f);
    uint64_t size = ts_file_size(f);
    size_t n = size < MAX_HEADER ? (size_t)size : MAX_HEADER;
    char *text = ts_alloc(n + 1);
    json_t *j = NULL;
    if (!text) return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out for %s", path);
    ts_status status = ts_file_read_at(f, 0, text, n, err);
    const char *end = NULL;
    if (status == TS_OK && n > MAGIC && memcmp(text, magic, MAGIC) == 0)
        end = memchr(text + MAGIC, '\n', n - MAGIC);
    if (status == TS_OK && !end)
        status = TS_ERROR(err, TS_DATA_LOSS,
                          "%s is no executable that `tessera compile` wrote: expected it to begin "
                          "with \"%.20s\" and a line of JSON",
                          path, magic);
    if (status == TS_OK)
        status = ts_json_parse(text + MAGIC, (size_t)(end - text) - MAGIC, 4, path, &j, err);
    if (status == TS_OK) {
        json_int_t bytes = json_integer_value(json_object_get(j, "bytes"));
        bool ok = take_text(j, "topology", h->key.topology, sizeof h->key.topology) &&
                  take_text(j, "program", h->key.program, sizeof h->key.program) &&
                  take_text(j, "plugin", h->key.plugin, sizeof h->key.plugin) &&
                  take_text(j, "xxh3", h->xxh3, sizeof h->xxh3) && bytes >= 0;
        h->at = (size_t)(end - text) + 1;
        h->bytes = ok ? (size_t)bytes : 0;
        if (!ok)
            status = TS_ERROR(err, TS_DATA_LOSS,
                              "%s: its second line lacks one of topology, program, plugin, bytes "
                              "and xxh3",
                              path);
        else if (h->bytes > max_bytes || h->bytes != size - h->at)
            status = TS_ERROR(err, TS_DATA_LOSS,
                              "%s holds %llu bytes of an executable of %zu; copy or compile it again",
                              path, (unsigned long long)(size - h->at), h->bytes);
    }
    json_decref(j);
    ts_free(text);
    return status;
}

/* A version text runs over several lines. */
static void one_line(const char *s, char out[640])
{
    snprintf(out, 640, "%s", s);
    for (char *p = out; *p; p++)
        if (*p == '\n' || *p == '\r') *p = ' ';
}

static ts_status compare(const char *path, const ts_saved_key *is, const ts_saved_key *want,
                         ts_error *err)
{
    char a[640], b[640];
    const char *differs = NULL, *has = NULL, *needs = NULL;
    if (strcmp(is->program, want->program) != 0)
        differs = "program (model, batch, optimizer, flags)", has = is->program, needs = want->program;
    if (strcmp(is->plugin, want->plugin) != 0)
        differs = "plugin", has = is->plugin, needs = want->plugin;
    if (strcmp(is->topology, want->topology) != 0)
        differs = "topology", has = is->topology, needs = want->topology;
    if (!differs) return TS_OK;
    one_line(has, a);
    one_line(needs, b);
    return TS_ERROR(err, TS_FAILED_PRECONDITION,
                    "%s was compiled for another %s: it has %s, this run needs %s; compile again "
                    "with this configuration, or leave compiled_trainstep_file out",
                    path, differs, a, b);
}

static ts_status read_bytes(ts_file *f, const header *h, void **bytes, ts_error *err)
{
    char hash[24];
    void *p = ts_alloc(h->bytes);
    if (!p)
        return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out for the %zu bytes of %s",
                        h->bytes, ts_file_path(f));
    ts_status status = ts_file_read_at(f, h->at, p, h->bytes, err);
    if (status == TS_OK) {
        snprintf(hash, sizeof hash, "%016llx", (unsigned long long)XXH3_64bits(p, h->bytes));
        if (strcmp(hash, h->xxh3) != 0)
            status = TS_ERROR(err, TS_DATA_LOSS,
                              "%s is damaged: its bytes hash to %s, its header says %s; copy or "
                              "compile it again",
                              ts_file_path(f), hash, h->xxh3);
    }
    if (status == TS_OK)
        *bytes = p;
    else
        ts_free(p);
    return status;
}

ts_status ts__saved_read(const char *path, const ts_saved_key *want, void **bytes, size_t *n,
                         ts_error *err)
{
    ts_file *f;
    header h = {0};
    *bytes = NULL;
    *n = 0;
    TS_TRY(ts_file_open(path, &f, err));
    ts_status status = read_header(f, &h, err);
    if (status == TS_OK) status = compare(path, &h.key, want, err);
    if (status == TS_OK) status = read_bytes(f, &h, bytes, err);
    if (status == TS_OK) *n = h.bytes;
    ts_file_close(f);
    return status;
}
