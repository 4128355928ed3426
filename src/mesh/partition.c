/* mesh/partition.c – from the global graph to the program of one device.
 *
 * One walk over the global graph in its order. Every value gets a layout (ts_placement); an op's operands are brought
 * to what its assignment says (assign.c, reshard.c), the op is made on local shapes (local_op.c), and a result that is
 * pinned is brought to its pin at once. The rules are those of docs/mesh.md.
 *
 * Invariants: what a value's layout says is what its local value holds; collectives go over one internal axis; the
 * program of every device is the same text. Not here: how inputs lie (partition_inputs.c), meshes and specs (mesh.c),
 * factors of an op (factors.c), rings.
 */
#include "mesh/partition_internal.h"

void *ts__partition_alloc(ts_partitioner *p, size_t bytes)
{
    void *x = ts_arena_alloc(p->arena, bytes + 1);
    if (x) return memset(x, 0, bytes + 1);
    ts__mistake(&p->b, TS_RESOURCE_EXHAUSTED, "memory is out while partitioning graph %s", p->g->name);
    return NULL;
}

/* ---- values that have no place yet ----------------------------------------------------------- */

ts_placement *ts__placement(ts_partitioner *p, const ts_value *v)
{
    ts_placement *at = &p->place[v->id];
    if (at->known || p->b.error.code != TS_OK) return at;
    if (v->node && v->node->op != TS_OP_repeat) ts__place_pruned(p, v->node);
    ts_spec whole = ts_spec_whole(v->type.rank);
    if (!at->known) *at = (ts_placement){.spec = whole, .use = whole, .known = true};
    return at;
}

/* The layouts that an assignment gives the results. */
static void layouts(const ts_node *n, const ts_factors *f, const ts_assignment *a, uint16_t keep, ts_spec *out)
{
    /* The cross-entropy sums over the vocabulary itself. */
    int inside = n->op == TS_OP_linear_xent ? ts__factors_in(f, 1)[0][0] : -1;
    uint16_t summed = 0;
    for (int i = 0; inside >= 0 && i < a->n[inside]; i++) summed |= (uint16_t)(1u << a->axis[inside][i]);
    for (int i = 0; i < n->n_out; i++) {
        const int8_t (*row)[TS_ROW_MERGED] = ts__factors_out(f, i);
        out[i] = ts__assigned_spec(n->out[i], row, a);
        out[i].partial = (ts__lacking(f, a, row, n->out[i]->type.rank) & (uint16_t)~summed) | keep;
    }
}

static void set_results(ts_partitioner *p, const ts_node *n, const ts_spec *layout, ts_value *const *local)
{
    for (int i = 0; i < n->n_out; i++)
        p->place[n->out[i]->id] = (ts_placement){
            .spec = layout[i], .use = layout[i], .local = local ? local[i] : NULL, .known = true};
}

static bool is_free(ts_partitioner *p, const ts_node *n)
{
    switch (n->op) {
    case TS_OP_constant:
    case TS_OP_iota: return true;
    case TS_OP_broadcast: return n->in[0]->type.rank == 0;
    case TS_OP_convert: return ts__placement(p, n->in[0])->free;
    default: return false;
    }
}

static void place_free(ts_partitioner *p, const ts_node *n)
{
    ts_spec s = ts_spec_whole(n->out[0]->type.rank);
    p->place[n->out[0]->id] = (ts_placement){.spec = s, .use = s, .made = n, .known = true, .free = true};
}

void ts__place_pruned(ts_partitioner *p, const ts_node *n)
{
    ts_factors f;
    ts_spec layout[TS_ROW_VALUES];
    if (n->op == TS_OP_repeat) return;
    for (int i = 0; i < n->n_in; i++) (void)ts__placement(p, n->in[i]);
    if (p->b.error.code != TS_OK || ts__factors(n, &f, NULL) != TS_OK) return;
    uint16_t keep = ts__passing(p, n, &f);
    const ts_assignment *a = ts__assign(p, n, &f, keep);
    if (!a) return;
    layouts(n, &f, a, keep, layout);
    set_results(p, n, layout, NULL);
    for (int i = 0; i < n->n_out; i++)
        if (n->out[i]->pin) {
            ts_placement *at = &p->place[n->out[i]->id];
            at->spec = at->use = ts_rules_spec(p->mesh, p->rules, n->out[i]->pin->name, &n->out[i]->type, NULL);
        }
}

