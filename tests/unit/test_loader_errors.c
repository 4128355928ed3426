/* tests/unit/test_loader_errors.c – the data loader on bad input: each a clear message, nothing
 * lost.
 *
 * Folders, empty and tiny files, files of other formats, malformed token files, bad rows of every
 * sort, a file that changes during the run, and each allocation and each read failing in turn.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>

#include "data_help.h"

static void test_text_bad_input(void **state)
{
    (void)state;
    char folder[128];
    snprintf(folder, sizeof folder, "%s/folder", root);
    assert_int_equal(ts_make_folders(folder, NULL), TS_OK);
    put_text("folder/inside.txt", "hello");
    const char *path = folder;
    ts_loader_options o = options(TS_DATA_TEXT, &path, 1, 2, 16);
    open_fails(&o, TS_INVALID_ARGUMENT, "is a folder", "inside.txt");
    path = put("empty.txt", "", 0);
    open_fails(&o, TS_DATA_LOSS, "empty.txt", "is empty");
    path = put("one.txt", "x", 1);
    open_fails(&o, TS_INVALID_ARGUMENT, "3 tokens", "max_target_length=2 or less");
    o.add_bos = o.add_eos = false;
    open_fails(&o, TS_INVALID_ARGUMENT, "1 tokens", "longer file");
    path = put_counted("short.txt", 16);
    open_fails(&o, TS_INVALID_ARGUMENT, "needs at least 17", "max_target_length=15 or less");
    path = put_counted("small.txt", 19);
    o.eval_fraction = 0.1;
    o.split = TS_SPLIT_EVAL;
    open_fails(&o, TS_INVALID_ARGUMENT, "1 tokens for evaluation (1 of 19 tokens",
               "raise eval_fraction");
    path = put("zipped.txt", "\x1f\x8b\x08\x00 and more", 12);
    open_fails(&o, TS_DATA_LOSS, "gzip", "copy or download it again");
    path = "/nowhere/at/all.txt";
    open_fails(&o, TS_NOT_FOUND, "/nowhere/at/all.txt", "");
    path = put_counted("locked.txt", 100);
    o.split = TS_SPLIT_TRAIN;
    ts_file_fault(TS_FAULT_OPEN, 1, EACCES);
    open_fails(&o, TS_PERMISSION_DENIED, "locked.txt", "");
    ts_file_fault(0, 0, 0);
}

/* Files of ours under another dataset_type, and of other tools: what it is and what fits. */
static void test_foreign_formats(void **state)
{
    (void)state;
    static const uint32_t ids[40] = {5, 6, 7, 8};
    static const struct {
        const char *head;
        size_t n;
        const char *what, *advice;
    } formats[] = {
        {"GGUF\3\0\0\0", 8, "a model in GGUF", "weights"},
        {"\x40\0\0\0\0\0\0\0{\"__metadata__\"", 23, "safetensors", "load_parameters_path=FOLDER"},
        {"PAR1\x15\4", 6, "a Parquet file", "JSON lines"},
        {"PK\3\4\x14", 5, "a zip archive", "unpack it"},
        {"\x28\xb5\x2f\xfd\4", 5, "zstd", "copy or download it again"},
        {"BZh91AY&SY\x12", 11, "bzip2", "bunzip2"},
        {"\xfd"
         "7zXZ\0",
         6, "xz", "unxz"},
        {"\x7f\x45LF\2\1", 6, "a program", "text"},
        {"\xff\xfeh\0i\0", 6, "UTF-16", "iconv"},
        {"ARROW1\0\0", 8, "an Arrow file", "JSON lines"},
        {"%PDF-1.7", 8, "a PDF", "pdftotext"},
    };
    const char *path = put_tokens("ids.bin", 20240520, 1, 40, ids, 40);
    ts_loader_options o = options(TS_DATA_TEXT, &path, 1, 1, 8);
    open_fails(&o, TS_DATA_LOSS, "a token file", "set dataset_type=tokens");
    o.type = TS_DATA_JSONL;
    open_fails(&o, TS_DATA_LOSS, "a token file", "set dataset_type=tokens");
    o.type = TS_DATA_TEXT;
    path = put_tokens("wide.bin", 20240801, 7, 40, ids, 40);
    open_fails(&o, TS_DATA_LOSS, "a token file", "set dataset_type=tokens");
    char text[600];
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        memset(text, 'x', sizeof text);
        memcpy(text, formats[i].head, formats[i].n);
        path = put("foreign.txt", text, sizeof text);
        for (int type = 0; type < 3; type++) {
            static const ts_data_type types[] = {TS_DATA_TEXT, TS_DATA_JSONL, TS_DATA_TOKENS};
            o.type = types[type];
            open_fails(&o, TS_DATA_LOSS, formats[i].what, formats[i].advice);
        }
    }
    memcpy(text + 257, "ustar", 5);
    memset(text, 'a', 100);
    path = put("foreign.tar", text, sizeof text);
    o.type = TS_DATA_TEXT;
    open_fails(&o, TS_DATA_LOSS, "a tar archive", "tar -xf");
    /* Text that only begins like one of them. */
    path = put_text("story.txt", "BZh was the name; PAR for the course, GGU and more of the same.");
    ts_loader_free(open_ok(&o));
}

