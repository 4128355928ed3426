/* test_data_files.c – files of a data set as the loader sees them: compressed ones are the same data
 * as plain ones, rows keep their side of the split, the index of rows spills without a difference,
 * threads read at once, and files far larger than memory open in none of it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "data_help.h"
#include "pack_help.h"
#include "slow.h"

static char *contents(const char *path, size_t *n)
{
    char *text;
    assert_int_equal(ts_file_read_all(path, 1 << 26, &text, n, NULL), TS_OK);
    return text;
}

/* The file at path, compressed in two pieces under another name. */
static const char *compressed(const char *path, const char *name, bool zstd)
{
    size_t n, half;
    char *text = contents(path, &n);
    packed p = {0};
    half = n / 2;
    if (zstd) {
        pack_zstd(&p, text, half, 3);
        pack_zstd(&p, text + half, n - half, 3);
    } else {
        pack_gzip(&p, text, half, 6, true);
        pack_gzip(&p, text + half, n - half, 6, false);
    }
    ts_free(text);
    return put_packed(name, &p);
}

static uint64_t hash_all(ts_loader *l, int64_t rows, int64_t sequence)
{
    full_batch f = batch_new(rows, sequence);
    uint64_t h = 0;
    while (next(l, &f)) h = ts_mix64(h ^ hash_batch(&f));
    batch_free(&f);
    return h;
}

/* ---- compressed ------------------------------------------------------------------------------ */

static void the_same_data(void **state)
{
    (void)state;
    enum { N = 4000 };
    static uint32_t ids[N];
    for (uint32_t i = 0; i < N; i++) ids[i] = i * 7 % 250;
    const struct {
        ts_data_type type;
        const char *path;
    } cases[] = {
        {TS_DATA_JSONL, put_rows("rows.jsonl", 700, 3)},
        {TS_DATA_TEXT, put_counted("text.txt", 5000)},
        {TS_DATA_TOKENS, put_tokens("ids.bin", 20240520, 1, N, ids, N)},
    };
    for (size_t i = 0; i < 3; i++) {
        const char *all[3] = {cases[i].path, compressed(cases[i].path, "data.gz", false),
                              compressed(cases[i].path, "data", true)}; /* the name says nothing */
        uint64_t expected = 0, fingerprint = 0;
        for (int k = 0; k < 3; k++) {
            ts_loader_options o = options(cases[i].type, &all[k], 1, 4, 32);
            o.cache_folder = k == 1 ? root : NULL;
            ts_loader *l = open_ok(&o);
            uint64_t found = hash_all(l, 4, 32);
            if (k == 0) {
                expected = found;
                fingerprint = ts_loader_fingerprint(l);
            }
            assert_int_equal(found, expected);
            assert_int_equal(ts_loader_fingerprint(l), fingerprint);
            ts_loader_free(l);
        }
    }
}

/* Training and evaluation read one content; a file that was replaced has another. */
static void unpacked_once(void **state)
{
    (void)state;
    packed p = {0};
    ts_file *f[4];
    ts_error err = {0};
    char text[6] = "";
    size_t before = open_files();
    pack_gzip(&p, "first", 5, 6, false);
    const char *path = put_packed("once.gz", &p);
    for (int i = 0; i < 2; i++)
        assert_int_equal(ts__data_file_open(path, "text", root, &f[i], &err), TS_OK);
    assert_ptr_equal(f[0], f[1]);
    assert_int_equal(open_files(), before + 1);
    pack_gzip(&p, "second", 6, 6, false);
    const char *other = put_packed("other.gz", &p);
    assert_int_equal(ts_rename(other, path, &err), TS_OK);
    for (int i = 2; i < 4; i++)
        assert_int_equal(ts__data_file_open(path, "text", root, &f[i], &err), TS_OK);
    assert_ptr_equal(f[2], f[3]);
    assert_ptr_not_equal(f[2], f[0]);
    ts__data_file_close(f[0]);
    ts__data_file_close(f[3]);
    assert_int_equal(ts_file_read_at(f[1], 0, text, 5, &err), TS_OK);
    assert_string_equal(text, "first");
    assert_int_equal(ts_file_read_at(f[2], 0, text, 5, &err), TS_OK);
    assert_string_equal(text, "secon");
    ts__data_file_close(f[1]);
    ts__data_file_close(f[2]);
    ts__data_file_close(NULL);
    assert_int_equal(open_files(), before);
}

