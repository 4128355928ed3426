/* xla/pip.c – one wheel, downloaded by the pip that is there.
 *
 * Package indexes, mirrors, proxies and certificates are pip's business, with the user's own settings. It runs
 * as a child with its words as they are, no shell; everything it writes, temporary files and all, goes into
 * the folder it is given. What it prints is kept and told only when it fails. It ends when this process ends,
 * however that happens: python3 may be a script that starts the real one, so a signal at the parent's death would
 * end the script alone; a second child, the guard, leads their process group and ends all of it.
 * Not here: what is done with the wheel (wheel.c, install.c).
 */
#include "xla/pip.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"

enum { TICK_MS = 200, OUTPUT_BYTES = 1 << 20, MAX_ENVIRONMENT = 4096 };
static const double progress_seconds = 5;

typedef struct download {
    const ts_plugin_install_options *o;
    const char *package, *folder;
    pid_t pid, guard;
    int output[2];     /* the pipe with what it prints */
    int failure[2];    /* with the errno where it cannot be started */
    int alive[2];      /* its writing end is open while this process lives */
    int exec_errno;    /* why python3 could not be started; 0: it was */
    ts_string printed; /* all of it, up to OUTPUT_BYTES */
    double told;       /* when progress was told last */
} download;

/* ---- starting -------------------------------------------------------------------------------- */

/* The environment with TMPDIR and what keeps pip quiet changed; entries are borrowed. */
static void make_environment(const char **env, const char *temporary)
{
    size_t n = 0;
    for (char **e = environ; *e && n < MAX_ENVIRONMENT - 3; e++)
        if (strncmp(*e, "TMPDIR=", 7) != 0) env[n++] = *e;
    env[n++] = temporary;
    env[n++] = "PIP_DISABLE_PIP_VERSION_CHECK=1";
    env[n] = NULL;
}

static ts_status system_error(const char *what, ts_error *err)
{
    return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "pip cannot be started: %s: %s", what,
                    strerror(errno));
}

static void close_pipe(int fd[2])
{
    for (int i = 0; i < 2; i++) {
        if (fd[i] >= 0) close(fd[i]);
        fd[i] = -1;
    }
}

static ts_status open_pipes(download *d, ts_error *err)
{
    int *const all[] = {d->output, d->failure, d->alive};
    for (int i = 0; i < 3; i++)
        if (pipe2(all[i], O_CLOEXEC) != 0) return system_error("no pipe", err);
    return TS_OK;
}

/* Waits for the end of the parent, then ends the group, itself with it. */
static void be_guard(const download *d)
{
    char byte;
    setpgid(0, 0);
    close(d->alive[1]); /* no exec closes these here, and a reader waits for the last writer */
    close(d->output[1]);
    close(d->failure[1]);
    while (read(d->alive[0], &byte, 1) < 0 && errno == EINTR) {
    }
    kill(0, SIGKILL);
    _exit(1);
}

/* Between fork and exec: only what is safe after the fork of a process with threads. The guard's group is none
 * of the terminal's: Ctrl-C is ours to answer. */
static void be_pip(const download *d, char *const *argv, const char *const *env)
{
    int nothing = open("/dev/null", O_RDONLY);
    if (setpgid(0, d->guard) == 0 && dup2(nothing, 0) == 0 && dup2(d->output[1], 1) == 1 &&
        dup2(d->output[1], 2) == 2)
        execvpe(argv[0], argv, (char *const *)env);
    int e = errno;
    ssize_t ignored = write(d->failure[1], &e, sizeof e);
    (void)ignored;
    _exit(127);
}

static ts_status start(download *d, char *const *argv, const char *const *env, ts_error *err)
{
    TS_TRY(open_pipes(d, err));
    d->guard = fork();
    if (d->guard == 0) be_guard(d);
    if (d->guard < 0) return system_error("no process", err);
    setpgid(d->guard, d->guard); /* whoever is first: pip needs the group */
    d->pid = fork();
    if (d->pid == 0) be_pip(d, argv, env);
    if (d->pid < 0) return system_error("no process", err);
    close(d->output[1]);
    close(d->failure[1]);
    d->output[1] = d->failure[1] = -1;
    if (read(d->failure[0], &d->exec_errno, sizeof d->exec_errno) != sizeof d->exec_errno)
        d->exec_errno = 0;
    return TS_OK;
}

static void wait_for(pid_t pid)
{
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
    }
}

