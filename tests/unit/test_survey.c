/* test_survey.c – what a folder of checkpoints is said to hold, also while others write and remove
 * in it; what a removal gives back.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "base/log.h"
#include "ckpt/survey.h"
#include "survey_help.h"

static char root[64], folder[128];

static int make_root(void **state)
{
    (void)state;
    if (!sample_root(root)) return -1;
    snprintf(folder, sizeof folder, "%s/run/checkpoints", root);
    return 0;
}

static int remove_root(void **state)
{
    (void)state;
    ts_file_observe(NULL, NULL);
    ts_file_fault(0, 0, 0);
    ts_alloc_fail_at(0);
    return ts_remove_tree(root, NULL) == TS_OK ? 0 : -1;
}

static const char *in_folder(const char *name)
{
    static char path[4][512];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof path[turn], "%s/%s", folder, name);
    return path[turn];
}

static void save(int64_t step, bool frozen, const char *from)
{
    ts_error err = {0};
    sample s = {.folder = folder, .step = step, .devices = 2, .frozen = frozen, .frozen_from = from};
    if (sample_save(&s, &err) != TS_OK) fail_msg("%s", err.msg);
}

static void put(const char *name, const char *text)
{
    FILE *f = fopen(in_folder(name), "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static ts_survey *survey(const char *path)
{
    ts_survey *s;
    ts_error err = {0};
    if (ts_survey_open(path, &s, &err) != TS_OK) fail_msg("%s", err.msg);
    return s;
}

/* "0 whole, 2 damaged" */
static void expect_rows(const ts_survey *s, const char *expected)
{
    static const char *const word[] = {"whole",      "incomplete", "damaged", "unreadable",
                                       "being-made", "leftover",   "gone"};
    char text[1000] = "";
    for (size_t i = 0; i < s->n; i++) {
        size_t n = strlen(text);
        snprintf(text + n, sizeof text - n, "%s%lld %s", i ? ", " : "", (long long)s->row[i].step,
                 word[s->row[i].state]);
    }
    assert_string_equal(text, expected);
}

static void verify_all(ts_survey *s)
{
    for (size_t i = 0; i < s->n; i++) assert_int_equal(ts_survey_verify(s, i, NULL, NULL, NULL), TS_OK);
}

/* The survey and the run agree on what is taken. */
static void expect_resume(int64_t step)
{
    ts_checkpoint *c = NULL;
    ts_survey *s = survey(folder);
    verify_all(s);
    size_t row = ts_survey_resume(s);
    ts_status status = ts_checkpoint_open_newest(folder, &c, NULL);
    if (step < 0) {
        assert_int_not_equal(status, TS_OK);
        assert_true(row == s->n);
    } else {
        assert_int_equal(status, TS_OK);
        assert_int_equal(ts_checkpoint_step(c), step);
        assert_true(row < s->n);
        assert_int_equal(s->row[row].step, step);
    }
    ts_checkpoint_close(c);
    ts_survey_free(s);
}

static void break_file(const char *name)
{
    FILE *f = fopen(in_folder(name), "r+");
    assert_non_null(f);
    assert_int_equal(fseek(f, -1, SEEK_END), 0);
    int last = fgetc(f);
    assert_int_equal(fseek(f, -1, SEEK_END), 0);
    fputc(last ^ 1, f);
    fclose(f);
}

/* ---- rows ------------------------------------------------------------------------------------ */

static void test_rows(void **state)
{
    (void)state;
    save(2, false, NULL);
    save(10, false, NULL);
    save(9, false, NULL);
    assert_int_equal(mkdir(in_folder("11"), 0777), 0);
    assert_int_equal(mkdir(in_folder("11.tmp-nowhere-1"), 0777), 0);
    assert_int_equal(mkdir(in_folder("007"), 0777), 0);
    assert_int_equal(mkdir(in_folder("notes"), 0777), 0);
    put("12", "a file");
    put("10/index-00000-of-00002.json", "{}");
    put("9/README", "mine");
    ts_survey *s = survey(folder);
    expect_rows(s, "2 whole, 9 whole, 10 damaged, 11 incomplete, 11 being-made");
    assert_true(s->of_run && !s->is_step);
    assert_string_equal(s->row[1].foreign, "README");
    assert_string_equal(s->row[0].foreign, "");
    assert_int_equal(s->row[0].devices, 2);
    assert_string_equal(s->row[0].mesh, "fsdp=2");
    assert_true(isnan(s->row[0].score) && s->row[0].bytes > 0 && !s->row[0].verified);
    assert_non_null(strstr(s->row[2].problem, "index-00000-of-00002.json: its XXH3 hash is"));
    assert_true(strncmp(s->row[2].problem, "index", 5) == 0); /* the row has said which folder */
    assert_non_null(strstr(s->row[3].problem, "never finished"));
    ts_survey_free(s);
    expect_resume(9);
}

