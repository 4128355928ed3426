/* train/prepare.c – from a configuration to a run that is ready for its first step, and its end.
 *
 * Cheap and certain things first: the model's description, the data, then the engine, the graph, the memory. What
 * cannot work is found before anything large is allocated, and an output folder that cannot be written before
 * anything is computed.
 */
#include <stdarg.h>
#include <stdio.h>

#include "base/file.h"
#include "base/log.h"
#include "ckpt/checkpoint.h"
#include "train/flops.h"
#include "train/run.h"
#include "train/sampler.h"

void ts__run_line(const ts_run *r, const char *fmt, ...)
{
    char text[2000];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (r->hooks->line) r->hooks->line(r->hooks->context, text);
}

ts_status ts__set_rope(ts_bound *b, const ts_model_config *m, int64_t S, ts_error *err)
{
    size_t bytes = (size_t)(S * (m->head_dim / 2)) * sizeof(float);
    float *cos = ts_alloc(bytes), *sin = ts_alloc(bytes);
    ts_status status =
        cos && sin ? TS_OK
                   : TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out for rope's tables");
    if (status == TS_OK) {
        ts_model_rope_tables(m, 0, S, cos, sin);
        status = ts_bound_keep(b, "rope.cos", cos, bytes, err);
    }
    if (status == TS_OK) status = ts_bound_keep(b, "rope.sin", sin, bytes, err);
    ts_free(cos);
    ts_free(sin);
    return status;
}

/* ---- model and data -------------------------------------------------------------------------- */

static ts_status read_model(ts_run *r, ts_error *err)
{
    const ts_config *c = r->config;
    TS_TRY(ts__read_model(c, &r->model, err));
    TS_TRY(ts_tokenizer_open_byte(&r->tokenizer, err));
    int32_t vocab = ts_tokenizer_vocab_size(r->tokenizer);
    bool text = c->dataset == TS_DATA_TEXT || c->dataset == TS_DATA_JSONL;
    if (text && r->model.vocab < vocab)
        return TS_ERROR(
            err, TS_INVALID_ARGUMENT,
            "the model of %s has %lld tokens, the %s tokenizer needs %d; use dataset_type=tokens "
            "with ids of the model's own tokenizer",
            c->model_path, (long long)r->model.vocab, ts_tokenizer_type(r->tokenizer), vocab);
    return TS_OK;
}

static ts_status open_data(ts_run *r, ts_error *err)
{
    const ts_config *c = r->config;
    ts_loader_options o;
    ts_config_loader_options(c, TS_SPLIT_TRAIN, r->tokenizer, &o);
    o.vocab_size = r->model.vocab;
    o.rows =
        c->batch_rows; /* the whole step, so that accumulation does not change what is packed */
    TS_TRY(ts_loader_open(&o, &r->train_data, err));
    TS_TRY(ts_loader_state_new(r->train_data, &r->position, err));
    TS_TRY(ts__judge_open(r, err));
    TS_TRY(ts_prefetch_open(r->train_data, (int)c->data_prefetch_batches, (int)c->data_threads,
                            &r->ahead, err));
    r->packed = ts__program_options(c, &r->model).packed;
    ts_loader_stats s = ts_loader_stats_of(r->train_data);
    if (c->dataset != TS_DATA_SYNTHETIC)
        ts__run_line(r, "data: %lld samples, %lld tokens an epoch%s", (long long)s.samples,
                     (long long)s.tokens,
                     s.bad_rows ? " (bad rows were skipped, see the warnings)" : "");
    TS_TRY(ts__mixture_open(r, err));
    return ts__eval_open(r, err);
}

/* ---- programs -------------------------------------------------------------------------------- */

static ts_status build_programs(ts_run *r, ts_error *err)
{
    TS_TRY(ts__build_train(r->config, &r->model, &r->train_graph, err));
    TS_TRY(ts_place(r->config, r->train_graph, TS_PLACE_TRAIN, &r->train_placed, err));
    if (r->n_eval == 0) return TS_OK;
    ts_program_options o = ts__program_options(r->config, &r->model);
    o.rows = r->config->eval_rows;
    TS_TRY(ts_program_eval(&o, &r->eval_graph, err));
    return ts_place(r->config, r->eval_graph, TS_PLACE_QUIET, &r->eval_placed, err);
}

/* "3.22 million" where the billions of MaxText's line round to little. */
static const char *readable(double v, char *buf, size_t n)
{
    static const char *const unit[] = {"", " thousand", " million", " billion"};
    int k = 0;
    while (k < 3 && v >= 999.5) v /= 1000, k++;
    snprintf(buf, n, "%.3g%s", v, unit[k]);
    return buf;
}

