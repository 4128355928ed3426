/* train/piece.c – the part of a tensor that one device holds; see piece.h.
 *
 * A piece is at most TS_MAX_RANK ranges. The dimensions behind the last one that is split lie together, in the
 * tensor and in the piece: they are copied as one run.
 * Not here: which dimension an axis splits (mesh/), who moves the bytes (state.c, bound.c).
 */
#include "train/piece.h"

ts_piece ts_piece_of(const ts_mesh *m, const ts_spec *s, const ts_type *global, int skip,
                     int device)
{
    ts_piece p = {.rank = global->rank - skip, .elements = 1, .run = 1};
    ts_type local = m ? ts_spec_local(m, s, global) : *global;
    int64_t offset[TS_MAX_RANK] = {0};
    if (m) ts_spec_offset(m, s, global, device, offset);
    for (int i = 0; i < skip; i++) TS_ASSERT(local.dim[i].size == global->dim[i].size);
    for (int i = 0; i < p.rank; i++) {
        p.global[i] = global->dim[skip + i].size;
        p.local[i] = local.dim[skip + i].size;
        p.offset[i] = offset[skip + i];
        p.elements *= (size_t)p.local[i];
    }
    for (int i = p.rank - 1; i >= 0; i--) {
        p.run *= (size_t)p.local[i];
        if (p.local[i] != p.global[i]) break;
    }
    return p;
}

size_t ts_piece_before(const ts_piece *p, size_t first)
{
    size_t rows = 1, before = 0, inner = p->elements;
    for (int i = 0; i < p->rank; i++) rows *= (size_t)p->global[i];
    if (first >= rows) return p->elements;
    for (int i = 0; i < p->rank; i++) {
        rows /= (size_t)p->global[i];
        inner /= (size_t)p->local[i];
        int64_t at = (int64_t)(first / rows) - p->offset[i];
        first %= rows;
        if (at < 0) return before;
        if (at >= p->local[i]) return before + (size_t)p->local[i] * inner;
        before += (size_t)at * inner;
    }
    return before;
}

size_t ts_piece_place(const ts_piece *p, size_t at)
{
    size_t place = 0, stride = 1;
    for (int i = p->rank - 1; i >= 0; i--) {
        place += (at % (size_t)p->local[i] + (size_t)p->offset[i]) * stride;
        at /= (size_t)p->local[i];
        stride *= (size_t)p->global[i];
    }
    return place;
}

/* Run by run: element *at of the piece stands at *place of the tensor with n behind it; false past the last. */
static bool next_run(const ts_piece *p, size_t *at, size_t end, size_t *place, size_t *n)
{
    if (*at >= end) return false;
    *place = ts_piece_place(p, *at);
    *n = p->run - *at % p->run;
    if (*n > end - *at) *n = end - *at;
    return true;
}

void ts_piece_gather(const ts_piece *p, size_t from, size_t n, size_t element, const void *tensor,
                     size_t first, void *piece)
{
    size_t place, count;
    char *to = piece;
    for (size_t at = from; next_run(p, &at, from + n, &place, &count); at += count) {
        memcpy(to, (const char *)tensor + (place - first) * element, count * element);
        to += count * element;
    }
}

void ts_piece_scatter(const ts_piece *p, size_t from, size_t n, size_t element, const void *piece,
                      void *tensor, size_t first)
{
    size_t place, count;
    const char *of = piece;
    for (size_t at = from; next_run(p, &at, from + n, &place, &count); at += count) {
        memcpy((char *)tensor + (place - first) * element, of, count * element);
        of += count * element;
    }
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
