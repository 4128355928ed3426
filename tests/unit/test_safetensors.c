/* test_safetensors.c – the strict reader, one malformation at a time; the writer; model folders. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/file.h"
#include "ckpt/safetensors.h"

static char root[64];

static const char *in_root(const char *name)
{
    static char path[4][1024];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof path[turn], "%s/%s", root, name);
    return path[turn];
}

static int make_root(void **state)
{
    (void)state;
    /* In memory where possible: hundreds of synced saves and cut files, and no disk's speed matters. */
    const char *base = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    snprintf(root, sizeof root, "%s/tessera-tensors-XXXXXX", base);
    return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state)
{
    (void)state;
    ts_error err = {0};
    return ts_remove_tree(root, &err) == TS_OK ? 0 : -1;
}

static void put(const char *path, const void *data, size_t n)
{
    ts_writer *w;
    ts_error err = {0};
    assert_int_equal(ts_writer_open(path, false, &w, &err), TS_OK);
    assert_int_equal(ts_writer_write(w, data, n, &err), TS_OK);
    assert_int_equal(ts_writer_close(w, false, &err), TS_OK);
}

/* length word, header, then `data` bytes 0, 1, 2 … */
static void put_tensors(const char *path, uint64_t length, const char *header, size_t header_bytes,
                        size_t data)
{
    size_t n = 8 + header_bytes + data;
    unsigned char *all = ts_alloc(n);
    for (int i = 0; i < 8; i++) all[i] = (unsigned char)(length >> 8 * i);
    memcpy(all + 8, header, header_bytes);
    for (size_t i = 0; i < data; i++) all[8 + header_bytes + i] = (unsigned char)i;
    put(path, all, n);
    ts_free(all);
}

static void refused_bytes(const char *path, const char *part)
{
    ts_tensors *t = (ts_tensors *)1;
    ts_error err = {0};
    ts_status status = ts_tensors_open(path, &t, &err);
    if (status != TS_DATA_LOSS || !strstr(err.msg, part))
        print_message("wanted %s, got %s\n", part, err.msg);
    assert_int_equal(status, TS_DATA_LOSS);
    assert_null(t);
    assert_non_null(strstr(err.msg, part));
    assert_non_null(strstr(err.msg, path));
}

static void refused(const char *header, size_t data, const char *part)
{
    put_tensors(in_root("bad"), strlen(header), header, strlen(header), data);
    refused_bytes(in_root("bad"), part);
}

#define T(name, dtype, shape, begin, end)                                                          \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end \
    "]}"

static void test_accepts(void **state)
{
    (void)state;
    static const char *const good[] = {
        "{}",
        "{} \n\t\r ",
        "{\"__metadata__\":{}}",
        "{ \"__metadata__\" : { \"a\" : \"b\" , \"c\":\"d\" } }",
        "{" T("e", "F32", "[0,5]", 0, 0) "}",
        "{" T("a", "F32", "[0]", 0, 0) "," T("b", "F64", "[3,0]", 0, 0) "}",
        "{" T("a", "F32", "[0,281474976710655,281474976710655]", 0, 0) "}",
    };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        ts_tensors *t;
        ts_error err = {0};
        put_tensors(in_root("good"), strlen(good[i]), good[i], strlen(good[i]), 0);
        ts_status status = ts_tensors_open(in_root("good"), &t, &err);
        if (status != TS_OK && i == 6) { /* the product overflows: refused too */
            assert_non_null(strstr(err.msg, "overflows"));
            continue;
        }
        if (status != TS_OK) print_message("%s: %s\n", good[i], err.msg);
        assert_int_equal(status, TS_OK);
        ts_tensors_close(t);
    }
}

