/* test_xla_runs.c – whole runs on the xla engine say, do and save what the same runs do on the CPU engine.
 *
 * A transcript is everything that a run tells its caller, in order, without times: step lines with all digits,
 * evaluations, samples, checkpoints, the end of the data, the verdict. On the fake plugin, which computes with the
 * CPU engine's kernels, it must be the same to the last bit although a step is always dispatched before the one
 * before it is awaited (the plugin counts how many were under way). Then the same from XLA's own CPU plugin, within
 * rounding; SKIP where there is none.
 * Not here: the equality of single ops (op/), errors of single calls (unit/test_xla_errors.c).
 */
#include "fake_help.h"

#include <errno.h>
#include <math.h>

#include "base/file.h"
#include "ckpt/checkpoint.h"
#include "slow.h"
#include "xla/plugin.h"

enum { MAX_STEPS = 24, MAX_WORDS = 60 };

static char root[64], book[128];
static const char *fake_plugin;

typedef struct told {
    ts_string text; /* the transcript */
    double loss[MAX_STEPS], norm[MAX_STEPS];
    int n, skipped, asked, act_at; /* act_at: the question that is answered with act */
    ts_interrupt act;
    int unread_at;   /* after this step the data cannot be read any more; 0: never */
    uint64_t dry_at; /* the allocation of ts_train that fails; 0: none */
    ts_train_result result;
    ts_error err;
} told;

static int set_up(void **state)
{
    (void)state;
    strcpy(root, "/tmp/tessera-xla-runs-XXXXXX");
    if (!mkdtemp(root)) return -1;
    snprintf(book, sizeof book, "%s/book.txt", root);
    FILE *text = fopen(book, "w");
    for (int i = 0; text && i < 40; i++)
        fprintf(text, "line %d of the book has %d words\n", i, i * 37 % 101);
    fake_plugin = fake_library("fake_pjrt");
    fault_none();
    setenv("FAKE_PJRT_THREADS", "1", 1);
    return text ? fclose(text) : -1;
}

static int tear_down(void **state)
{
    (void)state;
    fault_none();
    return ts_remove_tree(root, NULL) == TS_OK ? 0 : -1;
}

static void on_step(void *context, const ts_step_info *i)
{
    told *t = context;
    assert_true(t->n < MAX_STEPS && i->seconds >= 0 && i->data_seconds >= 0);
    ts_string_printf(&t->text, "step %lld of %lld: %.17g %.17g %.9g, %lld%s\n", (long long)i->step,
                     (long long)i->steps, i->loss, i->grad_norm, i->learning_rate,
                     (long long)i->trained_tokens, i->skipped ? ", skipped" : "");
    t->loss[t->n] = i->loss;
    t->norm[t->n++] = i->grad_norm;
    t->skipped += i->skipped;
    if (t->unread_at == t->n) ts_file_fault(TS_FAULT_READ, 1, EIO);
}

/* Lines of engine, size and time differ; what is left names the run's folder by "RUN". */
static void on_line(void *context, const char *line)
{
    static const char *const kept[] = {"Completed eval", "saved checkpoint", "the data ended",
                                       "target_eval", "continuing run"};
    told *t = context;
    const char *time = strstr(line, " ("), *folder = strstr(line, "/checkpoints/");
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
        if (strncmp(line, kept[i], strlen(kept[i])) == 0)
            ts_string_printf(&t->text, "%s: %.*s\n", kept[i],
                             time && !folder ? (int)(time - line)
                             : time          ? (int)(time - folder)
                                             : 200,
                             folder ? folder : line);
}

static void on_sample(void *context, int64_t step, const char *text)
{
    told *t = context;
    ts_string_printf(&t->text, "sample %lld: %s\n", (long long)step, text);
}

static ts_interrupt on_ask(void *context)
{
    told *t = context;
    return ++t->asked == t->act_at ? t->act : TS_CONTINUE;
}

static const char tiny[] =
    "base_emb_dim=16 base_num_query_heads=2 base_num_kv_heads=1 head_dim=8 "
    "base_mlp_dim=24 base_num_decoder_layers=2 vocab_size=259 max_target_length=16 dtype=float32 "
    "steps=6 learning_rate_schedule_steps=6 learning_rate=1e-2 warmup_steps_fraction=0 threads=1 "
    "per_device_batch_size=2 dataset_type=text log_config=false sample_tokens=8 "
    "async_checkpointing=false"; /* a save beside the training is told when it has ended */
