/* cpu/emit.c – flattens a graph into a line of instructions and says when every value is needed.
 *
 * The code is naive on purpose: every value has a block of its own, and what moves between a loop and
 * its surroundings is a copy (initial carries, new carries, stacked and accumulated results, outputs).
 * coalesce.c then removes the copies that it can prove needless. A copy of a stacked result stands
 * directly behind the value's definition, so that the value can die early.
 *
 * Views are no instructions; constants are made once for the whole program, inside loops too. A collective over more
 * than one device is an instruction of all devices; over one it is a view.
 */
#include "cpu/code.h"
#include "cpu/collective.h"

static ts_status out_of_memory(ts_error *err)
{
    return TS_ERROR(err, TS_RESOURCE_EXHAUSTED,
                    "out of memory while compiling the graph for the cpu engine");
}

/* Makes room for one more element. */
static bool grow(void *list, int n, int *cap, size_t element)
{
    if (n < *cap) return true;
    void **items = list;
    int more = *cap ? *cap * 2 : 64;
    void *p = ts_realloc(*items, (size_t)*cap * element, (size_t)more * element);
    if (!p) return false;
    *items = p;
    *cap = more;
    return true;
}

ts_status ts__code_block_new(ts_code *c, ts_block_kind kind, int index, size_t bytes, int *out,
                             ts_error *err)
{
    if (!grow(&c->block, c->n_block, &c->cap_block, sizeof *c->block)) return out_of_memory(err);
    c->block[c->n_block] = (ts_code_block){.kind = kind,
                                           .index = index,
                                           .bytes = bytes,
                                           .parent = -1,
                                           .first_life = -1,
                                           .last_life = -1};
    *out = c->n_block++;
    return TS_OK;
}

ts_status ts__code_life_new(ts_code *c, int block, int32_t first, int loop, int *out, ts_error *err)
{
    if (!grow(&c->life, c->n_life, &c->cap_life, sizeof *c->life)) return out_of_memory(err);
    c->life[c->n_life] = (ts_code_life){block, loop, first, first, -1};
    ts_code_block *b = &c->block[block];
    if (b->last_life < 0)
        b->first_life = c->n_life;
    else
        c->life[b->last_life].next = c->n_life;
    b->last_life = c->n_life;
    *out = c->n_life++;
    return TS_OK;
}

static ts_status use(ts_code *c, int life, int32_t at, int loop, ts_error *err)
{
    if (!grow(&c->use, c->n_use, &c->cap_use, sizeof *c->use)) return out_of_memory(err);
    c->use[c->n_use++] = (ts_code_use){life, loop, at};
    return TS_OK;
}

/* Appends an instruction with room for its arguments; its position is c->n_instr − 1. */
static ts_status add(ts_code *c, ts_code_kind kind, int loop, int n_in, int n_out,
                     ts_code_instr **out, ts_error *err)
{
    ts_code_instr *i = ts_arena_alloc(c->arena, sizeof *i);
    ts_code_arg *args = ts_arena_alloc(c->arena, (size_t)(n_in + n_out + 1) * sizeof *args);
    if (!i || !args || !grow(&c->instr, c->n_instr, &c->cap_instr, sizeof(ts_code_instr *)))
        return out_of_memory(err);
    *i = (ts_code_instr){.kind = kind,
                         .loop = loop,
                         .n_in = n_in,
                         .n_out = n_out,
                         .in = args,
                         .out = args + n_in,
                         .scratch = -1};
    c->instr[c->n_instr++] = i;
    *out = i;
    return TS_OK;
}

static ts_code_arg *place_of(ts_code *c, const ts_value *v)
{
    TS_ASSERT(v->id < c->graph->next_id);
    return &c->value[v->id];
}

/* A new life of a block as an argument that covers it. */
static ts_status new_arg(ts_code *c, int block, int32_t first, int loop, ts_code_arg *out,
                         ts_error *err)
{
    int life = -1;
    TS_TRY(ts__code_life_new(c, block, first, loop, &life, err));
    *out = (ts_code_arg){.ref = {.block = block}, .life = life, .bytes = c->block[block].bytes};
    return TS_OK;
}

static ts_status new_temp(ts_code *c, size_t bytes, int32_t first, int loop, ts_code_arg *out,
                          ts_error *err)
{
    int block = -1;
    TS_TRY(ts__code_block_new(c, TS_BLOCK_TEMP, -1, bytes, &block, err));
    return new_arg(c, block, first, loop, out, err);
}

