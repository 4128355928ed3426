/* train/sampler.c – recomputes the prefix for every token, in a program compiled for a length of 64, 128, … so
 * that few programs serve all lengths. Positions after the last token are padding, which causal attention
 * never lets it see. A cache of keys and values is not here.
 */
#include "train/sampler.h"

#include <math.h>
#include <stdlib.h>

#include "base/random.h"
#include "train/program.h"
#include "train/run.h"

enum { FIRST_LENGTH = 64 };

struct ts_sampler {
    ts_engine *engine;
    const ts_model_config *model;
    const ts_config *config;
    ts_state *state;
    ts_dtype compute;
    int64_t choices; /* ids below it can be chosen */
    int64_t length;  /* of the compiled program; 0: none yet */
    ts_graph *graph;
    ts_placed placed; /* a batch of one row lies whole on every device */
    ts_bound *bound;
    int32_t *tokens;  /* [length] */
    float *logits;    /* [V] */
    int32_t *scratch; /* [V] */
};

ts_status ts_sampler_new(ts_engine *e, const ts_model_config *m, ts_state *state, ts_dtype compute,
                         const ts_config *c, ts_sampler **out, ts_error *err)
{
    ts_sampler *s = ts_alloc_zero(sizeof *s);
    *out = NULL;
    if (!s) return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out for generation");
    *s = (ts_sampler){.engine = e,
                      .model = m,
                      .config = c,
                      .state = state,
                      .compute = compute,
                      .choices = m->vocab};
    s->logits = ts_alloc((size_t)m->vocab * sizeof(float));
    s->scratch = ts_alloc((size_t)m->vocab * sizeof(int32_t));
    if (s->logits && s->scratch) {
        *out = s;
        return TS_OK;
    }
    ts_sampler_free(s);
    return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out for generation");
}

void ts_sampler_limit(ts_sampler *s, int64_t n)
{
    TS_ASSERT(n >= 1);
    s->choices = n < s->model->vocab ? n : s->model->vocab;
}

static void drop_program(ts_sampler *s)
{
    ts_bound_free(s->bound);
    ts_placed_free(&s->placed);
    ts_graph_free(s->graph);
    ts_free(s->tokens);
    s->bound = NULL;
    s->graph = NULL;
    s->tokens = NULL;
    s->length = 0;
}

void ts_sampler_free(ts_sampler *s)
{
    if (!s) return;
    drop_program(s);
    ts_free(s->logits);
    ts_free(s->scratch);
    ts_free(s);
}

/* The program's layers are stacked as the state's are: its parameters are found by name. */
static bool is_stacked(const ts_graph *g)
{
    for (int i = 0; i < g->n_param; i++)
        if (g->param[i].count) return true;
    return false;
}

static int64_t length_for(size_t n)
{
    int64_t length = FIRST_LENGTH;
    while ((size_t)length < n) length *= 2;
    return length;
}

bool ts_sampler_is_compiled(const ts_sampler *s, size_t n)
{
    return n <= (size_t)1 << 24 && length_for(n) == s->length;
}

static ts_status compile_for(ts_sampler *s, size_t n, ts_error *err)
{
    if (n > (size_t)1 << 24)
        return TS_ERROR(err, TS_INVALID_ARGUMENT,
                        "a text of %zu tokens is too long; at most 16777216", n);
    const int64_t length = length_for(n);
    if (length == s->length) return TS_OK;
    drop_program(s);
    ts_program_options o = {.model = s->model,
                            .rows = 1,
                            .sequence = length,
                            .accumulation = 1,
                            .compute = s->compute,
                            .scan_layers = is_stacked(ts_state_graph(s->state))};
    ts_status status = ts_program_logits(&o, &s->graph, err);
    if (status == TS_OK)
        status = ts_place(s->config, s->graph, TS_PLACE_SAMPLE, &s->placed, err);
    if (status == TS_OK)
        status = ts_bound_open(s->engine, &s->placed, s->state, 1, NULL, &s->bound, err);
    if (status == TS_RESOURCE_EXHAUSTED)
        ts__error_context(err, "a text of %zu tokens finds no room; a shorter one needs less", n);
    if (status == TS_OK) status = ts__set_rope(s->bound, s->model, length, err);
    if (status == TS_OK && !(s->tokens = ts_alloc_zero((size_t)length * sizeof(int32_t))))
        status = TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out for generation");
    if (status == TS_OK)
        s->length = length;
    else
        drop_program(s);
    return status;
}

