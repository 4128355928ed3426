/* tests/pack_help.h – gzip and zstd streams for tests, made with the libraries themselves: members and
 * frames of any kind, end to end. Include it behind data_help.h. */
#ifndef TS_TESTS_PACK_HELP_H
#define TS_TESTS_PACK_HELP_H

#include <zlib.h>
#include <zstd.h>

typedef struct packed {
    unsigned char *data;
    size_t n, capacity;
} packed;

static inline void pack_bytes(packed *p, const void *data, size_t n)
{
    if (p->capacity - p->n < n) {
        p->capacity = 2 * p->capacity + n;
        p->data = realloc(p->data, p->capacity);
        assert_non_null(p->data);
    }
    if (n) memcpy(p->data + p->n, data, n);
    p->n += n;
}

/* One member; level 0 stores. named: with every optional field of the header. */
static inline void pack_gzip(packed *p, const void *data, size_t n, int level, bool named)
{
    z_stream z = {0};
    gz_header header = {.extra = (Bytef *)(uintptr_t) "BC\2\0xy", .extra_len = 6,
                        .name = (Bytef *)(uintptr_t) "part.jsonl", .comment = (Bytef *)(uintptr_t) "why",
                        .hcrc = 1};
    assert_int_equal(deflateInit2(&z, level, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY),
                     Z_OK);
    if (named) assert_int_equal(deflateSetHeader(&z, &header), Z_OK);
    size_t bound = deflateBound(&z, n) + 64;
    unsigned char *out = malloc(bound);
    z.next_in = (Bytef *)(uintptr_t)data;
    z.avail_in = (uInt)n;
    z.next_out = out;
    z.avail_out = (uInt)bound;
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    pack_bytes(p, out, bound - z.avail_out);
    deflateEnd(&z);
    free(out);
}

/* One frame, with a checksum. */
static inline void pack_zstd(packed *p, const void *data, size_t n, int level)
{
    size_t bound = ZSTD_compressBound(n);
    unsigned char *out = malloc(bound);
    ZSTD_CCtx *c = ZSTD_createCCtx();
    ZSTD_CCtx_setParameter(c, ZSTD_c_compressionLevel, level);
    ZSTD_CCtx_setParameter(c, ZSTD_c_checksumFlag, 1);
    size_t size = ZSTD_compress2(c, out, bound, data, n);
    assert_false(ZSTD_isError(size));
    pack_bytes(p, out, size);
    ZSTD_freeCCtx(c);
    free(out);
}

/* A frame that readers skip. */
static inline void pack_skipped(packed *p, unsigned kind, size_t n)
{
    unsigned char head[8] = {(unsigned char)(0x50 | kind), 0x2a, 0x4d, 0x18, (unsigned char)n,
                             (unsigned char)(n >> 8)};
    pack_bytes(p, head, sizeof head);
    for (size_t i = 0; i < n; i++) pack_bytes(p, "s", 1);
}

/* The file of that name with what was packed, which is freed. */
static inline const char *put_packed(const char *name, packed *p)
{
    const char *path = put(name, p->data, p->n);
    free(p->data);
    *p = (packed){0};
    return path;
}

/* Open files of this process. */
static inline size_t open_files(void)
{
    char **names = NULL;
    size_t n = 0;
    assert_int_equal(ts_list_folder("/proc/self/fd", &names, &n, NULL), TS_OK);
    ts_names_free(names, n);
    return n;
}

#endif
