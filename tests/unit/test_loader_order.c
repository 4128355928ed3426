/* tests/unit/test_loader_order.c – the order of rows depends on the data, seed and epoch alone.
 *
 * For every kind of data, packing and mixture the same list of rows comes out whatever the rows of
 * a batch, with the same position at the end. The order is the one that is documented: rows of one
 * sample follow the epoch's permutation, a reader packs its own samples and each once an epoch,
 * mixtures keep their shares to a row. Only the very last batch holds rows of padding.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "data_help.h"

enum { MOST_ROWS = 20000 };

typedef struct row_list {
    uint64_t *hash;
    int64_t *id;
    int32_t *source;
    int64_t n, padded; /* rows of padding */
    char *end;         /* the position there */
    int ended_by;
} row_list;

/* All rows to the end of the data, or most of them. */
static row_list list_rows(ts_loader_options o, int64_t rows, int64_t most)
{
    row_list list = {malloc(MOST_ROWS * 8), malloc(MOST_ROWS * 8), malloc(MOST_ROWS * 4)};
    o.rows = rows;
    ts_loader *l = open_ok(&o);
    full_batch f = batch_new(rows, o.sequence);
    bool padded = false;
    while (list.n < most && next(l, &f)) {
        assert_false(padded); /* that was the last */
        assert_int_equal(ts_loader_ended_by(l), -1);
        check_laws(&f, o.vocab_size ? o.vocab_size : 259);
        for (int64_t i = 0; i < rows; i++) {
            if (f.b.row_ids[i] < 0) {
                padded = true;
                list.padded++;
                continue;
            }
            assert_false(padded); /* padding is behind all rows */
            assert_true(list.n < MOST_ROWS);
            list.hash[list.n] = hash_row(&f, i);
            list.source[list.n] = f.b.sources[i];
            list.id[list.n++] = f.b.row_ids[i];
        }
    }
    if (list.n < most) assert_false(next(l, &f));
    list.ended_by = ts_loader_ended_by(l);
    list.end = position_text(l);
    batch_free(&f);
    ts_loader_free(l);
    return list;
}

static void list_free(row_list *list)
{
    free(list->hash);
    free(list->id);
    free(list->source);
    free(list->end);
}

/* The same rows and end for 1, 2, 3, 8, 16, 32 and 100 rows a batch. Returns how many. */
static int64_t same_for_all_rows(const ts_loader_options *o)
{
    static const int64_t rows[] = {2, 3, 8, 16, 32, 100};
    row_list one = list_rows(*o, 1, MOST_ROWS);
    assert_int_equal(one.padded, 0);
    assert_true(one.n > 100);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        row_list list = list_rows(*o, rows[i], MOST_ROWS);
        assert_int_equal(list.n, one.n);
        assert_true(list.padded < rows[i]);
        for (int64_t k = 0; k < one.n; k++) {
            if (list.hash[k] != one.hash[k]) print_message("row %lld\n", (long long)k);
            assert_int_equal(list.hash[k], one.hash[k]);
            assert_int_equal(list.source[k], one.source[k]);
        }
        assert_string_equal(list.end, one.end);
        assert_int_equal(list.ended_by, one.ended_by);
        list_free(&list);
    }
    int64_t n = one.n;
    list_free(&one);
    return n;
}

