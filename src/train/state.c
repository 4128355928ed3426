/* train/state.c – parameters and moments on an engine; see state.h.
 *
 * Tensors are moved in pieces through one host buffer, so that loading needs 16 MiB beside the model, whatever its
 * size and whatever the mesh: each stretch of a tensor is made or read once and cut into the devices' pieces of it.
 * Where an engine gathers what comes in pieces on the host, it never does so for two copies of a tensor at once.
 */
#include "train/state.h"

#include <stdio.h>

struct ts_state {
    ts_engine *engine;
    ts_placed placed;
    const ts_graph *graph; /* the global one */
    int devices;
    ts_buffer **buffer; /* [devices × inputs of the graph]; NULL where the input is no state */
    bool *borrowed;     /* [devices × inputs]: the buffer of an earlier device */
    int *moments[2];    /* [parameters]: input of m, of v; −1 where not trained */
    int64_t parameters;
};

/* ---- making ---------------------------------------------------------------------------------- */

static bool is_state(const ts_state *s, int input)
{
    for (int i = 0; i < s->graph->n_param; i++)
        if (s->graph->param[i].value->index == input || s->moments[0][i] == input ||
            s->moments[1][i] == input)
            return true;
    return false;
}

static bool is_written(const ts_graph *g, int input)
{
    for (int i = 0; i < g->top->n_result; i++)
        if (g->output[i].replaces == input) return true;
    return false;
}

static ts_status find_moments(ts_state *s, ts_error *err)
{
    const ts_graph *g = s->graph;
    for (int kind = 0; kind < 2; kind++) {
        s->moments[kind] = ts_alloc((size_t)(g->n_param + 1) * sizeof(int));
        if (!s->moments[kind])
            return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out for the model's state");
        for (int i = 0; i < g->n_param; i++) {
            char name[600];
            snprintf(name, sizeof name, "adam.%c.%s", "mv"[kind], g -> param[i].name);
            s->moments[kind][i] = ts_graph_input_index(g, name);
        }
    }
    return TS_OK;
}

/* One input's buffers on all devices. */
static ts_status make_buffer(ts_state *s, int input, ts_error *err)
{
    const ts_value *v = s->graph->top->arg[input];
    const int n = s->graph->top->n_arg;
    const ts_spec spec = ts_placed_in(&s->placed, input);
    const ts_type local = ts_placed_local(&s->placed, &spec, &v->type);
    const bool share = s->engine->vtable->shares_inputs && !is_written(s->graph, input);
    for (int d = 0; d < s->devices; d++) {
        int home = share ? ts_placed_home(&s->placed, &spec, d) : d;
        s->borrowed[d * n + input] = home != d;
        if (home != d)
            s->buffer[d * n + input] = s->buffer[home * n + input];
        else
            TS_TRY(ts_buffer_new(s->engine, d, &local, &s->buffer[d * n + input], err));
    }
    return TS_OK;
}

static ts_status make_buffers(ts_state *s, ts_error *err)
{
    const ts_graph *g = s->graph;
    for (int i = 0; i < g->n_param; i++)
        s->parameters +=
            ts_param_elements(&g->param[i]) * (g->param[i].count ? g->param[i].count : 1);
    for (int i = 0; i < g->top->n_arg; i++) {
        if (!is_state(s, i)) continue;
        ts_status status = make_buffer(s, i, err);
        if (status == TS_RESOURCE_EXHAUSTED)
            ts__error_context(err,
                              "%s of the model finds no room; fewer or narrower layers, or a "
                              "smaller vocabulary, need less",
                              g->top->arg[i]->name);
        TS_TRY(status);
    }
    return TS_OK;
}

ts_status ts_state_place(ts_engine *e, const ts_placed *p, ts_state **out, ts_error *err)
{
    ts_state *s = ts_alloc_zero(sizeof *s);
    *out = NULL;
    if (!s) return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out for the model's state");
    s->engine = e;
    s->placed = *p;
    s->graph = p->global;
    s->devices = ts_placed_devices(p);
    size_t n = (size_t)s->devices * (size_t)s->graph->top->n_arg + 1;
    s->buffer = ts_alloc_zero(n * sizeof *s->buffer);
    s->borrowed = ts_alloc_zero(n);
    ts_status status =
        s->buffer && s->borrowed
            ? find_moments(s, err)
            : TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out for the model's state");
    if (status == TS_OK) status = make_buffers(s, err);
    if (status == TS_OK)
        *out = s;
    else
        ts_state_free(s);
    return status;
}

