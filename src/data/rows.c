/* data/rows.c – JSON lines as numbered samples of ids.
 *
 * open reads every file once, judges every line and keeps the place of each usable row of this
 * split (index.c); nothing in memory grows with the files. A bad row (not UTF-8, not JSON, no
 * object, a key missing or no string, empty, too long) is counted and reported by file and line;
 * after open none is left, so the order of samples never depends on luck. read finds the line again
 * and fails when it changed. Blank lines are no rows. Not here: the order, packing (pack.c),
 * templates.
 */
#include <stdio.h>
#include <xxhash.h>

#include "base/log.h"
#include "data/internal.h"

enum { CHUNK = 1 << 20, FIRST_READ = 4096, ROW_DEPTH = 32, PLACES_IN_MEMORY = 4 << 20 };

struct ts__rows {
    ts_loader_options o; /* columns are ours */
    size_t n_files;
    ts_file **files;
    uint64_t *base; /* [n_files + 1]: place of a file's first byte when all are laid end to end */
    char **columns;
    char *separator;
    ts__index *place; /* of each row's first byte */
    ts_loader_stats stats;
    int64_t file_rows; /* of the file that is being scanned, so far */
    char *bad[TS_BAD_ROWS_KEPT];
    uint64_t fingerprint;
};

/* ---- one row: text → ids ------------------------------------------------------------------ */

/* A reason in *why is DATA_LOSS; any other failure is ours, not the row's. */
static ts_status missing_column(const json_t *row, const char *column, ts_error *why)
{
    ts_string keys = ts_string_new(200);
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)row, key, value)
    {
        if (keys.length + strlen(key) + 3 < 200)
            ts_string_printf(&keys, "%s%s", keys.length ? ", " : "", key);
    }
    TS_ERROR(why, TS_DATA_LOSS, "no key \"%s\"; the row has: %s (set train_data_columns)", column,
             keys.length ? keys.data : "none");
    ts_string_free(&keys);
    return TS_DATA_LOSS;
}

static ts_status join_columns(const ts__rows *r, const json_t *row, ts_string *document,
                              ts_error *why)
{
    static const char *const kinds[] = {"an object", "a list", "a string", "a number",
                                        "a number",  "true",   "false",    "null"};
    size_t bytes = 0;
    if (document->failed) ts_string_free(document); /* an earlier row met the end of memory */
    if (!document->data)
        *document = ts_string_new(SIZE_MAX / 2); /* JSON only shrinks: max_row_bytes holds */
    document->length = 0;
    for (size_t i = 0; i < r->o.n_columns; i++) {
        const json_t *value = json_object_get(row, r->columns[i]);
        if (!value) return missing_column(row, r->columns[i], why);
        if (!json_is_string(value))
            return TS_ERROR(why, TS_DATA_LOSS, "key \"%s\" is %s; expected a string", r->columns[i],
                            kinds[json_typeof(value)]);
        if (i > 0) ts_string_add(document, r->separator);
        ts_string_add_bytes(document, json_string_value(value), json_string_length(value));
        bytes += json_string_length(value);
    }
    if (document->failed)
        return TS_ERROR(why, TS_RESOURCE_EXHAUSTED, "out of memory for the text of a row");
    return bytes > 0 ? TS_OK : TS_ERROR(why, TS_DATA_LOSS, "the text is empty");
}

/* jansson's message names line 1 of a one-line document: only the column is news. */
static void reword_json_error(ts_error *why)
{
    int column, skip = 0;
    if (sscanf(why->msg, "row:1:%d: %n", &column, &skip) != 1 || skip <= 0) return;
    char text[200];
    snprintf(text, sizeof text, "%s (column %d)", why->msg + skip, column);
    memcpy(why->msg, text, sizeof text);
}

