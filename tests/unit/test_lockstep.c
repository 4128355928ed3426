/* test_lockstep.c – virtual devices of the CPU engine: every collective on small meshes, bit by bit.
 *
 * A program has each collective of a table once at the top, and once an iteration of a loop that
 * runs forwards and of one that runs backwards. What is expected is written down from the
 * definition, device by device: sums go through the group in order, in f32, and numbers of mixed
 * size make any other order visible. Then: results in their operands' memory, threads, 256
 * devices, inputs that devices share, what is refused, and the same program on XLA.
 */
#include "engine_help.h"

#include <math.h>
#include <stdlib.h>

#include "ir/builder.h"
#include "xla/plugin.h"

enum { TIMES = 3, RANK = 3, MOST = 16 }; /* devices of the meshes with the table */

#define OK(call)                                                                                   \
    do {                                                                                           \
        ts_error err_ = {0}, *err = &err_;                                                         \
        if ((call) != TS_OK) fail_msg("%s", err_.msg);                                             \
    } while (0)

#define CASE(op, ...) {TS_OP_##op, {.collective = {__VA_ARGS__}}}
static const struct {
    ts_op op;
    ts_attr attr; /* without the axis */
} cases[] = {
    CASE(all_reduce, .reduce = 0),
    CASE(all_reduce, .reduce = 1),
    CASE(all_gather, .dim = 0),
    CASE(all_gather, .dim = 1),
    CASE(all_gather, .dim = 2),
    CASE(reduce_scatter, .dim = 0),
    CASE(reduce_scatter, .dim = 1),
    CASE(reduce_scatter, .dim = 2),
    CASE(all_to_all, .dim = 0, .dim2 = 1),
    CASE(all_to_all, .dim = 1, .dim2 = 0),
    CASE(all_to_all, .dim = 2, .dim2 = 0),
    CASE(all_to_all, .dim = 0, .dim2 = 2),
    CASE(all_to_all, .dim = 1, .dim2 = 1),
    CASE(collective_permute, .shift = 1),
    CASE(collective_permute, .shift = -1),
    CASE(collective_permute, .shift = 2),
    CASE(collective_permute, .shift = 0),
    CASE(axis_index, .dim = 0),
};
enum { CASES = sizeof cases / sizeof cases[0] };

typedef struct axis {
    const char *name;
    int64_t n;
} axis;
typedef struct mesh {
    axis axis[4];
    int n;
} mesh;
static const mesh square = {{{"a", 2}, {"b", 2}}, 2}, wide = {{{"a", 2}, {"b", 4}}, 2},
                  cube = {{{"a", 2}, {"b", 2}, {"c", 2}}, 3},
                  odd = {{{"a", 3}, {"one", 1}, {"b", 4}}, 3};

static int devices_of(const mesh *m)
{
    int64_t n = 1;
    for (int i = 0; i < m->n; i++) n *= m->axis[i].n;
    return (int)n;
}

static int64_t stride_of(const mesh *m, int a)
{
    int64_t s = 1;
    for (int i = a + 1; i < m->n; i++) s *= m->axis[i].n;
    return s;
}

static ts_engine *open_cpu(int devices, int threads, const char *isa)
{
    ts_engine_options o = {
        .struct_size = sizeof o, .name = "cpu", .devices = devices, .threads = threads, .isa = isa};
    ts_engine *e = NULL;
    OK(ts_engine_open(&o, &e, err));
    return e;
}

/* ---- the program ----------------------------------------------------------------------------- */

typedef struct table {
    mesh m;
    int axis;
    ts_dtype dtype;
    ts_dim dims[1 + RANK]; /* x [times, …] */
    bool whole;            /* small whole numbers, whose sums are exact in any order */
} table;

static bool reduces(int k)
{
    return cases[k].op == TS_OP_all_reduce || cases[k].op == TS_OP_reduce_scatter;
}

