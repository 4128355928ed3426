/* ckpt/checkpoint_write.c – the files of one checkpoint: shards, indexes, manifest.
 *
 * A device's parts make two shards, of what changes and of what is frozen; each has an index that says which box of
 * which tensor its entries are. A part whose box is a box of the published shape too is stored as one (so the shard of
 * a single device is an ordinary model file), another in the dimensions it was cut in. Frozen shards are linked from an
 * earlier checkpoint when their index is the same, byte for byte.
 *
 * The manifest ends with the XXH3 of all its bytes before: a change anywhere in it is found before it is believed.
 * Not here: where the files lie and what makes them count (checkpoint.c).
 */
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/file.h"
#include "base/json.h"
#include "ckpt/checkpoint_internal.h"

enum { PIECE = 1 << 18 };

static ts_status out_of_memory(const char *path, ts_error *err)
{
    return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "%s: out of memory", path);
}

/* ---- names and hashes ------------------------------------------------------------------------ */

char *ts__checkpoint_file_name(ts__file_kind kind, int device, int devices, char buf[TS__FILE_NAME])
{
    static const char *const stem[TS__FILE_KINDS] = {"shard", "index", "frozen", "frozen-index"};
    bool index = kind == TS__FILE_INDEX || kind == TS__FILE_FROZEN_INDEX;
    snprintf(buf, TS__FILE_NAME, "%s-%05d-of-%05d.%s", stem[kind], device, devices,
             index ? "json" : "safetensors");
    return buf;
}

uint64_t ts__checkpoint_hash(const void *data, size_t n)
{
    return XXH3_64bits(data, n);
}

/* ---- the list of parts ----------------------------------------------------------------------- */

static int by_file(const void *a, const void *b)
{
    const ts_checkpoint_part *p = *(const ts_checkpoint_part *const *)a,
                             *q = *(const ts_checkpoint_part *const *)b;
    if (p->frozen != q->frozen) return p->frozen ? 1 : -1;
    if (p->device != q->device) return p->device < q->device ? -1 : 1;
    return (p > q) - (p < q);
}

static ts_status check_part(const ts_checkpoint_save_options *o, const ts_checkpoint_part *p,
                            ts_error *err)
{
    size_t published = 1, box = 1;
    bool fine = p->rank >= 0 && p->rank <= TS_TENSOR_RANK && p->device >= 0 &&
                p->device < o->devices && p->box.elements > 0;
    for (int i = 0; fine && i < p->rank; i++)
        fine = p->dim[i] > 0 && !ts_mul_size(published, (size_t)p->dim[i], &published);
    for (int i = 0; fine && i < p->box.rank; i++) box *= (size_t)p->box.global[i];
    if (fine && published == box) return TS_OK;
    return TS_ERROR(err, TS_INVALID_ARGUMENT,
                    "%s: the part of tensor \"%s\" on device %d of %d is none of its shape",
                    o->folder, p->name, p->device, o->devices);
}

ts_status ts__save_open(const ts_checkpoint_save_options *o, ts__save *s, ts_error *err)
{
    size_t bytes;
    *s = (ts__save){.o = o};
    TS_ASSERT(o->devices >= 1 && o->devices <= TS__CHECKPOINT_DEVICES);
    s->part = ts_mul_size(o->n_part + 1, sizeof *s->part, &bytes) ? NULL : ts_alloc(bytes);
    s->max_file = (size_t)TS__FILE_KINDS * (size_t)o->devices;
    s->file = ts_alloc_zero(s->max_file * sizeof *s->file);
    ts_status status = s->part && s->file ? TS_OK : out_of_memory(o->folder, err);
    for (size_t i = 0; i < o->n_part && status == TS_OK; i++) {
        s->part[i] = &o->part[i];
        status = check_part(o, &o->part[i], err);
        bool first = true; /* of its tensor: the part at the origin */
        for (int k = 0; k < o->part[i].box.rank; k++) first &= o->part[i].box.offset[k] == 0;
        s->tensors += first;
    }
    if (status != TS_OK)
        ts__save_close(s);
    else if (o->n_part)
        qsort(s->part, o->n_part, sizeof *s->part, by_file);
    return status;
}

void ts__save_close(ts__save *s)
{
    ts_free(s->part);
    ts_free(s->file);
    *s = (ts__save){0};
}