#define ALL "eval_interval=3 eval_fraction=0.2 checkpoint_period=2 sample_interval=4"

/* The words of a tiny run: those of the test stand for those above them. Count; text is cut up. */
static int split_words(char *text, size_t size, char *word[MAX_WORDS], const char *name,
                       const char *plugin, const char *words)
{
    static char file[] = "base.yml";
    char *at = NULL;
    int n = 0;
    snprintf(text, size, "%s dataset_path=%s base_output_directory=%s run_name=%s %s%s %s", tiny,
             book, root, name, plugin ? "engine=xla plugin=" : "engine=cpu", plugin ? plugin : "",
             words);
    word[n++] = file;
    for (char *w = strtok_r(text, " ", &at); w; w = strtok_r(NULL, " ", &at)) {
        for (int k = 1; k < n; k++)
            if (strncmp(word[k], w, strcspn(w, "=") + 1) == 0) word[k] = word[--n];
        assert_true(n < MAX_WORDS);
        word[n++] = w;
    }
    return n;
}

/* words: "key=value …"; plugin NULL: engine=cpu. */
static ts_status run(told *t, const char *name, const char *plugin, const char *words)
{
    char text[4000], *word[MAX_WORDS];
    int n = split_words(text, sizeof text, word, name, plugin, words);
    ts_config *c = NULL;
    ts_train_hooks hooks;
    ts_train_hooks_default(&hooks);
    hooks.context = t;
    hooks.step = on_step;
    hooks.line = on_line;
    hooks.sample = on_sample;
    hooks.interrupt = on_ask;
    t->text = ts_string_new(1 << 16);
    if (ts_config_load_words((const char *const *)word, n, &c, &t->err) != TS_OK)
        fail_msg("%s: %s", name, t->err.msg);
    ts_alloc_fail_at(t->dry_at);
    ts_status status = ts_train(c, &hooks, &t->result, &t->err);
    ts_alloc_fail_at(0);
    ts_string_printf(&t->text, "reached %lld, saved %lld%s\n", (long long)t->result.steps,
                     (long long)t->result.saved_step, t->result.interrupted ? ", interrupted" : "");
    ts_config_free(c);
    assert_false(t->text.failed && !t->dry_at);
    return status;
}

static void expect(told *t, const char *name, const char *plugin, const char *words, ts_status want)
{
    ts_status status = run(t, name, plugin, words);
    if (status != want)
        fail_msg("%s: %s instead of %s: %s", name, ts_status_name(status), ts_status_name(want),
                 t->err.msg);
}

static void same_text(const told *a, const told *b)
{
    if (strcmp(a->text.data, b->text.data))
        fail_msg("on the cpu engine:\n%s\non the xla engine:\n%s", a->text.data, b->text.data);
}

/* The tensors of two checkpoints: the largest distance, over the largest value. */
static double distance(const char *a, const char *b, int step)
{
    ts_checkpoint *c[2];
    ts_tensors *t[2];
    ts_error err = {0};
    double far = 0;
    for (int i = 0; i < 2; i++) {
        char path[400];
        snprintf(path, sizeof path, "%s/%s/checkpoints/%d", root, i ? b : a, step);
        if (ts_checkpoint_open(path, &c[i], &err) != TS_OK) fail_msg("%s", err.msg);
        t[i] = ts_checkpoint_tensors(c[i]);
    }
    assert_int_equal(ts_tensors_count(t[0]), ts_tensors_count(t[1]));
    for (size_t k = 0; k < ts_tensors_count(t[0]); k++) {
        const ts_tensor *x = ts_tensors_at(t[0], k), *y = ts_tensors_find(t[1], x->name);
        float *v = malloc(2 * (x->count + 1) * sizeof *v), *w = v + x->count + 1;
        double most = 0, gap = 0;
        assert_non_null(y);
        if (ts_tensors_read_f32(t[0], x, 0, x->count, v, &err) != TS_OK ||
            ts_tensors_read_f32(t[1], y, 0, x->count, w, &err) != TS_OK)
            fail_msg("%s", err.msg);
        for (size_t i = 0; i < x->count; i++) {
            most = fmax(most, fabs((double)v[i]));
            gap = fmax(gap, fabs((double)v[i] - (double)w[i]));
        }
        far = fmax(far, most > 0 ? gap / most : gap);
        free(v);
    }
    ts_checkpoint_close(c[0]);
    ts_checkpoint_close(c[1]);
    return far;
}