static ts_value *apply(ts_builder *b, const table *t, int k, ts_value *x)
{
    ts_attr attr = cases[k].attr;
    attr.collective.axis = t->m.axis[t->axis].name;
    attr.collective.n = t->m.axis[t->axis].n;
    return ts__op(b, cases[k].op, &x, cases[k].op == TS_OP_axis_index ? 0 : 1, &attr);
}

static ts_graph *mesh_finish(ts_builder *b, const mesh *m)
{
    ts_graph *g = help_finish(b);
    g->n_axis = m->n;
    for (int i = 0; i < m->n; i++) {
        g->axis[i].name = m->axis[i].name;
        g->axis[i].size = m->axis[i].n;
    }
    return g;
}

/* Outputs, three a case: at the top, of iteration 0; stacked forwards; stacked backwards. pred is not summed. */
static ts_graph *table_graph(const table *t, int *which)
{
    char name[40];
    int n = 0;
    ts_builder *b = ts_builder_new("table");
    ts_value *x = ts_input(b, "x", t->dtype, t->dims, 1 + RANK), *arg, *ys[CASES], *out[CASES];
    ts_value *first = ts_reshape(b, ts_slice(b, x, 0, 0, 1), t->dims + 1, RANK);
    for (int k = 0; k < CASES; k++)
        if (t->dtype != TS_PRED || !reduces(k)) which[n++] = k;
    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof name, "%d", i);
        ts_output(b, name, apply(b, t, which[i], first), NULL);
    }
    for (int way = 0; way < 2; way++) {
        ts_repeat *r = ts_repeat_begin(b, TIMES, way == 1, NULL, 0, &x, 1, NULL, &arg);
        for (int i = 0; i < n; i++) ys[i] = apply(b, t, which[i], arg);
        ts_repeat_end(b, r, NULL, ys, NULL, n, out);
        for (int i = 0; i < n; i++) {
            snprintf(name, sizeof name, "%s %d", way ? "back" : "on", i);
            ts_output(b, name, out[i], NULL);
        }
    }
    which[n] = -1;
    return mesh_finish(b, &t->m);
}

/* ---- what is expected ------------------------------------------------------------------------ */

static void fill(void *p, const table *t, int device, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const uint32_t h = help_hash((uint32_t)i * 31u + (uint32_t)device * 65537u + 7u);
        float f = ldexpf((float)(h >> 8) - (1 << 23), -10 - (int)(h & 15));
        if (t->whole) f = (float)(h >> 28) - 8;
        switch (t->dtype) {
        case TS_F32: ((float *)p)[i] = f; break;
        case TS_BF16: ((uint16_t *)p)[i] = ts_bf16_from_f32(f); break;
        case TS_PRED: ((uint8_t *)p)[i] = h >> 7 & 1; break;
        default: ((uint32_t *)p)[i] = t->whole ? (uint32_t)(int32_t)f : h; break;
        }
    }
}

/* One element of the group's elements v[0 … n), summed or the largest. */
static uint32_t joined(const table *t, int reduce, const uint32_t *v, int64_t n)
{
    union {
        uint32_t u;
        float f;
    } s = {v[0]}, x;
    if (t->dtype == TS_BF16) s.f = ts_bf16_to_f32((uint16_t)v[0]);
    for (int64_t p = 1; p < n; p++) {
        x.u = v[p];
        if (t->dtype == TS_BF16) x.f = ts_bf16_to_f32((uint16_t)v[p]);
        if (t->dtype == TS_F32 || t->dtype == TS_BF16)
            s.f = reduce ? (x.f > s.f ? x.f : s.f) : s.f + x.f;
        else if (!reduce)
            s.u += x.u;
        else if (t->dtype == TS_U32 ? x.u > s.u : (int32_t)x.u > (int32_t)s.u)
            s.u = x.u;
    }
    return t->dtype == TS_BF16 ? ts_bf16_from_f32(s.f) : s.u;
}

static uint32_t bits(const void *p, ts_dtype t, int64_t i)
{
    const size_t bytes = ts_dtype_bytes(t);
    return bytes == 4   ? ((const uint32_t *)p)[i]
           : bytes == 2 ? ((const uint16_t *)p)[i]
                        : ((const uint8_t *)p)[i];
}

