/* xla/hlo_collective.c – the collectives of a parsed module: along which axes of the mesh, how
 * often, and what hides them.
 *
 * Groups of devices come as lists ({{0,1},{2,3}}) or counted ([2,2]<=[4]), by the axes of a mesh
 * (mesh['a'=2,'b'=2] {'b'}), a permute's as pairs. Devices are numbered as the mesh's are, so
 * coordinates tell the axes: those in which members of a group differ. Two axes of one size are
 * told apart, and so is a group over both. Asynchronous is an instruction *-start with its *-done,
 * what an async-start calls, and what libtpu fuses: a collective with a product in one fusion, or a
 * fusion async-collective-start with its done. A transfer is hidden where a dot or convolution – by
 * itself, in a fusion, a loop, a call – stands between the two in a scheduled computation. Where
 * the done is not in the start's computation, all behind the start counts as in between.
 */
#include <ctype.h>

#include "xla/hlo_internal.h"

enum { MAX_DEVICES = 1 << 20, MAX_PASSED = 16 };

static bool one_of(slice op, const char *const *names)
{
    for (; *names; names++)
        if (hlo_is(op, *names)) return true;
    return false;
}

static bool begins(slice s, const char *word)
{
    size_t n = strlen(word);
    return s.n >= n && memcmp(s.p, word, n) == 0;
}

static bool ends(slice s, const char *word)
{
    size_t n = strlen(word);
    return s.n >= n && memcmp(s.p + s.n - n, word, n) == 0;
}

/* ---- groups of devices ----------------------------------------------------------------------- */

/* [groups,size]<=[d0,d1,…]T(p0,p1,…): 0, 1, 2 … in the shape d, its dimensions in the order p. */
enum { MAX_COUNTED = 16 };
typedef struct counted {
    int64_t groups, size, dim[MAX_COUNTED];
    int n, order[MAX_COUNTED];
} counted;

/* The numbers of "a,b,c" up to the character end, as many as there are; returns their count. */
static int numbers(slice text, char end, int64_t *out, int room)
{
    int n = 0;
    const char *p = text.p, *stop = memchr(text.p, end, text.n);
    while (stop && p < stop && n < room && ts__hlo_int((slice){p, (size_t)(stop - p)}, &out[n])) {
        const char *comma = memchr(p, ',', (size_t)(stop - p));
        n++;
        p = comma ? comma + 1 : stop;
    }
    return n;
}

/* size alone is known where the order is none (n 0). False: not even that. */
static bool read_iota(slice text, counted *c)
{
    int64_t shape[2], order[8];
    *c = (counted){0};
    if (numbers((slice){text.p + 1, text.n - 1}, ']', shape, 2) != 2) return false;
    c->groups = shape[0];
    c->size = shape[1];
    const char *d = memmem(text.p, text.n, "<=[", 3), *t = memmem(text.p, text.n, "T(", 2);
    const char *end = text.p + text.n;
    int n = d ? numbers((slice){d + 3, (size_t)(end - d) - 3}, ']', c->dim, 8) : 0;
    int m = t ? numbers((slice){t + 2, (size_t)(end - t) - 2}, ')', order, 8) : n;
    uint32_t seen = 0;
    for (int i = 0; i < n && m == n; i++) {
        if (!t) order[i] = i;
        if (order[i] < 0 || order[i] >= n || seen >> order[i] & 1 || c->dim[i] < 1) return true;
        seen |= 1u << order[i];
        c->order[i] = (int)order[i];
    }
    c->n = m == n ? n : 0;
    return true;
}

typedef struct named {
    slice name;
    int64_t size, before, part; /* of a dimension that is cut: what is major to the part, and its size */
} named;