/* ---- one node -------------------------------------------------------------------------------- */

/* A conversion of a parameter is a parameter: it is made on what is stored, and gathered after. */
static void convert_param(ts_partitioner *p, const ts_node *n)
{
    ts_placement *at = ts__placement(p, n->in[0]), *to = &p->place[n->out[0]->id];
    *to = *at;
    to->local = ts_convert(&p->b, at->local, n->attr.convert.dtype);
}

/* Gradients that are wanted in a parameter's layout are brought there where their total is formed. */
static void follow_wants(ts_partitioner *p, const ts_node *n)
{
    for (int i = 0; i < n->n_out; i++) {
        const ts_value *v = n->out[i];
        ts_placement *at = &p->place[v->id];
        ts_spec to = at->spec;
        if (v->pin) {
            to = ts__pinned_spec(p, v);
        } else if (p->want[v->id]) {
            to = *p->want[v->id];
            to.partial = at->spec.partial & (uint16_t)~ts_spec_axes(&to);
        }
        if (at->free || ts_spec_same(&to, &at->spec)) continue;
        ts_value *local = ts__reshard(p, v, &to);
        at->local = local;
        at->spec = at->use = to;
    }
}

/* Each result as its operand; a free one becomes whole, so that the barrier has something to hold. */
static void make_barrier(ts_partitioner *p, const ts_node *n)
{
    ts_value **x = ts__partition_alloc(p, (size_t)n->n_in * sizeof(ts_value *));
    for (int i = 0; x && i < n->n_in; i++) {
        ts_placement *at = ts__placement(p, n->in[i]);
        x[i] = at->free ? ts__reshard(p, n->in[i], &at->spec) : at->local;
    }
    ts_node *made = x ? ts__op_n(&p->b, TS_OP_barrier, x, n->n_in, NULL) : NULL;
    for (int i = 0; made && i < n->n_out; i++) {
        ts_placement *to = &p->place[n->out[i]->id];
        *to = p->place[n->in[i]->id];
        to->local = made->out[i];
        to->free = false;
    }
    if (p->b.error.code == TS_OK) follow_wants(p, n);
}

static int part_of(const ts_node *n)
{
    switch (n->op) {
    case TS_OP_take:
    case TS_OP_scatter_add: return 1;
    case TS_OP_linear_xent:
    case TS_OP_linear_xent_grad: return 2;
    default: return 0;
    }
}

static void make_node(ts_partitioner *p, const ts_node *n)
{
    ts_factors f;
    ts_error err = {0};
    if (ts__factors(n, &f, &err) != TS_OK) {
        ts__mistake(&p->b, err.code, "%s", err.msg);
        return;
    }
    if (p->hooks && p->hooks->node == n && p->hooks->row) f = *p->hooks->row;
    ts_value **in = ts__partition_alloc(p, (size_t)(n->n_in + n->n_out + 1) * sizeof *in);
    uint16_t keep = in ? ts__passing(p, n, &f) : 0;
    const ts_assignment *a = in ? ts__assign(p, n, &f, keep) : NULL;
    if (!a) return;
    if (p->hooks && p->hooks->node == n && p->hooks->passed) *p->hooks->passed = keep != 0;
    bool sums = n->op == TS_OP_add || n->op == TS_OP_sub || n->op == TS_OP_add_n;
    bool large_head = ts__head_pieces(p, n) > 1;
    for (int i = 0; i < n->n_in; i++) {
        ts_spec to = ts__assigned_spec(n->in[i], ts__factors_in(&f, i), a);
        if (large_head && i == 1) to = ts__placement(p, n->in[i])->spec;
        if (sums || ts__placement(p, n->in[i])->spec.partial & keep) to.partial = keep;
        in[i] = ts__reshard(p, n->in[i], &to);
    }
    if (p->b.error.code != TS_OK) return;
    ts_value **out = in + n->n_in;
    ts_spec layout[TS_ROW_VALUES];
    layouts(n, &f, a, keep, layout);
    ts__emit_local(p, n, &f, a, in, out, layout);
    set_results(p, n, layout, out);
    follow_wants(p, n);
}

