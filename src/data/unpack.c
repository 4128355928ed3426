/* data/unpack.c – a file compressed with gzip or zstd becomes a file without a name that holds what
 * was in it, so that everything else reads at any place as from a plain one.
 *
 * Both formats may be several streams end to end (bgzip, pigz, pzstd, cat a.gz b.gz). One pass through
 * two buffers: memory does not grow with the file; zstd adds the window that the file asks for, at
 * most 128 MiB. Every checksum is checked. What is cut, damaged or followed by something else is an
 * error at its byte of the compressed file: half of the data is never taken for the whole.
 * Not here: what the content is (source.c).
 */
#include <stdlib.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include "base/log.h"
#include "data/internal.h"

enum { IN_BYTES = 1 << 18, OUT_BYTES = 1 << 20, MAX_WINDOW_LOG = 27 };
#define SAY_EVERY_SECONDS 5.0

typedef struct unpacking {
    ts_file *from;
    const char *what; /* "gzip", "zstd" */
    uint64_t read;    /* bytes of from that were read; those in [at, have) are still to be used */
    size_t at, have;
    unsigned char *in, *out;
    ts_spool *to;
    uint64_t max;
    double said;
} unpacking;

ts__compression ts__compression_of(const unsigned char *head, size_t n)
{
    static const unsigned char zstd[] = {0x28, 0xb5, 0x2f, 0xfd};
    if (n >= 2 && head[0] == 0x1f && head[1] == 0x8b) return TS__GZIP;
    if (n < 4) return TS__PLAIN;
    /* Or a frame to be skipped, which pzstd puts in front of each of its own. */
    bool skipped = (head[0] & 0xf0) == 0x50 && head[1] == 0x2a && head[2] == 0x4d && head[3] == 0x18;
    return skipped || memcmp(head, zstd, 4) == 0 ? TS__ZSTD : TS__PLAIN;
}

/* ---- in and out ------------------------------------------------------------------------------ */

static unsigned long long used(const unpacking *u)
{
    return (unsigned long long)(u->read - (u->have - u->at));
}

static void say_progress(unpacking *u)
{
    double now = ts_clock_seconds();
    if (now - u->said < SAY_EVERY_SECONDS) return;
    u->said = now;
    ts_log(TS_LOG_INFO, "%s: unpacking, %.0f %% of %.0f MB read, %.0f MB written",
           ts_file_path(u->from), 100.0 * (double)u->read / (double)ts_file_size(u->from),
           (double)ts_file_size(u->from) * 1e-6, (double)ts_spool_size(u->to) * 1e-6);
}

/* Input to go on with; at == have behind it: there is none left. */
static ts_status fill(unpacking *u, ts_error *err)
{
    if (u->at < u->have) return TS_OK;
    uint64_t left = ts_file_size(u->from) - u->read;
    size_t n = left < IN_BYTES ? (size_t)left : IN_BYTES;
    u->at = u->have = 0;
    if (n == 0) return TS_OK;
    TS_TRY(ts_file_read_at(u->from, u->read, u->in, n, err));
    u->have = n;
    u->read += n;
    say_progress(u);
    return TS_OK;
}

static ts_status emit(unpacking *u, size_t n, ts_error *err)
{
    if (n == 0) return TS_OK;
    unsigned long long needed = ts_spool_size(u->to) + n;
    if (needed > u->max)
        return TS_ERROR(err, TS_RESOURCE_EXHAUSTED,
                        "%s: unpacked it has more than %llu bytes, which is the limit",
                        ts_file_path(u->from), (unsigned long long)u->max);
    ts_error why = {0};
    ts_status status = ts_spool_write(u->to, u->out, n, &why);
    if (status == TS_OK) return TS_OK;
    return TS_ERROR(err, status,
                    "%s: unpacked it takes %llu bytes so far, after %llu of its %llu, and they "
                    "cannot be kept: %s (data_cache_directory=FOLDER says where)",
                    ts_file_path(u->from), needed, used(u),
                    (unsigned long long)ts_file_size(u->from), why.msg);
}

/* ---- what can be wrong ----------------------------------------------------------------------- */

