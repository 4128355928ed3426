/* tests/op/cases_mesh.c – the table of cases_mesh.def, and the graphs of its lines that are more than
 * one node. */
#include "lockstep.h"

static ts_attr shaped(const test_case *c, ts_dtype t)
{
    ts_attr a = c->attr;
    ts_shape s = {.rank = c->to.n};
    for (int d = 0; d < c->to.n; d++) s.dim[d].size = c->to.v[d];
    if (c->op == TS_OP_constant) a.constant.shape = s, a.constant.dtype = t;
    if (c->op == TS_OP_iota) a.iota.shape = s, a.iota.dtype = t;
    if (c->op == TS_OP_broadcast) a.broadcast.shape = s;
    return a;
}

/* x + what is the same on every device. */
static int build_source(ts_builder *b, const test_case *c, ts_value **in, ts_value **out)
{
    const ts_attr a = shaped(c, in[0]->type.dtype);
    const ts_node *n = ts__op_n(b, c->op, in + 1, ts_op_infos[c->op].max_in, &a);
    if (!n) return 0;
    out[0] = ts_add(b, in[0], n->out[0]);
    return 1;
}

static int build_barrier(ts_builder *b, const test_case *c, ts_value **in, ts_value **out)
{
    (void)c;
    ts_barrier(b, in, 3, out);
    out[0] = ts_abs(b, out[0]);
    return 3;
}

/* h = tanh(h·w + x_i); yields h stacked and h·x_i summed. */
static int build_scan(ts_builder *b, const test_case *c, ts_value **in, ts_value **out)
{
    ts_value *h, *x;
    (void)c;
    ts_repeat *r = ts_repeat_begin(b, 3, false, &in[0], 1, &in[1], 1, &h, &x);
    ts_value *w = ts_broadcast(b, in[2], TS_DIMS({NULL, 4}, {NULL, 8}), TS_INTS(1));
    ts_value *scaled = ts_mul(b, h, w), *next = ts_tanh(b, ts_add(b, scaled, x));
    ts_value *ys[2] = {next, ts_div(b, next, ts_exp(b, x))};
    ts_repeat_end(b, r, &next, ys, (const bool[]){false, true}, 2, out);
    return 3;
}

#define MESH(name, f, ...) \
    {f, TS_OP_##name, NULL, {.text = #name ", " #__VA_ARGS__, .op = TS_OP_##name, __VA_ARGS__}},
#define MESH_OF(name, f, by, builder, ...) \
    {f, by, builder, {.text = #name ", " #__VA_ARGS__, .op = TS_OP_##name, __VA_ARGS__}},
const mesh_line mesh_lines[] = {
#include "cases_mesh.def"
};
const int mesh_line_count = (int)(sizeof mesh_lines / sizeof mesh_lines[0]);
