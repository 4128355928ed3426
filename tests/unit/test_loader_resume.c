/* tests/unit/test_loader_resume.c – a loader that is given another's position goes on with the
 * same batches.
 *
 * Tried at each of 45 points, through JSON, across epochs' ends, for every kind of data, packing
 * and a mixture, with a fresh loader and with a used one. A position of other data is refused; one
 * that is damaged is refused or moves nothing outside the data, whatever was changed in it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>

#include "data_help.h"

enum { POINTS = 45 };

/* 45 batches straight; then from every point k a new loader (and a used one) gives batches k …
 * 44 and comes to the same end. */
static void resume_everywhere(const ts_loader_options *o, int64_t vocab_size)
{
    uint64_t straight[POINTS];
    char *at[POINTS + 1];
    full_batch f = batch_new(o->rows, o->sequence);
    ts_loader *l = open_ok(o);
    for (int k = 0; k < POINTS; k++) {
        at[k] = position_text(l);
        assert_true(next(l, &f));
        check_laws(&f, vocab_size);
        straight[k] = hash_batch(&f);
    }
    at[POINTS] = position_text(l);
    for (int k = 0; k < POINTS; k++) {
        ts_loader *fresh = open_ok(o);
        assert_int_equal(go_to(fresh, at[k], NULL), TS_OK);
        assert_int_equal(go_to(l, at[k], NULL), TS_OK);
        for (int i = k; i < POINTS; i++) {
            char *now = position_text(fresh);
            assert_string_equal(now, at[i]);
            free(now);
            assert_true(next(fresh, &f));
            assert_int_equal(hash_batch(&f), straight[i]);
            if (i < k + 3) {
                assert_true(next(l, &f));
                assert_int_equal(hash_batch(&f), straight[i]);
            }
        }
        char *end = position_text(fresh);
        assert_string_equal(end, at[POINTS]);
        free(end);
        ts_loader_free(fresh);
    }
    for (int k = 0; k <= POINTS; k++) free(at[k]);
    batch_free(&f);
    ts_loader_free(l);
}

/* Epochs that pass in 45 batches of this loader: 3 and a piece of the next at least. */
static void passes_epochs(const ts_loader_options *o)
{
    ts_loader *l = open_ok(o);
    full_batch f = batch_new(o->rows, o->sequence);
    int64_t trained = 0, epoch = ts_loader_stats_of(l).tokens;
    for (int k = 0; k < POINTS; k++) {
        assert_true(next(l, &f));
        trained += f.b.trained_tokens;
    }
    assert_true(trained > 3 * epoch);
    batch_free(&f);
    ts_loader_free(l);
}

static void test_resume(void **state)
{
    (void)state;
    const char *text = put_counted("r.txt", 2700), *rows = put_rows("r.jsonl", 140, 5);
    uint32_t ids[700];
    for (uint32_t i = 0; i < 700; i++) ids[i] = i * 7919u % 5000u;
    const char *bin = put_tokens("r.bin", 20240520, 1, 700, ids, 700);
    for (int shuffle = 0; shuffle < 2; shuffle++) {
        ts_loader_options o = options(TS_DATA_TEXT, &text, 1, 13, 20);
        o.epochs = 0;
        o.shuffle = shuffle;
        passes_epochs(&o);
        resume_everywhere(&o, 259);
        o = options(TS_DATA_TOKENS, &bin, 1, 11, 5);
        o.tokenizer = NULL;
        o.vocab_size = 5000;
        o.epochs = 0;
        o.shuffle = shuffle;
        passes_epochs(&o);
        resume_everywhere(&o, 5000);
        for (int p = TS_PACK_NONE; p <= TS_PACK_CONCAT; p++) {
            o = options(TS_DATA_JSONL, &rows, 1, p == TS_PACK_NONE ? 11 : 9,
                        p == TS_PACK_NONE ? 20 : 29);
            o.epochs = 0;
            o.shuffle = shuffle;
            o.packing = (ts_packing)p;
            passes_epochs(&o);
            resume_everywhere(&o, 259);
        }
    }
    ts_loader_options o = options(TS_DATA_SYNTHETIC, NULL, 0, 2, 16);
    resume_everywhere(&o, 259);
}

