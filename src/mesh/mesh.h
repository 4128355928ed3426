/* mesh/mesh.h – the mesh of devices, and how a tensor lies on it.
 *
 * A user names axes: data, fsdp, tensor. They are factored into *internal* axes, at most TS_MAX_AXES, by the
 * dimensions of the torus (a collective over one internal axis stays on one torus dimension) and by head counts (a
 * dimension of K heads takes as many tensor axes as divide it). Internal axes are ordered major first; axes of size 1
 * are left out. Device number = row-major index of its coordinates.
 *
 * A *spec* says of a value, dimension by dimension, which internal axes split it (major to minor), and over which axes
 * it is an unsummed partial sum. Invariants: an axis occurs at most once in a spec, partial included; the product of a
 * dimension's axes divides it; axes join or leave a dimension at its minor end only.
 */
#ifndef TS_MESH_H
#define TS_MESH_H

#include "ir/graph.h"

typedef enum ts_user_axis { TS_AXIS_DATA, TS_AXIS_FSDP, TS_AXIS_TENSOR, TS_USER_AXES } ts_user_axis;
extern const char *const ts_user_axis_names[TS_USER_AXES]; /* "data", "fsdp", "tensor" */

typedef struct ts_mesh_options {
    int64_t user[TS_USER_AXES];  /* ≥ 1 */
    int n_torus;                 /* 0: no torus */
    int64_t torus[TS_MAX_RANK];  /* major first; the product is the number of devices */
    int n_heads;                 /* pairs of (kv heads, group) that the model's layers have; 0: none */
    int64_t kv_heads[8], group[8];
} ts_mesh_options;

typedef struct ts_mesh {
    int n, devices; /* internal axes; the product of their sizes */
    struct {
        char name[16]; /* "fsdp"; "fsdp0", "fsdp1" where the user's axis has several */
        int64_t size;
        ts_user_axis user;
    } axis[TS_MAX_AXES];
    int64_t user[TS_USER_AXES]; /* sizes as the user gave them */
    ts_mesh_options from;
} ts_mesh;

/* INVALID_ARGUMENT where a size is below 1, or more than TS_MAX_AXES internal axes would be needed. */
TS_MUST_CHECK ts_status ts_mesh_make(const ts_mesh_options *o, ts_mesh *out, ts_error *err);
/* coordinate [mesh->n] of a device. */
void ts_mesh_coordinates(const ts_mesh *m, int device, int64_t *coordinate);
/* "data=1, fsdp=4, tensor=4" (users' axes) into buf; returns buf. */
char *ts_mesh_text(const ts_mesh *m, char *buf, size_t n);

/* ---- specs ----------------------------------------------------------------------------------- */

typedef struct ts_spec {
    uint8_t rank, n[TS_MAX_RANK], axis[TS_MAX_RANK][TS_MAX_AXES]; /* per dimension: its axes, major → minor */
    uint16_t partial;                                             /* a bit an axis */
} ts_spec;

ts_spec ts_spec_whole(int rank);
bool ts_spec_same(const ts_spec *a, const ts_spec *b);
uint16_t ts_spec_axes(const ts_spec *s); /* the axes that split a dimension, as bits */
/* Pieces that dimension dim is cut into; and all dimensions together. */
int64_t ts_spec_ways(const ts_mesh *m, const ts_spec *s, int dim);
int64_t ts_spec_pieces(const ts_mesh *m, const ts_spec *s);
/* The longest prefix of axes (n of them) whose product divides size. */
int ts_mesh_fit(const ts_mesh *m, int64_t size, const uint8_t *axes, int n);
/* One device's part of a global type. */
ts_type ts_spec_local(const ts_mesh *m, const ts_spec *s, const ts_type *global);
/* Where a device's piece begins in the global tensor, in elements of each dimension. */
void ts_spec_offset(const ts_mesh *m, const ts_spec *s, const ts_type *global, int device,
                    int64_t offset[TS_MAX_RANK]);
/* Is the device at index 0 of every axis that does not split the value? Those hold each element exactly once. */
bool ts_spec_owner(const ts_mesh *m, const ts_spec *s, int device);
/* "[data fsdp,–,tensor] partial(fsdp)" into buf; returns buf. */
char *ts_spec_text(const ts_mesh *m, const ts_spec *s, char *buf, size_t n);

/* ---- logical axes ---------------------------------------------------------------------------- */

/* Which users' axes a logical name takes, in that order; names without a rule stay whole. The first rule of a name
 * counts. */
typedef struct ts_axis_rule {
    char name[24];
    int n;
    ts_user_axis axis[TS_USER_AXES];
} ts_axis_rule;
typedef struct ts_axis_rules {
    int n;
    ts_axis_rule rule[16];
} ts_axis_rules;

/* batch: data, fsdp; sequence, kv_heads, group, mlp, vocab: tensor; embed: fsdp; norm: none.
 *   batch, sequence            of the residual stream and of what comes from it
 *   kv_heads, group, mlp, vocab  of parameters and of what they make
 *   embed                      of matrices as they are stored; gathered where they are used
 *   norm                       of parameters of rank 1 */
extern const ts_axis_rules ts_axis_rules_default;

/* The spec of a value of this type whose dimensions have these logical names (NULL: whole). Each dimension takes the
 * longest prefix of its rule's axes, less those an earlier dimension took, that divides it. *lost (may be NULL) gets
 * the axes that a rule asked for and no dimension took. */
ts_spec ts_rules_spec(const ts_mesh *m, const ts_axis_rules *r, const char *const *name,
                      const ts_type *type, uint16_t *lost);

#endif
