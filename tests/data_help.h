/* tests/data_help.h – what the tests of the data loader share: small files, options, batches, and
 * the laws that hold for every batch whatever it came from. Include it behind cmocka.h. Functions
 * are inline so that a test may leave some unused.
 */
#ifndef TS_TESTS_DATA_HELP_H
#define TS_TESTS_DATA_HELP_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/file.h"
#include "data/internal.h"

static char root[64];
static ts_tokenizer *byte;

static inline int set_up(void **state)
{
    (void)state;
    strcpy(root, "/tmp/tessera-loader-XXXXXX");
    return mkdtemp(root) && ts_tokenizer_open_byte(&byte, NULL) == TS_OK ? 0 : -1;
}

static inline int tear_down(void **state)
{
    (void)state;
    ts_tokenizer_free(byte);
    return ts_remove_tree(root, NULL) == TS_OK ? 0 : -1;
}

static inline const char *put(const char *name, const void *data, size_t n)
{
    static char path[8][256];
    static int turn;
    turn = (turn + 1) % 8;
    snprintf(path[turn], sizeof path[turn], "%s/%s", root, name);
    ts_writer *w;
    assert_int_equal(ts_writer_open(path[turn], false, &w, NULL), TS_OK);
    assert_int_equal(ts_writer_write(w, data, n, NULL), TS_OK);
    assert_int_equal(ts_writer_close(w, false, NULL), TS_OK);
    return path[turn];
}

static inline const char *put_text(const char *name, const char *text)
{
    return put(name, text, strlen(text));
}

/* n bytes of which each three in a row are different from most others. */
static inline const char *put_counted(const char *name, size_t n)
{
    char *text = malloc(n);
    for (size_t i = 0; i < n; i++) text[i] = (char)('a' + (i * i / 7 + i) % 26);
    const char *path = put(name, text, n);
    free(text);
    return path;
}

static inline const char *put_tokens(const char *name, uint32_t magic, uint32_t version,
                                     int32_t count, const uint32_t *ids, size_t n)
{
    unsigned char *data = calloc(1, 1024 + 4 * n);
    size_t width = magic == 20240801 ? 4 : 2;
    const uint32_t header[3] = {magic, version, (uint32_t)count};
    for (size_t i = 0; i < 12; i++) data[i] = (unsigned char)(header[i / 4] >> 8 * (i % 4));
    for (size_t i = 0; i < n * width; i++)
        data[1024 + i] = (unsigned char)(ids[i / width] >> 8 * (i % width));
    const char *path = put(name, data, 1024 + n * width);
    free(data);
    return path;
}

/* Rows "0", "11", "222" …: row i is i % 10 + 1 + extra letters long. Returns the path. */
static inline const char *put_rows(const char *name, int n, int extra)
{
    char *text = malloc((size_t)n * 200);
    size_t at = 0;
    for (int i = 0; i < n; i++) {
        at += (size_t)sprintf(text + at, "{\"id\": %d, \"text\": \"", i);
        for (int k = 0; k < i % 10 + 1 + extra; k++) text[at++] = (char)('a' + (i * 7 + k) % 26);
        at += (size_t)sprintf(text + at, "\"}\n");
    }
    const char *path = put(name, text, at);
    free(text);
    return path;
}

/* Rows "0:…", "1:…" of up to most + 6 bytes, of many lengths. */
static inline const char *put_numbered(const char *name, int n, int most)
{
    char *text = malloc((size_t)n * (size_t)(most + 40));
    size_t at = 0;
    for (int i = 0; i < n; i++) {
        int extra = (int)(ts_mix64((uint64_t)i + 7 * (uint64_t)n) % (uint64_t)(most + 1));
        at += (size_t)sprintf(text + at, "{\"text\": \"%d:", i);
        for (int k = 0; k < extra; k++) text[at++] = (char)('a' + (i + k) % 26);
        at += (size_t)sprintf(text + at, "\"}\n");
    }
    const char *path = put(name, text, at);
    free(text);
    return path;
}

