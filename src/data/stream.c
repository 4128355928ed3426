/* data/stream.c – text files and token files as one list of ids, read at any place.
 *
 * Text: each file is a document of its bytes, with bos in front and eos behind when asked for.
 * Tokens: llm.c's .bin, a header of 256 little-endian int32 (magic, version, number of tokens, rest
 * ignored) and then u16 (magic 20240520, version 1) or u32 (magic 20240801, version 7) ids. Every
 * read goes by pread into the caller's ids, which are widened in place: nothing is held but the
 * files' sizes. Not here: windows and their order, the held-out part (loader.c, windows.c).
 */
#include <xxhash.h>

#include "data/internal.h"

enum {
    HEADER_BYTES = 1024,
    MAGIC_U16 = 20240520,
    MAGIC_U32 = 20240801,
    VERSION_U16 = 1,
    VERSION_U32 = 7
};
enum { FIRST_LOOK = 65536 }; /* tokens of each file that open compares with the vocabulary */

typedef struct piece {
    ts_file *file;
    int64_t begin, n;     /* tokens: place of the first in the stream, number with bos and eos */
    uint64_t data_offset; /* bytes */
    int width;            /* bytes a token: 1, 2, 4 */
} piece;

struct ts__stream {
    size_t n_pieces;
    piece *pieces;
    int64_t n;
    int32_t bos, eos; /* −1: not added */
    int64_t vocab_size;
    uint64_t fingerprint;
};

/* ---- one file ------------------------------------------------------------------------------- */

static uint32_t little_u32(const unsigned char *b)
{
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

static ts_status parse_header(piece *p, ts_error *err)
{
    unsigned char header[12];
    const char *path = ts_file_path(p->file);
    uint64_t size = ts_file_size(p->file);
    if (size < HEADER_BYTES)
        return TS_ERROR(
            err, TS_DATA_LOSS,
            "%s has %llu bytes; a token file (.bin) begins with a header of %d: it is cut, or of "
            "another "
            "format (dataset_type=text reads plain text)",
            path, (unsigned long long)size, HEADER_BYTES);
    TS_TRY(ts_file_read_at(p->file, 0, header, sizeof header, err));
    uint32_t magic = little_u32(header), version = little_u32(header + 4);
    int32_t count = (int32_t)little_u32(header + 8);
    if (magic != MAGIC_U16 && magic != MAGIC_U32)
        return TS_ERROR(
            err, TS_DATA_LOSS,
            "%s: magic number %u is not that of a token file: expected %d (16-bit ids) or %d "
            "(32-bit ids), "
            "little-endian; for plain text set dataset_type=text",
            path, magic, MAGIC_U16, MAGIC_U32);
    uint32_t expected = magic == MAGIC_U16 ? VERSION_U16 : VERSION_U32;
    if (version != expected)
        return TS_ERROR(
            err, TS_DATA_LOSS,
            "%s: version %u of the token format; magic %u has version %u: write it again "
            "with a current tool",
            path, version, magic, expected);
    p->width = magic == MAGIC_U16 ? 2 : 4;
    p->data_offset = HEADER_BYTES;
    p->n = count;
    uint64_t holds = (size - HEADER_BYTES) / (uint64_t)p->width;
    if (count < 1)
        return TS_ERROR(
            err, TS_DATA_LOSS,
            "%s: the header says %d tokens; expected at least 1 (the file has room for %llu)", path,
            count, (unsigned long long)holds);
    uint64_t want = HEADER_BYTES + (uint64_t)count * (uint64_t)p->width;
    if (size < want)
        return TS_ERROR(
            err, TS_DATA_LOSS,
            "%s is cut: the header says %d tokens of %d bytes, %llu bytes in all, and the file "
            "has %llu; copy it again",
            path, count, p->width, (unsigned long long)want, (unsigned long long)size);
    if (size > want)
        return TS_ERROR(
            err, TS_DATA_LOSS,
            "%s is too long: the header says %d tokens of %d bytes, %llu bytes in all, and the "
            "file has %llu; the header is wrong or the id width is",
            path, count, p->width, (unsigned long long)want, (unsigned long long)size);
    return TS_OK;
}

static ts_status open_piece(ts__stream *s, const ts_loader_options *o, size_t i, ts_error *err)
{
    piece *p = &s->pieces[i];
    bool text = o->type == TS_DATA_TEXT;
    TS_TRY(ts__data_file_open(o->paths[i], text ? "text" : "tokens", o->cache_folder, &p->file,
                              err));
    if (text) {
        p->width = 1;
        uint64_t size = ts_file_size(p->file);
        if (size > INT64_MAX / 2)
            return TS_ERROR(err, TS_INVALID_ARGUMENT, "%s has %llu bytes, more than can be counted",
                            o->paths[i], (unsigned long long)size);
        p->n = (int64_t)size + (s->bos >= 0) + (s->eos >= 0);
    } else {
        TS_TRY(parse_header(p, err));
    }
    p->begin = s->n;
    if (ts_add_i64(s->n, p->n, &s->n))
        return TS_ERROR(err, TS_INVALID_ARGUMENT,
                        "the %zu data files together are too large to count", o->n_paths);
    uint64_t hash;
    TS_TRY(ts__data_file_fingerprint(p->file, &hash, err));
    s->fingerprint = ts_mix64(s->fingerprint ^ hash);
    return TS_OK;
}

/* ---- open, close ---------------------------------------------------------------------------- */

/* A token file made with another tokenizer is noticed now rather than an hour into the run. */
static ts_status look_at_first_tokens(ts__stream *s, ts_error *err)
{
    int32_t *ids = ts_alloc(FIRST_LOOK * sizeof *ids);
    if (!ids)
        return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "out of memory for %d tokens", FIRST_LOOK);
    ts_status status = TS_OK;
    for (size_t i = 0; i < s->n_pieces && status == TS_OK; i++) {
        int64_t n = s->pieces[i].n < FIRST_LOOK ? s->pieces[i].n : FIRST_LOOK;
        status = ts__stream_read(s, s->pieces[i].begin, n, ids, err);
    }
    ts_free(ids);
    return status;
}

