/* test_ring.c – rings equal the gathers and scatters that they replace, form by form.
 *
 * Each form is a small program of one device, as a partitioner leaves it. It runs plain and rewritten, at the top and
 * as the body of a repeat, in f32 and bf16, over axes of 2, 3, 4 and 8 devices with another axis beside them, on the
 * CPU engine's virtual devices and on the plugin "cpu" where one is found. Every device has values of its own, so a
 * piece from the wrong neighbour is seen. What the rewrite must leave alone stays as it is, to the letter.
 */
#include "unit/ir_help.h"

#include "exec/engine.h"
#include "mesh/partition.h"
#include "slow.h"
#include "xla/plugin.h"

enum { TIMES = 3, MAX_IN = 32, MAX_OUT = 32, PIECE = 4 };

typedef struct shapes {
    int n;
    ts_type t[MAX_IN];
} shapes;

typedef struct form {
    const char *name;
    void (*inputs)(shapes *s, int n, ts_dtype d);
    int (*build)(ts_builder *b, int n, ts_dtype d, ts_value *const *in, ts_value **out);
    int gathers, scatters; /* that become rings */
} form;

static void add(shapes *s, ts_dtype d, int rank, int64_t x, int64_t y, int64_t z)
{
    const ts_dim dim[3] = {{NULL, x}, {NULL, y}, {NULL, z}};
    s->t[s->n++] = ts_type_make(d, dim, rank);
}

static ts_value *over(ts_builder *b, ts_op op, ts_value *x, int n, int dim)
{
    ts_attr a = {.collective = {.axis = "fsdp", .n = n, .dim = dim}};
    return ts__op(b, op, &x, 1, &a);
}

static ts_value *gather(ts_builder *b, ts_value *x, int n, int dim)
{
    return over(b, TS_OP_all_gather, x, n, dim);
}

static ts_value *scatter(ts_builder *b, ts_value *x, int n, int dim)
{
    return over(b, TS_OP_reduce_scatter, x, n, dim);
}

/* x and y contracted over one dimension each. */
static ts_value *dot(ts_builder *b, ts_value *x, ts_value *y, int xc, int yc, ts_dtype d)
{
    ts_dot_dims dims = {.n_contract = 1, .x_contract = {xc}, .y_contract = {yc}};
    return ts_dot(b, x, y, &dims, d);
}

/* ---- the forms ------------------------------------------------------------------------------- */

/* x [5, E] · w [6, E], E in pieces. */
static void in_contract(shapes *s, int n, ts_dtype d)
{
    add(s, d, 2, 5, n * PIECE, 0);
    add(s, d, 2, 6, PIECE, 0);
}

static int contract(ts_builder *b, int n, ts_dtype d, ts_value *const *in, ts_value **out)
{
    out[0] = dot(b, in[0], gather(b, in[1], n, 1), 1, 1, d);
    return 1;
}

/* The same with the gathered operand first, and two dimensions contracted. */
static void in_first(shapes *s, int n, ts_dtype d)
{
    add(s, d, 3, 2, 3, n * PIECE);
    add(s, d, 3, 3, PIECE, 5);
}

static int first(ts_builder *b, int n, ts_dtype d, ts_value *const *in, ts_value **out)
{
    ts_dot_dims dims = {.n_contract = 2, .x_contract = {1, 0}, .y_contract = {2, 1}};
    out[0] = ts_dot(b, gather(b, in[1], n, 1), in[0], &dims, d);
    return 1;
}

/* x [2, 3, F] · w [E, F], E in pieces: a dimension of the result. */
static void in_output(shapes *s, int n, ts_dtype d)
{
    (void)n;
    add(s, d, 3, 2, 3, 6);
    add(s, d, 2, PIECE, 6, 0);
}

static int output(ts_builder *b, int n, ts_dtype d, ts_value *const *in, ts_value **out)
{
    ts_value *w = gather(b, in[1], n, 0);
    out[0] = dot(b, in[0], w, 2, 1, d);
    out[1] = dot(b, w, in[0], 1, 2, TS_F32);
    return 2;
}

/* A batch dimension in pieces, gathered and scattered. */
static void in_batch(shapes *s, int n, ts_dtype d)
{
    add(s, d, 3, 3, n * PIECE, 2);
    add(s, d, 3, PIECE, 2, 5);
}

