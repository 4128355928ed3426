/* base/thread.h – threads that take no signals: those are for the threads of whoever called. */
#ifndef TS_THREAD_H
#define TS_THREAD_H

#include <pthread.h>

/* 0, or the errno of pthread_create. A fault (SIGSEGV …) stays the thread's own. */
int ts_thread_start(pthread_t *thread, void *(*run)(void *), void *context);

#endif
