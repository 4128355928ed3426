/* tests/op/harness.h – a test of an op is one line; this is what the line means.
 *
 *     CASE(attention, IN(X(2,5,2,3,8), X(2,5,2,8), X(2,5,2,8)),
 *          .attr.attention = {.causal = 1, .window = 3, .scale = 0.4}, .fwd = 2e-6, .grad = 1e-4)
 *
 * The case runs for every dtype that the op claims (X is the dtype under test), on an engine given
 * by name. Forward is compared with the double-precision interpreter; the gradient of L = Σ out·r,
 * r fixed and random, with central differences of that interpreter; a composite also by its
 * lowering (the xla engine runs nothing else). Every graph is printed, parsed and printed again, and
 * verified after every pass.
 *
 * Errors are relative to the largest value of the tensor. `fwd` and `grad` bound them in f32. In
 * bf16 the operands are rounded first, so a result differs by its own rounding (2⁻⁹) and, where an
 * op rounds between two sums or a cotangent before a product, by a few of them: 1e-2 and 3e-2.
 * Integers are exact.
 */
#ifndef TS_TEST_HARNESS_H
#define TS_TEST_HARNESS_H

#include "exec/engine.h"
#include "grad/grad.h"

typedef enum test_fill {
    FILL_NORMAL,
    FILL_POSITIVE,
    FILL_RANGE,
    FILL_VALUE,
    FILL_SPECIAL,
    FILL_HUGE,
    FILL_SEGMENTS
} test_fill;

enum { TEST_DTYPE = -1, TEST_INPUTS = 9, TEST_ARRAYS = 32, TEST_DEVICES = 8 };
typedef struct test_input {
    bool used;
    int dtype;                           /* TEST_DTYPE: the one under test */
    test_fill fill;
    double low, high;                    /* FILL_RANGE [low, high), FILL_VALUE low */
    ts_dims dim;
} test_input;

typedef struct test_case test_case;
struct test_case {
    const char *text;
    ts_op op;
    test_input in[TEST_INPUTS];
    ts_attr attr;
    uint64_t seed;                       /* for builders of random graphs */
    ts_dims to;                          /* sizes of the attribute that is a shape */
    /* NULL: one node of op on the inputs. Else builds the graph; returns how many outputs. */
    int (*build)(ts_builder *b, const test_case *c, ts_value **in, ts_value **out);
    double fwd, grad;                    /* bounds in f32; grad 0: no gradient is asked */
    double fwd16, grad16;                /* bounds in bf16, where not 1e-2 and 3e-2 */
    unsigned dtypes;                     /* bits of dtypes; 0: all that the op claims */
    unsigned fixed;                      /* bits of inputs that get no gradient */
    unsigned quiet;                      /* bits of outputs that L leaves out */
};

/* ---- the words of a line --------------------------------------------------------------------- */

#define L(...) {(int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), {__VA_ARGS__}}
#define CASE(name, ...) {.text = #name ", " #__VA_ARGS__, .op = TS_OP_##name, __VA_ARGS__},
#define IN(...) .in = {__VA_ARGS__}
#define TO(...) .to = L(__VA_ARGS__)
#define INPUT(dt, how, a, z, ...) {true, dt, how, a, z, L(__VA_ARGS__)}
#define X(...) INPUT(TEST_DTYPE, FILL_NORMAL, 0, 0, __VA_ARGS__)
#define POS(...) INPUT(TEST_DTYPE, FILL_POSITIVE, 0, 0, __VA_ARGS__)       /* in [0.5, 2.5) */
/* NaN, ±inf, ±0 among others; and with EXTREME the ends of the integers. */
#define SPECIAL(...) INPUT(TEST_DTYPE, FILL_SPECIAL, 0, 0, __VA_ARGS__)
#define EXTREME(...) INPUT(TEST_DTYPE, FILL_HUGE, 0, 0, __VA_ARGS__)
#define RANGE(a, z, ...) INPUT(TEST_DTYPE, FILL_RANGE, a, z, __VA_ARGS__)
#define SAME(v, ...) INPUT(TEST_DTYPE, FILL_VALUE, v, 0, __VA_ARGS__)
#define F32(...) INPUT(TS_F32, FILL_NORMAL, 0, 0, __VA_ARGS__)
#define F32POS(...) INPUT(TS_F32, FILL_POSITIVE, 0, 0, __VA_ARGS__)
#define F32VAL(v) INPUT(TS_F32, FILL_VALUE, v, 0, )
#define I32(a, z, ...) INPUT(TS_I32, FILL_RANGE, a, z, __VA_ARGS__)
#define I32VAL(v) INPUT(TS_I32, FILL_VALUE, v, 0, )
#define U32(...) INPUT(TS_U32, FILL_HUGE, 0, 0, __VA_ARGS__)
#define PRED(...) INPUT(TS_PRED, FILL_RANGE, 0, 2, __VA_ARGS__)
#define PREDVAL(v) INPUT(TS_PRED, FILL_VALUE, v, 0, )
/* 0 0 0 1 1 1 2 … along the last axis. */
#define SEGMENTS(...) INPUT(TS_I32, FILL_SEGMENTS, 0, 0, __VA_ARGS__)
#define ONLY_FLOATS .dtypes = 1u << TS_F32 | 1u << TS_BF16
#define ONLY_F32 .dtypes = 1u << TS_F32
#define ONLY_BF16 .dtypes = 1u << TS_BF16
#define ONLY_INTS .dtypes = 1u << TS_I32 | 1u << TS_U32

extern const test_case test_cases[];
extern const int test_case_count;
/* grouped_dot and its gradient, with the offsets of ids. */
int build_grouped(ts_builder *b, const test_case *c, ts_value **in, ts_value **out);

/* ---- running --------------------------------------------------------------------------------- */

/* Failures are counted but not printed: for tests of the harness itself. */
extern bool test_quiet;
/* Bits of the dtypes this case runs in. */
unsigned test_case_dtypes(const test_case *c);
/* All checks of a case in one dtype; prints what failed. Returns the number of failures.
 * all_remats: the gradient once under each remat policy. */
int test_case_run(ts_engine *e, const test_case *c, ts_dtype t, bool all_remats);

/* The forward graph; gradient: also inputs r0 … of L, and outputs d0 … of inputs that have one. */
ts_graph *test_graph(const test_case *c, ts_dtype t, bool gradient, ts_remat remat, ts_error *err);
/* Runs g on e: arrays of doubles in, arrays of doubles out. */
ts_status test_execute(ts_engine *e, const ts_graph *g, double *const *in, double *const *out,
                       ts_error *err);
/* The same on every device of e: in is [devices × inputs], out [devices × outputs]. */
ts_status test_execute_on(ts_engine *e, const ts_graph *g, int devices, double *const *in,
                          double *const *out, ts_error *err);
/* Executes that test_execute made without an error, and those that the engine says its device
 * finished (ts_exec_stats): an engine that ran them elsewhere would not count them. */
extern uint64_t test_executes, test_finished;
/* The largest |got − want| over the largest |want| (at least floor); infinite where NaN or
 * infinities differ; for integers 0 or infinite. *at gets the element. */
double test_error(const ts_type *t, const double *got, const double *want, double floor,
                  int64_t *at);
/* An engine by name and its kind, with two threads: the isa of cpu, the plugin of xla. */
ts_engine *test_engine(const char *name, const char *kind, ts_error *err);

#endif
