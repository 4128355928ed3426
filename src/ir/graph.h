/* ir/graph.h – the graph: values, nodes, regions, attributes, and what every pass needs of them.
 *
 * Invariants (verify.c checks them after every pass): SSA; a node's operands are values of its own
 * region, defined before it; a region's values are reached from outside only through the repeat that
 * owns it (operands in, results out); results' types are what the shape rule says. Everything lives in
 * the graph's arena.
 *
 * A repeat's operands are carry[n_carry], xs[n_xs], consts[n_consts]; its region's arguments are in
 * the same order, xs without their leading dimension n. The region yields carries, then n_stack
 * stacked ys, then accumulated ys; the node's results are in that same order.
 */
#ifndef TS_GRAPH_H
#define TS_GRAPH_H

#include "base/base.h"

typedef enum ts_op {
#define OP(name, ...) TS_OP_##name,
#include "ir/ops.def"
#undef OP
    TS_OPS
} ts_op;

typedef enum ts_op_kind { TS_PRIMITIVE, TS_COMPOSITE, TS_COLLECTIVE } ts_op_kind;
typedef enum ts_attr_kind {
    TS_ATTR_none,
    TS_ATTR_constant,
    TS_ATTR_iota,
    TS_ATTR_convert,
    TS_ATTR_compare,
    TS_ATTR_shape,
    TS_ATTR_transpose,
    TS_ATTR_broadcast,
    TS_ATTR_slice,
    TS_ATTR_axis,
    TS_ATTR_pad,
    TS_ATTR_dynamic,
    TS_ATTR_reduce,
    TS_ATTR_top_k,
    TS_ATTR_dot,
    TS_ATTR_take,
    TS_ATTR_scatter,
    TS_ATTR_repeat,
    TS_ATTR_collective,
    TS_ATTR_rms_norm,
    TS_ATTR_rope,
    TS_ATTR_attention,
    TS_ATTR_gated,
    TS_ATTR_expert_rows,
    TS_ATTR_xent,
    TS_ATTR_adamw
} ts_attr_kind;

typedef struct ts_op_info {
    const char *name;
    int min_in, max_in, n_out; /* −1: open */
    ts_op_kind kind;
    ts_attr_kind attr;
    const char *doc;
} ts_op_info;
extern const ts_op_info ts_op_infos[TS_OPS];

typedef struct ts_dims {
    int n;
    int64_t v[TS_MAX_RANK];
} ts_dims;
typedef struct ts_shape {
    int rank;
    ts_dim dim[TS_MAX_RANK];
} ts_shape;

typedef union ts_attr {
    struct {
        double value;
        ts_dtype dtype;
        ts_shape shape;
    } constant;
    struct {
        int64_t axis;
        ts_dtype dtype;
        ts_shape shape;
    } iota;
    struct {
        ts_dtype dtype;
    } convert;
    struct {
        int dir;
    } compare; /* ts_compare_dir */
    struct {
        ts_shape shape;
    } shape;
    struct {
        ts_dims perm;
    } transpose;
    struct {
        ts_shape shape;
        ts_dims map;
    } broadcast;
    struct {
        int64_t axis, start, limit;
    } slice;
    struct {
        int64_t axis;
    } axis;
    struct {
        int64_t axis, low, high;
        double value;
    } pad;
    struct {
        int64_t axis, size;
    } dynamic;
    struct {
        ts_dims axes;
    } reduce;
    struct {
        int64_t k;
    } top_k;
    struct {
        ts_dims x_batch, y_batch, x_contract, y_contract;
        ts_dtype dtype;
    } dot;
    struct {
        int64_t no_grad_row;
    } take;
    struct {
        ts_shape rows;
        int64_t no_grad_row;
    } scatter; /* rows: rank 1 */
    struct {
        int64_t n;
        bool reverse;
        int64_t n_carry, n_xs, n_consts, n_stack, remat;
    } repeat; /* remat: ts_remat */
    struct {
        const char *axis;
        int64_t n, dim, dim2, shift;
        int reduce;
    } collective; /* reduce: 0 sum, 1 max */
    struct {
        double eps;
    } rms_norm;
    struct {
        bool inverse;
    } rope;
    struct {
        bool causal;
        int64_t window;
        double scale, softcap;
    } attention;
    struct {
        int act;
    } gated; /* ts_activation */
    struct {
        int64_t experts;
    } expert_rows;
    struct {
        int64_t chunk;
        double softcap;
    } xent;
    struct {
        double b1, b2, eps, weight_decay;
    } adamw;
} ts_attr;

