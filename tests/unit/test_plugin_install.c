/* test_plugin_install.c – installing a plugin with a pip that is a script of ours: what comes to be, and that
 * nothing is left or lost when pip, the wheel, the disk, memory or the process itself fails.
 *
 * Wheels are made here, whole and hostile; the library in them is no real one, so that no plugin is ever loaded.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <zip.h>

#include "base/file.h"
#include "xla/plugin.h"
#include "xla/wheel.h"

#define MEMBER  "lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so"
#define LIBRARY "\177ELF a library of a few bytes"

static char root[512], said[20000];

static const char *in_root(const char *name)
{
    static char path[8][1024];
    static int turn;
    char *p = path[turn++ % 8];
    snprintf(p, 1024, "%s/%s", root, name);
    return p;
}

static void write_file(const char *name, const void *data, size_t n)
{
    ts_writer *w;
    ts_error err = {0};
    assert_int_equal(ts_writer_open(in_root(name), false, &w, &err), TS_OK);
    assert_int_equal(ts_writer_write(w, data, n, &err), TS_OK);
    assert_int_equal(ts_writer_close(w, false, &err), TS_OK);
}

static size_t read_file(const char *name, char **data)
{
    size_t n;
    ts_error err = {0};
    assert_int_equal(ts_file_read_all(in_root(name), 1 << 28, data, &n, &err), TS_OK);
    return n;
}

/* ---- wheels ---------------------------------------------------------------------------------- */

typedef struct member {
    const char *name, *data;
    size_t n;
    bool raw;          /* as it is, with the sizes and checksum below */
    uint64_t promised; /* bytes it says it unpacks to */
    unsigned long crc;
} member;

static void make_wheel(const member *m, size_t n)
{
    zipFile zip = zipOpen64(in_root("wheel"), APPEND_STATUS_CREATE);
    assert_non_null(zip);
    for (size_t i = 0; i < n; i++) {
        zip_fileinfo info = {0};
        assert_int_equal(zipOpenNewFileInZip2_64(zip, m[i].name, &info, NULL, 0, NULL, 0, NULL,
                                                 m[i].raw ? 0 : Z_DEFLATED, 1, m[i].raw, 1),
                         ZIP_OK);
        assert_int_equal(zipWriteInFileInZip(zip, m[i].data, (unsigned)m[i].n), ZIP_OK);
        assert_int_equal(m[i].raw ? zipCloseFileInZipRaw64(zip, m[i].promised, m[i].crc)
                                  : zipCloseFileInZip(zip),
                         ZIP_OK);
    }
    assert_int_equal(zipClose(zip, NULL), ZIP_OK);
}

static void make_good_wheel(void)
{
    static const char license[] = "Some Licence\n\n  of three lines\nand these";
    const member m[] = {
        {.name = "x.dist-info/METADATA", .data = "Name: x", .n = 7},
        {.name = MEMBER, .data = LIBRARY, .n = sizeof LIBRARY - 1},
        {.name = "x.dist-info/licenses/LICENSE", .data = license, .n = sizeof license - 1}};
    make_wheel(m, 3);
}

/* A library that takes a moment to unpack. */
static void make_big_wheel(size_t bytes)
{
    char *data = calloc(1, bytes);
    assert_non_null(data);
    memcpy(data, LIBRARY, sizeof LIBRARY);
    make_wheel(&(member){.name = MEMBER, .data = data, .n = bytes}, 1);
    free(data);
}

/* ---- an install ------------------------------------------------------------------------------ */

static void keep_line(void *context, const char *text)
{
    (void)context;
    size_t n = strlen(said);
    snprintf(said + n, sizeof said - n, "%s\n", text);
}

static int stop_left; /* the nth question is answered with yes; 0: never */

static bool stop(void *context)
{
    (void)context;
    return stop_left > 0 && --stop_left == 0;
}

