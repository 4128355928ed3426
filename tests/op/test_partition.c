/* tests/op/test_partition.c – every op under every legal assignment of a 2×2 mesh equals the
 * unpartitioned op.
 *
 * A line of cases_mesh.def is one graph. Both mesh axes are given to its factors in every legal
 * way; operands lie at random, floats also as partial sums; the program that the partitioner makes
 * runs on four virtual devices, its results are put together again and compared with one device's:
 * integers exactly, floats to 1e-5 of the largest. How many assignments there must be follows from
 * the line, not from the op's row, so a row that gives up and says WHOLE fails; what the result's
 * layout must be follows from the assignment. Then layouts to layouts on a 2×2×2 mesh, and mistakes
 * that are planted: a WHOLE that passes, a range that is no range, a mask or a sum that is left
 * out.
 *
 * TESSERA_CASE=word takes only the lines whose text contains it; TESSERA_DRAWS=n lays operands out
 * n times.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "lockstep.h"
#include "slow.h"

/* ---- one graph ------------------------------------------------------------------------------- */

static ts_engine *one, *four;
static ts_mesh square; /* 2 × 2 */

/* A line's graph with inputs and what one device makes of them. */
typedef struct subject {
    const mesh_line *line;
    ts_graph *g;
    ts_node *node;
    ts_factors f;
    double *in[TEST_INPUTS], *want[TEST_ARRAYS];
    test_random random;
} subject;

static ts_node *find_node(const ts_region *r, ts_op op)
{
    for (ts_node *n = r->first; n; n = n->next) {
        if (n->op == op) return n;
        ts_node *inner = n->body ? find_node(n->body, op) : NULL;
        if (inner) return inner;
    }
    return NULL;
}

static ts_dtype dtype_of(const test_case *c)
{
    static const ts_dtype order[] = {TS_F32, TS_I32, TS_U32, TS_PRED};
    const unsigned can = test_case_dtypes(c);
    for (int i = 0; i < 4; i++)
        if (can >> order[i] & 1) return order[i];
    fail_msg("%s: no dtype", c->text);
    return TS_F32;
}

static double *array(const ts_value *v)
{
    double *x = calloc((size_t)ts_type_elements(&v->type) + 1, sizeof *x);
    assert_non_null(x);
    return x;
}

static void subject_open(subject *s, const mesh_line *line)
{
    test_case c = line->c;
    ts_error err = {0};
    c.build = line->build;
    *s = (subject){.line = line};
    for (const char *t = c.text; *t; t++) s->random.state = s->random.state * 31 + (uint8_t)*t;
    s->g = test_graph(&c, dtype_of(&c), false, TS_REMAT_NONE, &err);
    if (!s->g) fail_msg("%s: %s", c.text, err.msg);
    s->node = find_node(s->g->top, line->node);
    assert_non_null(s->node);
    if (ts__factors(s->node, &s->f, &err) != TS_OK) fail_msg("%s: %s", c.text, err.msg);
    for (int i = 0; i < s->g->top->n_arg; i++) {
        s->in[i] = array(s->g->top->arg[i]);
        test_lockstep_fill(&c.in[i], &s->g->top->arg[i]->type, &s->random, s->in[i]);
    }
    for (int i = 0; i < s->g->top->n_result; i++) s->want[i] = array(s->g->top->result[i]);
    if (test_execute(one, s->g, s->in, s->want, &err) != TS_OK) fail_msg("%s: %s", c.text, err.msg);
}

static void subject_close(subject *s)
{
    for (int i = 0; i < s->g->top->n_arg; i++) free(s->in[i]);
    for (int i = 0; i < s->g->top->n_result; i++) free(s->want[i]);
    ts_graph_free(s->g);
}

/* ---- one trial ------------------------------------------------------------------------------- */

typedef struct trial {
    const ts_assignment *force;
    const ts_factors *row;       /* NULL: the op's own */
    const ts_spec *in;           /* NULL: at random */
    bool widen_off, sum;         /* sum: outputs are not left partial */
    void (*change)(ts_graph *g); /* plants a mistake in the partitioned program */
    bool passed;                 /* a partial sum went through */
} trial;