/* ---- constants ------------------------------------------------------------------------------- */

static bool same_constant(const ts_code_constant *k, const ts_node *n, uint64_t bits)
{
    if (k->node->op != n->op || k->node->out[0]->type.dtype != n->out[0]->type.dtype) return false;
    if (n->op == TS_OP_constant) return k->bits == bits;
    if (n->op == TS_OP_axis_index) return true;
    return k->node->attr.iota.axis == n->attr.iota.axis &&
           ts_type_same(&k->node->out[0]->type, &n->out[0]->type);
}

static ts_status emit_constant(ts_code *c, const ts_node *n, ts_error *err)
{
    uint64_t bits = 0;
    size_t bytes = ts_type_bytes(&n->out[0]->type);
    if (n->op == TS_OP_constant) memcpy(&bits, &n->attr.constant.value, sizeof bits);
    ts_code_constant *k = NULL;
    for (int i = 0; i < c->n_constant && !k && c->share; i++)
        if (same_constant(&c->constant[i], n, bits)) k = &c->constant[i];
    ts_code_arg *place = place_of(c, n->out[0]);
    if (!k) {
        if (!grow(&c->constant, c->n_constant, &c->cap_constant, sizeof *c->constant))
            return out_of_memory(err);
        k = &c->constant[c->n_constant++];
        *k = (ts_code_constant){n, bits, -1};
        TS_TRY(ts__code_block_new(c, TS_BLOCK_CONSTANT, c->n_constant - 1, bytes, &k->block, err));
        c->block[k->block].read_only = true;
        TS_TRY(new_arg(c, k->block, TS_CODE_START, -1, place, err));
        c->life[place->life].last = TS_CODE_FOREVER;
    }
    ts_code_block *b = &c->block[k->block];
    if (bytes > b->bytes) {
        b->bytes = bytes;
        k->node = n;
    }
    *place = (ts_code_arg){.ref = {.block = k->block}, .life = b->first_life, .bytes = bytes};
    return TS_OK;
}

/* A broadcast of one value repeated is the same value repeated more often: no instruction. */
static bool emit_splat(ts_code *c, const ts_node *n)
{
    ts_code_arg place = *place_of(c, n->in[0]);
    ts_code_block *b = &c->block[place.ref.block];
    size_t bytes = ts_type_bytes(&n->out[0]->type);
    if (n->op != TS_OP_broadcast || !c->share || b->kind != TS_BLOCK_CONSTANT) return false;
    const ts_node *source = c->constant[b->index].node;
    if (source->op != TS_OP_constant || ts_type_elements(&source->out[0]->type) == 0) return false;
    if (bytes > b->bytes) b->bytes = bytes;
    *place_of(c, n->out[0]) =
        (ts_code_arg){.ref = {.block = place.ref.block}, .life = place.life, .bytes = bytes};
    return true;
}

/* ---- kernels and views ----------------------------------------------------------------------- */

static ts_status prepare(ts_code *c, ts_code_instr *i, ts_error *err)
{
    if (i->kind == TS_CODE_COLLECTIVE) {
        i->in_place = ts__cpu_collective_in_place(i->node);
        i->prepared.bytes = (double)ts_type_bytes(&i->node->in[0]->type) +
                            (double)ts_type_bytes(&i->node->out[0]->type);
    }
    if (i->kind != TS_CODE_KERNEL) return TS_OK;
    i->kernel = ts_cpu_select(i->node, c->isa);
    i->in_place = i->kernel->in_place;
    return i->kernel->prepare ? i->kernel->prepare(i->node, c->threads, &i->prepared, err) : TS_OK;
}

/* kind: KERNEL, COLLECTIVE or INDEX. */
static ts_status emit_work(ts_code *c, const ts_node *n, ts_code_kind kind, int loop, ts_error *err)
{
    ts_code_instr *i;
    size_t result_bytes = 0;
    for (int o = 0; o < n->n_out; o++) result_bytes |= ts_type_bytes(&n->out[o]->type);
    int32_t at = c->n_instr;
    if (result_bytes) { /* a node whose results are all empty has nothing to do */
        TS_TRY(add(c, kind, loop, n->n_in, n->n_out, &i, err));
        i->node = n;
        TS_TRY(prepare(c, i, err));
        for (int k = 0; k < n->n_in; k++) {
            i->in[k] = *place_of(c, n->in[k]);
            TS_TRY(use(c, i->in[k].life, at, loop, err));
        }
    }
    for (int o = 0; o < n->n_out; o++) {
        ts_code_arg *place = place_of(c, n->out[o]);
        TS_TRY(new_temp(c, ts_type_bytes(&n->out[o]->type), at, loop, place, err));
        if (result_bytes) i->out[o] = *place;
    }
    if (!result_bytes || !i->prepared.scratch_bytes) return TS_OK;
    ts_code_arg scratch;
    TS_TRY(new_temp(c, i->prepared.scratch_bytes, at, loop, &scratch, err));
    i->scratch = scratch.ref.block;
    return TS_OK;
}

