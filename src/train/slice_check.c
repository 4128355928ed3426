/* train/slice_check.c – are these devices one slice? One feed-forward split over all of them, and a sum of their ranks.
 *
 * y = x + w2·silu(w1·x) with w1 split by columns and w2 by rows is one all_reduce of partial products: a rank that is
 * missing, twice there, in another's place or wrong in its arithmetic shows in y on every rank; the sum of rank + 1
 * and the place that the program finds itself at say which of these it is. Every rank's results are fetched and
 * compared alone, with a reference that the host computes in double and, where one is given, with a file's.
 * The program runs twice where the mesh has several axes: with one all_reduce over all devices, and with one after the
 * other along each axis. x [B,H], w1 [F,H], w2 [H,F], y [B,H]; B = 64, H = 128, F = 512.
 *
 * Not here: time (slice_time.c), several processes.
 */
#include "train/slice_check.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include "ckpt/safetensors.h"
#include "ir/builder.h"
#include "nn/nn.h"
#include "train/choose.h"

enum { BATCH = 64, HIDDEN = 128, INNER = 4 * HIDDEN, SUMS = 4, SEED = 42 };
enum { N_X = BATCH * HIDDEN, N_W = INNER * HIDDEN };
static const double rtol = 1e-3, atol_y = 1e-2;
_Static_assert((int)TS_SLICE_AXES == (int)TS_MAX_AXES, "a report has room for every mesh");

typedef struct slice {
    ts_engine *engine;
    const ts_slice_options *options;
    ts_slice_report *report;
    float *x, *w1, *w2, *golden; /* golden [N_X]: the file's y; NULL without a file */
    double *reference;           /* [N_X] */
    float *piece;                /* [N_W] one device's part of a weight, then its y */
} slice;

/* ---- a program on every device --------------------------------------------------------------- */

void ts__slice_run_close(ts_slice_run *r)
{
    for (size_t i = 0; r->in && i < (size_t)r->devices * r->n_in; i++) ts_buffer_free(r->in[i]);
    for (size_t i = 0; r->out && i < (size_t)r->devices * r->n_out; i++) ts_buffer_free(r->out[i]);
    ts_free(r->in);
    ts_free(r->out);
    ts_executable_free(r->executable);
    ts_graph_free(r->graph);
    *r = (ts_slice_run){0};
}

static ts_status make_buffers(ts_engine *e, ts_slice_run *r, ts_error *err)
{
    const ts_region *top = r->graph->top;
    r->n_in = (size_t)top->n_arg;
    r->n_out = (size_t)top->n_result;
    r->in = ts_alloc_zero((size_t)r->devices * r->n_in * sizeof *r->in);
    r->out = ts_alloc_zero((size_t)r->devices * r->n_out * sizeof *r->out);
    if (!r->in || !r->out)
        return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out for the slice check");
    for (int d = 0; d < r->devices; d++) {
        for (size_t i = 0; i < r->n_in; i++)
            TS_TRY(ts_buffer_new(e, d, &top->arg[i]->type, &r->in[(size_t)d * r->n_in + i], err));
        for (size_t i = 0; i < r->n_out; i++)
            TS_TRY(
                ts_buffer_new(e, d, &top->result[i]->type, &r->out[(size_t)d * r->n_out + i], err));
    }
    return TS_OK;
}

ts_status ts__slice_run_open(ts_engine *e, const ts_mesh *m, ts_builder *b, ts_slice_run *out,
                             ts_error *err)
{
    *out = (ts_slice_run){.devices = m->devices};
    ts_status status = ts_builder_finish(b, &out->graph, err);
    if (status == TS_OK) {
        out->graph->n_axis = m->n;
        for (int i = 0; i < m->n; i++) {
            out->graph->axis[i].name = m->axis[i].name;
            out->graph->axis[i].size = m->axis[i].size;
        }
        status = ts_compile(e, out->graph, &out->executable, err);
    }
    if (status == TS_OK) status = make_buffers(e, out, err);
    if (status != TS_OK) ts__slice_run_close(out);
    return status;
}

