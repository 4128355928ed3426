/* test_slice_check.c – the slice check itself: a sound slice passes, and one lie of one rank is told with its rank.
 *
 * On the cpu engine with 1 … 256 virtual devices, on XLA's cpu plugin with four (skipped without it), over one axis
 * and several. The lies are told through the options' hook, so that the product has none. The golden file is written
 * here: the formula in double by another route than the check's.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "ckpt/safetensors.h"
#include "slow.h"
#include "train/slice_check.h"
#include "xla/plugin.h"

enum { B = 64, H = 128, F = 512 };

#define OK(call)                                                                                   \
    do {                                                                                           \
        ts_error err_ = {0}, *err = &err_;                                                         \
        if ((call) != TS_OK) fail_msg("%s", err_.msg);                                             \
    } while (0)
#define FAILS(call, status, words)                                                                 \
    do {                                                                                           \
        ts_error err_ = {0}, *err = &err_;                                                         \
        ts_status got_ = (call);                                                                   \
        if (got_ != (status) || !strstr(err_.msg, words))                                          \
            fail_msg("%s: %s\nexpected %s with \"%s\"", ts_status_name(got_), err_.msg,            \
                     ts_status_name(status), words);                                               \
    } while (0)

static ts_engine *cpu(int devices)
{
    ts_engine *e = NULL;
    const ts_engine_options o = {sizeof o, .name = "cpu", .devices = devices, .threads = 1};
    OK(ts_engine_open(&o, &e, err));
    return e;
}

/* NULL, after saying why, where there is no plugin. */
static ts_engine *xla(int devices)
{
    ts_engine *e = NULL;
    ts_error why = {0};
    char path[4096];
    const ts_engine_options o = {sizeof o, .name = "xla", .devices = devices, .plugin = "cpu"};
    if (getenv("VALGRIND")) {
        puts("SKIP: the plugins' own code does not pass valgrind");
        return NULL;
    }
    if (ts__plugin_find("cpu", path, sizeof path, &why) != TS_OK) {
        printf("SKIP: %s\n", why.msg);
        return NULL;
    }
    OK(ts_engine_open(&o, &e, err));
    return e;
}

/* Axes of these sizes; 0 ends the list. */
static ts_mesh mesh(int64_t a, int64_t b, int64_t c)
{
    const int64_t size[3] = {a, b, c};
    static const char *const name[3] = {"data", "fsdp", "tensor"};
    ts_mesh m = {.devices = 1};
    for (int i = 0; i < 3 && size[i]; i++) {
        snprintf(m.axis[m.n].name, sizeof m.axis[m.n].name, "%s", name[i]);
        m.axis[m.n++].size = size[i];
        m.devices *= (int)size[i];
    }
    return m;
}

/* ---- sound slices ---------------------------------------------------------------------------- */

static void check_sound(ts_engine *e, const ts_mesh *m, bool timing)
{
    ts_slice_report r;
    ts_slice_options o;
    ts_slice_options_default(&o);
    o.timing = timing;
    OK(ts__slice_check(e, m, &o, &r, err));
    assert_int_equal(r.devices, m->devices);
    assert_int_equal(r.axes, m->n);
    if (r.disagree) fail_msg("rank 0 of %d: %s", r.devices, r.rank[0].problem);
    assert_true(r.max_abs_diff > 0 && r.max_abs_diff < 1e-4); /* f32 against double */
    assert_true(r.sum == m->devices * (m->devices + 1) / 2.0);
    for (int d = 0; d < r.devices; d++) {
        int64_t number = 0;
        for (int a = 0; a < m->n; a++) number = number * m->axis[a].size + r.rank[d].coordinate[a];
        assert_int_equal(number, d);
        assert_int_equal(r.rank[d].rank, d);
        assert_true(r.rank[d].sum == r.sum && r.rank[d].max_abs_diff <= r.max_abs_diff);
    }
    if (timing) {
        size_t small = 0;
        for (size_t i = 0; i < r.n_timing; i++) {
            const ts_slice_timing *t = &r.timing[i];
            assert_true(t->seconds > 0 && t->seconds < 60 && t->bytes > 0);
            assert_true(t->small == (t->bus == 0) && t->small == (t->algorithm == 0));
            small += t->small;
        }
        assert_int_equal(small, 4 * m->n);
        assert_true(r.n_timing >= 2 * small); /* at least one large message each */
    } else {
        assert_int_equal(r.n_timing, 0);
    }
    ts_slice_report_free(&r);
    assert_null(r.rank);
}

