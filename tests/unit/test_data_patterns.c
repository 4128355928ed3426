/* test_data_patterns.c – data files by pattern: which names match, in which order, and what is said
 * when none does. The matcher is compared with the C library's on random patterns. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>
#include <fnmatch.h>

#include "base/file.h"
#include "base/random.h"
#include "train/config.h"
#include "train/run.h"

static char folder[64];

static void put(const char *name)
{
    char path[300];
    ts_writer *w = NULL;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_int_equal(ts_writer_open(path, false, &w, NULL), TS_OK);
    assert_int_equal(ts_writer_write(w, "{\"text\": \"a\"}\n", 14, NULL), TS_OK);
    assert_int_equal(ts_writer_close(w, false, NULL), TS_OK);
}

static void make(const char *name)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_int_equal(ts_make_folders(path, NULL), TS_OK);
}

static int set_up(void **state)
{
    (void)state;
    static const char *const files[] = {
        "part-00000-of-00003.jsonl.gz", "part-00001-of-00003.jsonl.gz",
        "part-00002-of-00003.jsonl.gz", "part-00002-of-00003.jsonl.gz.tmp",
        ".part-9.jsonl.gz", "z[1].jsonl", "z1.jsonl", "\xc3\xa4.jsonl", "a/x.jsonl", "a-b/x.jsonl",
        "a/y.txt", "empty/only/x.txt"};
    strcpy(folder, "/tmp/tessera-patterns-XXXXXX");
    if (!mkdtemp(folder)) return -1;
    make("a");
    make("a-b");
    make("empty/only");
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) put(files[i]);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    return ts_remove_tree(folder, NULL) == TS_OK ? 0 : -1;
}

/* @ stands for the folder, as often as it comes. */
static ts_status load_key(const char *key, const char *value, const char *more, ts_config **c,
                          ts_error *err)
{
    char word[4000], *to = word + sprintf(word, "%s=", key);
    for (const char *from = value; *from; from++)
        to += *from == '@' ? sprintf(to, "%s", folder) : sprintf(to, "%c", *from);
    const char *words[] = {"dataset_type=jsonl", "run_name=r", word, more};
    *err = (ts_error){0};
    return ts_config_load_words(words, more ? 4 : 3, c, err);
}

/* The files, without the folder, joined by blanks. */
static void gives(const char *value, const char *expected)
{
    ts_config *c = NULL;
    ts_error err;
    char found[2000] = "";
    if (load_key("dataset_path", value, NULL, &c, &err) != TS_OK) fail_msg("%s", err.msg);
    for (size_t i = 0; i < c->dataset_path.n; i++)
        sprintf(found + strlen(found), "%s%s", i ? " " : "",
                c->dataset_path.item[i] + strlen(folder) + 1);
    assert_string_equal(found, expected);
    ts_config_free(c);
}

static void refused(const char *value, const char *message)
{
    ts_config *c = NULL;
    ts_error err;
    if (load_key("dataset_path", value, NULL, &c, &err) == TS_OK) fail_msg("%s passes", value);
    if (strncmp(err.msg, "1 error ", 8) || !strstr(err.msg, message))
        fail_msg("expected \"%s\", found:\n%s", message, err.msg);
}

static void names_that_match(void **state)
{
    (void)state;
    gives("@/part-*-of-00003.jsonl.gz",
          "part-00000-of-00003.jsonl.gz part-00001-of-00003.jsonl.gz part-00002-of-00003.jsonl.gz");
    gives("@/part-0000[0-1]*.gz", "part-00000-of-00003.jsonl.gz part-00001-of-00003.jsonl.gz");
    gives("@/part-0000[!1-9]*.gz", "part-00000-of-00003.jsonl.gz");
    gives("@/part-?0001*", "part-00001-of-00003.jsonl.gz");
    gives("@/.part-*", ".part-9.jsonl.gz"); /* a dot is never taken by * or ? */
    gives("@/z[1].jsonl", "z[1].jsonl");    /* a file of that very name wins */
    gives("@/z[1-1].jsonl", "z1.jsonl");
    gives("@/z[[]1].jsonl", "z[1].jsonl");
    gives("@/?.jsonl", "\xc3\xa4.jsonl"); /* a character, not a byte */
    gives("@/[\xc3\xa0-\xc3\xb6].jsonl", "\xc3\xa4.jsonl");
    gives("@/*/x.jsonl", "a-b/x.jsonl a/x.jsonl"); /* by bytes of the whole path: '-' is before '/' */
    gives("@/a*/*.jsonl,@/z1.jsonl", "a-b/x.jsonl a/x.jsonl z1.jsonl"); /* patterns in their order */
    gives("@/z1.jsonl,@/a*/*.jsonl", "z1.jsonl a-b/x.jsonl a/x.jsonl");
    gives("@//a//*.jsonl", "/a//x.jsonl");
    gives("[\"@/a/*.jsonl\", \"@/z1.jsonl\"]", "a/x.jsonl z1.jsonl");
}

