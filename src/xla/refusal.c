/* xla/refusal.c – what a compiler's refusal says of the model: the program's line it names, and whose line that is.
 *
 * A mistake that the compiler finds while it checks an op comes with the op's location, which names the model's part
 * and line already. One that it finds while it reads comes as "-:10:46", a line of the program: that line is
 * quoted here, with the location that it carries.
 */
#include <stdio.h>
#include <stdlib.h>

#include "xla/run.h"

enum { MAX_QUOTE = 400 };

typedef struct span {
    const char *p;
    size_t n;
} span;

static span line_of(const char *text, size_t n, long wanted)
{
    const char *end = text + n;
    for (const char *p = text; p < end && wanted > 0; wanted--) {
        const char *stop = memchr(p, '\n', (size_t)(end - p));
        if (!stop) stop = end;
        if (wanted == 1) {
            while (p < stop && *p == ' ') p++;
            return (span){p, (size_t)(stop - p)};
        }
        p = stop < end ? stop + 1 : end;
    }
    return (span){NULL, 0};
}

/* A line that says loc(#loc7): what the program's end says #loc7 is, without its brackets. */
static span location_of(const char *text, size_t n, span line)
{
    char name[40];
    const char *at = memmem(line.p, line.n, "loc(#", 5), *end = line.p + line.n;
    const char *stop = at ? memchr(at, ')', (size_t)(end - at)) : NULL;
    if (!stop || (size_t)(stop - at) > 30) return (span){NULL, 0};
    int length = snprintf(name, sizeof name, "\n%.*s = loc(", (int)(stop - at - 4), at + 4);
    const char *is = memmem(text, n, name, (size_t)length);
    if (!is) return (span){NULL, 0};
    is += length;
    stop = memchr(is, '\n', (size_t)(text + n - is));
    if (!stop) stop = text + n;
    while (stop > is && stop[-1] != ')') stop--;
    return (span){is, stop > is ? (size_t)(stop - 1 - is) : 0};
}

void ts__xla_explain_refusal(const char *text, size_t n, ts_error *err)
{
    const char *at = strstr(err->msg, "-:");
    char *end;
    if (!at) return;
    long number = strtol(at + 2, &end, 10);
    if (*end != ':' || number <= 0) return;
    span line = line_of(text, n, number), of;
    if (!line.p) return;
    of = location_of(text, n, line);
    if (line.n > MAX_QUOTE) line.n = ts_utf8_valid_prefix(line.p, MAX_QUOTE);
    if (of.n > MAX_QUOTE) of.n = ts_utf8_valid_prefix(of.p, MAX_QUOTE);
    size_t used = strlen(err->msg);
    snprintf(err->msg + used, sizeof err->msg - used, "\nline %ld of the program: %.*s%s%.*s",
             number, (int)line.n, line.p, of.n ? "\nwhich comes from " : "", (int)of.n,
             of.n ? of.p : "");
}
