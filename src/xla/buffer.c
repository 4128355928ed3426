/* xla/buffer.c – the xla engine's buffers: bytes on a device, with host memory only where pieces come or go.
 *
 * A whole upload goes straight to the device, a whole download straight from it. Pieces are gathered in host memory
 * until as many bytes have come as the buffer has, or an execute wants them; a download in pieces fetches once and
 * serves the rest from that copy until the end was read or the bytes change. So there is never more than one
 * tensor beside what was asked for. A new buffer holds nothing at all until somebody needs its zeros.
 *
 * PJRT's buffers are values: an upload makes another one, and an execute in flight keeps the one it was given.
 */
#include "xla/run.h"

static ts_xla *engine_of(const ts_xla_buffer *b)
{
    return (ts_xla *)b->base.engine;
}

static PJRT_Buffer_Type element_type(ts_dtype t)
{
    switch (t) {
    case TS_F32: return PJRT_Buffer_Type_F32;
    case TS_BF16: return PJRT_Buffer_Type_BF16;
    case TS_I32: return PJRT_Buffer_Type_S32;
    case TS_U32: return PJRT_Buffer_Type_U32;
    case TS_PRED: return PJRT_Buffer_Type_PRED;
    case TS_DTYPES: break;
    }
    return PJRT_Buffer_Type_INVALID;
}

/* ---- the device's half ----------------------------------------------------------------------- */

static void destroy(const ts_xla *e, PJRT_Buffer *remote)
{
    if (!remote) return;
    PJRT_ARGS(PJRT_Buffer_Destroy_Args, a);
    ts_error ignored = {0};
    a.buffer = remote;
    ts_status status = ts__pjrt_check(e->pjrt, e->pjrt->api->PJRT_Buffer_Destroy(&a),
                                      "freeing a buffer", &ignored);
    (void)status; /* it is gone for us either way */
}

static ts_status to_device(const ts_xla_buffer *b, const void *data, PJRT_Buffer **out,
                           ts_error *err)
{
    const ts_xla *e = engine_of(b);
    int64_t dims[TS_MAX_RANK];
    char text[400];
    PJRT_ARGS(PJRT_Client_BufferFromHostBuffer_Args, a);
    for (int i = 0; i < b->base.type.rank; i++) dims[i] = b->base.type.dim[i].size;
    a.client = e->client;
    a.data = data;
    a.type = element_type(b->base.type.dtype);
    a.dims = dims;
    a.num_dims = (size_t)b->base.type.rank;
    a.host_buffer_semantics = PJRT_HostBufferSemantics_kImmutableOnlyDuringCall;
    a.device = e->device[b->base.device];
    ts_status status = ts__pjrt_check(e->pjrt, e->pjrt->api->PJRT_Client_BufferFromHostBuffer(&a),
                                      "an upload to the device", err);
    if (status == TS_OK)
        status = ts__pjrt_await(e->pjrt, a.done_with_host_buffer, "an upload to the device", err);
    if (status == TS_OK) {
        *out = a.buffer;
        return TS_OK;
    }
    destroy(e, a.buffer);
    return ts__error_context(err, "%s", ts_type_text(&b->base.type, text, sizeof text));
}

static ts_status from_device(const ts_xla_buffer *b, void *data, ts_error *err)
{
    const ts_xla *e = engine_of(b);
    int64_t minor_to_major[TS_MAX_RANK];
    int rank = b->base.type.rank;
    PJRT_ARGS(PJRT_Buffer_MemoryLayout, layout);
    PJRT_ARGS(PJRT_Buffer_ToHostBuffer_Args, a);
    for (int i = 0; i < rank; i++) minor_to_major[i] = rank - 1 - i;
    layout.type =
        PJRT_Buffer_MemoryLayout_Type_Tiled; /* without tiles: dense, the last dimension innermost */
    layout.tiled.struct_size = PJRT_Buffer_MemoryLayout_Tiled_SIZE;
    layout.tiled.minor_to_major = minor_to_major;
    layout.tiled.minor_to_major_size = (size_t)rank;
    a.src = b->remote;
    a.host_layout = &layout;
    a.dst = data;
    a.dst_size = b->bytes;
    TS_TRY(ts__pjrt_check(e->pjrt, e->pjrt->api->PJRT_Buffer_ToHostBuffer(&a),
                          "a download from the device", err));
    return ts__pjrt_await(e->pjrt, a.event, "a download from the device", err);
}

/* ---- states ---------------------------------------------------------------------------------- */

static void drop_host(ts_xla_buffer *b)
{
    ts_free(b->host);
    b->host = NULL;
    b->written = 0;
    b->holes = false;
}

void ts__xla_buffer_leave_slot(ts_xla_buffer *b)
{
    if (b->slot) b->slot->written[b->slot_at] = NULL;
    b->slot = NULL;
}

void ts__xla_buffer_take(ts_xla_buffer *b, PJRT_Buffer *remote)
{
    ts__xla_buffer_leave_slot(b);
    destroy(engine_of(b), b->remote);
    drop_host(b);
    b->remote = remote;
    b->place = TS_XLA_DEVICE;
}

void ts__xla_buffer_lose(ts_xla_buffer *b)
{
    ts__xla_buffer_take(b, NULL);
    b->place = TS_XLA_LOST;
}

