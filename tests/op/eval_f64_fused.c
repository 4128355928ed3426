/* tests/op/eval_f64_fused.c – the composites of the double-precision interpreter, each from its
 * definition.
 *
 * Backward composites are the derivatives of the forward definitions, written down separately from
 * the kernels; that they are the right derivatives is shown by the gradient tests, which compare
 * with differences of the forward ones.
 */
#include "eval_f64.h"

#include <math.h>
#include <stdlib.h>

static int64_t size(const ts_value *v, int d) { return v->type.dim[d].size; }
static int64_t last(const ts_value *v) { return size(v, v->type.rank - 1); }
static int64_t count(const ts_value *v) { return ts_type_elements(&v->type); }

/* ---- random bits ----------------------------------------------------------------------------- */

void f64_threefry(const uint32_t key[2], const uint32_t counter[2], uint32_t out[2])
{
    static const unsigned turn[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
    const uint32_t k[3] = {key[0], key[1], key[0] ^ key[1] ^ 0x1BD11BDAu};
    uint32_t a = counter[0] + k[0], b = counter[1] + k[1];
    for (uint32_t group = 0; group < 5; group++) {     /* four rounds, then a piece of the key */
        for (int i = 0; i < 4; i++) {
            const unsigned by = turn[group & 1][i];
            a += b;
            b = ((b << by) | (b >> (32 - by))) ^ a;
        }
        a += k[(group + 1) % 3];
        b += k[(group + 2) % 3] + group + 1;
    }
    out[0] = a;
    out[1] = b;
}

static void random_bits(const f64_call *c)
{
    const uint32_t key[2] = {(uint32_t)c->in[0][0], (uint32_t)c->in[0][1]};
    for (int64_t i = 0; i < count(c->node->out[0]); i++) {
        uint32_t counter[2] = {(uint32_t)(i & 0xffffffff), (uint32_t)(i >> 32)}, word[2];
        f64_threefry(key, counter, word);
        c->out[0][i] = (double)word[0];
    }
}

/* ---- norms, rope, activations ---------------------------------------------------------------- */

static double rms(const double *x, int64_t n, double eps)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * x[i];
    return sqrt(sum / (double)n + eps);
}

static void rms_norm(const f64_call *c)
{
    const int64_t n = last(c->node->in[0]);
    for (int64_t i = 0; i < count(c->node->in[0]); i++)
        c->out[0][i] = c->in[0][i] / rms(c->in[0] + i / n * n, n, c->node->attr.rms_norm.eps) *
                       c->in[1][i % n];
}

/* y_i = x_i w_i / R: dx_i = w_i dy_i / R − x_i Σ_j dy_j w_j x_j / (n R³). */
static void rms_norm_grad(const f64_call *c)
{
    const int64_t n = last(c->node->in[0]);
    for (int64_t i = 0; i < n; i++) c->out[1][i] = 0;
    for (int64_t i = 0; i < count(c->node->in[0]); i++) {
        const double *x = c->in[0] + i / n * n, *dy = c->in[2] + i / n * n;
        const double r = rms(x, n, c->node->attr.rms_norm.eps);
        double sum = 0;
        for (int64_t j = 0; j < n; j++) sum += dy[j] * c->in[1][j] * x[j];
        c->out[0][i] = c->in[1][i % n] * dy[i % n] / r - x[i % n] * sum / ((double)n * r * r * r);
        c->out[1][i % n] += dy[i % n] * x[i % n] / r;
    }
}

static void rope(const f64_call *c)
{
    const ts_value *x = c->node->in[0];
    const int64_t D = last(x), S = size(x, 1), n = count(x);
    for (int64_t i = 0; i < n; i++) {
        const int64_t d = i % D, heads = n / (size(x, 0) * S * D), bs = i / D / heads;
        const int64_t row = c->node->in[1]->type.rank == 3 ? bs : bs % S,
                      at = row * (D / 2) + d % (D / 2);
        const double s = c->node->attr.rope.inverse ? -c->in[2][at] : c->in[2][at];
        c->out[0][i] = d < D / 2 ? c->in[0][i] * c->in[1][at] - c->in[0][i + D / 2] * s
                                 : c->in[0][i] * c->in[1][at] + c->in[0][i - D / 2] * s;
    }
}

static double activation(int act, double g)
{
    if (act == TS_SILU) return g / (1 + exp(-g));
    return 0.5 * g * (1 + tanh(sqrt(2 / acos(-1.0)) * (g + 0.044715 * g * g * g)));
}

