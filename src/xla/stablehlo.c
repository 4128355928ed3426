/* xla/stablehlo.c – the writer's frame: lowering a copy, @main with its arguments and results, the
 * table of emitters.
 *
 * Every primitive and collective of ops.def has an emitter; a missing one does not link. Composites
 * are lowered first, so they have none. The text is made for reading too: one operation a line,
 * arguments and results with their names, a comment where the scope changes, locations at the end.
 * The graph that is written is a copy, so the caller's stays as it is.
 * Not here: how an operation is written (stablehlo_elementwise.c, _shape.c, _repeat.c,
 * _collective.c), shardings (_sharding.c).
 */
#include <stdio.h>

#include "base/file.h"
#include "xla/stablehlo_emit.h"

static ts_shlo_emitter *const emitters[TS_OPS] = {
#define SHLO_PRIMITIVE(name)  ts__stablehlo_##name
#define SHLO_COLLECTIVE(name) ts__stablehlo_##name
#define SHLO_COMPOSITE(name)  NULL
#define OP(name, lo, hi, results, kind, ...) [TS_OP_##name] = SHLO_##kind(name),
#include "ir/ops.def"
#undef OP
};

bool ts__precision_parse(const char *word, ts_precision *out)
{
    static const struct {
        const char *word;
        ts_precision precision;
    } words[] = {{"default", TS_PRECISION_HIGHEST},
                 {"highest", TS_PRECISION_HIGHEST},
                 {"high", TS_PRECISION_HIGH},
                 {"bfloat16", TS_PRECISION_DEFAULT}};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strcmp(words[i].word, word) != 0) continue;
        *out = words[i].precision;
        return true;
    }
    return false;
}

/* ---- nodes ----------------------------------------------------------------------------------- */

static bool all_empty(const ts_node *n)
{
    for (int i = 0; i < n->n_out; i++)
        if (ts_type_elements(&n->out[i]->type)) return false;
    return true;
}

/* Results without elements need no operands: constants, whatever the op. Not of a repeat or a
 * barrier, which carry them along. */
static void emit_node(ts_shlo *e, const ts_node *n)
{
    ts__shlo_announce(e, n);
    ts__shlo_at(e, n);
    if (all_empty(n) && n->op != TS_OP_repeat && n->op != TS_OP_barrier) {
        for (int i = 0; i < n->n_out; i++)
            ts__shlo_set(e, n, i, ts__shlo_splat(e, 0, &n->out[i]->type));
        return;
    }
    TS_ASSERT(emitters[n->op]);
    emitters[n->op](e, n);
    for (int i = 0; i < n->n_out && e->status == TS_OK; i++)
        e->value[n->out[i]->id] = ts__shlo_pinned(e, n->out[i], e->value[n->out[i]->id]);
}

void ts__shlo_region(ts_shlo *e, const ts_region *r)
{
    for (const ts_node *n = r->first; n && e->status == TS_OK; n = n->next)
        emit_node(e, n);
}

/* ---- the module ------------------------------------------------------------------------------ */

/* A symbol: letters, digits and underscores. */
static void put_symbol(ts_shlo *e, const char *name)
{
    if (!*name || (*name >= '0' && *name <= '9')) ts__shlo_put(e, "_");
    for (; *name; name++) {
        bool letter = (*name >= 'a' && *name <= 'z') || (*name >= 'A' && *name <= 'Z') ||
                      (*name >= '0' && *name <= '9');
        ts_string_add_bytes(e->out, letter ? name : "_", 1);
    }
}

/* // Tessera graph "train_step": 4 inputs, 3 outputs, mesh fsdp=4 tensor=2 */
static void put_title(ts_shlo *e)
{
    const ts_graph *g = e->g;
    ts__shlo_put(e, "// Tessera graph $q: $i inputs, $i outputs", g->name, (int64_t)g->top->n_arg,
                 (int64_t)g->top->n_result);
    for (int i = 0; i < g->n_axis; i++)
        ts__shlo_put(e, "$s$q = $i", i ? ", " : ", mesh ", g->axis[i].name, g->axis[i].size);
    ts__shlo_put(e, "\nmodule @");
    put_symbol(e, g->name);
    ts__shlo_put(e, " {\n");
    if (e->sharding) ts__shlo_put_mesh(e);
    ts__shlo_put(e, "  func.func public @main(");
}

/* The output that takes input i's buffer; −1: none. */
static int replaced_by(const ts_graph *g, int i)
{
    for (int k = 0; k < g->top->n_result; k++)
        if (g->output[k].replaces == i) return k;
    return -1;
}

static void put_arguments(ts_shlo *e)
{
    const ts_graph *g = e->g;
    for (int i = 0; i < g->top->n_arg; i++) {
        const ts_value *v = g->top->arg[i];
        ts_shlo_value arg = {i, -2, v->type};
        int output = replaced_by(g, i);
        e->value[v->id] = arg;
        ts__shlo_put(e, "$s$n$v: $t", i ? "," : "", &arg, &v->type);
        if (output >= 0 || e->sharding) ts__shlo_put(e, " {");
        if (output >= 0) ts__shlo_put(e, "tf.aliasing_output = $i : i32", (int64_t)output);
        if (output >= 0 && e->sharding) ts__shlo_put(e, ", ");
        if (e->sharding) ts__shlo_put_sharding(e, &e->sharding->in[i]);
        if (output >= 0 || e->sharding) ts__shlo_put(e, "}");
        ts__shlo_put(e, " loc($q)", v->name);
    }
}

