/* test_xla_flight.c – programs under way on the fake plugin: which device gets what, how many at once, what fails.
 *
 * The plugin's device works on a thread of its own, so an execute comes back before its program has run. Every test
 * ends with nothing alive in the plugin. Values are compared exactly: the kernels are the CPU engine's.
 */
#include "fake_help.h"

#include "xla/run.h"

static const float w0[4] = {1, 2, 3, 4};

/* An engine with n devices, the small program, its buffers; device d's x is 10 · (d + 1) in every place. */
typedef struct rig {
    ts_graph *graph;
    ts_engine *engine;
    ts_executable *x;
    ts_buffer *in[16], *out[16]; /* [devices × 2] */
    int n;
} rig;

static ts_status rig_compile(rig *r, int n, ts_error *err)
{
    *r = (rig){.graph = fake_small_graph(), .n = n};
    TS_TRY(fake_open(n, &r->engine, err));
    return ts_compile(r->engine, r->graph, &r->x, err);
}

static void rig_fill(rig *r)
{
    ts_error err = {0};
    for (int d = 0; d < r->n; d++) {
        float x[4];
        for (int i = 0; i < 4; i++) x[i] = (float)(10 * (d + 1));
        for (int k = 0; k < 2; k++)
            if (ts_upload(r->in[2 * d + k], k ? x : w0, 0, sizeof x, &err) != TS_OK)
                fail_msg("%s", err.msg);
    }
}

static rig rig_new(int n)
{
    rig r;
    ts_error err = {0};
    fake_counts()->reset();
    if (rig_compile(&r, n, &err) != TS_OK) fail_msg("%s", err.msg);
    for (int d = 0; d < n; d++) {
        const ts_type *type = &r.graph->top->arg[0]->type;
        assert_int_equal(ts_buffer_new(r.engine, d, type, &r.in[2 * d], &err), TS_OK);
        assert_int_equal(ts_buffer_new(r.engine, d, type, &r.in[2 * d + 1], &err), TS_OK);
        assert_int_equal(ts_buffer_new(r.engine, d, type, &r.out[2 * d + 1], &err), TS_OK);
        r.out[2 * d] = r.in[2 * d];
    }
    rig_fill(&r);
    return r;
}

static void rig_free(rig *r)
{
    ts_executable_free(r->x);
    for (int i = 0; i < 2 * r->n; i++) {
        ts_buffer_free(r->in[i]);
        if (i % 2) ts_buffer_free(r->out[i]);
    }
    ts_engine_close(r->engine);
    ts_graph_free(r->graph);
    fault_none();
    fake_nothing_left("a rig");
}

static void expect_error(ts_status got, ts_status status, const ts_error *err, const char *words)
{
    if (got != status || strcmp(err->msg, words) != 0)
        fail_msg("%s: %s\n  expected %s: %s", ts_status_name(got), err->msg, ts_status_name(status),
                 words);
}

/* w of device d after n executes. */
static void expect_w(const rig *r, int d, int n)
{
    float got[4];
    ts_error err = {0};
    if (ts_download(r->in[2 * d], got, 0, sizeof got, &err) != TS_OK) fail_msg("%s", err.msg);
    for (int i = 0; i < 4; i++)
        if (got[i] != w0[i] + (float)(n * 10 * (d + 1)))
            fail_msg("device %d [%d]: %g", d, i, (double)got[i]);
}

/* Eight devices that the plugin lists backwards, with ids of six digits: device d still gets what was its. */
static void device_order(void **unused)
{
    (void)unused;
    static const char *const order[] = {"", "reversed"};
    for (int k = 0; k < 2; k++) {
        fault_none();
        fault("DEVICES", "8");
        fault("ORDER", order[k]);
        rig r = rig_new(8);
        for (int i = 0; i < 3; i++) assert_int_equal(ts_execute(r.x, r.in, r.out, NULL), TS_OK);
        for (int i = 0; i < 3; i++) assert_int_equal(ts_wait(r.x, NULL), TS_OK);
        for (int d = 0; d < 8; d++) expect_w(&r, d, 3);
        rig_free(&r);
        /* Fewer than there are: those with the smallest numbers. */
        fault("DEVICES", "8");
        fault("ORDER", order[k]);
        r = rig_new(3);
        assert_int_equal(((ts_xla *)r.engine)->id[2], k ? 100002 : 2);
        assert_int_equal(ts_execute(r.x, r.in, r.out, NULL), TS_OK);
        for (int d = 0; d < 3; d++) expect_w(&r, d, 1);
        rig_free(&r);
    }
}

