/* cpu/ref/attention.c – softmax(q·kᵀ·scale + mask)·v and its gradient, one query row at a time.
 *
 * Never holds S×S: a thread has one row of scores. Query i stands at position i + T − S; key j is
 * visible when causal ⇒ j ≤ position, window ⇒ position − j < window, and segments are equal. A row
 * that sees no key is zero, has log-sum-exp −inf and gets and gives no gradient. All sums in
 * double. Backward: Dao et al. 2022: p = exp(s − lse), ds = p·(do·v − do·o). dk and dv of one
 * (batch, kv head) belong to one thread, which sums them in query order.
 */
#include "cpu/ref/ref.h"

typedef struct shape { int64_t B, S, T, K, G, D; ts_dtype dtype; double scale, softcap; } shape;

static shape shape_of(const ts_node *n)
{
    const ts_type *q = &n->in[0]->type;
    return (shape){q->dim[0].size, q->dim[1].size,          n->in[1]->type.dim[1].size,
                   q->dim[2].size, q->dim[3].size,          q->dim[4].size,
                   q->dtype,       n->attr.attention.scale, n->attr.attention.softcap};
}

static bool visible(const ts_node *n, const shape *h, const int32_t *segments, int64_t b, int64_t i,
                    int64_t j)
{
    const int64_t at = i + h->T - h->S, window = n->attr.attention.window;
    if (n->attr.attention.causal && j > at) return false;
    if (window > 0 && at - j >= window) return false;
    return !segments || segments[b * h->S + i] == segments[b * h->S + j];
}

/* a[0 … D) · b[0 … D) at element offsets. */
static double product(const shape *h, const void *a, int64_t at_a, const void *b, int64_t at_b)
{
    double sum = 0;
    for (int64_t d = 0; d < h->D; d++)
        sum +=
            (double)ts__ref_get(a, h->dtype, at_a + d) * (double)ts__ref_get(b, h->dtype, at_b + d);
    return sum;
}

/* Element offsets of row q[b,i,k,g,:] and of k[b,j,k,:]. */
static int64_t query_at(const shape *h, int64_t b, int64_t i, int64_t k, int64_t g)
{
    return (((b * h->S + i) * h->K + k) * h->G + g) * h->D;
}

static int64_t key_at(const shape *h, int64_t b, int64_t j, int64_t k)
{
    return ((b * h->T + j) * h->K + k) * h->D;
}

/* The score of one pair, capped; *slope is d(score)/d(q·k). */
static double score(const shape *h, double qk, double *slope)
{
    const double s = qk * h->scale;
    *slope = h->scale;
    if (h->softcap <= 0) return s;
    const double t = tanh(s / h->softcap);
    *slope *= 1.0 - t * t;
    return h->softcap * t;
}

ts_status ts__ref_prepare_attention(const ts_node *n, int threads, ts_cpu_prepared *out,
                                    ts_error *err)
{
    const shape h = shape_of(n);
    return ts__ref_scratch(n, threads, h.T + h.D, 0,
                           4.0 * (double)ts__ref_count(n->in[0]) * (double)h.T, out, err);
}

/* One row: p and sum are this thread's T and D doubles. */
static void forward_row(const ts_cpu_call *c, const shape *h, int64_t row, double *p, double *sum)
{
    const int64_t heads = h->G * h->K, k = row / h->G % h->K, i = row / heads % h->S,
                  b = row / heads / h->S;
    const int32_t *segments = c->node->n_in > 3 ? c->in[3] : NULL;
    double most = -INFINITY, total = 0, slope;
    for (int64_t j = 0; j < h->T; j++) {
        p[j] = -INFINITY;
        if (!visible(c->node, h, segments, b, i, j)) continue;
        p[j] = score(h, product(h, c->in[0], row * h->D, c->in[1], key_at(h, b, j, k)), &slope);
        if (!(p[j] <= most)) most = p[j]; /* a NaN is taken and spoils the row, as it must */
    }
    memset(sum, 0, (size_t)h->D * sizeof *sum);
    if (most == -INFINITY) {                            /* no key seen */
        ((float *)c->out[1])[row] = -INFINITY;
        for (int64_t d = 0; d < h->D; d++)
            ts__ref_put(c->out[0], h->dtype, row * h->D + d, 0);
        return;
    }
    for (int64_t j = 0; j < h->T; j++) {
        if (p[j] == -INFINITY) continue;
        const double e = exp(p[j] - most);
        total += e;
        for (int64_t d = 0; d < h->D; d++)
            sum[d] += e * (double)ts__ref_get(c->in[2], h->dtype, key_at(h, b, j, k) + d);
    }
    ((float *)c->out[1])[row] = (float)(most + log(total));
    for (int64_t d = 0; d < h->D; d++)
        ts__ref_put(c->out[0], h->dtype, row * h->D + d, sum[d] / total);
}

