/* test_config_rules.c – what a configuration is refused for, one line a rule: the words that are given,
 * and what the message must say. Then paths, notes, and the shape of the message itself. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "train/config.h"

enum { MAX_WORDS = 8 };

static char folder[64];

static void put(const char *name, const char *text)
{
    char path[200];
    ts_error err = {0};
    ts_writer *w = NULL;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (ts_writer_open(path, false, &w, &err) != TS_OK ||
        ts_writer_write(w, text, strlen(text), &err) != TS_OK ||
        ts_writer_close(w, false, &err) != TS_OK)
        fail_msg("%s", err.msg);
}

/* @ in a word stands for the test's folder. */
static ts_status load(const char *const *words, ts_config **c, ts_error *err)
{
    static char text[MAX_WORDS + 1][300];
    const char *list[MAX_WORDS + 1];
    int n = 0;
    for (; n < MAX_WORDS && words[n]; n++) {
        const char *at = strchr(words[n], '@');
        snprintf(text[n], sizeof text[n], "%.*s%s%s", at ? (int)(at - words[n]) : 300, words[n],
                 at ? folder : "", at ? at + 1 : "");
        list[n] = text[n];
    }
    list[n++] = "run_name=r";
    *err = (ts_error){0};
    return ts_config_load_words(list, n, c, err);
}

typedef struct rule {
    const char *words[MAX_WORDS], *message; /* message NULL: accepted */
} rule;

static void check_rules(const rule *rules, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        ts_config *c = NULL;
        ts_error err;
        ts_status status = load(rules[i].words, &c, &err);
        if (!rules[i].message && status != TS_OK) fail_msg("%s: %s", rules[i].words[0], err.msg);
        if (rules[i].message && status == TS_OK) fail_msg("%s was accepted", rules[i].words[0]);
        if (rules[i].message &&
            (!strstr(err.msg, rules[i].message) || strncmp(err.msg, "1 error ", 8)))
            fail_msg("%s: expected one error, \"%s\", found:\n%s", rules[i].words[0],
                     rules[i].message, err.msg);
        ts_config_free(c);
    }
}
#define CHECK(...)                                                                                 \
    check_rules((const rule[]){__VA_ARGS__}, sizeof((const rule[]){__VA_ARGS__}) / sizeof(rule))

static void single_values(void **state)
{
    (void)state;
    CHECK(
        {{"steps=ten"}, "steps=ten   expected a whole number"},
        {{"steps=1.5"}, "expected a whole number"}, {{"steps="}, "expected a whole number"},
        {{"steps=[1]"}, "expected a whole number"}, {{"steps=0"}, "expected -1 or from 1 to"},
        {{"steps=99999999999999999999"}, "expected a whole number"},
        {{"learning_rate=fast"}, "expected a number"},
        {{"learning_rate=.nan"}, "expected a number"},
        {{"learning_rate=.inf"}, "expected a number"},
        {{"learning_rate=-1"}, "expected from 0 to 1000"},
        {{"adam_b2=1"}, "expected from 0 to below 1"}, {{"adam_eps=0"}, "expected above 0 to 1"},
        {{"per_device_batch_size=0"}, "expected above 0"},
        {{"packing=maybe"}, "expected true or false"},
        {{"lr_schedule_type=cosin"}, "expected cosine or wsd; did you mean cosine?"},
        {{"on_bad_row=ignore"}, "expected stop or skip"},
        {{"max_num_checkpoints_to_keep=0"}, "expected at least 1"},
        {{"base_num_decoder_layers=-1"}, "expected from 1 to 4096"},
        {{"vocab_size=2147483648"}, "expected from 2 to 2147483647"}, {{"lora=8"}, "unknown key"},
        {{"lora.rank=8"}, "did you mean lora.lora_rank?"},
        {{"batch_size=8"}, "did you mean per_device_batch_size?"},
        {{"cosine_learning_rate_final_fraction=0.1"}, "did you mean learning_rate_final_fraction?"},
        {{"qqqqqqqqqqqqqqqqqqqq=1"}, "unknown key; configs/base.yml lists all"},
        {{"steps"}, "expected key=value"}, {{"--quiet"}, "expected key=value, without dashes"},
        {{"adamw_mask=["}, "adamw_mask=[   a bracket or quote is not closed"},
        {{"adamw_mask=[a, b"}, "expected [a, b]"}, {{"adamw_mask=[\"a]"}, "is not closed"},
        {{"frozen_parameters=\"a"}, "is not closed"}, {{"adamw_mask=\"[\""}, NULL},
        {{"adamw_mask=[a,'b',\"[\"]"}, NULL}, {{"=4"}, "expected key=value"},
        {{"run_nmae=\xff"}, "byte 10 is not UTF-8"});
}