/* Parts of one file: from *first on; false when there are no more. */
static bool next_file(const ts__save *s, size_t *first, size_t *n)
{
    size_t end = *first += *n;
    if (end >= s->o->n_part) return false;
    const ts_checkpoint_part *p = s->part[end];
    while (end < s->o->n_part && s->part[end]->frozen == p->frozen &&
           s->part[end]->device == p->device)
        end++;
    *n = end - *first;
    return true;
}

/* ---- index ----------------------------------------------------------------------------------- */

static void add_dims(ts_string *s, const char *key, int rank, const int64_t *dim)
{
    ts_string_printf(s, ", \"%s\": [", key);
    for (int i = 0; i < rank; i++)
        ts_string_printf(s, i ? ",%lld" : "%lld", (long long)dim[i]);
    ts_string_add(s, "]");
}

/* The box as it is stored: of the published shape where it is one there. */
static ts_box stored_box(const ts_checkpoint_part *p)
{
    ts_box published;
    return ts_box_reshape(&p->box, p->rank, p->dim, &published) ? published : p->box;
}

static ts_status make_index(const ts__save *s, size_t first, size_t n, ts_string *out,
                            ts_error *err)
{
    char shard[TS__FILE_NAME];
    const ts_checkpoint_part *p = s->part[first];
    ts__checkpoint_file_name(p->frozen ? TS__FILE_FROZEN : TS__FILE_SHARD, p->device, s->o->devices,
                             shard);
    *out = ts_string_new(TS__INDEX_BYTES);
    ts_string_printf(out, "{\n\"format\": \"%s\",\n\"version\": %d,\n\"shard\": \"%s\",\n",
                     TS__INDEX_FORMAT, TS__CHECKPOINT_VERSION, shard);
    ts_string_add(out, "\"tensors\": {");
    for (size_t i = 0; i < n; i++) {
        p = s->part[first + i];
        const ts_box box = stored_box(p);
        bool same = box.rank == p->rank;
        for (int k = 0; same && k < p->rank; k++) same = box.global[k] == p->dim[k];
        json_t *name = json_string(p->name);
        char *text = name ? ts_json_dump(name, JSON_ENCODE_ANY) : NULL;
        json_decref(name);
        if (!text) out->failed = true;
        ts_string_printf(out, "%s\n  %s: {\"dtype\": \"F32\"", i ? "," : "", text ? text : "");
        ts_free(text);
        add_dims(out, "shape", p->rank, p->dim);
        if (!same) add_dims(out, "grid", box.rank, box.global);
        add_dims(out, "offset", box.rank, box.offset);
        add_dims(out, "extent", box.rank, box.local);
        ts_string_add(out, "}");
    }
    ts_string_add(out, "\n}\n}\n");
    if (!out->failed) return TS_OK;
    return TS_ERROR(err, TS_RESOURCE_EXHAUSTED,
                    "%s: no memory for its index, or over %d bytes of it", shard, TS__INDEX_BYTES);
}

/* ---- one file -------------------------------------------------------------------------------- */

static ts_status write_text(const char *path, const ts_string *text, ts_error *err)
{
    ts_writer *w;
    TS_TRY(ts_writer_open(path, false, &w, err));
    ts_status status = ts_writer_write(w, text->data, text->length, err);
    if (status == TS_OK) return ts_writer_close(w, true, err);
    ts_writer_abandon(w);
    return status;
}

static ts_status write_part(ts_tensor_writer *w, const ts_checkpoint_part *p, float *piece,
                            ts_error *err)
{
    size_t count = p->box.elements;
    if (!p->data && !p->fill)
        return TS_ERROR(err, TS_FAILED_PRECONDITION,
                        "frozen tensor \"%s\" was to be taken from an earlier checkpoint, which is "
                        "no longer there",
                        p->name);
    for (size_t first = 0; first < count; first += PIECE) {
        size_t n = count - first < PIECE ? count - first : PIECE;
        ts_status status = p->data ? TS_OK : p->fill(p->context, first, n, piece, err);
        if (status != TS_OK) return ts__error_context(err, "values of \"%s\"", p->name), status;
        TS_TRY(ts_tensor_writer_add(w, p->data ? p->data + first : piece, n * sizeof *piece, err));
    }
    return TS_OK;
}

