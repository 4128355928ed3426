/* test_stop.c – ends that have a time: a SIGTERM's grace with saves and reads that do not end, a watch that finds them,
 * saves on demand one after the other.
 *
 * The hooks stand for the program and its signals; the observer of file calls stands for storage that is slow, or
 * hangs. What a checkpoint is worth then is asked of the checkpoints.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "ckpt/checkpoint.h"
#include "tessera.h"

enum { MAX_WORDS = 48 };

static char root[64];

/* What the storage does from which moment on, and what the run's hooks saw. */
static struct {
    _Atomic(const char *) path; /* part of the path that is slow; NULL: none */
    _Atomic unsigned op;
    _Atomic int milliseconds; /* of each such call; −1: until it is let go */
    _Atomic int held;         /* calls that wait now */
} storage;

typedef struct seen {
    int steps, stop_at, save_from, save_to; /* steps done when the hook asks for something */
    double asked_at;                        /* of the stop */
    int hang_at;                            /* the storage hangs from there */
    const char *hang_path;
    unsigned hang_op;
    _Atomic int stuck;
    ts_stuck what;
    char text[2300], warnings[8000];
    double stuck_at;
    int64_t durable; /* the newest checkpoint that verifies, when stuck was called */
    const char *name;
    int ask_after, line_ms; /* a stop that many ms behind the storage's hang; a pause in one line about a save */
    double hung_at;
    int lines; /* that paused */
} seen;

static void pause_ms(int ms)
{
    const struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};
    nanosleep(&t, NULL);
}

static int on_call(void *context, const ts_file_call *c)
{
    (void)context;
    const char *path = storage.path;
    if (c->done || !path || !(c->op & storage.op) || !strstr(c->path, path)) return 0;
    storage.held++;
    if (storage.milliseconds > 0) pause_ms(storage.milliseconds);
    while (storage.milliseconds < 0 && storage.path) pause_ms(5);
    storage.held--;
    return 0;
}

static void slow(const char *path, unsigned op, int milliseconds)
{
    storage.op = op;
    storage.milliseconds = milliseconds;
    storage.path = path;
}

static int set_up(void **state)
{
    (void)state;
    strcpy(root, "/tmp/tessera-stop-XXXXXX");
    ts_file_observe(on_call, NULL);
    return mkdtemp(root) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    ts_file_observe(NULL, NULL);
    return ts_remove_tree(root, NULL) == TS_OK ? 0 : -1;
}

/* ---- the run --------------------------------------------------------------------------------- */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void on_step(void *context, const ts_step_info *i)
{
    seen *s = context;
    s->steps = (int)i->step + 1;
    if (!s->hang_at || s->steps != s->hang_at) return;
    slow(s->hang_path, s->hang_op, -1);
    s->hung_at = now();
}

/* Whoever reads the lines pauses once, at a save that was waited for. */
static void on_line(void *context, const char *text)
{
    seen *s = context;
    if (!s->line_ms || s->lines || !strstr(text, "/checkpoints/1 (")) return;
    s->lines++;
    pause_ms(s->line_ms);
}

static ts_interrupt on_ask(void *context)
{
    seen *s = context;
    if (s->save_from && s->steps >= s->save_from && s->steps <= s->save_to) return TS_SAVE_AND_GO_ON;
    if (!s->stop_at || s->steps < s->stop_at) return TS_CONTINUE;
    if (!(s->asked_at > 0)) s->asked_at = now();
    return TS_SAVE_AND_STOP;
}

static double on_ending(void *context)
{
    seen *s = context;
    if (s->ask_after && s->hung_at > 0 && !(s->asked_at > 0) &&
        now() > s->hung_at + 1e-3 * s->ask_after)
        s->asked_at = now();
    return s->asked_at > 0 ? now() - s->asked_at : -1;
}

static int64_t newest(const char *name)
{
    char folder[300];
    ts_checkpoint *c;
    ts_error err = {0};
    snprintf(folder, sizeof folder, "%s/%s/checkpoints", root, name);
    if (ts_checkpoint_open_newest(folder, &c, &err) != TS_OK) return -1;
    int64_t step = ts_checkpoint_step(c);
    ts_checkpoint_close(c);
    return step;
}

