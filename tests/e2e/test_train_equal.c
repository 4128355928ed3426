/* test_train_equal.c – runs that must give the same numbers, and parameters that must not move.
 *
 * The same batch in one piece, in two or in four; layers as one repeated body or each by itself; what backward
 * keeps or computes again: the losses of four steps agree. Frozen parameters keep their bits, a parameter
 * without weight decay differs from one with it, and all of that is read from the checkpoints that a run
 * leaves. Losses come from the step hook, with all their digits.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "ckpt/checkpoint.h"
#include "tessera.h"

enum { STEPS = 4, MAX_WORDS = 48 };

static char root[64], book[128], rows[128];

static int set_up(void **state)
{
    (void)state;
    strcpy(root, "/tmp/tessera-equal-XXXXXX");
    if (!mkdtemp(root)) return -1;
    snprintf(book, sizeof book, "%s/book.txt", root);
    snprintf(rows, sizeof rows, "%s/rows.jsonl", root);
    FILE *text = fopen(book, "w"), *json = fopen(rows, "w");
    if (!text || !json) return -1;
    for (int i = 0; i < 200; i++) {
        fprintf(text, "line %d of the book has %d words\n", i, i * 37 % 101);
        fprintf(json, "{\"text\": \"%.*s\"}\n", 2 + i * 7 % 11, &"abcdefghijklmnopqrst"[i % 7]);
    }
    return fclose(text) | fclose(json);
}

static int tear_down(void **state)
{
    (void)state;
    return ts_remove_tree(root, NULL) == TS_OK ? 0 : -1;
}

typedef struct losses {
    double loss[STEPS], norm[STEPS];
    int64_t weights[STEPS];
    int n;
} losses;

static void on_step(void *context, const ts_step_info *i)
{
    losses *l = context;
    assert_true(l->n < STEPS && !i->skipped);
    l->loss[l->n] = i->loss;
    l->norm[l->n] = i->grad_norm;
    l->weights[l->n++] = i->trained_tokens;
}

/* Four steps of a tiny model; more: words "key=value", split at blanks. */
static losses run(const char *name, const char *more)
{
    static const char tiny[] =
        "base.yml base_emb_dim=16 base_num_query_heads=2 base_num_kv_heads=1 head_dim=8 "
        "base_mlp_dim=24 base_num_decoder_layers=3 vocab_size=259 max_target_length=16 dtype=float32 "
        "steps=4 learning_rate=1e-2 warmup_steps_fraction=0 threads=1 save_checkpoint_on_start=true";
    char text[2000], *word[MAX_WORDS], *at = NULL;
    int n = 0;
    snprintf(text, sizeof text, "%s run_name=%s base_output_directory=%s %s", tiny, name, root,
             more);
    for (char *w = strtok_r(text, " ", &at); w; w = strtok_r(NULL, " ", &at)) word[n++] = w;
    ts_config *c = NULL;
    ts_error err = {0};
    losses l = {0};
    ts_train_result result;
    ts_train_hooks hooks;
    ts_train_hooks_default(&hooks);
    hooks.context = &l;
    hooks.step = on_step;
    if (ts_config_load_words((const char *const *)word, n, &c, &err) != TS_OK ||
        ts_train(c, &hooks, &result, &err) != TS_OK)
        fail_msg("%s: %s", name, err.msg);
    ts_config_free(c);
    assert_int_equal(l.n, STEPS);
    assert_int_equal(result.steps, STEPS);
    return l;
}

static void expect_near(const char *name, const losses *a, const losses *b, double within)
{
    for (int i = 0; i < STEPS; i++) {
        assert_int_equal(a->weights[i], b->weights[i]);
        if (fabs(a->loss[i] - b->loss[i]) > within * fabs(a->loss[i]) ||
            fabs(a->norm[i] - b->norm[i]) > 100 * within * a->norm[i])
            fail_msg("%s, step %d: loss %.9g and %.9g, gradient norm %.9g and %.9g", name, i,
                     a->loss[i], b->loss[i], a->norm[i], b->norm[i]);
    }
}

