/* data/loader.c – options, opening the sources, the held-out part, and what a loader says of its data.
 *
 * Invariants: a source has samples ≥ 1 and a power of two of readers; nothing but readers, plan and
 * position changes after open. An ordinal counts samples over all epochs: epoch · samples + index.
 * Not here: what a row holds (reader.c, windows.c, pack.c), whose turn it is (mix.c), the position
 * as a value (state.c).
 */
#include <stdio.h>
#include <stdlib.h>
#include <xxhash.h>

#include "data/reader.h"

#define MIN_WEIGHT 1e-6
#define MAX_WEIGHT 1e6

void ts_loader_options_default(ts_loader_options *o)
{
    *o = (ts_loader_options){
        .struct_size = sizeof *o,
        .type = TS_DATA_SYNTHETIC,
        .shuffle = true,
        .epochs = 1,
        .add_bos = true,
        .add_eos = true,
        .packing = TS_PACK_FIRST_FIT,
        .max_segments = -1,
        .truncate = true,
        .max_row_bytes = (size_t)16 << 20,
    };
}

/* As few digits as read back the same: 0.9999999 is not 1. */
const char *ts__shortest(double x, char text[TS_SHORTEST])
{
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, TS_SHORTEST, "%.*g", digits, x);
        if (strtod(text, NULL) == x) break;
    }
    return text;
}

/* ---- open ----------------------------------------------------------------------------------- */

static ts_status check_vocabulary(const ts_loader_options *o, ts_error *err)
{
    if (o->type != TS_DATA_TEXT && o->type != TS_DATA_JSONL) {
        if (o->type == TS_DATA_SYNTHETIC && o->vocab_size < 1 && !o->tokenizer)
            return TS_ERROR(err, TS_INVALID_ARGUMENT,
                            "vocab_size=%lld; synthetic data needs at least 1",
                            (long long)o->vocab_size);
        return TS_OK;
    }
    if (!o->tokenizer)
        return TS_ERROR(err, TS_INVALID_ARGUMENT,
                        "dataset_type=%s needs a tokenizer; set tokenizer_type",
                        o->type == TS_DATA_TEXT ? "text" : "jsonl");
    int32_t ids = ts_tokenizer_vocab_size(o->tokenizer);
    if (o->vocab_size > 0 && o->vocab_size < ids)
        return TS_ERROR(
            err, TS_INVALID_ARGUMENT,
            "vocab_size=%lld is smaller than the %s tokenizer's %d ids; set vocab_size=%d "
            "or more",
            (long long)o->vocab_size, ts_tokenizer_type(o->tokenizer), ids, ids);
    if (o->add_bos && ts_tokenizer_bos(o->tokenizer) < 0)
        return TS_ERROR(err, TS_INVALID_ARGUMENT,
                        "add_bos=true, but the %s tokenizer has no begin token; set add_bos=false",
                        ts_tokenizer_type(o->tokenizer));
    if (o->add_eos && ts_tokenizer_eos(o->tokenizer) < 0)
        return TS_ERROR(err, TS_INVALID_ARGUMENT,
                        "add_eos=true, but the %s tokenizer has no end token; set add_eos=false",
                        ts_tokenizer_type(o->tokenizer));
    return TS_OK;
}

