/* test_unpack.c – compressed data files: what comes out is what went in, through every shape of
 * stream; what is cut, damaged or followed by garbage is found, at every length and every bit; and a
 * disk, memory or call that fails leaves nothing behind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "data_help.h"
#include "pack_help.h"
#include "slow.h"

/* In memory where it can be: thousands of files are made. */
static const char *cache(void)
{
    return access("/dev/shm", W_OK) == 0 ? "/dev/shm" : root;
}

/* What is in the file at path, or NULL and *err. */
static char *unpacked(const char *path, uint64_t max, size_t *n, ts_error *err)
{
    ts_file *from, *to = NULL;
    unsigned char head[4];
    *err = (ts_error){0};
    assert_int_equal(ts_file_open(path, &from, err), TS_OK);
    size_t have = ts_file_size(from) < 4 ? (size_t)ts_file_size(from) : 4;
    assert_int_equal(ts_file_read_at(from, 0, head, have, err), TS_OK);
    ts__compression kind = ts__compression_of(head, have);
    char *text = NULL;
    if (kind == TS__PLAIN) {
        ts__error(err, TS_DATA_LOSS, __FILE__, __LINE__, "%s is plain, at a byte", path);
    } else if (ts__unpack(from, kind, cache(), max, &to, err) == TS_OK) {
        assert_string_equal(ts_file_path(to), path);
        *n = (size_t)ts_file_size(to);
        text = malloc(*n + 1);
        assert_int_equal(ts_file_read_at(to, 0, text, *n, err), TS_OK);
    }
    ts_file_close(to);
    ts_file_close(from);
    return text;
}

static void gives(const char *path, const char *text, size_t n)
{
    ts_error err;
    size_t m = 0;
    char *found = unpacked(path, UINT64_MAX, &m, &err);
    if (!found) fail_msg("%s", err.msg);
    assert_int_equal(m, n);
    assert_memory_equal(found, text, n);
    free(found);
}

static void fails(const char *path, ts_status code, const char *part, const char *other)
{
    ts_error err;
    size_t m;
    assert_null(unpacked(path, UINT64_MAX, &m, &err));
    if (err.code != code || !strstr(err.msg, part) || !strstr(err.msg, other))
        fail_msg("expected \"%s\" and \"%s\", found %d: %s", part, other, err.code, err.msg);
    if (!strstr(err.msg, path)) fail_msg("no path: %s", err.msg);
}

static char *some_text(size_t n)
{
    char *text = malloc(n + 1);
    for (size_t i = 0; i < n; i++) text[i] = (char)('a' + (i * i / 7 + i / 1000) % 26);
    return text;
}

/* ---- what is right --------------------------------------------------------------------------- */

static void one_stream(void **state)
{
    (void)state;
    const size_t mib = 1 << 20, sizes[] = {1, 2, 1000, mib - 1, mib, mib + 1, 3 * mib + 5};
    char *text = some_text(4 * mib);
    packed p = {0};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        for (int level = 0; level <= 9; level += 9) {
            pack_gzip(&p, text, sizes[i], level, level == 9);
            gives(put_packed("a.gz", &p), text, sizes[i]);
            pack_zstd(&p, text, sizes[i], level ? 19 : 1);
            gives(put_packed("a.zst", &p), text, sizes[i]);
        }
    }
    free(text);
}

/* As bgzip, pigz, pzstd and cat write them. */
static void many_streams(void **state)
{
    (void)state;
    size_t n = 300000;
    char *text = some_text(n);
    packed p = {0};
    pack_gzip(&p, "", 0, 6, true);
    for (size_t at = 0; at < n; at += 1000) pack_gzip(&p, text + at, 1000, 6, at % 3000 == 0);
    pack_gzip(&p, "", 0, 6, false); /* bgzip's mark of the end */
    gives(put_packed("a.gz", &p), text, n);
    pack_skipped(&p, 0, 4);
    for (size_t at = 0; at < n; at += 1000) {
        pack_zstd(&p, text + at, 1000, 3);
        if (at % 5000 == 0) pack_skipped(&p, 15, at / 1000);
        if (at % 7000 == 0) pack_zstd(&p, "", 0, 3);
    }
    pack_skipped(&p, 7, 0);
    gives(put_packed("a.zst", &p), text, n);
    free(text);
}