ts_status ts_state_new(ts_engine *e, const ts_graph *g, ts_state **out, ts_error *err)
{
    ts_placed whole = ts_placed_whole(g);
    return ts_state_place(e, &whole, out, err);
}

void ts_state_free(ts_state *s)
{
    if (!s) return;
    for (int i = 0; s->buffer && s->borrowed && i < s->devices * s->graph->top->n_arg; i++)
        if (!s->borrowed[i]) ts_buffer_free(s->buffer[i]);
    ts_free(s->buffer);
    ts_free(s->borrowed);
    ts_free(s->moments[0]);
    ts_free(s->moments[1]);
    ts_free(s);
}

ts_buffer *ts_state_find(const ts_state *s, const char *name, int device, ts_spec *spec)
{
    int i = ts_graph_input_index(s->graph, name);
    if (i >= 0 && spec) *spec = ts_placed_in(&s->placed, i);
    return i < 0 ? NULL : s->buffer[device * s->graph->top->n_arg + i];
}

const ts_graph *ts_state_graph(const ts_state *s)
{
    return s->graph;
}
int64_t ts_state_parameters(const ts_state *s)
{
    return s->parameters;
}

/* ---- one layer's tensor at a time ------------------------------------------------------------ */

static size_t layers_of(const ts_param_info *p)
{
    return p->count ? (size_t)p->count : 1;
}

size_t ts_state_tensor_count(const ts_state *s)
{
    size_t n = 0;
    for (int i = 0; i < s->graph->n_param; i++)
        n += layers_of(&s->graph->param[i]) * (s->moments[0][i] >= 0 ? 3 : 1);
    return n;
}

void ts_state_tensor_at(const ts_state *s, size_t at, ts_state_tensor *out)
{
    static const char *const prefix[3] = {"", "adam.m.", "adam.v."};
    for (int kind = 0; kind < 3; kind++)
        for (int i = 0; i < s->graph->n_param; i++) {
            const ts_param_info *p = &s->graph->param[i];
            int input = kind ? s->moments[kind - 1][i] : p->value->index;
            if (input < 0) continue;
            if (at >= layers_of(p)) {
                at -= layers_of(p);
                continue;
            }
            char name[512];
            snprintf(out->name, sizeof out->name, "%s%s", prefix[kind],
                     ts_param_name(p, (int)at, name, sizeof name));
            out->param = p;
            out->state = s;
            out->input = input;
            out->layer = (int)at;
            out->elements = (size_t)ts_param_elements(p);
            return;
        }
    TS_ASSERT(false);
}

/* ---- moving ---------------------------------------------------------------------------------- */

static ts_buffer *buffer_of(const ts_state_tensor *t, int device)
{
    return t->state->buffer[device * t->state->graph->top->n_arg + t->input];
}

/* A device's piece of the tensor. */
static ts_piece piece_of(const ts_state_tensor *t, int device)
{
    const ts_placed *p = &t->state->placed;
    const ts_spec spec = ts_placed_in(p, t->input);
    return ts_piece_of(ts_placed_mesh(p), &spec, &p->global->top->arg[t->input]->type,
                       t->param->count ? 1 : 0, device);
}

/* Where element `at` of a device's piece stands in its buffer, in bytes: layers lie one behind the other. */
static size_t byte_of(const ts_state_tensor *t, const ts_piece *p, size_t at)
{
    return ((size_t)t->layer * p->elements + at) * sizeof(float);
}

/* Elements first … first + n − 1 of the tensor to a device that holds some. scratch: n elements. */
static ts_status send(const ts_state_tensor *t, int device, size_t first, size_t n,
                      const float *data, float *scratch, ts_error *err)
{
    const ts_piece p = piece_of(t, device);
    const size_t from = ts_box_before(&p, first), count = ts_box_before(&p, first + n) - from;
    const float *source = scratch;
    if (count == 0) return TS_OK;
    if (p.run == p.elements)
        source = data + (ts_box_place(&p, from) - first);
    else
        ts_box_gather(&p, from, count, sizeof(float), data, first, scratch);
    return ts_upload(buffer_of(t, device), source, byte_of(t, &p, from), count * sizeof(float),
                     err);
}

