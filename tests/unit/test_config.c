/* test_config.c – where values come from and how they read: the table against configs/base.yml, the
 * order of the layers, contradictions, files and parents, presets, text and back.
 * test_config_rules.c has the rules between keys and the paths. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "train/config_internal.h"

static char folder[64];

static const char *path_in(const char *name)
{
    static char path[4][160];
    static int turn;
    char *p = path[turn++ % 4];
    snprintf(p, sizeof path[0], "%s/%s", folder, name);
    return p;
}

static void put(const char *name, const char *text)
{
    ts_error err = {0};
    ts_writer *w = NULL;
    if (ts_writer_open(path_in(name), false, &w, &err) != TS_OK ||
        ts_writer_write(w, text, strlen(text), &err) != TS_OK ||
        ts_writer_close(w, false, &err) != TS_OK)
        fail_msg("%s", err.msg);
}

/* Words end with NULL. Every test names its run, so that no clock is involved. */
#define LOAD(...)    load_words((const char *const[]){__VA_ARGS__, "run_name=r", NULL})
#define REFUSED(...) refused_words((const char *const[]){__VA_ARGS__, "run_name=r", NULL})

static int count_words(const char *const *words)
{
    int n = 0;
    while (words[n]) n++;
    return n;
}

static ts_config *load_words(const char *const *words)
{
    ts_config *c = NULL;
    ts_error err = {0};
    if (ts_config_load_words(words, count_words(words), &c, &err) != TS_OK) fail_msg("%s", err.msg);
    return c;
}

static const char *refused_words(const char *const *words)
{
    static ts_error err;
    ts_config *c = NULL;
    err = (ts_error){0};
    if (ts_config_load_words(words, count_words(words), &c, &err) == TS_OK)
        fail_msg("%s was accepted", words[0]);
    assert_null(c);
    assert_int_equal(err.code, TS_INVALID_ARGUMENT);
    assert_int_equal(ts_status_exit_code(err.code), 2);
    return err.msg;
}

static void has(const char *text, const char *part)
{
    if (!strstr(text, part)) fail_msg("no \"%s\" in:\n%s", part, text);
}

/* ---- the table ---------------------------------------------------------------------------------------- */

static void defaults_are_maxtexts(void **state)
{
    (void)state;
    ts_config *c = LOAD("base.yml");
    assert_int_equal(c->steps, 150001);
    assert_true(c->per_device_batch_size == 12.0 && c->learning_rate == 3e-5 &&
                c->adam_eps == 1e-8);
    assert_int_equal(c->max_target_length, 2048);
    assert_int_equal(c->checkpoint_period, 10000);
    assert_int_equal(c->max_num_checkpoints_to_keep, -1);
    assert_int_equal(c->compute_dtype, TS_BF16);
    assert_int_equal(c->remat, TS_REMAT_FULL);
    assert_int_equal(c->model.hidden, 2048);
    assert_int_equal(c->model.vocab, 32000);
    assert_int_equal(c->mlp_activations.n, 2);
    assert_string_equal(c->mlp_activations.item[1], "linear");
    assert_int_equal(c->learning_rate_schedule_steps, 150001);
    assert_int_equal(c->checkpoint_storage_target_data_file_size_bytes, 2147483648);
    assert_int_equal(c->lora_lora_rank, 0);
    /* The known departures. */
    assert_string_equal(c->dataset_type, "synthetic");
    assert_string_equal(c->tokenizer_type, "byte");
    assert_false(c->enable_tensorboard);
    assert_string_equal(c->shard_mode, "explicit");
    assert_string_equal(c->run_folder, "./maxtext_output/r");
    assert_int_equal(c->n_notes, 0);
    ts_config_free(c);
}

/* The line that base.yml must have for a key. */
static void line_of(const ts_key *key, char *line, size_t size)
{
    static const char *const suffix[] = {"", " (no effect yet)", " (only this yet)"};
    const char *dot = strchr(key->name, '.'), *quote = key->type == TS_KEY_STRING ? "\"" : "";
    snprintf(line, size, "\n%s%s: %s%s%s  # %s%s\n", dot ? "  " : "", dot ? dot + 1 : key->name,
             quote, key->initial, quote, key->doc, suffix[key->status]);
}

