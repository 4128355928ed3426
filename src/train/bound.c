/* train/bound.c – an executable together with the buffers of its inputs and outputs; see state.h.
 *
 * Inputs that the state has are bound to its buffers, the others get buffers of their own, one set for each
 * execution that may be in flight: what one of them reads or writes is not touched before it was waited for. An
 * output that replaces an input is that input's buffer, in every set. Names are looked up by a linear search over
 * a few dozen inputs, outside the step but for the batch and three scalars.
 */
#include "train/state.h"

struct ts_bound {
    const ts_graph *graph;
    ts_executable *executable;
    int slots;
    ts_buffer ***in, ***out; /* [slots][by the graph's order] */
    bool *own_in, *own_out;  /* made here */
    int64_t dispatched, waited;
};

static ts_status bind_inputs(ts_bound *b, ts_engine *e, ts_state *state, ts_error *err)
{
    const ts_region *top = b->graph->top;
    for (int i = 0; i < top->n_arg; i++) {
        ts_buffer *shared = state ? ts_state_find(state, top->arg[i]->name) : NULL;
        TS_ASSERT(!shared || ts_type_same(&shared->type, &top->arg[i]->type));
        b->own_in[i] = !shared;
        for (int k = 0; k < b->slots; k++) {
            b->in[k][i] = shared;
            if (!shared) TS_TRY(ts_buffer_new(e, 0, &top->arg[i]->type, &b->in[k][i], err));
        }
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
        TS_ASSERT(replaces < 0 || b->slots == 1 || !b->own_in[replaces]);
        b->own_out[i] = replaces < 0;
        for (int k = 0; k < b->slots; k++) {
            if (replaces >= 0)
                b->out[k][i] = b->in[k][replaces];
            else
                TS_TRY(ts_buffer_new(e, 0, &top->result[i]->type, &b->out[k][i], err));
        }
    }
    return TS_OK;
}

/* Lists for every slot, empty. */
static bool make_lists(ts_bound *b)
{
    size_t n_in = (size_t)b->graph->top->n_arg + 1, n_out = (size_t)b->graph->top->n_result + 1;
    b->in = ts_alloc_zero((size_t)b->slots * sizeof *b->in);
    b->out = ts_alloc_zero((size_t)b->slots * sizeof *b->out);
    b->own_in = ts_alloc_zero(n_in);
    b->own_out = ts_alloc_zero(n_out);
    if (!b->in || !b->out || !b->own_in || !b->own_out) return false;
    for (int k = 0; k < b->slots; k++) {
        b->in[k] = ts_alloc_zero(n_in * sizeof **b->in);
        b->out[k] = ts_alloc_zero(n_out * sizeof **b->out);
        if (!b->in[k] || !b->out[k]) return false;
    }
    return true;
}

ts_status ts_bound_open(ts_engine *e, const ts_graph *g, ts_state *state, int slots,
                        const char *file, ts_bound **out, ts_error *err)
{
    ts_bound *b = ts_alloc_zero(sizeof *b);
    ts_status status = TS_OK;
    *out = NULL;
    TS_ASSERT(slots >= 1 && (!file || e->vtable->load));
    if (b) {
        b->graph = g;
        b->slots = slots;
    }
    if (!b || !make_lists(b))
        status =
            TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out for the buffers of %s", g->name);
    if (status == TS_OK)
        status = file ? e->vtable->load(e, g, file, &b->executable, err)
                      : ts_compile(e, g, &b->executable, err);
    if (status == TS_OK) status = bind_inputs(b, e, state, err);
    if (status == TS_OK) status = bind_outputs(b, e, err);
    if (status == TS_OK)
        *out = b;
    else
        ts_bound_free(b);
    return status;
}

ts_status ts_bound_new(ts_engine *e, const ts_graph *g, ts_state *state, ts_bound **out,
                       ts_error *err)
{
    return ts_bound_open(e, g, state, 1, NULL, out, err);
}

/* Buffers of one slot; what memory ran out for is not there. */
static void free_lists(const ts_bound *b, int slot)
{
    ts_buffer **in = b->in ? b->in[slot] : NULL, **out = b->out ? b->out[slot] : NULL;
    for (int i = 0; in && i < b->graph->top->n_arg; i++)
        if (b->own_in[i]) ts_buffer_free(in[i]);
    for (int i = 0; out && i < b->graph->top->n_result; i++)
        if (b->own_out[i]) ts_buffer_free(out[i]);
    ts_free(in);
    ts_free(out);
}

void ts_bound_free(ts_bound *b)
{
    if (!b) return;
    ts_error unsaid = {0}; /* whoever wants to know waits */
    for (; b->waited < b->dispatched; b->waited++) (void)ts_wait(b->executable, &unsaid);
    for (int k = 0; k < b->slots; k++) free_lists(b, k);
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

static int input_index(const ts_bound *b, const char *input, size_t bytes)
{
    int i = ts_graph_input_index(b->graph, input);
    TS_ASSERT(i >= 0 && b->own_in[i] && bytes == ts_type_bytes(&b->in[0][i]->type));
    return i;
}

ts_status ts_bound_set(ts_bound *b, const char *input, const void *data, size_t bytes,
                       ts_error *err)
{
    int i = input_index(b, input, bytes);
    TS_ASSERT(b->dispatched - b->waited < b->slots);
    return ts_upload(b->in[b->dispatched % b->slots][i], data, 0, bytes, err);
}

ts_status ts_bound_keep(ts_bound *b, const char *input, const void *data, size_t bytes,
                        ts_error *err)
{
    int i = input_index(b, input, bytes);
    TS_ASSERT(b->dispatched == b->waited);
    for (int k = 0; k < b->slots; k++) TS_TRY(ts_upload(b->in[k][i], data, 0, bytes, err));
    return TS_OK;
}

const ts_type *ts_bound_output_type(const ts_bound *b, const char *output)
{
    int i = ts_graph_output_index(b->graph, output);
    return i < 0 ? NULL : &b->out[0][i]->type;
}

ts_status ts_bound_get(ts_bound *b, const char *output, void *data, size_t bytes, ts_error *err)
{
    int i = ts_graph_output_index(b->graph, output);
    TS_ASSERT(b->waited > 0 && i >= 0 && bytes == ts_type_bytes(&b->out[0][i]->type));
    return ts_download(b->out[(b->waited - 1) % b->slots][i], data, 0, bytes, err);
}

ts_status ts_bound_dispatch(ts_bound *b, ts_error *err)
{
    int k = (int)(b->dispatched % b->slots);
    TS_ASSERT(b->dispatched - b->waited < b->slots);
    TS_TRY(ts_execute(b->executable, b->in[k], b->out[k], err));
    b->dispatched++;
    return TS_OK;
}

ts_status ts_bound_wait(ts_bound *b, ts_error *err)
{
    TS_ASSERT(b->waited < b->dispatched);
    b->waited++;
    return ts_wait(b->executable, err);
}

ts_status ts_bound_execute(ts_bound *b, ts_error *err)
{
    TS_ASSERT(b->dispatched == b->waited);
    TS_TRY(ts_bound_dispatch(b, err));
    return ts_bound_wait(b, err);
}