static void test_hashes_only_when_asked(void **state)
{
    (void)state;
    save(1, false, NULL);
    save(2, false, NULL);
    break_file("2/shard-00001-of-00002.safetensors");
    ts_survey *s = survey(folder);
    expect_rows(s, "1 whole, 2 whole");
    assert_int_equal(ts_survey_resume(s), 1);
    size_t newest;
    assert_int_equal(ts_survey_newest(s, NULL, NULL, &newest, NULL), TS_OK);
    assert_int_equal(newest, 0);
    expect_rows(s, "1 whole, 2 damaged");
    assert_true(s->row[0].verified && !s->row[1].verified);
    assert_non_null(strstr(s->row[1].problem, "shard-00001-of-00002.safetensors: its XXH3"));
    ts_survey_free(s);
    expect_resume(1);
}

/* Three that fail alike end a run's search; others between them do not. */
static void test_resume_follows_the_run(void **state)
{
    (void)state;
    for (int64_t step = 1; step <= 5; step++) save(step, false, NULL);
    break_file("5/manifest.json");
    expect_resume(4);
    break_file("4/manifest.json");
    expect_resume(3);
    break_file("3/manifest.json");
    expect_resume(-1);
    assert_int_equal(ts_remove_tree(in_folder("4"), NULL), TS_OK);
    assert_int_equal(mkdir(in_folder("4"), 0777), 0);
    expect_resume(2);
}

static void test_kinds_of_folder(void **state)
{
    (void)state;
    char text[256];
    ts_error err = {0};
    ts_survey *s;
    save(3, false, NULL);
    snprintf(text, sizeof text, "%s/run", root);
    s = survey(text);
    expect_rows(s, "3 whole");
    assert_true(s->of_run);
    ts_survey_free(s);
    s = survey(in_folder("3/"));
    expect_rows(s, "3 whole");
    assert_true(s->is_step && s->of_run);
    assert_string_equal(s->folder + strlen(s->folder) - 16, "/run/checkpoints");
    ts_survey_free(s);
    snprintf(text, sizeof text, "%s/best", root); /* a copy of another name */
    assert_int_equal(rename(in_folder("3"), text), 0);
    s = survey(text);
    expect_rows(s, "3 whole");
    assert_true(s->is_step && !s->of_run);
    ts_survey_free(s);
    s = survey(folder);
    assert_int_equal(s->n, 0);
    assert_int_equal(ts_survey_resume(s), 0);
    ts_survey_free(s);
    /* A folder of runs, one of them with a number for a name. */
    snprintf(text, sizeof text, "%s/7", root);
    assert_int_equal(mkdir(text, 0777), 0);
    snprintf(text, sizeof text, "%s/7/checkpoints", root);
    assert_int_equal(mkdir(text, 0777), 0);
    assert_int_equal(ts_survey_open(root, &s, &err), TS_INVALID_ARGUMENT);
    assert_non_null(strstr(err.msg, "holds runs (7, run)"));
    err = (ts_error){0};
    assert_int_equal(ts_survey_open(in_folder("gone"), &s, &err), TS_NOT_FOUND);
    assert_null(s);
}

/* ---- beside a run ---------------------------------------------------------------------------- */

typedef struct meanwhile {
    const char *when; /* a path that is about to be opened */
    int left;         /* times */
    int64_t save, remove; /* −1: not */
} meanwhile;

