/* data/source.c – opening one file of a data set, with messages for what people pass by mistake.
 *
 * Refused before anything is read from it: a folder (naming a file inside that would do), an empty
 * file, and formats of other tools that would train on garbage. What gzip or zstd compressed is
 * unpacked (unpack.c), whatever its name, and what is in it is looked at in the same way. Not here:
 * what the file holds (stream.c, rows.c).
 */
#include <stdio.h>
#include <sys/resource.h>
#include <xxhash.h>

#include "data/internal.h"

static bool ends_with(const char *name, const char *ending)
{
    size_t n = strlen(name), m = strlen(ending);
    return n > m && strcmp(name + n - m, ending) == 0;
}

static const char *expected_ending(const char *dataset_type)
{
    return strcmp(dataset_type, "jsonl") == 0    ? ".jsonl"
           : strcmp(dataset_type, "tokens") == 0 ? ".bin"
                                                 : ".txt";
}

static ts_status folder_error(const char *path, const char *dataset_type, ts_error *err)
{
    char **names = NULL;
    size_t n = 0;
    const char *inside = NULL, *ending = expected_ending(dataset_type);
    char gzip[16], zstd[16];
    snprintf(gzip, sizeof gzip, "%s.gz", ending);
    snprintf(zstd, sizeof zstd, "%s.zst", ending);
    if (ts_list_folder(path, &names, &n, NULL) == TS_OK)
        for (size_t i = 0; i < n && !inside; i++)
            if (ends_with(names[i], ending) || ends_with(names[i], gzip) ||
                ends_with(names[i], zstd))
                inside = names[i];
    if (inside)
        ts__error(
            err, TS_INVALID_ARGUMENT, __FILE__, __LINE__,
            "%s is a folder; dataset_type=%s reads files (it holds %s): name them, separated by "
            "commas",
            path, dataset_type, inside);
    else
        ts__error(err, TS_INVALID_ARGUMENT, __FILE__, __LINE__,
                  "%s is a folder; dataset_type=%s reads files, and none in it ends in %s", path,
                  dataset_type, ending);
    ts_names_free(names, n);
    return TS_INVALID_ARGUMENT;
}

static const struct {
    const char *magic;
    size_t n;
    const char *what, *instead;
} foreign[] = {
    {"\x88\xd8\x34\x01", 4, "a token file (llm.c's .bin)", "set dataset_type=tokens"},
    {"\xa1\xd9\x34\x01", 4, "a token file (llm.c's .bin)", "set dataset_type=tokens"},
    {"GGUF", 4, "a model in GGUF", "it holds weights, not text to train on"},
    {"\3757zXZ", 5, "compressed with xz", "unpack it with unxz (gzip and zstd are read as they are)"},
    {"\x04\x22\x4d\x18", 4, "compressed with lz4", "unpack it with unlz4 (gzip and zstd are read as they are)"},
    {"7z\xbc\xaf\x27\x1c", 6, "a 7z archive", "unpack it"},
    {"PK\x03\x04", 4, "a zip archive (or one of the formats that are one)", "unpack it"},
    {"PAR1", 4, "a Parquet file", "export its rows as JSON lines, one object a line"},
    {"ARROW1", 6, "an Arrow file", "export its rows as JSON lines, one object a line"},
    {"Obj\x01", 4, "an Avro file", "export its rows as JSON lines, one object a line"},
    {"SQLite format 3", 15, "an SQLite database", "export its rows as JSON lines"},
    {"\x93NUMPY", 6, "a NumPy array", "write the ids as a token file, and set dataset_type=tokens"},
    {"\x89HDF\r\n", 6, "an HDF5 file", "export its rows as JSON lines, one object a line"},
    {"%PDF-", 5, "a PDF", "take the text out of it (pdftotext)"},
    {"\x89PNG\r\n", 6, "a picture", "text is what is trained on"},
    {"\xff\xd8\xff", 3, "a picture", "text is what is trained on"},
    {"\x7f\x45LF", 4, "a program", "text is what is trained on"},
    {"\xff\xfe", 2, "UTF-16 text", "convert it: iconv -f UTF-16 -t UTF-8"},
    {"\xfe\xff", 2, "UTF-16 text", "convert it: iconv -f UTF-16 -t UTF-8"},
};

/* Formats that a few bytes at the front do not show. */
static const char *deeper(const unsigned char *head, size_t n, const char **instead)
{
    if (n >= 9 && !head[4] && !head[5] && !head[6] && !head[7] && head[8] == '{') {
        *instead = "it holds weights; model_path=FOLDER or load_parameters_path=FOLDER reads them";
        return "a model's safetensors file";
    }
    if (n >= 10 && !memcmp(head, "BZh", 3) && !memcmp(head + 4, "1AY&SY", 6)) {
        *instead = "unpack it with bunzip2 (gzip and zstd are read as they are)";
        return "compressed with bzip2";
    }
    if (n >= 262 && !memcmp(head + 257, "ustar", 5)) {
        *instead = "unpack it with tar -xf";
        return "a tar archive";
    }
    return NULL;
}

static bool is_token_file(const unsigned char *head)
{
    return !memcmp(head, foreign[0].magic, 4) || !memcmp(head, foreign[1].magic, 4);
}

