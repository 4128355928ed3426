/* train/config.c – ts_config_load: lays the layers over each other, and turns every problem found on
 * the way into one message.
 *
 * A file named base.yml, or one with base_config, lies under the model's preset, as in MaxText; any
 * other file lies over it. Then words of the command line, then the environment. Two layers that
 * contradict each other about the model are a problem unless override_model_config=true; the
 * environment never contradicts.
 * Not here: reading a layer (config_layers.c), values (config_value.c), rules (config_check.c).
 */
#include "train/config_internal.h"

#include <stdarg.h>
#include <stdio.h>

/* ---- problems and notes ---------------------------------------------------------------------- */

static const char *format(ts_loading *l, const char *fmt, va_list args)
{
    char text[1200];
    vsnprintf(text, sizeof text, fmt, args);
    const char *copy = ts_arena_strdup(l->arena, text);
    if (!copy) l->out_of_memory = true;
    return copy ? copy : "";
}

static void add_problem(ts_loading *l, const char *what, const char *why)
{
    ts_problem *p = ts_arena_alloc(l->arena, sizeof *p);
    if (!p) {
        l->out_of_memory = true;
        return;
    }
    *p = (ts_problem){what, why, NULL};
    *l->last = p;
    l->last = &p->next;
    l->n_problems++;
}

void ts__problem(ts_loading *l, const char *what, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    add_problem(l, what, format(l, fmt, args));
    va_end(args);
}

void ts__key_problem(ts_loading *l, int k, const char *fmt, ...)
{
    const ts_setting *s = &l->set[l->from[k]][k];
    bool written = l->from[k] != TS_LAYER_NONE;
    if (l->bad[k]) return;
    if (l->from[k] == TS_LAYER_FILE) /* base.yml repeats the defaults; nobody chose them there */
        written = strcmp(ts__value_text(s->value, l->arena), ts__keys[k].initial) != 0;
    l->bad[k] = true;
    va_list args;
    va_start(args, fmt);
    const char *why = format(l, fmt, args);
    va_end(args);
    const char *value =
        written ? ts__value_text(s->value, l->arena) : ts__key_text(l->c, k, l->arena);
    const char *what = ts_arena_printf(l->arena, "%s=%s", ts__keys[k].name, value);
    if (written && s->where) why = ts_arena_printf(l->arena, "%s (%s)", why, s->where);
    if (!written) why = ts_arena_printf(l->arena, "%s (the default)", why);
    if (what && why)
        add_problem(l, what, why);
    else
        l->out_of_memory = true;
}

void ts__note(ts_loading *l, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    const char *text = format(l, fmt, args);
    va_end(args);
    if (l->n_notes < l->notes_capacity) l->notes[l->n_notes++] = text;
}

/* Characters, not bytes: the columns line up for UTF-8 too. */
static size_t width_of(const char *text)
{
    size_t n = 0;
    for (; *text; text++) n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

static ts_status no_memory(ts_error *err)
{
    return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "out of memory while reading the configuration");
}

void ts__problems_clear(ts_loading *l)
{
    l->first = NULL;
    l->last = &l->first;
    l->n_problems = 0;
    l->out_of_memory = false;
    memset(l->bad, 0, sizeof l->bad);
}

ts_status ts__problems_report(ts_loading *l, ts_error *err)
{
    if (l->out_of_memory) return no_memory(err);
    if (!l->n_problems) return TS_OK;
    enum { WIDEST = 44, ROOM = sizeof err->msg - 64 };
    size_t width = 0, shown = 0;
    for (const ts_problem *p = l->first; p; p = p->next) {
        size_t w = width_of(p->what);
        if (w > width && w <= WIDEST) width = w;
    }
    ts_string s = ts_string_new(sizeof err->msg);
    ts_string_printf(&s, "%zu error%s in the configuration, nothing was started\n", l->n_problems,
                     l->n_problems == 1 ? "" : "s");
    for (const ts_problem *p = l->first; p; p = p->next, shown++) {
        size_t w = width_of(p->what), pad = w < width ? width - w : 0;
        if (s.length + strlen(p->what) + pad + strlen(p->why) + 8 > ROOM) break;
        ts_string_printf(&s, "\n  %s%*s   %s", p->what, (int)pad, "", p->why);
    }
    if (shown < l->n_problems) ts_string_printf(&s, "\n  and %zu more", l->n_problems - shown);
    ts_status status = s.failed ? no_memory(err) : TS_ERROR(err, TS_INVALID_ARGUMENT, "%s", s.data);
    ts_string_free(&s);
    return status;
}