static void test_same_rows_whatever_the_batch(void **state)
{
    (void)state;
    const char *paths[] = {put_counted("o1.txt", 3000), put_counted("o2.txt", 2777)};
    const char *rows = put_numbered("o.jsonl", 700, 30);
    uint32_t ids[900];
    for (uint32_t i = 0; i < 900; i++) ids[i] = i * 7919u % 5000u;
    const char *bin = put_tokens("o.bin", 20240801, 7, 900, ids, 900);
    for (int shuffle = 0; shuffle < 2; shuffle++) {
        ts_loader_options o = options(TS_DATA_TEXT, paths, 2, 1, 11);
        o.shuffle = shuffle;
        o.epochs = 2;
        same_for_all_rows(&o);
        o = options(TS_DATA_TOKENS, &bin, 1, 1, 3);
        o.tokenizer = NULL;
        o.vocab_size = 5000;
        o.shuffle = shuffle;
        o.epochs = 3;
        same_for_all_rows(&o);
        for (int p = TS_PACK_NONE; p <= TS_PACK_CONCAT; p++) {
            o = options(TS_DATA_JSONL, &rows, 1, 1, 40);
            o.shuffle = shuffle;
            o.packing = (ts_packing)p;
            for (int limit = 0; limit < 2; limit++) {
                o.epochs = 1 + limit;
                o.max_segments = limit ? 2 : -1;
                same_for_all_rows(&o);
            }
        }
    }
}

/* Longer than a reader's window: what is read in pieces is what is read at once. */
static void test_long_windows(void **state)
{
    (void)state;
    const char *paths[] = {put_counted("l1.txt", 9000), put_counted("l2.txt", 15000)};
    ts_loader_options o = options(TS_DATA_TEXT, paths, 2, 1, 10000);
    o.shuffle = false;
    o.split = TS_SPLIT_EVAL;
    ts_loader *l = open_ok(&o);
    full_batch f = batch_new(1, 10000);
    int32_t *all = malloc(24004 * sizeof *all);
    int64_t at = 0, n = 0;
    for (int k = 0; k < 2; k++) {
        char *text;
        size_t size;
        assert_int_equal(ts_file_read_all(paths[k], 20000, &text, &size, NULL), TS_OK);
        all[n++] = 256;
        for (size_t i = 0; i < size; i++) all[n++] = (unsigned char)text[i];
        all[n++] = 257;
        ts_free(text);
    }
    while (next(l, &f)) {
        check_laws(&f, 259);
        for (int64_t i = 0; i < 10000 && f.b.segments[i]; i++, at++) {
            assert_int_equal(f.b.tokens[i], all[at]);
            assert_int_equal(f.b.labels[i], at == 9001 || at + 1 == n ? -1 : all[at + 1]);
        }
    }
    assert_true(at + 1 >= n);
    free(all);
    batch_free(&f);
    ts_loader_free(l);
}

/* A row of one sample is the ordinal's: place i mod samples of the permutation of epoch i /
 * samples. */
static void test_order_is_the_permutation(void **state)
{
    (void)state;
    const char *rows = put_numbered("perm.jsonl", 333, 3);
    ts_loader_options o = options(TS_DATA_JSONL, &rows, 1, 1, 16);
    o.packing = TS_PACK_NONE;
    o.epochs = 3;
    o.seed = 11;
    row_list list = list_rows(o, 7, MOST_ROWS);
    assert_int_equal(list.n, 999);
    for (int64_t i = 0; i < list.n; i++) {
        ts__permutation p;
        ts__permutation_init(&p, 333, 11, (uint64_t)i / 333);
        assert_int_equal(list.id[i], ts__permutation_at(&p, (uint64_t)i % 333));
    }
    list_free(&list);
}

/* The hash tells orders apart that differ in two rows, and stays once the rows are the same. */
static void test_order_hash(void **state)
{
    (void)state;
    const char *path = put_numbered("hash.jsonl", 50, 3);
    ts_loader_options o = options(TS_DATA_JSONL, &path, 1, 1, 16);
    o.packing = TS_PACK_NONE;
    uint64_t hash[40][21];
    full_batch f = batch_new(1, 16);
    int64_t id[40][20];
    for (int seed = 0; seed < 40; seed++) {
        o.seed = (uint64_t)seed / 2; /* each seed twice */
        ts_loader *l = open_ok(&o);
        ts_loader_state *s = state_of(l);
        for (int i = 0; i <= 20; i++) {
            ts_loader_get_state(l, s);
            hash[seed][i] = ts_loader_state_order_hash(s);
            assert_int_equal(ts_loader_state_rows(s), i);
            assert_true(next(l, &f));
            if (i < 20) id[seed][i] = f.b.row_ids[0];
        }
        ts_loader_state_free(s);
        ts_loader_free(l);
    }
    for (int a = 0; a < 40; a++)
        for (int b = 0; b < a; b++)
            for (int i = 1; i <= 20; i++) {
                bool same = memcmp(id[a], id[b], (size_t)i * sizeof **id) == 0;
                assert_int_equal(hash[a][i] == hash[b][i], same);
            }
    batch_free(&f);
}

