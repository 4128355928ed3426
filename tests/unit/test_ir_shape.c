/* test_ir_shape.c – shape rules: one line a case, the types that come out or the message that does.
 */
#include "unit/ir_help.h"

#include "ir/attrs.h"

/* Types are written as in graph texts: "f32[2,3]". */
typedef struct shape_case {
    ts_op op;
    const char *in[9];
    ts_attr attr;
    const char *out[3]; /* what comes out, names included … */
    const char *says;   /* … or a part of the message */
} shape_case;

/* clang-format off: the macros are initialisers, a case is a line. */
#define I(...) {(int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), {__VA_ARGS__}}
#define IN(...) {__VA_ARGS__}
#define OUT(...) .out = {__VA_ARGS__}
#define SAYS(text) .says = text
#define DOT(xb, yb, xc, yc, t) {.dot = {xb, yb, xc, yc, t}}
#define NO {NULL}
#define NONE {.axis = {0}}
#define NIL {0, {0}}

static const shape_case cases[] = {
    /* sources */
    {TS_OP_constant, NO, {.constant = {1, TS_BF16, {2, {{"a", 2}, {NULL, 0}}}}},
     OUT("bf16[a:2,0]")},
    {TS_OP_constant, NO, {.constant = {1, TS_F32, {2, {{NULL, -1}, {NULL, 0}}}}},
     SAYS("is negative")},
    {TS_OP_constant, NO, {.constant = {1, TS_F32, {2, {{NULL, 1 << 30}, {NULL, 1 << 30}}}}},
     SAYS("more than 2^48")},
    {TS_OP_constant, NO, {.constant = {1, TS_F32, {3, {{NULL, 0}, {NULL, INT64_MAX}, {NULL, 2}}}}},
     SAYS("2^48")},
    {TS_OP_constant, NO, {.constant = {1, TS_F32, {7, {{NULL, 0}}}}}, SAYS("rank")},
    {TS_OP_iota, NO, {.iota = {1, TS_I32, {2, {{NULL, 2}, {NULL, 3}}}}}, OUT("i32[2,3]")},
    {TS_OP_iota, NO, {.iota = {2, TS_I32, {2, {{NULL, 2}, {NULL, 3}}}}}, SAYS("axis 2")},
    {TS_OP_iota, NO, {.iota = {0, TS_PRED, {1, {{NULL, 2}}}}}, SAYS("it takes f32")},
    {TS_OP_random_bits, IN("u32[2]"), {.shape = {{1, {{NULL, 5}}}}}, OUT("u32[5]")},
    {TS_OP_random_bits, IN("u32[3]"), {.shape = {{1, {{NULL, 5}}}}},
     SAYS("key is u32[3]; expected u32[2]")},
    /* elementwise */
    {TS_OP_exp, IN("f32[a:2,0]"), NONE, OUT("f32[a:2,0]")},
    {TS_OP_exp, IN("i32[2]"), NONE, SAYS("exp: operand 0 is i32[2]; it takes f32, bf16")},
    {TS_OP_add, IN("f32[2,b:3]", "f32[a:2,c:3]"), NONE, OUT("f32[a:2,b:3]")},
    {TS_OP_add, IN("f32[2,3]", "f32[3]"), NONE,
     SAYS("operand 0 is f32[2,3], operand 1 is f32[3]; they must be equal")},
    {TS_OP_add, IN("f32[2]", "bf16[2]"), NONE, SAYS("must be equal")},
    {TS_OP_add, IN("pred[2]", "pred[2]"), NONE, SAYS("it takes f32, bf16, i32, u32")},
    {TS_OP_add, IN("f32[2]"), NONE, SAYS("found 1 operands; it takes 2")},
    {TS_OP_and, IN("pred[2]", "pred[2]"), NONE, OUT("pred[2]")},
    {TS_OP_and, IN("f32[2]", "f32[2]"), NONE, SAYS("it takes i32, u32, pred")},
    {TS_OP_shift_left, IN("u32[]", "u32[]"), NONE, OUT("u32[]")},
    {TS_OP_shift_left, IN("pred[]", "pred[]"), NONE, SAYS("it takes i32, u32")},
    {TS_OP_pow, IN("i32[]", "i32[]"), NONE, SAYS("it takes")},
    {TS_OP_add_n, IN("f32[2]", "f32[a:2]", "f32[2]"), NONE, OUT("f32[a:2]")},
    {TS_OP_add_n, IN("f32[2]", "f32[2]", "f32[1]"), NONE, SAYS("operand 2 is f32[1]")},
    {TS_OP_is_finite, IN("bf16[a:2]"), NONE, OUT("pred[a:2]")},
    {TS_OP_convert, IN("i32[a:2]"), {.convert = {TS_BF16}}, OUT("bf16[a:2]")},
    {TS_OP_convert, IN("i32[a:2]"), {.convert = {TS_DTYPES}}, SAYS("dtype 5 does not exist")},
    {TS_OP_compare, IN("f32[2]", "f32[a:2]"), {.compare = {TS_LT}}, OUT("pred[a:2]")},
    {TS_OP_compare, IN("f32[2]", "f32[2]"), {.compare = {6}}, SAYS("direction 6")},
    {TS_OP_select, IN("pred[]", "i32[2]", "i32[2]"), NONE, OUT("i32[2]")},
    {TS_OP_select, IN("pred[a:2]", "i32[2]", "i32[2]"), NONE, OUT("i32[a:2]")},
    {TS_OP_select, IN("pred[3]", "i32[2]", "i32[2]"), NONE,
     SAYS("pred must be a scalar or have x's shape")},
    {TS_OP_select, IN("i32[2]", "i32[2]", "i32[2]"), NONE, SAYS("pred is i32[2]; expected pred")},
    /* shape */
    {TS_OP_reshape, IN("f32[a:2,3]"), {.shape = {{1, {{"b", 6}}}}}, OUT("f32[b:6]")},
    {TS_OP_reshape, IN("f32[0,3]"), {.shape = {{2, {{NULL, 7}, {NULL, 0}}}}}, OUT("f32[7,0]")},
    {TS_OP_reshape, IN("f32[2,3]"), {.shape = {{1, {{NULL, 5}}}}},
     SAYS("with 6 elements, the result f32[5] with 5")},
    {TS_OP_transpose, IN("f32[a:2,b:3,4]"), {.transpose = {I(2, 0, 1)}}, OUT("f32[4,a:2,b:3]")},
    {TS_OP_transpose, IN("f32[2,3]"), {.transpose = {I(1, 1)}}, SAYS("twice")},
    {TS_OP_transpose, IN("f32[2,3]"), {.transpose = {I(1)}}, SAYS("each of the 2 once")},
    {TS_OP_broadcast, IN("f32[b:3]"), {.broadcast = {{2, {{"a", 2}, {NULL, 3}}}, I(1)}},
     OUT("f32[a:2,b:3]")},
    {TS_OP_broadcast, IN("f32[]"), {.broadcast = {{1, {{NULL, 0}}}, NIL}}, OUT("f32[0]")},
    {TS_OP_broadcast, IN("f32[1]"), {.broadcast = {{1, {{NULL, 3}}}, I(0)}},
     SAYS("dimension 0 of x has 1")},
    {TS_OP_broadcast, IN("f32[3]"), {.broadcast = {{1, {{NULL, 3}}}, NIL}},
     SAYS("must place each of the 1")},
    {TS_OP_slice, IN("f32[a:4]"), {.slice = {0, 1, 1}}, OUT("f32[a:0]")},
    {TS_OP_slice, IN("f32[4]"), {.slice = {0, 3, 5}}, SAYS("expected 0 ≤ start ≤ limit ≤ 4")},
    {TS_OP_concat, IN("f32[2,a:1]", "f32[b:2,0]", "f32[2,3]"), {.axis = {1}}, OUT("f32[b:2,a:4]")},
    {TS_OP_concat, IN("f32[2,1]", "f32[3,1]"), {.axis = {1}}, SAYS("only dimension 1 may differ")},
    {TS_OP_concat, IN("f32[2,1]", "f32[3]"), {.axis = {1}}, SAYS("only dimension 1 may differ")},
    {TS_OP_pad, IN("i32[a:2]"), {.pad = {0, 1, 3, 0}}, OUT("i32[a:6]")},
    {TS_OP_pad, IN("i32[2]"), {.pad = {0, INT64_MAX, 3, 0}}, SAYS("overflows")},
    {TS_OP_pad, IN("i32[2]"), {.pad = {0, -1, 3, 0}}, SAYS("neither may be negative")},
    {TS_OP_dynamic_slice, IN("f32[a:4,2]", "i32[]"), {.dynamic = {0, 3}}, OUT("f32[a:3,2]")},
    {TS_OP_dynamic_slice, IN("f32[4,2]", "f32[]"), {.dynamic = {0, 3}},
     SAYS("start is f32[]; expected i32[]")},
    {TS_OP_dynamic_slice, IN("f32[4,2]", "i32[]"), {.dynamic = {0, 5}}, SAYS("expected 0 to 4")},
    {TS_OP_dynamic_update, IN("f32[a:4,2]", "f32[1,2]", "i32[]"), {.dynamic = {0, 1}},
     OUT("f32[a:4,2]")},
    {TS_OP_dynamic_update, IN("f32[4,2]", "f32[5,2]", "i32[]"), {.dynamic = {0, 5}},
     SAYS("must fit in x")},
    /* reductions and products */
    {TS_OP_reduce_sum, IN("f32[a:2,3,c:4]"), {.reduce = {I(1)}}, OUT("f32[a:2,c:4]")},
    {TS_OP_reduce_max, IN("f32[0]"), {.reduce = {I(0)}}, OUT("f32[]")},
    {TS_OP_reduce_sum, IN("f32[2]"), {.reduce = {NIL}}, OUT("f32[2]")},
    {TS_OP_reduce_sum, IN("f32[2]"), {.reduce = {I(1)}},
     SAYS("axes names axis 1, which f32[2] does not have")},
    {TS_OP_reduce_sum, IN("pred[2]"), {.reduce = {I(0)}}, SAYS("it takes")},
    {TS_OP_argmax, IN("f32[a:2,3]"), {.axis = {1}}, OUT("i32[a:2]")},
    {TS_OP_argmax, IN("f32[2,0]"), {.axis = {1}}, SAYS("is empty")},
    {TS_OP_top_k, IN("bf16[a:2,b:3]"), {.top_k = {2}}, OUT("bf16[a:2,2]", "i32[a:2,2]")},
    {TS_OP_top_k, IN("f32[2,3]"), {.top_k = {4}}, SAYS("k is 4, the last dimension of x has 3")},
    {TS_OP_top_k, IN("f32[]"), {.top_k = {1}}, SAYS("axis -1")},
    {TS_OP_dot, IN("f32[b:2,m:3,k:4]", "f32[k:4,b:2,n:5]"), DOT(I(0), I(1), I(2), I(0), TS_F32),
     OUT("f32[b:2,m:3,n:5]")},
    {TS_OP_dot, IN("bf16[3,4]", "bf16[4]"), DOT(NIL, NIL, I(1), I(0), TS_F32), OUT("f32[3]")},
    {TS_OP_dot, IN("f32[0]", "f32[0]"), DOT(NIL, NIL, I(0), I(0), TS_BF16), OUT("bf16[]")},
    {TS_OP_dot, IN("f32[a:2]", "f32[b:3]"), DOT(NIL, NIL, NIL, NIL, TS_F32), OUT("f32[a:2,b:3]")},
    {TS_OP_dot, IN("f32[3,64]", "f32[5,32]"), DOT(NIL, NIL, I(1), I(1), TS_F32),
     SAYS("dot: contracted dimension 1 of x has 64, dimension 1 of y has 32; they must be equal")},
    {TS_OP_dot, IN("f32[3,4]", "bf16[4,2]"), DOT(NIL, NIL, I(1), I(0), TS_F32),
     SAYS("must have one dtype")},
    {TS_OP_dot, IN("f32[3,4]", "f32[4,2]"), DOT(NIL, NIL, I(1), I(0), TS_I32),
     SAYS("expected f32 or bf16")},
    {TS_OP_dot, IN("f32[3,4]", "f32[4,2]"), DOT(I(0), I(1), I(0), I(0), TS_F32),
     SAYS("names axis 0 of f32[3,4] twice")},
    {TS_OP_dot, IN("f32[3,4]", "f32[4,2]"), DOT(I(0), NIL, I(1), I(0), TS_F32),
     SAYS("equally many")},
    {TS_OP_dot, IN("f32[1,1,1,1,2]", "f32[2,1,1,1,1]"), DOT(NIL, NIL, I(4), I(0), TS_F32),
     SAYS("rank")},
    {TS_OP_take, IN("bf16[vocab:7,embed:3]", "i32[batch:2,4]"), {.take = {-1}},
     OUT("bf16[batch:2,4,embed:3]")},
    {TS_OP_take, IN("f32[7,3]", "i32[]"), {.take = {6}}, OUT("f32[3]")},
    {TS_OP_take, IN("f32[7,3]", "i32[]"), {.take = {7}}, SAYS("no_grad_row is 7")},
    {TS_OP_take, IN("f32[7,3]", "f32[2]"), {.take = {-1}}, SAYS("ids is f32[2]; expected i32")},
    {TS_OP_take, IN("f32[]", "i32[2]"), {.take = {-1}}, SAYS("expected a dimension of rows")},
    {TS_OP_scatter_add, IN("i32[2,4]", "bf16[2,4,e:3]"), {.scatter = {{1, {{"vocab", 7}}}, -1}},
     OUT("f32[vocab:7,e:3]")},
    {TS_OP_scatter_add, IN("i32[2,4]", "f32[4,2,3]"), {.scatter = {{1, {{NULL, 7}}}, -1}},
     SAYS("start with the dimensions")},
    {TS_OP_scatter_add, IN("i32[2,4]", "f32[2]"), {.scatter = {{1, {{NULL, 7}}}, -1}},
     SAYS("start with the dimensions")},
    {TS_OP_scatter_add, IN("i32[2]", "f32[2]"), {.scatter = {{2, {{NULL, 7}}}, -1}},
     SAYS("rows has 2 dimensions")},
    {TS_OP_barrier, IN("f32[2]", "i32[]"), NONE, OUT("f32[2]", "i32[]")},
    /* collectives */
    {TS_OP_all_reduce, IN("f32[2]"), {.collective = {"fsdp", 4, 0, 0, 0, 0}}, OUT("f32[2]")},
    {TS_OP_all_reduce, IN("f32[2]"), {.collective = {"fsdp", 4, 0, 0, 0, 2}}, SAYS("reduction 2")},
    {TS_OP_all_reduce, IN("f32[2]"), {.collective = {"", 4, 0, 0, 0, 0}}, SAYS("has no name")},
    {TS_OP_all_gather, IN("bf16[2,a:3]"), {.collective = {"t", 4, 1, 0, 0, 0}},
     OUT("bf16[2,a:12]")},
    {TS_OP_all_gather, IN("bf16[2,3]"), {.collective = {"t", 4, 2, 0, 0, 0}}, SAYS("axis 2")},
    {TS_OP_reduce_scatter, IN("f32[8,3]"), {.collective = {"t", 4, 0, 0, 0, 0}}, OUT("f32[2,3]")},
    {TS_OP_reduce_scatter, IN("f32[8,3]"), {.collective = {"t", 4, 1, 0, 0, 0}},
     SAYS("does not divide by the 4 devices")},
    {TS_OP_all_to_all, IN("f32[8,3]"), {.collective = {"t", 4, 0, 1, 0, 0}}, OUT("f32[2,12]")},
    {TS_OP_collective_permute, IN("i32[3]"), {.collective = {"t", 4, 0, 0, -1, 0}}, OUT("i32[3]")},
    {TS_OP_axis_index, NO, {.collective = {"t", 0, 0, 0, 0, 0}}, SAYS("expected at least 1")},
    {TS_OP_axis_index, NO, {.collective = {"t", 2, 0, 0, 0, 0}}, OUT("i32[]")},
    /* composites */
    {TS_OP_rms_norm, IN("bf16[2,e:8]", "f32[8]"), {.rms_norm = {1e-6}}, OUT("bf16[2,e:8]")},
    {TS_OP_rms_norm, IN("bf16[2,8]", "bf16[8]"), {.rms_norm = {0}}, OUT("bf16[2,8]")},
    {TS_OP_rms_norm, IN("f32[2,8]", "bf16[8]"), {.rms_norm = {0}},
     SAYS("w is bf16[8]; expected f32[8]")},
    {TS_OP_rms_norm, IN("f32[2,8]", "f32[7]"), {.rms_norm = {0}},
     SAYS("w is f32[7]; expected f32[8]")},
    {TS_OP_rms_norm, IN("f32[2,8]", "f32[8]"), {.rms_norm = {NAN}}, SAYS("eps is")},
    {TS_OP_rms_norm, IN("f32[]", "f32[8]"), {.rms_norm = {0}}, SAYS("expected a last dimension")},
    {TS_OP_rms_norm_grad, IN("bf16[2,8]", "bf16[8]", "bf16[2,8]"), {.rms_norm = {0}},
     OUT("bf16[2,8]", "f32[8]")},
    {TS_OP_rope, IN("bf16[2,5,3,4]", "f32[5,2]", "f32[5,2]"), {.rope = {0}}, OUT("bf16[2,5,3,4]")},
    {TS_OP_rope, IN("f32[2,5,4]", "f32[2,5,2]", "f32[2,5,2]"), {.rope = {1}}, OUT("f32[2,5,4]")},
    {TS_OP_rope, IN("f32[2,5,3]", "f32[5,1]", "f32[5,1]"), {.rope = {0}}, SAYS("is odd")},
    {TS_OP_rope, IN("f32[2,5,4]", "f32[4,2]", "f32[4,2]"), {.rope = {0}},
     SAYS("cos is f32[4,2]; expected f32[5,2]")},
    {TS_OP_rope, IN("f32[2,5,4]", "f32[5,2]", "f32[5,1]"), {.rope = {0}},
     SAYS("sin is f32[5,1], cos is f32[5,2]")},
    {TS_OP_attention, IN("f32[b:2,s:5,k:2,g:3,8]", "f32[2,7,2,8]", "f32[2,7,2,8]"),
     {.attention = {1, 0, 1, 0}},
     OUT("f32[b:2,s:5,k:2,g:3,8]", "f32[b:2,s:5,k:2,g:3]")},
    {TS_OP_attention, IN("bf16[2,5,2,3,8]", "bf16[2,5,2,8]", "bf16[2,5,2,8]", "i32[2,5]"),
     {.attention = {1, 3, 1, 50}},
     OUT("bf16[2,5,2,3,8]", "f32[2,5,2,3]")},
    {TS_OP_attention, IN("f32[2,5,2,3,8]", "f32[2,7,2,8]", "f32[2,7,2,8]", "i32[2,5]"),
     {.attention = {1, 0, 1, 0}},
     SAYS("segments need as many keys as queries; q has 5, k has 7")},
    {TS_OP_attention, IN("f32[2,5,2,3,8]", "f32[2,7,3,8]", "f32[2,7,3,8]"),
     {.attention = {1, 0, 1, 0}},
     SAYS("k is f32[2,7,3,8]; expected f32[2,7,2,8]")},
    {TS_OP_attention, IN("f32[2,5,2,8]", "f32[2,7,2,8]", "f32[2,7,2,8]"),
     {.attention = {1, 0, 1, 0}},
     SAYS("expected 5 dimensions")},
    {TS_OP_attention, IN("f32[2,5,2,3,8]", "f32[2,5,2,8]", "f32[2,5,2,8]"),
     {.attention = {1, -1, 1, 0}}, SAYS("window")},
    {TS_OP_attention, IN("f32[2,5,2,3,8]", "f32[2,5,2,8]", "f32[2,5,2,8]"),
     {.attention = {1, 0, 0, 0}}, SAYS("scale is 0")},
    {TS_OP_attention_grad,
     IN("bf16[2,5,2,3,8]", "bf16[2,7,2,8]", "bf16[2,7,2,8]", "bf16[2,5,2,3,8]", "f32[2,5,2,3]", "bf16[2,5,2,3,8]"),
     {.attention = {1, 0, 1, 0}}, OUT("bf16[2,5,2,3,8]", "bf16[2,7,2,8]", "bf16[2,7,2,8]")},
    {TS_OP_gated, IN("bf16[3]", "bf16[3]"), {.gated = {TS_SILU}}, OUT("bf16[3]")},
    {TS_OP_gated, IN("f32[3]", "f32[3]"), {.gated = {2}}, SAYS("activation 2")},
    {TS_OP_gated_grad, IN("f32[3]", "f32[3]", "f32[3]"), {.gated = {TS_GELU_TANH}},
     OUT("f32[3]", "f32[3]")},
    {TS_OP_linear_xent, IN("bf16[t:6,8]", "bf16[11,8]", "i32[6]"), {.xent = {2, 0}},
     OUT("f32[t:6]", "f32[t:6]")},
    {TS_OP_linear_xent, IN("f32[6,8]", "f32[11,7]", "i32[6]"), {.xent = {0, 0}},
     SAYS("w is f32[11,7]; expected f32[11,8]")},
    {TS_OP_linear_xent, IN("f32[6,8]", "f32[11,8]", "i32[5]"), {.xent = {0, 0}},
     SAYS("labels is i32[5]")},
    {TS_OP_linear_xent, IN("f32[6,8]", "f32[0,8]", "i32[6]"), {.xent = {0, 0}},
     SAYS("at least one class")},
    {TS_OP_linear_xent_grad, IN("bf16[6,8]", "bf16[11,8]", "i32[6]", "f32[6]", "f32[6]", "f32[6]"),
     {.xent = {0, 0}},
     OUT("bf16[6,8]", "f32[11,8]")},
    {TS_OP_xent_rows, IN("bf16[t:6,8]", "bf16[11,8]", "i32[6]"), {.xent = {2, 0}},
     OUT("f32[t:6]", "f32[t:6]", "f32[t:6]")},
    {TS_OP_xent_rows, IN("f32[6,8]", "f32[11,8]", "i32[6]"), {.xent = {-1, 0}},
     SAYS("chunk is -1")},
    {TS_OP_expert_rows, IN("i32[6,2]"), {.expert_rows = {3}}, OUT("i32[36]", "i32[36]", "i32[4]")},
    {TS_OP_expert_rows, IN("i32[6]"), {.expert_rows = {3}}, SAYS("expected 2 dimensions")},
    {TS_OP_expert_rows, IN("i32[6,2]"), {.expert_rows = {0}}, SAYS("there are 0 experts")},
    {TS_OP_expert_rows, IN("i32[6,2]"), {.expert_rows = {INT64_MAX}}, SAYS("experts")},
    {TS_OP_expert_rows, IN("i32[6,2]"), {.expert_rows = {INT64_MAX - 1}}, SAYS("fewer than 2^31")},
    {TS_OP_expert_rows, IN("i32[65536,32768]"), {.expert_rows = {8}}, SAYS("fewer than 2^31")},
    {TS_OP_grouped_dot, IN("bf16[r:36,8]", "bf16[3,mlp:5,8]", "i32[4]"), NONE,
     OUT("bf16[r:36,mlp:5]")},
    {TS_OP_grouped_dot, IN("f32[36,8]", "f32[3,5,7]", "i32[4]"), NONE,
     SAYS("w is f32[3,5,7]; expected f32[3,5,8]")},
    {TS_OP_grouped_dot, IN("f32[36,8]", "f32[3,5,8]", "i32[3]"), NONE,
     SAYS("offsets is i32[3]; expected i32[4]")},
    {TS_OP_grouped_dot, IN("f32[36,8]", "f32[0,5,8]", "i32[1]"), NONE, SAYS("there are 0 experts")},
    {TS_OP_grouped_dot, IN("f32[2147483648,1]", "f32[1,5,1]", "i32[2]"), NONE, SAYS("2^31")},
    {TS_OP_grouped_dot_grad, IN("bf16[r:36,8]", "bf16[3,5,e:8]", "i32[4]", "bf16[36,5]"), NONE,
     OUT("bf16[r:36,8]", "f32[3,5,e:8]")},
    {TS_OP_grouped_dot_grad, IN("f32[36,8]", "f32[3,5,8]", "i32[4]", "f32[36,8]"), NONE,
     SAYS("dy is f32[36,8]; expected f32[36,5]")},
    {TS_OP_adamw, IN("f32[3]", "f32[3]", "f32[3]", "f32[3]", "f32[]", "i32[]", "f32[]", "pred[]"),
     {.adamw = {0.9, 0.95, 1e-8, 0.1}}, OUT("f32[3]", "f32[3]", "f32[3]")},
    {TS_OP_adamw, IN("f32[3]", "bf16[3]", "f32[3]", "f32[3]", "f32[]", "i32[]", "f32[]", "pred[]"),
     {.adamw = {0.9, 0.95, 1e-8, 0.1}}, SAYS("g is bf16[3], p is f32[3]")},
    {TS_OP_adamw, IN("f32[3]", "f32[3]", "f32[3]", "f32[3]", "f32[]", "f32[]", "f32[]", "pred[]"),
     {.adamw = {0.9, 0.95, 1e-8, 0.1}}, SAYS("step is f32[]; expected i32[]")},
    {TS_OP_adamw, IN("f32[3]", "f32[3]", "f32[3]", "f32[3]", "f32[]", "i32[]", "f32[]", "pred[]"),
     {.adamw = {1, 0.95, 1e-8, 0.1}}, SAYS("b1 is 1")},
};
/* clang-format on */

