/* data/state.c – the position of a loader: taken, given back, checked, and as JSON.
 *
 * A state comes from a file, so everything in it is checked before it is used: it can never move a
 * cursor outside the data, and rows that need no packing stay in their order. The fingerprint ties
 * it to the data and the options that decide the order; the rows of a batch are not among them,
 * since a run may go on with others. How many readers a source has is the state's to say, so that
 * another rule for it does not make old states useless.
 *
 * {"fingerprint": "…", "order_hash": "…", "rows": n, "sources": [{"rows": n, "readers":
 * [[taken, offset, ordinal, tokens, ordinal, tokens …] …]} …]}
 */
#include <stdio.h>
#include <stdlib.h>

#include "data/reader.h"

/* ---- the value ------------------------------------------------------------------------------ */

ts_status ts__state_new(int n, const int *room, ts_loader_state **out, ts_error *err)
{
    size_t positions = 0;
    for (int i = 0; i < n; i++) positions += room ? (size_t)room[i] : TS_MAX_READERS;
    ts_loader_state *s = ts_alloc_zero(sizeof *s);
    if (s) {
        s->n_sources = n;
        s->taken = ts_alloc_zero((size_t)n * sizeof *s->taken);
        s->source = ts_alloc_zero((size_t)n * sizeof *s->source);
        s->positions = ts_alloc_zero(positions * sizeof *s->positions);
    }
    if (!s || !s->taken || !s->source || !s->positions) {
        ts_loader_state_free(s);
        return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "out of memory for the data position");
    }
    ts__position *next = s->positions;
    for (int i = 0; i < n; i++) {
        s->source[i].position = next;
        s->source[i].room = room ? room[i] : TS_MAX_READERS;
        next += s->source[i].room;
    }
    *out = s;
    return TS_OK;
}

void ts_loader_state_free(ts_loader_state *s)
{
    if (!s) return;
    ts_free(s->taken);
    ts_free(s->source);
    ts_free(s->positions);
    ts_free(s);
}

void ts__state_reset(const ts_loader *l, ts_loader_state *s)
{
    s->order_hash = 0;
    s->rows = 0;
    for (int i = 0; i < s->n_sources; i++) {
        s->taken[i] = 0;
        s->source[i].n_readers = l->source[i].n_readers;
        memset(s->source[i].position, 0, (size_t)s->source[i].room * sizeof *s->source[i].position);
    }
}

static void copy(ts_loader_state *to, const ts_loader_state *from)
{
    TS_ASSERT(to->n_sources == from->n_sources);
    to->fingerprint = from->fingerprint;
    to->order_hash = from->order_hash;
    to->rows = from->rows;
    for (int i = 0; i < from->n_sources; i++) {
        const ts__source_state *a = &from->source[i];
        ts__source_state *b = &to->source[i];
        TS_ASSERT(a->n_readers <= b->room);
        to->taken[i] = from->taken[i];
        b->n_readers = a->n_readers;
        memcpy(b->position, a->position, (size_t)a->n_readers * sizeof *a->position);
    }
}

ts_status ts_loader_state_new(const ts_loader *l, ts_loader_state **out, ts_error *err)
{
    TS_TRY(ts__state_new(l->n_sources, NULL, out, err));
    ts__state_reset(l, *out);
    (*out)->fingerprint = l->state->fingerprint;
    return TS_OK;
}

void ts_loader_get_state(const ts_loader *l, ts_loader_state *to)
{
    copy(to, l->state);
}

uint64_t ts_loader_fingerprint(const ts_loader *l)
{
    return l->state->fingerprint;
}
uint64_t ts_loader_state_fingerprint(const ts_loader_state *s)
{
    return s->fingerprint;
}
uint64_t ts_loader_state_order_hash(const ts_loader_state *s)
{
    return s->order_hash;
}
int64_t ts_loader_state_rows(const ts_loader_state *s)
{
    return s->rows;
}

/* ---- checks --------------------------------------------------------------------------------- */

static ts_status no_state(const char *what, int64_t found, ts_error *err)
{
    return TS_ERROR(
        err, TS_INVALID_ARGUMENT,
        "the saved data position is not one: %s is %lld; the checkpoint is damaged, use an "
        "earlier one",
        what, (long long)found);
}

