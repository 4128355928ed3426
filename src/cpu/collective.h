/* cpu/collective.h – what a collective does to the buffers of all virtual devices.
 *
 * Made once at compile; run is called in the step and allocates nothing. A device's number is the row-major index of
 * its coordinates in the graph's mesh; devices of a group are `stride` apart.
 */
#ifndef TS_CPU_COLLECTIVE_H
#define TS_CPU_COLLECTIVE_H

#include "cpu/kernel.h"

typedef struct ts_cpu_axis {
    int64_t devices, n, stride; /* of the mesh, of the axis, between neighbours along it */
} ts_cpu_axis;

static inline int64_t ts__cpu_coordinate(const ts_cpu_axis *a, int64_t device)
{
    return device / a->stride % a->n;
}

typedef struct ts_cpu_collective {
    ts_cpu_axis axis;
    ts_op op;
    ts_dtype dtype;
    ts_isa isa;
    bool max;
    int64_t shift; /* 0 … n−1 */
    /* The block that one device has for another: dim[0 … rank) rows, in bytes apart, of `run` bytes. Of the sender it
     * begins at coordinate of the receiver × src_step, of the receiver at coordinate of the sender × dst_step. */
    int rank;
    int64_t dim[TS_MAX_RANK], src[TS_MAX_RANK], dst[TS_MAX_RANK], run, rows, src_step, dst_step;
    /* Its pieces: `bunch` rows, or one of the `cuts` parts of `cut` bytes of a long row. */
    int64_t cut, cuts, bunch, pieces;
} ts_cpu_collective;

/* The axis that a collective of more than one device runs over; false: the graph's mesh has none of that name. */
bool ts__cpu_axis_of(const ts_graph *g, const ts_node *n, ts_cpu_axis *out);
/* As ts_cpu_kernel.in_place. */
uint64_t ts__cpu_collective_in_place(const ts_node *n);
/* n: any collective with an operand whose result is not empty. */
void ts__cpu_collective_make(const ts_node *n, const ts_cpu_axis *axis, ts_isa isa,
                             ts_cpu_collective *out);
/* from, to: each device's operand and result. They are the same, of every device, or do not overlap. */
void ts__cpu_collective_run(const ts_cpu_collective *c, void *const *from, void *const *to,
                            int threads);

#endif
