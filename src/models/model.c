/* models/model.c – what all decoders share: checks of a description, counts, rope's tables, dispatch.
 *
 * Frequencies are computed in double and rounded to f32 once; angles are f32 products, as in the runs that
 * made the published weights. A description that passes ts_model_check cannot overflow a size later.
 */
#include "models/model_internal.h"

#include <math.h>

/* ---- checks ---------------------------------------------------------------------------------- */

static const int64_t largest_size = (int64_t)1 << 31;

static ts_status positive(ts_error *err, const char *field, int64_t v)
{
    if (v >= 1 && v < largest_size) return TS_OK;
    return TS_ERROR(err, TS_INVALID_ARGUMENT, "%s is %lld; expected 1 … 2147483647", field,
                    (long long)v);
}

ts_status ts_model_check(const ts_model_config *m, ts_error *err)
{
    if (m->arch >= TS_ARCHS)
        return TS_ERROR(err, TS_INVALID_ARGUMENT, "unknown architecture %d", (int)m->arch);
    TS_TRY(positive(err, "vocabulary size", m->vocab));
    TS_TRY(positive(err, "hidden size", m->hidden));
    TS_TRY(positive(err, "MLP size", m->ffn));
    TS_TRY(positive(err, "number of layers", m->layers));
    TS_TRY(positive(err, "number of heads", m->heads));
    TS_TRY(positive(err, "number of kv heads", m->kv_heads));
    TS_TRY(positive(err, "head size", m->head_dim));
    if (m->layers > 4096)
        return TS_ERROR(err, TS_INVALID_ARGUMENT, "number of layers is %lld; at most 4096",
                        (long long)m->layers);
    if (m->heads % m->kv_heads)
        return TS_ERROR(
            err, TS_INVALID_ARGUMENT,
            "%lld query heads cannot be shared by %lld kv heads; heads must be a multiple "
            "of kv heads",
            (long long)m->heads, (long long)m->kv_heads);
    if (m->head_dim % 2)
        return TS_ERROR(err, TS_INVALID_ARGUMENT,
                        "head size is %lld; rope turns pairs, so it must be even",
                        (long long)m->head_dim);
    int64_t n;
    if (ts_mul_i64(m->heads, m->head_dim, &n) || ts_mul_i64(n, m->hidden, &n) ||
        ts_mul_i64(m->vocab, m->hidden, &n) || ts_mul_i64(m->hidden, m->ffn, &n))
        return TS_ERROR(err, TS_INVALID_ARGUMENT,
                        "a weight of this model would have more than 2^63 elements");
    if (!(m->norm_eps > 0 && m->norm_eps < 1))
        return TS_ERROR(err, TS_INVALID_ARGUMENT, "norm epsilon is %g; expected between 0 and 1",
                        m->norm_eps);
    if (!(m->rope_theta > 0 && isfinite(m->rope_theta)))
        return TS_ERROR(err, TS_INVALID_ARGUMENT, "rope theta is %g; expected a positive number",
                        m->rope_theta);
    if (m->rope == TS_ROPE_LLAMA3 && !(m->rope_factor > 0 && m->rope_original > 0 &&
                                       m->rope_high > m->rope_low && m->rope_low > 0))
        return TS_ERROR(err, TS_INVALID_ARGUMENT,
                        "rope scaling needs factor > 0, original positions > 0 and 0 < low < high "
                        "(found factor %g, low %g, high %g, original %g)",
                        m->rope_factor, m->rope_low, m->rope_high, m->rope_original);
    return TS_OK;
}

int64_t ts_model_parameters(const ts_model_config *m)
{
    int64_t q = m->heads * m->head_dim, kv = m->kv_heads * m->head_dim;
    int64_t layer = m->hidden * (2 * q + 2 * kv) + 3 * m->hidden * m->ffn + 2 * m->hidden;
    return m->layers * layer + m->hidden + (m->tied ? 1 : 2) * m->vocab * m->hidden;
}

/* ---- rope ------------------------------------------------------------------------------------ */

/* Llama 3.1: turns = original·f/2π; ramp = clip((turns − low)/(high − low), 0, 1); f·(ramp + (1 − ramp)/factor). */
static double scaled(const ts_model_config *m, double f)
{
    double turns = m->rope_original * f / 6.283185307179586476925;
    double ramp = (turns - m->rope_low) / (m->rope_high - m->rope_low);
    ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
    return f * (ramp + (1 - ramp) / m->rope_factor);
}

void ts_model_rope_frequencies(const ts_model_config *m, double *out)
{
    for (int64_t i = 0; i < m->head_dim / 2; i++) {
        double f = pow(m->rope_theta, -2.0 * (double)i / (double)m->head_dim);
        out[i] = m->rope == TS_ROPE_LLAMA3 ? scaled(m, f) : f;
    }
}

/* The published models were trained with frequencies and angles in f32, so that is what is computed here. */
void ts_model_rope_tables(const ts_model_config *m, int64_t first, int64_t S, float *cos_out,
                          float *sin_out)
{
    int64_t half = m->head_dim / 2;
    for (int64_t i = 0; i < half; i++) {
        double f = pow(m->rope_theta, -2.0 * (double)i / (double)m->head_dim);
        float f32 = (float)(m->rope == TS_ROPE_LLAMA3 ? scaled(m, f) : f);
        for (int64_t s = 0; s < S; s++) {
            float angle = (float)(first + s) * f32;
            cos_out[s * half + i] = (float)cos((double)angle);
            sin_out[s * half + i] = (float)sin((double)angle);
        }
    }
}

/* ---- shared by model files ------------------------------------------------------------------- */

const uint64_t *ts_equal_layers(ts_builder *b, int n)
{
    static const uint64_t none;
    uint64_t *s = ts_arena_alloc(b->graph->arena, (size_t)n * sizeof *s);
    if (!s)
        ts__mistake(b, TS_RESOURCE_EXHAUSTED, "memory is out while building graph %s",
                    b->graph->name);
    return s ? s : &none;
}

ts_value *ts_head(ts_builder *b, const char *name, ts_dim vocab, ts_dim embed)
{
    return ts_param(b, name, TS_DIMS(vocab, embed), 1, 1 / sqrt((double)embed.size));
}

double ts_tied_embedding_init(int64_t hidden)
{
    return 1 / sqrt((double)hidden);
}

ts_forward ts_model_forward(ts_builder *b, const ts_model_config *m, const ts_forward_inputs *in)
{
    switch (m->arch) {
    case TS_ARCH_LLAMA: return ts__llama_forward(b, m, in);
    case TS_ARCHS: break;
    }
    TS_ASSERT(false);
    return (ts_forward){0};
}