static double activation_slope(int act, double g)
{
    const double h = 1e-6;                             /* in double this leaves 1e-10 */
    return (activation(act, g + h) - activation(act, g - h)) / (2 * h);
}

static void gated(const f64_call *c)
{
    for (int64_t i = 0; i < count(c->node->in[0]); i++)
        c->out[0][i] = activation(c->node->attr.gated.act, c->in[0][i]) * c->in[1][i];
}

static void gated_grad(const f64_call *c)
{
    for (int64_t i = 0; i < count(c->node->in[0]); i++) {
        c->out[0][i] =
            c->in[2][i] * c->in[1][i] * activation_slope(c->node->attr.gated.act, c->in[0][i]);
        c->out[1][i] = c->in[2][i] * activation(c->node->attr.gated.act, c->in[0][i]);
    }
}

/* ---- attention ------------------------------------------------------------------------------- */

typedef struct heads { int64_t B, S, T, K, G, D; } heads;

static heads heads_of(const ts_node *n)
{
    const ts_value *q = n->in[0];
    return (heads){size(q, 0), size(q, 1), size(n->in[1], 1), size(q, 2), size(q, 3), size(q, 4)};
}

static double soft(double s, double cap) { return cap > 0 ? cap * tanh(s / cap) : s; }

static double soft_slope(double s, double cap)
{
    return cap > 0 ? 1 - tanh(s / cap) * tanh(s / cap) : 1;
}

/* Probabilities of row (b, i, k, g) over the keys; returns the log-sum-exp. slope: d score / d
 * (q·k). */
static double attend(const f64_call *c, const double *segments, int64_t row, double *p,
                     double *slope)
{
    const heads h = heads_of(c->node);
    const int64_t k = row / h.G % h.K, i = row / h.G / h.K % h.S, b = row / h.G / h.K / h.S;
    const int64_t position = i + h.T - h.S, window = c->node->attr.attention.window;
    const double scale = c->node->attr.attention.scale, cap = c->node->attr.attention.softcap;
    double most = -INFINITY, sum = 0;
    bool any = false;
    for (int64_t j = 0; j < h.T; j++) {
        double qk = 0;
        for (int64_t d = 0; d < h.D; d++)
            qk += c->in[0][row * h.D + d] * c->in[1][((b * h.T + j) * h.K + k) * h.D + d];
        bool seen = !c->node->attr.attention.causal || j <= position;
        seen = seen && (window == 0 || position - j < window);
        if (segments) seen = seen && segments[b * h.S + i] == segments[b * h.S + j];
        p[j] = seen ? soft(qk * scale, cap) : -INFINITY;
        slope[j] = scale * soft_slope(qk * scale, cap);
        most = isnan(p[j]) || isnan(most) ? NAN : fmax(most, p[j]);
        any = any || seen;
    }
    for (int64_t j = 0; j < h.T; j++) sum += p[j] == -INFINITY ? 0 : exp(p[j] - most);
    for (int64_t j = 0; j < h.T; j++) p[j] = p[j] == -INFINITY ? 0 : exp(p[j] - most) / sum;
    return any ? most + log(sum) : -INFINITY;
}

static void attention(const f64_call *c)
{
    const heads h = heads_of(c->node);
    double *p = calloc((size_t)h.T * 2 + 1, sizeof *p);
    for (int64_t row = 0; row < h.B * h.S * h.K * h.G; row++) {
        const int64_t k = row / h.G % h.K, b = row / h.G / h.K / h.S;
        c->out[1][row] = attend(c, c->node->n_in > 3 ? c->in[3] : NULL, row, p, p + h.T);
        for (int64_t d = 0; d < h.D; d++) {
            double sum = 0;
            for (int64_t j = 0; j < h.T; j++)
                sum += p[j] * c->in[2][((b * h.T + j) * h.K + k) * h.D + d];
            c->out[0][row * h.D + d] = sum;
        }
    }
    free(p);
}

