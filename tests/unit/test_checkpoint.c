/* test_checkpoint.c – the commit protocol under every failing call, and what the reader skips. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "ckpt/checkpoint.h"

static char root[64];
static char logged[16384];

static void keep_log(void *context, ts_log_level level, const char *line)
{
    (void)context;
    (void)level;
    size_t n = strlen(logged);
    snprintf(logged + n, sizeof logged - n, "%s\n", line);
}

static int make_root(void **state)
{
    (void)state;
    logged[0] = '\0';
    ts_log_set_sink(keep_log, NULL);
    /* In memory where possible: hundreds of synced saves and cut files, and no disk's speed matters. */
    const char *base = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    snprintf(root, sizeof root, "%s/tessera-checkpoint-XXXXXX", base);
    return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state)
{
    (void)state;
    ts_error err = {0};
    ts_file_fault(0, 0, 0);
    ts_alloc_fail_at(0);
    return ts_remove_tree(root, &err) == TS_OK ? 0 : -1;
}

static const char *in_root(const char *name)
{
    static char path[4][1024];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof path[turn], "%s/%s", root, name);
    return path[turn];
}

/* ---- a little model whose values follow from the step and a version ------------------------------ */

enum { SMALL = 6, LARGE = 300000 };
static float small[SMALL];

static float value_of(int64_t step, int version, uint64_t i)
{
    return (float)(step * 1000 + version * 100) + (float)(i % 97);
}

typedef struct filler {
    int64_t step;
    int version;
} filler;

static ts_status fill(void *context, uint64_t first, size_t n, float *to, ts_error *err)
{
    const filler *f = context;
    if (f->version < 0) return TS_ERROR(err, TS_INTERNAL, "the device is gone");
    for (size_t i = 0; i < n; i++) to[i] = value_of(f->step, f->version, first + i);
    return TS_OK;
}

static ts_status save_version(int64_t step, int version, ts_error *err)
{
    filler f = {step, version};
    for (uint64_t i = 0; i < SMALL; i++) small[i] = value_of(step, version, i);
    ts_checkpoint_entry entries[] = {
        {.name = "model.norm.weight", .rank = 2, .dim = {2, 3}, .data = small},
        {.name = "moments.first", .rank = 1, .dim = {LARGE}, .fill = fill, .context = &f},
        {.name = "empty", .rank = 1, .dim = {0}, .data = small},
        {.name = "scalar", .rank = 0, .data = small},
    };
    json_t *state = json_pack("{s:I, s:i, s:{s:[f,f], s:s}}", "step", (json_int_t)step, "version",
                              version, "loader", "cursor", 0.1, 1e-300, "name", "caf\xc3\xa9");
    if (!state) return TS_RESOURCE_EXHAUSTED; /* a test makes allocations fail */
    ts_status status = ts_checkpoint_save(in_root("run/checkpoints"), step, entries, 4, state, err);
    json_decref(state);
    return status;
}

static void save_good(int64_t step, int version)
{
    ts_error err = {0};
    ts_status status = save_version(step, version, &err);
    if (status) print_message("%s\n", err.msg);
    assert_int_equal(status, TS_OK);
}

/* Everything in it belongs to one save; returns its version. */
static int check_whole(ts_checkpoint *c)
{
    int64_t step = ts_checkpoint_step(c);
    const json_t *state = ts_checkpoint_state(c);
    int version = (int)json_integer_value(json_object_get(state, "version"));
    assert_int_equal(json_integer_value(json_object_get(state, "step")), step);
    assert_string_equal(
        json_string_value(json_object_get(json_object_get(state, "loader"), "name")),
        "caf\xc3\xa9");
    ts_tensors *t = ts_checkpoint_tensors(c);
    assert_int_equal(ts_tensors_count(t), 4);
    ts_error err = {0};
    float *values = ts_alloc(LARGE * sizeof *values);
    const char *names[] = {"model.norm.weight", "moments.first", "scalar", "empty"};
    const uint64_t counts[] = {SMALL, LARGE, 1, 0};
    for (int k = 0; k < 4; k++) {
        const ts_tensor *x = ts_tensors_find(t, names[k]);
        assert_non_null(x);
        assert_int_equal(x->count, counts[k]);
        assert_int_equal(ts_tensors_read_f32(t, x, 0, x->count, values, &err), TS_OK);
        for (uint64_t i = 0; i < x->count; i++)
            assert_true(values[i] == value_of(step, version, i));
    }
    ts_free(values);
    return version;
}