/* The waiting samples of reader k: its own, before its cursor, oldest first. */
static ts_status check_pending(const ts_loader *l, const ts__position *p, int k, int n_readers,
                               ts_error *err)
{
    int64_t now = p->taken * n_readers + k, before = -1;
    if (p->n_pending < 0 || p->n_pending > TS_LOADER_PENDING)
        return no_state("the number pending", p->n_pending, err);
    if (p->n_pending > 0 && !(l->o.type == TS_DATA_JSONL && l->o.packing == TS_PACK_FIRST_FIT))
        return no_state("the number pending where nothing waits", p->n_pending, err);
    for (int32_t i = 0; i < p->n_pending; i++) {
        int64_t ordinal = p->pending[i];
        if (ordinal <= before || ordinal >= now || ordinal % n_readers != k)
            return no_state("a pending sample", ordinal, err);
        if (p->tokens[i] < 2 || p->tokens[i] > l->o.sequence)
            return no_state("the length of a pending sample", p->tokens[i], err);
        before = ordinal;
    }
    return TS_OK;
}

static ts_status check_source(const ts_loader *l, const ts__source_state *s, int64_t rows,
                              ts_error *err)
{
    int n = s->n_readers;
    bool packed = l->o.type == TS_DATA_JSONL && l->o.packing != TS_PACK_NONE;
    bool concat = packed && l->o.packing == TS_PACK_CONCAT;
    if (n < 1 || n > TS_MAX_READERS || (n & (n - 1)))
        return no_state("the number of readers", n, err);
    if (rows < 0 || rows > TS_LAST_ORDINAL) return no_state("the number of rows", rows, err);
    for (int k = 0; k < n; k++) {
        const ts__position *p = &s->position[k];
        if (p->taken < 0 || p->taken > (TS_LAST_ORDINAL - k) / n)
            return no_state("a reader's cursor", p->taken, err);
        /* One sample a row: those of k are the rows so far that are ≡ k. */
        if (!packed && p->taken != rows / n + (k < rows % n))
            return no_state("a reader's cursor", p->taken, err);
        if (p->offset < 0 || (p->offset > 0 && !concat))
            return no_state("an offset", p->offset, err);
        TS_TRY(check_pending(l, p, k, n, err));
    }
    return TS_OK;
}

ts_status ts_loader_set_state(ts_loader *l, const ts_loader_state *s, ts_error *err)
{
    if (s->fingerprint != l->state->fingerprint)
        return TS_ERROR(
            err, TS_FAILED_PRECONDITION,
            "the saved data position (%016llx) belongs to other data or another order than "
            "this run's (%016llx); restore dataset_path, the mixture, max_target_length, "
            "data_shuffle_seed, packing and tokenizer as they were, or start a run with a new name",
            (unsigned long long)s->fingerprint, (unsigned long long)l->state->fingerprint);
    if (s->n_sources != l->n_sources) return no_state("the number of sources", s->n_sources, err);
    int64_t rows = 0;
    for (int i = 0; i < s->n_sources; i++) {
        TS_TRY(check_source(l, &s->source[i], s->taken[i], err));
        if (ts_add_i64(rows, s->taken[i], &rows) || rows > TS_LAST_ORDINAL)
            return no_state("the number of rows", s->taken[i], err);
    }
    if (s->rows != rows) return no_state("the number of rows", s->rows, err);
    for (int i = 0; i < s->n_sources; i++)
        if (s->source[i].n_readers != l->source[i].n_readers)
            TS_TRY(ts__readers_make(l, &l->source[i], s->source[i].n_readers, err));
    copy(l->state, s);
    ts__loader_back(l);
    return TS_OK;
}

/* ---- to JSON -------------------------------------------------------------------------------- */

/* The _new functions of jansson take over their value and fail when either side is NULL. */
static json_t *hash_to_json(uint64_t hash)
{
    char text[20];
    snprintf(text, sizeof text, "%016llx", (unsigned long long)hash);
    return json_string(text);
}

static json_t *position_to_json(const ts__position *p)
{
    json_t *list = json_array();
    int bad = json_array_append_new(list, json_integer(p->taken));
    bad |= json_array_append_new(list, json_integer(p->offset));
    for (int32_t i = 0; i < p->n_pending; i++) {
        bad |= json_array_append_new(list, json_integer(p->pending[i]));
        bad |= json_array_append_new(list, json_integer(p->tokens[i]));
    }
    if (!bad) return list;
    json_decref(list);
    return NULL;
}

static json_t *source_to_json(const ts__source_state *s, int64_t rows)
{
    json_t *source = json_object(), *readers = json_array();
    int bad = json_object_set_new(source, "rows", json_integer(rows));
    for (int k = 0; k < s->n_readers; k++)
        bad |= json_array_append_new(readers, position_to_json(&s->position[k]));
    bad |= json_object_set_new(source, "readers", readers);
    if (!bad) return source;
    json_decref(source);
    return NULL;
}

