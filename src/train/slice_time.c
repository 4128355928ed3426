/* train/slice_time.c – how long collectives take along each axis of the mesh: latency of a small message, bytes
 * a second of large ones.
 *
 * Latency: 32 collectives one after the other in one program, each taking the one before it, so that handing the
 * program over counts a thirty-second part. Where a collective's result has another size than what it takes, the chain
 * has a slice or a pad as well. Bytes a second: one collective a program, growing messages as long as
 * five of the next would fit into the time. Every figure is a median after a warm-up; axes are compared by the shortest
 * time, which other work on the machine disturbs least. All values are 0, and so is every sum of them.
 *
 * Bus bandwidth is what a link of a ring carries: gather and scatter move (n−1)/n of the message over each, all_reduce
 * twice that, permute all of it.
 *
 * Ranks end a collective together, so a slow one shows in products of matrices alone, where the engine tells each
 * device's end. Devices in lockstep have one clock: nothing is said of them.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "ir/builder.h"
#include "train/slice_check.h"

static const struct {
    const char *name;
    ts_op op;
} kinds[] = {{"all_gather", TS_OP_all_gather},
             {"reduce_scatter", TS_OP_reduce_scatter},
             {"all_reduce", TS_OP_all_reduce},
             {"permute", TS_OP_collective_permute}};
enum { KINDS = sizeof kinds / sizeof *kinds, LINKS = 32, SMALL = 8, MOST_TIMES = 25 };
static const size_t large[] = {1 << 20, 8 << 20, 64 << 20}; /* messages, bytes */
enum { SIZES = sizeof large / sizeof *large };
/* Of all devices together, before and after. Lockstep devices share one memory; others may. */
static const size_t lockstep_bytes = 64 << 20, all_bytes = 512 << 20;
static const double all_seconds = 1.6;
enum { PRODUCTS = 8, RUNS = 7 };
static const double long_enough = 5e-3; /* seconds of a rank's products */

typedef struct timing {
    ts_engine *engine;
    const ts_mesh *mesh;
    ts_slice_report *report;
    double seconds; /* for one measurement */
} timing;

/* ---- programs -------------------------------------------------------------------------------- */

/* What the collective takes, of a message of n elements. */
static int64_t taken(const timing *t, int a, int kind, int64_t n)
{
    return kinds[kind].op == TS_OP_all_gather ? n / t->mesh->axis[a].size : n;
}

static ts_value *link(const timing *t, ts_builder *b, int a, int kind, ts_value *x)
{
    ts_value *y = ts__slice_collective(b, kinds[kind].op, t->mesh, a, x);
    int64_t before = ts_dim_of(x, 0), after = ts_dim_of(y, 0);
    if (after > before) return ts_slice(b, y, 0, 0, before);
    return after < before ? ts_pad(b, y, 0, 0, before - after, 0) : y;
}

static ts_builder *program(const timing *t, int a, int kind, int64_t n, bool chain)
{
    ts_builder *b = ts_builder_new("slice_time");
    if (!b) return NULL;
    ts_value *x = ts_input(b, "x", TS_F32, TS_DIMS({NULL, taken(t, a, kind, n)}));
    if (chain) {
        ts_value *carry, *next;
        ts_repeat *r = ts_repeat_begin(b, LINKS, false, &x, 1, NULL, 0, &carry, NULL);
        next = link(t, b, a, kind, carry);
        ts_repeat_end(b, r, &next, NULL, NULL, 0, &x);
    } else {
        x = ts__slice_collective(b, kinds[kind].op, t->mesh, a, x);
    }
    ts_output(b, "y", x, NULL);
    return b;
}

/* ---- measuring ------------------------------------------------------------------------------- */

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Of an execute. */
typedef struct times {
    double median, best;
} times;

/* At least three after one that warms up, more while there is time. */
static ts_status repeat(const timing *t, ts_slice_run *r, times *out, ts_error *err)
{
    double took[MOST_TIMES], spent = 0;
    int n = 0;
    TS_TRY(ts__slice_run(r, err));
    while (n < MOST_TIMES && (n < 3 || spent < t->seconds)) {
        double before = ts_clock_seconds();
        TS_TRY(ts__slice_run(r, err));
        spent += took[n++] = ts_clock_seconds() - before;
    }
    qsort(took, (size_t)n, sizeof *took, by_size);
    *out = (times){took[n / 2], took[0]};
    return TS_OK;
}

