/* ckpt/checkpoint.h – checkpoints of a run: one folder a step, written by every device its own part.
 *
 *   <folder>/<step>/shard-00003-of-00016.safetensors   what device 3 of 16 owns and what changes: boxes of tensors
 *   <folder>/<step>/index-00003-of-00016.json          which box of which tensor each of them is
 *   <folder>/<step>/frozen-00003-of-00016.safetensors, frozen-index-00003-of-00016.json
 *                                                      the same for what never changes; hard links from step to step
 *   <folder>/<step>/manifest.json                      written last, the commit: step, mesh, length and XXH3 of every
 *                                                      other file, the state that is no tensor; its own XXH3 at the end
 *
 * Tensors have their published name, one a layer, whatever the mesh, the stacking or the engine: reading needs none of
 * those. A device that owns nothing writes nothing. A checkpoint is there completely or not at all:
 *   rename    (a disk) written beside its place as <step>.tmp-<host>-<pid>, made durable, renamed;
 *   manifest  (an object store behind FUSE, which cannot rename a folder) written in place, beside a file that says
 *             "unfinished" until the manifest is there; without its manifest it is none.
 * An old one is never touched before the new one is durable. A folder of one step may be copied or moved anywhere.
 * One save at a time into a folder; readers need no lock.
 *
 * Not here: which device owns what (train/state.h), saving beside the training (train/saver.h).
 */
#ifndef TS_CHECKPOINT_H
#define TS_CHECKPOINT_H

#include <jansson.h>

#include "base/box.h"
#include "ckpt/safetensors.h"

/* ---- saving ---------------------------------------------------------------------------------- */

/* Elements first … first + n − 1 of a part into `to`. */
typedef ts_status (*ts_checkpoint_fill)(void *context, uint64_t first, size_t n, float *to,
                                        ts_error *err);

/* A box of a tensor, f32. The box's tensor may have other dimensions than the published ones as long as it has the
 * same elements in the same order. */
typedef struct ts_checkpoint_part {
    const char *name;
    int rank;
    int64_t dim[TS_TENSOR_RANK]; /* as published */
    ts_box box;
    int device;
    bool frozen;       /* has the same values in every step of the run */
    const float *data; /* the box's elements, borrows; or NULL, then fill gives them in pieces */
    ts_checkpoint_fill fill;
    void *context;
} ts_checkpoint_part;

typedef enum ts_commit { TS_COMMIT_AUTO, TS_COMMIT_RENAME, TS_COMMIT_MANIFEST } ts_commit;

typedef struct ts_checkpoint_save_options {
    size_t struct_size;
    const char *folder; /* <run>/checkpoints */
    int64_t step;
    const ts_checkpoint_part *part; /* any order; the parts of a tensor cover it once, with boxes of one size */
    size_t n_part;
    int devices;
    const char *mesh;    /* for people: "data=1, fsdp=4, tensor=4" */
    const json_t *state; /* an object with all that is not a tensor; borrows */
    double score;        /* the evaluation loss of this step; NaN: none */
    ts_commit commit;    /* auto: manifest on FUSE, else rename */
    /* A checkpoint (its folder) whose frozen files hold these very values. They are linked, copied where links fail,
     * if they are of the same boxes; data and fill of frozen parts are not asked then. NULL: none. */
    const char *frozen_from;
} ts_checkpoint_save_options;
void ts_checkpoint_save_options_default(ts_checkpoint_save_options *o);

/* On failure the folder holds what it held before (only when syncing the folder at the very end fails, it may hold the
 * new one too). A checkpoint of that step is replaced; with commit by manifest only where it does not verify. Reads
 * nothing but its arguments, so another thread may run it. */
TS_MUST_CHECK ts_status ts_checkpoint_save(const ts_checkpoint_save_options *o, ts_error *err);
/* How a save into this folder, or where it will be, commits with TS_COMMIT_AUTO. */
ts_commit ts_checkpoint_commit_of(const char *folder);
/* Would ts_checkpoint_save take the frozen files of that checkpoint, for these options? Then their data need not be
 * there. */
