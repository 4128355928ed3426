/* tests/unit/test_loader_mix.c – several sources mixed by weight: whose row is next, and the end.
 *
 * Shares are kept to one row at every point of the order, near its beginning and behind 10¹² rows;
 * the order is the same whatever the rows of a batch; each source keeps the order that it has
 * alone; the first source that is used up ends the data and is named.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "data/reader.h"
#include "data_help.h"

enum { MOST_SOURCES = 12 };

typedef struct mixture {
    char path[MOST_SOURCES][256];
    const char *paths[MOST_SOURCES];
    ts_loader_source source[MOST_SOURCES];
    ts_loader_options o;
} mixture;

static void mix(mixture *m, ts_data_type type, int n, const double *weight, int samples)
{
    static const char *const names[MOST_SOURCES] = {"a", "b", "c", "d", "e", "f",
                                                    "g", "h", "i", "j", "k", "l"};
    m->o = options(type, NULL, 0, 1, type == TS_DATA_TEXT ? 4 : 40);
    for (int i = 0; i < n; i++) {
        char name[32];
        snprintf(name, sizeof name, "mix-%s", names[i]);
        snprintf(m->path[i], sizeof m->path[i], "%s",
                 type == TS_DATA_TEXT ? put_counted(name, (size_t)(samples + 10 * i) * 4)
                                      : put_numbered(name, samples + 10 * i, 20 + i));
        m->paths[i] = m->path[i];
        m->source[i] = (ts_loader_source){
            .name = names[i], .weight = weight[i], .paths = &m->paths[i], .n_paths = 1};
    }
    m->o.sources = m->source;
    m->o.n_sources = (size_t)n;
}

static double worst_of(const mixture *m, int64_t rows)
{
    ts_loader *l = open_ok(&m->o);
    full_batch f = batch_new(1, m->o.sequence);
    int64_t taken[MOST_SOURCES] = {0};
    double sum = 0, worst = 0;
    for (size_t i = 0; i < m->o.n_sources; i++) sum += m->source[i].weight;
    for (int64_t n = 1; n <= rows; n++) {
        assert_true(next(l, &f));
        assert_in_range(f.b.sources[0], 0, (int)m->o.n_sources - 1);
        taken[f.b.sources[0]]++;
        for (size_t i = 0; i < m->o.n_sources; i++) {
            double off = (double)taken[i] - (double)n * m->source[i].weight / sum;
            worst = off > worst ? off : -off > worst ? -off : worst;
        }
    }
    batch_free(&f);
    ts_loader_free(l);
    return worst;
}

static void test_shares_to_one_row(void **state)
{
    (void)state;
    static const double weights[][MOST_SOURCES] = {
        {1, 1},
        {3, 1},
        {0.999, 0.001},
        {0.5, 0.3, 0.2},
        {1, 1, 1},
        {7, 2, 1, 3},
        {0.7, 0.1, 0.1, 0.1},
        {1e6, 1, 1e-6},
        {5, 4, 3, 2, 1},
        {1, 2, 4, 8, 16, 32},
    };
    mixture m;
    for (size_t k = 0; k < sizeof weights / sizeof *weights; k++) {
        int n = 0;
        while (n < MOST_SOURCES && weights[k][n] > 0) n++;
        mix(&m, TS_DATA_TEXT, n, weights[k], 100);
        m.o.epochs = 0;
        double worst = worst_of(&m, 3000);
        if (worst >= 1) print_message("mixture %zu is off by %.3f rows\n", k, worst);
        assert_true(worst < 1);
    }
}

/* Weights by chance, up to 12 sources: the bound holds for those too. */
static void test_shares_by_chance(void **state)
{
    (void)state;
    mixture m;
    double all = 0;
    for (uint64_t trial = 0; trial < 40; trial++) {
        double weight[MOST_SOURCES];
        int n = 2 + (int)(ts_mix64(trial) % 11);
        for (int i = 0; i < n; i++)
            weight[i] = 1e-3 + (double)(ts_mix64(trial * 100 + (uint64_t)i) % 1000000) * 1e-6;
        mix(&m, TS_DATA_TEXT, n, weight, 70);
        m.o.epochs = 0;
        double worst = worst_of(&m, 1500);
        all = worst > all ? worst : all;
    }
    print_message("at most %.3f rows from the share\n", all);
    assert_true(all < 1);
}