static void test_options_refused(void **state)
{
    (void)state;
    const char *path = put_counted("ok.txt", 100);
    ts_loader_options good = options(TS_DATA_TEXT, &path, 1, 2, 16), o = good;
    o.rows = 0;
    open_fails(&o, TS_INVALID_ARGUMENT, "0 rows", "at least 1");
    o = good;
    o.sequence = INT64_MAX;
    open_fails(&o, TS_INVALID_ARGUMENT, "2^31", "");
    o = good;
    o.epochs = -1;
    open_fails(&o, TS_INVALID_ARGUMENT, "num_epoch=-1", "0 for no end");
    o = good;
    o.eval_fraction = 1;
    open_fails(&o, TS_INVALID_ARGUMENT, "eval_fraction=1", "0.1");
    o = good;
    o.eval_fraction = 1.0000001;
    open_fails(&o, TS_INVALID_ARGUMENT, "eval_fraction=1.0000001;", "0.1");
    o = good;
    o.eval_fraction = 0.9999999;
    open_fails(&o, TS_INVALID_ARGUMENT, "eval_fraction=0.9999999)", "");
    o = good;
    o.eval_fraction = 0.0 / 0.0;
    open_fails(&o, TS_INVALID_ARGUMENT, "eval_fraction", "below 1");
    o = good;
    o.vocab_size = 256;
    open_fails(&o, TS_INVALID_ARGUMENT, "vocab_size=256", "vocab_size=259 or more");
    o = good;
    o.tokenizer = NULL;
    open_fails(&o, TS_INVALID_ARGUMENT, "needs a tokenizer", "tokenizer_type");
    o = good;
    o.n_paths = 0;
    open_fails(&o, TS_INVALID_ARGUMENT, "dataset_path", "separated by commas");
    o = good;
    o.max_segments = 0;
    open_fails(&o, TS_INVALID_ARGUMENT, "max_segments_per_seq=0", "-1");
    o = good;
    o.type = TS_DATA_SYNTHETIC;
    o.tokenizer = NULL;
    open_fails(&o, TS_INVALID_ARGUMENT, "vocab_size=0", "");
}

static void test_tokens_bad_input(void **state)
{
    (void)state;
    static const uint32_t ids[20] = {5, 6, 70000, 8};
    const char *path = NULL;
    ts_loader_options o = options(TS_DATA_TOKENS, &path, 1, 1, 8);
    o.tokenizer = NULL;
    o.vocab_size = 100;
    path = put_text("text.bin", "this is text");
    open_fails(&o, TS_DATA_LOSS, "12 bytes", "header of 1024");
    path = put_counted("text2.bin", 4000);
    open_fails(&o, TS_DATA_LOSS, "magic number", "20240520");
    path = put_tokens("v.bin", 20240520, 2, 20, ids, 20);
    open_fails(&o, TS_DATA_LOSS, "version 2", "has version 1");
    path = put_tokens("v7.bin", 20240801, 1, 20, ids, 20);
    open_fails(&o, TS_DATA_LOSS, "version 1", "has version 7");
    path = put_tokens("neg.bin", 20240520, 1, -3, ids, 20);
    open_fails(&o, TS_DATA_LOSS, "says -3 tokens", "room for 20");
    path = put_tokens("cut.bin", 20240520, 1, 21, ids, 20);
    open_fails(&o, TS_DATA_LOSS, "is cut", "1066 bytes");
    path = put_tokens("long.bin", 20240520, 1, 19, ids, 20);
    open_fails(&o, TS_DATA_LOSS, "too long", "1062 bytes");
    path = put_tokens("vocab.bin", 20240801, 7, 20, ids, 20);
    open_fails(&o, TS_DATA_LOSS, "token 2 is 70000", "another tokenizer");
    path = put_tokens("few.bin", 20240520, 1, 4, (const uint32_t[]){1, 2, 3, 4}, 4);
    open_fails(&o, TS_INVALID_ARGUMENT, "4 tokens", "max_target_length=3 or less");
    path = put("none.bin", "", 0);
    open_fails(&o, TS_DATA_LOSS, "is empty", "");
}

