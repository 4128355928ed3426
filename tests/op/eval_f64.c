/* tests/op/eval_f64.c – an interpreter of graphs in double precision, independent of every kernel.
 *
 * Written for plainness: each result element is found from its indices by the definition of the op,
 * and nothing is shared with src/cpu. Integers are doubles that hold integers; their arithmetic
 * wraps as 32 bits do. Values of dtype bf16 are not rounded: what an engine loses by rounding is
 * its error. Collectives are those of a mesh of one device. Composites: eval_f64_fused.c.
 */
#include "eval_f64.h"

#include <math.h>
#include <stdlib.h>

typedef struct env { double **slot; } env;             /* by value id */

static void *must(size_t n, size_t size)
{
    void *p = calloc(n ? n : 1, size);
    if (!p) abort();
    return p;
}

static int64_t count(const ts_value *v) { return ts_type_elements(&v->type); }

static void unravel(const ts_type *t, int64_t i, int64_t *index)
{
    for (int d = t->rank - 1; d >= 0; d--) {
        index[d] = i % t->dim[d].size;
        i /= t->dim[d].size;
    }
}

static int64_t ravel(const ts_type *t, const int64_t *index)
{
    int64_t i = 0;
    for (int d = 0; d < t->rank; d++) i = i * t->dim[d].size + index[d];
    return i;
}

/* ---- numbers --------------------------------------------------------------------------------- */

static bool is_int(ts_dtype t) { return t == TS_I32 || t == TS_U32 || t == TS_PRED; }

/* The low 32 bits, read as t. */
static double wrap(uint64_t v, ts_dtype t)
{
    const uint32_t low = (uint32_t)v;
    if (t == TS_PRED) return low != 0;
    return t == TS_I32 ? (double)(int32_t)low : (double)low;
}

static uint32_t bits(double v) { return (uint32_t)(int64_t)v; }

static double unary(ts_op op, ts_dtype t, double x)
{
    switch (op) {
    case TS_OP_neg: return is_int(t) ? wrap(0u - (uint64_t)(int64_t)x, t) : -x;
    case TS_OP_abs: return is_int(t) ? wrap((uint64_t)(int64_t)fabs(x), t) : fabs(x);
    case TS_OP_exp: return exp(x);
    case TS_OP_log: return log(x);
    case TS_OP_sqrt: return sqrt(x);
    case TS_OP_rsqrt: return pow(x, -0.5);
    case TS_OP_tanh: return tanh(x);
    case TS_OP_logistic: return 0.5 + 0.5 * tanh(0.5 * x);
    case TS_OP_sin: return sin(x);
    case TS_OP_cos: return cos(x);
    case TS_OP_not: return t == TS_PRED ? x == 0 : wrap(~bits(x), t);
    default: return isfinite(x);
    }
}

static double divide_int(double x, double y, ts_dtype t)
{
    return y == 0 ? wrap(UINT32_MAX, t) : wrap((uint64_t)(int64_t)trunc(x / y), t);
}

static double binary(ts_op op, ts_dtype t, double x, double y)
{
    const uint64_t a = is_int(t) ? (uint64_t)(int64_t)x : 0,
                   b = is_int(t) ? (uint64_t)(int64_t)y : 0;
    const bool nan = isnan(x) || isnan(y);
    switch (op) {
    case TS_OP_add: return is_int(t) ? wrap(a + b, t) : x + y;
    case TS_OP_sub: return is_int(t) ? wrap(a - b, t) : x - y;
    case TS_OP_mul: return is_int(t) ? wrap(a * b, t) : x * y;
    case TS_OP_div: return is_int(t) ? divide_int(x, y, t) : x / y;
    case TS_OP_max: return nan ? NAN : fmax(x, y);
    case TS_OP_min: return nan ? NAN : fmin(x, y);
    case TS_OP_pow: return pow(x, y);
    case TS_OP_and: return wrap(a & b, t);
    case TS_OP_or: return wrap(a | b, t);
    case TS_OP_xor: return wrap(a ^ b, t);
    case TS_OP_shift_left: return bits(y) > 31 ? 0 : wrap((uint64_t)bits(x) << bits(y), t);
    default: return bits(y) > 31 ? 0 : wrap((uint64_t)bits(x) >> bits(y), t);      /* shift_right */
    }
}