static const char *data_words(const char *kind)
{
    static char text[400];
    if (strcmp(kind, "text") == 0)
        snprintf(text, sizeof text, "dataset_type=text dataset_path=%s", book);
    else
        snprintf(text, sizeof text, "dataset_type=jsonl dataset_path=%s packing=%s", rows,
                 strcmp(kind, "packed") == 0 ? "true" : "false");
    return text;
}

/* ---- the same step in pieces ------------------------------------------------------------------- */

static void accumulation_gives_the_big_batch(void **state)
{
    (void)state;
    static const char *const kinds[] = {"text", "packed", "padded"};
    for (int k = 0; k < 3; k++) {
        losses l[4];
        for (int i = 0; i < 4; i++) {
            char name[64], words[600];
            snprintf(name, sizeof name, "%s-%d", kinds[k], 1 << i);
            snprintf(
                words, sizeof words,
                "%s per_device_batch_size=%d gradient_accumulation_steps=%d enable_checkpointing=false",
                data_words(kinds[k]), 8 >> i, 1 << i);
            l[i] = run(name, words);
            expect_near(name, &l[0], &l[i], 1e-5);
        }
        assert_true(l[0].loss[STEPS - 1] < l[0].loss[0] - 0.1);
    }
}

static void layers_and_remat_change_no_loss(void **state)
{
    (void)state;
    static const char *const ways[] = {
        "scan_layers=true remat_policy=full", "scan_layers=false remat_policy=full",
        "scan_layers=true remat_policy=none", "scan_layers=false remat_policy=none"};
    static const char *const kinds[] = {"text", "packed"};
    for (int k = 0; k < 2; k++) {
        losses first = {0};
        for (int i = 0; i < 4; i++) {
            char name[64], words[600];
            snprintf(name, sizeof name, "way-%s-%d", kinds[k], i);
            snprintf(words, sizeof words,
                     "%s per_device_batch_size=4 enable_checkpointing=false %s",
                     data_words(kinds[k]), ways[i]);
            losses l = run(name, words);
            if (i == 0) first = l;
            assert_true(l.loss[0] == first.loss[0]); /* the same initial weights */
            expect_near(name, &first, &l, 1e-6);
        }
    }
}

/* ---- parameters in the checkpoints --------------------------------------------------------------- */

typedef struct pair {
    ts_checkpoint *start, *end;
    ts_tensors *before, *after; /* theirs */
} pair;

static pair open_pair(const char *name)
{
    pair p;
    ts_error err = {0};
    for (int i = 0; i < 2; i++) {
        char path[256];
        snprintf(path, sizeof path, "%s/%s/checkpoints/%d", root, name, i * STEPS);
        if (ts_checkpoint_open(path, i ? &p.end : &p.start, &err) != TS_OK) fail_msg("%s", err.msg);
    }
    p.before = ts_checkpoint_tensors(p.start);
    p.after = ts_checkpoint_tensors(p.end);
    return p;
}

static float *values(ts_tensors *t, const char *name, size_t *n)
{
    ts_error err = {0};
    const ts_tensor *x = ts_tensors_find(t, name);
    if (!x) fail_msg("no tensor %s", name);
    *n = (size_t)x->count;
    float *v = malloc(*n * sizeof *v);
    if (ts_tensors_read_f32(t, x, 0, x->count, v, &err) != TS_OK) fail_msg("%s", err.msg);
    return v;
}

static bool moved(const pair *p, const char *name)
{
    size_t n, m;
    float *a = values(p->before, name, &n), *b = values(p->after, name, &m);
    assert_int_equal(n, m);
    bool same = memcmp(a, b, n * sizeof *a) == 0;
    free(a);
    free(b);
    return !same;
}

