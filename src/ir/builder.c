/* ir/builder.c – the builder: where nodes go, the first mistake, capture of outer values, repeats.
 *
 * A mistake poisons the builder: every later call returns a stand-in, and finish reports the first
 * mistake with the line of the model that made it. So model code needs no checks between lines.
 *
 * A value of an outer region becomes a const of every repeat in between (ts__use). The arguments of a
 * repeat under construction arrive in any order and are sorted into carry, xs, consts at its end.
 * The functions named after ops are in build_ops.c.
 */
#include "ir/builder.h"

#include <stdarg.h>
#include <stdio.h>

enum { ROLE_CARRY, ROLE_XS, ROLE_CONST, ROLES };

ts_value *ts__mistake(ts_builder *b, ts_status code, const char *fmt, ...)
{
    if (b->error.code == TS_OK) {
        char text[1500];
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(text, sizeof text, fmt, ap);
        va_end(ap);
        const char *scope = b->scope ? b->scope->path : "";
        if (b->loc.file)
            TS_ERROR(&b->error, code, "%s:%d: %s%s%s", b->loc.file, b->loc.line, scope,
                     *scope ? ": " : "", text);
        else
            TS_ERROR(&b->error, code, "%s%s%s", scope, *scope ? ": " : "", text);
    }
    return b->poison;
}

static ts_value *out_of_memory(ts_builder *b)
{
    return ts__mistake(b, TS_RESOURCE_EXHAUSTED, "memory is out while building graph %s",
                       b->graph->name);
}

void ts__builder_over(ts_builder *b, ts_graph *g, ts_region *region, ts_node *before)
{
    static ts_value nothing;
    *b = (ts_builder){.graph = g, .region = region, .before = before, .poison = &nothing};
}

ts_builder *ts_builder_new(const char *name)
{
    ts_graph *g = ts__graph_new(name);
    ts_builder *b = g ? ts_alloc_zero(sizeof *b) : NULL;
    if (!b) {
        ts_graph_free(g);
        return NULL;
    }
    ts__builder_over(b, g, g->top, NULL);
    return b;
}

void ts_builder_free(ts_builder *b)
{
    if (!b) return;
    ts_graph_free(b->graph);
    ts_free(b);
}

ts_status ts_builder_finish(ts_builder *b, ts_graph **graph, ts_error *err)
{
    *graph = NULL;
    if (b->error.code == TS_OK && b->region != b->graph->top)
        ts__mistake(b, TS_FAILED_PRECONDITION, "a repeat was begun and not ended");
    if (b->error.code == TS_OK && ts_graph_verify(b->graph, &b->error) == TS_OK) {
        *graph = b->graph;
        b->graph = NULL;
    }
    ts_status status = b->error.code;
    if (status != TS_OK && err) *err = b->error;
    ts_graph_free(b->graph);
    ts_free(b);
    return status;
}

void ts_builder_at(ts_builder *b, const char *file, int line)
{
    const char *slash = strrchr(file, '/');
    b->loc = (ts_loc){slash ? slash + 1 : file, line};
}

