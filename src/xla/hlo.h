/* xla/hlo.h – what an optimized HLO module says about itself: work, memory traffic, collectives, names.
 *
 * XLA's own cost analysis counts the body of a loop once; here it counts as often as it runs (known_trip_count, or
 * the comparison in the loop's condition). Asynchronous collectives are told by their starts; the lines of a
 * scheduled module are the order in which it runs, so what stands between start and done hides the transfer. Of a
 * module that is not scheduled nothing is said to be hidden.
 */
#ifndef TS_HLO_H
#define TS_HLO_H

#include "base/base.h"

/* The mesh that the program runs on, major axis first: what groups of devices are told by. */
typedef struct ts_hlo_mesh {
    int n; /* at most 8; 0: unknown */
    int64_t size[8];
} ts_hlo_mesh;

typedef struct ts_hlo_collective {
    char op[40];          /* "all-gather", "all-reduce-start" */
    int64_t group;        /* devices of a group; 0 where the text does not say */
    int64_t stride;       /* between the first two of a group; 0: unknown */
    uint16_t axes;        /* a bit for each axis of the mesh that its groups or pairs run along; 0: unknown */
    int64_t shift;        /* of a permute along one axis: i sends to i + shift, −n/2 < shift ≤ n/2; else 0 */
    int64_t sites, count; /* instructions; executions with loops multiplied out */
    int64_t bytes;        /* of the operands of all executions */
    bool asynchronous;    /* it starts, and is done later; or a fusion computes while it travels */
    bool sliced;          /* nothing of the result is read but a slice: an all-reduce that is a reduce-scatter */
    int64_t overlapped, overlapped_bytes; /* of count and bytes: a product stands between start and done */
    char name[120];       /* scope in the model, by its metadata; of the first site */
} ts_hlo_collective;

typedef struct ts_hlo_summary {
    double flops;         /* of dots and convolutions, 2 a multiply-add; elementwise work is not counted */
    double bytes;         /* operands and results in device memory of the instructions that move them */
    ts_hlo_collective *collective; /* one for each of op, axes (else group, stride), shift, asynchronous, sliced */
    size_t n_collective;
    int64_t unknown_loops; /* loops whose count could not be read, taken once */
} ts_hlo_summary;

typedef struct ts_hlo ts_hlo; /* a parsed module; borrows its text */

/* text: an HLO module as xla_dump_to writes it. DATA_LOSS with the line where it is not one. */
TS_MUST_CHECK ts_status ts__hlo_parse(const char *text, size_t n, ts_hlo **out, ts_error *err);
void ts__hlo_free(ts_hlo *h); /* NULL is fine */
/* mesh: NULL where it is not known. */
TS_MUST_CHECK ts_status ts__hlo_summarize(const ts_hlo *h, const ts_hlo_mesh *mesh, ts_hlo_summary *out,
                                          ts_error *err);
void ts__hlo_summary_free(ts_hlo_summary *s);

typedef struct ts_hlo_value {
    int64_t bytes;
    int parameter;   /* number of the entry computation's parameter; −1: another instruction */
    char op[40];     /* "fusion" */
    char name[200];  /* scope and file of the model, with the line; "" where the metadata has none */
    char shape[120]; /* "bf16[8,4096,8192]" */
} ts_hlo_value;
/* The instruction of that name (without %); tuple_index ≥ 0: that element of its result. False: there is none. */
bool ts__hlo_find(const ts_hlo *h, const char *name, size_t n, int tuple_index, ts_hlo_value *out);

#endif
