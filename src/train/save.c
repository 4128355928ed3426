/* train/save.c – checkpoints of a run: what is in them, when one counts, what a failed one means.
 *
 * State beside the tensors: the model's description, the data's position, the last evaluation, the losses that a spike
 * is measured by, the configuration as text, and the program's options that its bits depend on. The seeds are all the
 * randomness there is. The loss of a resumed run equals the unbroken run's because every number that the next step
 * reads is in here.
 *
 * A save is begun between steps and ends beside them: saved_step is the newest that is known to be durable, and
 * nothing is said to be saved before. A save that failed is a warning while an older checkpoint and later saves make
 * up for it, and so is one that could not be begun for want of memory; it ends the run at its start, at its end, and
 * where three have failed in a row. What the devices do not give ends it at once.
 *
 * Not here: where a run begins (start.c), the copy and the thread (saver.c), the files (ckpt/checkpoint.h).
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "base/file.h"
#include "base/log.h"
#include "cpu/kernel.h"
#include "train/save.h"

enum { MAX_FAILED_SAVES = 3 };

char *ts__save_folder(const ts_run *r)
{
    return ts_path_join(r->config->run_folder, "checkpoints");
}

/* ---- what is saved beside the tensors -------------------------------------------------------- */

const char *ts__eval_extent(const ts_run *r, char text[TS__EVAL_EXTENT])
{
    uint64_t all = 0;
    for (int i = 0; i < r->n_eval; i++)
        all = all * 0x100000001b3u + ts_loader_fingerprint(r->eval_data[i]);
    snprintf(text, TS__EVAL_EXTENT, "%016" PRIx64 "/%" PRId64, all, r->config->eval_steps);
    return text;
}

static bool has_evaluation(const ts_run *r)
{
    return r->n_eval > 0 && r->evaluated == r->step;
}

/* The evaluation of exactly this step, and what it covered: a run that has reached its target is known by it when it
 * is started again, and one that was stopped in the middle of an evaluation by its absence. */
static void add_evaluation(const ts_run *r, json_t *o, int *bad)
{
    char extent[TS__EVAL_EXTENT];
    if (!has_evaluation(r)) return;
    json_t *e = json_object();
    *bad |= json_object_set_new(
        e, "loss", isfinite(r->eval_loss) ? json_real(r->eval_loss) : json_null());
    *bad |= json_object_set_new(e, "extent", json_string(ts__eval_extent(r, extent)));
    *bad |= json_object_set_new(o, "evaluation", e);
}

static void add_random(const ts_run *r, json_t *o, int *bad)
{
    json_t *random = json_object();
    *bad |= json_object_set_new(random, "init_weights_seed",
                                json_integer(r->config->init_weights_seed));
    *bad |= json_object_set_new(random, "data_shuffle_seed",
                                json_integer(r->config->data_shuffle_seed));
    *bad |= json_object_set_new(o, "random", random);
}

static ts_status describe(const ts_run *r, json_t **out, ts_error *err)
{
    ts_string text = ts_string_new(TS_CONFIG_TEXT_MAX);
    json_t *o = json_object(), *position = NULL;
    ts_prefetch_get_state(r->ahead, r->position);
    ts_status status = ts_loader_state_to_json(r->position, &position, err);
    ts_config_yaml(r->config, &text);
    int bad = !o || text.failed;
    if (status == TS_OK && !bad) {
        bad |= json_object_set_new(o, "model", ts_source_describe(&r->model, r->tokenizer));
        bad |= json_object_set(o, "data", position);
        bad |= json_object_set_new(o, "config", json_stringn(text.data, text.length));
        bad |= json_object_set_new(o, "program", ts__describe_program(r));
        bad |= json_object_set_new(o, "nonfinite_steps", json_integer(r->nonfinite));
        bad |= json_object_set_new(o, "nonfinite_steps_in_all", json_integer(r->nonfinite_all));
        bad |= json_object_set_new(o, "rollbacks", json_integer(r->rollbacks));
        bad |= json_object_set_new(o, "spikes", ts_spike_to_json(&r->spike));
        add_random(r, o, &bad);
        add_evaluation(r, o, &bad);
    }
    ts_string_free(&text);
    json_decref(position);
    if (status == TS_OK && bad)
        status = TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out for its state");
    if (status == TS_OK) {
        *out = o;
        return TS_OK;
    }
    json_decref(o);
    return ts__error_context(err, "the checkpoint of step %lld was not saved", (long long)r->step),
           status;
}

/* ---- the program ----------------------------------------------------------------------------- */

/* What computes, without the number of devices and threads: "avx512_bf16", "cpu, cpu, PJRT 0.72". The text is "xla: …,
 * 4 × …". */
static void device_text(const ts_run *r, char *buf, size_t n)
{
    ts_isa isa;
    const char *all = r->engine->vtable->describe(r->engine);
    if (strcmp(r->engine->vtable->name, "cpu") == 0 && ts_isa_choose(NULL, &isa, NULL) == TS_OK) {
        snprintf(buf, n, "%s", ts_isa_name(isa));
        return;
    }
    char count[32];
    snprintf(count, sizeof count, ", %d × ", r->engine->vtable->devices(r->engine));
    const char *at = strstr(all, count);
    const int before = at ? (int)(at - all) : (int)strlen(all);
    const int skip = strncmp(all, "xla: ", 5) == 0 ? 5 : 0;
    snprintf(buf, n, "%.*s%s%s", before - skip, all + skip, at ? ", " : "",
             at ? at + strlen(count) : "");
}

