/* test_config_mixture.c – dataset_mixture: how sources are written, what is refused and with which words, and that what
 * config.yml keeps loads the same. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "train/config.h"

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

static int set_up(void **state)
{
    static const char *const files[] = {"web-0.jsonl", "web-1.jsonl", "code.jsonl", "more.jsonl.gz",
                                        "c+d.jsonl",   "c",           "a:b.jsonl",  "d.jsonl"};
    char path[300];
    (void)state;
    strcpy(folder, "/tmp/tessera-mixture-XXXXXX");
    if (!mkdtemp(folder)) return -1;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) put(files[i]);
    snprintf(path, sizeof path, "%s/inner", folder);
    if (mkdir(path, 0777) != 0) return -1;
    put("inner/x.jsonl");
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    return ts_remove_tree(folder, NULL) == TS_OK ? 0 : -1;
}

/* @ is the folder. */
static void expand(const char *from, char *to, size_t n)
{
    size_t at = 0;
    for (; *from; from++) {
        assert_true(at + sizeof folder < n);
        if (*from == '@')
            at += (size_t)snprintf(to + at, n - at, "%s", folder);
        else
            to[at++] = *from;
    }
    to[at] = 0;
}

static ts_status load(const char *mixture, const char *more, ts_config **c, ts_error *err)
{
    char word[12000], other[300] = "dataset_type=jsonl", out[100];
    *err = (ts_error){0};
    *c = NULL;
    snprintf(out, sizeof out, "base_output_directory=%s", folder);
    snprintf(word, sizeof word, "dataset_mixture=");
    expand(mixture, word + strlen(word), sizeof word - strlen(word));
    if (more) expand(more, other, sizeof other);
    const char *const words[] = {"dataset_type=jsonl", "run_name=x", out, word, other};
    /* The first is left out where more says it. */
    const int skip = more && strncmp(more, "dataset_type", 12) == 0;
    return ts_config_load(NULL, words + skip, (more ? 5 : 4) - skip, c, err);
}

static ts_config *loads(const char *mixture)
{
    ts_config *c;
    ts_error err;
    if (load(mixture, NULL, &c, &err) != TS_OK) fail_msg("%s: %s", mixture, err.msg);
    return c;
}

static void refused(const char *mixture, const char *more, const char *text)
{
    ts_config *c;
    ts_error err;
    char want[400];
    expand(text, want, sizeof want);
    assert_int_equal(load(mixture, more, &c, &err), TS_INVALID_ARGUMENT);
    if (!strstr(err.msg, want)) fail_msg("%s: not said: %s\n%s", mixture, want, err.msg);
    if (!strstr(err.msg, "dataset_mixture=")) fail_msg("%s: no key: %s", mixture, err.msg);
}

/* The files of one source as "a b", without the folder. */
static void has(const ts_config *c, size_t i, const char *name, double weight, const char *files)
{
    char text[1000] = "";
    const ts_loader_source *s = &c->mixture[i];
    assert_true(i < c->n_mixture);
    assert_string_equal(s->name, name);
    assert_true(s->weight == weight);
    for (size_t k = 0; k < s->n_paths; k++) {
        const char *path = s->paths[k];
        assert_true(strncmp(path, folder, strlen(folder)) == 0);
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", k ? " " : "",
                 path + strlen(folder) + 1);
    }
    assert_string_equal(text, files);
}

/* ---- what is read ---------------------------------------------------------------------------- */

