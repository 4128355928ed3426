/* xla/compile_options.c – the bytes of a CompileOptionsProto, field by field.
 *
 * A protocol buffer is a row of fields: number and kind as a varint, then the value, or its length
 * and bytes. Only what Tessera says is written: replicas, or as many partitions and the partitioner
 * that reads shardings; which device each one is when there are several or a choice was made;
 * flags. A message inside is written first, because its length stands before it. The device ordinal
 * must be −1: without one, some plugins end the process. Largest and smallest keep NaN, as
 * StableHLO says and XLA's CPU backend does only when it is told; every backend knows its flag.
 */
#include "xla/compile_options.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

enum { VARINT = 0, FIXED64 = 1, BYTES = 2 };

/* Fields of the messages, by number. */
enum {
    OPTIONS_BUILD = 3, OPTIONS_FLAG = 7,
    BUILD_DEVICE_ORDINAL = 1, BUILD_REPLICAS = 4, BUILD_PARTITIONS = 5, BUILD_SPMD = 6,
    BUILD_ASSIGNMENT = 9, BUILD_SHARDY = 19,
    ASSIGNMENT_REPLICAS = 1, ASSIGNMENT_COMPUTATIONS = 2, ASSIGNMENT_DEVICES = 3,
    COMPUTATION_IDS = 1,
    ENTRY_KEY = 1, ENTRY_VALUE = 2,
    FLAG_TEXT = 1, FLAG_BOOL = 2, FLAG_INT = 3, FLAG_REAL = 4
};

static void put_varint(ts_string *out, uint64_t v)
{
    uint8_t byte;
    do {
        byte = (uint8_t)(v & 0x7f);
        v >>= 7;
        if (v) byte |= 0x80;
        ts_string_add_bytes(out, &byte, 1);
    } while (v);
}

static void put_key(ts_string *out, int field, int kind)
{
    put_varint(out, (uint64_t)field << 3 | (uint64_t)kind);
}

/* Negative numbers are their 64-bit two's complement. */
static void put_int(ts_string *out, int field, int64_t v)
{
    put_key(out, field, VARINT);
    put_varint(out, (uint64_t)v);
}

static void put_bytes(ts_string *out, int field, const void *data, size_t n)
{
    put_key(out, field, BYTES);
    put_varint(out, n);
    ts_string_add_bytes(out, data, n);
}

static void put_message(ts_string *out, int field, ts_string *message)
{
    put_bytes(out, field, message->data, message->length);
    if (message->failed) out->failed = true;
    ts_string_free(message);
}

/* ---- the messages ---------------------------------------------------------------------------- */

static ts_string message_like(const ts_string *out) { return ts_string_new(out->max); }

/* A computation is a partition, with the device of each replica. There are several of the one or of
 * the other. */
static void put_assignment(ts_string *out, const ts_compile_options *o)
{
    ts_string all = message_like(out);
    int partitions = o->partitioned ? o->replicas : 1, replicas = o->replicas / partitions;
    put_int(&all, ASSIGNMENT_REPLICAS, replicas);
    put_int(&all, ASSIGNMENT_COMPUTATIONS, partitions);
    for (int p = 0; p < partitions; p++) {
        ts_string ids = message_like(out), computation = message_like(out);
        for (int i = p * replicas; i < (p + 1) * replicas; i++)
            put_varint(&ids, (uint64_t)(int64_t)(o->device_id ? o->device_id[i] : i));
        put_message(&computation, COMPUTATION_IDS, &ids);
        put_message(&all, ASSIGNMENT_DEVICES, &computation);
    }
    put_message(out, BUILD_ASSIGNMENT, &all);
}

