/* test_file.c – the file seam: what is refused, what a failing call leaves behind. */
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
#include <unistd.h>

#include "base/file.h"

static char root[64];

static const char *in_root(const char *name)
{
    static char path[4][1024];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof path[turn], "%s/%s", root, name);
    return path[turn];
}

static int make_root(void **state)
{
    (void)state;
    strcpy(root, "/tmp/tessera-file-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state)
{
    (void)state;
    ts_error err = {0};
    ts_file_fault(0, 0, 0);
    return ts_remove_tree(root, &err) == TS_OK ? 0 : -1;
}

static void put(const char *path, const void *data, size_t n)
{
    ts_writer *w;
    ts_error err = {0};
    assert_int_equal(ts_writer_open(path, false, &w, &err), TS_OK);
    assert_int_equal(ts_writer_write(w, data, n, &err), TS_OK);
    assert_int_equal(ts_writer_close(w, true, &err), TS_OK);
}

static void expect(ts_status status, ts_status want, const ts_error *err, const char *part)
{
    if (status != want || !strstr(err->msg, part))
        print_message("got %d: %s\n", (int)status, err->msg);
    assert_int_equal(status, want);
    assert_int_equal(err->code, want);
    assert_non_null(strstr(err->msg, part));
}

static void test_open_refuses(void **state)
{
    (void)state;
    ts_file *f;
    ts_error err = {0};
    expect(ts_file_open(root, &f, &err), TS_INVALID_ARGUMENT, &err, "is a folder; expected a file");
    err = (ts_error){0};
    expect(ts_file_open(in_root("none"), &f, &err), TS_NOT_FOUND, &err, "does not exist");
    err = (ts_error){0};
    assert_int_equal(mkfifo(in_root("pipe"), 0600), 0);
    expect(ts_file_open(in_root("pipe"), &f, &err), TS_INVALID_ARGUMENT, &err, "pipe");
    if (geteuid() != 0) {
        err = (ts_error){0};
        put(in_root("secret"), "x", 1);
        assert_int_equal(chmod(in_root("secret"), 0), 0);
        expect(ts_file_open(in_root("secret"), &f, &err), TS_PERMISSION_DENIED, &err, "permission");
    }
    err = (ts_error){0};
    ts_file_fault(TS_FAULT_OPEN, 1, EACCES);
    expect(ts_file_open(in_root("any"), &f, &err), TS_PERMISSION_DENIED, &err, "permission denied");
    assert_null(f);
    ts_file_close(NULL);
}

static void test_read(void **state)
{
    (void)state;
    put(in_root("ten"), "0123456789", 10);
    ts_file *f;
    ts_error err = {0};
    char to[16] = {0};
    assert_int_equal(ts_file_open(in_root("ten"), &f, &err), TS_OK);
    assert_int_equal(ts_file_size(f), 10);
    assert_int_equal(ts_file_read_at(f, 3, to, 4, &err), TS_OK);
    assert_memory_equal(to, "3456", 4);
    expect(ts_file_read_at(f, 8, to, 4, &err), TS_DATA_LOSS, &err, "ends at byte 10");
    err = (ts_error){0};
    expect(ts_file_read_at(f, UINT64_MAX, to, 4, &err), TS_OUT_OF_RANGE, &err, "offset");
    err = (ts_error){0};
    ts_file_fault(TS_FAULT_READ, 1, EIO);
    expect(ts_file_read_at(f, 0, to, 4, &err), TS_DATA_LOSS, &err, "input/output");
    err = (ts_error){0};
    ts_file_fault(TS_FAULT_READ, 1, 0);
    expect(ts_file_read_at(f, 0, to, 4, &err), TS_DATA_LOSS, &err, "ends at byte 0");
    ts_file_close(f);
}

static void test_read_all(void **state)
{
    (void)state;
    char *data;
    size_t n;
    ts_error err = {0};
    put(in_root("abc"), "abc", 3);
    put(in_root("empty"), "", 0);
    assert_int_equal(ts_file_read_all(in_root("abc"), 3, &data, &n, &err), TS_OK);
    assert_int_equal(n, 3);
    assert_string_equal(data, "abc");
    ts_free(data);
    assert_int_equal(ts_file_read_all(in_root("empty"), 0, &data, &n, &err), TS_OK);
    assert_string_equal(data, "");
    ts_free(data);
    expect(ts_file_read_all(in_root("abc"), 2, &data, &n, &err), TS_INVALID_ARGUMENT, &err,
           "at most 2");
    assert_null(data);
    for (uint64_t nth = 1; nth <= 3; nth++) {
        err = (ts_error){0};
        ts_alloc_fail_at(nth);
        expect(ts_file_read_all(in_root("abc"), 9, &data, &n, &err), TS_RESOURCE_EXHAUSTED, &err,
               "memory");
    }
    ts_alloc_fail_at(0);
}

static void test_writer(void **state)
{
    (void)state;
    ts_error err = {0};
    ts_writer *w;
    size_t n = 1000003, got;
    char *big = ts_alloc(n), *back;
    for (size_t i = 0; i < n; i++) big[i] = (char)(i * 7 + i / 251);
    assert_int_equal(ts_writer_open(in_root("w"), false, &w, &err), TS_OK);
    ts_file_fault(TS_FAULT_WRITE, 1, 0); /* a short write is completed */
    for (size_t at = 0; at < n;) {
        size_t part = at % 3 ? 70001 : 300;
        if (part > n - at) part = n - at;
        assert_int_equal(ts_writer_write(w, big + at, part, &err), TS_OK);
        at += part;
    }
    assert_int_equal(ts_writer_close(w, true, &err), TS_OK);
    assert_int_equal(ts_file_read_all(in_root("w"), n, &back, &got, &err), TS_OK);
    assert_int_equal(got, n);
    assert_memory_equal(back, big, n);
    ts_free(back);
    assert_int_equal(ts_writer_open(in_root("w"), true, &w, &err), TS_OK);
    assert_int_equal(ts_writer_write(w, "tail", 4, &err), TS_OK);
    assert_int_equal(ts_writer_close(w, false, &err), TS_OK);
    assert_int_equal(ts_file_read_all(in_root("w"), n + 4, &back, &got, &err), TS_OK);
    assert_memory_equal(back + n, "tail", 5);
    ts_free(back);
    ts_free(big);
}

static void test_writer_failures_stick(void **state)
{
    (void)state;
    ts_error err = {0};
    ts_writer *w;
    char *big = ts_alloc_zero(1 << 20);
    assert_int_equal(ts_writer_open(in_root("full"), false, &w, &err), TS_OK);
    ts_file_fault(TS_FAULT_WRITE, 1, ENOSPC);
    expect(ts_writer_write(w, big, 1 << 20, &err), TS_RESOURCE_EXHAUSTED, &err, "no space left");
    err = (ts_error){0};
    expect(ts_writer_write(w, big, 1, &err), TS_RESOURCE_EXHAUSTED, &err, "no space left");
    err = (ts_error){0};
    expect(ts_writer_close(w, true, &err), TS_RESOURCE_EXHAUSTED, &err, "no space left");
    err = (ts_error){0};
    assert_int_equal(ts_writer_open(in_root("sync"), false, &w, &err), TS_OK);
    assert_int_equal(ts_writer_write(w, "x", 1, &err), TS_OK);
    ts_file_fault(TS_FAULT_SYNC, 1, EIO);
    expect(ts_writer_close(w, true, &err), TS_UNKNOWN, &err, "fsync");
    err = (ts_error){0};
    for (uint64_t nth = 1; nth <= 3; nth++) {
        ts_alloc_fail_at(nth);
        err = (ts_error){0};
        expect(ts_writer_open(in_root("x"), false, &w, &err), TS_RESOURCE_EXHAUSTED, &err,
               "memory");
    }
    ts_alloc_fail_at(0);
    ts_free(big);
    err = (ts_error){0};
    if (access("/dev/full", W_OK) == 0) {
        assert_int_equal(ts_writer_open("/dev/full", false, &w, &err), TS_OK);
        assert_int_equal(ts_writer_write(w, "x", 1, &err), TS_OK);
        expect(ts_writer_close(w, false, &err), TS_RESOURCE_EXHAUSTED, &err, "no space left");
    }
}

static void test_folders(void **state)
{
    (void)state;
    ts_error err = {0};
    assert_int_equal(ts_make_folders(in_root("a/b/c/"), &err), TS_OK);
    assert_int_equal(ts_make_folders(in_root("a/b/c"), &err), TS_OK);
    assert_int_equal(ts_path_kind_of(in_root("a/b/c")), TS_PATH_FOLDER);
    assert_int_equal(ts_path_kind_of(in_root("zzz")), TS_PATH_NONE);
    put(in_root("a/file"), "x", 1);
    expect(ts_make_folders(in_root("a/file/x"), &err), TS_INVALID_ARGUMENT, &err,
           "is a file; expected a folder");
    err = (ts_error){0};
    expect(ts_make_folders("", &err), TS_INVALID_ARGUMENT, &err, "empty");
    err = (ts_error){0};
    ts_file_fault(TS_FAULT_MKDIR, 1, EROFS);
    expect(ts_make_folders(in_root("q/r"), &err), TS_PERMISSION_DENIED, &err, "read-only");
    err = (ts_error){0};
    assert_int_equal(ts_sync_folder(in_root("a"), &err), TS_OK);
    ts_file_fault(TS_FAULT_SYNC, 1, EIO);
    expect(ts_sync_folder(in_root("a"), &err), TS_UNKNOWN, &err, "fsync");
    err = (ts_error){0};
    put(in_root("a/Z"), "x", 1);
    char **names;
    size_t n;
    assert_int_equal(ts_list_folder(in_root("a"), &names, &n, &err), TS_OK);
    assert_int_equal(n, 3);
    assert_string_equal(names[0], "Z");
    assert_string_equal(names[1], "b");
    assert_string_equal(names[2], "file");
    ts_names_free(names, n);
    for (uint64_t nth = 1; nth <= 4; nth++) {
        err = (ts_error){0};
        ts_alloc_fail_at(nth);
        expect(ts_list_folder(in_root("a"), &names, &n, &err), TS_RESOURCE_EXHAUSTED, &err,
               "memory");
    }
    ts_alloc_fail_at(0);
    err = (ts_error){0};
    expect(ts_list_folder(in_root("zzz"), &names, &n, &err), TS_NOT_FOUND, &err, "does not exist");
    err = (ts_error){0};
    assert_int_equal(ts_rename(in_root("a/Z"), in_root("a/Y"), &err), TS_OK);
    expect(ts_rename(in_root("a/Z"), in_root("a/Y"), &err), TS_NOT_FOUND, &err, "rename");
    err = (ts_error){0};
    ts_file_fault(TS_FAULT_RENAME, 1, EIO);
    expect(ts_rename(in_root("a/Y"), in_root("a/X"), &err), TS_UNKNOWN, &err, "rename");
    assert_int_equal(ts_path_kind_of(in_root("a/Y")), TS_PATH_FILE);
}

static void test_link(void **state)
{
    (void)state;
    ts_error err = {0};
    struct stat a, b;
    put(in_root("one"), "x", 1);
    assert_int_equal(ts_link(in_root("one"), in_root("two"), &err), TS_OK);
    assert_true(stat(in_root("one"), &a) == 0 && stat(in_root("two"), &b) == 0);
    assert_true(a.st_ino == b.st_ino && b.st_nlink == 2);
    expect(ts_link(in_root("one"), in_root("two"), &err), TS_ALREADY_EXISTS, &err, "two");
    static const int none[] = {EPERM, EXDEV, EMLINK, EOPNOTSUPP, ENOSYS, EINVAL};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        err = (ts_error){0};
        ts_file_fault(TS_FAULT_LINK, 1, none[i]);
        expect(ts_link(in_root("one"), in_root("three"), &err), TS_UNIMPLEMENTED, &err, "one");
    }
    err = (ts_error){0};
    ts_file_fault(TS_FAULT_LINK, 1, ENOSPC);
    expect(ts_link(in_root("one"), in_root("three"), &err), TS_RESOURCE_EXHAUSTED, &err, "no space");
    err = (ts_error){0};
    assert_int_equal(ts_remove_file(in_root("one"), &err), TS_OK);
    assert_int_equal(ts_remove_file(in_root("one"), &err), TS_OK); /* missing is fine */
    assert_int_equal(ts_path_kind_of(in_root("two")), TS_PATH_FILE);
    assert_int_equal(ts_make_folders(in_root("folder"), &err), TS_OK);
    expect(ts_remove_file(in_root("folder"), &err), TS_INVALID_ARGUMENT, &err, "folder");
    err = (ts_error){0};
    ts_file_fault(TS_FAULT_UNLINK, 1, EROFS);
    expect(ts_remove_file(in_root("two"), &err), TS_PERMISSION_DENIED, &err, "read-only");
}

static void test_is_fuse(void **state)
{
    (void)state;
    assert_false(ts_is_fuse(root));
    assert_false(ts_is_fuse(in_root("not/there/yet/")));
    assert_false(ts_is_fuse("not-here/nor/there"));
    assert_false(ts_is_fuse(""));
    assert_false(ts_is_fuse("/"));
    assert_false(ts_is_fuse("//nowhere//at//all//"));
}

/* What an observer saw, as text: a word a call when it is done. */
typedef struct seen {
    char text[200];
    size_t n, asked;
    int fail_at, e; /* the call before which it answers e */
} seen;

static int observe(void *context, const ts_file_call *c)
{
    static const char *const names[] = {"open", "read", "write", "sync",   "rename", "mkdir",
                                        "lock", "link", "unlink", "close", "list"};
    seen *s = context;
    assert_non_null(c->path);
    if (!c->done) return (int)++s->asked == s->fail_at ? s->e : 0;
    int op = __builtin_ctz(c->op);
    s->n += (size_t)snprintf(s->text + s->n, sizeof s->text - s->n, "%s%s ", names[op], c->e ? "!" : "");
    if (c->op == TS_FAULT_WRITE)
        s->n += (size_t)snprintf(s->text + s->n, sizeof s->text - s->n, "%d+%d ", (int)c->offset, (int)c->n);
    return 0;
}

static ts_status write_ten(seen *s, bool append)
{
    ts_writer *w;
    ts_error err = {0};
    ts_file_observe(observe, s);
    ts_status status = ts_writer_open(in_root("seen"), append, &w, &err);
    if (status == TS_OK) {
        (void)ts_writer_write(w, "0123456789", 10, &err);
        status = ts_writer_close(w, true, &err);
    }
    ts_file_observe(NULL, NULL);
    return status;
}

static void test_observer(void **state)
{
    (void)state;
    ts_error err = {0};
    seen s = {.fail_at = 0};
    assert_int_equal(write_ten(&s, false), TS_OK);
    assert_string_equal(s.text, "open write 0+10 sync close ");
    s = (seen){.fail_at = 2, .e = TS_FILE_SHORT};
    assert_int_equal(write_ten(&s, true), TS_OK);
    assert_string_equal(s.text, "open write 10+5 write 15+5 sync close ");
    s = (seen){.fail_at = 2, .e = EINTR}; /* asked again, done once */
    assert_int_equal(write_ten(&s, false), TS_OK);
    assert_string_equal(s.text, "open write 0+10 sync close ");
    assert_int_equal(s.asked, 5);
    s = (seen){.fail_at = 1, .e = EINTR};
    assert_int_equal(write_ten(&s, false), TS_OK);
    s = (seen){.fail_at = 3, .e = EINTR}; /* an fsync is never asked for twice */
    assert_int_equal(write_ten(&s, false), TS_UNKNOWN);
    assert_string_equal(s.text, "open write 0+10 sync! close ");
    s = (seen){.fail_at = 4, .e = EDQUOT}; /* closed in any case */
    assert_int_equal(write_ten(&s, false), TS_RESOURCE_EXHAUSTED);
    s = (seen){.fail_at = 0};
    ts_file_observe(observe, &s);
    assert_int_equal(ts_make_folders(in_root("p/q/r"), &err), TS_OK);
    assert_int_equal(ts_rename(in_root("p/q/r"), in_root("p/q/s"), &err), TS_OK);
    assert_int_equal(ts_remove_tree(in_root("p/q"), &err), TS_OK);
    ts_file_observe(NULL, NULL);
    /* The folders on the way are synced into their parents, the last one is not. */
    assert_string_equal(s.text, "mkdir open sync close mkdir open sync close mkdir rename "
                                "unlink! unlink! unlink unlink ");
}

static void test_remove_failures(void **state)
{
    (void)state;
    ts_error err = {0};
    assert_int_equal(ts_make_folders(in_root("t/deep"), &err), TS_OK);
    put(in_root("t/deep/file"), "x", 1);
    ts_file_fault(TS_FAULT_UNLINK, 3, EIO); /* t and t/deep are found to be folders */
    expect(ts_remove_tree(in_root("t"), &err), TS_UNKNOWN, &err, "t/deep/file: cannot remove");
    err = (ts_error){0};
    ts_file_fault(TS_FAULT_UNLINK, 4, EBUSY);
    expect(ts_remove_tree(in_root("t"), &err), TS_UNKNOWN, &err, "t/deep: cannot remove");
    err = (ts_error){0};
    ts_file_fault(TS_FAULT_LIST, 1, EMFILE);
    expect(ts_remove_tree(in_root("t"), &err), TS_RESOURCE_EXHAUSTED, &err, "t: cannot remove");
    err = (ts_error){0};
    assert_int_equal(ts_remove_tree(in_root("t"), &err), TS_OK);
    char **names;
    size_t n;
    ts_file_fault(TS_FAULT_LIST, 1, EIO);
    expect(ts_list_folder(root, &names, &n, &err), TS_UNKNOWN, &err, "cannot list");
}

static void test_remove_never_follows(void **state)
{
    (void)state;
    ts_error err = {0};
    assert_int_equal(ts_make_folders(in_root("keep"), &err), TS_OK);
    put(in_root("keep/me"), "x", 1);
    assert_int_equal(ts_make_folders(in_root("gone/deep"), &err), TS_OK);
    assert_int_equal(symlink(in_root("keep"), in_root("gone/deep/link")), 0);
    assert_int_equal(symlink(in_root("keep"), in_root("link")), 0);
    assert_int_equal(ts_remove_tree(in_root("gone"), &err), TS_OK);
    assert_int_equal(ts_remove_tree(in_root("link"), &err), TS_OK);
    assert_int_equal(ts_path_kind_of(in_root("gone")), TS_PATH_NONE);
    assert_int_equal(ts_path_kind_of(in_root("keep/me")), TS_PATH_FILE);
    assert_int_equal(ts_remove_tree(in_root("never/was"), &err), TS_OK);
}

static void take_and_die(const char *path)
{
    ts_lock *l;
    _exit(ts_lock_take(path, &l, NULL) == TS_OK && raise(SIGKILL) == 0);
}

static void test_lock(void **state)
{
    (void)state;
    ts_error err = {0};
    ts_lock *a, *b;
    char holder[64];
    const char *path = in_root("lock");
    assert_int_equal(ts_lock_take(path, &a, &err), TS_OK);
    snprintf(holder, sizeof holder, "is held by process %ld on ", (long)getpid());
    expect(ts_lock_take(path, &b, &err), TS_FAILED_PRECONDITION, &err, holder);
    assert_null(b);
    ts_lock_release(a);
    err = (ts_error){0};
    assert_int_equal(ts_lock_take(path, &a, &err), TS_OK);
    ts_lock_release(a);
    ts_lock_release(NULL);
    /* A killed process holds nothing. */
    pid_t child = fork();
    int how;
    assert_true(child >= 0);
    if (child == 0) take_and_die(path);
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL);
    assert_int_equal(ts_lock_take(path, &a, &err), TS_OK);
    ts_lock_release(a);
    static const struct {
        int e;
        ts_status status;
        const char *part;
    } failing[] = {{ENOLCK, TS_UNIMPLEMENTED, "no locks"},
                   {EOPNOTSUPP, TS_UNIMPLEMENTED, "no locks"},
                   {EIO, TS_UNKNOWN, "input/output"}};
    for (size_t i = 0; i < sizeof failing / sizeof *failing; i++) {
        err = (ts_error){0};
        ts_file_fault(TS_FAULT_LOCK, 1, failing[i].e);
        expect(ts_lock_take(path, &a, &err), failing[i].status, &err, failing[i].part);
    }
    err = (ts_error){0};
    expect(ts_lock_take(in_root("no/folder"), &a, &err), TS_NOT_FOUND, &err, "does not exist");
    err = (ts_error){0};
    ts_alloc_fail_at(1);
    expect(ts_lock_take(path, &a, &err), TS_RESOURCE_EXHAUSTED, &err, "memory");
    ts_alloc_fail_at(0);
    err = (ts_error){0};
    assert_int_equal(ts_lock_take(path, &a, &err), TS_OK); /* a failure left it free */
    ts_lock_release(a);
}

static void test_join(void **state)
{
    (void)state;
    const char *cases[][3] = {
        {"a", "b", "a/b"}, {"a/", "b", "a/b"}, {"", "b", "b"}, {"a", "/b", "/b"}};
    for (size_t i = 0; i < 4; i++) {
        char *p = ts_path_join(cases[i][0], cases[i][1]);
        assert_string_equal(p, cases[i][2]);
        ts_free(p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open_refuses),
        cmocka_unit_test(test_read),
        cmocka_unit_test(test_read_all),
        cmocka_unit_test(test_writer),
        cmocka_unit_test(test_writer_failures_stick),
        cmocka_unit_test(test_folders),
        cmocka_unit_test(test_link),
        cmocka_unit_test(test_is_fuse),
        cmocka_unit_test(test_observer),
        cmocka_unit_test(test_remove_failures),
        cmocka_unit_test(test_remove_never_follows),
        cmocka_unit_test(test_lock),
        cmocka_unit_test(test_join),
    };
    return cmocka_run_group_tests_name("file", tests, make_root, remove_root);
}
