/* xla/stablehlo_collective.c – collectives over one axis of the graph's mesh.
 *
 * A device is a replica; its number is the row-major index of its coordinates. The groups of an axis are the
 * devices that differ in that coordinate alone, in its order, so an axis is known by the devices a step apart
 * (stride) and how many there are (n). No channel handles and no global device ids: with replicas alone these are
 * not needed, and with them some plugins fail. An axis of one device costs nothing.
 */
#include <inttypes.h>

#include "xla/stablehlo_emit.h"

typedef struct axis {
    int64_t n, stride, devices;
} axis;

/* False: nothing to do, the axis has one device, or there is no such axis (e->status). */
static bool find_axis(ts_shlo *e, const ts_node *n, axis *a)
{
    const ts_graph *g = e->g;
    *a = (axis){.n = n->attr.collective.n, .stride = 1, .devices = 1};
    if (a->n == 1) return false;
    bool found = false;
    for (int i = 0; i < g->n_axis; i++) {
        a->devices *= g->axis[i].size;
        if (found) a->stride *= g->axis[i].size;
        else found = strcmp(g->axis[i].name, n->attr.collective.axis) == 0;
    }
    if (!found)
        ts__shlo_fail(e, TS_FAILED_PRECONDITION,
                      "it runs over axis \"%s\" of %" PRId64 " devices, but the graph has no mesh with such an "
                      "axis; partition it for one",
                      n->attr.collective.axis, a->n);
    return found;
}

/* "[[0, 4], [1, 5]]": the device of coordinate c in the group whose device 0 is `first`. */
static int64_t device(const axis *a, int64_t group, int64_t c)
{
    return group / a->stride * a->stride * a->n + group % a->stride + c * a->stride;
}

/* dense<[[0, 4], …]> : tensor<4x2xi64> */
static void put_groups(ts_shlo *e, const axis *a)
{
    int64_t groups = a->devices / a->n;
    ts__shlo_put(e, "replica_groups = dense<[");
    for (int64_t i = 0; i < groups && !e->out->failed; i++) {
        ts__shlo_put(e, i ? ", [" : "[");
        for (int64_t c = 0; c < a->n; c++)
            ts__shlo_put(e, "$s$i", c ? ", " : "", device(a, i, c));
        ts__shlo_put(e, "]");
    }
    ts__shlo_put(e, "]> : tensor<$ix$ixi64>", groups, a->n);
}

/* Device i of each group sends to i + shift. */
static void put_pairs(ts_shlo *e, const axis *a, int64_t shift)
{
    int64_t groups = a->devices / a->n;
    shift = (shift % a->n + a->n) % a->n;
    ts__shlo_put(e, "source_target_pairs = dense<[");
    for (int64_t i = 0; i < groups && !e->out->failed; i++)
        for (int64_t c = 0; c < a->n; c++)
            ts__shlo_put(e, "$s[$i, $i]", i || c ? ", " : "", device(a, i, c),
                         device(a, i, (c + shift) % a->n));
    ts__shlo_put(e, "]> : tensor<$ix2xi64>", a->devices);
}

/* ---- the ops --------------------------------------------------------------------------------- */

/* One device: the operand is the result. */
static void same(ts_shlo *e, const ts_node *n)
{
    if (e->status == TS_OK) ts__shlo_set(e, n, 0, ts__shlo_in(e, n, 0));
}

void ts__stablehlo_axis_index(ts_shlo *e, const ts_node *n)
{
    const ts_type t = ts_type_make(TS_U32, NULL, 0);
    axis a;
    if (!find_axis(e, n, &a)) {
        if (e->status == TS_OK) ts__shlo_set(e, n, 0, ts__shlo_scalar(e, 0, TS_I32));
        return;
    }
    ts_shlo_value v = ts__shlo_op(e, &t, "replica_id : $t", &t);
    if (a.stride > 1)
        v = ts__shlo_binary(e, "divide", v, ts__shlo_scalar(e, (double)a.stride, TS_U32));
    if (a.stride * a.n < a.devices)
        v = ts__shlo_binary(e, "remainder", v, ts__shlo_scalar(e, (double)a.n, TS_U32));
    ts__shlo_set(e, n, 0, ts__shlo_convert(e, v, TS_I32));
}

