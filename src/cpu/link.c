/* cpu/link.c – from the line of instructions to a program: copies put in order, blocks given offsets
 * in one arena, constants made, addresses written down.
 *
 * A parallel copy becomes single copies in an order in which nothing is overwritten before it is read;
 * a cycle (two carries that swap) goes through a temporary of the plan. Copies that coalesce.c made
 * needless vanish here.
 */
#include "cpu/program.h"
#include "exec/plan.h"

typedef struct linker {
    ts_code code;
    ts_cpu_program *program;
    int *offset_index; /* block → plan block, −1 */
    ts_plan_block *plan;
    ts_plan_range *range;
    size_t *constant_offset;
    int n_plan, cap_step;
} linker;

static ts_status out_of_memory(ts_error *err)
{
    return TS_ERROR(err, TS_RESOURCE_EXHAUSTED,
                    "out of memory while compiling the graph for the cpu engine");
}

/* ---- copies in order ------------------------------------------------------------------------- */

static bool overlap(const ts_code *c, const ts_code_arg *a, const ts_code_arg *b)
{
    ts_code_ref ra = ts__code_resolve(c, a->ref), rb = ts__code_resolve(c, b->ref);
    if (ra.block != rb.block || !a->bytes || !b->bytes) return false;
    if (memcmp(ra.stride, rb.stride, sizeof ra.stride) != 0) return true;
    return ra.offset < rb.offset + (int64_t)b->bytes && rb.offset < ra.offset + (int64_t)a->bytes;
}

static bool needless(const ts_code *c, const ts_code_arg *in, const ts_code_arg *out)
{
    ts_code_ref ri = ts__code_resolve(c, in->ref), ro = ts__code_resolve(c, out->ref);
    return in->bytes == 0 || ts__code_same_place(&ri, &ro);
}

/* in[k] → out[k] for k < *n, still to do. Takes one that hurts no other and returns it, or −1. */
static int harmless_copy(const ts_code *c, const ts_code_arg *in, const ts_code_arg *out, int n)
{
    for (int k = 0; k < n; k++) {
        bool harms = false;
        for (int j = 0; j < n && !harms; j++) harms = j != k && overlap(c, &out[k], &in[j]);
        if (!harms) return k;
    }
    return -1;
}

/* Rewrites i's copies as a sequence; in and out get room for twice as many. */
static ts_status order_copies(ts_code *c, ts_code_instr *i, int at, ts_error *err)
{
    int n = 0, done = 0;
    ts_code_arg *args = ts_arena_alloc(c->arena, (size_t)(4 * i->n_in + 1) * sizeof *args);
    if (!args) return out_of_memory(err);
    ts_code_arg *in = args, *out = args + 2 * i->n_in;
    for (int k = 0; k < i->n_in; k++) {
        if (needless(c, &i->in[k], &i->out[k])) continue;
        i->in[n] = i->in[k];
        i->out[n++] = i->out[k];
    }
    while (n > 0) {
        int k = harmless_copy(c, i->in, i->out, n);
        if (k >= 0) {
            in[done] = i->in[k];
            out[done++] = i->out[k];
            i->in[k] = i->in[--n];
            i->out[k] = i->out[n];
            continue;
        }
        int block, life;
        TS_TRY(ts__code_block_new(c, TS_BLOCK_TEMP, -1, i->in[0].bytes, &block, err));
        TS_TRY(ts__code_life_new(c, block, at, i->loop, &life, err));
        in[done] = i->in[0];
        i->in[0] = (ts_code_arg){.ref = {.block = block}, .life = life, .bytes = i->in[0].bytes};
        out[done++] = i->in[0];
    }
    i->in = in;
    i->out = out;
    i->n_in = i->n_out = done;
    return TS_OK;
}

/* ---- offsets --------------------------------------------------------------------------------- */

