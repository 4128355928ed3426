/* xla/saved.h – compiled_trainstep_file: a serialized executable and what it was made for.
 *
 * A safetensors file with one U8 tensor "executable"; its metadata says format, topology, program hash (XXH3-128 of
 * the StableHLO text and the compile options), plugin version and, for people, the configuration's keys.
 */
#ifndef TS_SAVED_H
#define TS_SAVED_H

#include "base/base.h"

typedef struct ts_saved_key { /* every part must be equal for the file to be loaded */
    char topology[64];        /* "v6e:4x4", "cpu:1" */
    char program[40];         /* hex hash */
    char plugin[640];         /* platform and its version */
} ts_saved_key;

void ts__saved_key_program(const char *text, size_t n, const char *options, size_t n_options,
                           char out[40]);
TS_MUST_CHECK ts_status ts__saved_write(const char *path, const ts_saved_key *key, const void *bytes,
                                        size_t n, ts_error *err);
/* DATA_LOSS: not such a file. FAILED_PRECONDITION: made for something else, which is named with both values.
 * Owns *bytes (ts_free). */
TS_MUST_CHECK ts_status ts__saved_read(const char *path, const ts_saved_key *want, void **bytes,
                                       size_t *n, ts_error *err);

#endif
