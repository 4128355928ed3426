/* test_saved.c – files of compiled programs: what is written is read; what does not fit is named, both values. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/file.h"
#include "xla/saved.h"

static const ts_saved_key key = {"v6e:4x4", "00112233445566778899aabbccddeeff",
                                 "TPU v6\nBuilt on a \"Monday\""};
static char folder[] = "/tmp/tessera-saved-XXXXXX";

static const char *path_of(const char *name)
{
    static char path[200];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void refused(const char *path, const ts_saved_key *want, ts_status status, const char *a,
                    const char *b)
{
    void *bytes = &bytes;
    size_t n = 1;
    ts_error err = {0};
    assert_int_equal(ts__saved_read(path, want, &bytes, &n, &err), status);
    assert_null(bytes);
    assert_int_equal(n, 0);
    if (!strstr(err.msg, a) || !strstr(err.msg, b)) fail_msg("%s", err.msg);
}

static void test_round(void **state)
{
    (void)state;
    unsigned char data[5000];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (unsigned char)(i * 7 + i / 256);
    static const size_t sizes[] = {0, 1, 4999, 5000};
    for (int i = 0; i < 4; i++) {
        void *bytes;
        size_t n;
        ts_error err = {0};
        assert_int_equal(ts__saved_write(path_of("a"), &key, data, sizes[i], &err), TS_OK);
        assert_int_equal(ts__saved_read(path_of("a"), &key, &bytes, &n, &err), TS_OK);
        assert_int_equal(n, sizes[i]);
        assert_memory_equal(bytes, data, n);
        ts_free(bytes);
    }
    char **names;
    size_t n;
    assert_int_equal(ts_list_folder(folder, &names, &n, NULL), TS_OK);
    assert_int_equal(n, 1); /* nothing temporary is left */
    ts_names_free(names, n);
    ts_error err = {0};
    assert_int_not_equal(ts__saved_write(path_of("none/a"), &key, data, 1, &err), TS_OK);
    assert_non_null(strstr(err.msg, "none/a"));
}

static void test_mismatch(void **state)
{
    (void)state;
    assert_int_equal(ts__saved_write(path_of("a"), &key, "code", 4, NULL), TS_OK);
    ts_saved_key other = key;
    strcpy(other.topology, "v6e:2x2");
    refused(path_of("a"), &other, TS_FAILED_PRECONDITION, "another topology: it has v6e:4x4",
            "needs v6e:2x2");
    other = key;
    strcpy(other.plugin, "cpu 3");
    refused(path_of("a"), &other, TS_FAILED_PRECONDITION,
            "another plugin: it has TPU v6 Built on a \"Monday\"", "needs cpu 3");
    other = key;
    other.program[31] = '0';
    refused(path_of("a"), &other, TS_FAILED_PRECONDITION, key.program, other.program);
}

/* Any cut and any changed byte is noticed. */
static void test_damage(void **state)
{
    (void)state;
    char *text;
    size_t n, count;
    void *bytes;
    assert_int_equal(ts__saved_write(path_of("a"), &key, "the code", 8, NULL), TS_OK);
    assert_int_equal(ts_file_read_all(path_of("a"), 1 << 16, &text, &n, NULL), TS_OK);
    for (size_t i = 0; i < 2 * n; i++) {
        size_t cut = i < n ? i : n;
        ts_writer *w;
        if (i >= n) text[i - n] ^= 1;
        assert_int_equal(ts_writer_open(path_of("b"), false, &w, NULL), TS_OK);
        assert_int_equal(ts_writer_write(w, text, cut, NULL), TS_OK);
        assert_int_equal(ts_writer_close(w, false, NULL), TS_OK);
        ts_error err = {0};
        ts_status status = ts__saved_read(path_of("b"), &key, &bytes, &count, &err);
        if (status != TS_DATA_LOSS && status != TS_FAILED_PRECONDITION)
            fail_msg("at %zu: %d %s", i, (int)status, err.msg);
        if (i >= n) text[i - n] ^= 1;
    }
    ts_free(text);
    refused(path_of("b2"), &key, TS_NOT_FOUND, "b2", "");
    refused(folder, &key, TS_INVALID_ARGUMENT, "folder", "");
}

static void test_hash(void **state)
{
    (void)state;
    char a[40], b[40], c[40], d[40];
    ts__saved_key_program("program", 7, "options", 7, a);
    ts__saved_key_program("program", 7, "options", 7, b);
    ts__saved_key_program("programo", 8, "ptions", 6, c);
    ts__saved_key_program("program", 7, "optionz", 7, d);
    assert_int_equal(strlen(a), 32);
    assert_string_equal(a, b);
    assert_string_not_equal(a, c);
    assert_string_not_equal(a, d);
}

/* XLA's CPU plugins all call their version "cpu": the interface's versions tell them apart. */
static void test_plugin(void **state)
{
    (void)state;
    ts_pjrt old = {.major = 0, .minor = 106, .stablehlo = "1.16.1"}, new = old;
    ts_saved_key a = key, b = key;
    ts__saved_key_plugin(&old, "cpu", "cpu", &a);
    assert_string_equal(a.plugin, "cpu cpu, PJRT 0.106, StableHLO 1.16.1");
    new.minor = 115;
    ts__saved_key_plugin(&new, "cpu", "cpu", &b);
    assert_string_not_equal(a.plugin, b.plugin);
    new = old;
    strcpy(new.stablehlo, "1.20.0");
    ts__saved_key_plugin(&new, "cpu", "cpu", &b);
    assert_int_equal(ts__saved_write(path_of("a"), &a, "code", 4, NULL), TS_OK);
    refused(path_of("a"), &b, TS_FAILED_PRECONDITION, "another plugin: it has cpu cpu, PJRT 0.106",
            "StableHLO 1.20.0");
    char long_version[900];
    memset(long_version, 'v', sizeof long_version - 1);
    long_version[sizeof long_version - 1] = '\0';
    ts__saved_key_plugin(&old, "tpu", long_version, &a);
    ts__saved_key_plugin(&new, "tpu", long_version, &b);
    assert_string_not_equal(a.plugin, b.plugin); /* cut, but not there */
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}
static int remove_folder(void **state)
{
    (void)state;
    return ts_remove_tree(folder, NULL) == TS_OK ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_round), cmocka_unit_test(test_mismatch),
                                       cmocka_unit_test(test_damage), cmocka_unit_test(test_hash),
                                       cmocka_unit_test(test_plugin)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