static void frozen_parameters_keep_their_bits(void **state)
{
    (void)state;
    char words[600];
    snprintf(
        words, sizeof words,
        "%s per_device_batch_size=4 "
        "frozen_parameters=[model.embed_tokens.*,model.layers.*.mlp.*,*.input_layernorm.weight]",
        data_words("text"));
    run("frozen", words);
    pair p = open_pair("frozen");
    int frozen = 0, trained = 0;
    for (size_t i = 0; i < ts_tensors_count(p.before); i++) {
        const char *name = ts_tensors_at(p.before, i)->name;
        if (strncmp(name, "adam.", 5) == 0) continue;
        bool fixed = strstr(name, "embed_tokens") || strstr(name, ".mlp.") ||
                     strstr(name, "input_layernorm");
        char moment[600];
        snprintf(moment, sizeof moment, "adam.m.%s", name);
        if (moved(&p, name) == fixed) fail_msg("%s %s", name, fixed ? "moved" : "did not move");
        if ((ts_tensors_find(p.after, moment) == NULL) != fixed)
            fail_msg("%s %s a moment", name, fixed ? "has" : "has not");
        frozen += fixed;
        trained += !fixed;
    }
    assert_int_equal(frozen, 1 + 3 * 3 + 3);
    assert_int_equal(trained, 2 + 3 * 5);
    ts_checkpoint_close(p.start);
    ts_checkpoint_close(p.end);
}

static void frozen_needs_something_to_train(void **state)
{
    (void)state;
    char folder[100];
    ts_config *c = NULL;
    ts_error err = {0};
    ts_train_result result;
    ts_train_hooks hooks;
    ts_train_hooks_default(&hooks);
    snprintf(folder, sizeof folder, "base_output_directory=%s", root);
    const char *words[] = {"base.yml",
                           folder,
                           "run_name=ice",
                           "frozen_parameters=[*]",
                           "base_emb_dim=8",
                           "base_num_decoder_layers=1",
                           "head_dim=8",
                           "base_num_query_heads=1",
                           "base_num_kv_heads=1",
                           "base_mlp_dim=8",
                           "max_target_length=8",
                           "per_device_batch_size=1",
                           "vocab_size=300",
                           "steps=1"};
    assert_int_equal(ts_config_load_words(words, sizeof words / sizeof *words, &c, &err), TS_OK);
    assert_int_equal(ts_train(c, &hooks, &result, &err), TS_INVALID_ARGUMENT);
    assert_non_null(strstr(err.msg, "frozen_parameters covers every parameter"));
    ts_config_free(c);
}

/* The first step's update with and without decay differs by lr · decay · w, where the mask spares it by 0. */
static void mask_spares_parameters_from_decay(void **state)
{
    (void)state;
    char words[600];
    const char *spared = "model.norm.weight", *decayed = "model.layers.0.mlp.up_proj.weight";
    static const char *const keys[] = {"adam_weight_decay=0", "adam_weight_decay=0.5",
                                       "adam_weight_decay=0.5 adamw_mask=[*norm.weight]"};
    float *v[3][2];
    size_t n[2];
    for (int i = 0; i < 3; i++) {
        char name[32];
        snprintf(name, sizeof name, "decay-%d", i);
        snprintf(words, sizeof words, "%s per_device_batch_size=4 checkpoint_period=1 %s",
                 data_words("text"), keys[i]);
        run(name, words);
        char path[256];
        ts_tensors *t;
        ts_error err = {0};
        snprintf(path, sizeof path, "%s/%s/checkpoints/1/shard-00000-of-00001.safetensors", root,
                 name);
        if (ts_tensors_open(path, &t, &err) != TS_OK) fail_msg("%s", err.msg);
        v[i][0] = values(t, spared, &n[0]);
        v[i][1] = values(t, decayed, &n[1]);
        ts_tensors_close(t);
    }
    assert_memory_equal(v[0][0], v[2][0], n[0] * sizeof(float)); /* masked: as without decay */
    assert_memory_equal(v[1][1], v[2][1], n[1] * sizeof(float)); /* not masked: as with it */
    for (size_t i = 0; i < n[0]; i++) /* a norm begins at 1: lr 1e-2 · decay 0.5 · 1 */
        assert_true(fabs((double)(v[0][0][i] - v[1][0][i]) - 5e-3) < 1e-6);
    for (int i = 0; i < 6; i++) free(v[i / 2][i % 2]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accumulation_gives_the_big_batch),
        cmocka_unit_test(layers_and_remat_change_no_loss),
        cmocka_unit_test(frozen_parameters_keep_their_bits),
        cmocka_unit_test(frozen_needs_something_to_train),
        cmocka_unit_test(mask_spares_parameters_from_decay),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
