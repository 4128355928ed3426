/* fuzz/driver.c – a main for fuzz targets without a fuzzer: replays the files it is given.
 *
 * `make check` links every tests/fuzz/fuzz_NAME.c with this file and runs it over corpus/NAME, so
 * that an input that once broke something stays a test on machines without clang. One process for
 * all files of a target: a crash names its file, whose path is printed before it is tried.
 *
 * Not here: mutation, coverage (make fuzz links clang's libFuzzer instead).
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* Reads a whole file into a block of exactly its length, so that a sanitizer sees the first byte
 * read past the end. Returns NULL when it cannot; the caller frees. */
static uint8_t *read_file(const char *path, size_t *bytes)
{
    FILE *f = fopen(path, "rb");
    if (f == NULL) return NULL;
    long end = fseek(f, 0, SEEK_END) == 0 ? ftell(f) : -1;
    uint8_t *data = end >= 0 ? malloc(end > 0 ? (size_t)end : 1) : NULL;
    rewind(f);
    if (data != NULL && fread(data, 1, (size_t)end, f) != (size_t)end) {
        free(data);
        data = NULL;
    }
    fclose(f);
    *bytes = (size_t)end;
    return data;
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        size_t bytes = 0;
        uint8_t *data = read_file(argv[i], &bytes);
        if (data == NULL) {
            perror(argv[i]);
            return 1;
        }
        printf("replay %s\n", argv[i]);
        fflush(stdout);
        LLVMFuzzerTestOneInput(data, bytes);
        free(data);
    }
    return 0;
}
