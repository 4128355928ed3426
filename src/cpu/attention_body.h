/* cpu/attention_body.h – softmax(q·kᵀ·scale + mask)·v in tiles of 72 rows × 96 keys, forward and
 * backward; included by attention_*.c.
 *
 * A row is one (query, group) pair of a kv head, so grouped queries share the packed keys. Never
 * holds S×S: scratch is linear in T. The keys a row sees are one range [from, to) of positions
 * (causal, window) cut by segments. Tiles of keys start at multiples of 96 for every row, so rows
 * are independent and any thread count gives the same bits; in backward one thread does one (batch,
 * kv head) and sums dk and dv in query order; only where heads are fewer than threads are the sums
 * cut in parts, whose number follows from shape and thread count. bf16 is widened when packed;
 * arithmetic is f32. Saves log-sum-exp, not probabilities. A row that sees no key is zero and its
 * log-sum-exp −inf.
 * Online softmax: Milakov & Gimelshein 2018; backward: Dao et al. 2022, algorithm 4. */
#include <math.h>

#include "cpu/fast.h"
#include "cpu/tile.h"
#include "cpu/vec_math.h"

enum { ROWS = 72, KEYS = 96, AHEAD = 8 }; /* multiples of every register block in tile.h */
#define NONE (-__builtin_inff())

typedef struct shape {
    int64_t B, S, T, K, G, D, P;   /* P: D in whole vectors */
    int64_t window, tiles, blocks; /* row tiles, key blocks */
    bool h, causal;
    float scale, softcap;
    const int32_t *segments;
} shape;

static shape shape_of(const ts_node *n, const void *segments)
{
    const ts_type *q = ts__in_type(n, 0);
    const int64_t D = q->dim[4].size, T = ts__in_type(n, 1)->dim[1].size,
                  rows = q->dim[1].size * q->dim[3].size;
    return (shape){
        .B = q->dim[0].size,
        .S = q->dim[1].size,
        .T = T,
        .K = q->dim[2].size,
        .G = q->dim[3].size,
        .D = D,
        .P = (D + VN - 1) / VN * VN,
        .window = n->attr.attention.window,
        .tiles = (rows + ROWS - 1) / ROWS,
        .blocks = (T + KEYS - 1) / KEYS,
        .h = q->dtype == TS_BF16,
        .causal = n->attr.attention.causal,
        .scale = (float)n->attr.attention.scale,
        .softcap = (float)n->attr.attention.softcap,
        .segments = segments,
    };
}

static int64_t key_at(const shape *h, int64_t b, int64_t k, int64_t key)
{
    return ((b * h->T + key) * h->K + k) * h->D;
}

/* Keys [*from, *to) that query i's position lets it see. */
static void visible(const shape *h, int64_t i, int64_t *from, int64_t *to)
{
    const int64_t at = i + h->T - h->S;
    *from = h->window > 0 && at - h->window + 1 > 0 ? at - h->window + 1 : 0;
    *to = h->causal && at + 1 < h->T ? (at < 0 ? 0 : at + 1) : h->T;
    if (*from > *to) *from = *to;
}

/* ---- packing: f32, rows padded with zeros to P ----------------------------------------------- */

INLINE void pack_row(const shape *h, const void *x, int64_t at, float scale, float *out)
{
    const vf s = v_set1(scale);
    for (int64_t i = 0; i < h->D; i += VN) {
        const int64_t n = h->D - i;
        vf v = h->h ? v_get_some(true, x, at + i, n) : v_get_some(false, x, at + i, n);
        v_store(out + i, v * s);
    }
}

INLINE void unpack_row(const shape *h, void *x, int64_t at, float scale, const float *in)
{
    const vf s = v_set1(scale);
    for (int64_t i = 0; i < h->D; i += VN) {
        if (h->h)
            v_put_some(true, x, at + i, v_load(in + i) * s, h->D - i);
        else
            v_put_some(false, x, at + i, v_load(in + i) * s, h->D - i);
    }
}

/* Rows of one head lie far apart, out of the prefetcher's sight. */
static void fetch(const shape *h, const void *x, int64_t at)
{
    const char *p = (const char *)x + at * (h->h ? 2 : 4);
    for (int64_t i = 0; i < h->D * (h->h ? 2 : 4); i += 64) __builtin_prefetch(p + i);
}

