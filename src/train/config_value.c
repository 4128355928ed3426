/* train/config_value.c – the table of keys, and single values: from YAML to a typed field, limits,
 * and back to text.
 *
 * Words for truth are those of MaxText's environment and of YAML 1.1; "none" is null. A value that
 * does not fit is described with what would: the sentence goes beside key=value in the message.
 * Not here: where a value came from (config_layers.c), rules between keys (config_check.c).
 */
#include "train/config_internal.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#define ROW(field, text, kind, start, state, range, words)                                         \
    {.name = text,                                                                                 \
     .type = TS_KEY_##kind,                                                                        \
     .status = TS_KEY_##state,                                                                     \
     .initial = start,                                                                             \
     .limits = range,                                                                              \
     .doc = words,                                                                                 \
     .offset = offsetof(ts_config, field)},

const ts_key ts__keys[TS_KEYS] = {
#define GROUP(title)
#define KEY(name, ...)         ROW(name, #name, __VA_ARGS__)
#define SUB(parent, name, ...) ROW(parent##_##name, #parent "." #name, __VA_ARGS__)
#include "train/config_keys.def"
#undef GROUP
#undef KEY
#undef SUB
};

/* Where a value is refused, the sentence that helps more than the list of what is accepted. A NULL
 * value stands for every refused one. */
static const struct {
    int key;
    const char *value, *why;
} reasons[] = {
    {TS_K_dataset_type, "tfds",
     "TensorFlow datasets are not read; write the rows to FILE and set dataset_type=jsonl "
     "dataset_path=FILE"},
    {TS_K_dataset_type, "hf",
     "hub datasets are not read; write the rows to FILE and set dataset_type=jsonl "
     "dataset_path=FILE"},
    {TS_K_dataset_type, "grain",
     "grain files are not read; write the rows to FILE and set dataset_type=jsonl "
     "dataset_path=FILE"},
    {TS_K_dataset_type, "olmo_grain",
     "OLMo's arrays are not read; llm.c's .bin files are: dataset_type=tokens dataset_path=FILE"},
    {TS_K_dataset_type, "c4_mlperf",
     "TensorFlow datasets are not read; write the rows to FILE and set dataset_type=jsonl "
     "dataset_path=FILE"},
    {TS_K_tokenizer_type, NULL,
     "not available in this version; byte is, and dataset_type=tokens takes ids made elsewhere"},
    {TS_K_remat_policy, NULL,
     "not available in this version; full computes each layer again, minimal keeps the results of "
     "products, none keeps everything"},
    {TS_K_opt_type, NULL, "not available; adamw is the optimizer"},
    {TS_K_quantization, NULL,
     "quantized training is not available; leave it empty and choose dtype=bfloat16 or float32"},
    {TS_K_decoder_block, NULL,
     "not available in this version; llama2 is, for Llama 2, 3, 3.1 and 3.2"},
    {TS_K_dtype, NULL, "not available; bfloat16 or float32"},
    {TS_K_weight_dtype, NULL,
     "master weights are float32; dtype=bfloat16 sets activations and products"},
    {TS_K_dropout_rate, NULL, "dropout is not available; 0 works"},
    {TS_K_use_sft, NULL,
     "not available in this version; rows of jsonl train on all their text (train_data_columns)"},
    {TS_K_use_dpo, NULL, "preference optimization is not available; false works"},
    {TS_K_lora_enable_lora, NULL,
     "adapters are not available in this version; frozen_parameters trains a part of the weights"},
    {TS_K_trainable_parameters_mask, NULL,
     "not available; frozen_parameters=[PATTERN] says the opposite"},
    {TS_K_sliding_window_size, NULL, "llama2 layers see all earlier tokens; 0 works"},
    {TS_K_final_logits_soft_cap, NULL, "llama2 does not cap its logits; 0 works"},
    {TS_K_mlp_activations, NULL, "llama2 layers have silu,linear"},
    {TS_K_tokenize_train_data, NULL,
     "for rows that hold tokens set dataset_type=tokens; true works"},
    {TS_K_profiler, "nsys",
     "starts no profiler of NVIDIA's; run `nsys profile tessera train …`, or set xplane"},
    {TS_K_skip_step_on_spikes, NULL,
     "not available; spike_policy=rollback goes back behind a spike of the loss, and "
     "abort_on_nan_loss=false skips steps that are not finite"},
};

