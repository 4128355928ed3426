/* test_prefetch.c – batches read ahead are those of ts_loader_next, whatever the threads, the depth, the kind of data,
 * the jumps between positions and the reads that fail; nothing is slow to stop, and several slow reads are waited for
 * at once.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>

#include "data/prefetch.h"
#include "data_help.h"
#include "slow.h"

enum { SEQUENCE = 24, ROWS = 5, MOST_BATCHES = 512, FAST_THREADS = 9, FAST_BATCHES = 5 };

/* ---- kinds of data ---------------------------------------------------------------------------- */

typedef struct kind {
    const char *name;
    ts_data_type type;
    ts_packing packing;
    int sources; /* 0: paths without a name */
    bool in_order;
    int64_t epochs, segments;
} kind;

static const kind kinds[] = {
    {"text", TS_DATA_TEXT, TS_PACK_NONE, 0, false, 2, -1},
    {"text in order", TS_DATA_TEXT, TS_PACK_NONE, 0, true, 1, -1},
    {"text of three sources", TS_DATA_TEXT, TS_PACK_NONE, 3, false, 2, -1},
    {"tokens", TS_DATA_TOKENS, TS_PACK_NONE, 0, false, 2, -1},
    {"tokens of two sources", TS_DATA_TOKENS, TS_PACK_NONE, 2, true, 1, -1},
    {"jsonl", TS_DATA_JSONL, TS_PACK_NONE, 0, false, 2, -1},
    {"jsonl first-fit", TS_DATA_JSONL, TS_PACK_FIRST_FIT, 0, false, 3, -1},
    {"jsonl first-fit, two a row", TS_DATA_JSONL, TS_PACK_FIRST_FIT, 0, false, 2, 2},
    {"jsonl concat", TS_DATA_JSONL, TS_PACK_CONCAT, 0, false, 2, -1},
    {"jsonl first-fit of three sources", TS_DATA_JSONL, TS_PACK_FIRST_FIT, 3, false, 2, -1},
    {"jsonl concat of two sources", TS_DATA_JSONL, TS_PACK_CONCAT, 2, true, 0, -1},
    {"jsonl concat of one small source", TS_DATA_JSONL, TS_PACK_CONCAT, 1, false, 3, -1},
    {"synthetic", TS_DATA_SYNTHETIC, TS_PACK_NONE, 0, false, 0, -1},
};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

static const char *keep(const char *path)
{
    static char kept[16][256];
    static int n;
    char *to = kept[n++ % 16];
    snprintf(to, sizeof kept[0], "%s", path);
    return to;
}

static const char *put_ids(const char *name, size_t n)
{
    uint32_t ids[9000];
    for (size_t i = 0; i < n; i++) ids[i] = (uint32_t)((i * i / 5 + i) % 250);
    return put_tokens(name, 20240520, 1, (int32_t)n, ids, n);
}

/* Three files of each kind, of different lengths. */
static const char *file_of(ts_data_type type, int i)
{
    static const char *path[4][3];
    const char **p = &path[type][i];
    char name[32];
    if (*p) return *p;
    snprintf(name, sizeof name, "file-%d-%d", (int)type, i);
    if (type == TS_DATA_TEXT) *p = keep(put_counted(name, 3000 + 1900 * (size_t)i));
    if (type == TS_DATA_TOKENS) *p = keep(put_ids(name, 3000 + 2500 * (size_t)i));
    if (type == TS_DATA_JSONL) *p = keep(put_rows(name, 150 + 110 * i, i));
    return *p;
}

static ts_loader *open_kind(const kind *k)
{
    static const char *const names[] = {"one", "two", "three"};
    const char *paths[] = {file_of(k->type, 0), file_of(k->type, 1), file_of(k->type, 2)};
    ts_loader_source sources[3];
    ts_loader_options o =
        options(k->type, paths, k->type == TS_DATA_SYNTHETIC ? 0 : 3, ROWS, SEQUENCE);
    for (int i = 0; i < k->sources; i++)
        sources[i] = (ts_loader_source){names[i], 1 + 0.7 * i, &paths[i], 1};
    if (k->sources) {
        o.sources = sources;
        o.n_sources = (size_t)k->sources;
        o.paths = NULL;
        o.n_paths = 0;
    }
    o.packing = k->packing;
    o.shuffle = !k->in_order;
    o.epochs = k->epochs;
    o.max_segments = k->segments;
    return open_ok(&o);
}

