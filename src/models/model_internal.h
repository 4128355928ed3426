/* models/model_internal.h – what the model files share. */
#ifndef TS_MODEL_INTERNAL_H
#define TS_MODEL_INTERNAL_H

#include "models/model.h"
#include "nn/layers.h"

ts_forward ts__llama_forward(ts_builder *b, const ts_model_config *c, const ts_forward_inputs *in);

/* n equal signatures, for models whose layers are all alike. */
const uint64_t *ts_equal_layers(ts_builder *b, int n);
/* An untied head [V,E]. */
ts_value *ts_head(ts_builder *b, const char *name, ts_dim vocab, ts_dim embed);
/* A tied table is read both ways: small enough for logits of about one, scaled up by nothing. */
double ts_tied_embedding_init(int64_t hidden);

#endif
