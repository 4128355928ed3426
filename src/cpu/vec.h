/* cpu/vec.h – one vector of floats, as wide as the file that includes it may use.
 *
 * A kernel body is written once against these names and compiled twice: by *_avx2.c with eight
 * lanes, by *_avx512.c with sixteen. Only those files may include this header; ISA(name) gives what
 * they export distinct names. Arithmetic on vf uses the C operators; contraction is off, so a fused
 * multiply-add happens only where v_fma says so. bf16 is widened on load and rounded to nearest
 * even on store, with the integer sequence of ts_bf16_from_f32, so every isa stores the same bits.
 * Not here: exp, tanh and their kin (vec_math.h), integer lanes beyond what those need.
 */
#ifndef TS_CPU_VEC_H
#define TS_CPU_VEC_H

#include <immintrin.h>

#include "base/base.h"

#define INLINE static inline __attribute__((always_inline, unused))
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* clang-format off: one name a line, so that the two sets can be read side by side. */
#if defined(__AVX512F__)

#define ISA(name) name##_avx512
#define ISA_TEXT "avx512"
enum { VN = 16 };
typedef __m512 vf;
typedef __m512i vi;
typedef __mmask16 vm;

INLINE vf v_set1(float x) { return _mm512_set1_ps(x); }
INLINE vf v_zero(void) { return _mm512_setzero_ps(); }
INLINE vf v_load(const float *p) { return _mm512_loadu_ps(p); }
INLINE void v_store(float *p, vf x) { _mm512_storeu_ps(p, x); }
INLINE __mmask16 v_first(int64_t n) { return (__mmask16)((1u << n) - 1); }
INLINE vf v_load_n(const float *p, int64_t n) { return _mm512_maskz_loadu_ps(v_first(n), p); }
/* The lanes beyond n are those of rest. */
INLINE vf v_first_or(vf x, int64_t n, vf rest) { return _mm512_mask_blend_ps(v_first(n), rest, x); }
INLINE vf v_load_or(const float *p, int64_t n, vf rest)
{
    return _mm512_mask_loadu_ps(rest, v_first(n), p);
}
INLINE void v_store_n(float *p, vf x, int64_t n) { _mm512_mask_storeu_ps(p, v_first(n), x); }
INLINE vf v_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
INLINE vf v_fnma(vf a, vf b, vf c) { return _mm512_fnmadd_ps(a, b, c); }
INLINE vf v_sqrt(vf x) { return _mm512_sqrt_ps(x); }
INLINE vf v_round(vf x)
{
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
/* The hardware's max and min: the second operand when one is NaN. */
INLINE vf v_hmax(vf a, vf b) { return _mm512_max_ps(a, b); }
INLINE vf v_hmin(vf a, vf b) { return _mm512_min_ps(a, b); }
#define v_cmp(a, b, how) _mm512_cmp_ps_mask((a), (b), (how))
INLINE vf v_blend(vm m, vf yes, vf no) { return _mm512_mask_blend_ps(m, no, yes); }
INLINE vf v_from_bits(vi x) { return _mm512_castsi512_ps(x); }
INLINE vi v_bits(vf x) { return _mm512_castps_si512(x); }
INLINE vi v_seti(int32_t x) { return _mm512_set1_epi32(x); }
INLINE vf v_and(vf a, vf b) { return v_from_bits(_mm512_and_si512(v_bits(a), v_bits(b))); }
INLINE vf v_xor(vf a, vf b) { return v_from_bits(_mm512_xor_si512(v_bits(a), v_bits(b))); }
INLINE vf v_or(vf a, vf b) { return v_from_bits(_mm512_or_si512(v_bits(a), v_bits(b))); }
/* x · 2ⁿ for whole n: overflows to ∞, underflows through the subnormals. */
INLINE vf v_scale2(vf x, vf n) { return _mm512_scalef_ps(x, n); }
INLINE vf v_scale2_normal(vf x, vf n) { return v_scale2(x, n); }
INLINE float v_sum(vf x) { return _mm512_reduce_add_ps(x); }
INLINE float v_max_of(vf x) { return _mm512_reduce_max_ps(x); }
INLINE bool v_any(vm m) { return m != 0; }
/* Turns a square of sixteen vectors: pairs, fours, then quarters of the vectors change places. */
INLINE void v_turn(vf v[16])
{
    vf a[16];
    UNROLL for (int i = 0; i < 16; i += 2) {
        a[i] = _mm512_unpacklo_ps(v[i], v[i + 1]);
        a[i + 1] = _mm512_unpackhi_ps(v[i], v[i + 1]);
    }
    UNROLL for (int i = 0; i < 16; i += 4) {
        v[i] = _mm512_shuffle_ps(a[i], a[i + 2], 0x44);
        v[i + 1] = _mm512_shuffle_ps(a[i], a[i + 2], 0xee);
        v[i + 2] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0x44);
        v[i + 3] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0xee);
    }
    UNROLL for (int i = 0; i < 4; i++) {
        a[i] = _mm512_shuffle_f32x4(v[i], v[i + 4], 0x88);
        a[i + 4] = _mm512_shuffle_f32x4(v[i], v[i + 4], 0xdd);
        a[i + 8] = _mm512_shuffle_f32x4(v[i + 8], v[i + 12], 0x88);
        a[i + 12] = _mm512_shuffle_f32x4(v[i + 8], v[i + 12], 0xdd);
    }
    UNROLL for (int i = 0; i < 4; i++) {
        v[i] = _mm512_shuffle_f32x4(a[i], a[i + 8], 0x88);
        v[i + 8] = _mm512_shuffle_f32x4(a[i], a[i + 8], 0xdd);
        v[i + 4] = _mm512_shuffle_f32x4(a[i + 4], a[i + 12], 0x88);
        v[i + 12] = _mm512_shuffle_f32x4(a[i + 4], a[i + 12], 0xdd);
    }
}

