/* test_config_mesh.c – a configuration on its devices: the mesh that follows from ici_*_parallelism, the rows of a
 * batch, logical_axis_rules, and what each impossible one of them is refused with: the key and the values that work. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "train/config_internal.h"

enum { MAX_WORDS = 8 };

static ts_status load(const char *const *words, ts_config **c, ts_error *err)
{
    const char *list[MAX_WORDS + 1];
    int n = 0;
    for (; n < MAX_WORDS && words[n]; n++) list[n] = words[n];
    list[n++] = "run_name=r";
    *err = (ts_error){0};
    return ts_config_load_words(list, n, c, err);
}

static ts_config *must_load(const char *const *words)
{
    ts_config *c = NULL;
    ts_error err;
    if (load(words, &c, &err) != TS_OK) fail_msg("%s", err.msg);
    return c;
}
#define LOAD(...) must_load((const char *const[MAX_WORDS]){__VA_ARGS__})

/* The first word is the key that the message must be about; NULL: accepted. */
typedef struct rule {
    const char *words[MAX_WORDS], *key, *message;
} rule;

static void check_rules(const rule *rules, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const rule *r = &rules[i];
        ts_config *c = NULL;
        ts_error err;
        char start[200];
        ts_status status = load(r->words, &c, &err);
        if (!r->message && status != TS_OK) fail_msg("row %zu %s: %s", i, r->words[0], err.msg);
        if (r->message && status == TS_OK) fail_msg("row %zu %s was accepted", i, r->words[0]);
        if (r->message) {
            snprintf(start, sizeof start,
                     "1 error in the configuration, nothing was started\n\n  %s=", r->key);
            if (strncmp(err.msg, start, strlen(start)) || !strstr(err.msg, r->message))
                fail_msg("row %zu %s: expected one error of %s, \"%s\", found:\n%s", i, r->words[0],
                         r->key, r->message, err.msg);
        }
        ts_config_free(c);
    }
}
#define CHECK(...)                                                                                 \
    check_rules((const rule[]){__VA_ARGS__}, sizeof((const rule[]){__VA_ARGS__}) / sizeof(rule))

#define CPU16  "engine=cpu", "cpu_devices=16"
#define DATA   "ici_data_parallelism"
#define FSDP   "ici_fsdp_parallelism"
#define TENSOR "ici_tensor_parallelism"
#define ROWS   "per_device_batch_size"
#define RULES  "logical_axis_rules"

/* ---- meshes that are ------------------------------------------------------------------------- */

