/* base/file.h – the one seam to the file system, so that tests can make any call fail and see them all.
 *
 * Every function fills err with what was found and what was expected, naming the path. Paths are
 * UTF-8 and passed to the kernel as they are. Nothing retries a failed fsync.
 */
#ifndef TS_FILE_H
#define TS_FILE_H

#include "base/base.h"

typedef enum ts_path_kind { TS_PATH_NONE, TS_PATH_FILE, TS_PATH_FOLDER, TS_PATH_OTHER } ts_path_kind;
/* What cannot be asked (an error of the disk, no permission) is NONE: where that would be taken for "not there", and
 * something is begun or removed because of it, use ts_path_find. */
ts_path_kind ts_path_kind_of(const char *path);
/* NONE only where there is nothing of that name; else what keeps it from being known. */
ts_status ts_path_find(const char *path, ts_path_kind *kind, ts_error *err);
/* Does this path, or what is there of it, lie on a FUSE mount? Those of object stores cannot rename a folder. */
bool ts_is_fuse(const char *path);
char *ts_path_join(const char *a, const char *b);                 /* owns: caller, ts_free; NULL when out */

typedef struct ts_file ts_file;
/* A regular file for reading. Folder, missing, unreadable: INVALID_ARGUMENT / NOT_FOUND /
 * PERMISSION_DENIED with a message that says which. */
ts_status ts_file_open(const char *path, ts_file **out, ts_error *err);
uint64_t ts_file_size(const ts_file *f);
const char *ts_file_path(const ts_file *f);
/* Exactly n bytes at offset, by pread (a mapped file that shrinks is SIGBUS): DATA_LOSS when short. */
ts_status ts_file_read_at(ts_file *f, uint64_t offset, void *to, size_t n, ts_error *err);
void ts_file_close(ts_file *f);                                   /* NULL is fine */

/* Whole file, NUL-terminated beyond *n; refuses more than max bytes before reading. Owns: caller. */
ts_status ts_file_read_all(const char *path, size_t max_bytes, char **data, size_t *n, ts_error *err);

typedef struct ts_writer ts_writer;
/* Creates or truncates; buffered. */
ts_status ts_writer_open(const char *path, bool append, ts_writer **out, ts_error *err);
ts_status ts_writer_write(ts_writer *w, const void *data, size_t n, ts_error *err);
ts_status ts_writer_flush(ts_writer *w, ts_error *err);
/* flush, optional fsync, close. The first failure of any earlier call is reported again. */
ts_status ts_writer_close(ts_writer *w, bool sync, ts_error *err);
void ts_writer_abandon(ts_writer *w);                             /* closes without checks; NULL is fine */

/* A file without a name: written from front to back, then read. It goes with its last handle, however the process
 * ends. */
typedef struct ts_spool ts_spool;
/* On the disk of folder. shown: the path in messages of whoever reads it. */
ts_status ts_spool_open(const char *folder, const char *shown, ts_spool **out, ts_error *err);
/* Not buffered. RESOURCE_EXHAUSTED where the disk, a quota or a limit is at its end. */
ts_status ts_spool_write(ts_spool *s, const void *data, size_t n, ts_error *err);
uint64_t ts_spool_size(const ts_spool *s);
/* What was written, to be read; s is gone. */
ts_file *ts_spool_finish(ts_spool *s);
void ts_spool_abandon(ts_spool *s);                               /* NULL is fine */

/* mkdir -p. The folders on the way are durable then; the last one is when the caller syncs its parent. */
ts_status ts_make_folders(const char *path, ts_error *err);
/* May this process add and remove names in the folder? PERMISSION_DENIED, or what keeps it from being asked. */
ts_status ts_folder_may_change(const char *path, ts_error *err);
ts_status ts_sync_folder(const char *path, ts_error *err);
ts_status ts_sync_file(const char *path, ts_error *err);
ts_status ts_sync_parent(const char *path, ts_error *err);        /* of "a/b": "a" */
ts_status ts_rename(const char *from, const char *to, ts_error *err);
/* Swaps two paths in one step. UNIMPLEMENTED where the file system cannot; nothing changed then. */
ts_status ts_exchange(const char *a, const char *b, ts_error *err);
/* A second name of a file. UNIMPLEMENTED where the file system, or a border between two, allows none. */
ts_status ts_link(const char *from, const char *to, ts_error *err);
ts_status ts_remove_file(const char *path, ts_error *err);        /* missing is fine */
ts_status ts_remove_tree(const char *path, ts_error *err);        /* never follows links; missing is fine */
/* Names in a folder without . and .., sorted by bytes. Owns: caller, ts_names_free. */
ts_status ts_list_folder(const char *path, char ***names, size_t *n, ts_error *err);
void ts_names_free(char **names, size_t n);

/* A lock between processes, of the kernel: it ends with the process, however that ends. */
typedef struct ts_lock ts_lock;
/* Makes the file and takes its lock, without waiting; the file says which process and host hold it.
 * FAILED_PRECONDITION names the other holder. UNIMPLEMENTED: this file system knows no locks. */
ts_status ts_lock_take(const char *path, ts_lock **out, ts_error *err);
void ts_lock_release(ts_lock *l);                                 /* the file stays, empty; NULL is fine */

/* ---- tests ----------------------------------------------------------------------------------- */

enum {
    TS_FAULT_OPEN = 1,
    TS_FAULT_READ = 2,
    TS_FAULT_WRITE = 4,
    TS_FAULT_SYNC = 8,
    TS_FAULT_RENAME = 16, /* and exchange */
    TS_FAULT_MKDIR = 32,
    TS_FAULT_LOCK = 64,
    TS_FAULT_LINK = 128,
    TS_FAULT_UNLINK = 256, /* and rmdir */
    TS_FAULT_CLOSE = 512,
    TS_FAULT_LIST = 1024, /* the names of a folder, also to empty it */
    TS_FAULT_ANY = 2047
};
/* The nth call from now that touches the kernel fails with errno e (nth 0 = off). op is a bit set of TS_FAULT_*; a
 * short transfer is errno 0. */
void ts_file_fault(unsigned op, uint64_t nth, int e);

/* A call as an observer sees it. Paths are as the caller gave them. */
typedef struct ts_file_call {
    unsigned op;           /* one TS_FAULT_* */
    const char *path, *to; /* to: of rename and link */
    int flags;             /* of open, rename (RENAME_EXCHANGE) and unlink (AT_REMOVEDIR) */
    uint64_t offset;       /* of a transfer */
    const void *data;      /* of a write */
    size_t n;              /* of a transfer; before: asked for, after: transferred */
    bool done;             /* before the call, or after it? */
    int e;                 /* after: 0, or why it failed */
} ts_file_call;
enum { TS_FILE_SHORT = -1 };
/* Called before and after every call, on the thread that makes it. Before, it returns 0, or the errno to fail with
 * instead of making the call, or TS_FILE_SHORT to transfer less. NULL: off. */
typedef int (*ts_file_observer)(void *context, const ts_file_call *c);
void ts_file_observe(ts_file_observer f, void *context);

#endif
