/* test_hf_config.c – config.json: the golden models, every default, every refusal, the writer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/file.h"
#include "ckpt/hf_config.h"

#define SIZES                                                                                      \
    "\"vocab_size\":512,\"hidden_size\":64,\"intermediate_size\":176,\"num_hidden_layers\":2,"     \
    "\"num_attention_heads\":4"
#define MODEL(rest)   "{\"model_type\":\"llama\"," SIZES rest "}"
#define SCALING(rest) MODEL(",\"rope_scaling\":{" rest "}")
#define LLAMA3                                                                                     \
    "\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0"
#define ORIGINAL ",\"original_max_position_embeddings\":32"

static ts_model_config read_good(const char *text)
{
    ts_model_config m;
    ts_error err = {0};
    ts_status status = ts_hf_config_parse(text, strlen(text), "c.json", &m, &err);
    if (status) print_message("%s: %s\n", text, err.msg);
    assert_int_equal(status, TS_OK);
    return m;
}

static void test_defaults(void **state)
{
    (void)state;
    ts_model_config m = read_good(MODEL(""));
    assert_int_equal(m.arch, TS_ARCH_LLAMA);
    assert_true(m.vocab == 512 && m.hidden == 64 && m.ffn == 176 && m.layers == 2 && m.heads == 4);
    assert_true(m.kv_heads == 4 && m.head_dim == 16 && m.max_positions == 2048);
    assert_true(m.norm_eps == 1e-6 && m.rope_theta == 10000 && m.rope == TS_ROPE_DEFAULT &&
                !m.tied);
    assert_true(m.bos_id == 1 && m.eos_id == 2 && m.pad_id == -1);
    m = read_good("{\"architectures\":[\"LlamaForCausalLM\"]," SIZES "}");
    assert_int_equal(m.layers, 2);
    m = read_good(MODEL(
        ",\"head_dim\":32,\"num_key_value_heads\":null,\"rope_theta\":5e5,\"rope_scaling\":null,"
        "\"tie_word_embeddings\":true,\"bos_token_id\":null,\"eos_token_id\":[7,9],\"pad_token_id\":-1,"
        "\"use_cache\":true,\"nonsense\":[{}],\"quantization_config\":null"));
    assert_true(m.head_dim == 32 && m.kv_heads == 4 && m.rope_theta == 5e5 && m.tied);
    assert_true(m.bos_id == -1 && m.eos_id == 7 && m.pad_id == -1);
}

static void test_rope(void **state)
{
    (void)state;
    ts_model_config m = read_good(SCALING(LLAMA3 ORIGINAL));
    assert_true(m.rope == TS_ROPE_LLAMA3 && m.rope_factor == 8 && m.rope_low == 1 &&
                m.rope_high == 4);
    assert_true(m.rope_original == 32 && m.rope_theta == 10000);
    assert_int_equal(read_good(SCALING("\"type\":\"default\"")).rope, TS_ROPE_DEFAULT);
    assert_int_equal(read_good(SCALING("\"type\":\"llama3\"," LLAMA3 ORIGINAL)).rope,
                     TS_ROPE_LLAMA3);
    m = read_good(MODEL(",\"rope_parameters\":{\"rope_theta\":5e5," LLAMA3 ORIGINAL "}"));
    assert_true(m.rope == TS_ROPE_LLAMA3 && m.rope_theta == 5e5);
    m = read_good(MODEL(",\"rope_parameters\":{\"rope_theta\":5e5}"));
    assert_true(m.rope == TS_ROPE_DEFAULT && m.rope_theta == 5e5);
    m = read_good(MODEL(",\"rope_theta\":5e5,\"rope_parameters\":{\"rope_type\":\"default\"}"));
    assert_true(m.rope_theta == 5e5);
}

static void refused(const char *text, const char *part)
{
    ts_model_config m = {.vocab = -77};
    ts_error err = {0};
    ts_status status = ts_hf_config_parse(text, strlen(text), "c.json", &m, &err);
    if (status != TS_DATA_LOSS || !strstr(err.msg, part))
        print_message("wanted %s, got %s\n", part, err.msg);
    assert_int_equal(status, TS_DATA_LOSS);
    assert_int_equal(m.vocab, -77); /* untouched */
    assert_non_null(strstr(err.msg, "c.json"));
    assert_non_null(strstr(err.msg, part));
}

static void test_families(void **state)
{
    (void)state;
    refused("[]", "is not an object");
    refused("{}", "model_type is missing; expected \"llama\"");
    refused("{\"model_type\":\"mistral\"," SIZES "}", "model_type = \"mistral\"");
    refused("{\"model_type\":\"gemma3_text\"," SIZES "}", "model_type = \"gemma3_text\"");
    refused("{\"model_type\":7," SIZES "}", "model_type = 7");
    refused(MODEL(",\"architectures\":[\"LlamaForSequenceClassification\"]"),
            "LlamaForSequenceClassification");
    refused(MODEL(",\"architectures\":[]"), "architectures = []");
    refused(MODEL(",\"architectures\":3"), "architectures = 3");
    refused(MODEL(",\"attention_bias\":true"), "attention_bias = true; expected false");
    refused(MODEL(",\"mlp_bias\":true"), "mlp_bias = true");
    refused(MODEL(",\"mlp_bias\":\"no\""), "mlp_bias = \"no\"; expected true or false");
    refused(MODEL(",\"hidden_act\":\"gelu\""), "hidden_act = \"gelu\"; expected \"silu\"");
    refused(MODEL(",\"quantization_config\":{\"bits\":4}"), "quantization_config = {\"bits\":4}");
    refused(MODEL(",\"partial_rotary_factor\":0.5"), "partial_rotary_factor = 0.5");
    refused(MODEL(",\"vocab_size\":5"), "duplicate");
    refused("{\"model_type\":\"llama\"", "c.json:1:");
}

