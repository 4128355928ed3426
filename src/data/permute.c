/* data/permute.c – the order of an epoch: a permutation of 0 … n−1 without a table.
 *
 * A balanced Feistel network over the smallest even number of bits that holds n−1, with
 * splitmix64's finaliser as round function and keys drawn by splitmix64 from (seed, epoch). Its
 * domain is less than 4n; a result outside is sent through again until it falls inside (cycle
 * walking), which keeps it a bijection. Constant memory, any place of the order at once, the same
 * on every machine.
 *
 * Feistel ciphers on small domains: Black & Rogaway 2002; splitmix64: Steele, Lea & Flood 2014.
 */
#include "data/internal.h"

void ts__permutation_init(ts__permutation *p, uint64_t n, uint64_t seed, uint64_t epoch)
{
    TS_ASSERT(n >= 1 && n <= (uint64_t)1 << 62);
    unsigned bits = n <= 2 ? 1 : 64 - (unsigned)__builtin_clzll(n - 1);
    p->n = n;
    p->half_bits = (bits + 1) / 2;
    uint64_t s = ts_mix64(seed + 0x9e3779b97f4a7c15u) ^ ts_mix64(~epoch);
    for (int r = 0; r < TS_PERMUTATION_ROUNDS; r++) p->key[r] = ts_mix64(s += 0x9e3779b97f4a7c15u);
}

uint64_t ts__permutation_at(const ts__permutation *p, uint64_t i)
{
    TS_ASSERT(i < p->n);
    uint64_t mask = ((uint64_t)1 << p->half_bits) - 1;
    do {
        uint64_t left = i >> p->half_bits, right = i & mask;
        for (int r = 0; r < TS_PERMUTATION_ROUNDS; r++) {
            uint64_t next = left ^ (ts_mix64(right ^ p->key[r]) >> 17 & mask);
            left = right;
            right = next;
        }
        i = left << p->half_bits | right;
    } while (i >= p->n);
    return i;
}
