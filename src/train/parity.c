/* train/parity.c – compares a model with reference outputs: hidden states, logits, loss, gradients,
 * and the losses of three AdamW steps.
 *
 * Bounds in f32: logits and hidden states 2e-5 and each gradient 2e-5 of the tensor's largest (at
 * least 1 for activations), loss 2e-6, step losses 1e-4. bf16 keeps 8 bits, and errors add up over
 * layers: activations 2⁻⁵ and gradients 2⁻⁴ of the largest (twice what two layers in bf16 show,
 * ours or PyTorch's), losses 2e-2. Parameters after the steps are reported only: where a gradient
 * is nearly 0, AdamW divides noise by noise.
 */

#include <math.h>
#include <stdio.h>

#include "train/program.h"
#include "train/run.h"
#include "train/source.h"
#include "train/state.h"

enum { STEPS = 3 };
/* The optimizer of the reference runs. */
static const double rate = 1e-3;
static const ts_adamw_options adamw = {0.9, 0.95, 1e-8, 0.01};

typedef struct parity {
    const ts_config *config; /* as given; placed once the engine is open */
    ts_config on_devices;
    const char *model, *reference; /* paths, for messages */
    ts_parity_report *report;
    ts_tensors *golden;
    ts_source source;
    ts_engine *engine;
    int64_t rows, sequence;
    int32_t *tokens, *labels; /* [rows,S] */
    float *cos, *sin;         /* [S,D/2] */
    bool exact;               /* f32 */
} parity;

/* ---- rows of the report ---------------------------------------------------------------------- */

void ts_parity_report_free(ts_parity_report *r)
{
    ts_free(r->row);
    *r = (ts_parity_report){0};
}

static ts_status add_row(ts_parity_report *r, const ts_parity_row *row, ts_error *err)
{
    ts_parity_row *grown = ts_realloc(r->row, r->n * sizeof *grown, (r->n + 1) * sizeof *grown);
    if (!grown) return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out for the report");
    r->row = grown;
    r->row[r->n++] = *row;
    r->ok &= row->ok;
    return TS_OK;
}

/* Where every trained position sees one key, a softmax has no gradient: the reference's is exactly
 * 0, and a difference of two equal sums in another order is not. */
static const double zero_bound = 1e-6;

typedef enum bound_kind { ACTIVATION, GRADIENT, LOSS, STEP_LOSS, REPORTED } bound_kind;

static double bound_of(const parity *p, bound_kind kind, double largest)
{
    switch (kind) {
    case ACTIVATION: return (p->exact ? 2e-5 : 0x1p-5) * (largest > 1 ? largest : 1);
    case GRADIENT: return largest > 0 ? (p->exact ? 2e-5 : 0x1p-4) * largest : zero_bound;
    case LOSS: return p->exact ? 2e-6 : 2e-2;
    case STEP_LOSS: return p->exact ? 1e-4 : 2e-2;
    case REPORTED: break;
    }
    return INFINITY;
}

static ts_status compare(parity *p, const char *name, bound_kind kind, const float *got,
                         const float *want, size_t n, ts_error *err)
{
    ts_parity_row row = {.gated = kind != REPORTED};
    double largest = 0;
    bool finite = true;
    for (size_t i = 0; i < n; i++) {
        double gap = fabs((double)got[i] - (double)want[i]);
        finite &= isfinite(gap) != 0;
        row.max_abs = gap > row.max_abs ? gap : row.max_abs;
        largest = fabs((double)want[i]) > largest ? fabs((double)want[i]) : largest;
    }
    snprintf(row.name, sizeof row.name, "%s", name);
    row.max_rel = largest > 0 ? row.max_abs / largest : row.max_abs;
    row.bound = bound_of(p, kind, largest);
    row.ok = finite && row.max_abs <= row.bound;
    return add_row(p->report, &row, err);
}

/* ---- reference and batch --------------------------------------------------------------------- */

static ts_status find(parity *p, const char *name, const ts_tensor **out, ts_error *err)
{
    *out = ts_tensors_find(p->golden, name);
    return *out ? TS_OK
                : TS_ERROR(err, TS_DATA_LOSS, "%s: the reference has no tensor %s", p->reference,
                           name);
}

/* n f32 values of a reference tensor that must have exactly that many. Owns: caller. */
static ts_status reference(parity *p, const char *name, size_t n, float **out, ts_error *err)
{
    const ts_tensor *x;
    *out = NULL;
    TS_TRY(find(p, name, &x, err));
    if (x->count != n)
        return TS_ERROR(err, TS_DATA_LOSS,
                        "%s: reference tensor %s has %llu elements; this model gives %zu (%s)",
                        p->reference, name, (unsigned long long)x->count, n, p->model);
    if (!(*out = ts_alloc(n * sizeof(float) + 1)))
        return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out for tensor %s", name);
    ts_status status = ts_tensors_read_f32(p->golden, x, 0, n, *out, err);
    if (status != TS_OK) {
        ts_free(*out);
        *out = NULL;
    }
    return status;
}

