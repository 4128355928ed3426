/* test_saves.c – runs and their checkpoints: what a save that fails means, which checkpoints stay, what a resume says.
 *
 * A tiny run through ts_train. An observer of the file calls lets every sync below the folders of chosen steps fail,
 * whichever thread makes it, so nothing here depends on time.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/file.h"
#include "ckpt/checkpoint.h"
#include "tessera.h"

enum { MAX_WORDS = 48 };

static char root[64], book[128], said[20000], warned[20000];
static int tight; /* the call for memory behind step 3 that fails; 0: none */

static void add(char *to, size_t n, const char *line)
{
    size_t at = strlen(to);
    if (at < n) snprintf(to + at, n - at, "%s\n", line);
}

static void on_log(void *context, ts_log_level level, const char *line)
{
    (void)context;
    if (level == TS_LOG_WARNING) add(warned, sizeof warned, line);
}

static void on_line(void *context, const char *line)
{
    (void)context;
    add(said, sizeof said, line);
}

static void on_step(void *context, const ts_step_info *i)
{
    (void)context;
    if (tight && i->step == 3) ts_alloc_fail_at((uint64_t)tight);
}

static int set_up(void **state)
{
    (void)state;
    strcpy(root, "/tmp/tessera-saves-XXXXXX");
    if (!mkdtemp(root)) return -1;
    ts_log_set_sink(on_log, NULL);
    snprintf(book, sizeof book, "%s/book.txt", root);
    FILE *f = fopen(book, "w");
    if (!f) return -1;
    for (int i = 0; i < 400; i++) fprintf(f, "line %d of the book has %d words\n", i, i * 37 % 101);
    return fclose(f);
}

static int tear_down(void **state)
{
    (void)state;
    ts_log_set_sink(NULL, NULL);
    return ts_remove_tree(root, NULL) == TS_OK ? 0 : -1;
}

/* ---- runs ------------------------------------------------------------------------------------ */

static ts_status run(const char *name, const char *more, ts_train_result *result, ts_error *err)
{
    char text[2000], *at = NULL;
    const char *word[MAX_WORDS];
    int n = 0;
    ts_config *c = NULL;
    ts_train_hooks hooks;
    *said = *warned = '\0';
    *err = (ts_error){0};
    snprintf(text, sizeof text,
             "base.yml base_emb_dim=16 base_num_query_heads=2 base_num_kv_heads=1 head_dim=8 "
             "base_mlp_dim=24 base_num_decoder_layers=2 vocab_size=260 max_target_length=16 "
             "per_device_batch_size=4 dtype=float32 learning_rate=1e-2 threads=1 engine=cpu "
             "dataset_type=text dataset_path=%s run_name=%s base_output_directory=%s %s",
             book, name, root, more);
    for (char *w = strtok_r(text, " ", &at); w; w = strtok_r(NULL, " ", &at)) word[n++] = w;
    if (ts_config_load_words(word, n, &c, err) != TS_OK) fail_msg("%s", err->msg);
    ts_train_hooks_default(&hooks);
    hooks.line = on_line;
    hooks.step = on_step;
    ts_status status = ts_train(c, &hooks, result, err);
    ts_config_free(c);
    return status;
}

static void run_well(const char *name, const char *more)
{
    ts_train_result r;
    ts_error err;
    if (run(name, more, &r, &err) != TS_OK) fail_msg("%s: %s", name, err.msg);
}

static void expect(const char *text, const char *part)
{
    if (!strstr(text, part)) fail_msg("\"%s\" is not in: %s", part, text);
}

static const char *steps_of(const char *name)
{
    static char text[400];
    char folder[300];
    int64_t *steps;
    size_t n, at = 0;
    snprintf(folder, sizeof folder, "%s/%s/checkpoints", root, name);
    assert_int_equal(ts_checkpoint_list(folder, &steps, &n, NULL), TS_OK);
    *text = '\0';
    for (size_t i = 0; i < n; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, i ? " %lld" : "%lld",
                               (long long)steps[i]);
    ts_free(steps);
    return text;
}

/* ---- saves that fail ------------------------------------------------------------------------- */

/* Steps whose files cannot be synced: "4 6 ". */
static const char *broken = "";

