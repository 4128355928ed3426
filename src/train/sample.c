/* train/sample.c – text samples of the model while it trains (sample_interval).
 *
 * A prompt is sample_prompt, or the first tokens of the batch at hand. Sampling at temperature 0.8 and top-p 0.95
 * with the step as seed: a run that is repeated shows the same text. What a sample shows is an extra: one that
 * cannot be made is a warning and never ends the run. A stop that is asked for meanwhile is obeyed at the next
 * token.
 */
#include "base/log.h"
#include "train/run.h"
#include "train/sampler.h"

enum { PROMPT_TOKENS = 24 };

typedef struct collected {
    ts_run *run;
    int32_t *id;
    size_t n, prompt; /* new ones; before them */
    ts_status obeyed; /* of a save that was asked for */
    ts_error *err;
} collected;

/* A token must come in time; a program that is compiled for it may take its own. */
static void watch_next(const collected *c)
{
    if (ts_sampler_is_compiled(c->run->sampler, c->prompt + c->n))
        ts__run_begin(c->run, "a sample's token", (int64_t)c->n);
    else
        ts__run_idle(c->run, "compiling for a sample");
}

static bool collect(void *context, int32_t id)
{
    collected *c = context;
    c->id[c->n++] = id;
    c->obeyed = ts__run_obey(c->run, c->err);
    watch_next(c);
    return c->obeyed == TS_OK && !c->run->interrupted;
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

static ts_status make_sampler(ts_run *r, ts_error *err)
{
    if (r->sampler) return TS_OK;
    TS_TRY(
        ts_sampler_new(r->engine, &r->model, r->state, r->config->compute_dtype, r->config,
                       &r->sampler, err));
    ts_sampler_limit(r->sampler, ts_tokenizer_vocab_size(r->tokenizer));
    return TS_OK;
}

static ts_status show(ts_run *r, const ts_tokens *ids, ts_error *err)
{
    size_t strangers;
    ts_string text = ts_string_new((size_t)1 << 24);
    ts_status status = ts_sampler_text(r->tokenizer, ids->id, ids->n, &text, &strangers, err);
    if (status == TS_OK && strangers && !r->strangers)
        ts_log(TS_LOG_WARNING,
               "samples begin with tokens of the data, and %zu of these have no text in the %s "
               "tokenizer; sample_prompt=TEXT gives another beginning",
               strangers, ts_tokenizer_type(r->tokenizer));
    r->strangers |= strangers > 0;
    if (status == TS_OK)
        r->hooks->sample(r->hooks->context, r->step - 1, text.data ? text.data : "");
    ts_string_free(&text);
    return status;
}

ts_status ts__run_sample(ts_run *r, ts_error *err)
{
    ts_generate_options o;
    ts_tokens prompt = {0};
    ts_error why = {0};
    collected got = {.run = r, .obeyed = TS_OK, .err = err};
    if (!r->hooks->sample) return TS_OK;
    ts_generate_options_default(&o);
    o.max_new = r->config->sample_tokens;
    o.temperature = 0.8;
    o.top_p = 0.95;
    o.seed = (uint64_t)r->step;
    ts_status status = make_sampler(r, &why);
    if (status == TS_OK) status = prompt_tokens(r, &prompt, &why);
    if (status == TS_OK) status = ts_tokens_reserve(&prompt, (size_t)o.max_new, &why);
    if (status == TS_OK) {
        got.id = prompt.id + prompt.n;
        got.prompt = prompt.n;
        watch_next(&got);
        status = ts_sampler_run(r->sampler, prompt.id, prompt.n, &o, collect, &got, &why);
        prompt.n += got.n;
    }
    ts_watch_idle(r->watch);
    bool stopped = got.obeyed != TS_OK || r->interrupted;
    if (status == TS_OK && !stopped) status = show(r, &prompt, &why);
    if (status != TS_OK)
        ts_log(TS_LOG_WARNING, "no sample after step %lld: %s", (long long)r->step - 1, why.msg);
    ts_tokens_free(&prompt);
    return got.obeyed;
}