/* What is left of the group, the guard at least. */
static void end_all(download *d)
{
    if (d->guard > 0) {
        kill(-d->guard, SIGKILL);
        wait_for(d->guard);
    }
    if (d->pid > 0) wait_for(d->pid);
    close_pipe(d->output);
    close_pipe(d->failure);
    close_pipe(d->alive);
}

/* ---- watching -------------------------------------------------------------------------------- */

static uint64_t bytes_below(const char *folder, int depth)
{
    char **names;
    size_t n;
    uint64_t sum = 0;
    if (ts_list_folder(folder, &names, &n, NULL) != TS_OK) return 0;
    for (size_t i = 0; i < n; i++) {
        struct stat st;
        char *path = ts_path_join(folder, names[i]);
        if (path && lstat(path, &st) == 0) {
            if (S_ISREG(st.st_mode)) sum += (uint64_t)st.st_size;
            if (S_ISDIR(st.st_mode) && depth > 0) sum += bytes_below(path, depth - 1);
        }
        ts_free(path);
    }
    ts_names_free(names, n);
    return sum;
}

static void tell_progress(download *d)
{
    char text[200];
    double now = ts_clock_seconds();
    if (!d->o->line || now - d->told < progress_seconds) return;
    d->told = now;
    snprintf(text, sizeof text, "  %.0f MB so far", (double)bytes_below(d->folder, 3) / 1e6);
    d->o->line(d->o->context, text);
}

/* Bytes that were there to read within timeout; 0 at the end of the pipe, −1 when there were none. */
static int take_output(download *d, int timeout)
{
    char buffer[4096];
    struct pollfd p = {.fd = d->output[0], .events = POLLIN};
    if (poll(&p, 1, timeout) <= 0) return -1;
    ssize_t n = read(d->output[0], buffer, sizeof buffer);
    if (n < 0) return errno == EINTR || errno == EAGAIN ? -1 : 0;
    ts_string_add_bytes(&d->printed, buffer, (size_t)n);
    return (int)n;
}

/* Until it has ended; its exit code, or 128 and the signal. */
static ts_status watch(download *d, int *code, ts_error *err)
{
    bool open = true;
    for (;;) {
        int state;
        if (open)
            open = take_output(d, TICK_MS) != 0;
        else
            poll(NULL, 0, 10);
        pid_t ended = waitpid(d->pid, &state, WNOHANG);
        if (ended == d->pid || (ended < 0 && errno == ECHILD)) {
            /* Who ignores SIGCHLD is not told how it ended: whether there is a wheel will tell. */
            if (ended < 0) state = 0;
            *code = WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
            while (open && take_output(d, 0) > 0) {
            } /* children of its own may hold the pipe open */
            return TS_OK;
        }
        if (d->o->stop && d->o->stop(d->o->context))
            return TS_ERROR(err, TS_CANCELLED, "interrupted while pip was downloading %s",
                            d->package);
        tell_progress(d);
    }
}

/* ---- failures -------------------------------------------------------------------------------- */

static bool printed(const download *d, const char *words)
{
    return d->printed.data && strstr(d->printed.data, words);
}

static bool printed_any(const download *d, const char *const *words)
{
    for (; *words; words++)
        if (printed(d, *words)) return true;
    return false;
}

/* The end of what pip said, at most a few lines. */
static const char *last_lines(const download *d)
{
    size_t n = d->printed.length;
    if (!n) return "(it printed nothing)";
    char *text = d->printed.data;
    while (n && (text[n - 1] == '\n' || text[n - 1] == ' ')) text[--n] = '\0';
    for (int lines = 0; n > 0; n--)
        if (text[n - 1] == '\n' && ++lines == 4) break;
    return strlen(text + n) > 1500 ? text + strlen(text) - 1500 : text + n;
}