/* "'fsdp'=4" with '=', "'fsdp'" or "'fsdp':(2)2" without; at: 0 at first. */
static bool next_named(slice list, size_t *at, bool sizes, named *out)
{
    slice one;
    *out = (named){.size = -1};
    if (!ts__hlo_element(list, at, &one) || one.n < 3) return false;
    const char *end = one.p + one.n, *close = memchr(one.p + 1, one.p[0], one.n - 1);
    if (!close || isalnum((unsigned char)one.p[0])) return false;
    out->name = (slice){one.p + 1, (size_t)(close - one.p) - 1};
    slice rest = {close + 1, (size_t)(end - close) - 1};
    if (sizes)
        return begins(rest, "=") && ts__hlo_int((slice){rest.p + 1, rest.n - 1}, &out->size) && out->size > 0;
    if (!rest.n) return true;
    const char *stop = memchr(rest.p, ')', rest.n);
    return begins(rest, ":(") && stop && ts__hlo_int((slice){rest.p + 2, rest.n - 2}, &out->before) &&
           ts__hlo_int((slice){stop + 1, (size_t)(end - stop) - 1}, &out->part) && out->before > 0 &&
           out->part > 0;
}

/* Dimension d as three: what is major to the part, the part, what is minor to it. The part's place;
 * −1: it is none. */
static int cut(counted *c, int d, const named *a)
{
    if (!a->part) return d;
    if (c->n + 2 > MAX_COUNTED || c->dim[d] % a->before || c->dim[d] / a->before % a->part) return -1;
    memmove(&c->dim[d + 3], &c->dim[d + 1], (size_t)(c->n - d - 1) * sizeof *c->dim);
    c->dim[d + 2] = c->dim[d] / a->before / a->part;
    c->dim[d + 1] = a->part;
    c->dim[d] = a->before;
    c->n += 2;
    return d + 1;
}

/* mesh['fsdp'=4,'tensor'=4] {'tensor'}: the listed axes make a group, in that order, the others
 * number the groups. */
static bool read_mesh(slice text, counted *c)
{
    const char *open = memchr(text.p, '[', text.n), *end = text.p + text.n;
    const char *close = open ? memchr(open, ']', (size_t)(end - open)) : NULL, *list = close ? close + 1 : end;
    slice name[MAX_COUNTED]; /* by dimension; of parts, empty */
    named a;
    uint32_t used = 0;
    int n = 0, listed[MAX_COUNTED];
    *c = (counted){.size = 1, .groups = 1};
    while (list < end && *list == ' ') list++;
    if (list == end || *list != '{' || end[-1] != '}') return false; /* devices in another order */
    for (size_t at = 0; next_named((slice){open + 1, (size_t)(close - open) - 1}, &at, true, &a);) {
        if (c->n == 8) return false;
        name[c->n] = a.name;
        c->dim[c->n++] = a.size;
    }
    for (size_t at = 0; next_named((slice){list, (size_t)(end - list)}, &at, false, &a);) {
        int d = 0, before = c->n;
        while (d < c->n && (name[d].n != a.name.n || memcmp(name[d].p, a.name.p, a.name.n) != 0)) d++;
        if (d == c->n || n == 8) return false;
        int place = cut(c, d, &a);
        if (place < 0 || used >> place & 1) return false;
        if (c->n > before) { /* what stood behind has moved by two */
            used = (used & ((1u << d) - 1)) | (used >> d) << (d + 2);
            memmove(&name[d + 3], &name[d + 1], (size_t)(before - d - 1) * sizeof *name);
            name[d] = name[d + 1] = name[d + 2] = (slice){"", 0};
            for (int i = 0; i < n; i++) listed[i] += listed[i] > d ? 2 : 0;
        }
        used |= 1u << place;
        listed[n++] = place;
    }
    int at = 0;
    for (int d = 0; d < c->n; d++)
        if (!(used >> d & 1)) c->order[at++] = d;
    for (int i = 0; i < n; i++) c->order[at++] = listed[i];
    for (int d = 0; d < c->n; d++) {
        int64_t *product = used >> d & 1 ? &c->size : &c->groups;
        if (ts_mul_i64(*product, c->dim[d], product)) return false;
    }
    return c->n > 0;
}

static bool is_counted(slice text) { return begins(text, "[") || begins(text, "mesh["); }

static bool read_counted(slice text, counted *c)
{
    return text.p[0] == '[' ? read_iota(text, c) : read_mesh(text, c);
}

