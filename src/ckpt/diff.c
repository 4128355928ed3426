/* ckpt/diff.c – compares the tensors of two checkpoints, or of one and a model's folder, by name.
 *
 * A tensor is read in pieces of both sides under its published shape, so meshes, files and dtypes
 * need not agree. Values are compared as the bits of their f32: −0 is not 0, and a NaN equals one
 * of the same bits. Two pieces and the reader's scratch are all the memory that does not depend on
 * the number of tensors.
 *
 * Not here: configuration, data position, program (diff_facts.c).
 */
#include "ckpt/diff.h"

#include <math.h>
#include <stdio.h>

#include "base/file.h"

enum { PIECE = 1 << 18 /* elements */, TEXT_BYTES = 24 * TS_TENSOR_RANK };

typedef struct side {
    ts_checkpoint *checkpoint; /* NULL: a model's folder */
    ts_tensors *tensors;
    const char *path; /* until the side is closed */
    char *owned;
} side;

static ts_status out_of_memory(const char *path, ts_error *err)
{
    return TS_ERROR(err, TS_RESOURCE_EXHAUSTED, "%s: out of memory", path);
}

/* ---- opening --------------------------------------------------------------------------------- */

static bool is_model(const char *path)
{
    static const char *const files[] = {"model.safetensors", "model.safetensors.index.json"};
    bool found = ts_path_kind_of(path) == TS_PATH_FILE;
    for (size_t i = 0; i < sizeof files / sizeof *files && !found; i++) {
        char *file = ts_path_join(path, files[i]);
        found = file && ts_path_kind_of(file) == TS_PATH_FILE;
        ts_free(file);
    }
    return found;
}

/* The newest that verifies, of a run. */
static ts_status choose(ts_survey *s, const char *path, ts_progress progress, void *context,
                        size_t *row, ts_error *err)
{
    TS_TRY(ts_survey_newest(s, progress, context, row, err));
    if (*row < s->n) return TS_OK;
    for (size_t i = s->n; i-- > 0;)
        if (*s->row[i].problem)
            return TS_ERROR(err, TS_DATA_LOSS, "%s: no checkpoint of %zu can be used; %.3000s",
                            s->folder, s->n, s->row[i].problem);
    return TS_ERROR(err, TS_NOT_FOUND, "%s: holds no checkpoint", path);
}

static ts_status open_checkpoint(side *x, const char *path, ts_progress progress, void *context,
                                 ts_error *err)
{
    ts_survey *s;
    size_t row = 0;
    TS_TRY(ts_survey_open(path, &s, err));
    ts_status status = s->is_step ? TS_OK : choose(s, path, progress, context, &row, err);
    if (status == TS_OK) {
        x->owned = ts_strdup(s->n ? s->row[row].path : path);
        if (!x->owned) status = out_of_memory(path, err);
    }
    bool verified = status == TS_OK && s->n && s->row[row].verified;
    ts_survey_free(s);
    if (status == TS_OK) status = ts_checkpoint_look(x->owned, &x->checkpoint, err);
    if (status == TS_OK && !verified)
        status = ts_checkpoint_verify(x->checkpoint, progress, context, err);
    if (status == TS_OK) x->tensors = ts_checkpoint_tensors(x->checkpoint);
    return status;
}

static ts_status open_side(side *x, const char *path, ts_progress progress, void *context,
                           ts_error *err)
{
    if (!is_model(path)) {
        TS_TRY(open_checkpoint(x, path, progress, context, err));
        x->path = x->owned;
        return TS_OK;
    }
    x->path = path;
    return ts_tensors_open_model(path, &x->tensors, err);
}

static void close_side(side *x)
{
    if (x->checkpoint)
        ts_checkpoint_close(x->checkpoint);
    else
        ts_tensors_close(x->tensors);
    ts_free(x->owned);
}

/* ---- values ---------------------------------------------------------------------------------- */

static uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

/* Of the differing values seen so far in one tensor. */
typedef struct seen {
    bool any;
    uint64_t at, not_finite_at;
    float a, b, not_finite_a, not_finite_b;
} seen;

static void compare_one(ts_diff_tensor *t, seen *s, uint64_t at, float a, float b)
{
    t->different++;
    if (!isfinite(a) || !isfinite(b)) {
        if (t->not_finite++ == 0) {
            s->not_finite_at = at;
            s->not_finite_a = a;
            s->not_finite_b = b;
        }
        return;
    }
    double apart = fabs((double)a - (double)b);
    if (s->any && apart <= t->max_abs) return;
    t->max_abs = apart;
    s->any = true;
    s->at = at;
    s->a = a;
    s->b = b;
}

