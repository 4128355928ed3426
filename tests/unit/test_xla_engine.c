/* test_xla_engine.c – the xla engine on a real plugin: bytes to and fro, donation, executes in flight, devices.
 *
 * What a plugin does wrong is tested with the fake one (test_xla_errors.c); programs and files in test_xla_programs.c.
 */
#include "unit/xla_engine_help.h"

/* ---- what it says ---------------------------------------------------------------------------- */

static void describes(void **state)
{
    (void)state;
    ts_engine *e = open_engine(2, NULL);
    const char *text = e->vtable->describe(e);
    assert_int_equal(e->vtable->devices(e), 2);
    if (strncmp(text, "xla: ", 5) != 0 || !strstr(text, "2 × ") || !strstr(text, "PJRT 0.") ||
        !strstr(text, "StableHLO "))
        fail_msg("%s", text);
    ts_engine_close(e);
    char path[4096];
    OK(ts__plugin_find(plugin(), path, sizeof path, err));
    assert_true(ts__pjrt_loaded(path));
    assert_false(ts__pjrt_loaded("/no/such/plugin.so"));
}

static void refuses_options(void **state)
{
    (void)state;
    ts_engine *e = open_engine(1, NULL), *other;
    ts_engine_options o = {
        .struct_size = sizeof o, .name = "xla", .plugin = plugin(), .precision = "low"};
    FAILS(ts_engine_open(&o, &other, err), TS_INVALID_ARGUMENT, "highest");
    o = (ts_engine_options){
        .struct_size = sizeof o, .name = "xla", .plugin = plugin(), .devices = -1};
    FAILS(ts_engine_open(&o, &other, err), TS_INVALID_ARGUMENT, "at least 1");
    o = (ts_engine_options){.struct_size = sizeof o, .name = "xla", .plugin = "/no/such/plugin.so"};
    FAILS(ts_engine_open(&o, &other, err), TS_NOT_FOUND, "/no/such/plugin.so");
    assert_null(other);
    ts_engine_close(e);
}

/* ---- buffers --------------------------------------------------------------------------------- */

/* Every dtype, whole and in pieces of every size, in both directions. */
static void bytes_come_back(void **state)
{
    (void)state;
    ts_engine *e = open_engine(1, NULL);
    unsigned char sent[96], got[96];
    for (int t = 0; t < TS_DTYPES; t++) {
        ts_type type = ts_type_make((ts_dtype)t, TS_DIMS({NULL, 4}, {NULL, 2}, {NULL, 3}));
        size_t bytes = ts_type_bytes(&type);
        for (size_t i = 0; i < bytes; i++)
            sent[i] = t == TS_PRED ? i % 3 == 0 : (unsigned char)(i * 2 + 1) & 0x3f;
        for (size_t piece = 1; piece <= bytes; piece = piece < 7 ? piece + 3 : piece * 2) {
            ts_buffer *b;
            OK(ts_buffer_new(e, 0, &type, &b, err));
            memset(got, 0xaa, sizeof got);
            OK(ts_download(b, got, 0, bytes, err));
            for (size_t i = 0; i < bytes; i++) assert_int_equal(got[i], 0); /* new: zero */
            for (size_t at = 0; at < bytes; at += piece)
                OK(ts_upload(b, sent + at, at, at + piece > bytes ? bytes - at : piece, err));
            assert_int_equal(((ts_xla_buffer *)b)->place,
                             TS_XLA_DEVICE); /* flushed with the last byte */
            assert_null(((ts_xla_buffer *)b)->host);
            for (size_t at = 0; at < bytes; at += piece)
                OK(ts_download(b, got + at, at, at + piece > bytes ? bytes - at : piece, err));
            assert_memory_equal(sent, got, bytes);
            assert_null(((ts_xla_buffer *)b)->host); /* the copy went with the last byte */
            OK(ts_download(b, got, 0, bytes, err));
            assert_memory_equal(sent, got, bytes);
            ts_buffer_free(b);
        }
    }
    ts_engine_close(e);
}