static void enter_node(ts_partitioner *p, const ts_node *n, ts_scope *scope)
{
    p->scope = (ts_reshard_scope){n->region, n->backward, n->region->parent ? 0 : part_of(n)};
    p->b.loc = n->loc;
    p->b.scope = n->scope ? scope : NULL;
    p->b.backward = n->backward;
}

/* Its results may be pinned as any other's. */
static void make_repeat(ts_partitioner *p, const ts_node *n, ts_scope *scope)
{
    ts__partition_repeat(p, n);
    enter_node(p, n, scope);
    if (p->b.error.code == TS_OK) follow_wants(p, n);
}

static void partition_node(ts_partitioner *p, const ts_node *n)
{
    ts_scope scope = {n->scope, NULL};
    enter_node(p, n, &scope);
    for (int i = 0; i < n->n_in; i++) (void)ts__placement(p, n->in[i]);
    if (n->op == TS_OP_repeat) make_repeat(p, n, &scope);
    else if (is_free(p, n)) place_free(p, n);
    else if (n->op == TS_OP_barrier) make_barrier(p, n);
    else if (n->op == TS_OP_convert && ts__placement(p, n->in[0])->param) convert_param(p, n);
    else make_node(p, n);
    p->b.scope = NULL;
}

void ts__partition_region(ts_partitioner *p, const ts_region *r)
{
    for (const ts_node *n = r->first; n && p->b.error.code == TS_OK; n = n->next) partition_node(p, n);
    p->scope = (ts_reshard_scope){r, r->last && r->last->backward, 0};
}

/* ---- the whole ------------------------------------------------------------------------------- */

static void make_outputs(ts_partitioner *p, ts_partition *out)
{
    const ts_region *top = p->g->top;
    for (int i = 0; i < top->n_result && p->b.error.code == TS_OK; i++) {
        const ts_value *v = top->result[i];
        int replaces = p->g->output[i].replaces;
        ts_placement *at = ts__placement(p, v);
        ts_spec s = replaces >= 0 ? out->in[replaces] : at->free ? ts_spec_whole(v->type.rank) : at->spec;
        if (!(p->hooks && p->hooks->keep_out)) s.partial = 0;
        out->out[i] = s;
        ts_value *local = ts__reshard(p, v, &s);
        ts_output(&p->b, p->g->output[i].name, local,
                  replaces >= 0 ? p->place[top->arg[replaces]->id].local : NULL);
    }
}

static bool make_tables(ts_partitioner *p)
{
    size_t n = p->g->next_id;
    p->place = ts__partition_alloc(p, n * sizeof *p->place);
    p->assigned = ts__partition_alloc(p, n * sizeof *p->assigned);
    p->want = ts__partition_alloc(p, n * sizeof *p->want);
    p->small = ts__partition_alloc(p, n * sizeof *p->small);
    p->memo = ts__partition_alloc(p, n * sizeof *p->memo);
    return p->place && p->assigned && p->want && p->small && p->memo;
}

static bool set_mesh(ts_partitioner *p)
{
    ts_graph *g = p->b.graph;
    for (int a = 0; a < p->mesh->n; a++) {
        g->axis[a].name = ts_arena_strdup(g->arena, p->mesh->axis[a].name);
        g->axis[a].size = p->mesh->axis[a].size;
        if (!g->axis[a].name) return false;
    }
    g->n_axis = p->mesh->n;
    return true;
}

