/* test_plugin.c – where plugins are found, in which order, and what a damaged record says. No plugin is
 * loaded here: the libraries are a few bytes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/file.h"
#include "xla/plugin.h"

static char root[512];

static const char *in_root(const char *name)
{
    static char path[8][1024];
    static int turn;
    char *p = path[turn++ % 8];
    snprintf(p, 1024, "%s/%s", root, name);
    return p;
}

static void write_file(const char *name, const char *text)
{
    ts_writer *w;
    ts_error err = {0};
    char folder[1024];
    snprintf(folder, sizeof folder, "%s", in_root(name));
    *strrchr(folder, '/') = '\0';
    assert_int_equal(ts_make_folders(folder, &err), TS_OK);
    assert_int_equal(ts_writer_open(in_root(name), false, &w, &err), TS_OK);
    assert_int_equal(ts_writer_write(w, text, strlen(text), &err), TS_OK);
    assert_int_equal(ts_writer_close(w, false, &err), TS_OK);
}

#define RECORD(file, bytes, hash)                                                                  \
    "{\"name\": \"cpu\", \"package\": \"p\", \"version\": \"1\", \"file\": \"" file                \
    "\", \"bytes\": " bytes ", \"xxh3\": \"" hash "\", \"license\": \"\", \"source\": \"\"}"
#define SOME_HASH "00112233445566778899aabbccddeeff"
#define HASH_OF_X "5c7401c0ec22eeeeeaf06c6480b2cd11" /* XXH3-128 of "x" */

