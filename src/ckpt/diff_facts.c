/* ckpt/diff_facts.c – what two checkpoints say beside their tensors: when and by what they were
 * written, how far the data was read, and where model, program and configuration differ.
 *
 * Everything comes out of the manifests. What one of them does not have is "": older programs wrote
 * less.
 */
#include "ckpt/diff.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/json.h"
#include "base/yaml.h"

enum { VALUE_BYTES = 1 << 16 };

typedef struct pair {
    const char *name, *text;
} pair;

typedef struct pairs {
    pair *list;
    size_t n, max;
} pairs;

static ts_status out_of_memory(ts_error *err)
{
    return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "out of memory for what differs beside the tensors");
}

static ts_status add_fact(ts__diff *d, const char *group, const char *name, const char *a,
                          const char *b, bool number, ts_error *err)
{
    if (!a || !b) return out_of_memory(err);
    if (d->public.n_fact == d->max_fact) {
        size_t more = d->max_fact ? 2 * d->max_fact : 32, bytes;
        ts_diff_fact *grown =
            ts_mul_size(more, sizeof *grown, &bytes)
                ? NULL
                : ts_realloc(d->public.fact, d->max_fact * sizeof *grown, bytes);
        if (!grown) return out_of_memory(err);
        d->public.fact = grown;
        d->max_fact = more;
    }
    d->public.fact[d->public.n_fact++] = (ts_diff_fact){
        .group = group, .name = name, .a = a, .b = b, .same = strcmp(a, b) == 0, .number = number};
    return TS_OK;
}

/* ---- JSON values ----------------------------------------------------------------------------- */

/* NULL: memory is out. */
static const char *json_text(ts_arena *arena, const json_t *value)
{
    if (!value || json_is_null(value)) return "";
    if (json_is_string(value)) return ts_arena_strdup(arena, json_string_value(value));
    char *text = ts_json_dump(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(15));
    const char *kept = text ? ts_arena_strdup(arena, text) : NULL;
    ts_free(text);
    return kept;
}

static bool is_number(const json_t *value)
{
    return !value || json_is_null(value) || json_is_number(value);
}

/* Of a program's description: add_head has it. */
static bool is_told(const char *name)
{
    return strcmp(name, "version") == 0 || strcmp(name, "devices") == 0 || strcmp(name, "mesh") == 0;
}

static ts_status add_value(ts__diff *d, const char *group, const char *name, const json_t *a,
                           const json_t *b, bool always, ts_error *err)
{
    const char *kept = ts_arena_strdup(d->arena, name);
    if (!kept) return out_of_memory(err);
    bool equal = a && b ? json_equal(a, b) : a == b;
    if (!always && (equal || is_told(name))) return TS_OK;
    return add_fact(d, group, kept, json_text(d->arena, a), json_text(d->arena, b),
                    is_number(a) && is_number(b), err);
}

/* Members that differ, in a's order; then those that only b has. */
static ts_status add_object(ts__diff *d, const char *group, const json_t *a, const json_t *b,
                            ts_error *err)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)a, key, value) TS_TRY(
        add_value(d, group, key, value, json_object_get(b, key), false, err));
    json_object_foreach((json_t *)b, key, value)
    {
        if (!json_object_get(a, key)) TS_TRY(add_value(d, group, key, NULL, value, false, err));
    }
    return TS_OK;
}

/* ---- configuration --------------------------------------------------------------------------- */

static void add_yaml(ts_string *s, const ts_yaml *v)
{
    if (v->kind == TS_YAML_SCALAR) {
        ts_string_add(s, v->text);
        return;
    }
    ts_string_add(s, v->kind == TS_YAML_LIST ? "[" : "{");
    for (size_t i = 0; i < v->n; i++) {
        if (i) ts_string_add(s, ", ");
        if (v->kind == TS_YAML_MAP) ts_string_printf(s, "%s: ", v->child[i]->key);
        add_yaml(s, v->child[i]);
    }
    ts_string_add(s, v->kind == TS_YAML_LIST ? "]" : "}");
}

static ts_status add_pair(pairs *p, ts_arena *arena, const char *name, const ts_yaml *v,
                          ts_error *err)
{
    if (p->n == p->max) {
        size_t more = p->max ? 2 * p->max : 256, bytes;
        pair *grown = ts_mul_size(more, sizeof *grown, &bytes)
                          ? NULL
                          : ts_realloc(p->list, p->max * sizeof *grown, bytes);
        if (!grown) return out_of_memory(err);
        p->list = grown;
        p->max = more;
    }
    ts_string text = ts_string_new(VALUE_BYTES);
    add_yaml(&text, v);
    const char *kept = text.failed ? "…" : ts_arena_strdup(arena, text.data ? text.data : "");
    ts_string_free(&text);
    if (!kept) return out_of_memory(err);
    p->list[p->n++] = (pair){name, kept};
    return TS_OK;
}

