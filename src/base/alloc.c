/* base/alloc.c – the seam through which every allocation of ours passes.
 *
 * Blocks are 64-byte aligned (a cache line, an AVX-512 register) and come from the C library, so
 * ts_free is free and memory sanitizers see every block. Calls are counted, for the tests that show
 * that a step allocates nothing, and a test can make the n-th call fail. The counters are atomic:
 * any thread may allocate.
 */
#include "base/base.h"

#include <stdatomic.h>
#include <stdlib.h>

enum { ALIGNMENT = 64 };

static atomic_uint_fast64_t calls;
static atomic_uint_fast64_t fail_at; /* absolute number of the call that fails; 0 = never */

uint64_t ts_alloc_count(void)
{
    return atomic_load(&calls);
}

void ts_alloc_fail_at(uint64_t nth)
{
    atomic_store(&fail_at, nth == 0 ? 0 : atomic_load(&calls) + nth);
}

void *ts_alloc(size_t bytes)
{
    uint64_t call = atomic_fetch_add(&calls, 1) + 1;
    if (call == atomic_load(&fail_at)) return NULL;
    if (bytes > PTRDIFF_MAX - ALIGNMENT) return NULL;
    return aligned_alloc(ALIGNMENT, ts_round_up(bytes ? bytes : 1, ALIGNMENT));
}

void *ts_alloc_zero(size_t bytes)
{
    void *p = ts_alloc(bytes);
    if (p) memset(p, 0, bytes);
    return p;
}

void *ts_realloc(void *p, size_t old_bytes, size_t bytes)
{
    void *q = ts_alloc(bytes);
    if (!q) return NULL; /* p stays valid, as with realloc */
    if (p) memcpy(q, p, old_bytes < bytes ? old_bytes : bytes);
    ts_free(p);
    return q;
}

void ts_free(void *p)
{
    free(p);
}

char *ts_strdup(const char *s)
{
    size_t n = strlen(s) + 1;
    char *copy = ts_alloc(n);
    if (copy) memcpy(copy, s, n);
    return copy;
}
