/* train/metrics.c – the step line in MaxText's form, and metrics.jsonl, one flushed JSON object a step.
 *
 * Names learning/… and perf/… are MaxText's, with its meaning: tokens are slots of the batch, padding
 * included. What it does not say stands beside them: trained tokens a second, padding, time waited for data,
 * peak memory. A resumed run appends; a step that is run again after a crash appears again, and the later
 * line counts.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <sys/resource.h>

#include "base/file.h"
#include "train/run.h"

struct ts_metrics {
    ts_writer *file;
    char *run_name; /* as JSON */
    ts_string text; /* of a line */
};

static double tokens_per_second(const ts_step_info *s)
{
    return s->seconds > 0 ? (double)s->slots / s->devices / s->seconds : 0;
}

static double tflops_per_second(const ts_step_info *s)
{
    return s->seconds > 0 ? s->tflops / s->seconds : 0;
}

char *ts_step_line(const ts_step_info *s, char *buf, size_t n)
{
    snprintf(
        buf, n,
        "completed step: %lld, seconds: %.3f, TFLOP/s/device: %.3f, Tokens/s/device: %.3f, total_weights: %lld, "
        "loss: %.3f%s",
        (long long)s->step, s->seconds, tflops_per_second(s), tokens_per_second(s),
        (long long)s->trained_tokens, ts__run_plain(s->loss),
        s->skipped ? " (not finite: step skipped)" : "");
    return buf;
}

static size_t peak_bytes(void)
{
    struct rusage u;
    return getrusage(RUSAGE_SELF, &u) == 0 ? (size_t)u.ru_maxrss * 1024 : 0;
}

static ts_status write_line(ts_metrics *m, ts_error *err)
{
    ts_string *s = &m->text;
    ts_string_add(s, "}\n");
    ts_status status =
        s->failed ? TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out for a line of metrics")
                  : ts_writer_write(m->file, s->data, s->length, err);
    return status == TS_OK ? ts_writer_flush(m->file, err) : status;
}

/* JSON has no NaN: such a value is null. */
static void number(ts_string *s, const char *key, double v)
{
    if (isfinite(v))
        ts_string_printf(s, ", \"%s\": %.9g", key, v);
    else
        ts_string_printf(s, ", \"%s\": null", key);
}

/* "learning/NAME/loss" of a source: the configuration lets no name through that JSON would escape. */
static void named(ts_string *s, const char *group, const char *name, const char *what, double v)
{
    char key[200];
    snprintf(key, sizeof key, "%s/%s/%s", group, name, what);
    number(s, key, v);
}

/* A source without a row in this step has no loss: null. */
static void sources(ts_string *s, const ts_flight *f)
{
    for (int i = 0; i < f->n_mixed; i++) {
        const ts_mixed *x = &f->mixed[i];
        named(s, "learning", x->name, "loss",
              x->weights > 0 ? x->loss / (double)x->weights : (double)NAN);
        named(s, "learning", x->name, "weights", (double)x->weights);
        ts_string_printf(s, ", \"data/%s/rows\": %lld", x->name, (long long)x->rows);
    }
}

/* The text keeps its memory from line to line: a step allocates nothing. */
static ts_string *begin_line(ts_metrics *m, int64_t step)
{
    m->text.length = 0;
    m->text.failed = false;
    ts_string_printf(&m->text, "{\"step\": %lld, \"run_name\": %s", (long long)step, m->run_name);
    return &m->text;
}

/* A disk that was full, or a kill, may have cut the last line: the next one begins on its own. */
static ts_status end_cut_line(ts_metrics *m, const char *path, ts_error *err)
{
    ts_file *f;
    char last = '\n';
    TS_TRY(ts_file_open(path, &f, err));
    uint64_t size = ts_file_size(f);
    ts_status status = size ? ts_file_read_at(f, size - 1, &last, 1, err) : TS_OK;
    ts_file_close(f);
    return status == TS_OK && last != '\n' ? ts_writer_write(m->file, "\n", 1, err) : status;
}