static double compare(int dir, double x, double y)
{
    switch (dir) {
    case TS_EQ: return x == y;
    case TS_NE: return x != y;
    case TS_LT: return x < y;
    case TS_LE: return x <= y;
    case TS_GT: return x > y;
    default: return x >= y;
    }
}

static double convert(ts_dtype from, ts_dtype to, double x)
{
    if (!is_int(to)) return x;
    if (to == TS_PRED) return x != 0;
    if (is_int(from)) return wrap((uint64_t)(int64_t)x, to);
    if (isnan(x)) return 0;
    const double low = to == TS_I32 ? -2147483648.0 : 0,
                 high = to == TS_I32 ? 2147483647.0 : 4294967295.0;
    return fmin(fmax(trunc(x), low), high);
}

static double constant(double value, ts_dtype t) { return t == TS_PRED ? value != 0 : value; }

/* ---- one node: elementwise and shape --------------------------------------------------------- */

static double elementwise(const f64_call *c, int64_t i)
{
    const ts_node *n = c->node;
    const ts_dtype t = n->in[0]->type.dtype;
    double sum = 0;
    switch (n->op) {
    case TS_OP_convert: return convert(t, n->out[0]->type.dtype, c->in[0][i]);
    case TS_OP_compare: return compare(n->attr.compare.dir, c->in[0][i], c->in[1][i]);
    case TS_OP_select:
        return c->in[0][n->in[0]->type.rank ? i : 0] != 0 ? c->in[1][i] : c->in[2][i];
    case TS_OP_add_n:
        for (int k = 0; k < n->n_in; k++)
            sum = k ? binary(TS_OP_add, t, sum, c->in[k][i]) : c->in[0][i];
        return sum;
    default:
        return n->n_in == 1 ? unary(n->op, t, c->in[0][i])
                            : binary(n->op, t, c->in[0][i], c->in[1][i]);
    }
}

static int64_t clamp(double start, int64_t most)
{
    return start < 0 ? 0 : start > (double)most ? most : (int64_t)start;
}

/* The element of concat at index: which operand holds it. */
static double concat(const f64_call *c, int64_t *index)
{
    int64_t *at = &index[c->node->attr.axis.axis];
    for (int k = 0;; k++) {
        const ts_type *x = &c->node->in[k]->type;
        const int64_t size = x->dim[c->node->attr.axis.axis].size;
        if (*at < size) return c->in[k][ravel(x, index)];
        *at -= size;
    }
}

static double dynamic_update(const f64_call *c, int64_t *index)
{
    const ts_type *x = &c->node->in[0]->type, *u = &c->node->in[1]->type;
    const int64_t axis = c->node->attr.dynamic.axis, size = u->dim[axis].size;
    const int64_t start = clamp(c->in[2][0], x->dim[axis].size - size);
    if (index[axis] < start || index[axis] >= start + size) return c->in[0][ravel(x, index)];
    index[axis] -= start;
    return c->in[1][ravel(u, index)];
}

static double shaped(const f64_call *c, int64_t i)
{
    const ts_node *n = c->node;
    const ts_attr *a = &n->attr;
    const ts_type *x = n->n_in ? &n->in[0]->type : NULL;
    int64_t index[TS_MAX_RANK] = {0}, from[TS_MAX_RANK] = {0};
    unravel(&n->out[0]->type, i, index);
    switch (n->op) {
    case TS_OP_constant: return constant(a->constant.value, n->out[0]->type.dtype);
    case TS_OP_iota: return (double)index[a->iota.axis];
    case TS_OP_transpose:
        for (int d = 0; d < x->rank; d++) from[a->transpose.perm.v[d]] = index[d];
        return c->in[0][ravel(x, from)];
    case TS_OP_broadcast:
        for (int d = 0; d < x->rank; d++) from[d] = index[a->broadcast.map.v[d]];
        return c->in[0][ravel(x, from)];
    case TS_OP_slice: index[a->slice.axis] += a->slice.start; return c->in[0][ravel(x, index)];
    case TS_OP_pad:
        index[a->pad.axis] -= a->pad.low;
        if (index[a->pad.axis] < 0 || index[a->pad.axis] >= x->dim[a->pad.axis].size)
            return constant(a->pad.value, x->dtype);
        return c->in[0][ravel(x, index)];
    case TS_OP_concat: return concat(c, index);
    case TS_OP_dynamic_slice:
        index[a->dynamic.axis] +=
            clamp(c->in[1][0], x->dim[a->dynamic.axis].size - a->dynamic.size);
        return c->in[0][ravel(x, index)];
    case TS_OP_dynamic_update: return dynamic_update(c, index);
    case TS_OP_axis_index: return 0;
    default: return c->in[0][i];                       /* reshape, collectives of one device */
    }
}

