/* train/train.c – the loop: batch → step → metrics → maybe evaluation → maybe checkpoint.
 *
 * Steps are dispatched ahead as far as the engine allows (step.c), but never past one after which something reads
 * the state: an evaluation, a sample, a checkpoint, the last step. So nothing is in flight where the state is read,
 * and the data stands where the state does. What the hook asks for in between is done once the pipeline is empty.
 */
#include <math.h>
#include <stdio.h>

#include "train/run.h"

void ts_train_hooks_default(ts_train_hooks *h)
{
    *h = (ts_train_hooks){.struct_size = sizeof *h};
}

/* ---- what the hook asks for ------------------------------------------------------------------- */

/* Between steps the state is whole: a save is possible then, in the middle of an evaluation or a sample too.
 * Before there is a state nothing is saved. */
ts_status ts__run_obey(ts_run *r, ts_error *err)
{
    ts_interrupt what = r->hooks->interrupt ? r->hooks->interrupt(r->hooks->context) : TS_CONTINUE;
    if (what != TS_CONTINUE) TS_TRY(ts__run_drain(r, err));
    if (what == TS_SAVE_AND_STOP) r->interrupted = true;
    bool save = what != TS_CONTINUE && r->started && r->config->enable_checkpointing &&
                r->saved_step != r->step;
    return save ? ts__run_save(r, err) : TS_OK;
}

/* ---- evaluation ------------------------------------------------------------------------------ */

ts_status ts__run_evaluate(ts_run *r, ts_error *err)
{
    double start = ts_clock_seconds(), sum = 0, weights = 0;
    ts_loader_rewind(r->eval_data);
    for (int64_t i = 0; r->config->eval_steps < 0 || i < r->config->eval_steps; i++) {
        float loss, n;
        TS_TRY(ts__run_obey(r, err));
        if (r->interrupted)
            return TS_OK; /* a held-out set may take longer than the grace of a stop */
        ts_status status = ts_loader_next(r->eval_data, &r->eval_batch, err);
        if (status == TS_OUT_OF_RANGE) break;
        TS_TRY(status);
        TS_TRY(ts__run_upload(r, &r->eval_batch, r->config->eval_rows, r->eval, err));
        TS_TRY(ts_bound_execute(r->eval, err));
        TS_TRY(ts_bound_get(r->eval, "loss_sum", &loss, sizeof loss, err));
        TS_TRY(ts_bound_get(r->eval, "weights", &n, sizeof n, err));
        sum += (double)loss;
        weights += (double)n;
    }
    r->evaluated = r->step;
    r->eval_loss = weights > 0 ? sum / weights : NAN;
    double seconds = ts_clock_seconds() - start;
    ts__run_line(
        r,
        "Completed eval after train step %lld, loss=%.3f, perplexity=%.3f, total_weights=%.0f (%.2f s)",
        (long long)r->step - 1, r->eval_loss, exp(r->eval_loss), weights, seconds);
    TS_TRY(ts__metrics_eval(r->metrics, r->step - 1, r->eval_loss, weights, seconds, err));
    if (r->config->target_eval_loss > 0 && r->eval_loss <= r->config->target_eval_loss) {
        ts__run_line(r, "target_eval_loss %.3f is reached", r->config->target_eval_loss);
        r->stop = true;
    }
    return TS_OK;
}

/* ---- the loop -------------------------------------------------------------------------------- */

/* Does something read the state once n steps are done? */
static bool is_due(const ts_run *r, int64_t n)
{
    const ts_config *c = r->config;
    return n >= c->steps || (r->eval_data && n % c->eval_interval == 0) ||
           (c->sample_interval > 0 && n % c->sample_interval == 0) ||
           (c->enable_checkpointing && n % c->checkpoint_period == 0) || ts__profile_is_due(r, n);
}

/* Fills the pipeline, then awaits the oldest step of it. */
static ts_status one_step(ts_run *r, ts_error *err)
{
    if (r->dispatched == r->step) ts__profile_between(r, false);
    while (!r->data_ended && r->dispatched - r->step < r->depth &&
           (r->dispatched == r->step || !is_due(r, r->dispatched)))
        TS_TRY(ts__run_dispatch(r, err));
    if (r->dispatched > r->step) return ts__run_finish(r, err);
    ts__run_line(r, "the data ended after step %lld (num_epoch=%lld)", (long long)r->step - 1,
                 (long long)r->config->num_epoch);
    r->stop = true;
    return TS_OK;
}

static ts_status after_step(ts_run *r, ts_error *err)
{
    const ts_config *c = r->config;
    bool last = r->step >= c->steps || r->stop, whole = r->dispatched == r->step;
    bool evaluate = whole && r->eval_data && r->evaluated != r->step;
    ts_status status = TS_OK;
    TS_ASSERT(whole || !is_due(r, r->step));
    if (evaluate && (r->step % c->eval_interval == 0 || last)) status = ts__run_evaluate(r, err);
    if (status == TS_OK && c->sample_interval > 0 && r->step % c->sample_interval == 0 &&
        !r->interrupted)
        status = ts__run_sample(r, err);
    if (status != TS_OK) return ts__run_save_and_fail(r, status);
    if (!r->interrupted) TS_TRY(ts__run_obey(r, err));
    bool due = c->enable_checkpointing && r->step % c->checkpoint_period == 0;
    return due && r->dispatched == r->step && r->saved_step != r->step ? ts__run_save(r, err)
                                                                       : TS_OK;
}

/* Obeying may have finished another step, after which something is due too. */
static ts_status after_steps(ts_run *r, ts_error *err)
{
    int64_t before;
    do {
        before = r->step;
        TS_TRY(after_step(r, err));
    } while (r->step != before && !r->interrupted);
    return TS_OK;
}

static ts_status loop(ts_run *r, ts_error *err)
{
    const ts_config *c = r->config;
    if (r->step >= c->steps) {
        ts__run_line(r, "run %s has already reached step %lld of %lld; nothing to do", c->run_name,
                     (long long)r->step, (long long)c->steps);
        return TS_OK;
    }
    if (c->enable_checkpointing && c->save_checkpoint_on_start && r->saved_step != r->step)
        TS_TRY(ts__run_save(r, err));
    TS_TRY(ts__run_obey(r, err));
    while (r->step < c->steps && !r->stop && !r->interrupted) {
        int64_t before = r->step;
        TS_TRY(one_step(r, err));
        if (r->step != before || r->stop) TS_TRY(after_steps(r, err));
    }
    ts__profile_between(r, true);
    bool save = c->enable_checkpointing && c->save_checkpoint_on_completion && !r->interrupted;
    return save && r->saved_step != r->step ? ts__run_save(r, err) : TS_OK;
}

ts_status ts_train(const ts_config *c, const ts_train_hooks *hooks, ts_train_result *result,
                   ts_error *err)
{
    ts_run r = {.config = c,
                .hooks = hooks,
                .loss = NAN,
                .eval_loss = NAN,
                .saved_step = -1,
                .evaluated = -1};
    ts_status status = ts__run_prepare(&r, err);
    if (status == TS_OK && !r.interrupted) status = loop(&r, err);
    *result = (ts_train_result){r.step, r.loss, r.eval_loss, r.interrupted, r.saved_step};
    ts__run_release(&r);
    return status;
}
