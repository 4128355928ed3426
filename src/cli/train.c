/* cli/train.c – tessera train: step lines in a pipe, one live line on a terminal.
 *
 * In a pipe every step is a line and nothing else moves the cursor. On a terminal one line is rewritten
 * with progress and the time left; every twentieth of the run, evaluations and checkpoints stay above it.
 * Times and losses of the live line are smoothed, those of the step lines are not.
 */
#include "cli/cli.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static const char help[] =
    "usage: tessera train [CONFIG.yml] [key=value …] [--quiet] [--plain]\n\n"
    "  CONFIG.yml   base.yml by default: the copy inside the program where no such file exists\n"
    "  key=value    MaxText's keys and Tessera's; configs/base.yml explains every one\n"
    "  --plain      a line a step on a terminal too\n"
    "  --quiet      no step lines, only warnings and errors\n\n"
    "A run of the same name continues from its newest checkpoint. Ctrl-C saves and stops, a second\n"
    "one ends at once; SIGTERM saves and exits with 75; SIGUSR1 saves and goes on.\n\n"
    "example:\n"
    "  tessera train base.yml model_name=tessera-byte dataset_type=text dataset_path=book.txt \\\n"
    "      run_name=first steps=200 per_device_batch_size=16 max_target_length=256 \\\n"
    "      learning_rate=2e-3 dtype=float32\n\n"
    "exit codes: 0 done, 1 failed, 2 configuration, 3 unusable file, 6 not finite, 75 SIGTERM,\n"
    "130 Ctrl-C\n";

const cli_command cli_train_command = {"train", "trains a model", help, cli_train};

typedef struct display {
    bool quiet, live; /* live: a terminal that gets one line, rewritten */
    bool shown;       /* the live line is on the screen */
    double seconds;   /* smoothed time of a step */
    double loss;      /* smoothed */
} display;

static void clear_live(display *d)
{
    if (d->shown) fputs("\r\033[K", stdout);
    d->shown = false;
}

static void on_line(void *context, const char *text)
{
    display *d = context;
    if (d->quiet) return;
    clear_live(d);
    puts(text);
    fflush(stdout);
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
    fflush(stdout);
    d->shown = true;
}

static void on_step(void *context, const ts_step_info *i)
{
    display *d = context;
    char line[400];
    double keep = d->seconds > 0 ? 0.9 : 0;
    if (d->quiet) return;
    d->seconds = keep * d->seconds + (1 - keep) * i->seconds;
    d->loss = keep * d->loss + (1 - keep) * i->loss;
    bool milestone = i->step == 0 || i->step + 1 == i->steps ||
                     (i->step + 1) * 20 / i->steps != i->step * 20 / i->steps;
    if (!d->live || milestone || i->skipped) {
        clear_live(d);
        puts(ts_step_line(i, line, sizeof line));
    }
    if (d->live && i->step + 1 < i->steps) draw_live(d, i);
    fflush(stdout);
}

static void on_sample(void *context, int64_t step, const char *text)
{
    display *d = context;
    if (d->quiet) return;
    clear_live(d);
    printf("sample after step %lld:\n%s\n", (long long)step, text);
    fflush(stdout);
}

static bool can_rewrite(void)
{
    const char *term = getenv("TERM");
    return isatty(STDOUT_FILENO) && term && *term && strcmp(term, "dumb") != 0;
}

static void show_config(const ts_config *c, bool quiet)
{
    const char *note;
    for (size_t i = 0; !quiet && (note = ts_config_note(c, i)); i++)
        fprintf(stderr, "tessera: note: %s\n", note);
    if (quiet || !ts_config_wants_log(c)) return;
    char *text = ts_config_text(c);
    if (text) fputs(text, stdout);
    ts_text_free(text);
    fflush(stdout);
}

static void say_stopped(const ts_config *c, const ts_train_result *r)
{
    if (r->saved_step == r->steps)
        fprintf(stderr, "tessera: stopped after step %lld; the same command continues %s\n",
                (long long)r->steps - 1, ts_config_run_folder(c));
    else
        fprintf(
            stderr,
            "tessera: stopped after step %lld; nothing was saved (enable_checkpointing=false)\n",
            (long long)r->steps - 1);
}

int cli_train(int argc, char **argv)
{
    display d = {0};
    bool plain = false;
    const cli_option options[] = {{"--quiet", NULL, &d.quiet}, {"--plain", NULL, &plain}};
    const char **words = calloc((size_t)argc + 1, sizeof *words);
    int n;
    if (!words || !cli_options(&cli_train_command, argc, argv, options, 2, words, &n)) {
        free(words);
        return 2;
    }
    ts_config *c = NULL;
    ts_error err = {0};
    ts_status status = ts_config_load_words(words, n, &c, &err);
    free(words);
    if (status != TS_OK) return cli_fail("train", &err);
    d.live = !plain && !d.quiet && can_rewrite();
    show_config(c, d.quiet || d.live);
    ts_train_hooks hooks;
    ts_train_hooks_default(&hooks);
    hooks.context = &d;
    hooks.line = on_line;
    hooks.step = on_step;
    hooks.sample = on_sample;
    hooks.interrupt = cli_signals_poll;
    cli_signals_install();
    ts_train_result result;
    status = ts_train(c, &hooks, &result, &err);
    clear_live(&d);
    int code = status == TS_OK ? (result.interrupted ? cli_signals_exit_code() : 0)
                               : cli_fail("train", &err);
    if (code == 130 || code == 75) say_stopped(c, &result);
    ts_config_free(c);
    return code;
}
