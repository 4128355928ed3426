/* tests/op/harness.c – builds, fills, runs and judges the graph of one case. */
#include "harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "eval_f64.h"
#include "slow.h"

static void *must(size_t n, size_t size)
{
    void *p = calloc(n ? n : 1, size);
    if (!p) abort();
    return p;
}

static size_t count(const ts_type *t) { return (size_t)ts_type_elements(t); }

/* ---- values ---------------------------------------------------------------------------------- */

static double rounded(double v, ts_dtype t)
{
    switch (t) {
    case TS_F32: return (double)(float)v;
    case TS_BF16: return (double)ts_bf16_to_f32(ts_bf16_from_f32((float)v));
    case TS_PRED: return v != 0;
    default: return floor(v);
    }
}

static uint64_t draw(uint64_t *state)                  /* splitmix64 */
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static double uniform(uint64_t *state) { return (double)(draw(state) >> 11) * 0x1p-53; }

static double normal(uint64_t *state)
{
    const double u = 1 - uniform(state), v = uniform(state);
    return sqrt(-2 * log(u)) * cos(2 * acos(-1.0) * v);
}

static double ordinary(ts_dtype t, uint64_t *state)
{
    switch (t) {
    case TS_I32: return floor(uniform(state) * 41) - 20;
    case TS_U32: return floor(uniform(state) * 41);
    case TS_PRED: return draw(state) & 1;
    default: return normal(state);
    }
}

static double special(ts_dtype t, size_t i, bool huge)
{
    static const double some[] = {1, NAN, -1, INFINITY, 0.0, -INFINITY, -0.0, 2, NAN, 0.5, -2.5};
    static const double large[] = {
        1,    2147483647.0, -1,        -2147483648.0, 0.5,   4294967040.0,
        3e38, -0.75,        5e9,       2147483520.0,  -3e38, 1.5,
        NAN,  INFINITY,     -INFINITY, -2147484672.0, 65535, 0};
    static const double ends[] = {0, 1, 2147483647.0,  -2147483648.0, -1, 2, 31, 32, 33, -7,
                                  7, 3, -2147483647.0, 65537,         5};
    if (t == TS_PRED) return i % 3 == 0;
    if (t == TS_I32) return ends[i % 15];
    if (t == TS_U32) return (double)(uint32_t)(int64_t)ends[i % 15];
    return huge ? large[i % 18] : some[i % 11];
}

/* Operand k walks its special values one step further each 15 elements: 225 elements meet all
 * pairs. */
static double filled(const test_input *in, int k, ts_dtype t, size_t i, uint64_t *state)
{
    const int64_t last = in->dim.n ? in->dim.v[in->dim.n - 1] : 1;
    switch (in->fill) {
    case FILL_POSITIVE:
        return t == TS_F32 || t == TS_BF16 ? 0.5 + 2 * uniform(state) : fabs(ordinary(t, state));
    case FILL_RANGE: return in->low + (in->high - in->low) * uniform(state);
    case FILL_VALUE: return in->low;
    case FILL_SPECIAL: return special(t, i + (size_t)k * (i / 15), false);
    case FILL_HUGE: return special(t, i + (size_t)k * (i / 15), true);
    case FILL_SEGMENTS: return floor((double)((int64_t)i % last * 3) / (double)last);
    default: return ordinary(t, state);
    }
}

/* The text of a case seeds it, so that adding a line changes no other. */
static uint64_t seed_of(const test_case *c)
{
    uint64_t h = 1469598103934665603u + c->seed;
    for (const char *s = c->text; *s; s++) h = (h ^ (uint8_t)*s) * 1099511628211u;
    return h;
}

/* ---- graphs ---------------------------------------------------------------------------------- */

static ts_dtype dtype_of(const test_input *in, ts_dtype t)
{
    return in->dtype == TEST_DTYPE ? t : (ts_dtype)in->dtype;
}