ts_status ts__slice_run(ts_slice_run *r, ts_error *err)
{
    TS_TRY(ts_execute(r->executable, r->in, r->out, err));
    return ts_wait(r->executable, err);
}

ts_value *ts__slice_collective(ts_builder *b, ts_op op, const ts_mesh *m, int a, ts_value *x)
{
    const ts_attr attr = {.collective = {.axis = m->axis[a].name,
                                         .n = m->axis[a].size,
                                         .shift = op == TS_OP_collective_permute}};
    return ts__op(b, op, &x, x ? 1 : 0, &attr);
}

/* ---- the program ----------------------------------------------------------------------------- */

static ts_value *all_reduce(ts_builder *b, const ts_mesh *m, ts_value *x)
{
    for (int a = 0; a < m->n; a++) x = ts__slice_collective(b, TS_OP_all_reduce, m, a, x);
    return x;
}

/* This device's number: row-major over the axes, as the mesh counts. → i32 */
static ts_value *own_rank(ts_builder *b, const ts_mesh *m)
{
    ts_value *rank = ts_scalar(b, 0, TS_I32);
    for (int a = 0; a < m->n; a++) {
        ts_value *size = ts_scalar(b, (double)m->axis[a].size, TS_I32);
        ts_value *index = ts__slice_collective(b, TS_OP_axis_index, m, a, NULL);
        rank = ts_add(b, ts_mul(b, rank, size), index);
    }
    return rank;
}

static ts_builder *program(const ts_mesh *m)
{
    static const ts_dot_dims last = {.n_contract = 1, .x_contract = {1}, .y_contract = {1}};
    const int64_t F = INNER / m->devices; /* of one device */
    ts_builder *b = ts_builder_new("slice_check");
    if (!b) return NULL;
    ts_value *x = ts_input(b, "x", TS_F32, TS_DIMS({NULL, BATCH}, {NULL, HIDDEN}));
    ts_value *w1 = ts_input(b, "w1", TS_F32, TS_DIMS({NULL, F}, {NULL, HIDDEN}));
    ts_value *w2 = ts_input(b, "w2", TS_F32, TS_DIMS({NULL, HIDDEN}, {NULL, F}));
    ts_value *h = ts_dot(b, x, w1, &last, TS_F32); /* [B,F] */
    h = ts_mul(b, h, ts_logistic(b, h));
    ts_value *part = ts_dot(b, h, w2, &last, TS_F32); /* [B,H], one of N summands */
    ts_value *rank = own_rank(b, m);
    ts_value *one_more = ts_add(b, ts_convert(b, rank, TS_F32), ts_scalar(b, 1, TS_F32));
    one_more = ts_broadcast(b, one_more, TS_DIMS({NULL, SUMS}), NULL, 0);
    ts_output(b, "y", ts_add(b, x, all_reduce(b, m, part)), NULL);
    ts_output(b, "sum", all_reduce(b, m, one_more), NULL);
    ts_output(b, "rank", rank, NULL);
    return b;
}

/* ---- weights and reference ------------------------------------------------------------------- */

/* Every tensor must be there, f32, in the check's own shape. */
static ts_status read_tensor(ts_tensors *t, const char *path, const char *name, int64_t rows,
                             int64_t columns, float *to, ts_error *err)
{
    const ts_tensor *x = ts_tensors_find(t, name);
    ts_string shape = ts_string_new(400);
    if (!x)
        return TS_ERROR(err, TS_DATA_LOSS,
                        "%s has no tensor %s; the slice check needs w1 [%d,%d], w2 [%d,%d], x and y "
                        "[%d,%d]",
                        path, name, INNER, HIDDEN, HIDDEN, INNER, BATCH, HIDDEN);
    if (x->rank == 2 && x->dim[0] == rows && x->dim[1] == columns)
        return ts_tensors_read_f32(t, x, 0, x->count, to, err);
    for (int i = 0; i < x->rank; i++)
        ts_string_printf(&shape, "%s%lld", i ? "," : "", (long long)x->dim[i]);
    ts_status status = TS_ERROR(err, TS_DATA_LOSS, "%s: tensor %s is [%s]; expected [%lld,%lld]",
                                path, name, shape.data ? shape.data : "", (long long)rows,
                                (long long)columns);
    ts_string_free(&shape);
    return status;
}

