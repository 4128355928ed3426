/* test_saver.c – checkpoints written beside the training: the same bytes as those written at once, and the values of
 * their own step whatever the devices hold by the time they are written.
 *
 * A small model's state on one virtual device and on eight of the cpu engine; nothing is trained, other seeds fill it
 * with other values. An observer of the file calls holds the writing thread where a test needs it to be.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "tessera.h"
#include "train/run.h"

enum { MAX_WORDS = 40 };

static char root[64], log_text[4000];

static void keep_log(void *context, ts_log_level level, const char *line)
{
    (void)context;
    (void)level;
    snprintf(log_text, sizeof log_text, "%s", line);
}

static int set_up(void **state)
{
    (void)state;
    strcpy(root, "/tmp/tessera-saver-XXXXXX");
    ts_log_set_sink(keep_log, NULL);
    return mkdtemp(root) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    ts_log_set_sink(NULL, NULL);
    return ts_remove_tree(root, NULL) == TS_OK ? 0 : -1;
}

/* ---- a state --------------------------------------------------------------------------------- */

typedef struct model {
    ts_config *config;
    ts_graph *graph;
    ts_placed placed;
    ts_engine *engine;
    ts_state *state;
} model;

static const char one[] = "cpu_devices=1 per_device_batch_size=8";
static const char cube[] = "cpu_devices=8 per_device_batch_size=1 ici_data_parallelism=2 "
                           "ici_fsdp_parallelism=2 ici_tensor_parallelism=2";
static const char frozen[] = " frozen_parameters=[model.embed_tokens.*,*.up_proj.weight]";

static void fill(model *m, uint64_t seed)
{
    ts_error err = {0};
    if (ts_state_initialise(m->state, seed, &err) != TS_OK) fail_msg("%s", err.msg);
}

static model make(const char *mesh, const char *more)
{
    model m = {0};
    ts_error err = {0};
    char text[1500], *at = NULL;
    const char *word[MAX_WORDS];
    int n = 0;
    snprintf(text, sizeof text,
             "base.yml base_emb_dim=32 base_num_query_heads=4 base_num_kv_heads=2 head_dim=8 "
             "base_mlp_dim=64 base_num_decoder_layers=3 vocab_size=260 max_target_length=16 "
             "dtype=float32 threads=1 engine=cpu dataset_type=synthetic run_name=r "
             "base_output_directory=%s %s%s",
             root, mesh, more);
    for (char *w = strtok_r(text, " ", &at); w; w = strtok_r(NULL, " ", &at)) word[n++] = w;
    ts_status status = ts_config_load_words(word, n, &m.config, &err);
    if (status == TS_OK)
        status = ts__build_train(m.config, &m.config->model, &m.graph, &err);
    if (status == TS_OK) status = ts_place(m.config, m.graph, TS_PLACE_TRAIN, &m.placed, &err);
    ts_engine_options o = {.struct_size = sizeof o,
                           .name = "cpu",
                           .devices = status == TS_OK ? (int)m.config->devices : 1,
                           .threads = 1};
    if (status == TS_OK) status = ts_engine_open(&o, &m.engine, &err);
    if (status == TS_OK) status = ts_state_place(m.engine, &m.placed, &m.state, &err);
    if (status != TS_OK) fail_msg("%s", err.msg);
    fill(&m, 1);
    return m;
}

static void drop(model *m)
{
    ts_state_free(m->state);
    ts_engine_close(m->engine);
    ts_placed_free(&m->placed);
    ts_graph_free(m->graph);
    ts_config_free(m->config);
}

/* ---- saving ---------------------------------------------------------------------------------- */

static char *folder_of(const char *name)
{
    static char path[4][200];
    static int next;
    char *p = path[next++ % 4];
    snprintf(p, sizeof path[0], "%s/%s", root, name);
    return p;
}

