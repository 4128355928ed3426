/* fuzz_checkpoint.c – a checkpoint's folder of any content: opened, verified, read to the end,
 * surveyed, compared.
 *
 * Input: one byte of flags (1: seal; 2: one device more), then files: kind (0 manifest, 1 … 4
 * shard, index, frozen, frozen index, +8 for device 1), length in 3 bytes, little-endian, content.
 * Seal writes the right length and hash of each file into the manifest, and the manifest's own at
 * its end: without that no mutation would pass the first check. Whatever is accepted must be
 * readable to its last element, equal to itself, and fine for `verify`.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/file.h"
#include "ckpt/checkpoint_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { FILES_MAX = 12, PIECE = 4096 };

typedef struct part {
    char name[TS__FILE_NAME];
    const uint8_t *data;
    size_t n;
} part;

static char folder[96], step[112];

static void remove_at_exit(void)
{
    (void)ts_remove_tree(folder, NULL);
}

static bool make_folder(void)
{
    if (*folder) return true;
    const char *base = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    snprintf(folder, sizeof folder, "%s/tessera-fuzz-XXXXXX", base);
    if (!mkdtemp(folder)) return false;
    snprintf(step, sizeof step, "%s/7", folder);
    atexit(remove_at_exit);
    return true;
}

static size_t split(const uint8_t *data, size_t n, int devices, part part_of[FILES_MAX])
{
    size_t count = 0;
    for (size_t at = 0; n - at >= 4 && count < FILES_MAX;) {
        part *p = &part_of[count++];
        int kind = data[at] & 7, device = data[at] >> 3 & 1;
        size_t length = data[at + 1] | (size_t)data[at + 2] << 8 | (size_t)data[at + 3] << 16;
        at += 4;
        if (length > n - at) length = n - at;
        *p = (part){.data = data + at, .n = length};
        at += length;
        if (kind == 0 || kind > 4)
            memcpy(p->name, TS__CHECKPOINT_MANIFEST, sizeof TS__CHECKPOINT_MANIFEST);
        else
            ts__checkpoint_file_name((ts__file_kind)(kind - 1), device, devices, p->name);
    }
    return count;
}

static void write_file(const char *name, const void *data, size_t n)
{
    char path[256];
    ts_writer *w;
    snprintf(path, sizeof path, "%s/%s", step, name);
    TS_ASSERT(ts_writer_open(path, false, &w, NULL) == TS_OK);
    TS_ASSERT(ts_writer_write(w, data, n, NULL) == TS_OK);
    TS_ASSERT(ts_writer_close(w, false, NULL) == TS_OK);
}

/* {"name": "shard-…", "bytes": …, "xxh3": "…"} of one file, as it should be, for the text from *from on. */
static void seal_entry(ts_string *out, const char **from, const char *end, const part *p)
{
    char key[TS__FILE_NAME + 16];
    int n = snprintf(key, sizeof key, "\"%s\", \"bytes\": ", p->name);
    const char *at = memmem(*from, (size_t)(end - *from), key, (size_t)n);
    if (!at) return;
    at += n;
    ts_string_add_bytes(out, *from, (size_t)(at - *from));
    ts_string_printf(out, "%zu", p->n);
    while (at < end && *at >= '0' && *at <= '9') at++;
    const char *hash = memmem(at, (size_t)(end - at), "\"xxh3\": \"", 9);
    *from = at;
    if (!hash || hash - at > 16 || end - hash < 9 + 16) return;
    hash += 9;
    ts_string_add_bytes(out, at, (size_t)(hash - at));
    ts_string_printf(out, "%016llx", (unsigned long long)ts__checkpoint_hash(p->data, p->n));
    *from = hash + 16;
}

