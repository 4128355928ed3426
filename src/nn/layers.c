/* nn/layers.c – linear layers, norms, and ts_layers: equal layers as one repeat.
 *
 * Every product pins its result by the names of its dimensions, for the partitioner: what comes
 * out of ts_linear is split by batch and by what it makes (heads, MLP), what goes back to the
 * residual stream by batch and sequence. A value whose dimensions have no such names is pinned
 * whole.
 *
 * ts_layers looks at the layers' signatures only. Every segment becomes a repeat, an unrolled layer
 * one of a single iteration, so that rematerialisation has one mechanism (grad/repeat.c).
 */
#include "nn/layers.h"

#include <math.h>

void ts_set_compute_dtype(ts_builder *b, ts_dtype dtype)
{
    b->compute = dtype;
}
void ts_set_remat(ts_builder *b, ts_remat remat)
{
    b->remat = remat;
}

/* ---- layers ---------------------------------------------------------------------------------- */

static bool is_named(const ts_dim *d, const char *name)
{
    return d->name && strcmp(d->name, name) == 0;
}

/* Names of the first n dimensions of v that rows of a batch may be split by: the batch and, on the stream, the
 * sequence of it. */
static void row_names(const ts_value *v, int n, bool stream, const char **name)
{
    bool batch = false, sequence = false;
    for (int i = 0; i < n; i++) batch |= is_named(&v->type.dim[i], "batch");
    for (int i = 0, seen = 0; i < n; i++) {
        bool first = is_named(&v->type.dim[i], "batch") && !seen++;
        bool along = stream && batch && !sequence && is_named(&v->type.dim[i], "sequence");
        sequence |= along;
        name[i] = first || along ? v->type.dim[i].name : NULL;
    }
}

/* The residual stream: rows by batch and sequence, the last dimension whole. */
static ts_value *pin_stream(ts_builder *b, ts_value *v)
{
    const char *name[TS_MAX_RANK] = {NULL};
    if (b->error.code != TS_OK) return b->poison;
    row_names(v, v->type.rank - 1, true, name);
    return ts__pin(b, v, name);
}

/* What a layer makes of the stream: rows by batch, the last n_out dimensions by their names. "head_dim" is never split;
 * "embed" names how a matrix is stored. */
static ts_value *pin_made(ts_builder *b, ts_value *v, int n_out)
{
    const char *name[TS_MAX_RANK] = {NULL};
    if (b->error.code != TS_OK) return b->poison;
    int rows = v->type.rank - n_out;
    row_names(v, rows, false, name);
    for (int i = rows; i < v->type.rank; i++) {
        const ts_dim *d = &v->type.dim[i];
        name[i] = is_named(d, "head_dim") || is_named(d, "embed") ? NULL : d->name;
    }
    return ts__pin(b, v, name);
}

static ts_value *product(ts_builder *b, ts_value *x, ts_value *w, int n_in)
{
    ts_dot_dims d = {.n_contract = n_in};
    for (int i = 0; i < n_in; i++) {
        d.x_contract[i] = x->type.rank - n_in + i;
        d.y_contract[i] = w->type.rank - n_in + i;
    }
    return ts_dot(b, ts_convert(b, x, b->compute), ts_convert(b, w, b->compute), &d, b->compute);
}

ts_value *ts_linear(ts_builder *b, ts_value *x, const char *name, const ts_dim *out, int n_out)
{
    ts_dim dims[TS_MAX_RANK];
    if (b->error.code != TS_OK) return b->poison;
    if (x->type.rank == 0 || n_out < 1 || n_out >= TS_MAX_RANK)
        return ts__mistake(b, TS_INVALID_ARGUMENT,
                           "%s: a linear layer needs an input with a last dimension and 1 to %d "
                           "output dimensions",
                           name, TS_MAX_RANK - 1);
    for (int i = 0; i < n_out; i++) dims[i] = out[i];
    dims[n_out] = x->type.dim[x->type.rank - 1];
    double init = 1 / sqrt((double)dims[n_out].size);
    ts_scope_push(b, "%s", name);
    ts_value *y = product(b, x, ts_param(b, name, dims, n_out + 1, 1, init), 1);
    ts_scope_pop(b);
    return pin_made(b, y, n_out);
}

ts_value *ts_linear_in(ts_builder *b, ts_value *x, int n_in, const char *name, ts_dim out)
{
    ts_dim dims[TS_MAX_RANK] = {out};
    double fan_in = 1;
    if (b->error.code != TS_OK) return b->poison;
    if (n_in < 1 || n_in >= TS_MAX_RANK || n_in > x->type.rank)
        return ts__mistake(b, TS_INVALID_ARGUMENT,
                           "%s: the input has %d dimensions, %d of them cannot be contracted", name,
                           x->type.rank, n_in);
    for (int i = 0; i < n_in; i++) {
        dims[1 + i] = x->type.dim[x->type.rank - n_in + i];
        fan_in *= (double)dims[1 + i].size;
    }
    ts_scope_push(b, "%s", name);
    ts_value *y = product(b, x, ts_param(b, name, dims, n_in + 1, n_in, 1 / sqrt(fan_in)), n_in);
    ts_scope_pop(b);
    return pin_stream(b, y);
}