enum { HEAD_BYTES = 264 };

static ts_status refuse_foreign(ts_file *f, const unsigned char *head, size_t n,
                                const char *dataset_type, ts_error *err)
{
    const char *what = NULL, *instead = "";
    bool tokens = strcmp(dataset_type, "tokens") == 0;
    if (tokens && is_token_file(head)) return TS_OK;
    what = deeper(head, n, &instead);
    for (size_t i = 0; !what && i < sizeof foreign / sizeof *foreign; i++) {
        if (n < foreign[i].n || memcmp(head, foreign[i].magic, foreign[i].n)) continue;
        what = foreign[i].what;
        instead = foreign[i].instead;
    }
    if (!what) return TS_OK;
    return TS_ERROR(err, TS_DATA_LOSS, "%s is %s; dataset_type=%s reads %s: %s", ts_file_path(f),
                    what, dataset_type, tokens ? "token files" : "plain files", instead);
}

static ts_status read_head(ts_file *f, unsigned char head[HEAD_BYTES], size_t *n, ts_error *err)
{
    memset(head, 0, HEAD_BYTES);
    *n = ts_file_size(f) < HEAD_BYTES ? (size_t)ts_file_size(f) : HEAD_BYTES;
    return ts_file_read_at(f, 0, head, *n, err);
}

/* Replaces *f by what is in it. */
static ts_status unpack(ts_file **f, ts__compression kind, const char *dataset_type,
                        const char *cache_folder, ts_error *err)
{
    static const char *const names[] = {"", "gzip", "zstd"};
    ts_file *content;
    unsigned char head[HEAD_BYTES];
    size_t n;
    TS_TRY(ts__unpacked(*f, kind, cache_folder, &content, err));
    ts_file_close(*f);
    *f = content;
    TS_TRY(read_head(content, head, &n, err));
    ts__compression inside = ts__compression_of(head, n);
    if (inside != TS__PLAIN)
        return TS_ERROR(err, TS_DATA_LOSS,
                        "%s is compressed twice, with %s inside %s; unpack it once",
                        ts_file_path(content), names[inside], names[kind]);
    ts_status status = refuse_foreign(content, head, n, dataset_type, err);
    return status == TS_OK ? TS_OK : ts__error_context(err, "compressed with %s", names[kind]);
}

static ts_status judge(ts_file **f, const char *dataset_type, const char *cache_folder,
                       ts_error *err)
{
    unsigned char head[HEAD_BYTES];
    size_t n;
    if (ts_file_size(*f) == 0)
        return TS_ERROR(err, TS_DATA_LOSS,
                        "%s is empty (0 bytes); dataset_type=%s needs a file with data",
                        ts_file_path(*f), dataset_type);
    TS_TRY(read_head(*f, head, &n, err));
    ts__compression kind = ts__compression_of(head, n);
    return kind == TS__PLAIN ? refuse_foreign(*f, head, n, dataset_type, err)
                             : unpack(f, kind, dataset_type, cache_folder, err);
}

ts_status ts__data_file_open(const char *path, const char *dataset_type, const char *cache_folder,
                             ts_file **out, ts_error *err)
{
    if (ts_path_kind_of(path) == TS_PATH_FOLDER) return folder_error(path, dataset_type, err);
    ts_file *f;
    TS_TRY(ts_file_open(path, &f, err));
    ts_status status = judge(&f, dataset_type, cache_folder, err);
    if (status != TS_OK) {
        ts__data_file_close(f);
        return status;
    }
    *out = f;
    return TS_OK;
}

/* The soft limit is often 1024, for the sake of select(), which nothing here calls; data sets have more
 * files than that. */
ts_status ts__data_files_room(size_t n, ts_error *err)
{
    enum {
        OTHERS = 32,      /* the least that a program needs beside them */
        ENOUGH = 1 << 16, /* for several sources, and both splits of each */
    };
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return TS_OK;
    rlim_t need = 2 * (rlim_t)n + ENOUGH, hard = limit.rlim_max;
    if (limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= need) return TS_OK;
    if (hard != RLIM_INFINITY && hard < n + OTHERS)
        return TS_ERROR(err, TS_RESOURCE_EXHAUSTED,
                        "%zu data files; this process may hold %llu files open (ulimit -Hn): raise "
                        "that limit, or join the files to fewer",
                        n, (unsigned long long)hard);
    limit.rlim_cur = hard != RLIM_INFINITY && hard < need ? hard : need;
    (void)setrlimit(RLIMIT_NOFILE, &limit); /* if not, opening says which file was one too many */
    return TS_OK;
}

ts_status ts__data_file_fingerprint(ts_file *f, uint64_t *hash, ts_error *err)
{
    enum { PIECE = 4096 };
    char piece[PIECE];
    uint64_t size = ts_file_size(f);
    size_t n = size < PIECE ? (size_t)size : PIECE;
    TS_TRY(ts_file_read_at(f, 0, piece, n, err));
    uint64_t h = XXH3_64bits_withSeed(piece, n, size);
    TS_TRY(ts_file_read_at(f, size - n, piece, n, err));
    *hash = XXH3_64bits_withSeed(piece, n, h);
    return TS_OK;
}
