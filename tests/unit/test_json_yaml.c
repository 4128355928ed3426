/* test_json_yaml.c – the two readers: what they accept, what they refuse and how they say it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

#include "base/json.h"
#include "base/yaml.h"

static void json_refused(const char *text, size_t n, const char *part)
{
    json_t *j = (json_t *)1;
    ts_error err = {0};
    ts_status status = ts_json_parse(text, n, 64, "f.json", &j, &err);
    if (status == TS_OK || !strstr(err.msg, part)) print_message("%.60s -> %s\n", text, err.msg);
    assert_int_equal(status, TS_DATA_LOSS);
    assert_null(j);
    assert_non_null(strstr(err.msg, "f.json"));
    assert_non_null(strstr(err.msg, part));
}
#define JSON_REFUSED(text, part) json_refused(text, strlen(text), part)

static void test_json(void **state)
{
    (void)state;
    json_t *j;
    ts_error err = {0};
    assert_int_equal(ts_json_parse("{\"a\":[1,2.5,\"x]}\"]}z", 19, 2, "f", &j, &err), TS_OK);
    assert_int_equal(json_array_size(json_object_get(j, "a")), 3);
    json_decref(j);
    assert_int_equal(ts_json_parse("\"word\"", 6, 1, "f", &j, &err), TS_OK);
    json_decref(j);
    JSON_REFUSED("", "is empty");
    JSON_REFUSED(" \n", "is empty");
    JSON_REFUSED("{\"a\":1,\n \"a\":2}", "f.json:2:");
    JSON_REFUSED("{\"a\":1,\n \"a\":2}", "duplicate");
    JSON_REFUSED("{\"a\":1", "f.json:1:");
    JSON_REFUSED("{\"a\":1} x", "f.json:1:");
    JSON_REFUSED("[01]", "f.json:1:");
    JSON_REFUSED("[1e999]", "f.json:1:");
    JSON_REFUSED("[\"\\u0000\"]", "f.json:1:");
    JSON_REFUSED("[\"\xff\"]", "f.json:1:");
    JSON_REFUSED("\xef\xbb\xbf{}", "byte order mark");
    json_refused("[1]\0", 4, "f.json:1:");
    JSON_REFUSED("[\"\\u0000\"]", "a string holds the character \\u0000; remove it");
    JSON_REFUSED("{\"\\u0000\": 1}", "\\u0000");
    JSON_REFUSED("[99999999999999999999]", "too big");
    JSON_REFUSED("{\"a\":1} x", "more text behind the end of the value");
    json_refused("\0", 1, "f.json:1:");
}

static void test_json_depth(void **state)
{
    (void)state;
    size_t n = 100000;
    char *text = ts_alloc(n);
    memset(text, '[', n);
    json_refused(text, n, "f.json:1:65: JSON is nested deeper than 64 levels");
    for (size_t i = 0; i < n; i++) text[i] = "{\"a\":"[i % 5];
    json_refused(text, n, "nested deeper");
    memset(text, '"', n);
    memset(text + 1, '[', n - 2);
    json_t *j;
    ts_error err = {0};
    assert_int_equal(ts_json_parse(text, n, 1, "f", &j, &err), TS_OK); /* brackets in a string */
    json_decref(j);
    ts_free(text);
}

static void test_json_memory(void **state)
{
    (void)state;
    const char *text = "{\"a\":[1,2,{\"b\":\"cc\"}],\"d\":null}";
    for (uint64_t nth = 1;; nth++) {
        json_t *j;
        ts_error err = {0};
        uint64_t before = ts_alloc_count();
        ts_alloc_fail_at(nth);
        ts_status status = ts_json_parse(text, strlen(text), 8, "f", &j, &err);
        ts_alloc_fail_at(0);
        if (status == TS_OK) {
            assert_true(nth > 5 && ts_alloc_count() - before < nth);
            json_decref(j);
            break;
        }
        assert_int_equal(status, TS_RESOURCE_EXHAUSTED);
        assert_null(j);
    }
}

static const ts_yaml *yaml(ts_arena *a, const char *text)
{
    const ts_yaml *y;
    ts_error err = {0};
    ts_status status = ts_yaml_parse(text, strlen(text), "f.yml", a, &y, &err);
    if (status != TS_OK) print_message("%s\n", err.msg);
    assert_int_equal(status, TS_OK);
    return y;
}

static void yaml_refused(const char *text, size_t n, const char *part)
{
    ts_arena *a = ts_arena_new();
    const ts_yaml *y;
    ts_error err = {0};
    ts_status status = ts_yaml_parse(text, n, "f.yml", a, &y, &err);
    if (status == TS_OK || !strstr(err.msg, part)) print_message("%.60s -> %s\n", text, err.msg);
    assert_int_equal(status, TS_INVALID_ARGUMENT);
    assert_null(y);
    assert_non_null(strstr(err.msg, part));
    ts_arena_free(a);
}
#define YAML_REFUSED(text, part) yaml_refused(text, strlen(text), part)

