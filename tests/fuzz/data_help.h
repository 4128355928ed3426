/* fuzz/data_help.h – opens a loader on the fuzzer's bytes and checks every batch it gives.
 *
 * The bytes are a file in memory (memfd), reached by its path like any other. Whatever they hold:
 * an error with a message, or batches that obey the counts; nothing else.
 */
#ifndef TS_FUZZ_DATA_HELP_H
#define TS_FUZZ_DATA_HELP_H

#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "data/loader.h"

enum { FUZZ_SLOTS = 256, FUZZ_BATCHES = 4096 };

/* Counts labels and padding again; ids lie below the vocabulary. Returns the trained tokens. */
static inline int64_t check_batch(const ts_batch *b, const ts_loader_options *o, int64_t vocab_size)
{
    int64_t trained = 0, padding = 0;
    for (int64_t i = 0; i < o->rows * o->sequence; i++) {
        TS_ASSERT(b->tokens[i] >= 0 && b->tokens[i] < vocab_size);
        TS_ASSERT(b->labels[i] >= -1 && b->labels[i] < vocab_size);
        TS_ASSERT(b->segments[i] > 0 || b->labels[i] == -1);
        TS_ASSERT(b->positions[i] >= 0 && b->positions[i] < o->sequence);
        trained += b->labels[i] >= 0;
        padding += b->segments[i] == 0;
    }
    TS_ASSERT(b->trained_tokens == trained && b->padding == padding);
    return trained;
}

/* Tokens trained in one epoch, or −1 when the data was refused (with a message). */
static inline int64_t run_loader(ts_loader_options *o, int64_t vocab_size, ts_loader_stats *stats)
{
    int32_t tokens[FUZZ_SLOTS], labels[FUZZ_SLOTS], segments[FUZZ_SLOTS], positions[FUZZ_SLOTS];
    ts_batch b = {tokens, labels, segments, positions};
    ts_error err = {0};
    ts_loader *l = NULL;
    TS_ASSERT(o->rows * o->sequence <= FUZZ_SLOTS);
    if (ts_loader_open(o, &l, &err) != TS_OK) {
        TS_ASSERT(err.code != TS_OK && err.msg[0] && !l);
        return -1;
    }
    *stats = ts_loader_stats_of(l);
    int64_t trained = 0;
    int batches = 0;
    ts_status status;
    while ((status = ts_loader_next(l, &b, &err)) == TS_OK && batches++ < FUZZ_BATCHES)
        trained += check_batch(&b, o, vocab_size);
    TS_ASSERT(status == TS_OK || status == TS_OUT_OF_RANGE || (err.code != TS_OK && err.msg[0]));
    ts_loader_free(l);
    return status == TS_OUT_OF_RANGE ? trained : -1;
}

static inline int memory_file(const void *data, size_t n, char path[32])
{
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data, n) != (ssize_t)n) {
        if (fd >= 0) close(fd);
        return -1;
    }
    snprintf(path, 32, "/proc/self/fd/%d", fd);
    return fd;
}

#endif
