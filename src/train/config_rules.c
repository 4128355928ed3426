/* train/config_rules.c – logical_axis_rules: which axes of the mesh split the dimensions of a name.
 *
 * Written as MaxText does, [[mlp, [tensor]], [embed, fsdp]], or as one string a rule, "mlp: tensor"; `mlp:` takes none.
 * A rule replaces the default one of its name (ts_axis_rules_default); the field then holds all of them, as strings.
 * MaxText's names for the same dimension are taken; others are refused with the nearest.
 *
 * Each name has its axes: a rule may leave them out or order them, and only batch must keep both of its own. Other
 * combinations cannot work on any mesh, since one value has its batch, its sequence and its width split at once.
 * Not here: from a rule and a value to its spec (mesh/rules.c).
 */
#include "train/config_internal.h"

#include <ctype.h>

enum { MAX_RULES = 64, NAME_MAX_BYTES = 64 };

/* Bits of ts_user_axis; those that a name may take, and what is said of others. */
static const struct {
    const char *name, *why;
    unsigned may, must;
} names[] = {
    {"batch",
     "tensor splits the sequence and the width of the same values; batch takes data and fsdp",
     1u << TS_AXIS_DATA | 1u << TS_AXIS_FSDP, 1u << TS_AXIS_DATA | 1u << TS_AXIS_FSDP},
    {"sequence", "data and fsdp split the batch of the same values; tensor or no axis works",
     1u << TS_AXIS_TENSOR, 0},
    {"kv_heads", "data and fsdp split the batch of the same values; tensor or no axis works",
     1u << TS_AXIS_TENSOR, 0},
    {"group", "data and fsdp split the batch of the same values; tensor or no axis works",
     1u << TS_AXIS_TENSOR, 0},
    {"mlp", "data and fsdp split the batch of the same values; tensor or no axis works",
     1u << TS_AXIS_TENSOR, 0},
    {"vocab", "data and fsdp split the batch of the same values; tensor or no axis works",
     1u << TS_AXIS_TENSOR, 0},
    {"embed",
     "data copies the parameters, and tensor splits their other dimension; fsdp or no axis works",
     1u << TS_AXIS_FSDP, 0},
    {"norm", "scales of norms are whole on each device; no axis works", 0, 0},
};
enum { N_NAMES = sizeof names / sizeof *names };

/* MaxText's names, and ours for the same dimension. */
static const struct {
    const char *alias, *name[2];
} aliases[] = {
    {"activation_batch", {"batch"}},
    {"activation_embed_and_logits_batch", {"batch"}},
    {"activation_norm_length", {"sequence"}},
    {"activation_kv_heads", {"kv_heads"}},
    {"heads", {"kv_heads", "group"}}, /* query heads are kv heads × group */
    {"activation_heads", {"kv_heads", "group"}},
    {"q_heads", {"kv_heads", "group"}},
    {"activation_mlp", {"mlp"}},
    {"activation_vocab", {"vocab"}},
};
enum { N_ALIASES = sizeof aliases / sizeof *aliases };

/* MaxText's axes that are always 1 here, and the one that does their work. */
static const char *const absent[][2] = {
    {"fsdp_transpose", "fsdp"},
    {"tensor_transpose", "tensor"},
    {"tensor_sequence", "tensor"},
    {"context", "tensor"},
    {"expert", "fsdp"},
    {"stage", "fsdp"},
    {"autoregressive", "data"},
    {"model", "tensor"},
    {"sequence", "tensor"},
};

/* ---- from YAML to strings -------------------------------------------------------------------- */

static const char form[] =
    "expected rules as [[mlp, [tensor]], [embed, fsdp]] or [\"mlp: tensor\"]";

/* "name: a, b" of a name and its axes: one, a list, or null. */
static const char *join(ts_arena *arena, const char *name, const ts_yaml *axes)
{
    if (ts_yaml_is_null(axes)) return ts_arena_printf(arena, "%s:", name);
    if (axes->kind == TS_YAML_SCALAR) return ts_arena_printf(arena, "%s: %s", name, axes->text);
    if (axes->kind != TS_YAML_LIST) return NULL;
    const char *text = ts_arena_printf(arena, "%s:", name);
    for (size_t i = 0; i < axes->n && text; i++) {
        if (axes->child[i]->kind != TS_YAML_SCALAR) return NULL;
        text = ts_arena_printf(arena, "%s%s %s", text, i ? "," : "", axes->child[i]->text);
    }
    return text;
}