/* Another process' work, at the worst moment. */
static int act(void *context, const ts_file_call *c)
{
    meanwhile *m = context;
    if (c->done || c->op != TS_FAULT_OPEN || m->left == 0 || !strstr(c->path, m->when)) return 0;
    m->left--;
    ts_file_observe(NULL, NULL);
    if (m->remove >= 0) assert_int_equal(ts_checkpoint_remove(folder, m->remove, NULL), TS_OK);
    if (m->save >= 0) save(m->save, false, NULL);
    ts_file_observe(act, m);
    return 0;
}

static void test_vanishing(void **state)
{
    (void)state;
    static const char *const when[] = {"/2/manifest", "/2/index-00000", "/2/shard-00001"};
    for (size_t i = 0; i < sizeof when / sizeof *when; i++) {
        for (int64_t step = 1; step <= 3; step++) save(step, false, NULL);
        meanwhile m = {when[i], 1, -1, 2};
        ts_file_observe(act, &m);
        ts_survey *s = survey(folder);
        ts_file_observe(NULL, NULL);
        assert_int_equal(m.left, 0);
        expect_rows(s, "1 whole, 3 whole");
        ts_survey_free(s);
    }
}

/* A step that is saved again in the middle of a look is not damaged. */
static void test_replaced(void **state)
{
    (void)state;
    for (int verify = 0; verify < 2; verify++) {
        sample first = {.folder = folder, .step = 2, .devices = 2, .w = (const float[24]){1, 2, 3}};
        assert_int_equal(sample_save(&first, NULL), TS_OK);
        ts_survey *s = verify ? survey(folder) : NULL;
        meanwhile m = {"/2/shard-00001", 1, 2, -1};
        ts_file_observe(act, &m);
        if (verify)
            verify_all(s);
        else
            s = survey(folder);
        ts_file_observe(NULL, NULL);
        assert_int_equal(m.left, 0);
        expect_rows(s, "2 whole");
        assert_true(s->row[0].verified == (verify == 1));
        ts_survey_free(s);
    }
}

static void test_vanishing_while_hashed(void **state)
{
    (void)state;
    save(1, false, NULL);
    ts_survey *s = survey(folder);
    meanwhile m = {"shard-00001", 1, -1, 1};
    ts_file_observe(act, &m);
    verify_all(s);
    expect_rows(s, "1 gone");
    ts_survey_free(s);
}

static void test_no_permission_is_no_damage(void **state)
{
    (void)state;
    save(1, false, NULL);
    save(2, false, NULL);
    ts_survey *s = survey(folder);
    ts_file_fault(TS_FAULT_OPEN, 1, EACCES);
    assert_int_equal(ts_survey_verify(s, 1, NULL, NULL, NULL), TS_OK);
    expect_rows(s, "1 whole, 2 unreadable");
    assert_int_equal(ts_survey_resume(s), s->n); /* a run would stop, too */
    ts_survey_free(s);
}

/* The names in a folder of this ending cannot be had. */
static int list_fails(void *context, const ts_file_call *c)
{
    const size_t n = strlen(c->path), m = strlen(context);
    bool it = c->op == TS_FAULT_LIST && !c->done && n >= m && strcmp(c->path + n - m, context) == 0;
    return it ? EIO : 0;
}

static void test_what_cannot_be_listed_stays(void **state)
{
    (void)state;
    char name[200], here[100] = "";
    assert_int_equal(gethostname(here, sizeof here - 1), 0);
    snprintf(name, sizeof name, "4.tmp-%s-%d", here, INT32_MAX);
    save(1, false, NULL);
    save(3, false, NULL);
    assert_int_equal(mkdir(in_folder("2"), 0777), 0);
    assert_int_equal(mkdir(in_folder(name), 0777), 0);
    ts_file_observe(list_fails, "/1");
    ts_survey *s = survey(folder);
    expect_rows(s, "1 unreadable, 2 incomplete, 3 whole, 4 leftover");
    assert_string_equal(s->row[0].problem, "cannot list: input/output error of the disk");
    ts_survey_free(s);
    ts_file_observe(list_fails, "/2"); /* it has no manifest; what else is in it, nobody knows */
    s = survey(folder);
    expect_rows(s, "1 whole, 2 unreadable, 3 whole, 4 leftover");
    assert_string_equal(s->row[3].problem, "");
    ts_survey_free(s);
    ts_file_observe(list_fails, name);
    s = survey(folder);
    expect_rows(s, "1 whole, 2 incomplete, 3 whole, 4 leftover");
    assert_true(s->row[3].problem[0]);
    ts_survey_free(s);
}

