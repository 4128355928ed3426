/* base/random.h – counter-based random numbers: a value is a function of a key and a place, with no state, so
 * that it can be made alone, in any order, on any device.
 *
 * Threefry-2x32 with 20 rounds: Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, 2011.
 * Mixer of splitmix64: Steele, Lea & Flood, Fast Splittable Pseudorandom Number Generators, 2014.
 */
#ifndef TS_RANDOM_H
#define TS_RANDOM_H

#include <stdint.h>

static inline void ts_threefry(const uint32_t key[2], uint32_t c0, uint32_t c1, uint32_t out[2])
{
    static const int rotation[8] = {13, 15, 26, 6, 17, 29, 16, 24};
    const uint32_t ks[3] = {key[0], key[1], 0x1bd11bdau ^ key[0] ^ key[1]};
    uint32_t x0 = c0 + ks[0], x1 = c1 + ks[1];
    for (int round = 0; round < 20; round++) {
        int r = rotation[round % 8];
        x0 += x1;
        x1 = (x1 << r | x1 >> (32 - r)) ^ x0;
        if (round % 4 == 3) {
            int s = round / 4 + 1;
            x0 += ks[s % 3];
            x1 += ks[(s + 1) % 3] + (uint32_t)s;
        }
    }
    out[0] = x0;
    out[1] = x1;
}

/* The finaliser of splitmix64: every bit of x moves about half of the result's bits. */
static inline uint64_t ts_mix64(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

#endif
