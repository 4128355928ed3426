/* xla/hlo_cost.c – sums over a parsed module: multiply-adds and bytes that move.
 *
 * How often a computation runs is known before it is looked at: callers stand below what they call, so computations
 * are visited from the last to the first. Products are counted wherever they stand; bytes where an instruction
 * reads or writes device memory: a fusion's parameter that is only sliced counts its slices, a result that is an
 * update in place counts the update, values in on-chip memory count nothing. All branches of a conditional count.
 * Not here: collectives (hlo_collective.c), elementwise work, padding of tiles, time.
 */
#include <stdlib.h>

#include "xla/hlo_internal.h"

static const hlo_instruction *operand(const hlo_walk *w, const hlo_instruction *x, int i)
{
    if (i >= x->n_in || x->in[i].instruction < 0) return NULL;
    return &w->h->instruction[x->in[i].instruction];
}

static int64_t device_bytes(const hlo_shape *s)
{
    return s ? s->bytes - s->local : 0;
}

static int64_t operand_bytes(const hlo_instruction *x, int i)
{
    return i < x->n_in ? device_bytes(x->in[i].shape) : 0;
}

int64_t ts__hlo_times(double runs, int64_t n)
{
    double v = runs * (double)n;
    return v < 9e18 ? (int64_t)v : INT64_MAX;
}

int64_t ts__hlo_plus(int64_t a, int64_t b)
{
    int64_t v;
    return ts_add_i64(a, b, &v) ? INT64_MAX : v;
}

/* ---- products -------------------------------------------------------------------------------- */

static double elements(const hlo_shape *s)
{
    double n = 1;
    for (int i = 0; i < s->rank; i++) n *= (double)s->dim[i];
    return n;
}

static double dot_flops(const hlo_instruction *x)
{
    slice list, one;
    size_t at = 0;
    int64_t d;
    double n = 2 * elements(x->shape);
    if (x->n_in < 1 || !x->in[0].shape || !ts__hlo_attr(x, "lhs_contracting_dims", &list)) return n;
    while (ts__hlo_element(list, &at, &one))
        if (ts__hlo_int(one, &d) && d >= 0 && d < x->in[0].shape->rank)
            n *= (double)x->in[0].shape->dim[d];
    return n;
}

typedef struct window {
    int64_t size, stride, low, lhs_dilate, rhs_dilate, reversed;
} window;

/* Element d of window={… key=1x2x3 …}; pads are low_high. */
static int64_t window_field(slice w, const char *key, int d, int64_t otherwise)
{
    const char *p = memmem(w.p, w.n, key, strlen(key)), *end = w.p + w.n;
    int64_t v;
    if (!p) return otherwise;
    p += strlen(key);
    for (; d > 0 && p < end && *p != ' ' && *p != '}'; p++) d -= *p == 'x';
    return d == 0 && p < end && ts__hlo_int((slice){p, (size_t)(end - p)}, &v) ? v : otherwise;
}

/* Pairs of an output position and a window position that meet an input element, along one dimension. The
 * batch of a dot may be such a dimension, where only few do. */
static double pairs(const window *w, int64_t in, int64_t out)
{
    double all = (double)w->size * (double)out;
    bool plain = w->size == 1 && w->low == 0 && w->stride == 1 && w->lhs_dilate == 1;
    if (plain || all > 1 << 22 || w->lhs_dilate < 1) return all;
    int64_t n = 0;
    for (int64_t k = 0; k < w->size; k++)
        for (int64_t o = 0; o < out; o++) {
            int64_t tap = w->reversed ? w->size - 1 - k : k;
            double at = (double)o * (double)w->stride - (double)w->low +
                        (double)tap * (double)w->rhs_dilate;
            if (at < 0 || at > 9e15 || (int64_t)at % w->lhs_dilate) continue;
            n += (int64_t)at / w->lhs_dilate < in;
        }
    return (double)n;
}

/* Position of c in one part of dim_labels=bf0_io0->bf0. */
static int label(slice part, char c)
{
    const char *p = memchr(part.p, c, part.n);
    return p ? (int)(p - part.p) : -1;
}

static double size_at(const hlo_shape *s, int dim)
{
    return dim >= 0 && dim < s->rank ? (double)s->dim[dim] : 1;
}

