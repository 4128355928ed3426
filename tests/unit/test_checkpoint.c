/* test_checkpoint.c – the commit protocol under every failing call, and what the reader skips. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "ckpt/checkpoint.h"

static char root[64];
static char logged[16384];
/* How the next save is made. */
static int devices = 1;
static const char *frozen_from;
static double score = (double)NAN;
static ts_commit commit = TS_COMMIT_RENAME;

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
    devices = 1;
    frozen_from = NULL;
    score = (double)NAN;
    commit = TS_COMMIT_RENAME;
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
    static char path[8][1024];
    static int turn;
    turn = (turn + 1) % 8;
    snprintf(path[turn], sizeof path[turn], "%s/%s", root, name);
    return path[turn];
}

/* ---- a little model whose values follow from the step and a version ------------------------------ */

enum { LARGE = 300000, FROZEN = 9, DEVICES = 4 };

/* The dimension `split` of the grid is cut over the devices; −1: the first device holds it all. */
static const struct tensor {
    const char *name;
    int rank;
    int64_t dim[2];
    int grid_rank;
    int64_t grid[3];
    int split;
    bool frozen;
} tensors[] = {
    {"model.norm.weight", 2, {2, 3}, 2, {2, 3}, -1, false},
    {"moments.first", 1, {LARGE}, 1, {LARGE}, 0, false},
    {"q_proj", 2, {40, 5}, 3, {5, 8, 5}, 1, false}, /* of [40,5] no box */
    {"up_proj", 2, {6, 8}, 2, {6, 8}, 1, false},
    {"scalar", 0, {0}, 0, {0}, -1, false},
    {"embed", 2, {8, 3}, 2, {8, 3}, 0, true},
};
enum { TENSORS = sizeof tensors / sizeof *tensors };

static float value_of(int64_t step, int version, uint64_t i)
{
    return (float)(step * 1000 + version * 100) + (float)(i % 97);
}

typedef struct filler {
    int64_t step;
    int version;
    ts_box box;
} filler;

static ts_status fill(void *context, uint64_t first, size_t n, float *to, ts_error *err)
{
    const filler *f = context;
    if (f->version < 0) return TS_ERROR(err, TS_INTERNAL, "the device is gone");
    for (size_t i = 0; i < n; i++)
        to[i] = value_of(f->step, f->version, ts_box_place(&f->box, (size_t)first + i));
    return TS_OK;
}

static size_t make_parts(int64_t step, int version, ts_checkpoint_part *part, filler *f)
{
    size_t n = 0;
    for (int k = 0; k < TENSORS; k++)
        for (int d = 0; d < (tensors[k].split < 0 ? 1 : devices); d++, n++) {
            ts_box box = ts_box_whole(tensors[k].grid_rank, tensors[k].grid);
            if (tensors[k].split >= 0) {
                box.local[tensors[k].split] /= devices;
                box.offset[tensors[k].split] = d * box.local[tensors[k].split];
                assert_true(ts_box_finish(&box));
            }
            f[n] = (filler){tensors[k].frozen ? 0 : step, tensors[k].frozen ? FROZEN : version, box};
            part[n] = (ts_checkpoint_part){.name = tensors[k].name,
                                           .rank = tensors[k].rank,
                                           .box = box,
                                           .device = d,
                                           .frozen = tensors[k].frozen,
                                           .fill = fill,
                                           .context = &f[n]};
            memcpy(part[n].dim, tensors[k].dim, sizeof tensors[k].dim);
        }
    return n;
}