/* Blocks of one level are keys with a dot, as on the command line. */
static ts_status flatten(pairs *p, ts_arena *arena, const ts_yaml *root, ts_error *err)
{
    for (size_t i = 0; i < root->n && root->kind == TS_YAML_MAP; i++) {
        const ts_yaml *v = root->child[i];
        if (v->kind != TS_YAML_MAP) {
            TS_TRY(add_pair(p, arena, v->key, v, err));
            continue;
        }
        for (size_t k = 0; k < v->n; k++) {
            const char *name = ts_arena_printf(arena, "%s.%s", v->key, v->child[k]->key);
            if (!name) return out_of_memory(err);
            TS_TRY(add_pair(p, arena, name, v->child[k], err));
        }
    }
    return TS_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const pair *)a)->name, ((const pair *)b)->name);
}

static ts_status read_config(pairs *p, ts_arena *arena, const ts_checkpoint *c, ts_error *err)
{
    const char *text = json_string_value(json_object_get(ts_checkpoint_state(c), "config"));
    const ts_yaml *root;
    if (!text) return TS_OK;
    ts_error why = {0};
    ts_status status = ts_yaml_parse(text, strlen(text), ts_checkpoint_path(c), arena, &root, &why);
    if (status == TS_RESOURCE_EXHAUSTED) return TS_ERROR(err, status, "%s", why.msg);
    if (status != TS_OK) return TS_OK; /* of a program that wrote it otherwise */
    TS_TRY(flatten(p, arena, root, err));
    if (p->n) qsort(p->list, p->n, sizeof *p->list, by_name);
    return TS_OK;
}

static ts_status add_config(ts__diff *d, const pairs *a, const pairs *b, ts_error *err)
{
    for (size_t i = 0, k = 0; i < a->n || k < b->n;) {
        const pair *p = i < a->n ? &a->list[i] : NULL, *q = k < b->n ? &b->list[k] : NULL;
        int order = !p ? 1 : !q ? -1 : strcmp(p->name, q->name);
        if (order > 0) p = NULL;
        if (order < 0) q = NULL;
        i += p != NULL;
        k += q != NULL;
        if (p && q && strcmp(p->text, q->text) == 0) continue;
        TS_TRY(add_fact(d, "config", p ? p->name : q->name, p ? p->text : "", q ? q->text : "", false,
                        err)); /* as it was written: 1e-2 and 0.01 are one number and two texts */
    }
    return TS_OK;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static const char *number(ts_arena *arena, double value)
{
    return isnan(value) ? "" : ts_arena_printf(arena, "%.9g", value);
}

static ts_status add_head(ts__diff *d, const ts_checkpoint *a, const ts_checkpoint *b, ts_error *err)
{
    ts_arena *n = d->arena;
    const struct {
        const char *name, *a, *b;
        bool number;
    } row[] = {
        {"step", ts_arena_printf(n, "%lld", (long long)ts_checkpoint_step(a)),
         ts_arena_printf(n, "%lld", (long long)ts_checkpoint_step(b)), true},
        {"written", ts_arena_strdup(n, ts_checkpoint_written(a)),
         ts_arena_strdup(n, ts_checkpoint_written(b)), false},
        {"program", ts_arena_strdup(n, ts_checkpoint_program(a)),
         ts_arena_strdup(n, ts_checkpoint_program(b)), false},
        {"devices", ts_arena_printf(n, "%d", ts_checkpoint_devices(a)),
         ts_arena_printf(n, "%d", ts_checkpoint_devices(b)), true},
        {"mesh", ts_arena_strdup(n, ts_checkpoint_mesh(a)), ts_arena_strdup(n, ts_checkpoint_mesh(b)),
         false},
        {"evaluation_loss", number(n, ts_checkpoint_score(a)), number(n, ts_checkpoint_score(b)),
         true},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        TS_TRY(add_fact(d, "checkpoint", row[i].name, row[i].a, row[i].b, row[i].number, err));
    return TS_OK;
}

ts_status ts__diff_facts(ts__diff *d, const ts_checkpoint *a, const ts_checkpoint *b, ts_error *err)
{
    static const char *const data[] = {"rows", "order_hash", "fingerprint"};
    static const char *const groups[] = {"model", "program", "random"};
    const json_t *x = ts_checkpoint_state(a), *y = ts_checkpoint_state(b);
    const json_t *from = json_object_get(x, "data"), *to = json_object_get(y, "data");
    TS_TRY(add_head(d, a, b, err));
    for (size_t i = 0; i < sizeof data / sizeof *data; i++)
        TS_TRY(add_value(d, "data", data[i], json_object_get(from, data[i]),
                         json_object_get(to, data[i]), true, err));
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        TS_TRY(add_object(d, groups[i], json_object_get(x, groups[i]),
                          json_object_get(y, groups[i]), err));
    pairs p = {0}, q = {0};
    ts_status status = read_config(&p, d->arena, a, err);
    if (status == TS_OK) status = read_config(&q, d->arena, b, err);
    if (status == TS_OK) status = add_config(d, &p, &q, err);
    ts_free(p.list);
    ts_free(q.list);
    return status;
}