static ts_prefetch *start(ts_loader *l, int batches, int threads)
{
    ts_prefetch *p = NULL;
    ts_error err = {0};
    ts_status status = ts_prefetch_open(l, batches, threads, &p, &err);
    if (status != TS_OK) print_message("%s\n", err.msg);
    assert_int_equal(status, TS_OK);
    return p;
}

/* ---- what is expected ------------------------------------------------------------------------- */

static uint64_t hash_of(const ts_batch *b)
{
    uint64_t h = 1;
    for (size_t i = 0; i < ROWS * SEQUENCE; i++) {
        h = ts_mix64(h + (uint32_t)b->tokens[i]) ^ (uint32_t)b->labels[i];
        h = ts_mix64(h + (uint32_t)b->segments[i]) ^ (uint32_t)b->positions[i];
    }
    for (size_t i = 0; i < ROWS; i++)
        h = ts_mix64(h + (uint64_t)b->row_ids[i]) ^ (uint32_t)b->sources[i];
    return ts_mix64(h + (uint64_t)b->trained_tokens) ^ (uint64_t)b->padding;
}

/* All batches of a kind as ts_loader_next gives them, and the position behind each. */
typedef struct expected {
    int n;
    bool ends;
    int ended_by;
    uint64_t hash[MOST_BATCHES], order[MOST_BATCHES];
    ts_loader_state *behind[MOST_BATCHES + 1]; /* [0]: before the first */
} expected;

static expected *expect_of(const kind *k, int most, bool states)
{
    expected *e = calloc(1, sizeof *e);
    ts_loader *l = open_kind(k);
    full_batch f = batch_new(ROWS, SEQUENCE);
    ts_loader_state *now;
    assert_int_equal(ts_loader_state_new(l, &now, NULL), TS_OK);
    while (e->n < most) {
        if (states) {
            assert_int_equal(ts_loader_state_new(l, &e->behind[e->n], NULL), TS_OK);
            ts_loader_get_state(l, e->behind[e->n]);
        }
        if (!next(l, &f)) {
            e->ends = true;
            break;
        }
        check_laws(&f, 259);
        e->hash[e->n] = hash_of(&f.b);
        ts_loader_get_state(l, now);
        e->order[e->n++] = ts_loader_state_order_hash(now);
    }
    e->ended_by = ts_loader_ended_by(l);
    ts_loader_state_free(now);
    batch_free(&f);
    ts_loader_free(l);
    return e;
}

static void expected_free(expected *e)
{
    for (int i = 0; i <= MOST_BATCHES; i++) ts_loader_state_free(e->behind[i]);
    free(e);
}

/* The next batch is number i of those expected, or the end where there is none. */
static void takes(ts_prefetch *p, const expected *e, int i)
{
    const ts_batch *b;
    ts_error err = {0};
    double waited = -1;
    ts_status status = ts_prefetch_next(p, &b, &waited, &err);
    if (status != TS_OK && status != TS_OUT_OF_RANGE) print_message("%s\n", err.msg);
    assert_true(waited >= 0);
    if (i >= e->n) {
        assert_int_equal(status, TS_OUT_OF_RANGE);
        assert_int_equal(err.code, TS_OK);
        assert_int_equal(ts_loader_ended_by(ts_prefetch_loader(p)), e->ended_by);
        return;
    }
    assert_int_equal(status, TS_OK);
    assert_int_equal(hash_of(b), e->hash[i]);
    assert_int_equal(ts_prefetch_order_hash(p), e->order[i]);
}

static void takes_rest(ts_prefetch *p, const expected *e, int i)
{
    for (; i < e->n + (e->ends ? 3 : 0); i++) takes(p, e, i);
}

static bool same_state(const ts_loader_state *a, const ts_loader_state *b)
{
    json_t *x, *y;
    assert_int_equal(ts_loader_state_to_json(a, &x, NULL), TS_OK);
    assert_int_equal(ts_loader_state_to_json(b, &y, NULL), TS_OK);
    bool same = json_equal(x, y);
    json_decref(x);
    json_decref(y);
    return same;
}

