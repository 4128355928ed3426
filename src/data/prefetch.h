/* data/prefetch.h – batches read ahead by threads, in the loader's order.
 *
 * Several virtual readers are read at once, so that a slow file system is waited for in parallel; which threads read
 * what does not change one row. The position given to a checkpoint is that behind the batches taken, not behind those
 * read ahead.
 */
#ifndef TS_PREFETCH_H
#define TS_PREFETCH_H

#include "data/loader.h"

typedef struct ts_prefetch ts_prefetch;
/* Takes over the loader (borrowed until close; nobody else uses it, and behind close it stands where the batches taken
 * end). batches: read ahead at most; 0: none, each is read in the caller's thread when it is asked for. threads ≥ 1.
 * Reading begins at once. Once open, taking a batch allocates nothing, where the loader allocates nothing. */
TS_MUST_CHECK ts_status ts_prefetch_open(ts_loader *l, int batches, int threads, ts_prefetch **out,
                                         ts_error *err);
void ts_prefetch_close(ts_prefetch *p); /* stops the threads, after the row that each is at; NULL is fine */
/* The next batch, valid until the next call of this or set_state; statuses as ts_loader_next's, and an error comes at
 * the batch that it belongs to; the next call reads that batch again. *waited (may be NULL): seconds until it was
 * there. One thread at a time. */
TS_MUST_CHECK ts_status ts_prefetch_next(ts_prefetch *p, const ts_batch **out, double *waited,
                                         ts_error *err);
/* Behind the batches that were taken. to: of ts_loader_state_new. Allocates nothing. */
void ts_prefetch_get_state(const ts_prefetch *p, ts_loader_state *to);
/* What was read ahead is dropped. Errors as ts_loader_set_state's. */
TS_MUST_CHECK ts_status ts_prefetch_set_state(ts_prefetch *p, const ts_loader_state *s,
                                              ts_error *err);
/* ts_loader_state_order_hash of that position, without a copy of it. */
uint64_t ts_prefetch_order_hash(const ts_prefetch *p);
/* Rows of one source among those taken; turns of readers that were done count as well, so near the end of the data it
 * may be a few more. */
int64_t ts_prefetch_source_rows(const ts_prefetch *p, int source);
const ts_loader *ts_prefetch_loader(const ts_prefetch *p); /* for names, statistics and the fingerprint */

#endif
