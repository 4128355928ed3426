/* data/reader.c – a virtual reader: its part of the order, and one row at a time.
 *
 * Reader k of R takes the ordinals ≡ k modulo R, each through the permutation of its epoch. It
 * keeps that permutation and the scratch that a sample is read into for itself, so readers know
 * nothing of each other. A row is made on a copy of the position, which replaces the reader's own
 * when nothing failed. Not here: what a row holds (pack.c, windows.c), whose turn it is (mix.c).
 */
#include "data/reader.h"

int ts__readers_for(int64_t samples)
{
    int n = 1;
    while (n < TS_MAX_READERS && (int64_t)n * 2 <= samples / TS_SAMPLES_A_READER) n *= 2;
    return n;
}

static void free_readers(ts__reader *reader, int n)
{
    for (int i = 0; reader && i < n; i++) {
        ts_free(reader[i].window);
        ts_tokens_free(&reader[i].ids);
        ts__row_scratch_free(&reader[i].scratch);
    }
    ts_free(reader);
}

void ts__readers_free(ts__source *s)
{
    free_readers(s->reader, s->n_readers);
    s->reader = NULL;
    s->n_readers = 0;
}

ts_status ts__readers_make(const ts_loader *l, ts__source *s, int n, ts_error *err)
{
    TS_ASSERT(n >= 1 && n <= TS_MAX_READERS);
    size_t window = l->o.sequence < TS_WINDOW ? (size_t)l->o.sequence + 1 : TS_WINDOW + 1;
    ts__reader *reader = ts_alloc_zero((size_t)n * sizeof *reader);
    bool ok = reader != NULL;
    for (int i = 0; ok && i < n; i++) {
        reader[i].source = s;
        reader[i].index = i;
        reader[i].order_epoch = reader[i].sample = -1;
        if (s->rows) continue;
        reader[i].window = ts_alloc(window * sizeof *reader[i].window);
        ok = reader[i].window != NULL;
    }
    if (!ok) {
        free_readers(reader, n);
        return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "out of memory for %d data readers", n);
    }
    ts__readers_free(s);
    s->reader = reader;
    s->n_readers = n;
    return TS_OK;
}

/* ---- its part of the order ------------------------------------------------------------------ */

int64_t ts__reader_ordinal(const ts__reader *r, const ts__position *p)
{
    return p->taken * r->source->n_readers + r->index;
}

bool ts__reader_exhausted(const ts__reader *r, const ts__position *p)
{
    return ts__reader_ordinal(r, p) >= r->source->total;
}

int64_t ts__reader_sample_at(const ts_loader *l, ts__reader *r, int64_t ordinal)
{
    int64_t samples = r->source->samples, epoch = ordinal / samples, index = ordinal % samples;
    if (!l->o.shuffle) return index;
    if (epoch != r->order_epoch) {
        ts__permutation_init(&r->order, (uint64_t)samples, l->o.seed, (uint64_t)epoch);
        r->order_epoch = epoch;
    }
    return (int64_t)ts__permutation_at(&r->order, (uint64_t)index);
}

ts_status ts__reader_load(const ts_loader *l, ts__reader *r, int64_t sample, ts_error *err)
{
    (void)l;
    if (r->sample == sample) return TS_OK;
    r->sample = -1;
    TS_TRY(ts__rows_read(r->source->rows, sample, &r->scratch, &r->ids, err));
    r->sample = sample;
    return TS_OK;
}

/* ---- one row -------------------------------------------------------------------------------- */

void ts__row_at(const ts_loader *l, const ts_batch *b, int64_t i, ts__row *row)
{
    int64_t at = i * l->o.sequence;
    row->tokens = b->tokens + at;
    row->labels = b->labels + at;
    row->segments = b->segments + at;
    row->positions = b->positions + at;
}

void ts__row_clear(const ts_loader *l, ts__row *row)
{
    size_t slots = (size_t)l->o.sequence;
    for (size_t i = 0; i < slots; i++) {
        row->tokens[i] = l->pad;
        row->labels[i] = -1;
    }
    memset(row->segments, 0, slots * sizeof *row->segments);
    memset(row->positions, 0, slots * sizeof *row->positions);
    row->first = -1;
    row->trained = 0;
    row->padding = l->o.sequence;
}

void ts__row_put(const ts_loader *l, ts__row *row, int64_t slot, const int32_t *ids, int64_t n,
                 int32_t next, int32_t segment)
{
    TS_ASSERT(slot >= 0 && n >= 1 && n <= l->o.sequence - slot);
    memcpy(row->tokens + slot, ids, (size_t)n * sizeof *ids);
    memcpy(row->labels + slot, ids + 1, (size_t)(n - 1) * sizeof *ids);
    row->labels[slot + n - 1] = next;
    for (int64_t i = 0; i < n; i++) {
        row->segments[slot + i] = segment;
        row->positions[slot + i] = (int32_t)i;
    }
    row->trained += n - (next < 0);
    row->padding -= n;
}

ts_status ts__reader_next(ts_loader *l, ts__reader *r, ts__row *row, ts_error *err)
{
    ts__position p = r->at;
    if (!ts__reader_exhausted(r, &p) || p.n_pending > 0) {
        if (r->source->rows)
            TS_TRY(ts__pack_row(l, r, &p, row, err));
        else if (r->source->stream)
            TS_TRY(ts__window_row(l, r, &p, row, err));
        else
            ts__synthetic_row(l, r, &p, row);
    }
    r->at = p;
    row->reader = r;
    row->after = p;
    return TS_OK;
}