void ts__ref_attention(const ts_cpu_call *c)
{
    const shape h = shape_of(c->node);
    const int64_t rows = h.B * h.S * h.K * h.G;
#pragma omp parallel num_threads(c->threads) if (rows > 1)
    {
        double *p = ts__ref_part(c, h.T + h.D, ts__ref_thread());
#pragma omp for
        for (int64_t r = 0; r < rows; r++)
            forward_row(c, &h, r, p, p + h.T);
    }
}

/* ---- gradient -------------------------------------------------------------------------------- */

enum { Q, KEY, V, O, LSE, DO, SEGMENTS };               /* operands of attention_grad */

ts_status ts__ref_prepare_attention_grad(const ts_node *n, int threads, ts_cpu_prepared *out,
                                         ts_error *err)
{
    const shape h = shape_of(n);
    int64_t sums;
    if (ts_mul_i64(2 * h.T, h.D, &sums) || ts_add_i64(sums, h.D, &sums)) sums = INT64_MAX;
    return ts__ref_scratch(n, threads, sums, 0,
                           10.0 * (double)ts__ref_count(n->in[0]) * (double)h.T, out, err);
}

/* Adds the row's share to dk and dv [T,D] and stores its dq. */
static void backward_row(const ts_cpu_call *c, const shape *h, int64_t b, int64_t k, int64_t i,
                         int64_t g, double *dk, double *dv, double *dq)
{
    const int64_t at = query_at(h, b, i, k, g);
    const int32_t *segments = c->node->n_in > SEGMENTS ? c->in[SEGMENTS] : NULL;
    const double lse = (double)((const float *)c->in[LSE])[h->D ? at / h->D : 0];
    memset(dq, 0, (size_t)h->D * sizeof *dq);
    if (lse != -INFINITY) {
        const double mean = product(h, c->in[DO], at, c->in[O], at);        /* Σ_j p·(do·v_j) */
        for (int64_t j = 0; j < h->T; j++) {
            if (!visible(c->node, h, segments, b, i, j)) continue;
            const int64_t kj = key_at(h, b, j, k);
            double slope;
            const double p = exp(score(h, product(h, c->in[Q], at, c->in[KEY], kj), &slope) - lse);
            const double ds = p * (product(h, c->in[DO], at, c->in[V], kj) - mean) * slope;
            for (int64_t d = 0; d < h->D; d++) {
                dq[d] += ds * (double)ts__ref_get(c->in[KEY], h->dtype, kj + d);
                dk[j * h->D + d] += ds * (double)ts__ref_get(c->in[Q], h->dtype, at + d);
                dv[j * h->D + d] += p * (double)ts__ref_get(c->in[DO], h->dtype, at + d);
            }
        }
    }
    for (int64_t d = 0; d < h->D; d++)
        ts__ref_put(c->out[0], h->dtype, at + d, dq[d]);
}

void ts__ref_attention_grad(const ts_cpu_call *c)
{
    const shape h = shape_of(c->node);
    const int64_t n = h.T * h.D;
#pragma omp parallel num_threads(c->threads) if (h.B * h.K > 1)
    {
        double *dk = ts__ref_part(c, 2 * n + h.D, ts__ref_thread()), *dv = dk + n;
#pragma omp for
        for (int64_t head = 0; head < h.B * h.K; head++) {
            const int64_t b = head / h.K, k = head % h.K;
            memset(dk, 0, (size_t)(2 * n) * sizeof *dk);
            for (int64_t i = 0; i < h.S; i++)
                for (int64_t g = 0; g < h.G; g++)
                    backward_row(c, &h, b, k, i, g, dk, dv, dv + n);
            for (int64_t j = 0; j < h.T; j++) {
                for (int64_t d = 0; d < h.D; d++) {
                    ts__ref_put(c->out[1], h.dtype, key_at(&h, b, j, k) + d, dk[j * h.D + d]);
                    ts__ref_put(c->out[2], h.dtype, key_at(&h, b, j, k) + d, dv[j * h.D + d]);
                }
            }
        }
    }
}
