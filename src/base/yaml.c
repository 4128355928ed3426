/* base/yaml.c – a YAML document as a small tree, built from libyaml's events.
 *
 * Events, not libyaml's loader: aliases never expand, depth is bounded while reading, and
 * a duplicate key is seen. The tree, its keys and its texts live in the caller's arena.
 *
 * Plain scalars are typed as OmegaConf reads them: YAML 1.1 words (yes, Off, ~ …), 1_000, 0x1f,
 * 0b101, 017 as octal, 3.e-5 and 1e-3 as floats. Left out on purpose: base-60 numbers (12:30),
 * dates and the merge key.
 */
#include "base/yaml.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <yaml.h>

enum { MAX_DEPTH = 64, NUMBER_MAX = 64 };

/* One open list or map: a growing array of children, copied into the arena at its end. */
typedef struct frame {
    ts_yaml *node;
    ts_yaml **child; /* owns, until the end of the node */
    size_t capacity;
    const char *key; /* map: the key whose value comes next; NULL = a key comes next */
    int key_line;
} frame;

typedef struct reader {
    const char *name;
    ts_arena *arena;
    ts_error *err;
    frame stack[MAX_DEPTH];
    int depth; /* open frames */
    ts_yaml *root;
    int documents;
} reader;

static ts_status out_of_memory(reader *r)
{
    return TS_ERROR(r->err, TS_RESOURCE_EXHAUSTED, "%s: out of memory while reading YAML", r->name);
}

static ts_status refuse(reader *r, int line, const char *what)
{
    return TS_ERROR(r->err, TS_INVALID_ARGUMENT, "%s:%d: %s", r->name, line, what);
}

static ts_status grow(reader *r, frame *f)
{
    size_t more = f->capacity ? f->capacity * 2 : 8, bytes;
    if (ts_mul_size(more, sizeof *f->child, &bytes)) return out_of_memory(r);
    ts_yaml **grown = ts_realloc(f->child, f->node->n * sizeof *grown, bytes);
    if (!grown) return out_of_memory(r);
    f->child = grown;
    f->capacity = more;
    return TS_OK;
}

/* Puts a finished or just opened node where it belongs. */
static ts_status attach(reader *r, ts_yaml *node)
{
    if (r->depth == 0) {
        r->root = node;
        return TS_OK;
    }
    frame *f = &r->stack[r->depth - 1];
    if (f->node->kind == TS_YAML_MAP) {
        if (!f->key) return refuse(r, node->line, "a key must be a plain word or a string");
        node->key = f->key;
        node->line = node->line ? node->line : f->key_line;
        f->key = NULL;
    }
    if (f->node->n == f->capacity) TS_TRY(grow(r, f));
    f->child[f->node->n++] = node;
    return TS_OK;
}

static ts_status take_key(reader *r, frame *f, const char *text, size_t n, bool plain, int line)
{
    if (n == 0) return refuse(r, line, "a key is empty; expected `key: value`");
    if (plain && n == 2 && memcmp(text, "<<", 2) == 0)
        return refuse(r, line, "the merge key << is not supported; write the values out");
    f->key = ts_arena_strndup(r->arena, text, n);
    f->key_line = line;
    return f->key ? TS_OK : out_of_memory(r);
}

static ts_status take_scalar(reader *r, const yaml_event_t *e, int line)
{
    const char *text = (const char *)e->data.scalar.value;
    size_t n = e->data.scalar.length;
    bool plain = e->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    if (e->data.scalar.anchor)
        return refuse(r, line, "anchors (&name) are not supported; write the value out");
    if (e->data.scalar.tag || (plain && !e->data.scalar.plain_implicit))
        return refuse(r, line, "tags (!name) are not supported; write the value alone");
    if (memchr(text, '\0', n)) return refuse(r, line, "a string contains a NUL byte");
    frame *f = r->depth ? &r->stack[r->depth - 1] : NULL;
    if (f && f->node->kind == TS_YAML_MAP && !f->key) return take_key(r, f, text, n, plain, line);
    ts_yaml *node = ts_arena_alloc(r->arena, sizeof *node);
    if (!node) return out_of_memory(r);
    node->kind = TS_YAML_SCALAR;
    node->text = ts_arena_strndup(r->arena, text, n);
    node->quoted = !plain;
    node->line = line;
    return node->text ? attach(r, node) : out_of_memory(r);
}

static ts_status open_node(reader *r, ts_yaml_kind kind, bool anchored, bool tagged, int line)
{
    if (anchored) return refuse(r, line, "anchors (&name) are not supported; write the value out");
    if (tagged) return refuse(r, line, "tags (!name) are not supported; write the value alone");
    if (r->depth == MAX_DEPTH) return refuse(r, line, "nested deeper than 64 levels");
    ts_yaml *node = ts_arena_alloc(r->arena, sizeof *node);
    if (!node) return out_of_memory(r);
    node->kind = kind;
    node->line = line;
    TS_TRY(attach(r, node));
    r->stack[r->depth++] = (frame){.node = node};
    return TS_OK;
}

