/* data/prefetch.c – rows made ahead by threads, batches counted in order by the one who takes them.
 *
 * Batches are numbered from 0 since the last restart; batch n lies in slot n modulo the slots, one
 * more than are read ahead, since the caller holds one. Every reader has a queue of the rows that it
 * was planned to make, oldest first, and a reader with something to do and nobody at it stands among
 * the ready ones, from which threads take the next: so a reader's rows are made in order and by one
 * thread at a time, and which thread that is changes nothing.
 *
 * The caller plans and counts. The loader's own position is therefore always behind the batches that
 * were taken; to start again is to wait until no thread is in a reader, and to take plan and readers
 * back there. Threads touch readers and the row they make, everything else under the lock.
 *
 * Not here: what a row holds, whose turn it is (mix.c), how files are read.
 */
#include "data/prefetch.h"

#include <pthread.h>

#include "base/thread.h"
#include "data/reader.h"

enum { NONE = -1 };

/* Rows of all slots are numbered: slot · rows + row of its batch. */
typedef struct slot {
    ts_batch batch;
    ts__row *row;         /* [rows], which point into batch */
    ts__reader **reader;  /* [rows] that make them */
    int64_t left;         /* rows that are not made yet */
    int64_t failed;       /* the first row that failed; NONE */
    ts_error error;       /* of that row */
} slot;

/* The queue of a reader. */
typedef struct lane {
    int64_t first, last; /* rows, linked by next; NONE: it is empty */
    bool busy;           /* a thread makes a row of it */
    bool failed;         /* a row failed: those behind it are not made */
} lane;

struct ts_prefetch {
    ts_loader *loader;
    int64_t rows, sequence, n_slots;
    slot *slots;
    int64_t planned, taken; /* batches since the last restart: planned ≤ taken + n_slots */
    bool failed;            /* the batch asked for last */
    /* All rows, slots and lanes are below the lock while threads run. */
    int64_t *next; /* [n_slots · rows] the row of the same reader behind each */
    lane *lanes;   /* [n_lanes], TS_MAX_READERS a source: a position says how many it has */
    int *ready;    /* [n_lanes], a ring; each lane is in it once at most */
    int n_lanes, first_ready, n_ready, n_busy;
    bool stopping;
    pthread_mutex_t lock;
    pthread_cond_t work, done; /* something is ready; a batch is made, or the last busy thread left */
    pthread_t *threads;
    int n_threads;
};

/* ---- queues, under the lock ------------------------------------------------------------------- */

static lane *lane_of(ts_prefetch *p, const ts__reader *r)
{
    return &p->lanes[r->source->index * TS_MAX_READERS + (int)r->index];
}

static void make_ready(ts_prefetch *p, const lane *of)
{
    TS_ASSERT(p->n_ready < p->n_lanes);
    p->ready[(p->first_ready + p->n_ready++) % p->n_lanes] = (int)(of - p->lanes);
    pthread_cond_signal(&p->work);
}

static void append(ts_prefetch *p, const ts__reader *r, int64_t row)
{
    lane *to = lane_of(p, r);
    p->next[row] = NONE;
    if (to->first != NONE) {
        p->next[to->last] = row;
        to->last = row;
        return;
    }
    to->first = to->last = row;
    if (!to->busy) make_ready(p, to);
}

/* Nothing is planned, nothing is ready; only threads that are in a reader still are. */
static void drop_queues(ts_prefetch *p)
{
    for (int i = 0; i < p->n_lanes; i++) p->lanes[i].first = NONE;
    p->first_ready = p->n_ready = 0;
}

/* ---- threads ---------------------------------------------------------------------------------- */

/* Makes one row of the reader that has waited longest. Enters and leaves with the lock held. */
static void make_row(ts_prefetch *p)
{
    lane *from = &p->lanes[p->ready[p->first_ready]];
    p->first_ready = (p->first_ready + 1) % p->n_lanes;
    p->n_ready--;
    int64_t number = from->first, i = number % p->rows;
    slot *s = &p->slots[number / p->rows];
    bool skip = from->failed;
    ts_status status = TS_OK;
    ts_error why = {0};
    from->first = p->next[number];
    from->busy = true;
    p->n_busy++;
    pthread_mutex_unlock(&p->lock);
    if (!skip) {
        ts__row_clear(p->loader, &s->row[i]);
        status = ts__reader_next(p->loader, s->reader[i], &s->row[i], &why);
    }
    pthread_mutex_lock(&p->lock);
    from->busy = false;
    if (status != TS_OK) {
        from->failed = true; /* a batch behind this one is never handed out */
        if (s->failed == NONE || i < s->failed) {
            s->failed = i;
            s->error = why;
            s->error.code = status;
        }
    }
    if (from->first != NONE) make_ready(p, from);
    s->left--;
    p->n_busy--;
    if (s->left == 0 || p->n_busy == 0) pthread_cond_signal(&p->done);
}

