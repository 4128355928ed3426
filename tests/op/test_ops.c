/* tests/op/test_ops.c – the op table on every engine and instruction set this machine has.
 *
 * Which instructions oneDNN may use is fixed at its first call, so each set runs in a process of
 * its own: without arguments this program starts itself once for each row of `targets`, as
 * `test_ops ENGINE KIND`. The kind of xla is a plugin, which must have run every execute itself: its
 * count is compared. Its compiler takes minutes, so two processes take half of the lines each
 * (`test_ops ENGINE KIND PART PARTS`). TESSERA_CASE=word runs only the cases whose text contains it. Under sanitizers
 * (TESSERA_SLOW) xla runs every fourth line, because its compiler takes most of the time.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cpu/kernel.h"
#include "eval_f64.h"
#include "grad/grad_internal.h"
#include "harness.h"
#include "xla/plugin.h"

static const struct {
    const char *name, *engine, *kind;
} targets[] = {
    {"ref", "cpu", "ref"},
    {"avx2", "cpu", "avx2"},
    {"avx512", "cpu", "avx512"},
    {"avx512_bf16", "cpu", "avx512_bf16"},
    {"xla_cpu", "xla", "cpu"},
};

enum { MOST_PARTS = 2 };

/* ---- the table on one target ----------------------------------------------------------------- */

static ts_engine *engine;
static int part, parts = 1; /* this process takes lines part, part + parts, … */

static void every_case(void **state)
{
    const char *only = getenv("TESSERA_CASE");
    const bool few = getenv("TESSERA_SLOW") && strcmp(engine->vtable->name, "xla") == 0;
    int failures = 0, runs = 0;
    (void)state;
    for (int i = part; i < test_case_count; i += few ? 4 * parts : parts) {
        const test_case *c = &test_cases[i];
        if (only && !strstr(c->text, only)) continue;
        for (int t = 0; t < TS_DTYPES; t++) {
            if (!(test_case_dtypes(c) >> t & 1)) continue;
            failures += test_case_run(engine, c, (ts_dtype)t, false);
            runs++;
        }
    }
    printf("%d lines, %d runs, %d failures; %" PRIu64 " executes, %" PRIu64 " by the engine's count\n",
           test_case_count, runs, failures, test_executes, test_finished);
    assert_int_equal(failures, 0);
    assert_true(test_executes >= (uint64_t)runs);
    assert_int_equal(test_finished, test_executes);
}

/* The harness must see a wrong value, a wrong infinity, and a case whose expectation is not met. */
static void mistakes_are_seen(void **state)
{
    const ts_type f = {.dtype = TS_F32, .rank = 1, .dim = {{NULL, 4}}},
                  i = {.dtype = TS_I32, .rank = 1, .dim = {{NULL, 4}}};
    const double want[4] = {1, -2, INFINITY, NAN};
    double got[4] = {1, -2, INFINITY, NAN};
    int64_t at;
    (void)state;
    assert_true(test_error(&f, got, want, 1e-6, &at) == 0);
    got[1] = -2.0001;
    assert_true(fabs(test_error(&f, got, want, 1e-6, &at) - 5e-5) < 1e-7);
    assert_int_equal(at, 1);
    got[1] = -2;
    got[2] = 3e38;
    assert_true(isinf(test_error(&f, got, want, 1e-6, &at)));
    got[2] = INFINITY;
    got[3] = 0;
    assert_true(isinf(test_error(&f, got, want, 1e-6, &at)));
    const double ints[4] = {1, 2, 3, 4}, other[4] = {1, 2, 3, 5};
    assert_true(isinf(test_error(&i, other, ints, 1e-6, &at)));
    got[0] = NAN;
    assert_true(isinf(test_error(&f, got, want, 1e-6, &at)));
}

/* exp where tanh is expected: the whole path, engine included, must object, forward and gradient. */
static int build_planted(ts_builder *b, const test_case *c, ts_value **in, ts_value **out)
{
    static int calls;
    (void)c;
    out[0] = calls++ ? ts_mul(b, ts_exp(b, in[0]), ts_scalar(b, 1.001, TS_F32)) : ts_exp(b, in[0]);
    return 1;
}

static void a_planted_mistake_fails(void **state)
{
    const test_case c = {.text = "exp, planted to fail",
                         .op = TS_OP_exp,
                         IN(X(3, 5)),
                         .build = build_planted,
                         .fwd = 1e-5,
                         .grad = 1e-5};
    (void)state;
    test_quiet = true;
    const int failures = test_case_run(engine, &c, TS_F32, false);
    test_quiet = false;
    assert_true(failures >= 2);
}

