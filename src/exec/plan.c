/* exec/plan.c – offsets for blocks in one arena, greedy by size.
 *
 * Method: Pisarchyk & Lee 2020, "Efficient Memory Management for Deep Neural Net Inference", greedy by
 * size for offset calculation. Blocks are placed from the largest to the smallest (ties by index); a
 * block goes into the smallest gap between the placed blocks that are needed at the same time as it,
 * or behind them. The result is a pure function of the input, so a plan is reproducible.
 *
 * Invariant (tests/unit/test_plan.c): two blocks whose ranges share a position share no byte. Blocks
 * of zero bytes get offset 0 and take part in nothing.
 * Not here: deciding what is needed when.
 */
#include "exec/plan.h"

#include <stdlib.h>

bool ts_plan_overlap(const ts_plan_block *a, const ts_plan_block *b)
{
    for (int i = 0; i < a->n_range; i++)
        for (int j = 0; j < b->n_range; j++)
            if (a->range[i].first <= b->range[j].last && b->range[j].first <= a->range[i].last)
                return true;
    return false;
}

typedef struct size_order {
    size_t bytes;
    int index;
} size_order;

static int larger_first(const void *pa, const void *pb)
{
    const size_order *a = pa, *b = pb;
    if (a->bytes != b->bytes) return a->bytes > b->bytes ? -1 : 1;
    return a->index < b->index ? -1 : a->index > b->index;
}

/* placed[n] is sorted by offset. Finds the tightest gap for block x; false on overflow. */
static bool find_offset(const ts_plan_block *block, const int *placed, int n, ts_plan_block *x,
                        size_t align)
{
    size_t edge = 0, best = SIZE_MAX, best_gap = SIZE_MAX;
    for (int k = 0; k < n; k++) {
        const ts_plan_block *p = &block[placed[k]];
        if (!ts_plan_overlap(p, x)) continue;
        if (p->offset > edge && p->offset - edge >= x->bytes && p->offset - edge < best_gap) {
            best_gap = p->offset - edge;
            best = edge;
        }
        size_t end = p->offset + p->bytes;
        if (end > SIZE_MAX - align) return false;
        end = ts_round_up(end, align);
        if (end > edge) edge = end;
    }
    x->offset = best_gap != SIZE_MAX ? best : edge;
    return x->offset <= PTRDIFF_MAX && x->bytes <= (size_t)PTRDIFF_MAX - x->offset;
}

static void insert_by_offset(const ts_plan_block *block, int *placed, int n, int index)
{
    int k = n;
    while (k > 0 && block[placed[k - 1]].offset > block[index].offset) {
        placed[k] = placed[k - 1];
        k--;
    }
    placed[k] = index;
}

/* Every block behind the one before it. */
static bool assign_apart(ts_plan_block *block, int n, size_t align, size_t *total)
{
    size_t end = 0;
    for (int i = 0; i < n; i++) {
        block[i].offset = end;
        if (ts_add_size(end, block[i].bytes, &end) || end > (size_t)PTRDIFF_MAX - align)
            return false;
        end = ts_round_up(end, align);
    }
    *total = end;
    return true;
}

static ts_status too_large(ts_error *err)
{
    return TS_ERROR(err, TS_RESOURCE_EXHAUSTED,
                    "the temporary memory of the program exceeds %zu bytes", (size_t)PTRDIFF_MAX);
}

ts_status ts_plan_assign(ts_plan_block *block, int n, size_t align, bool share, size_t *total,
                         ts_error *err)
{
    TS_ASSERT(align > 0 && n >= 0);
    *total = 0;
    if (n == 0) return TS_OK;
    if (!share) return assign_apart(block, n, align, total) ? TS_OK : too_large(err);
    size_order *order = ts_alloc((size_t)n * sizeof *order);
    int *placed = ts_alloc((size_t)n * sizeof *placed);
    ts_status status = TS_OK;
    if (!order || !placed) {
        status = TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "out of memory while planning %d blocks", n);
        goto done;
    }
    for (int i = 0; i < n; i++) order[i] = (size_order){block[i].bytes, i};
    qsort(order, (size_t)n, sizeof *order, larger_first);
    size_t end = 0;
    int n_placed = 0;
    for (int k = 0; k < n; k++) {
        ts_plan_block *x = &block[order[k].index];
        x->offset = 0;
        if (x->bytes == 0) continue;
        if (!find_offset(block, placed, n_placed, x, align)) {
            status = too_large(err);
            goto done;
        }
        insert_by_offset(block, placed, n_placed++, order[k].index);
        if (x->offset + x->bytes > end) end = x->offset + x->bytes;
    }
    *total = end;
done:
    ts_free(order);
    ts_free(placed);
    return status;
}
