/* train/run.h – the parts of a training run that its files share. */
#ifndef TS_RUN_H
#define TS_RUN_H

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

/* A step that was dispatched and not yet awaited. Times are ts_clock_seconds(). */
typedef struct ts_flight {
    ts_step_info info;     /* what is known by then */
    uint64_t order_hash;   /* of the data's order, behind its batch */
    double requested, fed; /* its batch was asked for, and was there */
    double sent, dispatched; /* its inputs were on their way; it was dispatched */
} ts_flight;

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
    ts_graph *train_graph, *eval_graph; /* global */
    ts_placed train_placed, eval_placed;
    ts_state *state;
    ts_bound *train, *eval;
    struct ts_sampler *sampler; /* made at the first sample */
    ts_metrics *metrics;
    ts_saver *saver; /* NULL where no checkpoints are written */
    ts_watch *watch;
    ts_spike spike;
    int rollbacks;   /* to the newest checkpoint, without a newer one since */
    int failed_saves; /* in a row */
    struct ts_lock *lock; /* on <run_folder>/lock, from before anything there is read */
    bool lockless;        /* the file system has none */
    ts_batch eval_batch;  /* arrays of its own, [rows of an evaluation batch, S] */
    ts_loader_state *position; /* room for one */
    bool packed;
    int64_t step;       /* steps done: awaited, and their results are known */
    int64_t dispatched; /* ≥ step; the data stands there. Equal wherever the state is read or saved */
    int depth;          /* of the pipeline: 1 where the engine is synchronous */
    ts_flight flight[TS_MAX_INFLIGHT]; /* [depth], a ring by step number */
    double last_done;   /* when the step awaited last had ended */
    bool data_ended;    /* no batch for step number `dispatched` */
    ts_profile *profile; /* NULL where nothing is profiled */
    int64_t nonfinite; /* skipped in a row */
    double tflops;
    double loss, eval_loss;
    struct ts_checkpoint *newest; /* of this run, until it is restored; NULL: there is none */
    bool finished;                /* newest holds the last step: nothing needs to be opened or compiled */
    bool started;       /* the state is there to be saved */
    bool stop;          /* the data ended, or the target was reached */
    bool interrupted;   /* the hook asked for a save and the end */
    bool strangers;     /* a sample had tokens without text: said once */
    int64_t evaluated;  /* steps done at the last evaluation; −1 none */
    int64_t first_step; /* where this process began */
    int64_t saved_step; /* of the newest checkpoint written or loaded here, and durable; −1 none */
    bool saving;        /* a save was begun and has not been told of: of saving_step */
    int64_t saving_step;
} ts_run;

void ts__run_line(const ts_run *r, const char *fmt, ...) TS_PRINTF(2, 3);

/* Everything up to the first step; and the end of it all. */
ts_status ts__run_prepare(ts_run *r, ts_error *err);
void ts__run_release(ts_run *r);

/* Checkpoints (save.c). Save: begins one of this step, with nothing in flight; does nothing where this step is saved,
 * or being saved, or checkpoints are off. How it ends is told by ts__run_saved, which later saves call too. */
ts_status ts__run_save(ts_run *r, ts_error *err);
/* Tells of saves that ended since, without waiting; to be called between steps. A failed one is a warning, and the
 * error where it was the start's or the third in a row. last: waits for what is being written, and its failure is the
 * error; the end of a run, whatever ended it, calls this before it says which checkpoint is the newest. */
ts_status ts__run_saved(ts_run *r, bool last, ts_error *err);
bool ts__run_is_saved(const ts_run *r); /* this step: durable, or being written */

/* Where a run begins (start.c). Opens the newest checkpoint of this run's name; needs no engine, so that a run which is
 * over costs none. */
ts_status ts__run_find(ts_run *r, ts_error *err);
/* By the start rule: the newest checkpoint of this run, else the configured weights, else initial values. Opens the
 * saver, too. */
ts_status ts__run_start(ts_run *r, ts_error *err);
/* Back to the newest checkpoint that verifies, with nothing in flight: parameters, moments, step, what spikes are
 * measured by. The data stays where it stands. NOT_FOUND: there is none. A failure leaves no usable state. */
ts_status ts__run_restore_newest(ts_run *r, ts_error *err);

/* What the hook asks for: a save now, and r->interrupted. What is in flight is finished before. */
ts_status ts__run_obey(ts_run *r, ts_error *err);

/* One step (step.c). Dispatch: its batch, its inputs, its execution; or r->data_ended. Finish: the oldest in
 * flight is awaited, told and judged. Drain: all of them. */
ts_status ts__run_dispatch(ts_run *r, ts_error *err);
ts_status ts__run_finish(ts_run *r, ts_error *err);
ts_status ts__run_drain(ts_run *r, ts_error *err);
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

/* Evaluation over the held-out split. */
ts_status ts__run_evaluate(ts_run *r, ts_error *err);

/* Shows a text sample of the model as it is; fails only where a save does that the hook asked for (sample.c). */
ts_status ts__run_sample(ts_run *r, ts_error *err);

/* metrics.jsonl (metrics.c): opened for appending, one flushed line a step. */
ts_status ts__metrics_open(const ts_config *c, ts_metrics **out, ts_error *err);
ts_status ts__metrics_step(ts_metrics *m, const ts_flight *f, const ts_config *c, ts_error *err);
ts_status ts__metrics_eval(ts_metrics *m, int64_t step, double loss, double weights, double seconds,
                           ts_error *err);
void ts__metrics_close(ts_metrics *m);

/* rope tables of S positions into the bound inputs. */
ts_status ts__set_rope(ts_bound *b, const ts_model_config *m, int64_t S, ts_error *err);

#endif