INLINE vf v_widen(__m256i h)
{
    return v_from_bits(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}
INLINE vf v_load_h(const uint16_t *p) { return v_widen(_mm256_loadu_si256((const __m256i *)p)); }
INLINE vf v_load_h_n(const uint16_t *p, int64_t n)
{
    return v_widen(_mm256_maskz_loadu_epi16(v_first(n), p));
}
INLINE __m256i v_narrow(vf x)
{
    vi u = v_bits(x);
    vi odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), v_seti(1));
    vi r = _mm512_srli_epi32(_mm512_add_epi32(u, _mm512_add_epi32(odd, v_seti(0x7fff))), 16);
    vm nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    r = _mm512_mask_or_epi32(r, nan, _mm512_srli_epi32(u, 16), v_seti(0x40));
    return _mm512_cvtepi32_epi16(r);
}
INLINE void v_store_h(uint16_t *p, vf x) { _mm256_storeu_si256((__m256i *)p, v_narrow(x)); }
INLINE void v_store_h_n(uint16_t *p, vf x, int64_t n)
{
    _mm256_mask_storeu_epi16(p, v_first(n), v_narrow(x));
}

/* Predicates are bytes, 0 or 1. */
INLINE void v_store_pred(uint8_t *p, vm m)
{
    _mm_storeu_si128((__m128i *)p, _mm_maskz_set1_epi8(m, 1));
}
INLINE vm v_load_pred(const uint8_t *p)
{
    __m128i b = _mm_loadu_si128((const __m128i *)p);
    return _mm_test_epi8_mask(b, b);
}

#elif defined(__AVX2__)

#define ISA(name) name##_avx2
#define ISA_TEXT "avx2"
enum { VN = 8 };
typedef __m256 vf;
typedef __m256i vi;
typedef __m256 vm;

