/* exec/check.c – may this program run on these devices, with these buffers? The contract of engine.h, for every engine.
 *
 * Each buffer is of the executable's engine, on the right device and of the program's type; where the engine shares
 * inputs, one that nothing replaces may be of any device. One that is written is named once among all devices: an
 * output that replaces an input is that input's buffer, any other is neither an input nor another output, for
 * its readers would see it change. Marks in the buffers find that in one pass each.
 * Not here: what an engine then does with them.
 */
#include "exec/engine.h"

/* Other numbers would run too, and compute something else: groups and coordinates are those of the mesh. */
ts_status ts__check_mesh(const ts_graph *g, int devices, ts_error *err)
{
    int64_t n = 1;
    for (int i = 0; i < g->n_axis; i++) n *= g->axis[i].size; /* at most 2^20: the graph is verified */
    if (g->n_axis == 0 || n == devices) return TS_OK;
    return TS_ERROR(
        err, TS_FAILED_PRECONDITION,
        "graph %s is made for a mesh of %lld device%s and would run on %d; partition it for those",
        g->name, (long long)n, n == 1 ? "" : "s", devices);
}

static uint64_t serial; /* marks start at 1 */

/* device −1: any. */
static ts_status check_one(const ts_executable *x, const ts_buffer *b, int device,
                           const ts_type *type, const char *what, const char *name, ts_error *err)
{
    char found[400], expected[400];
    if (!b) return TS_ERROR(err, TS_INVALID_ARGUMENT, "%s %s: no buffer was given", what, name);
    if (b->engine != x->engine)
        return TS_ERROR(err, TS_INVALID_ARGUMENT, "%s %s: the buffer belongs to another engine",
                        what, name);
    if (device >= 0 && b->device != device)
        return TS_ERROR(err, TS_INVALID_ARGUMENT, "%s %s: the buffer is on device %d, expected %d",
                        what, name, b->device, device);
    if (!ts_type_same(&b->type, type))
        return TS_ERROR(err, TS_INVALID_ARGUMENT, "%s %s: the buffer is %s, the program has %s",
                        what, name, ts_type_text(&b->type, found, sizeof found),
                        ts_type_text(type, expected, sizeof expected));
    return TS_OK;
}

static ts_status check_inputs(const ts_executable *x, int device, ts_buffer *const *in,
                              uint64_t read, ts_error *err)
{
    const ts_region *top = x->graph->top;
    const int where = x->vtable->shares_inputs ? -1 : device;
    for (int k = 0; k < top->n_arg; k++) {
        const ts_type *type = x->local ? &x->local[k] : &top->arg[k]->type;
        TS_TRY(check_one(x, in[k], where, type, "input", top->arg[k]->name, err));
        in[k]->mark = read;
    }
    return TS_OK;
}

static ts_status check_outputs(const ts_executable *x, int device, ts_buffer *const *in,
                               ts_buffer *const *out, uint64_t read, uint64_t written, ts_error *err)
{
    const ts_graph *g = x->graph;
    for (int k = 0; k < g->top->n_result; k++) {
        int replaces = g->output[k].replaces;
        const char *name = g->output[k].name;
        const ts_type *type = x->local ? &x->local[g->top->n_arg + k] : &g->top->result[k]->type;
        TS_TRY(check_one(x, out[k], device, type, "output", name, err));
        if (replaces >= 0 && out[k] != in[replaces])
            return TS_ERROR(err, TS_INVALID_ARGUMENT,
                            "output %s replaces input %s, so both must be the same buffer", name,
                            g->top->arg[replaces]->name);
        if (out[k]->mark == written || (replaces < 0 && out[k]->mark == read))
            return TS_ERROR(err, TS_INVALID_ARGUMENT,
                            "output %s: its buffer is an input or another output as well", name);
        out[k]->mark = written;
    }
    return TS_OK;
}

ts_status ts__check_buffers(const ts_executable *x, int devices, ts_buffer *const *in,
                            ts_buffer *const *out, ts_error *err)
{
    const ts_graph *g = x->graph;
    const size_t n_in = (size_t)g->top->n_arg, n_out = (size_t)g->top->n_result,
                 all = (size_t)devices;
    const uint64_t read = ++serial, written = ++serial;
    size_t donated = 0, written_inputs = 0;
    for (size_t d = 0; d < all; d++) TS_TRY(check_inputs(x, (int)d, in + d * n_in, read, err));
    for (size_t d = 0; d < all; d++)
        TS_TRY(check_outputs(x, (int)d, in + d * n_in, out + d * n_out, read, written, err));
    /* A donated buffer given as a second input would change under that input's readers. */
    for (size_t k = 0; k < n_out; k++) donated += g->output[k].replaces >= 0;
    for (size_t k = 0; k < all * n_in; k++) written_inputs += in[k]->mark == written;
    if (written_inputs != donated * all)
        return TS_ERROR(err, TS_INVALID_ARGUMENT,
                        "a buffer that an output replaces was given as two inputs");
    return TS_OK;
}
