/* data/reader.h – a loader from the inside: sources, their virtual readers, and the position.
 *
 * A reader owns all that changes while it makes a row, so readers may work at once; of the loader
 * and the source they only read. What is planned and what is counted belongs to mix.c, the position
 * as a value to state.c.
 */
#ifndef TS_DATA_READER_H
#define TS_DATA_READER_H

#include "data/internal.h"

enum {
    TS_MAX_SOURCES = 256,
    TS_SAMPLES_A_READER = 64, /* at least, where there are several readers */
    TS_WINDOW = 4096          /* tokens of a stream that are read at once */
};

/* No cursor passes it, so that no arithmetic on ordinals overflows. */
#define TS_LAST_ORDINAL (INT64_MAX / 4)

typedef struct ts__source {
    char *name;
    ts__stream *stream; /* text, tokens */
    ts__rows *rows;     /* jsonl */
    int64_t begin, end; /* stream: this split's tokens */
    int64_t samples;    /* in an epoch */
    int64_t total;      /* in all epochs; INT64_MAX without end */
    int64_t first_row;  /* row id of sample 0 */
    int64_t weight;     /* of TS_WEIGHTS */
    int index, n_readers;
    ts__reader *reader; /* [n_readers] */
    ts_loader_stats stats;
} ts__source;

struct ts__reader {
    const ts__source *source;
    int64_t index; /* k: its ordinals are ≡ k modulo the readers */
    ts__position at;
    ts__permutation order; /* of order_epoch */
    int64_t order_epoch;
    int32_t *window; /* stream: [TS_WINDOW + 1] at most */
    ts_tokens ids;   /* jsonl: the sample read last, number sample (−1: none) */
    int64_t sample;
    ts__row_scratch scratch;
};

/* ---- state.c ---- */

typedef struct ts__source_state {
    int n_readers, room;
    ts__position *position; /* [room] */
} ts__source_state;
struct ts_loader_state {
    uint64_t fingerprint, order_hash;
    int64_t rows; /* turns of readers that were done among them: the sum of taken */
    int n_sources;
    int64_t *taken; /* [n_sources] rows of each source */
    ts__source_state *source;
    ts__position *positions; /* of all sources */
};
/* Room for n sources, of which i has room[i] readers (NULL: the most each). Owns: caller. */
ts_status ts__state_new(int n, const int *room, ts_loader_state **out, ts_error *err);
/* The first row: every cursor at 0. */
void ts__state_reset(const ts_loader *l, ts_loader_state *s);

struct ts_loader {
    ts_loader_options o; /* paths, sources and columns are not kept */
    int32_t pad;
    int n_sources;
    ts__source *source;
    ts_loader_stats stats;  /* of all sources */
    ts_loader_state *state; /* behind the rows counted */
    int64_t *planned;       /* [n_sources] rows of each that were planned */
    int64_t n_planned;
    ts__reader **turn; /* [rows] of ts_loader_next's batch */
    int32_t *turn_source;
    ts__row *row;
    ts__row *queue;     /* [2 · rows] packed rows that wait for others, once readers are done */
    int32_t *queue_ids; /* what they point into */
    int64_t n_queue;
    bool *finished;  /* [n_sources · TS_MAX_READERS] no row behind those seen */
    int *n_finished; /* [n_sources] */
    /* The source that had no row left when its turn came, else −1: last as soon as that was seen,
     * ended when no row before it is left, ended_by when it was told. */
    int last, ended, ended_by;
};

/* ---- reader.c ---- */

/* The readers of a source, at their beginning; those it had are freed. A failure leaves those. */
ts_status ts__readers_make(const ts_loader *l, ts__source *s, int n, ts_error *err);
void ts__readers_free(ts__source *s);
int ts__readers_for(int64_t samples);
/* Where the reader's next new sample stands in the order of all epochs. */
int64_t ts__reader_ordinal(const ts__reader *r, const ts__position *p);
/* No new sample is left. */
bool ts__reader_exhausted(const ts__reader *r, const ts__position *p);
/* The sample of an ordinal: its number in the source. */
int64_t ts__reader_sample_at(const ts_loader *l, ts__reader *r, int64_t ordinal);
/* n tokens as one segment of row at slot; labels are the following ids, the last one's is next. */
void ts__row_put(const ts_loader *l, ts__row *row, int64_t slot, const int32_t *ids, int64_t n,
                 int32_t next, int32_t segment);
/* Reads the sample's tokens into r->ids, unless they are there. */
ts_status ts__reader_load(const ts_loader *l, ts__reader *r, int64_t sample, ts_error *err);

/* ---- pack.c, windows.c: the next row; *p becomes the position behind it ---- */

ts_status ts__pack_row(const ts_loader *l, ts__reader *r, ts__position *p, ts__row *row,
                       ts_error *err);
ts_status ts__window_row(const ts_loader *l, ts__reader *r, ts__position *p, ts__row *row,
                         ts_error *err);
void ts__synthetic_row(const ts_loader *l, ts__reader *r, ts__position *p, ts__row *row);

/* ---- mix.c ---- */

#define TS_WEIGHTS ((int64_t)1 << 40)
/* Shares of TS_WEIGHTS in proportion to the weights; they sum to it. */
void ts__mix_weights(const double *weight, int n, int64_t *share);

#endif
