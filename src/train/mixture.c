/* train/mixture.c – what a run says of each source of a mixture: before it begins, at every step, when it ends.
 *
 * The train step of a mixture has one output more, "row_loss": the sum of a row's losses. Here they are added up by
 * the source of the row, in double and in the order of the rows, so that the same rows give the same numbers on any
 * mesh. Rows of the same source share a mean over their trained tokens, which the host counts from the labels; the
 * means weighted by the tokens are the step's loss up to rounding.
 *
 * Batches are fed when a step is dispatched and taken when it was awaited, one set of sums for each step in flight.
 * Nothing is allocated after opening.
 */
#include <math.h>

#include "train/run.h"

struct ts_mixture {
    int n; /* sources */
    int64_t rows;
    float *row_loss; /* [rows] of the step awaited last */
    struct {
        int32_t *source; /* [rows] −1: padding */
        ts_mixed *sums;  /* [n] */
    } flight[TS_MAX_INFLIGHT];
};

/* ---- opening --------------------------------------------------------------------------------- */

/* Rows of a source until it is used up: what its samples fill at least where they are packed, else exactly. */
static double rows_of(const ts_run *r, const ts_loader_stats *s)
{
    const ts_config *c = r->config;
    double slots = ceil((double)s->tokens / (double)c->max_target_length);
    bool packed = c->dataset == TS_DATA_JSONL && c->packing;
    return (packed ? slots : (double)s->samples) * (double)c->num_epoch;
}

/* The one that will be used up first, by its share of the rows. */
static void say_first(const ts_run *r, double sum)
{
    const ts_config *c = r->config;
    const ts_loader *data = ts_prefetch_loader(r->ahead);
    double least = INFINITY;
    int first = 0;
    for (int i = 0; i < (int)c->n_mixture; i++) {
        const ts_loader_stats s = ts_loader_source_stats(data, i);
        double rows = rows_of(r, &s) * sum / c->mixture[i].weight;
        if (rows < least) {
            least = rows;
            first = i;
        }
    }
    bool packed = c->dataset == TS_DATA_JSONL && c->packing;
    ts__run_line(
        r, "source %s is used up first, after %s %.0f rows: %.0f steps of %lld (num_epoch=%lld)",
        c->mixture[first].name, packed ? "at least" : "about", least,
        floor(least / (double)c->batch_rows), (long long)c->batch_rows, (long long)c->num_epoch);
}

static void say_sources(const ts_run *r)
{
    const ts_config *c = r->config;
    const ts_loader *data = ts_prefetch_loader(r->ahead);
    double sum = 0;
    for (size_t i = 0; i < c->n_mixture; i++) sum += c->mixture[i].weight;
    for (int i = 0; i < (int)c->n_mixture; i++) {
        const ts_loader_stats s = ts_loader_source_stats(data, i);
        ts__run_line(r,
                     "source %s: %lld samples, %lld tokens an epoch, weight %g: %.1f%% of the rows",
                     c->mixture[i].name, (long long)s.samples, (long long)s.tokens,
                     c->mixture[i].weight, 100 * c->mixture[i].weight / sum);
    }
    say_first(r, sum);
}

ts_status ts__mixture_open(ts_run *r, ts_error *err)
{
    int n = (int)r->config->n_mixture;
    size_t rows = (size_t)r->config->batch_rows;
    if (n == 0) return TS_OK;
    ts_mixture *m = r->mixture = ts_alloc_zero(sizeof *m);
    bool ok = m && (m->row_loss = ts_alloc(rows * sizeof *m->row_loss));
    for (int k = 0; ok && k < TS_MAX_INFLIGHT; k++) {
        m->flight[k].source = ts_alloc(rows * sizeof *m->flight[k].source);
        m->flight[k].sums = ts_alloc_zero((size_t)n * sizeof *m->flight[k].sums);
        ok = m->flight[k].source && m->flight[k].sums;
    }
    if (!ok) return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out for the sources' losses");
    m->n = n;
    m->rows = r->config->batch_rows;
    say_sources(r);
    return TS_OK;
}

void ts__mixture_close(ts_mixture *m)
{
    if (!m) return;
    for (int k = 0; k < TS_MAX_INFLIGHT; k++) {
        ts_free(m->flight[k].source);
        ts_free(m->flight[k].sums);
    }
    ts_free(m->row_loss);
    ts_free(m);
}

/* ---- steps ----------------------------------------------------------------------------------- */

static int64_t trained(const int32_t *labels, int64_t n)
{
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++) count += labels[i] >= 0;
    return count;
}

void ts__mixture_feed(const ts_run *r, ts_flight *f, const ts_batch *b)
{
    ts_mixture *m = r->mixture;
    int64_t S = r->config->max_target_length;
    if (!m) return;
    int k = (int)(f->info.step % TS_MAX_INFLIGHT);
    ts_mixed *sums = m->flight[k].sums;
    for (int i = 0; i < m->n; i++)
        sums[i] = (ts_mixed){.name = r->config->mixture[i].name,
                             .rows = ts_prefetch_source_rows(r->ahead, i)};
    for (int64_t row = 0; row < m->rows; row++) {
        bool padding = b->row_ids[row] < 0;
        m->flight[k].source[row] = padding ? -1 : b->sources[row];
        if (!padding) sums[b->sources[row]].weights += trained(b->labels + row * S, S);
    }
    f->mixed = sums;
    f->n_mixed = m->n;
}

ts_status ts__mixture_take(const ts_run *r, ts_flight *f, ts_error *err)
{
    ts_mixture *m = r->mixture;
    if (!m) return TS_OK;
    int k = (int)(f->info.step % TS_MAX_INFLIGHT);
    TS_TRY(ts_bound_get(r->train, "row_loss", m->row_loss, (size_t)m->rows * sizeof *m->row_loss,
                        err));
    for (int64_t row = 0; row < m->rows; row++) {
        int32_t source = m->flight[k].source[row];
        if (source >= 0) m->flight[k].sums[source].loss += (double)m->row_loss[row];
    }
    return TS_OK;
}

/* ---- the end --------------------------------------------------------------------------------- */

void ts__say_data_ended(const ts_run *r)
{
    const ts_loader *data = ts_prefetch_loader(r->ahead);
    const char *name = ts_loader_source_name(data, ts_loader_ended_by(data));
    long long passes = (long long)r->config->num_epoch;
    ts_watch_idle(r->watch); /* the data was waited for, its end is not */
    if (*name)
        ts__run_line(r,
                     "the data ended: source %s is used up after %lld pass%s (num_epoch=%lld), "
                     "behind step %lld",
                     name, passes, passes == 1 ? "" : "es", passes, (long long)r->step - 1);
    else
        ts__run_line(r, "the data ended after step %lld (num_epoch=%lld)", (long long)r->step - 1,
                     passes);
}
