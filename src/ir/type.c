/* ir/type.c – dtypes and types: sizes, equality, text, and the limits every type obeys.
 *
 * A type that passed ts__type_check has rank ≤ TS_MAX_RANK, sizes ≥ 0 and at most 2^48 elements
 * even where an empty dimension makes the product zero, so that no later product of sizes
 * overflows. ts_type_make marks an impossible rank as −1, which ts__type_check refuses. Not here:
 * what an operation makes of its operands' types (shape.c).
 */
#include <inttypes.h>
#include <stdio.h>

#include "ir/graph.h"

static const struct {
    const char *name;
    size_t bytes;
} dtypes[TS_DTYPES] = {
    [TS_F32] = {"f32", 4}, [TS_BF16] = {"bf16", 2}, [TS_I32] = {"i32", 4},
    [TS_U32] = {"u32", 4}, [TS_PRED] = {"pred", 1},
};

size_t ts_dtype_bytes(ts_dtype t) { return (unsigned)t < TS_DTYPES ? dtypes[t].bytes : 0; }

const char *ts_dtype_name(ts_dtype t) { return (unsigned)t < TS_DTYPES ? dtypes[t].name : "?"; }

int64_t ts_type_elements(const ts_type *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->rank; i++) {
        if (t->dim[i].size <= 0) return 0;
        if (ts_mul_i64(n, t->dim[i].size, &n)) n = INT64_MAX;
    }
    return n;
}

size_t ts_type_bytes(const ts_type *t)
{
    size_t bytes;
    if (ts_mul_size((size_t)ts_type_elements(t), ts_dtype_bytes(t->dtype), &bytes)) return SIZE_MAX;
    return bytes;
}

bool ts_type_same(const ts_type *a, const ts_type *b)
{
    if (a->dtype != b->dtype || a->rank != b->rank) return false;
    for (int i = 0; i < a->rank; i++)
        if (a->dim[i].size != b->dim[i].size) return false;
    return true;
}

ts_type ts_type_make(ts_dtype dtype, const ts_dim *dims, int rank)
{
    ts_type t = {.dtype = dtype, .rank = rank};
    if (rank < 0 || rank > TS_MAX_RANK) t.rank = -1;
    for (int i = 0; i < t.rank; i++) t.dim[i] = dims[i];
    return t;
}

char *ts_type_text(const ts_type *t, char *buf, size_t n)
{
    size_t at = 0;
    int k = snprintf(buf, n, "%s[", ts_dtype_name(t->dtype));
    for (int i = 0; k >= 0 && i <= t->rank; i++) {
        at = at + (size_t)k < n ? at + (size_t)k : n - 1;
        if (i == t->rank) k = snprintf(buf + at, n - at, "]");
        else
            k = snprintf(buf + at, n - at, "%s%.48s%s%" PRId64, i ? "," : "",
                         t->dim[i].name ? t->dim[i].name : "", t->dim[i].name ? ":" : "",
                         t->dim[i].size);
    }
    return buf;
}

ts_status ts__type_check(const ts_type *t, const char *what, ts_error *err)
{
    char text[400];
    int64_t n = 1;
    if ((unsigned)t->dtype >= TS_DTYPES)
        return TS_ERROR(err, TS_INVALID_ARGUMENT, "%s: dtype %d does not exist", what,
                        (int)t->dtype);
    if (t->rank < 0 || t->rank > TS_MAX_RANK)
        return TS_ERROR(err, TS_INVALID_ARGUMENT, "%s: the rank must be 0 to %d", what,
                        TS_MAX_RANK);
    for (int i = 0; i < t->rank; i++) {
        int64_t size = t->dim[i].size;
        if (size < 0)
            return TS_ERROR(err, TS_INVALID_ARGUMENT, "%s: dimension %d of %s is negative", what, i,
                            ts_type_text(t, text, sizeof text));
        if (ts_mul_i64(n, size ? size : 1, &n) || n > TS_MAX_ELEMENTS)
            return TS_ERROR(err, TS_INVALID_ARGUMENT, "%s: %s has more than 2^48 elements", what,
                            ts_type_text(t, text, sizeof text));
    }
    return TS_OK;
}
