/* train/flops.c – floating-point operations of a training step.
 *
 * A multiply-add is two. Backward costs twice the forward. Not counted: what remat computes again,
 * the optimizer, norms, the embedding lookup; so a rate from this number is model FLOP/s, and may
 * be compared between programs. The formula and the check against a published log line
 * (179.739 TFLOP/s/device at 3725.218 tokens/s/device) are in tests/unit/test_flops.c.
 */
#include "train/flops.h"

ts_step_flops ts_step_flops_of(const ts_model_config *m, double rows, int64_t sequence)
{
    double tokens = rows * (double)sequence;
    double E = (double)m->hidden, F = (double)m->ffn, D = (double)m->head_dim;
    double H = (double)m->heads, K = (double)m->kv_heads, L = (double)m->layers;

    double ffn = 2 * tokens * E * F * 2 /* gate and up */
                 + 2 * tokens * F * E;  /* down */
    double qkv = 2 * tokens * E * (H + 2 * K) * D;
    double out = 2 * tokens * E * H * D;
    double head = 2 * tokens * E * (double)m->vocab;
    double attention = 2 * tokens * (double)sequence * H * D;
    return (ts_step_flops){
        .weights = 3 * (L * (ffn + qkv + out) + head),
        .attention = 3 * L * attention,
    };
}