/* What the op's results must look like, from the assignment alone. */
static void check_layout(const subject *s, const trial *t, const ts_partition *p)
{
    const ts_factors *f = &s->f;
    for (int i = 0; i < s->node->n_out; i++) {
        const ts_value *v = s->node->out[i];
        int result = 0;
        while (result < s->g->top->n_result && s->g->top->result[result] != v) result++;
        if (result == s->g->top->n_result) continue;
        ts_spec want = ts_spec_whole(v->type.rank);
        for (int k = 0; k < f->nf; k++) {
            bool has = false;
            for (int d = 0; d < v->type.rank; d++)
                if (ts__factors_out(f, i)[d][0] == k) {
                    has = true;
                    want.n[d] = t->force->n[k];
                    memcpy(want.axis[d], t->force->axis[k], t->force->n[k]);
                }
            const bool inside = s->node->op == TS_OP_linear_xent && f->kind[k] == TS_FACTOR_RANGE;
            for (int j = 0; !has && !inside && j < t->force->n[k]; j++)
                want.partial |= (uint16_t)(1u << t->force->axis[k][j]);
        }
        char got[96], expected[96];
        if (!ts_spec_same(&p->out[result], &want))
            fail_msg("%s: result %d is %s, expected %s", s->line->c.text, i,
                     ts_spec_text(&p->mesh, &p->out[result], got, sizeof got),
                     ts_spec_text(&p->mesh, &want, expected, sizeof expected));
    }
}

/* The largest error of the program's outputs on e's devices; infinite where copies differ. */
static double run(const subject *s, ts_engine *e, const ts_partition *p, const ts_spec *spec,
                  test_random *random)
{
    const ts_region *top = s->g->top;
    const int devices = p->mesh.devices, n_in = top->n_arg, n_out = top->n_result;
    double *in[TEST_DEVICES * TEST_ARRAYS] = {NULL}, *out[TEST_DEVICES * TEST_ARRAYS] = {NULL},
                              worst = 0;
    ts_error err = {0};
    for (int i = 0; i < n_in; i++) {
        double *shard[TEST_DEVICES];
        test_spread(random, &p->mesh, &spec[i], &top->arg[i]->type, s->in[i], shard);
        for (int d = 0; d < devices; d++) in[d * n_in + i] = shard[d];
    }
    for (int k = 0; k < devices * n_out; k++) out[k] = array(p->graph->top->result[k % n_out]);
    if (test_execute_on(e, p->graph, devices, in, out, &err) != TS_OK)
        fail_msg("%s: %s", s->line->c.text, err.msg);
    for (int i = 0; i < n_out; i++) {
        const ts_type *type = &top->result[i]->type;
        double *shard[TEST_DEVICES], *whole = array(top->result[i]);
        int64_t at;
        for (int d = 0; d < devices; d++) shard[d] = out[d * n_out + i];
        if (!test_assemble(&p->mesh, &p->out[i], type, shard, whole)) worst = INFINITY;
        worst = fmax(worst, test_error(type, whole, s->want[i], 1e-6, &at));
        free(whole);
    }
    for (int k = 0; k < devices * n_in; k++) free(in[k]);
    for (int k = 0; k < devices * n_out; k++) free(out[k]);
    return worst;
}

/* Partitions with the assignment and runs; the largest error. */
static double try(subject *s, ts_engine *e, const ts_mesh *m, trial *t)
{
    ts_spec spec[TEST_INPUTS];
    ts_partition *p = NULL;
    ts_error err = {0};
    for (int i = 0; i < s->g->top->n_arg; i++) {
        const ts_type *type = &s->g->top->arg[i]->type;
        spec[i] = t->in ? t->in[i]
                        : test_random_spec(&s->random, m, type,
                                           type->dtype == TS_F32 || type->dtype == TS_I32);
    }
    const ts_partition_options o = {.struct_size = sizeof o,
                                    .mesh = m,
                                    .tolerance = 1,
                                    .widen_off = t->widen_off,
                                    .quiet = true};
    const ts_partition_hooks hooks = {.in_spec = spec,
                                      .node = s->node,
                                      .force = t->force,
                                      .row = t->row,
                                      .keep_out = !t->sum,
                                      .passed = &t->passed};
    t->passed = false;
    if (ts__partition_with(s->g, &o, &hooks, &p, &err) != TS_OK)
        fail_msg("%s: %s", s->line->c.text, err.msg);
    if (!t->passed && !t->row && !t->sum) check_layout(s, t, p);
    if (t->change) t->change(p->graph);
    const double worst = run(s, e, p, spec, &s->random);
    ts_partition_free(p);
    return worst;
}

/* ---- every assignment ------------------------------------------------------------------------ */

typedef struct tally {
    int tried, expected, passed;
    double worst;
} tally;

static void give(ts_assignment *a, int factor, int axis)
{
    if (factor >= 0) a->axis[factor][a->n[factor]++] = (uint8_t)axis;
}

