/* test_compile_options.c – the bytes of compile options, read back field by field with a decoder of their own. */
#include "unit/ir_help.h"
#include "xla/compile_options.h"

typedef struct field {
    int number, kind;
    uint64_t v;       /* varint, or the eight bytes of a fixed64 */
    const uint8_t *p; /* bytes */
    size_t n;
} field;

static uint64_t varint(const uint8_t **p, const uint8_t *end)
{
    uint64_t v = 0;
    for (int shift = 0;; shift += 7) {
        assert_true(*p < end && shift < 70);
        uint8_t byte = *(*p)++;
        v |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) return v;
    }
}

static field next(const uint8_t **p, const uint8_t *end)
{
    uint64_t key = varint(p, end);
    field f = {.number = (int)(key >> 3), .kind = (int)(key & 7)};
    if (f.kind == 0) {
        f.v = varint(p, end);
    } else if (f.kind == 1) {
        assert_true(end - *p >= 8);
        memcpy(&f.v, *p, 8);
        *p += 8;
    } else {
        assert_int_equal(f.kind, 2);
        f.n = varint(p, end);
        assert_true((size_t)(end - *p) >= f.n);
        f.p = *p;
        *p += f.n;
    }
    return f;
}

/* The i-th field of this number; fails when there are fewer. */
static field nth(field in, int number, int i)
{
    for (const uint8_t *p = in.p, *end = in.p + in.n; p < end;) {
        field f = next(&p, end);
        if (f.number == number && i-- == 0) return f;
    }
    fail_msg("field %d is missing", number);
    return (field){0};
}

static int count_of(field in, int number)
{
    int n = 0;
    for (const uint8_t *p = in.p, *end = in.p + in.n; p < end;) n += next(&p, end).number == number;
    return n;
}

static ts_string written(const ts_compile_options *o)
{
    ts_string s = ts_string_new(1 << 20);
    OK(ts__compile_options_write(o, &s, &err));
    return s;
}

static field whole(const ts_string *s)
{
    return (field){.p = (const uint8_t *)s->data, .n = s->length};
}

/* One replica on the plugin's own choice of a device: no assignment. */
static void test_one(void **state)
{
    (void)state;
    ts_string s = written(&(ts_compile_options){.replicas = 1});
    field build = nth(whole(&s), 3, 0);
    assert_int_equal(count_of(whole(&s), 3), 1);
    assert_true(nth(build, 1, 0).v == UINT64_MAX); /* −1 */
    assert_int_equal(nth(build, 4, 0).v, 1);
    assert_int_equal(nth(build, 5, 0).v, 1);
    assert_int_equal(nth(build, 6, 0).v, 0);
    assert_int_equal(count_of(build, 9), 0);
    ts_string_free(&s);
}

static void check_devices(const int *id, const uint64_t want[3])
{
    ts_string s = written(&(ts_compile_options){.replicas = 3, .device_id = id});
    field assignment = nth(nth(whole(&s), 3, 0), 9, 0);
    assert_int_equal(nth(assignment, 1, 0).v, 3);
    assert_int_equal(nth(assignment, 2, 0).v, 1);
    assert_int_equal(count_of(assignment, 3), 1);
    field ids = nth(nth(assignment, 3, 0), 1, 0); /* packed */
    const uint8_t *p = ids.p, *end = ids.p + ids.n;
    for (int i = 0; i < 3; i++) assert_true(varint(&p, end) == want[i]);
    assert_ptr_equal(p, end);
    ts_string_free(&s);
}

static void test_devices(void **state)
{
    (void)state;
    check_devices(NULL, (const uint64_t[]){0, 1, 2});
    check_devices((const int[]){5, 200001, 0}, (const uint64_t[]){5, 200001, 0});
    const int seven = 7;
    ts_string s = written(&(ts_compile_options){.replicas = 1, .device_id = &seven});
    field ids = nth(nth(nth(nth(whole(&s), 3, 0), 9, 0), 3, 0), 1, 0);
    assert_int_equal(ids.n, 1);
    assert_int_equal(ids.p[0], 7);
    ts_string_free(&s);
}

/* Partitions of one replica: the partitioner and its dialect are on, each partition is a computation of its own. */
static void test_partitions(void **state)
{
    (void)state;
    const int id[] = {5, 200001, 0};
    ts_string s = written(&(ts_compile_options){.replicas = 3, .device_id = id, .partitioned = true});
    field build = nth(whole(&s), 3, 0), assignment = nth(build, 9, 0);
    assert_int_equal(nth(build, 4, 0).v, 1);
    assert_int_equal(nth(build, 5, 0).v, 3);
    assert_int_equal(nth(build, 6, 0).v, 1);
    assert_int_equal(nth(build, 19, 0).v, 1);
    assert_int_equal(nth(assignment, 1, 0).v, 1);
    assert_int_equal(nth(assignment, 2, 0).v, 3);
    assert_int_equal(count_of(assignment, 3), 3);
    for (int i = 0; i < 3; i++) {
        field ids = nth(nth(assignment, 3, i), 1, 0);
        const uint8_t *p = ids.p;
        assert_true(varint(&p, ids.p + ids.n) == (uint64_t)id[i]);
        assert_ptr_equal(p, ids.p + ids.n);
    }
    ts_string_free(&s);
}