/* The same from a device. */
static ts_status fetch(const ts_state_tensor *t, int device, size_t first, size_t n, float *data,
                       float *scratch, ts_error *err)
{
    const ts_piece p = piece_of(t, device);
    const size_t from = ts_box_before(&p, first), count = ts_box_before(&p, first + n) - from;
    const bool together = p.run == p.elements;
    if (count == 0) return TS_OK;
    float *to = together ? data + (ts_box_place(&p, from) - first) : scratch;
    TS_TRY(
        ts_download(buffer_of(t, device), to, byte_of(t, &p, from), count * sizeof(float), err));
    if (!together) ts_box_scatter(&p, from, count, sizeof(float), scratch, data, first);
    return TS_OK;
}

ts_status ts_state_read(const ts_state_tensor *t, uint64_t first, size_t n, float *to,
                        ts_error *err)
{
    const ts_state *s = t->state;
    const ts_mesh *m = ts_placed_mesh(&s->placed);
    const ts_spec spec = ts_placed_in(&s->placed, t->input);
    if (!m) return fetch(t, 0, (size_t)first, n, to, NULL, err);
    float *scratch = ts_alloc(n * sizeof(float) + 1);
    ts_status status = scratch ? TS_OK
                               : TS_ERROR(err, TS_RESOURCE_EXHAUSTED,
                                          "memory is out for %zu elements of %s", n, t->name);
    for (int d = 0; d < s->devices && status == TS_OK; d++)
        if (ts_spec_owner(m, &spec, d)) status = fetch(t, d, (size_t)first, n, to, scratch, err);
    ts_free(scratch);
    return status;
}

/* ---- what each device writes ------------------------------------------------------------------ */

static bool is_owner(const ts_state *s, int input, int device)
{
    const ts_mesh *m = ts_placed_mesh(&s->placed);
    const ts_spec spec = ts_placed_in(&s->placed, input);
    return !m || ts_spec_owner(m, &spec, device);
}

ts_status ts_state_parts(const ts_state *s, ts_state_part **out, size_t *n, ts_error *err)
{
    size_t tensors = ts_state_tensor_count(s), count, bytes;
    ts_state_part *p = NULL;
    *n = 0;
    if (!ts_mul_size(tensors, (size_t)s->devices, &count) &&
        !ts_mul_size(count + 1, sizeof *p, &bytes))
        p = ts_alloc(bytes);
    if (!p) return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out for a checkpoint");
    for (int d = 0; d < s->devices; d++)
        for (size_t i = 0; i < tensors; i++) {
            ts_state_part *x = &p[*n];
            ts_state_tensor_at(s, i, &x->tensor);
            if (!is_owner(s, x->tensor.input, d)) continue;
            x->device = d;
            x->box = piece_of(&x->tensor, d);
            x->frozen = !is_written(s->graph, x->tensor.input);
            x->buffer = buffer_of(&x->tensor, d);
            x->at = byte_of(&x->tensor, &x->box, 0);
            (*n)++;
        }
    *out = p;
    return TS_OK;
}

ts_status ts_state_part_read(const ts_state_part *p, uint64_t first, size_t n, float *to,
                             ts_error *err)
{
    return ts_download(buffer_of(&p->tensor, p->device), to,
                       byte_of(&p->tensor, &p->box, (size_t)first), n * sizeof *to, err);
}

/* A device's whole piece against its owner's; scratch: two of them. */
static ts_status check_replica(const ts_state_tensor *t, int home, int device, float *scratch,
                               ts_error *err)
{
    const ts_piece p = piece_of(t, device);
    const size_t bytes = p.elements * sizeof(float);
    float *other = scratch + p.elements;
    TS_TRY(ts_download(buffer_of(t, home), scratch, byte_of(t, &p, 0), bytes, err));
    TS_TRY(ts_download(buffer_of(t, device), other, byte_of(t, &p, 0), bytes, err));
    for (size_t i = 0; i < p.elements; i++)
        if (memcmp(&scratch[i], &other[i], sizeof(float)) != 0)
            return TS_ERROR(err, TS_DATA_LOSS,
                            "%s differs between devices %d and %d, which hold the same part of it: "
                            "element %zu of it is %.9g and %.9g",
                            t->name, home, device, i, (double)scratch[i], (double)other[i]);
    return TS_OK;
}