/* ---- equal to ts_loader_next ------------------------------------------------------------------ */

static void every_kind_threads_and_depth(void **state)
{
    (void)state;
    for (int k = 0; k < N_KINDS; k++) {
        expected *e = expect_of(&kinds[k], 400, false);
        print_message("%s: %d batches%s\n", kinds[k].name, e->n, e->ends ? "" : ", no end");
        assert_int_equal(e->ends, kinds[k].epochs > 0);
        assert_true(e->n > 20);
        for (int threads = 1; threads <= FAST_THREADS; threads += test_is_slow() ? 4 : 1) {
            for (int batches = 0; batches <= FAST_BATCHES; batches += test_is_slow() ? 2 : 1) {
                ts_loader *l = open_kind(&kinds[k]);
                ts_prefetch *p = start(l, batches, threads);
                takes_rest(p, e, 0);
                ts_prefetch_close(p);
                ts_loader_free(l);
            }
        }
        expected_free(e);
    }
}

/* A batch is the caller's until the next call, however much is read meanwhile. */
static void a_batch_stays(void **state)
{
    (void)state;
    ts_loader *l = open_kind(&kinds[0]);
    ts_prefetch *p = start(l, 3, 4);
    for (int i = 0; i < 20; i++) {
        const ts_batch *b;
        assert_int_equal(ts_prefetch_next(p, &b, NULL, NULL), TS_OK);
        uint64_t h = hash_of(b);
        usleep(2000);
        assert_int_equal(hash_of(b), h);
    }
    ts_prefetch_close(p);
    ts_loader_free(l);
}

static void the_loader_comes_back_where_it_was_taken(void **state)
{
    (void)state;
    for (int k = 0; k < N_KINDS; k++) {
        expected *e = expect_of(&kinds[k], 60, false);
        ts_loader *l = open_kind(&kinds[k]);
        int at = 0;
        for (int round = 0; round < 5; round++) {
            ts_prefetch *p = start(l, round, 3);
            for (int i = 0; i < 3; i++) takes(p, e, at++);
            ts_prefetch_close(p);
        }
        ts_loader_free(l);
        expected_free(e);
    }
}

/* ---- positions -------------------------------------------------------------------------------- */

static void positions_follow_the_batches_taken(void **state)
{
    (void)state;
    for (int k = 0; k < N_KINDS; k++) {
        expected *e = expect_of(&kinds[k], 40, true);
        ts_loader *l = open_kind(&kinds[k]), *other = open_kind(&kinds[k]);
        ts_loader_state *now;
        assert_int_equal(ts_loader_state_new(l, &now, NULL), TS_OK);
        ts_prefetch *p = start(l, 4, 5), *q = start(other, 3, 2);
        for (int i = 0; i < e->n; i++) {
            ts_prefetch_get_state(p, now);
            assert_true(same_state(now, e->behind[i]));
            assert_int_equal(ts_prefetch_set_state(q, now, NULL), TS_OK);
            for (int more = 0; more < 3 && i + more < e->n; more++) takes(q, e, i + more);
            takes(p, e, i);
        }
        ts_prefetch_close(p);
        ts_prefetch_close(q);
        ts_loader_state_free(now);
        ts_loader_free(l);
        ts_loader_free(other);
        expected_free(e);
    }
}

static void jumps_back_and_forth(void **state)
{
    (void)state;
    uint64_t draw = 7;
    for (int k = 0; k < N_KINDS; k++) {
        expected *e = expect_of(&kinds[k], 60, true);
        ts_loader *l = open_kind(&kinds[k]);
        ts_prefetch *p = start(l, 3, 6);
        for (int jump = 0; jump < (test_is_slow() ? 15 : 100); jump++) {
            draw = ts_mix64(draw + (uint64_t)jump);
            int to = (int)(draw % (uint64_t)e->n), n = (int)(draw >> 32) % 5;
            assert_int_equal(ts_prefetch_set_state(p, e->behind[to], NULL), TS_OK);
            for (int i = 0; i < n && to + i < e->n; i++) takes(p, e, to + i);
        }
        assert_int_equal(ts_prefetch_set_state(p, e->behind[e->n - 2], NULL), TS_OK);
        takes_rest(p, e, e->n - 2);
        assert_int_equal(ts_prefetch_set_state(p, e->behind[0], NULL), TS_OK);
        takes_rest(p, e, 0);
        ts_prefetch_close(p);
        ts_loader_free(l);
        expected_free(e);
    }
}

