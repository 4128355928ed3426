/* base/file_internal.h – what file.c and folder.c share. Other rooms use base/file.h. */
#ifndef TS_FILE_INTERNAL_H
#define TS_FILE_INTERNAL_H

#include "base/file.h"

/* True when a test wants this call to fail; *e is the errno (0: a short transfer). */
bool ts__file_fault(unsigned op, int *e);
ts_status ts__errno_status(int e);
const char *ts__errno_words(int e);
ts_status ts__open(const char *path, int flags, int mode, int *fd, ts_error *err);

#endif
