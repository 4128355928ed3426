/* tests/op/test_factors.c – the rows of the ops: what they are, spelled by hand, and that they are
 * whole over the op table.
 *
 * A row is written with one letter a factor, in the order in which they are met: small where it may
 * be split, capital where it is whole, with a star where it is a range of rows; − is a dimension
 * without a factor. Several letters of one merged dimension stand in brackets, major first.
 * test_partition.c proves that what may be split is right; here a rule of partitioner.md that was
 * lost shows as a changed word.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>

#include "lockstep.h"

/* ---- a row as text --------------------------------------------------------------------------- */

typedef struct writer {
    const ts_factors *f;
    char text[256];
    size_t n;
    int name[TS_MAX_FACTORS]; /* 1: a */
    int names;
} writer;

static void put(writer *w, const char *s)
{
    w->n += (size_t)snprintf(w->text + w->n, sizeof w->text - w->n, "%s", s);
    assert_true(w->n < sizeof w->text);
}

static void put_value(writer *w, const int8_t (*row)[TS_ROW_MERGED], int rank)
{
    for (int d = 0; d < rank; d++) {
        const bool merged = row[d][1] >= 0;
        if (row[d][0] < 0) put(w, "-");
        if (merged) put(w, "(");
        for (int k = 0; k < TS_ROW_MERGED && row[d][k] >= 0; k++) {
            const int f = row[d][k];
            if (!w->name[f]) w->name[f] = ++w->names;
            const bool whole = w->f->kind[f] == TS_FACTOR_WHOLE;
            put(w, (char[]){(char)((whole ? 'A' : 'a') + w->name[f] - 1), 0});
            if (w->f->kind[f] == TS_FACTOR_RANGE) put(w, "*");
        }
        if (merged) put(w, ")");
    }
}

static void write_row(writer *w, const ts_node *n, const ts_factors *f)
{
    *w = (writer){.f = f};
    for (int i = 0; i < f->n_in; i++) {
        if (i) put(w, ", ");
        put_value(w, ts__factors_in(f, i), n->in[i]->type.rank);
    }
    put(w, f->alike ? " … -> " : " -> ");
    for (int i = 0; i < n->n_out; i++) {
        if (i) put(w, ", ");
        put_value(w, ts__factors_out(f, i), n->out[i]->type.rank);
    }
    if (f->linear) put(w, " linear");
}

static ts_node *find_node(const ts_region *r, ts_op op)
{
    for (ts_node *n = r->first; n; n = n->next)
        if (n->op == op) return n;
    return NULL;
}

/* ---- the rules, by hand ---------------------------------------------------------------------- */

typedef struct rule {
    const char *row;
    test_case c;
} rule;

