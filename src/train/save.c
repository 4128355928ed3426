/* train/save.c – checkpoints of a run: what is saved, and where a run begins.
 *
 * State beside the tensors: the model's description, the data loader's position, the last evaluation, the
 * configuration as text. The loss of a resumed run equals the unbroken run's because every number that the next
 * step reads is in here. Weights are taken only where the model they were trained as is this run's model.
 */

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "base/file.h"
#include "train/run.h"

/* ---- saving ---------------------------------------------------------------------------------- */

static char *checkpoint_folder(const ts_run *r)
{
    return ts_path_join(r->config->run_folder, "checkpoints");
}

static ts_status fill_entry(void *context, uint64_t first, size_t n, float *to, ts_error *err)
{
    return ts_state_read(context, first, n, to, err);
}

enum { EXTENT = 40 };

/* What an evaluation covers: the held-out data, and how many batches of it. */
static const char *eval_extent(const ts_run *r, char text[EXTENT])
{
    snprintf(text, EXTENT, "%016" PRIx64 "/%" PRId64, ts_loader_get_state(r->eval_data).fingerprint,
             r->config->eval_steps);
    return text;
}

/* The evaluation of exactly this step, and what it covered: a run that has reached its target
 * is known by it when it is started again. NULL when there was none; *bad when memory is out. */
static json_t *describe_evaluation(const ts_run *r, int *bad)
{
    char extent[EXTENT];
    if (!r->eval_data || r->evaluated != r->step || !isfinite(r->eval_loss)) return NULL;
    json_t *o = json_object();
    *bad |= json_object_set_new(o, "loss", json_real(r->eval_loss));
    *bad |= json_object_set_new(o, "extent", json_string(eval_extent(r, extent)));
    return o;
}

static ts_status describe(const ts_run *r, json_t **out, ts_error *err)
{
    ts_string text = ts_string_new(TS_CONFIG_TEXT_MAX);
    ts_loader_state position = ts_loader_get_state(r->train_data);
    json_t *o = json_object(), *loader = NULL;
    ts_status status = ts_loader_state_to_json(&position, &loader, err);
    ts_config_yaml(r->config, &text);
    int bad = !o || text.failed;
    if (status == TS_OK && !bad) {
        bad |= json_object_set_new(o, "model", ts_source_describe(&r->model, r->tokenizer));
        bad |= json_object_set(o, "data", loader);
        bad |= json_object_set_new(o, "config", json_stringn(text.data, text.length));
        bad |= json_object_set_new(o, "nonfinite_steps", json_integer(r->nonfinite));
        json_t *evaluation = describe_evaluation(r, &bad);
        if (evaluation) bad |= json_object_set_new(o, "evaluation", evaluation);
    }
    ts_string_free(&text);
    json_decref(loader);
    if (status == TS_OK && bad)
        status = TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out for the checkpoint's state");
    if (status == TS_OK)
        *out = o;
    else
        json_decref(o);
    return status;
}

ts_status ts__run_save(ts_run *r, ts_error *err)
{
    TS_ASSERT(r->dispatched == r->step); /* the state and the data's position are of one step */
    size_t n = ts_state_tensor_count(r->state);
    ts_state_tensor *t = ts_alloc((n + 1) * sizeof *t);
    ts_checkpoint_entry *e = ts_alloc_zero((n + 1) * sizeof *e);
    char *folder = checkpoint_folder(r);
    json_t *state = NULL;
    ts_status status = t && e && folder
                           ? TS_OK
                           : TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out for a checkpoint");
    double start = ts_clock_seconds();
    for (size_t i = 0; status == TS_OK && i < n; i++) {
        ts_state_tensor_at(r->state, i, &t[i]);
        e[i] = (ts_checkpoint_entry){
            .name = t[i].name, .rank = t[i].param->file_rank, .fill = fill_entry, .context = &t[i]};
        memcpy(e[i].dim, t[i].param->file_dim, sizeof t[i].param->file_dim);
    }
    if (status == TS_OK) status = ts_make_folders(folder, err);
    if (status == TS_OK) status = describe(r, &state, err);
    if (status == TS_OK) status = ts_checkpoint_save(folder, r->step, e, n, state, err);
    if (status == TS_OK) {
        r->saved_step = r->step;
        ts__run_line(r, "saved checkpoint %s/%lld (%.2f s)", folder, (long long)r->step,
                     ts_clock_seconds() - start);
        if (r->config->max_num_checkpoints_to_keep > 0)
            status = ts_checkpoint_keep(folder, r->step,
                                        (size_t)r->config->max_num_checkpoints_to_keep, err);
    }
    json_decref(state);
    ts_free(folder);
    ts_free(t);
    ts_free(e);
    return status;
}