/* input_ids and labels [rows,S]; labels are not shifted in the file, −100 is ignored. */
static ts_status read_batch(parity *p, ts_error *err)
{
    const ts_tensor *ids, *labels;
    TS_TRY(find(p, "input_ids", &ids, err));
    TS_TRY(find(p, "labels", &labels, err));
    if (ids->rank != 2 || labels->rank != 2 || ids->count == 0 || ids->dim[0] != labels->dim[0] ||
        ids->dim[1] != labels->dim[1])
        return TS_ERROR(err, TS_DATA_LOSS,
                        "%s: the reference's input_ids and labels must both be [rows, sequence]",
                        p->reference);
    p->rows = ids->dim[0];
    p->sequence = ids->dim[1];
    size_t n = (size_t)ids->count, table = (size_t)(p->sequence * (p->source.model.head_dim / 2));
    p->tokens = ts_alloc(n * sizeof(int32_t));
    p->labels = ts_alloc(n * sizeof(int32_t));
    p->cos = ts_alloc(table * sizeof(float));
    p->sin = ts_alloc(table * sizeof(float));
    if (!p->tokens || !p->labels || !p->cos || !p->sin)
        return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out for the batch");
    TS_TRY(ts_tensors_read_i32(p->golden, ids, 0, n, p->tokens, err));
    TS_TRY(ts_tensors_read_i32(p->golden, labels, 0, n, p->labels, err));
    for (size_t i = 0; i < n; i++) {
        if (p->tokens[i] < 0 || p->tokens[i] >= p->source.model.vocab)
            return TS_ERROR(err, TS_DATA_LOSS,
                            "%s: input_ids holds %d; the model's vocabulary is %lld (%s)",
                            p->reference, p->tokens[i], (long long)p->source.model.vocab, p->model);
        bool last = (i + 1) % (size_t)p->sequence == 0;
        p->labels[i] = last || p->labels[i + 1] < 0 ? -1 : p->labels[i + 1];
    }
    ts_model_rope_tables(&p->source.model, 0, p->sequence, p->cos, p->sin);
    return TS_OK;
}

/* The reference's batch is what it is: the axes that split a batch must divide it. */
static ts_status check_rows(const parity *p, ts_error *err)
{
    const ts_config *c = p->config;
    char axes[120] = "";
    int64_t ways = 1;
    for (int i = 0; i < c->rules.n; i++) {
        const ts_axis_rule *r = &c->rules.rule[i];
        if (strcmp(r->name, "batch") != 0) continue;
        for (int k = 0; k < r->n; k++) {
            const size_t at = strlen(axes);
            ways *= c->mesh.user[r->axis[k]];
            snprintf(axes + at, sizeof axes - at, "%sici_%s_parallelism=%lld", k ? " × " : "",
                     ts_user_axis_names[r->axis[k]], (long long)c->mesh.user[r->axis[k]]);
        }
        break;
    }
    if (c->mesh.devices <= 1 || p->rows % ways == 0) return TS_OK;
    return TS_ERROR(err, TS_INVALID_ARGUMENT,
                    "%s: the reference's batch has %lld rows, and %s does not divide them; the "
                    "product must divide %lld",
                    p->reference, (long long)p->rows, axes, (long long)p->rows);
}

static ts_program_options program_options(const parity *p)
{
    return (ts_program_options){
        .model = &p->source.model,
        .rows = p->rows,
        .sequence = p->sequence,
        .accumulation = 1,
        .compute = p->config->compute_dtype,
        .remat = p->config->remat,
        .scan_layers = p->config->scan_layers,
        .frozen = p->config->frozen_parameters.item,
        .n_frozen = (int)p->config->frozen_parameters.n,
        .optimizer = {.adamw = adamw, .clip = 1},
    };
}

static ts_status set_batch(parity *p, ts_bound *b, ts_error *err)
{
    size_t n = (size_t)(p->rows * p->sequence) * sizeof(int32_t);
    size_t table = (size_t)(p->sequence * (p->source.model.head_dim / 2)) * sizeof(float);
    TS_TRY(ts_bound_set(b, "tokens", p->tokens, n, err));
    TS_TRY(ts_bound_set(b, "labels", p->labels, n, err));
    TS_TRY(ts_bound_set(b, "rope.cos", p->cos, table, err));
    return ts_bound_set(b, "rope.sin", p->sin, table, err);
}

/* ---- forward and gradients ------------------------------------------------------------------- */

