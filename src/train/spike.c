/* train/spike.c – losses of late, and whether one stands out of them.
 *
 * Mean and deviation are computed afresh for each verdict, over the losses from the oldest to the newest, with a
 * compensated sum and in two passes: a verdict depends on the losses held and on nothing else, neither on where the
 * ring begins nor on how long it has been running. A spike does not join the window, so that one does not hide the
 * next. What f32 rounds away is no deviation: losses that are all but equal have none that counts.
 *
 * Not here: what a spike means for the run (judge.c).
 */
#include "train/spike.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const double least_deviation = 1e-6; /* of the mean: the last digits of an f32 */

ts_status ts_spike_open(int64_t window, double threshold, ts_spike *out, ts_error *err)
{
    *out = (ts_spike){.window = window, .threshold = threshold};
    if (window < 1) return TS_OK;
    size_t bytes;
    if (ts_mul_size((size_t)window, sizeof *out->loss, &bytes) || !(out->loss = ts_alloc(bytes))) {
        *out = (ts_spike){0};
        return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out for the losses of %lld steps",
                        (long long)window);
    }
    return TS_OK;
}

void ts_spike_close(ts_spike *s)
{
    ts_free(s->loss);
    *s = (ts_spike){0};
}

/* Loss i of those held, the oldest first. */
static double loss_at(const ts_spike *s, int64_t i)
{
    return s->loss[(s->next - s->n + i + s->window) % s->window];
}

/* Neumaier's: what each addition rounds away is kept beside the sum. */
static void add(double *sum, double *rest, double v)
{
    const double t = *sum + v;
    *rest += fabs(*sum) >= fabs(v) ? (*sum - t) + v : (v - t) + *sum;
    *sum = t;
}

double ts_spike_mean(const ts_spike *s, double *deviation)
{
    double sum = 0, rest = 0, squares = 0, squares_rest = 0;
    *deviation = NAN;
    if (s->n < 1) return NAN;
    for (int64_t i = 0; i < s->n; i++) add(&sum, &rest, loss_at(s, i));
    const double mean = (sum + rest) / (double)s->n;
    for (int64_t i = 0; i < s->n; i++) {
        const double d = loss_at(s, i) - mean;
        add(&squares, &squares_rest, d * d);
    }
    *deviation = sqrt((squares + squares_rest) / (double)s->n);
    return mean;
}

bool ts_spike_add(ts_spike *s, double loss)
{
    if (s->window < 1) return false;
    if (s->n == s->window) {
        double deviation;
        const double mean = ts_spike_mean(s, &deviation), least = least_deviation * fabs(mean);
        if (loss > mean + s->threshold * (deviation > least ? deviation : least)) return true;
    }
    s->loss[s->next] = loss;
    s->next = (s->next + 1) % s->window;
    if (s->n < s->window) s->n++;
    return false;
}

/* ---- in a checkpoint ------------------------------------------------------------------------- */

json_t *ts_spike_to_json(const ts_spike *s)
{
    char text[64];
    json_t *o = json_object(), *losses = json_array();
    int bad = !o || !losses;
    for (int64_t i = 0; i < s->n && !bad; i++) {
        snprintf(text, sizeof text, "%a", loss_at(s, i));
        bad |= json_array_append_new(losses, json_string(text));
    }
    if (!bad) bad |= json_object_set_new(o, "window", json_integer(s->window));
    if (!bad) bad |= json_object_set(o, "losses", losses);
    json_decref(losses);
    if (!bad) return o;
    json_decref(o);
    return NULL;
}

static bool read_loss(const json_t *v, double *out)
{
    const char *text = json_string_value(v);
    char *end = NULL;
    if (!text || (*text != '-' && *text != '0')) return false;
    *out = strtod(text, &end);
    return end != text && *end == '\0' && isfinite(*out);
}

ts_status ts_spike_from_json(ts_spike *s, const json_t *json, ts_error *err)
{
    const json_t *window = json_object_get(json, "window"), *losses = json_object_get(json, "losses");
    const size_t n = json_array_size(losses);
    double loss;
    if (!json_is_integer(window) || !json_is_array(losses) || json_integer_value(window) < 0 ||
        n > (size_t)json_integer_value(window))
        return TS_ERROR(err, TS_INVALID_ARGUMENT,
                        "\"spikes\" of the checkpoint is not a window and its losses");
    for (size_t i = 0; i < n; i++)
        if (!read_loss(json_array_get(losses, i), &loss))
            return TS_ERROR(err, TS_INVALID_ARGUMENT,
                            "\"spikes\" of the checkpoint: loss %zu is not a finite number such as "
                            "\"0x1.8p+1\"",
                            i);
    s->n = s->next = 0;
    if (s->window < 1 || json_integer_value(window) != s->window) return TS_OK;
    for (size_t i = 0; i < n; i++) (void)read_loss(json_array_get(losses, i), &s->loss[i]);
    s->n = (int64_t)n;
    s->next = s->n % s->window;
    return TS_OK;
}
