/* ir/build_xent.c – putting a cross-entropy together whose vocabulary is split over devices.
 *
 * Each device has classes [first, first + V) and the part that ts_xent_rows makes of them, with
 * labels − first: largest logit, Σ exp(logit − largest), the label's logit. The whole is
 *
 *     most = all_reduce max of the largest;  sum = rescale(part, most)
 *     sum, target = one all_reduce of (sum, target);  finish({most, sum, target}, labels)
 *
 * with elementwise work only in between. finish takes the labels of the whole vocabulary. The
 * gradient is linear_xent_grad with finish's log-sum-exp, on each device's classes and labels −
 * first, with the dlse that shard_dlse makes: its dx is a partial sum over the devices, its dw is
 * the device's own. Of one device this is linear_xent, whose lowering uses finish. Not here: the
 * collectives, which are the partitioner's.
 */
#include "ir/builder.h"

/* pred [T]: the label is one of the classes. */
static ts_value *counted(ts_builder *b, ts_value *labels, int64_t classes)
{
    ts_value *first = ts_scalar(b, 0, TS_I32), *end = ts_scalar(b, (double)classes, TS_I32);
    return ts_and(b, ts_compare(b, TS_GE, labels, first), ts_compare(b, TS_LT, labels, end));
}

/* part's sum as Σ exp(logit − most), most ≥ its largest; f32 [T]. */
ts_value *ts__xent_rescale(ts_builder *b, ts_value *const part[3], ts_value *most)
{
    return ts_mul(b, part[1], ts_exp(b, ts_sub(b, part[0], most)));
}

/* Loss and log-sum-exp, f32 [T]; the loss is 0 where the label is none of the classes. */
void ts__xent_finish(ts_builder *b, ts_value *const part[3], ts_value *labels, int64_t classes,
                     ts_value **loss, ts_value **lse)
{
    *lse = ts_add(b, part[0], ts_log_e(b, part[1]));
    *loss = ts_select(b, counted(b, labels, classes), ts_sub(b, *lse, part[2]),
                      ts_scalar(b, 0, TS_F32));
}

/* The dlse of a device's linear_xent_grad, f32 [T]. That op takes a label that is no class of its
 * own as ignored, so where another device has the class, dloss reaches the softmax through dlse.
 * labels: of all `classes`; local: labels − first, of the device's V. */
ts_value *ts__xent_shard_dlse(ts_builder *b, ts_value *labels, int64_t classes, ts_value *local,
                              int64_t V, ts_value *dloss, ts_value *dlse)
{
    ts_value *elsewhere = ts_and(b, counted(b, labels, classes), ts_not(b, counted(b, local, V)));
    return ts_add(b, dlse, ts_select(b, elsewhere, dloss, ts_scalar(b, 0, TS_F32)));
}
