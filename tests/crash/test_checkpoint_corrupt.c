/* test_checkpoint_corrupt.c – files of a checkpoint that are damaged on the disk: opening it must say so
 * (DATA_LOSS) before any tensor can be asked for, and a run goes on from the one before.
 *
 * Every file is cut at every length and has every single bit flipped; files are removed, exchanged between
 * devices and between steps, made longer, made a folder; folders are renamed. Checkpoints are of 1 and 4
 * devices, with frozen files.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "harness/crash.h"

enum { PATH_BYTES = 400, FILES_MAX = 32, LARGE = 400 };

static char root[96], folder[160];

typedef struct damage {
    uint64_t done, undetected, strange, fallbacks;
    bool no_file; /* a folder or a pipe stands in its place: INVALID_ARGUMENT says that too */
    char first[300];
} damage;

static size_t thin(size_t full)
{
    return crash_full() ? 1 : getenv("TESSERA_SLOW") ? full * 10 : full;
}

static crash_run run_of(int devices, int scale)
{
    return (crash_run){.folder = folder, .devices = devices, .scale = scale, .frozen = true,
                       .commit = TS_COMMIT_RENAME};
}

static char *in_step(int step, const char *name, char path[PATH_BYTES])
{
    snprintf(path, PATH_BYTES, "%s/%d/%.100s", folder, step, name);
    return path;
}

/* Steps 1 and 2, each with frozen files of its own; names: the files of a step. */
static crash_run start(int devices, int scale, char ***names, size_t *n)
{
    ts_error err = {0};
    char path[PATH_BYTES];
    crash_run r = run_of(devices, scale);
    assert_int_equal(ts_remove_tree(folder, &err), TS_OK);
    assert_int_equal(crash_save(&r, 1, 1, -1, &err), TS_OK);
    assert_int_equal(crash_save(&r, 2, 2, -1, &err), TS_OK);
    assert_int_equal(ts_list_folder(in_step(2, "", path), names, n, &err), TS_OK);
    assert_int_equal(*n, devices == 1 ? 5 : 1 + 8 + 8);
    return r;
}

/* Step 2 is damaged: it must not open; with fallback, the newest is step 1. */
static void check_damage(const crash_run *r, damage *d, bool fallback, const char *file, size_t at)
{
    d->done++;
    crash_seen seen = crash_look(r, 2);
    bool bad = seen.status == TS_OK;
    d->undetected += bad;
    if (!bad && seen.status != TS_DATA_LOSS && !(d->no_file && seen.status == TS_INVALID_ARGUMENT)) {
        d->strange++;
        bad = true;
    }
    if (bad && !*d->first)
        snprintf(d->first, sizeof d->first, "%.60s at %zu: status %d %.180s", file, at,
                 (int)seen.status, seen.err.msg);
    if (!fallback) return;
    seen = crash_look(r, -1);
    d->fallbacks++;
    if (seen.number != 1 || *seen.problem)
        fail_msg("%s at %zu: the run does not fall back to step 1: %s", file, at, seen.err.msg);
}

static void check_whole(const crash_run *r)
{
    crash_seen seen = crash_look(r, 2);
    if (seen.status != TS_OK || *seen.problem) fail_msg("not put back: %s", seen.err.msg);
}

static void report(const damage *d, const char *what)
{
    crash_figure("damage", what, (double)d->done);
    if (*d->first) print_message("%s\n", d->first);
    assert_int_equal(d->undetected, 0);
    assert_int_equal(d->strange, 0);
}

static char *read_file(const char *path, size_t *n)
{
    char *data;
    ts_error err = {0};
    if (ts_file_read_all(path, 64 << 20, &data, n, &err) != TS_OK) fail_msg("%s", err.msg);
    return data;
}

static void write_file(const char *path, const void *data, size_t n)
{
    ts_writer *w;
    ts_error err = {0};
    assert_int_equal(ts_writer_open(path, false, &w, &err), TS_OK);
    assert_int_equal(ts_writer_write(w, data, n, &err), TS_OK);
    assert_int_equal(ts_writer_close(w, false, &err), TS_OK);
}

/* ---- cuts ------------------------------------------------------------------------------------ */

static void cut_files(int devices, size_t stride, damage *d)
{
    char **names, path[PATH_BYTES];
    size_t n, bytes;
    crash_run r = start(devices, 1, &names, &n);
    for (size_t i = 0; i < n; i++) {
        char *data = read_file(in_step(2, names[i], path), &bytes);
        for (size_t length = bytes - 1 - crash_seed() % stride % bytes;; length -= stride) {
            assert_int_equal(truncate(path, (off_t)length), 0);
            check_damage(&r, d, length % 64 == 0, names[i], length);
            if (length < stride) break;
        }
        write_file(path, data, bytes);
        ts_free(data);
        check_whole(&r);
    }
    ts_names_free(names, n);
}

