/* test_mesh_train.c – one run, any number of devices, the same losses: training, evaluation, samples, checkpoints.
 *
 * A small model on packed rows, two micro-batches a step, on one device and on meshes of 2 to 16 virtual devices of the
 * cpu engine; XLA's CPU plugin on two of them, where it is installed. Every mesh has the same rows in a step, so losses
 * differ by the order of sums alone. Files know no mesh: the first checkpoints are the same bytes, and a run saved on
 * sixteen devices goes on on one and on four.
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

/* Its compiler takes most of the time; the programs are the same without its optimizations. */
#define XLA "engine=xla plugin=cpu compile_xla_flags=" TEST_QUICK_XLA

enum { STEPS = 20, HALF = 10, ROWS = 16, MAX_WORDS = 64 };

static char root[64], rows[128];

static int set_up(void **state)
{
    (void)state;
    strcpy(root, "/tmp/tessera-mesh-XXXXXX");
    if (!mkdtemp(root)) return -1;
    snprintf(rows, sizeof rows, "%s/rows.jsonl", root);
    FILE *json = fopen(rows, "w");
    if (!json) return -1;
    for (int i = 0; i < 900; i++)
        fprintf(json, "{\"text\": \"row %d has %d words, %.*s\"}\n", i, i * 37 % 101, 2 + i * 7 % 19,
                &"abcdefghijklmnopqrstuvwxyz"[i % 7]);
    return fclose(json);
}

static int tear_down(void **state)
{
    (void)state;
    return ts_remove_tree(root, NULL) == TS_OK ? 0 : -1;
}

/* ---- runs ------------------------------------------------------------------------------------ */

typedef struct mesh {
    const char *name;
    int data, fsdp, tensor;
} mesh;

static const mesh one = {"one", 1, 1, 1};
static const mesh meshes[] = {{"fsdp2", 1, 2, 1},   {"tensor2", 1, 1, 2},
                              {"data2", 2, 1, 1},   {"fsdp2-tensor2", 1, 2, 2},
                              {"cube", 2, 2, 2},    {"data4-tensor2", 4, 1, 2},
                              {"fsdp4-tensor4", 1, 4, 4}};

typedef struct losses {
    double loss[STEPS], norm[STEPS], eval;
    int64_t first, weights[STEPS];
    int n;
    char sample[400];
} losses;

static void on_step(void *context, const ts_step_info *i)
{
    losses *l = context;
    assert_true(l->n < STEPS && !i->skipped);
    if (l->n == 0) l->first = i->step;
    l->loss[l->n] = i->loss;
    l->norm[l->n] = i->grad_norm;
    l->weights[l->n++] = i->trained_tokens;
}

static void on_sample(void *context, int64_t step, const char *text)
{
    losses *l = context;
    (void)step;
    snprintf(l->sample, sizeof l->sample, "%s", text);
}

/* The words of a run split at blanks; text of 3000 bytes holds them. */
static ts_config *configure(const char *name, const mesh *m, const char *more, char *text)
{
    static const char small[] =
        "base.yml base_emb_dim=32 base_num_query_heads=4 base_num_kv_heads=2 head_dim=8 "
        "base_mlp_dim=64 base_num_decoder_layers=3 vocab_size=260 max_target_length=32 dtype=float32 "
        "dataset_type=jsonl packing=true gradient_accumulation_steps=2 steps=20 learning_rate=3e-3 "
        "threads=1 engine=cpu";
    const int devices = m->data * m->fsdp * m->tensor;
    const char *word[MAX_WORDS];
    char *at = NULL;
    int n = 0;
    snprintf(text, 3000,
             "%s run_name=%s base_output_directory=%s dataset_path=%s per_device_batch_size=%d "
             "cpu_devices=%d ici_data_parallelism=%d ici_fsdp_parallelism=%d "
             "ici_tensor_parallelism=%d %s",
             small, name, root, rows, ROWS / devices, devices, m->data, m->fsdp, m->tensor, more);
    for (char *w = strtok_r(text, " ", &at); w; w = strtok_r(NULL, " ", &at)) {
        assert_true(n < MAX_WORDS);
        word[n++] = w;
    }
    ts_config *c = NULL;
    ts_error err = {0};
    if (ts_config_load_words(word, n, &c, &err) != TS_OK) fail_msg("%s: %s", name, err.msg);
    return c;
}

