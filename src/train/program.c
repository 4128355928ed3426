/* train/program.c – builds the graphs of program.h from a model description.
 *
 * Gradient accumulation is a repeat over micro-batches whose body contains the gradient: gradients
 * are summed, nothing of a micro-batch outlives it. The loss is Σ over trained tokens / their
 * number in the whole step, counted from the labels before the loop, so accumulation and batch
 * split give the same mean.
 */
#include "train/program.h"

#include <stdio.h>

#include "grad/grad.h"

typedef struct batch {
    /* i32 [rows,S], or [accumulation,rows,S]; the last two NULL unless packed */
    ts_value *tokens, *labels, *segments, *positions;
    ts_value *cos, *sin; /* f32 [S,D/2] */
} batch;

static ts_builder *begin(const ts_program_options *o, const char *name, ts_error *err)
{
    ts_builder *b = ts_builder_new(name);
    if (!b) {
        TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out while building graph %s", name);
        return NULL;
    }
    ts_set_compute_dtype(b, o->compute);
    ts_set_remat(b, o->remat);
    b->unroll_layers = !o->scan_layers;
    return b;
}

static ts_value *rows_input(ts_builder *b, const ts_program_options *o, const char *name,
                            int64_t micro)
{
    static const char *const pin[] = {NULL, "batch", NULL};
    const ts_dim dims[] = {{"micro_batches", micro}, {"batch", o->rows}, {"sequence", o->sequence}};
    int skip = micro == 1;
    return ts__pin(b, ts_input(b, name, TS_I32, dims + skip, 3 - skip), pin + skip);
}

static ts_value *table_input(ts_builder *b, const char *name, const ts_dim *dims)
{
    static const char *const whole[2] = {NULL, NULL};
    return ts__pin(b, ts_input(b, name, TS_F32, dims, 2), whole);
}

/* micro: micro-batches, a dimension of their own where there are several, so that a split batch
 * splits each. with_labels: false for next-token logits. */
static batch batch_inputs(ts_builder *b, const ts_program_options *o, int64_t micro,
                          bool with_labels)
{
    const ts_dim table[2] = {{"sequence", o->sequence}, {"half_head", o->model->head_dim / 2}};
    batch in = {0};
    in.tokens = rows_input(b, o, "tokens", micro);
    if (with_labels) in.labels = rows_input(b, o, "labels", micro);
    if (o->packed) {
        in.segments = rows_input(b, o, "segments", micro);
        in.positions = rows_input(b, o, "positions", micro);
    }
    in.cos = table_input(b, "rope.cos", table);
    in.sin = table_input(b, "rope.sin", table);
    return in;
}

static ts_forward forward(ts_builder *b, const ts_program_options *o, const batch *in)
{
    ts_forward_inputs f = {in->tokens, in->segments, in->cos, in->sin};
    if (in->positions) { /* tables [S,D/2] → [B,S,D/2] by position */
        f.cos = ts_take(b, in->cos, in->positions, -1);
        f.sin = ts_take(b, in->sin, in->positions, -1);
    }
    ts_forward out = ts_model_forward(b, o->model, &f);
    b->loc = (ts_loc){0}; /* what follows is no line of the model */
    return out;
}

/* Σ cross-entropy over trained tokens, f32 scalar. by_row (may be NULL): the same of each row, f32 [rows], a sum of
 * its own, so that nothing else depends on whether it is asked for. */
static ts_value *loss_sum(ts_builder *b, const ts_forward *f, ts_value *labels, ts_value **by_row)
{
    static const char *const pin[] = {"batch"};
    ts_type t = *ts_type_of(f->stream);
    ts_dim tokens = {"tokens", t.dim[0].size * t.dim[1].size};
    ts_scope_push(b, "loss");
    ts_value *x = ts_reshape(b, f->stream, TS_DIMS(tokens, t.dim[2]));
    ts_value *y = ts_reshape(b, labels, TS_DIMS(tokens));
    ts_value *w = ts_convert(b, f->head, b->compute);
    ts_value *each = ts_linear_xent(b, x, w, y, f->softcap, 0, NULL);
    ts_value *loss = ts_reduce_sum(b, each, TS_INTS(0));
    if (by_row)
        *by_row = ts__pin(
            b, ts_reduce_sum(b, ts_reshape(b, each, TS_DIMS(t.dim[0], t.dim[1])), TS_INTS(1)), pin);
    ts_scope_pop(b);
    return loss;
}

/* Number of trained tokens, f32; exact to 2²⁴ a step by counting in i32. */
static ts_value *count_trained(ts_builder *b, ts_value *labels)
{
    ts_value *trained = ts_compare(b, TS_GE, labels, ts_scalar(b, 0, TS_I32));
    static const int64_t axes[] = {0, 1, 2};
    ts_value *n = ts_reduce_sum(b, ts_convert(b, trained, TS_I32), axes, ts_type_of(labels)->rank);
    return ts_convert(b, n, TS_F32);
}

