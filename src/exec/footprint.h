/* exec/footprint.h – what a program of one device would need of an accelerator that compiles it as
 * XLA does: bytes that live at once, products, and bytes that move. Of the graph alone: no device,
 * no compiler, and nothing is allocated but a copy of the graph.
 */
#ifndef TS_FOOTPRINT_H
#define TS_FOOTPRINT_H

#include "ir/graph.h"

typedef struct ts_footprint {
    int64_t arguments;   /* every input */
    int64_t temporary;   /* the most that lives at once beside them, new results included */
    int64_t gradients;   /* of temporary, at that moment: of parameters */
    int64_t activations; /* of temporary, at that moment: waiting for the backward half */
    int64_t kept;        /* the most of such activations at any moment */
    double flops;        /* of products, loops multiplied out */
    double traffic;      /* bytes read and written in device memory, loops multiplied out */
} ts_footprint;

/* g: of one device, composites allowed; only read. on_chip: values of a loop's body up to so many
 * bytes need not go through device memory, and are no traffic. */
TS_MUST_CHECK ts_status ts_footprint_of(const ts_graph *g, int64_t on_chip, ts_footprint *out,
                                        ts_error *err);

#endif
