/* ckpt/hf_config.c – reads config.json of Llama models into a ts_model_config.
 *
 * Only keys that change the mathematics are looked at. Each is either understood or refused with its
 * name: biases, another activation, another rope scaling, quantized weights. Defaults are those of
 * the reference library's LlamaConfig; null means absent, as there. Keys that only matter for other
 * programs (use_cache, pretraining_tp, torch_dtype …) are ignored.
 *
 * Not here: whether the tensors in the folder fit the description (models/ and train/ compare them).
 */
#include "ckpt/hf_config.h"

#include <math.h>
#include <stdio.h>

#include "base/file.h"
#include "base/json.h"

enum { CONFIG_BYTES = 1 << 20, CONFIG_DEPTH = 64 };

typedef struct reader {
    const char *name;     /* of the file */
    const json_t *object; /* whose keys are read */
    const char *inside;   /* "" or "rope_scaling." */
    ts_error *err;
} reader;

/* "file: key = value; expected …" */
static ts_status refuse(const reader *r, const char *key, const json_t *value, const char *expected)
{
    char *text = value ? ts_json_dump(value, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    ts_status status = TS_ERROR(r->err, TS_DATA_LOSS, "%s: %s%s %s%.120s; expected %s", r->name,
                                r->inside, key, value ? "= " : "is missing",
                                !value ? ""
                                : text ? text
                                       : "(unprintable)",
                                expected);
    ts_free(text);
    return status;
}

/* NULL when absent or null. */
static const json_t *get(const reader *r, const char *key)
{
    const json_t *value = json_object_get(r->object, key);
    return json_is_null(value) ? NULL : value;
}

enum { REQUIRED = -1 };

/* A whole number from low to high; fallback when absent, unless that is REQUIRED. */
static ts_status read_int(const reader *r, const char *key, int64_t low, int64_t high,
                          int64_t fallback, int64_t *out)
{
    char expected[100];
    snprintf(expected, sizeof expected, "a whole number from %lld to %lld", (long long)low,
             (long long)high);
    const json_t *value = get(r, key);
    if (!value && fallback == REQUIRED) return refuse(r, key, NULL, expected);
    if (!value) return *out = fallback, TS_OK;
    if (!json_is_integer(value) || json_integer_value(value) < low ||
        json_integer_value(value) > high)
        return refuse(r, key, value, expected);
    *out = json_integer_value(value);
    return TS_OK;
}

/* A number from low to high; fallback when absent, NAN for required. */
static ts_status read_real(const reader *r, const char *key, double low, double high,
                           double fallback, double *out)
{
    char expected[100];
    snprintf(expected, sizeof expected, "a number from %g to %g", low, high);
    const json_t *value = get(r, key);
    if (!value && isnan(fallback)) return refuse(r, key, NULL, expected);
    if (!value) return *out = fallback, TS_OK;
    double number = json_number_value(value);
    if (!json_is_number(value) || !(number >= low && number <= high))
        return refuse(r, key, value, expected);
    *out = number;
    return TS_OK;
}

static ts_status read_bool(const reader *r, const char *key, bool fallback, bool *out)
{
    const json_t *value = get(r, key);
    if (value && !json_is_boolean(value)) return refuse(r, key, value, "true or false");
    *out = value ? json_is_true(value) : fallback;
    return TS_OK;
}

/* A key that must be absent, null, or this. */
static ts_status only_false(const reader *r, const char *key)
{
    bool on = false;
    TS_TRY(read_bool(r, key, false, &on));
    return on ? refuse(r, key, get(r, key), "false: biases are not supported") : TS_OK;
}

/* ---- which model ----------------------------------------------------------------------------- */

static ts_status check_family(const reader *r)
{
    const json_t *type = get(r, "model_type"), *architectures = get(r, "architectures");
    if (type && (!json_is_string(type) || strcmp(json_string_value(type), "llama") != 0))
        return refuse(r, "model_type", type,
                      "\"llama\" (Llama 2, 3, 3.1, 3.2, SmolLM2), the only family supported");
    if (!type && !architectures) return refuse(r, "model_type", NULL, "\"llama\"");
    if (!architectures) return TS_OK;
    if (!json_is_array(architectures))
        return refuse(r, "architectures", architectures, "[\"LlamaForCausalLM\"]");
    for (size_t i = 0; i < json_array_size(architectures); i++) {
        const char *name = json_string_value(json_array_get(architectures, i));
        if (name && strcmp(name, "LlamaForCausalLM") == 0) return TS_OK;
    }
    return refuse(r, "architectures", architectures, "[\"LlamaForCausalLM\"]");
}

static ts_status check_unsupported(const reader *r)
{
    TS_TRY(only_false(r, "attention_bias"));
    TS_TRY(only_false(r, "mlp_bias"));
    const json_t *act = get(r, "hidden_act");
    if (act && (!json_is_string(act) || strcmp(json_string_value(act), "silu") != 0))
        return refuse(r, "hidden_act", act, "\"silu\", the only activation of a Llama model");
    const json_t *quantized = get(r, "quantization_config");
    if (quantized)
        return refuse(r, "quantization_config", quantized,
                      "no such key: quantized weights cannot be read");
    double partial = 1;
    TS_TRY(read_real(r, "partial_rotary_factor", 0, 1, 1, &partial));
    if (partial != 1)
        return refuse(r, "partial_rotary_factor", get(r, "partial_rotary_factor"),
                      "1 or no such key");
    return TS_OK;
}

/* ---- sizes and tokens ------------------------------------------------------------------------ */

static ts_status read_sizes(const reader *r, ts_model_config *m)
{
    TS_TRY(read_int(r, "vocab_size", 1, INT32_MAX, REQUIRED, &m->vocab));
    TS_TRY(read_int(r, "hidden_size", 1, 1 << 20, REQUIRED, &m->hidden));
    TS_TRY(read_int(r, "intermediate_size", 1, 1 << 24, REQUIRED, &m->ffn));
    TS_TRY(read_int(r, "num_hidden_layers", 1, 10000, REQUIRED, &m->layers));
    TS_TRY(read_int(r, "num_attention_heads", 1, 1 << 16, REQUIRED, &m->heads));
    TS_TRY(read_int(r, "num_key_value_heads", 1, m->heads, m->heads, &m->kv_heads));
    TS_TRY(read_int(r, "max_position_embeddings", 1, INT32_MAX, 2048, &m->max_positions));
    TS_TRY(read_real(r, "rms_norm_eps", 0, 1, 1e-6, &m->norm_eps));
    TS_TRY(read_bool(r, "tie_word_embeddings", false, &m->tied));
    char expected[160];
    if (m->heads % m->kv_heads) {
        snprintf(expected, sizeof expected, "a divisor of num_attention_heads = %lld",
                 (long long)m->heads);
        return refuse(r, "num_key_value_heads", get(r, "num_key_value_heads"), expected);
    }
    if (!get(r, "head_dim") && m->hidden % m->heads) {
        snprintf(expected, sizeof expected,
                 "a multiple of num_attention_heads = %lld, or a head_dim", (long long)m->heads);
        return refuse(r, "hidden_size", get(r, "hidden_size"), expected);
    }
    TS_TRY(read_int(r, "head_dim", 1, 1 << 16, m->hidden / m->heads, &m->head_dim));
    if (m->head_dim % 2 == 0) return TS_OK;
    if (get(r, "head_dim"))
        return refuse(r, "head_dim", get(r, "head_dim"), "an even number: rope turns pairs");
    snprintf(expected, sizeof expected,
             "an even hidden_size / num_attention_heads (it is %lld): rope turns pairs",
             (long long)m->head_dim);
    return refuse(r, "num_attention_heads", get(r, "num_attention_heads"), expected);
}

/* A token id, or a list of them where list is allowed (the first counts); -1 and null are none. */
static ts_status read_token(const reader *r, const char *key, bool list, int64_t vocab,
                            int32_t fallback, int32_t *out)
{
    const json_t *value = json_object_get(r->object, key);
    char expected[120];
    snprintf(expected, sizeof expected, "a token id below vocab_size = %lld%s or null",
             (long long)vocab, list ? ", a list of them," : "");
    *out = value ? -1 : fallback < vocab ? fallback : -1;
    if (!value || json_is_null(value)) return TS_OK;
    bool many = list && json_is_array(value);
    size_t n = many ? json_array_size(value) : 1;
    if (n == 0) return refuse(r, key, value, expected);
    for (size_t i = 0; i < n; i++) {
        const json_t *one = many ? json_array_get(value, i) : value;
        int64_t id = json_integer_value(one);
        bool none = !many && id == -1;
        if (!json_is_integer(one) || (!none && (id < 0 || id >= vocab)))
            return refuse(r, key, value, expected);
        if (i == 0) *out = (int32_t)id;
    }
    return TS_OK;
}

/* ---- rope ------------------------------------------------------------------------------------ */

/* The llama3 scaling: all four numbers are needed. */
static ts_status read_llama3(const reader *r, ts_model_config *m)
{
    m->rope = TS_ROPE_LLAMA3;
    TS_TRY(read_real(r, "factor", 1, 1e6, NAN, &m->rope_factor));
    TS_TRY(read_real(r, "low_freq_factor", 1e-6, 1e6, NAN, &m->rope_low));
    TS_TRY(read_real(r, "high_freq_factor", 1e-6, 1e6, NAN, &m->rope_high));
    TS_TRY(read_real(r, "original_max_position_embeddings", 1, INT32_MAX, NAN, &m->rope_original));
    if (m->rope_high > m->rope_low) return TS_OK;
    return refuse(r, "high_freq_factor", get(r, "high_freq_factor"), "more than low_freq_factor");
}

/* rope_scaling (null, or an object) or its newer form rope_parameters, which holds rope_theta too. */
static ts_status read_rope(const reader *r, ts_model_config *m)
{
    static const double theta_low = 1, theta_high = 1e15;
    const json_t *scaling = get(r, "rope_scaling"), *parameters = get(r, "rope_parameters");
    TS_TRY(read_real(r, "rope_theta", theta_low, theta_high, 10000, &m->rope_theta));
    m->rope = TS_ROPE_DEFAULT;
    if (scaling && parameters)
        return refuse(r, "rope_scaling", scaling,
                      "either rope_scaling or rope_parameters, not both");
    const json_t *object = scaling ? scaling : parameters;
    const char *key = scaling ? "rope_scaling" : "rope_parameters";
    if (!object) return TS_OK;
    if (!json_is_object(object)) return refuse(r, key, object, "an object or null");
    reader in = {.name = r->name,
                 .object = object,
                 .inside = scaling ? "rope_scaling." : "rope_parameters.",
                 .err = r->err};
    double theta = 0;
    TS_TRY(read_real(&in, "rope_theta", theta_low, theta_high, m->rope_theta, &theta));
    if (get(r, "rope_theta") && theta != m->rope_theta)
        return refuse(&in, "rope_theta", get(&in, "rope_theta"),
                      "the same value as rope_theta outside");
    m->rope_theta = theta;
    TS_TRY(read_real(&in, "partial_rotary_factor", 1, 1, 1, &theta));
    const json_t *type = get(&in, "rope_type"), *old_type = get(&in, "type");
    if (type && old_type && !json_equal(type, old_type))
        return refuse(&in, "type", old_type, "the same as rope_type");
    if (!type) type = old_type;
    const char *word = json_string_value(type);
    if (word && strcmp(word, "llama3") == 0) return read_llama3(&in, m);
    if ((word && strcmp(word, "default") == 0) || (!type && !scaling)) return TS_OK;
    return refuse(&in, "rope_type", type, "\"default\" or \"llama3\", the scalings supported");
}

/* ---- the whole ------------------------------------------------------------------------------- */

static ts_status read_config(const reader *r, ts_model_config *m)
{
    if (!json_is_object(r->object))
        return TS_ERROR(r->err, TS_DATA_LOSS,
                        "%s: is not an object; expected the config.json of a model", r->name);
    TS_TRY(check_family(r));
    TS_TRY(check_unsupported(r));
    m->arch = TS_ARCH_LLAMA;
    TS_TRY(read_sizes(r, m));
    TS_TRY(read_rope(r, m));
    TS_TRY(read_token(r, "bos_token_id", false, m->vocab, 1, &m->bos_id));
    TS_TRY(read_token(r, "eos_token_id", true, m->vocab, 2, &m->eos_id));
    return read_token(r, "pad_token_id", false, m->vocab, -1, &m->pad_id);
}

ts_status ts_hf_config_parse(const char *text, size_t n, const char *name, ts_model_config *out,
                             ts_error *err)
{
    json_t *root;
    TS_TRY(ts_json_parse(text, n, CONFIG_DEPTH, name, &root, err));
    reader r = {.name = name, .object = root, .inside = "", .err = err};
    ts_model_config m = {0};
    ts_status status = read_config(&r, &m);
    json_decref(root);
    if (status == TS_OK) *out = m;
    return status;
}

ts_status ts_hf_config_read(const char *path, ts_model_config *out, ts_error *err)
{
    char *file = ts_path_kind_of(path) == TS_PATH_FOLDER ? ts_path_join(path, "config.json")
                                                         : ts_strdup(path);
    if (!file) return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "%s: out of memory", path);
    char *text = NULL;
    size_t n;
    ts_status status = ts_file_read_all(file, CONFIG_BYTES, &text, &n, err);
    if (status == TS_OK) status = ts_hf_config_parse(text, n, file, out, err);
    ts_free(text);
    ts_free(file);
    return status;
}
