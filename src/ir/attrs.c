/* ir/attrs.c – one table of every attribute's fields, from attrs.def, with equality and hash.
 *
 * Rows of one attribute stand together in attrs.def, so its fields are a slice of the table. A new
 * WORD field needs its words here; a test walks the table and refuses one without.
 */
#include "ir/attrs.h"

#include <xxhash.h>

static const ts_field fields[] = {
#define FIELD(member, kind, field) \
    {TS_ATTR_##member, TS_FIELD_##kind, #field, offsetof(ts_attr, member.field)},
#include "ir/attrs.def"
#undef FIELD
};
enum { FIELDS = sizeof fields / sizeof *fields };

static const char *const compare_words[] = {"eq", "ne", "lt", "le", "gt", "ge"};
static const char *const act_words[] = {"silu", "gelu_tanh"};
static const char *const reduce_words[] = {"sum", "max"};

const ts_field *ts__attr_fields(ts_attr_kind attr, int *n)
{
    int first = 0;
    while (first < FIELDS && fields[first].attr != attr) first++;
    *n = 0;
    while (first + *n < FIELDS && fields[first + *n].attr == attr) ++*n;
    return &fields[first < FIELDS ? first : 0];
}

const char *const *ts__field_words(const ts_field *f, int *n)
{
    static const struct {
        ts_attr_kind attr;
        const char *field;
        const char *const *words;
        int n;
    } table[] = {
        {TS_ATTR_compare, "dir", compare_words, sizeof compare_words / sizeof *compare_words},
        {TS_ATTR_gated, "act", act_words, sizeof act_words / sizeof *act_words},
        {TS_ATTR_collective, "reduce", reduce_words, sizeof reduce_words / sizeof *reduce_words},
    };
    *n = 0;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (table[i].attr == f->attr && strcmp(table[i].field, f->name) == 0) {
            *n = table[i].n;
            return table[i].words;
        }
    return NULL;
}

static bool same_text(const char *a, const char *b)
{
    return a == b || (a && b && strcmp(a, b) == 0);
}

static bool same_shape(const ts_shape *a, const ts_shape *b)
{
    if (a->rank != b->rank) return false;
    for (int i = 0; i < a->rank; i++)
        if (a->dim[i].size != b->dim[i].size || !same_text(a->dim[i].name, b->dim[i].name))
            return false;
    return true;
}

static bool same_dims(const ts_dims *a, const ts_dims *b)
{
    return a->n == b->n && memcmp(a->v, b->v, (size_t)a->n * sizeof *a->v) == 0;
}

bool ts__attr_same(ts_attr_kind attr, const ts_attr *a, const ts_attr *b)
{
    int n;
    const ts_field *f = ts__attr_fields(attr, &n);
    for (int i = 0; i < n; i++) {
        const char *x = (const char *)a + f[i].offset, *y = (const char *)b + f[i].offset;
        bool same = false;
        switch (f[i].kind) {
        case TS_FIELD_DT: same = *(const ts_dtype *)x == *(const ts_dtype *)y; break;
        case TS_FIELD_INT: same = *(const int64_t *)x == *(const int64_t *)y; break;
        case TS_FIELD_REAL: same = memcmp(x, y, sizeof(double)) == 0; break;
        case TS_FIELD_BOOL: same = *(const bool *)x == *(const bool *)y; break;
        case TS_FIELD_DIMS: same = same_dims((const ts_dims *)x, (const ts_dims *)y); break;
        case TS_FIELD_SHAPE: same = same_shape((const ts_shape *)x, (const ts_shape *)y); break;
        case TS_FIELD_WORD: same = *(const int *)x == *(const int *)y; break;
        case TS_FIELD_TEXT:
            same = same_text(*(const char *const *)x, *(const char *const *)y);
            break;
        }
        if (!same) return false;
    }
    return true;
}

uint64_t ts__attr_hash(ts_attr_kind attr, const ts_attr *a, uint64_t seed)
{
    int n;
    const ts_field *f = ts__attr_fields(attr, &n);
    for (int i = 0; i < n; i++) {
        const char *x = (const char *)a + f[i].offset;
        switch (f[i].kind) {
        case TS_FIELD_DT: seed = XXH3_64bits_withSeed(x, sizeof(ts_dtype), seed); break;
        case TS_FIELD_INT: seed = XXH3_64bits_withSeed(x, sizeof(int64_t), seed); break;
        case TS_FIELD_REAL: seed = XXH3_64bits_withSeed(x, sizeof(double), seed); break;
        case TS_FIELD_BOOL: seed = XXH3_64bits_withSeed(x, sizeof(bool), seed); break;
        case TS_FIELD_DIMS: {
            const ts_dims *d = (const ts_dims *)x;
            seed = XXH3_64bits_withSeed(d->v, (size_t)d->n * sizeof *d->v, seed + (uint64_t)d->n);
            break;
        }
        case TS_FIELD_SHAPE: {
            const ts_shape *s = (const ts_shape *)x;
            for (int k = 0; k < s->rank; k++)
                seed = XXH3_64bits_withSeed(&s->dim[k].size, sizeof s->dim[k].size, seed);
            break;
        }
        case TS_FIELD_WORD: seed = XXH3_64bits_withSeed(x, sizeof(int), seed); break;
        case TS_FIELD_TEXT: break;
        }
    }
    return seed;
}