INLINE vf v_set1(float x) { return _mm256_set1_ps(x); }
INLINE vf v_zero(void) { return _mm256_setzero_ps(); }
INLINE vf v_load(const float *p) { return _mm256_loadu_ps(p); }
INLINE void v_store(float *p, vf x) { _mm256_storeu_ps(p, x); }
INLINE __m256i v_first(int64_t n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
INLINE vf v_load_n(const float *p, int64_t n) { return _mm256_maskload_ps(p, v_first(n)); }
INLINE vf v_first_or(vf x, int64_t n, vf rest)
{
    return _mm256_blendv_ps(rest, x, _mm256_castsi256_ps(v_first(n)));
}
INLINE vf v_load_or(const float *p, int64_t n, vf rest)
{
    __m256i m = v_first(n);
    return _mm256_blendv_ps(rest, _mm256_maskload_ps(p, m), _mm256_castsi256_ps(m));
}
INLINE void v_store_n(float *p, vf x, int64_t n) { _mm256_maskstore_ps(p, v_first(n), x); }
INLINE vf v_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
INLINE vf v_fnma(vf a, vf b, vf c) { return _mm256_fnmadd_ps(a, b, c); }
INLINE vf v_sqrt(vf x) { return _mm256_sqrt_ps(x); }
INLINE vf v_round(vf x)
{
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
INLINE vf v_hmax(vf a, vf b) { return _mm256_max_ps(a, b); }
INLINE vf v_hmin(vf a, vf b) { return _mm256_min_ps(a, b); }
#define v_cmp(a, b, how) _mm256_cmp_ps((a), (b), (how))
INLINE vf v_blend(vm m, vf yes, vf no) { return _mm256_blendv_ps(no, yes, m); }
INLINE vf v_from_bits(vi x) { return _mm256_castsi256_ps(x); }
INLINE vi v_bits(vf x) { return _mm256_castps_si256(x); }
INLINE vi v_seti(int32_t x) { return _mm256_set1_epi32(x); }
INLINE vf v_and(vf a, vf b) { return _mm256_and_ps(a, b); }
INLINE vf v_xor(vf a, vf b) { return _mm256_xor_ps(a, b); }
INLINE vf v_or(vf a, vf b) { return _mm256_or_ps(a, b); }
INLINE vf v_pow2(vi n)
{
    return v_from_bits(_mm256_slli_epi32(_mm256_add_epi32(n, v_seti(127)), 23));
}
/* In two halves, because 2ⁿ itself may be no normal number. */
INLINE vf v_scale2(vf x, vf n)
{
    vi k = _mm256_cvtps_epi32(v_hmin(v_hmax(n, v_set1(-250)), v_set1(250)));
    vi half = _mm256_srai_epi32(k, 1);
    return x * v_pow2(half) * v_pow2(_mm256_sub_epi32(k, half));
}
/* Where 2ⁿ and the result are normal numbers. */
INLINE vf v_scale2_normal(vf x, vf n) { return x * v_pow2(_mm256_cvtps_epi32(n)); }
INLINE float v_sum(vf x)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
}
INLINE float v_max_of(vf x)
{
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_shuffle_ps(s, s, 1)));
}
INLINE bool v_any(vm m) { return _mm256_movemask_ps(m) != 0; }
/* Turns a square of eight vectors: pairs, fours, then halves of the vectors change places. */
INLINE void v_turn(vf v[8])
{
    vf a[8];
    UNROLL for (int i = 0; i < 8; i += 2) {
        a[i] = _mm256_unpacklo_ps(v[i], v[i + 1]);
        a[i + 1] = _mm256_unpackhi_ps(v[i], v[i + 1]);
    }
    UNROLL for (int i = 0; i < 8; i += 4) {
        v[i] = _mm256_shuffle_ps(a[i], a[i + 2], 0x44);
        v[i + 1] = _mm256_shuffle_ps(a[i], a[i + 2], 0xee);
        v[i + 2] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0x44);
        v[i + 3] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0xee);
    }
    UNROLL for (int i = 0; i < 4; i++) {
        a[i] = _mm256_permute2f128_ps(v[i], v[i + 4], 0x20);
        a[i + 4] = _mm256_permute2f128_ps(v[i], v[i + 4], 0x31);
    }
    UNROLL for (int i = 0; i < 8; i++) v[i] = a[i];
}