/* What a plugin may not make of the devices it was asked for. */
static void odd_assignments(void **unused)
{
    (void)unused;
    static const struct {
        const char *odd;
        ts_status status;
        const char *words;
    } odd[] = {
        {"assignment", TS_INTERNAL,
         "the plugin runs replica 0 on device 2; device 0 was asked for"},
        {"twice", TS_INTERNAL,
         "the compiled program runs on device 0, which is not one of those it was compiled for or comes twice"},
        {"strange", TS_INTERNAL,
         "the compiled program runs on device 3, which is not one of those it was compiled for or comes twice"},
        {"few", TS_FAILED_PRECONDITION,
         "the compiled program runs on 2 of this process's devices; 3 were asked for"},
    };
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        rig r;
        ts_error err = {0};
        fault_none();
        fault("DEVICES", "4");
        fault("ODD", odd[i].odd);
        ts_status status = rig_compile(&r, 3, &err);
        expect_error(status, odd[i].status, &err, odd[i].words);
        ts_engine_close(r.engine);
        ts_graph_free(r.graph);
        fault_none();
        fake_nothing_left(odd[i].odd);
    }
}

/* Execute comes back before the device is done, two are under way, never three, and they end in order. */
static void two_in_flight(void **unused)
{
    (void)unused;
    ts_exec_stats stats;
    const double slow = 0.3;
    fault_none();
    rig r = rig_new(1);
    fault("SLOW_MS", "300");
    double began = ts_clock_seconds();
    assert_int_equal(ts_execute(r.x, r.in, r.out, NULL), TS_OK);
    assert_int_equal(ts_execute(r.x, r.in, r.out, NULL), TS_OK);
    if (ts_clock_seconds() - began > slow) fail_msg("execute waits for the device");
    assert_int_equal(fake_counts()->in_flight(), 2);
    assert_int_equal(fake_counts()->executes(), 2);
    r.x->vtable->stats(r.x, &stats);
    assert_int_equal(stats.executes, 0);
    assert_int_equal(ts_execute(r.x, r.in, r.out, NULL), TS_OK); /* waits for the first */
    if (ts_clock_seconds() - began < slow) fail_msg("the third did not wait");
    assert_int_equal(ts_wait(r.x, NULL), TS_OK);
    assert_int_equal(ts_wait(r.x, NULL), TS_OK);
    if (ts_clock_seconds() - began < 3 * slow) fail_msg("they were not waited for");
    assert_int_equal(fake_counts()->in_flight(), 2);
    r.x->vtable->stats(r.x, &stats);
    assert_int_equal(stats.executes, 3);
    if (stats.last_seconds < slow * 0.8 || stats.last_seconds > 20)
        fail_msg("%g s", stats.last_seconds);
    assert_int_equal(ts_wait(r.x, NULL), TS_OK); /* nothing to wait for */
    expect_w(&r, 0, 3);
    rig_free(&r);
}