/* ---- layers over each other ------------------------------------------------------------------ */

/* The layer that a key's value comes from. */
static ts_layer top_layer(const ts_loading *l, int k)
{
    static const ts_layer under[] = {TS_LAYER_ENV, TS_LAYER_WORD, TS_LAYER_MODEL, TS_LAYER_FILE};
    static const ts_layer over[] = {TS_LAYER_ENV, TS_LAYER_WORD, TS_LAYER_FILE, TS_LAYER_MODEL};
    const ts_layer *order = l->layered ? over : under;
    for (int i = 0; i < 4; i++)
        if (l->set[order[i]][k].value) return order[i];
    return TS_LAYER_NONE;
}

/* Takes one key, from the top layer, into its field. */
static void take(ts_loading *l, int k)
{
    l->from[k] = top_layer(l, k);
    if (l->from[k] == TS_LAYER_NONE) return;
    const char *wrong = ts__key_set(l->c, k, l->set[l->from[k]][k].value);
    if (wrong) ts__key_problem(l, k, "%s", wrong);
}

/* Whether two layers say the same once both are read; a value that cannot be read is reported elsewhere. */
static bool same(ts_loading *l, int k, ts_layer a, ts_layer b)
{
    if (ts__key_set(l->c, k, l->set[a][k].value)) return true;
    const char *x = ts__key_yaml(l->c, k, l->arena);
    if (ts__key_set(l->c, k, l->set[b][k].value)) return true;
    return !strcmp(x, ts__key_yaml(l->c, k, l->arena));
}

/* A key that the preset sets, set again by layer. */
static void check_against_preset(ts_loading *l, int k, ts_layer layer)
{
    if (!l->set[layer][k].value || same(l, k, TS_LAYER_MODEL, layer)) return;
    l->from[k] = layer;
    ts__key_problem(l, k, "the preset %s says %s; to differ add override_model_config=true",
                    l->c->model_name, ts__value_text(l->set[TS_LAYER_MODEL][k].value, l->arena));
}

static void check_conflicts(ts_loading *l)
{
    for (int k = 0; k < TS_KEYS; k++) {
        bool word = l->set[TS_LAYER_WORD][k].value, env = l->set[TS_LAYER_ENV][k].value;
        l->from[k] = TS_LAYER_ENV;
        if (word && env)
            ts__key_problem(l, k, "also set on the command line, as %s; keep one of the two",
                            ts__value_text(l->set[TS_LAYER_WORD][k].value, l->arena));
        if (!l->set[TS_LAYER_MODEL][k].value) continue;
        if (env)
            ts__key_problem(
                l, k,
                "the environment may not change what the preset %s sets (%s); write it as "
                "key=value with override_model_config=true",
                l->c->model_name, ts__value_text(l->set[TS_LAYER_MODEL][k].value, l->arena));
        if (l->c->override_model_config) continue;
        check_against_preset(l, k, TS_LAYER_WORD);
        if (l->layered && !word) check_against_preset(l, k, TS_LAYER_FILE);
    }
}

static void take_defaults(ts_loading *l)
{
    for (int k = 0; k < TS_KEYS; k++) {
        const ts_yaml *v = ts__value_of_word(k, ts__keys[k].initial, l->arena);
        const char *wrong = v ? ts__key_set(l->c, k, v) : "out of memory";
        if (wrong) l->out_of_memory = true;
    }
}