static void emit_view(ts_code *c, const ts_node *n, int64_t offset)
{
    for (int o = 0; o < n->n_out; o++) {
        ts_code_arg place = *place_of(c, n->in[o]);
        place.ref.offset += offset;
        place.bytes = ts_type_bytes(&n->out[o]->type);
        *place_of(c, n->out[o]) = place;
    }
}

static ts_status emit_collective(ts_code *c, const ts_node *n, int loop, ts_error *err)
{
    ts_cpu_axis axis;
    if (!ts__cpu_axis_of(c->graph, n, &axis))
        return TS_ERROR(
            err, TS_FAILED_PRECONDITION,
            "graph %s, %s: it runs over axis \"%s\" of %lld devices, but the graph has no mesh with such an "
            "axis; partition it for one",
            c->graph->name, ts_op_infos[n->op].name, n->attr.collective.axis,
            (long long)n->attr.collective.n);
    const bool index = n->op == TS_OP_axis_index;
    return emit_work(c, n, index ? TS_CODE_INDEX : TS_CODE_COLLECTIVE, loop, err);
}

static ts_status emit_repeat(ts_code *c, const ts_node *n, int outer, ts_error *err);

static ts_status emit_node(ts_code *c, const ts_node *n, int loop, ts_error *err)
{
    int64_t offset;
    if (n->op == TS_OP_repeat) return emit_repeat(c, n, loop, err);
    if (ts_op_infos[n->op].kind == TS_COLLECTIVE && n->attr.collective.n != 1)
        return emit_collective(c, n, loop, err);
    if (n->op == TS_OP_constant || n->op == TS_OP_iota || n->op == TS_OP_axis_index)
        return emit_constant(c, n, err);
    if (emit_splat(c, n)) return TS_OK;
    bool view = ts__cpu_view(n, &offset);
    if (view && (c->share || !ts_cpu_ref[n->op].run || ts_op_infos[n->op].kind == TS_COLLECTIVE)) {
        emit_view(c, n, offset);
        return TS_OK;
    }
    return emit_work(c, n, TS_CODE_KERNEL, loop, err);
}

/* ---- repeat ---------------------------------------------------------------------------------- */

/* What a repeat keeps outside its body. carry, acc and stack are blocks of the surroundings. */
typedef struct repeat_memory {
    int n_carry, n_ys;
    ts_code_arg *carry; /* initial value */
    ts_code_arg *ys;    /* whole stacked or accumulated result */
} repeat_memory;

/* carry slots ← initial values */
static ts_status emit_before(ts_code *c, const ts_node *n, int outer, repeat_memory *m,
                             ts_error *err)
{
    ts_code_instr *copy;
    m->n_carry = (int)n->attr.repeat.n_carry;
    m->n_ys = n->n_out - m->n_carry;
    m->carry = ts_arena_alloc(c->arena, (size_t)(n->n_out + 1) * sizeof *m->carry);
    if (!m->carry) return out_of_memory(err);
    m->ys = m->carry + m->n_carry;
    int32_t at = c->n_instr;
    TS_TRY(add(c, TS_CODE_COPY, outer, m->n_carry, m->n_carry, &copy, err));
    copy->node = n;
    for (int k = 0; k < m->n_carry; k++) {
        copy->in[k] = *place_of(c, n->in[k]);
        TS_TRY(use(c, copy->in[k].life, at, outer, err));
        TS_TRY(new_temp(c, copy->in[k].bytes, at, outer, &m->carry[k], err));
        copy->out[k] = m->carry[k];
    }
    return TS_OK;
}

