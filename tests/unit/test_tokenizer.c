/* tests/unit/test_tokenizer.c – the byte vocabulary, text in pieces, UTF-8 boundaries.
 *
 * Round trips run over every byte and over text cut at every place; the list of ids must be what it
 * was before after every kind of failure, memory out included.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "token/tokenizer.h"

static ts_tokenizer *open_byte(void)
{
    ts_tokenizer *t = NULL;
    assert_int_equal(ts_tokenizer_open_byte(&t, NULL), TS_OK);
    return t;
}

static void test_vocabulary(void **state)
{
    (void)state;
    ts_tokenizer *t = open_byte();
    assert_string_equal(ts_tokenizer_type(t), "byte");
    assert_int_equal(ts_tokenizer_vocab_size(t), 259);
    assert_int_equal(ts_tokenizer_bos(t), 256);
    assert_int_equal(ts_tokenizer_eos(t), 257);
    assert_int_equal(ts_tokenizer_pad(t), 258);
    for (int32_t id = -2; id < 262; id++)
        assert_int_equal(ts_tokenizer_is_special(t, id), id >= 256 && id <= 258);
    assert_true(ts_tokenizer_is_bytewise(t));
    ts_tokenizer_free(t);
    ts_tokenizer_free(NULL);
}

static void test_every_byte(void **state)
{
    (void)state;
    ts_tokenizer *t = open_byte();
    char text[256];
    for (int i = 0; i < 256; i++) text[i] = (char)i;
    ts_tokens ids = {0};
    assert_int_equal(ts_tokenizer_encode(t, text, 256, TS_ENCODE_BOS | TS_ENCODE_EOS, &ids, NULL),
                     TS_OK);
    assert_int_equal(ids.n, 258);
    assert_int_equal(ids.id[0], 256);
    for (int i = 0; i < 256; i++) assert_int_equal(ids.id[i + 1], i);
    assert_int_equal(ids.id[257], 257);

    ts_string bytes = ts_string_new(1000), named = ts_string_new(1000);
    assert_int_equal(ts_tokenizer_decode(t, ids.id, ids.n, true, &bytes, NULL), TS_OK);
    assert_int_equal(bytes.length, 256);
    assert_memory_equal(bytes.data, text, 256);
    assert_int_equal(ts_tokenizer_decode(t, ids.id + 257, 1, false, &named, NULL), TS_OK);
    assert_string_equal(named.data, "<eos>");
    ts_string_free(&bytes);
    ts_string_free(&named);
    ts_tokens_free(&ids);
    ts_tokenizer_free(t);
}

static void test_special_names_in_text_stay_text(void **state)
{
    (void)state;
    ts_tokenizer *t = open_byte();
    ts_tokens ids = {0};
    assert_int_equal(ts_tokenizer_encode(t, "<eos>", 5, TS_ENCODE_PLAIN, &ids, NULL), TS_OK);
    assert_int_equal(ids.n, 5);
    ts_tokens_free(&ids);
    assert_int_equal(ts_tokenizer_encode(t, "", 0, TS_ENCODE_PLAIN, &ids, NULL), TS_OK);
    assert_int_equal(ids.n, 0);
    ts_tokens_free(&ids);
    ts_tokenizer_free(t);
}

static void test_pieces_equal_the_whole(void **state)
{
    (void)state;
    static const char text[] = "na\xc3\xafve \xe2\x82\xac \xf0\x9f\x98\x80 end";
    size_t n = sizeof text - 1;
    ts_tokenizer *t = open_byte();
    ts_tokens whole = {0};
    assert_int_equal(ts_tokenizer_encode(t, text, n, 0, &whole, NULL), TS_OK);
    for (size_t cut = 0; cut <= n; cut++) {
        ts_tokens ids = {0};
        size_t used = 0, rest = 0;
        assert_int_equal(ts_tokenizer_encode_some(t, text, cut, false, &ids, &used, NULL), TS_OK);
        assert_true(used <= cut);
        assert_int_equal(
            ts_tokenizer_encode_some(t, text + used, n - used, true, &ids, &rest, NULL), TS_OK);
        assert_int_equal(used + rest, n);
        assert_int_equal(ids.n, whole.n);
        assert_memory_equal(ids.id, whole.id, whole.n * sizeof *whole.id);
        ts_tokens_free(&ids);
    }
    ts_tokens_free(&whole);
    ts_tokenizer_free(t);
}

static void test_decode_refuses(void **state)
{
    (void)state;
    ts_tokenizer *t = open_byte();
    static const int32_t outside[][2] = {{65, 259}, {65, -1}, {65, INT32_MAX}, {65, INT32_MIN}};
    for (size_t i = 0; i < 4; i++) {
        ts_error err = {0};
        ts_string out = ts_string_new(100);
        assert_int_equal(ts_tokenizer_decode(t, outside[i], 2, false, &out, &err),
                         TS_INVALID_ARGUMENT);
        assert_non_null(strstr(err.msg, "token 1"));
        assert_int_equal(out.length, 0);
        ts_string_free(&out);
    }
    ts_error err = {0};
    ts_string small = ts_string_new(2);
    static const int32_t three[] = {65, 66, 67};
    assert_int_equal(ts_tokenizer_decode(t, three, 3, false, &small, &err), TS_RESOURCE_EXHAUSTED);
    ts_string_free(&small);
    ts_tokenizer_free(t);
}

static void test_memory_out(void **state)
{
    (void)state;
    ts_error err = {0};
    ts_tokenizer *t = NULL;
    ts_alloc_fail_at(1);
    assert_int_equal(ts_tokenizer_open_byte(&t, &err), TS_RESOURCE_EXHAUSTED);
    ts_alloc_fail_at(0);
    t = open_byte();
    ts_tokens ids = {0};
    assert_int_equal(ts_tokens_add(&ids, 7, NULL), TS_OK);
    char text[1000] = {0};
    ts_alloc_fail_at(1);
    assert_int_equal(ts_tokenizer_encode(t, text, sizeof text, TS_ENCODE_BOS, &ids, &err),
                     TS_RESOURCE_EXHAUSTED);
    ts_alloc_fail_at(0);
    assert_int_equal(ids.n, 1);
    assert_int_equal(ids.id[0], 7);
    ts_tokens_free(&ids);
    ts_tokenizer_free(t);
}

static void test_utf8(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t n, valid, complete;
    } cases[] = {
        {"", 0, 0, 0},
        {"abc", 3, 3, 3},
        {"\xc3\xa9", 2, 2, 2},
        {"\xc3", 1, 0, 0},
        {"a\xe2\x82", 3, 1, 1},
        {"a\xe2\x82\xac", 4, 4, 4},
        {"\xf0\x9f\x98", 3, 0, 0},
        {"\xf0\x9f\x98\x80", 4, 4, 4},
        {"\xf4\x8f\xbf\xbf", 4, 4, 4},
        {"\xf4\x90\x80\x80", 4, 0, 4}, /* above U+10FFFF */
        {"\xc0\xaf", 2, 0, 2},
        {"\xe0\x80\xaf", 3, 0, 3},
        {"\xf0\x80\x80\xaf", 4, 0, 4}, /* overlong */
        {"\xed\xa0\x80", 3, 0, 3},
        {"\xed\x9f\xbf", 3, 3, 3}, /* surrogate */
        {"a\x80", 2, 1, 2},
        {"\xff", 1, 0, 1},
        {"\xe2\x28", 2, 0, 2},
        {"\xed\xa0", 2, 0, 2},
        {"\x80\x80\x80\x80", 4, 0, 4},
        {"a\0b", 3, 3, 3},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(ts_utf8_valid_prefix(cases[i].text, cases[i].n), cases[i].valid);
        assert_int_equal(ts_utf8_complete(cases[i].text, cases[i].n), cases[i].complete);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vocabulary),
        cmocka_unit_test(test_every_byte),
        cmocka_unit_test(test_special_names_in_text_stay_text),
        cmocka_unit_test(test_pieces_equal_the_whole),
        cmocka_unit_test(test_decode_refuses),
        cmocka_unit_test(test_memory_out),
        cmocka_unit_test(test_utf8),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