/* What a device holds beyond its share is the price of dimensions that do not divide. */
static void say_mesh(const ts_run *r)
{
    char text[128];
    const ts_partition *p = r->train_placed.partition;
    if (!p) return;
    ts__run_line(r, "mesh: %d devices, %s; parameters beyond a device's share: %.2f%%",
                 p->mesh.devices, ts_mesh_text(&p->mesh, text, sizeof text), 100 * p->unsplit);
}

/* MaxText's lines, which scripts read, with smaller units where they would show zeros. */
static void say_size(const ts_run *r, const ts_step_flops *f, const ts_memory_stats *m,
                     double compile_seconds)
{
    char count[32];
    int64_t n = ts_state_parameters(r->state);
    double all = f->weights + f->attention, tera = r->tflops;
    double bytes = (double)(m->arguments + m->temporary);
    double step_unit = tera >= 0.1 ? 1 : tera >= 1e-4 ? 1e-3 : 1e-6;
    double memory_unit = bytes >= 1e8 ? 1e9 : 1e6;
    ts__run_line(r, "number parameters: %.3f billion (%s: %lld, of them trained %lld)",
                 (double)n / 1e9, readable((double)n, count, sizeof count), (long long)n,
                 (long long)ts__trained_parameters(r->config, &r->model, r->train_graph));
    ts__run_line(r,
                 "Per train step: Total %sFLOPs: %.2f, split as %.2f%% learnable weight flops and "
                 "%.2f%% attention flops",
                 tera >= 0.1    ? "T"
                 : tera >= 1e-4 ? "G"
                                : "M",
                 tera / step_unit, 100 * f->weights / all, 100 * f->attention / all);
    ts__run_line(r,
                 "Total estimated memory size: %.3f %s%s (state and batch %.3f, step %.3f), compiled "
                 "in %.2f s",
                 bytes / memory_unit, bytes >= 1e8 ? "GB" : "MB",
                 r->config->devices > 1 ? " a device" : "",
                 (double)m->arguments / memory_unit, (double)m->temporary / memory_unit,
                 compile_seconds);
}

/* An executable of the run and its batch; the weights have their room already. */
static ts_status bind(ts_run *r, const ts_placed *p, const char *what, int slots, const char *file,
                      ts_bound **out, ts_error *err)
{
    ts_status status = ts_bound_open(r->engine, p, r->state, slots, file, out, err);
    if (status == TS_RESOURCE_EXHAUSTED)
        ts__error_context(err,
                          "the %s finds no room; a smaller per_device_batch_size or "
                          "max_target_length needs less",
                          what);
    return status == TS_OK ? ts__set_rope(*out, &r->model, r->config->max_target_length, err)
                           : status;
}

static ts_status bind_train(ts_run *r, ts_error *err)
{
    const char *file = r->config->compiled_trainstep_file;
    bool ahead = r->engine->vtable->asynchronous && r->config->max_inflight_computations > 1;
    r->depth = ahead ? TS_MAX_INFLIGHT : 1;
    if (r->engine->vtable->asynchronous && !*file)
        ts_log(TS_LOG_INFO, "compiling the train step; a large one takes minutes");
    TS_TRY(bind(r, &r->train_placed, "train step", r->depth, *file ? file : NULL, &r->train, err));
    if (*file) ts__run_line(r, "train step loaded from %s", file);
    return TS_OK;
}

static ts_status compile(ts_run *r, ts_error *err)
{
    double start = ts_clock_seconds();
    say_mesh(r);
    TS_TRY(ts_state_place(r->engine, &r->train_placed, &r->state, err));
    TS_TRY(bind_train(r, err));
    if (r->eval_graph) TS_TRY(bind(r, &r->eval_placed, "evaluation", 1, NULL, &r->eval, err));
    ts_exec_stats s;
    ts_executable *x = ts_bound_executable(r->train);
    x->vtable->stats(x, &s);
    ts_step_flops f =
        ts_step_flops_of(&r->model, (double)r->config->batch_rows, r->config->max_target_length);
    r->tflops = (f.weights + f.attention) / 1e12 / (double)r->config->devices;
    say_size(r, &f, &s.memory, ts_clock_seconds() - start);
    return TS_OK;
}

/* config.yml describes the run that the folder holds: a start that is refused, or that finds nothing left to do,
 * leaves the one that is there. */
static ts_status write_config(const ts_run *r, ts_error *err)
{
    char *path = ts_path_join(r->config->run_folder, "config.yml");
    ts_status status = path ? ts_config_write(r->config, path, err)
                            : TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out");
    ts_free(path);
    return status;
}