/* Other programs' names for keys of ours. */
static const struct {
    const char *habit, *key;
} habits[] = {
    {"lr", "learning_rate"},
    {"batch_size", "per_device_batch_size"},
    {"seq_len", "max_target_length"},
    {"sequence_length", "max_target_length"},
    {"max_seq_len", "max_target_length"},
    {"max_steps", "steps"},
    {"num_steps", "steps"},
    {"epochs", "num_epoch"},
    {"num_epochs", "num_epoch"},
    {"seed", "init_weights_seed"},
    {"weight_decay", "adam_weight_decay"},
    {"model", "model_name"},
    {"data", "dataset_path"},
    {"dataset", "dataset_type"},
    {"output_dir", "base_output_directory"},
    {"name", "run_name"},
    {"cosine_learning_rate_final_fraction", "learning_rate_final_fraction"},
    {"num_layers", "base_num_decoder_layers"},
    {"hidden_size", "base_emb_dim"},
    {"grad_clip", "gradient_clipping_threshold"},
    {"tokenizer", "tokenizer_type"},
    {"rope_theta", "rope_max_timescale"},
    {"window", "sliding_window_size"},
};

int ts__key_find(const char *name)
{
    for (int k = 0; k < TS_KEYS; k++)
        if (!strcmp(ts__keys[k].name, name)) return k;
    return -1;
}

bool ts__key_is_block(const char *name)
{
    size_t n = strlen(name);
    for (int k = 0; k < TS_KEYS; k++)
        if (!strncmp(ts__keys[k].name, name, n) && ts__keys[k].name[n] == '.') return true;
    return false;
}

const char *ts__key_nearest(const char *name)
{
    const char *names[TS_KEYS];
    for (size_t i = 0; i < sizeof habits / sizeof *habits; i++)
        if (!strcmp(habits[i].habit, name)) return habits[i].key;
    for (int k = 0; k < TS_KEYS; k++) names[k] = ts__keys[k].name;
    const char *rest = strchr(name, '.') ? strchr(name, '.') + 1 : name;
    for (int k = 0; k < TS_KEYS; k++) { /* lora_rank, lora.rank and rank for lora.lora_rank */
        const char *own = strchr(names[k], '.');
        size_t n = own ? strlen(++own) : 0, m = strlen(rest);
        if (n && m >= 4 && n >= m && !strcmp(own + n - m, rest) &&
            (n == m || own[n - m - 1] == '_'))
            return names[k];
    }
    return strlen(name) > 100 ? NULL : ts_nearest_word(name, names, TS_KEYS);
}

/* ---- limits ---------------------------------------------------------------------------------- */

/* One alternative of limits: a range with bounds, or a literal. */
typedef struct limit {
    bool range, has_low, has_high, above, below;
    double low, high;
    char word[64];
} limit;

static const char *next_limit(const char *at, limit *out)
{
    size_t n = strcspn(at, "|");
    TS_ASSERT(n < sizeof out->word);
    *out = (limit){0};
    memcpy(out->word, at, n);
    char *dots = strstr(out->word, "..");
    if (dots) {
        const char *low = out->word, *high = dots + 2;
        out->range = true;
        if ((out->above = *low == '>')) low++;
        if ((out->below = *high == '<')) high++;
        out->has_low = low < dots;
        out->has_high = *high != 0;
        out->low = strtod(low, NULL);
        out->high = strtod(high, NULL);
    }
    return at[n] ? at + n + 1 : NULL;
}

static bool number_fits(const char *limits, double x)
{
    for (const char *at = limits; at;) {
        limit m;
        at = next_limit(at, &m);
        if (!m.range) {
            if (x == strtod(m.word, NULL)) return true;
            continue;
        }
        bool low = !m.has_low || (m.above ? x > m.low : x >= m.low);
        bool high = !m.has_high || (m.below ? x < m.high : x <= m.high);
        if (low && high) return true;
    }
    return false;
}

static bool word_fits(const char *limits, const char *word)
{
    for (const char *at = limits; at;) {
        limit m;
        at = next_limit(at, &m);
        if (!strcmp(m.word, word)) return true;
    }
    return false;
}

