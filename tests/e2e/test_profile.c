/* test_profile.c – profiler=trace: the file is a Chrome trace, and its events make sense.
 *
 * As many steps as were asked for, behind those that were skipped; every event inside its step, in order, none
 * overlapping another; every instruction there, with op, scope, line and iteration; the steps that are not recorded
 * cost nothing. How much of a step's time the events explain is measured by `make bench-profile`, not here.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "tessera.h"

enum { MAX_WORDS = 48, MAX_LINES = 8 };

static char root[64];

typedef struct seen {
    int steps, warnings, n_line;
    char line[MAX_LINES][600], warning[600];
} seen;

static int set_up(void **state)
{
    (void)state;
    strcpy(root, "/tmp/tessera-profile-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    ts_file_fault(0, 0, 0);
    return ts_remove_tree(root, NULL) == TS_OK ? 0 : -1;
}

static void on_step(void *context, const ts_step_info *i)
{
    (void)i;
    ((seen *)context)->steps++;
}

static void on_line(void *context, const char *text)
{
    seen *s = context;
    if (strncmp(text, "profile", 7) != 0) return;
    assert_true(s->n_line < MAX_LINES);
    snprintf(s->line[s->n_line++], sizeof s->line[0], "%s", text);
}

static void on_log(void *context, ts_log_level level, const char *line)
{
    seen *s = context;
    if (level < TS_LOG_WARNING) return;
    s->warnings++;
    snprintf(s->warning, sizeof s->warning, "%s", line);
}

static ts_train_result run(const char *name, const char *more, seen *s)
{
    static const char tiny[] =
        "base.yml base_emb_dim=16 base_num_query_heads=2 base_num_kv_heads=1 head_dim=8 "
        "base_mlp_dim=24 base_num_decoder_layers=3 vocab_size=259 max_target_length=16 dtype=float32 "
        "per_device_batch_size=2 threads=1 profiler=trace enable_checkpointing=false engine=cpu";
    char text[2000], *word[MAX_WORDS], *at = NULL;
    int n = 0;
    ts_config *c = NULL;
    ts_error err = {0};
    ts_train_result result = {0};
    ts_train_hooks hooks;
    *s = (seen){0};
    snprintf(text, sizeof text, "%s run_name=%s base_output_directory=%s %s", tiny, name, root,
             more);
    for (char *w = strtok_r(text, " ", &at); w; w = strtok_r(NULL, " ", &at)) word[n++] = w;
    ts_train_hooks_default(&hooks);
    hooks.context = s;
    hooks.step = on_step;
    hooks.line = on_line;
    ts_log_set_sink(on_log, s);
    if (ts_config_load_words((const char *const *)word, n, &c, &err) != TS_OK ||
        ts_train(c, &hooks, &result, &err) != TS_OK)
        fail_msg("%s: %s", name, err.msg);
    ts_log_set_sink(NULL, NULL);
    ts_config_free(c);
    return result;
}

static json_t *read_trace(const char *name)
{
    char path[200];
    json_t *trace = NULL;
    ts_error err = {0};
    snprintf(path, sizeof path, "%s/%s/profile/trace.json", root, name);
    if (ts_json_read(path, 1 << 26, 16, &trace, &err) != TS_OK) fail_msg("%s", err.msg);
    return trace;
}

static const char *text_of(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}
static double number_of(const json_t *o, const char *key)
{
    assert_true(json_is_number(json_object_get(o, key)));
    return json_number_value(json_object_get(o, key));
}

typedef struct checked {
    int steps, ops, backward, inner, with_scope, with_line;
    long long first;
} checked;

static void check_op(const json_t *event, checked *k)
{
    const json_t *args = json_object_get(event, "args");
    const char *line = text_of(args, "line");
    assert_true(*text_of(event, "name"));
    k->ops++;
    k->backward += json_is_true(json_object_get(args, "backward"));
    k->inner += number_of(args, "iteration") > 0;
    k->with_scope += *text_of(args, "scope") != 0;
    k->with_line += *line != 0;
    if (*line) assert_true(strchr(line, ':') && !strchr(line, '/'));
}

/* The rounding of the file: a thousandth of a microsecond, twice. */
static const double slack = 0.0021;

