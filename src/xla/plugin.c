/* xla/plugin.c – where plugins are: the kinds that are known, the folders that are searched, the list.
 *
 * A scan collects every library that is there, folder by folder in the order of plugin.h; finding one by
 * its name picks from the scan, listing tries each. So what `tessera plugins list` shows under a name is what
 * plugin=NAME takes. A record that is damaged is found too, and its error is the answer: the next folder's
 * plugin would be another version than the user installed.
 * Not here: loading (pjrt.c), trying in a child (probe.c), installing (install.c).
 */
#include "xla/plugin.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"

/* ---- the kinds ------------------------------------------------------------------------------- */

static const char *const cpu_files[] = {"pjrt_c_api_cpu_plugin.so", "libpjrt_cpu.so", NULL};
static const char *const tpu_files[] = {"libtpu.so", NULL};
static const char *const cuda_files[] = {"xla_cuda_plugin.so", "libpjrt_cuda.so", NULL};

const ts_plugin_kind ts_plugin_kinds[] = {
    {"cpu", "lammps-jax-pjrt-cpu", "0.11.2", "pjrt_c_api_cpu_plugin.so", "Apache-2.0", NULL,
     cpu_files},
    {"tpu", "libtpu", "0.0.52", "libtpu/libtpu.so", "Google Cloud Platform terms",
     "libtpu is Google's and not open source. It is made available as \"Software\" under the agreement that "
     "governs your use of Google Cloud Platform, or https://cloud.google.com/terms where you have none, with "
     "https://cloud.google.com/terms/service-terms; it may not be passed on.",
     tpu_files},
    {"cuda", "jax-cuda13-pjrt", "0.12.0.1", "xla_cuda_plugin.so", "Apache-2.0", NULL, cuda_files},
};
const int ts_plugin_kind_count = sizeof ts_plugin_kinds / sizeof *ts_plugin_kinds;

/* Where Python packages keep theirs, below site-packages. */
static const struct packaged {
    const char *kind, *path;
} packaged[] = {
    {"cpu", "lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so"},
    {"cpu", "fastatomstruct_xla_cpu/libpjrt_cpu.so"},
    {"tpu", "libtpu/libtpu.so"},
    {"cuda", "jax_plugins/xla_cuda13/xla_cuda_plugin.so"},
    {"cuda", "jax_plugins/xla_cuda12/xla_cuda_plugin.so"},
};

const ts_plugin_kind *ts__plugin_kind(const char *name)
{
    for (int i = 0; i < ts_plugin_kind_count; i++)
        if (strcmp(ts_plugin_kinds[i].name, name) == 0) return &ts_plugin_kinds[i];
    return NULL;
}

/* ---- the folders ----------------------------------------------------------------------------- */

static ts_status user_folder(char *path, size_t n, ts_error *err)
{
    const char *data = getenv("XDG_DATA_HOME"), *home = getenv("HOME");
    int m;
    if (data && data[0] == '/') /* the specification ignores what is not absolute */
        m = snprintf(path, n, "%s/tessera/plugins", data);
    else if (home && *home)
        m = snprintf(path, n, "%s/.local/share/tessera/plugins", home);
    else
        return TS_ERROR(err, TS_FAILED_PRECONDITION,
                        "neither TESSERA_PLUGIN_PATH nor HOME is set: nowhere to keep plugins; set "
                        "TESSERA_PLUGIN_PATH to a folder");
    if (m < 0 || (size_t)m >= n)
        return TS_ERROR(err, TS_INVALID_ARGUMENT, "HOME or XDG_DATA_HOME is longer than a path");
    return TS_OK;
}

ts_status ts__plugin_folder(const char *wanted, char *path, size_t n, ts_error *err)
{
    const char *list = getenv("TESSERA_PLUGIN_PATH");
    size_t length = wanted ? strlen(wanted) : 0;
    if (!length && list) {
        wanted = list + strspn(list, ":");
        length = strcspn(wanted, ":");
    }
    if (!length) return user_folder(path, n, err);
    if (length >= n)
        return TS_ERROR(err, TS_INVALID_ARGUMENT, "the folder for plugins is longer than a path");
    memcpy(path, wanted, length);
    path[length] = '\0';
    return TS_OK;
}

