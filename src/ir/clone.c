/* ir/clone.c – a graph copied into an arena of its own, strings included: the copy outlives the original, and
 * passes over it leave the original as it is.
 *
 * The original is only read, so no scratch of its values is used; what stands for what is looked up by id. Types
 * are taken over rather than inferred, since a pass may have renamed dimensions. Ids are given anew, in the
 * order of the text. A primal that has left the graph is not copied, nor what was like it.
 */
#include "ir/attrs.h"

typedef struct copier {
    ts_graph *to;
    ts_value **value; /* [ids], by the original's id */
    uint32_t ids;
    /* Strings by their address: names repeat. Open addressing, a power of two, grown by doubling. */
    struct text {
        const char *from, *to;
    } *text;
    size_t slots, used;
    bool failed; /* memory is out */
} copier;

/* ---- strings --------------------------------------------------------------------------------- */

static struct text *find(const copier *c, const char *s)
{
    size_t i = (size_t)((uintptr_t)s * 0x9e3779b97f4a7c15u >> 32) & (c->slots - 1);
    while (c->text[i].from && c->text[i].from != s) i = (i + 1) & (c->slots - 1);
    return &c->text[i];
}

static bool grow(copier *c)
{
    struct text *old = c->text;
    size_t n = c->slots;
    struct text *text = ts_alloc_zero((n ? 2 * n : 256) * sizeof *text);
    if (!text) return false;
    c->text = text;
    c->slots = n ? 2 * n : 256;
    for (size_t i = 0; i < n; i++)
        if (old[i].from) *find(c, old[i].from) = old[i];
    ts_free(old);
    return true;
}

static const char *copy_text(copier *c, const char *s)
{
    if (!s) return NULL;
    if (2 * c->used >= c->slots && !grow(c)) {
        c->failed = true;
        return NULL;
    }
    struct text *t = find(c, s);
    if (t->from) return t->to;
    if (!(t->to = ts_arena_strdup(c->to->arena, s))) {
        c->failed = true;
        return NULL;
    }
    t->from = s;
    c->used++;
    return t->to;
}

static void copy_dims(copier *c, ts_dim *dim, int rank)
{
    for (int i = 0; i < rank; i++) dim[i].name = copy_text(c, dim[i].name);
}

static ts_type copy_type(copier *c, ts_type t)
{
    copy_dims(c, t.dim, t.rank);
    return t;
}

static const ts_pin *copy_pin(copier *c, const ts_value *v)
{
    if (!v->pin) return NULL;
    ts_pin *pin = ts_arena_alloc(c->to->arena, sizeof *pin);
    if (!pin) c->failed = true;
    for (int i = 0; pin && i < v->type.rank; i++) pin->name[i] = copy_text(c, v->pin->name[i]);
    return pin;
}

/* ---- regions --------------------------------------------------------------------------------- */

static bool copy_region(copier *c, const ts_region *from, ts_region *to, ts_error *err);

static ts_attr copy_attr(copier *c, const ts_node *n)
{
    int fields;
    const ts_field *f = ts__attr_fields(ts_op_infos[n->op].attr, &fields);
    ts_attr a = n->attr;
    for (int i = 0; i < fields; i++) {
        void *at = (char *)&a + f[i].offset;
        if (f[i].kind == TS_FIELD_TEXT) *(const char **)at = copy_text(c, *(const char **)at);
        else if (f[i].kind == TS_FIELD_SHAPE)
            copy_dims(c, ((ts_shape *)at)->dim, ((ts_shape *)at)->rank);
    }
    return a;
}

static bool copy_node(copier *c, const ts_node *n, ts_region *to, ts_error *err)
{
    ts_value *local[16], **in = local;
    ts_region *body = NULL;
    ts_attr attr = copy_attr(c, n);
    if (n->n_in > 16 && !(in = ts_arena_alloc(c->to->arena, (size_t)n->n_in * sizeof *in)))
        return false;
    for (int i = 0; i < n->n_in; i++) in[i] = c->value[n->in[i]->id];
    if (n->body && (!(body = ts__region_new(c->to, to)) || !copy_region(c, n->body, body, err)))
        return false;
    ts_node *m = c->failed ? NULL : ts__node_new(to, NULL, n->op, in, n->n_in, &attr, body, err);
    if (!m) return false;
    m->loc = (ts_loc){copy_text(c, n->loc.file), n->loc.line};
    m->scope = copy_text(c, n->scope);
    m->backward = n->backward;
    for (int i = 0; i < n->n_out; i++) {
        m->out[i]->type = copy_type(c, n->out[i]->type);
        m->out[i]->pin = copy_pin(c, n->out[i]);
        c->value[n->out[i]->id] = m->out[i];
    }
    return !c->failed;
}