static ts_shape shape_of(const ts_dims *d)
{
    ts_shape s = {.rank = d->n};
    for (int i = 0; i < d->n; i++) s.dim[i].size = d->v[i];
    return s;
}

/* The attributes of the line, with its shape and the dtype under test put where the op wants them. */
static ts_attr attr_of(const test_case *c, ts_dtype t)
{
    ts_attr a = c->attr;
    switch (ts_op_infos[c->op].attr) {
    case TS_ATTR_constant: a.constant.shape = shape_of(&c->to); a.constant.dtype = t; break;
    case TS_ATTR_iota: a.iota.shape = shape_of(&c->to); a.iota.dtype = t; break;
    case TS_ATTR_shape: a.shape.shape = shape_of(&c->to); break;
    case TS_ATTR_broadcast: a.broadcast.shape = shape_of(&c->to); break;
    case TS_ATTR_scatter: a.scatter.rows = shape_of(&c->to); break;
    default: break;
    }
    return a;
}

static int build_node(ts_builder *b, const test_case *c, ts_dtype t, ts_value **in, int n,
                      ts_value **out)
{
    const ts_attr a = attr_of(c, t);
    const ts_node *node = ts__op_n(b, c->op, in, n, &a);
    for (int i = 0; node && i < node->n_out; i++) out[i] = node->out[i];
    return node ? node->n_out : 0;
}

static bool smooth(const ts_value *v)
{
    return v->type.dtype == TS_F32 || v->type.dtype == TS_BF16;
}

/* L = Σ_i Σ out_i·r_i in f32, r_i inputs. */
static ts_value *loss_of(ts_builder *b, const test_case *c, ts_value *const *out, int n)
{
    ts_value *loss = ts_scalar(b, 0, TS_F32);
    for (int i = 0; i < n; i++) {
        char name[16];
        const ts_type *t = ts_type_of(out[i]);
        const int64_t axes[] = {0, 1, 2, 3, 4, 5};
        if (!smooth(out[i]) || c->quiet >> i & 1) continue;
        snprintf(name, sizeof name, "r%d", i);
        ts_value *r = ts_input(b, name, TS_F32, t->dim, t->rank);
        ts_value *terms = ts_mul(b, ts_convert(b, out[i], TS_F32), r);
        loss = ts_add(b, loss, ts_reduce_sum(b, terms, axes, t->rank));
    }
    return loss;
}

static ts_status add_gradient(ts_builder *b, const test_case *c, ts_value *const *in, int n,
                              ts_value *const *out, int n_out, ts_error *err)
{
    ts_value *wrt[TEST_INPUTS], *d[TEST_INPUTS] = {NULL};
    int which[TEST_INPUTS], n_wrt = 0;
    ts_value *loss = loss_of(b, c, out, n_out);
    for (int i = 0; i < n; i++)
        if (smooth(in[i]) && !(c->fixed >> i & 1)) {
            which[n_wrt] = i;
            wrt[n_wrt++] = in[i];
        }
    TS_TRY(ts_grad(b, loss, wrt, n_wrt, d, err));
    for (int i = 0; i < n_wrt; i++) {
        char name[16];
        snprintf(name, sizeof name, "d%d", which[i]);
        ts_output(b, name, d[i], NULL);
    }
    return TS_OK;
}

ts_graph *test_graph(const test_case *c, ts_dtype t, bool gradient, ts_remat remat, ts_error *err)
{
    ts_value *in[TEST_INPUTS] = {NULL}, *out[16] = {NULL};
    ts_graph *g = NULL;
    ts_builder *b = ts_builder_new("case");
    char name[16];
    int n = 0;
    if (!b) return NULL;
    b->remat = remat;
    for (; n < TEST_INPUTS && c->in[n].used; n++) {
        const ts_shape s = shape_of(&c->in[n].dim);
        snprintf(name, sizeof name, "in%d", n);
        in[n] = ts_input(b, name, dtype_of(&c->in[n], t), s.dim, s.rank);
    }
    const int n_out = c->build ? c->build(b, c, in, out) : build_node(b, c, t, in, n, out);
    for (int i = 0; i < n_out; i++) {
        snprintf(name, sizeof name, "out%d", i);
        ts_output(b, name, out[i], NULL);
    }
    if (gradient && b->error.code == TS_OK && add_gradient(b, c, in, n, out, n_out, err) != TS_OK) {
        ts_builder_free(b);
        return NULL;
    }
    return ts_builder_finish(b, &g, err) == TS_OK ? g : NULL;
}