static ts_status read_golden(slice *s, const char *path, ts_error *err)
{
    ts_tensors *t = NULL;
    TS_TRY(ts_tensors_open(path, &t, err));
    ts_status status = read_tensor(t, path, "w1", INNER, HIDDEN, s->w1, err);
    if (status == TS_OK) status = read_tensor(t, path, "w2", HIDDEN, INNER, s->w2, err);
    if (status == TS_OK) status = read_tensor(t, path, "x", BATCH, HIDDEN, s->x, err);
    if (status == TS_OK) status = read_tensor(t, path, "y", BATCH, HIDDEN, s->golden, err);
    ts_tensors_close(t);
    return status;
}

/* y in double, [B,H]. */
static void compute_reference(slice *s)
{
    double h[INNER];
    for (int r = 0; r < BATCH; r++) {
        const float *x = s->x + r * HIDDEN;
        for (int f = 0; f < INNER; f++) {
            double z = 0;
            for (int k = 0; k < HIDDEN; k++) z += (double)x[k] * (double)s->w1[f * HIDDEN + k];
            h[f] = z / (1 + exp(-z));
        }
        for (int k = 0; k < HIDDEN; k++) {
            double y = (double)x[k];
            for (int f = 0; f < INNER; f++) y += h[f] * (double)s->w2[k * INNER + f];
            s->reference[r * HIDDEN + k] = y;
        }
    }
}

static ts_status prepare(slice *s, ts_error *err)
{
    s->x = ts_alloc(N_X * sizeof *s->x);
    s->w1 = ts_alloc(N_W * sizeof *s->w1);
    s->w2 = ts_alloc(N_W * sizeof *s->w2);
    s->piece = ts_alloc(N_W * sizeof *s->piece);
    s->reference = ts_alloc(N_X * sizeof *s->reference);
    if (s->options->golden) s->golden = ts_alloc(N_X * sizeof *s->golden);
    if (!s->x || !s->w1 || !s->w2 || !s->piece || !s->reference ||
        (s->options->golden && !s->golden))
        return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out for the slice check");
    if (s->golden) {
        TS_TRY(read_golden(s, s->options->golden, err));
    } else { /* as wide as a linear layer's usual start: 1/√fan-in */
        ts_init_values("x", 1, SEED, 0, N_X, s->x);
        ts_init_values("w1", sqrt(1.0 / HIDDEN), SEED, 0, N_W, s->w1);
        ts_init_values("w2", sqrt(1.0 / INNER), SEED, 0, N_W, s->w2);
    }
    compute_reference(s);
    return TS_OK;
}

static void release(slice *s)
{
    ts_free(s->x);
    ts_free(s->w1);
    ts_free(s->w2);
    ts_free(s->golden);
    ts_free(s->reference);
    ts_free(s->piece);
}

/* ---- one rank -------------------------------------------------------------------------------- */

static ts_status upload(slice *s, const ts_slice_run *r, int rank, ts_error *err)
{
    ts_buffer *const *in = r->in + (size_t)rank * r->n_in;
    const size_t F = (size_t)(INNER / r->devices), first = (size_t)rank * F;
    for (size_t k = 0; k < HIDDEN; k++)
        memcpy(s->piece + k * F, s->w2 + k * INNER + first, F * sizeof(float));
    TS_TRY(ts_upload(in[0], s->x, 0, N_X * sizeof(float), err));
    TS_TRY(ts_upload(in[1], s->w1 + first * HIDDEN, 0, F * HIDDEN * sizeof(float), err));
    return ts_upload(in[2], s->piece, 0, HIDDEN * F * sizeof(float), err);
}

