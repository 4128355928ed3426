/* xla/hlo.c – reads HLO text: computations, their instructions with shapes, operands and attributes.
 *
 * A line is an instruction, "ROOT %name = shape opcode(operands), attribute=value, …". Operands are names, with or
 * without a shape before and with #i behind for an element of a tuple. Attributes stay text until somebody asks.
 * Everything is bounded by the length of the text: no table grows beyond it, shapes nest 16 deep at most.
 * Not here: what the opcodes cost (hlo_cost.c). Text of other modules than scheduled ones is read as well.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

#include "xla/hlo_internal.h"

enum { MAX_DEPTH = 16, MAX_HLO_RANK = 32 };
static const size_t max_text = (size_t)1 << 30;

typedef struct reader {
    ts_hlo *h;
    const char *p, *end; /* of the line at hand */
    int64_t line;
    int open;   /* computation that is being read; −1 */
    char table; /* that is being read: names, locations, frames; 0 another or none */
    ts_error *err;
} reader;

static ts_status wrong(const reader *r, const char *what)
{
    int n = r->end - r->p > 60 ? 60 : (int)(r->end - r->p);
    return TS_ERROR(r->err, TS_DATA_LOSS, "HLO text, line %lld: %s at \"%.*s\"", (long long)r->line,
                    what, (int)ts_utf8_valid_prefix(r->p, (size_t)n), r->p);
}

static ts_status no_memory(const reader *r)
{
    return TS_ERROR(r->err, TS_RESOURCE_EXHAUSTED, "memory is out for an HLO module");
}

/* Blanks and comments such as the index of an element in a long list. */
static void skip(reader *r)
{
    for (;;) {
        while (r->p < r->end && (*r->p == ' ' || *r->p == '\t')) r->p++;
        if (r->end - r->p < 4 || r->p[0] != '/' || r->p[1] != '*') return;
        const char *stop = memmem(r->p + 2, (size_t)(r->end - r->p) - 2, "*/", 2);
        if (!stop) return;
        r->p = stop + 2;
    }
}

static bool accept(reader *r, char c)
{
    skip(r);
    if (r->p >= r->end || *r->p != c) return false;
    r->p++;
    return true;
}

static slice word(reader *r)
{
    skip(r);
    slice s = {r->p, 0};
    while (r->p < r->end && (isalnum((unsigned char)*r->p) || strchr("_.-", *r->p)) && *r->p) r->p++;
    s.n = (size_t)(r->p - s.p);
    return s;
}

/* From p up to the first `stop` outside of brackets and quotes; NULL: none. */
static const char *outside(const char *p, const char *end, char stop)
{
    int64_t depth = 0;
    bool quoted = false;
    for (; p < end; p++) {
        if (quoted) {
            if (*p == '\\' && p + 1 < end)
                p++;
            else if (*p == '"')
                quoted = false;
            continue;
        }
        if (*p == stop && depth == 0) return p;
        if (*p == '"') quoted = true;
        if (*p == '(' || *p == '{' || *p == '[') depth++;
        if (*p == ')' || *p == '}' || *p == ']') depth--;
        if (depth < 0) return NULL;
    }
    return NULL;
}

/* ---- shapes ---------------------------------------------------------------------------------- */

/* Bits of an element; −1: no such type. */
static int element_bits(slice t)
{
    static const struct {
        const char *name;
        int bits;
    } type[] = {{"pred", 8},  {"s8", 8},    {"u8", 8},     {"s16", 16}, {"u16", 16}, {"s32", 32},
                {"u32", 32},  {"s64", 64},  {"u64", 64},   {"f16", 16}, {"bf16", 16}, {"f32", 32},
                {"f64", 64},  {"c64", 64},  {"c128", 128}, {"s4", 4},   {"u4", 4},   {"s2", 2},
                {"u2", 2},    {"token", 0}, {"opaque", 0}, {"s1", 1},   {"u1", 1}};
    for (size_t i = 0; i < sizeof type / sizeof *type; i++)
        if (hlo_is(t, type[i].name)) return type[i].bits;
    if (t.n > 2 && memcmp(t.p, "f4", 2) == 0) return 4;
    return t.n > 2 && memcmp(t.p, "f8", 2) == 0 ? 8 : -1;
}

