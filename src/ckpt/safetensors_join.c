/* ckpt/safetensors_join.c – tensors whose boxes lie in several files, as one list of whole tensors.
 *
 * All boxes of a tensor have one size and stand on the grid of that size, so that "covered exactly once" is: as many
 * boxes as the grid has cells, each cell once. A stretch of the whole tensor is one stretch of every box (box.h): each
 * file that has part of it is read once a piece of memory, whatever the split.
 */
#include <stdlib.h>

#include "ckpt/safetensors_internal.h"

enum { SCRATCH = 1 << 20 };

/* ---- joining --------------------------------------------------------------------------------- */

typedef struct entry {
    const ts_tensor *x;
    const ts__tensor_place *place;
    uint64_t cell; /* of the grid, row-major */
} entry;

static int by_name_and_cell(const void *a, const void *b)
{
    const entry *p = a, *q = b;
    int order = strcmp(p->x->name, q->x->name);
    return order ? order : (p->cell > q->cell) - (p->cell < q->cell);
}

/* Cells of the box's grid; false where the box does not stand on it. */
static bool find_cell(const ts_box *b, uint64_t *cell, uint64_t *cells)
{
    *cell = 0;
    *cells = 1; /* bounded by the tensor's elements */
    for (int i = 0; i < b->rank; i++) {
        if (b->global[i] % b->local[i] || b->offset[i] % b->local[i]) return false;
        uint64_t ways = (uint64_t)(b->global[i] / b->local[i]);
        *cell = *cell * ways + (uint64_t)(b->offset[i] / b->local[i]);
        *cells *= ways;
    }
    return true;
}

static bool same_grid(const ts__tensor_place *a, const ts__tensor_place *b)
{
    bool same = a->rank == b->rank && a->box.rank == b->box.rank;
    for (int i = 0; same && i < a->rank; i++) same = a->dim[i] == b->dim[i];
    for (int i = 0; same && i < a->box.rank; i++)
        same = a->box.global[i] == b->box.global[i] && a->box.local[i] == b->box.local[i];
    return same;
}

static ts_status check_cover(const ts_tensors *t, const entry *e, size_t n, const char *name,
                             ts_error *err)
{
    uint64_t cell, cells;
    (void)find_cell(&e->place->box, &cell, &cells);
    for (size_t i = 0; i < n; i++) {
        const char *file = t->path[e[i].x->file];
        if (e[i].x->dtype != e->x->dtype || !same_grid(e->place, e[i].place))
            return TS_ERROR(err, TS_DATA_LOSS,
                            "%s: tensor \"%s\" has another shape, split or dtype in %s than in %s",
                            name, e->x->name, file, t->path[e->x->file]);
        if (i > 0 && e[i].cell == e[i - 1].cell)
            return TS_ERROR(err, TS_DATA_LOSS, "%s: %s and %s hold the same part of tensor \"%s\"",
                            name, t->path[e[i - 1].x->file], file, e->x->name);
    }
    if (n != cells)
        return TS_ERROR(err, TS_DATA_LOSS,
                        "%s: tensor \"%s\" is cut into %llu parts, and %zu of them are there", name,
                        e->x->name, (unsigned long long)cells, n);
    return TS_OK;
}

/* One whole tensor of its n entries, which are sorted. */
static ts_status join_one(ts_tensors *t, const entry *e, size_t n, const char *name, ts_tensor *out,
                          ts_error *err)
{
    TS_TRY(check_cover(t, e, n, name, err));
    struct ts_tensor_part *part = NULL;
    *out = *e->x;
    out->rank = e->place->rank;
    memcpy(out->dim, e->place->dim, sizeof out->dim);
    if (n == 1) return TS_OK; /* it is whole, whatever its shape there */
    size_t bytes = 0;
    if (!ts_mul_size(n, sizeof *part, &bytes)) part = ts_arena_alloc(t->arena, bytes);
    if (!part) return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "%s: out of memory", name);
    for (size_t i = 0; i < n; i++)
        part[i] = (struct ts_tensor_part){e[i].x->file, e[i].x->offset, e[i].place->box};
    out->part = part;
    out->n_part = (int)n;
    out->count = e->x->count * n;
    out->bytes = e->x->bytes * n;
    return TS_OK;
}

static ts_status join_all(ts_tensors *t, entry *e, const char *name, ts_tensor *whole, size_t *n,
                          ts_error *err)
{
    *n = 0;
    qsort(e, t->n, sizeof *e, by_name_and_cell);
    for (size_t i = 0, next; i < t->n; i = next) {
        for (next = i + 1; next < t->n && strcmp(e[i].x->name, e[next].x->name) == 0;) next++;
        TS_TRY(join_one(t, e + i, next - i, name, &whole[(*n)++], err));
    }
    return TS_OK;
}

ts_status ts__tensors_join(ts_tensors *t, const ts__tensor_place *place, const char *name,
                           ts_error *err)
{
    size_t bytes, n = 0;
    uint64_t cells;
    entry *e = ts_mul_size(t->n + 1, sizeof *e, &bytes) ? NULL : ts_alloc(bytes);
    ts_tensor *whole = ts_mul_size(t->n + 1, sizeof *whole, &bytes) ? NULL : ts_alloc(bytes);
    ts_status status = e && whole ? TS_OK
                                  : TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "%s: out of memory", name);
    for (size_t i = 0; i < t->n && status == TS_OK; i++) {
        e[i] = (entry){.x = &t->tensor[i], .place = &place[i]};
        if (e[i].x->count != place[i].box.elements || !find_cell(&place[i].box, &e[i].cell, &cells))
            status = TS_ERROR(err, TS_DATA_LOSS,
                              "%s: the part of tensor \"%s\" in %s stands on no even split", name,
                              e[i].x->name, t->path[e[i].x->file]);
    }
    if (status == TS_OK) status = join_all(t, e, name, whole, &n, err);
    if (status == TS_OK) {
        ts_free(t->tensor);
        t->tensor = whole;
        t->capacity = t->n + 1;
        t->n = n;
    } else {
        ts_free(whole);
    }
    ts_free(e);
    return status;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* What part p has of elements first … first + n − 1 into `to`, through scratch of SCRATCH bytes. */
static ts_status read_part(ts_tensors *t, const struct ts_tensor_part *p, uint64_t first, size_t n,
                           size_t element, void *to, void *scratch, ts_error *err)
{
    size_t from = ts_box_before(&p->box, (size_t)first);
    size_t end = ts_box_before(&p->box, (size_t)first + n);
    if (p->box.run == p->box.elements && from < end) {
        char *at = (char *)to + (ts_box_place(&p->box, from) - first) * element;
        return ts__tensors_read_file(t, p->file, p->offset + from * element, at,
                                     (end - from) * element, err);
    }
    for (size_t at = from, count; at < end; at += count) {
        count = end - at < SCRATCH / element ? end - at : SCRATCH / element;
        TS_TRY(ts__tensors_read_file(t, p->file, p->offset + at * element, scratch,
                                     count * element, err));
        ts_box_scatter(&p->box, at, count, element, scratch, to, (size_t)first);
    }
    return TS_OK;
}

ts_status ts__tensors_read_parts(ts_tensors *t, const ts_tensor *x, uint64_t first, void *to,
                                 size_t n, size_t element, ts_error *err)
{
    void *scratch = ts_alloc(SCRATCH);
    if (!scratch) return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "out of memory for 1 MiB");
    ts_status status = TS_OK;
    for (int i = 0; i < x->n_part && status == TS_OK; i++)
        status = read_part(t, &x->part[i], first, n, element, to, scratch, err);
    ts_free(scratch);
    return status;
}
