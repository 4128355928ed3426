/* mesh/partition_inputs.c – how parameters, moments and batches lie, and what follows from it before an op is placed.
 *
 * A parameter is stored as its logical names say and used without fsdp; its moments lie as it does, and so its gradient
 * is wanted, whether an optimizer takes it or an output shows it, down into the loops that sum it. What does not divide
 * is held whole: of a batch that is an error, of parameters beyond the tolerance, with the sizes that avoid it.
 */
#include <math.h>
#include <stdio.h>

#include "base/log.h"
#include "mesh/partition_internal.h"

/* ---- inputs ---------------------------------------------------------------------------------- */

static const ts_param_info *param_of(const ts_graph *g, const ts_value *v)
{
    for (int i = 0; i < g->n_param; i++)
        if (g->param[i].value == v) return &g->param[i];
    return NULL;
}

/* The logical names of a parameter's dimensions. */
static void param_names(const ts_param_info *q, const char **name)
{
    for (int d = 0; d < q->value->type.rank; d++)
        name[d] = q->file_rank == 1 ? "norm" : q->value->type.dim[d].name;
    if (q->count) name[0] = NULL;
}

static ts_spec without_fsdp(const ts_mesh *m, ts_spec s)
{
    for (int d = 0; d < s.rank; d++) {
        int n = 0;
        while (n < s.n[d] && m->axis[s.axis[d][n]].user != TS_AXIS_FSDP) n++;
        s.n[d] = (uint8_t)n;
    }
    return s;
}

/* Does the rule of this name ask for one of these internal axes? */
static bool asks(const ts_partitioner *p, const char *name, uint16_t axes)
{
    for (int i = 0; name && i < p->rules->n; i++) {
        const ts_axis_rule *r = &p->rules->rule[i];
        if (strcmp(r->name, name) != 0) continue;
        for (int k = 0; k < r->n; k++)
            for (int a = 0; a < p->mesh->n; a++)
                if (axes >> a & 1 && p->mesh->axis[a].user == r->axis[k]) return true;
        return false;
    }
    return false;
}

/* Adds to the list for people, of size bytes, the dimensions that did not take the axes that their rules ask for. */
static void note_lost(const ts_partitioner *p, const char *const *name, const ts_type *t, uint16_t lost, char *list,
                      size_t size)
{
    for (int d = 0; d < t->rank; d++) {
        char text[60];
        size_t at = strlen(list);
        if (!asks(p, name[d], lost)) continue;
        snprintf(text, sizeof text, "%s%.24s=%lld", at ? ", " : "", name[d], (long long)t->dim[d].size);
        if (!strstr(list, at ? text + 2 : text) && at + strlen(text) < size)
            memcpy(list + at, text, strlen(text) + 1);
    }
}

/* The same for the warning. */
static void remember_lost(ts_partitioner *p, const char *const *name, const ts_type *t, uint16_t lost)
{
    p->lost |= lost;
    note_lost(p, name, t, lost, p->fallback, sizeof p->fallback);
}

ts_spec ts__pinned_spec(ts_partitioner *p, const ts_value *v)
{
    uint16_t lost = 0;
    if (!v->pin) return ts_spec_whole(v->type.rank);
    ts_spec s = ts_rules_spec(p->mesh, p->rules, v->pin->name, &v->type, &lost);
    if (lost) remember_lost(p, v->pin->name, &v->type, lost);
    return s;
}

static ts_spec param_store(ts_partitioner *p, const ts_param_info *q, uint16_t *lost)
{
    const char *name[TS_MAX_RANK] = {0};
    param_names(q, name);
    ts_spec s = ts_rules_spec(p->mesh, p->rules, name, &q->value->type, lost);
    if (*lost) remember_lost(p, name, &q->value->type, *lost);
    return s;
}

/* A batch that does not divide is an error; any other dimension takes what divides it. */
static void check_batch(ts_partitioner *p, const ts_value *v)
{
    const char *batch[TS_MAX_RANK] = {0};
    uint16_t lost = 0;
    int64_t ways = 1, rows = 1;
    for (int d = 0; d < v->type.rank; d++) {
        if (!v->pin->name[d] || strcmp(v->pin->name[d], "batch") != 0) continue;
        batch[d] = v->pin->name[d];
        rows = v->type.dim[d].size;
    }
    ts_spec s = ts_rules_spec(p->mesh, p->rules, batch, &v->type, &lost);
    if (!lost || p->o->whole_batch) return;
    for (int a = 0; a < p->mesh->n; a++)
        if ((lost | ts_spec_axes(&s)) >> a & 1) ways *= p->mesh->axis[a].size;
    ts__mistake(&p->b, TS_INVALID_ARGUMENT,
                "a batch of %lld rows does not divide among the %lld devices of data and fsdp; "
                "per_device_batch_size %g or %g (of %d devices) does",
                (long long)rows, (long long)ways, (double)(rows / ways * ways) / p->mesh->devices,
                (double)((rows / ways + 1) * ways) / p->mesh->devices, p->mesh->devices);
}

