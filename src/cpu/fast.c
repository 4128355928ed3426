/* cpu/fast.c – which fast kernel computes a node.
 *
 * Each group (a file of kernels) says which nodes it covers; the first that does wins, and a node
 * that none covers runs in cpu/ref. Only dot, grouped_dot and linear_xent use bf16 products,
 * so they are the only ones that tell avx512 and avx512_bf16 apart. */
#include "cpu/fast.h"

ts_status ts__prepare_plain(const ts_node *n, int threads, ts_cpu_prepared *out, ts_error *err)
{
    (void)threads;
    (void)err;
    out->flops = (double)ts_type_elements(ts__out_type(n, 0));
    out->bytes = ts__node_bytes(n);
    return TS_OK;
}

static ts__pick *const groups_avx2[] = {
    ts__pick_elementwise_avx2,
    ts__pick_move,
    ts__pick_reduce_avx2,
    ts__pick_rows_avx2,
    ts__pick_update_avx2,
    ts__pick_attention_avx2,
    NULL,
};
static ts__pick *const groups_avx512[] = {
    ts__pick_elementwise_avx512,
    ts__pick_move,
    ts__pick_reduce_avx512,
    ts__pick_rows_avx512,
    ts__pick_update_avx512,
    ts__pick_attention_avx512,
    NULL,
};

const ts_cpu_kernel *ts_cpu_fast(const ts_node *n, ts_isa isa)
{
    if (isa < TS_ISA_AVX2) return NULL;
    if (n->op == TS_OP_dot) return ts__pick_dot(n, isa);
    if (n->op == TS_OP_linear_xent || n->op == TS_OP_linear_xent_grad || n->op == TS_OP_xent_rows)
        return ts__pick_xent(n, isa);
    if (n->op == TS_OP_grouped_dot || n->op == TS_OP_grouped_dot_grad)
        return ts__pick_grouped(n, isa);
    for (ts__pick *const *g = isa >= TS_ISA_AVX512 ? groups_avx512 : groups_avx2; *g; g++) {
        const ts_cpu_kernel *k = (*g)(n);
        if (k) return k;
    }
    return NULL;
}
