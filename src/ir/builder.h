/* ir/builder.h – the builder behind tessera.h, for rooms that add to a graph: grad, nn, lower. */
#ifndef TS_BUILDER_H
#define TS_BUILDER_H

#include "ir/graph.h"

struct ts_builder {
    ts_graph *graph;
    ts_region *region;                   /* where new nodes go */
    ts_node *before;                     /* insertion point; NULL appends */
    ts_error error;                      /* the first mistake; sticks */
    ts_value *poison;                    /* what calls return after it */
    ts_loc loc;
    const char *scope;
    const ts_node *primal;               /* stamped on new nodes */
    bool backward;
    ts_dtype compute;                    /* of activations and products */
    ts_remat remat;
    struct ts_layer_scope *layers;       /* set inside ts_layers (src/nn) */
    /* Finds a value for use in region when it is neither its own nor of an ancestor; grad sets it. */
    ts_value *(*foreign)(struct ts_builder *b, ts_region *region, ts_value *v);
    void *foreign_context;
};

/* A builder over an existing graph, for passes; it is not freed with ts_builder_free. */
void ts__builder_over(ts_builder *b, ts_graph *g, ts_region *region, ts_node *before);
ts_value *ts__op(ts_builder *b, ts_op op, ts_value *const *in, int n_in, const ts_attr *attr);
ts_node *ts__op_n(ts_builder *b, ts_op op, ts_value *const *in, int n_in, const ts_attr *attr);  /* NULL when poisoned */
ts_value *ts__mistake(ts_builder *b, ts_status code, const char *fmt, ...) TS_PRINTF(3, 4);
/* v as a value of b->region: itself, or captured as a const of the repeats in between. */
ts_value *ts__use(ts_builder *b, ts_value *v);
/* A new xs operand of the repeat whose region is being built; returns its argument. */
ts_value *ts__repeat_add_xs(ts_builder *b, ts_repeat *r, ts_value *outer);
ts_value *ts__zeros(ts_builder *b, const ts_type *type);

#endif
