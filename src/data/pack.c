/* data/pack.c – rows of JSON into batches: one a row, first-fit, or end to end.
 *
 * Everything that outlives a batch is in ts_loader_state, so a batch is a function of the state
 * alone. First-fit: samples come in order and go into the first row with room; one that fits
 * nowhere waits in the pending list and goes first into the next batch; a batch is done when that
 * list is full or every row is. Concat: a sample that reaches the end of a row goes on in the next,
 * as a segment of its own whose positions restart; its last token is no input when it would only
 * stand in front of nothing.
 */
#include "data/internal.h"

/* ---- one a row ------------------------------------------------------------------------------ */

static ts_status fill_single(ts_loader *l, ts_batch *b, ts_error *err)
{
    for (int64_t row = 0; row < l->o.rows && !ts__loader_exhausted(l); row++) {
        int64_t sample = ts__loader_sample_at(l, ts__loader_take(l));
        TS_TRY(ts__rows_read(l->rows, sample, &l->sample, err));
        ts__loader_put(l, b, row, 0, l->sample.id, (int64_t)l->sample.n, -1, 1);
        if (b->row_ids) b->row_ids[row] = sample;
    }
    return TS_OK;
}

/* ---- first fit ------------------------------------------------------------------------------ */

/* Puts the sample into the first row with room; *placed says whether there was one. */
static ts_status place(ts_loader *l, ts_batch *b, int64_t ordinal, bool *placed, ts_error *err)
{
    int64_t sample = ts__loader_sample_at(l, ordinal), limit = l->o.max_segments;
    TS_TRY(ts__rows_read(l->rows, sample, &l->sample, err));
    int64_t n = (int64_t)l->sample.n;
    *placed = false;
    for (int64_t row = 0; row < l->o.rows && !*placed; row++) {
        if (n > l->o.sequence - l->used[row] || (limit > 0 && l->segments[row] >= limit)) continue;
        if (l->used[row] == 0 && b->row_ids) b->row_ids[row] = sample;
        ts__loader_put(l, b, row, l->used[row], l->sample.id, n, -1, (int32_t)++l->segments[row]);
        l->used[row] += n;
        *placed = true;
    }
    return TS_OK;
}

/* A sample has two tokens at least. */
static bool every_row_full(const ts_loader *l)
{
    for (int64_t row = 0; row < l->o.rows; row++)
        if (l->used[row] + 2 <= l->o.sequence &&
            !(l->o.max_segments > 0 && l->segments[row] >= l->o.max_segments))
            return false;
    return true;
}

static ts_status fill_first_fit(ts_loader *l, ts_batch *b, ts_error *err)
{
    ts_loader_state *s = &l->state;
    int64_t waiting = s->n_pending, still = 0;
    bool placed;
    for (int64_t row = 0; row < l->o.rows; row++) l->used[row] = l->segments[row] = 0;
    for (int64_t i = 0; i < waiting; i++) {
        TS_TRY(place(l, b, s->pending[i], &placed, err));
        if (!placed) s->pending[still++] = s->pending[i];
    }
    s->n_pending = still;
    while (s->n_pending < TS_LOADER_PENDING && !ts__loader_exhausted(l) && !every_row_full(l)) {
        int64_t ordinal = ts__loader_take(l);
        TS_TRY(place(l, b, ordinal, &placed, err));
        if (!placed) s->pending[s->n_pending++] = ordinal;
    }
    return TS_OK;
}

/* ---- concat --------------------------------------------------------------------------------- */

static ts_status fill_concat_row(ts_loader *l, ts_batch *b, int64_t row, ts_error *err)
{
    ts_loader_state *s = &l->state;
    int64_t slot = 0, limit = l->o.max_segments;
    for (int32_t segment = 1; slot < l->o.sequence && !ts__loader_exhausted(l); segment++) {
        if (limit > 0 && segment > limit) break;
        int64_t sample = ts__loader_sample_at(l, s->epoch * l->stats.samples + s->index);
        if (sample != l->sample_id) {
            l->sample_id = -1;
            TS_TRY(ts__rows_read(l->rows, sample, &l->sample, err));
            l->sample_id = sample;
        }
        int64_t left = (int64_t)l->sample.n - s->offset, room = l->o.sequence - slot;
        if (left < 2)
            return TS_ERROR(err, TS_FAILED_PRECONDITION,
                            "the saved data position is at token %lld of a row that has %zu: the "
                            "data changed since; start without it",
                            (long long)s->offset, l->sample.n);
        int64_t n = left < room ? left : room;
        const int32_t *ids = l->sample.id + s->offset;
        if (slot == 0 && b->row_ids) b->row_ids[row] = sample;
        ts__loader_put(l, b, row, slot, ids, n, n < left ? ids[n] : -1, segment);
        slot += n;
        s->offset += n;
        if (left - n < 2) (void)ts__loader_take(l); /* sets offset to 0 */
    }
    return TS_OK;
}

ts_status ts__pack_fill(ts_loader *l, ts_batch *b, ts_error *err)
{
    if (l->o.packing == TS_PACK_NONE) return fill_single(l, b, err);
    if (l->o.packing == TS_PACK_FIRST_FIT) return fill_first_fit(l, b, err);
    for (int64_t row = 0; row < l->o.rows; row++) TS_TRY(fill_concat_row(l, b, row, err));
    return TS_OK;
}