static void resolved(void **state)
{
    (void)state;
    static const struct {
        const char *words[MAX_WORDS];
        int64_t data, fsdp, tensor;
        int n_torus;
        const char *axes;
    } row[] = {
        {{"engine=cpu"}, 1, 1, 1, 0, ""},
        {{CPU16}, 1, 16, 1, 0, "fsdp 16 "},
        {{CPU16, TENSOR "=4"}, 1, 4, 4, 0, "fsdp 4 tensor 4 "},
        {{CPU16, DATA "=-1", FSDP "=2", TENSOR "=2"}, 4, 2, 2, 0, "data 4 fsdp 2 tensor 2 "},
        {{CPU16, FSDP "=1", TENSOR "=-1"}, 1, 1, 16, 0, "tensor 16 "},
        {{CPU16, FSDP "=8", "ici_context_parallelism=-1", TENSOR "=2"},
         1,
         8,
         2,
         0,
         "fsdp 8 tensor 2 "},
        {{"engine=xla", "plugin=cpu", "cpu_devices=8", TENSOR "=2"},
         1,
         4,
         2,
         0,
         "fsdp 4 tensor 2 "},
        {{"compile_topology=v6e:4x4"}, 1, 16, 1, 2, "fsdp0 4 fsdp1 4 "},
        {{"compile_topology=v6e:4x4", FSDP "=4", TENSOR "=4"}, 1, 4, 4, 2, "fsdp 4 tensor 4 "},
        {{"compile_topology=v6e-16", "cpu_devices=3", TENSOR "=8"},
         1,
         2,
         8,
         2,
         "fsdp 2 tensor0 2 tensor1 4 "},
        {{"compile_topology=tpu7x:2x2x2", TENSOR "=2"},
         1,
         8,
         2,
         4,
         "fsdp0 2 fsdp1 2 fsdp2 2 tensor 2 "},
        {{"compile_topology=v6e:16x16", "model_name=llama3-70b", TENSOR "=16", ROWS "=1"},
         1,
         16,
         16,
         2,
         "fsdp 16 tensor0 8 tensor1 2 "},
        {{"compile_topology=cpu:4", "engine=cpu"}, 1, 4, 1, 0, "fsdp 4 "},
        /* Heads: 16 = gcd(16, 4) on the kv heads, then on their group of 4. */
        {{CPU16, "base_num_kv_heads=4", FSDP "=1", TENSOR "=16"},
         1,
         1,
         16,
         0,
         "tensor0 4 tensor1 4 "},
        /* Nobody knows the devices: the product, −1 as 1. */
        {{"engine=xla", "plugin=tpu", FSDP "=4", TENSOR "=4"}, 1, 4, 4, 0, "fsdp 4 tensor 4 "},
        {{"engine=xla", "plugin=tpu", TENSOR "=4", ROWS "=0.3"}, 1, 1, 4, 0, "tensor 4 "},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        ts_config *c = must_load(row[i].words);
        char axes[200] = "";
        int64_t devices = row[i].data * row[i].fsdp * row[i].tensor;
        for (int a = 0; a < c->mesh.n; a++)
            snprintf(axes + strlen(axes), sizeof axes - strlen(axes), "%s %d ",
                     c->mesh.axis[a].name, (int)c->mesh.axis[a].size);
        if (strcmp(axes, row[i].axes)) fail_msg("row %zu: %s, expected %s", i, axes, row[i].axes);
        assert_int_equal(c->devices, devices);
        assert_int_equal(c->mesh.devices, devices);
        assert_int_equal(c->mesh.user[TS_AXIS_DATA], row[i].data);
        assert_int_equal(c->mesh.user[TS_AXIS_FSDP], row[i].fsdp);
        assert_int_equal(c->mesh.user[TS_AXIS_TENSOR], row[i].tensor);
        assert_int_equal(c->n_torus, row[i].n_torus);
        assert_int_equal(c->devices_assumed, strcmp(c->plugin, "tpu") == 0);
        ts_config_free(c);
    }
}

static void rows(void **state)
{
    (void)state;
    static const struct {
        const char *words[MAX_WORDS];
        int64_t micro, batch, eval;
    } row[] = {
        {{CPU16, ROWS "=1"}, 16, 16, 16},
        {{CPU16, ROWS "=0.25", TENSOR "=4", "gradient_accumulation_steps=3"}, 4, 12, 4},
        {{CPU16, ROWS "=2", TENSOR "=4", "eval_per_device_batch_size=0.5"}, 32, 32, 8},
        {{"engine=cpu", "cpu_devices=12", TENSOR "=3", ROWS "=0.333333333"}, 4, 4, 4},
        {{"engine=cpu", "cpu_devices=4096", TENSOR "=4096", FSDP "=1", ROWS "=0.000244140625"},
         1,
         1,
         1},
        {{"compile_topology=v6e:4x4", ROWS "=1", TENSOR "=4"}, 16, 16, 16},
        {{"engine=xla", "plugin=cuda", ROWS "=0.3"}, 1, 1, 1}, /* not known yet */
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        ts_config *c = must_load(row[i].words);
        if (c->micro_rows != row[i].micro || c->batch_rows != row[i].batch ||
            c->eval_rows != row[i].eval)
            fail_msg("row %zu: %d, %d, %d", i, (int)c->micro_rows, (int)c->batch_rows,
                     (int)c->eval_rows);
        ts_config_free(c);
    }
}

