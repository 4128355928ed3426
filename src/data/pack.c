/* data/pack.c – rows of JSON into rows of a batch: one each, whole samples together, or end to end.
 *
 * A row is a function of the reader's position alone. Whole samples: up to TS_LOADER_PENDING of the
 * reader's next samples wait; a row takes the oldest, so that none waits for longer than as many
 * rows, and those of the others that together fill most of what it leaves free. How long a waiting
 * sample is stands in the position, so that choosing reads nothing. Concat: a sample that reaches
 * the end of a row goes on in the next, as a segment of its own whose positions restart; its last
 * token is no input when it would only stand in front of nothing.
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

/* ---- whole samples --------------------------------------------------------------------------- */

typedef struct gap {
    int64_t slots, segments; /* that are left of the row */
} gap;

/* New samples until as many wait as may. */
static ts_status refill(const ts_loader *l, ts__reader *r, ts__position *p, ts_error *err)
{
    while (p->n_pending < TS_LOADER_PENDING && !ts__reader_exhausted(r, p)) {
        int64_t ordinal = ts__reader_ordinal(r, p);
        TS_TRY(ts__reader_load(l, r, ts__reader_sample_at(l, r, ordinal), err));
        p->taken++;
        p->pending[p->n_pending] = ordinal;
        p->tokens[p->n_pending++] = (int32_t)r->ids.n;
    }
    return TS_OK;
}

/* The waiting samples of the set go into the row, oldest first. */
static ts_status place(const ts_loader *l, ts__reader *r, ts__position *p, uint32_t set, gap *left,
                       ts__row *row, ts_error *err)
{
    int32_t waiting = p->n_pending, segment = row->padding < l->o.sequence
                                                  ? row->segments[l->o.sequence - left->slots - 1]
                                                  : 0;
    p->n_pending = 0;
    for (int32_t i = 0; i < waiting; i++) {
        int64_t ordinal = p->pending[i], slot = l->o.sequence - left->slots;
        int32_t n = p->tokens[i];
        if (set >> i & 1) {
            TS_TRY(ts__reader_load(l, r, ts__reader_sample_at(l, r, ordinal), err));
            if (r->ids.n != (size_t)n) return changed("says there are", n, (int64_t)r->ids.n, err);
            if (slot == 0) row->first = r->sample;
            ts__row_put(l, row, slot, r->ids.id, n, -1, ++segment);
            left->slots -= n;
            left->segments--;
        } else {
            p->pending[p->n_pending] = ordinal;
            p->tokens[p->n_pending++] = n;
        }
    }
    return TS_OK;
}

/* The set that fills most of the slots. by [slots], all 0, is scratch: by[t − 1] becomes 1 + the
 * sample that was the first to make a set of t tokens. It is written as far as the set will reach:
 * the set itself can go there. */
static uint32_t fullest_set(const ts__position *p, int64_t slots, int32_t *by)
{
    int64_t sum = 0, best = 0;
    uint32_t set = 0;
    for (int32_t i = 0; i < p->n_pending && best < slots; i++) {
        int64_t n = p->tokens[i];
        sum += n;
        for (int64_t t = sum < slots ? sum : slots; t >= n; t--) {
            if (by[t - 1] || (t > n && !by[t - n - 1])) continue;
            by[t - 1] = i + 1;
            if (t > best) best = t;
        }
    }
    for (int64_t t = best; t > 0; t -= p->tokens[by[t - 1] - 1]) set |= 1u << (by[t - 1] - 1);
    return set;
}

/* Where segments are few: the longest that fits, again and again. */
static uint32_t longest_first(const ts__position *p, gap left)
{
    uint32_t set = 0;
    while (left.segments-- > 0) {
        int32_t longest = -1;
        for (int32_t i = 0; i < p->n_pending; i++)
            if (!(set >> i & 1) && p->tokens[i] <= left.slots &&
                (longest < 0 || p->tokens[i] > p->tokens[longest]))
                longest = i;
        if (longest < 0) break;
        set |= 1u << longest;
        left.slots -= p->tokens[longest];
    }
    return set;
}

static ts_status whole_row(const ts_loader *l, ts__reader *r, ts__position *p, ts__row *row,
                           ts_error *err)
{
    _Static_assert(TS_LOADER_PENDING <= 32, "a set is 32 bits");
    gap left = {l->o.sequence, l->o.max_segments > 0 ? l->o.max_segments : INT64_MAX};
    int64_t waiting;
    do { /* again only where the row has room for all that wait */
        TS_TRY(refill(l, r, p, err));
        TS_TRY(place(l, r, p, 1, &left, row, err));
        waiting = 0;
        for (int32_t i = 0; i < p->n_pending; i++) waiting += p->tokens[i];
    } while (waiting > 0 && waiting <= left.slots && left.segments > 0);
    uint32_t set = left.segments < p->n_pending
                       ? longest_first(p, left)
                       : fullest_set(p, left.slots, row->segments + l->o.sequence - left.slots);
    return place(l, r, p, set, &left, row, err);
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
    if (l->o.packing == TS_PACK_FIRST_FIT) return whole_row(l, r, p, row, err);
    return concat_row(l, r, p, row, err);
}
