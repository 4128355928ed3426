/* slow.h – what tests do less of where everything runs a second time, under sanitizers or valgrind (TESSERA_SLOW).
 *
 * XLA's compiler is not ours and carries no sanitizer. Without optimizations it takes half its time, which is most of
 * a short test's; the programs and the calls are the same, and the first run has compared what users get.
 */
#ifndef TS_TEST_SLOW_H
#define TS_TEST_SLOW_H

#include <stdbool.h>
#include <stdlib.h>

/* A flag of XLA's on CPUs. */
#define TEST_QUICK_XLA "xla_backend_optimization_level=0"

static inline bool test_is_slow(void)
{
    return getenv("TESSERA_SLOW") != NULL;
}

#endif
