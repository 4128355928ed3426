/* train/program.h – the graphs a run executes: train step, evaluation, probe, next-token logits.
 *
 * All take the parameters as inputs under their stacked names and share buffers by name
 * (state.h). Batches are i32 "tokens", "labels" [rows, S] (labels already shifted, negative = not
 * trained) and, where samples are packed, "segments", "positions"; with gradient accumulation
 * [micro-batches, rows, S]. Rope's "rope.cos", "rope.sin" f32 [S, D/2] are inputs too.
 */
#ifndef TS_PROGRAM_H
#define TS_PROGRAM_H

#include "models/model.h"
#include "nn/nn.h"

typedef struct ts_program_options {
    const ts_model_config *model;
    int64_t rows, sequence; /* of one micro-batch, all devices */
    int64_t accumulation; /* train: micro-batches a step, a dimension of the batch inputs where > 1 */
    bool packed;          /* segments and positions are inputs */
    bool row_losses;      /* train: "row_loss" is an output; the others are the same to the bit */
    ts_dtype compute;
    ts_remat remat;
    bool scan_layers;
    const char *const *frozen; /* patterns of parameters that are not trained */
    int n_frozen;
    ts_optimizer_options optimizer;
} ts_program_options;

/* Inputs also "lr" f32, "step" i32 (from 1), "adam.m.*", "adam.v.*"; outputs "loss" (Σ/weights), "weights" f32,
 * "grad_norm" f32, "ok" pred, and the new state in place of the old; "row_loss" f32 [rows] or [micro-batches, rows], a
 * row's Σ. */
ts_status ts_program_train(const ts_program_options *o, ts_graph **out, ts_error *err);
/* Outputs "loss_sum" f32 over the batch and "weights" f32. */
ts_status ts_program_eval(const ts_program_options *o, ts_graph **out, ts_error *err);
/* Outputs "logits" [rows,S,V], "loss", "hidden.embed", "hidden.N" …, "hidden.norm", "grad.<parameter>". */
ts_status ts_program_probe(const ts_program_options *o, ts_graph **out, ts_error *err);
/* Inputs "tokens" [rows,S] and "last" i32: output "logits" f32 [rows,V] at position last. */
ts_status ts_program_logits(const ts_program_options *o, ts_graph **out, ts_error *err);

/* Is parameter p held fixed by a pattern? */
bool ts_program_is_frozen(const ts_program_options *o, const ts_param_info *p);

#endif