/* Samples of each row, told by the number in their text. */
static int samples_of_row(const full_batch *f, int64_t row, int64_t *number)
{
    int n = 0;
    const int32_t *tokens = f->b.tokens + row * f->sequence;
    const int32_t *positions = f->b.positions + row * f->sequence;
    const int32_t *segments = f->b.segments + row * f->sequence;
    for (int64_t i = 0; i < f->sequence; i++) {
        if (segments[i] == 0 || positions[i] != 0 || tokens[i] != 256) continue;
        int64_t value = 0;
        for (int64_t k = i + 1; tokens[k] != ':'; k++) value = value * 10 + tokens[k] - '0';
        number[n++] = value;
    }
    return n;
}

/* Each reader packs its own samples, all of them once an epoch; and a row's turn is its reader's
 * until the first of them is done. */
static void test_readers_pack_their_own(void **state)
{
    (void)state;
    enum { SAMPLES = 600, READERS = 8 };
    const char *path = put_numbered("own.jsonl", SAMPLES, 40);
    ts_loader_options o = options(TS_DATA_JSONL, &path, 1, 8, 64);
    ts_loader *l = open_ok(&o);
    assert_int_equal(readers_of(l, 0), READERS);
    static int64_t ordinal_of[SAMPLES];
    ts__permutation p;
    ts__permutation_init(&p, SAMPLES, 0, 0);
    for (int i = 0; i < SAMPLES; i++) ordinal_of[ts__permutation_at(&p, (uint64_t)i)] = i;
    full_batch f = batch_new(8, 64);
    int times[SAMPLES] = {0};
    int64_t number[64], turn = 0;
    bool in_step = true;
    while (next(l, &f))
        for (int64_t row = 0; row < 8 && f.b.row_ids[row] >= 0; row++, turn++) {
            int n = samples_of_row(&f, row, number), reader = -1;
            assert_true(n > 0);
            for (int i = 0; i < n; i++) {
                assert_true(number[i] < SAMPLES);
                times[number[i]]++;
                int64_t ordinal = ordinal_of[number[i]];
                if (i > 0) assert_int_equal(ordinal % READERS, reader);
                reader = (int)(ordinal % READERS);
                if (i == 0) assert_int_equal(f.b.row_ids[row], number[0]);
            }
            in_step = in_step && reader == turn % READERS;
            if (turn < 100) assert_true(in_step);
        }
    for (int i = 0; i < SAMPLES; i++) assert_int_equal(times[i], 1);
    batch_free(&f);
    ts_loader_free(l);
}

