/* test_checkpoint_kill.c – SIGKILL while checkpoints are saved and old ones removed: what was acknowledged is
 * there, or a newer whole one, and the next save cleans up.
 *
 * Three ways: before and after every call of the file seam; at every system call that a save really makes, by strace;
 * at random moments, with saves on a thread of their own and a reader beside them, too. This program is also what
 * strace runs: test_checkpoint_kill --save FOLDER DEVICES COMMIT.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "harness/crash.h"

enum { OLD = 1, NEW = 2, NEXT = 3, NAMES = 64, NAME_BYTES = 32 };

static const char *self; /* this program */

static const struct scenario {
    const char *name;
    int devices;
    ts_commit commit;
} scenarios[] = {{"1 device", 1, TS_COMMIT_RENAME},
                 {"4 devices", 4, TS_COMMIT_RENAME},
                 {"1 device, by manifest", 1, TS_COMMIT_MANIFEST},
                 {"4 devices, by manifest", 4, TS_COMMIT_MANIFEST}};
enum { SCENARIOS = sizeof scenarios / sizeof *scenarios };

static crash_run run_of(int i, const char *folder)
{
    return (crash_run){.folder = folder,
                       .devices = scenarios[i].devices,
                       .commit = scenarios[i].commit,
                       .scale = 1,
                       .frozen = true};
}

/* Steps 1 and 2, the second one with number OLD. */
static void start(const crash_run *r, const char *root)
{
    ts_error err = {0};
    char path[128];
    snprintf(path, sizeof path, "%s/run", root);
    assert_int_equal(ts_remove_tree(path, &err), TS_OK);
    assert_int_equal(crash_save(r, 1, 0, -1, &err), TS_OK);
    assert_int_equal(crash_save(r, 2, OLD, 1, &err), TS_OK);
}

/* Step 3 with number NEW, then the oldest goes; *acknowledged once it is saved. */
static int save_and_keep(const crash_run *r, void (*acknowledge)(void *), void *context)
{
    ts_error err = {0};
    if (crash_save(r, 3, NEW, 2, &err) != TS_OK) return 1;
    acknowledge(context);
    return ts_checkpoint_keep(r->folder, 3, 1, 0, &err) != TS_OK;
}

static void check_after(const crash_run *r, bool acknowledged, const char *where)
{
    ts_error err = {0};
    crash_seen seen = crash_look(r, -1);
    if (seen.status != TS_OK) fail_msg("%s: %s", where, seen.err.msg);
    if (*seen.problem) fail_msg("%s: %s", where, seen.problem);
    if (seen.number != NEW && (acknowledged || seen.number != OLD))
        fail_msg("%s: found save %d", where, seen.number);
    if (crash_save(r, 4, NEXT, seen.step, &err) != TS_OK ||
        ts_checkpoint_keep(r->folder, 4, 1, 0, &err) != TS_OK)
        fail_msg("%s: the next save: %s", where, err.msg);
    seen = crash_look(r, -1);
    assert_true(seen.number == NEXT && !*seen.problem);
    if (r->commit == TS_COMMIT_RENAME) assert_int_equal(crash_leftovers(r->folder), 0);
}

/* The short form takes a part of the calls, another one with every seed. */
static size_t stride_of(int scenario)
{
    if (crash_full()) return 1;
    return getenv("TESSERA_SLOW") ? 13 : scenarios[scenario].devices > 1 ? 9 : 2;
}

/* ---- every call of the seam ------------------------------------------------------------------ */

typedef struct shared { /* between a child and its parent */
    atomic_int acknowledged, begun, where; /* numbers of saves; where: 1 saving, 2 removing */
    atomic_bool ready;
    char problem[256];
} shared;
static shared *board;

typedef struct killer {
    size_t calls, at;
    bool after;
} killer;

static int count_and_kill(void *context, const ts_file_call *c)
{
    killer *k = context;
    if (!c->done) k->calls++;
    /* Some calls are not seen when they are done: after them is before the next one. */
    if (k->after && !c->done && k->calls == k->at + 1) raise(SIGKILL);
    if (k->calls == k->at && c->done == k->after) raise(SIGKILL);
    return 0;
}

static void on_board(void *context)
{
    (void)context;
    atomic_store(&board->acknowledged, NEW);
}

