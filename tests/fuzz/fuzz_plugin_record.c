/* fuzz_plugin_record.c – plugin.json of any bytes: an error with a message, or a record that stays in its folder. */
#include <stdint.h>
#include <string.h>

#include "xla/plugin.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    ts_plugin_record r;
    ts_error err = {0};
    if (ts__plugin_record_parse((const char *)data, n, "fuzz", &r, &err) != TS_OK) {
        TS_ASSERT(err.code != TS_OK && err.msg[0]);
        return 0;
    }
    TS_ASSERT(r.name[0] && r.file[0] && !strchr(r.file, '/') && strcmp(r.file, "..") != 0);
    TS_ASSERT(strlen(r.xxh3) == 32 && strlen(r.source) < sizeof r.source);
    return 0;
}