static void test_reads(void **state)
{
    (void)state;
    const char *h = "{\"__metadata__\":{\"k\":\"v\\n\"}," T(
        "z\\u00e9\\ud83d\\ude00", "U8", "[2,2]", 8,
        12) "," T("a", "F32", "[]", 0, 4) "," T("m", "I16", "[1,1,1,1,1,1,1,2]", 4, 8) "}";
    put_tensors(in_root("r"), strlen(h), h, strlen(h), 12);
    ts_tensors *t;
    ts_error err = {0};
    ts_status status = ts_tensors_open(in_root("r"), &t, &err);
    if (status) print_message("%s\n", err.msg);
    assert_int_equal(status, TS_OK);
    assert_int_equal(ts_tensors_count(t), 3);
    assert_string_equal(ts_tensors_at(t, 0)->name, "a");
    assert_int_equal(ts_tensors_at(t, 0)->rank, 0);
    assert_int_equal(ts_tensors_at(t, 0)->count, 1);
    assert_int_equal(ts_tensors_at(t, 1)->rank, 8);
    const ts_tensor *z = ts_tensors_find(t, "z\xc3\xa9\xf0\x9f\x98\x80");
    assert_non_null(z);
    assert_int_equal(z->dtype, TS_FILE_U8);
    assert_int_equal(z->bytes, 4);
    assert_null(ts_tensors_find(t, "b"));
    assert_string_equal(ts_tensors_metadata(t, "k"), "v\n");
    assert_null(ts_tensors_metadata(t, "x"));
    assert_string_equal(ts_tensors_path_of(t, z), in_root("r"));
    unsigned char to[4];
    float f;
    int32_t i;
    assert_int_equal(ts_tensors_read(t, z, 1, to, 2, &err), TS_OK);
    assert_true(to[0] == 9 && to[1] == 10);
    assert_int_equal(ts_tensors_read(t, z, 3, to, 2, &err), TS_OUT_OF_RANGE);
    assert_int_equal(ts_tensors_read(t, z, UINT64_MAX, to, 2, NULL), TS_OUT_OF_RANGE);
    assert_int_equal(ts_tensors_read_f32(t, ts_tensors_find(t, "a"), 0, 1, &f, NULL), TS_OK);
    assert_memory_equal(&f, "\0\1\2\3", 4);
    assert_int_equal(ts_tensors_read_f32(t, ts_tensors_find(t, "a"), 1, 1, &f, NULL),
                     TS_OUT_OF_RANGE);
    assert_int_equal(ts_tensors_read_f32(t, ts_tensors_find(t, "a"), 0, UINT64_MAX, &f, NULL),
                     TS_OUT_OF_RANGE);
    err = (ts_error){0};
    assert_int_equal(ts_tensors_read_f32(t, z, 0, 1, &f, &err), TS_DATA_LOSS);
    assert_non_null(strstr(err.msg, "expected F32, BF16, F16 or F64"));
    assert_int_equal(ts_tensors_read_i32(t, z, 0, 1, &i, NULL), TS_DATA_LOSS);
    ts_tensors_close(t);
}

static void test_length_word(void **state)
{
    (void)state;
    put(in_root("bad"), "", 0);
    refused_bytes(in_root("bad"), "has 0 bytes");
    put(in_root("bad"), "1234567", 7);
    refused_bytes(in_root("bad"), "has 7 bytes");
    put(in_root("bad"), "\0\0\0\0\0\0\0\0", 8);
    refused_bytes(in_root("bad"), "expected '{' as the first byte");
    put_tensors(in_root("bad"), 3, "{}", 2, 0);
    refused_bytes(in_root("bad"), "only 2 follow");
    put_tensors(in_root("bad"), 100000001, "{}", 2, 0);
    refused_bytes(in_root("bad"), "at most 100000000");
    put_tensors(in_root("bad"), UINT64_MAX, "{}", 2, 0);
    refused_bytes(in_root("bad"), "at most 100000000");
    put_tensors(in_root("bad"), 100000000, "{}", 2, 0);
    refused_bytes(in_root("bad"), "only 2 follow");
    put(in_root("bad"), "<!DOCTYPE html><html>", 21);
    refused_bytes(in_root("bad"), "is this a safetensors file?");
    ts_tensors *t;
    ts_error err = {0};
    assert_int_equal(ts_tensors_open(root, &t, &err), TS_INVALID_ARGUMENT);
    assert_int_equal(ts_tensors_open(in_root("none"), &t, NULL), TS_NOT_FOUND);
}