/* Bits of element i of case k's result on device d. x: every device's operand of this iteration. */
static uint32_t expected(const table *t, int k, int d, int64_t i, void *const *x, const ts_type *y)
{
    const ts_attr *a = &cases[k].attr;
    const int64_t n = t->m.axis[t->axis].n, stride = stride_of(&t->m, t->axis);
    const int64_t c = d / stride % n, first = d - c * stride, dim = a->collective.dim,
                  dim2 = a->collective.dim2;
    int64_t at[RANK] = {0}, size[RANK], from = c, j = 0;
    uint32_t v[MOST] = {0};
    if (cases[k].op == TS_OP_axis_index) return (uint32_t)c;
    for (int r = 0; r < RANK; r++) size[r] = t->dims[1 + r].size;
    for (int r = RANK - 1; r >= 0; i /= y->dim[y->rank - RANK + r].size, r--)
        at[r] = i % y->dim[y->rank - RANK + r].size;
    switch (cases[k].op) {
    case TS_OP_all_gather:
        from = at[dim] / size[dim];
        at[dim] %= size[dim];
        break;
    case TS_OP_all_to_all: {
        const int64_t part = dim == dim2 ? size[dim] / n : size[dim2];
        from = at[dim2] / part;
        at[dim2] %= part;
        at[dim] += c * (size[dim] / n);
        break;
    }
    case TS_OP_reduce_scatter: at[dim] += c * (size[dim] / n); break;
    case TS_OP_collective_permute: from = ((c - a->collective.shift) % n + n) % n; break;
    default: break;
    }
    for (int r = 0; r < RANK; r++) j = j * size[r] + at[r];
    if (!reduces(k)) return bits(x[first + from * stride], t->dtype, j);
    for (int64_t p = 0; p < n; p++) v[p] = bits(x[first + p * stride], t->dtype, j);
    return joined(t, a->collective.reduce, v, n);
}

/* Outputs of one device, against what x of all devices [TIMES, …] gives. */
static void check_device(const table *t, const ts_graph *g, const int *which, int n, int d,
                         void *const *x, void *const *out)
{
    const int devices = devices_of(&t->m);
    const size_t slice = ts_type_bytes(&g->top->arg[0]->type) / TIMES;
    for (int o = 0; o < g->top->n_result; o++) {
        const ts_type *y = &g->top->result[o]->type;
        const int64_t all = ts_type_elements(y), each = o < n ? all : all / TIMES;
        for (int64_t i = 0; i < all; i++) {
            void *then[MOST];
            for (int p = 0; p < devices; p++) then[p] = (char *)x[p] + (size_t)(i / each) * slice;
            const uint32_t want = expected(t, which[o % n], d, i % each, then, y),
                           got = bits(out[o], y->dtype, i);
            if (got != want)
                fail_msg("case %d (%s over %s in %s), output %s, device %d of %d, element %d: found %08x, "
                         "expected %08x",
                         which[o % n], ts_op_infos[cases[which[o % n]].op].name,
                         t->m.axis[t->axis].name, ts_dtype_name(t->dtype), g->output[o].name, d,
                         devices, (int)i, got, want);
        }
    }
}

/* ---- running it ------------------------------------------------------------------------------ */

