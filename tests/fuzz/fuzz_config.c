/* fuzz_config.c – a configuration never crashes: the input's first part is the text of a file, every
 * line behind the first NUL byte is a word of the command line. What loads must also survive the way
 * to text and back, and must be refused or accepted again the same. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "train/config_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { MAX_WORDS = 32 };

static char folder[] = "/tmp/fuzz_config_XXXXXX", path[64];

static void remove_folder(void)
{
    unlink(path);
    rmdir(folder);
}

static void write_file(const void *data, size_t n)
{
    ts_error err = {0};
    ts_writer *w = NULL;
    if (ts_writer_open(path, false, &w, &err) != TS_OK) return;
    ts_status written = ts_writer_write(w, data, n, &err);
    ts_status closed = ts_writer_close(w, false, &err);
    TS_ASSERT(written == TS_OK && closed == TS_OK);
}

static void round_trip(const ts_config *c)
{
    ts_string a = ts_string_new(TS_CONFIG_TEXT_MAX), b = ts_string_new(TS_CONFIG_TEXT_MAX);
    ts_config *again = NULL;
    ts_error err = {0};
    ts_config_print(c, &a);
    ts_string_free(&a);
    a = ts_string_new(TS_CONFIG_TEXT_MAX);
    ts_config_yaml(c, &a);
    TS_ASSERT(!a.failed);
    write_file(a.data, a.length);
    ts_status status = ts_config_load(path, NULL, 0, &again, &err);
    TS_ASSERT(status == TS_OK);
    ts_config_yaml(again, &b);
    TS_ASSERT(!strcmp(a.data, b.data));
    ts_config_free(again);
    ts_string_free(&a);
    ts_string_free(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (!path[0]) {
        if (!mkdtemp(folder)) return 0;
        snprintf(path, sizeof path, "%s/own.yml", folder);
        atexit(remove_folder);
    }
    const uint8_t *nul = n ? memchr(data, 0, n) : NULL;
    size_t length = nul ? (size_t)(nul - data) : n;
    write_file(data, length);

    char *rest = calloc(n - length + 1, 1), *words[MAX_WORDS], *save = NULL;
    int count = 0;
    if (!rest) return 0;
    if (nul) memcpy(rest, nul + 1, n - length - 1);
    for (char *w = strtok_r(rest, "\n", &save); w && count < MAX_WORDS;
         w = strtok_r(NULL, "\n", &save))
        words[count++] = w;

    ts_config *c = NULL;
    ts_error err = {0};
    ts_status status = ts_config_load(path, (const char *const *)words, count, &c, &err);
    if (status == TS_OK)
        round_trip(c);
    else
        TS_ASSERT(!c && err.msg[0] && err.code == TS_INVALID_ARGUMENT);
    ts_config_free(c);
    free(rest);
    return 0;
}
