/* token/kind.h – what a kind of vocabulary provides; inside src/token only.
 *
 * A tokenizer is a struct that begins with ts_tokenizer; its kind is one constant table. Ids passed
 * to a kind are inside the vocabulary: tokenizer.c has checked them.
 */
#ifndef TS_TOKEN_KIND_H
#define TS_TOKEN_KIND_H

#include "token/tokenizer.h"

typedef struct ts__tokenizer_kind {
    const char *type;
    bool bytewise;
    ts_status (*encode_some)(const ts_tokenizer *t, const char *text, size_t n, bool last,
                             ts_tokens *out, size_t *used, ts_error *err);
    /* The bytes of one id that is not special; borrowed until the tokenizer is freed. */
    const char *(*bytes_of)(const ts_tokenizer *t, int32_t id, size_t *n);
    /* The name of a special id, or NULL. */
    const char *(*special_name)(const ts_tokenizer *t, int32_t id);
    void (*free)(ts_tokenizer *t);
} ts__tokenizer_kind;

struct ts_tokenizer {
    const ts__tokenizer_kind *kind;
    int32_t vocab_size, bos, eos, pad; /* −1: none */
    uint64_t fingerprint;
};

#endif
