/* ir/parse.c – a graph from its text (print.c describes the form): what a bug report holds, runs.
 *
 * The text is untrusted: every count is bounded by its length, nesting by a constant, and the
 * result passes the verifier before anyone sees it. Types are stated and inferred; they must agree,
 * and the stated names of dimensions win, since a pass may have renamed them.
 */
#include <inttypes.h>
#include <stdio.h>

#include "ir/attrs.h"
#include "ir/builder.h"
#include "ir/parse_text.h"

enum { MAX_DEPTH = 16, MAX_TEXT = 256 << 20, MAX_LIST = 1 << 20 };

typedef struct parser {
    ts_scan s;
    ts_graph *g;
    ts_value **value; /* by number */
    int n_value, cap_value;
} parser;

/* The numbers left of '=', or of operands, in the text. */
typedef struct numbers {
    int n, cap;
    int64_t *v;
} numbers;

/* ---- values ---------------------------------------------------------------------------------- */

static bool parse_number(parser *p, int64_t *number)
{
    return ts__scan_expect(&p->s, '%') && ts__scan_int_in(&p->s, 0, MAX_LIST * 16, number);
}

/* Values are numbered 0, 1, 2 … in the order of the text, as the printer does, but a repeat's
 * results, whose numbers stand before its body's, are known only after it: a gap then holds NULL. */
static bool define(parser *p, int64_t number, ts_value *v)
{
    if (number < p->n_value && p->value[number])
        return ts__scan_fail(&p->s, "%%%" PRId64 " is defined twice", number);
    if ((uint64_t)number >= p->s.n)
        return ts__scan_fail(&p->s, "%%%" PRId64 " is beyond what the text can hold", number);
    if (!ts__arena_grow(p->g->arena, &p->value, &p->cap_value, (int)number, sizeof *p->value))
        return ts__scan_memory(&p->s);
    while (p->n_value <= number) p->value[p->n_value++] = NULL;
    p->value[number] = v;
    return true;
}

static bool parse_value(parser *p, const ts_region *r, ts_value **v)
{
    int64_t number;
    if (!parse_number(p, &number)) return false;
    *v = number < p->n_value ? p->value[number] : NULL;
    if (!*v) return ts__scan_fail(&p->s, "%%%" PRId64 " is not defined here", number);
    if ((*v)->region != r)
        return ts__scan_fail(&p->s, "%%%" PRId64 " belongs to another region", number);
    return true;
}

static bool push(parser *p, numbers *list, int64_t v)
{
    if (list->n >= MAX_LIST) return ts__scan_fail(&p->s, "more than %d values in a list", MAX_LIST);
    if (!ts__arena_grow(p->g->arena, &list->v, &list->cap, list->n, sizeof *list->v))
        return ts__scan_memory(&p->s);
    list->v[list->n++] = v;
    return true;
}

/* A type, and behind it " pin=[batch,-]", a name or - for each dimension. */
static bool parse_value_type(parser *p, ts_type *type, const ts_pin **pin)
{
    *pin = NULL;
    if (!ts__scan_type(&p->s, type)) return false;
    if (!ts__scan_accept_word(&p->s, "pin")) return !p->s.failed;
    ts_pin *made = ts_arena_alloc(p->g->arena, sizeof *made);
    if (!made) return ts__scan_memory(&p->s);
    if (!ts__scan_expect(&p->s, '=') || !ts__scan_expect(&p->s, '[')) return false;
    for (int i = 0; i < type->rank; i++) {
        if (i && !ts__scan_expect(&p->s, ',')) return false;
        if (!ts__scan_accept(&p->s, '-') && !ts__scan_name(&p->s, &made->name[i])) return false;
    }
    *pin = made;
    return ts__scan_expect(&p->s, ']');
}

/* ---- attributes and origin ------------------------------------------------------------------- */

