/* test_isa.c – the choice of an instruction set: by argument, by TESSERA_ISA, or detected; what is
 * refused and what the message lists; oneDNN capped with it. oneDNN takes a cap once a process, so
 * each choice is made in a child. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <oneapi/dnnl/dnnl.h>

#include "cpu/kernel.h"

/* In the child: 0 when choose gives what is expected. want < 0: refused. */
static int choose_in_child(const char *argument, const char *variable, int want, bool capped)
{
    ts_isa isa = TS_ISAS;
    ts_error err = {0};
    if (variable)
        setenv("TESSERA_ISA", variable, 1);
    else
        unsetenv("TESSERA_ISA");
    ts_status status = ts_isa_choose(argument, &isa, &err);
    if (want < 0) {
        bool lists = strstr(err.msg, "ref") && strstr(err.msg, argument ? argument : variable);
        return status == TS_INVALID_ARGUMENT && lists ? 0 : 1;
    }
    if (status != TS_OK || (int)isa != want) return 2;
    if (capped && want == TS_ISA_AVX2 && dnnl_get_effective_cpu_isa() != dnnl_cpu_isa_avx2)
        return 3;
    if (capped && want == TS_ISA_AVX512 && dnnl_get_effective_cpu_isa() != dnnl_cpu_isa_avx512_core)
        return 4;
    if (capped && want == TS_ISA_AVX512_BF16 &&
        dnnl_get_effective_cpu_isa() != dnnl_cpu_isa_avx512_core_bf16)
        return 5;
    return 0;
}

static void expect(const char *argument, const char *variable, int want, bool capped)
{
    int status = 0;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) _exit(choose_in_child(argument, variable, want, capped));
    assert_int_equal(waitpid(child, &status, 0), child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        fail_msg("isa=%s TESSERA_ISA=%s: child's status %d", argument ? argument : "-",
                 variable ? variable : "-", status);
}

static void choices(void **unused)
{
    (void)unused;
    ts_isa best = ts_isa_detect();
    print_message("this machine has %s\n", ts_isa_name(best));
    expect(NULL, NULL, (int)best, false);
    expect(NULL, "", (int)best, false);
    for (int k = 0; k < TS_ISAS; k++) {
        const char *name = ts_isa_name((ts_isa)k);
        int want = k <= (int)best ? k : -1;
        expect(name, NULL, want, true);
        expect(NULL, name, want, true);
        expect(name, "ref", want, true); /* the argument counts */
    }
    expect("AVX2", NULL, -1, false);
    expect("sse", NULL, -1, false);
    expect(NULL, "avx", -1, false);
}

/* What the compiler's own detection says must agree. */
static void detection_agrees(void **unused)
{
    (void)unused;
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    ts_isa isa = ts_isa_detect();
    assert_int_equal(isa >= TS_ISA_AVX2, avx2);
    assert_int_equal(isa >= TS_ISA_AVX512, avx512);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(choices),
                                       cmocka_unit_test(detection_agrees)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
