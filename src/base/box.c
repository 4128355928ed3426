/* base/box.c – boxes of tensors; see box.h.
 *
 * A box is at most TS_BOX_RANK ranges. The dimensions behind the last one that is split lie together, in the tensor
 * and in the box: they are copied as one run.
 * Not here: which dimension an axis splits (mesh/), who moves the bytes.
 */
#include "base/box.h"

bool ts_box_finish(ts_box *b)
{
    size_t all = 1;
    b->elements = b->run = 1;
    if (b->rank < 0 || b->rank > TS_BOX_RANK) return false;
    for (int i = 0; i < b->rank; i++) {
        bool inside = b->local[i] >= 1 && b->offset[i] >= 0 && b->offset[i] <= b->global[i] &&
                      b->local[i] <= b->global[i] - b->offset[i];
        if (!inside || ts_mul_size(all, (size_t)b->global[i], &all) || all > PTRDIFF_MAX)
            return false;
        b->elements *= (size_t)b->local[i];
    }
    for (int i = b->rank - 1; i >= 0; i--) {
        b->run *= (size_t)b->local[i];
        if (b->local[i] != b->global[i]) break;
    }
    return true;
}

ts_box ts_box_whole(int rank, const int64_t *dim)
{
    ts_box b = {.rank = rank};
    TS_ASSERT(rank >= 0 && rank <= TS_BOX_RANK);
    for (int i = 0; i < rank; i++) b.global[i] = b.local[i] = dim[i];
    TS_ASSERT(ts_box_finish(&b));
    return b;
}

/* Dimensions *from … of b whose product is `size` make one dimension: is their part of the box a range of it? */
static bool join(const ts_box *b, int *from, int64_t size, int64_t *offset, int64_t *local)
{
    int64_t all = 1;
    bool split = false; /* a dimension before has several elements: those behind must be whole */
    *offset = 0;
    *local = 1;
    while (all < size && *from < b->rank) {
        int i = (*from)++;
        if (split && b->local[i] != b->global[i]) return false;
        all *= b->global[i];
        *offset = *offset * b->global[i] + b->offset[i];
        *local *= b->local[i];
        split |= b->local[i] > 1;
    }
    return all == size;
}

bool ts_box_reshape(const ts_box *b, int rank, const int64_t *dim, ts_box *out)
{
    int from = 0;
    *out = (ts_box){.rank = rank};
    for (int i = 0; i < rank; i++) {
        out->global[i] = dim[i];
        if (!join(b, &from, dim[i], &out->offset[i], &out->local[i])) return false;
    }
    while (from < b->rank)
        if (b->global[from++] != 1) return false;
    return ts_box_finish(out) && out->elements == b->elements;
}

size_t ts_box_before(const ts_box *b, size_t first)
{
    size_t rows = 1, before = 0, inner = b->elements;
    for (int i = 0; i < b->rank; i++) rows *= (size_t)b->global[i];
    if (first >= rows) return b->elements;
    for (int i = 0; i < b->rank; i++) {
        rows /= (size_t)b->global[i];
        inner /= (size_t)b->local[i];
        int64_t at = (int64_t)(first / rows) - b->offset[i];
        first %= rows;
        if (at < 0) return before;
        if (at >= b->local[i]) return before + (size_t)b->local[i] * inner;
        before += (size_t)at * inner;
    }
    return before;
}

size_t ts_box_place(const ts_box *b, size_t at)
{
    size_t place = 0, stride = 1;
    for (int i = b->rank - 1; i >= 0; i--) {
        place += (at % (size_t)b->local[i] + (size_t)b->offset[i]) * stride;
        at /= (size_t)b->local[i];
        stride *= (size_t)b->global[i];
    }
    return place;
}

/* Run by run: element *at of the box stands at *place of the tensor with n behind it; false past the last. */
static bool next_run(const ts_box *b, size_t *at, size_t end, size_t *place, size_t *n)
{
    if (*at >= end) return false;
    *place = ts_box_place(b, *at);
    *n = b->run - *at % b->run;
    if (*n > end - *at) *n = end - *at;
    return true;
}

void ts_box_gather(const ts_box *b, size_t from, size_t n, size_t element, const void *tensor,
                     size_t first, void *box)
{
    size_t place, count;
    char *to = box;
    for (size_t at = from; next_run(b, &at, from + n, &place, &count); at += count) {
        memcpy(to, (const char *)tensor + (place - first) * element, count * element);
        to += count * element;
    }
}

void ts_box_scatter(const ts_box *b, size_t from, size_t n, size_t element, const void *box,
                      void *tensor, size_t first)
{
    size_t place, count;
    const char *of = box;
    for (size_t at = from; next_run(b, &at, from + n, &place, &count); at += count) {
        memcpy((char *)tensor + (place - first) * element, of, count * element);
        of += count * element;
    }
}
