/* event.c – events of the fake plugin: something that will have happened, with or without an error.
 *
 * An event has two owners, the caller's handle and the device work that will set it; it goes with the later of them.
 * Callbacks run on the thread that sets the event, or at once where it is set already, and own their error.
 */
#include "fake/fake.h"

typedef struct waiter {
    struct waiter *next;
    PJRT_Event_OnReadyCallback callback;
    void *argument;
} waiter;

struct PJRT_Event {
    int references;
    bool ready;
    fake_problem problem;
    waiter *first;
};

PJRT_Event *fake_event_new(void)
{
    PJRT_Event *e = ts_alloc_zero(sizeof *e);
    TS_ASSERT(e);
    e->references = 2;
    fake_born("event");
    return e;
}

static void drop(PJRT_Event *e)
{
    pthread_mutex_lock(&fake_lock);
    int left = --e->references;
    pthread_mutex_unlock(&fake_lock);
    if (left) return;
    while (e->first) {
        waiter *w = e->first;
        e->first = w->next;
        ts_free(w);
    }
    ts_free(e);
}

void fake_event_set(PJRT_Event *e, const fake_problem *p)
{
    pthread_mutex_lock(&fake_lock);
    e->problem = *p;
    e->ready = true;
    waiter *w = e->first;
    e->first = NULL;
    pthread_cond_broadcast(&fake_changed);
    pthread_mutex_unlock(&fake_lock);
    while (w) {
        waiter *next = w->next;
        w->callback(fake_problem_error(p), w->argument);
        ts_free(w);
        w = next;
    }
    drop(e);
}

PJRT_Error *fake_Event_Destroy(PJRT_Event_Destroy_Args *a)
{
    if (!a->event) return NULL;
    fake_died("event");
    drop(a->event);
    return NULL;
}

PJRT_Error *fake_Event_IsReady(PJRT_Event_IsReady_Args *a)
{
    pthread_mutex_lock(&fake_lock);
    a->is_ready = a->event->ready;
    pthread_mutex_unlock(&fake_lock);
    return NULL;
}

PJRT_Error *fake_Event_Error(PJRT_Event_Error_Args *a)
{
    pthread_mutex_lock(&fake_lock);
    bool ready = a->event->ready;
    pthread_mutex_unlock(&fake_lock);
    if (!ready)
        return fake_error(PJRT_Error_Code_FAILED_PRECONDITION, "the event has not happened yet");
    return fake_problem_error(&a->event->problem);
}

PJRT_Error *fake_Event_Await(PJRT_Event_Await_Args *a)
{
    pthread_mutex_lock(&fake_lock);
    while (!a->event->ready) pthread_cond_wait(&fake_changed, &fake_lock);
    pthread_mutex_unlock(&fake_lock);
    return fake_problem_error(&a->event->problem);
}

PJRT_Error *fake_Event_OnReady(PJRT_Event_OnReady_Args *a)
{
    waiter *w = ts_alloc_zero(sizeof *w);
    TS_ASSERT(w);
    *w = (waiter){.callback = a->callback, .argument = a->user_arg};
    pthread_mutex_lock(&fake_lock);
    bool ready = a->event->ready;
    waiter **end = &a->event->first;
    while (*end) end = &(*end)->next;
    if (!ready) *end = w;
    pthread_mutex_unlock(&fake_lock);
    if (!ready) return NULL;
    a->callback(fake_problem_error(&a->event->problem), a->user_arg);
    ts_free(w);
    return NULL;
}