/* Two readers in the first source, four in the second, one in the third. */
static ts_loader_options mixture(ts_packing packing)
{
    static const char *paths[3];
    static ts_loader_source sources[3];
    paths[0] = put_numbered("mix-a.jsonl", 140, 20);
    paths[1] = put_numbered("mix-b.jsonl", 300, 12);
    paths[2] = put_numbered("mix-c.jsonl", 70, 25);
    for (int i = 0; i < 3; i++)
        sources[i] = (ts_loader_source){.name = (const char *[]){"a", "b", "c"}[i],
                                        .weight = (const double[]){0.5, 0.3, 0.2}[i],
                                        .paths = &paths[i],
                                        .n_paths = 1};
    ts_loader_options o = options(TS_DATA_JSONL, NULL, 0, 7, 40);
    o.sources = sources;
    o.n_sources = 3;
    o.packing = packing;
    o.epochs = 0;
    return o;
}

static void test_resume_mixture(void **state)
{
    (void)state;
    for (int p = TS_PACK_NONE; p <= TS_PACK_CONCAT; p++) {
        ts_loader_options o = mixture((ts_packing)p);
        resume_everywhere(&o, 259);
    }
}

/* A position taken with rows of one size goes on with rows of another, to the very end. */
static void test_resume_with_other_rows(void **state)
{
    (void)state;
    const char *rows = put_numbered("other.jsonl", 600, 30);
    for (int p = TS_PACK_NONE; p <= TS_PACK_CONCAT; p++) {
        ts_loader_options o = options(TS_DATA_JSONL, &rows, 1, 1, 48), wide = o;
        o.packing = wide.packing = (ts_packing)p;
        o.epochs = wide.epochs = 2;
        wide.rows = 6;
        ts_loader *l = open_ok(&o), *w = open_ok(&wide);
        full_batch f = batch_new(1, 48), g = batch_new(6, 48);
        bool more = true;
        for (int k = 0; more; k++) {
            char *here = position_text(l);
            if (k % 17 == 0) {
                assert_int_equal(go_to(w, here, NULL), TS_OK);
                more = next(w, &g);
            }
            int64_t count = 0;
            for (int i = 0; i < 6 && k % 17 == 0 && more; i++) {
                bool real = next(l, &f);
                if (real) assert_int_equal(hash_row(&f, 0), hash_row(&g, i));
                assert_int_equal(real, g.b.row_ids[i] >= 0);
                count += real;
            }
            if (k % 17 != 0) more = next(l, &f);
            if (!more) assert_false(next(l, &f));
            if (count == 6) {
                char *a = position_text(l), *b = position_text(w);
                assert_string_equal(a, b);
                free(a);
                free(b);
            }
            free(here);
        }
        batch_free(&f);
        batch_free(&g);
        ts_loader_free(l);
        ts_loader_free(w);
    }
}

/* A batch fails at its n-th read or allocation: the position stays, and then comes the same batch
 * as from a loader that met no failure. */
static void fail_everywhere(const ts_loader_options *o, int kinds)
{
    full_batch f = batch_new(o->rows, o->sequence);
    ts_loader *straight = open_ok(o), *l = open_ok(o);
    int failures[2] = {0};
    for (int k = 0; k < 12; k++) {
        bool more = next(straight, &f);
        uint64_t expected = more ? hash_batch(&f) : 0;
        char *before = position_text(l);
        ts_status status = TS_UNKNOWN;
        for (int memory = 0; memory < kinds; memory++)
            for (uint64_t nth = 1; nth < 100000; nth += 1 + nth / 8) {
                ts_error err = {0};
                if (memory)
                    ts_alloc_fail_at(nth);
                else
                    ts_file_fault(TS_FAULT_READ, nth, EIO);
                status = ts_loader_next(l, &f.b, &err);
                ts_alloc_fail_at(0);
                ts_file_fault(0, 0, 0);
                if (status == TS_OK || status == TS_OUT_OF_RANGE) {
                    if (memory + 1 < kinds) assert_int_equal(go_to(l, before, NULL), TS_OK);
                    break;
                }
                failures[memory]++;
                assert_true(err.msg[0] != 0);
                char *now = position_text(l);
                assert_string_equal(now, before);
                free(now);
            }
        assert_int_equal(status, more ? TS_OK : TS_OUT_OF_RANGE);
        if (more) assert_int_equal(hash_batch(&f), expected);
        free(before);
    }
    if (o->type != TS_DATA_SYNTHETIC) assert_true(failures[0] > 20);
    batch_free(&f);
    ts_loader_free(straight);
    ts_loader_free(l);
}

