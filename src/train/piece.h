/* train/piece.h – the part of a tensor that one device holds: a box of it, row-major like the tensor.
 *
 * Elements keep their order: those of a stretch of the tensor that a device holds are one stretch of its piece. So
 * whatever comes and goes in stretches of the whole tensor – files, initial values, batches – is one copy a device.
 */
#ifndef TS_PIECE_H
#define TS_PIECE_H

#include "mesh/mesh.h"

typedef struct ts_piece {
    int rank;
    int64_t global[TS_MAX_RANK], local[TS_MAX_RANK], offset[TS_MAX_RANK];
    size_t elements; /* of the piece */
    size_t run;      /* elements that lie together in the tensor as well; all of them where run == elements */
} ts_piece;

/* m NULL: the whole. The first `skip` dimensions, which no axis splits, are left out: a layer's piece of a stack. */
ts_piece ts_piece_of(const ts_mesh *m, const ts_spec *s, const ts_type *global, int skip,
                     int device);
/* Elements of the piece that stand before element `first` of the tensor. */
size_t ts_piece_before(const ts_piece *p, size_t first);
/* Where element `at` of the piece stands in the tensor. */
size_t ts_piece_place(const ts_piece *p, size_t at);
/* Elements from … from + n − 1 of the piece; `tensor` begins with element `first` of the tensor and has them all. */
void ts_piece_gather(const ts_piece *p, size_t from, size_t n, size_t element, const void *tensor,
                     size_t first, void *piece);
void ts_piece_scatter(const ts_piece *p, size_t from, size_t n, size_t element, const void *piece,
                      void *tensor, size_t first);

/* The first device that holds the same piece as `device`, and how many before `device` hold it. */
int ts_piece_home(const ts_mesh *m, const ts_spec *s, int device, int *replica);

#endif
