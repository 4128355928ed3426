/* xla/child.h – foreign code in a child process, so that it can stall, print, exit or abort without harm.
 *
 * The child's standard streams are a pipe of which the last lines are kept, its result is bytes written to a
 * descriptor. It dies with its parent (PR_SET_PDEATHSIG) and at its time limit. Fork without exec: the child
 * must not use OpenMP, and the parent must not have loaded the plugin that the child is to try. SIGINT, SIGTERM and
 * SIGHUP are held back meanwhile: one that comes ends the child (CANCELLED) and then takes its usual effect on this
 * process, unless the caller holds it back longer to clean up.
 */
#ifndef TS_CHILD_H
#define TS_CHILD_H

#include "base/base.h"

typedef struct ts_child_result {
    ts_string bytes;    /* what work wrote */
    ts_string output;   /* the end of what it printed, ≤ 8 KiB */
    double seconds;
    size_t peak_bytes;  /* largest resident size (ru_maxrss) */
    int signal;         /* that ended it; 0: none */
    int exit_code;      /* where no signal did; 0: work returned */
    bool timed_out, cancelled;
} ts_child_result;

/* work(context, fd) in a child with the environment changed by env ("NAME=value", n of them). TS_OK where work
 * has returned; else UNAVAILABLE or DEADLINE_EXCEEDED with one sentence: "<what> was ended by
 * SIGABRT: <its last line>". r is filled in either case; free it. */
TS_MUST_CHECK ts_status ts__child_run(const char *what, double timeout, const char *const *env, int n,
                                      void (*work)(void *context, int fd), void *context,
                                      ts_child_result *r, ts_error *err);
/* A new folder tessera-NAME-…, in base or, where that is NULL, in $TMPDIR or /tmp; its path in folder. For the caller
 * to remove. */
TS_MUST_CHECK ts_status ts__child_folder(const char *base, const char *name, char *folder, size_t n,
                                         ts_error *err);
/* For work: all of data into its descriptor. False: the parent reads no more, or reports that less came. */
bool ts__child_send(int fd, const void *data, size_t n);
void ts__child_result_free(ts_child_result *r);

#endif