static void base_yml_has_every_key(void **state)
{
    (void)state;
    const char *text = ts__embedded("configs/base.yml");
    assert_non_null(text);
    size_t lines = 0;
    for (int k = 0; k < TS_KEYS; k++) {
        char line[400];
        line_of(&ts__keys[k], line, sizeof line);
        if (!strstr(text, line))
            fail_msg("configs/base.yml lacks this line, or has another default or text:%s", line);
        lines++;
    }
    /* And nothing else: a further key would be refused when the file is read (defaults_are_maxtexts). */
    ts_arena *arena = ts_arena_new();
    const ts_yaml *map = NULL;
    ts_error err = {0};
    assert_int_equal(ts_yaml_parse(text, strlen(text), "base.yml", arena, &map, &err), TS_OK);
    size_t keys = 0;
    for (size_t i = 0; i < map->n; i++)
        keys += map->child[i]->kind == TS_YAML_MAP ? map->child[i]->n : 1;
    assert_int_equal(keys, lines);
    ts_arena_free(arena);
}

static void every_row_of_the_table_is_sound(void **state)
{
    (void)state;
    for (int k = 0; k < TS_KEYS; k++) {
        const ts_key *key = &ts__keys[k];
        assert_int_equal(ts__key_find(key->name), k);
        assert_true(*key->doc && key->doc[strlen(key->doc) - 1] != '.');
        if (key->status == TS_KEY_FIXED && !key->limits)
            fail_msg("%s is FIXED without limits", key->name);
    }
}

/* ---- presets ------------------------------------------------------------------------------------------ */

static void presets(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int64_t vocab, hidden, ffn, layers, heads, kv, head, positions, parameters;
        bool tied, scaled;
    } want[] = {
        {"llama3-8b", 128256, 4096, 14336, 32, 32, 8, 128, 8192, 8030261248, false, false},
        {"llama3-70b", 128256, 8192, 28672, 80, 64, 8, 128, 8192, 70553706496, false, false},
        {"llama3.1-8b", 128256, 4096, 14336, 32, 32, 8, 128, 131072, 8030261248, false, true},
        {"llama3.1-70b-Instruct", 128256, 8192, 28672, 80, 64, 8, 128, 131072, 70553706496, false,
         true},
        {"llama3.2-1b", 128256, 2048, 8192, 16, 32, 8, 64, 131072, 1235814400, true, true},
        {"tessera-byte", 320, 256, 704, 4, 8, 4, 32, 4096, 3115264, false, false},
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        char word[64];
        snprintf(word, sizeof word, "model_name=%s", want[i].name);
        ts_config *c = LOAD(word);
        const ts_model_config *m = &c->model;
        assert_int_equal(m->vocab, want[i].vocab);
        assert_int_equal(m->hidden, want[i].hidden);
        assert_int_equal(m->ffn, want[i].ffn);
        assert_int_equal(m->layers, want[i].layers);
        assert_int_equal(m->heads, want[i].heads);
        assert_int_equal(m->kv_heads, want[i].kv);
        assert_int_equal(m->head_dim, want[i].head);
        assert_int_equal(m->max_positions, want[i].positions);
        assert_int_equal(m->tied, want[i].tied);
        assert_int_equal(m->rope, want[i].scaled ? TS_ROPE_LLAMA3 : TS_ROPE_DEFAULT);
        assert_true(m->rope_theta == (want[i].vocab == 320 ? 10000.0 : 500000.0));
        assert_true(!want[i].scaled || m->rope_factor == (want[i].tied ? 32.0 : 8.0));
        int64_t layer = m->hidden * m->head_dim * (2 * m->heads + 2 * m->kv_heads) +
                        3 * m->hidden * m->ffn + 2 * m->hidden;
        int64_t tables = m->vocab * m->hidden * (m->tied ? 1 : 2);
        assert_int_equal(tables + m->hidden + m->layers * layer, want[i].parameters);
        ts_config_free(c);
    }
    has(REFUSED("model_name=llama3-8bb"), "did you mean llama3-8b?");
    has(REFUSED("model_name=../base"), "model_path=FOLDER");
    has(REFUSED("model_name=zebra"), "configs/models/ has all");
}