static ts_saver *open_saver(const model *m, const char *folder, bool asynchronous, size_t newest,
                            size_t best)
{
    ts_saver *s;
    ts_error err = {0};
    const ts_saver_options o = {.struct_size = sizeof o,
                                .folder = folder,
                                .mesh = "a mesh",
                                .devices = (int)m->config->devices,
                                .asynchronous = asynchronous,
                                .newest = newest,
                                .best = best};
    if (ts_saver_open(&o, m->state, &s, &err) != TS_OK) fail_msg("%s", err.msg);
    return s;
}

static json_t *some_state(int64_t step)
{
    json_t *o = json_object();
    assert_int_equal(json_object_set_new(o, "step", json_integer(step)), 0);
    return o;
}

static void begin(ts_saver *s, int64_t step, double score)
{
    ts_error err = {0};
    if (ts_saver_begin(s, step, some_state(step), score, &err) != TS_OK) fail_msg("%s", err.msg);
}

/* Its end, which must be a good one. */
static ts_saved ended(ts_saver *s, int64_t step)
{
    ts_saved r;
    assert_true(ts_saver_ended(s, true, &r));
    if (r.error.code != TS_OK) fail_msg("%s", r.error.msg);
    assert_int_equal(r.step, step);
    return r;
}

static void save(ts_saver *s, int64_t step, double score)
{
    begin(s, step, score);
    (void)ended(s, step);
}

/* Without the saver's thread, straight from the devices. */
static void save_at_once(const model *m, const char *folder, int64_t step)
{
    ts_saver *s = open_saver(m, folder, false, 0, 0);
    save(s, step, (double)NAN);
    ts_saver_close(s);
}

/* ---- comparing ------------------------------------------------------------------------------- */

static char *bytes_of(const char *folder, int64_t step, const char *name, size_t *n)
{
    char path[500], *data;
    ts_error err = {0};
    snprintf(path, sizeof path, "%s/%lld/%s", folder, (long long)step, name);
    if (ts_file_read_all(path, 1u << 28, &data, n, &err) != TS_OK) fail_msg("%s", err.msg);
    return data;
}

/* Every file but the manifest, which has a time in it. Files that begin with `only` (NULL: all). */
static int same_files(const char *a, const char *b, int64_t step, const char *only)
{
    char path[300], **names;
    size_t n;
    int compared = 0;
    ts_error err = {0};
    snprintf(path, sizeof path, "%s/%lld", a, (long long)step);
    if (ts_list_folder(path, &names, &n, &err) != TS_OK) fail_msg("%s", err.msg);
    for (size_t i = 0; i < n; i++) {
        size_t x, y;
        if (strcmp(names[i], "manifest.json") == 0) continue;
        if (only && strncmp(names[i], only, strlen(only)) != 0) continue;
        char *p = bytes_of(a, step, names[i], &x), *q = bytes_of(b, step, names[i], &y);
        if (x != y || memcmp(p, q, x) != 0) fail_msg("%s differs in %s and %s", names[i], a, b);
        ts_free(p);
        ts_free(q);
        compared++;
    }
    ts_names_free(names, n);
    return compared;
}

static ino_t inode(const char *folder, int64_t step, const char *name)
{
    char path[500];
    struct stat st;
    snprintf(path, sizeof path, "%s/%lld/%s", folder, (long long)step, name);
    if (stat(path, &st) != 0) fail_msg("%s is missing", path);
    return st.st_ino;
}

static const char *steps_in(const char *folder)
{
    static char text[400];
    int64_t *steps;
    size_t n, at = 0;
    assert_int_equal(ts_checkpoint_list(folder, &steps, &n, NULL), TS_OK);
    *text = '\0';
    for (size_t i = 0; i < n; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, i ? " %lld" : "%lld",
                               (long long)steps[i]);
    ts_free(steps);
    return text;
}

/* ---- the writing thread held where it is ------------------------------------------------------ */

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static bool held;
static pthread_t main_thread;

