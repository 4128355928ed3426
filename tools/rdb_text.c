/* rdb_text.c – prints the lines of text that an R package keeps in its data file (data/Rdata.rdb).
 *
 * Debian has Jane Austen's six novels only as an R package. R is large and the file is simple: records of
 * a 4-byte big-endian length and a zlib stream, each the serialised form ("X\n", big-endian) of one
 * object. This reads character vectors, which is all there is here, and refuses everything else.
 * Format: "R Internals", sections 1.8 (serialization) and 1.12 (lazy loading).
 *
 * Usage: rdb_text <Rdata.rdb >text. Not part of the library; ./demo uses it to prepare its text.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

enum { MAX_RECORD = 64 << 20, MAX_FILE = 64 << 20 };
enum { STRSXP = 16, CHARSXP = 9 };

static uint32_t be32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* Prints a character vector, one line an element. False when it is something else or ends early. */
static int print_strings(const uint8_t *p, size_t bytes)
{
    if (bytes < 18 || memcmp(p, "X\n", 2) != 0) return 0;
    size_t at = 14; /* magic, format version, writer's version, oldest reader's version */
    if (be32(p + 2) == 3) {
        uint32_t name = be32(p + at); /* version 3 names the native encoding */
        if (name > bytes - at - 4) return 0;
        at += 4 + name;
    }
    if (bytes - at < 8 || (be32(p + at) & 0xff) != STRSXP) return 0;
    uint32_t count = be32(p + at + 4);
    at += 8;
    for (uint32_t i = 0; i < count; i++) {
        if (bytes - at < 8 || (be32(p + at) & 0xff) != CHARSXP) return 0;
        uint32_t length = be32(p + at + 4);
        at += 8;
        if (length == UINT32_MAX) /* NA */
            continue;
        if (length > bytes - at) return 0;
        fwrite(p + at, 1, length, stdout);
        putchar('\n');
        at += length;
    }
    return 1;
}

int main(void)
{
    uint8_t *file = malloc(MAX_FILE);
    if (file == NULL) return 1;
    size_t bytes = fread(file, 1, MAX_FILE, stdin), at = 0;
    while (bytes - at > 4) {
        uint32_t plain = be32(file + at);
        uint8_t *record = plain <= MAX_RECORD ? malloc(plain > 0 ? plain : 1) : NULL;
        z_stream z = {.next_in = file + at + 4, .avail_in = (uInt)(bytes - at - 4)};
        z.next_out = record;
        z.avail_out = plain;
        if (record == NULL || inflateInit(&z) != Z_OK) {
            fprintf(stderr, "rdb_text: the record at byte %zu claims %u bytes\n", at, plain);
            return 1;
        }
        int status = inflate(&z, Z_FINISH);
        if (status != Z_STREAM_END || !print_strings(record, z.total_out)) {
            fprintf(stderr, "rdb_text: the record at byte %zu is no compressed character vector\n",
                    at);
            return 1;
        }
        at += 4 + z.total_in;
        inflateEnd(&z);
        free(record);
    }
    free(file);
    return fflush(stdout) == 0 && at > 0 ? 0 : 1;
}
