/* train/config_layers.c – where values come from: the configuration file and its parents, the model's
 * preset, key=value words, the environment. Each fills its own layer; config.c lays them over each
 * other.
 *
 * A file is looked for where it is named, then under src/, then among the embedded ones: a path of
 * MaxText's tree (src/maxtext/configs/…) or any base.yml that does not exist here means ours.
 * A mistake is noted and reading goes on, so that all of them are seen at once.
 */
#include "train/config_internal.h"

#include "base/file.h"
#include "token/tokenizer.h"

#include <ctype.h>
#include <stdlib.h>

enum { MAX_PARENTS = 8, MAX_FILE_BYTES = 32 << 20 }; /* a run's own file lists every data file */

extern char **environ;

/* ---- mappings -------------------------------------------------------------------------------- */

static const char *spot(ts_loading *l, const char *name, const ts_yaml *v)
{
    const char *text = ts_arena_printf(l->arena, "%s:%d", name, v->line);
    return text ? text : name;
}

static void unknown_key(ts_loading *l, const char *key, const ts_yaml *v, const char *where)
{
    const ts_yaml name = {.kind = TS_YAML_SCALAR, .text = key};
    const char *near = ts__key_nearest(key), *shown = ts__value_text(&name, l->arena);
    const char *what = ts_arena_printf(l->arena, "%s=%s", shown, ts__value_text(v, l->arena));
    const char *place = where ? ts_arena_printf(l->arena, " (%s)", where) : "";
    if (!what || !place)
        l->out_of_memory = true;
    else if (near)
        ts__problem(l, what, "unknown key; did you mean %s?%s", near, place);
    else
        ts__problem(l, what, "unknown key; configs/base.yml lists all%s", place);
}

/* What is written into config.yml must be readable there. */
static bool is_text(ts_loading *l, const char *word)
{
    const ts_yaml v = {.kind = TS_YAML_SCALAR, .text = word};
    size_t n = strlen(word), valid = ts_utf8_valid_prefix(word, n);
    if (valid != n)
        ts__problem(l, ts__value_text(&v, l->arena), "byte %zu is not UTF-8; write text as UTF-8",
                    valid + 1);
    return valid == n;
}

/* Children win over parents because they are read first: a key that is set stays. */
static void enter(ts_loading *l, ts_layer layer, const char *key, const ts_yaml *v,
                  const char *where)
{
    int k = ts__key_find(key);
    if (k < 0)
        unknown_key(l, key, v, where);
    else if (!l->set[layer][k].value)
        l->set[layer][k] = (ts_setting){v, where};
}

void ts__layer_read(ts_loading *l, ts_layer layer, const ts_yaml *map, const char *name)
{
    for (size_t i = 0; i < map->n; i++) {
        const ts_yaml *v = map->child[i];
        if (layer == TS_LAYER_FILE && !strcmp(v->key, "base_config")) continue;
        if (v->kind != TS_YAML_MAP || !ts__key_is_block(v->key)) {
            if (ts__key_is_block(v->key) && ts_yaml_is_null(v)) continue;
            enter(l, layer, v->key, v, spot(l, name, v));
            continue;
        }
        for (size_t j = 0; j < v->n; j++) {
            const ts_yaml *w = v->child[j];
            const char *key = ts_arena_printf(l->arena, "%s.%s", v->key, w->key);
            if (key)
                enter(l, layer, key, w, spot(l, name, w));
            else
                l->out_of_memory = true;
        }
    }
}

/* ---- files ----------------------------------------------------------------------------------- */

typedef struct source {
    const char *path; /* for messages */
    const char *text; /* in the arena, or embedded */
    size_t length;
    const char *folder; /* NULL: embedded */
} source;

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static const char *folder_of(ts_loading *l, const char *path)
{
    size_t n = (size_t)(base_name(path) - path);
    return n ? ts_arena_strndup(l->arena, path, n) : ts_arena_strdup(l->arena, "./");
}

static bool read_disk(ts_loading *l, const char *path, source *out)
{
    ts_error err = {0};
    char *data = NULL;
    size_t n = 0;
    if (ts_file_read_all(path, MAX_FILE_BYTES, &data, &n, &err) != TS_OK) {
        size_t prefix = strlen(path);
        bool named = !strncmp(err.msg, path, prefix) && !strncmp(err.msg + prefix, ": ", 2);
        ts__problem(l, path, "%.300s", err.msg + (named ? prefix + 2 : 0));
        return false;
    }
    *out = (source){path, ts_arena_strndup(l->arena, data, n), n, folder_of(l, path)};
    ts_free(data);
    if (!out->text || !out->folder) l->out_of_memory = true;
    return !l->out_of_memory;
}

