/* test_plan_memory.c – `tessera plan` against the memory that the cpu engine really takes.
 *
 * A child process trains a step. Its peak (VmHWM) when the engine is open, before anything of the
 * run is made, is taken from its peak at the end; that must be within a tenth of what was planned:
 * three models on three meshes. The kernel's figures, not the program's own, so nothing that is
 * forgotten in the plan can be forgotten here too.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "slow.h"
#include "tessera.h"

enum { MAX_WORDS = 40 };
static char folder[64];

/* KiB of a line of /proc/self/status. */
static long status_kib(const char *key)
{
    char line[200];
    long kib = -1;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, key, strlen(key)) == 0) kib = strtol(line + strlen(key), NULL, 10);
    if (f) fclose(f);
    return kib;
}

typedef struct peaks {
    long before, after; /* KiB */
    char problem[300];
} peaks;

static void first_line(void *context, const char *text)
{
    peaks *p = context;
    if (!p->before && strncmp(text, "engine ", 7) == 0) p->before = status_kib("VmHWM:");
}

static void train(const char **words, int n, peaks *p)
{
    ts_config *c;
    ts_error err = {0};
    ts_train_hooks hooks;
    ts_train_result result;
    ts_train_hooks_default(&hooks);
    hooks.context = p;
    hooks.line = first_line;
    ts_status status = ts_config_load_words(words, n, &c, &err);
    if (status == TS_OK) status = ts_train(c, &hooks, &result, &err);
    p->after = status_kib("VmHWM:");
    if (status != TS_OK) snprintf(p->problem, sizeof p->problem, "%.290s", err.msg);
}

static peaks measure(const char **words, int n)
{
    peaks p = {0};
    int ends[2], code;
    assert_int_equal(pipe(ends), 0);
    fflush(stdout);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        train(words, n, &p);
        _exit(write(ends[1], &p, sizeof p) == (ssize_t)sizeof p ? 0 : 1);
    }
    close(ends[1]);
    assert_int_equal(read(ends[0], &p, sizeof p), (ssize_t)sizeof p);
    close(ends[0]);
    assert_int_equal(waitpid(child, &code, 0), child);
    if (*p.problem) fail_msg("%s", p.problem);
    return p;
}

static int split(char *text, const char **words)
{
    int n = 0;
    for (char *w = strtok_r(text, " ", &text); w; w = strtok_r(NULL, " ", &text)) words[n++] = w;
    return n;
}

static void check(const char *model, const char *mesh)
{
    char text[1200];
    const char *words[MAX_WORDS];
    static ts_plan_report plan;
    ts_error err = {0};
    snprintf(
        text, sizeof text,
        "base.yml engine=cpu run_name=plan base_output_directory=%s enable_checkpointing=false log_config=false "
        "dataset_type=synthetic steps=1 learning_rate=1e-3 threads=2 %s %s",
        folder, model, mesh);
    int n = split(text, words);
    if (ts_plan(words, n, NULL, &plan, &err) != TS_OK) fail_msg("%s: %s", mesh, err.msg);
    peaks p = measure(words, n);
    double measured = (double)(p.after - p.before) * 1024, planned = (double)plan.process;
    printf("  %-70.70s measured %7.1f MiB, planned %7.1f MiB, %+5.1f %%\n", mesh,
           measured / (1 << 20), planned / (1 << 20), 100 * (planned / measured - 1));
    if (planned < 0.9 * measured || planned > 1.1 * measured)
        fail_msg("%s %s: planned %.0f bytes, measured %.0f: %+.1f %%", model, mesh, planned,
                 measured, 100 * (planned / measured - 1));
}

static void on_meshes(const char *model)
{
    printf("%s\n", model);
    check(model, "cpu_devices=1 per_device_batch_size=4");
    check(model, "cpu_devices=4 per_device_batch_size=1 ici_tensor_parallelism=2");
    check(model,
          "cpu_devices=8 per_device_batch_size=1 ici_data_parallelism=2 ici_tensor_parallelism=2");
}

/* Large buffers are planned in whole huge pages, as a kernel gives them unless it was told not to. */
static bool no_huge_pages(void)
{
    char line[100] = "";
    FILE *f = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "r");
    bool never = !f || !fgets(line, sizeof line, f) || strstr(line, "[never]");
    if (f) fclose(f);
    return never;
}

static void skip_where_memory_is_watched(void)
{
    if (no_huge_pages()) {
        printf("SKIP  this kernel gives no transparent huge pages\n");
        skip();
    }
    if (!test_is_slow()) return;
    printf("SKIP  a sanitizer or valgrind has memory of its own\n");
    skip();
}

static void test_parameters(void **state)
{
    (void)state;
    skip_where_memory_is_watched();
    on_meshes(
        "base_emb_dim=256 base_num_query_heads=4 base_num_kv_heads=2 head_dim=64 base_mlp_dim=1024 "
        "base_num_decoder_layers=4 vocab_size=8192 max_target_length=32 dtype=float32 remat_policy=full");
}

static void test_activations(void **state)
{
    (void)state;
    skip_where_memory_is_watched();
    on_meshes(
        "base_emb_dim=128 base_num_query_heads=4 base_num_kv_heads=4 head_dim=32 base_mlp_dim=512 "
        "base_num_decoder_layers=8 vocab_size=1024 max_target_length=256 dtype=bfloat16 remat_policy=none");
}

static void test_frozen(void **state)
{
    (void)state;
    skip_where_memory_is_watched();
    on_meshes(
        "base_emb_dim=256 base_num_query_heads=4 base_num_kv_heads=2 head_dim=64 base_mlp_dim=768 "
        "base_num_decoder_layers=3 vocab_size=16384 max_target_length=32 dtype=bfloat16 remat_policy=minimal "
        "gradient_accumulation_steps=2 frozen_parameters=[*embed_tokens*]");
}

int main(void)
{
    snprintf(folder, sizeof folder, "/tmp/tessera-plan.XXXXXX");
    if (!mkdtemp(folder)) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parameters),
        cmocka_unit_test(test_activations),
        cmocka_unit_test(test_frozen),
    };
    int bad = cmocka_run_group_tests_name("plan_memory", tests, NULL, NULL);
    char command[100];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command) || bad;
}