/* ---- reductions, products, rows -------------------------------------------------------------- */

static bool above(double a, double b) { return a > b || (isnan(a) && !isnan(b)); }

static void reduce(const f64_call *c)
{
    const ts_node *n = c->node;
    const ts_type *x = &n->in[0]->type;
    const bool sum = n->op == TS_OP_reduce_sum;
    const double least = x->dtype == TS_I32 ? -2147483648.0 : is_int(x->dtype) ? 0 : -INFINITY;
    for (int64_t i = 0; i < count(n->out[0]); i++) c->out[0][i] = sum ? 0 : least;
    for (int64_t i = 0; i < count(n->in[0]); i++) {
        int64_t index[TS_MAX_RANK], kept[TS_MAX_RANK];
        int rank = 0;
        unravel(x, i, index);
        for (int d = 0; d < x->rank; d++) {
            bool drop = false;
            for (int k = 0; k < n->attr.reduce.axes.n; k++) drop |= n->attr.reduce.axes.v[k] == d;
            if (!drop) kept[rank++] = index[d];
        }
        double *y = &c->out[0][ravel(&n->out[0]->type, kept)];
        if (sum)
            *y = binary(TS_OP_add, x->dtype, *y, c->in[0][i]);
        else if (above(c->in[0][i], *y))
            *y = c->in[0][i];
    }
}

static void argmax(const f64_call *c)
{
    const ts_type *x = &c->node->in[0]->type;
    const int64_t axis = c->node->attr.axis.axis;
    for (int64_t i = 0; i < count(c->node->out[0]); i++) {
        int64_t kept[TS_MAX_RANK] = {0}, index[TS_MAX_RANK] = {0};
        unravel(&c->node->out[0]->type, i, kept);
        for (int d = 0, k = 0; d < x->rank; d++) index[d] = d == axis ? 0 : kept[k++];
        double best = c->in[0][ravel(x, index)];
        c->out[0][i] = 0;
        for (index[axis] = 1; index[axis] < x->dim[axis].size; index[axis]++) {
            const double v = c->in[0][ravel(x, index)];
            if (!above(v, best)) continue;
            best = v;
            c->out[0][i] = (double)index[axis];
        }
    }
}

/* Element i's place in its row is the number of elements that stand before it. */
static void top_k(const f64_call *c)
{
    const ts_type *x = &c->node->in[0]->type;
    const int64_t n = x->dim[x->rank - 1].size, k = c->node->attr.top_k.k;
    for (int64_t i = 0; i < count(c->node->in[0]); i++) {
        const double *row = c->in[0] + i / n * n, v = c->in[0][i];
        int64_t place = 0;
        for (int64_t j = 0; j < n; j++)
            place += above(row[j], v) || (!above(v, row[j]) && j < i % n);
        if (place >= k) continue;
        c->out[0][i / n * k + place] = v;
        c->out[1][i / n * k + place] = (double)(i % n);
    }
}

static bool lists(const ts_dims *d, int64_t axis)
{
    for (int i = 0; i < d->n; i++)
        if (d->v[i] == axis) return true;
    return false;
}

/* For each element of an operand: `key` numbers its batch and contracted indices, `at` is what its
 * batch (x only) and free indices contribute to the place in the result. */