static void absent_features(void **state)
{
    (void)state;
    CHECK({{"dataset_type=tfds"}, "set dataset_type=jsonl dataset_path=FILE"},
          {{"dataset_type=hf"}, "set dataset_type=jsonl dataset_path=FILE"},
          {{"dataset_type=grain"}, "set dataset_type=jsonl dataset_path=FILE"},
          {{"dataset_type=txt"}, "did you mean text?"},
          {{"tokenizer_type=sentencepiece"}, "byte is"}, {{"quantization=int8"}, "leave it empty"},
          {{"use_dpo=true"}, "false works"}, {{"use_sft=yes"}, "train_data_columns"},
          {{"dropout_rate=0.1"}, "0 works"},
          {{"remat_policy=save_qkv_proj"}, "minimal keeps the results of products"},
          {{"opt_type=muon"}, "adamw is the optimizer"},
          {{"weight_dtype=bfloat16"}, "master weights are float32"},
          {{"decoder_block=gemma2"}, "llama2 is, for Llama"},
          {{"mlp_activations=[gelu, linear]"}, "llama2 layers have silu,linear"},
          {{"trainable_parameters_mask=[a]"}, "frozen_parameters"},
          {{"lora.enable_lora=true"}, "frozen_parameters"},
          {{"z_loss_multiplier=1e-4"}, "only 0 works"},
          {{"profiler=nsys"}, "nsys profile tessera train"},
          {{"reuse_example_batch=1"}, "only 0 works"},
          {{"quantization=", "use_dpo=false", "dropout_rate=0.0", "z_loss_multiplier=0"}, NULL});
}