ts_status ts__metrics_open(const ts_config *c, ts_metrics **out, ts_error *err)
{
    *out = NULL;
    char *path = *c->metrics_file ? ts_strdup(c->metrics_file)
                                  : ts_path_join(c->run_folder, "metrics.jsonl");
    ts_metrics *m = ts_alloc_zero(sizeof *m);
    json_t *name = json_string(c->run_name);
    ts_status status = TS_OK;
    if (m) m->text = ts_string_new(1 << 16);
    if (m && name) m->run_name = ts_json_dump(name, JSON_ENCODE_ANY);
    if (!path || !m || !m->run_name)
        status = TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out for the metrics file");
    if (status == TS_OK) status = ts_writer_open(path, true, &m->file, err);
    if (status == TS_OK && ts_path_kind_of(path) == TS_PATH_FILE)
        status = end_cut_line(m, path, err);
    json_decref(name);
    ts_free(path);
    if (status == TS_OK)
        *out = m;
    else
        ts__metrics_close(m);
    return status;
}

ts_status ts__metrics_step(ts_metrics *m, const ts_flight *f, const ts_config *c, ts_error *err)
{
    const ts_step_info *i = &f->info;
    double clip = c->gradient_clipping_threshold;
    ts_string *s = begin_line(m, i->step);
    number(s, "learning/loss", i->loss);
    number(s, "learning/lm_loss", i->loss);
    number(s, "learning/perplexity", exp(i->loss));
    number(s, "learning/total_weights", (double)i->trained_tokens);
    number(s, "learning/grad_norm", clip > 0 && i->grad_norm > clip ? clip : i->grad_norm);
    number(s, "learning/raw_grad_norm", i->grad_norm);
    number(s, "learning/current_learning_rate", i->learning_rate);
    number(s, "perf/step_time_seconds", i->seconds);
    number(s, "perf/per_device_tflops", i->tflops);
    number(s, "perf/per_device_tflops_per_sec", tflops_per_second(i));
    number(s, "perf/per_device_tokens", (double)i->slots / i->devices);
    number(s, "perf/per_device_tokens_per_sec", tokens_per_second(i));
    number(s, "perf/trained_tokens_per_sec",
           i->seconds > 0 ? (double)i->trained_tokens / i->seconds : 0);
    number(s, "perf/data_wait_seconds", i->data_seconds);
    number(s, "perf/padding_slots", (double)i->padding);
    number(s, "perf/peak_host_bytes", (double)peak_bytes());
    /* Two runs whose steps have the same have read the same rows in the same order up to there. */
    ts_string_printf(s, ", \"data/order_hash\": \"%016" PRIx64 "\"", f->order_hash);
    ts_string_printf(s, ", \"learning/skipped\": %s", i->skipped ? "true" : "false");
    ts_string_printf(s, ", \"learning/nonfinite_steps\": %lld, \"learning/rollbacks\": %lld",
                     (long long)f->nonfinite, (long long)f->rollbacks);
    sources(s, f);
    return write_line(m, err);
}

ts_status ts__metrics_eval(ts_metrics *m, const ts_run *r, double weights, double seconds,
                           ts_error *err)
{
    ts_string *s = begin_line(m, r->step - 1);
    number(s, "eval/avg_loss", r->eval_loss);
    number(s, "eval/avg_perplexity", exp(r->eval_loss));
    number(s, "eval/total_weights", weights);
    number(s, "eval/seconds", seconds);
    for (int i = 0; i < r->n_eval && *ts__eval_name(r, i); i++) {
        named(s, "eval", ts__eval_name(r, i), "avg_loss", ts__eval_mean(&r->eval_sums[i]));
        named(s, "eval", ts__eval_name(r, i), "weights", r->eval_sums[i].weights);
    }
    return write_line(m, err);
}

void ts__metrics_close(ts_metrics *m)
{
    if (!m) return;
    ts_writer_abandon(m->file); /* every line was flushed */
    ts_string_free(&m->text);
    ts_free(m->run_name);
    ts_free(m);
}
