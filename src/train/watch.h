/* train/watch.h – a thread that notices when a run is stuck.
 *
 * The run says what it begins (a step, a wait for data, a batch of an evaluation, a save); where nothing new is said
 * within the limit, the watch calls stuck from its thread, once. The library ends no process: whoever trains does, with
 * what stuck was told. A deadline (a SIGTERM's grace) is watched in the same way; the watch asks for it itself, because
 * whoever is stuck does not.
 */
#ifndef TS_WATCH_H
#define TS_WATCH_H

#include "base/base.h"

typedef struct ts_watch ts_watch;
/* What takes too long: "step 41"; "" where nothing was begun. seconds: since it began. deadline: it is the one that
 * passed. */
typedef void (*ts_watch_stuck)(void *context, const char *what, double seconds, bool deadline);
/* When it must all be over, as ts_clock_seconds(); 0: nobody has said so. Asked a few times a second. */
typedef double (*ts_watch_deadline)(void *context);

/* limit seconds, 0: none. Either function may be NULL, and both are called from the watch's thread. stuck NULL: *out is
 * NULL, and all below do nothing. */
TS_MUST_CHECK ts_status ts_watch_open(double limit, ts_watch_stuck stuck,
                                      ts_watch_deadline deadline, void *context, ts_watch **out,
                                      ts_error *err);
void ts_watch_close(ts_watch *w); /* not from within stuck; NULL is fine, everywhere */
/* Something new begins, by its name ("step", "the data of step", "saving step") and number; −1: no number. what: for as
 * long as the watch. */
void ts_watch_begin(ts_watch *w, const char *what, int64_t number);
void ts_watch_idle(ts_watch *w); /* no limit until the next begin: compilation, loading */

#endif