static bool legal(const ts_factors *f, const ts_mesh *m, const ts_assignment *a)
{
    for (int k = 0; k < f->nf; k++) {
        int64_t ways = 1;
        for (int i = 0; i < a->n[k]; i++) ways *= m->axis[a->axis[k][i]].size;
        if (a->n[k] && (f->kind[k] == TS_FACTOR_WHOLE || f->size[k] % ways)) return false;
    }
    return true;
}

static void try_all(subject *s, bool widen_off, int draws, tally *t)
{
    for (int first = -1; first < s->f.nf; first++)
        for (int second = -1; second < s->f.nf; second++)
            for (int order = 0; order < (first >= 0 && first == second ? 2 : 1); order++) {
                ts_assignment a = {{0}};
                give(&a, order ? second : first, order);
                give(&a, order ? first : second, !order);
                if (!legal(&s->f, &square, &a)) continue;
                t->tried++;
                for (int k = 0; k < draws; k++) {
                    trial one_trial = {.force = &a, .widen_off = widen_off};
                    t->worst = fmax(t->worst, try(s, four, &square, &one_trial));
                    t->passed += one_trial.passed;
                }
            }
}

static int draws_of(int factors)
{
    const char *draws = getenv("TESSERA_DRAWS");
    if (draws) return (int)strtol(draws, NULL, 10);
    return test_is_slow() ? 2 : factors < 2 ? 32 : 16;
}

static void every_assignment_equals_one_device(void **state)
{
    static tally per_op[TS_OPS];
    const char *only = getenv("TESSERA_CASE");
    int wrong = 0, all = 0;
    (void)state;
    for (int i = 0; i < mesh_line_count; i++) {
        const int f = mesh_lines[i].factors;
        tally t = {.expected = f * f + 3 * f + 1};
        subject s;
        if (only && !strstr(mesh_lines[i].c.text, only)) continue;
        subject_open(&s, &mesh_lines[i]);
        try_all(&s, false, draws_of(f), &t);
        subject_close(&s);
        if (t.tried != t.expected || !(t.worst <= 1e-5)) {
            printf("FAILED MESH(%s): %d assignments of %d, worst error %.2g\n", mesh_lines[i].c.text,
                   t.tried, t.expected, t.worst);
            wrong++;
        }
        tally *sum = &per_op[mesh_lines[i].c.op];
        sum->tried += t.tried;
        sum->expected += t.expected;
        sum->passed += t.passed;
        sum->worst = fmax(sum->worst, t.worst);
    }
    for (int op = 0; op < TS_OPS; op++) {
        if (!per_op[op].tried) continue;
        printf(
            "%-17s %3d assignments, expected %3d; %2d with partial sums passing; worst error %.1e\n",
            ts_op_infos[op].name, per_op[op].tried, per_op[op].expected, per_op[op].passed,
            per_op[op].worst);
        all += per_op[op].tried;
    }
    printf("%d assignments\n", all);
    assert_int_equal(wrong, 0);
}

/* Eight devices as 2×2×2 and as 4×2: assignments at random. */
static void more_axes_equal_one_device(void **state)
{
    ts_error err = {0};
    ts_engine *eight = test_lockstep_engine(8, &err);
    const ts_mesh mesh[2] = {test_mesh((const int64_t[]){2, 2, 2}, 3),
                             test_mesh((const int64_t[]){4, 2}, 2)};
    const int draws = test_is_slow() ? 4 : 24;
    int wrong = 0, tried = 0, split = 0;
    (void)state;
    assert_non_null(eight);
    for (int i = 0; i < mesh_line_count; i++) {
        subject s;
        double worst = 0;
        subject_open(&s, &mesh_lines[i]);
        for (int k = 0; k < draws; k++) {
            const ts_mesh *m = &mesh[k % 2];
            ts_assignment a = {{0}};
            for (int axis = 0, first = test_below(&s.random, m->n); axis < m->n && s.f.nf; axis++) {
                const ts_assignment before = a;
                give(&a, test_below(&s.random, s.f.nf), (first + axis) % m->n);
                if (legal(&s.f, m, &a))
                    split++;
                else
                    a = before;
            }
            trial t = {.force = &a};
            worst = fmax(worst, try(&s, eight, m, &t));
            tried++;
        }
        subject_close(&s);
        if (worst <= 1e-5) continue;
        printf("FAILED MESH(%s): worst error %.2g\n", mesh_lines[i].c.text, worst);
        wrong++;
    }
    ts_engine_close(eight);
    printf("%d assignments of eight devices, %.1f axes each\n", tried, (double)split / tried);
    assert_int_equal(wrong, 0);
    assert_true(split > tried);
}

