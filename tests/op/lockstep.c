/* tests/op/lockstep.c – spreads, runs and puts together again (lockstep.h). */
#include "lockstep.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static void *must(size_t n, size_t size)
{
    void *p = calloc(n ? n : 1, size);
    if (!p) abort();
    return p;
}

static size_t count(const ts_type *t)
{
    return (size_t)ts_type_elements(t);
}

/* ---- values ---------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t z)
{
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

uint64_t test_draw(test_random *r)
{
    return mix(r->state += 0x9e3779b97f4a7c15u);
}

int test_below(test_random *r, int n)
{
    return (int)(test_draw(r) % (uint64_t)n);
}

/* A multiple of 2⁻¹⁰ in [low, high). */
static double quantum(uint64_t bits, double low, double high)
{
    return floor((low + (high - low) * (double)(bits >> 11) * 0x1p-53) * 1024) / 1024;
}

void test_lockstep_fill(const test_input *in, const ts_type *t, test_random *r, double *out)
{
    const bool real = t->dtype == TS_F32 || t->dtype == TS_BF16;
    const int64_t last = t->rank ? t->dim[t->rank - 1].size : 1;
    for (size_t i = 0; i < count(t); i++) {
        double v;
        switch (in->fill) {
        case FILL_POSITIVE: v = quantum(test_draw(r), 0.5, 2.5); break;
        case FILL_RANGE: v = quantum(test_draw(r), in->low, in->high); break;
        case FILL_VALUE: v = floor(in->low * 1024) / 1024; break;
        case FILL_SEGMENTS: v = floor((double)((int64_t)i % last * 3) / (double)last); break;
        case FILL_HUGE: v = (double)(test_draw(r) >> 32) - (t->dtype == TS_I32 ? 0x1p31 : 0); break;
        default: v = real ? quantum(test_draw(r), -2, 2) : (double)test_below(r, 41) - 20; break;
        }
        if (t->dtype == TS_PRED)
            v = floor(v) != 0;
        else if (t->dtype == TS_U32)
            v = fabs(floor(v));
        else if (t->dtype == TS_I32)
            v = floor(v);
        out[i] = v;
    }
}

/* ---- layouts --------------------------------------------------------------------------------- */

ts_mesh test_mesh(const int64_t *size, int n)
{
    ts_mesh m = {.n = n, .devices = 1, .user = {1, 1, 1}};
    for (int a = 0; a < n; a++) {
        m.axis[a].name[0] = (char)('a' + a);
        m.axis[a].size = size[a];
        m.devices *= (int)size[a];
    }
    m.user[TS_AXIS_DATA] = m.devices;
    return m;
}

ts_spec test_random_spec(test_random *r, const ts_mesh *m, const ts_type *t, bool partial)
{
    ts_spec s = ts_spec_whole(t->rank);
    const int first = test_below(r, m->n), step = m->n == 2 ? 1 : 1 + test_below(r, m->n - 1);
    for (int i = 0; i < m->n; i++) {
        /* 2 and 3 axes: every order of them comes up */
        const int a = (first + i * step) % m->n, d = test_below(r, t->rank + 1 + (partial ? 1 : 0));
        if (d == t->rank + 1) s.partial |= (uint16_t)(1u << a);
        if (d >= t->rank || t->dim[d].size % (ts_spec_ways(m, &s, d) * m->axis[a].size)) continue;
        s.axis[d][s.n[d]++] = (uint8_t)a;
    }
    return s;
}

/* Element i of a local piece at these offsets, as an index of the global array. */
static size_t global_index(const ts_type *global, const ts_type *local, const int64_t *offset,
                           size_t i)
{
    size_t at = 0, stride = 1;
    for (int d = local->rank - 1; d >= 0; d--) {
        const size_t k = i % (size_t)local->dim[d].size;
        i /= (size_t)local->dim[d].size;
        at += ((size_t)offset[d] + k) * stride;
        stride *= (size_t)global->dim[d].size;
    }
    return at;
}

/* The device with coordinate `at` on axis a, else where device stands. */
static int moved(const ts_mesh *m, int device, int a, int64_t at)
{
    int64_t c[TS_MAX_AXES];
    int to = 0;
    ts_mesh_coordinates(m, device, c);
    c[a] = at;
    for (int k = 0; k < m->n; k++) to = to * (int)m->axis[k].size + (int)c[k];
    return to;
}

/* The device that stands for all that hold the same: 0 on every axis that neither splits nor
 * sums. */
static int holder(const ts_mesh *m, const ts_spec *s, int device)
{
    for (int a = 0; a < m->n; a++)
        if (!((ts_spec_axes(s) | s->partial) >> a & 1)) device = moved(m, device, a, 0);
    return device;
}

void test_spread(test_random *r, const ts_mesh *m, const ts_spec *s, const ts_type *global,
                 const double *x, double **shard)
{
    const ts_type local = ts_spec_local(m, s, global);
    const uint64_t seed = test_draw(r);
    int64_t offset[TS_MAX_RANK];
    for (int d = 0; d < m->devices; d++) {
        shard[d] = must(count(&local), sizeof(double));
        ts_spec_offset(m, s, global, d, offset);
        for (size_t i = 0; i < count(&local); i++)
            shard[d][i] = x[global_index(global, &local, offset, i)];
    }
    for (int a = 0; a < m->n; a++) {
        if (!(s->partial >> a & 1)) continue;
        for (int d = 0; d < m->devices; d++) {
            const int first = moved(m, d, a, 0), same = holder(m, s, d);
            if (d == first) continue;
            for (size_t i = 0; i < count(&local); i++) {
                double addend = quantum(mix(seed ^ (uint64_t)(same * 8 + a) << 32 ^ i), -2, 2);
                if (global->dtype == TS_I32) addend = floor(addend * 8);
                shard[d][i] = addend;
                shard[first][i] -= addend;
            }
        }
    }
}

bool test_assemble(const ts_mesh *m, const ts_spec *s, const ts_type *global, double *const *shard,
                   double *x)
{
    const ts_type local = ts_spec_local(m, s, global);
    bool alike = true;
    memset(x, 0, count(global) * sizeof *x);
    for (int d = 0; d < m->devices; d++) {
        const int same = holder(m, s, d);
        int64_t offset[TS_MAX_RANK];
        ts_spec_offset(m, s, global, d, offset);
        if (same != d)
            alike &= !memcmp(shard[d], shard[same], count(&local) * sizeof(double));
        else
            for (size_t i = 0; i < count(&local); i++)
                x[global_index(global, &local, offset, i)] += shard[d][i];
    }
    return alike;
}

void test_free_shards(double **shard, int devices)
{
    for (int d = 0; d < devices; d++) free(shard[d]);
}

/* ---- execution ------------------------------------------------------------------------------- */

ts_engine *test_lockstep_engine(int devices, ts_error *err)
{
    const ts_engine_options o = {
        .struct_size = sizeof o, .name = "cpu", .devices = devices, .threads = 1};
    ts_engine *e = NULL;
    return ts_engine_open(&o, &e, err) == TS_OK ? e : NULL;
}