/* "f32[a:2,3]" */
static ts_type type_from(const char *text, char names[TS_MAX_RANK][16])
{
    ts_type t = {.dtype = TS_DTYPES};
    size_t n = strcspn(text, "[");
    for (int i = 0; i < TS_DTYPES; i++)
        if (strlen(ts_dtype_name((ts_dtype)i)) == n &&
            memcmp(ts_dtype_name((ts_dtype)i), text, n) == 0)
            t.dtype = (ts_dtype)i;
    assert_true(t.dtype != TS_DTYPES);
    for (const char *p = text + n + 1; *p != ']'; p += *p == ',') {
        size_t name = strcspn(p, ":,]");
        if (p[name] == ':') {
            snprintf(names[t.rank], 16, "%.*s", (int)name, p);
            t.dim[t.rank].name = names[t.rank];
            p += name + 1;
        }
        t.dim[t.rank++].size = strtoll(p, NULL, 10);
        p += strcspn(p, ",]");
    }
    return t;
}

static void run_case(const shape_case *c, int number)
{
    static char names[9][TS_MAX_RANK][16];
    ts_value value[9], *in[9];
    ts_type out[4];
    ts_error err = {0};
    char text[400];
    int n_in = 0, n_out = 0, expected = 0;
    memset(value, 0, sizeof value);
    for (; n_in < 9 && c->in[n_in]; n_in++) {
        value[n_in].type = type_from(c->in[n_in], names[n_in]);
        in[n_in] = &value[n_in];
    }
    ts_status status = ts__infer(c->op, in, n_in, &c->attr, NULL, out, 4, &n_out, &err);
    if (c->says) {
        if (status != TS_INVALID_ARGUMENT || !strstr(err.msg, c->says) ||
            !strstr(err.msg, ts_op_infos[c->op].name))
            fail_msg("case %d: expected '%s', found '%s'", number, c->says, err.msg);
        return;
    }
    if (status != TS_OK) fail_msg("case %d (%s): %s", number, ts_op_infos[c->op].name, err.msg);
    while (expected < 3 && c->out[expected]) expected++;
    assert_int_equal(n_out, expected);
    for (int i = 0; i < n_out; i++)
        if (strcmp(ts_type_text(&out[i], text, sizeof text), c->out[i]) != 0)
            fail_msg("case %d (%s): result %d is %s, expected %s", number, ts_op_infos[c->op].name,
                     i, text, c->out[i]);
}