static ts_status encode_row(const ts__rows *r, const char *text, size_t n, ts_string *document,
                            ts_tokens *ids, bool *cut, ts_error *why)
{
    json_t *row = NULL;
    size_t valid = ts_utf8_valid_prefix(text, n);
    if (valid < n)
        return TS_ERROR(why, TS_DATA_LOSS, "not UTF-8 (byte %zu of the line is 0x%02x)", valid + 1,
                        (unsigned char)text[valid]);
    ts_status status = ts_json_parse(text, n, ROW_DEPTH, "row", &row, why);
    if (status != TS_OK) {
        reword_json_error(why);
        return status;
    }
    status = json_is_object(row)
                 ? join_columns(r, row, document, why)
                 : TS_ERROR(why, TS_DATA_LOSS, "not a JSON object; expected one {…} a line");
    json_decref(row);
    TS_TRY(status);
    unsigned flags = (r->o.add_bos ? TS_ENCODE_BOS : 0u) | (r->o.add_eos ? TS_ENCODE_EOS : 0u);
    ids->n = 0;
    TS_TRY(
        ts_tokenizer_encode(r->o.tokenizer, document->data, document->length, flags, ids, why));
    *cut = r->o.packing != TS_PACK_CONCAT && ids->n > (size_t)r->o.sequence;
    if (*cut && !r->o.truncate)
        return TS_ERROR(
            why, TS_DATA_LOSS,
            "%zu tokens; a row of the batch has %lld (max_target_length) and use_truncation is "
            "false",
            ids->n, (long long)r->o.sequence);
    if (*cut) ids->n = (size_t)r->o.sequence;
    return ids->n >= 2 ? TS_OK
                       : TS_ERROR(why, TS_DATA_LOSS, "only %zu token; a sample needs 2", ids->n);
}

/* ---- open: judge every line ----------------------------------------------------------------- */

static ts_status note_bad(ts__rows *r, const char *path, int64_t line, const char *reason,
                          ts_error *err)
{
    if (r->o.on_bad_row == TS_BAD_ROW_STOP)
        return TS_ERROR(err, TS_DATA_LOSS, "%s:%lld: %s; mend the row, or set on_bad_row=skip",
                        path, (long long)line, reason);
    int64_t k = r->stats.bad_rows++;
    if (k >= TS_BAD_ROWS_KEPT) return TS_OK;
    ts_string message = ts_string_new(4096);
    ts_string_printf(&message, "%s:%lld: %s", path, (long long)line, reason);
    if (message.failed) {
        ts_string_free(&message);
        return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "out of memory while reporting a bad row");
    }
    r->bad[k] = message.data;
    ts_log(TS_LOG_WARNING, "%s: row skipped", r->bad[k]);
    return TS_OK;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

typedef struct scan {
    ts__row_scratch scratch;
    ts_tokens ids;
} scan;

/* A line of file k, without its newline. */
static ts_status judge(ts__rows *r, size_t k, uint64_t offset, int64_t line, const char *text,
                       size_t n, scan *s, ts_error *err)
{
    static const char mark[] = "\xef\xbb\xbf";
    if (offset == 0 && n >= 3 && memcmp(text, mark, 3) == 0) {
        text += 3;
        n -= 3;
        offset = 3;
    }
    while (n > 0 && is_blank(text[n - 1])) n--;
    if (n == 0) return TS_OK;
    r->stats.rows++;
    if (r->file_rows++ == 0 && text[0] == '[')
        return TS_ERROR(
            err, TS_DATA_LOSS,
            "%s:%lld: begins with '[', so the file is one JSON list; dataset_type=jsonl reads "
            "one object a line: convert it (jq -c '.[]')",
            ts_file_path(r->files[k]), (long long)line);
    if (n > r->o.max_row_bytes)
        return note_bad(r, ts_file_path(r->files[k]), line, "the line is too long", err);
    ts_error why = {0};
    bool cut;
    ts_status status = encode_row(r, text, n, &s->scratch.document, &s->ids, &cut, &why);
    if (status == TS_DATA_LOSS) return note_bad(r, ts_file_path(r->files[k]), line, why.msg, err);
    if (status != TS_OK)
        return TS_ERROR(err, status, "%s:%lld: %s", ts_file_path(r->files[k]), (long long)line,
                        why.msg);
    bool held_out = r->o.eval_fraction > 0 &&
                    (double)(XXH3_64bits(text, n) >> 11) * 0x1p-53 < r->o.eval_fraction;
    if (r->o.eval_fraction > 0 && held_out != (r->o.split == TS_SPLIT_EVAL)) return TS_OK;
    r->stats.cut_rows += cut;
    r->stats.tokens += (int64_t)s->ids.n;
    return ts__index_add(r->place, r->base[k] + offset, err);
}

