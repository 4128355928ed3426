/* cpu/view.c – which nodes cost nothing: their results are their operands' bytes under another type.
 *
 * True only when the result is a contiguous run of the operand's row-major bytes, unchanged. The plan
 * then gives the result the operand's place, so such a node is no instruction.
 * Not here: xs arguments and stacked results of repeat, which emit.c places with a stride.
 */
#include "cpu/code.h"

static bool same_elements(const ts_node *n)
{
    return ts_type_elements(&n->in[0]->type) == ts_type_elements(&n->out[0]->type);
}

/* A slice of the outermost dimension that is not 1 is one run of bytes. */
static bool slice_view(const ts_node *n, int64_t *offset)
{
    const ts_type *t = &n->in[0]->type;
    int64_t axis = n->attr.slice.axis, inner = (int64_t)ts_dtype_bytes(t->dtype);
    for (int i = 0; i < axis; i++)
        if (t->dim[i].size != 1) return same_elements(n);
    for (int i = (int)axis + 1; i < t->rank; i++) inner *= t->dim[i].size;
    *offset = n->attr.slice.start * inner;
    return true;
}

/* Moves only dimensions of size 1. */
static bool transpose_view(const ts_node *n)
{
    int64_t last = -1;
    for (int i = 0; i < n->attr.transpose.perm.n; i++) {
        int64_t from = n->attr.transpose.perm.v[i];
        if (n->in[0]->type.dim[from].size == 1) continue;
        if (from < last) return false;
        last = from;
    }
    return true;
}

/* Repeats nothing and keeps the order. */
static bool broadcast_view(const ts_node *n)
{
    const ts_dims *map = &n->attr.broadcast.map;
    int64_t last = -1;
    for (int i = 0; i < map->n; i++) {
        if (n->in[0]->type.dim[i].size == 1) continue;
        if (map->v[i] < last) return false;
        last = map->v[i];
    }
    return same_elements(n);
}

bool ts__cpu_view(const ts_node *n, int64_t *offset_bytes)
{
    *offset_bytes = 0;
    switch (n->op) {
    case TS_OP_reshape:
    case TS_OP_barrier: return true;
    case TS_OP_convert: return n->in[0]->type.dtype == n->out[0]->type.dtype;
    case TS_OP_slice: return slice_view(n, offset_bytes);
    case TS_OP_transpose: return transpose_view(n);
    case TS_OP_broadcast: return broadcast_view(n);
    case TS_OP_pad:
    case TS_OP_dynamic_slice: return same_elements(n);
    case TS_OP_concat:
    case TS_OP_add_n: return n->n_in == 1;
    case TS_OP_all_reduce:
    case TS_OP_all_gather:
    case TS_OP_reduce_scatter:
    case TS_OP_all_to_all:
    case TS_OP_collective_permute: return n->attr.collective.n == 1;
    default: return false;
    }
}
