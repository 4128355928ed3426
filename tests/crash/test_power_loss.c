/* test_power_loss.c – the power goes at any moment of saving: the newest checkpoint that was acknowledged is
 * there, or a newer whole one, never a mixture.
 *
 * The calls of real saves are recorded through the file seam. For every prefix of that log states are made that a
 * disk may be left in (harness/disk.h); each is put into a folder and read as a run would read it. To show that this
 * finds faults, logs with a planted one (an fsync left out, a rename too early) must give violations.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "harness/disk.h"

enum { STATES_FULL = 20000, STATES_SHORT = 2000, SCENARIOS = 12, SAVES_MAX = 16, DRY = 4000, AGAIN = 100, TWICE = 8 };

/* ---- scenarios ------------------------------------------------------------------------------- */

typedef struct saved { /* which step the save of a number is of */
    int64_t step[SAVES_MAX];
    int n;
} saved;

static void save_one(const crash_run *r, crash_log *log, saved *s, int64_t step, int64_t frozen_from,
                     bool keep)
{
    ts_error err = {0};
    int number = s->n++;
    s->step[number] = step;
    crash_log_mark(log, CRASH_BEGUN, number);
    ts_status status = crash_save(r, step, number, frozen_from, &err);
    if (status != TS_OK) fail_msg("%s", err.msg);
    crash_log_mark(log, CRASH_ACKNOWLEDGED, number);
    if (keep && ts_checkpoint_keep(r->folder, step, 2, 1, &err) != TS_OK) fail_msg("%s", err.msg);
}

/* A save that finds the disk full in the middle of a shard, and cleans up. */
static void save_in_vain(const crash_run *r, crash_log *log, saved *s, int64_t step)
{
    ts_error err = {0};
    int number = s->n++;
    s->step[number] = step;
    crash_log_mark(log, CRASH_BEGUN, number);
    ts_file_fault(TS_FAULT_WRITE, 2, ENOSPC);
    assert_int_equal(crash_save(r, step, number, -1, &err), TS_RESOURCE_EXHAUSTED);
    ts_file_fault(0, 0, 0);
}

/* The first save; later ones beside old ones; the same step again; a full disk; old ones removed; frozen files linked
 * from step to step. */
static void record_scenario(const crash_run *r, const char *root, crash_log *log, saved *s)
{
    bool rename = r->commit == TS_COMMIT_RENAME;
    crash_record(log, root);
    save_one(r, log, s, 1, -1, false);
    save_one(r, log, s, 2, 1, true);
    if (rename) save_one(r, log, s, 2, 1, true);
    save_in_vain(r, log, s, 3);
    save_one(r, log, s, 3, 2, true);
    save_one(r, log, s, 4, 3, true);
    if (rename) save_one(r, log, s, 4, -1, true);
    save_one(r, log, s, 5, 4, true);
    crash_record_end();
}

static void choose_scenario(int i, crash_run *r)
{
    *r = (crash_run){.devices = i & 1 ? 4 : 1,
                     .commit = i & 2 ? TS_COMMIT_MANIFEST : TS_COMMIT_RENAME,
                     .frozen = i < 4 || i >= 8,
                     .scale = i < 4 ? 1 : i < 8 ? 200 : 60}; /* less than a sector; several pages; sectors */
}

/* ---- states ---------------------------------------------------------------------------------- */

typedef struct tally {
    uint64_t states, checks, prefixes, violations, resumed, twice;
    uint64_t damaged; /* older ones, while they were removed */
    bool again;       /* some states with a second loss */
    bool some;        /* of the prefixes one in eight, another one with every seed */
    char first[600];
} tally;

typedef struct seen_states { /* hashes; 0: free */
    uint64_t *slot;
    size_t room, n;
} seen_states;

static bool is_new(seen_states *s, uint64_t hash)
{
    hash |= hash == 0;
    size_t i = hash % s->room;
    for (; s->slot[i]; i = (i + 1) % s->room)
        if (s->slot[i] == hash) return false;
    TS_ASSERT(s->n + 1 < s->room);
    s->slot[i] = hash;
    s->n++;
    return true;
}

static void violation(tally *t, const disk *d, const char *what, const char *more)
{
    if (t->violations++ == 0)
        snprintf(t->first, sizeof t->first, "after %zu entries: %s: %.400s", disk_at(d), what, more);
}