/* ---- meshes and batches that are not --------------------------------------------------------- */

static void impossible_meshes(void **state)
{
    (void)state;
    CHECK(
        {{"engine=cpu", TENSOR "=4"},
         TENSOR,
         "1 device cannot be split as tensor 4; tensor may be 1; or cpu_devices=4"},
        {{"engine=cpu", TENSOR "=4", FSDP "=4"}, FSDP, "or cpu_devices=16"},
        {{CPU16, FSDP "=4", TENSOR "=6"},
         TENSOR,
         "16 devices cannot be split as fsdp 4 × tensor 6; with fsdp 4, tensor may be 4 (or -1); or "
         "cpu_devices=24"},
        {{CPU16, DATA "=-1", FSDP "=4", TENSOR "=6"},
         TENSOR,
         "with fsdp 4, tensor may be 1, 2, 4;"},
        {{"compile_topology=v6e:4x4", TENSOR "=3"},
         TENSOR,
         "16 devices cannot be split as tensor 3; tensor may be 1, 2, 4, 8, 16"},
        {{"compile_topology=v6e:4x4", FSDP "=8"},
         FSDP,
         "16 devices cannot be split as fsdp 8; fsdp may be 16 (or -1)"},
        {{"compile_topology=v6e:4x4", FSDP "=1"}, FSDP, "fsdp may be 16 (or -1)"},
        {{CPU16, FSDP "=3", TENSOR "=5"},
         FSDP,
         "an axis may be 1, 2, 4, 8, 16, and the product must be 16; or cpu_devices=15"},
        {{CPU16, DATA "=-1", FSDP "=3", TENSOR "=5"}, FSDP, "and the product must divide 16"},
        {{"engine=cpu", "cpu_devices=720", TENSOR "=7"},
         TENSOR,
         "tensor may be 6 or 8 (the nearest)"},
        {{CPU16, TENSOR "=-1"},
         TENSOR,
         "ici_fsdp_parallelism is -1 too, and only one axis can be what is left; 1 works for one"},
        {{CPU16, "ici_context_parallelism=-1", DATA "=-1", FSDP "=1"},
         "ici_context_parallelism",
         "ici_data_parallelism is -1 too"},
        {{CPU16, "ici_context_parallelism=-1", FSDP "=4"},
         "ici_context_parallelism",
         "would be 4, and only 1 works"},
        {{CPU16, "ici_fsdp_transpose_parallelism=2"},
         "ici_fsdp_transpose_parallelism",
         "only 1 works: fsdp splits one dimension of a matrix, tensor the other"},
        {{CPU16, "ici_tensor_sequence_parallelism=2"},
         "ici_tensor_sequence_parallelism",
         "use ici_tensor_parallelism"},
        {{CPU16, "ici_context_parallelism=2"},
         "ici_context_parallelism",
         "use ici_tensor_parallelism"},
        {{CPU16, "ici_expert_parallelism=2"}, "ici_expert_parallelism", "use ici_fsdp_parallelism"},
        {{CPU16, "ici_pipeline_parallelism=2"},
         "ici_pipeline_parallelism",
         "ici_fsdp_parallelism splits each of them"},
        {{CPU16, "dcn_data_parallelism=2"},
         "dcn_data_parallelism",
         "this version runs on one; 1 (or -1) works, and ici_data_parallelism within the slice"},
        {{CPU16, "dcn_pipeline_parallelism=2"}, "dcn_pipeline_parallelism", "ici_fsdp_parallelism"},
        {{CPU16, "dcn_fsdp_parallelism=-1"},
         "dcn_fsdp_parallelism",
         "dcn_data_parallelism is -1 too"},
        {{CPU16, "num_slices=2"}, "num_slices", "one slice"},
        {{"compile_topology=v6e:4x4", "compile_topology_num_slices=2"},
         "compile_topology_num_slices",
         "1 (or -1) works"},
        {{"compile_topology=v6e:3x3"},
         "compile_topology",
         "=v6e:3x3   no v6e slice is like that; the nearest are v6e:2x4 (8 chips) and v6e:4x4 (16)"},
        {{"compile_topology=v6:4x4"}, "compile_topology", "did you mean v6e?"},
        {{"cpu_devices=0"}, "cpu_devices", "expected from 1 to 4096"},
        {{"cpu_devices=5000", TENSOR "=7"}, "cpu_devices", "expected from 1 to 4096"},
        {{"engine=xla", "plugin=cpu", "cpu_devices=2048", ROWS "=1"}, NULL, NULL},
        {{"engine=xla", "plugin=cpu", "cpu_devices=2049", ROWS "=1"},
         "cpu_devices",
         "XLA's cpu plugin has at most 2048; 1 to 2048 works, or engine=cpu"},
        {{"engine=cpu", "cpu_devices=2049", ROWS "=1"}, NULL, NULL},
        {{"engine=xla", "plugin=tpu", FSDP "=9000000000000", TENSOR "=9000000000000"},
         FSDP,
         "is more than the 1048576 devices"},
        {{CPU16, TENSOR "=9223372036854775807", FSDP "=9223372036854775807"},
         FSDP,
         "is more than the 1048576 devices"});
}

