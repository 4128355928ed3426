/* cpu/xent.h – the row work of linear_xent, between its matrix products (xent.c), one set an isa.
 */
#ifndef TS_CPU_XENT_H
#define TS_CPU_XENT_H

#include "cpu/fast.h"

typedef struct ts__xent_rows {
    /* Logits z [n] capped in place; the running maximum and Σ exp(z − maximum) of the row follow.
     */
    void (*forward)(float *z, int64_t n, float softcap, float *most, float *total);
    /* z [n] becomes (p·weight − [i is label]·dloss) · slope of the cap, p = exp(capped z − lse);
     * also into half as bf16 unless it is NULL. label −1: none. */
    void (*backward)(float *z, uint16_t *half, int64_t n, float softcap, float lse, float weight,
                     int64_t label, float dloss);
} ts__xent_rows;
extern const ts__xent_rows ts__xent_rows_avx2, ts__xent_rows_avx512;

#endif
