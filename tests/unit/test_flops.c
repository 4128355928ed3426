/* test_flops.c – the FLOP formula against the figures of a published run: llama3-8b, one row of 4,096
 * tokens: 184.434 + 13.194 = 197.629 TFLOP a step; its log says 179.739 TFLOP/s at 3725.218 tokens/s. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "train/config.h"
#include "train/flops.h"

static ts_config *load(const char *model)
{
    ts_config *c = NULL;
    ts_error err = {0};
    const char *words[] = {model, "run_name=flops"};
    if (ts_config_load("base.yml", words, 2, &c, &err) != TS_OK) fail_msg("%s", err.msg);
    return c;
}

static void llama3_8b(void **state)
{
    (void)state;
    ts_config *c = load("model_name=llama3-8b");
    ts_step_flops f = ts_step_flops_of(&c->model, 1, 4096);
    assert_true(fabs(f.weights / 1e12 - 184.434) < 0.0005);
    assert_true(fabs(f.attention / 1e12 - 13.194) < 0.0005);
    assert_true(fabs((f.weights + f.attention) / 1e12 - 197.629) < 0.0005);
    double seconds = 4096 / 3725.218;
    assert_true(fabs((f.weights + f.attention) / 1e12 / seconds - 179.739) < 0.0005);
    /* Every product spelled out: 6 · tokens · matrix elements, and 6 · S² · heads · head_dim a layer. */
    double matrices = 32.0 * (4096.0 * 6144 + 4096.0 * 4096 + 3 * 4096.0 * 14336) + 4096.0 * 128256;
    assert_true(f.weights == 6 * 4096.0 * matrices);
    assert_true(f.attention == 6 * 4096.0 * 4096 * 4096 * 32);
    ts_config_free(c);
}

static void rows_count_in_full(void **state)
{
    (void)state;
    ts_config *c = load("model_name=tessera-byte");
    ts_step_flops one = ts_step_flops_of(&c->model, 1, 256),
                  many = ts_step_flops_of(&c->model, 16, 256);
    assert_true(many.weights == 16 * one.weights && many.attention == 16 * one.attention);
    ts_step_flops longer = ts_step_flops_of(&c->model, 1, 512);
    assert_true(longer.weights == 2 * one.weights && longer.attention == 4 * one.attention);
    ts_config_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(llama3_8b),
                                       cmocka_unit_test(rows_count_in_full)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
