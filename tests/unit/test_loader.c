/* tests/unit/test_loader.c – the data loader: what the batches of each kind of data hold, and
 * their order.
 *
 * A batch is checked by laws that hold for every kind of data (check_laws), then by what each kind
 * must deliver. Real files are used where they are found; without them that test is skipped.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "data_help.h"

static void test_permutation_is_a_bijection(void **state)
{
    (void)state;
    enum { MOST = 1300 };
    for (uint64_t n = 1; n <= MOST; n += n < 70 ? 1 : 41) {
        ts__permutation p;
        bool seen[MOST] = {false};
        ts__permutation_init(&p, n, 42, n % 3);
        for (uint64_t i = 0; i < n; i++) {
            uint64_t to = ts__permutation_at(&p, i);
            assert_true(to < n && !seen[to]);
            seen[to] = true;
        }
    }
}

/* 100 numbers, 4,000 keys: how often i goes to j is 40 each; chi² of 99·99 degrees. */
static void test_permutation_is_even(void **state)
{
    (void)state;
    enum { N = 100, KEYS = 4000 };
    static int count[N][N];
    memset(count, 0, sizeof count);
    int fixed = 0;
    for (uint64_t key = 0; key < KEYS; key++) {
        ts__permutation p;
        ts__permutation_init(&p, N, key / 8, key % 8);
        for (uint64_t i = 0; i < N; i++) {
            uint64_t to = ts__permutation_at(&p, i);
            count[i][to]++;
            fixed += to == i;
        }
    }
    double chi = 0;
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) chi += (count[i][j] - 40.0) * (count[i][j] - 40.0) / 40.0;
    assert_true(chi > 9801 - 700 && chi < 9801 + 700); /* five standard deviations */
    assert_in_range(fixed, KEYS - 320, KEYS + 320);
    ts__permutation huge;
    ts__permutation_init(&huge, (uint64_t)1 << 40, 1, 1);
    assert_true(ts__permutation_at(&huge, ((uint64_t)1 << 40) - 1) < (uint64_t)1 << 40);
}

/* In order, one file: the tokens and labels are the file itself. */
static void test_text_in_order(void **state)
{
    (void)state;
    const char *path = put_counted("t.txt", 107);
    ts_loader_options o = options(TS_DATA_TEXT, &path, 1, 2, 10);
    o.shuffle = false;
    ts_loader *l = open_ok(&o);
    ts_loader_stats stats = ts_loader_stats_of(l);
    assert_int_equal(stats.tokens, 109);
    assert_int_equal(stats.samples, 10);
    assert_int_equal(stats.tail_tokens, 8);
    full_batch f = batch_new(2, 10);
    int64_t at = 0;
    char *text;
    size_t n;
    assert_int_equal(ts_file_read_all(path, 1000, &text, &n, NULL), TS_OK);
    for (int k = 0; k < 5; k++) {
        assert_true(next(l, &f));
        check_laws(&f, 259);
        assert_int_equal(f.b.trained_tokens, 20);
        for (int i = 0; i < 20; i++, at++) {
            assert_int_equal(f.b.tokens[i], at == 0 ? 256 : text[at - 1]);
            assert_int_equal(f.b.labels[i], text[at]);
        }
    }
    assert_false(next(l, &f));
    assert_false(next(l, &f));
    ts_loader_rewind(l);
    assert_true(next(l, &f));
    assert_int_equal(f.b.tokens[0], 256);
    ts_free(text);
    batch_free(&f);
    ts_loader_free(l);
}

/* Shuffled: each epoch has every window once, in an order of its own; 3 epochs of 10 in batches of
 * 4. */
