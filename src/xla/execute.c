/* xla/execute.c – runs a compiled program: arguments in the plugin's order, at most two executes in flight, errors
 * tied to the execute that they come from.
 *
 * What execute hands back are the outputs' buffers at once, and events for the end. A third execute first waits for
 * the oldest, so that the host cannot run away from the device. A failed execute leaves its outputs, the
 * donated inputs among them, without bytes: they are marked, and say so when they are used.
 * Seconds of an execute: from its start – when it was given away, or when the one before it ended – to its end.
 */
#include <inttypes.h>
#include <stdio.h>

#include "xla/run.h"

/* ---- what was given -------------------------------------------------------------------------- */

/* Puts one replica's arguments at its place of the plugin's lists. */
static ts_status bind(ts_xla_executable *x, int place, ts_buffer *const *in, ts_error *err)
{
    PJRT_Buffer **argument = x->argument + (size_t)place * x->n_in;
    for (size_t k = 0; k < x->n_in; k++) {
        ts_xla_buffer *b = (ts_xla_buffer *)in[k];
        ts_status status = ts__xla_buffer_flush(b, err);
        if (status != TS_OK)
            return ts__error_context(err, "input %s of %s", x->base.graph->top->arg[k]->name,
                                     x->base.graph->name);
        argument[k] = b->remote;
    }
    return TS_OK;
}

/* ---- what came back -------------------------------------------------------------------------- */

static bool is_deleted(const ts_xla *e, PJRT_Buffer *remote)
{
    PJRT_ARGS(PJRT_Buffer_IsDeleted_Args, a);
    ts_error ignored = {0};
    a.buffer = remote;
    return ts__pjrt_check(e->pjrt, e->pjrt->api->PJRT_Buffer_IsDeleted(&a), "looking at a buffer",
                          &ignored) != TS_OK ||
           a.is_deleted;
}

/* The plugin refused: whatever it had taken from the donated inputs already is gone. */
static void forget_taken(ts_xla_executable *x, ts_buffer *const *in)
{
    const ts_graph *g = x->base.graph;
    for (int d = 0; d < x->engine->n_devices; d++)
        for (size_t k = 0; k < x->n_out; k++) {
            if (g->output[k].replaces < 0) continue;
            ts_xla_buffer *b =
                (ts_xla_buffer *)in[(size_t)d * x->n_in + (size_t)g->output[k].replaces];
            if (b->place == TS_XLA_DEVICE && is_deleted(x->engine, b->remote))
                ts__xla_buffer_lose(b);
        }
}

static void take_results(ts_xla_executable *x, ts_xla_slot *slot, ts_buffer *const *out)
{
    for (int place = 0; place < x->engine->n_devices; place++) {
        size_t from = (size_t)place * x->n_out, to = (size_t)x->order[place] * x->n_out;
        for (size_t k = 0; k < x->n_out; k++) {
            ts_xla_buffer *b = (ts_xla_buffer *)out[to + k];
            ts__xla_buffer_take(b, x->result[from + k]);
            b->slot = slot;
            b->slot_at = to + k;
            slot->written[to + k] = b;
        }
    }
}

/* Waits for every device; the first error is the execute's. */
static ts_status finish_oldest(ts_xla_executable *x, ts_error *err)
{
    ts_xla_slot *slot = &x->slot[x->oldest];
    char what[300];
    ts_status status = TS_OK;
    snprintf(what, sizeof what, "execute %" PRIu64 " of %.200s failed", slot->number,
             x->base.graph->name);
    for (int d = 0; d < x->engine->n_devices; d++) {
        ts_error own = {0};
        ts_status one = ts__pjrt_await(x->engine->pjrt, slot->event[d], what, &own);
        slot->event[d] = NULL;
        if (one != TS_OK && status == TS_OK) status = TS_ERROR(err, one, "%s", own.msg);
    }
    double now = ts_clock_seconds(), start = slot->dispatched;
    for (size_t i = 0; i < (size_t)x->engine->n_devices * x->n_out; i++) {
        ts_xla_buffer *b = slot->written[i];
        if (!b) continue;
        ts__xla_buffer_leave_slot(b);
        if (status != TS_OK) ts__xla_buffer_lose(b);
    }
    if (x->stats.last_done > start) start = x->stats.last_done;
    x->stats.last_seconds = now - start;
    x->stats.last_done = now;
    x->stats.executes += status == TS_OK;
    x->oldest = (x->oldest + 1) % TS_XLA_IN_FLIGHT;
    x->in_flight--;
    return status;
}