static bool parse_field(parser *p, const ts_field *f, ts_attr *attr)
{
    char *at = (char *)attr + f->offset, word[TS_WORD_MAX];
    if (!ts__scan_expect_word(&p->s, f->name) || !ts__scan_expect(&p->s, '=')) return false;
    switch (f->kind) {
    case TS_FIELD_DT: return ts__scan_dtype(&p->s, (ts_dtype *)at);
    case TS_FIELD_INT: return ts__scan_int(&p->s, (int64_t *)at);
    case TS_FIELD_REAL: return ts__scan_real(&p->s, (double *)at);
    case TS_FIELD_DIMS: return ts__scan_ints(&p->s, (ts_dims *)at);
    case TS_FIELD_SHAPE: return ts__scan_dims(&p->s, (ts_shape *)at);
    case TS_FIELD_TEXT: return ts__scan_string(&p->s, (const char **)at);
    case TS_FIELD_BOOL:
        *(bool *)at = ts__scan_accept_word(&p->s, "true");
        return *(bool *)at || ts__scan_expect_word(&p->s, "false");
    case TS_FIELD_WORD: {
        int n;
        const char *const *words = ts__field_words(f, &n);
        if (!ts__scan_word(&p->s, word)) return false;
        for (int i = 0; i < n; i++)
            if (strcmp(words[i], word) == 0) {
                *(int *)at = i;
                return true;
            }
        return ts__scan_fail(&p->s, "'%s' is no %s", word, f->name);
    }
    }
    return false;
}

typedef struct origin {
    ts_loc loc;
    const char *scope;
    bool backward;
    int64_t primal; /* number of its first result; −1 none */
    bool is_like;
    numbers like;
} origin;

/* like=[0,-1]: places in the primal. How many there must be is known when the node is made. */
static bool parse_like(parser *p, origin *o)
{
    int64_t v;
    if (!ts__scan_accept_word(&p->s, "like")) return !p->s.failed;
    o->is_like = true;
    if (!ts__scan_expect(&p->s, '=') || !ts__scan_expect(&p->s, '[')) return false;
    do {
        if (!ts__scan_int_in(&p->s, -1, INT8_MAX, &v) || !push(p, &o->like, v)) return false;
    } while (ts__scan_accept(&p->s, ','));
    return ts__scan_expect(&p->s, ']');
}

static bool parse_origin(parser *p, origin *o)
{
    int64_t line;
    *o = (origin){.primal = -1};
    if (ts__scan_accept(&p->s, '@')) {
        if (!ts__scan_string(&p->s, &o->loc.file) || !ts__scan_expect(&p->s, ':') ||
            !ts__scan_int_in(&p->s, INT32_MIN, INT32_MAX, &line))
            return false;
        o->loc.line = (int)line;
    }
    if (ts__scan_accept_word(&p->s, "scope") &&
        (!ts__scan_expect(&p->s, '=') || !ts__scan_string(&p->s, &o->scope)))
        return false;
    o->backward = ts__scan_accept_word(&p->s, "backward");
    if (ts__scan_accept_word(&p->s, "primal") &&
        (!ts__scan_expect(&p->s, '=') || !parse_number(p, &o->primal) || !parse_like(p, o)))
        return false;
    return !p->s.failed;
}

/* ---- nodes ----------------------------------------------------------------------------------- */

static bool parse_node(parser *p, ts_region *r, int depth);

static bool parse_body(parser *p, ts_region *r, int depth)
{
    int64_t number;
    ts_type type;
    const ts_pin *pin;
    ts_value *v;
    if (depth > MAX_DEPTH)
        return ts__scan_fail(&p->s, "regions are nested more than %d deep", MAX_DEPTH);
    while (ts__scan_accept_word(&p->s, "arg")) {
        if (!parse_number(p, &number) || !parse_value_type(p, &type, &pin)) return false;
        v = ts__region_add_arg(r, &type, NULL);
        if (!v) return ts__scan_memory(&p->s);
        v->pin = pin;
        if (!define(p, number, v)) return false;
    }
    while (!ts__scan_accept_word(&p->s, "yield"))
        if (!parse_node(p, r, depth)) return false;
    if (ts__scan_accept(&p->s, '}')) return true;
    do {
        if (!parse_value(p, r, &v)) return false;
        if (!ts__region_add_result(r, v)) return ts__scan_memory(&p->s);
    } while (ts__scan_accept(&p->s, ','));
    return ts__scan_expect(&p->s, '}');
}

