/* base/log.c – messages of the library go to the sink that the program set, or nowhere.
 *
 * A message is one line without its newline; a longer one is cut. Set the sink before threads start.
 */
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>

static ts_log_sink sink;
static void *sink_context;

void ts_log_set_sink(ts_log_sink new_sink, void *context)
{
    sink = new_sink;
    sink_context = context;
}

void ts_log(ts_log_level level, const char *fmt, ...)
{
    if (!sink) return;
    char line[4096];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    if (n >= 0) sink(sink_context, level, line);
}
