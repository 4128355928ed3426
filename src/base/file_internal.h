/* base/file_internal.h – what file.c, folder.c, lock.c and spool.c share. Other rooms use base/file.h. */
#ifndef TS_FILE_INTERNAL_H
#define TS_FILE_INTERNAL_H

#include "base/file.h"

/* One kernel call each (seam.c), 0 or an errno; path is for tests and messages where the call takes less. */
int ts__sys_open_at(int at, const char *name, const char *path, int flags, int mode, int *fd);
int ts__sys_read(int fd, const char *path, uint64_t offset, void *to, size_t n, size_t *got);
/* Where the file stands; offset says where that is. */
int ts__sys_write(int fd, const char *path, uint64_t offset, const void *from, size_t n,
                  size_t *put);
int ts__sys_sync(int fd, const char *path);
int ts__sys_close(int fd, const char *path);
int ts__sys_mkdir(const char *path);
int ts__sys_rename(const char *from, const char *to, unsigned flags);
int ts__sys_link(const char *from, const char *to);
int ts__sys_unlink_at(int at, const char *name, const char *path, int flags);
/* True when a test wants a call that has no wrapper to fail; *e is the errno. */
bool ts__sys_fault(unsigned op, const char *path, int *e);

struct ts_file {
    int fd;
    uint64_t size;
    char *path;
};

ts_status ts__errno_status(int e);
const char *ts__errno_words(int e);
ts_status ts__open(const char *path, int flags, int mode, int *fd, ts_error *err);

#endif
