/* test_engine_random.c – random graphs on the CPU engine: with shared memory, in-place kernels and
 * removed copies the bits must be those of a run in which every value has memory of its own.
 *
 * All values of a pool are f32 [4,300] (longer than the blocks in which kernels read before they
 * write); a recipe makes another from some of them by elementwise ops, views and their opposites,
 * products, updates, collectives on a mesh of 2 × 2 devices or a repeat whose body is made by the same recipes.
 * TESSERA_SLOW=1 runs four times as many. A failure prints the seed, the graph and the plan.
 */
#include "engine_help.h"

#include <stdlib.h>

#include "ir/builder.h"

enum { ROWS = 4, COLUMNS = 300, POOL = 40, GRAPHS = 300, MESHES = 150 };

#define D(n)                                                                                       \
    {                                                                                              \
        NULL, (n)                                                                                  \
    }
#define SHAPE TS_DIMS(D(ROWS), D(COLUMNS))

typedef struct maker {
    ts_builder *b;
    uint32_t state;
    ts_value *pool[POOL];
    int n, depth;
    bool mesh;
} maker;

static int pick(maker *m, int n)
{
    m->state = m->state * 1664525u + 1013904223u;
    return (int)((m->state >> 8) % (uint32_t)n);
}

/* Recent values more often than old ones, so that chains form and values die. */
static ts_value *any(maker *m)
{
    int i = pick(m, 3) ? m->n - 1 - pick(m, m->n < 4 ? m->n : 4) : pick(m, m->n);
    return m->pool[i];
}

static void keep(maker *m, ts_value *v)
{
    if (m->n < POOL)
        m->pool[m->n++] = v;
    else
        m->pool[pick(m, POOL)] = v;
}

static ts_value *elementwise(maker *m)
{
    ts_builder *b = m->b;
    ts_value *x = any(m), *y = any(m), *z = any(m);
    switch (pick(m, 10)) {
    case 0: return ts_neg(b, x);
    case 1: return ts_tanh(b, x);
    case 2: return ts_add(b, x, y);
    case 3: return ts_sub(b, x, y);
    case 4: return ts_max(b, x, y);
    case 5: return ts_tanh(b, ts_mul(b, x, y));
    case 6: return ts_select(b, ts_compare(b, TS_LT, x, y), y, z);
    case 7: return ts_add_n(b, (ts_value *[]){x, y, z}, 3);
    case 8: return ts_convert(b, ts_convert(b, x, TS_BF16), TS_F32);
    default: return ts_gated(b, TS_SILU, x, y);
    }
}

static ts_value *rows(maker *m, ts_value *x)
{
    int at = pick(m, ROWS);
    return ts_slice(m->b, x, 0, at, at + 1);
}

static ts_value *shapes(maker *m)
{
    ts_builder *b = m->b;
    ts_value *x = any(m), *y = any(m), *out[2];
    ts_value *flat, *head, *tail;
    switch (pick(m, 9)) {
    case 0: return ts_reshape(b, ts_transpose(b, x, TS_INTS(1, 0)), SHAPE);
    case 1:
        flat = ts_reshape(b, x, TS_DIMS(D(ROWS * COLUMNS)));
        return ts_reshape(b, ts_neg(b, flat), SHAPE);
    case 2:
        return ts_broadcast(b, ts_reshape(b, rows(m, x), TS_DIMS(D(COLUMNS))), SHAPE, TS_INTS(1));
    case 3:
        return ts_concat(b, (ts_value *[]){ts_slice(b, x, 0, 1, 3), ts_slice(b, y, 0, 0, 2)}, 2, 0);
    case 4:
        return ts_concat(b, (ts_value *[]){ts_slice(b, x, 1, 2, COLUMNS), ts_slice(b, y, 1, 0, 2)},
                         2, 1);
    case 5: return ts_dynamic_update(b, x, rows(m, y), ts_scalar(b, pick(m, ROWS), TS_I32), 0);
    case 6: ts_barrier(b, (ts_value *[]){x, y}, 2, out); return ts_sub(b, out[0], out[1]);
    case 7: /* overlapping views of one value */
        flat = ts_reshape(b, x, TS_DIMS(D(ROWS * COLUMNS)));
        head = ts_slice(b, flat, 0, 0, 2 * COLUMNS);
        tail = ts_slice(b, flat, 0, COLUMNS, 3 * COLUMNS);
        return ts_reshape(b, ts_concat(b, (ts_value *[]){ts_add(b, tail, head), head}, 2, 0),
                          SHAPE);
    default: return ts_pad(b, ts_slice(b, x, 0, 1, 4), 0, 1, 0, 0.5);
    }
}