/* The first problem of a rank is the one that it shows. */
static void TS_PRINTF(2, 3) problem(ts_slice_rank *rank, const char *fmt, ...)
{
    va_list ap;
    if (*rank->problem) return;
    va_start(ap, fmt);
    vsnprintf(rank->problem, sizeof rank->problem, fmt, ap);
    va_end(ap);
}

/* NaN is larger than anything. */
static double larger(double a, double b)
{
    return a > b || isnan(a) ? a : b;
}

static double as_double(const void *want, bool wide, size_t i)
{
    return wide ? ((const double *)want)[i] : (double)((const float *)want)[i];
}

/* want: double where wide, else float. Returns the largest difference; NaN where one is not finite. */
static double compare(slice *s, ts_slice_rank *rank, const char *over, const void *want, bool wide)
{
    double most = 0;
    for (size_t i = 0; i < N_X; i++) {
        double expected = as_double(want, wide, i), found = (double)s->piece[i];
        double gap = fabs(found - expected);
        if (!(gap <= atol_y + rtol * fabs(expected)))
            problem(rank, "feed-forward over %s: y[%zu,%zu] is %g, expected %g %s", over,
                    i / HIDDEN, i % HIDDEN, found, expected,
                    wide ? "by the host's reference" : "by the golden file");
        most = larger(most, gap);
    }
    return isfinite(most) ? most : NAN;
}

static ts_status check_rank(slice *s, const ts_slice_run *r, const char *over, ts_slice_rank *rank,
                            ts_error *err)
{
    ts_buffer *const *out = r->out + (size_t)rank->rank * r->n_out;
    const ts_slice_options *o = s->options;
    float sum[SUMS];
    int32_t place;
    TS_TRY(ts_download(out[0], s->piece, 0, N_X * sizeof(float), err));
    TS_TRY(ts_download(out[1], sum, 0, sizeof sum, err));
    TS_TRY(ts_download(out[2], &place, 0, sizeof place, err));
    if (o->result) {
        o->result(o->context, rank->rank, "feed-forward", s->piece, N_X);
        o->result(o->context, rank->rank, "sum", sum, SUMS);
    }
    if (place != rank->rank)
        problem(rank, "the program over %s finds itself at rank %d, expected %d", over, place,
                rank->rank);
    rank->sum = (double)sum[0];
    for (int i = 0; i < SUMS; i++)
        if ((double)sum[i] != s->report->sum)
            problem(rank, "all_reduce of rank + 1 over %s: element %d is %g, expected %g", over, i,
                    (double)sum[i], s->report->sum);
    rank->max_abs_diff = larger(rank->max_abs_diff, compare(s, rank, over, s->reference, true));
    if (s->golden) compare(s, rank, over, s->golden, false);
    return TS_OK;
}

static ts_status check_over(slice *s, const ts_mesh *m, const char *over, ts_error *err)
{
    ts_slice_run r = {0};
    ts_builder *b = program(m);
    if (!b) return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out for the slice check");
    ts_status status = ts__slice_run_open(s->engine, m, b, &r, err);
    for (int d = 0; status == TS_OK && d < m->devices; d++) status = upload(s, &r, d, err);
    if (status == TS_OK) status = ts__slice_run(&r, err);
    for (int d = 0; status == TS_OK && d < m->devices; d++)
        status = check_rank(s, &r, over, &s->report->rank[d], err);
    ts__slice_run_close(&r);
    return status;
}

/* ---- the whole ------------------------------------------------------------------------------- */

void ts_slice_options_default(ts_slice_options *o)
{
    *o = (ts_slice_options){.struct_size = sizeof *o, .timing = true};
}

