/* mesh/partition_internal.h – what tests may set of a partition, and what the partitioner's files share. */
#ifndef TS_PARTITION_INTERNAL_H
#define TS_PARTITION_INTERNAL_H

#include "ir/builder.h"
#include "mesh/factors.h"
#include "mesh/partition.h"

/* Which axes split each factor of a node, major → minor. */
typedef struct ts_assignment {
    uint8_t n[TS_MAX_FACTORS], axis[TS_MAX_FACTORS][TS_MAX_AXES];
} ts_assignment;

/* The proof's hold on one op: inputs laid out at random, partial sums included, and a node's assignment given. */
typedef struct ts_partition_hooks {
    const ts_spec *in_spec;      /* [inputs]; NULL: as the rules say */
    const ts_node *node;         /* gets exactly this assignment, where partial sums that pass leave its axes free */
    const ts_assignment *force;
    const ts_factors *row;       /* NULL: the node's own; a wrong one shows that the proof sees it */
    bool keep_out;               /* outputs stay as they come, partial ones too: ts_partition.out says how */
    bool *passed;                /* did a partial sum pass through the node? NULL: not asked */
} ts_partition_hooks;

TS_MUST_CHECK ts_status ts__partition_with(const ts_graph *g, const ts_partition_options *o,
                                           const ts_partition_hooks *hooks, ts_partition **out,
                                           ts_error *err);

/* ---- the partitioner's state ----------------------------------------------------------------- */

/* How a value of the global graph lies. A parameter (or its conversion) is stored as spec and seen by its users as
 * use: the gather in between stands where it is used. A free value is the same everywhere and is made anew in any
 * layout. */
typedef struct ts_placement {
    ts_spec spec, use;
    ts_value *local;     /* of the partitioned graph; NULL: free, or in no program (its node was pruned) */
    const ts_node *made; /* of a free value: what makes it */
    bool known, param, free;
} ts_placement;

/* Reshards are shared by the uses of one value within a scope. */
typedef struct ts_reshard_scope {
    const ts_region *region; /* global */
    bool backward;
    int part; /* of the top level: 0, or the embedding's or the head's */
} ts_reshard_scope;

typedef struct ts_reshard_memo {
    ts_spec to;
    ts_reshard_scope scope;
    ts_value *local;
    struct ts_reshard_memo *next;
} ts_reshard_memo;

typedef struct ts_index_memo { /* a device's index along axes, times a number: i32 scalars */
    ts_reshard_scope scope;
    uint8_t n, axis[TS_MAX_AXES];
    int64_t scale;
    ts_value *local;
    struct ts_index_memo *next;
} ts_index_memo;

typedef struct ts_partitioner {
    const ts_graph *g;
    const ts_mesh *mesh;
    const ts_axis_rules *rules;
    const ts_partition_options *o;
    const ts_partition_hooks *hooks; /* NULL: none */
    ts_builder b;                    /* of the partitioned graph */
    ts_arena *arena;                 /* of what is below */
    ts_placement *place;             /* [g->next_id], by a value's id */
    ts_assignment **assigned;        /* by the id of a node's first result */
    const ts_spec **want;            /* a gradient: the layout of its parameter; NULL: none */
    bool *small;                     /* a gradient that is summed packed with others */
    ts_reshard_memo **memo;
    ts_index_memo *index;
    ts_reshard_scope scope;
    int bodies;         /* of loops that the partitioner made itself */
    uint16_t lost;      /* axes that some dimension did not take */
    char fallback[400]; /* which, for people */
} ts_partitioner;

/* reshard.c: a value from one layout to another, within p->scope. */
ts_value *ts__reshard(ts_partitioner *p, const ts_value *v, const ts_spec *to);
ts_value *ts__reshard_local(ts_partitioner *p, ts_value *x, ts_spec cur, const ts_spec *to);
/* This device's index along axes (major first) × scale, i32 scalar. */
ts_value *ts__mesh_index(ts_partitioner *p, const uint8_t *axis, int n, int64_t scale);
ts_value *ts__collective(ts_builder *b, const ts_mesh *m, ts_op op, ts_value *x, int axis, int dim,
                         int dim2, int reduce);
/* All small gradients of v's region that await the same sums: one all_reduce an axis. */
void ts__reduce_packed(ts_partitioner *p, const ts_value *v);
/* Bytes that a device sends to bring a value of this type from cur to to (ring model). */
double ts__reshard_bytes(const ts_mesh *m, const ts_type *global, ts_spec cur, const ts_spec *to);

/* assign.c */
const ts_assignment *ts__assign(ts_partitioner *p, const ts_node *n, const ts_factors *f, uint16_t keep);
uint16_t ts__passing(const ts_partitioner *p, const ts_node *n, const ts_factors *f);
/* The layout of operand or result value v (its row: map) under an assignment. */
ts_spec ts__assigned_spec(const ts_value *v, const int8_t (*map)[TS_ROW_MERGED], const ts_assignment *a);
/* Axes of the factors that a value with this row lacks. */
uint16_t ts__lacking(const ts_factors *f, const ts_assignment *a, const int8_t (*map)[TS_ROW_MERGED], int rank);
/* Places the results of a node that is in no program, so that its assignment is known. */
void ts__place_pruned(ts_partitioner *p, const ts_node *n);

/* local_op.c: the node's operation on local operands. layout [n_out]: of the results. */
void ts__emit_local(ts_partitioner *p, const ts_node *n, const ts_factors *f, const ts_assignment *a,
                    ts_value *const *in, ts_value **out, ts_spec *layout);
/* A free value in a layout. */
ts_value *ts__emit_free(ts_partitioner *p, const ts_node *made, const ts_spec *spec);

/* partition_head.c: a large head, its weights gathered in pieces of the vocabulary. pieces 1: it is not large. in[1] is
 * the head as it is stored. */
int64_t ts__head_pieces(ts_partitioner *p, const ts_node *n);
void ts__head_rows(ts_partitioner *p, const ts_node *n, const ts_assignment *a, int factor, int64_t pieces,
                   ts_value *const *in, ts_value *part[3]);
/* dw: the layout that the gradient of the whole would have; changed to the one it has. */
void ts__head_grad(ts_partitioner *p, const ts_node *n, const ts_assignment *a, int factor, int64_t pieces,
                   ts_spec *dw, ts_value *const *in, ts_value *out[2]);

/* partition.c */
void ts__partition_region(ts_partitioner *p, const ts_region *r);
void *ts__partition_alloc(ts_partitioner *p, size_t bytes);
ts_placement *ts__placement(ts_partitioner *p, const ts_value *v);

/* partition_inputs.c */
void ts__partition_inputs(ts_partitioner *p, ts_partition *out); /* makes them, and what is wanted of gradients */
void ts__partition_params(ts_partitioner *p);
void ts__partition_share(ts_partitioner *p, ts_partition *out); /* refuses too much that stays whole */
void ts__partition_warn(const ts_partitioner *p, const ts_partition *out); /* once, of all that did not divide */
/* The layout that v's pin asks for (whole without one); what it cannot have is remembered for the warning. */
ts_spec ts__pinned_spec(ts_partitioner *p, const ts_value *v);

/* partition_repeat.c */
ts_spec ts__spec_inner(const ts_spec *s); /* of one iteration: without the leading dimension */
void ts__partition_repeat(ts_partitioner *p, const ts_node *n);

#endif
