/* train/config_path.c – paths of a configuration, looked at before anything is allocated or written:
 * is it there, is it of the right kind, can it be read or written.
 *
 * Advice comes from what is really there: the file in a folder that was probably meant, the name next
 * to a misspelt one. Contents are not opened here; whoever reads them reports on them (exit code 3).
 */
#include "train/config_internal.h"

#include "base/file.h"
#include "token/tokenizer.h"

#include <stdlib.h>
#include <sys/vfs.h>
#include <unistd.h>

/* ---- ~/ -------------------------------------------------------------------------------------- */

/* Shells expand ~ at the front of a word, and few of them behind key=; nobody means a folder named ~. */
const char *ts__config_expand_home(ts_loading *l, int k, const char *path)
{
    const char *home = getenv("HOME");
    if (path[0] != '~' || l->bad[k]) return path;
    if (path[1] && path[1] != '/') {
        ts__key_problem(
            l, k,
            "only ~/ is expanded, not another user's; write the folder out (./%.100s is a "
            "file of that name)",
            path);
        return path;
    }
    if (!home || home[0] != '/' || ts_utf8_valid_prefix(home, strlen(home)) != strlen(home)) {
        ts__key_problem(l, k, "~ is $HOME, which is no folder's path here; write the folder out");
        return path;
    }
    const char *whole = ts_arena_printf(l->arena, "%s%s", home, path + 1);
    if (!whole) l->out_of_memory = true;
    return whole ? whole : path;
}

void ts__config_expand_paths(ts_loading *l)
{
    static const int single[] = {TS_K_base_output_directory,
                                 TS_K_model_path,
                                 TS_K_load_parameters_path,
                                 TS_K_load_full_state_path,
                                 TS_K_metrics_file,
                                 TS_K_tokenizer_path,
                                 TS_K_plugin,
                                 TS_K_compiled_trainstep_file,
                                 TS_K_xla_dump_to,
                                 TS_K_data_cache_directory};
    static const int lists[] = {TS_K_dataset_path, TS_K_eval_dataset_path};
    for (size_t i = 0; i < sizeof single / sizeof *single; i++) {
        const char **field = (const char **)((char *)l->c + ts__keys[single[i]].offset);
        *field = ts__config_expand_home(l, single[i], *field);
    }
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        ts_config_list *field = (ts_config_list *)((char *)l->c + ts__keys[lists[i]].offset);
        if (!l->bad[lists[i]]) *field = ts__config_expand_files(l, lists[i], *field);
    }
    ts__config_read_mixture(l);
}

/* ---- what is there --------------------------------------------------------------------------- */

/* gs://bucket/… and the like: programs on a cluster pass them, nothing here reads them. */
static bool is_address(ts_loading *l, int k, const char *path)
{
    if (!strstr(path, "://")) return false;
    ts__key_problem(
        l, k,
        "is an object store's address; mount the bucket (gcsfuse) and give the folder's path");
    return true;
}

static bool has_suffix(const char *name, const char *suffix)
{
    size_t n = strlen(name), m = strlen(suffix);
    return n > m && !strcmp(name + n - m, suffix);
}

/* The first data file in a folder, or NULL; *suffix is how such names end. */
static const char *file_inside(ts_loading *l, const char *folder, const char **suffix)
{
    static const char *const suffixes[] = {".jsonl",  ".jsonl.gz", ".jsonl.zst", ".txt",    ".bin",
                                           ".txt.gz", ".txt.zst",  ".bin.gz",    ".bin.zst"};
    char **names = NULL;
    size_t n = 0;
    const char *found = NULL;
    if (ts_list_folder(folder, &names, &n, NULL) != TS_OK) return NULL;
    for (size_t s = 0; s < sizeof suffixes / sizeof *suffixes && !found; s++)
        for (size_t i = 0; i < n && !found; i++)
            if (has_suffix(names[i], suffixes[s])) {
                found = ts_arena_strdup(l->arena, names[i]);
                *suffix = suffixes[s];
            }
    ts_names_free(names, n);
    return found;
}

/* The name beside path that resembles its last part, or NULL. */
static const char *neighbour(ts_loading *l, const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    const char *folder = slash == path ? "/"
                         : slash       ? ts_arena_strndup(l->arena, path, (size_t)(slash - path))
                                       : ".";
    char **names = NULL;
    size_t n = 0;
    if (!folder || !*name || strlen(name) > 100 || ts_path_kind_of(folder) != TS_PATH_FOLDER)
        return NULL;
    if (ts_list_folder(folder, &names, &n, NULL) != TS_OK) return NULL;
    const char *near = n <= 1000 ? ts_nearest_word(name, (const char *const *)names, n) : NULL;
    if (near) near = ts_arena_printf(l->arena, "%.*s%s", (int)(name - path), path, near);
    ts_names_free(names, n);
    return near;
}

