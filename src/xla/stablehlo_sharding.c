/* xla/stablehlo_sharding.c – a global graph's shardings in the shardy dialect: the mesh, attributes
 * of @main's arguments and results, constraints on pinned values.
 *
 * XLA's own partitioner (shard_mode=auto) takes these as given and propagates to everything else. A
 * spec is written closed: a dimension without axes is not split, and nothing may be added. The
 * first axis of a dimension is the major one, in both languages. A mesh's device d is partition d.
 * Not here: which value has which spec (mesh/), the options that switch the partitioner on
 * (compile_options.c).
 */
#include <inttypes.h>

#include "xla/stablehlo_emit.h"

/* ---- is it a sharding of this graph? --------------------------------------------------------- */

static ts_status check_spec(const ts_mesh *m, const ts_spec *s, const ts_type *t, const char *what,
                            const char *name, ts_error *err)
{
    uint32_t seen = 0;
    if (s->rank != t->rank || s->partial)
        return TS_ERROR(err, TS_INVALID_ARGUMENT,
                        "the sharding of %s %s has rank %d%s; expected rank %d, no partial sums", what,
                        name, s->rank, s->partial ? " and is partial" : "", t->rank);
    for (int i = 0; i < t->rank; i++) {
        int64_t ways = 1;
        for (int k = 0; k < s->n[i]; k++) {
            int axis = s->axis[i][k];
            if (axis >= m->n || seen >> axis & 1)
                return TS_ERROR(err, TS_INVALID_ARGUMENT,
                                "the sharding of %s %s names axis %d, which the mesh of %d axes does not have "
                                "or the sharding has twice",
                                what, name, axis, m->n);
            seen |= 1u << axis;
            ways *= m->axis[axis].size;
        }
        if (t->dim[i].size % ways)
            return TS_ERROR(err, TS_INVALID_ARGUMENT,
                            "the sharding of %s %s cuts dimension %d of %" PRId64 " into %" PRId64 " pieces",
                            what, name, i, t->dim[i].size, ways);
    }
    return TS_OK;
}

ts_status ts__stablehlo_check_sharding(const ts_graph *g, const ts_sharding *s, int devices,
                                       ts_error *err)
{
    if (devices && s->mesh->devices != devices)
        return TS_ERROR(err, TS_FAILED_PRECONDITION,
                        "graph %s is sharded over a mesh of %d devices and would run on %d", g->name,
                        s->mesh->devices, devices);
    if (g->n_axis)
        return TS_ERROR(err, TS_FAILED_PRECONDITION,
                        "graph %s is partitioned already; a sharding is for a global graph", g->name);
    for (int i = 0; i < g->top->n_arg; i++)
        TS_TRY(check_spec(s->mesh, &s->in[i], &g->top->arg[i]->type, "input", g->top->arg[i]->name, err));
    for (int i = 0; i < g->top->n_result; i++) {
        int from = g->output[i].replaces;
        TS_TRY(check_spec(s->mesh, &s->out[i], &g->top->result[i]->type, "output", g->output[i].name,
                          err));
        if (from >= 0 && !ts_spec_same(&s->out[i], &s->in[from]))
            return TS_ERROR(err, TS_INVALID_ARGUMENT,
                            "output %s takes the buffer of input %s and is sharded otherwise",
                            g->output[i].name, g->top->arg[from]->name);
    }
    return TS_OK;
}

/* ---- the text -------------------------------------------------------------------------------- */

void ts__shlo_put_mesh(ts_shlo *e)
{
    const ts_mesh *m = e->sharding->mesh;
    ts__shlo_put(e, "  sdy.mesh @mesh = <[");
    for (int i = 0; i < m->n; i++)
        ts__shlo_put(e, "$s$q=$i", i ? ", " : "", m->axis[i].name, m->axis[i].size);
    ts__shlo_put(e, "]>\n");
}

/* <@mesh, [{"fsdp"}, {}]> */
static void put_spec(ts_shlo *e, const ts_spec *s)
{
    const ts_mesh *m = e->sharding->mesh;
    ts__shlo_put(e, "<@mesh, [");
    for (int i = 0; i < s->rank; i++) {
        ts__shlo_put(e, i ? ", {" : "{");
        for (int k = 0; k < s->n[i]; k++)
            ts__shlo_put(e, "$s$q", k ? ", " : "", m->axis[s->axis[i][k]].name);
        ts__shlo_put(e, "}");
    }
    ts__shlo_put(e, "]>");
}

void ts__shlo_put_sharding(ts_shlo *e, const ts_spec *s)
{
    ts__shlo_put(e, "sdy.sharding = #sdy.sharding");
    put_spec(e, s);
}

ts_shlo_value ts__shlo_pinned(ts_shlo *e, const ts_value *v, ts_shlo_value x)
{
    ts_shlo_value out;
    if (!e->sharding || !e->sharding->pin || !v->pin || e->status != TS_OK) return x;
    ts_spec spec = e->sharding->pin(e->sharding->context, v);
    ts_error why = {0};
    if (check_spec(e->sharding->mesh, &spec, &v->type, "a pinned value of", e->g->name, &why) != TS_OK) {
        ts__shlo_fail(e, why.code, "%s", why.msg);
        return x;
    }
    ts__shlo_begin(e, &x.type, 1, &out);
    ts__shlo_put(e, "sdy.sharding_constraint $v ", &x);
    put_spec(e, &spec);
    ts__shlo_put(e, " : $t", &x.type);
    ts__shlo_end(e);
    return out;
}