static void threefry_is_the_published_one(void **state)
{
    static const struct { uint32_t key[2], counter[2], word[2]; } known[] = {
        {{0, 0}, {0, 0}, {0x6b200159, 0x99ba4efe}},
        {{0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}, {0x1cb996fc, 0xbb002be7}},
        {{0x13198a2e, 0x03707344}, {0x243f6a88, 0x85a308d3}, {0xc4923a9c, 0x483df7a0}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        uint32_t word[2];
        f64_threefry(known[i].key, known[i].counter, word);
        assert_int_equal(word[0], known[i].word[0]);
        assert_int_equal(word[1], known[i].word[1]);
    }
}

/* A dtype that an op does not claim is refused with a message, never run. */
static void unclaimed_dtypes_are_refused(void **state)
{
    int refused = 0;
    (void)state;
    for (int i = 0; i < test_case_count; i++) {
        const test_case *c = &test_cases[i];
        if (c->build || c->in[c->op == TS_OP_select].dtype != TEST_DTYPE) continue;
        for (int t = 0; t < TS_DTYPES; t++) {
            ts_error err = {0};
            if (ts_op_dtypes(c->op) >> t & 1) continue;
            ts_graph *g = test_graph(c, (ts_dtype)t, false, TS_REMAT_NONE, &err);
            assert_null(g);
            assert_int_equal(err.code, TS_INVALID_ARGUMENT);
            assert_non_null(strstr(err.msg, ts_op_infos[c->op].name));
            refused++;
        }
    }
    assert_true(refused > 100);
}

/* Over more devices than there are, a collective is refused when the program is compiled. */
static void collectives_need_their_devices(void **state)
{
    static const test_case many[] = {
        CASE(all_reduce, IN(X(4)), .attr.collective = {.axis = "fsdp", .n = 2})
        CASE(all_gather, IN(X(4)), .attr.collective = {.axis = "fsdp", .n = 2})
        CASE(reduce_scatter, IN(X(4)), .attr.collective = {.axis = "fsdp", .n = 2})
        CASE(collective_permute, IN(X(4)), .attr.collective = {.axis = "fsdp", .n = 2, .shift = 1})
    };
    (void)state;
    for (size_t i = 0; i < sizeof many / sizeof many[0]; i++) {
        ts_error err = {0};
        ts_executable *x = NULL;
        ts_graph *g = test_graph(&many[i], TS_F32, false, TS_REMAT_NONE, &err);
        assert_non_null(g);
        assert_int_equal(ts_compile(engine, g, &x, &err), TS_FAILED_PRECONDITION);
        assert_non_null(strstr(err.msg, "fsdp"));
        ts_graph_free(g);
    }
}

static int run_table(const char *name, const char *kind)
{
    ts_error err = {0};
    engine = test_engine(name, kind, &err);
    if (!engine) {
        printf("the engine does not open: %s\n", err.msg);
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mistakes_are_seen),
        cmocka_unit_test(a_planted_mistake_fails),
        cmocka_unit_test(unclaimed_dtypes_are_refused),
        cmocka_unit_test(collectives_need_their_devices),
        cmocka_unit_test(every_case),
    };
    const int failed = cmocka_run_group_tests_name(kind, tests, NULL, NULL);
    ts_engine_close(engine);
    return failed;
}

/* ---- what the table covers ------------------------------------------------------------------- */

/* The dtypes in which some line runs op, with a gradient if asked. */
static unsigned covered(ts_op op, bool gradient)
{
    unsigned all = 0;
    for (int i = 0; i < test_case_count; i++)
        if (test_cases[i].op == op && (!gradient || test_cases[i].grad > 0))
            all |= test_case_dtypes(&test_cases[i]);
    return all;
}

static void every_op_and_dtype_has_a_line(void **state)
{
    (void)state;
    for (int op = 0; op < TS_OPS; op++) {
        unsigned want = ts_op_dtypes((ts_op)op);
        if (op == TS_OP_repeat) want = 1u << TS_F32 | 1u << TS_BF16;
        const unsigned missing = want & ~covered((ts_op)op, false);
        if (missing) printf("%s: no line for dtypes %x\n", ts_op_infos[op].name, missing);
        assert_int_equal(missing, 0);
    }
}

/* Ops without a gradient, by name: one more or one fewer in the table of rules is noticed here. */
static const ts_op no_gradient[] = {
    TS_OP_constant,
    TS_OP_iota,
    TS_OP_axis_index,
    TS_OP_not,
    TS_OP_is_finite,
    TS_OP_and,
    TS_OP_or,
    TS_OP_xor,
    TS_OP_shift_left,
    TS_OP_shift_right,
    TS_OP_compare,
    TS_OP_argmax,
    TS_OP_all_reduce,
    TS_OP_all_gather,
    TS_OP_reduce_scatter,
    TS_OP_all_to_all,
    TS_OP_collective_permute,
    TS_OP_random_bits,
    TS_OP_rms_norm_grad,
    TS_OP_attention_grad,
    TS_OP_gated_grad,
    TS_OP_expert_rows,
    TS_OP_grouped_dot_grad,
    TS_OP_linear_xent_grad,
    TS_OP_xent_rows,
    TS_OP_adamw,
};

