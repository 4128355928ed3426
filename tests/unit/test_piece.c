/* test_piece.c – the part of a tensor that a device holds, against counting element by element; and a state whose
 * tensors lie in pieces on several devices: the same initial values, files and read-back as on one.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "engine_help.h"
#include "train/state.h"

enum { MOST = 2048, DEVICES = 8 };

static ts_mesh cube(void)
{
    ts_mesh m;
    ts_error err = {0};
    const ts_mesh_options o = {.user = {2, 2, 2}};
    if (ts_mesh_make(&o, &m, &err) != TS_OK) fail_msg("%s", err.msg);
    assert_int_equal(m.devices, DEVICES);
    return m;
}

static ts_type type_of(int rank, const int64_t *size)
{
    ts_dim dim[TS_MAX_RANK] = {{0}};
    for (int i = 0; i < rank; i++) dim[i] = (ts_dim){"x", size[i]};
    return ts_type_make(TS_F32, dim, rank);
}

/* Does the device hold element `at` of the tensor? By its coordinates alone. */
static bool holds(const ts_piece *p, size_t at)
{
    for (int i = p->rank - 1; i >= 0; i--) {
        int64_t x = (int64_t)(at % (size_t)p->global[i]);
        at /= (size_t)p->global[i];
        if (x < p->offset[i] || x >= p->offset[i] + p->local[i]) return false;
    }
    return true;
}

static void check_device(const ts_piece *p, size_t n)
{
    static float tensor[MOST], piece[MOST], back[MOST];
    size_t place[MOST], held = 0;
    assert_true(n <= MOST);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(ts_box_before(p, i), held);
        tensor[i] = (float)i;
        if (holds(p, i)) place[held++] = i;
    }
    assert_int_equal(ts_box_before(p, n), held);
    assert_int_equal(p->elements, held);
    assert_true(p->run >= 1 && p->elements % p->run == 0);
    for (size_t k = 0; k < held; k++) assert_int_equal(ts_box_place(p, k), place[k]);
    for (size_t k = 1; k < p->run; k++) assert_int_equal(place[k], place[0] + k);
    /* Stretches of the tensor, of odd lengths. */
    for (size_t first = 0, step = 1; first < n; first += step, step = 2 * step + 1) {
        size_t end = first + step < n ? first + step : n;
        size_t from = ts_box_before(p, first), count = ts_box_before(p, end) - from;
        memset(piece, 0, sizeof piece);
        memset(back, 0, sizeof back);
        ts_box_gather(p, from, count, sizeof(float), tensor + first, first, piece);
        for (size_t k = 0; k < count; k++) assert_true(piece[k] == (float)place[from + k]);
        ts_box_scatter(p, from, count, sizeof(float), piece, back, first);
        for (size_t k = first; k < end; k++)
            assert_true(back[k - first] == (holds(p, k) ? (float)k : 0));
    }
}

static void pieces_are_what_counting_says(void **state)
{
    static const int64_t shapes[][4] = {{8}, {2, 8}, {8, 2}, {4, 6, 8}, {2, 4, 3, 8}, {1, 8, 1, 4}};
    static const int ranks[] = {1, 2, 2, 3, 4, 4};
    const ts_mesh m = cube();
    int specs = 0, runs = 0;
    (void)state;
    for (int s = 0; s < 6; s++)
        for (int code = 0; code < 125; code++) {
            /* each axis splits one dimension, or none */
            ts_spec spec = ts_spec_whole(ranks[s]);
            ts_type t = type_of(ranks[s], shapes[s]);
            bool fits = true;
            for (int a = 0, c = code; a < 3; a++, c /= 5) {
                int dim = c % 5 - 1;
                if (dim >= ranks[s]) fits = false;
                if (dim >= 0 && fits) spec.axis[dim][spec.n[dim]++] = (uint8_t)a;
            }
            for (int i = 0; fits && i < t.rank; i++)
                fits = t.dim[i].size % ts_spec_ways(&m, &spec, i) == 0;
            if (!fits) continue;
            size_t n = (size_t)ts_type_elements(&t), owned = 0;
            for (int d = 0; d < DEVICES; d++) {
                const ts_piece p = ts_piece_of(&m, &spec, &t, 0, d);
                int replica, home = ts_piece_home(&m, &spec, d, &replica);
                const ts_piece same = ts_piece_of(&m, &spec, &t, 0, home);
                check_device(&p, n);
                assert_memory_equal(same.offset, p.offset, sizeof p.offset);
                assert_int_equal(home == d, ts_spec_owner(&m, &spec, d));
                assert_int_equal(home == d, replica == 0);
                assert_true(replica < DEVICES / ts_spec_pieces(&m, &spec));
                owned += home == d ? p.elements : 0;
                runs += p.run != p.elements;
            }
            assert_int_equal(owned, n);
            specs++;
        }
    assert_true(specs > 150 && runs > 500);
}

