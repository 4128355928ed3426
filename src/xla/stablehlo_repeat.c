/* xla/stablehlo_repeat.c – repeat as a while loop, and the barrier.
 *
 * The loop's values are, in this order: a counter, the carries, a buffer for each stacked result, a sum for each
 * accumulated one, the sliced operands and the constant ones. Everything the body reads is one of them, so the
 * loop stands for itself when it is read alone. Sums of bf16 are kept in f32. A repeat of one iteration is its
 * body: no loop, no slices, and results that are reshapes; what separates a recomputation in it from the forward
 * half is the barrier that grad/repeat.c put there.
 */
#include "xla/stablehlo_emit.h"

/* ---- one iteration --------------------------------------------------------------------------- */

static void inline_body(ts_shlo *e, const ts_node *n)
{
    const ts_region *body = n->body;
    const int64_t carries = n->attr.repeat.n_carry, stacked = carries + n->attr.repeat.n_stack;
    for (int i = 0; i < n->n_in; i++)
        e->value[body->arg[i]->id] =
            ts__shlo_pinned(e, body->arg[i],
                            ts__shlo_reshape(e, ts__shlo_in(e, n, i), &body->arg[i]->type));
    ts__shlo_region(e, body);
    if (e->status != TS_OK) return;
    ts__shlo_at(e, n);
    for (int i = 0; i < n->n_out; i++) {
        ts_shlo_value v = e->value[body->result[i]->id];
        if (i >= carries && i < stacked) v = ts__shlo_reshape(e, v, &n->out[i]->type);
        ts__shlo_set(e, n, i, v);
    }
}

/* ---- the loop -------------------------------------------------------------------------------- */

typedef struct loop {
    int carries, stacks, sums, xs, consts, n; /* n: all of them and the counter */
    int stack, sum, x;                        /* where they begin */
    ts_shlo_value *init, *arg, *out, *next;   /* [n] */
    ts_type *type;                            /* [n] */
} loop;

static bool make_loop(const ts_node *n, loop *l)
{
    *l = (loop){.carries = (int)n->attr.repeat.n_carry,
                .stacks = (int)n->attr.repeat.n_stack,
                .xs = (int)n->attr.repeat.n_xs,
                .consts = (int)n->attr.repeat.n_consts};
    l->sums = n->n_out - l->carries - l->stacks;
    l->stack = 1 + l->carries;
    l->sum = l->stack + l->stacks;
    l->x = l->sum + l->sums;
    l->n = l->x + l->xs + l->consts;
    l->init = ts_alloc_zero((size_t)l->n * 4 * sizeof *l->init);
    l->type = ts_alloc_zero((size_t)l->n * sizeof *l->type);
    if (!l->init || !l->type) return false;
    l->arg = l->init + l->n;
    l->out = l->arg + l->n;
    l->next = l->out + l->n;
    return true;
}

static void initial_values(ts_shlo *e, const ts_node *n, loop *l)
{
    l->init[0] = ts__shlo_scalar(e, 0, TS_I32);
    for (int i = 0; i < l->carries; i++) l->init[1 + i] = ts__shlo_in(e, n, i);
    for (int i = l->carries; i < n->n_out; i++) {
        ts_type t = n->out[i]->type;
        if (i >= l->carries + l->stacks && t.dtype == TS_BF16) t.dtype = TS_F32;
        l->init[1 + i] = ts__shlo_splat(e, 0, &t);
    }
    for (int i = l->carries; i < n->n_in; i++) l->init[l->x + i - l->carries] = ts__shlo_in(e, n, i);
    for (int i = 0; i < l->n; i++) l->type[i] = l->init[i].type;
}

static void put_types(ts_shlo *e, const loop *l)
{
    for (int i = 0; i < l->n; i++) ts__shlo_put(e, "$s$t", i ? ", " : "", &l->type[i]);
}

/* "%40 = stablehlo.while(%41 = %3, …) : types" and the condition: the loop's values have names of their own. */
static void put_head(ts_shlo *e, const ts_node *n, loop *l)
{
    const ts_type pred = ts_type_make(TS_PRED, NULL, 0);
    ts__shlo_begin(e, l->type, l->n, l->out);
    ts__shlo_put(e, "stablehlo.while(");
    for (int i = 0; i < l->n; i++) {
        l->arg[i] = (ts_shlo_value){e->next++, -1, l->type[i]};
        ts__shlo_put(e, "$s$v = $v", i ? ", " : "", &l->arg[i], &l->init[i]);
    }
    ts__shlo_put(e, ") : ");
    put_types(e, l);
    ts__shlo_put(e, " cond {\n");
    e->depth++;
    e->scalars.n = 0;
    ts_shlo_value times = ts__shlo_scalar(e, (double)n->attr.repeat.n, TS_I32);
    ts_shlo_value more = ts__shlo_compare(e, "LT", l->arg[0], times);
    ts__shlo_put(e, "$>stablehlo.return $v : $t\n", &more, &pred);
    e->depth--;
    ts__shlo_put(e, "$>} do {\n");
}

