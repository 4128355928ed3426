/* ir/verify.c – is this graph well formed? Run after every pass; a pass that breaks an invariant of
 * graph.h is named by its first broken node.
 *
 * Checked: links between regions, nodes and values; ids unique; operands of the node's own region
 * and defined before it; attributes and results' types by the shape rules (ts__infer); a repeat's
 * body; the mesh, and that every collective runs over one of its axes; outputs' names and the inputs
 * they replace; parameters and their shape in a file.
 * Not checked: that values are used, or that the graph computes what was meant.
 */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "ir/graph.h"

enum { MAX_DEPTH = 16, MAX_LAYERS = 100000, MAX_DEVICES = 1 << 20 };

typedef struct verifier {
    const ts_graph *g;
    ts_error *err;
    uint8_t *defined;  /* by value id */
    const ts_node *at; /* for messages; NULL: the graph itself */
} verifier;

#define BROKEN(v, ...) broken((v), __LINE__, __VA_ARGS__)
static ts_status broken(verifier *v, int line, const char *fmt, ...) TS_PRINTF(3, 4);

static ts_status broken(verifier *v, int line, const char *fmt, ...)
{
    char text[1200];
    const ts_node *n = v->at;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (!n)
        return ts__error(v->err, TS_INVALID_ARGUMENT, __FILE__, line, "graph %s: %s", v->g->name,
                         text);
    char at[200] = "";
    if (n->loc.file) snprintf(at, sizeof at, " at %.150s:%d", n->loc.file, n->loc.line);
    return ts__error(v->err, TS_INVALID_ARGUMENT, __FILE__, line, "graph %s, %s%s%s%s: %s",
                     v->g->name,
                     (unsigned)n->op < TS_OPS ? ts_op_infos[n->op].name : "unknown operation",
                     n->scope ? " in " : "", n->scope ? n->scope : "", at, text);
}

/* ---- values ---------------------------------------------------------------------------------- */

static ts_status define(verifier *v, const ts_value *x, const ts_region *r, const ts_node *n,
                        int index)
{
    const char *what = n ? "result" : "argument";
    if (!x) return BROKEN(v, "%s %d is missing", what, index);
    if (x->region != r || x->node != n || x->index != index)
        return BROKEN(v, "%s %d (id %u) does not point back to where it is made", what, index,
                      x->id);
    if (x->id >= v->g->next_id)
        return BROKEN(v, "%s %d has id %u; ids end at %u", what, index, x->id, v->g->next_id);
    if (v->defined[x->id])
        return BROKEN(v, "%s %d has id %u, which another value has", what, index, x->id);
    v->defined[x->id] = 1;
    return ts__type_check(&x->type, what, v->err);
}

static ts_status check_use(verifier *v, const ts_value *x, const ts_region *r, const char *what,
                           int index)
{
    if (!x) return BROKEN(v, "%s %d is missing", what, index);
    if (x->region != r)
        return BROKEN(v, "%s %d (id %u) belongs to another region", what, index, x->id);
    if (x->id >= v->g->next_id || !v->defined[x->id])
        return BROKEN(v, "%s %d (id %u) is used before it is computed, or was removed", what, index,
                      x->id);
    return TS_OK;
}

/* ---- nodes and regions ----------------------------------------------------------------------- */

static ts_status check_region(verifier *v, const ts_region *r, int depth);

static ts_status check_types(verifier *v, const ts_node *n, const ts_type *types, int n_types)
{
    char a[400], b[400];
    if (n_types != n->n_out)
        return BROKEN(v, "it has %d results; the shape rule gives %d", n->n_out, n_types);
    for (int i = 0; i < n_types; i++)
        if (!ts_type_same(&types[i], &n->out[i]->type))
            return BROKEN(v, "result %d is %s; the shape rule gives %s", i,
                          ts_type_text(&n->out[i]->type, a, sizeof a),
                          ts_type_text(&types[i], b, sizeof b));
    return TS_OK;
}