/* Pieces out of order, pieces over what is there, ranges that are not. */
static void pieces(void **state)
{
    (void)state;
    ts_engine *e = open_engine(1, NULL);
    ts_type type = ts_type_make(TS_F32, TS_DIMS({NULL, 2}, {NULL, 3}));
    ts_buffer *b;
    float v[6] = {0, 1, 2, 3, 4, 5}, nine = 9;
    OK(ts_buffer_new(e, 0, &type, &b, err));
    OK(ts_upload(b, v + 3, 12, 12, err));
    assert_int_equal(((ts_xla_buffer *)b)->place, TS_XLA_HOST);
    OK(ts_upload(b, v, 0, 12, err));
    assert_int_equal(((ts_xla_buffer *)b)->place, TS_XLA_DEVICE);
    expect(b, 0, 1);
    float first;
    OK(ts_download(b, &first, 0, 4, err)); /* a copy stays, and must not outlive the change */
    OK(ts_upload(b, &nine, 0, 4, err));
    OK(ts_download(b, &first, 0, 4, err));
    assert_true(first == 9);
    v[0] = 9;
    float got[6];
    OK(ts_download(b, got, 0, sizeof got, err));
    assert_memory_equal(got, v, sizeof v);
    put(b, 1, 0); /* whole, over pieces */
    expect(b, 1, 0);
    FAILS(ts_upload(b, v, 20, 8, err), TS_OUT_OF_RANGE, "24 bytes");
    FAILS(ts_download(b, v, (size_t)-4, 8, err), TS_OUT_OF_RANGE, "24 bytes");
    OK(ts_upload(b, v, 24, 0, err));
    ts_buffer_free(b);
    FAILS(ts_buffer_new(e, 1, &type, &b, err), TS_OUT_OF_RANGE, "has 1");
    ts_engine_close(e);
}

static void scalars_and_nothing(void **state)
{
    (void)state;
    ts_engine *e = open_engine(1, NULL);
    ts_type scalar = ts_type_make(TS_I32, TS_SCALAR),
            empty = ts_type_make(TS_F32, TS_DIMS({NULL, 0}, {NULL, 3}));
    ts_buffer *b;
    int32_t v = 7, got = 0;
    OK(ts_buffer_new(e, 0, &scalar, &b, err));
    OK(ts_upload(b, &v, 0, 4, err));
    OK(ts_download(b, &got, 0, 4, err));
    assert_int_equal(got, 7);
    ts_buffer_free(b);
    OK(ts_buffer_new(e, 0, &empty, &b, err));
    OK(ts_upload(b, &v, 0, 0, err));
    OK(ts__xla_buffer_flush((ts_xla_buffer *)b, err));
    ts_buffer_free(b);
    ts_engine_close(e);
}

/* ---- executes -------------------------------------------------------------------------------- */

static void donates(void **state)
{
    (void)state;
    program p = open_program(1);
    put(p.in[0], 0, 1);
    put(p.in[1], 10, 0);
    for (int i = 1; i <= 4; i++) {
        OK(ts_execute(p.x, p.in, p.out, err));
        OK(ts_wait(p.x, err));
        expect(p.out[0], (float)(10 * i), 1);
        assert_true(total_of(p.out[1]) == (float)(60 * i + 15));
    }
    expect(p.in[1], 10, 0); /* not donated: unchanged */
    ts_exec_stats s;
    p.x->vtable->stats(p.x, &s);
    assert_int_equal(s.executes, 4);
    assert_true(s.last_seconds > 0 && s.last_done > 0);
    assert_int_equal(s.memory.aliased, 24);
    assert_int_equal(s.memory.arguments, 48);
    close_program(&p);
}

static void checks_buffers(void **state)
{
    (void)state;
    program p = open_program(1);
    ts_buffer *in[2] = {p.in[0], p.in[0]}, *out[2] = {p.in[0], p.in[0]}, *small,
              *none[2] = {NULL, p.in[1]};
    FAILS(ts_execute(p.x, in, p.out, err), TS_INVALID_ARGUMENT, "two inputs");
    FAILS(ts_execute(p.x, p.in, out, err), TS_INVALID_ARGUMENT, "output total");
    out[0] = p.in[1];
    out[1] = p.out[1];
    FAILS(ts_execute(p.x, p.in, out, err), TS_INVALID_ARGUMENT, "replaces input state");
    out[0] = p.in[0];
    FAILS(ts_execute(p.x, none, p.out, err), TS_INVALID_ARGUMENT, "no buffer");
    ts_type type = ts_type_make(TS_F32, TS_DIMS({NULL, 3}, {NULL, 2}));
    OK(ts_buffer_new(p.e, 0, &type, &small, err));
    in[1] = small;
    FAILS(ts_execute(p.x, in, p.out, err), TS_INVALID_ARGUMENT, "f32[2,3]");
    ts_buffer_free(small);
    OK(ts_execute(p.x, p.in, p.out, err)); /* nothing of that did harm; new buffers are zero */
    OK(ts_wait(p.x, err));
    assert_true(total_of(p.out[1]) == 0);
    close_program(&p);
}

/* Two may be in flight; a third waits for the first, so that one less is left to wait for. */
static void in_flight(void **state)
{
    (void)state;
    program p = open_program(1);
    ts_exec_stats s;
    OK(ts_wait(p.x, err)); /* nothing to wait for */
    put(p.in[0], 0, 0);
    for (int i = 1; i <= 5; i++) {
        put(p.in[1], (float)i, 0); /* while the one before may still be reading it */
        OK(ts_execute(p.x, p.in, p.out, err));
        assert_int_equal(((ts_xla_executable *)p.x)->in_flight, i < 2 ? i : 2);
    }
    p.x->vtable->stats(p.x, &s);
    assert_int_equal(s.executes, 3);
    OK(ts_wait(p.x, err));
    p.x->vtable->stats(p.x, &s);
    assert_int_equal(s.executes, 4);
    expect(p.out[0], 15, 0); /* waits for what writes it */
    OK(ts_wait(p.x, err));
    OK(ts_wait(p.x, err));
    p.x->vtable->stats(p.x, &s);
    assert_int_equal(s.executes, 5);
    close_program(&p);
}

