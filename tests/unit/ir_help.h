/* tests/unit/ir_help.h – small graphs and assertions for the tests of src/ir. */
#ifndef TS_TEST_IR_HELP_H
#define TS_TEST_IR_HELP_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "ir/builder.h"

/* Fails with the message when status is not OK. */
static inline void check_ok(ts_status status, const ts_error *err, int line)
{
    if (status != TS_OK) fail_msg("line %d: %s: %s", line, ts_status_name(status), err->msg);
}
#define OK(call) \
    do { \
        ts_error err = {0}; \
        check_ok((call), &err, __LINE__); \
    } while (0)

static inline ts_graph *finish(ts_builder *b)
{
    ts_graph *g = NULL;
    OK(ts_builder_finish(b, &g, &err));
    return g;
}

/* The text of a graph; the caller frees it with ts_free. */
static inline char *text_of(const ts_graph *g)
{
    ts_string s = ts_string_new(64 << 20);
    ts_graph_print(g, &s);
    assert_false(s.failed);
    return s.data;
}

static inline int count_op(const ts_region *r, ts_op op)
{
    int n = 0;
    for (const ts_node *node = r->first; node; node = node->next) {
        n += node->op == op;
        if (node->body) n += count_op(node->body, op);
    }
    return n;
}

static inline int count_nodes(const ts_region *r)
{
    int n = 0;
    for (const ts_node *node = r->first; node; node = node->next)
        n += 1 + (node->body ? count_nodes(node->body) : 0);
    return n;
}

static inline ts_node *find_op(const ts_region *r, ts_op op)
{
    for (ts_node *node = r->first; node; node = node->next) {
        if (node->op == op) return node;
        ts_node *inner = node->body ? find_op(node->body, op) : NULL;
        if (inner) return inner;
    }
    return NULL;
}

/* print(parse(print(g))) must be print(g); the parsed graph is returned. */
static inline ts_graph *round_trip(const ts_graph *g, int line)
{
    ts_graph *again = NULL;
    ts_error err = {0};
    char *first = text_of(g);
    check_ok(ts_graph_parse(first, strlen(first), &again, &err), &err, line);
    char *second = text_of(again);
    assert_string_equal(first, second);
    ts_free(first);
    ts_free(second);
    return again;
}