static void run(ts_partitioner *p, ts_partition *out)
{
    if (!make_tables(p)) return;
    if (!set_mesh(p)) {
        ts__mistake(&p->b, TS_RESOURCE_EXHAUSTED, "memory is out while partitioning");
        return;
    }
    ts__partition_inputs(p, out);
    ts__partition_params(p);
    if (p->b.error.code == TS_OK && !(p->hooks && p->hooks->in_spec)) ts__partition_share(p, out);
    if (p->b.error.code == TS_OK) ts__partition_region(p, p->g->top);
    make_outputs(p, out);
    if (p->b.error.code == TS_OK && !p->hooks) ts__partition_warn(p, out);
}

static ts_status finish(ts_partitioner *p, ts_partition *out, ts_error *err)
{
    ts_status status = p->b.error.code;
    if (status != TS_OK) {
        if (err) *err = p->b.error;
        return status;
    }
    status = ts_graph_dce(out->graph, err);
    return status == TS_OK ? ts_graph_verify(out->graph, err) : status;
}

static ts_status new_partition(const ts_graph *g, const ts_mesh *m, ts_partition **out, ts_error *err)
{
    ts_partition *p = ts_alloc_zero(sizeof *p);
    *out = NULL;
    if (!p) return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out while partitioning");
    p->mesh = *m;
    p->global = g;
    p->in = ts_alloc_zero(((size_t)g->top->n_arg + 1) * sizeof *p->in);
    p->out = ts_alloc_zero(((size_t)g->top->n_result + 1) * sizeof *p->out);
    *out = p;
    return p->in && p->out ? TS_OK : TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out while partitioning");
}

ts_status ts__partition_with(const ts_graph *g, const ts_partition_options *o,
                             const ts_partition_hooks *hooks, ts_partition **out, ts_error *err)
{
    ts_partition *made;
    ts_status status = new_partition(g, o->mesh, &made, err);
    *out = NULL;
    if (status == TS_OK && !(made->graph = ts__graph_new(g->name)))
        status = TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out while partitioning");
    ts_partitioner p = {.g = g,
                        .mesh = made ? &made->mesh : NULL,
                        .rules = o->rules ? o->rules : &ts_axis_rules_default,
                        .o = o,
                        .hooks = hooks,
                        .arena = ts_arena_new()};
    if (status == TS_OK && !p.arena)
        status = TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out while partitioning");
    if (status == TS_OK) {
        ts__builder_over(&p.b, made->graph, made->graph->top, NULL);
        run(&p, made);
        status = finish(&p, made, err);
    }
    ts_arena_free(p.arena);
    if (status == TS_OK) *out = made;
    else ts_partition_free(made);
    return status;
}

ts_status ts_partition_new(const ts_graph *g, const ts_partition_options *o, ts_partition **out,
                           ts_error *err)
{
    return ts__partition_with(g, o, NULL, out, err);
}

/* The whole is partitioned and the program thrown away: so the layouts are those of shard_mode=explicit. */
ts_status ts_partition_pins(const ts_graph *g, const ts_partition_options *o, ts_partition **out,
                            ts_error *err)
{
    TS_TRY(ts__partition_with(g, o, NULL, out, err));
    ts_graph_free((*out)->graph);
    (*out)->graph = NULL;
    return TS_OK;
}

ts_spec ts_partition_pin(const ts_partition *p, const ts_axis_rules *rules, const ts_value *v)
{
    if (!v->pin) return ts_spec_whole(v->type.rank);
    return ts_rules_spec(&p->mesh, rules ? rules : &ts_axis_rules_default, v->pin->name, &v->type, NULL);
}

void ts_partition_free(ts_partition *p)
{
    if (!p) return;
    ts_graph_free(p->graph);
    ts_free(p->in);
    ts_free(p->out);
    ts_free(p);
}