/* x, out [devices × results]: the caller frees each. share: the CPU engine only. */
static void run_graph(ts_engine *e, const ts_graph *g, bool share, void *const *x, void **out)
{
    ts_executable *exe;
    const int devices = e->vtable->devices(e), n = g->top->n_result;
    ts_buffer **in = ts_alloc_zero((size_t)devices * sizeof *in),
              **to = ts_alloc_zero((size_t)(devices * n) * sizeof *to);
    OK(strcmp(e->vtable->name, "cpu") == 0 ? ts_cpu_compile(e, g, share, &exe, err)
                                           : ts_compile(e, g, &exe, err));
    for (int d = 0; d < devices; d++) {
        OK(ts_buffer_new(e, d, &g->top->arg[0]->type, &in[d], err));
        OK(ts_upload(in[d], x[d], 0, ts_type_bytes(&in[d]->type), err));
        for (int k = 0; k < n; k++) {
            if (g->output[k].replaces < 0)
                OK(ts_buffer_new(e, d, &g->top->result[k]->type, &to[d * n + k], err));
            else
                to[d * n + k] = in[d];
        }
    }
    OK(ts_execute(exe, in, to, err));
    OK(ts_wait(exe, err));
    for (int d = 0; d < devices; d++) {
        for (int k = 0; k < n; k++) {
            const size_t bytes = ts_type_bytes(&g->top->result[k]->type);
            out[d * n + k] = ts_alloc_zero(bytes);
            OK(ts_download(to[d * n + k], out[d * n + k], 0, bytes, err));
            if (g->output[k].replaces < 0) ts_buffer_free(to[d * n + k]);
        }
        ts_buffer_free(in[d]);
    }
    ts_free(in);
    ts_free(to);
    ts_executable_free(exe);
}

static void run_table(ts_engine *e, const table *t, bool share)
{
    int which[CASES + 1], n = 0;
    ts_graph *g = table_graph(t, which);
    const int devices = devices_of(&t->m), results = g->top->n_result;
    const ts_type *type = &g->top->arg[0]->type;
    void *x[MOST] = {NULL}, *out[MOST * 3 * CASES];
    while (which[n] >= 0) n++;
    assert_true(devices <= MOST && results == 3 * n);
    for (int d = 0; d < devices; d++) {
        x[d] = ts_alloc_zero(ts_type_bytes(type));
        fill(x[d], t, d, ts_type_elements(type));
    }
    run_graph(e, g, share, x, out);
    for (int d = 0; d < devices; d++) check_device(t, g, which, n, d, x, out + d * results);
    for (int d = 0; d < devices; d++) ts_free(x[d]);
    for (int i = 0; i < devices * results; i++) ts_free(out[i]);
    ts_graph_free(g);
}

#define SMALL {NULL, TIMES}, {NULL, 12}, {NULL, 12}, {NULL, 12}
#define LARGE {NULL, TIMES}, {NULL, 4}, {NULL, 12}, {NULL, 240} /* several pieces, and rows longer than one */

static void run_mesh(const mesh *m, const char *isa)
{
    static const ts_dtype dtypes[] = {TS_F32, TS_BF16, TS_I32, TS_U32, TS_PRED};
    ts_engine *e = open_cpu(devices_of(m), 2, isa);
    for (int a = 0; a < m->n; a++) {
        for (int i = 0; i < 5; i++)
            run_table(e, &(table){*m, a, dtypes[i], {SMALL}, false}, true);
        run_table(e, &(table){*m, a, TS_F32, {SMALL}, false}, false);
        if (m != &wide) continue;
        run_table(e, &(table){*m, a, TS_F32, {LARGE}, false}, true);
        run_table(e, &(table){*m, a, TS_BF16, {LARGE}, false}, true);
    }
    ts_engine_close(e);
}

static void collectives(void **unused)
{
    (void)unused;
    run_mesh(&square, "ref");
    run_mesh(&square, NULL);
    run_mesh(&wide, NULL);
    run_mesh(&cube, NULL);
    run_mesh(&odd, NULL);
}

/* ---- loops and shared memory ----------------------------------------------------------------- */

#define D(n)                                                                                       \
    {                                                                                              \
        NULL, (n)                                                                                  \
    }

static ts_value *over(ts_builder *b, ts_op op, const mesh *m, int a, ts_value *x, int64_t dim,
                      int64_t shift)
{
    ts_attr attr = {.collective = {.axis = m->axis[a].name,
                                   .n = m->axis[a].n,
                                   .dim = dim,
                                   .shift = shift}};
    return ts__op(b, op, &x, op == TS_OP_axis_index ? 0 : 1, &attr);
}

enum { LONG = 10000, SHORT = 100 };

/* x [n] of every device, five times: summed over a and halved, sent on along b, and the device's own index
 * added. The carry stays in x's memory. */
