/* cpu/ref/random.c – counter-based random bits: Threefry-2x32 with 20 rounds (Salmon et al. 2011).
 *
 * Element i is the first word of the block whose key is (key[0], key[1]) and whose counter is
 * (low word of i, high word of i). No state: any element can be made alone, on any device.
 */
#include "base/random.h"
#include "cpu/ref/ref.h"

void ts__ref_random_bits(const ts_cpu_call *c)
{
    const uint32_t *key = c->in[0];
    const int64_t count = ts__ref_count(c->node->out[0]);
#pragma omp parallel for num_threads(c->threads) if (count >= TS__REF_PARALLEL)
    for (int64_t i = 0; i < count; i++) {
        uint32_t word[2];
        ts_threefry(key, (uint32_t)i, (uint32_t)((uint64_t)i >> 32), word);
        ((uint32_t *)c->out[0])[i] = word[0];
    }
}
