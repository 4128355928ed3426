/* train/evaluate.c – the loss over the held-out data, source by source.
 *
 * Each source of a mixture has a loader of its own, so that its loss is over all it holds out, whatever its weight in
 * training; without a mixture, or with files of their own to evaluate on, there is one. The total is over the tokens
 * of all of them. eval_steps counts batches of each source. A stop is obeyed between two batches: a held-out set may
 * take longer than its grace. Whoever starts the run again evaluates that step first.
 *
 * Not here: when a run evaluates (train.c).
 */
#include <math.h>
#include <stdio.h>

#include "train/run.h"

/* ---- opening --------------------------------------------------------------------------------- */

static ts_status open_source(ts_run *r, int i, ts_error *err)
{
    ts_loader_options o;
    ts_config_eval_options(r->config, i, r->tokenizer, &o);
    o.vocab_size = r->model.vocab;
    ts_status status = ts_loader_open(&o, &r->eval_data[i], err);
    const char *name = ts__eval_name(r, i);
    if (status != TS_OK) return *name ? ts__error_context(err, "source %s", name) : status;
    ts_loader_stats s = ts_loader_stats_of(r->eval_data[i]);
    ts__run_line(r, "evaluation%s%s: %lld samples, %lld tokens", *name ? " on " : "", name,
                 (long long)s.samples, (long long)s.tokens);
    return TS_OK;
}

/* Those of training belong to r->ahead. */
static ts_status make_batch(ts_run *r, ts_error *err)
{
    size_t n = (size_t)(r->config->eval_rows * r->config->max_target_length) * sizeof(int32_t);
    ts_batch *b = &r->eval_batch;
    b->tokens = ts_alloc(n);
    b->labels = ts_alloc(n);
    b->segments = ts_alloc(n);
    b->positions = ts_alloc(n);
    bool ok = b->tokens && b->labels && b->segments && b->positions;
    return ok ? TS_OK
              : TS_ERROR(err, TS_RESOURCE_EXHAUSTED,
                         "memory is out for an evaluation batch of %zu bytes", 4 * n);
}

ts_status ts__eval_open(ts_run *r, ts_error *err)
{
    int n = ts_config_eval_sources(r->config);
    if (r->config->eval_interval < 1) return TS_OK;
    r->eval_data = ts_alloc_zero((size_t)n * sizeof(ts_loader *));
    r->eval_sums = ts_alloc_zero((size_t)n * sizeof *r->eval_sums);
    if (!r->eval_data || !r->eval_sums)
        return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out for the evaluation");
    r->n_eval = n;
    for (int i = 0; i < n; i++) TS_TRY(open_source(r, i, err));
    return make_batch(r, err);
}

void ts__eval_close(ts_run *r)
{
    for (int i = 0; i < r->n_eval; i++) ts_loader_free(r->eval_data[i]);
    ts_free(r->eval_data);
    ts_free(r->eval_sums);
    ts_free(r->eval_batch.tokens);
    ts_free(r->eval_batch.labels);
    ts_free(r->eval_batch.segments);
    ts_free(r->eval_batch.positions);
}

const char *ts__eval_name(const ts_run *r, int i)
{
    bool mixed = r->config->n_mixture && ts_config_eval_sources(r->config) > 1;
    return mixed ? r->config->mixture[i].name : "";
}

/* ---- evaluating ------------------------------------------------------------------------------ */

/* One source to its end, or to eval_steps, or until the hook stops the run. */
static ts_status evaluate_source(ts_run *r, ts_loader *data, ts_eval_sum *sum, ts_error *err)
{
    *sum = (ts_eval_sum){0};
    ts_loader_rewind(data);
    for (int64_t i = 0; r->config->eval_steps < 0 || i < r->config->eval_steps; i++) {
        float loss, n;
        TS_TRY(ts__run_obey(r, err));
        if (r->interrupted) return TS_OK;
        ts__run_begin(r, "evaluation batch", i);
        ts_status status = ts_loader_next(data, &r->eval_batch, err);
        if (status == TS_OUT_OF_RANGE) break;
        TS_TRY(status);
        TS_TRY(ts__run_upload(r, &r->eval_batch, r->config->eval_rows, r->eval, err));
        TS_TRY(ts_bound_execute(r->eval, err));
        TS_TRY(ts_bound_get(r->eval, "loss_sum", &loss, sizeof loss, err));
        TS_TRY(ts_bound_get(r->eval, "weights", &n, sizeof n, err));
        sum->loss += (double)loss;
        sum->weights += (double)n;
    }
    return TS_OK;
}

double ts__eval_mean(const ts_eval_sum *s)
{
    return s->weights > 0 ? s->loss / s->weights : (double)NAN;
}

/* "; web 2.345, code 1.234", or nothing of one source. */
static void name_losses(const ts_run *r, ts_string *text)
{
    for (int i = 0; i < r->n_eval && *ts__eval_name(r, 0); i++)
        ts_string_printf(text, "%s %s %.3f", i ? "," : ";", ts__eval_name(r, i),
                         ts__run_plain(ts__eval_mean(&r->eval_sums[i])));
}

static void say(const ts_run *r, const ts_eval_sum *all, double seconds)
{
    ts_string text = ts_string_new(1 << 16);
    name_losses(r, &text);
    ts__run_line(
        r,
        "Completed eval after train step %lld, loss=%.3f, perplexity=%.3f, total_weights=%.0f (%.2f s)%s",
        (long long)r->step - 1, ts__run_plain(r->eval_loss), ts__run_plain(exp(r->eval_loss)),
        all->weights, seconds, text.failed || !text.length ? "" : text.data);
    ts_string_free(&text);
}

bool ts__eval_is_due(const ts_run *r)
{
    const ts_config *c = r->config;
    if (r->n_eval == 0 || r->step < 1 || r->evaluated == r->step) return false;
    return r->step % c->eval_interval == 0 || r->step >= c->steps || r->stop;
}

ts_status ts__run_evaluate(ts_run *r, ts_error *err)
{
    double start = ts_clock_seconds();
    ts_eval_sum all = {0};
    for (int i = 0; i < r->n_eval; i++) {
        TS_TRY(evaluate_source(r, r->eval_data[i], &r->eval_sums[i], err));
        if (r->interrupted) return TS_OK;
        all.loss += r->eval_sums[i].loss;
        all.weights += r->eval_sums[i].weights;
    }
    ts_watch_idle(r->watch);
    r->evaluated = r->step;
    r->eval_loss = ts__eval_mean(&all);
    double seconds = ts_clock_seconds() - start;
    say(r, &all, seconds);
    TS_TRY(ts__metrics_eval(r->metrics, r, all.weights, seconds, err));
    if (r->config->target_eval_loss > 0 && r->eval_loss <= r->config->target_eval_loss) {
        ts__run_line(r, "target_eval_loss %.3f is reached", r->config->target_eval_loss);
        r->stop = true;
    }
    return TS_OK;
}