static ts_status check_sources(const ts_loader_options *o, ts_error *err)
{
    char number[TS_SHORTEST];
    if (!o->sources && o->type != TS_DATA_SYNTHETIC && o->n_paths == 0)
        return TS_ERROR(err, TS_INVALID_ARGUMENT,
                        "dataset_path is empty; expected a file, or several separated by commas");
    if (!o->sources) return TS_OK;
    if (o->type == TS_DATA_SYNTHETIC)
        return TS_ERROR(err, TS_INVALID_ARGUMENT,
                        "a mixture of synthetic data; expected dataset_type text, jsonl or tokens");
    if (o->n_sources < 1 || o->n_sources > TS_MAX_SOURCES)
        return TS_ERROR(err, TS_INVALID_ARGUMENT, "a mixture of %zu sources; expected 1 to %d",
                        o->n_sources, TS_MAX_SOURCES);
    for (size_t i = 0; i < o->n_sources; i++) {
        const ts_loader_source *s = &o->sources[i];
        if (!s->name || !s->name[0])
            return TS_ERROR(err, TS_INVALID_ARGUMENT,
                            "source %zu of the mixture has no name; give each one", i + 1);
        for (size_t k = 0; k < i; k++)
            if (strcmp(o->sources[k].name, s->name) == 0)
                return TS_ERROR(err, TS_INVALID_ARGUMENT,
                                "two sources of the mixture are named %s; give each a name of its "
                                "own",
                                s->name);
        if (!(s->weight >= MIN_WEIGHT && s->weight <= MAX_WEIGHT))
            return TS_ERROR(err, TS_INVALID_ARGUMENT,
                            "source %s of the mixture has weight %s; expected a number between "
                            "1e-6 and 1e6",
                            s->name, ts__shortest(s->weight, number));
        if (s->n_paths == 0)
            return TS_ERROR(err, TS_INVALID_ARGUMENT,
                            "source %s of the mixture has no files; expected at least one",
                            s->name);
    }
    return TS_OK;
}

static ts_status check_options(const ts_loader_options *o, ts_error *err)
{
    int64_t slots;
    char number[TS_SHORTEST];
    if (o->rows < 1 || o->sequence < 1 || ts_mul_i64(o->rows, o->sequence, &slots) ||
        slots > INT32_MAX)
        return TS_ERROR(
            err, TS_INVALID_ARGUMENT,
            "a batch of %lld rows × %lld tokens; expected at least 1 × 1 and fewer than "
            "2^31 slots",
            (long long)o->rows, (long long)o->sequence);
    if (o->type == TS_DATA_JSONL && o->packing != TS_PACK_CONCAT && o->sequence < 2)
        return TS_ERROR(
            err, TS_INVALID_ARGUMENT,
            "max_target_length=%lld; rows of jsonl need at least 2: a token and the one "
            "that follows",
            (long long)o->sequence);
    if (o->epochs < 0)
        return TS_ERROR(err, TS_INVALID_ARGUMENT,
                        "num_epoch=%lld; expected 1 or more, or 0 for no end",
                        (long long)o->epochs);
    if (!(o->eval_fraction >= 0 && o->eval_fraction < 1))
        return TS_ERROR(err, TS_INVALID_ARGUMENT,
                        "eval_fraction=%s; expected 0 (nothing held out) or a number below 1, "
                        "for example 0.1",
                        ts__shortest(o->eval_fraction, number));
    if (o->vocab_size > INT32_MAX)
        return TS_ERROR(err, TS_INVALID_ARGUMENT, "vocab_size=%lld; expected less than 2^31",
                        (long long)o->vocab_size);
    if (o->max_segments == 0 || o->max_segments < -1)
        return TS_ERROR(err, TS_INVALID_ARGUMENT,
                        "max_segments_per_seq=%lld; expected -1 (no limit), or 1 or more",
                        (long long)o->max_segments);
    TS_TRY(check_sources(o, err));
    if (o->type == TS_DATA_JSONL && o->max_row_bytes < 2)
        return TS_ERROR(err, TS_INVALID_ARGUMENT, "a row may have %zu bytes; expected 2 or more",
                        o->max_row_bytes);
    return check_vocabulary(o, err);
}

/* Too few tokens for one window of training or one label of evaluation: says which length would
 * do. */
static ts_status too_short(const ts__source *s, const ts_loader_options *o, int64_t n,
                           ts_error *err)
{
    const char *more = o->n_paths > 1 ? " and the other files" : "";
    int64_t all = ts__stream_tokens(s->stream);
    char part[120] = "", number[TS_SHORTEST];
    if (n < all)
        snprintf(part, sizeof part, " (%lld of %lld tokens, eval_fraction=%s)", (long long)n,
                 (long long)all, ts__shortest(o->eval_fraction, number));
    if (o->split == TS_SPLIT_EVAL)
        return TS_ERROR(err, TS_INVALID_ARGUMENT,
                        "%s%s: %lld tokens for evaluation%s; expected at least 2: raise "
                        "eval_fraction or give a longer file",
                        o->paths[0], more, (long long)n, part);
    if (n < 2)
        return TS_ERROR(err, TS_INVALID_ARGUMENT,
                        "%s%s: %lld tokens to train on%s; expected at least 2: give a longer file",
                        o->paths[0], more, (long long)n, part);
    return TS_ERROR(
        err, TS_INVALID_ARGUMENT,
        "%s%s: %lld tokens to train on%s; max_target_length=%lld needs at least %lld: set "
        "max_target_length=%lld or less, or give a longer file",
        o->paths[0], more, (long long)n, part, (long long)o->sequence, (long long)o->sequence + 1,
        (long long)n - 1);
}

