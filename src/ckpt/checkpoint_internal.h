/* ckpt/checkpoint_internal.h – what the writing and the reading half agree on. */
#ifndef TS_CHECKPOINT_INTERNAL_H
#define TS_CHECKPOINT_INTERNAL_H

#include "ckpt/checkpoint.h"

#define TS__CHECKPOINT_FORMAT   "tessera-checkpoint"
#define TS__INDEX_FORMAT        "tessera-index"
#define TS__CHECKPOINT_MANIFEST "manifest.json"
/* A save by manifest makes this file first and removes it last: what does not verify beside it was never finished. */
#define TS__CHECKPOINT_UNFINISHED "unfinished"
enum {
    TS__CHECKPOINT_VERSION = 2,
    TS__CHECKPOINT_DEPTH = 64,
    TS__MANIFEST_BYTES = 64 << 20,
    TS__INDEX_BYTES = 64 << 20,
    TS__CHECKPOINT_DEVICES = 1 << 16,
    TS__FILE_NAME = 64
};

/* ---- files of a step ---- */

typedef enum ts__file_kind {
    TS__FILE_SHARD,
    TS__FILE_INDEX,
    TS__FILE_FROZEN,
    TS__FILE_FROZEN_INDEX,
    TS__FILE_KINDS
} ts__file_kind;

/* "shard-00003-of-00016.safetensors" into buf; returns buf. */
char *ts__checkpoint_file_name(ts__file_kind kind, int device, int devices,
                               char buf[TS__FILE_NAME]);
/* What the manifest says of a file. */
typedef struct ts__file_record {
    char name[TS__FILE_NAME];
    ts__file_kind kind;
    int device;
    uint64_t bytes, hash; /* XXH3-64 of all its bytes */
} ts__file_record;

/* Steps are decimal without leading zeros; false for any other name. */
bool ts__checkpoint_step_of(const char *name, size_t n, int64_t *step);
/* folder/step, or with temporary the place where this process writes it. Owns: caller; NULL when memory is out. */
char *ts__checkpoint_step_path(const char *folder, int64_t step, bool temporary);

/* What a name of a folder of checkpoints is: none of a save's temporary ones; of a save (or a removal) that can no
 * longer be going on; of one of a living process; of one of another host, less than a day old. */
typedef enum ts__temporary {
    TS__TEMPORARY_NONE,
    TS__TEMPORARY_LEFT,
    TS__TEMPORARY_WRITTEN,
    TS__TEMPORARY_ELSEWHERE
} ts__temporary;
ts__temporary ts__checkpoint_temporary(const char *path, const char *name, int64_t *step);

/* XXH3-64 of n bytes. */
uint64_t ts__checkpoint_hash(const void *data, size_t n);
/* Of a whole file; done may be NULL. */
ts_status ts__checkpoint_hash_file(const char *path, bool (*done)(void *context, uint64_t bytes),
                                   void *context, uint64_t *hash, uint64_t *bytes, ts_error *err);

/* ---- writing (checkpoint_write.c) ---- */

typedef struct ts__save {
    const ts_checkpoint_save_options *o;
    const ts_checkpoint_part **part; /* [n_part], by frozen, then device, each in the order given */
    const char *folder;              /* where the files go */
    ts_checkpoint *frozen;           /* that frozen files are taken from; NULL */
    ts__file_record *file;           /* [n_file], as they are written */
    size_t n_file, max_file;
    size_t tensors; /* whole ones */
} ts__save;
/* Sorted parts; frozen is the caller's. INVALID_ARGUMENT where a part fits nowhere. */
ts_status ts__save_open(const ts_checkpoint_save_options *o, ts__save *s, ts_error *err);
void ts__save_close(ts__save *s);
/* Every shard with its index, each of them synced. */
ts_status ts__save_files(ts__save *s, ts_error *err);
ts_status ts__save_manifest(const ts__save *s, ts_error *err); /* synced */
/* Do its frozen files hold just the boxes that s would write? */
bool ts__save_matches_frozen(const ts__save *s, const ts_checkpoint *c);

/* ---- reading (checkpoint_read.c) ---- */

const ts__file_record *ts__checkpoint_file(const ts_checkpoint *c, const char *name); /* or NULL */
/* The manifest alone, and the lengths of the files: no index, no tensors. */
ts_status ts__checkpoint_glance(const char *path, ts_checkpoint **out, ts_error *err);
/* Does the folder hold a manifest that ends with its own hash? */
bool ts__checkpoint_is_committed(const char *path);
/* Is it this checkpoint that is bad, or our access to all of them? */
bool ts__checkpoint_own_fault(ts_status status);

#endif