/* An output as f32. Owns: caller. */
static ts_status output_f32(ts_bound *b, const char *name, float **out, size_t *n, ts_error *err)
{
    const ts_type *t = ts_bound_output_type(b, name);
    size_t bytes = ts_type_bytes(t);
    *n = (size_t)ts_type_elements(t);
    *out = ts_alloc(*n * sizeof(float) + 1);
    if (!*out) return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out for output %s", name);
    void *raw = t->dtype == TS_BF16 ? (char *)*out + *n * sizeof(float) - bytes : (char *)*out;
    ts_status status = ts_bound_get(b, name, raw, bytes, err);
    for (size_t i = 0; status == TS_OK && t->dtype == TS_BF16 && i < *n; i++) {
        uint16_t h;
        memcpy(&h, (char *)raw + 2 * i, 2); /* the halves stand at the end: never overtaken */
        (*out)[i] = ts_bf16_to_f32(h);
    }
    if (status == TS_OK) return TS_OK;
    ts_free(*out);
    *out = NULL;
    return status;
}

static ts_status compare_output(parity *p, ts_bound *b, const char *name, bound_kind kind,
                                ts_error *err)
{
    float *got = NULL, *want = NULL;
    size_t n;
    ts_status status = output_f32(b, name, &got, &n, err);
    if (status == TS_OK) status = reference(p, name, n, &want, err);
    if (status == TS_OK) status = compare(p, name, kind, got, want, n, err);
    ts_free(got);
    ts_free(want);
    return status;
}

/* The gradient of one parameter, layer by layer. */
static ts_status compare_gradient(parity *p, ts_bound *b, const ts_param_info *param, ts_error *err)
{
    char output[600], name[512], full[600];
    float *got = NULL;
    size_t n, each = (size_t)ts_param_elements(param);
    snprintf(output, sizeof output, "grad.%s", param->name);
    if (!ts_bound_output_type(b, output)) return TS_OK; /* frozen */
    TS_TRY(output_f32(b, output, &got, &n, err));
    ts_status status = TS_OK;
    for (int k = 0; status == TS_OK && k < (param->count ? param->count : 1); k++) {
        float *want = NULL;
        snprintf(full, sizeof full, "grad.%s", ts_param_name(param, k, name, sizeof name));
        status = reference(p, full, each, &want, err);
        if (status == TS_OK)
            status = compare(p, full, GRADIENT, got + (size_t)k * each, want, each, err);
        ts_free(want);
    }
    ts_free(got);
    return status;
}

static ts_status compare_probe(parity *p, ts_bound *b, const ts_graph *g, ts_error *err)
{
    TS_TRY(set_batch(p, b, err));
    TS_TRY(ts_bound_execute(b, err));
    for (int i = 0; i < g->top->n_result; i++)
        if (strncmp(g->output[i].name, "hidden.", 7) == 0)
            TS_TRY(compare_output(p, b, g->output[i].name, ACTIVATION, err));
    TS_TRY(compare_output(p, b, "logits", ACTIVATION, err));
    TS_TRY(compare_output(p, b, "loss", LOSS, err));
    for (int i = 0; i < g->n_param; i++) TS_TRY(compare_gradient(p, b, &g->param[i], err));
    return TS_OK;
}

static ts_status probe(parity *p, ts_error *err)
{
    ts_program_options o = program_options(p);
    ts_graph *g = NULL;
    ts_placed placed = {0};
    ts_state *state = NULL;
    ts_bound *b = NULL;
    ts_status status = ts_program_probe(&o, &g, err);
    if (status == TS_OK) status = ts_place(p->config, g, TS_PLACE_TRAIN, &placed, err);
    if (status == TS_OK) status = ts_state_place(p->engine, &placed, &state, err);
    if (status == TS_OK) status = ts_state_load(state, p->source.tensors, err);
    if (status == TS_OK) status = ts_bound_open(p->engine, &placed, state, 1, NULL, &b, err);
    if (status == TS_OK) status = compare_probe(p, b, g, err);
    ts_bound_free(b);
    ts_state_free(state);
    ts_placed_free(&placed);
    ts_graph_free(g);
    return status;
}

/* ---- three steps ----------------------------------------------------------------------------- */

static ts_status compare_parameters(parity *p, const ts_state *state, ts_error *err)
{
    for (size_t i = 0; i < ts_state_tensor_count(state); i++) {
        ts_state_tensor t;
        char name[560];
        ts_state_tensor_at(state, i, &t);
        if (strncmp(t.name, "adam.", 5) == 0) break;
        snprintf(name, sizeof name, "param.%s", t.name);
        if (!ts_tensors_find(p->golden, name)) continue;
        const size_t n = t.elements;
        float *want = NULL, *got = ts_alloc(n * sizeof *got + 1);
        ts_status status = got ? reference(p, name, n, &want, err)
                               : TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out");
        if (status == TS_OK) status = ts_state_read(&t, 0, n, got, err);
        if (status == TS_OK) status = compare(p, name, REPORTED, got, want, n, err);
        ts_free(want);
        ts_free(got);
        TS_TRY(status);
    }
    return TS_OK;
}

