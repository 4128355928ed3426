/* train/spike.h – whether a loss is a spike, by the losses before it. */
#ifndef TS_SPIKE_H
#define TS_SPIKE_H

#include "base/json.h"

typedef struct ts_spike {
    int64_t window; /* 0: nothing is one */
    double threshold;
    int64_t n, next; /* losses held, at most window; where the next one goes */
    double *loss;    /* [window] */
} ts_spike;

TS_MUST_CHECK ts_status ts_spike_open(int64_t window, double threshold, ts_spike *out, ts_error *err);
void ts_spike_close(ts_spike *s); /* {0} is fine */
/* Is this finite loss a spike? By mean and standard deviation of a full window; where it is none it joins it. */
bool ts_spike_add(ts_spike *s, double loss);
/* Of the losses held; NaN where there is none. */
double ts_spike_mean(const ts_spike *s, double *deviation);
/* All that the next verdict depends on, to the bit: hexadecimal reals. Owns: caller. NULL: memory is out. */
json_t *ts_spike_to_json(const ts_spike *s);
/* A window of another size, or none: begins empty. INVALID_ARGUMENT: it is no such window, and s is as before. */
TS_MUST_CHECK ts_status ts_spike_from_json(ts_spike *s, const json_t *json, ts_error *err);

#endif
