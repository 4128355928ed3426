/* tests/unit/test_loader_packing.c – how full packed rows are, on real data where it is found.
 *
 * Prints the share of padding for each file, sequence length and packing, over one epoch and over
 * three, in batches of 8 rows; docs/data.md quotes it. The bounds are what first fit over the rows of
 * a whole batch, with as many waiting samples, left on the same data.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "data_help.h"

typedef struct filled {
    int64_t rows, padding;
} filled;

static filled fill(ts_loader_options o, int64_t epochs)
{
    filled sum = {0, 0};
    o.epochs = epochs;
    ts_loader *l = open_ok(&o);
    full_batch f = batch_new(o.rows, o.sequence);
    int64_t trained = 0;
    while (next(l, &f)) {
        sum.rows += o.rows;
        sum.padding += f.b.padding;
        trained += f.b.trained_tokens;
    }
    /* Nothing is lost: all but the first token of each sample is trained, or of each piece. */
    ts_loader_stats s = ts_loader_stats_of(l);
    if (o.packing != TS_PACK_CONCAT) assert_int_equal(trained, (s.tokens - s.samples) * epochs);
    assert_true(sum.rows * o.sequence - sum.padding >= s.tokens * epochs - s.samples * epochs);
    batch_free(&f);
    ts_loader_free(l);
    return sum;
}

static double percent(filled f, int64_t sequence)
{
    return 100.0 * (double)f.padding / (double)(f.rows * sequence);
}

static const char *const packings[] = {"none", "whole", "concat"};

static void print_line(const char *name, ts_loader_options o, filled one, filled three)
{
    print_message("%-20s %6lld  %-6s  %7lld %6.2f %%  %7lld %6.2f %%\n", name,
                  (long long)o.sequence, packings[o.packing], (long long)one.rows,
                  percent(one, o.sequence), (long long)three.rows, percent(three, o.sequence));
}

static void test_real_data(void **state)
{
    (void)state;
    static const char *const instructions[] = {"instruction", "context", "response"};
    static const char *const questions[] = {"question", "answer"};
    /* Padding over many epochs that first fit over 8 rows left at 512, 1024, 2048 and 4096. */
    static const struct {
        const char *name;
        const char *const *columns;
        size_t n_columns;
        double before[4];
    } files[] = {{"instructions.jsonl", instructions, 3, {12.57, 7.81, 3.97, 1.99}},
                 {"gsm8k_test.jsonl", questions, 2, {10.47, 8.00, 4.44, 2.65}}};
    const char *folder = getenv("TESSERA_SHARED");
    bool any = false;
    print_message("file                 length  packing  rows, padding of 1 epoch, of 3\n");
    for (int k = 0; k < 2; k++) {
        char path[1024];
        const char *paths[] = {path};
        snprintf(path, sizeof path, "%s/data/%s", folder ? folder : "../shared", files[k].name);
        if (ts_path_kind_of(path) != TS_PATH_FILE) {
            print_message("SKIP: %s is not here (TESSERA_SHARED names the folder)\n", path);
            continue;
        }
        any = true;
        for (int i = k == 0; i < 4 - (k == 0); i++)
            for (int p = TS_PACK_FIRST_FIT; p <= TS_PACK_CONCAT; p++) {
                ts_loader_options o = options(TS_DATA_JSONL, paths, 1, 8, 512 << i);
                o.columns = files[k].columns;
                o.n_columns = files[k].n_columns;
                o.packing = (ts_packing)p;
                filled one = fill(o, 1), three = fill(o, 3);
                print_line(files[k].name, o, one, three);
                assert_true(percent(three, o.sequence) < files[k].before[i]);
                if (p == TS_PACK_CONCAT) assert_true(percent(three, o.sequence) < 2);
            }
    }
    if (!any) skip();
}

/* Lengths evenly between 8 and 108 in rows of 512: as good as full but for the readers' ends. */
static void test_made_data(void **state)
{
    (void)state;
    const char *path = put_numbered("pack.jsonl", 2000, 100);
    ts_loader_options o = options(TS_DATA_JSONL, &path, 1, 8, 512);
    filled one = fill(o, 1), three = fill(o, 3);
    print_line("made", o, one, three);
    assert_true(percent(three, 512) < 1.5);
    o.max_segments = 6;
    filled few = fill(o, 3);
    print_line("made, 6 segments", o, few, few);
    /* 6 samples of 58 are 348 of 512 tokens; the longest go together. */
    assert_true(percent(few, 512) < 40);
    o.packing = TS_PACK_NONE;
    filled alone = fill(o, 1);
    print_line("made", o, alone, alone);
    assert_int_equal(alone.rows, 2000);
}

/* Far more samples in a row than wait at once. */
static void test_many_in_a_row(void **state)
{
    (void)state;
    const char *path = put_numbered("many.jsonl", 6000, 6);
    ts_loader_options o = options(TS_DATA_JSONL, &path, 1, 2, 1024);
    filled many = fill(o, 12);
    print_line("short, 12 epochs", o, many, many);
    assert_true(percent(many, 1024) < 5); /* the last rows of 64 readers */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_real_data),
        cmocka_unit_test(test_made_data),
        cmocka_unit_test(test_many_in_a_row),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
