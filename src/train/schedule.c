/* train/schedule.c – the learning rate of a step.
 *
 * warm = ⌊steps · warmup_fraction⌋ steps rise in a line from 0 at step 0; then
 *   cosine: from peak to peak · final over the c = steps − warm that remain,
 *           a = (cos(π · (step − warm) / (c − 1)) + 1) / 2,  rate = peak · (a + final · (1 − a));
 *   wsd:    peak, then ⌊steps · decay_fraction⌋ steps along a line or the same cosine.
 * The last scheduled step has exactly peak · final, every later one 0. With one step to decay over
 * there is nothing to interpolate: that step has peak · final for wsd and peak for cosine.
 * Everything is double; the trainer rounds once, to f32, when it hands the rate to the step.
 */
#include "train/schedule.h"

#include <math.h>

static const double pi = 3.14159265358979323846;

/* From peak to peak · final; i = 0 … n − 1. */
static double cosine(const ts_schedule *s, int64_t i, int64_t n)
{
    if (n > 1 && i == n - 1) return s->peak * s->final_fraction;
    double part = n > 1 ? (double)i / (double)(n - 1) : 0;
    double a = (cos(pi * part) + 1) / 2;
    return s->peak * a + s->peak * s->final_fraction * (1 - a);
}

static double line(const ts_schedule *s, int64_t i, int64_t n)
{
    if (i == n - 1) return s->peak * s->final_fraction;
    double part = (double)i / (double)(n - 1);
    return s->peak * (1 - part) + s->peak * s->final_fraction * part;
}

double ts_schedule_rate(const ts_schedule *s, int64_t step)
{
    int64_t warm = (int64_t)((double)s->steps * s->warmup_fraction);
    if (step < 0 || step >= s->steps) return 0;
    if (step < warm) return s->peak * (double)step / (double)warm;
    if (s->kind == TS_SCHEDULE_COSINE) return cosine(s, step - warm, s->steps - warm);

    int64_t decay = (int64_t)((double)s->steps * s->decay_fraction);
    if (decay > s->steps - warm) decay = s->steps - warm;
    int64_t i = step - (s->steps - decay);
    if (i < 0) return s->peak;
    if (decay == 1) return s->peak * s->final_fraction;
    return s->cosine_decay ? cosine(s, i, decay) : line(s, i, decay);
}
