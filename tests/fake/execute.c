/* execute.c – the fake plugin runs a program: checked at once, run later by the device thread, donation honoured.
 *
 * As on a real device a donated input is gone the moment the execute is accepted, even when the program then fails;
 * its results carry the error, and so does everything that is computed from them. An execute that is refused
 * leaves its inputs as they were. Replicas run one after the other, or, where the graph has a mesh, in the lockstep of
 * an engine with as many devices. A buffer is lent to the engine that runs: all of them have the host's memory.
 */
#include "fake/fake.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct fake_run {
    fake_program *program;
    int n_in, n_out, devices;
    int *replica; /* [devices]: of each list of buffers */
    fake_storage **in, **out; /* [devices × n], one reference each */
    fake_storage **
        copy; /* [devices × n_out]: where an input that may not be donated is copied from; or NULL */
} fake_run;

/* Executables of one engine keep their bindings in themselves: one at a time. */
static pthread_mutex_t engine_lock = PTHREAD_MUTEX_INITIALIZER;

static void run_free(fake_run *r)
{
    for (int i = 0; i < r->devices * r->n_in; i++) fake_storage_drop(r->in[i]);
    for (int i = 0; i < r->devices * r->n_out; i++) {
        fake_storage_drop(r->out[i]);
        fake_storage_drop(r->copy[i]);
    }
    fake_program_drop(r->program);
    ts_free(r->in);
    ts_free(r->out);
    ts_free(r->copy);
    ts_free(r->replica);
    ts_free(r);
}

/* ---- on the device thread ------------------------------------------------------------------------ */

static ts_buffer *lend(const fake_run *r, const fake_storage *s, int device)
{
    s->data->engine = r->program->engine;
    s->data->device = device;
    return s->data;
}

/* One list's buffers, for this device of the engine. */
static ts_status fill(const fake_run *r, int d, int device, ts_buffer **in, ts_buffer **out,
                      ts_error *err)
{
    for (int k = 0; k < r->n_in; k++) in[k] = lend(r, r->in[d * r->n_in + k], device);
    for (int k = 0; k < r->n_out; k++) {
        const fake_storage *from = r->copy[d * r->n_out + k], *to = r->out[d * r->n_out + k];
        out[k] = lend(r, to, device);
        if (!from) continue;
        void *bytes = ts_alloc(to->bytes);
        if (!bytes) return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "no memory for a copy");
        ts_status status = ts_download(from->data, bytes, 0, to->bytes, err);
        if (status == TS_OK) status = ts_upload(to->data, bytes, 0, to->bytes, err);
        ts_free(bytes);
        TS_TRY(status);
        in[r->program->graph->output[k].replaces] = to->data;
    }
    return TS_OK;
}

static ts_status run_replicas(const fake_run *r, ts_error *err)
{
    ts_executable *x = r->program->executable;
    const bool together = x->engine->vtable->devices(x->engine) > 1;
    ts_buffer **in = ts_alloc_zero((size_t)(r->devices * r->n_in + 1) * sizeof *in);
    ts_buffer **out = ts_alloc_zero((size_t)(r->devices * r->n_out + 1) * sizeof *out);
    ts_status status = TS_OK;
    TS_ASSERT(in && out);
    for (int d = 0; d < r->devices && status == TS_OK; d++) {
        const int device = together ? r->replica[d] : 0;
        status = fill(r, d, device, in + device * r->n_in, out + device * r->n_out, err);
        if (status == TS_OK && (!together || d == r->devices - 1)) {
            status = ts_execute(x, in, out, err);
            if (status == TS_OK) status = ts_wait(x, err);
        }
    }
    ts_free(in);
    ts_free(out);
    return status;
}

static void run(fake_task *t, fake_problem *p)
{
    const fake_run *r = t->execute;
    for (int i = 0; i < r->devices * r->n_in; i++)
        if (r->in[i]->problem.code) {
            *p = r->in[i]->problem;
            return;
        }
    ts_error err = {0};
    pthread_mutex_lock(&engine_lock);
    ts_status status = run_replicas(r, &err);
    pthread_mutex_unlock(&engine_lock);
    if (status == TS_OK) return;
    p->code = status;
    memcpy(p->message, err.msg, sizeof p->message - 1);
}

static void finish(fake_task *t, const fake_problem *p)
{
    fake_run *r = t->execute;
    for (int i = 0; p->code && i < r->devices * r->n_out; i++) r->out[i]->problem = *p;
    run_free(r);
    fake_flight(-1);
    fake_log("execute %llu ends%s%s", (unsigned long long)t->number, p->code ? ": " : "",
             p->message);
}

/* ---- on the caller's ----------------------------------------------------------------------------- */

