/* xla/child.c – work in a child process: forked, watched, ended at its time limit, its end put into words.
 *
 * The parent reads two pipes, the result and whatever is printed, until the child has ended; the child's own
 * children may hold the pipes open longer, so its end is asked for and not inferred from theirs. Only the child
 * itself is ever killed, by its id.
 * Not here: what the child does (probe.c, aot_child.c).
 */
#include "xla/child.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { KEEP_OUTPUT = 8 << 10, TICK_MS = 50, MAX_LINE = 400 };
static const size_t max_bytes = (size_t)2
                                << 30; /* of a result: a serialized program may be large */

/* ---- the child ------------------------------------------------------------------------------- */

/* Standard input is empty, output and errors go to the pipe; what the parent had buffered is not its to print. */
static void redirect(int output)
{
    int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (nothing >= 0) dup2(nothing, 0);
    dup2(output, 1);
    dup2(output, 2);
    __fpurge(stdout);
    __fpurge(stderr);
}

/* Handlers and masks of the parent's are not meant for foreign code; its core dump is of no use to anyone. */
static void reset_signals(void)
{
    static const int reset[] = {SIGHUP, SIGINT,  SIGQUIT, SIGABRT, SIGSEGV, SIGBUS,  SIGFPE,
                                SIGILL, SIGTRAP, SIGPIPE, SIGALRM, SIGTERM, SIGUSR1, SIGUSR2};
    sigset_t none;
    for (size_t i = 0; i < sizeof reset / sizeof *reset; i++) signal(reset[i], SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
}

/* done: set once work has returned; foreign code that calls exit(0) has not come that far. A group of its own keeps
 * Ctrl-C from it: that is the parent's to answer. */
_Noreturn static void be_child(pid_t parent, const int result[2], const int output[2],
                               const char *const *env, int n, void (*work)(void *context, int fd),
                               void *context, volatile bool *done)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1); /* it ended in between */
    setpgid(0, 0);
    reset_signals();
    redirect(output[1]);
    close(result[0]);
    close(output[0]);
    for (int i = 0; i < n; i++) {
        const char *equals = strchr(env[i], '=');
        char name[200];
        if (!equals || (size_t)(equals - env[i]) >= sizeof name) continue;
        memcpy(name, env[i], (size_t)(equals - env[i]));
        name[equals - env[i]] = '\0';
        setenv(name, equals + 1, 1);
    }
    work(context, result[1]);
    *done = true;
    _exit(0);
}

ts_status ts__child_folder(const char *base, const char *name, char *folder, size_t n, ts_error *err)
{
    const char *temporary = getenv("TMPDIR");
    if (!base) base = temporary && *temporary ? temporary : "/tmp";
    int length = snprintf(folder, n, "%s/tessera-%s-XXXXXX", base, name);
    if (length < 0 || (size_t)length >= n)
        return TS_ERROR(err, TS_INVALID_ARGUMENT, "the folder %.60s… has too long a name", base);
    if (mkdtemp(folder)) return TS_OK;
    return TS_ERROR(err, TS_PERMISSION_DENIED,
                    "no folder for a plugin's files can be made in %s (%s); set TMPDIR to one that can "
                    "be written",
                    base, strerror(errno));
}

bool ts__child_send(int fd, const void *data, size_t n)
{
    const char *p = data;
    while (n) {
        ssize_t sent = write(fd, p, n);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) return false;
        p += sent;
        n -= (size_t)sent;
    }
    return true;
}

/* ---- the parent ------------------------------------------------------------------------------ */

static void keep_end(ts_string *s, const char *data, size_t n)
{
    if (n >= KEEP_OUTPUT) {
        data += n - KEEP_OUTPUT;
        n = KEEP_OUTPUT;
    }
    if (s->length + n > KEEP_OUTPUT) {
        size_t drop = s->length + n - KEEP_OUTPUT;
        memmove(s->data, s->data + drop, s->length - drop);
        s->length -= drop;
    }
    ts_string_add_bytes(s, data, n);
}