static inline ts_loader_options options(ts_data_type type, const char *const *paths, size_t n,
                                        int64_t rows, int64_t sequence)
{
    ts_loader_options o;
    ts_loader_options_default(&o);
    o.type = type;
    o.paths = paths;
    o.n_paths = n;
    o.rows = rows;
    o.sequence = sequence;
    o.tokenizer = byte;
    return o;
}

static inline ts_loader *open_ok(const ts_loader_options *o)
{
    ts_loader *l = NULL;
    ts_error err = {0};
    ts_status status = ts_loader_open(o, &l, &err);
    if (status != TS_OK) print_message("%s\n", err.msg);
    assert_int_equal(status, TS_OK);
    return l;
}

/* Opening fails with the code, and the message holds every one of the parts. */
static inline void open_fails(const ts_loader_options *o, ts_status code, const char *part,
                              const char *other)
{
    ts_loader *l = NULL;
    ts_error err = {0};
    ts_status status = ts_loader_open(o, &l, &err);
    if (status != code || !strstr(err.msg, part) || !strstr(err.msg, other))
        print_message("got %d: %s\n", (int)status, err.msg);
    assert_int_equal(status, code);
    assert_null(l);
    assert_non_null(strstr(err.msg, part));
    assert_non_null(strstr(err.msg, other));
}

typedef struct full_batch {
    ts_batch b;
    int64_t rows, sequence;
} full_batch;

static inline full_batch batch_new(int64_t rows, int64_t sequence)
{
    size_t slots = (size_t)(rows * sequence);
    full_batch f = {.rows = rows, .sequence = sequence};
    f.b.tokens = malloc(slots * 4);
    f.b.labels = malloc(slots * 4);
    f.b.segments = malloc(slots * 4);
    f.b.positions = malloc(slots * 4);
    f.b.row_ids = malloc((size_t)rows * 8);
    f.b.sources = malloc((size_t)rows * 4);
    return f;
}

static inline void batch_free(full_batch *f)
{
    free(f->b.tokens);
    free(f->b.labels);
    free(f->b.segments);
    free(f->b.positions);
    free(f->b.row_ids);
    free(f->b.sources);
}

/* What holds for every batch of every kind. */
static inline void check_laws(const full_batch *f, int64_t vocab_size)
{
    int64_t trained = 0, padding = 0;
    for (int64_t row = 0; row < f->rows; row++) {
        for (int64_t i = 0; i < f->sequence; i++) {
            int64_t at = row * f->sequence + i;
            int32_t segment = f->b.segments[at], label = f->b.labels[at];
            bool first = i == 0 || f->b.segments[at - 1] != segment;
            bool inner = i + 1 < f->sequence && f->b.segments[at + 1] == segment;
            assert_in_range(f->b.tokens[at], 0, vocab_size - 1);
            assert_true(label >= -1 && label < vocab_size);
            if (segment == 0) {
                assert_int_equal(label, -1);
                assert_int_equal(f->b.positions[at], 0);
                if (i + 1 < f->sequence) assert_int_equal(f->b.segments[at + 1], 0);
            } else {
                if (first) assert_int_equal(segment, i == 0 ? 1 : f->b.segments[at - 1] + 1);
                assert_int_equal(f->b.positions[at], first ? 0 : f->b.positions[at - 1] + 1);
                if (inner)
                    assert_int_equal(label, f->b.tokens[at + 1]);
                else if (i + 1 < f->sequence)
                    assert_int_equal(label, -1);
            }
            trained += label >= 0;
            padding += segment == 0;
        }
        assert_int_equal(f->b.row_ids[row] < 0, f->b.segments[row * f->sequence] == 0);
    }
    assert_int_equal(f->b.trained_tokens, trained);
    assert_int_equal(f->b.padding, padding);
}

static inline bool next(ts_loader *l, full_batch *f)
{
    ts_error err = {0};
    ts_status status = ts_loader_next(l, &f->b, &err);
    if (status != TS_OK && status != TS_OUT_OF_RANGE) print_message("%s\n", err.msg);
    assert_true(status == TS_OK || status == TS_OUT_OF_RANGE);
    return status == TS_OK;
}