/* A graph without a mesh may hold collectives: it is partitioned for no mesh yet, or comes from a test. */
static ts_status check_axis(verifier *v, const ts_node *n)
{
    const ts_graph *g = v->g;
    if (ts_op_infos[n->op].kind != TS_COLLECTIVE || !g->n_axis) return TS_OK;
    for (int i = 0; i < g->n_axis; i++) {
        if (strcmp(g->axis[i].name, n->attr.collective.axis) != 0) continue;
        if (g->axis[i].size == n->attr.collective.n) return TS_OK;
        return BROKEN(v, "it runs over %" PRId64 " devices of axis %.200s, which has %" PRId64,
                      n->attr.collective.n, g->axis[i].name, g->axis[i].size);
    }
    return BROKEN(v, "it runs over axis %.200s, which the graph's mesh does not have",
                  n->attr.collective.axis);
}

/* Nothing is like a repeat or barrier, nor are they: dead code takes operands from them. */
static ts_status check_like(verifier *v, const ts_node *n)
{
    const ts_node *p = n->primal;
    if (!n->like) return TS_OK;
    if (!p) return BROKEN(v, "it is like a primal and has none");
    if (n->op == TS_OP_repeat || n->op == TS_OP_barrier || p->op == TS_OP_repeat ||
        p->op == TS_OP_barrier)
        return BROKEN(v, "a repeat or barrier is like nothing, and nothing like it");
    for (int i = 0; i < n->n_in + n->n_out; i++)
        if (n->like[i] < -1 || n->like[i] >= p->n_in + p->n_out)
            return BROKEN(v, "its value %d is like place %d of a primal of %d", i, n->like[i],
                          p->n_in + p->n_out);
    return TS_OK;
}

static ts_status check_node(verifier *v, const ts_node *n, const ts_region *r, int depth)
{
    v->at = n;
    if ((unsigned)n->op >= TS_OPS) return BROKEN(v, "operation %d does not exist", (int)n->op);
    if (n->region != r) return BROKEN(v, "it stands in one region and points to another");
    if ((n->body != NULL) != (n->op == TS_OP_repeat))
        return BROKEN(v, "only repeat has, and needs, a body");
    for (int i = 0; i < n->n_in; i++) TS_TRY(check_use(v, n->in[i], r, "operand", i));
    if (n->body) {
        if (n->body->owner != n || n->body->parent != r)
            return BROKEN(v, "its body belongs to another node or region");
        TS_TRY(check_region(v, n->body, depth + 1));
        v->at = n;
    }
    int n_types = 0;
    ts_error why = {0};
    ts_type *types = ts_alloc_zero((size_t)(n->n_out + 1) * sizeof *types);
    if (!types)
        return TS_ERROR(v->err, TS_RESOURCE_EXHAUSTED, "memory is out while verifying graph %s",
                        v->g->name);
    ts_status status =
        ts__infer(n->op, n->in, n->n_in, &n->attr, n->body, types, n->n_out, &n_types, &why);
    status = status == TS_OK ? check_axis(v, n) : BROKEN(v, "%s", why.msg);
    if (status == TS_OK) status = check_like(v, n);
    for (int i = 0; i < n->n_out && status == TS_OK; i++) status = define(v, n->out[i], r, n, i);
    if (status == TS_OK) status = check_types(v, n, types, n_types);
    ts_free(types);
    return status;
}

static ts_status check_region(verifier *v, const ts_region *r, int depth)
{
    const ts_node *previous = NULL;
    if (depth > MAX_DEPTH) return BROKEN(v, "regions are nested more than %d deep", MAX_DEPTH);
    if (r->graph != v->g) return BROKEN(v, "a region belongs to another graph");
    for (int i = 0; i < r->n_arg; i++) TS_TRY(define(v, r->arg[i], r, NULL, i));
    for (const ts_node *n = r->first; n; previous = n, n = n->next) {
        v->at = n;
        if (n->prev != previous)
            return BROKEN(v, "the node before it is not the one that leads to it");
        TS_TRY(check_node(v, n, r, depth));
    }
    v->at = r->owner;
    if (r->last != previous) return BROKEN(v, "a region's last node is not where its list ends");
    for (int i = 0; i < r->n_result; i++) TS_TRY(check_use(v, r->result[i], r, "region result", i));
    return TS_OK;
}