static ts_status open_stream(ts__source *s, const ts_loader_options *o, ts_error *err)
{
    TS_TRY(ts__stream_open(o, &s->stream, err));
    int64_t n = ts__stream_tokens(s->stream), held_out = (int64_t)((double)n * o->eval_fraction);
    s->begin = o->split == TS_SPLIT_EVAL && o->eval_fraction > 0 ? n - held_out : 0;
    s->end = o->split == TS_SPLIT_EVAL ? n : n - held_out;
    int64_t here = s->end - s->begin;
    bool eval = o->split == TS_SPLIT_EVAL;
    if (here < 2 || (!eval && here - 1 < o->sequence)) return too_short(s, o, here, err);
    s->stats.tokens = here;
    s->stats.samples = eval ? (here - 2) / o->sequence + 1 : (here - 1) / o->sequence;
    if (!eval) s->stats.tail_tokens = here - 1 - s->stats.samples * o->sequence;
    return TS_OK;
}

/* The rows of a batch are synthetic data's samples, so that every batch is the same. */
static ts_status open_source(const ts_loader *l, ts__source *s, const ts_loader_options *o,
                             ts_error *err)
{
    if (o->type == TS_DATA_JSONL) {
        TS_TRY(ts__rows_open(o, &s->rows, err));
        s->stats = *ts__rows_stats(s->rows);
    } else if (o->type == TS_DATA_SYNTHETIC) {
        s->stats.samples = 1;
        s->stats.tokens = o->rows * o->sequence;
    } else {
        TS_TRY(open_stream(s, o, err));
    }
    s->samples = o->type == TS_DATA_SYNTHETIC ? o->rows : s->stats.samples;
    if (s->samples > TS_LAST_ORDINAL || o->epochs > TS_LAST_ORDINAL / s->samples)
        return TS_ERROR(err, TS_INVALID_ARGUMENT,
                        "num_epoch=%lld of %lld samples cannot be counted", (long long)o->epochs,
                        (long long)s->samples);
    s->total = o->epochs > 0 ? o->epochs * s->samples : INT64_MAX;
    int readers = o->type == TS_DATA_SYNTHETIC ? 1 : ts__readers_for(s->samples);
    return ts__readers_make(l, s, readers, err);
}

/* The statistics of all sources, and where the row ids of each begin. */
static ts_status add_up(ts_loader *l, ts_error *err)
{
    ts_loader_stats *sum = &l->stats;
    for (int i = 0; i < l->n_sources; i++) {
        const ts_loader_stats *s = &l->source[i].stats;
        l->source[i].first_row = sum->samples;
        sum->bad_rows += s->bad_rows;
        sum->cut_rows += s->cut_rows;
        if (ts_add_i64(sum->samples, s->samples, &sum->samples) ||
            ts_add_i64(sum->tokens, s->tokens, &sum->tokens) ||
            ts_add_i64(sum->tail_tokens, s->tail_tokens, &sum->tail_tokens) ||
            ts_add_i64(sum->rows, s->rows, &sum->rows))
            return TS_ERROR(err, TS_INVALID_ARGUMENT,
                            "the %d sources together are too large to count", l->n_sources);
    }
    return TS_OK;
}