static PJRT_Error *check_arguments(const PJRT_LoadedExecutable_Execute_Args *a)
{
    const fake_program *p = a->executable->program;
    const ts_region *top = p->graph->top;
    if (a->execute_device || a->num_devices != (size_t)p->replicas ||
        a->num_args != (size_t)top->n_arg)
        return fake_error(PJRT_Error_Code_INVALID_ARGUMENT,
                          "%zu devices with %zu arguments, the program has %d with %d",
                          a->num_devices, a->num_args, p->replicas, top->n_arg);
    for (size_t d = 0; d < a->num_devices; d++)
        for (size_t k = 0; k < a->num_args; k++) {
            const PJRT_Buffer *b = a->argument_lists[d][k];
            char found[400], wanted[400];
            if (!b->storage)
                return fake_error(PJRT_Error_Code_INVALID_ARGUMENT,
                                  "argument %zu was deleted or donated", k);
            if (b->device != a->executable->device[d])
                return fake_error(PJRT_Error_Code_INVALID_ARGUMENT,
                                  "argument %zu is on device %d, list %zu belongs to device %d", k,
                                  b->device->description.id, d,
                                  a->executable->device[d]->description.id);
            if (!ts_type_same(&b->type, &top->arg[k]->type))
                return fake_error(PJRT_Error_Code_INVALID_ARGUMENT,
                                  "argument %zu is %s, the program has %s", k,
                                  ts_type_text(&b->type, found, sizeof found),
                                  ts_type_text(&top->arg[k]->type, wanted, sizeof wanted));
        }
    return NULL;
}

static bool may_donate(const PJRT_ExecuteOptions *o, int input)
{
    for (size_t i = 0; o && i < o->num_non_donatable_input_indices; i++)
        if (o->non_donatable_input_indices[i] == input) return false;
    return true;
}

static fake_run *run_new(fake_program *p)
{
    fake_run *r = ts_alloc_zero(sizeof *r);
    TS_ASSERT(r);
    r->program = p;
    r->devices = p->replicas;
    r->n_in = p->graph->top->n_arg;
    r->n_out = p->graph->top->n_result;
    r->in = ts_alloc_zero((size_t)(r->devices * r->n_in) * sizeof *r->in);
    r->out = ts_alloc_zero((size_t)(r->devices * r->n_out) * sizeof *r->out);
    r->copy = ts_alloc_zero((size_t)(r->devices * r->n_out) * sizeof *r->copy);
    r->replica = ts_alloc_zero((size_t)r->devices * sizeof *r->replica);
    TS_ASSERT(r->in && r->out && r->copy && r->replica);
    pthread_mutex_lock(&fake_lock);
    p->references++;
    pthread_mutex_unlock(&fake_lock);
    return r;
}

/* Inputs keep their storage until the run ends, outputs get theirs: that of the input they replace, or their own. */
static PJRT_Error *bind(const PJRT_LoadedExecutable_Execute_Args *a, fake_run *r, int d)
{
    const ts_graph *g = r->program->graph;
    PJRT_Device *device = a->executable->device[d];
    while (r->program->device_id[r->replica[d]] != device->description.id) r->replica[d]++;
    for (int k = 0; k < r->n_in; k++) {
        r->in[d * r->n_in + k] = a->argument_lists[d][k]->storage;
        fake_storage_take(r->in[d * r->n_in + k]);
    }
    for (int k = 0; k < r->n_out; k++) {
        int at = d * r->n_out + k, replaces = g->output[k].replaces;
        const ts_type *type = &g->top->result[k]->type;
        if (replaces >= 0 && may_donate(a->options, replaces)) {
            r->out[at] = r->in[d * r->n_in + replaces];
            fake_storage_take(r->out[at]);
            a->output_lists[d][k] = fake_buffer_with(device, type, r->out[at]);
        } else {
            PJRT_Error *e = fake_buffer_new(device, type, &a->output_lists[d][k]);
            if (e) return e;
            r->out[at] = a->output_lists[d][k]->storage;
            if (replaces >= 0) fake_storage_take(r->copy[at] = r->in[d * r->n_in + replaces]);
        }
        fake_storage_take(r->out[at]);
    }
    return NULL;
}

static void donate(const PJRT_LoadedExecutable_Execute_Args *a, const fake_run *r)
{
    for (int d = 0; d < r->devices; d++)
        for (int k = 0; k < r->n_out; k++) {
            int replaces = r->program->graph->output[k].replaces;
            if (replaces < 0 || r->copy[d * r->n_out + k]) continue;
            PJRT_Buffer *b = a->argument_lists[d][replaces];
            fake_storage_drop(b->storage);
            b->storage = NULL;
            fake_count(FAKE_DONATED);
        }
}

PJRT_Error *fake_LoadedExecutable_Execute(PJRT_LoadedExecutable_Execute_Args *a)
{
    fake_task *t = NULL;
    PJRT_Error *e = check_arguments(a);
    if (!e) e = fake_task_new("execute", a->executable->program->replicas, &t);
    if (e) return e;
    fake_run *r = run_new(a->executable->program);
    for (int d = 0; d < r->devices; d++) {
        e = bind(a, r, d);
        TS_ASSERT(!e); /* memory of the host */
    }
    donate(a, r);
    t->run = run;
    t->finish = finish;
    t->execute = r;
    t->number = fake_count(FAKE_EXECUTES);
    t->slow_ms = (int)fake_number("FAKE_PJRT_SLOW_MS", 0);
    fake_event_fails("execute", t->number, &t->injected);
    fake_flight(1);
    for (int d = 0; d < r->devices; d++) {
        if (a->device_complete_events) {
            a->device_complete_events[d] = t->event[d];
            if (fake_number("FAKE_PJRT_LAG", -1) == a->executable->device[d]->description.id)
                t->lags = d + 1;
            continue;
        }
        PJRT_Event_Destroy_Args gone = {.struct_size = PJRT_Event_Destroy_Args_SIZE,
                                        .event = t->event[d]};
        fake_Event_Destroy(&gone);
    }
    fake_queue_add(a->executable->client, t);
    return NULL;
}
