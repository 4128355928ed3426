/* grad/repeat.c – the VJP of repeat: a reversed repeat with carry = cotangents of the carries, xs = the
 * forward's xs, saved values and cotangents of stacked ys, and accumulated ys for Σ d_consts.
 *
 * The backward body is the gradient of the forward body. Where it needs a forward value, `foreign` says
 * what stands for it: an xs operand or const of the forward is used again; with TS_REMAT_FULL the value is
 * computed again from the carry, with TS_REMAT_MINIMAL from that and the results of products, which the
 * forward repeat stacks; with TS_REMAT_NONE it stacks all that is asked for, but for cheap ops, which are
 * repeated on their (saved) operands. So a converted or gathered weight is never saved.
 *
 * The forward repeat gets its extra stacked results only when the backward body is complete.
 */
#include "grad/grad_internal.h"

typedef struct saved {
    ts_value *value, *arg; /* of the forward body; its slice in the backward body */
    struct saved *next;
} saved;

typedef struct backward {
    ts_node *forward;
    ts_idmap memo; /* forward body's value → what stands for it */
    saved *first, *last;
} backward;

static ts_value *out_of_memory(ts_builder *b)
{
    return ts__mistake(b, TS_RESOURCE_EXHAUSTED, "memory is out while differentiating graph %s",
                       b->graph->name);
}

/* ---- what stands for a forward value --------------------------------------------------------- */

static bool is_cheap_op(ts_op op)
{
    return op == TS_OP_constant || op == TS_OP_iota || op == TS_OP_reshape ||
           op == TS_OP_broadcast || op == TS_OP_barrier;
}

/* Computed from xs and consts by conversions and moves alone, so that nothing needs saving. */
static bool is_free(const backward *w, const ts_value *v)
{
    const ts_node *n = v->node;
    if (!n) return v->index >= w->forward->attr.repeat.n_carry;
    bool moves = is_cheap_op(n->op) || n->op == TS_OP_convert || n->op == TS_OP_transpose ||
                 n->op == TS_OP_slice;
    for (int i = 0; moves && i < n->n_in; i++) moves = is_free(w, n->in[i]);
    return moves;
}

/* What TS_REMAT_MINIMAL keeps: the results of matrix products and of ops that are built of them, repeats with such ops
 * included. */
static bool is_product(const ts_node *n)
{
    if (n->op == TS_OP_dot || n->op == TS_OP_grouped_dot || n->op == TS_OP_attention ||
        n->op == TS_OP_linear_xent)
        return true;
    for (const ts_node *m = n->body ? n->body->first : NULL; m; m = m->next)
        if (is_product(m)) return true;
    return false;
}

static bool recomputed(const backward *w, const ts_value *v)
{
    const ts_node *n = v->node;
    int64_t remat = w->forward->attr.repeat.remat;
    if (remat == TS_REMAT_FULL || is_cheap_op(n->op)) return true;
    if (remat == TS_REMAT_MINIMAL) return !is_product(n);
    bool widens = n->op == TS_OP_convert &&
                  ts_dtype_bytes(v->type.dtype) > ts_dtype_bytes(n->in[0]->type.dtype);
    return widens || is_free(w, v);
}

static ts_value *save(ts_builder *b, ts_repeat *r, backward *w, ts_value *v)
{
    saved *s = ts_arena_alloc(b->graph->arena, sizeof *s);
    if (!s) return out_of_memory(b);
    if (v->type.rank == TS_MAX_RANK)
        return ts__mistake(b, TS_UNIMPLEMENTED,
                           "a value of rank %d inside a repeat cannot be kept for the gradient; "
                           "use remat or a lower rank",
                           TS_MAX_RANK);
    s->value = v;
    s->arg = ts__repeat_add(b, r, 1, NULL, &v->type);
    if (w->last)
        w->last->next = s;
    else
        w->first = s;
    w->last = s;
    return s->arg;
}

static ts_value *argument(ts_builder *b, ts_repeat *r, backward *w, ts_value *v)
{
    ts_node *f = w->forward;
    if (v->index < f->attr.repeat.n_carry) return save(b, r, w, v);
    int role = v->index < f->attr.repeat.n_carry + f->attr.repeat.n_xs ? 1 : 2;
    ts_value *outer = ts__use_in(b, r->outer, f->in[v->index]);
    return b->error.code == TS_OK ? ts__repeat_add(b, r, role, outer, NULL) : b->poison;
}

/* The nodes of a recomputed repeat's body come from those of the body that it copies. */
static void mark_copies(const ts_region *from, ts_region *to)
{
    ts_node *c = to->first;
    for (const ts_node *n = from->first; n; n = n->next, c = c->next) {
        c->primal = n;
        c->like = NULL;
        c->backward = true;
        if (n->body) mark_copies(n->body, c->body);
    }
}

