/* cli/cli.h – what the subcommands share: words and options, messages, exit codes.
 *
 * Standard output carries results (step lines, text, JSON); everything for people goes to standard error where
 * --json asks for one object. Options are --name VALUE or --name=VALUE; the other words are the command's.
 */
#ifndef TS_CLI_H
#define TS_CLI_H

#include <stdbool.h>
#include <stddef.h>

#include "tessera.h"

typedef struct cli_option {
    const char *name;   /* "--golden" */
    const char **value; /* takes a value; NULL: a flag */
    bool *flag;
} cli_option;

typedef struct cli_command {
    const char *name, *summary, *help; /* help: usage, options, an example */
    int (*run)(int argc, char **argv); /* words behind the subcommand; the exit code */
} cli_command;

/* An example that learns something within minutes. */
#define CLI_FIRST_RUN                                                                               \
    "  tessera train base.yml model_name=tessera-byte dataset_type=text dataset_path=book.txt \\\n" \
    "      run_name=first dtype=float32 remat_policy=none per_device_batch_size=16 \\\n"            \
    "      max_target_length=256 learning_rate=2e-3 num_epoch=100 steps=300\n"

int cli_train(int argc, char **argv);
int cli_parity(int argc, char **argv);
int cli_generate(int argc, char **argv);
int cli_plugins(int argc, char **argv);
int cli_compile(int argc, char **argv);
int cli_plan(int argc, char **argv);
int cli_collectives(int argc, char **argv);
int cli_checkpoint(int argc, char **argv);
extern const cli_command cli_train_command, cli_parity_command, cli_generate_command,
    cli_plugins_command, cli_plan_command, cli_compile_command, cli_collectives_command,
    cli_checkpoint_command;

/* Splits words into options and the rest (words, n_words; words has room for argc). False after printing what is
 * wrong: an unknown option with the nearest one, or a missing value. */
bool cli_options(const cli_command *c, int argc, char **argv, const cli_option *options, size_t n,
                 const char **words, int *n_words);
/* Prints "tessera NAME: message" and returns the exit code of the error. */
int cli_fail(const char *name, const ts_error *err);
int cli_usage(const cli_command *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* A whole number or a real within limits; false after printing what is wrong. */
bool cli_int(const cli_command *c, const char *option, const char *text, long long least,
             long long most, long long *out);
bool cli_real(const cli_command *c, const char *option, const char *text, double least, double most,
              double *out);
/* A JSON string with quotes to standard output; U+FFFD for a byte that is no UTF-8. */
void cli_json_string(const char *s, size_t n);
/* "key": "text". */
void cli_json_member(const char *key, const char *text);
/* A message of the library to standard error. */
void cli_log(bool quiet, ts_log_level level, const char *line);

/* Flushes standard output: 0, or the errno of the first failure of this process. */
int cli_flush(void);
/* The user was told why standard output failed: main need not. */
void cli_stdout_failure_said(void);

/* Ctrl-C, SIGTERM, SIGHUP, SIGUSR1; a reader that leaves the pipe is an error of the write (signals.c). */
void cli_signals_install(void);
ts_interrupt cli_signals_poll(void);
/* Seconds since the first SIGTERM; negative: there was none. Any thread may ask. */
double cli_signals_ending(void);
/* To standard error, past all buffers and locks; nothing where nobody takes it at once. Signal handlers may. */
void cli_say_now(const char *text);
/* 130 after Ctrl-C, 129 after SIGHUP, 75 after SIGTERM, else 0. */
int cli_signals_exit_code(void);
/* For commands with nothing to save: from now on these signals are noted, and the command looks when it can stop. The
 * number of the one that came; 0: none. */
void cli_stop_on_signals(void);
int cli_stopped_by(void);

#endif