/* Sum / max(count, 1): a batch without trained tokens has loss 0, not NaN. */
static ts_value *mean(ts_builder *b, ts_value *sum, ts_value *count)
{
    return ts_div(b, sum, ts_max(b, count, ts_scalar(b, 1, TS_F32)));
}

bool ts_program_is_frozen(const ts_program_options *o, const ts_param_info *p)
{
    char first[512];
    ts_param_name(p, 0, first, sizeof first);
    for (int i = 0; i < o->n_frozen; i++)
        if (ts_pattern_match(o->frozen[i], first)) return true; /* as all layers of its stack */
    return false;
}

/* Indices and values of the trained parameters. */
static int trained_params(ts_builder *b, const ts_program_options *o, int **index,
                          ts_value ***value)
{
    ts_graph *g = b->graph;
    int n = 0;
    *index = ts_arena_alloc(g->arena, (size_t)(g->n_param + 1) * sizeof **index);
    *value = ts_arena_alloc(g->arena, (size_t)(g->n_param + 1) * sizeof **value);
    if (!*index || !*value) {
        ts__mistake(b, TS_RESOURCE_EXHAUSTED, "memory is out while building graph %s", g->name);
        return 0;
    }
    for (int i = 0; i < g->n_param; i++) {
        if (ts_param_matches(b, &g->param[i], o->frozen, o->n_frozen, "frozen_parameters"))
            continue;
        (*index)[n] = i;
        (*value)[n++] = g->param[i].value;
    }
    return n;
}

/* ---- train ----------------------------------------------------------------------------------- */

/* What a train step computes before its update. */
typedef struct train_sums {
    ts_value *loss, *row_loss; /* row_loss NULL where nobody asks */
    int *index, n;             /* of the trained parameters */
    ts_value **grads;
} train_sums;

static void no_memory(ts_builder *b)
{
    ts__mistake(b, TS_RESOURCE_EXHAUSTED, "memory is out while building graph %s", b->graph->name);
}

/* Loss Σ/total and gradients of one batch, in the builder's region. */
static void loss_and_grads(ts_builder *b, const ts_program_options *o, const batch *in,
                           ts_value *total, train_sums *out)
{
    ts_value **params;
    ts_forward f = forward(b, o, in);
    ts_value *sum = loss_sum(b, &f, in->labels, o->row_losses ? &out->row_loss : NULL);
    out->loss = mean(b, sum, total);
    out->n = trained_params(b, o, &out->index, &params);
    out->grads = ts_arena_alloc(b->graph->arena, (size_t)(out->n + 1) * sizeof *out->grads);
    if (out->grads)
        ts_grad(b, out->loss, params, out->n, out->grads, NULL);
    else
        no_memory(b);
}

/* The same over `accumulation` micro-batches: everything is a sum, but the rows' losses stand one behind the other. */
static void accumulate(ts_builder *b, const ts_program_options *o, const batch *in, ts_value *total,
                       train_sums *out)
{
    static const char *const pin[] = {NULL, "batch"};
    ts_value *xs[4] = {in->tokens, in->labels, in->segments, in->positions}, *slice[4];
    ts_repeat *r =
        ts_repeat_begin(b, o->accumulation, false, NULL, 0, xs, o->packed ? 4 : 2, NULL, slice);
    batch one = {slice[0], slice[1], o->packed ? slice[2] : NULL, o->packed ? slice[3] : NULL,
                 in->cos,  in->sin};
    loss_and_grads(b, o, &one, total, out);
    int n = out->n, count = n + 1 + (out->row_loss ? 1 : 0);
    ts_arena *arena = b->graph->arena;
    ts_value **ys = ts_arena_alloc(arena, (size_t)count * sizeof *ys);
    ts_value **results = ts_arena_alloc(arena, (size_t)count * sizeof *results);
    bool *sum = ts_arena_alloc(arena, (size_t)count);
    if (!ys || !results || !sum || b->error.code != TS_OK) {
        no_memory(b); /* an earlier mistake stays the one that is told */
        return;
    }
    ys[0] = out->loss;
    for (int i = 0; i < n; i++) ys[1 + i] = out->grads[i];
    for (int i = 0; i < count; i++) sum[i] = i <= n;
    if (out->row_loss) ys[n + 1] = out->row_loss;
    ts_repeat_end(b, r, NULL, ys, sum, count, results);
    out->loss = results[0];
    out->grads = results + 1;
    if (out->row_loss) out->row_loss = ts__pin(b, results[n + 1], pin);
}

static ts_status finish(ts_builder *b, ts_graph **out, ts_error *err)
{
    TS_TRY(ts_builder_finish(b, out, err));
    ts_status status = ts_graph_cse(*out, err);
    if (status == TS_OK) status = ts_graph_dce(*out, err);
    if (status == TS_OK) status = ts_graph_verify(*out, err);
    if (status != TS_OK) {
        ts_graph_free(*out);
        *out = NULL;
    }
    return status;
}

