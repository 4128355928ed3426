/* train/build.c – the train step's graph of a configuration: what training executes and `tessera compile` compiles.
 *
 * Both must build the same program to the last character, or a compiled step would never be accepted; so there is
 * one place that reads the keys. Whether batches are packed is known from the keys alone, without the data.
 * Not here: how the graph is made (program.c), what data is read (prepare.c).
 */
#include "base/log.h"
#include "train/config_internal.h"
#include "train/run.h"

ts_status ts__read_model(const ts_config *c, ts_model_config *out, ts_error *err)
{
    ts_source s;
    *out = c->model;
    if (!*c->model_path) return TS_OK;
    TS_TRY(ts_source_open(c->model_path, &s, err));
    *out = s.model;
    ts_source_close(&s);
    return TS_OK;
}

/* A pattern stands here only where its files do not (compile_topology): it is written for several. */
static bool names_several(size_t n, const char *const *path)
{
    return n > 1 || (n == 1 && ts__config_is_pattern(path[0]));
}

/* Samples of several files, and rows that are packed, carry segments and positions. */
static bool is_packed(const ts_config *c)
{
    bool many_files = names_several(c->dataset_path.n, c->dataset_path.item);
    for (size_t i = 0; i < c->n_mixture; i++)
        many_files |= names_several(c->mixture[i].n_paths, c->mixture[i].paths);
    if (c->dataset == TS_DATA_SYNTHETIC) return false;
    return many_files || (c->dataset == TS_DATA_JSONL && c->packing);
}

ts_program_options ts__program_options(const ts_config *c, const ts_model_config *model)
{
    return (ts_program_options){
        .model = model,
        .rows = c->micro_rows,
        .sequence = c->max_target_length,
        .accumulation = c->gradient_accumulation_steps,
        .packed = is_packed(c),
        .row_losses = c->n_mixture > 0,
        .compute = c->compute_dtype,
        .remat = c->remat,
        .scan_layers = c->scan_layers,
        .frozen = c->frozen_parameters.item,
        .n_frozen = (int)c->frozen_parameters.n,
        .optimizer = {.adamw = {c->adam_b1, c->adam_b2, c->adam_eps, c->adam_weight_decay},
                      .clip = c->gradient_clipping_threshold,
                      .no_decay = c->adamw_mask.item,
                      .n_no_decay = (int)c->adamw_mask.n},
    };
}

int64_t ts__trained_parameters(const ts_config *c, const ts_model_config *model, const ts_graph *g)
{
    ts_program_options o = ts__program_options(c, model);
    int64_t n = 0;
    for (int i = 0; i < g->n_param; i++) {
        const ts_param_info *p = &g->param[i];
        if (!ts_program_is_frozen(&o, p)) n += ts_param_elements(p) * (p->count ? p->count : 1);
    }
    return n;
}

/* A pattern with a slip in it would freeze, or spare from decay, nothing at all without a word. */
static void warn_of_idle_patterns(const ts_graph *g, const char *key, const ts_config_list *patterns)
{
    for (size_t k = 0; k < patterns->n; k++) {
        bool used = false;
        for (int i = 0; i < g->n_param && !used; i++) {
            char first[512];
            const ts_param_info *p = &g->param[i];
            ts_param_name(p, 0, first, sizeof first);
            used = ts_pattern_match(patterns->item[k], p->name) ||
                   ts_pattern_match(patterns->item[k], first);
        }
        if (!used)
            ts_log(TS_LOG_WARNING, "%s: %s matches no parameter of this model", key,
                   patterns->item[k]);
    }
}

ts_status ts__build_train(const ts_config *c, const ts_model_config *model, ts_graph **out,
                          ts_error *err)
{
    ts_program_options o = ts__program_options(c, model);
    TS_TRY(ts_program_train(&o, out, err));
    if (ts__trained_parameters(c, model, *out) == 0) {
        ts_graph_free(*out);
        *out = NULL;
        return TS_ERROR(err, TS_INVALID_ARGUMENT,
                        "frozen_parameters covers every parameter; nothing is left to train");
    }
    warn_of_idle_patterns(*out, "frozen_parameters", &c->frozen_parameters);
    warn_of_idle_patterns(*out, "adamw_mask", &c->adamw_mask);
    return TS_OK;
}