static bool parse_op(parser *p, ts_op *op)
{
    char word[TS_WORD_MAX];
    if (!ts__scan_word(&p->s, word)) return false;
    for (int i = 0; i < TS_OPS; i++)
        if (strcmp(ts_op_infos[i].name, word) == 0) {
            *op = (ts_op)i;
            return true;
        }
    return ts__scan_fail(&p->s, "there is no operation '%s'", word);
}

/* (%1, %2): the operands, values of r. */
static bool parse_operands(parser *p, const ts_region *r, ts_value ***in, int *n_in)
{
    int cap = 0;
    *n_in = 0;
    *in = NULL;
    if (!ts__scan_expect(&p->s, '(')) return false;
    if (ts__scan_accept(&p->s, ')')) return true;
    do {
        ts_value *v;
        if (!parse_value(p, r, &v)) return false;
        if (*n_in >= MAX_LIST) return ts__scan_fail(&p->s, "more than %d operands", MAX_LIST);
        if (!ts__arena_grow(p->g->arena, in, &cap, *n_in, sizeof **in))
            return ts__scan_memory(&p->s);
        (*in)[(*n_in)++] = v;
    } while (ts__scan_accept(&p->s, ','));
    return ts__scan_expect(&p->s, ')');
}

/* The type and pin that the text states for a result. */
typedef struct stated {
    ts_type type;
    const ts_pin *pin;
} stated;

/* Types stated for the results: as many, and equal to those inferred; names are taken over. */
static bool check_results(parser *p, ts_node *n, const numbers *names, const stated *s, int n_types)
{
    char found[400], expected[400];
    if (names->n != n->n_out || n_types != n->n_out)
        return ts__scan_fail(&p->s, "%s has %d results; %d are named and %d have a type",
                             ts_op_infos[n->op].name, n->n_out, names->n, n_types);
    for (int i = 0; i < n->n_out; i++) {
        if (!ts_type_same(&s[i].type, &n->out[i]->type))
            return ts__scan_fail(&p->s, "result %d of %s is stated as %s; its operands make it %s",
                                 i, ts_op_infos[n->op].name,
                                 ts_type_text(&s[i].type, found, sizeof found),
                                 ts_type_text(&n->out[i]->type, expected, sizeof expected));
        n->out[i]->type = s[i].type;
        n->out[i]->pin = s[i].pin;
        if (!define(p, names->v[i], n->out[i])) return false;
    }
    return true;
}

static bool parse_types(parser *p, stated **types, int *n)
{
    int cap = 0;
    *n = 0;
    *types = NULL;
    if (!ts__scan_accept(&p->s, ':')) return true;
    do {
        if (!ts__arena_grow(p->g->arena, types, &cap, *n, sizeof **types))
            return ts__scan_memory(&p->s);
        if (!parse_value_type(p, &(*types)[*n].type, &(*types)[*n].pin)) return false;
        ++*n;
    } while (ts__scan_accept(&p->s, ','));
    return true;
}

static bool take_like(parser *p, ts_node *n, const numbers *like)
{
    if (like->n != n->n_in + n->n_out)
        return ts__scan_fail(&p->s, "like has %d places; %s has %d operands and %d results",
                             like->n, ts_op_infos[n->op].name, n->n_in, n->n_out);
    int8_t *places = ts_arena_alloc(p->g->arena, (size_t)like->n + 1);
    if (!places) return ts__scan_memory(&p->s);
    for (int i = 0; i < like->n; i++) places[i] = (int8_t)like->v[i];
    n->like = places;
    return true;
}