static void test_rules(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) run_case(&cases[i], (int)i);
}

/* Every op has a case that works; repeat has tests of its own below. */
static void test_every_op_has_a_case(void **state)
{
    (void)state;
    static const ts_op alike[] = {TS_OP_neg,   TS_OP_abs,  TS_OP_log,         TS_OP_sqrt,
                                  TS_OP_rsqrt, TS_OP_tanh, TS_OP_logistic,    TS_OP_sin,
                                  TS_OP_cos,   TS_OP_not,  TS_OP_sub,         TS_OP_mul,
                                  TS_OP_div,   TS_OP_max,  TS_OP_min,         TS_OP_pow,
                                  TS_OP_or,    TS_OP_xor,  TS_OP_shift_right, TS_OP_repeat};
    bool seen[TS_OPS] = {false};
    for (size_t i = 0; i < sizeof alike / sizeof *alike; i++) seen[alike[i]] = true;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (!cases[i].says) seen[cases[i].op] = true;
    for (int op = 0; op < TS_OPS; op++)
        if (!seen[op]) fail_msg("%s has no case", ts_op_infos[op].name);
}

/* The dtypes that an elementwise op claims are those it takes, and no others. */
static void test_claimed_dtypes(void **state)
{
    (void)state;
    for (int op = TS_OP_neg; op <= TS_OP_add_n; op++) {
        if (op == TS_OP_convert) continue;
        for (int t = 0; t < TS_DTYPES; t++) {
            ts_value x = {.type = ts_type_make((ts_dtype)t, TS_DIMS({NULL, 3}))}, *in[2] = {&x, &x};
            ts_type out[1];
            ts_error err = {0};
            int n_out;
            bool takes = ts__infer((ts_op)op, in, ts_op_infos[op].min_in, NULL, NULL, out, 1,
                                   &n_out, &err) == TS_OK;
            assert_int_equal(takes, ts_op_dtypes((ts_op)op) >> t & 1);
        }
        assert_true(ts_op_dtypes((ts_op)op) != 0);
    }
}

