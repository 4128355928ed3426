/* grad/rules.h – names of all VJP rules, one an op. An op added to ops.def without a rule does not
 * link; an op that has no gradient says TS_NOGRAD here, where a reader finds it. */
#ifndef TS_GRAD_RULES_H
#define TS_GRAD_RULES_H

#include "grad/grad_internal.h"

#define TS_NOGRAD NULL
/* Results that no input moves smoothly: integers, predicates, bits, constants. */
#define ts__vjp_constant    TS_NOGRAD
#define ts__vjp_iota        TS_NOGRAD
#define ts__vjp_not         TS_NOGRAD
#define ts__vjp_is_finite   TS_NOGRAD
#define ts__vjp_and         TS_NOGRAD
#define ts__vjp_or          TS_NOGRAD
#define ts__vjp_xor         TS_NOGRAD
#define ts__vjp_shift_left  TS_NOGRAD
#define ts__vjp_shift_right TS_NOGRAD
#define ts__vjp_compare     TS_NOGRAD
#define ts__vjp_argmax      TS_NOGRAD
#define ts__vjp_random_bits TS_NOGRAD
#define ts__vjp_expert_rows TS_NOGRAD
/* Made by the partitioner, which runs after the gradient. */
#define ts__vjp_axis_index         TS_NOGRAD
#define ts__vjp_all_reduce         TS_NOGRAD
#define ts__vjp_all_gather         TS_NOGRAD
#define ts__vjp_reduce_scatter     TS_NOGRAD
#define ts__vjp_all_to_all         TS_NOGRAD
#define ts__vjp_collective_permute TS_NOGRAD
#define ts__vjp_xent_rows          TS_NOGRAD /* linear_xent_grad, given the combined log-sum-exp */
/* First-order only, and the optimizer. */
#define ts__vjp_rms_norm_grad    TS_NOGRAD
#define ts__vjp_attention_grad   TS_NOGRAD
#define ts__vjp_gated_grad       TS_NOGRAD
#define ts__vjp_grouped_dot_grad TS_NOGRAD
#define ts__vjp_linear_xent_grad TS_NOGRAD
#define ts__vjp_adamw            TS_NOGRAD

#define RULE(name) void ts__vjp_##name(ts_grad_pass *g, ts_node *n, ts_value *const *dout)
RULE(neg);
RULE(abs);
RULE(exp);
RULE(log);
RULE(sqrt);
RULE(rsqrt);
RULE(tanh);
RULE(logistic);
RULE(sin);
RULE(cos);
RULE(convert);
RULE(add);
RULE(sub);
RULE(mul);
RULE(div);
RULE(max);
RULE(min);
RULE(pow);
RULE(add_n);
RULE(select);
RULE(reshape);
RULE(transpose);
RULE(broadcast);
RULE(slice);
RULE(concat);
RULE(pad);
RULE(dynamic_slice);
RULE(dynamic_update);
RULE(reduce_sum);
RULE(reduce_max);
RULE(top_k);
RULE(dot);
RULE(take);
RULE(scatter_add);
RULE(barrier);
RULE(rms_norm);
RULE(rope);
RULE(attention);
RULE(gated);
RULE(grouped_dot);
RULE(linear_xent);
#undef RULE

#endif