static void on_stuck(void *context, const ts_stuck *what)
{
    seen *s = context;
    s->stuck_at = now();
    s->what = *what;
    snprintf(s->text, sizeof s->text, "%s", what->text);
    const char *held = storage.path;
    storage.path = NULL; /* so that the run goes on behind it; first the checkpoints as they are */
    s->durable = held ? newest(s->name) : -1;
    s->stuck++;
}

static void on_log(void *context, ts_log_level level, const char *line)
{
    seen *s = context;
    size_t n = strlen(s->warnings);
    if (level == TS_LOG_WARNING) snprintf(s->warnings + n, sizeof s->warnings - n, "%s\n", line);
}

static ts_train_result run(const char *name, const char *more, seen *s)
{
    char text[2000], *at = NULL;
    const char *word[MAX_WORDS];
    int n = 0;
    ts_config *c = NULL;
    ts_error err = {0};
    ts_train_hooks hooks;
    ts_train_result result = {0};
    snprintf(text, sizeof text,
             "base_emb_dim=16 base_num_query_heads=2 base_num_kv_heads=1 head_dim=8 base_mlp_dim=24 "
             "base_num_decoder_layers=2 vocab_size=259 max_target_length=16 "
             "per_device_batch_size=4 dtype=float32 threads=1 base_output_directory=%s run_name=%s %s",
             root, name, more);
    for (char *w = strtok_r(text, " ", &at); w; w = strtok_r(NULL, " ", &at)) {
        assert_true(n < MAX_WORDS);
        word[n++] = w;
    }
    s->name = name;
    ts_train_hooks_default(&hooks);
    hooks.context = s;
    hooks.line = on_line;
    hooks.step = on_step;
    hooks.interrupt = on_ask;
    hooks.ending = on_ending;
    hooks.stuck = on_stuck;
    ts_log_set_sink(on_log, s);
    ts_status status = ts_config_load_words(word, n, &c, &err);
    if (status == TS_OK) status = ts_train(c, &hooks, &result, &err);
    ts_log_set_sink(NULL, NULL);
    slow(NULL, 0, 0);
    if (status != TS_OK) fail_msg("%s: %s", name, err.msg);
    ts_config_free(c);
    return result;
}

static void has(const char *text, const char *part)
{
    if (!strstr(text, part)) fail_msg("\"%s\" is not in: %s", part, text);
}

/* ---- a grace --------------------------------------------------------------------------------- */

static void a_stop_saves_in_its_grace(void **unused)
{
    (void)unused;
    seen s = {.stop_at = 7};
    ts_train_result r = run("stop", "steps=1000 preemption_grace_s=30", &s);
    assert_true(r.interrupted);
    assert_int_equal(r.steps, 7);
    assert_int_equal(r.saved_step, 7);
    assert_int_equal(newest("stop"), 7);
    assert_int_equal(s.stuck, 0);
}

/* The save hangs: before the grace is over it is told, and the checkpoint before it is the one that counts. */
static void a_save_that_hangs(void **unused)
{
    (void)unused;
    for (int async = 0; async < 2; async++) {
        char name[32], more[200];
        seen s = {.stop_at = 8, .hang_at = 8, .hang_path = "/checkpoints/8", .hang_op = TS_FAULT_SYNC};
        snprintf(name, sizeof name, "hangs%d", async);
        snprintf(more, sizeof more,
                 "steps=1000 preemption_grace_s=2 checkpoint_period=5 async_checkpointing=%s",
                 async ? "true" : "false");
        ts_train_result r = run(name, more, &s);
        assert_int_equal(s.stuck, 1);
        assert_true(s.what.deadline);
        assert_true(s.stuck_at > s.asked_at + 1 && s.stuck_at < s.asked_at + 4);
        assert_int_equal(s.what.steps, 8);
        assert_int_equal(s.what.saved_step, 5);
        assert_int_equal(s.durable, 5);
        has(s.text, "the 2 s of preemption_grace_s are over, and the save of step 8 has not ended");
        has(s.text, "/checkpoints/5, 3 steps back, and the same command goes on from there");
        assert_int_equal(r.saved_step, 8); /* nobody ended the process, and it was let go */
        assert_int_equal(newest(name), 8);
    }
}