/* Strings of rows stay below the 16 bytes that jansson reads without growing its buffer: where that
 * growth fails it reads past its end. */
static void test_failed_batch(void **state)
{
    (void)state;
    const char *text = put_counted("fail.txt", 2700), *rows = put_numbered("fail.jsonl", 140, 8);
    ts_loader_options o = options(TS_DATA_TEXT, &text, 1, 5, 20);
    fail_everywhere(&o, 2);
    for (int p = TS_PACK_NONE; p <= TS_PACK_CONCAT; p++) {
        o = options(TS_DATA_JSONL, &rows, 1, 5, 40);
        o.packing = (ts_packing)p;
        fail_everywhere(&o, 2);
        o = mixture((ts_packing)p);
        o.epochs = 1;
        fail_everywhere(&o, 1);
    }
}

/* Another seed, length, split, file, mixture or weight is another order. */
static void test_other_data(void **state)
{
    (void)state;
    const char *path = put_counted("st.txt", 500), *longer = put_counted("st2.txt", 501);
    ts_loader_options o = options(TS_DATA_TEXT, &path, 1, 3, 20);
    ts_loader_source two[] = {{"a", 1, &path, 1}, {"b", 1, &longer, 1}};
    ts_loader_source renamed[] = {{"a", 1, &path, 1}, {"c", 1, &longer, 1}};
    ts_loader_source weighed[] = {{"a", 1, &path, 1}, {"b", 2, &longer, 1}};
    ts_loader_source scaled[] = {{"a", 4, &path, 1}, {"b", 4, &longer, 1}};
    ts_loader_options other[8] = {o, o, o, o, o, o, o, o};
    other[1].seed = 7;
    other[2].sequence = 21;
    other[3].eval_fraction = 0.5;
    other[4].paths = &longer;
    other[5].sources = two, other[5].n_sources = 2;
    other[6].sources = renamed, other[6].n_sources = 2;
    other[7].sources = weighed, other[7].n_sources = 2;
    ts_loader *l[8];
    for (int i = 0; i < 8; i++) l[i] = open_ok(&other[i]);
    for (int i = 0; i < 8; i++) {
        char *here = position_text(l[i]);
        for (int k = 0; k < 8; k++) {
            ts_error err = {0};
            ts_status status = go_to(l[k], here, &err);
            assert_int_equal(status, i == k ? TS_OK : TS_FAILED_PRECONDITION);
            if (i != k) assert_non_null(strstr(err.msg, "data_shuffle_seed"));
        }
        free(here);
    }
    /* The same shares, other rows of a batch, another end. */
    char *here = position_text(l[5]);
    ts_loader_options same = other[5];
    same.sources = scaled;
    same.rows = 5;
    same.epochs = 9;
    ts_loader *s = open_ok(&same);
    assert_int_equal(go_to(s, here, NULL), TS_OK);
    free(here);
    ts_loader_free(s);
    for (int i = 0; i < 8; i++) ts_loader_free(l[i]);
}

/* ---- damage --------------------------------------------------------------------------------- */

/* Every value that a value is replaced by. Owns the result. */
enum { ODD = 16 };
static json_t *odd_value(int i, const json_t *instead)
{
    static const json_int_t numbers[] = {-1,           0, 1, 2, 31, INT32_MAX, INT64_MAX, INT64_MIN,
                                         INT64_MAX / 4};
    if (i < 9) return json_integer(numbers[i]);
    switch (i) {
    case 9: return json_null();
    case 10: return json_true();
    case 11: return json_string("0000000000000001");
    case 12: return json_real(1.5);
    case 13: return json_array();
    case 14: return json_object();
    default:
        return json_is_integer(instead) ? json_integer(json_integer_value(instead) + 1)
                                        : json_string("zz");
    }
}

typedef struct attack {
    ts_loader *l;
    full_batch *f;
    json_t *root;
    char *good;
    int tried, refused;
} attack;

