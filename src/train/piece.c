/* train/piece.c – the part of a tensor that one device holds; see piece.h.
 *
 * Not here: what is done with a box (base/box.c), which dimension an axis splits (mesh/), who moves the bytes
 * (state.c, bound.c).
 */
#include "train/piece.h"

ts_piece ts_piece_of(const ts_mesh *m, const ts_spec *s, const ts_type *global, int skip,
                     int device)
{
    ts_piece p = {.rank = global->rank - skip};
    ts_type local = m ? ts_spec_local(m, s, global) : *global;
    int64_t offset[TS_MAX_RANK] = {0};
    if (m) ts_spec_offset(m, s, global, device, offset);
    for (int i = 0; i < skip; i++) TS_ASSERT(local.dim[i].size == global->dim[i].size);
    for (int i = 0; i < p.rank; i++) {
        p.global[i] = global->dim[skip + i].size;
        p.local[i] = local.dim[skip + i].size;
        p.offset[i] = offset[skip + i];
    }
    TS_ASSERT(ts_box_finish(&p));
    return p;
}

/* Devices hold the same piece where they differ along axes only that do not split the value. */
int ts_piece_home(const ts_mesh *m, const ts_spec *s, int device, int *replica)
{
    uint16_t split = ts_spec_axes(s);
    int64_t coordinate[TS_MAX_AXES];
    int home = 0;
    *replica = 0;
    ts_mesh_coordinates(m, device, coordinate);
    for (int i = 0; i < m->n; i++) {
        bool splits = split >> i & 1;
        home = home * (int)m->axis[i].size + (splits ? (int)coordinate[i] : 0);
        if (!splits) *replica = *replica * (int)m->axis[i].size + (int)coordinate[i];
    }
    return home;
}
