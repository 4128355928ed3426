/* train/state.c – parameters and moments on an engine; see state.h.
 *
 * Tensors are moved in pieces through one host buffer, so that loading needs 16 MiB beside the
 * model, whatever its size.
 */
#include "train/state.h"

#include <stdio.h>

struct ts_state {
    ts_engine *engine;
    const ts_graph *graph;
    ts_buffer **buffer; /* [inputs of the graph]; NULL where the input is no state */
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

static ts_status make_buffers(ts_state *s, ts_error *err)
{
    const ts_graph *g = s->graph;
    for (int i = 0; i < g->n_param; i++)
        s->parameters +=
            ts_param_elements(&g->param[i]) * (g->param[i].count ? g->param[i].count : 1);
    for (int i = 0; i < g->top->n_arg; i++) {
        if (!is_state(s, i)) continue;
        ts_status status = ts_buffer_new(s->engine, 0, &g->top->arg[i]->type, &s->buffer[i], err);
        if (status == TS_RESOURCE_EXHAUSTED)
            ts__error_context(err,
                              "%s of the model finds no room; fewer or narrower layers, or a "
                              "smaller vocabulary, need less",
                              g->top->arg[i]->name);
        TS_TRY(status);
    }
    return TS_OK;
}

ts_status ts_state_new(ts_engine *e, const ts_graph *g, ts_state **out, ts_error *err)
{
    ts_state *s = ts_alloc_zero(sizeof *s);
    *out = NULL;
    if (!s) return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out for the model's state");
    s->engine = e;
    s->graph = g;
    s->buffer = ts_alloc_zero((size_t)(g->top->n_arg + 1) * sizeof(ts_buffer *));
    ts_status status =
        s->buffer ? find_moments(s, err)
                  : TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out for the model's state");
    if (status == TS_OK) status = make_buffers(s, err);
    if (status == TS_OK)
        *out = s;
    else
        ts_state_free(s);
    return status;
}

void ts_state_free(ts_state *s)
{
    if (!s) return;
    for (int i = 0; s->buffer && i < s->graph->top->n_arg; i++) ts_buffer_free(s->buffer[i]);
    ts_free(s->buffer);
    ts_free(s->moments[0]);
    ts_free(s->moments[1]);
    ts_free(s);
}

ts_buffer *ts_state_find(const ts_state *s, const char *name)
{
    int i = ts_graph_input_index(s->graph, name);
    return i < 0 ? NULL : s->buffer[i];
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
            out->buffer = s->buffer[input];
            out->bytes = (size_t)ts_param_elements(p) * sizeof(float);
            out->offset = at * out->bytes;
            return;
        }
    TS_ASSERT(false);
}

/* Elements first … first + n − 1 of a tensor into data. */
typedef ts_status (*fill)(const ts_state_tensor *t, uint64_t first, size_t n, float *data,
                          void *context, ts_error *err);

enum { PIECE = 1 << 22 }; /* elements of the host buffer: 16 MiB */

static ts_status fill_tensor(const ts_state_tensor *t, fill f, float *data, void *context,
                             ts_error *err)
{
    size_t total = t->bytes / sizeof(float);
    for (size_t first = 0; first < total; first += PIECE) {
        size_t n = total - first < PIECE ? total - first : PIECE;
        TS_TRY(f(t, first, n, data, context, err));
        TS_TRY(
            ts_upload(t->buffer, data, t->offset + first * sizeof(float), n * sizeof(float), err));
    }
    return TS_OK;
}

/* Fills tensors first … last − 1 through one host buffer. */
static ts_status fill_tensors(ts_state *s, size_t first, size_t last, fill f, void *context,
                              ts_error *err)
{
    float *data = ts_alloc(PIECE * sizeof(float));
    ts_status status = data ? TS_OK
                            : TS_ERROR(err, TS_RESOURCE_EXHAUSTED,
                                       "memory is out: 16 MiB to fill the model's tensors");
    for (size_t i = first; i < last && status == TS_OK; i++) {
        ts_state_tensor t;
        ts_state_tensor_at(s, i, &t);
        status = fill_tensor(&t, f, data, context, err);
    }
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