static void nothing_matches(void **state)
{
    (void)state;
    refused("@/part-*-of-00064.jsonl.gz", "matches no file; ");
    refused("@/part-*-of-00064.jsonl.gz", "holds part-00000-of-00003.jsonl.gz and 7 others");
    refused("@/a/*.json", "/a holds x.jsonl and 1 other");
    refused("@/gone/*.jsonl", "/gone does not exist");
    refused("@/empt?", "matches folders alone, such as ");
    refused("@/empty/*.jsonl", "matches no file");
    refused("@/*part-9.jsonl.gz", "matches no file"); /* its name begins with a dot */
    refused("@/?part-9.jsonl.gz", "matches no file");
    refused("@/**/x.jsonl", "** is not read");
    refused("@/a/", "is a folder; expected files, such as");
    refused("@/a", "/a/*.jsonl (it holds ");
    refused("gs://bucket/*.jsonl", "mount the bucket");
    refused("@/z1.jsonl,@/z1.jsonl", "z1.jsonl is named twice");
    refused("@/z1.jsonl,@/./z1.jsonl", "are the same file");
    refused("@/z*.jsonl,@/z1.jsonl", "z1.jsonl is named twice");
    ts_config *c = NULL;
    ts_error err;
    assert_int_equal(load_key("eval_dataset_path", "@/q*", "steps=0", &c, &err),
                     TS_INVALID_ARGUMENT);
    assert_non_null(strstr(err.msg, "3 errors")); /* no dataset_path, steps, and this one */
    assert_non_null(strstr(err.msg, "eval_dataset_path="));
}

/* A compressed file beside the plain one: both are read, and that is said. */
static void both(void **state)
{
    (void)state;
    ts_config *c = NULL;
    ts_error err;
    make("both");
    put("both/a.jsonl");
    put("both/b.jsonl");
    put("both/b.jsonl.zst");
    if (load_key("dataset_path", "@/both/*", NULL, &c, &err) != TS_OK) fail_msg("%s", err.msg);
    bool said = false;
    for (size_t i = 0; i < c->n_notes; i++)
        said = said || strstr(c->notes[i], "both/b.jsonl.zst is read beside ");
    assert_true(said);
    assert_int_equal(c->dataset_path.n, 3);
    ts_config_free(c);
}

/* What is compiled elsewhere is compiled without its data, and a pattern then stands for several files. */
static void elsewhere(void **state)
{
    (void)state;
    ts_config *c = NULL;
    ts_error err;
    if (load_key("dataset_path", "@/gone-*.jsonl", "compile_topology=cpu:2", &c, &err) != TS_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(c->dataset_path.n, 1);
    assert_non_null(strstr(c->data_problem, "gone-*.jsonl does not exist"));
    c->dataset = TS_DATA_TEXT; /* rows of jsonl are packed anyway */
    assert_true(ts__program_options(c, &c->model).packed);
    ts_config_free(c);
    if (load_key("dataset_path", "@/gone.jsonl", "compile_topology=cpu:2", &c, &err) != TS_OK)
        fail_msg("%s", err.msg);
    c->dataset = TS_DATA_TEXT;
    assert_false(ts__program_options(c, &c->model).packed);
    ts_config_free(c);
}

static void names_that_cannot_be_written_down(void **state)
{
    (void)state;
    put("bad-\xff.jsonl");
    refused("@/bad-*", "name is not UTF-8");
    put("odd \"n'a,m\ne.jsonl"); /* and config.yml gives back what is odd but text */
    ts_config *c = NULL, *again = NULL;
    ts_error err;
    if (load_key("dataset_path", "@/odd*", NULL, &c, &err) != TS_OK) fail_msg("%s", err.msg);
    char path[300];
    snprintf(path, sizeof path, "%s/config.yml", folder);
    assert_int_equal(ts_config_write(c, path, &err), TS_OK);
    if (ts_config_load(path, NULL, 0, &again, &err) != TS_OK) fail_msg("%s", err.msg);
    assert_int_equal(again->dataset_path.n, 1);
    assert_string_equal(again->dataset_path.item[0], c->dataset_path.item[0]);
    ts_config_free(c);
    ts_config_free(again);
}

/* Random patterns over few letters, against fnmatch: both see the same files. */
static void like_the_c_library(void **state)
{
    (void)state;
    static const char letters[] = "ab*?[]!-";
    char names[120][8], pattern[16];
    uint64_t seed = 7;
    make("m");
    for (int i = 0; i < 120; i++) {
        int n = 1 + (int)(ts_mix64(seed++) % 6);
        for (int k = 0; k < n; k++) names[i][k] = "ab-.]"[ts_mix64(seed++) % 5];
        names[i][n] = '\0';
        char path[40];
        snprintf(path, sizeof path, "m/f%s", names[i]);
        put(path);
    }
    for (int round = 0; round < 3000; round++) {
        int n = 1 + (int)(ts_mix64(seed++) % 8);
        for (int k = 0; k < n; k++) pattern[k] = letters[ts_mix64(seed++) % (sizeof letters - 1)];
        pattern[n] = '\0';
        if (!strpbrk(pattern, "*?[") || strstr(pattern, "**")) continue;
        char value[64], listed[32];
        snprintf(listed, sizeof listed, "f%s", pattern);
        snprintf(value, sizeof value, "[\"@/m/%s\"]", listed);
        ts_config *c = NULL;
        ts_error err;
        ts_status status = load_key("dataset_path", value, NULL, &c, &err);
        size_t expected = 0, found = status == TS_OK ? c->dataset_path.n : 0;
        char seen[120][16];
        for (int i = 0; i < 120; i++) {
            char whole[16];
            bool known = false;
            snprintf(whole, sizeof whole, "f%.7s", names[i]);
            for (size_t k = 0; k < expected; k++) known = known || !strcmp(seen[k], whole);
            if (!known && fnmatch(listed, whole, FNM_PERIOD | FNM_NOESCAPE) == 0)
                strcpy(seen[expected++], whole);
        }
        bool literal = strcspn(listed, "*?[") == strlen(listed);
        if (!literal && found != expected)
            fail_msg("%s: fnmatch finds %zu, here %zu (%s)", listed, expected, found, err.msg);
        ts_config_free(c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_that_match),
        cmocka_unit_test(nothing_matches),
        cmocka_unit_test(both),
        cmocka_unit_test(elsewhere),
        cmocka_unit_test(names_that_cannot_be_written_down),
        cmocka_unit_test(like_the_c_library),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
