/* cpu/tile.h – small products of packed f32 tiles, in registers.
 *
 * tile_product computes c [m × n] (+)= a [m × k] · b [k × n], where n is a whole number of vectors,
 * rows of b and c are contiguous, and a has any strides (so aᵀ needs no copy). A block of rows ×
 * vectors of c stays in registers over all of k: up to 24 of the 32 of AVX-512, 12 of the 16 of
 * AVX2. Sums run in order of k for every element, so how rows are blocked does not show in the
 * bits. For attention's tiles, which fit in the first cache; large products are oneDNN's (gemm.c).
 */
#ifndef TS_CPU_TILE_H
#define TS_CPU_TILE_H

#include "cpu/vec.h"

typedef struct tile {
    const float *a, *b;
    float *c;
    int64_t m, k, a_row, a_col, b_row, c_row;
    int vectors; /* n / VN */
    bool add;
} tile;

INLINE void tile_block(int rows, int vectors, const tile *t, int64_t row, int64_t at)
{
    /* Every third row is a pointer, so that the others are one index of it: x86 has 16 registers.
     */
    const float *a[4] = {t->a + row * t->a_row, t->a + (row + 3) * t->a_row,
                         t->a + (row + 6) * t->a_row, t->a + (row + 9) * t->a_row};
    const float *b = t->b + at;
    float *c = t->c + row * t->c_row + at;
    const int64_t a_row = t->a_row, c_row = t->c_row;
    vf sum[12][4];
    UNROLL for (int i = 0; i < rows; i++) UNROLL for (int j = 0; j < vectors; j++) sum[i][j] =
        t->add ? v_load(c + i * c_row + j * VN) : v_zero();
    for (int64_t p = 0; p < t->k; p++) {
        vf y[4];
        UNROLL for (int j = 0; j < vectors; j++) y[j] = v_load(b + j * VN);
        UNROLL for (int i = 0; i < rows; i++)
        {
            const vf x = v_set1(a[i / 3][i % 3 * a_row]);
            UNROLL for (int j = 0; j < vectors; j++) sum[i][j] = v_fma(x, y[j], sum[i][j]);
        }
        UNROLL for (int i = 0; i < 4; i++) a[i] += t->a_col;
        b += t->b_row;
    }
    UNROLL for (int i = 0; i < rows; i++) UNROLL for (int j = 0; j < vectors; j++)
        v_store(c + i * c_row + j * VN, sum[i][j]);
}

#define TILE_ROWS(rows, vectors)                                                                   \
    for (; i + (rows) <= t->m; i += (rows)) tile_block(rows, vectors, t, i, at)
#define TILE_COLUMNS(vectors, most)                                                                \
    static void tile_columns##vectors(const tile *t, int64_t at)                                   \
    {                                                                                              \
        int64_t i = 0;                                                                             \
        TILE_ROWS(most, vectors);                                                                  \
        TILE_ROWS(4, vectors);                                                                     \
        TILE_ROWS(2, vectors);                                                                     \
        TILE_ROWS(1, vectors);                                                                     \
    }

#if defined(__AVX512F__)
TILE_COLUMNS(1, 12)
TILE_COLUMNS(2, 12)
TILE_COLUMNS(3, 8)
TILE_COLUMNS(4, 6)

static inline void tile_product(const tile *t)
{
    for (int v = 0; v < t->vectors;) {
        const int left = t->vectors - v;
        if (left == 4 || left > 6)
            tile_columns4(t, (int64_t)v * VN), v += 4;
        else if (left >= 3)
            tile_columns3(t, (int64_t)v * VN), v += 3;
        else if (left == 2)
            tile_columns2(t, (int64_t)v * VN), v += 2;
        else
            tile_columns1(t, (int64_t)v * VN), v += 1;
    }
}
#else
TILE_COLUMNS(1, 8)
TILE_COLUMNS(2, 6)

static inline void tile_product(const tile *t)
{
    for (int v = 0; v < t->vectors; v += 2) {
        if (t->vectors - v >= 2)
            tile_columns2(t, (int64_t)v * VN);
        else
            tile_columns1(t, (int64_t)v * VN);
    }
}
#endif

#endif