/* The first write of another thread waits at the gate. */
static int wait_at_gate(void *context, const ts_file_call *c)
{
    (void)context;
    if (c->op != TS_FAULT_WRITE || c->done || pthread_equal(pthread_self(), main_thread)) return 0;
    pthread_mutex_lock(&gate);
    held = true;
    pthread_mutex_unlock(&gate);
    return 0;
}

static void close_gate(void)
{
    main_thread = pthread_self();
    held = false;
    pthread_mutex_lock(&gate);
    ts_file_observe(wait_at_gate, NULL);
}

static void open_gate(void)
{
    assert_false(held); /* nothing was written so far */
    pthread_mutex_unlock(&gate);
}

/* ---- the tests ------------------------------------------------------------------------------- */

static void beside_is_as_at_once(void **state)
{
    static const char *const meshes[] = {one, cube};
    static const char *const more[] = {"", frozen};
    (void)state;
    for (int i = 0; i < 4; i++) {
        char a[32], b[32];
        model m = make(meshes[i / 2], more[i % 2]);
        snprintf(a, sizeof a, "async-%d", i);
        snprintf(b, sizeof b, "sync-%d", i);
        ts_saver *s = open_saver(&m, folder_of(a), true, 0, 0);
        begin(s, 7, (double)NAN);
        ts_saved r = ended(s, 7);
        assert_true(r.copied > 0 && r.written > 0 && r.bytes > 0);
        save_at_once(&m, folder_of(b), 7);
        const int files = same_files(folder_of(a), folder_of(b), 7, NULL);
        assert_int_equal(files, (i / 2 ? 4 : 1) * (i % 2 ? 4 : 2));
        ts_saver_close(s);
        drop(&m);
    }
}

/* What is trained meanwhile does not reach the files. */
static void a_save_holds_its_own_step(void **state)
{
    (void)state;
    model m = make(cube, frozen);
    save_at_once(&m, folder_of("before"), 10);
    ts_saver *s = open_saver(&m, folder_of("during"), true, 0, 0);
    for (int round = 0; round < 2; round++) {
        close_gate();
        begin(s, 10, (double)NAN);
        assert_true(ts_saver_is_busy(s));
        fill(&m, 99); /* the copy is this step's, the devices are at another */
        open_gate();
        (void)ended(s, 10);
        ts_file_observe(NULL, NULL);
        assert_true(held && !ts_saver_is_busy(s));
        assert_true(same_files(folder_of("before"), folder_of("during"), 10, "shard") == 4);
        fill(&m, 1);
    }
    ts_saver_close(s);
    drop(&m);
}

static void the_next_one_waits_for_the_one_before(void **state)
{
    (void)state;
    model m = make(one, "");
    ts_saver *s = open_saver(&m, folder_of("queue"), true, 0, 0);
    ts_saved r;
    assert_false(ts_saver_ended(s, false, &r));
    assert_false(ts_saver_ended(s, true, &r)); /* nothing is there to be waited for */
    assert_true(ts_saver_estimate(s) == 0);
    for (int step = 1; step <= 5; step++) begin(s, step, (double)NAN);
    for (int step = 1; step <= 5; step++) (void)ended(s, step);
    assert_false(ts_saver_ended(s, true, &r));
    assert_true(ts_saver_estimate(s) > 0);
    assert_string_equal(steps_in(folder_of("queue")), "1 2 3 4 5");
    begin(s, 6, (double)NAN);
    ts_saver_close(s); /* waits for it */
    ts_checkpoint *c;
    char path[300];
    snprintf(path, sizeof path, "%s/6", folder_of("queue"));
    ts_error err = {0};
    if (ts_checkpoint_open(path, &c, &err) != TS_OK) fail_msg("%s", err.msg);
    assert_int_equal(json_integer_value(json_object_get(ts_checkpoint_state(c), "step")), 6);
    assert_string_equal(ts_checkpoint_mesh(c), "a mesh");
    ts_checkpoint_close(c);
    drop(&m);
}