static bool make_node(parser *p, ts_region *r, ts_op op, ts_value **in, int n_in,
                      const ts_attr *attr, ts_region *body, const origin *o, ts_node **made)
{
    ts_error why = {0};
    ts_node *n = ts__node_new(r, NULL, op, in, n_in, attr, body, &why);
    if (!n)
        return why.code == TS_RESOURCE_EXHAUSTED ? ts__scan_memory(&p->s)
                                                 : ts__scan_fail(&p->s, "%.600s", why.msg);
    n->loc = o->loc;
    n->scope = o->scope;
    n->backward = o->backward;
    n->user = (void *)(uintptr_t)(o->primal + 1); /* resolved at the end of the text */
    *made = n;
    return !o->is_like || take_like(p, n, &o->like);
}

static bool parse_node(parser *p, ts_region *r, int depth)
{
    numbers names = {0};
    ts_attr attr = {0};
    ts_value **in;
    stated *types;
    ts_node *n;
    ts_region *body = NULL;
    origin o;
    ts_op op = TS_OPS;
    int n_in, n_types, fields;
    while (ts__scan_accept(&p->s, '%')) {
        int64_t number;
        if (!ts__scan_int_in(&p->s, 0, MAX_LIST * 16, &number) || !push(p, &names, number))
            return false;
        if (!ts__scan_accept(&p->s, ',')) {
            if (!ts__scan_expect(&p->s, '=')) return false;
            break;
        }
    }
    if (!parse_op(p, &op) || !parse_operands(p, r, &in, &n_in)) return false;
    const ts_field *f = ts__attr_fields(ts_op_infos[op].attr, &fields);
    for (int i = 0; i < fields; i++)
        if (!parse_field(p, &f[i], &attr)) return false;
    if (!parse_types(p, &types, &n_types) || !parse_origin(p, &o)) return false;
    if (op == TS_OP_repeat) {
        if (!ts__scan_expect(&p->s, '{')) return false;
        if (!(body = ts__region_new(p->g, r))) return ts__scan_memory(&p->s);
        if (!parse_body(p, body, depth + 1)) return false;
    }
    return make_node(p, r, op, in, n_in, &attr, body, &o, &n) &&
           check_results(p, n, &names, types, n_types);
}

/* ---- the graph ------------------------------------------------------------------------------- */

static bool parse_input(parser *p)
{
    int64_t number;
    const char *name;
    ts_type type;
    const ts_pin *pin;
    if (!parse_number(p, &number) || !ts__scan_string(&p->s, &name) ||
        !parse_value_type(p, &type, &pin))
        return false;
    ts_value *v = ts__region_add_arg(p->g->top, &type, name);
    if (!v) return ts__scan_memory(&p->s);
    v->pin = pin;
    return define(p, number, v);
}

static bool parse_output(parser *p)
{
    ts_graph *g = p->g;
    ts_output_info info = {.replaces = -1};
    ts_value *v, *input;
    if (!ts__scan_string(&p->s, &info.name) || !parse_value(p, g->top, &v)) return false;
    if (ts__scan_accept_word(&p->s, "replaces")) {
        if (!ts__scan_expect(&p->s, '=') || !parse_value(p, g->top, &input)) return false;
        if (input->node)
            return ts__scan_fail(&p->s, "output \"%s\" replaces what is no input", info.name);
        info.replaces = input->index;
    }
    if (!ts__arena_grow(g->arena, &g->output, &g->cap_output, g->top->n_result, sizeof *g->output))
        return ts__scan_memory(&p->s);
    g->output[g->top->n_result] = info;
    return ts__region_add_result(g->top, v) || ts__scan_memory(&p->s);
}

static bool parse_named_int(parser *p, const char *name, int *v)
{
    int64_t wide;
    if (!ts__scan_expect_word(&p->s, name) || !ts__scan_expect(&p->s, '=') ||
        !ts__scan_int_in(&p->s, 0, INT32_MAX, &wide))
        return false;
    *v = (int)wide;
    return true;
}