/* Losses of steps 1 … 3 (each before its update), their norms, and the loss after the last. */
static ts_status run_steps(parity *p, ts_bound *train, ts_bound *eval, ts_error *err)
{
    float loss[STEPS + 1], norm[STEPS], sum, weights, lr = (float)rate, *want = NULL;
    TS_TRY(set_batch(p, train, err));
    TS_TRY(ts_bound_set(train, "lr", &lr, sizeof lr, err));
    for (int32_t step = 1; step <= STEPS; step++) {
        TS_TRY(ts_bound_set(train, "step", &step, sizeof step, err));
        TS_TRY(ts_bound_execute(train, err));
        TS_TRY(ts_bound_get(train, "loss", &loss[step - 1], sizeof(float), err));
        TS_TRY(ts_bound_get(train, "grad_norm", &norm[step - 1], sizeof(float), err));
    }
    TS_TRY(set_batch(p, eval, err));
    TS_TRY(ts_bound_execute(eval, err));
    TS_TRY(ts_bound_get(eval, "loss_sum", &sum, sizeof sum, err));
    TS_TRY(ts_bound_get(eval, "weights", &weights, sizeof weights, err));
    loss[STEPS] = sum / (weights > 1 ? weights : 1);
    for (int kind = 0; kind < 2; kind++) {
        const char *name = kind ? "step_grad_norm" : "step_loss";
        size_t n = kind ? STEPS : STEPS + 1;
        ts_status status = reference(p, name, n, &want, err);
        if (status == TS_OK)
            status =
                compare(p, name, kind ? REPORTED : STEP_LOSS, kind ? norm : loss, want, n, err);
        ts_free(want);
        TS_TRY(status);
    }
    return TS_OK;
}

static ts_status steps(parity *p, ts_error *err)
{
    ts_program_options o = program_options(p);
    ts_graph *g = NULL, *eg = NULL;
    ts_placed placed = {0}, eval_placed = {0};
    ts_state *state = NULL;
    ts_bound *train = NULL, *eval = NULL;
    ts_status status = ts_program_train(&o, &g, err);
    if (status == TS_OK) status = ts_program_eval(&o, &eg, err);
    if (status == TS_OK) status = ts_place(p->config, g, TS_PLACE_QUIET, &placed, err);
    if (status == TS_OK) status = ts_place(p->config, eg, TS_PLACE_QUIET, &eval_placed, err);
    if (status == TS_OK) status = ts_state_place(p->engine, &placed, &state, err);
    if (status == TS_OK) status = ts_state_load(state, p->source.tensors, err);
    if (status == TS_OK) status = ts_bound_open(p->engine, &placed, state, 1, NULL, &train, err);
    if (status == TS_OK)
        status = ts_bound_open(p->engine, &eval_placed, state, 1, NULL, &eval, err);
    if (status == TS_OK) status = run_steps(p, train, eval, err);
    if (status == TS_OK) status = compare_parameters(p, state, err);
    ts_bound_free(eval);
    ts_bound_free(train);
    ts_state_free(state);
    ts_placed_free(&eval_placed);
    ts_placed_free(&placed);
    ts_graph_free(eg);
    ts_graph_free(g);
    return status;
}

ts_status ts_parity(const ts_config *c, const char *model, const char *golden,
                    ts_parity_report *report, ts_error *err)
{
    parity p = {.config = c,
                .model = model,
                .reference = golden,
                .report = report,
                .exact = c->compute_dtype == TS_F32};
    *report = (ts_parity_report){.ok = true};
    ts_status status = ts_source_open(model, &p.source, err);
    if (status == TS_OK) status = ts_tensors_open(golden, &p.golden, err);
    if (status == TS_OK) status = read_batch(&p, err);
    if (status == TS_OK)
        status = ts__open_placed(c, &p.source.model, &p.on_devices, &p.engine, err);
    p.config = &p.on_devices;
    if (status == TS_OK) status = check_rows(&p, err);
    if (status == TS_OK) status = probe(&p, err);
    if (status == TS_OK && ts_tensors_find(p.golden, "step_loss")) status = steps(&p, err);
    ts_engine_close(p.engine);
    ts_tensors_close(p.golden);
    ts_source_close(&p.source);
    ts_free(p.tokens);
    ts_free(p.labels);
    ts_free(p.cos);
    ts_free(p.sin);
    if (status != TS_OK) ts_parity_report_free(report);
    return status;
}
