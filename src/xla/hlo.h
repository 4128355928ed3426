/* xla/hlo.h – what an optimized HLO module says about itself: work, memory traffic, collectives.
 *
 * XLA's own cost analysis counts the body of a loop once; here it counts as often as it runs (known_trip_count, or
 * the comparison in the loop's condition).
 */
#ifndef TS_HLO_H
#define TS_HLO_H

#include "base/base.h"

typedef struct ts_hlo_collective {
    char op[40];          /* "all-gather", "all-reduce-start" */
    int64_t group;        /* devices of a group; 0 where the text does not say */
    int64_t sites, count; /* instructions; executions with loops multiplied out */
    int64_t bytes;        /* of the operands of all executions */
    bool asynchronous;
    char name[120];       /* op_name of its metadata: the scope in the model; of the first site */
} ts_hlo_collective;

typedef struct ts_hlo_summary {
    double flops;         /* of dots and convolutions, 2 a multiply-add; elementwise work is not counted */
    double bytes;         /* operands and results of the instructions that touch memory */
    ts_hlo_collective *collective; /* one row for each (op, group) */
    size_t n_collective;
    int64_t unknown_loops; /* loops whose count could not be read, taken once */
} ts_hlo_summary;

/* text: an HLO module as xla_dump_to writes it. DATA_LOSS with the line where it is not one. */
TS_MUST_CHECK ts_status ts__hlo_summarize(const char *text, size_t n, ts_hlo_summary *out,
                                          ts_error *err);
void ts__hlo_summary_free(ts_hlo_summary *s);

#endif
