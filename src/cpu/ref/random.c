/* cpu/ref/random.c – counter-based random bits: Threefry-2x32 with 20 rounds (Salmon et al. 2011).
 *
 * Element i is the first word of the block whose key is (key[0], key[1]) and whose counter is
 * (low word of i, high word of i). No state: any element can be made alone, on any device.
 */
#include "cpu/ref/ref.h"

static inline uint32_t rotate(uint32_t x, int by)
{
    return x << by | x >> (32 - by);
}

static uint32_t threefry(uint32_t k0, uint32_t k1, uint32_t x0, uint32_t x1)
{
    static const int rotation[8] = {13, 15, 26, 6, 17, 29, 16, 24};
    const uint32_t key[3] = {k0, k1, 0x1bd11bdau ^ k0 ^ k1};
    x0 += key[0];
    x1 += key[1];
    for (int r = 0; r < 20; r++) {
        x0 += x1;
        x1 = rotate(x1, rotation[r % 8]) ^ x0;
        if (r % 4 == 3) {
            const uint32_t s = (uint32_t)r / 4 + 1;
            x0 += key[s % 3];
            x1 += key[(s + 1) % 3] + s;
        }
    }
    return x0;
}

void ts__ref_random_bits(const ts_cpu_call *c)
{
    const uint32_t *key = c->in[0];
    const int64_t count = ts__ref_count(c->node->out[0]);
#pragma omp parallel for num_threads(c->threads) if (count >= TS__REF_PARALLEL)
    for (int64_t i = 0; i < count; i++)
        ((uint32_t *)c->out[0])[i] =
            threefry(key[0], key[1], (uint32_t)i, (uint32_t)((uint64_t)i >> 32));
}