/* The manifest leads to a place that is away: that is no save that never finished. */
static void test_manifest_elsewhere(void **state)
{
    (void)state;
    char manifest[512];
    save(1, false, NULL);
    save(2, false, NULL);
    snprintf(manifest, sizeof manifest, "%s", in_folder("1/manifest.json"));
    assert_int_equal(unlink(manifest), 0);
    assert_int_equal(symlink("/no/such/place", manifest), 0);
    ts_survey *s = survey(folder);
    expect_rows(s, "1 damaged, 2 whole");
    ts_survey_free(s);
}

static void put_lock(long pid, const char *host)
{
    char text[300];
    snprintf(text, sizeof text, "process %ld on %s\n", pid, host);
    put("../lock", text);
}

/* By manifest a save writes in place: whether it is going on, the run's lock says. */
static void test_saves_in_place(void **state)
{
    (void)state;
    char here[100] = "";
    const struct timespec old[2] = {{1000, 0}, {1000, 0}};
    assert_int_equal(gethostname(here, sizeof here - 1), 0);
    save(2, false, NULL);
    assert_int_equal(mkdir(in_folder("1"), 0777), 0);
    assert_int_equal(mkdir(in_folder("3"), 0777), 0);
    const struct {
        long pid;
        const char *host, *rows;
    } lock[] = {
        {(long)getpid(), here, "1 incomplete, 2 whole, 3 being-made"},
        {INT32_MAX, here, "1 incomplete, 2 whole, 3 incomplete"},
        {INT32_MAX, "another host", "1 incomplete, 2 whole, 3 being-made"},
        {-1, here, "1 incomplete, 2 whole, 3 incomplete"},
    };
    for (size_t i = 0; i < sizeof lock / sizeof *lock; i++) {
        put_lock(lock[i].pid, lock[i].host);
        ts_survey *s = survey(folder);
        expect_rows(s, lock[i].rows);
        ts_survey_free(s);
    }
    put_lock(5, "another host");
    assert_int_equal(utimensat(AT_FDCWD, in_folder("3"), old, 0), 0);
    ts_survey *s = survey(folder);
    expect_rows(s, "1 incomplete, 2 whole, 3 incomplete");
    ts_survey_free(s);
}

static bool stop(void *context, uint64_t bytes)
{
    *(uint64_t *)context += bytes;
    return false;
}

static void test_stopped(void **state)
{
    (void)state;
    uint64_t bytes = 0;
    save(1, false, NULL);
    ts_survey *s = survey(folder);
    assert_int_equal(ts_survey_verify(s, 0, stop, &bytes, NULL), TS_CANCELLED);
    assert_true(bytes > 0 && bytes < s->row[0].bytes);
    ts_survey_free(s);
}

static void test_memory_out(void **state)
{
    (void)state;
    save(1, false, NULL);
    save(2, true, NULL);
    for (uint64_t nth = 1;; nth++) {
        ts_survey *s;
        ts_error err = {0};
        ts_alloc_fail_at(nth);
        ts_status status = ts_survey_open(folder, &s, &err);
        ts_alloc_fail_at(0);
        if (status == TS_OK) { /* an allocation that is not needed may fail: then all rows are there */
            assert_int_equal(s->n, 2);
            bool whole = s->row[0].state == TS_SURVEY_WHOLE && s->row[1].state == TS_SURVEY_WHOLE;
            ts_survey_free(s);
            if (whole && nth > 60) break;
            continue;
        }
        assert_true(err.msg[0] && !s);
    }
}

/* ---- removing -------------------------------------------------------------------------------- */

static void remove_row(ts_survey *s, size_t row, bool dry, uint64_t freed, uint64_t shared)
{
    uint64_t a, b;
    ts_error err = {0};
    if (ts_survey_remove(s, row, dry, &a, &b, &err) != TS_OK) fail_msg("%s", err.msg);
    assert_int_equal(a, freed);
    assert_int_equal(b, shared);
}

