/* base/folder.c – folders and names: make, list, sync, rename, link, remove.
 *
 * A rename is atomic but not durable until the parent folder is synced; callers that need both call
 * both. Removing never follows a link: it works through folder descriptors.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/file_internal.h"

enum { REMOVE_DEPTH = 64, FUSE_MAGIC = 0x65735546 };

/* The folder that holds `part`, which ends at n, made durable: of "a/b" it is "a/". */
static ts_status sync_parent(char *part, size_t n, ts_error *err)
{
    while (n > 0 && part[n - 1] == '/') n--;
    while (n > 0 && part[n - 1] != '/') n--;
    char kept = part[n];
    part[n] = '\0';
    ts_status status = ts_sync_folder(n ? part : ".", err);
    part[n] = kept;
    return status;
}

ts_status ts_make_folders(const char *path, ts_error *err)
{
    if (!*path) return TS_ERROR(err, TS_INVALID_ARGUMENT, "the path of a folder is empty");
    char *part = ts_strdup(path);
    if (!part) return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "%s: out of memory", path);
    ts_status status = TS_OK;
    size_t n = strlen(part);
    while (n > 1 && part[n - 1] == '/') part[--n] = '\0';
    for (size_t i = 1; i <= n && status == TS_OK; i++) {
        if (part[i] != '/' && part[i] != '\0') continue;
        char kept = part[i];
        part[i] = '\0';
        /* Look first: mkdir of an existing parent may fail with EROFS or EACCES instead of EEXIST. */
        ts_path_kind kind = ts_path_kind_of(part);
        int e = kind == TS_PATH_NONE ? ts__sys_mkdir(part) : 0;
        if (e == EEXIST) {
            kind = ts_path_kind_of(part);
            e = kind == TS_PATH_FOLDER ? 0 : EEXIST;
        }
        if (e == 0 && (kind == TS_PATH_FILE || kind == TS_PATH_OTHER))
            status = TS_ERROR(err, TS_INVALID_ARGUMENT, "%s: is a file; expected a folder", part);
        else if (e != 0)
            status = TS_ERROR(err, ts__errno_status(e), "%s: cannot make the folder: %s", part,
                              ts__errno_words(e));
        else if (kind == TS_PATH_NONE && i < n)
            status = sync_parent(part, i, err);
        part[i] = kept;
    }
    ts_free(part);
    return status;
}

ts_status ts_folder_may_change(const char *path, ts_error *err)
{
    if (access(path, W_OK | X_OK) == 0) return TS_OK;
    return TS_ERROR(err, ts__errno_status(errno), "%s: cannot be changed: %s", path,
                    ts__errno_words(errno));
}

ts_status ts_sync_parent(const char *path, ts_error *err)
{
    char *part = ts_strdup(path);
    if (!part) return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "%s: out of memory", path);
    ts_status status = sync_parent(part, strlen(part), err);
    ts_free(part);
    return status;
}

ts_status ts_sync_file(const char *path, ts_error *err)
{
    int fd;
    TS_TRY(ts__open(path, O_RDONLY, 0, &fd, err));
    int e = ts__sys_sync(fd, path);
    (void)ts__sys_close(fd, path);
    if (e == 0) return TS_OK;
    return TS_ERROR(err, ts__errno_status(e), "%s: cannot make the file durable (fsync): %s", path,
                    ts__errno_words(e));
}

ts_status ts_sync_folder(const char *path, ts_error *err)
{
    int fd;
    TS_TRY(ts__open(path, O_RDONLY | O_DIRECTORY, 0, &fd, err));
    int e = ts__sys_sync(fd, path);
    (void)ts__sys_close(fd, path);
    /* Some file systems cannot sync a folder and say EINVAL; there is nothing more to ask of them. */
    if (e == 0 || e == EINVAL) return TS_OK;
    return TS_ERROR(err, ts__errno_status(e), "%s: cannot make the folder durable (fsync): %s",
                    path, ts__errno_words(e));
}

/* ---- names ----------------------------------------------------------------------------------- */

ts_status ts_rename(const char *from, const char *to, ts_error *err)
{
    int e = ts__sys_rename(from, to, 0);
    if (e == 0) return TS_OK;
    return TS_ERROR(err, ts__errno_status(e), "%s: cannot rename to %s: %s", from, to,
                    ts__errno_words(e));
}

ts_status ts_exchange(const char *a, const char *b, ts_error *err)
{
    int e = ts__sys_rename(a, b, RENAME_EXCHANGE);
    if (e == 0) return TS_OK;
    if (e == EINVAL || e == ENOSYS || e == EOPNOTSUPP || e == EXDEV)
        return TS_ERROR(err, TS_UNIMPLEMENTED, "%s: this file system cannot exchange two paths", a);
    return TS_ERROR(err, ts__errno_status(e), "%s: cannot exchange with %s: %s", a, b,
                    ts__errno_words(e));
}

ts_status ts_link(const char *from, const char *to, ts_error *err)
{
    int e = ts__sys_link(from, to);
    if (e == 0) return TS_OK;
    /* EPERM: the file system has no links, or the kernel protects another user's file. */
    if (e == EPERM || e == EXDEV || e == EMLINK || e == EOPNOTSUPP || e == ENOSYS || e == EINVAL)
        return TS_ERROR(err, TS_UNIMPLEMENTED, "%s: cannot be linked as %s here: %s", from, to,
                        strerror(e));
    return TS_ERROR(err, ts__errno_status(e), "%s: cannot link as %s: %s", from, to,
                    ts__errno_words(e));
}

