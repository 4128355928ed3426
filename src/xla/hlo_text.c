/* xla/hlo_text.c – the small texts inside HLO: attributes, lists, numbers, and what an instruction is called.
 *
 * Names: the writer puts the graph's scope and the model's file into source_file and the line into source_line,
 * because XLA keeps only these of a location on every path; op_name is what is left where they are missing.
 */
#include <ctype.h>
#include <stdio.h>

#include "xla/hlo_internal.h"

bool ts__hlo_element(slice list, size_t *at, slice *out)
{
    size_t begin = 0, end = list.n;
    if (list.n >= 2 && list.p[0] == '{' && list.p[list.n - 1] == '}') begin++, end--;
    size_t i = *at > begin ? *at : begin;
    if (i >= end) return false;
    int64_t depth = 0;
    bool quoted = false;
    size_t start = i;
    for (; i < end; i++) {
        char c = list.p[i];
        if (quoted) {
            if (c == '\\') i++;
            if (c == '"') quoted = false;
            continue;
        }
        quoted = c == '"';
        if (c == '(' || c == '{' || c == '[') depth++;
        if (c == ')' || c == '}' || c == ']') depth--;
        if (c == ',' && depth <= 0) break;
    }
    if (i > end) i = end;
    *at = i + 1;
    while (start < i && list.p[start] == ' ') start++;
    if (i - start > 4 && memcmp(list.p + start, "/*", 2) == 0) { /* index of an element */
        const char *stop = memmem(list.p + start, i - start, "*/", 2);
        if (stop) start = (size_t)(stop - list.p) + 2;
    }
    *out = (slice){list.p + start, i - start};
    while (out->n && out->p[out->n - 1] == ' ') out->n--;
    return out->n > 0 || *at < end;
}

bool ts__hlo_int(slice s, int64_t *out)
{
    size_t i = 0;
    bool negative = s.n && s.p[0] == '-';
    int64_t v = 0;
    for (i += negative; i < s.n && isdigit((unsigned char)s.p[i]); i++)
        if (ts_mul_i64(v, 10, &v) || ts_add_i64(v, s.p[i] - '0', &v)) return false;
    *out = negative ? -v : v;
    return i > (size_t)negative;
}

bool ts__hlo_attr(const hlo_instruction *x, const char *key, slice *out)
{
    size_t at = 0, n = strlen(key);
    slice one;
    while (ts__hlo_element(x->attrs, &at, &one)) {
        if (one.n <= n || one.p[n] != '=' || memcmp(one.p, key, n) != 0) continue;
        *out = (slice){one.p + n + 1, one.n - n - 1};
        return true;
    }
    return false;
}

int ts__hlo_computation(const ts_hlo *h, slice name, int below)
{
    if (name.n && name.p[0] == '%') name.p++, name.n--;
    for (int i = below - 1; i >= 0; i--) {
        slice s = h->computation[i].name;
        if (s.n == name.n && memcmp(s.p, name.p, s.n) == 0) return i;
    }
    return -1;
}

/* What stands behind key in metadata={…}, without quotes. */
static slice metadata(const hlo_instruction *x, const char *key)
{
    slice all, none = {"", 0};
    if (!ts__hlo_attr(x, "metadata", &all)) return none;
    const char *p = memmem(all.p, all.n, key, strlen(key));
    if (!p) return none;
    p += strlen(key);
    const char *end = all.p + all.n;
    bool quoted = p < end && *p == '"';
    slice s = {p += quoted, 0};
    while (p < end && (quoted ? *p != '"' : *p != ' ' && *p != '}')) p++;
    s.n = (size_t)(p - s.p);
    return s;
}

int64_t ts__hlo_field(slice s, const char *key)
{
    const char *p = memmem(s.p, s.n, key, strlen(key));
    int64_t v;
    if (!p) return 0;
    p += strlen(key);
    return ts__hlo_int((slice){p, (size_t)(s.p + s.n - p)}, &v) ? v : 0;
}

/* The place that a stack frame names: through the tables at the head of the text. */
static slice framed(const ts_hlo *h, const hlo_instruction *x, int64_t *line)
{
    slice all, none = {"", 0};
    if (!ts__hlo_attr(x, "metadata", &all)) return none;
    int64_t frame = ts__hlo_field(all, "stack_frame_id=");
    if (frame < 1 || frame > h->n_frame) return none;
    int64_t place = h->frame[frame - 1];
    if (place < 1 || place > h->n_location) return none;
    int64_t file = h->location[place - 1].file;
    *line = h->location[place - 1].line;
    return file < 1 || file > h->n_file ? none : h->file[file - 1];
}

void ts__hlo_scope(const ts_hlo *h, const hlo_instruction *x, char *buf, size_t n)
{
    slice file = metadata(x, "source_file="), op = metadata(x, "op_name=");
    slice number = metadata(x, "source_line=");
    int64_t line = 0;
    buf[0] = '\0';
    if (file.n < 2)
        file = framed(h, x, &line);
    else if (!ts__hlo_int(number, &line))
        line = 0;
    if (file.n && line > 0)
        snprintf(buf, n, "%.*s:%lld", (int)file.n, file.p, (long long)line);
    else if (file.n || op.n)
        snprintf(buf, n, "%.*s", (int)(file.n ? file.n : op.n), file.n ? file.p : op.p);
    buf[ts_utf8_valid_prefix(buf, strlen(buf))] = '\0';
}

static void shape_text(const hlo_shape *s, char *buf, size_t n)
{
    int at = snprintf(buf, n, "%s", s->tuple ? "tuple" : s->dtype);
    if (s->tuple) return;
    for (int i = 0; i < s->rank && at < (int)n; i++)
        at += snprintf(buf + at, n - (size_t)at, "%c%lld", i ? ',' : '[', (long long)s->dim[i]);
    if (at < (int)n) snprintf(buf + at, n - (size_t)at, s->rank ? "]" : "[]");
}

bool ts__hlo_find(const ts_hlo *h, const char *name, size_t n, int tuple_index, ts_hlo_value *out)
{
    for (int i = 0; i < h->n_instruction; i++) {
        const hlo_instruction *x = &h->instruction[i];
        if (x->name.n != n || memcmp(x->name.p, name, n) != 0) continue;
        const hlo_shape *s = x->shape;
        if (tuple_index >= 0 && tuple_index < s->n_child) s = s->child[tuple_index];
        out->bytes = s->bytes;
        out->parameter = x->computation == h->entry ? x->number : -1;
        snprintf(out->op, sizeof out->op, "%.*s", (int)x->op.n, x->op.p);
        ts__hlo_scope(h, x, out->name, sizeof out->name);
        shape_text(s, out->shape, sizeof out->shape);
        return true;
    }
    return false;
}
