/* tests/unit/test_loader_resume.c – a loader that is given another's position goes on with the
 * same batches.
 *
 * Tried at each of 40 points, through JSON, across an epoch's end, for every kind of data and
 * packing, with a fresh loader and with a used one. A position that is damaged or of other data is
 * refused.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "data_help.h"

static ts_loader_state through_json(const ts_loader_state *s)
{
    json_t *json = NULL, *again = NULL;
    ts_loader_state out;
    assert_int_equal(ts_loader_state_to_json(s, &json, NULL), TS_OK);
    char *text = json_dumps(json, JSON_COMPACT);
    assert_int_equal(ts_json_parse(text, strlen(text), 4, "state", &again, NULL), TS_OK);
    assert_int_equal(ts_loader_state_from_json(again, &out, NULL), TS_OK);
    ts_free(text);
    json_decref(json);
    json_decref(again);
    return out;
}

/* 40 batches straight; then from every point k a new loader (and a used one) gives batches k …
 * 39. */
static void resume_everywhere(const ts_loader_options *o)
{
    enum { POINTS = 40 };
    uint64_t straight[POINTS];
    ts_loader_state at[POINTS];
    full_batch f = batch_new(o->rows, o->sequence);
    ts_loader *l = open_ok(o);
    for (int k = 0; k < POINTS; k++) {
        at[k] = ts_loader_get_state(l);
        assert_true(next(l, &f));
        check_laws(&f, 259);
        straight[k] = hash_batch(&f);
    }
    if (o->type != TS_DATA_SYNTHETIC) assert_true(at[POINTS - 1].epoch >= 2);
    for (int k = 0; k < POINTS; k++) {
        ts_loader *fresh = open_ok(o);
        ts_loader_state s = through_json(&at[k]);
        assert_memory_equal(&s, &at[k], sizeof s);
        assert_int_equal(ts_loader_set_state(fresh, &s, NULL), TS_OK);
        assert_int_equal(ts_loader_set_state(l, &s, NULL), TS_OK);
        for (int i = k; i < POINTS; i++) {
            assert_true(next(fresh, &f));
            assert_int_equal(hash_batch(&f), straight[i]);
            if (i < k + 3) {
                assert_true(next(l, &f));
                assert_int_equal(hash_batch(&f), straight[i]);
            }
        }
        ts_loader_free(fresh);
    }
    batch_free(&f);
    ts_loader_free(l);
}

static void test_resume(void **state)
{
    (void)state;
    const char *text = put_counted("r.txt", 1000), *rows = put_rows("r.jsonl", 60, 5);
    for (int shuffle = 0; shuffle < 2; shuffle++) {
        ts_loader_options o = options(TS_DATA_TEXT, &text, 1, 3, 20);
        o.epochs = 0;
        o.shuffle = shuffle;
        resume_everywhere(&o);
        for (int p = TS_PACK_NONE; p <= TS_PACK_CONCAT; p++) {
            o = options(TS_DATA_JSONL, &rows, 1, 5, p == TS_PACK_NONE ? 20 : 29);
            o.epochs = 0;
            o.shuffle = shuffle;
            o.packing = (ts_packing)p;
            resume_everywhere(&o);
        }
    }
    ts_loader_options o = options(TS_DATA_SYNTHETIC, NULL, 0, 2, 16);
    resume_everywhere(&o);
}

static void test_state_refused(void **state)
{
    (void)state;
    const char *path = put_counted("st.txt", 500);
    ts_loader_options o = options(TS_DATA_TEXT, &path, 1, 3, 20), other = o;
    ts_loader *l = open_ok(&o);
    full_batch f = batch_new(3, 20);
    assert_true(next(l, &f));
    ts_loader_state good = ts_loader_get_state(l), s;
    /* Another seed, length, split or file is another order; other rows a batch are not. */
    ts_loader *changed[4];
    other = o;
    other.seed = 7;
    changed[0] = open_ok(&other);
    other = o;
    other.sequence = 21;
    changed[1] = open_ok(&other);
    other = o;
    other.eval_fraction = 0.5;
    changed[2] = open_ok(&other);
    const char *longer = put_counted("st2.txt", 501);
    other = o;
    other.paths = &longer;
    changed[3] = open_ok(&other);
    for (int i = 0; i < 4; i++) {
        ts_error err = {0};
        assert_int_equal(ts_loader_set_state(changed[i], &good, &err), TS_FAILED_PRECONDITION);
        assert_non_null(strstr(err.msg, "data_shuffle_seed"));
        ts_loader_free(changed[i]);
    }
    other = o;
    other.rows = 5;
    ts_loader *wider = open_ok(&other);
    assert_int_equal(ts_loader_set_state(wider, &good, NULL), TS_OK);
    ts_loader_free(wider);
    static const int64_t odd[] = {-1, INT64_MIN, INT64_MAX};
    for (int i = 0; i < 3; i++) {
        s = good, s.index = odd[i];
        assert_int_equal(ts_loader_set_state(l, &s, NULL), TS_INVALID_ARGUMENT);
        s = good, s.epoch = odd[i];
        assert_int_equal(ts_loader_set_state(l, &s, NULL), TS_INVALID_ARGUMENT);
        s = good, s.n_pending = odd[i];
        assert_int_equal(ts_loader_set_state(l, &s, NULL), TS_INVALID_ARGUMENT);
        s = good, s.n_pending = 1, s.pending[0] = odd[i];
        assert_int_equal(ts_loader_set_state(l, &s, NULL), TS_INVALID_ARGUMENT);
    }
    s = ts_loader_get_state(l);
    assert_memory_equal(&s, &good, sizeof s);
    static const char *const bad_json[] = {
        "{}",
        "[]",
        "5",
        "{\"fingerprint\": 5}",
        "{\"fingerprint\": \"00000000000000zz\"}",
        "{\"fingerprint\": \"0000000000000001\", \"epoch\": 1.5}",
        "{\"fingerprint\": \"0000000000000001\", \"epoch\": 1, \"index\": 0, \"offset\": 0, "
        "\"batches\": 0, "
        "\"trained_tokens\": 0, \"padding\": 0, \"pending\": [\"x\"]}",
        "{\"fingerprint\": \"0000000000000001\", \"epoch\": 1, \"index\": 0, \"offset\": 0, "
        "\"batches\": 0, "
        "\"trained_tokens\": 0, \"padding\": 0}"};
    for (size_t i = 0; i < sizeof bad_json / sizeof *bad_json; i++) {
        json_t *json = NULL;
        assert_int_equal(ts_json_parse(bad_json[i], strlen(bad_json[i]), 4, "state", &json, NULL),
                         TS_OK);
        assert_int_equal(ts_loader_state_from_json(json, &s, NULL), TS_INVALID_ARGUMENT);
        json_decref(json);
    }
    batch_free(&f);
    ts_loader_free(l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_resume),
        cmocka_unit_test(test_state_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