static ts_status measure(const timing *t, int a, int kind, int64_t n, bool chain, times *out,
                         ts_error *err)
{
    ts_slice_run r = {0};
    ts_builder *b = program(t, a, kind, n, chain);
    if (!b) return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out for timing collectives");
    TS_TRY(ts__slice_run_open(t->engine, t->mesh, b, &r, err));
    ts_status status = repeat(t, &r, out, err);
    ts__slice_run_close(&r);
    if (status == TS_OK) return TS_OK;
    return ts__error_context(err, "%s over %s, %lld bytes", kinds[kind].name, t->mesh->axis[a].name,
                             (long long)n * (long long)sizeof(float));
}

/* The part of a message that a link of the ring carries. */
static double bus_share(int kind, double n)
{
    switch (kinds[kind].op) {
    case TS_OP_all_reduce: return 2 * (n - 1) / n;
    case TS_OP_collective_permute: return 1;
    default: return (n - 1) / n;
    }
}

static void add(timing *t, int a, int kind, int64_t n, bool small, times took)
{
    ts_slice_timing *row = &t->report->timing[t->report->n_timing++];
    const int64_t devices = t->mesh->axis[a].size;
    *row = (ts_slice_timing){.devices = devices,
                             .bytes = n * (int64_t)sizeof(float),
                             .seconds = took.median / (small ? LINKS : 1),
                             .best = took.best / (small ? LINKS : 1),
                             .small = small};
    snprintf(row->axis, sizeof row->axis, "%s", t->mesh->axis[a].name);
    snprintf(row->kind, sizeof row->kind, "%s", kinds[kind].name);
    if (small || row->best <= 0) return;
    row->algorithm = (double)row->bytes / row->seconds;
    row->bus = row->algorithm * bus_share(kind, (double)devices);
}

static ts_status time_kind(timing *t, int a, int kind, ts_error *err)
{
    const int64_t axis = t->mesh->axis[a].size;
    const size_t room =
        (t->report->one_clock ? lockstep_bytes : all_bytes) / (size_t)t->mesh->devices;
    times took = {0};
    TS_TRY(measure(t, a, kind, SMALL * axis, true, &took, err));
    add(t, a, kind, SMALL * axis, true, took);
    for (int i = 0; i < SIZES; i++) {
        const size_t bytes = large[i] < room ? large[i] : room;
        const int64_t n = (int64_t)(bytes / sizeof(float)) / axis * axis;
        double growth = i ? (double)large[i] / (double)large[i - 1] : 0;
        if (i && (large[i] > room || 5 * took.median * growth > 2 * t->seconds)) break;
        TS_TRY(measure(t, a, kind, n, false, &took, err));
        add(t, a, kind, n, false, took);
    }
    return TS_OK;
}

/* ---- which axis is slow ---------------------------------------------------------------------- */

/* Seconds that a byte takes over the bus at its best, over all kinds, each with its largest message. */
static double slowness(const ts_slice_report *r, const char *axis)
{
    double sum = 0;
    for (size_t i = 0; i < r->n_timing; i++) {
        const ts_slice_timing *row = &r->timing[i], *next = row + 1;
        bool largest = i + 1 == r->n_timing || next->small;
        if (!row->small && largest && strcmp(row->axis, axis) == 0 && row->bus > 0)
            sum += row->best / row->seconds / row->bus;
    }
    return sum;
}

static void flag_slowest(ts_slice_report *r)
{
    double each[TS_SLICE_AXES], sorted[TS_SLICE_AXES];
    for (int a = 0; a < r->axes; a++) sorted[a] = each[a] = slowness(r, r->axis[a].name);
    qsort(sorted, (size_t)r->axes, sizeof *sorted, by_size);
    for (int a = 0; a < r->axes; a++) /* of two, the faster one is the median */
        r->axis[a].slow = each[a] > 2 * sorted[(r->axes - 1) / 2];
}

/* ---- which rank is slow ---------------------------------------------------------------------- */