static void every_preset_file_loads(void **state)
{
    (void)state;
    size_t seen = 0;
    const char *name;
    for (size_t i = 0; (name = ts__embedded_name(i)); i++) {
        char word[128];
        if (strncmp(name, "configs/models/", 15)) continue;
        snprintf(word, sizeof word, "model_name=%.*s", (int)strlen(name) - 19, name + 15);
        ts_config *c = LOAD(word);
        assert_string_equal(c->model_file, name);
        ts_config_free(c);
        seen++;
    }
    assert_true(seen >= 6);
}

/* ---- layers ------------------------------------------------------------------------------------------- */

static void order_of_layers(void **state)
{
    (void)state;
    put("base.yml", "base_emb_dim: 128\nsteps: 7\nmax_target_length: 64\nlog_period: "
                    "5\nmodel_name: tessera-byte\n");
    ts_config *c = LOAD(path_in("base.yml"), "steps=8");
    assert_int_equal(c->base_emb_dim, 256); /* the preset lies over base.yml */
    assert_int_equal(c->steps, 8);
    assert_int_equal(c->max_target_length, 64);
    ts_config_free(c);

    setenv("M_MAX_TARGET_LENGTH", "32", 1);
    c = LOAD(path_in("base.yml"), "steps=8", "steps=9");
    assert_int_equal(c->max_target_length, 32);
    assert_int_equal(c->steps, 9); /* the last word wins */
    unsetenv("M_MAX_TARGET_LENGTH");
    ts_config_free(c);

    put("own.yml", "model_name: tessera-byte\nbase_emb_dim: 128\noverride_model_config: true\n");
    c = LOAD(path_in("own.yml"));
    assert_int_equal(c->base_emb_dim, 128); /* any other file lies over the preset */
    assert_int_equal(c->base_mlp_dim, 704);
    ts_config_free(c);
    put("own.yml", "model_name: tessera-byte\nbase_emb_dim: 128\n");
    has(REFUSED(path_in("own.yml")),
        "the preset tessera-byte says 256; to differ add override_model_config=true");
    put("own.yml", "model_name: tessera-byte\nbase_emb_dim: 0x100\n");
    ts_config_free(LOAD(path_in("own.yml"))); /* equal values are fine, however written */
}

static void contradictions(void **state)
{
    (void)state;
    has(REFUSED("base.yml", "model_name=llama3-8b", "base_emb_dim=128"),
        "the preset llama3-8b says 4096");
    ts_config_free(LOAD("base.yml", "model_name=llama3-8b", "base_emb_dim=4_096"));
    ts_config *c =
        LOAD("base.yml", "model_name=llama3-8b", "base_emb_dim=128", "override_model_config=true");
    assert_int_equal(c->base_emb_dim, 128);
    ts_config_free(c);

    setenv("M_STEPS", "3", 1);
    has(REFUSED("base.yml", "steps=3"), "also set on the command line");
    c = LOAD("base.yml");
    assert_int_equal(c->steps, 3);
    ts_config_free(c);
    unsetenv("M_STEPS");

    setenv("M_VOCAB_SIZE", "128256", 1);
    has(REFUSED("base.yml", "model_name=llama3-8b"), "the environment may not change");
    unsetenv("M_VOCAB_SIZE");
    setenv("M_LORA_LORA_RANK", "8", 1);
    setenv("M_LOG_CONFIG", "f", 1);
    c = LOAD("base.yml");
    assert_int_equal(c->lora_lora_rank, 8);
    assert_false(c->log_config);
    ts_config_free(c);
    unsetenv("M_LORA_LORA_RANK");
    unsetenv("M_LOG_CONFIG");
    setenv("M_STPES", "3", 1);
    has(REFUSED("base.yml"), "comes from the environment");
    has(REFUSED("base.yml"), "did you mean M_STEPS; to remove it: unset M_STPES");
    unsetenv("M_STPES");
}