/* Long samples beside short ones: the oldest goes first, so none waits for more than 32 rows. */
static void test_none_waits_for_ever(void **state)
{
    (void)state;
    enum { SAMPLES = 127, LONG = 60 }; /* one reader */
    char *text = malloc(SAMPLES * 128);
    size_t at = 0;
    for (int i = 0; i < SAMPLES; i++) {
        at += (size_t)sprintf(text + at, "{\"text\": \"%d:", i);
        for (int k = 0; k < (i % 40 == 0 ? LONG : 20); k++) text[at++] = 'x';
        at += (size_t)sprintf(text + at, "\"}\n");
    }
    const char *path = put("wait.jsonl", text, at);
    free(text);
    ts_loader_options o = options(TS_DATA_JSONL, &path, 1, 1, 80);
    o.shuffle = false;
    ts_loader *l = open_ok(&o);
    full_batch f = batch_new(1, 80);
    int64_t number[40], oldest = 0;
    bool had[SAMPLES + 1] = {false};
    int count = 0;
    while (next(l, &f)) {
        int n = samples_of_row(&f, 0, number);
        assert_int_equal(number[0], oldest);
        for (int i = 0; i < n; i++, count++) {
            assert_in_range(number[i], 0, oldest + 3 * 32);
            had[number[i]] = true;
        }
        while (had[oldest]) oldest++;
    }
    assert_int_equal(count, SAMPLES);
    batch_free(&f);
    ts_loader_free(l);
}

/* The largest power of two of at most a 64th of the samples, 256 at most. */
static void test_number_of_readers(void **state)
{
    (void)state;
    static const struct {
        int64_t samples, readers;
    } cases[] = {{1, 1},      {63, 1},      {64, 1},      {127, 1},     {128, 2},    {129, 2},
                 {255, 2},    {256, 4},     {511, 4},     {512, 8},     {4095, 32},  {4096, 64},
                 {8192, 128}, {16383, 128}, {16384, 256}, {16385, 256}, {70000, 256}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *path = put_counted("r.txt", (size_t)cases[i].samples + 1);
        ts_loader_options o = options(TS_DATA_TEXT, &path, 1, 3, 1);
        o.add_bos = o.add_eos = false;
        ts_loader *l = open_ok(&o);
        assert_int_equal(ts_loader_stats_of(l).samples, cases[i].samples);
        assert_int_equal(readers_of(l, 0), cases[i].readers);
        full_batch f = batch_new(3, 1);
        int64_t rows = 0;
        while (cases[i].samples < 5000 && next(l, &f))
            for (int k = 0; k < 3; k++) rows += f.b.row_ids[k] >= 0;
        if (cases[i].samples < 5000) assert_int_equal(rows, cases[i].samples);
        batch_free(&f);
        ts_loader_free(l);
    }
}

/* The state says how many readers there are, whatever rule it was made by; rows of one sample keep
 * their order. */
static void test_readers_of_the_state(void **state)
{
    (void)state;
    const char *path = put_counted("rs.txt", 2001);
    ts_loader_options o = options(TS_DATA_TEXT, &path, 1, 1, 5);
    o.add_bos = o.add_eos = false;
    o.epochs = 2;
    ts_loader *l = open_ok(&o);
    full_batch f = batch_new(1, 5);
    row_list list = list_rows(o, 1, MOST_ROWS);
    assert_int_equal(readers_of(l, 0), 4);
    for (int64_t readers = 1; readers <= 256; readers *= 2)
        for (int64_t n = 0; n <= 800; n += 77 + readers) {
            assert_int_equal(go_to_row(l, n, readers), TS_OK);
            assert_int_equal(readers_of(l, 0), readers);
            for (int64_t i = n; i < n + 20 && i < 800; i++) {
                assert_true(next(l, &f));
                assert_int_equal(hash_row(&f, 0), list.hash[i]);
            }
        }
    assert_int_not_equal(go_to_row(l, 5, 3), TS_OK);
    assert_int_not_equal(go_to_row(l, 5, 512), TS_OK);
    list_free(&list);
    batch_free(&f);
    ts_loader_free(l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_rows_whatever_the_batch),
        cmocka_unit_test(test_long_windows),
        cmocka_unit_test(test_order_is_the_permutation),
        cmocka_unit_test(test_order_hash),
        cmocka_unit_test(test_readers_pack_their_own),
        cmocka_unit_test(test_none_waits_for_ever),
        cmocka_unit_test(test_number_of_readers),
        cmocka_unit_test(test_readers_of_the_state),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
