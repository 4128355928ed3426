/* train/config_check.c – values that follow from others, and the rules that involve several keys.
 *
 * Every rule reports against the key that a person would change, with what would work. A rule stays
 * silent when one of its keys is already reported.
 * Not here: limits of a single key (config_keys.def), data (config_data.c), devices and batch
 * (config_mesh.c), engine and compiler (config_engine.c), paths (config_path.c).
 */
#include "train/config_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* The byte tokenizer (token/): 256 bytes, bos 256, eos 257, pad 258. */
enum { BYTE_VOCAB = 259 };

static bool is_set(const ts_loading *l, int k)
{
    return l->from[k] != TS_LAYER_NONE;
}

static bool set_by_user(const ts_loading *l, int k)
{
    return l->from[k] == TS_LAYER_WORD || l->from[k] == TS_LAYER_ENV;
}

/* ---- run and steps --------------------------------------------------------------------------- */

static void check_run_name(ts_loading *l)
{
    const char *name = l->c->run_name, *found = NULL;
    char control[48];
    for (const char *p = name; *p && !found; p++) {
        if (*p == '\n' || *p == '\r') found = "a line break";
        if (*p == '/') found = "a /";
        if (found || ((unsigned char)*p >= 32 && *p != 127)) continue;
        snprintf(control, sizeof control, "the control character 0x%02x", (unsigned char)*p);
        found = control;
    }
    if (found)
        ts__key_problem(
            l, TS_K_run_name,
            "holds %s; it names one folder below base_output_directory: expected at most "
            "200 characters without / and control characters",
            found);
    else if (!strcmp(name, ".") || !strcmp(name, "..") || strlen(name) > 200)
        ts__key_problem(l, TS_K_run_name,
                        "names one folder below base_output_directory; expected at most 200 "
                        "characters without /");
}

static void derive_run(ts_loading *l)
{
    ts_config *c = l->c;
    if (!*c->run_name) {
        const char *jobset = getenv("JOBSET_NAME");
        time_t now = time(NULL);
        struct tm parts;
        char date[32] = "";
        if (localtime_r(&now, &parts)) strftime(date, sizeof date, "%Y-%m-%d-%H-%M", &parts);
        c->run_name = jobset && *jobset ? ts_arena_strdup(l->arena, jobset)
                                        : ts_arena_printf(l->arena, "%s_%s", c->model_name, date);
    }
    if (!*c->base_output_directory) c->base_output_directory = TS_DEFAULT_OUTPUT;
    size_t n = strlen(c->base_output_directory);
    bool slash = c->base_output_directory[n - 1] == '/';
    c->run_folder = ts_arena_printf(l->arena, "%s%s%s", c->base_output_directory, slash ? "" : "/",
                                    c->run_name ? c->run_name : "");
    if (!c->run_name || !c->run_folder) {
        l->out_of_memory = true;
        return;
    }
    check_run_name(l);
}

static void derive_schedule(ts_loading *l)
{
    ts_config *c = l->c;
    int64_t *steps = &c->steps, *schedule = &c->learning_rate_schedule_steps;
    if (!l->bad[TS_K_steps] && !l->bad[TS_K_learning_rate_schedule_steps]) {
        if (*steps == -1 && *schedule == -1)
            ts__key_problem(l, TS_K_steps,
                            "takes learning_rate_schedule_steps, which is -1 too; set one of them");
        if (*steps == -1) *steps = *schedule;
        if (*schedule == -1) *schedule = *steps;
        if (*schedule < *steps)
            ts__note(l,
                     "learning_rate_schedule_steps=%lld ends before steps=%lld: the rate is 0 from "
                     "there on",
                     (long long)*schedule, (long long)*steps);
    }
    c->schedule = (ts_schedule){
        .kind = !strcmp(c->lr_schedule_type, "wsd") ? TS_SCHEDULE_WSD : TS_SCHEDULE_COSINE,
        .peak = c->learning_rate,
        .final_fraction = c->learning_rate_final_fraction,
        .steps = *schedule,
        .warmup_fraction = c->warmup_steps_fraction,
        .decay_fraction = c->wsd_decay_steps_fraction,
        .cosine_decay = !strcmp(c->wsd_decay_style, "cosine"),
    };
    bool readable = !l->bad[TS_K_warmup_steps_fraction] && !l->bad[TS_K_wsd_decay_steps_fraction];
    if (c->schedule.kind == TS_SCHEDULE_WSD && readable &&
        c->warmup_steps_fraction + c->wsd_decay_steps_fraction > 1)
        ts__key_problem(l, TS_K_wsd_decay_steps_fraction,
                        "warmup_steps_fraction=%.12g leaves %.12g of the schedule for the decay",
                        c->warmup_steps_fraction, 1 - c->warmup_steps_fraction);
}

/* ---- model ----------------------------------------------------------------------------------- */