static void test_frozen_files_are_freed_once(void **state)
{
    (void)state;
    char first[512];
    snprintf(first, sizeof first, "%s", in_folder("1"));
    save(1, true, NULL);
    save(2, true, first);
    save(3, true, first);
    ts_survey *s = survey(folder);
    struct stat st;
    assert_int_equal(stat(in_folder("1/frozen-00000-of-00002.safetensors"), &st), 0);
    assert_int_equal(st.st_nlink, 3);
    const uint64_t shared = (uint64_t)st.st_size, own = s->row[0].bytes - shared;
    assert_int_equal(s->disk_bytes, s->bytes - 2 * shared);
    assert_true(s->row[0].frozen_bytes > shared); /* its index is written for each */
    remove_row(s, 0, true, own, shared);
    remove_row(s, 1, true, own, shared);
    remove_row(s, 2, true, own + shared, 0);
    ts_survey_free(s);
    s = survey(folder);
    expect_rows(s, "1 whole, 2 whole, 3 whole"); /* nothing was touched */
    remove_row(s, 1, false, own, shared);
    expect_rows(s, "1 whole, 2 gone, 3 whole");
    uint64_t a, b;
    assert_int_equal(ts_survey_remove(s, 1, false, &a, &b, NULL), TS_NOT_FOUND);
    /* A run links the files once more: the last name that was known is no longer the last. */
    remove_row(s, 0, false, own, shared);
    save(4, true, in_folder("3"));
    remove_row(s, 2, false, own, shared);
    ts_survey_free(s);
    s = survey(folder);
    expect_rows(s, "4 whole");
    remove_row(s, 0, false, own + shared, 0);
    ts_survey_free(s);
}

static void test_removes_by_any_path(void **state)
{
    (void)state;
    char copy[256], link[256];
    save(1, false, NULL);
    save(2, false, NULL);
    snprintf(copy, sizeof copy, "%s/a copy", root);
    snprintf(link, sizeof link, "%s/link", root);
    assert_int_equal(rename(in_folder("1"), copy), 0);
    assert_int_equal(symlink(in_folder("2"), link), 0);
    uint64_t a, b;
    ts_survey *s = survey(copy);
    assert_int_equal(ts_survey_remove(s, 0, false, &a, &b, NULL), TS_OK);
    assert_int_equal(ts_path_kind_of(copy), TS_PATH_NONE);
    ts_survey_free(s);
    s = survey(link);
    assert_int_equal(ts_survey_remove(s, 0, false, &a, &b, NULL), TS_OK);
    assert_int_equal(ts_path_kind_of(in_folder("2")), TS_PATH_NONE);
    ts_survey_free(s);
}

/* A step that is a link: what it leads to stays, so the disk gets nothing back. */
static void test_removes_a_link_alone(void **state)
{
    (void)state;
    save(1, false, NULL);
    assert_int_equal(symlink("1", in_folder("2")), 0);
    ts_survey *s = survey(folder);
    assert_int_equal(s->n, 2);
    assert_int_equal(s->disk_bytes * 2, s->bytes);
    remove_row(s, 1, true, 0, 0);
    remove_row(s, 1, false, 0, 0);
    ts_survey_free(s);
    s = survey(folder);
    expect_rows(s, "1 whole");
    remove_row(s, 0, false, s->bytes, 0);
    ts_survey_free(s);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, make_root, remove_root)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_rows),
        CASE(test_hashes_only_when_asked),
        CASE(test_resume_follows_the_run),
        CASE(test_kinds_of_folder),
        CASE(test_vanishing),
        CASE(test_replaced),
        CASE(test_vanishing_while_hashed),
        CASE(test_no_permission_is_no_damage),
        CASE(test_what_cannot_be_listed_stays),
        CASE(test_manifest_elsewhere),
        CASE(test_saves_in_place),
        CASE(test_stopped),
        CASE(test_memory_out),
        CASE(test_frozen_files_are_freed_once),
        CASE(test_removes_by_any_path),
        CASE(test_removes_a_link_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
