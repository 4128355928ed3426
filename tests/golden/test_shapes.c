/* tests/golden/test_shapes.c – names and shapes of the published models' weights, and their rope
 * frequencies, from ../shared/golden/shapes. Only graphs are built: no weight has memory.
 *
 * A preset must give exactly the tensors of the list, each once, whether layers are stacked or not.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/json.h"
#include "train/config.h"
#include "train/program.h"

static json_t *read_shapes(const char *name)
{
    const char *shared = getenv("TESSERA_SHARED");
    char path[4000];
    ts_error err = {0};
    json_t *o = NULL;
    snprintf(path, sizeof path, "%s/golden/shapes/%s.json",
             shared && *shared ? shared : "../shared", name);
    if (ts_path_kind_of(path) != TS_PATH_FILE) {
        printf("no list of shapes: %s is missing\n", path);
        skip();
    }
    if (ts_json_read(path, 1 << 22, 8, &o, &err) != TS_OK) fail_msg("%s", err.msg);
    return o;
}

static ts_config *preset(const char *name, bool scan)
{
    char word[100];
    ts_config *c = NULL;
    ts_error err = {0};
    snprintf(word, sizeof word, "model_name=%s", name);
    const char *words[] = {"base.yml", word, scan ? "scan_layers=true" : "scan_layers=false"};
    if (ts_config_load_words(words, 3, &c, &err) != TS_OK) fail_msg("%s", err.msg);
    return c;
}

static ts_graph *train_graph(const ts_config *c)
{
    ts_graph *g = NULL;
    ts_error err = {0};
    ts_program_options o = {.model = &c->model,
                            .rows = 1,
                            .sequence = 16,
                            .accumulation = 1,
                            .compute = TS_BF16,
                            .remat = TS_REMAT_FULL,
                            .scan_layers = c->scan_layers,
                            .optimizer = {.adamw = {0.9, 0.95, 1e-8, 0.1}, .clip = 1}};
    if (ts_program_train(&o, &g, &err) != TS_OK) fail_msg("%s", err.msg);
    return g;
}

/* Removes the graph's tensors from the list one by one; returns the number of elements. */
static int64_t strike_off(const ts_graph *g, json_t *list)
{
    int64_t total = 0;
    for (int i = 0; i < g->n_param; i++) {
        const ts_param_info *p = &g->param[i];
        for (int k = 0; k < (p->count ? p->count : 1); k++) {
            char name[512];
            const json_t *shape = json_object_get(list, ts_param_name(p, k, name, sizeof name));
            if (!shape) fail_msg("%s is not in the list, or was there twice", name);
            assert_int_equal(json_array_size(shape), p->file_rank);
            for (int d = 0; d < p->file_rank; d++)
                assert_int_equal(json_integer_value(json_array_get(shape, (size_t)d)),
                                 p->file_dim[d]);
            assert_int_equal(json_object_del(list, name), 0);
            total += ts_param_elements(p);
        }
    }
    return total;
}

static void check_preset(const char *name, bool scan)
{
    json_t *list = read_shapes(name);
    ts_config *c = preset(name, scan);
    ts_graph *g = train_graph(c);
    assert_int_equal(json_object_size(list), 291);
    assert_int_equal(strike_off(g, list), 8030261248);
    assert_int_equal(json_object_size(list), 0);
    assert_int_equal(ts_model_parameters(&c->model), 8030261248);
    ts_graph_free(g);
    ts_config_free(c);
    json_decref(list);
}

static void test_llama3(void **state)
{
    (void)state;
    check_preset("llama3-8b", true);
    check_preset("llama3-8b", false);
}
static void test_llama31(void **state)
{
    (void)state;
    check_preset("llama3.1-8b", true);
}

/* The list's values went through several f32 operations each; the ramp of the scaling subtracts two
 * near numbers, so a few more units of the last place lie between there. */
static void test_rope(void **state)
{
    static const char *const names[] = {"llama3-8b", "llama3.1-8b"};
    (void)state;
    json_t *all = read_shapes("rope");
    for (int i = 0; i < 2; i++) {
        const json_t *want = json_object_get(json_object_get(all, names[i]), "all");
        ts_config *c = preset(names[i], true);
        double got[64];
        assert_int_equal(json_array_size(want), c->model.head_dim / 2);
        assert_int_equal(c->model.head_dim, 128);
        ts_model_rope_frequencies(&c->model, got);
        for (size_t k = 0; k < 64; k++) {
            double w = json_real_value(json_array_get(want, k));
            if (!(fabs(got[k] - w) <= 8 * 0x1p-24 * w))
                fail_msg("%s: frequency %zu is %.9g, not %.9g", names[i], k, got[k], w);
        }
        ts_config_free(c);
    }
    json_decref(all);
}

/* Presets without a list: their published number of parameters. */
static void test_counts(void **state)
{
    static const struct {
        const char *name;
        int64_t parameters;
    } known[] = {
        {"llama3-70b", 70553706496},
        {"llama3.1-70b", 70553706496},
        {"llama3.2-1b", 1235814400},
    };
    (void)state;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        ts_config *c = preset(known[i].name, true);
        ts_graph *g = train_graph(c);
        int64_t n = 0;
        for (int k = 0; k < g->n_param; k++)
            n += ts_param_elements(&g->param[k]) * (g->param[k].count ? g->param[k].count : 1);
        assert_int_equal(n, known[i].parameters);
        assert_int_equal(ts_model_parameters(&c->model), known[i].parameters);
        ts_graph_free(g);
        ts_config_free(c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_llama3),
        cmocka_unit_test(test_llama31),
        cmocka_unit_test(test_rope),
        cmocka_unit_test(test_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
