/* fuzz_wheel.c – a zip file of any bytes, in memory: an error with a message, or as many bytes as it says. */
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "xla/wheel.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { MOST = 1 << 16 };

static void unpack(const char *from, const char *to)
{
    ts_wheel *w;
    uint64_t bytes;
    struct stat st;
    ts_error err = {0};
    ts_status status = ts__wheel_open(from, &w, &err);
    if (status == TS_OK) {
        status = ts__wheel_find(w, "a.so", &bytes, &err);
        if (status == TS_OK && bytes != UINT64_MAX) {
            status = ts__wheel_unpack(w, to, MOST, NULL, NULL, &err);
            TS_ASSERT(stat(to, &st) == 0 && st.st_size <= MOST);
            TS_ASSERT(status != TS_OK || (uint64_t)st.st_size == bytes);
        }
        ts__wheel_close(w);
    }
    TS_ASSERT(status == TS_OK || err.msg[0]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char from[64], to[64];
    int in = memfd_create("wheel", MFD_CLOEXEC), out = memfd_create("member", MFD_CLOEXEC);
    if (in >= 0 && out >= 0 && write(in, data, n) == (ssize_t)n) {
        snprintf(from, sizeof from, "/proc/self/fd/%d", in);
        snprintf(to, sizeof to, "/proc/self/fd/%d", out);
        unpack(from, to);
    }
    if (in >= 0) close(in);
    if (out >= 0) close(out);
    return 0;
}
