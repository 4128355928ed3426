/* ckpt/hf_config_write.c – config.json of an exported model, from its description.
 *
 * Written as the reference library writes it, so that it loads there unchanged; every number is the
 * shortest decimal that reads back equal. Before anything is written, the text is read by our own
 * reader: a description that could not come back is refused.
 */
#include "ckpt/hf_config.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"

enum { TEXT_BYTES = 16 << 10 };

/* "key": 1e-05, – always with a point or an exponent, so that it stays a real number. */
static void add_real(ts_string *s, const char *indent, const char *key, double value,
                     const char *end)
{
    char text[40];
    for (int precision = 1; precision <= 17; precision++) {
        snprintf(text, sizeof text, "%.*g", precision, value);
        if (strtod(text, NULL) == value) break;
    }
    const char *point = strpbrk(text, ".e") ? "" : ".0";
    ts_string_printf(s, "%s\"%s\": %s%s%s", indent, key, text, point, end);
}

static void add_int(ts_string *s, const char *key, int64_t value)
{
    ts_string_printf(s, "  \"%s\": %lld,\n", key, (long long)value);
}

static void add_token(ts_string *s, const char *key, int32_t id)
{
    if (id < 0)
        ts_string_printf(s, "  \"%s\": null,\n", key);
    else
        add_int(s, key, id);
}

static void add_rope(ts_string *s, const ts_model_config *m)
{
    add_real(s, "  ", "rope_theta", m->rope_theta, ",\n");
    if (m->rope == TS_ROPE_DEFAULT) {
        ts_string_add(s, "  \"rope_scaling\": null,\n");
        return;
    }
    ts_string_add(s, "  \"rope_scaling\": {\n    \"rope_type\": \"llama3\",\n");
    add_real(s, "    ", "factor", m->rope_factor, ",\n");
    add_real(s, "    ", "low_freq_factor", m->rope_low, ",\n");
    add_real(s, "    ", "high_freq_factor", m->rope_high, ",\n");
    ts_string_printf(s, "    \"original_max_position_embeddings\": %lld\n  },\n",
                     (long long)m->rope_original);
}

static void add_config(ts_string *s, const ts_model_config *m, const char *torch_dtype)
{
    ts_string_add(
        s,
        "{\n  \"architectures\": [\n    \"LlamaForCausalLM\"\n  ],\n  \"model_type\": \"llama\",\n");
    add_int(s, "vocab_size", m->vocab);
    add_int(s, "hidden_size", m->hidden);
    add_int(s, "intermediate_size", m->ffn);
    add_int(s, "num_hidden_layers", m->layers);
    add_int(s, "num_attention_heads", m->heads);
    add_int(s, "num_key_value_heads", m->kv_heads);
    add_int(s, "head_dim", m->head_dim);
    add_int(s, "max_position_embeddings", m->max_positions);
    ts_string_add(
        s, "  \"hidden_act\": \"silu\",\n  \"attention_bias\": false,\n  \"mlp_bias\": false,\n");
    add_real(s, "  ", "rms_norm_eps", m->norm_eps, ",\n");
    add_rope(s, m);
    ts_string_printf(s, "  \"tie_word_embeddings\": %s,\n", m->tied ? "true" : "false");
    add_token(s, "bos_token_id", m->bos_id);
    add_token(s, "eos_token_id", m->eos_id);
    add_token(s, "pad_token_id", m->pad_id);
    ts_string_printf(s, "  \"torch_dtype\": \"%s\"\n}\n", torch_dtype);
}

ts_status ts_hf_config_write(const char *path, const ts_model_config *m, const char *torch_dtype,
                             ts_error *err)
{
    TS_ASSERT(strcmp(torch_dtype, "float32") == 0 || strcmp(torch_dtype, "bfloat16") == 0);
    ts_string s = ts_string_new(TEXT_BYTES);
    add_config(&s, m, torch_dtype);
    ts_model_config back;
    ts_status status = TS_OK;
    if (s.failed) status = TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "%s: out of memory", path);
    if (status == TS_OK) status = ts_hf_config_parse(s.data, s.length, path, &back, err);
    ts_writer *w = NULL;
    if (status == TS_OK) status = ts_writer_open(path, false, &w, err);
    if (status == TS_OK) status = ts_writer_write(w, s.data, s.length, err);
    if (status == TS_OK) {
        status = ts_writer_close(w, true, err);
        w = NULL;
    }
    ts_writer_abandon(w);
    ts_string_free(&s);
    return status;
}