static void frozen_tensors_are_linked(void **state)
{
    static const char file[] = "frozen-00000-of-00008.safetensors";
    (void)state;
    for (int asynchronous = 0; asynchronous < 2; asynchronous++) {
        char *folder = folder_of(asynchronous ? "linked" : "linked-at-once"), path[300];
        model m = make(cube, frozen);
        ts_saver *s = open_saver(&m, folder, asynchronous, 2, 0);
        ts_saved first, later;
        begin(s, 0, (double)NAN), first = ended(s, 0);
        begin(s, 1, (double)NAN), later = ended(s, 1);
        save(s, 2, (double)NAN);
        assert_true(later.bytes < first.bytes);
        assert_string_equal(steps_in(folder), "1 2");
        assert_true(inode(folder, 1, file) == inode(folder, 2, file));
        assert_true(inode(folder, 1, "shard-00000-of-00008.safetensors") !=
                    inode(folder, 2, "shard-00000-of-00008.safetensors"));
        /* Where the one to link from is gone they are written again, by the same saver. */
        for (int step = 1; step <= 2; step++) {
            snprintf(path, sizeof path, "%s/%d", folder, step);
            assert_int_equal(ts_remove_tree(path, NULL), TS_OK);
        }
        begin(s, 3, (double)NAN), later = ended(s, 3);
        assert_int_equal(later.bytes, first.bytes);
        ts_saver_close(s);
        /* Another process links from what it restored. */
        s = open_saver(&m, folder, asynchronous, 0, 0);
        snprintf(path, sizeof path, "%s/3", folder);
        ts_saver_restored(s, path);
        save(s, 4, (double)NAN);
        assert_true(inode(folder, 3, file) == inode(folder, 4, file));
        ts_saver_restored(s, NULL);
        save(s, 5, (double)NAN);
        assert_true(inode(folder, 4, file) != inode(folder, 5, file));
        assert_true(same_files(folder, folder, 5, "frozen") == 8);
        ts_saver_close(s);
        drop(&m);
    }
}

static void frozen_tensors_are_copied_where_links_fail(void **state)
{
    static const char file[] = "frozen-00000-of-00001.safetensors";
    (void)state;
    char *folder = folder_of("copied");
    size_t x, y;
    model m = make(one, frozen);
    ts_saver *s = open_saver(&m, folder, true, 0, 0);
    save(s, 0, (double)NAN);
    ts_file_fault(TS_FAULT_LINK, 1, EXDEV);
    save(s, 1, (double)NAN);
    ts_file_fault(0, 0, 0);
    char *p = bytes_of(folder, 0, file, &x), *q = bytes_of(folder, 1, file, &y);
    assert_true(inode(folder, 0, file) != inode(folder, 1, file));
    assert_true(x == y && memcmp(p, q, x) == 0);
    ts_free(p);
    ts_free(q);
    ts_saver_close(s);
    drop(&m);
}

static void the_newest_and_the_best_stay(void **state)
{
    static const double score[] = {5, 2, 4, 3, 6, NAN, 7, 8};
    (void)state;
    model m = make(one, "");
    ts_saver *s = open_saver(&m, folder_of("kept"), true, 2, 2);
    for (int step = 0; step < 8; step++) save(s, step, score[step]);
    assert_string_equal(steps_in(folder_of("kept")), "1 3 6 7");
    ts_saver_close(s);
    drop(&m);
}

