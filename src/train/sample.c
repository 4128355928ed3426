/* train/sample.c – text samples of the model while it trains (sample_interval).
 *
 * A prompt is sample_prompt, or the first tokens of the batch at hand. Sampling at temperature 0.8 and top-p 0.95
 * with the step as seed: a run that is repeated shows the same text.
 */
#include "train/run.h"
#include "train/sampler.h"

enum { PROMPT_TOKENS = 24 };

typedef struct collected {
    int32_t *id;
    size_t n;
} collected;

static bool collect(void *context, int32_t id)
{
    collected *c = context;
    c->id[c->n++] = id;
    return true;
}

static ts_status prompt_tokens(ts_run *r, ts_tokens *out, ts_error *err)
{
    const char *text = r->config->sample_prompt;
    if (*text)
        return ts_tokenizer_encode(r->tokenizer, text, strlen(text), TS_ENCODE_PLAIN, out, err);
    int64_t n =
        r->config->max_target_length < PROMPT_TOKENS ? r->config->max_target_length : PROMPT_TOKENS;
    for (int64_t i = 0; i < n; i++) TS_TRY(ts_tokens_add(out, r->tokens[i], err));
    return TS_OK;
}

ts_status ts__run_sample(ts_run *r, ts_error *err)
{
    const ts_config *c = r->config;
    ts_generate_options o;
    ts_tokens prompt = {0};
    ts_string text = ts_string_new((size_t)1 << 24);
    if (!r->hooks->sample) return TS_OK;
    if (!r->sampler)
        TS_TRY(ts_sampler_new(r->engine, &r->model, r->state, c->compute_dtype, &r->sampler, err));
    ts_generate_options_default(&o);
    o.max_new = c->sample_tokens;
    o.temperature = 0.8;
    o.top_p = 0.95;
    o.seed = (uint64_t)r->step;
    ts_status status = prompt_tokens(r, &prompt, err);
    if (status == TS_OK) status = ts_tokens_reserve(&prompt, (size_t)o.max_new, err);
    if (status == TS_OK) {
        collected got = {prompt.id + prompt.n, 0};
        status = ts_sampler_run(r->sampler, prompt.id, prompt.n, &o, collect, &got, err);
        prompt.n += got.n;
    }
    if (status == TS_OK)
        status = ts_tokenizer_decode(r->tokenizer, prompt.id, prompt.n, true, &text, err);
    if (status == TS_OK && !text.failed)
        r->hooks->sample(r->hooks->context, r->step - 1, text.data ? text.data : "");
    ts_string_free(&text);
    ts_tokens_free(&prompt);
    return status;
}