/* A last block that does not fit into what is left of a buffer, with nothing of the file behind it. */
static void output_that_waits(void **state)
{
    (void)state;
    enum { PIECE = 100000, PIECES = 11 };
    char *text = some_text(PIECE * PIECES);
    static unsigned char out[PIECE * PIECES * 2];
    ZSTD_CCtx *c = ZSTD_createCCtx();
    ZSTD_outBuffer to = {out, sizeof out, 0};
    packed p = {0};
    for (size_t i = 0; i < PIECES; i++) {
        ZSTD_inBuffer from = {text + i * PIECE, PIECE, 0};
        ZSTD_EndDirective how = i + 1 < PIECES ? ZSTD_e_flush : ZSTD_e_end;
        assert_int_equal(ZSTD_compressStream2(c, &to, &from, how), 0);
    }
    ZSTD_freeCCtx(c);
    pack_bytes(&p, out, to.pos);
    gives(put_packed("a.zst", &p), text, PIECE * PIECES);
    free(text);
}

/* Much larger than memory may get: 300 MB of one letter in few bytes. */
static void memory_is_bounded(void **state)
{
    (void)state;
    size_t piece = 1 << 20, n = 300;
    char *text = malloc(piece);
    memset(text, 'x', piece);
    packed p[2] = {{0}, {0}};
    for (size_t i = 0; i < n; i++) pack_gzip(&p[0], text, piece, 6, false);
    for (size_t i = 0; i < n; i++) pack_zstd(&p[1], text, piece, 3);
    const char *paths[2] = {put_packed("a.gz", &p[0]), put_packed("a.zst", &p[1])};
    free(text);
    for (int i = 0; i < 2; i++) {
        struct rusage before, after;
        ts_file *from, *to;
        ts_error err = {0};
        getrusage(RUSAGE_SELF, &before);
        assert_int_equal(ts_file_open(paths[i], &from, &err), TS_OK);
        assert_int_equal(
            ts__unpack(from, i ? TS__ZSTD : TS__GZIP, root, UINT64_MAX, &to, &err), TS_OK);
        assert_int_equal(ts_file_size(to), n * piece);
        getrusage(RUSAGE_SELF, &after);
        if (!test_is_slow()) assert_true(after.ru_maxrss - before.ru_maxrss < 8 << 10); /* KiB */
        ts_file_close(from);
        ts_file_close(to);
    }
}

/* ---- what is wrong --------------------------------------------------------------------------- */

static void what_is_wrong(void **state)
{
    (void)state;
    packed p = {0};
    pack_gzip(&p, "hello\n", 6, 6, false);
    size_t n = p.n;
    char place[80];
    snprintf(place, sizeof place, "truncate -s %zu", n);
    pack_bytes(&p, "garbage", 7);
    fails(put_packed("garbage.gz", &p), TS_DATA_LOSS, "what follows is none (7 bytes)", place);
    pack_gzip(&p, "hello\n", 6, 6, false);
    pack_bytes(&p, "\0\0\0\0", 4);
    fails(put_packed("zeros.gz", &p), TS_DATA_LOSS, "what follows is none (4 bytes)", place);
    pack_gzip(&p, "hello\n", 6, 6, false);
    pack_bytes(&p, "\n", 1);
    fails(put_packed("line.gz", &p), TS_DATA_LOSS, "what follows is none (1 bytes)", place);
    pack_gzip(&p, "hello\n", 6, 6, false);
    p.data[p.n - 8] ^= 1;
    fails(put_packed("sum.gz", &p), TS_DATA_LOSS, "is damaged: incorrect data check", "byte ");
    pack_gzip(&p, "", 0, 6, false);
    fails(put_packed("none.gz", &p), TS_DATA_LOSS, "holds nothing", "gzip");
    pack_zstd(&p, "hello\n", 6, 3);
    n = p.n;
    snprintf(place, sizeof place, "truncate -s %zu", n);
    pack_bytes(&p, "garbage", 7);
    fails(put_packed("garbage.zst", &p), TS_DATA_LOSS, "what follows is none (7 bytes)", place);
    pack_zstd(&p, "hello\n", 6, 3);
    pack_bytes(&p, "\n", 1);
    fails(put_packed("line.zst", &p), TS_DATA_LOSS, "what follows is none (1 bytes)", place);
    pack_zstd(&p, "hello\n", 6, 3);
    p.data[p.n - 1] ^= 1;
    fails(put_packed("sum.zst", &p), TS_DATA_LOSS, "checksum", "is damaged");
    pack_skipped(&p, 3, 100);
    pack_zstd(&p, "", 0, 3);
    fails(put_packed("none.zst", &p), TS_DATA_LOSS, "holds nothing", "zstd");
    /* A window of 2^31 bytes: frame header descriptor 0, window descriptor exponent 21. */
    pack_bytes(&p, "\x28\xb5\x2f\xfd\x00\xa8\x01\x00\x00", 9);
    fails(put_packed("long.zst", &p), TS_DATA_LOSS, "128 MiB of memory", "unzstd --long=31");
}