static ts_status garbage(const unpacking *u, unsigned long long begin, ts_error *err)
{
    return TS_ERROR(err, TS_DATA_LOSS,
                    "%s: the %s stream ends at byte %llu, and what follows is none (%llu bytes); "
                    "copy it again, or cut them off: truncate -s %llu",
                    ts_file_path(u->from), u->what, begin,
                    (unsigned long long)ts_file_size(u->from) - begin, begin);
}

/* too_few: bytes that do not yet tell what begins. */
static ts_status cut(const unpacking *u, unsigned long long begin, size_t too_few, ts_error *err)
{
    if (begin > 0 && used(u) - begin <= too_few) return garbage(u, begin, err);
    return TS_ERROR(err, TS_DATA_LOSS,
                    "%s is cut: its %llu bytes end in the middle of a %s stream (%llu bytes came "
                    "out of it); copy or download it again",
                    ts_file_path(u->from), (unsigned long long)ts_file_size(u->from), u->what,
                    (unsigned long long)ts_spool_size(u->to));
}

static ts_status damaged(const unpacking *u, const char *reason, ts_error *err)
{
    return TS_ERROR(err, TS_DATA_LOSS,
                    "%s is damaged: %s before byte %llu of the %s stream; copy or download it again",
                    ts_file_path(u->from), reason, used(u), u->what);
}

static ts_status no_memory(const unpacking *u, ts_error *err)
{
    return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "%s: out of memory while unpacking it",
                    ts_file_path(u->from));
}

/* ---- gzip ------------------------------------------------------------------------------------ */

static void *z_alloc(void *context, unsigned items, unsigned bytes)
{
    (void)context;
    return ts_alloc_zero((size_t)items * bytes);
}

static void z_free(void *context, void *p)
{
    (void)context;
    ts_free(p);
}

/* One buffer of output, or of input. *r: what zlib said. Output that waits in zlib comes with the next call, for which
 * there is input: a member's checksum follows its last byte. */
static ts_status inflate_some(unpacking *u, z_stream *z, int *r, ts_error *err)
{
    z->next_in = u->in + u->at;
    z->avail_in = (uInt)(u->have - u->at);
    z->next_out = u->out;
    z->avail_out = OUT_BYTES;
    *r = inflate(z, Z_NO_FLUSH);
    u->at = u->have - z->avail_in;
    return emit(u, OUT_BYTES - z->avail_out, err);
}

static ts_status gunzip_members(unpacking *u, z_stream *z, ts_error *err)
{
    unsigned long long begin = 0; /* of a member */
    for (;;) {
        int r;
        TS_TRY(fill(u, err));
        if (u->at == u->have) return used(u) == begin ? TS_OK : cut(u, begin, 1, err);
        TS_TRY(inflate_some(u, z, &r, err));
        if (r == Z_STREAM_END) {
            begin = used(u);
            if (inflateReset(z) != Z_OK) return damaged(u, "its state is lost", err);
        } else if (r == Z_MEM_ERROR) {
            return no_memory(u, err);
        } else if (r != Z_OK && r != Z_BUF_ERROR) {
            bool header = z->msg && strcmp(z->msg, "incorrect header check") == 0;
            if (header && begin > 0) return garbage(u, begin, err);
            return damaged(u, z->msg ? z->msg : "it is not understood", err);
        }
    }
}

static ts_status gunzip(unpacking *u, ts_error *err)
{
    z_stream z = {.zalloc = z_alloc, .zfree = z_free};
    if (inflateInit2(&z, MAX_WBITS + 16) != Z_OK) return no_memory(u, err); /* 16: gzip alone */
    ts_status status = gunzip_members(u, &z, err);
    (void)inflateEnd(&z);
    return status;
}

/* ---- zstd ------------------------------------------------------------------------------------ */

