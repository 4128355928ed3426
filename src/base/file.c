/* base/file.c – files: reading, writing, and what an errno means.
 *
 * Every kernel call goes through seam.c, so that a test can make any of them fail and show that nothing
 * is lost. Reads are pread into our memory: a mapped file that shrinks would be SIGBUS. The first failure
 * of a writer stays: after a failed write or fsync nothing more is asked of that file. Folder trees are
 * in folder.c.
 */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file_internal.h"

enum { BUFFER_BYTES = 1 << 18, CALL_BYTES = 1 << 30 };

/* ---- errors ---------------------------------------------------------------------------------- */

ts_status ts__errno_status(int e)
{
    switch (e) {
    case ENOENT: return TS_NOT_FOUND;
    case EACCES:
    case EPERM:
    case EROFS: return TS_PERMISSION_DENIED;
    case EEXIST:
    case ENOTEMPTY: return TS_ALREADY_EXISTS;
    case EISDIR:
    case ENOTDIR:
    case ENAMETOOLONG:
    case ELOOP:
    case EINVAL: return TS_INVALID_ARGUMENT;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case ENOMEM:
    case EMFILE:
    case ENFILE: return TS_RESOURCE_EXHAUSTED;
    default: return TS_UNKNOWN;
    }
}

const char *ts__errno_words(int e)
{
    switch (e) {
    case ENOENT: return "does not exist";
    case EACCES:
    case EPERM: return "permission denied";
    case EROFS: return "the file system is read-only";
    case ENOSPC: return "no space left on the disk; free some, or choose another folder";
    case EDQUOT: return "the disk quota is used up";
    case EFBIG: return "the file may not grow further (ulimit -f, or the file system's limit)";
    case ENOTDIR: return "a part of the path is a file; expected a folder";
    case EISDIR: return "is a folder; expected a file";
    case EMFILE: return "this process holds too many files open (ulimit -n)";
    case EIO: return "input/output error of the disk";
    default: return strerror(e);
    }
}

#define FILE_ERROR(err, e, path, what)                                                             \
    TS_ERROR((err), ts__errno_status(e), "%s: %s: %s", (path), (what), ts__errno_words(e))

/* ---- paths ----------------------------------------------------------------------------------- */

ts_status ts_path_find(const char *path, ts_path_kind *kind, ts_error *err)
{
    struct stat st;
    *kind = TS_PATH_NONE;
    if (stat(path, &st) != 0)
        return errno == ENOENT || errno == ENOTDIR ? TS_OK
                                                   : FILE_ERROR(err, errno, path, "cannot be looked at");
    *kind = S_ISREG(st.st_mode) ? TS_PATH_FILE : S_ISDIR(st.st_mode) ? TS_PATH_FOLDER : TS_PATH_OTHER;
    return TS_OK;
}

ts_path_kind ts_path_kind_of(const char *path)
{
    ts_path_kind kind;
    return ts_path_find(path, &kind, NULL) == TS_OK ? kind : TS_PATH_NONE;
}

char *ts_path_join(const char *a, const char *b)
{
    size_t n = strlen(a), m = strlen(b), bytes;
    if (n == 0 || b[0] == '/') return ts_strdup(b);
    if (ts_add_size(n, m, &bytes) || ts_add_size(bytes, 2, &bytes)) return NULL;
    char *path = ts_alloc(bytes);
    if (!path) return NULL;
    memcpy(path, a, n);
    if (a[n - 1] != '/') path[n++] = '/';
    memcpy(path + n, b, m + 1);
    return path;
}

/* ---- reading --------------------------------------------------------------------------------- */

ts_status ts__open(const char *path, int flags, int mode, int *fd, ts_error *err)
{
    int e = ts__sys_open_at(AT_FDCWD, path, path, flags, mode, fd);
    return e ? FILE_ERROR(err, e, path, "cannot open") : TS_OK;
}

ts_status ts_file_open(const char *path, ts_file **out, ts_error *err)
{
    *out = NULL;
    int fd;
    /* NONBLOCK: opening a pipe nobody writes must not hang; it is refused just below. */
    TS_TRY(ts__open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY, 0, &fd, err));
    struct stat st;
    ts_status status = TS_OK;
    if (fstat(fd, &st) != 0)
        status = FILE_ERROR(err, errno, path, "cannot read its size");
    else if (S_ISDIR(st.st_mode))
        status = TS_ERROR(err, TS_INVALID_ARGUMENT, "%s: is a folder; expected a file", path);
    else if (!S_ISREG(st.st_mode))
        status =
            TS_ERROR(err, TS_INVALID_ARGUMENT, "%s: is a device or pipe; expected a file", path);
    ts_file *f = status == TS_OK ? ts_alloc_zero(sizeof *f) : NULL;
    char *copy = f ? ts_strdup(path) : NULL;
    if (!copy) {
        (void)ts__sys_close(fd, path);
        ts_free(f);
        if (status != TS_OK) return status;
        return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "%s: out of memory", path);
    }
    f->fd = fd;
    f->size = (uint64_t)st.st_size;
    f->path = copy;
    *out = f;
    return TS_OK;
}

uint64_t ts_file_size(const ts_file *f)
{
    return f->size;
}

const char *ts_file_path(const ts_file *f)
{
    return f->path;
}

