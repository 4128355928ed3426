/* train/changes.c – how this run's configuration differs from the one that a checkpoint was saved with.
 *
 * Both are written by the same writer and compared key by key as text, so a value that only looks another way is none.
 * A key that one of them lacks (another version's) is passed over. Two lists of keys matter: those that change what a
 * step computes, where the run that goes on is no longer the unbroken one, and those that decide the order of the data.
 *
 * Not here: differences that change nothing but the last bits (ts__say_program), sizes of the model (start.c).
 */
#include <stdio.h>

#include "base/yaml.h"
#include "train/save.h"

enum { LONGEST = 60 };

static const char *const of_steps[] = {
    "learning_rate", "lr_schedule_type", "learning_rate_schedule_steps", "warmup_steps_fraction",
    "learning_rate_final_fraction", "wsd_decay_steps_fraction", "wsd_decay_style", "adam_b1",
    "adam_b2", "adam_eps", "adam_weight_decay", "adamw_mask", "gradient_clipping_threshold",
    "frozen_parameters", "dtype", "matmul_precision", NULL};
static const char *const of_data[] = {
    "dataset_type", "dataset_path", "dataset_mixture", "train_data_columns", "tokenizer_type",
    "max_target_length", "packing", "grain_packing_type", "max_segments_per_seq", "add_bos", "add_eos",
    "use_truncation", "on_bad_row", "eval_fraction", "enable_data_shuffling", "data_shuffle_seed",
    NULL};

static bool is_same(const ts_yaml *a, const ts_yaml *b)
{
    if (a->kind != b->kind || a->n != b->n) return false;
    if (a->kind == TS_YAML_SCALAR) return strcmp(a->text, b->text) == 0;
    for (size_t i = 0; i < a->n; i++)
        if (!is_same(a->child[i], b->child[i])) return false;
    return true;
}

static bool is_long(const ts_yaml *v)
{
    size_t bytes = 0;
    for (size_t i = 0; i < v->n; i++)
        bytes += v->child[i]->kind == TS_YAML_SCALAR ? strlen(v->child[i]->text) + 2 : LONGEST + 1;
    return bytes > LONGEST;
}

/* Of a long text its end: paths differ there. */
static void add_text(ts_string *s, const char *text)
{
    size_t n = strlen(text), from = n > LONGEST ? n - LONGEST : 0;
    while (from > 0 && ((unsigned char)text[from] & 0xc0) == 0x80) from++;
    ts_string_printf(s, "%s%s", from > 0 ? "…" : n ? "" : "\"\"", text + from);
}

/* A value in few words: a long list is its length. */
static void add_value(ts_string *s, const ts_yaml *v)
{
    if (v->kind == TS_YAML_SCALAR) {
        add_text(s, v->text);
        return;
    }
    if (is_long(v)) {
        ts_string_printf(s, "[%zu item%s]", v->n, v->n == 1 ? "" : "s");
        return;
    }
    ts_string_add(s, "[");
    for (size_t i = 0; i < v->n; i++) {
        ts_string_add(s, i ? ", " : "");
        add_text(s, v->child[i]->text);
    }
    ts_string_add(s, "]");
}

/* Of two long lists the first item that differs says more. */
static void add_first(ts_string *s, const ts_yaml *a, const ts_yaml *b)
{
    size_t i = 0;
    if (a->kind != TS_YAML_LIST || b->kind != TS_YAML_LIST || !(is_long(a) || is_long(b))) return;
    while (i < a->n && i < b->n && is_same(a->child[i], b->child[i])) i++;
    const ts_yaml *item = i < b->n ? b->child[i] : i < a->n ? a->child[i] : NULL;
    if (!item || item->kind != TS_YAML_SCALAR) return;
    ts_string_add(s, i < b->n ? " (first: now " : " (first: no more ");
    add_text(s, item->text);
    ts_string_add(s, ")");
}

/* "learning_rate 0.001 → 5, adam_b2 0.95 → 0.5"; nothing where no key differs. */
static void compare(const ts_yaml *was, const ts_yaml *is, const char *const *keys, ts_string *out)
{
    for (size_t k = 0; keys[k]; k++) {
        const ts_yaml *a = ts_yaml_get(was, keys[k]), *b = ts_yaml_get(is, keys[k]);
        if (!a || !b || is_same(a, b)) continue;
        ts_string_printf(out, "%s%s ", out->length ? ", " : "", keys[k]);
        add_value(out, a);
        ts_string_add(out, " → ");
        add_value(out, b);
        add_first(out, a, b);
    }
}

/* What cannot be compared is not said: it stops no run. */
static ts_string changed(const ts_run *r, const json_t *state, const char *const *keys)
{
    ts_string text = ts_string_new(TS_CONFIG_TEXT_MAX), out = ts_string_new(2000);
    const char *before = json_string_value(json_object_get(state, "config"));
    ts_arena *arena = before ? ts_arena_new() : NULL;
    const ts_yaml *was, *is;
    if (arena) {
        ts_config_yaml(r->config, &text);
        if (!text.failed && text.data &&
            ts_yaml_parse(before, strlen(before), "checkpoint", arena, &was, NULL) == TS_OK &&
            ts_yaml_parse(text.data, text.length, "configuration", arena, &is, NULL) == TS_OK)
            compare(was, is, keys, &out);
    }
    ts_arena_free(arena);
    ts_string_free(&text);
    return out;
}

bool ts__say_changes(const ts_run *r, const json_t *state)
{
    ts_string out = changed(r, state, of_steps);
    const bool any = out.length > 0;
    if (any)
        ts__run_line(r,
                     "changed since the checkpoint: %.1500s; the state is the checkpoint's to the bit, but what "
                     "follows is not the unbroken run",
                     out.data);
    ts_string_free(&out);
    return any;
}

ts_status ts__other_data(const ts_run *r, const ts_checkpoint *c, ts_error *err)
{
    ts_string out = changed(r, ts_checkpoint_state(c), of_data);
    TS_ERROR(err, TS_FAILED_PRECONDITION,
             "the data, or its order, is not the checkpoint's: %.1500s. Restore it; or go on with weights, moments and "
             "step, and with the data from its beginning, by load_full_state_path=%s in a run of another name",
             out.length ? out.data : "no key of it changed, so a file grew, was cut or is another",
             ts_checkpoint_path(c));
    ts_string_free(&out);
    return TS_FAILED_PRECONDITION;
}