static void test_sizes(void **state)
{
    (void)state;
#define S(v, h, f, l, a)                                                                           \
    "{\"model_type\":\"llama\",\"vocab_size\":" v ",\"hidden_size\":" h                            \
    ",\"intermediate_size\":" f ",\"num_hidden_layers\":" l ",\"num_attention_heads\":" a "}"
    refused("{\"model_type\":\"llama\"}",
            "vocab_size is missing; expected a whole number from 1 to 2147483647");
    refused("{\"model_type\":\"llama\",\"vocab_size\":5}", "hidden_size is missing");
    refused(S("0", "64", "1", "1", "4"), "vocab_size = 0");
    refused(S("-1", "64", "1", "1", "4"), "vocab_size = -1");
    refused(S("2147483648", "64", "1", "1", "4"), "vocab_size = 2147483648");
    refused(S("99999999999999999999", "64", "1", "1", "4"), "too big");
    refused(S("512.0", "64", "1", "1", "4"), "vocab_size = 512.0");
    refused(S("\"512\"", "64", "1", "1", "4"), "vocab_size = \"512\"");
    refused(S("true", "64", "1", "1", "4"), "vocab_size = true");
    refused(S("null", "64", "1", "1", "4"), "vocab_size is missing");
    refused(S("512", "9223372036854775807", "1", "1", "4"), "hidden_size = 9223372036854775807");
    refused(S("512", "64", "-5", "1", "4"), "intermediate_size = -5");
    refused(S("512", "64", "1", "1000000", "4"), "num_hidden_layers = 1000000");
    refused(S("512", "64", "1", "1", "0"), "num_attention_heads = 0");
    refused(S("512", "65", "1", "1", "4"),
            "hidden_size = 65; expected a multiple of num_attention_heads = 4");
    refused(S("512", "12", "1", "1", "4"), "num_attention_heads = 4; expected an even");
    refused(MODEL(",\"head_dim\":15"), "head_dim = 15; expected an even");
    refused(MODEL(",\"head_dim\":0"), "head_dim = 0");
    refused(MODEL(",\"num_key_value_heads\":3"), "num_key_value_heads = 3; expected a divisor");
    refused(MODEL(",\"num_key_value_heads\":8"),
            "num_key_value_heads = 8; expected a whole number from 1 to 4");
    refused(MODEL(",\"max_position_embeddings\":0"), "max_position_embeddings = 0");
    refused(MODEL(",\"rms_norm_eps\":-1e-5"), "rms_norm_eps = -1e-5");
    refused(MODEL(",\"rms_norm_eps\":\"1e-5\""), "rms_norm_eps = \"1e-5\"; expected a number");
    refused(MODEL(",\"tie_word_embeddings\":1"), "tie_word_embeddings = 1; expected true or false");
    refused(MODEL(",\"bos_token_id\":512"),
            "bos_token_id = 512; expected a token id below vocab_size = 512");
    refused(MODEL(",\"bos_token_id\":[1]"), "bos_token_id = [1]");
    refused(MODEL(",\"eos_token_id\":[]"), "eos_token_id = []");
    refused(MODEL(",\"eos_token_id\":[2,600]"), "eos_token_id = [2,600]");
    refused(MODEL(",\"eos_token_id\":\"</s>\""), "eos_token_id = \"</s>\"");
    refused(MODEL(",\"pad_token_id\":-2"), "pad_token_id = -2");
}

static void test_rope_refusals(void **state)
{
    (void)state;
    refused(MODEL(",\"rope_theta\":0"), "rope_theta = 0");
    refused(MODEL(",\"rope_theta\":\"big\""), "rope_theta = \"big\"");
    refused(MODEL(",\"rope_scaling\":[]"), "rope_scaling = []; expected an object or null");
    refused(SCALING(""), "rope_scaling.rope_type is missing");
    refused(SCALING("\"rope_type\":\"yarn\",\"factor\":4"), "rope_scaling.rope_type = \"yarn\"");
    refused(SCALING("\"type\":\"linear\",\"factor\":2"),
            "= \"linear\"; expected \"default\" or \"llama3\"");
    refused(SCALING("\"type\":\"default\",\"rope_type\":\"llama3\""),
            "rope_scaling.type = \"default\"");
    refused(SCALING("\"rope_type\":5"), "rope_scaling.rope_type = 5");
    refused(SCALING(LLAMA3), "rope_scaling.original_max_position_embeddings is missing");
    refused(SCALING("\"rope_type\":\"llama3\",\"factor\":0.5"), "rope_scaling.factor = 0.5");
    refused(
        SCALING(
            "\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,\"high_freq_factor\":4" ORIGINAL),
        "rope_scaling.high_freq_factor = 4; expected more than low_freq_factor");
    refused(MODEL(",\"rope_scaling\":{},\"rope_parameters\":{}"), "not both");
    refused(MODEL(",\"rope_theta\":1e4,\"rope_parameters\":{\"rope_theta\":5e5}"),
            "rope_parameters.rope_theta = 500000");
    refused(MODEL(",\"rope_parameters\":{\"partial_rotary_factor\":0.25}"),
            "rope_parameters.partial_rotary_factor");
}

