/* ir/parse_text.c – the words of a graph's text: skips space and comments (# to the end of the
 * line), reads tokens, and reports the first mistake with its line and column.
 *
 * Never reads past the text, which need not end in NUL; every list has its limit. What the words
 * mean together is in parse.c.
 */
#include "ir/parse_text.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

bool ts__scan_fail(ts_scan *s, const char *fmt, ...)
{
    char text[700];
    size_t line = 1, column = 1;
    if (s->failed) return false;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    for (size_t i = 0; i < s->at && i < s->n; i++) {
        column++;
        if (s->text[i] == '\n') {
            line++;
            column = 1;
        }
    }
    s->failed = true;
    TS_ERROR(s->err, TS_DATA_LOSS, "graph text %zu:%zu: %s", line, column, text);
    return false;
}

bool ts__scan_memory(ts_scan *s)
{
    if (!s->failed)
        TS_ERROR(s->err, TS_RESOURCE_EXHAUSTED, "memory is out while reading a graph's text");
    s->failed = true;
    return false;
}

static void skip_space(ts_scan *s)
{
    while (s->at < s->n) {
        char c = s->text[s->at];
        if (c == '#')
            while (s->at < s->n && s->text[s->at] != '\n') s->at++;
        else if (c == ' ' || c == '\n' || c == '\t' || c == '\r') s->at++;
        else return;
    }
}

static bool word_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/* The token at hand, for messages. */
static const char *at_hand(const ts_scan *s, char buf[24])
{
    size_t n = 0;
    if (s->at >= s->n) return "the end";
    buf[n++] = '\'';
    for (size_t i = s->at; i < s->n && n < 20; i++) {
        unsigned char c = (unsigned char)s->text[i];
        if (c <= ' ' || c >= 0x7f) break;
        buf[n++] = (char)c;
        if (!word_char((char)c)) break;
    }
    if (n == 1) n += (size_t)snprintf(buf + 1, 8, "\\x%02x", (unsigned char)s->text[s->at]);
    buf[n++] = '\'';
    buf[n] = 0;
    return buf;
}

bool ts__scan_accept(ts_scan *s, char c)
{
    if (s->failed) return false;
    skip_space(s);
    if (s->at >= s->n || s->text[s->at] != c) return false;
    s->at++;
    return true;
}

bool ts__scan_accept_word(ts_scan *s, const char *word)
{
    size_t n = strlen(word);
    if (s->failed) return false;
    skip_space(s);
    if (s->n - s->at < n || memcmp(s->text + s->at, word, n) != 0) return false;
    if (s->at + n < s->n && word_char(s->text[s->at + n])) return false;
    s->at += n;
    return true;
}

bool ts__scan_expect(ts_scan *s, char c)
{
    char buf[24];
    return ts__scan_accept(s, c) || ts__scan_fail(s, "found %s; expected '%c'", at_hand(s, buf), c);
}

bool ts__scan_expect_word(ts_scan *s, const char *word)
{
    char buf[24];
    return ts__scan_accept_word(s, word) ||
           ts__scan_fail(s, "found %s; expected %s", at_hand(s, buf), word);
}

bool ts__scan_word(ts_scan *s, char word[TS_WORD_MAX])
{
    char buf[24];
    size_t n = 0;
    if (s->failed) return false;
    skip_space(s);
    while (s->at + n < s->n && word_char(s->text[s->at + n]) && n < TS_WORD_MAX) n++;
    if (n == 0 || n == TS_WORD_MAX || (*(s->text + s->at) >= '0' && *(s->text + s->at) <= '9'))
        return ts__scan_fail(s, "found %s; expected a word", at_hand(s, buf));
    memcpy(word, s->text + s->at, n);
    word[n] = 0;
    s->at += n;
    return true;
}

/* A number's characters, NUL-terminated. */
static bool number_text(ts_scan *s, char text[48])
{
    char buf[24];
    size_t n = 0;
    if (s->failed) return false;
    skip_space(s);
    while (s->at + n < s->n && n < 47) {
        char c = s->text[s->at + n];
        if (!word_char(c) && c != '+' && c != '-' && c != '.') break;
        text[n++] = c;
    }
    text[n] = 0;
    return n || ts__scan_fail(s, "found %s; expected a number", at_hand(s, buf));
}

bool ts__scan_int(ts_scan *s, int64_t *v)
{
    char text[48];
    if (!number_text(s, text)) return false;
    size_t i = text[0] == '-', n = strlen(text);
    int64_t value = 0;
    bool bad = i == n;
    for (; i < n && !bad; i++)
        bad = text[i] < '0' || text[i] > '9' || ts_mul_i64(value, 10, &value) ||
              ts_add_i64(value, text[0] == '-' ? -(text[i] - '0') : text[i] - '0', &value);
    if (bad) return ts__scan_fail(s, "found '%s'; expected an integer of 64 bits", text);
    s->at += n;
    *v = value;
    return true;
}