static ts_status plan_arena(linker *l, ts_error *err)
{
    ts_code *c = &l->code;
    l->offset_index = ts_alloc((size_t)c->n_block * sizeof *l->offset_index + 1);
    l->plan = ts_alloc_zero((size_t)c->n_block * sizeof *l->plan + 1);
    l->range = ts_alloc((size_t)c->n_life * sizeof *l->range + 1);
    if (!l->offset_index || !l->plan || !l->range) return out_of_memory(err);
    ts_plan_range *r = l->range;
    for (int k = 0; k < c->n_block; k++) {
        const ts_code_block *b = &c->block[k];
        l->offset_index[k] = -1;
        if (b->kind != TS_BLOCK_TEMP || b->parent >= 0) continue;
        ts_plan_block *p = &l->plan[l->n_plan];
        *p = (ts_plan_block){.bytes = b->bytes, .range = r};
        for (int life = b->first_life; life >= 0; life = c->life[life].next) {
            *r++ = (ts_plan_range){c->life[life].first, c->life[life].last};
            p->n_range++;
        }
        l->offset_index[k] = l->n_plan++;
    }
    return ts_plan_assign(l->plan, l->n_plan, TS_CPU_ALIGN, c->share, &l->program->arena_bytes,
                          err);
}

static ts_cpu_address address(const linker *l, const ts_code_ref *ref)
{
    ts_code_ref r = ts__code_resolve(&l->code, *ref);
    const ts_code_block *b = &l->code.block[r.block];
    ts_cpu_address a = {.offset = r.offset};
    memcpy(a.stride, r.stride, sizeof a.stride);
    switch (b->kind) {
    case TS_BLOCK_TEMP:
        a.base = TS_BASE_ARENA;
        a.offset += (int64_t)l->plan[l->offset_index[r.block]].offset;
        break;
    case TS_BLOCK_CONSTANT:
        a.base = TS_BASE_CONSTANTS;
        a.offset += (int64_t)l->constant_offset[b->index];
        break;
    case TS_BLOCK_INPUT: a.base = TS_BASE_INPUTS + b->index; break;
    case TS_BLOCK_OUTPUT: a.base = TS_BASE_INPUTS + l->code.graph->top->n_arg + b->index; break;
    }
    return a;
}

/* ---- constants ------------------------------------------------------------------------------- */

/* Runs the reference kernel once, and repeats a splat to the length of its longest use. axis_index of an
 * axis of one device stays zero. */
static ts_status make_constant(const ts_code *c, const ts_code_constant *k, char *to, ts_error *err)
{
    const ts_cpu_kernel *kernel = &ts_cpu_ref[k->node->op];
    ts_cpu_prepared prepared = {0};
    size_t total = c->block[k->block].bytes, made = ts_type_bytes(&k->node->out[0]->type);
    if (k->node->op == TS_OP_axis_index || made == 0) return TS_OK;
    if (kernel->prepare) TS_TRY(kernel->prepare(k->node, c->threads, &prepared, err));
    void *scratch = ts_alloc(prepared.scratch_bytes);
    if (scratch)
        kernel->run(
            &(ts_cpu_call){k->node, NULL, &(void *){to}, scratch, prepared.state, c->threads});
    for (size_t n; scratch && made < total; made += n) {
        n = made < total - made ? made : total - made;
        memcpy(to + made, to, n);
    }
    if (prepared.state && kernel->release) kernel->release(prepared.state);
    ts_free(scratch);
    return scratch ? TS_OK : out_of_memory(err);
}

/* Where each constant lies, and the bytes of all. */
static ts_status place_constants(linker *l, size_t *bytes, ts_error *err)
{
    const ts_code *c = &l->code;
    size_t end = 0;
    l->constant_offset = ts_alloc((size_t)c->n_constant * sizeof *l->constant_offset + 1);
    if (!l->constant_offset) return out_of_memory(err);
    for (int k = 0; k < c->n_constant; k++) {
        l->constant_offset[k] = end;
        if (ts_add_size(end, c->block[c->constant[k].block].bytes, &end) ||
            end > (size_t)PTRDIFF_MAX - TS_CPU_ALIGN)
            return out_of_memory(err);
        end = ts_round_up(end, TS_CPU_ALIGN);
    }
    *bytes = end;
    return TS_OK;
}

static ts_status make_constants(linker *l, ts_error *err)
{
    const ts_code *c = &l->code;
    ts_cpu_memory *m = &l->program->constants;
    size_t bytes;
    TS_TRY(place_constants(l, &bytes, err));
    TS_TRY(ts__cpu_memory_new(bytes, "the constants of the program", m, err));
    for (int k = 0; k < c->n_constant; k++)
        TS_TRY(make_constant(c, &c->constant[k], (char *)m->data + l->constant_offset[k], err));
    return TS_OK;
}

