/* cli/train.c – tessera train: step lines in a pipe, one live line on a terminal.
 *
 * In a pipe every step is a line and nothing else moves the cursor. On a terminal one line is rewritten
 * with progress and the time left; every twentieth of the run, evaluations and checkpoints stay above it.
 * Times and losses of the live line are smoothed, those of the step lines are not.
 *
 * Messages may come from threads that save or read ahead, so whoever shows something holds the display's lock. What
 * is stuck may hold it, too, in a write that nobody reads: the last words of a run take none.
 */
#include "cli/cli.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static const char help[] =
    "usage: tessera train (CONFIG.yml | key=value) [key=value …] [--quiet] [--plain]\n\n"
    "  CONFIG.yml   base.yml by default: the copy inside the program where no such file exists\n"
    "  key=value    MaxText's keys and Tessera's; configs/base.yml explains every one\n"
    "  --plain      a line a step on a terminal too\n"
    "  --quiet      no step lines, only warnings and errors\n\n"
    "A run of the same name continues from its newest checkpoint; only one process at a time may train\n"
    "it. Ctrl-C saves and stops, a second one ends at once; SIGTERM (within preemption_grace_s), or a\n"
    "terminal that closes (SIGHUP), saves and stops; SIGUSR1 saves and goes on. Who leaves the pipe\n"
    "stops the run, saved.\n\n"
    "example:\n" CLI_FIRST_RUN
    "\non a mesh, here of 16 virtual devices, add (docs/mesh.md has more):\n"
    "  cpu_devices=16 ici_fsdp_parallelism=4 ici_tensor_parallelism=4\n"
    "\nexit codes: 0 done, 1 failed, 2 configuration, 3 unusable file, 4 no device or plugin, 5 a step, its\n"
    "data or a plugin hangs (step_timeout_s), 6 not finite, or spikes, 75 SIGTERM, 129 SIGHUP, 130 Ctrl-C\n";

const cli_command cli_train_command = {"train", "trains a model", help, cli_train};

typedef struct display {
    pthread_mutex_t lock; /* of all below, once a run is going on */
    bool quiet, live; /* live: a terminal that gets one line, rewritten */
    bool shown;       /* the live line is on the screen */
    int failure;      /* errno of standard output; 0: it takes what it is given */
    const char *run_folder;
    const ts_config *unshown; /* printed behind the line that says which engine runs */
    double seconds; /* smoothed time of a step */
    double loss;    /* smoothed */
} display;

static void clear_live(display *d)
{
    if (d->shown) fputs("\r\033[K", stdout);
    d->shown = false;
}

/* A reader that left (head) wants no more of the run, and it stops. A full disk behind the output does not: the
 * metrics are elsewhere. */
static void show(display *d)
{
    int failure = cli_flush();
    if (!failure || d->failure) return;
    d->failure = failure;
    if (failure != EPIPE)
        fprintf(stderr,
                "tessera: warning: standard output cannot be written: %s; the run goes on, with "
                "metrics.jsonl in %s\n",
                strerror(failure), d->run_folder);
}

static ts_interrupt on_poll(void *context)
{
    display *d = context;
    pthread_mutex_lock(&d->lock);
    const bool left = d->failure == EPIPE;
    pthread_mutex_unlock(&d->lock);
    return left ? TS_SAVE_AND_STOP : cli_signals_poll();
}

static double on_ending(void *context)
{
    (void)context;
    return cli_signals_ending();
}

/* From the watch's thread: nothing here waits for a lock, or for whoever reads standard output. Behind a SIGTERM the
 * code is that of a stop, unless nothing of what was trained is left. */
static void on_stuck(void *context, const ts_stuck *what)
{
    const display *d = context;
    char text[2300];
    snprintf(text, sizeof text, "%stessera train: %s\n", d->live ? "\n" : "", what->text);
    cli_say_now(text);
    const bool lost = what->saved_step < 0 && what->steps > 0;
    _exit(!what->deadline ? 5 : lost ? 1 : 75);
}

/* Messages stand above the live line. */
static void on_log(void *context, ts_log_level level, const char *line)
{
    display *d = context;
    pthread_mutex_lock(&d->lock);
    clear_live(d);
    if (d->live) show(d);
    cli_log(d->quiet, level, line);
    pthread_mutex_unlock(&d->lock);
}

/* A configuration would push a live line's terminal page away. */
static void show_config(display *d)
{
    const ts_config *c = d->unshown;
    d->unshown = NULL;
    if (!c || d->live || !ts_config_wants_log(c)) return;
    char *text = ts_config_text(c);
    if (text) fputs(text, stdout);
    ts_text_free(text);
}

static void on_line(void *context, const char *text)
{
    display *d = context;
    if (d->quiet) return;
    pthread_mutex_lock(&d->lock);
    clear_live(d);
    puts(text);
    /* A run with nothing left to do opens no engine, and says just that. */
    if (strncmp(text, "engine ", 7) == 0) show_config(d);
    show(d);
    pthread_mutex_unlock(&d->lock);
}