void ts__stablehlo_all_reduce(ts_shlo *e, const ts_node *n)
{
    ts_shlo_value x = ts__shlo_in(e, n, 0), out;
    axis a;
    if (!find_axis(e, n, &a)) {
        same(e, n);
        return;
    }
    ts__shlo_begin(e, &x.type, 1, &out);
    ts__shlo_put(e, "\"stablehlo.all_reduce\"($v) <{", &x);
    put_groups(e, &a);
    ts__shlo_put(e, "}>");
    ts__shlo_combiner(e, n->attr.collective.reduce ? "maximum" : "add", x.type.dtype);
    ts__shlo_put(e, " : ($t) -> $t", &x.type, &x.type);
    ts__shlo_end(e);
    ts__shlo_set(e, n, 0, out);
}

void ts__stablehlo_all_gather(ts_shlo *e, const ts_node *n)
{
    ts_shlo_value x = ts__shlo_in(e, n, 0), out;
    axis a;
    if (!find_axis(e, n, &a)) {
        same(e, n);
        return;
    }
    ts__shlo_begin(e, &n->out[0]->type, 1, &out);
    ts__shlo_put(e, "\"stablehlo.all_gather\"($v) <{all_gather_dim = $i : i64, ", &x,
                 n->attr.collective.dim);
    put_groups(e, &a);
    ts__shlo_put(e, "}> : ($t) -> $t", &x.type, &out.type);
    ts__shlo_end(e);
    ts__shlo_set(e, n, 0, out);
}

void ts__stablehlo_reduce_scatter(ts_shlo *e, const ts_node *n)
{
    ts_shlo_value x = ts__shlo_in(e, n, 0), out;
    axis a;
    if (!find_axis(e, n, &a)) {
        same(e, n);
        return;
    }
    ts__shlo_begin(e, &n->out[0]->type, 1, &out);
    ts__shlo_put(e, "\"stablehlo.reduce_scatter\"($v) <{", &x);
    put_groups(e, &a);
    ts__shlo_put(e, ", scatter_dimension = $i : i64}>", n->attr.collective.dim);
    ts__shlo_combiner(e, "add", x.type.dtype);
    ts__shlo_put(e, " : ($t) -> $t", &x.type, &out.type);
    ts__shlo_end(e);
    ts__shlo_set(e, n, 0, out);
}

void ts__stablehlo_all_to_all(ts_shlo *e, const ts_node *n)
{
    ts_shlo_value x = ts__shlo_in(e, n, 0), out;
    axis a;
    if (!find_axis(e, n, &a)) {
        same(e, n);
        return;
    }
    ts__shlo_begin(e, &n->out[0]->type, 1, &out);
    ts__shlo_put(e, "\"stablehlo.all_to_all\"($v) <{concat_dimension = $i : i64, ", &x,
                 n->attr.collective.dim2);
    put_groups(e, &a);
    ts__shlo_put(e, ", split_count = $i : i64, split_dimension = $i : i64}> : ($t) -> $t", a.n,
                 n->attr.collective.dim, &x.type, &out.type);
    ts__shlo_end(e);
    ts__shlo_set(e, n, 0, out);
}

void ts__stablehlo_collective_permute(ts_shlo *e, const ts_node *n)
{
    ts_shlo_value x = ts__shlo_in(e, n, 0), out;
    axis a;
    if (!find_axis(e, n, &a)) {
        same(e, n);
        return;
    }
    ts__shlo_begin(e, &x.type, 1, &out);
    ts__shlo_put(e, "\"stablehlo.collective_permute\"($v) <{", &x);
    put_pairs(e, &a, n->attr.collective.shift);
    ts__shlo_put(e, "}> : ($t) -> $t", &x.type, &x.type);
    ts__shlo_end(e);
    ts__shlo_set(e, n, 0, out);
}
