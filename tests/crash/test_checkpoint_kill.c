/* test_checkpoint_kill.c – SIGKILL at any moment of a save: what was acknowledged is still there, and
 * the newest checkpoint is whole. The child saves step after step and writes each finished step into
 * a pipe; the parent kills it after a pause that differs every round.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "ckpt/checkpoint.h"

enum { ROUNDS = 25, COUNT = 400000 };

static ts_status fill(void *context, uint64_t first, size_t n, float *to, ts_error *err)
{
    (void)err;
    for (size_t i = 0; i < n; i++)
        to[i] = (float)(*(int64_t *)context * 31 + (int64_t)((first + i) % 1009));
    return TS_OK;
}

static void save_forever(const char *folder, int64_t step, int acknowledge)
{
    for (;; step++) {
        ts_error err = {0};
        ts_checkpoint_entry entry = {
            .name = "w", .rank = 1, .dim = {COUNT}, .fill = fill, .context = &step};
        json_t *state = json_pack("{s:I}", "step", (json_int_t)step);
        ts_status status = ts_checkpoint_save(folder, step, &entry, 1, state, &err);
        json_decref(state);
        if (status == TS_OK) status = ts_checkpoint_keep(folder, step, 2, &err);
        if (status != TS_OK) _exit(1);
        if (write(acknowledge, &step, sizeof step) != sizeof step) _exit(0);
    }
}

/* The newest step, after checking every value of it; -1 when there is none yet. */
static int64_t check_newest(const char *folder)
{
    ts_checkpoint *c;
    ts_error err = {0};
    ts_status status = ts_checkpoint_open_newest(folder, &c, &err);
    if (status == TS_NOT_FOUND) return -1;
    if (status != TS_OK) print_message("%s\n", err.msg);
    assert_int_equal(status, TS_OK);
    int64_t step = ts_checkpoint_step(c);
    assert_int_equal(json_integer_value(json_object_get(ts_checkpoint_state(c), "step")), step);
    float *have = ts_alloc(COUNT * sizeof *have), *want = ts_alloc(COUNT * sizeof *want);
    ts_tensors *t = ts_checkpoint_tensors(c);
    assert_int_equal(ts_tensors_read_f32(t, ts_tensors_find(t, "w"), 0, COUNT, have, &err), TS_OK);
    fill(&step, 0, COUNT, want, NULL);
    assert_memory_equal(have, want, COUNT * sizeof *have);
    ts_free(have);
    ts_free(want);
    ts_checkpoint_close(c);
    return step;
}

static void test_kill(void **state)
{
    (void)state;
    char root[64] = "/tmp/tessera-kill-XXXXXX", folder[128];
    assert_non_null(mkdtemp(root));
    snprintf(folder, sizeof folder, "%s/run/checkpoints", root);
    int64_t newest = -1;
    for (int round = 0; round < ROUNDS; round++) {
        int ends[2];
        assert_int_equal(pipe(ends), 0);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            close(ends[0]);
            save_forever(folder, newest + 1, ends[1]);
        }
        close(ends[1]);
        struct timespec pause = {0, 3000000L + 2711000L * round};
        nanosleep(&pause, NULL);
        assert_int_equal(kill(child, SIGKILL), 0);
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status)); /* it was saving, not failing */
        int64_t acknowledged = newest, step;
        while (read(ends[0], &step, sizeof step) == sizeof step) acknowledged = step;
        close(ends[0]);
        newest = check_newest(folder);
        assert_true(newest >= acknowledged);
    }
    assert_true(newest > 0);
    /* One more save removes what the killed ones left. */
    ts_error err = {0};
    int64_t step = newest + 1;
    ts_checkpoint_entry entry = {
        .name = "w", .rank = 1, .dim = {COUNT}, .fill = fill, .context = &step};
    json_t *extra = json_pack("{s:I}", "step", (json_int_t)step);
    assert_int_equal(ts_checkpoint_save(folder, step, &entry, 1, extra, &err), TS_OK);
    json_decref(extra);
    char **names;
    size_t n;
    assert_int_equal(ts_list_folder(folder, &names, &n, &err), TS_OK);
    for (size_t i = 0; i < n; i++) assert_null(strstr(names[i], ".tmp-"));
    ts_names_free(names, n);
    assert_int_equal(check_newest(folder), step);
    assert_int_equal(ts_remove_tree(root, &err), TS_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_kill)};
    return cmocka_run_group_tests_name("checkpoint, killed", tests, NULL, NULL);
}
