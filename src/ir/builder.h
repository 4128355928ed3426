/* ir/builder.h – the builder behind tessera.h, for rooms that add to a graph: grad, nn, lower. */
#ifndef TS_BUILDER_H
#define TS_BUILDER_H

#include "ir/graph.h"

/* Output of layers first, first + step, …: [count, …], or […] of layer first alone when count is 0. */
typedef struct ts_hidden {
    ts_value *value;
    int first, step, count;
} ts_hidden;

typedef struct ts_scope {
    const char *path;
    struct ts_scope *up;
} ts_scope;

struct ts_builder {
    ts_graph *graph;
    ts_region *region; /* where new nodes go */
    ts_node *before;   /* insertion point; NULL appends */
    ts_error error;    /* the first mistake; sticks */
    ts_value *poison;  /* what calls return after it */
    ts_loc loc;
    ts_scope *scope;       /* NULL: none */
    const ts_node *primal; /* stamped on new nodes */
    bool backward;
    ts_dtype compute; /* of activations and products */
    ts_remat remat;
    struct ts_layer_scope *layers;   /* set inside ts_layers (src/nn) */
    bool unroll_layers, keep_hidden; /* ts_layers: no repeats; collect every layer's output */
    struct ts_hidden *hidden;        /* what keep_hidden collected, in layer order */
    int n_hidden, cap_hidden;
};

/* A repeat while its body is being built; region->user points to it. Operands are values of outer. */
struct ts_repeat {
    ts_region *region, *outer;
    int64_t n;
    bool reverse;
    ts_remat remat;     /* how a gradient keeps the body's values */
    ts_value **operand; /* [region->n_arg], by argument; NULL: filled in before end */
    uint8_t *role;      /* [region->n_arg]: 0 carry, 1 xs, 2 const */
    int capacity;
    ts_node *saved_before;
    /* Values of the region primal may be used in the body: foreign says what stands for one. */
    const ts_region *primal;
    ts_value *(*foreign)(ts_builder *b, ts_repeat *r, ts_value *v);
    void *context;
};

/* A builder over an existing graph, for passes; it is not freed with ts_builder_free. */
void ts__builder_over(ts_builder *b, ts_graph *g, ts_region *region, ts_node *before);
ts_value *ts__op(ts_builder *b, ts_op op, ts_value *const *in, int n_in, const ts_attr *attr);
ts_node *ts__op_n(ts_builder *b, ts_op op, ts_value *const *in, int n_in,
                  const ts_attr *attr); /* NULL when poisoned */
ts_value *ts__mistake(ts_builder *b, ts_status code, const char *fmt, ...) TS_PRINTF(3, 4);
/* v as a value of b->region: itself, or captured as a const of the repeats in between. */
ts_value *ts__use(ts_builder *b, ts_value *v);
/* v as a value of region, which the builder need not stand in. */
ts_value *ts__use_in(ts_builder *b, ts_region *region, ts_value *v);
/* A new argument of the repeat being built, in role 1 (xs: type without the leading n) or 2 (const). outer may
 * be NULL and set later in r->operand[arg->index]; the same outer value gives the same argument. */
ts_value *ts__repeat_add(ts_builder *b, ts_repeat *r, int role, ts_value *outer,
                         const ts_type *type);
/* What a cross-entropy with a split vocabulary does around its collectives (build_xent.c). */
ts_value *ts__xent_rescale(ts_builder *b, ts_value *const part[3], ts_value *most);
void ts__xent_finish(ts_builder *b, ts_value *const part[3], ts_value *labels, int64_t classes,
                     ts_value **loss, ts_value **lse);
ts_value *ts__xent_shard_dlse(ts_builder *b, ts_value *labels, int64_t classes, ts_value *local,
                              int64_t V, ts_value *dloss, ts_value *dlse);
ts_value *ts__zeros(ts_builder *b, const ts_type *type);
/* Pins v: a logical name for each of its dimensions, NULL = never split. The names must live as long as the graph (its
 * arena, or literals); the pin itself is copied. Returns v. */
ts_value *ts__pin(ts_builder *b, ts_value *v, const char *const *name);

#endif