static void test_text_shuffled(void **state)
{
    (void)state;
    const char *path = put_counted("s.txt", 101);
    ts_loader_options o = options(TS_DATA_TEXT, &path, 1, 4, 10);
    o.add_bos = o.add_eos = false;
    o.epochs = 3;
    ts_loader *l = open_ok(&o);
    full_batch f = batch_new(4, 10);
    int64_t order[32];
    int n = 0, differ = 0;
    while (next(l, &f)) {
        check_laws(&f, 259);
        for (int row = 0; row < 4; row++)
            if (f.b.row_ids[row] >= 0) order[n++] = f.b.row_ids[row];
    }
    assert_int_equal(n, 30);
    for (int epoch = 0; epoch < 3; epoch++) {
        unsigned seen = 0;
        for (int i = 0; i < 10; i++) seen |= 1u << order[epoch * 10 + i];
        assert_int_equal(seen, 0x3ff);
        for (int i = 0; i < 10; i++)
            differ += order[epoch * 10 + i] != order[(epoch + 1) % 3 * 10 + i];
    }
    assert_true(differ > 10);
    batch_free(&f);
    ts_loader_free(l);
}

/* Two documents in one window: two segments, and the first's end does not foretell the second. */
static void test_text_two_files(void **state)
{
    (void)state;
    const char *paths[] = {put_text("a.txt", "abcd"), put_text("b.txt", "efgh")};
    ts_loader_options o = options(TS_DATA_TEXT, paths, 2, 1, 11);
    o.shuffle = false;
    ts_loader *l = open_ok(&o);
    full_batch f = batch_new(1, 11);
    assert_true(next(l, &f));
    check_laws(&f, 259);
    static const int32_t tokens[] = {256, 'a', 'b', 'c', 'd', 257, 256, 'e', 'f', 'g', 'h'};
    static const int32_t labels[] = {'a', 'b', 'c', 'd', 257, -1, 'e', 'f', 'g', 'h', 257};
    static const int32_t segments[] = {1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2};
    assert_memory_equal(f.b.tokens, tokens, sizeof tokens);
    assert_memory_equal(f.b.labels, labels, sizeof labels);
    assert_memory_equal(f.b.segments, segments, sizeof segments);
    batch_free(&f);
    ts_loader_free(l);
}

/* Training and evaluation together are the file, and share no token. */
static void test_text_split(void **state)
{
    (void)state;
    const char *path = put_counted("split.txt", 1000);
    ts_loader_options o = options(TS_DATA_TEXT, &path, 1, 3, 16);
    o.add_bos = o.add_eos = false;
    o.eval_fraction = 0.1;
    ts_loader *train = open_ok(&o);
    assert_int_equal(ts_loader_stats_of(train).tokens, 900);
    o.split = TS_SPLIT_EVAL;
    ts_loader *eval = open_ok(&o);
    assert_int_equal(ts_loader_stats_of(eval).tokens, 100);
    assert_int_equal(ts_loader_stats_of(eval).samples, 7);
    full_batch f = batch_new(3, 16);
    char *text;
    size_t n;
    assert_int_equal(ts_file_read_all(path, 2000, &text, &n, NULL), TS_OK);
    int64_t trained = 0, at = 900;
    int batches = 0;
    for (; next(eval, &f); batches++) {
        check_laws(&f, 259);
        trained += f.b.trained_tokens;
        for (int i = 0; i < 48; i++)
            if (f.b.segments[i]) assert_int_equal(f.b.tokens[i], text[at++]);
    }
    assert_int_equal(batches, 3);
    assert_int_equal(trained, 99);
    assert_int_equal(at, 1000);
    ts_free(text);
    batch_free(&f);
    ts_loader_free(train);
    ts_loader_free(eval);
}

static void test_synthetic(void **state)
{
    (void)state;
    ts_loader_options o = options(TS_DATA_SYNTHETIC, NULL, 0, 4, 64);
    o.vocab_size = 1000;
    ts_loader *l = open_ok(&o);
    o.seed = 1;
    ts_loader *other = open_ok(&o);
    full_batch f = batch_new(4, 64);
    assert_true(next(l, &f));
    check_laws(&f, 1000);
    assert_int_equal(f.b.trained_tokens, 256);
    int high = 0;
    for (int i = 0; i < 256; i++) high += f.b.tokens[i] >= 500;
    assert_in_range(high, 88, 168); /* five standard deviations around one half */
    uint64_t first = hash_batch(&f);
    for (int i = 0; i < 5; i++) {
        assert_true(next(l, &f));
        assert_int_equal(hash_batch(&f), first);
    }
    assert_true(next(other, &f));
    assert_int_not_equal(hash_batch(&f), first);
    batch_free(&f);
    ts_loader_free(l);
    ts_loader_free(other);
}