static void sources_are_read(void **state)
{
    (void)state;
    ts_config *c = loads("[web:0.7:@/web-*.jsonl,code:0.3:@/code.jsonl+@/more.jsonl.gz]");
    assert_int_equal(c->n_mixture, 2);
    has(c, 0, "web", 0.7, "web-0.jsonl web-1.jsonl");
    has(c, 1, "code", 0.3, "code.jsonl more.jsonl.gz");
    ts_loader_options o;
    ts_config_loader_options(c, TS_SPLIT_TRAIN, NULL, &o);
    assert_ptr_equal(o.sources, c->mixture);
    assert_int_equal(o.n_sources, 2);
    assert_int_equal(o.n_paths, 0);
    assert_int_equal(ts_config_eval_sources(c), 2);
    ts_config_eval_options(c, 1, NULL, &o);
    assert_null(o.sources);
    assert_int_equal(o.n_paths, 2);
    assert_string_equal(o.paths[0], c->mixture[1].paths[0]);
    assert_int_equal(o.split, TS_SPLIT_EVAL);
    ts_config_free(c);
    c = loads(
        "A-1_b.c:3:@/code.jsonl"); /* one is a mixture too; without brackets; a whole number */
    has(c, 0, "A-1_b.c", 3, "code.jsonl");
    ts_config_free(c);
    c = loads("a:1e-3:@/d.jsonl,b:1000:@/web-?.jsonl+@/code.jsonl");
    has(c, 0, "a", 1e-3, "d.jsonl");
    has(c, 1, "b", 1000, "web-0.jsonl web-1.jsonl code.jsonl");
    ts_config_free(c);
}

/* Names with a colon or a plus. */
static void odd_names(void **state)
{
    (void)state;
    ts_config *c = loads("[a:1:@/a:b.jsonl,b:1:@/c+d.jsonl,d:1:@/c+@/d.jsonl]");
    has(c, 0, "a", 1, "a:b.jsonl");
    has(c, 1, "b", 1, "c+d.jsonl");
    has(c, 2, "d", 1, "c d.jsonl");
    ts_config_free(c);
    c = loads("[x:1:@/c++d.jsonl+@/d.jsonl]");
    has(c, 0, "x", 1, "c+d.jsonl d.jsonl");
    ts_config_free(c);
}

/* config.yml has the files, and gives them back when more match. */
static void what_is_written_loads_the_same(void **state)
{
    char path[200];
    ts_config *c = loads("[web:0.7:@/web-*.jsonl,odd:.25:@/c*d.jsonl+@/a:b.jsonl]"), *again = NULL;
    ts_error err = {0};
    (void)state;
    snprintf(path, sizeof path, "%s/written.yml", folder);
    assert_int_equal(ts_config_write(c, path, &err), TS_OK);
    put("web-2.jsonl");
    if (ts_config_load(path, NULL, 0, &again, &err) != TS_OK) fail_msg("%s", err.msg);
    has(again, 0, "web", 0.7, "web-0.jsonl web-1.jsonl");
    has(again, 1, "odd", 0.25, "c+d.jsonl a:b.jsonl");
    ts_config_free(again);
    ts_config_free(c);
    snprintf(path, sizeof path, "%s/web-2.jsonl", folder);
    assert_int_equal(unlink(path), 0);
}

/* ---- what is refused ------------------------------------------------------------------------- */