/* From q, k, v and do alone: o and lse are what attention makes of them. */
static void attention_grad(const f64_call *c)
{
    const heads h = heads_of(c->node);
    double *p = calloc((size_t)h.T * 3 + 1, sizeof *p), *slope = p + h.T, *dp = slope + h.T;
    for (int r = 0; r < 3; r++)
        for (int64_t i = 0; i < count(c->node->out[r]); i++) c->out[r][i] = 0;
    for (int64_t row = 0; row < h.B * h.S * h.K * h.G; row++) {
        const int64_t k = row / h.G % h.K, b = row / h.G / h.K / h.S;
        double mean = 0;
        attend(c, c->node->n_in > 6 ? c->in[6] : NULL, row, p, slope);
        for (int64_t j = 0; j < h.T; j++) {
            dp[j] = 0;
            for (int64_t d = 0; d < h.D; d++)
                dp[j] += c->in[5][row * h.D + d] * c->in[2][((b * h.T + j) * h.K + k) * h.D + d];
            mean += p[j] * dp[j];
        }
        for (int64_t j = 0; j < h.T; j++) {
            const double ds = p[j] * (dp[j] - mean) * slope[j];
            for (int64_t d = 0; d < h.D; d++) {
                const int64_t key = ((b * h.T + j) * h.K + k) * h.D + d;
                c->out[0][row * h.D + d] += ds * c->in[1][key];
                c->out[1][key] += ds * c->in[0][row * h.D + d];
                c->out[2][key] += p[j] * c->in[5][row * h.D + d];
            }
        }
    }
    free(p);
}

/* ---- experts --------------------------------------------------------------------------------- */

static void expert_rows(const f64_call *c)
{
    const int64_t n = count(c->node->in[0]), k = last(c->node->in[0]);
    const int64_t X = c->node->attr.expert_rows.experts;
    int64_t row = 0;
    for (int64_t r = 0; r < count(c->node->out[0]); r++) c->out[0][r] = c->out[1][r] = -1;
    for (int64_t e = 0; e < X; e++) {
        for (; row % 8 != 0; row++) {}
        c->out[2][e] = (double)row;
        for (int64_t i = 0; i < n; i++) {
            if (c->in[0][i] != (double)e) continue;
            c->out[0][row] = (double)(i / k);
            c->out[1][row++] = (double)i;
        }
    }
    c->out[2][X] = (double)((row + 7) / 8 * 8);
}

/* The expert of each row, −1 for none. Offsets never fall and stay inside. */
static void owners(const f64_call *c, int64_t *owner)
{
    const int64_t R = size(c->node->in[0], 0), X = size(c->node->in[1], 0);
    double begin = fmin(fmax(c->in[2][0], 0), (double)R);
    for (int64_t r = 0; r < R; r++) owner[r] = -1;
    for (int64_t e = 0; e < X; e++) {
        const double end = fmin(fmax(c->in[2][e + 1], begin), (double)R);
        for (int64_t r = (int64_t)begin; r < (int64_t)end; r++) owner[r] = e;
        begin = end;
    }
}

/* Forward: y. Backward: dx and dw, from dy. */
static void grouped_dot(const f64_call *c)
{
    const int64_t R = size(c->node->in[0], 0), E = size(c->node->in[0], 1);
    const int64_t F = size(c->node->in[1], 1);
    const bool back = c->node->op == TS_OP_grouped_dot_grad;
    int64_t *owner = calloc((size_t)R + 1, sizeof *owner);
    owners(c, owner);
    for (int o = 0; o < c->node->n_out; o++)
        for (int64_t i = 0; i < count(c->node->out[o]); i++) c->out[o][i] = 0;
    for (int64_t i = 0; i < R * F * E; i++) {
        const int64_t r = i / E / F, f = i / E % F, e = i % E;
        if (owner[r] < 0) continue;
        const int64_t at = (owner[r] * F + f) * E + e;
        if (back) {
            c->out[0][r * E + e] += c->in[3][r * F + f] * c->in[1][at];
            c->out[1][at] += c->in[3][r * F + f] * c->in[0][r * E + e];
        } else {
            c->out[0][r * F + f] += c->in[0][r * E + e] * c->in[1][at];
        }
    }
    free(owner);
}

/* ---- cross-entropy, adamw -------------------------------------------------------------------- */

static double logits(const f64_call *c, int64_t t, double *z, double *slope)
{
    const int64_t V = size(c->node->in[1], 0), E = size(c->node->in[1], 1);
    double most = -INFINITY, sum = 0;
    for (int64_t v = 0; v < V; v++) {
        double s = 0;
        for (int64_t e = 0; e < E; e++) s += c->in[0][t * E + e] * c->in[1][v * E + e];
        z[v] = soft(s, c->node->attr.xent.softcap);
        slope[v] = soft_slope(s, c->node->attr.xent.softcap);
        most = fmax(most, z[v]);
    }
    for (int64_t v = 0; v < V; v++) sum += exp(z[v] - most);
    return most + log(sum);
}

