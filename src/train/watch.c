/* train/watch.c – a thread that notices when a run is stuck; see watch.h.
 *
 * The thread sleeps until the limit of what was begun last could be over, and no longer than a quarter of a second
 * where a deadline may be set meanwhile. So a begin costs one uncontended lock and wakes nobody, but for the first one
 * behind an idle time. stuck is called without the lock: it may take its time, and the run may go on meanwhile.
 */
#include "train/watch.h"

#include <pthread.h>
#include <stdio.h>
#include <time.h>

#include "base/thread.h"

struct ts_watch {
    double limit;
    ts_watch_stuck stuck;
    ts_watch_deadline deadline;
    void *context;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t change;
    /* Under the lock. */
    const char *what; /* NULL: idle */
    int64_t number;
    double since;
    double wakes; /* when the thread looks next; 0: when it is woken */
    bool quit;
};

/* Who overslept by more than `stopped` was stopped with the whole process (Ctrl-Z): that time is nobody's fault. */
static const double ask_every = 0.25, for_ever = 1e18, stopped = 1;

/* "step 41" */
static void name(const ts_watch *w, char *buf, size_t n)
{
    if (w->what && w->number >= 0)
        snprintf(buf, n, "%s %lld", w->what, (long long)w->number);
    else
        snprintf(buf, n, "%s", w->what ? w->what : "");
}

/* With the lock held: until `when`, or until something changes. */
static void sleep_until(ts_watch *w, double when)
{
    w->wakes = when < for_ever ? when : 0;
    if (when >= for_ever) {
        pthread_cond_wait(&w->change, &w->lock);
        return;
    }
    struct timespec t = {.tv_sec = (time_t)when};
    t.tv_nsec = (long)((when - (double)t.tv_sec) * 1e9);
    pthread_cond_timedwait(&w->change, &w->lock, &t);
}

static double earlier(double a, double b)
{
    return a < b ? a : b;
}

/* With the lock held, which is free while the deadline is asked for. True: *passed says which of the two is over. */
static bool look(ts_watch *w, bool *passed)
{
    double end = 0;
    if (w->deadline) {
        pthread_mutex_unlock(&w->lock);
        end = w->deadline(w->context);
        pthread_mutex_lock(&w->lock);
    }
    const double now = ts_clock_seconds();
    *passed = end > 0 && now >= end;
    const bool late = w->limit > 0 && w->what && now >= w->since + w->limit;
    if (*passed || late || w->quit) return !w->quit;
    double next = w->deadline ? now + ask_every : for_ever;
    if (end > 0) next = earlier(next, end);
    if (w->limit > 0 && w->what) next = earlier(next, w->since + w->limit);
    sleep_until(w, next);
    const double over = next < for_ever ? ts_clock_seconds() - next : 0;
    if (over > stopped) w->since += over;
    return false;
}

static void *watch(void *context)
{
    ts_watch *w = context;
    char what[200] = "";
    bool found = false, passed = false;
    pthread_mutex_lock(&w->lock);
    while (!w->quit && !found) found = look(w, &passed);
    name(w, what, sizeof what);
    const double seconds = w->what ? ts_clock_seconds() - w->since : 0;
    pthread_mutex_unlock(&w->lock);
    if (found) w->stuck(w->context, what, seconds, passed);
    return NULL;
}

ts_status ts_watch_open(double limit, ts_watch_stuck stuck, ts_watch_deadline deadline,
                        void *context, ts_watch **out, ts_error *err)
{
    pthread_condattr_t clock;
    *out = NULL;
    if (!stuck) return TS_OK;
    ts_watch *w = ts_alloc_zero(sizeof *w);
    if (!w) return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out for the watch");
    w->limit = limit;
    w->stuck = stuck;
    w->deadline = deadline;
    w->context = context;
    pthread_mutex_init(&w->lock, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC); /* as ts_clock_seconds */
    pthread_cond_init(&w->change, &clock);
    pthread_condattr_destroy(&clock);
    if (ts_thread_start(&w->thread, watch, w) == 0) {
        *out = w;
        return TS_OK;
    }
    pthread_cond_destroy(&w->change);
    pthread_mutex_destroy(&w->lock);
    ts_free(w);
    return TS_ERROR(err, TS_RESOURCE_EXHAUSTED,
                    "no thread could be made that watches the run (step_timeout_s)");
}

void ts_watch_close(ts_watch *w)
{
    if (!w) return;
    pthread_mutex_lock(&w->lock);
    w->quit = true;
    pthread_cond_signal(&w->change);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    pthread_cond_destroy(&w->change);
    pthread_mutex_destroy(&w->lock);
    ts_free(w);
}

static void set(ts_watch *w, const char *what, int64_t number)
{
    if (!w) return;
    pthread_mutex_lock(&w->lock);
    w->what = what;
    w->number = number;
    w->since = ts_clock_seconds();
    if (what && w->limit > 0 && (w->wakes <= 0 || w->wakes > w->since + w->limit))
        pthread_cond_signal(&w->change);
    pthread_mutex_unlock(&w->lock);
}

void ts_watch_begin(ts_watch *w, const char *what, int64_t number)
{
    TS_ASSERT(what);
    set(w, what, number);
}

void ts_watch_idle(ts_watch *w)
{
    set(w, NULL, -1);
}