static void dot_side(const f64_call *c, int side, int64_t *key, int64_t *at)
{
    const ts_type *t = &c->node->in[side]->type, *out = &c->node->out[0]->type;
    const ts_dims *batch = side ? &c->node->attr.dot.y_batch : &c->node->attr.dot.x_batch;
    const ts_dims *sum = side ? &c->node->attr.dot.y_contract : &c->node->attr.dot.x_contract;
    const int free_dims = t->rank - batch->n - sum->n,
              first = side ? out->rank - free_dims : batch->n;
    for (int64_t i = 0; i < ts_type_elements(t); i++) {
        int64_t index[TS_MAX_RANK], to[TS_MAX_RANK] = {0};
        int place = first;
        unravel(t, i, index);
        key[i] = 0;
        for (int k = 0; k < batch->n; k++) {
            key[i] = key[i] * t->dim[batch->v[k]].size + index[batch->v[k]];
            if (side == 0) to[k] = index[batch->v[k]];
        }
        for (int k = 0; k < sum->n; k++)
            key[i] = key[i] * t->dim[sum->v[k]].size + index[sum->v[k]];
        for (int d = 0; d < t->rank; d++)
            if (!lists(batch, d) && !lists(sum, d)) to[place++] = index[d];
        at[i] = ravel(out, to);
    }
}

/* Adds every product x[i]·y[j] whose batch and contracted indices agree to its result. The elements
 * of y that agree in them, and so have one key, are a list: first[key], then next[j]. */
static void dot(const f64_call *c)
{
    const int64_t m = count(c->node->in[0]), n = count(c->node->in[1]);
    int64_t *key_x = must((size_t)(2 * m + 3 * n), sizeof *key_x), *at_x = key_x + m,
            *key_y = at_x + m, *at_y = key_y + n, *next = at_y + n, keys = 0;
    dot_side(c, 0, key_x, at_x);
    dot_side(c, 1, key_y, at_y);
    for (int64_t i = 0; i < m; i++) keys = key_x[i] >= keys ? key_x[i] + 1 : keys;
    for (int64_t j = 0; j < n; j++) keys = key_y[j] >= keys ? key_y[j] + 1 : keys;
    int64_t *first = must((size_t)keys, sizeof *first);
    for (int64_t k = 0; k < keys; k++) first[k] = -1;
    for (int64_t j = n - 1; j >= 0; j--) {
        next[j] = first[key_y[j]];
        first[key_y[j]] = j;
    }
    for (int64_t i = 0; i < count(c->node->out[0]); i++) c->out[0][i] = 0;
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = first[key_x[i]]; j >= 0; j = next[j])
            c->out[0][at_x[i] + at_y[j]] += c->in[0][i] * c->in[1][j];
    free(first);
    free(key_x);
}

static void take(const f64_call *c)
{
    const ts_node *n = c->node;
    const int64_t rows = n->in[0]->type.dim[0].size, ids = count(n->in[1]);
    const int64_t width = ids ? count(n->out[0]) / ids : 0;
    for (int64_t i = 0; i < ids * width; i++) {
        const double id = c->in[1][i / width];
        c->out[0][i] = id >= 0 && id < (double)rows ? c->in[0][(int64_t)id * width + i % width] : 0;
    }
}

static void scatter_add(const f64_call *c)
{
    const ts_node *n = c->node;
    const int64_t rows = n->out[0]->type.dim[0].size, ids = count(n->in[0]);
    const int64_t width = ids ? count(n->in[1]) / ids : 0;
    for (int64_t i = 0; i < count(n->out[0]); i++) c->out[0][i] = 0;
    for (int64_t i = 0; i < ids * width; i++) {
        const double id = c->in[0][i / width];
        if (id >= 0 && id < (double)rows && id != (double)n->attr.scatter.no_grad_row)
            c->out[0][(int64_t)id * width + i % width] += c->in[1][i];
    }
}

/* ---- regions --------------------------------------------------------------------------------- */

static void eval_region(env *e, const ts_region *r);

/* v's array, zero; iterations of a repeat use the same one again. */
static double *make(env *e, const ts_value *v)
{
    double **slot = &e->slot[v->id];
    if (*slot)
        memset(*slot, 0, (size_t)count(v) * sizeof(double));
    else
        *slot = must((size_t)count(v), sizeof(double));
    return *slot;
}

static void bind(env *e, const ts_value *arg, const double *from)
{
    double *to = make(e, arg);
    for (int64_t i = 0; i < count(arg); i++) to[i] = from[i];
}

