/* test_diff.c – two checkpoints compared: over devices, with values that are not finite, with
 * tensors that only one has, with a model's folder, and in bounded memory.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <sys/stat.h>

#include "survey_help.h"

static char root[64], a_path[200], b_path[200];

static int make_root(void **state)
{
    (void)state;
    if (!sample_root(root)) return -1;
    snprintf(a_path, sizeof a_path, "%s/a/checkpoints", root);
    snprintf(b_path, sizeof b_path, "%s/b/checkpoints", root);
    return 0;
}

static int remove_root(void **state)
{
    (void)state;
    ts_alloc_fail_at(0);
    return ts_remove_tree(root, NULL) == TS_OK ? 0 : -1;
}

static void save(const sample *s)
{
    ts_error err = {0};
    if (sample_save(s, &err) != TS_OK) fail_msg("%s", err.msg);
}

static ts_diff *compare(const char *a, const char *b)
{
    ts_diff *d;
    ts_error err = {0};
    if (ts_diff_open(a, b, NULL, NULL, &d, &err) != TS_OK) fail_msg("%s", err.msg);
    return d;
}

static const ts_diff_tensor *tensor(const ts_diff *d, const char *name)
{
    for (size_t i = 0; i < d->n; i++)
        if (strcmp(d->tensor[i].name, name) == 0) return &d->tensor[i];
    fail_msg("no tensor %s", name);
    return NULL;
}

static const ts_diff_fact *fact(const ts_diff *d, const char *group, const char *name)
{
    for (size_t i = 0; i < d->n_fact; i++)
        if (strcmp(d->fact[i].name, name) == 0 && strcmp(d->fact[i].group, group) == 0)
            return &d->fact[i];
    return NULL;
}

static void fill(float w[24])
{
    for (int i = 0; i < 24; i++) w[i] = (float)i - 11.5f;
}

/* ---- values ---------------------------------------------------------------------------------- */

static void test_same_over_devices(void **state)
{
    (void)state;
    float w[24];
    fill(w);
    w[5] = (float)NAN; /* the same bits on both sides */
    save(&(sample){.folder = a_path, .step = 3, .devices = 1, .w = w});
    save(&(sample){.folder = b_path, .step = 3, .devices = 4, .frozen = true, .w = w});
    ts_diff *d = compare(a_path, b_path);
    assert_true(d->same && !d->weights_only);
    assert_int_equal(d->parameters.tensors, 2);
    assert_int_equal(d->parameters.same, 2);
    assert_int_equal(d->moments.same, 1);
    assert_int_equal(d->parameters.elements, 30);
    assert_true(d->parameters.worst == d->n);
    assert_int_equal(d->bytes, 2 * 4 * (24 + 24 + 6));
    assert_string_equal(fact(d, "checkpoint", "mesh")->b, "fsdp=4");
    assert_true(fact(d, "data", "order_hash")->same);
    assert_true(fact(d, "checkpoint", "step")->same && !fact(d, "checkpoint", "devices")->same);
    ts_diff_free(d);
}

static void test_values_that_differ(void **state)
{
    (void)state;
    float w[24], other[24];
    fill(w);
    fill(other);
    other[23] += 0.5f;  /* 11.5 to 12 */
    other[7] -= 0.25f;
    save(&(sample){.folder = a_path, .step = 1, .devices = 2, .w = w});
    save(&(sample){.folder = b_path, .step = 1, .devices = 1, .w = other});
    ts_diff *d = compare(a_path, b_path);
    const ts_diff_tensor *t = tensor(d, "w");
    assert_false(d->same);
    assert_int_equal(t->kind, TS_DIFF_VALUES);
    assert_int_equal(t->different, 2);
    assert_int_equal(t->elements, 24);
    assert_float_equal((float)t->max_abs, 0.5f, 0);
    assert_float_equal((float)t->largest, 12.0f, 0);
    assert_string_equal(t->where, "[7,2]");
    assert_float_equal((float)t->a, 11.5f, 0);
    assert_float_equal((float)t->b, 12.0f, 0);
    assert_int_equal(tensor(d, "embed")->kind, TS_DIFF_SAME);
    assert_int_equal(d->parameters.values, 1);
    assert_int_equal(d->moments.values, 1);
    assert_string_equal(d->tensor[d->parameters.worst].name, "w");
    assert_float_equal((float)d->parameters.max_rel, 0.5f / 12, 1e-7f);
    ts_diff_free(d);
}

