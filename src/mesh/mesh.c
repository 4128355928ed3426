/* mesh/mesh.c – from the axes that a user names to internal axes.
 *
 * Users' axes lie in the order data, fsdp, tensor over the device numbers, tensor fastest. Each is
 * cut where a dimension of the torus ends, so that a collective over one internal axis stays on one
 * torus dimension, and tensor is cut where a model's heads want it: first what divides the kv
 * heads, then what divides their group, then the rest. A cut is a product of the axis's major part.
 * The cuts of one axis form a chain of divisors, heads' before the torus's: one that does not fit
 * the chain is left out, and costs a hop more, or a dimension that is split less far.
 *
 * Not here: how a tensor lies on the mesh (spec.c), logical names (rules.c).
 */
#include "mesh/mesh.h"

#include <inttypes.h>
#include <stdio.h>

/* As many as a graph may have (ir/verify.c). */
#define MAX_DEVICES ((int64_t)1 << 20)
enum { MAX_CUTS = 32 };

const char *const ts_user_axis_names[TS_USER_AXES] = {"data", "fsdp", "tensor"};

/* Products of the major part of one axis, each a divisor of the next; 1 and the size itself are not
 * listed. */
typedef struct chain {
    int64_t size, at[MAX_CUTS];
    int n;
} chain;

static int64_t gcd(int64_t a, int64_t b)
{
    while (b) {
        int64_t c = a % b;
        a = b;
        b = c;
    }
    return a;
}

static void chain_cut(chain *c, int64_t at)
{
    int i = 0;
    if (at <= 1 || at >= c->size || c->size % at || c->n == MAX_CUTS) return;
    for (int k = 0; k < c->n; k++) {
        if (c->at[k] == at || (c->at[k] % at && at % c->at[k])) return;
        if (c->at[k] < at) i = k + 1;
    }
    memmove(c->at + i + 1, c->at + i, (size_t)(c->n++ - i) * sizeof *c->at);
    c->at[i] = at;
}

static void cut_by_heads(const ts_mesh_options *o, chain *c)
{
    for (int i = 0; i < o->n_heads; i++) {
        int64_t k = gcd(c->size, o->kv_heads[i]), g = gcd(c->size / k, o->group[i]);
        chain_cut(c, k);
        chain_cut(c, k * g);
    }
}

/* The axis covers the device numbers' products from lo (everything minor to it) to lo · size. */
static void cut_by_torus(const ts_mesh_options *o, chain *c, int64_t lo)
{
    int64_t hi = lo * c->size, end = 1; /* end: where a torus dimension ends, from the minor side */
    for (int i = o->n_torus - 1; i >= 0; i--) {
        end *= o->torus[i];
        if (end > lo && end < hi && end % lo == 0 && hi % end == 0) chain_cut(c, hi / end);
    }
}

static ts_status check_options(const ts_mesh_options *o, int64_t *devices, ts_error *err)
{
    *devices = 1;
    for (int u = 0; u < TS_USER_AXES; u++) {
        if (o->user[u] < 1)
            return TS_ERROR(err, TS_INVALID_ARGUMENT,
                            "mesh axis %s is %" PRId64 "; expected at least 1",
                            ts_user_axis_names[u], o->user[u]);
        if (ts_mul_i64(*devices, o->user[u], devices) || *devices > MAX_DEVICES)
            return TS_ERROR(err, TS_INVALID_ARGUMENT,
                            "data=%" PRId64 ", fsdp=%" PRId64 ", tensor=%" PRId64
                            " is more than %" PRId64 " devices",
                            o->user[TS_AXIS_DATA], o->user[TS_AXIS_FSDP], o->user[TS_AXIS_TENSOR],
                            (int64_t)MAX_DEVICES);
    }
    TS_ASSERT(o->n_torus >= 0 && o->n_torus <= TS_MAX_RANK && o->n_heads >= 0 && o->n_heads <= 8);
    for (int i = 0; i < o->n_heads; i++)
        if (o->kv_heads[i] < 1 || o->group[i] < 1)
            return TS_ERROR(err, TS_INVALID_ARGUMENT,
                            "%" PRId64 " kv heads in groups of %" PRId64
                            "; expected at least 1 of each",
                            o->kv_heads[i], o->group[i]);
    int64_t chips = 1;
    for (int i = 0; i < o->n_torus; i++)
        if (o->torus[i] < 1 || ts_mul_i64(chips, o->torus[i], &chips))
            return TS_ERROR(err, TS_INVALID_ARGUMENT,
                            "dimension %d of the torus is %" PRId64 "; expected at least 1", i,
                            o->torus[i]);
    if (o->n_torus && chips != *devices)
        return TS_ERROR(err, TS_INVALID_ARGUMENT,
                        "data=%" PRId64 ", fsdp=%" PRId64 ", tensor=%" PRId64 " is %" PRId64
                        " devices, the torus has %" PRId64 "; they must be equal",
                        o->user[TS_AXIS_DATA], o->user[TS_AXIS_FSDP], o->user[TS_AXIS_TENSOR],
                        *devices, chips);
    return TS_OK;
}

