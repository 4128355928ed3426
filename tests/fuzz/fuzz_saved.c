/* fuzz_saved.c – the reader of saved executables on any bytes: what it returns was wholly checked.
 *
 * The key that is wanted is the one of the corpus, so that good files come all the way through.
 */
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "xla/saved.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const ts_saved_key key = {"cpu:1", "0123456789abcdef0123456789abcdef", "cpu 1"};
    char path[64];
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (fd < 0) return 0;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    void *bytes;
    size_t count;
    ts_error err = {0};
    if (write(fd, data, n) == (ssize_t)n) {
        ts_status status = ts__saved_read(path, &key, &bytes, &count, &err);
        if (status == TS_OK)
            TS_ASSERT(count < n && memcmp(bytes, data + (n - count), count) == 0);
        else
            TS_ASSERT(!bytes && !count && err.code == status && err.msg[0]);
        ts_free(bytes);
    }
    close(fd);
    return 0;
}