static void test_shares_add_up(void **state)
{
    (void)state;
    for (uint64_t trial = 0; trial < 1000; trial++) {
        double weight[TS_MAX_SOURCES], sum = 0;
        int64_t share[TS_MAX_SOURCES], total = 0;
        int n = 1 + (int)(ts_mix64(trial) % TS_MAX_SOURCES);
        for (int i = 0; i < n; i++) {
            uint64_t bits = ts_mix64(trial * 1000 + (uint64_t)i);
            weight[i] = (double)(1 + bits % 1000000) * (bits >> 60 ? 1e-6 : 1);
            sum += weight[i];
        }
        ts__mix_weights(weight, n, share);
        for (int i = 0; i < n; i++) {
            assert_true(share[i] >= 1);
            double exact = weight[i] / sum * (double)TS_WEIGHTS;
            assert_true((double)share[i] - exact < n + 1 && exact - (double)share[i] < n + 1);
            total += share[i];
        }
        assert_true(total == TS_WEIGHTS);
    }
}

/* Of sources that are equally far behind the first comes first. */
static void test_turns(void **state)
{
    (void)state;
    static const struct {
        double weight[3];
        int n;
        const char *turns;
    } cases[] = {{{1, 1}, 2, "ababab"}, {{1, 1, 1}, 3, "abcabcabc"}, {{1, 2}, 2, "babbab"}};
    mixture m;
    for (size_t k = 0; k < 3; k++) {
        mix(&m, TS_DATA_TEXT, cases[k].n, cases[k].weight, 60);
        ts_loader *l = open_ok(&m.o);
        full_batch f = batch_new(1, m.o.sequence);
        for (const char *turn = cases[k].turns; *turn; turn++) {
            assert_true(next(l, &f));
            assert_int_equal(f.b.sources[0], *turn - 'a');
        }
        batch_free(&f);
        ts_loader_free(l);
    }
}

/* Behind 10¹² rows of weights 3 : 1 : 4, whose turns repeat every 8. */
static void test_no_drift(void **state)
{
    (void)state;
    const int64_t far = 1000000000000;
    static const double weight[] = {3, 1, 4};
    mixture m;
    mix(&m, TS_DATA_TEXT, 3, weight, 60); /* one reader each */
    m.o.epochs = 0;
    ts_loader *l = open_ok(&m.o);
    full_batch f = batch_new(1, m.o.sequence);
    int32_t order[64];
    char text[400];
    for (int i = 0; i < 64; i++) {
        assert_true(next(l, &f));
        order[i] = f.b.sources[0];
        if (i >= 8) assert_int_equal(order[i], order[i - 8]);
    }
    snprintf(text, sizeof text,
             "{\"fingerprint\": \"%016llx\", \"order_hash\": \"0000000000000000\", \"rows\": %lld, "
             "\"sources\": [{\"rows\": %lld, \"readers\": [[%lld, 0]]}, {\"rows\": %lld, "
             "\"readers\": [[%lld, 0]]}, {\"rows\": %lld, \"readers\": [[%lld, 0]]}]}",
             (unsigned long long)ts_loader_fingerprint(l), (long long)far, (long long)far / 8 * 3,
             (long long)far / 8 * 3, (long long)far / 8, (long long)far / 8, (long long)far / 2,
             (long long)far / 2);
    assert_int_equal(go_to(l, text, NULL), TS_OK);
    for (int i = 0; i < 64; i++) {
        assert_true(next(l, &f));
        assert_int_equal(f.b.sources[0], order[i]);
    }
    batch_free(&f);
    ts_loader_free(l);
}

/* All rows, by source, of an open loader: hashes without the source and id. */
static uint64_t content(const full_batch *f, int64_t row)
{
    uint64_t h = 1;
    for (int64_t i = row * f->sequence; i < (row + 1) * f->sequence; i++)
        h = ts_mix64(h + (uint32_t)f->b.tokens[i]) ^ (uint32_t)f->b.segments[i];
    return h;
}

/* Source i of the mixture gives the rows that it gives alone, as long as the data lasts, with ids
 * behind those of the sources before it; whatever the rows of a batch. */