static ts_status grow_line(ts__row_scratch *s, size_t capacity, ts_error *err)
{
    if (capacity <= s->line_capacity) return TS_OK;
    char *grown = ts_realloc(s->line, s->line_capacity, capacity);
    if (!grown)
        return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "out of memory for a line of %zu bytes",
                        capacity);
    s->line = grown;
    s->line_capacity = capacity;
    return TS_OK;
}

/* Lines of a file through one buffer that grows to the longest line, at most to max_row_bytes and a
 * chunk. */
static ts_status scan_file(ts__rows *r, size_t k, scan *s, ts_error *err)
{
    ts_file *f = r->files[k];
    ts__row_scratch *buffer = &s->scratch;
    uint64_t size = ts_file_size(f), start = 0; /* file offset of line[0] */
    size_t have = 0, searched = 0;
    int64_t line = 1;
    r->file_rows = 0;
    bool skipping = false; /* inside a line that was already too long */
    while (start + have < size || have > 0) {
        size_t from = 0;
        char *newline;
        while ((newline = memchr(buffer->line + searched, '\n', have - searched)) != NULL) {
            size_t stop = (size_t)(newline - buffer->line);
            if (!skipping)
                TS_TRY(judge(r, k, start + from, line, buffer->line + from, stop - from, s, err));
            skipping = false;
            line++;
            from = searched = stop + 1;
        }
        memmove(buffer->line, buffer->line + from, have - from);
        start += from;
        have = searched = have - from;
        if (start + have == size) {
            if (have > 0 && !skipping) TS_TRY(judge(r, k, start, line, buffer->line, have, s, err));
            break;
        }
        if (have > r->o.max_row_bytes && !skipping) {
            skipping = true;
            r->stats.rows++;
            r->file_rows++;
            TS_TRY(note_bad(r, ts_file_path(f), line, "the line is too long", err));
        }
        if (skipping) {
            start += have;
            have = searched = 0;
        }
        TS_TRY(grow_line(buffer, have + CHUNK, err));
        uint64_t left = size - start - have;
        size_t more = left < CHUNK ? (size_t)left : CHUNK;
        TS_TRY(ts_file_read_at(f, start + have, buffer->line + have, more, err));
        have += more;
    }
    return TS_OK;
}

static ts_status nothing_left(const ts__rows *r, const char *path, ts_error *err)
{
    const char *more = r->o.n_paths > 1 ? " and the other files" : "";
    char number[TS_SHORTEST];
    if (r->stats.rows == 0)
        return TS_ERROR(err, TS_DATA_LOSS,
                        "%s%s: only blank lines; expected one JSON object a line", path, more);
    if (r->stats.bad_rows == r->stats.rows)
        return TS_ERROR(err, TS_DATA_LOSS, "%s%s: none of the %lld rows can be used; the first: %s",
                        path, more, (long long)r->stats.rows, r->bad[0]);
    return TS_ERROR(err, TS_INVALID_ARGUMENT,
                    "%s%s: %lld usable rows leave none for %s with eval_fraction=%s; choose "
                    "another fraction or give more rows",
                    path, more, (long long)(r->stats.rows - r->stats.bad_rows),
                    r->o.split == TS_SPLIT_EVAL ? "evaluation" : "training",
                    ts__shortest(r->o.eval_fraction, number));
}