static void wrong_sources(void **state)
{
    static const struct {
        const char *mixture, *text;
    } cases[] = {
        {"web", "expected NAME:WEIGHT:FILES, such as web:0.7:web-*.jsonl"},
        {"web:0.7", "expected NAME:WEIGHT:FILES"},
        {"@/web-0.jsonl", "expected NAME:WEIGHT:FILES"},
        {"web:0.7:", "has no files"},
        {":0.7:@/code.jsonl", "has no name"},
        {"my web:1:@/code.jsonl",
         "the name my web goes into metrics; expected letters, digits, - _ and . alone, such as "
         "my-web"},
        {"a/b:1:@/code.jsonl", "such as a-b"},
        {"n23456789012345678901234567890123456789012345678901234567890123456:1:@/code.jsonl",
         "its name has 66 bytes; expected at most 64"},
        {"a:1:@/code.jsonl,b:1:@/d.jsonl,a:1:@/c", "source 1 is named a too"},
        {"a::@/code.jsonl", "its weight is missing"},
        {"a:half:@/code.jsonl", "its weight is half; expected a number between 1e-6 and 1e6"},
        {"a:0:@/code.jsonl", "its weight is 0; expected a number"},
        {"a:0:@/code.jsonl", "leave out a source that is not wanted"},
        {"a:-1:@/code.jsonl", "its weight is -1"},
        {"a:nan:@/code.jsonl", "its weight is nan"},
        {"a:.nan:@/code.jsonl", "its weight is .nan"},
        {"a:inf:@/code.jsonl", "its weight is inf"},
        {"a:.inf:@/code.jsonl", "its weight is .inf"},
        {"a:1e400:@/code.jsonl", "its weight is 1e400"},
        {"a:1e7:@/code.jsonl", "between 1e-6 and 1e6"},
        {"a:1e-7:@/code.jsonl", "between 1e-6 and 1e6"},
        {"a:1 2:@/code.jsonl", "its weight is 1 2"},
        {"a:1:@/cude.jsonl", "@/cude.jsonl does not exist; did you mean @/code.jsonl?"},
        {"a:1:@/inner", "@/inner is a folder; expected files, such as @/inner/*.jsonl"},
        {"a:1:@/wob-*.jsonl", "@/wob-*.jsonl matches no file"},
        {"a:1:@/**/x.jsonl", "** is not read"},
        {"a:1:gs://bucket/x.jsonl", "mount the bucket"},
        {"a:1:@/code.jsonl+", "a file of it has no name"},
        {"a:1:+@/code.jsonl", "a file of it has no name"},
        {"a:1:@/code.jsonl+@/./code.jsonl", "are the same file"},
        {"a:1:@/code.jsonl,b:1:@/./code.jsonl", "sources a and b both have @/./code.jsonl"},
        {"a:1:@/web-*.jsonl,b:1:@/web-1.jsonl", "sources a and b both have @/web-1.jsonl"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        refused(cases[i].mixture, NULL, cases[i].text);
}

static void with_other_keys(void **state)
{
    (void)state;
    refused("a:1:@/code.jsonl", "dataset_type=synthetic", "dataset_type=synthetic reads no file");
    refused("a:1:@/code.jsonl", "dataset_path=@/d.jsonl",
            "dataset_path says what to train on; keep one of the two");
}

/* Each wrong source is named, with its own text, in one message; right ones are not. */
static void all_at_once(void **state)
{
    ts_config *c;
    ts_error err;
    (void)state;
    assert_int_equal(
        load("[good:1:@/c,web:zero:@/web-0.jsonl,code:1:@/cude.jsonl,last:1]", NULL, &c, &err),
        TS_INVALID_ARGUMENT);
    assert_non_null(strstr(err.msg, "3 errors in the configuration"));
    assert_non_null(strstr(err.msg, "dataset_mixture=web:zero:"));
    assert_non_null(strstr(err.msg, "dataset_mixture=code:1:"));
    assert_non_null(strstr(err.msg, "dataset_mixture=last:1 "));
    assert_null(strstr(err.msg, "good"));
}

static void too_many(void **state)
{
    char text[8000] = "[";
    (void)state;
    for (int i = 0; i < 65; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%ss%d:1:@/s%d.jsonl",
                 i ? "," : "", i, i);
    strcat(text, "]");
    refused(text, NULL, "has 65 sources; expected at most 64");
}

/* A user of another trainer's key hears of this one. */
static void a_note_points_here(void **state)
{
    const char *const words[] = {"grain_train_files=a*,0.3;b*,0.7"};
    ts_config *c = NULL;
    ts_error err = {0};
    bool found = false;
    (void)state;
    if (ts_config_load(NULL, words, 1, &c, &err) != TS_OK) fail_msg("%s", err.msg);
    for (size_t i = 0; i < c->n_notes; i++)
        found |= strstr(c->notes[i], "grain_train_files") && strstr(c->notes[i], "dataset_mixture");
    assert_true(found);
    ts_config_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sources_are_read),
        cmocka_unit_test(odd_names),
        cmocka_unit_test(what_is_written_loads_the_same),
        cmocka_unit_test(wrong_sources),
        cmocka_unit_test(with_other_keys),
        cmocka_unit_test(all_at_once),
        cmocka_unit_test(too_many),
        cmocka_unit_test(a_note_points_here),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
