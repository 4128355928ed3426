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

/* Opens a file of a data set: not a folder, not empty, not a format of another tool. A file
 * compressed with gzip or zstd is unpacked into a file without a name in cache_folder (NULL:
 * $TMPDIR, else /tmp), which goes with the last who has it
 * open; messages keep the name of the compressed one. */
ts_status ts__data_file_open(const char *path, const char *dataset_type, const char *cache_folder,
                             ts_file **out, ts_error *err);
void ts__data_file_close(ts_file *f); /* NULL is fine */
/* Lets this process hold n data files open at once beside others, where that is within its hard
 * limit. */
ts_status ts__data_files_room(size_t n, ts_error *err);
/* Hash of the content's size, head and tail, unpacked: notices another file, not every change. */
ts_status ts__data_file_fingerprint(ts_file *f, uint64_t *hash, ts_error *err);

/* ---- compressed files (unpack.c) ------------------------------------------------------------- */

typedef enum ts__compression { TS__PLAIN, TS__GZIP, TS__ZSTD } ts__compression;
ts__compression ts__compression_of(const unsigned char *head, size_t n); /* by its first bytes */
/* The content of from, which is compressed, as a file of the same path in messages; fails where it
 * has more than max bytes (UINT64_MAX: only the disk limits it). Owns *out: caller. */
ts_status ts__unpack(ts_file *from, ts__compression kind, const char *cache_folder, uint64_t max,
                     ts_file **out, ts_error *err);
/* The same without a limit, or of whoever has it open already. Owns *out: caller,
 * ts__data_file_close (unpacked.c). */
ts_status ts__unpacked(ts_file *from, ts__compression kind, const char *cache_folder, ts_file **out,
                       ts_error *err);
const char *ts__cache_folder(const char *folder); /* itself, or $TMPDIR, or /tmp */

/* ---- stream (stream.c) ---------------------------------------------------------------------- */

typedef struct ts__stream ts__stream;
ts_status ts__stream_open(const ts_loader_options *o, ts__stream **out, ts_error *err);
void ts__stream_free(ts__stream *s);
int64_t ts__stream_tokens(const ts__stream *s);
uint64_t ts__stream_fingerprint(const ts__stream *s);
/* ids [n] from token at on; allocates nothing. Threads may read at once. */
ts_status ts__stream_read(ts__stream *s, int64_t at, int64_t n, int32_t *ids, ts_error *err);
/* The first place after at where another file begins, or the end of the stream. */
int64_t ts__stream_file_end(const ts__stream *s, int64_t at);

/* ---- where rows begin (index.c) -------------------------------------------------------------- */

typedef struct ts__index ts__index;
/* The first `limit` numbers stay in memory, the others go to a file without a name in folder
 * (ts__cache_folder of it); shown: the path in messages. */
ts_status ts__index_new(int64_t limit, const char *folder, const char *shown, ts__index **out,
                        ts_error *err);
void ts__index_free(ts__index *x); /* NULL is fine */
ts_status ts__index_add(ts__index *x, uint64_t number, ts_error *err);
/* Behind the last; then at, by any threads. */
ts_status ts__index_seal(ts__index *x, ts_error *err);
ts_status ts__index_at(const ts__index *x, int64_t i, uint64_t *number, ts_error *err);
int64_t ts__index_count(const ts__index *x);

/* ---- rows (rows.c) -------------------------------------------------------------------------- */

typedef struct ts__rows ts__rows;
ts_status ts__rows_open(const ts_loader_options *o, ts__rows **out, ts_error *err);
/* With so many places of rows in memory, instead of 4 Mi. */
ts_status ts__rows_open_limited(const ts_loader_options *o, int64_t in_memory, ts__rows **out,
                                ts_error *err);
void ts__rows_free(ts__rows *r);
int64_t ts__rows_count(const ts__rows *r);
uint64_t ts__rows_fingerprint(const ts__rows *r);
const ts_loader_stats *ts__rows_stats(const ts__rows *r);
const char *ts__rows_bad_at(const ts__rows *r, size_t i);
/* What one thread needs to read rows: its line and its document. {0} is an empty one. */
typedef struct ts__row_scratch {
    char *line;
    size_t line_capacity;
    ts_string document;
} ts__row_scratch;
void ts__row_scratch_free(ts__row_scratch *s);
/* Replaces ids by the tokens of row i, cut to the sequence where rows are cut. At least 2. Threads
 * with scratch and ids of their own may read at once. */
ts_status ts__rows_read(const ts__rows *r, int64_t i, ts__row_scratch *scratch, ts_tokens *ids,
                        ts_error *err);

/* ---- readers (reader.c, pack.c, windows.c) --------------------------------------------------- */

/* All that outlives a row: where a reader stands in its endless list of samples. Its sample j is
 * ordinal j · R + k of the source (ordinal: epoch · samples + place in that epoch's order). */
enum { TS_LOADER_PENDING = 32, TS_MAX_READERS = 256 };
typedef struct ts__position {
    int64_t taken;                      /* its samples so far: those packed and those pending */
    int64_t offset;                     /* concat: tokens of sample `taken` that are used */
    int32_t n_pending;                  /* first-fit: passed over, oldest first; they go first */
    int32_t tokens[TS_LOADER_PENDING];  /* how long each is */
    int64_t pending[TS_LOADER_PENDING]; /* its ordinal */
} ts__position;

/* A virtual reader of one source: a cursor and a packer. Rows of different readers may be made by
 * different threads at once: what changes is in the reader, the rest of the loader is only read.
 * Rows of one reader are made in order. */
typedef struct ts__reader ts__reader;
/* One row [sequence] of arrays that ts__row_clear made padding. *first: the number of its first
 * sample in its source, −1 where the reader is done: then the row stays padding. A failure leaves
 * the reader as it was. */
typedef struct ts__row {
    int32_t *tokens, *labels, *segments, *positions; /* [sequence] */
    int64_t first, trained, padding;
    const ts__reader *reader; /* that made it, and where it stood then */
    ts__position after;
} ts__row;
/* Points row at row i of the batch's arrays. */
void ts__row_at(const ts_loader *l, const ts_batch *b, int64_t i, ts__row *row);
void ts__row_clear(const ts_loader *l, ts__row *row);
ts_status ts__reader_next(ts_loader *l, ts__reader *r, ts__row *row, ts_error *err);

/* ---- turns (mix.c) -------------------------------------------------------------------------- */

/* ts_loader_next is plan, rows and count one after the other, and back where a row failed; for
 * prefetch.c they stand apart. Plan, count and readers touch different parts of the loader: rows may
 * be made while others are planned and counted, each of the two by one thread at a time. */
/* Which reader makes each of the rows [rows] of the next batch, and of which source. Moves the plan
 * on, nothing else. */
void ts__loader_plan(ts_loader *l, ts__reader **reader, int32_t *source);
/* What the rows turned out to be: row ids, sources, trained tokens. Moves the position on: it stands
 * behind the rows counted, whatever was planned and read since. Batches are counted in the order in
 * which they were planned. OUT_OF_RANGE where the data had ended before this one, and nothing else.
 * Once readers are done their turns give nothing and the rows behind move up: the rows of a batch
 * are then put aside until they fill one, and *b comes out as nothing but padding (padding = rows ·
 * sequence), to be passed over. */
ts_status ts__loader_count(ts_loader *l, ts_batch *b, const ts__row *row);
/* The plan and all readers return to the position. No row may be under way. */
void ts__loader_back(ts_loader *l);
int64_t ts__loader_rows(const ts_loader *l); /* of a batch, and the slots of each */
int64_t ts__loader_sequence(const ts_loader *l);

#endif