typedef struct ts_node ts_node;
typedef struct ts_region ts_region;

/* The logical name of every dimension of a pinned value; NULL: it is never split. */
typedef struct ts_pin {
    const char *name[TS_MAX_RANK];
} ts_pin;

struct ts_value {
    ts_type type;
    ts_node *node; /* NULL: an argument of region */
    ts_region *region;
    int index;        /* which result or argument */
    uint32_t id;      /* unique in the graph */
    const char *name; /* inputs: their name; else NULL */
    const ts_pin *pin; /* how the partitioner lays it out; NULL: as its op's operands say */
    void *user;       /* scratch of one pass */
};

typedef struct ts_loc {
    const char *file;
    int line;
} ts_loc;

struct ts_node {
    ts_op op;
    int n_in, n_out;
    ts_value **in, **out;
    ts_attr attr;
    ts_region *region; /* where it stands */
    ts_region *body;   /* repeat only */
    ts_node *prev, *next;
    ts_loc loc;            /* line of the model */
    const char *scope;     /* "layers.3.q_proj" */
    const ts_node *primal; /* made by a VJP or remat: the forward node it comes from */
    bool backward;         /* belongs to the backward half */
    /* [n_in + n_out] where a VJP made the node of its primal: which of the primal's operands, then results, the operand
     * or result is, stands for, or is the cotangent of; −1: none. NULL with a primal: the primal's copy (remat), of the
     * same op and attributes. Nothing is made like a repeat or barrier: their operands come and go. */
    const int8_t *like;
    void *user;
};

struct ts_region {
    ts_graph *graph;
    ts_region *parent; /* NULL: the graph's own */
    ts_node *owner;    /* the repeat; NULL at the top or while it is being built */
    ts_value **arg;
    int n_arg, cap_arg;
    ts_node *first, *last;
    ts_value **result; /* what it yields; the graph's outputs at the top */
    int n_result, cap_result;
    void *user;
};

/* A trainable tensor and its place in a published file. */
typedef struct ts_param_info {
    const char
        *name; /* "model.layers.{0..30:2}.mlp.up_proj.weight" where stacked: first..last:step */
    ts_value *value;        /* the graph's input, [layers, …] where stacked */
    int first, step, count; /* layers of the stack: first, first + step, …; count 0: not stacked */
    int file_rank;          /* shape of one layer's tensor in a file */
    int64_t file_dim[TS_MAX_RANK];
    double init; /* standard deviation, or TS_INIT_* */
} ts_param_info;

typedef struct ts_output_info {
    const char *name;
    int replaces; /* index of the input whose buffer it takes; −1 none */
} ts_output_info;

enum { TS_MAX_AXES = 8 };

struct ts_graph {
    ts_arena *arena;
    const char *name;
    /* The mesh of a program that many devices run, major axis first; n_axis 0: one device. Device number = row-major
     * index of its coordinates. A collective names one of these axes. */
    struct {
        const char *name;
        int64_t size;
    } axis[TS_MAX_AXES];
    int n_axis;
    ts_region *top;         /* arguments: inputs; results: outputs */
    ts_output_info *output; /* [top->n_result] */
    int cap_output;
    ts_param_info *param;
    int n_param, cap_param;
    uint32_t next_id;
};

