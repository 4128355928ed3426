/* tests/op/lockstep.h – global arrays on the devices of a mesh and back, for tests of the
 * partitioner.
 *
 * Values are doubles, as in harness.h. What is spread as a partial sum gets random addends that are
 * multiples of 2⁻¹⁰ (integers: integers), as all values here are: their sums are exact in f32, in
 * any order.
 */
#ifndef TS_TEST_LOCKSTEP_H
#define TS_TEST_LOCKSTEP_H

#include "harness.h"
#include "mesh/partition_internal.h"

/* A line of cases_mesh.def. */
typedef struct mesh_line {
    int factors;
    ts_op node; /* whose assignments are tried */
    int (*build)(ts_builder *b, const test_case *c, ts_value **in, ts_value **out); /* NULL: one node */
    test_case c;
} mesh_line;
extern const mesh_line mesh_lines[];
extern const int mesh_line_count;

/* A generator that a test seeds; below: 0 … n−1. */
typedef struct test_random {
    uint64_t state;
} test_random;
uint64_t test_draw(test_random *r);
int test_below(test_random *r, int n);

/* The mesh of one internal axis for each size, in order. */
ts_mesh test_mesh(const int64_t *size, int n);
/* The cpu engine with this many virtual devices, one thread. */
ts_engine *test_lockstep_engine(int devices, ts_error *err);

/* What a line's input holds: multiples of 2⁻¹⁰. */
void test_lockstep_fill(const test_input *in, const ts_type *t, test_random *r, double *out);
/* Any layout; partial sums too where asked. */
ts_spec test_random_spec(test_random *r, const ts_mesh *m, const ts_type *t, bool partial);
/* Device by device (arrays of the local type's elements, freed by test_free_shards). */
void test_spread(test_random *r, const ts_mesh *m, const ts_spec *s, const ts_type *global,
                 const double *x, double **shard);
/* The inverse, partial sums summed; false where devices that hold the same piece differ. */
bool test_assemble(const ts_mesh *m, const ts_spec *s, const ts_type *global, double *const *shard,
                   double *x);
void test_free_shards(double **shard, int devices);

#endif