static void files_and_parents(void **state)
{
    (void)state;
    ts_config_free(LOAD("src/MaxText/configs/base.yml", "steps=3"));
    ts_config_free(LOAD("src/maxtext/configs/base.yml", "steps=3"));
    ts_config_free(LOAD("no/such/place/base.yml", "steps=3"));
    has(REFUSED("no/such/place/other.yml"), "there is no such configuration file");
    has(REFUSED(folder), "expected key=value");

    put("parent.yml", "steps: 11\nmax_target_length: 16\nbase_emb_dim: 64\n");
    put("child.yml", "base_config: parent.yml\nmax_target_length: 8\nmodel_name: tessera-byte\n");
    ts_config *c = LOAD(path_in("child.yml"));
    assert_int_equal(c->steps, 11);
    assert_int_equal(c->max_target_length, 8);
    assert_int_equal(c->base_emb_dim, 256); /* with base_config the preset lies over the file */
    ts_config_free(c);
    put("child.yml", "base_config: base.yml\nsteps: 4\n");
    put("loop.yml", "base_config: loop.yml\n");
    has(REFUSED(path_in("loop.yml")), "one may name itself");
    put("child.yml", "base_config: gone.yml\n");
    has(REFUSED(path_in("child.yml")), "gone.yml");
    put("child.yml", "base_config: [a]\n");
    has(REFUSED(path_in("child.yml")), "expected the path");
    put("bad.yml", "steps: 3\nsteps: 4\n");
    has(REFUSED(path_in("bad.yml"), "stpes=4"), "2 errors");
    put("bad.yml", "- steps\n");
    has(REFUSED(path_in("bad.yml")), "expected lines of");
    put("bad.yml", "steps: ten\nlora:\n  lora_rnk: 8\nsteps_: {a: 1}\n");
    const char *message = REFUSED(path_in("bad.yml"));
    has(message, "bad.yml:1)");
    has(message, "did you mean lora.lora_rank?");
    has(message, "did you mean steps?");
    /* A file without a key would be the default model, of a billion parameters, without a word. */
    static const char *const empty[] = {"", "\n", "# steps: 3\n", "---\n", "null\n", "{}"};
    for (size_t i = 0; i < sizeof empty / sizeof *empty; i++) {
        put("empty.yml", empty[i]);
        has(REFUSED(path_in("empty.yml")), "has no key at all");
    }
    put("empty.yml", "lora:\n");
    ts_config_free(LOAD(path_in("empty.yml")));
    /* As editors of other systems write it. */
    put("mark.yml", "\xef\xbb\xbfsteps: 3\r\nlora:\r\n  lora_rank: 8\r\nlearning_rate: 1e-3\r\n");
    c = LOAD(path_in("mark.yml"));
    assert_int_equal(c->steps, 3);
    assert_int_equal(c->lora_lora_rank, 8);
    ts_config_free(c);
    put("wide.yml", "\xff\xfes");
    has(REFUSED(path_in("wide.yml")), "is UTF-16 text; write it as UTF-8");
}

/* A preset beside the configuration file is preferred to the embedded ones. */
static void own_presets(void **state)
{
    (void)state;
    ts_error err = {0};
    assert_int_equal(ts_make_folders(path_in("models"), &err), TS_OK);
    put("models/mine.yml", "base_emb_dim: 48\nvocab_size: 300\n");
    put("own.yml", "model_name: mine\n");
    ts_config *c = LOAD(path_in("own.yml"));
    assert_int_equal(c->model.hidden, 48);
    ts_config_free(c);
    put("models/mine.yml", "base_emb_dmi: 48\n");
    has(REFUSED(path_in("own.yml")), "did you mean base_emb_dim?");
}