static ts_status install(bool again, ts_error *err)
{
    ts_plugin_install_options o;
    ts_plugin_info info;
    ts_plugin_install_options_default(&o);
    o.name = "cpu";
    o.folder = in_root("plugins");
    o.again = again;
    o.line = keep_line;
    o.stop = stop;
    said[0] = '\0';
    *err = (ts_error){0};
    return ts_plugin_install(&o, &info, err);
}

static void pip_shall(const char *what)
{
    setenv("FAKE_PIP", what, 1);
    unlink(in_root("calls"));
}

static long pip_calls(void)
{
    struct stat st;
    return stat(in_root("calls"), &st) == 0 ? st.st_size : 0;
}

/* No temporary folder; the plugin is there whole, or not at all. */
static bool clean_and_whole(void)
{
    char **names;
    size_t n;
    ts_error err = {0};
    ts_plugin_record r;
    bool whole = false;
    if (ts_list_folder(in_root("plugins"), &names, &n, &err) != TS_OK) return false;
    for (size_t i = 0; i < n; i++) {
        if (strcmp(names[i], ".lock") == 0) continue;
        if (strcmp(names[i], "cpu") != 0) fail_msg("left behind: %s", names[i]);
        assert_int_equal(ts__plugin_record_read(in_root("plugins/cpu"), &r, &err), TS_OK);
        assert_int_equal(ts__plugin_record_check(in_root("plugins/cpu"), &r, &err), TS_OK);
        whole = true;
    }
    ts_names_free(names, n);
    return whole;
}

static void start_empty(void)
{
    ts_error err = {0};
    assert_int_equal(ts_remove_tree(in_root("plugins"), &err), TS_OK);
    stop_left = 0;
    pip_shall("bring");
}

static void refuses(ts_status expected, const char *part)
{
    ts_error err;
    ts_status status = install(true, &err);
    if (status != expected || !strstr(err.msg, part))
        print_message("expected %s, got %s: %s\n", part, ts_status_name(status), err.msg);
    assert_int_equal(status, expected);
    assert_non_null(strstr(err.msg, part));
}

/* A script in pip's place: $FAKE_PIP says what it does. */
static const char script[] =
    "#!/bin/sh\n"
    "printf x >>\"$FAKE_ROOT/calls\"\n"
    "[ \"$1 $2 $3\" = '-m pip download' ] || { echo \"called with $*\"; exit 9; }\n"
    "while [ \"$1\" != -d ]; do shift; done\n"
    "to=$2 wanted=$3\n"
    "[ \"$TMPDIR\" = \"$to\" ] || { echo 'TMPDIR is not the folder'; exit 9; }\n"
    "bring() { cp \"$FAKE_ROOT/wheel\" \"$to/lammps_jax_pjrt_cpu-0.11.2-py3-none-$1.whl\"; }\n"
    "case $FAKE_PIP in\n"
    "bring) bring any ;;\n"
    "two) bring any; bring other ;;\n"
    "none) ;;\n"
    "stall) mkdir \"$to/pip-unpack-1\"; echo half >\"$to/pip-unpack-1/half\"\n"
    "    sleep 600 & echo $! >\"$FAKE_ROOT/pid\"; wait ;;\n" /* its child, as of a script that wraps python */
    "killed) kill -TERM $$; sleep 5 ;;\n"
    "*) echo 'a line before'; printf '%s\\n' \"$FAKE_PIP\"; exit 1 ;;\n"
    "esac\n";

