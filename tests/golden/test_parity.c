/* tests/golden/test_parity.c – two small Llamas against the reference outputs in ../shared/golden:
 * hidden states, logits, loss, every gradient, the losses of three AdamW steps.
 *
 * oneDNN takes its instruction set once a process, so every ISA of this machine is a run of this
 * program in a process of its own (`test_parity child ENGINE MODEL`), and so is the xla engine with
 * the CPU plugin: f32 with layers rolled and unrolled, remat none and full, and bf16 within its own
 * bounds. A model with one weight moved must fail. The bounds of the report are checked here against
 * the numbers that were promised, so that none is widened, for one engine as for the other.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "ckpt/safetensors.h"
#include "cpu/kernel.h"
#include "slow.h"
#include "xla/plugin.h"

static const char *const models[] = {"tiny-llama3", "tiny-llama31"};
enum { MODELS = sizeof models / sizeof *models };

static char golden[3000];

static const char *in_golden(const char *model, const char *name)
{
    static char path[4][4000];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof path[turn], "%s/%s/%s", golden, model, name);
    return path[turn];
}

static bool find_golden(void)
{
    const char *shared = getenv("TESSERA_SHARED");
    snprintf(golden, sizeof golden, "%s/golden", shared && *shared ? shared : "../shared");
    return ts_path_kind_of(in_golden(models[0], "golden.safetensors")) == TS_PATH_FILE;
}

static void need_golden(void)
{
    if (find_golden()) return;
    printf("no reference outputs: %s is missing (TESSERA_SHARED names its parent)\n", golden);
    skip();
}

/* ---- one comparison, in the child ------------------------------------------------------------ */

/* What the report may allow for a tensor at most; the row tells the largest value by its errors. */
static double promised(const ts_parity_row *r)
{
    double largest = r->max_rel > 0 ? r->max_abs / r->max_rel : INFINITY;
    if (strcmp(r->name, "loss") == 0) return 2e-6;
    if (strcmp(r->name, "step_loss") == 0) return 1e-4;
    if (strncmp(r->name, "grad.", 5) == 0) return 2e-5 * largest;
    return 2e-5 * (largest > 1 ? largest : 1);
}

static int compare(const char *folder, const char *reference, bool exact, const char *const *words,
                   int n)
{
    ts_config *c = NULL;
    ts_error err = {0};
    ts_parity_report r = {0};
    int wrong = 0;
    size_t gated = 0;
    ts_status status = ts_config_load_words(words, n, &c, &err);
    if (status == TS_OK) status = ts_parity(c, folder, reference, &r, &err);
    ts_config_free(c);
    if (status != TS_OK) {
        printf("%s: %s\n", folder, err.msg);
        return 2;
    }
    for (size_t i = 0; i < r.n; i++) {
        const ts_parity_row *t = &r.row[i];
        gated += t->gated;
        if (!t->ok) printf("  %s: %.3g, bound %.3g\n", t->name, t->max_abs, t->bound);
        if (exact && !strcmp(t->name, "logits") && !(t->max_abs <= 2e-5)) {
            printf("  logits differ by %.3g\n",
                   t->max_abs); /* of these two models the plain number holds */
            wrong |= 1;
        }
        if (exact && t->gated && t->bound > promised(t) * 1.000001) {
            printf("  %s: the bound is %.3g, promised is %.3g\n", t->name, t->bound, promised(t));
            wrong = 2;
        }
    }
    if (gated < 25) {
        printf("  only %zu tensors were compared\n", gated);
        wrong = 2;
    }
    if (!r.ok) wrong |= 1;
    ts_parity_report_free(&r);
    return wrong;
}

/* All forms of one model on an engine ("engine=cpu": with the ISA of this process). 0: all within
 * bounds. */
static int all_forms(const char *engine, const char *model)
{
    static const char *const forms[][3] = {
        {"dtype=float32", "remat_policy=none", "scan_layers=true"},
        {"dtype=float32", "remat_policy=full", "scan_layers=true"},
        {"dtype=float32", "remat_policy=none", "scan_layers=false"},
        {"dtype=float32", "remat_policy=full", "scan_layers=false"},
        {"dtype=bfloat16", "remat_policy=none", "scan_layers=true"},
        {"dtype=bfloat16", "remat_policy=full", "scan_layers=false"},
    };
    int wrong = 0;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        const char *words[] = {"base.yml", forms[i][0],  forms[i][1],
                               forms[i][2], "threads=2", engine,
                               "plugin=cpu", "compile_xla_flags=" TEST_QUICK_XLA};
        int n = strcmp(engine, "engine=xla") != 0 ? 6 : test_is_slow() ? 8 : 7;
        int code =
            compare(in_golden(model, ""), in_golden(model, "golden.safetensors"), i < 4, words, n);
        if (code)
            printf("%s %s %s %s %s: code %d\n", model, engine, forms[i][0], forms[i][1], forms[i][2],
                   code);
        wrong |= code;
    }
    return wrong;
}

/* ---- processes ------------------------------------------------------------------------------- */

