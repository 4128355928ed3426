/* ir/print.c – a graph as text: the inverse of parse.c, exactly.
 *
 *   graph "tiny" mesh(fsdp=4, tensor=2) {
 *     in %0 "tokens" i32[batch:2,sequence:8] pin=[batch,-]
 *     in %1 "w" f32[8,4]
 *     %2 = take(%1, %0) no_grad_row=-1 : f32[batch:2,sequence:8,4] @"tiny.c":12 scope="embed"
 *     %3 = repeat(%2) n=3 … : f32[batch:2,sequence:8,4] {
 *       arg %4 f32[batch:2,sequence:8,4]
 *       %5 = exp(%4) : f32[batch:2,sequence:8,4] backward primal=%2 like=[0,-1]
 *       yield %5
 *     }
 *     out "x" %3
 *     param "w" %1 first=0 step=0 count=0 file=[8,4] init=0.02
 *   }
 *
 * Values are numbered in the order of the text, so equal graphs print equally whatever passes made
 * them. A number is the shortest that reads back as the same double. A primal that is no longer in
 * the graph is not printed. Printing does not touch the graph, `user` fields included.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "ir/attrs.h"
#include "ir/parse_text.h"

typedef struct printer {
    ts_string *out;
    uint32_t *number; /* by value id, plus one; 0: not in the text */
    uint32_t next, ids;
} printer;

/* ---- words, strings, numbers ----------------------------------------------------------------- */

static void put_quoted(ts_string *out, const char *s)
{
    ts_string_add(out, "\"");
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (c == '"' || c == '\\') ts_string_printf(out, "\\%c", c);
        else if (c < 0x20 || c == 0x7f) ts_string_printf(out, "\\x%02x", c);
        else ts_string_add_bytes(out, s, 1);
    }
    ts_string_add(out, "\"");
}

static bool is_word(const char *s)
{
    size_t n = strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");
    return n && n < TS_WORD_MAX && !s[n] && (*s < '0' || *s > '9');
}

static void put_real(ts_string *out, double v)
{
    char buf[40];
    if (isnan(v)) {
        ts_string_add(out, "nan");
        return;
    }
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(buf, sizeof buf, "%.*g", digits, v);
        if (strtod(buf, NULL) == v) break;
    }
    ts_string_add(out, buf);
}

static void put_name(ts_string *out, const char *name)
{
    if (is_word(name)) ts_string_add(out, name);
    else put_quoted(out, name);
}

static void put_dims(ts_string *out, const ts_dim *dim, int rank)
{
    ts_string_add(out, "[");
    for (int i = 0; i < rank; i++) {
        if (i) ts_string_add(out, ",");
        if (dim[i].name) {
            put_name(out, dim[i].name);
            ts_string_add(out, ":");
        }
        ts_string_printf(out, "%" PRId64, dim[i].size);
    }
    ts_string_add(out, "]");
}

static void put_type(ts_string *out, const ts_type *t)
{
    ts_string_add(out, ts_dtype_name(t->dtype));
    put_dims(out, t->dim, t->rank);
}

/* A value's type, and its pin: a name or - for each dimension. */
static void put_value_type(ts_string *out, const ts_value *v)
{
    put_type(out, &v->type);
    for (int i = 0; v->pin && i < v->type.rank; i++) {
        ts_string_add(out, i ? "," : " pin=[");
        if (v->pin->name[i]) put_name(out, v->pin->name[i]);
        else ts_string_add(out, "-");
    }
    if (v->pin) ts_string_add(out, v->type.rank ? "]" : " pin=[]");
}

static void put_ints(ts_string *out, const int64_t *v, int n)
{
    ts_string_add(out, "[");
    for (int i = 0; i < n; i++) ts_string_printf(out, "%s%" PRId64, i ? "," : "", v[i]);
    ts_string_add(out, "]");
}

