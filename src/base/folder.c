/* base/folder.c – folders of the file seam: make, list, sync, rename, remove.
 *
 * A rename is atomic but not durable until the parent folder is synced; callers that need both call
 * both. Removing never follows a link: it works through folder descriptors.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file_internal.h"

enum { REMOVE_DEPTH = 64 };

static int make_folder(const char *path)
{
    int e = 0;
    if (ts__file_fault(TS_FAULT_MKDIR, &e)) return e ? e : EIO;
    return mkdir(path, 0777) == 0 ? 0 : errno;
}

ts_status ts_make_folders(const char *path, ts_error *err)
{
    if (!*path) return TS_ERROR(err, TS_INVALID_ARGUMENT, "the path of a folder is empty");
    char *part = ts_strdup(path);
    if (!part) return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "%s: out of memory", path);
    ts_status status = TS_OK;
    size_t n = strlen(part);
    for (size_t i = 1; i <= n && status == TS_OK; i++) {
        if (part[i] != '/' && part[i] != '\0') continue;
        char kept = part[i];
        part[i] = '\0';
        /* Look first: mkdir of an existing parent may fail with EROFS or EACCES instead of EEXIST. */
        ts_path_kind kind = ts_path_kind_of(part);
        int e = kind == TS_PATH_NONE ? make_folder(part) : 0;
        if (e == EEXIST) {
            kind = ts_path_kind_of(part);
            e = kind == TS_PATH_FOLDER ? 0 : EEXIST;
        }
        if (e == 0 && (kind == TS_PATH_FILE || kind == TS_PATH_OTHER))
            status = TS_ERROR(err, TS_INVALID_ARGUMENT, "%s: is a file; expected a folder", part);
        else if (e != 0)
            status = TS_ERROR(err, ts__errno_status(e), "%s: cannot make the folder: %s", part,
                              ts__errno_words(e));
        part[i] = kept;
    }
    ts_free(part);
    return status;
}

ts_status ts_sync_folder(const char *path, ts_error *err)
{
    int fd, e = 0;
    TS_TRY(ts__open(path, O_RDONLY | O_DIRECTORY, 0, &fd, err));
    bool fault = ts__file_fault(TS_FAULT_SYNC, &e);
    if (fault && !e) e = EIO;
    if (!fault && fsync(fd) != 0) e = errno;
    close(fd);
    /* Some file systems cannot sync a folder and say EINVAL; there is nothing more to ask of them. */
    if (!fault && e == EINVAL) e = 0;
    if (e == 0) return TS_OK;
    return TS_ERROR(err, ts__errno_status(e), "%s: cannot make the folder durable (fsync): %s",
                    path, ts__errno_words(e));
}

ts_status ts_rename(const char *from, const char *to, ts_error *err)
{
    int e = 0;
    if (ts__file_fault(TS_FAULT_RENAME, &e))
        e = e ? e : EIO;
    else if (rename(from, to) != 0)
        e = errno;
    if (e == 0) return TS_OK;
    return TS_ERROR(err, ts__errno_status(e), "%s: cannot rename to %s: %s", from, to,
                    ts__errno_words(e));
}

ts_status ts_exchange(const char *a, const char *b, ts_error *err)
{
    int e = 0;
    if (ts__file_fault(TS_FAULT_RENAME, &e))
        e = e ? e : EIO;
    else if (renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE) != 0)
        e = errno;
    if (e == 0) return TS_OK;
    if (e == EINVAL || e == ENOSYS || e == EOPNOTSUPP || e == EXDEV)
        return TS_ERROR(err, TS_UNIMPLEMENTED, "%s: this file system cannot exchange two paths", a);
    return TS_ERROR(err, ts__errno_status(e), "%s: cannot exchange with %s: %s", a, b,
                    ts__errno_words(e));
}

/* Empties the folder behind fd (and closes it); 0 or an errno. */
static int empty_folder(int fd, int depth)
{
    if (depth > REMOVE_DEPTH) {
        close(fd);
        return ELOOP;
    }
    DIR *d = fdopendir(fd);
    if (!d) {
        int e = errno;
        close(fd);
        return e;
    }
    int e = 0;
    struct dirent *entry;
    while (e == 0 && (errno = 0, entry = readdir(d))) {
        const char *name = entry->d_name;
        if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0) continue;
        if (unlinkat(dirfd(d), name, 0) == 0 || errno == ENOENT) continue;
        if (errno != EISDIR && errno != EPERM) {
            e = errno;
            break;
        }
        int child = openat(dirfd(d), name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (child < 0) {
            e = errno;
            break;
        }
        e = empty_folder(child, depth + 1);
        if (e == 0 && unlinkat(dirfd(d), name, AT_REMOVEDIR) != 0 && errno != ENOENT) e = errno;
    }
    closedir(d);
    return e;
}

ts_status ts_remove_tree(const char *path, ts_error *err)
{
    int e = 0;
    if (unlink(path) != 0) e = errno;
    if (e == 0 || e == ENOENT) return TS_OK;
    if (e == EISDIR || e == EPERM) {
        int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        e = fd < 0 ? errno : empty_folder(fd, 0);
        if (e == 0 && rmdir(path) != 0 && errno != ENOENT) e = errno;
        if (e == 0) return TS_OK;
    }
    return TS_ERROR(err, ts__errno_status(e), "%s: cannot remove: %s", path, ts__errno_words(e));
}

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
    DIR *d = fdopendir(fd);
    if (!d) {
        int e = errno;
        close(fd);
        return TS_ERROR(err, ts__errno_status(e), "%s: cannot list: %s", path, ts__errno_words(e));
    }
    bool complete = collect_names(d, names, n);
    int e = complete ? errno : 0;
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