static void test_yaml_tree(void **state)
{
    (void)state;
    ts_arena *a = ts_arena_new();
    const ts_yaml *y =
        yaml(a, "# a comment\nsteps: 1_000\nlora:\n  rank: 8\n  on: true\nlist: [a, 'b', 3.e-5]\n"
                "empty:\n\"quoted key\": \"12\"\n");
    assert_int_equal(y->kind, TS_YAML_MAP);
    assert_int_equal(y->n, 5);
    const ts_yaml *steps = ts_yaml_get(y, "steps");
    int64_t i;
    assert_true(ts_yaml_as_i64(steps, &i) && i == 1000);
    assert_int_equal(steps->line, 2);
    assert_string_equal(steps->key, "steps");
    assert_true(ts_yaml_as_i64(ts_yaml_get(ts_yaml_get(y, "lora"), "rank"), &i) && i == 8);
    const ts_yaml *list = ts_yaml_get(y, "list");
    assert_int_equal(list->n, 3);
    assert_true(list->child[1]->quoted);
    assert_null(list->child[1]->key);
    double d;
    assert_true(ts_yaml_as_f64(list->child[2], &d) && d == 3e-5);
    assert_true(ts_yaml_is_null(ts_yaml_get(y, "empty")));
    assert_false(ts_yaml_as_i64(ts_yaml_get(y, "quoted key"), &i));
    assert_null(ts_yaml_get(y, "absent"));
    assert_null(ts_yaml_get(list, "a"));
    assert_int_equal(yaml(a, "")->kind, TS_YAML_MAP);
    assert_int_equal(yaml(a, "# nothing\n---\n")->n, 0);
    assert_int_equal(yaml(a, "[1, 2]")->n, 2);
    assert_string_equal(yaml(a, "5")->text, "5");
    ts_arena_free(a);
}

/* A mark in front, and lines that end as elsewhere, are the same document. */
static void test_yaml_encodings(void **state)
{
    (void)state;
    ts_arena *a = ts_arena_new();
    const ts_yaml *y = yaml(a, "\xef\xbb\xbf"
                               "a: 1\r\nb:\r\n  c: 'x y'  # z\r\nd: [e,\r\n f]\r\n");
    assert_int_equal(y->n, 3);
    assert_string_equal(y->child[0]->key, "a");
    assert_string_equal(y->child[0]->text, "1");
    assert_string_equal(ts_yaml_get(ts_yaml_get(y, "b"), "c")->text, "x y");
    assert_int_equal(ts_yaml_get(y, "d")->n, 2);
    assert_int_equal(ts_yaml_get(y, "d")->line, 4);
    assert_int_equal(yaml(a, "\xef\xbb\xbf")->n, 0);
    ts_arena_free(a);
    yaml_refused("\xff\xfe"
                 "a\0:\0 \0"
                 "1\0",
                 10, "f.yml:1: is UTF-16 text");
    yaml_refused("\xfe\xff\0a\0:\0 \0"
                 "1",
                 10, "iconv");
    yaml_refused("a\0:\0 \0"
                 "1\0",
                 8, "is UTF-16 text");
    yaml_refused("\0a\0:\0 \0"
                 "1",
                 8, "is UTF-16 text");
}

static void test_yaml_refuses(void **state)
{
    (void)state;
    YAML_REFUSED("a: 1\nb: 2\na: 3\n", "f.yml:3: the key \"a\" occurs twice (first on line 1)");
    YAML_REFUSED("x: {a: 1, 'a': 2}", "occurs twice");
    YAML_REFUSED("a: &x 1\n", "f.yml:1: anchors");
    YAML_REFUSED("a: &x [1]\n", "anchors");
    YAML_REFUSED("a: 1\nb: *x\n", "f.yml:2: aliases");
    YAML_REFUSED("a: &a [l,l]\nb: &b [*a,*a,*a]\nc: [*b,*b,*b]\n", "anchors");
    YAML_REFUSED("a: !!int 3", "tags");
    YAML_REFUSED("a: !py {}", "tags");
    YAML_REFUSED("a: ! 3", "tags");
    YAML_REFUSED("a: 1\n---\nb: 1\n", "second document");
    YAML_REFUSED("<<: {a: 1}", "merge key");
    YAML_REFUSED("{[a]: 1}", "a key must be");
    YAML_REFUSED("\"\": 1", "a key is empty");
    YAML_REFUSED("a: \"x\\0y\"", "NUL");
    YAML_REFUSED("a: [1, 2", "not valid YAML");
    YAML_REFUSED("a: b: c", "f.yml:1: not valid YAML");
    YAML_REFUSED("a: \x01", "not valid YAML");
    YAML_REFUSED("a: \xff\xfe", "not valid YAML");
    yaml_refused("a: \0", 4, "not valid YAML");
    size_t n = 100000;
    char *deep = ts_alloc(n);
    memset(deep, '[', n);
    yaml_refused(deep, n, "nested deeper than 64 levels");
    for (size_t i = 0; i < n; i++) deep[i] = "- "[i % 2];
    yaml_refused(deep, n, "nested deeper than 64 levels");
    for (size_t i = 0; i < n; i++) deep[i] = "{a: "[i % 4];
    yaml_refused(deep, n, "nested deeper than 64 levels");
    ts_free(deep);
}