static void test_cpu(void **state)
{
    static const int64_t sizes[][3] = {{1}, {2}, {4}, {16}, {2, 2}, {4, 4}, {2, 2, 4}, {256}, {16, 16}};
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        ts_mesh m = mesh(sizes[i][0] > 1 ? sizes[i][0] : 0, sizes[i][1], sizes[i][2]);
        if (getenv("VALGRIND") && m.devices > 16) continue;
        ts_engine *e = cpu(m.devices);
        check_sound(e, &m, m.devices == 4 && !getenv("VALGRIND"));
        ts_engine_close(e);
    }
}

static void test_xla(void **state)
{
    ts_mesh four = mesh(4, 0, 0), square = mesh(2, 2, 0);
    ts_engine *e = xla(4);
    (void)state;
    if (!e) skip();
    check_sound(e, &four, false);
    check_sound(e, &square, true);
    ts_engine_close(e);
}

/* An engine whose devices have clocks, and whose device 3 is half as fast as the others. */
static ts_status late(ts_executable *x, double *done, ts_error *err)
{
    TS_TRY(ts_wait(x, err));
    for (int d = 0; d < 4; d++) done[d] = ts_clock_seconds() + (d == 3 ? 2000 : 1000);
    return TS_OK;
}

static void test_straggler(void **state)
{
    ts_mesh m = mesh(4, 0, 0);
    ts_engine *e = cpu(4);
    ts_engine_vtable clocks = *e->vtable;
    const ts_engine_vtable *own = e->vtable;
    ts_slice_report r;
    (void)state;
    if (getenv("VALGRIND")) {
        ts_engine_close(e);
        puts("SKIP: minutes of products under valgrind");
        skip();
    }
    clocks.wait_each = late;
    ts_slice_options o;
    ts_slice_options_default(&o);
    OK(ts__slice_check(e, &m, &o, &r, err)); /* lockstep: nothing is said of ranks */
    assert_true(r.one_clock && r.product == 0);
    for (int d = 0; d < 4; d++) assert_true(r.rank[d].seconds == 0 && !r.rank[d].slow);
    ts_slice_report_free(&r);
    e->vtable = &clocks;
    OK(ts__slice_check(e, &m, &o, &r, err));
    e->vtable = own;
    assert_true(!r.one_clock && r.product == 512);
    for (int d = 0; d < 4; d++) {
        assert_true(r.rank[d].slow == (d == 3));
        assert_true(r.rank[d].seconds > (d == 3 ? 2000 : 1000));
    }
    ts_slice_report_free(&r);
    ts_engine_close(e);
}

/* ---- lies ------------------------------------------------------------------------------------ */

typedef struct lie {
    int rank;
    const char *what;
    size_t at;
    float value;
} lie;

static void tell(void *context, int rank, const char *what, float *value, size_t n)
{
    const lie *l = context;
    assert_int_equal(n, strcmp(what, "sum") == 0 ? 4 : B * H);
    if (rank == l->rank && strcmp(what, l->what) == 0) value[l->at] = l->value;
}

/* Exactly this rank disagrees, and says these words. */
static void check_lie(ts_engine *e, const ts_mesh *m, lie l, const char *words)
{
    ts_slice_report r;
    ts_slice_options o;
    ts_slice_options_default(&o);
    o.result = tell;
    o.context = &l;
    OK(ts__slice_check(e, m, &o, &r, err));
    assert_int_equal(r.disagree, 1);
    assert_int_equal(r.n_timing, 0); /* a slice that is none is not timed */
    for (int d = 0; d < r.devices; d++)
        if (d != l.rank) assert_string_equal(r.rank[d].problem, "");
    if (!strstr(r.rank[l.rank].problem, words))
        fail_msg("%s\nexpected \"%s\"", r.rank[l.rank].problem, words);
    if (strcmp(l.what, "sum") != 0)
        assert_true(!isfinite(l.value) ? isnan(r.max_abs_diff) : r.max_abs_diff > 1);
    ts_slice_report_free(&r);
}

