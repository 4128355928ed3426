/* test_base.c – statuses, errors, allocator seam, arena, string, words, bf16, log. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>

#include "base/base.h"
#include "base/log.h"

static void test_exit_codes(void **state)
{
    (void)state;
    static const int want[] = {0, 130, 1, 2, 5, 2, 2, 2, 1, 2, 6, 2, 1, 1, 4, 3};
    for (int i = 0; i < 16; i++) assert_int_equal(ts_status_exit_code((ts_status)i), want[i]);
    assert_string_equal(ts_status_name(TS_DATA_LOSS), "DATA_LOSS");
    assert_string_equal(ts_status_name(TS_OK), "OK");
    assert_string_equal(ts_status_name((ts_status)99), "UNKNOWN");
}

static void test_error_keeps_the_first(void **state)
{
    (void)state;
    ts_error err = {0};
    assert_int_equal(TS_ERROR(&err, TS_NOT_FOUND, "no %s", "bread"), TS_NOT_FOUND);
    assert_int_equal(TS_ERROR(&err, TS_INTERNAL, "later"), TS_INTERNAL);
    assert_string_equal(err.msg, "no bread");
    assert_int_equal(ts__error_context(&err, "in the %s", "kitchen"), TS_NOT_FOUND);
    assert_string_equal(err.msg, "in the kitchen: no bread");
    err = (ts_error){0};
    TS_ERROR(&err, TS_DATA_LOSS, "tensor %s\n\tx", "\x1b[2Ja\x7f\xc3\xa9");
    assert_string_equal(err.msg, "tensor ?[2Ja?\xc3\xa9\n\tx");
    assert_int_equal(TS_ERROR(NULL, TS_ABORTED, "nobody listens"), TS_ABORTED);
}

static void test_error_never_overflows(void **state)
{
    (void)state;
    char word[5000];
    memset(word, 'x', sizeof word - 1);
    word[sizeof word - 1] = '\0';
    ts_error err = {0};
    TS_ERROR(&err, TS_UNKNOWN, "%s", word);
    assert_int_equal(strlen(err.msg), sizeof err.msg - 1);
    ts__error_context(&err, "%s", word);
    assert_int_equal(strlen(err.msg), sizeof err.msg - 1);
}

static void test_alloc(void **state)
{
    (void)state;
    uint64_t before = ts_alloc_count();
    void *p = ts_alloc(3), *q = ts_alloc(0), *r = ts_alloc(0);
    assert_int_equal(ts_alloc_count() - before, 3);
    assert_non_null(q);
    assert_ptr_not_equal(q, r);
    assert_int_equal((uintptr_t)p % 64, 0);
    assert_null(ts_alloc(SIZE_MAX));
    assert_null(ts_alloc((size_t)PTRDIFF_MAX));
    memcpy(p, "abc", 3);
    p = ts_realloc(p, 3, 1000);
    assert_memory_equal(p, "abc", 3);
    ts_free(p);
    ts_free(q);
    ts_free(r);
    ts_free(NULL);
    ts_alloc_fail_at(2);
    p = ts_alloc(1);
    assert_non_null(p);
    assert_null(ts_alloc(1));
    q = ts_alloc(1);
    assert_non_null(q);
    ts_free(p);
    ts_free(q);
    ts_alloc_fail_at(1);
    p = NULL;
    assert_null(ts_strdup("x"));
    ts_alloc_fail_at(0);
}

static void test_arena(void **state)
{
    (void)state;
    ts_arena *a = ts_arena_new();
    char *first = ts_arena_strdup(a, "first");
    char *big = ts_arena_alloc(a, 3 << 20);
    assert_int_equal(big[0] | big[(3 << 20) - 1], 0);
    memset(big, 1, 3 << 20);
    for (int i = 0; i < 20000; i++) {
        uint64_t *p = ts_arena_alloc(a, 24);
        assert_int_equal((uintptr_t)p % 16, 0);
        assert_true(p[0] == 0 && p[1] == 0 && p[2] == 0);
        p[0] = p[1] = p[2] = UINT64_MAX;
    }
    assert_string_equal(first, "first");
    assert_string_equal(ts_arena_printf(a, "%d-%s", 7, "x"), "7-x");
    assert_string_equal(ts_arena_strndup(a, "abcdef", 3), "abc");
    assert_null(ts_arena_alloc(a, SIZE_MAX));
    assert_true(ts_arena_bytes(a) > (3 << 20) + 20000 * 24);
    assert_true(ts_arena_bytes(a) < (3 << 20) + 20000 * 32 + (2 << 20));
    ts_arena_free(a);
    ts_arena_free(NULL);
    ts_alloc_fail_at(1);
    assert_null(ts_arena_new());
    a = ts_arena_new();
    ts_alloc_fail_at(1);
    assert_null(ts_arena_strdup(a, "x"));
    assert_non_null(ts_arena_strdup(a, "x"));
    ts_arena_free(a);
}

static void test_string(void **state)
{
    (void)state;
    ts_string s = ts_string_new(10);
    ts_string_add(&s, "12345");
    ts_string_printf(&s, "%d", 67890);
    assert_false(s.failed);
    assert_string_equal(s.data, "1234567890");
    ts_string_add(&s, "");
    assert_false(s.failed);
    ts_string_add(&s, "x");
    assert_true(s.failed);
    ts_string_add(&s, "");
    assert_true(s.failed);
    assert_string_equal(s.data, "1234567890");
    ts_string_free(&s);
    s = ts_string_new(1 << 20);
    for (int i = 0; i < 1000; i++) ts_string_printf(&s, "%03d,", i);
    assert_int_equal(s.length, 4000);
    assert_memory_equal(s.data + 3996, "999,", 5);
    ts_string_free(&s);
    ts_alloc_fail_at(1);
    s = ts_string_new(100);
    ts_string_add(&s, "x");
    assert_true(s.failed);
    ts_string_free(&s);
}

static void test_nearest_word(void **state)
{
    (void)state;
    const char *keys[] = {"steps", "per_device_batch_size", "learning_rate", "dtype"};
    assert_string_equal(ts_nearest_word("per_device_bacth_size", keys, 4), "per_device_batch_size");
    assert_string_equal(ts_nearest_word("step", keys, 4), "steps");
    assert_string_equal(ts_nearest_word("learningrate", keys, 4), "learning_rate");
    assert_null(ts_nearest_word("zebra_crossing", keys, 4));
    assert_null(ts_nearest_word("", keys, 4));
    assert_null(ts_nearest_word("ab", keys, 4));
    assert_null(ts_nearest_word("steps", keys, 0));
}

static void test_bf16(void **state)
{
    (void)state;
    assert_int_equal(ts_bf16_from_f32(1.0f), 0x3f80);
    assert_int_equal(ts_bf16_from_f32(1.00390625f), 0x3f80); /* half way: to even */
    assert_int_equal(ts_bf16_from_f32(1.01171875f), 0x3f82);
    assert_int_equal(ts_bf16_from_f32(3.4e38f), 0x7f80);
    assert_int_equal(ts_bf16_from_f32(-INFINITY), 0xff80);
    assert_true(isnan(ts_bf16_to_f32(ts_bf16_from_f32(NAN))));
    for (uint32_t h = 0; h < 0x10000; h++) {
        float f = ts_bf16_to_f32((uint16_t)h);
        if (!isnan(f)) assert_int_equal(ts_bf16_from_f32(f), h);
    }
}

static char last_line[5000];
static void keep_line(void *context, ts_log_level level, const char *line)
{
    *(int *)context = (int)level;
    snprintf(last_line, sizeof last_line, "%s", line);
}

static void test_log(void **state)
{
    (void)state;
    int level = -1;
    ts_log(TS_LOG_ERROR, "dropped");
    ts_log_set_sink(keep_line, &level);
    ts_log(TS_LOG_WARNING, "skipped %d", 4);
    assert_int_equal(level, TS_LOG_WARNING);
    assert_string_equal(last_line, "skipped 4");
    ts_log_set_sink(NULL, NULL);
    ts_log(TS_LOG_ERROR, "dropped");
    assert_string_equal(last_line, "skipped 4");
    double t = ts_clock_seconds();
    assert_true(t > 0 && ts_clock_seconds() >= t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exit_codes),
        cmocka_unit_test(test_error_keeps_the_first),
        cmocka_unit_test(test_error_never_overflows),
        cmocka_unit_test(test_alloc),
        cmocka_unit_test(test_arena),
        cmocka_unit_test(test_string),
        cmocka_unit_test(test_nearest_word),
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_log),
    };
    return cmocka_run_group_tests_name("base", tests, NULL, NULL);
}
