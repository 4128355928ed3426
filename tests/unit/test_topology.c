/* test_topology.c – names of slices: those that exist, those that do not and what is offered instead. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>

#include "xla/topology.h"

static void test_known(void **state)
{
    (void)state;
    static const struct {
        const char *text, *name, *accelerator;
        int chips, devices;
        int64_t bytes; /* as libtpu 0.0.52 tells it; 0: not asked */
    } row[] = {
        {"v6e:4x4", "v6e:4x4", "v6e-16", 16, 16, 33546035200},
        {"v6e-16", "v6e:4x4", "v6e-16", 16, 16, 33546035200},
        {"v6e:1x1", "v6e:1x1", "v6e-1", 1, 1, 33546042880},
        {"v6e-1", "v6e:1x1", "v6e-1", 1, 1, 33546042880},
        {"v6e-4", "v6e:2x2", "v6e-4", 4, 4, 33546041344},
        {"v6e-8", "v6e:2x4", "v6e-8", 8, 8, 33546039296},
        {"v6e-256", "v6e:16x16", "v6e-256", 256, 256, 33545912320},
        {"v5e-16", "v5e:4x4", "v5litepod-16", 16, 16, 16909328384},
        {"v5litepod-16", "v5e:4x4", "v5litepod-16", 16, 16, 16909328384},
        {"v5litepod-256", "v5e:16x16", "v5litepod-256", 256, 256, 0},
        {"v5e:2x2", "v5e:2x2", "v5litepod-4", 4, 4, 16909334528},
        {"v5p:1x1x1", "v5p:1x1x1", "v5p-2", 1, 1, 102786661888},
        {"v5p-8", "v5p:2x2x1", "v5p-8", 4, 4, 102786660352},
        {"v5p-16", "v5p:2x2x2", "v5p-16", 8, 8, 0},
        {"v5p-32", "v5p:2x2x4", "v5p-32", 16, 16, 102786654208},
        {"v5p-64", "v5p:2x4x4", "v5p-64", 32, 32, 0},
        {"v5p-128", "v5p:4x4x4", "v5p-128", 64, 64, 0},
        {"v5p-256", "v5p:4x4x8", "v5p-256", 128, 128, 0},
        {"v5p-384", "v5p:4x4x12", "v5p-384", 192, 192, 102786564096},
        {"v5p-512", "v5p:4x8x8", "v5p-512", 256, 256, 0},
        {"v5p-2048", "v5p:8x8x16", "v5p-2048", 1024, 1024, 0},
        {"v5p-12288", "v5p:16x16x24", "v5p-12288", 6144, 6144, 102783516672},
        {"v5p:4x4x16", "v5p:4x4x16", "v5p-512", 256, 256, 0},
        {"tpu7x:1x1x1", "tpu7x:1x1x1", "tpu7x-2", 1, 2, 101724453888},
        {"tpu7x-2", "tpu7x:1x1x1", "tpu7x-2", 1, 2, 101724453888},
        {"tpu7x-8", "tpu7x:2x2x1", "tpu7x-8", 4, 8, 101724450816},
        {"tpu7x:2x2x2", "tpu7x:2x2x2", "tpu7x-16", 8, 16, 101724446720},
        {"tpu7x-128", "tpu7x:4x4x4", "tpu7x-128", 64, 128, 101724389376},
        {"cpu:1", "cpu:1", "", 1, 1, 0},
        {"cpu:16", "cpu:16", "", 16, 16, 0},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        ts_topology t;
        ts_error err = {0};
        if (ts__topology_parse(row[i].text, i % 2 ? 1 : -1, &t, &err) != TS_OK)
            fail_msg("%s: %s", row[i].text, err.msg);
        assert_string_equal(t.name, row[i].name);
        assert_string_equal(t.accelerator, row[i].accelerator);
        assert_string_equal(t.plugin, strncmp(row[i].text, "cpu", 3) ? "tpu" : "cpu");
        assert_int_equal(t.chips, row[i].chips);
        assert_int_equal(t.devices, row[i].devices);
        if (row[i].bytes) assert_true(t.capacity_bytes == row[i].bytes);
    }
}