/* Device at place i. */
static int64_t counted_device(const counted *c, int64_t i)
{
    int64_t device = 0;
    for (int k = c->n - 1; k >= 0; k--) {
        int dim = c->order[k];
        int64_t stride = 1;
        for (int j = dim + 1; j < c->n; j++) stride *= c->dim[j];
        device += i % c->dim[dim] * stride;
        i /= c->dim[dim];
    }
    return device;
}

static bool small(const counted *c)
{
    int64_t n = 1, all;
    for (int i = 0; i < c->n; i++)
        if (ts_mul_i64(n, c->dim[i], &n) || n > MAX_DEVICES) return false;
    return c->n > 0 && c->groups > 0 && c->size > 0 && !ts_mul_i64(c->groups, c->size, &all) && all == n;
}

void ts__hlo_group(const hlo_instruction *x, int64_t *size, int64_t *stride)
{
    slice all, first;
    size_t at = 0;
    int64_t id, before = 0;
    counted c;
    *size = *stride = 0;
    if (!ts__hlo_attr(x, "replica_groups", &all) || all.n < 2) return;
    if (is_counted(all)) {
        if (read_counted(all, &c)) *size = c.size;
        if (*size > 1 && small(&c)) *stride = counted_device(&c, 1);
        return;
    }
    if (!ts__hlo_element(all, &at, &first)) return;
    at = 0;
    for (slice one; ts__hlo_element(first, &at, &one);) {
        if (!one.n) continue;
        if (*size == 1 && ts__hlo_int(one, &id) && id > before) *stride = id - before;
        if (*size == 0 && !ts__hlo_int(one, &before)) before = INT64_MAX;
        ++*size;
    }
}

/* ---- axes of the mesh ------------------------------------------------------------------------ */

typedef struct axes {
    const ts_hlo_mesh *m;
    int64_t devices, shift;
    uint16_t mask;
    bool odd; /* a device that the mesh does not have; pairs of several shifts */
} axes;

/* Devices a and b belong together; of a permute, a sends to b. */
static void meet(axes *x, int64_t a, int64_t b, bool pair)
{
    if (a < 0 || b < 0 || a >= x->devices || b >= x->devices) {
        x->odd = true;
        return;
    }
    int64_t shift = 0;
    uint16_t mask = 0;
    for (int i = x->m->n - 1; i >= 0; i--) {
        int64_t n = x->m->size[i], by = (b % n - a % n + n) % n;
        if (by) mask |= (uint16_t)(1u << i), shift = 2 * by > n ? by - n : by;
        a /= n;
        b /= n;
    }
    if (pair && mask) {
        if ((mask & (mask - 1)) || (x->mask && (x->mask != mask || x->shift != shift))) x->shift = 0;
        else x->shift = shift;
    }
    x->mask |= mask;
}

/* {{0,1},{2,3}}: every member with the first of its group; of pairs, the second with the first. */
static int64_t meet_listed(axes *x, slice all, bool pairs)
{
    slice group, one;
    int64_t size = 0;
    for (size_t at = 0; ts__hlo_element(all, &at, &group);) {
        int64_t first = -1, id, n = 0;
        for (size_t k = 0; ts__hlo_element(group, &k, &one); n++) {
            if (!ts__hlo_int(one, &id)) x->odd = true;
            else if (n == 0) first = id;
            else meet(x, first, id, pairs);
        }
        if (size && n != size) x->odd = true;
        size = n;
    }
    return size;
}