static void every_op_has_a_line(void **state)
{
    (void)state;
    for (int op = 0; op < TS_OPS; op++) {
        bool found = ts_op_infos[op].kind == TS_COLLECTIVE;
        for (int i = 0; i < mesh_line_count; i++) found |= mesh_lines[i].c.op == (ts_op)op;
        if (!found) fail_msg("%s has no line in cases_mesh.def", ts_op_infos[op].name);
    }
}

/* Unequal masks may also be resolved before a sum instead of widened. */
static void sums_need_no_widening(void **state)
{
    int lines_tried = 0;
    (void)state;
    for (int i = 0; i < mesh_line_count; i++) {
        const ts_op op = mesh_lines[i].c.op;
        tally t = {0};
        subject s;
        if (op != TS_OP_add && op != TS_OP_sub && op != TS_OP_add_n) continue;
        subject_open(&s, &mesh_lines[i]);
        try_all(&s, true, 2, &t);
        subject_close(&s);
        assert_true(t.worst <= 1e-5);
        lines_tried++;
    }
    assert_int_equal(lines_tried, 3);
}

/* ---- layouts to layouts ---------------------------------------------------------------------- */

static const mesh_line moved = {
    3, TS_OP_abs, NULL, {.text = "abs of a layout", .op = TS_OP_abs, IN(X(8, 4, 8))}};

/* abs resolves partial sums, so its operand goes from any layout to that of its assignment. */
static void any_layout_becomes_any_other(void **state)
{
    enum { PAIRS = 600 };
    ts_error err = {0};
    ts_engine *eight = test_lockstep_engine(8, &err);
    const ts_mesh cube = test_mesh((const int64_t[]){2, 2, 2}, 3);
    double worst = 0;
    int partial = 0;
    subject s;
    (void)state;
    assert_non_null(eight);
    subject_open(&s, &moved);
    for (int i = 0; i < PAIRS; i++) {
        const ts_type *type = &s.g->top->arg[0]->type;
        const ts_spec from = test_random_spec(&s.random, &cube, type, true),
                      to = test_random_spec(&s.random, &cube, type, false);
        ts_assignment a = {{0}};
        for (int d = 0; d < 3; d++) {
            const int k = ts__factors_in(&s.f, 0)[d][0];
            a.n[k] = to.n[d];
            memcpy(a.axis[k], to.axis[d], to.n[d]);
        }
        trial t = {.force = &a, .in = &from};
        const double error = try(&s, eight, &cube, &t);
        partial += from.partial != 0;
        worst = fmax(worst, error);
    }
    subject_close(&s);
    ts_engine_close(eight);
    printf("%d pairs of layouts, %d from partial sums; worst error %.1e\n", PAIRS, partial, worst);
    assert_true(worst == 0); /* multiples of 2⁻¹⁰ */
    assert_true(partial > PAIRS / 4);
}

/* ---- planted mistakes ------------------------------------------------------------------------ */

static const mesh_line *line_of(ts_op op)
{
    for (int i = 0; i < mesh_line_count; i++)
        if (mesh_lines[i].c.op == op) return &mesh_lines[i];
    return NULL;
}

/* An op's row with one dimension of operand or result 0 of another kind, and one axis on it. */
static double with_kind(ts_op op, int dim, bool result, ts_factor_kind from, ts_factor_kind to)
{
    subject s;
    subject_open(&s, line_of(op));
    ts_factors wrong = s.f;
    ts_assignment a = {{0}};
    const int k = result ? ts__factors_out(&wrong, 0)[dim][0] : ts__factors_in(&wrong, 0)[dim][0];
    assert_int_equal(wrong.kind[k], from);
    wrong.kind[k] = (uint8_t)to;
    give(&a, k, 1);
    ts_spec in[TEST_INPUTS];
    for (int i = 0; i < s.g->top->n_arg; i++) in[i] = ts_spec_whole(s.g->top->arg[i]->type.rank);
    trial t = {.force = &a, .row = &wrong, .in = in};
    const double error = try(&s, four, &square, &t);
    subject_close(&s);
    return error;
}

