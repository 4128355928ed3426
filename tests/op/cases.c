/* tests/op/cases.c – the op test table, and the graphs of the few cases that are more than one
 * node. */
#include <math.h>

#include "harness.h"

static int attention_inputs(const test_case *c)
{
    int n = 0;
    while (n < TEST_INPUTS && c->in[n].used) n++;
    return n;
}

/* q, k, v, do, segments? → dq, dk, dv. */
static int build_attention_grad(ts_builder *b, const test_case *c, ts_value **in, ts_value **out)
{
    const bool segments = attention_inputs(c) > 4;
    ts_value *forward[4] = {in[0], in[1], in[2], in[4]};
    const ts_node *a = ts__op_n(b, TS_OP_attention, forward, segments ? 4 : 3, &c->attr);
    if (!a) return 0;
    ts_value *back[7] = {in[0], in[1], in[2], a->out[0], a->out[1], in[3], in[4]};
    const ts_node *g = ts__op_n(b, TS_OP_attention_grad, back, segments ? 7 : 6, &c->attr);
    for (int i = 0; g && i < 3; i++) out[i] = g->out[i];
    return g ? 3 : 0;
}

/* x, w, labels, dloss, dlse → dx, dw. */
static int build_linear_xent_grad(ts_builder *b, const test_case *c, ts_value **in, ts_value **out)
{
    const ts_node *f = ts__op_n(b, TS_OP_linear_xent, in, 3, &c->attr);
    if (!f) return 0;
    ts_value *back[6] = {in[0], in[1], in[2], f->out[1], in[3], in[4]};
    const ts_node *g = ts__op_n(b, TS_OP_linear_xent_grad, back, 6, &c->attr);
    for (int i = 0; g && i < 2; i++) out[i] = g->out[i];
    return g ? 2 : 0;
}

/* x, w, ids, dy? → y, or dx and dw; the offsets are those of ids in order. */
int build_grouped(ts_builder *b, const test_case *c, ts_value **in, ts_value **out)
{
    const bool back = c->op == TS_OP_grouped_dot_grad;
    ts_value *token, *assignment, *offsets;
    ts_expert_rows(b, in[2], c->in[1].dim.v[0], &token, &assignment, &offsets);
    ts_value *of[4] = {in[0], in[1], offsets, in[3]};
    const ts_node *n = ts__op_n(b, c->op, of, back ? 4 : 3, NULL);
    for (int i = 0; n && i < n->n_out; i++) out[i] = n->out[i];
    return n ? n->n_out : 0;
}

/* h = tanh(h·w + x_i); yields h stacked and h·x_i summed; w [3] comes from outside. */
static int build_scan(ts_builder *b, const test_case *c, ts_value **in, ts_value **out)
{
    ts_value *h, *x;
    (void)c;
    ts_repeat *r = ts_repeat_begin(b, 4, false, &in[0], 1, &in[1], 1, &h, &x);
    ts_value *w = ts_broadcast(b, in[2], TS_DIMS({NULL, 2}, {NULL, 3}), TS_INTS(1));
    ts_value *next = ts_tanh(b, ts_add(b, ts_mul(b, h, w), x));
    ts_value *ys[2] = {next, ts_mul(b, next, x)};
    ts_repeat_end(b, r, &next, ys, (const bool[]){false, true}, 2, out);
    return 3;
}

/* Integers through a reversed repeat: a counter, the rows seen, their sum. */
static int build_counts(ts_builder *b, const test_case *c, ts_value **in, ts_value **out)
{
    ts_value *zero = ts_scalar(b, 0, TS_I32), *n, *x;
    (void)c;
    ts_repeat *r = ts_repeat_begin(b, 4, true, &zero, 1, &in[1], 1, &n, &x);
    ts_value *next = ts_add(b, n, ts_scalar(b, 1, TS_I32));
    ts_value *ys[2] = {ts_mul(b, x, next), x};
    ts_repeat_end(b, r, &next, ys, (const bool[]){false, true}, 2, out);
    return 3;
}

const test_case test_cases[] = {
#include "cases_elementwise.def"
#include "cases_shape.def"
#include "cases_fused.def"
};
const int test_case_count = (int)(sizeof test_cases / sizeof test_cases[0]);
