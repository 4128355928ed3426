/* cli/checkpoint.h – what the actions of tessera checkpoint share.
 *
 * checkpoint.c: words, verify; checkpoint_ls.c, checkpoint_diff.c, checkpoint_rm.c: an action each;
 * checkpoint_text.c: numbers and names for people, progress.
 */
#ifndef TS_CLI_CHECKPOINT_H
#define TS_CLI_CHECKPOINT_H

#include <stdio.h>

#include "cli/cli.h"

enum { CHECKPOINT_STEPS = 4096 };

typedef struct checkpoint_options {
    bool json, quiet, verify, tensors, dry_run, force, leftovers;
    const char *keep;
    const char **word; /* [n] behind the action */
    int n;
    int64_t *step; /* [n_step] of --step, and of the numbers behind it */
    size_t n_step;
} checkpoint_options;

int checkpoint_ls(const checkpoint_options *o);
int checkpoint_verify(const checkpoint_options *o);
int checkpoint_diff(const checkpoint_options *o);
int checkpoint_rm(const checkpoint_options *o);

/* ---- text ---- */

/* "12.3 MiB" into buf of 32; returns buf. */
const char *checkpoint_size(uint64_t bytes, char *buf);
/* A name or path without characters that a terminal would obey. */
void checkpoint_print(FILE *f, const char *text);
/* "data=1, fsdp=4, tensor=2" as "fsdp=4 tensor=2"; "one device" where nothing is split. Into buf of n; returns buf. */
const char *checkpoint_mesh(const char *mesh, char *buf, size_t n);
const char *checkpoint_state(const ts_survey_row *r);
/* A paragraph, indented and broken at spaces. */
void checkpoint_paragraph(FILE *f, int indent, const char *text);
/* "key": value, null where it is not finite. */
void checkpoint_json_number(const char *key, double value);

/* ---- reading long files ---- */

typedef struct checkpoint_progress {
    uint64_t done, all; /* bytes; all 0: unknown */
    double started, shown;
    bool terminal, visible; /* a line on standard error */
} checkpoint_progress;
void checkpoint_progress_start(checkpoint_progress *p, uint64_t all, bool quiet);
bool checkpoint_progress_add(void *p, uint64_t bytes); /* a ts_progress; false after a signal */
void checkpoint_progress_clear(checkpoint_progress *p);
double checkpoint_seconds(void);

/* Prints the error; the exit code, of the signal where one stopped it. */
int checkpoint_fail(const char *action, const ts_error *err);

#endif
