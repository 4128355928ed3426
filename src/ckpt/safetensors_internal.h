/* ckpt/safetensors_internal.h – the list of tensors, shared by those who make one and the one who reads from it. */
#ifndef TS_SAFETENSORS_INTERNAL_H
#define TS_SAFETENSORS_INTERNAL_H

#include "base/box.h"
#include "base/file.h"
#include "ckpt/safetensors_header.h"

/* A tensor's box that lies in one file, its elements one behind the other. */
struct ts_tensor_part {
    int file;
    uint64_t offset; /* in the file */
    ts_box box;
};

struct ts_tensors {
    ts_arena *arena; /* names, metadata, parts */
    char **path;     /* [n_files]; in the arena */
    ts_file **file;  /* [n_files]; NULL: opened when it is read, for a list of many files */
    int n_files, max_files;
    ts_tensor *tensor; /* of all files; sorted by name once the list is complete */
    size_t n, capacity;
    ts_st_pair *metadata; /* of the first file, sorted by key */
    size_t n_metadata;
};

ts_tensors *ts__tensors_new(int max_files); /* NULL when memory is out */
/* Appends the tensors of one more file, behind the others. */
ts_status ts__tensors_add_file(ts_tensors *t, const char *path, ts_error *err);

/* Where a tensor of a file belongs: a box of one with this shape. */
typedef struct ts__tensor_place {
    int rank;
    int64_t dim[TS_TENSOR_RANK];
    ts_box box; /* of dimensions with the same elements in the same order */
} ts__tensor_place;
/* Replaces tensors of one name by the tensor that their boxes make: place [t->n], of t->tensor's. DATA_LOSS where boxes
 * of a tensor do not cover it exactly once; they must be of one size. name: of the whole, for messages. */
ts_status ts__tensors_join(ts_tensors *t, const ts__tensor_place *place, const char *name,
                           ts_error *err);
/* Elements first … of a joined tensor; bytes of one element. */
ts_status ts__tensors_read_parts(ts_tensors *t, const ts_tensor *x, uint64_t first, void *to,
                                 size_t n, size_t element, ts_error *err);
/* n bytes of a file of the list. */
ts_status ts__tensors_read_file(ts_tensors *t, int file, uint64_t offset, void *to, size_t n,
                                ts_error *err);

#endif