static int batch(ts_builder *b, int n, ts_dtype d, ts_value *const *in, ts_value **out)
{
    ts_dot_dims dims = {1, 1, {1}, {0}, {2}, {1}};
    ts_value *whole = gather(b, in[1], n, 0);
    out[0] = ts_dot(b, in[0], gather(b, in[1], n, 0), &dims, d);
    out[1] = scatter(b, ts_dot(b, in[0], ts_neg(b, whole), &dims, TS_F32), n, 0);
    return 2;
}

/* The gradient of a weight: over tokens, scattered along either side's dimension; in f32 and as it is. */
static void in_scatter(shapes *s, int n, ts_dtype d)
{
    add(s, d, 3, 2, 3, n * PIECE);
    add(s, d, 3, 2, 3, 2 * n * PIECE);
}

static int scatters(ts_builder *b, int n, ts_dtype d, ts_value *const *in, ts_value **out)
{
    ts_dot_dims dims = {.n_contract = 2, .x_contract = {0, 1}, .y_contract = {0, 1}};
    out[0] = scatter(b, ts_dot(b, in[0], in[1], &dims, TS_F32), n, 1);
    out[1] = scatter(b, ts_dot(b, in[0], in[1], &dims, TS_F32), n, 0);
    out[2] = scatter(b, ts_dot(b, in[0], in[1], &dims, d), n, 1);
    return 3;
}

/* q, k, v of one h with something between, used again backwards; their gradients' scatters share a ring. */
static void in_shared(shapes *s, int n, ts_dtype d)
{
    add(s, d, 2, 7, n * PIECE, 0);
    for (int i = 0; i < 3; i++) add(s, TS_F32, 2, 3 + i, PIECE, 0);
}

static int shared(ts_builder *b, int n, ts_dtype d, ts_value *const *in, ts_value **out)
{
    ts_value *w[3], *y[3], *dx[3];
    for (int i = 0; i < 3; i++) {
        w[i] = gather(b, ts_convert(b, in[1 + i], d), n, 1);
        y[i] = ts_tanh(b, dot(b, in[0], w[i], 1, 1, d));
    }
    for (int i = 0; i < 3; i++) {
        dx[i] = dot(b, ts_mul(b, y[i], y[i]), w[i], 1, 0, d);
        out[i] = scatter(b, dot(b, y[i], in[0], 0, 0, TS_F32), n, 1);
    }
    out[3] = ts_add_n(b, dx, 3);
    return 4;
}

/* A sequence gathered before products and scattered after them. */
static void in_sequence(shapes *s, int n, ts_dtype d)
{
    (void)n;
    add(s, d, 3, 2, PIECE, 6);
    add(s, d, 2, 5, 6, 0);
    add(s, d, 2, 5, 6, 0);
}

static int sequence(ts_builder *b, int n, ts_dtype d, ts_value *const *in, ts_value **out)
{
    ts_dot_dims both = {.n_contract = 2, .x_contract = {0, 1}, .y_contract = {0, 1}};
    ts_value *h = gather(b, in[0], n, 1);
    ts_value *gate = dot(b, h, in[1], 2, 1, d), *up = dot(b, h, in[2], 2, 1, d);
    ts_value *a = ts_gated(b, TS_SILU, gate, up);
    out[0] = scatter(b, dot(b, a, in[1], 2, 0, d), n, 1);
    out[1] = ts_dot(b, a, h, &both, TS_F32);
    return 2;
}

static const form forms[] = {{"contracted", in_contract, contract, 1, 0},
                             {"contracted, first operand", in_first, first, 1, 0},
                             {"of the result", in_output, output, 1, 0},
                             {"batch", in_batch, batch, 1, 1},
                             {"scattered", in_scatter, scatters, 0, 3},
                             {"shared", in_shared, shared, 3, 3},
                             {"sequence", in_sequence, sequence, 1, 1}};
enum { FORMS = sizeof forms / sizeof *forms };

/* All of them in one program: what a compiler that takes a second for each is given. */
static void in_all(shapes *s, int n, ts_dtype d)
{
    for (int k = 0; k < FORMS; k++) forms[k].inputs(s, n, d);
}

static int all(ts_builder *b, int n, ts_dtype d, ts_value *const *in, ts_value **out)
{
    int outs = 0;
    for (int k = 0; k < FORMS; k++) {
        shapes own = {0};
        forms[k].inputs(&own, n, d);
        outs += forms[k].build(b, n, d, in, out + outs);
        in += own.n;
    }
    return outs;
}
static const form every_form = {"all forms", in_all, all, 8, 8};

/* ---- a program ------------------------------------------------------------------------------- */

static void on_mesh(ts_graph *g, int n, int tensor)
{
    g->n_axis = 2;
    g->axis[0].name = "fsdp";
    g->axis[0].size = n;
    g->axis[1].name = "tensor";
    g->axis[1].size = tensor;
}