static void describe_range(ts_string *s, const limit *m)
{
    if (m->has_low && m->has_high)
        ts_string_printf(s, "%s%.12g %s %.12g", m->above ? "above " : "from ", m->low,
                         m->below ? "to below" : "to", m->high);
    else if (m->has_low)
        ts_string_printf(s, "%s %.12g", m->above ? "above" : "at least", m->low);
}

/* "cosine or wsd", "-1 or at least 1". */
static const char *describe(const char *limits, ts_arena *arena)
{
    ts_string s = ts_string_new(4096);
    for (const char *at = limits; at;) {
        limit m;
        const char *next = next_limit(at, &m);
        if (at != limits) ts_string_add(&s, next ? ", " : " or ");
        if (m.range)
            describe_range(&s, &m);
        else
            ts_string_add(&s, m.word[0] ? m.word : "an empty value");
        at = next;
    }
    const char *text = ts_arena_strdup(arena, s.data && !s.failed ? s.data : "");
    ts_string_free(&s);
    return text ? text : "";
}

/* Why value is outside the limits of key k. */
static const char *refuse(int k, const char *value, bool is_word, ts_arena *arena)
{
    const ts_key *key = &ts__keys[k];
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
        if (reasons[i].key == k && (!reasons[i].value || !strcmp(reasons[i].value, value)))
            return reasons[i].why;
    const char *choices = describe(key->limits, arena), *text;
    if (key->status == TS_KEY_FIXED) {
        text = ts_arena_printf(arena, "%s: not available in this version; only %s works", key->doc,
                               choices);
        return text ? text : "";
    }
    const char *words[16], *near = NULL;
    size_t n = 0;
    for (const char *at = key->limits; is_word && at && n < 16;) {
        limit m;
        at = next_limit(at, &m);
        if (!m.range && (words[n] = ts_arena_strdup(arena, m.word))) n++;
    }
    if (n && strlen(value) < 100) near = ts_nearest_word(value, words, n);
    text = near ? ts_arena_printf(arena, "expected %s; did you mean %s?", choices, near)
                : ts_arena_printf(arena, "expected %s", choices);
    return text ? text : "";
}

/* ---- from YAML to a field -------------------------------------------------------------------- */

static bool is_null(const ts_yaml *v)
{
    return ts_yaml_is_null(v) ||
           (v->kind == TS_YAML_SCALAR && !v->quoted && !strcasecmp(v->text, "none"));
}

static bool as_bool(const ts_yaml *v, bool *out)
{
    static const char *const yes[] = {"y", "yes", "t", "true", "1", "on"};
    static const char *const no[] = {"n", "no", "f", "false", "0", "off"};
    for (size_t i = 0; i < 6; i++) {
        if (!strcasecmp(v->text, yes[i])) return *out = true;
        if (!strcasecmp(v->text, no[i])) return !(*out = false);
    }
    return false;
}

/* Whole numbers also as 1e3 or 100.0. */
static bool as_int(const ts_yaml *v, int64_t *out)
{
    double x;
    if (ts_yaml_as_i64(v, out)) return true;
    if (!ts_yaml_as_f64(v, &x) || !(fabs(x) < 9e15) || x != floor(x)) return false;
    *out = (int64_t)x;
    return true;
}

static const char *set_number(ts_config *c, int k, const ts_yaml *v, void *field)
{
    const ts_key *key = &ts__keys[k];
    ts_yaml plain = *v; /* "8" in quotes is 8 */
    double x = 0;
    if (key->type == TS_KEY_COUNT && is_null(v)) {
        *(int64_t *)field = -1;
        return NULL;
    }
    plain.quoted = false;
    if (key->type == TS_KEY_FLOAT) {
        if (!ts_yaml_as_f64(&plain, &x) || !isfinite(x)) return "expected a number";
        *(double *)field = x;
    } else {
        int64_t i;
        if (!as_int(&plain, &i)) return "expected a whole number";
        *(int64_t *)field = i;
        x = (double)i;
    }
    return key->limits && !number_fits(key->limits, x) ? refuse(k, v->text, false, c->arena) : NULL;
}

