/* xla/hlo_internal.h – a parsed HLO module, between hlo.c (the text) and the sums (hlo_cost.c, hlo_collective.c).
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
    bool scheduled; /* the lines of a computation are the order in which it runs */
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

/* What is known of a computation while a module is summed up. */
typedef struct hlo_visit {
    double runs;       /* of this computation in one execution of the module */
    double async;      /* of these: begun by a start, with a done behind */
    double overlapped; /* of these: with a product in between */
    bool fused;        /* inside a fusion: its instructions touch no memory */
    bool product;      /* a dot or convolution is in it, or in what it calls */
    int64_t *read;     /* bytes it reads of each parameter, by number; [n_read] */
    int n_read;
    int64_t written;
} hlo_visit;

typedef struct hlo_walk {
    const ts_hlo *h;
    const ts_hlo_mesh *mesh; /* NULL: unknown */
    ts_arena *arena;
    hlo_visit *visit; /* [n_computation] */
    ts_hlo_summary *out;
    size_t capacity;
    ts_error *err;
} hlo_walk;

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


/* ---- hlo_cost.c ---- */

/* The computation that attribute key of x names; −1. */
int ts__hlo_callee(const hlo_walk *w, const hlo_instruction *x, const char *key);
/* Bytes that x reads of its operand i, once its callees were measured. */
int64_t ts__hlo_reads(const hlo_walk *w, const hlo_instruction *x, int i);
/* Clipped, not wrapped: a text can ask for any number of executions. */
int64_t ts__hlo_times(double runs, int64_t n);
int64_t ts__hlo_plus(int64_t a, int64_t b);

/* ---- hlo_collective.c ---- */

/* Marks the computations that have products; all of them, before anything is visited. */
void ts__hlo_mark_products(hlo_walk *w);
/* Is a product computed between this start and its done? */
bool ts__hlo_overlapped(const hlo_walk *w, const hlo_instruction *start);
/* A fusion that starts a collective, by libtpu's name for it: its end is another fusion. */
bool ts__hlo_starts_fusion(const hlo_instruction *x);
/* Adds x to the summary if it is a collective. */
TS_MUST_CHECK ts_status ts__hlo_add_collective(hlo_walk *w, const hlo_instruction *x, const hlo_visit *v);
/* The axes of the mesh that x's groups, or a permute's pairs, run along, and its shift. */
uint16_t ts__hlo_axes(const ts_hlo_mesh *m, const hlo_instruction *x, int64_t *shift);
/* Size of a group and distance of its first two devices; 0 where the text does not say. */
void ts__hlo_group(const hlo_instruction *x, int64_t *size, int64_t *stride);

#endif