static void put_body(ts_shlo *e, const ts_node *n, loop *l)
{
    const ts_region *body = n->body;
    ts_shlo_value at = l->arg[0];
    e->scalars.n = 0;
    if (n->attr.repeat.reverse) {
        ts_shlo_value last = ts__shlo_scalar(e, (double)(n->attr.repeat.n - 1), TS_I32);
        at = ts__shlo_binary(e, "subtract", last, at);
    }
    for (int i = 0; i < l->carries; i++)
        e->value[body->arg[i]->id] = ts__shlo_pinned(e, body->arg[i], l->arg[1 + i]);
    for (int i = 0; i < l->xs + l->consts; i++) {
        const ts_value *arg = body->arg[l->carries + i];
        ts_shlo_value v = l->arg[l->x + i];
        if (i < l->xs) {
            ts_type one = v.type;
            one.dim[0].size = 1;
            if (ts_type_elements(&one)) v = ts__shlo_slice_at(e, v, at, 0, &one);
            else v = ts__shlo_splat(e, 0, &one);
            v = ts__shlo_reshape(e, v, &arg->type);
        }
        e->value[arg->id] = ts__shlo_pinned(e, arg, v);
    }
    ts__shlo_region(e, body);
    if (e->status != TS_OK) return;
    ts__shlo_at(e, n);
    l->next[0] = ts__shlo_binary(e, "add", l->arg[0], ts__shlo_scalar(e, 1, TS_I32));
    for (int i = 0; i < n->n_out; i++) {
        ts_shlo_value v = e->value[body->result[i]->id], held = l->arg[1 + i];
        if (i >= l->carries + l->stacks) {
            v = ts__shlo_binary(e, "add", held, ts__shlo_convert(e, v, held.type.dtype));
        } else if (i >= l->carries) {
            ts_type one = held.type;
            one.dim[0].size = 1;
            v = ts_type_elements(&one)
                    ? ts__shlo_update_at(e, held, ts__shlo_reshape(e, v, &one), at, 0)
                    : held;
        }
        l->next[1 + i] = v;
    }
    for (int i = l->x; i < l->n; i++) l->next[i] = l->arg[i];
}

static void put_loop(ts_shlo *e, const ts_node *n, loop *l)
{
    initial_values(e, n, l);
    const ts_shlo_scalars outside = e->scalars;
    put_head(e, n, l);
    e->depth++;
    put_body(e, n, l);
    if (e->status != TS_OK) return;
    ts__shlo_put(e, "$>stablehlo.return ");
    for (int i = 0; i < l->n; i++) ts__shlo_put(e, "$s$v", i ? ", " : "", &l->next[i]);
    ts__shlo_put(e, " : ");
    put_types(e, l);
    e->depth--;
    e->scalars = outside;
    ts__shlo_put(e, "$n}");
    ts__shlo_end(e);
    for (int i = 0; i < n->n_out; i++)
        ts__shlo_set(e, n, i, ts__shlo_convert(e, l->out[1 + i], n->out[i]->type.dtype));
}

void ts__stablehlo_repeat(ts_shlo *e, const ts_node *n)
{
    loop l = {0};
    if (n->attr.repeat.n == 1) {
        inline_body(e, n);
        return;
    }
    if (n->attr.repeat.n > INT32_MAX)
        ts__shlo_fail(e, TS_UNIMPLEMENTED, "%lld iterations; a loop's counter is i32",
                      (long long)n->attr.repeat.n);
    else if (make_loop(n, &l)) put_loop(e, n, &l);
    else ts__shlo_memory(e);
    ts_free(l.init);
    ts_free(l.type);
}

/* ---- barrier --------------------------------------------------------------------------------- */

void ts__stablehlo_barrier(ts_shlo *e, const ts_node *n)
{
    ts_type *type = ts_alloc_zero((size_t)n->n_in * sizeof *type + 1);
    ts_shlo_value *out = ts_alloc_zero((size_t)n->n_in * sizeof *out + 1);
    if (type && out) {
        for (int i = 0; i < n->n_in; i++) type[i] = n->in[i]->type;
        ts__shlo_begin(e, type, n->n_in, out);
        ts__shlo_put(e, "stablehlo.optimization_barrier ");
        for (int i = 0; i < n->n_in; i++) {
            ts_shlo_value x = ts__shlo_in(e, n, i);
            ts__shlo_put(e, "$s$v", i ? ", " : "", &x);
        }
        ts__shlo_put(e, " : ");
        for (int i = 0; i < n->n_in; i++) ts__shlo_put(e, "$s$t", i ? ", " : "", &type[i]);
        ts__shlo_end(e);
        for (int i = 0; i < n->n_in; i++) ts__shlo_set(e, n, i, out[i]);
    } else {
        ts__shlo_memory(e);
    }
    ts_free(type);
    ts_free(out);
}
