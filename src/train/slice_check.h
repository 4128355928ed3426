/* train/slice_check.h – between the halves of the slice check: a program with its buffers on every device, the
 * comparison (slice_check.c) and the timings (slice_time.c).
 */
#ifndef TS_TRAIN_SLICE_CHECK_H
#define TS_TRAIN_SLICE_CHECK_H

#include "exec/engine.h"
#include "mesh/mesh.h"

typedef struct ts_slice_run {
    ts_graph *graph; /* owned, with all the rest */
    ts_executable *executable;
    int devices;
    size_t n_in, n_out;
    ts_buffer **in, **out; /* [devices × n_in], [devices × n_out]; zeroed */
} ts_slice_run;

/* Takes the graph of b, which names the axes of m. On an error nothing is left. */
TS_MUST_CHECK ts_status ts__slice_run_open(ts_engine *e, const ts_mesh *m, ts_builder *b,
                                           ts_slice_run *out, ts_error *err);
void ts__slice_run_close(ts_slice_run *r);
TS_MUST_CHECK ts_status ts__slice_run(ts_slice_run *r, ts_error *err); /* executes and waits */
/* A collective over axis a of m. */
ts_value *ts__slice_collective(ts_builder *b, ts_op op, const ts_mesh *m, int a, ts_value *x);

/* The check on an engine that is open; m has all of its devices. */
TS_MUST_CHECK ts_status ts__slice_check(ts_engine *e, const ts_mesh *m, const ts_slice_options *o,
                                        ts_slice_report *out, ts_error *err);
/* Fills timing and axis[].slow. */
TS_MUST_CHECK ts_status ts__slice_time(ts_engine *e, const ts_mesh *m, ts_slice_report *out,
                                       ts_error *err);

#endif