static int by_key(const void *a, const void *b)
{
    const ts_yaml *x = *(ts_yaml *const *)a, *y = *(ts_yaml *const *)b;
    int order = strcmp(x->key, y->key);
    return order ? order : (x->line > y->line) - (x->line < y->line);
}

/* Sorting a copy finds duplicates in n log n: a hostile map cannot make this quadratic. */
static ts_status check_duplicates(reader *r, frame *f)
{
    size_t n = f->node->n;
    if (f->node->kind != TS_YAML_MAP || n < 2) return TS_OK;
    ts_yaml **sorted = ts_alloc(n * sizeof *sorted);
    if (!sorted) return out_of_memory(r);
    memcpy(sorted, f->child, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, by_key);
    ts_status status = TS_OK;
    for (size_t i = 1; i < n && status == TS_OK; i++)
        if (strcmp(sorted[i - 1]->key, sorted[i]->key) == 0)
            status = TS_ERROR(r->err, TS_INVALID_ARGUMENT,
                              "%s:%d: the key \"%.200s\" occurs twice (first on line %d); keep one",
                              r->name, sorted[i]->line, sorted[i]->key, sorted[i - 1]->line);
    ts_free(sorted);
    return status;
}

static ts_status close_node(reader *r)
{
    frame *f = &r->stack[r->depth - 1];
    TS_TRY(check_duplicates(r, f));
    if (f->node->n) {
        f->node->child = ts_arena_alloc(r->arena, f->node->n * sizeof *f->node->child);
        if (!f->node->child) return out_of_memory(r);
        memcpy(f->node->child, f->child, f->node->n * sizeof *f->child);
    }
    ts_free(f->child);
    f->child = NULL;
    r->depth--;
    return TS_OK;
}

static ts_status take_event(reader *r, const yaml_event_t *e)
{
    int line = (int)e->start_mark.line + 1;
    switch (e->type) {
    case YAML_DOCUMENT_START_EVENT:
        if (++r->documents > 1) return refuse(r, line, "a second document begins; expected one");
        return TS_OK;
    case YAML_ALIAS_EVENT:
        return refuse(r, line, "aliases (*name) are not supported; write the value out");
    case YAML_SCALAR_EVENT: return take_scalar(r, e, line);
    case YAML_SEQUENCE_START_EVENT:
        return open_node(r, TS_YAML_LIST, e->data.sequence_start.anchor, e->data.sequence_start.tag,
                         line);
    case YAML_MAPPING_START_EVENT:
        return open_node(r, TS_YAML_MAP, e->data.mapping_start.anchor, e->data.mapping_start.tag,
                         line);
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT: return close_node(r);
    default: return TS_OK;
    }
}

/* What editors of other systems put in front, or write altogether. UTF-16 shows by its mark, or by the
 * zero byte beside the first ASCII character. */
static ts_status check_encoding(const char **text, size_t *n, const char *name, ts_error *err)
{
    const unsigned char *b = (const unsigned char *)*text;
    if (*n >= 3 && memcmp(b, "\xef\xbb\xbf", 3) == 0) {
        *text += 3;
        *n -= 3;
        return TS_OK;
    }
    bool marked = *n >= 2 && ((b[0] == 0xff && b[1] == 0xfe) || (b[0] == 0xfe && b[1] == 0xff));
    bool bare = *n >= 2 && (b[0] == 0) != (b[1] == 0);
    if (!marked && !bare) return TS_OK;
    return TS_ERROR(err, TS_INVALID_ARGUMENT,
                    "%s:1: is UTF-16 text; write it as UTF-8 (iconv -f UTF-16 -t UTF-8)", name);
}

static ts_status read_events(reader *r, yaml_parser_t *parser)
{
    for (bool done = false; !done;) {
        yaml_event_t event;
        if (!yaml_parser_parse(parser, &event)) {
            if (parser->error == YAML_MEMORY_ERROR) return out_of_memory(r);
            int line = (int)(parser->error == YAML_READER_ERROR ? parser->mark.line
                                                                : parser->problem_mark.line);
            return TS_ERROR(r->err, TS_INVALID_ARGUMENT, "%s:%d: not valid YAML: %s%s%s", r->name,
                            line + 1, parser->problem ? parser->problem : "unreadable",
                            parser->context ? " " : "", parser->context ? parser->context : "");
        }
        done = event.type == YAML_STREAM_END_EVENT;
        ts_status status = take_event(r, &event);
        yaml_event_delete(&event);
        if (status != TS_OK) return status;
    }
    return TS_OK;
}

ts_status ts_yaml_parse(const char *text, size_t n, const char *name, ts_arena *arena,
                        const ts_yaml **out, ts_error *err)
{
    *out = NULL;
    TS_TRY(check_encoding(&text, &n, name, err));
    yaml_parser_t parser;
    if (!yaml_parser_initialize(&parser))
        return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "%s: out of memory while reading YAML", name);
    yaml_parser_set_encoding(&parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, n);
    reader r = {.name = name, .arena = arena, .err = err};
    ts_status status = read_events(&r, &parser);
    for (int i = 0; i < r.depth; i++) ts_free(r.stack[i].child);
    yaml_parser_delete(&parser);
    TS_TRY(status);
    if (!r.root || (r.root->kind == TS_YAML_SCALAR && ts_yaml_is_null(r.root))) {
        r.root = ts_arena_alloc(arena, sizeof *r.root);
        if (!r.root) return out_of_memory(&r);
        r.root->kind = TS_YAML_MAP;
        r.root->line = 1;
    }
    *out = r.root;
    return TS_OK;
}