static checked check_trace(const json_t *trace)
{
    const json_t *events = json_object_get(trace, "traceEvents"), *event;
    checked k = {.first = -1};
    double step_end = 0, last_end = 0, op_us = 0, said_us = 0;
    size_t i;
    assert_string_equal(text_of(trace, "displayTimeUnit"), "ms");
    json_array_foreach(events, i, event)
    {
        const char *phase = text_of(event, "ph"), *kind = text_of(event, "cat");
        if (strcmp(phase, "M") == 0) {
            assert_true(*text_of(json_object_get(event, "args"), "name"));
            continue;
        }
        assert_string_equal(phase, "X");
        assert_true(number_of(event, "pid") == 1 && number_of(event, "tid") == 1);
        double at = number_of(event, "ts"), end = at + number_of(event, "dur");
        assert_true(end >= at && at >= last_end - slack); /* one behind the other */
        if (strcmp(kind, "step") == 0) {
            const json_t *args = json_object_get(event, "args");
            assert_true(at >= step_end - slack &&
                        fabs(op_us - said_us) <= 0.01 * said_us + k.ops * slack);
            if (!k.steps++) k.first = (long long)number_of(args, "step");
            op_us = 0;
            said_us = 1e6 * number_of(args, "op_seconds");
            step_end = end;
            last_end = at;
            continue;
        }
        assert_true(end <= step_end + slack); /* inside its step */
        last_end = end;
        if (strcmp(kind, "op") == 0) {
            op_us += end - at;
            check_op(event, &k);
        } else
            assert_string_equal(kind, "host");
    }
    assert_true(fabs(op_us - said_us) <= 0.01 * said_us + k.ops * slack);
    return k;
}

static void a_trace_of_three_steps(void **state)
{
    (void)state;
    seen s;
    run("three", "steps=8 skip_first_n_steps_for_profiler=2 profiler_steps=3", &s);
    assert_int_equal(s.steps, 8);
    json_t *trace = read_trace("three");
    checked k = check_trace(trace);
    assert_int_equal(k.steps, 3);
    assert_int_equal(k.first, 2);
    assert_int_equal(k.ops % 3, 0); /* every step runs the same instructions */
    assert_true(k.backward > k.ops / 4 && k.inner > 0 && k.with_scope > k.ops / 2 &&
                k.with_line > k.ops / 2);
    assert_true(number_of(json_object_get(trace, "otherData"), "left_out") == 0);
    json_decref(trace);
    assert_int_equal(s.n_line, 2);
    assert_non_null(strstr(s.line[0], "profile of steps 2 to 4: "));
    assert_non_null(strstr(s.line[0], "/three/profile/trace.json"));
    assert_non_null(strstr(s.line[1], " % of a step (median of 3); dearest: "));
    assert_int_equal(s.warnings, 0);
}

/* The end of the run comes first: what there is is written; where there is nothing that is said. */
static void a_run_that_ends_early(void **state)
{
    (void)state;
    seen s;
    run("short", "steps=3 skip_first_n_steps_for_profiler=2 profiler_steps=9", &s);
    json_t *trace = read_trace("short");
    assert_int_equal(check_trace(trace).steps, 1);
    json_decref(trace);
    run("again", "steps=2 enable_checkpointing=true profiler=", &s);
    assert_int_equal(s.n_line, 0);
    run("again", "steps=3 enable_checkpointing=true skip_first_n_steps_for_profiler=2", &s);
    assert_int_equal(s.steps, 1);
    assert_int_equal(s.warnings, 1);
    assert_string_equal(s.warning, "no profile: the run ended before step 4");
}

/* A profile is an extra. */
static void a_folder_that_cannot_be_written(void **state)
{
    (void)state;
    seen s;
    char path[200];
    ts_error err = {0};
    ts_writer *w;
    snprintf(path, sizeof path, "%s/blocked", root);
    assert_int_equal(ts_make_folders(path, &err), TS_OK);
    snprintf(path, sizeof path, "%s/blocked/profile", root);
    assert_int_equal(ts_writer_open(path, false, &w, &err), TS_OK);
    assert_int_equal(ts_writer_close(w, false, &err), TS_OK);
    ts_train_result result = run("blocked", "steps=9", &s);
    assert_int_equal(result.steps, 9);
    assert_int_equal(s.steps, 9);
    assert_int_equal(s.warnings, 1);
    assert_int_equal(strncmp(s.warning, "no profile: ", 12), 0);
    assert_int_equal(s.n_line, 0);
}

/* More than a file keeps: the steps behind that have no ops in it, and it is written all the same. */
static void a_profile_that_overflows(void **state)
{
    seen s;
    (void)state;
    if (getenv("VALGRIND")) {
        puts("SKIP: a million ops take minutes under valgrind");
        skip();
    }
    run("long",
        "base_num_decoder_layers=16 base_emb_dim=8 base_mlp_dim=8 base_num_query_heads=1 "
        "max_target_length=2 per_device_batch_size=1 vocab_size=16 dataset_type=synthetic "
        "steps=1500 profiler_steps=1500",
        &s);
    assert_int_equal(s.warnings, 0);
    assert_int_equal(s.n_line, 3);
    assert_non_null(strstr(s.line[2], "ops are not in the file, which holds 1048576 at most"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_trace_of_three_steps),
        cmocka_unit_test(a_run_that_ends_early),
        cmocka_unit_test(a_folder_that_cannot_be_written),
        cmocka_unit_test(a_profile_that_overflows),
    };
    return cmocka_run_group_tests_name("profile", tests, set_up, tear_down);
}