bool ts__scan_int_in(ts_scan *s, int64_t low, int64_t high, int64_t *v)
{
    if (!ts__scan_int(s, v)) return false;
    if (*v >= low && *v <= high) return true;
    return ts__scan_fail(s, "found %" PRId64 "; expected %" PRId64 " to %" PRId64, *v, low, high);
}

bool ts__scan_real(ts_scan *s, double *v)
{
    char text[48], *end;
    if (!number_text(s, text)) return false;
    double value = strtod(text, &end);
    if (*end) return ts__scan_fail(s, "found '%s'; expected a number", text);
    s->at += strlen(text);
    *v = value;
    return true;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool ts__scan_string(ts_scan *s, const char **v)
{
    if (!ts__scan_expect(s, '"')) return false;
    size_t end = s->at, n = 0;
    while (end < s->n && s->text[end] != '"') end += s->text[end] == '\\' ? 2 : 1;
    if (end >= s->n) return ts__scan_fail(s, "a string is not closed");
    char *out = ts_arena_alloc(s->arena, end - s->at + 1);
    if (!out) return ts__scan_memory(s);
    while (s->at < end) {
        char c = s->text[s->at];
        int high = 0, low = 0;
        if (c == 0) return ts__scan_fail(s, "a string holds a NUL byte");
        if (c == '\\') {
            c = s->text[++s->at];
            if (c == 'x' && s->at + 2 < end) {
                high = hex_digit(s->text[s->at + 1]);
                low = hex_digit(s->text[s->at + 2]);
                c = (char)(high * 16 + low);
                s->at += 2;
            } else if (c != '"' && c != '\\') {
                return ts__scan_fail(s, "an escape is none of \\\\, \\\" and \\x with two digits");
            }
            if (high < 0 || low < 0 || c == 0)
                return ts__scan_fail(s, "\\x needs two digits of 0-9a-f, not 00");
        }
        out[n++] = c;
        s->at++;
    }
    s->at = end + 1;
    *v = out;
    return true;
}

bool ts__scan_dtype(ts_scan *s, ts_dtype *t)
{
    char word[TS_WORD_MAX];
    if (!ts__scan_word(s, word)) return false;
    for (int i = 0; i < TS_DTYPES; i++)
        if (strcmp(word, ts_dtype_name((ts_dtype)i)) == 0) {
            *t = (ts_dtype)i;
            return true;
        }
    return ts__scan_fail(s, "found '%s'; expected a dtype: f32, bf16, i32, u32, pred", word);
}

bool ts__scan_name(ts_scan *s, const char **name)
{
    char word[TS_WORD_MAX];
    skip_space(s);
    if (s->at < s->n && s->text[s->at] == '"') return ts__scan_string(s, name);
    if (!ts__scan_word(s, word)) return false;
    return (*name = ts_arena_strdup(s->arena, word)) || ts__scan_memory(s);
}

bool ts__scan_dims(ts_scan *s, ts_shape *shape)
{
    *shape = (ts_shape){0};
    if (!ts__scan_expect(s, '[')) return false;
    if (ts__scan_accept(s, ']')) return true;
    do {
        ts_dim d = {NULL, 0};
        skip_space(s);
        if (shape->rank == TS_MAX_RANK)
            return ts__scan_fail(s, "more than %d dimensions", TS_MAX_RANK);
        char c = s->at < s->n ? s->text[s->at] : 0;
        if ((c == '"' || (word_char(c) && !(c >= '0' && c <= '9'))) &&
            (!ts__scan_name(s, &d.name) || !ts__scan_expect(s, ':')))
            return false;
        if (!ts__scan_int_in(s, 0, INT64_MAX, &d.size)) return false;
        shape->dim[shape->rank++] = d;
    } while (ts__scan_accept(s, ','));
    return ts__scan_expect(s, ']');
}

bool ts__scan_ints(ts_scan *s, ts_dims *d)
{
    *d = (ts_dims){0};
    if (!ts__scan_expect(s, '[')) return false;
    if (ts__scan_accept(s, ']')) return true;
    do {
        if (d->n == TS_MAX_RANK) return ts__scan_fail(s, "more than %d integers", TS_MAX_RANK);
        if (!ts__scan_int(s, &d->v[d->n++])) return false;
    } while (ts__scan_accept(s, ','));
    return ts__scan_expect(s, ']');
}

bool ts__scan_type(ts_scan *s, ts_type *t)
{
    ts_dtype dtype;
    ts_shape shape;
    ts_error why = {0};
    if (!ts__scan_dtype(s, &dtype) || !ts__scan_dims(s, &shape)) return false;
    *t = ts_type_make(dtype, shape.dim, shape.rank);
    return ts__type_check(t, "type", &why) == TS_OK || ts__scan_fail(s, "%.400s", why.msg);
}