static void test_jsonl_bad_rows(void **state)
{
    (void)state;
    static const char text[] = "{\"text\": \"good\"}\n" /* 1 */
                               "{\"text\": \"cut\n"     /* 2: not JSON */
                               "\n"
                               "{\"text\": \"\"}\n"     /* 4: empty */
                               "{\"txt\": \"a\"}\n"     /* 5: no key */
                               "{\"text\": 5}\n"        /* 6: no string */
                               "[\"text\"]\n"           /* 7: no object */
                               "{\"text\": \"\xff\"}\n" /* 8: not UTF-8 */
                               "{\"text\": \"a much longer line than the others of this file, and "
                               "more\"}\n"                            /* 9: too long */
                               "{\"text\": \"a\", \"text\": \"b\"}\n" /* 10: a key twice */
                               "{\"text\": \"good too\"}";            /* 11 */
    static const char *const reasons[] = {":2: ",
                                          ":4: the text is empty",
                                          ":5: no key \"text\"; the row has: txt",
                                          ":6: key \"text\" is a number",
                                          ":7: not a JSON object",
                                          ":8: not UTF-8",
                                          ":9: the line is too long",
                                          ":10: "};
    const char *path = put("bad.jsonl", text, sizeof text - 1);
    ts_loader_options o = options(TS_DATA_JSONL, &path, 1, 2, 32);
    o.max_row_bytes = 40;
    ts_loader *l = open_ok(&o);
    ts_loader_stats stats = ts_loader_stats_of(l);
    assert_int_equal(stats.rows, 10);
    assert_int_equal(stats.bad_rows, 8);
    assert_int_equal(stats.samples, 2);
    for (size_t i = 0; i < 8; i++) {
        if (!strstr(ts_loader_bad_row_at(l, i), reasons[i]))
            print_message("%s\n", ts_loader_bad_row_at(l, i));
        assert_non_null(strstr(ts_loader_bad_row_at(l, i), reasons[i]));
    }
    assert_null(ts_loader_bad_row_at(l, 8));
    assert_null(ts_loader_bad_row_at(l, 8000));
    ts_loader_free(l);
    o.on_bad_row = TS_BAD_ROW_STOP;
    open_fails(&o, TS_DATA_LOSS, "bad.jsonl:2: not valid JSON", "on_bad_row=skip");
    o.on_bad_row = TS_BAD_ROW_SKIP;
    path = put_text("all.jsonl", "{\"a\": \"x\"}\n{\"a\": \"y\"}\n");
    open_fails(&o, TS_DATA_LOSS, "none of the 2 rows", "no key \"text\"; the row has: a");
    path = put_text("blank.jsonl", "\n  \n\t\n");
    open_fails(&o, TS_DATA_LOSS, "only blank lines", "");
    path = put_text("array.jsonl", "[\n{\"text\": \"a\"},\n{\"text\": \"b\"}\n]\n");
    open_fails(&o, TS_DATA_LOSS, "one JSON list", "one object a line");
}

