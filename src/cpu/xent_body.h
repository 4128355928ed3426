/* cpu/xent_body.h – softmax over one row of logits and its gradient; included by xent_*.c.
 *
 * A row comes in panels of the vocabulary, so the maximum and the total are running (Milakov &
 * Gimelshein 2018). All f32; see xent.h for the contract.
 */
#include <math.h>

#include "cpu/vec_math.h"
#include "cpu/xent.h"

static void forward(float *z, int64_t n, float softcap, float *most, float *total)
{
    const vf none = v_set1(-__builtin_inff());
    vf top = v_set1(*most), sum = v_zero();
    if (softcap > 0) {
        const vf cap = v_set1(softcap);
        for (int64_t i = 0; i < n; i += VN)
            v_put_some(false, z, i, cap * v_tanh(v_get_some(false, z, i, n - i) / cap), n - i);
    }
    for (int64_t i = 0; i < n; i += VN)
        top = v_max(top, n - i >= VN ? v_load(z + i) : v_load_or(z + i, n - i, top));
    const float m = v_any(v_is_nan(top)) ? __builtin_nanf("") : v_max_of(top);
    if (m == -__builtin_inff()) return;
    const vf vm_ = v_set1(m);
    for (int64_t i = 0; i < n; i += VN)
        sum =
            sum + v_exp_flush((n - i >= VN ? v_load(z + i) : v_load_or(z + i, n - i, none)) - vm_);
    *total = *total * expf(*most - m) + v_sum(sum);
    *most = m;
}

INLINE vf gradient(vf z, bool capped, vf cap, vf lse, vf weight)
{
    if (!capped) return v_exp_flush(z - lse) * weight;
    vf t = v_tanh(z / cap);
    return v_exp_flush(v_fma(cap, t, v_neg(lse))) * weight * v_fnma(t, t, v_set1(1.0f));
}

static void backward(float *z, uint16_t *half, int64_t n, float softcap, float lse, float weight,
                     int64_t label, float dloss)
{
    const vf cap = v_set1(softcap), vlse = v_set1(lse), vweight = v_set1(weight);
    float slope = 1;
    if (label >= 0 && softcap > 0) {
        const float t = tanhf(z[label] / softcap);
        slope = 1 - t * t;
    }
    if (softcap > 0)
        for (int64_t i = 0; i < n; i += VN)
            v_put_some(false, z, i,
                       gradient(v_get_some(false, z, i, n - i), true, cap, vlse, vweight), n - i);
    else
        for (int64_t i = 0; i < n; i += VN)
            v_put_some(false, z, i,
                       gradient(v_get_some(false, z, i, n - i), false, cap, vlse, vweight), n - i);
    if (label >= 0) z[label] -= dloss * slope;
    if (!half) return;
    for (int64_t i = 0; i < n; i += VN)
        v_put_some(true, half, i, v_get_some(false, z, i, n - i), n - i);
}

const ts__xent_rows ISA(ts__xent_rows) = {forward, backward};