static ts_value *products(maker *m)
{
    ts_builder *b = m->b;
    ts_value *x = any(m), *y = any(m), *s;
    ts_dot_dims d = {.n_contract = 1, .x_contract = {1}, .y_contract = {1}};
    switch (pick(m, 4)) {
    case 0: /* tanh(tanh(x·yᵀ)·y) */
        s = ts_tanh(b, ts_dot(b, x, y, &d, TS_F32));
        d.y_contract[0] = 0;
        return ts_tanh(b, ts_dot(b, s, y, &d, TS_F32));
    case 1: return ts_broadcast(b, ts_tanh(b, ts_reduce_sum(b, x, TS_INTS(1))), SHAPE, TS_INTS(0));
    case 2: return ts_rms_norm(b, x, ts_reshape(b, rows(m, y), TS_DIMS(D(COLUMNS))), 1e-3);
    default: return ts_mul(b, x, ts_reshape(b, ts_slice(b, rows(m, x), 1, 3, 4), TS_SCALAR));
    }
}

static ts_value *over(maker *m, ts_op op, ts_value *x, int dim, int dim2)
{
    const char *const axis[] = {"a", "b"};
    ts_attr a = {.collective = {.axis = axis[pick(m, 2)], .n = 2, .dim = dim, .dim2 = dim2}};
    if (op == TS_OP_all_reduce) a.collective.reduce = pick(m, 2);
    a.collective.shift = pick(m, 3) - 1;
    return ts__op(m->b, op, &x, op == TS_OP_axis_index ? 0 : 1, &a);
}

static ts_value *collective(maker *m)
{
    ts_builder *b = m->b;
    ts_value *x = any(m), *y;
    const int dim = pick(m, 2);
    switch (pick(m, 6)) {
    case 0: return ts_tanh(b, over(m, TS_OP_all_reduce, x, 0, 0));
    case 1: return over(m, TS_OP_collective_permute, x, 0, 0);
    case 2:
        return over(m, TS_OP_all_gather, ts_tanh(b, over(m, TS_OP_reduce_scatter, x, dim, 0)), dim,
                    0);
    case 3: /* an operand of two axes, gathered where it stands */
        y = over(m, TS_OP_all_gather, x, dim, 0);
        return ts_slice(b, y, dim, 1, 1 + ts_dim_of(x, dim));
    case 4: return over(m, TS_OP_all_to_all, over(m, TS_OP_all_to_all, x, dim, !dim), !dim, dim);
    default:
        y = ts_convert(b, over(m, TS_OP_axis_index, x, 0, 0), TS_F32);
        return ts_add(b, x, ts_broadcast(b, y, SHAPE, NULL, 0));
    }
}

static void step(maker *m);