static ts_status write_shard(const ts__save *s, size_t first, size_t n, const char *path,
                             ts__file_record *r, ts_error *err)
{
    static const char *const metadata[][2] = {{"format", "pt"}};
    ts_tensor_spec *specs = ts_alloc(n * sizeof *specs);
    float *piece = ts_alloc(PIECE * sizeof *piece);
    ts_tensor_writer *w = NULL;
    ts_status status = specs && piece ? TS_OK : out_of_memory(path, err);
    for (size_t i = 0; i < n && status == TS_OK; i++) {
        const ts_box box = stored_box(s->part[first + i]);
        specs[i] =
            (ts_tensor_spec){.name = s->part[first + i]->name, .dtype = TS_FILE_F32, .rank = box.rank};
        memcpy(specs[i].dim, box.local, sizeof specs[i].dim);
    }
    if (status == TS_OK) status = ts_tensor_writer_open(path, specs, n, metadata, 1, &w, err);
    for (size_t i = 0; i < n && status == TS_OK; i++)
        status = write_part(w, s->part[first + i], piece, err);
    if (status == TS_OK) {
        status = ts_tensor_writer_close(w, true, &r->hash, &r->bytes, err);
        w = NULL;
    }
    ts_tensor_writer_abandon(w);
    ts_free(piece);
    ts_free(specs);
    return status;
}

/* ---- frozen files from an earlier checkpoint ------------------------------------------------- */

/* Its bytes must be those that the earlier manifest promised. */
static ts_status copy_file(const char *from, const char *to, const ts__file_record *r,
                           ts_error *err)
{
    ts_file *f;
    ts_writer *w = NULL;
    XXH3_state_t *hash = ts_alloc(sizeof *hash);
    unsigned char *piece = ts_alloc(PIECE);
    ts_status status = hash && piece ? ts_file_open(from, &f, err) : out_of_memory(to, err);
    if (status == TS_OK) {
        XXH3_64bits_reset(hash);
        status = ts_writer_open(to, false, &w, err);
        for (uint64_t at = 0; at < r->bytes && status == TS_OK; at += PIECE) {
            size_t n = r->bytes - at < PIECE ? (size_t)(r->bytes - at) : PIECE;
            status = ts_file_read_at(f, at, piece, n, err);
            if (status == TS_OK) XXH3_64bits_update(hash, piece, n);
            if (status == TS_OK) status = ts_writer_write(w, piece, n, err);
        }
        ts_file_close(f);
    }
    if (status == TS_OK && XXH3_64bits_digest(hash) != r->hash)
        status = TS_ERROR(err, TS_DATA_LOSS,
                          "%s: its XXH3 hash is not the manifest's (the file is damaged); frozen "
                          "tensors cannot be taken from it",
                          from);
    if (status == TS_OK) {
        status = ts_writer_close(w, true, err);
        w = NULL;
    }
    ts_writer_abandon(w);
    ts_free(piece);
    ts_free(hash);
    return status;
}

static ts_status take_frozen(const ts__save *s, const char *path, ts__file_record *r, ts_error *err)
{
    const ts__file_record *old = ts__checkpoint_file(s->frozen, r->name);
    char *from = ts_path_join(ts_checkpoint_path(s->frozen), r->name);
    ts_error why = {0};
    TS_ASSERT(old); /* it matches */
    if (!from) return out_of_memory(path, err);
    r->bytes = old->bytes;
    r->hash = old->hash;
    ts_status status = ts_link(from, path, &why);
    if (status == TS_OK) /* a checkpoint that someone copied here may never have reached the disk */
        status = ts_sync_file(path, &why);
    if (status == TS_UNIMPLEMENTED)
        status = copy_file(from, path, old, err);
    else if (status != TS_OK)
        TS_ERROR(err, status, "%s", why.msg);
    ts_free(from);
    return status;
}

bool ts__save_matches_frozen(const ts__save *s, const ts_checkpoint *c)
{
    bool same = true, any = false;
    size_t first = 0, n = 0;
    while (same && next_file(s, &first, &n)) {
        ts_string index;
        char name[TS__FILE_NAME];
        if (!s->part[first]->frozen) continue;
        const ts__file_record *r = ts__checkpoint_file(
            c, ts__checkpoint_file_name(TS__FILE_FROZEN_INDEX, s->part[first]->device, s->o->devices,
                                        name));
        same = r && make_index(s, first, n, &index, NULL) == TS_OK;
        if (same) {
            same = index.length == r->bytes &&
                   ts__checkpoint_hash(index.data, index.length) == r->hash;
            ts_string_free(&index);
        }
        any = true;
    }
    return same && any;
}

/* ---- all files ------------------------------------------------------------------------------- */

static ts__file_record *add_record(ts__save *s, ts__file_kind kind, int device)
{
    TS_ASSERT(s->n_file < s->max_file);
    ts__file_record *r = &s->file[s->n_file++];
    *r = (ts__file_record){.kind = kind, .device = device};
    ts__checkpoint_file_name(kind, device, s->o->devices, r->name);
    return r;
}

