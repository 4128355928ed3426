/* base/json.h – jansson behind the checks it lacks: depth before parsing, duplicate keys refused,
 * bounded bytes, and the path of a value in every message. */
#ifndef TS_JSON_H
#define TS_JSON_H

#include <jansson.h>

#include "base/base.h"

/* text need not be NUL-terminated; name is the file for messages. DATA_LOSS with line and column. */
ts_status ts_json_parse(const char *text, size_t n, int max_depth, const char *name, json_t **out, ts_error *err);
ts_status ts_json_read(const char *path, size_t max_bytes, int max_depth, json_t **out, ts_error *err);
/* The text of a value (flags: jansson's JSON_INDENT(2) …). Owns: caller, ts_free. NULL: memory is out. */
char *ts_json_dump(const json_t *value, size_t flags);

#endif
