/* test_partition_random.c – random global graphs (random_graph.h) on random meshes give what one device gives.
 *
 * Half of the graphs have parameters and rules, half lay inputs at random, partial sums among
 * them. Integers must be equal, floats within TOLERANCE of the largest of the output, or within
 * what changing the inputs in their last bits does (some graphs amplify), and replicas bit by
 * bit. An allocation fails at random, too. One graph in four is run once more with rings.
 *
 * TESSERA_DRAWS sets how many graphs there are, TESSERA_SEED runs one. A failure says the seed and the mesh, and with
 * TESSERA_SEED prints both graphs.
 */
#include "random_graph.h"

enum { GRAPHS = 2000 };
static const double TOLERANCE = 2e-4;

/* ---- meshes, rules, layouts, values ---------------------------------------------------------- */

static ts_mesh random_mesh(maker *m)
{
    static const int64_t most[] = {2, 3, 4, 6, 8, 12, 16};
    ts_mesh mesh;
    ts_error err = {0};
    ts_mesh_options o = {.user = {1, 1, 1}, .n_heads = pick(m, 2), .kv_heads = {K}, .group = {G}};
    int64_t devices = most[pick(m, 7)];
    bool torus = pick(m, 2);
    for (int64_t rest = devices; rest > 1;) {
        int64_t f = rest % 2 ? 3 : rest % 4 == 0 && pick(m, 3) == 0 ? 4 : 2;
        o.user[pick(m, 3)] *= f;
        if (torus) o.torus[o.n_torus++] = f;
        rest /= f;
    }
    if (ts_mesh_make(&o, &mesh, &err) != TS_OK) fail_msg("%s", err.msg);
    return mesh;
}

/* The default rules, or any. */
static ts_axis_rules random_rules(maker *m)
{
    ts_axis_rules r = ts_axis_rules_default;
    if (pick(m, 2)) return r;
    for (int i = 0; i < r.n; i++) {
        if (pick(m, 3)) continue;
        int first = pick(m, 3), step = 1 + pick(m, 2);
        r.rule[i].n = pick(m, 4);
        for (int k = 0; k < r.rule[i].n; k++)
            r.rule[i].axis[k] = (ts_user_axis)((first + k * step) % 3);
    }
    return r;
}

static ts_spec random_spec(maker *m, const ts_mesh *mesh, const ts_type *t)
{
    ts_spec s = ts_spec_whole(t->rank);
    int first = pick(m, mesh->n), back = pick(m, 2);
    for (int i = 0; i < mesh->n; i++) {
        int a = (back ? first + mesh->n - i : first + i) % mesh->n, d = pick(m, t->rank + 2);
        if (d == t->rank + 1) s.partial |= (uint16_t)(1u << a);
        if (d >= t->rank || t->dim[d].size % (ts_spec_ways(mesh, &s, d) * mesh->axis[a].size))
            continue;
        s.axis[d][s.n[d]++] = (uint8_t)a;
    }
    return s;
}

