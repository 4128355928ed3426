/* train/saver.h – checkpoints of a run's state, written while the training goes on.
 *
 * A save copies what the devices own into host memory (one download of each buffer: what the step waits for) and hands
 * it to a thread that writes, hashes, syncs and commits. The copy is kept from save to save: 12 bytes a trained
 * parameter that this process owns, and nothing else that grows with the model. Frozen tensors are copied for the first
 * save only. One save at a time: the next one waits for the one before. Where the copy finds no room, or asynchronous
 * is false, the state is written from the devices at once, in pieces.
 *
 * Not here: what else is in a checkpoint (save.c), the files (ckpt/checkpoint.h).
 */
#ifndef TS_SAVER_H
#define TS_SAVER_H

#include "ckpt/checkpoint.h"
#include "train/state.h"

typedef struct ts_saver_options {
    size_t struct_size;
    const char *folder; /* <run>/checkpoints; copied, as mesh */
    const char *mesh;
    int devices; /* of the mesh */
    bool asynchronous;
    ts_commit commit;
    size_t newest, best; /* as ts_checkpoint_keep's; newest 0: keep all */
} ts_saver_options;

typedef struct ts_saver ts_saver;
TS_MUST_CHECK ts_status ts_saver_open(const ts_saver_options *o, const ts_state *state,
                                      ts_saver **out, ts_error *err);
void ts_saver_close(ts_saver *s); /* waits for what is being written; NULL is fine */

/* How a save ended. */
typedef struct ts_saved {
    int64_t step;
    double copied, waited, written; /* seconds: the copy, for the save before, in the thread */
    uint64_t bytes;
    ts_error error; /* code TS_OK: it is durable */
} ts_saved;
/* Begins a save of this step, with nothing in flight on the devices; state is taken over (json_decref). Errors are of
 * the copy and of memory for it; how the save ends is asked for. */
TS_MUST_CHECK ts_status ts_saver_begin(ts_saver *s, int64_t step, json_t *state, double score,
                                       ts_error *err);
/* Behind an error of begin: it is the devices', which did not give the state. */
bool ts_saver_lost_device(const ts_saver *s);
bool ts_saver_is_busy(ts_saver *s);
/* How the next save ended that nobody has asked for yet; false: there is none (wait: after waiting for one that is
 * being written). */
bool ts_saver_ended(ts_saver *s, bool wait, ts_saved *out);
/* Seconds that a save may take from now on, by those before; 0 before the first. */
double ts_saver_estimate(const ts_saver *s);
int64_t ts_saver_durable(ts_saver *s); /* the step that was saved last; −1: none. Any thread may ask */
/* The checkpoint at this path was restored: frozen tensors may be linked from it. NULL: none. */
void ts_saver_restored(ts_saver *s, const char *path);

#endif