/* ---- starting -------------------------------------------------------------------------------- */

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

/* A run whose last evaluation reached the target it is started with again has nothing left to do. */
static void take_evaluation(ts_run *r, const json_t *evaluation)
{
    const json_t *loss = json_object_get(evaluation, "loss");
    const char *extent = json_string_value(json_object_get(evaluation, "extent"));
    double target = r->config->target_eval_loss;
    char now[EXTENT];
    if (!r->eval_data || !json_is_real(loss) || !extent || strcmp(extent, eval_extent(r, now)))
        return;
    r->evaluated = r->step;
    r->eval_loss = json_real_value(loss);
    if (!(target > 0) || r->eval_loss > target || r->step >= r->config->steps) return;
    r->stop = true;
    ts__run_line(r, "run %s has reached target_eval_loss=%g at step %lld (%g); nothing to do",
                 r->config->run_name, target, (long long)r->step, r->eval_loss);
}

/* Parameters, moments and step. */
static ts_status restore_model(ts_run *r, ts_checkpoint *c, ts_error *err)
{
    const json_t *state = ts_checkpoint_state(c);
    TS_TRY(same_model(r, json_object_get(state, "model"), "checkpoint", err));
    TS_TRY(ts_state_load(r->state, ts_checkpoint_tensors(c), err));
    TS_TRY(ts_state_load_moments(r->state, ts_checkpoint_tensors(c), err));
    r->step = ts_checkpoint_step(c);
    r->nonfinite = json_integer_value(json_object_get(state, "nonfinite_steps"));
    return TS_OK;
}

static ts_status restore(ts_run *r, ts_checkpoint *c, ts_error *err)
{
    ts_loader_state position;
    TS_TRY(restore_model(r, c, err));
    const json_t *data = json_object_get(ts_checkpoint_state(c), "data");
    TS_TRY(ts_loader_state_from_json(data, &position, err));
    return ts_loader_set_state(r->train_data, &position, err);
}

static ts_status name_run(const ts_run *r, ts_status status, ts_error *err)
{
    if (status != TS_OK)
        ts__error_context(err, "continuing run %s from %s (another run_name starts afresh)",
                          r->config->run_name, ts_checkpoint_path(r->newest));
    return status;
}

ts_status ts__run_find(ts_run *r, ts_error *err)
{
    char *folder = checkpoint_folder(r);
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
    r->step = r->saved_step = ts_checkpoint_step(r->newest);
    r->finished = true;
    return TS_OK;
}

static ts_status continue_run(ts_run *r, ts_error *err)
{
    TS_TRY(name_run(r, restore(r, r->newest, err), err));
    r->saved_step = r->step;
    ts__run_line(r, "continuing run %s from %s", r->config->run_name,
                 ts_checkpoint_path(r->newest));
    take_evaluation(r, json_object_get(ts_checkpoint_state(r->newest), "evaluation"));
    ts_checkpoint_close(r->newest);
    r->newest = NULL;
    return TS_OK;
}

/* Another run's state goes on with its data where this run has the same, in the same order. */
static ts_status take_position(ts_run *r, ts_checkpoint *c, bool *fits, ts_error *err)
{
    const json_t *data = json_object_get(ts_checkpoint_state(c), "data");
    ts_loader_state position;
    TS_TRY(ts_loader_state_from_json(data, &position, err));
    *fits = position.fingerprint == ts_loader_get_state(r->train_data).fingerprint;
    return *fits ? ts_loader_set_state(r->train_data, &position, err) : TS_OK;
}

static ts_status load_full_state(ts_run *r, const char *path, ts_error *err)
{
    ts_checkpoint *c = NULL;
    bool fits = false;
    TS_TRY(ts_checkpoint_open(path, &c, err));
    ts_status status = restore_model(r, c, err);
    if (status == TS_OK) status = take_position(r, c, &fits, err);
    if (status == TS_OK)
        ts__run_line(r, "weights, moments and step %lld from %s; %s", (long long)r->step, path,
                     fits ? "the data goes on where it was"
                          : "the data or its order is another, so it starts afresh");
    else
        ts__error_context(err, "loading the state from %s", path);
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

ts_status ts__run_start(ts_run *r, ts_error *err)
{
    const ts_config *c = r->config;
    if (r->newest) return continue_run(r, err);
    if (*c->load_full_state_path) return load_full_state(r, c->load_full_state_path, err);
    if (*c->load_parameters_path) return load_weights(r, c->load_parameters_path, err);
    if (*c->model_path) return load_weights(r, c->model_path, err);
    return ts_state_initialise(r->state, (uint64_t)c->init_weights_seed, err);
}
