/* cpu/text.c – a compiled program in words: every step with the addresses of what it reads and writes.
 *
 * "temp+64" is the arena, "const+0" the constants, "tokens+0" an input, "→loss+0" an output's buffer;
 * "+1024·i0" is the stride of the outermost enclosing loop. For people, docs and tests; not parsed.
 */
#include "cpu/program.h"

static void add_address(const ts_cpu_program *p, const ts_cpu_address *a, ts_string *out)
{
    const ts_region *top = p->graph->top;
    int n_in = top->n_arg, k = a->base - TS_BASE_INPUTS;
    if (a->base == TS_BASE_ARENA)
        ts_string_add(out, "temp");
    else if (a->base == TS_BASE_CONSTANTS)
        ts_string_add(out, "const");
    else if (k < n_in)
        ts_string_printf(out, "%s", top->arg[k]->name ? top->arg[k]->name : "?");
    else
        ts_string_printf(out, "→%s", p->graph->output[k - n_in].name);
    ts_string_printf(out, "+%lld", (long long)a->offset);
    for (int d = 0; d < TS_CPU_MAX_LOOPS; d++)
        if (a->stride[d]) ts_string_printf(out, "+%lld·i%d", (long long)a->stride[d], d);
}

static void add_step(const ts_cpu_program *p, const ts_cpu_step *s, ts_string *out)
{
    static const char *const words[] = {"", "copy", "stack", "accumulate"};
    int indent = 2 + 2 * s->depth;
    if (s->kind == TS_CODE_BEGIN || s->kind == TS_CODE_END) {
        const ts_cpu_loop *l = &p->loop[s->loop];
        if (s->kind == TS_CODE_BEGIN)
            ts_string_printf(out, "%*srepeat i%d %lld times%s {\n", indent, "", l->depth,
                             (long long)l->n, l->reverse ? ", reversed" : "");
        else
            ts_string_printf(out, "%*s}\n", indent, "");
        return;
    }
    ts_string_printf(out, "%*s", indent, "");
    const bool work = s->kernel || s->collective;
    if (s->kernel)
        ts_string_printf(out, "%s [%s]", ts_op_infos[s->node->op].name, s->kernel->name);
    else if (s->collective)
        ts_string_printf(out, "%s over %s, %lld devices", ts_op_infos[s->node->op].name,
                         s->node->attr.collective.axis, (long long)s->collective->axis.n);
    else
        ts_string_printf(out, "%s %zu bytes", words[s->kind], s->bytes);
    for (int k = 0; k < s->n_in; k++) {
        ts_string_add(out, k ? ", " : " ");
        add_address(p, &s->at[k], out);
    }
    ts_string_add(out, " →");
    for (int k = 0; k < s->n_out; k++) {
        char type[400];
        ts_string_add(out, k ? ", " : " ");
        add_address(p, &s->at[s->n_in + k], out);
        if (work)
            ts_string_printf(out, " %s", ts_type_text(&s->node->out[k]->type, type, sizeof type));
    }
    ts_string_add(out, "\n");
}

void ts__cpu_program_text(const ts_cpu_program *p, ts_string *out)
{
    ts_string_printf(out, "plan of %s: %d steps, temp %zu bytes, const %zu bytes\n",
                     p->graph->name ? p->graph->name : "graph", p->n_step, p->arena_bytes,
                     p->constants.bytes);
    for (int k = 0; k < p->n_step; k++) add_step(p, &p->step[k], out);
}
