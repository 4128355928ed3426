/* test_xla_nonfinite.c – steps whose loss is not a number: skipped by all devices together, counted, and too many end
 * the run.
 *
 * The weights have one row of the embedding that is infinite, that of the letter Z. A step whose data has a Z is not
 * finite, on the one device that has its row of the batch and in the one micro-batch that has it, and every other step
 * is as ever. So which steps are skipped is known, on one device and on meshes, with accumulation, on the CPU engine
 * and on the xla engine with a step in flight behind each.
 */
#include "fake_help.h"

#include <math.h>

#include "base/file.h"
#include "base/json.h"
#include "ckpt/checkpoint.h"
#include "xla/plugin.h"

enum { STEPS = 12, ROWS = 8, SEQUENCE = 16, MAX_WORDS = 60, BAD = 3 };
static const int bad_step[BAD] = {4, 7, 8};

static char root[64], book[128], letters[128], model[200];
static const char *fake_plugin;

typedef struct told {
    int n, skipped;
    bool skips[STEPS];
    double loss[STEPS];
    ts_train_result result;
    ts_error err;
} told;

static void on_step(void *context, const ts_step_info *i)
{
    told *t = context;
    assert_true(i->step >= 0 && i->step < STEPS);
    t->n++;
    t->skipped += i->skipped;
    t->skips[i->step] = i->skipped;
    t->loss[i->step] = i->loss;
}

static ts_status run(const char *name, const char *more, told *t)
{
    char text[3000], *at = NULL;
    const char *word[MAX_WORDS];
    int n = 0;
    ts_config *c = NULL;
    ts_train_hooks hooks;
    snprintf(text, sizeof text,
             "base_emb_dim=16 base_num_query_heads=4 base_num_kv_heads=4 head_dim=8 base_mlp_dim=24 "
             "base_num_decoder_layers=2 vocab_size=260 max_target_length=%d dtype=float32 threads=1 "
             "learning_rate=1e-2 warmup_steps_fraction=0 dataset_type=text dataset_path=%s "
             "enable_data_shuffling=false abort_on_nan_loss=false abort_on_inf_loss=false steps=%d "
             "learning_rate_schedule_steps=%d base_output_directory=%s run_name=%s %s",
             SEQUENCE, book, STEPS, STEPS, root, name, more);
    for (char *w = strtok_r(text, " ", &at); w; w = strtok_r(NULL, " ", &at)) {
        assert_true(n < MAX_WORDS);
        word[n++] = w;
    }
    *t = (told){0};
    ts_train_hooks_default(&hooks);
    hooks.context = t;
    hooks.step = on_step;
    ts_status status = ts_config_load_words(word, n, &c, &t->err);
    if (status == TS_OK) status = ts_train(c, &hooks, &t->result, &t->err);
    ts_config_free(c);
    return status;
}

static void must(const char *name, const char *more, told *t)
{
    if (run(name, more, t) != TS_OK) fail_msg("%s: %s", name, t->err.msg);
}

static bool is_bad(int step)
{
    for (int i = 0; i < BAD; i++)
        if (bad_step[i] == step) return true;
    return false;
}

/* ---- the data and the weights ----------------------------------------------------------------- */

/* A Z in one row of each bad step, another row each time; tokens are the bytes behind one bos. */
static void write_book(const char *path, bool with_z)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    for (int at = 0; at < (STEPS + 1) * ROWS * SEQUENCE; at++) {
        const int token = at + 1, step = token / (ROWS * SEQUENCE);
        const int row = token / SEQUENCE % ROWS, place = token % SEQUENCE;
        const bool z = with_z && is_bad(step) && row == (5 * step + 2) % ROWS && place == 8;
        fputc(z ? 'Z' : "abcdefgh "[at * 7 % 31 % 9], f);
    }
    fclose(f);
}

static ts_checkpoint *opened(const char *name, int step)
{
    char path[300];
    ts_checkpoint *c;
    ts_error err = {0};
    snprintf(path, sizeof path, "%s/%s/checkpoints/%d", root, name, step);
    if (ts_checkpoint_open(path, &c, &err) != TS_OK) fail_msg("%s", err.msg);
    return c;
}