static void messages(void **state)
{
    (void)state;
    packed p = {0}, twice = {0};
    const char *text = "{\"text\": \"one\"}\n{\"text\": 5}\n{\"text\": \"three\"}\n";
    pack_gzip(&p, text, strlen(text), 6, false);
    const char *path = put_packed("rows.jsonl.gz", &p);
    ts_loader_options o = options(TS_DATA_JSONL, &path, 1, 1, 16);
    ts_loader *l = open_ok(&o);
    const char *bad = ts_loader_bad_row_at(l, 0);
    assert_non_null(strstr(bad, "rows.jsonl.gz:2: key \"text\" is a number"));
    ts_loader_free(l);
    o.on_bad_row = TS_BAD_ROW_STOP;
    open_fails(&o, TS_DATA_LOSS, "rows.jsonl.gz:2: ", "mend the row");
    pack_zstd(&p, text, strlen(text), 3);
    pack_gzip(&twice, p.data, p.n, 6, false);
    free(p.data);
    p = (packed){0};
    path = put_packed("twice.gz", &twice);
    open_fails(&o, TS_DATA_LOSS, "compressed twice, with zstd inside gzip", "twice.gz");
    char tar[600] = "a.jsonl";
    memcpy(tar + 257, "ustar", 5);
    pack_gzip(&p, tar, sizeof tar, 6, false);
    path = put_packed("rows.tar.gz", &p);
    open_fails(&o, TS_DATA_LOSS, "rows.tar.gz is a tar archive", "compressed with gzip");
    pack_zstd(&p, "{\"text\"", 7, 3);
    path = put_packed("ids.bin", &p);
    o.type = TS_DATA_TOKENS;
    open_fails(&o, TS_DATA_LOSS, "ids.bin has 7 bytes; a token file (.bin) begins", "");
    pack_gzip(&p, text, strlen(text), 6, false);
    path = put_packed("rows.gz", &p);
    o.type = TS_DATA_JSONL;
    o.cache_folder = "/nowhere/here";
    open_fails(&o, TS_NOT_FOUND, "/nowhere/here: cannot make a file in it", "data_cache_directory");
}

/* ---- held out -------------------------------------------------------------------------------- */

enum { ROWS = 600 };

/* Marks in held[] the rows that the loader of these files holds out; each is on one side. */
static void sides(const char *const *paths, size_t n, char held[ROWS])
{
    memset(held, 0, ROWS);
    for (int split = TS_SPLIT_TRAIN; split <= TS_SPLIT_EVAL; split++) {
        ts_loader_options o = options(TS_DATA_JSONL, paths, n, 1, 32);
        o.split = (ts_data_split)split;
        o.eval_fraction = 0.3;
        o.packing = TS_PACK_NONE;
        o.add_bos = o.add_eos = false;
        ts_loader *l = open_ok(&o);
        full_batch f = batch_new(1, 32);
        while (next(l, &f)) {
            int row = 0;
            for (int i = 0; i < 32 && f.b.segments[i]; i++)
                row = f.b.tokens[i] >= '0' && f.b.tokens[i] <= '9'
                          ? row * 10 + f.b.tokens[i] - '0'
                          : row;
            assert_in_range(row, 0, ROWS - 1);
            assert_int_equal(held[row], 0);
            held[row] = split == TS_SPLIT_EVAL ? 'e' : 't';
        }
        batch_free(&f);
        ts_loader_free(l);
    }
}

/* Rows from, from + step … as text; a row is its number. */
static size_t rows_text(char *text, int from, int step, const char *end)
{
    size_t n = 0;
    for (int i = from; i >= 0 && i < ROWS; i += step)
        n += (size_t)sprintf(text + n, "{\"text\": \"row %d\"}%s", i, end);
    return n;
}