static void impossible_batches(void **state)
{
    (void)state;
    CHECK(
        {{"engine=cpu", ROWS "=2.5"},
         ROWS,
         "1 device would share 2.5 rows, which is no whole number; 2 or 3 works"},
        {{"engine=cpu", ROWS "=0.25"}, ROWS, "the least is 1"},
        {{CPU16, TENSOR "=4", ROWS "=0.3"},
         ROWS,
         "16 devices would share 4.8 rows, and fsdp 4 needs a multiple of 4; 0.25 or 0.5 works"},
        {{CPU16, DATA "=2", TENSOR "=4", ROWS "=0.125"},
         ROWS,
         "16 devices would share 2 rows, and data 2 × fsdp 2 needs a multiple of 4; the least is 0.25"},
        {{CPU16, ROWS "=1.5"}, ROWS, "fsdp 16 needs a multiple of 16; 1 or 2 works"},
        {{CPU16, FSDP "=1", TENSOR "=16", ROWS "=0.1"},
         ROWS,
         "would share 1.6 rows, which is no whole number; 0.0625 or 0.125 works"},
        {{"engine=cpu", "cpu_devices=12", TENSOR "=3", ROWS "=0.5"},
         ROWS,
         "0.333333333 or 0.666666667 works"},
        {{CPU16, ROWS "=1", "eval_per_device_batch_size=0.5"},
         "eval_per_device_batch_size",
         "16 devices would share 8 rows, and fsdp 16 needs a multiple of 16; the least is 1"},
        {{CPU16, ROWS "=0.25", "eval_per_device_batch_size=0"}, ROWS, "the least is 1"},
        {{"compile_topology=v6e:4x4", ROWS "=0.5"}, ROWS, "the least is 1"},
        {{"engine=xla", "plugin=tpu", FSDP "=4", TENSOR "=4", ROWS "=0.3"},
         ROWS,
         "0.25 or 0.5 works"},
        /* Sequences and sizes of a model that do not divide are no mistake of the configuration. */
        {{CPU16, TENSOR "=16", FSDP "=1", "max_target_length=7", "base_mlp_dim=9", "vocab_size=263",
          "base_num_kv_heads=1"},
         NULL,
         NULL});
}