/* When each device's event happens, as seen by looking at all of them again and again. An event that cannot be looked
 * at counts as over: awaiting it says what is wrong. */
static void watch(const ts_xla_executable *x, const ts_xla_slot *slot, double *done)
{
    const int n = x->engine->n_devices;
    for (int d = 0; d < n; d++) done[d] = 0;
    for (int over = 0; over < n;)
        for (int place = 0; place < n; place++) {
            double *at = &done[x->order[place]];
            ts_error ignored = {0};
            PJRT_ARGS(PJRT_Event_IsReady_Args, a);
            a.event = slot->event[place];
            if (*at > 0) continue;
            if (a.event &&
                ts__pjrt_check(x->engine->pjrt, x->engine->pjrt->api->PJRT_Event_IsReady(&a),
                               "looking at an execute", &ignored) == TS_OK &&
                !a.is_ready)
                continue;
            *at = ts_clock_seconds();
            over++;
        }
}

/* ---- the vtable's functions ------------------------------------------------------------------ */

ts_status ts__xla_execute(ts_executable *executable, ts_buffer *const *in, ts_buffer *const *out,
                          ts_error *err)
{
    ts_xla_executable *x = (ts_xla_executable *)executable;
    const ts_xla *e = x->engine;
    char what[300];
    if (x->in_flight == TS_XLA_IN_FLIGHT) TS_TRY(finish_oldest(x, err));
    TS_TRY(ts__check_buffers(&x->base, e->n_devices, in, out, err));
    for (int place = 0; place < e->n_devices; place++)
        TS_TRY(bind(x, place, in + (size_t)x->order[place] * x->n_in, err));
    ts_xla_slot *slot = &x->slot[(x->oldest + x->in_flight) % TS_XLA_IN_FLIGHT];
    PJRT_ARGS(PJRT_ExecuteOptions, options);
    PJRT_ARGS(PJRT_LoadedExecutable_Execute_Args, a);
    slot->number = ++x->executes;
    slot->dispatched = ts_clock_seconds();
    options.launch_id = (int)(slot->number & INT32_MAX);
    a.executable = x->loaded;
    a.options = &options;
    a.argument_lists = x->argument_list;
    a.num_devices = (size_t)e->n_devices;
    a.num_args = x->n_in;
    a.output_lists = x->result_list;
    a.device_complete_events = slot->event;
    snprintf(what, sizeof what, "execute %" PRIu64 " of %.200s was refused", slot->number,
             x->base.graph->name);
    ts_status status =
        ts__pjrt_check(e->pjrt, e->pjrt->api->PJRT_LoadedExecutable_Execute(&a), what, err);
    if (status != TS_OK) {
        forget_taken(x, in);
        return status;
    }
    take_results(x, slot, out);
    x->in_flight++;
    return TS_OK;
}

ts_status ts__xla_wait(ts_executable *executable, ts_error *err)
{
    ts_xla_executable *x = (ts_xla_executable *)executable;
    return x->in_flight ? finish_oldest(x, err) : TS_OK;
}

ts_status ts__xla_wait_each(ts_executable *executable, double *done, ts_error *err)
{
    ts_xla_executable *x = (ts_xla_executable *)executable;
    if (!x->in_flight) return TS_OK;
    watch(x, &x->slot[x->oldest], done);
    return finish_oldest(x, err);
}
