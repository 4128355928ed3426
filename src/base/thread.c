/* base/thread.c – see thread.h. */
#include "base/thread.h"

#include <signal.h>

int ts_thread_start(pthread_t *thread, void *(*run)(void *), void *context)
{
    sigset_t none, before;
    sigfillset(&none);
    sigdelset(&none, SIGSEGV);
    sigdelset(&none, SIGBUS);
    sigdelset(&none, SIGFPE);
    sigdelset(&none, SIGILL);
    pthread_sigmask(SIG_SETMASK, &none, &before);
    int e = pthread_create(thread, NULL, run, context);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return e;
}