static void modes(void **state)
{
    (void)state;
    CHECK({{"engine=cpu", "shard_mode=auto"},
           "shard_mode",
           "leaves the partition to XLA, and engine=cpu is set; explicit works"},
          {{"engine=xla", "plugin=cpu", "shard_mode=auto"}, NULL, NULL},
          {{"shard_mode=automatic"}, "shard_mode", "expected auto or explicit"},
          {{"engine=xla", "plugin=tpu", "shard_mode=auto", "collective_matmul=ring"},
           "collective_matmul",
           "auto or plain works"},
          {{"collective_matmul=rings"}, "collective_matmul", "did you mean ring?"},
          {{"sharding_tolerance=1.5"}, "sharding_tolerance", "expected from 0 to 1"},
          {{"compile_topology=v6e:1x1", "shard_mode=auto"}, NULL, NULL});
    static const struct {
        const char *words[MAX_WORDS];
        bool ring, shard_auto;
    } row[] = {
        {{CPU16}, false, false},
        {{CPU16, "collective_matmul=ring"}, true, false},
        {{"compile_topology=v6e:4x4"}, false, false},
        {{"compile_topology=v6e:4x4", "collective_matmul=ring"}, true, false},
        {{"compile_topology=cpu:4"}, false, false},
        {{"compile_topology=v6e:4x4", "shard_mode=auto"}, false, true},
        {{"engine=xla", "plugin=tpu"}, false, false},
        {{"engine=xla", "plugin=cuda"}, false, false},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        ts_config *c = must_load(row[i].words);
        if (c->ring != row[i].ring || c->shard_auto != row[i].shard_auto) fail_msg("row %zu", i);
        ts_config_free(c);
    }
    ts_config *c = LOAD("engine=xla", "plugin=cuda", "cpu_devices=4");
    assert_int_equal(c->n_notes, 1);
    assert_non_null(strstr(c->notes[0], "cpu_devices has no effect"));
    ts_config_free(c);
}

/* ---- placing again --------------------------------------------------------------------------- */

static void placed_again(void **state)
{
    (void)state;
    static const int64_t torus[] = {4, 4};
    ts_error err = {0};
    ts_config *c =
        LOAD("engine=xla", "plugin=tpu", TENSOR "=4", ROWS "=0.25", "collective_matmul=ring");
    assert_true(c->devices_assumed);
    ts_config copy = *c;
    assert_int_equal(ts__config_place(&copy, 16, torus, 2, &err), TS_OK);
    assert_int_equal(copy.devices, 16);
    assert_false(copy.devices_assumed);
    assert_int_equal(copy.mesh.user[TS_AXIS_FSDP], 4);
    assert_int_equal(copy.micro_rows, 4);
    assert_true(copy.ring);
    assert_int_equal(c->devices, 4); /* the original is not changed */

    /* What is impossible is said as in loading, and changes nothing. */
    ts_config before = copy;
    assert_int_equal(ts__config_place(&copy, 6, NULL, 0, &err), TS_INVALID_ARGUMENT);
    if (strcmp(
            err.msg,
            "1 error in the configuration, nothing was started\n\n"
            "  ici_tensor_parallelism=4   6 devices cannot be split as tensor 4; tensor may be 1, "
            "2, 3, 6"))
        fail_msg("%s", err.msg);
    assert_memory_equal(&before, &copy, sizeof copy);
    err = (ts_error){0};
    assert_int_equal(ts__config_place(&copy, 8, torus, 2, &err), TS_INVALID_ARGUMENT);
    if (!strstr(err.msg, "a torus of 16 devices was named for 8")) fail_msg("%s", err.msg);
    assert_int_equal(ts__config_place(&copy, 0, NULL, 0, &err), TS_INVALID_ARGUMENT);
    assert_int_equal(ts__config_place(&copy, (int64_t)1 << 40, NULL, 0, &err), TS_INVALID_ARGUMENT);
    assert_memory_equal(&before, &copy, sizeof copy);

    /* Another model's heads, on what there is: the torus may be the configuration's own. */
    ts_model_config model = copy.model;
    model.heads = 6, model.kv_heads = 2;
    ts__config_heads(&copy, &model);
    assert_int_equal(ts__config_place(&copy, copy.devices, copy.torus, copy.n_torus, &err), TS_OK);
    assert_int_equal(copy.mesh.n, 3);
    assert_int_equal(copy.mesh.axis[1].size, 2);
    assert_int_equal(copy.n_torus, 2);
    ts_config_free(c);
}

