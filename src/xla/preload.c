/* xla/preload.c – the NVIDIA libraries of a CUDA plugin, opened before it.
 *
 * The plugin names them without a path, and most machines have them in Python packages where the loader does not
 * look. Searched, in this order: the site-packages folder that the plugin itself lies in, $VIRTUAL_ENV, where the
 * loader looks, Debian's folders of Python packages. Each is opened RTLD_GLOBAL, so that the plugin's own request
 * is met. A library that is nowhere is remembered, not an error: what the plugin misses it will say.
 */
#include "xla/preload.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"

/* What a library needs itself comes before it. */
static const char *const names[] = {"libcudart.so.13",   "libnvrtc.so.13",    "libcublasLt.so.13",
                                    "libcublas.so.13",   "libnccl.so.2",      "libcupti.so.13",
                                    "libcusparse.so.12", "libcusolver.so.12", "libcufft.so.12",
                                    "libcudnn.so.9"};
enum { N_NAMES = sizeof names / sizeof *names, MAX_PATH = 4096 };

typedef struct search {
    bool found[N_NAMES];
} search;

static bool open_global(const char *path)
{
    return dlopen(path, RTLD_LAZY | RTLD_GLOBAL) != NULL;
}

/* PACKAGES/nvidia/NAME/lib: the layout of NVIDIA's wheels. */
static void look_in_packages(search *s, const char *packages)
{
    char path[MAX_PATH], **folder = NULL;
    size_t n = 0;
    snprintf(path, sizeof path, "%s/nvidia", packages);
    if (ts_path_kind_of(path) != TS_PATH_FOLDER || ts_list_folder(path, &folder, &n, NULL) != TS_OK)
        return;
    for (size_t k = 0; k < N_NAMES; k++)
        for (size_t i = 0; i < n && !s->found[k]; i++) {
            int length =
                snprintf(path, sizeof path, "%s/nvidia/%s/lib/%s", packages, folder[i], names[k]);
            if (length > 0 && (size_t)length < sizeof path && ts_path_kind_of(path) == TS_PATH_FILE)
                s->found[k] = open_global(path);
        }
    ts_names_free(folder, n);
}

/* PREFIX/lib/python3*: its folder of packages. */
static void look_in_pythons(search *s, const char *prefix, const char *packages)
{
    char path[MAX_PATH], **name = NULL;
    size_t n = 0;
    snprintf(path, sizeof path, "%s/lib", prefix);
    if (ts_path_kind_of(path) != TS_PATH_FOLDER || ts_list_folder(path, &name, &n, NULL) != TS_OK)
        return;
    for (size_t i = 0; i < n; i++) {
        if (strncmp(name[i], "python3", 7) != 0) continue;
        int length = snprintf(path, sizeof path, "%s/lib/%s/%s", prefix, name[i], packages);
        if (length > 0 && (size_t)length < sizeof path) look_in_packages(s, path);
    }
    ts_names_free(name, n);
}

/* …/site-packages/jax_plugins/xla_cuda13/xla_cuda_plugin.so → …/site-packages */
static bool own_packages(const char *plugin, char path[MAX_PATH])
{
    if (strlen(plugin) >= MAX_PATH) return false;
    memcpy(path, plugin, strlen(plugin) + 1);
    for (int up = 0; up < 3; up++) {
        char *slash = strrchr(path, '/');
        if (!slash || slash == path) return false;
        *slash = '\0';
    }
    return true;
}

void ts__preload(const char *plugin, ts_string *missing)
{
    search s = {0};
    char path[MAX_PATH];
    const char *slash = strrchr(plugin, '/'), *environment = getenv("VIRTUAL_ENV");
    if (!strstr(slash ? slash : plugin, "cuda")) return;
    if (own_packages(plugin, path)) look_in_packages(&s, path);
    if (environment && *environment) look_in_pythons(&s, environment, "site-packages");
    for (size_t k = 0; k < N_NAMES; k++)
        if (!s.found[k]) s.found[k] = open_global(names[k]);
    look_in_pythons(&s, "/usr/local", "dist-packages");
    look_in_pythons(&s, "/usr/local", "site-packages");
    look_in_pythons(&s, "/usr", "dist-packages");
    for (size_t k = 0; k < N_NAMES; k++)
        if (!s.found[k]) ts_string_printf(missing, "%s%s", missing->length ? ", " : "", names[k]);
}
