/* train/plan_advice.c – what to change where a run does not fit: a small set of changes, each
 * really planned.
 *
 * Nearest first: another remat_policy; fewer rows; another split of the same devices between
 * data, fsdp and tensor, copies of the model given up for parts of it first; then several of
 * these at once, from the least split that fits; then the next larger slice. The batch, and with
 * it what is learnt, changes only where the advice says so. An advice is keys to type behind the
 * words that did not fit.
 */
#include <stdio.h>

#include "train/plan.h"

typedef struct search {
    const ts_config *given;
    const ts_model_config *model;
    const ts_plan_devices *devices;
    ts_plan_report *report;
    ts_plan_need need; /* of the last one planned */
} search;

/* A change of keys; 0 or −1: as it is. */
typedef struct change {
    int remat; /* −1 */
    int64_t data, tensor;
    double rows_per_device;
    const ts_plan_devices *devices;
} change;

static const char *const remat_names[] = {
    [TS_REMAT_NONE] = "none", [TS_REMAT_FULL] = "full", [TS_REMAT_MINIMAL] = "minimal"};

/* The configuration with the change; false: there is none such. */
static bool apply(const search *s, const change *x, ts_config *c)
{
    const ts_plan_devices *d = x->devices ? x->devices : s->devices;
    ts_error unsaid = {0};
    *c = *s->given;
    if (x->remat >= 0) c->remat = (ts_remat)x->remat;
    if (x->rows_per_device > 0) c->per_device_batch_size = x->rows_per_device;
    int64_t tensor = x->tensor ? x->tensor : c->mesh.user[TS_AXIS_TENSOR],
            data = x->data ? x->data : c->mesh.user[TS_AXIS_DATA];
    if (d->devices % (tensor * data)) return false;
    c->ici_data_parallelism = data;
    c->ici_fsdp_parallelism = d->devices / (tensor * data);
    c->ici_tensor_parallelism = tensor;
    return ts__config_place(c, d->devices, d->torus, d->n_torus, &unsaid) == TS_OK;
}

static bool try_change(search *s, const change *x, ts_config *c)
{
    ts_error unsaid = {0};
    if (!apply(s, x, c)) return false;
    return ts__plan_measure(c, s->model, x->devices ? x->devices : s->devices, false, &s->need,
                            NULL, &unsaid) == TS_OK &&
           s->need.fits;
}

static void add(const search *s, const change *x, const ts_config *c)
{
    ts_plan_report *r = s->report;
    if (r->n_advice == TS_PLAN_ADVICE) return;
    ts_plan_advice *a = &r->advice[r->n_advice++];
    char *at = a->keys, *end = a->keys + sizeof a->keys;
    if (x->devices) at += snprintf(at, (size_t)(end - at), " --devices %s", x->devices->name);
    if (x->remat >= 0)
        at += snprintf(at, (size_t)(end - at), " remat_policy=%s", remat_names[x->remat]);
    const int64_t *was = s->given->mesh.user, *is = c->mesh.user;
    if (was[TS_AXIS_DATA] != is[TS_AXIS_DATA])
        at += snprintf(at, (size_t)(end - at), " ici_data_parallelism=%lld",
                       (long long)is[TS_AXIS_DATA]);
    if (was[TS_AXIS_FSDP] != is[TS_AXIS_FSDP])
        at += snprintf(at, (size_t)(end - at), " ici_fsdp_parallelism=%lld",
                       (long long)is[TS_AXIS_FSDP]);
    if (was[TS_AXIS_TENSOR] != is[TS_AXIS_TENSOR])
        at += snprintf(at, (size_t)(end - at), " ici_tensor_parallelism=%lld",
                       (long long)is[TS_AXIS_TENSOR]);
    if (x->rows_per_device > 0)
        snprintf(at, (size_t)(end - at), " per_device_batch_size=%.9g", x->rows_per_device);
    memmove(a->keys, a->keys + 1,
            strlen(a->keys)); /* the blank in front, and the end comes along */
    a->peak = s->need.process ? s->need.process : s->need.memory.peak;
}

/* The policies were planned already. */
static void other_policy(search *s)
{
    static const ts_remat by_time[] = {TS_REMAT_NONE, TS_REMAT_MINIMAL, TS_REMAT_FULL};
    int at = 0;
    while (by_time[at] != s->given->remat) at++;
    for (int k = at + 1; k < 3; k++) {
        change x = {.remat = (int)by_time[k]};
        ts_config c;
        if (!try_change(s, &x, &c)) continue;
        add(s, &x, &c);
        return;
    }
}

static bool fewer_rows(search *s, change x, double least)
{
    ts_config c;
    for (double rows = s->given->per_device_batch_size / 2; rows >= least; rows /= 2) {
        x.rows_per_device = rows;
        if (!try_change(s, &x, &c)) continue;
        add(s, &x, &c);
        return true;
    }
    return false;
}

/* Fewer copies of the model, fsdp taking their devices; then sizes of tensor from the present one up, then down, with
 * no copies. */
static bool other_mesh(search *s, change x)
{
    ts_config c;
    int64_t now = s->given->mesh.user[TS_AXIS_TENSOR], copies = s->given->mesh.user[TS_AXIS_DATA];
    for (int64_t d = copies / 2; d >= 1; d /= 2) {
        x.data = d;
        if (!try_change(s, &x, &c)) continue;
        add(s, &x, &c);
        return true;
    }
    x.data = 1;
    for (int64_t t = 2 * now; t <= s->devices->devices && t <= 64; t *= 2) {
        x.tensor = t;
        if (!try_change(s, &x, &c)) continue;
        add(s, &x, &c);
        return true;
    }
    for (int64_t t = now / 2; t >= 1; t /= 2) {
        x.tensor = t;
        if (!try_change(s, &x, &c)) continue;
        add(s, &x, &c);
        return true;
    }
    return false;
}

/* Everything at its least: full, and as few rows as each mesh takes. */
static bool all_together(search *s)
{
    ts_config c;
    int64_t n = s->devices->devices;
    for (int64_t t = s->given->mesh.user[TS_AXIS_TENSOR]; t <= n && t <= 64; t *= 2) {
        change x = {.remat = s->given->remat == TS_REMAT_FULL ? -1 : TS_REMAT_FULL, .data = 1, .tensor = t};
        x.rows_per_device = 1 / (double)t;
        if (x.rows_per_device >= s->given->per_device_batch_size) x.rows_per_device = 0;
        if (!try_change(s, &x, &c)) continue;
        add(s, &x, &c);
        return true;
    }
    return false;
}

/* The next slices, as it is, then with full. */
static void more_devices(search *s)
{
    ts_plan_devices now = *s->devices, next;
    ts_config c;
    for (int i = 0; i < 8 && ts__plan_devices_more(&now, &next); i++, now = next)
        for (int full = 0; full < 2; full++) {
            change x = {.remat = full ? TS_REMAT_FULL : -1, .devices = &next};
            if (full && s->given->remat == TS_REMAT_FULL) continue;
            if (!try_change(s, &x, &c)) continue;
            add(s, &x, &c);
            return;
        }
}

void ts__plan_advise(const ts_config *c, const ts_model_config *model, const ts_plan_devices *d,
                     ts_plan_report *report)
{
    search s = {.given = c, .model = model, .devices = d, .report = report};
    const change none = {.remat = -1};
    other_policy(&s);
    bool found = fewer_rows(&s, none, 1 / (double)c->mesh.user[TS_AXIS_TENSOR]);
    found = other_mesh(&s, none) || found || report->n_advice > 0;
    if (!found) found = all_together(&s);
    more_devices(&s);
}