static ts_status read_dims(reader *r, hlo_shape *s)
{
    int64_t dim[MAX_HLO_RANK];
    if (!accept(r, '[')) return TS_OK;
    while (!accept(r, ']')) {
        int64_t v = 0;
        if (s->rank && !accept(r, ',')) return wrong(r, "a shape without ]");
        skip(r);
        if (r->p < r->end && *r->p == '<') r->p += r->end - r->p > 1 ? 2 : 1; /* <=n: at most n */
        const char *start = r->p;
        for (; r->p < r->end && isdigit((unsigned char)*r->p); r->p++)
            if (ts_mul_i64(v, 10, &v) || ts_add_i64(v, *r->p - '0', &v))
                return wrong(r, "a size beyond 64 bits");
        if (r->p == start || s->rank == MAX_HLO_RANK) return wrong(r, "no shape");
        dim[s->rank++] = v;
    }
    s->dim = ts_arena_alloc(r->h->arena, (size_t)(s->rank + 1) * sizeof *s->dim);
    if (!s->dim) return no_memory(r);
    memcpy(s->dim, dim, (size_t)s->rank * sizeof *dim);
    return TS_OK;
}

/* "{1,0:T(8,128)S(1)}" : S(n) names a memory space, 0 the device's own. */
static ts_status read_layout(reader *r, hlo_shape *s)
{
    if (r->p >= r->end || *r->p != '{') return TS_OK;
    const char *stop = outside(r->p + 1, r->end, '}');
    if (!stop) return wrong(r, "a layout without }");
    const char *space = memmem(r->p, (size_t)(stop - r->p), "S(", 2);
    if (space && space[2] != '0') s->local = s->bytes;
    r->p = stop + 1;
    return TS_OK;
}

static ts_status read_array(reader *r, hlo_shape *s)
{
    slice type = word(r);
    int bits = element_bits(type);
    int64_t n = 1, all;
    if (bits < 0) {
        r->p = type.p;
        return wrong(r, "no type");
    }
    if (type.n >= sizeof s->dtype) type.n = sizeof s->dtype - 1;
    memcpy(s->dtype, type.p, type.n);
    TS_TRY(read_dims(r, s));
    for (int i = 0; i < s->rank; i++)
        if (ts_mul_i64(n, s->dim[i], &n)) return wrong(r, "a shape beyond 64 bits");
    if (ts_mul_i64(n, bits, &all) || ts_add_i64(all, 7, &all))
        return wrong(r, "a shape beyond 64 bits");
    s->bytes = all / 8;
    return read_layout(r, s);
}

static ts_status read_shape(reader *r, int depth, const hlo_shape **out)
{
    hlo_shape *s = ts_arena_alloc(r->h->arena, sizeof *s);
    int capacity = 0;
    if (!s) return no_memory(r);
    *out = s;
    if (depth == MAX_DEPTH) return wrong(r, "tuples nested beyond 16 levels");
    if (!accept(r, '(')) return read_array(r, s);
    s->tuple = true;
    while (!accept(r, ')')) {
        if (s->n_child && !accept(r, ',')) return wrong(r, "a tuple without )");
        if (s->n_child == capacity) {
            const hlo_shape **more =
                ts_arena_alloc(r->h->arena, (size_t)(capacity = 2 * capacity + 4) * sizeof *more);
            if (!more) return no_memory(r);
            if (s->n_child) memcpy(more, s->child, (size_t)s->n_child * sizeof *more);
            s->child = more;
        }
        const hlo_shape *child;
        TS_TRY(read_shape(r, depth + 1, &child));
        s->child[s->n_child++] = child;
        if (ts_add_i64(s->bytes, child->bytes, &s->bytes)) return wrong(r, "a shape beyond 64 bits");
        s->local += child->local;
    }
    return TS_OK;
}

/* ---- names ----------------------------------------------------------------------------------- */

static size_t slot_of(const ts_hlo *h, int computation, slice name)
{
    uint64_t hash = 1469598103934665603u ^ (uint64_t)computation;
    for (size_t i = 0; i < name.n; i++) hash = (hash ^ (unsigned char)name.p[i]) * 1099511628211u;
    return (size_t)((hash ^ hash >> 29) & (h->table_size - 1));
}

/* The slot that holds the name, or the empty one where it belongs. */
static size_t find_slot(const ts_hlo *h, int computation, slice name)
{
    size_t k = slot_of(h, computation, name);
    for (; h->table[k]; k = (k + 1) & (h->table_size - 1)) {
        const hlo_instruction *x = &h->instruction[h->table[k] - 1];
        if (x->computation == computation && x->name.n == name.n &&
            memcmp(x->name.p, name.p, name.n) == 0)
            break;
    }
    return k;
}