static void recompute(ts_builder *b, ts_repeat *r, backward *w, ts_node *n)
{
    ts_value *local[16], **in = local;
    ts_region *body = NULL;
    ts_error err = {0};
    if (n->n_in > 16 && !(in = ts_arena_alloc(b->graph->arena, (size_t)n->n_in * sizeof *in))) {
        out_of_memory(b);
        return;
    }
    for (int i = 0; i < n->n_in && b->error.code == TS_OK; i++)
        in[i] = ts__use_in(b, r->region, n->in[i]);
    if (b->error.code != TS_OK) return;
    ts_node *c = n->body && !(body = ts__region_clone(n->body, r->region, &err))
                     ? NULL
                     : ts__node_new(r->region, NULL, n->op, in, n->n_in, &n->attr, body, &err);
    if (!c) {
        ts__mistake(b, err.code, "%s", err.msg);
        return;
    }
    c->loc = n->loc;
    c->scope = n->scope;
    c->primal = n;
    c->backward = true;
    if (body) mark_copies(n->body, body);
    for (int i = 0; i < n->n_out; i++) {
        c->out[i]->pin = n->out[i]->pin;
        ts__idmap_set(b, &w->memo, n->out[i], c->out[i]);
    }
}

/* XLA unrolls a loop of one iteration and would merge the recomputation with the forward again: a
 * barrier on what it starts from, saved values among them, prevents that. */
static ts_value *guarded(ts_builder *b, ts_repeat *r, backward *w, ts_value *v)
{
    ts_node *f = w->forward;
    if (b->error.code != TS_OK || r->n != 1 || f->attr.repeat.remat == TS_REMAT_NONE ||
        v->type.dtype == TS_PRED)
        return v;
    ts_region *at = b->region;
    ts_node *before = b->before;
    const ts_node *primal = b->primal;
    b->region = r->region;
    b->before = NULL;
    b->primal = NULL;
    ts_barrier(b, &v, 1, &v);
    b->region = at;
    b->before = before;
    b->primal = primal;
    return v;
}

ts_value *ts__stand_in(const ts_repeat *r, const ts_value *v)
{
    const backward *w = r->context;
    return ts__idmap_get(&w->memo, v);
}

static ts_value *foreign(ts_builder *b, ts_repeat *r, ts_value *v)
{
    backward *w = r->context;
    ts_value *known = ts__idmap_get(&w->memo, v);
    if (known) return known;
    if (v->node && recomputed(w, v)) {
        recompute(b, r, w, v->node);
        return b->error.code == TS_OK ? ts__idmap_get(&w->memo, v) : b->poison;
    }
    ts_value *stand_in = guarded(b, r, w, v->node ? save(b, r, w, v) : argument(b, r, w, v));
    ts__idmap_set(b, &w->memo, v, stand_in);
    return stand_in;
}

/* The forward repeat yields v as one more stacked result. */
static ts_value *stack_result(ts_builder *b, ts_node *f, ts_value *v)
{
    ts_region *body = f->body;
    int at = (int)(f->attr.repeat.n_carry + f->attr.repeat.n_stack);
    for (int i = (int)f->attr.repeat.n_carry; i < at; i++)
        if (body->result[i] == v) return f->out[i];
    ts_dim dims[TS_MAX_RANK] = {{"layers", f->attr.repeat.n}};
    for (int i = 0; i < v->type.rank; i++) dims[i + 1] = v->type.dim[i];
    ts_type type = ts_type_make(v->type.dtype, dims, v->type.rank + 1);
    ts_value *result = ts__repeat_add_result(f, at, &type);
    if (!result || !ts__region_add_result(body, v)) return out_of_memory(b);
    for (int i = body->n_result - 1; i > at; i--) body->result[i] = body->result[i - 1];
    body->result[at] = v;
    f->attr.repeat.n_stack++;
    return result;
}

/* ---- the rule -------------------------------------------------------------------------------- */

static bool is_float(const ts_value *v)
{
    return v->type.dtype == TS_F32 || v->type.dtype == TS_BF16;
}

/* Which arguments of the body vary; a carry does too when its new value does. */
static void body_activity(ts_grad_pass *g, const ts_node *n, ts_idmap *varied)
{
    ts_builder *b = g->b;
    for (int i = 0; i < n->n_in; i++)
        if (ts__needs(g, n, i)) ts__idmap_set(b, varied, n->body->arg[i], n->body->arg[i]);
    for (bool again = true; again && b->error.code == TS_OK;) {
        again = false;
        ts__mark_varied(b, n->body, varied);
        for (int i = 0; i < n->attr.repeat.n_carry; i++) {
            ts_value *arg = n->body->arg[i], *next = n->body->result[i];
            if (!is_float(arg) || ts__idmap_get(varied, arg) || !ts__idmap_get(varied, next))
                continue;
            ts__idmap_set(b, varied, arg, arg);
            again = true;
        }
    }
}