static void test_refused(void **state)
{
    (void)state;
    static const char *const row[][2] = {
        {"v6e:3x3", "the nearest are v6e:2x4 (8 chips) and v6e:4x4 (16)"},
        {"v6e-2", "the nearest are v6e:1x1 (1 chip) and v6e:2x2 (4)"},
        {"v6e:4x2", "with 8 chips it is v6e:2x4"},
        {"v6e:2x8", "with 16 chips it is v6e:4x4"},
        {"v6e:32x32", "the nearest is v6e:16x16 (256 chips)"},
        {"v6e:999999x999999", "the nearest is v6e:16x16"},
        {"v5p:999999x999999x999999", "the nearest is v5p:"},
        {"v6e-0", "the nearest is v6e:1x1 (1 chip)"},
        {"v6e:4x4x1", "expected v6e: and the chips along both dimensions, as v6e:4x4"},
        {"v5p:2x2", "three dimensions, as v5p:2x2x2"},
        {"v5p-7", "the nearest are"},
        {"v5p-4", "the nearest are v5p:1x1x1 (1 chip) and v5p:2x2x1 (4)"},
        {"tpu7x:4x4x2", "with 32 chips it is tpu7x:2x4x4"},
        {"tpu7x:2x2x8", "with 32 chips it is tpu7x:2x4x4"},
        {"v6e:", "as v6e:4x4"},
        {"v6e-", "and a number, as v6e-16"},
        {"v6e-1234567", "and a number"},
        {"v6e:4x4 ", "as v6e:4x4"},
        {"v6e:-4x4", "as v6e:4x4"},
        {"v6e", "v6e lacks its size; expected the chips along both dimensions, as v6e:2x2, or a number, as v6e-4"},
        {"v5p", "v5p lacks its size; expected the chips along three dimensions, as v5p:2x2x1, or a number, as v5p-8"},
        {"v5litepod", "v5e lacks its size"},
        {"", "expected v5e, v5p, v6e or tpu7x"},
        {"v9e:4x4", "did you mean v"},
        {"tpu7:2x2x2", "did you mean tpu7x?"},
        {"h100:8", "is no topology"},
        {"cpu", "cpu: expected cpu:N with N devices"},
        {"cpu-4", "cpu-4: expected cpu:N with N devices"},
        {"cpus", "did you mean cpu?"},
        {"cpu:0", "expected cpu:N"},
        {"cpu:4x4", "expected cpu:N"},
        {"cpu:99999", "expected cpu:N"},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        ts_topology t;
        ts_error err = {0};
        assert_int_equal(ts__topology_parse(row[i][0], -1, &t, &err), TS_INVALID_ARGUMENT);
        if (!strstr(err.msg, row[i][1])) fail_msg("%s: %s", row[i][0], err.msg);
    }
    ts_topology t;
    ts_error err = {0};
    assert_int_equal(ts__topology_parse("v6e:4x4", 2, &t, &err), TS_INVALID_ARGUMENT);
    assert_non_null(strstr(err.msg, "compile_topology_num_slices=1"));
}

/* Whatever is offered as the nearest exists, and every size behind a dash is its shape's. */
static void test_sizes(void **state)
{
    (void)state;
    static const char *const kind[] = {"v5e", "v5p", "v6e", "tpu7x"};
    for (int k = 0; k < 4; k++)
        for (int n = 0; n < 2000; n++) {
            char text[64];
            ts_topology t, again;
            ts_error err = {0};
            snprintf(text, sizeof text, "%s-%d", kind[k], n);
            if (ts__topology_parse(text, 1, &t, &err) == TS_OK) {
                assert_int_equal(ts__topology_parse(t.name, 1, &again, &err), TS_OK);
                assert_memory_equal(&t, &again, sizeof t);
                continue;
            }
            const char *p = strstr(err.msg, "nearest");
            assert_non_null(p);
            for (p = strstr(p, kind[k]); p; p = strstr(p + 1, kind[k])) {
                snprintf(text, sizeof text, "%.*s", (int)strcspn(p, " "), p);
                assert_int_equal(ts__topology_parse(text, 1, &again, NULL), TS_OK);
            }
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_known), cmocka_unit_test(test_refused),
                                       cmocka_unit_test(test_sizes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
