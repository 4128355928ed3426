/* ckpt/checkpoint.h – checkpoints of a run on local disk, one shard each.
 *
 *   <folder>/<step>/shard-00000-of-00001.safetensors     every entry, f32
 *   <folder>/<step>/manifest.json                        written last; makes the folder whole
 *
 * A checkpoint is there completely or not at all: it is written beside its place as
 * <step>.tmp-<host>-<pid>, made durable, and renamed. An old one is never touched before the new one
 * is durable. One save at a time into a folder.
 */
#ifndef TS_CHECKPOINT_H
#define TS_CHECKPOINT_H

#include <jansson.h>

#include "base/base.h"
#include "ckpt/safetensors.h"

/* Elements first … first + n − 1 of an entry into `to`. */
typedef ts_status (*ts_checkpoint_fill)(void *context, uint64_t first, size_t n, float *to,
                                        ts_error *err);

typedef struct ts_checkpoint_entry {
    const char *name;
    int rank;
    int64_t dim[TS_TENSOR_RANK];
    const float *data; /* borrows; or NULL, then fill gives the values in pieces */
    ts_checkpoint_fill fill;
    void *context;
} ts_checkpoint_entry;

/* state: an object with all that is not a tensor (configuration, data loader, random state); borrows.
 * On failure the folder holds what it held before (only when syncing the folder at the very end
 * fails, it may hold the new one too). A checkpoint of that step is replaced. */
ts_status ts_checkpoint_save(const char *folder, int64_t step, const ts_checkpoint_entry *entries,
                             size_t n, const json_t *state, ts_error *err);
/* After a save of that step: removes the oldest until at most keep (at least 1) of those up to it are
 * left. Later steps are neither counted nor touched: a run that resumed behind a damaged checkpoint
 * must not pay for it with good ones. */
ts_status ts_checkpoint_keep(const char *folder, int64_t saved_step, size_t keep, ts_error *err);

/* Steps in a folder, ascending, complete or not. A missing folder has none. Owns: caller, ts_free. */
ts_status ts_checkpoint_list(const char *folder, int64_t **steps, size_t *n, ts_error *err);

typedef struct ts_checkpoint ts_checkpoint;
/* One step's folder, verified whole: manifest, lengths, XXH3 of the shard. DATA_LOSS says what is wrong. */
ts_status ts_checkpoint_open(const char *path, ts_checkpoint **out, ts_error *err);
/* The newest that verifies; what is skipped, and why, goes to the log. NOT_FOUND: there is none.
 * DATA_LOSS: there are some and none can be used. */
ts_status ts_checkpoint_open_newest(const char *folder, ts_checkpoint **out, ts_error *err);
void ts_checkpoint_close(ts_checkpoint *c); /* NULL is fine */

int64_t ts_checkpoint_step(const ts_checkpoint *c);
const char *ts_checkpoint_path(const ts_checkpoint *c);
const json_t *ts_checkpoint_state(const ts_checkpoint *c); /* until c is closed */
const char *ts_checkpoint_program(const ts_checkpoint *c); /* version that wrote it */
ts_tensors *ts_checkpoint_tensors(const ts_checkpoint *c); /* until c is closed */

#endif