/* Is what a run would read allowed after a loss of power? */
static void check_newest(const crash_run *r, const disk *d, const saved *s, int acknowledged, int begun,
                         tally *t)
{
    crash_seen seen = crash_look(r, -1);
    bool again = seen.number == AGAIN && begun == AGAIN;
    if (seen.status == TS_OK && *seen.problem)
        violation(t, d, "contents", seen.problem);
    else if (seen.status == TS_OK && !again &&
             (seen.number < acknowledged || seen.number > begun || seen.step != s->step[seen.number]))
        violation(t, d, "found another checkpoint than the acknowledged or a newer one", "");
    else if (seen.status != TS_OK && acknowledged >= 0)
        violation(t, d, "the acknowledged checkpoint is not found", seen.err.msg);
    else if (seen.status != TS_OK && seen.status != TS_NOT_FOUND &&
             (r->commit == TS_COMMIT_RENAME || seen.status != TS_DATA_LOSS))
        violation(t, d, "there is half a checkpoint", seen.err.msg);
}

static void clear(const char *root)
{
    char run[128];
    ts_error err = {0};
    snprintf(run, sizeof run, "%s/run", root);
    if (ts_remove_tree(run, &err) != TS_OK) fail_msg("%s", err.msg);
}

/* The power goes again while the next save, which log has recorded, cleans up after the first time. */
static void crash_twice(const crash_run *r, crash_log *log, const disk *first, const saved *s,
                        int acknowledged, uint64_t *random, tally *t)
{
    disk *d = disk_new(log, first);
    do {
        size_t at = disk_at(d);
        if (at > 0 && log->op[at - 1].kind == CRASH_ACKNOWLEDGED) acknowledged = AGAIN;
        for (uint64_t choice = 0; choice < (disk_unsynced(d) ? 6 : 1); choice++) {
            (void)disk_crash(d, choice, random);
            if (!disk_write(d, log->root)) fail_msg("%s: %s", log->root, strerror(errno));
            check_newest(r, d, s, acknowledged, AGAIN, t);
            t->twice++;
            clear(log->root);
        }
    } while (disk_step(d));
    disk_free(d);
}

/* The next save of a run that came back: it works, is the newest, and nothing of the crash is left. */
static void check_resumed(const crash_run *r, const char *root, const disk *d, const saved *s,
                          int acknowledged, uint64_t *random, tally *t)
{
    ts_error err = {0};
    crash_log log = {0};
    int64_t step = s->step[s->n - 1] + 1;
    bool twice = t->resumed++ % TWICE == 1 && t->again;
    if (twice) crash_record(&log, root);
    if (crash_save(r, step, AGAIN, -1, &err) != TS_OK)
        violation(t, d, "the next save failed", err.msg);
    crash_log_mark(&log, CRASH_ACKNOWLEDGED, AGAIN);
    if (ts_checkpoint_keep(r->folder, step, 1, 0, &err) != TS_OK)
        violation(t, d, "removing old ones failed", err.msg);
    crash_record_end();
    if (crash_look(r, -1).number != AGAIN)
        violation(t, d, "after the next save", "it is not the newest");
    else if (r->commit == TS_COMMIT_RENAME && crash_leftovers(r->folder) != 0)
        violation(t, d, "after the next save", "something is left of what was interrupted");
    clear(root);
    if (twice) crash_twice(r, &log, d, s, acknowledged, random, t);
    crash_log_free(&log);
}

static void check_state(const crash_run *r, const char *root, disk *d, const saved *s, int acknowledged,
                        int begun, bool resume, uint64_t *random, tally *t)
{
    ts_error err = {0};
    if (!disk_write(d, root)) fail_msg("%s: %s", root, strerror(errno));
    t->checks++;
    check_newest(r, d, s, acknowledged, begun, t);
    int64_t *steps;
    size_t n;
    if (r->commit == TS_COMMIT_RENAME && ts_checkpoint_list(r->folder, &steps, &n, &err) == TS_OK) {
        for (size_t i = 0; i + 1 < n; i++) t->damaged += crash_look(r, steps[i]).status != TS_OK;
        ts_free(steps);
    }
    if (resume) check_resumed(r, root, d, s, acknowledged, random, t);
    clear(root);
}

