/* train/watch.h – a thread that notices when a run is stuck.
 *
 * The run says what it begins (a step, a wait for data, a batch of an evaluation, a save); where nothing new is said
 * within the limit, the watch calls stuck from its thread, once. The library ends no process: whoever trains does, with
 * what stuck was told. A deadline (a SIGTERM's grace) is watched in the same way.
 */
#ifndef TS_WATCH_H
#define TS_WATCH_H

#include "base/base.h"

typedef struct ts_watch ts_watch;
/* What takes too long: "step 41 has not ended for 1800 s (step_timeout_s)" and the like. deadline: it is the one that
 * passed. */
typedef void (*ts_watch_stuck)(void *context, const char *what, bool deadline);

/* limit seconds, 0: none (deadlines are still watched). stuck NULL: *out is NULL, and all below do nothing. */
TS_MUST_CHECK ts_status ts_watch_open(double limit, ts_watch_stuck stuck, void *context,
                                      ts_watch **out, ts_error *err);
void ts_watch_close(ts_watch *w); /* NULL is fine, everywhere */
/* Something new begins, by its name ("step", "the data of step", "saving step") and number; −1: no number. */
void ts_watch_begin(ts_watch *w, const char *what, int64_t number);
void ts_watch_idle(ts_watch *w); /* nothing is watched until the next begin: compilation, loading */
/* From now on it must all be over by ts_clock_seconds() = when; the first one counts. */
void ts_watch_deadline(ts_watch *w, double when);

#endif