static void each_as_alone(const mixture *m)
{
    static const int64_t rows[] = {1, 2, 3, 8, 16, 32};
    int64_t all[6];
    char *end = NULL;
    for (int k = 0; k < 6; k++) {
        ts_loader_options o = m->o;
        o.rows = rows[k];
        ts_loader *l = open_ok(&o), *alone[MOST_SOURCES];
        full_batch f = batch_new(rows[k], o.sequence), one = batch_new(1, o.sequence);
        int64_t first[MOST_SOURCES + 1] = {0}, count[MOST_SOURCES] = {0};
        for (size_t i = 0; i < o.n_sources; i++) {
            ts_loader_options single = m->o;
            single.sources = NULL;
            single.paths = m->source[i].paths;
            single.n_paths = m->source[i].n_paths;
            alone[i] = open_ok(&single);
            first[i + 1] = first[i] + ts_loader_stats_of(alone[i]).samples;
            assert_string_equal(ts_loader_source_name(l, (int)i), m->source[i].name);
        }
        assert_int_equal(ts_loader_stats_of(l).samples, first[o.n_sources]);
        assert_int_equal(ts_loader_sources(l), o.n_sources);
        for (all[k] = 0; next(l, &f);)
            for (int64_t i = 0; i < rows[k] && f.b.row_ids[i] >= 0; i++, all[k]++) {
                int s = f.b.sources[i];
                count[s]++;
                assert_true(next(alone[s], &one));
                assert_int_equal(content(&one, 0), content(&f, i));
                assert_int_equal(one.b.row_ids[0] + first[s], f.b.row_ids[i]);
            }
        int ended = ts_loader_ended_by(l);
        assert_in_range(ended, 0, (int)o.n_sources - 1);
        assert_false(next(alone[ended], &one));
        char *text = position_text(l);
        if (end) assert_string_equal(text, end);
        free(end);
        end = text;
        assert_int_equal(all[k], all[0]);
        for (size_t i = 0; i < o.n_sources; i++) ts_loader_free(alone[i]);
        batch_free(&f);
        batch_free(&one);
        ts_loader_free(l);
    }
    free(end);
    assert_true(all[0] > 100);
}

static void test_each_source_as_alone(void **state)
{
    (void)state;
    static const double weights[][3] = {{0.5, 0.3, 0.2}, {1, 5, 2}, {1, 1, 1}};
    mixture m;
    for (int k = 0; k < 3; k++)
        for (int shuffle = 0; shuffle < 2; shuffle++) {
            mix(&m, TS_DATA_TEXT, 3, weights[k], 200);
            m.o.shuffle = shuffle;
            m.o.epochs = 2;
            each_as_alone(&m);
            mix(&m, TS_DATA_JSONL, 3, weights[k], 300);
            m.o.shuffle = shuffle;
            for (int p = TS_PACK_NONE; p <= TS_PACK_CONCAT; p++) {
                m.o.packing = (ts_packing)p;
                m.o.epochs = 1 + p % 2;
                each_as_alone(&m);
            }
        }
}

static void test_mixture_refused(void **state)
{
    (void)state;
    static const double weight[] = {1, 1};
    mixture m;
    mix(&m, TS_DATA_TEXT, 2, weight, 100);
    m.source[1].weight = 0;
    open_fails(&m.o, TS_INVALID_ARGUMENT, "source b", "weight 0");
    m.source[1].weight = -1;
    open_fails(&m.o, TS_INVALID_ARGUMENT, "source b", "weight -1");
    m.source[1].weight = 0.0 / 0.0;
    open_fails(&m.o, TS_INVALID_ARGUMENT, "source b", "between");
    m.source[1].weight = 1e300;
    open_fails(&m.o, TS_INVALID_ARGUMENT, "source b", "between");
    m.source[1].weight = 1;
    m.source[1].name = "a";
    open_fails(&m.o, TS_INVALID_ARGUMENT, "named a", "of its own");
    m.source[1].name = "";
    open_fails(&m.o, TS_INVALID_ARGUMENT, "source 2", "no name");
    m.source[1].name = "b";
    m.source[1].n_paths = 0;
    open_fails(&m.o, TS_INVALID_ARGUMENT, "source b", "no files");
    m.source[1].n_paths = 1;
    m.o.n_sources = 0;
    open_fails(&m.o, TS_INVALID_ARGUMENT, "0 sources", "1 to 256");
    m.o.n_sources = 2;
    m.o.type = TS_DATA_SYNTHETIC;
    open_fails(&m.o, TS_INVALID_ARGUMENT, "synthetic", "text, jsonl or tokens");
    m.o.type = TS_DATA_TEXT;
    m.paths[1] = put_text("mix-short", "x");
    open_fails(&m.o, TS_INVALID_ARGUMENT, "source b: ", "max_target_length");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shares_to_one_row),
        cmocka_unit_test(test_shares_by_chance),
        cmocka_unit_test(test_shares_add_up),
        cmocka_unit_test(test_no_drift),
        cmocka_unit_test(test_turns),
        cmocka_unit_test(test_each_source_as_alone),
        cmocka_unit_test(test_mixture_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