static void test_tokens(void **state)
{
    (void)state;
    uint32_t ids[40];
    for (uint32_t i = 0; i < 40; i++) ids[i] = (i * 1777u) % 50000u;
    for (int wide = 0; wide < 2; wide++) {
        const char *path =
            put_tokens("t.bin", wide ? 20240801 : 20240520, wide ? 7 : 1, 40, ids, 40);
        ts_loader_options o = options(TS_DATA_TOKENS, &path, 1, 3, 13);
        o.tokenizer = NULL;
        o.vocab_size = 50257;
        o.shuffle = false;
        ts_loader *l = open_ok(&o);
        full_batch f = batch_new(3, 13);
        assert_true(next(l, &f));
        check_laws(&f, 50257);
        for (int i = 0; i < 39; i++) {
            assert_int_equal(f.b.tokens[i], ids[i]);
            assert_int_equal(f.b.labels[i], ids[i + 1]);
        }
        assert_false(next(l, &f));
        batch_free(&f);
        ts_loader_free(l);
    }
}

/* Every row of the file exactly once an epoch, whatever the packing; counts add up. */
static void test_jsonl_packing(void **state)
{
    (void)state;
    const char *path = put_rows("rows.jsonl", 100, 0);
    static const ts_packing packings[] = {TS_PACK_NONE, TS_PACK_FIRST_FIT, TS_PACK_CONCAT};
    int64_t padding[3];
    for (int p = 0; p < 3; p++) {
        ts_loader_options o = options(TS_DATA_JSONL, &path, 1, 4, 24);
        o.packing = packings[p];
        ts_loader *l = open_ok(&o);
        ts_loader_stats stats = ts_loader_stats_of(l);
        assert_int_equal(stats.samples, 100);
        assert_int_equal(stats.tokens, 100 * 5.5 + 200);
        assert_int_equal(stats.bad_rows, 0);
        full_batch f = batch_new(4, 24);
        int64_t trained = 0, begins = 0, ends = 0;
        padding[p] = 0;
        while (next(l, &f)) {
            check_laws(&f, 259);
            trained += f.b.trained_tokens;
            padding[p] += f.b.padding;
            for (int i = 0; i < 96; i++) {
                begins += f.b.tokens[i] == 256;
                ends += f.b.labels[i] == 257;
            }
        }
        assert_int_equal(trained, stats.tokens - 100); /* all but each sample's first token */
        assert_int_equal(begins, 100);
        assert_int_equal(ends, 100);
        batch_free(&f);
        ts_loader_free(l);
    }
    assert_true(padding[1] < padding[0] / 3);
    assert_true(padding[1] < 96 + 96); /* whole samples: hardly more than the last batch's */
    assert_true(padding[2] < 96);      /* concat: only the last batch's */
}

static void test_jsonl_segments_limit(void **state)
{
    (void)state;
    const char *path = put_rows("limit.jsonl", 60, 0);
    for (int p = TS_PACK_FIRST_FIT; p <= TS_PACK_CONCAT; p++) {
        ts_loader_options o = options(TS_DATA_JSONL, &path, 1, 2, 40);
        o.packing = (ts_packing)p;
        o.max_segments = 2;
        ts_loader *l = open_ok(&o);
        full_batch f = batch_new(2, 40);
        int64_t trained = 0;
        while (next(l, &f)) {
            check_laws(&f, 259);
            trained += f.b.trained_tokens;
            for (int i = 0; i < 80; i++) assert_in_range(f.b.segments[i], 0, 2);
        }
        assert_int_equal(trained, ts_loader_stats_of(l).tokens - 60);
        batch_free(&f);
        ts_loader_free(l);
    }
}