/* A repeat of n: carries and xs from the pool, a body of recipes, stacked and summed results. */
static ts_value *loop(maker *m)
{
    ts_builder *b = m->b;
    int64_t n = 1 + pick(m, 3);
    int n_carry = 1 + pick(m, 3), n_xs = pick(m, 2), n_ys = pick(m, 4), before = m->n;
    ts_value *carry[3], *arg[3], *xs = NULL, *x = NULL, *next[3], *ys[3], *out[6], *saved[POOL];
    bool accumulate[3];
    memcpy(saved, m->pool, sizeof saved);
    for (int k = 0; k < n_carry; k++) carry[k] = any(m);
    if (n_xs) {
        ts_value *part[3];
        for (int k = 0; k < n; k++)
            part[k] = ts_reshape(b, any(m), TS_DIMS(D(1), D(ROWS), D(COLUMNS)));
        xs = ts_concat(b, part, (int)n, 0);
    }
    ts_repeat *r = ts_repeat_begin(b, n, pick(m, 2), carry, n_carry, &xs, n_xs, arg, &x);
    m->depth++;
    for (int k = 0; k < n_carry; k++) keep(m, arg[k]);
    if (n_xs) keep(m, x);
    for (int k = 2 + pick(m, 8); k > 0; k--) step(m);
    for (int k = 0; k < n_carry; k++) next[k] = any(m);
    for (int k = 0; k < n_ys; k++) {
        ys[k] = any(m);
        accumulate[k] = pick(m, 2);
    }
    m->depth--;
    ts_repeat_end(b, r, next, ys, accumulate, n_ys, out);
    memcpy(m->pool, saved, sizeof saved);
    m->n = before;
    for (int k = 0; k < n_ys; k++) {
        ts_value *v = out[n_carry + k];
        if (!accumulate[k]) {
            int at = pick(m, (int)n);
            v = pick(m, 2) ? ts_reduce_sum(b, v, TS_INTS(0))
                           : ts_reshape(b, ts_slice(b, v, 0, at, at + 1), SHAPE);
        }
        keep(m, ts_tanh(b, v));
    }
    for (int k = 1; k < n_carry; k++) keep(m, out[k]);
    return out[0];
}

static void step(maker *m)
{
    int kind = pick(m, m->mesh ? 16 : 12);
    ts_value *v = kind < 6                     ? elementwise(m)
                  : kind < 9                   ? shapes(m)
                  : kind >= 12                 ? collective(m)
                  : kind < 11 || m->depth == 3 ? products(m)
                                               : loop(m);
    keep(m, v);
}

static ts_graph *random_graph(uint32_t seed, bool mesh)
{
    maker m = {.b = ts_builder_new("random"), .state = help_hash(seed), .mesh = mesh};
    ts_value *in[4];
    for (int k = 0; k < 4; k++) {
        in[k] = ts_input(m.b, (char[]){(char)('p' + k), 0}, TS_F32, SHAPE);
        keep(&m, in[k]);
    }
    if (pick(&m, 2)) keep(&m, ts_constant(m.b, 0.25, TS_F32, SHAPE));
    for (int k = 4 + pick(&m, 25); k > 0; k--) step(&m);
    int turn = pick(&m, 4);
    for (int k = 0; k < 6; k++) {
        bool donate = k < 4 && pick(&m, 2);
        ts_output(m.b, (char[]){(char)('a' + k), 0}, any(&m), donate ? in[(k + turn) % 4] : NULL);
    }
    ts_graph *g = help_finish(m.b);
    for (; mesh && g->n_axis < 2; g->n_axis++) {
        g->axis[g->n_axis].name = g->n_axis ? "b" : "a";
        g->axis[g->n_axis].size = 2;
    }
    return g;
}

static void shared_equals_plain(const char *isa, bool mesh)
{
    ts_engine *e = help_engine_of(isa, 1, mesh ? 4 : 1);
    int graphs = (mesh ? MESHES : GRAPHS) * (getenv("TESSERA_SLOW") ? 4 : 1);
    size_t temporary[2] = {0, 0};
    for (int seed = 1; seed <= graphs; seed++) {
        ts_graph *g = random_graph((uint32_t)seed, mesh);
        help_run r = help_compare(e, g, NULL, (uint32_t)seed),
                 plain = help_execute(e, g, false, NULL, (uint32_t)seed);
        temporary[0] += plain.stats.memory.temporary;
        temporary[1] += r.stats.memory.temporary;
        help_run_free(&r);
        help_run_free(&plain);
        ts_graph_free(g);
    }
    ts_engine_close(e);
    print_message("%s%s: %d graphs, temporaries %zu bytes apart, %zu shared\n", isa ? isa : "fast",
                  mesh ? ", four devices" : "", graphs, temporary[0], temporary[1]);
    assert_true(temporary[1] < temporary[0] / 2);
}

static void reference_kernels(void **unused)
{
    (void)unused;
    shared_equals_plain("ref", false);
}

static void fast_kernels(void **unused)
{
    (void)unused;
    shared_equals_plain(NULL, false);
}

static void four_devices(void **unused)
{
    (void)unused;
    shared_equals_plain(NULL, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(reference_kernels),
                                       cmocka_unit_test(fast_kernels),
                                       cmocka_unit_test(four_devices)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