/* Takes what is there; false when nothing will come any more. */
static bool drain(int fd, ts_string *s, bool all)
{
    char data[16384];
    for (;;) {
        ssize_t n = read(fd, data, sizeof data);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
        if (n == 0) return false;
        if (all)
            ts_string_add_bytes(s, data, (size_t)n);
        else
            keep_end(s, data, (size_t)n);
    }
}

static bool ended(pid_t pid, bool wait, int *how, struct rusage *usage)
{
    pid_t got;
    while ((got = wait4(pid, how, wait ? 0 : WNOHANG, usage)) < 0 && errno == EINTR) continue;
    return got !=
           0; /* an error too: somebody else has taken its end, nothing is left to wait for */
}

/* What asks this process to end waits until the child is gone, and then does what it would have done. */
static const int ends[] = {SIGINT, SIGTERM, SIGHUP};
enum { N_ENDS = sizeof ends / sizeof *ends };

static void hold_ends(sigset_t *before)
{
    sigset_t held;
    sigemptyset(&held);
    for (int i = 0; i < N_ENDS; i++) sigaddset(&held, ends[i]);
    pthread_sigmask(SIG_BLOCK, &held, before);
}

/* One that is ignored stays pending too while it is held, and means nothing. */
static bool asked_to_end(void)
{
    sigset_t held;
    struct sigaction now;
    if (sigpending(&held) != 0) return false;
    for (int i = 0; i < N_ENDS; i++)
        if (sigismember(&held, ends[i]) == 1 && sigaction(ends[i], NULL, &now) == 0 &&
            now.sa_handler != SIG_IGN)
            return true;
    return false;
}

/* Until the child has ended, by itself or at its limit. */
static void watch(pid_t pid, double timeout, int result, int output, int *how, struct rusage *usage,
                  ts_child_result *r)
{
    double start = ts_clock_seconds();
    struct pollfd fds[2] = {{result, POLLIN, 0}, {output, POLLIN, 0}};
    for (;;) {
        poll(fds, 2, TICK_MS); /* a finished stream has a negative descriptor and is passed over */
        if (fds[0].fd >= 0 && fds[0].revents && !drain(result, &r->bytes, true)) fds[0].fd = -1;
        if (fds[1].fd >= 0 && fds[1].revents && !drain(output, &r->output, false)) fds[1].fd = -1;
        if (ended(pid, false, how, usage)) break;
        r->seconds = ts_clock_seconds() - start;
        r->cancelled = asked_to_end();
        r->timed_out = !r->cancelled && r->seconds >= timeout;
        if (!r->cancelled && !r->timed_out) continue;
        kill(pid, SIGKILL);
        ended(pid, true, how, usage);
        break;
    }
    drain(result, &r->bytes, true);
    drain(output, &r->output, false);
    r->seconds = ts_clock_seconds() - start;
    r->peak_bytes = (size_t)usage->ru_maxrss << 10;
}

/* ---- words ----------------------------------------------------------------------------------- */

/* The line of its output that says most: the one that a failed check wrote, else the last one. */
static void telling_line(const ts_string *s, char line[MAX_LINE])
{
    const char *best = "", *end = s->data ? s->data + s->length : NULL;
    size_t n_best = 0;
    bool fatal = false;
    for (const char *p = s->data, *next; p && p < end; p = next) {
        const char *stop = memchr(p, '\n', (size_t)(end - p));
        next = stop ? stop + 1 : end;
        size_t n = (size_t)((stop ? stop : end) - p);
        while (n && (unsigned char)p[n - 1] <= ' ') n--;
        while (n && (unsigned char)*p <= ' ') p++, n--;
        if (!n || fatal) continue;
        /* The logs of these libraries begin a line with F when it is their last word; a stack follows it. */
        fatal =
            (n > 6 && p[0] == 'F' && p[1] >= '0' && p[1] <= '9' && p[2] >= '0' && p[2] <= '9') ||
            memmem(p, n, "Check failed", 12);
        best = p;
        n_best = n;
    }
    if (n_best > MAX_LINE - 1) n_best = MAX_LINE - 1;
    n_best = ts_utf8_valid_prefix(best, n_best);
    for (size_t i = 0; i < n_best; i++) line[i] = (unsigned char)best[i] < ' ' ? ' ' : best[i];
    line[n_best] = '\0';
}

