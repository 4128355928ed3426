/* xla/wheel.h – a Python wheel (a zip file) as a place to take single files from. */
#ifndef TS_WHEEL_H
#define TS_WHEEL_H

#include "base/base.h"

typedef struct ts_wheel ts_wheel;
/* DATA_LOSS: it is no zip file, or a damaged one. */
TS_MUST_CHECK ts_status ts__wheel_open(const char *path, ts_wheel **out, ts_error *err);
void ts__wheel_close(ts_wheel *w); /* NULL is fine */

/* The one member whose path is end or ends in "/" end. *bytes: what it says it unpacks to, UINT64_MAX: there is no
 * such member. DATA_LOSS: there are several. */
TS_MUST_CHECK ts_status ts__wheel_find(ts_wheel *w, const char *end, uint64_t *bytes,
                                       ts_error *err);
/* Unpacks the member found last into the file to, and makes it durable. Refuses more than max bytes before
 * writing any; DATA_LOSS when the data are not what the wheel promises. stop (may be NULL) is asked a few
 * times a second; true: CANCELLED. What failed leaves the file unfinished. */
TS_MUST_CHECK ts_status ts__wheel_unpack(ts_wheel *w, const char *to, uint64_t max,
                                         bool (*stop)(void *context), void *context, ts_error *err);

#endif
