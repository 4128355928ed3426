/* base/yaml.h – a YAML document as a small tree, read by libyaml's events. Refuses what a
 * configuration never needs and libyaml accepts: duplicate keys, anchors and aliases, tags, several
 * documents, depth over 64. Scalars keep their text, line and whether they were quoted; a plain
 * scalar is typed by whoever asks (YAML 1.1 words and 1_000 as OmegaConf reads them).
 */
#ifndef TS_YAML_H
#define TS_YAML_H

#include "base/base.h"

typedef enum ts_yaml_kind { TS_YAML_SCALAR, TS_YAML_LIST, TS_YAML_MAP } ts_yaml_kind;
typedef struct ts_yaml ts_yaml;
struct ts_yaml {
    ts_yaml_kind kind;
    const char *key;         /* in a map: this entry's key */
    const char *text;        /* scalar */
    bool quoted;
    int line;                /* 1-based */
    size_t n;                /* children of a list or map */
    ts_yaml **child;
};

/* The tree lives in the arena. An empty document is an empty map. INVALID_ARGUMENT with name:line. */
ts_status ts_yaml_parse(const char *text, size_t n, const char *name, ts_arena *arena,
                        const ts_yaml **out, ts_error *err);
const ts_yaml *ts_yaml_get(const ts_yaml *map, const char *key);   /* NULL when absent */

bool ts_yaml_is_null(const ts_yaml *v);                            /* empty, ~, null */
bool ts_yaml_as_bool(const ts_yaml *v, bool *out);                 /* false when it is not one */
bool ts_yaml_as_i64(const ts_yaml *v, int64_t *out);
bool ts_yaml_as_f64(const ts_yaml *v, double *out);

#endif