static ts_status put_into_words(const char *what, double timeout, bool done,
                                const ts_child_result *r, ts_error *err)
{
    char line[MAX_LINE];
    telling_line(&r->output, line);
    const char *colon = *line ? ": " : "";
    if (r->cancelled) return TS_ERROR(err, TS_CANCELLED, "%s was stopped by a signal", what);
    if (r->timed_out)
        return TS_ERROR(err, TS_DEADLINE_EXCEEDED, "%s did not end within %g s and was stopped%s%s",
                        what, timeout, *line ? "; it last said: " : "", line);
    if (r->signal) {
        const char *name = sigabbrev_np(r->signal);
        return TS_ERROR(err, TS_UNAVAILABLE, "%s was ended by %s%s%s%s", what,
                        name ? "SIG" : "signal ", name ? name : "beyond the known ones", colon,
                        line);
    }
    if (r->exit_code || !done)
        return TS_ERROR(err, TS_UNAVAILABLE, "%s exited with code %d%s%s%s", what, r->exit_code,
                        r->exit_code ? "" : " before its work was done", colon, line);
    if (r->bytes.failed)
        return TS_ERROR(err, TS_RESOURCE_EXHAUSTED,
                        "%s: its result of over %zu bytes cannot be held", what, r->bytes.length);
    return TS_OK;
}

static void close_pipe(const int fd[2])
{
    close(fd[0]);
    close(fd[1]);
}

static ts_status make_pipes(const char *what, int result[2], int output[2], ts_error *err)
{
    if (pipe2(result, O_CLOEXEC) == 0) {
        if (pipe2(output, O_CLOEXEC) == 0) {
            fcntl(result[0], F_SETFL, O_NONBLOCK);
            fcntl(output[0], F_SETFL, O_NONBLOCK);
            return TS_OK;
        }
        close_pipe(result);
    }
    return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "%s: no pipe could be made: %s", what,
                    strerror(errno));
}

ts_status ts__child_run(const char *what, double timeout, const char *const *env, int n,
                        void (*work)(void *context, int fd), void *context, ts_child_result *r,
                        ts_error *err)
{
    int result[2], output[2], how = 0;
    struct rusage usage = {0};
    sigset_t before;
    *r = (ts_child_result){.bytes = ts_string_new(max_bytes),
                           .output = ts_string_new(2 * KEEP_OUTPUT)};
    TS_TRY(make_pipes(what, result, output, err));
    bool *shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) {
        close_pipe(result);
        close_pipe(output);
        return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "%s: no memory to share with it", what);
    }
    hold_ends(&before);
    pid_t parent = getpid(), pid = fork();
    if (pid == 0) be_child(parent, result, output, env, n, work, context, shared);
    int why = errno;
    close(result[1]);
    close(output[1]);
    if (pid > 0) watch(pid, timeout, result[0], output[0], &how, &usage, r);
    close(result[0]);
    close(output[0]);
    bool done = *(volatile bool *)shared;
    munmap(shared, sizeof *shared);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (pid < 0)
        return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "%s: no child process could be made: %s", what,
                        strerror(why));
    if (WIFSIGNALED(how)) r->signal = WTERMSIG(how);
    if (WIFEXITED(how)) r->exit_code = WEXITSTATUS(how);
    return put_into_words(what, timeout, done, r, err);
}

void ts__child_result_free(ts_child_result *r)
{
    ts_string_free(&r->bytes);
    ts_string_free(&r->output);
    *r = (ts_child_result){0};
}