/* Keys of one head as rows [T, P]. */
static void pack_keys(const shape *h, const void *x, int64_t b, int64_t k, float *out)
{
    for (int64_t t = 0; t < h->T; t++) {
        fetch(h, x, key_at(h, b, k, t + AHEAD < h->T ? t + AHEAD : t));
        pack_row(h, x, key_at(h, b, k, t), 1.0f, out + t * h->P);
    }
}

/* Keys of one head as blocks [blocks, D, KEYS]: transposed, the last block padded with zeros. rows
 * is scratch for VN rows of P. */
static void pack_turned(const shape *h, const void *x, int64_t b, int64_t k, float *rows,
                        float *out)
{
    if (h->T % KEYS) memset(out + (h->blocks - 1) * h->D * KEYS, 0, (size_t)(h->D * KEYS) * 4);
    for (int64_t t = 0; t < h->T; t += VN) {
        const int64_t n = h->T - t < VN ? h->T - t : VN;
        float *o = out + t / KEYS * h->D * KEYS + t % KEYS;
        for (int64_t i = 0; i < VN; i++) {
            fetch(h, x, key_at(h, b, k, t + i + AHEAD < h->T ? t + i + AHEAD : t));
            if (i < n)
                pack_row(h, x, key_at(h, b, k, t + i), 1.0f, rows + i * h->P);
            else
                memset(rows + i * h->P, 0, (size_t)h->P * 4);
        }
        for (int64_t d = 0; d < h->D; d += VN) {
            vf v[VN];
            UNROLL for (int i = 0; i < VN; i++) v[i] = v_load(rows + i * h->P + d);
            v_turn(v);
            const int64_t m = h->D - d < VN ? h->D - d : VN;
            UNROLL for (int i = 0; i < VN; i++) if (i < m) v_store(o + (d + i) * KEYS, v[i]);
        }
    }
}

/* ---- one tile of rows and one block of keys -------------------------------------------------- */

/* A tile of rows: where they lie and what they see, of all keys and of one block. */
typedef struct window {
    int64_t rows, at[ROWS], query[ROWS], low[ROWS], high[ROWS]; /* keys [low, high) of each row */
    int64_t key, keys;        /* of the block: first key; how many any row may see */
    int from[ROWS], to[ROWS]; /* columns of the block that each row sees */
} window;

static void window_open(const shape *h, window *w, int64_t b, int64_t k, int64_t tile_index)
{
    const int64_t row = tile_index * ROWS;
    int64_t i = row / h->G, g = row % h->G;
    w->rows = h->S * h->G - row < ROWS ? h->S * h->G - row : ROWS;
    for (int64_t r = 0; r < w->rows; r++) {
        w->at[r] = (((b * h->S + i) * h->K + k) * h->G + g) * h->D;
        w->query[r] = i;
        visible(h, i, &w->low[r], &w->high[r]);
        if (++g == h->G) g = 0, i++;
    }
}

static void window_of(window *w, int64_t block)
{
    w->key = block * KEYS;
    w->keys = 0;
    for (int64_t r = 0; r < w->rows; r++) {
        const int64_t from = w->low[r] < w->key ? 0 : w->low[r] - w->key;
        const int64_t to = w->high[r] - w->key > KEYS ? KEYS : w->high[r] - w->key;
        w->from[r] = from < to ? (int)from : 0;
        w->to[r] = from < to ? (int)to : 0;
        if (w->to[r] > w->keys) w->keys = w->to[r];
    }
}

/* Zero outside [first, limit), up to the keys of the window. */
static void clear_rest(const window *w, float *s, int first, int limit)
{
    for (int i = 0; i < first; i += VN) v_store(s + i, v_zero());
    for (int i = limit; i < w->keys; i += VN) v_store(s + i, v_zero());
}

/* Scores of one row, in place: capped, −inf where the row may not look. Whole vectors from *first
 * to *limit hold all that it sees, so that what follows has no tails; beyond them, up to the keys
 * of the window, are zeros. */
static void finish_scores(const shape *h, const window *w, int64_t b, int64_t r, float *s,
                          int *first, int *limit)
{
    const int from = w->from[r], to = w->to[r];
    const vf none = v_set1(NONE);
    *first = from / VN * VN;
    *limit = (to + VN - 1) / VN * VN;
    if (h->softcap > 0) {
        const vf cap = v_set1(h->softcap);
        for (int i = *first; i < *limit; i += VN) v_store(s + i, cap * v_tanh(v_load(s + i) / cap));
    }
    if (from > *first) v_store(s + *first, v_first_or(none, from - *first, v_load(s + *first)));
    if (to < *limit)
        v_store(s + *limit - VN, v_first_or(v_load(s + *limit - VN), to - (*limit - VN), none));
    if (h->segments) {
        const int32_t *seg = h->segments + b * h->S, own = seg[w->query[r]];
        for (int i = from; i < to; i++)
            if (seg[w->key + i] != own) s[i] = NONE;
    }
    clear_rest(w, s, *first, *limit);
}