static void every_differentiable_op_has_a_gradient_line(void **state)
{
    const unsigned floats = 1u << TS_F32 | 1u << TS_BF16;
    (void)state;
    for (int op = 0; op < TS_OPS; op++) {
        bool listed = false;
        for (size_t i = 0; i < sizeof no_gradient / sizeof no_gradient[0]; i++)
            listed |= no_gradient[i] == (ts_op)op;
        if (listed != (ts__vjps[op] == NULL))
            printf("%s: is on one list of ops without a gradient only\n", ts_op_infos[op].name);
        assert_int_equal(listed, ts__vjps[op] == NULL);
        if (listed) continue;
        unsigned want = op == TS_OP_scatter_add ? 1u << TS_I32
                        : op == TS_OP_repeat    ? floats
                                                : ts_op_dtypes((ts_op)op) & floats;
        if (want & ~covered((ts_op)op, true))
            printf("%s: no gradient line\n", ts_op_infos[op].name);
        assert_int_equal(want & ~covered((ts_op)op, true), 0);
    }
}

/* ---- one process a target -------------------------------------------------------------------- */

/* Why this target cannot run here; NULL: it can. */
static const char *missing(size_t i)
{
    static ts_error err;
    char path[4096];
    for (int isa = 0; isa < TS_ISAS; isa++)
        if (strcmp(ts_isa_name((ts_isa)isa), targets[i].kind) == 0 && isa > (int)ts_isa_detect())
            return "this machine lacks the instructions";
    if (strcmp(targets[i].engine, "xla") != 0) return NULL;
    return ts__plugin_find(targets[i].kind, path, sizeof path, &err) == TS_OK ? NULL : err.msg;
}

/* One part of target i; what it prints goes to log, because two at once would mix their lines. */
static pid_t start(const char *path, size_t i, int k, int count, FILE *log)
{
    char first[16], second[16];
    snprintf(first, sizeof first, "%d", k);
    snprintf(second, sizeof second, "%d", count);
    fflush(stdout);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child > 0) return child;
    if (dup2(fileno(log), 1) < 0 || dup2(fileno(log), 2) < 0) _exit(127);
    execl(path, path, targets[i].engine, targets[i].kind, first, second, (char *)NULL);
    _exit(127);
}

static void target_passes(void **state)
{
    const size_t i = (size_t)(uintptr_t)*state;
    const char *why = missing(i);
    char path[4096];
    int status = 0, failed = 0;
    if (why) {
        printf("SKIP %s %s: %s\n", targets[i].engine, targets[i].kind, why);
        skip();
    }
    const ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    assert_true(n > 0);
    path[n] = 0;
    const int count = strcmp(targets[i].engine, "xla") == 0 ? MOST_PARTS : 1;
    pid_t child[MOST_PARTS];
    FILE *log[MOST_PARTS];
    for (int k = 0; k < count; k++) {
        assert_non_null(log[k] = tmpfile());
        child[k] = start(path, i, k, count, log[k]);
    }
    for (int k = 0; k < count; k++) {
        assert_int_equal(waitpid(child[k], &status, 0), child[k]);
        failed += !WIFEXITED(status) || WEXITSTATUS(status) != 0;
        rewind(log[k]);
        for (int c; (c = getc(log[k])) != EOF;) putchar(c);
        fclose(log[k]);
    }
    assert_int_equal(failed, 0);
}

int main(int argc, char **argv)
{
    enum { N = sizeof targets / sizeof targets[0] };
    struct CMUnitTest tests[N + 3] = {
        cmocka_unit_test(threefry_is_the_published_one),
        cmocka_unit_test(every_op_and_dtype_has_a_line),
        cmocka_unit_test(every_differentiable_op_has_a_gradient_line),
    };
    if (argc == 5) {
        part = atoi(argv[3]);
        parts = atoi(argv[4]);
    }
    if (argc == 3 || (argc == 5 && part >= 0 && parts > part))
        return run_table(argv[1], argv[2]) != 0;
    const char *isa = getenv("TESSERA_ISA"); /* this instruction set alone */
    if (isa) return run_table("cpu", isa) != 0;
    for (size_t i = 0; i < N; i++)
        tests[3 + i] =
            (struct CMUnitTest){targets[i].name, target_passes, NULL, NULL, (void *)(uintptr_t)i};
    return cmocka_run_group_tests_name("op table", tests, NULL, NULL);
}
