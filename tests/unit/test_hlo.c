/* test_hlo.c – sums over small modules, counted by hand; texts that are no modules. The modules are the fuzz corpus. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "xla/hlo.h"

static char *text;
static ts_hlo *hlo;

static const ts_hlo_mesh four = {2, {4, 4}};

static void summary_on(const ts_hlo_mesh *mesh, const char *name, ts_hlo_summary *s)
{
    char path[200];
    size_t n;
    ts_error err = {0};
    snprintf(path, sizeof path, "tests/fuzz/corpus/hlo/%s", name);
    if (ts_file_read_all(path, 1 << 20, &text, &n, &err) != TS_OK ||
        ts__hlo_parse(text, n, &hlo, &err) != TS_OK ||
        ts__hlo_summarize(hlo, mesh, s, &err) != TS_OK)
        fail_msg("%s: %s", name, err.msg);
}

static void summary_of(const char *name, ts_hlo_summary *s) { summary_on(NULL, name, s); }

static void release(ts_hlo_summary *s)
{
    ts__hlo_summary_free(s);
    ts__hlo_free(hlo);
    ts_free(text);
}

static void test_dot(void **state)
{
    (void)state;
    ts_hlo_summary s;
    ts_hlo_value v;
    summary_of("dot", &s);
    assert_true(s.flops == 2 * 8 * 4 * 16);
    assert_true(s.bytes == 4 * (8 * 16 + 16 * 4 + 8 * 4));
    assert_int_equal(s.n_collective, 0);
    assert_true(ts__hlo_find(hlo, "y", 1, -1, &v));
    assert_string_equal(v.name, "layers.3.up_proj (llama.c):41");
    assert_string_equal(v.shape, "f32[8,4]");
    assert_string_equal(v.op, "dot");
    assert_int_equal(v.parameter, -1);
    assert_true(ts__hlo_find(hlo, "w", 1, -1, &v));
    assert_int_equal(v.parameter, 1);
    assert_int_equal(v.bytes, 16 * 4 * 4);
    assert_false(ts__hlo_find(hlo, "none", 4, -1, &v));
    release(&s);
}

/* Five runs, from 2 to 7. A run reads one of five matrices and writes one of five rows in place. */
static void test_loop(void **state)
{
    (void)state;
    ts_hlo_summary s;
    ts_hlo_value v;
    summary_of("loop", &s);
    assert_int_equal(s.unknown_loops, 0);
    assert_true(s.flops == 5 * 2 * 4 * 16 * 16);
    double row = 4 * 16 * 2, matrix = 16 * 16 * 2, index = 4;
    double product = matrix + row + index + row, reduce = 2 * row, stack = row + index + row;
    double body = product + reduce + stack + 3 * index; /* and the counter's addition */
    assert_true(s.bytes == 5 * body + 2 * index);       /* and the counter's copy */
    assert_int_equal(s.n_collective, 1);
    assert_string_equal(s.collective[0].op, "all-reduce");
    assert_string_equal(s.collective[0].name, "layers.0.o_proj (llama.c):35");
    assert_int_equal(s.collective[0].group, 2);
    assert_int_equal(s.collective[0].sites, 1);
    assert_int_equal(s.collective[0].count, 5);
    assert_int_equal(s.collective[0].bytes, 5 * 128);
    assert_false(s.collective[0].asynchronous);
    assert_true(ts__hlo_find(hlo, "while", 5, 3, &v));
    assert_string_equal(v.shape, "bf16[5,4,16]");
    assert_int_equal(v.bytes, 5 * 4 * 16 * 2);
    release(&s);
}