static void test_cut_at_every_length(void **state)
{
    (void)state;
    damage d = {0};
    double began = crash_seconds();
    cut_files(1, thin(1), &d);
    cut_files(4, thin(4), &d);
    report(&d, "files cut, at every length");
    crash_figure("damage", "seconds for these", crash_seconds() - began);
}

/* ---- bits ------------------------------------------------------------------------------------ */

static void flip(int fd, size_t bit, char value)
{
    char flipped = (char)(value ^ (1 << bit % 8));
    assert_int_equal(pwrite(fd, &flipped, 1, (off_t)(bit / 8)), 1);
}

/* Every stride-th bit, or `most` of them spread over the file; where that begins is another place with every seed. */
static void flip_file(const crash_run *r, const char *name, size_t stride, size_t most, damage *d)
{
    char path[PATH_BYTES];
    size_t bytes;
    char *data = read_file(in_step(2, name, path), &bytes);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    size_t bits = bytes * 8;
    if (most && bits / most > stride) stride = bits / most | 1;
    for (size_t bit = crash_seed() % stride; bit < bits; bit += stride) {
        flip(fd, bit, data[bit / 8]);
        check_damage(r, d, d->done % 64 == 0, name, bit);
        assert_int_equal(pwrite(fd, &data[bit / 8], 1, (off_t)(bit / 8)), 1);
    }
    close(fd);
    ts_free(data);
    check_whole(r);
}

static void test_every_bit(void **state)
{
    (void)state;
    damage d = {0};
    double began = crash_seconds();
    for (int devices = 1; devices <= 4; devices += 3) {
        char **names;
        size_t n;
        crash_run r = start(devices, 1, &names, &n);
        for (size_t i = 0; i < n; i++)
            flip_file(&r, names[i], thin(devices == 1 ? 3 : 13), 0, &d);
        ts_names_free(names, n);
    }
    uint64_t small = d.done;
    crash_figure("damage", "single bits flipped, small checkpoints", (double)small);
    for (int devices = 1; devices <= 4; devices += 3) {
        char **names;
        size_t n;
        crash_run r = start(devices, LARGE, &names, &n);
        for (size_t i = 0; i < n; i++) flip_file(&r, names[i], 1, crash_full() ? 4000 : 20, &d);
        ts_names_free(names, n);
    }
    crash_figure("damage", "single bits flipped, larger ones", (double)(d.done - small));
    report(&d, "single bits flipped");
    crash_figure("damage", "of them undetected", (double)d.undetected);
    crash_figure("damage", "fallbacks to the one before looked at", (double)d.fallbacks);
    crash_figure("damage", "seconds for these", crash_seconds() - began);
    if (crash_full()) assert_true(d.done >= 100000);
}

/* ---- whole files ----------------------------------------------------------------------------- */

static bool same_bytes(const char *a, const char *b)
{
    size_t n, m;
    char *x = read_file(a, &n), *y = read_file(b, &m);
    bool same = n == m && memcmp(x, y, n) == 0;
    ts_free(x);
    ts_free(y);
    return same;
}

/* Exchanges two files that differ; step 2 must not open with the other's. */
static void exchange(const crash_run *r, const char *a, const char *b, bool fallback, damage *d)
{
    ts_error err = {0};
    if (same_bytes(a, b)) return; /* whose they are makes no difference */
    assert_int_equal(ts_exchange(a, b, &err), TS_OK);
    check_damage(r, d, fallback, a, 0);
    assert_int_equal(ts_exchange(a, b, &err), TS_OK);
}

static void change_file(const crash_run *r, const char *name, damage *d)
{
    char path[PATH_BYTES], aside[PATH_BYTES];
    ts_error err = {0};
    size_t bytes;
    snprintf(aside, sizeof aside, "%s/aside", root);
    char *data = read_file(in_step(2, name, path), &bytes), *longer = ts_alloc_zero(bytes + 4096);
    assert_non_null(longer);
    memcpy(longer, data, bytes);
    write_file(path, longer, bytes + 1);
    check_damage(r, d, true, name, 1);
    write_file(path, longer, bytes + 4096);
    check_damage(r, d, true, name, 4096);
    memset(longer, 0, bytes);
    write_file(path, longer, bytes);
    check_damage(r, d, true, name, 0);
    memcpy(longer, data, bytes);
    memcpy(longer + bytes, "\n", 1);
    write_file(path, longer, bytes + 1);
    check_damage(r, d, true, name, 2);
    write_file(path, data, bytes);
    assert_int_equal(ts_rename(path, aside, &err), TS_OK); /* it is gone */
    check_damage(r, d, true, name, 3);
    d->no_file = true;
    assert_int_equal(mkdir(path, 0777), 0);
    check_damage(r, d, true, name, 4);
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(mkfifo(path, 0666), 0); /* must not wait for a writer */
    check_damage(r, d, true, name, 5);
    d->no_file = false;
    assert_int_equal(ts_remove_file(path, &err), TS_OK);
    assert_int_equal(ts_rename(aside, path, &err), TS_OK);
    ts_free(longer);
    ts_free(data);
}

