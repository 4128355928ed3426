/* cpu/matmul_avx2.c – f32 matrix products where the machine has AVX2 only, and where oneDNN has no better.
 *
 * oneDNN 2.6 serves AVX2 with a product that allocates its packing buffers in every call and reads past
 * their end; from AVX-512 on it has one that does neither, and that is used there (gemm.c). This one packs
 * into the caller's scratch: y in strips of 16 columns, shared by all threads; x in blocks of rows, where its
 * rows are not contiguous, one a thread. The product of a block and a strip is tile.h's.
 * Invariants: an element's sum runs in order of k, in pieces of KC, by one thread, so the bits do not depend
 * on the thread count. Operands have any strides; the result is dense.
 * Blocking: Goto & van de Geijn, Anatomy of High-Performance Matrix Multiplication, 2008.
 */
#include <omp.h>

#include "cpu/fast.h"
#include "cpu/tile.h"

enum { ROWS = 6, STRIP = 2 * VN, MC = 96, KC = 256, NC = 2048 }; /* ROWS: of a register block */

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Scratch: strips of y [NC/STRIP][KC][STRIP]; then for each thread x [MC][KC] and a cut result
 * [MC][STRIP]. */
static size_t strips_floats(const ts__gemm_spec *s)
{
    return ts_round_up((size_t)least(s->n, NC), STRIP) * (size_t)least(s->k, KC);
}

enum { OWN_FLOATS = MC * KC + MC * STRIP };

size_t ts__matmul_scratch(const ts__gemm_spec *s, int threads)
{
    return (strips_floats(s) + (size_t)threads * OWN_FLOATS) * sizeof(float);
}

/* Rows p0 … p0+k of columns n0 … n0+STRIP of y, zero beyond column n. */
static void pack_strip(const ts__gemm_spec *s, const float *y, int64_t p0, int64_t k, int64_t n0,
                       int64_t n, float *out)
{
    const int64_t width = least(n - n0, STRIP);
    const float *from = y + p0 * s->y_k + n0 * s->y_n;
    if (s->y_n == 1 && width == STRIP) {
        for (int64_t p = 0; p < k; p++)
            for (int v = 0; v < 2; v++)
                v_store(out + p * STRIP + v * VN, v_load(from + p * s->y_k + v * VN));
        return;
    }
    for (int64_t j = 0; j < STRIP; j++)
        for (int64_t p = 0; p < k; p++)
            out[p * STRIP + j] = j < width ? from[p * s->y_k + j * s->y_n] : 0;
}

/* x's rows i0 … i0+m, columns p0 … p0+k, as the tile reads them; packed where k is not contiguous. */
static void block_of_x(const ts__gemm_spec *s, const float *x, int64_t i0, int64_t m, int64_t p0,
                       int64_t k, float *own, tile *t)
{
    const float *from = x + i0 * s->x_m + p0 * s->x_k;
    t->m = m;
    t->k = k;
    t->a = from;
    t->a_row = s->x_m;
    t->a_col = s->x_k;
    if (s->x_k == 1) return;
    t->a = own;
    if (s->x_m == 1) {
        for (int64_t p = 0; p < k; p++)
            memcpy(own + p * m, from + p * s->x_k, (size_t)m * sizeof(float));
        t->a_row = 1;
        t->a_col = m;
        return;
    }
    for (int64_t i = 0; i < m; i++)
        for (int64_t p = 0; p < k; p++) own[i * k + p] = from[i * s->x_m + p * s->x_k];
    t->a_row = k;
    t->a_col = 1;
}

/* The last strip of a row block, whose columns end before the strip does. */
static void cut_strip(tile *t, float *out, int64_t row, int64_t width, float *own)
{
    t->c = own;
    t->c_row = STRIP;
    if (t->add)
        for (int64_t i = 0; i < t->m; i++)
            for (int64_t j = 0; j < STRIP; j++)
                own[i * STRIP + j] = j < width ? out[i * row + j] : 0;
    tile_product(t);
    for (int64_t i = 0; i < t->m; i++)
        memcpy(out + i * row, own + i * STRIP, (size_t)width * sizeof(float));
}

/* Strips first … last − 1 of the panel that starts at column n0, for one block of rows. */
static void block_times_strips(const ts__gemm_spec *s, tile *t, const float *strips, float *out,
                               int64_t i0, int64_t n0, int64_t first, int64_t last, float *own)
{
    for (int64_t j = first; j < last; j++) {
        const int64_t column = n0 + j * STRIP, width = least(s->n - column, STRIP);
        float *to = out + i0 * s->n + column;
        t->b = strips + j * STRIP * t->k;
        if (width < STRIP) {
            cut_strip(t, to, s->n, width, own);
            continue;
        }
        t->c = to;
        t->c_row = s->n;
        tile_product(t);
    }
}