/* The weights of a checkpoint with that row, in a folder of its own. */
static void write_model(const char *name)
{
    char path[300], config[400];
    ts_error err = {0};
    ts_tensor_spec spec[64];
    const ts_tensor *tensor[64];
    ts_tensor_writer *w;
    size_t n = 0;
    ts_checkpoint *c = opened(name, 0);
    ts_tensors *from = ts_checkpoint_tensors(c);
    for (size_t i = 0; i < ts_tensors_count(from); i++) {
        const ts_tensor *x = ts_tensors_at(from, i);
        if (strncmp(x->name, "adam.", 5) == 0) continue;
        assert_true(n < 64);
        spec[n] = (ts_tensor_spec){.name = x->name, .dtype = TS_FILE_F32, .rank = x->rank};
        memcpy(spec[n].dim, x->dim, sizeof x->dim);
        tensor[n++] = x;
    }
    assert_int_equal(ts_make_folders(model, &err), TS_OK);
    snprintf(path, sizeof path, "%s/model.safetensors", model);
    assert_int_equal(ts_tensor_writer_open(path, spec, n, NULL, 0, &w, &err), TS_OK);
    for (size_t i = 0; i < n; i++) {
        float *v = malloc((size_t)tensor[i]->count * sizeof *v);
        assert_int_equal(ts_tensors_read_f32(from, tensor[i], 0, tensor[i]->count, v, &err), TS_OK);
        const int64_t width = tensor[i]->dim[tensor[i]->rank - 1];
        if (strstr(tensor[i]->name, "embed_tokens"))
            for (int64_t k = 0; k < width; k++) v[(int64_t)'Z' * width + k] = INFINITY;
        assert_int_equal(ts_tensor_writer_add(w, v, (size_t)tensor[i]->count * sizeof *v, &err), TS_OK);
        free(v);
    }
    assert_int_equal(ts_tensor_writer_close(w, false, NULL, NULL, &err), TS_OK);
    ts_checkpoint_close(c);
    snprintf(path, sizeof path, "%s/config.json", model);
    snprintf(config, sizeof config,
             "{\"model_type\": \"llama\", \"architectures\": [\"LlamaForCausalLM\"], \"vocab_size\": 260, "
             "\"hidden_size\": 16, \"intermediate_size\": 24, \"num_hidden_layers\": 2, "
             "\"num_attention_heads\": 4, \"num_key_value_heads\": 4, \"head_dim\": 8, "
             "\"rms_norm_eps\": 1e-5, \"rope_theta\": 10000.0, \"max_position_embeddings\": 16, "
             "\"tie_word_embeddings\": false, \"torch_dtype\": \"float32\"}");
    FILE *f = fopen(path, "w");
    assert_true(f && fputs(config, f) >= 0 && fclose(f) == 0);
}

static int set_up(void **state)
{
    (void)state;
    told t;
    const bool fast = access("/dev/shm", W_OK) == 0; /* a hundred saves, and no power that fails */
    snprintf(root, sizeof root, "%s/tessera-nonfinite-XXXXXX", fast ? "/dev/shm" : "/tmp");
    if (!mkdtemp(root)) return -1;
    snprintf(book, sizeof book, "%s/book.txt", root);
    snprintf(letters, sizeof letters, "%s/z.txt", root);
    snprintf(model, sizeof model, "%s/model", root);
    write_book(book, true);
    write_book(letters, true);
    fake_plugin = fake_library("fake_pjrt");
    fault_none();
    setenv("FAKE_PJRT_THREADS", "1", 1);
    must("first", "steps=1 per_device_batch_size=8", &t);
    write_model("first");
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    fault_none();
    return ts_remove_tree(root, NULL) == TS_OK ? 0 : -1;
}

/* ---- skipped together -------------------------------------------------------------------------- */

/* Parameters and moments of both to the bit. */
static bool same_state(const char *name, int step, int other)
{
    ts_error err = {0};
    ts_checkpoint *a = opened(name, step), *b = opened(name, other);
    ts_tensors *x = ts_checkpoint_tensors(a), *y = ts_checkpoint_tensors(b);
    bool same = ts_tensors_count(x) == ts_tensors_count(y) && ts_tensors_count(x) > 0;
    for (size_t i = 0; same && i < ts_tensors_count(x); i++) {
        const ts_tensor *t = ts_tensors_at(x, i);
        const ts_tensor *u = ts_tensors_find(y, t->name);
        const size_t n = (size_t)t->count * sizeof(float);
        char *v = malloc(n), *w = malloc(n);
        assert_non_null(u);
        assert_int_equal(ts_tensors_read(x, t, 0, v, n, &err), TS_OK);
        assert_int_equal(ts_tensors_read(y, u, 0, w, n, &err), TS_OK);
        same = memcmp(v, w, n) == 0;
        free(v);
        free(w);
    }
    ts_checkpoint_close(a);
    ts_checkpoint_close(b);
    return same;
}