static void put_field(ts_string *out, const ts_field *f, const ts_attr *attr)
{
    const char *at = (const char *)attr + f->offset;
    ts_string_printf(out, " %s=", f->name);
    switch (f->kind) {
    case TS_FIELD_DT: ts_string_add(out, ts_dtype_name(*(const ts_dtype *)at)); break;
    case TS_FIELD_INT: ts_string_printf(out, "%" PRId64, *(const int64_t *)at); break;
    case TS_FIELD_REAL: put_real(out, *(const double *)at); break;
    case TS_FIELD_BOOL: ts_string_add(out, *(const bool *)at ? "true" : "false"); break;
    case TS_FIELD_DIMS: put_ints(out, ((const ts_dims *)at)->v, ((const ts_dims *)at)->n); break;
    case TS_FIELD_SHAPE:
        put_dims(out, ((const ts_shape *)at)->dim, ((const ts_shape *)at)->rank);
        break;
    case TS_FIELD_TEXT:
        put_quoted(out, *(const char *const *)at ? *(const char *const *)at : "");
        break;
    case TS_FIELD_WORD: {
        int n, value = *(const int *)at;
        const char *const *words = ts__field_words(f, &n);
        ts_string_add(out, value >= 0 && value < n ? words[value] : "?");
        break;
    }
    }
}

/* ---- values and nodes ------------------------------------------------------------------------ */

/* Numbers are given before anything is written: a primal may stand later in the text. */
static void number_value(printer *p, const ts_value *v)
{
    if (v->id < p->ids) p->number[v->id] = ++p->next;
}

static void number_region(printer *p, const ts_region *r)
{
    for (int i = 0; i < r->n_arg; i++) number_value(p, r->arg[i]);
    for (const ts_node *n = r->first; n; n = n->next) {
        for (int i = 0; i < n->n_out; i++) number_value(p, n->out[i]);
        if (n->body) number_region(p, n->body);
    }
}

static void put_value(printer *p, const ts_value *v)
{
    uint32_t number = v->id < p->ids ? p->number[v->id] : 0;
    if (number) ts_string_printf(p->out, "%%%" PRIu32, number - 1);
    else ts_string_add(p->out, "%?"); /* a broken graph prints, and does not parse */
}

static void put_values(printer *p, ts_value *const *v, int n)
{
    for (int i = 0; i < n; i++) {
        if (i) ts_string_add(p->out, ", ");
        put_value(p, v[i]);
    }
}

static void indent(printer *p, int depth)
{
    for (int i = 0; i < depth; i++) ts_string_add(p->out, "  ");
}

static void put_region(printer *p, const ts_region *r, int depth);

static void put_origin(printer *p, const ts_node *n)
{
    if (n->loc.file) {
        ts_string_add(p->out, " @");
        put_quoted(p->out, n->loc.file);
        ts_string_printf(p->out, ":%d", n->loc.line);
    }
    if (n->scope) {
        ts_string_add(p->out, " scope=");
        put_quoted(p->out, n->scope);
    }
    if (n->backward) ts_string_add(p->out, " backward");
    const ts_value *primal = n->primal && n->primal->n_out ? n->primal->out[0] : NULL;
    if (primal && primal->id < p->ids && p->number[primal->id]) {
        ts_string_add(p->out, " primal=");
        put_value(p, primal);
        for (int i = 0; n->like && i < n->n_in + n->n_out; i++)
            ts_string_printf(p->out, "%s%d", i ? "," : " like=[", n->like[i]);
        if (n->like) ts_string_add(p->out, "]");
    }
}

