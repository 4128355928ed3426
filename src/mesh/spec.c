/* mesh/spec.c – how a tensor lies on a mesh: sizes, offsets and owners of the devices' pieces.
 *
 * The axes of a dimension are digits of the piece's number, the major one first, and pieces are
 * equal: a spec whose product of axes does not divide the dimension is a programmer's mistake. Not
 * here: which spec a value gets (rules.c, the partitioner).
 */
#include <stdio.h>

#include "mesh/mesh.h"

ts_spec ts_spec_whole(int rank)
{
    TS_ASSERT(rank >= 0 && rank <= TS_MAX_RANK);
    return (ts_spec){.rank = (uint8_t)rank};
}

bool ts_spec_same(const ts_spec *a, const ts_spec *b)
{
    if (a->rank != b->rank || a->partial != b->partial) return false;
    for (int d = 0; d < a->rank; d++)
        if (a->n[d] != b->n[d] || memcmp(a->axis[d], b->axis[d], a->n[d])) return false;
    return true;
}

uint16_t ts_spec_axes(const ts_spec *s)
{
    uint16_t axes = 0;
    for (int d = 0; d < s->rank; d++)
        for (int k = 0; k < s->n[d]; k++) axes |= (uint16_t)(1u << s->axis[d][k]);
    return axes;
}

int64_t ts_spec_ways(const ts_mesh *m, const ts_spec *s, int dim)
{
    int64_t ways = 1;
    TS_ASSERT(dim >= 0 && dim < s->rank);
    for (int k = 0; k < s->n[dim]; k++) {
        TS_ASSERT(s->axis[dim][k] < m->n);
        ways *= m->axis[s->axis[dim][k]].size; /* each axis once: ≤ devices */
    }
    return ways;
}

int64_t ts_spec_pieces(const ts_mesh *m, const ts_spec *s)
{
    int64_t pieces = 1;
    for (int d = 0; d < s->rank; d++) pieces *= ts_spec_ways(m, s, d);
    return pieces;
}

ts_type ts_spec_local(const ts_mesh *m, const ts_spec *s, const ts_type *global)
{
    ts_type t = *global;
    TS_ASSERT(s->rank == t.rank);
    for (int d = 0; d < t.rank; d++) {
        int64_t ways = ts_spec_ways(m, s, d);
        TS_ASSERT(t.dim[d].size % ways == 0);
        t.dim[d].size /= ways;
    }
    return t;
}

void ts_spec_offset(const ts_mesh *m, const ts_spec *s, const ts_type *global, int device,
                    int64_t offset[TS_MAX_RANK])
{
    int64_t at[TS_MAX_AXES];
    ts_type local = ts_spec_local(m, s, global);
    ts_mesh_coordinates(m, device, at);
    for (int d = 0; d < local.rank; d++) {
        int64_t piece = 0;
        for (int k = 0; k < s->n[d]; k++)
            piece = piece * m->axis[s->axis[d][k]].size + at[s->axis[d][k]];
        offset[d] = piece * local.dim[d].size;
    }
}

bool ts_spec_owner(const ts_mesh *m, const ts_spec *s, int device)
{
    int64_t at[TS_MAX_AXES];
    const uint16_t split = ts_spec_axes(s);
    ts_mesh_coordinates(m, device, at);
    for (int a = 0; a < m->n; a++)
        if (!(split >> a & 1) && at[a]) return false;
    return true;
}

char *ts_spec_text(const ts_mesh *m, const ts_spec *s, char *buf, size_t n)
{
    size_t k = 0;
#define ADD(...) (k < n ? k += (size_t)snprintf(buf + k, n - k, __VA_ARGS__) : k)
    ADD("[");
    for (int d = 0; d < s->rank; d++) {
        ADD("%s%s", d ? "," : "", s->n[d] ? "" : "–");
        for (int i = 0; i < s->n[d]; i++) ADD("%s%s", i ? " " : "", m->axis[s->axis[d][i]].name);
    }
    ADD("]");
    if (s->partial) {
        const char *sep = " partial(";
        for (int a = 0; a < m->n; a++) {
            if (!(s->partial >> a & 1)) continue;
            ADD("%s%s", sep, m->axis[a].name);
            sep = " ";
        }
        ADD(")");
    }
#undef ADD
    return buf;
}