static void test_every_call(void **state)
{
    (void)state;
    char root[96], folder[160], where[128];
    double began = crash_seconds();
    size_t kills = 0;
    crash_make_root(root, true);
    snprintf(folder, sizeof folder, "%s/run/checkpoints", root);
    for (int i = 0; i < SCENARIOS; i++) {
        crash_run r = run_of(i, folder);
        killer all = {0};
        start(&r, root);
        ts_file_observe(count_and_kill, &all);
        assert_int_equal(save_and_keep(&r, on_board, NULL), 0);
        ts_file_observe(NULL, NULL);
        size_t stride = stride_of(i);
        for (size_t k = 2 + 2 * (crash_seed() % stride); k < 2 * all.calls + 2; k += k & 1 ? 2 * stride - 1 : 1) {
            killer one = {.at = k / 2, .after = k & 1};
            int how;
            start(&r, root);
            atomic_store(&board->acknowledged, -1);
            pid_t child = fork();
            assert_true(child >= 0);
            if (child == 0) {
                ts_file_observe(count_and_kill, &one);
                _exit(save_and_keep(&r, on_board, NULL));
            }
            assert_int_equal(waitpid(child, &how, 0), child);
            snprintf(where, sizeof where, "%s, killed %s call %zu", scenarios[i].name,
                     one.after ? "after" : "before", one.at);
            if (!WIFSIGNALED(how)) fail_msg("%s: it was not", where);
            kills++;
            check_after(&r, atomic_load(&board->acknowledged) == NEW, where);
        }
    }
    ts_error err = {0};
    assert_int_equal(ts_remove_tree(root, &err), TS_OK);
    crash_figure("kills", "before and after calls of the file seam", (double)kills);
    crash_figure("kills", "seconds for these", crash_seconds() - began);
}

/* ---- every system call ----------------------------------------------------------------------- */

/* strace's words for this program's save; output: a file. True when it was killed. */
static bool run_strace(const char *inject, const char *output, const char *root, int scenario)
{
    char folder[160], devices[8], commit[8];
    int how;
    snprintf(folder, sizeof folder, "%s/run/checkpoints", root);
    snprintf(devices, sizeof devices, "%d", scenarios[scenario].devices);
    snprintf(commit, sizeof commit, "%d", (int)scenarios[scenario].commit);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        char *words[] = {"strace", "-f", "-qq", "-o", (char *)output, "-e", (char *)inject};
        char *program[] = {(char *)self, "--save", folder, devices, commit, NULL}, *all[16];
        size_t n = inject ? 7 : 5;
        memcpy(all, words, n * sizeof *all);
        memcpy(all + n, program, sizeof program);
        execvp("strace", all);
        _exit(127);
    }
    assert_int_equal(waitpid(child, &how, 0), child);
    if (!inject && (!WIFEXITED(how) || WEXITSTATUS(how) != 0)) return false;
    return !inject || (WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL) ||
           (WIFEXITED(how) && WEXITSTATUS(how) == 128 + SIGKILL);
}

typedef struct syscall_count {
    char name[NAME_BYTES];
    size_t before, in; /* the save */
} syscall_count;

/* Counts the calls of a trace by name; the save stands between two calls of getsid. */
static size_t count_syscalls(const char *output, syscall_count count[NAMES])
{
    char *text;
    size_t n = 0, bytes;
    int marks = 0;
    ts_error err = {0};
    if (ts_file_read_all(output, 64 << 20, &text, &bytes, &err) != TS_OK) fail_msg("%s", err.msg);
    for (char *line = text; *line;) {
        char *end = strchrnul(line, '\n'), *next = *end ? end + 1 : end;
        *end = '\0';
        char *name = line + strspn(line, "0123456789 ");
        size_t length = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_");
        line = next;
        if (name[length] != '(' || length >= NAME_BYTES) continue;
        name[length] = '\0';
        if (strcmp(name, "getsid") == 0) {
            marks++;
            continue;
        }
        if (strcmp(name, "exit_group") == 0 || marks > 1) continue;
        size_t i = 0;
        while (i < n && strcmp(count[i].name, name) != 0) i++;
        assert_true(i < NAMES);
        if (i == n) snprintf(count[n++].name, NAME_BYTES, "%s", name);
        *(marks ? &count[i].in : &count[i].before) += 1;
    }
    assert_int_equal(marks, 2);
    ts_free(text);
    return n;
}

static bool is_of_memory(const char *name)
{
    static const char *const memory[] = {"brk", "mmap", "munmap", "mremap", "mprotect", "madvise"};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        if (strcmp(name, memory[i]) == 0) return true;
    return false;
}

