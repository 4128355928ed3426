/* data/loader.h – batches of token ids from text, rows of JSON, token files, or one fixed random
 * batch; from one source, or from several mixed by weight.
 *
 * Rows have a global order that depends on the data, seed and epoch alone: not on the rows of a
 * batch, the devices, the hosts or the threads that read. Each source has R virtual readers (a
 * power of two by its number of samples, at most 256); reader k takes the samples k, k + R, k + 2R
 * … of the endless order of all epochs and packs them by itself; row i of the source is row i / R
 * of reader i mod R. At the end of the data the turns of readers that are done are left out. Of
 * several sources, global row n comes from the one that is furthest behind its weight.
 *
 * The whole position is a value: a loader that is given the state of another one goes on with the
 * same rows, bit for bit, wherever that was, across an epoch's end too. Memory is bounded whatever
 * the files' size. text, tokens and synthetic allocate nothing after open. A loader belongs to one
 * thread; reading ahead with several is prefetch.h's.
 *
 * Not here: downloads, templates and chat formats, moving batches to devices.
 */
#ifndef TS_LOADER_H
#define TS_LOADER_H

#include "base/base.h"
#include "base/json.h"
#include "token/tokenizer.h"

typedef enum ts_data_type {
    TS_DATA_SYNTHETIC,
    TS_DATA_TEXT,
    TS_DATA_JSONL,
    TS_DATA_TOKENS
} ts_data_type;
typedef enum ts_data_split {
    TS_SPLIT_TRAIN, /* all but the held-out part */
    TS_SPLIT_EVAL   /* the held-out part, in order, once (eval_fraction 0: all of it) */
} ts_data_split;
typedef enum ts_packing {
    TS_PACK_NONE,      /* one sample a row */
    TS_PACK_FIRST_FIT, /* whole samples, several a row: those that together fill it best */
    TS_PACK_CONCAT     /* rows are filled to the end, samples cut where a row ends */
} ts_packing;
typedef enum ts_bad_row { TS_BAD_ROW_SKIP, TS_BAD_ROW_STOP } ts_bad_row;

/* One of several kinds of data that are mixed. */
typedef struct ts_loader_source {
    const char *name;         /* for people and metrics; unique */
    double weight;            /* > 0; share of the rows: weight / sum of weights */
    const char *const *paths; /* as ts_loader_options.paths */
    size_t n_paths;
} ts_loader_source;

/* Where the held-out part lies. text and tokens: the last fraction of the stream that the files
 * form together. jsonl: the rows whose hash falls below the fraction, so a row stays on its side
 * when others come or go. */
typedef struct ts_loader_options {
    size_t struct_size;
    ts_data_type type;
    /* Files in order, plain or compressed with gzip or zstd; none for synthetic. Borrows until open
     * returns */
    const char *const *paths;
    size_t n_paths;
    const ts_loader_source *sources; /* instead of paths; NULL: one source, paths, without a name */
    size_t n_sources;
    const char *cache_folder; /* where compressed files are unpacked; NULL: $TMPDIR, else /tmp */
    const ts_tokenizer *tokenizer; /* text and jsonl need one. Borrows until the loader is freed */
    int64_t rows, sequence;        /* the shape of a batch: rows × sequence slots */
    int64_t vocab_size;            /* of the model; ids are below it. 0: the tokenizer's */
    uint64_t seed;
    bool shuffle;
    int64_t epochs; /* num_epoch; 0 = without end. Of several sources the first used up ends it */
    bool add_bos, add_eos; /* around each document: a text file, a row. Not for token files */
    ts_packing packing;    /* jsonl */
    int64_t max_segments;  /* a row, first-fit and concat; −1 = no limit */
    double eval_fraction;  /* held out, 0 ≤ f < 1 */
    ts_data_split split;
    const char *const *columns; /* jsonl: keys whose strings form the document; none: "text" */
    size_t n_columns;
    const char *column_separator; /* between columns; default "\n" */
    bool truncate; /* a longer row is cut to sequence (else a bad row); concat never cuts */
    ts_bad_row on_bad_row;
    size_t max_row_bytes; /* a longer line is a bad row */
} ts_loader_options;

/* MaxText's defaults where it has one: 1 epoch, shuffled, seed 0, bos and eos, first-fit. */
void ts_loader_options_default(ts_loader_options *o);

typedef struct ts_loader ts_loader;
/* Checks every file. A folder, an empty or unreadable file, a file that is too short or malformed,
 * a held-out part that is too small: an error that says what to change. */
