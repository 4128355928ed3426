/* tests/unit/test_grouped.c – mixture of experts and the split cross-entropy, as they are used.
 *
 * Only routed rows are computed: the kernel's own count of operations is Σ round_up(assignments, 8)
 * rows and no more, and NaN in the rows of no expert reaches nothing. A layer of experts, gates
 * included, is a weighted sum of dense products, with nothing dropped however uneven the experts
 * are. A vocabulary in two halves, put together by rescale and finish, gives linear_xent and its
 * gradient.
 * Not here: the ops one by one (tests/op), fast against plain kernels (test_kernels.c).
 */
#include "engine_help.h"

#include <math.h>

#include "cpu/fast.h"
#include "ir/builder.h"

#define D(n)                                                                                       \
    {                                                                                              \
        NULL, (n)                                                                                  \
    }

/* ---- only routed rows ------------------------------------------------------------------------ */

enum { T = 150, K = 2, X = 7, F = 40, E = 24, R = T * K + X * TS_EXPERT_ALIGN };

/* How ids are spread: evenly, all to one expert, two experts only, some dropped. */
enum { EVEN, ONE, TWO, DROPPED, SPREADS };

static void route(int spread, int32_t *ids)
{
    for (int i = 0; i < T * K; i++) {
        const int32_t h = (int32_t)(help_hash((uint32_t)i) % X);
        ids[i] = spread == EVEN ? h : spread == ONE ? 4 : spread == TWO ? (h & 1) * 6 : h - 2;
    }
}

typedef struct routed {
    int32_t ids[T * K], token[R], assignment[R], offsets[X + 1];
    int64_t rows; /* Σ round_up(assignments, 8) */
} routed;

/* Orders ids by the plain kernel, and checks: nothing lost, nothing twice, stable. */
static void order(const ts_node *n, int spread, routed *o)
{
    int64_t seen = 0, kept = 0;
    route(spread, o->ids);
    const ts_cpu_call c = {
        n, &(void *){o->ids}, (void *[]){o->token, o->assignment, o->offsets}, NULL, NULL, 2};
    ts_cpu_ref[TS_OP_expert_rows].run(&c);
    for (int i = 0; i < T * K; i++) kept += o->ids[i] >= 0 && o->ids[i] < X;
    o->rows = 0;
    for (int e = 0; e < X; e++) {
        int32_t last = -1, n_mine = 0;
        assert_int_equal(o->offsets[e] % TS_EXPERT_ALIGN, 0);
        for (int r = o->offsets[e]; r < o->offsets[e + 1]; r++) {
            if (o->token[r] < 0) continue;
            assert_int_equal(r, o->offsets[e] + n_mine); /* used rows come first */
            assert_int_equal(o->ids[o->assignment[r]], e);
            assert_int_equal(o->token[r], o->assignment[r] / K);
            assert_true(o->assignment[r] > last);
            last = o->assignment[r];
            n_mine++;
        }
        seen += n_mine;
        o->rows += (int64_t)ts_round_up((size_t)n_mine, TS_EXPERT_ALIGN);
    }
    assert_int_equal(seen, kept);
    assert_int_equal(o->offsets[X], o->rows);
}

static size_t bytes_of(const ts_value *v)
{
    return ts_type_bytes(&v->type);
}

/* Random, but NaN where a row belongs to no expert. */
static void *rows_with_nan(const ts_value *v, const routed *o, uint32_t seed)
{
    char *p = ts_alloc(bytes_of(v));
    const size_t row = bytes_of(v) / R;
    assert_non_null(p);
    help_fill(p, &v->type, seed);
    memset(p + (size_t)o->offsets[X] * row, 0xff, (size_t)(R - o->offsets[X]) * row);
    return p;
}

static bool all_finite(const ts_value *v, const void *p)
{
    for (int64_t i = 0; i < ts_type_elements(&v->type); i++)
        if (!isfinite(v->type.dtype == TS_F32 ? ((const float *)p)[i]
                                              : ts_bf16_to_f32(((const uint16_t *)p)[i])))
            return false;
    return true;
}

/* Two runs of the kernel for n at isa: operations are counted exactly, results are finite and the
 * same bits, and nothing is allocated. */
static void count_run(const ts_node *n, ts_isa isa, const routed *o, void *const *in)
{
    const ts_cpu_kernel *k = ts_cpu_fast(n, isa);
    ts_cpu_prepared p = {0};
    ts_error err = {0};
    void *out[2][2] = {{NULL}};
    assert_non_null(k);
    if (k->prepare(n, 2, &p, &err) != TS_OK) fail_msg("%s", err.msg);
    void *scratch = ts_alloc(p.scratch_bytes);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < n->n_out; i++) {
            out[round][i] = ts_alloc(bytes_of(n->out[i]));
            memset(out[round][i], 0xff, bytes_of(n->out[i]));
        }
        const uint64_t before = ts_alloc_count();
        k->run(&(ts_cpu_call){n, in, out[round], scratch, p.state, 2});
        assert_int_equal(ts_alloc_count(), before);
        const double each = (n->n_in == 4 ? 4.0 : 2.0) * F * E;
        if (ts__grouped_flops(p.state) != each * (double)o->rows)
            fail_msg("%s computed %g rows of %d; %lld are routed", k->name,
                     ts__grouped_flops(p.state) / each, R, (long long)o->rows);
    }
    for (int i = 0; i < n->n_out; i++) {
        if (!all_finite(n->out[i], out[0][i])) fail_msg("%s read a row of no expert", k->name);
        assert_memory_equal(out[0][i], out[1][i], bytes_of(n->out[i]));
        ts_free(out[0][i]);
        ts_free(out[1][i]);
    }
    k->release(p.state);
    ts_free(scratch);
}