/* A full disk costs one checkpoint; the one before and the next are whole. */
static void a_save_that_fails_is_told(void **state)
{
    (void)state;
    for (int asynchronous = 0; asynchronous < 2; asynchronous++) {
        char *folder = folder_of(asynchronous ? "full" : "full-at-once");
        model m = make(one, frozen);
        ts_saver *s = open_saver(&m, folder, asynchronous, 0, 0);
        ts_saved r;
        save(s, 1, (double)NAN);
        ts_file_fault(TS_FAULT_WRITE, 1, ENOSPC);
        begin(s, 2, (double)NAN);
        assert_true(ts_saver_ended(s, true, &r));
        ts_file_fault(0, 0, 0);
        assert_int_equal(r.step, 2);
        assert_true(r.error.code != TS_OK);
        assert_non_null(strstr(r.error.msg, "the checkpoint of step 2 was not saved"));
        assert_non_null(strstr(r.error.msg, "no space left"));
        save(s, 3, (double)NAN);
        assert_string_equal(steps_in(folder), "1 3");
        ts_saver_close(s);
        save_at_once(&m, folder_of("whole"), 3);
        (void)same_files(folder_of("whole"), folder, 3, NULL);
        drop(&m);
    }
}

/* Whatever finds no room: an error that says so, or a checkpoint like any other. */
static void memory_that_is_out(void **state)
{
    (void)state;
    model m = make(cube, frozen);
    int failed = 0, whole = 0;
    bool any = true;
    save_at_once(&m, folder_of("roomy"), 1);
    for (int nth = 1; any; nth += nth < 60 ? 1 : 41) {
        ts_saved r = {0};
        ts_error err = {0};
        ts_saver *s = open_saver(&m, folder_of("tight"), true, 0, 0);
        json_t *json = some_state(1);
        const uint64_t before = ts_alloc_count();
        ts_alloc_fail_at((uint64_t)nth);
        ts_status status = ts_saver_begin(s, 1, json, (double)NAN, &err);
        if (status == TS_OK) {
            assert_true(ts_saver_ended(s, true, &r));
            status = r.error.code;
        }
        any = ts_alloc_count() - before >= (uint64_t)nth; /* a call failed */
        ts_alloc_fail_at(0);
        ts_saver_close(s);
        if (status == TS_OK) {
            whole++;
            (void)same_files(folder_of("roomy"), folder_of("tight"), 1, NULL);
        } else {
            assert_int_equal(status, TS_RESOURCE_EXHAUSTED);
            failed++;
        }
    }
    printf("%d saves failed for want of memory, %d did without\n", failed, whole);
    assert_true(failed > 3 && whole > 3);
    assert_non_null(strstr(log_text, "it waits while it is saved"));
    drop(&m);
}

/* What the thread that writes lets through. */
static int ask_mask(void *context, const ts_file_call *c)
{
    if (c->op == TS_FAULT_WRITE && !pthread_equal(pthread_self(), main_thread))
        pthread_sigmask(SIG_SETMASK, NULL, context);
    return 0;
}

static void signals_are_not_for_the_thread(void **state)
{
    (void)state;
    model m = make(one, "");
    sigset_t blocked;
    sigemptyset(&blocked);
    main_thread = pthread_self();
    ts_saver *s = open_saver(&m, folder_of("signals"), true, 0, 0);
    ts_file_observe(ask_mask, &blocked);
    save(s, 1, (double)NAN);
    ts_file_observe(NULL, NULL);
    static const int ours[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGALRM, SIGCHLD};
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        assert_int_equal(sigismember(&blocked, ours[i]), 1);
    assert_int_equal(sigismember(&blocked, SIGSEGV), 0);
    pthread_sigmask(SIG_SETMASK, NULL, &blocked); /* of this one nothing changed */
    assert_int_equal(sigismember(&blocked, SIGTERM), 0);
    ts_saver_close(s);
    drop(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(beside_is_as_at_once),
        cmocka_unit_test(a_save_holds_its_own_step),
        cmocka_unit_test(the_next_one_waits_for_the_one_before),
        cmocka_unit_test(frozen_tensors_are_linked),
        cmocka_unit_test(frozen_tensors_are_copied_where_links_fail),
        cmocka_unit_test(the_newest_and_the_best_stay),
        cmocka_unit_test(a_save_that_fails_is_told),
        cmocka_unit_test(memory_that_is_out),
        cmocka_unit_test(signals_are_not_for_the_thread),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
