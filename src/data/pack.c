/* data/pack.c – rows of JSON into rows of a batch: one each, first-fit, or end to end.
 *
 * A row is a function of the reader's position alone. First-fit: the samples that wait go first,
 * oldest first, then new ones; one that does not fit waits, and the row is done when it is full or
 * as many wait as may. The oldest always fits an empty row, so none waits for ever. How long a
 * waiting sample is stands in the position, so only samples that fit are read again. Concat: a
 * sample that reaches the end of a row goes on in the next, as a segment of its own whose positions
 * restart; its last token is no input when it would only stand in front of nothing.
 */
#include "data/reader.h"

static ts_status changed(const char *what, int64_t saved, int64_t found, ts_error *err)
{
    return TS_ERROR(err, TS_FAILED_PRECONDITION,
                    "the saved data position %s %lld of a row that has %lld: the data changed "
                    "since; start without it",
                    what, (long long)saved, (long long)found);
}

/* ---- one a row ------------------------------------------------------------------------------ */

static ts_status single_row(const ts_loader *l, ts__reader *r, ts__position *p, ts__row *row,
                            ts_error *err)
{
    int64_t sample = ts__reader_sample_at(l, r, ts__reader_ordinal(r, p));
    TS_TRY(ts__reader_load(l, r, sample, err));
    ts__row_put(l, row, 0, r->ids.id, (int64_t)r->ids.n, -1, 1);
    row->first = sample;
    p->taken++;
    return TS_OK;
}

/* ---- first fit ------------------------------------------------------------------------------ */

typedef struct gap {
    int64_t slots, segments;
} gap;

static bool fits(const gap *left, int64_t n)
{
    return n <= left->slots && left->segments > 0;
}

/* The sample's tokens, in r->ids, into the row. */
static void place(const ts_loader *l, ts__reader *r, ts__row *row, gap *left, int32_t *segment)
{
    int64_t slot = l->o.sequence - left->slots, n = (int64_t)r->ids.n;
    if (slot == 0) row->first = r->sample;
    ts__row_put(l, row, slot, r->ids.id, n, -1, ++*segment);
    left->slots -= n;
    left->segments--;
}

static ts_status first_fit_row(const ts_loader *l, ts__reader *r, ts__position *p, ts__row *row,
                               ts_error *err)
{
    gap left = {l->o.sequence, l->o.max_segments > 0 ? l->o.max_segments : INT64_MAX};
    int32_t segment = 0, waiting = p->n_pending;
    p->n_pending = 0;
    for (int32_t i = 0; i < waiting; i++) {
        int64_t ordinal = p->pending[i];
        int32_t n = p->tokens[i];
        if (fits(&left, n)) {
            TS_TRY(ts__reader_load(l, r, ts__reader_sample_at(l, r, ordinal), err));
            if (r->ids.n != (size_t)n)
                return changed("says there are", n, (int64_t)r->ids.n, err);
            place(l, r, row, &left, &segment);
        } else {
            p->pending[p->n_pending] = ordinal;
            p->tokens[p->n_pending++] = n;
        }
    }
    /* A sample has two tokens at least. */
    while (fits(&left, 2) && p->n_pending < TS_LOADER_PENDING && !ts__reader_exhausted(r, p)) {
        int64_t ordinal = ts__reader_ordinal(r, p);
        TS_TRY(ts__reader_load(l, r, ts__reader_sample_at(l, r, ordinal), err));
        p->taken++;
        if (fits(&left, (int64_t)r->ids.n)) {
            place(l, r, row, &left, &segment);
        } else {
            p->pending[p->n_pending] = ordinal;
            p->tokens[p->n_pending++] = (int32_t)r->ids.n;
        }
    }
    return TS_OK;
}

/* ---- concat --------------------------------------------------------------------------------- */

static ts_status concat_row(const ts_loader *l, ts__reader *r, ts__position *p, ts__row *row,
                            ts_error *err)
{
    int64_t slot = 0, limit = l->o.max_segments;
    for (int32_t segment = 1; slot < l->o.sequence && !ts__reader_exhausted(r, p); segment++) {
        if (limit > 0 && segment > limit) break;
        int64_t sample = ts__reader_sample_at(l, r, ts__reader_ordinal(r, p));
        TS_TRY(ts__reader_load(l, r, sample, err));
        int64_t left = (int64_t)r->ids.n - p->offset, room = l->o.sequence - slot;
        if (left < 2) return changed("is at token", p->offset, (int64_t)r->ids.n, err);
        int64_t n = left < room ? left : room;
        const int32_t *ids = r->ids.id + p->offset;
        if (slot == 0) row->first = sample;
        ts__row_put(l, row, slot, ids, n, n < left ? ids[n] : -1, segment);
        slot += n;
        p->offset += n;
        if (left - n < 2) {
            p->taken++;
            p->offset = 0;
        }
    }
    return TS_OK;
}

ts_status ts__pack_row(const ts_loader *l, ts__reader *r, ts__position *p, ts__row *row,
                       ts_error *err)
{
    if (l->o.packing == TS_PACK_NONE) return single_row(l, r, p, row, err);
    if (l->o.packing == TS_PACK_FIRST_FIT) return first_fit_row(l, r, p, row, err);
    return concat_row(l, r, p, row, err);
}