static ts_graph *loop_graph(const mesh *m, int64_t n, bool reverse)
{
    ts_builder *b = ts_builder_new("loop");
    ts_value *x = ts_input(b, "x", TS_F32, TS_DIMS(D(n))), *arg, *out, *next;
    ts_repeat *r = ts_repeat_begin(b, 5, reverse, &x, 1, NULL, 0, &arg, NULL);
    next = over(b, TS_OP_all_reduce, m, 0, arg, 0, 0);
    next = ts_mul(b, next, ts_constant(b, 0.5, TS_F32, TS_DIMS(D(n))));
    next = over(b, TS_OP_collective_permute, m, 1, next, 0, 1);
    ts_value *i = ts_convert(b, over(b, TS_OP_axis_index, m, 1, x, 0, 0), TS_F32);
    next = ts_add(b, next, ts_broadcast(b, i, TS_DIMS(D(n)), NULL, 0));
    ts_repeat_end(b, r, &next, NULL, NULL, 0, &out);
    ts_output(b, "x", out, x);
    return mesh_finish(b, m);
}

static void loop_expected(const mesh *m, int64_t size, float **x)
{
    const int64_t n = m->axis[0].n, k = m->axis[1].n;
    float *y = ts_alloc((size_t)(n * k) * sizeof *y);
    for (int64_t i = 0; i < size; i++)
        for (int t = 0; t < 5; t++) {
            for (int64_t c = 0; c < k; c++) {
                float s = x[c][i];
                for (int64_t p = 1; p < n; p++) s += x[p * k + c][i];
                for (int64_t p = 0; p < n; p++)
                    y[p * k + (c + 1) % k] = s * 0.5f + (float)((c + 1) % k);
            }
            for (int64_t d = 0; d < n * k; d++) x[d][i] = y[d];
        }
    ts_free(y);
}

static void run_loop(const mesh *m, int64_t size, int threads, bool reverse)
{
    const int devices = devices_of(m);
    const table t = {.dtype = TS_F32};
    ts_engine *e = open_cpu(devices, threads, NULL);
    ts_graph *g = loop_graph(m, size, reverse);
    float **x = ts_alloc_zero((size_t)devices * sizeof *x);
    void **out = ts_alloc_zero((size_t)devices * sizeof *out);
    for (int share = 0; share < 2; share++) {
        for (int d = 0; d < devices; d++) {
            x[d] = ts_alloc_zero((size_t)size * sizeof(float));
            fill(x[d], &t, d, size);
        }
        run_graph(e, g, share, (void *const *)x, out);
        loop_expected(m, size, x);
        for (int d = 0; d < devices; d++) {
            assert_memory_equal(out[d], x[d], (size_t)size * sizeof(float));
            ts_free(x[d]);
            ts_free(out[d]);
        }
    }
    ts_free(x);
    ts_free(out);
    ts_graph_free(g);
    ts_engine_close(e);
}

static void loops(void **unused)
{
    (void)unused;
    static const mesh cycles = {{{"a", 2}, {"b", 6}}, 2};
    for (int threads = 1; threads <= 5; threads += 2) {
        run_loop(&wide, LONG, threads, false);
        run_loop(&wide, LONG, threads, true);
        run_loop(&cycles, LONG, threads, false);
    }
}

/* 256 devices on however few cores. */
static void many_devices(void **unused)
{
    (void)unused;
    static const mesh large = {{{"a", 16}, {"b", 16}}, 2};
    run_loop(&large, SHORT, 2, false);
}

/* In the donated buffer from the first to the last, and no step is a copy. */
static void in_place(void **unused)
{
    (void)unused;
    ts_engine *e = open_cpu(8, 2, NULL);
    ts_graph *g = loop_graph(&wide, LONG, false);
    ts_executable *x;
    ts_string plan = ts_string_new(1 << 20);
    OK(ts_compile(e, g, &x, err));
    ts_cpu_plan_text(x, &plan);
    if (!strstr(plan.data, "all_reduce over a, 2 devices x+0 → x+0 f32[10000]") ||
        !strstr(plan.data, "collective_permute over b, 4 devices x+0 → x+0 f32[10000]") ||
        strstr(plan.data, "copy"))
        fail_msg("%s", plan.data);
    ts_string_free(&plan);
    ts_executable_free(x);
    ts_graph_free(g);
    ts_engine_close(e);
}

