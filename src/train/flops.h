/* train/flops.h – floating-point operations of a training step, by MaxText's formula for dense
 * decoders: what the step line divides by seconds. */
#ifndef TS_TRAIN_FLOPS_H
#define TS_TRAIN_FLOPS_H

#include "models/model.h"

typedef struct ts_step_flops {
    double weights;   /* products with trainable matrices, forward and backward */
    double attention; /* scores and their use, causal half */
} ts_step_flops;

/* rows of sequence tokens each; a step of several micro-batches counts all its rows. Doubles: exact
 * to 2⁵³, and a step of 10¹⁸ operations is rounded in its sixteenth digit. */
ts_step_flops ts_step_flops_of(const ts_model_config *m, double rows, int64_t sequence);

#endif