static void between_keys(void **state)
{
    (void)state;
    CHECK(
        {{"steps=-1"}, "set one of them"}, {{"per_device_batch_size=0.25"}, "the least is 1"},
        {{"per_device_batch_size=2.5"}, "2 or 3 works"},
        {{"eval_per_device_batch_size=0.5"}, "the least is 1"},
        {{"per_device_batch_size=1000", "max_target_length=16777216"},
         "use gradient_accumulation_steps"},
        {{"base_num_kv_heads=6"}, "the nearest are 4 and 8"},
        {{"base_num_kv_heads=32"}, "the nearest is 16"}, {{"head_dim=33"}, "32 or 34"},
        {{"rope_type=llama3.1", "rope_low_freq_factor=4"}, "must be below rope_high_freq_factor=4"},
        {{"rope_type=yarn"}, "expected default or llama3.1"},
        {{"lr_schedule_type=wsd", "warmup_steps_fraction=0.6", "wsd_decay_steps_fraction=0.5"},
         "leaves 0.4"},
        {{"warmup_steps_fraction=0.6", "wsd_decay_steps_fraction=0.5"}, NULL},
        {{"dataset_type=text"}, "name them with dataset_path=FILE"},
        {{"dataset_path=@/a.txt"}, "dataset_type=synthetic reads no file"},
        {{"dataset_type=text", "dataset_path=@/a.txt", "vocab_size=258"}, "259 or more works"},
        {{"dataset_type=text", "dataset_path=@/a.txt", "vocab_size=259"}, NULL},
        {{"dataset_type=tokens", "dataset_path=@/a.txt", "vocab_size=50"}, NULL},
        {{"dataset_type=jsonl", "dataset_path=@/a.txt", "train_data_columns=[]"}, "is empty"},
        {{"eval_interval=5"}, "dataset_type=synthetic has nothing to evaluate on"},
        {{"eval_fraction=0.1"}, "dataset_type=synthetic has nothing to evaluate on"},
        {{"dataset_type=text", "dataset_path=@/a.txt", "eval_interval=5"},
         "set eval_dataset_path=FILE or eval_fraction=0.1"},
        {{"dataset_type=text", "dataset_path=@/a.txt", "eval_interval=5", "eval_fraction=0.1"},
         NULL},
        {{"dataset_type=text", "dataset_path=@/a.txt", "eval_dataset_path=@/a.txt",
          "eval_fraction=0.1"},
         "keep one of the two"},
        {{"num_best_checkpoints_to_keep=2"}, "set it too, such as max_num_checkpoints_to_keep=3"},
        {{"num_best_checkpoints_to_keep=2", "max_num_checkpoints_to_keep=3"},
         "nothing is evaluated; set eval_interval"},
        {{"dataset_type=text", "dataset_path=@/a.txt", "eval_interval=5", "eval_fraction=0.1",
          "num_best_checkpoints_to_keep=2", "max_num_checkpoints_to_keep=3"},
         NULL},
        {{"dataset_type=text", "dataset_path=@/a.txt", "eval_fraction=0.1", "target_eval_loss=2"},
         "set eval_interval"},
        {{"sample_interval=5", "vocab_size=100"}, "samples need the 259 ids"},
        {{"load_parameters_path=@/hf", "load_full_state_path=@/step"}, "keep one of the two"},
        {{"model_path=@/hf", "load_parameters_path=@/step"}, "keep one of the two"},
        {{"model_path=@/hf", "model_name=llama3-8b"}, "already says what the model is"},
        {{"model_path=@/hf", "head_dim=64"}, "the model's files say this"},
        {{"model_path=@/hf"}, NULL}, {{"load_parameters_path=@/step"}, NULL},
        {{"base_output_directory=/tmp", "metrics_file=@"},
         "is a folder; expected the name of a file"});
}

static void engines(void **state)
{
    (void)state;
    CHECK({{"engine=xla"}, NULL}, {{"engine=gpu"}, "expected auto, cpu or xla"},
          {{"engine=cpu", "plugin=cpu"}, "set engine=xla, or leave plugin out"},
          {{"engine=xla", "plugin=tpu"}, NULL}, {{"plugin=cuda"}, NULL},
          {{"plugin=cud"}, "did you mean cuda?"}, {{"plugin=libtpu.so"}, "./libtpu.so for one"},
          {{"engine=xla", "plugin=@/gone.so"}, "does not exist"},
          {{"plugin=@/hf"}, "is not a file"}, {{"engine=cpu", "profiler=xplane"}, "trace works"},
          {{"engine=xla", "profiler=trace"}, "xplane works"},
          {{"plugin=cpu", "profiler=trace"}, "xplane works"}, {{"profiler=trace"}, NULL},
          {{"profiler=xplane"}, NULL}, {{"engine=cpu", "profiler=trace", "steps=2"}, NULL},
          {{"profiler=trace", "steps=2", "skip_first_n_steps_for_profiler=2"}, "1 or less works"},
          {{"steps=2", "skip_first_n_steps_for_profiler=2"}, NULL},
          {{"profiler_steps=0"}, "at least 1"}, {{"max_inflight_computations=0"}, "at least 1"},
          {{"compile_xla_flags=--xla_a=1 xla_b=true"}, NULL},
          {{"compile_xla_flags=xla_a"}, "\"xla_a\" is no option; expected name=value"},
          {{"compile_xla_flags=xla_a=1 =2"}, "\"=2\" is no option"},
          {{"compile_xla_flags=xla_a="}, "is no option"},
          {{"compile_xla_flags=---xla_a=1"}, "is no option"},
          {{"compile_xla_flags=xla-a=1"}, "is no option"},
          {{"compiled_trainstep_file=@/gone"}, NULL}, /* `tessera compile` writes it */
          {{"compiled_trainstep_file=gs://b/x"}, "mount the bucket"},
          {{"xla_dump_to=@/a.txt"}, "is not a folder"}, {{"xla_dump_to=@/new"}, NULL},
          {{"matmul_precision=fastest"}, "expected default, bfloat16, high or highest"});
    ts_config *c = NULL;
    ts_error err;
    static const char *const words[MAX_WORDS] = {
        "compile_xla_flags= --xla_a=1\t-xla_b=x=y  xla_c=0.5 ", "run_name=r"};
    if (load(words, &c, &err) != TS_OK) fail_msg("%s", err.msg);
    assert_int_equal(c->xla_flags.n, 3);
    assert_string_equal(c->xla_flags.item[0], "xla_a=1");
    assert_string_equal(c->xla_flags.item[1], "xla_b=x=y");
    assert_string_equal(c->xla_flags.item[2], "xla_c=0.5");
    ts_config_free(c);
}

