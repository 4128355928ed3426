/* train/train.c – the loop: batch → step → metrics → maybe evaluation → maybe checkpoint.
 *
 * A step's seconds run from the request for its batch to its synchronised end; compilation, evaluation and
 * checkpoints are timed apart. The graph itself skips a step that is not finite; the loop counts and decides.
 */
#include <math.h>
#include <stdio.h>

#include "train/run.h"

void ts_train_hooks_default(ts_train_hooks *h)
{
    *h = (ts_train_hooks){.struct_size = sizeof *h};
}

/* ---- batches --------------------------------------------------------------------------------- */

static ts_status upload_batch(ts_run *r, ts_bound *to, int64_t rows, ts_error *err)
{
    size_t n = (size_t)(rows * r->config->max_target_length) * sizeof(int32_t);
    TS_TRY(ts_bound_set(to, "tokens", r->tokens, n, err));
    TS_TRY(ts_bound_set(to, "labels", r->labels, n, err));
    if (!r->packed) return TS_OK;
    TS_TRY(ts_bound_set(to, "segments", r->segments, n, err));
    return ts_bound_set(to, "positions", r->positions, n, err);
}

/* ---- what the hook asks for ------------------------------------------------------------------- */

/* Between steps the state is whole: a save is possible then, in the middle of an evaluation or a sample too.
 * Before there is a state nothing is saved. */
ts_status ts__run_obey(ts_run *r, ts_error *err)
{
    ts_interrupt what = r->hooks->interrupt ? r->hooks->interrupt(r->hooks->context) : TS_CONTINUE;
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
        ts_status status = ts_loader_next(r->eval_data, &r->batch, err);
        if (status == TS_OUT_OF_RANGE) break;
        TS_TRY(status);
        TS_TRY(upload_batch(r, r->eval, r->config->eval_rows, err));
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

/* ---- one step -------------------------------------------------------------------------------- */

static ts_status execute_step(ts_run *r, ts_step_info *info, ts_error *err)
{
    float lr = (float)ts_schedule_rate(&r->config->schedule, r->step), loss, norm;
    int32_t count = (int32_t)(r->step + 1);
    bool ok;
    TS_TRY(upload_batch(r, r->train, r->config->batch_rows, err));
    TS_TRY(ts_bound_set(r->train, "lr", &lr, sizeof lr, err));
    TS_TRY(ts_bound_set(r->train, "step", &count, sizeof count, err));
    TS_TRY(ts_bound_execute(r->train, err));
    TS_TRY(ts_bound_get(r->train, "loss", &loss, sizeof loss, err));
    TS_TRY(ts_bound_get(r->train, "grad_norm", &norm, sizeof norm, err));
    TS_TRY(ts_bound_get(r->train, "ok", &ok, 1, err));
    info->loss = (double)loss;
    info->grad_norm = (double)norm;
    info->learning_rate = (double)lr;
    info->skipped = !ok;
    return TS_OK;
}

double ts__run_plain(double v)
{
    return isnan(v) ? (double)NAN : v;
}

/* What to change: the key that stopped the run is another where the loss itself is fine. */
static void advise(const ts_config *c, const ts_step_info *info, bool abort_now, char *buf,
                   size_t n)
{
    long long most = (long long)c->max_nonfinite_steps;
    if (abort_now)
        snprintf(buf, n,
                 "Lower learning_rate, or set abort_on_%s_loss=false to skip up to "
                 "max_nonfinite_steps=%lld",
                 isnan(info->loss) ? "nan" : "inf", most);
    else
        snprintf(
            buf, n,
            "Lower learning_rate, or raise max_nonfinite_steps=%lld to skip more such steps in "
            "a row",
            most);
}

/* Policy for losses and gradients that are not finite; the graph has already left the state as it was. A state
 * that diverged is not saved: the newest checkpoint is the place to go on from. */
static ts_status judge(ts_run *r, const ts_step_info *info, ts_error *err)
{
    const ts_config *c = r->config;
    if (!info->skipped) {
        r->nonfinite = 0;
        return TS_OK;
    }
    r->nonfinite++;
    bool abort_now =
        (isnan(info->loss) && c->abort_on_nan_loss) || (isinf(info->loss) && c->abort_on_inf_loss);
    if (!abort_now && r->nonfinite <= c->max_nonfinite_steps) return TS_OK;
    char kept[1200] = "no checkpoint was written", advice[200];
    if (r->saved_step >= 0)
        snprintf(kept, sizeof kept, "the newest checkpoint is %s/checkpoints/%lld", c->run_folder,
                 (long long)r->saved_step);
    advise(c, info, abort_now, advice, sizeof advice);
    return TS_ERROR(
        err, TS_ABORTED,
        "step %lld: loss %g, gradient norm %g; %lld step%s in a row were not finite, and none of them "
        "changed the weights; %s. %s",
        (long long)info->step, ts__run_plain(info->loss), ts__run_plain(info->grad_norm),
        (long long)r->nonfinite, r->nonfinite == 1 ? "" : "s", kept, advice);
}

/* What was trained outlives a failure that left the state whole, if the checkpoint can be written. The failure
 * is what the user is told; a second one would only hide it. */
static ts_status save_and_fail(ts_run *r, ts_status status)
{
    ts_error unsaid = {0};
    if (r->config->enable_checkpointing && r->saved_step != r->step) (void)ts__run_save(r, &unsaid);
    return status;
}

static ts_status one_step(ts_run *r, ts_error *err)
{
    const ts_config *c = r->config;
    ts_step_info info = {.step = r->step,
                         .steps = c->steps,
                         .tflops = r->tflops,
                         .devices = (int)c->devices,
                         .slots = c->batch_rows * c->max_target_length};
    double start = ts_clock_seconds();
    ts_status status = ts_loader_next(r->train_data, &r->batch, err);
    if (status == TS_OUT_OF_RANGE) {
        ts__run_line(r, "the data ended after step %lld (num_epoch=%lld)", (long long)r->step - 1,
                     (long long)c->num_epoch);
        r->stop = true;
        return TS_OK;
    }
    if (status != TS_OK) return save_and_fail(r, status);
    info.data_seconds = ts_clock_seconds() - start;
    info.trained_tokens = r->batch.trained_tokens;
    info.padding = r->batch.padding;
    TS_TRY(execute_step(r, &info, err));
    info.seconds = ts_clock_seconds() - start;
    r->loss = info.loss;
    r->step++;
    if (r->hooks->step) r->hooks->step(r->hooks->context, &info);
    status = ts__metrics_step(r->metrics, &info, c, err);
    return status == TS_OK ? judge(r, &info, err) : save_and_fail(r, status);
}

/* ---- the loop -------------------------------------------------------------------------------- */

static ts_status after_step(ts_run *r, ts_error *err)
{
    const ts_config *c = r->config;
    bool last = r->step >= c->steps || r->stop;
    bool evaluate = r->eval_data && r->evaluated != r->step;
    ts_status status = TS_OK;
    if (evaluate && (r->step % c->eval_interval == 0 || last)) status = ts__run_evaluate(r, err);
    if (status == TS_OK && c->sample_interval > 0 && r->step % c->sample_interval == 0 &&
        !r->interrupted)
        status = ts__run_sample(r, err);
    if (status != TS_OK) return save_and_fail(r, status);
    if (!r->interrupted) TS_TRY(ts__run_obey(r, err));
    bool due = c->enable_checkpointing && r->step % c->checkpoint_period == 0;
    return due && r->saved_step != r->step ? ts__run_save(r, err) : TS_OK;
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
        if (r->step != before || r->stop) TS_TRY(after_step(r, err));
    }
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
