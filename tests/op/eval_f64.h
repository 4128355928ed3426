/* tests/op/eval_f64.h – a graph evaluated in double precision: what every engine is measured
 * against. */
#ifndef TS_TEST_EVAL_F64_H
#define TS_TEST_EVAL_F64_H

#include "ir/graph.h"

/* in: one array a graph input, out: one array a graph output (the caller's, of its element count).
 * Any dtype is held as double; bf16 values are not rounded on the way. */
void f64_eval(const ts_graph *g, double *const *in, double *const *out);
/* The two output words of Threefry-2x32-20. */
void f64_threefry(const uint32_t key[2], const uint32_t counter[2], uint32_t out[2]);

/* ---- shared by eval_f64.c and eval_f64_fused.c ---- */
typedef struct f64_call {
    const ts_node *node;
    const double *in[16];
    double *out[16];
} f64_call;
void f64_fused(const f64_call *c);

#endif