static int vectors_of(int64_t n)
{
    return (int)((n + VN - 1) / VN);
}

/* out [rows, KEYS] = x [rows, P] · turned keys [D, KEYS]. */
static void score_tile(const shape *h, const window *w, const float *x, const float *turned,
                       float *out)
{
    const tile t = {.a = x,
                    .b = turned,
                    .c = out,
                    .m = w->rows,
                    .k = h->D,
                    .a_row = h->P,
                    .a_col = 1,
                    .b_row = KEYS,
                    .c_row = KEYS,
                    .vectors = vectors_of(w->keys)};
    tile_product(&t);
}

/* sum [rows, P] += p [rows, KEYS] · keys [.., P]. */
static void add_keys(const shape *h, const window *w, const float *p, const float *keys, float *sum)
{
    const tile t = {.a = p,
                    .b = keys,
                    .c = sum,
                    .m = w->rows,
                    .k = w->keys,
                    .a_row = KEYS,
                    .a_col = 1,
                    .b_row = h->P,
                    .c_row = h->P,
                    .vectors = vectors_of(h->P),
                    .add = true};
    tile_product(&t);
}

/* sum [keys, P] += pᵀ · x [rows, P]. */
static void add_rows(const shape *h, const window *w, const float *p, const float *x, float *sum)
{
    const tile t = {.a = p,
                    .b = x,
                    .c = sum,
                    .m = w->keys,
                    .k = w->rows,
                    .a_row = 1,
                    .a_col = KEYS,
                    .b_row = h->P,
                    .c_row = h->P,
                    .vectors = vectors_of(h->P),
                    .add = true};
    tile_product(&t);
}

/* ---- forward --------------------------------------------------------------------------------- */

typedef struct forward { /* one thread's scratch */
    float *keys, *values, *q, *s, *o, *most, *total;
    int64_t packed; /* which (batch, head) keys and values hold */
} forward;

static int64_t forward_floats(const shape *h)
{
    return h->blocks * h->D * KEYS + h->T * h->P + ROWS * (2 * h->P + KEYS + 2) + 16;
}

static forward forward_of(const shape *h, float *p)
{
    forward f = {.keys = p, .packed = -1};
    f.values = f.keys + h->blocks * h->D * KEYS;
    f.q = f.values + h->T * h->P;
    f.s = f.q + ROWS * h->P;
    f.o = f.s + ROWS * KEYS;
    f.most = f.o + ROWS * h->P;
    f.total = f.most + ROWS;
    return f;
}

/* Row r's scores become weights; its running maximum, total and sum follow. */
static void softmax_row(const shape *h, const window *w, int64_t b, int64_t r, forward *f)
{
    float *s = f->s + r * KEYS, *o = f->o + r * h->P;
    int first, limit;
    finish_scores(h, w, b, r, s, &first, &limit);
    vf top = v_set1(f->most[r]), bad = top, sum = v_zero();
    for (int i = first; i < limit; i += VN) {
        const vf x = v_load(s + i);
        top = v_hmax(x, top);
        bad = bad + x; /* NaN if any is; +inf among −inf also ends as NaN */
    }
    const bool nan = v_any(v_is_nan(bad));
    const float most = nan ? __builtin_nanf("") : v_max_of(top);
    if (most == NONE) {
        clear_rest(w, s, 0, 0);
        return;
    }
    const vf m = v_set1(most);
    for (int i = first; i < limit; i += VN) {
        const vf e = v_exp_flush(v_load(s + i) - m);
        sum = sum + e;
        v_store(s + i, e);
    }
    if (most != f->most[r]) {
        const float fade = expf(f->most[r] - most);
        for (int64_t i = 0; i < h->P; i += VN) v_store(o + i, v_load(o + i) * v_set1(fade));
        f->total[r] *= fade;
        f->most[r] = most;
    }
    f->total[r] += v_sum(sum);
}