/* A list whose bracket or quote was never closed, which only a word can be: a YAML file would not
 * have been read. */
static bool is_open(const ts_yaml *v)
{
    const char *text = v->text;
    if (v->kind == TS_YAML_LIST) {
        for (size_t i = 0; i < v->n; i++)
            if (v->child[i]->kind == TS_YAML_SCALAR && !v->child[i]->quoted &&
                strchr("\"'", v->child[i]->text[0]) && v->child[i]->text[0])
                return true;
        return false;
    }
    return !v->quoted && (*text == '[' || *text == '"' || *text == '\'');
}

static const char *set_list(ts_config *c, int k, const ts_yaml *v, ts_config_list *field)
{
    const ts_key *key = &ts__keys[k];
    if (is_open(v))
        return "a bracket or quote is not closed; expected [a, b], or [\"a, b\"] for a name with a comma";
    size_t n = v->kind == TS_YAML_LIST ? v->n : 1;
    if (v->kind == TS_YAML_SCALAR) {
        if (is_null(v) || !*v->text) n = 0;
        for (const char *p = v->text; n && (p = strchr(p, ',')); p++) n++;
    }
    const char **item = ts_arena_alloc(c->arena, (n + 1) * sizeof *item);
    if (!item) return "out of memory";
    ts_string joined = ts_string_new(1 << 20);
    const char *at = v->text;
    for (size_t i = 0; i < n; i++) {
        if (v->kind == TS_YAML_LIST) {
            if (v->child[i]->kind != TS_YAML_SCALAR) {
                ts_string_free(&joined);
                return "expected a list of words; it has a list or block inside";
            }
            item[i] = ts_arena_strdup(c->arena, v->child[i]->text);
        } else {
            size_t length = strcspn(at, ",");
            item[i] = ts_arena_strndup(c->arena, at, length);
            at += length + 1;
        }
        if (!item[i]) {
            ts_string_free(&joined);
            return "out of memory";
        }
        ts_string_printf(&joined, "%s%s", i ? "," : "", item[i]);
    }
    bool fits = !key->limits || word_fits(key->limits, joined.data ? joined.data : "");
    ts_string_free(&joined);
    *field = (ts_config_list){n, item};
    return fits ? NULL : refuse(k, "", false, c->arena);
}

static const char *set_string(ts_config *c, int k, const ts_yaml *v, const char **field)
{
    const char *limits = ts__keys[k].limits;
    bool none = is_null(v) && !(limits && word_fits(limits, v->text));
    *field = ts_arena_strdup(c->arena, none ? "" : v->text);
    if (!*field) return "out of memory";
    return limits && !word_fits(limits, *field) ? refuse(k, *field, true, c->arena) : NULL;
}

const char *ts__key_set(ts_config *c, int k, const ts_yaml *v)
{
    const ts_key *key = &ts__keys[k];
    void *field = (char *)c + key->offset;
    if (key->type == TS_KEY_RULES) return ts__rules_set(c, v, field);
    if (v->kind == TS_YAML_MAP) return "expected a value, found a block";
    if (key->type == TS_KEY_LIST) return set_list(c, k, v, field);
    if (v->kind != TS_YAML_SCALAR) return "expected one value, found a list";
    if (key->type == TS_KEY_STRING) return set_string(c, k, v, field);
    if (key->type != TS_KEY_BOOL) return set_number(c, k, v, field);
    if (!as_bool(v, field)) return "expected true or false";
    if (key->limits && !word_fits(key->limits, *(bool *)field ? "true" : "false"))
        return refuse(k, v->text, false, c->arena);
    return NULL;
}

/* ---- key=value words ------------------------------------------------------------------------- */

static const ts_yaml *scalar(const char *text, size_t n, bool quoted, ts_arena *arena)
{
    ts_yaml *v = ts_arena_alloc(arena, sizeof *v);
    char *copy = ts_arena_strndup(arena, text, n);
    if (!v || !copy) return NULL;
    *v = (ts_yaml){.kind = TS_YAML_SCALAR, .text = copy, .quoted = quoted};
    return v;
}