static void test_types(void **state)
{
    (void)state;
    char text[400];
    ts_type t = ts_type_make(TS_BF16, TS_DIMS({"batch", 2}, {NULL, 3}));
    assert_int_equal(ts_type_elements(&t), 6);
    assert_int_equal(ts_type_bytes(&t), 12);
    assert_string_equal(ts_type_text(&t, text, sizeof text), "bf16[batch:2,3]");
    ts_type u = t;
    u.dim[0].name = NULL;
    assert_true(ts_type_same(&t, &u));
    u.dim[1].size = 4;
    assert_false(ts_type_same(&t, &u));
    ts_type scalar = ts_type_make(TS_PRED, NULL, 0);
    assert_int_equal(ts_type_elements(&scalar), 1);
    assert_string_equal(ts_type_text(&scalar, text, sizeof text), "pred[]");
    ts_type huge = ts_type_make(TS_F32, TS_DIMS({NULL, INT64_MAX}, {NULL, 4}));
    assert_int_equal(ts_type_elements(&huge), INT64_MAX);
    assert_true(ts_type_bytes(&huge) == SIZE_MAX);
    /* Text never leaves its buffer, however long the names. */
    char name[300];
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = 0;
    ts_type wide = {.dtype = TS_F32, .rank = TS_MAX_RANK};
    for (int i = 0; i < TS_MAX_RANK; i++) wide.dim[i] = (ts_dim){name, INT64_MAX};
    for (size_t n = 1; n <= sizeof text; n += 13)
        assert_true(strlen(ts_type_text(&wide, text, n)) < n);
}

