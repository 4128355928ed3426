/* ckpt/safetensors.h – named tensors in safetensors files: one file, or the shards of a model folder,
 * read as one list; and a streaming writer.
 *
 * The reader is stricter than the reference implementation: what is ambiguous there is an error here
 * (duplicate names, unknown fields, holes, rank over 8 …). Everything about a file that is wrong is
 * DATA_LOSS with the path, the byte and the tensor. No tensor is ever held whole by this room. A tensor may lie in
 * several files as boxes (a checkpoint's shards): it is put together as it is read.
 *
 * Not here: which tensors a model needs (models/), manifests and commits (checkpoint.h).
 */
#ifndef TS_SAFETENSORS_H
#define TS_SAFETENSORS_H

#include "base/base.h"

enum { TS_TENSOR_RANK = 8, TS_TENSOR_NAME_BYTES = 512, TS_TENSOR_HEADER_WRITE_BYTES = 16 << 20 };

/* Every dtype that the format has. Ours (ts_dtype) are a subset. */
typedef enum ts_file_dtype {
    TS_FILE_BOOL,
    TS_FILE_F4,
    TS_FILE_F6_E2M3,
    TS_FILE_F6_E3M2,
    TS_FILE_U8,
    TS_FILE_I8,
    TS_FILE_F8_E5M2,
    TS_FILE_F8_E4M3,
    TS_FILE_F8_E8M0,
    TS_FILE_F8_E4M3FNUZ,
    TS_FILE_F8_E5M2FNUZ,
    TS_FILE_I16,
    TS_FILE_U16,
    TS_FILE_F16,
    TS_FILE_BF16,
    TS_FILE_I32,
    TS_FILE_U32,
    TS_FILE_F32,
    TS_FILE_C64,
    TS_FILE_F64,
    TS_FILE_I64,
    TS_FILE_U64,
    TS_FILE_DTYPES
} ts_file_dtype;
const char *ts_file_dtype_name(ts_file_dtype t); /* "F32" … */
int ts_file_dtype_bits(ts_file_dtype t);

typedef struct ts_tensor {
    const char *name; /* until the list is closed */
    ts_file_dtype dtype;
    int rank; /* 0 … TS_TENSOR_RANK */
    int64_t dim[TS_TENSOR_RANK];
    uint64_t count;         /* elements */
    uint64_t offset, bytes; /* in its file, from the file's start */
    int file;               /* which file of the list; of several parts that of the first */
    int n_part;             /* 0: it lies whole in that file */
    const struct ts_tensor_part *part;
} ts_tensor;

typedef struct ts_tensors ts_tensors; /* open files and the list of what they hold */
/* One safetensors file. */
ts_status ts_tensors_open(const char *path, ts_tensors **out, ts_error *err);
/* A file, an index (*.index.json), or a folder with model.safetensors or
 * model.safetensors.index.json and its shards. */
ts_status ts_tensors_open_model(const char *path, ts_tensors **out, ts_error *err);
void ts_tensors_close(ts_tensors *t); /* NULL is fine */

size_t ts_tensors_count(const ts_tensors *t);
const ts_tensor *ts_tensors_at(const ts_tensors *t, size_t i);           /* sorted by name */
const ts_tensor *ts_tensors_find(const ts_tensors *t, const char *name); /* NULL when absent */
const char *ts_tensors_path_of(const ts_tensors *t, const ts_tensor *x); /* its file */
const char *ts_tensors_metadata(const ts_tensors *t,
                                const char *key); /* of the first file; or NULL */

/* n bytes of x from byte first (counted from its own start), whole elements of one in parts. Threads may read at
 * once. */
ts_status ts_tensors_read(ts_tensors *t, const ts_tensor *x, uint64_t first, void *to, size_t n,
                          ts_error *err);
/* count elements of an F32, BF16, F16 or F64 tensor from element first, as f32. */
ts_status ts_tensors_read_f32(ts_tensors *t, const ts_tensor *x, uint64_t first, uint64_t count,
                              float *to, ts_error *err);
/* The same of I32 or I64; a value outside i32 is DATA_LOSS. */
ts_status ts_tensors_read_i32(ts_tensors *t, const ts_tensor *x, uint64_t first, uint64_t count,
                              int32_t *to, ts_error *err);

/* ---- writing --------------------------------------------------------------------------------- */

typedef struct ts_tensor_spec {
    const char *name;
    ts_file_dtype dtype;
    int rank;
    int64_t dim[TS_TENSOR_RANK];
} ts_tensor_spec;

typedef struct ts_tensor_writer ts_tensor_writer;
/* Tensors are stored in the order given; wide dtypes first, so that each is aligned to its size.
 * metadata: n_metadata pairs key, value, or NULL. A header over 16 MiB is refused: use shards. */
ts_status ts_tensor_writer_open(const char *path, const ts_tensor_spec *specs, size_t n,
                                const char *const (*metadata)[2], size_t n_metadata,
                                ts_tensor_writer **out, ts_error *err);
/* The next bytes, little-endian, tensor after tensor in any pieces. */
ts_status ts_tensor_writer_add(ts_tensor_writer *w, const void *data, size_t n, ts_error *err);
/* Frees w. FAILED_PRECONDITION when bytes are missing. hash: XXH3-64 of the whole file; both may be NULL. */
ts_status ts_tensor_writer_close(ts_tensor_writer *w, bool sync, uint64_t *hash, uint64_t *bytes,
                                 ts_error *err);
void ts_tensor_writer_abandon(ts_tensor_writer *w); /* NULL is fine */

#endif