static void collect(env *e, const ts_node *n, int64_t iteration)
{
    const int64_t carries = n->attr.repeat.n_carry, stacked = carries + n->attr.repeat.n_stack;
    for (int64_t k = carries; k < n->n_out; k++) {
        const ts_value *y = n->body->result[k];
        double *to = e->slot[n->out[k]->id] + (k < stacked ? iteration * count(y) : 0);
        for (int64_t i = 0; i < count(y); i++)
            to[i] = k < stacked ? e->slot[y->id][i]
                                : binary(TS_OP_add, y->type.dtype, to[i], e->slot[y->id][i]);
    }
}

static void repeat(env *e, const ts_node *n)
{
    const int64_t times = n->attr.repeat.n, carries = n->attr.repeat.n_carry,
                  xs = n->attr.repeat.n_xs;
    double **next = must((size_t)carries, sizeof *next);
    for (int k = 0; k < n->n_out; k++) make(e, n->out[k]);
    for (int64_t k = 0; k < carries; k++) bind(e, n->body->arg[k], e->slot[n->in[k]->id]);
    for (int64_t k = carries + xs; k < n->n_in; k++)
        bind(e, n->body->arg[k], e->slot[n->in[k]->id]);
    for (int64_t step = 0; step < times; step++) {
        const int64_t i = n->attr.repeat.reverse ? times - 1 - step : step;
        for (int64_t k = carries; k < carries + xs; k++)
            bind(e, n->body->arg[k], e->slot[n->in[k]->id] + i * count(n->body->arg[k]));
        eval_region(e, n->body);
        collect(e, n, i);
        for (int64_t k = 0; k < carries;
             k++) { /* all at once: a carry may yield another's old value */
            next[k] = must((size_t)count(n->out[k]), sizeof(double));
            memcpy(next[k], e->slot[n->body->result[k]->id],
                   (size_t)count(n->out[k]) * sizeof(double));
        }
        for (int64_t k = 0; k < carries; k++) {
            bind(e, n->body->arg[k], next[k]);
            bind(e, n->out[k], next[k]);
            free(next[k]);
        }
    }
    free(next);
}

static void eval_node(env *e, const ts_node *n)
{
    if (n->op == TS_OP_repeat) {
        repeat(e, n);
        return;
    }
    f64_call c = {.node = n};
    TS_ASSERT(n->n_in <= 16 && n->n_out <= 16);
    for (int i = 0; i < n->n_in; i++) c.in[i] = e->slot[n->in[i]->id];
    for (int i = 0; i < n->n_out; i++) c.out[i] = make(e, n->out[i]);
    if (ts_op_infos[n->op].kind == TS_COMPOSITE) {
        f64_fused(&c);
        return;
    }
    switch (n->op) {
    case TS_OP_reduce_sum:
    case TS_OP_reduce_max: reduce(&c); return;
    case TS_OP_argmax: argmax(&c); return;
    case TS_OP_top_k: top_k(&c); return;
    case TS_OP_dot: dot(&c); return;
    case TS_OP_take: take(&c); return;
    case TS_OP_scatter_add: scatter_add(&c); return;
    case TS_OP_barrier:
        for (int k = 0; k < n->n_out; k++)
            memcpy(c.out[k], c.in[k], (size_t)count(n->out[k]) * sizeof(double));
        return;
    default: break;
    }
    const bool each = (n->op >= TS_OP_neg && n->op <= TS_OP_select);
    for (int64_t i = 0; i < count(n->out[0]); i++)
        c.out[0][i] = each ? elementwise(&c, i) : shaped(&c, i);
}

static void eval_region(env *e, const ts_region *r)
{
    for (const ts_node *n = r->first; n; n = n->next) eval_node(e, n);
}

void f64_eval(const ts_graph *g, double *const *in, double *const *out)
{
    env e = {must(g->next_id + 1, sizeof(double *))};
    for (int i = 0; i < g->top->n_arg; i++) bind(&e, g->top->arg[i], in[i]);
    eval_region(&e, g->top);
    for (int i = 0; i < g->top->n_result; i++)
        memcpy(out[i], e.slot[g->top->result[i]->id],
               (size_t)count(g->top->result[i]) * sizeof(double));
    for (uint32_t i = 0; i <= g->next_id; i++) free(e.slot[i]);
    free(e.slot);
}