/* ---- the same run --------------------------------------------------------------------------------- */

static void everything_in_order(void **state)
{
    (void)state;
    static const char *const words[] = {ALL,
                                        "checkpoint_period=4",
                                        "enable_checkpointing=false",
                                        "num_epoch=1 steps=20 " ALL,
                                        "num_epoch=2 steps=20 eval_interval=50 eval_fraction=0.2",
                                        "gradient_accumulation_steps=2 " ALL,
                                        "target_eval_loss=100 " ALL};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        told cpu = {0}, xla = {0}, single = {0};
        char name[3][40], one[400];
        snprintf(name[0], sizeof name[0], "order-cpu-%zu", i);
        snprintf(name[1], sizeof name[1], "order-xla-%zu", i);
        snprintf(name[2], sizeof name[2], "order-one-%zu", i);
        snprintf(one, sizeof one, "%s max_inflight_computations=1", words[i]);
        expect(&cpu, name[0], NULL, words[i], TS_OK);
        fake_counts()->reset();
        fault("SLOW_MS", "20");
        expect(&xla, name[1], fake_plugin, words[i], TS_OK);
        assert_int_equal(fake_counts()->in_flight(), 2);
        assert_true(fake_counts()->executes() >=
                    (uint64_t)xla.n); /* no other engine did the work */
        assert_int_equal(fake_counts()->live(NULL), 0);
        same_text(&cpu, &xla);
        fake_counts()->reset();
        expect(&single, name[2], fake_plugin, one, TS_OK);
        fault_none();
        assert_int_equal(fake_counts()->in_flight(), 1);
        same_text(&cpu, &single);
        if (cpu.result.saved_step > 0)
            assert_true(distance(name[0], name[1], (int)cpu.result.saved_step) == 0);
        ts_string_free(&cpu.text);
        ts_string_free(&xla.text);
        ts_string_free(&single.text);
    }
}

/* Slow device or quick, the host is ahead by one step: N + 1 is given to the plugin before the wait for N. */
static void ahead_of_a_slow_device(void **state)
{
    (void)state;
    told t = {0};
    char log[200], *text = NULL;
    size_t n;
    ts_error err = {0};
    snprintf(log, sizeof log, "%s/calls", root);
    fault("SLOW_MS", "300");
    fault("LOG", log);
    expect(&t, "slow", fake_plugin, "enable_checkpointing=false", TS_OK);
    fault_none();
    if (ts_file_read_all(log, 1 << 24, &text, &n, &err) != TS_OK) fail_msg("%s", err.msg);
    char order[100] = ""; /* E: an execute is given to the plugin; e: one has ended */
    size_t length = 0;
    for (const char *line = text; line && *line && length + 1 < sizeof order;) {
        size_t width = strcspn(line, "\n");
        if (strncmp(line, "PJRT_LoadedExecutable_Execute\n", 30) == 0) order[length++] = 'E';
        if (strncmp(line, "execute ", 8) == 0 && memmem(line, width, " ends", 5))
            order[length++] = 'e';
        line += width + (line[width] == '\n');
    }
    assert_string_equal(order, "EEeEeEeEeEee");
    assert_int_equal(t.n, 6);
    ts_free(text);
    ts_string_free(&t.text);
}

static void three_and_three_are_six(void **state)
{
    (void)state;
    told six = {0}, first = {0}, second = {0};
    expect(&six, "six", NULL, "", TS_OK);
    expect(&first, "parts", fake_plugin, "steps=3", TS_OK);
    expect(&second, "parts", fake_plugin, "", TS_OK);
    assert_int_equal(first.n, 3);
    assert_int_equal(second.n, 3);
    for (int i = 0; i < 6; i++)
        assert_true(six.loss[i] == (i < 3 ? first.loss[i] : second.loss[i - 3]));
    assert_true(distance("six", "parts", 6) == 0);
    ts_string_free(&six.text);
    ts_string_free(&first.text);
    ts_string_free(&second.text);
}