/* Every prefix of the log, each with its share of the states; the more is unsynced, the more of them. */
static void run_log(const crash_run *r, const char *root, crash_log *log, const saved *s, uint64_t wanted,
                    disk *d, tally *t)
{
    uint64_t random = crash_seed();
    seen_states seen = {.room = 4 * (size_t)wanted + 64 * log->n + 1024}, trees = seen;
    seen.slot = ts_alloc_zero(seen.room * sizeof *seen.slot);
    trees.slot = ts_alloc_zero(trees.room * sizeof *trees.slot);
    assert_true(seen.slot && trees.slot);
    int acknowledged = -1, begun = -1;
    uint64_t left = wanted;
    do {
        size_t at = disk_at(d), unsynced = disk_unsynced(d);
        if (at > 0 && log->op[at - 1].kind == CRASH_BEGUN) begun = log->op[at - 1].number;
        if (at > 0 && log->op[at - 1].kind == CRASH_ACKNOWLEDGED) acknowledged = log->op[at - 1].number;
        uint64_t share = 4 + 3 * left / (log->n - at + 1), found = 0, dry = 0;
        if (at == log->n) share = left;
        if (t->some && at % 8 != crash_seed() % 8) share = 0;
        for (uint64_t choice = 0; found < share && dry < (at == log->n ? DRY : 200); choice++) {
            uint64_t hash = disk_crash(d, choice, &random);
            /* What the same tree means depends on what was acknowledged. */
            if (!is_new(&seen, hash ^ (uint64_t)(acknowledged + 2) * 0x9e3779b97f4a7c15u)) {
                dry++;
                if (unsynced == 0) break;
                continue;
            }
            found++;
            t->states += is_new(&trees, hash);
            check_state(r, root, d, s, acknowledged, begun, t->checks % 64 == 0, &random, t);
        }
        left -= found < left ? found : left;
        t->prefixes++;
    } while (disk_step(d));
    ts_free(trees.slot);
    ts_free(seen.slot);
}

typedef void (*plant)(crash_log *log);

static tally run_scenario(int scenario, uint64_t wanted, plant fault, size_t *entries)
{
    char root[96], folder[160];
    crash_run r;
    crash_log log = {0};
    saved s = {0};
    tally t = {.again = !fault && (crash_full() || scenario == 1 || scenario == 2)};
    t.some = !fault && wanted == 0;
    ts_error err = {0};
    choose_scenario(scenario, &r);
    crash_make_root(root, true);
    snprintf(folder, sizeof folder, "%s/run/checkpoints", root);
    r.folder = folder;
    record_scenario(&r, root, &log, &s);
    clear(root);
    disk *d = disk_new(&log, NULL);
    if (fault) fault(&log);
    run_log(&r, root, &log, &s, wanted, d, &t);
    *entries = log.n;
    disk_free(d);
    crash_log_free(&log);
    assert_int_equal(ts_remove_tree(root, &err), TS_OK);
    return t;
}

static void test_states(void **state)
{
    (void)state;
    tally all = {0};
    double began = crash_seconds();
    uint64_t wanted = crash_full() ? STATES_FULL : STATES_SHORT;
    bool slow = getenv("TESSERA_SLOW") && !crash_full(); /* every scenario, the least of each */
    for (int i = 0; i < SCENARIOS; i++) {
        size_t entries;
        uint64_t share = i & 1 ? wanted / 5 : wanted / 12; /* four devices have more to choose from */
        tally t = run_scenario(i, slow ? 0 : share, NULL, &entries);
        print_message("scenario %d: %zu entries, %llu states, %llu damaged old ones\n", i, entries,
                      (unsigned long long)t.states, (unsigned long long)t.damaged);
        if (t.violations) print_message("%s\n", t.first);
        all.states += t.states;
        all.checks += t.checks;
        all.violations += t.violations;
        all.prefixes += t.prefixes;
        all.resumed += t.resumed;
        all.twice += t.twice;
        all.damaged += t.damaged;
    }
    crash_figure("power loss", "distinct states", (double)all.states);
    crash_figure("power loss", "checks of them", (double)all.checks);
    crash_figure("power loss", "prefixes of the logs", (double)all.prefixes);
    crash_figure("power loss", "of them with a save after it", (double)all.resumed);
    crash_figure("power loss", "states after a second loss, in that save", (double)all.twice);
    crash_figure("power loss", "older ones damaged while removed", (double)all.damaged);
    crash_figure("power loss", "violations", (double)all.violations);
    crash_figure("power loss", "seconds", crash_seconds() - began);
    assert_int_equal(all.violations, 0);
    assert_true(all.states >= wanted || slow);
}

/* ---- planted faults -------------------------------------------------------------------------- */

static bool ends_with(const char *path, const char *end)
{
    size_t n = strlen(path), m = strlen(end);
    return n >= m && strcmp(path + n - m, end) == 0;
}