static int setup(void **state)
{
    (void)state;
    snprintf(root, sizeof root, "%s/plugins.XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    if (!mkdtemp(root)) return 1;
    setenv("XDG_DATA_HOME", in_root("data"), 1);
    setenv("HOME", in_root("home"), 1);
    unsetenv("TESSERA_PLUGIN_PATH");
    unsetenv("VIRTUAL_ENV");
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    ts_error err = {0};
    return ts_remove_tree(root, &err) == TS_OK ? 0 : 1;
}

static void finds(const char *name, const char *expected)
{
    char path[4096];
    ts_error err = {0};
    ts_status status = ts__plugin_find(name, path, sizeof path, &err);
    if (status != TS_OK) print_message("%s: %s\n", name, err.msg);
    assert_int_equal(status, TS_OK);
    assert_string_equal(path, in_root(expected));
}

static void refuses(const char *name, ts_status expected, const char *part)
{
    char path[4096];
    ts_error err = {0};
    ts_status status = ts__plugin_find(name, path, sizeof path, &err);
    if (status != expected || !strstr(err.msg, part)) print_message("%s: %s\n", name, err.msg);
    assert_int_equal(status, expected);
    assert_non_null(strstr(err.msg, part));
}

static void test_order(void **state)
{
    (void)state;
    refuses("cpu", TS_NOT_FOUND, "`tessera plugins install cpu`");
    refuses("cpu", TS_NOT_FOUND, "data/tessera/plugins (does not exist)");
    refuses("gpu", TS_NOT_FOUND, "expected cpu, tpu, cuda");

    /* The environment's packages are last, then the user's folder, then TESSERA_PLUGIN_PATH in its order. */
    setenv("VIRTUAL_ENV", in_root("venv"), 1);
    write_file("venv/lib/python3.11/site-packages/libtpu/libtpu.so", "x");
    write_file("venv/lib/python3.11/site-packages/lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so",
               "x");
    finds("tpu", "venv/lib/python3.11/site-packages/libtpu/libtpu.so");
    finds("cpu", "venv/lib/python3.11/site-packages/lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so");
    write_file("data/tessera/plugins/cpu/plugin.json", RECORD("odd.so", "1", HASH_OF_X));
    write_file("data/tessera/plugins/cpu/odd.so", "x");
    finds("cpu", "data/tessera/plugins/cpu/odd.so");
    setenv("TESSERA_PLUGIN_PATH", in_root("a:"), 1);
    finds("cpu", "data/tessera/plugins/cpu/odd.so");
    write_file("a/zz/libpjrt_cpu.so", "x"); /* of the kind, under another name */
    finds("cpu", "a/zz/libpjrt_cpu.so");
    refuses("zz", TS_NOT_FOUND, "no plugin is called");
    write_file("a/pjrt_c_api_cpu_plugin.so", "x"); /* lies in the folder itself */
    finds("cpu", "a/pjrt_c_api_cpu_plugin.so");
    write_file("a/cpu/libpjrt_cpu.so", "x"); /* just this name */
    finds("cpu", "a/cpu/libpjrt_cpu.so");
    write_file("a/.cpu.tmp-1/libtpu.so", "x"); /* an install that is not done */
    finds("tpu", "venv/lib/python3.11/site-packages/libtpu/libtpu.so");
    char list[3000];
    snprintf(list, sizeof list, ":%s:%s", in_root("none"), in_root("a"));
    setenv("TESSERA_PLUGIN_PATH", list, 1);
    finds("cpu", "a/cpu/libpjrt_cpu.so");
    refuses("cuda", TS_NOT_FOUND, "none (does not exist), ");
}

static void test_paths(void **state)
{
    (void)state;
    char path[4096];
    write_file("any.so", "x");
    finds(in_root("any.so"), "any.so");
    refuses(in_root("no.so"), TS_NOT_FOUND, "there is no such file");
    refuses(root, TS_INVALID_ARGUMENT, "is a folder; expected a library");
    refuses("/dev/null", TS_INVALID_ARGUMENT, "is a device");
    ts_error err = {0};
    assert_int_equal(ts__plugin_find(in_root("any.so"), path, 5, &err), TS_INVALID_ARGUMENT);
}

static void test_folder(void **state)
{
    (void)state;
    char path[4096];
    ts_error err = {0};
    unsetenv("TESSERA_PLUGIN_PATH");
    assert_int_equal(ts__plugin_folder(NULL, path, sizeof path, &err), TS_OK);
    assert_string_equal(path, in_root("data/tessera/plugins"));
    setenv("XDG_DATA_HOME", "relative", 1);
    assert_int_equal(ts__plugin_folder(NULL, path, sizeof path, &err), TS_OK);
    assert_string_equal(path, in_root("home/.local/share/tessera/plugins"));
    setenv("TESSERA_PLUGIN_PATH", ":/x/y:/z", 1);
    assert_int_equal(ts__plugin_folder(NULL, path, sizeof path, &err), TS_OK);
    assert_string_equal(path, "/x/y");
    assert_int_equal(ts__plugin_folder("w", path, sizeof path, &err), TS_OK);
    assert_string_equal(path, "w");
    unsetenv("TESSERA_PLUGIN_PATH");
    unsetenv("HOME");
    assert_int_equal(ts__plugin_folder(NULL, path, sizeof path, &err), TS_FAILED_PRECONDITION);
    assert_non_null(strstr(err.msg, "HOME"));
}

/* ---- records --------------------------------------------------------------------------------- */

static void record_refused(const char *text, const char *part)
{
    setenv("TESSERA_PLUGIN_PATH", in_root("r"), 1);
    write_file("r/cpu/plugin.json", text);
    write_file("r/cpu/l.so", "x");
    refuses("cpu", TS_DATA_LOSS, part);
    refuses("cpu", TS_DATA_LOSS, "tessera plugins install cpu --again");
}

static void test_records(void **state)
{
    (void)state;
    record_refused("", "is empty");
    record_refused("[1]", "expected one JSON object");
    record_refused("{\"name\": \"cpu\"}", "\"package\" is missing");
    record_refused("{\"name\": 1}", "\"name\" is no text");
    record_refused("{\"name\": \"\"}", "\"name\" has 0 bytes");
    record_refused(RECORD("../l.so", "1", SOME_HASH), "expected the name of a file beside it");
    record_refused(RECORD("..", "1", SOME_HASH), "expected the name of a file beside it");
    record_refused(RECORD("l.so", "-1", SOME_HASH), "expected a whole number");
    record_refused(RECORD("l.so", "1.5", SOME_HASH), "expected a whole number");
    record_refused(RECORD("l.so", "1", "12"), "expected 32 hex digits");
    record_refused(RECORD("l.so", "1", "00112233445566778899AABBCCDDEEFF"), "32 hex digits");
    record_refused(RECORD("gone.so", "1", SOME_HASH), "is not there");
    /* A library that is not what was installed is not loaded. */
    record_refused(RECORD("l.so", "1", SOME_HASH), "the library is damaged or was replaced");
    record_refused(RECORD("l.so", "2", HASH_OF_X), "has 1 bytes, plugin.json says 2");
    write_file("r/cpu/plugin.json", RECORD("l.so", "1", HASH_OF_X));
    finds("cpu", "r/cpu/l.so");
}

static void test_record_check(void **state)
{
    (void)state;
    ts_error err = {0};
    ts_plugin_record r = {.name = "cpu", .file = "l.so", .bytes = 3, .xxh3 = SOME_HASH}, back;
    char folder[1024];
    snprintf(folder, sizeof folder, "%s", in_root("checked"));
    write_file("checked/l.so", "abcd");
    assert_int_equal(ts__plugin_record_check(folder, &r, &err), TS_DATA_LOSS);
    assert_non_null(strstr(err.msg, "has 4 bytes, plugin.json says 3"));
    write_file("checked/l.so", "abc");
    err = (ts_error){0};
    assert_int_equal(ts__plugin_record_check(folder, &r, &err), TS_DATA_LOSS);
    assert_non_null(strstr(err.msg, "XXH3 hash"));
    /* XXH3-128 of "abc", as `xxhsum -H2` prints it. */
    snprintf(r.xxh3, sizeof r.xxh3, "06b05ab6733a618578af5f94892f3950");
    err = (ts_error){0};
    assert_int_equal(ts__plugin_record_check(folder, &r, &err), TS_OK);
    assert_int_equal(ts__plugin_record_write(folder, &r, &err), TS_OK);
    assert_int_equal(ts__plugin_record_read(folder, &back, &err), TS_OK);
    assert_memory_equal(&back, &r, sizeof r);
    assert_int_equal(ts__plugin_record_read(root, &back, &err), TS_NOT_FOUND);
}

static void test_no_memory(void **state)
{
    (void)state;
    char path[4096];
    setenv("TESSERA_PLUGIN_PATH", in_root("r"), 1);
    for (uint64_t nth = 1;; nth++) {
        ts_error err = {0};
        ts_alloc_fail_at(nth);
        ts_status status = ts__plugin_find("cpu", path, sizeof path, &err);
        ts_alloc_fail_at(0);
        if (status == TS_OK) {
            assert_true(nth > 3);
            return;
        }
        assert_int_equal(status, TS_RESOURCE_EXHAUSTED); /* and not that none is installed */
        assert_true(err.msg[0] && nth < 1000);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),        cmocka_unit_test(test_paths),
        cmocka_unit_test(test_folder),       cmocka_unit_test(test_records),
        cmocka_unit_test(test_record_check), cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
