/* token/byte.c – the byte vocabulary: id = byte, then three special tokens.
 *
 * Any bytes encode, valid UTF-8 or not, and decode to themselves. Text never produces a special
 * token, so "<eos>" in a document is five letters. Nothing later changes an id: every prefix is
 * final.
 */
#include "token/kind.h"

enum { BYTES = 256, BOS = 256, EOS = 257, PAD = 258, VOCABULARY = 259 };

static ts_status byte_encode_some(const ts_tokenizer *t, const char *text, size_t n, bool last,
                                  ts_tokens *out, size_t *used, ts_error *err)
{
    (void)t;
    (void)last;
    TS_TRY(ts_tokens_reserve(out, n, err));
    for (size_t i = 0; i < n; i++) out->id[out->n++] = (unsigned char)text[i];
    *used = n;
    return TS_OK;
}

/* Every byte once, so that decode can borrow. */
#define ROW(h)                                                                                     \
    h##0, h##1, h##2, h##3, h##4, h##5, h##6, h##7, h##8, h##9, h##a, h##b, h##c, h##d, h##e, h##f
static const unsigned char every_byte[BYTES] = {
    ROW(0x0), ROW(0x1), ROW(0x2), ROW(0x3), ROW(0x4), ROW(0x5), ROW(0x6), ROW(0x7),
    ROW(0x8), ROW(0x9), ROW(0xa), ROW(0xb), ROW(0xc), ROW(0xd), ROW(0xe), ROW(0xf)};
#undef ROW

static const char *byte_bytes_of(const ts_tokenizer *t, int32_t id, size_t *n)
{
    (void)t;
    *n = 1;
    return (const char *)&every_byte[id];
}

static const char *byte_special_name(const ts_tokenizer *t, int32_t id)
{
    (void)t;
    return id == BOS ? "<bos>" : id == EOS ? "<eos>" : id == PAD ? "<pad>" : NULL;
}

static void byte_free(ts_tokenizer *t)
{
    ts_free(t);
}

static const ts__tokenizer_kind byte_kind = {
    .type = "byte",
    .bytewise = true,
    .encode_some = byte_encode_some,
    .bytes_of = byte_bytes_of,
    .special_name = byte_special_name,
    .free = byte_free,
};

ts_status ts_tokenizer_open_byte(ts_tokenizer **out, ts_error *err)
{
    ts_tokenizer *t = ts_alloc(sizeof *t);
    if (!t)
        return TS_ERROR(err, TS_RESOURCE_EXHAUSTED,
                        "out of memory while opening the byte tokenizer");
    *t = (ts_tokenizer){.kind = &byte_kind,
                        .vocab_size = VOCABULARY,
                        .bos = BOS,
                        .eos = EOS,
                        .pad = PAD,
                        .fingerprint = 0x62797465u /* "byte": there is only one */};
    *out = t;
    return TS_OK;
}