static void test_not_finite_and_signs(void **state)
{
    (void)state;
    float w[24], other[24];
    uint32_t nan_bits = 0x7fc00001u;
    fill(w);
    fill(other);
    w[0] = 0;
    other[0] = -0.0f; /* other bits, no distance */
    w[1] = (float)INFINITY;
    memcpy(&w[2], &nan_bits, 4);
    other[2] = (float)NAN; /* a NaN of other bits */
    w[3] = other[3] = (float)-INFINITY;
    save(&(sample){.folder = a_path, .step = 1, .w = w});
    save(&(sample){.folder = b_path, .step = 1, .w = other});
    ts_diff *d = compare(a_path, b_path);
    const ts_diff_tensor *t = tensor(d, "w");
    assert_int_equal(t->different, 3);
    assert_int_equal(t->not_finite, 2);
    assert_float_equal((float)t->max_abs, 0, 0);
    assert_float_equal((float)t->largest, 11.5f, 0); /* of the finite ones */
    assert_string_equal(t->where, "[0,0]");
    ts_diff_free(d);
    w[0] = other[0];
    save(&(sample){.folder = a_path, .step = 1, .w = w});
    d = compare(a_path, b_path);
    t = tensor(d, "w");
    assert_int_equal(t->not_finite, t->different);
    assert_string_equal(t->where, "[0,1]");
    assert_true(isinf(t->a));
    ts_diff_free(d);
}

/* ---- beside the tensors ---------------------------------------------------------------------- */

static void test_facts(void **state)
{
    (void)state;
    save(&(sample){.folder = a_path, .step = 1, .score = 2.5, .config = "a: 1\nb:\n  c: [x, y]\nold: 1\n"});
    save(&(sample){.folder = a_path, .step = 2, .config = "a: 1\nb:\n  c: [x, z]\nnew: ~\n"});
    char one[300], two[300];
    snprintf(one, sizeof one, "%s/1", a_path);
    snprintf(two, sizeof two, "%s/2", a_path);
    ts_diff *d = compare(one, two);
    assert_true(d->same); /* of tensors */
    assert_string_equal(fact(d, "checkpoint", "evaluation_loss")->a, "2.5");
    assert_string_equal(fact(d, "checkpoint", "evaluation_loss")->b, "");
    assert_string_equal(fact(d, "data", "rows")->b, "2");
    assert_true(fact(d, "data", "rows")->number && fact(d, "checkpoint", "evaluation_loss")->number);
    assert_false(fact(d, "data", "order_hash")->number || fact(d, "config", "b.c")->number);
    assert_null(fact(d, "config", "a"));
    assert_null(fact(d, "model", "kind"));
    assert_string_equal(fact(d, "config", "b.c")->a, "[x, y]");
    assert_string_equal(fact(d, "config", "b.c")->b, "[x, z]");
    assert_string_equal(fact(d, "config", "old")->b, "");
    assert_string_equal(fact(d, "config", "new")->b, "~");
    ts_diff_free(d);
}

/* ---- models ---------------------------------------------------------------------------------- */

static void write_model(const char *folder, const ts_tensor_spec *spec, size_t n, const void *data,
                        size_t bytes)
{
    char path[300];
    ts_tensor_writer *w;
    assert_true(mkdir(folder, 0777) == 0 || ts_path_kind_of(folder) == TS_PATH_FOLDER);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    assert_int_equal(ts_tensor_writer_open(path, spec, n, NULL, 0, &w, NULL), TS_OK);
    assert_int_equal(ts_tensor_writer_add(w, data, bytes, NULL), TS_OK);
    assert_int_equal(ts_tensor_writer_close(w, false, NULL, NULL, NULL), TS_OK);
}

