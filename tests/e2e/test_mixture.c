/* test_mixture.c – runs on several sources: the loss of each, in training and evaluation, on any mesh and engine.
 *
 * What the sources say adds up to what the step says. That a loss is counted for the right source is seen at rate 0,
 * where a source alone has the losses that it has in the mixture. That nothing else depends on the losses of rows is
 * seen on a mixture of one source: every loss, and the last checkpoint, are those of dataset_path, to the bit.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

#include "resume_help.h"

enum { STEPS = 8 };

static const char two[] =
    "dataset_mixture=[web:0.7:@/web-*.jsonl,code:0.3:@/code.jsonl+@/more.jsonl.gz]";

static int make_data(void **state)
{
    if (set_up(state) != 0) return -1;
    put_jsonl("web-0.jsonl", 150, 4, 7, false);
    put_jsonl("web-1.jsonl", 130, 5, 7, false);
    put_jsonl("code.jsonl", 90, 6, 4, false);
    put_jsonl("more.jsonl.gz", 60, 7, 4, true);
    put_book("book.txt", 900, 1);
    put_ids("ids.bin", 3000, 2);
    return 0;
}

static const char *words_of(const char *run, const char *more)
{
    static const char small[] =
        "base.yml base_emb_dim=16 base_num_query_heads=4 base_num_kv_heads=2 head_dim=4 "
        "base_mlp_dim=24 base_num_decoder_layers=2 vocab_size=260 max_target_length=32 "
        "dtype=float32 steps=8 learning_rate=1e-2 threads=1 eval_fraction=0.1 eval_interval=4 "
        "dataset_type=jsonl";
    static char text[TEXT];
    char joined[TEXT];
    snprintf(joined, sizeof joined, "%s base_output_directory=%s run_name=%s %s", small, root, run,
             more);
    size_t n = 0;
    for (const char *at = joined; *at && n + 80 < TEXT; at++) {
        if (*at == '@')
            n += (size_t)sprintf(text + n, "%s", root);
        else
            text[n++] = *at;
    }
    text[n] = 0;
    return text;
}

static double number(const json_t *line, const char *group, const char *source, const char *what)
{
    char key[200];
    snprintf(key, sizeof key, "%s/%s/%s", group, source, what);
    const json_t *v = json_object_get(line, key);
    if (!v) fail_msg("no %s", key);
    return json_number_value(v); /* 0 for null */
}

