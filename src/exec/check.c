/* exec/check.c – are these the buffers that an execute may have? The contract of engine.h, for every engine.
 *
 * Each buffer is of the executable's engine, on the right device and of the program's type. One that is written is
 * named once: an output that replaces an input is that input's buffer, any other is neither an input nor another
 * output, for its readers would see it change. Marks in the buffers find that in one pass each.
 * Not here: what an engine then does with them.
 */
#include "exec/engine.h"

static uint64_t serial; /* marks start at 1 */

static ts_status check_one(const ts_executable *x, const ts_buffer *b, int device,
                           const ts_type *type, const char *what, const char *name, ts_error *err)
{
    char found[400], expected[400];
    if (!b) return TS_ERROR(err, TS_INVALID_ARGUMENT, "%s %s: no buffer was given", what, name);
    if (b->engine != x->engine)
        return TS_ERROR(err, TS_INVALID_ARGUMENT, "%s %s: the buffer belongs to another engine",
                        what, name);
    if (b->device != device)
        return TS_ERROR(err, TS_INVALID_ARGUMENT, "%s %s: the buffer is on device %d, expected %d",
                        what, name, b->device, device);
    if (!ts_type_same(&b->type, type))
        return TS_ERROR(err, TS_INVALID_ARGUMENT, "%s %s: the buffer is %s, the program has %s",
                        what, name, ts_type_text(&b->type, found, sizeof found),
                        ts_type_text(type, expected, sizeof expected));
    return TS_OK;
}

ts_status ts__check_buffers(const ts_executable *x, int device, ts_buffer *const *in,
                            ts_buffer *const *out, ts_error *err)
{
    const ts_graph *g = x->graph;
    uint64_t read = ++serial, written = ++serial;
    int donated = 0, written_inputs = 0;
    for (int k = 0; k < g->top->n_arg; k++) {
        const ts_value *v = g->top->arg[k];
        const ts_type *type = x->local ? &x->local[k] : &v->type;
        TS_TRY(check_one(x, in[k], device, type, "input", v->name, err));
        in[k]->mark = read;
    }
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
        donated += replaces >= 0;
    }
    /* A donated buffer given as a second input would change under that input's readers. */
    for (int k = 0; k < g->top->n_arg; k++) written_inputs += in[k]->mark == written;
    if (written_inputs != donated)
        return TS_ERROR(err, TS_INVALID_ARGUMENT,
                        "a buffer that an output replaces was given as two inputs");
    return TS_OK;
}