/* Entry i of the caller's flags: ours stands before them. */
static field flag(const ts_string *s, int i, const char *name)
{
    field entry = nth(whole(s), 7, i + 1), key = nth(entry, 1, 0);
    assert_int_equal(key.n, strlen(name));
    assert_memory_equal(key.p, name, key.n);
    return nth(entry, 2, 0);
}

static void test_flags(void **state)
{
    (void)state;
    const char *flags[] = {"xla_a=true", "--xla_b=false", "xla_c=-12",  "xla_d=1.5",
                           "xla_e=1e3",  "xla_f=/tmp/x=y", "xla_g=", "xla_h=nan"};
    ts_string s = written(&(ts_compile_options){.replicas = 1, .flag = flags, .n_flag = 8});
    double real;
    assert_int_equal(count_of(whole(&s), 7), 9);
    assert_int_equal(nth(flag(&s, 0, "xla_a"), 2, 0).v, 1);
    assert_int_equal(nth(flag(&s, 1, "xla_b"), 2, 0).v, 0);
    assert_true(nth(flag(&s, 2, "xla_c"), 3, 0).v == (uint64_t)-12);
    field f = nth(flag(&s, 3, "xla_d"), 4, 0);
    memcpy(&real, &f.v, 8);
    assert_true(f.kind == 1 && real == 1.5);
    f = nth(flag(&s, 4, "xla_e"), 4, 0);
    memcpy(&real, &f.v, 8);
    assert_true(real == 1000);
    f = nth(flag(&s, 5, "xla_f"), 1, 0);
    assert_int_equal(f.n, 8);
    assert_memory_equal(f.p, "/tmp/x=y", 8);
    assert_int_equal(nth(flag(&s, 6, "xla_g"), 1, 0).n, 0);
    assert_int_equal(nth(flag(&s, 7, "xla_h"), 1, 0).n, 3);
    field entry = nth(whole(&s), 7, 0), key = nth(entry, 1, 0);
    assert_memory_equal(key.p, "xla_cpu_enable_fast_min_max", key.n);
    assert_int_equal(nth(nth(entry, 2, 0), 2, 0).v, 0);
    ts_string_free(&s);
}

/* What a platform's compiler needs comes before the user's flags, the dump's folder last. */
static void test_platforms(void **state)
{
    (void)state;
    const char *flags[] = {"xla_tpu_scoped_vmem_limit_kib=32768"};
    const ts_compile_options o = {.replicas = 1, .flag = flags, .n_flag = 1};
    ts_error err = {0};
    ts_string tpu = ts_string_new(1 << 20), cpu = ts_string_new(1 << 20);
    assert_int_equal(ts__compile_options_for("tpu", &o, "/tmp/x", &tpu, &err), TS_OK);
    assert_int_equal(nth(flag(&tpu, 0, "xla_tpu_scoped_vmem_limit_kib"), 3, 0).v, 16384);
    assert_int_equal(nth(flag(&tpu, 1, "xla_jf_bf16_propagation"), 2, 0).v, 0);
    assert_int_equal(nth(flag(&tpu, 2, "xla_tpu_scoped_vmem_limit_kib"), 3, 0).v, 32768);
    assert_memory_equal(nth(flag(&tpu, 3, "xla_dump_to"), 1, 0).p, "/tmp/x", 6);
    assert_int_equal(ts__compile_options_for("cpu", &o, NULL, &cpu, &err), TS_OK);
    assert_int_equal(nth(flag(&cpu, 0, "xla_tpu_scoped_vmem_limit_kib"), 3, 0).v, 32768);
    assert_int_equal(count_of(whole(&cpu), 7), 2);
    ts_string_free(&tpu);
    ts_string_free(&cpu);
}

static void test_refusals(void **state)
{
    (void)state;
    const char *bad[] = {"xla_dump_to", "=x", ""};
    for (int i = 0; i < 3; i++) {
        ts_string s = ts_string_new(1 << 20);
        ts_error err = {0};
        assert_int_equal(ts__compile_options_write(
                             &(ts_compile_options){.replicas = 1, .flag = &bad[i], .n_flag = 1}, &s, &err),
                         TS_INVALID_ARGUMENT);
        assert_non_null(strstr(err.msg, "expected name=value"));
        ts_string_free(&s);
    }
    ts_string s = ts_string_new(1 << 20);
    ts_error err = {0};
    assert_int_equal(ts__compile_options_write(&(ts_compile_options){0}, &s, &err),
                     TS_INVALID_ARGUMENT);
    assert_non_null(strstr(err.msg, "a program for 0 devices"));
}

static void test_memory_out(void **state)
{
    (void)state;
    const char *flags[] = {"xla_a=true", "xla_b=text"};
    const ts_compile_options o = {.replicas = 4, .flag = flags, .n_flag = 2};
    bool passed = false;
    for (uint64_t n = 1; !passed && n < 100; n++) {
        ts_string s = ts_string_new(1 << 20);
        ts_error err = {0};
        ts_alloc_fail_at(n);
        ts_status status = ts__compile_options_for("tpu", &o, "/tmp/x", &s, &err);
        ts_alloc_fail_at(0);
        passed = status == TS_OK;
        if (!passed) assert_int_equal(status, TS_RESOURCE_EXHAUSTED);
        ts_string_free(&s);
    }
    assert_true(passed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one),      cmocka_unit_test(test_devices),
        cmocka_unit_test(test_flags),    cmocka_unit_test(test_platforms),
        cmocka_unit_test(test_refusals), cmocka_unit_test(test_memory_out),
        cmocka_unit_test(test_partitions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