static void test_malformed_text(void **state)
{
    (void)state;
    refused("[]", 0, "byte 8 of the header: found '['");
    refused("\"a\"", 0, "expected '{'");
    refused(" {}", 0, "byte 8 of the header: found a blank");
    refused("\xef\xbb\xbf{}", 0, "byte 8 of the header: found byte 0xef");
    refused("{", 0, "the header ends");
    refused("{}}", 0, "more text after");
    refused("{}{}", 0, "more text after");
    refused("{,}", 0, "expected '\"'");
    refused("{" T("a", "F32", "[]", 0, 4) ",}", 4, "expected '\"'");
    refused("{\"a\"}", 0, "expected ':'");
    refused("{\"a\":1}", 0, "expected '{'");
    refused("{\"a\":null}", 0, "expected '{'");
    refused("{\"a\":[\"F32\",[],[0,4]]}", 4, "expected '{'");
    refused("{\"a", 0, "not closed");
    refused("{\"a\\\"", 0, "not closed");
    refused("{\"\\x\":{}}", 0, "malformed escape");
    refused("{\"\\u12g4\":{}}", 0, "malformed escape");
    refused("{\"\\ud800\":{}}", 0, "malformed escape");
    refused("{\"\\ud800\\u0041\":{}}", 0, "malformed escape");
    refused("{\"\\udc00\":{}}", 0, "malformed escape");
    refused("{\"a\tb\":{}}", 0, "control character 0x09");
    refused("{\"\xff\":{}}", 0, "byte 10 of the header: is not valid UTF-8");
    refused("{\"\xc0\x80\":{}}", 0, "UTF-8");
    refused("{\"\xed\xa0\x80\":{}}", 0, "UTF-8");
    refused("{\"\xc3", 0, "UTF-8");
    refused("{" T("\\u0000", "F32", "[]", 0, 4) "}", 4, "NUL inside");
    put_tensors(in_root("bad"), 3, "{}\0", 3, 0);
    refused_bytes(in_root("bad"), "more text");
}

static void test_malformed_tensors(void **state)
{
    (void)state;
    refused("{\"a\":{}}", 0, "lacks the field \"dtype\"");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[]}}", 0, "lacks the field \"data_offsets\"");
    refused("{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "lacks the field \"shape\"");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4],\"x\":1}}", 4,
            "unknown field \"x\"");
    refused("{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", 4,
            "\"dtype\" twice");
    refused("{" T("a", "f32", "[]", 0, 4) "}", 4, "unknown dtype \"f32\"");
    refused("{" T("a", "F128", "[]", 0, 16) "}", 16, "unknown dtype");
    refused("{\"a\":{\"dtype\":1,\"shape\":[],\"data_offsets\":[0,4]}}", 4, "a dtype");
    refused("{" T("a", "F32", "[-1]", 0, 4) "}", 4, "unsigned");
    refused("{" T("a", "F32", "[1.0]", 0, 4) "}", 4, "unsigned");
    refused("{" T("a", "F32", "[1e0]", 0, 4) "}", 4, "unsigned");
    refused("{" T("a", "F32", "[01]", 0, 4) "}", 4, "begins with 0");
    refused("{" T("a", "F32", "[\"1\"]", 0, 4) "}", 4, "unsigned");
    refused("{" T("a", "F32", "[[1]]", 0, 4) "}", 4, "unsigned");
    refused("{" T("a", "F32", "[1,]", 0, 4) "}", 4, "unsigned");
    refused("{" T("a", "F32", "[1 1]", 0, 4) "}", 4, "expected ']'");
    refused("{" T("a", "F32", "{}", 0, 4) "}", 4, "expected '['");
    refused("{" T("a", "F32", "[18446744073709551616]", 0, 4) "}", 4, "64 bits");
    refused("{" T("a", "F32", "[281474976710656]", 0, 4) "}", 4, "less than 2^48");
    refused("{" T("a", "F32", "[0,9223372036854775808,9223372036854775808]", 0, 0) "}", 0,
            "less than 2^48");
    refused("{" T("a", "F32", "[281474976710655,281474976710655]", 0, 4) "}", 4, "overflows");
    refused("{" T("a", "F64", "[281474976710655,65537]", 0, 4) "}", 4, "overflows");
    refused("{" T("a", "F32", "[1,1,1,1,1,1,1,1,1]", 0, 4) "}", 4, "more than 8 dimensions");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0]}}", 4, "between the two");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4,8]}}", 4,
            "after the two");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[]}}", 4, "unsigned");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[4,0]}}", 4,
            "before it begins");
    refused("{" T("a", "F32", "[2]", 0, 4) "}", 4, "its shape and dtype F32 make 8");
    refused("{" T("a", "F4", "[3]", 0, 1) "}", 1, "not whole bytes");
    refused("{" T("", "F32", "[]", 0, 4) "}", 4, "name is empty");
    char long_name[700];
    char *at = long_name + sprintf(long_name, "{\"");
    memset(at, 'n', 513);
    sprintf(at + 513, "\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}");
    refused(long_name, 4, "at most 512");
}

