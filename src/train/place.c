/* train/place.c – a program of a run on the devices of its mesh; see place.h.
 *
 * The passes over a device's program are run here, so that training, parity and `tessera compile` compile the same:
 * partition, then rings where they are asked for.
 * Not here: which mesh (config), how a graph is partitioned (mesh/), who holds the buffers (state.c, bound.c).
 */
#include "train/place.h"

ts_placed ts_placed_whole(const ts_graph *global)
{
    return (ts_placed){.global = global, .graph = global};
}

void ts_placed_free(ts_placed *p)
{
    ts_partition_free(p->partition);
    *p = (ts_placed){0};
}

ts_status ts_place(const ts_config *c, const ts_graph *global, ts_place_how how, ts_placed *out,
                   ts_error *err)
{
    *out = ts_placed_whole(global);
    if (!c || c->mesh.devices <= 1) return TS_OK;
    const ts_partition_options o = {.struct_size = sizeof o,
                                    .mesh = &c->mesh,
                                    .rules = &c->rules,
                                    .tolerance = c->sharding_tolerance,
                                    .whole_batch = how == TS_PLACE_SAMPLE,
                                    .quiet = how != TS_PLACE_TRAIN};
    out->rules = &c->rules;
    out->automatic = c->shard_auto;
    if (c->shard_auto) return ts_partition_pins(global, &o, &out->partition, err);
    ts_status status = ts_partition_new(global, &o, &out->partition, err);
    if (status == TS_OK && c->ring)
        status = ts_ring_rewrite(out->partition->graph, out->partition->in, 0, err);
    if (status == TS_OK)
        out->graph = out->partition->graph;
    else
        ts_placed_free(out);
    return status;
}

/* ---- compiling ------------------------------------------------------------------------------- */

static ts_spec pin_of(const void *context, const ts_value *v)
{
    const ts_placed *p = context;
    return ts_partition_pin(p->partition, p->rules, v);
}

ts_sharding ts_placed_sharding(const ts_placed *p)
{
    TS_ASSERT(p->automatic);
    return (ts_sharding){.mesh = &p->partition->mesh,
                         .in = p->partition->in,
                         .out = p->partition->out,
                         .pin = pin_of,
                         .context = p};
}

ts_status ts_placed_compile(const ts_placed *p, ts_engine *e, const char *file,
                            ts_executable **out, ts_error *err)
{
    const ts_engine_vtable *v = e->vtable;
    if (!p->automatic)
        return file ? v->load(e, p->graph, file, out, err) : v->compile(e, p->graph, out, err);
    const ts_sharding s = ts_placed_sharding(p);
    if (!v->compile_sharded || (file && !v->load_sharded))
        return TS_ERROR(err, TS_INVALID_ARGUMENT,
                        "shard_mode=auto lets the compiler split the program, and the %s engine "
                        "has none that does; shard_mode=explicit works",
                        v->name);
    return file ? v->load_sharded(e, p->graph, &s, file, out, err)
                : v->compile_sharded(e, p->graph, &s, out, err);
}

/* ---- where things lie ------------------------------------------------------------------------ */

int ts_placed_devices(const ts_placed *p)
{
    return p->partition ? p->partition->mesh.devices : 1;
}

const ts_mesh *ts_placed_mesh(const ts_placed *p)
{
    return p->partition ? &p->partition->mesh : NULL;
}

ts_spec ts_placed_in(const ts_placed *p, int input)
{
    return p->partition ? p->partition->in[input]
                        : ts_spec_whole(p->global->top->arg[input]->type.rank);
}

ts_spec ts_placed_out(const ts_placed *p, int output)
{
    return p->partition ? p->partition->out[output]
                        : ts_spec_whole(p->global->top->result[output]->type.rank);
}

ts_type ts_placed_local(const ts_placed *p, const ts_spec *s, const ts_type *global)
{
    return p->partition ? ts_spec_local(&p->partition->mesh, s, global) : *global;
}

int ts_placed_home(const ts_placed *p, const ts_spec *s, int device)
{
    int replica;
    return p->partition ? ts_piece_home(&p->partition->mesh, s, device, &replica) : device;
}
