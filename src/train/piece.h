/* train/piece.h – the part of a tensor that one device holds, as a box of it. */
#ifndef TS_PIECE_H
#define TS_PIECE_H

#include "base/box.h"
#include "mesh/mesh.h"

typedef ts_box ts_piece;

/* m NULL: the whole. The first `skip` dimensions, which no axis splits, are left out: a layer's piece of a stack. */
ts_piece ts_piece_of(const ts_mesh *m, const ts_spec *s, const ts_type *global, int skip,
                     int device);

/* The first device that holds the same piece as `device`, and how many before `device` hold it. */
int ts_piece_home(const ts_mesh *m, const ts_spec *s, int device, int *replica);

#endif
