/* malloc_count.h – counts the allocations of the whole process while `counting` is set.
 *
 * Included by one file of a test program. malloc and its relatives are interposed by the executable; under
 * AddressSanitizer its own hooks count. Where neither sees a probe (valgrind replaces malloc) the test says so
 * and skips: malloc_is_counted() tells.
 */
#ifndef TS_MALLOC_COUNT_H
#define TS_MALLOC_COUNT_H

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { LARGE = 4096 };

static atomic_int counting, large, small;

static void count(size_t bytes)
{
    if (!atomic_load(&counting)) return;
    if (bytes >= LARGE)
        atomic_fetch_add(&large, 1);
    else
        atomic_fetch_add(&small, 1);
}

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TEST_ASAN 1
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define TEST_ASAN 1
#endif

#ifdef TEST_ASAN
int __sanitizer_install_malloc_and_free_hooks(void (*on_malloc)(const volatile void *, size_t),
                                              void (*on_free)(const volatile void *));
static void asan_malloc(const volatile void *p, size_t bytes)
{
    (void)p;
    count(bytes);
}
static void asan_free(const volatile void *p)
{
    (void)p;
}
static void install(void)
{
    __sanitizer_install_malloc_and_free_hooks(asan_malloc, asan_free);
}
#else
/* glibc's own entry points under names that stay reachable. */
void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);

void *malloc(size_t n)
{
    count(n);
    return __libc_malloc(n);
}
void *calloc(size_t n, size_t each)
{
    count(n * each);
    return __libc_calloc(n, each);
}
void *realloc(void *p, size_t n)
{
    count(n);
    return __libc_realloc(p, n);
}
void *memalign(size_t align, size_t n);
void *memalign(size_t align, size_t n)
{
    count(n);
    return __libc_memalign(align, n);
}
void *aligned_alloc(size_t align, size_t n)
{
    count(n);
    return __libc_memalign(align, n);
}
int posix_memalign(void **p, size_t align, size_t n)
{
    count(n);
    *p = __libc_memalign(align, n);
    return *p ? 0 : ENOMEM;
}
static void install(void) {}
#endif

static size_t resident_bytes(void)
{
    char text[200];
    FILE *f = fopen("/proc/self/statm", "r");
    unsigned long pages = 0, resident = 0;
    if (!f) return 0;
    size_t n = fread(text, 1, sizeof text - 1, f);
    text[n] = 0;
    fclose(f);
    return sscanf(text, "%lu %lu", &pages, &resident) == 2
               ? resident * (size_t)sysconf(_SC_PAGESIZE)
               : 0;
}

static bool malloc_is_counted(void)
{
    atomic_store(&counting, 1);
    void *volatile p = malloc(LARGE);
    atomic_store(&counting, 0);
    free(p);
    return atomic_exchange(&large, 0) == 1;
}

#endif