/* ---- engines --------------------------------------------------------------------------------- */

ts_engine *test_engine(const char *name, const char *kind, ts_error *err)
{
    const bool xla = strcmp(name, "xla") == 0;
    const char *const quick[] = {TEST_QUICK_XLA};
    const ts_engine_options o = {.struct_size = sizeof o,
                                 .name = name,
                                 .devices = 1,
                                 .threads = 2,
                                 .isa = xla ? NULL : kind,
                                 .plugin = xla ? kind : NULL,
                                 .xla_flag = quick,
                                 .n_xla_flag = xla && strcmp(kind, "cpu") == 0 && test_is_slow()};
    ts_engine *e = NULL;
    return ts_engine_open(&o, &e, err) == TS_OK ? e : NULL;
}

static void encode(const ts_type *t, const double *v, void *to)
{
    for (size_t i = 0; i < count(t); i++) {
        switch (t->dtype) {
        case TS_F32: ((float *)to)[i] = (float)v[i]; break;
        case TS_BF16: ((uint16_t *)to)[i] = ts_bf16_from_f32((float)v[i]); break;
        case TS_I32: ((int32_t *)to)[i] = (int32_t)v[i]; break;
        case TS_U32: ((uint32_t *)to)[i] = (uint32_t)v[i]; break;
        default: ((uint8_t *)to)[i] = v[i] != 0; break;
        }
    }
}

static void decode(const ts_type *t, const void *from, double *v)
{
    for (size_t i = 0; i < count(t); i++) {
        switch (t->dtype) {
        case TS_F32: v[i] = (double)((const float *)from)[i]; break;
        case TS_BF16: v[i] = (double)ts_bf16_to_f32(((const uint16_t *)from)[i]); break;
        case TS_I32: v[i] = ((const int32_t *)from)[i]; break;
        case TS_U32: v[i] = ((const uint32_t *)from)[i]; break;
        default: v[i] = ((const uint8_t *)from)[i]; break;
        }
    }
}

/* One buffer an argument or result, with in[] uploaded where it is given. */
static ts_status make_buffers(ts_engine *e, int device, ts_value *const *values, int n,
                              double *const *in, ts_buffer **out, ts_error *err)
{
    for (int i = 0; i < n; i++) {
        const ts_type *t = &values[i]->type;
        TS_TRY(ts_buffer_new(e, device, t, &out[i], err));
        if (!in) continue;
        void *bytes = must(ts_type_bytes(t), 1);
        encode(t, in[i], bytes);
        const ts_status status = ts_upload(out[i], bytes, 0, ts_type_bytes(t), err);
        free(bytes);
        TS_TRY(status);
    }
    return TS_OK;
}

uint64_t test_executes, test_finished;

static ts_status download(ts_buffer *from, double *to, ts_error *err)
{
    const ts_type *t = &from->type;
    void *bytes = must(ts_type_bytes(t), 1);
    const ts_status status = ts_download(from, bytes, 0, ts_type_bytes(t), err);
    if (status == TS_OK) decode(t, bytes, to);
    free(bytes);
    return status;
}

