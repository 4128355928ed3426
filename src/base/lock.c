/* base/lock.c – a lock between processes on one file, for folders that only one of them may write.
 *
 * flock: the kernel frees it when the process ends, also by SIGKILL, so that no stale lock is ever left;
 * network file systems pass it on to other hosts. What the file says is for the message only. The file is
 * never removed: a process that had just opened it would hold the lock of a file that no longer has a name.
 * Not here: locks inside a process.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/file_internal.h"

enum { HOLDER_BYTES = 200 };

struct ts_lock {
    int fd;
};

static int lock_file(int fd, const char *path)
{
    int e = 0;
    if (ts__sys_fault(TS_FAULT_LOCK, path, &e)) return e;
    while (flock(fd, LOCK_EX | LOCK_NB) != 0)
        if (errno != EINTR) return errno;
    return 0;
}

/* What the file says of its holder; it may be about to write it. */
static void read_holder(int fd, char *holder, size_t n)
{
    ssize_t got = pread(fd, holder, n - 1, 0);
    holder[got > 0 ? got : 0] = '\0';
    holder[strcspn(holder, "\n")] = '\0';
    if (!*holder) snprintf(holder, n, "another process");
}

/* A disk that is full loses the words, not the lock. */
static void write_holder(int fd)
{
    char host[100] = "", holder[HOLDER_BYTES];
    if (gethostname(host, sizeof host - 1) != 0 || !*host) snprintf(host, sizeof host, "this host");
    int n = snprintf(holder, sizeof holder, "process %ld on %s\n", (long)getpid(), host);
    bool whole = ftruncate(fd, 0) == 0 && pwrite(fd, holder, (size_t)n, 0) == n;
    if (!whole && ftruncate(fd, 0) != 0) return;
}

ts_status ts_lock_take(const char *path, ts_lock **out, ts_error *err)
{
    char holder[HOLDER_BYTES];
    int fd;
    *out = NULL;
    TS_TRY(ts__open(path, O_RDWR | O_CREAT | O_NOCTTY | O_NONBLOCK, 0666, &fd, err));
    int e = lock_file(fd, path);
    if (e == 0) {
        ts_lock *l = ts_alloc(sizeof *l);
        if (l) {
            write_holder(fd);
            l->fd = fd;
            *out = l;
            return TS_OK;
        }
        e = ENOMEM;
    }
    if (e == EWOULDBLOCK) read_holder(fd, holder, sizeof holder);
    close(fd);
    if (e == EWOULDBLOCK)
        return TS_ERROR(err, TS_FAILED_PRECONDITION, "%s is held by %s", path, holder);
    if (e == ENOLCK || e == ENOSYS || e == EOPNOTSUPP || e == EINVAL)
        return TS_ERROR(err, TS_UNIMPLEMENTED, "%s: this file system has no locks", path);
    return TS_ERROR(err, ts__errno_status(e), "%s: cannot be locked: %s", path, ts__errno_words(e));
}

void ts_lock_release(ts_lock *l)
{
    if (!l) return;
    int ignored = ftruncate(l->fd, 0);
    (void)ignored;
    close(l->fd);
    ts_free(l);
}
