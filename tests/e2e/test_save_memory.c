/* test_save_memory.c – the host memory that saving takes, by the kernel's figures.
 *
 * A child process puts a state of more than 200 MB on an engine, writes every byte of it, and saves it twice
 * beside itself. Its peak (VmHWM) since just before may exceed what was resident then by a tenth more than the bytes it
 * owns, and 16 MiB. Written at once, without the copy, it takes no more than one tensor. Then sixty saves of a small
 * state, after which no more is resident than after the tenth.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "slow.h"
#include "tessera.h"
#include "train/run.h"
#include "xla/plugin.h"

enum { MAX_WORDS = 40, MIB = 1 << 20 };

static char root[64];

static int set_up(void **state)
{
    (void)state;
    strcpy(root, "/tmp/tessera-memory-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    return ts_remove_tree(root, NULL) == TS_OK ? 0 : -1;
}

/* ---- what the kernel says -------------------------------------------------------------------- */

/* Bytes of a line of /proc/self/status. */
static double status_bytes(const char *key)
{
    char line[200];
    double kib = -1;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, key, strlen(key)) == 0) kib = strtod(line + strlen(key), NULL);
    if (f) fclose(f);
    return kib * 1024;
}

/* From here on VmHWM is the peak since now. */
static bool forget_peak(void)
{
    int fd = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
    bool done = fd >= 0 && write(fd, "5", 1) == 1;
    if (fd >= 0) close(fd);
    return done;
}

/* ---- in the child ---------------------------------------------------------------------------- */

typedef struct task {
    const char *engine, *sizes, *mesh;
    bool asynchronous;
    int saves, mark; /* what is resident after so many of them is compared with the end */
} task;

typedef struct report {
    double owned, largest; /* bytes: of all, of the largest buffer */
    double before, peak, marked, after;
    char problem[300];
} report;

/* Other bytes for every buffer that a device owns, so that none of them is a page that nobody has touched. */
static ts_status write_all(const ts_state *state, float seed, report *r, ts_error *err)
{
    ts_state_part *p = NULL;
    size_t n;
    TS_TRY(ts_state_parts(state, &p, &n, err));
    ts_status status = TS_OK;
    r->owned = 0;
    for (size_t i = 0; i < n && status == TS_OK; i++) {
        const size_t bytes = ts_type_bytes(&p[i].buffer->type);
        r->owned += (double)(p[i].box.elements * sizeof(float));
        if ((double)bytes > r->largest) r->largest = (double)bytes;
        if (p[i].at != 0) continue; /* a later layer of the same buffer */
        float *v = ts_alloc(bytes);
        for (size_t k = 0; v && k < bytes / sizeof *v; k++) v[k] = seed + (float)(k % 4099);
        status = v ? ts_upload((ts_buffer *)p[i].buffer, v, 0, bytes, err) : TS_RESOURCE_EXHAUSTED;
        ts_free(v);
    }
    ts_free(p);
    return status;
}

static ts_status save_often(const task *t, ts_saver *s, report *r, ts_error *err)
{
    for (int i = 0; i < t->saves; i++) {
        ts_saved one;
        TS_TRY(ts_saver_begin(s, i, json_object(), (double)NAN, err));
        if (!ts_saver_ended(s, true, &one)) return TS_ERROR(err, TS_INTERNAL, "no save ended");
        if (one.error.code != TS_OK) return TS_ERROR(err, one.error.code, "%s", one.error.msg);
        if (t->asynchronous != (one.copied > 0))
            return TS_ERROR(err, TS_INTERNAL, "it was not saved as it was to be");
        if (i + 1 == t->mark) r->marked = status_bytes("VmRSS:");
    }
    return TS_OK;
}

static ts_status measure_saves(const task *t, const ts_config *c, const ts_state *state, report *r,
                               ts_error *err)
{
    char folder[200];
    ts_saver *s = NULL;
    snprintf(folder, sizeof folder, "%s/saved", root);
    TS_TRY(write_all(state, 1, r, err));
    if (!forget_peak()) return TS_ERROR(err, TS_UNIMPLEMENTED, "this kernel forgets no peak");
    r->before = status_bytes("VmRSS:");
    const ts_saver_options o = {.struct_size = sizeof o,
                                .folder = folder,
                                .mesh = "",
                                .devices = (int)c->devices,
                                .asynchronous = t->asynchronous,
                                .newest = 1};
    TS_TRY(ts_saver_open(&o, state, &s, err));
    ts_status status = save_often(t, s, r, err);
    r->peak = status_bytes("VmHWM:");
    r->after = status_bytes("VmRSS:");
    ts_saver_close(s);
    return status;
}