ts_status test_execute_on(ts_engine *e, const ts_graph *g, int devices, double *const *in,
                          double *const *out, ts_error *err)
{
    const ts_region *top = g->top;
    const int n_in = top->n_arg, n_out = top->n_result;
    ts_buffer *args[TEST_DEVICES * TEST_ARRAYS] = {NULL}, *results[TEST_DEVICES * TEST_ARRAYS] = {NULL};
    ts_executable *x = NULL;
    ts_exec_stats stats;
    ts_status status;
    TS_ASSERT(n_in <= TEST_ARRAYS && n_out <= TEST_ARRAYS && devices <= TEST_DEVICES);
    TS_TRY_GOTO(ts_compile(e, g, &x, err), done);
    for (int d = 0; d < devices; d++) {
        TS_TRY_GOTO(make_buffers(e, d, top->arg, n_in, in + d * n_in, args + d * n_in, err), done);
        TS_TRY_GOTO(make_buffers(e, d, top->result, n_out, NULL, results + d * n_out, err), done);
    }
    TS_TRY_GOTO(ts_execute(x, args, results, err), done);
    TS_TRY_GOTO(ts_wait(x, err), done);
    x->vtable->stats(x, &stats);
    test_executes++;
    test_finished += stats.executes;
    for (int i = 0; i < devices * n_out && status == TS_OK; i++) status = download(results[i], out[i], err);
done:
    for (int i = 0; i < devices * n_in; i++) ts_buffer_free(args[i]);
    for (int i = 0; i < devices * n_out; i++) ts_buffer_free(results[i]);
    ts_executable_free(x);
    return status;
}

ts_status test_execute(ts_engine *e, const ts_graph *g, double *const *in, double *const *out,
                       ts_error *err)
{
    return test_execute_on(e, g, 1, in, out, err);
}

/* ---- judging --------------------------------------------------------------------------------- */

double test_error(const ts_type *t, const double *got, const double *want, double floor,
                  int64_t *at)
{
    const bool exact = t->dtype != TS_F32 && t->dtype != TS_BF16;
    double largest = floor, worst = 0;
    *at = 0;
    for (size_t i = 0; i < count(t); i++)
        if (isfinite(rounded(want[i], t->dtype))) largest = fmax(largest, fabs(want[i]));
    for (size_t i = 0; i < count(t); i++) {
        const double w = rounded(want[i], t->dtype); /* what is infinite in the dtype is infinite */
        double error = fabs(got[i] - want[i]) / largest;
        if (exact)
            error = got[i] == want[i] ? 0 : INFINITY;
        else if (isnan(w))
            error = isnan(got[i]) ? 0 : INFINITY;
        else if (isinf(w))
            error = got[i] == w ? 0 : INFINITY;
        if (!(error <= worst)) {
            worst = isnan(error) ? INFINITY : error;
            *at = (int64_t)i;
        }
    }
    return worst;
}

typedef struct trial {
    ts_engine *engine;
    const test_case *c;
    ts_dtype dtype;
    int failures;
} trial;

bool test_quiet;

static void complain(trial *t, const char *what, const char *detail)
{
    t->failures++;
    if (test_quiet) return;
    printf("FAILED %s [%s]: CASE(%s)\n  %s: %s\n", t->engine->vtable->name, ts_dtype_name(t->dtype),
           t->c->text, what, detail);
}

static void judge(trial *t, const char *what, const char *name, const ts_type *type,
                  const double *got, const double *want, double bound, double floor)
{
    char detail[400];
    int64_t at;
    const double error = test_error(type, got, want, floor, &at);
    if (error <= bound) return;
    snprintf(detail, sizeof detail,
             "%s is off by %.3g at element %lld (found %.9g, expected %.9g); the bound is %.3g",
             name, error, (long long)at, got[at], want[at], bound);
    complain(t, what, detail);
}

/* Print, parse, print again: the same text. */
static void check_text(trial *t, const ts_graph *g)
{
    ts_string a = ts_string_new(1 << 24), b = ts_string_new(1 << 24);
    ts_graph *again = NULL;
    ts_error err = {0};
    ts_graph_print(g, &a);
    if (ts_graph_parse(a.data, a.length, &again, &err) != TS_OK) {
        complain(t, "its text does not parse", err.msg);
    } else {
        ts_graph_print(again, &b);
        if (a.length != b.length || memcmp(a.data, b.data, a.length) != 0)
            complain(t, "printed, parsed and printed again it differs", a.data);
        ts_graph_free(again);
    }
    ts_string_free(&a);
    ts_string_free(&b);
}