static void format_time(double seconds, char *buf, size_t n)
{
    long s = seconds < 0 || seconds > 1e8 ? 0 : lround(seconds);
    if (s >= 3600)
        snprintf(buf, n, "%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(buf, n, "%ld:%02ld", s / 60, s % 60);
}

static int columns(void)
{
    struct winsize w;
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col > 0 ? w.ws_col : 80;
}

/* step 41/590 [=====>    ] loss 2.214  771 tok/s  0.331 s/step  3:02 left */
static void draw_live(display *d, const ts_step_info *i)
{
    char left[32], text[300];
    int width = columns(), bar = width - 66 > 30 ? 30 : width - 66;
    double done = (double)(i->step + 1) / (double)i->steps;
    format_time(d->seconds * (double)(i->steps - i->step - 1), left, sizeof left);
    int n =
        snprintf(text, sizeof text, "step %lld/%lld ", (long long)i->step + 1, (long long)i->steps);
    if (bar >= 8) {
        text[n++] = '[';
        for (int k = 0; k < bar; k++)
            text[n++] = k < done * bar - 1 ? '=' : k < done * bar ? '>' : ' ';
        text[n++] = ']';
        text[n++] = ' ';
    }
    snprintf(text + n, sizeof text - (size_t)n, "loss %.3f  %.0f tokens/s  %.3f s/step  %s left",
             d->loss, (double)i->slots / d->seconds, d->seconds, left);
    printf("\r\033[K%.*s", width - 1, text);
    show(d);
    d->shown = true;
}

static void on_step(void *context, const ts_step_info *i)
{
    display *d = context;
    char line[400];
    double keep = d->seconds > 0 ? 0.9 : 0, keep_loss = isfinite(d->loss) ? keep : 0;
    if (d->quiet) return;
    pthread_mutex_lock(&d->lock);
    d->seconds = keep * d->seconds + (1 - keep) * i->seconds;
    d->loss = (keep_loss > 0 ? keep_loss * d->loss : 0) + (1 - keep_loss) * i->loss;
    bool milestone = i->step == 0 || i->step + 1 == i->steps ||
                     (i->step + 1) * 20 / i->steps != i->step * 20 / i->steps;
    if (!d->live || milestone || i->skipped) {
        clear_live(d);
        puts(ts_step_line(i, line, sizeof line));
    }
    if (d->live && i->step + 1 < i->steps) draw_live(d, i);
    show(d);
    pthread_mutex_unlock(&d->lock);
}

static void on_sample(void *context, int64_t step, const char *text)
{
    display *d = context;
    if (d->quiet) return;
    pthread_mutex_lock(&d->lock);
    clear_live(d);
    printf("sample after step %lld:\n%s\n", (long long)step, text);
    show(d);
    pthread_mutex_unlock(&d->lock);
}

static bool can_rewrite(void)
{
    const char *term = getenv("TERM");
    return isatty(STDOUT_FILENO) && term && *term && strcmp(term, "dumb") != 0;
}

/* What has no effect must be seen everywhere. */
static void show_notes(const ts_config *c, const display *d)
{
    const char *note;
    for (size_t i = 0; !d->quiet && (note = ts_config_note(c, i)); i++)
        fprintf(stderr, "tessera: note: %s\n", note);
}

static void say_stopped(const ts_config *c, const display *d, const ts_train_result *r)
{
    char when[64] = "before the first step";
    const char *why = d->failure == EPIPE ? "nobody reads standard output any more; " : "";
    if (r->steps > 0) snprintf(when, sizeof when, "after step %lld", (long long)r->steps - 1);
    const long long lost = (long long)(r->steps - r->saved_step);
    if (r->saved_step == r->steps)
        fprintf(stderr, "tessera: %sstopped %s; the same command continues %s\n", why, when,
                ts_config_run_folder(c));
    else if (r->saved_step >= 0)
        fprintf(stderr,
                "tessera: %sstopped %s; the newest checkpoint is of step %lld, %lld step%s back: the "
                "same command continues %s from there\n",
                why, when, (long long)r->saved_step, lost, lost == 1 ? "" : "s",
                ts_config_run_folder(c));
    else if (r->steps == 0)
        fprintf(stderr, "tessera: %sstopped %s\n", why, when);
    else
        fprintf(stderr, "tessera: %sstopped %s; nothing was saved (enable_checkpointing=false)\n",
                why, when);
}

static int train(const ts_config *c, display *d)
{
    ts_error err = {0};
    ts_train_hooks hooks;
    ts_train_result result;
    d->run_folder = ts_config_run_folder(c);
    d->unshown = c;
    show_notes(c, d);
    ts_train_hooks_default(&hooks);
    hooks.context = d;
    hooks.line = on_line;
    hooks.step = on_step;
    hooks.sample = on_sample;
    hooks.interrupt = on_poll;
    hooks.ending = on_ending;
    hooks.stuck = on_stuck;
    ts_log_set_sink(on_log, d);
    ts_status status = ts_train(c, &hooks, &result, &err);
    clear_live(d);
    ts_log_set_sink(NULL, NULL); /* d ends here */
    if (status != TS_OK) return cli_fail("train", &err);
    if (!result.interrupted) return 0;
    say_stopped(c, d, &result);
    if (d->failure == EPIPE) cli_stdout_failure_said();
    int code = cli_signals_exit_code();
    return code ? code : 1;
}

int cli_train(int argc, char **argv)
{
    display d = {.lock = PTHREAD_MUTEX_INITIALIZER};
    bool plain = false;
    const cli_option options[] = {{"--quiet", NULL, &d.quiet}, {"--plain", NULL, &plain}};
    const char **words = calloc((size_t)argc + 1, sizeof *words);
    int n;
    if (!words || !cli_options(&cli_train_command, argc, argv, options, 2, words, &n)) {
        free(words);
        return 2;
    }
    if (n == 0) {
        free(words);
        fprintf(stderr,
                "tessera train: what shall be trained? base.yml alone is a model of 1.1 billion "
                "parameters.\nA first run, on any text:\n" CLI_FIRST_RUN
                "  tessera train --help shows what it takes\n");
        return 2;
    }
    cli_signals_install();
    ts_config *c = NULL;
    ts_error err = {0};
    ts_status status = ts_config_load_words(words, n, &c, &err);
    free(words);
    if (status != TS_OK) return cli_fail("train", &err);
    d.live = !plain && !d.quiet && can_rewrite();
    int code = train(c, &d);
    ts_config_free(c);
    return code;
}
