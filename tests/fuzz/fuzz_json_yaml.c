/* fuzz_json_yaml.c – both text readers on the same bytes; every scalar is asked for every type. */
#include <stdint.h>
#include <string.h>

#include "base/json.h"
#include "base/yaml.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void ask_every_type(const ts_yaml *v)
{
    bool b;
    int64_t i;
    double d;
    if (v->kind == TS_YAML_SCALAR) {
        TS_ASSERT(v->text);
        (void)ts_yaml_is_null(v);
        (void)ts_yaml_as_bool(v, &b);
        if (ts_yaml_as_i64(v, &i)) TS_ASSERT(ts_yaml_as_f64(v, &d));
        (void)ts_yaml_as_f64(v, &d);
    }
    for (size_t k = 0; k < v->n; k++) {
        TS_ASSERT((v->kind == TS_YAML_MAP) == (v->child[k]->key != NULL));
        ask_every_type(v->child[k]);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    json_t *j;
    ts_error err = {0};
    if (ts_json_parse((const char *)data, n, 64, "fuzz", &j, &err) == TS_OK)
        json_decref(j);
    else
        TS_ASSERT(err.code != TS_OK && err.msg[0]);
    ts_arena *a = ts_arena_new();
    const ts_yaml *y;
    err = (ts_error){0};
    if (!a) return 0;
    if (ts_yaml_parse((const char *)data, n, "fuzz", a, &y, &err) == TS_OK)
        ask_every_type(y);
    else
        TS_ASSERT(err.code != TS_OK && err.msg[0]);
    ts_arena_free(a);
    return 0;
}