/* Opens the loop: the body's arguments are the carry slots, slices of xs, and the consts themselves. */
static ts_status emit_begin(ts_code *c, const ts_node *n, int loop, repeat_memory *m, ts_error *err)
{
    ts_code_instr *begin;
    ts_code_loop *l = &c->loop[loop];
    int outer = l->parent, depth = l->depth, xs = m->n_carry + (int)n->attr.repeat.n_xs;
    int32_t at = l->begin = c->n_instr;
    TS_TRY(add(c, TS_CODE_BEGIN, loop, 0, 0, &begin, err));
    begin->node = n;
    for (int k = 0; k < n->n_in; k++) {
        ts_code_arg *place = place_of(c, n->body->arg[k]);
        if (k < m->n_carry) {
            TS_TRY(use(c, m->carry[k].life, at, outer, err));
            TS_TRY(new_arg(c, m->carry[k].ref.block, at, loop, place, err));
            continue;
        }
        *place = *place_of(c, n->in[k]);
        if (k >= xs) continue;
        place->bytes = ts_type_bytes(&n->body->arg[k]->type);
        place->ref.stride[depth] += (int64_t)place->bytes;
    }
    for (int k = 0; k < m->n_ys; k++)
        TS_TRY(
            new_temp(c, ts_type_bytes(&n->out[m->n_carry + k]->type), at, outer, &m->ys[k], err));
    return TS_OK;
}

/* Stacks or adds the ys that are v; called once v has its value. A sum over one iteration is a stack. */
static ts_status emit_ys(ts_code *c, const ts_node *n, int loop, const repeat_memory *m,
                         const ts_value *v, ts_error *err)
{
    ts_code_instr *i;
    for (int k = 0; k < m->n_ys; k++) {
        if (n->body->result[m->n_carry + k] != v) continue;
        bool stack = k < n->attr.repeat.n_stack || n->attr.repeat.n == 1;
        int32_t at = c->n_instr;
        TS_TRY(add(c, stack ? TS_CODE_STACK : TS_CODE_ADD, loop, 1, 1, &i, err));
        i->node = n;
        i->dtype = v->type.dtype;
        i->in[0] = *place_of(c, v);
        i->out[0] = m->ys[k];
        i->out[0].bytes = i->in[0].bytes;
        if (stack) i->out[0].ref.stride[c->loop[loop].depth] = (int64_t)i->in[0].bytes;
        TS_TRY(use(c, i->in[0].life, at, loop, err));
        TS_TRY(use(c, i->out[0].life, at, loop, err));
    }
    return TS_OK;
}

/* carry slots ← new values, all at once; closes the loop. */
static ts_status emit_end(ts_code *c, const ts_node *n, int loop, const repeat_memory *m,
                          ts_error *err)
{
    ts_code_instr *copy, *end;
    int32_t at = c->n_instr;
    TS_TRY(add(c, TS_CODE_COPY, loop, m->n_carry, m->n_carry, &copy, err));
    copy->node = n;
    for (int k = 0; k < m->n_carry; k++) {
        copy->in[k] = *place_of(c, n->body->result[k]);
        TS_TRY(use(c, copy->in[k].life, at, loop, err));
        TS_TRY(new_arg(c, m->carry[k].ref.block, at, loop, &copy->out[k], err));
        TS_TRY(use(c, copy->out[k].life, at + 1, loop, err));
    }
    int32_t last = c->loop[loop].end = c->n_instr;
    TS_TRY(add(c, TS_CODE_END, loop, 0, 0, &end, err));
    end->node = n;
    for (int k = 0; k < n->n_out; k++) {
        ts_code_arg *place = place_of(c, n->out[k]);
        if (k < m->n_carry)
            TS_TRY(new_arg(c, m->carry[k].ref.block, last, c->loop[loop].parent, place, err));
        else
            *place = m->ys[k - m->n_carry];
        TS_TRY(use(c, place->life, last, c->loop[loop].parent, err));
    }
    return TS_OK;
}

static ts_status emit_repeat(ts_code *c, const ts_node *n, int outer, ts_error *err)
{
    repeat_memory m; /* the shape rule has n ≥ 1 */
    int loop = c->n_loop, depth = outer < 0 ? 0 : c->loop[outer].depth + 1;
    if (depth >= TS_CPU_MAX_LOOPS)
        return TS_ERROR(err, TS_UNIMPLEMENTED,
                        "repeats are nested %d deep; the cpu engine takes %d", depth + 1,
                        TS_CPU_MAX_LOOPS);
    if (!grow(&c->loop, c->n_loop, &c->cap_loop, sizeof *c->loop)) return out_of_memory(err);
    c->loop[c->n_loop++] =
        (ts_code_loop){outer, depth, n->attr.repeat.n, n->attr.repeat.reverse, 0, 0};
    TS_TRY(emit_before(c, n, outer, &m, err));
    TS_TRY(emit_begin(c, n, loop, &m, err));
    for (int k = 0; k < n->body->n_arg; k++) TS_TRY(emit_ys(c, n, loop, &m, n->body->arg[k], err));
    for (const ts_node *x = n->body->first; x; x = x->next) {
        TS_TRY(emit_node(c, x, loop, err));
        for (int o = 0; o < x->n_out; o++) TS_TRY(emit_ys(c, n, loop, &m, x->out[o], err));
    }
    return emit_end(c, n, loop, &m, err);
}

