/* test_child.c – work in a child process: what comes back, and every way to end, in words; libraries opened beforehand.
 *
 * The children here are functions of this file; plugins that behave like them are in test_xla_probe.c.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "xla/child.h"
#include "xla/preload.h"

static void say(const char *text)
{
    if (write(2, text, strlen(text)) < 0) _exit(9);
}

static void answer(int fd, const char *data, size_t n)
{
    while (n) {
        ssize_t done = write(fd, data, n);
        if (done <= 0) _exit(9);
        data += done;
        n -= (size_t)done;
    }
}

static void works(void *context, int fd)
{
    const char *v = getenv("TEST_CHILD"), *w = getenv("TEST_CHILD_KEPT");
    say("working\n");
    answer(fd, context, strlen(context));
    answer(fd, v ? v : "?", strlen(v ? v : "?"));
    answer(fd, w ? w : "?", strlen(w ? w : "?"));
}

static void returns_much(void *context, int fd)
{
    size_t n = *(size_t *)context;
    char *data = malloc(n);
    memset(data, 'x', n);
    for (int i = 0; i < 5000; i++) say("line after line of no interest\n");
    answer(fd, data, n);
    say("the last line\n");
    free(data);
}

static void aborts(void *context, int fd)
{
    (void)context;
    (void)fd;
    say("F1130 12:00:00 123 thing.cc:9] Check failed: a == b\n*** stack trace ***\n    @ 0x1234 main\n");
    abort();
}

static void stops_with_words(void *context, int fd)
{
    (void)fd;
    say("first\n  second word\t!\n\n");
    exit(*(int *)context);
}

static void crashes(void *context, int fd)
{
    (void)context;
    (void)fd;
    signal(SIGSEGV, SIG_DFL);
    raise(SIGSEGV);
}

static void hangs(void *context, int fd)
{
    (void)context;
    (void)fd;
    say("waiting for the cloud\n");
    for (;;) pause();
}

/* Leaves a child of its own that holds all pipes open. */
static void leaves_one_behind(void *context, int fd)
{
    (void)context;
    pid_t pid = fork();
    if (pid == 0) {
        sleep(20);
        _exit(0);
    }
    answer(fd, "left", 4);
}

static void fills_memory(void *context, int fd)
{
    (void)context;
    size_t n = (size_t)64 << 20;
    char *p = malloc(n);
    for (size_t i = 0; i < n; i += 4096) ((volatile char *)p)[i] = 1;
    answer(fd, "full", 4);
    free(p);
}

/* Ctrl-C, as the parent alone sees it, and then nothing more; or the answer where the context says so. */
static void sends_signal(void *context, int fd)
{
    const int *w = context; /* the signal; 1: go on */
    kill(getppid(), w[0]);
    if (w[1]) {
        usleep(300000); /* several looks of the parent's */
        answer(fd, "done", 4);
        return;
    }
    for (;;) pause();
}

static void tells_group(void *context, int fd)
{
    (void)context;
    pid_t group = getpgrp();
    answer(fd, (const char *)&group, sizeof group);
}

static void expect_words(void (*work)(void *, int), void *context, double timeout, ts_status status,
                         const char *words)
{
    ts_child_result r;
    ts_error err = {0};
    assert_int_equal(ts__child_run("the child", timeout, NULL, 0, work, context, &r, &err), status);
    assert_string_equal(err.msg, words);
    ts__child_result_free(&r);
}