static losses run(const char *name, const mesh *m, const char *more)
{
    char text[3000];
    ts_config *c = configure(name, m, more, text);
    losses l = {0};
    ts_error err = {0};
    ts_train_result result;
    ts_train_hooks hooks;
    ts_train_hooks_default(&hooks);
    hooks.context = &l;
    hooks.step = on_step;
    hooks.sample = on_sample;
    if (ts_train(c, &hooks, &result, &err) != TS_OK) fail_msg("%s: %s", name, err.msg);
    l.eval = result.eval_loss;
    ts_config_free(c);
    return l;
}

/* The steps that both have, from where b begins. */
static double apart(const losses *a, const losses *b)
{
    double worst = 0;
    for (int i = 0; i < b->n; i++) {
        const int k = i + (int)(b->first - a->first);
        double gap = fabs(a->loss[k] - b->loss[i]) / a->loss[k];
        double norm = fabs(a->norm[k] - b->norm[i]) / a->norm[k] / 10;
        assert_int_equal(a->weights[k], b->weights[i]);
        gap = norm > gap ? norm : gap;
        worst = gap <= worst ? worst : isnan(gap) ? INFINITY : gap;
    }
    return worst;
}

static bool has_plugin(void)
{
    char path[4096];
    ts_error err = {0};
    if (ts__plugin_find("cpu", path, sizeof path, &err) == TS_OK) return true;
    printf("%s\n", err.msg);
    return false;
}

/* Not a second time, where XLA's compiler is most of the time. */
static bool in_full(void)
{
    return has_plugin() && !test_is_slow();
}

/* ---- files ----------------------------------------------------------------------------------- */

static ts_checkpoint *start_of(const char *run)
{
    char path[300];
    ts_checkpoint *c;
    ts_error err = {0};
    snprintf(path, sizeof path, "%s/%s/checkpoints/0", root, run);
    if (ts_checkpoint_open(path, &c, &err) != TS_OK) fail_msg("%s", err.msg);
    return c;
}

/* Tensor by tensor: shards are of the mesh. */
static void expect_same_start(const char *a, const char *b)
{
    ts_checkpoint *x = start_of(a), *y = start_of(b);
    ts_tensors *t = ts_checkpoint_tensors(x), *u = ts_checkpoint_tensors(y);
    assert_int_equal(ts_tensors_count(t), ts_tensors_count(u));
    for (size_t i = 0; i < ts_tensors_count(t); i++) {
        const ts_tensor *p = ts_tensors_at(t, i), *q = ts_tensors_find(u, p->name);
        ts_error err = {0};
        assert_true(q && p->bytes == q->bytes);
        char *v = malloc(p->bytes), *w = malloc(p->bytes);
        assert_int_equal(ts_tensors_read(t, p, 0, v, p->bytes, &err), TS_OK);
        assert_int_equal(ts_tensors_read(u, q, 0, w, p->bytes, &err), TS_OK);
        if (memcmp(v, w, p->bytes) != 0) fail_msg("%s and %s begin with another %s", a, b, p->name);
        free(v);
        free(w);
    }
    ts_checkpoint_close(x);
    ts_checkpoint_close(y);
}

/* ---- the tests ------------------------------------------------------------------------------- */

static const char everything[] = "save_checkpoint_on_start=true checkpoint_period=10 eval_interval=10 "
                                 "eval_steps=3 sample_interval=20 sample_tokens=16";

static losses reference;

