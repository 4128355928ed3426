/* cpu/run.c – runs a compiled program: one control thread, devices in lockstep, OpenMP inside steps.
 *
 * A segment (steps without a collective and without a loop's beginning or end) runs on device 0,
 * then 1, …; a collective runs once, over all of them; loop counters are shared. So no device
 * waits for another, and the result is that of devices side by side. Nothing is allocated. Sums
 * of accumulated results are added element by element in iteration order, so any thread count
 * gives the same bits.
 */
#include "cpu/program.h"

enum { PARALLEL_BYTES = 1 << 20 }; /* below this one thread moves bytes faster than a team */

typedef struct runner {
    const ts_cpu_program *p;
    int64_t trip[TS_CPU_MAX_LOOPS];  /* iterations done, by depth */
    int64_t index[TS_CPU_MAX_LOOPS]; /* this iteration's index, counting down when reversed */
    ts_cpu_device *device;
    int n_devices;
    void **place; /* of a collective: every device's operand, then every device's result */
    ts_cpu_timeline *timeline;
} runner;

static void *resolve(const runner *r, const ts_cpu_device *d, const ts_cpu_address *a, int depth)
{
    int64_t offset = a->offset;
    for (int k = 0; k < depth; k++) offset += r->index[k] * a->stride[k];
    return (char *)d->base[a->base] + offset;
}

static void move_bytes(void *to, const void *from, size_t bytes, int threads)
{
    const char *f = from;
    char *t = to;
    bool apart = f + bytes <= t || t + bytes <= f;
    if (bytes < PARALLEL_BYTES || !apart || threads == 1) {
        memmove(to, from, bytes);
        return;
    }
    int64_t pieces = (int64_t)((bytes + PARALLEL_BYTES / 4 - 1) / (PARALLEL_BYTES / 4));
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t k = 0; k < pieces; k++) {
        size_t at = (size_t)k * (PARALLEL_BYTES / 4), n = bytes - at;
        memcpy(t + at, f + at, n < PARALLEL_BYTES / 4 ? n : PARALLEL_BYTES / 4);
    }
}

/* sum [n] += x [n]. The inner loops have a fixed length so that -O2 turns them into vectors. */
#define ADD_BLOCKS(type, add)                                                                      \
    do {                                                                                           \
        type *restrict s = sum;                                                                    \
        const type *restrict v = x;                                                                \
        int64_t blocks = n / ADD_BLOCK;                                                            \
        _Pragma("omp parallel for num_threads(threads) if (wide) schedule(static)") for (          \
            int64_t k = 0; k < blocks; k++) for (int i = 0; i < ADD_BLOCK; i++)                    \
            add(s[k * ADD_BLOCK + i], v[k * ADD_BLOCK + i]);                                       \
        for (int64_t i = blocks * ADD_BLOCK; i < n; i++) add(s[i], v[i]);                          \
    } while (0)
#define ADD_PLAIN(s, v) ((s) += (v))
#define ADD_BF16(s, v)  ((s) = ts_bf16_from_f32(ts_bf16_to_f32(s) + ts_bf16_to_f32(v)))

/* Integers wrap; the shape rule refuses pred. */
static void add_into(void *sum, const void *x, size_t bytes, ts_dtype dtype, int threads)
{
    enum { ADD_BLOCK = 16 };
    int64_t n = (int64_t)(bytes / ts_dtype_bytes(dtype));
    bool wide = bytes >= PARALLEL_BYTES && threads > 1;
    if (dtype == TS_F32)
        ADD_BLOCKS(float, ADD_PLAIN);
    else if (dtype == TS_BF16)
        ADD_BLOCKS(uint16_t, ADD_BF16);
    else
        ADD_BLOCKS(uint32_t, ADD_PLAIN);
}

static void run_collective(const runner *r, const ts_cpu_step *s)
{
    void **from = r->place, **to = from + r->n_devices;
    for (int d = 0; d < r->n_devices; d++) {
        from[d] = resolve(r, &r->device[d], &s->at[0], s->depth);
        to[d] = resolve(r, &r->device[d], &s->at[1], s->depth);
    }
    ts__cpu_collective_run(s->collective, from, to, r->p->threads);
}

static void run_step(const runner *r, ts_cpu_device *d, const ts_cpu_step *s)
{
    const ts_cpu_program *p = r->p;
    int n = s->n_in + s->n_out;
    for (int k = 0; k < n; k++) d->pointer[k] = resolve(r, d, &s->at[k], s->depth);
    switch (s->kind) {
    case TS_CODE_KERNEL:
        s->kernel->run(&(ts_cpu_call){s->node, d->pointer, d->pointer + s->n_in,
                                      resolve(r, d, &s->at[n], s->depth), s->state, p->threads});
        return;
    case TS_CODE_COPY:
    case TS_CODE_STACK: move_bytes(d->pointer[1], d->pointer[0], s->bytes, p->threads); return;
    case TS_CODE_ADD:
        if (r->trip[s->depth - 1] == 0)
            move_bytes(d->pointer[1], d->pointer[0], s->bytes, p->threads);
        else
            add_into(d->pointer[1], d->pointer[0], s->bytes, s->dtype, p->threads);
        return;
    case TS_CODE_INDEX:
        *(int32_t *)d->pointer[0] =
            (int32_t)ts__cpu_coordinate(&s->collective->axis, d - r->device);
        return;
    case TS_CODE_COLLECTIVE: run_collective(r, s); return;
    case TS_CODE_BEGIN:
    case TS_CODE_END: return;
    }
}

static void run_timed(const runner *r, ts_cpu_device *d, const ts_cpu_step *s)
{
    ts_cpu_timeline *t = r->timeline;
    double start = ts_clock_seconds();
    run_step(r, d, s);
    if (t->n == t->max) {
        t->unrecorded++;
        return;
    }
    t->event[t->n++] = (ts_profile_event){.node = s->node,
                                          .start_seconds = start - t->origin,
                                          .seconds = ts_clock_seconds() - start,
                                          .iteration = s->depth ? r->index[s->depth - 1] : 0};
}

/* Loop control; returns the next step. */
static int loop_edge(runner *r, int at)
{
    const ts_cpu_step *s = &r->p->step[at];
    const ts_cpu_loop *l = &r->p->loop[s->loop];
    int d = l->depth;
    r->trip[d] = s->kind == TS_CODE_BEGIN ? 0 : r->trip[d] + 1;
    r->index[d] = l->reverse ? l->n - 1 - r->trip[d] : r->trip[d];
    return s->kind == TS_CODE_END && r->trip[d] < l->n ? l->begin + 1 : at + 1;
}

static void run_any(const runner *r, ts_cpu_device *d, const ts_cpu_step *s)
{
    if (r->timeline)
        run_timed(r, d, s);
    else
        run_step(r, d, s);
}

void ts__cpu_run(const ts_cpu_program *p, ts_cpu_device *device, int n_devices, void **place,
                 ts_cpu_timeline *timeline)
{
    runner r = {.p = p,
                .device = device,
                .n_devices = n_devices,
                .place = place,
                .timeline = timeline};
    for (int at = 0; at < p->n_step;) {
        int end = p->step[at].segment_end;
        if (p->step[at].kind == TS_CODE_COLLECTIVE) {
            run_any(&r, device, &p->step[at++]);
            continue;
        }
        if (end == at) {
            at = loop_edge(&r, at);
            continue;
        }
        for (int d = 0; d < n_devices; d++)
            for (int k = at; k < end; k++) run_any(&r, &device[d], &p->step[k]);
        at = end;
    }
}