static ts_status save_file(ts__save *s, size_t first, size_t n, ts_error *err)
{
    const ts_checkpoint_part *p = s->part[first];
    ts__file_record *shard =
        add_record(s, p->frozen ? TS__FILE_FROZEN : TS__FILE_SHARD, p->device);
    ts__file_record *index =
        add_record(s, p->frozen ? TS__FILE_FROZEN_INDEX : TS__FILE_INDEX, p->device);
    char *shard_path = ts_path_join(s->folder, shard->name);
    char *index_path = ts_path_join(s->folder, index->name);
    ts_string text = {0};
    ts_status status =
        shard_path && index_path ? TS_OK : out_of_memory(s->folder, err);
    if (status == TS_OK)
        status = p->frozen && s->frozen ? take_frozen(s, shard_path, shard, err)
                                        : write_shard(s, first, n, shard_path, shard, err);
    if (status == TS_OK) status = make_index(s, first, n, &text, err);
    if (status == TS_OK) status = write_text(index_path, &text, err);
    if (status == TS_OK) {
        index->bytes = text.length;
        index->hash = ts__checkpoint_hash(text.data, text.length);
    }
    ts_string_free(&text);
    ts_free(index_path);
    ts_free(shard_path);
    return status;
}

ts_status ts__save_files(ts__save *s, ts_error *err)
{
    size_t first = 0, n = 0;
    while (next_file(s, &first, &n)) TS_TRY(save_file(s, first, n, err));
    return TS_OK;
}

/* ---- manifest -------------------------------------------------------------------------------- */

static void add_head(const ts__save *s, ts_string *out)
{
    const ts_checkpoint_save_options *o = s->o;
    char when[32] = "";
    time_t now = time(NULL);
    struct tm utc;
    if (gmtime_r(&now, &utc)) strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &utc);
    ts_string_printf(out, "{\n\"format\": \"%s\",\n\"version\": %d,\n", TS__CHECKPOINT_FORMAT,
                     TS__CHECKPOINT_VERSION);
    ts_string_printf(out, "\"program\": \"tessera %s\",\n\"written\": \"%s\",\n", TS_VERSION, when);
    ts_string_printf(out, "\"step\": %lld,\n\"devices\": %d,\n", (long long)o->step, o->devices);
    TS_ASSERT(!o->mesh || !strpbrk(o->mesh, "\"\\\n"));
    ts_string_printf(out, "\"mesh\": \"%s\",\n", o->mesh ? o->mesh : "");
    if (isfinite(o->score))
        ts_string_printf(out, "\"score\": %.17g,\n", o->score);
    else
        ts_string_add(out, "\"score\": null,\n");
    ts_string_printf(out, "\"tensors\": %zu,\n\"files\": [", s->tensors);
    for (size_t i = 0; i < s->n_file; i++)
        ts_string_printf(out, "%s\n  {\"name\": \"%s\", \"bytes\": %llu, \"xxh3\": \"%016llx\"}",
                         i ? "," : "", s->file[i].name, (unsigned long long)s->file[i].bytes,
                         (unsigned long long)s->file[i].hash);
    ts_string_add(out, "\n],\n");
}

/* Not built as a JSON tree: that would copy the state, and a tree can lose a key when memory is out. */
ts_status ts__save_manifest(const ts__save *s, ts_error *err)
{
    ts_string out = ts_string_new(TS__MANIFEST_BYTES);
    char *path = ts_path_join(s->folder, TS__CHECKPOINT_MANIFEST);
    char *state = ts_json_dump(s->o->state, 0); /* thousands of numbers: a line each would be long */
    ts_status status = path && state ? TS_OK : out_of_memory(s->folder, err);
    if (status == TS_OK) {
        add_head(s, &out);
        ts_string_add(&out, "\"state\": ");
        ts_string_add(&out, state);
        ts_string_add(&out, ",");
        uint64_t hash = out.failed ? 0 : ts__checkpoint_hash(out.data, out.length);
        ts_string_printf(&out, "\n\"xxh3\": \"%016llx\"\n}\n", (unsigned long long)hash);
        if (out.failed)
            status = TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "%s: no memory for it, or over %d bytes",
                              path, TS__MANIFEST_BYTES);
    }
    if (status == TS_OK) status = write_text(path, &out, err);
    ts_string_free(&out);
    ts_free(state);
    ts_free(path);
    return status;
}