static ts_status zstd_failed(const unpacking *u, size_t r, unsigned long long begin, ts_error *err)
{
    ZSTD_ErrorCode code = ZSTD_getErrorCode(r);
    if (code == ZSTD_error_memory_allocation) return no_memory(u, err);
    if (code == ZSTD_error_prefix_unknown && begin > 0) return garbage(u, begin, err);
    if (code == ZSTD_error_frameParameter_windowTooLarge)
        return TS_ERROR(err, TS_DATA_LOSS,
                        "%s takes more than %d MiB of memory to unpack (zstd --long); unpack it "
                        "with unzstd --long=31, or compress it without --long",
                        ts_file_path(u->from), 1 << (MAX_WINDOW_LOG - 20));
    if (code == ZSTD_error_dictionary_wrong)
        return TS_ERROR(err, TS_DATA_LOSS,
                        "%s was compressed with a dictionary, which it does not hold; unpack it "
                        "with unzstd -D DICTIONARY",
                        ts_file_path(u->from));
    return damaged(u, ZSTD_getErrorName(r), err);
}

static ts_status unzstd_frames(unpacking *u, ZSTD_DCtx *d, ts_error *err)
{
    unsigned long long begin = 0; /* of a frame */
    for (;;) {
        TS_TRY(fill(u, err));
        if (u->at == u->have) return used(u) == begin ? TS_OK : cut(u, begin, 3, err);
        bool full = false;
        while (u->at < u->have || full) {
            ZSTD_inBuffer in = {u->in + u->at, u->have - u->at, 0};
            ZSTD_outBuffer out = {u->out, OUT_BYTES, 0};
            size_t r = ZSTD_decompressStream(d, &out, &in);
            u->at += in.pos;
            if (ZSTD_isError(r)) return zstd_failed(u, r, begin, err);
            TS_TRY(emit(u, out.pos, err));
            full = r != 0 && out.pos == OUT_BYTES; /* more may wait in zstd, and no input follow */
            if (r == 0) begin = used(u);
        }
    }
}

static ts_status unzstd(unpacking *u, ts_error *err)
{
    ZSTD_DCtx *d = ZSTD_createDCtx();
    if (!d || ZSTD_isError(ZSTD_DCtx_setParameter(d, ZSTD_d_windowLogMax, MAX_WINDOW_LOG))) {
        ZSTD_freeDCtx(d);
        return no_memory(u, err);
    }
    ts_status status = unzstd_frames(u, d, err);
    ZSTD_freeDCtx(d);
    return status;
}

/* ---- the whole ------------------------------------------------------------------------------- */

const char *ts__cache_folder(const char *folder)
{
    const char *usual = getenv("TMPDIR");
    return folder && *folder ? folder : usual && *usual ? usual : "/tmp";
}

static ts_status unpack_into(unpacking *u, ts__compression kind, ts_error *err)
{
    if (!u->in || !u->out) return no_memory(u, err);
    TS_TRY(kind == TS__GZIP ? gunzip(u, err) : unzstd(u, err));
    if (ts_spool_size(u->to) > 0) return TS_OK;
    return TS_ERROR(err, TS_DATA_LOSS,
                    "%s is compressed with %s and holds nothing (0 bytes unpacked); a data file "
                    "needs data",
                    ts_file_path(u->from), u->what);
}

ts_status ts__unpack(ts_file *from, ts__compression kind, const char *cache_folder, uint64_t max,
                     ts_file **out, ts_error *err)
{
    TS_ASSERT(kind == TS__GZIP || kind == TS__ZSTD);
    const char *folder = ts__cache_folder(cache_folder);
    unpacking u = {.from = from, .max = max, .what = kind == TS__GZIP ? "gzip" : "zstd"};
    ts_error why = {0};
    ts_status status = ts_spool_open(folder, ts_file_path(from), &u.to, &why);
    if (status != TS_OK)
        return TS_ERROR(err, status, "%s is to be unpacked: %s (data_cache_directory=FOLDER says where)",
                        ts_file_path(from), why.msg);
    u.in = ts_alloc(IN_BYTES);
    u.out = ts_alloc(OUT_BYTES);
    u.said = ts_clock_seconds();
    status = unpack_into(&u, kind, err);
    ts_free(u.in);
    ts_free(u.out);
    if (status == TS_OK)
        *out = ts_spool_finish(u.to);
    else
        ts_spool_abandon(u.to);
    return status;
}