/* Saves of 1.2 s, and a stop with one of step 40 just begun: there is no time for a second one. */
static void a_save_in_flight_is_kept(void **unused)
{
    (void)unused;
    seen s = {.stop_at = 43};
    slow("manifest", TS_FAULT_SYNC, 1200);
    ts_train_result r = run("kept", "steps=1000 preemption_grace_s=2 checkpoint_period=20", &s);
    assert_true(r.interrupted);
    assert_int_equal(r.steps, 43);
    assert_int_equal(r.saved_step, 40);
    assert_int_equal(newest("kept"), 40);
    assert_int_equal(s.stuck, 0);
    has(s.warnings, "saved step 40; the 3 steps since then are lost, because a save takes about");
    has(s.warnings, "raise preemption_grace_s, or checkpoint more often");
}

static void a_save_in_flight_and_time_for_another(void **unused)
{
    (void)unused;
    seen s = {.stop_at = 43};
    slow("manifest", TS_FAULT_SYNC, 600);
    ts_train_result r = run("both", "steps=1000 preemption_grace_s=20 checkpoint_period=20", &s);
    assert_int_equal(r.saved_step, 43);
    assert_int_equal(newest("both"), 43);
    assert_string_equal(s.warnings, "");
}

/* ---- a watch --------------------------------------------------------------------------------- */

static void write_rows(char path[300])
{
    snprintf(path, 300, "%s/rows.jsonl", root);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    for (int i = 0; i < 4000; i++) fprintf(f, "{\"text\": \"row %d of the data\"}\n", i);
    fclose(f);
}

/* A read that never ends; a save that is being written meanwhile is waited for, and counts. */
static void data_that_hangs(void **unused)
{
    (void)unused;
    char path[300], more[700];
    write_rows(path);
    seen s = {.hang_at = 3, .hang_path = "rows.jsonl", .hang_op = TS_FAULT_READ};
    snprintf(more, sizeof more,
             "steps=40 num_epoch=100 step_timeout_s=1 checkpoint_period=2 dataset_type=jsonl "
             "dataset_path=%s data_prefetch_batches=1",
             path);
    ts_train_result r = run("data", more, &s);
    assert_int_equal(s.stuck, 1);
    assert_false(s.what.deadline);
    has(s.text, "the data of step ");
    has(s.text, " has not ended for 1 s (step_timeout_s=1)");
    has(s.text, "see whether the storage of the data answers");
    assert_true(s.what.saved_step >= 2 && s.what.saved_step <= s.what.steps);
    assert_int_equal(s.durable, s.what.saved_step);
    assert_int_equal(r.steps, 40); /* let go, it goes on */
}

/* A step's data hangs, and so does a save, which is waited for. A stop that is asked for meanwhile has its own time. */
static void a_stop_while_a_save_may_end(void **unused)
{
    (void)unused;
    char path[300], more[700];
    write_rows(path);
    seen s = {.save_from = 2, .save_to = 2, .hang_at = 2, .hang_path = root, .ask_after = 1500,
              .hang_op = TS_FAULT_READ | TS_FAULT_SYNC};
    snprintf(more, sizeof more,
             "steps=40 num_epoch=100 step_timeout_s=1 preemption_grace_s=1 checkpoint_period=1000 "
             "save_checkpoint_on_start=false "
             "dataset_type=jsonl dataset_path=%s data_prefetch_batches=1",
             path);
    ts_train_result r = run("meanwhile", more, &s);
    assert_int_equal(s.stuck, 1);
    assert_true(s.what.deadline);
    assert_true(s.stuck_at > s.asked_at + 0.5 && s.stuck_at < s.asked_at + 3);
    has(s.text, "the 1 s of preemption_grace_s are over, and the data of step ");
    assert_int_equal(r.steps, 40);
}