static void test_jsonl_columns(void **state)
{
    (void)state;
    const char *path = put_text(
        "c.jsonl",
        "\xef\xbb\xbf{\"q\": \"ab\", \"a\": \"c\\u00e9\"}\r\n\n{\"a\": \"\", \"q\": \"x\"}");
    const char *columns[] = {"q", "a"};
    ts_loader_options o = options(TS_DATA_JSONL, &path, 1, 2, 9);
    o.columns = columns;
    o.n_columns = 2;
    o.column_separator = "->";
    o.packing = TS_PACK_NONE;
    o.shuffle = false;
    ts_loader *l = open_ok(&o);
    full_batch f = batch_new(2, 9);
    assert_true(next(l, &f));
    static const int32_t tokens[] = {256, 'a', 'b', '-', '>', 'c', 0xc3, 0xa9, 257,
                                     256, 'x', '-', '>', 257, 258, 258,  258,  258};
    assert_memory_equal(f.b.tokens, tokens, sizeof tokens);
    check_laws(&f, 259);
    batch_free(&f);
    ts_loader_free(l);
}

/* Each row is on one side, and stays there when the file grows. */
static void test_jsonl_split(void **state)
{
    (void)state;
    int64_t before[2], after[2];
    for (int grown = 0; grown < 2; grown++) {
        const char *path = put_rows("split.jsonl", grown ? 1000 : 500, 3);
        ts_loader_options o = options(TS_DATA_JSONL, &path, 1, 4, 64);
        o.eval_fraction = 0.2;
        for (int side = 0; side < 2; side++) {
            o.split = side ? TS_SPLIT_EVAL : TS_SPLIT_TRAIN;
            ts_loader *l = open_ok(&o);
            (grown ? after : before)[side] = ts_loader_stats_of(l).samples;
            ts_loader_free(l);
        }
    }
    assert_int_equal(before[0] + before[1], 500);
    assert_int_equal(after[0] + after[1], 1000);
    assert_in_range(before[1], 55, 145);
    assert_true(after[1] >= before[1] && after[0] >= before[0]);
    const char *path = put_rows("tiny.jsonl", 1, 3);
    ts_loader_options o = options(TS_DATA_JSONL, &path, 1, 4, 64);
    o.eval_fraction = 1e-9;
    o.split = TS_SPLIT_EVAL;
    open_fails(&o, TS_INVALID_ARGUMENT, "1 usable rows leave none for evaluation",
               "another fraction");
}

static void test_next_allocates_nothing(void **state)
{
    (void)state;
    static const uint32_t ids[100] = {1};
    const char *paths[] = {put_counted("al.txt", 500),
                           put_tokens("al.bin", 20240520, 1, 100, ids, 100)};
    for (int kind = 0; kind < 3; kind++) {
        ts_loader_options o = options(kind == 0   ? TS_DATA_TEXT
                                      : kind == 1 ? TS_DATA_TOKENS
                                                  : TS_DATA_SYNTHETIC,
                                      &paths[kind % 2], 1, 3, 20);
        o.epochs = 0;
        ts_loader *l = open_ok(&o);
        full_batch f = batch_new(3, 20);
        uint64_t before = ts_alloc_count();
        for (int i = 0; i < 200; i++) assert_true(next(l, &f));
        assert_int_equal(ts_alloc_count(), before);
        batch_free(&f);
        ts_loader_free(l);
    }
}

static const char *shared_file(const char *name)
{
    static char path[1024];
    const char *folder = getenv("TESSERA_SHARED");
    snprintf(path, sizeof path, "%s/data/%s", folder ? folder : "../shared", name);
    if (ts_path_kind_of(path) == TS_PATH_FILE) return path;
    print_message("SKIP: %s is not here (TESSERA_SHARED names the folder)\n", path);
    return NULL;
}

static void test_tinyshakespeare(void **state)
{
    (void)state;
    const char *path = shared_file("tinyshakespeare.txt");
    if (!path) skip();
    ts_loader_options o = options(TS_DATA_TEXT, &path, 1, 16, 256);
    o.add_bos = o.add_eos = false;
    o.eval_fraction = 0.1;
    ts_loader *l = open_ok(&o);
    int64_t size = 1115394, eval = size / 10;
    assert_int_equal(ts_loader_stats_of(l).tokens, size - eval);
    full_batch f = batch_new(16, 256);
    int64_t trained = 0;
    while (next(l, &f)) {
        check_laws(&f, 259);
        trained += f.b.trained_tokens;
    }
    assert_int_equal(trained, (size - eval - 1) / 256 * 256);
    ts_loader_free(l);
    o.split = TS_SPLIT_EVAL;
    l = open_ok(&o);
    for (trained = 0; next(l, &f);) trained += f.b.trained_tokens;
    assert_int_equal(trained, eval - 1);
    batch_free(&f);
    ts_loader_free(l);
}

