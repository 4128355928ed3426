/* xla/aot_collectives.c – the collectives that a graph asks for, and what the optimized program has
 * in their place.
 *
 * Rows are by kind and mesh axis. One of XLA's belongs to the asked row of its kind and axis; an
 * all-reduce of which each device keeps a slice to a reduce_scatter; what runs over several axes at
 * once to the first of them, and the others say so. What then is left over stands for an asked row
 * of the same axis that nothing stands for yet, because XLA may make a scatter of permutes; the
 * rest has rows of its own, with XLA's figures as if they had been asked for. A global graph
 * (shard_mode=auto) asks for none, so all rows are XLA's.
 * Not here: how HLO is read (hlo_collective.c), what is printed (cli/compile.c).
 */
#include <stdio.h>

#include "mesh/partition.h"
#include "xla/aot_internal.h"

enum { MAX_ASKED = 64 };

ts_hlo_mesh ts__aot_mesh(const ts_aot_job *job)
{
    const ts_graph *g = job->graph;
    ts_hlo_mesh m = {.n = job->sharding ? job->sharding->mesh->n : g->n_axis};
    for (int i = 0; i < m.n; i++)
        m.size[i] = job->sharding ? job->sharding->mesh->axis[i].size : g->axis[i].size;
    return m;
}

static const char *axis_name(const ts_aot_job *job, int i)
{
    return job->sharding ? job->sharding->mesh->axis[i].name : job->graph->axis[i].name;
}

static bool has(const char *list, char c) { return strchr(list, c) != NULL; }

/* "fsdp,tensor" */
static void put_axes(const ts_aot_job *job, uint16_t axes, char *buf, size_t n)
{
    const ts_hlo_mesh m = ts__aot_mesh(job);
    buf[0] = '\0';
    for (int i = 0; i < m.n; i++) {
        size_t at = strlen(buf);
        if (axes >> i & 1) snprintf(buf + at, n - at, "%s%s", at ? "," : "", axis_name(job, i));
    }
}

/* ---- do they belong together? ---------------------------------------------------------------- */

typedef struct asked {
    const ts_aot_job *job;
    ts_aot_collective *row;
    uint16_t axis[MAX_ASKED]; /* a bit */
    ts_hlo_mesh mesh;
    size_t n;
} asked;

/* "all-gather-start" is the graph's all_gather. */
static bool same_kind(const char *xla, const char *graph)
{
    for (; *graph; xla++, graph++)
        if (*xla != *graph && !(*xla == '-' && *graph == '_')) return false;
    return *xla == '\0' || strcmp(xla, "-start") == 0;
}

/* Where the groups are not those of any axes: their size and the distance of neighbours, as far as
 * they are known. */
static bool along(const asked *a, size_t k, const ts_hlo_collective *c)
{
    int64_t stride = 1;
    if (c->axes) return c->axes == a->axis[k];
    if (a->axis[k] == 0 || (!c->group && !c->stride)) return a->n == 1;
    for (int i = a->mesh.n - 1; i >= 0; stride *= a->mesh.size[i--])
        if (a->axis[k] >> i & 1)
            return (!c->group || c->group == a->mesh.size[i]) && (!c->stride || c->stride == stride);
    return false;
}

static bool asks(const asked *a, const char *kind, uint16_t axis)
{
    for (size_t k = 0; k < a->n; k++)
        if (strcmp(a->row[k].kind, kind) == 0 && a->axis[k] == axis) return true;
    return false;
}

/* The asked row that c is what became of; −1: none. */
static int match(const asked *a, const ts_hlo_collective *c)
{
    for (size_t k = 0; k < a->n; k++)
        if (!c->sliced && same_kind(c->op, a->row[k].kind) && along(a, k, c)) return (int)k;
    bool reduce = same_kind(c->op, "all_reduce");
    for (size_t k = 0; k < a->n && reduce; k++)
        if (strcmp(a->row[k].kind, "reduce_scatter") == 0 && along(a, k, c) &&
            (c->sliced || !asks(a, "all_reduce", a->axis[k])))
            return (int)k;
    for (size_t k = 0; k < a->n; k++)
        if (same_kind(c->op, a->row[k].kind) && (along(a, k, c) || (c->axes & a->axis[k]))) return (int)k;
    return -1;
}