/* The position of other data is refused, and the batches go on as if nobody had asked. */
static void a_refused_position_changes_nothing(void **state)
{
    (void)state;
    expected *e = expect_of(&kinds[0], 60, false), *o = expect_of(&kinds[3], 5, true);
    for (int batches = 0; batches <= 4; batches += 2) {
        ts_loader *l = open_kind(&kinds[0]);
        ts_prefetch *p = start(l, batches, 4);
        for (int i = 0; i < 30; i++) {
            ts_error err = {0};
            takes(p, e, i);
            if (i % 7) continue;
            assert_int_equal(ts_prefetch_set_state(p, o->behind[3], &err), TS_FAILED_PRECONDITION);
            assert_true(strlen(err.msg) > 20);
        }
        ts_prefetch_close(p);
        ts_loader_free(l);
    }
    expected_free(e);
    expected_free(o);
}

/* ---- reads that fail or are slow --------------------------------------------------------------- */

/* What reads meet: those of bytes [from, to) fail after a while; all take delay_us, some of them more. */
static struct {
    uint64_t from, to;
    _Atomic int delay_us, fails, reads, jitter;
} disk;

static void pause_us(int us)
{
    struct timespec t = {us / 1000000, (long)(us % 1000000) * 1000};
    if (us > 0) nanosleep(&t, NULL);
}

static int on_read(void *context, const ts_file_call *c)
{
    (void)context;
    if (c->done || c->op != TS_FAULT_READ) return 0;
    int n = atomic_fetch_add(&disk.reads, 1);
    int more = atomic_load(&disk.jitter);
    pause_us(atomic_load(&disk.delay_us) + (more ? (int)(ts_mix64((uint64_t)n) % (uint64_t)more) : 0));
    bool hit = c->offset < disk.to && c->offset + c->n > disk.from;
    return hit && atomic_load(&disk.fails) ? EIO : 0;
}

static void disk_is(int delay_us, int jitter, bool fails, uint64_t from, uint64_t to)
{
    disk.from = from;
    disk.to = to;
    atomic_store(&disk.delay_us, delay_us);
    atomic_store(&disk.jitter, jitter);
    atomic_store(&disk.fails, fails);
    atomic_store(&disk.reads, 0);
    ts_file_observe(on_read, NULL);
}

/* The order in which reads end has no say. */
static void threads_in_any_order(void **state)
{
    (void)state;
    for (int k = 0; k < N_KINDS; k++) {
        expected *e = expect_of(&kinds[k], 40, false);
        for (int round = 0; round < 2; round++) {
            ts_loader *l = open_kind(&kinds[k]);
            disk_is(0, 400, false, 0, 0);
            ts_prefetch *p = start(l, 2 + round, 8 - round);
            for (int i = 0; i < e->n; i++) takes(p, e, i);
            ts_prefetch_close(p);
            ts_file_observe(NULL, NULL);
            ts_loader_free(l);
        }
        expected_free(e);
    }
}

/* With ts_loader_next: batches before the first read that fails, and what it says. */
static int batches_before_failure(const kind *k, ts_error *err)
{
    ts_loader *l = open_kind(k);
    full_batch f = batch_new(ROWS, SEQUENCE);
    int n = 0;
    ts_status status;
    atomic_store(&disk.fails, 1);
    while ((status = ts_loader_next(l, &f.b, err)) == TS_OK) n++;
    atomic_store(&disk.fails, 0);
    assert_int_not_equal(status, TS_OUT_OF_RANGE);
    batch_free(&f);
    ts_loader_free(l);
    return n;
}

