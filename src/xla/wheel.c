/* xla/wheel.c – single files out of a wheel, which is a zip file that a stranger may have made.
 *
 * Members are found by the end of their path and written where the caller says: no name of the archive ever
 * becomes a path. Sizes are looked at before anything is unpacked, the data are counted and their CRC compared
 * behind it. minizip reads through the file seam, so that a test can fail any read.
 * Not here: other archives, writing, several files at once.
 */
#include "xla/wheel.h"

#include <inttypes.h>
#include <stdio.h>
#include <unzip.h>

#include "base/file.h"

enum { BUFFER_BYTES = 1 << 20, MAX_MEMBERS = 200000, MAX_NAME = 4096 };

struct ts_wheel {
    ts_file *file;
    unzFile zip;
    uint64_t at;    /* where minizip reads next */
    ts_error error; /* of the last read */
    uint64_t bytes; /* of the member found last */
    unsigned long flags, method;
    char name[MAX_NAME]; /* of it, for messages */
};

/* ---- minizip's input ------------------------------------------------------------------------- */

static voidpf open_stream(voidpf opaque, const void *path, int mode)
{
    (void)path;
    return (mode & ZLIB_FILEFUNC_MODE_READWRITEFILTER) == ZLIB_FILEFUNC_MODE_READ ? opaque : NULL;
}

static uLong read_stream(voidpf opaque, voidpf stream, void *to, uLong n)
{
    ts_wheel *w = stream;
    (void)opaque;
    uint64_t size = ts_file_size(w->file), left = w->at < size ? size - w->at : 0;
    if (n > left) n = (uLong)left;
    if (ts_file_read_at(w->file, w->at, to, n, &w->error) != TS_OK) return 0;
    w->at += n;
    return n;
}

static uLong write_stream(voidpf opaque, voidpf stream, const void *from, uLong n)
{
    (void)opaque, (void)stream, (void)from, (void)n;
    return 0;
}

static ZPOS64_T tell_stream(voidpf opaque, voidpf stream)
{
    (void)opaque;
    return ((ts_wheel *)stream)->at;
}

static long seek_stream(voidpf opaque, voidpf stream, ZPOS64_T offset, int origin)
{
    ts_wheel *w = stream;
    (void)opaque;
    uint64_t from = origin == ZLIB_FILEFUNC_SEEK_SET   ? 0
                    : origin == ZLIB_FILEFUNC_SEEK_CUR ? w->at
                                                       : ts_file_size(w->file);
    if (offset > (uint64_t)INT64_MAX - from) return -1;
    w->at = from + offset;
    return 0;
}

static int close_stream(voidpf opaque, voidpf stream)
{
    (void)opaque, (void)stream;
    return 0;
}

static int stream_error(voidpf opaque, voidpf stream)
{
    (void)opaque;
    return ((ts_wheel *)stream)->error.code != TS_OK;
}

/* ---- opening --------------------------------------------------------------------------------- */

/* A read that failed explains more than what minizip makes of it. */
static ts_status damaged(ts_wheel *w, const char *what, ts_error *err)
{
    if (w->error.code != TS_OK) {
        if (err && err->code == TS_OK) *err = w->error;
        return w->error.code;
    }
    return TS_ERROR(err, TS_DATA_LOSS, "%s: %s; is the download whole?", ts_file_path(w->file),
                    what);
}

ts_status ts__wheel_open(const char *path, ts_wheel **out, ts_error *err)
{
    *out = NULL;
    ts_wheel *w = ts_alloc_zero(sizeof *w);
    if (!w) return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "%s: out of memory", path);
    ts_status status = ts_file_open(path, &w->file, err);
    if (status == TS_OK) {
        zlib_filefunc64_def io = {open_stream, read_stream,  write_stream, tell_stream,
                                  seek_stream, close_stream, stream_error, w};
        unz_global_info64 info;
        w->zip = unzOpen2_64(path, &io);
        if (!w->zip || unzGetGlobalInfo64(w->zip, &info) != UNZ_OK)
            status = damaged(w, "is no zip file, which a wheel is", err);
        else if (info.number_entry > MAX_MEMBERS)
            status =
                TS_ERROR(err, TS_DATA_LOSS, "%s: says it has %llu members; expected at most %d",
                         path, (unsigned long long)info.number_entry, MAX_MEMBERS);
    }
    if (status == TS_OK)
        *out = w;
    else
        ts__wheel_close(w);
    return status;
}

void ts__wheel_close(ts_wheel *w)
{
    if (!w) return;
    if (w->zip) unzClose(w->zip);
    ts_file_close(w->file);
    ts_free(w);
}