/* ---- steps ----------------------------------------------------------------------------------- */

static double trips(const ts_code *c, int loop)
{
    double n = 1;
    for (; loop >= 0; loop = c->loop[loop].parent) n *= (double)c->loop[loop].n;
    return n;
}

/* What a step knows of its axis, and what it does to all devices. */
static ts_status add_collective(linker *l, const ts_node *n, ts_cpu_step *s, ts_error *err)
{
    ts_cpu_collective *c = ts_arena_alloc(l->program->storage, sizeof *c);
    ts_cpu_axis axis;
    if (!c) return out_of_memory(err);
    bool found = ts__cpu_axis_of(l->code.graph, n, &axis);
    TS_ASSERT(found); /* emit.c looked */
    *c = (ts_cpu_collective){.axis = axis};
    if (s->kind == TS_CODE_COLLECTIVE) ts__cpu_collective_make(n, &axis, l->code.isa, c);
    s->collective = c;
    return TS_OK;
}

/* n_at addresses: operands, results, scratch. */
static ts_status add_step(linker *l, const ts_code_instr *i, const ts_code_arg *in, int n_in,
                          const ts_code_arg *out, int n_out, ts_error *err)
{
    ts_cpu_program *p = l->program;
    ts_cpu_step *s = &p->step[p->n_step];
    ts_cpu_address *at = ts_arena_alloc(p->storage, (size_t)(n_in + n_out + 1) * sizeof *at);
    if (!at) return out_of_memory(err);
    TS_ASSERT(p->n_step < l->cap_step);
    bool edge = i->kind == TS_CODE_BEGIN || i->kind == TS_CODE_END;
    *s = (ts_cpu_step){.kind = i->kind,
                       .node = i->node,
                       .kernel = i->kernel,
                       .n_in = n_in,
                       .n_out = n_out,
                       .at = at,
                       .bytes = n_out ? out[0].bytes : 0,
                       .dtype = i->dtype,
                       .loop = i->loop,
                       .depth = i->loop < 0 ? 0 : l->code.loop[i->loop].depth + !edge};
    for (int k = 0; k < n_in; k++) at[k] = address(l, &in[k].ref);
    for (int k = 0; k < n_out; k++) at[n_in + k] = address(l, &out[k].ref);
    if (i->scratch >= 0) at[n_in + n_out] = address(l, &(ts_code_ref){.block = i->scratch});
    if (n_in + n_out > p->max_args) p->max_args = n_in + n_out;
    double n = trips(&l->code, i->loop);
    p->calls += n;
    p->flops += n * i->prepared.flops;
    p->bytes += n * (i->kind == TS_CODE_KERNEL || i->kind == TS_CODE_COLLECTIVE
                         ? i->prepared.bytes
                         : (double)s->bytes * (n_in + n_out + (i->kind == TS_CODE_ADD)));
    p->n_step++;
    return TS_OK;
}

static ts_status add_instr(linker *l, ts_code_instr *i, ts_error *err)
{
    ts_cpu_program *p = l->program;
    switch (i->kind) {
    case TS_CODE_COPY:
        for (int k = 0; k < i->n_in; k++) TS_TRY(add_step(l, i, &i->in[k], 1, &i->out[k], 1, err));
        return TS_OK;
    case TS_CODE_STACK:
        if (needless(&l->code, &i->in[0], &i->out[0])) return TS_OK;
        return add_step(l, i, i->in, 1, i->out, 1, err);
    case TS_CODE_ADD: return i->out[0].bytes ? add_step(l, i, i->in, 1, i->out, 1, err) : TS_OK;
    case TS_CODE_BEGIN:
        p->loop[i->loop].begin = p->n_step;
        return add_step(l, i, NULL, 0, NULL, 0, err);
    case TS_CODE_END: return add_step(l, i, NULL, 0, NULL, 0, err);
    case TS_CODE_KERNEL:
    case TS_CODE_INDEX:
    case TS_CODE_COLLECTIVE: break;
    }
    TS_TRY(add_step(l, i, i->in, i->n_in, i->out, i->n_out, err));
    if (i->kind != TS_CODE_KERNEL) return add_collective(l, i->node, &p->step[p->n_step - 1], err);
    p->step[p->n_step - 1].state = i->prepared.state;
    i->prepared.state = NULL;
    return TS_OK;
}