ts_status ts_sampler_logits(ts_sampler *s, const int32_t *ids, size_t n, const float **logits,
                            ts_error *err)
{
    TS_ASSERT(n >= 1);
    TS_TRY(compile_for(s, n, err));
    memcpy(s->tokens, ids, n * sizeof *ids);
    memset(s->tokens + n, 0, ((size_t)s->length - n) * sizeof *ids);
    int32_t last = (int32_t)n - 1;
    TS_TRY(ts_bound_set(s->bound, "tokens", s->tokens, (size_t)s->length * sizeof *ids, err));
    TS_TRY(ts_bound_set(s->bound, "last", &last, sizeof last, err));
    TS_TRY(ts_bound_execute(s->bound, err));
    TS_TRY(
        ts_bound_get(s->bound, "logits", s->logits, (size_t)s->model->vocab * sizeof(float), err));
    *logits = s->logits;
    return TS_OK;
}

/* ---- choosing -------------------------------------------------------------------------------- */

static double uniform(uint64_t *state)
{
    return (double)(ts_mix64(*state += 0x9e3779b97f4a7c15u) >> 11) * 0x1p-53;
}

/* An order with NaN in it would be none. */
static float weight_of(const float *logits, int32_t i)
{
    return isnan(logits[i]) ? -INFINITY : logits[i];
}

static int descending(const void *a, const void *b, void *context)
{
    const float *logits = context;
    int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;
    float x = weight_of(logits, i), y = weight_of(logits, j);
    if (x != y) return x < y ? 1 : -1;
    return i < j ? -1 : 1;
}

int32_t ts_sample(const float *logits, int32_t n, double temperature, double top_p,
                  uint64_t *random, int32_t *scratch)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (weight_of(logits, i) > weight_of(logits, best)) best = i;
    if (temperature <= 0) return best;
    for (int32_t i = 0; i < n; i++) scratch[i] = i;
    qsort_r(scratch, (size_t)n, sizeof *scratch, descending, (void *)(uintptr_t)logits);
    double all = 0, kept = 0, most = (double)weight_of(logits, best);
    for (int32_t i = 0; i < n; i++) all += exp(((double)weight_of(logits, i) - most) / temperature);
    int32_t count = 0;
    while (count < n && (count == 0 || kept < top_p * all))
        kept += exp(((double)weight_of(logits, scratch[count++]) - most) / temperature);
    double at = uniform(random) * kept;
    for (int32_t i = 0; i < count; i++) {
        at -= exp(((double)logits[scratch[i]] - most) / temperature);
        if (at < 0) return scratch[i];
    }
    return scratch[count - 1];
}

ts_status ts_sampler_run(ts_sampler *s, const int32_t *prompt, size_t n,
                         const ts_generate_options *o, bool (*token)(void *context, int32_t id),
                         void *context, ts_error *err)
{
    if (n == 0)
        return TS_ERROR(err, TS_INVALID_ARGUMENT,
                        "the prompt is empty; at least one token is needed");
    for (size_t i = 0; i < n; i++)
        if (prompt[i] < 0 || prompt[i] >= s->model->vocab)
            return TS_ERROR(err, TS_INVALID_ARGUMENT,
                            "prompt token %zu is %d; the model has tokens 0 … %lld", i, prompt[i],
                            (long long)s->model->vocab - 1);
    size_t room;
    if (o->max_new < 0 || ts_add_size(n, (size_t)o->max_new, &room) || room > (size_t)1 << 24)
        return TS_ERROR(
            err, TS_INVALID_ARGUMENT,
            "%lld new tokens after a prompt of %zu are too many; at most 16777216 in all",
            (long long)o->max_new, n);
    int32_t *ids = ts_alloc(room * sizeof *ids);
    if (!ids) return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out for %zu tokens", room);
    memcpy(ids, prompt, n * sizeof *ids);
    uint64_t random = o->seed;
    ts_status status = TS_OK;
    while (status == TS_OK && n < room) {
        const float *logits;
        if ((status = ts_sampler_logits(s, ids, n, &logits, err)) != TS_OK) break;
        int32_t id =
            ts_sample(logits, (int32_t)s->choices, o->temperature, o->top_p, &random, s->scratch);
        if (o->stop_at_eos && id == s->model->eos_id) break;
        ids[n++] = id;
        if (!token(context, id)) break;
    }
    ts_free(ids);
    return status;
}

/* ---- showing --------------------------------------------------------------------------------- */

ts_status ts_sampler_text(const ts_tokenizer *t, const int32_t *ids, size_t n, ts_string *out,
                          size_t *strangers, ts_error *err)
{
    *strangers = 0;
    for (size_t i = 0, begin; i < n;) {
        for (begin = i; i < n && ids[i] >= 0 && ids[i] < ts_tokenizer_vocab_size(t);) i++;
        TS_TRY(ts_tokenizer_decode(t, ids + begin, i - begin, true, out, err));
        for (; i < n && (ids[i] < 0 || ids[i] >= ts_tokenizer_vocab_size(t)); i++) {
            ts_string_add(out, "\xef\xbf\xbd");
            ++*strangers;
        }
    }
    return out->failed ? TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out for a text") : TS_OK;
}