static void fails_at(const kind *k, const expected *e, int threads, int batches, int good,
                     const ts_error *why)
{
    ts_loader *l = open_kind(k);
    ts_loader_state *now;
    assert_int_equal(ts_loader_state_new(l, &now, NULL), TS_OK);
    atomic_store(&disk.fails, 1);
    ts_prefetch *p = start(l, batches, threads);
    for (int i = 0; i < good; i++) takes(p, e, i);
    for (int again = 0; again < 3; again++) {
        const ts_batch *b;
        ts_error err = {0};
        assert_int_equal(ts_prefetch_next(p, &b, NULL, &err), why->code);
        assert_string_equal(err.msg, why->msg);
        ts_prefetch_get_state(p, now);
        assert_int_equal(ts_loader_state_rows(now), ts_loader_state_rows(e->behind[good]));
    }
    /* To the end of the good part once more; and on, where the disk was mended. */
    assert_int_equal(ts_prefetch_set_state(p, e->behind[good / 2], NULL), TS_OK);
    for (int i = good / 2; i < good; i++) takes(p, e, i);
    assert_int_equal(ts_prefetch_next(p, &(const ts_batch *){0}, NULL, NULL), why->code);
    atomic_store(&disk.fails, 0);
    for (int i = good; i < e->n; i++) takes(p, e, i);
    ts_prefetch_close(p);
    ts_loader_state_free(now);
    ts_loader_free(l);
}

static void an_error_comes_at_its_batch(void **state)
{
    (void)state;
    for (int k = 0; k < N_KINDS; k++) {
        if (kinds[k].type == TS_DATA_SYNTHETIC) continue;
        expected *e = expect_of(&kinds[k], 60, true);
        int failures = 0;
        for (uint64_t at = 1500; at <= 3900; at += 1200) {
            ts_error why = {0};
            disk_is(0, 0, false, at, at + 40);
            int good = batches_before_failure(&kinds[k], &why);
            if (good >= e->n) continue;
            for (int i = 0; i < 4; i++) {
                atomic_store(&disk.jitter, i > 1 ? 60 : 0);
                fails_at(&kinds[k], e, 1 + 3 * i, i ? 2 * i - 1 : 0, good, &why);
            }
            failures++;
        }
        ts_file_observe(NULL, NULL);
        assert_true(failures > 0);
        expected_free(e);
    }
}

/* A read that fails after its batch was dropped is nobody's error. */
static void a_failure_of_what_was_dropped(void **state)
{
    (void)state;
    expected *e = expect_of(&kinds[0], 60, true);
    for (int round = 0; round < 30; round++) {
        ts_loader *l = open_kind(&kinds[0]);
        disk_is(3000, 0, true, 0, UINT64_MAX);
        ts_prefetch *p = start(l, 5, 8);
        pause_us(round * 200);
        atomic_store(&disk.delay_us, 0);
        assert_int_equal(ts_prefetch_set_state(p, e->behind[4], NULL), TS_OK);
        atomic_store(&disk.fails, 0);
        /* What was read since may have failed, and is read again. */
        const ts_batch *b;
        ts_status status = ts_prefetch_next(p, &b, NULL, NULL);
        assert_int_equal(ts_prefetch_set_state(p, e->behind[4], NULL), TS_OK);
        assert_true(status == TS_OK || status == TS_UNKNOWN || status == TS_DATA_LOSS ||
                    status == TS_INTERNAL || status == TS_UNAVAILABLE);
        for (int i = 4; i < 30; i++) takes(p, e, i);
        ts_prefetch_close(p);
        ts_file_observe(NULL, NULL);
        ts_loader_free(l);
    }
    expected_free(e);
}

static void a_file_that_is_cut_while_it_is_read(void **state)
{
    (void)state;
    const char *path = keep(put_counted("cut", 9000));
    ts_loader_options o = options(TS_DATA_TEXT, &path, 1, ROWS, SEQUENCE);
    o.shuffle = false;
    ts_loader *alone = open_ok(&o), *l[3] = {open_ok(&o), open_ok(&o), open_ok(&o)};
    full_batch f = batch_new(ROWS, SEQUENCE);
    uint64_t hash[200];
    ts_error why = {0};
    int n = 0;
    assert_int_equal(truncate(path, 4000), 0);
    while (ts_loader_next(alone, &f.b, &why) == TS_OK) hash[n++] = hash_of(&f.b);
    assert_int_equal(why.code, TS_DATA_LOSS);
    assert_in_range(n, 20, 60);
    for (int i = 0; i < 3; i++) {
        ts_prefetch *p = start(l[i], 1 + 2 * i, 2 + 3 * i);
        const ts_batch *b;
        for (int j = 0; j < n; j++) {
            assert_int_equal(ts_prefetch_next(p, &b, NULL, NULL), TS_OK);
            assert_int_equal(hash_of(b), hash[j]);
        }
        for (int j = 0; j < 2; j++) {
            ts_error err = {0};
            assert_int_equal(ts_prefetch_next(p, &b, NULL, &err), TS_DATA_LOSS);
            assert_string_equal(err.msg, why.msg);
        }
        ts_prefetch_close(p);
        ts_loader_free(l[i]);
    }
    batch_free(&f);
    ts_loader_free(alone);
}

