/* test_spike.c – verdicts on losses: the window, the threshold, what joins, and the same again after JSON. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "train/spike.h"

static ts_spike opened(int64_t window, double threshold)
{
    ts_spike s;
    ts_error err = {0};
    if (ts_spike_open(window, threshold, &s, &err) != TS_OK) fail_msg("%s", err.msg);
    return s;
}

static double noise(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 40) / (double)(1 << 24);
}

/* By hand: 1 … 8 have mean 4.5 and deviation √5.25. */
static void a_full_window_judges(void **unused)
{
    (void)unused;
    double deviation;
    ts_spike s = opened(8, 2);
    assert_true(isnan(ts_spike_mean(&s, &deviation)) && isnan(deviation));
    for (int i = 1; i <= 8; i++) assert_false(ts_spike_add(&s, i));
    assert_true(ts_spike_mean(&s, &deviation) == 4.5);
    assert_true(fabs(deviation - sqrt(5.25)) < 1e-15);
    const double edge = 4.5 + 2 * deviation;
    assert_true(ts_spike_add(&s, nextafter(edge, INFINITY)));
    assert_true(ts_spike_mean(&s, &deviation) == 4.5); /* it did not join */
    assert_false(ts_spike_add(&s, edge));              /* this one does, in the place of the 1 */
    assert_true(fabs(ts_spike_mean(&s, &deviation) - (35 + edge) / 8) < 1e-14);
    assert_false(ts_spike_add(&s, -1e9)); /* a loss that falls is none */
    ts_spike_close(&s);
}

static void nothing_before_it_is_full(void **unused)
{
    (void)unused;
    ts_spike s = opened(8, 1);
    for (int i = 0; i < 8; i++) assert_false(ts_spike_add(&s, i == 7 ? 1e30 : 1));
    ts_spike_close(&s);
    s = opened(0, 1);
    for (int i = 0; i < 100; i++) assert_false(ts_spike_add(&s, i * i));
    ts_spike_close(&s);
    ts_spike none = {0};
    ts_spike_close(&none);
}

/* The last digits of an f32 are no deviation to measure by. */
static void equal_losses(void **unused)
{
    (void)unused;
    ts_spike s = opened(16, 6);
    for (int i = 0; i < 16; i++) assert_false(ts_spike_add(&s, 2.5));
    assert_false(ts_spike_add(&s, (double)nextafterf(2.5f, 3.0f)));
    assert_true(ts_spike_add(&s, 2.51));
    ts_spike_close(&s);
}

/* A large mean must not eat the deviation: against long double, and shifted by 1e8. */
static void careful_sums(void **unused)
{
    (void)unused;
    for (int shift = 0; shift < 2; shift++) {
        uint64_t random = 1;
        long double sum = 0, squares = 0, held[1000];
        ts_spike s = opened(1000, 1000);
        for (int i = 0; i < 1000; i++) {
            const double v = noise(&random) + (shift ? 1e8 : 0);
            assert_false(ts_spike_add(&s, v));
            sum += held[i] = v;
        }
        for (int i = 0; i < 1000; i++)
            squares += (held[i] - sum / 1000) * (held[i] - sum / 1000);
        double deviation, mean = ts_spike_mean(&s, &deviation);
        assert_true(fabs(mean - (double)(sum / 1000)) <= 1e-15 * fabs(mean));
        assert_true(fabs(deviation / (double)sqrtl(squares / 1000) - 1) < 1e-7);
        ts_spike_close(&s);
    }
}

