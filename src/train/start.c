/* train/start.c – where a run begins, and where it goes back to.
 *
 * The start rule: the newest checkpoint of this run's name that verifies, else the state or the weights that the
 * configuration names, else initial values. Weights are taken only where the model they were trained as is this run's
 * model. Devices, mesh, engine, stacking of layers, remat and micro-batches may be others than those that saved: what
 * then differs in the bits is said in a line. Everything reaches the devices by uploads, as initial values do, so a
 * state may be replaced in the middle of a run as well as at its start.
 *
 * Not here: what a checkpoint holds and when it is written (save.c).
 */
#include <math.h>
#include <stdio.h>

#include "base/file.h"
#include "train/save.h"

/* ---- the same model -------------------------------------------------------------------------- */

/* What a description calls a thing, the configuration calls so. */
static const char *key_of(const char *name)
{
    static const char *const keys[][2] = {
        {"vocab", "vocab_size"},
        {"hidden", "base_emb_dim"},
        {"ffn", "base_mlp_dim"},
        {"layers", "base_num_decoder_layers"},
        {"heads", "base_num_query_heads"},
        {"kv_heads", "base_num_kv_heads"},
        {"tied", "logits_via_embedding"},
        {"norm_eps", "normalization_layer_epsilon"},
        {"rope", "rope_type"},
        {"rope_theta", "rope_max_timescale"},
        {"rope_factor", "rope_scaling_factor"},
        {"rope_low", "rope_low_freq_factor"},
        {"rope_high", "rope_high_freq_factor"},
        {"rope_original", "rope_original_max_position"},
    };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (!strcmp(keys[i][0], name)) return keys[i][1];
    return name;
}

static bool is_default_rope(const json_t *model)
{
    const char *rope = json_string_value(json_object_get(model, "rope"));
    return rope && strcmp(rope, "default") == 0;
}

/* A size that differs would not fit; another theta, epsilon or head would fit and be wrong. The factors
 * of a scaling matter only where frequencies are scaled. where: "checkpoint" and the like. */
static ts_status same_model(const ts_run *r, const json_t *was, const char *where, ts_error *err)
{
    static const char *const free_to_change[] = {"max_positions", "tokenizer_type", "bos_id",
                                                 "eos_id", "pad_id"};
    static const char *const scaling[] = {"rope_factor", "rope_low", "rope_high", "rope_original"};
    json_t *now = ts_source_describe(&r->model, r->tokenizer), *value;
    bool unscaled = is_default_rope(now) && is_default_rope(was);
    const char *key;
    ts_status status = now ? TS_OK : TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out");
    json_object_foreach(now, key, value)
    {
        json_t *before = json_object_get(was, key);
        bool matters = true;
        for (size_t i = 0; i < sizeof free_to_change / sizeof *free_to_change; i++)
            matters &= strcmp(key, free_to_change[i]) != 0;
        for (size_t i = 0; unscaled && i < sizeof scaling / sizeof *scaling; i++)
            matters &= strcmp(key, scaling[i]) != 0;
        if (!matters || status != TS_OK || json_equal(before, value)) continue;
        char *a = before ? ts_json_dump(before, JSON_REAL_PRECISION(12)) : NULL;
        char *b = ts_json_dump(value, JSON_REAL_PRECISION(12));
        status =
            TS_ERROR(err, TS_FAILED_PRECONDITION,
                     "the model of the %s has %s=%s, the one of this configuration %s (key %s)",
                     where, key, a ? a : "nothing", b ? b : "another", key_of(key));
        ts_free(a);
        ts_free(b);
    }
    json_decref(now);
    return status;
}

/* ---- restoring ------------------------------------------------------------------------------- */

/* A run whose last evaluation reached the target it is started with again has nothing left to do. */
static void take_evaluation(ts_run *r, const json_t *evaluation)
{
    const json_t *loss = json_object_get(evaluation, "loss");
    const char *extent = json_string_value(json_object_get(evaluation, "extent"));
    double target = r->config->target_eval_loss;
    char now[TS__EVAL_EXTENT];
    if (r->n_eval == 0 || !extent || strcmp(extent, ts__eval_extent(r, now)) != 0) return;
    r->evaluated = r->saved_evaluation = r->step;
    r->eval_loss = json_is_real(loss) ? json_real_value(loss) : (double)NAN;
    if (!(target > 0) || !(r->eval_loss <= target) || r->step >= r->config->steps) return;
    r->stop = true;
    ts__run_line(r, "run %s has reached target_eval_loss=%g at step %lld (%g); nothing to do",
                 r->config->run_name, target, (long long)r->step, r->eval_loss);
}

/* A count of steps or rollbacks; 0 where the checkpoint does not have it. What is far beyond any run is refused before
 * it is counted on. */
