/* train/judge.c – policies: what a step that is not finite, or whose loss is a spike, means for the run.
 *
 * Not finite: the graph has left the state as it was, on all devices alike, because whether it does is one number of
 * the whole step. Such steps are counted; too many in a row, or the first where the loss may not be so, end the run.
 *
 * A spike goes back to the newest checkpoint: parameters, moments, step number and window are the checkpoint's, and
 * the data goes on behind the batch of the spike, wherever reading and devices have got to meanwhile. So the same run
 * does the same again, on every engine. A process that is killed behind a rollback and before the next save resumes
 * with the checkpoint's data, meets the spike again and goes back again.
 *
 * Verdicts depend on losses and counts alone, all of which are in a checkpoint. Not here: what a spike is (spike.c).
 */
#include <math.h>
#include <stdio.h>

#include "base/log.h"
#include "train/save.h"

ts_status ts__judge_open(ts_run *r, ts_error *err)
{
    const ts_config *c = r->config;
    if (strcmp(c->spike_policy, "rollback") != 0) return TS_OK;
    TS_TRY(ts_spike_open(c->spike_window, c->spike_threshold, &r->spike, err));
    for (int i = 0; i < TS_MAX_INFLIGHT; i++)
        TS_TRY(ts_loader_state_new(r->train_data, &r->behind[i], err));
    return TS_OK;
}

void ts__judge_close(ts_run *r)
{
    for (int i = 0; i < TS_MAX_INFLIGHT; i++) ts_loader_state_free(r->behind[i]);
    ts_spike_close(&r->spike);
}

/* ---- messages -------------------------------------------------------------------------------- */

double ts__run_plain(double v)
{
    return isnan(v) ? (double)NAN : v;
}

static const char *newest(const ts_run *r, char *buf, size_t n)
{
    if (r->saved_step >= 0)
        snprintf(buf, n, "the newest checkpoint is %s/checkpoints/%lld", r->config->run_folder,
                 (long long)r->saved_step);
    else
        snprintf(buf, n, "no checkpoint was written");
    return buf;
}

/* What is being written counts once it is there; that it is not is told elsewhere. */
static void wait_for_save(ts_run *r)
{
    ts_error why = {0};
    if (ts__run_saved(r, true, &why) != TS_OK) ts_log(TS_LOG_WARNING, "%s", why.msg);
}

/* ---- not finite ------------------------------------------------------------------------------ */

static bool may_not_be(const ts_config *c, const ts_step_info *info)
{
    return (isnan(info->loss) && c->abort_on_nan_loss) ||
           (isinf(info->loss) && c->abort_on_inf_loss);
}

static bool is_too_much(const ts_run *r, const ts_step_info *info)
{
    return info->skipped &&
           (may_not_be(r->config, info) || r->nonfinite > r->config->max_nonfinite_steps);
}

/* What to change: the key that stopped the run is another where the loss itself is fine. */
static void advise(const ts_config *c, const ts_step_info *info, char *buf, size_t n)
{
    long long most = (long long)c->max_nonfinite_steps;
    if (may_not_be(c, info))
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

/* A state that diverged is not saved: the newest checkpoint is the place to go on from. */
static ts_status stop_nonfinite(ts_run *r, const ts_step_info *info, ts_error *err)
{
    char kept[1200], advice[200];
    wait_for_save(r);
    advise(r->config, info, advice, sizeof advice);
    return TS_ERROR(
        err, TS_ABORTED,
        "step %lld: loss %g, gradient norm %g; %lld step%s in a row were not finite, and none of them "
        "changed the weights; %s. %s",
        (long long)info->step, ts__run_plain(info->loss), ts__run_plain(info->grad_norm),
        (long long)r->nonfinite, r->nonfinite == 1 ? "" : "s", newest(r, kept, sizeof kept),
        advice);
}

/* ---- spikes ---------------------------------------------------------------------------------- */

static void describe_spike(const ts_run *r, const ts_step_info *info, char *buf, size_t n)
{
    double deviation, mean = ts_spike_mean(&r->spike, &deviation);
    snprintf(buf, n,
             "step %lld: loss %.4g is a spike, more than spike_threshold=%g deviations of %.3g above "
             "the mean %.4g of %lld steps before",
             (long long)info->step, info->loss, r->config->spike_threshold, deviation, mean,
             (long long)r->spike.n);
}

/* Once more than allowed to a checkpoint: the weights there lead into spikes, whatever the data. */
static ts_status stop_spike(ts_run *r, const char *spike, ts_error *err)
{
    char kept[1200];
    return TS_ERROR(err, TS_ABORTED,
                    "%s; %lld rollbacks to one checkpoint did not get past it "
                    "(max_spike_rollbacks=%lld); %s. Lower learning_rate, raise spike_threshold, or "
                    "look at the data around there",
                    spike, (long long)r->rollbacks_here, (long long)r->config->max_spike_rollbacks,
                    newest(r, kept, sizeof kept));
}

/* What is in flight behind the spike is neither told nor counted. */
static ts_status discard_flights(ts_run *r, ts_error *err)
{
    for (; r->step < r->dispatched; r->step++) {
        ts__run_begin(r, "step", r->step);
        ts_status status = ts_bound_wait(r->train, err);
        if (status != TS_OK) return ts__error_context(err, "step %lld", (long long)r->step), status;
        ts__profile_finish(r, &r->flight[r->step % r->depth]);
    }
    return TS_OK;
}

static ts_status go_back(ts_run *r, const ts_step_info *info, ts_error *err)
{
    char spike[300];
    const int64_t batch = info->step;
    describe_spike(r, info, spike, sizeof spike);
    TS_TRY(ts__save_wait(r, err));
    if (r->saved_step < 0) {
        ts_log(TS_LOG_WARNING, "%s; there is no checkpoint to go back to, and the run goes on", spike);
        return TS_OK;
    }
    if (r->saved_step != r->rolled_to) r->rollbacks_here = 0;
    r->rolled_to = r->saved_step;
    if (r->rollbacks_here >= r->config->max_spike_rollbacks) return stop_spike(r, spike, err);
    ts_log(TS_LOG_WARNING, "%s; back to the newest checkpoint, and on behind the data of step %lld",
           spike, (long long)batch);
    TS_TRY(discard_flights(r, err));
    ts__run_idle(r, "going back to a checkpoint");
    ts_status status = ts__run_restore_newest(r, err);
    if (status != TS_OK) return ts__error_context(err, "%s; going back", spike), status;
    status = ts_prefetch_set_state(r->ahead, r->behind[batch % TS_MAX_INFLIGHT], err);
    if (status != TS_OK) return ts__error_context(err, "%s; going back", spike), status;
    if (r->rolled_to != r->step) r->rollbacks_here = 0; /* a newer one did not verify */
    r->rolled_to = r->step;
    r->rollbacks_here++;
    r->rollbacks++;
    r->data_ended = false;
    return TS_OK;
}

/* ---- verdicts -------------------------------------------------------------------------------- */

ts_status ts__run_judge(ts_run *r, const ts_flight *f, ts_error *err)
{
    const ts_step_info *info = &f->info;
    if (is_too_much(r, info)) return stop_nonfinite(r, info, err);
    if (info->skipped || !isfinite(info->loss) || !ts_spike_add(&r->spike, info->loss)) return TS_OK;
    return go_back(r, info, err);
}

bool ts__run_keeps(ts_run *r, const ts_flight *f)
{
    if (is_too_much(r, &f->info)) return false;
    return f->info.skipped || !isfinite(f->info.loss) || !ts_spike_add(&r->spike, f->info.loss);
}