static ts_status work(const task *t, report *r, ts_error *err)
{
    char text[1500], *at = NULL;
    const char *word[MAX_WORDS];
    int n = 0;
    ts_config *c = NULL;
    ts_graph *g = NULL;
    ts_placed placed = {0};
    ts_engine *e = NULL;
    ts_state *state = NULL;
    snprintf(text, sizeof text,
             "base.yml run_name=r base_output_directory=%s dataset_type=synthetic dtype=float32 "
             "threads=1 max_target_length=16 plugin=%s engine=%s %s %s",
             root, strcmp(t->engine, "xla") ? "" : "cpu", t->engine, t->sizes, t->mesh);
    for (char *w = strtok_r(text, " ", &at); w && n < MAX_WORDS; w = strtok_r(NULL, " ", &at))
        word[n++] = w;
    TS_TRY(ts_config_load_words(word, n, &c, err));
    const ts_engine_options o = {.struct_size = sizeof o,
                                 .name = t->engine,
                                 .plugin = "cpu",
                                 .devices = (int)c->devices,
                                 .threads = 1};
    ts_status status = ts__build_train(c, &c->model, &g, err);
    if (status == TS_OK) status = ts_place(c, g, TS_PLACE_TRAIN, &placed, err);
    if (status == TS_OK) status = ts_engine_open(&o, &e, err);
    if (status == TS_OK) status = ts_state_place(e, &placed, &state, err);
    if (status == TS_OK) status = measure_saves(t, c, state, r, err);
    ts_state_free(state);
    ts_engine_close(e);
    ts_placed_free(&placed);
    ts_graph_free(g);
    ts_config_free(c);
    return status;
}

/* ---- outside --------------------------------------------------------------------------------- */

static report run(const task *t)
{
    report r = {0};
    int ends[2], code;
    assert_int_equal(pipe(ends), 0);
    fflush(stdout);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        ts_error err = {0};
        if (work(t, &r, &err) != TS_OK) snprintf(r.problem, sizeof r.problem, "%.290s", err.msg);
        _exit(write(ends[1], &r, sizeof r) == (ssize_t)sizeof r ? 0 : 1);
    }
    close(ends[1]);
    assert_int_equal(read(ends[0], &r, sizeof r), (ssize_t)sizeof r);
    close(ends[0]);
    assert_int_equal(waitpid(child, &code, 0), child);
    if (*r.problem) fail_msg("%s %s: %s", t->engine, t->mesh, r.problem);
    printf("  %-4s %-60.60s %s owns %6.1f MiB, %6.1f more at the peak of %d saves, %+5.1f at the end\n",
           t->engine, t->mesh, t->asynchronous ? "beside " : "at once", r.owned / MIB,
           (r.peak - r.before) / MIB, t->saves, (r.after - r.before) / MIB);
    return r;
}

static const char large[] = "base_emb_dim=512 base_num_query_heads=8 base_num_kv_heads=8 head_dim=64 "
                            "base_mlp_dim=2048 base_num_decoder_layers=2";
static const char small[] = "base_emb_dim=128 base_num_query_heads=4 base_num_kv_heads=2 head_dim=32 "
                            "base_mlp_dim=384 base_num_decoder_layers=2";
static const char one[] = "vocab_size=8704 cpu_devices=1 per_device_batch_size=4";
static const char four[] = "vocab_size=8704 cpu_devices=4 per_device_batch_size=1 ici_fsdp_parallelism=2 "
                           "ici_tensor_parallelism=2";
static const char little[] = "vocab_size=512 cpu_devices=4 per_device_batch_size=1 "
                             "ici_fsdp_parallelism=2 ici_tensor_parallelism=2";
static const char partly_frozen[] = "vocab_size=12288 cpu_devices=1 per_device_batch_size=4 "
                                    "frozen_parameters=[model.embed_tokens.*]";

static bool has_plugin(void)
{
    char path[4096];
    ts_error err = {0};
    if (ts__plugin_find("cpu", path, sizeof path, &err) == TS_OK) return true;
    printf("SKIP  %s\n", err.msg);
    return false;
}

static void skip_where_memory_is_watched(void)
{
    if (!test_is_slow()) return;
    printf("SKIP  a sanitizer or valgrind has memory of its own\n");
    skip();
}

static void check_peak(const char *engine, const char *mesh)
{
    report r = run(&(task){engine, large, mesh, true, 2, 2});
    assert_true(r.owned >= 200e6);
    assert_true(r.peak - r.before <= 1.1 * r.owned + 16.0 * MIB);
    assert_true(r.peak - r.before >= 0.5 * r.owned); /* there is a copy, and it was seen */
    r = run(&(task){engine, large, mesh, false, 1, 1});
    assert_true(r.peak - r.before <= r.largest + 16.0 * MIB);
}

static void a_save_takes_one_copy(void **state)
{
    (void)state;
    skip_where_memory_is_watched();
    check_peak("cpu", one);
    check_peak("cpu", four);
    check_peak("cpu", partly_frozen);
    if (has_plugin()) check_peak("xla", four);
}

static void sixty_saves_leave_nothing(void **state)
{
    (void)state;
    skip_where_memory_is_watched();
    for (int xla = 0; xla < (has_plugin() ? 2 : 1); xla++) {
        const report r = run(&(task){xla ? "xla" : "cpu", small, little, true, 60, 10});
        printf("  from the tenth to the sixtieth: %+.2f MiB\n", (r.after - r.marked) / MIB);
        assert_true(r.after - r.marked <= 1.0 * MIB);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_save_takes_one_copy),
        cmocka_unit_test(sixty_saves_leave_nothing),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