/* Two processes that write one folder would mix their checkpoints and metrics. */
static ts_status lock_folder(ts_run *r, ts_error *err)
{
    ts_error why = {0};
    if (r->lock || r->lockless) return TS_OK;
    char *path = ts_path_join(r->config->run_folder, "lock");
    if (!path) return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out");
    ts_status status = ts_lock_take(path, &r->lock, &why);
    ts_free(path);
    if (status == TS_UNIMPLEMENTED) {
        r->lockless = true;
        ts_log(TS_LOG_WARNING, "%s; nothing keeps a second process from writing the same run",
               why.msg);
        return TS_OK;
    }
    if (status == TS_FAILED_PRECONDITION)
        return TS_ERROR(
            err, status,
            "run %s is being trained: %s; wait until it ends, stop it, or choose another "
            "run_name",
            r->config->run_name, why.msg);
    return status == TS_OK ? TS_OK : TS_ERROR(err, status, "%s", why.msg);
}

/* A run whose last step is done says so at once: whoever restarts it pays for no engine and no compilation. */
static ts_status look_for_run(ts_run *r, ts_error *err)
{
    TS_TRY(ts_config_check_output(r->config, err));
    TS_TRY(ts_config_check_data(r->config, err));
    /* The lock at once where the folder is there; another run's data may take minutes to read. */
    if (ts_path_kind_of(r->config->run_folder) != TS_PATH_FOLDER) return TS_OK;
    TS_TRY(lock_folder(r, err));
    return ts__run_find(r, err);
}

static ts_status open_engine(ts_run *r, ts_error *err)
{
    const ts_config *c = r->config;
    ts_engine_choice choice;
    const char *note;
    ts__choose_engine(c, "", &choice);
    TS_TRY(ts__check_engine_keys(c, &choice, err));
    TS_TRY(ts__open_chosen(c, &choice, &r->engine, err));
    ts__run_line(r, *choice.why ? "engine %s (%s)" : "engine %s",
                 r->engine->vtable->describe(r->engine), choice.why);
    for (int i = 0; (note = ts__engine_note(c, &choice, i)); i++) ts_log(TS_LOG_INFO, "%s", note);
    TS_TRY(ts__place_on(c, r->engine, &r->model, &r->on_devices, err));
    r->config = &r->on_devices;
    return ts__profile_open(r, err);
}

static ts_status open_folder(ts_run *r, ts_error *err)
{
    bool looked = r->lock || r->lockless;
    TS_TRY(ts_make_folders(r->config->run_folder, err));
    TS_TRY(ts_sync_parent(r->config->run_folder, err)); /* saves sync what is below it */
    TS_TRY(lock_folder(r, err));
    if (!looked) TS_TRY(ts__run_find(r, err)); /* another process may have been here meanwhile */
    if (r->finished) return TS_OK;
    return ts__metrics_open(r->config, &r->metrics, err);
}

static ts_status start(ts_run *r, ts_error *err)
{
    TS_TRY(ts__run_start(r, err));
    r->dispatched = r->step;
    r->started = true;
    return r->step < r->config->steps && !r->stop ? write_config(r, err) : TS_OK;
}

ts_status ts__run_prepare(ts_run *r, ts_error *err)
{
    static ts_status (*const stage[])(ts_run *, ts_error *) = {
        read_model, look_for_run, open_engine, open_data, build_programs, open_folder, compile, start};
    for (size_t i = 0; i < sizeof stage / sizeof *stage; i++) {
        ts_error why = {0};
        ts_status status = stage[i](r, &why);
        /* CANCELLED: a signal ended the trial of a plugin, and the caller has it by now. */
        if (status == TS_OK || status == TS_CANCELLED) TS_TRY(ts__run_obey(r, err));
        if (r->interrupted) return TS_OK; /* before a step there is nothing to save */
        if (status != TS_OK) return TS_ERROR(err, status, "%s", why.msg);
        if (r->finished) return TS_OK;
    }
    return TS_OK;
}

void ts__run_release(ts_run *r)
{
    ts__profile_close(r);
    ts__metrics_close(r->metrics);
    ts_saver_close(r->saver); /* waits for what is being written */
    ts_sampler_free(r->sampler);
    ts_bound_free(r->eval);
    ts_bound_free(r->train);
    ts_state_free(r->state);
    ts_placed_free(&r->eval_placed);
    ts_placed_free(&r->train_placed);
    ts_graph_free(r->eval_graph);
    ts_graph_free(r->train_graph);
    ts__eval_close(r);
    ts__mixture_close(r->mixture);
    ts_prefetch_close(r->ahead);
    ts_loader_state_free(r->position);
    ts__judge_close(r);
    ts_loader_free(r->train_data);
    ts_tokenizer_free(r->tokenizer);
    ts_engine_close(r->engine);
    ts_checkpoint_close(r->newest);
    ts_lock_release(r->lock); /* last: all is written */
}
