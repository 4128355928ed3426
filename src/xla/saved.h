/* xla/saved.h – compiled_trainstep_file: a serialized executable and what it was made for.
 *
 * Two lines, then the bytes. The first is "tessera executable 1"; the second a JSON object with "topology",
 * "program" (XXH3-128 of the StableHLO text and of the compile options), "plugin" (platform, its version and those
 * of the interface: some plugins say no more of their version than their name), "bytes" and "xxh3" (of the bytes,
 * hex). Nothing of it is trusted before all of it was checked.
 */
#ifndef TS_SAVED_H
#define TS_SAVED_H

#include "xla/pjrt.h"

typedef struct ts_saved_key { /* every part must be equal for the file to be loaded */
    char topology[64];        /* "v6e:4x4", "cpu:1" */
    char program[40];         /* hex hash */
    char plugin[640];         /* "cpu cpu, PJRT 0.115, StableHLO 1.20.0" */
} ts_saved_key;

/* options: the bytes of compile_options.h, without flags that only say where to dump. */
void ts__saved_key_program(const char *text, size_t n, const char *options, size_t n_options,
                           char out[40]);
/* version: all that the plugin says of it. */
void ts__saved_key_plugin(const ts_pjrt *plugin, const char *platform, const char *version,
                          ts_saved_key *key);
/* Whole or not at all: a temporary file beside it, synced, then renamed. */
/* INVALID_ARGUMENT where path is a file that ts__saved_write has not made: it would be lost. */
TS_MUST_CHECK ts_status ts__saved_place(const char *path, ts_error *err);
TS_MUST_CHECK ts_status ts__saved_write(const char *path, const ts_saved_key *key, const void *bytes,
                                        size_t n, ts_error *err);
/* DATA_LOSS: not such a file. FAILED_PRECONDITION: made for something else, which is named with both values.
 * Owns *bytes (ts_free). */
TS_MUST_CHECK ts_status ts__saved_read(const char *path, const ts_saved_key *want, void **bytes,
                                       size_t *n, ts_error *err);

#endif
