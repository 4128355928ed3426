/* train/train.c – the loop: batch → step → metrics → maybe evaluation → maybe checkpoint.
 *
 * Steps are dispatched ahead as far as the engine allows (step.c), but never past one after which something reads
 * the state: an evaluation, a sample, a checkpoint, the last step. So nothing is in flight where the state is read,
 * and the data stands where the state does. What the hook asks for in between is done once the pipeline is empty
 * (stop.c). A step may lead back to a checkpoint (judge.c): the number of steps done falls then.
 */
#include <math.h>
#include <stdio.h>

#include "base/log.h"
#include "train/run.h"

void ts_train_hooks_default(ts_train_hooks *h)
{
    *h = (ts_train_hooks){.struct_size = sizeof *h};
}

/* ---- the loop -------------------------------------------------------------------------------- */

/* Does something read the state once n steps are done? */
static bool is_due(const ts_run *r, int64_t n)
{
    const ts_config *c = r->config;
    return n >= c->steps || (r->n_eval > 0 && n % c->eval_interval == 0) ||
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
    ts__say_data_ended(r);
    r->stop = true;
    return TS_OK;
}

static ts_status after_step(ts_run *r, ts_error *err)
{
    const ts_config *c = r->config;
    bool whole = r->dispatched == r->step;
    ts_status status = TS_OK;
    TS_ASSERT(whole || !is_due(r, r->step));
    if (whole && ts__eval_is_due(r)) status = ts__run_evaluate(r, err);
    if (status == TS_OK && c->sample_interval > 0 && r->step % c->sample_interval == 0 &&
        !r->interrupted)
        status = ts__run_sample(r, err);
    if (status != TS_OK) return ts__run_save_and_fail(r, status);
    if (!r->interrupted) TS_TRY(ts__run_obey(r, err));
    if (r->interrupted) return TS_OK; /* it saved where it could */
    bool due = r->dispatched == r->step && r->step % c->checkpoint_period == 0;
    return due ? ts__run_save(r, err) : TS_OK;
}

/* Obeying may have finished another step, after which something is due too, or gone back to a checkpoint, where
 * nothing is due again. */
static ts_status after_steps(ts_run *r, ts_error *err)
{
    int64_t before;
    do {
        before = r->step;
        TS_TRY(after_step(r, err));
    } while (r->step > before && !r->interrupted);
    return TS_OK;
}

/* A stop in the middle of an evaluation saved its step without one: it comes before the next step then, as it would
 * have, and the checkpoint gets it. */
static ts_status evaluate_first(ts_run *r, bool *evaluated, ts_error *err)
{
    *evaluated = r->saved_step == r->step && r->step <= r->config->steps && ts__eval_is_due(r);
    if (!*evaluated) return TS_OK;
    TS_TRY(ts__run_evaluate(r, err));
    return r->interrupted ? TS_OK : ts__run_save(r, err);
}

static ts_status loop(ts_run *r, ts_error *err)
{
    const ts_config *c = r->config;
    bool evaluated;
    TS_TRY(evaluate_first(r, &evaluated, err));
    if (r->interrupted) return TS_OK;
    if (r->step >= c->steps) {
        if (evaluated) return TS_OK;
        ts__run_line(r, "run %s has already reached step %lld of %lld; nothing to do", c->run_name,
                     (long long)r->step, (long long)c->steps);
        return TS_OK;
    }
    if (c->save_checkpoint_on_start) TS_TRY(ts__run_save(r, err));
    TS_TRY(ts__run_obey(r, err));
    while (r->step < c->steps && !r->stop && !r->interrupted) {
        int64_t before = r->step;
        TS_TRY(one_step(r, err));
        if (r->step > before || r->stop) TS_TRY(after_steps(r, err));
    }
    ts__profile_between(r, true);
    return c->save_checkpoint_on_completion && !r->interrupted ? ts__run_save(r, err) : TS_OK;
}

/* What is being written is waited for, however the run ended; its failure is another one where there is one already. */
static ts_status end_saving(ts_run *r, ts_status status, ts_error *err)
{
    ts_error why = {0};
    const ts_status saved = ts__run_saved(r, true, &why);
    if (saved == TS_OK) return status;
    if (status == TS_OK) return TS_ERROR(err, saved, "%s", why.msg);
    ts_log(TS_LOG_WARNING, "%s", why.msg);
    return status;
}

static ts_status run(ts_run *r, ts_error *err)
{
    TS_TRY(ts__run_watch(r, err));
    ts_status status = ts__run_prepare(r, err);
    ts__run_watch_saver(r, r->saver);
    if (status == TS_OK && !r->interrupted) status = loop(r, err);
    return end_saving(r, status, err);
}

ts_status ts_train(const ts_config *c, const ts_train_hooks *hooks, ts_train_result *result,
                   ts_error *err)
{
    ts_train_hooks known = {0};
    memcpy(&known, hooks, hooks->struct_size < sizeof known ? hooks->struct_size : sizeof known);
    ts_run r = {.config = c,
                .hooks = &known,
                .loss = NAN,
                .eval_loss = NAN,
                .saved_step = -1,
                .rolled_to = -1,
                .evaluated = -1,
                .saved_evaluation = -1};
    ts_status status = run(&r, err);
    *result = (ts_train_result){r.step, r.loss, r.eval_loss, r.interrupted, r.saved_step};
    ts__run_watch_saver(&r, NULL);
    ts__run_begin(&r, "the end of the run", -1);
    ts__run_release(&r);
    ts__run_unwatch(&r);
    return status;
}