static void put_results(ts_shlo *e)
{
    const ts_region *top = e->g->top;
    ts__shlo_put(e, ") -> (");
    for (int i = 0; i < top->n_result; i++) {
        ts__shlo_put(e, "$n$t", &top->result[i]->type);
        if (e->sharding) {
            ts__shlo_put(e, " {");
            ts__shlo_put_sharding(e, &e->sharding->out[i]);
            ts__shlo_put(e, "}");
        }
        ts__shlo_put(e, "$s // $q", i + 1 < top->n_result ? "," : "", e->g->output[i].name);
    }
    ts__shlo_put(e, top->n_result ? "\n  ) {\n" : ") {\n");
}

static void put_return(ts_shlo *e)
{
    const ts_region *top = e->g->top;
    ts__shlo_put(e, "$>return");
    for (int i = 0; i < top->n_result; i++)
        ts__shlo_put(e, "$s$v", i ? ", " : " ", &e->value[top->result[i]->id]);
    for (int i = 0; i < top->n_result; i++)
        ts__shlo_put(e, "$s$t", i ? ", " : " : ", &top->result[i]->type);
    ts__shlo_put(e, "\n  }\n}\n");
}

static void put_module(ts_shlo *e)
{
    put_title(e);
    e->depth = 3;
    put_arguments(e);
    put_results(e);
    e->depth = 2;
    ts__shlo_region(e, e->g->top);
    if (e->status != TS_OK) return;
    put_return(e);
    e->depth = 0;
    ts__shlo_put_locs(e);
}

/* ---- the writer ------------------------------------------------------------------------------ */

static void put_graph(const ts_graph *g, ts_string *out)
{
    ts_string text = ts_string_new(out->max);
    ts_graph_print(g, &text);
    ts_string_add(out, TS_STABLEHLO_GRAPH_MARK);
    for (char *line = text.data; line && *line;) {
        size_t n = strcspn(line, "\n");
        ts_string_add(out, "// ");
        ts_string_add_bytes(out, line, n);
        ts_string_add(out, "\n");
        line += n + (line[n] == '\n');
    }
    if (text.failed) out->failed = true;
    ts_string_free(&text);
}

static ts_status write_lowered(const ts_graph *g, const ts_stablehlo_options *o, ts_string *out,
                               ts_error *err)
{
    ts_shlo e = {.out = out,
                 .g = g,
                 .precision = o->precision,
                 .sharding = o->sharding,
                 .err = err,
                 .value = ts_alloc_zero((size_t)g->next_id * sizeof *e.value + 1),
                 .locs = ts__shlo_locs_new()};
    if (e.value && e.locs) put_module(&e);
    else out->failed = true;
    ts__shlo_locs_free(e.locs);
    ts_free(e.value);
    return e.status;
}

ts_status ts__stablehlo_write(const ts_graph *g, const ts_stablehlo_options *o, ts_string *out,
                              ts_error *err)
{
    ts_graph *copy;
    if (o->sharding) TS_TRY(ts__stablehlo_check_sharding(g, o->sharding, o->devices, err));
    if (o->devices) TS_TRY(ts__check_mesh(g, o->devices, err));
    TS_TRY(ts_graph_clone(g, &copy, err));
    ts_status status = ts_graph_lower(copy, NULL, err);
    if (status == TS_OK) status = ts_graph_cse(copy, err);
    if (status == TS_OK) status = ts_graph_dce(copy, err);
    if (status == TS_OK) status = ts_graph_verify(copy, err);
    if (status == TS_OK) status = write_lowered(copy, o, out, err);
    ts_graph_free(copy);
    if (status == TS_OK && o->carry_graph) put_graph(g, out);
    if (status == TS_OK && out->failed)
        status = TS_ERROR(err, TS_RESOURCE_EXHAUSTED,
                          "memory is out, or a program of more than %zu bytes, writing graph %s as StableHLO",
                          out->max, g->name);
    return status;
}

ts_status ts__stablehlo_save(const char *folder, const char *name, const char *text, size_t n,
                             ts_error *err)
{
    char file[256];
    ts_writer *w;
    snprintf(file, sizeof file, "%.200s.mlir", name);
    for (char *p = file; *p; p++)
        if (*p == '/') *p = '_'; /* a graph may have any name */
    char *path = ts_path_join(folder, file);
    if (!path) return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out for the path of a program");
    ts_status status = ts_writer_open(path, false, &w, err);
    ts_free(path);
    if (status != TS_OK) return status;
    status = ts_writer_write(w, text, n, err);
    if (status == TS_OK) return ts_writer_close(w, false, err);
    ts_writer_abandon(w);
    return status;
}