/* The last line of metrics.jsonl has counted them all. */
static void counted(const char *name, int all)
{
    char path[300], line[4000] = "", last[4000] = "", want[80];
    snprintf(path, sizeof path, "%s/%s/metrics.jsonl", root, name);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) strcpy(last, line);
    fclose(f);
    snprintf(want, sizeof want, "\"learning/nonfinite_steps\": %d,", all);
    if (!strstr(last, want)) fail_msg("%s: not %s in %s", name, want, last);
}

static const struct {
    const char *name, *words;
    bool fake;
} variants[] = {
    {"one", "per_device_batch_size=8", false},
    {"micro", "per_device_batch_size=2 gradient_accumulation_steps=4", false},
    {"fsdp", "per_device_batch_size=2 cpu_devices=4 ici_fsdp_parallelism=4", false},
    {"data", "per_device_batch_size=2 cpu_devices=4 ici_data_parallelism=4 ici_fsdp_parallelism=1", false},
    {"tensor", "per_device_batch_size=2 cpu_devices=4 ici_tensor_parallelism=4 ici_fsdp_parallelism=1", false},
    {"cube",
     "per_device_batch_size=0.5 cpu_devices=8 ici_data_parallelism=2 ici_fsdp_parallelism=2 "
     "ici_tensor_parallelism=2 gradient_accumulation_steps=2",
     false},
    {"ahead", "per_device_batch_size=8", true},
    {"ahead4", "per_device_batch_size=1 ici_fsdp_parallelism=4 gradient_accumulation_steps=2", true},
};
enum { VARIANTS = sizeof variants / sizeof *variants };

static double loss[STEPS]; /* on one device */

static void skips_it(const char *name, const char *words)
{
    char more[900];
    told t;
    snprintf(more, sizeof more, "load_parameters_path=%s checkpoint_period=1 %s", model, words);
    must(name, more, &t);
    assert_int_equal(t.n, STEPS);
    for (int s = 0; s < STEPS; s++) {
        if (t.skips[s] != is_bad(s) || isfinite(t.loss[s]) == is_bad(s))
            fail_msg("%s: step %d, loss %g, skipped %d", name, s, t.loss[s], t.skips[s]);
        if (same_state(name, s, s + 1) != is_bad(s))
            fail_msg("%s: step %d %s the state", name, s, is_bad(s) ? "changes" : "leaves");
        if (!(loss[s] > 0)) loss[s] = t.loss[s];
        if (!is_bad(s) && fabs(t.loss[s] - loss[s]) > 1e-4 * loss[s])
            fail_msg("%s: step %d has loss %.9g, on one device %.9g", name, s, t.loss[s], loss[s]);
    }
    counted(name, BAD);
}

static void all_devices_skip_it(void **state)
{
    (void)state;
    for (int v = 0; v < VARIANTS; v++) {
        char words[600];
        const char *name = variants[v].name;
        snprintf(words, sizeof words, "%s %s%s", variants[v].words,
                 variants[v].fake ? "plugin=" : "", variants[v].fake ? fake_plugin : "");
        if (variants[v].fake) setenv("FAKE_PJRT_DEVICES", strchr(name, '4') ? "4" : "1", 1);
        skips_it(name, words);
        unsetenv("FAKE_PJRT_DEVICES");
    }
}

static void on_xla_for_cpus(void **state)
{
    (void)state;
    char path[4096];
    ts_error err = {0};
    if (ts__plugin_find("cpu", path, sizeof path, &err) != TS_OK) {
        print_message("SKIP: %s\n", err.msg);
        skip();
    }
    skips_it("xla", "plugin=cpu engine=xla per_device_batch_size=2 cpu_devices=4 ici_fsdp_parallelism=2 "
                    "ici_tensor_parallelism=2");
}

/* Several in flight are skipped and the ones behind are as ever, with no save in between to wait for. */
static void in_flight(void **state)
{
    (void)state;
    told a, b;
    char more[900];
    snprintf(more, sizeof more, "load_parameters_path=%s per_device_batch_size=8", model);
    must("slow-and-steady", more, &a);
    snprintf(more, sizeof more, "load_parameters_path=%s per_device_batch_size=8 plugin=%s", model,
             fake_plugin);
    must("in-flight", more, &b);
    for (int s = 0; s < STEPS; s++) {
        assert_int_equal(b.skips[s], is_bad(s));
        if (!is_bad(s)) assert_true(a.loss[s] == b.loss[s]);
    }
}