/* What text means as a value in a file; NULL: it means nothing there. */
static const ts_yaml *as_yaml(const char *text, size_t n, ts_arena *arena)
{
    const ts_yaml *document = NULL;
    char *line = ts_arena_printf(arena, "v: %.*s", (int)n, text);
    if (!line || ts_yaml_parse(line, strlen(line), "", arena, &document, NULL) != TS_OK) return NULL;
    return ts_yaml_get(document, "v");
}

/* A word in quotes is read as YAML, with its escapes; anything else is taken as it stands, so that
 * `a: b`, `*` and `#` need none. */
static const ts_yaml *unquote(const char *text, size_t n, ts_arena *arena)
{
    if (n >= 2 && (text[0] == '"' || text[0] == '\'') && text[n - 1] == text[0]) {
        const ts_yaml *v = as_yaml(text, n, arena);
        if (v && v->kind == TS_YAML_SCALAR) return v;
    }
    return scalar(text, n, false, arena);
}

/* End of the list item that starts at text: the next comma outside quotes. */
static size_t item_length(const char *text, size_t n)
{
    char quote = 0;
    for (size_t i = 0; i < n; i++) {
        if (quote)
            quote = text[i] == quote ? 0 : quote;
        else if (text[i] == '"' || text[i] == '\'')
            quote = text[i];
        else if (text[i] == ',')
            return i;
    }
    return n;
}

static void trim(const char **text, size_t *n)
{
    while (*n && isspace((unsigned char)**text)) (*text)++, (*n)--;
    while (*n && isspace((unsigned char)(*text)[*n - 1])) (*n)--;
}

const ts_yaml *ts__value_of_word(int k, const char *text, ts_arena *arena)
{
    size_t n = strlen(text);
    if (n > INT32_MAX) return NULL;
    if (ts__keys[k].type == TS_KEY_STRING) return unquote(text, n, arena);
    trim(&text, &n);
    if (ts__keys[k].type == TS_KEY_RULES && (*text == '[' || *text == '{')) {
        const ts_yaml *v = as_yaml(text, n, arena);
        if (v) return v;
    }
    if (ts__keys[k].type != TS_KEY_LIST || n < 2 || text[0] != '[' || text[n - 1] != ']')
        return unquote(text, n, arena);

    ts_yaml *list = ts_arena_alloc(arena, sizeof *list);
    size_t most = 1;
    text++, n -= 2;
    for (size_t i = 0; i < n; i++) most += text[i] == ',';
    if (!list || !(list->child = ts_arena_alloc(arena, most * sizeof *list->child))) return NULL;
    list->kind = TS_YAML_LIST;
    for (bool more = true; more;) {
        size_t length = item_length(text, n), used = length;
        const char *item = text;
        trim(&item, &length);
        if (length) {
            const ts_yaml *v = unquote(item, length, arena);
            if (!v) return NULL;
            list->child[list->n++] = (ts_yaml *)v;
        }
        more = used < n;
        text += more ? used + 1 : used;
        n -= more ? used + 1 : used;
    }
    return list;
}

/* ---- back to text ---------------------------------------------------------------------------- */

enum { MOST = 48 }; /* bytes of a value that are shown */

/* Depth is bounded by the reader of YAML. */
static void add_value(ts_string *s, const ts_yaml *v)
{
    if (v->kind == TS_YAML_MAP) ts_string_add(s, "{…}");
    if (v->kind == TS_YAML_SCALAR) ts_string_add_bytes(s, v->text, strnlen(v->text, MOST + 8));
    if (v->kind != TS_YAML_LIST) return;
    ts_string_add(s, "[");
    for (size_t i = 0; i < v->n && s->length <= MOST; i++) {
        if (i) ts_string_add(s, ",");
        add_value(s, v->child[i]);
    }
    ts_string_add(s, "]");
}

const char *ts__value_text(const ts_yaml *v, ts_arena *arena)
{
    ts_string s = ts_string_new(1 << 16);
    add_value(&s, v);
    char *text = ts_arena_printf(arena, "%s", s.data ? s.data : "");
    if (text && s.length > MOST) {
        size_t n = MOST;
        while (n && ((unsigned char)text[n] & 0xc0) == 0x80) n--; /* not inside a character */
        text = ts_arena_printf(arena, "%.*s…", (int)n, text);
    }
    ts_string_free(&s);
    for (char *p = text; p && *p; p++)
        if ((unsigned char)*p < 32 || *p == 127) *p = '?';
    return text ? text : "";
}

