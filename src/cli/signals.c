/* cli/signals.c – what the user or the platform asks for while a run is going on.
 *
 * Ctrl-C: the first saves and stops, the second ends at once. SIGTERM and SIGHUP, a terminal that is closed, save
 * and stop; under nohup SIGHUP stays ignored. SIGUSR1 saves and goes on. Handlers only set flags; the loop asks
 * after every step.
 */
#include "cli/cli.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

static volatile sig_atomic_t interrupts, terminated, hung_up, save_asked;

static void on_signal(int signal_number)
{
    static const char first[] =
        "\ntessera: stopping after this step; Ctrl-C again ends at once without saving\n";
    if (signal_number == SIGTERM)
        terminated = 1;
    else if (signal_number == SIGHUP)
        hung_up = 1;
    else if (signal_number == SIGUSR1)
        save_asked = 1;
    else if (interrupts++ == 0) {
        ssize_t ignored = write(STDERR_FILENO, first, sizeof first - 1);
        (void)ignored;
    } else {
        _exit(130);
    }
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

int cli_signals_exit_code(void)
{
    return interrupts ? 130 : terminated ? 75 : hung_up ? 129 : 0;
}
