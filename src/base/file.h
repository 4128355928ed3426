/* base/file.h – the one seam to the file system, so that tests can make any call fail.
 *
 * Every function fills err with what was found and what was expected, naming the path. Paths are
 * UTF-8 and passed to the kernel as they are. Nothing retries a failed fsync.
 */
#ifndef TS_FILE_H
#define TS_FILE_H

#include "base/base.h"

typedef enum ts_path_kind { TS_PATH_NONE, TS_PATH_FILE, TS_PATH_FOLDER, TS_PATH_OTHER } ts_path_kind;
ts_path_kind ts_path_kind_of(const char *path);
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

ts_status ts_make_folders(const char *path, ts_error *err);       /* mkdir -p */
ts_status ts_sync_folder(const char *path, ts_error *err);
ts_status ts_rename(const char *from, const char *to, ts_error *err);
/* Swaps two paths in one step. UNIMPLEMENTED where the file system cannot; nothing changed then. */
ts_status ts_exchange(const char *a, const char *b, ts_error *err);
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

/* Tests: the nth call from now that touches the kernel fails with errno e (0 = off). op is a bit set
 * of TS_FAULT_*; a short write is errno 0. */
enum {
    TS_FAULT_OPEN = 1, TS_FAULT_READ = 2, TS_FAULT_WRITE = 4,
    TS_FAULT_SYNC = 8, TS_FAULT_RENAME = 16, TS_FAULT_MKDIR = 32, TS_FAULT_LOCK = 64
};
void ts_file_fault(unsigned op, uint64_t nth, int e);

#endif