static size_t kill_at_syscalls(int scenario, const char *root, const char *output)
{
    char folder[160], inject[96], where[160], said[128];
    syscall_count count[NAMES] = {{{0}, 0, 0}};
    size_t kills = 0, stride = stride_of(scenario), turn = crash_seed() % stride;
    ts_error err = {0};
    snprintf(folder, sizeof folder, "%s/run/checkpoints", root);
    snprintf(said, sizeof said, "%s/run/acknowledged", root);
    crash_run r = run_of(scenario, folder);
    start(&r, root);
    assert_true(run_strace(NULL, output, root, scenario));
    size_t n = count_syscalls(output, count);
    for (size_t i = 0; i < n; i++)
        for (size_t k = 1; k <= count[i].in; k++) {
            if (turn++ % stride) continue;
            snprintf(inject, sizeof inject, "inject=%.31s:signal=KILL:when=%zu", count[i].name,
                     count[i].before + k);
            snprintf(where, sizeof where, "%s, killed at %.31s %zu", scenarios[scenario].name,
                     count[i].name, k);
            start(&r, root);
            assert_int_equal(ts_remove_file(output, &err), TS_OK);
            if (run_strace(inject, output, root, scenario))
                kills++;
            else if (!is_of_memory(count[i].name)) /* how many of them there are depends on addresses */
                fail_msg("%s: it was not", where);
            check_after(&r, ts_path_kind_of(said) == TS_PATH_FILE, where);
        }
    print_message("%s: %zu kills at", scenarios[scenario].name, kills);
    for (size_t i = 0; i < n; i++)
        if (count[i].in) print_message(" %s", count[i].name);
    print_message("\n");
    return kills;
}

static void test_system_calls(void **state)
{
    (void)state;
    char root[96], output[128];
    double began = crash_seconds();
    size_t kills = 0;
    ts_error err = {0};
    crash_make_root(root, true);
    snprintf(output, sizeof output, "%s/trace", root);
    char folder[160];
    snprintf(folder, sizeof folder, "%s/run/checkpoints", root);
    crash_run r = run_of(0, folder);
    start(&r, root);
    bool able = run_strace(NULL, output, root, 0);
    for (int i = 0; able && i < SCENARIOS; i++) kills += kill_at_syscalls(i, root, output);
    assert_int_equal(ts_remove_tree(root, &err), TS_OK);
    if (!able) {
        print_message("SKIP: strace is missing, or may not trace here\n");
        skip();
    }
    crash_figure("kills", "at system calls, by strace", (double)kills);
    crash_figure("kills", "seconds for these", crash_seconds() - began);
}

static void to_file(void *context)
{
    ts_writer *w;
    if (ts_writer_open(context, false, &w, NULL) == TS_OK) (void)ts_writer_close(w, false, NULL);
}

/* What strace runs. */
static int save_main(char **argv)
{
    char said[256];
    crash_run r = {.folder = argv[2],
                   .devices = (int)strtol(argv[3], NULL, 10),
                   .commit = (ts_commit)strtol(argv[4], NULL, 10),
                   .scale = 1,
                   .frozen = true};
    snprintf(said, sizeof said, "%s/../acknowledged", argv[2]);
    (void)getsid(0);
    int rc = save_and_keep(&r, to_file, said);
    (void)getsid(0);
    return rc;
}

/* ---- random moments -------------------------------------------------------------------------- */

static void *save_forever(void *context)
{
    const crash_run *r = context;
    int64_t from = -1;
    for (int number = atomic_load(&board->begun) + 1;; number++) {
        ts_error err = {0};
        atomic_store(&board->begun, number);
        atomic_store(&board->where, 1);
        if (crash_save(r, number, number, from, &err) != TS_OK) break;
        atomic_store(&board->acknowledged, number);
        atomic_store(&board->where, 2);
        if (ts_checkpoint_keep(r->folder, number, 2, 1, &err) != TS_OK) break;
        atomic_store(&board->where, 0);
        from = number;
    }
    snprintf(board->problem, sizeof board->problem, "a save or its cleaning failed");
    return NULL;
}

/* Whatever a reader finds while a run is written is whole, and as new as what was acknowledged before it looked. */
static void read_forever(const crash_run *r)
{
    for (;;) {
        int acknowledged = atomic_load(&board->acknowledged);
        crash_seen seen = crash_look(r, -1);
        bool gone = seen.status != TS_OK && acknowledged < 0;
        if (!gone && (*seen.problem || seen.status != TS_OK || seen.number < acknowledged))
            snprintf(board->problem, sizeof board->problem, "a reader found save %d after %d: %.180s",
                     seen.number, acknowledged, *seen.problem ? seen.problem : seen.err.msg);
    }
}

