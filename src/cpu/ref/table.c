/* cpu/ref/table.c – the plain-C kernel of every op: one line an op, and ops.def checks that none is
 * missing (an op without a REF_ line does not compile).
 *
 * FREE: no scratch. NEEDS: prepare measures it. The last column lists the operands whose buffer the
 * result may take; a kernel that names one reads each element before it writes it.
 */
#include "cpu/ref/ref.h"

#define OVER(result, operand) (1ull << ((result)*8 + (operand)))
#define NOWHERE 0
#define FIRST OVER(0, 0)
#define EITHER (OVER(0, 0) | OVER(0, 1))
#define EACH (OVER(0, 0) | OVER(1, 1) | OVER(2, 2) | OVER(3, 3) | OVER(4, 4) | OVER(5, 5) | OVER(6, 6) | OVER(7, 7))
#define ANY (EITHER | OVER(0, 2) | OVER(0, 3) | OVER(0, 4) | OVER(0, 5) | OVER(0, 6) | OVER(0, 7))
#define FREE(fn, places) {.run = ts__ref_##fn, .in_place = (places), .name = "ts_cpu_" #fn "_ref"}
#define NEEDS(fn, measure, places) \
    {.run = ts__ref_##fn, .prepare = ts__ref_prepare_##measure, .in_place = (places), .name = "ts_cpu_" #fn "_ref"}

#define REF_constant FREE(constant, NOWHERE)
#define REF_iota FREE(iota, NOWHERE)
#define REF_axis_index NEEDS(axis_index, collective, NOWHERE)
#define REF_neg FREE(unary, FIRST)
#define REF_abs FREE(unary, FIRST)
#define REF_exp FREE(unary, FIRST)
#define REF_log FREE(unary, FIRST)
#define REF_sqrt FREE(unary, FIRST)
#define REF_rsqrt FREE(unary, FIRST)
#define REF_tanh FREE(unary, FIRST)
#define REF_logistic FREE(unary, FIRST)
#define REF_sin FREE(unary, FIRST)
#define REF_cos FREE(unary, FIRST)
#define REF_not FREE(unary, FIRST)
#define REF_is_finite FREE(is_finite, NOWHERE)
#define REF_convert FREE(convert, FIRST)
#define REF_add FREE(binary, EITHER)
#define REF_sub FREE(binary, EITHER)
#define REF_mul FREE(binary, EITHER)
#define REF_div FREE(binary, EITHER)
#define REF_max FREE(binary, EITHER)
#define REF_min FREE(binary, EITHER)
#define REF_pow FREE(binary, EITHER)
#define REF_and FREE(binary, EITHER)
#define REF_or FREE(binary, EITHER)
#define REF_xor FREE(binary, EITHER)
#define REF_shift_left FREE(binary, EITHER)
#define REF_shift_right FREE(binary, EITHER)
#define REF_add_n FREE(add_n, ANY)
#define REF_compare FREE(compare, EITHER)
#define REF_select FREE(select, OVER(0, 1) | OVER(0, 2))
#define REF_reshape FREE(copy, FIRST)
#define REF_transpose FREE(transpose, NOWHERE)
#define REF_broadcast FREE(broadcast, NOWHERE)
#define REF_slice FREE(slice, NOWHERE)
#define REF_concat FREE(concat, NOWHERE)
#define REF_pad FREE(pad, NOWHERE)
#define REF_dynamic_slice FREE(dynamic_slice, NOWHERE)
#define REF_dynamic_update FREE(dynamic_update, FIRST)
#define REF_reduce_sum FREE(reduce, NOWHERE)
#define REF_reduce_max FREE(reduce, NOWHERE)
#define REF_argmax FREE(argmax, NOWHERE)
#define REF_top_k FREE(top_k, NOWHERE)
#define REF_dot NEEDS(dot, dot, NOWHERE)
#define REF_take FREE(take, NOWHERE)
#define REF_scatter_add NEEDS(scatter_add, scatter_add, NOWHERE)
#define REF_barrier FREE(barrier, EACH)
#define REF_repeat {.name = "repeat"}                   /* the engine runs its body */
#define REF_all_reduce NEEDS(copy, collective, FIRST)
#define REF_all_gather NEEDS(copy, collective, FIRST)
#define REF_reduce_scatter NEEDS(copy, collective, FIRST)
#define REF_all_to_all NEEDS(copy, collective, FIRST)
#define REF_collective_permute NEEDS(copy, collective, FIRST)
#define REF_random_bits FREE(random_bits, NOWHERE)
#define REF_rms_norm FREE(rms_norm, FIRST)
#define REF_rms_norm_grad NEEDS(rms_norm_grad, rms_norm_grad, NOWHERE)
#define REF_rope FREE(rope, FIRST)
#define REF_attention NEEDS(attention, attention, NOWHERE)
#define REF_attention_grad NEEDS(attention_grad, attention_grad, NOWHERE)
#define REF_gated FREE(gated, EITHER)
#define REF_gated_grad FREE(gated_grad, OVER(0, 0) | OVER(1, 1))
#define REF_expert_rows FREE(expert_rows, NOWHERE)
#define REF_grouped_dot FREE(grouped_dot, NOWHERE)
#define REF_grouped_dot_grad NEEDS(grouped_dot_grad, grouped_dot_grad, NOWHERE)
#define REF_linear_xent NEEDS(linear_xent, linear_xent, NOWHERE)
#define REF_linear_xent_grad NEEDS(linear_xent_grad, linear_xent_grad, NOWHERE)
#define REF_xent_rows NEEDS(xent_rows, linear_xent, NOWHERE)
#define REF_adamw FREE(adamw, OVER(0, 0) | OVER(1, 2) | OVER(2, 3))

const ts_cpu_kernel ts_cpu_ref[TS_OPS] = {
#define OP(op, ...) [TS_OP_##op] = REF_##op,
#include "ir/ops.def"
#undef OP
};
