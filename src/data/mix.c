/* data/mix.c – the global order of rows: whose turn it is, and what came of it.
 *
 * Row i of a source is row i / R of its reader i mod R. Of several sources, global row n (from 0)
 * is of the one with the largest share · (n + 1) − taken · TS_WEIGHTS, where taken counts its rows
 * before n; of equals the first. Shares are whole numbers of 2⁻⁴⁰ and the products are exact in 128
 * bits, so the choice is a function of the counts alone and drifts at no length.
 *
 * A turn is planned before its row is made and counted after; the position stands behind the rows
 * counted. A reader that is done gives nothing when its turn comes, and the rows behind move up, so
 * that only the very last batch holds padding; a source whose readers are all done ends the data
 * when its turn comes. Which rows a batch has therefore depends on nothing but its place.
 */
#include "data/reader.h"

/* Rounded down, and what is missing goes to the largest: at most n parts of 2⁴⁰. Each gets
 * something. */
void ts__mix_weights(const double *weight, int n, int64_t *share)
{
    double sum = 0;
    int64_t left = TS_WEIGHTS;
    int largest = 0;
    for (int i = 0; i < n; i++) sum += weight[i];
    for (int i = 0; i < n; i++) {
        share[i] = (int64_t)(weight[i] / sum * (double)TS_WEIGHTS);
        if (share[i] < 1) share[i] = 1;
        left -= share[i];
        if (weight[i] > weight[largest]) largest = i;
    }
    share[largest] += left;
}

/* Whose turn it is behind n rows, of which source i had taken[i]. */
static int whose_turn(const ts_loader *l, const int64_t *taken, int64_t n)
{
    int best = 0;
    __int128 most = 0;
    for (int i = 0; l->n_sources > 1 && i < l->n_sources; i++) {
        __int128 behind = (__int128)l->source[i].weight * (n + 1) - (__int128)taken[i] * TS_WEIGHTS;
        if (i == 0 || behind > most) {
            most = behind;
            best = i;
        }
    }
    return best;
}

void ts__loader_plan(ts_loader *l, ts__reader **reader, int32_t *source)
{
    for (int64_t row = 0; row < l->o.rows; row++) {
        int i = whose_turn(l, l->planned, l->n_planned++);
        ts__source *s = &l->source[i];
        reader[row] = &s->reader[l->planned[i]++ & (s->n_readers - 1)];
        source[row] = i;
    }
}

/* ---- rows that were made, in order ---------------------------------------------------------- */

static bool done(const ts__reader *r, const ts__position *p)
{
    return ts__reader_exhausted(r, p) && p->n_pending == 0;
}

/* Notes that a reader has no row behind this one, and the end of the data. */
static void see(ts_loader *l, const ts__row *row)
{
    const ts__source *s = row->reader->source;
    bool *finished = &l->finished[s->index * TS_MAX_READERS + row->reader->index];
    if (row->first < 0 && l->n_finished[s->index] == s->n_readers) l->last = s->index;
    if (*finished || !done(row->reader, &row->after)) return;
    *finished = true;
    l->n_finished[s->index]++;
}

/* The position moves behind the row, which is the next but for turns of readers that were done. */
static void count_row(ts_loader *l, const ts__row *row)
{
    ts_loader_state *to = l->state;
    for (bool found = false; !found;) {
        int i = whose_turn(l, to->taken, to->rows++);
        const ts__source *s = &l->source[i];
        int64_t k = to->taken[i]++ & (s->n_readers - 1);
        found = row->reader == &s->reader[k];
        TS_ASSERT(found || done(&s->reader[k], &to->source[i].position[k]));
        if (found) to->source[i].position[k] = row->after;
    }
    to->order_hash = ts_mix64(to->order_hash + 0x9e3779b97f4a7c15u) ^
                     ts_mix64((uint64_t)(row->reader->source->first_row + row->first) + 1);
}

static void copy_row(const ts_loader *l, ts__row *to, const ts__row *from)
{
    size_t bytes = (size_t)l->o.sequence * sizeof *to->tokens;
    ts__row place = *to;
    *to = *from;
    to->tokens = memcpy(place.tokens, from->tokens, bytes);
    to->labels = memcpy(place.labels, from->labels, bytes);
    to->segments = memcpy(place.segments, from->segments, bytes);
    to->positions = memcpy(place.positions, from->positions, bytes);
}