#define ROW(row, name, ...) {row, {.text = #name ", " #__VA_ARGS__, .op = TS_OP_##name, __VA_ARGS__}},
#define QKV X(4, 6, 2, 3, 8), X(4, 6, 2, 8), X(4, 6, 2, 8)
#define BACK X(4, 6, 2, 3, 8), F32(4, 6, 2, 3), X(4, 6, 2, 3, 8)
static const rule rules[] = {
    ROW(" -> abc", constant, TO(2, 3, 4), .attr.constant = {.value = 1})
    ROW(" -> ab*c", iota, TO(2, 3, 4), .attr.iota = {.axis = 1})
    ROW("A -> BC", random_bits, IN(U32(2)), TO(4, 8))
    ROW("abc -> abc", exp, IN(X(2, 3, 4)))
    ROW("ab -> ab", convert, IN(X(3, 4)), .attr.convert = {TS_BF16})
    ROW("ab -> ab linear", neg, IN(X(3, 4)))
    ROW("ab, ab -> ab", add, IN(X(3, 4), X(3, 4)))
    ROW("ab, ab -> ab linear", mul, IN(X(3, 4), X(3, 4)))
    ROW("ab, ab -> ab linear", div, IN(X(3, 4), X(3, 4)))
    ROW("ab … -> ab", add_n, IN(X(3, 4), X(3, 4), X(3, 4)))
    ROW("ab, ab -> ab", compare, IN(X(3, 4), X(3, 4)), .attr.compare = {TS_LT})
    ROW("ab, ab, ab -> ab", select, IN(PRED(3, 4), X(3, 4), X(3, 4)))
    ROW(", ab, ab -> ab", select, IN(PREDVAL(1), X(3, 4), X(3, 4)))
    ROW("ab … -> ab", barrier, IN(X(3, 4)))
    /* of a merged or split dimension the major factor; 1 is none */
    ROW("aBc -> (aD)c linear", reshape, IN(X(2, 3, 4)), TO(6, 4))
    ROW("a(bC) -> abD linear", reshape, IN(X(2, 12)), TO(2, 3, 4))
    ROW("a-b -> -ab- linear", reshape, IN(X(2, 1, 4)), TO(1, 2, 4, 1))
    ROW("(aB)Cd -> (aE)Fd linear", reshape, IN(X(6, 4, 5)), TO(4, 6, 5))
    ROW("-- -> - linear", reshape, IN(X(0, 4)), TO(0))
    ROW("abc -> cab linear", transpose, IN(X(2, 3, 4)), .attr.transpose = {L(2, 0, 1)})
    ROW("ab -> bca", broadcast, IN(X(2, 3)), TO(3, 5, 2), .attr.broadcast = {.map = L(2, 0)})
    ROW("aB -> aC", slice, IN(X(3, 7)), .attr.slice = {1, 2, 5})
    ROW("aB … -> aC", concat, IN(X(3, 2), X(3, 4)), .attr.axis = {1})
    ROW("Ab -> Cb", pad, IN(X(3, 4)), .attr.pad = {0, 2, 1, 1.0})
    ROW("aB,  -> aC", dynamic_slice, IN(X(3, 7), I32VAL(2)), .attr.dynamic = {1, 3})
    ROW("aB, aC,  -> aB", dynamic_update, IN(X(3, 7), X(3, 2), I32VAL(2)), .attr.dynamic = {1, 2})
    ROW("abc -> ac linear", reduce_sum, IN(X(2, 3, 4)), .attr.reduce = {L(1)})
    ROW("aBc -> ac", reduce_max, IN(X(2, 3, 4)), .attr.reduce = {L(1)})
    ROW("aBc -> ac", argmax, IN(X(2, 3, 4)), .attr.axis = {1})
    ROW("abC -> abD, abD", top_k, IN(X(2, 3, 4)), .attr.top_k = {2})
    ROW("abc, cde -> abde", dot, IN(X(2, 3, 4), X(4, 5, 6)),
        .attr.dot = {.x_contract = L(2), .y_contract = L(0)})
    ROW("abc, dac -> abd", dot, IN(X(2, 3, 4), X(5, 2, 4)),
        .attr.dot = {.x_batch = L(0), .y_batch = L(1), .x_contract = L(2), .y_contract = L(2)})
    ROW("a*b, cd -> cdb", take, IN(X(7, 4), I32(0, 7, 2, 3)), .attr.take = {-1})
    ROW("ab, abc -> d*c", scatter_add, IN(I32(0, 7, 2, 3), F32(2, 3, 4)), TO(7),
        .attr.scatter = {.no_grad_row = -1})
    ROW("abC, C -> abC", rms_norm, IN(X(2, 3, 4), X(4)), .attr.rms_norm = {1e-5})
    ROW("abC, C, abC -> abC, C", rms_norm_grad, IN(X(2, 3, 4), X(4), X(2, 3, 4)),
        .attr.rms_norm = {1e-5})
    ROW("abcdE, bF, bF -> abcdE", rope, IN(X(2, 3, 4, 5, 6), F32(3, 3), F32(3, 3)))
    ROW("abcD, abE, abE -> abcD", rope, IN(X(2, 3, 4, 6), F32(2, 3, 3), F32(2, 3, 3)))
    ROW("ab, ab -> ab", gated, IN(X(3, 4), X(3, 4)), .attr.gated = {TS_SILU})
    ROW("ab, ab, ab -> ab, ab", gated_grad, IN(X(3, 4), X(3, 4), X(3, 4)), .attr.gated = {TS_SILU})
    ROW("aBcdE, aFcE, aFcE -> aBcdE, aBcd", attention, IN(QKV), .attr.attention = {.scale = 1})
    ROW("aBcdE, aFcE, aFcE, aB -> aBcdE, aBcd", attention, IN(QKV, SEGMENTS(4, 6)),
        .attr.attention = {.scale = 1})
    ROW("aBcdE, aFcE, aFcE, aBcdE, aBcd, aBcdE -> aBcdE, aFcE, aFcE", attention_grad, IN(QKV, BACK),
        .attr.attention = {.scale = 1})
    ROW("aBcdE, aFcE, aFcE, aBcdE, aBcd, aBcdE, aB -> aBcdE, aFcE, aFcE", attention_grad,
        IN(QKV, BACK, SEGMENTS(4, 6)), .attr.attention = {.scale = 1})
    ROW("AB -> C, C, D", expert_rows, IN(RANGE(0, 4, 9, 2)), .attr.expert_rows = {5})
    ROW("Ab, Cdb, E -> Ad", grouped_dot, IN(X(9, 5), X(6, 4, 5), SEGMENTS(7)))
    ROW("Ab, Cdb, E, Ad -> Ab, Cdb", grouped_dot_grad, IN(X(9, 5), X(6, 4, 5), SEGMENTS(7), X(9, 4)))
    ROW("aB, c*B, a -> a, a", linear_xent, IN(X(5, 8), X(9, 8), I32(0, 9, 5)))
    ROW("aB, c*B, a, a, a, a -> aB, c*B", linear_xent_grad,
        IN(X(5, 8), X(9, 8), I32(0, 9, 5), F32(5), F32(5), F32(5)))
    ROW("aB, CB, a -> a, a, a", xent_rows, IN(X(5, 8), X(9, 8), I32(0, 9, 5)))
    ROW("ab, ab, ab, ab, , , ,  -> ab, ab, ab", adamw,
        IN(X(3, 5), X(3, 5), X(3, 5), POS(3, 5), F32VAL(1), I32VAL(1), F32VAL(1), PREDVAL(1)),
        .attr.adamw = {.b1 = 0.9, .b2 = 0.95, .eps = 1e-8})
};
#undef QKV
#undef BACK
enum { RULES = sizeof rules / sizeof rules[0] };