/* Thousands of short files: in memory, for a disk writes out what is cut and written anew. */
static const char *put_memory(const void *data, size_t n)
{
    static int fd = -1;
    static char path[32];
    if (fd < 0) fd = memfd_create("packed", MFD_CLOEXEC);
    assert_true(fd >= 0 && ftruncate(fd, 0) == 0 && pwrite(fd, data, n, 0) == (ssize_t)n);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return path;
}

/* A file cut at every length is an error, or ends where a stream does and gives that much. */
static void every_length(void **state)
{
    (void)state;
    char *text = some_text(3000);
    for (int zstd = 0; zstd < 2; zstd++) {
        packed p = {0};
        size_t ends[4] = {0}, wholes = 0;
        for (int i = 0; i < 3; i++) {
            if (zstd)
                pack_zstd(&p, text + 1000 * i, 1000, 3);
            else
                pack_gzip(&p, text + 1000 * i, 1000, 6, i == 1);
            ends[i + 1] = p.n;
        }
        for (size_t n = 1; n <= p.n; n++) {
            ts_error err;
            size_t m = 0;
            char *found = unpacked(put_memory(p.data, n), UINT64_MAX, &m, &err);
            size_t whole = 0;
            for (size_t i = 1; i < 4; i++)
                if (ends[i] == n) whole = i;
            assert_int_equal(found != NULL, whole > 0);
            if (found) assert_int_equal(m, 1000 * whole);
            if (found) assert_memory_equal(found, text, m);
            if (!found) assert_int_equal(err.code, TS_DATA_LOSS);
            if (!found && !strstr(err.msg, "byte")) fail_msg("%s", err.msg);
            wholes += whole > 0;
            free(found);
        }
        assert_int_equal(wholes, 3);
        free(p.data);
    }
    free(text);
}

/* No single bit that flips changes what comes out: it is found, or was of no consequence. */
static void every_bit(void **state)
{
    (void)state;
    char *text = some_text(400);
    for (int zstd = 0; zstd < 2; zstd++) {
        packed p = {0};
        size_t found_out = 0;
        for (int i = 0; i < 2; i++) {
            if (zstd)
                pack_zstd(&p, text + 200 * i, 200, 3);
            else
                pack_gzip(&p, text + 200 * i, 200, 6, i == 1);
        }
        for (size_t bit = 0; bit < 8 * p.n; bit++) {
            ts_error err;
            size_t m = 0;
            p.data[bit / 8] ^= (unsigned char)(1u << bit % 8);
            char *found = unpacked(put_memory(p.data, p.n), 1 << 20, &m, &err);
            if (found && (m != 400 || memcmp(found, text, 400)))
                fail_msg("bit %zu of %s changes what comes out", bit, zstd ? "zstd" : "gzip");
            found_out += !found;
            free(found);
            p.data[bit / 8] ^= (unsigned char)(1u << bit % 8);
        }
        assert_true(found_out > 8 * p.n / 2);
        print_message("%zu of %zu flips found\n", found_out, 8 * p.n);
        free(p.data);
    }
    free(text);
}

static void a_limit(void **state)
{
    (void)state;
    packed p = {0};
    char *text = some_text(100000);
    ts_error err;
    size_t m;
    pack_zstd(&p, text, 100000, 3);
    const char *path = put_packed("a.zst", &p);
    assert_null(unpacked(path, 99999, &m, &err));
    assert_int_equal(err.code, TS_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(err.msg, "more than 99999 bytes"));
    char *found = unpacked(path, 100000, &m, &err);
    assert_non_null(found);
    free(found);
    free(text);
}

/* ---- what fails beside it -------------------------------------------------------------------- */

static size_t names_in(const char *folder)
{
    char **names = NULL;
    size_t n = 0;
    assert_int_equal(ts_list_folder(folder, &names, &n, NULL), TS_OK);
    ts_names_free(names, n);
    return n;
}

