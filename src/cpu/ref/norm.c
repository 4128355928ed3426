/* cpu/ref/norm.c – rms_norm, rope and the gated activation, forward and backward.
 *
 * Rows are independent. Everything is computed in double from the stored values and rounded once.
 * dw of rms_norm is a sum over all rows, made by one thread in row order. rms_norm: Zhang &
 * Sennrich 2019. rope: Su et al. 2021 in the rotate-half layout. gelu: the tanh form.
 */
#include "cpu/ref/ref.h"

/* ---- rms_norm -------------------------------------------------------------------------------- */

/* 1/√(mean(x²) + eps) of row r. */
static double inverse_rms(const void *x, ts_dtype t, int64_t r, int64_t width, double eps)
{
    double sum = 0;
    for (int64_t i = 0; i < width; i++) {
        const double v = (double)ts__ref_get(x, t, r * width + i);
        sum += v * v;
    }
    return 1.0 / sqrt(sum / (double)width + eps);
}

void ts__ref_rms_norm(const ts_cpu_call *c)
{
    const ts_type *x = &c->node->in[0]->type;
    const ts_dtype t = x->dtype, wt = c->node->in[1]->type.dtype;
    const int64_t width = x->dim[x->rank - 1].size, count = ts_type_elements(x),
                  rows = count ? count / width : 0;
    const double eps = c->node->attr.rms_norm.eps;
#pragma omp parallel for num_threads(c->threads) if (count >= TS__REF_PARALLEL)
    for (int64_t r = 0; r < rows; r++) {
        const double scale = inverse_rms(c->in[0], t, r, width, eps);
        for (int64_t i = 0; i < width; i++)
            ts__ref_put(c->out[0], t, r * width + i,
                        (double)ts__ref_get(c->in[0], t, r * width + i) * scale *
                            (double)ts__ref_get(c->in[1], wt, i));
    }
}

ts_status ts__ref_prepare_rms_norm_grad(const ts_node *n, int threads, ts_cpu_prepared *out,
                                        ts_error *err)
{
    return ts__ref_scratch(n, threads, 0, ts__ref_count(n->in[1]),
                           8.0 * (double)ts__ref_count(n->in[0]), out, err);
}

/* With s = inverse rms and x̂ = x·s: dx = s·(w·dy − x̂·mean(w·dy·x̂)), dw = Σ_rows dy·x̂. */
void ts__ref_rms_norm_grad(const ts_cpu_call *c)
{
    const ts_type *x = &c->node->in[0]->type;
    const ts_dtype t = x->dtype, wt = c->node->in[1]->type.dtype;
    const int64_t width = x->dim[x->rank - 1].size, count = ts_type_elements(x),
                  rows = count ? count / width : 0;
    double *dw = ts__ref_part(c, 0, 0);
    for (int64_t i = 0; i < width; i++)
        dw[i] = 0;
    for (int64_t r = 0; r < rows; r++) {
        const double s = inverse_rms(c->in[0], t, r, width, c->node->attr.rms_norm.eps);
        double mean = 0;
        for (int64_t i = 0; i < width; i++) {
            const double dy = (double)ts__ref_get(c->in[2], t, r * width + i);
            const double hat = (double)ts__ref_get(c->in[0], t, r * width + i) * s;
            mean += (double)ts__ref_get(c->in[1], wt, i) * dy * hat;
            dw[i] += dy * hat;
        }
        mean /= (double)width;
        for (int64_t i = 0; i < width; i++) {
            const double wdy = (double)ts__ref_get(c->in[1], wt, i) *
                               (double)ts__ref_get(c->in[2], t, r * width + i);
            const double hat = (double)ts__ref_get(c->in[0], t, r * width + i) * s;
            ts__ref_put(c->out[0], t, r * width + i, s * (wdy - hat * mean));
        }
    }
    for (int64_t i = 0; i < width; i++)
        ((float *)c->out[1])[i] = (float)dw[i];
}

/* ---- rope ------------------------------------------------------------------------------------ */

void ts__ref_rope(const ts_cpu_call *c)
{
    const ts_type *x = &c->node->in[0]->type;
    const ts_dtype t = x->dtype;
    const int64_t seq = x->dim[1].size, width = x->dim[x->rank - 1].size, half = width / 2;
    const int64_t count = ts_type_elements(x);
    if (count == 0) return;
    const int64_t rows = count / width, heads = rows / (x->dim[0].size * seq);
    const bool per_batch = c->node->in[1]->type.rank == 3;
    const double turn = c->node->attr.rope.inverse ? -1.0 : 1.0;
#pragma omp parallel for num_threads(c->threads) if (count >= TS__REF_PARALLEL)
    for (int64_t r = 0; r < rows; r++) {
        const int64_t position = r / heads % (per_batch ? x->dim[0].size * seq : seq);
        const float *cosine = (const float *)c->in[1] + position * half,
                    *sine = (const float *)c->in[2] + position * half;
        for (int64_t i = 0; i < half; i++) {
            const double a = (double)ts__ref_get(c->in[0], t, r * width + i);
            const double b = (double)ts__ref_get(c->in[0], t, r * width + half + i);
            const double co = (double)cosine[i], si = turn * (double)sine[i];
            ts__ref_put(c->out[0], t, r * width + i, a * co - b * si);
            ts__ref_put(c->out[0], t, r * width + half + i, b * co + a * si);
        }
    }
}

/* ---- gated ----------------------------------------------------------------------------------- */

/* act(g) and its derivative. */
static double activate(int act, double g, double *slope)
{
    if (act == TS_SILU) {
        const double s = 1.0 / (1.0 + exp(-g));
        *slope = s * (1.0 + g * (1.0 - s));
        return g * s;
    }
    const double k = 0.79788456080286535588, cubic = 0.044715;      /* √(2/π) */
    const double th = tanh(k * (g + cubic * g * g * g));
    *slope = 0.5 * (1.0 + th) + 0.5 * g * (1.0 - th * th) * k * (1.0 + 3.0 * cubic * g * g);
    return 0.5 * g * (1.0 + th);
}

void ts__ref_gated(const ts_cpu_call *c)
{
    const ts_dtype t = c->node->in[0]->type.dtype;
    const int64_t count = ts__ref_count(c->node->in[0]);
#pragma omp parallel for num_threads(c->threads) if (count >= TS__REF_PARALLEL)
    for (int64_t i = 0; i < count; i++) {
        double slope;
        const double a =
            activate(c->node->attr.gated.act, (double)ts__ref_get(c->in[0], t, i), &slope);
        ts__ref_put(c->out[0], t, i, a * (double)ts__ref_get(c->in[1], t, i));
    }
}

void ts__ref_gated_grad(const ts_cpu_call *c)
{
    const ts_dtype t = c->node->in[0]->type.dtype;
    const int64_t count = ts__ref_count(c->node->in[0]);
#pragma omp parallel for num_threads(c->threads) if (count >= TS__REF_PARALLEL)
    for (int64_t i = 0; i < count; i++) {
        double slope;
        const double a =
            activate(c->node->attr.gated.act, (double)ts__ref_get(c->in[0], t, i), &slope);
        const double up = (double)ts__ref_get(c->in[1], t, i),
                     dy = (double)ts__ref_get(c->in[2], t, i);
        ts__ref_put(c->out[0], t, i, dy * up * slope);
        ts__ref_put(c->out[1], t, i, dy * a);
    }
}
