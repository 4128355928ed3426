/* queue.c – the fake plugin's device: one thread for each client that does work in the order it was asked for.
 *
 * But for transfers that no work in the queue has to do with: uploads of bytes that the caller keeps only during the
 * call, and downloads of bytes that are there. These are done at once, as devices have engines of their own for
 * them. The thread starts with the first piece of work, so that a client that is only looked at (a probe) has none.
 */
#include "fake/fake.h"

#include <stdio.h>
#include <time.h>

enum { LAG_MS = 40 };

PJRT_Error *fake_task_new(const char *name, int n_event, fake_task **out)
{
    fake_task *t = ts_alloc_zero(sizeof *t);
    PJRT_Event **event = ts_alloc_zero((size_t)n_event * sizeof *event);
    *out = NULL;
    if (!t || !event) {
        ts_free(t);
        ts_free(event);
        return fake_error(PJRT_Error_Code_RESOURCE_EXHAUSTED, "no memory for a task");
    }
    t->name = name;
    t->event = event;
    t->n_event = n_event;
    for (int i = 0; i < n_event; i++) event[i] = fake_event_new();
    *out = t;
    return NULL;
}

static void sleep_ms(int ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&t, NULL);
}

static void do_task(fake_task *t)
{
    fake_problem p = t->injected;
    if (t->slow_ms > 0) sleep_ms(t->slow_ms);
    if (!p.code && t->storage && t->storage->problem.code) p = t->storage->problem;
    if (!p.code && t->run) t->run(t, &p);
    if (p.code && t->storage && strcmp(t->name, "upload") == 0) t->storage->problem = p;
    if (t->finish) t->finish(t, &p);
    fake_storage_drop(t->storage);
    for (int i = 0; i < t->n_event; i++)
        if (i != t->lags - 1) fake_event_set(t->event[i], &p);
    if (t->lags) {
        sleep_ms(LAG_MS);
        fake_event_set(t->event[t->lags - 1], &p);
    }
    ts_free(t->event);
    ts_free(t);
}

static void *device_thread(void *argument)
{
    PJRT_Client *c = argument;
    for (;;) {
        pthread_mutex_lock(&fake_lock);
        while (!c->first && !c->stop) pthread_cond_wait(&fake_changed, &fake_lock);
        fake_task *t = c->first;
        if (t) c->first = t->next;
        if (!c->first) c->last = NULL;
        pthread_mutex_unlock(&fake_lock);
        if (!t) return NULL;
        do_task(t);
    }
}

void fake_queue_add(PJRT_Client *c, fake_task *t)
{
    pthread_mutex_lock(&fake_lock);
    bool there =
        strcmp(t->name, "download") == 0 && t->storage->references == 2; /* the handle and this */
    if (t->now || there) {
        pthread_mutex_unlock(&fake_lock);
        do_task(t);
        return;
    }
    if (c->last)
        c->last->next = t;
    else
        c->first = t;
    c->last = t;
    bool start = !c->running;
    c->running = true;
    pthread_cond_broadcast(&fake_changed);
    pthread_mutex_unlock(&fake_lock);
    if (start) TS_ASSERT(pthread_create(&c->thread, NULL, device_thread, c) == 0);
}

void fake_queue_stop(PJRT_Client *c)
{
    pthread_mutex_lock(&fake_lock);
    c->stop = true;
    bool join = c->running;
    pthread_cond_broadcast(&fake_changed);
    pthread_mutex_unlock(&fake_lock);
    if (join) pthread_join(c->thread, NULL);
}