uint16_t ts__hlo_axes(const ts_hlo_mesh *m, const hlo_instruction *x, int64_t *shift)
{
    axes a = {.m = m, .devices = 1};
    slice all;
    counted c;
    int64_t size = 0, product = 1;
    *shift = 0;
    if (!m || m->n < 1) return 0;
    for (int i = 0; i < m->n; i++) a.devices *= m->size[i];
    if (ts__hlo_attr(x, "source_target_pairs", &all)) {
        (void)meet_listed(&a, all, true);
        *shift = a.odd ? 0 : a.shift;
        return a.odd ? 0 : a.mask;
    }
    if (!ts__hlo_attr(x, "replica_groups", &all) || all.n < 2) return 0;
    if (is_counted(all)) {
        if (!read_counted(all, &c) || !small(&c)) return 0;
        size = c.size;
        for (int64_t i = 0; i < c.groups * c.size; i++)
            meet(&a, counted_device(&c, i - i % c.size), counted_device(&c, i), false);
    } else {
        size = meet_listed(&a, all, false);
        if (size == 0) { /* {}: all devices */
            size = a.devices;
            meet(&a, 0, 0, false);
            for (int i = 0; i < m->n; i++)
                if (m->size[i] > 1) a.mask |= (uint16_t)(1u << i);
        }
    }
    for (int i = 0; i < m->n; i++)
        if (a.mask >> i & 1) product *= m->size[i];
    return a.odd || product != size ? 0 : a.mask;
}

/* ---- what hides a transfer ------------------------------------------------------------------- */

/* A product by itself, or a call of what has one. */
static bool has_product(const hlo_walk *w, const hlo_instruction *x)
{
    static const char *const keys[] = {"calls", "to_apply", "body", "true_computation", "false_computation"};
    slice text, one;
    if (hlo_is(x->op, "dot") || hlo_is(x->op, "convolution")) return true;
    if (hlo_is(x->op, "custom-call"))
        return ts__hlo_attr(x, "custom_call_target", &text) &&
               (memmem(text.p, text.n, "gemm", 4) || memmem(text.p, text.n, "matmul", 6) ||
                memmem(text.p, text.n, "conv", 4));
    if (hlo_is(x->op, "async-start")) return false; /* elsewhere */
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        int c = ts__hlo_callee(w, x, keys[i]);
        if (c >= 0 && w->visit[c].product) return true;
    }
    if (!hlo_is(x->op, "conditional") || !ts__hlo_attr(x, "branch_computations", &text)) return false;
    for (size_t at = 0; ts__hlo_element(text, &at, &one);) {
        int c = ts__hlo_computation(w->h, one, x->computation);
        if (c >= 0 && w->visit[c].product) return true;
    }
    return false;
}

/* Callees stand above, so their marks are there. */
void ts__hlo_mark_products(hlo_walk *w)
{
    for (int i = 0; i < w->h->n_computation; i++) {
        const hlo_computation *c = &w->h->computation[i];
        for (int k = 0; k < c->count && !w->visit[i].product; k++)
            w->visit[i].product = has_product(w, &w->h->instruction[c->first + k]);
    }
}

bool ts__hlo_starts_fusion(const hlo_instruction *x)
{
    return hlo_is(x->op, "fusion") && begins(x->name, "async-collective-start");
}

static bool is_done(const hlo_instruction *x)
{
    return ends(x->op, "-done") || (hlo_is(x->op, "fusion") && begins(x->name, "async-collective-done"));
}

/* What hands a transfer on without waiting for it. */
static bool passes(const hlo_instruction *x)
{
    static const char *const names[] = {"async-update", "get-tuple-element", "tuple", "bitcast",
                                        "opt-barrier", "optimization-barrier", NULL};
    return one_of(x->op, names);
}

bool ts__hlo_overlapped(const hlo_walk *w, const hlo_instruction *start)
{
    const hlo_computation *c = &w->h->computation[start->computation];
    const hlo_instruction *all = w->h->instruction, *end = all + c->first + c->count;
    int passed[MAX_PASSED] = {(int)(start - all)}, n = 1;
    bool product = false;
    if (!w->h->scheduled) return false;
    for (const hlo_instruction *x = start + 1; x < end; x++) {
        bool uses = false;
        for (int i = 0; i < x->n_in && !uses; i++)
            for (int k = 0; k < n && !uses; k++) uses = x->in[i].instruction == passed[k];
        if (uses && is_done(x)) return product;
        if (uses && n < MAX_PASSED && passes(x)) passed[n++] = (int)(x - all);
        product = product || has_product(w, x);
    }
    return product;
}

/* All users of x in its computation together read no more than a device's share of it. Of a sum of
 * several packed values each user reads a part as well, but together they read it all. */
