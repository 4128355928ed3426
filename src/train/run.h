/* train/run.h – the parts of a training run that its files share. */
#ifndef TS_RUN_H
#define TS_RUN_H

#include <pthread.h>
#include <stdatomic.h>

#include "data/prefetch.h"
#include "exec/engine.h"
#include "train/choose.h"
#include "train/config.h"
#include "train/program.h"
#include "train/saver.h"
#include "train/source.h"
#include "train/spike.h"
#include "train/state.h"
#include "train/watch.h"

/* ---- the train step of a configuration (build.c) ---- */

/* The configured model, or that of model_path. */
ts_status ts__read_model(const ts_config *c, ts_model_config *out, ts_error *err);
ts_program_options ts__program_options(const ts_config *c, const ts_model_config *model);
/* The train step's graph; INVALID_ARGUMENT where every parameter is frozen. */
ts_status ts__build_train(const ts_config *c, const ts_model_config *model, ts_graph **out,
                          ts_error *err);
/* Elements of the parameters that are trained. */
int64_t ts__trained_parameters(const ts_config *c, const ts_model_config *model, const ts_graph *g);

typedef struct ts_metrics ts_metrics;
typedef struct ts_profile ts_profile;

enum { TS_MAX_INFLIGHT = 2 }; /* more would hide no more of the host's work */

typedef struct ts_mixture ts_mixture;
/* One source's part of a step. */
typedef struct ts_mixed {
    const char *name;
    double loss;     /* Σ over its trained tokens; known once the step was awaited */
    int64_t weights; /* how many those are */
    int64_t rows;    /* of this source, so far in the run */
} ts_mixed;
/* One source's part of an evaluation. */
typedef struct ts_eval_sum {
    double loss, weights; /* Σ over its tokens; how many those are */
} ts_eval_sum;

/* A step that was dispatched and not yet awaited. Times are ts_clock_seconds(). */
typedef struct ts_flight {
    ts_step_info info;     /* what is known by then */
    uint64_t order_hash;   /* of the data's order, behind its batch */
    double requested, fed; /* its batch was asked for, and was there */
    double sent, dispatched; /* its inputs were on their way; it was dispatched */
    int64_t nonfinite, rollbacks; /* of the run so far, this step included */
    const ts_mixed *mixed; /* [n_mixed] by source; n_mixed 0 without a mixture */
    int n_mixed;
} ts_flight;

/* What the watch's thread may look at while the run is anywhere (stop.c). */
typedef struct ts_seen {
    _Atomic int64_t step, saved; /* as ts_run's, when something was begun last */
    const char *_Atomic idle;    /* what goes on where nothing has a limit */
    const char *run_folder;      /* of the configuration, as grace and limit */
    int64_t grace, limit;
    pthread_mutex_t lock;
    ts_saver *saver; /* under the lock; NULL before it is there, and once it is to be closed */
    bool watched;    /* the lock is there */
} ts_seen;

