/* cpu/vec_math.h – exp, tanh, logistic and log of a vector, within about 2 ulp of the true value.
 *
 * exp: Cody and Waite's reduction to |r| ≤ ln2/2 in two pieces, then the Taylor polynomial of
 * degree 7, whose error there (2·10⁻⁹) is far below half an ulp. tanh goes through exp(x) − 1 so
 * that nothing cancels near zero. Infinities and NaN behave as in C; subnormal results are
 * produced. */
#ifndef TS_CPU_VEC_MATH_H
#define TS_CPU_VEC_MATH_H

#include "cpu/vec.h"

/* exp(r) − 1 for |r| ≤ 0.35. */
INLINE vf v_expm1_small(vf r)
{
    vf p = v_set1(1.0f / 5040);
    p = v_fma(p, r, v_set1(1.0f / 720));
    p = v_fma(p, r, v_set1(1.0f / 120));
    p = v_fma(p, r, v_set1(1.0f / 24));
    p = v_fma(p, r, v_set1(1.0f / 6));
    p = v_fma(p, r, v_set1(0.5f));
    return v_fma(p * r, r, r);
}

INLINE vf v_reduce_ln2(vf x, vf *n)
{
    *n = v_round(x * v_set1(1.44269504f));
    vf r = v_fnma(*n, v_set1(0.693359375f), x);
    return v_fnma(*n, v_set1(-2.12194440e-4f), r);
}

INLINE vf v_exp(vf x)
{
    vf n;
    /* Beyond these the result is ∞ or 0; the order of operands lets NaN through. */
    vf c = v_hmin(v_set1(89.0f), v_hmax(v_set1(-105.0f), x));
    vf r = v_reduce_ln2(c, &n);
    return v_scale2(v_expm1_small(r) + v_set1(1.0f), n);
}

/* exp(x) up to x = 88 where what is below the normal numbers may be 0: a subnormal result costs a
 * hundred cycles, and a masked score would make one in every vector. */
INLINE vf v_exp_flush(vf x)
{
    const vf least = v_set1(-87.0f);
    vf n, r = v_reduce_ln2(v_hmin(v_set1(88.0f), v_hmax(least, x)), &n);
    vf y = v_scale2_normal(v_expm1_small(r) + v_set1(1.0f), n);
    return v_blend(v_cmp(x, least, _CMP_LT_OQ), v_zero(), y);
}

INLINE vf v_logistic(vf x)
{
    vf e = v_exp(v_neg(v_abs(x)));
    vf d = e + v_set1(1.0f);
    return v_blend(v_cmp(x, v_zero(), _CMP_LT_OQ), e, v_set1(1.0f)) / d;
}

INLINE vf v_tanh(vf x)
{
    vf n, sign = v_and(x, v_set1(-0.0f));
    vf a = v_hmin(v_set1(20.0f), v_abs(x) * v_set1(2.0f));
    vf r = v_reduce_ln2(a, &n);
    vf two = v_scale2(v_set1(1.0f), n);
    vf em1 = v_fma(two, v_expm1_small(r), two - v_set1(1.0f));
    return v_or(em1 / (em1 + v_set1(2.0f)), sign);
}

#endif