static int fail_syncs(void *context, const ts_file_call *c)
{
    char step[32];
    (void)context;
    const char *at = c->path ? strstr(c->path, "/checkpoints/") : NULL;
    if (c->op != TS_FAULT_SYNC || c->done || !at) return 0;
    at += strlen("/checkpoints/");
    snprintf(step, sizeof step, "%.*s ", (int)strspn(at, "0123456789"), at);
    for (const char *b = broken; *b; b += strcspn(b, " ") + 1)
        if (step[0] != ' ' && strncmp(b, step, strlen(step)) == 0) return EIO;
    return 0;
}

static ts_status run_broken(const char *steps, const char *name, const char *more,
                            ts_train_result *result, ts_error *err)
{
    broken = steps;
    ts_file_observe(fail_syncs, NULL);
    ts_status status = run(name, more, result, err);
    ts_file_observe(NULL, NULL);
    return status;
}

static const char *const ways[] = {"async_checkpointing=true", "async_checkpointing=false"};

static void one_that_fails_is_a_warning(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        char name[32], words[200], newest[300];
        ts_train_result r;
        ts_error err;
        snprintf(name, sizeof name, "one-%d", i);
        snprintf(words, sizeof words, "steps=12 checkpoint_period=2 %s", ways[i]);
        if (run_broken("4 6 10 ", name, words, &r, &err) != TS_OK) fail_msg("%s", err.msg);
        assert_int_equal(r.saved_step, 12);
        assert_string_equal(steps_of(name), "0 2 8 12");
        expect(warned, "the checkpoint of step 4 was not saved");
        expect(warned, "the checkpoint of step 10 was not saved");
        snprintf(newest, sizeof newest, "the run goes on, the newest is %s/%s/checkpoints/8", root,
                 name);
        expect(warned, newest);
        expect(said, "checkpoints/12 (");
        assert_null(strstr(said, "checkpoints/4 ("));
        run_well(name, "steps=13");
        expect(said, "checkpoints/12\n");
    }
}

/* Refused: the run ends with that error, and what was saved before stays. */
static void others_end_the_run(void **state)
{
    static const struct {
        const char *steps, *says, *left;
    } cases[] = {
        {"4 6 8 ", "the checkpoint of step 8 was not saved", "0 2"},
        {"0 ", "the checkpoint of step 0 was not saved", ""},
        {"12 ", "the checkpoint of step 12 was not saved", "0 2 4 6 8 10"},
        {"2 4 8 10 12 ", "the checkpoint of step 12 was not saved", "0 6"},
    };
    (void)state;
    for (size_t i = 0; i < 2 * sizeof cases / sizeof *cases; i++) {
        char name[32], words[200];
        ts_train_result r;
        ts_error err;
        const size_t k = i / 2;
        snprintf(name, sizeof name, "end-%zu", i);
        snprintf(words, sizeof words, "steps=12 checkpoint_period=2 %s", ways[i % 2]);
        if (run_broken(cases[k].steps, name, words, &r, &err) == TS_OK)
            fail_msg("%s did not end: %s", name, said);
        expect(err.msg, cases[k].says);
        if (k == 0) expect(err.msg, "3 in a row have failed");
        assert_string_equal(steps_of(name), cases[k].left);
    }
}

/* Memory for what describes the state of step 4 is out, or for its copy: a warning like any other. */
static void memory_that_is_out(void **state)
{
    int failed = 0;
    (void)state;
    for (int i = 0; i < 40; i++) {
        char name[32];
        ts_train_result r;
        ts_error err;
        snprintf(name, sizeof name, "tight-%d", i);
        tight = 1 + i * 3;
        ts_status status = run(name, "steps=6 checkpoint_period=2 async_checkpointing=false", &r,
                               &err);
        ts_alloc_fail_at(0);
        if (status != TS_OK) fail_msg("call %d: %s", tight, err.msg);
        tight = 0;
        assert_int_equal(r.saved_step, 6);
        if (strstr(warned, "the checkpoint of step 4 was not saved")) {
            assert_string_equal(steps_of(name), "0 2 6");
            failed++;
        }
    }
    printf("%d of 40 saves failed for want of memory\n", failed);
    assert_true(failed > 20);
}

/* ---- what is saved --------------------------------------------------------------------------- */