static void compare_piece(ts_diff_tensor *t, seen *s, uint64_t first, size_t n, const float *a,
                          const float *b)
{
    const uint32_t finite = 0x7f800000u;
    uint32_t largest = 0; /* the bits of |f32| are ordered as its values */
    for (size_t i = 0; i < n; i++) {
        uint32_t p = bits_of(a[i]) & 0x7fffffffu, q = bits_of(b[i]) & 0x7fffffffu;
        if (p < finite && p > largest) largest = p;
        if (q < finite && q > largest) largest = q;
    }
    float value;
    memcpy(&value, &largest, sizeof value);
    if ((double)value > t->largest) t->largest = (double)value;
    if (memcmp(a, b, n * sizeof *a) == 0) return;
    for (size_t i = 0; i < n; i++)
        if (bits_of(a[i]) != bits_of(b[i])) compare_one(t, s, first + i, a[i], b[i]);
}

static void add_text(char *text, size_t *used, const char *form, int64_t value)
{
    int n = snprintf(text + *used, TEXT_BYTES - *used, form, (long long)value);
    if (n > 0) *used += (size_t)n;
}

static const char *list_text(ts_arena *arena, int rank, const int64_t *value)
{
    char text[TEXT_BYTES + 8] = "[";
    size_t used = 1;
    for (int i = 0; i < rank && used < TEXT_BYTES; i++)
        add_text(text, &used, i ? ",%lld" : "%lld", value[i]);
    if (used > TEXT_BYTES) used = TEXT_BYTES;
    memcpy(text + used, "]", 2);
    return ts_arena_strdup(arena, text);
}

/* [row, column …] of the element. */
static const char *place_text(ts_arena *arena, const ts_tensor *x, uint64_t at)
{
    int64_t place[TS_TENSOR_RANK];
    for (int i = x->rank - 1; i >= 0; i--) {
        place[i] = (int64_t)(at % (uint64_t)x->dim[i]);
        at /= (uint64_t)x->dim[i];
    }
    return list_text(arena, x->rank, place);
}

/* ---- tensors --------------------------------------------------------------------------------- */

typedef struct comparison {
    ts__diff *d;
    side a, b;
    float *piece[2];
    ts_progress progress;
    void *context;
} comparison;

static bool same_shape(const ts_tensor *a, const ts_tensor *b)
{
    bool same = a->rank == b->rank;
    for (int i = 0; same && i < a->rank; i++) same = a->dim[i] == b->dim[i];
    return same;
}

static ts_status compare_values(comparison *c, const ts_tensor *a, const ts_tensor *b,
                                ts_diff_tensor *t, ts_error *err)
{
    seen s = {0};
    for (uint64_t first = 0; first < a->count; first += PIECE) {
        size_t n = a->count - first < PIECE ? (size_t)(a->count - first) : PIECE;
        TS_TRY(ts_tensors_read_f32(c->a.tensors, a, first, n, c->piece[0], err));
        TS_TRY(ts_tensors_read_f32(c->b.tensors, b, first, n, c->piece[1], err));
        compare_piece(t, &s, first, n, c->piece[0], c->piece[1]);
        uint64_t bytes = n * (a->bytes / a->count + b->bytes / b->count);
        c->d->public.bytes += bytes;
        if (c->progress && !c->progress(c->context, bytes))
            return TS_ERROR(err, TS_CANCELLED, "stopped");
    }
    t->kind = t->different ? TS_DIFF_VALUES : TS_DIFF_SAME;
    if (!t->different) return TS_OK;
    bool finite = s.any;
    t->where = place_text(c->d->arena, a, finite ? s.at : s.not_finite_at);
    t->a = (double)(finite ? s.a : s.not_finite_a);
    t->b = (double)(finite ? s.b : s.not_finite_b);
    return t->where ? TS_OK : out_of_memory(c->a.path, err);
}

static ts_status add_tensor(comparison *c, const ts_tensor *a, const ts_tensor *b, ts_error *err)
{
    ts__diff *d = c->d;
    const ts_tensor *x = a ? a : b;
    ts_diff_tensor *t = &d->public.tensor[d->public.n++];
    *t = (ts_diff_tensor){.name = ts_arena_strdup(d->arena, x->name),
                          .moment = strncmp(x->name, "adam.", 5) == 0,
                          .elements = x->count,
                          .kind = !b ? TS_DIFF_ONLY_A : !a ? TS_DIFF_ONLY_B : TS_DIFF_SHAPE,
                          .shape_a = a ? list_text(d->arena, a->rank, a->dim) : "",
                          .shape_b = b ? list_text(d->arena, b->rank, b->dim) : "",
                          .where = ""};
    if (!t->name || !t->shape_a || !t->shape_b) return out_of_memory(c->a.path, err);
    if (!a || !b || !same_shape(a, b)) return TS_OK;
    return compare_values(c, a, b, t, err);
}

