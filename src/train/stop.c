/* train/stop.c – stopping before the last step: what the hook asks for, and a watch on what does not end.
 *
 * A signal of the platform is one of the hook's answers and has a time: from then on preemption_grace_s count. The
 * step in flight ends, the state is saved, the run is over. Where that does not end in time, or where anything begun
 * does not end within step_timeout_s, the watch's thread tells the hook what is stuck and where the newest checkpoint
 * is. What is half written by then is no checkpoint and never looks like one, so the process may be ended at any
 * moment.
 *
 * The watch's thread reads what ts_seen holds and the configuration as it was loaded, nothing else of the run.
 * Not here: signals and exit codes (cli/signals.c), the thread itself (watch.c).
 */
#include <math.h>
#include <stdio.h>
#include <time.h>

#include "base/log.h"
#include "train/save.h"

enum { SAVE_SECONDS = 30 }; /* that a save has to end when something else is stuck */

/* ---- the deadline ---------------------------------------------------------------------------- */

/* When all must be over; 0: nobody has asked for an end that has one. The margin is for the end of the process. */
static double deadline(void *context)
{
    const ts_run *r = context;
    const double asked = r->hooks->ending ? r->hooks->ending(r->hooks->context) : -1;
    const double grace = (double)r->seen.grace, margin = grace < 10 ? 0.1 * grace : 1;
    return asked >= 0 ? ts_clock_seconds() - asked + grace - margin : 0;
}

/* ---- what is stuck, in the watch's thread ------------------------------------------------------ */

/* A save beside the training is worth waiting for, unless it is what does not end, or a deadline that is asked for
 * meanwhile comes first: true. */
static bool let_save_end(ts_run *r)
{
    const struct timespec moment = {.tv_nsec = 50000000};
    const double until = ts_clock_seconds() + SAVE_SECONDS;
    while (r->seen.saver && ts_saver_is_busy(r->seen.saver)) {
        const double now = ts_clock_seconds(), end = deadline(r);
        if (end > 0 && now >= end) return true;
        if (now >= until) break;
        nanosleep(&moment, NULL);
    }
    return false;
}

static void describe_kept(const ts_run *r, int64_t steps, int64_t saved, char *buf, size_t n)
{
    const long long lost = (long long)(steps - saved);
    if (saved < 0)
        snprintf(buf, n, "there is no checkpoint%s", steps > 0 ? ", and all steps are lost" : "");
    else
        snprintf(buf, n, "the newest checkpoint is %s/checkpoints/%lld, %lld step%s back, and the same command "
                 "goes on from there", r->seen.run_folder, (long long)saved, lost, lost == 1 ? "" : "s");
}

static void describe(const ts_run *r, const char *what, double seconds, bool late, const char *kept,
                     char *buf, size_t n)
{
    const bool data = strncmp(what, "the data", 8) == 0, save = strncmp(what, "the save", 8) == 0;
    if (late)
        snprintf(buf, n,
                 "the %lld s of preemption_grace_s are over, and %s has not ended; %s; raise "
                 "preemption_grace_s, or checkpoint more often (checkpoint_period)",
                 (long long)r->seen.grace, *what ? what : r->seen.idle, kept);
    else
        snprintf(buf, n,
                 "%s has not ended for %.0f s (step_timeout_s=%lld); %s; %s, and a larger "
                 "step_timeout_s waits longer",
                 what, seconds, (long long)r->seen.limit, kept,
                 data   ? "see whether the storage of the data answers"
                 : save ? "see whether the storage of the run's folder answers"
                        : "see whether the devices and their driver answer");
}

static void stuck(void *context, const char *what, double seconds, bool late)
{
    ts_run *r = context;
    char kept[1400], text[2000];
    pthread_mutex_lock(&r->seen.lock);
    if (!late && strncmp(what, "the save", 8) != 0) late = let_save_end(r);
    ts_stuck s = {.text = text, .deadline = late, .steps = r->seen.step, .saved_step = r->seen.saved};
    const int64_t durable = r->seen.saver ? ts_saver_durable(r->seen.saver) : -1;
    if (durable > s.saved_step) s.saved_step = durable;
    describe_kept(r, s.steps, s.saved_step, kept, sizeof kept);
    describe(r, what, seconds, late, kept, text, sizeof text);
    r->hooks->stuck(r->hooks->context, &s);
    pthread_mutex_unlock(&r->seen.lock);
}

