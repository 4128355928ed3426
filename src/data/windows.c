/* data/windows.c – batches that need no packing: windows of a stream, and the synthetic batch.
 *
 * A window is sequence + 1 tokens, sequence of them inputs; the next one begins where its inputs
 * end, so every token but the first is a label once an epoch. A row that spans two files has a
 * segment for each, and the last token of the first is not trained to foresee the other. In
 * training a tail too short for a window is left out; in evaluation it is a window that ends in
 * padding.
 */
#include "data/internal.h"

/* One row from tokens [at, at + n) of the stream; n ≤ sequence + 1. */
static ts_status fill_row(ts_loader *l, ts_batch *b, int64_t row, int64_t at, int64_t n,
                          ts_error *err)
{
    TS_TRY(ts__stream_read(l->stream, at, n, l->window, err));
    int64_t inputs = n > l->o.sequence ? l->o.sequence : n, slot = 0;
    for (int32_t segment = 1; slot < inputs; segment++) {
        int64_t end = ts__stream_file_end(l->stream, at + slot) - at;
        int64_t stop = end < inputs ? end : inputs;
        int32_t next = stop < n && stop < end ? l->window[stop] : -1;
        ts__loader_put(l, b, row, slot, l->window + slot, stop - slot, next, segment);
        slot = stop;
    }
    return TS_OK;
}

ts_status ts__windows_fill(ts_loader *l, ts_batch *b, ts_error *err)
{
    for (int64_t row = 0; row < l->o.rows && !ts__loader_exhausted(l); row++) {
        int64_t sample = ts__loader_sample_at(l, ts__loader_take(l));
        int64_t at = l->begin + sample * l->o.sequence, n = l->end - at;
        TS_TRY(fill_row(l, b, row, at, n > l->o.sequence + 1 ? l->o.sequence + 1 : n, err));
        if (b->row_ids) b->row_ids[row] = sample;
    }
    return TS_OK;
}

/* The same rows in every batch, keyed by seed and slot: id = 32 random bits · vocabulary /
 * 2³². */
void ts__synthetic_fill(ts_loader *l, ts_batch *b)
{
    (void)ts__loader_take(l);
    int64_t inputs = l->o.sequence;
    uint64_t key = ts_mix64(l->o.seed + 0x9e3779b97f4a7c15u) ^
                   (l->o.split == TS_SPLIT_EVAL ? 0x6576616cu : 0);
    for (int64_t row = 0; row < l->o.rows; row++) {
        uint64_t first = (uint64_t)row * (uint64_t)(inputs + 1);
        for (int64_t i = 0; i <= inputs; i++) {
            uint64_t bits = ts_mix64(key + (first + (uint64_t)i + 1) * 0x9e3779b97f4a7c15u) >> 32;
            l->window[i] = (int32_t)(bits * (uint64_t)l->o.vocab_size >> 32);
        }
        ts__loader_put(l, b, row, 0, l->window, inputs, l->window[inputs], 1);
        if (b->row_ids) b->row_ids[row] = row;
    }
}