/* ---- the scan -------------------------------------------------------------------------------- */

enum { MAX_SITES = 1024, MAX_FOLDERS = 64 };

typedef struct site {
    const char *name;               /* of the subfolder, or of the kind */
    const ts_plugin_kind *kind;     /* by the library's name; NULL: recorded, of no known kind */
    const char *folder, *path;      /* the library's folder and the library */
    const ts_plugin_record *record; /* NULL where nobody recorded it */
    ts_status status;               /* of the record */
    const char *problem;
    int search; /* number of the searched folder */
} site;

typedef struct scan {
    ts_arena *arena;
    site *site;
    const char *folder[MAX_FOLDERS];
    int n_site, n_folder;
    bool failed; /* memory is out */
} scan;

static char *join(scan *s, const char *a, const char *b)
{
    char *path =
        ts_arena_printf(s->arena, "%s%s%s", a, *a && a[strlen(a) - 1] == '/' ? "" : "/", b);
    s->failed |= !path;
    return path;
}

static void add_site(scan *s, site found)
{
    s->failed |= !found.name || !found.folder || !found.path || s->n_site == MAX_SITES;
    if (s->failed) return;
    found.search = s->n_folder - 1;
    s->site[s->n_site++] = found;
}

static const ts_plugin_kind *kind_of_file(const char *file)
{
    for (int i = 0; i < ts_plugin_kind_count; i++)
        for (const char *const *f = ts_plugin_kinds[i].file; *f; f++)
            if (strcmp(*f, file) == 0) return &ts_plugin_kinds[i];
    return NULL;
}

/* Libraries of known names in a folder; name NULL: each is named for its kind. */
static void known_files(scan *s, const char *folder, const char *name)
{
    for (int i = 0; i < ts_plugin_kind_count; i++)
        for (const char *const *f = ts_plugin_kinds[i].file; *f; f++) {
            const ts_plugin_kind *kind = &ts_plugin_kinds[i];
            const char *path = join(s, folder, *f);
            if (path && ts_path_kind_of(path) == TS_PATH_FILE)
                add_site(
                    s, (site){name ? name : kind->name, kind, folder, path, NULL, TS_OK, NULL, 0});
        }
}

/* folder/name with its record, or with libraries of known names. */
static void subfolder(scan *s, const char *folder, const char *word)
{
    const char *name = ts_arena_strdup(s->arena, word), *path = join(s, folder, word);
    ts_plugin_record *r = ts_arena_alloc(s->arena, sizeof *r);
    ts_error err = {0};
    s->failed |= !name || !r;
    if (s->failed || ts_path_kind_of(path) != TS_PATH_FOLDER) return;
    ts_status status = ts__plugin_record_read(path, r, &err);
    if (status == TS_NOT_FOUND) {
        known_files(s, path, name);
        return;
    }
    s->failed |= status == TS_RESOURCE_EXHAUSTED;
    if (s->failed) return;
    const char *library = join(s, path, status == TS_OK ? r->file : "plugin.json");
    if (status == TS_OK && library && ts_path_kind_of(library) != TS_PATH_FILE)
        status = TS_ERROR(&err, TS_DATA_LOSS, "%s: the library that plugin.json names is not there",
                          library);
    const ts_plugin_kind *kind = kind_of_file(r->file);
    add_site(s, (site){name, kind ? kind : ts__plugin_kind(name), path, library, r, status,
                       status == TS_OK ? NULL : ts_arena_strdup(s->arena, err.msg), 0});
}

static bool begin_folder(scan *s, const char *folder)
{
    s->failed |= !folder;
    if (s->failed || s->n_folder == MAX_FOLDERS) return false;
    s->folder[s->n_folder++] = folder;
    return true;
}

/* The names in a folder. One that cannot be read has none, and is told about as it was found. */
static bool names_in(scan *s, const char *folder, char ***names, size_t *n)
{
    ts_error err = {0};
    ts_status status = ts_list_folder(folder, names, n, &err);
    s->failed |= status == TS_RESOURCE_EXHAUSTED;
    return status == TS_OK;
}

