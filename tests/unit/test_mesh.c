/* tests/unit/test_mesh.c – internal axes, specs and rules: what they are is spelled here by hand;
 * that pieces cover a tensor once is counted element by element over random specs. And what a graph
 * asks of the wire. */
#include "ir_help.h"
#include "mesh/partition.h"

/* ---- internal axes --------------------------------------------------------------------------- */

typedef struct factoring {
    int64_t user[3], torus[6], heads[8][2]; /* 0 ends the last two */
    const char *axes;
} factoring;

static ts_mesh_options options_of(const factoring *f)
{
    ts_mesh_options o = {.user = {f->user[0], f->user[1], f->user[2]}};
    while (o.n_torus < 6 && f->torus[o.n_torus]) {
        o.torus[o.n_torus] = f->torus[o.n_torus];
        o.n_torus++;
    }
    for (; o.n_heads < 8 && f->heads[o.n_heads][0]; o.n_heads++) {
        o.kv_heads[o.n_heads] = f->heads[o.n_heads][0];
        o.group[o.n_heads] = f->heads[o.n_heads][1];
    }
    return o;
}

static void axes_text(const ts_mesh *m, char *buf, size_t n)
{
    size_t k = 0;
    buf[0] = 0;
    for (int a = 0; a < m->n; a++)
        k += (size_t)snprintf(buf + k, n - k, "%s%s=%d", a ? " " : "", m->axis[a].name,
                              (int)m->axis[a].size);
}

/* clang-format off */
static const factoring factorings[] = {
    {{1, 1, 1}, {0}, {{0}}, ""},
    {{2, 1, 4}, {0}, {{0}}, "data=2 tensor=4"},
    /* torus */
    {{1, 4, 4}, {4, 4}, {{0}}, "fsdp=4 tensor=4"},
    {{1, 16, 1}, {4, 4}, {{0}}, "fsdp0=4 fsdp1=4"},
    {{1, 1, 16}, {4, 4}, {{0}}, "tensor0=4 tensor1=4"},
    {{1, 8, 1}, {2, 2, 2}, {{0}}, "fsdp0=2 fsdp1=2 fsdp2=2"},
    {{1, 2, 8}, {4, 4}, {{0}}, "fsdp=2 tensor0=2 tensor1=4"},
    {{2, 8, 1}, {4, 4}, {{0}}, "data=2 fsdp0=2 fsdp1=4"},
    {{1, 8, 2}, {2, 2, 4}, {{0}}, "fsdp0=2 fsdp1=2 fsdp2=2 tensor=2"},
    {{1, 4, 4}, {1, 16}, {{0}}, "fsdp=4 tensor=4"},
    {{1, 6, 1}, {2, 3}, {{0}}, "fsdp0=2 fsdp1=3"},
    {{1, 2, 3}, {3, 2}, {{0}}, "fsdp=2 tensor=3"},  /* 2 does not divide tensor's 3 */
    /* heads: K first, then G, then the rest */
    {{1, 1, 4}, {0}, {{8, 4}}, "tensor=4"},
    {{1, 1, 16}, {0}, {{8, 4}}, "tensor0=8 tensor1=2"},
    {{1, 1, 64}, {0}, {{8, 4}}, "tensor0=8 tensor1=4 tensor2=2"},
    {{1, 1, 4}, {0}, {{3, 3}}, "tensor=4"},
    {{1, 1, 4}, {0}, {{1, 8}}, "tensor=4"},
    {{1, 1, 4}, {0}, {{2, 2}}, "tensor0=2 tensor1=2"},
    {{1, 1, 8}, {0}, {{2, 2}}, "tensor0=2 tensor1=2 tensor2=2"},
    {{1, 1, 12}, {0}, {{3, 2}}, "tensor0=3 tensor1=2 tensor2=2"},
    /* several kinds of layers: the common refinement; 4 and 6 have none, the first counts */
    {{1, 1, 16}, {0}, {{16, 2}, {4, 8}}, "tensor0=4 tensor1=4"},
    {{1, 2, 32}, {0}, {{16, 2}, {4, 8}}, "fsdp=2 tensor0=4 tensor1=4 tensor2=2"},
    {{1, 1, 8}, {0}, {{16, 2}, {4, 8}}, "tensor0=4 tensor1=2"},
    {{1, 1, 12}, {0}, {{4, 1}, {6, 1}}, "tensor0=4 tensor1=3"},
    /* both */
    {{1, 1, 16}, {4, 4}, {{8, 4}}, "tensor0=4 tensor1=2 tensor2=2"},
    {{1, 1, 16}, {4, 4}, {{2, 8}}, "tensor0=2 tensor1=2 tensor2=4"},
    {{1, 1, 12}, {3, 4}, {{4, 1}}, "tensor0=4 tensor1=3"}, /* the torus would cut at 3: heads come first */
    {{1, 4, 4}, {4, 4}, {{8, 4}}, "fsdp=4 tensor=4"},
    {{4, 16, 4}, {16, 16}, {{8, 8}}, "data=4 fsdp0=4 fsdp1=4 tensor=4"},
};
/* clang-format on */