/* The shortest decimal that reads back as x, with a point, so that YAML 1.1 sees a float. */
static void add_double(ts_string *s, double x)
{
    char digits[40], *e;
    for (int n = 1; n <= 17; n++) {
        snprintf(digits, sizeof digits, "%.*g", n, x);
        if (strtod(digits, NULL) == x) break;
    }
    if (strchr(digits, '.'))
        ts_string_add(s, digits);
    else if ((e = strchr(digits, 'e')))
        ts_string_printf(s, "%.*s.0%s", (int)(e - digits), digits, e);
    else
        ts_string_printf(s, "%s.0", digits);
}

/* Characters that YAML does not take as they are, or takes for the end of a line. */
static bool needs_escape(uint32_t c)
{
    return (c >= 0x80 && c < 0xa0) || c == 0x2028 || c == 0x2029 || c == 0xfeff || c == 0xfffe ||
           c == 0xffff;
}

/* text is valid UTF-8: the layers take nothing else. */
static void add_quoted(ts_string *s, const char *text)
{
    ts_string_add(s, "\"");
    for (const unsigned char *p = (const unsigned char *)text; *p;) {
        size_t n = *p < 0x80 ? 1 : *p < 0xe0 ? 2 : *p < 0xf0 ? 3 : 4;
        uint32_t c = n == 1 ? *p : *p & (0x7fu >> n);
        for (size_t i = 1; i < n; i++) c = c << 6 | (p[i] & 0x3f);
        if (c == '"' || c == '\\')
            ts_string_printf(s, "\\%c", (int)c);
        else if (c == '\n')
            ts_string_add(s, "\\n");
        else if (c == '\t')
            ts_string_add(s, "\\t");
        else if (c < 32 || c == 127)
            ts_string_printf(s, "\\x%02X", (unsigned)c);
        else if (needs_escape(c))
            ts_string_printf(s, "\\u%04X", (unsigned)c);
        else
            ts_string_add_bytes(s, p, n);
        p += n;
    }
    ts_string_add(s, "\"");
}

static const char *to_text(const ts_config *c, int k, bool yaml, ts_arena *arena)
{
    const void *field = (const char *)c + ts__keys[k].offset;
    ts_string s = ts_string_new(TS_CONFIG_TEXT_MAX);
    if (ts__keys[k].type == TS_KEY_RULES) yaml = true; /* there are commas inside of an item */
    switch (ts__keys[k].type) {
    case TS_KEY_BOOL: ts_string_add(&s, *(const bool *)field ? "true" : "false"); break;
    case TS_KEY_INT: ts_string_printf(&s, "%lld", (long long)*(const int64_t *)field); break;
    case TS_KEY_COUNT:
        if (*(const int64_t *)field < 0)
            ts_string_add(&s, "null");
        else
            ts_string_printf(&s, "%lld", (long long)*(const int64_t *)field);
        break;
    case TS_KEY_FLOAT: add_double(&s, *(const double *)field); break;
    case TS_KEY_STRING: {
        const char *text = *(const char *const *)field;
        if (yaml)
            add_quoted(&s, text);
        else
            ts_string_add(&s, text);
        break;
    }
    case TS_KEY_RULES:
    case TS_KEY_LIST: {
        const ts_config_list *list = field;
        ts_string_add(&s, "[");
        for (size_t i = 0; i < list->n; i++) {
            if (i) ts_string_add(&s, ", ");
            if (yaml)
                add_quoted(&s, list->item[i]);
            else
                ts_string_add(&s, list->item[i]);
        }
        ts_string_add(&s, "]");
        break;
    }
    }
    const char *text = s.failed ? NULL : ts_arena_strdup(arena, s.data ? s.data : "");
    ts_string_free(&s);
    return text ? text : "";
}

const char *ts__key_yaml(const ts_config *c, int k, ts_arena *arena)
{
    return to_text(c, k, true, arena);
}
const char *ts__key_text(const ts_config *c, int k, ts_arena *arena)
{
    return to_text(c, k, false, arena);
}
