/* cpu/ref/xent.c – cross-entropy of logits x·wᵀ, and its gradient, without a tokens × vocabulary
 * buffer.
 *
 * Forward keeps one token's logits a thread. Backward computes each logit again from x, w and the
 * log-sum-exp: once by token for dx, once by class for dw, so that each sum belongs to one thread
 * and is made in order. The chunk attribute is a hint for faster kernels; it changes nothing here.
 * A label outside [0, V) is ignored: loss 0; its log-sum-exp is still that of the logits.
 */
#include "cpu/ref/ref.h"

typedef struct shape { int64_t T, V, E; ts_dtype dtype; double softcap; } shape;

static shape shape_of(const ts_node *n)
{
    const ts_type *x = &n->in[0]->type, *w = &n->in[1]->type;
    return (shape){x->dim[0].size, w->dim[0].size, x->dim[1].size, x->dtype, n->attr.xent.softcap};
}

/* Logit v of token t; *slope is d(logit)/d(x·w). */
static double logit(const ts_cpu_call *c, const shape *h, int64_t t, int64_t v, double *slope)
{
    double z = 0;
    if (h->dtype == TS_F32) {
        const float *x = (const float *)c->in[0] + t * h->E,
                    *w = (const float *)c->in[1] + v * h->E;
        for (int64_t e = 0; e < h->E; e++)
            z += (double)x[e] * (double)w[e];
    } else {
        for (int64_t e = 0; e < h->E; e++)
            z += (double)ts__ref_get(c->in[0], h->dtype, t * h->E + e) *
                 (double)ts__ref_get(c->in[1], h->dtype, v * h->E + e);
    }
    *slope = 1.0;
    if (h->softcap <= 0) return z;
    const double th = tanh(z / h->softcap);
    *slope = 1.0 - th * th;
    return h->softcap * th;
}

ts_status ts__ref_prepare_linear_xent(const ts_node *n, int threads, ts_cpu_prepared *out,
                                      ts_error *err)
{
    const shape h = shape_of(n);
    return ts__ref_scratch(n, threads, h.V, 0, 2.0 * (double)h.T * (double)h.V * (double)h.E, out,
                           err);
}

/* Logits z [V] of token t; *total gets Σ exp(z − the largest), which is returned. */
static double row(const ts_cpu_call *c, const shape *h, int64_t t, double *z, double *total)
{
    double most = -INFINITY, slope;
    for (int64_t v = 0; v < h->V; v++) {
        z[v] = logit(c, h, t, v, &slope);
        if (!(z[v] <= most)) most = z[v];
    }
    *total = 0;
    for (int64_t v = 0; v < h->V; v++)
        *total += exp(z[v] - most);
    return most;
}

void ts__ref_linear_xent(const ts_cpu_call *c)
{
    const shape h = shape_of(c->node);
    const int32_t *label = c->in[2];
#pragma omp parallel num_threads(c->threads) if (h.T > 1)
    {
        double *z = ts__ref_part(c, h.V, ts__ref_thread()), total;
#pragma omp for
        for (int64_t t = 0; t < h.T; t++) {
            const double most = row(c, &h, t, z, &total), lse = most + log(total);
            const bool counted = label[t] >= 0 && label[t] < h.V;
            ((float *)c->out[0])[t] = counted ? (float)(lse - z[label[t]]) : 0.0f;
            ((float *)c->out[1])[t] = (float)lse;
        }
    }
}

void ts__ref_xent_rows(const ts_cpu_call *c)
{
    const shape h = shape_of(c->node);
    const int32_t *label = c->in[2];
#pragma omp parallel num_threads(c->threads) if (h.T > 1)
    {
        double *z = ts__ref_part(c, h.V, ts__ref_thread()), total;
#pragma omp for
        for (int64_t t = 0; t < h.T; t++) {
            const bool here = label[t] >= 0 && label[t] < h.V;
            ((float *)c->out[0])[t] = (float)row(c, &h, t, z, &total);
            ((float *)c->out[1])[t] = (float)total;
            ((float *)c->out[2])[t] = here ? (float)z[label[t]] : 0.0f;
        }
    }
}

/* ---- gradient -------------------------------------------------------------------------------- */

enum { X, W, LABELS, LSE, DLOSS, DLSE };                /* operands of linear_xent_grad */

ts_status ts__ref_prepare_linear_xent_grad(const ts_node *n, int threads, ts_cpu_prepared *out,
                                           ts_error *err)
{
    const shape h = shape_of(n);
    return ts__ref_scratch(n, threads, h.E, 0, 8.0 * (double)h.T * (double)h.V * (double)h.E, out,
                           err);
}

/* d(loss)/d(x·w) of token t and class v: p·(dloss + dlse) − [v is the label]·dloss, through the
 * cap. */
static double dlogit(const ts_cpu_call *c, const shape *h, int64_t t, int64_t v)
{
    const int32_t label = ((const int32_t *)c->in[LABELS])[t];
    const double dloss =
        label >= 0 && label < h->V ? (double)((const float *)c->in[DLOSS])[t] : 0.0;
    const double dlse = (double)((const float *)c->in[DLSE])[t];
    double slope;
    const double p = exp(logit(c, h, t, v, &slope) - (double)((const float *)c->in[LSE])[t]);
    return (p * (dloss + dlse) - (v == label ? dloss : 0.0)) * slope;
}

static void add_scaled(double *sum, double by, const void *row, const shape *h, int64_t at)
{
    for (int64_t e = 0; e < h->E; e++)
        sum[e] += by * (double)ts__ref_get(row, h->dtype, at + e);
}

void ts__ref_linear_xent_grad(const ts_cpu_call *c)
{
    const shape h = shape_of(c->node);
#pragma omp parallel num_threads(c->threads) if (h.T > 1)
    {
        double *sum = ts__ref_part(c, h.E, ts__ref_thread());
#pragma omp for
        for (int64_t t = 0; t < h.T; t++) {
            memset(sum, 0, (size_t)h.E * sizeof *sum);
            for (int64_t v = 0; v < h.V; v++)
                add_scaled(sum, dlogit(c, &h, t, v), c->in[W], &h, v * h.E);
            for (int64_t e = 0; e < h.E; e++)
                ts__ref_put(c->out[0], h.dtype, t * h.E + e, sum[e]);
        }
#pragma omp for
        for (int64_t v = 0; v < h.V; v++) {
            memset(sum, 0, (size_t)h.E * sizeof *sum);
            for (int64_t t = 0; t < h.T; t++)
                add_scaled(sum, dlogit(c, &h, t, v), c->in[X], &h, t * h.E);
            for (int64_t e = 0; e < h.E; e++)
                ((float *)c->out[1])[v * h.E + e] = (float)sum[e];
        }
    }
}