/* What the compiler of the other engine is told. */
static void add_xla(const ts_config *c, json_t *o, int *bad)
{
    ts_string flags = ts_string_new(1 << 16);
    for (size_t i = 0; i < c->xla_flags.n; i++)
        ts_string_printf(&flags, "%s%s", i ? " " : "", c->xla_flags.item[i]);
    *bad |= flags.failed;
    *bad |= json_object_set_new(o, "matmul_precision", json_string(c->matmul_precision));
    *bad |= json_object_set_new(o, "compile_xla_flags", json_string(flags.data ? flags.data : ""));
    ts_string_free(&flags);
}

json_t *ts__describe_program(const ts_run *r)
{
    const ts_config *c = r->config;
    char device[400], mesh[128];
    int bad = 0;
    device_text(r, device, sizeof device);
    json_t *o = json_pack("{s:s, s:s, s:s, s:i, s:s, s:s, s:s, s:b, s:b, s:b, s:I, s:I}",
                          "version", TS_VERSION, "engine", r->engine->vtable->name, "device", device,
                          "devices", c->mesh.devices, "mesh",
                          ts_mesh_text(&c->mesh, mesh, sizeof mesh), "dtype", c->dtype,
                          "remat_policy", c->remat_policy, "scan_layers", (int)c->scan_layers,
                          "ring", (int)c->ring, "shard_auto", (int)c->shard_auto,
                          "gradient_accumulation_steps", (json_int_t)c->gradient_accumulation_steps,
                          "rows", (json_int_t)c->batch_rows);
    if (o && strcmp(r->engine->vtable->name, "xla") == 0) add_xla(c, o, &bad);
    if (!bad) return o;
    json_decref(o);
    return NULL;
}

static void add_difference(ts_string *text, const char *name, const json_t *was, const json_t *is)
{
    char *a = ts_json_dump(was, JSON_ENCODE_ANY), *b = ts_json_dump(is, JSON_ENCODE_ANY);
    const char *from = json_is_string(was) ? json_string_value(was) : a ? a : "?";
    const char *to = json_is_string(is) ? json_string_value(is) : b ? b : "?";
    ts_string_printf(text, "%s%s %s → %s", text->length ? "; " : "", name, from, to);
    ts_free(a);
    ts_free(b);
}

/* Then the steps are others, to the bit or not. */
static bool say_rows(const ts_run *r, const json_t *was)
{
    const json_int_t rows = json_integer_value(json_object_get(was, "rows"));
    if (rows < 1 || rows == r->config->batch_rows) return false;
    ts__run_line(r,
                 "a step has %lld rows from here on, those of the checkpoint had %lld; the data goes "
                 "on at the same row",
                 (long long)r->config->batch_rows, (long long)rows);
    return true;
}

/* What may change the order of a sum or where it is rounded. Rows are another thing: the steps themselves differ. */
static const char *const decisive[][2] = {
    {"version", "version"},
    {"engine", "engine"},
    {"device", "device"},
    {"mesh", "mesh"},
    {"dtype", "dtype"},
    {"matmul_precision", "matmul_precision"},
    {"compile_xla_flags", "compile_xla_flags"},
    {"remat_policy", "remat_policy"},
    {"scan_layers", "scan_layers"},
    {"ring", "collective_matmul=ring"},
    {"shard_auto", "shard_mode=auto"},
    {"gradient_accumulation_steps", "gradient_accumulation_steps"},
};

/* Another engine is another device. The cpu engine computes again what it computed before, where XLA compiles another
 * program. */
static bool says_nothing(const char *key, const json_t *was, const json_t *now)
{
    const char *a = json_string_value(json_object_get(was, "engine"));
    const char *b = json_string_value(json_object_get(now, "engine"));
    if (!a || !b) return false;
    if (strcmp(a, b) != 0) return strcmp(key, "device") == 0;
    return strcmp(a, "cpu") == 0 && strcmp(key, "remat_policy") == 0;
}

void ts__say_program(const ts_run *r, const json_t *state)
{
    const json_t *was = json_object_get(state, "program");
    if (say_rows(r, was)) return;
    json_t *now = ts__describe_program(r);
    ts_string text = ts_string_new(1 << 16);
    for (size_t i = 0; now && was && i < sizeof decisive / sizeof *decisive; i++) {
        const char *key = decisive[i][0];
        const json_t *a = json_object_get(was, key), *b = json_object_get(now, key);
        if (a && b && !json_equal(a, b) && !says_nothing(key, was, now))
            add_difference(&text, decisive[i][1], a, b);
    }
    if (text.length && !text.failed)
        ts__run_line(r,
                     "the state is the checkpoint's to the bit; what follows is the unbroken run up "
                     "to rounding, because of %s",
                     text.data);
    ts_string_free(&text);
    json_decref(now);
}