static bool read_embedded(const char *name, source *out)
{
    const char *text = ts__embedded(name);
    if (text) *out = (source){name, text, strlen(text), NULL};
    return text != NULL;
}

/* The part of path behind MaxText's configuration folder, else path itself. */
static const char *strip_maxtext(const char *path)
{
    static const char *const folders[] = {
        "src/maxtext/configs/",
        "src/MaxText/configs/",
        "maxtext/configs/",
        "MaxText/configs/",
        "configs/",
    };
    if (!strncmp(path, "./", 2)) path += 2;
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
        if (!strncmp(path, folders[i], strlen(folders[i]))) return path + strlen(folders[i]);
    return path;
}

static bool find(ts_loading *l, const char *path, source *out)
{
    ts_path_kind kind = ts_path_kind_of(path);
    if (kind == TS_PATH_FILE) return read_disk(l, path, out);
    const char *below = ts_arena_printf(l->arena, "src/%s", path);
    const char *ours = ts_arena_printf(l->arena, "configs/%s", strip_maxtext(path));
    if (!below || !ours) return l->out_of_memory = true, false;
    if (ts_path_kind_of(below) == TS_PATH_FILE) return read_disk(l, below, out);
    if (read_embedded(ours, out)) return true;
    if (!strcmp(base_name(path), "base.yml")) return read_embedded("configs/base.yml", out);
    ts__problem(l, path, "%s; base.yml is built in and always works",
                kind == TS_PATH_NONE ? "there is no such configuration file"
                                     : "is not a file; expected a configuration in YAML");
    return false;
}

static const ts_yaml *parse(ts_loading *l, const source *s)
{
    ts_error err = {0};
    const ts_yaml *map = NULL;
    if (ts_yaml_parse(s->text, s->length, s->path, l->arena, &map, &err) != TS_OK) {
        size_t n = strlen(s->path);
        bool named = !strncmp(err.msg, s->path, n) && err.msg[n] == ':';
        ts__problem(l, s->path, "%s%.400s", named ? "line " : "", err.msg + (named ? n + 1 : 0));
        return NULL;
    }
    if (map->kind != TS_YAML_MAP) {
        ts__problem(l, s->path, "expected lines of `key: value`");
        return NULL;
    }
    if (!map->n) {
        ts__problem(l, s->path,
                    "has no key at all; expected lines of `key: value` (base.yml is built in)");
        return NULL;
    }
    return map;
}

/* base_config is looked for beside its child, then as the command line would. */
static bool find_parent(ts_loading *l, const source *child, const ts_yaml *name, source *out)
{
    if (name->kind != TS_YAML_SCALAR || !*name->text) {
        ts__problem(l, "base_config", "expected the path of a configuration file (%s)",
                    spot(l, child->path, name));
        return false;
    }
    if (child->folder && name->text[0] != '/') {
        const char *beside = ts_arena_printf(l->arena, "%s%s", child->folder, name->text);
        if (!beside) return l->out_of_memory = true, false;
        if (ts_path_kind_of(beside) == TS_PATH_FILE) return read_disk(l, beside, out);
    }
    return find(l, name->text, out);
}

void ts__layer_file(ts_loading *l, const char *path)
{
    source s;
    if (!find(l, path, &s)) return;
    l->folder = s.folder;
    l->layered = strcmp(base_name(path), "base.yml") != 0;
    for (int depth = 0;; depth++) {
        const ts_yaml *map = parse(l, &s);
        if (!map) return;
        ts__layer_read(l, TS_LAYER_FILE, map, s.path);
        const ts_yaml *parent = ts_yaml_get(map, "base_config");
        if (!parent || ts_yaml_is_null(parent)) return;
        l->layered = false;
        source next;
        if (depth == MAX_PARENTS) {
            ts__problem(l, "base_config",
                        "more than %d files name each other; one may name itself (%s)", MAX_PARENTS,
                        s.path);
            return;
        }
        if (!find_parent(l, &s, parent, &next)) return;
        s = next;
    }
}

static const char *nearest_model(ts_loading *l, const char *model)
{
    const char *names[256];
    size_t n = 0;
    const char *file;
    for (size_t i = 0; (file = ts__embedded_name(i)) && n < 256; i++) {
        size_t length = strlen(file);
        if (strncmp(file, "configs/models/", 15) || length < 20) continue;
        names[n] = ts_arena_strndup(l->arena, file + 15, length - 15 - 4);
        if (names[n]) n++;
    }
    return strlen(model) < 100 ? ts_nearest_word(model, names, n) : NULL;
}