static void rows_keep_their_side(void **state)
{
    (void)state;
    static char text[ROWS * 40], whole[ROWS], other[ROWS];
    size_t n = rows_text(text, 0, 1, "\n"), held = 0;
    const char *paths[3] = {put("all.jsonl", text, n)};
    sides(paths, 1, whole);
    for (int i = 0; i < ROWS; i++) held += whole[i] == 'e';
    assert_in_range(held, ROWS * 2 / 10, ROWS * 4 / 10);
    /* In the other order, with other line ends. */
    n = rows_text(text, ROWS - 1, -1, "\r\n");
    paths[0] = put("back.jsonl", text, n);
    sides(paths, 1, other);
    assert_memory_equal(other, whole, ROWS);
    /* In three files, one plain and two compressed, without the last line end. */
    static const char *const names[] = {"0.jsonl", "1.jsonl.gz", "2.jsonl.zst"};
    for (int k = 0; k < 3; k++) {
        packed p = {0};
        n = rows_text(text, k, 3, "\n") - 1;
        if (k == 1) pack_gzip(&p, text, n, 6, false);
        if (k == 2) pack_zstd(&p, text, n, 3);
        paths[k] = k ? put_packed(names[k], &p) : put(names[k], text, n);
    }
    sides(paths, 3, other);
    assert_memory_equal(other, whole, ROWS);
    /* Two thirds of the rows: those that are left stay where they were. */
    sides(paths, 2, other);
    for (int i = 0; i < ROWS; i++) assert_int_equal(other[i], i % 3 == 2 ? 0 : whole[i]);
}

/* ---- the index of rows ----------------------------------------------------------------------- */

static void the_index_spills(void **state)
{
    (void)state;
    enum { N = 100000 }; /* several blocks */
    static const int64_t limits[] = {0, 1, 7, 32768, 99999, 100000, 1 << 20};
    for (size_t k = 0; k < sizeof limits / sizeof *limits; k++) {
        ts__index *x;
        ts_error err = {0};
        assert_int_equal(ts__index_new(limits[k], root, "rows", &x, &err), TS_OK);
        for (uint64_t i = 0; i < N; i++)
            assert_int_equal(ts__index_add(x, ts_mix64(i), &err), TS_OK);
        assert_int_equal(ts__index_seal(x, &err), TS_OK);
        assert_int_equal(ts__index_count(x), N);
        for (int64_t i = 0; i < N; i += i < 100 || i > 99900 ? 1 : 37) {
            uint64_t found = 0;
            assert_int_equal(ts__index_at(x, i, &found, &err), TS_OK);
            assert_int_equal(found, ts_mix64((uint64_t)i));
        }
        uint64_t found;
        ts_file_fault(TS_FAULT_READ, 1, EIO);
        ts_status status = ts__index_at(x, N - 1, &found, &err);
        ts_file_fault(0, 0, 0);
        assert_int_equal(status, limits[k] < N ? TS_DATA_LOSS : TS_OK);
        ts__index_free(x);
    }
    ts__index *x;
    ts_error err = {0};
    assert_int_equal(ts__index_new(1000, root, "a.jsonl", &x, &err), TS_OK);
    ts_status status = TS_OK;
    ts_file_fault(TS_FAULT_WRITE, 1, ENOSPC);
    for (uint64_t i = 0; i < N && status == TS_OK; i++) status = ts__index_add(x, i, &err);
    ts_file_fault(0, 0, 0);
    assert_int_equal(status, TS_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(err.msg, "a.jsonl: the places of its rows take 270144 bytes so far"));
    assert_non_null(strstr(err.msg, "data_cache_directory"));
    ts__index_free(x);
}

typedef struct thread {
    const ts__rows *rows;
    const uint64_t *expected;
    int64_t n;
    uint64_t seed;
    int wrong;
} thread;

static uint64_t hash_ids(const ts_tokens *ids)
{
    uint64_t h = ids->n;
    for (size_t i = 0; i < ids->n; i++) h = ts_mix64(h ^ (uint32_t)ids->id[i]);
    return h;
}