static void test_malformed_whole(void **state)
{
    (void)state;
    refused("{" T("a", "F32", "[]", 0, 4) "," T("a", "F32", "[]", 4, 8) "}", 8, "listed twice");
    refused("{" T("a", "F32", "[]", 0, 4) "," T("\\u0061", "F32", "[]", 4, 8) "}", 8,
            "listed twice");
    refused("{" T("a", "F32", "[]", 4, 8) "}", 8, "hole");
    refused("{" T("a", "F32", "[]", 0, 4) "," T("b", "F32", "[]", 8, 12) "}", 12, "hole");
    refused("{" T("a", "F32", "[2]", 0, 8) "," T("b", "F32", "[]", 4, 8) "}", 8, "overlaps");
    refused("{" T("a", "F32", "[]", 0, 4) "," T("b", "F32", "[]", 0, 4) "}", 4, "overlaps");
    refused("{" T("a", "F32", "[]", 0, 4) "," T("b", "F32", "[0]", 2, 2) "}", 4, "overlaps");
    refused("{" T("a", "F32", "[]", 0, 4) "}", 3, "was cut");
    refused("{" T("a", "F32", "[]", 0, 4) "}", 5, "something follows");
    refused("{}", 1, "something follows");
    refused("{\"__metadata__\":[]}", 0, "expected '{'");
    refused("{\"__metadata__\":null}", 0, "expected '{'");
    refused("{\"__metadata__\":{\"a\":1}}", 0, "a string");
    refused("{\"__metadata__\":{\"a\":{}}}", 0, "a string");
    refused("{\"__metadata__\":{\"a\":null}}", 0, "a string");
    refused("{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", 0, "twice");
    refused("{\"__metadata__\":{},\"__metadata__\":{}}", 0, "occurs twice");
    refused("{\"__metadata__\":{\"a\":\"\\u0000\"}}", 0, "NUL");
    size_t n = 200000;
    char *deep = ts_alloc(n + 1);
    memset(deep, '[', n);
    memcpy(deep, "{\"a\":", 5);
    deep[n] = '\0';
    refused(deep, 0, "expected '{'");
    ts_free(deep);
}

/* ---- the writer --------------------------------------------------------------------------------- */

static const ts_tensor_spec specs[] = {
    {"f64", TS_FILE_F64, 1, {3}},
    {"i64", TS_FILE_I64, 1, {2}},
    {"f32", TS_FILE_F32, 2, {2, 3}},
    {"empty", TS_FILE_F32, 2, {0, 3}},
    {"scalar", TS_FILE_I32, 0, {0}},
    {"bf16", TS_FILE_BF16, 1, {4}},
    {"f16 \"q\\\"\n\xc3\xa9", TS_FILE_F16, 1, {6}},
    {"bool", TS_FILE_BOOL, 1, {1}},
};
enum { N_SPECS = sizeof specs / sizeof specs[0] };

static void put_round_trip(const char *path, uint64_t *hash, uint64_t *bytes)
{
    static const char *const metadata[][2] = {{"format", "pt"}, {"note", "a \"b\""}};
    double f64[] = {1.5, -1e300, 0.1};
    int64_t i64[] = {-7, 1LL << 40};
    float f32[] = {1, 2, 3, 4, 5, NAN};
    int32_t scalar = -5;
    uint16_t bf16[] = {0x3f80, 0xc000, 0x7f80, 0x0001},
             f16[] = {0x3c00, 0x0001, 0x8400, 0x7c00, 0xfbff, 0x8000};
    unsigned char one = 1;
    ts_tensor_writer *w;
    ts_error err = {0};
    assert_int_equal(ts_tensor_writer_open(path, specs, N_SPECS, metadata, 2, &w, &err), TS_OK);
    assert_int_equal(ts_tensor_writer_add(w, f64, 5, &err), TS_OK); /* in any pieces */
    assert_int_equal(ts_tensor_writer_add(w, (char *)f64 + 5, 19, &err), TS_OK);
    assert_int_equal(ts_tensor_writer_add(w, i64, sizeof i64, &err), TS_OK);
    assert_int_equal(ts_tensor_writer_add(w, f32, sizeof f32, &err), TS_OK);
    assert_int_equal(ts_tensor_writer_add(w, &scalar, 4, &err), TS_OK);
    assert_int_equal(ts_tensor_writer_add(w, bf16, sizeof bf16, &err), TS_OK);
    assert_int_equal(ts_tensor_writer_add(w, f16, sizeof f16, &err), TS_OK);
    assert_int_equal(ts_tensor_writer_add(w, &one, 1, &err), TS_OK);
    assert_int_equal(ts_tensor_writer_add(w, &one, 1, &err), TS_FAILED_PRECONDITION);
    assert_int_equal(ts_tensor_writer_close(w, true, hash, bytes, NULL), TS_OK);
}