/* Whether the file changes what the preset or the default says. */
static bool file_differs(ts_loading *l, int k)
{
    const ts_yaml *usual = l->set[TS_LAYER_MODEL][k].value;
    ts_config *scratch = ts_arena_alloc(l->arena, sizeof *scratch);
    if (!usual) usual = ts__value_of_word(k, ts__keys[k].initial, l->arena);
    if (!usual || !scratch) {
        l->out_of_memory = true;
        return false;
    }
    scratch->arena = l->arena;
    if (ts__key_set(scratch, k, usual)) return true;
    return strcmp(ts__key_yaml(l->c, k, l->arena), ts__key_yaml(scratch, k, l->arena)) != 0;
}

/* A MaxText user who sets a key that does nothing here must hear of it; a complete file that repeats
 * a default, such as a run's own config.yml, sets nothing. */
static void note_idle(ts_loading *l)
{
    for (int k = 0; k < TS_KEYS; k++) {
        const ts_key *key = &ts__keys[k];
        if (key->status != TS_KEY_IDLE || l->bad[k]) continue;
        bool said = l->from[k] == TS_LAYER_WORD || l->from[k] == TS_LAYER_ENV;
        if (l->from[k] == TS_LAYER_FILE) said = file_differs(l, k);
        const char *value =
            strcmp(key->name, "hf_access_token") ? ts__key_text(l->c, k, l->arena) : "…";
        if (said) ts__note(l, "%s=%.80s has no effect yet (%s)", key->name, value, key->doc);
    }
}

static void load(ts_loading *l, const char *file, const char *const *words, int n)
{
    static const int early[] = {TS_K_model_name, TS_K_override_model_config};
    take_defaults(l);
    ts__layer_file(l, file);
    ts__layer_words(l, words, n);
    ts__layer_environment(l);
    for (int i = 0; i < 2; i++) take(l, early[i]);
    ts__layer_model(l, l->c->model_name);
    check_conflicts(l);
    take_defaults(l);
    for (int k = 0; k < TS_KEYS; k++) take(l, k);
    if (!l->out_of_memory) ts__config_expand_paths(l);
    if (l->out_of_memory) return;
    ts__config_derive(l);
    ts__config_check_paths(l);
    note_idle(l);
    l->c->n_notes = l->n_notes;
    l->c->notes = l->notes;
}

ts_status ts_config_load(const char *file, const char *const *overrides, int n, ts_config **out,
                         ts_error *err)
{
    ts_arena *arena = ts_arena_new();
    ts_loading *l = arena ? ts_arena_alloc(arena, sizeof *l) : NULL;
    *out = NULL;
    if (l) {
        l->arena = arena;
        l->last = &l->first;
        l->notes_capacity = TS_KEYS + 32;
        l->c = ts_arena_alloc(arena, sizeof *l->c);
        l->notes = ts_arena_alloc(arena, l->notes_capacity * sizeof *l->notes);
    }
    if (!l || !l->c || !l->notes) {
        ts_arena_free(arena);
        return no_memory(err);
    }
    l->c->arena = arena;
    l->c->loading = l;
    l->c->model_file = "";
    load(l, file ? file : "base.yml", overrides, n);
    ts_status status = ts__problems_report(l, err);
    if (status == TS_OK)
        *out = l->c;
    else
        ts_arena_free(arena);
    return status;
}

ts_status ts_config_load_words(const char *const *words, int n, ts_config **out, ts_error *err)
{
    size_t length = n > 0 ? strlen(words[0]) : 0;
    bool file = length > 4 && !strchr(words[0], '=') &&
                (!strcmp(words[0] + length - 4, ".yml") || !strcmp(words[0] + length - 5, ".yaml"));
    return file ? ts_config_load(words[0], words + 1, n - 1, out, err)
                : ts_config_load(NULL, words, n, out, err);
}

void ts_config_free(ts_config *c)
{
    if (c) ts_arena_free(c->arena);
}