static void *read_rows(void *context)
{
    thread *t = context;
    ts__row_scratch scratch = {0};
    ts_tokens ids = {0};
    for (uint64_t k = 0; k < 4000; k++) {
        int64_t i = (int64_t)(ts_mix64(t->seed + k) % (uint64_t)t->n);
        t->wrong += ts__rows_read(t->rows, i, &scratch, &ids, NULL) != TS_OK ||
                    hash_ids(&ids) != t->expected[i];
    }
    ts__row_scratch_free(&scratch);
    ts_tokens_free(&ids);
    return NULL;
}

/* Four threads over plain and compressed files with most places on disk read what one reads alone. */
static void threads_read_at_once(void **state)
{
    (void)state;
    enum { N = 3000, THREADS = 4 };
    const char *paths[3] = {put_rows("a.jsonl", 1000, 0), put_rows("b.jsonl", 1000, 60),
                            put_rows("c.jsonl", 1000, 5)};
    paths[1] = compressed(paths[1], "b.jsonl.gz", false);
    ts_loader_options o = options(TS_DATA_JSONL, paths, 3, 1, 64);
    o.vocab_size = 259;
    o.cache_folder = root;
    ts__rows *whole, *spilled;
    ts_error err = {0};
    assert_int_equal(ts__rows_open(&o, &whole, &err), TS_OK);
    assert_int_equal(ts__rows_open_limited(&o, 100, &spilled, &err), TS_OK);
    assert_int_equal(ts__rows_count(spilled), N);
    assert_int_equal(ts__rows_fingerprint(whole), ts__rows_fingerprint(spilled));
    static uint64_t expected[N];
    ts__row_scratch scratch = {0};
    ts_tokens ids = {0};
    for (int64_t i = 0; i < N; i++) {
        assert_int_equal(ts__rows_read(whole, i, &scratch, &ids, &err), TS_OK);
        expected[i] = hash_ids(&ids);
    }
    ts__row_scratch_free(&scratch);
    ts_tokens_free(&ids);
    thread t[THREADS];
    pthread_t id[THREADS];
    for (uint64_t i = 0; i < THREADS; i++) {
        t[i] = (thread){spilled, expected, N, i << 32, 0};
        assert_int_equal(pthread_create(&id[i], NULL, read_rows, &t[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(id[i], NULL);
        assert_int_equal(t[i].wrong, 0);
    }
    ts__rows_free(whole);
    ts__rows_free(spilled);
}

/* ---- sizes ----------------------------------------------------------------------------------- */

static bool make_sparse(const char *name, int64_t size, char path[100])
{
    snprintf(path, 100, "%s/%s", root, name);
    int fd = open(path, O_CREAT | O_RDWR | O_TRUNC, 0600);
    bool ok = fd >= 0 && ftruncate(fd, size) == 0;
    struct stat st;
    ok = ok && fstat(fd, &st) == 0 && st.st_blocks < 1 << 16;
    if (fd >= 0) close(fd);
    return ok;
}

static void put_at(const char *path, int64_t offset, const void *data, size_t n)
{
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0 && pwrite(fd, data, n, offset) == (ssize_t)n);
    close(fd);
}

static void reads(ts__stream *s, int64_t at, const int32_t *expected, int64_t n)
{
    int32_t ids[16];
    ts_error err = {0};
    if (ts__stream_read(s, at, n, ids, &err) != TS_OK) fail_msg("%s", err.msg);
    assert_memory_equal(ids, expected, (size_t)n * sizeof *ids);
}

/* 100 GB of text in one file, and as many of token files: llm.c's header counts 2^31 tokens a file. */
static void a_hundred_gigabytes(void **state)
{
    (void)state;
    enum { FILES = 24 };
    const int64_t text_size = 100000000000, tokens = INT32_MAX, file_size = 1024 + 2 * tokens;
    static char text[100], path[FILES][100];
    if (!make_sparse("huge.txt", text_size, text)) {
        print_message("no sparse files of 100 GB here\n");
        skip();
    }
    struct rusage before, after;
    getrusage(RUSAGE_SELF, &before);
    const char *paths[FILES] = {text};
    ts_error err = {0};
    ts__stream *s;
    put_at(text, 77777777777, "needle", 6);
    put_at(text, text_size - 2, "ok", 2);
    ts_loader_options o = options(TS_DATA_TEXT, paths, 1, 4, 512);
    o.add_bos = o.add_eos = false;
    assert_int_equal(ts__stream_open(&o, &s, &err), TS_OK);
    assert_int_equal(ts__stream_tokens(s), text_size);
    reads(s, 77777777776, (const int32_t[]){0, 'n', 'e', 'e', 'd', 'l', 'e', 0}, 8);
    reads(s, text_size - 3, (const int32_t[]){0, 'o', 'k'}, 3);
    ts__stream_free(s);
    const uint32_t header[3] = {20240520, 1, (uint32_t)tokens};
    for (int i = 0; i < FILES; i++) {
        char name[24];
        snprintf(name, sizeof name, "huge-%02d.bin", i);
        assert_true(make_sparse(name, file_size, path[i]));
        put_at(path[i], 0, header, sizeof header);
        put_at(path[i], file_size - 2, &(uint16_t){(uint16_t)(100 + i)}, 2);
        paths[i] = path[i];
    }
    o = options(TS_DATA_TOKENS, paths, FILES, 4, 512);
    assert_int_equal(ts__stream_open(&o, &s, &err), TS_OK);
    assert_int_equal(ts__stream_tokens(s), FILES * tokens);
    for (int i = 0; i < FILES; i++) {
        int32_t last = 100 + i;
        reads(s, (i + 1) * tokens - 2, (const int32_t[]){0, last, 0}, i + 1 < FILES ? 3 : 2);
        assert_int_equal(ts__stream_file_end(s, i * tokens + 5), (i + 1) * tokens);
    }
    ts__stream_free(s);
    ts_loader *l = open_ok(&o); /* and batches in random order */
    full_batch f = batch_new(4, 512);
    for (int i = 0; i < 50; i++) assert_true(next(l, &f));
    batch_free(&f);
    ts_loader_free(l);
    getrusage(RUSAGE_SELF, &after);
    if (!test_is_slow()) assert_true(after.ru_maxrss - before.ru_maxrss < 16 << 10); /* KiB */
}

/* More files than the soft limit of open files allows, and more than the hard one. */
static void many_files(void **state)
{
    (void)state;
    enum { FILES = 300 };
    static char path[FILES][100];
    const char *paths[FILES];
    struct rlimit kept, low;
    for (int i = 0; i < FILES; i++) {
        char name[24], text[60];
        snprintf(name, sizeof name, "m%03d.jsonl", i);
        int n = snprintf(text, sizeof text, "{\"text\": \"row %d\"}\n", i);
        snprintf(path[i], sizeof path[i], "%s", put(name, text, (size_t)n));
        paths[i] = path[i];
    }
    getrlimit(RLIMIT_NOFILE, &kept);
    low = kept;
    low.rlim_cur = 250;
    if (setrlimit(RLIMIT_NOFILE, &low) != 0) skip();
    ts_loader_options o = options(TS_DATA_JSONL, paths, FILES, 1, 16);
    ts_loader *l = open_ok(&o);
    assert_int_equal(ts_loader_stats_of(l).samples, FILES);
    ts_loader_free(l);
    ts_loader_source sources[3] = {{"a", 1, paths, 100}, {"b", 1, paths + 100, 100},
                                   {"c", 1, paths + 200, 100}};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0); /* 250 files do, 3 · 100 do not */
    o.sources = sources;
    o.n_sources = 3;
    l = open_ok(&o);
    ts_loader_free(l);
    setrlimit(RLIMIT_NOFILE, &kept);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_data),        cmocka_unit_test(unpacked_once),
        cmocka_unit_test(messages),
        cmocka_unit_test(rows_keep_their_side), cmocka_unit_test(the_index_spills),
        cmocka_unit_test(threads_read_at_once), cmocka_unit_test(a_hundred_gigabytes),
        cmocka_unit_test(many_files),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
