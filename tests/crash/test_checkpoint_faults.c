/* test_checkpoint_faults.c – every kernel call of a save, and of removing old ones after it, fails once in every way
 * that it can: no space, quota, a broken disk, no rights, interrupted, short. And once all calls fail from there on.
 *
 * After each: the old checkpoint is there, whole, or the new one; the error names a path and the reason; what may be
 * repeated was, a failed fsync was not; no descriptor is left open; the next save works and cleans up.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/file_internal.h"
#include "harness/crash.h"

enum { OLD = 1, NEW = 2, NEXT = 3, CALLS_MAX = 4096 };

/* ---- watching one round ---------------------------------------------------------------------- */

typedef struct watch {
    size_t calls, at;      /* which call fails, from 1; 0: none */
    int e;
    bool on;               /* every call from there on fails */
    unsigned op[CALLS_MAX];
    unsigned failed_op;
    bool failed, again;    /* a file whose fsync failed was synced once more */
    bool of_file;          /* that failed: a file, not a folder */
    char path[512];        /* of the call that failed */
} watch;

static int observe(void *context, const ts_file_call *c)
{
    watch *w = context;
    if (c->done) return 0;
    size_t call = ++w->calls;
    if (call <= CALLS_MAX) w->op[call - 1] = c->op;
    if (w->failed && w->failed_op == TS_FAULT_SYNC && w->of_file && c->op == TS_FAULT_SYNC)
        w->again |= strcmp(w->path, c->path) == 0;
    bool now = call == w->at;
    if (now) {
        w->failed = true;
        w->failed_op = c->op;
        w->of_file = ts_path_kind_of(c->path) == TS_PATH_FILE;
        snprintf(w->path, sizeof w->path, "%s", c->path);
    }
    return w->at && (now || (w->on && call > w->at)) ? w->e : 0;
}

/* Errors that call can have, ending with 0. */
static const int *errors_of(unsigned op)
{
    static const int opening[] = {EIO, ENOSPC, EDQUOT, EMFILE, EACCES, EINTR, 0};
    static const int reading[] = {EIO, EINTR, TS_FILE_SHORT, 0};
    static const int writing[] = {EIO, ENOSPC, EDQUOT, EFBIG, EINTR, TS_FILE_SHORT, 0};
    static const int syncing[] = {EIO, ENOSPC, EDQUOT, EINTR, 0};
    static const int renaming[] = {EIO, ENOSPC, EDQUOT, EACCES, EINVAL, 0};
    static const int making[] = {EIO, ENOSPC, EDQUOT, EROFS, 0};
    static const int linking[] = {EIO, ENOSPC, EDQUOT, EPERM, EXDEV, EMLINK, EOPNOTSUPP, 0};
    static const int removing[] = {EIO, EBUSY, EROFS, 0};
    static const int closing[] = {EIO, ENOSPC, EDQUOT, 0};
    static const int listing[] = {EIO, ENOMEM, 0};
    switch (op) {
    case TS_FAULT_OPEN: return opening;
    case TS_FAULT_READ: return reading;
    case TS_FAULT_WRITE: return writing;
    case TS_FAULT_SYNC: return syncing;
    case TS_FAULT_RENAME: return renaming;
    case TS_FAULT_MKDIR: return making;
    case TS_FAULT_LINK: return linking;
    case TS_FAULT_UNLINK: return removing;
    case TS_FAULT_CLOSE: return closing;
    default: return listing;
    }
}

/* Is the save to go on as if nothing had been? */
static bool is_harmless(unsigned op, int e)
{
    if (e == EINTR) return op == TS_FAULT_OPEN || op == TS_FAULT_READ || op == TS_FAULT_WRITE;
    if (e == TS_FILE_SHORT) return op == TS_FAULT_WRITE;
    return op == TS_FAULT_LINK && e != EIO && e != ENOSPC && e != EDQUOT;
}

/* ---- one round ------------------------------------------------------------------------------- */