/* What training leaves out where weights come from such a folder. */
static bool is_left_out(const comparison *c, const ts_tensor *x, const side *other)
{
    const char *end = strstr(x->name, "rotary_emb.inv_freq");
    if (!c->d->public.weights_only) return false;
    if (strncmp(x->name, "adam.", 5) == 0 || (end && strcmp(end, "rotary_emb.inv_freq") == 0))
        return true;
    return strcmp(x->name, "lm_head.weight") == 0 && other->checkpoint; /* it is tied there */
}

/* Both lists are sorted by name. */
static ts_status compare_all(comparison *c, ts_error *err)
{
    size_t n = ts_tensors_count(c->a.tensors), m = ts_tensors_count(c->b.tensors), i = 0, k = 0;
    size_t bytes = 0;
    bool fits = !ts_add_size(n, m, &bytes) && !ts_mul_size(bytes + 1, sizeof(ts_diff_tensor), &bytes);
    c->d->public.tensor = fits ? ts_alloc(bytes) : NULL;
    if (!c->d->public.tensor) return out_of_memory(c->a.path, err);
    while (i < n || k < m) {
        const ts_tensor *a = i < n ? ts_tensors_at(c->a.tensors, i) : NULL;
        const ts_tensor *b = k < m ? ts_tensors_at(c->b.tensors, k) : NULL;
        int order = !a ? 1 : !b ? -1 : strcmp(a->name, b->name);
        if (order > 0) a = NULL;
        if (order < 0) b = NULL;
        i += a != NULL;
        k += b != NULL;
        if ((!b && is_left_out(c, a, &c->b)) || (!a && is_left_out(c, b, &c->a))) continue;
        TS_TRY(add_tensor(c, a, b, err));
    }
    return TS_OK;
}

static void add_sum(ts_diff *d, size_t i)
{
    const ts_diff_tensor *t = &d->tensor[i];
    ts_diff_sum *s = t->moment ? &d->moments : &d->parameters;
    size_t *const kinds[] = {&s->same, &s->values, &s->shape, &s->only_a, &s->only_b};
    s->tensors++;
    ++*kinds[t->kind];
    s->elements += t->elements;
    s->different += t->different;
    s->not_finite += t->not_finite;
    if (t->kind != TS_DIFF_SAME) d->same = false;
    if (t->kind != TS_DIFF_VALUES) return;
    double relative = t->largest > 0 ? t->max_abs / t->largest : 0;
    if (relative > s->max_rel) s->max_rel = relative;
    if (s->worst < d->n && t->max_abs <= s->max_abs) return;
    s->worst = i;
    s->max_abs = t->max_abs;
}

static ts_status run(comparison *c, ts_error *err)
{
    ts_diff *d = &c->d->public;
    d->weights_only = !c->a.checkpoint || !c->b.checkpoint;
    d->a = ts_arena_strdup(c->d->arena, c->a.path);
    d->b = ts_arena_strdup(c->d->arena, c->b.path);
    for (int i = 0; i < 2; i++) c->piece[i] = ts_alloc(PIECE * sizeof(float));
    if (!d->a || !d->b || !c->piece[0] || !c->piece[1]) return out_of_memory(c->a.path, err);
    TS_TRY(compare_all(c, err));
    if (!d->weights_only) TS_TRY(ts__diff_facts(c->d, c->a.checkpoint, c->b.checkpoint, err));
    d->same = true;
    d->parameters.worst = d->moments.worst = d->n;
    for (size_t i = 0; i < d->n; i++) add_sum(d, i);
    return TS_OK;
}

ts_status ts_diff_open(const char *a, const char *b, ts_progress progress, void *context,
                       ts_diff **out, ts_error *err)
{
    comparison c = {.progress = progress, .context = context};
    *out = NULL;
    c.d = ts_alloc_zero(sizeof *c.d);
    if (c.d) c.d->arena = ts_arena_new();
    ts_status status = c.d && c.d->arena ? TS_OK : out_of_memory(a, err);
    if (status == TS_OK) status = open_side(&c.a, a, progress, context, err);
    if (status == TS_OK) status = open_side(&c.b, b, progress, context, err);
    if (status == TS_OK) status = run(&c, err);
    for (int i = 0; i < 2; i++) ts_free(c.piece[i]);
    close_side(&c.a);
    close_side(&c.b);
    if (status == TS_OK)
        *out = &c.d->public;
    else if (c.d)
        ts_diff_free(&c.d->public);
    return status;
}

void ts_diff_free(ts_diff *public)
{
    ts__diff *d = (ts__diff *)public;
    if (!d) return;
    ts_free(d->public.tensor);
    ts_free(d->public.fact);
    ts_arena_free(d->arena);
    ts_free(d);
}