void ts__layer_model(ts_loading *l, const char *model_name)
{
    static const char instruct[] = "-Instruct";
    size_t n = strlen(model_name);
    if (n > sizeof instruct - 1 && !strcmp(model_name + n - (sizeof instruct - 1), instruct))
        n -= sizeof instruct - 1;
    if (!n || !strcmp(model_name, "default")) return;
    if (n > 200 || strchr(model_name, '/')) {
        ts__key_problem(
            l, TS_K_model_name,
            "expected the name of a preset, not a path; model_path=FOLDER takes a model's files");
        return;
    }
    source s;
    const char *beside = ts_arena_printf(l->arena, "%smodels/%.*s.yml", l->folder ? l->folder : "",
                                         (int)n, model_name);
    const char *ours = ts_arena_printf(l->arena, "configs/models/%.*s.yml", (int)n, model_name);
    if (!beside || !ours) {
        l->out_of_memory = true;
        return;
    }
    bool on_disk = l->folder && ts_path_kind_of(beside) == TS_PATH_FILE;
    if (on_disk ? !read_disk(l, beside, &s) : !read_embedded(ours, &s)) {
        const char *near = nearest_model(l, model_name);
        if (!on_disk && near)
            ts__key_problem(l, TS_K_model_name, "there is no such preset; did you mean %s?", near);
        else if (!on_disk)
            ts__key_problem(l, TS_K_model_name,
                            "there is no such preset; llama3-8b is one, configs/models/ has all");
        return;
    }
    const ts_yaml *map = parse(l, &s);
    l->c->model_file = s.path;
    if (map) ts__layer_read(l, TS_LAYER_MODEL, map, s.path);
}

/* ---- words and environment ------------------------------------------------------------------- */

void ts__layer_words(ts_loading *l, const char *const *words, int n)
{
    for (int i = 0; i < n; i++) {
        const char *equals = strchr(words[i], '=');
        if (!is_text(l, words[i])) continue;
        if (!equals || equals == words[i]) {
            const ts_yaml word = {.kind = TS_YAML_SCALAR, .text = words[i]};
            ts__problem(l, ts__value_text(&word, l->arena), "expected key=value%s",
                        words[i][0] == '-' ? ", without dashes" : "");
            continue;
        }
        char *key = ts_arena_strndup(l->arena, words[i], (size_t)(equals - words[i]));
        int k = key ? ts__key_find(key) : -1;
        if (k < 0) {
            ts_yaml value = {.kind = TS_YAML_SCALAR, .text = equals + 1};
            if (key) unknown_key(l, key, &value, NULL);
            continue;
        }
        const ts_yaml *v = ts__value_of_word(k, equals + 1, l->arena);
        if (v)
            l->set[TS_LAYER_WORD][k] = (ts_setting){v, NULL}; /* the last one wins */
        else
            l->out_of_memory = true;
    }
}

/* M_STEPS → steps; M_LORA_LORA_RANK → lora.lora_rank. */
static int key_of_variable(const char *name, size_t n)
{
    for (int k = 0; k < TS_KEYS; k++) {
        const char *key = ts__keys[k].name;
        size_t i = 0;
        while (i < n && key[i] && name[i] == (key[i] == '.' ? '_' : toupper((unsigned char)key[i])))
            i++;
        if (i == n && !key[i]) return k;
    }
    return -1;
}

static void unknown_variable(ts_loading *l, const char *variable, size_t n)
{
    char lower[104] = "", upper[104] = "";
    for (size_t i = 0; i < n - 2 && i < 100; i++)
        lower[i] = (char)tolower((unsigned char)variable[i + 2]);
    const char *near = ts__key_nearest(lower);
    for (size_t i = 0; near && near[i] && i < 100; i++)
        upper[i] = near[i] == '.' ? '_' : (char)toupper((unsigned char)near[i]);
    const char *what = ts_arena_printf(l->arena, "%.*s", (int)(n < 60 ? n : 60), variable);
    if (!what)
        l->out_of_memory = true;
    else
        ts__problem(
            l, what,
            "comes from the environment, where M_KEY sets a key, and there is no such key%s%s; "
            "to remove it: unset %s",
            near ? "; did you mean M_" : "", near ? upper : "", what);
}

void ts__layer_environment(ts_loading *l)
{
    for (char **e = environ; e && *e; e++) {
        const char *equals = strchr(*e, '=');
        if (strncmp(*e, "M_", 2) || !equals || equals == *e + 2 || !is_text(l, *e)) continue;
        size_t n = (size_t)(equals - *e);
        int k = key_of_variable(*e + 2, n - 2);
        if (k < 0) {
            unknown_variable(l, *e, n);
            continue;
        }
        const ts_yaml *v = ts__value_of_word(k, equals + 1, l->arena);
        const char *where = ts_arena_strndup(l->arena, *e, n);
        if (v && where)
            l->set[TS_LAYER_ENV][k] = (ts_setting){v, where};
        else
            l->out_of_memory = true;
    }
}