static void check_lies(ts_engine *e, const ts_mesh *m)
{
    check_lie(e, m, (lie){2, "feed-forward", 3 * H + 17, 1000}, "y[3,17] is 1000, expected ");
    check_lie(e, m, (lie){0, "feed-forward", 0, NAN}, "feed-forward over all devices: y[0,0] is ");
    check_lie(e, m, (lie){1, "feed-forward", B * H - 1, INFINITY}, "y[63,127] is inf, expected ");
    check_lie(e, m, (lie){3, "sum", 2, 9}, "rank + 1 over all devices: element 2 is 9, expected 10");
}

/* Through tessera.h, as a program does. */
static void test_public(void **state)
{
    static const char *const words[] = {"engine=cpu", "threads=1", "cpu_devices=16", "ici_fsdp_parallelism=4",
                                        "ici_tensor_parallelism=4"};
    lie l = {13, "feed-forward", 1, 99};
    ts_slice_options o;
    ts_slice_report r;
    ts_config *c = NULL;
    (void)state;
    OK(ts_config_load_words(words, 5, &c, err));
    ts_slice_options_default(&o);
    o.timing = false;
    OK(ts_slice_check(c, &o, &r, err));
    assert_true(r.disagree == 0 && r.devices == 16 && r.axes == 2 && r.sum == 136);
    assert_string_equal(r.axis[1].name, "tensor");
    assert_int_equal(r.rank[13].coordinate[0], 3);
    assert_int_equal(r.rank[13].coordinate[1], 1);
    ts_slice_report_free(&r);
    o.result = tell;
    o.context = &l;
    OK(ts_slice_check(c, &o, &r, err));
    assert_int_equal(r.disagree, 1);
    assert_non_null(strstr(r.rank[13].problem, "y[0,1] is 99, expected "));
    ts_slice_report_free(&r);
    o.struct_size = offsetof(ts_slice_options, result); /* of a caller that does not know the hook yet */
    OK(ts_slice_check(c, &o, &r, err));
    assert_int_equal(r.disagree, 0);
    ts_slice_report_free(&r);
    ts_config_free(c);
}

static void test_lies(void **state)
{
    ts_mesh four = mesh(4, 0, 0), square = mesh(2, 2, 0);
    ts_engine *e = cpu(4);
    (void)state;
    check_lies(e, &four);
    check_lies(e, &square);
    ts_engine_close(e);
    if (!(e = xla(4))) return;
    check_lies(e, &square);
    ts_engine_close(e);
}

/* ---- the golden file ------------------------------------------------------------------------- */

static float w1[F * H], w2[H * F], x[B * H], y[B * H];
static char golden[64];

static void write_golden(int64_t inner, const char *name_of_y)
{
    const ts_tensor_spec specs[] = {{"w1", TS_FILE_F32, 2, {inner, H}},
                                    {"w2", TS_FILE_F32, 2, {H, inner}},
                                    {"x", TS_FILE_F32, 2, {B, H}},
                                    {name_of_y, TS_FILE_F32, 2, {B, H}}};
    const size_t n = (size_t)(inner * H) * sizeof(float);
    ts_tensor_writer *w;
    OK(ts_tensor_writer_open(golden, specs, 4, NULL, 0, &w, err));
    OK(ts_tensor_writer_add(w, w1, n, err));
    OK(ts_tensor_writer_add(w, w2, n, err));
    OK(ts_tensor_writer_add(w, x, sizeof x, err));
    OK(ts_tensor_writer_add(w, y, sizeof y, err));
    OK(ts_tensor_writer_close(w, false, NULL, NULL, err));
}

static void make_golden(void)
{
    static double h[B][F];
    for (int i = 0; i < F * H; i++) w1[i] = (float)sin(i * 0.7) / 8, w2[i] = (float)cos(i * 1.3) / 16;
    for (int i = 0; i < B * H; i++) x[i] = (float)sin(i * i * 0.01);
    for (int r = 0; r < B; r++)
        for (int f = 0; f < F; f++) {
            double z = 0;
            for (int k = H - 1; k >= 0; k--) z += (double)x[r * H + k] * (double)w1[f * H + k];
            h[r][f] = z * 0.5 * (1 + tanh(z / 2));
        }
    for (int i = 0; i < B * H; i++) {
        double sum = 0;
        for (int f = 0; f < F; f++) sum += h[i / H][f] * (double)w2[i % H * F + f];
        y[i] = (float)(sum + (double)x[i]);
    }
}