static char *shard(const char *name, int step, size_t *n)
{
    char path[300], *data;
    ts_error err = {0};
    snprintf(path, sizeof path, "%s/%s/checkpoints/%d/shard-00000-of-00001.safetensors", root, name,
             step);
    if (ts_file_read_all(path, 1u << 28, &data, n, &err) != TS_OK) fail_msg("%s", err.msg);
    return data;
}

static void beside_the_training_or_not(void **state)
{
    (void)state;
    run_well("beside", "steps=20 checkpoint_period=1 async_checkpointing=true");
    expect(said, "beside the training)");
    run_well("between", "steps=20 checkpoint_period=1 async_checkpointing=false");
    assert_null(strstr(said, "beside the training)"));
    run_well("manifest", "steps=20 checkpoint_period=1 checkpoint_commit=manifest");
    for (int step = 0; step <= 20; step++) {
        size_t x, y, z;
        char *a = shard("beside", step, &x), *b = shard("between", step, &y);
        char *c = shard("manifest", step, &z);
        assert_true(x == y && memcmp(a, b, x) == 0 && x == z && memcmp(a, c, x) == 0);
        ts_free(a);
        ts_free(b);
        ts_free(c);
    }
}

static double score_of(const char *name, int step)
{
    char path[300];
    ts_checkpoint *c;
    ts_error err = {0};
    snprintf(path, sizeof path, "%s/%s/checkpoints/%d", root, name, step);
    if (ts_checkpoint_open(path, &c, &err) != TS_OK) fail_msg("%s", err.msg);
    double score = ts_checkpoint_score(c);
    ts_checkpoint_close(c);
    return score;
}

/* A rate that is too high: the loss falls, then rises, so the best are not the newest. */
static void the_best_by_evaluation_stay(void **state)
{
    static const char words[] = "steps=12 checkpoint_period=2 eval_interval=2 eval_fraction=0.1 "
                                "eval_steps=2 learning_rate=3 warmup_steps_fraction=0.7";
    double score[13];
    int best[2] = {-1, -1};
    char more[400], want[40] = "";
    (void)state;
    run_well("all", words);
    assert_string_equal(steps_of("all"), "0 2 4 6 8 10 12");
    for (int step = 2; step <= 12; step += 2) {
        score[step] = score_of("all", step);
        assert_true(score[step] > 0);
        if (best[0] < 0 || score[step] <= score[best[0]])
            best[1] = best[0], best[0] = step;
        else if (best[1] < 0 || score[step] <= score[best[1]])
            best[1] = step;
    }
    for (int step = 2, n = 0; step <= 12; step += 2)
        if (step == best[0] || step == best[1] || step >= 10)
            n += snprintf(want + n, sizeof want - (size_t)n, n ? " %d" : "%d", step);
    snprintf(more, sizeof more,
             "%s max_num_checkpoints_to_keep=2 num_best_checkpoints_to_keep=2", words);
    run_well("best", more);
    printf("the best: %d and %d\n", best[0], best[1]);
    assert_string_equal(steps_of("best"), want);
    assert_true(strlen(want) > strlen("10 12")); /* some of the best are not among the newest */
}

static ino_t frozen_inode(const char *name, int step)
{
    char path[300];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s/checkpoints/%d/frozen-00000-of-00001.safetensors", root,
             name, step);
    if (stat(path, &st) != 0) fail_msg("%s is missing", path);
    return st.st_ino;
}

/* From step to step, and across a resume. */
static void frozen_tensors_are_written_once(void **state)
{
    static const char words[] = "checkpoint_period=2 frozen_parameters=[model.embed_tokens.*]";
    char more[300];
    (void)state;
    snprintf(more, sizeof more, "%s steps=4", words);
    run_well("frozen", more);
    snprintf(more, sizeof more, "%s steps=8 learning_rate_schedule_steps=4", words);
    run_well("frozen", more);
    for (int step = 2; step <= 8; step += 2)
        assert_true(frozen_inode("frozen", step) == frozen_inode("frozen", 0));
    /* Another set of frozen tensors is not taken for the same. */
    run_well("frozen-2", "steps=2 frozen_parameters=[model.embed_tokens.*,*.up_proj.weight]");
    snprintf(more, sizeof more,
             "steps=4 frozen_parameters=[model.embed_tokens.*] load_parameters_path=%s/frozen-2/checkpoints/2",
             root);
    run_well("frozen-3", more);
    assert_true(frozen_inode("frozen-3", 4) == frozen_inode("frozen-3", 0));
    assert_true(frozen_inode("frozen-3", 0) != frozen_inode("frozen-2", 2));
}