static ts_placement input_placement(ts_partitioner *p, const ts_value *v, int i)
{
    const ts_param_info *q = param_of(p->g, v);
    ts_placement at = {.known = true};
    uint16_t lost = 0;
    if (p->hooks && p->hooks->in_spec) {
        at.spec = at.use = p->hooks->in_spec[i];
    } else if (q) {
        at.spec = param_store(p, q, &lost);
        at.use = without_fsdp(p->mesh, at.spec);
        at.param = true;
    } else {
        at.spec = at.use = ts__pinned_spec(p, v);
        if (v->pin) check_batch(p, v);
    }
    return at;
}

/* A moment lies as its parameter, and a gradient is wanted so: adamw(p, g, m, v, …) says which belong together. */
static void follow_optimizer(ts_partitioner *p, const ts_region *top)
{
    for (const ts_node *n = top->first; n; n = n->next) {
        if (n->op != TS_OP_adamw || !p->place[n->in[0]->id].known) continue;
        const ts_spec *store = &p->place[n->in[0]->id].spec;
        for (int k = 2; k < 4; k++)
            if (!n->in[k]->node && !(p->hooks && p->hooks->in_spec))
                p->place[n->in[k]->id].spec = p->place[n->in[k]->id].use = *store;
        p->want[n->in[1]->id] = store;
        const ts_param_info *q = param_of(p->g, n->in[0]);
        p->small[n->in[1]->id] = q && q->file_rank == 1;
    }
}

/* An output "grad.NAME" of a program without optimizer lies as the parameter. */
static void follow_outputs(ts_partitioner *p)
{
    for (int i = 0; i < p->g->top->n_result; i++) {
        const char *name = p->g->output[i].name;
        if (strncmp(name, "grad.", 5) != 0) continue;
        int input = ts_graph_input_index(p->g, name + 5);
        const ts_param_info *q = input < 0 ? NULL : param_of(p->g, p->g->top->arg[input]);
        if (!q) continue;
        p->want[p->g->top->result[i]->id] = &p->place[q->value->id].spec;
        p->small[p->g->top->result[i]->id] = q->file_rank == 1;
    }
}

/* What is wanted of a repeat's result is wanted of what its body yields. */
static void wants_inside(ts_partitioner *p, const ts_region *r)
{
    for (const ts_node *n = r->last; n; n = n->prev) {
        if (n->op != TS_OP_repeat) continue;
        int n_carry = (int)n->attr.repeat.n_carry, stacked = n_carry + (int)n->attr.repeat.n_stack;
        for (int i = n_carry; i < n->n_out; i++) {
            const ts_spec *want = p->want[n->out[i]->id];
            ts_spec *inner = want ? ts__partition_alloc(p, sizeof *inner) : NULL;
            if (!inner) continue;
            *inner = i < stacked ? ts__spec_inner(want) : *want;
            p->want[n->body->result[i]->id] = inner;
        }
        wants_inside(p, n->body);
    }
}

void ts__partition_inputs(ts_partitioner *p, ts_partition *out)
{
    const ts_region *top = p->g->top;
    for (int i = 0; i < top->n_arg; i++) p->place[top->arg[i]->id] = input_placement(p, top->arg[i], i);
    follow_optimizer(p, top);
    follow_outputs(p);
    wants_inside(p, top);
    for (int i = 0; i < top->n_arg && p->b.error.code == TS_OK; i++) {
        ts_placement *at = &p->place[top->arg[i]->id];
        out->in[i] = at->spec;
        ts_type t = ts_spec_local(p->mesh, &at->spec, &top->arg[i]->type);
        at->local = ts_input(&p->b, top->arg[i]->name, t.dtype, t.dim, t.rank);
    }
}

/* ---- parameters ------------------------------------------------------------------------------ */