/* The largest model that the limits allow still has a number of parameters that fits. */
static void largest_model(void **state)
{
    (void)state;
    ts_config *c = NULL;
    ts_error err;
    static const char *const words[MAX_WORDS] = {
        "base_emb_dim=1048576", "base_num_query_heads=16384", "base_num_kv_heads=16384",
        "head_dim=4096",        "base_mlp_dim=4194304",       "base_num_decoder_layers=4096",
        "vocab_size=2147483647"};
    if (load(words, &c, &err) != TS_OK) fail_msg("%s", err.msg);
    const ts_model_config *m = &c->model;
    int64_t q, layer, all;
    assert_false(ts_mul_i64(m->heads, 4 * m->head_dim, &q) ||
                 ts_add_i64(q, 3 * m->ffn + 2, &layer) || ts_mul_i64(layer, m->hidden, &layer) ||
                 ts_mul_i64(layer, m->layers, &all) ||
                 ts_add_i64(all, 2 * m->vocab * m->hidden + m->hidden, &all));
    ts_config_free(c);
}

/* A value that is refused does not hide what is wrong beside it. */
static void nothing_hides(void **state)
{
    (void)state;
    ts_config *c = NULL;
    ts_error err;
    static const char *const words[MAX_WORDS] = {
        "dataset_type=txt",    "dataset_path=@/gone", "load_parameters_path=@/gone",
        "max_target_length=0", "base_num_kv_heads=3", "eval_fraction=2"};
    assert_int_equal(load(words, &c, &err), TS_INVALID_ARGUMENT);
    assert_int_equal(strncmp(err.msg, "6 errors", 8), 0);
}

static void paths(void **state)
{
    (void)state;
    CHECK({{"dataset_type=jsonl", "dataset_path=@"}, "a.jsonl)"},
          {{"dataset_type=text", "dataset_path=@/hf/"},
           "is a folder; expected a .jsonl, .txt or .bin file"},
          {{"dataset_type=text", "dataset_path=@/b.txt"}, "/a.txt?"},
          {{"dataset_type=text", "dataset_path=@/a.txt,@/a.txt"}, "does not exist"},
          {{"dataset_type=text", "dataset_path=@/a.txt,"}, "has an empty name"},
          {{"dataset_type=text", "dataset_path=/dev/null"}, "is a device or pipe"},
          {{"dataset_type=text", "dataset_path=gs://bucket/a.txt"}, "mount the bucket"},
          {{"dataset_type=text", "dataset_path=@/a.txt", "eval_dataset_path=@/c"},
           "eval_dataset_path"},
          {{"model_path=@/nothing"}, "does not exist"},
          {{"model_path=@/step"}, "expected a Hugging Face folder (with config.json)"},
          {{"model_path=@/a.txt"}, "is not a folder"},
          {{"load_full_state_path=@/hf"}, "expected a checkpoint step (with manifest.json)"},
          {{"load_parameters_path=@"}, "or a Hugging Face folder (with config.json)"},
          {{"load_parameters_path=@/m.gguf"}, "GGUF files are not read by this version"},
          {{"base_output_directory=@/a.txt"}, "is a file; the run needs a folder there"},
          {{"base_output_directory=gs://bucket"}, "mount the bucket"},
          {{"base_output_directory=@/new/deep"}, NULL},
          {{"base_output_directory=/proc/x"}, "/proc belongs to the kernel and takes no files"},
          {{"base_output_directory=/sys/x/y"}, "/sys belongs to the kernel"},
          {{"dataset_type=text", "dataset_path=[\"@/a,b.txt\"]"}, NULL},
          {{"dataset_type=text", "dataset_path=@/a,b.txt"}, "does not exist"});
    /* Paths are looked at, never made. */
    char made[100];
    snprintf(made, sizeof made, "%s/new", folder);
    assert_int_equal(ts_path_kind_of(made), TS_PATH_NONE);
}

