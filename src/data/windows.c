/* data/windows.c – rows that need no packing: windows of a stream, and the synthetic batch.
 *
 * A window is sequence + 1 tokens, sequence of them inputs; the next one begins where its inputs
 * end, so every token but the first is a label once an epoch. A row that spans two files has a
 * segment for each, and the last token of the first is not trained to foresee the other. In
 * training a tail too short for a window is left out; in evaluation it is a window that ends in
 * padding. The stream is read in pieces, so that a reader's memory does not grow with the sequence.
 */
#include "data/reader.h"

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Tokens and labels from tokens [at, at + n) of the stream; inputs ≤ n ≤ inputs + 1. */
static ts_status read_ids(ts__reader *r, ts__row *row, int64_t at, int64_t n, int64_t inputs,
                          ts_error *err)
{
    for (int64_t i = 0; i < inputs; i += TS_WINDOW) {
        int64_t here = smaller(inputs - i, TS_WINDOW), have = smaller(here + 1, n - i);
        TS_TRY(ts__stream_read(r->source->stream, at + i, have, r->window, err));
        memcpy(row->tokens + i, r->window, (size_t)here * sizeof *r->window);
        memcpy(row->labels + i, r->window + 1, (size_t)(have - 1) * sizeof *r->window);
        if (have == here) row->labels[i + here - 1] = -1;
    }
    return TS_OK;
}

ts_status ts__window_row(const ts_loader *l, ts__reader *r, ts__position *p, ts__row *row,
                         ts_error *err)
{
    const ts__source *s = r->source;
    int64_t sample = ts__reader_sample_at(l, r, ts__reader_ordinal(r, p));
    int64_t at = s->begin + sample * l->o.sequence;
    int64_t n = smaller(s->end - at, l->o.sequence + 1), inputs = smaller(n, l->o.sequence);
    TS_TRY(read_ids(r, row, at, n, inputs, err));
    int32_t segment = 1;
    for (int64_t slot = 0; slot < inputs; segment++) {
        int64_t end = ts__stream_file_end(s->stream, at + slot) - at;
        int64_t stop = smaller(end, inputs);
        if (stop == end) row->labels[stop - 1] = -1;
        row->trained += stop - slot - (row->labels[stop - 1] < 0);
        for (int64_t i = slot; i < stop; i++) {
            row->segments[i] = segment;
            row->positions[i] = (int32_t)(i - slot);
        }
        slot = stop;
    }
    row->padding -= inputs;
    row->first = sample;
    p->taken++;
    return TS_OK;
}

/* The same rows in every batch, keyed by seed and slot: id = 32 random bits · vocabulary /
 * 2³². */
void ts__synthetic_row(const ts_loader *l, ts__reader *r, ts__position *p, ts__row *row)
{
    int64_t inputs = l->o.sequence, sample = ts__reader_ordinal(r, p) % r->source->samples;
    uint64_t key =
        ts_mix64(l->o.seed + 0x9e3779b97f4a7c15u) ^ (l->o.split == TS_SPLIT_EVAL ? 0x6576616cu : 0);
    uint64_t first = (uint64_t)sample * (uint64_t)(inputs + 1);
    for (int64_t i = 0; i <= inputs; i++) {
        uint64_t bits = ts_mix64(key + (first + (uint64_t)i + 1) * 0x9e3779b97f4a7c15u) >> 32;
        int32_t id = (int32_t)(bits * (uint64_t)l->o.vocab_size >> 32);
        if (i < inputs) {
            row->tokens[i] = id;
            row->positions[i] = (int32_t)i;
            row->segments[i] = 1;
        }
        if (i > 0) row->labels[i - 1] = id;
    }
    row->trained = inputs;
    row->padding = 0;
    row->first = sample;
    p->taken++;
}