ts_status ts_file_read_at(ts_file *f, uint64_t offset, void *to, size_t n, ts_error *err)
{
    char *at = to;
    size_t left = n;
    if (offset > INT64_MAX || n > INT64_MAX - offset)
        return TS_ERROR(err, TS_OUT_OF_RANGE, "%s: cannot read %zu bytes at offset %llu", f->path,
                        n, (unsigned long long)offset);
    while (left > 0) {
        size_t ask = left < CALL_BYTES ? left : CALL_BYTES;
        size_t got;
        int e = ts__sys_read(f->fd, f->path, offset, at, ask, &got);
        if (e)
            return TS_ERROR(err, TS_DATA_LOSS, "%s: cannot read %zu bytes at offset %llu: %s",
                            f->path, ask, (unsigned long long)offset, ts__errno_words(e));
        if (got == 0)
            return TS_ERROR(err, TS_DATA_LOSS,
                            "%s: ends at byte %llu; expected %zu more bytes (the file "
                            "was cut, or changed while it was read)",
                            f->path, (unsigned long long)offset, left);
        at += got;
        left -= got;
        offset += got;
    }
    return TS_OK;
}

void ts_file_close(ts_file *f)
{
    if (!f) return;
    (void)ts__sys_close(f->fd, f->path);
    ts_free(f->path);
    ts_free(f);
}

ts_status ts_file_read_all(const char *path, size_t max_bytes, char **data, size_t *n,
                           ts_error *err)
{
    *data = NULL;
    *n = 0;
    ts_file *f;
    TS_TRY(ts_file_open(path, &f, err));
    ts_status status;
    char *text = NULL;
    if (f->size > max_bytes || f->size >= SIZE_MAX) {
        status = TS_ERROR(err, TS_INVALID_ARGUMENT, "%s: has %llu bytes; expected at most %zu",
                          path, (unsigned long long)f->size, max_bytes);
    } else if (!(text = ts_alloc((size_t)f->size + 1))) {
        status = TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "%s: out of memory for %llu bytes", path,
                          (unsigned long long)f->size);
    } else {
        status = ts_file_read_at(f, 0, text, (size_t)f->size, err);
    }
    if (status == TS_OK) {
        text[f->size] = '\0';
        *data = text;
        *n = (size_t)f->size;
    } else {
        ts_free(text);
    }
    ts_file_close(f);
    return status;
}

/* ---- writing --------------------------------------------------------------------------------- */

struct ts_writer {
    int fd;
    char *path;
    uint64_t at;  /* where the next byte goes in the file */
    char *buffer; /* BUFFER_BYTES */
    size_t filled;
    ts_error first; /* the first failure; everything after it reports it again */
};

static ts_status again(const ts_writer *w, ts_error *err)
{
    if (err && err->code == TS_OK) *err = w->first;
    return w->first.code;
}

ts_status ts_writer_open(const char *path, bool append, ts_writer **out, ts_error *err)
{
    *out = NULL;
    int fd;
    struct stat st;
    int flags = O_WRONLY | O_CREAT | O_NOCTTY | (append ? O_APPEND : O_TRUNC);
    TS_TRY(ts__open(path, flags, 0666, &fd, err));
    ts_writer *w = ts_alloc_zero(sizeof *w);
    if (w) {
        w->fd = fd;
        w->path = ts_strdup(path);
        w->buffer = ts_alloc(BUFFER_BYTES);
        if (append && fstat(fd, &st) == 0) w->at = (uint64_t)st.st_size;
    }
    if (!w || !w->path || !w->buffer) {
        if (!w) (void)ts__sys_close(fd, path);
        ts_writer_abandon(w);
        return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "%s: out of memory", path);
    }
    *out = w;
    return TS_OK;
}

static ts_status write_out(ts_writer *w, const char *data, size_t n, ts_error *err)
{
    while (n > 0) {
        size_t ask = n < CALL_BYTES ? n : CALL_BYTES;
        size_t put;
        int e = ts__sys_write(w->fd, w->path, w->at, data, ask, &put);
        if (!e && put == 0) e = EIO; /* no progress, no reason: it would go on for ever */
        if (e) {
            FILE_ERROR(&w->first, e, w->path, "cannot write");
            return again(w, err);
        }
        data += put;
        n -= put;
        w->at += put;
    }
    return TS_OK;
}

ts_status ts_writer_flush(ts_writer *w, ts_error *err)
{
    if (w->first.code != TS_OK) return again(w, err);
    size_t n = w->filled;
    w->filled = 0;
    return write_out(w, w->buffer, n, err);
}

ts_status ts_writer_write(ts_writer *w, const void *data, size_t n, ts_error *err)
{
    if (w->first.code != TS_OK) return again(w, err);
    if (n > BUFFER_BYTES - w->filled) TS_TRY(ts_writer_flush(w, err));
    if (n >= BUFFER_BYTES) return write_out(w, data, n, err);
    if (n) memcpy(w->buffer + w->filled, data, n);
    w->filled += n;
    return TS_OK;
}

ts_status ts_writer_close(ts_writer *w, bool sync, ts_error *err)
{
    if (w->first.code == TS_OK) (void)ts_writer_flush(w, NULL);
    int e = w->first.code == TS_OK && sync ? ts__sys_sync(w->fd, w->path) : 0;
    if (e) FILE_ERROR(&w->first, e, w->path, "cannot make the file durable (fsync)");
    e = ts__sys_close(w->fd, w->path);
    if (e && w->first.code == TS_OK) FILE_ERROR(&w->first, e, w->path, "cannot close");
    w->fd = -1;
    ts_status status = w->first.code == TS_OK ? TS_OK : again(w, err);
    ts_writer_abandon(w);
    return status;
}

void ts_writer_abandon(ts_writer *w)
{
    if (!w) return;
    if (w->fd >= 0) (void)ts__sys_close(w->fd, w->path);
    ts_free(w->buffer);
    ts_free(w->path);
    ts_free(w);
}