static void names_of_runs(void **state)
{
    (void)state;
    static const char *const refused[][2] = {
        {"run_name=a/b", "run_name=a/b   holds a /;"},
        {"run_name=a\nb", "run_name=a?b   holds a line break;"},
        {"run_name=a\rb", "holds a line break;"},
        {"run_name=a\tb", "holds the control character 0x09;"},
        {"run_name=a\x7f", "holds the control character 0x7f;"},
        {"run_name=..", "names one folder below base_output_directory"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        const char *words[] = {"base.yml", refused[i][0]};
        ts_config *c = NULL;
        ts_error err = {0};
        assert_int_equal(ts_config_load_words(words, 2, &c, &err), TS_INVALID_ARGUMENT);
        if (!strstr(err.msg, refused[i][1])) fail_msg("%s", err.msg);
    }
}

/* ~/ is the home folder in every path, and nothing else is expanded. */
static void home_folder(void **state)
{
    (void)state;
    ts_config *c = NULL;
    ts_error err;
    char path[100];
    const char *kept = getenv("HOME");
    setenv("HOME", folder, 1);
    static const char *const words[MAX_WORDS] = {
        "dataset_type=text", "dataset_path=~/a.txt,~/a,b.txt", "eval_dataset_path=[\"~/a,b.txt\"]",
        "base_output_directory=~/zz", "metrics_file=~/m"};
    assert_int_equal(load(words, &c, &err), TS_INVALID_ARGUMENT); /* two names, cut at the comma */
    static const char *const good[MAX_WORDS] = {
        "dataset_type=text",          "dataset_path=~/a.txt", "eval_dataset_path=[\"~/a,b.txt\"]",
        "base_output_directory=~/zz", "metrics_file=~/m",     "load_parameters_path=~/step"};
    if (load(good, &c, &err) != TS_OK) fail_msg("%s", err.msg);
    snprintf(path, sizeof path, "%s/a.txt", folder);
    assert_string_equal(c->dataset_path.item[0], path);
    snprintf(path, sizeof path, "%s/a,b.txt", folder);
    assert_string_equal(c->eval_dataset_path.item[0], path);
    snprintf(path, sizeof path, "%s/zz/r", folder);
    assert_string_equal(c->run_folder, path);
    snprintf(path, sizeof path, "%s/step", folder);
    assert_string_equal(c->load_parameters_path, path);
    ts_config_free(c);
    CHECK({{"base_output_directory=~nobody/x"}, "only ~/ is expanded"},
          {{"base_output_directory=./~/x"}, NULL},
          {{"dataset_type=text", "dataset_path=~/gone.txt"}, "/gone.txt does not exist"});
    setenv("HOME", "", 1);
    CHECK({{"base_output_directory=~/x"}, "write the folder out"});
    if (kept)
        setenv("HOME", kept, 1);
    else
        unsetenv("HOME");
}

/* Nobody chose the default folder: loading succeeds, and a run is told before it begins. */
static void default_output(void **state)
{
    (void)state;
    ts_config *c = NULL;
    ts_error err = {0};
    static const char *const words[MAX_WORDS] = {"steps=1"};
    if (chdir("/proc")) skip();
    if (load(words, &c, &err) != TS_OK) fail_msg("%s", err.msg);
    assert_int_equal(ts_config_check_output(c, &err), TS_INVALID_ARGUMENT);
    assert_non_null(strstr(err.msg, "base_output_directory=./maxtext_output   the working folder"));
    assert_non_null(strstr(err.msg, "(the default)"));
    ts_config_free(c);
    assert_int_equal(chdir(folder), 0);
    if (load(words, &c, &err) != TS_OK) fail_msg("%s", err.msg);
    assert_int_equal(ts_config_check_output(c, &err), TS_OK);
    ts_config_free(c);
    put("maxtext_output", "");
    if (load(words, &c, &err) != TS_OK) fail_msg("%s", err.msg);
    assert_int_equal(ts_config_check_output(c, &err), TS_INVALID_ARGUMENT);
    assert_non_null(strstr(err.msg, "./maxtext_output is a file"));
    ts_config_free(c);
    assert_int_equal(unlink("maxtext_output"), 0);
}

static void permissions(void **state)
{
    (void)state;
    if (!geteuid()) {
        print_message("SKIP: root reads and writes every file\n");
        skip();
    }
    char path[100];
    snprintf(path, sizeof path, "%s/secret.txt", folder);
    put("secret.txt", "text");
    chmod(path, 0);
    CHECK({{"dataset_type=text", "dataset_path=@/secret.txt"}, "may not be read by this user"},
          {{"base_output_directory=/proc"}, "/proc is read-only"});
}

/* Five mistakes of five kinds: five aligned lines, and nothing is made. */
static void five_at_once(void **state)
{
    (void)state;
    ts_config *c = NULL;
    ts_error err;
    static const char *const words[MAX_WORDS] = {"configs/base.yml",  "per_device_bacth_size=4",
                                                 "steps=ten",         "ici_tensor_parallelism=6",
                                                 "dataset_type=text", "dataset_path=@",
                                                 "quantization=int8"};
    assert_int_equal(load(words, &c, &err), TS_INVALID_ARGUMENT);
    assert_null(c);
    assert_int_equal(strncmp(err.msg, "5 errors in the configuration, nothing was started\n\n", 52),
                     0);
    size_t lines = 0, column = 0;
    for (const char *line = strchr(err.msg, '\n') + 1; (line = strchr(line, '\n')); lines++) {
        line++;
        size_t n = strcspn(line, "\n"), width = 0;
        for (size_t i = 2; i + 3 < n && !width; i++)
            if (line[i] == ' ' && line[i - 1] == ' ' && line[i + 1] != ' ') width = i + 1;
        assert_true(width > 0);
        if (column) assert_int_equal(width, column);
        column = width;
    }
    /* The folder's path is longer than the others, but not too long to align with. */
    assert_int_equal(lines, 5);
}

static void many_at_once(void **state)
{
    (void)state;
    char word[300][40];
    const char *words[300];
    ts_config *c = NULL;
    ts_error err = {0};
    for (int i = 0; i < 300; i++) {
        snprintf(word[i], sizeof word[i], "no_such_key_%d=\x01%d", i, i);
        words[i] = word[i];
    }
    assert_int_equal(ts_config_load_words(words, 300, &c, &err), TS_INVALID_ARGUMENT);
    assert_int_equal(strncmp(err.msg, "300 errors", 10), 0);
    assert_non_null(strstr(err.msg, "\n  and "));
    assert_null(strchr(err.msg, '\x01'));
    char *end = strrchr(err.msg, ' ');
    assert_string_equal(end, " more");
}

static bool noted(const ts_config *c, const char *text)
{
    for (size_t i = 0; i < c->n_notes; i++)
        if (strstr(c->notes[i], text)) return true;
    return false;
}

static void notes(void **state)
{
    (void)state;
    ts_config *c = NULL;
    ts_error err;
    put("own.yml", "async_checkpointing: true\nlog_period: 7\nlearning_rate_schedule_steps: 10\n");
    static const char *const words[MAX_WORDS] = {
        "@/own.yml",    "fused_qkv=true",       "rope_scaling_factor=4",  "steps=20",
        "eval_steps=3", "model_name=llama3-8b", "max_target_length=16384"};
    if (load(words, &c, &err) != TS_OK) fail_msg("%s", err.msg);
    assert_true(noted(c, "fused_qkv=true has no effect yet")); /* said on the command line */
    assert_true(noted(c, "log_period=7 has no effect yet"));
    assert_false(noted(c, "async_checkpointing")); /* a file that repeats the default */
    assert_true(noted(c, "rope_type=llama3.1 only"));
    assert_true(noted(c, "the rate is 0 from there on"));
    assert_true(noted(c, "eval_steps=3 has no effect"));
    assert_true(noted(c, "beyond the 8192 positions"));
    assert_int_equal(c->n_notes, 6);
    ts_config_free(c);
}

static void rows_as_text(void **state)
{
    (void)state;
    ts_config *c = NULL;
    ts_error err;
    static const char *const words[MAX_WORDS] = {"dataset_type=text", "dataset_path=@/a.jsonl"};
    if (load(words, &c, &err) != TS_OK) fail_msg("%s", err.msg);
    assert_true(noted(c, "dataset_type=jsonl takes the text out of its rows"));
    ts_config_free(c);
    static const char *const rows[MAX_WORDS] = {"dataset_type=jsonl", "dataset_path=@/a.jsonl"};
    if (load(rows, &c, &err) != TS_OK) fail_msg("%s", err.msg);
    assert_int_equal(c->n_notes, 0);
    ts_config_free(c);
}

static void loader_options(void **state)
{
    (void)state;
    ts_config *c = NULL;
    ts_error err;
    static const char *const words[MAX_WORDS] = {"dataset_type=jsonl",
                                                 "dataset_path=@/a.jsonl,/dev/../etc/hostname",
                                                 "per_device_batch_size=3",
                                                 "gradient_accumulation_steps=4",
                                                 "eval_fraction=0.5",
                                                 "eval_per_device_batch_size=2",
                                                 "grain_packing_type=concat_then_split",
                                                 "on_bad_row=skip"};
    if (ts_path_kind_of("/etc/hostname") != TS_PATH_FILE) skip();
    if (load(words, &c, &err) != TS_OK) fail_msg("%s", err.msg);
    assert_int_equal(c->batch_rows, 12);
    ts_loader_options o;
    ts_config_loader_options(c, TS_SPLIT_TRAIN, NULL, &o);
    assert_int_equal(o.type, TS_DATA_JSONL);
    assert_int_equal(o.n_paths, 2);
    assert_int_equal(o.rows, 3);
    assert_int_equal(o.sequence, 2048);
    assert_int_equal(o.packing, TS_PACK_CONCAT);
    assert_int_equal(o.on_bad_row, TS_BAD_ROW_SKIP);
    assert_true(o.shuffle && o.eval_fraction == 0.5);
    ts_config_loader_options(c, TS_SPLIT_EVAL, NULL, &o);
    assert_int_equal(o.rows, 2);
    assert_int_equal(o.split, TS_SPLIT_EVAL);
    assert_false(o.shuffle);
    ts_config_free(c);
}

static int setup(void **state)
{
    (void)state;
    char path[100];
    ts_error err = {0};
    static const char *const folders[] = {"hf", "step"};
    snprintf(folder, sizeof folder, "/tmp/rules_XXXXXX");
    if (!mkdtemp(folder) || chdir(folder)) return -1; /* a folder that this user may write */
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, folders[i]);
        if (ts_make_folders(path, &err) != TS_OK) return -1;
    }
    put("a.txt", "text");
    put("a,b.txt", "text");
    put("a.jsonl", "{}");
    put("m.gguf", "GGUF");
    put("hf/config.json", "{}");
    put("step/manifest.json", "{}");
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    ts_error err = {0};
    return ts_remove_tree(folder, &err) == TS_OK ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(single_values),  cmocka_unit_test(absent_features),
        cmocka_unit_test(between_keys),   cmocka_unit_test(engines),
        cmocka_unit_test(paths),          cmocka_unit_test(largest_model),
        cmocka_unit_test(nothing_hides),  cmocka_unit_test(names_of_runs),
        cmocka_unit_test(permissions),    cmocka_unit_test(five_at_once),
        cmocka_unit_test(many_at_once),   cmocka_unit_test(notes),
        cmocka_unit_test(loader_options), cmocka_unit_test(home_folder),
        cmocka_unit_test(default_output), cmocka_unit_test(rows_as_text),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