static void test_jsonl_long_rows(void **state)
{
    (void)state;
    /* A line of 3 MiB: longer than the read chunk, then one over the limit of 4 MiB, then a short
     * one. */
    enum { MIB = 1 << 20 };
    char *text = malloc(9 * MIB);
    size_t at = 0;
    for (int line = 0; line < 2; line++) {
        size_t n = (line ? 5u : 3u) * MIB;
        at += (size_t)sprintf(text + at, "{\"text\": \"");
        memset(text + at, 'a' + line, n);
        at += n;
        at += (size_t)sprintf(text + at, "\"}\n");
    }
    at += (size_t)sprintf(text + at, "{\"text\": \"short\"}\n");
    const char *path = put("long.jsonl", text, at);
    free(text);
    ts_loader_options o = options(TS_DATA_JSONL, &path, 1, 1, 1024);
    o.max_row_bytes = 4 * MIB;
    ts_loader *l = open_ok(&o);
    assert_int_equal(ts_loader_stats_of(l).samples, 2);
    assert_int_equal(ts_loader_stats_of(l).bad_rows, 1);
    assert_int_equal(ts_loader_stats_of(l).cut_rows, 1);
    assert_non_null(strstr(ts_loader_bad_row_at(l, 0), ":2: the line is too long"));
    ts_loader_free(l);
    o.truncate = false;
    l = open_ok(&o);
    assert_int_equal(ts_loader_stats_of(l).samples, 1);
    assert_non_null(strstr(ts_loader_bad_row_at(l, 0), ":1: 3145730 tokens"));
    ts_loader_free(l);
    o.packing = TS_PACK_CONCAT;
    l = open_ok(&o);
    full_batch f = batch_new(1, 1024);
    int64_t trained = 0;
    while (next(l, &f)) trained += f.b.trained_tokens;
    assert_int_equal(trained, 3 * MIB + 1 + 6);
    batch_free(&f);
    ts_loader_free(l);
}

/* A file that changes under a run is an error, and the position stays. */
static void test_jsonl_changed_file(void **state)
{
    (void)state;
    const char *path = put_rows("change.jsonl", 50, 10);
    ts_loader_options o = options(TS_DATA_JSONL, &path, 1, 2, 64);
    o.packing = TS_PACK_NONE; /* so that the cursor has moved when the read fails */
    ts_loader *l = open_ok(&o);
    full_batch f = batch_new(2, 64);
    assert_true(next(l, &f));
    char *before = position_text(l);
    put_text("change.jsonl", "gone");
    ts_error err = {0};
    assert_int_equal(ts_loader_next(l, &f.b, &err), TS_DATA_LOSS);
    assert_non_null(strstr(err.msg, "change.jsonl"));
    char *now = position_text(l);
    assert_string_equal(before, now);
    free(before);
    free(now);
    batch_free(&f);
    ts_loader_free(l);
}

/* Every allocation and every read of opening and of a batch fails once: an error each time, no leak
 * (the sanitizer's part), and success at the end. */
static void test_every_failure(void **state)
{
    (void)state;
    const char *rows = put_rows("f.jsonl", 20, 3), *text = put_counted("f.txt", 300);
    full_batch f = batch_new(2, 32);
    for (int kind = 0; kind < 4; kind++) {
        bool memory = kind % 2 == 0;
        ts_loader_options o = kind < 2 ? options(TS_DATA_JSONL, &rows, 1, 2, 32)
                                       : options(TS_DATA_TEXT, &text, 1, 2, 32);
        uint64_t nth = 0;
        ts_status status = TS_UNKNOWN;
        while (status != TS_OK && ++nth < 5000) {
            ts_loader *l = NULL;
            ts_error err = {0};
            if (memory)
                ts_alloc_fail_at(nth);
            else
                ts_file_fault(TS_FAULT_OPEN | TS_FAULT_READ, nth, EIO);
            status = ts_loader_open(&o, &l, &err);
            if (status == TS_OK) status = ts_loader_next(l, &f.b, &err);
            ts_alloc_fail_at(0);
            ts_file_fault(0, 0, 0);
            if (status != TS_OK) assert_true(err.msg[0] != 0);
            ts_loader_free(l);
        }
        assert_int_equal(status, TS_OK);
        assert_true(nth > 2);
    }
    batch_free(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text_bad_input),   cmocka_unit_test(test_options_refused),
        cmocka_unit_test(test_tokens_bad_input), cmocka_unit_test(test_jsonl_bad_rows),
        cmocka_unit_test(test_jsonl_long_rows),  cmocka_unit_test(test_jsonl_changed_file),
        cmocka_unit_test(test_every_failure),    cmocka_unit_test(test_foreign_formats),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