static ts_graph *program(const form *f, int n, int tensor, ts_dtype d, bool repeated)
{
    shapes s = {0};
    ts_builder *b = ts_builder_new(f->name);
    ts_value *in[MAX_IN], *arg[MAX_IN], *y[MAX_OUT], *out[MAX_OUT];
    char name[16];
    f->inputs(&s, n, d);
    for (int i = 0; i < s.n; i++) {
        ts_dim dim[TS_MAX_RANK] = {{NULL, TIMES}};
        memcpy(dim + repeated, s.t[i].dim, (size_t)s.t[i].rank * sizeof *dim);
        snprintf(name, sizeof name, "in%d", i);
        in[i] = ts_input(b, name, s.t[i].dtype, dim, s.t[i].rank + repeated);
    }
    int outs;
    if (repeated) {
        ts_repeat *r = ts_repeat_begin(b, TIMES, false, NULL, 0, in, s.n, NULL, arg);
        outs = f->build(b, n, d, arg, y);
        ts_repeat_end(b, r, NULL, y, NULL, outs, out);
    } else {
        outs = f->build(b, n, d, in, out);
    }
    for (int i = 0; i < outs; i++) {
        snprintf(name, sizeof name, "out%d", i);
        ts_output(b, name, out[i], NULL);
    }
    ts_graph *g = finish(b);
    on_mesh(g, n, tensor);
    return g;
}

/* −1 … 1, different on every device. */
static float element(int device, int input, int64_t i)
{
    uint32_t h = ((uint32_t)device * 8191u + (uint32_t)input * 131u + (uint32_t)i + 1u) * 0x9e3779b9u;
    h ^= h >> 15;
    h *= 0x85ebca6bu;
    return (float)(h >> 9) / (1 << 22) - 1;
}

static ts_buffer *made(ts_engine *e, int device, int input, const ts_type *t)
{
    ts_buffer *b;
    int64_t n = ts_type_elements(t);
    float *f = ts_alloc((size_t)n * 4);
    for (int64_t i = 0; i < n; i++) f[i] = element(device, input, i);
    if (t->dtype == TS_BF16)
        for (int64_t i = 0; i < n; i++) {
            uint16_t h = ts_bf16_from_f32(f[i]);
            memcpy((uint16_t *)(void *)f + i, &h, 2);
        }
    OK(ts_buffer_new(e, device, t, &b, &err));
    OK(ts_upload(b, f, 0, ts_type_bytes(t), &err));
    ts_free(f);
    return b;
}

/* Outputs of all devices, device by device, as f32: of_device elements each. */
static float *run(ts_engine *e, const ts_graph *g, int devices, int64_t *of_device)
{
    ts_executable *x;
    const int n_in = g->top->n_arg, n_out = g->top->n_result;
    ts_buffer **in = ts_alloc((size_t)(devices * n_in) * sizeof *in),
              **out = ts_alloc((size_t)(devices * n_out) * sizeof *out);
    OK(ts_compile(e, g, &x, &err));
    for (int i = 0; i < devices * n_in; i++)
        in[i] = made(e, i / n_in, i % n_in, &g->top->arg[i % n_in]->type);
    for (int i = 0; i < devices * n_out; i++)
        OK(ts_buffer_new(e, i / n_out, &g->top->result[i % n_out]->type, &out[i], &err));
    OK(ts_execute(x, in, out, &err));
    OK(ts_wait(x, &err));
    *of_device = 0;
    for (int i = 0; i < n_out; i++) *of_device += ts_type_elements(&g->top->result[i]->type);
    float *all = ts_alloc((size_t)(devices * *of_device) * 4), *at = all;
    for (int i = 0; i < devices * n_out; i++) {
        const ts_type *t = &g->top->result[i % n_out]->type;
        int64_t n = ts_type_elements(t);
        OK(ts_download(out[i], at, 0, ts_type_bytes(t), &err));
        if (t->dtype == TS_BF16)
            for (int64_t k = n - 1; k >= 0; k--) {
                uint16_t h;
                memcpy(&h, (uint16_t *)(void *)at + k, 2);
                at[k] = ts_bf16_to_f32(h);
            }
        at += n;
        ts_buffer_free(out[i]);
    }
    for (int i = 0; i < devices * n_in; i++) ts_buffer_free(in[i]);
    ts_free(in);
    ts_free(out);
    ts_executable_free(x);
    return all;
}