/* One rule, however it is written; NULL: it is none. */
static const char *rule_text(ts_arena *arena, const ts_yaml *v)
{
    if (v->kind == TS_YAML_SCALAR) return ts_arena_strdup(arena, v->text);
    if (v->kind == TS_YAML_MAP && v->n == 1) return join(arena, v->child[0]->key, v->child[0]);
    if (v->kind != TS_YAML_LIST || v->n != 2 || v->child[0]->kind != TS_YAML_SCALAR) return NULL;
    return join(arena, v->child[0]->text, v->child[1]);
}

const char *ts__rules_set(ts_config *c, const ts_yaml *v, ts_config_list *field)
{
    bool block = v->kind == TS_YAML_MAP, list = block || v->kind == TS_YAML_LIST;
    size_t n = list ? v->n : ts_yaml_is_null(v) || !*v->text ? 0 : 1;
    if (n > MAX_RULES) return "has more than 64 rules";
    const char **item = ts_arena_alloc(c->arena, (n + 1) * sizeof *item);
    if (!item) return "out of memory";
    for (size_t i = 0; i < n; i++) {
        item[i] = block  ? join(c->arena, v->child[i]->key, v->child[i])
                  : list ? rule_text(c->arena, v->child[i])
                         : rule_text(c->arena, v);
        if (!item[i]) return form;
    }
    *field = (ts_config_list){n, item};
    return NULL;
}

/* ---- from strings to rules ------------------------------------------------------------------- */

static int find_name(const char *name)
{
    for (int i = 0; i < N_NAMES; i++)
        if (strcmp(names[i].name, name) == 0) return i;
    return -1;
}

