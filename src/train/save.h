/* train/save.h – what saving and starting a run agree on. */
#ifndef TS_TRAIN_SAVE_H
#define TS_TRAIN_SAVE_H

#include "train/run.h"

/* <run folder>/checkpoints. Owns: caller; NULL when memory is out. */
char *ts__save_folder(const ts_run *r);

/* What an evaluation covers: the held-out data of every source, and how many batches of it. */
enum { TS__EVAL_EXTENT = 40 };
const char *ts__eval_extent(const ts_run *r, char text[TS__EVAL_EXTENT]);

/* What the bits of a step depend on beside its inputs. Owns: caller, json_decref; NULL when memory is out. */
json_t *ts__describe_program(const ts_run *r);
/* Says in a line how this run's program differs from the one that a state was saved with, if it does; or that steps
 * have another number of rows. */
void ts__say_program(const ts_run *r, const json_t *state);

/* Says in a line which keys that change what a step computes have another value than in that state's configuration;
 * true where there are some (changes.c). */
bool ts__say_changes(const ts_run *r, const json_t *state);
/* For a position that does not fit: FAILED_PRECONDITION, with the keys of the data that changed, and the way on. */
ts_status ts__other_data(const ts_run *r, const ts_checkpoint *c, ts_error *err);

/* Waits for what is being written; a failure means what it does to a run that goes on. */
ts_status ts__save_wait(ts_run *r, ts_error *err);

#endif
