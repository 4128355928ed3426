/* train/bound.c – an executable together with the buffers of its inputs and outputs; see state.h.
 *
 * Inputs that the state has are bound to its buffers, the others get buffers of their own on every device, one set for
 * each execution that may be in flight: what one of them reads or writes is not touched before it was waited for. An
 * output that replaces an input is that input's buffer, in every set. What goes in or out is a whole tensor: it is cut
 * into the devices' pieces here, and put together again. Nothing is allocated after opening. Names are looked up by a
 * linear search over a few dozen inputs, outside the step but for the batch and three scalars.
 */
#include "train/state.h"

struct ts_bound {
    ts_placed placed;
    const ts_graph *graph; /* the global one */
    int devices, n_in, n_out;
    ts_executable *executable;
    int slots;
    ts_buffer ***in, ***out; /* [slots][devices × the graph's order] */
    bool *own_in, *own_out;  /* [devices × …]: made here */
    void *piece;             /* room for the largest piece that is not one stretch of its tensor */
    int64_t dispatched, waited;
};

/* ---- opening --------------------------------------------------------------------------------- */

static bool is_replaced(const ts_graph *g, int input)
{
    for (int i = 0; i < g->top->n_result; i++)
        if (g->output[i].replaces == input) return true;
    return false;
}

/* Another program lays its parameters out as the one that the state was made for does: both go by the same pins. */
static ts_status bind_state(ts_bound *b, const ts_state *state, int input, ts_error *err)
{
    const ts_value *v = b->graph->top->arg[input];
    const ts_spec spec = ts_placed_in(&b->placed, input);
    const ts_type local = ts_placed_local(&b->placed, &spec, &v->type);
    ts_spec held;
    for (int d = 0; d < b->devices; d++) {
        ts_buffer *shared = ts_state_find(state, v->name, d, &held);
        TS_ASSERT(ts_type_same(&shared->type, &local));
        if (!ts_spec_same(&spec, &held))
            return TS_ERROR(err, TS_INTERNAL, "%s: the state holds %s in another layout",
                            b->graph->name, v->name);
        for (int k = 0; k < b->slots; k++) b->in[k][d * b->n_in + input] = shared;
    }
    return TS_OK;
}

static ts_status bind_own(ts_bound *b, ts_engine *e, int input, ts_error *err)
{
    const ts_value *v = b->graph->top->arg[input];
    const ts_spec spec = ts_placed_in(&b->placed, input);
    const ts_type local = ts_placed_local(&b->placed, &spec, &v->type);
    const bool share = e->vtable->shares_inputs && !is_replaced(b->graph, input);
    for (int d = 0; d < b->devices; d++) {
        int home = share ? ts_placed_home(&b->placed, &spec, d) : d;
        b->own_in[d * b->n_in + input] = home == d;
        for (int k = 0; k < b->slots; k++) {
            ts_buffer **at = &b->in[k][d * b->n_in + input];
            if (home == d)
                TS_TRY(ts_buffer_new(e, d, &local, at, err));
            else
                *at = b->in[k][home * b->n_in + input];
        }
    }
    return TS_OK;
}

static ts_status bind_inputs(ts_bound *b, ts_engine *e, ts_state *state, ts_error *err)
{
    const ts_region *top = b->graph->top;
    for (int i = 0; i < top->n_arg; i++) {
        if (state && ts_state_find(state, top->arg[i]->name, 0, NULL))
            TS_TRY(bind_state(b, state, i, err));
        else
            TS_TRY(bind_own(b, e, i, err));
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
        const int replaces = b->graph->output[i].replaces;
        const ts_spec spec = ts_placed_out(&b->placed, i);
        const ts_type local = ts_placed_local(&b->placed, &spec, &top->result[i]->type);
        TS_ASSERT(replaces < 0 || b->slots == 1 || !b->own_in[replaces]);
        for (int d = 0; d < b->devices; d++) {
            b->own_out[d * b->n_out + i] = replaces < 0;
            for (int k = 0; k < b->slots; k++) {
                ts_buffer **at = &b->out[k][d * b->n_out + i];
                if (replaces >= 0)
                    *at = b->in[k][d * b->n_in + replaces];
                else
                    TS_TRY(ts_buffer_new(e, d, &local, at, err));
            }
        }
    }
    return TS_OK;
}

/* Room for one piece of any value that goes in or out in parts. */
static ts_status make_piece(ts_bound *b, ts_error *err)
{
    const ts_mesh *m = ts_placed_mesh(&b->placed);
    size_t most = 0;
    for (int i = 0; i < b->n_in + b->n_out; i++) {
        const bool in = i < b->n_in;
        if (!(in ? b->own_in[i] : b->own_out[i - b->n_in])) continue;
        const ts_type *t =
            in ? &b->graph->top->arg[i]->type : &b->graph->top->result[i - b->n_in]->type;
        const ts_spec spec =
            in ? ts_placed_in(&b->placed, i) : ts_placed_out(&b->placed, i - b->n_in);
        const ts_piece p = ts_piece_of(m, &spec, t, 0, 0);
        const size_t bytes = p.elements * ts_dtype_bytes(t->dtype);
        if (p.run != p.elements && bytes > most) most = bytes;
    }
    b->piece = most ? ts_alloc(most) : NULL;
    return b->piece || !most ? TS_OK
                             : TS_ERROR(err, TS_RESOURCE_EXHAUSTED,
                                        "memory is out for the buffers of %s", b->graph->name);
}

