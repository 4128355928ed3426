/* cli/signals.c – what the user or the platform asks for while a run is going on.
 *
 * Ctrl-C: the first saves and stops, the second ends at once, whatever is being written then. SIGTERM and SIGHUP, a
 * terminal that is closed, save and stop; under nohup SIGHUP stays ignored. SIGTERM has a time, from which the grace
 * counts; a second one says nothing new. SIGUSR1 saves and goes on. Handlers set flags and write what they have to
 * say; the loop asks after every step, and its watch asks for the time.
 */
#include "cli/cli.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t interrupts, terminated, hung_up, save_asked;
static _Atomic int64_t terminated_at; /* nanoseconds of the monotonic clock; 0: it was not */

static int64_t now(void)
{
    struct timespec t;
    return clock_gettime(CLOCK_MONOTONIC, &t) == 0 ? t.tv_sec * (int64_t)1000000000 + t.tv_nsec : 1;
}

void cli_say_now(const char *text)
{
    struct pollfd err = {.fd = STDERR_FILENO, .events = POLLOUT};
    if (poll(&err, 1, 0) != 1 || !(err.revents & POLLOUT)) return;
    ssize_t ignored = write(STDERR_FILENO, text, strlen(text));
    (void)ignored;
}

static void on_signal(int signal_number)
{
    const int before = errno;
    if (signal_number == SIGTERM) {
        int64_t never = 0;
        const bool first = atomic_compare_exchange_strong(&terminated_at, &never, now());
        terminated = 1;
        cli_say_now(first ? "tessera: SIGTERM: stopping after this step\n"
                          : "tessera: SIGTERM again: it is stopping already\n");
    } else if (signal_number == SIGHUP) {
        hung_up = 1;
    } else if (signal_number == SIGUSR1) {
        save_asked = 1;
    } else if (interrupts++ == 0) {
        cli_say_now("\ntessera: stopping after this step; Ctrl-C again ends at once without saving\n");
    } else {
        _exit(130);
    }
    errno = before;
}

void cli_signals_install(void)
{
    struct sigaction a, before;
    memset(&a, 0, sizeof a);
    a.sa_handler = on_signal;
    a.sa_flags = SA_RESTART;
    sigemptyset(&a.sa_mask);
    sigaction(SIGINT, &a, NULL);
    sigaction(SIGTERM, &a, NULL);
    sigaction(SIGUSR1, &a, NULL);
    if (sigaction(SIGHUP, NULL, &before) == 0 && before.sa_handler != SIG_IGN)
        sigaction(SIGHUP, &a, NULL);
    signal(SIGPIPE, SIG_IGN);
}

ts_interrupt cli_signals_poll(void)
{
    if (interrupts || terminated || hung_up) return TS_SAVE_AND_STOP;
    if (!save_asked) return TS_CONTINUE;
    save_asked = 0;
    return TS_SAVE_AND_GO_ON;
}

double cli_signals_ending(void)
{
    const int64_t at = terminated_at;
    return at ? 1e-9 * (double)(now() - at) : -1;
}

int cli_signals_exit_code(void)
{
    return interrupts ? 130 : terminated ? 75 : hung_up ? 129 : 0;
}

/* ---- commands that stop where they are --------------------------------------------------------- */

static volatile sig_atomic_t stopped_by;

static void on_stop(int number)
{
    stopped_by = number;
}

void cli_stop_on_signals(void)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        struct sigaction a, before;
        memset(&a, 0, sizeof a);
        a.sa_handler = on_stop;
        a.sa_flags = SA_RESTART;
        sigemptyset(&a.sa_mask);
        /* What the parent had ignored (nohup) stays so. */
        if (sigaction(numbers[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
            sigaction(numbers[i], &a, NULL);
    }
}

int cli_stopped_by(void)
{
    return stopped_by;
}