void ts_slice_report_free(ts_slice_report *r)
{
    ts_free(r->rank);
    ts_free(r->timing);
    *r = (ts_slice_report){0};
}

static ts_status divides(int64_t devices, ts_error *err)
{
    if (devices >= 1 && devices <= INNER && INNER % devices == 0) return TS_OK;
    return TS_ERROR(err, TS_INVALID_ARGUMENT,
                    "%lld devices: the feed-forward's %d columns must divide by them; use 1, 2, 4, "
                    "8, 16, 32, 64, 128, 256 or %d devices (cpu_devices=N on a CPU)",
                    (long long)devices, INNER, INNER);
}

static ts_status begin_report(ts_engine *e, const ts_mesh *m, ts_slice_report *out, ts_error *err)
{
    const double n = m->devices;
    char host[sizeof out->rank->host] = "";
    snprintf(out->engine, sizeof out->engine, "%s", e->vtable->describe(e));
    out->one_clock = !e->vtable->wait_each;
    out->sum = n * (n + 1) / 2;
    out->devices = m->devices;
    out->axes = m->n;
    for (int a = 0; a < m->n; a++) {
        snprintf(out->axis[a].name, sizeof out->axis[a].name, "%s", m->axis[a].name);
        out->axis[a].size = m->axis[a].size;
    }
    if (!(out->rank = ts_alloc_zero((size_t)m->devices * sizeof *out->rank)))
        return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out for the report");
    if (gethostname(host, sizeof host - 1) != 0) host[0] = 0;
    for (int d = 0; d < m->devices; d++) {
        ts_slice_rank *rank = &out->rank[d];
        rank->rank = d;
        rank->device = e->vtable->device_id ? e->vtable->device_id(e, d) : d;
        snprintf(rank->host, sizeof rank->host, "%s", host);
        ts_mesh_coordinates(m, d, rank->coordinate);
    }
    return TS_OK;
}

static ts_status check_all(slice *s, const ts_mesh *m, ts_error *err)
{
    ts_mesh all = {.n = 1, .devices = m->devices, .axis = {{"all", m->devices, TS_AXIS_DATA}}};
    ts_slice_report *r = s->report;
    TS_TRY(prepare(s, err));
    TS_TRY(begin_report(s->engine, m, r, err));
    TS_TRY(check_over(s, &all, "all devices", err));
    if (m->n > 1) TS_TRY(check_over(s, m, "axis after axis", err));
    for (int d = 0; d < r->devices; d++) {
        r->disagree += *r->rank[d].problem != 0;
        r->max_abs_diff = larger(r->max_abs_diff, r->rank[d].max_abs_diff);
    }
    return r->disagree || !s->options->timing ? TS_OK : ts__slice_time(s->engine, m, r, err);
}

ts_status ts__slice_check(ts_engine *e, const ts_mesh *m, const ts_slice_options *o,
                          ts_slice_report *out, ts_error *err)
{
    slice s = {.engine = e, .options = o, .report = out};
    *out = (ts_slice_report){0};
    TS_TRY(divides(m->devices, err));
    ts_status status = check_all(&s, m, err);
    release(&s);
    if (status != TS_OK) ts_slice_report_free(out);
    return status;
}

ts_status ts_slice_check(const ts_config *c, const ts_slice_options *o, ts_slice_report *out,
                         ts_error *err)
{
    ts_slice_options options;
    ts_config placed; /* on the devices that the engine has */
    ts_engine *e = NULL;
    ts_slice_options_default(&options);
    if (o) memcpy(&options, o, o->struct_size < sizeof options ? o->struct_size : sizeof options);
    *out = (ts_slice_report){0};
    if (!c->devices_assumed) TS_TRY(divides(c->devices, err)); /* before a device is touched */
    ts_status status = ts__open_placed(c, &c->model, &placed, &e, err);
    if (status == TS_OK) status = ts__slice_check(e, &placed.mesh, &options, out, err);
    ts_engine_close(e);
    return status;
}
