/* data/unpacked.c – a compressed file is unpacked once in a process, however many loaders read it.
 *
 * Training and what is held out for evaluation are two loaders over the same files; both would take
 * the time and the room. Contents lie in one list for as long as somebody has them open, each known by
 * its path and by what the file system says of the compressed file, so that a file that was replaced is
 * another one. Contents are read by pread alone, from any thread. Two threads that open the same file
 * at the same moment may both unpack it: nothing is lost but time.
 * Not here: how it is unpacked (unpack.c).
 */
#include <pthread.h>
#include <sys/stat.h>

#include "data/internal.h"

typedef struct content {
    struct content *next;
    ts_file *file;
    int users;
    dev_t device;
    ino_t inode;
    off_t size;
    struct timespec changed;
} content;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static content *contents;

static bool is_of(const content *c, const char *path, const struct stat *st)
{
    return c->device == st->st_dev && c->inode == st->st_ino && c->size == st->st_size &&
           c->changed.tv_sec == st->st_mtim.tv_sec && c->changed.tv_nsec == st->st_mtim.tv_nsec &&
           strcmp(ts_file_path(c->file), path) == 0;
}

static ts_file *take(const char *path, const struct stat *st)
{
    ts_file *found = NULL;
    pthread_mutex_lock(&lock);
    for (content *c = contents; c && !found; c = c->next) {
        if (!is_of(c, path, st)) continue;
        c->users++;
        found = c->file;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

ts_status ts__unpacked(ts_file *from, ts__compression kind, const char *cache_folder, ts_file **out,
                       ts_error *err)
{
    const char *path = ts_file_path(from);
    struct stat st;
    bool known = stat(path, &st) == 0 && (uint64_t)st.st_size == ts_file_size(from);
    if (known && (*out = take(path, &st)) != NULL) return TS_OK;
    TS_TRY(ts__unpack(from, kind, cache_folder, UINT64_MAX, out, err));
    if (!known) return TS_OK;
    content *c = ts_alloc_zero(sizeof *c);
    if (!c) {
        ts_file_close(*out);
        *out = NULL;
        return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "%s: out of memory", path);
    }
    *c = (content){NULL, *out, 1, st.st_dev, st.st_ino, st.st_size, st.st_mtim};
    pthread_mutex_lock(&lock);
    c->next = contents;
    contents = c;
    pthread_mutex_unlock(&lock);
    return TS_OK;
}

void ts__data_file_close(ts_file *f)
{
    content *gone = NULL;
    bool shared = false;
    pthread_mutex_lock(&lock);
    for (content **c = &contents; *c && !shared; c = shared ? c : &(*c)->next) {
        shared = f && (*c)->file == f;
        if (!shared || --(*c)->users > 0) continue;
        gone = *c;
        *c = gone->next;
        break;
    }
    pthread_mutex_unlock(&lock);
    if (gone || !shared) ts_file_close(f);
    ts_free(gone);
}