/* ---- values ------------------------------------------------------------------------------------------- */

static void ways_to_write(void **state)
{
    (void)state;
    ts_config *c = LOAD("steps=1_000", "learning_rate=3.e-5", "log_config=No",
                        "max_num_checkpoints_to_keep=None",
                        "frozen_parameters=[*.embed*, 'a,b' , \"c\"]", "sample_prompt=\"x\\ny: z\"",
                        "adamw_mask=bias,norm", "warmup_steps_fraction=0", "max_target_length=1e3");
    assert_int_equal(c->steps, 1000);
    assert_true(c->learning_rate == 3e-5);
    assert_false(c->log_config);
    assert_int_equal(c->max_num_checkpoints_to_keep, -1);
    assert_int_equal(c->frozen_parameters.n, 3);
    assert_string_equal(c->frozen_parameters.item[0], "*.embed*");
    assert_string_equal(c->frozen_parameters.item[1], "a,b");
    assert_string_equal(c->frozen_parameters.item[2], "c");
    assert_string_equal(c->sample_prompt, "x\ny: z");
    assert_int_equal(c->adamw_mask.n, 2);
    assert_int_equal(c->max_target_length, 1000);
    ts_config_free(c);
    c = LOAD("sample_prompt=a: b # c", "frozen_parameters=", "steps=-1",
             "learning_rate_schedule_steps=50");
    assert_string_equal(c->sample_prompt, "a: b # c");
    assert_int_equal(c->frozen_parameters.n, 0);
    assert_int_equal(c->steps, 50);
    ts_config_free(c);
}

/* All of the text, or a failure that is known. */
static void text_without_memory(void **state)
{
    (void)state;
    ts_config *c = LOAD("model_name=tessera-byte", "dataset_type=synthetic");
    ts_string whole = ts_string_new(TS_CONFIG_TEXT_MAX);
    ts_config_yaml(c, &whole);
    assert_false(whole.failed);
    int failed = 0;
    for (uint64_t nth = 1; nth < 200; nth += nth < 20 ? 1 : 7) {
        ts_string text = ts_string_new(TS_CONFIG_TEXT_MAX);
        ts_alloc_fail_at(nth);
        ts_config_yaml(c, &text);
        ts_alloc_fail_at(0);
        failed += text.failed;
        if (!text.failed) assert_string_equal(text.data, whole.data);
        ts_string_free(&text);
    }
    assert_true(failed > 10);
    ts_string_free(&whole);
    ts_config_free(c);
}

static void text_and_back(void **state)
{
    (void)state;
    ts_error err = {0};
    put("model.txt", "text");
    char data[200], secret[] = "hf_access_token=secret";
    snprintf(data, sizeof data, "dataset_path=%s", path_in("model.txt"));
    ts_config *c =
        LOAD("model_name=tessera-byte", "override_model_config=true", "base_num_decoder_layers=3",
             data, "dataset_type=text", "learning_rate=0.0123456789012345678",
             "sample_prompt=\"a\\\"\\\\ \\t\"", "frozen_parameters=[a, 'b,c']", secret,
             "eval_fraction=0.25", "eval_interval=5");
    assert_int_equal(ts_config_write(c, path_in("config.yml"), &err), TS_OK);
    ts_config *again = LOAD(path_in("config.yml"));
    ts_string a = ts_string_new(TS_CONFIG_TEXT_MAX), b = ts_string_new(TS_CONFIG_TEXT_MAX);
    ts_config_yaml(c, &a);
    ts_config_yaml(again, &b);
    assert_string_equal(a.data, b.data);
    assert_null(strstr(a.data, "secret"));
    assert_int_equal(again->n_notes, 0); /* a resolved file sets nothing that does nothing */
    assert_true(c->learning_rate == again->learning_rate);
    assert_memory_equal(&c->model, &again->model, sizeof c->model);
    ts_string_free(&b);

    b = ts_string_new(TS_CONFIG_TEXT_MAX);
    ts_config_print(c, &b);
    has(b.data, "Config param learning_rate: 0.012345678901234568\n");
    has(b.data, "Config param hf_access_token: hidden\n");
    has(b.data, "Config param lora.lora_rank: 0\n");
    char last[100] = "";
    size_t lines = 0;
    for (char *line = strtok(b.data, "\n"); line; line = strtok(NULL, "\n"), lines++) {
        char name[100];
        assert_int_equal(sscanf(line, "Config param %99[^:]:", name), 1);
        assert_true(strcmp(last, name) < 0);
        memcpy(last, name, sizeof last);
    }
    assert_int_equal(lines, TS_KEYS);
    ts_string_free(&a);
    ts_string_free(&b);
    ts_config_free(c);
    ts_config_free(again);
}