static ts_status copy_columns(ts__rows *r, const ts_loader_options *o, ts_error *err)
{
    static const char *const usual[] = {"text"};
    const char *const *columns = o->n_columns ? o->columns : usual;
    size_t n = o->n_columns ? o->n_columns : 1;
    r->columns = ts_alloc_zero(n * sizeof *r->columns);
    r->separator = ts_strdup(o->column_separator ? o->column_separator : "\n");
    bool ok = r->columns && r->separator;
    r->o.n_columns = r->columns ? n : 0;
    for (size_t i = 0; ok && i < n; i++) {
        ok = (r->columns[i] = ts_strdup(columns[i])) != NULL;
        if (ok)
            r->fingerprint = ts_mix64(r->fingerprint ^ XXH3_64bits(columns[i], strlen(columns[i])));
    }
    if (!ok) return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "out of memory for %zu column names", n);
    r->fingerprint = ts_mix64(r->fingerprint ^ XXH3_64bits(r->separator, strlen(r->separator)));
    return TS_OK;
}

static ts_status scan_all(ts__rows *r, scan *s, const ts_loader_options *o, ts_error *err)
{
    TS_TRY(ts__data_files_room(o->n_paths, err));
    TS_TRY(copy_columns(r, o, err));
    TS_TRY(grow_line(&s->scratch, CHUNK, err));
    for (size_t k = 0; k < o->n_paths; k++) {
        uint64_t hash;
        TS_TRY(ts__data_file_open(o->paths[k], "jsonl", o->cache_folder, &r->files[k], err));
        TS_TRY(ts__data_file_fingerprint(r->files[k], &hash, err));
        r->fingerprint = ts_mix64(r->fingerprint ^ hash);
        if (__builtin_add_overflow(r->base[k], ts_file_size(r->files[k]), &r->base[k + 1]))
            return TS_ERROR(err, TS_INVALID_ARGUMENT,
                            "the %zu data files together are too large to count", o->n_paths);
        TS_TRY(scan_file(r, k, s, err));
    }
    if (r->stats.bad_rows > TS_BAD_ROWS_KEPT)
        ts_log(TS_LOG_WARNING, "%lld bad rows in all, of %lld", (long long)r->stats.bad_rows,
               (long long)r->stats.rows);
    TS_TRY(ts__index_seal(r->place, err));
    r->stats.samples = ts__index_count(r->place);
    r->fingerprint = ts_mix64(r->fingerprint ^ (uint64_t)r->stats.samples);
    return r->stats.samples > 0 ? TS_OK : nothing_left(r, o->paths[0], err);
}

static ts_status open_all(ts__rows *r, const ts_loader_options *o, ts_error *err)
{
    scan s = {0};
    ts_status status = scan_all(r, &s, o, err);
    ts__row_scratch_free(&s.scratch);
    ts_tokens_free(&s.ids);
    return status;
}

ts_status ts__rows_open_limited(const ts_loader_options *o, int64_t in_memory, ts__rows **out,
                                ts_error *err)
{
    ts__rows *r = ts_alloc_zero(sizeof *r);
    if (r) {
        r->o = *o;
        r->o.n_columns = 0;
        r->files = ts_alloc_zero(o->n_paths * sizeof *r->files);
        r->base = ts_alloc_zero((o->n_paths + 1) * sizeof *r->base);
        r->n_files = r->files ? o->n_paths : 0;
    }
    ts_status status =
        r && r->files && r->base
            ? ts__index_new(in_memory, o->cache_folder, o->paths[0], &r->place, err)
            : TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "out of memory for %zu data files", o->n_paths);
    if (status == TS_OK) status = open_all(r, o, err);
    if (status != TS_OK) {
        ts__rows_free(r);
        return status;
    }
    *out = r;
    return TS_OK;
}

