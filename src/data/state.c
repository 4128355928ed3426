/* data/state.c – the position of a loader: taken, given back, checked, and as JSON.
 *
 * A state comes from a file, so everything in it is checked before it is used: it can never move a
 * cursor outside the data. The fingerprint ties it to the data and the options that decide the
 * order; the number of rows in a batch is not among them, since a run may go on with another.
 */
#include <stdio.h>
#include <stdlib.h>

#include "data/internal.h"

ts_loader_state ts_loader_get_state(const ts_loader *l)
{
    return l->state;
}

void ts_loader_rewind(ts_loader *l)
{
    l->state = (ts_loader_state){.fingerprint = l->state.fingerprint};
}

static ts_status no_state(const char *what, int64_t found, ts_error *err)
{
    return TS_ERROR(
        err, TS_INVALID_ARGUMENT,
        "the saved data position is not one: %s is %lld; the checkpoint is damaged, use an "
        "earlier one",
        what, (long long)found);
}

static ts_status check_range(const ts_loader *l, const ts_loader_state *s, ts_error *err)
{
    int64_t samples = l->stats.samples,
            limit = l->o.epochs > 0 ? l->o.epochs : INT64_MAX / samples - 1;
    if (s->epoch < 0) return no_state("epoch", s->epoch, err);
    if (s->index < 0 || s->index >= samples) return no_state("index", s->index, err);
    if (s->offset < 0) return no_state("offset", s->offset, err);
    if (s->batches < 0) return no_state("batches", s->batches, err);
    if (s->trained_tokens < 0) return no_state("trained_tokens", s->trained_tokens, err);
    if (s->padding < 0) return no_state("padding", s->padding, err);
    if (s->n_pending < 0 || s->n_pending > TS_LOADER_PENDING)
        return no_state("the number pending", s->n_pending, err);
    /* A run that asks for fewer epochs than are done has no data left; that is no damage. */
    if (s->epoch > INT64_MAX / samples - 1 || (l->o.epochs == 0 && s->epoch > limit))
        return no_state("epoch", s->epoch, err);
    int64_t now = s->epoch * samples + s->index;
    for (int64_t i = 0; i < s->n_pending; i++)
        if (s->pending[i] < 0 || s->pending[i] >= now)
            return no_state("a pending sample", s->pending[i], err);
    return TS_OK;
}

ts_status ts_loader_set_state(ts_loader *l, const ts_loader_state *s, ts_error *err)
{
    if (s->fingerprint != l->state.fingerprint)
        return TS_ERROR(
            err, TS_FAILED_PRECONDITION,
            "the saved data position (%016llx) belongs to other data or another order than "
            "this run's (%016llx); restore dataset_path, max_target_length, data_shuffle_seed, "
            "packing and "
            "tokenizer as they were, or start a run with a new name",
            (unsigned long long)s->fingerprint, (unsigned long long)l->state.fingerprint);
    TS_TRY(check_range(l, s, err));
    l->state = *s;
    for (int64_t i = s->n_pending; i < TS_LOADER_PENDING; i++) l->state.pending[i] = 0;
    return TS_OK;
}

/* ---- JSON ----------------------------------------------------------------------------------- */

static const struct {
    const char *key;
    size_t at;
} numbers[] = {
    {"epoch", offsetof(ts_loader_state, epoch)},
    {"index", offsetof(ts_loader_state, index)},
    {"offset", offsetof(ts_loader_state, offset)},
    {"batches", offsetof(ts_loader_state, batches)},
    {"trained_tokens", offsetof(ts_loader_state, trained_tokens)},
    {"padding", offsetof(ts_loader_state, padding)},
};
enum { NUMBERS = sizeof numbers / sizeof *numbers };

ts_status ts_loader_state_to_json(const ts_loader_state *s, json_t **out, ts_error *err)
{
    TS_ASSERT(s->n_pending >= 0 && s->n_pending <= TS_LOADER_PENDING);
    char fingerprint[20];
    snprintf(fingerprint, sizeof fingerprint, "%016llx", (unsigned long long)s->fingerprint);
    json_t *json = json_object(), *pending = json_array();
    /* The _new functions take over their value and fail when either side is NULL. */
    int bad = json_object_set_new(json, "fingerprint", json_string(fingerprint));
    for (size_t i = 0; i < NUMBERS; i++) {
        int64_t value;
        memcpy(&value, (const char *)s + numbers[i].at, sizeof value);
        bad |= json_object_set_new(json, numbers[i].key, json_integer(value));
    }
    for (int64_t i = 0; i < s->n_pending; i++)
        bad |= json_array_append_new(pending, json_integer(s->pending[i]));
    bad |= json_object_set_new(json, "pending", pending);
    if (bad) {
        json_decref(json);
        return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "out of memory for the data position");
    }
    *out = json;
    return TS_OK;
}

static ts_status read_number(const json_t *json, const char *key, int64_t *out, ts_error *err)
{
    const json_t *value = json_object_get(json, key);
    if (!json_is_integer(value))
        return TS_ERROR(
            err, TS_INVALID_ARGUMENT,
            "the saved data position has no whole number \"%s\"; the checkpoint is damaged, "
            "use an earlier one",
            key);
    *out = json_integer_value(value);
    return TS_OK;
}

ts_status ts_loader_state_from_json(const json_t *json, ts_loader_state *out, ts_error *err)
{
    ts_loader_state s = {0};
    const char *text = json_string_value(json_object_get(json, "fingerprint"));
    const json_t *pending = json_object_get(json, "pending");
    if (!text || strlen(text) != 16 || strspn(text, "0123456789abcdef") != 16)
        return TS_ERROR(
            err, TS_INVALID_ARGUMENT,
            "the saved data position has no \"fingerprint\" of 16 hexadecimal digits; the "
            "checkpoint is damaged, use an earlier one");
    s.fingerprint = strtoull(text, NULL, 16);
    for (size_t i = 0; i < NUMBERS; i++) {
        int64_t value = 0;
        TS_TRY(read_number(json, numbers[i].key, &value, err));
        memcpy((char *)&s + numbers[i].at, &value, sizeof value);
    }
    if (!json_is_array(pending) || json_array_size(pending) > TS_LOADER_PENDING)
        return TS_ERROR(
            err, TS_INVALID_ARGUMENT,
            "the saved data position has no list \"pending\" of at most %d samples; the "
            "checkpoint is damaged, use an earlier one",
            TS_LOADER_PENDING);
    s.n_pending = (int64_t)json_array_size(pending);
    for (int64_t i = 0; i < s.n_pending; i++) {
        const json_t *value = json_array_get(pending, (size_t)i);
        if (!json_is_integer(value))
            return TS_ERROR(
                err, TS_INVALID_ARGUMENT,
                "\"pending\" of the saved data position holds something that is no number");
        s.pending[i] = json_integer_value(value);
    }
    *out = s;
    return TS_OK;
}