/* Of all that row holds, with its id and source. */
static inline uint64_t hash_row(const full_batch *f, int64_t row)
{
    uint64_t h = ts_mix64((uint64_t)f->b.row_ids[row] + 2) ^ (uint64_t)f->b.sources[row];
    for (int64_t i = row * f->sequence; i < (row + 1) * f->sequence; i++) {
        h = ts_mix64(h + (uint32_t)f->b.tokens[i]) ^ (uint32_t)f->b.labels[i];
        h = ts_mix64(h + (uint32_t)f->b.segments[i]) ^ (uint32_t)f->b.positions[i];
    }
    return h;
}

static inline uint64_t hash_batch(const full_batch *f)
{
    uint64_t h = 1;
    for (int64_t row = 0; row < f->rows; row++) h = ts_mix64(h + hash_row(f, row));
    return ts_mix64(h + (uint64_t)f->b.trained_tokens) ^ (uint64_t)f->b.padding;
}

/* ---- positions ---- */

static inline ts_loader_state *state_of(const ts_loader *l)
{
    ts_loader_state *s = NULL;
    assert_int_equal(ts_loader_state_new(l, &s, NULL), TS_OK);
    ts_loader_get_state(l, s);
    return s;
}

static inline json_t *json_of(const ts_loader_state *s)
{
    json_t *json = NULL;
    assert_int_equal(ts_loader_state_to_json(s, &json, NULL), TS_OK);
    return json;
}

/* The position as text. free() it. */
static inline char *position_text(const ts_loader *l)
{
    ts_loader_state *s = state_of(l);
    json_t *json = json_of(s);
    char *mine, *text = ts_json_dump(json, JSON_COMPACT | JSON_SORT_KEYS);
    assert_non_null(text);
    mine = strdup(text);
    ts_free(text);
    json_decref(json);
    ts_loader_state_free(s);
    return mine;
}

/* The position that the text says, or why not. */
static inline ts_status go_to(ts_loader *l, const char *text, ts_error *err)
{
    json_t *json = NULL;
    ts_loader_state *s = NULL;
    assert_int_equal(ts_json_parse(text, strlen(text), 8, "state", &json, NULL), TS_OK);
    ts_status status = ts_loader_state_from_json(json, &s, err);
    if (status == TS_OK) status = ts_loader_set_state(l, s, err);
    ts_loader_state_free(s);
    json_decref(json);
    return status;
}

static inline int64_t readers_of(const ts_loader *l, int source)
{
    ts_loader_state *s = state_of(l);
    json_t *json = json_of(s);
    const json_t *of = json_array_get(json_object_get(json, "sources"), (size_t)source);
    int64_t n = (int64_t)json_array_size(json_object_get(of, "readers"));
    json_decref(json);
    ts_loader_state_free(s);
    return n;
}

/* Behind n rows of one source whose rows hold a sample each, with this many readers. */
static inline ts_status go_to_row(ts_loader *l, int64_t n, int64_t readers)
{
    json_t *list = json_array();
    char *text;
    for (int64_t k = 0; k < readers; k++)
        json_array_append_new(list,
                              json_pack("[I,i]", (json_int_t)(n / readers + (k < n % readers)), 0));
    char fingerprint[20];
    snprintf(fingerprint, sizeof fingerprint, "%016llx",
             (unsigned long long)ts_loader_fingerprint(l));
    json_t *json = json_pack("{s:s,s:s,s:I,s:[{s:I,s:o}]}", "fingerprint", fingerprint,
                             "order_hash", "0000000000000000", "rows", (json_int_t)n, "sources",
                             "rows", (json_int_t)n, "readers", list);
    assert_non_null(json);
    text = ts_json_dump(json, JSON_COMPACT);
    ts_status status = go_to(l, text, NULL);
    ts_free(text);
    json_decref(json);
    return status;
}

#endif