/* ---- the whole graph ------------------------------------------------------------------------- */

static ts_status emit_inputs(ts_code *c, ts_error *err)
{
    const ts_region *top = c->graph->top;
    for (int k = 0; k < top->n_arg; k++) {
        int block = -1;
        TS_TRY(ts__code_block_new(c, TS_BLOCK_INPUT, k, ts_type_bytes(&top->arg[k]->type), &block,
                                  err));
        c->block[block].read_only = true;
        TS_TRY(new_arg(c, block, TS_CODE_START, -1, place_of(c, top->arg[k]), err));
    }
    for (int k = 0; k < top->n_result; k++) {
        int in = c->graph->output[k].replaces;
        if (in < 0) continue;
        if (in >= top->n_arg || !ts_type_same(&top->arg[in]->type, &top->result[k]->type))
            return TS_ERROR(err, TS_INVALID_ARGUMENT,
                            "output %s cannot replace input %d: their types differ",
                            c->graph->output[k].name, in);
        if (!c->block[in].read_only)
            return TS_ERROR(err, TS_INVALID_ARGUMENT, "two outputs replace input %s",
                            top->arg[in]->name);
        c->block[in].read_only = false;
    }
    return TS_OK;
}

/* The last instruction: every output into its buffer, all at once. Block k < inputs is input k's. */
static ts_status emit_outputs(ts_code *c, ts_error *err)
{
    const ts_region *top = c->graph->top;
    ts_code_instr *copy;
    int32_t at = c->n_instr;
    TS_TRY(add(c, TS_CODE_COPY, -1, top->n_result, top->n_result, &copy, err));
    for (int k = 0; k < top->n_result; k++) {
        int block = c->graph->output[k].replaces;
        copy->in[k] = *place_of(c, top->result[k]);
        TS_TRY(use(c, copy->in[k].life, at, -1, err));
        if (block < 0)
            TS_TRY(ts__code_block_new(c, TS_BLOCK_OUTPUT, k, copy->in[k].bytes, &block, err));
        TS_TRY(new_arg(c, block, at, -1, &copy->out[k], err));
        c->life[copy->out[k].life].last = TS_CODE_FOREVER;
    }
    return TS_OK;
}

/* A use inside a deeper loop keeps a life to the end of that loop: the next iteration needs it again. */
static void extend_lives(ts_code *c)
{
    for (int k = 0; k < c->n_use; k++) {
        ts_code_life *life = &c->life[c->use[k].life];
        int32_t at = c->use[k].at;
        for (int l = c->use[k].loop; l != life->loop; l = c->loop[l].parent) {
            TS_ASSERT(l >= 0);
            at = c->loop[l].end;
        }
        if (at > life->last) life->last = at;
    }
}

ts_status ts__code_emit(ts_code *c, const ts_graph *g, ts_error *err)
{
    size_t bytes;
    c->graph = g;
    c->arena = ts_arena_new();
    if (ts_mul_size(g->next_id + (size_t)1, sizeof *c->value, &bytes)) return out_of_memory(err);
    c->value = ts_alloc_zero(bytes);
    if (!c->arena || !c->value) return out_of_memory(err);
    TS_TRY(emit_inputs(c, err));
    for (const ts_node *n = g->top->first; n; n = n->next) TS_TRY(emit_node(c, n, -1, err));
    TS_TRY(emit_outputs(c, err));
    extend_lives(c);
    return TS_OK;
}

void ts__code_free(ts_code *c)
{
    for (int k = 0; k < c->n_instr; k++) {
        ts_code_instr *i = c->instr[k];
        if (i->kernel && i->kernel->release && i->prepared.state)
            i->kernel->release(i->prepared.state);
    }
    ts_arena_free(c->arena);
    ts_free(c->value);
    ts_free(c->instr);
    ts_free(c->loop);
    ts_free(c->block);
    ts_free(c->life);
    ts_free(c->use);
    ts_free(c->constant);
    *c = (ts_code){0};
}
