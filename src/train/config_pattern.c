/* train/config_pattern.c – data files by pattern: * ? [..] in any part of a path, as shells read them.
 *
 * A shell leaves key=data/part-*.jsonl alone, so it is expanded here, before anything else looks at
 * the list: config.yml and the data's fingerprint have the files themselves, in the order of their
 * bytes. A file of the pattern's very name wins; * and ? take no / and no dot at the front of a name;
 * folders do not match. Names are matched by character, whatever the locale says.
 * Not here: whether the files can be read (config_path.c), what is in them (data/).
 */
#include "train/config_internal.h"

#include "base/file.h"
#include "token/tokenizer.h"

#include <stdlib.h>
#include <sys/stat.h>

enum {
    MAX_FILES = 100000, /* of one key */
    MAX_NAMES = 1000000 /* that one pattern looks at: a slip such as / * / * would read a whole disk */
};

/* ---- one name -------------------------------------------------------------------------------- */

/* Bytes of the character at s; what is no UTF-8 counts by byte. */
static size_t character(const char *s)
{
    unsigned char c = (unsigned char)*s;
    size_t n = c < 0xc2 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : c < 0xf5 ? 4 : 1;
    for (size_t i = 1; i < n; i++)
        if (((unsigned char)s[i] & 0xc0) != 0x80) return 1;
    return n;
}

/* UTF-8's order by bytes is the order of the characters. */
static int compare(const char *a, const char *b)
{
    size_t n = character(a), m = character(b);
    int order = memcmp(a, b, n < m ? n : m);
    return order ? order : (n > m) - (n < m);
}

/* The set at p ('[') against the character at name. NULL: it is no set, for it has no end. */
static const char *match_set(const char *p, const char *end, const char *name, bool *in)
{
    bool inverted = ++p < end && (*p == '!' || *p == '^'), any = false;
    if (inverted) p++;
    for (bool first = true; p < end && (first || *p != ']'); first = false) {
        const char *low = p, *high = p;
        p += character(p);
        if (p + 1 < end && *p == '-' && p[1] != ']') {
            high = p + 1;
            p = high + character(high);
        }
        any = any || (compare(low, name) <= 0 && compare(name, high) <= 0);
    }
    *in = any != inverted;
    return p < end ? p + 1 : NULL;
}

/* One step behind * : p moves past what takes the character at name. False: it does not fit. */
static bool match_one(const char **p, const char *end, const char *name)
{
    bool in;
    const char *behind = **p == '[' ? match_set(*p, end, name, &in) : NULL;
    if (behind) {
        *p = behind;
        return in;
    }
    if (**p != '?' && compare(*p, name)) return false;
    *p += character(*p);
    return true;
}

/* Goes back to the last * alone: what an earlier one took has no influence on what can follow. */
static bool matches(const char *p, size_t n, const char *name)
{
    const char *end = p + n, *star = NULL, *resume = NULL;
    if (*name == '.' && *p != '.') return false;
    while (*name) {
        if (p < end && *p == '*') {
            star = ++p;
            resume = name;
        } else if (p < end && match_one(&p, end, name)) {
            name += character(name);
        } else if (star) {
            p = star;
            resume += character(resume);
            name = resume;
        } else {
            return false;
        }
    }
    while (p < end && *p == '*') p++;
    return p == end;
}

/* ---- one pattern ----------------------------------------------------------------------------- */

typedef struct search {
    ts_loading *l;
    int k;
    const char **item; /* in the arena */
    size_t n, capacity, looked;
    const char *folder; /* one that matched where a file was looked for */
} search;

static const char *append(ts_loading *l, const char *head, const char *name, size_t n, bool slash)
{
    const char *path =
        ts_arena_printf(l->arena, "%s%.*s%s", head, (int)n, name, slash ? "/" : "");
    if (!path) l->out_of_memory = true;
    return path;
}

static void add(search *s, const char *path)
{
    if (s->n == s->capacity) {
        size_t capacity = s->capacity ? s->capacity * 2 : 64;
        const char **grown = ts_arena_alloc(s->l->arena, capacity * sizeof *grown);
        if (!grown) {
            s->l->out_of_memory = true;
            return;
        }
        if (s->n) memcpy(grown, s->item, s->n * sizeof *grown);
        s->item = grown;
        s->capacity = capacity;
    }
    if (s->n == MAX_FILES)
        ts__key_problem(s->l, s->k, "names more than %d files; join some, or name fewer",
                        MAX_FILES);
    else
        s->item[s->n++] = path;
}

