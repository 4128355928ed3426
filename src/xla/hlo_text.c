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

void ts__hlo_scope(const hlo_instruction *x, char *buf, size_t n)
{
    slice file = metadata(x, "source_file="), line = metadata(x, "source_line=");
    slice op = metadata(x, "op_name=");
    buf[0] = '\0';
    if (file.n > 1 && line.n)
        snprintf(buf, n, "%.*s:%.*s", (int)file.n, file.p, (int)line.n, line.p);
    else if (op.n)
        snprintf(buf, n, "%.*s", (int)op.n, op.p);
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
        ts__hlo_scope(x, out->name, sizeof out->name);
        shape_text(s, out->shape, sizeof out->shape);
        return true;
    }
    return false;
}