static void test_memory(void **state)
{
    (void)state;
    const char *text = SCALING(LLAMA3 ORIGINAL);
    for (uint64_t nth = 1;; nth++) {
        ts_model_config m;
        ts_error err = {0};
        ts_alloc_fail_at(nth);
        ts_status status = ts_hf_config_parse(text, strlen(text), "c.json", &m, &err);
        ts_alloc_fail_at(0);
        if (status == TS_OK) break;
        assert_int_equal(status, TS_RESOURCE_EXHAUSTED);
        assert_true(err.msg[0]);
    }
}

static bool same(const ts_model_config *a, const ts_model_config *b)
{
    return a->arch == b->arch && a->vocab == b->vocab && a->hidden == b->hidden &&
           a->ffn == b->ffn && a->layers == b->layers && a->heads == b->heads &&
           a->kv_heads == b->kv_heads && a->head_dim == b->head_dim &&
           a->max_positions == b->max_positions && a->norm_eps == b->norm_eps &&
           a->tied == b->tied && a->rope == b->rope && a->rope_theta == b->rope_theta &&
           a->rope_factor == b->rope_factor && a->rope_low == b->rope_low &&
           a->rope_high == b->rope_high && a->rope_original == b->rope_original &&
           a->bos_id == b->bos_id && a->eos_id == b->eos_id && a->pad_id == b->pad_id;
}

static void test_write(void **state)
{
    (void)state;
    char path[] = "/tmp/tessera-config-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    const char *texts[] = {
        MODEL(",\"rms_norm_eps\":1e-05,\"eos_token_id\":null"),
        MODEL(
            ",\"rms_norm_eps\":0.1000000000000003,\"pad_token_id\":4,\"tie_word_embeddings\":true,"
            "\"rope_scaling\":{" LLAMA3 ORIGINAL "}")};
    for (size_t i = 0; i < 2; i++) {
        ts_model_config m = read_good(texts[i]), back;
        ts_error err = {0};
        assert_int_equal(ts_hf_config_write(path, &m, "float32", &err), TS_OK);
        assert_int_equal(ts_hf_config_read(path, &back, &err), TS_OK);
        assert_true(same(&m, &back));
    }
    ts_model_config m = read_good(MODEL("")), back;
    ts_error err = {0};
    m.kv_heads = 3;
    assert_int_equal(ts_hf_config_write(path, &m, "bfloat16", &err), TS_DATA_LOSS);
    assert_int_equal(ts_hf_config_read(path, &back, NULL), TS_OK); /* the old file stands */
    unlink(path);
    assert_int_equal(ts_hf_config_read(path, &back, NULL), TS_NOT_FOUND);
}

static void test_golden(void **state)
{
    (void)state;
    const char *shared = getenv("TESSERA_SHARED");
    char path[4096];
    ts_model_config m;
    ts_error err = {0};
    shared = shared ? shared : "../shared";
    snprintf(path, sizeof path, "%s/golden/tiny-llama3", shared);
    if (ts_path_kind_of(path) != TS_PATH_FOLDER) {
        print_message("SKIP: %s is missing; set TESSERA_SHARED\n", path);
        skip();
    }
    assert_int_equal(ts_hf_config_read(path, &m, &err), TS_OK);
    assert_true(m.kv_heads == 2 && m.head_dim == 16 && m.rope_theta == 500000 &&
                m.max_positions == 8192 && !m.tied);
    snprintf(path, sizeof path, "%s/golden/tiny-llama31/config.json", shared);
    assert_int_equal(ts_hf_config_read(path, &m, &err), TS_OK);
    assert_true(m.kv_heads == 1 && m.tied && m.rope == TS_ROPE_LLAMA3 && m.rope_original == 32);
    snprintf(path, sizeof path, "%s/golden/tiny-gemma3", shared);
    assert_int_equal(ts_hf_config_read(path, &m, &err), TS_DATA_LOSS);
    assert_non_null(strstr(err.msg, "gemma3_text"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),      cmocka_unit_test(test_rope),
        cmocka_unit_test(test_families),      cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_rope_refusals), cmocka_unit_test(test_memory),
        cmocka_unit_test(test_write),         cmocka_unit_test(test_golden),
    };
    return cmocka_run_group_tests_name("hf config", tests, NULL, NULL);
}