static void *read_rows(void *context)
{
    ts_prefetch *p = context;
    pthread_mutex_lock(&p->lock);
    while (!p->stopping) {
        if (p->n_ready > 0)
            make_row(p);
        else
            pthread_cond_wait(&p->work, &p->lock);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* Fewer threads than asked for are enough. */
static ts_status start_threads(ts_prefetch *p, int threads, ts_error *err)
{
    int failure = 0;
    while (p->n_threads < threads && !failure) {
        failure = ts_thread_start(&p->threads[p->n_threads], read_rows, p);
        if (!failure) p->n_threads++;
    }
    if (p->n_threads > 0) return TS_OK;
    return TS_ERROR(err, TS_RESOURCE_EXHAUSTED,
                    "no thread to read data ahead could be started: %s; set "
                    "data_prefetch_batches=0, or allow this user more threads",
                    strerror(failure));
}

/* ---- planning and starting again, the caller's thread ----------------------------------------- */

/* Plans batches until `until` are. A slot that is planned anew has been given up by the caller. */
static void plan(ts_prefetch *p, int64_t until)
{
    for (; p->planned < until; p->planned++) {
        int64_t at = p->planned % p->n_slots;
        slot *s = &p->slots[at];
        ts__loader_plan(p->loader, s->reader, s->batch.sources);
        pthread_mutex_lock(&p->lock);
        s->left = p->rows;
        s->failed = NONE;
        for (int64_t i = 0; i < p->rows; i++) append(p, s->reader[i], at * p->rows + i);
        pthread_mutex_unlock(&p->lock);
    }
}

/* Drops what was planned and read, and waits until no thread is in a reader. */
static void halt(ts_prefetch *p)
{
    if (p->n_threads == 0) return;
    pthread_mutex_lock(&p->lock);
    drop_queues(p);
    while (p->n_busy > 0) pthread_cond_wait(&p->done, &p->lock);
    for (int i = 0; i < p->n_lanes; i++) p->lanes[i].failed = false; /* what was dropped may have */
    pthread_mutex_unlock(&p->lock);
    p->planned = p->taken = 0;
}

static void go_on(ts_prefetch *p)
{
    p->failed = false;
    if (p->n_threads > 0) plan(p, p->n_slots - 1);
}

/* ---- open and close --------------------------------------------------------------------------- */

static bool make_slot(ts_prefetch *p, slot *s)
{
    size_t slots = (size_t)(p->rows * p->sequence), rows = (size_t)p->rows;
    ts_batch *b = &s->batch;
    b->tokens = ts_alloc(slots * sizeof *b->tokens);
    b->labels = ts_alloc(slots * sizeof *b->labels);
    b->segments = ts_alloc(slots * sizeof *b->segments);
    b->positions = ts_alloc(slots * sizeof *b->positions);
    b->row_ids = ts_alloc(rows * sizeof *b->row_ids);
    b->sources = ts_alloc(rows * sizeof *b->sources);
    s->row = ts_alloc_zero(rows * sizeof *s->row);
    s->reader = ts_alloc(rows * sizeof *s->reader);
    bool ok = b->tokens && b->labels && b->segments && b->positions && b->row_ids && b->sources &&
              s->row && s->reader;
    for (int64_t i = 0; ok && i < p->rows; i++) ts__row_at(p->loader, b, i, &s->row[i]);
    return ok;
}

static void free_slot(slot *s)
{
    ts_batch *b = &s->batch;
    void *const parts[] = {b->tokens,  b->labels,  b->segments, b->positions,
                           b->row_ids, b->sources, s->row,      s->reader};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) ts_free(parts[i]);
}

static bool make_all(ts_prefetch *p, int threads)
{
    size_t slots = (size_t)p->n_slots;
    p->n_lanes = ts_loader_sources(p->loader) * TS_MAX_READERS;
    p->slots = ts_alloc_zero(slots * sizeof *p->slots);
    p->next = ts_alloc(slots * (size_t)p->rows * sizeof *p->next);
    p->lanes = ts_alloc_zero((size_t)p->n_lanes * sizeof *p->lanes);
    p->ready = ts_alloc((size_t)p->n_lanes * sizeof *p->ready);
    p->threads = ts_alloc((size_t)threads * sizeof *p->threads);
    bool ok = p->slots && p->next && p->lanes && p->ready && p->threads;
    for (int64_t i = 0; ok && i < p->n_slots; i++) ok = make_slot(p, &p->slots[i]);
    if (ok) drop_queues(p);
    return ok;
}

ts_status ts_prefetch_open(ts_loader *l, int batches, int threads, ts_prefetch **out, ts_error *err)
{
    TS_ASSERT(batches >= 0 && threads >= 1);
    ts_prefetch *p = ts_alloc_zero(sizeof *p);
    if (!p) return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "out of memory for reading data ahead");
    *p = (ts_prefetch){.loader = l,
                       .rows = ts__loader_rows(l),
                       .sequence = ts__loader_sequence(l),
                       .n_slots = batches + 1,
                       .lock = PTHREAD_MUTEX_INITIALIZER,
                       .work = PTHREAD_COND_INITIALIZER,
                       .done = PTHREAD_COND_INITIALIZER};
    ts_status status = TS_OK;
    if (!make_all(p, threads))
        status = TS_ERROR(err, TS_RESOURCE_EXHAUSTED,
                          "out of memory for %d batches of %lld rows × %lld tokens read ahead; a smaller "
                          "per_device_batch_size or max_target_length needs less, and so does a "
                          "smaller data_prefetch_batches",
                          batches, (long long)p->rows, (long long)p->sequence);
    if (status == TS_OK && batches > 0) status = start_threads(p, threads, err);
    if (status != TS_OK) {
        ts_prefetch_close(p);
        return status;
    }
    go_on(p);
    *out = p;
    return TS_OK;
}

