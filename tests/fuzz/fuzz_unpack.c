/* fuzz_unpack.c – any bytes as a compressed file: what comes out is what the libraries' own calls on
 * the whole in memory give, and where they fail, or garbage follows, there is an error.
 */
#include <stdint.h>
#include <zlib.h>
#include <zstd.h>

#include "data/internal.h"
#include "data_help.h"

enum { LIMIT = 1 << 18 };

/* All members of data in one buffer. −1: not gzip from end to end, or more than the limit. */
static long whole_gzip(const uint8_t *data, size_t n, unsigned char *out)
{
    long have = 0;
    while (n > 0) {
        z_stream z = {.next_in = (Bytef *)(uintptr_t)data, .avail_in = (uInt)n};
        z.next_out = out + have;
        z.avail_out = (uInt)(LIMIT - have);
        if (inflateInit2(&z, MAX_WBITS + 16) != Z_OK) return -1;
        int r = inflate(&z, Z_FINISH);
        have = LIMIT - (long)z.avail_out;
        data += n - z.avail_in;
        n = z.avail_in;
        inflateEnd(&z);
        if (r != Z_STREAM_END) return -1;
    }
    return have;
}

static long whole_zstd(const uint8_t *data, size_t n, unsigned char *out)
{
    size_t r = ZSTD_decompress(out, LIMIT, data, n);
    return ZSTD_isError(r) ? -1 : (long)r;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static unsigned char expected[LIMIT], found[LIMIT];
    char path[32];
    ts__compression kind = ts__compression_of(data, n);
    if (kind == TS__PLAIN) return 0;
    int fd = memory_file(data, n, path);
    if (fd < 0) return 0;
    const char *cache = ts_path_kind_of("/dev/shm") == TS_PATH_FOLDER ? "/dev/shm" : "/tmp";
    ts_file *from = NULL, *to = NULL;
    ts_error err = {0};
    TS_ASSERT(ts_file_open(path, &from, &err) == TS_OK);
    ts_status status = ts__unpack(from, kind, cache, LIMIT, &to, &err);
    long whole = kind == TS__GZIP ? whole_gzip(data, n, expected) : whole_zstd(data, n, expected);
    TS_ASSERT((status == TS_OK) == (to != NULL));
    TS_ASSERT(status == TS_OK || (err.code == status && err.msg[0]));
    if (status == TS_OK) {
        TS_ASSERT(whole > 0 && ts_file_size(to) == (uint64_t)whole);
        TS_ASSERT(ts_file_read_at(to, 0, found, (size_t)whole, NULL) == TS_OK);
        TS_ASSERT(memcmp(found, expected, (size_t)whole) == 0);
    } else if (kind == TS__GZIP) {
        TS_ASSERT(whole <= 0);
    }
    ts_file_close(to);
    ts_file_close(from);
    close(fd);
    return 0;
}