/* Row i of the batch is counted, or NULL: padding. */
static void hand_out(ts_loader *l, ts_batch *b, int64_t i, const ts__row *row)
{
    ts__row empty;
    if (row) {
        count_row(l, row);
    } else {
        ts__row_at(l, b, i, &empty);
        ts__row_clear(l, &empty);
    }
    const ts__source *s = row ? row->reader->source : &l->source[0];
    b->trained_tokens += row ? row->trained : 0;
    b->padding += row ? row->padding : l->o.sequence;
    if (b->row_ids) b->row_ids[i] = row ? s->first_row + row->first : -1;
    if (b->sources) b->sources[i] = s->index;
}

/* Through the queue, once readers are done: n rows of those in it and those of this batch. */
static void hand_out_queue(ts_loader *l, ts_batch *b)
{
    int64_t n = l->n_queue < l->o.rows ? l->n_queue : l->o.rows;
    if (l->last < 0 && n < l->o.rows) n = 0; /* more will come */
    for (int64_t i = 0; i < l->o.rows; i++) {
        ts__row to;
        ts__row_at(l, b, i, &to);
        if (i < n) copy_row(l, &to, &l->queue[i]);
        hand_out(l, b, i, i < n ? &to : NULL);
    }
    for (int64_t i = n; i < l->n_queue; i++) copy_row(l, &l->queue[i - n], &l->queue[i]);
    l->n_queue -= n;
}

ts_status ts__loader_count(ts_loader *l, ts_batch *b, const ts__row *row)
{
    int64_t n = 0; /* rows of the batch up to the end of the data */
    bool in_place = l->n_queue == 0;
    b->trained_tokens = b->padding = 0;
    while (l->last < 0 && n < l->o.rows) {
        see(l, &row[n]);
        if (l->last >= 0) break;
        in_place = in_place && row[n].first >= 0;
        n++;
    }
    if (l->last >= 0 && n == 0 && l->n_queue == 0) {
        l->ended = l->ended_by = l->last;
        return TS_OUT_OF_RANGE;
    }
    if (in_place) {
        for (int64_t i = 0; i < l->o.rows; i++) hand_out(l, b, i, i < n ? &row[i] : NULL);
    } else {
        for (int64_t i = 0; i < n; i++)
            if (row[i].first >= 0) copy_row(l, &l->queue[l->n_queue++], &row[i]);
        hand_out_queue(l, b);
    }
    if (l->last >= 0 && l->n_queue == 0) l->ended = l->last;
    return TS_OK;
}

/* ---- both, in the caller's thread ----------------------------------------------------------- */

void ts__loader_back(ts_loader *l)
{
    for (int i = 0; i < l->n_sources; i++) {
        ts__source *s = &l->source[i];
        l->planned[i] = l->state->taken[i];
        l->n_finished[i] = 0;
        for (int k = 0; k < s->n_readers; k++) {
            s->reader[k].at = l->state->source[i].position[k];
            bool is = done(&s->reader[k], &s->reader[k].at);
            l->finished[i * TS_MAX_READERS + k] = is;
            l->n_finished[i] += is;
        }
    }
    l->n_planned = l->state->rows;
    l->n_queue = 0;
    l->last = l->ended = l->ended_by = -1;
}

ts_status ts_loader_next(ts_loader *l, ts_batch *b, ts_error *err)
{
    if (l->ended >= 0) {
        l->ended_by = l->ended;
        return TS_OUT_OF_RANGE;
    }
    do {
        ts__loader_plan(l, l->turn, l->turn_source);
        for (int64_t i = 0; i < l->o.rows; i++) {
            ts__row_at(l, b, i, &l->row[i]);
            ts__row_clear(l, &l->row[i]);
            ts_status status = ts__reader_next(l, l->turn[i], &l->row[i], err);
            if (status != TS_OK) {
                ts__loader_back(l);
                return status;
            }
        }
        TS_TRY(ts__loader_count(l, b, l->row));
    } while (b->padding == l->o.rows * l->o.sequence);
    return TS_OK;
}

void ts_loader_rewind(ts_loader *l)
{
    ts__state_reset(l, l->state);
    ts__loader_back(l);
}

int ts_loader_ended_by(const ts_loader *l)
{
    return l->ended_by;
}
int64_t ts__loader_rows(const ts_loader *l)
{
    return l->o.rows;
}
int64_t ts__loader_sequence(const ts_loader *l)
{
    return l->o.sequence;
}