static void full_disk(void **state)
{
    (void)state;
    packed p = {0};
    char *text = some_text(2500000);
    size_t before = open_files(), names;
    pack_zstd(&p, text, 2500000, 3);
    const char *path = put_packed("a.zst", &p);
    names = names_in(root);
    static const int errors[] = {ENOSPC, EDQUOT, EFBIG};
    for (size_t i = 0; i < 3; i++) {
        ts_file_fault(TS_FAULT_WRITE, 2, errors[i]);
        fails(path, TS_RESOURCE_EXHAUSTED, "data_cache_directory", cache());
        ts_file_fault(TS_FAULT_WRITE, 2, errors[i]);
        fails(path, TS_RESOURCE_EXHAUSTED, "bytes so far, after ", "unpacked it takes ");
    }
    ts_file_fault(0, 0, 0);
    assert_int_equal(names_in(root), names);
    assert_int_equal(open_files(), before);
    free(text);
}

/* Every call and every allocation fails once: an error, and nothing is left open or lying there. */
static void every_failure(void **state)
{
    (void)state;
    char *text = some_text(2500000);
    for (int zstd = 0; zstd < 2; zstd++) {
        packed p = {0};
        if (zstd)
            pack_zstd(&p, text, 2500000, 3);
        else
            pack_gzip(&p, text, 2500000, 6, false);
        const char *path = put_packed("a.packed", &p);
        size_t before = open_files(), names = names_in(root), failures = 0;
        for (int kind = 0; kind < 3; kind++) {
            bool done = false;
            for (uint64_t nth = 1; !done; nth++) {
                ts_file *f = NULL;
                ts_error err = {0};
                if (kind == 0) ts_file_fault(TS_FAULT_ANY & ~TS_FAULT_CLOSE, nth, EIO);
                if (kind == 1) ts_file_fault(TS_FAULT_WRITE, nth, 0); /* short: gone on with */
                if (kind == 2) ts_alloc_fail_at(nth);
                ts_status status = ts__data_file_open(path, "text", root, &f, &err);
                ts_file_fault(0, 0, 0);
                ts_alloc_fail_at(0);
                done = status == TS_OK && (kind != 1 || nth > 40);
                assert_int_equal(status, err.code);
                failures += status != TS_OK;
                if (status == TS_OK) assert_int_equal(ts_file_size(f), 2500000);
                char *found = malloc(2500000);
                if (status == TS_OK)
                    assert_int_equal(ts_file_read_at(f, 0, found, 2500000, NULL), TS_OK);
                if (status == TS_OK) assert_memory_equal(found, text, 2500000);
                free(found);
                ts__data_file_close(f);
                assert_int_equal(open_files(), before);
            }
        }
        assert_true(failures > 8);
        assert_int_equal(names_in(root), names);
    }
    free(text);
}

/* A file system without O_TMPFILE, as FUSE and old NFS: a name for a moment. */
static void without_unnamed_files(void **state)
{
    (void)state;
    static const int says[] = {EOPNOTSUPP, EISDIR};
    for (size_t i = 0; i < 2; i++) {
        ts_spool *s;
        ts_error err = {0};
        char text[6];
        size_t names = names_in(root);
        ts_file_fault(TS_FAULT_OPEN, 1, says[i]);
        assert_int_equal(ts_spool_open(root, "shown", &s, &err), TS_OK);
        assert_int_equal(names_in(root), names);
        assert_int_equal(ts_spool_write(s, "hello", 5, &err), TS_OK);
        assert_int_equal(ts_spool_size(s), 5);
        ts_file *f = ts_spool_finish(s);
        assert_int_equal(ts_file_read_at(f, 0, text, 5, &err), TS_OK);
        assert_memory_equal(text, "hello", 5);
        assert_int_equal(ts_file_read_at(f, 1, text, 5, &err), TS_DATA_LOSS);
        assert_non_null(strstr(err.msg, "shown"));
        ts_file_close(f);
    }
    ts_spool *s = NULL;
    ts_error err = {0};
    assert_int_equal(ts_spool_open("/nowhere", "shown", &s, &err), TS_NOT_FOUND);
    assert_null(s);
    assert_non_null(strstr(err.msg, "/nowhere: cannot make a file in it: does not exist"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_stream),    cmocka_unit_test(many_streams),
        cmocka_unit_test(output_that_waits),
        cmocka_unit_test(memory_is_bounded), cmocka_unit_test(what_is_wrong),
        cmocka_unit_test(every_length),  cmocka_unit_test(every_bit),
        cmocka_unit_test(a_limit),       cmocka_unit_test(full_disk),
        cmocka_unit_test(every_failure), cmocka_unit_test(without_unnamed_files),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