static double convolution_flops(const hlo_instruction *x)
{
    slice labels, win = {"", 0}, text;
    if (x->n_in < 2 || !x->in[0].shape || !x->in[1].shape || !ts__hlo_attr(x, "dim_labels", &labels))
        return 0;
    const hlo_shape *in = x->in[0].shape, *kernel = x->in[1].shape, *out = x->shape;
    const char *end = labels.p + labels.n, *a = memchr(labels.p, '_', labels.n);
    const char *b = a ? memmem(a, (size_t)(end - a), "->", 2) : NULL;
    if (!b) return 0;
    slice l = {labels.p, (size_t)(a - labels.p)}, k = {a + 1, (size_t)(b - a) - 1},
          o = {b + 2, (size_t)(end - b) - 2};
    int64_t batch_groups = 1;
    if (ts__hlo_attr(x, "batch_group_count", &text) && !ts__hlo_int(text, &batch_groups))
        batch_groups = 1;
    if (batch_groups < 1) batch_groups = 1;
    (void)ts__hlo_attr(x, "window", &win);
    double n = 2 * size_at(in, label(l, 'b')) / (double)batch_groups *
               size_at(kernel, label(k, 'i')) * size_at(out, label(o, 'f'));
    for (int d = 0; d < 8; d++) {
        char c = (char)('0' + d);
        if (label(k, c) < 0) break;
        window w = {window_field(win, "size=", d, 1),       window_field(win, "stride=", d, 1),
                    window_field(win, "pad=", d, 0),        window_field(win, "lhs_dilate=", d, 1),
                    window_field(win, "rhs_dilate=", d, 1), window_field(win, "rhs_reversal=", d, 0)};
        n *= pairs(&w, (int64_t)size_at(in, label(l, c)), (int64_t)size_at(out, label(o, c)));
    }
    return n;
}

/* ---- bytes ----------------------------------------------------------------------------------- */

static bool one_of(slice op, const char *const *names)
{
    for (; *names; names++)
        if (hlo_is(op, *names)) return true;
    return false;
}

static bool is_view(slice op)
{
    return hlo_is(op, "bitcast") || hlo_is(op, "get-tuple-element");
}

int ts__hlo_callee(const hlo_walk *w, const hlo_instruction *x, const char *key)
{
    slice name;
    return ts__hlo_attr(x, key, &name) ? ts__hlo_computation(w->h, name, x->computation) : -1;
}

int64_t ts__hlo_reads(const hlo_walk *w, const hlo_instruction *x, int i)
{
    int64_t all = operand_bytes(x, i), part = all;
    bool sliced = hlo_is(x->op, "dynamic-slice") || hlo_is(x->op, "slice") || hlo_is(x->op, "gather");
    int c = hlo_is(x->op, "fusion") ? ts__hlo_callee(w, x, "calls") : -1;
    if (c >= 0)
        part = i < w->visit[c].n_read ? w->visit[c].read[i] : 0;
    else if (sliced && i == 0)
        part = x->shape->bytes;
    else if (i == 0 && (hlo_is(x->op, "dynamic-update-slice") || hlo_is(x->op, "scatter")))
        part = 0; /* in place: what is written is counted as written */
    return part < all ? part : all;
}

static int64_t writes(const hlo_walk *w, const hlo_instruction *x)
{
    int64_t all = device_bytes(x->shape), part = all;
    int c = hlo_is(x->op, "fusion") ? ts__hlo_callee(w, x, "calls") : -1;
    if (c >= 0) part = w->visit[c].written;
    if (hlo_is(x->op, "dynamic-update-slice") && x->n_in > 1 && x->in[1].shape)
        part = x->in[1].shape->bytes;
    if (hlo_is(x->op, "scatter") && x->n_in > 2 && x->in[2].shape) part = x->in[2].shape->bytes;
    return part < all ? part : all;
}

/* Bytes that a fused computation writes: of its root, or of every element of a tuple. */
static int64_t root_writes(const hlo_walk *w, const hlo_instruction *x)
{
    while (is_view(x->op) && operand(w, x, 0)) x = operand(w, x, 0);
    if (!hlo_is(x->op, "tuple")) return writes(w, x);
    int64_t n = 0;
    for (int i = 0; i < x->n_in; i++) {
        const hlo_instruction *y = operand(w, x, i);
        while (y && is_view(y->op) && operand(w, y, 0)) y = operand(w, y, 0);
        n = ts__hlo_plus(n, y && !hlo_is(y->op, "tuple") ? writes(w, y) : operand_bytes(x, i));
    }
    return n;
}

/* Fills read and written of a computation as if it were fused. */
static bool measure(hlo_walk *w, int index)
{
    const hlo_computation *c = &w->h->computation[index];
    const hlo_instruction *first = &w->h->instruction[c->first];
    hlo_visit *v = &w->visit[index];
    for (int i = 0; i < c->count; i++)
        if (first[i].number >= v->n_read && first[i].number < c->count)
            v->n_read = first[i].number + 1;
    v->read = ts_arena_alloc(w->arena, (size_t)(v->n_read + 1) * sizeof *v->read);
    int *source = ts_alloc((size_t)c->count * sizeof *source); /* parameter that it is a view of; −1 */
    if (!v->read || !source) {
        ts_free(source);
        return false;
    }
    for (int i = 0; i < c->count; i++) {
        const hlo_instruction *x = &first[i];
        source[i] = x->number < v->n_read ? x->number : -1;
        for (int k = 0; k < x->n_in; k++) {
            int p = x->in[k].instruction < 0 ? -1 : source[x->in[k].instruction - c->first];
            if (p < 0) continue;
            if (is_view(x->op))
                source[i] = p;
            else
                v->read[p] = ts__hlo_plus(v->read[p], ts__hlo_reads(w, x, k));
        }
    }
    v->written = root_writes(w, &w->h->instruction[c->root]);
    ts_free(source);
    return true;
}