static void test_round_trip(void **state)
{
    (void)state;
    uint64_t hash, bytes;
    char *whole;
    size_t n;
    ts_error err = {0};
    put_round_trip(in_root("rt"), &hash, &bytes);
    assert_int_equal(ts_file_read_all(in_root("rt"), 1 << 20, &whole, &n, &err), TS_OK);
    assert_int_equal(n, bytes);
    assert_true(XXH3_64bits(whole, n) == hash);
    ts_free(whole);
    ts_tensors *t;
    assert_int_equal(ts_tensors_open(in_root("rt"), &t, &err), TS_OK);
    assert_int_equal(ts_tensors_count(t), N_SPECS);
    assert_string_equal(ts_tensors_metadata(t, "note"), "a \"b\"");
    for (size_t i = 0; i < N_SPECS; i++) {
        const ts_tensor *x = ts_tensors_find(t, specs[i].name);
        assert_non_null(x);
        assert_int_equal(x->dtype, specs[i].dtype);
        assert_int_equal(x->rank, specs[i].rank);
        for (int k = 0; k < x->rank; k++) assert_int_equal(x->dim[k], specs[i].dim[k]);
    }
    float f[6];
    int32_t i;
    assert_int_equal(ts_tensors_read_f32(t, ts_tensors_find(t, "f64"), 0, 3, f, &err), TS_OK);
    assert_true(f[0] == 1.5f && f[1] == -INFINITY && f[2] == 0.1f);
    assert_int_equal(ts_tensors_read_f32(t, ts_tensors_find(t, "f32"), 1, 5, f, &err), TS_OK);
    assert_true(f[0] == 2 && f[3] == 5 && isnan(f[4]));
    assert_int_equal(ts_tensors_read_f32(t, ts_tensors_find(t, "bf16"), 1, 3, f, &err), TS_OK);
    assert_true(f[0] == -2 && f[1] == INFINITY && f[2] > 0 && f[2] < 1e-38f);
    assert_int_equal(ts_tensors_read_f32(t, ts_tensors_find(t, specs[6].name), 0, 6, f, &err),
                     TS_OK);
    assert_true(f[0] == 1 && f[1] == 0x1p-24f && f[2] == -0x1p-14f && f[3] == INFINITY &&
                f[4] == -65504 && f[5] == 0);
    assert_true(signbit(f[5]));
    assert_int_equal(ts_tensors_read_i32(t, ts_tensors_find(t, "i64"), 0, 1, &i, &err), TS_OK);
    assert_int_equal(i, -7);
    assert_int_equal(ts_tensors_read_i32(t, ts_tensors_find(t, "i64"), 1, 1, &i, &err),
                     TS_DATA_LOSS);
    assert_non_null(strstr(err.msg, "element 1 is 1099511627776"));
    assert_int_equal(ts_tensors_read_i32(t, ts_tensors_find(t, "scalar"), 0, 1, &i, NULL), TS_OK);
    assert_int_equal(i, -5);
    assert_int_equal(ts_tensors_read_f32(t, ts_tensors_find(t, "empty"), 0, 0, f, NULL), TS_OK);
    ts_tensors_close(t);
}

static void test_large_conversion(void **state)
{
    (void)state;
    size_t n = 300001;
    uint16_t *half = ts_alloc(2 * n);
    float *f = ts_alloc(4 * n);
    for (size_t i = 0; i < n; i++) half[i] = (uint16_t)(i * 3 & 0x7f7f);
    ts_tensor_spec spec = {"x", TS_FILE_BF16, 1, {(int64_t)n}};
    ts_tensor_writer *w;
    ts_tensors *t;
    ts_error err = {0};
    assert_int_equal(ts_tensor_writer_open(in_root("lc"), &spec, 1, NULL, 0, &w, &err), TS_OK);
    assert_int_equal(ts_tensor_writer_add(w, half, 2 * n, &err), TS_OK);
    assert_int_equal(ts_tensor_writer_close(w, false, NULL, NULL, &err), TS_OK);
    assert_int_equal(ts_tensors_open(in_root("lc"), &t, &err), TS_OK);
    uint64_t before = ts_alloc_count();
    assert_int_equal(ts_tensors_read_f32(t, ts_tensors_at(t, 0), 1, n - 1, f, &err), TS_OK);
    assert_int_equal(ts_alloc_count(), before);
    for (size_t i = 1; i < n; i++) assert_true(f[i - 1] == ts_bf16_to_f32(half[i]));
    ts_tensors_close(t);
    ts_free(half);
    ts_free(f);
}

