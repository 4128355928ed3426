/* nn/layers.h – the state of ts_layers, which ts_param reads. */
#ifndef TS_LAYERS_H
#define TS_LAYERS_H

#include "nn/nn.h"

typedef struct ts_layer_scope {
    const char *prefix; /* "model.layers" */
    ts_repeat *repeat;
    bool stacked;                       /* parameters are [count, …]; false: one unrolled layer */
    int first, position, period, count; /* this is layer first + position of each period */
} ts_layer_scope;

/* A run of layers: count iterations of `period` layers each, from layer first. count 1: unrolled.
 */
typedef struct ts_segment {
    int first, period, count;
} ts_segment;

/* Segments of n layers by their signatures; out has room for n. The period ≤ 8 (the smallest of
 * equals) that puts most layers into repeats is used throughout; other layers are segments of one.
 */
int ts_layer_segments(const uint64_t *signatures, int n, bool unroll, ts_segment *out);

#endif