/* The table is converted, not its rows: what a gather of a split table moves is then in the compute dtype. */
ts_value *ts_embedding(ts_builder *b, ts_value *table, ts_value *ids)
{
    if (b->error.code != TS_OK) return b->poison;
    return pin_stream(b, ts_take(b, ts_convert(b, table, b->compute), ids, -1));
}

ts_value *ts_norm(ts_builder *b, ts_value *x, const char *name, double eps)
{
    if (b->error.code != TS_OK) return b->poison;
    ts_scope_push(b, "%s", name);
    ts_value *y = ts_rms_norm(
        b, x, ts_param(b, name, &x->type.dim[x->type.rank - 1], 1, 0, TS_INIT_ONES), eps);
    ts_scope_pop(b);
    return y;
}

/* ---- segments -------------------------------------------------------------------------------- */

enum { MAX_PERIOD = 8 };

/* Iterations of period p that the layers from i on allow. */
static int iterations(const uint64_t *s, int n, int i, int p)
{
    int count = 1;
    while (i + (count + 1) * p <= n && memcmp(s + i, s + i + count * p, (size_t)p * sizeof *s) == 0)
        count++;
    return count;
}

static int segments_of_period(const uint64_t *s, int n, int p, ts_segment *out, int *covered)
{
    int m = 0;
    *covered = 0;
    for (int i = 0; i < n;) {
        int count = i + p <= n ? iterations(s, n, i, p) : 1;
        out[m] = count > 1 ? (ts_segment){i, p, count} : (ts_segment){i, 1, 1};
        if (count > 1) *covered += p * count;
        i += out[m].period * out[m].count;
        m++;
    }
    return m;
}

int ts_layer_segments(const uint64_t *signatures, int n, bool unroll, ts_segment *out)
{
    int best = 1, best_covered = -1, covered;
    for (int p = 1; p <= MAX_PERIOD && p <= n && !unroll; p++) {
        segments_of_period(signatures, n, p, out, &covered);
        if (covered > best_covered) {
            best_covered = covered;
            best = p;
        }
    }
    return segments_of_period(signatures, n, unroll ? n + 1 : best, out, &covered);
}

/* ---- ts_layers ------------------------------------------------------------------------------- */

static void collect_hidden(ts_builder *b, const ts_segment *s, ts_value *const *stacked)
{
    for (int p = 0; p < s->period && b->error.code == TS_OK; p++) {
        if (!ts__arena_grow(b->graph->arena, &b->hidden, &b->cap_hidden, b->n_hidden,
                            sizeof *b->hidden)) {
            ts__mistake(b, TS_RESOURCE_EXHAUSTED, "memory is out while building graph %s",
                        b->graph->name);
            return;
        }
        b->hidden[b->n_hidden++] = (ts_hidden){stacked[p], s->first + p, s->period, s->count};
    }
}

static ts_value *run_segment(ts_builder *b, const char *prefix, const ts_segment *s,
                             ts_layer_fn layer, const void *context, ts_value *x)
{
    ts_layer_scope scope = {prefix, NULL, s->count > 1, s->first, 0, s->period, s->count},
                   *outer = b->layers;
    ts_value *carry, *ys[MAX_PERIOD], *results[MAX_PERIOD + 1];
    scope.repeat = ts_repeat_begin(b, s->count, false, &x, 1, NULL, 0, &carry, NULL);
    b->layers = &scope;
    for (int p = 0; p < s->period; p++) {
        scope.position = p;
        ts_scope_push(b, s->count > 1 ? "layers.%d+" : "layers.%d", s->first + p);
        carry = layer(b, context, s->first + p, carry);
        ts_scope_pop(b);
        ys[p] = carry;
    }
    b->layers = outer;
    int n_ys = b->keep_hidden ? s->period : 0;
    ts_repeat_end(b, scope.repeat, &carry, ys, NULL, n_ys, results);
    if (b->keep_hidden) collect_hidden(b, s, results + 1);
    return results[0];
}

ts_value *ts_layers(ts_builder *b, const char *prefix, int n, const uint64_t *signatures,
                    ts_layer_fn layer, const void *context, ts_value *x)
{
    if (b->error.code != TS_OK || n == 0) return x;
    ts_segment *s = ts_arena_alloc(b->graph->arena, (size_t)n * sizeof *s);
    if (!s)
        return ts__mistake(b, TS_RESOURCE_EXHAUSTED, "memory is out while building graph %s",
                           b->graph->name);
    int m = ts_layer_segments(signatures, n, b->unroll_layers, s);
    for (int i = 0; i < m; i++) x = run_segment(b, prefix, &s[i], layer, context, x);
    return x;
}