/* Lists for every slot, empty. */
static bool make_lists(ts_bound *b)
{
    size_t n_in = (size_t)(b->n_in * b->devices) + 1, n_out = (size_t)(b->n_out * b->devices) + 1;
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

ts_status ts_bound_open(ts_engine *e, const ts_placed *p, ts_state *state, int slots,
                        const char *file, ts_bound **out, ts_error *err)
{
    ts_bound *b = ts_alloc_zero(sizeof *b);
    ts_status status = TS_OK;
    *out = NULL;
    TS_ASSERT(slots >= 1 && (!file || e->vtable->load));
    if (b) {
        b->placed = *p;
        b->graph = p->global;
        b->devices = ts_placed_devices(p);
        b->n_in = p->global->top->n_arg;
        b->n_out = p->global->top->n_result;
        b->slots = slots;
    }
    if (!b || !make_lists(b))
        status = TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out for the buffers of %s",
                          p->global->name);
    if (status == TS_OK) status = ts_placed_compile(p, e, file, &b->executable, err);
    if (status == TS_OK) status = bind_inputs(b, e, state, err);
    if (status == TS_OK) status = bind_outputs(b, e, err);
    if (status == TS_OK) status = make_piece(b, err);
    if (status == TS_OK)
        *out = b;
    else
        ts_bound_free(b);
    return status;
}

ts_status ts_bound_new(ts_engine *e, const ts_graph *g, ts_state *state, ts_bound **out,
                       ts_error *err)
{
    ts_placed whole = ts_placed_whole(g);
    return ts_bound_open(e, &whole, state, 1, NULL, out, err);
}

/* Buffers of one slot; what memory ran out for is not there. */
static void free_lists(const ts_bound *b, int slot)
{
    ts_buffer **in = b->in ? b->in[slot] : NULL, **out = b->out ? b->out[slot] : NULL;
    for (int i = 0; in && i < b->devices * b->n_in; i++)
        if (b->own_in[i]) ts_buffer_free(in[i]);
    for (int i = 0; out && i < b->devices * b->n_out; i++)
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
    ts_free(b->piece);
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

/* ---- what goes in and out -------------------------------------------------------------------- */

static int input_index(const ts_bound *b, const char *input, size_t bytes)
{
    int i = ts_graph_input_index(b->graph, input);
    TS_ASSERT(i >= 0 && b->own_in[i] && bytes == ts_type_bytes(&b->graph->top->arg[i]->type));
    return i;
}

/* A whole input to the devices' buffers of a slot. */
static ts_status scatter(ts_bound *b, int slot, int input, const void *data, ts_error *err)
{
    const ts_type *t = &b->graph->top->arg[input]->type;
    const ts_spec spec = ts_placed_in(&b->placed, input);
    const size_t size = ts_dtype_bytes(t->dtype);
    for (int d = 0; d < b->devices; d++) {
        if (!b->own_in[d * b->n_in + input]) continue; /* an earlier device's, written */
        const ts_piece p = ts_piece_of(ts_placed_mesh(&b->placed), &spec, t, 0, d);
        const void *piece = (const char *)data + ts_box_place(&p, 0) * size;
        if (p.run != p.elements) {
            ts_box_gather(&p, 0, p.elements, size, data, 0, b->piece);
            piece = b->piece;
        }
        TS_TRY(ts_upload(b->in[slot][d * b->n_in + input], piece, 0, p.elements * size, err));
    }
    return TS_OK;
}

ts_status ts_bound_set(ts_bound *b, const char *input, const void *data, size_t bytes,
                       ts_error *err)
{
    int i = input_index(b, input, bytes);
    TS_ASSERT(b->dispatched - b->waited < b->slots);
    return scatter(b, (int)(b->dispatched % b->slots), i, data, err);
}

ts_status ts_bound_keep(ts_bound *b, const char *input, const void *data, size_t bytes,
                        ts_error *err)
{
    int i = input_index(b, input, bytes);
    TS_ASSERT(b->dispatched == b->waited);
    for (int k = 0; k < b->slots; k++) TS_TRY(scatter(b, k, i, data, err));
    return TS_OK;
}

const ts_type *ts_bound_output_type(const ts_bound *b, const char *output)
{
    int i = ts_graph_output_index(b->graph, output);
    return i < 0 ? NULL : &b->graph->top->result[i]->type;
}

ts_status ts_bound_get(ts_bound *b, const char *output, void *data, size_t bytes, ts_error *err)
{
    const int i = ts_graph_output_index(b->graph, output);
    TS_ASSERT(b->waited > 0 && i >= 0 && bytes == ts_type_bytes(&b->graph->top->result[i]->type));
    const ts_type *t = &b->graph->top->result[i]->type;
    const ts_mesh *m = ts_placed_mesh(&b->placed);
    const ts_spec spec = ts_placed_out(&b->placed, i);
    const size_t size = ts_dtype_bytes(t->dtype);
    ts_buffer *const *from = b->out[(b->waited - 1) % b->slots];
    for (int d = 0; d < b->devices; d++) {
        if (m && !ts_spec_owner(m, &spec, d)) continue;
        const ts_piece p = ts_piece_of(m, &spec, t, 0, d);
        const bool together = p.run == p.elements;
        TS_ASSERT(together || b->own_out[i]);
        void *to = together ? (char *)data + ts_box_place(&p, 0) * size : b->piece;
        TS_TRY(ts_download(from[d * b->n_out + i], to, 0, p.elements * size, err));
        if (!together) ts_box_scatter(&p, 0, p.elements, size, b->piece, data, 0);
    }
    return TS_OK;
}

/* ---- executing ------------------------------------------------------------------------------- */

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
