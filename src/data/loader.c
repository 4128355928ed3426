/* data/loader.c – options, the held-out part, the cursor, and filling one batch.
 *
 * Invariants: samples ≥ 1; the cursor stands on a sample (index < samples) or behind the last
 * epoch; a failed ts_loader_next leaves the state as it was. An ordinal counts samples over all
 * epochs: epoch · samples + index. Not here: what a sample is (windows.c, pack.c), JSON of the
 * state (state.c).
 */
#include <stdio.h>
#include <stdlib.h>

#include "data/internal.h"

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
    if (o->type != TS_DATA_SYNTHETIC && o->n_paths == 0)
        return TS_ERROR(err, TS_INVALID_ARGUMENT,
                        "dataset_path is empty; expected a file, or several separated by commas");
    if (o->type == TS_DATA_JSONL && o->max_row_bytes < 2)
        return TS_ERROR(err, TS_INVALID_ARGUMENT, "a row may have %zu bytes; expected 2 or more",
                        o->max_row_bytes);
    return check_vocabulary(o, err);
}

/* Too few tokens for one window of training or one label of evaluation: says which length would
 * do. */
static ts_status too_short(const ts_loader *l, const ts_loader_options *o, int64_t n, ts_error *err)
{
    const char *more = o->n_paths > 1 ? " and the other files" : "";
    int64_t all = ts__stream_tokens(l->stream);
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

static ts_status open_stream(ts_loader *l, const ts_loader_options *o, ts_error *err)
{
    TS_TRY(ts__stream_open(o, &l->stream, err));
    int64_t n = ts__stream_tokens(l->stream), held_out = (int64_t)((double)n * o->eval_fraction);
    l->begin = o->split == TS_SPLIT_EVAL && o->eval_fraction > 0 ? n - held_out : 0;
    l->end = o->split == TS_SPLIT_EVAL ? n : n - held_out;
    int64_t here = l->end - l->begin;
    bool eval = o->split == TS_SPLIT_EVAL;
    if (here < 2 || (!eval && here - 1 < o->sequence)) return too_short(l, o, here, err);
    l->stats.tokens = here;
    l->stats.samples = eval ? (here - 2) / o->sequence + 1 : (here - 1) / o->sequence;
    if (!eval) l->stats.tail_tokens = here - 1 - l->stats.samples * o->sequence;
    return TS_OK;
}

static uint64_t fingerprint_of(const ts_loader *l)
{
    const ts_loader_options *o = &l->o;
    uint64_t fraction, h = ts_mix64((uint64_t)o->type + 1);
    memcpy(&fraction, &o->eval_fraction, sizeof fraction);
    const uint64_t parts[] = {
        l->stream ? ts__stream_fingerprint(l->stream) : 0,
        l->rows ? ts__rows_fingerprint(l->rows) : 0,
        o->tokenizer ? ts_tokenizer_fingerprint(o->tokenizer) : 0,
        o->type == TS_DATA_SYNTHETIC ? (uint64_t)o->vocab_size : 0,
        (uint64_t)o->sequence,
        o->seed,
        fraction,
        (uint64_t)o->split,
        (uint64_t)o->shuffle | (uint64_t)o->add_bos << 1 | (uint64_t)o->add_eos << 2 |
            (uint64_t)o->truncate << 3,
        l->rows ? (uint64_t)o->packing : 0,
        l->rows ? (uint64_t)o->max_segments : 0,
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        h = ts_mix64(h + 0x9e3779b97f4a7c15u) ^ ts_mix64(parts[i] + i);
    return h;
}

static ts_status open_all(ts_loader *l, const ts_loader_options *o, ts_error *err)
{
    if (o->type == TS_DATA_JSONL) {
        TS_TRY(ts__rows_open(o, &l->rows, err));
        l->stats = *ts__rows_stats(l->rows);
    } else if (o->type == TS_DATA_SYNTHETIC) {
        l->stats.samples = 1;
        l->stats.tokens = o->rows * o->sequence;
    } else {
        TS_TRY(open_stream(l, o, err));
    }
    l->window = ts_alloc(((size_t)o->sequence + 1) * sizeof *l->window);
    l->used = ts_alloc_zero((size_t)o->rows * sizeof *l->used);
    l->segments = ts_alloc_zero((size_t)o->rows * sizeof *l->segments);
    if (!l->window || !l->used || !l->segments)
        return TS_ERROR(err, TS_RESOURCE_EXHAUSTED,
                        "out of memory for a batch of %lld rows × %lld tokens", (long long)o->rows,
                        (long long)o->sequence);
    if (o->epochs > 0 && o->epochs > INT64_MAX / l->stats.samples)
        return TS_ERROR(err, TS_INVALID_ARGUMENT,
                        "num_epoch=%lld of %lld samples cannot be counted", (long long)o->epochs,
                        (long long)l->stats.samples);
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
    l->o.column_separator = NULL;
    l->pad = o.tokenizer && ts_tokenizer_pad(o.tokenizer) >= 0 ? ts_tokenizer_pad(o.tokenizer) : 0;
    l->sample_id = l->order_epoch = -1;
    l->state.fingerprint = fingerprint_of(l);
    *out = l;
    return TS_OK;
}

void ts_loader_free(ts_loader *l)
{
    if (!l) return;
    ts__stream_free(l->stream);
    ts__rows_free(l->rows);
    ts_tokens_free(&l->sample);
    ts_free(l->window);
    ts_free(l->used);
    ts_free(l->segments);
    ts_free(l);
}

ts_loader_stats ts_loader_stats_of(const ts_loader *l)
{
    return l->stats;
}
const char *ts_loader_bad_row_at(const ts_loader *l, size_t i)
{
    return l->rows ? ts__rows_bad_at(l->rows, i) : NULL;
}

/* ---- cursor --------------------------------------------------------------------------------- */

bool ts__loader_exhausted(const ts_loader *l)
{
    return l->o.epochs > 0 && l->state.epoch >= l->o.epochs;
}

int64_t ts__loader_take(ts_loader *l)
{
    ts_loader_state *s = &l->state;
    int64_t ordinal = s->epoch * l->stats.samples + s->index;
    s->offset = 0;
    if (++s->index == l->stats.samples) {
        s->index = 0;
        s->epoch++;
    }
    return ordinal;
}

int64_t ts__loader_sample_at(ts_loader *l, int64_t ordinal)
{
    int64_t epoch = ordinal / l->stats.samples, index = ordinal % l->stats.samples;
    if (!l->o.shuffle) return index;
    if (epoch != l->order_epoch) {
        ts__permutation_init(&l->order, (uint64_t)l->stats.samples, l->o.seed, (uint64_t)epoch);
        l->order_epoch = epoch;
    }
    return (int64_t)ts__permutation_at(&l->order, (uint64_t)index);
}

/* ---- one batch ------------------------------------------------------------------------------ */

void ts__loader_put(ts_loader *l, ts_batch *b, int64_t row, int64_t slot, const int32_t *ids,
                    int64_t n, int32_t next, int32_t segment)
{
    TS_ASSERT(row >= 0 && row < l->o.rows && slot >= 0 && n >= 1 && n <= l->o.sequence - slot);
    int64_t at = row * l->o.sequence + slot;
    memcpy(b->tokens + at, ids, (size_t)n * sizeof *ids);
    memcpy(b->labels + at, ids + 1, (size_t)(n - 1) * sizeof *ids);
    b->labels[at + n - 1] = next;
    for (int64_t i = 0; i < n; i++) {
        b->segments[at + i] = segment;
        b->positions[at + i] = (int32_t)i;
    }
    b->trained_tokens += n - (next < 0);
    b->padding -= n;
}

static void clear(const ts_loader *l, ts_batch *b)
{
    size_t slots = (size_t)l->o.rows * (size_t)l->o.sequence;
    for (size_t i = 0; i < slots; i++) {
        b->tokens[i] = l->pad;
        b->labels[i] = -1;
    }
    memset(b->segments, 0, slots * sizeof *b->segments);
    memset(b->positions, 0, slots * sizeof *b->positions);
    for (int64_t row = 0; b->row_ids && row < l->o.rows; row++) b->row_ids[row] = -1;
    b->trained_tokens = 0;
    b->padding = (int64_t)slots;
}

ts_status ts_loader_next(ts_loader *l, ts_batch *b, ts_error *err)
{
    if (ts__loader_exhausted(l) && l->state.n_pending == 0) return TS_OUT_OF_RANGE;
    ts_loader_state before = l->state;
    ts_status status = TS_OK;
    clear(l, b);
    if (l->rows)
        status = ts__pack_fill(l, b, err);
    else if (l->stream)
        status = ts__windows_fill(l, b, err);
    else
        ts__synthetic_fill(l, b);
    if (status != TS_OK) {
        l->state = before;
        return status;
    }
    l->state.batches++;
    l->state.trained_tokens += b->trained_tokens;
    l->state.padding += b->padding;
    return TS_OK;
}