INLINE vf v_widen(__m128i h)
{
    return v_from_bits(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}
INLINE vf v_load_h(const uint16_t *p) { return v_widen(_mm_loadu_si128((const __m128i *)p)); }
INLINE vf v_load_h_n(const uint16_t *p, int64_t n)
{
    uint16_t buf[8] = {0};
    memcpy(buf, p, (size_t)n * 2);
    return v_load_h(buf);
}
INLINE __m128i v_narrow(vf x)
{
    vi u = v_bits(x), high = _mm256_srli_epi32(u, 16);
    vi r = _mm256_add_epi32(u, _mm256_add_epi32(_mm256_and_si256(high, v_seti(1)), v_seti(0x7fff)));
    vi nan = v_bits(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    r = _mm256_blendv_epi8(_mm256_srli_epi32(r, 16), _mm256_or_si256(high, v_seti(0x40)), nan);
    return _mm_packus_epi32(_mm256_castsi256_si128(r), _mm256_extracti128_si256(r, 1));
}
INLINE void v_store_h(uint16_t *p, vf x) { _mm_storeu_si128((__m128i *)p, v_narrow(x)); }
INLINE void v_store_h_n(uint16_t *p, vf x, int64_t n)
{
    uint16_t buf[8];
    v_store_h(buf, x);
    memcpy(p, buf, (size_t)n * 2);
}

INLINE void v_store_pred(uint8_t *p, vm m)
{
    __m256i ones = _mm256_srli_epi32(v_bits(m), 31);
    __m128i h = _mm_packus_epi32(_mm256_castsi256_si128(ones), _mm256_extracti128_si256(ones, 1));
    _mm_storel_epi64((__m128i *)p, _mm_packus_epi16(h, h));
}
INLINE vm v_load_pred(const uint8_t *p)
{
    __m256i b = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
    return v_from_bits(_mm256_cmpgt_epi32(b, _mm256_setzero_si256()));
}

#else
#error "vec.h is for files built with AVX2 or AVX-512"
#endif
/* clang-format on */

/* A tensor is f32 or bf16 (h); the constant h folds away. i and n count elements. */
INLINE vf v_get(bool h, const void *p, int64_t i)
{
    return h ? v_load_h((const uint16_t *)p + i) : v_load((const float *)p + i);
}
INLINE vf v_get_n(bool h, const void *p, int64_t i, int64_t n)
{
    return h ? v_load_h_n((const uint16_t *)p + i, n) : v_load_n((const float *)p + i, n);
}
INLINE void v_put(bool h, void *p, int64_t i, vf x)
{
    if (h) v_store_h((uint16_t *)p + i, x);
    else v_store((float *)p + i, x);
}
INLINE void v_put_n(bool h, void *p, int64_t i, vf x, int64_t n)
{
    if (h) v_store_h_n((uint16_t *)p + i, x, n);
    else v_store_n((float *)p + i, x, n);
}
/* Of n ≥ 1 elements that are left, as many as fit. */
INLINE vf v_get_some(bool h, const void *p, int64_t i, int64_t n)
{
    return n >= VN ? v_get(h, p, i) : v_get_n(h, p, i, n);
}
INLINE void v_put_some(bool h, void *p, int64_t i, vf x, int64_t n)
{
    if (n >= VN) v_put(h, p, i, x);
    else v_put_n(h, p, i, x, n);
}
INLINE float v_get1(bool h, const void *p, int64_t i)
{
    return h ? ts_bf16_to_f32(((const uint16_t *)p)[i]) : ((const float *)p)[i];
}

INLINE vm v_is_nan(vf x) { return v_cmp(x, x, _CMP_UNORD_Q); }
/* NaN when either is. */
INLINE vf v_max(vf a, vf b) { return v_blend(v_is_nan(a), a, v_hmax(a, b)); }
INLINE vf v_min(vf a, vf b) { return v_blend(v_is_nan(a), a, v_hmin(a, b)); }
INLINE vf v_neg(vf x) { return v_xor(x, v_set1(-0.0f)); }
INLINE vf v_abs(vf x) { return v_and(x, v_from_bits(v_seti(0x7fffffff))); }

#endif