static void test_whole_files(void **state)
{
    (void)state;
    damage d = {0};
    for (int devices = 1; devices <= 4; devices += 3) {
        char **names, a[PATH_BYTES], b[PATH_BYTES];
        size_t n;
        crash_run r = start(devices, 1, &names, &n);
        for (size_t i = 0; i < n; i++) {
            change_file(&r, names[i], &d);
            for (size_t k = i + 1; k < n; k++) /* of one device and another */
                exchange(&r, in_step(2, names[i], a), in_step(2, names[k], b), true, &d);
            /* Of one step and another: both are wrong then, but for what they share. */
            exchange(&r, in_step(2, names[i], a), in_step(1, names[i], b), false, &d);
        }
        check_whole(&r);
        ts_names_free(names, n);
    }
    report(&d, "files removed, exchanged, made longer, zeroed, of another kind");
}

static void test_folders(void **state)
{
    (void)state;
    char **names, two[PATH_BYTES], other[PATH_BYTES], path[PATH_BYTES + 32];
    size_t n;
    ts_error err = {0};
    ts_checkpoint *c = NULL;
    crash_run r = start(4, 1, &names, &n);
    ts_names_free(names, n);
    in_step(2, "", two);
    two[strlen(two) - 1] = '\0';
    snprintf(other, sizeof other, "%s/7", folder);
    assert_int_equal(ts_rename(two, other, &err), TS_OK); /* a step that it is not */
    assert_int_equal(crash_look(&r, 7).status, TS_DATA_LOSS);
    assert_int_equal(crash_look(&r, -1).number, 1);
    assert_int_equal(ts_rename(other, two, &err), TS_OK);
    snprintf(other, sizeof other, "%s/elsewhere", root); /* but it may be moved */
    assert_int_equal(ts_rename(two, other, &err), TS_OK);
    assert_int_equal(ts_checkpoint_open(other, &c, &err), TS_OK);
    assert_int_equal(ts_checkpoint_step(c), 2);
    ts_checkpoint_close(c);
    assert_int_equal(ts_rename(other, two, &err), TS_OK);
    /* Two folders exchanged: each says that it is another step. */
    in_step(1, "", other);
    other[strlen(other) - 1] = '\0';
    assert_int_equal(ts_exchange(two, other, &err), TS_OK);
    assert_int_equal(crash_look(&r, 2).status, TS_DATA_LOSS);
    assert_int_equal(crash_look(&r, 1).status, TS_DATA_LOSS);
    assert_int_equal(ts_exchange(two, other, &err), TS_OK);
    /* A file more is nobody's. */
    snprintf(path, sizeof path, "%s/notes.txt", two);
    write_file(path, "by hand", 7);
    check_whole(&r);
}

/* Frozen files that are links are one file: its damage is that of every step, and is found in each. */
static void test_linked_files(void **state)
{
    (void)state;
    char path[PATH_BYTES];
    struct stat st;
    ts_error err = {0};
    crash_run r = run_of(1, 1);
    assert_int_equal(ts_remove_tree(folder, &err), TS_OK);
    assert_int_equal(crash_save(&r, 1, 1, -1, &err), TS_OK);
    assert_int_equal(crash_save(&r, 2, 2, 1, &err), TS_OK);
    in_step(2, "frozen-00000-of-00001.safetensors", path);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_nlink, 2);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, "\x55", 1, st.st_size - 2), 1);
    close(fd);
    assert_int_equal(crash_look(&r, 2).status, TS_DATA_LOSS);
    assert_int_equal(crash_look(&r, 1).status, TS_DATA_LOSS);
    assert_int_equal(crash_look(&r, -1).status, TS_DATA_LOSS);
}

static int make_root(void **state)
{
    (void)state;
    crash_make_root(root, true);
    snprintf(folder, sizeof folder, "%s/run/checkpoints", root);
    return 0;
}

static int remove_root(void **state)
{
    (void)state;
    ts_error err = {0};
    return ts_remove_tree(root, &err) == TS_OK ? 0 : -1;
}

int main(void)
{
    crash_quiet();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cut_at_every_length), cmocka_unit_test(test_every_bit),
        cmocka_unit_test(test_whole_files), cmocka_unit_test(test_folders),
        cmocka_unit_test(test_linked_files)};
    return cmocka_run_group_tests_name("checkpoints, damaged", tests, make_root, remove_root);
}