static void axes_follow_torus_and_heads(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof factorings / sizeof factorings[0]; i++) {
        ts_mesh_options o = options_of(&factorings[i]);
        ts_mesh m;
        char text[256];
        int64_t product = 1;
        OK(ts_mesh_make(&o, &m, &err));
        axes_text(&m, text, sizeof text);
        assert_string_equal(text, factorings[i].axes);
        for (int a = 0; a < m.n; a++) product *= m.axis[a].size;
        assert_int_equal(m.devices, product);
        for (int u = 0; u < 3; u++) assert_int_equal(m.user[u], o.user[u]);
    }
}

static void impossible_meshes_are_refused(void **state)
{
    static const struct {
        factoring f;
        const char *word[2];
    } bad[] = {
        {{{1, 0, 2}, {0}, {{0}}, NULL}, {"fsdp is 0", "at least 1"}},
        {{{1, 1, -4}, {0}, {{0}}, NULL}, {"tensor is -4", "at least 1"}},
        {{{1 << 10, 1 << 10, 2}, {0}, {{0}}, NULL}, {"data=1024, fsdp=1024, tensor=2", "1048576"}},
        {{{INT64_MAX, INT64_MAX, 2}, {0}, {{0}}, NULL}, {"devices", "1048576"}},
        {{{1, 4, 2}, {4, 4}, {{0}}, NULL}, {"fsdp=4, tensor=2 is 8", "the torus has 16"}},
        {{{1, 4, 2}, {-8}, {{0}}, NULL}, {"torus", "-8"}},
        {{{1, 1, 4}, {0}, {{2, 0}}, NULL}, {"kv heads", "groups of 0"}},
        {{{1, 32, 32}, {2, 2, 2, 2, 2, 32}, {{2, 2}, {4, 4}, {8, 2}}, NULL},
         {"cut into 10 axes", "tensor0 2"}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        ts_mesh_options o = options_of(&bad[i].f);
        ts_mesh m = {.n = 77};
        ts_error err = {0};
        assert_int_equal(ts_mesh_make(&o, &m, &err), TS_INVALID_ARGUMENT);
        for (int k = 0; k < 2; k++)
            if (!strstr(err.msg, bad[i].word[k])) fail_msg("%zu: %s", i, err.msg);
        assert_int_equal(m.n, 77); /* untouched */
    }
}

static ts_mesh mesh_of(int64_t data, int64_t fsdp, int64_t tensor, int64_t kv, int64_t group)
{
    ts_mesh_options o = {
        .user = {data, fsdp, tensor}, .n_heads = kv ? 1 : 0, .kv_heads = {kv}, .group = {group}};
    ts_mesh m;
    OK(ts_mesh_make(&o, &m, &err));
    return m;
}

static void devices_are_row_major(void **state)
{
    const ts_mesh m = mesh_of(2, 3, 4, 2, 2); /* data 2, fsdp 3, tensor0 2, tensor1 2 */
    int device = 0;
    char text[64];
    (void)state;
    assert_int_equal(m.n, 4);
    assert_int_equal(m.devices, 24);
    for (int d = 0; d < 2; d++)
        for (int f = 0; f < 3; f++)
            for (int t0 = 0; t0 < 2; t0++)
                for (int t1 = 0; t1 < 2; t1++) {
                    int64_t at[TS_MAX_AXES];
                    ts_mesh_coordinates(&m, device++, at);
                    assert_true(at[0] == d && at[1] == f && at[2] == t0 && at[3] == t1);
                }
    assert_string_equal(ts_mesh_text(&m, text, sizeof text), "data=2, fsdp=3, tensor=4");
}

/* ---- specs ----------------------------------------------------------------------------------- */

static uint64_t seed = 0x243f6a8885a308d3;
static int below(int n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (int)((seed >> 33) % (uint64_t)n);
}

static ts_spec random_spec(const ts_mesh *m, const ts_type *t)
{
    ts_spec s = ts_spec_whole(t->rank);
    uint8_t order[TS_MAX_AXES];
    for (int a = 0; a < m->n; a++) order[a] = (uint8_t)a;
    for (int a = m->n - 1; a > 0; a--) {
        int k = below(a + 1);
        uint8_t swap = order[a];
        order[a] = order[k];
        order[k] = swap;
    }
    for (int a = 0; a < m->n; a++) {
        int d = below(t->rank + 1);
        if (d == t->rank || t->dim[d].size % (ts_spec_ways(m, &s, d) * m->axis[order[a]].size))
            continue;
        s.axis[d][s.n[d]++] = order[a];
    }
    return s;
}

/* Owners' pieces cover every element once, all devices' pieces as often as there are copies; and
 * device by device a piece is where the digits of its coordinates say. */
static void pieces_cover_a_tensor_once(void **state)
{
    const ts_mesh m = mesh_of(2, 3, 4, 2, 2);
    const ts_type t = ts_type_make(TS_F32, TS_DIMS({NULL, 12}, {NULL, 4}, {NULL, 6}));
    int split = 0;
    (void)state;
    for (int trial = 0; trial < 300; trial++) {
        const ts_spec s = random_spec(&m, &t);
        const ts_type local = ts_spec_local(&m, &s, &t);
        uint8_t owned[12][4][6] = {{{0}}}, held[12][4][6] = {{{0}}};
        const int64_t copies = m.devices / ts_spec_pieces(&m, &s);
        split += ts_spec_pieces(&m, &s) > 4;
        assert_int_equal(ts_type_elements(&local) * ts_spec_pieces(&m, &s), ts_type_elements(&t));
        for (int dev = 0; dev < m.devices; dev++) {
            int64_t at[TS_MAX_RANK];
            ts_spec_offset(&m, &s, &t, dev, at);
            const bool owner = ts_spec_owner(&m, &s, dev);
            for (int64_t i = 0; i < local.dim[0].size; i++)
                for (int64_t j = 0; j < local.dim[1].size; j++)
                    for (int64_t k = 0; k < local.dim[2].size; k++) {
                        assert_true(at[0] + i < 12 && at[1] + j < 4 && at[2] + k < 6);
                        held[at[0] + i][at[1] + j][at[2] + k]++;
                        owned[at[0] + i][at[1] + j][at[2] + k] += owner;
                    }
        }
        for (int e = 0; e < 12 * 4 * 6; e++) {
            assert_int_equal((&owned[0][0][0])[e], 1);
            assert_int_equal((&held[0][0][0])[e], copies);
        }
    }
    assert_true(split > 100); /* not all of them trivial */
}

static void the_major_axis_is_the_major_digit(void **state)
{
    const ts_mesh m = mesh_of(1, 2, 4, 2, 2); /* fsdp 2, tensor0 2, tensor1 2 */
    const ts_type t = ts_type_make(TS_F32, TS_DIMS({NULL, 3}, {NULL, 8}));
    const ts_spec s = {
        .rank = 2, .n = {0, 2}, .axis = {{0}, {2, 0}}}; /* tensor1 major, fsdp minor */
    ts_spec other = s;
    int64_t at[TS_MAX_RANK];
    char text[96];
    (void)state;
    for (int dev = 0; dev < 8; dev++) {
        const int fsdp = dev / 4, tensor1 = dev % 2;
        ts_spec_offset(&m, &s, &t, dev, at);
        assert_int_equal(at[0], 0);
        assert_int_equal(at[1], (tensor1 * 2 + fsdp) * 2);
        assert_int_equal(ts_spec_owner(&m, &s, dev), (dev / 2) % 2 == 0); /* tensor0 is free */
    }
    assert_int_equal(ts_spec_axes(&s), 5);
    assert_int_equal(ts_spec_ways(&m, &s, 0), 1);
    assert_int_equal(ts_spec_ways(&m, &s, 1), 4);
    assert_string_equal(ts_spec_text(&m, &s, text, sizeof text), "[–,tensor1 fsdp]");
    other.partial = 2;
    assert_string_equal(ts_spec_text(&m, &other, text, sizeof text),
                        "[–,tensor1 fsdp] partial(tensor0)");
    assert_false(ts_spec_same(&s, &other));
    other.partial = 0;
    other.axis[1][5] = 3; /* beyond what counts */
    assert_true(ts_spec_same(&s, &other));
    other.axis[1][1] = 1;
    assert_false(ts_spec_same(&s, &other));
    for (size_t n = 1; n < sizeof text; n++) { /* a short buffer is cut, never overrun */
        memset(text, '#', sizeof text);
        ts_spec_text(&m, &s, text, n);
        assert_int_equal(text[n], '#');
        assert_true(strlen(text) < n);
    }
    ts_spec whole = ts_spec_whole(0);
    assert_string_equal(ts_spec_text(&m, &whole, text, sizeof text), "[]");
}

/* ---- rules ----------------------------------------------------------------------------------- */

/* names and sizes, "kv_heads 8,group 4,- 16", under the default rules → the spec's text, then what
 * was lost. */
static void check_rules(const ts_mesh *m, const ts_axis_rules *r, const char *dims,
                        const char *expected)
{
    char copy[128], text[256], *save = NULL;
    const char *name[TS_MAX_RANK];
    ts_type t = {.dtype = TS_F32};
    uint16_t lost = 0;
    snprintf(copy, sizeof copy, "%s", dims);
    for (char *w = strtok_r(copy, ",", &save); w; w = strtok_r(NULL, ",", &save)) {
        char *space = strchr(w, ' ');
        *space = 0;
        name[t.rank] = *w == '-' ? NULL : w;
        t.dim[t.rank++].size = strtol(space + 1, NULL, 10);
    }
    ts_spec s = ts_rules_spec(m, r, name, &t, &lost);
    ts_spec_text(m, &s, text, sizeof text);
    for (int a = 0; a < m->n; a++)
        if (lost >> a & 1) {
            strncat(text, " -", sizeof text - strlen(text) - 1);
            strncat(text, m->axis[a].name, sizeof text - strlen(text) - 1);
        }
    if (strcmp(text, expected)) fail_msg("%s: %s, expected %s", dims, text, expected);
    assert_false(s.partial);
    ts_rules_spec(m, r, name, &t, NULL);
}

static void dimensions_take_what_divides_them(void **state)
{
    const ts_axis_rules *r = &ts_axis_rules_default;
    const ts_mesh t4 = mesh_of(2, 4, 4, 8, 4), t16 = mesh_of(1, 2, 16, 8, 4),
                  t64 = mesh_of(1, 1, 64, 8, 4), odd = mesh_of(1, 1, 4, 3, 3),
                  e2b = mesh_of(1, 1, 4, 1, 8);
    (void)state;
    check_rules(&t4, r, "kv_heads 8,group 4,- 16", "[tensor,–,–]");
    check_rules(&t16, r, "kv_heads 8,group 4", "[tensor0,tensor1]");
    check_rules(&t64, r, "kv_heads 8,group 4", "[tensor0,tensor1] -tensor2");
    check_rules(&t64, r, "kv_heads 8,- 4", "[tensor0,–] -tensor1 -tensor2");
    check_rules(&odd, r, "kv_heads 3,group 3", "[–,–] -tensor");
    check_rules(&e2b, r, "kv_heads 1,group 8", "[–,tensor]");
    check_rules(&t4, r, "batch 8,sequence 12,embed 64",
                "[data fsdp,tensor,–]"); /* fsdp is taken, not lost */
    check_rules(&t4, r, "batch 8,sequence 12,- 64", "[data fsdp,tensor,–]");
    check_rules(&t4, r, "batch 2,sequence 6,- 64", "[data,–,–] -fsdp -tensor");
    check_rules(&t4, r, "batch 1", "[–] -data -fsdp");
    check_rules(&t4, r, "mlp 12,embed 64", "[tensor,fsdp]");
    check_rules(&t16, r, "mlp 24,embed 63", "[tensor0,–] -fsdp -tensor1");
    check_rules(&t4, r, "vocab 32,embed 8", "[tensor,fsdp]");
    check_rules(&t4, r, "norm 64", "[–]");
    check_rules(&t4, r, "head_dim 64", "[–]");
    check_rules(&t4, r, "- 2,mlp 8,mlp 8", "[–,tensor,–]");
    check_rules(&t4, r, "batch 0,sequence 4", "[data fsdp,tensor]");
}

static void rules_of_a_user(void **state)
{
    const ts_mesh m = mesh_of(2, 2, 4, 2, 2);
    const ts_axis_rules own = {
        .n = 4,
        .rule = {{"embed", 2, {TS_AXIS_FSDP, TS_AXIS_TENSOR}}, /* tensor stays major */
                 {"mlp", 3, {TS_AXIS_TENSOR, TS_AXIS_DATA, TS_AXIS_FSDP}},
                 {"embed", 1, {TS_AXIS_DATA}}, /* the first rule of a name counts */
                 {"batch", 2, {TS_AXIS_FSDP, TS_AXIS_FSDP}}}};
    (void)state;
    check_rules(&m, &own, "embed 16", "[tensor0 tensor1 fsdp]");
    check_rules(&m, &own, "embed 4", "[tensor0 tensor1] -fsdp");
    check_rules(&m, &own, "mlp 64", "[tensor0 tensor1 data fsdp]");
    check_rules(&m, &own, "batch 64,embed 4", "[fsdp,tensor0 tensor1]");
    check_rules(&m, &own, "sequence 64", "[–]");
}

/* ---- the wire -------------------------------------------------------------------------------- */

static void wire_counts_loops_and_bytes(void **state)
{
    static const char text[] =
        "graph \"w\" mesh(fsdp=4, tensor=2) {\n"
        "  in %0 \"x\" f32[8,16]\n"
        "  in %1 \"s\" f32[3,8,16]\n"
        "  %2 = all_gather(%0) axis=\"fsdp\" n=4 dim=0 dim2=0 shift=0 reduce=sum : f32[32,16]\n"
        "  %3 = reduce_scatter(%2) axis=\"fsdp\" n=4 dim=0 dim2=0 shift=0 reduce=sum : f32[8,16]\n"
        "  %4 = repeat(%3, %1) n=3 reverse=false n_carry=1 n_xs=1 n_consts=0 n_stack=0 remat=0 : f32[8,16] {\n"
        "    arg %5 f32[8,16]\n"
        "    arg %6 f32[8,16]\n"
        "    %7 = all_reduce(%5) axis=\"tensor\" n=2 dim=0 dim2=0 shift=0 reduce=sum : f32[8,16]\n"
        "    %8 = collective_permute(%6) axis=\"fsdp\" n=4 dim=0 dim2=0 shift=1 reduce=sum : f32[8,16]\n"
        "    %9 = add(%7, %8) : f32[8,16]\n"
        "    %10 = all_to_all(%9) axis=\"tensor\" n=2 dim=0 dim2=1 shift=0 reduce=sum : f32[4,32]\n"
        "    %11 = all_to_all(%10) axis=\"tensor\" n=2 dim=1 dim2=0 shift=0 reduce=sum : f32[8,16]\n"
        "    yield %11\n"
        "  }\n"
        "  out \"y\" %4\n"
        "}\n";
    const double kb = 8 * 16 * 4;
    ts_graph *g = NULL;
    ts_wire w[8];
    (void)state;
    OK(ts_graph_parse(text, strlen(text), &g, &err));
    assert_int_equal(ts_wire_of(g, w, 8), 5);
    const ts_wire want[5] = {
        {TS_OP_all_reduce, "tensor", 3, 3 * kb, 3 * kb, (int64_t)kb},
        {TS_OP_all_gather, "fsdp", 1, 3 * kb, kb, (int64_t)(4 * kb)},
        {TS_OP_reduce_scatter, "fsdp", 1, 3 * kb, 4 * kb, (int64_t)(4 * kb)},
        {TS_OP_all_to_all, "tensor", 6, 3 * kb, 6 * kb, (int64_t)kb},
        {TS_OP_collective_permute, "fsdp", 3, 3 * kb, 3 * kb, (int64_t)kb},
    };
    for (int i = 0; i < 5; i++) {
        assert_int_equal(w[i].op, want[i].op);
        assert_string_equal(w[i].axis, want[i].axis);
        assert_int_equal(w[i].count, want[i].count);
        assert_true(w[i].bytes == want[i].bytes && w[i].payload == want[i].payload);
        assert_int_equal(w[i].largest, want[i].largest);
    }
    w[2].count = -5;
    assert_int_equal(ts_wire_of(g, w, 2),
                     5); /* says how many there are, writes what there is room for */
    assert_int_equal(w[2].count, -5);
    ts_graph_free(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(axes_follow_torus_and_heads),
        cmocka_unit_test(impossible_meshes_are_refused),
        cmocka_unit_test(devices_are_row_major),
        cmocka_unit_test(pieces_cover_a_tensor_once),
        cmocka_unit_test(the_major_axis_is_the_major_digit),
        cmocka_unit_test(dimensions_take_what_divides_them),
        cmocka_unit_test(rules_of_a_user),
        cmocka_unit_test(wire_counts_loops_and_bytes),
    };
    return cmocka_run_group_tests_name("mesh", tests, NULL, NULL);
}
