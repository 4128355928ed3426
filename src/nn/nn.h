/* nn/nn.h – layers as graph builders, beyond what tessera.h shows: names of parameters in files,
 * the train step, initial values.
 */
#ifndef TS_NN_H
#define TS_NN_H

#include "ir/builder.h"

/* Name of one layer's tensor: "model.layers.3.mlp.up_proj.weight" for k = 3 of a stack (k = 0 where
 * it is not stacked). buf of 512 bytes; returns buf. */
char *ts_param_name(const ts_param_info *p, int k, char *buf, size_t n);
/* Elements of one layer's tensor. */
int64_t ts_param_elements(const ts_param_info *p);
/* Shell-like pattern with * and ?: "model.embed_tokens.*", "*norm*". */
bool ts_pattern_match(const char *pattern, const char *name);
/* Does one of the patterns match p by its published names? The layers of a stack are one tensor:
 * patterns that match some of them and not others are a mistake of the user, told by the builder;
 * what names the key. */
bool ts_param_matches(ts_builder *b, const ts_param_info *p, const char *const *patterns, int n,
                      const char *what);

/* Initial values of elements first … first + count − 1 of a tensor by its published name, the same
 * for any mesh, stacking and order: a normal of std init from Threefry keyed by (seed, XXH3 of the
 * name) and the element's index; or ones, zeros. */
void ts_init_values(const char *name, double init, uint64_t seed, int64_t first, int64_t count,
                    float *out);

/* ---- optimizer (optimizer.c) ----------------------------------------------------------------- */

typedef struct ts_optimizer_options {
    ts_adamw_options adamw;
    double clip;                 /* global norm; 0 = off */
    const char *const *no_decay; /* patterns without weight decay */
    int n_no_decay;
} ts_optimizer_options;

typedef struct ts_optimizer_inputs {
    ts_value *lr;   /* f32 */
    ts_value *step; /* i32, from 1 */
} ts_optimizer_inputs;

/* Global norm of all gradients, clipping, AdamW on every trained parameter; a step whose loss or
 * norm is not finite changes nothing. Adds inputs "adam.m.NAME", "adam.v.NAME" and outputs that
 * replace them and the parameters. Returns the norm before clipping (f32). ok gets the pred. */
ts_value *ts_optimizer_apply(ts_builder *b, const ts_optimizer_options *o,
                             const ts_optimizer_inputs *in, const int *trained,
                             ts_value *const *grads, int n, ts_value *loss, ts_value **ok);

#endif
