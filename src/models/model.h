/* models/model.h – what a decoder is, whatever file or key it came from, and how a graph of it is
 * made. One description serves presets, configuration keys and published config.json files.
 */
#ifndef TS_MODEL_H
#define TS_MODEL_H

#include "base/base.h"

typedef enum ts_arch { TS_ARCH_LLAMA, TS_ARCHS } ts_arch;
typedef enum ts_rope_kind { TS_ROPE_DEFAULT, TS_ROPE_LLAMA3 } ts_rope_kind;

typedef struct ts_model_config {
    ts_arch arch;
    int64_t vocab, hidden, ffn, layers, heads, kv_heads, head_dim, max_positions;
    double norm_eps;
    bool tied; /* the head is the embedding table */
    ts_rope_kind rope;
    double rope_theta;
    double rope_factor, rope_low, rope_high, rope_original; /* TS_ROPE_LLAMA3 only */
    int32_t bos_id, eos_id, pad_id; /* -1 = none; the first of several eos ids */
} ts_model_config;

/* Number of trainable parameters. */
int64_t ts_model_parameters(const ts_model_config *m);
/* Sizes positive and within bounds, heads divisible by kv_heads, head_dim even …; names the field. */
ts_status ts_model_check(const ts_model_config *m, ts_error *err);

/* inv_freq f64 [head_dim/2] with the model's scaling (Llama 3.1: reference formula by wave length). */
void ts_model_rope_frequencies(const ts_model_config *m, double *out);
/* cos, sin f32 [S, head_dim/2] of positions first … first + S − 1. */
void ts_model_rope_tables(const ts_model_config *m, int64_t first, int64_t S, float *cos,
                          float *sin);

typedef struct ts_forward_inputs {
    ts_value *tokens;    /* i32 [B,S] */
    ts_value *segments;  /* i32 [B,S] or NULL: attention inside equal segments only */
    ts_value *cos, *sin; /* f32 [S,D/2] (or [B,S,D/2]) */
} ts_forward_inputs;

typedef struct ts_forward {
    ts_value *embed;  /* what the first layer gets [B,S,E] */
    ts_value *stream; /* last norm's output [B,S,E] */
    ts_value *head;   /* head weight [V,E] */
    double softcap;   /* of the logits; 0 = off */
} ts_forward;

/* The decoder up to the last norm, by m->arch. */
ts_forward ts_model_forward(ts_builder *b, const ts_model_config *m, const ts_forward_inputs *in);

#endif