static int setup(void **state)
{
    (void)state;
    char path[2000];
    ts_error err = {0};
    snprintf(root, sizeof root, "%s/install.XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    if (!mkdtemp(root) || ts_make_folders(in_root("bin"), &err) != TS_OK) return 1;
    write_file("bin/python3", script, sizeof script - 1);
    if (chmod(in_root("bin/python3"), 0755) != 0) return 1;
    snprintf(path, sizeof path, "%s:%s", in_root("bin"), getenv("PATH"));
    setenv("PATH", path, 1);
    setenv("FAKE_ROOT", root, 1);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    ts_error err = {0};
    return ts_remove_tree(root, &err) == TS_OK ? 0 : 1;
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void test_whole(void **state)
{
    (void)state;
    ts_error err;
    char *text;
    start_empty();
    make_good_wheel();
    assert_int_equal(install(false, &err), TS_OK);
    assert_true(clean_and_whole());
    assert_non_null(strstr(said, "licence: Apache-2.0"));
    assert_non_null(strstr(said, "| Some Licence\n  | of three lines\n  | and these"));
    assert_non_null(strstr(said, "installed lammps-jax-pjrt-cpu 0.11.2"));
    assert_int_equal(read_file("plugins/cpu/pjrt_c_api_cpu_plugin.so", &text), sizeof LIBRARY - 1);
    assert_memory_equal(text, LIBRARY, sizeof LIBRARY - 1);
    ts_free(text);
    assert_int_equal(pip_calls(), 1);

    assert_int_equal(install(false, &err), TS_OK); /* the same version: no download */
    assert_non_null(strstr(said, "is already there"));
    assert_int_equal(pip_calls(), 1);
    signal(SIGCHLD, SIG_IGN); /* nobody tells then how pip ended; its wheel does */
    assert_int_equal(install(true, &err), TS_OK);
    signal(SIGCHLD, SIG_DFL);
    assert_int_equal(pip_calls(), 2);
    assert_true(clean_and_whole());

    write_file("plugins/cpu/pjrt_c_api_cpu_plugin.so", "broken", 6);
    assert_int_equal(install(false, &err), TS_OK); /* damaged: replaced unasked */
    assert_non_null(strstr(said, "has 6 bytes, plugin.json says"));
    assert_int_equal(pip_calls(), 3);
    assert_true(clean_and_whole());

    write_file("plugins/cpu/plugin.json", "{", 1);
    assert_int_equal(install(false, &err), TS_OK);
    assert_true(clean_and_whole());
}

static void test_names_and_licences(void **state)
{
    (void)state;
    ts_plugin_install_options o;
    ts_plugin_info info;
    ts_error err = {0};
    start_empty();
    ts_plugin_install_options_default(&o);
    o.folder = in_root("plugins");
    assert_int_equal(ts_plugin_install(&o, &info, &err), TS_INVALID_ARGUMENT);
    o.name = "cdua";
    err = (ts_error){0};
    assert_int_equal(ts_plugin_install(&o, &info, &err), TS_INVALID_ARGUMENT);
    assert_non_null(strstr(err.msg, "did you mean cuda?"));
    o.name = "tpu";
    err = (ts_error){0};
    assert_int_equal(ts_plugin_install(&o, &info, &err), TS_FAILED_PRECONDITION);
    assert_non_null(strstr(err.msg, "--accept-license"));
    assert_int_equal(pip_calls(), 0);
    assert_int_equal(ts_path_kind_of(o.folder), TS_PATH_NONE);
}

static void test_not_ours(void **state)
{
    (void)state;
    ts_error err;
    start_empty();
    make_good_wheel();
    assert_int_equal(ts_make_folders(in_root("plugins/cpu"), &err), TS_OK);
    write_file("plugins/cpu/mine", "x", 1);
    refuses(TS_ALREADY_EXISTS, "was not made by `tessera plugins install`");
    assert_int_equal(ts_path_kind_of(in_root("plugins/cpu/mine")), TS_PATH_FILE);
    start_empty();
    assert_int_equal(ts_make_folders(in_root("plugins"), &err), TS_OK);
    ts_lock *lock;
    assert_int_equal(ts_lock_take(in_root("plugins/.lock"), &lock, &err), TS_OK);
    refuses(TS_FAILED_PRECONDITION, "another install is going on");
    ts_lock_release(lock);
}

/* Whatever fails leaves the plugin of before as it was. */
static void test_pip_fails(void **state)
{
    (void)state;
    static const struct {
        const char *does, *part;
        ts_status status;
    } row[] = {
        {"/usr/bin/python3: No module named pip", "apt-get install python3-pip", TS_UNAVAILABLE},
        {"WARNING: NewConnectionError: Temporary failure in name resolution\n"
         "ERROR: No matching distribution found for x",
         "the package index cannot be reached", TS_UNAVAILABLE},
        {"ERROR: No matching distribution found for x",
         "has no lammps-jax-pjrt-cpu==0.11.2 for this", TS_UNAVAILABLE},
        {"OSError: [Errno 28] No space left on device", "no room for the download",
         TS_RESOURCE_EXHAUSTED},
        {"ERROR: something else", "(exit code 1); its last lines:\na line before\nERROR: something",
         TS_UNAVAILABLE},
        {"killed", "(exit code 143)", TS_UNAVAILABLE},
        {"two", "pip brought 2 wheels", TS_UNAVAILABLE},
        {"none", "pip brought 0 wheels", TS_UNAVAILABLE},
    };
    ts_error err;
    make_good_wheel();
    for (int there = 0; there < 2; there++) {
        start_empty();
        if (there) assert_int_equal(install(false, &err), TS_OK);
        for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
            pip_shall(row[i].does);
            refuses(row[i].status, row[i].part);
            assert_int_equal(clean_and_whole(), there);
        }
        char *path = strdup(getenv("PATH"));
        setenv("PATH", in_root("nowhere"), 1);
        refuses(TS_UNAVAILABLE, "python3 cannot be started");
        setenv("PATH", path, 1);
        free(path);
        assert_int_equal(clean_and_whole(), there);
    }
}

static void test_hostile_wheels(void **state)
{
    (void)state;
    const member other = {.name = "a/x.so", .data = LIBRARY, .n = 20};
    const member text = {.name = MEMBER, .data = "#!/bin/sh", .n = 9};
    const member raw = {.name = MEMBER, .data = LIBRARY, .n = 20, .raw = true, .promised = 20};
    const member two[] = {{.name = MEMBER, .data = LIBRARY, .n = 20},
                          {.name = "b/pjrt_c_api_cpu_plugin.so", .data = LIBRARY, .n = 20}};
    member m;
    start_empty();
    write_file("wheel", "", 0);
    refuses(TS_DATA_LOSS, "is no zip file");
    write_file("wheel", "PK\003\004 and no more", 16);
    refuses(TS_DATA_LOSS, "is no zip file");
    make_wheel(&other, 1);
    refuses(TS_DATA_LOSS, "has no pjrt_c_api_cpu_plugin.so in it");
    make_wheel(two, 2);
    refuses(TS_DATA_LOSS, "expected one");
    make_wheel(&text, 1);
    refuses(TS_DATA_LOSS, "expected a library (ELF)");
    make_wheel(&raw, 1); /* a checksum of 0 */
    refuses(TS_DATA_LOSS, "checksum (CRC-32)");
    m = raw, m.promised = 1000;
    make_wheel(&m, 1);
    refuses(TS_DATA_LOSS, "");
    m = raw, m.promised = 3;
    make_wheel(&m, 1);
    refuses(TS_DATA_LOSS, "");
    m = raw, m.promised = UINT32_MAX;
    make_wheel(&m, 1);
    refuses(TS_DATA_LOSS, "");
    assert_false(clean_and_whole());

    /* A path that leads out is a name like any other: the library still lands where it shall. */
    ts_error err;
    m = two[0], m.name = "../../../pjrt_c_api_cpu_plugin.so";
    make_wheel(&m, 1);
    assert_int_equal(install(true, &err), TS_OK);
    assert_true(clean_and_whole());
    assert_int_equal(ts_path_kind_of(in_root("pjrt_c_api_cpu_plugin.so")), TS_PATH_NONE);
}

static void test_too_large(void **state)
{
    (void)state;
    ts_error err = {0};
    ts_wheel *w;
    uint64_t bytes;
    make_good_wheel();
    assert_int_equal(ts__wheel_open(in_root("wheel"), &w, &err), TS_OK);
    assert_int_equal(ts__wheel_find(w, "no.so", &bytes, &err), TS_OK);
    assert_true(bytes == UINT64_MAX);
    assert_int_equal(ts__wheel_find(w, "cpu_plugin.so", &bytes, &err), TS_OK);
    assert_true(bytes == UINT64_MAX); /* not the end of a name, a name */
    assert_int_equal(ts__wheel_find(w, MEMBER, &bytes, &err), TS_OK);
    assert_int_equal(bytes, sizeof LIBRARY - 1);
    assert_int_equal(ts__wheel_unpack(w, in_root("large"), 5, NULL, NULL, &err), TS_DATA_LOSS);
    assert_non_null(strstr(err.msg, "expected at most 5"));
    assert_int_equal(ts_path_kind_of(in_root("large")), TS_PATH_NONE);
    ts__wheel_close(w);
}

/* Cut anywhere, or any byte changed: refused, or the very same library. */
static void test_damaged_wheels(void **state)
{
    (void)state;
    char *data, *back;
    ts_error err;
    start_empty();
    make_good_wheel();
    size_t n = read_file("wheel", &data);
    const char *to = in_root("unpacked");
    for (size_t i = 0; i < 2 * n; i++) {
        ts_wheel *w = NULL;
        uint64_t bytes = 0;
        err = (ts_error){0};
        if (i < n) {
            write_file("wheel", data, i);
        } else {
            data[i - n] ^= 0x41;
            write_file("wheel", data, n);
            data[i - n] ^= 0x41;
        }
        ts_status status = ts__wheel_open(in_root("wheel"), &w, &err);
        if (status == TS_OK) status = ts__wheel_find(w, "pjrt_c_api_cpu_plugin.so", &bytes, &err);
        if (status == TS_OK && bytes != UINT64_MAX)
            status = ts__wheel_unpack(w, to, 1 << 20, NULL, NULL, &err);
        if (status == TS_OK && bytes != UINT64_MAX) {
            assert_int_equal(read_file("unpacked", &back), sizeof LIBRARY - 1);
            assert_memory_equal(back, LIBRARY, sizeof LIBRARY - 1);
            ts_free(back);
        }
        assert_true(status == TS_OK || (status == TS_DATA_LOSS && err.msg[0]));
        assert_true(i >= n || status != TS_OK);
        ts__wheel_close(w);
    }
    ts_free(data);
}

static void test_stopped(void **state)
{
    (void)state;
    ts_error err;
    start_empty();
    pip_shall("stall");
    stop_left = 2;
    refuses(TS_CANCELLED, "interrupted while pip was downloading");
    assert_false(clean_and_whole());
    pip_shall("bring");
    make_big_wheel(5 << 20);
    int nth = 1;
    for (;; nth++) { /* every question once: while downloading, unpacking, before the end */
        stop_left = nth;
        ts_status status = install(true, &err);
        if (status == TS_OK && stop_left > 0) break;
        assert_int_equal(status, TS_CANCELLED);
        assert_false(clean_and_whole());
        assert_true(nth < 100);
    }
    assert_true(nth > 6);
    assert_true(clean_and_whole());
}

static bool gone(pid_t pid)
{
    for (int i = 0; i < 100; i++) {
        if (kill(pid, 0) != 0 && errno == ESRCH) return true;
        usleep(20000);
    }
    return false;
}

static pid_t install_in_child(void)
{
    ts_error err;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) _exit(install(true, &err) == TS_OK ? 0 : 1);
    return pid;
}