static void forward_tile(const ts_cpu_call *c, const shape *h, int64_t b, int64_t k,
                         int64_t tile_index, forward *f)
{
    window w;
    window_open(h, &w, b, k, tile_index);
    memset(f->o, 0, (size_t)(ROWS * h->P) * 4);
    for (int64_t r = 0; r < w.rows; r++) {
        fetch(h, c->in[0], w.at[r + AHEAD < w.rows ? r + AHEAD : r]);
        pack_row(h, c->in[0], w.at[r], h->scale, f->q + r * h->P);
        f->most[r] = NONE, f->total[r] = 0;
    }
    for (int64_t block = 0; block < h->blocks; block++) {
        window_of(&w, block);
        if (w.keys == 0) continue;
        score_tile(h, &w, f->q, f->keys + block * h->D * KEYS, f->s);
        for (int64_t r = 0; r < w.rows; r++) softmax_row(h, &w, b, r, f);
        add_keys(h, &w, f->s, f->values + w.key * h->P, f->o);
    }
    for (int64_t r = 0; r < w.rows; r++) {
        const int64_t at = w.at[r];
        const bool seen = f->most[r] != NONE;
        unpack_row(h, c->out[0], at, seen ? 1.0f / f->total[r] : 1.0f, f->o + r * h->P);
        ((float *)c->out[1])[at / h->D] = seen ? f->most[r] + logf(f->total[r]) : NONE;
    }
}

/* Cost of the first n tiles of a head, in keys seen. */
static int64_t tile_cost(const shape *h, int64_t tile_index)
{
    int64_t from, to, first, last = (tile_index + 1) * ROWS;
    if (last > h->S * h->G) last = h->S * h->G;
    visible(h, tile_index * ROWS / h->G, &first, &to);
    visible(h, (last - 1) / h->G, &from, &to);
    return to - first + KEYS / 2;
}

static void run_forward(const ts_cpu_call *c)
{
    const shape h = shape_of(c->node, c->node->n_in > 3 ? c->in[3] : NULL);
    if (h.D == 0 || h.S * h.G * h.K * h.B == 0) return;
    int64_t total = 0;
    for (int64_t i = 0; i < h.tiles; i++) total += tile_cost(&h, i);
    total *= h.B * h.K;
    const size_t floats = ts_round_up((size_t)forward_floats(&h), 16);
    const int threads = ts__threads(total * ROWS, c->threads);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int t = 0; t < threads; t++) {
        forward f = forward_of(&h, (float *)c->scratch + floats * (size_t)t);
        int64_t done = 0;
        /* Thread t takes the tiles that begin in its share of the cost. */
        for (int64_t head = 0; head < h.B * h.K; head++)
            for (int64_t i = 0; i < h.tiles; i++) {
                const int64_t at = done;
                done += tile_cost(&h, i);
                if (at < total * t / threads || at >= total * (t + 1) / threads) continue;
                if (f.packed != head) {
                    pack_turned(&h, c->in[1], head / h.K, head % h.K, f.q, f.keys);
                    pack_keys(&h, c->in[2], head / h.K, head % h.K, f.values);
                    f.packed = head;
                }
                forward_tile(c, &h, head / h.K, head % h.K, i, &f);
            }
    }
}

/* ---- backward -------------------------------------------------------------------------------- */

enum { Q, KEY, V, O, LSE, DO, SEGMENTS }; /* operands of attention_grad */

typedef struct backward { /* one thread's scratch */
    float *turned_k, *turned_v, *k, *dk, *dv, *q, *go, *dq, *s, *ds, *lse, *delta;
} backward;

static int64_t backward_floats(const shape *h)
{
    return 2 * h->blocks * h->D * KEYS + 3 * h->T * h->P + ROWS * (3 * h->P + 2 * KEYS + 2) + 16;
}

static backward backward_of(const shape *h, float *p)
{
    const int64_t turned = h->blocks * h->D * KEYS, keys = h->T * h->P, rows = ROWS * h->P;
    backward f = {.turned_k = p};
    f.turned_v = f.turned_k + turned;
    f.k = f.turned_v + turned;
    f.dk = f.k + keys;
    f.dv = f.dk + keys;
    f.q = f.dv + keys;
    f.go = f.q + rows;
    f.dq = f.go + rows;
    f.s = f.dq + rows;
    f.ds = f.s + ROWS * KEYS;
    f.lse = f.ds + ROWS * KEYS;
    f.delta = f.lse + ROWS;
    return f;
}