void ts_prefetch_close(ts_prefetch *p)
{
    if (!p) return;
    pthread_mutex_lock(&p->lock);
    p->stopping = true;
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < p->n_threads; i++) pthread_join(p->threads[i], NULL);
    if (p->n_threads > 0) ts__loader_back(p->loader);
    pthread_cond_destroy(&p->work);
    pthread_cond_destroy(&p->done);
    pthread_mutex_destroy(&p->lock);
    for (int64_t i = 0; p->slots && i < p->n_slots; i++) free_slot(&p->slots[i]);
    ts_free(p->slots);
    ts_free(p->next);
    ts_free(p->lanes);
    ts_free(p->ready);
    ts_free(p->threads);
    ts_free(p);
}

/* ---- batches ---------------------------------------------------------------------------------- */

/* The batch number p->taken, once it is made: OK, or what its first failed row says. */
static ts_status await(ts_prefetch *p, slot *s, ts_error *err)
{
    pthread_mutex_lock(&p->lock);
    while (s->left > 0) pthread_cond_wait(&p->done, &p->lock);
    pthread_mutex_unlock(&p->lock);
    if (s->failed == NONE) return TS_OK;
    if (err && err->code == TS_OK) *err = s->error;
    return s->error.code;
}

static ts_status take(ts_prefetch *p, const ts_batch **out, ts_error *err)
{
    if (p->failed) {
        halt(p);
        ts__loader_back(p->loader);
        go_on(p);
    }
    for (;;) {
        slot *s = &p->slots[p->taken % p->n_slots];
        if (p->loader->ended >= 0) return ts_loader_next(p->loader, &s->batch, err);
        plan(p, p->taken + p->n_slots);
        ts_status status = await(p, s, err);
        p->failed = status != TS_OK;
        if (status == TS_OK) status = ts__loader_count(p->loader, &s->batch, s->row);
        if (status != TS_OK) return status;
        p->taken++;
        *out = &s->batch;
        if (s->batch.padding < p->rows * p->sequence) return TS_OK;
    }
}

ts_status ts_prefetch_next(ts_prefetch *p, const ts_batch **out, double *waited, ts_error *err)
{
    double start = ts_clock_seconds();
    *out = &p->slots[0].batch;
    ts_status status = p->n_threads > 0 ? take(p, out, err)
                                        : ts_loader_next(p->loader, &p->slots[0].batch, err);
    if (waited) *waited = ts_clock_seconds() - start;
    return status;
}

/* ---- position --------------------------------------------------------------------------------- */

void ts_prefetch_get_state(const ts_prefetch *p, ts_loader_state *to)
{
    ts_loader_get_state(p->loader, to);
}

ts_status ts_prefetch_set_state(ts_prefetch *p, const ts_loader_state *s, ts_error *err)
{
    halt(p);
    ts_status status = ts_loader_set_state(p->loader, s, err);
    if (status != TS_OK) ts__loader_back(p->loader);
    go_on(p);
    return status;
}

uint64_t ts_prefetch_order_hash(const ts_prefetch *p)
{
    return p->loader->state->order_hash;
}

int64_t ts_prefetch_source_rows(const ts_prefetch *p, int source)
{
    return p->loader->state->taken[source];
}

const ts_loader *ts_prefetch_loader(const ts_prefetch *p)
{
    return p->loader;
}