/* A model that is read later has no heads yet: one axis, until they are told. */
static void heads_told_later(void **state)
{
    (void)state;
    char folder[] = "/tmp/config_mesh_XXXXXX", path[64], word[64];
    ts_error err = {0};
    ts_writer *w = NULL;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/config.json", folder);
    snprintf(word, sizeof word, "model_path=%s", folder);
    assert_int_equal(ts_writer_open(path, false, &w, &err), TS_OK);
    assert_int_equal(ts_writer_close(w, false, &err), TS_OK);
    ts_config *c = LOAD(CPU16, word, FSDP "=1", TENSOR "=16", ROWS "=0.0625");
    assert_int_equal(c->n_heads, 0);
    assert_int_equal(c->mesh.n, 1);
    const ts_model_config model = {.heads = 9, .kv_heads = 3};
    ts__config_heads(c, &model);
    assert_int_equal(ts__config_place(c, 16, NULL, 0, &err), TS_OK);
    assert_int_equal(c->n_heads, 1);
    assert_int_equal(c->group[0], 3);
    assert_int_equal(c->mesh.n, 1); /* nothing in 16 divides 3 */
    const ts_model_config other = {.heads = 12, .kv_heads = 2};
    ts__config_heads(c, &other);
    assert_int_equal(ts__config_place(c, 16, NULL, 0, &err), TS_OK);
    assert_int_equal(c->mesh.n, 3); /* 2 kv heads, 2 of their group of 6, the rest */
    ts_config_free(c);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0);
}

/* A torus and heads that cut an axis too often: sizes of tensor that need fewer are named, and work. */
static void cut_too_often(void **state)
{
    (void)state;
    static const int64_t torus[] = {2, 2, 2, 2, 2, 2};
    ts_error err = {0};
    ts_config *c = LOAD("engine=xla", "plugin=tpu", FSDP "=1", TENSOR "=-1", ROWS "=1");
    c->n_heads = 2;
    c->kv_heads[0] = 2, c->group[0] = 2, c->kv_heads[1] = 4, c->group[1] = 8;
    assert_int_equal(ts__config_place(c, 64, torus, 6, &err), TS_OK);
    assert_int_equal(c->mesh.n, 6);
    static const int64_t odd[] = {3, 3, 3, 2, 2, 2};
    c->kv_heads[0] = 2, c->group[0] = 2, c->kv_heads[1] = 8, c->group[1] = 3;
    assert_int_equal(ts__config_place(c, 216, odd, 6, &err), TS_OK);
    ts_config_free(c);

    static const int64_t many[] = {1024, 2, 2, 2, 2, 4};
    c = LOAD("engine=xla", "plugin=tpu", TENSOR "=65536", ROWS "=1");
    c->n_heads = 4;
    c->kv_heads[0] = 64, c->group[0] = 2, c->kv_heads[1] = 256, c->group[1] = 2;
    c->kv_heads[2] = 1024, c->group[2] = 2, c->kv_heads[3] = 4096, c->group[3] = 4;
    assert_int_equal(ts__config_place(c, 65536, many, 6, &err), TS_INVALID_ARGUMENT);
    const char *works =
        strstr(err.msg, "cut tensor 65536 into more than 8 axes; with fsdp as what is left, "
                        "tensor may be 1, ");
    if (!works) fail_msg("%s", err.msg);
    ts_config_free(c);
}