/* The first of two fails: each wait tells of its own execute, what they would have written is gone and says so. */
static void a_failure_in_flight(void **unused)
{
    (void)unused;
    ts_error err = {0};
    ts_exec_stats stats;
    float got[4] = {0};
    fault_none();
    rig r = rig_new(1);
    fault("EVENT_FAIL", "1");
    fault("SLOW_MS", "20");
    assert_int_equal(ts_execute(r.x, r.in, r.out, &err), TS_OK);
    assert_int_equal(ts_execute(r.x, r.in, r.out, &err), TS_OK);
    expect_error(ts_wait(r.x, &err), TS_INTERNAL, &err,
                 "execute 1 of small failed: the device was lost in execute 1");
    err = (ts_error){0};
    expect_error(ts_wait(r.x, &err), TS_INTERNAL, &err,
                 "execute 2 of small failed: the device was lost in execute 1");
    r.x->vtable->stats(r.x, &stats);
    assert_int_equal(stats.executes, 0);
    err = (ts_error){0};
    expect_error(
        ts_download(r.in[0], got, 0, sizeof got, &err), TS_FAILED_PRECONDITION, &err,
        "the buffer f32[embed:4] on device 0 was given to an execute that failed, and its bytes are gone; "
        "upload them again, from a checkpoint");
    err = (ts_error){0};
    ts_status status = ts_execute(r.x, r.in, r.out, &err);
    expect_error(
        status, TS_FAILED_PRECONDITION, &err,
        "input w of small: the buffer f32[embed:4] on device 0 was given to an execute that failed, and its "
        "bytes are gone; upload them again, from a checkpoint");
    /* Half of its bytes, even twice, are not all of them. */
    fault_none();
    for (int i = 0; i < 2; i++) assert_int_equal(ts_upload(r.in[0], got, 0, 8, NULL), TS_OK);
    assert_int_equal(ts_download(r.in[0], got, 0, sizeof got, NULL), TS_FAILED_PRECONDITION);
    err = (ts_error){0};
    assert_int_equal(ts_execute(r.x, r.in, r.out, &err), TS_FAILED_PRECONDITION);
    /* With new bytes it goes on. */
    rig_fill(&r);
    err = (ts_error){0};
    assert_int_equal(ts_execute(r.x, r.in, r.out, &err), TS_OK);
    assert_int_equal(ts_wait(r.x, &err), TS_OK);
    expect_w(&r, 0, 1);
    rig_free(&r);
}

/* A refused execute has taken nothing. */
static void a_refusal(void **unused)
{
    (void)unused;
    ts_error err = {0};
    fault_none();
    rig r = rig_new(1);
    fault("FAIL", "PJRT_LoadedExecutable_Execute@2=8:no room");
    assert_int_equal(ts_execute(r.x, r.in, r.out, &err), TS_OK);
    ts_status status = ts_execute(r.x, r.in, r.out, &err);
    expect_error(status, TS_RESOURCE_EXHAUSTED, &err, "execute 2 of small was refused: no room");
    assert_int_equal(ts_wait(r.x, NULL), TS_OK);
    expect_w(&r, 0, 1);
    assert_int_equal(ts_execute(r.x, r.in, r.out, NULL), TS_OK);
    assert_int_equal(ts_wait(r.x, NULL), TS_OK);
    expect_w(&r, 0, 2);
    rig_free(&r);
}

/* A device that ends later than the others is told from them, by its own number in whatever order they are listed. */
static void each_has_its_end(void **unused)
{
    (void)unused;
    static const char *const order[] = {"", "reversed"};
    for (int k = 0; k < 2; k++) {
        double done[4] = {0};
        ts_error err = {0};
        fault_none();
        fault("DEVICES", "4");
        fault("ORDER", order[k]);
        rig r = rig_new(4);
        assert_int_equal(r.engine->vtable->device_id(r.engine, 2), k ? 100002 : 2);
        fault("LAG", k ? "100002" : "2");
        double began = ts_clock_seconds();
        assert_int_equal(ts_execute(r.x, r.in, r.out, &err), TS_OK);
        assert_int_equal(r.engine->vtable->wait_each(r.x, done, &err), TS_OK);
        for (int d = 0; d < 4; d++) {
            if (done[d] < began || done[d] > ts_clock_seconds()) fail_msg("device %d: %g", d, done[d]);
            if (d != 2 && done[2] - done[d] < 0.03) fail_msg("device %d: %g s", d, done[2] - done[d]);
            expect_w(&r, d, 1);
        }
        assert_int_equal(r.engine->vtable->wait_each(r.x, done, &err), TS_OK); /* nothing to wait for */
        fault("EVENT_FAIL", "2");
        assert_int_equal(ts_execute(r.x, r.in, r.out, &err), TS_OK);
        expect_error(r.engine->vtable->wait_each(r.x, done, &err), TS_INTERNAL, &err,
                     "execute 2 of small failed: the device was lost in execute 2");
        rig_free(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(device_order),  cmocka_unit_test(odd_assignments),
        cmocka_unit_test(two_in_flight), cmocka_unit_test(a_failure_in_flight),
        cmocka_unit_test(a_refusal),     cmocka_unit_test(each_has_its_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