static void every_mesh_has_the_losses_of_one_device(void **state)
{
    (void)state;
    char words[600];
    snprintf(words, sizeof words, "%s eval_dataset_path=%s", everything, rows);
    reference = run("one", &one, words);
    assert_int_equal(reference.n, STEPS);
    assert_true(reference.loss[STEPS - 1] < reference.loss[0] - 0.5);
    for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++) {
        const losses l = run(meshes[i].name, &meshes[i], words);
        const double gap = apart(&reference, &l);
        printf("%-16s loss %.7f → %.7f, at most %.1e from one device, evaluation %.7f\n",
               meshes[i].name, l.loss[0], l.loss[STEPS - 1], gap, l.eval);
        assert_int_equal(l.n, STEPS);
        assert_true(gap <= 1e-5);
        assert_true(fabs(l.eval - reference.eval) <= 1e-5 * reference.eval);
        assert_string_equal(l.sample, reference.sample);
        expect_same_start("one", meshes[i].name);
    }
    assert_true(strlen(reference.sample) > 8);
}

/* Layers one by one, remat off, frozen and tied parameters. */
static void other_programs_too(void **state)
{
    static const char *const ways[] = {
        "scan_layers=false remat_policy=none", "logits_via_embedding=true remat_policy=minimal",
        "frozen_parameters=[model.embed_tokens.*,*.up_proj.weight,*norm.weight]"};
    (void)state;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        char words[300], name[32];
        snprintf(words, sizeof words, "steps=6 enable_checkpointing=false %s", ways[i]);
        snprintf(name, sizeof name, "way-%zu", i);
        const losses a = run(name, &one, words), b = run(name, &meshes[4], words);
        assert_int_equal(b.n, 6);
        if (!(apart(&a, &b) <= 1e-5)) fail_msg("%s: %g apart", ways[i], apart(&a, &b));
    }
}

/* Saved on sixteen devices after ten steps, gone on with elsewhere; and back. */
static void a_checkpoint_knows_no_mesh(void **state)
{
    static const struct {
        const char *name, *from;
        mesh on;
    } cases[] = {{"16-to-1", "fsdp4-tensor4", {"", 1, 1, 1}},
                 {"16-to-4", "fsdp4-tensor4", {"", 4, 1, 1}},
                 {"1-to-16", "one", {"", 2, 2, 4}}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char words[400];
        snprintf(words, sizeof words, "load_full_state_path=%s/%s/checkpoints/%d", root,
                 cases[i].from, HALF);
        const losses l = run(cases[i].name, &cases[i].on, words);
        assert_int_equal(l.n, STEPS - HALF);
        assert_int_equal(l.first, HALF);
        printf("%-16s at most %.1e from the unbroken run on one device\n", cases[i].name,
               apart(&reference, &l));
        assert_true(apart(&reference, &l) <= 1e-4);
    }
}

static void replicas_stay_equal(void **state)
{
    char words[] = "enable_checkpointing=false";
    (void)state;
    for (int xla = 0; xla < (in_full() ? 2 : 1); xla++) {
        char text[3000];
        ts_error err = {0};
        ts_train_hooks hooks;
        ts_config *c =
            configure("replicas", &meshes[4], xla ? "steps=5 " XLA : words, text);
        ts_train_hooks_default(&hooks);
        ts_run r = {.config = c, .hooks = &hooks, .saved_step = -1, .evaluated = -1};
        if (ts__run_prepare(&r, &err) != TS_OK) fail_msg("%s", err.msg);
        for (int i = 0; i < 5; i++) {
            assert_int_equal(ts__run_dispatch(&r, &err), TS_OK);
            assert_int_equal(ts__run_finish(&r, &err), TS_OK);
            if (ts_state_check_replicas(r.state, &err) != TS_OK) fail_msg("%s", err.msg);
        }
        ts__run_release(&r);
        ts_config_free(c);
    }
}

static void xla_on_meshes_too(void **state)
{
    static const int which[] = {3, 4};
    (void)state;
    if (!has_plugin()) skip();
    for (int i = 0; i < (in_full() ? 2 : 1); i++) {
        const mesh *m = &meshes[which[i]];
        char words[700], name[64];
        snprintf(name, sizeof name, "xla-%s", m->name);
        snprintf(words, sizeof words, "%s eval_dataset_path=%s " XLA, everything, rows);
        const losses l = run(name, m, words);
        const double gap = apart(&reference, &l);
        printf("%-16s at most %.1e from one device of the cpu engine\n", name, gap);
        assert_int_equal(l.n, STEPS);
        assert_true(gap <= 1e-5);
        assert_true(fabs(l.eval - reference.eval) <= 1e-5 * reference.eval);
        assert_true(l.sample[0]);
        expect_same_start("one", name);
    }
}