static void slow_reads_are_waited_for_together(void **state)
{
    (void)state;
    double seconds[2];
    for (int ahead = 0; ahead < 2; ahead++) {
        ts_loader *l = open_kind(&kinds[0]);
        disk_is(5000, 0, false, 0, 0);
        double begin = ts_clock_seconds();
        ts_prefetch *p = start(l, ahead ? 4 : 0, 8);
        for (int i = 0; i < 20; i++) {
            const ts_batch *b;
            assert_int_equal(ts_prefetch_next(p, &b, NULL, NULL), TS_OK);
        }
        seconds[ahead] = ts_clock_seconds() - begin;
        ts_prefetch_close(p);
        ts_file_observe(NULL, NULL);
        ts_loader_free(l);
    }
    print_message("20 batches of reads that take 5 ms: %.3f s one by one, %.3f s with 8 threads\n",
                  seconds[0], seconds[1]);
    assert_true(seconds[1] < seconds[0] / 2);
}

/* What the caller computes meanwhile hides the reads. */
static void the_wait_is_what_was_waited(void **state)
{
    (void)state;
    ts_loader *l = open_kind(&kinds[0]);
    const ts_batch *b;
    double first, waited, sum = 0;
    disk_is(20000, 0, false, 0, 0);
    ts_prefetch *p = start(l, 2, 8);
    assert_int_equal(ts_prefetch_next(p, &b, &first, NULL), TS_OK);
    for (int i = 0; i < 4; i++) {
        pause_us(200000);
        assert_int_equal(ts_prefetch_next(p, &b, &waited, NULL), TS_OK);
        sum += waited;
    }
    print_message("waited %.3f s for the first, %.6f s for four others\n", first, sum);
    assert_true(first > 0.01);
    assert_true(sum < 0.2);
    ts_prefetch_close(p);
    ts_file_observe(NULL, NULL);
    ts_loader_free(l);
}

/* ---- open and close --------------------------------------------------------------------------- */

static void opened_and_closed_a_thousand_times(void **state)
{
    (void)state;
    int cycles = test_is_slow() ? 100 : 1000;
    ts_loader *l = open_kind(&kinds[9]);
    double begin = ts_clock_seconds();
    for (int i = 0; i < cycles; i++) {
        ts_prefetch *p = start(l, 1 + i % 5, 1 + i % 9);
        const ts_batch *b;
        if (i % 3 == 0) assert_int_equal(ts_prefetch_next(p, &b, NULL, NULL), TS_OK);
        ts_prefetch_close(p);
        if (i % 50 == 0) ts_loader_rewind(l);
    }
    double seconds = ts_clock_seconds() - begin;
    print_message("%d times in %.3f s\n", cycles, seconds);
    assert_true(seconds < 20);
    ts_loader_free(l);
    ts_prefetch_close(NULL);
}

/* 1,000 batches are asked for, whose reads would take half a minute. */
static void close_waits_for_no_more_than_a_read(void **state)
{
    (void)state;
    ts_loader *l = open_kind(&kinds[0]);
    disk_is(50000, 0, false, 0, 0);
    ts_prefetch *p = start(l, 1000, 8);
    pause_us(20000);
    double begin = ts_clock_seconds();
    ts_prefetch_close(p);
    assert_true(ts_clock_seconds() - begin < 2);
    ts_file_observe(NULL, NULL);
    ts_loader_free(l);
}