static double plain(const json_t *line, const char *key)
{
    const json_t *v = json_object_get(line, key);
    if (!json_is_number(v)) fail_msg("no %s", key);
    return json_number_value(v);
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* Returns how far the sum of the parts is from the whole at most. */
static double add_up(const char *run, int rows)
{
    json_t *metrics = metrics_of(run), *line;
    const char *key;
    double worst = 0;
    int lines = 0;
    json_object_foreach(metrics, key, line)
    {
        const bool eval = key[0] == 'e';
        const char *group = eval ? "eval" : "learning", *loss = eval ? "avg_loss" : "loss";
        const double all = plain(line, eval ? "eval/avg_loss" : "learning/loss");
        const double n = plain(line, eval ? "eval/total_weights" : "learning/total_weights");
        const double w = number(line, group, "web", "weights"),
                     c = number(line, group, "code", "weights");
        assert_true(w + c == n && n > 0 && w > 0);
        const double sum =
            number(line, group, "web", loss) * w + number(line, group, "code", loss) * c;
        worst = fmax(worst, fabs(sum / n - all) / all);
        if (!eval)
            assert_true(number(line, "data", "web", "rows") +
                            number(line, "data", "code", "rows") ==
                        rows * (plain(line, "step") + 1));
        lines++;
    }
    assert_int_equal(lines, STEPS + 2);
    json_decref(metrics);
    return worst;
}

static const struct {
    const char *name, *words;
    int devices;
    bool xla, quick;
} places[] = {
    {"cpu", "engine=cpu per_device_batch_size=8", 1, false, true},
    {"cpu-accumulated", "engine=cpu per_device_batch_size=4 gradient_accumulation_steps=2", 1,
     false, true},
    {"cpu-2x2",
     "engine=cpu cpu_devices=4 ici_fsdp_parallelism=2 ici_tensor_parallelism=2 "
     "per_device_batch_size=1 gradient_accumulation_steps=2",
     4, false, true},
    {"cpu-4", "engine=cpu cpu_devices=4 per_device_batch_size=2", 4, false, true},
    {"cpu-ring",
     "engine=cpu cpu_devices=4 ici_fsdp_parallelism=2 ici_tensor_parallelism=2 "
     "collective_matmul=ring per_device_batch_size=2",
     4, false, true},
    {"cpu-unrolled",
     "engine=cpu cpu_devices=2 ici_tensor_parallelism=2 ici_fsdp_parallelism=1 scan_layers=false "
     "remat_policy=none per_device_batch_size=2 gradient_accumulation_steps=2",
     2, false, true},
    {"xla", "engine=xla plugin=cpu per_device_batch_size=4 gradient_accumulation_steps=2", 1, true,
     true},
    {"xla-2x2",
     "engine=xla plugin=cpu cpu_devices=4 ici_fsdp_parallelism=2 ici_tensor_parallelism=2 "
     "per_device_batch_size=1 gradient_accumulation_steps=2",
     4, true, false},
    {"xla-auto",
     "engine=xla plugin=cpu cpu_devices=4 ici_fsdp_parallelism=2 ici_tensor_parallelism=2 "
     "shard_mode=auto per_device_batch_size=1 gradient_accumulation_steps=2",
     4, true, false},
};
enum { PLACES = sizeof places / sizeof *places };

static bool full;

static bool is_left_out(int i)
{
    static int plugin = -1;
    if (!places[i].xla) return false;
    if (plugin < 0) plugin = has_plugin();
    return !plugin || (!full && (!places[i].quick || test_is_slow()));
}

static void sources_add_up_everywhere(void **state)
{
    (void)state;
    for (int i = 0; i < PLACES; i++) {
        char more[700];
        if (is_left_out(i)) continue;
        snprintf(more, sizeof more, "%s %s enable_checkpointing=false", places[i].words, two);
        expect_train(TS_OK, words_of(places[i].name, more), lives);
        const double apart = add_up(places[i].name, 8);
        printf("%-16s the sources' losses give the step's within %.1e\n", places[i].name, apart);
        assert_true(apart <= 1e-6);
    }
}

/* Nothing that was there before depends on the new output. */
static void one_source_is_a_run_without_a_mixture(void **state)
{
    static const char *const data[][2] = {
        {"dataset_path=@/code.jsonl", "dataset_mixture=[only:3:@/code.jsonl]"},
        {"dtype=bfloat16 dataset_type=tokens dataset_path=@/ids.bin",
         "dtype=bfloat16 dataset_type=tokens dataset_mixture=[only:3:@/ids.bin]"}};
    (void)state;
    for (int i = 0; i < PLACES; i++)
        for (int k = 0; k < (places[i].xla && !full ? 1 : 2); k++) {
            char more[700], plain_run[64], mixed_run[64];
            if (is_left_out(i)) continue;
            snprintf(plain_run, sizeof plain_run, "%s-%d-plain", places[i].name, k);
            snprintf(mixed_run, sizeof mixed_run, "%s-%d-mixed", places[i].name, k);
            snprintf(more, sizeof more, "eval_interval=-1 num_epoch=9 %s %s", places[i].words,
                     data[k][0]);
            expect_train(TS_OK, words_of(plain_run, more), lives);
            snprintf(more, sizeof more, "eval_interval=-1 num_epoch=9 %s %s", places[i].words,
                     data[k][1]);
            expect_train(TS_OK, words_of(mixed_run, more), lives);
            json_t *a = metrics_of(plain_run), *b = metrics_of(mixed_run);
            for (int step = 0; step < STEPS; step++) {
                const char *const same[] = {"learning/loss", "learning/raw_grad_norm"};
                for (int m = 0; m < 2; m++)
                    if (plain(step_of(a, step), same[m]) != plain(step_of(b, step), same[m]))
                        fail_msg("%s: %s differs at step %d", mixed_run, same[m], step);
            }
            for (int d = 0; d < places[i].devices; d++) {
                char name[64];
                size_t n, m;
                snprintf(name, sizeof name, "shard-%05d-of-%05d.safetensors", d, places[i].devices);
                char *x = checkpoint_file(plain_run, STEPS, name, &n);
                char *y = checkpoint_file(mixed_run, STEPS, name, &m);
                assert_true(x && y && n == m);
                if (memcmp(x, y, n) != 0) fail_msg("%s: other weights", mixed_run);
                free(x);
                free(y);
            }
            json_decref(a);
            json_decref(b);
        }
}

/* ---- the right source ------------------------------------------------------------------------ */

static void a_source_has_its_own_losses(void **state)
{
    static const char *const still = "learning_rate=0 enable_data_shuffling=false eval_interval=-1 "
                                     "enable_checkpointing=false engine=cpu";
    char more[400];
    (void)state;
    snprintf(more, sizeof more, "%s per_device_batch_size=4 dataset_path=@/code.jsonl", still);
    expect_train(TS_OK, words_of("alone", more), lives);
    snprintf(more, sizeof more,
             "%s per_device_batch_size=4 cpu_devices=2 "
             "dataset_mixture=[code:1:@/code.jsonl,web:1:@/web-0.jsonl]",
             still);
    expect_train(TS_OK, words_of("both", more), lives);
    json_t *a = metrics_of("alone"), *b = metrics_of("both");
    for (int step = 0; step < STEPS; step++) {
        const double alone = loss_of(a, step);
        const double mixed = number(step_of(b, step), "learning", "code", "loss");
        const double other = number(step_of(b, step), "learning", "web", "loss");
        assert_true(number(step_of(b, step), "learning", "code", "weights") ==
                    plain(step_of(a, step), "learning/total_weights"));
        if (!(fabs(alone - mixed) <= 1e-6 * alone)) fail_msg("step %d: %g, %g", step, alone, mixed);
        assert_true(fabs(other - alone) > 1e-5);
    }
    json_decref(a);
    json_decref(b);
}

/* ---- what is said ---------------------------------------------------------------------------- */

static void says(const char *text)
{
    if (!strstr(said(), text)) fail_msg("not said: %s\n%s", text, said());
}

static void lines_name_the_sources(void **state)
{
    char more[500];
    (void)state;
    snprintf(more, sizeof more, "engine=cpu per_device_batch_size=8 steps=500 num_epoch=2 %s", two);
    expect_train(TS_OK, words_of("lines", more), lives);
    says("samples, ");
    says("weight 0.7: 70.0% of the rows");
    says("weight 0.3: 30.0% of the rows");
    says("is used up first, after at least ");
    says("evaluation on web: ");
    says("evaluation on code: ");
    says("; web ");
    says("is used up after 2 passes (num_epoch=2), behind step ");
    /* One set of files to evaluate on is one loss. */
    snprintf(more, sizeof more,
             "engine=cpu per_device_batch_size=8 eval_fraction=0 eval_dataset_path=@/code.jsonl %s",
             two);
    expect_train(TS_OK, words_of("own", more), lives);
    json_t *metrics = metrics_of("own");
    const json_t *line = json_object_get(metrics, "eval 3");
    assert_true(plain(line, "eval/avg_loss") > 0 && !json_object_get(line, "eval/web/avg_loss"));
    json_decref(metrics);
}

int main(int argc, char **argv)
{
    full = argc > 1 && strcmp(argv[1], "full") == 0;
    if (argc > 2) cmocka_set_test_filter(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sources_add_up_everywhere),
        cmocka_unit_test(one_source_is_a_run_without_a_mixture),
        cmocka_unit_test(a_source_has_its_own_losses),
        cmocka_unit_test(lines_name_the_sources),
    };
    return cmocka_run_group_tests(tests, make_data, tear_down);
}