/* Rings instead of gathers, and XLA's partitioner instead of ours, are the same run. */
static void other_ways_to_partition(void **state)
{
    static const struct {
        const char *name, *words;
        bool xla;
    } ways[] = {{"ring", "collective_matmul=ring", false},
                {"xla-ring", XLA " collective_matmul=ring", true},
                {"auto", XLA " shard_mode=auto", true}};
    (void)state;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        char words[300];
        if (ways[i].xla && !in_full()) continue;
        snprintf(words, sizeof words, "enable_checkpointing=false %s", ways[i].words);
        const losses l = run(ways[i].name, &meshes[3], words);
        printf("%-16s at most %.1e from one device of the cpu engine\n", ways[i].name,
               apart(&reference, &l));
        assert_int_equal(l.n, STEPS);
        assert_true(apart(&reference, &l) <= 1e-5);
    }
}

/* ---- reference outputs on a mesh --------------------------------------------------------------- */

static ts_status parity(const char *model, const char *words, ts_parity_report *report,
                        ts_error *err)
{
    const char *shared = getenv("TESSERA_SHARED");
    const char *word[MAX_WORDS] = {"base.yml", "dtype=float32", "threads=1"};
    char path[3000], golden[3100], text[400], *at = NULL;
    int n = 3;
    snprintf(path, sizeof path, "%s/golden/%s", shared && *shared ? shared : "../shared", model);
    snprintf(golden, sizeof golden, "%s/golden.safetensors", path);
    if (ts_path_kind_of(golden) != TS_PATH_FILE) {
        printf("%s is missing\n", golden);
        skip();
    }
    snprintf(text, sizeof text, "%s", words);
    for (char *w = strtok_r(text, " ", &at); w; w = strtok_r(NULL, " ", &at)) word[n++] = w;
    ts_config *c = NULL;
    ts_status status = ts_config_load_words(word, n, &c, err);
    if (status == TS_OK) status = ts_parity(c, path, golden, report, err);
    ts_config_free(c);
    return status;
}

static void golden_outputs_on_four_devices(void **state)
{
    static const char *const models[] = {"tiny-llama3", "tiny-llama31"};
    static const char *const engines[] = {"engine=cpu", XLA};
    (void)state;
    for (int e = 0; e < (in_full() ? 2 : 1); e++)
        for (int i = 0; i < 2; i++) {
            char words[300];
            ts_parity_report r = {0};
            ts_error err = {0};
            snprintf(words, sizeof words,
                     "%s cpu_devices=4 ici_fsdp_parallelism=2 ici_tensor_parallelism=2",
                     engines[e]);
            if (parity(models[i], words, &r, &err) != TS_OK)
                fail_msg("%s: %s", models[i], err.msg);
            for (size_t k = 0; k < r.n; k++)
                if (!r.row[k].ok)
                    fail_msg("%s, %s: %s is %g off, at most %g", models[i], engines[e],
                             r.row[k].name, r.row[k].max_abs, r.row[k].bound);
            assert_true(r.ok && r.n > 40);
            ts_parity_report_free(&r);
        }
}

static void a_batch_that_does_not_divide_is_told(void **state)
{
    ts_parity_report r = {0};
    ts_error err = {0};
    (void)state;
    assert_int_equal(parity("tiny-llama3", "cpu_devices=32 ici_fsdp_parallelism=32 engine=cpu", &r,
                            &err),
                     TS_INVALID_ARGUMENT);
    assert_non_null(strstr(err.msg, "ici_fsdp_parallelism=32 does not divide"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_mesh_has_the_losses_of_one_device),
        cmocka_unit_test(other_programs_too),
        cmocka_unit_test(a_checkpoint_knows_no_mesh),
        cmocka_unit_test(replicas_stay_equal),
        cmocka_unit_test(xla_on_meshes_too),
        cmocka_unit_test(other_ways_to_partition),
        cmocka_unit_test(golden_outputs_on_four_devices),
        cmocka_unit_test(a_batch_that_does_not_divide_is_told),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
