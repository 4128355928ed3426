/* ckpt/checkpoint_internal.h – what the writing and the reading half agree on. */
#ifndef TS_CHECKPOINT_INTERNAL_H
#define TS_CHECKPOINT_INTERNAL_H

#include "ckpt/checkpoint.h"

#define TS__CHECKPOINT_FORMAT   "tessera-checkpoint"
#define TS__CHECKPOINT_SHARD    "shard-00000-of-00001.safetensors"
#define TS__CHECKPOINT_MANIFEST "manifest.json"
enum { TS__CHECKPOINT_VERSION = 1, TS__CHECKPOINT_DEPTH = 64, TS__MANIFEST_BYTES = 64 << 20 };

/* XXH3-64 of a JSON value in one canonical text; false when memory is out. */
bool ts__checkpoint_state_hash(const json_t *state, uint64_t *hash);
/* Steps are decimal without leading zeros; false for any other name. */
bool ts__checkpoint_step_of(const char *name, size_t n, int64_t *step);

#endif
