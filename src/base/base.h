/* base/base.h – what every room stands on: status and error, asserts, the allocator seam, checked
 * sizes, an arena, bf16.
 *
 * Errors: a programmer's error is TS_ASSERT (always on, never reachable from a file, a socket or a
 * flag). Everything else returns ts_status and writes the detail into a ts_error.
 * The library never calls exit or printf; TS_ASSERT is the only thing that aborts.
 */
#ifndef TS_BASE_H
#define TS_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "tessera.h"

/* ---- asserts --------------------------------------------------------------------------------- */

_Noreturn void ts__assert_failed(const char *file, int line, const char *what);
#define TS_ASSERT(c) ((c) ? (void)0 : ts__assert_failed(__FILE__, __LINE__, #c))

/* ---- errors ---------------------------------------------------------------------------------- */

#define TS_PRINTF(f, a) __attribute__((format(printf, f, a)))

/* Fills *err (which may be NULL) and returns code. Keeps the first error when *err already has one. */
ts_status ts__error(ts_error *err, ts_status code, const char *file, int line, const char *fmt, ...)
    TS_PRINTF(5, 6);
#define TS_ERROR(err, code, ...) ts__error((err), (code), __FILE__, __LINE__, __VA_ARGS__)
/* Puts "context: " in front of the message of *err; returns its code. */
ts_status ts__error_context(ts_error *err, const char *fmt, ...) TS_PRINTF(2, 3);
#define TS_TRY(e)                          \
    do {                                   \
        ts_status try_ = (e);              \
        if (try_ != TS_OK) return try_;    \
    } while (0)
#define TS_TRY_GOTO(e, label)              \
    do {                                   \
        if ((status = (e)) != TS_OK)       \
            goto label;                    \
    } while (0)

/* ---- the allocator seam: every allocation of ours passes here -------------------------------- */

/* NULL when memory is out, when bytes > PTRDIFF_MAX, or when a test fails the n-th call. 64-byte
 * aligned. bytes = 0 gives a unique pointer. Owns: the caller, until ts_free. */
void *ts_alloc(size_t bytes) __attribute__((malloc, warn_unused_result));
void *ts_alloc_zero(size_t bytes) __attribute__((malloc, warn_unused_result));
void *ts_realloc(void *p, size_t old_bytes, size_t bytes) __attribute__((warn_unused_result));
void ts_free(void *p);
char *ts_strdup(const char *s) __attribute__((malloc, warn_unused_result));

uint64_t ts_alloc_count(void);             /* calls so far, for "the step allocates nothing" */
void ts_alloc_fail_at(uint64_t nth);       /* tests: the nth call from now returns NULL; 0 = never */

/* ---- checked sizes: true on overflow, like the builtins -------------------------------------- */

static inline bool ts_mul_size(size_t a, size_t b, size_t *out) { return __builtin_mul_overflow(a, b, out); }
static inline bool ts_add_size(size_t a, size_t b, size_t *out) { return __builtin_add_overflow(a, b, out); }
static inline bool ts_mul_i64(int64_t a, int64_t b, int64_t *out) { return __builtin_mul_overflow(a, b, out); }
static inline bool ts_add_i64(int64_t a, int64_t b, int64_t *out) { return __builtin_add_overflow(a, b, out); }
static inline size_t ts_round_up(size_t n, size_t align) { return (n + align - 1) / align * align; }

/* ---- arena: many small objects, freed whole -------------------------------------------------- */

typedef struct ts_arena ts_arena;
ts_arena *ts_arena_new(void);                              /* NULL when memory is out */
void ts_arena_free(ts_arena *a);                           /* NULL is fine */
void *ts_arena_alloc(ts_arena *a, size_t bytes);           /* zeroed, 16-byte aligned; NULL when out */
char *ts_arena_strdup(ts_arena *a, const char *s);
char *ts_arena_strndup(ts_arena *a, const char *s, size_t n);
char *ts_arena_printf(ts_arena *a, const char *fmt, ...) TS_PRINTF(2, 3);
size_t ts_arena_bytes(const ts_arena *a);

/* ---- growing string with a mandatory maximum ------------------------------------------------- */

typedef struct ts_string {
    char *data;          /* NUL-terminated once anything was added; owns until ts_string_free */
    size_t length, capacity, max;
    bool failed;         /* sticky: over max, or out of memory */
} ts_string;
static inline ts_string ts_string_new(size_t max_bytes) { return (ts_string){.max = max_bytes}; }
void ts_string_add(ts_string *s, const char *text);
void ts_string_add_bytes(ts_string *s, const void *data, size_t n);
void ts_string_printf(ts_string *s, const char *fmt, ...) TS_PRINTF(2, 3);
void ts_string_free(ts_string *s);

/* ---- bf16: the upper half of an f32; round to nearest even, NaN stays NaN -------------------- */

static inline float ts_bf16_to_f32(uint16_t h)
{
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, 4);
    return f;
}

static inline uint16_t ts_bf16_from_f32(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}

/* ---- time and words -------------------------------------------------------------------------- */

double ts_clock_seconds(void);             /* monotonic */
/* Nearest candidate to word by edit distance ≤ 1/3 of its length (at least 2), or NULL. */
const char *ts_nearest_word(const char *word, const char *const *candidates, size_t n);

#endif
