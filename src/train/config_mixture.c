/* train/config_mixture.c – dataset_mixture: several sources of data, each name:weight:files.
 *
 * The name goes into metrics (learning/NAME/loss), so it is of letters, digits and - _ . alone; neither it nor the
 * weight holds a colon, so the files may. Files are split by +, each a path or a pattern as in dataset_path; where all
 * of them together are the name of one file, they are that file, and ++ stands for a + in one of several names.
 * Weights are shares of the rows and need not add up to 1.
 *
 * Every source that is wrong is reported, each once. What is kept has the files themselves, so config.yml loads the
 * same data wherever more files match by then.
 * Not here: patterns (config_pattern.c), how rows are mixed (data/mix.c).
 */
#include "train/config_internal.h"

#include "base/file.h"

#include <sys/stat.h>

enum { MAX_SOURCES = 64, MAX_NAME = 64 };
static const double least_weight = 1e-6, most_weight = 1e6; /* as the loader's */
static const int key = TS_K_dataset_mixture;

/* A source as it is written. */
typedef struct written {
    const char *name, *weight;
    ts_config_list files; /* paths that exist, or the one problem */
    double share;
    bool bad;
} written;

/* ---- name and weight ------------------------------------------------------------------------- */

static bool fits_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
}

static void check_name(ts_loading *l, const written *all, size_t i)
{
    const char *name = all[i].name;
    char fitting[MAX_NAME + 1];
    size_t n = strlen(name), bad = 0;
    for (size_t k = 0; k < n && k < MAX_NAME; k++) {
        fitting[k] = fits_name(name[k]) ? name[k] : '-';
        bad += !fits_name(name[k]);
        fitting[k + 1] = 0;
    }
    if (n == 0)
        ts__key_problem(l, key,
                        "has no name; expected NAME:WEIGHT:FILES, such as web:0.7:web-*.jsonl");
    else if (n > MAX_NAME)
        ts__key_problem(l, key, "its name has %zu bytes; expected at most %d", n, MAX_NAME);
    else if (bad)
        ts__key_problem(l, key,
                        "the name %s goes into metrics; expected letters, digits, - _ and . alone, "
                        "such as %s",
                        name, fitting);
    for (size_t k = 0; k < i; k++)
        if (strcmp(all[k].name, name) == 0)
            ts__key_problem(l, key, "source %zu is named %s too; give each a name of its own",
                            k + 1, name);
}

static void check_weight(ts_loading *l, written *w)
{
    const ts_yaml text = {.kind = TS_YAML_SCALAR, .text = w->weight};
    bool number = ts_yaml_as_f64(&text, &w->share);
    if (!number || !(w->share >= least_weight && w->share <= most_weight))
        ts__key_problem(l, key,
                        "its weight is %.40s; expected a number between 1e-6 and 1e6, a share of "
                        "the rows (shares need not add up to 1)%s",
                        *w->weight ? w->weight : "missing",
                        number && w->share <= 0 ? "; leave out a source that is not wanted" : "");
}

/* ---- files ----------------------------------------------------------------------------------- */

/* The file name up to the next + that stands alone, with ++ as +; *at moves behind it. */
static const char *next_file(ts_loading *l, const char **at)
{
    const char *from = *at, *end = from;
    while (*end && (end[0] != '+' || end[1] == '+')) end += end[0] == '+' ? 2 : 1;
    char *name = ts_arena_strndup(l->arena, from, (size_t)(end - from)), *to = name;
    *at = *end ? end + 1 : NULL;
    if (!name) {
        l->out_of_memory = true;
        return NULL;
    }
    for (; from < end; from += from[0] == '+' ? 2 : 1) *to++ = *from;
    *to = 0;
    return name;
}

static ts_config_list split_files(ts_loading *l, const char *text)
{
    size_t n = 1;
    for (const char *p = text; *p; p++) n += *p == '+';
    const char **item = ts_arena_alloc(l->arena, n * sizeof *item);
    ts_config_list list = {0, item};
    if (!item) l->out_of_memory = true;
    const char *whole = ts__config_expand_home(l, key, text);
    if (strchr(text, '+') && ts_path_kind_of(whole) == TS_PATH_FILE && item) {
        item[0] = whole;
        return (ts_config_list){1, item};
    }
    for (const char *at = text; at && item && !l->out_of_memory;)
        item[list.n++] = next_file(l, &at);
    return list;
}

static void read_files(ts_loading *l, written *w, const char *text)
{
    if (!*text) {
        ts__key_problem(l, key,
                        "has no files; expected NAME:WEIGHT:FILES, such as web:0.7:web-*.jsonl");
        return;
    }
    ts_config_list list = split_files(l, text);
    for (size_t i = 0; i < list.n && !l->out_of_memory; i++)
        if (!*list.item[i])
            ts__key_problem(l, key,
                            "a file of it has no name; one + stands between two files, ++ for "
                            "a + in a name");
    if (l->bad[key] || l->out_of_memory) return;
    w->files = ts__config_expand_files(l, key, list);
    if (!l->bad[key] && !l->out_of_memory) ts__config_check_files(l, key, &w->files);
}

/* ---- one source ------------------------------------------------------------------------------ */

