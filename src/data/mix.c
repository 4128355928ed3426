/* data/mix.c – the global order of rows: whose turn it is, and what came of it.
 *
 * Row i of a source is row i / R of its reader i mod R. Of several sources, global row n (from 0)
 * is of the one with the largest share · (n + 1) − taken · TS_WEIGHTS, where taken counts its rows
 * before n; of equals the first. Shares are whole numbers of 2⁻⁴⁰ and the products are exact in 128
 * bits, so the choice is a function of the counts alone and drifts at no length.
 *
 * A turn is planned before its row is made and counted after; the position stands behind the rows
 * counted. A source whose readers are all done ends the data when its turn comes; while only some
 * are, their turns are rows of padding. What was read behind the end is taken out again, so a
 * batch's rows do not depend on the rows of a batch.
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

static int furthest_behind(const ts_loader *l)
{
    if (l->n_sources == 1) return 0;
    int best = 0;
    __int128 most = 0;
    for (int i = 0; i < l->n_sources; i++) {
        __int128 behind = (__int128)l->source[i].weight * (l->n_planned + 1) -
                          (__int128)l->planned[i] * TS_WEIGHTS;
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
        int i = furthest_behind(l);
        ts__source *s = &l->source[i];
        reader[row] = &s->reader[l->planned[i] & (s->n_readers - 1)];
        source[row] = i;
        l->planned[i]++;
        l->n_planned++;
    }
}

/* ---- what came of it ------------------------------------------------------------------------ */

static bool done(const ts__reader *r, const ts__position *p)
{
    return ts__reader_exhausted(r, p) && p->n_pending == 0;
}

/* No reader of the source has a row behind the rows counted. */
static bool used_up(const ts_loader *l, const ts__source *s)
{
    for (int k = 0; k < s->n_readers; k++)
        if (!done(&s->reader[k], &l->state->source[s->index].position[k])) return false;
    return true;
}

static void count_row(ts_loader *l, const ts__row *row)
{
    const ts__source *s = row->reader->source;
    ts_loader_state *to = l->state;
    to->source[s->index].position[row->reader->index] = row->after;
    to->source[s->index].taken++;
    to->rows++;
    if (row->first >= 0)
        to->order_hash = ts_mix64(to->order_hash + 0x9e3779b97f4a7c15u) ^
                         ts_mix64((uint64_t)(s->first_row + row->first) + 1);
}

ts_status ts__loader_count(ts_loader *l, ts_batch *b, const ts__row *row)
{
    b->trained_tokens = b->padding = 0;
    for (int64_t i = 0; i < l->o.rows; i++) {
        const ts__source *s = row[i].reader->source;
        if (l->ended < 0 && row[i].first < 0 && used_up(l, s)) l->ended = s->index;
        if (l->ended >= 0 && i == 0) {
            l->ended_by = l->ended;
            return TS_OUT_OF_RANGE;
        }
        ts__row counted = row[i];
        if (l->ended >= 0)
            ts__row_clear(l, &counted);
        else
            count_row(l, &row[i]);
        b->trained_tokens += counted.trained;
        b->padding += counted.padding;
        if (b->row_ids) b->row_ids[i] = counted.first < 0 ? -1 : s->first_row + counted.first;
        if (b->sources) b->sources[i] = s->index;
    }
    return TS_OK;
}

/* ---- both, in the caller's thread ----------------------------------------------------------- */

void ts__loader_back(ts_loader *l)
{
    for (int i = 0; i < l->n_sources; i++) {
        ts__source *s = &l->source[i];
        l->planned[i] = l->state->source[i].taken;
        for (int k = 0; k < s->n_readers; k++)
            s->reader[k].at = l->state->source[i].position[k];
    }
    l->n_planned = l->state->rows;
    l->ended = l->ended_by = -1;
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