/* Output by output of all devices: the difference against the output's largest. */
static void compare(const form *f, const ts_graph *g, int devices, int64_t of_device, const float *a,
                    const float *b, ts_dtype d, int n)
{
    int64_t first_of = 0;
    for (int k = 0; k < g->top->n_result; k++) {
        const ts_type *t = &g->top->result[k]->type;
        const int64_t count = ts_type_elements(t);
        double largest = 0, worst = 0;
        for (int64_t i = 0; i < devices * count; i++) {
            int64_t at = i / count * of_device + first_of + i % count;
            if (fabs((double)a[at]) > largest) largest = fabs((double)a[at]);
            if (!(fabs((double)(a[at] - b[at])) <= worst)) worst = fabs((double)(a[at] - b[at]));
        }
        first_of += count;
        /* bf16: a unit in the last place, one more for each rounding of a sum that travels. */
        double bound = d == TS_F32 ? 1e-5 : t->dtype == TS_F32 ? 1e-2 : (1 + n / 4.0) / 128;
        assert_true(largest > 0);
        if (!(worst <= bound * largest))
            fail_msg("%s, %s, %d devices, output %d: differs by %g of %g", f->name, ts_dtype_name(d),
                     n, k, worst, largest);
    }
}

static void check(ts_engine *e, const form *f, int n, int tensor, ts_dtype d, bool repeated)
{
    const int devices = n * tensor;
    int64_t of_device, again;
    ts_graph *plain = program(f, n, tensor, d, repeated), *ring = NULL;
    OK(ts_graph_clone(plain, &ring, &err));
    OK(ts_ring_rewrite(ring, NULL, 1, &err));
    OK(ts_graph_verify(ring, &err));
    ts_graph_free(round_trip(ring, __LINE__));
    int gathers = count_op(plain->top, TS_OP_all_gather) - count_op(ring->top, TS_OP_all_gather),
        scattered =
            count_op(plain->top, TS_OP_reduce_scatter) - count_op(ring->top, TS_OP_reduce_scatter);
    assert_int_equal(gathers, f->gathers);
    assert_int_equal(scattered, f->scatters);
    assert_int_equal(count_op(ring->top, TS_OP_collective_permute), (gathers + scattered) * (n - 1));
    float *a = run(e, plain, devices, &of_device), *b = run(e, ring, devices, &again);
    assert_int_equal(of_device, again);
    compare(f, plain, devices, of_device, a, b, d, n);
    ts_free(a);
    ts_free(b);
    ts_graph_free(plain);
    ts_graph_free(ring);
}

static void on_meshes(const char *engine, const char *plugin, const form *of, int n_of, int step)
{
    const char *quick = TEST_QUICK_XLA;
    static const struct {
        int n, tensor;
    } mesh[] = {{2, 2}, {3, 1}, {4, 2}, {8, 1}};
    for (size_t m = 0; m < sizeof mesh / sizeof *mesh; m++) {
        ts_engine *e = NULL;
        ts_engine_options o = {sizeof o,
                               .name = engine,
                               .devices = mesh[m].n * mesh[m].tensor,
                               .plugin = plugin,
                               .precision = "highest",
                               .xla_flag = &quick,
                               .n_xla_flag = plugin != NULL};
        OK(ts_engine_open(&o, &e, &err));
        for (int k = 0; k < n_of; k++)
            for (int how = 0; how < 4; how += step)
                check(e, &of[k], mesh[m].n, mesh[m].tensor, how & 1 ? TS_BF16 : TS_F32, how & 2);
        ts_engine_close(e);
    }
}

static void on_virtual_devices(void **state)
{
    (void)state;
    on_meshes("cpu", NULL, forms, FORMS, 1);
}

static void on_the_plugin(void **state)
{
    char path[4096];
    ts_error why = {0};
    (void)state;
    if (getenv("VALGRIND")) {
        puts("SKIP: the plugins' own code does not pass valgrind");
        skip();
    }
    if (ts__plugin_find("cpu", path, sizeof path, &why) != TS_OK) {
        printf("SKIP: %s\n", why.msg);
        skip();
    }
    on_meshes("xla", "cpu", &every_form, 1, 3);
}

/* ---- what is left alone ---------------------------------------------------------------------- */

#define HEAD \
    "graph \"alone\" mesh(fsdp=2, tensor=2) {\n" \
    "  in %0 \"x\" f32[3,8]\n" \
    "  in %1 \"w\" f32[5,4]\n"