static void no_allocation_while_batches_are_taken(void **state)
{
    (void)state;
    for (int k = 0; k < N_KINDS; k++) {
        if (kinds[k].type == TS_DATA_JSONL) continue;
        ts_loader *l = open_kind(&kinds[k]);
        ts_loader_state *now;
        assert_int_equal(ts_loader_state_new(l, &now, NULL), TS_OK);
        ts_prefetch *p = start(l, 3, 4);
        uint64_t before = ts_alloc_count();
        for (int i = 0; i < 20; i++) {
            const ts_batch *b;
            assert_int_equal(ts_prefetch_next(p, &b, NULL, NULL), TS_OK);
            ts_prefetch_get_state(p, now);
        }
        assert_int_equal(ts_alloc_count(), before);
        ts_prefetch_close(p);
        ts_loader_state_free(now);
        ts_loader_free(l);
    }
}

static void memory_that_runs_out_at_open(void **state)
{
    (void)state;
    ts_loader *l = open_kind(&kinds[0]);
    int failed = 0;
    for (uint64_t nth = 1;; nth++) {
        ts_prefetch *p = NULL;
        ts_error err = {0};
        ts_alloc_fail_at(nth);
        ts_status status = ts_prefetch_open(l, 2, 3, &p, &err);
        ts_alloc_fail_at(0);
        if (status == TS_OK) {
            ts_prefetch_close(p);
            break;
        }
        assert_int_equal(status, TS_RESOURCE_EXHAUSTED);
        assert_null(p);
        failed++;
    }
    assert_true(failed > 20);
    ts_loader_free(l);
}

static volatile sig_atomic_t caught, caught_elsewhere;
static pthread_t main_thread;
static void on_signal(int number)
{
    (void)number;
    caught++;
    if (!pthread_equal(pthread_self(), main_thread)) caught_elsewhere = 1;
}

/* A signal that the caller holds back for a moment waits for it; no reading thread takes it meanwhile. */
static void signals_go_to_the_caller(void **state)
{
    (void)state;
    ts_loader *l = open_kind(&kinds[0]);
    struct sigaction now = {.sa_handler = on_signal}, before;
    sigset_t one, mask;
    main_thread = pthread_self();
    assert_int_equal(sigaction(SIGUSR1, &now, &before), 0);
    ts_prefetch *p = start(l, 5, 8);
    sigemptyset(&one);
    sigaddset(&one, SIGUSR1);
    for (int i = 0; i < 20; i++) {
        const ts_batch *b;
        assert_int_equal(pthread_sigmask(SIG_BLOCK, &one, &mask), 0);
        assert_int_equal(kill(getpid(), SIGUSR1), 0);
        assert_int_equal(ts_prefetch_next(p, &b, NULL, NULL), TS_OK);
        pause_us(500);
        assert_int_equal(caught, i);
        assert_int_equal(pthread_sigmask(SIG_SETMASK, &mask, NULL), 0);
        assert_int_equal(caught, i + 1);
    }
    ts_prefetch_close(p);
    assert_int_equal(sigaction(SIGUSR1, &before, NULL), 0);
    assert_false(caught_elsewhere);
    ts_loader_free(l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_threads_and_depth),
        cmocka_unit_test(a_batch_stays),
        cmocka_unit_test(the_loader_comes_back_where_it_was_taken),
        cmocka_unit_test(positions_follow_the_batches_taken),
        cmocka_unit_test(jumps_back_and_forth),
        cmocka_unit_test(a_refused_position_changes_nothing),
        cmocka_unit_test(threads_in_any_order),
        cmocka_unit_test(an_error_comes_at_its_batch),
        cmocka_unit_test(a_failure_of_what_was_dropped),
        cmocka_unit_test(a_file_that_is_cut_while_it_is_read),
        cmocka_unit_test(slow_reads_are_waited_for_together),
        cmocka_unit_test(the_wait_is_what_was_waited),
        cmocka_unit_test(opened_and_closed_a_thousand_times),
        cmocka_unit_test(close_waits_for_no_more_than_a_read),
        cmocka_unit_test(no_allocation_while_batches_are_taken),
        cmocka_unit_test(memory_that_runs_out_at_open),
        cmocka_unit_test(signals_go_to_the_caller),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