/* A plugin's devices are all of a run's, listed in whatever order: eight of them say and save what
 * the cpu engine's eight virtual ones do. What they cannot be split as is told when they are
 * counted. */
#define EIGHT " num_epoch=9 vocab_size=260 base_num_kv_heads=2 ici_data_parallelism=2 ici_tensor_parallelism=2"
static void on_eight_devices(void **state)
{
    (void)state;
    told cpu = {0}, xla = {0}, few = {0};
    expect(&cpu, "eight-cpu", NULL, ALL EIGHT " cpu_devices=8", TS_OK);
    fault("DEVICES", "8");
    fault("ORDER", "reversed");
    expect(&xla, "eight-xla", fake_plugin, ALL EIGHT, TS_OK);
    expect(&few, "few", fake_plugin, EIGHT " ici_fsdp_parallelism=4", TS_INVALID_ARGUMENT);
    fault_none();
    same_text(&cpu, &xla);
    assert_true(distance("eight-cpu", "eight-xla", 6) == 0);
    assert_non_null(strstr(few.err.msg, "8 devices cannot be split as"));
    assert_int_equal(few.n, 0);
    ts_string_free(&cpu.text);
    ts_string_free(&xla.text);
    ts_string_free(&few.text);
}

/* ---- asked to save, or to stop ----------------------------------------------------------------------- */

/* Whenever the stop comes: what was dispatched is finished, told and saved, and the run goes on from there. */
static void a_stop_at_every_point(void **state)
{
    (void)state;
    told whole = {0};
    expect(&whole, "whole", NULL, ALL, TS_OK);
    for (int at = 1; at < 60; at++) {
        told t = {.act_at = at, .act = TS_SAVE_AND_STOP}, rest = {0};
        char name[40];
        snprintf(name, sizeof name, "stop-%d", at);
        expect(&t, name, fake_plugin, ALL, TS_OK);
        if (!t.result.interrupted) {
            assert_true(at > 12);
            ts_string_free(&t.text);
            break;
        }
        assert_int_equal(t.asked, at);
        assert_int_equal(t.result.steps, t.n);
        if (t.n) assert_int_equal(t.result.saved_step, t.n);
        expect(&rest, name, fake_plugin, ALL, TS_OK);
        assert_int_equal(t.n + rest.n, 6);
        for (int i = 0; i < 6; i++)
            assert_true(whole.loss[i] == (i < t.n ? t.loss[i] : rest.loss[i - t.n]));
        assert_true(distance("whole", name, 6) == 0);
        ts_string_free(&t.text);
        ts_string_free(&rest.text);
    }
    ts_string_free(&whole.text);
}

/* A save in passing is of a step that is done, and changes nothing else. */
static void a_save_at_every_point(void **state)
{
    (void)state;
    told whole = {0};
    expect(&whole, "unsaved", NULL, "checkpoint_period=100", TS_OK);
    for (int at = 10; at < 16; at++) {
        told t = {.act_at = at, .act = TS_SAVE_AND_GO_ON};
        char name[40];
        snprintf(name, sizeof name, "save-%d", at);
        expect(&t, name, fake_plugin, "checkpoint_period=100", TS_OK);
        assert_int_equal(t.n, 6);
        for (int i = 0; i < 6; i++) assert_true(whole.loss[i] == t.loss[i]);
        assert_true(distance("unsaved", name, 6) == 0);
        ts_string_free(&t.text);
    }
    ts_string_free(&whole.text);
}

/* ---- steps that are not finite ----------------------------------------------------------------------- */

/* Only the last matrix is trained, and its decay multiplies it by a million each step. */
#define HOT                                                                                        \
    "learning_rate=1000 adam_weight_decay=1000 frozen_parameters=model.* lr_schedule_type=wsd "    \
    "wsd_decay_steps_fraction=0 learning_rate_schedule_steps=20 num_epoch=100 "