/* x [n,n] = sin(0.7·(i + j)), y ← y·x·2/n again and again: values stay within −1 … 1. */
static ts_builder *products(int64_t n)
{
    static const ts_dot_dims d = {.n_contract = 1, .x_contract = {1}, .y_contract = {0}};
    const ts_dim dims[2] = {{NULL, n}, {NULL, n}};
    ts_builder *b = ts_builder_new("slice_products");
    if (!b) return NULL;
    ts_value *sum = ts_add(b, ts_iota(b, TS_F32, dims, 2, 0), ts_iota(b, TS_F32, dims, 2, 1));
    ts_value *x = ts_sin(b, ts_mul(b, sum, ts_scalar(b, 0.7, TS_F32))), *carry;
    ts_repeat *r = ts_repeat_begin(b, PRODUCTS, false, &x, 1, NULL, 0, &carry, NULL);
    ts_value *y = ts_dot(b, carry, x, &d, TS_F32);
    y = ts_mul(b, y, ts_scalar(b, 2.0 / (double)n, TS_F32));
    ts_repeat_end(b, r, &y, NULL, NULL, 0, &carry);
    ts_output(b, "y", carry, NULL);
    return b;
}

/* took [RUNS × devices] */
static ts_status run_products(const timing *t, ts_slice_run *r, double *took, ts_error *err)
{
    const int devices = t->mesh->devices;
    TS_TRY(ts__slice_run(r, err));
    for (int i = 0; i < RUNS; i++) {
        double *done = took + i * devices, before = ts_clock_seconds();
        TS_TRY(ts_execute(r->executable, r->in, r->out, err));
        TS_TRY(t->engine->vtable->wait_each(r->executable, done, err));
        for (int d = 0; d < devices; d++) done[d] -= before;
    }
    return TS_OK;
}

/* Fills each rank's seconds; *median is that of all ranks. */
static ts_status time_products(const timing *t, int64_t n, double *took, double *median,
                               ts_error *err)
{
    const int devices = t->mesh->devices;
    const ts_mesh apart = {.devices = devices};
    ts_slice_run r = {0};
    ts_builder *b = products(n);
    if (!b) return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out for timing ranks");
    TS_TRY(ts__slice_run_open(t->engine, &apart, b, &r, err));
    ts_status status = run_products(t, &r, took, err);
    ts__slice_run_close(&r);
    TS_TRY(status);
    for (int d = 0; d < devices; d++) {
        double own[RUNS];
        for (int i = 0; i < RUNS; i++) own[i] = took[i * devices + d];
        qsort(own, RUNS, sizeof *own, by_size);
        t->report->rank[d].seconds = own[RUNS / 2];
    }
    for (int d = 0; d < devices; d++) took[d] = t->report->rank[d].seconds;
    qsort(took, (size_t)devices, sizeof *took, by_size);
    *median = took[devices / 2];
    t->report->product = n;
    return TS_OK;
}

/* Matrices grow until handing the program over is a small part of the time. */
static ts_status time_ranks(const timing *t, ts_error *err)
{
    const size_t devices = (size_t)t->mesh->devices;
    double *took = ts_alloc(RUNS * devices * sizeof *took), median = 0;
    ts_status status = TS_OK;
    if (!took) return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out for timing ranks");
    for (int64_t n = 512; status == TS_OK && n <= 4096 && median < long_enough; n *= 2)
        status = time_products(t, n, took, &median, err);
    for (size_t d = 0; status == TS_OK && d < devices; d++)
        t->report->rank[d].slow = t->report->rank[d].seconds > 1.5 * median;
    ts_free(took);
    return status;
}

ts_status ts__slice_time(ts_engine *e, const ts_mesh *m, ts_slice_report *out, ts_error *err)
{
    timing t = {.engine = e, .mesh = m, .report = out};
    if (m->n == 0) return TS_OK;
    if (!out->one_clock) TS_TRY(time_ranks(&t, err));
    t.seconds = all_seconds / (m->n * KINDS * (1 + SIZES));
    out->timing = ts_alloc((size_t)m->n * KINDS * (1 + SIZES) * sizeof *out->timing);
    if (!out->timing) return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out for the report");
    for (int a = 0; a < m->n; a++)
        for (int kind = 0; kind < KINDS; kind++) TS_TRY(time_kind(&t, a, kind, err));
    flag_slowest(out);
    return TS_OK;
}