/* Wherever a run is cut, what follows has the same verdicts and the same window, to the bit. */
static void the_same_after_json(void **unused)
{
    (void)unused;
    for (int cut = 0; cut <= 60; cut++) {
        uint64_t random = 7;
        ts_spike a = opened(16, 1.5), b = opened(16, 1.5);
        ts_error err = {0};
        int spikes = 0;
        for (int i = 0; i < 80; i++) {
            const double loss = 3 + noise(&random) / 3;
            if (i == cut) {
                json_t *json = ts_spike_to_json(&a);
                assert_non_null(json);
                char *text = ts_json_dump(json, 0);
                json_t *again = json_loads(text, 0, NULL);
                assert_int_equal(ts_spike_from_json(&b, again, &err), TS_OK);
                ts_free(text);
                json_decref(json);
                json_decref(again);
            }
            const bool is = ts_spike_add(&a, loss);
            spikes += is;
            if (i < cut) continue;
            assert_int_equal(is, ts_spike_add(&b, loss));
            double da, db, ma = ts_spike_mean(&a, &da), mb = ts_spike_mean(&b, &db);
            assert_true(memcmp(&ma, &mb, sizeof ma) == 0 && memcmp(&da, &db, sizeof da) == 0);
        }
        assert_true(spikes > 0);
        ts_spike_close(&a);
        ts_spike_close(&b);
    }
}

static void another_window_begins_empty(void **unused)
{
    (void)unused;
    ts_error err = {0};
    ts_spike a = opened(8, 2), b = opened(9, 2), none = opened(0, 2);
    for (int i = 0; i < 8; i++) {
        (void)ts_spike_add(&a, i);
        (void)ts_spike_add(&b, i);
    }
    json_t *json = ts_spike_to_json(&a), *empty = ts_spike_to_json(&none);
    assert_int_equal(ts_spike_from_json(&b, json, &err), TS_OK);
    assert_int_equal(b.n, 0);
    assert_int_equal(ts_spike_from_json(&none, json, &err), TS_OK);
    assert_int_equal(ts_spike_from_json(&a, empty, &err), TS_OK);
    assert_int_equal(a.n, 0);
    json_decref(json);
    json_decref(empty);
    ts_spike_close(&a);
    ts_spike_close(&b);
}

static void what_is_no_window(void **unused)
{
    (void)unused;
    static const char *const bad[] = {
        "{}",
        "[]",
        "{\"window\": 8}",
        "{\"window\": 8, \"losses\": {}}",
        "{\"window\": -1, \"losses\": []}",
        "{\"window\": 8.5, \"losses\": []}",
        "{\"window\": 1, \"losses\": [\"0x1p+0\", \"0x1p+0\"]}",
        "{\"window\": 8, \"losses\": [1.5]}",
        "{\"window\": 8, \"losses\": [\"\"]}",
        "{\"window\": 8, \"losses\": [\"nan\"]}",
        "{\"window\": 8, \"losses\": [\"0x1p+99999\"]}",
        "{\"window\": 8, \"losses\": [\"0x1p+0 \"]}",
        "{\"window\": 8, \"losses\": [\" 0x1p+0\"]}",
        "{\"window\": 8, \"losses\": [\"-inf\"]}",
    };
    ts_spike s = opened(8, 2);
    for (int i = 0; i < 3; i++) (void)ts_spike_add(&s, i);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ts_error err = {0};
        json_t *json = json_loads(bad[i], 0, NULL);
        assert_non_null(json);
        if (ts_spike_from_json(&s, json, &err) != TS_INVALID_ARGUMENT)
            fail_msg("accepted: %s", bad[i]);
        assert_int_equal(s.n, 3);
        json_decref(json);
    }
    ts_spike_close(&s);
}

static void memory_is_out(void **unused)
{
    (void)unused;
    ts_spike s;
    ts_error err = {0};
    ts_alloc_fail_at(1);
    assert_int_equal(ts_spike_open(8, 2, &s, &err), TS_RESOURCE_EXHAUSTED);
    ts_alloc_fail_at(0);
    assert_false(ts_spike_add(&s, 1));
    ts_spike_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_full_window_judges),
        cmocka_unit_test(nothing_before_it_is_full),
        cmocka_unit_test(equal_losses),
        cmocka_unit_test(careful_sums),
        cmocka_unit_test(the_same_after_json),
        cmocka_unit_test(another_window_begins_empty),
        cmocka_unit_test(what_is_no_window),
        cmocka_unit_test(memory_is_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