/* ---- a state in pieces ------------------------------------------------------------------------- */

/* A stack of two layers and a table that is larger than the host buffer of 16 MiB. */
enum { LAYERS = 2, OUT = 6, IN = 8, TALL = 70000, ROW = 64 };

static ts_graph *two_tensors(void)
{
    ts_builder *b = ts_builder_new("two");
    const ts_dim matrix[] = {{"layers", LAYERS}, {"out", OUT}, {"in", IN}};
    const ts_dim table[] = {{"vocab", TALL}, {"embed", ROW}};
    ts_value *w = ts_param(b, "table", table, 2, 1, 0.5);
    ts_value *x = ts_input(b, "adam.m.table", TS_F32, table, 2);
    ts_output(b, "y", ts_slice(b, w, 0, 0, 1), NULL);
    ts_value *v = ts_input(b, "adam.v.table", TS_F32, table, 2);
    ts_output(b, "adam.m.table", ts_add(b, x, v), x);
    ts_output(b, "adam.v.table", ts_add(b, v, v), v);
    ts_value *stack = ts_input(b, "x.{0..1:1}.w", TS_F32, matrix, 3);
    ts_output(b, "z", ts_slice(b, stack, 0, 0, 1), NULL);
    ts_graph *g = help_finish(b);
    /* a stacked parameter, as ts_layers registers one */
    assert_true(ts__arena_grow(g->arena, &g->param, &g->cap_param, g->n_param,
                               sizeof *g->param));
    g->param[g->n_param++] = (ts_param_info){.name = "x.{0..1:1}.w",
                                             .value = g->top->arg[3],
                                             .step = 1,
                                             .count = LAYERS,
                                             .file_rank = 2,
                                             .file_dim = {OUT, IN},
                                             .init = 0.1};
    return g;
}

typedef struct placed_state {
    ts_partition partition;
    ts_spec in[4], out[4];
    ts_placed placed;
    ts_engine *engine;
    ts_state *state;
} placed_state;

static ts_spec split(int rank, int dim, int axis, int dim2, int axis2)
{
    ts_spec s = ts_spec_whole(rank);
    s.axis[dim][s.n[dim]++] = (uint8_t)axis;
    if (dim2 >= 0) s.axis[dim2][s.n[dim2]++] = (uint8_t)axis2;
    return s;
}

/* layout 0: one device; else eight of them. */
static void open_state(placed_state *s, const ts_graph *g, int layout)
{
    ts_error err = {0};
    ts_engine_options o = {
        .struct_size = sizeof o, .name = "cpu", .devices = layout ? DEVICES : 1, .threads = 1};
    *s = (placed_state){.placed = ts_placed_whole(g)};
    if (ts_engine_open(&o, &s->engine, &err) != TS_OK) fail_msg("%s", err.msg);
    if (layout) {
        s->partition =
            (ts_partition){.mesh = cube(), .global = g, .in = s->in, .out = s->out};
        s->in[0] = layout == 1 ? split(2, 0, 1, 1, 2) : split(2, 1, 0, 0, 2);
        s->in[1] = layout == 1 ? split(2, 1, 0, -1, 0) : ts_spec_whole(2);
        s->in[2] = s->in[1];
        s->in[3] = layout == 1 ? split(3, 2, 1, 1, 0) : split(3, 2, 2, 2, 0);
        s->placed.partition = &s->partition;
    }
    if (ts_state_place(s->engine, &s->placed, &s->state, &err) != TS_OK) fail_msg("%s", err.msg);
}