static void comes_back(void **state)
{
    (void)state;
    const char *env[] = {"TEST_CHILD=set"};
    ts_child_result r;
    ts_error err = {0};
    setenv("TEST_CHILD_KEPT", "kept", 1);
    if (ts__child_run("the child", 10, env, 1, works, "hello ", &r, &err) != TS_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(r.bytes.length, 13);
    assert_memory_equal(r.bytes.data, "hello setkept", 13);
    assert_string_equal(r.output.data, "working\n");
    assert_null(getenv("TEST_CHILD")); /* the parent's environment is its own */
    ts__child_result_free(&r);
}

static void large_results(void **state)
{
    (void)state;
    size_t n = 3000001;
    ts_child_result r;
    ts_error err = {0};
    if (ts__child_run("the child", 30, NULL, 0, returns_much, &n, &r, &err) != TS_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(r.bytes.length, n);
    assert_int_equal(r.bytes.data[n - 1], 'x');
    assert_true(r.output.length <= 8 << 10 && r.output.length > 7 << 10);
    assert_string_equal(r.output.data + r.output.length - 14, "the last line\n");
    ts__child_result_free(&r);
}

static void every_end(void **state)
{
    (void)state;
    int code = 3, none = 0;
    expect_words(
        aborts, NULL, 10, TS_UNAVAILABLE,
        "the child was ended by SIGABRT: F1130 12:00:00 123 thing.cc:9] Check failed: a == b");
    expect_words(stops_with_words, &code, 10, TS_UNAVAILABLE,
                 "the child exited with code 3: second word !");
    expect_words(stops_with_words, &none, 10, TS_UNAVAILABLE,
                 "the child exited with code 0 before its work was done: second word !");
    expect_words(crashes, NULL, 10, TS_UNAVAILABLE, "the child was ended by SIGSEGV");
}

static volatile sig_atomic_t seen;

static void on_signal(int number)
{
    seen = number;
}

/* A signal that asks this process to end ends the child first, and then reaches its handler. */
static void signals(void **state)
{
    (void)state;
    static const int ends[] = {SIGINT, SIGTERM, SIGHUP};
    for (int i = 0; i < 3; i++) {
        int stay[] = {ends[i], 0}, go_on[] = {ends[i], 1};
        ts_child_result r;
        ts_error err = {0};
        seen = 0;
        signal(ends[i], on_signal);
        expect_words(sends_signal, stay, 30, TS_CANCELLED, "the child was stopped by a signal");
        assert_int_equal(seen, ends[i]);
        /* One that is ignored, as in a shell's background job, changes nothing. */
        signal(ends[i], SIG_IGN);
        assert_int_equal(ts__child_run("the child", 30, NULL, 0, sends_signal, go_on, &r, &err),
                         TS_OK);
        assert_int_equal(r.bytes.length, 4);
        ts__child_result_free(&r);
        signal(ends[i], SIG_DFL);
    }
    /* A terminal's Ctrl-C goes to a whole group. */
    ts_child_result r;
    ts_error err = {0};
    assert_int_equal(ts__child_run("the child", 30, NULL, 0, tells_group, NULL, &r, &err), TS_OK);
    assert_int_equal(r.bytes.length, sizeof(pid_t));
    assert_int_not_equal(*(pid_t *)(void *)r.bytes.data, getpgrp());
    ts__child_result_free(&r);
}

/* Who ignores SIGCHLD is not told how children end. */
static void unknown_ends(void **state)
{
    (void)state;
    ts_child_result r;
    ts_error err = {0};
    const char *env[] = {"TEST_CHILD=set"};
    signal(SIGCHLD, SIG_IGN);
    assert_int_equal(ts__child_run("the child", 10, env, 1, works, "hello ", &r, &err), TS_OK);
    ts__child_result_free(&r);
    ts_status status = ts__child_run("the child", 10, NULL, 0, crashes, NULL, &r, &err);
    ts__child_result_free(&r);
    signal(SIGCHLD, SIG_DFL);
    assert_int_equal(status, TS_UNAVAILABLE);
}

static void time_limit(void **state)
{
    (void)state;
    ts_child_result r;
    ts_error err = {0};
    double start = ts_clock_seconds();
    assert_int_equal(ts__child_run("the child", 0.3, NULL, 0, hangs, NULL, &r, &err),
                     TS_DEADLINE_EXCEEDED);
    assert_true(ts_clock_seconds() - start < 20);
    assert_true(r.timed_out && r.seconds >= 0.3);
    assert_string_equal(
        err.msg,
        "the child did not end within 0.3 s and was stopped; it last said: waiting for the cloud");
    ts__child_result_free(&r);
}

static void grandchildren(void **state)
{
    (void)state;
    ts_child_result r;
    ts_error err = {0};
    double start = ts_clock_seconds();
    assert_int_equal(ts__child_run("the child", 30, NULL, 0, leaves_one_behind, NULL, &r, &err),
                     TS_OK);
    assert_true(ts_clock_seconds() - start < 15); /* its end counts, not theirs */
    assert_int_equal(r.bytes.length, 4);
    ts__child_result_free(&r);
}

static void memory_is_measured(void **state)
{
    (void)state;
    ts_child_result r;
    ts_error err = {0};
    assert_int_equal(ts__child_run("the child", 30, NULL, 0, fills_memory, NULL, &r, &err), TS_OK);
    assert_true(r.peak_bytes >= (size_t)64 << 20);
    ts__child_result_free(&r);
}

/* ---- libraries opened beforehand ------------------------------------------------------------- */

static bool mapped(const char *path)
{
    char line[8192];
    bool found = false;
    FILE *f = fopen("/proc/self/maps", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) found = found || strstr(line, path);
    fclose(f);
    return found;
}

static void copy_library(const char *to)
{
    static const char *const some[] = {"/lib/x86_64-linux-gnu/libz.so.1",
                                       "/lib/aarch64-linux-gnu/libz.so.1", "/usr/lib64/libz.so.1",
                                       "/usr/lib/libz.so.1"};
    char *data;
    size_t n;
    ts_writer *w;
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        if (ts_path_kind_of(some[i]) != TS_PATH_FILE) continue;
        assert_int_equal(ts_file_read_all(some[i], 16 << 20, &data, &n, NULL), TS_OK);
        assert_int_equal(ts_writer_open(to, false, &w, NULL), TS_OK);
        assert_int_equal(ts_writer_write(w, data, n, NULL), TS_OK);
        assert_int_equal(ts_writer_close(w, false, NULL), TS_OK);
        ts_free(data);
        return;
    }
    puts("SKIP: no libz.so.1 to take for another library");
    skip();
}

/* The plugin's own site-packages and $VIRTUAL_ENV; what is nowhere is named. */
static void preloads(void **state)
{
    (void)state;
    char root[] = "/tmp/tessera-preload-XXXXXX", own[300], theirs[300], plugin[300];
    ts_string missing = ts_string_new(4000);
    if (getenv("VALGRIND")) {
        puts(
            "SKIP: glibc's loader reads past the end of a library's RPATH, which valgrind takes for a mistake");
        skip();
    }
    assert_non_null(mkdtemp(root));
    snprintf(own, sizeof own, "%s/site/nvidia/cudnn/lib", root);
    snprintf(theirs, sizeof theirs, "%s/lib/python3.99/site-packages/nvidia/cu13/lib", root);
    snprintf(plugin, sizeof plugin, "%s/site/jax_plugins/xla_cuda13/xla_cuda_plugin.so", root);
    assert_int_equal(ts_make_folders(own, NULL), TS_OK);
    assert_int_equal(ts_make_folders(theirs, NULL), TS_OK);
    strncat(own, "/libcudnn.so.9", sizeof own - strlen(own) - 1);
    strncat(theirs, "/libcufft.so.12", sizeof theirs - strlen(theirs) - 1);
    copy_library(own);
    copy_library(theirs);
    setenv("VIRTUAL_ENV", root, 1);
    ts__preload("/somewhere/else/libtpu.so", &missing);
    assert_int_equal(missing.length, 0);
    assert_false(mapped(own));
    ts__preload(plugin, &missing);
    assert_true(mapped(own) && mapped(theirs));
    assert_true(!missing.data || !strstr(missing.data, "libcudnn"));
    assert_true(!missing.data || !strstr(missing.data, "libcufft"));
    if (missing.data) assert_true(missing.length < 3 || strncmp(missing.data, "lib", 3) == 0);
    ts_string_free(&missing);
    unsetenv("VIRTUAL_ENV");
    assert_int_equal(ts_remove_tree(root, NULL), TS_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(comes_back),    cmocka_unit_test(large_results),
        cmocka_unit_test(every_end),     cmocka_unit_test(time_limit),
        cmocka_unit_test(grandchildren), cmocka_unit_test(memory_is_measured),
        cmocka_unit_test(signals),       cmocka_unit_test(unknown_ends),
        cmocka_unit_test(preloads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
