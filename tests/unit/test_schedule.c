/* test_schedule.c – learning rates against values worked out by hand from the formulas. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "train/schedule.h"

static void near(double got, double want)
{
    if (fabs(got - want) > 1e-12 * fabs(want)) fail_msg("rate %.17g, expected %.17g", got, want);
}

/* 100 steps, peak 3e-5, final 3e-6: warm 10, 90 steps of cosine, 89 transitions. */
static void cosine_of_the_tutorial(void **state)
{
    (void)state;
    ts_schedule s = {.kind = TS_SCHEDULE_COSINE,
                     .peak = 3e-5,
                     .final_fraction = 0.1,
                     .steps = 100,
                     .warmup_fraction = 0.1};
    assert_true(ts_schedule_rate(&s, 0) == 0);
    near(ts_schedule_rate(&s, 1), 3e-6);
    near(ts_schedule_rate(&s, 5), 1.5e-5);
    near(ts_schedule_rate(&s, 9), 2.7e-5);
    assert_true(ts_schedule_rate(&s, 10) == 3e-5);
    /* a = (cos(π·44/89) + 1)/2 = 0.508824…, rate = 3e-5·(a + 0.1·(1 − a)) */
    near(ts_schedule_rate(&s, 54), 3e-5 * (0.1 + 0.9 * 0.5088242403215645));
    near(ts_schedule_rate(&s, 55), 3e-5 * (0.1 + 0.9 * 0.4911757596784357));
    assert_true(ts_schedule_rate(&s, 99) == 3e-5 * 0.1);
    assert_true(ts_schedule_rate(&s, 100) == 0);
    assert_true(ts_schedule_rate(&s, 1000000) == 0);
}

/* 12 transitions: at a third, a half and two thirds of them the cosine is 1/2, 0 and −1/2. */
static void cosine_thirds(void **state)
{
    (void)state;
    ts_schedule s = {.kind = TS_SCHEDULE_COSINE, .peak = 1, .final_fraction = 0, .steps = 13};
    double at[13] = {1, 0,    0, 0, 0.75, 0, 0.5,
                     0, 0.25, 0, 0, 0,    0}; /* c − 1 = 12: π/3, π/2, 2π/3 */
    for (int i = 0; i < 13; i++)
        if (at[i] > 0) near(ts_schedule_rate(&s, i), at[i]);
    assert_true(ts_schedule_rate(&s, 12) == 0);
}

/* 20 steps: 4 warm, 10 stable (4 … 13), 6 of decay (14 … 19) over 5 transitions. */
static void wsd_along_a_line(void **state)
{
    (void)state;
    ts_schedule s = {.kind = TS_SCHEDULE_WSD,
                     .peak = 2,
                     .final_fraction = 0.25,
                     .steps = 20,
                     .warmup_fraction = 0.2,
                     .decay_fraction = 0.3};
    static const double want[21] = {0, 0.5, 1, 1.5, 2,   2,   2,   2,   2,   2, 2,
                                    2, 2,   2, 2,   1.7, 1.4, 1.1, 0.8, 0.5, 0};
    for (int i = 0; i <= 20; i++) near(ts_schedule_rate(&s, i), want[i]);
    assert_true(ts_schedule_rate(&s, 19) == 0.5);
}

static void wsd_along_a_cosine(void **state)
{
    (void)state;
    ts_schedule s = {.kind = TS_SCHEDULE_WSD,
                     .peak = 4,
                     .final_fraction = 0,
                     .steps = 10,
                     .decay_fraction = 0.4,
                     .cosine_decay = true};
    /* Decay over 6 … 9, 3 transitions: (cos 0 + 1)/2, (cos π/3 + 1)/2, (cos 2π/3 + 1)/2, 0. */
    static const double want[10] = {4, 4, 4, 4, 4, 4, 4, 3, 1, 0};
    for (int i = 0; i < 10; i++) near(ts_schedule_rate(&s, i), want[i]);
}

/* Schedules with nothing to interpolate over: every rate is finite. */
static void edges(void **state)
{
    (void)state;
    for (int kind = 0; kind < 2; kind++)
        for (int64_t steps = 1; steps <= 4; steps++)
            for (int warm = 0; warm <= 4; warm++)
                for (int decay = 0; decay <= 4; decay++) {
                    ts_schedule s = {
                        (ts_schedule_kind)kind, 1, 0.5, steps, warm / 4.0, decay / 4.0, decay % 2};
                    for (int64_t i = -1; i <= steps; i++) {
                        double rate = ts_schedule_rate(&s, i);
                        assert_true(rate >= 0 && rate <= 1);
                        if (i < 0 || i >= steps) assert_true(rate == 0);
                    }
                }
    ts_schedule one = {.kind = TS_SCHEDULE_COSINE, .peak = 1, .final_fraction = 0.1, .steps = 1};
    assert_true(ts_schedule_rate(&one, 0) == 1);
    ts_schedule all_warm = {
        .kind = TS_SCHEDULE_COSINE, .peak = 1, .steps = 4, .warmup_fraction = 1};
    near(ts_schedule_rate(&all_warm, 3), 0.75);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cosine_of_the_tutorial),
        cmocka_unit_test(cosine_thirds),
        cmocka_unit_test(wsd_along_a_line),
        cmocka_unit_test(wsd_along_a_cosine),
        cmocka_unit_test(edges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
