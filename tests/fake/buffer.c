/* buffer.c – device memory of the fake plugin, and the transfers to and from it.
 *
 * A buffer is a handle on storage. Donation moves the storage to the output's handle and leaves the input's empty.
 * Where the caller promised to keep its data (ImmutableUntilTransferCompletes), it is read later, by the device
 * thread: whoever frees it early is found by the address sanitizer.
 */
#include "fake/fake.h"

/* ---- storage ------------------------------------------------------------------------------------ */

void fake_storage_take(fake_storage *s)
{
    pthread_mutex_lock(&fake_lock);
    s->references++;
    pthread_mutex_unlock(&fake_lock);
}

void fake_storage_drop(fake_storage *s)
{
    if (!s) return;
    pthread_mutex_lock(&fake_lock);
    int left = --s->references;
    if (!left) s->client->bytes -= s->bytes;
    pthread_mutex_unlock(&fake_lock);
    if (left) return;
    ts_buffer_free(s->data);
    ts_free(s);
}

PJRT_Buffer *fake_buffer_with(PJRT_Device *d, const ts_type *type, fake_storage *s)
{
    PJRT_Buffer *b = ts_alloc_zero(sizeof *b);
    TS_ASSERT(b);
    b->device = d;
    b->storage = s;
    b->type = *type;
    for (int i = 0; i < type->rank; i++) b->dims[i] = type->dim[i].size;
    pthread_mutex_lock(&fake_lock);
    d->client->live++;
    pthread_mutex_unlock(&fake_lock);
    fake_born("buffer");
    return b;
}

PJRT_Error *fake_buffer_new(PJRT_Device *d, const ts_type *type, PJRT_Buffer **out)
{
    ts_error err = {0};
    PJRT_Client *c = d->client;
    fake_storage *s = ts_alloc_zero(sizeof *s);
    TS_ASSERT(s);
    *out = NULL;
    if (ts_buffer_new(c->engine, 0, type, &s->data, &err) != TS_OK) {
        ts_free(s);
        return fake_status_error(&err);
    }
    s->references = 1;
    s->client = c;
    s->bytes = ts_type_bytes(type);
    pthread_mutex_lock(&fake_lock);
    c->bytes += s->bytes;
    if (c->bytes > c->peak) c->peak = c->bytes;
    pthread_mutex_unlock(&fake_lock);
    *out = fake_buffer_with(d, type, s);
    return NULL;
}

static PJRT_Error *check_alive(const PJRT_Buffer *b, const char *what)
{
    if (b->storage) return NULL;
    return fake_error(PJRT_Error_Code_INVALID_ARGUMENT,
                      "%s of a buffer that was deleted or donated", what);
}

/* ---- types and layouts --------------------------------------------------------------------------- */

static const struct {
    PJRT_Buffer_Type theirs;
    ts_dtype ours;
} dtypes[] = {{PJRT_Buffer_Type_F32, TS_F32},
              {PJRT_Buffer_Type_BF16, TS_BF16},
              {PJRT_Buffer_Type_S32, TS_I32},
              {PJRT_Buffer_Type_U32, TS_U32},
              {PJRT_Buffer_Type_PRED, TS_PRED}};

bool fake_dtype_from(PJRT_Buffer_Type t, ts_dtype *out)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (dtypes[i].theirs == t) return *out = dtypes[i].ours, true;
    return false;
}

/* Row-major in either of the two ways to say so. */
static PJRT_Error *check_layout(const PJRT_Buffer_MemoryLayout *l, const ts_type *t)
{
    if (!l) return NULL;
    bool ok = true;
    if (l->type == PJRT_Buffer_MemoryLayout_Type_Tiled) {
        ok = l->tiled.minor_to_major_size == (size_t)t->rank && l->tiled.num_tiles == 0;
        for (int i = 0; ok && i < t->rank; i++) ok = l->tiled.minor_to_major[i] == t->rank - 1 - i;
    } else {
        int64_t stride = (int64_t)ts_dtype_bytes(t->dtype);
        ok = l->strides.num_byte_strides == (size_t)t->rank;
        for (int i = t->rank - 1; ok && i >= 0; i--) {
            ok = l->strides.byte_strides[i] == stride;
            stride *= t->dim[i].size;
        }
    }
    return ok ? NULL : fake_error(PJRT_Error_Code_UNIMPLEMENTED, "a layout that is not row-major");
}

/* ---- to the device and back ---------------------------------------------------------------------- */

static void upload(fake_task *t, fake_problem *p)
{
    ts_error err = {0};
    if (ts_upload(t->storage->data, t->from, 0, t->storage->bytes, &err) == TS_OK) return;
    p->code = PJRT_Error_Code_INTERNAL;
    memcpy(p->message, err.msg, sizeof p->message - 1);
}

static void download(fake_task *t, fake_problem *p)
{
    ts_error err = {0};
    if (ts_download(t->storage->data, t->to, 0, t->storage->bytes, &err) == TS_OK) {
        if (t->lies && t->storage->bytes)
            ((uint8_t *)t->to)[t->storage->bytes - 1] ^= 0x40; /* a bit of the exponent */
        return;
    }
    p->code = PJRT_Error_Code_INTERNAL;
    memcpy(p->message, err.msg, sizeof p->message - 1);
}