/* A graph with every composite, forward and backward, in dtype; a repeat around some of them. */
static inline ts_graph *every_composite(ts_dtype dtype, int64_t chunk, double softcap,
                                        bool segments)
{
    ts_builder *b = ts_builder_new("composites");
    ts_dim B = {"batch", 2}, S = {"sequence", 5}, K = {"kv_heads", 2}, G = {"heads", 3},
           D = {NULL, 4}, E = {"embed", 8};
    ts_value *key = ts_input(b, "key", TS_U32, TS_DIMS({NULL, 2}));
    ts_value *x = ts_input(b, "x", dtype, TS_DIMS(B, S, E)),
             *w = ts_input(b, "w", TS_F32, TS_DIMS(E));
    ts_value *cos = ts_input(b, "cos", TS_F32, TS_DIMS(S, {NULL, 2}));
    ts_value *sin = ts_input(b, "sin", TS_F32, TS_DIMS(S, {NULL, 2}));
    ts_value *q = ts_input(b, "q", dtype, TS_DIMS(B, S, K, G, D)),
             *k = ts_input(b, "k", dtype, TS_DIMS(B, S, K, D));
    ts_value *seg = ts_input(b, "segments", TS_I32, TS_DIMS(B, S));
    ts_value *table = ts_input(b, "table", dtype, TS_DIMS({"vocab", 11}, E));
    ts_value *labels = ts_input(b, "labels", TS_I32, TS_DIMS({NULL, 10}));
    ts_value *row = ts_input(b, "row", TS_F32, TS_DIMS({NULL, 10}));
    ts_value *lr = ts_input(b, "lr", TS_F32, TS_SCALAR),
             *step = ts_input(b, "step", TS_I32, TS_SCALAR);
    ts_value *ok = ts_input(b, "ok", TS_PRED, TS_SCALAR), *arg, *lse, *xent_lse;
    ts_output(b, "bits", ts_random_bits(b, key, TS_DIMS({NULL, 3}, {NULL, 7})), NULL);

    ts_repeat *r = ts_repeat_begin(b, 3, false, &x, 1, NULL, 0, &arg, NULL);
    ts_value *h = ts_rms_norm(b, arg, w, 1e-5), *final;
    h = ts_rms_norm(b, ts_gated(b, TS_SILU, h, ts_gated(b, TS_GELU_TANH, arg, h)), w, 1e-5);
    ts_repeat_end(b, r, &h, NULL, NULL, 0, &final);
    ts_output(b, "final", final, NULL);
    ts_value *norm_in[3] = {x, w, final};
    ts_attr norm = {.rms_norm = {1e-5}}, act = {.gated = {TS_SILU}},
            gelu = {.gated = {TS_GELU_TANH}};
    ts_node *g0 = ts__op_n(b, TS_OP_rms_norm_grad, norm_in, 3, &norm);
    ts_value *gated_in[3] = {x, final, g0->out[0]};
    ts_node *g1 = ts__op_n(b, TS_OP_gated_grad, gated_in, 3, &act);
    ts_node *g2 = ts__op_n(b, TS_OP_gated_grad, gated_in, 3, &gelu);
    ts_output(b, "dw", g0->out[1], NULL);
    for (int i = 0; i < 2; i++) {
        ts_output(b, i ? "dup" : "dgate", g1->out[i], NULL);
        ts_output(b, i ? "dup2" : "dgate2", g2->out[i], NULL);
    }

    q = ts_rope(b, q, cos, sin);
    ts_attention_options o = {.causal = true, .window = 3, .softcap = softcap};
    ts_value *a = ts_attention(b, q, k, k, segments ? seg : NULL, &o, &lse);
    ts_value *grad_in[7] = {q, k, k, a, lse, a, seg};
    ts_attr attention = lse->node->attr, inverse = {.rope = {true}};
    ts_node *g3 = ts__op_n(b, TS_OP_attention_grad, grad_in, segments ? 7 : 6, &attention);
    ts_value *rope_in[3] = {g3->out[0], cos, sin};
    ts_output(b, "dq", ts__op(b, TS_OP_rope, rope_in, 3, &inverse), NULL);
    ts_output(b, "dk", g3->out[1], NULL);
    ts_output(b, "dv", g3->out[2], NULL);

    ts_value *tokens = ts_reshape(b, x, TS_DIMS({NULL, 10}, E));
    ts_value *loss = ts_linear_xent(b, tokens, table, labels, softcap, chunk, &xent_lse);
    ts_value *xent_in[6] = {tokens, table, labels, xent_lse, row, row};
    ts_attr xent = loss->node->attr;
    ts_node *g4 = ts__op_n(b, TS_OP_linear_xent_grad, xent_in, 6, &xent);
    ts_output(b, "loss", loss, NULL);
    ts_output(b, "dx", g4->out[0], NULL);
    ts_output(b, "dtable", g4->out[1], NULL);
    ts_value *part[3], *token, *assignment, *offsets;
    ts_xent_rows(b, tokens, table, labels, softcap, chunk, part);
    for (int i = 0; i < 3; i++)
        ts_output(b, i == 0 ? "most" : i == 1 ? "sum" : "target", part[i], NULL);

    ts_value *ids = ts_reshape(b, labels, TS_DIMS({NULL, 5}, {NULL, 2}));
    ts_expert_rows(b, ids, 11, &token, &assignment, &offsets);
    ts_value *experts = ts_reshape(b, table, TS_DIMS({"experts", 11}, {NULL, 1}, E));
    ts_value *routed[4] = {ts_take(b, tokens, token, -1), experts, offsets, NULL};
    routed[3] = ts_grouped_dot(b, routed[0], experts, offsets);
    ts_node *g5 = ts__op_n(b, TS_OP_grouped_dot_grad, routed, 4, NULL);
    ts_output(b, "assignment", assignment, NULL);
    ts_output(b, "routed", routed[3], NULL);
    ts_output(b, "drouted", g5->out[0], NULL);
    ts_output(b, "dexperts", g5->out[1], NULL);
    ts_adamw_options adam = {0.9, 0.95, 1e-8, 0.1};
    ts_value *out[3];
    ts_adamw(b, w, g0->out[1], w, w, lr, step, lr, ok, &adam, out);
    ts_output(b, "p", out[0], w);
    ts_output(b, "m", out[1], NULL);
    ts_output(b, "v", out[2], NULL);
    return finish(b);
}

#endif