static void only_routed_rows_are_computed(void **state)
{
    static routed o;
    (void)state;
    if (ts_isa_detect() < TS_ISA_AVX2) {
        print_message("SKIP: this machine has no AVX2, so no fast kernels\n");
        skip();
    }
    for (int half = 0; half < 2; half++) {
        const ts_dtype t = half ? TS_BF16 : TS_F32;
        ts_builder *b = ts_builder_new("routed");
        ts_value *ids = ts_input(b, "ids", TS_I32, TS_DIMS(D(T), D(K))), *token, *assignment, *v[4];
        v[0] = ts_input(b, "x", t, TS_DIMS(D(R), D(E)));
        v[1] = ts_input(b, "w", t, TS_DIMS(D(X), D(F), D(E)));
        ts_expert_rows(b, ids, X, &token, &assignment, &v[2]);
        v[3] = ts_grouped_dot(b, v[0], v[1], v[2]);
        const ts_node *grad = ts__op_n(b, TS_OP_grouped_dot_grad, v, 4, NULL);
        assert_non_null(grad);
        void *w = ts_alloc(bytes_of(v[1]));
        help_fill(w, &v[1]->type, 2);
        for (int spread = 0; spread < SPREADS; spread++) {
            order(token->node, spread, &o);
            void *x = rows_with_nan(v[0], &o, 1), *dy = rows_with_nan(v[3], &o, 3);
            void *const in[4] = {x, w, o.offsets, dy};
            for (ts_isa isa = TS_ISA_AVX2; isa <= ts_isa_detect(); isa++) {
                count_run(v[3]->node, isa, &o, in);
                count_run(grad, isa, &o, in);
            }
            ts_free(x);
            ts_free(dy);
        }
        ts_free(w);
        ts_builder_free(b);
    }
}

/* ---- a layer of experts ---------------------------------------------------------------------- */

/* y[t] = Σ_j gate[t,j] · w[ids[t,j]]·x[t], as a model writes it. */
static void experts_are_a_weighted_sum(void **state)
{
    static int32_t ids[T * K];
    static float x[T * E], w[X * F * E], gate[T * K];
    (void)state;
    ts_builder *b = ts_builder_new("experts");
    ts_value *vx = ts_input(b, "x", TS_F32, TS_DIMS(D(T), D(E))), *token, *assignment, *offsets;
    ts_value *vw = ts_input(b, "w", TS_F32, TS_DIMS(D(X), D(F), D(E)));
    ts_value *vids = ts_input(b, "ids", TS_I32, TS_DIMS(D(T), D(K)));
    ts_value *vgate = ts_input(b, "gate", TS_F32, TS_DIMS(D(T), D(K)));
    ts_expert_rows(b, vids, X, &token, &assignment, &offsets);
    ts_value *y = ts_grouped_dot(b, ts_take(b, vx, token, -1), vw, offsets); /* [R,F] */
    ts_value *g = ts_take(b, ts_reshape(b, vgate, TS_DIMS(D(T * K))), assignment, -1);
    y = ts_mul(b, y, ts_broadcast(b, g, y->type.dim, 2, TS_INTS(0)));
    ts_output(b, "y", ts_scatter_add(b, token, y, (ts_dim)D(T), -1), NULL);
    ts_graph *graph = help_finish(b);
    ts_engine *e = help_engine(NULL, 2);
    help_fill(x, &vx->type, 1);
    help_fill(w, &vw->type, 2);
    help_fill(gate, &vgate->type, 3);
    for (int spread = 0; spread < SPREADS; spread++) {
        route(spread, ids);
        help_run run = help_execute(e, graph, true, (const void *[]){x, w, ids, gate}, 0);
        for (int i = 0; i < T * F; i++) {
            double want = 0;
            for (int j = 0; j < K; j++) {
                const int at = i / F * K + j;
                if (ids[at] < 0 || ids[at] >= X) continue;
                for (int k = 0; k < E; k++)
                    want += (double)gate[at] * (double)x[i / F * E + k] *
                            (double)w[(ids[at] * F + i % F) * E + k];
            }
            const double got = (double)((const float *)run.out[0])[i];
            if (fabs(got - want) > 1e-5) fail_msg("element %d is %g, expected %g", i, got, want);
        }
        help_run_free(&run);
    }
    ts_engine_close(e);
    ts_graph_free(graph);
}

/* ---- a vocabulary in halves ------------------------------------------------------------------ */

enum { TOKENS = 40, WIDTH = 16, CLASSES = 301, FIRST = 140 };