static void test_instructions(void **state)
{
    (void)state;
    const char *path = shared_file("instructions.jsonl");
    if (!path) skip();
    static const char *const columns[] = {"instruction", "context", "response"};
    ts_loader_options o = options(TS_DATA_JSONL, &path, 1, 8, 1024);
    open_fails(&o, TS_DATA_LOSS, "none of the 7473 rows",
               "instruction, context, response, category");
    o.columns = columns;
    o.n_columns = 3;
    ts_loader *l = open_ok(&o);
    ts_loader_stats stats = ts_loader_stats_of(l);
    assert_int_equal(stats.rows, 7473);
    assert_int_equal(stats.samples, 7473);
    full_batch f = batch_new(8, 1024);
    int64_t trained = 0, begins = 0, slots = 0, padding = 0;
    while (next(l, &f)) {
        check_laws(&f, 259);
        trained += f.b.trained_tokens;
        padding += f.b.padding;
        slots += 8 * 1024;
        for (int i = 0; i < 8 * 1024; i++) begins += f.b.tokens[i] == 256;
    }
    assert_int_equal(begins, 7473);
    assert_true(padding * 100 < slots * 7); /* rows of half the length on average: 6.4 % */
    if (stats.cut_rows == 0) assert_int_equal(trained, stats.tokens - 7473);
    batch_free(&f);
    ts_loader_free(l);
}

/* 5 GB, nearly all of it a hole: opened at once, read behind 4 GiB, held in no memory. */
static void test_text_larger_than_32_bits(void **state)
{
    (void)state;
    enum { SEQUENCE = 1000 };
    const int64_t size = 5000000001, last = size / SEQUENCE - 1;
    const char *path = put_text("large.txt", "begin");
    if (truncate(path, (off_t)size) != 0) {
        print_message("SKIP: the temporary folder cannot hold a sparse file of 5 GB\n");
        skip();
    }
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseeko(file, (off_t)(last * SEQUENCE), SEEK_SET), 0);
    assert_int_equal(fwrite("the end", 1, 7, file), 7);
    assert_int_equal(fclose(file), 0);
    ts_loader_options o = options(TS_DATA_TEXT, &path, 1, 1, SEQUENCE);
    o.add_bos = o.add_eos = false;
    ts_loader *l = open_ok(&o);
    full_batch f = batch_new(1, SEQUENCE);
    for (int i = 0; i < 100; i++) assert_true(next(l, &f));
    ts_loader_free(l);
    o.shuffle = false;
    l = open_ok(&o);
    assert_int_equal(ts_loader_stats_of(l).samples, last + 1);
    assert_int_equal(readers_of(l, 0), 256);
    assert_int_equal(go_to_row(l, last, 256), TS_OK);
    assert_true(next(l, &f));
    check_laws(&f, 259);
    for (int i = 0; i < 7; i++) assert_int_equal(f.b.tokens[i], "the end"[i]);
    assert_int_equal(f.b.row_ids[0], last);
    assert_false(next(l, &f));
    batch_free(&f);
    ts_loader_free(l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_permutation_is_a_bijection),
        cmocka_unit_test(test_permutation_is_even),
        cmocka_unit_test(test_text_in_order),
        cmocka_unit_test(test_text_shuffled),
        cmocka_unit_test(test_text_two_files),
        cmocka_unit_test(test_text_split),
        cmocka_unit_test(test_text_larger_than_32_bits),
        cmocka_unit_test(test_synthetic),
        cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_jsonl_packing),
        cmocka_unit_test(test_jsonl_segments_limit),
        cmocka_unit_test(test_jsonl_columns),
        cmocka_unit_test(test_jsonl_split),
        cmocka_unit_test(test_next_allocates_nothing),
        cmocka_unit_test(test_tinyshakespeare),
        cmocka_unit_test(test_instructions),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
