/* test_checkpoint_full.c – a disk that is really full, and one that is really read-only.
 *
 * A tmpfs of 4 MiB in a mount namespace of its own, so it needs the right to mount: without it the
 * test says SKIP (the same failures, injected, are in test_checkpoint_faults.c).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <unistd.h>

#include "harness/crash.h"

static char root[64] = "/tmp/tessera-full-XXXXXX";
static char folder[128];

static ts_status save(int64_t step, int scale, ts_error *err)
{
    crash_run r = {.folder = folder, .devices = 4, .scale = scale, .frozen = true};
    return crash_save(&r, step, (int)step, -1, err);
}

static void expect_only_step(int64_t step, int scale)
{
    ts_error err = {0};
    char **names;
    size_t n;
    crash_run r = {.folder = folder, .devices = 4, .scale = scale, .frozen = true};
    crash_seen seen = crash_look(&r, -1);
    if (seen.status != TS_OK) fail_msg("%s", seen.err.msg);
    assert_int_equal(seen.step, step);
    assert_string_equal(seen.problem, "");
    assert_int_equal(ts_list_folder(folder, &names, &n, &err), TS_OK);
    assert_int_equal(n, 1);
    ts_names_free(names, n);
}

static void test_full_and_read_only(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(root));
    snprintf(folder, sizeof folder, "%s/run/checkpoints", root);
    bool mounted = unshare(CLONE_NEWNS) == 0 &&
                   mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
                   mount("tmpfs", root, "tmpfs", 0, "size=4m") == 0;
    if (!mounted) {
        print_message("SKIP: mounting a small tmpfs: %s\n", strerror(errno));
        rmdir(root);
        skip();
    }
    ts_error err = {0};
    assert_int_equal(save(1, 3000, &err), TS_OK); /* 0.7 MB */
    assert_int_equal(save(2, 30000, &err), TS_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(err.msg, "no space left on the disk"));
    assert_non_null(strstr(err.msg, "the checkpoint of step 2 was not saved"));
    expect_only_step(1, 3000);
    err = (ts_error){0};
    assert_int_equal(mount(NULL, root, NULL, MS_REMOUNT | MS_RDONLY, NULL), 0);
    assert_int_equal(save(3, 1, &err), TS_PERMISSION_DENIED);
    assert_non_null(strstr(err.msg, "read-only"));
    expect_only_step(1, 3000);
    assert_int_equal(umount(root), 0);
    rmdir(root);
}

int main(void)
{
    crash_quiet();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_full_and_read_only)};
    return cmocka_run_group_tests_name("checkpoint, full disk", tests, NULL, NULL);
}
