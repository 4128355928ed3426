/* test_train_alloc.c – a whole training step, batch and metrics included, allocates nothing through our seam and
 * nothing of 4 KiB or more in the process, and resident memory is flat over 1,000 of them; on four virtual devices too.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/base.h"
#include "base/file.h"
#include "malloc_count.h"
#include "tessera.h"

enum { WARM = 20, STEPS = WARM + 1000 };

static char root[64];

typedef struct seen {
    int64_t steps;
    uint64_t ours, ours_after;
    size_t resident, resident_after;
} seen;

static void on_step(void *context, const ts_step_info *i)
{
    seen *s = context;
    s->steps++;
    if (i->step == WARM) {
        s->ours = ts_alloc_count();
        s->resident = resident_bytes();
        atomic_store(&counting, 1);
    } else if (i->step == STEPS - 1) {
        atomic_store(&counting, 0);
        s->ours_after = ts_alloc_count();
        s->resident_after = resident_bytes();
    }
}

static void write_text(const char *path)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    for (int i = 0; i < 4000; i++) fprintf(f, "line %d of a text that is long enough\n", i);
    fclose(f);
}

static void steps_allocate_nothing(const char *name, const char *threads, const char *devices,
                                   const char *fsdp, const char *tensor)
{
    char data[100], path[120], output[120];
    seen s = {0};
    ts_error err = {0};
    ts_config *c = NULL;
    ts_train_hooks hooks;
    ts_train_result result;
    if (!malloc_is_counted()) {
        print_message("SKIP: malloc is replaced by a checker and cannot be counted\n");
        skip();
    }
    snprintf(data, sizeof data, "%s/text.txt", root);
    write_text(data);
    snprintf(path, sizeof path, "dataset_path=%s", data);
    snprintf(output, sizeof output, "base_output_directory=%s", root);
    const char *words[] = {"base.yml",
                           "base_emb_dim=32",
                           "base_num_query_heads=4",
                           "base_num_kv_heads=2",
                           "head_dim=8",
                           "base_mlp_dim=48",
                           "base_num_decoder_layers=2",
                           "vocab_size=260",
                           "max_target_length=32",
                           "dtype=float32",
                           "steps=1020",
                           "per_device_batch_size=2",
                           devices,
                           fsdp,
                           tensor,
                           threads,
                           "gradient_accumulation_steps=2",
                           "dataset_type=text",
                           "num_epoch=1000",
                           "enable_checkpointing=false",
                           name,
                           path,
                           output};
    if (ts_config_load_words(words, sizeof words / sizeof *words, &c, &err) != TS_OK)
        fail_msg("%s", err.msg);
    ts_train_hooks_default(&hooks);
    hooks.context = &s;
    hooks.step = on_step;
    ts_status status = ts_train(c, &hooks, &result, &err);
    ts_config_free(c);
    if (status != TS_OK) fail_msg("%s", err.msg);
    assert_int_equal(s.steps, STEPS);
    assert_int_equal(s.ours_after, s.ours);
    assert_int_equal(atomic_load(&large), 0);
    print_message("%s, %d steps: 0 large allocations, resident %zu → %zu KiB\n", devices,
                  STEPS - WARM, s.resident >> 10, s.resident_after >> 10);
#ifndef TEST_ASAN /* its quarantine grows by small ones */
    assert_true(s.resident_after <= s.resident + (128 << 10));
#endif
}

static void on_one_device(void **state)
{
    (void)state;
    steps_allocate_nothing("run_name=still", "threads=2", "cpu_devices=1",
                           "ici_fsdp_parallelism=1", "ici_tensor_parallelism=1");
}

static void on_four_devices(void **state)
{
    (void)state;
    steps_allocate_nothing("run_name=four", "threads=1", "cpu_devices=4",
                           "ici_fsdp_parallelism=2", "ici_tensor_parallelism=2");
}

int main(void)
{
    install();
    strcpy(root, "/tmp/tessera-alloc-XXXXXX");
    if (!mkdtemp(root)) return 1;
    const struct CMUnitTest tests[] = {cmocka_unit_test(on_one_device),
                                       cmocka_unit_test(on_four_devices)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ts_remove_tree(root, NULL);
    return failed;
}
