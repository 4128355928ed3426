/* base/box.h – a box of a row-major tensor: the part of it that one device holds, or one file.
 *
 * Elements keep their order: those of a stretch of the tensor that lie in the box are one stretch of the box. So
 * whatever comes and goes in stretches of the whole tensor – files, initial values, batches – is one copy a box.
 */
#ifndef TS_BOX_H
#define TS_BOX_H

#include "base/base.h"

enum { TS_BOX_RANK = 8 };

typedef struct ts_box {
    int rank;
    int64_t global[TS_BOX_RANK], local[TS_BOX_RANK], offset[TS_BOX_RANK];
    size_t elements; /* of the box */
    size_t run;      /* elements that lie together in the tensor as well; all of them where run == elements */
} ts_box;

/* elements and run from the rest. False: a dimension reaches outside, or a product overflows. */
bool ts_box_finish(ts_box *b);
ts_box ts_box_whole(int rank, const int64_t *dim); /* every dimension ≥ 1, product checked by the caller */
/* The same elements as a box of a tensor of these dimensions, which has the same elements in the same order
 * ([K·G·D,E] for [K,G,D,E]). False: it is none there. */
bool ts_box_reshape(const ts_box *b, int rank, const int64_t *dim, ts_box *out);
/* Elements of the box that stand before element `first` of the tensor. */
size_t ts_box_before(const ts_box *b, size_t first);
/* Where element `at` of the box stands in the tensor. */
size_t ts_box_place(const ts_box *b, size_t at);
/* Elements from … from + n − 1 of the box; `tensor` begins with element `first` of the tensor and has them all. */
void ts_box_gather(const ts_box *b, size_t from, size_t n, size_t element, const void *tensor,
                   size_t first, void *box);
void ts_box_scatter(const ts_box *b, size_t from, size_t n, size_t element, const void *box,
                    void *tensor, size_t first);

#endif