/* One source after the other; a message names the source where there are several. */
static ts_status open_sources(ts_loader *l, const ts_loader_options *o, ts_error *err)
{
    double weight[TS_MAX_SOURCES] = {1};
    int64_t share[TS_MAX_SOURCES];
    for (int i = 0; i < l->n_sources; i++) {
        ts__source *s = &l->source[i];
        ts_loader_options one = *o;
        s->index = i;
        if (o->sources) {
            one.paths = o->sources[i].paths;
            one.n_paths = o->sources[i].n_paths;
            weight[i] = o->sources[i].weight;
        }
        s->name = ts_strdup(o->sources ? o->sources[i].name : "");
        ts_status status = s->name ? open_source(l, s, &one, err)
                                   : TS_ERROR(err, TS_RESOURCE_EXHAUSTED,
                                              "out of memory for the name of a source");
        if (status != TS_OK && s->name && s->name[0]) ts__error_context(err, "source %s", s->name);
        TS_TRY(status);
    }
    ts__mix_weights(weight, l->n_sources, share);
    for (int i = 0; i < l->n_sources; i++) l->source[i].weight = share[i];
    return add_up(l, err);
}

static void mix_in(uint64_t *h, const uint64_t *parts, size_t n)
{
    for (size_t i = 0; i < n; i++) *h = ts_mix64(*h + 0x9e3779b97f4a7c15u) ^ ts_mix64(parts[i] + i);
}

/* Not the rows of a batch, nor how many readers there are: the state has that. */
static uint64_t fingerprint_of(const ts_loader *l)
{
    const ts_loader_options *o = &l->o;
    bool rows = o->type == TS_DATA_JSONL;
    uint64_t fraction, h = ts_mix64((uint64_t)o->type + 1);
    memcpy(&fraction, &o->eval_fraction, sizeof fraction);
    const uint64_t options[] = {
        o->tokenizer ? ts_tokenizer_fingerprint(o->tokenizer) : 0,
        o->type == TS_DATA_SYNTHETIC ? (uint64_t)o->vocab_size : 0,
        (uint64_t)o->sequence,
        o->seed,
        fraction,
        (uint64_t)o->split,
        (uint64_t)o->shuffle | (uint64_t)o->add_bos << 1 | (uint64_t)o->add_eos << 2 |
            (uint64_t)o->truncate << 3,
        rows ? (uint64_t)o->packing : 0,
        rows ? (uint64_t)o->max_segments : 0,
        (uint64_t)l->n_sources,
    };
    mix_in(&h, options, sizeof options / sizeof *options);
    for (int i = 0; i < l->n_sources; i++) {
        const ts__source *s = &l->source[i];
        const uint64_t parts[] = {
            s->stream ? ts__stream_fingerprint(s->stream) : 0,
            s->rows ? ts__rows_fingerprint(s->rows) : 0,
            o->type == TS_DATA_SYNTHETIC ? 0 : (uint64_t)s->samples,
            XXH3_64bits(s->name, strlen(s->name)),
            (uint64_t)s->weight,
        };
        mix_in(&h, parts, sizeof parts / sizeof *parts);
    }
    return h;
}

/* Packed rows are queued while the last readers finish; other readers all end in the same turn. */
static bool make_queue(ts_loader *l, const ts_loader_options *o)
{
    if (o->type != TS_DATA_JSONL || o->packing == TS_PACK_NONE || o->epochs == 0) return true;
    size_t rows = 2 * (size_t)o->rows, slots = rows * (size_t)o->sequence;
    l->queue = ts_alloc_zero(rows * sizeof *l->queue);
    l->queue_ids = ts_alloc(4 * slots * sizeof *l->queue_ids);
    for (size_t i = 0; l->queue && l->queue_ids && i < rows; i++) {
        l->queue[i].tokens = l->queue_ids + i * (size_t)o->sequence;
        l->queue[i].labels = l->queue[i].tokens + slots;
        l->queue[i].segments = l->queue[i].labels + slots;
        l->queue[i].positions = l->queue[i].segments + slots;
    }
    return l->queue && l->queue_ids;
}