ts_status ts_state_check_replicas(const ts_state *s, ts_error *err)
{
    size_t n = ts_state_tensor_count(s);
    for (size_t i = 0; i < n; i++) {
        ts_state_tensor t;
        ts_state_tensor_at(s, i, &t);
        const ts_spec spec = ts_placed_in(&s->placed, t.input);
        float *scratch = ts_alloc(2 * t.elements * sizeof(float) + 1);
        ts_status status =
            scratch ? TS_OK
                    : TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out to compare replicas");
        for (int d = 0; d < s->devices && status == TS_OK; d++) {
            int home = ts_placed_home(&s->placed, &spec, d);
            if (home != d) status = check_replica(&t, home, d, scratch, err);
        }
        ts_free(scratch);
        TS_TRY(status);
    }
    return TS_OK;
}

/* ---- filling --------------------------------------------------------------------------------- */

/* Elements first … first + n − 1 of a tensor into data. */
typedef ts_status (*fill)(const ts_state_tensor *t, uint64_t first, size_t n, float *data,
                          void *context, ts_error *err);

enum { PIECE = 1 << 22 }; /* elements of the host buffer: 16 MiB */

/* Which copy of the input a device holds: the first of them, the second … An engine whose buffers are host memory
 * needs no order: all copies are written at once. */
static int copy_of(const ts_state *s, int input, int device)
{
    const ts_mesh *m = ts_placed_mesh(&s->placed);
    const ts_spec spec = ts_placed_in(&s->placed, input);
    int replica = 0;
    if (m && !s->engine->vtable->shares_inputs) (void)ts_piece_home(m, &spec, device, &replica);
    return replica;
}

/* One tensor's elements to the devices that hold copy number `copy` of it; data: room for two stretches. */
static ts_status fill_tensor(const ts_state_tensor *t, int copy, fill f, float *data,
                             void *context, ts_error *err)
{
    const ts_state *s = t->state;
    for (size_t first = 0; first < t->elements; first += PIECE) {
        size_t n = t->elements - first < PIECE ? t->elements - first : PIECE;
        TS_TRY(f(t, first, n, data, context, err));
        for (int d = 0; d < s->devices; d++)
            if (copy_of(s, t->input, d) == copy &&
                !s->borrowed[d * s->graph->top->n_arg + t->input])
                TS_TRY(send(t, d, first, n, data, data + PIECE, err));
    }
    return TS_OK;
}

/* The tensors from `first` on that are layers of one input, a copy of them at a time; *next is the one behind. */
static ts_status fill_input(const ts_state *s, size_t first, size_t last, fill f, float *data,
                            void *context, size_t *next, ts_error *err)
{
    ts_state_tensor t;
    int copies = 1;
    ts_state_tensor_at(s, first, &t);
    const int input = t.input;
    for (int d = 0; d < s->devices; d++)
        if (copy_of(s, input, d) >= copies) copies = copy_of(s, input, d) + 1;
    for (int copy = 0; copy < copies; copy++)
        for (size_t i = *next = first; i < last; *next = ++i) {
            ts_state_tensor_at(s, i, &t);
            if (t.input != input) break;
            TS_TRY(fill_tensor(&t, copy, f, data, context, err));
        }
    return TS_OK;
}

/* Fills tensors first … last − 1 through one host buffer, and a second for pieces where there are several devices. */
static ts_status fill_tensors(ts_state *s, size_t first, size_t last, fill f, void *context,
                              ts_error *err)
{
    float *data = ts_alloc((s->devices > 1 ? 2 : 1) * (size_t)PIECE * sizeof(float));
    ts_status status = data ? TS_OK
                            : TS_ERROR(err, TS_RESOURCE_EXHAUSTED,
                                       "memory is out: 16 MiB to fill the model's tensors");
    while (first < last && status == TS_OK)
        status = fill_input(s, first, last, f, data, context, &first, err);
    ts_free(data);
    return status;
}

