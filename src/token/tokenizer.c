/* token/tokenizer.c – what every kind of vocabulary shares: checks, special tokens, the list of
 * ids.
 *
 * Invariants: on failure an output list or string keeps what it held before the call; a kind sees
 * only ids inside its vocabulary. Not here: any vocabulary (byte.c), any file.
 */
#include "token/tokenizer.h"

#include "token/kind.h"

/* ---- list of ids ---------------------------------------------------------------------------- */

ts_status ts_tokens_reserve(ts_tokens *t, size_t more, ts_error *err)
{
    size_t need, bytes;
    if (ts_add_size(t->n, more, &need) || ts_mul_size(need, 2 * sizeof *t->id, &bytes))
        return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "%zu + %zu tokens do not fit in memory", t->n,
                        more);
    if (need <= t->capacity) return TS_OK;
    size_t capacity = t->capacity + t->capacity / 2;
    if (capacity < need) capacity = need;
    if (capacity < 64) capacity = 64;
    int32_t *id = ts_realloc(t->id, t->capacity * sizeof *id, capacity * sizeof *id);
    if (!id) return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "out of memory for %zu tokens", capacity);
    t->id = id;
    t->capacity = capacity;
    return TS_OK;
}

ts_status ts_tokens_add(ts_tokens *t, int32_t id, ts_error *err)
{
    TS_TRY(ts_tokens_reserve(t, 1, err));
    t->id[t->n++] = id;
    return TS_OK;
}

void ts_tokens_free(ts_tokens *t)
{
    ts_free(t->id);
    *t = (ts_tokens){0};
}

/* ---- properties ----------------------------------------------------------------------------- */

void ts_tokenizer_free(ts_tokenizer *t)
{
    if (t) t->kind->free(t);
}

const char *ts_tokenizer_type(const ts_tokenizer *t)
{
    return t->kind->type;
}
int32_t ts_tokenizer_vocab_size(const ts_tokenizer *t)
{
    return t->vocab_size;
}
int32_t ts_tokenizer_bos(const ts_tokenizer *t)
{
    return t->bos;
}
int32_t ts_tokenizer_eos(const ts_tokenizer *t)
{
    return t->eos;
}
int32_t ts_tokenizer_pad(const ts_tokenizer *t)
{
    return t->pad;
}
bool ts_tokenizer_is_bytewise(const ts_tokenizer *t)
{
    return t->kind->bytewise;
}
uint64_t ts_tokenizer_fingerprint(const ts_tokenizer *t)
{
    return t->fingerprint;
}

bool ts_tokenizer_is_special(const ts_tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->vocab_size && t->kind->special_name(t, id) != NULL;
}

/* ---- encode, decode ------------------------------------------------------------------------- */

static ts_status add_special(const ts_tokenizer *t, int32_t id, const char *what, ts_tokens *out,
                             ts_error *err)
{
    if (id < 0)
        return TS_ERROR(err, TS_INVALID_ARGUMENT,
                        "the %s tokenizer has no %s token; set add_%s=false", t->kind->type, what,
                        what);
    return ts_tokens_add(out, id, err);
}

ts_status ts_tokenizer_encode_some(const ts_tokenizer *t, const char *text, size_t n, bool last,
                                   ts_tokens *out, size_t *used, ts_error *err)
{
    size_t before = out->n;
    ts_status status = t->kind->encode_some(t, text, n, last, out, used, err);
    if (status != TS_OK) {
        out->n = before;
        *used = 0;
    }
    TS_ASSERT(status != TS_OK || *used <= n);
    return status;
}

ts_status ts_tokenizer_encode(const ts_tokenizer *t, const char *text, size_t n, unsigned flags,
                              ts_tokens *out, ts_error *err)
{
    size_t before = out->n, used = 0;
    ts_status status = TS_OK;
    if (flags & TS_ENCODE_BOS) TS_TRY_GOTO(add_special(t, t->bos, "bos", out, err), fail);
    TS_TRY_GOTO(ts_tokenizer_encode_some(t, text, n, true, out, &used, err), fail);
    if (flags & TS_ENCODE_EOS) TS_TRY_GOTO(add_special(t, t->eos, "eos", out, err), fail);
    return TS_OK;
fail:
    out->n = before;
    return status;
}

ts_status ts_tokenizer_decode(const ts_tokenizer *t, const int32_t *ids, size_t n,
                              bool skip_special, ts_string *out, ts_error *err)
{
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= t->vocab_size)
            return TS_ERROR(
                err, TS_INVALID_ARGUMENT,
                "token %zu is %d; the %s tokenizer has ids 0 to %d: were these ids made with "
                "another one?",
                i, ids[i], t->kind->type, t->vocab_size - 1);
    for (size_t i = 0; i < n; i++) {
        const char *name = t->kind->special_name(t, ids[i]);
        if (name) {
            if (!skip_special) ts_string_add(out, name);
            continue;
        }
        size_t bytes;
        const char *data = t->kind->bytes_of(t, ids[i], &bytes);
        ts_string_add_bytes(out, data, bytes);
    }
    if (out->failed)
        return TS_ERROR(err, TS_RESOURCE_EXHAUSTED,
                        "the text of %zu tokens is over %zu bytes, or memory is out", n, out->max);
    return TS_OK;
}