static ts_status save_version(int64_t step, int version, ts_error *err)
{
    ts_checkpoint_part part[TENSORS * DEVICES];
    filler f[TENSORS * DEVICES];
    ts_checkpoint_save_options o;
    ts_checkpoint_save_options_default(&o);
    json_t *state = json_pack("{s:I, s:i, s:{s:[f,f], s:s}}", "step", (json_int_t)step, "version",
                              version, "loader", "cursor", 0.1, 1e-300, "name", "caf\xc3\xa9");
    if (!state) return TS_RESOURCE_EXHAUSTED; /* a test makes allocations fail */
    o.folder = in_root("run/checkpoints");
    o.step = step;
    o.part = part;
    o.n_part = make_parts(step, version, part, f);
    o.devices = devices;
    o.mesh = "fsdp=4";
    o.state = state;
    o.score = score;
    o.commit = commit;
    o.frozen_from = frozen_from;
    ts_status status = ts_checkpoint_save(&o, err);
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
    assert_int_equal(ts_tensors_count(t), TENSORS);
    ts_error err = {0};
    float *values = ts_alloc(LARGE * sizeof *values);
    for (int k = 0; k < TENSORS; k++) {
        const ts_tensor *x = ts_tensors_find(t, tensors[k].name);
        assert_non_null(x);
        assert_int_equal(x->rank, tensors[k].rank);
        for (int i = 0; i < x->rank; i++) assert_int_equal(x->dim[i], tensors[k].dim[i]);
        assert_int_equal(ts_tensors_read_f32(t, x, 0, x->count, values, &err), TS_OK);
        int64_t s = tensors[k].frozen ? 0 : step;
        int v = tensors[k].frozen ? FROZEN : version;
        for (uint64_t i = 0; i < x->count; i++) assert_true(values[i] == value_of(s, v, i));
        for (uint64_t first = 0; first < x->count; first += x->count / 5 + 1) { /* stretches too */
            uint64_t n = x->count - first < 7 ? x->count - first : 7;
            assert_int_equal(ts_tensors_read_f32(t, x, first, n, values, &err), TS_OK);
            for (uint64_t i = 0; i < n; i++) assert_true(values[i] == value_of(s, v, first + i));
        }
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
    assert_int_equal(names_in(in_root("run/checkpoints/100")), 5); /* two shards, two indexes, manifest */
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
    assert_int_equal(ts_checkpoint_keep(in_root("run/checkpoints"), 100, 2, 0, &err), TS_OK);
    int64_t *steps;
    size_t n;
    assert_int_equal(ts_checkpoint_list(in_root("run/checkpoints"), &steps, &n, &err), TS_OK);
    assert_true(n == 2 && steps[0] == 90 && steps[1] == 100);
    ts_free(steps);
    assert_int_equal(ts_checkpoint_keep(in_root("run/checkpoints"), 100, 0, 0, &err), TS_OK);
    assert_int_equal(names_in(in_root("run/checkpoints")), 2); /* 0: all */
    assert_int_equal(ts_checkpoint_keep(in_root("run/checkpoints"), 100, 1, 0, &err), TS_OK);
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
    assert_int_equal(ts_checkpoint_keep(in_root("run/checkpoints"), 150, 1, 0, &err), TS_OK);
    assert_int_equal(names_in(in_root("run/checkpoints")), 2);
    assert_int_equal(newest_step(NULL), 150);
    save_good(200, 3); /* replaces the damaged one */
    assert_int_equal(ts_checkpoint_keep(in_root("run/checkpoints"), 200, 1, 0, &err), TS_OK);
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
        assert_true(nth < 300);
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
            /* The parent, two shards, two indexes, the folder, the manifest, the folder again, the one around it:
             * none may be left out. */
            if (faults[i].op == TS_FAULT_SYNC) assert_int_equal(calls, 9);
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
    assert_non_null(strstr(err.msg, "values of \"model.norm.weight\": the device is gone"));
    assert_non_null(strstr(err.msg, "step 20 was not saved"));
    assert_int_equal(names_in(in_root("run/checkpoints")), 1);
    assert_int_equal(newest_step(NULL), 10);
}

/* One flipped bit in any file is found, and the older one is taken. */
static void damage_is_skipped(const char *const *files, size_t n_files)
{
    save_good(10, 1);
    for (size_t k = 0; k < n_files; k++) {
        char path[200];
        ts_error err = {0};
        snprintf(path, sizeof path, "run/checkpoints/30/%s", files[k]);
        save_good(30, 3);
        char *data;
        size_t n;
        assert_int_equal(ts_file_read_all(in_root(path), 1 << 24, &data, &n, &err), TS_OK);
        ts_free(data);
        for (size_t at = 0; at < n; at += n > 4000 ? 9973 : 7) {
            flip(in_root(path), at);
            logged[0] = '\0';
            ts_checkpoint *c;
            assert_int_equal(ts_checkpoint_open_newest(in_root("run/checkpoints"), &c, &err),
                             TS_OK);
            assert_int_equal(ts_checkpoint_step(c), 10);
            assert_non_null(strstr(logged, "skipped the checkpoint of step 30: "));
            ts_checkpoint_close(c);
            flip(in_root(path), at);
        }
        assert_int_equal(newest_step(NULL), 30);
    }
}

static void test_damage_is_skipped(void **state)
{
    (void)state;
    static const char *const one[] = {"manifest.json", "index-00000-of-00001.json",
                                      "frozen-00000-of-00001.safetensors",
                                      "frozen-index-00000-of-00001.json", &SHARD[1]};
    static const char *const four[] = {"manifest.json", "index-00002-of-00004.json",
                                       "frozen-00003-of-00004.safetensors",
                                       "frozen-index-00003-of-00004.json",
                                       "shard-00001-of-00004.safetensors"};
    damage_is_skipped(one, 5);
    devices = 4;
    damage_is_skipped(four, 5);
}

/* ---- several devices ---------------------------------------------------------------------------- */

static uint64_t inode_of(const char *path)
{
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    return (uint64_t)st.st_ino;
}

/* Shards of four devices make the same tensors as one; frozen ones are the same file in every step. */
static void test_devices_and_frozen(void **state)
{
    (void)state;
    static const char *const file = "frozen-00002-of-00004.safetensors";
    ts_checkpoint *c;
    ts_error err = {0};
    char a[200], b[200];
    devices = DEVICES;
    save_good(1, 1);
    assert_int_equal(newest_step(NULL), 1);
    assert_int_equal(names_in(in_root("run/checkpoints/1")), 4 * 4 + 1);
    snprintf(a, sizeof a, "run/checkpoints/1/%s", file);
    snprintf(b, sizeof b, "run/checkpoints/2/%s", file);
    frozen_from = in_root("run/checkpoints/1");
    save_good(2, 2);
    assert_int_equal(newest_step(NULL), 2);
    assert_int_equal(inode_of(in_root(a)), inode_of(in_root(b)));
    assert_int_equal(ts_checkpoint_open(in_root("run/checkpoints/2"), &c, &err), TS_OK);
    assert_int_equal(ts_checkpoint_devices(c), 4);
    assert_string_equal(ts_checkpoint_mesh(c), "fsdp=4");
    assert_true(ts_checkpoint_frozen_bytes(c) > 8 * 3 * 4);
    assert_true(ts_checkpoint_bytes(c) > ts_checkpoint_frozen_bytes(c));
    ts_checkpoint_close(c);
    /* Where there are no links they are copied. */
    ts_file_fault(TS_FAULT_LINK, 1, EPERM);
    frozen_from = in_root("run/checkpoints/2");
    save_good(3, 3);
    ts_file_fault(0, 0, 0);
    snprintf(a, sizeof a, "run/checkpoints/3/frozen-00000-of-00004.safetensors");
    snprintf(b, sizeof b, "run/checkpoints/2/frozen-00000-of-00004.safetensors");
    assert_true(inode_of(in_root(a)) != inode_of(in_root(b)));
    assert_int_equal(newest_step(NULL), 3);
    /* Other boxes: written anew, and so are those of a checkpoint that is gone. */
    devices = 1;
    frozen_from = in_root("run/checkpoints/3");
    save_good(4, 4);
    assert_int_equal(newest_step(NULL), 4);
    frozen_from = in_root("run/checkpoints/nowhere");
    save_good(5, 5);
    assert_int_equal(newest_step(NULL), 5);
    assert_int_equal(ts_remove_tree(in_root("run/checkpoints/1"), &err), TS_OK);
    assert_int_equal(ts_checkpoint_open(in_root("run/checkpoints/2"), &c, &err), TS_OK);
    assert_int_equal(check_whole(c), 2); /* whole without the one it was linked from */
    ts_checkpoint_close(c);
}

static void test_by_manifest(void **state)
{
    (void)state;
    ts_error err = {0};
    devices = DEVICES;
    commit = TS_COMMIT_MANIFEST;
    save_good(1, 1);
    save_good(2, 2);
    assert_int_equal(names_in(in_root("run/checkpoints")), 2);
    assert_int_equal(newest_step(NULL), 2);
    /* A good one of that step is never touched; a damaged one gives way. */
    assert_int_equal(save_version(2, 3, &err), TS_ALREADY_EXISTS);
    assert_int_equal(newest_step(NULL), 2);
    flip(in_root("run/checkpoints/2/manifest.json"), 100);
    assert_int_equal(newest_step(NULL), 1);
    save_good(2, 4);
    int version;
    assert_int_equal(newest_step(&version), 2);
    assert_int_equal(version, 4);
    /* What a killed save leaves is no checkpoint and no damage: alone it is no reason not to begin. */
    ts_checkpoint *c;
    assert_int_equal(ts_path_kind_of(in_root("run/checkpoints/2/unfinished")), TS_PATH_NONE);
    assert_int_equal(ts_make_folders(in_root("begun/1"), &err), TS_OK);
    ts_writer *w;
    err = (ts_error){0};
    assert_int_equal(ts_writer_open(in_root("begun/1/unfinished"), false, &w, &err), TS_OK);
    assert_int_equal(ts_writer_close(w, false, &err), TS_OK);
    assert_int_equal(ts_checkpoint_open_newest(in_root("begun"), &c, &err), TS_NOT_FOUND);
    assert_int_equal(ts_writer_open(in_root("begun/1/manifest.json"), false, &w, NULL), TS_OK); /* torn */
    assert_int_equal(ts_writer_write(w, "{", 1, NULL), TS_OK);
    assert_int_equal(ts_writer_close(w, false, NULL), TS_OK);
    assert_int_equal(ts_checkpoint_open_newest(in_root("begun"), &c, NULL), TS_NOT_FOUND);
    assert_int_equal(unlink(in_root("begun/1/unfinished")), 0);
    assert_int_equal(ts_checkpoint_open_newest(in_root("begun"), &c, NULL), TS_DATA_LOSS);
    /* One that never finished is none, counts for nothing, and goes when a later one is kept. */
    assert_int_equal(unlink(in_root("run/checkpoints/1/manifest.json")), 0);
    save_good(3, 5);
    assert_int_equal(ts_checkpoint_keep(in_root("run/checkpoints"), 3, 2, 0, &err), TS_OK);
    assert_int_equal(names_in(in_root("run/checkpoints")), 2);
    assert_int_equal(ts_path_kind_of(in_root("run/checkpoints/1")), TS_PATH_NONE);
    /* A save that fails leaves no folder that looks like one. */
    ts_file_fault(TS_FAULT_WRITE, 9, ENOSPC);
    err = (ts_error){0};
    assert_int_equal(save_version(4, 6, &err), TS_RESOURCE_EXHAUSTED);
    ts_file_fault(0, 0, 0);
    assert_int_equal(newest_step(NULL), 3);
    assert_int_equal(names_in(in_root("run/checkpoints")), 2);
}

static void test_keep_best(void **state)
{
    (void)state;
    static const double scores[] = {3, 1, 2, 1, (double)NAN, 5, 4};
    ts_error err = {0};
    for (int i = 0; i < 7; i++) {
        score = scores[i];
        save_good(10 * i, 1);
    }
    flip(in_root("run/checkpoints/50" SHARD), 900); /* looks whole: its hash is not read here */
    assert_int_equal(ts_checkpoint_keep(in_root("run/checkpoints"), 60, 1, 2, &err), TS_OK);
    int64_t *steps;
    size_t n;
    assert_int_equal(ts_checkpoint_list(in_root("run/checkpoints"), &steps, &n, &err), TS_OK);
    assert_true(n == 3 && steps[0] == 10 && steps[1] == 30 && steps[2] == 60);
    ts_free(steps);
    /* Nothing goes for one that is not there. */
    assert_int_equal(ts_checkpoint_keep(in_root("run/checkpoints"), 70, 1, 0, &err), TS_DATA_LOSS);
    assert_int_equal(names_in(in_root("run/checkpoints")), 3);
    assert_int_equal(ts_checkpoint_remove(in_root("run/checkpoints"), 30, &err), TS_OK);
    assert_int_equal(names_in(in_root("run/checkpoints")), 2);
    err = (ts_error){0};
    assert_int_equal(ts_checkpoint_remove(in_root("run/checkpoints"), 30, &err), TS_NOT_FOUND);
}

/* What is known to be damaged takes no good one's place and stays; a whole one that kept the mark of its save is whole,
 * and damage of it is damage. */
static void test_keep_sound(void **state)
{
    (void)state;
    ts_error err = {0};
    ts_checkpoint *c;
    int64_t *steps, damaged = 10;
    size_t n;
    for (int64_t step = 0; step <= 20; step += 5) save_good(step, 1);
    flip(in_root("run/checkpoints/10" SHARD), 900);
    assert_int_equal(
        ts_checkpoint_keep_sound(in_root("run/checkpoints"), 20, 3, 0, &damaged, 1, &err), TS_OK);
    assert_int_equal(ts_checkpoint_list(in_root("run/checkpoints"), &steps, &n, &err), TS_OK);
    assert_true(n == 4 && steps[0] == 5 && steps[1] == 10 && steps[2] == 15 && steps[3] == 20);
    ts_free(steps);
    /* A file of someone's keeps its folder. */
    ts_writer *w;
    assert_int_equal(ts_writer_open(in_root("run/checkpoints/5/notes.txt"), false, &w, &err), TS_OK);
    assert_int_equal(ts_writer_close(w, false, &err), TS_OK);
    assert_int_equal(
        ts_checkpoint_keep_sound(in_root("run/checkpoints"), 20, 1, 0, &damaged, 1, &err), TS_OK);
    assert_int_equal(names_in(in_root("run/checkpoints")), 3);
    assert_int_equal(ts_path_kind_of(in_root("run/checkpoints/15")), TS_PATH_NONE);
    assert_int_equal(ts_remove_tree(in_root("run"), &err), TS_OK);
    commit = TS_COMMIT_MANIFEST;
    save_good(5, 1);
    assert_int_equal(ts_writer_open(in_root("run/checkpoints/5/unfinished"), false, &w, &err), TS_OK);
    assert_int_equal(ts_writer_close(w, false, &err), TS_OK);
    assert_int_equal(newest_step(NULL), 5);
    flip(in_root("run/checkpoints/5" SHARD), 900);
    assert_int_equal(ts_checkpoint_open_newest(in_root("run/checkpoints"), &c, &err), TS_DATA_LOSS);
}

/* A folder that cannot be looked at is neither empty nor without a manifest: nothing is begun or removed for it. */
static void test_unknown_is_not_nothing(void **state)
{
    (void)state;
    ts_error err = {0};
    ts_checkpoint *c;
    ts_path_kind kind;
    save_good(5, 1);
    /* A link to itself is the error that root gets, too. */
    assert_int_equal(symlink(in_root("loop"), in_root("loop")), 0);
    assert_int_equal(ts_path_kind_of(in_root("loop")), TS_PATH_NONE);
    assert_int_not_equal(ts_path_find(in_root("loop"), &kind, &err), TS_OK);
    assert_non_null(strstr(err.msg, "loop: cannot be looked at"));
    assert_int_equal(ts_path_find(in_root("nothing"), &kind, &err), TS_OK);
    assert_int_equal(kind, TS_PATH_NONE);
    err = (ts_error){0};
    assert_int_not_equal(ts_checkpoint_open_newest(in_root("loop"), &c, &err), TS_NOT_FOUND);
    assert_int_equal(unlink(in_root("run/checkpoints/5/manifest.json")), 0);
    assert_int_equal(symlink("manifest.json", in_root("run/checkpoints/5/manifest.json")), 0);
    err = (ts_error){0};
    save_good(10, 1);
    assert_int_equal(ts_checkpoint_keep(in_root("run/checkpoints"), 10, 1, 0, &err), TS_OK);
    assert_int_equal(names_in(in_root("run/checkpoints")), 2);
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
        strstr(logged, "shard-00000-of-00001.safetensors: is missing; the manifest lists it"));
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
        cmocka_unit_test_setup_teardown(test_devices_and_frozen, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_by_manifest, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_keep_best, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_keep_sound, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_unknown_is_not_nothing, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_missing_parts, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_three_same_failures, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_leftovers, make_root, remove_root),
    };
    return cmocka_run_group_tests_name("checkpoint", tests, NULL, NULL);
}