static void plugin_folder(scan *s, const char *folder)
{
    char **names;
    size_t n;
    if (!begin_folder(s, folder) || !names_in(s, folder, &names, &n)) return;
    for (size_t i = 0; i < n; i++)
        if (names[i][0] != '.' && strlen(names[i]) < sizeof((ts_plugin_info *)0)->name)
            subfolder(s, folder, names[i]);
    known_files(s, folder, NULL);
    ts_names_free(names, n);
}

static void python_packages(scan *s, const char *environment)
{
    const char *lib = join(s, environment, "lib");
    char **names;
    size_t n;
    if (!lib || !names_in(s, lib, &names, &n)) return;
    for (size_t i = 0; i < n; i++) {
        if (strncmp(names[i], "python3", 7) != 0) continue;
        const char *folder = ts_arena_printf(s->arena, "%s/%s/site-packages", lib, names[i]);
        if (!begin_folder(s, folder)) continue;
        for (size_t k = 0; k < sizeof packaged / sizeof *packaged; k++) {
            const char *path = join(s, folder, packaged[k].path);
            if (path && ts_path_kind_of(path) == TS_PATH_FILE)
                add_site(s, (site){packaged[k].kind, ts__plugin_kind(packaged[k].kind), folder,
                                   path, NULL, TS_OK, NULL, 0});
        }
    }
    ts_names_free(names, n);
}

static void scan_free(scan *s)
{
    ts_arena_free(s->arena);
}

static ts_status scan_all(scan *s, ts_error *err)
{
    char user[4096];
    ts_error no_user = {0};
    *s = (scan){.arena = ts_arena_new()};
    if (s->arena) s->site = ts_arena_alloc(s->arena, MAX_SITES * sizeof *s->site);
    s->failed = !s->site;
    for (const char *list = getenv("TESSERA_PLUGIN_PATH"); !s->failed && list && *list;) {
        size_t n = strcspn(list, ":");
        if (n) plugin_folder(s, ts_arena_strndup(s->arena, list, n));
        list += n + (list[n] == ':');
    }
    if (!s->failed && user_folder(user, sizeof user, &no_user) == TS_OK)
        plugin_folder(s, ts_arena_strdup(s->arena, user));
    const char *environment = getenv("VIRTUAL_ENV");
    if (!s->failed && environment && *environment) python_packages(s, environment);
    if (!s->failed) return TS_OK;
    bool many = s->n_site == MAX_SITES;
    scan_free(s);
    if (many)
        return TS_ERROR(err, TS_OUT_OF_RANGE,
                        "more than %d plugins in the folders of TESSERA_PLUGIN_PATH and below HOME",
                        MAX_SITES);
    return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "out of memory while looking for plugins");
}

/* In each folder first what has just this name, then what is of this kind. */
static const site *find_site(const scan *s, const char *name)
{
    for (int f = 0; f < s->n_folder; f++) {
        for (int i = 0; i < s->n_site; i++)
            if (s->site[i].search == f && strcmp(s->site[i].name, name) == 0) return &s->site[i];
        for (int i = 0; i < s->n_site; i++)
            if (s->site[i].search == f && s->site[i].kind &&
                strcmp(s->site[i].kind->name, name) == 0)
                return &s->site[i];
    }
    return NULL;
}

/* ---- finding --------------------------------------------------------------------------------- */

static ts_status not_found(const scan *s, const char *name, ts_error *err)
{
    ts_string where = ts_string_new(2000);
    for (int f = 0; f < s->n_folder; f++)
        ts_string_printf(&where, "%s%s%s", f ? ", " : "", s->folder[f],
                         ts_path_kind_of(s->folder[f]) == TS_PATH_NONE ? " (does not exist)" : "");
    const char *looked = where.length && !where.failed ? where.data : "no folder at all";
    TS_ERROR(err, TS_NOT_FOUND,
             "no %s plugin is installed; looked in %s. `tessera plugins install %s` brings one; "
             "TESSERA_PLUGIN_PATH names other folders",
             name, looked, name);
    ts_string_free(&where);
    return TS_NOT_FOUND;
}

