/* xla/stablehlo_text.c – how a program is written: names, types, lines, locations.
 *
 * Values are numbered as they are written, so a name is never defined twice, whatever regions it stands in;
 * combiners of reductions use letters. A location is a number that the module's end explains, so that lines stay
 * short; its name and its file both say where in the model the node stands, because XLA prints now the one, now
 * the other. Strings may hold any bytes: what MLIR's lexer would not take is written in hex.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include <xxhash.h>

#include "xla/stablehlo_emit.h"

/* ---- values ---------------------------------------------------------------------------------- */

ts_shlo_value ts__shlo_in(const ts_shlo *e, const ts_node *n, int i)
{
    return e->value[n->in[i]->id];
}

/* The graph's type is the value's, whatever dimension names the emitter's own had. */
void ts__shlo_set(ts_shlo *e, const ts_node *n, int i, ts_shlo_value v)
{
    if (e->status != TS_OK) return;
    TS_ASSERT(ts_type_same(&v.type, &n->out[i]->type));
    e->value[n->out[i]->id] = v;
}

void ts__shlo_fail(ts_shlo *e, ts_status code, const char *fmt, ...)
{
    char text[1200], at[400] = "";
    const ts_node *n = e->at;
    va_list ap;
    if (e->status != TS_OK) return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (n && n->loc.file) snprintf(at, sizeof at, " at %.300s:%d", n->loc.file, n->loc.line);
    e->status = TS_ERROR(e->err, code, "graph %s, %s%s%s%s: %s", e->g->name,
                         n ? ts_op_infos[n->op].name : "inputs", n && n->scope ? " in " : "",
                         n && n->scope ? n->scope : "", at, text);
}

void ts__shlo_memory(ts_shlo *e)
{
    ts__shlo_fail(e, TS_RESOURCE_EXHAUSTED, "memory is out while writing it as StableHLO");
}

/* ---- pieces of text -------------------------------------------------------------------------- */

static void put_value(ts_string *out, const ts_shlo_value *v)
{
    if (v->sub == -2) ts_string_printf(out, "%%arg%" PRId32, v->number);
    else if (v->sub < 0) ts_string_printf(out, "%%%" PRId32, v->number);
    else ts_string_printf(out, "%%%" PRId32 "#%" PRId32, v->number, v->sub);
}

static void put_type(ts_string *out, const ts_type *t)
{
    static const char *const names[TS_DTYPES] = {
        [TS_F32] = "f32", [TS_BF16] = "bf16", [TS_I32] = "i32", [TS_U32] = "ui32", [TS_PRED] = "i1",
    };
    ts_string_add(out, "tensor<");
    for (int i = 0; i < t->rank; i++) ts_string_printf(out, "%" PRId64 "x", t->dim[i].size);
    ts_string_printf(out, "%s>", names[t->dtype]);
}

static void put_list(ts_string *out, const ts_dims *d)
{
    for (int i = 0; i < d->n; i++) ts_string_printf(out, "%s%" PRId64, i ? ", " : "", d->v[i]);
}

static void put_quoted(ts_string *out, const char *s)
{
    ts_string_add(out, "\"");
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (c < 0x20 || c > 0x7e || c == '"' || c == '\\') ts_string_printf(out, "\\%02X", c);
        else ts_string_add_bytes(out, s, 1);
    }
    ts_string_add(out, "\"");
}

static void indent(ts_shlo *e)
{
    for (int i = 0; i < e->depth; i++) ts_string_add(e->out, "  ");
}

static void put(ts_shlo *e, const char *fmt, va_list ap)
{
    for (const char *from = fmt, *s = fmt;; s++) {
        if (*s && *s != '$') continue;
        ts_string_add_bytes(e->out, from, (size_t)(s - from));
        if (!*s) return;
        switch (*++s) {
        case 'v': put_value(e->out, va_arg(ap, const ts_shlo_value *)); break;
        case 't': put_type(e->out, va_arg(ap, const ts_type *)); break;
        case 'l': put_list(e->out, va_arg(ap, const ts_dims *)); break;
        case 'i': ts_string_printf(e->out, "%" PRId64, va_arg(ap, int64_t)); break;
        case 's': ts_string_add(e->out, va_arg(ap, const char *)); break;
        case 'q': put_quoted(e->out, va_arg(ap, const char *)); break;
        case 'n': ts_string_add(e->out, "\n"); indent(e); break;
        case '>': indent(e); break;
        default: TS_ASSERT(!"an unknown conversion");
        }
        from = s + 1;
    }
}

void ts__shlo_put(ts_shlo *e, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    put(e, fmt, ap);
    va_end(ap);
}

/* ---- operations ------------------------------------------------------------------------------ */

void ts__shlo_begin(ts_shlo *e, const ts_type *types, int n, ts_shlo_value *out)
{
    int32_t number = e->next++;
    for (int i = 0; i < n; i++) out[i] = (ts_shlo_value){number, n == 1 ? -1 : i, types[i]};
    indent(e);
    if (n == 1) ts_string_printf(e->out, "%%%" PRId32 " = ", number);
    else if (n) ts_string_printf(e->out, "%%%" PRId32 ":%d = ", number, n);
}

void ts__shlo_end(ts_shlo *e) { ts_string_printf(e->out, " loc(#loc%d)\n", e->loc); }