/* The save of step 1 is waited for before that of step 2, and its line is read late. */
static void a_reader_that_pauses(void **unused)
{
    (void)unused;
    seen s = {.line_ms = 1400};
    slow("manifest", TS_FAULT_SYNC, 250);
    ts_train_result r = run("reader", "steps=4 step_timeout_s=1 checkpoint_period=1", &s);
    assert_int_equal(s.lines, 1);
    assert_int_equal(s.stuck, 0);
    assert_int_equal(r.saved_step, 4);
}

/* Slower than the limit in all, but each in its time: nothing is said. */
static void slow_is_not_stuck(void **unused)
{
    (void)unused;
    seen s = {0};
    slow("manifest", TS_FAULT_SYNC, 250);
    ts_train_result r = run("slow", "steps=12 step_timeout_s=1 checkpoint_period=1", &s);
    assert_int_equal(r.steps, 12);
    assert_int_equal(s.stuck, 0);
}

static void no_limit(void **unused)
{
    (void)unused;
    seen s = {0};
    slow("manifest", TS_FAULT_SYNC, 1500);
    ts_train_result r = run("patient", "steps=2 step_timeout_s=0 save_checkpoint_on_start=false", &s);
    assert_int_equal(r.saved_step, 2);
    assert_int_equal(s.stuck, 0);
}

/* ---- saves on demand ------------------------------------------------------------------------- */

static void saves_in_a_row(void **unused)
{
    (void)unused;
    seen s = {.save_from = 3, .save_to = 7};
    slow("manifest", TS_FAULT_SYNC, 50);
    ts_train_result r = run("row", "steps=20", &s);
    assert_false(r.interrupted);
    assert_int_equal(r.steps, 20);
    for (int step = 3; step <= 7; step++) {
        char path[300];
        ts_checkpoint *c;
        ts_error err = {0};
        snprintf(path, sizeof path, "%s/row/checkpoints/%d", root, step);
        if (ts_checkpoint_open(path, &c, &err) != TS_OK) fail_msg("%s", err.msg);
        ts_checkpoint_close(c);
    }
    assert_int_equal(newest("row"), 20);
}

/* A caller that does not know the newer hooks yet is not watched, and its stops work. */
static void an_older_caller(void **unused)
{
    (void)unused;
    ts_config *c;
    ts_error err = {0};
    ts_train_result result;
    char folder[120];
    snprintf(folder, sizeof folder, "base_output_directory=%s", root);
    const char *word[] = {"model_name=tessera-byte", "base_num_decoder_layers=1",
                          "override_model_config=true", "per_device_batch_size=1",
                          "max_target_length=16", "steps=2", "threads=1", "run_name=older",
                          "enable_checkpointing=false", folder};
    if (ts_config_load_words(word, sizeof word / sizeof *word, &c, &err) != TS_OK)
        fail_msg("%s", err.msg);
    struct {
        ts_train_hooks hooks;
    } older;
    memset(&older, 0xff, sizeof older); /* what is behind its end is not looked at */
    older.hooks.struct_size = offsetof(ts_train_hooks, ending);
    older.hooks.context = NULL;
    older.hooks.line = NULL;
    older.hooks.step = NULL;
    older.hooks.interrupt = NULL;
    older.hooks.sample = NULL;
    if (ts_train(c, &older.hooks, &result, &err) != TS_OK) fail_msg("%s", err.msg);
    assert_int_equal(result.steps, 2);
    ts_config_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stop_saves_in_its_grace),
        cmocka_unit_test(a_save_that_hangs),
        cmocka_unit_test(a_save_in_flight_is_kept),
        cmocka_unit_test(a_save_in_flight_and_time_for_another),
        cmocka_unit_test(data_that_hangs),
        cmocka_unit_test(a_stop_while_a_save_may_end),
        cmocka_unit_test(a_reader_that_pauses),
        cmocka_unit_test(slow_is_not_stuck),
        cmocka_unit_test(no_limit),
        cmocka_unit_test(saves_in_a_row),
        cmocka_unit_test(an_older_caller),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