/* Buffers of an execute in flight may go, and so may the executable before it was waited for. */
static void freed_in_flight(void **state)
{
    (void)state;
    program p = open_program(1);
    put(p.in[0], 1, 0);
    OK(ts_execute(p.x, p.in, p.out, err));
    ts_buffer_free(p.in[1]);
    ts_buffer_free(p.out[1]);
    OK(ts_buffer_new(p.e, 0, &p.g->top->arg[1]->type, &p.in[1], err));
    OK(ts_buffer_new(p.e, 0, &p.g->top->result[1]->type, &p.out[1], err));
    put(p.in[1], 2, 0);
    OK(ts_execute(p.x, p.in, p.out, err));
    ts_executable_free(p.x);
    OK(ts_compile(p.e, p.g, &p.x, err));
    expect(p.out[0], 3, 0);
    assert_true(total_of(p.out[1]) == 18);
    close_program(&p);
}

static void eight_devices(void **state)
{
    (void)state;
    program p = open_program(8);
    for (int d = 0; d < 8; d++) {
        put(p.in[2 * d], (float)d, 1);
        put(p.in[2 * d + 1], (float)(100 * d), 0);
    }
    for (int i = 0; i < 3; i++) OK(ts_execute(p.x, p.in, p.out, err));
    for (int d = 0; d < 8; d++) {
        expect(p.out[2 * d], (float)(301 * d), 1);
        assert_true(total_of(p.out[2 * d + 1]) == (float)(6 * 301 * d + 15));
    }
    ts_buffer *swap = p.in[3];
    p.in[3] = p.in[5];
    FAILS(ts_execute(p.x, p.in, p.out, err), TS_INVALID_ARGUMENT, "on device 2, expected 1");
    p.in[3] = swap;
    close_program(&p);
}

/* state ← (state + x) / 2 + the mean over the devices, eight times in a loop with a collective in each turn. */
static ts_graph *mixing(void)
{
    ts_builder *b = ts_builder_new("mixing");
    ts_value *state = ts_input(b, "state", TS_F32, TS_DIMS({NULL, 2}, {NULL, 3}));
    ts_value *x = ts_input(b, "x", TS_F32, TS_DIMS({NULL, 2}, {NULL, 3}));
    ts_graph *g = b->graph;
    g->axis[0].name = "data";
    g->axis[0].size = 8;
    g->n_axis = 1;
    ts_value *carry, *last;
    ts_repeat *r = ts_repeat_begin(b, 8, false, &state, 1, NULL, 0, &carry, NULL);
    ts_value *half = ts_mul(b, ts_add(b, carry, x), ts_scalar(b, 0.5, TS_F32));
    ts_attr sum = {.collective = {.axis = "data", .n = 8}};
    ts_value *all = ts__op(b, TS_OP_all_reduce, &half, 1, &sum);
    all = ts_mul(b, all, ts_scalar(b, 0.125, TS_F32));
    ts_repeat_end(b, r, &all, NULL, NULL, 0, &last);
    ts_output(b, "state", last, state);
    ts_output(b, "total", ts_reduce_sum(b, last, TS_INTS(0, 1)), NULL);
    return finish(b);
}

/* Two executes in flight, each on all devices with collectives that wait for each other, must not block each other. */
static void collectives_in_flight(void **state)
{
    (void)state;
    program p = {.devices = 8};
    p.e = open_engine(8, NULL);
    p.g = mixing();
    OK(ts_compile(p.e, p.g, &p.x, err));
    make_buffers(&p);
    for (int d = 0; d < 8; d++) {
        put(p.in[2 * d], (float)d, 0);
        put(p.in[2 * d + 1], 7, 0);
    }
    for (int i = 0; i < 40; i++) OK(ts_execute(p.x, p.in, p.out, err));
    OK(ts_wait(p.x, err));
    OK(ts_wait(p.x, err));
    for (int d = 0; d < 8; d++) expect(p.out[2 * d], 7, 0); /* every state comes to x */
    close_program(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(describes),
        cmocka_unit_test(refuses_options),
        cmocka_unit_test(bytes_come_back),
        cmocka_unit_test(pieces),
        cmocka_unit_test(scalars_and_nothing),
        cmocka_unit_test(donates),
        cmocka_unit_test(checks_buffers),
        cmocka_unit_test(in_flight),
        cmocka_unit_test(freed_in_flight),
        cmocka_unit_test(eight_devices),
        cmocka_unit_test(collectives_in_flight),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