static void not_finite(void **state)
{
    (void)state;
    static const char *const words[] = {
        HOT "steps=20 checkpoint_period=3",
        HOT "steps=20 checkpoint_period=4 abort_on_nan_loss=false abort_on_inf_loss=false "
            "max_nonfinite_steps=2",
        HOT "steps=12 checkpoint_period=5 abort_on_nan_loss=false abort_on_inf_loss=false "
            "max_nonfinite_steps=20"};
    for (size_t i = 0; i < 3; i++) {
        told cpu = {0}, xla = {0};
        char name[2][40], *cut[2];
        snprintf(name[0], sizeof name[0], "finite-cpu-%zu", i);
        snprintf(name[1], sizeof name[1], "finite-xla-%zu", i);
        ts_status status = i < 2 ? TS_ABORTED : TS_OK;
        expect(&cpu, name[0], NULL, words[i], status);
        expect(&xla, name[1], fake_plugin, words[i], status);
        assert_true(cpu.skipped > 0);
        assert_int_equal(cpu.skipped, xla.skipped);
        same_text(&cpu, &xla);
        if (status == TS_OK) assert_true(distance(name[0], name[1], 12) == 0);
        for (int k = 0; status != TS_OK && k < 2;
             k++) { /* but for the run's name they say the same */
            cut[k] = strstr(k ? xla.err.msg : cpu.err.msg, "; the newest checkpoint");
            assert_non_null(cut[k]);
            *cut[k] = 0;
        }
        assert_string_equal(cpu.err.msg, xla.err.msg);
        ts_string_free(&cpu.text);
        ts_string_free(&xla.text);
    }
}

/* ---- errors ------------------------------------------------------------------------------------------ */

static void errors_name_their_step(void **state)
{
    (void)state;
    told t = {0};
    fake_counts()->reset();
    fault("EVENT_FAIL", "3");
    ts_status status = run(&t, "event", fake_plugin, "checkpoint_period=100");
    fault_none();
    assert_int_not_equal(status, TS_OK);
    if (strncmp(t.err.msg, "step 2: ", 8)) fail_msg("%s", t.err.msg);
    assert_int_equal(t.n, 2);
    assert_int_equal(t.result.saved_step,
                     0); /* what the failed step left is not known to be whole */
    assert_int_equal(fake_counts()->live(NULL), 0);
    ts_string_free(&t.text);
    t = (told){0};
    fault("FAIL", "PJRT_LoadedExecutable_Execute=8:the device is full");
    status = run(&t, "refused", fake_plugin, "");
    fault_none();
    assert_int_equal(status, TS_RESOURCE_EXHAUSTED);
    if (strncmp(t.err.msg, "step 0: ", 8) || !strstr(t.err.msg, "the device is full"))
        fail_msg("%s", t.err.msg);
    assert_int_equal(fake_counts()->live(NULL), 0);
    ts_string_free(&t.text);
}

/* Steps in flight are finished and saved first. */
static void a_full_disk_under_the_metrics(void **state)
{
    (void)state;
    told t = {0};
    if (access("/dev/full", W_OK) != 0) {
        print_message("SKIP: no /dev/full, which is always full\n");
        skip();
    }
    ts_status status = run(&t, "full", fake_plugin, "metrics_file=/dev/full");
    assert_int_not_equal(status, TS_OK);
    assert_int_equal(t.result.steps, t.n);
    assert_int_equal(t.result.saved_step, t.n);
    assert_true(t.n >= 1 && t.n <= 2);
    ts_string_free(&t.text);
}

/* The data fails in the middle: the step in flight is finished, told and saved first. */
static void data_that_fails(void **state)
{
    (void)state;
    for (int xla = 0; xla < 2; xla++) {
        told t = {.unread_at = 3};
        ts_status status = run(&t, xla ? "unread-xla" : "unread-cpu", xla ? fake_plugin : NULL,
                               "data_prefetch_batches=0"); /* read ahead, all would be there by then */
        ts_file_fault(0, 0, 0);
        assert_int_not_equal(status, TS_OK);
        assert_non_null(strstr(t.err.msg, "book.txt"));
        assert_int_equal(t.n, xla ? 4 : 3);
        assert_int_equal(t.result.steps, t.n);
        assert_int_equal(t.result.saved_step, t.n);
        ts_string_free(&t.text);
    }
}

