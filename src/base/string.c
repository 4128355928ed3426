/* base/string.c – a growing string with a mandatory maximum.
 *
 * Errors stick: once something did not fit, or memory was out, `failed` is set, the text keeps what
 * it had, and later calls do nothing. So a writer adds many pieces and checks once.
 */
#include "base/base.h"

#include <stdarg.h>
#include <stdio.h>

/* Room for n more bytes and the terminator. */
static bool make_room(ts_string *s, size_t n)
{
    if (s->failed) return false;
    size_t length, need;
    if (ts_add_size(s->length, n, &length) || length > s->max || ts_add_size(length, 1, &need)) {
        s->failed = true;
        return false;
    }
    if (need <= s->capacity) return true;
    size_t capacity = s->capacity ? s->capacity : 64;
    while (capacity < need)
        if (ts_mul_size(capacity, 2, &capacity)) capacity = need;
    char *data = ts_realloc(s->data, s->length, capacity);
    if (!data) {
        s->failed = true;
        return false;
    }
    s->data = data;
    s->capacity = capacity;
    return true;
}

void ts_string_add_bytes(ts_string *s, const void *data, size_t n)
{
    if (!make_room(s, n)) return;
    if (n) memcpy(s->data + s->length, data, n);
    s->length += n;
    s->data[s->length] = '\0';
}

void ts_string_add(ts_string *s, const char *text)
{
    ts_string_add_bytes(s, text, strlen(text));
}

void ts_string_printf(ts_string *s, const char *fmt, ...)
{
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    if (n < 0) {
        s->failed = true;
    } else if (make_room(s, (size_t)n)) {
        vsnprintf(s->data + s->length, (size_t)n + 1, fmt, again);
        s->length += (size_t)n;
    }
    va_end(again);
}

void ts_string_free(ts_string *s)
{
    ts_free(s->data);
    s->data = NULL;
    s->length = s->capacity = 0;
    s->failed = false;
}
