/* base/base.c – statuses, error values, the assert, the clock and the nearest word.
 *
 * A ts_error keeps the first thing that went wrong: later calls on the same error only add context
 * in front, so that the message which reaches the user names the cause and not a consequence.
 * Not here: allocation (alloc.c), files (file.c), messages to the user (log.c).
 */
#include "base/base.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

const char *ts_status_name(ts_status code)
{
    static const char *const names[] = {
        "OK",
        "CANCELLED",
        "UNKNOWN",
        "INVALID_ARGUMENT",
        "DEADLINE_EXCEEDED",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION",
        "ABORTED",
        "OUT_OF_RANGE",
        "UNIMPLEMENTED",
        "INTERNAL",
        "UNAVAILABLE",
        "DATA_LOSS",
    };
    size_t i = (size_t)code;
    return i < sizeof names / sizeof names[0] ? names[i] : "UNKNOWN";
}

int ts_status_exit_code(ts_status code)
{
    switch (code) {
    case TS_OK: return 0;
    case TS_INVALID_ARGUMENT:
    case TS_NOT_FOUND:
    case TS_PERMISSION_DENIED:
    case TS_ALREADY_EXISTS:
    case TS_FAILED_PRECONDITION:
    case TS_OUT_OF_RANGE: return 2;
    case TS_DATA_LOSS: return 3;
    case TS_UNAVAILABLE: return 4;
    case TS_DEADLINE_EXCEEDED: return 5;
    case TS_ABORTED: return 6;
    case TS_CANCELLED: return 130;
    default: return 1;
    }
}

/* The only place of the library that writes to standard error: the program is about to end. */
void ts__assert_failed(const char *file, int line, const char *what)
{
    char text[512];
    int n = snprintf(text, sizeof text, "%s:%d: assertion failed: %s\n", file, line, what);
    size_t bytes = n < 0 ? 0 : (size_t)n < sizeof text ? (size_t)n : sizeof text - 1;
    if (write(STDERR_FILENO, text, bytes) < 0) abort();
    abort();
}

/* Names out of hostile files end up in messages: none may move the cursor of a terminal. */
static void make_printable(char *text)
{
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if ((c < 0x20 && c != '\n' && c != '\t') || c == 0x7f) *text = '?';
    }
}

ts_status ts__error(ts_error *err, ts_status code, const char *file, int line, const char *fmt, ...)
{
    TS_ASSERT(code != TS_OK);
    if (!err || err->code != TS_OK) return code;
    err->code = code;
    err->file = file;
    err->line = line;
    va_list args;
    va_start(args, fmt);
    if (vsnprintf(err->msg, sizeof err->msg, fmt, args) < 0) err->msg[0] = '\0';
    va_end(args);
    make_printable(err->msg);
    return code;
}

ts_status ts__error_context(ts_error *err, const char *fmt, ...)
{
    if (!err) return TS_UNKNOWN;
    char front[1024];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(front, sizeof front, fmt, args);
    va_end(args);
    if (n < 0) return err->code;
    make_printable(front);
    size_t front_bytes = strlen(front), message_bytes = strlen(err->msg);
    size_t room = sizeof err->msg - 1 - front_bytes - 2;
    if (message_bytes > room) message_bytes = room;
    memmove(err->msg + front_bytes + 2, err->msg, message_bytes);
    memcpy(err->msg, front, front_bytes);
    memcpy(err->msg + front_bytes, ": ", 2);
    err->msg[front_bytes + 2 + message_bytes] = '\0';
    return err->code;
}

double ts_clock_seconds(void)
{
    struct timespec t;
    if (clock_gettime(CLOCK_MONOTONIC, &t) != 0) return 0.0;
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

enum { WORD_MAX = 96 };

/* Edit distance where swapping two neighbours counts as one (optimal string alignment). */
static size_t edit_distance(const char *a, size_t n, const char *b, size_t m)
{
    size_t row[3][WORD_MAX + 1];
    size_t *before = row[0], *last = row[1], *now = row[2];
    for (size_t j = 0; j <= m; j++) last[j] = j;
    for (size_t i = 1; i <= n; i++) {
        now[0] = i;
        for (size_t j = 1; j <= m; j++) {
            size_t best = last[j - 1] + (a[i - 1] != b[j - 1]);
            if (last[j] + 1 < best) best = last[j] + 1;
            if (now[j - 1] + 1 < best) best = now[j - 1] + 1;
            bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
            if (swapped && before[j - 2] + 1 < best) best = before[j - 2] + 1;
            now[j] = best;
        }
        size_t *spare = before;
        before = last;
        last = now;
        now = spare;
    }
    return last[m];
}

const char *ts_nearest_word(const char *word, const char *const *candidates, size_t n)
{
    size_t length = strlen(word);
    if (length == 0 || length > WORD_MAX) return NULL;
    size_t limit = length / 3 > 2 ? length / 3 : 2;
    const char *best = NULL;
    size_t best_distance = limit + 1;
    for (size_t i = 0; i < n; i++) {
        size_t m = strlen(candidates[i]);
        size_t gap = m > length ? m - length : length - m;
        if (m > WORD_MAX || gap >= best_distance) continue;
        size_t d = edit_distance(word, length, candidates[i], m);
        if (d < best_distance && d < length) {
            best = candidates[i];
            best_distance = d;
        }
    }
    return best;
}