static void a_step_file_that_does_not_fit(void **state)
{
    (void)state;
    told t = {0};
    char words[400];
    ts_error err = {0};
    ts_writer *w = NULL;
    snprintf(words, sizeof words, "compiled_trainstep_file=%s/gone.step", root);
    expect(&t, "gone", fake_plugin, words, TS_INVALID_ARGUMENT);
    assert_non_null(strstr(t.err.msg, "does not exist; `tessera compile` writes such a file"));
    ts_string_free(&t.text);
    snprintf(words, sizeof words, "%s/junk.step", root);
    if (ts_writer_open(words, false, &w, &err) != TS_OK ||
        ts_writer_write(w, "nothing of the kind", 19, &err) != TS_OK ||
        ts_writer_close(w, false, &err) != TS_OK)
        fail_msg("%s", err.msg);
    snprintf(words, sizeof words, "compiled_trainstep_file=%s/junk.step", root);
    t = (told){0};
    expect(&t, "junk", fake_plugin, words, TS_DATA_LOSS);
    assert_int_equal(t.n, 0);
    ts_string_free(&t.text);
}

/* Wherever memory runs out the run ends with an error, or does without an extra, and leaves nothing behind. */
static void no_memory_for(const char *what, const char *plugin, const char *words, uint64_t ratio)
{
    uint64_t before = ts_alloc_count();
    told whole = {0};
    expect(&whole, what, plugin, words, TS_OK);
    uint64_t most = ts_alloc_count() - before;
    ts_string_free(&whole.text);
    assert_true(most > 200);
    for (uint64_t nth = 1, k = 0; nth < most; nth += nth / ratio + 1, k++) {
        told t = {0};
        char name[40];
        snprintf(name, sizeof name, "%s-%d", what, (int)k);
        fake_counts()->reset();
        t.dry_at = nth;
        ts_status status = run(&t, name, plugin, words);
        ts_alloc_fail_at(0);
        if (status != TS_OK && !*t.err.msg)
            fail_msg("allocation %d failed without a word", (int)nth);
        assert_int_equal(fake_counts()->live(NULL), 0);
        ts_string_free(&t.text);
    }
}

static void no_memory(void **state)
{
    (void)state;
    no_memory_for("dry", fake_plugin, ALL " steps=3", 6);
    fault("DEVICES", "4");
    no_memory_for("dry-four", fake_plugin, ALL EIGHT " steps=2", 10);
    fault_none();
    no_memory_for("dry-cpu", NULL, ALL EIGHT " steps=2 cpu_devices=4", 10);
}

/* The program from a file of `tessera compile` trains the same; another plugin's version is another program. */
static void a_step_from_a_file(void **state)
{
    (void)state;
    told compiled = {0}, loaded = {0}, other = {0};
    char file[200], words[600], text[4000], *word[MAX_WORDS];
    ts_aot_report report;
    ts_config *c = NULL;
    ts_error err = {0};
    snprintf(file, sizeof file, "compiled_trainstep_file=%s/six.step", root);
    fault("PLATFORM", "cpu");
    expect(&compiled, "compiled", fake_plugin, "", TS_OK);
    snprintf(words, sizeof words, "compile_topology=cpu:1 %s", file);
    int n = split_words(text, sizeof text, word, "file", fake_plugin, words);
    if (ts_config_load_words((const char *const *)word, n, &c, &err) != TS_OK ||
        ts_aot_compile(c, &report, &err) != TS_OK)
        fail_msg("%s", err.msg);
    ts_config_free(c);
    assert_true(report.fits && *report.file);
    ts_aot_report_free(&report);
    expect(&loaded, "loaded", fake_plugin, file, TS_OK);
    same_text(&compiled, &loaded);
    assert_true(distance("compiled", "loaded", 6) == 0);
    fault("VERSION", "another");
    expect(&other, "other", fake_plugin, file, TS_FAILED_PRECONDITION);
    assert_int_equal(other.n, 0);
    assert_non_null(strstr(other.err.msg, "another"));
    fault_none();
    ts_string_free(&compiled.text);
    ts_string_free(&loaded.text);
    ts_string_free(&other.text);
}