static PJRT_Error *host_type(const PJRT_Client_BufferFromHostBuffer_Args *a, ts_type *t)
{
    *t = (ts_type){0};
    if (!fake_dtype_from(a->type, &t->dtype) || a->num_dims > TS_MAX_RANK)
        return fake_error(PJRT_Error_Code_UNIMPLEMENTED, "element type %d of rank %zu",
                          (int)a->type, a->num_dims);
    t->rank = (int)a->num_dims;
    for (int i = 0; i < t->rank; i++) t->dim[i].size = a->dims[i];
    ts_error err = {0};
    if (ts__type_check(t, "the host buffer", &err) != TS_OK) return fake_status_error(&err);
    PJRT_Buffer_MemoryLayout strides = {
        .type = PJRT_Buffer_MemoryLayout_Type_Strides,
        .strides = {.byte_strides = a->byte_strides, .num_byte_strides = a->num_byte_strides}};
    PJRT_Error *e = a->byte_strides ? check_layout(&strides, t) : NULL;
    return e ? e : check_layout(a->device_layout, t);
}

PJRT_Error *fake_Client_BufferFromHostBuffer(PJRT_Client_BufferFromHostBuffer_Args *a)
{
    ts_type type;
    fake_task *t = NULL;
    PJRT_Error *e = host_type(a, &type);
    if (!e && (!a->device || a->device->client != a->client || a->memory))
        e = fake_error(PJRT_Error_Code_INVALID_ARGUMENT, "a buffer needs a device of its client");
    if (!e && a->host_buffer_semantics == PJRT_HostBufferSemantics_kMutableZeroCopy)
        e = fake_error(PJRT_Error_Code_UNIMPLEMENTED, "the device cannot use the host's memory");
    if (!e) e = fake_buffer_new(a->device, &type, &a->buffer);
    if (!e) e = fake_task_new("upload", 1, &t);
    if (e) return e;
    t->run = upload;
    t->storage = a->buffer->storage;
    t->from = a->data;
    t->now = a->host_buffer_semantics == PJRT_HostBufferSemantics_kImmutableOnlyDuringCall;
    t->number = fake_count(FAKE_UPLOADS);
    fake_event_fails("upload", t->number, &t->injected);
    a->done_with_host_buffer = t->event[0];
    if (t->to &&
        !t->injected
             .code) { /* copied: the caller's bytes are free at once, whatever the device is doing */
        fake_event_set(t->event[0], &t->injected);
        t->n_event = 0;
    }
    fake_storage_take(t->storage);
    fake_queue_add(a->client, t);
    return NULL;
}

PJRT_Error *fake_Buffer_ToHostBuffer(PJRT_Buffer_ToHostBuffer_Args *a)
{
    fake_task *t = NULL;
    PJRT_Error *e = check_alive(a->src, "a download");
    if (!e) e = check_layout(a->host_layout, &a->src->type);
    if (e) return e;
    size_t bytes = a->src->storage->bytes;
    if (!a->dst) {
        a->dst_size = bytes;
        return NULL;
    }
    if (a->dst_size < bytes)
        return fake_error(PJRT_Error_Code_INVALID_ARGUMENT, "a download of %zu bytes into %zu",
                          bytes, a->dst_size);
    e = fake_task_new("download", 1, &t);
    if (e) return e;
    t->run = download;
    t->lies = a->src->type.dtype == TS_F32 &&
              fake_number("FAKE_PJRT_LIE", -1) == a->src->device->description.id;
    t->storage = a->src->storage;
    t->to = a->dst;
    t->number = fake_count(FAKE_DOWNLOADS);
    fake_event_fails("download", t->number, &t->injected);
    a->event = t->event[0];
    fake_storage_take(t->storage);
    fake_queue_add(a->src->device->client, t);
    return NULL;
}

PJRT_Error *fake_Buffer_ReadyEvent(PJRT_Buffer_ReadyEvent_Args *a)
{
    fake_task *t = NULL;
    PJRT_Error *e = check_alive(a->buffer, "a ready event");
    if (!e) e = fake_task_new("ready", 1, &t);
    if (e) return e;
    t->storage = a->buffer->storage;
    a->event = t->event[0];
    fake_storage_take(t->storage);
    fake_queue_add(a->buffer->device->client, t);
    return NULL;
}

/* ---- the handle ---------------------------------------------------------------------------------- */

PJRT_Error *fake_Buffer_Delete(PJRT_Buffer_Delete_Args *a)
{
    fake_storage_drop(a->buffer->storage);
    a->buffer->storage = NULL;
    return NULL;
}

PJRT_Error *fake_Buffer_Destroy(PJRT_Buffer_Destroy_Args *a)
{
    if (!a->buffer) return NULL;
    PJRT_Client *c = a->buffer->device->client;
    fake_storage_drop(a->buffer->storage);
    ts_free(a->buffer);
    fake_died("buffer");
    pthread_mutex_lock(&fake_lock);
    c->live--;
    pthread_mutex_unlock(&fake_lock);
    return NULL;
}

PJRT_Error *fake_Buffer_ElementType(PJRT_Buffer_ElementType_Args *a)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (dtypes[i].ours == a->buffer->type.dtype) a->type = dtypes[i].theirs;
    return NULL;
}

PJRT_Error *fake_Buffer_Dimensions(PJRT_Buffer_Dimensions_Args *a)
{
    a->dims = a->buffer->dims;
    a->num_dims = (size_t)a->buffer->type.rank;
    return NULL;
}

PJRT_Error *fake_Buffer_OnDeviceSizeInBytes(PJRT_Buffer_OnDeviceSizeInBytes_Args *a)
{
    a->on_device_size_in_bytes = ts_type_bytes(&a->buffer->type);
    return NULL;
}

PJRT_Error *fake_Buffer_Device(PJRT_Buffer_Device_Args *a)
{
    a->device = a->buffer->device;
    return NULL;
}

PJRT_Error *fake_Buffer_IsDeleted(PJRT_Buffer_IsDeleted_Args *a)
{
    a->is_deleted = !a->buffer->storage;
    return NULL;
}
