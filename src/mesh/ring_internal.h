/* mesh/ring_internal.h – what the parts of the ring rewrite share: vary.c and ring.c find, ring_emit.c
 * writes. */
#ifndef TS_RING_INTERNAL_H
#define TS_RING_INTERNAL_H

#include "ir/builder.h"
#include "mesh/mesh.h"

enum {
    TS_RING_MAX = 16,   /* devices on an axis: the steps are unrolled */
    TS_RING_SHARED = 32 /* products of one ring */
};

/* A product, and one dimension of it that comes or goes in pieces. */
typedef struct ts_ring_dot {
    ts_node *dot;
    int dim[2];  /* of each operand: its dimension that is in pieces; −1: it has none */
    int out_dim; /* of the result; −1: it is contracted, so the pieces' products are summed */
} ts_ring_dot;

/* A gather whose every use is a product. */
typedef struct ts_ring_gather {
    ts_node *gather;
    ts_value *piece[TS_RING_MAX]; /* by step; the writer fills it */
    bool taken;
} ts_ring_gather;

typedef struct ts_ring_use {
    ts_ring_dot dot;
    ts_ring_gather *from;
    int side; /* which operand the gather is */
    ts_value *value; /* while it is written: the sum or the result so far */
} ts_ring_use;

/* A scatter of a product that nothing else reads. */
typedef struct ts_ring_scatter {
    ts_node *scatter;
    ts_ring_dot dot;
    ts_value *sum[2]; /* while it is written: what travels up and down the axis */
    bool taken;
} ts_ring_scatter;

/* Where a piece begins, as a value; made once a region. */
typedef struct ts_ring_start {
    const char *axis;
    int64_t offset, size; /* piece (axis_index + offset) mod n, of so many elements; size 0: axis_index itself */
    ts_value *value;
} ts_ring_start;

typedef struct ts_ring {
    ts_graph *graph;
    uint16_t axes;
    const uint16_t *vary; /* ts__vary of the graph as it was */
    ts_arena *arena; /* the pass's own */
    ts_region *region;
    ts_ring_start *start;
    int n_start, cap_start;
    ts_value *before[TS_RING_SHARED]; /* results of a scatter's ring that the next one waits for */
    int n_before;
    bool changed;
} ts_ring;

/* By value id: the axes along which devices may hold different bits. in: how the inputs lie, NULL: all differ.
 * NULL when memory is out. */
const uint16_t *ts__vary(const ts_graph *g, const ts_spec *in, ts_arena *arena);
/* The gathers' pieces travel, and the uses' products are made of them, all before `at`; uses of gathers that
 * travelled already (n_gather 0) take the pieces they left. The uses' dots are replaced and removed. */
TS_MUST_CHECK ts_status ts__ring_gather(ts_ring *r, ts_node *at, ts_ring_gather *const *gather,
                                        int n_gather, ts_ring_use *const *use, int n_use, ts_error *err);
/* Replaces and removes the scatters and their dots; the results are left in r->before. */
TS_MUST_CHECK ts_status ts__ring_scatter(ts_ring *r, ts_node *at, ts_ring_scatter *const *scatter, int n,
                                         ts_error *err);

#endif