static void test_async(void **state)
{
    (void)state;
    ts_hlo_summary s;
    summary_of("async", &s);
    assert_int_equal(s.n_collective, 3);
    static const struct {
        const char *op;
        int64_t group, bytes;
        bool asynchronous;
        const char *name;
    } row[] = {{"collective-permute", 0, 64, false, "odd"},
               {"all-gather-start", 4, 64, true, "layers.0.gate_proj (llama.c):28"},
               {"reduce-scatter", 4, 256, true, ""}};
    ts_hlo_value v;
    assert_true(ts__hlo_find(hlo, "sl", 2, -1, &v));
    assert_string_equal(v.name, "loss");
    for (size_t i = 0; i < 3; i++) {
        const ts_hlo_collective *c = NULL;
        for (size_t k = 0; k < 3; k++)
            if (strcmp(s.collective[k].op, row[i].op) == 0) c = &s.collective[k];
        assert_non_null(c);
        assert_int_equal(c->group, row[i].group);
        assert_int_equal(c->count, 1);
        assert_int_equal(c->bytes, row[i].bytes);
        assert_int_equal(c->asynchronous, row[i].asynchronous);
        assert_string_equal(c->name, row[i].name);
    }
    /* gather 64 + 256, scatter 256 + 64, copy out 64, permute in 64, slice 16 + 16; on-chip values are free */
    assert_true(s.bytes == 320 + 320 + 64 + 64 + 32);
    release(&s);
}

/* In both ways to write groups: which axis of a mesh they run along. */
static void test_groups(void **state)
{
    (void)state;
    ts_hlo_summary s;
    summary_of("groups", &s);
    static const int64_t row[4][3] = {{4, 1, 2}, {4, 4, 2}, {2, 4, 1}, {2, 0, 1}}; /* size, stride, sites */
    assert_int_equal(s.n_collective, 4);
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(s.collective[i].group, row[i][0]);
        assert_int_equal(s.collective[i].stride, row[i][1]);
        assert_int_equal(s.collective[i].sites, row[i][2]);
    }
    release(&s);
}

static const ts_hlo_collective *row_of(const ts_hlo_summary *s, const char *op, uint16_t axes, bool asynchronous)
{
    for (size_t i = 0; i < s->n_collective; i++)
        if (strcmp(s->collective[i].op, op) == 0 && s->collective[i].axes == axes &&
            s->collective[i].asynchronous == asynchronous)
            return &s->collective[i];
    fail_msg("no %s over axes %x", op, (unsigned)axes);
    return NULL;
}

static void check_row(const ts_hlo_summary *s, const char *op, uint16_t axes, bool asynchronous, int64_t count,
                      int64_t bytes, int64_t overlapped_bytes)
{
    const ts_hlo_collective *c = row_of(s, op, axes, asynchronous);
    assert_int_equal(c->count, count);
    assert_int_equal(c->bytes, bytes);
    assert_int_equal(c->overlapped_bytes, overlapped_bytes);
    assert_true((c->overlapped > 0) == (overlapped_bytes > 0));
}

/* Axis 0 has devices 4 apart, axis 1 neighbours. A loop of eight: along axis 0 a permute whose done follows at once,
 * then one with a fused product in between; along axis 1, backwards, one with a product in a fusion in a call. */
