/* cpu/memory.c – large zeroed memory for arenas, constants and buffers.
 *
 * From 2 MiB on it is mapped, aligned to huge pages and advised to use them; smaller pieces come
 * through the allocator seam. All of it is made at compile or when a buffer is made, never in the step.
 */
#include "cpu/program.h"

#include <sys/mman.h>

static const size_t huge_page = (size_t)2 << 20;

static void *map_aligned(size_t bytes)
{
    unsigned char *p =
        mmap(NULL, bytes + huge_page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return NULL;
    size_t head = (huge_page - (uintptr_t)p % huge_page) % huge_page;
    if (head) munmap(p, head);
    munmap(p + head + bytes, huge_page - head);
    madvise(p + head, bytes,
            MADV_HUGEPAGE); /* a hint: kernels without it refuse, and nothing is lost */
    return p + head;
}

size_t ts__cpu_memory_bytes(size_t bytes)
{
    return bytes < huge_page || bytes > (size_t)PTRDIFF_MAX - huge_page ? bytes : ts_round_up(bytes, huge_page);
}

ts_status ts__cpu_memory_new(size_t bytes, const char *what, ts_cpu_memory *out, ts_error *err)
{
    *out = (ts_cpu_memory){.bytes = bytes};
    if (bytes < huge_page) {
        out->data = ts_alloc_zero(bytes ? bytes : 1);
    } else if (bytes <= (size_t)PTRDIFF_MAX - 2 * huge_page) {
        out->mapped = ts__cpu_memory_bytes(bytes);
        out->data = map_aligned(out->mapped);
    }
    if (out->data) return TS_OK;
    *out = (ts_cpu_memory){0};
    return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "out of memory: %.1f MiB for %s could not be had",
                    (double)bytes / (1 << 20), what);
}

void ts__cpu_memory_free(ts_cpu_memory *m)
{
    if (m->mapped)
        munmap(m->data, m->mapped);
    else
        ts_free(m->data);
    *m = (ts_cpu_memory){0};
}
