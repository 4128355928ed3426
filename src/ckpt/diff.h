/* ckpt/diff.h – what comparing tensors (diff.c) and the rest (diff_facts.c) share; what callers see
 * is in tessera.h.
 */
#ifndef TS_DIFF_H
#define TS_DIFF_H

#include "ckpt/checkpoint.h"

typedef struct ts__diff {
    ts_diff public; /* first: a pointer to it is one to all */
    ts_arena *arena;
    size_t max_fact;
} ts__diff;

/* What two checkpoints say beside their tensors, into d->public.fact. */
ts_status ts__diff_facts(ts__diff *d, const ts_checkpoint *a, const ts_checkpoint *b, ts_error *err);

#endif
