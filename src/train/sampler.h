/* train/sampler.h – next tokens from a state by computing the whole prefix again. */
#ifndef TS_SAMPLER_H
#define TS_SAMPLER_H

#include "models/model.h"
#include "token/tokenizer.h"
#include "train/state.h"

typedef struct ts_sampler ts_sampler;
/* Borrows engine, model, state and configuration until ts_sampler_free. c: how the state lies on devices; NULL: on
 * one. */
ts_status ts_sampler_new(ts_engine *e, const ts_model_config *m, ts_state *state, ts_dtype compute,
                         const ts_config *c, ts_sampler **out, ts_error *err);
void ts_sampler_free(ts_sampler *s); /* NULL is fine */
/* Chooses among ids 0 … n − 1 only (n ≥ 1): those that a tokenizer can show. */
void ts_sampler_limit(ts_sampler *s, int64_t n);
bool ts_sampler_is_compiled(const ts_sampler *s, size_t n); /* for texts of n tokens; the next logits do that else */
/* Logits f32 [V] after ids[n], n ≥ 1. Until the next call. */
ts_status ts_sampler_logits(ts_sampler *s, const int32_t *ids, size_t n, const float **logits,
                            ts_error *err);

/* Greedy where temperature is 0 (the first of equals), else from the smallest set of tokens whose probability
 * reaches top_p. A logit that is NaN counts as the least. *random is the state of a splitmix64 generator.
 * scratch: n indices. */
int32_t ts_sample(const float *logits, int32_t n, double temperature, double top_p,
                  uint64_t *random, int32_t *scratch);

/* The loop over new tokens that generate and the samples of a run share; stops at eos where asked. */
ts_status ts_sampler_run(ts_sampler *s, const int32_t *prompt, size_t n,
                         const ts_generate_options *o, bool (*token)(void *context, int32_t id),
                         void *context, ts_error *err);

/* The bytes of ids for people: special tokens left out, U+FFFD for an id that t does not have. *strangers
 * counts these. */
ts_status ts_sampler_text(const ts_tokenizer *t, const int32_t *ids, size_t n, ts_string *out,
                          size_t *strangers, ts_error *err);

#endif