static void test_writer_refuses(void **state)
{
    (void)state;
    static const ts_tensor_spec bad[] = {
        {"", TS_FILE_F32, 1, {1}},
        {"__metadata__", TS_FILE_F32, 1, {1}},
        {"\xff", TS_FILE_F32, 1, {1}},
        {"a", TS_FILE_F32, 9, {1}},
        {"a", TS_FILE_F32, 1, {-1}},
        {"a", TS_FILE_F32, 1, {INT64_C(1) << 48}},
        {"a", TS_FILE_F32, 2, {INT64_C(1) << 47, INT64_C(1) << 47}},
        {"a", TS_FILE_F4, 1, {3}},
    };
    ts_tensor_writer *w;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        ts_error err = {0};
        assert_int_equal(ts_tensor_writer_open(in_root("wr"), &bad[i], 1, NULL, 0, &w, &err),
                         TS_INVALID_ARGUMENT);
        assert_null(w);
    }
    ts_tensor_spec twice[] = {{"a", TS_FILE_U8, 1, {1}}, {"a", TS_FILE_U8, 1, {1}}};
    assert_int_equal(ts_tensor_writer_open(in_root("wr"), twice, 2, NULL, 0, &w, NULL),
                     TS_INVALID_ARGUMENT);
    ts_tensor_spec crooked[] = {{"a", TS_FILE_U8, 1, {1}}, {"b", TS_FILE_F32, 1, {1}}};
    assert_int_equal(ts_tensor_writer_open(in_root("wr"), crooked, 2, NULL, 0, &w, NULL),
                     TS_INVALID_ARGUMENT);
    assert_int_equal(ts_path_kind_of(in_root("wr")), TS_PATH_NONE); /* nothing was made */
    ts_error err = {0};
    assert_int_equal(ts_tensor_writer_open(in_root("wr"), twice, 1, NULL, 0, &w, &err), TS_OK);
    assert_int_equal(ts_tensor_writer_close(w, true, NULL, NULL, &err), TS_FAILED_PRECONDITION);
    assert_non_null(strstr(err.msg, "got 0 of 1 bytes"));
}

static void test_header_too_large(void **state)
{
    (void)state;
    size_t n = 300000;
    ts_tensor_spec *many = ts_alloc_zero(n * sizeof *many);
    char *names = ts_alloc(n * 8);
    for (size_t i = 0; i < n; i++) {
        sprintf(names + 8 * i, "t%06zu", i);
        many[i] = (ts_tensor_spec){names + 8 * i, TS_FILE_U8, 1, {1}};
    }
    ts_tensor_writer *w;
    ts_error err = {0};
    assert_int_equal(ts_tensor_writer_open(in_root("big"), many, n, NULL, 0, &w, &err),
                     TS_INVALID_ARGUMENT);
    assert_non_null(strstr(err.msg, "16 MiB"));
    ts_free(names);
    ts_free(many);
}

/* ---- damage ------------------------------------------------------------------------------------- */

static void test_cut_everywhere(void **state)
{
    (void)state;
    char *whole;
    size_t n;
    ts_error err = {0};
    put_round_trip(in_root("cut"), NULL, NULL);
    assert_int_equal(ts_file_read_all(in_root("cut"), 1 << 20, &whole, &n, &err), TS_OK);
    assert_true(n > 200);
    for (size_t k = 0; k < n; k++) {
        ts_tensors *t;
        err = (ts_error){0};
        put(in_root("cut"), whole, k);
        assert_int_equal(ts_tensors_open(in_root("cut"), &t, &err), TS_DATA_LOSS);
        assert_non_null(strstr(err.msg, "cut"));
    }
    ts_free(whole);
}

