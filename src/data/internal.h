/* data/internal.h – what the files of src/data share: streams of tokens, rows of JSON, the order.
 *
 * A stream (text, tokens) is one long list of ids over several files, read at any place. Rows
 * (jsonl) are samples of their own length, read by number. loader.c owns the position; windows.c
 * and pack.c turn positions into batches.
 */
#ifndef TS_DATA_INTERNAL_H
#define TS_DATA_INTERNAL_H

#include "base/file.h"
#include "base/random.h"
#include "data/loader.h"

/* A number for a message, in as few digits as read back the same (loader.c). */
enum { TS_SHORTEST = 32 };
const char *ts__shortest(double x, char text[TS_SHORTEST]);

/* ---- order (permute.c) ---------------------------------------------------------------------- */

enum { TS_PERMUTATION_ROUNDS = 6 };
typedef struct ts__permutation {
    uint64_t n, key[TS_PERMUTATION_ROUNDS];
    unsigned half_bits;
} ts__permutation;
void ts__permutation_init(ts__permutation *p, uint64_t n, uint64_t seed,
                          uint64_t epoch);                         /* n ≥ 1 */
uint64_t ts__permutation_at(const ts__permutation *p, uint64_t i); /* i < n */

/* ---- files (source.c) ----------------------------------------------------------------------- */

/* Opens a file of a data set: not a folder, not empty, not compressed or a format of another
 * tool. */
ts_status ts__data_file_open(const char *path, const char *dataset_type, ts_file **out,
                             ts_error *err);
/* Hash of a file's size, head and tail: notices another file, not every change. */
ts_status ts__data_file_fingerprint(ts_file *f, uint64_t *hash, ts_error *err);

/* ---- stream (stream.c) ---------------------------------------------------------------------- */

typedef struct ts__stream ts__stream;
ts_status ts__stream_open(const ts_loader_options *o, ts__stream **out, ts_error *err);
void ts__stream_free(ts__stream *s);
int64_t ts__stream_tokens(const ts__stream *s);
uint64_t ts__stream_fingerprint(const ts__stream *s);
/* ids [n] from token at on; allocates nothing. */
ts_status ts__stream_read(ts__stream *s, int64_t at, int64_t n, int32_t *ids, ts_error *err);
/* The first place after at where another file begins, or the end of the stream. */
int64_t ts__stream_file_end(const ts__stream *s, int64_t at);

/* ---- rows (rows.c) -------------------------------------------------------------------------- */

typedef struct ts__rows ts__rows;
ts_status ts__rows_open(const ts_loader_options *o, ts__rows **out, ts_error *err);
void ts__rows_free(ts__rows *r);
int64_t ts__rows_count(const ts__rows *r);
uint64_t ts__rows_fingerprint(const ts__rows *r);
const ts_loader_stats *ts__rows_stats(const ts__rows *r);
const char *ts__rows_bad_at(const ts__rows *r, size_t i);
/* Replaces ids by the tokens of row i, cut to the sequence where rows are cut. At least 2. */
ts_status ts__rows_read(ts__rows *r, int64_t i, ts_tokens *ids, ts_error *err);

/* ---- loader --------------------------------------------------------------------------------- */

struct ts_loader {
    ts_loader_options o; /* paths and columns are not kept */
    ts__stream *stream;  /* text, tokens */
    ts__rows *rows;      /* jsonl */
    int64_t begin, end;  /* stream: this split's tokens */
    int32_t pad;
    ts_loader_stats stats;
    ts_loader_state state;
    ts__permutation order; /* of order_epoch */
    int64_t order_epoch;
    ts_tokens sample; /* concat: the sample at the cursor, number sample_id (−1: none) */
    int64_t sample_id;
    int32_t *window;          /* stream: [sequence + 1] */
    int64_t *used, *segments; /* packing: [rows] slots and segments taken in each row */
};

/* The sample of ordinal (epoch · samples + index): its number in the data. */
int64_t ts__loader_sample_at(ts_loader *l, int64_t ordinal);
/* No sample is left in the last epoch. */
bool ts__loader_exhausted(const ts_loader *l);
/* The ordinal at the cursor, which moves on. Not when exhausted. */
int64_t ts__loader_take(ts_loader *l);
/* n tokens as one segment of row at slot; labels are the following ids, the last one's is next. */
void ts__loader_put(ts_loader *l, ts_batch *b, int64_t row, int64_t slot, const int32_t *ids,
                    int64_t n, int32_t next, int32_t segment);

ts_status ts__windows_fill(ts_loader *l, ts_batch *b, ts_error *err);
ts_status ts__pack_fill(ts_loader *l, ts_batch *b, ts_error *err);
void ts__synthetic_fill(ts_loader *l, ts_batch *b);

#endif