/* ---- too many ---------------------------------------------------------------------------------- */

static void says(const told *t, const char *part)
{
    if (!strstr(t->err.msg, part)) fail_msg("not \"%s\" in: %s", part, t->err.msg);
}

static void too_many_in_a_row(void **state)
{
    (void)state;
    told t;
    char more[900];
    for (int fake = 0; fake < 2; fake++) {
        snprintf(more, sizeof more,
                 "load_parameters_path=%s per_device_batch_size=8 max_nonfinite_steps=1 "
                 "checkpoint_period=5 %s%s",
                 model, fake ? "plugin=" : "", fake ? fake_plugin : "");
        assert_int_equal(run(fake ? "row-fake" : "row", more, &t), TS_ABORTED);
        assert_int_equal(ts_status_exit_code(t.err.code), 6);
        assert_int_equal(t.skipped, 3);
        says(&t, "step 8: loss nan");
        says(&t, "2 steps in a row were not finite, and none of them changed the weights");
        says(&t, "checkpoints/5. Lower learning_rate, or raise max_nonfinite_steps=1");
        assert_int_equal(t.result.saved_step, 5); /* what follows is not kept */
    }
}

/* One of the two before the stop, one behind it: still two in a row; and three in all. */
static void the_count_survives_a_resume(void **state)
{
    (void)state;
    told t;
    char more[900];
    snprintf(more, sizeof more,
             "load_parameters_path=%s per_device_batch_size=8 max_nonfinite_steps=1 steps=8", model);
    must("cut", more, &t);
    assert_int_equal(t.skipped, 2);
    counted("cut", 2);
    snprintf(more, sizeof more, "load_parameters_path=%s per_device_batch_size=8 max_nonfinite_steps=1",
             model);
    assert_int_equal(run("cut", more, &t), TS_ABORTED);
    assert_int_equal(t.n, 1);
    says(&t, "2 steps in a row were not finite");
    counted("cut", 3);
    snprintf(more, sizeof more, "load_parameters_path=%s per_device_batch_size=8 max_nonfinite_steps=2",
             model);
    must("cut", more, &t);
    assert_int_equal(t.result.steps, STEPS);
    counted("cut", 3);
}

static void the_first_ends_it(void **state)
{
    (void)state;
    told t;
    char more[900];
    snprintf(more, sizeof more,
             "load_parameters_path=%s per_device_batch_size=8 abort_on_nan_loss=true", model);
    assert_int_equal(run("first-nan", more, &t), TS_ABORTED);
    assert_int_equal(t.n, 5);
    says(&t, "step 4: loss nan");
    says(&t, "1 step in a row were not finite");
    says(&t, "set abort_on_nan_loss=false to skip up to max_nonfinite_steps=10");
    snprintf(more, sizeof more,
             "load_parameters_path=%s per_device_batch_size=8 abort_on_inf_loss=true", model);
    must("no-inf", more, &t); /* that key is of other losses */
}

/* ---- evaluation -------------------------------------------------------------------------------- */

static void an_evaluation_is_no_stop_and_no_best(void **state)
{
    (void)state;
    told t;
    char more[900];
    snprintf(more, sizeof more,
             "load_parameters_path=%s per_device_batch_size=8 eval_dataset_path=%s eval_interval=2 "
             "checkpoint_period=2 target_eval_loss=100 max_num_checkpoints_to_keep=2 "
             "num_best_checkpoints_to_keep=1 steps=4",
             model, letters);
    must("evaluated", more, &t);
    assert_int_equal(t.result.steps, 4);
    assert_true(isnan(t.result.eval_loss));
    for (int step = 2; step <= 4; step += 2) {
        ts_checkpoint *c = opened("evaluated", step);
        assert_true(isnan(ts_checkpoint_score(c)));
        ts_checkpoint_close(c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_devices_skip_it),
        cmocka_unit_test(on_xla_for_cpus),
        cmocka_unit_test(in_flight),
        cmocka_unit_test(too_many_in_a_row),
        cmocka_unit_test(the_count_survives_a_resume),
        cmocka_unit_test(the_first_ends_it),
        cmocka_unit_test(an_evaluation_is_no_stop_and_no_best),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
