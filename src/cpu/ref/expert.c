/* cpu/ref/expert.c – rows of a mixture of experts: their order, their products, and the gradient.
 *
 * The order is a counting sort: how many assignments each expert has, where its rows start, then
 * one walk that puts each assignment behind those of its expert that came before. Products go row
 * by row with the expert's matrix; rows of no expert are zero. Sums are double, made in order, and
 * rounded once.
 */
#include "cpu/ref/ref.h"

void ts__ref_expert_rows(const ts_cpu_call *c)
{
    const int64_t n = ts__ref_count(c->node->in[0]), R = ts__ref_count(c->node->out[0]);
    const int64_t X = c->node->attr.expert_rows.experts;
    const int64_t k = c->node->in[0]->type.dim[1].size;
    const int32_t *id = c->in[0];
    int32_t *token = c->out[0], *assignment = c->out[1], *offset = c->out[2];
    for (int64_t e = 0; e <= X; e++) offset[e] = 0;
    for (int64_t i = 0; i < n; i++)
        if (id[i] >= 0 && id[i] < X) offset[id[i] + 1]++;
    for (int64_t e = 0; e < X; e++)
        offset[e + 1] =
            offset[e] + (offset[e + 1] + TS_EXPERT_ALIGN - 1) / TS_EXPERT_ALIGN * TS_EXPERT_ALIGN;
    for (int64_t r = 0; r < R; r++) token[r] = assignment[r] = -1;
    /* offset[e] is the next row of e during the walk, and gets its first row back after it. */
    for (int64_t i = 0; i < n; i++) {
        if (id[i] < 0 || id[i] >= X) continue;
        const int32_t row = offset[id[i]]++;
        token[row] = (int32_t)(i / k);
        assignment[row] = (int32_t)i;
    }
    for (int64_t e = X - 1; e > 0; e--)
        offset[e] = (offset[e - 1] + TS_EXPERT_ALIGN - 1) / TS_EXPERT_ALIGN * TS_EXPERT_ALIGN;
    offset[0] = 0;
}

/* ---- products -------------------------------------------------------------------------------- */

typedef struct shape { int64_t R, X, F, E; ts_dtype dtype; } shape;

static shape shape_of(const ts_node *n)
{
    const ts_type *x = &n->in[0]->type, *w = &n->in[1]->type;
    return (shape){x->dim[0].size, w->dim[0].size, w->dim[1].size, x->dim[1].size, x->dtype};
}

/* An offset with those before it: never falling, inside [0, R]. */
static int64_t raised(int64_t before, int32_t offset, int64_t R)
{
    const int64_t o = offset < before ? before : offset;
    return o < R ? o : R;
}

/* The expert of row r, or −1. */
static int64_t expert_of(const shape *h, const int32_t *offset, int64_t r)
{
    int64_t begin = raised(0, offset[0], h->R);
    for (int64_t e = 0; e < h->X; e++) {
        const int64_t end = raised(begin, offset[e + 1], h->R);
        if (r >= begin && r < end) return e;
        begin = end;
    }
    return -1;
}

void ts__ref_grouped_dot(const ts_cpu_call *c)
{
    const shape h = shape_of(c->node);
#pragma omp parallel for num_threads(c->threads) if (h.R > 1)
    for (int64_t r = 0; r < h.R; r++) {
        const int64_t e = expert_of(&h, c->in[2], r);
        for (int64_t f = 0; f < h.F; f++) {
            double sum = 0;
            for (int64_t i = 0; i < h.E && e >= 0; i++)
                sum += (double)ts__ref_get(c->in[0], h.dtype, r * h.E + i) *
                       (double)ts__ref_get(c->in[1], h.dtype, (e * h.F + f) * h.E + i);
            ts__ref_put(c->out[0], h.dtype, r * h.F + f, sum);
        }
    }
}

ts_status ts__ref_prepare_grouped_dot_grad(const ts_node *n, int threads, ts_cpu_prepared *out,
                                           ts_error *err)
{
    const shape h = shape_of(n);
    return ts__ref_scratch(n, threads, h.E, 0, 4.0 * (double)h.R * (double)h.F * (double)h.E, out,
                           err);
}

static void add_scaled(double *sum, double by, const void *rows, const shape *h, int64_t row)
{
    for (int64_t i = 0; i < h->E; i++)
        sum[i] += by * (double)ts__ref_get(rows, h->dtype, row * h->E + i);
}

/* x, w, offsets, dy → dx by row, dw by expert and feature. */
void ts__ref_grouped_dot_grad(const ts_cpu_call *c)
{
    const shape h = shape_of(c->node);
    const int32_t *offset = c->in[2];
#pragma omp parallel num_threads(c->threads) if (h.R > 1)
    {
        double *sum = ts__ref_part(c, h.E, ts__ref_thread());
#pragma omp for
        for (int64_t r = 0; r < h.R; r++) {
            const int64_t e = expert_of(&h, offset, r);
            memset(sum, 0, (size_t)h.E * sizeof *sum);
            for (int64_t f = 0; f < h.F && e >= 0; f++)
                add_scaled(sum, (double)ts__ref_get(c->in[3], h.dtype, r * h.F + f), c->in[1], &h,
                           e * h.F + f);
            for (int64_t i = 0; i < h.E; i++) ts__ref_put(c->out[0], h.dtype, r * h.E + i, sum[i]);
        }
        int64_t begin = raised(0, offset[0], h.R);
        for (int64_t e = 0; e < h.X; e++) {
            const int64_t end = raised(begin, offset[e + 1], h.R);
#pragma omp for
            for (int64_t f = 0; f < h.F; f++) {
                memset(sum, 0, (size_t)h.E * sizeof *sum);
                for (int64_t r = begin; r < end; r++)
                    add_scaled(sum, (double)ts__ref_get(c->in[3], h.dtype, r * h.F + f), c->in[0],
                               &h, r);
                for (int64_t i = 0; i < h.E; i++)
                    ((float *)c->out[1])[(e * h.F + f) * h.E + i] = (float)sum[i];
            }
            begin = end;
        }
    }
}