static void names_of_runs(void **state)
{
    (void)state;
    ts_config *c = NULL;
    ts_error err = {0};
    const char *words[] = {"model_name=tessera-byte", "base_output_directory=/tmp/"};
    setenv("JOBSET_NAME", "jobset", 1);
    assert_int_equal(ts_config_load(NULL, words, 2, &c, &err), TS_OK);
    assert_string_equal(c->run_folder, "/tmp/jobset");
    ts_config_free(c);
    unsetenv("JOBSET_NAME");
    assert_int_equal(ts_config_load(NULL, words, 2, &c, &err), TS_OK);
    int year, month, day, hour, minute, end = 0;
    sscanf(c->run_name, "tessera-byte_%4d-%2d-%2d-%2d-%2d%n", &year, &month, &day, &hour, &minute,
           &end);
    assert_int_equal(end, strlen("tessera-byte_2026-11-30-17-30"));
    assert_int_equal(end, strlen(c->run_name));
    ts_config_free(c);
}

/* Memory that runs out anywhere is an error, never a crash or a half-read configuration. */
static void memory_out(void **state)
{
    (void)state;
    put("own.yml", "model_name: tessera-byte\nlora:\n  lora_rank: 8\nfrozen_parameters: [a, b]\n");
    const char *words[] = {path_in("own.yml"), "steps=4", "frozen_parameters=[c, 'd']",
                           "logical_axis_rules=[[heads, [tensor]], 'embed:']", "cpu_devices=8",
                           "per_device_batch_size=1.5", "stpes=3"};
    uint64_t nth = 1, failures = 0;
    for (bool done = false; !done && nth < 100000; nth += nth / 16 + 1) {
        for (int n = 5; n <= 7; n++) {
            ts_config *c = NULL;
            ts_error err = {0};
            uint64_t before = ts_alloc_count();
            ts_alloc_fail_at(nth);
            ts_status status = ts_config_load_words(words, n, &c, &err);
            done = ts_alloc_count() - before < nth;
            ts_alloc_fail_at(0);
            assert_true((status == TS_OK) == (c != NULL));
            assert_true(status == TS_OK || err.msg[0]);
            failures += status != TS_OK;
            if (done) assert_int_equal(status, n == 5 ? TS_OK : TS_INVALID_ARGUMENT);
            ts_config_free(c);
        }
    }
    assert_true(failures > 10);
}

static int setup(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/test_config_XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
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
        cmocka_unit_test(defaults_are_maxtexts),
        cmocka_unit_test(base_yml_has_every_key),
        cmocka_unit_test(every_row_of_the_table_is_sound),
        cmocka_unit_test(presets),
        cmocka_unit_test(every_preset_file_loads),
        cmocka_unit_test(order_of_layers),
        cmocka_unit_test(contradictions),
        cmocka_unit_test(files_and_parents),
        cmocka_unit_test(own_presets),
        cmocka_unit_test(ways_to_write),
        cmocka_unit_test(text_and_back),
        cmocka_unit_test(text_without_memory),
        cmocka_unit_test(names_of_runs),
        cmocka_unit_test(memory_out),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
