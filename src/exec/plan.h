/* exec/plan.h – where blocks of memory lie in one arena, so that blocks never needed at the same time
 * share bytes. Knows nothing of graphs, kernels or devices: an engine says when each block is needed
 * (a list of position ranges in its program, ends included) and gets offsets.
 *
 * Not here: what is needed when (the engine's liveness), in-place reuse (the engine merges such
 * blocks before it asks).
 */
#ifndef TS_PLAN_H
#define TS_PLAN_H

#include "base/base.h"

typedef struct ts_plan_range {
    int32_t first, last;
} ts_plan_range; /* both included */

typedef struct ts_plan_block {
    size_t bytes;
    const ts_plan_range *range; /* borrows; in any order, may touch */
    int n_range;
    size_t offset; /* result: a multiple of the alignment */
} ts_plan_block;

/* True when some position needs both. */
bool ts_plan_overlap(const ts_plan_block *a, const ts_plan_block *b);
/* Greedy by size: the largest block first, each at the lowest offset of the tightest gap that its
 * overlapping neighbours leave. share = false gives every block bytes of its own. Deterministic.
 * RESOURCE_EXHAUSTED when memory is out or the total overflows. */
TS_MUST_CHECK ts_status ts_plan_assign(ts_plan_block *block, int n, size_t align, bool share,
                                       size_t *total, ts_error *err);

#endif