static ts_yaml plain(const char *text)
{
    return (ts_yaml){.kind = TS_YAML_SCALAR, .text = text};
}

static void test_yaml_words(void **state)
{
    (void)state;
    const char *yes[] = {"true", "True", "TRUE", "yes", "Yes", "on", "ON"},
               *no[] = {"false", "No", "OFF"};
    const char *neither[] = {"y", "n", "1", "0", "tRue", "", "yess"};
    bool b;
    for (size_t i = 0; i < 7; i++) {
        ts_yaml v = plain(yes[i]), w = plain(neither[i]);
        assert_true(ts_yaml_as_bool(&v, &b) && b);
        assert_false(ts_yaml_as_bool(&w, &b));
        v.quoted = true;
        assert_false(ts_yaml_as_bool(&v, &b));
    }
    for (size_t i = 0; i < 3; i++) {
        ts_yaml v = plain(no[i]);
        assert_true(ts_yaml_as_bool(&v, &b) && !b);
    }
    ts_yaml v = plain("~");
    assert_true(ts_yaml_is_null(&v));
    v.quoted = true;
    assert_false(ts_yaml_is_null(&v));
    v = plain("none");
    assert_false(ts_yaml_is_null(&v));
    assert_false(ts_yaml_is_null(NULL));
}

static void test_yaml_numbers(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t value;
    } ints[] = {
        {"0", 0},
        {"-7", -7},
        {"+7", 7},
        {"1_000_000", 1000000},
        {"0x1F", 31},
        {"0b101", 5},
        {"017", 15},
        {"9223372036854775807", INT64_MAX},
        {"-9223372036854775808", INT64_MIN},
        {"-0x10", -16},
    };
    static const char *const not_ints[] = {"",
                                           "-",
                                           "1.0",
                                           "1e3",
                                           "0x",
                                           "08",
                                           "9223372036854775808",
                                           "_1",
                                           "-9223372036854775809",
                                           "1 2",
                                           "0xg",
                                           "12:30",
                                           "abc",
                                           "0b2"};
    static const struct {
        const char *text;
        double value;
    } floats[] = {
        {"3.e-5", 3e-5}, {"3.e5", 3e5},      {"1e-3", 1e-3},       {".5", .5},
        {"-.5", -.5},    {"5.", 5},          {"1_000.5", 1000.5},  {"1E+2", 100},
        {"42", 42},      {".inf", INFINITY}, {"-.INF", -INFINITY}, {"6.02e23", 6.02e23},
    };
    static const char *const not_floats[] = {"",    ".",     "e5",    "1e",  "1e+",  "1.2.3", "inf",
                                             "nan", "0x1p3", "1e999", "--1", "1.5f", "- 1"};
    int64_t i;
    double d;
    for (size_t k = 0; k < sizeof ints / sizeof ints[0]; k++) {
        ts_yaml v = plain(ints[k].text);
        assert_true(ts_yaml_as_i64(&v, &i));
        assert_true(i == ints[k].value);
    }
    for (size_t k = 0; k < sizeof not_ints / sizeof not_ints[0]; k++) {
        ts_yaml v = plain(not_ints[k]);
        if (ts_yaml_as_i64(&v, &i)) fail_msg("%s is no integer", not_ints[k]);
    }
    for (size_t k = 0; k < sizeof floats / sizeof floats[0]; k++) {
        ts_yaml v = plain(floats[k].text);
        if (!ts_yaml_as_f64(&v, &d)) fail_msg("%s is a number", floats[k].text);
        assert_true(d == floats[k].value);
    }
    for (size_t k = 0; k < sizeof not_floats / sizeof not_floats[0]; k++) {
        ts_yaml v = plain(not_floats[k]);
        if (ts_yaml_as_f64(&v, &d)) fail_msg("%s is no number", not_floats[k]);
    }
    ts_yaml v = plain(".nan");
    assert_true(ts_yaml_as_f64(&v, &d) && isnan(d));
}

static void test_yaml_memory(void **state)
{
    (void)state;
    const char *text = "a: [1, 2, {b: c}]\nd: {e: f, g: h}\n";
    for (uint64_t nth = 1;; nth++) {
        ts_arena *a = ts_arena_new();
        const ts_yaml *y;
        ts_error err = {0};
        ts_alloc_fail_at(nth);
        ts_status status = ts_yaml_parse(text, strlen(text), "f", a, &y, &err);
        ts_alloc_fail_at(0);
        ts_arena_free(a);
        if (status == TS_OK) {
            assert_true(nth > 4);
            break;
        }
        assert_int_equal(status, TS_RESOURCE_EXHAUSTED);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json),           cmocka_unit_test(test_json_depth),
        cmocka_unit_test(test_json_memory),    cmocka_unit_test(test_yaml_tree),
        cmocka_unit_test(test_yaml_refuses),   cmocka_unit_test(test_yaml_words),
        cmocka_unit_test(test_yaml_numbers),   cmocka_unit_test(test_yaml_memory),
        cmocka_unit_test(test_yaml_encodings),
    };
    return cmocka_run_group_tests_name("json and yaml", tests, NULL, NULL);
}