static void test_killed(void **state)
{
    (void)state;
    ts_error err;
    char *text;
    int interrupted = 0;
    start_empty();
    pip_shall("stall");
    unlink(in_root("pid"));
    pid_t pid = install_in_child();
    while (ts_path_kind_of(in_root("pid")) != TS_PATH_FILE || read_file("pid", &text) < 2)
        usleep(10000);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    assert_true(gone((pid_t)strtol(text, NULL, 10))); /* pip does not outlive it */
    ts_free(text);
    pip_shall("bring");
    make_big_wheel(32 << 20);
    assert_int_equal(install(true, &err), TS_OK);
    assert_non_null(strstr(said, "removing what an interrupted install left"));
    assert_true(clean_and_whole());

    double began = ts_clock_seconds();
    pid = install_in_child();
    int state_of_it;
    waitpid(pid, &state_of_it, 0);
    assert_int_equal(state_of_it, 0);
    double whole = ts_clock_seconds() - began;
    for (int i = 0; i < 16; i++) {
        ts_plugin_record r;
        pid = install_in_child();
        usleep((useconds_t)(whole * 1e6 * (i + 0.5) / 16));
        kill(pid, SIGKILL);
        waitpid(pid, &state_of_it, 0);
        interrupted += WIFSIGNALED(state_of_it);
        /* The plugin of before, or the new one: whole either way. */
        assert_int_equal(ts__plugin_record_read(in_root("plugins/cpu"), &r, &err), TS_OK);
        assert_int_equal(ts__plugin_record_check(in_root("plugins/cpu"), &r, &err), TS_OK);
    }
    assert_true(interrupted >= 2);
    assert_int_equal(install(true, &err), TS_OK);
    assert_true(clean_and_whole());
}