static void add_match(search *s, const char *path)
{
    ts_path_kind kind = ts_path_kind_of(path);
    if (kind == TS_PATH_FOLDER && !s->folder) s->folder = path;
    if (kind == TS_PATH_FILE && ts_utf8_valid_prefix(path, strlen(path)) != strlen(path))
        ts__key_problem(s->l, s->k,
                        "matches a file whose name is not UTF-8, %.200s; give it another name",
                        path);
    else if (kind == TS_PATH_FILE)
        add(s, path);
}

static bool stopped(const search *s)
{
    return s->l->bad[s->k] || s->l->out_of_memory;
}

static void descend(search *s, const char *head, const char *rest);

/* rest begins with a part that holds a wildcard; head, the folder before it, ends in / or is empty. */
static void walk(search *s, const char *head, const char *rest)
{
    size_t part = strcspn(rest, "/"), n = 0;
    const char *more = rest + part + strspn(rest + part, "/");
    const char *folder = *head ? head : ".";
    char **names = NULL;
    ts_error err = {0};
    if (ts_path_kind_of(folder) != TS_PATH_FOLDER) return;
    if (ts_list_folder(folder, &names, &n, &err) != TS_OK) {
        ts__key_problem(s->l, s->k, "%.400s", err.msg);
        return;
    }
    s->looked += n + 1;
    if (s->looked > MAX_NAMES)
        ts__key_problem(s->l, s->k, "looks through more than %d names; name the folders",
                        MAX_NAMES);
    for (size_t i = 0; i < n && !stopped(s); i++) {
        if (!matches(rest, part, names[i])) continue;
        const char *path = append(s->l, head, names[i], strlen(names[i]), rest[part] == '/');
        if (path && *more)
            descend(s, path, more);
        else if (path)
            add_match(s, path);
    }
    ts_names_free(names, n);
}

/* Takes the parts of rest that stand for themselves into head, and looks into what follows. */
static void descend(search *s, const char *head, const char *rest)
{
    size_t plain = strcspn(rest, "*?["), parts = plain;
    if (!rest[plain]) {
        const char *path = append(s->l, head, rest, plain, false);
        if (path) add_match(s, path);
        return;
    }
    while (parts > 0 && rest[parts - 1] != '/') parts--;
    const char *folder = append(s->l, head, rest, parts, false);
    if (folder) walk(s, folder, rest + parts);
}

/* What is in the folder instead: the nearest name, else any file. */
static void nothing_matches(search *s, const char *pattern)
{
    ts_loading *l = s->l;
    size_t parts = strcspn(pattern, "*?["), n = 0, files = 0;
    char **names = NULL;
    while (parts > 0 && pattern[parts - 1] != '/') parts--;
    const char *head = append(l, "", pattern, parts, false), *any = NULL, *near = NULL;
    if (!head) return;
    const char *folder = append(l, "", head, parts > 1 ? parts - 1 : parts, false);
    const char *shown = parts ? folder : "the working folder";
    if (!folder) return;
    if (!parts) folder = ".";
    if (ts_path_kind_of(folder) != TS_PATH_FOLDER) {
        ts__key_problem(l, s->k, "%.200s matches no file; %.200s does not exist", pattern, folder);
        return;
    }
    if (s->folder) {
        ts__key_problem(l, s->k, "%.200s matches folders alone, such as %.200s; expected files",
                        pattern, s->folder);
        return;
    }
    if (ts_list_folder(folder, &names, &n, NULL) == TS_OK && n <= 1000)
        near = ts_nearest_word(pattern + parts, (const char *const *)names, n);
    for (size_t i = 0; i < n; i++) {
        const char *path = append(l, head, names[i], strlen(names[i]), false);
        if (!path || ts_path_kind_of(path) != TS_PATH_FILE) continue;
        if (!any) any = names[i];
        files++;
    }
    if (near) any = near;
    if (files > 1)
        ts__key_problem(l, s->k, "%.200s matches no file; %.200s holds %.200s and %zu other%s",
                        pattern, shown, any, files - 1, files > 2 ? "s" : "");
    else
        ts__key_problem(l, s->k, "%.200s matches no file; %.200s holds %.200s", pattern, shown,
                        any ? any : "none");
    ts_names_free(names, n);
}

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