bool ts_is_fuse(const char *path)
{
    struct statfs fs;
    char *part = ts_strdup(path);
    size_t n = part ? strlen(part) : 0;
    int e = ENOENT;
    while (e == ENOENT && n > 0) {
        e = statfs(part, &fs) == 0 ? 0 : errno;
        /* Next the folder around it: what stands before the last name. */
        while (n > 0 && part[n - 1] == '/') n--;
        while (n > 0 && part[n - 1] != '/') n--;
        part[n] = '\0';
    }
    if (e == ENOENT) e = statfs(".", &fs) == 0 ? 0 : errno; /* a relative path, nothing of it there */
    ts_free(part);
    return e == 0 && (unsigned long)fs.f_type == FUSE_MAGIC;
}

/* ---- removing -------------------------------------------------------------------------------- */

/* Where a removal is, for messages and tests (cut where it is too long), and its first failure. It asks for no memory:
 * what cleans up must not need any. */
typedef struct removal {
    int e;
    size_t n;
    char path[4096];
} removal;

static void empty_folder(int fd, int depth, removal *r);

/* Removes r->path, which is `name` in the folder behind `at`; after a failure r->path stays where that was. */
static void remove_name(int at, const char *name, int depth, removal *r)
{
    int e = ts__sys_unlink_at(at, name, r->path, 0);
    if ((e == EISDIR || e == EPERM) && !ts__sys_fault(TS_FAULT_LIST, r->path, &e)) {
        int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        e = fd < 0 ? errno : 0;
        if (e == 0) empty_folder(fd, depth, r);
        if (r->e != 0) return;
        if (e == 0) e = ts__sys_unlink_at(at, name, r->path, AT_REMOVEDIR);
    }
    if (e != ENOENT) r->e = e;
}

/* Closes fd. */
static void empty_folder(int fd, int depth, removal *r)
{
    DIR *d = depth > REMOVE_DEPTH ? NULL : fdopendir(fd);
    if (!d) {
        r->e = depth > REMOVE_DEPTH ? ELOOP : errno;
        close(fd);
        return;
    }
    struct dirent *entry;
    size_t n = r->n;
    while (r->e == 0 && (errno = 0, entry = readdir(d))) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        snprintf(r->path + n, sizeof r->path - n, "/%s", entry->d_name);
        r->n = strlen(r->path);
        remove_name(dirfd(d), entry->d_name, depth + 1, r);
        if (r->e != 0) break;
        r->path[n] = '\0';
        r->n = n;
    }
    if (r->e == 0) r->e = errno;
    closedir(d);
}

ts_status ts_remove_tree(const char *path, ts_error *err)
{
    removal r = {0};
    snprintf(r.path, sizeof r.path, "%s", path);
    r.n = strlen(r.path);
    remove_name(AT_FDCWD, path, 0, &r);
    if (r.e == 0) return TS_OK;
    return TS_ERROR(err, ts__errno_status(r.e), "%s: cannot remove: %s", r.path,
                    ts__errno_words(r.e));
}

ts_status ts_remove_file(const char *path, ts_error *err)
{
    int e = ts__sys_unlink_at(AT_FDCWD, path, path, 0);
    if (e == 0 || e == ENOENT) return TS_OK;
    return TS_ERROR(err, ts__errno_status(e), "%s: cannot remove: %s", path, ts__errno_words(e));
}

/* ---- listing --------------------------------------------------------------------------------- */

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Reads all names of d into *names; false when memory is out. */
static bool collect_names(DIR *d, char ***names, size_t *n)
{
    size_t capacity = 0;
    struct dirent *entry;
    while ((errno = 0, entry = readdir(d))) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        if (*n == capacity) {
            size_t more = capacity ? capacity * 2 : 16;
            char **grown = ts_realloc(*names, *n * sizeof *grown, more * sizeof *grown);
            if (!grown) return false;
            *names = grown;
            capacity = more;
        }
        char *copy = ts_strdup(entry->d_name);
        if (!copy) return false;
        (*names)[(*n)++] = copy;
    }
    return true;
}

ts_status ts_list_folder(const char *path, char ***names, size_t *n, ts_error *err)
{
    *names = NULL;
    *n = 0;
    int fd;
    TS_TRY(ts__open(path, O_RDONLY | O_DIRECTORY, 0, &fd, err));
    int e = 0;
    DIR *d = ts__sys_fault(TS_FAULT_LIST, path, &e) ? NULL : fdopendir(fd);
    if (!d) {
        if (e == 0) e = errno;
        (void)ts__sys_close(fd, path);
        return TS_ERROR(err, ts__errno_status(e), "%s: cannot list: %s", path, ts__errno_words(e));
    }
    bool complete = collect_names(d, names, n);
    e = complete ? errno : 0;
    closedir(d);
    if (complete && e == 0) {
        if (*n) qsort(*names, *n, sizeof **names, by_bytes);
        return TS_OK;
    }
    ts_names_free(*names, *n);
    *names = NULL;
    *n = 0;
    if (!complete)
        return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "%s: out of memory for its names", path);
    return TS_ERROR(err, ts__errno_status(e), "%s: cannot list: %s", path, ts__errno_words(e));
}

void ts_names_free(char **names, size_t n)
{
    for (size_t i = 0; i < n; i++) ts_free(names[i]);
    ts_free(names);
}