static void close_state(placed_state *s)
{
    ts_state_free(s->state);
    ts_engine_close(s->engine);
}

static float *read_all(const ts_state *s, size_t *n)
{
    size_t at = 0, most = 3 * TALL * ROW + LAYERS * OUT * IN;
    float *out = calloc(most, sizeof *out);
    for (size_t i = 0; i < ts_state_tensor_count(s); i++) {
        ts_state_tensor t;
        ts_error err = {0};
        ts_state_tensor_at(s, i, &t);
        for (size_t first = 0; first < t.elements; first += 1000003) {
            size_t count = t.elements - first < 1000003 ? t.elements - first : 1000003;
            assert_true(at + count <= most);
            if (ts_state_read(&t, first, count, out + at, &err) != TS_OK) fail_msg("%s", err.msg);
            at += count;
        }
    }
    *n = at;
    return out;
}

static void a_state_is_the_same_on_every_mesh(void **state)
{
    ts_graph *g = two_tensors();
    float *want = NULL;
    size_t n, m;
    (void)state;
    for (int layout = 0; layout < 3; layout++) {
        placed_state s;
        ts_error err = {0};
        open_state(&s, g, layout);
        assert_int_equal(ts_state_initialise(s.state, 9, &err), TS_OK);
        assert_int_equal(ts_state_check_replicas(s.state, &err), TS_OK);
        float *got = read_all(s.state, &n);
        if (layout == 0) {
            want = got;
            m = n;
            assert_true(want[0] != 0 && want[(size_t)TALL * ROW] != want[(size_t)TALL * ROW + OUT * IN]);
        } else {
            assert_int_equal(n, m);
            assert_memory_equal(got, want, n * sizeof *want);
            free(got);
        }
        close_state(&s);
    }
    free(want);
    ts_graph_free(g);
}

/* One element of one replica of a moment, which every device holds for itself. */
static void a_replica_that_differs_is_named(void **state)
{
    ts_graph *g = two_tensors();
    placed_state s;
    ts_error err = {0};
    const float wrong = 1;
    (void)state;
    open_state(&s, g, 2);
    assert_int_equal(ts_state_initialise(s.state, 9, &err), TS_OK);
    ts_buffer *b = ts_state_find(s.state, "adam.m.table", 6, NULL);
    assert_ptr_not_equal(b, ts_state_find(s.state, "adam.m.table", 0, NULL));
    assert_int_equal(ts_upload(b, &wrong, 12 * sizeof wrong, sizeof wrong, &err), TS_OK);
    assert_int_equal(ts_state_check_replicas(s.state, &err), TS_DATA_LOSS);
    assert_non_null(strstr(err.msg, "adam.m.table differs between devices 0 and 6"));
    assert_non_null(strstr(err.msg, "element 12"));
    /* what nothing writes is one buffer for all devices that hold the same */
    ts_spec spec;
    assert_ptr_equal(ts_state_find(s.state, "table", 1, &spec),
                     ts_state_find(s.state, "table", 3, NULL));
    assert_ptr_not_equal(ts_state_find(s.state, "table", 0, NULL),
                         ts_state_find(s.state, "table", 1, NULL));
    close_state(&s);
    ts_graph_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_are_what_counting_says),
        cmocka_unit_test(a_state_is_the_same_on_every_mesh),
        cmocka_unit_test(a_replica_that_differs_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