/* A flag's value in the kind that it reads as: XLA refuses the other ones. */
static void put_value(ts_string *out, const char *text)
{
    char *end;
    uint8_t bytes[8];
    errno = 0;
    long long whole = strtoll(text, &end, 10);
    if (strcmp(text, "true") == 0 || strcmp(text, "false") == 0) {
        put_int(out, FLAG_BOOL, text[0] == 't');
        return;
    }
    if (*text && !*end && !errno) {
        put_int(out, FLAG_INT, whole);
        return;
    }
    double real = strtod(text, &end);
    if (strspn(text, "+-.0123456789eE") != strlen(text) || !*text || *end) {
        put_bytes(out, FLAG_TEXT, text, strlen(text));
        return;
    }
    uint64_t bits;
    memcpy(&bits, &real, sizeof bits);
    for (int i = 0; i < 8; i++) bytes[i] = (uint8_t)(bits >> 8 * i);
    put_key(out, FLAG_REAL, FIXED64);
    ts_string_add_bytes(out, bytes, sizeof bytes);
}

static ts_status put_flag(ts_string *out, const char *flag, ts_error *err)
{
    const char *equal = strchr(flag, '=');
    ts_string entry = message_like(out), value = message_like(out);
    if (!equal || equal == flag)
        return TS_ERROR(err, TS_INVALID_ARGUMENT,
                        "compiler flag \"%.300s\": expected name=value, as in xla_dump_to=FOLDER",
                        flag);
    while (*flag == '-' && flag < equal - 1) flag++; /* as on a command line */
    put_bytes(&entry, ENTRY_KEY, flag, (size_t)(equal - flag));
    put_value(&value, equal + 1);
    put_message(&entry, ENTRY_VALUE, &value);
    put_message(out, OPTIONS_FLAG, &entry);
    return TS_OK;
}

ts_status ts__compile_options_write(const ts_compile_options *o, ts_string *out, ts_error *err)
{
    ts_string build = message_like(out);
    if (o->replicas < 1)
        return TS_ERROR(err, TS_INVALID_ARGUMENT, "a program for %d devices; expected at least 1",
                        o->replicas);
    put_int(&build, BUILD_DEVICE_ORDINAL, -1);
    put_int(&build, BUILD_REPLICAS, o->partitioned ? 1 : o->replicas);
    put_int(&build, BUILD_PARTITIONS, o->partitioned ? o->replicas : 1);
    put_int(&build, BUILD_SPMD, o->partitioned);
    if (o->replicas > 1 || o->device_id) put_assignment(&build, o);
    if (o->partitioned) put_int(&build, BUILD_SHARDY, 1);
    put_message(out, OPTIONS_BUILD, &build);
    TS_TRY(put_flag(out, "xla_cpu_enable_fast_min_max=false", err)); /* the caller's, later, win */
    for (int i = 0; i < o->n_flag; i++) TS_TRY(put_flag(out, o->flag[i], err));
    if (out->failed)
        return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out while writing compile options");
    return TS_OK;
}

/* What libtpu 0.0.52 does better when told, in a step of llama3.2-1b (docs/engines.md); other
 * platforms refuse the flags. By itself it tiles products for 32 MiB of on-chip scratch: with 16 it
 * compiles in half the time, moves 5 % fewer bytes and needs no more memory. It makes a loop's
 * weights bf16 before the loop where its body converts them anyway, all layers at once: without, 7
 * % less memory for 1 % more bytes. */
static const char *const tpu_flags[] = {"xla_tpu_scoped_vmem_limit_kib=16384",
                                        "xla_jf_bf16_propagation=false"};
enum { TPU_FLAGS = sizeof tpu_flags / sizeof *tpu_flags };

ts_status ts__compile_options_for(const char *platform, const ts_compile_options *o,
                                  const char *dump_to, ts_string *out, ts_error *err)
{
    char dump[4200];
    ts_compile_options all = *o;
    const char **flag = ts_alloc(((size_t)o->n_flag + TPU_FLAGS + 1) * sizeof *flag);
    int n = 0;
    if (!flag) return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out for compile options");
    for (int i = 0; i < TPU_FLAGS && strcmp(platform, "tpu") == 0; i++) flag[n++] = tpu_flags[i];
    for (int i = 0; i < o->n_flag; i++) flag[n++] = o->flag[i];
    if (dump_to) {
        snprintf(dump, sizeof dump, "xla_dump_to=%s", dump_to);
        flag[n++] = dump;
    }
    all.flag = flag;
    all.n_flag = n;
    ts_status status = ts__compile_options_write(&all, out, err);
    ts_free(flag);
    return status;
}