/* The nearest divisors of n around d, for the message. */
static void near_divisors(int64_t n, int64_t d, int64_t *below, int64_t *above)
{
    *below = d < n ? d : n;
    *above = d < n ? d : n;
    while (n % *below) --*below;
    while (n % *above) ++*above;
}

static void check_model(ts_loading *l)
{
    const ts_config *c = l->c;
    bool heads = !l->bad[TS_K_base_num_query_heads] && !l->bad[TS_K_base_num_kv_heads];
    if (heads && c->base_num_query_heads % c->base_num_kv_heads) {
        int64_t below, above;
        near_divisors(c->base_num_query_heads, c->base_num_kv_heads, &below, &above);
        if (below == above)
            ts__key_problem(l, TS_K_base_num_kv_heads,
                            "must divide base_num_query_heads=%lld; the nearest is %lld",
                            (long long)c->base_num_query_heads, (long long)below);
        else
            ts__key_problem(l, TS_K_base_num_kv_heads,
                            "must divide base_num_query_heads=%lld; the nearest are %lld and %lld",
                            (long long)c->base_num_query_heads, (long long)below, (long long)above);
    }
    if (!l->bad[TS_K_head_dim] && c->head_dim % 2)
        ts__key_problem(l, TS_K_head_dim, "rotary positions need an even size; %lld or %lld",
                        (long long)c->head_dim - 1, (long long)c->head_dim + 1);
    bool scaled = !strcmp(c->rope_type, "llama3.1");
    bool factors = !l->bad[TS_K_rope_low_freq_factor] && !l->bad[TS_K_rope_high_freq_factor];
    if (scaled && factors && c->rope_low_freq_factor >= c->rope_high_freq_factor)
        ts__key_problem(l, TS_K_rope_low_freq_factor,
                        "must be below rope_high_freq_factor=%g; Llama 3.1 has 1 and 4",
                        c->rope_high_freq_factor);
    static const int scaling[] = {TS_K_rope_scaling_factor, TS_K_rope_low_freq_factor,
                                  TS_K_rope_high_freq_factor, TS_K_rope_original_max_position};
    for (int i = 0; i < 4; i++)
        if (!scaled && !l->bad[TS_K_rope_type] && set_by_user(l, scaling[i]))
            ts__note(l, "%s has an effect with rope_type=llama3.1 only", ts__keys[scaling[i]].name);
    if (c->max_position_embeddings && c->max_target_length > c->max_position_embeddings)
        ts__note(l, "max_target_length=%lld is beyond the %lld positions that %s was made for",
                 (long long)c->max_target_length, (long long)c->max_position_embeddings,
                 c->model_name);
}

static void derive_model(ts_loading *l)
{
    ts_config *c = l->c;
    static const int sizes[] = {
        TS_K_base_emb_dim,
        TS_K_base_mlp_dim,
        TS_K_base_num_decoder_layers,
        TS_K_base_num_query_heads,
        TS_K_base_num_kv_heads,
        TS_K_head_dim,
        TS_K_vocab_size,
        TS_K_logits_via_embedding,
        TS_K_normalization_layer_epsilon,
        TS_K_rope_type,
        TS_K_rope_max_timescale,
    };
    if (*c->model_path) {
        if (is_set(l, TS_K_model_name) && strcmp(c->model_name, "default"))
            ts__key_problem(l, TS_K_model_name,
                            "model_path=%s already says what the model is; keep one of the two",
                            c->model_path);
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            if (set_by_user(l, sizes[i]))
                ts__key_problem(l, sizes[i],
                                "the model's files say this (model_path=%s); leave it out",
                                c->model_path);
        return;
    }
    check_model(l);
    bool bytes = c->vocab_size >= BYTE_VOCAB;
    c->model = (ts_model_config){
        .arch = TS_ARCH_LLAMA,
        .vocab = c->vocab_size,
        .hidden = c->base_emb_dim,
        .ffn = c->base_mlp_dim,
        .layers = c->base_num_decoder_layers,
        .heads = c->base_num_query_heads,
        .kv_heads = c->base_num_kv_heads,
        .head_dim = c->head_dim,
        .max_positions =
            c->max_position_embeddings ? c->max_position_embeddings : c->max_target_length,
        .norm_eps = c->normalization_layer_epsilon,
        .tied = c->logits_via_embedding,
        .rope = !strcmp(c->rope_type, "llama3.1") ? TS_ROPE_LLAMA3 : TS_ROPE_DEFAULT,
        .rope_theta = c->rope_max_timescale,
        .rope_factor = c->rope_scaling_factor,
        .rope_low = c->rope_low_freq_factor,
        .rope_high = c->rope_high_freq_factor,
        .rope_original = (double)c->rope_original_max_position,
        .bos_id = bytes ? 256 : -1,
        .eos_id = bytes ? 257 : -1,
        .pad_id = bytes ? 258 : -1,
    };
    bool encodes = c->dataset == TS_DATA_TEXT || c->dataset == TS_DATA_JSONL;
    if (!bytes && encodes && !l->bad[TS_K_dataset_type])
        ts__key_problem(
            l, TS_K_vocab_size,
            "the byte tokenizer has %d ids (256 bytes, bos, eos, pad); %d or more works",
            BYTE_VOCAB, BYTE_VOCAB);
}