static ts_status open_all(ts__stream *s, const ts_loader_options *o, ts_error *err)
{
    s->bos = s->eos = -1;
    if (o->type == TS_DATA_TEXT) {
        if (!ts_tokenizer_is_bytewise(o->tokenizer))
            return TS_ERROR(
                err, TS_UNIMPLEMENTED,
                "dataset_type=text reads at any place of a file, which needs "
                "tokenizer_type=byte; with tokenizer_type=%s write a token file first (tessera "
                "tokenize "
                "--tokens-out) and set dataset_type=tokens",
                ts_tokenizer_type(o->tokenizer));
        if (o->add_bos) s->bos = ts_tokenizer_bos(o->tokenizer);
        if (o->add_eos) s->eos = ts_tokenizer_eos(o->tokenizer);
    }
    s->vocab_size = o->vocab_size;
    TS_TRY(ts__data_files_room(o->n_paths, err));
    for (size_t i = 0; i < o->n_paths; i++) TS_TRY(open_piece(s, o, i, err));
    return o->type == TS_DATA_TOKENS ? look_at_first_tokens(s, err) : TS_OK;
}

ts_status ts__stream_open(const ts_loader_options *o, ts__stream **out, ts_error *err)
{
    ts__stream *s = ts_alloc_zero(sizeof *s);
    if (s) s->pieces = ts_alloc_zero(o->n_paths * sizeof *s->pieces);
    if (!s || !s->pieces) {
        ts_free(s);
        return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "out of memory for %zu data files", o->n_paths);
    }
    s->n_pieces = o->n_paths;
    ts_status status = open_all(s, o, err);
    if (status != TS_OK) {
        ts__stream_free(s);
        return status;
    }
    *out = s;
    return TS_OK;
}

void ts__stream_free(ts__stream *s)
{
    if (!s) return;
    for (size_t i = 0; i < s->n_pieces; i++) ts__data_file_close(s->pieces[i].file);
    ts_free(s->pieces);
    ts_free(s);
}

int64_t ts__stream_tokens(const ts__stream *s)
{
    return s->n;
}
uint64_t ts__stream_fingerprint(const ts__stream *s)
{
    return s->fingerprint;
}

/* ---- read ----------------------------------------------------------------------------------- */

static const piece *piece_at(const ts__stream *s, int64_t at)
{
    size_t low = 0, high = s->n_pieces; /* pieces[low].begin ≤ at < pieces[high].begin */
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (s->pieces[middle].begin <= at)
            low = middle;
        else
            high = middle;
    }
    return &s->pieces[low];
}

int64_t ts__stream_file_end(const ts__stream *s, int64_t at)
{
    const piece *p = piece_at(s, at);
    return p->begin + p->n;
}

/* ids [n] from bytes that lie at the end of ids' own memory: writing id i never passes byte i+1. */
static void widen(int32_t *ids, int64_t n, int width)
{
    const unsigned char *from = (const unsigned char *)ids + (size_t)n * (size_t)(4 - width);
    for (int64_t i = 0; i < n; i++, from += width) {
        uint32_t id = from[0];
        for (int b = 1; b < width; b++) id |= (uint32_t)from[b] << 8 * b;
        ids[i] = (int32_t)id;
    }
}

static ts_status read_data(const ts__stream *s, const piece *p, int64_t at, int64_t n, int32_t *ids,
                           ts_error *err)
{
    if (n == 0) return TS_OK;
    size_t bytes = (size_t)n * (size_t)p->width;
    TS_TRY(ts_file_read_at(p->file, p->data_offset + (uint64_t)at * (uint64_t)p->width,
                           (unsigned char *)ids + (size_t)n * 4 - bytes, bytes, err));
    widen(ids, n, p->width);
    if (s->vocab_size <= 0 || p->width == 1) return TS_OK;
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= s->vocab_size)
            return TS_ERROR(
                err, TS_DATA_LOSS,
                "%s: token %lld is %u; the vocabulary has %lld ids: the file was made with another "
                "tokenizer, or vocab_size is too small",
                ts_file_path(p->file), (long long)(at + i), (unsigned)ids[i],
                (long long)s->vocab_size);
    return TS_OK;
}

ts_status ts__stream_read(ts__stream *s, int64_t at, int64_t n, int32_t *ids, ts_error *err)
{
    TS_ASSERT(at >= 0 && n >= 0 && n <= s->n && at <= s->n - n);
    while (n > 0) {
        const piece *p = piece_at(s, at);
        int64_t in = at - p->begin, here = p->n - in < n ? p->n - in : n;
        int64_t front = s->bos >= 0 && in == 0, back = s->eos >= 0 && in + here == p->n;
        if (front) ids[0] = s->bos;
        TS_TRY(read_data(s, p, in - (s->bos >= 0) + front, here - front - back, ids + front, err));
        if (back) ids[here - 1] = s->eos;
        ids += here;
        at += here;
        n -= here;
    }
    return TS_OK;
}