static void test_golden(void **state)
{
    ts_mesh m = mesh(2, 2, 0);
    ts_engine *e = cpu(4);
    ts_slice_report r;
    ts_slice_options o;
    (void)state;
    ts_slice_options_default(&o);
    o.timing = false;
    o.golden = golden;
    make_golden();
    write_golden(F, "y");
    OK(ts__slice_check(e, &m, &o, &r, err));
    if (r.disagree) fail_msg("%s", r.rank[0].problem);
    assert_true(r.max_abs_diff < 1e-4);
    ts_slice_report_free(&r);

    y[5 * H + 7] += 0.5f;
    write_golden(F, "y");
    OK(ts__slice_check(e, &m, &o, &r, err));
    assert_int_equal(r.disagree, 4);
    for (int d = 0; d < 4; d++) {
        assert_non_null(strstr(r.rank[d].problem, "y[5,7] is "));
        assert_non_null(strstr(r.rank[d].problem, "by the golden file"));
    }
    assert_true(r.max_abs_diff < 1e-4); /* of the host's reference */
    ts_slice_report_free(&r);

    write_golden(F / 2, "y");
    FAILS(ts__slice_check(e, &m, &o, &r, err), TS_DATA_LOSS, "tensor w1 is [256,128]; expected [512,128]");
    assert_null(r.rank);
    write_golden(F, "z");
    FAILS(ts__slice_check(e, &m, &o, &r, err), TS_DATA_LOSS, "has no tensor y; the slice check needs w1 [512,128]");
    o.golden = "nowhere.safetensors";
    FAILS(ts__slice_check(e, &m, &o, &r, err), TS_NOT_FOUND, "nowhere.safetensors");
    ts_engine_close(e);
}

static void test_divides(void **state)
{
    ts_slice_report r;
    ts_slice_options o;
    (void)state;
    ts_slice_options_default(&o);
    for (int64_t n = 3; n < 7; n += 3) {
        ts_mesh m = mesh(n, 0, 0);
        FAILS(ts__slice_check(NULL, &m, &o, &r, err), TS_INVALID_ARGUMENT,
              "512 columns must divide by them; use 1, 2, 4, 8, 16, 32, 64, 128, 256 or 512 devices");
    }
    ts_mesh m = mesh(1024, 0, 0);
    FAILS(ts__slice_check(NULL, &m, &o, &r, err), TS_INVALID_ARGUMENT, "1024 devices: ");
}

/* Every allocation of a check fails once: an error, and nothing is left behind (leak sanitizer). */
static void test_memory(void **state)
{
    ts_mesh m = mesh(2, 0, 0);
    ts_engine *e = cpu(2);
    ts_slice_options o;
    ts_slice_report r;
    (void)state;
    ts_slice_options_default(&o);
    o.timing = false;
    for (uint64_t nth = 1;; nth += test_is_slow() ? 7 : 1) {
        ts_error err = {0};
        ts_alloc_fail_at(nth);
        ts_status status = ts__slice_check(e, &m, &o, &r, &err);
        ts_alloc_fail_at(0);
        if (status == TS_OK) break;
        assert_int_equal(status, TS_RESOURCE_EXHAUSTED);
        assert_null(r.rank);
        assert_true(nth < 5000);
    }
    ts_slice_report_free(&r);
    ts_engine_close(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cpu),     cmocka_unit_test(test_xla),
                                       cmocka_unit_test(test_lies),    cmocka_unit_test(test_golden),
                                       cmocka_unit_test(test_divides), cmocka_unit_test(test_memory),
                                       cmocka_unit_test(test_straggler), cmocka_unit_test(test_public)};
    snprintf(golden, sizeof golden, "/tmp/tessera-slice-%d.safetensors", (int)getpid());
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(golden);
    return failed;
}