static ts_status take_count(const ts_checkpoint *c, const char *key, int64_t *out, ts_error *err)
{
    const int64_t most = (int64_t)1 << 53;
    const json_t *v = json_object_get(ts_checkpoint_state(c), key);
    *out = json_integer_value(v);
    if (!v || (json_is_integer(v) && *out >= 0 && *out <= most)) return TS_OK;
    char *text = ts_json_dump(v, JSON_ENCODE_ANY);
    TS_ERROR(err, TS_DATA_LOSS, "%s: \"%s\" of its state is %.80s, not a count from 0 to %lld",
             ts_checkpoint_path(c), key, text ? text : "something else", (long long)most);
    ts_free(text);
    return TS_DATA_LOSS;
}

/* Parameters, moments, step, and what is judged by the steps before it. */
static ts_status restore_model(ts_run *r, ts_checkpoint *c, ts_error *err)
{
    const json_t *state = ts_checkpoint_state(c);
    const json_t *spikes = json_object_get(state, "spikes");
    int64_t nonfinite, nonfinite_all, rollbacks;
    TS_TRY(take_count(c, "nonfinite_steps", &nonfinite, err));
    TS_TRY(take_count(c, "nonfinite_steps_in_all", &nonfinite_all, err));
    TS_TRY(take_count(c, "rollbacks", &rollbacks, err));
    TS_TRY(same_model(r, json_object_get(state, "model"), "checkpoint", err));
    TS_TRY(ts_state_load(r->state, ts_checkpoint_tensors(c), err));
    TS_TRY(ts_state_load_moments(r->state, ts_checkpoint_tensors(c), err));
    if (spikes) TS_TRY(ts_spike_from_json(&r->spike, spikes, err));
    r->step = ts_checkpoint_step(c);
    r->nonfinite = nonfinite;
    if (r->saver) ts_saver_restored(r->saver, ts_checkpoint_path(c));
    return TS_OK;
}

/* fits NULL: other data, or another order, is an error. */
static ts_status take_position(ts_run *r, ts_checkpoint *c, bool *fits, ts_error *err)
{
    const json_t *data = json_object_get(ts_checkpoint_state(c), "data");
    ts_loader_state *position = NULL;
    TS_TRY(ts_loader_state_from_json(data, &position, err));
    const uint64_t here = ts_loader_fingerprint(ts_prefetch_loader(r->ahead));
    const bool same = ts_loader_state_fingerprint(position) == here;
    ts_status status = !fits || same ? ts_prefetch_set_state(r->ahead, position, err) : TS_OK;
    if (fits) *fits = same;
    ts_loader_state_free(position);
    return status;
}

static ts_status name_run(const ts_run *r, ts_status status, ts_error *err)
{
    if (status != TS_OK)
        ts__error_context(err, "continuing run %s from %s (another run_name starts afresh)",
                          r->config->run_name, ts_checkpoint_path(r->newest));
    return status;
}

/* A stop in the middle of the last evaluation saves the last step without one. */
static bool lacks_evaluation(const ts_run *r)
{
    return r->config->eval_interval > 0 && ts_checkpoint_step(r->newest) == r->config->steps &&
           !json_object_get(ts_checkpoint_state(r->newest), "evaluation");
}

ts_status ts__run_find(ts_run *r, ts_error *err)
{
    char *folder = ts__save_folder(r);
    ts_error none = {0};
    if (!folder) return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out");
    ts_status status = r->config->enable_checkpointing
                           ? ts_checkpoint_open_newest(folder, &r->newest, &none)
                           : TS_NOT_FOUND;
    ts_free(folder);
    if (status == TS_NOT_FOUND) return TS_OK;
    if (status != TS_OK) return TS_ERROR(err, status, "%s", none.msg);
    if (ts_checkpoint_step(r->newest) < r->config->steps) return TS_OK;
    const json_t *was = json_object_get(ts_checkpoint_state(r->newest), "model");
    TS_TRY(name_run(r, same_model(r, was, "checkpoint", err), err));
    if (lacks_evaluation(r)) return TS_OK;
    r->step = r->saved_step = ts_checkpoint_step(r->newest);
    r->finished = true;
    return TS_OK;
}

ts_status ts__run_restore_newest(ts_run *r, ts_error *err)
{
    ts_checkpoint *c = NULL;
    TS_ASSERT(r->dispatched == r->step && r->started);
    TS_TRY(ts__save_wait(r, err));
    char *folder = ts__save_folder(r);
    ts_status status = folder ? ts_checkpoint_open_newest(folder, &c, err)
                              : TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out");
    ts_free(folder);
    if (status == TS_OK) status = restore_model(r, c, err);
    if (status == TS_OK) {
        r->dispatched = r->saved_step = r->step;
        if (r->evaluated > r->step) r->evaluated = -1;
        ts__run_line(r, "back to step %lld, from %s", (long long)r->step, ts_checkpoint_path(c));
    }
    ts_checkpoint_close(c);
    return status;
}