static void test_overlap(void **state)
{
    enum { PIECE = 16 * 64 * 2, WHOLE = 64 * 64 * 2, MAJOR = 1, MINOR = 2 };
    (void)state;
    ts_hlo_summary s;
    summary_on(&four, "overlap", &s);
    check_row(&s, "collective-permute-start", MAJOR, true, 16, 16 * WHOLE, 8 * WHOLE);
    check_row(&s, "collective-permute-start", MINOR, true, 8, 8 * WHOLE, 8 * WHOLE);
    assert_int_equal(row_of(&s, "collective-permute-start", MAJOR, true)->shift, 1);
    assert_int_equal(row_of(&s, "collective-permute-start", MINOR, true)->shift, -1);
    check_row(&s, "all-gather-start", MINOR, true, 1, PIECE, 0);    /* elementwise work hides nothing */
    check_row(&s, "reduce-scatter", MAJOR, true, 1, WHOLE, WHOLE);  /* in an async-start */
    check_row(&s, "all-gather", MINOR, true, 1, PIECE, PIECE);      /* fused with its product */
    check_row(&s, "all-gather", MAJOR, true, 1, PIECE, PIECE);      /* a fusion that starts, one that waits */
    check_row(&s, "all-reduce", MAJOR | MINOR, false, 1, WHOLE, 0); /* all devices */
    check_row(&s, "all-reduce", MAJOR, false, 1, WHOLE, 0);
    assert_true(row_of(&s, "all-reduce", MAJOR, false)->sliced);
    assert_false(row_of(&s, "all-reduce", MAJOR | MINOR, false)->sliced);
    check_row(&s, "all-to-all", 0, false, 1, 2 * PIECE, 0); /* half of an axis is none */
    assert_int_equal(s.n_collective, 9);
    release(&s);
    static const ts_hlo_mesh three = {3, {2, 2, 4}};
    summary_on(&three, "overlap", &s);
    check_row(&s, "reduce-scatter", 1 | 2, true, 1, WHOLE, WHOLE);
    check_row(&s, "all-to-all", 2, false, 1, 2 * PIECE, 0);
    assert_int_equal(row_of(&s, "collective-permute-start", 1 | 2, true)->shift, 0);
    release(&s);
    static const ts_hlo_mesh eight = {1, {8}}; /* not this program's: nothing is claimed */
    summary_on(&eight, "overlap", &s);
    for (size_t i = 0; i < s.n_collective; i++)
        assert_true(s.collective[i].axes == 0 || strcmp(s.collective[i].op, "all-reduce") == 0);
    release(&s);
}

/* Groups by the axes of a mesh, which need not be ours, and by parts of an axis. */
static void test_mesh(void **state)
{
    static const ts_hlo_mesh three = {3, {4, 2, 2}};
    (void)state;
    ts_hlo_summary s;
    summary_on(&three, "mesh", &s);
    check_row(&s, "all-reduce", 1, false, 1, 64, 0);
    assert_int_equal(row_of(&s, "all-reduce", 1, false)->group, 4);
    assert_int_equal(row_of(&s, "all-reduce", 1, false)->stride, 4);
    check_row(&s, "all-reduce", 7, false, 1, 64, 0);
    check_row(&s, "all-gather", 6, false, 1, 64, 0);
    check_row(&s, "all-gather", 4, false, 1, 64, 0);
    check_row(&s, "all-to-all", 2, false, 1, 64, 0);
    check_row(&s, "all-reduce", 0, false, 1, 64, 0); /* in an order of its own: unknown */
    check_row(&s, "reduce-scatter", 0, false, 1, 64, 0); /* a cut axis is not cut again */
    release(&s);
}

/* Without a schedule the order of the lines is none. */
static void test_unscheduled(void **state)
{
    (void)state;
    ts_hlo_summary s;
    ts_error err = {0};
    size_t n;
    assert_int_equal(ts_file_read_all("tests/fuzz/corpus/hlo/overlap", 1 << 20, &text, &n, &err), TS_OK);
    memcpy(strstr(text, "is_scheduled=true"), "was_scheduled=yes", 17);
    assert_int_equal(ts__hlo_parse(text, n, &hlo, &err), TS_OK);
    assert_int_equal(ts__hlo_summarize(hlo, &four, &s, &err), TS_OK);
    check_row(&s, "collective-permute-start", 1, true, 16, 16 * 8192, 0);
    check_row(&s, "all-gather", 2, true, 1, 2048, 2048); /* one fusion needs no order */
    release(&s);
}

static void test_dilated(void **state)
{
    (void)state;
    ts_hlo_summary s;
    summary_of("dilated", &s);
    assert_true(s.flops == 2.0 * 8 * 128 * 32 * 64); /* each batch element meets itself alone */
    release(&s);
}