/* Every shift of every length goes round its cycles: x becomes what device c − shift had. */
static void permutes_in_place(void **unused)
{
    (void)unused;
    for (int n = 2; n <= 12; n++) {
        const mesh m = {{{"a", n}}, 1};
        ts_engine *e = open_cpu(n, 2, NULL);
        for (int shift = 0; shift < n; shift++) {
            uint32_t v[12];
            void *x[12], *out[12];
            ts_builder *b = ts_builder_new("permute");
            ts_value *in = ts_input(b, "x", TS_U32, TS_SCALAR);
            ts_output(b, "x", over(b, TS_OP_collective_permute, &m, 0, in, 0, shift), in);
            ts_graph *g = mesh_finish(b, &m);
            for (int d = 0; d < n; d++) x[d] = &v[d], v[d] = 100u + (uint32_t)d;
            run_graph(e, g, true, x, out);
            for (int d = 0; d < n; d++) {
                assert_int_equal(*(uint32_t *)out[d], 100 + (d - shift + n) % n);
                ts_free(out[d]);
            }
            ts_graph_free(g);
        }
        ts_engine_close(e);
    }
}

/* ---- what the engine offers and refuses ------------------------------------------------------ */

static void describes(void **unused)
{
    (void)unused;
    ts_engine *e = open_cpu(16, 2, "ref");
    assert_string_equal(e->vtable->describe(e), "cpu: 16 virtual devices, 2 threads, ref");
    assert_int_equal(e->vtable->devices(e), 16);
    assert_true(e->vtable->shares_inputs);
    ts_engine_close(e);
    e = open_cpu(0, 1, "ref");
    assert_string_equal(e->vtable->describe(e), "cpu: 1 thread, ref");
    ts_engine_close(e);
}

static void refuses(void **unused)
{
    (void)unused;
    static const mesh four = {{{"a", 4}}, 1}, one = {{{"a", 1}}, 1}, none = {{{"", 0}}, 0};
    ts_engine *e = open_cpu(8, 2, NULL);
    const struct {
        const mesh *m, *said;
        const char *words;
    } bad[] = {
        {&four, &four, "made for a mesh of 4 devices and would run on 8; partition it for those"},
        {&one, &one, "made for a mesh of 1 device and would run on 8"},
        {&four, &none, "it runs over axis \"a\" of 4 devices, but the graph has no mesh with such"},
    };
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        ts_error err = {0};
        ts_executable *x = NULL;
        ts_builder *b = ts_builder_new("refused");
        ts_value *in = ts_input(b, "x", TS_F32, TS_DIMS(D(4)));
        ts_output(b, "y", over(b, TS_OP_all_reduce, bad[k].m, 0, in, 0, 0), NULL);
        ts_graph *g = mesh_finish(b, bad[k].said);
        assert_int_equal(ts_compile(e, g, &x, &err), TS_FAILED_PRECONDITION);
        if (!strstr(err.msg, bad[k].words)) fail_msg("%s", err.msg);
        assert_null(x);
        ts_graph_free(g);
    }
    ts_engine_close(e);
}

