/* test_resume_exact.c – a run that is broken off and goes on is the run that was not, to the bit.
 *
 * Forty steps over several epochs, evaluated, with two micro-batches a step: straight, and with SIGKILL behind step 20
 * while a save is being written; and from each of its checkpoints. Every number of metrics.jsonl but times is
 * compared (losses, norms, the rate, evaluations, each source's loss, the hash of all row numbers so far), every byte
 * of the tensors and the state beside them. Text, rows packed in both ways and compressed, tokens, a mixture; one
 * device and 2 × 2; the cpu engine, and XLA's CPU plugin where it is installed.
 *
 * `test_resume_exact full` goes on from every one of the forty steps, for each kind of data; without it from some. A
 * second word is a pattern of the tests to run.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

#include "resume_help.h"

enum { STEPS = 40, KILL = 20 };

static bool full;

static int make_data(void **state)
{
    if (set_up(state) != 0) return -1;
    put_book("book.txt", 1000, 1);
    put_jsonl("rows.jsonl", 300, 2, 7, false);
    put_jsonl("rows.jsonl.gz", 300, 3, 9, true);
    put_jsonl("web-0.jsonl", 150, 4, 7, false);
    put_jsonl("web-1.jsonl", 130, 5, 7, false);
    put_jsonl("code.jsonl", 90, 6, 5, false);
    put_jsonl("more.jsonl.gz", 60, 7, 5, true);
    put_ids("ids.bin", 4400, 8);
    return 0;
}

typedef struct kind {
    const char *name, *words; /* @ is the folder of the data */
} kind;