TS_MUST_CHECK ts_status ts_loader_open(const ts_loader_options *o, ts_loader **out, ts_error *err);
void ts_loader_free(ts_loader *l); /* NULL is fine */

/* The caller's arrays, all [rows, sequence]; row_ids and sources [rows] may be NULL. labels[i] is
 * the token that follows tokens[i], or −1 where nothing is trained: padding, a document's last
 * token. row_ids is the number of the row's first sample in the data, not in the order; −1 for
 * padding. */
typedef struct ts_batch {
    int32_t *tokens, *labels;
    int32_t *segments;      /* 0 = padding, 1 … for the samples of a row */
    int32_t *positions;     /* 0 … in each segment */
    int64_t *row_ids;       /* counted over the sources end to end: those of the first come first */
    int32_t *sources;       /* which source a row is from */
    int64_t trained_tokens; /* labels ≥ 0 */
    int64_t padding;        /* slots with segment 0 */
} ts_batch;
/* The next batch. Batches run across the end of an epoch; the very last may end in rows of padding.
 * After it: TS_OUT_OF_RANGE, which nothing else returns, and err is left alone. Another failure
 * leaves the state as it was. */
TS_MUST_CHECK ts_status ts_loader_next(ts_loader *l, ts_batch *batch, ts_error *err);
void ts_loader_rewind(ts_loader *l); /* back to the first batch */
const char *ts_loader_source_name(const ts_loader *l, int source); /* "" for one without a name */
int ts_loader_sources(const ts_loader *l);
/* The source whose last row was read, once TS_OUT_OF_RANGE was returned; −1 before. */
int ts_loader_ended_by(const ts_loader *l);

typedef struct ts_loader_stats {
    int64_t samples;     /* in an epoch: windows of text, usable rows of jsonl */
    int64_t tokens;      /* of this split; with bos and eos */
    int64_t tail_tokens; /* of them left out of training: they fill no window (text and tokens) */
    int64_t rows;        /* jsonl, both splits: lines that are not blank */
    int64_t bad_rows;    /* jsonl, both splits: lines that were skipped */
    int64_t cut_rows;    /* jsonl: rows of this split longer than the sequence */
} ts_loader_stats;
ts_loader_stats ts_loader_stats_of(const ts_loader *l);
ts_loader_stats ts_loader_source_stats(const ts_loader *l, int source);
/* The first bad rows as "file:line: reason", at most TS_BAD_ROWS_KEPT; NULL beyond. Until free. */
enum { TS_BAD_ROWS_KEPT = 20 };
const char *ts_loader_bad_row_at(const ts_loader *l, size_t i);

/* ---- position ------------------------------------------------------------------------------- */

/* Between two batches: how many rows had their turn, of each source the readers' cursors and the
 * samples that wait to be packed, and a hash of the ids of all rows so far, in order. */
typedef struct ts_loader_state ts_loader_state;
/* Room for a position of this loader, at its beginning. Owns: caller. */
TS_MUST_CHECK ts_status ts_loader_state_new(const ts_loader *l, ts_loader_state **out,
                                            ts_error *err);
void ts_loader_state_free(ts_loader_state *s); /* NULL is fine */
/* to: of ts_loader_state_new of this loader. Allocates nothing. */
void ts_loader_get_state(const ts_loader *l, ts_loader_state *to);
/* FAILED_PRECONDITION for the state of other data or of another order, INVALID_ARGUMENT when it is
 * no state at all; the loader is then as before. The rows of a batch may differ from those of the
 * loader that gave the state. */
TS_MUST_CHECK ts_status ts_loader_set_state(ts_loader *l, const ts_loader_state *s, ts_error *err);
/* Of the data and of the options that decide the order. */
uint64_t ts_loader_fingerprint(const ts_loader *l);
uint64_t ts_loader_state_fingerprint(const ts_loader_state *s);
uint64_t ts_loader_state_order_hash(const ts_loader_state *s);
int64_t ts_loader_state_rows(const ts_loader_state *s); /* so far */
/* A JSON object. Owns: caller, json_decref. */
TS_MUST_CHECK ts_status ts_loader_state_to_json(const ts_loader_state *s, json_t **out,
                                                ts_error *err);
/* Owns *out: caller. */
TS_MUST_CHECK ts_status ts_loader_state_from_json(const json_t *json, ts_loader_state **out,
                                                  ts_error *err);

#endif
