/* train/bound.c – an executable together with the buffers of its inputs and outputs; see state.h.
 *
 * Inputs that the state has are bound to its buffers, the others get buffers of their own; an output that
 * replaces an input is that input's buffer. Names are looked up by a linear search over a few dozen inputs,
 * outside the step but for the batch and three scalars.
 */
#include "train/state.h"

struct ts_bound {
    const ts_graph *graph;
    ts_executable *executable;
    ts_buffer **in, **out;  /* by the graph's order */
    bool *own_in, *own_out; /* made here */
};

static ts_status bind_inputs(ts_bound *b, ts_engine *e, ts_state *state, ts_error *err)
{
    const ts_region *top = b->graph->top;
    for (int i = 0; i < top->n_arg; i++) {
        b->in[i] = state ? ts_state_find(state, top->arg[i]->name) : NULL;
        if (b->in[i]) {
            TS_ASSERT(ts_type_same(&b->in[i]->type, &top->arg[i]->type));
            continue;
        }
        TS_TRY(ts_buffer_new(e, 0, &top->arg[i]->type, &b->in[i], err));
        b->own_in[i] = true;
    }
    for (int i = 0; state && i < b->graph->n_param;
         i++) /* no model runs on zeros because of a name */
        TS_ASSERT(!b->own_in[b->graph->param[i].value->index]);
    return TS_OK;
}

static ts_status bind_outputs(ts_bound *b, ts_engine *e, ts_error *err)
{
    const ts_region *top = b->graph->top;
    for (int i = 0; i < top->n_result; i++) {
        int replaces = b->graph->output[i].replaces;
        if (replaces >= 0) {
            b->out[i] = b->in[replaces];
            continue;
        }
        TS_TRY(ts_buffer_new(e, 0, &top->result[i]->type, &b->out[i], err));
        b->own_out[i] = true;
    }
    return TS_OK;
}

ts_status ts_bound_new(ts_engine *e, const ts_graph *g, ts_state *state, ts_bound **out,
                       ts_error *err)
{
    size_t n_in = (size_t)g->top->n_arg + 1, n_out = (size_t)g->top->n_result + 1;
    ts_bound *b = ts_alloc_zero(sizeof *b);
    *out = NULL;
    ts_status status = TS_OK;
    if (b) {
        b->graph = g;
        b->in = ts_alloc_zero(n_in * sizeof *b->in);
        b->out = ts_alloc_zero(n_out * sizeof *b->out);
        b->own_in = ts_alloc_zero(n_in);
        b->own_out = ts_alloc_zero(n_out);
    }
    if (!b || !b->in || !b->out || !b->own_in || !b->own_out)
        status =
            TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out for the buffers of %s", g->name);
    if (status == TS_OK) status = ts_compile(e, g, &b->executable, err);
    if (status == TS_OK) status = bind_inputs(b, e, state, err);
    if (status == TS_OK) status = bind_outputs(b, e, err);
    if (status == TS_OK)
        *out = b;
    else
        ts_bound_free(b);
    return status;
}

void ts_bound_free(ts_bound *b)
{
    if (!b) return;
    for (int i = 0; b->own_in && i < b->graph->top->n_arg; i++)
        if (b->own_in[i]) ts_buffer_free(b->in[i]);
    for (int i = 0; b->own_out && i < b->graph->top->n_result; i++)
        if (b->own_out[i]) ts_buffer_free(b->out[i]);
    ts_executable_free(b->executable);
    ts_free(b->in);
    ts_free(b->out);
    ts_free(b->own_in);
    ts_free(b->own_out);
    ts_free(b);
}

ts_executable *ts_bound_executable(const ts_bound *b)
{
    return b->executable;
}
bool ts_bound_has(const ts_bound *b, const char *input)
{
    return ts_graph_input_index(b->graph, input) >= 0;
}

ts_status ts_bound_set(ts_bound *b, const char *input, const void *data, size_t bytes,
                       ts_error *err)
{
    int i = ts_graph_input_index(b->graph, input);
    TS_ASSERT(i >= 0 && bytes == ts_type_bytes(&b->in[i]->type));
    return ts_upload(b->in[i], data, 0, bytes, err);
}

const ts_type *ts_bound_output_type(const ts_bound *b, const char *output)
{
    int i = ts_graph_output_index(b->graph, output);
    return i < 0 ? NULL : &b->out[i]->type;
}

ts_status ts_bound_get(ts_bound *b, const char *output, void *data, size_t bytes, ts_error *err)
{
    int i = ts_graph_output_index(b->graph, output);
    TS_ASSERT(i >= 0 && bytes == ts_type_bytes(&b->out[i]->type));
    return ts_download(b->out[i], data, 0, bytes, err);
}

ts_status ts_bound_execute(ts_bound *b, ts_error *err)
{
    TS_TRY(ts_execute(b->executable, b->in, b->out, err));
    return ts_wait(b->executable, err);
}
