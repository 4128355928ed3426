/* ckpt/safetensors_header.h – the parsed header, shared by the files of the safetensors reader. */
#ifndef TS_SAFETENSORS_HEADER_H
#define TS_SAFETENSORS_HEADER_H

#include "ckpt/safetensors.h"

typedef struct ts_st_pair {
    const char *key, *value;
} ts_st_pair;

/* Arrays are owned (ts_free), strings live in the arena that was passed. */
typedef struct ts_st_header {
    ts_tensor *tensor;
    size_t n, capacity;
    ts_st_pair *metadata;
    size_t n_metadata, metadata_capacity;
} ts_st_header;

/* text: the n bytes after the length word. file_bytes: the size of the whole file. On success
 * tensors are sorted by name, every rule of the format holds, and offsets count from the file's start. */
ts_status ts__safetensors_parse(const char *text, size_t n, uint64_t file_bytes, const char *path,
                                ts_arena *arena, ts_st_header *out, ts_error *err);
void ts__safetensors_header_free(ts_st_header *h);

#endif
