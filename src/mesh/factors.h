/* mesh/factors.h – the sharding rule of an op: the factors of every dimension of its operands and results.
 * A factor that a result lacks is summed there: the result is partial over its axes, and nothing else is.
 */
#ifndef TS_FACTORS_H
#define TS_FACTORS_H

#include "ir/graph.h"

enum { TS_MAX_FACTORS = 24, TS_ROW_VALUES = 16, TS_ROW_MERGED = 4 };
typedef enum ts_factor_kind {
    TS_FACTOR_PASS,  /* may be split */
    TS_FACTOR_WHOLE, /* never */
    TS_FACTOR_RANGE  /* may be split; the kernel is told which rows it has */
} ts_factor_kind;

typedef struct ts_factors {
    int nf;
    int64_t size[TS_MAX_FACTORS];
    uint8_t kind[TS_MAX_FACTORS];
    /* Operands, then results: of each dimension its factors, major → minor; −1 none. Only a split or merged dimension
     * of a reshape has more than one. An op of any number of operands (add_n, concat, barrier) has them all alike: the
     * map of operand 0 stands for every one (alike). A dimension of size 1 that broadcasts has no factor. */
    int8_t map[TS_ROW_VALUES][TS_MAX_RANK][TS_ROW_MERGED];
    int n_in; /* rows of operands in map: 1 where alike */
    bool alike;
    bool linear; /* a partial sum of operand 0 passes to the result: neg, mul by what is not partial, reshape … */
} ts_factors;

/* The row of a node, from its global types and attributes. repeat and collectives have none: UNIMPLEMENTED. */
TS_MUST_CHECK ts_status ts__factors(const ts_node *n, ts_factors *out, ts_error *err);
static inline const int8_t (*ts__factors_in(const ts_factors *f, int i))[TS_ROW_MERGED]
{
    return f->map[f->alike ? 0 : i];
}
static inline const int8_t (*ts__factors_out(const ts_factors *f, int i))[TS_ROW_MERGED]
{
    return f->map[f->n_in + i];
}

#endif