/* One operand: "%name", "f32[2]{0} %name", "%tuple#1"; a literal of a constant has no %. */
static ts_status read_operand(reader *r, slice text, hlo_operand *out)
{
    const char *end = text.p + text.n, *p = memrchr(text.p, '%', text.n);
    *out = (hlo_operand){.instruction = -1};
    if (!p) {
        p = end;
        while (p > text.p && p[-1] != ' ') p--;
    } else {
        p++;
    }
    const char *stop = p;
    while (stop < end && *stop != '#' && *stop != ' ') stop++;
    int found = r->h->table[find_slot(r->h, r->open, (slice){p, (size_t)(stop - p)})];
    if (!found) {
        if (memchr(text.p, '%', text.n)) return wrong(r, "an operand that is not above");
        return TS_OK;
    }
    out->instruction = found - 1;
    out->shape = r->h->instruction[found - 1].shape;
    while (stop < end && *stop == '#') {
        int64_t index;
        if (!ts__hlo_int((slice){stop + 1, (size_t)(end - stop) - 1}, &index) || index < 0 ||
            index >= out->shape->n_child)
            return wrong(r, "no such element of a tuple");
        out->shape = out->shape->child[index];
        for (stop++; stop < end && isdigit((unsigned char)*stop); stop++) continue;
    }
    return TS_OK;
}

static ts_status read_operands(reader *r, hlo_instruction *x)
{
    size_t at = 0, n = 0;
    slice one;
    while (ts__hlo_element(x->args, &at, &one)) n++;
    x->in = n ? ts_arena_alloc(r->h->arena, n * sizeof *x->in) : NULL;
    if (n && !x->in) return no_memory(r);
    at = 0;
    while (ts__hlo_element(x->args, &at, &one)) TS_TRY(read_operand(r, one, &x->in[x->n_in++]));
    return TS_OK;
}

/* ---- lines ----------------------------------------------------------------------------------- */

static bool room(void *array, int *capacity, int n, size_t element)
{
    void **a = array;
    if (n < *capacity) return true;
    int more = *capacity ? 2 * *capacity : 64;
    void *p = ts_realloc(*a, (size_t)*capacity * element, (size_t)more * element);
    if (!p) return false;
    *a = p;
    *capacity = more;
    return true;
}

static ts_status read_instruction(reader *r)
{
    ts_hlo *h = r->h;
    hlo_instruction x = {.number = -1, .computation = r->open};
    bool root = false;
    skip(r);
    if (r->end - r->p > 5 && memcmp(r->p, "ROOT ", 5) == 0) {
        root = true;
        r->p += 5;
    }
    (void)accept(r, '%');
    const char *equals = memmem(r->p, (size_t)(r->end - r->p), " = ", 3);
    if (!equals || equals == r->p) return wrong(r, "no instruction");
    x.name = (slice){r->p, (size_t)(equals - r->p)};
    r->p = equals + 3;
    TS_TRY(read_shape(r, 0, &x.shape));
    x.op = word(r);
    if (!x.op.n || !accept(r, '(')) return wrong(r, "no opcode with operands");
    const char *close = outside(r->p, r->end, ')');
    if (!close) return wrong(r, "operands without )");
    x.args = (slice){r->p, (size_t)(close - r->p)};
    x.attrs = (slice){close + 1, (size_t)(r->end - close) - 1};
    if (hlo_is(x.op, "parameter")) {
        int64_t number;
        if (!ts__hlo_int(x.args, &number) || number < 0 || number > INT32_MAX)
            return wrong(r, "a parameter without a number");
        x.number = (int)number;
    } else if (!hlo_is(x.op, "constant")) {
        TS_TRY(read_operands(r, &x));
    }
    size_t slot = find_slot(h, r->open, x.name);
    if (h->table[slot]) return wrong(r, "a name that is taken");
    if (!room(&h->instruction, &h->cap_instruction, h->n_instruction, sizeof x))
        return no_memory(r);
    hlo_computation *c = &h->computation[r->open];
    h->instruction[h->n_instruction] = x;
    if (root) c->root = h->n_instruction;
    h->table[slot] = ++h->n_instruction;
    c->count++;
    return TS_OK;
}

static ts_status begin_computation(reader *r)
{
    ts_hlo *h = r->h;
    bool entry = r->end - r->p > 6 && memcmp(r->p, "ENTRY ", 6) == 0;
    if (entry) r->p += 6;
    (void)accept(r, '%');
    slice name = {r->p, 0};
    while (r->p < r->end && *r->p != ' ' && *r->p != '(') r->p++;
    name.n = (size_t)(r->p - name.p);
    if (!name.n) return wrong(r, "a computation without a name");
    if (!room(&h->computation, &h->cap_computation, h->n_computation, sizeof *h->computation))
        return no_memory(r);
    if (entry) h->entry = h->n_computation;
    h->computation[h->n_computation] =
        (hlo_computation){.name = name, .first = h->n_instruction, .root = -1};
    r->open = h->n_computation++;
    return TS_OK;
}