static ts_status make_host(ts_xla_buffer *b, bool zero, ts_error *err)
{
    char text[400];
    if (b->host) return TS_OK;
    b->host = zero ? ts_alloc_zero(b->bytes) : ts_alloc(b->bytes);
    if (b->host) return TS_OK;
    return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "out of memory: %.1f MiB of host memory for %s",
                    (double)b->bytes / (1 << 20), ts_type_text(&b->base.type, text, sizeof text));
}

static ts_status refuse_lost(const ts_xla_buffer *b, ts_error *err)
{
    char text[400];
    return TS_ERROR(
        err, TS_FAILED_PRECONDITION,
        "the buffer %s on device %d was given to an execute that failed, and its bytes are gone; "
        "upload them again, from a checkpoint",
        ts_type_text(&b->base.type, text, sizeof text), b->base.device);
}

ts_status ts__xla_buffer_flush(ts_xla_buffer *b, ts_error *err)
{
    PJRT_Buffer *remote = NULL;
    if (b->place == TS_XLA_LOST || (b->holes && b->written < b->bytes)) return refuse_lost(b, err);
    if (b->place == TS_XLA_DEVICE) return TS_OK;
    TS_TRY(make_host(b, true, err));
    TS_TRY(to_device(b, b->host, &remote, err));
    ts__xla_buffer_take(b, remote);
    return TS_OK;
}

/* ---- the vtable's functions ------------------------------------------------------------------ */

ts_status ts__xla_buffer_new(ts_engine *engine, int device, const ts_type *type, ts_buffer **out,
                             ts_error *err)
{
    ts_xla *e = (ts_xla *)engine;
    *out = NULL;
    if (device < 0 || device >= e->n_devices)
        return TS_ERROR(err, TS_OUT_OF_RANGE, "a buffer on device %d: the xla engine has %d",
                        device, e->n_devices);
    ts_xla_buffer *b = ts_alloc_zero(sizeof *b);
    if (!b) return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "out of memory for a buffer");
    b->base = (ts_buffer){
        .vtable = &ts_xla_engine, .engine = engine, .type = *type, .device = device};
    b->bytes = ts_type_bytes(type);
    *out = &b->base;
    return TS_OK;
}

void ts__xla_buffer_free(ts_buffer *buffer)
{
    ts_xla_buffer *b = (ts_xla_buffer *)buffer;
    ts__xla_buffer_leave_slot(b);
    destroy(engine_of(b), b->remote);
    ts_free(b->host);
    ts_free(b);
}

static ts_status check_range(const ts_xla_buffer *b, const char *what, size_t offset, size_t bytes,
                             ts_error *err)
{
    if (offset <= b->bytes && bytes <= b->bytes - offset) return TS_OK;
    return TS_ERROR(err, TS_OUT_OF_RANGE, "%s of %zu bytes at %zu: the buffer has %zu bytes", what,
                    bytes, offset, b->bytes);
}

ts_status ts__xla_upload(ts_buffer *buffer, const void *data, size_t offset, size_t bytes,
                         ts_error *err)
{
    ts_xla_buffer *b = (ts_xla_buffer *)buffer;
    PJRT_Buffer *remote = NULL;
    TS_TRY(check_range(b, "upload", offset, bytes, err));
    if (bytes == 0) return TS_OK;
    if (bytes == b->bytes) {
        TS_TRY(to_device(b, data, &remote, err));
        ts__xla_buffer_take(b, remote);
        return TS_OK;
    }
    if (b->place != TS_XLA_HOST) { /* the bytes around the piece are needed as well */
        bool there = b->host != NULL;
        TS_TRY(make_host(b, b->place != TS_XLA_DEVICE, err));
        if (b->place == TS_XLA_DEVICE && !there) {
            ts_status status = from_device(b, b->host, err);
            if (status != TS_OK) drop_host(b);
            TS_TRY(status);
        }
        ts__xla_buffer_leave_slot(b);
        destroy(engine_of(b), b->remote);
        b->remote = NULL;
        b->holes = b->place == TS_XLA_LOST;
        b->place = TS_XLA_HOST;
        b->written = 0;
    }
    memcpy(b->host + offset, data, bytes);
    if (!b->holes)
        b->written += bytes;
    else if (offset <= b->written && offset + bytes > b->written)
        b->written = offset + bytes;
    return b->written >= b->bytes ? ts__xla_buffer_flush(b, err) : TS_OK;
}

ts_status ts__xla_download(ts_buffer *buffer, void *data, size_t offset, size_t bytes,
                           ts_error *err)
{
    ts_xla_buffer *b = (ts_xla_buffer *)buffer;
    TS_TRY(check_range(b, "download", offset, bytes, err));
    if (b->place == TS_XLA_LOST || b->holes) return refuse_lost(b, err);
    if (bytes == 0) return TS_OK;
    if (b->place == TS_XLA_ZERO) {
        memset(data, 0, bytes);
        return TS_OK;
    }
    if (b->place == TS_XLA_DEVICE && !b->host) {
        if (bytes == b->bytes) return from_device(b, data, err);
        TS_TRY(make_host(b, false, err));
        ts_status status = from_device(b, b->host, err);
        if (status != TS_OK) drop_host(b);
        TS_TRY(status);
    }
    memcpy(data, b->host + offset, bytes);
    if (b->place == TS_XLA_DEVICE && offset + bytes == b->bytes) drop_host(b);
    return TS_OK;
}