static bool keep_nothing(const ts_node *n)
{
    (void)n;
    return false;
}

static ts_status lower_all(ts_graph *g, ts_error *err)
{
    return ts_graph_lower(g, keep_nothing, err);
}

/* Runs a pass and the verifier after it. */
static bool pass(trial *t, ts_graph *g, const char *name, ts_status (*run)(ts_graph *, ts_error *))
{
    ts_error err = {0};
    if (run(g, &err) == TS_OK && ts_graph_verify(g, &err) == TS_OK) return true;
    complain(t, name, err.msg);
    return false;
}

/* ---- one case -------------------------------------------------------------------------------- */

/* Arrays for values. r inputs and the case's inputs are filled alike in every graph of the case. */
static void arrays(ts_value *const *values, int n, double **out)
{
    for (int i = 0; i < n; i++) out[i] = must(count(&values[i]->type), sizeof(double));
}

static void release(double **v, int n)
{
    for (int i = 0; i < n; i++) free(v[i]);
}

static void fill_inputs(const trial *t, const ts_graph *g, double **in)
{
    for (int i = 0; i < g->top->n_arg; i++) {
        const ts_value *v = g->top->arg[i];
        uint64_t state = seed_of(t->c) + (uint64_t)i * 7919;
        for (size_t k = 0; k < count(&v->type); k++) {
            const double x = v->name[0] == 'i' ? filled(&t->c->in[i], i, v->type.dtype, k, &state)
                                               : normal(&state);
            in[i][k] = rounded(x, v->type.dtype);
        }
    }
}

/* L from the forward graph's outputs and the r inputs of the gradient graph. */
static double loss_f64(const ts_graph *forward, double *const *in, const ts_graph *g,
                       double *const *r, double **out)
{
    double sum = 0;
    f64_eval(forward, in, out);
    for (int i = forward->top->n_arg; i < g->top->n_arg; i++) {
        const int k = atoi(g->top->arg[i]->name + 1);
        for (size_t j = 0; j < count(&g->top->arg[i]->type); j++) sum += out[k][j] * r[i][j];
    }
    return sum;
}

static void differences(const ts_graph *forward, const ts_graph *g, double **in, int which,
                        double *want)
{
    double *out[TEST_ARRAYS];
    arrays(forward->top->result, forward->top->n_result, out);
    for (size_t i = 0; i < count(&forward->top->arg[which]->type); i++) {
        const double x = in[which][i], h = 1e-5 * fmax(1, fabs(x));
        in[which][i] = x + h;
        const double up = loss_f64(forward, in, g, in, out);
        in[which][i] = x - h;
        want[i] = (up - loss_f64(forward, in, g, in, out)) / (2 * h);
        in[which][i] = x;
    }
    release(out, forward->top->n_result);
}

static void judge_outputs(trial *t, const char *what, const ts_graph *g, double **got,
                          double **want)
{
    const bool f32 = t->dtype != TS_BF16;
    for (int i = 0; i < g->top->n_result; i++) {
        const char *name = g->output[i].name;
        const double bound = f32 ? t->c->fwd : t->c->fwd16 > 0 ? t->c->fwd16 : 1e-2;
        const double grad = f32 ? t->c->grad : t->c->grad16 > 0 ? t->c->grad16 : 3e-2;
        const bool is_grad = name[0] == 'd';
        judge(t, what, name, &g->top->result[i]->type, got[i], want[i], is_grad ? grad : bound,
              is_grad ? 1e-3 : 1e-6);
    }
}

static void execute_and_judge(trial *t, const char *what, const ts_graph *g, double **in,
                              double **want)
{
    double *got[TEST_ARRAYS];
    ts_error err = {0};
    arrays(g->top->result, g->top->n_result, got);
    if (test_execute(t->engine, g, in, got, &err) != TS_OK)
        complain(t, what, err.msg);
    else
        judge_outputs(t, what, g, got, want);
    release(got, g->top->n_result);
}