static void read_parts(ts_loading *l, written *all, size_t i, const char *text)
{
    written *w = &all[i];
    const char *colon = strchr(text, ':'), *second = colon ? strchr(colon + 1, ':') : NULL;
    w->name = w->weight = "";
    if (!second) {
        ts__key_problem(l, key, "expected NAME:WEIGHT:FILES, such as web:0.7:web-*.jsonl");
        return;
    }
    w->name = ts_arena_strndup(l->arena, text, (size_t)(colon - text));
    w->weight = ts_arena_strndup(l->arena, colon + 1, (size_t)(second - colon - 1));
    if (!w->name || !w->weight) {
        l->out_of_memory = true;
        return;
    }
    check_name(l, all, i);
    check_weight(l, w);
    if (!l->bad[key]) read_files(l, w, second + 1);
}

/* A problem is about this source alone, and shown as its text: for as long the key's value is that. */
static void read_source(ts_loading *l, written *all, size_t i, const char *text)
{
    ts_setting *set = &l->set[l->from[key]][key];
    const ts_yaml *list = set->value;
    ts_yaml *item = ts_arena_alloc(l->arena, sizeof *item);
    if (!item) {
        l->out_of_memory = true;
        return;
    }
    *item = (ts_yaml){.kind = TS_YAML_SCALAR, .text = text};
    l->bad[key] = false;
    set->value = item;
    read_parts(l, all, i, text);
    set->value = list;
    all[i].bad = l->bad[key];
}

/* ---- all of them ----------------------------------------------------------------------------- */

typedef struct place {
    dev_t device;
    ino_t inode;
    size_t source, file;
} place;

static int by_place(const void *left, const void *right)
{
    const place *a = left, *b = right;
    if (a->device != b->device) return a->device < b->device ? -1 : 1;
    if (a->inode != b->inode) return a->inode < b->inode ? -1 : 1;
    return (a->source > b->source) - (a->source < b->source);
}

/* A file of two sources would have two weights, and what one holds out the other would train on. */
static void refuse_shared(ts_loading *l, const written *all, size_t n)
{
    size_t files = 0, found = 0;
    for (size_t i = 0; i < n; i++) files += all[i].files.n;
    place *places = ts_arena_alloc(l->arena, (files + 1) * sizeof *places);
    if (!places) l->out_of_memory = true;
    for (size_t i = 0; places && i < n; i++)
        for (size_t k = 0; k < all[i].files.n; k++) {
            struct stat st;
            if (stat(all[i].files.item[k], &st) == 0 && S_ISREG(st.st_mode))
                places[found++] = (place){st.st_dev, st.st_ino, i, k};
        }
    if (found > 1) qsort(places, found, sizeof *places, by_place);
    for (size_t i = 1; i < found; i++) {
        const place *a = &places[i - 1], *b = &places[i];
        if (a->device == b->device && a->inode == b->inode)
            ts__key_problem(l, key, "sources %s and %s both have %.200s; name it in one of them",
                            all[a->source].name, all[b->source].name,
                            all[b->source].files.item[b->file]);
    }
}

/* name:weight:files with the files that were found; one file stands as it is. */
static const char *write_source(ts_loading *l, const written *w)
{
    ts_string s = ts_string_new(TS_CONFIG_TEXT_MAX);
    ts_string_printf(&s, "%s:%s:", w->name, w->weight);
    for (size_t i = 0; i < w->files.n; i++) {
        if (i) ts_string_add(&s, "+");
        for (const char *p = w->files.item[i]; *p; p++)
            ts_string_add_bytes(&s, *p == '+' && w->files.n > 1 ? "++" : p,
                                *p == '+' && w->files.n > 1 ? 2 : 1);
    }
    const char *text = s.failed ? NULL : ts_arena_strdup(l->arena, s.data);
    ts_string_free(&s);
    if (!text) l->out_of_memory = true;
    return text;
}

static void keep(ts_loading *l, const written *all, size_t n)
{
    ts_loader_source *source = ts_arena_alloc(l->arena, n * sizeof *source);
    const char **item = ts_arena_alloc(l->arena, n * sizeof *item);
    if (!source || !item) {
        l->out_of_memory = true;
        return;
    }
    for (size_t i = 0; i < n; i++) {
        source[i] =
            (ts_loader_source){all[i].name, all[i].share, all[i].files.item, all[i].files.n};
        item[i] = write_source(l, &all[i]);
    }
    l->c->mixture = source;
    l->c->n_mixture = n;
    l->c->dataset_mixture = (ts_config_list){n, item};
}

void ts__config_read_mixture(ts_loading *l)
{
    const ts_config_list *list = &l->c->dataset_mixture;
    if (l->bad[key] || list->n == 0) return;
    if (list->n > MAX_SOURCES) {
        ts__key_problem(l, key, "has %zu sources; expected at most %d", list->n, MAX_SOURCES);
        return;
    }
    written *all = ts_arena_alloc(l->arena, list->n * sizeof *all);
    bool bad = false;
    if (!all) l->out_of_memory = true;
    for (size_t i = 0; i < list->n && !l->out_of_memory; i++) {
        all[i] = (written){0};
        read_source(l, all, i, list->item[i]);
        bad |= all[i].bad;
    }
    l->bad[key] = bad;
    if (bad || l->out_of_memory) return;
    refuse_shared(l, all, list->n);
    if (!l->bad[key] && !l->out_of_memory) keep(l, all, list->n);
}
