/* ir/lower_expert.c – the rows of a mixture of experts, their products and gradients in primitives.
 *
 * expert_rows needs no sort: an assignment's place is its expert's first row and the number of
 * assignments of that expert before it, both running sums over a table assignments × experts.
 * scatter_add, which makes f32, then brings each number to its row as two halves of 16 bits, so
 * that it is exact. grouped_dot goes over the experts in a repeat and multiplies every row by each
 * of them; a mask keeps the expert's own. Simple and exact, not fast: the cpu engine has a kernel
 * that computes routed rows only (cpu/grouped.c). Not here: gates, which are take and mul.
 */
#include "ir/lower.h"

/* out[i] = x[0] + … + x[i] along dimension 0, or the largest of them and 0, in log₂ n steps. */
static ts_value *running(ts_builder *b, ts_value *x, bool sum)
{
    const int64_t n = x->type.dim[0].size;
    for (int64_t by = 1; by < n; by *= 2) {
        ts_value *moved = ts_slice(b, ts_pad(b, x, 0, by, 0, 0), 0, 0, n);
        x = sum ? ts_add(b, x, moved) : ts_max(b, x, moved);
    }
    return x;
}

static ts_value *i32(ts_builder *b, int64_t v)
{
    return ts_scalar(b, (double)v, TS_I32);
}

/* number i32 [n] at row i32 [n] of i32 [R], 0 where there is none; −1: nowhere. Numbers are ≥ 0. */
static ts_value *place(ts_builder *b, ts_value *row, ts_value *number, ts_dim R)
{
    ts_dim column[2] = {number->type.dim[0], {NULL, 1}};
    ts_value *half[2] = {ts_shift_right(b, number, i32(b, 16)), ts_and(b, number, i32(b, 65535))};
    for (int i = 0; i < 2; i++) half[i] = ts_reshape(b, ts_convert(b, half[i], TS_F32), column, 2);
    ts_value *both = ts_scatter_add(b, row, ts_concat(b, half, 2, 1), R, -1); /* [R,2] */
    both = ts_convert(b, both, TS_I32);
    for (int i = 0; i < 2; i++) half[i] = ts_reshape(b, ts_slice(b, both, 1, i, i + 1), &R, 1);
    return ts_or(b, ts_shift_left(b, half[0], i32(b, 16)), half[1]);
}

void ts__lower_expert_rows(ts_builder *b, const ts_node *n, ts_value **out)
{
    static const int64_t by_row[1] = {0}, by_expert[1] = {1}, first[1] = {0}, second[1] = {1};
    const ts_type *ids = &n->in[0]->type;
    const int64_t k = ids->dim[1].size, count = ids->dim[0].size * k;
    const int64_t X = n->attr.expert_rows.experts;
    const ts_dim grid[2] = {{NULL, count}, {NULL, X}};
    ts_value *expert = ts_iota(b, TS_I32, grid, 2, 1), *zero = i32(b, 0), *one = i32(b, 1);
    ts_value *id = ts__lower_spread(b, ts_reshape(b, n->in[0], grid, 1), expert, by_row, 1);
    ts_value *hit = ts_compare(b, TS_EQ, id, expert), *hits = ts_convert(b, hit, TS_I32);
    ts_value *upto = running(b, hits, true);           /* [count,X]: hits so far */
    ts_value *size = ts_reduce_sum(b, hits, first, 1); /* [X] */
    ts_value *above = ts_add(b, size, i32(b, TS_EXPERT_ALIGN - 1));
    size = ts_and(b, above, i32(b, -TS_EXPERT_ALIGN));      /* rounded up */
    out[2] = ts_pad(b, running(b, size, true), 0, 1, 0, 0); /* [X+1] */
    ts_value *start = ts__lower_spread(b, ts_slice(b, out[2], 0, 0, X), expert, by_expert, 1);
    ts_value *at = ts_select(b, hit, ts_add(b, start, upto), zero);
    ts_value *row = ts_sub(b, ts_reduce_sum(b, at, second, 1), one); /* [count]; −1: left out */
    ts_value *number = ts_add(b, ts_iota(b, TS_I32, grid, 1, 0), one);
    number = place(b, row, number, n->out[0]->type.dim[0]); /* [R]: 1 + assignment, 0: unused */
    out[1] = ts_sub(b, number, one);
    ts_value *token = ts_div(b, out[1], i32(b, k ? k : 1));
    out[0] = ts_select(b, ts_compare(b, TS_GT, number, zero), token, out[1]);
}

/* ---- products -------------------------------------------------------------------------------- */

/* The repeat over experts: what it slices, and in its body the expert's w [F,E] and rows. */
typedef struct experts {
    ts_repeat *repeat;
    ts_value *w, *mine; /* mine: pred [R] */
} experts;

static experts begin(ts_builder *b, const ts_node *n)
{
    const ts_type *x = &n->in[0]->type;
    const int64_t X = n->in[1]->type.dim[0].size;
    ts_value *end = ts_max(b, n->in[2], i32(b, 0)), *arg[3];
    end = running(b, ts_min(b, end, i32(b, x->dim[0].size)), false); /* [X+1], never falling */
    ts_value *xs[3] = {n->in[1], ts_slice(b, end, 0, 0, X), ts_slice(b, end, 0, 1, X + 1)};
    experts e = {.repeat = ts_repeat_begin(b, X, false, NULL, 0, xs, 3, NULL, arg)};
    ts_value *row = ts_iota(b, TS_I32, x->dim, 1, 0); /* [R] */
    e.w = arg[0];
    e.mine = ts_and(b, ts_compare(b, TS_GE, row, arg[1]), ts_compare(b, TS_LT, row, arg[2]));
    return e;
}

/* Rows of x that are the expert's, zero elsewhere. */
static ts_value *only(ts_builder *b, const experts *e, ts_value *x)
{
    static const int64_t by_row[1] = {0};
    return ts_select(b, ts__lower_spread(b, e->mine, x, by_row, 1), x,
                     ts_scalar(b, 0, x->type.dtype));
}

void ts__lower_grouped_dot(ts_builder *b, const ts_node *n, ts_value **out)
{
    static const bool accumulate[1] = {true};
    const ts_dot_dims d = {0, 1, {0}, {0}, {1}, {1}};
    experts e = begin(b, n);
    ts_value *y = only(b, &e, ts_dot(b, ts__use(b, n->in[0]), e.w, &d, TS_F32)), *sum;
    ts_repeat_end(b, e.repeat, NULL, &y, accumulate, 1, &sum);
    out[0] = ts_convert(b, sum, n->out[0]->type.dtype);
}

void ts__lower_grouped_dot_grad(ts_builder *b, const ts_node *n, ts_value **out)
{
    static const bool accumulate[2] = {false, true};
    const ts_dot_dims to_x = {0, 1, {0}, {0}, {1}, {0}}, to_w = {0, 1, {0}, {0}, {0}, {0}};
    experts e = begin(b, n);
    ts_value *x = ts__use(b, n->in[0]), *dy = ts__use(b, n->in[3]), *ys[2], *results[2];
    ys[0] = ts_dot(b, only(b, &e, dy), only(b, &e, x), &to_w, TS_F32); /* [F,E] */
    ys[1] = only(b, &e, ts_dot(b, dy, e.w, &to_x, TS_F32));            /* [R,E] */
    ts_repeat_end(b, e.repeat, NULL, ys, accumulate, 2, results);
    out[0] = ts_convert(b, results[1], n->out[0]->type.dtype);
    out[1] = results[0];
}
