/* train/save.c – checkpoints of a run: what is saved, and where a run begins.
 *
 * State beside the tensors: the model's description, the data loader's position, the configuration as text. The
 * loss of a resumed run equals the unbroken run's because every number that the next step reads is in here.
 */

#include "base/file.h"
#include "train/run.h"

/* ---- saving ---------------------------------------------------------------------------------- */

static char *checkpoint_folder(const ts_run *r)
{
    return ts_path_join(r->config->run_folder, "checkpoints");
}

static ts_status fill_entry(void *context, uint64_t first, size_t n, float *to, ts_error *err)
{
    const ts_state_tensor *t = context;
    return ts_download(t->buffer, to, t->offset + first * sizeof(float), n * sizeof(float), err);
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

/* A run continues with the model it began with: a size would not fit, and another epsilon or theta
 * would fit and be wrong. */
static ts_status same_model(const ts_run *r, const json_t *was, ts_error *err)
{
    static const char *const free_to_change[] = {"max_positions", "tokenizer_type", "bos_id",
                                                 "eos_id", "pad_id"};
    json_t *now = ts_source_describe(&r->model, r->tokenizer), *value;
    const char *key;
    ts_status status = now ? TS_OK : TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out");
    json_object_foreach(now, key, value)
    {
        json_t *before = json_object_get(was, key);
        bool matters = true;
        for (size_t i = 0; i < sizeof free_to_change / sizeof *free_to_change; i++)
            matters &= strcmp(key, free_to_change[i]) != 0;
        if (!matters || status != TS_OK || json_equal(before, value)) continue;
        char *a = before ? ts_json_dump(before, 0) : NULL;
        char *b = ts_json_dump(value, 0);
        status = TS_ERROR(err, TS_FAILED_PRECONDITION,
                          "the model of the checkpoint has %s=%s, the one of this configuration %s",
                          key, a ? a : "nothing", b ? b : "another");
        ts_free(a);
        ts_free(b);
    }
    json_decref(now);
    return status;
}

/* Parameters, moments, step and data position. */
static ts_status restore(ts_run *r, ts_checkpoint *c, ts_error *err)
{
    const json_t *state = ts_checkpoint_state(c);
    ts_loader_state position;
    TS_TRY(same_model(r, json_object_get(state, "model"), err));
    TS_TRY(ts_state_load(r->state, ts_checkpoint_tensors(c), err));
    TS_TRY(ts_state_load_moments(r->state, ts_checkpoint_tensors(c), err));
    TS_TRY(ts_loader_state_from_json(json_object_get(state, "data"), &position, err));
    TS_TRY(ts_loader_set_state(r->train_data, &position, err));
    r->step = ts_checkpoint_step(c);
    r->nonfinite = json_integer_value(json_object_get(state, "nonfinite_steps"));
    return TS_OK;
}

static ts_status continue_run(ts_run *r, bool *found, ts_error *err)
{
    char *folder = checkpoint_folder(r);
    ts_checkpoint *c = NULL;
    ts_error none = {0};
    if (!folder) return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out");
    ts_status status = ts_checkpoint_open_newest(folder, &c, &none);
    *found = status == TS_OK;
    if (status == TS_NOT_FOUND)
        status = TS_OK;
    else if (status != TS_OK && err)
        *err = none;
    if (*found) {
        status = restore(r, c, err);
        if (status != TS_OK)
            ts__error_context(err, "continuing run %s from %s (another run_name starts afresh)",
                              r->config->run_name, ts_checkpoint_path(c));
        else {
            r->saved_step = r->step;
            ts__run_line(r, "continuing run %s from %s", r->config->run_name,
                         ts_checkpoint_path(c));
        }
    }
    ts_checkpoint_close(c);
    ts_free(folder);
    return status;
}

static ts_status load_full_state(ts_run *r, const char *path, ts_error *err)
{
    ts_checkpoint *c = NULL;
    TS_TRY(ts_checkpoint_open(path, &c, err));
    ts_status status = ts_state_load(r->state, ts_checkpoint_tensors(c), err);
    if (status == TS_OK) status = ts_state_load_moments(r->state, ts_checkpoint_tensors(c), err);
    if (status == TS_OK) {
        r->step = ts_checkpoint_step(c);
        ts__run_line(r, "weights, moments and step %lld from %s", (long long)r->step, path);
    }
    ts_checkpoint_close(c);
    return status;
}

static ts_status load_weights(ts_run *r, const char *path, ts_error *err)
{
    ts_source s;
    TS_TRY(ts_source_open(path, &s, err));
    ts_status status = ts_state_load(r->state, s.tensors, err);
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
    bool found = false;
    r->saved_step = -1;
    if (c->enable_checkpointing) TS_TRY(continue_run(r, &found, err));
    if (found) return TS_OK;
    if (*c->load_full_state_path) return load_full_state(r, c->load_full_state_path, err);
    if (*c->load_parameters_path) return load_weights(r, c->load_parameters_path, err);
    if (*c->model_path) return load_weights(r, c->model_path, err);
    return ts_state_initialise(r->state, (uint64_t)c->init_weights_seed, err);
}
