/* options.c – the compile options that reach the fake plugin: CompileOptionsProto, read field by field.
 *
 * Replicas, partitions, the device assignment and the override's names; a message without build options is refused
 * (real CPU plugins end the process), and so is an override that no flag of XLA's could be.
 */
#include "fake/fake.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct proto {
    const uint8_t *at, *end;
    bool bad;
} proto;

typedef struct field {
    int number, wire;
    uint64_t value; /* wire 0 */
    proto bytes;    /* wire 2 */
} field;

static uint64_t varint(proto *p)
{
    uint64_t v = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        if (p->at == p->end) break;
        uint8_t b = *p->at++;
        v |= (uint64_t)(b & 0x7f) << shift;
        if (!(b & 0x80)) return v;
    }
    p->bad = true;
    return 0;
}

/* False at the end, or where the bytes are no message (p->bad). */
static bool next(proto *p, field *f)
{
    if (p->at == p->end || p->bad) return false;
    uint64_t key = varint(p);
    *f = (field){.number = (int)(key >> 3), .wire = (int)(key & 7)};
    uint64_t n = 0;
    if (f->wire == 0) {
        f->value = varint(p);
        return !p->bad;
    }
    if (f->wire == 1)
        n = 8;
    else if (f->wire == 5)
        n = 4;
    else if (f->wire == 2)
        n = varint(p);
    else
        p->bad = true;
    if (p->bad || n > (uint64_t)(p->end - p->at)) return p->bad = true, false;
    f->bytes = (proto){p->at, p->at + n, false};
    p->at += n;
    return true;
}

static PJRT_Error *malformed(const char *what)
{
    return fake_error(PJRT_Error_Code_INVALID_ARGUMENT, "%s of the compile options is malformed",
                      what);
}

/* DeviceAssignmentProto: 1 = replicas, 2 = computations, 3 = {1 = packed ids}, one for each computation. */
static PJRT_Error *read_assignment(proto m, fake_program *p, int *n)
{
    field f, g;
    uint64_t computations = 0;
    *n = 0;
    while (next(&m, &f)) {
        if (f.number == 2) computations = f.value;
        if (f.number != 3 || f.wire != 2) continue;
        while (next(&f.bytes, &g)) {
            if (g.number != 1) continue;
            if (g.wire == 0 && *n < FAKE_MAX_DEVICES) p->device_id[(*n)++] = (int)g.value;
            while (g.wire == 2 && g.bytes.at < g.bytes.end && !g.bytes.bad && *n < FAKE_MAX_DEVICES)
                p->device_id[(*n)++] = (int)varint(&g.bytes);
            if (g.bytes.bad) return malformed("the device assignment");
        }
        if (f.bytes.bad) return malformed("the device assignment");
    }
    if (m.bad || computations != 1) return malformed("the device assignment");
    return NULL;
}

static PJRT_Error *read_build(proto m, fake_program *p)
{
    field f;
    int ids = 0;
    uint64_t partitions = 1;
    p->replicas = 1;
    while (next(&m, &f)) {
        if (f.number == 4) p->replicas = (int)f.value;
        if (f.number == 5) partitions = f.value;
        PJRT_Error *e = f.number == 9 && f.wire == 2 ? read_assignment(f.bytes, p, &ids) : NULL;
        if (e) return e;
    }
    if (m.bad) return malformed("executable_build_options");
    if (partitions != 1)
        return fake_error(PJRT_Error_Code_UNIMPLEMENTED, "%d partitions", (int)partitions);
    if (p->replicas < 1 || p->replicas > FAKE_MAX_DEVICES || (ids && ids != p->replicas))
        return fake_error(PJRT_Error_Code_INVALID_ARGUMENT, "%d replicas and %d assigned devices",
                          p->replicas, ids);
    if (!ids)
        for (int i = 0; i < p->replicas; i++) p->device_id[i] = -1; /* by the caller's own order */
    return NULL;
}

