/* mesh/partition_internal.h – what tests may set of a partition, and what the partitioner's files share. */
#ifndef TS_PARTITION_INTERNAL_H
#define TS_PARTITION_INTERNAL_H

#include "mesh/factors.h"
#include "mesh/partition.h"

/* Which axes split each factor of a node, major → minor. */
typedef struct ts_assignment {
    uint8_t n[TS_MAX_FACTORS], axis[TS_MAX_FACTORS][TS_MAX_AXES];
} ts_assignment;

/* The proof's hold on one op: inputs laid out at random, partial sums included, and a node's assignment given. */
typedef struct ts_partition_hooks {
    const ts_spec *in_spec;      /* [inputs]; NULL: as the rules say */
    const ts_node *node;         /* gets exactly this assignment, as far as partial sums that pass leave its axes free */
    const ts_assignment *force;
    bool keep_out;               /* outputs stay as they come, partial ones too: ts_partition.out says how */
    bool *passed;                /* did a partial sum pass through the node? NULL: not asked */
} ts_partition_hooks;

TS_MUST_CHECK ts_status ts__partition_with(const ts_graph *g, const ts_partition_options *o,
                                           const ts_partition_hooks *hooks, ts_partition **out,
                                           ts_error *err);

#endif