static void linear_xent(const f64_call *c)
{
    const int64_t T = size(c->node->in[0], 0), V = size(c->node->in[1], 0);
    double *z = calloc((size_t)V * 2, sizeof *z);
    for (int64_t t = 0; t < T; t++) {
        const int64_t label = (int64_t)c->in[2][t];
        c->out[1][t] = logits(c, t, z, z + V);
        c->out[0][t] = label >= 0 ? c->out[1][t] - z[label] : 0;
    }
    free(z);
}

static void xent_rows(const f64_call *c)
{
    const int64_t T = size(c->node->in[0], 0), V = size(c->node->in[1], 0);
    double *z = calloc((size_t)V * 2, sizeof *z);
    for (int64_t t = 0; t < T; t++) {
        const int64_t label = (int64_t)c->in[2][t];
        logits(c, t, z, z + V);
        c->out[0][t] = z[0];
        for (int64_t v = 1; v < V; v++) c->out[0][t] = fmax(c->out[0][t], z[v]);
        c->out[1][t] = 0;
        for (int64_t v = 0; v < V; v++) c->out[1][t] += exp(z[v] - c->out[0][t]);
        c->out[2][t] = label >= 0 && label < V ? z[label] : 0;
    }
    free(z);
}

static void linear_xent_grad(const f64_call *c)
{
    const int64_t T = size(c->node->in[0], 0), V = size(c->node->in[1], 0),
                  E = size(c->node->in[1], 1);
    double *z = calloc((size_t)V * 2, sizeof *z);
    for (int64_t i = 0; i < T * E; i++) c->out[0][i] = 0;
    for (int64_t i = 0; i < V * E; i++) c->out[1][i] = 0;
    for (int64_t t = 0; t < T; t++) {
        const double lse = logits(c, t, z, z + V), counted = c->in[2][t] >= 0;
        for (int64_t v = 0; v < V; v++) {
            const double p = exp(z[v] - lse), hit = c->in[2][t] == (double)v;
            const double dz = (c->in[4][t] * counted * (p - hit) + c->in[5][t] * p) * z[V + v];
            for (int64_t e = 0; e < E; e++) {
                c->out[0][t * E + e] += dz * c->in[1][v * E + e];
                c->out[1][v * E + e] += dz * c->in[0][t * E + e];
            }
        }
    }
    free(z);
}

static void adamw(const f64_call *c)
{
    const ts_attr *a = &c->node->attr;
    const double lr = c->in[4][0], t = c->in[5][0], scale = c->in[6][0];
    const bool ok = c->in[7][0] != 0;
    for (int64_t i = 0; i < count(c->node->in[0]); i++) {
        const double g = c->in[1][i] * scale, p = c->in[0][i];
        const double m = a->adamw.b1 * c->in[2][i] + (1 - a->adamw.b1) * g;
        const double v = a->adamw.b2 * c->in[3][i] + (1 - a->adamw.b2) * g * g;
        const double mhat = m / (1 - pow(a->adamw.b1, t)), vhat = v / (1 - pow(a->adamw.b2, t));
        const double step = mhat / (sqrt(vhat) + a->adamw.eps) + a->adamw.weight_decay * p;
        c->out[0][i] = ok ? p - lr * step : p;
        c->out[1][i] = ok ? m : c->in[2][i];
        c->out[2][i] = ok ? v : c->in[3][i];
    }
}

void f64_fused(const f64_call *c)
{
    switch (c->node->op) {
    case TS_OP_random_bits: random_bits(c); return;
    case TS_OP_rms_norm: rms_norm(c); return;
    case TS_OP_rms_norm_grad: rms_norm_grad(c); return;
    case TS_OP_rope: rope(c); return;
    case TS_OP_attention: attention(c); return;
    case TS_OP_attention_grad: attention_grad(c); return;
    case TS_OP_gated: gated(c); return;
    case TS_OP_gated_grad: gated_grad(c); return;
    case TS_OP_linear_xent: linear_xent(c); return;
    case TS_OP_expert_rows: expert_rows(c); return;
    case TS_OP_grouped_dot:
    case TS_OP_grouped_dot_grad: grouped_dot(c); return;
    case TS_OP_xent_rows: xent_rows(c); return;
    case TS_OP_linear_xent_grad: linear_xent_grad(c); return;
    case TS_OP_adamw: adamw(c); return;
    default: TS_ASSERT(!"a composite without a definition");
    }
}
