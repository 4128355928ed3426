/* test_restore_mesh.c – a state that moves from mesh to mesh, engine to engine, stacked and not, and back within a run:
 * the same bits at every station.
 *
 * The values are made up, another one for each element of each tensor, so that nothing can change places unseen. Each
 * station restores what the one before saved, compares every element, and saves. Query heads lie as [kv heads, group],
 * of which a mesh splits both, so a device's part is no stretch of the published tensor. The xla engine runs on XLA's
 * CPU plugin where it is installed.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "slow.h"
#include "tessera.h"
#include "train/run.h"
#include "xla/plugin.h"

enum { MAX_WORDS = 48, PIECE = 4096 };

static char root[64];

static int set_up(void **state)
{
    (void)state;
    strcpy(root, "/tmp/tessera-moves-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    return ts_remove_tree(root, NULL) == TS_OK ? 0 : -1;
}

static bool has_plugin(void)
{
    char path[4096];
    ts_error err = {0};
    if (ts__plugin_find("cpu", path, sizeof path, &err) == TS_OK) return true;
    printf("SKIP  %s\n", err.msg);
    return false;
}

/* ---- a state on a mesh ----------------------------------------------------------------------- */

typedef struct station {
    const char *engine;
    int data, fsdp, tensor;
    const char *more;
} station;

typedef struct model {
    ts_config *config;
    ts_graph *graph;
    ts_placed placed;
    ts_engine *engine;
    ts_state *state;
} model;

static ts_config *configure(const station *s, const char *words)
{
    ts_config *c = NULL;
    ts_error err = {0};
    char text[2000], *at = NULL;
    const char *word[MAX_WORDS];
    const int devices = s->data * s->fsdp * s->tensor;
    int n = 0;
    snprintf(text, sizeof text,
             "base.yml base_emb_dim=48 base_num_query_heads=24 base_num_kv_heads=6 head_dim=4 "
             "base_mlp_dim=96 base_num_decoder_layers=3 vocab_size=264 max_target_length=16 "
             "dtype=float32 threads=1 dataset_type=synthetic base_output_directory=%s engine=%s %s "
             "per_device_batch_size=%d cpu_devices=%d ici_data_parallelism=%d "
             "ici_fsdp_parallelism=%d ici_tensor_parallelism=%d %s %s",
             root, s->engine,
             strcmp(s->engine, "xla") ? "" : "plugin=cpu compile_xla_flags=" TEST_QUICK_XLA,
             16 / devices, devices, s->data, s->fsdp, s->tensor, s->more, words);
    for (char *w = strtok_r(text, " ", &at); w; w = strtok_r(NULL, " ", &at)) {
        assert_true(n < MAX_WORDS);
        word[n++] = w;
    }
    if (ts_config_load_words(word, n, &c, &err) != TS_OK) fail_msg("%s", err.msg);
    return c;
}