ts_shlo_value ts__shlo_op(ts_shlo *e, const ts_type *t, const char *fmt, ...)
{
    ts_shlo_value v;
    va_list ap;
    ts__shlo_begin(e, t, 1, &v);
    ts_string_add(e->out, "stablehlo.");
    va_start(ap, fmt);
    put(e, fmt, ap);
    va_end(ap);
    ts__shlo_end(e);
    return v;
}

void ts__shlo_combiner(ts_shlo *e, const char *op, ts_dtype t)
{
    const ts_type s = ts_type_make(t, NULL, 0);
    ts__shlo_put(e, " ({$n^bb0(%x: $t, %y: $t):", &s, &s);
    e->depth++;
    ts__shlo_put(e, "$n%z = stablehlo.$s %x, %y : $t$nstablehlo.return %z : $t", op, &s, &s);
    e->depth--;
    ts__shlo_put(e, "$n})");
}

/* ---- locations ------------------------------------------------------------------------------- */

struct ts_shlo_locs {
    const ts_node **node; /* the first node of each location */
    int n, capacity;
    int *slot; /* open addressing, [slots], a power of two; number plus one, 0 free */
    int slots;
};

ts_shlo_locs *ts__shlo_locs_new(void)
{
    ts_shlo_locs *l = ts_alloc_zero(sizeof *l);
    return l;
}

void ts__shlo_locs_free(ts_shlo_locs *l)
{
    if (!l) return;
    ts_free(l->node);
    ts_free(l->slot);
    ts_free(l);
}

static const char *or_empty(const char *s) { return s ? s : ""; }

/* A node that has a scope is known by it, else by its operation. */
static bool same_place(const ts_node *a, const ts_node *b)
{
    return strcmp(or_empty(a->scope), or_empty(b->scope)) == 0 && a->backward == b->backward &&
           strcmp(or_empty(a->loc.file), or_empty(b->loc.file)) == 0 &&
           a->loc.line == b->loc.line && (a->scope || a->op == b->op);
}

static uint64_t hash_place(const ts_node *n)
{
    const char *scope = or_empty(n->scope), *file = or_empty(n->loc.file);
    uint64_t h = XXH3_64bits_withSeed(scope, strlen(scope), (uint64_t)n->loc.line * 2 + n->backward);
    return XXH3_64bits_withSeed(file, strlen(file), n->scope ? h : h + (uint64_t)n->op + 1);
}

static int *find_slot(const ts_shlo_locs *l, const ts_node *n)
{
    size_t mask = (size_t)l->slots - 1, i = hash_place(n) & mask;
    while (l->slot[i] && !same_place(l->node[l->slot[i] - 1], n)) i = (i + 1) & mask;
    return &l->slot[i];
}

static bool grow(ts_shlo_locs *l)
{
    int capacity = l->capacity ? 2 * l->capacity : 64;
    const ts_node **node = ts_realloc(l->node, (size_t)l->capacity * sizeof *node,
                                      (size_t)capacity * sizeof *node);
    if (!node) return false;
    l->node = node;
    l->capacity = capacity;
    int *slot = ts_alloc_zero((size_t)capacity * 2 * sizeof *slot);
    if (!slot) return false;
    ts_free(l->slot);
    l->slot = slot;
    l->slots = capacity * 2;
    for (int i = 0; i < l->n; i++) *find_slot(l, l->node[i]) = i + 1;
    return true;
}

void ts__shlo_announce(ts_shlo *e, const ts_node *n)
{
    if (!n->scope || (e->scope && strcmp(e->scope, n->scope) == 0)) return;
    e->scope = n->scope;
    ts__shlo_put(e, "$n// ");
    for (const char *s = n->scope; *s; s++) /* a new line would end the comment */
        ts_string_add_bytes(e->out, (unsigned char)*s < 0x20 ? " " : s, 1);
    ts_string_add(e->out, "\n");
}

void ts__shlo_at(ts_shlo *e, const ts_node *n)
{
    ts_shlo_locs *l = e->locs;
    e->at = n;
    if (l->n == l->capacity && !grow(l)) {
        ts__shlo_memory(e);
        return;
    }
    int *slot = find_slot(l, n);
    if (!*slot) {
        l->node[l->n] = n;
        *slot = ++l->n;
    }
    e->loc = *slot;
}

/* #loc3 = loc("q_proj"("layers.3.q_proj (llama.c)":41:0)); of the backward half, "q_proj backward". */
static void put_loc(ts_shlo *e, int number, const ts_node *n)
{
    const char *name = n->scope ? n->scope : ts_op_infos[n->op].name, *file = or_empty(n->loc.file);
    const char *dot = n->scope ? strrchr(name, '.') : NULL, *slash = strrchr(file, '/'),
               *half = n->backward ? " backward" : "";
    char shown[256], place[600];
    if (slash) file = slash + 1;
    snprintf(shown, sizeof shown, "%.200s%s", dot && dot[1] ? dot + 1 : name, half);
    if (*file) snprintf(place, sizeof place, "%.300s%s (%.200s)", name, half, file);
    else snprintf(place, sizeof place, "%.300s%s", name, half);
    ts__shlo_put(e, "#loc$i = loc($q($q:$i:0))\n", (int64_t)number, shown, place,
                 (int64_t)(n->loc.line > 0 ? n->loc.line : 0));
}

void ts__shlo_put_locs(ts_shlo *e)
{
    for (int i = 0; i < e->locs->n; i++) put_loc(e, i + 1, e->locs->node[i]);
}