bool ts__config_is_pattern(const char *path)
{
    return strpbrk(path, "*?[") && !strstr(path, "://") && ts_path_kind_of(path) == TS_PATH_NONE;
}

static void expand(search *s, const char *pattern)
{
    size_t before = s->n;
    if (strstr(pattern, "**")) {
        ts__key_problem(s->l, s->k,
                        "** is not read; one * stands for one name, as in FOLDER/*/*.jsonl");
        return;
    }
    s->folder = NULL;
    s->looked = 0;
    descend(s, "", pattern);
    if (stopped(s)) return;
    if (s->n > before)
        qsort(s->item + before, s->n - before, sizeof *s->item, by_bytes);
    else if (*s->l->c->compile_topology) /* the data may lie elsewhere; check_files says so */
        add(s, pattern);
    else
        nothing_matches(s, pattern);
}

/* ---- the list of a key ----------------------------------------------------------------------- */

typedef struct identity {
    dev_t device;
    ino_t inode;
    size_t i;
} identity;

static int by_identity(const void *left, const void *right)
{
    const identity *a = left, *b = right;
    if (a->device != b->device) return a->device < b->device ? -1 : 1;
    if (a->inode != b->inode) return a->inode < b->inode ? -1 : 1;
    return (a->i > b->i) - (a->i < b->i);
}

/* The same file under whatever two names: its rows would count twice, and hold-out would leak. */
static void refuse_twice(search *s)
{
    identity *all = ts_arena_alloc(s->l->arena, (s->n + 1) * sizeof *all);
    size_t n = 0, found = s->n, other = 0;
    if (!all) s->l->out_of_memory = true;
    for (size_t i = 0; all && i < s->n; i++) {
        struct stat st;
        if (*s->item[i] && stat(s->item[i], &st) == 0 && S_ISREG(st.st_mode))
            all[n++] = (identity){st.st_dev, st.st_ino, i};
    }
    if (n > 1) qsort(all, n, sizeof *all, by_identity);
    for (size_t i = 1; i < n; i++)
        if (all[i].device == all[i - 1].device && all[i].inode == all[i - 1].inode &&
            all[i].i < found) {
            found = all[i].i;
            other = all[i - 1].i;
        }
    if (found == s->n) return;
    if (strcmp(s->item[found], s->item[other]) == 0)
        ts__key_problem(s->l, s->k, "%.200s is named twice; name each file once", s->item[found]);
    else
        ts__key_problem(s->l, s->k, "%.200s and %.200s are the same file; name each file once",
                        s->item[other], s->item[found]);
}

/* gzip -k and zstd leave the plain file beside the compressed one, and data/part-* takes both. */
static void note_both(const search *s)
{
    static const char *const endings[] = {".gz", ".zst"};
    const char **sorted = ts_arena_alloc(s->l->arena, (s->n + 1) * sizeof *sorted);
    if (!sorted) {
        s->l->out_of_memory = true;
        return;
    }
    if (s->n) memcpy(sorted, s->item, s->n * sizeof *sorted);
    qsort(sorted, s->n, sizeof *sorted, by_bytes);
    for (size_t i = 0; i < 2 * s->n; i++) {
        const char *path = sorted[i / 2], *ending = endings[i % 2];
        size_t n = strlen(path), m = strlen(ending);
        if (n <= m || strcmp(path + n - m, ending)) continue;
        const char *plain = append(s->l, "", path, n - m, false);
        if (!plain || !bsearch(&plain, sorted, s->n, sizeof *sorted, by_bytes)) continue;
        ts__note(s->l, "%s: %.200s is read beside %.200s; if they hold the same, name one of them",
                 ts__keys[s->k].name, path, plain);
        return;
    }
}

ts_config_list ts__config_expand_files(ts_loading *l, int k, ts_config_list list)
{
    search s = {.l = l, .k = k};
    for (size_t i = 0; i < list.n && !stopped(&s); i++) {
        const char *path = ts__config_expand_home(l, k, list.item[i]);
        if (ts__config_is_pattern(path))
            expand(&s, path);
        else
            add(&s, path);
    }
    if (!stopped(&s)) refuse_twice(&s);
    if (!stopped(&s)) note_both(&s);
    return stopped(&s) ? list : (ts_config_list){s.n, s.item};
}