static uint64_t mix(uint64_t z)
{
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Multiples of 2⁻¹⁰, whose sums are exact; ids −1 … V. */
static void fill(void *data, const ts_type *t, uint64_t seed)
{
    for (int64_t i = 0; i < ts_type_elements(t); i++) {
        uint64_t bits = mix(seed + (uint64_t)i * 0x9e3779b97f4a7c15u);
        if (t->dtype == TS_I32)
            ((int32_t *)data)[i] = (int32_t)(bits % (V + 2)) - 1;
        else
            ((float *)data)[i] = (float)((int64_t)(bits % 2048) - 1024) / 1024;
    }
}

/* The addends of a partial sum: value − Σ others at index 0 of the axes, others elsewhere. */
static void set_partial(mesh_program *p, const ts_mesh *mesh, const ts_spec *s, const ts_type *t,
                        int i, const char *whole)
{
    int64_t n = ts_type_elements(t), at[TS_MAX_AXES], parts = 1;
    char *rest = ts_alloc((size_t)n * 4 + 1), *other = ts_alloc((size_t)n * 4 + 1);
    for (int a = 0; a < mesh->n; a++) parts *= s->partial >> a & 1 ? mesh->axis[a].size : 1;
    fill(other, t, (uint64_t)i + 99);
    for (int64_t k = 0; k < n; k++)
        if (t->dtype == TS_I32)
            ((int32_t *)rest)[k] =
                ((const int32_t *)whole)[k] - (int32_t)(parts - 1) * ((int32_t *)other)[k];
        else
            ((float *)rest)[k] =
                ((const float *)whole)[k] - (float)(parts - 1) * ((float *)other)[k];
    for (int d = 0; d < p->devices; d++) {
        ts_buffer *b = p->in[d * p->graph->top->n_arg + i];
        size_t bytes = ts_type_bytes(&b->type);
        char *piece = ts_alloc(bytes + 1);
        bool first = true;
        ts_mesh_coordinates(mesh, d, at);
        for (int a = 0; a < mesh->n; a++) first &= !(s->partial >> a & 1) || at[a] == 0;
        mesh_copy(mesh, s, t, d, first ? rest : other, piece, false);
        assert_int_equal(ts_upload(b, piece, 0, bytes, NULL), TS_OK);
        ts_free(piece);
    }
    ts_free(rest);
    ts_free(other);
}

/* ---- comparison ------------------------------------------------------------------------------ */

static ts_engine *engines[17];
static int amplified; /* outputs beyond the tolerance that were asked how sensitive they are */
static int ringed;    /* graphs that ran with rings */

static ts_engine *engine_of(int devices)
{
    ts_error err = {0};
    ts_engine_options o = {
        .struct_size = sizeof o, .name = "cpu", .devices = devices, .threads = 1};
    if (!engines[devices] && ts_engine_open(&o, &engines[devices], &err) != TS_OK)
        fail_msg("%s", err.msg);
    return engines[devices];
}

/* by: what floats are multiplied by. */
static void execute(mesh_program *p, const ts_graph *g, const ts_mesh *mesh, const ts_spec *in,
                    uint64_t seed, float by)
{
    for (int i = 0; i < g->top->n_arg; i++) {
        const ts_type *t = &g->top->arg[i]->type;
        char *whole = ts_alloc(ts_type_bytes(t) + 1);
        fill(whole, t, seed * 1000 + (uint64_t)i);
        for (int64_t k = 0; t->dtype == TS_F32 && k < ts_type_elements(t); k++)
            ((float *)whole)[k] *= by;
        if (mesh && in[i].partial)
            set_partial(p, mesh, &in[i], t, i, whole);
        else
            mesh_set(p, mesh, mesh ? &in[i] : NULL, t, i, whole);
        ts_free(whole);
    }
    mesh_execute(p);
}

/* The largest difference as a part of the largest number; integers that differ give infinity. */
static double distance(const ts_type *t, const void *x, const void *y)
{
    double most = 1e-3, off = 0;
    for (int64_t i = 0; i < ts_type_elements(t); i++) {
        if (t->dtype == TS_I32) {
            if (((const int32_t *)x)[i] != ((const int32_t *)y)[i]) return INFINITY;
            continue;
        }
        double a = ((const float *)x)[i], b = ((const float *)y)[i];
        if (isnan(a) || isnan(b)) {
            if (isnan(a) != isnan(b)) return INFINITY;
            continue;
        }
        if (fabs(a) > most) most = fabs(a);
        if (a != b && !(fabs(a - b) <= off)) off = fabs(a - b);
    }
    return off / most;
}

/* What inputs one part in 2²² larger do to an output: some graphs amplify. */
static double sensitivity(mesh_program *one, const ts_graph *g, int i, const void *is,
                          uint64_t seed)
{
    const ts_type *t = &g->top->result[i]->type;
    char *was = ts_alloc(ts_type_bytes(t) + 1);
    execute(one, g, NULL, NULL, seed, 1 + 0x1p-22f);
    mesh_get(one, NULL, NULL, t, i, was, "");
    double off = distance(t, is, was);
    execute(one, g, NULL, NULL, seed, 1);
    ts_free(was);
    amplified++;
    return t->dtype == TS_F32 && off < 0.01 ? off : 0;
}

static void report(uint64_t seed, const ts_mesh *mesh, const ts_graph *g, const ts_partition *p,
                   const char *what, double off)
{
    char text[200];
    ts_string s = ts_string_new(1 << 20);
    if (getenv("TESSERA_SEED")) {
        ts_graph_print(g, &s);
        if (p) ts_graph_print(p->graph, &s);
        fputs(s.data, stderr);
    }
    for (int a = 0; a < mesh->n; a++)
        print_error("%s=%d ", mesh->axis[a].name, (int)mesh->axis[a].size);
    for (int i = 0; p && i < g->top->n_arg; i++)
        print_error("%s %s\n", g->top->arg[i]->name,
                    ts_spec_text(mesh, &p->in[i], text, sizeof text));
    fail_msg("seed %llu, %d devices: %s is off by %g; TESSERA_SEED=%llu shows the graphs",
             (unsigned long long)seed, mesh->devices, what, off, (unsigned long long)seed);
}

/* What is pinned lies as its pin says; what is free, or a parameter's conversion, lies as it likes. */
static void check_pin(const ts_partition *p, const ts_axis_rules *rules, int i, uint64_t seed)
{
    const ts_value *v = p->global->top->result[i];
    if (!v->pin || !v->node || p->global->output[i].replaces >= 0) return;
    if (v->node->op == TS_OP_convert || v->node->op == TS_OP_broadcast || v->node->n_in == 0)
        return;
    const ts_spec pin = ts_partition_pin(p, rules, v);
    if (!ts_spec_same(&pin, &p->out[i]))
        report(seed, &p->mesh, p->global, p, p->global->output[i].name, 0);
}

/* What the devices give, against what one gives; returns the worst distance of an output. */
static double compare(mesh_program *one, const ts_partition *p, const ts_axis_rules *rules, uint64_t seed)
{
    const ts_graph *g = p->global;
    mesh_program many = mesh_compile(engine_of(p->mesh.devices), p->graph, p->mesh.devices);
    double worst = 0;
    execute(&many, g, &p->mesh, p->in, seed, 1);
    for (int i = 0; i < g->top->n_result; i++) {
        const ts_type *t = &g->top->result[i]->type;
        char *a = ts_alloc(ts_type_bytes(t) + 1), *b = ts_alloc(ts_type_bytes(t) + 1), what[100];
        snprintf(what, sizeof what, "seed %llu, %s", (unsigned long long)seed, g->output[i].name);
        mesh_get(one, NULL, NULL, t, i, a, "");
        mesh_get(&many, &p->mesh, &p->out[i], t, i, b, what);
        double off = distance(t, a, b);
        if (!(off <= TOLERANCE) && !(off <= 16 * sensitivity(one, g, i, a, seed)))
            report(seed, &p->mesh, g, p, g->output[i].name, off);
        check_pin(p, rules, i, seed);
        if (off > worst) worst = off;
        ts_free(a);
        ts_free(b);
    }
    mesh_free(&many);
    return worst;
}

static int count_permutes(const ts_region *r)
{
    int n = 0;
    for (const ts_node *x = r->first; x; x = x->next)
        n += x->op == TS_OP_collective_permute ? 1 : x->body ? count_permutes(x->body) : 0;
    return n;
}

static double one_graph(uint64_t seed)
{
    maker m = {.state = seed * 77 + 1};
    bool params = seed % 2;
    ts_graph *g = random_graph(seed, params);
    if (!g) return 0;
    ts_mesh mesh = random_mesh(&m);
    ts_axis_rules rules = random_rules(&m);
    ts_partition_options o = {.struct_size = sizeof o,
                              .mesh = &mesh,
                              .rules = &rules,
                              .tolerance = 1e9,
                              .whole_batch = true,
                              .quiet = true,
                              .head_bytes = pick(&m, 2) ? 0 : 300,
                              .widen_off = pick(&m, 4) == 0,
                              .stationary_off = pick(&m, 4) == 0};
    ts_partition *p = NULL;
    ts_error err = {0};
    ts_spec *in = ts_alloc_zero((size_t)(g->top->n_arg + 1) * sizeof *in);
    ts_partition_hooks hooks = {.in_spec = in};
    for (int i = 0; i < g->top->n_arg; i++) in[i] = random_spec(&m, &mesh, &g->top->arg[i]->type);
    ts_alloc_fail_at(1 + (uint64_t)pick(&m, 40));
    ts_status status = ts__partition_with(g, &o, params ? NULL : &hooks, &p, &err);
    ts_alloc_fail_at(0);
    if (status != TS_OK && status != TS_RESOURCE_EXHAUSTED)
        report(seed, &mesh, g, NULL, err.msg, 0);
    ts_partition_free(p);
    if (ts__partition_with(g, &o, params ? NULL : &hooks, &p, &err) != TS_OK)
        report(seed, &mesh, g, NULL, err.msg, 0);
    mesh_program one = mesh_compile(engine_of(1), g, 1);
    execute(&one, g, NULL, NULL, seed, 1);
    double worst = compare(&one, p, &rules, seed);
    if (seed % 4 == 1 || seed % 16 == 2) {
        if (ts_ring_rewrite(p->graph, p->in, 0, &err) != TS_OK) report(seed, &mesh, g, p, err.msg, 0);
        if (count_permutes(p->graph->top)) {
            ringed++;
            worst = fmax(worst, compare(&one, p, &rules, seed));
        }
    }
    mesh_free(&one);
    ts_free(in);
    ts_partition_free(p);
    ts_graph_free(g);
    return worst;
}

static void random_graphs(void **unused)
{
    (void)unused;
    const char *draws = getenv("TESSERA_DRAWS"), *one = getenv("TESSERA_SEED");
    uint64_t first = one ? strtoull(one, NULL, 10) : 1, last = one     ? first
                                                               : draws ? strtoull(draws, NULL, 10)
                                                                       : GRAPHS;
    double worst = 0, sum = 0;
    for (uint64_t seed = first; seed <= last; seed++) {
        double off = one_graph(seed);
        worst = off > worst ? off : worst;
        sum += off;
    }
    print_message("%llu graphs; worst error %.1e, on average %.1e; %d outputs amplify; %d with rings\n",
                  (unsigned long long)(last - first + 1), worst, sum / (double)(last - first + 1),
                  amplified, ringed);
    assert_true(amplified <= 1 + (int)((last - first) / 1000));
    for (int d = 0; d <= 16; d++) ts_engine_close(engines[d]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_graphs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