static void test_model_folder(void **state)
{
    (void)state;
    float w[24];
    uint16_t data[6 + 24 + 2 + 4];
    const ts_tensor_spec spec[] = {{"embed", TS_FILE_BF16, 1, {6}},
                                   {"w", TS_FILE_BF16, 2, {8, 3}},
                                   {"model.rotary_emb.inv_freq", TS_FILE_BF16, 1, {2}},
                                   {"lm_head.weight", TS_FILE_BF16, 2, {2, 2}}};
    char model[200];
    snprintf(model, sizeof model, "%s/model", root);
    fill(w);
    memset(data, 0, sizeof data);
    for (int i = 0; i < 6; i++) data[i] = ts_bf16_from_f32(sample_embed[i]);
    for (int i = 0; i < 24; i++) data[6 + i] = ts_bf16_from_f32(w[i]); /* halves are exact */
    write_model(model, spec, 4, data, sizeof data);
    save(&(sample){.folder = a_path, .step = 1, .devices = 2, .w = w});
    ts_diff *d = compare(a_path, model);
    assert_true(d->same && d->weights_only);
    assert_int_equal(d->n, 2); /* no moments, and nothing that training would leave out */
    assert_int_equal(d->n_fact, 0);
    ts_diff_free(d);
    data[6]++;
    write_model(model, spec, 2, data, sizeof data - 12);
    d = compare(model, a_path);
    assert_int_equal(tensor(d, "w")->different, 1);
    ts_diff_free(d);
    const ts_tensor_spec other[] = {{"embed", TS_FILE_BF16, 2, {2, 3}}, {"v", TS_FILE_BF16, 2, {8, 3}}};
    write_model(model, other, 2, data, sizeof data - 12);
    d = compare(a_path, model);
    assert_int_equal(tensor(d, "embed")->kind, TS_DIFF_SHAPE);
    assert_string_equal(tensor(d, "embed")->shape_b, "[2,3]");
    assert_int_equal(tensor(d, "v")->kind, TS_DIFF_ONLY_B);
    assert_int_equal(tensor(d, "w")->kind, TS_DIFF_ONLY_A);
    assert_int_equal(d->parameters.only_a, 1);
    ts_diff_free(d);
}

/* ---- what cannot be compared ----------------------------------------------------------------- */

static void test_unusable(void **state)
{
    (void)state;
    char path[300];
    ts_diff *d;
    ts_error err = {0};
    save(&(sample){.folder = a_path, .step = 1});
    assert_int_equal(ts_diff_open(a_path, b_path, NULL, NULL, &d, &err), TS_NOT_FOUND);
    assert_null(d);
    save(&(sample){.folder = b_path, .step = 4});
    save(&(sample){.folder = b_path, .step = 5});
    snprintf(path, sizeof path, "%s/5/shard-00000-of-00001.safetensors", b_path);
    FILE *f = fopen(path, "r+");
    assert_non_null(f);
    assert_int_equal(fseek(f, -1, SEEK_END), 0);
    fputc(7, f);
    fclose(f);
    err = (ts_error){0};
    snprintf(path, sizeof path, "%s/5", b_path);
    assert_int_equal(ts_diff_open(a_path, path, NULL, NULL, &d, &err), TS_DATA_LOSS);
    assert_non_null(strstr(err.msg, "shard-00000-of-00001.safetensors: its XXH3"));
    d = compare(a_path, b_path); /* of a run the newest that verifies */
    assert_string_equal(d->b + strlen(d->b) - 2, "/4");
    ts_diff_free(d);
}

static bool stop(void *context, uint64_t bytes)
{
    (void)bytes;
    return --*(int *)context > 0;
}

static void test_stops_wherever_it_is_asked(void **state)
{
    (void)state;
    save(&(sample){.folder = a_path, .step = 1, .devices = 2});
    save(&(sample){.folder = b_path, .step = 1, .devices = 2});
    for (int calls = 1;; calls++) {
        ts_diff *d;
        int left = calls;
        ts_status status = ts_diff_open(a_path, b_path, stop, &left, &d, NULL);
        if (left > 0) {
            assert_int_equal(status, TS_OK);
            assert_true(calls > 10);
            ts_diff_free(d);
            return;
        }
        assert_int_equal(status, TS_CANCELLED);
        assert_null(d);
    }
}

static void test_memory_out(void **state)
{
    (void)state;
    save(&(sample){.folder = a_path, .step = 1, .devices = 2, .config = "a: 1\n"});
    save(&(sample){.folder = b_path, .step = 1, .devices = 1, .config = "a: 2\n"});
    for (uint64_t nth = 1; nth < 4000; nth++) {
        ts_diff *d;
        ts_error err = {0};
        ts_alloc_fail_at(nth);
        ts_status status = ts_diff_open(a_path, b_path, NULL, NULL, &d, &err);
        ts_alloc_fail_at(0);
        if (status != TS_OK) {
            assert_true(err.msg[0] && !d);
            continue;
        }
        assert_true(d->same);
        ts_diff_free(d);
        if (nth > 400) return;
    }
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, make_root, remove_root)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_same_over_devices),
        CASE(test_values_that_differ),
        CASE(test_not_finite_and_signs),
        CASE(test_facts),
        CASE(test_model_folder),
        CASE(test_unusable),
        CASE(test_stops_wherever_it_is_asked),
        CASE(test_memory_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
