/* ir/parse_text.h – the words of a graph's text, for parse.c: position, tokens, one error. */
#ifndef TS_PARSE_TEXT_H
#define TS_PARSE_TEXT_H

#include "ir/graph.h"

typedef struct ts_scan {
    const char *text;
    size_t n, at;
    ts_arena *arena; /* strings go here */
    ts_error *err;
    bool failed;
} ts_scan;

enum { TS_WORD_MAX = 64 };

/* Every function returns false after a mistake, which it has then reported with line and column. */
bool ts__scan_fail(ts_scan *s, const char *fmt, ...) TS_PRINTF(2, 3);
bool ts__scan_memory(ts_scan *s); /* reports that memory is out */
/* True, and past it, when the next token is this character or word. */
bool ts__scan_accept(ts_scan *s, char c);
bool ts__scan_accept_word(ts_scan *s, const char *word);
bool ts__scan_expect(ts_scan *s, char c);
bool ts__scan_expect_word(ts_scan *s, const char *word);
bool ts__scan_word(ts_scan *s, char word[TS_WORD_MAX]);
bool ts__scan_int(ts_scan *s, int64_t *v);
bool ts__scan_int_in(ts_scan *s, int64_t low, int64_t high, int64_t *v);
bool ts__scan_real(ts_scan *s, double *v);
bool ts__scan_string(ts_scan *s, const char **v);
bool ts__scan_name(ts_scan *s, const char **name); /* a word or a string */
bool ts__scan_dtype(ts_scan *s, ts_dtype *t);
bool ts__scan_dims(ts_scan *s, ts_shape *shape); /* [embed:8,4] */
bool ts__scan_ints(ts_scan *s, ts_dims *d);      /* [1,2] */
bool ts__scan_type(ts_scan *s, ts_type *t);

#endif