/* ---- the device's profile ---------------------------------------------------------------------------- */

static void xplane(void **state)
{
    (void)state;
    told t = {0};
    char path[300], **names;
    size_t n;
    ts_error err = {0};
    expect(&t, "xplane", fake_plugin, "profiler=xplane profiler_steps=2", TS_OK);
    assert_int_equal(t.n, 6);
    assert_int_equal(fake_counts()->live(NULL), 0);
    snprintf(path, sizeof path, "%s/xplane/profile/plugins/profile", root);
    assert_int_equal(ts_list_folder(path, &names, &n, &err), TS_OK);
    assert_int_equal(n, 1);
    snprintf(path + strlen(path), sizeof path - strlen(path), "/%s/host.xplane.pb", names[0]);
    assert_int_equal(ts_path_kind_of(path), TS_PATH_FILE);
    ts_names_free(names, n);
    ts_string_free(&t.text);
    t = (told){0};
    fault("NO_PROFILER", "1");
    ts_status status = run(&t, "unprofiled", fake_plugin, "profiler=xplane");
    fault_none();
    assert_int_equal(status, TS_FAILED_PRECONDITION);
    assert_non_null(strstr(t.err.msg, "has no profiler extension; leave profiler out"));
    assert_int_equal(t.n, 0); /* before the first step */
    ts_string_free(&t.text);
}

/* ---- XLA itself -------------------------------------------------------------------------------------- */

static void on_xla_for_cpus(void **state)
{
    (void)state;
    char path[4096];
    ts_error err = {0};
    if (ts__plugin_find("cpu", path, sizeof path, &err) != TS_OK) {
        print_message("SKIP: %s\n", err.msg);
        skip();
    }
    told cpu = {0}, xla = {0}, first = {0}, second = {0};
    if (test_is_slow()) setenv("M_COMPILE_XLA_FLAGS", TEST_QUICK_XLA, 1);
    static const char words[] = "eval_interval=3 eval_fraction=0.2 checkpoint_period=2";
    expect(&cpu, "real-cpu", NULL, words, TS_OK);
    expect(&xla, "real-xla", path, words, TS_OK);
    expect(&first, "real-parts", path, "eval_fraction=0.2 steps=3", TS_OK);
    expect(&second, "real-parts", path, "eval_fraction=0.2", TS_OK);
    unsetenv("M_COMPILE_XLA_FLAGS");
    for (int i = 0; i < 6; i++) {
        double part = i < 3 ? first.loss[i] : second.loss[i - 3];
        if (fabs(cpu.loss[i] - xla.loss[i]) > 1e-5 * cpu.loss[i] ||
            fabs(cpu.norm[i] - xla.norm[i]) > 1e-4 * cpu.norm[i])
            fail_msg("step %d: loss %.9g and %.9g, norm %.9g and %.9g", i, cpu.loss[i], xla.loss[i],
                     cpu.norm[i], xla.norm[i]);
        if (part != xla.loss[i])
            fail_msg("step %d: %.9g resumed, %.9g whole", i, part, xla.loss[i]);
    }
    ts_string_free(&cpu.text);
    ts_string_free(&xla.text);
    ts_string_free(&first.text);
    ts_string_free(&second.text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everything_in_order),
        cmocka_unit_test(ahead_of_a_slow_device),
        cmocka_unit_test(three_and_three_are_six),
        cmocka_unit_test(on_eight_devices),
        cmocka_unit_test(a_stop_at_every_point),
        cmocka_unit_test(a_save_at_every_point),
        cmocka_unit_test(not_finite),
        cmocka_unit_test(errors_name_their_step),
        cmocka_unit_test(a_full_disk_under_the_metrics),
        cmocka_unit_test(data_that_fails),
        cmocka_unit_test(a_step_file_that_does_not_fit),
        cmocka_unit_test(a_step_from_a_file),
        cmocka_unit_test(no_memory),
        cmocka_unit_test(xplane),
        cmocka_unit_test(on_xla_for_cpus),
    };
    return cmocka_run_group_tests_name("xla_runs", tests, set_up, tear_down);
}
