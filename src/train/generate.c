/* train/generate.c – text from a model on disk: the generator of tessera.h.
 *
 * Weights are loaded once as f32; the sampler compiles programs for them as texts grow. A model without a
 * tokenizer that can be read still works on ids.
 */
#include "base/log.h"
#include "train/run.h"
#include "train/sampler.h"

struct ts_generator {
    ts_config config; /* on the engine's devices; lives no longer than the one it was opened with */
    ts_engine *engine;
    ts_source source;
    ts_graph *graph; /* lists the parameters */
    ts_placed placed;
    ts_state *state;
    ts_sampler *sampler;
    bool strangers; /* ids without text were shown: said once */
};

void ts_generate_options_default(ts_generate_options *o)
{
    *o = (ts_generate_options){
        .struct_size = sizeof *o, .max_new = 128, .top_p = 1, .stop_at_eos = true};
}

static ts_status open_all(ts_generator *g, const ts_config *c, const char *model, ts_error *err)
{
    TS_TRY(ts_source_open(model, &g->source, err));
    ts_program_options o = {.model = &g->source.model,
                            .rows = 1,
                            .sequence = 1,
                            .accumulation = 1,
                            .scan_layers = true};
    TS_TRY(ts_program_logits(&o, &g->graph, err));
    TS_TRY(ts__open_placed(c, &g->source.model, &g->config, &g->engine, err));
    TS_TRY(ts_place(&g->config, g->graph, TS_PLACE_SAMPLE, &g->placed, err));
    TS_TRY(ts_state_place(g->engine, &g->placed, &g->state, err));
    TS_TRY(ts_state_load(g->state, g->source.tensors, err));
    return ts_sampler_new(g->engine, &g->source.model, g->state, c->compute_dtype, &g->config,
                          &g->sampler, err);
}

ts_status ts_generator_open(const ts_config *c, const char *model, ts_generator **out,
                            ts_error *err)
{
    ts_generator *g = ts_alloc_zero(sizeof *g);
    *out = NULL;
    if (!g) return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out for generation");
    ts_status status = open_all(g, c, model, err);
    if (status == TS_OK)
        *out = g;
    else
        ts_generator_free(g);
    return status;
}

void ts_generator_free(ts_generator *g)
{
    if (!g) return;
    ts_sampler_free(g->sampler);
    ts_state_free(g->state);
    ts_placed_free(&g->placed);
    ts_graph_free(g->graph);
    ts_engine_close(g->engine);
    ts_source_close(&g->source);
    ts_free(g);
}

bool ts_generator_has_tokenizer(const ts_generator *g)
{
    return g->source.tokenizer != NULL;
}
void ts_generator_release(void *p)
{
    ts_free(p);
}

static ts_status need_tokenizer(const ts_generator *g, ts_error *err)
{
    if (g->source.tokenizer) return TS_OK;
    return TS_ERROR(
        err, TS_FAILED_PRECONDITION,
        "this model brings no tokenizer that this version reads (byte only); give token "
        "ids instead (--ids 1,2,3 --print-ids)");
}

ts_status ts_generator_encode(ts_generator *g, const char *text, int32_t **ids, size_t *n,
                              ts_error *err)
{
    ts_tokens t = {0};
    *ids = NULL;
    TS_TRY(need_tokenizer(g, err));
    /* A byte model learned from windows of a text, where a begin token is as good as never seen. */
    bool begin = ts_tokenizer_bos(g->source.tokenizer) >= 0 &&
                 (!*text || !ts_tokenizer_is_bytewise(g->source.tokenizer));
    unsigned flags = begin ? TS_ENCODE_BOS : TS_ENCODE_PLAIN;
    ts_status status = ts_tokenizer_encode(g->source.tokenizer, text, strlen(text), flags, &t, err);
    if (status != TS_OK) {
        ts_tokens_free(&t);
        return status;
    }
    *ids = t.id;
    *n = t.n;
    return TS_OK;
}

ts_status ts_generator_decode(ts_generator *g, const int32_t *ids, size_t n, char **text,
                              size_t *bytes, ts_error *err)
{
    ts_string s = ts_string_new((size_t)1 << 30);
    size_t strangers;
    *text = NULL;
    *bytes = 0;
    TS_TRY(need_tokenizer(g, err));
    ts_string_add(&s, ""); /* no ids are a text too */
    ts_status status = ts_sampler_text(g->source.tokenizer, ids, n, &s, &strangers, err);
    if (status != TS_OK) {
        ts_string_free(&s);
        return status;
    }
    if (strangers && !g->strangers)
        ts_log(
            TS_LOG_WARNING,
            "the %s tokenizer has ids 0 to %d, the model others too: those are shown as \xef\xbf\xbd",
            ts_tokenizer_type(g->source.tokenizer),
            ts_tokenizer_vocab_size(g->source.tokenizer) - 1);
    g->strangers |= strangers > 0;
    *text = s.data;
    *bytes = s.length;
    return TS_OK;
}

ts_status ts_generate(ts_generator *g, const int32_t *prompt, size_t n,
                      const ts_generate_options *o, bool (*token)(void *context, int32_t id),
                      void *context, ts_error *err)
{
    int64_t most = g->source.model.max_positions;
    bool text = o->text_only && g->source.tokenizer;
    if (most > 0 && (n > (size_t)most || o->max_new > most - (int64_t)n))
        ts_log(
            TS_LOG_WARNING,
            "%zu token%s of prompt and up to %lld new ones are more than the %lld positions that "
            "the model was made for; what is beyond them may read badly",
            n, n == 1 ? "" : "s", (long long)o->max_new, (long long)most);
    ts_sampler_limit(g->sampler,
                     text ? ts_tokenizer_vocab_size(g->source.tokenizer) : g->source.model.vocab);
    return ts_sampler_run(g->sampler, prompt, n, o, token, context, err);
}