/* A map entry {1 = key, 2 = {1 = text | 2, 3, 4 = others}}. */
static PJRT_Error *read_override(proto m, char dump_to[4096])
{
    field f, g;
    char key[80] = "", text[4096] = "";
    while (next(&m, &f)) {
        if (f.number == 1 && f.wire == 2)
            snprintf(key, sizeof key, "%.*s", (int)(f.bytes.end - f.bytes.at),
                     (const char *)f.bytes.at);
        while (f.number == 2 && f.wire == 2 && next(&f.bytes, &g))
            if (g.number == 1 && g.wire == 2)
                snprintf(text, sizeof text, "%.*s", (int)(g.bytes.end - g.bytes.at),
                         (const char *)g.bytes.at);
    }
    if (m.bad) return malformed("an override");
    const char *dump = getenv("FAKE_PJRT_DUMP");
    bool dumps = strcmp(key, "xla_dump_to") == 0;
    if (strncmp(key, "xla_", 4) != 0 || (dumps && (!dump || !*dump)))
        return fake_error(PJRT_Error_Code_INVALID_ARGUMENT, "No such compile option: '%s'", key);
    if (dumps) snprintf(dump_to, 4096, "%s", text);
    return NULL;
}

/* FAKE_PJRT_DUMP's text as the program that XLA would have made. */
PJRT_Error *fake_dump(const char *folder)
{
    const char *from = getenv("FAKE_PJRT_DUMP");
    char path[4200], bytes[4096];
    size_t n;
    if (!*folder || !from) return NULL;
    snprintf(path, sizeof path, "%s/module_0001.fake.after_optimizations.txt", folder);
    FILE *in = fopen(from, "r"), *out = fopen(path, "w");
    while (in && out && (n = fread(bytes, 1, sizeof bytes, in)) > 0) fwrite(bytes, 1, n, out);
    bool ok = in && out;
    if (in) fclose(in);
    if (out) fclose(out);
    return ok ? NULL
              : fake_error(PJRT_Error_Code_INTERNAL, "%s cannot be written from %s", path, from);
}

PJRT_Error *fake_options_read(const char *bytes, size_t n, fake_program *p, char dump_to[4096])
{
    proto m = {(const uint8_t *)bytes, (const uint8_t *)bytes + n, false};
    field f;
    bool build = false;
    PJRT_Error *e = NULL;
    while (!e && next(&m, &f)) {
        if (f.number == 3 && f.wire == 2) {
            build = true;
            e = read_build(f.bytes, p);
        }
        if (f.number == 7 && f.wire == 2) e = read_override(f.bytes, dump_to);
    }
    if (e) return e;
    if (m.bad) return malformed("the message");
    if (!build)
        return fake_error(PJRT_Error_Code_INVALID_ARGUMENT,
                          "compile options without executable_build_options");
    return NULL;
}

static size_t put_varint(char *out, uint64_t v)
{
    size_t n = 0;
    do {
        out[n++] = (char)((v & 0x7f) | (v > 0x7f ? 0x80 : 0));
        v >>= 7;
    } while (v);
    return n;
}

size_t fake_assignment_write(const int *id, int n, char *out)
{
    char ids[6 * FAKE_MAX_DEVICES];
    size_t packed = 0, at = 0;
    char head[8];
    for (int i = 0; i < n; i++) packed += put_varint(ids + packed, (uint64_t)(unsigned)id[i]);
    size_t n_head = put_varint(head, packed);
    out[at++] = 0x08;
    at += put_varint(out + at, (uint64_t)n);
    out[at++] = 0x10;
    out[at++] = 1;
    out[at++] = 0x1a;
    at += put_varint(out + at, 1 + n_head + packed);
    out[at++] = 0x0a;
    memcpy(out + at, head, n_head);
    memcpy(out + at + n_head, ids, packed);
    return at + n_head + packed;
}