/* ---- starting -------------------------------------------------------------------------------- */

static ts_status continue_run(ts_run *r, ts_error *err)
{
    TS_TRY(name_run(r, restore_model(r, r->newest, err), err));
    ts_error why = {0};
    ts_status status = take_position(r, r->newest, NULL, &why);
    if (status == TS_FAILED_PRECONDITION)
        status = ts__other_data(r, r->newest, err);
    else if (status != TS_OK)
        TS_ERROR(err, status, "%s", why.msg);
    TS_TRY(name_run(r, status, err));
    const json_t *state = ts_checkpoint_state(r->newest);
    r->nonfinite_all = json_integer_value(json_object_get(state, "nonfinite_steps_in_all"));
    r->rollbacks = json_integer_value(json_object_get(state, "rollbacks"));
    r->saved_step = r->step;
    ts__run_line(r, "continuing run %s from %s", r->config->run_name,
                 ts_checkpoint_path(r->newest));
    if (!ts__say_changes(r, state)) ts__say_program(r, state);
    take_evaluation(r, json_object_get(state, "evaluation"));
    ts_checkpoint_close(r->newest);
    r->newest = NULL;
    return TS_OK;
}

/* Another run's state goes on with its data where this run has the same, in the same order. */
static ts_status load_full_state(ts_run *r, const char *path, ts_error *err)
{
    ts_checkpoint *c = NULL;
    bool fits = false;
    TS_TRY(ts_checkpoint_open(path, &c, err));
    ts_status status = restore_model(r, c, err);
    if (status == TS_OK) status = take_position(r, c, &fits, err);
    if (status == TS_OK) {
        ts__run_line(r, "weights, moments and step %lld from %s; %s", (long long)r->step, path,
                     fits ? "the data goes on where it was"
                          : "the data or its order is another, so it starts afresh");
        if (fits) ts__say_program(r, ts_checkpoint_state(c));
    } else {
        ts__error_context(err, "loading the state from %s", path);
    }
    ts_checkpoint_close(c);
    return status;
}

static ts_status load_weights(ts_run *r, const char *path, ts_error *err)
{
    ts_source s;
    TS_TRY(ts_source_open(path, &s, err));
    json_t *model = ts_source_describe(&s.model, s.tokenizer);
    ts_status status = model ? same_model(r, model, s.checkpoint ? "checkpoint" : "folder", err)
                             : TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out");
    json_decref(model);
    if (status == TS_OK) status = ts_state_load(r->state, s.tensors, err);
    if (status == TS_OK)
        ts__run_line(r, "weights from %s", path);
    else
        ts__error_context(err, "loading weights from %s", path);
    ts_source_close(&s);
    return status;
}

static ts_status open_saver(ts_run *r, ts_error *err)
{
    const ts_config *c = r->config;
    if (!c->enable_checkpointing) return TS_OK;
    const bool keep = c->max_num_checkpoints_to_keep > 0, best = c->num_best_checkpoints_to_keep > 0;
    char mesh[128], *folder = ts__save_folder(r);
    if (!folder) return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out");
    const ts_saver_options o = {
        .struct_size = sizeof o,
        .folder = folder,
        .devices = c->mesh.devices,
        .mesh = ts_mesh_text(&c->mesh, mesh, sizeof mesh),
        .asynchronous = c->async_checkpointing,
        .commit = !strcmp(c->checkpoint_commit, "rename")     ? TS_COMMIT_RENAME
                  : !strcmp(c->checkpoint_commit, "manifest") ? TS_COMMIT_MANIFEST
                                                              : TS_COMMIT_AUTO,
        .newest = keep ? (size_t)c->max_num_checkpoints_to_keep : 0,
        .best = best ? (size_t)c->num_best_checkpoints_to_keep : 0,
    };
    ts_status status = ts_saver_open(&o, r->state, &r->saver, err);
    ts_free(folder);
    return status;
}

static ts_status fill_state(ts_run *r, ts_error *err)
{
    const ts_config *c = r->config;
    if (r->newest) return continue_run(r, err);
    if (*c->load_full_state_path) return load_full_state(r, c->load_full_state_path, err);
    if (*c->load_parameters_path) return load_weights(r, c->load_parameters_path, err);
    if (*c->model_path) return load_weights(r, c->model_path, err);
    return ts_state_initialise(r->state, (uint64_t)c->init_weights_seed, err);
}

ts_status ts__run_start(ts_run *r, ts_error *err)
{
    TS_TRY(open_saver(r, err));
    TS_TRY(fill_state(r, err));
    r->first_step = r->step;
    return TS_OK;
}