/* ---- repeat ---------------------------------------------------------------------------------- */

/* A repeat with one carry f32[2], xs f32[3,4] and a const i32[]; the attributes may be spoilt
 * before. */
static ts_status repeat_types(ts_attr attr, ts_type carry_out, ts_type arg1, ts_type *out,
                              int *n_out, ts_error *err)
{
    ts_graph *g = ts__graph_new("repeat");
    ts_type carry = ts_type_make(TS_F32, TS_DIMS({NULL, 2})),
            xs = ts_type_make(TS_F32, TS_DIMS({"layers", 3}, {NULL, 4}));
    ts_type index = ts_type_make(TS_I32, NULL, 0);
    ts_value *in[3] = {ts__region_add_arg(g->top, &carry, "c"),
                       ts__region_add_arg(g->top, &xs, "x"),
                       ts__region_add_arg(g->top, &index, "k")};
    ts_region *body = ts__region_new(g, g->top);
    ts_value *a0 = ts__region_add_arg(body, &carry, NULL),
             *a1 = ts__region_add_arg(body, &arg1, NULL);
    ts__region_add_arg(body, &index, NULL);
    a0->type = carry_out;
    assert_true(ts__region_add_result(body, a0) && ts__region_add_result(body, a1) &&
                ts__region_add_result(body, a1));
    ts_status status = ts__infer(TS_OP_repeat, in, 3, &attr, body, out, 3, n_out, err);
    ts_graph_free(g);
    return status;
}