static ts_status check_mesh(verifier *v)
{
    const ts_graph *g = v->g;
    int64_t devices = 1;
    if (g->n_axis < 0 || g->n_axis > TS_MAX_AXES)
        return BROKEN(v, "its mesh has %d axes; expected 0 to %d", g->n_axis, TS_MAX_AXES);
    for (int i = 0; i < g->n_axis; i++) {
        const char *name = g->axis[i].name;
        if (!name || !*name) return BROKEN(v, "axis %d of its mesh has no name", i);
        for (int k = 0; k < i; k++)
            if (strcmp(g->axis[k].name, name) == 0)
                return BROKEN(v, "two axes of its mesh are named %.200s", name);
        if (g->axis[i].size < 1 || ts_mul_i64(devices, g->axis[i].size, &devices) ||
            devices > MAX_DEVICES)
            return BROKEN(v,
                          "axis %.200s of its mesh has %" PRId64
                          " devices; expected at least 1, and at most 2^20 in all axes together",
                          name, g->axis[i].size);
    }
    return TS_OK;
}

/* ---- the graph's own tables ------------------------------------------------------------------ */

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Names present and all different; name(i) of n. */
static ts_status check_names(verifier *v, const char *what,
                             const char *(*name)(const ts_graph *, int), int n)
{
    const char **names = ts_alloc((size_t)(n + 1) * sizeof *names);
    if (!names)
        return TS_ERROR(v->err, TS_RESOURCE_EXHAUSTED, "memory is out while verifying graph %s",
                        v->g->name);
    ts_status status = TS_OK;
    for (int i = 0; i < n && status == TS_OK; i++)
        if (!(names[i] = name(v->g, i)) || !*names[i])
            status = BROKEN(v, "%s %d has no name", what, i);
    if (status == TS_OK) qsort(names, (size_t)n, sizeof *names, by_text);
    for (int i = 1; i < n && status == TS_OK; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            status = BROKEN(v, "two %ss are named %.200s", what, names[i]);
    ts_free(names);
    return status;
}

static const char *input_name(const ts_graph *g, int i) { return g->top->arg[i]->name; }
static const char *output_name(const ts_graph *g, int i) { return g->output[i].name; }

static ts_status check_outputs(verifier *v)
{
    const ts_region *top = v->g->top;
    char a[400], b[400];
    uint8_t *taken = ts_alloc_zero((size_t)top->n_arg + 1);
    if (!taken)
        return TS_ERROR(v->err, TS_RESOURCE_EXHAUSTED, "memory is out while verifying graph %s",
                        v->g->name);
    ts_status status = TS_OK;
    for (int i = 0; i < top->n_result && status == TS_OK; i++) {
        int input = v->g->output[i].replaces;
        const char *name = v->g->output[i].name;
        if (input < -1 || input >= top->n_arg) {
            status =
                BROKEN(v, "output %s replaces input %d; there are %d", name, input, top->n_arg);
        } else if (input >= 0) {
            if (!ts_type_same(&top->arg[input]->type, &top->result[i]->type))
                status =
                    BROKEN(v, "output %s is %s and replaces input %s, %s; they must be equal", name,
                           ts_type_text(&top->result[i]->type, a, sizeof a), top->arg[input]->name,
                           ts_type_text(&top->arg[input]->type, b, sizeof b));
            else if (taken[input]++)
                status = BROKEN(v, "input %s is replaced by two outputs", top->arg[input]->name);
        }
    }
    ts_free(taken);
    return status;
}

static ts_status check_param(verifier *v, const ts_param_info *p)
{
    const ts_type *t = p->value && p->value->region == v->g->top ? &p->value->type : NULL;
    int64_t n = p->count > 0 ? p->count : 1;
    char text[400];
    if (!p->name || !*p->name) return BROKEN(v, "a parameter has no name");
    if (!t || p->value->node)
        return BROKEN(v, "parameter %.200s is no input of the graph", p->name);
    if (p->count < 0 || p->count > MAX_LAYERS || p->first < 0 || (p->count && p->step < 1))
        return BROKEN(v, "parameter %.200s has layers from %d in steps of %d, %d of them", p->name,
                      p->first, p->step, p->count);
    if (p->count && (t->rank < 1 || t->dim[0].size != p->count || !strstr(p->name, "{")))
        return BROKEN(v,
                      "parameter %.200s is stacked over %d layers and is %s; expected a leading "
                      "dimension of that and a "
                      "{} in the name",
                      p->name, p->count, ts_type_text(t, text, sizeof text));
    if (p->file_rank < 0 || p->file_rank > TS_MAX_RANK)
        return BROKEN(v, "parameter %.200s has %d dimensions in a file", p->name, p->file_rank);
    for (int i = 0; i < p->file_rank; i++)
        if (p->file_dim[i] < 0 || ts_mul_i64(n, p->file_dim[i], &n))
            return BROKEN(v, "parameter %.200s: dimension %d in a file is %" PRId64, p->name, i,
                          p->file_dim[i]);
    /* On a mesh it is one device's part. */
    int64_t held = ts_type_elements(t);
    if (v->g->n_axis && held > 0 ? n % held != 0 : n != held)
        return BROKEN(v, "parameter %.200s is %s and has %" PRId64 " elements in files", p->name,
                      ts_type_text(t, text, sizeof text), n);
    if (!isfinite(p->init) || (p->init < 0 && p->init != TS_INIT_ONES && p->init != TS_INIT_ZEROS))
        return BROKEN(v, "parameter %.200s starts with deviation %g", p->name, p->init);
    return TS_OK;
}

/* Two entries may share a pattern, never a layer. */
static bool share_a_layer(const ts_param_info *p, const ts_param_info *q)
{
    if (strcmp(p->name, q->name) != 0) return false;
    if (!p->count || !q->count) return p->count == q->count || !strstr(p->name, "{");
    for (int64_t i = 0; i < p->count; i++) {
        int64_t layer = p->first + i * p->step - q->first;
        if (layer >= 0 && layer % q->step == 0 && layer / q->step < q->count) return true;
    }
    return false;
}

static ts_status check_params(verifier *v)
{
    for (int i = 0; i < v->g->n_param; i++) TS_TRY(check_param(v, &v->g->param[i]));
    for (int i = 0; i < v->g->n_param; i++)
        for (int k = 0; k < i; k++)
            if (share_a_layer(&v->g->param[i], &v->g->param[k]))
                return BROKEN(v, "two parameters are named %.200s for one layer",
                              v->g->param[i].name);
    return TS_OK;
}

ts_status ts_graph_verify(const ts_graph *g, ts_error *err)
{
    verifier v = {.g = g, .err = err, .defined = ts_alloc_zero((size_t)g->next_id + 1)};
    if (!v.defined)
        return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out while verifying graph %s",
                        g->name);
    ts_status status = check_mesh(&v);
    if (status == TS_OK)
        status = g->top->parent || g->top->owner
                     ? BROKEN(&v, "its top region stands inside another")
                     : check_region(&v, g->top, 0);
    ts_free(v.defined);
    v.at = NULL;
    if (status == TS_OK) status = check_names(&v, "input", input_name, g->top->n_arg);
    if (status == TS_OK) status = check_names(&v, "output", output_name, g->top->n_result);
    if (status == TS_OK) status = check_outputs(&v);
    if (status == TS_OK) status = check_params(&v);
    return status;
}
