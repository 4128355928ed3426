/* train/step.c – one training step: dispatched, awaited, told, judged.
 *
 * On an asynchronous engine step N is awaited after step N + 1 was dispatched: the host reads the next batch, writes
 * the metrics and prints the line while the device computes. Step lines, metrics and verdicts come in order. The
 * graph itself leaves the state as it was where a step is not finite, so the one behind it may well be in flight
 * when that is found. A step that fails names itself; the state is not known to be whole then and is not saved.
 *
 * A step's seconds run from the request for its batch, or from the end of the step before it where that was later, to
 * its synchronised end; compilation, evaluation and checkpoints are timed apart.
 */
#include <math.h>
#include <stdio.h>

#include "train/run.h"

/* ---- dispatching ----------------------------------------------------------------------------- */

ts_status ts__run_upload(const ts_run *r, const ts_batch *b, int64_t rows, ts_bound *to,
                         ts_error *err)
{
    size_t n = (size_t)(rows * r->config->max_target_length) * sizeof(int32_t);
    TS_TRY(ts_bound_set(to, "tokens", b->tokens, n, err));
    TS_TRY(ts_bound_set(to, "labels", b->labels, n, err));
    if (!r->packed) return TS_OK;
    TS_TRY(ts_bound_set(to, "segments", b->segments, n, err));
    return ts_bound_set(to, "positions", b->positions, n, err);
}

static ts_status send_step(ts_run *r, ts_flight *f, const ts_batch *b, ts_error *err)
{
    float lr = (float)ts_schedule_rate(&r->config->schedule, r->dispatched);
    int32_t count = (int32_t)(r->dispatched + 1);
    f->info.learning_rate = (double)lr;
    TS_TRY(ts__run_upload(r, b, r->config->batch_rows, r->train, err));
    TS_TRY(ts_bound_set(r->train, "lr", &lr, sizeof lr, err));
    TS_TRY(ts_bound_set(r->train, "step", &count, sizeof count, err));
    f->sent = ts_clock_seconds();
    ts__profile_dispatch(r);
    TS_TRY(ts_bound_dispatch(r->train, err));
    f->dispatched = ts_clock_seconds();
    return TS_OK;
}

ts_status ts__run_dispatch(ts_run *r, ts_error *err)
{
    const ts_config *c = r->config;
    ts_flight *f = &r->flight[r->dispatched % r->depth];
    TS_ASSERT(r->dispatched - r->step < r->depth);
    *f = (ts_flight){.requested = ts_clock_seconds(),
                     .info = {.step = r->dispatched,
                              .steps = c->steps,
                              .tflops = r->tflops,
                              .devices = (int)c->devices,
                              .slots = c->batch_rows * c->max_target_length}};
    const ts_batch *batch;
    ts__run_begin(r, "the data of step", r->dispatched);
    ts_status status = ts_prefetch_next(r->ahead, &batch, NULL, err);
    r->data_ended = status == TS_OUT_OF_RANGE;
    if (r->data_ended) return TS_OK;
    if (status != TS_OK) return ts__run_save_and_fail(r, status);
    ts__run_begin(r, "step", r->dispatched);
    f->fed = ts_clock_seconds();
    if (r->behind[0]) ts_prefetch_get_state(r->ahead, r->behind[r->dispatched % TS_MAX_INFLIGHT]);
    f->order_hash = ts_prefetch_order_hash(r->ahead);
    r->tokens = batch->tokens;
    f->info.trained_tokens = batch->trained_tokens;
    f->info.padding = batch->padding;
    ts__mixture_feed(r, f, batch);
    status = send_step(r, f, batch, err);
    if (status != TS_OK) return ts__error_context(err, "step %lld", (long long)r->dispatched);
    r->dispatched++;
    return TS_OK;
}

/* ---- finishing ------------------------------------------------------------------------------- */

/* The oldest step in flight: waits, reads what it says of itself, counts it. */
static ts_status await_step(ts_run *r, ts_flight *f, ts_error *err)
{
    float loss, norm;
    bool ok;
    ts_exec_stats s;
    ts_executable *x = ts_bound_executable(r->train);
    ts__run_begin(r, "step", r->step);
    TS_TRY(ts_bound_wait(r->train, err));
    x->vtable->stats(x, &s); /* of this execution, which was waited for last */
    TS_TRY(ts_bound_get(r->train, "loss", &loss, sizeof loss, err));
    TS_TRY(ts_bound_get(r->train, "grad_norm", &norm, sizeof norm, err));
    TS_TRY(ts_bound_get(r->train, "ok", &ok, 1, err));
    TS_TRY(ts__mixture_take(r, f, err));
    double done = x->vtable->asynchronous && s.last_done > 0 ? s.last_done : ts_clock_seconds();
    double begin = f->requested > r->last_done ? f->requested : r->last_done;
    f->info.seconds = done > begin ? done - begin : 0;
    f->info.data_seconds = f->fed > begin ? f->fed - begin : 0;
    f->info.loss = (double)loss;
    f->info.grad_norm = (double)norm;
    f->info.skipped = !ok;
    r->last_done = done;
    r->loss = f->info.loss;
    r->nonfinite = ok ? 0 : r->nonfinite + 1;
    r->nonfinite_all += !ok;
    f->nonfinite = r->nonfinite_all;
    f->rollbacks = r->rollbacks;
    r->step++;
    return TS_OK;
}

/* Tells of a step that was awaited: the hook, the metrics, the profile. The hook may take its time: a reader of the
 * step lines that pauses holds the run, and no limit is on that. */
static ts_status tell(ts_run *r, const ts_flight *f, ts_error *err)
{
    ts_watch_idle(r->watch);
    ts__profile_finish(r, f);
    if (r->hooks->step) r->hooks->step(r->hooks->context, &f->info);
    ts__run_begin(r, "the metrics of step", f->info.step);
    ts_status status = ts__metrics_step(r->metrics, f, r->config, err);
    ts_watch_idle(r->watch);
    return status;
}

ts_status ts__run_finish(ts_run *r, ts_error *err)
{
    ts_flight *f = &r->flight[r->step % r->depth];
    int64_t step = r->step;
    TS_ASSERT(r->step < r->dispatched);
    ts_status status = await_step(r, f, err);
    if (status != TS_OK) return ts__error_context(err, "step %lld", (long long)step);
    status = tell(r, f, err);
    if (status == TS_OK) return ts__run_judge(r, f, err);
    /* It was not told whole, and is judged all the same: what must not be kept is not saved. */
    return ts__run_keeps(r, f) ? ts__run_save_and_fail(r, status) : status;
}

ts_status ts__run_drain(ts_run *r, ts_error *err)
{
    while (r->step < r->dispatched) TS_TRY(ts__run_finish(r, err));
    return TS_OK;
}

/* What was trained outlives a failure that left the state whole, if the checkpoint can be written. The failure
 * is what the user is told; a second one would only hide it. Steps in flight are part of the state. */
ts_status ts__run_save_and_fail(ts_run *r, ts_status status)
{
    while (r->step < r->dispatched) {
        ts_flight *f = &r->flight[r->step % r->depth];
        ts_error unsaid = {0};
        if (await_step(r, f, &unsaid) != TS_OK) return status;
        (void)tell(r, f, &unsaid);
        if (!ts__run_keeps(r, f)) return status;
    }
    ts_error unsaid = {0};
    if (r->config->enable_checkpointing && r->saved_step != r->step) (void)ts__run_save(r, &unsaid);
    return status;
}