/* The damaged position is refused and changes nothing, or the loader goes on inside its data. */
static void attempt(attack *a)
{
    char *text = ts_json_dump(a->root, JSON_COMPACT | JSON_SORT_KEYS);
    ts_error err = {0};
    assert_non_null(text);
    assert_int_equal(go_to(a->l, a->good, NULL), TS_OK);
    ts_status status = strcmp(text, a->good) == 0 ? TS_UNKNOWN : go_to(a->l, text, &err);
    a->tried += status != TS_UNKNOWN;
    if (status == TS_OK) {
        for (int i = 0; i < 3 && status == TS_OK; i++) {
            status = ts_loader_next(a->l, &a->f->b, &err);
            if (status == TS_OK) check_laws(a->f, 259);
        }
        if (status != TS_OK && status != TS_OUT_OF_RANGE && status != TS_FAILED_PRECONDITION)
            print_message("%d %s\n%s\n", (int)status, err.msg, text);
        assert_true(status == TS_OK || status == TS_OUT_OF_RANGE ||
                    status == TS_FAILED_PRECONDITION);
    } else if (status != TS_UNKNOWN) {
        assert_true(status == TS_INVALID_ARGUMENT || status == TS_FAILED_PRECONDITION);
        assert_true(err.msg[0] != 0);
        a->refused++;
        char *now = position_text(a->l);
        assert_string_equal(now, a->good);
        free(now);
    }
    ts_free(text);
}

/* Each value inside is replaced by each odd one and left out; lists are cut at every length and
 * made longer. Of long lists the first, a middle and the last member are gone into. */
static void attack_inside(attack *a, json_t *value)
{
    const char *key;
    json_t *member, *whole = json_copy(value);
    json_object_foreach(whole, key, member)
    {
        for (int i = 0; i < ODD; i++) {
            json_object_set_new(value, key, odd_value(i, member));
            attempt(a);
        }
        json_object_del(value, key);
        attempt(a);
        json_object_set(value, key, member);
        attack_inside(a, member);
    }
    size_t n = json_array_size(value);
    for (size_t at = 0; at < n; at++) {
        if (at > 4 && at + 2 < n && at != n / 2) continue;
        member = json_array_get(whole, at);
        for (int i = 0; i < ODD; i++) {
            json_array_set_new(value, at, odd_value(i, member));
            attempt(a);
        }
        json_array_set(value, at, member);
        attack_inside(a, member);
        json_array_append(value, member);
        attempt(a);
        json_array_remove(value, n);
    }
    for (size_t keep = n; keep-- > 0;) {
        json_array_remove(value, keep);
        attempt(a);
    }
    if (n > 0) json_array_extend(value, whole);
    json_decref(whole);
}

static void attack_position(const ts_loader_options *o, int batches)
{
    full_batch f = batch_new(o->rows, o->sequence);
    attack a = {.l = open_ok(o), .f = &f};
    for (int i = 0; i < batches; i++) assert_true(next(a.l, &f));
    a.good = position_text(a.l);
    ts_loader_state *s = state_of(a.l);
    a.root = json_of(s);
    attack_inside(&a, a.root);
    char *text = ts_json_dump(a.root, JSON_COMPACT | JSON_SORT_KEYS);
    assert_string_equal(text, a.good); /* the attack put all back */
    assert_true(a.tried > 150 && a.refused * 5 > a.tried * 4);
    ts_free(text);
    free(a.good);
    json_decref(a.root);
    ts_loader_state_free(s);
    batch_free(&f);
    ts_loader_free(a.l);
}

static void test_damaged_position(void **state)
{
    (void)state;
    const char *text = put_counted("at.txt", 2700), *rows = put_numbered("at.jsonl", 140, 20);
    ts_loader_options o = options(TS_DATA_TEXT, &text, 1, 3, 20);
    attack_position(&o, 5);
    for (int p = TS_PACK_NONE; p <= TS_PACK_CONCAT; p++) {
        o = options(TS_DATA_JSONL, &rows, 1, 3, 40);
        o.packing = (ts_packing)p;
        attack_position(&o, 5);
        o = mixture((ts_packing)p);
        attack_position(&o, 5);
    }
}

