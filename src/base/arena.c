/* base/arena.c – many small objects, freed whole.
 *
 * Blocks grow from 4 KiB to 1 MiB; an object larger than a quarter of a block gets a block of its
 * own, so that little is wasted. Objects are zeroed and 16-byte aligned. An arena never moves an
 * object. Not thread-safe: an arena belongs to one owner.
 */
#include "base/base.h"

#include <stdarg.h>
#include <stdio.h>

enum { FIRST_BLOCK = 4096, LAST_BLOCK = 1 << 20, OBJECT_ALIGN = 16 };

typedef struct block block;
struct block {
    block *next;
    size_t used, capacity;
    _Alignas(OBJECT_ALIGN) unsigned char data[];
};

struct ts_arena {
    block *current; /* the block that is being filled; the list of all of them */
    size_t next_capacity;
    size_t bytes; /* held from the allocator */
};

ts_arena *ts_arena_new(void)
{
    ts_arena *a = ts_alloc_zero(sizeof *a);
    if (!a) return NULL;
    a->next_capacity = FIRST_BLOCK;
    a->bytes = sizeof *a;
    return a;
}

void ts_arena_free(ts_arena *a)
{
    if (!a) return;
    for (block *b = a->current, *next; b; b = next) {
        next = b->next;
        ts_free(b);
    }
    ts_free(a);
}

static block *block_new(ts_arena *a, size_t capacity)
{
    size_t bytes;
    if (ts_add_size(sizeof(block), capacity, &bytes)) return NULL;
    block *b = ts_alloc_zero(bytes);
    if (!b) return NULL;
    b->capacity = capacity;
    a->bytes += bytes;
    return b;
}

void *ts_arena_alloc(ts_arena *a, size_t bytes)
{
    if (bytes > PTRDIFF_MAX - OBJECT_ALIGN) return NULL;
    size_t n = ts_round_up(bytes ? bytes : 1, OBJECT_ALIGN);
    block *b = a->current;
    if (b && b->capacity - b->used >= n) {
        void *p = b->data + b->used;
        b->used += n;
        return p;
    }
    if (n > a->next_capacity / 4) {
        b = block_new(a, n);
        if (!b) return NULL;
        b->used = n;
        if (a->current) { /* behind the current block, which still has room */
            b->next = a->current->next;
            a->current->next = b;
        } else {
            a->current = b;
        }
        return b->data;
    }
    b = block_new(a, a->next_capacity);
    if (!b) return NULL;
    if (a->next_capacity < LAST_BLOCK) a->next_capacity *= 2;
    b->next = a->current;
    a->current = b;
    b->used = n;
    return b->data;
}

char *ts_arena_strndup(ts_arena *a, const char *s, size_t n)
{
    size_t bytes;
    if (ts_add_size(n, 1, &bytes)) return NULL;
    char *copy = ts_arena_alloc(a, bytes);
    if (copy && n) memcpy(copy, s, n);
    return copy; /* zeroed: terminated */
}

char *ts_arena_strdup(ts_arena *a, const char *s)
{
    return ts_arena_strndup(a, s, strlen(s));
}

char *ts_arena_printf(ts_arena *a, const char *fmt, ...)
{
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    char *text = n < 0 ? NULL : ts_arena_alloc(a, (size_t)n + 1);
    if (text) vsnprintf(text, (size_t)n + 1, fmt, again);
    va_end(again);
    return text;
}

size_t ts_arena_bytes(const ts_arena *a)
{
    return a->bytes;
}