/* Expected values of g's outputs: the interpreter's, and differences of it for gradients. The row
 * that take gives no gradient (padding) is the one place where a gradient is not the derivative. */
static void expect(const test_case *c, const ts_graph *forward, const ts_graph *g, double **in,
                   double **want)
{
    f64_eval(forward, in, want);
    for (int i = forward->top->n_result; i < g->top->n_result; i++) {
        const int which = atoi(g->output[i].name + 1);
        differences(forward, g, in, which, want[i]);
        if (c->op != TS_OP_take || which != 0 || c->attr.take.no_grad_row < 0) continue;
        const ts_type *table = &forward->top->arg[0]->type;
        const size_t width = count(table) / (size_t)table->dim[0].size;
        memset(want[i] + (size_t)c->attr.take.no_grad_row * width, 0, width * sizeof(double));
    }
}

static bool has_composite(const ts_region *r)
{
    for (const ts_node *n = r->first; n; n = n->next)
        if (ts_op_infos[n->op].kind == TS_COMPOSITE || (n->body && has_composite(n->body)))
            return true;
    return false;
}

static void check_graph(trial *t, ts_graph *g, double **in, double **want)
{
    ts_error err = {0};
    /* The xla engine lowers whatever it gets, and its compiler takes most of the time: one form. */
    const bool once = strcmp(t->engine->vtable->name, "xla") == 0;
    if (ts_graph_verify(g, &err) != TS_OK) {
        complain(t, "the verifier refuses it", err.msg);
        return;
    }
    check_text(t, g);
    execute_and_judge(t, "as built", g, in, want);
    if (!pass(t, g, "after cse", ts_graph_cse) || !pass(t, g, "after dce", ts_graph_dce)) return;
    check_text(t, g);
    if (t->c->grad > 0 && !once) execute_and_judge(t, "after cse and dce", g, in, want);
    if (!has_composite(g->top) || !pass(t, g, "after lowering", lower_all)) return;
    check_text(t, g);
    if (!once) execute_and_judge(t, "lowered", g, in, want);
}

unsigned test_case_dtypes(const test_case *c)
{
    const unsigned all = c->op == TS_OP_repeat ? 1u << TS_F32 | 1u << TS_BF16 : ts_op_dtypes(c->op);
    return c->dtypes ? c->dtypes & all : all;
}

int test_case_run(ts_engine *e, const test_case *c, ts_dtype dtype, bool all_remats)
{
    trial t = {e, c, dtype, 0};
    ts_error err = {0};
    double *in[TEST_ARRAYS], *want[TEST_ARRAYS];
    const bool gradient = c->grad > 0 && (dtype == TS_F32 || dtype == TS_BF16);
    ts_graph *forward = test_graph(c, dtype, false, TS_REMAT_NONE, &err);
    for (int remat = TS_REMAT_NONE;
         forward && remat <= (all_remats ? TS_REMAT_MINIMAL : TS_REMAT_NONE); remat++) {
        ts_graph *g = test_graph(c, dtype, gradient, (ts_remat)remat, &err);
        if (!g) break;
        if (remat == TS_REMAT_NONE) { /* inputs and expectations are those of any remat */
            arrays(g->top->arg, g->top->n_arg, in);
            arrays(g->top->result, g->top->n_result, want);
            fill_inputs(&t, g, in);
            expect(c, forward, g, in, want);
        }
        check_graph(&t, g, in, want);
        if (remat == (all_remats ? TS_REMAT_MINIMAL : TS_REMAT_NONE)) {
            release(in, g->top->n_arg);
            release(want, g->top->n_result);
        }
        ts_graph_free(g);
    }
    if (err.code != TS_OK) complain(&t, "it does not build", err.msg);
    ts_graph_free(forward);
    return t.failures;
}