static size_t parameter_tensors(const ts_state *s)
{
    size_t n = 0;
    for (int i = 0; i < s->graph->n_param; i++) n += layers_of(&s->graph->param[i]);
    return n;
}

static ts_status initial(const ts_state_tensor *t, uint64_t first, size_t n, float *data,
                         void *context, ts_error *err)
{
    (void)err;
    ts_init_values(t->name, t->param->init, *(uint64_t *)context, (int64_t)first, (int64_t)n, data);
    return TS_OK;
}

ts_status ts_state_initialise(ts_state *s, uint64_t seed, ts_error *err)
{
    return fill_tensors(s, 0, parameter_tensors(s), initial, &seed, err);
}

/* ---- loading --------------------------------------------------------------------------------- */

static void shape_text(char *buf, size_t n, int rank, const int64_t *dim)
{
    size_t at = (size_t)snprintf(buf, n, "[");
    for (int i = 0; i < rank && at < n; i++)
        at += (size_t)snprintf(buf + at, n - at, i ? ",%lld" : "%lld", (long long)dim[i]);
    if (at < n) snprintf(buf + at, n - at, "]");
}

static ts_status from_file(const ts_state_tensor *t, uint64_t first, size_t n, float *data,
                           void *context, ts_error *err)
{
    ts_tensors *file = context;
    const ts_tensor *x = ts_tensors_find(file, t->name);
    char want[200], have[200];
    shape_text(want, sizeof want, t->param->file_rank, t->param->file_dim);
    if (!x && strncmp(t->name, "adam.", 5) == 0)
        return TS_ERROR(err, TS_FAILED_PRECONDITION,
                        "%s was frozen when the checkpoint was written: it has no moment %s; keep "
                        "frozen_parameters as it was, or begin a run of another name with "
                        "load_parameters_path",
                        t->name + strlen("adam.m."), t->name);
    if (!x) {
        const ts_tensor *any = ts_tensors_count(file) ? ts_tensors_at(file, 0) : NULL;
        return TS_ERROR(err, TS_DATA_LOSS, "%s: tensor %s %s is missing",
                        any ? ts_tensors_path_of(file, any) : "an empty file", t->name, want);
    }
    bool same = x->rank == t->param->file_rank;
    for (int i = 0; same && i < x->rank; i++) same = x->dim[i] == t->param->file_dim[i];
    if (!same) {
        shape_text(have, sizeof have, x->rank, x->dim);
        return TS_ERROR(err, TS_DATA_LOSS,
                        "%s: tensor %s is %s; the model's configuration makes it %s",
                        ts_tensors_path_of(file, x), t->name, have, want);
    }
    return ts_tensors_read_f32(file, x, first, n, data, err);
}

static bool is_ignored(const char *name)
{
    const char *end = strstr(name, "rotary_emb.inv_freq");
    return strcmp(name, "lm_head.weight") == 0 ||
           (end && strcmp(end, "rotary_emb.inv_freq") == 0) || strncmp(name, "adam.", 5) == 0;
}

static ts_status no_strangers(const ts_state *s, ts_tensors *file, ts_error *err)
{
    size_t known = parameter_tensors(s);
    for (size_t i = 0; i < ts_tensors_count(file); i++) {
        const ts_tensor *x = ts_tensors_at(file, i);
        bool found = is_ignored(x->name);
        ts_state_tensor t;
        for (size_t k = 0; k < known && !found; k++) {
            ts_state_tensor_at(s, k, &t);
            found = strcmp(t.name, x->name) == 0;
        }
        if (!found)
            return TS_ERROR(
                err, TS_DATA_LOSS,
                "%s holds tensor %s, which this model does not have; is its config.json "
                "of another model?",
                ts_tensors_path_of(file, x), x->name);
    }
    return TS_OK;
}

ts_status ts_state_load(ts_state *s, ts_tensors *t, ts_error *err)
{
    TS_TRY(no_strangers(s, t, err));
    return fill_tensors(s, 0, parameter_tensors(s), from_file, t, err);
}

ts_status ts_state_load_moments(ts_state *s, ts_tensors *t, ts_error *err)
{
    return fill_tensors(s, parameter_tensors(s), ts_state_tensor_count(s), from_file, t, err);
}