/* A rule's graph in the first dtype that it may have. */
static ts_graph *graph_of(const test_case *c, ts_dtype t)
{
    ts_error err = {0};
    ts_graph *g = test_graph(c, t, false, TS_REMAT_NONE, &err);
    if (!g) fail_msg("%s: %s", c->text, err.msg);
    return g;
}

static void rows_are_what_the_rules_say(void **state)
{
    int wrong = 0;
    (void)state;
    for (int i = 0; i < RULES; i++) {
        const test_case *c = &rules[i].c;
        ts_graph *g = graph_of(c, (ts_dtype)__builtin_ctz(test_case_dtypes(c)));
        const ts_node *n = find_node(g->top, c->op);
        ts_factors f;
        ts_error err = {0};
        writer w;
        assert_non_null(n);
        assert_int_equal(ts__factors(n, &f, &err), TS_OK);
        write_row(&w, n, &f);
        if (strcmp(w.text, rules[i].row)) {
            printf("%s: %s, expected %s\n", ts_op_infos[c->op].name, w.text, rules[i].row);
            wrong++;
        }
        ts_graph_free(g);
    }
    assert_int_equal(wrong, 0);
}

/* ---- over the op table ----------------------------------------------------------------------- */

static void complain(const ts_node *n, const char *what)
{
    fail_msg("the row of %s: %s", ts_op_infos[n->op].name, what);
}

/* The factors of a value: each at most once, its sizes those of the dimensions, split ones at the
 * major end. */
static void check_value(const ts_node *n, const ts_factors *f, const ts_type *t,
                        const int8_t (*row)[TS_ROW_MERGED], bool first, unsigned *used)
{
    unsigned here = 0;
    for (int d = 0; d < TS_MAX_RANK; d++) {
        int64_t product = 1;
        for (int k = 0; k < TS_ROW_MERGED; k++) {
            const int factor = row[d][k];
            if (factor < 0) continue;
            if (d >= t->rank) complain(n, "a factor of a dimension that does not exist");
            if (factor >= f->nf) complain(n, "a factor that does not exist");
            if (here >> factor & 1) complain(n, "a factor twice in a value");
            if (k && f->kind[factor] != TS_FACTOR_WHOLE) complain(n, "a minor factor may be split");
            if (k && row[d][k - 1] < 0) complain(n, "a gap between factors");
            here |= 1u << factor;
            product *= f->size[factor];
        }
        if (d >= t->rank) continue;
        const int64_t size = t->dim[d].size;
        const bool touched = row[d][0] >= 0 && f->kind[row[d][0]] == TS_FACTOR_WHOLE;
        if (row[d][0] < 0 && size != 1 && ts_type_elements(t)) complain(n, "a dimension without a factor");
        if (row[d][0] >= 0 && product != size && (first || !touched)) complain(n, "sizes that are not the value's");
    }
    *used |= here;
}

