/* data/index.c – where each row begins: one number a row, in memory up to a limit, beyond it in a file
 * without a name.
 *
 * Numbers are added in the order of the rows and then sealed; after that nothing changes, and any
 * number of threads may look them up. The first `limit` stay in memory. What comes behind them costs
 * a row one pread of 8 bytes from a file that the page cache mostly holds. Not here: what a number
 * means (rows.c).
 */
#include "data/internal.h"

enum { BLOCK = 1 << 15 }; /* numbers that are written at once */

struct ts__index {
    int64_t n, limit;
    uint64_t *first; /* [limit]: at most; grows */
    size_t capacity;
    uint64_t *block; /* [BLOCK]: those that are not written yet */
    size_t in_block;
    char *folder, *shown;
    ts_spool *spool;
    ts_file *file; /* once sealed */
};

ts_status ts__index_new(int64_t limit, const char *folder, const char *shown, ts__index **out,
                        ts_error *err)
{
    TS_ASSERT(limit >= 0);
    ts__index *x = ts_alloc_zero(sizeof *x);
    if (x) {
        x->limit = limit;
        x->folder = ts_strdup(ts__cache_folder(folder));
        x->shown = ts_strdup(shown);
    }
    if (!x || !x->folder || !x->shown) {
        ts__index_free(x);
        return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "out of memory for an index of rows");
    }
    *out = x;
    return TS_OK;
}

void ts__index_free(ts__index *x)
{
    if (!x) return;
    ts_spool_abandon(x->spool);
    ts_file_close(x->file);
    ts_free(x->first);
    ts_free(x->block);
    ts_free(x->folder);
    ts_free(x->shown);
    ts_free(x);
}

int64_t ts__index_count(const ts__index *x)
{
    return x->n;
}

static ts_status no_room(const ts__index *x, ts_status status, const char *why, ts_error *err)
{
    return TS_ERROR(err, status,
                    "%s: the places of its rows take %lld bytes so far, and they cannot be kept: %s "
                    "(data_cache_directory=FOLDER says where)",
                    x->shown, (long long)x->n * 8, why);
}

static ts_status write_block(ts__index *x, ts_error *err)
{
    ts_error why = {0};
    if (x->in_block == 0) return TS_OK;
    ts_status status = ts_spool_write(x->spool, x->block, x->in_block * sizeof *x->block, &why);
    if (status != TS_OK) return no_room(x, status, why.msg, err);
    x->in_block = 0;
    return TS_OK;
}

static ts_status add_beyond(ts__index *x, uint64_t number, ts_error *err)
{
    if (!x->block) x->block = ts_alloc(BLOCK * sizeof *x->block);
    if (!x->block) return no_room(x, TS_RESOURCE_EXHAUSTED, "out of memory", err);
    if (!x->spool) {
        ts_error why = {0};
        ts_status status = ts_spool_open(x->folder, x->shown, &x->spool, &why);
        if (status != TS_OK) return no_room(x, status, why.msg, err);
    }
    if (x->in_block == BLOCK) TS_TRY(write_block(x, err));
    x->block[x->in_block++] = number;
    x->n++;
    return TS_OK;
}

ts_status ts__index_add(ts__index *x, uint64_t number, ts_error *err)
{
    TS_ASSERT(!x->file);
    if (x->n >= x->limit) return add_beyond(x, number, err);
    if ((size_t)x->n == x->capacity) {
        size_t capacity = x->capacity ? x->capacity * 2 : 1024;
        if (capacity > (size_t)x->limit) capacity = (size_t)x->limit;
        uint64_t *grown =
            ts_realloc(x->first, x->capacity * sizeof *grown, capacity * sizeof *grown);
        if (!grown) return no_room(x, TS_RESOURCE_EXHAUSTED, "out of memory", err);
        x->first = grown;
        x->capacity = capacity;
    }
    x->first[x->n++] = number;
    return TS_OK;
}

ts_status ts__index_seal(ts__index *x, ts_error *err)
{
    if (!x->spool) return TS_OK;
    TS_TRY(write_block(x, err));
    x->file = ts_spool_finish(x->spool);
    x->spool = NULL;
    ts_free(x->block);
    x->block = NULL;
    return TS_OK;
}

ts_status ts__index_at(const ts__index *x, int64_t i, uint64_t *number, ts_error *err)
{
    TS_ASSERT(i >= 0 && i < x->n && (i < x->limit || x->file));
    if (i < x->limit) {
        *number = x->first[i];
        return TS_OK;
    }
    uint64_t at = (uint64_t)(i - x->limit) * sizeof *number;
    return ts_file_read_at(x->file, at, number, sizeof *number, err);
}