static bool only_sliced(const hlo_walk *w, const hlo_instruction *x, int64_t size)
{
    const hlo_computation *c = &w->h->computation[x->computation];
    const hlo_instruction *all = w->h->instruction, *end = all + c->first + c->count;
    int me = (int)(x - all);
    int64_t read = 0;
    if (size < 2 || me == c->root || x->shape->tuple) return false;
    for (const hlo_instruction *y = x + 1; y < end; y++)
        for (int i = 0; i < y->n_in; i++) {
            if (y->in[i].instruction != me) continue;
            if (!hlo_is(y->op, "dynamic-slice") && !hlo_is(y->op, "fusion")) return false;
            read = ts__hlo_plus(read, ts__hlo_reads(w, y, i));
        }
    return read > 0 && read <= x->shape->bytes / size;
}

/* ---- rows ------------------------------------------------------------------------------------ */

static bool is_collective(slice op)
{
    static const char *const names[] = {
        "all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute",
        "collective-broadcast", "ragged-all-to-all", NULL};
    return one_of((slice){op.p, op.n - (ends(op, "-start") ? 6 : 0)}, names);
}

static bool same_row(const ts_hlo_collective *a, const ts_hlo_collective *b)
{
    bool along = a->axes ? a->axes == b->axes
                         : !b->axes && a->group == b->group && a->stride == b->stride;
    return along && strcmp(a->op, b->op) == 0 && a->shift == b->shift && a->asynchronous == b->asynchronous &&
           a->sliced == b->sliced;
}

static ts_hlo_collective *find_row(hlo_walk *w, const ts_hlo_collective *like)
{
    ts_hlo_summary *s = w->out;
    size_t k = 0;
    while (k < s->n_collective && !same_row(&s->collective[k], like)) k++;
    if (k < s->n_collective) return &s->collective[k];
    if (k == w->capacity) {
        size_t more = 2 * k + 8, size = sizeof *s->collective;
        void *p = ts_realloc(s->collective, k * size, more * size);
        if (!p) return NULL;
        s->collective = p;
        w->capacity = more;
    }
    s->collective[s->n_collective] = *like;
    return &s->collective[s->n_collective++];
}

ts_status ts__hlo_add_collective(hlo_walk *w, const hlo_instruction *x, const hlo_visit *v)
{
    ts_hlo_collective like = {0};
    int64_t bytes = 0;
    double hidden = v->overlapped;
    if (!is_collective(x->op)) return TS_OK;
    bool start = ends(x->op, "-start"), beside = v->fused && v->product; /* computed while it travels */
    memcpy(like.op, x->op.p, x->op.n < sizeof like.op ? x->op.n : sizeof like.op - 1);
    ts__hlo_group(x, &like.group, &like.stride);
    like.axes = ts__hlo_axes(w->mesh, x, &like.shift);
    like.asynchronous = start || beside || v->async > 0;
    like.sliced = hlo_is(x->op, "all-reduce") && only_sliced(w, x, like.group);
    if (beside || (start && ts__hlo_overlapped(w, x))) hidden = v->runs;
    ts_hlo_collective *c = find_row(w, &like);
    if (!c) return TS_ERROR(w->err, TS_RESOURCE_EXHAUSTED, "memory is out for an HLO summary");
    if (!c->sites) ts__hlo_scope(w->h, x, c->name, sizeof c->name);
    int n = begins(x->op, "collective-permute") ? 1 : x->n_in; /* its others say where the result lies */
    for (int i = 0; i < n && i < x->n_in; i++)
        if (x->in[i].shape) bytes = ts__hlo_plus(bytes, x->in[i].shape->bytes);
    c->sites++;
    c->count = ts__hlo_plus(c->count, ts__hlo_times(v->runs, 1));
    c->bytes = ts__hlo_plus(c->bytes, ts__hlo_times(v->runs, bytes));
    c->overlapped = ts__hlo_plus(c->overlapped, ts__hlo_times(hidden, 1));
    c->overlapped_bytes = ts__hlo_plus(c->overlapped_bytes, ts__hlo_times(hidden, bytes));
    return TS_OK;
}