void ts_scope_push(ts_builder *b, const char *fmt, ...)
{
    char name[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    ts_scope *s = ts_arena_alloc(b->graph->arena, sizeof *s);
    if (!s) {
        out_of_memory(b);
        return;
    }
    s->up = b->scope;
    s->path = b->scope && *name ? ts_arena_printf(b->graph->arena, "%s.%s", b->scope->path, name)
                                : ts_arena_strdup(b->graph->arena, name);
    if (s->path)
        b->scope = s;
    else
        out_of_memory(b);
}

void ts_scope_pop(ts_builder *b)
{
    TS_ASSERT(b->scope || b->error.code != TS_OK);
    if (b->scope) b->scope = b->scope->up;
}

const ts_type *ts_type_of(const ts_value *v)
{
    return &v->type;
}

int64_t ts_dim_of(const ts_value *v, int dim)
{
    return dim >= 0 && dim < v->type.rank ? v->type.dim[dim].size : 1;
}

/* ---- nodes ----------------------------------------------------------------------------------- */

ts_node *ts__op_n(ts_builder *b, ts_op op, ts_value *const *in, int n_in, const ts_attr *attr)
{
    ts_value *local[16], **used = local;
    if (b->error.code != TS_OK) return NULL;
    if (n_in > 16 && !(used = ts_arena_alloc(b->graph->arena, (size_t)n_in * sizeof *used))) {
        out_of_memory(b);
        return NULL;
    }
    for (int i = 0; i < n_in; i++) used[i] = ts__use(b, in[i]);
    if (b->error.code != TS_OK) return NULL;
    ts_error err = {0};
    ts_node *n = ts__node_new(b->region, b->before, op, used, n_in, attr, NULL, &err);
    if (!n) {
        ts__mistake(b, err.code, "%s", err.msg);
        return NULL;
    }
    n->loc = b->loc;
    n->scope = b->scope ? b->scope->path : NULL;
    n->primal = b->primal;
    n->backward = b->backward;
    return n;
}

ts_value *ts__op(ts_builder *b, ts_op op, ts_value *const *in, int n_in, const ts_attr *attr)
{
    ts_node *n = ts__op_n(b, op, in, n_in, attr);
    return n ? n->out[0] : b->poison;
}

ts_value *ts__zeros(ts_builder *b, const ts_type *type)
{
    return ts_constant(b, 0, type->dtype, type->dim, type->rank);
}

ts_value *ts__pin(ts_builder *b, ts_value *v, const char *const *name)
{
    if (b->error.code != TS_OK) return v;
    ts_pin *pin = ts_arena_alloc(b->graph->arena, sizeof *pin);
    if (!pin) return out_of_memory(b);
    for (int i = 0; i < v->type.rank; i++) pin->name[i] = name[i];
    v->pin = pin;
    return v;
}

/* ---- inputs and outputs ---------------------------------------------------------------------- */

ts_value *ts_input(ts_builder *b, const char *name, ts_dtype dtype, const ts_dim *dims, int rank)
{
    if (b->error.code != TS_OK) return b->poison;
    if (rank < 0 || rank > TS_MAX_RANK)
        return ts__mistake(b, TS_INVALID_ARGUMENT, "input %s has rank %d; the limit is %d", name,
                           rank, TS_MAX_RANK);
    if (ts_graph_input_index(b->graph, name) >= 0)
        return ts__mistake(b, TS_INVALID_ARGUMENT, "two inputs are named %s", name);
    ts_type type = ts_type_make(dtype, dims, rank);
    int64_t elements = 1;
    for (int i = 0; i < rank; i++) {
        if (dims[i].size < 0 || ts_mul_i64(elements, dims[i].size, &elements) ||
            elements > (int64_t)1 << 48)
            return ts__mistake(b, TS_INVALID_ARGUMENT,
                               "input %s: dimension %d of %lld makes it negative or too large",
                               name, i, (long long)dims[i].size);
        if (dims[i].name && !(type.dim[i].name = ts_arena_strdup(b->graph->arena, dims[i].name)))
            return out_of_memory(b);
    }
    ts_value *v = ts__region_add_arg(b->graph->top, &type, name);
    return v ? v : out_of_memory(b);
}

void ts_output(ts_builder *b, const char *name, ts_value *v, ts_value *replaces)
{
    ts_graph *g = b->graph;
    if (b->error.code != TS_OK) return;
    if (b->region != g->top) {
        ts__mistake(b, TS_FAILED_PRECONDITION, "output %s is set inside a repeat", name);
        return;
    }
    if (replaces && (replaces->node || replaces->region != g->top ||
                     !ts_type_same(&replaces->type, &v->type))) {
        ts__mistake(b, TS_INVALID_ARGUMENT,
                    "output %s can only replace an input of its own shape and dtype", name);
        return;
    }
    v = ts__use(b, v);
    int n = g->top->n_result;
    if (b->error.code != TS_OK) return;
    if (!ts__arena_grow(g->arena, &g->output, &g->cap_output, n, sizeof *g->output) ||
        !(g->output[n].name = ts_arena_strdup(g->arena, name)) ||
        !ts__region_add_result(g->top, v)) {
        out_of_memory(b);
        return;
    }
    g->output[n].replaces = replaces ? replaces->index : -1;
}

/* ---- values of outer regions ----------------------------------------------------------------- */

ts_value *ts__use_in(ts_builder *b, ts_region *region, ts_value *v)
{
    if (b->error.code != TS_OK || v->region == region) return v;
    ts_repeat *r = region->owner ? NULL : region->user;
    if (!r)
        return ts__mistake(b, TS_FAILED_PRECONDITION,
                           "value %%%u is used outside the repeat that computes it", v->id);
    if (r->primal && v->region == r->primal) return r->foreign(b, r, v);
    ts_value *outer = ts__use_in(b, r->outer, v);
    return b->error.code == TS_OK ? ts__repeat_add(b, r, ROLE_CONST, outer, NULL) : b->poison;
}

ts_value *ts__use(ts_builder *b, ts_value *v)
{
    return ts__use_in(b, b->region, v);
}

/* ---- repeats --------------------------------------------------------------------------------- */

/* The type of one slice of xs: without the leading dimension. */
static ts_type slice_type(const ts_type *t)
{
    return ts_type_make(t->dtype, t->dim + 1, t->rank - 1);
}

ts_value *ts__repeat_add(ts_builder *b, ts_repeat *r, int role, ts_value *outer,
                         const ts_type *type)
{
    ts_region *region = r->region;
    for (int i = 0; outer && role != ROLE_CARRY && i < region->n_arg; i++)
        if (r->operand[i] == outer && r->role[i] == role) return region->arg[i];
    ts_type own;
    if (!type) {
        if (role == ROLE_XS && (outer->type.rank == 0 || outer->type.dim[0].size != r->n)) {
            char text[400];
            return ts__mistake(b, TS_INVALID_ARGUMENT,
                               "xs %s of a repeat must have a leading dimension of %lld",
                               ts_type_text(&outer->type, text, sizeof text), (long long)r->n);
        }
        own = role == ROLE_XS ? slice_type(&outer->type) : outer->type;
        type = &own;
    }
    int capacity = r->capacity;
    ts_arena *a = b->graph->arena;
    if (!ts__arena_grow(a, &r->operand, &capacity, region->n_arg, sizeof *r->operand) ||
        !ts__arena_grow(a, &r->role, &r->capacity, region->n_arg, sizeof *r->role))
        return out_of_memory(b);
    ts_value *arg = ts__region_add_arg(region, type, NULL);
    if (!arg) return out_of_memory(b);
    r->operand[arg->index] = outer;
    r->role[arg->index] = (uint8_t)role;
    return arg;
}

ts_repeat *ts_repeat_begin(ts_builder *b, int64_t n, bool reverse, ts_value *const *carry,
                           int n_carry, ts_value *const *xs, int n_xs, ts_value **carry_args,
                           ts_value **x_args)
{
    for (int i = 0; i < n_carry; i++) carry_args[i] = b->poison;
    for (int i = 0; i < n_xs; i++) x_args[i] = b->poison;
    ts_repeat *r = ts_arena_alloc(b->graph->arena, sizeof *r);
    if (r) r->region = ts__region_new(b->graph, b->region);
    if (!r || !r->region) {
        out_of_memory(b);
        return NULL;
    }
    r->outer = b->region;
    r->n = n;
    r->reverse = reverse;
    r->remat = b->remat;
    r->saved_before = b->before;
    r->region->user = r;
    for (int i = 0; i < n_carry && b->error.code == TS_OK; i++)
        carry_args[i] = ts__repeat_add(b, r, ROLE_CARRY, ts__use(b, carry[i]), NULL);
    for (int i = 0; i < n_xs && b->error.code == TS_OK; i++) {
        ts_value *x = ts__use(b, xs[i]);
        if (b->error.code == TS_OK) x_args[i] = ts__repeat_add(b, r, ROLE_XS, x, NULL);
    }
    b->region = r->region;
    b->before = NULL;
    return r;
}

/* Sorts the arguments into carry, xs, consts; fills counts and the operands in that order. */
static ts_value **sort_arguments(ts_builder *b, ts_repeat *r, int counts[ROLES])
{
    ts_region *region = r->region;
    ts_arena *a = b->graph->arena;
    ts_value **arg = ts_arena_alloc(a, (size_t)(region->n_arg + 1) * sizeof *arg);
    ts_value **operand = ts_arena_alloc(a, (size_t)(region->n_arg + 1) * sizeof *operand);
    if (!arg || !operand) return NULL;
    int at = 0;
    for (int role = 0; role < ROLES; role++) {
        counts[role] = 0;
        for (int i = 0; i < region->n_arg; i++) {
            if (r->role[i] != role) continue;
            arg[at] = region->arg[i];
            operand[at++] = r->operand[i];
            counts[role]++;
        }
    }
    for (int i = 0; i < region->n_arg; i++) {
        TS_ASSERT(operand[i]);
        region->arg[i] = arg[i];
        region->arg[i]->index = i;
    }
    return operand;
}

/* The region yields carries, stacked ys, accumulated ys; order[i] is the place of the caller's y i. */
static bool yield_all(ts_builder *b, ts_repeat *r, ts_value *const *carry_out, int n_carry,
                      ts_value *const *ys, const bool *accumulate, int n_ys, int *n_stack)
{
    bool ok = true;
    for (int i = 0; i < n_carry && ok; i++) {
        ts_value *v = ts__use(b, carry_out[i]);
        ok = b->error.code == TS_OK && ts__region_add_result(r->region, v);
    }
    *n_stack = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < n_ys && ok; i++) {
            if ((pass == 1) != (accumulate && accumulate[i])) continue;
            ts_value *v = ts__use(b, ys[i]);
            ok = b->error.code == TS_OK && ts__region_add_result(r->region, v);
            *n_stack += pass == 0;
        }
    return ok;
}