static bool has_no_row(const ts_node *n)
{
    return n->op == TS_OP_repeat || ts_op_infos[n->op].kind == TS_COLLECTIVE ||
           (n->op == TS_OP_barrier && n->n_in > 1);
}

static bool is_told_of_ranges(ts_op op)
{
    return op == TS_OP_iota || op == TS_OP_take || op == TS_OP_scatter_add ||
           op == TS_OP_linear_xent || op == TS_OP_linear_xent_grad;
}

static int check_region(const ts_region *r)
{
    int rows = 0;
    for (const ts_node *n = r->first; n; n = n->next) {
        ts_factors f;
        ts_error err = {0};
        unsigned used = 0;
        if (n->body) rows += check_region(n->body);
        if (has_no_row(n)) {
            assert_int_equal(ts__factors(n, &f, &err), TS_UNIMPLEMENTED);
            assert_non_null(strstr(err.msg, ts_op_infos[n->op].name));
            continue;
        }
        assert_int_equal(ts__factors(n, &f, &err), TS_OK);
        assert_int_equal(f.n_in, f.alike ? 1 : n->n_in);
        for (int i = 0; i < n->n_in; i++) /* of operands that are alike the first has the sizes */
            check_value(n, &f, &n->in[i]->type, ts__factors_in(&f, i), !(f.alike && i), &used);
        for (int i = 0; i < n->n_out; i++) check_value(n, &f, &n->out[i]->type, ts__factors_out(&f, i), true, &used);
        if (used != (1u << f.nf) - 1) complain(n, "a factor that no value has");
        for (int k = 0; k < f.nf; k++)
            if (f.kind[k] == TS_FACTOR_RANGE && !is_told_of_ranges(n->op))
                complain(n, "a range that no kernel is told of");
        rows++;
    }
    return rows;
}

static void rows_are_whole_over_the_op_table(void **state)
{
    int rows = 0;
    (void)state;
    for (int i = 0; i < test_case_count; i++)
        for (int t = 0; t < TS_DTYPES; t++) {
            if (!(test_case_dtypes(&test_cases[i]) >> t & 1)) continue;
            ts_graph *g = graph_of(&test_cases[i], (ts_dtype)t);
            rows += check_region(g->top);
            ts_graph_free(g);
        }
    printf("%d rows\n", rows);
    assert_true(rows > 900);
}

/* The same over gradients and lowerings: shapes that no line spells. */
static bool nothing(const ts_node *n)
{
    (void)n;
    return false;
}

static void rows_are_whole_over_gradients_and_lowerings(void **state)
{
    int rows = 0;
    (void)state;
    for (int i = 0; i < test_case_count; i++) {
        ts_error err = {0};
        if (!(test_cases[i].grad > 0) || !(test_case_dtypes(&test_cases[i]) & 1u << TS_F32)) continue;
        ts_graph *g = test_graph(&test_cases[i], TS_F32, true, TS_REMAT_FULL, &err);
        if (!g) fail_msg("%s: %s", test_cases[i].text, err.msg);
        rows += check_region(g->top);
        assert_int_equal(ts_graph_lower(g, nothing, &err), TS_OK);
        rows += check_region(g->top);
        ts_graph_free(g);
    }
    printf("%d rows\n", rows);
    assert_true(rows > 2000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_what_the_rules_say),
        cmocka_unit_test(rows_are_whole_over_the_op_table),
        cmocka_unit_test(rows_are_whole_over_gradients_and_lowerings),
    };
    return cmocka_run_group_tests_name("factors", tests, NULL, NULL);
}