typedef struct ts_run {
    const ts_config *config; /* as it was loaded; `on_devices` once the engine is open */
    ts_config on_devices;    /* placed on the engine's devices */
    const ts_train_hooks *hooks;
    ts_engine *engine;
    ts_model_config model;
    ts_tokenizer *tokenizer;
    ts_loader *train_data;
    ts_prefetch *ahead;     /* reads train_data; all go through it */
    ts_loader **eval_data;  /* [n_eval], one a source; n_eval 0 where nothing is evaluated */
    int n_eval;
    ts_eval_sum *eval_sums; /* [n_eval] of the last evaluation */
    ts_mixture *mixture;    /* NULL where the data is not mixed */
    ts_graph *train_graph, *eval_graph; /* global */
    ts_placed train_placed, eval_placed;
    ts_state *state;
    ts_bound *train, *eval;
    struct ts_sampler *sampler; /* made at the first sample */
    ts_metrics *metrics;
    ts_saver *saver; /* NULL where no checkpoints are written */
    ts_watch *watch;
    ts_seen seen;
    ts_spike spike;
    ts_loader_state *behind[TS_MAX_INFLIGHT]; /* where the data stood behind the batch in flight; NULL: no rollbacks */
    int64_t rollbacks;      /* of the run so far */
    int64_t rolled_to;      /* the step that it went back to last; −1 never here */
    int64_t rollbacks_here; /* to that step, without a newer checkpoint since */
    int failed_saves; /* in a row */
    ts_error unsaved; /* why the newest failed, where failed_saves > 0 */
    struct ts_lock *lock; /* on <run_folder>/lock, from before anything there is read */
    bool lockless;        /* the file system has none */
    ts_batch eval_batch;  /* arrays of its own, [rows of an evaluation batch, S] */
    const int32_t *tokens;     /* of the batch dispatched last, until the next */
    ts_loader_state *position; /* room for one */
    bool packed;
    int64_t step;       /* steps done: awaited, and their results are known */
    int64_t dispatched; /* ≥ step; the data stands there. Equal wherever the state is read or saved */
    int depth;          /* of the pipeline: 1 where the engine is synchronous */
    ts_flight flight[TS_MAX_INFLIGHT]; /* [depth], a ring by step number */
    double last_done;   /* when the step awaited last had ended */
    bool data_ended;    /* no batch for step number `dispatched` */
    ts_profile *profile; /* NULL where nothing is profiled */
    int64_t nonfinite, nonfinite_all; /* skipped: in a row; in the run so far */
    double tflops;
    double loss, eval_loss;
    struct ts_checkpoint *newest; /* of this run, until it is restored; NULL: there is none */
    bool finished;                /* newest holds the last step: nothing needs to be opened or compiled */
    bool started;       /* the state is there to be saved */
    bool stop;          /* the data ended, or the target was reached */
    bool interrupted;   /* the hook asked for a save and the end */
    bool strangers;     /* a sample had tokens without text: said once */
    bool save_wanted;   /* the hook asked for a save that waits for the evaluation of this step */
    int64_t evaluated;  /* steps done at the last evaluation; −1 none */
    int64_t saved_evaluation; /* the step that was saved, or loaded, with its evaluation last; −1 none */
    int64_t first_step; /* where this process began */
    int64_t saved_step; /* of the newest checkpoint written or loaded here, and durable; −1 none */
    bool saving;        /* a save was begun and has not been told of: of saving_step */
    int64_t saving_step;
    double waited;      /* seconds that it waited for the one before */
} ts_run;

void ts__run_line(const ts_run *r, const char *fmt, ...) TS_PRINTF(2, 3);

/* Everything up to the first step; and the end of it all. */
ts_status ts__run_prepare(ts_run *r, ts_error *err);
void ts__run_release(ts_run *r);

/* Checkpoints (save.c). Save: begins one of this step, with nothing in flight; does nothing where this step is saved,
 * or being saved, with what is known of it, or checkpoints are off. How it ends is told by ts__run_saved, which later
 * saves call too. */
ts_status ts__run_save(ts_run *r, ts_error *err);
/* Tells of saves that ended since, without waiting; to be called between steps. A failed one is a warning, and the
 * error where it was the start's or the third in a row. last: waits for what is being written, and its failure is the
 * error; the end of a run, whatever ended it, calls this before it says which checkpoint is the newest. */
ts_status ts__run_saved(ts_run *r, bool last, ts_error *err);
/* This step, with its evaluation where that is known: durable, or being written. */
bool ts__run_is_saved(const ts_run *r);

/* Where a run begins (start.c). Opens the newest checkpoint of this run's name; needs no engine, so that a run which is
 * over costs none. */
ts_status ts__run_find(ts_run *r, ts_error *err);
/* By the start rule: the newest checkpoint of this run, else the configured weights, else initial values. Opens the
 * saver, too. */
ts_status ts__run_start(ts_run *r, ts_error *err);
/* Back to the newest checkpoint that verifies, with nothing in flight: parameters, moments, step, what spikes are
 * measured by. The data stays where it stands. NOT_FOUND: there is none. A failure leaves no usable state. */
ts_status ts__run_restore_newest(ts_run *r, ts_error *err);

/* Stopping (stop.c). Obey: what the hook asks for, a save, and r->interrupted; what is in flight is finished before. A
 * save that is no stop waits for the evaluation of its step, because a checkpoint is not always replaced. A stop whose
 * grace has no room for another save keeps the one that is being written. */