#define OVER(axis, n, dim) " axis=\"" axis "\" n=" n " dim=" dim " dim2=0 shift=0 reduce=sum : "
#define DOT "dot(%0, %2) x_batch=[] y_batch=[] x_contract=[1] y_contract=[1] dtype=f32 : f32[3,5]\n"

static const char *const left_alone[] = {
    /* read by an output as well */
    HEAD "  %2 = all_gather(%1)" OVER("fsdp", "2", "1") "f32[5,8]\n  %3 = " DOT
         "  out \"y\" %3\n  out \"w\" %2\n}\n",
    /* read by another op */
    HEAD "  %2 = all_gather(%1)" OVER("fsdp", "2", "1") "f32[5,8]\n  %3 = " DOT
         "  %4 = neg(%2) : f32[5,8]\n  out \"y\" %3\n  out \"w\" %4\n}\n",
    /* no product at all */
    HEAD "  %2 = all_gather(%1)" OVER("fsdp", "2", "1") "f32[5,8]\n  %3 = neg(%2) : f32[5,8]\n"
         "  out \"y\" %3\n}\n",
    /* another axis than was named */
    HEAD "  %2 = all_gather(%1)" OVER("tensor", "2", "1") "f32[5,8]\n  %3 = " DOT "  out \"y\" %3\n}\n",
    /* the same product on every device: both operands gathered, through a barrier that varying values pass, too */
    "graph \"alone\" mesh(fsdp=2, tensor=2) {\n  in %0 \"x\" f32[3,4]\n  in %1 \"w\" f32[5,4]\n"
    "  %2 = all_gather(%0)" OVER("fsdp", "2", "1") "f32[3,8]\n  %3, %4 = barrier(%2, %0) : f32[3,8], f32[3,4]\n"
    "  %5 = all_gather(%1)" OVER("fsdp", "2", "1") "f32[5,8]\n"
    "  %6 = dot(%3, %5) x_batch=[] y_batch=[] x_contract=[1] y_contract=[1] dtype=f32 : f32[3,5]\n"
    "  out \"y\" %6\n  out \"x\" %4\n}\n",
    /* the product that is scattered is read too */
    "graph \"alone\" mesh(fsdp=2, tensor=2) {\n  in %0 \"x\" f32[3,8]\n  in %1 \"w\" f32[3,4]\n"
    "  %2 = dot(%0, %1) x_batch=[] y_batch=[] x_contract=[0] y_contract=[0] dtype=f32 : f32[8,4]\n"
    "  %3 = reduce_scatter(%2)" OVER("fsdp", "2", "0") "f32[4,4]\n  out \"y\" %3\n  out \"whole\" %2\n}\n",
};

static void test_left_alone(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof left_alone / sizeof *left_alone; i++) {
        ts_graph *g = NULL;
        OK(ts_graph_parse(left_alone[i], strlen(left_alone[i]), &g, &err));
        char *before = text_of(g);
        OK(ts_ring_rewrite(g, NULL, 1, &err));
        char *after = text_of(g);
        assert_string_equal(before, after);
        ts_free(before);
        ts_free(after);
        ts_graph_free(g);
    }
}

/* Gathers that meet one operand travel side by side: in the first step all that can leave has left, and each product
 * takes the one slice. */
static void test_sharing(void **state)
{
    (void)state;
    ts_graph *g = program(&forms[5], 4, 2, TS_BF16, false);
    OK(ts_ring_rewrite(g, NULL, 1, &err));
    int permutes = 0, slices = 0;
    const ts_node *n = g->top->first;
    for (; n->op != TS_OP_dot; n = n->next) {
        permutes += n->op == TS_OP_collective_permute;
        slices += n->op == TS_OP_dynamic_slice;
    }
    assert_int_equal(permutes, 3 * 2);
    assert_int_equal(slices, 1);
    ts_graph_free(g);
}

/* With every n-th allocation failing the pass says so and leaves nothing behind. */
static void test_memory(void **state)
{
    (void)state;
    bool failed = true;
    for (uint64_t n = 1; failed; n++) {
        ts_graph *g = program(&forms[5], 4, 2, TS_BF16, true);
        ts_error err = {0};
        ts_alloc_fail_at(n);
        ts_status status = ts_ring_rewrite(g, NULL, 0, &err);
        ts_alloc_fail_at(0);
        failed = status != TS_OK;
        if (failed) assert_int_equal(status, TS_RESOURCE_EXHAUSTED);
        assert_true(n < 1000);
        ts_graph_free(g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_left_alone), cmocka_unit_test(test_sharing), cmocka_unit_test(test_memory),
        cmocka_unit_test(on_virtual_devices), cmocka_unit_test(on_the_plugin)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