static int64_t newest_step(int *version)
{
    ts_checkpoint *c;
    ts_error err = {0};
    ts_status status = ts_checkpoint_open_newest(in_root("run/checkpoints"), &c, &err);
    if (status) print_message("%s\n", err.msg);
    assert_int_equal(status, TS_OK);
    int64_t step = ts_checkpoint_step(c);
    int v = check_whole(c);
    if (version) *version = v;
    ts_checkpoint_close(c);
    return step;
}

static size_t names_in(const char *folder)
{
    char **names;
    size_t n;
    ts_error err = {0};
    assert_int_equal(ts_list_folder(folder, &names, &n, &err), TS_OK);
    ts_names_free(names, n);
    return n;
}

static void flip(const char *path, size_t at)
{
    char *data;
    size_t n;
    ts_error err = {0};
    ts_writer *w;
    assert_int_equal(ts_file_read_all(path, 1 << 24, &data, &n, &err), TS_OK);
    assert_true(at < n);
    data[at] ^= 1;
    assert_int_equal(ts_writer_open(path, false, &w, &err), TS_OK);
    assert_int_equal(ts_writer_write(w, data, n, &err), TS_OK);
    assert_int_equal(ts_writer_close(w, false, &err), TS_OK);
    ts_free(data);
}

#define SHARD "/shard-00000-of-00001.safetensors"

/* ---- tests -------------------------------------------------------------------------------------- */

static void test_save_and_open(void **state)
{
    (void)state;
    int version;
    ts_checkpoint *c;
    ts_error err = {0};
    assert_int_equal(ts_checkpoint_open_newest(in_root("run/checkpoints"), &c, &err), TS_NOT_FOUND);
    save_good(0, 1);
    save_good(90, 2);
    save_good(100, 3);
    assert_int_equal(newest_step(&version), 100);
    assert_int_equal(version, 3);
    assert_int_equal(names_in(in_root("run/checkpoints")), 3);
    assert_int_equal(names_in(in_root("run/checkpoints/100")), 2);
    err = (ts_error){0};
    assert_int_equal(ts_checkpoint_open(in_root("run/checkpoints/90/"), &c, &err), TS_OK);
    assert_int_equal(check_whole(c), 2);
    assert_string_equal(ts_checkpoint_program(c), "tessera " TS_VERSION);
    assert_string_equal(ts_checkpoint_path(c), in_root("run/checkpoints/90/"));
    ts_checkpoint_close(c);
    save_good(100, 7); /* replaces */
    assert_int_equal(newest_step(&version), 100);
    assert_int_equal(version, 7);
    assert_int_equal(names_in(in_root("run/checkpoints")), 3);
    assert_int_equal(ts_checkpoint_keep(in_root("run/checkpoints"), 100, 2, &err), TS_OK);
    int64_t *steps;
    size_t n;
    assert_int_equal(ts_checkpoint_list(in_root("run/checkpoints"), &steps, &n, &err), TS_OK);
    assert_true(n == 2 && steps[0] == 90 && steps[1] == 100);
    ts_free(steps);
    assert_int_equal(ts_checkpoint_keep(in_root("run/checkpoints"), 100, 0, &err), TS_OK);
    assert_int_equal(names_in(in_root("run/checkpoints")), 1);
    assert_int_equal(newest_step(NULL), 100);
    assert_string_equal(logged, "");
}