static void test_known(void **state)
{
    (void)state;
    ts_hlo_summary s;
    summary_of("known", &s);
    assert_int_equal(s.unknown_loops, 1);
    assert_true(s.bytes == (100 + 1) * 3 * 16); /* a loop that does not tell is taken once */
    release(&s);
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } row[] = {
        {"", "line 1: no HloModule"},
        {"HloModul x\n", "line 1: no HloModule"},
        {"HloModule x\n", "no ENTRY"},
        {"HloModule x\n\nENTRY %m (p: f32[]) -> f32[] {\n", "ends within a computation"},
        {"HloModule x\nENTRY %m () -> f32[] {\n}\n", "line 3: a computation without instructions"},
        {"HloModule x\nENTRY %m () -> f32[] {\n %a f32[]\n}\n", "line 3: no instruction"},
        {"HloModule x\nENTRY %m () -> f32[] {\n %a = f33[] parameter(0)\n}\n", "line 3: no type"},
        {"HloModule x\nENTRY %m () -> f32[] {\n %a = f32[2 parameter(0)\n}\n", "line 3: a shape"},
        {"HloModule x\nENTRY %m () -> f32[] {\n %a = f32[4294967296,4294967296] parameter(0)\n}\n",
         "line 3: a shape beyond 64 bits"},
        {"HloModule x\nENTRY %m () -> f32[] {\n %a = f32[99999999999999999999] parameter(0)\n}\n",
         "line 3: a size beyond 64 bits"},
        {"HloModule x\nENTRY %m () -> f32[] {\n %a = f32[] parameter(x)\n}\n", "without a number"},
        {"HloModule x\nENTRY %m () -> f32[] {\n %a = f32[] parameter(0\n}\n", "operands without )"},
        {"HloModule x\nENTRY %m () -> f32[] {\n %a = f32[] negate(%b)\n}\n",
         "line 3: an operand that is not above"},
        {"HloModule x\nENTRY %m () -> f32[] {\n %a = f32[] parameter(0)\n %a = f32[] negate(%a)\n}\n",
         "line 4: a name that is taken"},
        {"HloModule x\nENTRY %m () -> f32[] {\n %a = (f32[], f32[]) parameter(0)\n %b = f32[] "
         "negate(%a#2)\n}\n",
         "line 4: no such element"},
        {"HloModule x\nENTRY %m () -> f32[] {\n %a = "
         "((((((((((((((((((f32[])))))))))))))))))) parameter(0)\n}\n",
         "nested beyond 16"},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        ts_error err = {0};
        ts_hlo *h;
        assert_int_equal(ts__hlo_parse(row[i].text, strlen(row[i].text), &h, &err), TS_DATA_LOSS);
        assert_null(h);
        if (!strstr(err.msg, row[i].says)) fail_msg("%zu: %s", i, err.msg);
    }
}

/* Each allocation fails once: an error, nothing leaked, nothing read. */
static void test_memory(void **state)
{
    (void)state;
    size_t n;
    assert_int_equal(ts_file_read_all("tests/fuzz/corpus/hlo/loop", 1 << 20, &text, &n, NULL), TS_OK);
    for (uint64_t nth = 1;; nth++) {
        ts_hlo_summary s;
        ts_error err = {0};
        ts_hlo *h = NULL;
        ts_alloc_fail_at(nth);
        ts_status status = ts__hlo_parse(text, n, &h, &err);
        if (status == TS_OK) status = ts__hlo_summarize(h, &four, &s, &err);
        ts_alloc_fail_at(0);
        if (status == TS_OK) ts__hlo_summary_free(&s);
        ts__hlo_free(h);
        if (status == TS_OK) break;
        assert_int_equal(status, TS_RESOURCE_EXHAUSTED);
    }
    ts_free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dot),     cmocka_unit_test(test_loop),  cmocka_unit_test(test_async),
        cmocka_unit_test(test_groups), cmocka_unit_test(test_overlap), cmocka_unit_test(test_mesh),
        cmocka_unit_test(test_unscheduled),
        cmocka_unit_test(test_dilated), cmocka_unit_test(test_known), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
