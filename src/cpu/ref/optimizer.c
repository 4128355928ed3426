/* cpu/ref/optimizer.c – one AdamW step (Loshchilov & Hutter 2019), elementwise.
 *
 * g is scaled first (clipping). m̂ = m/(1 − b1^t), v̂ = v/(1 − b2^t), p −= lr·(m̂/(√v̂ + eps) +
 * decay·p): the formula of optax and PyTorch. Where ok is false p, m and v are copied, so a step
 * whose gradient is not finite leaves no trace. Results may lie in the operands' buffers.
 */
#include "cpu/ref/ref.h"

enum { P, GRAD, M, V, LR, STEP, SCALE, OK };            /* operands */

void ts__ref_adamw(const ts_cpu_call *c)
{
    const int64_t count = ts__ref_count(c->node->in[P]);
    const double b1 = c->node->attr.adamw.b1, b2 = c->node->attr.adamw.b2,
                 eps = c->node->attr.adamw.eps;
    const double decay = c->node->attr.adamw.weight_decay;
    const double lr = (double)*(const float *)c->in[LR],
                 scale = (double)*(const float *)c->in[SCALE];
    const double step = (double)*(const int32_t *)c->in[STEP];
    const double fix1 = 1.0 - pow(b1, step), fix2 = 1.0 - pow(b2, step);
    const float *p = c->in[P], *g = c->in[GRAD], *m = c->in[M], *v = c->in[V];
    float *p_out = c->out[0], *m_out = c->out[1], *v_out = c->out[2];
    if (!*(const uint8_t *)c->in[OK]) {
        const size_t bytes = (size_t)count * sizeof(float);
        ts__ref_copy_bytes(p_out, p, bytes);
        ts__ref_copy_bytes(m_out, m, bytes);
        ts__ref_copy_bytes(v_out, v, bytes);
        return;
    }
#pragma omp parallel for num_threads(c->threads) if (count >= TS__REF_PARALLEL)
    for (int64_t i = 0; i < count; i++) {
        const double gi = (double)g[i] * scale, pi = (double)p[i];
        const double mi = b1 * (double)m[i] + (1.0 - b1) * gi,
                     vi = b2 * (double)v[i] + (1.0 - b2) * gi * gi;
        p_out[i] = (float)(pi - lr * (mi / fix1 / (sqrt(vi / fix2) + eps) + decay * pi));
        m_out[i] = (float)mi;
        v_out[i] = (float)vi;
    }
}