/* Step 200 is damaged; the run resumes from 100 and saves 150. Keeping one must not leave only 200. */
static void test_keep_behind_damage(void **state)
{
    (void)state;
    ts_error err = {0};
    save_good(100, 1);
    save_good(200, 1);
    flip(in_root("run/checkpoints/200" SHARD), 900);
    assert_int_equal(newest_step(NULL), 100);
    save_good(150, 2);
    assert_int_equal(ts_checkpoint_keep(in_root("run/checkpoints"), 150, 1, &err), TS_OK);
    assert_int_equal(names_in(in_root("run/checkpoints")), 2);
    assert_int_equal(newest_step(NULL), 150);
    save_good(200, 3); /* replaces the damaged one */
    assert_int_equal(ts_checkpoint_keep(in_root("run/checkpoints"), 200, 1, &err), TS_OK);
    assert_int_equal(names_in(in_root("run/checkpoints")), 1);
    assert_int_equal(newest_step(NULL), 200);
}

static void test_list_ignores(void **state)
{
    (void)state;
    int64_t *steps;
    size_t n;
    ts_error err = {0};
    const char *others[] = {"run/checkpoints/x",
                            "run/checkpoints/007",
                            "run/checkpoints/5.tmp-h-1",
                            "run/checkpoints/-3",
                            "run/checkpoints/99999999999999999999",
                            "run/checkpoints/12"};
    for (size_t i = 0; i < 6; i++)
        assert_int_equal(ts_make_folders(in_root(others[i]), &err), TS_OK);
    ts_writer *w;
    assert_int_equal(ts_writer_open(in_root("run/checkpoints/13"), false, &w, &err), TS_OK);
    assert_int_equal(ts_writer_close(w, false, &err), TS_OK);
    assert_int_equal(ts_checkpoint_list(in_root("run/checkpoints"), &steps, &n, &err), TS_OK);
    assert_true(n == 1 && steps[0] == 12);
    ts_free(steps);
    assert_int_equal(ts_checkpoint_list(in_root("nothing"), &steps, &n, &err), TS_OK);
    assert_int_equal(n, 0);
}

/* op fails for nth = 1, 2, … until the save succeeds: always the old one, then the new one. */
static uint64_t fail_each(unsigned op, int e, int64_t step)
{
    bool replace = step == 10;
    for (uint64_t nth = 1;; nth++) {
        assert_true(nth < 200);
        ts_error err = {0};
        ts_file_fault(op, nth, e);
        ts_status status = save_version(step, 2, &err);
        ts_file_fault(0, 0, 0);
        int version;
        int64_t newest = newest_step(&version);
        if (status == TS_OK) {
            assert_true(nth > 1);
            assert_true(newest == step && version == 2);
            return nth - 1;
        }
        assert_non_null(strstr(err.msg, "was not saved"));
        bool old = newest == 10 && version == 1, new = newest == step &&version == 2;
        assert_true(old || new);
        if (new)
            assert_true(op == TS_FAULT_SYNC || op == TS_FAULT_OPEN); /* only the last folder sync */
        if (!new) assert_int_equal(names_in(in_root("run/checkpoints")), 1);
        ts_error again = {0};
        if (new && !replace)
            assert_int_equal(ts_remove_tree(in_root("run/checkpoints/20"), &again), TS_OK);
        if (new &&replace) save_good(10, 1);
    }
}