/* Axes of one device cost no step, and a graph without a mesh runs on every device for itself. */
static void views(void **unused)
{
    (void)unused;
    static const mesh ones = {{{"a", 1}}, 1}, none = {{{"", 0}}, 0};
    ts_builder *b = ts_builder_new("views");
    ts_value *x = ts_input(b, "x", TS_F32, TS_DIMS(D(4))), *y = x;
    for (int op = TS_OP_all_reduce; op <= TS_OP_collective_permute; op++)
        y = over(b, (ts_op)op, &ones, 0, y, 0, 1);
    ts_output(b, "y", ts_neg(b, y), NULL);
    ts_output(b, "i", over(b, TS_OP_axis_index, &ones, 0, x, 0, 0), NULL);
    ts_graph *g = mesh_finish(b, &none);
    ts_engine *e = open_cpu(3, 2, NULL);
    ts_executable *exe;
    ts_string plan = ts_string_new(1 << 20);
    OK(ts_compile(e, g, &exe, err));
    ts_cpu_plan_text(exe, &plan);
    if (!strstr(plan.data, ": 2 steps")) fail_msg("%s", plan.data);
    ts_string_free(&plan);
    ts_executable_free(exe);
    float v[3][4] = {{1, 2, 3, 4}, {5, 6, 7, 8}, {9, 10, 11, 12}};
    void *out[6];
    run_graph(e, g, true, (void *[]){v[0], v[1], v[2]}, out);
    for (int d = 0; d < 3; d++) {
        for (int i = 0; i < 4; i++) assert_true(((float *)out[2 * d])[i] == -v[d][i]);
        assert_int_equal(*(int32_t *)out[2 * d + 1], 0);
    }
    for (int i = 0; i < 6; i++) ts_free(out[i]);
    ts_graph_free(g);
    ts_engine_close(e);
}

/* state ← state + Σ (w · index): w is one buffer for all devices; a buffer that is written is nobody else's. */
static void shared_inputs(void **unused)
{
    (void)unused;
    const mesh *m = &square;
    ts_builder *b = ts_builder_new("shared");
    ts_value *w = ts_input(b, "w", TS_F32, TS_DIMS(D(4))), *s = ts_input(b, "s", TS_F32, TS_DIMS(D(4)));
    ts_value *i = ts_convert(b, over(b, TS_OP_axis_index, m, 0, w, 0, 0), TS_F32);
    ts_value *wi = ts_mul(b, w, ts_broadcast(b, i, TS_DIMS(D(4)), NULL, 0));
    ts_output(b, "s", ts_add(b, s, over(b, TS_OP_all_reduce, m, 0, wi, 0, 0)), s);
    ts_graph *g = mesh_finish(b, m);
    ts_engine *e = open_cpu(4, 2, NULL);
    ts_executable *x;
    ts_buffer *one, *state[4], *in[8], *out[4];
    OK(ts_compile(e, g, &x, err));
    OK(ts_buffer_new(e, 2, &g->top->arg[0]->type, &one, err));
    OK(ts_upload(one, (float[]){1, 2, 3, 4}, 0, 16, err));
    for (int d = 0; d < 4; d++) {
        OK(ts_buffer_new(e, d, &g->top->arg[1]->type, &state[d], err));
        in[2 * d] = one;
        in[2 * d + 1] = out[d] = state[d];
    }
    OK(ts_execute(x, in, out, err));
    OK(ts_execute(x, in, out, err));
    for (int d = 0; d < 4; d++) {
        float v[4];
        OK(ts_download(state[d], v, 0, 16, err));
        for (int k = 0; k < 4; k++) assert_true(v[k] == 2.0f * (float)(k + 1));
    }
    /* Device 1 reads what device 0 writes; device 3's state is device 0's; device 2's input is an output. */
    const struct {
        int at;
        ts_buffer *b;
        const char *words;
    } bad[] = {{2, state[0], "given as two inputs"},
               {7, state[0], "output s: the buffer is on device 0, expected 3"},
               {4, state[2], "given as two inputs"}};
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        ts_error err = {0};
        ts_buffer *wrong[8], *to[4];
        memcpy(wrong, in, sizeof in);
        memcpy(to, out, sizeof out);
        wrong[bad[k].at] = bad[k].b;
        if (bad[k].at % 2) to[bad[k].at / 2] = bad[k].b;
        assert_int_equal(ts_execute(x, wrong, to, &err), TS_INVALID_ARGUMENT);
        if (!strstr(err.msg, bad[k].words)) fail_msg("%zu: %s", k, err.msg);
    }
    ts_executable_free(x);
    ts_buffer_free(one);
    for (int d = 0; d < 4; d++) ts_buffer_free(state[d]);
    ts_graph_free(g);
    ts_engine_close(e);
}