const ts_yaml *ts_yaml_get(const ts_yaml *map, const char *key)
{
    if (!map || map->kind != TS_YAML_MAP) return NULL;
    for (size_t i = 0; i < map->n; i++)
        if (strcmp(map->child[i]->key, key) == 0) return map->child[i];
    return NULL;
}

/* ---- types of plain scalars ------------------------------------------------------------------ */

static bool is_plain(const ts_yaml *v)
{
    return v && v->kind == TS_YAML_SCALAR && !v->quoted;
}

static bool is_one_of(const char *text, const char *const *words)
{
    for (; *words; words++)
        if (strcmp(text, *words) == 0) return true;
    return false;
}

bool ts_yaml_is_null(const ts_yaml *v)
{
    static const char *const words[] = {"", "~", "null", "Null", "NULL", NULL};
    return is_plain(v) && is_one_of(v->text, words);
}

bool ts_yaml_as_bool(const ts_yaml *v, bool *out)
{
    static const char *const yes[] = {"yes",  "Yes", "YES", "true", "True",
                                      "TRUE", "on",  "On",  "ON",   NULL};
    static const char *const no[] = {"no",    "No",  "NO",  "false", "False",
                                     "FALSE", "off", "Off", "OFF",   NULL};
    if (!is_plain(v)) return false;
    if (is_one_of(v->text, yes)) return *out = true, true;
    if (is_one_of(v->text, no)) return *out = false, true;
    return false;
}

/* Copies a number without its underscores; false when it is too long for a number. */
static bool without_underscores(const char *text, char to[NUMBER_MAX])
{
    size_t n = 0;
    for (; *text; text++) {
        if (*text == '_') continue;
        if (n + 1 >= NUMBER_MAX) return false;
        to[n++] = *text;
    }
    to[n] = '\0';
    return n > 0;
}

bool ts_yaml_as_i64(const ts_yaml *v, int64_t *out)
{
    char text[NUMBER_MAX];
    if (!is_plain(v) || v->text[0] == '_') return false;
    if (!without_underscores(v->text, text)) return false;
    const char *digits = text;
    bool negative = *digits == '-';
    if (*digits == '-' || *digits == '+') digits++;
    uint64_t base = 10;
    if (digits[0] == '0' && (digits[1] == 'x' || digits[1] == 'b')) {
        base = digits[1] == 'x' ? 16 : 2;
        digits += 2;
    } else if (digits[0] == '0' && digits[1]) {
        base = 8;
        digits++;
    }
    if (!*digits) return false;
    uint64_t limit = (uint64_t)INT64_MAX + (negative ? 1 : 0), value = 0;
    for (; *digits; digits++) {
        uint64_t digit = (uint64_t)(isdigit((unsigned char)*digits) ? *digits - '0'
                                    : isxdigit((unsigned char)*digits)
                                        ? tolower((unsigned char)*digits) - 'a' + 10
                                        : 99);
        if (digit >= base || value > (limit - digit) / base) return false;
        value = value * base + digit;
    }
    *out = negative ? (int64_t)(0 - value) : (int64_t)value;
    return true;
}

/* [-+] digits [. digits] [e [-+] digits], with a digit before the point or right after it. */
static bool is_decimal(const char *p)
{
    if (*p == '-' || *p == '+') p++;
    size_t before = strspn(p, "0123456789"), after = 0;
    p += before;
    if (*p == '.') {
        after = strspn(p + 1, "0123456789");
        p += 1 + after;
    }
    if (before + after == 0) return false;
    if (*p == 'e' || *p == 'E') {
        p++;
        if (*p == '-' || *p == '+') p++;
        size_t exponent = strspn(p, "0123456789");
        if (exponent == 0) return false;
        p += exponent;
    }
    return *p == '\0';
}

bool ts_yaml_as_f64(const ts_yaml *v, double *out)
{
    static const char *const infinities[] = {".inf", ".Inf", ".INF", NULL};
    static const char *const nans[] = {".nan", ".NaN", ".NAN", NULL};
    char text[NUMBER_MAX];
    int64_t integer;
    if (!is_plain(v) || v->text[0] == '_') return false;
    if (ts_yaml_as_i64(v, &integer)) return *out = (double)integer, true;
    bool sign = v->text[0] == '-' || v->text[0] == '+';
    if (is_one_of(v->text + sign, infinities))
        return *out = v->text[0] == '-' ? -INFINITY : INFINITY, true;
    if (is_one_of(v->text, nans)) return *out = NAN, true;
    if (!without_underscores(v->text, text) || !is_decimal(text)) return false;
    *out = strtod(text, NULL);
    return isfinite(*out);
}