typedef struct wanted {
    ts_value **arg, **d;
    int n, n_carry;
} wanted;

static bool collect_wanted(ts_builder *b, const ts_node *n, const ts_idmap *varied, wanted *w)
{
    w->arg = ts_arena_alloc(b->graph->arena, (size_t)(n->n_in + 1) * sizeof *w->arg);
    w->d = ts_arena_alloc(b->graph->arena, (size_t)(n->n_in + 1) * sizeof *w->d);
    if (!w->arg || !w->d) return false;
    for (int i = 0; i < n->n_in; i++) {
        ts_value *arg = n->body->arg[i];
        if (!is_float(arg) || !ts__idmap_get(varied, arg)) continue;
        w->arg[w->n++] = arg;
        w->n_carry += i < n->attr.repeat.n_carry;
    }
    return true;
}

/* Cotangents of the body's results inside the backward body: carries, slices of d_ys, whole d_ys. */
static void seed(ts_builder *b, ts_repeat *r, const ts_node *n, const wanted *w,
                 ts_value *const *carry_arg, ts_value *const *dout, ts_value **d)
{
    int n_carry = (int)n->attr.repeat.n_carry, stacked_end = n_carry + (int)n->attr.repeat.n_stack;
    for (int i = 0; i < n->n_out; i++) d[i] = NULL;
    for (int i = 0; i < w->n_carry; i++) d[w->arg[i]->index] = carry_arg[i];
    for (int i = n_carry; i < n->n_out && b->error.code == TS_OK; i++)
        if (dout[i])
            d[i] = i < stacked_end ? ts__repeat_add(b, r, 1, dout[i], NULL) : ts__use(b, dout[i]);
}

void ts__vjp_repeat(ts_grad_pass *g, ts_node *n, ts_value *const *dout)
{
    ts_builder *b = g->b;
    ts_arena *arena = b->graph->arena;
    ts_idmap varied = {0};
    wanted w = {0};
    backward *back = ts_arena_alloc(arena, sizeof *back);
    body_activity(g, n, &varied);
    size_t room = (size_t)(n->n_in + n->n_out + 1) * sizeof(ts_value *);
    ts_value **init = ts_arena_alloc(arena, room), **arg = ts_arena_alloc(arena, room),
             **d = ts_arena_alloc(arena, room);
    ts_value **result = ts_arena_alloc(arena, room);
    bool *sum = ts_arena_alloc(arena, (size_t)n->n_in + 1);
    if (!back || !collect_wanted(b, n, &varied, &w) || !init || !arg || !d || !result || !sum) {
        out_of_memory(b);
        return;
    }
    back->forward = n;
    for (int i = 0; i < w.n_carry; i++) {
        ts_type t = w.arg[i]->type;
        ts_value *given = dout[w.arg[i]->index];
        init[i] = given ? ts_convert(b, given, t.dtype) : ts__zeros(b, &t);
    }
    ts_remat remat = b->remat;
    b->remat = TS_REMAT_NONE;
    ts_repeat *r = ts_repeat_begin(b, n->attr.repeat.n, !n->attr.repeat.reverse, init, w.n_carry,
                                   NULL, 0, arg, NULL);
    b->remat = remat;
    if (b->error.code != TS_OK) return;
    r->primal = n->body;
    r->foreign = foreign;
    r->context = back;
    seed(b, r, n, &w, arg, dout, d);
    int n_result = n->body->n_result;
    ts__differentiate(b, n->body, n->body->result, d, n_result, w.arg, w.n, w.d);
    int first_const = (int)(n->attr.repeat.n_carry + n->attr.repeat.n_xs);
    for (int i = 0; i < w.n && b->error.code == TS_OK; i++) {
        ts_type t = w.arg[i]->type;
        bool is_const = w.arg[i]->index >= first_const;
        w.d[i] = w.d[i] ? w.d[i] : ts__zeros(b, &t);
        if (is_const) w.d[i] = ts_convert(b, w.d[i], TS_F32); /* sums over iterations are f32 */
        if (i >= w.n_carry) sum[i - w.n_carry] = is_const;
    }
    for (saved *s = back->first; s && b->error.code == TS_OK; s = s->next) {
        ts_value *stacked = stack_result(b, n, s->value);
        if (b->error.code == TS_OK) r->operand[s->arg->index] = ts__use_in(b, r->outer, stacked);
    }
    ts_repeat_end(b, r, w.d, w.d + w.n_carry, sum, w.n - w.n_carry, result);
    for (int i = 0; i < w.n && b->error.code == TS_OK; i++)
        ts__push(g, n, w.arg[i]->index, result[i]);
}