static void test_bit_flips(void **state)
{
    (void)state;
    char *whole;
    size_t n, refusals = 0, header;
    ts_error err = {0};
    put_round_trip(in_root("flip"), NULL, NULL);
    assert_int_equal(ts_file_read_all(in_root("flip"), 1 << 20, &whole, &n, &err), TS_OK);
    header = 8 + (unsigned char)whole[0] + 256u * (unsigned char)whole[1];
    for (size_t bit = 0; bit < 8 * header; bit++) {
        ts_tensors *t;
        err = (ts_error){0};
        whole[bit / 8] ^= (char)(1 << bit % 8);
        put(in_root("flip"), whole, n);
        whole[bit / 8] ^= (char)(1 << bit % 8);
        if (ts_tensors_open(in_root("flip"), &t, &err) != TS_OK) {
            refusals++;
            assert_true(err.msg[0]);
            continue;
        }
        for (size_t i = 0; i < ts_tensors_count(t);
             i++) { /* a name or dtype changed: still sound */
            char byte;
            const ts_tensor *x = ts_tensors_at(t, i);
            if (x->bytes)
                assert_int_equal(ts_tensors_read(t, x, x->bytes - 1, &byte, 1, &err), TS_OK);
        }
        ts_tensors_close(t);
    }
    assert_true(refusals > 4 * header);
    ts_free(whole);
}

static void test_shrinking_file(void **state)
{
    (void)state;
    ts_tensors *t;
    ts_error err = {0};
    float f[6];
    put_round_trip(in_root("shrink"), NULL, NULL);
    assert_int_equal(ts_tensors_open(in_root("shrink"), &t, &err), TS_OK);
    put(in_root("shrink"), "", 0);
    assert_int_equal(ts_tensors_read_f32(t, ts_tensors_find(t, "f32"), 0, 6, f, &err),
                     TS_DATA_LOSS);
    assert_non_null(strstr(err.msg, "f32"));
    ts_tensors_close(t);
}

static void test_memory(void **state)
{
    (void)state;
    put_round_trip(in_root("mem"), NULL, NULL);
    for (uint64_t nth = 1;; nth++) {
        ts_tensors *t;
        ts_error err = {0};
        ts_alloc_fail_at(nth);
        ts_status status = ts_tensors_open(in_root("mem"), &t, &err);
        ts_alloc_fail_at(0);
        if (status == TS_OK) {
            assert_true(nth > 6);
            ts_tensors_close(t);
            break;
        }
        assert_int_equal(status, TS_RESOURCE_EXHAUSTED);
        assert_null(t);
    }
    for (uint64_t nth = 1;; nth++) {
        ts_tensor_writer *w;
        ts_alloc_fail_at(nth);
        ts_status status =
            ts_tensor_writer_open(in_root("mem2"), specs, N_SPECS, NULL, 0, &w, NULL);
        ts_alloc_fail_at(0);
        ts_tensor_writer_abandon(w);
        if (status == TS_OK) break;
        assert_int_equal(status, TS_RESOURCE_EXHAUSTED);
    }
}

/* ---- model folders ------------------------------------------------------------------------------ */

static void put_shard(const char *name, const char *tensor)
{
    char header[200];
    snprintf(header, sizeof header,
             "{\"%s\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", tensor);
    put_tensors(in_root(name), strlen(header), header, strlen(header), 4);
}

static void model_refused(const char *index, ts_status want, const char *part)
{
    ts_tensors *t;
    ts_error err = {0};
    put(in_root("m/model.safetensors.index.json"), index, strlen(index));
    ts_status status = ts_tensors_open_model(in_root("m"), &t, &err);
    if (status != want || !strstr(err.msg, part))
        print_message("wanted %s, got %s\n", part, err.msg);
    assert_int_equal(status, want);
    assert_null(t);
    assert_non_null(strstr(err.msg, part));
}

