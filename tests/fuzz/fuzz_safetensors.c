/* fuzz_safetensors.c – the strict reader on any bytes; what it accepts must be readable to the end.
 *
 * The bytes go through a file in memory, so that the whole path is exercised: length word, pread,
 * parser, ranges, conversions.
 */
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ckpt/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void read_everything(ts_tensors *t)
{
    ts_error err = {0};
    for (size_t i = 0; i < ts_tensors_count(t); i++) {
        const ts_tensor *x = ts_tensors_at(t, i);
        TS_ASSERT(ts_tensors_find(t, x->name) == x);
        unsigned char byte;
        float f;
        int32_t k;
        if (x->bytes) TS_ASSERT(ts_tensors_read(t, x, x->bytes - 1, &byte, 1, &err) == TS_OK);
        if (!x->count) continue;
        (void)ts_tensors_read_f32(t, x, x->count - 1, 1, &f, NULL);
        (void)ts_tensors_read_i32(t, x, x->count - 1, 1, &k, NULL);
    }
    (void)ts_tensors_metadata(t, "format");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char path[64];
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (fd < 0) return 0;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ts_tensors *t;
    ts_error err = {0};
    if (write(fd, data, n) == (ssize_t)n) {
        if (ts_tensors_open(path, &t, &err) == TS_OK)
            read_everything(t);
        else
            TS_ASSERT(err.code != TS_OK && err.msg[0]);
        if (err.code == TS_OK) ts_tensors_close(t);
    }
    close(fd);
    return 0;
}