static void check_missing(ts_loading *l, int k, const char *path)
{
    const char *near = neighbour(l, path);
    if (near)
        ts__key_problem(l, k, "%.200s does not exist; did you mean %.200s?", path, near);
    else
        ts__key_problem(l, k, "%.200s does not exist", path);
}

/* With compile_topology set the data may lie where the program will run: `tessera compile` reads none, and training
 * asks (ts_config_check_data). */
static void postpone_missing(ts_loading *l, int k, const char *path)
{
    if (l->c->data_problem) return;
    l->c->data_problem =
        ts_arena_printf(l->arena, "%s: %.200s does not exist", ts__keys[k].name, path);
    l->out_of_memory |= !l->c->data_problem;
}

ts_status ts_config_check_data(const ts_config *c, ts_error *err)
{
    if (!c->data_problem) return TS_OK;
    return TS_ERROR(err, TS_INVALID_ARGUMENT,
                    "1 error in the configuration, nothing was started\n\n  %s", c->data_problem);
}

void ts__config_check_files(ts_loading *l, int k, const ts_config_list *paths)
{
    for (size_t i = 0; i < paths->n && !l->bad[k]; i++) {
        const char *path = paths->item[i];
        if (!*path) {
            ts__key_problem(l, k, "has an empty name; expected FILE[,FILE…]");
            continue;
        }
        if (is_address(l, k, path)) continue;
        ts_path_kind kind = ts_path_kind_of(path);
        const char *suffix = "";
        const char *inside = kind == TS_PATH_FOLDER ? file_inside(l, path, &suffix) : NULL;
        const char *slash = path[strlen(path) - 1] == '/' ? "" : "/";
        if (inside)
            ts__key_problem(
                l, k, "%.200s is a folder; expected files, such as %.200s%s*%s (it holds %.200s%s%s)",
                path, path, slash, suffix, path, slash, inside);
        else if (kind == TS_PATH_FOLDER)
            ts__key_problem(l, k, "%.200s is a folder; expected a .jsonl, .txt or .bin file", path);
        else if (kind == TS_PATH_NONE && *l->c->compile_topology)
            postpone_missing(l, k, path);
        else if (kind == TS_PATH_NONE)
            check_missing(l, k, path);
        else if (kind == TS_PATH_OTHER)
            ts__key_problem(l, k, "%.200s is a device or pipe; expected a file", path);
        else if (access(path, R_OK))
            ts__key_problem(l, k, "%.200s may not be read by this user; change its permissions",
                            path);
    }
}

/* A model or checkpoint: a folder with a file that says which it is. */
static void check_weights(ts_loading *l, int k, const char *path)
{
    static const char *const marks[] = {"config.json", "manifest.json"};
    bool architecture = k == TS_K_model_path, state = k == TS_K_load_full_state_path, found = false;
    const char *expected =
        architecture ? "a Hugging Face folder (with config.json)"
        : state
            ? "a checkpoint step (with manifest.json)"
            : "a checkpoint step (with manifest.json) or a Hugging Face folder (with config.json)";
    if (!*path || l->bad[k] || is_address(l, k, path)) return;
    ts_path_kind kind = ts_path_kind_of(path);
    if (kind == TS_PATH_NONE) {
        check_missing(l, k, path);
        return;
    }
    if (has_suffix(path, ".gguf")) {
        ts__key_problem(l, k, "GGUF files are not read by this version; expected %s", expected);
        return;
    }
    if (kind != TS_PATH_FOLDER) {
        ts__key_problem(l, k, "is not a folder; expected %s", expected);
        return;
    }
    for (int i = state; i < (architecture ? 1 : 2); i++) {
        char *file = ts_path_join(path, marks[i]);
        found = found || (file && ts_path_kind_of(file) == TS_PATH_FILE);
        ts_free(file);
    }
    if (!found) ts__key_problem(l, k, "expected %s", expected);
}

/* ---- where the run goes ---------------------------------------------------------------------- */

/* Folders in which the kernel shows its state: they look writable to root, and take no files. */
static bool is_kernels(const char *folder)
{
    enum { PROC = 0x9fa0, SYS = 0x62656572, CGROUP = 0x63677270 };
    struct statfs s;
    return statfs(folder, &s) == 0 && (s.f_type == PROC || s.f_type == SYS || s.f_type == CGROUP);
}

/* Why the run's folder cannot be made, or NULL: its deepest parent that exists must be a folder that
 * may be written. */