ts_status ts__run_obey(ts_run *r, ts_error *err);
/* The watch, where there is a hook for what it finds: from before anything is read until all is closed. */
ts_status ts__run_watch(ts_run *r, ts_error *err);
void ts__run_unwatch(ts_run *r);
void ts__run_watch_saver(ts_run *r, ts_saver *saver); /* NULL before it is closed */
/* Something begins that must end within step_timeout_s; number −1: it has none. ts_watch_idle(r->watch) ends it. */
void ts__run_begin(ts_run *r, const char *what, int64_t number);
/* The same end, where what goes on then is not the start and no output. what: for as long as the run. */
void ts__run_idle(ts_run *r, const char *what);

/* One step (step.c). Dispatch: its batch, its inputs, its execution; or r->data_ended. Finish: the oldest in
 * flight is awaited, told and judged. Drain: all of them. */
ts_status ts__run_dispatch(ts_run *r, ts_error *err);
ts_status ts__run_finish(ts_run *r, ts_error *err);
ts_status ts__run_drain(ts_run *r, ts_error *err);
/* Policies (judge.c). Open: before the data is read ahead. Judge: a step that was told, and the newest one done; may
 * go back to a checkpoint, with nothing in flight then. Keeps: the same verdict with nothing done about it; false: the
 * state is not to be saved. */
ts_status ts__judge_open(ts_run *r, ts_error *err);
void ts__judge_close(ts_run *r);
ts_status ts__run_judge(ts_run *r, const ts_flight *f, ts_error *err);
bool ts__run_keeps(ts_run *r, const ts_flight *f);
/* Saves what was trained, if it can be, after a failure that left the state whole; returns status. */
ts_status ts__run_save_and_fail(ts_run *r, ts_status status);
/* A batch [rows] into the inputs of the next execution. */
ts_status ts__run_upload(const ts_run *r, const ts_batch *b, int64_t rows, ts_bound *to,
                         ts_error *err);

/* The profile of some steps (profile.c); all do nothing where r->profile is NULL. Open: refuses what cannot work.
 * Due: it begins or ends before this step. Between: steps, with nothing in flight; last: the run ends here. */
ts_status ts__profile_open(ts_run *r, ts_error *err);
bool ts__profile_is_due(const ts_run *r, int64_t step);
void ts__profile_between(ts_run *r, bool last);
void ts__profile_dispatch(ts_run *r); /* before a step is dispatched */
void ts__profile_finish(ts_run *r, const ts_flight *f);
void ts__profile_close(ts_run *r);

/* A number for people: -nan says no more than nan. */
double ts__run_plain(double v);

/* Evaluation over the held-out split (evaluate.c). Open: the loaders and the batch; nothing where nothing is evaluated.
 * The name of a source is "" where there is one. */
ts_status ts__eval_open(ts_run *r, ts_error *err);
void ts__eval_close(ts_run *r);
/* Is an evaluation of this very step due, and not known? */
bool ts__eval_is_due(const ts_run *r);
ts_status ts__run_evaluate(ts_run *r, ts_error *err);
const char *ts__eval_name(const ts_run *r, int i);
double ts__eval_mean(const ts_eval_sum *s); /* NaN of nothing */

/* The sources of a mixture (mixture.c); feed and take do nothing without one. Open: says what they are. Feed: the batch
 * of a step that is dispatched. Take: its losses, once it was awaited. */
ts_status ts__mixture_open(ts_run *r, ts_error *err);
void ts__mixture_close(ts_mixture *m); /* NULL is fine */
void ts__mixture_feed(const ts_run *r, ts_flight *f, const ts_batch *b);
ts_status ts__mixture_take(const ts_run *r, ts_flight *f, ts_error *err);
void ts__say_data_ended(const ts_run *r);

/* Shows a text sample of the model as it is; fails only where a save does that the hook asked for (sample.c). */
ts_status ts__run_sample(ts_run *r, ts_error *err);

/* metrics.jsonl (metrics.c): opened for appending, one flushed line a step. */
ts_status ts__metrics_open(const ts_config *c, ts_metrics **out, ts_error *err);
ts_status ts__metrics_step(ts_metrics *m, const ts_flight *f, const ts_config *c, ts_error *err);
/* Of r->eval_loss and r->eval_sums. */
ts_status ts__metrics_eval(ts_metrics *m, const ts_run *r, double weights, double seconds,
                           ts_error *err);
void ts__metrics_close(ts_metrics *m);

/* rope tables of S positions into the bound inputs. */
ts_status ts__set_rope(ts_bound *b, const ts_model_config *m, int64_t S, ts_error *err);

#endif