/* A row of the same axis for which the program has nothing yet. */
static int stands_for(const asked *a, const ts_hlo_collective *c)
{
    static const char *const kinds[] = {"reduce_scatter", "all_gather", "all_to_all", "all_reduce"};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        for (size_t k = 0; k < a->n; k++)
            if (strcmp(a->row[k].kind, kinds[i]) == 0 && c->axes && c->axes == a->axis[k] &&
                !*a->row[k].kept_as)
                return (int)k;
    return -1;
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* Clipped: a text can tell of any number. */
static void add(int64_t *to, int64_t v)
{
    if (ts_add_i64(*to, v, to)) *to = INT64_MAX;
}

static void add_text(ts_aot_collective *c, const char *text)
{
    size_t n = strlen(c->kept_as), room = sizeof c->kept_as - n;
    if (n + strlen(text) + 3 > sizeof c->kept_as) return;
    snprintf(c->kept_as + n, room, "%s%s", n ? ", " : "", text);
}

/* "2 × all-reduce + slice (async)", "3 × collective-permute-start by −1 (async)", over the axes
 * where they are not the row's. */
static void add_kept(const asked *a, ts_aot_collective *c, uint16_t axis, const ts_hlo_collective *from)
{
    char sites[32] = "", shift[32] = "", over[80] = "", text[200], names[64];
    if (from->sites != 1) snprintf(sites, sizeof sites, "%lld × ", (long long)from->sites);
    if (from->shift)
        snprintf(shift, sizeof shift, " by %s%lld", from->shift < 0 ? "−" : "+",
                 (long long)(from->shift < 0 ? -from->shift : from->shift));
    put_axes(a->job, from->axes, names, sizeof names);
    if (from->axes && from->axes != axis && has(names, ',')) snprintf(over, sizeof over, " over %s", names);
    snprintf(text, sizeof text, "%s%s%s%s%s%s", sites, from->op, from->sliced ? " + slice" : "", shift, over,
             from->asynchronous ? " (async)" : "");
    add_text(c, text);
    add(from->asynchronous ? &c->async_count : &c->sync_count, from->count);
    add(from->asynchronous ? &c->async_bytes : &c->sync_bytes, from->bytes);
    add(&c->overlapped_count, from->overlapped);
    add(&c->overlapped_bytes, from->overlapped_bytes);
    /* The asked rows of the other axes have it there. */
    for (size_t k = 0; over[0] && k < a->n; k++) {
        if (&a->row[k] == c || !(from->axes & a->axis[k]) || !same_kind(from->op, a->row[k].kind)) continue;
        snprintf(text, sizeof text, "%s%s", from->op, over);
        add_text(&a->row[k], text);
    }
}

/* One that XLA made itself: of its kind and axes. */
static void add_own(const asked *a, const ts_hlo_collective *from, ts_aot_report *out)
{
    char kind[32], axis[64];
    size_t n = strlen(from->op), k = a->n;
    if (n > 6 && strcmp(from->op + n - 6, "-start") == 0) n -= 6;
    snprintf(kind, sizeof kind, "%.*s", n < 31 ? (int)n : 31, from->op);
    put_axes(a->job, from->axes, axis, sizeof axis);
    for (; k < out->n_collective; k++)
        if (!strcmp(out->collective[k].kind, kind) && !strcmp(out->collective[k].axis, axis)) break;
    ts_aot_collective *c = &out->collective[k];
    if (k == out->n_collective) {
        snprintf(c->kind, sizeof c->kind, "%s", kind);
        snprintf(c->axis, sizeof c->axis, "%s", axis);
        out->n_collective++;
    }
    add(&c->count, from->count);
    add(&c->bytes, from->bytes);
    add_kept(a, c, from->axes, from);
}

static size_t take_asked(asked *a, ts_aot_report *out)
{
    ts_wire wire[MAX_ASKED];
    const ts_graph *g = a->job->graph;
    size_t n = ts_wire_of(g, wire, MAX_ASKED);
    for (size_t k = 0; k < n && k < MAX_ASKED; k++) {
        ts_aot_collective *c = &out->collective[k];
        snprintf(c->kind, sizeof c->kind, "%.31s", ts_op_infos[wire[k].op].name);
        snprintf(c->axis, sizeof c->axis, "%.63s", wire[k].axis);
        c->count = wire[k].count;
        c->bytes = wire[k].payload < 9e18 ? (int64_t)wire[k].payload : INT64_MAX;
        for (int i = 0; i < g->n_axis; i++)
            if (strcmp(g->axis[i].name, wire[k].axis) == 0) a->axis[k] = (uint16_t)(1u << i);
    }
    return n < MAX_ASKED ? n : MAX_ASKED;
}

ts_status ts__aot_collectives(const ts_aot_job *job, const ts_hlo_summary *s, ts_aot_report *out,
                              ts_error *err)
{
    asked a = {.job = job, .mesh = ts__aot_mesh(job)};
    out->collective = ts_alloc_zero((MAX_ASKED + s->n_collective) * sizeof *out->collective);
    bool *placed = ts_alloc_zero(s->n_collective + 1);
    if (!out->collective || !placed) {
        ts_free(placed);
        return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out for a report's collectives");
    }
    a.row = out->collective;
    a.n = out->n_collective = take_asked(&a, out);
    for (size_t i = 0; i < s->n_collective; i++) {
        int k = match(&a, &s->collective[i]);
        if (k < 0) continue;
        add_kept(&a, &out->collective[k], a.axis[k], &s->collective[i]);
        placed[i] = true;
    }
    for (size_t i = 0; i < s->n_collective; i++) {
        int k = placed[i] ? -1 : stands_for(&a, &s->collective[i]);
        if (k >= 0) {
            /* All of this kind and axis, which would otherwise find the row taken. */
            for (size_t j = i; j < s->n_collective; j++) {
                const ts_hlo_collective *c = &s->collective[j];
                if (placed[j] || c->axes != a.axis[k] || strcmp(c->op, s->collective[i].op) != 0) continue;
                add_kept(&a, &out->collective[k], a.axis[k], c);
                placed[j] = true;
            }
        } else if (!placed[i]) {
            add_own(&a, &s->collective[i], out);
        }
    }
    ts_free(placed);
    return TS_OK;
}