static void a_whole_left_out_is_seen(void **state)
{
    const ts_factor_kind W = TS_FACTOR_WHOLE, P = TS_FACTOR_PASS, R = TS_FACTOR_RANGE;
    (void)state;
    assert_true(with_kind(TS_OP_rms_norm, 2, false, W, P) > 1e-2);
    assert_true(with_kind(TS_OP_rms_norm_grad, 2, false, W, P) > 1e-2);
    assert_true(with_kind(TS_OP_reduce_max, 1, false, W, P) > 1e-2);
    assert_true(with_kind(TS_OP_argmax, 1, false, W, P) > 1e-2);
    assert_true(with_kind(TS_OP_attention, 4, false, W, P) > 1e-2);
    assert_true(with_kind(TS_OP_attention, 1, false, W, P) > 1e-2);
    assert_true(with_kind(TS_OP_linear_xent, 1, false, W, P) > 1e-2);
    assert_true(with_kind(TS_OP_random_bits, 0, true, W, P) > 1e-2);
    assert_true(with_kind(TS_OP_xent_rows, 1, false, W, P) > 1e-2);
    assert_true(with_kind(TS_OP_take, 0, false, R, P) > 1e-2);
    assert_true(with_kind(TS_OP_scatter_add, 0, true, R, P) > 1e-2);
    /* and the same rows are right as they are */
    assert_true(with_kind(TS_OP_take, 0, false, R, R) < 1e-5);
    assert_true(with_kind(TS_OP_scatter_add, 0, true, R, R) < 1e-5);
}

static void unmask(ts_graph *g)
{
    int masks = 0;
    for (ts_node *n = g->top->first; n; n = n->next)
        if (n->op == TS_OP_select) {
            ts__replace_uses(g->top, n->out[0], n->in[1]);
            masks++;
        }
    assert_true(masks > 0);
}

static void skip_sum(ts_graph *g)
{
    ts_node *n = find_node(g->top, TS_OP_all_reduce);
    assert_non_null(n);
    ts__replace_uses(g->top, n->out[0], n->in[0]);
}

/* The program of one op without a step that it needs, and with it. */
static void check_step(ts_op op, const ts_spec *in, bool sum, void (*change)(ts_graph *))
{
    for (int planted = 0; planted < 2; planted++) {
        const ts_assignment none = {{0}};
        subject s;
        subject_open(&s, line_of(op));
        trial t = {.force = &none, .in = in, .sum = sum, .change = planted ? change : NULL};
        const double error = try(&s, four, &square, &t);
        subject_close(&s);
        if (planted)
            assert_true(error > 1e-2);
        else
            assert_true(error < 1e-5);
    }
}

static void a_mask_or_a_sum_left_out_is_seen(void **state)
{
    const ts_spec in[2] = {{.rank = 3, .partial = 1}, {.rank = 3, .partial = 2}},
                  norm[2] = {{.rank = 3, .partial = 1}, {.rank = 1}};
    (void)state;
    check_step(TS_OP_add, in, false, unmask);
    check_step(TS_OP_add, in, true, skip_sum);
    check_step(TS_OP_rms_norm, norm, false, skip_sum);
}

/* Nine times of ten a row is right by being careful: one that says WHOLE must be missed in the
 * count. */
static void a_row_that_gives_up_is_seen(void **state)
{
    subject s;
    tally t = {0};
    (void)state;
    subject_open(&s, line_of(TS_OP_dot));
    s.f.kind[ts__factors_in(&s.f, 0)[2][0]] = TS_FACTOR_WHOLE;
    try_all(&s, false, 1, &t);
    assert_true(t.worst <= 1e-5);
    assert_int_equal(t.tried, 4 * 4 + 3 * 4 + 1);
    assert_true(t.tried < 5 * 5 + 3 * 5 + 1);
    subject_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_op_has_a_line),
        cmocka_unit_test(every_assignment_equals_one_device),
        cmocka_unit_test(more_axes_equal_one_device),
        cmocka_unit_test(sums_need_no_widening),
        cmocka_unit_test(any_layout_becomes_any_other),
        cmocka_unit_test(a_whole_left_out_is_seen),
        cmocka_unit_test(a_mask_or_a_sum_left_out_is_seen),
        cmocka_unit_test(a_row_that_gives_up_is_seen),
    };
    ts_error err = {0};
    square = test_mesh((const int64_t[]){2, 2}, 2);
    one = test_lockstep_engine(1, &err);
    four = test_lockstep_engine(4, &err);
    if (!one || !four) {
        printf("the engine does not open: %s\n", err.msg);
        return 1;
    }
    const int failed = cmocka_run_group_tests_name("partition", tests, NULL, NULL);
    ts_engine_close(four);
    ts_engine_close(one);
    return failed;
}