static void devices_to_open(void **state)
{
    (void)state;
    ts_config *c = LOAD(CPU16, "compile_topology=v6e:1x1");
    assert_int_equal(c->devices, 1);
    assert_int_equal(ts__config_run_devices(c, "cpu", NULL), 16);
    assert_int_equal(ts__config_run_devices(c, "xla", "cpu"), 16);
    assert_int_equal(ts__config_run_devices(c, "xla", "./pjrt.so"), 16);
    assert_int_equal(ts__config_run_devices(c, "xla", "tpu"), 0);
    ts_config_free(c);
    c = LOAD("engine=cpu");
    assert_int_equal(ts__config_run_devices(c, "xla", "./pjrt.so"), 0);
    assert_int_equal(ts__config_run_devices(c, "cpu", NULL), 1);
    ts_config_free(c);
}

/* ---- logical_axis_rules ---------------------------------------------------------------------- */

static void rules_text(const ts_config *c, char *text, size_t size)
{
    text[0] = '\0';
    for (int i = 0; i < c->rules.n; i++) {
        const ts_axis_rule *r = &c->rules.rule[i];
        size_t n = strlen(text);
        snprintf(text + n, size - n, "%s%s", i ? ";" : "", r->name);
        for (int k = 0; k < r->n; k++) {
            n = strlen(text);
            snprintf(text + n, size - n, "%c%c", k ? ',' : ' ', ts_user_axis_names[r->axis[k]][0]);
        }
    }
}

static void rules(void **state)
{
    (void)state;
    static const char usual[] =
        "batch d,f;sequence t;kv_heads t;group t;mlp t;vocab t;embed f;norm";
    static const char *const row[][2] = {
        {"steps=1", usual},
        {RULES "=[]", usual},
        {RULES "=", usual},
        {RULES "=[[embed, [fsdp]], [mlp, tensor]]", usual},
        {RULES "=[['sequence', []]]",
         "batch d,f;sequence;kv_heads t;group t;mlp t;vocab t;embed f;norm"},
        {RULES "=[[sequence, null]]",
         "batch d,f;sequence;kv_heads t;group t;mlp t;vocab t;embed f;norm"},
        {RULES "=sequence:", "batch d,f;sequence;kv_heads t;group t;mlp t;vocab t;embed f;norm"},
        {RULES "=[\"batch: fsdp, data\", 'mlp:']",
         "batch f,d;sequence t;kv_heads t;group t;mlp;vocab t;embed f;norm"},
        {RULES "=[\" batch :fsdp data \"]",
         "batch f,d;sequence t;kv_heads t;group t;mlp t;vocab t;embed f;norm"},
        {RULES "=[activation_mlp: [], {vocab: }]",
         "batch d,f;sequence t;kv_heads t;group t;mlp;vocab;embed f;norm"},
        {RULES "={mlp: [], vocab: }",
         "batch d,f;sequence t;kv_heads t;group t;mlp;vocab;embed f;norm"},
        {RULES "=[[heads, []], [activation_norm_length, []], ['activation_batch', [data, fsdp]]]",
         "batch d,f;sequence;kv_heads;group;mlp t;vocab t;embed f;norm"},
        {RULES "=[[mlp, []], [activation_mlp, []]]",
         "batch d,f;sequence t;kv_heads t;group t;mlp;vocab t;embed f;norm"},
    };
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        char text[300];
        ts_config *c = LOAD(CPU16, row[i][0]);
        rules_text(c, text, sizeof text);
        if (strcmp(text, row[i][1])) fail_msg("%s: %s, expected %s", row[i][0], text, row[i][1]);
        if (row[i][1] == usual)
            assert_memory_equal(&c->rules, &ts_axis_rules_default, sizeof c->rules);
        ts_config_free(c);
    }
}