/* Traffic of an instruction that stands by itself. */
static int64_t traffic(const hlo_walk *w, const hlo_instruction *x)
{
    static const char *const none[] = {
        "parameter",   "constant",        "tuple",       "get-tuple-element", "bitcast",
        "while",       "conditional",     "call",        "after-all",         "add-dependency",
        "opt-barrier", "partition-id",    "replica-id",  "copy-done",         "async-start",
        "async-done",  "async-update",    "domain",      "all-gather-done",   "all-reduce-done",
        "send-done",   "recv-done",       "slice-done",  "optimization-barrier",
        "collective-permute-done",        NULL};
    slice target;
    if (one_of(x->op, none)) return 0;
    if (hlo_is(x->op, "custom-call") && ts__hlo_attr(x, "custom_call_target", &target) &&
        hlo_is(target, "\"AllocateBuffer\""))
        return 0;
    bool start = x->op.n > 6 && memcmp(x->op.p + x->op.n - 6, "-start", 6) == 0;
    int64_t n = 0;
    for (int i = 0; i < x->n_in; i++) n = ts__hlo_plus(n, ts__hlo_reads(w, x, i));
    if (!start || !x->shape->tuple || hlo_is(x->op, "all-reduce-start")) return ts__hlo_plus(n, writes(w, x));
    /* The tuple of a start lists operands and contexts too. */
    int result = hlo_is(x->op, "copy-start") ? 0 : 1;
    return result < x->shape->n_child ? ts__hlo_plus(n, device_bytes(x->shape->child[result])) : n;
}

/* ---- loops ----------------------------------------------------------------------------------- */

/* A whole number that an instruction certainly is: a constant, or a copy of one. */
static bool known_int(const hlo_walk *w, const hlo_instruction *x, int64_t *out)
{
    static const char *const same[] = {"copy", "bitcast", "convert", "reshape", "copy-done", NULL};
    while (x && one_of(x->op, same)) x = operand(w, x, 0);
    return x && hlo_is(x->op, "constant") && ts__hlo_int(x->args, out);
}

/* The value that element k of the loop's state begins with; 0 where that cannot be seen. */
static int64_t start_of(const hlo_walk *w, const hlo_instruction *loop, int64_t k)
{
    const hlo_instruction *tuple = operand(w, loop, 0);
    int64_t v = 0;
    if (!tuple || !hlo_is(tuple->op, "tuple") || k >= tuple->n_in) return 0;
    return known_int(w, operand(w, tuple, (int)k), &v) ? v : 0;
}

/* Which element of the state operand i of a comparison is; −1 when it is none. */
static int64_t state_index(const hlo_walk *w, const hlo_instruction *x, int i)
{
    const hlo_instruction *from = operand(w, x, i);
    slice index;
    int64_t k;
    if (!from) return -1;
    if (from->number == 0 && x->in[i].shape != from->shape)
        for (k = 0; k < from->shape->n_child; k++)
            if (from->shape->child[k] == x->in[i].shape) return k;
    if (hlo_is(from->op, "get-tuple-element") && ts__hlo_attr(from, "index", &index) &&
        ts__hlo_int(index, &k))
        return k;
    return -1;
}

/* {"known_trip_count":{"n":"16"}}, else start < n with a step of one; −1: neither. */
static int64_t trip_count(const hlo_walk *w, const hlo_instruction *loop)
{
    slice config, direction;
    int64_t n, limit;
    if (ts__hlo_attr(loop, "backend_config", &config)) {
        static const char key[] = "\"known_trip_count\":{\"n\":\"";
        const char *p = memmem(config.p, config.n, key, sizeof key - 1);
        if (p && ts__hlo_int((slice){p + sizeof key - 1,
                                     (size_t)(config.p + config.n - p) - (sizeof key - 1)},
                             &n) &&
            n >= 0)
            return n;
    }
    int c = ts__hlo_callee(w, loop, "condition");
    if (c < 0) return -1;
    const hlo_instruction *root = &w->h->instruction[w->h->computation[c].root], *outer = root;
    if (hlo_is(root->op, "fusion") && (c = ts__hlo_callee(w, root, "calls")) >= 0)
        root = &w->h->instruction[w->h->computation[c].root];
    if (!hlo_is(root->op, "compare") || !ts__hlo_attr(root, "direction", &direction) ||
        !hlo_is(direction, "LT"))
        return -1;
    int64_t index = -1;
    bool found = known_int(w, operand(w, root, 1), &limit);
    for (int i = 0; i < outer->n_in; i++) {
        if (index < 0) index = state_index(w, outer, i);
        if (!found) found = known_int(w, operand(w, outer, i), &limit);
    }
    if (!found) return -1;
    int64_t start = index >= 0 ? start_of(w, loop, index) : 0;
    if (limit <= start) return 0;
    return __builtin_sub_overflow(limit, start, &n) ? INT64_MAX : n;
}