/* ---- finding --------------------------------------------------------------------------------- */

static bool ends_in(const char *path, const char *end)
{
    size_t n = strlen(path), m = strlen(end);
    return n >= m && strcmp(path + n - m, end) == 0 && (n == m || path[n - m - 1] == '/');
}

ts_status ts__wheel_find(ts_wheel *w, const char *end, uint64_t *bytes, ts_error *err)
{
    char name[MAX_NAME];
    unz_file_info64 info;
    unz64_file_pos found = {0, 0};
    int matches = 0, seen = 0, rc = unzGoToFirstFile(w->zip);
    *bytes = UINT64_MAX;
    for (; rc == UNZ_OK && seen < MAX_MEMBERS; rc = unzGoToNextFile(w->zip), seen++) {
        if (unzGetCurrentFileInfo64(w->zip, &info, name, sizeof name, NULL, 0, NULL, 0) != UNZ_OK)
            return damaged(w, "its list of members cannot be read", err);
        name[sizeof name - 1] = '\0';
        if (info.size_filename >= sizeof name || !ends_in(name, end)) continue;
        if (++matches > 1)
            return TS_ERROR(err, TS_DATA_LOSS, "%s: has %s and %s; expected one",
                            ts_file_path(w->file), w->name, name);
        if (unzGetFilePos64(w->zip, &found) != UNZ_OK)
            return damaged(w, "its list of members cannot be read", err);
        memcpy(w->name, name, sizeof name);
        w->bytes = info.uncompressed_size;
        w->flags = info.flag;
        w->method = info.compression_method;
    }
    if (rc != UNZ_OK && rc != UNZ_END_OF_LIST_OF_FILE)
        return damaged(w, "its list of members cannot be read", err);
    if (!matches) return TS_OK;
    if (unzGoToFilePos64(w->zip, &found) != UNZ_OK)
        return damaged(w, "its list of members cannot be read", err);
    *bytes = w->bytes;
    return TS_OK;
}

/* ---- unpacking ------------------------------------------------------------------------------- */

static ts_status copy(ts_wheel *w, ts_writer *to, unsigned char *buffer, bool (*stop)(void *),
                      void *context, ts_error *err)
{
    uint64_t done = 0;
    for (;;) {
        int n = unzReadCurrentFile(w->zip, buffer, BUFFER_BYTES);
        if (n < 0) return damaged(w, "the data of a member are damaged", err);
        if (n == 0) break;
        if ((uint64_t)n > w->bytes - done)
            return damaged(w, "a member is larger than the wheel says", err);
        TS_TRY(ts_writer_write(to, buffer, (size_t)n, err));
        done += (uint64_t)n;
        if (stop && stop(context))
            return TS_ERROR(err, TS_CANCELLED, "interrupted while %s was unpacked", w->name);
    }
    if (done != w->bytes)
        return TS_ERROR(err, TS_DATA_LOSS,
                        "%s: %s ends after %" PRIu64 " bytes; the wheel says %" PRIu64,
                        ts_file_path(w->file), w->name, done, w->bytes);
    return TS_OK;
}

ts_status ts__wheel_unpack(ts_wheel *w, const char *to, uint64_t max, bool (*stop)(void *context),
                           void *context, ts_error *err)
{
    if (w->bytes > max)
        return TS_ERROR(err, TS_DATA_LOSS,
                        "%s: %s unpacks to %" PRIu64 " bytes; expected at most %" PRIu64,
                        ts_file_path(w->file), w->name, w->bytes, max);
    if ((w->flags & 1) || (w->method != 0 && w->method != Z_DEFLATED))
        return TS_ERROR(err, TS_DATA_LOSS, "%s: %s is %s; a wheel's members are stored or deflated",
                        ts_file_path(w->file), w->name,
                        w->flags & 1 ? "encrypted" : "packed otherwise");
    if (unzOpenCurrentFile(w->zip) != UNZ_OK)
        return damaged(w, "a member's header does not fit the list of members", err);
    unsigned char *buffer = ts_alloc(BUFFER_BYTES);
    ts_writer *out = NULL;
    ts_status status = buffer ? ts_writer_open(to, false, &out, err)
                              : TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "%s: out of memory", to);
    if (status == TS_OK) status = copy(w, out, buffer, stop, context, err);
    if (status == TS_OK) {
        status = ts_writer_close(out, true, err);
        out = NULL;
    }
    ts_writer_abandon(out);
    ts_free(buffer);
    int rc = unzCloseCurrentFile(w->zip);
    if (status == TS_OK && rc != UNZ_OK)
        status = damaged(w, "a member's checksum (CRC-32) does not fit its data", err);
    return status;
}