ts_status ts__rows_open(const ts_loader_options *o, ts__rows **out, ts_error *err)
{
    return ts__rows_open_limited(o, PLACES_IN_MEMORY, out, err);
}

void ts__rows_free(ts__rows *r)
{
    if (!r) return;
    for (size_t i = 0; i < r->n_files; i++) ts__data_file_close(r->files[i]);
    for (size_t i = 0; i < r->o.n_columns; i++) ts_free(r->columns[i]);
    for (size_t i = 0; i < TS_BAD_ROWS_KEPT; i++) ts_free(r->bad[i]);
    ts_free(r->files);
    ts_free(r->base);
    ts_free(r->columns);
    ts_free(r->separator);
    ts__index_free(r->place);
    ts_free(r);
}

int64_t ts__rows_count(const ts__rows *r)
{
    return r->stats.samples;
}
uint64_t ts__rows_fingerprint(const ts__rows *r)
{
    return r->fingerprint;
}
const ts_loader_stats *ts__rows_stats(const ts__rows *r)
{
    return &r->stats;
}
const char *ts__rows_bad_at(const ts__rows *r, size_t i)
{
    return i < TS_BAD_ROWS_KEPT ? r->bad[i] : NULL;
}

/* ---- read ----------------------------------------------------------------------------------- */

void ts__row_scratch_free(ts__row_scratch *s)
{
    ts_free(s->line);
    ts_string_free(&s->document);
    *s = (ts__row_scratch){0};
}

/* The line at offset of f into s->line; *n without the newline. */
static ts_status read_line(const ts__rows *r, ts_file *f, uint64_t offset, ts__row_scratch *s,
                           size_t *n, ts_error *err)
{
    uint64_t left = ts_file_size(f) - offset;
    size_t have = 0, want = FIRST_READ;
    for (;;) {
        if (want > left) want = (size_t)left;
        TS_TRY(grow_line(s, want, err));
        TS_TRY(ts_file_read_at(f, offset + have, s->line + have, want - have, err));
        char *newline = memchr(s->line + have, '\n', want - have);
        if (newline || want == left) {
            *n = newline ? (size_t)(newline - s->line) : want;
            return TS_OK;
        }
        have = want;
        if (have > r->o.max_row_bytes + CHUNK)
            return TS_ERROR(
                err, TS_DATA_LOSS,
                "%s: the row at byte %llu has no end any more: the file changed during the run",
                ts_file_path(f), (unsigned long long)offset);
        want *= 2;
    }
}

static size_t file_at(const ts__rows *r, uint64_t place)
{
    size_t low = 0, high = r->n_files; /* base[low] ≤ place < base[high] */
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (r->base[middle] <= place)
            low = middle;
        else
            high = middle;
    }
    return low;
}

ts_status ts__rows_read(const ts__rows *r, int64_t i, ts__row_scratch *scratch, ts_tokens *ids,
                        ts_error *err)
{
    TS_ASSERT(i >= 0 && i < r->stats.samples);
    size_t k, n = 0;
    uint64_t place;
    TS_TRY(ts__index_at(r->place, i, &place, err));
    k = file_at(r, place);
    uint64_t offset = place - r->base[k];
    TS_TRY(read_line(r, r->files[k], offset, scratch, &n, err));
    while (n > 0 && is_blank(scratch->line[n - 1])) n--;
    ts_error why = {0};
    bool cut;
    ts_status status = encode_row(r, scratch->line, n, &scratch->document, ids, &cut, &why);
    if (status == TS_OK) return TS_OK;
    if (status != TS_DATA_LOSS)
        return TS_ERROR(err, status, "%s: %s", ts_file_path(r->files[k]), why.msg);
    return TS_ERROR(
        err, status,
        "%s: the row at byte %llu was usable when the run began and is not now (%s): the file "
        "changed; "
        "start again",
        ts_file_path(r->files[k]), (unsigned long long)offset, why.msg);
}