static bool copy_region(copier *c, const ts_region *from, ts_region *to, ts_error *err)
{
    for (int i = 0; i < from->n_arg; i++) {
        ts_type t = copy_type(c, from->arg[i]->type);
        ts_value *v = ts__region_add_arg(to, &t, from->arg[i]->name);
        if (!v) return false;
        v->pin = copy_pin(c, from->arg[i]);
        c->value[from->arg[i]->id] = v;
    }
    for (const ts_node *n = from->first; n; n = n->next)
        if (!copy_node(c, n, to, err)) return false;
    for (int i = 0; i < from->n_result; i++)
        if (!ts__region_add_result(to, c->value[from->result[i]->id])) return false;
    return true;
}

static const int8_t *copy_like(copier *c, const ts_node *n)
{
    size_t bytes = (size_t)(n->n_in + n->n_out);
    int8_t *like = n->like ? ts_arena_alloc(c->to->arena, bytes + 1) : NULL;
    if (like) memcpy(like, n->like, bytes);
    else if (n->like) c->failed = true;
    return like;
}

/* A primal may stand behind what came from it, so these links wait for all nodes. */
static void link_primals(copier *c, const ts_region *from, ts_region *to)
{
    ts_node *m = to->first;
    for (const ts_node *n = from->first; n; n = n->next, m = m->next) {
        const ts_node *p = n->primal;
        ts_value *v =
            p && p->n_out && p->out[0]->id < c->ids ? c->value[p->out[0]->id] : NULL;
        m->primal = v ? v->node : NULL;
        m->like = v ? copy_like(c, n) : NULL;
        if (n->body) link_primals(c, n->body, m->body);
    }
}

/* ---- the graph ------------------------------------------------------------------------------- */

static bool copy_tables(copier *c, const ts_graph *g)
{
    ts_graph *to = c->to;
    int n = g->top->n_result;
    to->n_axis = g->n_axis;
    for (int i = 0; i < g->n_axis; i++) {
        to->axis[i].name = copy_text(c, g->axis[i].name);
        to->axis[i].size = g->axis[i].size;
    }
    if (n && !(to->output = ts_arena_alloc(to->arena, (size_t)n * sizeof *to->output)))
        return false;
    to->cap_output = n;
    for (int i = 0; i < n; i++)
        to->output[i] = (ts_output_info){copy_text(c, g->output[i].name), g->output[i].replaces};
    if (g->n_param &&
        !(to->param = ts_arena_alloc(to->arena, (size_t)g->n_param * sizeof *to->param)))
        return false;
    to->n_param = to->cap_param = g->n_param;
    for (int i = 0; i < g->n_param; i++) {
        to->param[i] = g->param[i];
        to->param[i].name = copy_text(c, g->param[i].name);
        to->param[i].value = c->value[g->param[i].value->id];
    }
    return !c->failed;
}

ts_status ts_graph_clone(const ts_graph *g, ts_graph **out, ts_error *err)
{
    ts_error why = {0};
    copier c = {.to = ts__graph_new(g->name),
                .ids = g->next_id,
                .value = ts_alloc_zero((size_t)g->next_id * sizeof *c.value + 1)};
    bool ok = c.to && c.value && copy_region(&c, g->top, c.to->top, &why) && copy_tables(&c, g);
    if (ok) link_primals(&c, g->top, c.to->top);
    ok = ok && !c.failed;
    ts_free(c.value);
    ts_free(c.text);
    *out = ok ? c.to : NULL;
    if (ok) return TS_OK;
    ts_graph_free(c.to);
    if (why.code != TS_OK && why.code != TS_RESOURCE_EXHAUSTED)
        return TS_ERROR(err, why.code, "copying graph %s: %s", g->name, why.msg);
    return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out while copying graph %s", g->name);
}