static bool parse_param(parser *p)
{
    ts_graph *g = p->g;
    ts_param_info q = {0};
    ts_dims file;
    if (!ts__scan_string(&p->s, &q.name) || !parse_value(p, g->top, &q.value)) return false;
    if (!parse_named_int(p, "first", &q.first) || !parse_named_int(p, "step", &q.step) ||
        !parse_named_int(p, "count", &q.count))
        return false;
    if (!ts__scan_expect_word(&p->s, "file") || !ts__scan_expect(&p->s, '=') ||
        !ts__scan_ints(&p->s, &file))
        return false;
    if (!ts__scan_expect_word(&p->s, "init") || !ts__scan_expect(&p->s, '=') ||
        !ts__scan_real(&p->s, &q.init))
        return false;
    q.file_rank = file.n;
    memcpy(q.file_dim, file.v, sizeof q.file_dim);
    if (!ts__arena_grow(g->arena, &g->param, &g->cap_param, g->n_param, sizeof *g->param))
        return ts__scan_memory(&p->s);
    g->param[g->n_param++] = q;
    return true;
}

static bool resolve_primals(parser *p, ts_region *r)
{
    for (ts_node *n = r->first; n; n = n->next) {
        int64_t number = (int64_t)(uintptr_t)n->user - 1;
        n->user = NULL;
        if (number >= 0) {
            ts_value *v = number < p->n_value ? p->value[number] : NULL;
            if (!v || !v->node)
                return ts__scan_fail(&p->s, "primal=%%%" PRId64 " is no node's result", number);
            n->primal = v->node;
        }
        if (n->body && !resolve_primals(p, n->body)) return false;
    }
    return true;
}

/* mesh(fsdp=4, tensor=2); nothing: one device. Names and sizes are the verifier's matter. */
static bool parse_mesh(parser *p)
{
    ts_graph *g = p->g;
    if (!ts__scan_accept_word(&p->s, "mesh")) return true;
    if (!ts__scan_expect(&p->s, '(')) return false;
    do {
        if (g->n_axis == TS_MAX_AXES)
            return ts__scan_fail(&p->s, "a mesh of more than %d axes", TS_MAX_AXES);
        if (!ts__scan_name(&p->s, &g->axis[g->n_axis].name) || !ts__scan_expect(&p->s, '=') ||
            !ts__scan_int(&p->s, &g->axis[g->n_axis].size))
            return false;
        g->n_axis++;
    } while (ts__scan_accept(&p->s, ','));
    return ts__scan_expect(&p->s, ')');
}

static bool parse_graph(parser *p)
{
    bool ok = ts__scan_expect_word(&p->s, "graph") && ts__scan_string(&p->s, &p->g->name) &&
              parse_mesh(p) && ts__scan_expect(&p->s, '{');
    while (ok && !ts__scan_accept(&p->s, '}')) {
        if (ts__scan_accept_word(&p->s, "in")) ok = parse_input(p);
        else if (ts__scan_accept_word(&p->s, "out")) ok = parse_output(p);
        else if (ts__scan_accept_word(&p->s, "param")) ok = parse_param(p);
        else ok = parse_node(p, p->g->top, 0);
    }
    if (!ok || !resolve_primals(p, p->g->top)) return false;
    (void)ts__scan_accept(&p->s, '\n'); /* skips what space and comments are left */
    return p->s.at == p->s.n || ts__scan_fail(&p->s, "text follows the graph");
}

ts_status ts_graph_parse(const char *text, size_t n, ts_graph **out, ts_error *err)
{
    ts_error why = {0};
    *out = NULL;
    if (n > MAX_TEXT)
        return TS_ERROR(err, TS_DATA_LOSS, "graph text: %zu bytes; at most %d are read", n,
                        MAX_TEXT);
    parser p = {.s = {.text = text, .n = n, .err = &why}, .g = ts__graph_new("")};
    if (!p.g)
        return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out while reading a graph's text");
    p.s.arena = p.g->arena;
    ts_status status = parse_graph(&p) ? TS_OK : why.code;
    if (status == TS_OK && (status = ts_graph_verify(p.g, &why)) != TS_OK &&
        status != TS_RESOURCE_EXHAUSTED)
        status = TS_DATA_LOSS;
    if (status == TS_OK) {
        *out = p.g;
        return TS_OK;
    }
    ts_graph_free(p.g);
    return TS_ERROR(err, status, "%s", why.msg);
}