static model make(const station *s)
{
    model m = {.config = configure(s, "run_name=moves")};
    ts_error err = {0};
    ts_engine_options o = {.struct_size = sizeof o,
                           .name = s->engine,
                           .devices = (int)m.config->devices,
                           .plugin = "cpu",
                           .threads = 1};
    ts_status status = ts__build_train(m.config, &m.config->model, &m.graph, &err);
    if (status == TS_OK) status = ts_place(m.config, m.graph, TS_PLACE_TRAIN, &m.placed, &err);
    if (status == TS_OK) status = ts_engine_open(&o, &m.engine, &err);
    if (status == TS_OK) status = ts_state_place(m.engine, &m.placed, &m.state, &err);
    if (status != TS_OK) fail_msg("%s", err.msg);
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

/* ---- its values ------------------------------------------------------------------------------ */

/* Any bits that are a number; no two elements of the model have the same. */
static float value_of(const char *name, uint64_t element)
{
    uint64_t h = 0x9e3779b97f4a7c15u;
    for (const char *p = name; *p; p++) h = (h ^ (unsigned char)*p) * 0x100000001b3u;
    h ^= element * 0xff51afd7ed558ccdu;
    h ^= h >> 33;
    h *= 0xc4ceb9fe1a85ec53u;
    h ^= h >> 29;
    uint32_t bits = (uint32_t)h & 0xbfffffffu; /* below 2 in size: no infinity, no NaN */
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static ts_status made_up(void *context, uint64_t first, size_t n, float *to, ts_error *err)
{
    (void)err;
    for (size_t i = 0; i < n; i++) to[i] = value_of(context, first + i);
    return TS_OK;
}

/* A checkpoint of these values, whole tensors by one device. */
static void first_checkpoint(const model *m, const char *folder, int64_t step)
{
    const size_t n = ts_state_tensor_count(m->state);
    ts_state_tensor *t = ts_alloc(n * sizeof *t);
    ts_checkpoint_part *p = ts_alloc_zero(n * sizeof *p);
    ts_checkpoint_save_options o;
    ts_error err = {0};
    json_t *state = json_object();
    for (size_t i = 0; i < n; i++) {
        ts_state_tensor_at(m->state, i, &t[i]);
        p[i] = (ts_checkpoint_part){.name = t[i].name,
                                    .rank = t[i].param->file_rank,
                                    .fill = made_up,
                                    .context = t[i].name};
        memcpy(p[i].dim, t[i].param->file_dim, sizeof t[i].param->file_dim);
        p[i].box = ts_box_whole(p[i].rank, p[i].dim);
    }
    ts_checkpoint_save_options_default(&o);
    o.folder = folder;
    o.step = step;
    o.part = p;
    o.n_part = n;
    o.mesh = "";
    o.state = state;
    if (ts_checkpoint_save(&o, &err) != TS_OK) fail_msg("%s", err.msg);
    json_decref(state);
    ts_free(p);
    ts_free(t);
}

static void restore(model *m, const char *folder, int64_t step)
{
    char path[300];
    ts_checkpoint *c = NULL;
    ts_error err = {0};
    snprintf(path, sizeof path, "%s/%lld", folder, (long long)step);
    ts_status status = ts_checkpoint_open(path, &c, &err);
    if (status == TS_OK) status = ts_state_load(m->state, ts_checkpoint_tensors(c), &err);
    if (status == TS_OK) status = ts_state_load_moments(m->state, ts_checkpoint_tensors(c), &err);
    if (status != TS_OK) fail_msg("%s", err.msg);
    ts_checkpoint_close(c);
}

static void compare(const model *m, const char *where)
{
    static float v[PIECE];
    ts_error err = {0};
    for (size_t i = 0; i < ts_state_tensor_count(m->state); i++) {
        ts_state_tensor t;
        ts_state_tensor_at(m->state, i, &t);
        for (size_t first = 0; first < t.elements; first += PIECE) {
            const size_t n = t.elements - first < PIECE ? t.elements - first : PIECE;
            if (ts_state_read(&t, first, n, v, &err) != TS_OK) fail_msg("%s", err.msg);
            for (size_t k = 0; k < n; k++) {
                const float want = value_of(t.name, first + k);
                if (memcmp(&v[k], &want, sizeof want) != 0)
                    fail_msg("%s: %s[%zu] is %a, it was saved as %a", where, t.name, first + k,
                             (double)v[k], (double)want);
            }
        }
    }
    if (ts_state_check_replicas(m->state, &err) != TS_OK) fail_msg("%s: %s", where, err.msg);
}

static void save(const model *m, const char *folder, int64_t step, bool asynchronous,
                 const char *from)
{
    ts_saver *s;
    ts_saved r;
    ts_error err = {0};
    const ts_saver_options o = {.struct_size = sizeof o,
                                .folder = folder,
                                .mesh = "",
                                .devices = (int)m->config->devices,
                                .asynchronous = asynchronous};
    if (ts_saver_open(&o, m->state, &s, &err) != TS_OK) fail_msg("%s", err.msg);
    ts_saver_restored(s, from);
    if (ts_saver_begin(s, step, json_object(), (double)NAN, &err) != TS_OK)
        fail_msg("%s", err.msg);
    assert_true(ts_saver_ended(s, true, &r));
    if (r.error.code != TS_OK) fail_msg("%s", r.error.msg);
    ts_saver_close(s);
}

/* How many of the parts that devices write are no box of what is published. */
static int scattered(const model *m)
{
    ts_state_part *p;
    size_t n;
    int found = 0;
    assert_int_equal(ts_state_parts(m->state, &p, &n, NULL), TS_OK);
    for (size_t i = 0; i < n; i++) {
        ts_box file;
        found += !ts_box_reshape(&p[i].box, p[i].tensor.param->file_rank,
                                 p[i].tensor.param->file_dim, &file);
    }
    ts_free(p);
    return found;
}

/* ---- from station to station ------------------------------------------------------------------ */

static void travel(const char *name, const station *at, int n, int xla)
{
    char folder[200], from[300];
    snprintf(folder, sizeof folder, "%s/%s", root, name);
    for (int i = 0; i < n; i++) {
        if (!xla && strcmp(at[i].engine, "xla") == 0) continue;
        char where[200];
        model m = make(&at[i]);
        snprintf(where, sizeof where, "%s on %d × %d × %d %s", at[i].engine, at[i].data,
                 at[i].fsdp, at[i].tensor, at[i].more);
        static int64_t step; /* ascending over all of them */
        if (i == 0) first_checkpoint(&m, folder, ++step);
        restore(&m, folder, step);
        compare(&m, where);
        snprintf(from, sizeof from, "%s/%lld", folder, (long long)step);
        step++;
        save(&m, folder, step, i % 2 == 0, from);
        compare(&m, where); /* saving leaves it as it was */
        printf("  %-60.60s %3d scattered\n", where, scattered(&m));
        drop(&m);
    }
}

static const station stations[] = {
    {"cpu", 1, 4, 4, "scan_layers=true remat_policy=full"},
    {"cpu", 1, 2, 2, "scan_layers=false remat_policy=none"},
    {"cpu", 1, 1, 1, "scan_layers=true remat_policy=minimal"},
    {"xla", 1, 2, 2, "scan_layers=true remat_policy=full"},
    {"cpu", 1, 2, 4, "scan_layers=false remat_policy=minimal"},
    {"xla", 1, 1, 1, "scan_layers=false remat_policy=none"},
    {"cpu", 2, 2, 2, "scan_layers=true remat_policy=none"},
    {"cpu", 8, 1, 1, "scan_layers=true remat_policy=none"},
    {"xla", 2, 1, 4, "scan_layers=true remat_policy=minimal"},
    {"cpu", 1, 1, 8,
     "scan_layers=true remat_policy=full gradient_accumulation_steps=2 sharding_tolerance=0.1"},
    {"cpu", 1, 16, 1, "scan_layers=false remat_policy=full"},
    {"cpu", 1, 4, 4, "scan_layers=true remat_policy=full"},
};
enum { STATIONS = sizeof stations / sizeof *stations };

static void a_state_is_the_same_everywhere(void **state)
{
    (void)state;
    model m = make(&stations[0]);
    assert_true(scattered(&m) > 0); /* query heads, as they are cut here */
    drop(&m);
    travel("free", stations, STATIONS, has_plugin());
}

/* Frozen and tied tensors, and what frozen files hold, too. */
static void frozen_and_tied_tensors_too(void **state)
{
    station some[STATIONS];
    char more[STATIONS][200];
    (void)state;
    const bool xla = has_plugin() && !test_is_slow();
    for (int i = 0; i < STATIONS; i++) {
        some[i] = stations[i];
        snprintf(more[i], sizeof more[i],
                 "%s logits_via_embedding=true "
                 "frozen_parameters=[model.embed_tokens.*,*.q_proj.weight]",
                 stations[i].more);
        some[i].more = more[i];
    }
    travel("frozen", some, STATIONS, xla);
}

/* ---- back, within a run ------------------------------------------------------------------------ */

enum { AHEAD = 4 };

typedef struct losses {
    double loss[AHEAD], norm[AHEAD];
} losses;

static void on_step(void *context, const ts_step_info *i)
{
    losses *l = context;
    l->loss[i->step % AHEAD] = i->loss;
    l->norm[i->step % AHEAD] = i->grad_norm;
}

static void steps(ts_run *r, int n)
{
    ts_error err = {0};
    for (int i = 0; i < n; i++)
        if (ts__run_dispatch(r, &err) != TS_OK || ts__run_finish(r, &err) != TS_OK)
            fail_msg("%s", err.msg);
}

/* AHEAD steps, a save, AHEAD steps, back to the save, the same AHEAD steps again. */
static void back_and_forth(const station *s, const char *name)
{
    char words[100];
    losses first = {0}, again = {0};
    ts_error err = {0};
    ts_train_hooks hooks;
    ts_loader_state *position = NULL;
    snprintf(words, sizeof words, "run_name=%s steps=100 learning_rate=1e-2", name);
    ts_config *c = configure(s, words);
    ts_train_hooks_default(&hooks);
    hooks.step = on_step;
    hooks.context = &first;
    ts_run r = {.config = c, .hooks = &hooks, .saved_step = -1, .evaluated = -1};
    if (ts__run_prepare(&r, &err) != TS_OK) fail_msg("%s", err.msg);
    assert_int_equal(ts_loader_state_new(ts_prefetch_loader(r.ahead), &position, &err), TS_OK);
    assert_int_equal(ts__run_restore_newest(&r, &err), TS_NOT_FOUND);
    err = (ts_error){0};
    steps(&r, AHEAD);
    if (ts__run_save(&r, &err) != TS_OK) fail_msg("%s", err.msg);
    ts_prefetch_get_state(r.ahead, position);
    steps(&r, AHEAD);
    for (int round = 0; round < 2; round++) {
        hooks.context = &again;
        again = (losses){0};
        if (ts__run_restore_newest(&r, &err) != TS_OK) fail_msg("%s", err.msg);
        assert_true(r.step == AHEAD && r.dispatched == AHEAD && r.saved_step == AHEAD);
        if (ts_prefetch_set_state(r.ahead, position, &err) != TS_OK) fail_msg("%s", err.msg);
        steps(&r, AHEAD);
        for (int i = 0; i < AHEAD; i++)
            if (memcmp(&first.loss[i], &again.loss[i], sizeof(double)) != 0 ||
                memcmp(&first.norm[i], &again.norm[i], sizeof(double)) != 0)
                fail_msg("%s: step %d has loss %a, it had %a before it went back", name, AHEAD + i,
                         again.loss[i], first.loss[i]);
    }
    assert_true(first.loss[0] != first.loss[1]);
    if (ts_state_check_replicas(r.state, &err) != TS_OK) fail_msg("%s", err.msg);
    ts_loader_state_free(position);
    ts__run_release(&r);
    ts_config_free(c);
}

static void a_run_goes_back_to_its_own_checkpoint(void **state)
{
    (void)state;
    back_and_forth(&stations[2], "back-one");
    back_and_forth(&stations[1], "back-mesh");
    if (has_plugin()) back_and_forth(&stations[3], "back-xla");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_state_is_the_same_everywhere),
        cmocka_unit_test(frozen_and_tied_tensors_too),
        cmocka_unit_test(a_run_goes_back_to_its_own_checkpoint),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