/* Appends the internal axes of a chain; counts on where there is no room. */
static int add_axes(ts_mesh *m, int n, const chain *c, ts_user_axis user)
{
    int64_t before = 1;
    for (int k = 0; k <= c->n && c->size > 1; k++, n++) {
        int64_t at = k < c->n ? c->at[k] : c->size;
        if (n < TS_MAX_AXES) {
            m->axis[n].user = user;
            m->axis[n].size = at / before;
            if (!c->n)
                snprintf(m->axis[n].name, sizeof m->axis[n].name, "%s", ts_user_axis_names[user]);
            else
                snprintf(m->axis[n].name, sizeof m->axis[n].name, "%s%d", ts_user_axis_names[user],
                         k);
        }
        before = at;
    }
    return n;
}

ts_status ts_mesh_make(const ts_mesh_options *o, ts_mesh *out, ts_error *err)
{
    ts_mesh m = {.from = *o};
    int64_t devices, lo;
    int n = 0;
    TS_TRY(check_options(o, &devices, err));
    lo = devices;
    for (int u = 0; u < TS_USER_AXES; u++) {
        chain c = {.size = o->user[u]};
        lo /= c.size;
        if (u == TS_AXIS_TENSOR) cut_by_heads(o, &c);
        cut_by_torus(o, &c, lo);
        n = add_axes(&m, n, &c, (ts_user_axis)u);
        m.user[u] = o->user[u];
    }
    if (n > TS_MAX_AXES) {
        char text[96], sizes[128] = "";
        for (size_t i = 0, k = 0; i < TS_MAX_AXES && k < sizeof sizes; i++)
            k += (size_t)snprintf(sizes + k, sizeof sizes - k, "%s%s %" PRId64, i ? ", " : "",
                                  m.axis[i].name, m.axis[i].size);
        return TS_ERROR(
            err, TS_INVALID_ARGUMENT,
            "%s is cut into %d axes (%s, …) by the torus and the model's heads; at most %d are "
            "possible; make the axes of the mesh fit the dimensions of the torus",
            ts_mesh_text(&m, text, sizeof text), n, sizes, TS_MAX_AXES);
    }
    m.n = n;
    m.devices = (int)devices;
    *out = m;
    return TS_OK;
}

void ts_mesh_coordinates(const ts_mesh *m, int device, int64_t *coordinate)
{
    int64_t rest = device;
    for (int a = m->n - 1; a >= 0; a--) {
        coordinate[a] = rest % m->axis[a].size;
        rest /= m->axis[a].size;
    }
}

char *ts_mesh_text(const ts_mesh *m, char *buf, size_t n)
{
    snprintf(buf, n, "data=%" PRId64 ", fsdp=%" PRId64 ", tensor=%" PRId64, m->user[TS_AXIS_DATA],
             m->user[TS_AXIS_FSDP], m->user[TS_AXIS_TENSOR]);
    return buf;
}

int ts_mesh_fit(const ts_mesh *m, int64_t size, const uint8_t *axes, int n)
{
    int64_t product = 1;
    for (int k = 0; k < n; k++) {
        TS_ASSERT(axes[k] < m->n);
        product *= m->axis[axes[k]].size; /* ≤ devices */
        if (size % product) return k;
    }
    return n;
}
