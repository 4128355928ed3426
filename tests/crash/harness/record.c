/* record.c – the log of what a save asked of the file system, as the file seam saw it. */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "crash.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static crash_op *add(crash_log *log, crash_kind kind)
{
    if (log->n == log->capacity) {
        size_t more = log->capacity ? log->capacity * 2 : 256;
        crash_op *grown =
            ts_realloc(log->op, log->capacity * sizeof *grown, more * sizeof *grown);
        TS_ASSERT(grown);
        log->op = grown;
        log->capacity = more;
    }
    crash_op *op = &log->op[log->n++];
    *op = (crash_op){.kind = kind};
    return op;
}

/* The path below the root; NULL: it is elsewhere. Owns: caller. */
static char *below(const crash_log *log, const char *path)
{
    size_t n = strlen(log->root);
    if (strncmp(path, log->root, n) != 0 || (path[n] && path[n] != '/')) return NULL;
    path += n;
    while (*path == '/') path++;
    char *copy = ts_strdup(path);
    TS_ASSERT(copy);
    n = strlen(copy);
    while (n > 0 && copy[n - 1] == '/') copy[--n] = '\0';
    return copy;
}

/* What kind of entry a successful call is; false: it changes nothing. */
static bool kind_of(const ts_file_call *c, crash_kind *kind)
{
    switch (c->op) {
    case TS_FAULT_OPEN: *kind = CRASH_CREATE; return c->flags & O_CREAT;
    case TS_FAULT_WRITE: *kind = CRASH_WRITE; return c->n > 0;
    case TS_FAULT_SYNC: *kind = CRASH_SYNC; return true;
    case TS_FAULT_MKDIR: *kind = CRASH_MKDIR; return true;
    case TS_FAULT_LINK: *kind = CRASH_LINK; return true;
    case TS_FAULT_RENAME: *kind = c->flags & RENAME_EXCHANGE ? CRASH_EXCHANGE : CRASH_RENAME; return true;
    case TS_FAULT_UNLINK: *kind = c->flags & AT_REMOVEDIR ? CRASH_RMDIR : CRASH_UNLINK; return true;
    default: return false;
    }
}

static int record(void *context, const ts_file_call *c)
{
    crash_log *log = context;
    crash_kind kind;
    if (!c->done || c->e || !kind_of(c, &kind)) return 0;
    char *path = below(log, c->path);
    if (!path) return 0;
    pthread_mutex_lock(&lock);
    crash_op *op = add(log, kind);
    op->path = path;
    if (c->to) op->to = below(log, c->to);
    op->offset = c->offset;
    if (kind == CRASH_WRITE) {
        op->n = c->n;
        op->data = ts_alloc(c->n);
        TS_ASSERT(op->data);
        memcpy(op->data, c->data, c->n);
    }
    pthread_mutex_unlock(&lock);
    return 0;
}

void crash_record(crash_log *log, const char *root)
{
    snprintf(log->root, sizeof log->root, "%s", root);
    ts_file_observe(record, log);
}

void crash_record_end(void)
{
    ts_file_observe(NULL, NULL);
}

void crash_log_mark(crash_log *log, crash_kind kind, int number)
{
    pthread_mutex_lock(&lock);
    add(log, kind)->number = number;
    pthread_mutex_unlock(&lock);
}

static void free_op(crash_op *op)
{
    ts_free(op->path);
    ts_free(op->to);
    ts_free(op->data);
}

void crash_log_drop(crash_log *log, size_t at)
{
    free_op(&log->op[at]);
    log->n--;
    memmove(&log->op[at], &log->op[at + 1], (log->n - at) * sizeof *log->op);
}

void crash_log_move(crash_log *log, size_t at, size_t to)
{
    crash_op kept = log->op[at];
    TS_ASSERT(to <= at);
    memmove(&log->op[to + 1], &log->op[to], (at - to) * sizeof *log->op);
    log->op[to] = kept;
}

void crash_log_free(crash_log *log)
{
    for (size_t i = 0; i < log->n; i++) free_op(&log->op[i]);
    ts_free(log->op);
    *log = (crash_log){0};
}