static void child_main(const crash_run *r, bool thread)
{
    pthread_t saver;
    atomic_store(&board->ready, true);
    if (thread && pthread_create(&saver, NULL, save_forever, (void *)r) == 0) read_forever(r);
    save_forever((void *)r);
    _exit(1);
}

typedef struct place { /* a folder that is saved into and killed in turn with others */
    char root[96], folder[160];
    crash_run run;
    int acknowledged, begun;
} place;

static void open_place(place *p, int i)
{
    char root[96];
    crash_make_root(root, i & 4);
    memcpy(p->root, root, sizeof root);
    snprintf(p->folder, sizeof p->folder, "%s/run/checkpoints", root);
    p->run = run_of(i % SCENARIOS, p->folder);
    p->run.scale = 300;
    p->acknowledged = p->begun = -1;
}

/* One child, killed after a while; returns where it was. */
static int kill_once(place *p, bool thread, uint64_t *random)
{
    int how;
    memset(board, 0, sizeof *board);
    atomic_store(&board->acknowledged, p->acknowledged);
    atomic_store(&board->begun, p->begun);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) child_main(&p->run, thread);
    while (!atomic_load(&board->ready)) sched_yield();
    struct timespec pause = {0, (long)(crash_random(random) % 12000000)};
    nanosleep(&pause, NULL);
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, &how, 0), child);
    if (!WIFSIGNALED(how) || *board->problem)
        fail_msg("%s: the child ended, or: %s", p->folder, board->problem);
    p->acknowledged = atomic_load(&board->acknowledged);
    p->begun = atomic_load(&board->begun);
    return atomic_load(&board->where);
}

static void check_place(place *p, bool clean)
{
    ts_error err = {0};
    crash_seen seen = crash_look(&p->run, -1);
    if (seen.status != TS_OK && p->acknowledged >= 0) fail_msg("%s", seen.err.msg);
    if (*seen.problem) fail_msg("%s", seen.problem);
    if (seen.number < p->acknowledged || seen.number > p->begun)
        fail_msg("found save %d; %d was acknowledged, %d begun", seen.number, p->acknowledged, p->begun);
    if (!clean) return;
    p->acknowledged = ++p->begun;
    if (crash_save(&p->run, p->begun, p->begun, -1, &err) != TS_OK ||
        ts_checkpoint_keep(p->folder, p->begun, 1, 0, &err) != TS_OK)
        fail_msg("%s", err.msg);
    if (p->run.commit == TS_COMMIT_RENAME) assert_int_equal(crash_leftovers(p->folder), 0);
    assert_int_equal(crash_look(&p->run, -1).number, p->begun);
}

static void test_random_moments(void **state)
{
    (void)state;
    place places[2 * SCENARIOS];
    uint64_t random = crash_seed();
    size_t wanted = crash_full() ? 2000 : getenv("TESSERA_SLOW") ? 40 : 120;
    size_t kills = 0, saving = 0, removing = 0, saves = 0;
    double began = crash_seconds();
    ts_error err = {0};
    for (int i = 0; i < 2 * SCENARIOS; i++) open_place(&places[i], i);
    for (; kills < wanted || saving < wanted / 2; kills++) {
        place *p = &places[kills % (2 * SCENARIOS)];
        int where = kill_once(p, kills / (2 * SCENARIOS) % 2 == 1, &random);
        saving += where == 1;
        removing += where == 2;
        check_place(p, kills % 50 == 49);
    }
    for (int i = 0; i < 2 * SCENARIOS; i++) {
        saves += (size_t)(places[i].begun + 1);
        check_place(&places[i], true);
        assert_int_equal(ts_remove_tree(places[i].root, &err), TS_OK);
    }
    crash_figure("kills", "at random moments", (double)kills);
    crash_figure("kills", "of them inside a save", (double)saving);
    crash_figure("kills", "of them while old ones were removed", (double)removing);
    crash_figure("kills", "saves begun", (double)saves);
    crash_figure("kills", "seconds for these", crash_seconds() - began);
}

int main(int argc, char **argv)
{
    crash_quiet();
    self = argv[0];
    if (argc == 5 && strcmp(argv[1], "--save") == 0) return save_main(argv);
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (board == MAP_FAILED) return 1;
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_call),
                                       cmocka_unit_test(test_system_calls),
                                       cmocka_unit_test(test_random_moments)};
    return cmocka_run_group_tests_name("checkpoints, killed", tests, NULL, NULL);
}