static void impossible_rules(void **state)
{
    (void)state;
    CHECK(
        {{RULES "=[[heds, [tensor]]]"},
         RULES,
         "=[[heds,[tensor]]]   no dimension has the name heds; expected batch, sequence, kv_heads, group, mlp, "
         "vocab, embed or norm; did you mean heads?"},
        {{RULES "=[[layers, [stage]]]"},
         RULES,
         "layers: no axis of the mesh has the name stage; "
         "expected data, fsdp or tensor; here it is fsdp"},
        {{RULES "=[[mlp, [tensr]]]"}, RULES, "here it is tensor"},
        {{RULES "=[[mlp, [tensor, tensor]]]"}, RULES, "mlp: tensor is named twice; once works"},
        {{RULES "=[[embed, [data]]]"},
         RULES,
         "embed: data copies the parameters, and tensor splits their other dimension; fsdp or no axis"},
        {{RULES "=[[embed, [fsdp, tensor]]]"}, RULES, "fsdp or no axis works"},
        {{RULES "=[[batch, [data]]]"},
         RULES,
         "would all compute the same rows; \"batch: data, fsdp\" works"},
        {{RULES "=[[batch, [data, fsdp, tensor]]]"}, RULES, "batch takes data and fsdp"},
        {{RULES "=[[vocab, [fsdp]]]"}, RULES, "vocab: data and fsdp split the batch"},
        {{RULES "=[[norm, [fsdp]]]"}, RULES, "scales of norms are whole"},
        {{RULES "=[[mlp, []], [mlp, [tensor]]]"}, RULES, "mlp has two rules; one works"},
        {{RULES "=[[heads, []], [kv_heads, [tensor]]]"}, RULES, "kv_heads has two rules"},
        {{RULES "=[[mlp, [tensor]"}, RULES, "expected rules as [[mlp, [tensor]]"},
        {{RULES "=[mlp, tensor]"}, RULES, "expected rules as"},
        {{RULES "=[[mlp, [[tensor]]]]"}, RULES, "expected rules as"},
        {{RULES "=[[mlp]]"}, RULES, "expected rules as"},
        {{RULES "=: tensor"}, RULES, "expected rules as"},
        {{RULES "=mlp"}, RULES, "expected rules as"},
        {{RULES "=[\"m\\x01p: tensor\"]"}, RULES, "the name m?p;"});
}

/* A run's config.yml holds all rules, and reads back as the same configuration. */
static void text_and_back(void **state)
{
    (void)state;
    char folder[] = "/tmp/config_mesh_XXXXXX", path[64];
    ts_error err = {0};
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/config.yml", folder);
    ts_config *c = LOAD(CPU16, TENSOR "=4", RULES "=[[mlp, []], [batch, [fsdp, data]]]",
                        "collective_matmul=ring", "compile_topology=v6e:4x4");
    assert_int_equal(ts_config_write(c, path, &err), TS_OK);
    ts_config *again = LOAD(path);
    ts_string a = ts_string_new(TS_CONFIG_TEXT_MAX), b = ts_string_new(TS_CONFIG_TEXT_MAX);
    ts_config_yaml(c, &a);
    ts_config_yaml(again, &b);
    assert_string_equal(a.data, b.data);
    assert_non_null(strstr(a.data,
                           "logical_axis_rules: [\"batch: fsdp, data\", \"sequence: tensor\", "
                           "\"kv_heads: tensor\", \"group: tensor\", \"mlp:\", \"vocab: tensor\", "
                           "\"embed: fsdp\", \"norm:\"]\n"));
    assert_memory_equal(&c->rules, &again->rules, sizeof c->rules);
    assert_memory_equal(&c->mesh, &again->mesh, sizeof c->mesh);
    assert_true(again->ring);
    assert_int_equal(again->n_notes, 0);
    ts_string_free(&a);
    ts_string_free(&b);
    ts_config_free(c);
    ts_config_free(again);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(resolved),
        cmocka_unit_test(rows),
        cmocka_unit_test(impossible_meshes),
        cmocka_unit_test(impossible_batches),
        cmocka_unit_test(modes),
        cmocka_unit_test(placed_again),
        cmocka_unit_test(cut_too_often),
        cmocka_unit_test(devices_to_open),
        cmocka_unit_test(rules),
        cmocka_unit_test(impossible_rules),
        cmocka_unit_test(text_and_back),
        cmocka_unit_test(heads_told_later),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
