/* train/config_data.c – what a run reads: the rules between the keys of data and evaluation, and the
 * loader's options that follow from them.
 *
 * Not here: whether the files exist (config_path.c), what is in them (data/). */
#include "train/config_internal.h"

/* Braces and keys can be trained on too, but are rarely meant. */
static void note_rows_as_text(ts_loading *l, int k, const ts_config_list *paths)
{
    for (size_t i = 0; l->c->dataset == TS_DATA_TEXT && i < paths->n; i++) {
        size_t n = strlen(paths->item[i]);
        if (n <= 6 || strcmp(paths->item[i] + n - 6, ".jsonl")) continue;
        ts__note(l,
                 "%s: dataset_type=text trains on %.200s as it stands, keys and braces too; "
                 "dataset_type=jsonl takes the text out of its rows",
                 ts__keys[k].name, paths->item[i]);
        return;
    }
}

static void derive_data(ts_loading *l)
{
    static const char *const kinds[] = {"synthetic", "text", "jsonl", "tokens"};
    ts_config *c = l->c;
    for (int i = 0; i < 4; i++)
        if (!strcmp(c->dataset_type, kinds[i])) c->dataset = (ts_data_type)i;
    if (l->bad[TS_K_dataset_type] || l->bad[TS_K_dataset_path] || l->bad[TS_K_dataset_mixture]) return;
    if (c->dataset == TS_DATA_SYNTHETIC && c->dataset_path.n)
        ts__key_problem(
            l, TS_K_dataset_path,
            "dataset_type=synthetic reads no file; set dataset_type to text, jsonl or tokens");
    if (c->dataset == TS_DATA_SYNTHETIC && c->n_mixture)
        ts__key_problem(
            l, TS_K_dataset_mixture,
            "dataset_type=synthetic reads no file; set dataset_type to text, jsonl or tokens");
    if (c->dataset_path.n && c->n_mixture)
        ts__key_problem(l, TS_K_dataset_mixture,
                        "dataset_path says what to train on; keep one of the two");
    if (c->dataset != TS_DATA_SYNTHETIC && !c->dataset_path.n && !c->n_mixture)
        ts__key_problem(l, TS_K_dataset_type,
                        "reads files; name them with dataset_path=FILE[,FILE…]");
    note_rows_as_text(l, TS_K_dataset_path, &c->dataset_path);
    for (size_t i = 0; i < c->n_mixture; i++) {
        const ts_config_list files = {c->mixture[i].n_paths, c->mixture[i].paths};
        note_rows_as_text(l, TS_K_dataset_mixture, &files);
    }
    note_rows_as_text(l, TS_K_eval_dataset_path, &c->eval_dataset_path);
    if (c->dataset == TS_DATA_JSONL && !c->train_data_columns.n)
        ts__key_problem(l, TS_K_train_data_columns,
                        "is empty; name the field whose text is trained on, such as [text]");
}

static void derive_evaluation(ts_loading *l)
{
    ts_config *c = l->c;
    bool none = !c->eval_dataset_path.n && !(c->eval_fraction > 0);
    bool readable = !l->bad[TS_K_dataset_type] && !l->bad[TS_K_eval_fraction] &&
                    !l->bad[TS_K_eval_dataset_path];
    if (!readable) return;
    if (c->dataset == TS_DATA_SYNTHETIC) {
        static const int needs[] = {TS_K_eval_dataset_path, TS_K_eval_fraction};
        for (int i = 0; i < 2 && !none; i++)
            if (i ? c->eval_fraction > 0 : c->eval_dataset_path.n > 0)
                ts__key_problem(l, needs[i],
                                "dataset_type=synthetic has nothing to evaluate on; set "
                                "dataset_type to text, jsonl or tokens");
    }
    if (c->eval_dataset_path.n && c->eval_fraction > 0)
        ts__key_problem(l, TS_K_eval_fraction,
                        "eval_dataset_path says what to evaluate on; keep one of the two");
    const char *advice =
        c->dataset == TS_DATA_SYNTHETIC
            ? "dataset_type=synthetic has nothing to evaluate on; -1 works"
            : "nothing to evaluate on; set eval_dataset_path=FILE or eval_fraction=0.1";
    if (none && c->eval_interval > 0) ts__key_problem(l, TS_K_eval_interval, "%s", advice);
    if (c->target_eval_loss > 0 && c->eval_interval < 1)
        ts__key_problem(l, TS_K_target_eval_loss,
                        "is compared after evaluations; set eval_interval");
    if (c->eval_steps > 0 && c->eval_interval < 1 && none)
        ts__note(
            l, "eval_steps=%lld has no effect: nothing is evaluated (eval_interval, eval_fraction)",
            (long long)c->eval_steps);
}

void ts__config_derive_data(ts_loading *l)
{
    derive_data(l);
    derive_evaluation(l);
}

void ts_config_loader_options(const ts_config *c, ts_data_split split,
                              const ts_tokenizer *tokenizer, ts_loader_options *o)
{
    bool eval = split == TS_SPLIT_EVAL, own = eval && c->eval_dataset_path.n;
    const ts_config_list *paths = own ? &c->eval_dataset_path : &c->dataset_path;
    bool mixed = c->n_mixture > 0 && !eval;
    bool concat = !strcmp(c->grain_packing_type, "concat_then_split");
    ts_loader_options_default(o);
    o->type = c->dataset;
    o->paths = paths->item;
    o->n_paths = paths->n;
    o->sources = mixed ? c->mixture : NULL;
    o->n_sources = mixed ? c->n_mixture : 0;
    o->tokenizer = tokenizer;
    o->rows = eval ? c->eval_rows : c->micro_rows;
    o->sequence = c->max_target_length;
    o->vocab_size = c->model.vocab;
    o->seed = (uint64_t)c->data_shuffle_seed;
    o->shuffle = c->enable_data_shuffling && !eval;
    o->epochs = eval ? 1 : c->num_epoch;
    o->add_bos = c->add_bos;
    o->add_eos = c->add_eos;
    o->packing = !c->packing ? TS_PACK_NONE : concat ? TS_PACK_CONCAT : TS_PACK_FIRST_FIT;
    o->max_segments = c->max_segments_per_seq;
    o->eval_fraction = own ? 0 : c->eval_fraction;
    o->split = split;
    o->columns = c->train_data_columns.item;
    o->n_columns = c->train_data_columns.n;
    o->truncate = c->use_truncation;
    o->cache_folder = c->data_cache_directory;
    o->on_bad_row = !strcmp(c->on_bad_row, "skip") ? TS_BAD_ROW_SKIP : TS_BAD_ROW_STOP;
}

int ts_config_eval_sources(const ts_config *c)
{
    return c->n_mixture && !c->eval_dataset_path.n ? (int)c->n_mixture : 1;
}

void ts_config_eval_options(const ts_config *c, int source, const ts_tokenizer *tokenizer,
                            ts_loader_options *o)
{
    ts_config_loader_options(c, TS_SPLIT_EVAL, tokenizer, o);
    if (!c->n_mixture || c->eval_dataset_path.n) return;
    o->paths = c->mixture[source].paths;
    o->n_paths = c->mixture[source].n_paths;
}