/* Every call into the file system fails once, with a disk that is full or one that is broken. */
static void test_faults(void **state)
{
    (void)state;
    static const int errors[] = {ENOSPC, EIO};
    make_good_wheel();
    for (unsigned op = TS_FAULT_OPEN; op <= TS_FAULT_LOCK; op <<= 1) {
        int failures = 0, successes = 0; /* four in a row: there are no more calls to fail */
        for (uint64_t nth = 1; successes < 4; nth++) {
            ts_error err;
            start_empty();
            ts_file_fault(op, nth, errors[nth % 2]);
            ts_status status = install(true, &err);
            ts_file_fault(0, 0, 0);
            failures += status != TS_OK;
            successes = status == TS_OK ? successes + 1 : 0;
            assert_true(status == TS_OK || err.msg[0]);
            if (ts_path_kind_of(in_root("plugins")) == TS_PATH_FOLDER)
                assert_true(clean_and_whole() || status != TS_OK);
            assert_true(nth < 100);
        }
        assert_true(failures > 0);
    }
}

/* A file system that cannot exchange two folders: two renames take its place. */
static void test_no_exchange(void **state)
{
    (void)state;
    ts_error err;
    make_good_wheel();
    start_empty();
    assert_int_equal(install(true, &err), TS_OK);
    ts_file_fault(TS_FAULT_RENAME, 1, EINVAL);
    assert_int_equal(install(true, &err), TS_OK);
    ts_file_fault(0, 0, 0);
    assert_true(clean_and_whole());
}

static void test_no_memory(void **state)
{
    (void)state;
    int successes =
        0; /* some allocations can be done without: the folder's size, a line of progress */
    uint64_t nth = 1;
    make_good_wheel();
    for (; successes < 12; nth++) {
        ts_error err;
        start_empty();
        ts_alloc_fail_at(nth);
        ts_status status = install(true, &err);
        ts_alloc_fail_at(0);
        successes = status == TS_OK ? successes + 1 : 0;
        assert_true(status == TS_OK || err.msg[0]);
        if (ts_path_kind_of(in_root("plugins")) == TS_PATH_FOLDER)
            assert_true(clean_and_whole() || status != TS_OK);
        assert_true(nth < 400);
    }
    assert_true(nth > 30);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole),          cmocka_unit_test(test_names_and_licences),
        cmocka_unit_test(test_not_ours),       cmocka_unit_test(test_pip_fails),
        cmocka_unit_test(test_hostile_wheels), cmocka_unit_test(test_too_large),
        cmocka_unit_test(test_damaged_wheels), cmocka_unit_test(test_stopped),
        cmocka_unit_test(test_killed),         cmocka_unit_test(test_faults),
        cmocka_unit_test(test_no_exchange),    cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
