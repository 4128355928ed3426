/* test_hooks.c – what a run does when something beside the steps fails, or its caller wants it to end.
 *
 * A file system without locks is a warning, not an end; a sample that cannot be made is a warning too;
 * a stop that is asked for before the first step or in the middle of a sample is obeyed there, and what was
 * trained is saved. The calls are made to fail through the seams of base.
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
#include <unistd.h>

#include "base/base.h"
#include "base/file.h"
#include "tessera.h"

enum { STEPS = 4, MAX_WORDS = 48 };

static char root[64];

typedef struct seen {
    int steps, samples, asked, stop_at, warnings;
    bool out_of_memory; /* the first sample finds no memory for its text */
    char warning[4000];
} seen;

static int set_up(void **state)
{
    (void)state;
    strcpy(root, "/tmp/tessera-hooks-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    ts_file_fault(0, 0, 0);
    ts_alloc_fail_at(0);
    return ts_remove_tree(root, NULL) == TS_OK ? 0 : -1;
}

static void on_step(void *context, const ts_step_info *i)
{
    seen *s = context;
    s->steps++;
    assert_false(i->skipped);
}

static void on_sample(void *context, int64_t step, const char *text)
{
    seen *s = context;
    s->samples++;
    assert_true(step >= 0 && *text);
}

static ts_interrupt on_ask(void *context)
{
    seen *s = context;
    if (s->out_of_memory && s->steps == 1) {
        ts_alloc_fail_at(1); /* asked by the sample, whose next allocation is that of its text */
        s->out_of_memory = false;
    }
    return ++s->asked == s->stop_at ? TS_SAVE_AND_STOP : TS_CONTINUE;
}

static void on_log(void *context, ts_log_level level, const char *line)
{
    seen *s = context;
    s->warnings += level == TS_LOG_WARNING;
    snprintf(s->warning, sizeof s->warning, "%s", line);
}

static ts_status run(const char *name, const char *more, seen *s, ts_train_result *result,
                     ts_error *err)
{
    static const char tiny[] =
        "base.yml base_emb_dim=16 base_num_query_heads=2 base_num_kv_heads=1 head_dim=8 "
        "base_mlp_dim=24 base_num_decoder_layers=2 vocab_size=259 max_target_length=16 dtype=float32 "
        "steps=4 per_device_batch_size=2 warmup_steps_fraction=0 threads=1 sample_tokens=20";
    char text[2000], *word[MAX_WORDS], *at = NULL;
    int n = 0;
    ts_config *c = NULL;
    ts_train_hooks hooks;
    snprintf(text, sizeof text, "%s run_name=%s base_output_directory=%s %s", tiny, name, root,
             more);
    for (char *w = strtok_r(text, " ", &at); w; w = strtok_r(NULL, " ", &at)) word[n++] = w;
    ts_train_hooks_default(&hooks);
    hooks.context = s;
    hooks.step = on_step;
    hooks.sample = on_sample;
    hooks.interrupt = on_ask;
    if (ts_config_load_words((const char *const *)word, n, &c, err) != TS_OK)
        fail_msg("%s: %s", name, err->msg);
    ts_log_set_sink(on_log, s);
    ts_status status = ts_train(c, &hooks, result, err);
    ts_log_set_sink(NULL, NULL);
    ts_config_free(c);
    return status;
}

static void a_file_system_without_locks(void **state)
{
    (void)state;
    seen s = {0};
    ts_train_result result;
    ts_error err = {0};
    ts_file_fault(TS_FAULT_LOCK, 1, EOPNOTSUPP);
    assert_int_equal(run("lockless", "", &s, &result, &err), TS_OK);
    assert_int_equal(s.steps, STEPS);
    assert_int_equal(s.warnings, 1);
    assert_non_null(strstr(s.warning, "no locks"));
    /* Any other failure is one: nobody knows whether another process is there. */
    ts_file_fault(TS_FAULT_LOCK, 1, EIO);
    assert_int_not_equal(run("unlocked", "", &s, &result, &err), TS_OK);
    assert_non_null(strstr(err.msg, "unlocked/lock"));
    assert_int_equal(s.steps, STEPS);
}

static void a_second_run_in_one_process(void **state)
{
    (void)state;
    seen s = {0};
    ts_train_result result;
    ts_error err = {0};
    ts_lock *held;
    char path[200];
    snprintf(path, sizeof path, "%s/held", root);
    assert_int_equal(ts_make_folders(path, &err), TS_OK);
    snprintf(path, sizeof path, "%s/held/lock", root);
    assert_int_equal(ts_lock_take(path, &held, &err), TS_OK);
    assert_int_equal(run("held", "", &s, &result, &err), TS_FAILED_PRECONDITION);
    assert_non_null(strstr(err.msg, "run held is being trained"));
    assert_int_equal(s.steps, 0);
    ts_lock_release(held);
    err = (ts_error){0};
    assert_int_equal(run("held", "", &s, &result, &err), TS_OK);
}

/* Wherever the stop comes, the run ends there, with every step saved that was done. */
static void a_stop_at_every_point(void **state)
{
    (void)state;
    seen whole = {0};
    ts_train_result result;
    ts_error err = {0};
    assert_int_equal(run("stops", "sample_interval=2", &whole, &result, &err), TS_OK);
    assert_int_equal(whole.samples, 2);
    assert_false(result.interrupted);
    assert_true(whole.asked > 8 + 1 + STEPS + 4); /* samples ask too */
    for (int at = 1; at <= whole.asked; at++) {
        seen s = {.stop_at = at};
        char name[40];
        snprintf(name, sizeof name, "stop-%d", at);
        assert_int_equal(run(name, "sample_interval=2", &s, &result, &err), TS_OK);
        assert_true(result.interrupted);
        assert_int_equal(s.asked, at);
        assert_int_equal(result.steps, s.steps);
        if (s.steps > 0) assert_int_equal(result.saved_step, s.steps);
    }
}

static void a_sample_that_fails(void **state)
{
    (void)state;
    ts_train_result result;
    ts_error err = {0};
    seen s = {.out_of_memory = true};
    /* No thread that saves beside it may take the failure. */
    assert_int_equal(run("short", "sample_interval=1 async_checkpointing=false", &s, &result, &err),
                     TS_OK);
    assert_int_equal(s.steps, STEPS);
    assert_int_equal(s.samples, STEPS - 1);
    assert_int_equal(s.warnings, 1);
    assert_non_null(strstr(s.warning, "no sample after step 0: "));
    assert_non_null(strstr(s.warning, "memory"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_system_without_locks),
        cmocka_unit_test(a_second_run_in_one_process),
        cmocka_unit_test(a_stop_at_every_point),
        cmocka_unit_test(a_sample_that_fails),
    };
    return cmocka_run_group_tests_name("hooks", tests, set_up, tear_down);
}