void ts_repeat_end(ts_builder *b, ts_repeat *r, ts_value *const *carry_out, ts_value *const *ys,
                   const bool *accumulate, int n_ys, ts_value **results)
{
    int n_carry = 0, n_stack = 0, counts[ROLES];
    for (int i = 0; r && i < r->region->n_arg; i++) n_carry += r->role[i] == ROLE_CARRY;
    for (int i = 0; i < n_carry + n_ys; i++) results[i] = b->poison;
    if (!r || b->error.code != TS_OK) return;
    bool yielded = yield_all(b, r, carry_out, n_carry, ys, accumulate, n_ys, &n_stack);
    b->region = r->outer;
    b->before = r->saved_before;
    if (b->error.code != TS_OK) return;
    ts_value **operand = yielded ? sort_arguments(b, r, counts) : NULL;
    if (!operand) {
        out_of_memory(b);
        return;
    }
    r->region->user = NULL;
    ts_attr attr = {
        .repeat = {r->n, r->reverse, counts[0], counts[1], counts[2], n_stack, (int64_t)r->remat}};
    ts_error err = {0};
    ts_node *n = ts__node_new(b->region, b->before, TS_OP_repeat, operand, r->region->n_arg, &attr,
                              r->region, &err);
    if (!n) {
        ts__mistake(b, err.code, "%s", err.msg);
        return;
    }
    n->loc = b->loc;
    n->scope = b->scope ? b->scope->path : NULL;
    n->primal = b->primal;
    n->backward = b->backward;
    int stacked = n_carry, summed = n_carry + n_stack;
    for (int i = 0; i < n_carry; i++) results[i] = n->out[i];
    for (int i = 0; i < n_ys; i++)
        results[n_carry + i] = n->out[accumulate && accumulate[i] ? summed++ : stacked++];
}