/* A row "3 …" of the tables before the computations; their rows are numbered without gaps. */
static ts_status read_row(reader *r)
{
    ts_hlo *h = r->h;
    int64_t number;
    slice s = {r->p, (size_t)(r->end - r->p)};
    const char *blank = memchr(s.p, ' ', s.n);
    if (!blank || !ts__hlo_int(s, &number)) {
        r->table = hlo_is(s, "FileNames")       ? 'n'
                   : hlo_is(s, "FileLocations") ? 'l'
                   : hlo_is(s, "StackFrames")   ? 'f'
                                                : '\0';
        return TS_OK;
    }
    slice value = {blank + 1, (size_t)(r->end - blank) - 1};
    if (r->table == 'n' && number == h->n_file + 1) {
        if (!room(&h->file, &h->cap_file, h->n_file, sizeof *h->file)) return no_memory(r);
        bool quoted = value.n >= 2 && value.p[0] == '"' && value.p[value.n - 1] == '"';
        h->file[h->n_file++] = quoted ? (slice){value.p + 1, value.n - 2} : value;
    } else if (r->table == 'l' && number == h->n_location + 1) {
        if (!room(&h->location, &h->cap_location, h->n_location, sizeof *h->location))
            return no_memory(r);
        h->location[h->n_location++] =
            (hlo_location){ts__hlo_field(value, "file_name_id="), ts__hlo_field(value, " line=")};
    } else if (r->table == 'f' && number == h->n_frame + 1) {
        if (!room(&h->frame, &h->cap_frame, h->n_frame, sizeof *h->frame)) return no_memory(r);
        h->frame[h->n_frame++] = ts__hlo_field(value, "file_location_id=");
    }
    return TS_OK;
}

static ts_status read_line(reader *r)
{
    while (r->end > r->p && isspace((unsigned char)r->end[-1])) r->end--;
    const char *p = r->p;
    while (p < r->end && isspace((unsigned char)*p)) p++;
    if (p == r->end) return TS_OK;
    if (r->open < 0) { /* between computations stand tables of files and the like */
        bool named = *p == '%' || (r->end - p > 6 && memcmp(p, "ENTRY ", 6) == 0);
        bool opens = r->end[-1] == '{' && (named || memmem(p, (size_t)(r->end - p), " -> ", 4));
        r->p = p;
        return opens ? begin_computation(r) : read_row(r);
    }
    if (*p == '}') {
        hlo_computation *c = &r->h->computation[r->open];
        if (!c->count) return wrong(r, "a computation without instructions");
        if (c->root < 0) c->root = r->h->n_instruction - 1;
        r->open = -1;
        return TS_OK;
    }
    return read_instruction(r);
}

static ts_status read_all(reader *r, const char *text, size_t n)
{
    const char *end = text + n;
    r->p = text;
    r->end = end;
    r->line = 1;
    if (n < 10 || memcmp(text, "HloModule ", 10) != 0) return wrong(r, "no HloModule");
    const char *head = memchr(text, '\n', n);
    static const char scheduled[] = "is_scheduled=true";
    r->h->scheduled =
        head && memmem(text, (size_t)(head - text), scheduled, sizeof scheduled - 1) != NULL;
    for (const char *p = text; p < end; r->line++) {
        const char *stop = memchr(p, '\n', (size_t)(end - p));
        r->p = p;
        r->end = stop ? stop : end;
        p = stop ? stop + 1 : end;
        TS_TRY(read_line(r));
    }
    r->p = r->end;
    if (r->open >= 0) return wrong(r, "the text ends within a computation");
    if (r->h->entry < 0) return wrong(r, "no ENTRY computation");
    return TS_OK;
}

ts_status ts__hlo_parse(const char *text, size_t n, ts_hlo **out, ts_error *err)
{
    *out = NULL;
    if (n > max_text)
        return TS_ERROR(err, TS_DATA_LOSS, "an HLO module of %zu bytes; expected at most %zu", n,
                        max_text);
    ts_hlo *h = ts_alloc_zero(sizeof *h);
    reader r = {.h = h, .open = -1, .err = err};
    if (!h) return no_memory(&r);
    size_t lines = 1;
    for (size_t i = 0; i < n; i++) lines += text[i] == '\n';
    for (h->table_size = 64; h->table_size < 2 * lines;) h->table_size *= 2;
    h->table = ts_alloc_zero(h->table_size * sizeof *h->table);
    h->arena = ts_arena_new();
    h->entry = -1;
    ts_status status = h->table && h->arena ? read_all(&r, text, n) : no_memory(&r);
    if (status == TS_OK)
        *out = h;
    else
        ts__hlo_free(h);
    return status;
}

void ts__hlo_free(ts_hlo *h)
{
    if (!h) return;
    ts_arena_free(h->arena);
    ts_free(h->file);
    ts_free(h->location);
    ts_free(h->frame);
    ts_free(h->instruction);
    ts_free(h->computation);
    ts_free(h->table);
    ts_free(h);
}
