/* ir/attrs.h – attributes seen generically through attrs.def: for the printer, the parser and
 * common-subexpression elimination. */
#ifndef TS_ATTRS_H
#define TS_ATTRS_H

#include "ir/graph.h"

typedef enum ts_field_kind {
    TS_FIELD_DT,
    TS_FIELD_INT,
    TS_FIELD_REAL,
    TS_FIELD_BOOL,
    TS_FIELD_DIMS,
    TS_FIELD_SHAPE,
    TS_FIELD_WORD,
    TS_FIELD_TEXT
} ts_field_kind;

typedef struct ts_field {
    ts_attr_kind attr;
    ts_field_kind kind;
    const char *name;
    size_t offset; /* in ts_attr */
} ts_field;

/* The fields of one kind of attribute, in the order of attrs.def; *n of them. */
const ts_field *ts__attr_fields(ts_attr_kind attr, int *n);
/* The words of an enumeration field: word i is value i; *n of them. */
const char *const *ts__field_words(const ts_field *f, int *n);
/* Equal in every field, reals by their bits. The hash agrees with it. */
bool ts__attr_same(ts_attr_kind attr, const ts_attr *a, const ts_attr *b);
uint64_t ts__attr_hash(ts_attr_kind attr, const ts_attr *a, uint64_t seed);

#endif