static void put_node(printer *p, const ts_node *n, int depth)
{
    int fields;
    const ts_field *f = ts__attr_fields(ts_op_infos[n->op].attr, &fields);
    indent(p, depth);
    put_values(p, n->out, n->n_out);
    ts_string_printf(p->out, "%s%s(", n->n_out ? " = " : "", ts_op_infos[n->op].name);
    put_values(p, n->in, n->n_in);
    ts_string_add(p->out, ")");
    for (int i = 0; i < fields; i++) put_field(p->out, &f[i], &n->attr);
    for (int i = 0; i < n->n_out; i++) {
        ts_string_add(p->out, i ? ", " : " : ");
        put_value_type(p->out, n->out[i]);
    }
    put_origin(p, n);
    if (n->body) {
        ts_string_add(p->out, " {\n");
        for (int i = 0; i < n->body->n_arg; i++) {
            indent(p, depth + 1);
            ts_string_add(p->out, "arg ");
            put_value(p, n->body->arg[i]);
            ts_string_add(p->out, " ");
            put_value_type(p->out, n->body->arg[i]);
            ts_string_add(p->out, "\n");
        }
        put_region(p, n->body, depth + 1);
        indent(p, depth + 1);
        ts_string_add(p->out, "yield ");
        put_values(p, n->body->result, n->body->n_result);
        ts_string_add(p->out, "\n");
        indent(p, depth);
        ts_string_add(p->out, "}");
    }
    ts_string_add(p->out, "\n");
}

static void put_region(printer *p, const ts_region *r, int depth)
{
    for (const ts_node *n = r->first; n; n = n->next) put_node(p, n, depth);
}

/* ---- the graph ------------------------------------------------------------------------------- */

/* " mesh(fsdp=4, tensor=2)", or nothing. */
static void put_mesh(printer *p, const ts_graph *g)
{
    for (int i = 0; i < g->n_axis; i++) {
        ts_string_add(p->out, i ? ", " : " mesh(");
        put_name(p->out, g->axis[i].name ? g->axis[i].name : "");
        ts_string_printf(p->out, "=%" PRId64, g->axis[i].size);
    }
    if (g->n_axis) ts_string_add(p->out, ")");
}

static void put_inputs(printer *p, const ts_graph *g)
{
    for (int i = 0; i < g->top->n_arg; i++) {
        ts_string_add(p->out, "  in ");
        put_value(p, g->top->arg[i]);
        ts_string_add(p->out, " ");
        put_quoted(p->out, g->top->arg[i]->name ? g->top->arg[i]->name : "");
        ts_string_add(p->out, " ");
        put_value_type(p->out, g->top->arg[i]);
        ts_string_add(p->out, "\n");
    }
}

static void put_outputs(printer *p, const ts_graph *g)
{
    for (int i = 0; i < g->top->n_result; i++) {
        int replaces = g->output[i].replaces;
        ts_string_add(p->out, "  out ");
        put_quoted(p->out, g->output[i].name);
        ts_string_add(p->out, " ");
        put_value(p, g->top->result[i]);
        if (replaces >= 0 && replaces < g->top->n_arg) {
            ts_string_add(p->out, " replaces=");
            put_value(p, g->top->arg[replaces]);
        }
        ts_string_add(p->out, "\n");
    }
}

static void put_params(printer *p, const ts_graph *g)
{
    for (int i = 0; i < g->n_param; i++) {
        const ts_param_info *q = &g->param[i];
        ts_string_add(p->out, "  param ");
        put_quoted(p->out, q->name);
        ts_string_add(p->out, " ");
        put_value(p, q->value);
        ts_string_printf(p->out, " first=%d step=%d count=%d file=", q->first, q->step, q->count);
        put_ints(p->out, q->file_dim, q->file_rank);
        ts_string_add(p->out, " init=");
        put_real(p->out, q->init);
        ts_string_add(p->out, "\n");
    }
}

void ts_graph_print(const ts_graph *g, ts_string *out)
{
    printer p = {.out = out,
                 .ids = g->next_id,
                 .number = ts_alloc_zero((size_t)g->next_id * sizeof *p.number + 1)};
    if (!p.number) {
        out->failed = true;
        return;
    }
    number_region(&p, g->top);
    ts_string_add(out, "graph ");
    put_quoted(out, g->name);
    put_mesh(&p, g);
    ts_string_add(out, " {\n");
    put_inputs(&p, g);
    put_region(&p, g->top, 1);
    put_outputs(&p, g);
    put_params(&p, g);
    ts_string_add(out, "}\n");
    ts_free(p.number);
}