static void test_repeat(void **state)
{
    (void)state;
    ts_type out[3], carry = ts_type_make(TS_F32, TS_DIMS({NULL, 2})),
                    slice = ts_type_make(TS_F32, TS_DIMS({NULL, 4}));
    ts_type other = ts_type_make(TS_F32, TS_DIMS({NULL, 5})),
            flag = ts_type_make(TS_PRED, TS_DIMS({NULL, 4}));
    char text[400];
    int n_out;
    ts_attr good = {.repeat = {.n = 3, .n_carry = 1, .n_xs = 1, .n_consts = 1, .n_stack = 1}};
    OK(repeat_types(good, carry, slice, out, &n_out, &err));
    assert_int_equal(n_out, 3);
    assert_string_equal(ts_type_text(&out[0], text, sizeof text), "f32[2]");
    assert_string_equal(ts_type_text(&out[1], text, sizeof text), "f32[layers:3,4]");
    assert_string_equal(ts_type_text(&out[2], text, sizeof text), "f32[4]");
#define REFUSED(attr, a0, a1, part) \
    do { \
        ts_error err = {0}; \
        assert_int_equal(repeat_types((attr), (a0), (a1), out, &n_out, &err), \
                         TS_INVALID_ARGUMENT); \
        if (!strstr(err.msg, part)) fail_msg("'%s' lacks '%s'", err.msg, part); \
    } while (0)
    REFUSED(good, other, slice, "argument 0 of its region");
    REFUSED(good, carry, other, "argument 1 of its region is f32[5]; expected f32[4]");
    REFUSED(good, carry, flag, "argument 1 of its region is pred[4]");
    ts_attr bad = good;
    bad.repeat.n = 0;
    REFUSED(bad, carry, slice, "expected at least 1");
    bad.repeat.n = 4;
    REFUSED(bad, carry, slice, "first dimension must be the 4 iterations");
    bad = good;
    bad.repeat.n_consts = 0;
    REFUSED(bad, carry, slice, "3 operands");
    bad = good;
    bad.repeat.n_stack = 3;
    REFUSED(bad, carry, slice, "yields 3 values");
    bad = good;
    bad.repeat.n_carry = INT64_MAX;
    bad.repeat.n_xs = INT64_MAX;
    REFUSED(bad, carry, slice, "carries");
    bad = good;
    bad.repeat.remat = 7;
    REFUSED(bad, carry, slice, "remat policy 7");
}

/* Every enumeration among the attributes has words, or it would print as "?". */
static void test_words(void **state)
{
    (void)state;
    for (int op = 0; op < TS_OPS; op++) {
        int n, words;
        const ts_field *f = ts__attr_fields(ts_op_infos[op].attr, &n);
        assert_true(n > 0 || ts_op_infos[op].attr == TS_ATTR_none);
        for (int i = 0; i < n; i++)
            if (f[i].kind == TS_FIELD_WORD) assert_non_null(ts__field_words(&f[i], &words));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rules),          cmocka_unit_test(test_every_op_has_a_case),
        cmocka_unit_test(test_claimed_dtypes), cmocka_unit_test(test_types),
        cmocka_unit_test(test_repeat),         cmocka_unit_test(test_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
