/* cpu/bf16_avx512_bf16.c – whether bf16 products are worth their instruction on this machine.
 *
 * VDPBF16PS does the work of two fused multiply-adds. Some cores issue it as often as those, some
 * half as often, and some (with AMX beside it) a quarter as often: there, widening to f32 and
 * multiplying is nearly twice as fast. The two rates are measured once, the fastest of several
 * short trials each; the ratio is near 1, ½ or ¼, and the border lies between the last two, so the
 * answer does not waver. */
#include <immintrin.h>
#include <pthread.h>

#include "cpu/fast.h"

enum { CHAINS = 16, ROUNDS = 64, TRIALS = 32 };
#define BORDER 0.36

static bool fast;
static int forced = -1;
static pthread_once_t once = PTHREAD_ONCE_INIT;

#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
/* The compiler must neither drop the chains nor keep them anywhere but in registers. */
#define KEEP(x) __asm__ volatile("" : "+v"(x))

#define TRIAL(name, step)                                                                          \
    static uint64_t name(void)                                                                     \
    {                                                                                              \
        __m512 sum[CHAINS], x = _mm512_setzero_ps();                                               \
        UNROLL for (int i = 0; i < CHAINS; i++) sum[i] = _mm512_setzero_ps();                      \
        const uint64_t begin = __builtin_ia32_rdtsc();                                             \
        for (int k = 0; k < ROUNDS; k++) UNROLL for (int i = 0; i < CHAINS; i++)                   \
            {                                                                                      \
                sum[i] = (step);                                                                   \
                KEEP(sum[i]);                                                                      \
            }                                                                                      \
        const uint64_t ticks = __builtin_ia32_rdtsc() - begin;                                     \
        return ticks;                                                                              \
    }
TRIAL(multiply_add, _mm512_fmadd_ps(x, x, sum[i]))
TRIAL(dot_product, _mm512_dpbf16_ps(sum[i], (__m512bh)x, (__m512bh)x))

static void decide(void)
{
    uint64_t f32 = UINT64_MAX, bf16 = UINT64_MAX;
    for (int i = 0; i < TRIALS; i++) {
        const uint64_t a = multiply_add(), b = dot_product();
        if (a < f32) f32 = a;
        if (b < bf16) bf16 = b;
    }
    fast = (double)f32 > BORDER * (double)bf16;
}

bool ts__bf16_products_pay(void)
{
    if (forced >= 0) return forced;
    pthread_once(&once, decide);
    return fast;
}

void ts__bf16_products_force(int how)
{
    forced = how;
}