/* What waits is the reader's own, was taken, comes in order, and fits a row. */
static void test_damaged_waiting(void **state)
{
    (void)state;
    const char *rows = put_numbered("wait.jsonl", 300, 20); /* four readers */
    ts_loader_options o = options(TS_DATA_JSONL, &rows, 1, 3, 40);
    ts_loader *l = open_ok(&o);
    full_batch f = batch_new(3, 40);
    for (int i = 0; i < 4; i++) assert_true(next(l, &f));
    ts_loader_state *s = state_of(l);
    json_t *json = json_of(s);
    json_t *source = json_array_get(json_object_get(json, "sources"), 0);
    json_t *reader = json_array_get(json_object_get(source, "readers"), 2);
    size_t last = json_array_size(reader) - 2;
    assert_true(last > 6);
    json_int_t taken = json_integer_value(json_array_get(reader, 0));
    json_int_t first = json_integer_value(json_array_get(reader, 2));
    json_int_t second = json_integer_value(json_array_get(reader, 4));
    json_int_t newest = json_integer_value(json_array_get(reader, last));
    const struct {
        size_t at;
        json_int_t value;
        const char *part;
    } cases[] = {
        {last, newest + 1, "a pending sample"},
        {last, newest - 1, "a pending sample"},
        {last, taken * 4 + 2, "a pending sample"},
        {last, taken * 4 + 6, "a pending sample"},
        {2, second, "a pending sample"},
        {2, first + 4000, "a pending sample"},
        {2, -2, "a pending sample"},
        {last, INT64_MAX, "a pending sample"},
        {last + 1, 1, "the length of a pending"},
        {last + 1, 41, "the length of a pending"},
        {last + 1, 0, "the length of a pending"},
        {last + 1, -5, "the length of a pending"},
        {last + 1, (json_int_t)1 << 32, "the length"},
        {0, newest / 4, "a pending sample"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ts_error err = {0};
        json_t *damaged = json_deep_copy(json);
        json_t *of = json_array_get(json_object_get(damaged, "sources"), 0);
        of = json_array_get(json_object_get(of, "readers"), 2);
        json_array_set_new(of, cases[i].at, json_integer(cases[i].value));
        char *text = ts_json_dump(damaged, JSON_COMPACT);
        assert_int_equal(go_to(l, text, &err), TS_INVALID_ARGUMENT);
        assert_non_null(strstr(err.msg, cases[i].part));
        ts_free(text);
        json_decref(damaged);
    }
    json_decref(json);
    ts_loader_state_free(s);
    batch_free(&f);
    ts_loader_free(l);
}

static void test_not_a_position(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "{}",
        "[]",
        "5",
        "{\"fingerprint\": 5}",
        "{\"fingerprint\": \"00000000000000zz\", \"sources\": [{\"readers\": [[0, 0]]}]}",
        "{\"fingerprint\": \"0000000000000001\", \"order_hash\": \"0000000000000001\", \"rows\": "
        "1.5, \"sources\": [{\"rows\": 0, \"readers\": [[0, 0]]}]}",
        "{\"fingerprint\": \"0000000000000001\", \"order_hash\": \"0000000000000001\", \"rows\": "
        "0, \"sources\": [{\"rows\": 0, \"readers\": [[0, 0], [0, 0], [0, 0]]}]}",
        "{\"fingerprint\": \"0000000000000001\", \"order_hash\": \"0000000000000001\", \"rows\": "
        "0, \"sources\": [{\"rows\": 0, \"readers\": [[0, 0, 1]]}]}",
        "{\"fingerprint\": \"0000000000000001\", \"order_hash\": \"0000000000000001\", \"rows\": "
        "0, \"sources\": []}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        json_t *json = NULL;
        ts_loader_state *s = NULL;
        assert_int_equal(ts_json_parse(bad[i], strlen(bad[i]), 8, "state", &json, NULL), TS_OK);
        assert_int_equal(ts_loader_state_from_json(json, &s, NULL), TS_INVALID_ARGUMENT);
        assert_null(s);
        json_decref(json);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_resume),
        cmocka_unit_test(test_resume_mixture),
        cmocka_unit_test(test_resume_with_other_rows),
        cmocka_unit_test(test_failed_batch),
        cmocka_unit_test(test_other_data),
        cmocka_unit_test(test_damaged_position),
        cmocka_unit_test(test_damaged_waiting),
        cmocka_unit_test(test_not_a_position),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