static ts_status open_all(ts_loader *l, const ts_loader_options *o, ts_error *err)
{
    int sources = o->sources ? (int)o->n_sources : 1;
    l->source = ts_alloc_zero((size_t)sources * sizeof *l->source);
    l->n_sources = l->source ? sources : 0;
    l->planned = ts_alloc_zero((size_t)sources * sizeof *l->planned);
    l->finished = ts_alloc_zero((size_t)sources * TS_MAX_READERS * sizeof *l->finished);
    l->n_finished = ts_alloc_zero((size_t)sources * sizeof *l->n_finished);
    l->turn = ts_alloc((size_t)o->rows * sizeof *l->turn);
    l->turn_source = ts_alloc((size_t)o->rows * sizeof *l->turn_source);
    l->row = ts_alloc_zero((size_t)o->rows * sizeof *l->row);
    if (!l->source || !l->planned || !l->finished || !l->n_finished || !l->turn ||
        !l->turn_source || !l->row || !make_queue(l, o))
        return TS_ERROR(err, TS_RESOURCE_EXHAUSTED,
                        "out of memory for %d sources and the %lld rows of a batch", sources,
                        (long long)o->rows);
    TS_TRY(open_sources(l, o, err));
    TS_TRY(ts__state_new(l->n_sources, NULL, &l->state, err));
    l->state->fingerprint = fingerprint_of(l);
    ts_loader_rewind(l);
    return TS_OK;
}

ts_status ts_loader_open(const ts_loader_options *options, ts_loader **out, ts_error *err)
{
    TS_ASSERT(options->struct_size == sizeof *options);
    ts_loader_options o = *options;
    TS_TRY(check_options(&o, err));
    if (o.tokenizer && o.vocab_size <= 0) o.vocab_size = ts_tokenizer_vocab_size(o.tokenizer);
    if (o.split == TS_SPLIT_EVAL) {
        o.shuffle = false;
        o.epochs = 1;
    } else if (o.type == TS_DATA_SYNTHETIC) {
        o.epochs = 0;
    }
    ts_loader *l = ts_alloc_zero(sizeof *l);
    if (!l) return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "out of memory for a data loader");
    l->o = o;
    ts_status status = open_all(l, &o, err);
    if (status != TS_OK) {
        ts_loader_free(l);
        return status;
    }
    l->o.paths = l->o.columns = NULL;
    l->o.sources = NULL;
    l->o.column_separator = l->o.cache_folder = NULL;
    l->pad = o.tokenizer && ts_tokenizer_pad(o.tokenizer) >= 0 ? ts_tokenizer_pad(o.tokenizer) : 0;
    *out = l;
    return TS_OK;
}

void ts_loader_free(ts_loader *l)
{
    if (!l) return;
    for (int i = 0; i < l->n_sources; i++) {
        ts__source *s = &l->source[i];
        ts__readers_free(s);
        ts__stream_free(s->stream);
        ts__rows_free(s->rows);
        ts_free(s->name);
    }
    ts_loader_state_free(l->state);
    ts_free(l->queue);
    ts_free(l->queue_ids);
    ts_free(l->finished);
    ts_free(l->n_finished);
    ts_free(l->source);
    ts_free(l->planned);
    ts_free(l->turn);
    ts_free(l->turn_source);
    ts_free(l->row);
    ts_free(l);
}

/* ---- what it says of its data --------------------------------------------------------------- */

ts_loader_stats ts_loader_stats_of(const ts_loader *l)
{
    return l->stats;
}
ts_loader_stats ts_loader_source_stats(const ts_loader *l, int source)
{
    TS_ASSERT(source >= 0 && source < l->n_sources);
    return l->source[source].stats;
}
const char *ts_loader_bad_row_at(const ts_loader *l, size_t i)
{
    if (i >= TS_BAD_ROWS_KEPT) return NULL;
    for (int k = 0; k < l->n_sources; k++) {
        const ts__rows *rows = l->source[k].rows;
        size_t kept = 0;
        if (!rows) continue;
        while (kept < TS_BAD_ROWS_KEPT && ts__rows_bad_at(rows, kept)) kept++;
        if (i < kept) return ts__rows_bad_at(rows, i);
        i -= kept;
    }
    return NULL;
}

int ts_loader_sources(const ts_loader *l)
{
    return l->n_sources;
}
const char *ts_loader_source_name(const ts_loader *l, int source)
{
    return source >= 0 && source < l->n_sources ? l->source[source].name : "";
}