static void refuse_name(ts_loading *l, const char *name)
{
    const char *all[N_NAMES + N_ALIASES], *near;
    for (int i = 0; i < N_NAMES; i++) all[i] = names[i].name;
    for (int i = 0; i < N_ALIASES; i++) all[N_NAMES + i] = aliases[i].alias;
    near = ts_nearest_word(name, all, N_NAMES + N_ALIASES);
    ts__key_problem(
        l, TS_K_logical_axis_rules,
        "no dimension has the name %s; expected batch, sequence, kv_heads, group, mlp, vocab, "
        "embed or norm%s%s%s",
        name, near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
}

static void refuse_axis(ts_loading *l, const char *rule, const char *axis)
{
    const char *instead = NULL; /* the axis that is meant */
    for (size_t i = 0; i < sizeof absent / sizeof *absent; i++)
        if (strcmp(absent[i][0], axis) == 0) instead = absent[i][1];
    if (!instead) instead = ts_nearest_word(axis, ts_user_axis_names, TS_USER_AXES);
    ts__key_problem(l, TS_K_logical_axis_rules,
                    "%s: no axis of the mesh has the name %s; expected data, fsdp or tensor%s%s",
                    rule, axis, instead ? "; here it is " : "", instead ? instead : "");
}

/* A name is shown in messages: what no name has is a question mark. */
static bool take_word(const char *from, size_t n, char *word)
{
    if (n >= NAME_MAX_BYTES) n = NAME_MAX_BYTES - 1;
    for (size_t i = 0; i < n; i++) word[i] = from[i] > ' ' && from[i] < 127 ? from[i] : '?';
    word[n] = '\0';
    return n > 0;
}

/* The next word at *at, behind blanks and commas. */
static bool next_word(const char **at, char *word)
{
    static const char between[] = " \t\r\n,";
    *at += strspn(*at, between);
    size_t n = strcspn(*at, between);
    const char *from = *at;
    *at += n;
    return take_word(from, n, word);
}

/* The axes of a rule. False: reported. */
static bool read_axes(ts_loading *l, const char *name, const char *at, ts_axis_rule *out)
{
    char word[NAME_MAX_BYTES];
    unsigned seen = 0;
    while (next_word(&at, word)) {
        int u = 0;
        while (u < TS_USER_AXES && strcmp(ts_user_axis_names[u], word)) u++;
        if (u == TS_USER_AXES) {
            refuse_axis(l, name, word);
            return false;
        }
        if (seen >> u & 1) {
            ts__key_problem(l, TS_K_logical_axis_rules, "%s: %s is named twice; once works", name,
                            word);
            return false;
        }
        seen |= 1u << u;
        out->axis[out->n++] = (ts_user_axis)u;
    }
    return true;
}

/* Puts a rule in its name's place. given: the names that have one. */
static void enter(ts_loading *l, const char *name, const ts_axis_rule *rule, unsigned *given)
{
    int at = find_name(name);
    ts_axis_rule *place = &l->c->rules.rule[at];
    unsigned axes = 0;
    for (int i = 0; i < rule->n; i++) axes |= 1u << rule->axis[i];
    if (axes & ~names[at].may || names[at].must & ~axes)
        ts__key_problem(
            l, TS_K_logical_axis_rules, "%s: %s", name,
            axes & ~names[at].may
                ? names[at].why
                : "the devices of an axis that is left out would all compute the same rows; "
                  "\"batch: data, fsdp\" works");
    else if (*given >> at & 1 &&
             (place->n != rule->n ||
              memcmp(place->axis, rule->axis, sizeof *rule->axis * (size_t)rule->n)))
        ts__key_problem(l, TS_K_logical_axis_rules, "%s has two rules; one works", name);
    *given |= 1u << at;
    place->n = rule->n;
    memcpy(place->axis, rule->axis, sizeof rule->axis);
}

static void read_rule(ts_loading *l, const char *text, unsigned *given)
{
    const char *colon = strchr(text, ':'), *end = colon;
    char name[NAME_MAX_BYTES];
    ts_axis_rule rule = {.n = 0};
    while (isspace((unsigned char)*text)) text++;
    while (end && end > text && isspace((unsigned char)end[-1])) end--;
    if (!colon || end <= text || !take_word(text, (size_t)(end - text), name)) {
        ts__key_problem(l, TS_K_logical_axis_rules, "%s", form);
        return;
    }
    if (!read_axes(l, name, colon + 1, &rule)) return;
    for (int i = 0; i < N_ALIASES; i++) {
        if (strcmp(aliases[i].alias, name)) continue;
        for (int k = 0; k < 2 && aliases[i].name[k]; k++)
            enter(l, aliases[i].name[k], &rule, given);
        return;
    }
    if (find_name(name) >= 0)
        enter(l, name, &rule, given);
    else
        refuse_name(l, name);
}

/* All rules, as config.yml has them. */
static void write_rules(ts_loading *l)
{
    const ts_axis_rules *r = &l->c->rules;
    const char **item = ts_arena_alloc(l->arena, (size_t)r->n * sizeof *item);
    for (int i = 0; item && i < r->n; i++) {
        const char *text = ts_arena_printf(l->arena, "%s:", r->rule[i].name);
        for (int k = 0; k < r->rule[i].n && text; k++)
            text = ts_arena_printf(l->arena, "%s%s %s", text, k ? "," : "",
                                   ts_user_axis_names[r->rule[i].axis[k]]);
        item[i] = text;
        if (!text) item = NULL;
    }
    if (item)
        l->c->logical_axis_rules = (ts_config_list){(size_t)r->n, item};
    else
        l->out_of_memory = true;
}

void ts__config_derive_rules(ts_loading *l)
{
    const ts_config_list *list = &l->c->logical_axis_rules;
    unsigned given = 0;
    l->c->rules = ts_axis_rules_default;
    for (int i = 0; i < N_NAMES; i++) /* the same names in the same places */
        TS_ASSERT(i < l->c->rules.n && strcmp(l->c->rules.rule[i].name, names[i].name) == 0);
    if (l->bad[TS_K_logical_axis_rules]) return;
    for (size_t i = 0; i < list->n; i++) read_rule(l, list->item[i], &given);
    if (!l->bad[TS_K_logical_axis_rules]) write_rules(l);
}