ts_status ts_loader_state_to_json(const ts_loader_state *s, json_t **out, ts_error *err)
{
    json_t *json = json_object(), *sources = json_array();
    int bad = json_object_set_new(json, "fingerprint", hash_to_json(s->fingerprint));
    bad |= json_object_set_new(json, "order_hash", hash_to_json(s->order_hash));
    bad |= json_object_set_new(json, "rows", json_integer(s->rows));
    for (int i = 0; i < s->n_sources; i++)
        bad |= json_array_append_new(sources, source_to_json(&s->source[i], s->taken[i]));
    bad |= json_object_set_new(json, "sources", sources);
    if (bad) {
        json_decref(json);
        return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "out of memory for the data position");
    }
    *out = json;
    return TS_OK;
}

/* ---- from JSON ------------------------------------------------------------------------------ */

static ts_status damaged(const char *what, ts_error *err)
{
    return TS_ERROR(err, TS_INVALID_ARGUMENT,
                    "the saved data position has no %s; the checkpoint is damaged, use an "
                    "earlier one",
                    what);
}

static ts_status read_hash(const json_t *json, const char *key, uint64_t *out, ts_error *err)
{
    const char *text = json_string_value(json_object_get(json, key));
    char what[80];
    snprintf(what, sizeof what, "\"%s\" of 16 hexadecimal digits", key);
    if (!text || strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16)
        return damaged(what, err);
    *out = strtoull(text, NULL, 16);
    return TS_OK;
}

static ts_status read_rows(const json_t *json, int64_t *out, ts_error *err)
{
    const json_t *value = json_object_get(json, "rows");
    if (!json_is_integer(value)) return damaged("whole number \"rows\"", err);
    *out = json_integer_value(value);
    return TS_OK;
}

static ts_status read_position(const json_t *list, ts__position *p, ts_error *err)
{
    size_t n = json_array_size(list);
    if (n < 2 || n % 2 || n > 2 + 2 * TS_LOADER_PENDING)
        return damaged("reader of a cursor, an offset and pairs for what waits", err);
    for (size_t i = 0; i < n; i++)
        if (!json_is_integer(json_array_get(list, i)))
            return damaged("reader that is a list of whole numbers", err);
    p->taken = json_integer_value(json_array_get(list, 0));
    p->offset = json_integer_value(json_array_get(list, 1));
    p->n_pending = (int32_t)(n / 2 - 1);
    for (int32_t i = 0; i < p->n_pending; i++) {
        int64_t tokens = json_integer_value(json_array_get(list, 2 * (size_t)i + 3));
        if (tokens < 0 || tokens > INT32_MAX)
            return no_state("the length of a pending sample", tokens, err);
        p->pending[i] = json_integer_value(json_array_get(list, 2 * (size_t)i + 2));
        p->tokens[i] = (int32_t)tokens;
    }
    return TS_OK;
}

static ts_status read_all(const json_t *json, ts_loader_state *s, ts_error *err)
{
    const json_t *sources = json_object_get(json, "sources");
    TS_TRY(read_hash(json, "fingerprint", &s->fingerprint, err));
    TS_TRY(read_hash(json, "order_hash", &s->order_hash, err));
    TS_TRY(read_rows(json, &s->rows, err));
    for (int i = 0; i < s->n_sources; i++) {
        const json_t *source = json_array_get(sources, (size_t)i);
        const json_t *readers = json_object_get(source, "readers");
        TS_TRY(read_rows(source, &s->taken[i], err));
        s->source[i].n_readers = s->source[i].room;
        for (int k = 0; k < s->source[i].n_readers; k++)
            TS_TRY(
                read_position(json_array_get(readers, (size_t)k), &s->source[i].position[k], err));
    }
    return TS_OK;
}

ts_status ts_loader_state_from_json(const json_t *json, ts_loader_state **out, ts_error *err)
{
    const json_t *sources = json_object_get(json, "sources");
    size_t n = json_array_size(sources);
    int room[TS_MAX_SOURCES];
    if (n < 1 || n > TS_MAX_SOURCES) return damaged("list \"sources\" of 1 to 256", err);
    for (size_t i = 0; i < n; i++) {
        size_t readers = json_array_size(json_object_get(json_array_get(sources, i), "readers"));
        if (readers < 1 || readers > TS_MAX_READERS || (readers & (readers - 1)))
            return damaged("list \"readers\" of a power of two up to 256", err);
        room[i] = (int)readers;
    }
    ts_loader_state *s;
    TS_TRY(ts__state_new((int)n, room, &s, err));
    ts_status status = read_all(json, s, err);
    if (status != TS_OK) {
        ts_loader_state_free(s);
        return status;
    }
    *out = s;
    return TS_OK;
}