static const kind kinds[] = {
    {"text", "dataset_type=text dataset_path=@/book.txt"},
    {"fitted", "dataset_type=jsonl dataset_path=@/rows.jsonl"},
    {"cut-gz",
     "dataset_type=jsonl dataset_path=@/rows.jsonl.gz grain_packing_type=concat_then_split"},
    {"tokens", "dataset_type=tokens dataset_path=@/ids.bin dtype=bfloat16"},
    {"mixture", "dataset_type=jsonl "
                "dataset_mixture=[web:0.7:@/web-*.jsonl,code:0.3:@/code.jsonl+@/more.jsonl.gz]"},
    {"mixture-cut", "dataset_type=jsonl grain_packing_type=concat_then_split "
                    "dataset_mixture=[web:2:@/web-*.jsonl,code:1:@/code.jsonl]"},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

typedef struct place {
    const char *name, *words;
    int devices;
} place;

static const place one = {"one", "engine=cpu per_device_batch_size=4", 1};
static const place four = {
    "four",
    "engine=cpu cpu_devices=4 ici_fsdp_parallelism=2 ici_tensor_parallelism=2 "
    "per_device_batch_size=1",
    4};
static const place xla = {"xla",
                          "engine=xla plugin=cpu cpu_devices=1 per_device_batch_size=4 "
                          "compile_xla_flags=" TEST_QUICK_XLA,
                          1};
static const place xla_four = {
    "xla-four",
    "engine=xla plugin=cpu cpu_devices=4 ici_fsdp_parallelism=2 ici_tensor_parallelism=2 "
    "per_device_batch_size=1 eval_interval=-1 compile_xla_flags=" TEST_QUICK_XLA,
    4}; /* its compiler is most of the time, so one program */

/* The words of a run; in a buffer that the next call but three uses again. */
static const char *words_of(const char *run, const kind *k, const place *p, const char *more)
{
    static const char small[] =
        "base.yml base_emb_dim=16 base_num_query_heads=4 base_num_kv_heads=2 head_dim=4 "
        "base_mlp_dim=24 base_num_decoder_layers=2 vocab_size=260 max_target_length=32 "
        "dtype=float32 gradient_accumulation_steps=2 steps=40 learning_rate=1e-2 threads=1 "
        "num_epoch=9 eval_fraction=0.1 eval_interval=7 eval_steps=2 data_threads=3";
    static char text[4][TEXT];
    static int turn;
    char *to = text[turn = (turn + 1) % 4];
    char joined[TEXT];
    snprintf(joined, sizeof joined, "%s %s %s base_output_directory=%s run_name=%s %s", small,
             k->words, p->words, root, run, more);
    size_t n = 0;
    for (const char *at = joined; *at && n + 80 < TEXT; at++) {
        if (*at == '@')
            n += (size_t)sprintf(to + n, "%s", root);
        else
            to[n++] = *at;
    }
    to[n] = 0;
    return to;
}

/* ---- broken once ----------------------------------------------------------------------------- */

static void break_and_go_on(const kind *k, const place *p)
{
    char whole[64], broken[64];
    snprintf(whole, sizeof whole, "%s-%s-whole", k->name, p->name);
    snprintf(broken, sizeof broken, "%s-%s-broken", k->name, p->name);
    expect_train(TS_OK, words_of(whole, k, p, "checkpoint_period=4"), lives);
    fate f = lives;
    f.kill_behind = KILL;
    expect_train(KILLED, words_of(broken, k, p, "checkpoint_period=4"), f);
    expect_train(TS_OK, words_of(broken, k, p, "checkpoint_period=4"), lives);
    if (!strstr(said(), "continuing run")) fail_msg("%s began anew\n%s", broken, said());
    json_t *metrics = metrics_of(whole);
    assert_non_null(step_of(metrics, STEPS - 1));
    assert_true(json_object_get(metrics, "eval 34") || p == &xla_four);
    assert_true(loss_of(metrics, STEPS - 1) < loss_of(metrics, 0) - 0.5);
    expect_same_metrics(metrics, broken, 0);
    expect_same_checkpoint(whole, broken, STEPS, p->devices);
    json_decref(metrics);
}

static void a_killed_run_goes_on_to_the_bit(void **state)
{
    (void)state;
    for (int i = 0; i < KINDS; i++) break_and_go_on(&kinds[i], &one);
}

static void on_a_mesh(void **state)
{
    (void)state;
    for (int i = 0; i < KINDS; i++)
        if (full || i == 1 || i == 4) break_and_go_on(&kinds[i], &four);
}

static void on_xla(void **state)
{
    (void)state;
    if (!has_plugin()) skip();
    for (int i = 0; i < KINDS; i++) {
        if (full || i == 4) break_and_go_on(&kinds[i], &xla);
        if (i == 1 && (full || !test_is_slow())) break_and_go_on(&kinds[i], &xla_four);
        if (i == 4 && full) break_and_go_on(&kinds[i], &xla_four);
    }
}

/* ---- from every step ------------------------------------------------------------------------- */

/* Some of the points where CI goes on: the start, an evaluation's step, around the ends of epochs, the last. */
static bool is_tried(int64_t step, int64_t last)
{
    static const int64_t some[] = {0, 1, 7, 13, 14, 26, 27};
    if (full || step >= last - 1) return true;
    for (size_t i = 0; i < sizeof some / sizeof *some && !test_is_slow(); i++)
        if (some[i] == step) return true;
    return false;
}

/* last: the steps of the whole run. Returns how many points were tried. */
static int from_each_step(const kind *k, const place *p, const char *whole, int64_t last,
                          const char *more)
{
    json_t *metrics = metrics_of(whole);
    int tried = 0;
    for (int64_t step = 0; step < last; step++) {
        char run[64];
        if (!is_tried(step, last)) continue;
        snprintf(run, sizeof run, "%s-from", whole);
        copy_checkpoint(whole, step, run);
        expect_train(TS_OK, words_of(run, k, p, more), lives);
        expect_same_metrics(metrics, run, step);
        expect_same_checkpoint(whole, run, last, p->devices);
        tried++;
    }
    json_decref(metrics);
    return tried;
}

static void from_each_of_forty_steps(void **state)
{
    (void)state;
    for (int i = 0; i < KINDS; i++) {
        char whole[64];
        snprintf(whole, sizeof whole, "%s-each", kinds[i].name);
        expect_train(TS_OK, words_of(whole, &kinds[i], &one, "checkpoint_period=1"), lives);
        int n = from_each_step(&kinds[i], &one, whole, STEPS, "checkpoint_period=1000");
        printf("%-12s %d points of %d\n", kinds[i].name, n, STEPS);
    }
}

static void from_each_step_on_xla(void **state)
{
    (void)state;
    if (!full || !has_plugin()) skip();
    expect_train(TS_OK, words_of("xla-each", &kinds[4], &xla, "checkpoint_period=1"), lives);
    (void)from_each_step(&kinds[4], &xla, "xla-each", STEPS, "checkpoint_period=1000");
}

/* Two epochs and their end, which comes in the middle of a step's rows; a run that has ended stays ended. */
static void across_the_end_of_the_data(void **state)
{
    (void)state;
    for (int i = 0; i < KINDS; i++) {
        const char *more = "steps=500 num_epoch=2 learning_rate_schedule_steps=40";
        char whole[64], words[300];
        snprintf(whole, sizeof whole, "%s-ends", kinds[i].name);
        snprintf(words, sizeof words, "%s checkpoint_period=1", more);
        expect_train(TS_OK, words_of(whole, &kinds[i], &one, words), lives);
        if (!strstr(said(), "the data ended")) fail_msg("%s did not end\n%s", whole, said());
        json_t *metrics = metrics_of(whole);
        int64_t last = 0;
        while (step_of(metrics, last)) last++;
        assert_true(last > 10 && last < 200);
        snprintf(words, sizeof words, "%s checkpoint_period=1000", more);
        int n = from_each_step(&kinds[i], &one, whole, last, words);
        expect_train(TS_OK, words_of(whole, &kinds[i], &one, words), lives);
        expect_same_metrics(metrics, whole, 0);
        printf("%-12s ends after %lld steps; %d points\n", kinds[i].name, (long long)last, n);
        json_decref(metrics);
    }
}

/* ---- within one process ---------------------------------------------------------------------- */

static void stopped_and_called_again_in_one_process(void **state)
{
    (void)state;
    const kind *k = &kinds[4];
    expect_train(TS_OK, words_of("once", k, &one, "checkpoint_period=10"), lives);
    json_t *metrics = metrics_of("once");
    fate f = lives;
    f.stop_behind = 12;
    f.times = 2;
    expect_train(TS_OK, words_of("twice", k, &one, "checkpoint_period=10"), f);
    if (!strstr(said(), "continuing run twice")) fail_msg("one call did it all\n%s", said());
    expect_same_metrics(metrics, "twice", 0);
    expect_same_checkpoint("once", "twice", STEPS, 1);
    f = lives;
    f.save_behind = 17; /* a save that no period asked for changes nothing */
    f.kill_behind = 18;
    expect_train(KILLED, words_of("saved", k, &one, "checkpoint_period=10"), f);
    expect_train(TS_OK, words_of("saved", k, &one, "checkpoint_period=10"), lives);
    expect_same_metrics(metrics, "saved", 0);
    expect_same_checkpoint("once", "saved", STEPS, 1);
    json_decref(metrics);
}

/* ---- in the middle of an evaluation ------------------------------------------------------------ */

static void expect_said(const char *text, bool wanted)
{
    if (!strstr(said(), text) == wanted)
        fail_msg("\"%s\" is %s:\n%s", text, wanted ? "not said" : "said", said());
}

static const json_t *evaluation_of(const char *run, int64_t step, json_t **state)
{
    *state = state_of(run, step);
    return json_object_get(*state, "evaluation");
}

static void expect_evaluation(const char *run, int64_t step, bool wanted)
{
    json_t *state;
    const json_t *e = evaluation_of(run, step, &state);
    if (!e == wanted)
        fail_msg("step %lld of %s has %s evaluation", (long long)step, run, e ? "an" : "no");
    json_decref(state);
}

/* The hook is asked first within the evaluation behind a step where one is due: there the run is stopped. Whoever goes
 * on gets the evaluation first, once. */
static void stopped_in_an_evaluation(void **state)
{
    (void)state;
    const kind *k = &kinds[4];
    static const char *const commits[] = {"rename", "manifest"};
    static const int64_t at[] = {14, STEPS};
    for (int i = 0; i < 2; i++) {
        const bool replaced = i == 0;
        char words[100], whole[32], run[32];
        snprintf(words, sizeof words, "checkpoint_period=10 checkpoint_commit=%s", commits[i]);
        snprintf(whole, sizeof whole, "eval-%s", commits[i]);
        expect_train(TS_OK, words_of(whole, k, &one, words), lives);
        json_t *metrics = metrics_of(whole);
        assert_non_null(json_object_get(metrics, "eval 39"));
        for (int j = 0; j < 2; j++) {
            fate f = lives;
            snprintf(run, sizeof run, "in-eval-%d-%d", i, j);
            f.stop_behind = at[j] - 1;
            expect_train(TS_OK, words_of(run, k, &one, words), f);
            expect_said("Completed eval after train step 6,", true);
            expect_said(j == 0 ? "eval after train step 13," : "eval after train step 39,", false);
            expect_evaluation(run, at[j], false);
            expect_train(TS_OK, words_of(run, k, &one, words), lives);
            expect_same_metrics(metrics, run, 0);
            expect_same_checkpoint(whole, run, STEPS, 1);
            expect_evaluation(run, at[j], replaced);
            expect_said("nothing to do", false);
            expect_train(TS_OK, words_of(run, k, &one, words), lives);
            expect_said("nothing to do", replaced || j == 0);
            expect_said("Completed eval", !replaced && j == 1);
        }
        json_decref(metrics);
    }
}

/* The evaluation that was broken off is the one that ends the run. */
static void stopped_where_the_target_is_reached(void **state)
{
    (void)state;
    const char *more = "target_eval_loss=100";
    fate f = lives;
    expect_train(TS_OK, words_of("goal", &kinds[0], &one, more), lives);
    json_t *metrics = metrics_of("goal");
    assert_non_null(step_of(metrics, 6));
    assert_null(step_of(metrics, 7));
    f.stop_behind = 6;
    expect_train(TS_OK, words_of("goal-late", &kinds[0], &one, more), f);
    expect_evaluation("goal-late", 7, false);
    expect_train(TS_OK, words_of("goal-late", &kinds[0], &one, more), lives);
    expect_same_metrics(metrics, "goal-late", 0);
    expect_same_checkpoint("goal", "goal-late", 7, 1);
    expect_evaluation("goal-late", 7, true);
    expect_train(TS_OK, words_of("goal-late", &kinds[0], &one, more), lives);
    expect_said("has reached target_eval_loss=100 at step 7", true);
    json_decref(metrics);
}

/* A save that is asked for in an evaluation has its result, which keeping the best goes by, and is made once. */
static void saved_in_an_evaluation(void **state)
{
    (void)state;
    static const char *const commits[] = {"rename", "manifest"};
    for (int i = 0; i < 2; i++) {
        char words[100], run[32], line[64], *again;
        fate f = lives;
        snprintf(words, sizeof words, "checkpoint_period=100 checkpoint_commit=%s", commits[i]);
        snprintf(run, sizeof run, "asked-%s", commits[i]);
        f.save_behind = 13;
        expect_train(TS_OK, words_of(run, &kinds[0], &one, words), f);
        expect_evaluation(run, 14, true);
        snprintf(line, sizeof line, "%s/checkpoints/14 (", run);
        const char *text = said(), *first = strstr(text, line);
        again = first ? strstr(first + 1, line) : NULL;
        const char *done = strstr(text, "Completed eval after train step 13,");
        if (!first || again || !done || first < done) fail_msg("%s", text);
        size_t n;
        char *manifest = checkpoint_file(run, 14, "manifest.json", &n);
        json_t *all = json_loads(manifest, 0, NULL);
        assert_true(json_is_real(json_object_get(all, "score")));
        json_decref(all);
        free(manifest);
    }
}

/* ---- going back ------------------------------------------------------------------------------ */

static const char rolls[] =
    "checkpoint_period=10 spike_policy=rollback spike_window=8 spike_threshold=0.3 "
    "max_spike_rollbacks=100 save_checkpoint_on_start=true learning_rate=5e-2";

/* The step whose loss was the first spike: the line before the first that counts a rollback. */
static int64_t first_spike(const char *run)
{
    char path[256];
    size_t n;
    snprintf(path, sizeof path, "%s/%s/metrics.jsonl", root, run);
    char *file = read_all(path, &n), *at = strstr(file, "\"learning/rollbacks\": 1");
    assert_non_null(at);
    while (at > file && *at != '\n') at--;
    while (at > file && at[-1] != '\n') at--;
    const int64_t step = atoll(at + strlen("{\"step\": "));
    free(file);
    return step;
}

/* Metrics that find no room end the run, and what was trained is saved: but for a spike, which nobody has judged yet.
 * Where it is saved, the step's loss is one of those that the next is measured by. */
static void no_room_for_metrics(void **state)
{
    (void)state;
    const kind *k = &kinds[1];
    expect_train(TS_OK, words_of("room", k, &one, rolls), lives);
    json_t *metrics = metrics_of("room");
    const int64_t spike = first_spike("room");
    assert_true(spike > 8 && spike % 10 != 9);
    fate f = lives;
    size_t n;
    f.full_behind = spike;
    expect_train(TS_RESOURCE_EXHAUSTED, words_of("spiky", k, &one, rolls), f);
    char *manifest = checkpoint_file("spiky", spike + 1, "manifest.json", &n);
    if (manifest) fail_msg("the weights behind a spike are saved\n%s", said());
    json_t *so_far = metrics_of("spiky");
    f.full_behind = spike - 1;
    expect_train(TS_RESOURCE_EXHAUSTED, words_of("cramped", k, &one, rolls), f);
    json_t *saved = state_of("cramped", spike);
    const json_t *losses = json_object_get(json_object_get(saved, "spikes"), "losses");
    assert_int_equal(json_array_size(losses), 8);
    const double last = strtod(json_string_value(json_array_get(losses, 7)), NULL);
    assert_true(fabs(last - loss_of(so_far, spike - 1)) < 1e-6);
    json_decref(saved);
    json_decref(so_far);
    expect_train(TS_OK, words_of("spiky", k, &one, rolls), lives);
    expect_same_metrics(metrics, "spiky", 0);
    expect_same_checkpoint("room", "spiky", STEPS, 1);
    json_decref(metrics);
}

/* A run that went back by itself, killed behind that: it goes back again where it did, and is then the same. */
static void behind_a_rollback(void **state)
{
    (void)state;
    const char *more = rolls;
    const kind *k = &kinds[1];
    expect_train(TS_OK, words_of("rolls", k, &one, more), lives);
    json_t *metrics = metrics_of("rolls");
    const json_t *count = json_object_get(step_of(metrics, STEPS - 1), "learning/rollbacks");
    printf("%lld rollbacks\n", (long long)json_integer_value(count));
    assert_true(json_integer_value(count) > 0);
    for (int64_t step = 9; step < STEPS; step += full ? 1 : 10) {
        fate f = lives;
        f.kill_behind = step;
        shell("rm -rf %s/rolls-on", root);
        expect_train(KILLED, words_of("rolls-on", k, &one, more), f);
        expect_train(TS_OK, words_of("rolls-on", k, &one, more), lives);
        expect_same_metrics(metrics, "rolls-on", 0);
        expect_same_checkpoint("rolls", "rolls-on", STEPS, 1);
    }
    json_decref(metrics);
}

/* Steps that are skipped are counted across a resume: the run stops where it did. */
static void what_was_not_finite_is_counted_on(void **state)
{
    (void)state;
    const char *more = "checkpoint_period=1 learning_rate=1000 adam_weight_decay=1000 "
                       "gradient_clipping_threshold=0 lr_schedule_type=wsd warmup_steps_fraction=0 "
                       "wsd_decay_steps_fraction=0 abort_on_nan_loss=false "
                       "abort_on_inf_loss=false max_nonfinite_steps=9";
    const kind *k = &kinds[0];
    expect_train(TS_ABORTED, words_of("wild", k, &one, more), lives);
    json_t *metrics = metrics_of("wild");
    int64_t last = 0;
    while (step_of(metrics, last)) last++;
    assert_true(last > 10 && last < STEPS);
    for (int64_t step = last - 6; step < last; step += 2) {
        copy_checkpoint("wild", step, "wilder");
        expect_train(TS_ABORTED, words_of("wilder", k, &one, more), lives);
        expect_same_metrics(metrics, "wilder", step);
    }
    json_decref(metrics);
}

int main(int argc, char **argv)
{
    full = argc > 1 && strcmp(argv[1], "full") == 0;
    if (argc > 2) cmocka_set_test_filter(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_run_goes_on_to_the_bit),
        cmocka_unit_test(on_a_mesh),
        cmocka_unit_test(on_xla),
        cmocka_unit_test(from_each_of_forty_steps),
        cmocka_unit_test(from_each_step_on_xla),
        cmocka_unit_test(across_the_end_of_the_data),
        cmocka_unit_test(stopped_and_called_again_in_one_process),
        cmocka_unit_test(stopped_in_an_evaluation),
        cmocka_unit_test(stopped_where_the_target_is_reached),
        cmocka_unit_test(saved_in_an_evaluation),
        cmocka_unit_test(no_room_for_metrics),
        cmocka_unit_test(behind_a_rollback),
        cmocka_unit_test(what_was_not_finite_is_counted_on),
    };
    return cmocka_run_group_tests(tests, make_data, tear_down);
}
