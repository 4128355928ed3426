/* train/schedule.h – the learning rate of a step, by MaxText's formulas. */
#ifndef TS_TRAIN_SCHEDULE_H
#define TS_TRAIN_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

typedef enum ts_schedule_kind { TS_SCHEDULE_COSINE, TS_SCHEDULE_WSD } ts_schedule_kind;

typedef struct ts_schedule {
    ts_schedule_kind kind;
    double peak;            /* learning_rate */
    double final_fraction;  /* the last scheduled rate is peak · final_fraction */
    int64_t steps;          /* beyond them the rate is 0 */
    double warmup_fraction; /* of steps: linear from 0 to peak */
    double decay_fraction;  /* wsd: of steps */
    bool cosine_decay;      /* wsd: decay along a cosine instead of a line */
} ts_schedule;

/* Rate of the step counted from 0. */
double ts_schedule_rate(const ts_schedule *s, int64_t step);

#endif