static const char *output_problem(ts_loading *l)
{
    char *path = ts_arena_strdup(l->arena, l->c->run_folder);
    const char *why = NULL;
    if (!path) return l->out_of_memory = true, NULL;
    for (ts_path_kind kind; (kind = ts_path_kind_of(path)) != TS_PATH_FOLDER;) {
        char *slash = strrchr(path, '/'); /* run_folder always has one */
        if (kind != TS_PATH_NONE)
            return ts_arena_printf(l->arena, "%.200s is a file; the run needs a folder there",
                                   path);
        if (slash > path)
            *slash = 0;
        else
            memcpy(path, slash ? "/" : ".", 2); /* a path has two bytes at least, with its end */
    }
    const char *shown = strcmp(path, ".") ? path : "the working folder";
    if (is_kernels(path))
        why =
            ts_arena_printf(l->arena,
                            "%.200s belongs to the kernel and takes no files; choose a folder on a "
                            "disk",
                            shown);
    else if (access(path, W_OK | X_OK))
        why = ts_arena_printf(l->arena,
                              "%.200s is read-only, or not this user's to write; choose another "
                              "folder: base_output_directory=FOLDER",
                              shown);
    return why;
}

static void check_output(ts_loading *l)
{
    const int k = TS_K_base_output_directory;
    if (l->bad[k] || is_address(l, k, l->c->base_output_directory)) return;
    const char *why = output_problem(l);
    if (!why) return;
    if (strcmp(l->c->base_output_directory, TS_DEFAULT_OUTPUT))
        ts__key_problem(l, k, "%s", why);
    else
        l->c->output_problem = why;
}

ts_status ts_config_check_output(const ts_config *c, ts_error *err)
{
    if (!c->output_problem) return TS_OK;
    return TS_ERROR(err, TS_INVALID_ARGUMENT,
                    "1 error in the configuration, nothing was started\n\n"
                    "  base_output_directory=%s   %s (the default)",
                    c->base_output_directory, c->output_problem);
}

/* A plugin by its path, and what the compiler writes. Whether compiled_trainstep_file is there matters to training
 * alone, which asks itself (choose.c); `tessera compile` writes it. */
static void check_engine_paths(ts_loading *l)
{
    const ts_config *c = l->c;
    const char *plugin = c->plugin;
    if (strchr(plugin, '/') && !l->bad[TS_K_plugin] && !is_address(l, TS_K_plugin, plugin)) {
        ts_path_kind kind = ts_path_kind_of(plugin);
        if (kind == TS_PATH_NONE)
            check_missing(l, TS_K_plugin, plugin);
        else if (kind != TS_PATH_FILE)
            ts__key_problem(l, TS_K_plugin, "%.200s is not a file; expected a shared library",
                            plugin);
    }
    if (*c->compiled_trainstep_file)
        (void)is_address(l, TS_K_compiled_trainstep_file, c->compiled_trainstep_file);
    ts_path_kind dump = *c->xla_dump_to ? ts_path_kind_of(c->xla_dump_to) : TS_PATH_FOLDER;
    if (!is_address(l, TS_K_xla_dump_to, c->xla_dump_to) && dump != TS_PATH_FOLDER &&
        dump != TS_PATH_NONE)
        ts__key_problem(l, TS_K_xla_dump_to, "is not a folder; expected the name of a folder");
}

/* Whether anything is compressed shows when it is read; a folder that is named must do in any case. */
static void check_cache(ts_loading *l)
{
    const int k = TS_K_data_cache_directory;
    const char *folder = l->c->data_cache_directory;
    if (!*folder || l->bad[k] || is_address(l, k, folder)) return;
    ts_path_kind kind = ts_path_kind_of(folder);
    if (kind == TS_PATH_NONE)
        check_missing(l, k, folder);
    else if (kind != TS_PATH_FOLDER)
        ts__key_problem(l, k, "is a file; expected a folder");
    else if (access(folder, W_OK | X_OK) || is_kernels(folder))
        ts__key_problem(l, k, "is not this user's to write; choose another folder");
}

void ts__config_check_paths(ts_loading *l)
{
    const ts_config *c = l->c;
    if (c->dataset != TS_DATA_SYNTHETIC || l->bad[TS_K_dataset_type]) {
        ts__config_check_files(l, TS_K_dataset_path, &c->dataset_path);
        ts__config_check_files(l, TS_K_eval_dataset_path, &c->eval_dataset_path);
    }
    check_weights(l, TS_K_model_path, c->model_path);
    check_weights(l, TS_K_load_parameters_path, c->load_parameters_path);
    check_weights(l, TS_K_load_full_state_path, c->load_full_state_path);
    check_engine_paths(l);
    check_output(l);
    check_cache(l);
    if (*c->metrics_file && ts_path_kind_of(c->metrics_file) == TS_PATH_FOLDER)
        ts__key_problem(l, TS_K_metrics_file, "is a folder; expected the name of a file");
}