bool ts_checkpoint_has_frozen(const ts_checkpoint_save_options *o);

/* After a save of that step: of the whole checkpoints up to it, keeps the newest `newest` (0: all) and the `best` of
 * lowest score, and the saved one in any case; removes the others, and what never became whole, oldest first. Later
 * steps are neither counted nor touched: a run that resumed behind a damaged checkpoint must not pay for it with good
 * ones. Nothing is removed before it was found that the saved one is there. */
TS_MUST_CHECK ts_status ts_checkpoint_keep(const char *folder, int64_t saved_step, size_t newest,
                                           size_t best, ts_error *err);
/* The same; steps that are known to be damaged, although they look whole, neither count nor go. */
TS_MUST_CHECK ts_status ts_checkpoint_keep_sound(const char *folder, int64_t saved_step,
                                                 size_t newest, size_t best, const int64_t *damaged,
                                                 size_t n_damaged, ts_error *err);
/* Removes one, also while its run is being written: renamed first, so that half of it never carries a step's name (by
 * manifest: the manifest goes first). NOT_FOUND: there is none. */
TS_MUST_CHECK ts_status ts_checkpoint_remove(const char *folder, int64_t step, ts_error *err);

/* ---- reading --------------------------------------------------------------------------------- */

/* Steps in a folder, ascending, complete or not. A missing folder has none. Owns: caller, ts_free. */
TS_MUST_CHECK ts_status ts_checkpoint_list(const char *folder, int64_t **steps, size_t *n,
                                           ts_error *err);

typedef struct ts_checkpoint ts_checkpoint;
/* One step's folder, verified whole: manifest, every index, length and XXH3 of every file, every tensor covered once.
 * DATA_LOSS says what is wrong: file, found, expected. */
TS_MUST_CHECK ts_status ts_checkpoint_open(const char *path, ts_checkpoint **out, ts_error *err);
/* The same without reading the shards: they have the right length. */
TS_MUST_CHECK ts_status ts_checkpoint_look(const char *path, ts_checkpoint **out, ts_error *err);
/* Of one that was only looked at: reads and hashes every file. done (may be NULL) is told bytes as they pass; false
 * stops with CANCELLED. */
TS_MUST_CHECK ts_status ts_checkpoint_verify(ts_checkpoint *c,
                                             bool (*done)(void *context, uint64_t bytes),
                                             void *context, ts_error *err);
/* The newest that verifies; what is skipped, and why, goes to the log. Stops when three running fail alike. NOT_FOUND:
 * there is none. DATA_LOSS: there are some and none can be used. */
TS_MUST_CHECK ts_status ts_checkpoint_open_newest(const char *folder, ts_checkpoint **out,
                                                  ts_error *err);
void ts_checkpoint_close(ts_checkpoint *c); /* NULL is fine */

int64_t ts_checkpoint_step(const ts_checkpoint *c);
const char *ts_checkpoint_path(const ts_checkpoint *c);
const json_t *ts_checkpoint_state(const ts_checkpoint *c);   /* until c is closed */
const char *ts_checkpoint_program(const ts_checkpoint *c);   /* version that wrote it */
const char *ts_checkpoint_mesh(const ts_checkpoint *c);      /* as it was saved with; "" */
const char *ts_checkpoint_written(const ts_checkpoint *c);   /* "2026-05-01T12:00:00Z" */
double ts_checkpoint_score(const ts_checkpoint *c);          /* NaN: none */
int ts_checkpoint_devices(const ts_checkpoint *c);
uint64_t ts_checkpoint_bytes(const ts_checkpoint *c);        /* of all its files */
uint64_t ts_checkpoint_frozen_bytes(const ts_checkpoint *c); /* of them frozen */
/* Whole tensors under their published names, put together from the shards as they are read. Until c is closed. */
ts_tensors *ts_checkpoint_tensors(const ts_checkpoint *c);

#endif