static void test_every_call_fails(void **state)
{
    (void)state;
    static const struct {
        unsigned op;
        int e;
    } faults[] = {
        {TS_FAULT_WRITE, ENOSPC}, {TS_FAULT_WRITE, EIO},   {TS_FAULT_SYNC, EIO},
        {TS_FAULT_RENAME, EIO},   {TS_FAULT_OPEN, EACCES}, {TS_FAULT_MKDIR, EROFS},
    };
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++)
        for (int replace = 0; replace < 2; replace++) {
            ts_error err = {0};
            assert_int_equal(ts_remove_tree(in_root("run"), &err), TS_OK);
            save_good(10, 1);
            uint64_t calls = fail_each(faults[i].op, faults[i].e, replace ? 10 : 20);
            /* Parent, shard, manifest, the folder itself, the folder around it: none may be left out. */
            if (faults[i].op == TS_FAULT_SYNC) assert_int_equal(calls, 5);
            if (faults[i].op == TS_FAULT_RENAME) assert_int_equal(calls, 1);
        }
    ts_file_fault(TS_FAULT_WRITE, 1, 0); /* a short write is completed */
    save_good(30, 5);
    assert_int_equal(newest_step(NULL), 30);
}

static void test_memory_fails(void **state)
{
    (void)state;
    save_good(10, 1);
    for (uint64_t nth = 1;; nth++) {
        ts_error err = {0};
        assert_true(nth < 500);
        ts_alloc_fail_at(nth);
        ts_status status = save_version(20, 2, &err);
        ts_alloc_fail_at(0);
        if (status == TS_OK) break;
        assert_int_equal(newest_step(NULL), 10);
    }
    for (uint64_t nth = 1;; nth++) {
        ts_checkpoint *c;
        ts_error err = {0};
        assert_true(nth < 500);
        ts_alloc_fail_at(nth);
        ts_status status = ts_checkpoint_open_newest(in_root("run/checkpoints"), &c, &err);
        ts_alloc_fail_at(0);
        if (status == TS_OK) {
            assert_int_equal(ts_checkpoint_step(c),
                             20); /* never the older one for want of memory */
            ts_checkpoint_close(c);
            break;
        }
        assert_int_equal(status, TS_RESOURCE_EXHAUSTED);
    }
}

static void test_fill_fails(void **state)
{
    (void)state;
    save_good(10, 1);
    ts_error err = {0};
    assert_int_equal(save_version(20, -1, &err), TS_INTERNAL);
    assert_non_null(strstr(err.msg, "values of \"moments.first\": the device is gone"));
    assert_non_null(strstr(err.msg, "step 20 was not saved"));
    assert_int_equal(names_in(in_root("run/checkpoints")), 1);
    assert_int_equal(newest_step(NULL), 10);
}

static void test_damage_is_skipped(void **state)
{
    (void)state;
    const char *files[] = {"run/checkpoints/30" SHARD, "run/checkpoints/30/manifest.json"};
    save_good(10, 1);
    for (int k = 0; k < 2; k++)
        for (size_t at = 0; at < 700; at += k ? 3 : 37) {
            save_good(30, 3);
            char *data;
            size_t n;
            ts_error err = {0};
            assert_int_equal(ts_file_read_all(in_root(files[k]), 1 << 24, &data, &n, &err), TS_OK);
            bool blank = at < n && (data[at] == ' ' || data[at] == '\n');
            ts_free(data);
            if (k && (at + 1 >= n || blank)) continue; /* between the words of the manifest */
            flip(in_root(files[k]), at);
            logged[0] = '\0';
            ts_checkpoint *c;
            assert_int_equal(ts_checkpoint_open_newest(in_root("run/checkpoints"), &c, &err),
                             TS_OK);
            if (ts_checkpoint_step(c) == 30) {
                /* Only the version of the program may change unseen. */
                assert_true(k == 1 && strcmp(ts_checkpoint_program(c), "tessera " TS_VERSION) != 0);
            } else {
                assert_non_null(strstr(logged, "skipped the checkpoint of step 30: "));
            }
            check_whole(c);
            ts_checkpoint_close(c);
        }
}

