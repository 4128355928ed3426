/* data/source.c – opening one file of a data set, with messages for what people pass by mistake.
 *
 * Refused before anything is read from it: a folder (naming a file inside that would do), an empty
 * file, compressed files, and formats of other tools that would train on garbage. Not here: what
 * the file holds (stream.c, rows.c).
 */
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
    if (ts_list_folder(path, &names, &n, NULL) == TS_OK)
        for (size_t i = 0; i < n && !inside; i++)
            if (ends_with(names[i], ending)) inside = names[i];
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
    {"\x1f\x8b", 2, "compressed with gzip", "unpack it with gunzip"},
    {"\x28\xb5\x2f\xfd", 4, "compressed with zstd", "unpack it with unzstd"},
    {"\3757zXZ", 5, "compressed with xz", "unpack it with unxz"},
    {"\x04\x22\x4d\x18", 4, "compressed with lz4", "unpack it with unlz4"},
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
        *instead = "unpack it with bunzip2";
        return "compressed with bzip2";
    }
    if (n >= 262 && !memcmp(head + 257, "ustar", 5)) {
        *instead = "unpack it with tar -xf";
        return "a tar archive";
    }
    return NULL;
}

static bool is_token_file(const char *head)
{
    return !memcmp(head, foreign[0].magic, 4) || !memcmp(head, foreign[1].magic, 4);
}

static ts_status refuse_foreign(ts_file *f, const char *dataset_type, ts_error *err)
{
    char head[264] = {0};
    size_t n = ts_file_size(f) < sizeof head ? (size_t)ts_file_size(f) : sizeof head;
    const char *what = NULL, *instead = "";
    bool tokens = strcmp(dataset_type, "tokens") == 0;
    TS_TRY(ts_file_read_at(f, 0, head, n, err));
    if (tokens && is_token_file(head)) return TS_OK;
    what = deeper((const unsigned char *)head, n, &instead);
    for (size_t i = 0; !what && i < sizeof foreign / sizeof *foreign; i++) {
        if (n < foreign[i].n || memcmp(head, foreign[i].magic, foreign[i].n)) continue;
        what = foreign[i].what;
        instead = foreign[i].instead;
    }
    if (!what) return TS_OK;
    return TS_ERROR(err, TS_DATA_LOSS, "%s is %s; dataset_type=%s reads %s: %s", ts_file_path(f),
                    what, dataset_type, tokens ? "token files" : "plain files", instead);
}

ts_status ts__data_file_open(const char *path, const char *dataset_type, const char *cache_folder,
                             ts_file **out, ts_error *err)
{
    (void)cache_folder;
    if (ts_path_kind_of(path) == TS_PATH_FOLDER) return folder_error(path, dataset_type, err);
    ts_file *f;
    TS_TRY(ts_file_open(path, &f, err));
    ts_status status = TS_OK;
    if (ts_file_size(f) == 0)
        status = TS_ERROR(err, TS_DATA_LOSS,
                          "%s is empty (0 bytes); dataset_type=%s needs a file with data", path,
                          dataset_type);
    else
        status = refuse_foreign(f, dataset_type, err);
    if (status != TS_OK) {
        ts_file_close(f);
        return status;
    }
    *out = f;
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
