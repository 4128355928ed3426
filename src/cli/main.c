/* cli/main.c – the program: finds the subcommand, shares options and messages among them.
 *
 * The library reports, the program speaks: log lines and errors go to standard error, and the exit code
 * follows from the error's status. A standard output that cannot be written is a failure of its own.
 * Not here: what a subcommand does (one file each), signals (signals.c).
 */
#include "cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const cli_command *const commands[] = {&cli_train_command, &cli_parity_command,
                                              &cli_generate_command, &cli_plugins_command,
                                              &cli_plan_command, &cli_compile_command,
                                              &cli_collectives_command, &cli_checkpoint_command};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

/* ---- messages -------------------------------------------------------------------------------- */

/* Kubernetes shows this file as the reason of a failed container. */
static void termination_log(const char *text)
{
    static const char path[] = "/dev/termination-log";
    if (access(path, W_OK) != 0) return;
    FILE *f = fopen(path, "w");
    if (!f) return;
    fprintf(f, "%s\n", text);
    fclose(f);
}

int cli_fail(const char *name, const ts_error *err)
{
    (void)cli_flush();
    fprintf(stderr, "tessera %s: %s\n", name, err->msg);
    termination_log(err->msg);
    return ts_status_exit_code(err->code);
}

int cli_usage(const cli_command *c, const char *fmt, ...)
{
    va_list ap;
    fprintf(stderr, "tessera %s: ", c->name);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fprintf(stderr, "\n  tessera %s --help shows what it takes\n", c->name);
    return 2;
}

void cli_log(bool quiet, ts_log_level level, const char *line)
{
    static const char *const prefix[] = {"debug: ", "", "warning: ", "error: "};
    if (level >= (quiet ? TS_LOG_WARNING : TS_LOG_INFO))
        fprintf(stderr, "tessera: %s%s\n", prefix[level], line);
}

static void log_line(void *context, ts_log_level level, const char *line)
{
    cli_log(*(bool *)context, level, line);
}

static void json_character(unsigned char c)
{
    if (c == '"' || c == '\\')
        printf("\\%c", c);
    else if (c == '\n')
        fputs("\\n", stdout);
    else if (c < 0x20)
        printf("\\u%04x", c);
    else
        putchar(c);
}

void cli_json_string(const char *s, size_t n)
{
    putchar('"');
    for (size_t i = 0; i < n; i++) {
        size_t valid = i + ts_utf8_valid_prefix(s + i, n - i);
        for (; i < valid; i++) json_character((unsigned char)s[i]);
        if (i < n) fputs("\\ufffd", stdout);
    }
    putchar('"');
}

void cli_json_member(const char *key, const char *text)
{
    printf("\"%s\": ", key);
    cli_json_string(text, strlen(text));
}

static int stdout_failure;
static bool stdout_failure_said;

int cli_flush(void)
{
    if (fflush(stdout) == 0 && !ferror(stdout)) return stdout_failure;
    if (!stdout_failure) stdout_failure = errno ? errno : EIO;
    return stdout_failure;
}

void cli_stdout_failure_said(void)
{
    stdout_failure_said = true;
}

/* ---- options --------------------------------------------------------------------------------- */

static const cli_option *find_option(const char *word, const cli_option *options, size_t n)
{
    size_t length = strcspn(word, "=");
    for (size_t i = 0; i < n; i++)
        if (strlen(options[i].name) == length && strncmp(word, options[i].name, length) == 0)
            return &options[i];
    return NULL;
}

static bool unknown_option(const cli_command *c, const char *word, const cli_option *options,
                           size_t n)
{
    const char *names[32];
    for (size_t i = 0; i < n; i++) names[i] = options[i].name;
    const char *near = ts_nearest(word, names, n);
    if (near)
        cli_usage(c, "unknown option %s; did you mean %s?", word, near);
    else
        cli_usage(c, "unknown option %s", word);
    return false;
}

bool cli_options(const cli_command *c, int argc, char **argv, const cli_option *options, size_t n,
                 const char **words, int *n_words)
{
    *n_words = 0;
    for (int i = 0; i < argc; i++) {
        if (strncmp(argv[i], "--", 2) != 0) {
            words[(*n_words)++] = argv[i];
            continue;
        }
        const cli_option *o = find_option(argv[i], options, n);
        const char *equals = strchr(argv[i], '=');
        if (!o) return unknown_option(c, argv[i], options, n);
        if (!o->value && equals) {
            cli_usage(c, "option %s takes no value", o->name);
            return false;
        }
        if (!o->value)
            *o->flag = true;
        else if (equals)
            *o->value = equals + 1;
        else if (i + 1 < argc)
            *o->value = argv[++i];
        else {
            cli_usage(c, "option %s needs a value", o->name);
            return false;
        }
    }
    return true;
}