/* Classes [begin, end) as a device has them: its rows of w, and labels from 0. */
typedef struct shard {
    ts_value *w, *labels, *part[3];
} shard;

static shard shard_of(ts_builder *b, ts_value *x, ts_value *w, ts_value *labels, int64_t begin,
                      int64_t end, double cap)
{
    shard s;
    s.w = ts_slice(b, w, 0, begin, end);
    s.labels = ts_sub(b, labels, ts_scalar(b, (double)begin, TS_I32));
    ts_xent_rows(b, x, s.w, s.labels, cap, 0, s.part);
    return s;
}

/* Outputs: loss, lse, dx, dw of the whole, then of the halves put together. */
static ts_graph *halves(double cap)
{
    ts_builder *b = ts_builder_new("halves");
    ts_value *x = ts_input(b, "x", TS_F32, TS_DIMS(D(TOKENS), D(WIDTH)));
    ts_value *w = ts_input(b, "w", TS_F32, TS_DIMS(D(CLASSES), D(WIDTH)));
    ts_value *labels = ts_input(b, "labels", TS_I32, TS_DIMS(D(TOKENS)));
    ts_value *dloss = ts_input(b, "dloss", TS_F32, TS_DIMS(D(TOKENS)));
    ts_value *dlse = ts_input(b, "dlse", TS_F32, TS_DIMS(D(TOKENS)));
    const ts_attr attr = {.xent = {0, cap}};
    ts_value *lse, *loss = ts_linear_xent(b, x, w, labels, cap, 0, &lse), *dx[2], *dw[2];
    ts_value *in[6] = {x, w, labels, lse, dloss, dlse};
    const ts_node *whole = ts__op_n(b, TS_OP_linear_xent_grad, in, 6, &attr);
    assert_non_null(whole);
    ts_output(b, "loss", loss, NULL);
    ts_output(b, "lse", lse, NULL);
    ts_output(b, "dx", whole->out[0], NULL);
    ts_output(b, "dw", whole->out[1], NULL);

    shard s[2] = {shard_of(b, x, w, labels, 0, FIRST, cap),
                  shard_of(b, x, w, labels, FIRST, CLASSES, cap)};
    ts_value *all[3] = {ts_max(b, s[0].part[0], s[1].part[0])};
    all[1] =
        ts_add(b, ts__xent_rescale(b, s[0].part, all[0]), ts__xent_rescale(b, s[1].part, all[0]));
    all[2] = ts_add(b, s[0].part[2], s[1].part[2]);
    ts__xent_finish(b, all, labels, CLASSES, &loss, &lse);
    for (int i = 0; i < 2; i++) {
        ts_value *mine =
            ts__xent_shard_dlse(b, labels, CLASSES, s[i].labels, ts_dim_of(s[i].w, 0), dloss, dlse);
        ts_value *of[6] = {x, s[i].w, s[i].labels, lse, dloss, mine};
        const ts_node *n = ts__op_n(b, TS_OP_linear_xent_grad, of, 6, &attr);
        assert_non_null(n);
        dx[i] = n->out[0], dw[i] = n->out[1];
    }
    ts_output(b, "loss2", loss, NULL);
    ts_output(b, "lse2", lse, NULL);
    ts_output(b, "dx2", ts_add(b, dx[0], dx[1]), NULL);
    ts_output(b, "dw2", ts_concat(b, dw, 2, 0), NULL);
    return help_finish(b);
}

static void halves_of_a_vocabulary_are_the_whole(void **state)
{
    int32_t labels[TOKENS];
    (void)state;
    for (int i = 0; i < TOKENS; i++) labels[i] = (i * 53) % (CLASSES + 30) - 10;
    labels[0] = FIRST - 1, labels[1] = FIRST, labels[2] = CLASSES - 1, labels[3] = CLASSES;
    for (ts_isa isa = TS_ISA_REF; isa <= ts_isa_detect(); isa++)
        for (int cap = 0; cap < 2; cap++) {
            ts_graph *g = halves(cap ? 2.5 : 0);
            ts_engine *e = help_engine(ts_isa_name(isa), 2);
            help_run run =
                help_execute(e, g, true, (const void *[]){NULL, NULL, labels, NULL, NULL}, 5);
            for (int k = 0; k < 4; k++)
                for (size_t i = 0; i < run.bytes[k] / 4; i++) {
                    const float want = ((const float *)run.out[k])[i];
                    const float got = ((const float *)run.out[k + 4])[i];
                    if (fabsf(got - want) <= 4e-6f * (1 + fabsf(want))) continue;
                    fail_msg("%s[%zu] at %s is %.9g in halves, %.9g whole", g->output[k].name, i,
                             ts_isa_name(isa), (double)got, (double)want);
                }
            assert_true(((const float *)run.out[4])[3] == 0); /* no class has this label */
            help_run_free(&run);
            ts_engine_close(e);
            ts_graph_free(g);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_routed_rows_are_computed),
        cmocka_unit_test(experts_are_a_weighted_sum),
        cmocka_unit_test(halves_of_a_vocabulary_are_the_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