/* One event a device and step, one a collective; the step allocates nothing. */
static void timeline(void **unused)
{
    (void)unused;
    ts_engine *e = open_cpu(8, 2, NULL);
    ts_graph *g = loop_graph(&wide, LONG, true);
    ts_executable *x;
    ts_buffer *in[8];
    ts_profile_event event[1000];
    size_t reduces_seen = 0, adds = 0;
    OK(ts_compile(e, g, &x, err));
    for (int d = 0; d < 8; d++) OK(ts_buffer_new(e, d, &g->top->arg[0]->type, &in[d], err));
    x->vtable->profile_next(x);
    const uint64_t allocations = ts_alloc_count();
    OK(ts_execute(x, in, in, err));
    assert_int_equal(ts_alloc_count(), allocations);
    const size_t n = x->vtable->profile(x, event, 1000);
    assert_true(n > 0 && n <= 1000);
    for (size_t k = 0; k < n; k++) {
        if (event[k].node->op == TS_OP_all_reduce)
            assert_int_equal(event[k].iteration, 4 - (int64_t)reduces_seen++);
        adds += event[k].node->op == TS_OP_add;
    }
    assert_int_equal(reduces_seen, 5);
    assert_int_equal(adds, 5 * 8);
    ts_exec_stats s;
    x->vtable->stats(x, &s);
    assert_int_equal(s.memory.arguments, LONG * 4); /* of one device */
    assert_int_equal(s.unrecorded, 0);
    ts_executable_free(x);
    for (int d = 0; d < 8; d++) ts_buffer_free(in[d]);
    ts_graph_free(g);
    ts_engine_close(e);
}

/* Every allocation of compile fails once: an error, nothing lost (the sanitizers look). */
static void memory_out(void **unused)
{
    (void)unused;
    ts_engine *e = open_cpu(8, 2, NULL);
    ts_graph *g = loop_graph(&wide, LONG, false);
    ts_executable *x = NULL;
    uint64_t nth = 1;
    for (;; nth++) {
        ts_alloc_fail_at(nth);
        ts_status status = ts_compile(e, g, &x, NULL);
        ts_alloc_fail_at(0);
        if (status == TS_OK) break;
        assert_int_equal(status, TS_RESOURCE_EXHAUSTED);
        assert_null(x);
    }
    assert_true(nth > 3 * 8);
    ts_executable_free(x);
    ts_graph_free(g);
    ts_engine_close(e);
}

/* ---- the same on XLA -------------------------------------------------------------------------- */

static void xla_agrees(void **unused)
{
    (void)unused;
    ts_engine *e = NULL;
    ts_error why = {0};
    char path[4096];
    if (getenv("VALGRIND")) {
        puts("SKIP: the plugins' own code does not pass valgrind");
        skip();
    }
    if (ts__plugin_find("cpu", path, sizeof path, &why) != TS_OK) {
        printf("SKIP: %s\n", why.msg);
        skip();
    }
    const ts_engine_options o = {sizeof o, .name = "xla", .devices = 8, .plugin = "cpu"};
    OK(ts_engine_open(&o, &e, err));
    run_table(e, &(table){wide, 0, TS_F32, {SMALL}, true}, true);
    run_table(e, &(table){wide, 1, TS_BF16, {SMALL}, true}, true);
    run_table(e, &(table){cube, 1, TS_I32, {SMALL}, true}, true);
    ts_engine_close(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives),   cmocka_unit_test(loops),
        cmocka_unit_test(many_devices),  cmocka_unit_test(in_place),
        cmocka_unit_test(permutes_in_place), cmocka_unit_test(describes),
        cmocka_unit_test(refuses),       cmocka_unit_test(views),
        cmocka_unit_test(shared_inputs), cmocka_unit_test(timeline),
        cmocka_unit_test(memory_out),    cmocka_unit_test(xla_agrees),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