ts_status ts_program_train(const ts_program_options *o, ts_graph **out, ts_error *err)
{
    ts_builder *b = begin(o, "train_step", err);
    if (!b) return TS_RESOURCE_EXHAUSTED;
    batch in = batch_inputs(b, o, o->accumulation, true);
    ts_optimizer_inputs scalars = {ts_input(b, "lr", TS_F32, TS_SCALAR),
                                   ts_input(b, "step", TS_I32, TS_SCALAR)};
    ts_value *total = count_trained(b, in.labels), *ok;
    train_sums s = {0};
    (o->accumulation > 1 ? accumulate : loss_and_grads)(b, o, &in, total, &s);
    if (b->error.code == TS_OK) {
        ts_value *norm =
            ts_optimizer_apply(b, &o->optimizer, &scalars, s.index, s.grads, s.n, s.loss, &ok);
        ts_output(b, "loss", s.loss, NULL);
        ts_output(b, "weights", total, NULL);
        ts_output(b, "grad_norm", norm, NULL);
        ts_output(b, "ok", ok, NULL);
        if (s.row_loss) ts_output(b, "row_loss", s.row_loss, NULL);
    }
    return finish(b, out, err);
}

/* ---- evaluation, probe, logits --------------------------------------------------------------- */

ts_status ts_program_eval(const ts_program_options *o, ts_graph **out, ts_error *err)
{
    ts_builder *b = begin(o, "eval_step", err);
    if (!b) return TS_RESOURCE_EXHAUSTED;
    batch in = batch_inputs(b, o, 1, true);
    ts_forward f = forward(b, o, &in);
    ts_output(b, "loss_sum", loss_sum(b, &f, in.labels, NULL), NULL);
    ts_output(b, "weights", count_trained(b, in.labels), NULL);
    return finish(b, out, err);
}

/* x [.., E] · head [V,E] → f32 [.., V], softcapped. */
static ts_value *logits(ts_builder *b, const ts_forward *f, ts_value *x)
{
    ts_dot_dims d = {.n_contract = 1, .x_contract = {ts_type_of(x)->rank - 1}, .y_contract = {1}};
    ts_value *y = ts_dot(b, x, ts_convert(b, f->head, b->compute), &d, TS_F32);
    if (f->softcap == 0) return y;
    ts_value *cap = ts_scalar(b, f->softcap, TS_F32);
    return ts_mul(b, ts_tanh(b, ts_div(b, y, cap)), cap);
}

static void output_hidden(ts_builder *b, const ts_hidden *h)
{
    for (int k = 0; k < h->count && b->error.code == TS_OK; k++) {
        char name[64];
        snprintf(name, sizeof name, "hidden.%d", h->first + k * h->step);
        ts_type t = *ts_type_of(h->value);
        ts_value *one = ts_slice(b, h->value, 0, k, k + 1);
        ts_output(b, name, ts_reshape(b, one, t.dim + 1, t.rank - 1), NULL);
    }
}

ts_status ts_program_probe(const ts_program_options *o, ts_graph **out, ts_error *err)
{
    ts_builder *b = begin(o, "probe", err);
    if (!b) return TS_RESOURCE_EXHAUSTED;
    b->keep_hidden = true;
    batch in = batch_inputs(b, o, 1, true);
    ts_forward f = forward(b, o, &in);
    ts_value *loss = mean(b, loss_sum(b, &f, in.labels, NULL), count_trained(b, in.labels));
    ts_output(b, "logits", logits(b, &f, f.stream), NULL);
    ts_output(b, "hidden.embed", f.embed, NULL);
    for (int i = 0; i < b->n_hidden; i++) output_hidden(b, &b->hidden[i]);
    ts_output(b, "hidden.norm", f.stream, NULL);
    ts_output(b, "loss", loss, NULL);
    ts_value **params, **grads;
    int *index, n = trained_params(b, o, &index, &params);
    if (b->error.code == TS_OK &&
        (grads = ts_arena_alloc(b->graph->arena, (size_t)(n + 1) * sizeof *grads)))
        if (ts_grad(b, loss, params, n, grads, NULL) == TS_OK)
            for (int i = 0; i < n; i++) {
                const char *name =
                    ts_arena_printf(b->graph->arena, "grad.%s", b->graph->param[index[i]].name);
                if (name) ts_output(b, name, grads[i], NULL);
            }
    return finish(b, out, err);
}

ts_status ts_program_logits(const ts_program_options *o, ts_graph **out, ts_error *err)
{
    ts_builder *b = begin(o, "next_token", err);
    if (!b) return TS_RESOURCE_EXHAUSTED;
    batch in = batch_inputs(b, o, 1, false);
    ts_value *last = ts_input(b, "last", TS_I32, TS_SCALAR);
    ts_forward f = forward(b, o, &in);
    ts_type t = *ts_type_of(f.stream);
    ts_value *x = ts_dynamic_slice(b, f.stream, last, 1, 1); /* [B,1,E] */
    ts_output(b, "logits", logits(b, &f, ts_reshape(b, x, TS_DIMS(t.dim[0], t.dim[2]))), NULL);
    return finish(b, out, err);
}