/* s becomes p = exp(s − lse), ds (do·v so far) becomes p·(do·v − delta), through the cap. */
static void grad_row(const shape *h, const window *w, int64_t b, int64_t r, backward *f)
{
    float *s = f->s + r * KEYS, *ds = f->ds + r * KEYS;
    if (f->lse[r] == NONE) {
        clear_rest(w, s, 0, 0);
        clear_rest(w, ds, 0, 0);
        return;
    }
    int first, limit;
    finish_scores(h, w, b, r, s, &first, &limit);
    const vf lse = v_set1(f->lse[r]), delta = v_set1(f->delta[r]);
    const vf inverse_cap = v_set1(h->softcap > 0 ? 1.0f / h->softcap : 0.0f);
    for (int i = first; i < limit; i += VN) {
        const vf x = v_load(s + i), p = v_exp_flush(x - lse);
        vf d = p * (v_load(ds + i) - delta);
        if (h->softcap > 0) {
            const vf t = v_hmax(x * inverse_cap, v_set1(-1.0f)); /* −inf where masked: p is 0 */
            d = d * v_fnma(t, t, v_set1(1.0f));
        }
        v_store(s + i, p);
        v_store(ds + i, d);
    }
    clear_rest(w, ds, first, limit);
}

static float row_product(const shape *h, const float *a, const float *b)
{
    vf sum = v_zero();
    for (int64_t i = 0; i < h->P; i += VN) sum = v_fma(v_load(a + i), v_load(b + i), sum);
    return v_sum(sum);
}

static void grad_tile(const ts_cpu_call *c, const shape *h, int64_t b, int64_t k,
                      int64_t tile_index, backward *f)
{
    window w;
    window_open(h, &w, b, k, tile_index);
    for (int64_t r = 0; r < w.rows; r++) {
        const int64_t at = w.at[r], next = w.at[r + AHEAD < w.rows ? r + AHEAD : r];
        fetch(h, c->in[Q], next);
        fetch(h, c->in[DO], next);
        fetch(h, c->in[O], next);
        pack_row(h, c->in[Q], at, h->scale, f->q + r * h->P);
        pack_row(h, c->in[DO], at, 1.0f, f->go + r * h->P);
        pack_row(h, c->in[O], at, 1.0f, f->dq + r * h->P);
        f->delta[r] = row_product(h, f->go + r * h->P, f->dq + r * h->P);
        f->lse[r] = ((const float *)c->in[LSE])[at / h->D];
    }
    memset(f->dq, 0, (size_t)(w.rows * h->P) * 4);
    for (int64_t block = 0; block < h->blocks; block++) {
        window_of(&w, block);
        if (w.keys == 0) continue;
        score_tile(h, &w, f->q, f->turned_k + block * h->D * KEYS, f->s);
        score_tile(h, &w, f->go, f->turned_v + block * h->D * KEYS, f->ds);
        for (int64_t r = 0; r < w.rows; r++) grad_row(h, &w, b, r, f);
        add_rows(h, &w, f->s, f->go, f->dv + w.key * h->P);
        add_rows(h, &w, f->ds, f->q, f->dk + w.key * h->P);
        add_keys(h, &w, f->ds, f->k + w.key * h->P, f->dq);
    }
    for (int64_t r = 0; r < w.rows; r++)
        unpack_row(h, c->out[0], w.at[r], h->scale, f->dq + r * h->P);
}

/* Part `part` of `parts` of a head: every parts-th tile of rows, so that causal work is shared
 * evenly. dq is complete after it, f->dk and f->dv hold the part's share. */
static void grad_head(const ts_cpu_call *c, const shape *h, int64_t head, int64_t part,
                      int64_t parts, backward *f)
{
    const int64_t b = head / h->K, k = head % h->K;
    memset(f->dk, 0, (size_t)(2 * h->T * h->P) * 4);
    pack_turned(h, c->in[KEY], b, k, f->q, f->turned_k);
    pack_turned(h, c->in[V], b, k, f->q, f->turned_v);
    pack_keys(h, c->in[KEY], b, k, f->k);
    for (int64_t i = part; i < h->tiles; i += parts) grad_tile(c, h, b, k, i, f);
}

