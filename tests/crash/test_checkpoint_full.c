/* test_checkpoint_full.c – a disk that is really full, and one that is really read-only.
 *
 * A tmpfs of 4 MiB in a mount namespace of its own, so it needs the right to mount: without it the
 * test says SKIP (the same failures, injected, are in unit/test_checkpoint.c).
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

#include "base/file.h"
#include "ckpt/checkpoint.h"

static char root[64] = "/tmp/tessera-full-XXXXXX";
static char folder[128];

static ts_status fill(void *context, uint64_t first, size_t n, float *to, ts_error *err)
{
    (void)err;
    for (size_t i = 0; i < n; i++) to[i] = (float)(*(int64_t *)context + (int64_t)(first + i) % 7);
    return TS_OK;
}

static ts_status save_step(int64_t step, int64_t count, ts_error *err)
{
    ts_checkpoint_entry entry = {
        .name = "w", .rank = 1, .dim = {count}, .fill = fill, .context = &step};
    json_t *state = json_object();
    ts_status status = ts_checkpoint_save(folder, step, &entry, 1, state, err);
    json_decref(state);
    return status;
}

static void expect_only_step(int64_t step)
{
    ts_checkpoint *c;
    ts_error err = {0};
    char **names;
    size_t n;
    assert_int_equal(ts_checkpoint_open_newest(folder, &c, &err), TS_OK);
    assert_int_equal(ts_checkpoint_step(c), step);
    ts_checkpoint_close(c);
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
    assert_int_equal(save_step(1, 200000, &err), TS_OK);
    assert_int_equal(save_step(2, 1000000, &err), TS_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(err.msg, "no space left on the disk"));
    assert_non_null(strstr(err.msg, "the checkpoint of step 2 was not saved"));
    expect_only_step(1);
    err = (ts_error){0};
    assert_int_equal(mount(NULL, root, NULL, MS_REMOUNT | MS_RDONLY, NULL), 0);
    assert_int_equal(save_step(3, 10, &err), TS_PERMISSION_DENIED);
    assert_non_null(strstr(err.msg, "read-only"));
    expect_only_step(1);
    assert_int_equal(umount(root), 0);
    rmdir(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_full_and_read_only)};
    return cmocka_run_group_tests_name("checkpoint, full disk", tests, NULL, NULL);
}
