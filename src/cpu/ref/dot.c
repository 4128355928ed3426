/* cpu/ref/dot.c – the product of two tensors over any batch and contracted dimensions.
 *
 * Result dimensions: batch, then x's free, then y's free. A row of the result is summed in double
 * over the contraction in order and rounded once. The offsets of y's free and of the contracted
 * elements are tables in scratch, made once a call.
 */
#include "cpu/ref/ref.h"

typedef struct dot_plan {
    int64_t batch, m, n, k;
    int nb, nm, nn, nk;                                /* how many dimensions each has */
    int64_t sb[TS_MAX_RANK], sm[TS_MAX_RANK], sn[TS_MAX_RANK], sk[TS_MAX_RANK];
    int64_t xb[TS_MAX_RANK], yb[TS_MAX_RANK], xm[TS_MAX_RANK], yn[TS_MAX_RANK], xk[TS_MAX_RANK],
        yk[TS_MAX_RANK];
} dot_plan;

static bool contains(const ts_dims *d, int64_t axis)
{
    for (int i = 0; i < d->n; i++)
        if (d->v[i] == axis) return true;
    return false;
}

/* The sizes and strides of t's dimensions listed in d. Returns the product of the sizes. */
static int64_t listed(const ts_type *t, const ts_dims *d, int64_t *size, int64_t *stride)
{
    int64_t all[TS_MAX_RANK], n = 1;
    ts__ref_strides(t, all);
    for (int i = 0; i < d->n; i++) {
        size[i] = t->dim[d->v[i]].size;
        stride[i] = all[d->v[i]];
        n *= size[i];
    }
    return n;
}

static ts_dims free_dims(const ts_type *t, const ts_dims *batch, const ts_dims *contract)
{
    ts_dims d = {0};
    for (int i = 0; i < t->rank; i++)
        if (!contains(batch, i) && !contains(contract, i)) d.v[d.n++] = i;
    return d;
}

static dot_plan plan_of(const ts_node *node)
{
    const ts_type *x = &node->in[0]->type, *y = &node->in[1]->type;
    const ts_dims xf = free_dims(x, &node->attr.dot.x_batch, &node->attr.dot.x_contract);
    const ts_dims yf = free_dims(y, &node->attr.dot.y_batch, &node->attr.dot.y_contract);
    dot_plan p = {
        .nb = node->attr.dot.x_batch.n, .nk = node->attr.dot.x_contract.n, .nm = xf.n, .nn = yf.n};
    p.batch = listed(x, &node->attr.dot.x_batch, p.sb, p.xb);
    listed(y, &node->attr.dot.y_batch, p.sb, p.yb);
    p.k = listed(x, &node->attr.dot.x_contract, p.sk, p.xk);
    listed(y, &node->attr.dot.y_contract, p.sk, p.yk);
    p.m = listed(x, &xf, p.sm, p.xm);
    p.n = listed(y, &yf, p.sn, p.yn);
    return p;
}

static int64_t offset(int rank, const int64_t *size, const int64_t *stride, int64_t i)
{
    int64_t at = 0;
    for (int d = rank - 1; d >= 0; d--) {
        at += i % size[d] * stride[d];
        i /= size[d];
    }
    return at;
}

ts_status ts__ref_prepare_dot(const ts_node *node, int threads, ts_cpu_prepared *out, ts_error *err)
{
    const dot_plan p = plan_of(node);
    int64_t tables;
    if (ts_mul_i64(p.k, 2, &tables) || ts_add_i64(tables, p.n, &tables)) tables = INT64_MAX;
    return ts__ref_scratch(node, threads, p.n, tables,
                           2.0 * (double)p.batch * (double)p.m * (double)p.n * (double)p.k, out,
                           err);
}

/* sum[n] += x · y[offsets n]: contiguous f32 rows are the common case and get a loop of their own. */
static void add_row(double *sum, double x, const void *y, ts_dtype t, int64_t from,
                    const int64_t *at, int64_t n, bool dense)
{
    if (dense && t == TS_F32) {
        const float *row = (const float *)y + from;
        for (int64_t j = 0; j < n; j++)
            sum[j] += x * (double)row[j];
    } else {
        for (int64_t j = 0; j < n; j++)
            sum[j] += x * (double)ts__ref_get(y, t, from + at[j]);
    }
}

void ts__ref_dot(const ts_cpu_call *c)
{
    const ts_node *node = c->node;
    const dot_plan p = plan_of(node);
    const ts_dtype xt = node->in[0]->type.dtype, yt = node->in[1]->type.dtype,
                   ot = node->out[0]->type.dtype;
    int64_t *at_n = (int64_t *)ts__ref_part(c, p.n, c->threads), *at_xk = at_n + p.n,
            *at_yk = at_xk + p.k;
    bool dense = true;
    for (int64_t j = 0; j < p.n; j++) {
        at_n[j] = offset(p.nn, p.sn, p.yn, j);
        dense = dense && at_n[j] == j;
    }
    for (int64_t k = 0; k < p.k; k++) {
        at_xk[k] = offset(p.nk, p.sk, p.xk, k);
        at_yk[k] = offset(p.nk, p.sk, p.yk, k);
    }
#pragma omp parallel num_threads(c->threads) if (p.batch * p.m > 1)
    {
        double *sum = ts__ref_part(c, p.n, ts__ref_thread());
#pragma omp for
        for (int64_t r = 0; r < p.batch * p.m; r++) {
            const int64_t x0 =
                offset(p.nb, p.sb, p.xb, r / p.m) + offset(p.nm, p.sm, p.xm, r % p.m);
            const int64_t y0 = offset(p.nb, p.sb, p.yb, r / p.m);
            memset(sum, 0, (size_t)p.n * sizeof *sum);
            for (int64_t k = 0; k < p.k; k++)
                add_row(sum, (double)ts__ref_get(c->in[0], xt, x0 + at_xk[k]), c->in[1], yt,
                        y0 + at_yk[k], at_n, p.n, dense);
            for (int64_t j = 0; j < p.n; j++)
                ts__ref_put(c->out[0], ot, r * p.n + j, sum[j]);
        }
    }
}