/* Into how many groups the strips of a row block are cut, so that all threads have the same work; each
 * group packs its rows of x again, which costs a little. */
static int64_t column_groups(int64_t blocks, int64_t strips, int64_t threads)
{
    int64_t best = 1;
    double least_cost = 1e30;
    for (int64_t g = 1; g <= least(strips, 4 * threads); g++) {
        const int64_t tasks = blocks * g;
        const double rounds = (double)((tasks + threads - 1) / threads);
        const double cost = rounds * (double)threads / (double)tasks + 0.02 * (double)g;
        if (cost < least_cost) {
            least_cost = cost;
            best = g;
        }
    }
    return best;
}

/* One panel of columns and one piece of k; every thread comes here. */
static void panel_part(const ts__gemm_spec *s, const float *x, const float *y, float *out,
                       float *scratch, int64_t n0, int64_t p0)
{
    const int64_t n = least(s->n - n0, NC), k = least(s->k - p0, KC);
    const int64_t strips = (n + STRIP - 1) / STRIP, blocks = (s->m + MC - 1) / MC;
    const int64_t rows = (int64_t)ts_round_up((size_t)((s->m + blocks - 1) / blocks), ROWS);
    const int64_t groups = column_groups(blocks, strips, omp_get_num_threads());
    float *own = scratch + strips_floats(s) + (size_t)omp_get_thread_num() * OWN_FLOATS;
#pragma omp for schedule(static)
    for (int64_t j = 0; j < strips; j++)
        pack_strip(s, y, p0, k, n0 + j * STRIP, s->n, scratch + j * STRIP * k);
#pragma omp for schedule(static)
    for (int64_t task = 0; task < blocks * groups; task++) {
        const int64_t i0 = task / groups * rows, g = task % groups;
        if (i0 >= s->m) continue;
        tile t = {.b_row = STRIP, .vectors = 2, .add = p0 > 0 || s->accumulate};
        block_of_x(s, x, i0, least(s->m - i0, rows), p0, k, own, &t);
        block_times_strips(s, &t, scratch, out, i0, n0, g * strips / groups,
                           (g + 1) * strips / groups, own + MC * KC);
    }
}

/* x · y of n contiguous elements, in blocks whose sums are added in double. */
static double dot_part(const float *x, const float *y, int64_t n)
{
    double sum = 0;
    for (int64_t at = 0; at < n; at += 4096) {
        const int64_t end = least(n, at + 4096);
        vf part[4] = {v_zero(), v_zero(), v_zero(), v_zero()};
        int64_t i = at;
        for (; i + 4 * VN <= end; i += 4 * VN)
            for (int j = 0; j < 4; j++)
                part[j] = v_fma(v_load(x + i + j * VN), v_load(y + i + j * VN), part[j]);
        sum += (double)v_sum((part[0] + part[1]) + (part[2] + part[3]));
        for (; i < end; i++) sum += (double)x[i] * (double)y[i];
    }
    return sum;
}

enum { DOT_PARTS = 64 }; /* a fixed number, so that the bits do not depend on the threads */

/* m = n = 1: the sum of squares of a gradient is one of these. */
static void dot_product(const ts__gemm_spec *s, const float *x, const float *y, float *out,
                        int threads)
{
    double part[DOT_PARTS], sum = s->accumulate ? (double)*out : 0;
    const int64_t each = (s->k + DOT_PARTS - 1) / DOT_PARTS;
    const int use = ts__threads(s->k, threads);
#pragma omp parallel for num_threads(use) if (use > 1)
    for (int i = 0; i < DOT_PARTS; i++) {
        const int64_t first = least(i * each, s->k), last = least(first + each, s->k);
        part[i] = dot_part(x + first, y + first, last - first);
    }
    for (int i = 0; i < DOT_PARTS; i++) sum += part[i];
    *out = (float)sum;
}

void ts__matmul_avx2(const ts__gemm_spec *s, const float *x, const float *y, float *out,
                     float *scratch, int threads)
{
    if (s->m == 1 && s->n == 1 && s->x_k == 1 && s->y_k == 1) {
        dot_product(s, x, y, out, threads);
        return;
    }
    const int use = ts__threads(s->m * s->n * s->k / 64, threads);
#pragma omp parallel num_threads(use)
    for (int64_t n0 = 0; n0 < s->n; n0 += NC)
        for (int64_t p0 = 0; p0 < s->k; p0 += KC) panel_part(s, x, y, out, scratch, n0, p0);
}
