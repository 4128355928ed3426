/* mesh/partition.h – from the global graph to the program of one device, and the passes over that program.
 *
 * The global graph knows no devices: its parameters and pinned values carry logical names (ir/graph.h, ts_pin).
 * The partitioned graph has local shapes, the mesh's internal axes and collectives, each over one axis.
 */
#ifndef TS_PARTITION_H
#define TS_PARTITION_H

#include "mesh/mesh.h"

typedef struct ts_partition_options {
    size_t struct_size;
    const ts_mesh *mesh;
    const ts_axis_rules *rules; /* NULL: the default ones */
    double tolerance;           /* largest part of the parameters that a device may hold beyond its share */
    bool whole_batch;           /* a batch that does not divide stays whole (samples); else it is an error */
    bool widen_off, stationary_off; /* for tests: masks are not widened; tables are always gathered */
    bool quiet;                     /* no warnings */
    int64_t head_bytes; /* of a head's weights that are gathered at once; 0: 64 MiB */
} ts_partition_options;

typedef struct ts_partition {
    ts_graph *graph;   /* of one device; owned */
    ts_mesh mesh;
    const ts_graph *global; /* borrowed */
    ts_spec *in, *out; /* of the global graph's inputs and outputs, in its order; never partial */
    double unsplit;    /* part of the parameters that a device holds beyond its share, 0 … 1 */
} ts_partition;

/* INVALID_ARGUMENT where a batch does not divide or too much stays unsplit (names the values that work). The graph is
 * only read; it must outlive the partition. */
TS_MUST_CHECK ts_status ts_partition_new(const ts_graph *g, const ts_partition_options *o,
                                         ts_partition **out, ts_error *err);
void ts_partition_free(ts_partition *p); /* NULL is fine */
/* Only the specs of inputs and outputs and of pinned values: what shard_mode=auto tells XLA. graph is NULL. */
TS_MUST_CHECK ts_status ts_partition_pins(const ts_graph *g, const ts_partition_options *o,
                                          ts_partition **out, ts_error *err);
/* The spec that a pinned value of the global graph has. */
ts_spec ts_partition_pin(const ts_partition *p, const ts_axis_rules *rules, const ts_value *v);

/* collective_matmul=ring: gathers before a product and scatters after one become rings of collective_permute, in place.
 * What is replicated stays so bit by bit, by the inputs' layouts (in: ts_partition.in); NULL: every device has inputs
 * of its own. Names only these axes (a bit an axis of g); 0: all. */
TS_MUST_CHECK ts_status ts_ring_rewrite(ts_graph *g, const ts_spec *in, uint16_t axes, ts_error *err);

/* ---- what a partitioned graph asks for ------------------------------------------------------- */

typedef struct ts_wire {
    ts_op op;          /* all_gather, … */
    const char *axis;  /* the graph's */
    int64_t count;     /* executions in one run of the program, loops multiplied out */
    double bytes;      /* sent by a device, ring model: gather and scatter (n−1)/n of the whole, all_reduce twice that,
                          permute its operand */
    double payload;    /* of the operands, as an HLO report counts them */
    int64_t largest;   /* bytes of the largest value that it handles at once */
} ts_wire;
/* One row for each (op, axis), in a fixed order; out has room for max. Returns how many there are. */
size_t ts_wire_of(const ts_graph *g, ts_wire *out, size_t max);

#endif
