/* base/log.h – messages of the library. It prints nothing itself: the program sets a sink. */
#ifndef TS_LOG_H
#define TS_LOG_H

#include "base/base.h"

void ts_log(ts_log_level level, const char *fmt, ...) TS_PRINTF(2, 3);

#endif