/* ---- where a run begins ---------------------------------------------------------------------- */

static void check_start(ts_loading *l)
{
    const ts_config *c = l->c;
    if (*c->load_parameters_path && *c->load_full_state_path)
        ts__key_problem(l, TS_K_load_full_state_path,
                        "load_parameters_path says where to begin; keep one of the two");
    if (*c->model_path && *c->load_parameters_path)
        ts__key_problem(l, TS_K_load_parameters_path,
                        "model_path brings weights of its own; keep one of the two");
    if (*c->model_path && *c->load_full_state_path)
        ts__key_problem(l, TS_K_load_full_state_path,
                        "model_path brings weights of its own; keep one of the two");
    if (c->sample_interval > 0 && c->vocab_size < BYTE_VOCAB && !*c->model_path)
        ts__key_problem(
            l, TS_K_sample_interval,
            "samples need the %d ids of the byte tokenizer, vocab_size is %lld; -1 works",
            BYTE_VOCAB, (long long)c->vocab_size);
}

/* ---- which checkpoints stay ------------------------------------------------------------------ */

static void check_retention(ts_loading *l)
{
    const ts_config *c = l->c;
    const int64_t best = c->num_best_checkpoints_to_keep, newest = c->max_num_checkpoints_to_keep;
    if (best < 1 || l->bad[TS_K_num_best_checkpoints_to_keep]) return;
    if (newest < 1 && !l->bad[TS_K_max_num_checkpoints_to_keep])
        ts__key_problem(l, TS_K_num_best_checkpoints_to_keep,
                        "counts beside the newest, and max_num_checkpoints_to_keep=null keeps all; "
                        "set it too, such as max_num_checkpoints_to_keep=3");
    else if (c->eval_interval < 1 && !l->bad[TS_K_eval_interval])
        ts__key_problem(l, TS_K_num_best_checkpoints_to_keep,
                        "goes by the evaluation loss, and nothing is evaluated; set eval_interval");
    else if (c->eval_interval > 0 && c->checkpoint_period % c->eval_interval != 0)
        ts__note(l,
                 "num_best_checkpoints_to_keep: a checkpoint counts where its step was evaluated; "
                 "checkpoint_period=%lld is no multiple of eval_interval=%lld, so some do not",
                 (long long)c->checkpoint_period, (long long)c->eval_interval);
}

/* ---- loss spikes ----------------------------------------------------------------------------- */

static void check_spikes(ts_loading *l)
{
    static const int only[] = {TS_K_spike_window, TS_K_spike_threshold, TS_K_max_spike_rollbacks};
    const ts_config *c = l->c;
    if (l->bad[TS_K_spike_policy]) return;
    if (strcmp(c->spike_policy, "rollback") != 0) {
        for (size_t i = 0; i < sizeof only / sizeof *only; i++)
            if (set_by_user(l, only[i]))
                ts__note(l, "%s has an effect with spike_policy=rollback only",
                         ts__keys[only[i]].name);
        return;
    }
    if (!c->enable_checkpointing && !l->bad[TS_K_enable_checkpointing])
        ts__key_problem(l, TS_K_spike_policy,
                        "rollback goes back to a checkpoint, and enable_checkpointing=false writes "
                        "none; set it to true, or spike_policy=none");
    else if (c->steps > 0 && c->checkpoint_period >= c->steps && !l->bad[TS_K_checkpoint_period] &&
             !l->bad[TS_K_steps])
        ts__note(l,
                 "spike_policy=rollback: with checkpoint_period=%lld of %lld steps a spike goes back "
                 "to where the run began",
                 (long long)c->checkpoint_period, (long long)c->steps);
}

void ts__config_derive(ts_loading *l)
{
    ts_config *c = l->c;
    c->compute_dtype = !strcmp(c->dtype, "bfloat16") ? TS_BF16 : TS_F32;
    c->remat = !strcmp(c->remat_policy, "none")      ? TS_REMAT_NONE
               : !strcmp(c->remat_policy, "minimal") ? TS_REMAT_MINIMAL
                                                     : TS_REMAT_FULL;
    derive_run(l);
    derive_schedule(l);
    ts__config_derive_data(l);
    derive_model(l);
    ts__config_derive_rules(l);
    ts__config_derive_mesh(l);
    check_start(l);
    check_retention(l);
    check_spikes(l);
    ts__config_derive_engine(l);
}