typedef struct scenario {
    const char *name;
    int devices;
    ts_commit commit;
    bool first;   /* there is no old one */
    bool replace; /* the new one is of the old one's step */
    int scale;
} scenario;

static const scenario scenarios[] = {
    {"first save, 1 device", 1, TS_COMMIT_RENAME, true, false, 1},
    {"later save, 1 device", 1, TS_COMMIT_RENAME, false, false, 1},
    {"later save, 4 devices", 4, TS_COMMIT_RENAME, false, false, 1},
    {"same step again, 1 device", 1, TS_COMMIT_RENAME, false, true, 1},
    {"first save, files larger than a buffer", 1, TS_COMMIT_RENAME, true, false, 3000},
    {"first save by manifest, 1 device", 1, TS_COMMIT_MANIFEST, true, false, 1},
    {"later save by manifest, 4 devices", 4, TS_COMMIT_MANIFEST, false, false, 1},
};

static char root[96], folder[160];
static uint64_t rounds, failures;

static crash_run run_of(const scenario *s)
{
    return (crash_run){
        .folder = folder, .devices = s->devices, .scale = s->scale, .frozen = true, .commit = s->commit};
}

static void start(const scenario *s)
{
    ts_error err = {0};
    crash_run r = run_of(s);
    char run[128];
    snprintf(run, sizeof run, "%s/run", root);
    assert_int_equal(ts_remove_tree(run, &err), TS_OK);
    if (s->first) return;
    assert_int_equal(crash_save(&r, 1, 0, -1, &err), TS_OK);
    assert_int_equal(crash_save(&r, 2, OLD, 1, &err), TS_OK);
}

typedef struct outcome {
    ts_status save, keep;
    ts_error err;
} outcome;

static outcome play(const scenario *s, watch *w)
{
    outcome o = {0};
    crash_run r = run_of(s);
    int64_t step = s->replace ? 2 : 3;
    ts_file_observe(observe, w);
    o.save = crash_save(&r, step, NEW, s->first ? -1 : s->replace ? 1 : 2, &o.err);
    if (o.save == TS_OK) o.keep = ts_checkpoint_keep(folder, step, 1, 0, &o.err);
    ts_file_observe(NULL, NULL);
    return o;
}

#define REQUIRE(condition, what)                                                                   \
    do {                                                                                           \
        if (!(condition))                                                                          \
            fail_msg("%s: call %zu (op %u, %s) fails with %d: %s; %s", s->name, w->at,             \
                     w->failed_op, w->path, w->e, (what), o->err.msg);                             \
    } while (0)

static void check_error(const scenario *s, const watch *w, const outcome *o)
{
    const char *words = w->e == TS_FILE_SHORT ? "ends at byte" : ts__errno_words(w->e);
    const char *strange = strerror(w->e == TS_FILE_SHORT ? 0 : w->e);
    REQUIRE(strstr(o->err.msg, root), "the error names no path");
    /* A file system without exchange is said in words of its own. */
    bool said = strstr(o->err.msg, words) || strstr(o->err.msg, strange) ||
                (w->failed_op == TS_FAULT_RENAME && strstr(o->err.msg, "exchange")) ||
                (o->save == TS_OK && strstr(o->err.msg, "nothing older is removed"));
    REQUIRE(said || w->on, "the error gives no reason");
    if (o->save != TS_OK)
        REQUIRE(strstr(o->err.msg, "was not saved"), "the error does not say what is lost");
}