static void test_missing_parts(void **state)
{
    (void)state;
    ts_error err = {0};
    ts_checkpoint *c;
    save_good(10, 1);
    save_good(20, 2);
    assert_int_equal(unlink(in_root("run/checkpoints/20" SHARD)), 0);
    assert_int_equal(newest_step(NULL), 10);
    assert_non_null(
        strstr(logged, "shard-00000-of-00001.safetensors: cannot open: does not exist"));
    save_good(20, 2);
    assert_int_equal(unlink(in_root("run/checkpoints/20/manifest.json")), 0);
    assert_int_equal(newest_step(NULL), 10);
    assert_non_null(strstr(logged, "the save never finished"));
    save_good(20, 2);
    assert_int_equal(truncate(in_root("run/checkpoints/20" SHARD), 1000), 0);
    assert_int_equal(newest_step(NULL), 10);
    assert_non_null(strstr(logged, "has 1000 bytes; the manifest says"));
    assert_int_equal(rename(in_root("run/checkpoints/10"), in_root("run/checkpoints/40")), 0);
    assert_int_equal(ts_checkpoint_open_newest(in_root("run/checkpoints"), &c, &err), TS_DATA_LOSS);
    assert_non_null(
        strstr(err.msg, "none of the newest 2 of 2 checkpoints can be used; step 40: "));
    assert_non_null(strstr(err.msg, "is of step 10; its folder says 40"));
    assert_int_equal(ts_checkpoint_open(in_root("nowhere"), &c, NULL), TS_NOT_FOUND);
}

static void test_three_same_failures(void **state)
{
    (void)state;
    ts_error err = {0};
    ts_checkpoint *c;
    for (int64_t step = 1; step <= 5; step++) save_good(step, 1);
    for (int64_t step = 3; step <= 5; step++) {
        char name[100];
        snprintf(name, sizeof name, "run/checkpoints/%d" SHARD, (int)step);
        flip(in_root(name), 900);
    }
    assert_int_equal(ts_checkpoint_open_newest(in_root("run/checkpoints"), &c, &err), TS_DATA_LOSS);
    assert_non_null(strstr(err.msg, "newest 3 of 5"));
    assert_non_null(strstr(err.msg, "XXH3"));
}

static void test_leftovers(void **state)
{
    (void)state;
    pid_t child = fork(); /* a pid that is dead for certain */
    if (child == 0) _exit(0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    char host[65], path[256];
    assert_int_equal(gethostname(host, 64), 0);
    host[64] = '\0';
    for (char *p = host; *p; p++)
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.", *p))
            *p = '_';
    ts_error err = {0};
    const char *kept[] = {"run/checkpoints/7.tmp-elsewhere-5", "run/checkpoints/notes.tmp-x"};
    for (int i = 0; i < 2; i++) assert_int_equal(ts_make_folders(in_root(kept[i]), &err), TS_OK);
    snprintf(path, sizeof path, "run/checkpoints/5.tmp-%s-%d", host, (int)child);
    assert_int_equal(ts_make_folders(in_root(path), &err), TS_OK);
    char live[256];
    snprintf(live, sizeof live, "run/checkpoints/6.tmp-%s-%d", host, (int)getppid());
    assert_int_equal(ts_make_folders(in_root(live), &err), TS_OK);
    save_good(10, 1);
    assert_int_equal(ts_path_kind_of(in_root(path)), TS_PATH_NONE);
    assert_int_equal(ts_path_kind_of(in_root(live)), TS_PATH_FOLDER);
    for (int i = 0; i < 2; i++) assert_int_equal(ts_path_kind_of(in_root(kept[i])), TS_PATH_FOLDER);
    assert_non_null(strstr(logged, "the rest of an interrupted save"));
    assert_int_equal(newest_step(NULL), 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_save_and_open, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_keep_behind_damage, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_list_ignores, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_every_call_fails, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_memory_fails, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_fill_fails, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_damage_is_skipped, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_missing_parts, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_three_same_failures, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_leftovers, make_root, remove_root),
    };
    return cmocka_run_group_tests_name("checkpoint", tests, NULL, NULL);
}