static ts_status add_steps(linker *l, ts_error *err)
{
    ts_code *c = &l->code;
    ts_cpu_program *p = l->program;
    for (int k = 0; k < c->n_instr; k++)
        l->cap_step += c->instr[k]->kind == TS_CODE_COPY ? c->instr[k]->n_in : 1;
    p->step = ts_arena_alloc(p->storage, (size_t)(l->cap_step + 1) * sizeof *p->step);
    p->loop = ts_arena_alloc(p->storage, (size_t)(c->n_loop + 1) * sizeof *p->loop);
    if (!p->step || !p->loop) return out_of_memory(err);
    p->n_loop = c->n_loop;
    for (int k = 0; k < c->n_loop; k++)
        p->loop[k] = (ts_cpu_loop){
            .n = c->loop[k].n, .reverse = c->loop[k].reverse, .depth = c->loop[k].depth};
    for (int k = 0; k < c->n_instr; k++) TS_TRY(add_instr(l, c->instr[k], err));
    int end = p->n_step;
    for (int k = p->n_step - 1; k >= 0; k--) {
        const ts_code_kind kind = p->step[k].kind;
        if (kind == TS_CODE_BEGIN || kind == TS_CODE_END || kind == TS_CODE_COLLECTIVE) end = k;
        p->step[k].segment_end = end;
    }
    return TS_OK;
}

/* Everything that has an address gets it. */
static ts_status place_blocks(linker *l, ts_error *err)
{
    ts_code *c = &l->code;
    if (c->share) ts__code_coalesce(c);
    for (int k = 0; k < c->n_instr; k++)
        if (c->instr[k]->kind == TS_CODE_COPY) TS_TRY(order_copies(c, c->instr[k], k, err));
    return plan_arena(l, err);
}

static ts_status link_code(linker *l, ts_error *err)
{
    TS_TRY(place_blocks(l, err));
    TS_TRY(make_constants(l, err));
    return add_steps(l, err);
}

static void free_linker(linker *l)
{
    ts__code_free(&l->code);
    ts_free(l->offset_index);
    ts_free(l->plan);
    ts_free(l->range);
    ts_free(l->constant_offset);
}

ts_status ts__cpu_program_new(const ts_graph *g, ts_isa isa, int threads, bool share,
                              ts_cpu_program **out, ts_error *err)
{
    linker l = {.code = {.isa = isa, .threads = threads, .share = share}};
    ts_status status = TS_OK;
    *out = NULL;
    l.program = ts_alloc_zero(sizeof *l.program);
    if (!l.program) return out_of_memory(err);
    *l.program = (ts_cpu_program){.graph = g, .threads = threads, .storage = ts_arena_new()};
    if (!l.program->storage) status = out_of_memory(err);
    if (status == TS_OK) status = ts__code_emit(&l.code, g, err);
    if (status == TS_OK) status = link_code(&l, err);
    free_linker(&l);
    if (status == TS_OK)
        *out = l.program;
    else
        ts__cpu_program_free(l.program);
    return status;
}

ts_status ts__cpu_program_sizes(const ts_graph *g, ts_isa isa, int threads, size_t *arena_bytes,
                                size_t *constant_bytes, ts_error *err)
{
    ts_cpu_program sizes = {.graph = g, .threads = threads};
    linker l = {.code = {.isa = isa, .threads = threads, .share = true}, .program = &sizes};
    ts_status status = ts__code_emit(&l.code, g, err);
    if (status == TS_OK) status = place_blocks(&l, err);
    if (status == TS_OK) status = place_constants(&l, constant_bytes, err);
    free_linker(&l);
    *arena_bytes = sizes.arena_bytes;
    return status;
}

void ts__cpu_program_free(ts_cpu_program *p)
{
    if (!p) return;
    for (int k = 0; k < p->n_step; k++)
        if (p->step[k].state && p->step[k].kernel->release)
            p->step[k].kernel->release(p->step[k].state);
    ts__cpu_memory_free(&p->constants);
    ts_arena_free(p->storage);
    ts_free(p);
}