/* isa: NULL where the engine has none. */
static int run_child(const char *engine, const char *isa, const char *model)
{
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        if (isa) setenv("TESSERA_ISA", isa, 1);
        execl("/proc/self/exe", "test_parity", "child", engine, model, (char *)NULL);
        _exit(127);
    }
    int status = 0;
    assert_true(child > 0 && waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

static void one_isa(ts_isa isa)
{
    need_golden();
    if (isa > ts_isa_detect()) {
        printf("this CPU lacks %s\n", ts_isa_name(isa));
        skip();
    }
    for (int i = 0; i < MODELS; i++)
        if (run_child("engine=cpu", ts_isa_name(isa), models[i]) != 0)
            fail_msg("%s beyond its bounds with %s", models[i], ts_isa_name(isa));
}

static void test_ref(void **state)
{
    (void)state;
    one_isa(TS_ISA_REF);
}
static void test_avx2(void **state)
{
    (void)state;
    one_isa(TS_ISA_AVX2);
}
static void test_avx512(void **state)
{
    (void)state;
    one_isa(TS_ISA_AVX512);
}
static void test_avx512_bf16(void **state)
{
    (void)state;
    one_isa(TS_ISA_AVX512_BF16);
}

static void test_xla(void **state)
{
    char path[4096];
    ts_error err = {0};
    (void)state;
    need_golden();
    if (ts__plugin_find("cpu", path, sizeof path, &err) != TS_OK) {
        printf("%s\n", err.msg);
        skip();
    }
    for (int i = 0; i < MODELS; i++)
        if (run_child("engine=xla", NULL, models[i]) != 0)
            fail_msg("%s beyond its bounds on xla, plugin cpu", models[i]);
}

/* ---- a moved weight -------------------------------------------------------------------------- */

static void copy_file(const char *from, const char *to)
{
    char *data;
    size_t n;
    ts_writer *w;
    assert_int_equal(ts_file_read_all(from, 1 << 26, &data, &n, NULL), TS_OK);
    assert_int_equal(ts_writer_open(to, false, &w, NULL), TS_OK);
    assert_int_equal(ts_writer_write(w, data, n, NULL), TS_OK);
    assert_int_equal(ts_writer_close(w, false, NULL), TS_OK);
    ts_free(data);
}

/* Element 3 of a tensor grows by one in a hundred. */
static void move_weight(const char *weights, const char *name)
{
    ts_tensors *t;
    float value;
    assert_int_equal(ts_tensors_open(weights, &t, NULL), TS_OK);
    const ts_tensor *x = ts_tensors_find(t, name);
    assert_non_null(x);
    assert_int_equal(ts_tensors_read_f32(t, x, 3, 1, &value, NULL), TS_OK);
    uint64_t at = x->offset + 3 * sizeof(float);
    ts_tensors_close(t);
    value *= 1.01f;
    FILE *f = fopen(weights, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, (long)at, SEEK_SET), 0);
    assert_int_equal(fwrite(&value, sizeof value, 1, f), 1);
    assert_int_equal(fclose(f), 0);
}

static void test_moved_weight(void **state)
{
    static const char *const names[] = {
        "model.layers.0.input_layernorm.weight",
        "model.layers.1.self_attn.k_proj.weight",
        "model.layers.0.mlp.down_proj.weight",
        "model.norm.weight",
        "lm_head.weight",
    };
    char folder[] = "/tmp/tessera-parity-XXXXXX", weights[100], config[100];
    (void)state;
    need_golden();
    assert_non_null(mkdtemp(folder));
    snprintf(weights, sizeof weights, "%s/model.safetensors", folder);
    snprintf(config, sizeof config, "%s/config.json", folder);
    copy_file(in_golden(models[0], "config.json"), config);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *words[] = {"base.yml", "dtype=float32", "threads=2"};
        copy_file(in_golden(models[0], "model.safetensors"), weights);
        move_weight(weights, names[i]);
        int code = compare(folder, in_golden(models[0], "golden.safetensors"), true, words, 3);
        if (code != 1) fail_msg("%s was moved and parity gave code %d", names[i], code);
    }
    assert_int_equal(ts_remove_tree(folder, NULL), TS_OK);
}

/* ---- unusable references --------------------------------------------------------------------- */

static ts_status parity_status(const char *folder, const char *reference, ts_error *err)
{
    ts_config *c = NULL;
    ts_parity_report r;
    assert_int_equal(
        ts_config_load_words((const char *[]){"base.yml", "dtype=float32"}, 2, &c, NULL), TS_OK);
    ts_status status = ts_parity(c, folder, reference, &r, err);
    if (status == TS_OK) ts_parity_report_free(&r);
    ts_config_free(c);
    return status;
}

static void test_unusable(void **state)
{
    ts_error err = {0};
    (void)state;
    need_golden();
    /* A model's weights are no reference: the message names what is missing. */
    assert_int_equal(
        parity_status(in_golden(models[0], ""), in_golden(models[0], "model.safetensors"), &err),
        TS_DATA_LOSS);
    assert_non_null(strstr(err.msg, "input_ids"));
    err = (ts_error){0};
    assert_int_not_equal(
        parity_status(in_golden(models[0], ""), in_golden(models[0], "missing.safetensors"), &err),
        TS_OK);
    assert_non_null(strstr(err.msg, "missing.safetensors"));
    err = (ts_error){0};
    assert_int_not_equal(parity_status(in_golden("no-such-model", ""),
                                       in_golden(models[0], "golden.safetensors"), &err),
                         TS_OK);
    assert_non_null(strstr(err.msg, "no-such-model"));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ref),          cmocka_unit_test(test_avx2),
        cmocka_unit_test(test_avx512),       cmocka_unit_test(test_avx512_bf16),
        cmocka_unit_test(test_xla),          cmocka_unit_test(test_moved_weight),
        cmocka_unit_test(test_unusable),
    };
    if (argc == 4 && strcmp(argv[1], "child") == 0)
        return find_golden() ? all_forms(argv[2], argv[3]) : 3;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
