/* fuzz_position.c – any bytes as the JSON of a loader's position, for every packing.
 *
 * The first byte chooses the packing, the rest is the position; its fingerprint is replaced by the
 * loader's, since no fuzzer guesses it. Whatever it says: refused with a message, the loader as it
 * was; or the loader goes on with rows that obey the counts, and gives back a position that it
 * takes again.
 */
#include <stdint.h>

#include "data_help.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { SAMPLES = 140, ROWS = 3, SEQUENCE = 40 };

/* Rows of 1 to 26 letters; two readers. Opened once for each packing. */
static ts_loader *loader_of(ts_packing packing)
{
    static ts_loader *open[3];
    static ts_tokenizer *byte;
    if (open[packing]) return open[packing];
    char text[SAMPLES * 48], path[32];
    size_t at = 0;
    for (int i = 0; i < SAMPLES; i++)
        at += (size_t)sprintf(text + at, "{\"text\": \"%.*s\"}\n", 1 + i * 7 % 26,
                              "abcdefghijklmnopqrstuvwxyz");
    int fd = memory_file(text, at, path); /* open as long as the loaders */
    if (fd < 0 || (!byte && ts_tokenizer_open_byte(&byte, NULL) != TS_OK)) return NULL;
    const char *paths[] = {path};
    ts_loader_options o;
    ts_loader_options_default(&o);
    o.type = TS_DATA_JSONL;
    o.paths = paths;
    o.n_paths = 1;
    o.tokenizer = byte;
    o.rows = ROWS;
    o.sequence = SEQUENCE;
    o.packing = packing;
    o.epochs = 2;
    ts_error err = {0};
    TS_ASSERT(ts_loader_open(&o, &open[packing], &err) == TS_OK);
    return open[packing];
}

static void go_on(ts_loader *l)
{
    int32_t tokens[ROWS * SEQUENCE], labels[ROWS * SEQUENCE], segments[ROWS * SEQUENCE];
    int32_t positions[ROWS * SEQUENCE];
    ts_batch b = {tokens, labels, segments, positions};
    ts_loader_options shape = {.rows = ROWS, .sequence = SEQUENCE};
    ts_error err = {0};
    ts_status status = TS_OK;
    for (int i = 0; i < 4 && status == TS_OK; i++) {
        status = ts_loader_next(l, &b, &err);
        if (status == TS_OK) check_batch(&b, &shape, 259);
    }
    TS_ASSERT(status == TS_OK || status == TS_OUT_OF_RANGE || err.msg[0]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    json_t *json = NULL;
    ts_loader_state *s = NULL, *now = NULL;
    ts_error err = {0};
    ts_loader *l = n > 0 ? loader_of((ts_packing)(data[0] % 3)) : NULL;
    if (!l || ts_json_parse((const char *)data + 1, n - 1, 8, "position", &json, &err) != TS_OK)
        return 0;
    char fingerprint[20];
    snprintf(fingerprint, sizeof fingerprint, "%016llx",
             (unsigned long long)ts_loader_fingerprint(l));
    if (json_is_object(json)) json_object_set_new(json, "fingerprint", json_string(fingerprint));
    ts_loader_rewind(l);
    ts_status status = ts_loader_state_from_json(json, &s, &err);
    if (status == TS_OK) status = ts_loader_set_state(l, s, &err);
    if (status == TS_OK) {
        go_on(l);
        TS_ASSERT(ts_loader_state_new(l, &now, NULL) == TS_OK);
        ts_loader_get_state(l, now);
        TS_ASSERT(ts_loader_set_state(l, now, NULL) == TS_OK);
    } else {
        TS_ASSERT(status == TS_INVALID_ARGUMENT && err.msg[0]);
    }
    ts_loader_state_free(s);
    ts_loader_state_free(now);
    json_decref(json);
    return 0;
}
