/* xla/hlo_internal.h – a parsed HLO module, between hlo.c (the text) and hlo_cost.c (the sums).
 *
 * An instruction refers only to instructions above it in its computation, and to computations above its own: the
 * parser refuses anything else, so nothing that walks a module needs recursion or can go round in circles.
 */
#ifndef TS_HLO_INTERNAL_H
#define TS_HLO_INTERNAL_H

#include "xla/hlo.h"

typedef struct slice {
    const char *p;
    size_t n;
} slice;

typedef struct hlo_shape { /* an array, or a tuple of n_child shapes */
    int64_t bytes;         /* of a tuple: of all its arrays */
    int64_t local;         /* of these: in on-chip memory */
    int rank, n_child;
    bool tuple;
    char dtype[12];
    int64_t *dim;
    const struct hlo_shape **child;
} hlo_shape;

typedef struct hlo_operand {
    int instruction; /* index in the module; −1: a literal */
    const hlo_shape *shape;
} hlo_operand;

typedef struct hlo_instruction {
    slice name, op, args, attrs;
    const hlo_shape *shape;
    hlo_operand *in;
    int n_in;
    int number;      /* parameter(number); −1 */
    int computation; /* that it stands in */
} hlo_instruction;

typedef struct hlo_computation {
    slice name;
    int first, count, root; /* root: index in the module */
} hlo_computation;

typedef struct hlo_location {
    int64_t file, line; /* number of a file name; a line of it, 0: unknown */
} hlo_location;

struct ts_hlo {
    ts_arena *arena;
    /* Tables at the head of newer texts, numbered from 1: file names, places in them, frames → places. */
    slice *file;
    hlo_location *location;
    int64_t *frame;
    int n_file, cap_file, n_location, cap_location, n_frame, cap_frame;
    hlo_instruction *instruction;
    hlo_computation *computation;
    int n_instruction, cap_instruction, n_computation, cap_computation, entry;
    int *table; /* open addressing: instruction + 1; 0 empty */
    size_t table_size;
};

static inline bool hlo_is(slice s, const char *word)
{
    return s.n == strlen(word) && memcmp(s.p, word, s.n) == 0;
}
/* The value of attribute key of an instruction: up to the next comma outside of brackets. False: it has none. */
bool ts__hlo_attr(const hlo_instruction *x, const char *key, slice *out);
/* Of that name above computation `below`; −1. */
int ts__hlo_computation(const ts_hlo *h, slice name, int below);
/* The next element of a list "{a, b}" or "a"; false behind the last. at: 0 at first. */
bool ts__hlo_element(slice list, size_t *at, slice *out);
/* The number behind "key=" in {key=1 other=2}; 0 where it is not there. */
int64_t ts__hlo_field(slice s, const char *key);
/* A whole number at the front; false: there is none. */
bool ts__hlo_int(slice s, int64_t *out);
/* Scope, file and line of an instruction's metadata into buf; "" where it has none. */
void ts__hlo_scope(const ts_hlo *h, const hlo_instruction *x, char *buf, size_t n);

#endif
