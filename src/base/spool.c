/* base/spool.c – files without a name, for what is too large for memory and ends with the process.
 *
 * O_TMPFILE where the file system has it; elsewhere a name that is taken away again before the first
 * byte is written. Nothing is left behind by a kill but for one moment between those two calls, and
 * that is an empty file. The handle is a ts_file from the start, which reading takes over.
 * Not here: which folder (the callers'), durability: nobody reads it after a crash.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "base/file_internal.h"

struct ts_spool {
    ts_file file; /* first: finishing hands it over */
    char *folder;
};

enum { TRIES = 100 };

/* A new file by name, which is then taken away. */
static int open_named(const char *folder, int *fd)
{
    static atomic_uint counter;
    int e = EEXIST;
    for (int i = 0; i < TRIES && e == EEXIST; i++) {
        char name[64];
        snprintf(name, sizeof name, ".tessera-%ld-%u", (long)getpid(),
                 atomic_fetch_add(&counter, 1));
        char *path = ts_path_join(folder, name);
        if (!path) return ENOMEM;
        e = ts__sys_open_at(AT_FDCWD, path, path, O_RDWR | O_CREAT | O_EXCL | O_NOCTTY, 0600, fd);
        if (!e && (e = ts__sys_unlink_at(AT_FDCWD, path, path, 0)) != 0) {
            (void)ts__sys_close(*fd, path);
            (void)unlink(path);
        }
        ts_free(path);
    }
    return e;
}

ts_status ts_spool_open(const char *folder, const char *shown, ts_spool **out, ts_error *err)
{
    *out = NULL;
    ts_spool *s = ts_alloc_zero(sizeof *s);
    int e = ENOMEM;
    if (s) {
        s->file.fd = -1;
        s->file.path = ts_strdup(shown);
        s->folder = ts_strdup(folder);
    }
    if (s && s->file.path && s->folder) {
        e = ts__sys_open_at(AT_FDCWD, folder, folder, O_RDWR | O_TMPFILE, 0600, &s->file.fd);
        /* Where the kernel or the file system knows no such files, one of these is said. */
        if (e == EOPNOTSUPP || e == EISDIR || e == EINVAL) e = open_named(folder, &s->file.fd);
    }
    if (!e) {
        *out = s;
        return TS_OK;
    }
    ts_spool_abandon(s);
    return TS_ERROR(err, ts__errno_status(e), "%s: cannot make a file in it: %s", folder,
                    e == ENOMEM ? "out of memory" : ts__errno_words(e));
}

ts_status ts_spool_write(ts_spool *s, const void *data, size_t n, ts_error *err)
{
    const char *from = data;
    while (n > 0) {
        size_t put = 0;
        int e = ts__sys_write(s->file.fd, s->folder, s->file.size, from, n, &put);
        if (!e && put == 0) e = EIO; /* no progress, no reason: it would go on for ever */
        if (e)
            return TS_ERROR(err, ts__errno_status(e), "%s: cannot write to a file in it: %s",
                            s->folder, ts__errno_words(e));
        from += put;
        n -= put;
        s->file.size += put;
    }
    return TS_OK;
}

uint64_t ts_spool_size(const ts_spool *s)
{
    return s->file.size;
}

ts_file *ts_spool_finish(ts_spool *s)
{
    ts_free(s->folder);
    s->folder = NULL;
    return &s->file; /* freed by its own address: the first member's is the whole's */
}

void ts_spool_abandon(ts_spool *s)
{
    if (!s) return;
    if (s->file.fd >= 0) (void)ts__sys_close(s->file.fd, s->folder);
    ts_free(s->file.path);
    ts_free(s->folder);
    ts_free(s);
}