/* ---- how a save ended ------------------------------------------------------------------------ */

static void say_saved(const ts_run *r, const ts_saved *s)
{
    char waited[64] = "";
    if (s->step == r->saving_step && r->waited >= 0.01)
        snprintf(waited, sizeof waited, "waited %.2f s for the one before, ", r->waited);
    if (s->copied > 0)
        ts__run_line(r,
                     "saved checkpoint %s/checkpoints/%lld (%scopy %.2f s, written in %.2f s beside "
                     "the training)",
                     r->config->run_folder, (long long)s->step, waited, s->copied, s->written);
    else
        ts__run_line(r, "saved checkpoint %s/checkpoints/%lld (%.2f s)", r->config->run_folder,
                     (long long)s->step, s->written);
}

/* A warning, or the end of the run. */
static ts_status judge(ts_run *r, int64_t step, const ts_error *why, bool last, ts_error *err)
{
    char newest[1200] = "there is no older one";
    r->failed_saves++;
    r->unsaved = *why;
    if (last || step == r->first_step) return TS_ERROR(err, why->code, "%s", why->msg);
    if (r->failed_saves >= MAX_FAILED_SAVES)
        return TS_ERROR(err, why->code, "%s; %d in a row have failed now", why->msg,
                        MAX_FAILED_SAVES);
    if (r->saved_step >= 0)
        snprintf(newest, sizeof newest, "the newest is %s/checkpoints/%lld", r->config->run_folder,
                 (long long)r->saved_step);
    ts_log(TS_LOG_WARNING, "%s; the run goes on, %s", why->msg, newest);
    return TS_OK;
}

static ts_status take_result(ts_run *r, const ts_saved *s, bool last, ts_error *err)
{
    if (r->saving && s->step == r->saving_step) r->saving = false;
    /* Not everywhere is a checkpoint replaced: the one there lacks no more than an evaluation that came later. */
    if (s->error.code == TS_ALREADY_EXISTS && s->step == r->saved_step) return TS_OK;
    if (s->error.code != TS_OK) return judge(r, s->step, &s->error, last, err);
    r->saved_step = s->step;
    r->failed_saves = 0;
    say_saved(r, s);
    return TS_OK;
}

static ts_status take_results(ts_run *r, bool wait, bool last, ts_error *err)
{
    ts_saved s;
    ts_status status = TS_OK;
    if (wait && r->saving) ts__run_begin(r, "the save of step", r->saving_step);
    while (r->saver && ts_saver_ended(r->saver, wait, &s)) {
        ts_watch_idle(r->watch); /* a save that has ended is told, and no limit is on that */
        const ts_status one = take_result(r, &s, last && s.step == r->step, err);
        if (status == TS_OK) status = one;
        if (wait && r->saving) ts__run_begin(r, "the save of step", r->saving_step);
    }
    return status;
}

ts_status ts__run_saved(ts_run *r, bool last, ts_error *err)
{
    TS_TRY(take_results(r, last, last, err));
    return last && r->failed_saves > 0 ? TS_ERROR(err, r->unsaved.code, "%s", r->unsaved.msg) : TS_OK;
}

ts_status ts__save_wait(ts_run *r, ts_error *err)
{
    return take_results(r, true, false, err);
}

/* ---- saving ---------------------------------------------------------------------------------- */

bool ts__run_is_saved(const ts_run *r)
{
    if (has_evaluation(r) && r->saved_evaluation != r->step) return false;
    return r->saved_step == r->step || (r->saving && r->saving_step == r->step);
}

static ts_status begin(ts_run *r, bool *device, ts_error *err)
{
    json_t *state = NULL;
    *device = false;
    TS_TRY(describe(r, &state, err));
    ts__run_begin(r, "the save of step", r->step);
    const double score = has_evaluation(r) ? r->eval_loss : (double)NAN;
    const ts_status status = ts_saver_begin(r->saver, r->step, state, score, err);
    ts_watch_idle(r->watch);
    *device = status != TS_OK && ts_saver_lost_device(r->saver);
    return status;
}

ts_status ts__run_save(ts_run *r, ts_error *err)
{
    ts_error why = {0};
    bool device;
    TS_ASSERT(r->dispatched == r->step); /* the state and the data's position are of one step */
    TS_TRY(ts__run_saved(r, false, err));
    if (!r->saver || ts__run_is_saved(r)) return TS_OK;
    const double start = ts_clock_seconds();
    TS_TRY(ts__save_wait(r, err)); /* what it means is known before another is begun */
    r->waited = ts_clock_seconds() - start;
    const bool last = r->interrupted || r->stop || r->step >= r->config->steps;
    const ts_status status = begin(r, &device, &why);
    if (device) return TS_ERROR(err, status, "%s", why.msg);
    if (status != TS_OK) return judge(r, r->step, &why, last, err);
    r->saving = true;
    r->saving_step = r->step;
    if (has_evaluation(r)) r->saved_evaluation = r->step;
    /* Where it was not written beside the training. */
    return take_results(r, false, last, err);
}