static ts_status take_path(const char *name, char *path, size_t n, ts_error *err)
{
    ts_path_kind kind = ts_path_kind_of(name);
    if (kind == TS_PATH_NONE)
        return TS_ERROR(err, TS_NOT_FOUND, "plugin %s: there is no such file", name);
    if (kind != TS_PATH_FILE)
        return TS_ERROR(err, TS_INVALID_ARGUMENT, "plugin %s: is a %s; expected a library (.so)",
                        name, kind == TS_PATH_FOLDER ? "folder" : "device or pipe");
    if (strlen(name) >= n)
        return TS_ERROR(err, TS_INVALID_ARGUMENT, "plugin %s: the path is too long", name);
    memcpy(path, name, strlen(name) + 1);
    return TS_OK;
}

/* What puts a damaged plugin right: install writes FOLDER/KIND and nothing else. */
static void add_remedy(const site *found, char *text, size_t n)
{
    if (found->kind && strcmp(found->kind->name, found->name) == 0)
        snprintf(text, n, "`tessera plugins install %s --again` puts it right", found->name);
    else
        snprintf(text, n, "remove %s", found->folder);
}

/* What stands against loading it: its record cannot be read, or its bytes are not those that were recorded. */
static ts_status site_status(const site *found, ts_error *err)
{
    char remedy[4200];
    add_remedy(found, remedy, sizeof remedy);
    if (found->status == TS_OK && found->record) {
        ts_status status = ts__plugin_record_check(found->folder, found->record, err);
        if (status == TS_DATA_LOSS) ts__error_context(err, "the plugin is not loaded (%s)", remedy);
        return status;
    }
    if (found->status == TS_OK) return TS_OK;
    return TS_ERROR(err, found->status, "%s; %s", found->problem ? found->problem : "out of memory",
                    remedy);
}

ts_status ts__plugin_find(const char *name, char *path, size_t n, ts_error *err)
{
    scan s;
    if (strchr(name, '/')) return take_path(name, path, n, err);
    if (!ts__plugin_kind(name))
        return TS_ERROR(
            err, TS_NOT_FOUND,
            "no plugin is called \"%s\"; expected cpu, tpu, cuda or a path, with a slash "
            "in it",
            name);
    TS_TRY(scan_all(&s, err));
    const site *found = find_site(&s, name);
    ts_status status = found ? site_status(found, err) : not_found(&s, name, err);
    if (status == TS_OK) status = take_path(found->path, path, n, err);
    scan_free(&s);
    return status;
}

/* ---- the list -------------------------------------------------------------------------------- */

/* Name by which find takes just this one, or "". */
static const char *name_of(const scan *s, const site *x)
{
    return x->kind && find_site(s, x->kind->name) == x ? x->kind->name : "";
}

static void describe(const scan *s, const site *x, ts_plugin_info *out)
{
    ts_error err = {0};
    ts_status status = site_status(x, &err);
    const char *name = name_of(s, x);
    if (status == TS_OK) {
        status = ts__plugin_probe(name, x->path, true, 0, out, &err); /* fills status and problem */
    } else {
        snprintf(out->name, sizeof out->name, "%s", name);
        snprintf(out->path, sizeof out->path, "%s", x->path);
        snprintf(out->problem, sizeof out->problem, "%.1199s", err.msg);
    }
    out->status = status;
    if (!x->record) return;
    snprintf(out->package, sizeof out->package, "%s", x->record->package);
    snprintf(out->version, sizeof out->version, "%s", x->record->version);
}

ts_status ts_plugins_list(ts_plugin_info **out, size_t *n, ts_error *err)
{
    scan s;
    *out = NULL;
    *n = 0;
    TS_TRY(scan_all(&s, err));
    ts_plugin_info *list = ts_alloc_zero((size_t)s.n_site * sizeof *list);
    ts_status status =
        list ? TS_OK
             : TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "out of memory for the list of plugins");
    for (int i = 0; status == TS_OK && i < s.n_site; i++) {
        describe(&s, &s.site[i], &list[i]);
        if (list[i].status == TS_CANCELLED) /* a signal came, which is not the plugin's fault */
            status = TS_ERROR(err, TS_CANCELLED, "%s", list[i].problem);
    }
    if (status == TS_OK) {
        *n = (size_t)s.n_site;
        *out = list;
    } else {
        ts_free(list);
    }
    scan_free(&s);
    return status;
}

void ts_plugins_free(ts_plugin_info *list)
{
    ts_free(list);
}
