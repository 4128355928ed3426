/* test_resume_mesh.c – a run that goes on on other devices, or with another number of rows a step, reads the same rows.
 *
 * A chain of 1 → 4 → 2 → 8 devices with as many rows a step as the unbroken run on one: the hash of all row numbers so
 * far is the same behind each of fifty steps, and losses differ by the order of sums alone. Where the rows of a step
 * change, the list of rows does not: it is compared row by row, through the same configuration, state and reading
 * ahead as a run has.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

#include "data/prefetch.h"
#include "resume_help.h"
#include "train/config.h"

enum { STEPS = 50 };

static int make_data(void **state)
{
    if (set_up(state) != 0) return -1;
    put_book("book.txt", 1500, 1);
    put_jsonl("rows.jsonl", 420, 2, 7, false);
    put_jsonl("web.jsonl", 260, 4, 7, false);
    put_jsonl("code.jsonl", 150, 6, 5, false);
    put_ids("ids.bin", 5600, 8);
    return 0;
}

typedef struct kind {
    const char *name, *words; /* @ is the folder of the data */
} kind;

static const kind kinds[] = {
    {"text", "dataset_type=text dataset_path=@/book.txt"},
    {"fitted", "dataset_type=jsonl dataset_path=@/rows.jsonl"},
    {"cut", "dataset_type=jsonl dataset_path=@/rows.jsonl grain_packing_type=concat_then_split"},
    {"tokens", "dataset_type=tokens dataset_path=@/ids.bin"},
    {"mixture", "dataset_type=jsonl dataset_mixture=[web:0.7:@/web.jsonl,code:0.3:@/code.jsonl]"},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static void words_of(const char *run, const kind *k, const char *more, char to[TEXT])
{
    static const char small[] =
        "base.yml base_emb_dim=32 base_num_query_heads=8 base_num_kv_heads=4 head_dim=4 "
        "base_mlp_dim=48 base_num_decoder_layers=2 vocab_size=260 max_target_length=32 "
        "learning_rate=1e-2 learning_rate_schedule_steps=50 threads=1 num_epoch=9 eval_fraction=0.1 "
        "eval_interval=10 eval_per_device_batch_size=1 data_threads=3 engine=cpu";
    char joined[TEXT];
    snprintf(joined, sizeof joined, "%s %s base_output_directory=%s run_name=%s %s", small,
             k->words, root, run, more);
    size_t n = 0;
    for (const char *at = joined; *at && n + 80 < TEXT; at++) {
        if (*at == '@')
            n += (size_t)sprintf(to + n, "%s", root);
        else
            to[n++] = *at;
    }
    to[n] = 0;
}

/* ---- other devices --------------------------------------------------------------------------- */

/* Eight rows a step everywhere, in one micro-batch or two. */
static const struct {
    int steps; /* reached there */
    const char *words;
} chain[] = {
    {13, "cpu_devices=1 per_device_batch_size=8"},
    {25, "cpu_devices=4 ici_fsdp_parallelism=2 ici_tensor_parallelism=2 per_device_batch_size=1 "
         "gradient_accumulation_steps=2"},
    {37, "cpu_devices=2 ici_data_parallelism=2 ici_fsdp_parallelism=1 per_device_batch_size=4"},
    {50, "cpu_devices=8 ici_data_parallelism=2 ici_fsdp_parallelism=2 ici_tensor_parallelism=2 "
         "per_device_batch_size=1"},
};
enum { LINKS = sizeof chain / sizeof *chain };

static double go_through(const kind *k, const char *dtype)
{
    char whole[64], moved[64], words[TEXT], more[400];
    snprintf(whole, sizeof whole, "%s-%s-whole", k->name, dtype);
    snprintf(moved, sizeof moved, "%s-%s-moved", k->name, dtype);
    snprintf(more, sizeof more, "dtype=%s steps=%d per_device_batch_size=8", dtype, STEPS);
    words_of(whole, k, more, words);
    expect_train(TS_OK, words, lives);
    for (int i = 0; i < LINKS; i++) {
        snprintf(more, sizeof more, "dtype=%s steps=%d %s", dtype, chain[i].steps, chain[i].words);
        words_of(moved, k, more, words);
        expect_train(TS_OK, words, lives);
        if (i && !strstr(said(), "what follows is the unbroken run up to rounding"))
            fail_msg("%s: nothing is said of the other mesh\n%s", moved, said());
    }
    json_t *a = metrics_of(whole), *b = metrics_of(moved);
    double worst = 0;
    for (int step = 0; step < STEPS; step++) {
        const double x = loss_of(a, step), y = loss_of(b, step);
        assert_non_null(step_of(b, step));
        if (strcmp(order_of(a, step), order_of(b, step)) != 0)
            fail_msg("%s: other rows at step %d", moved, step);
        worst = fmax(worst, fabs(x - y));
    }
    for (int step = 0; step < chain[0].steps; step++)
        if (loss_of(a, step) != loss_of(b, step)) fail_msg("%s: step %d differs", moved, step);
    assert_true(loss_of(a, STEPS - 1) < loss_of(a, 0) - 0.5);
    json_decref(a);
    json_decref(b);
    return worst;
}

static void the_same_run_on_other_devices(void **state)
{
    (void)state;
    for (int i = 0; i < KINDS; i++) {
        const double worst = go_through(&kinds[i], "float32");
        printf("%-8s float32   1 → 4 → 2 → 8 devices: losses at most %.1e apart\n", kinds[i].name,
               worst);
        assert_true(worst <= 1e-4);
    }
    printf("%-8s bfloat16  1 → 4 → 2 → 8 devices: losses at most %.1e apart\n", kinds[1].name,
           go_through(&kinds[1], "bfloat16"));
}

/* ---- other rows a step ----------------------------------------------------------------------- */

typedef struct rows {
    int64_t id[4000];
    int32_t source[4000];
    int n;
} rows;

/* Reads `batches` steps' rows (−1: to the end) of a configuration's data, from *state on (NULL: from the start), and
 * leaves where it stands there. */
static void read_rows(const kind *k, const char *more, int batches, json_t **position, rows *out)
{
    char text[TEXT], *at = NULL;
    const char *word[MAX_WORDS];
    int n = 0;
    ts_error err = {0};
    ts_config *c = NULL;
    ts_tokenizer *byte = NULL;
    ts_loader *loader = NULL;
    ts_prefetch *ahead = NULL;
    ts_loader_options o;
    ts_loader_state *state = NULL;
    words_of("rows", k, more, text);
    for (char *w = strtok_r(text, " ", &at); w; w = strtok_r(NULL, " ", &at)) word[n++] = w;
    if (ts_config_load_words(word, n, &c, &err) != TS_OK) fail_msg("%s", err.msg);
    assert_int_equal(ts_tokenizer_open_byte(&byte, &err), TS_OK);
    ts_config_loader_options(c, TS_SPLIT_TRAIN, byte, &o);
    o.rows = c->batch_rows;
    if (ts_loader_open(&o, &loader, &err) != TS_OK) fail_msg("%s", err.msg);
    assert_int_equal(ts_prefetch_open(loader, 3, 2, &ahead, &err), TS_OK);
    if (*position) {
        assert_int_equal(ts_loader_state_from_json(*position, &state, &err), TS_OK);
        if (ts_prefetch_set_state(ahead, state, &err) != TS_OK) fail_msg("%s", err.msg);
        ts_loader_state_free(state);
    }
    for (int i = 0; i != batches; i++) {
        const ts_batch *b;
        const ts_status status = ts_prefetch_next(ahead, &b, NULL, &err);
        if (status == TS_OUT_OF_RANGE) break;
        if (status != TS_OK) fail_msg("%s", err.msg);
        for (int64_t row = 0; row < o.rows; row++) {
            if (b->row_ids[row] < 0) continue;
            assert_true(out->n < 4000);
            out->source[out->n] = b->sources[row];
            out->id[out->n++] = b->row_ids[row];
        }
    }
    assert_int_equal(ts_loader_state_new(loader, &state, &err), TS_OK);
    ts_prefetch_get_state(ahead, state);
    json_decref(*position);
    assert_int_equal(ts_loader_state_to_json(state, position, &err), TS_OK);
    ts_loader_state_free(state);
    ts_prefetch_close(ahead);
    ts_loader_free(loader);
    ts_tokenizer_free(byte);
    ts_config_free(c);
}

/* Three epochs to their very end, with every part read in steps of another size. */
static void the_list_of_rows_knows_no_batch(void **state)
{
    static const char *const size[] = {
        "cpu_devices=1 per_device_batch_size=8", "cpu_devices=2 per_device_batch_size=3",
        "cpu_devices=1 per_device_batch_size=1",
        "cpu_devices=4 per_device_batch_size=4 gradient_accumulation_steps=2",
        "cpu_devices=1 per_device_batch_size=5"};
    (void)state;
    for (int i = 0; i < KINDS; i++) {
        rows *a = calloc(1, sizeof *a), *b = calloc(1, sizeof *b);
        json_t *end = NULL, *position = NULL;
        read_rows(&kinds[i], "per_device_batch_size=8 num_epoch=3", -1, &end, a);
        for (int part = 0; part < 15; part++) {
            char more[200];
            snprintf(more, sizeof more, "%s num_epoch=3", size[part % 5]);
            read_rows(&kinds[i], more, part < 14 ? 3 : -1, &position, b);
        }
        printf("%-8s %d rows\n", kinds[i].name, a->n);
        assert_true(a->n > 200);
        assert_int_equal(a->n, b->n);
        for (int row = 0; row < a->n; row++)
            if (a->id[row] != b->id[row] || a->source[row] != b->source[row])
                fail_msg("%s: row %d is %lld instead of %lld", kinds[i].name, row,
                         (long long)b->id[row], (long long)a->id[row]);
        json_decref(end);
        json_decref(position);
        free(a);
        free(b);
    }
}

/* A real run whose steps grow from 8 rows to 12: it goes on at the same row, and says so. */
static void a_run_with_other_rows_a_step(void **state)
{
    char words[TEXT];
    (void)state;
    words_of("grows", &kinds[4], "steps=9 per_device_batch_size=8", words);
    expect_train(TS_OK, words, lives);
    words_of("grows", &kinds[4], "steps=15 per_device_batch_size=12", words);
    expect_train(TS_OK, words, lives);
    if (!strstr(said(), "a step has 12 rows from here on, those of the checkpoint had 8"))
        fail_msg("%s", said());
    words_of("straight", &kinds[4], "steps=18 per_device_batch_size=8", words);
    expect_train(TS_OK, words, lives);
    json_t *grows = metrics_of("grows"), *straight = metrics_of("straight");
    assert_string_equal(order_of(grows, 8), order_of(straight, 8));   /* 72 rows */
    assert_string_equal(order_of(grows, 10), order_of(straight, 11)); /* 72 + 24 = 96 */
    assert_string_equal(order_of(grows, 14), order_of(straight, 17)); /* 72 + 72 = 144 */
    assert_true(strcmp(order_of(grows, 9), order_of(straight, 9)) != 0);
    json_decref(grows);
    json_decref(straight);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_run_on_other_devices),
        cmocka_unit_test(the_list_of_rows_knows_no_batch),
        cmocka_unit_test(a_run_with_other_rows_a_step),
    };
    return cmocka_run_group_tests(tests, make_data, tear_down);
}
