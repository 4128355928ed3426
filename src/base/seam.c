/* base/seam.c – every kernel call of base/file.h that opens, transfers, syncs or changes names.
 *
 * Each has one wrapper here that returns 0 or an errno. Before the call a test may fail it, cut it short or
 * kill the process; after it a test may record what was done. Off, that costs one relaxed load. Interrupted
 * opens, reads and writes are repeated. A failed fsync is never repeated, whatever its reason: the kernel may
 * have marked the pages clean. A close that was interrupted has closed.
 * Not here: what a failure means to the caller (file.c, folder.c, lock.c).
 */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file_internal.h"

static atomic_bool on; /* a fault is set, or somebody observes */
static atomic_uint fault_ops;
static atomic_uint_fast64_t fault_left;
static atomic_int fault_errno;
static _Atomic(ts_file_observer) observer;
static void *_Atomic observer_context;

static void set_on(void)
{
    atomic_store(&on, atomic_load(&fault_ops) != 0 || atomic_load(&observer) != NULL);
}

void ts_file_fault(unsigned op, uint64_t nth, int e)
{
    atomic_store(&fault_ops, nth ? op : 0);
    atomic_store(&fault_errno, e);
    atomic_store(&fault_left, nth);
    set_on();
}

void ts_file_observe(ts_file_observer f, void *context)
{
    atomic_store(&observer_context, context);
    atomic_store(&observer, f);
    set_on();
}

/* The errno that a test wants instead of this call, TS_FILE_SHORT, or 0. */
static int ask(const ts_file_call *c)
{
    if (atomic_load(&fault_ops) & c->op && atomic_fetch_sub(&fault_left, 1) == 1) {
        atomic_store(&fault_ops, 0);
        set_on();
        int e = atomic_load(&fault_errno);
        return e ? e : TS_FILE_SHORT;
    }
    ts_file_observer f = atomic_load(&observer);
    return f ? f(atomic_load(&observer_context), c) : 0;
}

static int before(const ts_file_call *c)
{
    return atomic_load_explicit(&on, memory_order_relaxed) ? ask(c) : 0;
}

/* The same where only the whole call can be made. */
static int before_whole(const ts_file_call *c)
{
    int e = before(c);
    return e == TS_FILE_SHORT ? EIO : e;
}

static int after(ts_file_call *c, int e)
{
    if (!atomic_load_explicit(&on, memory_order_relaxed)) return e;
    ts_file_observer f = atomic_load(&observer);
    c->done = true;
    c->e = e;
    if (f) (void)f(atomic_load(&observer_context), c);
    return e;
}

bool ts__sys_fault(unsigned op, const char *path, int *e)
{
    ts_file_call c = {.op = op, .path = path};
    *e = before_whole(&c);
    return *e != 0;
}

int ts__sys_open_at(int at, const char *name, const char *path, int flags, int mode, int *fd)
{
    ts_file_call c = {.op = TS_FAULT_OPEN, .path = path, .flags = flags};
    int e;
    do {
        e = before_whole(&c);
        *fd = e ? -1 : openat(at, name, flags | O_CLOEXEC, mode);
        if (!e && *fd < 0) e = errno;
    } while (e == EINTR);
    return after(&c, e);
}

int ts__sys_read(int fd, const char *path, uint64_t offset, void *to, size_t n, size_t *got)
{
    ts_file_call c = {.op = TS_FAULT_READ, .path = path, .offset = offset, .n = n};
    int e;
    ssize_t have = 0;
    do {
        e = before(&c);
        if (e == TS_FILE_SHORT) { /* as if the file ended here */
            e = 0;
            break;
        }
        have = e ? -1 : pread(fd, to, n, (off_t)offset);
        if (!e && have < 0) e = errno;
    } while (e == EINTR);
    *got = e ? 0 : (size_t)have;
    c.n = *got;
    return after(&c, e);
}

int ts__sys_write(int fd, const char *path, uint64_t offset, const void *from, size_t n,
                  size_t *put)
{
    ts_file_call c = {
        .op = TS_FAULT_WRITE, .path = path, .offset = offset, .data = from, .n = n};
    int e;
    ssize_t have;
    do {
        e = before(&c);
        if (e == TS_FILE_SHORT) {
            e = 0;
            n = (n + 1) / 2;
        }
        have = e ? -1 : write(fd, from, n);
        if (!e && have < 0) e = errno;
    } while (e == EINTR);
    *put = e ? 0 : (size_t)have;
    c.n = *put;
    return after(&c, e);
}

int ts__sys_sync(int fd, const char *path)
{
    ts_file_call c = {.op = TS_FAULT_SYNC, .path = path};
    int e = before_whole(&c);
    if (!e && fsync(fd) != 0) e = errno;
    return after(&c, e);
}

int ts__sys_close(int fd, const char *path)
{
    ts_file_call c = {.op = TS_FAULT_CLOSE, .path = path};
    int e = before_whole(&c);
    /* Closed in any case: a close that fails has freed the descriptor. */
    if (close(fd) != 0 && errno != EINTR && !e) e = errno;
    return after(&c, e);
}

int ts__sys_mkdir(const char *path)
{
    ts_file_call c = {.op = TS_FAULT_MKDIR, .path = path};
    int e = before_whole(&c);
    if (!e && mkdir(path, 0777) != 0) e = errno;
    return after(&c, e);
}

int ts__sys_rename(const char *from, const char *to, unsigned flags)
{
    ts_file_call c = {.op = TS_FAULT_RENAME, .path = from, .to = to, .flags = (int)flags};
    int e = before_whole(&c);
    if (!e && (flags ? renameat2(AT_FDCWD, from, AT_FDCWD, to, flags) : rename(from, to)) != 0)
        e = errno;
    return after(&c, e);
}

int ts__sys_link(const char *from, const char *to)
{
    ts_file_call c = {.op = TS_FAULT_LINK, .path = from, .to = to};
    int e = before_whole(&c);
    if (!e && link(from, to) != 0) e = errno;
    return after(&c, e);
}

int ts__sys_unlink_at(int at, const char *name, const char *path, int flags)
{
    ts_file_call c = {.op = TS_FAULT_UNLINK, .path = path, .flags = flags};
    int e = before_whole(&c);
    if (!e && unlinkat(at, name, flags) != 0) e = errno;
    return after(&c, e);
}