static void check_after(const scenario *s, const watch *w, outcome *o)
{
    crash_run r = run_of(s);
    crash_seen seen = crash_look(&r, -1);
    if (o->save != TS_OK || o->keep != TS_OK) {
        failures++;
        check_error(s, w, o);
    }
    REQUIRE(*seen.problem == '\0', seen.problem);
    if (o->save == TS_OK)
        REQUIRE(seen.number == NEW, "the saved one is not found");
    else if (s->first)
        REQUIRE(seen.status == TS_NOT_FOUND || seen.number == NEW || s->commit == TS_COMMIT_MANIFEST,
                "there is half a checkpoint");
    else
        REQUIRE(seen.number == OLD || seen.number == NEW, "the old one is not found");
    if (w->failed_op == TS_FAULT_SYNC) {
        REQUIRE(o->save != TS_OK || o->keep != TS_OK, "a failed fsync was not reported");
        REQUIRE(!w->again, "a failed fsync was repeated");
        /* By manifest it can only be taken back where the disk still answers; it is whole or none then. */
        if (w->of_file && !(w->on && s->commit == TS_COMMIT_MANIFEST))
            REQUIRE(seen.number != NEW, "a checkpoint with a failed fsync stands");
    }
    if (!w->on && is_harmless(w->failed_op, w->e))
        REQUIRE(o->save == TS_OK && o->keep == TS_OK, "what can be repeated was not");
    o->err = (ts_error){0};
    REQUIRE(crash_save(&r, 4, NEXT, -1, &o->err) == TS_OK, "the next save failed");
    REQUIRE(ts_checkpoint_keep(folder, 4, 1, 0, &o->err) == TS_OK, "nor removing old ones");
    seen = crash_look(&r, -1);
    REQUIRE(seen.number == NEXT && !*seen.problem, "the next save is not found");
    if (s->commit == TS_COMMIT_RENAME)
        REQUIRE(crash_leftovers(folder) == 0, "the next save did not clean up");
}

static void play_with(const scenario *s, size_t at, int e, bool on)
{
    static watch w;
    memset(&w, 0, sizeof w);
    w.at = at;
    w.e = e;
    w.on = on;
    start(s);
    int open = crash_open_files();
    outcome played = play(s, &w), *o = &played;
    assert_int_equal(crash_open_files(), open);
    if (!w.failed) fail_msg("%s: there is no call %zu any more", s->name, at);
    rounds++;
    check_after(s, &w, o);
}

static void test_every_call(void **state)
{
    (void)state;
    static watch counting;
    double began = crash_seconds();
    size_t calls = 0;
    bool slow = getenv("TESSERA_SLOW") && !crash_full();
    crash_make_root(root, true);
    snprintf(folder, sizeof folder, "%s/run/checkpoints", root);
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++) {
        const scenario *s = &scenarios[i];
        memset(&counting, 0, sizeof counting);
        start(s);
        outcome o = play(s, &counting);
        if (o.save != TS_OK || o.keep != TS_OK) fail_msg("%s: %s", s->name, o.err.msg);
        assert_true(counting.calls <= CALLS_MAX);
        calls += counting.calls;
        uint64_t before = rounds;
        /* The short forms take a part of the calls of four devices, another one with every seed. */
        size_t stride = slow ? 11 : s->devices > 1 && !crash_full() ? 4 : 1;
        for (size_t at = 1 + crash_seed() % stride; at <= counting.calls; at += stride) {
            for (const int *e = errors_of(counting.op[at - 1]); *e; e++) play_with(s, at, *e, false);
            play_with(s, at, EIO, true);
            play_with(s, at, ENOSPC, true);
        }
        print_message("%s: %zu calls, %llu rounds\n", s->name, counting.calls,
                      (unsigned long long)(rounds - before));
    }
    ts_error err = {0};
    assert_int_equal(ts_remove_tree(root, &err), TS_OK);
    crash_figure("failing calls", "calls of the saves", (double)calls);
    crash_figure("failing calls", "rounds, each with one failure or all from one on", (double)rounds);
    crash_figure("failing calls", "rounds that reported an error", (double)failures);
    crash_figure("failing calls", "seconds", crash_seconds() - began);
    assert_true(failures > 0 && failures < rounds);
}

int main(void)
{
    crash_quiet();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_call)};
    return cmocka_run_group_tests_name("checkpoints, failing calls", tests, NULL, NULL);
}