static ts_status explain(const download *d, int code, const char *wanted, ts_error *err)
{
    static const char *const no_network[] = {"NewConnectionError",
                                             "name resolution",
                                             "Network is unreachable",
                                             "ConnectTimeout",
                                             "Max retries exceeded",
                                             "ReadTimeout",
                                             "ProxyError",
                                             "Connection refused",
                                             "Failed to establish a new",
                                             NULL};
    static const char *const full[] = {"No space left on device", "Disk quota exceeded",
                                       "File too large", NULL};
    static const char *const none[] = {"No matching distribution", "Could not find a version",
                                       NULL};
    if (printed(d, "No module named pip"))
        return TS_ERROR(err, TS_UNAVAILABLE,
                        "python3 has no pip, which downloads plugins; on Debian `apt-get install "
                        "python3-pip` brings it");
    if (printed_any(d, full))
        return TS_ERROR(err, TS_RESOURCE_EXHAUSTED,
                        "%s: no room for the download of %s; free some, or choose another --folder",
                        d->folder, wanted);
    if (printed_any(d, no_network))
        return TS_ERROR(
            err, TS_UNAVAILABLE,
            "the package index cannot be reached, so %s cannot be downloaded; pip's last "
            "lines:\n%s",
            wanted, last_lines(d));
    if (printed_any(d, none))
        return TS_ERROR(
            err, TS_UNAVAILABLE,
            "the package index has no %s for this machine and Python; pip's last lines:\n%s",
            wanted, last_lines(d));
    return TS_ERROR(err, TS_UNAVAILABLE,
                    "pip could not download %s (exit code %d); its last lines:\n%s", wanted, code,
                    last_lines(d));
}

static ts_status find_wheel(const char *folder, const char *wanted, char *path, size_t n,
                            ts_error *err)
{
    char **names;
    size_t count, wheels = 0;
    TS_TRY(ts_list_folder(folder, &names, &count, err));
    int length = -1;
    for (size_t i = 0; i < count; i++) {
        size_t m = strlen(names[i]);
        if (m < 5 || strcmp(names[i] + m - 4, ".whl") != 0) continue;
        wheels++;
        length = snprintf(path, n, "%s/%s", folder, names[i]);
    }
    ts_names_free(names, count);
    if (wheels == 1 && length > 0 && (size_t)length < n) return TS_OK;
    return TS_ERROR(err, TS_UNAVAILABLE, "pip brought %zu wheels for %s; expected one", wheels,
                    wanted);
}

/* ---- the whole ------------------------------------------------------------------------------- */

static ts_status run(download *d, char *wanted, ts_error *err)
{
    char *folder = (char *)d->folder;
    /* No cache: a plugin is unpacked once, and an interrupted install must leave nothing anywhere. */
    char *const argv[] = {"python3",        "-m",           "pip",
                          "download",       "--no-deps",    "--only-binary=:all:",
                          "--no-cache-dir", "--no-input",   "--progress-bar=off",
                          "--retries=1",    "--timeout=20", "-d",
                          folder,           wanted,         NULL};
    char *temporary = ts_alloc(strlen(folder) + 8);
    const char **env = ts_alloc(MAX_ENVIRONMENT * sizeof *env);
    ts_status status = TS_OK;
    int code = 0;
    if (!temporary || !env) {
        status = TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "out of memory to start pip");
    } else {
        memcpy(temporary, "TMPDIR=", 7);
        memcpy(temporary + 7, folder, strlen(folder) + 1);
        make_environment(env, temporary);
        status = start(d, argv, env, err);
    }
    if (status == TS_OK) status = watch(d, &code, err);
    end_all(d);
    if (status == TS_OK && d->exec_errno)
        status =
            TS_ERROR(err, TS_UNAVAILABLE,
                     "python3 cannot be started (%s), and its pip downloads plugins; on Debian "
                     "`apt-get install python3-pip` brings both",
                     strerror(d->exec_errno));
    if (status == TS_OK && code != 0) status = explain(d, code, wanted, err);
    ts_free(env);
    ts_free(temporary);
    return status;
}

ts_status ts__pip_download(const char *package, const char *version, const char *folder,
                           const ts_plugin_install_options *o, char *path, size_t n, ts_error *err)
{
    char wanted[200], text[300];
    download d = {.o = o, .package = package, .folder = folder, .told = ts_clock_seconds()};
    for (int i = 0; i < 2; i++) d.output[i] = d.failure[i] = d.alive[i] = -1;
    d.printed = ts_string_new(OUTPUT_BYTES);
    snprintf(wanted, sizeof wanted, "%s%s%s", package, version ? "==" : "", version ? version : "");
    snprintf(text, sizeof text, "downloading %s with pip", wanted);
    if (o->line) o->line(o->context, text);
    ts_status status = run(&d, wanted, err);
    if (status == TS_OK) status = find_wheel(folder, wanted, path, n, err);
    ts_string_free(&d.printed);
    return status;
}