static void drop_syncs(crash_log *log, const char *part, const char *end)
{
    size_t dropped = 0;
    for (size_t i = log->n; i-- > 0;)
        if (log->op[i].kind == CRASH_SYNC && strstr(log->op[i].path, part) &&
            ends_with(log->op[i].path, end)) {
            crash_log_drop(log, i);
            dropped++;
        }
    assert_true(dropped > 0);
}

static void no_sync_of_shards(crash_log *log)
{
    drop_syncs(log, "shard-", ".safetensors");
}

static void no_sync_of_indexes(crash_log *log)
{
    drop_syncs(log, "index-", ".json");
}

static void no_sync_of_manifests(crash_log *log)
{
    drop_syncs(log, "manifest", ".json");
}

static void no_sync_of_frozen(crash_log *log)
{
    drop_syncs(log, "frozen-", ".safetensors");
}

static void no_sync_of_step_folders(crash_log *log)
{
    size_t dropped = 0;
    for (size_t i = log->n; i-- > 0;)
        if (log->op[i].kind == CRASH_SYNC && strstr(log->op[i].path, "checkpoints/") &&
            strchr(strstr(log->op[i].path, "checkpoints/"), '.') == strstr(log->op[i].path, ".tmp-")) {
            crash_log_drop(log, i);
            dropped++;
        }
    assert_true(dropped > 0);
}

static void no_sync_of_the_folder(crash_log *log)
{
    drop_syncs(log, "checkpoints", "run/checkpoints");
}

static void no_sync_of_the_run(crash_log *log)
{
    drop_syncs(log, "run", "run");
}

/* The rename stands before the first write of the manifest. */
static void rename_too_early(crash_log *log)
{
    size_t moved = 0, manifest = 0;
    for (size_t i = 0; i < log->n; i++) {
        crash_kind kind = log->op[i].kind;
        if (kind == CRASH_CREATE && ends_with(log->op[i].path, "manifest.json")) manifest = i;
        if ((kind == CRASH_RENAME || kind == CRASH_EXCHANGE) && manifest > 0) {
            crash_log_move(log, i, manifest);
            manifest = 0;
            moved++;
        }
    }
    assert_true(moved > 0);
}

/* A save is acknowledged before its last fsync. */
static void acknowledged_too_early(crash_log *log)
{
    size_t moved = 0;
    for (size_t i = 1; i < log->n; i++)
        if (log->op[i].kind == CRASH_ACKNOWLEDGED) {
            size_t to = i;
            while (to > 0 && log->op[to - 1].kind != CRASH_SYNC) to--;
            crash_log_move(log, i, to - 1);
            moved++;
        }
    assert_true(moved > 0);
}

static void test_faults_are_found(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        plant fault;
        int scenario;
    } planted[] = {{"no fsync of the shards", no_sync_of_shards, 0},
                   {"no fsync of the shards, 4 devices, by manifest", no_sync_of_shards, 3},
                   {"no fsync of the indexes", no_sync_of_indexes, 1},
                   {"no fsync of the manifest", no_sync_of_manifests, 0},
                   {"no fsync of the manifest, by manifest", no_sync_of_manifests, 2},
                   {"no fsync of the frozen files", no_sync_of_frozen, 1},
                   {"no fsync of the step's folder", no_sync_of_step_folders, 0},
                   {"no fsync of the folder of checkpoints", no_sync_of_the_folder, 0},
                   {"no fsync of the folder of checkpoints, by manifest", no_sync_of_the_folder, 2},
                   {"no fsync of the run's folder", no_sync_of_the_run, 0},
                   {"renamed before the manifest", rename_too_early, 0},
                   {"acknowledged before the last fsync", acknowledged_too_early, 1}};
    size_t found = 0, n = sizeof planted / sizeof *planted;
    for (size_t i = 0; i < n; i++) {
        size_t entries;
        tally t = run_scenario(planted[i].scenario, 400, planted[i].fault, &entries);
        print_message("%-52s %4llu of %4llu states, first %.160s\n", planted[i].name,
                      (unsigned long long)t.violations, (unsigned long long)t.checks, t.first);
        found += t.violations > 0;
    }
    crash_figure("power loss", "planted faults", (double)n);
    crash_figure("power loss", "planted faults found", (double)found);
    assert_int_equal(found, n);
}

int main(void)
{
    crash_quiet();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_states),
                                       cmocka_unit_test(test_faults_are_found)};
    return cmocka_run_group_tests_name("checkpoints, loss of power", tests, NULL, NULL);
}