static void test_model_folder(void **state)
{
    (void)state;
    ts_tensors *t;
    ts_error err = {0};
    assert_int_equal(ts_make_folders(in_root("m"), &err), TS_OK);
    assert_int_equal(ts_tensors_open_model(in_root("m"), &t, &err), TS_NOT_FOUND);
    assert_non_null(strstr(err.msg, "neither"));
    err = (ts_error){0};
    put_shard("m/one.safetensors", "a");
    put_shard("m/two.safetensors", "b");
    put_shard("m/also-a.safetensors", "a");
    const char *good =
        "{\"metadata\":{\"total_size\":8},\"weight_map\":{\"b\":\"two.safetensors\",\"a\":\"one.safetensors\"}}";
    put(in_root("m/model.safetensors.index.json"), good, strlen(good));
    for (int k = 0; k < 2; k++) {
        const char *path = k ? in_root("m/model.safetensors.index.json") : in_root("m");
        ts_status status = ts_tensors_open_model(path, &t, &err);
        if (status) print_message("%s\n", err.msg);
        assert_int_equal(status, TS_OK);
        assert_int_equal(ts_tensors_count(t), 2);
        assert_non_null(
            strstr(ts_tensors_path_of(t, ts_tensors_find(t, "b")), "m/two.safetensors"));
        ts_tensors_close(t);
    }
    model_refused("{}", TS_DATA_LOSS, "weight_map");
    model_refused("[]", TS_DATA_LOSS, "weight_map");
    model_refused("{\"weight_map\":[]}", TS_DATA_LOSS, "weight_map");
    model_refused("{\"weight_map\":{}}", TS_DATA_LOSS, "is empty");
    model_refused("{\"weight_map\":{\"a\":1}}", TS_DATA_LOSS, "no string");
    model_refused("{\"weight_map\":{\"a\":\"\"}}", TS_DATA_LOSS, "expected the name");
    model_refused("{\"weight_map\":{\"a\":\"../m/one.safetensors\"}}", TS_DATA_LOSS,
                  "expected the name");
    model_refused("{\"weight_map\":{\"a\":\"..\"}}", TS_DATA_LOSS, "expected the name");
    model_refused("{\"weight_map\":{\"a\":\"x\\\\y\"}}", TS_DATA_LOSS, "expected the name");
    model_refused("{\"weight_map\":{\"a\":\"/etc/passwd\"}}", TS_DATA_LOSS, "expected the name");
    model_refused("{\"weight_map\":{\"a\":\"one.safetensors\",\"a\":\"one.safetensors\"}}",
                  TS_DATA_LOSS, "duplicate");
    model_refused("{\"weight_map\":{\"a\":\"three.safetensors\"}}", TS_NOT_FOUND,
                  "three.safetensors");
    model_refused("{\"weight_map\":{\"a\":\"one.safetensors\",\"c\":\"one.safetensors\"}}",
                  TS_DATA_LOSS, "\"c\" should be in one");
    model_refused("{\"weight_map\":{\"a\":\"two.safetensors\"}}", TS_DATA_LOSS,
                  "\"a\" should be in two");
    model_refused("{\"weight_map\":{\"a\":\"one.safetensors\",\"x\":\"also-a.safetensors\"}}",
                  TS_DATA_LOSS, "in two shards");
    put_shard("m/model.safetensors", "single");
    assert_int_equal(ts_tensors_open_model(in_root("m"), &t, &err), TS_OK);
    assert_non_null(ts_tensors_find(t, "single"));
    ts_tensors_close(t);
    assert_int_equal(ts_tensors_open_model(in_root("m/two.safetensors"), &t, &err), TS_OK);
    ts_tensors_close(t);
    assert_int_equal(ts_tensors_open_model(in_root("nowhere"), &t, NULL), TS_NOT_FOUND);
}

static void test_shared_files(void **state)
{
    (void)state;
    const char *shared = getenv("TESSERA_SHARED");
    char path[4096];
    snprintf(path, sizeof path, "%s/golden/tiny-llama3", shared ? shared : "../shared");
    if (ts_path_kind_of(path) != TS_PATH_FOLDER) {
        print_message("SKIP: %s is missing; set TESSERA_SHARED\n", path);
        skip();
    }
    ts_tensors *t;
    ts_error err = {0};
    ts_status status = ts_tensors_open_model(path, &t, &err);
    if (status) print_message("%s\n", err.msg);
    assert_int_equal(status, TS_OK);
    const ts_tensor *x = ts_tensors_find(t, "model.embed_tokens.weight");
    assert_non_null(x);
    assert_true(x->rank == 2 && x->dim[0] == 512 && x->dim[1] == 64);
    ts_tensors_close(t);
    strcat(path, "/golden.safetensors");
    assert_int_equal(ts_tensors_open_model(path, &t, &err), TS_OK);
    ts_tensors_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accepts),           cmocka_unit_test(test_reads),
        cmocka_unit_test(test_length_word),       cmocka_unit_test(test_malformed_text),
        cmocka_unit_test(test_malformed_tensors), cmocka_unit_test(test_malformed_whole),
        cmocka_unit_test(test_round_trip),        cmocka_unit_test(test_large_conversion),
        cmocka_unit_test(test_writer_refuses),    cmocka_unit_test(test_header_too_large),
        cmocka_unit_test(test_cut_everywhere),    cmocka_unit_test(test_bit_flips),
        cmocka_unit_test(test_shrinking_file),    cmocka_unit_test(test_memory),
        cmocka_unit_test(test_model_folder),      cmocka_unit_test(test_shared_files),
    };
    return cmocka_run_group_tests_name("safetensors", tests, make_root, remove_root);
}