/* ---- what a resume says ---------------------------------------------------------------------- */

static void a_resume_says_what_differs(void **state)
{
    static const char rounding[] = "up to rounding, because of ";
    static const struct {
        const char *words, *says;
    } cases[] = {
        {"cpu_devices=2 per_device_batch_size=2 ici_fsdp_parallelism=2",
         "because of mesh data=1, fsdp=1, tensor=1 → data=1, fsdp=2, tensor=1\n"},
        {"cpu_devices=2 per_device_batch_size=1 ici_fsdp_parallelism=2 "
         "gradient_accumulation_steps=2",
         "because of gradient_accumulation_steps 1 → 2\n"},
        {"per_device_batch_size=8", "a step has 8 rows from here on, those of the checkpoint had 4"},
        {"per_device_batch_size=8 remat_policy=none", NULL},
        {"per_device_batch_size=8 dtype=bfloat16", "changed since the checkpoint: dtype float32 → bfloat16;"},
        {"per_device_batch_size=8 dtype=bfloat16 scan_layers=false",
         "because of scan_layers true → false\n"},
    };
    (void)state;
    run_well("says", "steps=1");
    for (int i = 0; i < (int)(sizeof cases / sizeof *cases); i++) {
        char words[300];
        snprintf(words, sizeof words, "steps=%d learning_rate_schedule_steps=1 %s", 2 + i,
                 cases[i].words);
        run_well("says", words);
        expect(said, "continuing run says from ");
        if (cases[i].says)
            expect(said, cases[i].says);
        else if (strstr(said, rounding))
            fail_msg("%s", said);
    }
}

/* ---- what a checkpoint may not say ----------------------------------------------------------- */

static void counts_beyond_any_run(void **state)
{
    static const char *const keys[] = {"nonfinite_steps", "nonfinite_steps_in_all", "rollbacks"};
    static const char *const values[] = {"9223372036854775807", "-1", "\"7\"", "1.5"};
    char path[300], more[400], *text;
    size_t n;
    ts_error err = {0};
    (void)state;
    run_well("counts", "steps=1");
    snprintf(path, sizeof path, "%s/counts/checkpoints/1/manifest.json", root);
    snprintf(more, sizeof more, "steps=2 load_full_state_path=%s/counts/checkpoints/1", root);
    if (ts_file_read_all(path, 1u << 24, &text, &n, &err) != TS_OK) fail_msg("%s", err.msg);
    char *changed = ts_alloc(n + 100), *tail;
    assert_non_null(changed);
    for (size_t i = 0; i < 12; i++) {
        ts_train_result r;
        const char *key = keys[i % 3], *value = values[i / 3];
        char want[100];
        snprintf(want, sizeof want, "\"%s\": 0", key);
        const char *at = strstr(text, want);
        assert_non_null(at);
        const int before = (int)(at - text) + (int)strlen(want) - 1;
        snprintf(changed, n + 100, "%.*s%s%s", before, text, value, text + before + 1);
        assert_non_null(tail = strstr(changed, "\n\"xxh3\": \""));
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        fprintf(f, "%.*s\n\"xxh3\": \"%016llx\"\n}\n", (int)(tail - changed), changed,
                (unsigned long long)XXH3_64bits(changed, (size_t)(tail - changed)));
        assert_int_equal(fclose(f), 0);
        assert_int_equal(run("counted", more, &r, &err), TS_DATA_LOSS);
        snprintf(want, sizeof want, "\"%s\" of its state is %s, not a count", key, value);
        expect(err.msg, want);
    }
    ts_free(changed);
    ts_free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_that_fails_is_a_warning),
        cmocka_unit_test(others_end_the_run),
        cmocka_unit_test(memory_that_is_out),
        cmocka_unit_test(counts_beyond_any_run),
        cmocka_unit_test(beside_the_training_or_not),
        cmocka_unit_test(the_best_by_evaluation_stay),
        cmocka_unit_test(frozen_tensors_are_written_once),
        cmocka_unit_test(a_resume_says_what_differs),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