/* ---- the walk -------------------------------------------------------------------------------- */

/* n runs of computation `index` for each of the one that v tells of. */
static void enter(hlo_walk *w, int index, double n, bool fused, const hlo_visit *v)
{
    if (index < 0) return;
    hlo_visit *c = &w->visit[index];
    c->runs += n * v->runs;
    c->async += n * v->async;
    c->overlapped += n * v->overlapped;
    c->fused = fused;
}

/* What x starts: it travels until x's done. */
static void enter_started(hlo_walk *w, const hlo_instruction *x, bool fused, const hlo_visit *v)
{
    hlo_visit all = {.runs = v->runs, .async = v->runs, .overlapped = v->overlapped};
    if (ts__hlo_overlapped(w, x)) all.overlapped = v->runs;
    enter(w, ts__hlo_callee(w, x, "calls"), 1, fused, &all);
}

static void enter_list(hlo_walk *w, const hlo_instruction *x, const char *key, const hlo_visit *v)
{
    slice list, one;
    size_t at = 0;
    if (!ts__hlo_attr(x, key, &list)) return;
    while (ts__hlo_element(list, &at, &one))
        enter(w, ts__hlo_computation(w->h, one, x->computation), 1, v->fused, v);
}

static void enter_callees(hlo_walk *w, const hlo_instruction *x, const hlo_visit *v)
{
    if (hlo_is(x->op, "while")) {
        int64_t n = trip_count(w, x);
        w->out->unknown_loops += n < 0;
        enter(w, ts__hlo_callee(w, x, "body"), n < 0 ? 1 : (double)n, v->fused, v);
    } else if (hlo_is(x->op, "fusion")) {
        if (ts__hlo_starts_fusion(x)) enter_started(w, x, true, v);
        else enter(w, ts__hlo_callee(w, x, "calls"), 1, true, v);
    } else if (hlo_is(x->op, "async-start")) {
        enter_started(w, x, v->fused, v);
    } else if (hlo_is(x->op, "call")) {
        enter(w, ts__hlo_callee(w, x, "to_apply"), 1, v->fused, v);
    } else if (hlo_is(x->op, "conditional")) {
        enter_list(w, x, "branch_computations", v);
        enter_list(w, x, "true_computation", v);
        enter_list(w, x, "false_computation", v);
    }
}

static ts_status visit_one(hlo_walk *w, int index)
{
    const hlo_computation *c = &w->h->computation[index];
    const hlo_visit *v = &w->visit[index];
    if (v->runs <= 0) return TS_OK;
    for (int i = 0; i < c->count; i++) {
        const hlo_instruction *x = &w->h->instruction[c->first + i];
        if (hlo_is(x->op, "dot")) w->out->flops += v->runs * dot_flops(x);
        if (hlo_is(x->op, "convolution")) w->out->flops += v->runs * convolution_flops(x);
        TS_TRY(ts__hlo_add_collective(w, x, v));
        if (!v->fused) w->out->bytes += v->runs * (double)traffic(w, x);
        enter_callees(w, x, v);
    }
    return TS_OK;
}

ts_status ts__hlo_summarize(const ts_hlo *h, const ts_hlo_mesh *mesh, ts_hlo_summary *out, ts_error *err)
{
    *out = (ts_hlo_summary){0};
    hlo_walk w = {.h = h, .mesh = mesh, .arena = ts_arena_new(), .out = out, .err = err};
    if (w.arena) w.visit = ts_arena_alloc(w.arena, (size_t)h->n_computation * sizeof *w.visit);
    bool ok = w.visit != NULL;
    for (int i = 0; ok && i < h->n_computation; i++) ok = measure(&w, i);
    ts_status status =
        ok ? TS_OK : TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "memory is out for an HLO summary");
    if (ok) {
        ts__hlo_mark_products(&w);
        w.visit[h->entry].runs = 1;
    }
    for (int i = h->entry; status == TS_OK && i >= 0; i--) status = visit_one(&w, i);
    ts_arena_free(w.arena);
    if (status != TS_OK) ts__hlo_summary_free(out);
    return status;
}

void ts__hlo_summary_free(ts_hlo_summary *s)
{
    ts_free(s->collective);
    *s = (ts_hlo_summary){0};
}