/* ---- making (graph.c) ------------------------------------------------------------------------ */

ts_graph *ts__graph_new(const char *name);
/* A copy with an arena of its own; `user` fields are not copied. */
ts_status ts_graph_clone(const ts_graph *g, ts_graph **out, ts_error *err);
/* Makes room for element n in an array of the arena (array: address of its pointer). */
bool ts__arena_grow(ts_arena *a, void *array, int *capacity, int n, size_t element);
ts_region *ts__region_new(ts_graph *g, ts_region *parent);
ts_value *ts__region_add_arg(ts_region *r, const ts_type *type, const char *name);
bool ts__region_add_result(ts_region *r, ts_value *v);
/* Appends (before = NULL) or inserts a node; computes the results' types by the shape rule. On a bad
 * shape returns NULL and fills err. body: repeat only, complete. */
ts_node *ts__node_new(ts_region *r, ts_node *before, ts_op op, ts_value *const *in, int n_in,
                      const ts_attr *attr, ts_region *body, ts_error *err);
/* Adds one more result to a repeat (type: the result's own, stacked already) at position index. */
ts_value *ts__repeat_add_result(ts_node *repeat, int index, const ts_type *type);
void ts__node_remove(ts_node *n);
/* A copy of a region and those below, with the same arguments and results; owner is not set. Uses the
 * values' user pointers. NULL when memory is out. */
ts_region *ts__region_clone(const ts_region *from, ts_region *parent, ts_error *err);
void ts__replace_uses(ts_region *r, ts_value *from, ts_value *to); /* both values of r */

/* ---- shape rules (shape.c) ------------------------------------------------------------------- */

/* Types of the results of a node with these operands. out has room for *n_out ≤ max. */
ts_status ts__infer(ts_op op, ts_value *const *in, int n_in, const ts_attr *attr,
                    const ts_region *body, ts_type *out, int max, int *n_out, ts_error *err);
int64_t ts_type_elements(const ts_type *t); /* product of sizes; the builder refuses overflow */
size_t ts_type_bytes(const ts_type *t);
bool ts_type_same(const ts_type *a, const ts_type *b); /* dtype and sizes; names do not count */
ts_type ts_type_make(ts_dtype dtype, const ts_dim *dims, int rank);
/* "f32[batch:2,embed:8]" into buf (at least 400 bytes); returns buf. */
char *ts_type_text(const ts_type *t, char *buf, size_t n);
/* Refuses ranks outside 0 … TS_MAX_RANK, negative sizes and more than TS_MAX_ELEMENTS; what starts the message. */
#define TS_MAX_ELEMENTS ((int64_t)1 << 48)
ts_status ts__type_check(const ts_type *t, const char *what, ts_error *err);
/* The dtypes that an op claims, bit 1 << dtype: of its first operand (select: x; sources: the result). */
unsigned ts_op_dtypes(ts_op op);

/* ---- verifier, text, passes ------------------------------------------------------------------ */

ts_status ts_graph_verify(const ts_graph *g, ts_error *err);
void ts_graph_print(const ts_graph *g, ts_string *out);
/* Inverse of print; DATA_LOSS with line and column. Parameters' places in files survive as well. */
ts_status ts_graph_parse(const char *text, size_t n, ts_graph **out, ts_error *err);
/* Removes nodes without a used result, unused results and arguments of repeats. */
ts_status ts_graph_dce(ts_graph *g, ts_error *err);
/* Merges equal nodes of one region; never across or through a barrier, never backward with forward
 * recomputation. */
ts_status ts_graph_cse(ts_graph *g, ts_error *err);
/* Replaces every composite for which keep(op) is false by primitives. */
ts_status ts_graph_lower(ts_graph *g, bool (*keep)(const ts_node *n), ts_error *err);
int ts_graph_input_index(const ts_graph *g, const char *name); /* −1 when there is none */
int ts_graph_output_index(const ts_graph *g, const char *name);

#endif
