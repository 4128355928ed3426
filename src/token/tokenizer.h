/* token/tokenizer.h – text to ids and back, whatever the vocabulary comes from.
 *
 * A tokenizer is read-only after open: any number of threads may use one. Ids are 0 …
 * vocabulary−1. Encoding appends, so that a caller composes a sample from parts. Text that
 * arrives in pieces goes through ts_tokenizer_encode_some, which consumes only what later text
 * cannot change; ids that arrive one by one are decoded one by one, and ts_utf8_complete says how
 * much of the bytes can be shown. Not here: templates and chat formats, packing, files of rows
 * (src/data).
 */
#ifndef TS_TOKENIZER_H
#define TS_TOKENIZER_H

#include "base/base.h"

typedef struct ts_tokenizer ts_tokenizer;

/* A list of ids that grows; all zero is an empty one. Owns id until ts_tokens_free. */
typedef struct ts_tokens {
    int32_t *id;
    size_t n, capacity;
} ts_tokens;
ts_status ts_tokens_add(ts_tokens *t, int32_t id, ts_error *err);
ts_status ts_tokens_reserve(ts_tokens *t, size_t more, ts_error *err);
void ts_tokens_free(ts_tokens *t);

/* 256 bytes, then bos 256, eos 257, pad 258: a vocabulary of 259. Owns: caller. */
TS_MUST_CHECK ts_status ts_tokenizer_open_byte(ts_tokenizer **out, ts_error *err);
void ts_tokenizer_free(ts_tokenizer *t); /* NULL is fine */

const char *ts_tokenizer_type(const ts_tokenizer *t); /* the value of tokenizer_type: "byte" */
int32_t ts_tokenizer_vocab_size(const ts_tokenizer *t);
int32_t ts_tokenizer_bos(const ts_tokenizer *t); /* −1: the vocabulary has none */
int32_t ts_tokenizer_eos(const ts_tokenizer *t);
int32_t ts_tokenizer_pad(const ts_tokenizer *t);
bool ts_tokenizer_is_special(const ts_tokenizer *t, int32_t id);
/* True when token i is byte i of the text, so that a place in a file is known without reading
 * it. */
bool ts_tokenizer_is_bytewise(const ts_tokenizer *t);
/* Equal for two tokenizers exactly when they give the same ids; kept in checkpoints. */
uint64_t ts_tokenizer_fingerprint(const ts_tokenizer *t);

typedef enum ts_encode_flags {
    TS_ENCODE_PLAIN = 0,
    TS_ENCODE_BOS = 1, /* the begin token in front; an error where the vocabulary has none */
    TS_ENCODE_EOS = 2  /* the end token behind */
} ts_encode_flags;
/* Appends the ids of text [n bytes] to out; on failure out keeps its earlier ids only. */
TS_MUST_CHECK ts_status ts_tokenizer_encode(const ts_tokenizer *t, const char *text, size_t n,
                                            unsigned flags, ts_tokens *out, ts_error *err);
/* Appends the ids of the longest prefix of text that what follows cannot change (all of it when
 * last); *used is the length of that prefix. Call again with the rest in front of the next
 * piece. */
TS_MUST_CHECK ts_status ts_tokenizer_encode_some(const ts_tokenizer *t, const char *text, size_t n,
                                                 bool last, ts_tokens *out, size_t *used,
                                                 ts_error *err);

/* Appends the bytes of ids; special tokens as their names ("<eos>") or, with skip_special, not at
 * all. An id outside the vocabulary is INVALID_ARGUMENT with its index. */
TS_MUST_CHECK ts_status ts_tokenizer_decode(const ts_tokenizer *t, const int32_t *ids, size_t n,
                                            bool skip_special, ts_string *out, ts_error *err);

#endif