bool cli_int(const cli_command *c, const char *option, const char *text, long long least,
             long long most, long long *out)
{
    char *end;
    errno = 0;
    *out = strtoll(text, &end, 10);
    if (*text && !*end && !errno && *out >= least && *out <= most) return true;
    cli_usage(c, "%s %s: expected a whole number, %lld … %lld", option, text, least, most);
    return false;
}

bool cli_real(const cli_command *c, const char *option, const char *text, double least, double most,
              double *out)
{
    char *end;
    *out = strtod(text, &end);
    if (*text && !*end && isfinite(*out) && *out >= least && *out <= most) return true;
    cli_usage(c, "%s %s: expected a number, %g … %g", option, text, least, most);
    return false;
}

/* ---- main ------------------------------------------------------------------------------------ */

static void print_help(FILE *f)
{
    fprintf(f, "tessera %s – trains large language models\n\nusage: tessera COMMAND …\n\n",
            TS_VERSION);
    for (int i = 0; i < N_COMMANDS; i++)
        fprintf(f, "  %-11s %s\n", commands[i]->name, commands[i]->summary);
    fprintf(f, "\ntessera COMMAND --help tells more. A first run, on any text:\n" CLI_FIRST_RUN);
}

static int unknown_command(const char *word)
{
    const char *names[N_COMMANDS];
    for (int i = 0; i < N_COMMANDS; i++) names[i] = commands[i]->name;
    const char *near = ts_nearest(word, names, N_COMMANDS);
    fprintf(stderr, "tessera: unknown command %s", word);
    if (near) fprintf(stderr, "; did you mean %s?", near);
    fprintf(stderr, "\n  tessera --help lists the commands\n");
    return 2;
}

static int run_command(const cli_command *c, int argc, char **argv)
{
    static bool quiet;
    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            printf("tessera %s – %s\n\n%s", c->name, c->summary, c->help);
            return 0;
        }
        quiet |= strcmp(argv[i], "--quiet") == 0;
    }
    ts_log_set_sink(log_line, &quiet);
    return c->run(argc, argv);
}

static int run_words(int argc, char **argv)
{
    if (argc < 2) {
        print_help(stderr);
        return 2;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0) {
        print_help(stdout);
        return 0;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("tessera %s\n", TS_VERSION);
        return 0;
    }
    for (int i = 0; i < N_COMMANDS; i++)
        if (strcmp(argv[1], commands[i]->name) == 0)
            return run_command(commands[i], argc - 2, argv + 2);
    return unknown_command(argv[1]);
}

/* A thread that waits at the end of a parallel loop spins, by libgomp's default for milliseconds. Where
 * another process wants the core too, the threads then keep each other from working: five times the time
 * a step, measured with three busy processes on two cores. A thousand turns cost nothing measurable on an
 * idle machine. libgomp reads the variable when it is loaded, hence the program starts itself again.
 * Whoever sets one of the variables decides. */
static void wait_politely(char **argv)
{
    if (getenv("GOMP_SPINCOUNT") || getenv("OMP_WAIT_POLICY")) return;
    if (setenv("GOMP_SPINCOUNT", "1000", 1) == 0) execv("/proc/self/exe", argv);
}

/* A closed standard stream's number would go to the next file that is opened, and messages into a checkpoint. What
 * is opened here can only be read: writing fails as on the closed one. */
static void open_standard_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/dev/null", O_RDONLY) != fd) _exit(1);
}

int main(int argc, char **argv)
{
    open_standard_streams();
    signal(SIGCHLD, SIG_DFL); /* a parent that ignores it would hide how our children end */
    signal(SIGXFSZ, SIG_IGN); /* the write that goes beyond the limit fails and is reported */
    wait_politely(argv);
    int code = run_words(argc, argv), failure = cli_flush();
    if (!failure) return code;
    if (!stdout_failure_said)
        fprintf(stderr, "tessera: standard output could not be written: %s\n", strerror(failure));
    return code ? code : 1;
}