static void write_sealed(const part *manifest, const part *p, size_t n)
{
    const char tail[] = "\n\"xxh3\": \"";
    const char *from = (const char *)manifest->data, *end = from + manifest->n;
    ts_string out = ts_string_new(1 << 24);
    if (manifest->n >= 30 && memcmp(end - 30, tail, sizeof tail - 1) == 0) end -= 30;
    /* A save lists files by kind and device. */
    for (int kind = 0; kind < TS__FILE_KINDS; kind += 2)
        for (size_t i = 0; i < 4 * n; i++) {
            const part *q = &p[i % n];
            bool frozen = strncmp(q->name, "frozen", 6) == 0;
            if (q->name[0] != 'm' && frozen == (kind == TS__FILE_FROZEN)) seal_entry(&out, &from, end, q);
        }
    ts_string_add_bytes(&out, from, (size_t)(end - from));
    ts_string_printf(&out, "\n\"xxh3\": \"%016llx\"\n}\n",
                     (unsigned long long)ts__checkpoint_hash(out.data ? out.data : "", out.length));
    if (!out.failed) write_file(TS__CHECKPOINT_MANIFEST, out.data, out.length);
    ts_string_free(&out);
}

/* What was accepted gives every byte that it says it has. */
static void read_everything(ts_tensors *t)
{
    static unsigned char piece[PIECE];
    for (size_t i = 0; i < ts_tensors_count(t); i++) {
        const ts_tensor *x = ts_tensors_at(t, i);
        size_t element = x->count ? (size_t)(x->bytes / x->count) : 1;
        TS_ASSERT(ts_tensors_find(t, x->name) == x);
        if (element == 0 || PIECE % element) continue; /* less than a byte */
        for (uint64_t at = 0; at < x->bytes; at += PIECE) {
            size_t n = x->bytes - at < PIECE ? (size_t)(x->bytes - at) : PIECE;
            TS_ASSERT(ts_tensors_read(t, x, at, piece, n, NULL) == TS_OK);
        }
    }
}

static void check_accepted(ts_checkpoint *c)
{
    ts_survey *s;
    ts_diff *d;
    uint64_t freed, shared;
    ts_error err = {0};
    TS_ASSERT(ts_checkpoint_step(c) == 7 && json_is_object(ts_checkpoint_state(c)));
    read_everything(ts_checkpoint_tensors(c));
    TS_ASSERT(ts_checkpoint_verify(c, NULL, NULL, NULL) == TS_OK);
    TS_ASSERT(ts_survey_open(step, &s, NULL) == TS_OK);
    TS_ASSERT(s->n == 1 && s->row[0].state == TS_SURVEY_WHOLE && s->row[0].step == 7);
    TS_ASSERT(ts_survey_verify(s, 0, NULL, NULL, NULL) == TS_OK && s->row[0].verified);
    TS_ASSERT(ts_survey_remove(s, 0, true, &freed, &shared, NULL) == TS_OK && shared == 0);
    ts_survey_free(s);
    if (ts_diff_open(step, step, NULL, NULL, &d, &err) == TS_OK) {
        TS_ASSERT(d->same);
        ts_diff_free(d);
    } else {
        TS_ASSERT(err.msg[0]); /* numbers that are no f32 */
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    part p[FILES_MAX];
    ts_checkpoint *c;
    ts_error err = {0};
    const part *manifest = NULL;
    if (n == 0 || !make_folder()) return 0;
    size_t count = split(data + 1, n - 1, data[0] & 2 ? 2 : 1, p);
    TS_ASSERT(ts_make_folders(step, NULL) == TS_OK);
    for (size_t i = 0; i < count; i++) {
        if (p[i].name[0] == 'm') manifest = &p[i];
        write_file(p[i].name, p[i].data, p[i].n);
    }
    if (manifest && (data[0] & 1)) write_sealed(manifest, p, count);
    if (ts_checkpoint_open(step, &c, &err) == TS_OK) {
        check_accepted(c);
        ts_checkpoint_close(c);
    } else {
        TS_ASSERT(err.code != TS_OK && err.msg[0] && !c);
    }
    TS_ASSERT(ts_remove_tree(step, NULL) == TS_OK);
    return 0;
}