void ts__partition_params(ts_partitioner *p)
{
    ts_graph *to = p->b.graph;
    for (int i = 0; i < p->g->n_param && p->b.error.code == TS_OK; i++) {
        if (!ts__arena_grow(to->arena, &to->param, &to->cap_param, i, sizeof *to->param)) {
            ts__mistake(&p->b, TS_RESOURCE_EXHAUSTED, "memory is out while partitioning");
            return;
        }
        to->param[i] = p->g->param[i];
        to->param[i].name = ts_arena_strdup(to->arena, p->g->param[i].name);
        to->param[i].value = p->place[p->g->param[i].value->id].local;
        to->n_param = i + 1;
    }
}

/* What a device holds of the matrices beyond an even share over all axes but data, as a part of all parameters. */
static double unsplit_share(const ts_graph *g, const ts_mesh *m, const ts_axis_rules *rules)
{
    double all = 0, beyond = 0, ways = (double)(m->user[TS_AXIS_FSDP] * m->user[TS_AXIS_TENSOR]);
    for (int i = 0; i < g->n_param; i++) {
        const ts_param_info *q = &g->param[i];
        const char *name[TS_MAX_RANK] = {0};
        double elements = (double)ts_type_elements(&q->value->type);
        param_names(q, name);
        ts_spec s = ts_rules_spec(m, rules, name, &q->value->type, NULL);
        all += elements;
        if (q->file_rank > 1) beyond += elements / (double)ts_spec_pieces(m, &s) - elements / ways;
    }
    return all > 0 && beyond > 0 ? beyond / all : 0;
}

/* "ici_fsdp_parallelism=4 ici_tensor_parallelism=1 or …": at most two pairs of sizes for as many devices that hold
 * little enough, those with the largest tensor. */
static void sizes_that_work(const ts_partitioner *p, char *text, size_t n)
{
    int64_t both = p->mesh->user[TS_AXIS_FSDP] * p->mesh->user[TS_AXIS_TENSOR];
    size_t at = 0;
    int found = 0;
    text[0] = '\0';
    for (int64_t t = both; t >= 1 && found < 2; t--) {
        ts_mesh_options o = p->mesh->from;
        ts_mesh m;
        if (both % t) continue;
        o.user[TS_AXIS_FSDP] = both / t;
        o.user[TS_AXIS_TENSOR] = t;
        if (ts_mesh_make(&o, &m, NULL) != TS_OK || unsplit_share(p->g, &m, p->rules) > p->o->tolerance) continue;
        at += (size_t)snprintf(text + at, n - at, "%sici_fsdp_parallelism=%lld ici_tensor_parallelism=%lld",
                               found++ ? " or " : "; ", (long long)(both / t), (long long)t);
    }
    if (found) snprintf(text + at, n - at, " avoids it");
}

/* Which sizes of parameters do not divide; those of rows and positions are no reason. */
static void sizes_to_blame(const ts_partitioner *p, char *text, size_t n)
{
    text[0] = '\0';
    for (int i = 0; i < p->g->n_param; i++) {
        const ts_param_info *q = &p->g->param[i];
        const char *name[TS_MAX_RANK] = {0};
        uint16_t lost = 0;
        param_names(q, name);
        ts_rules_spec(p->mesh, p->rules, name, &q->value->type, &lost);
        if (lost) note_lost(p, name, &q->value->type, lost, text, n);
    }
}

void ts__partition_share(ts_partitioner *p, ts_partition *out)
{
    char text[80], sizes[300], blame[sizeof p->fallback];
    out->unsplit = unsplit_share(p->g, p->mesh, p->rules);
    if (out->unsplit <= p->o->tolerance) return;
    ts_mesh_text(p->mesh, text, sizeof text);
    sizes_that_work(p, sizes, sizeof sizes);
    sizes_to_blame(p, blame, sizeof blame);
    ts__mistake(&p->b, TS_INVALID_ARGUMENT,
                "on the mesh %s each device would hold %.1f %% of the parameters beyond its share%s%s; "
                "sharding_tolerance=%.3g allows it%s",
                text, 100 * out->unsplit, blame[0] ? ", because of " : "", blame,
                fmin(1, out->unsplit * 1.01 + 0.0005), sizes);
}

void ts__partition_warn(const ts_partitioner *p, const ts_partition *out)
{
    char text[80];
    if (!p->lost || p->o->quiet) return;
    ts_log(TS_LOG_WARNING,
           "mesh %s: not all axes divide %s; those parts are held whole (%.1f %% of the parameters)",
           ts_mesh_text(p->mesh, text, sizeof text), p->fallback, 100 * out->unsplit);
}