/* ---- watching -------------------------------------------------------------------------------- */

static void note(ts_run *r)
{
    r->seen.step = r->step;
    r->seen.saved = r->saved_step;
    if (r->started) r->seen.idle = "writing the output";
}

ts_status ts__run_watch(ts_run *r, ts_error *err)
{
    const ts_config *c = r->config;
    r->seen.run_folder = c->run_folder;
    r->seen.grace = c->preemption_grace_s;
    r->seen.limit = c->step_timeout_s;
    r->seen.idle = "the start";
    note(r);
    pthread_mutex_init(&r->seen.lock, NULL);
    r->seen.watched = true;
    return ts_watch_open((double)c->step_timeout_s, r->hooks->stuck ? stuck : NULL,
                         r->hooks->ending ? deadline : NULL, r, &r->watch, err);
}

void ts__run_watch_saver(ts_run *r, ts_saver *saver)
{
    if (!r->seen.watched) return;
    pthread_mutex_lock(&r->seen.lock);
    r->seen.saver = saver;
    pthread_mutex_unlock(&r->seen.lock);
}

void ts__run_unwatch(ts_run *r)
{
    ts_watch_close(r->watch);
    r->watch = NULL;
    if (r->seen.watched) pthread_mutex_destroy(&r->seen.lock);
    r->seen.watched = false;
}

void ts__run_begin(ts_run *r, const char *what, int64_t number)
{
    note(r);
    ts_watch_begin(r->watch, what, number);
}

void ts__run_idle(ts_run *r, const char *what)
{
    r->seen.idle = what;
    ts_watch_idle(r->watch);
}

/* ---- what the hook asks for ------------------------------------------------------------------- */

/* The one that is being written is waited for in any case: another one would wait for it, too. */
static ts_status has_room(ts_run *r, bool *room, ts_error *err)
{
    const double end = deadline(r);
    *room = true;
    if (!(end > 0) || !r->saving) return TS_OK;
    TS_TRY(ts__save_wait(r, err));
    const double left = end - ts_clock_seconds(), takes = ts_saver_estimate(r->saver);
    *room = r->saved_step < 0 || takes <= left;
    if (*room) return TS_OK;
    const long long lost = (long long)(r->step - r->saved_step);
    ts_log(TS_LOG_WARNING,
           "saved step %lld; the %lld step%s since then are lost, because a save takes about %.1f s and "
           "%.1f s were left: raise preemption_grace_s, or checkpoint more often (checkpoint_period)",
           (long long)r->saved_step, lost, lost == 1 ? "" : "s", takes, left > 0 ? left : 0);
    return TS_OK;
}

/* Between steps the state is whole: a save is possible then, in the middle of an evaluation or a sample too.
 * One that is no stop is put off until the evaluation of its step is known. Before there is a state nothing is
 * saved. */
ts_status ts__run_obey(ts_run *r, ts_error *err)
{
    bool room = true;
    ts_interrupt what = r->hooks->interrupt ? r->hooks->interrupt(r->hooks->context) : TS_CONTINUE;
    if (what == TS_CONTINUE && !r->save_wanted) return ts__run_saved(r, false, err);
    TS_TRY(ts__run_drain(r, err));
    r->interrupted |= what == TS_SAVE_AND_STOP;
    r->save_wanted = false;
    if (!r->started || ts__run_is_saved(r)) return TS_OK;
    r->save_wanted = !r->interrupted && ts__eval_is_due(r);
    if (r->save_wanted) return ts__run_saved(r, false, err);
    if (r->interrupted) TS_TRY(has_room(r, &room, err));
    return room ? ts__run_save(r, err) : TS_OK;
}