/* dk and dv of key t: the shares of all parts, added in order into the first's. */
static void store_key(const ts_cpu_call *c, const shape *h, int64_t head, int64_t t, int64_t parts,
                      size_t floats, const backward *f)
{
    const int64_t at = key_at(h, head / h->K, head % h->K, t);
    float *dk = f->dk + t * h->P, *dv = f->dv + t * h->P;
    for (int64_t p = 1; p < parts; p++)
        for (int64_t i = 0; i < h->P; i += VN) {
            v_store(dk + i, v_load(dk + i) + v_load(dk + floats * (size_t)p + i));
            v_store(dv + i, v_load(dv + i) + v_load(dv + floats * (size_t)p + i));
        }
    unpack_row(h, c->out[1], at, 1.0f, dk);
    unpack_row(h, c->out[2], at, 1.0f, dv);
}

/* Fewer heads than threads: each is cut into parts, and every part has scratch of its own. */
static void backward_parts(const ts_cpu_call *c, const shape *h, int64_t parts, size_t floats,
                           int threads)
{
    const int64_t heads = h->B * h->K;
    float *scratch = c->scratch;
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static, 1)
        for (int64_t u = 0; u < heads * parts; u++) {
            backward f = backward_of(h, scratch + floats * (size_t)u);
            grad_head(c, h, u / parts, u % parts, parts, &f);
        }
#pragma omp for
        for (int64_t u = 0; u < heads * h->T; u++) {
            const backward f = backward_of(h, scratch + floats * (size_t)(u / h->T * parts));
            store_key(c, h, u / h->T, u % h->T, parts, floats, &f);
        }
    }
}

static void run_backward(const ts_cpu_call *c)
{
    const shape h = shape_of(c->node, c->node->n_in > SEGMENTS ? c->in[SEGMENTS] : NULL);
    const size_t floats = ts_round_up((size_t)backward_floats(&h), 16);
    const int64_t heads = h.B * h.K;
    const int threads = ts__threads(heads * h.S * h.G * h.T, c->threads);
    if (h.D == 0 || heads == 0) return;
    const int64_t parts = threads / heads < h.tiles ? threads / heads : h.tiles;
    if (parts > 1) {
        backward_parts(c, &h, parts, floats, threads);
        return;
    }
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        backward f = backward_of(&h, (float *)c->scratch + floats * (size_t)omp_get_thread_num());
#pragma omp for schedule(dynamic)
        for (int64_t head = 0; head < heads; head++) {
            grad_head(c, &h, head, 0, 1, &f);
            for (int64_t t = 0; t < h.T; t++) store_key(c, &h, head, t, 1, floats, &f);
        }
    }
}

/* ---- choosing -------------------------------------------------------------------------------- */

/* Products of all rows and keys: half of them where causal. */
static ts_status prepare(const ts_node *n, int threads, ts_cpu_prepared *out, ts_error *err,
                         bool grad)
{
    const shape h = shape_of(n, NULL);
    size_t bytes;
    const int64_t floats = grad ? backward_floats(&h) : forward_floats(&h);
    if (ts_mul_size(ts_round_up((size_t)floats, 16) * sizeof(float), (size_t)threads, &bytes))
        return TS_ERROR(err, TS_RESOURCE_EXHAUSTED,
                        "attention over %lld keys needs more scratch than can be addressed",
                        (long long)h.T);
    out->scratch_bytes = bytes;
    out->flops = (grad ? 10.0 : 4.0) * (double)(h.B * h.K * h.G * h.D) * (double)h.S * (double)h.T *
                 (h.causal && h.S == h.T ? 0.5 : 1.0);
    out->bytes = ts__node_bytes(n);
    return TS_OK;
}

static ts_status prepare_forward(const ts_node *n, int threads, ts_cpu_prepared *out, ts_error *err)
{
    return prepare(n, threads, out, err, false);
}

static ts_status prepare_backward(const ts_node *n, int threads, ts_cpu_prepared *out,
                                  ts_error *err)
{
    return prepare(n, threads, out, err, true);
}

static const ts_cpu_kernel forward_kernel = {"ts_cpu_attention_" ISA_TEXT, prepare_forward,
                                             run_forward, NULL, 0};
static const ts_cpu_kernel backward_kernel = {"ts_cpu_attention_grad_" ISA_TEXT, prepare_backward,
                                              run_backward, NULL, 0};

const ts_cpu_kernel *ISA(ts__pick_attention)(const ts_node *n)
{
    return n->op == TS_OP_attention        ? &forward_kernel
           : n->op == TS_OP_attention_grad ? &backward_kernel
                                           : NULL;
}
