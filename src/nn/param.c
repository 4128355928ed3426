/* nn/param.c – parameters: their names and shapes in published files, and their initial values.
 *
 * A parameter is an input of the graph. Inside ts_layers those of equal layers are one stacked
 * input [layers, …] whose slice the body sees; in files each layer has its own name. Dimensions are
 * stored as a published file stores them, outputs first, so that a file's tensor is the parameter
 * reshaped.
 */
#include "base/random.h"
#include "nn/layers.h"

#include <math.h>
#include <stdio.h>
#include <xxhash.h>

char *ts_param_name(const ts_param_info *p, int k, char *buf, size_t n)
{
    const char *open = p->count ? strchr(p->name, '{') : NULL,
               *close = open ? strchr(open, '}') : NULL;
    if (!close) {
        snprintf(buf, n, "%s", p->name);
        return buf;
    }
    snprintf(buf, n, "%.*s%d%s", (int)(open - p->name), p->name, p->first + k * p->step, close + 1);
    return buf;
}

int64_t ts_param_elements(const ts_param_info *p)
{
    int64_t n = 1;
    for (int i = 0; i < p->file_rank; i++) n *= p->file_dim[i];
    return n;
}

bool ts_pattern_match(const char *pattern, const char *name)
{
    const char *star = NULL, *retry = NULL;
    while (*name) {
        if (*pattern == '*') {
            star = ++pattern;
            retry = name;
        } else if (*pattern == '?' || *pattern == *name) {
            pattern++;
            name++;
        } else if (star) {
            pattern = star;
            name = ++retry;
        } else {
            return false;
        }
    }
    while (*pattern == '*') pattern++;
    return !*pattern;
}

static bool any_matches(const char *const *patterns, int n, const char *name)
{
    for (int i = 0; i < n; i++)
        if (ts_pattern_match(patterns[i], name)) return true;
    return false;
}

bool ts_param_matches(ts_builder *b, const ts_param_info *p, const char *const *patterns, int n,
                      const char *what)
{
    char name[512], in[512] = "", out[512] = "";
    for (int k = 0; k < (p->count ? p->count : 1); k++) {
        ts_param_name(p, k, name, sizeof name);
        memcpy(any_matches(patterns, n, name) ? in : out, name, sizeof name);
    }
    if (*in && *out)
        ts__mistake(b, TS_INVALID_ARGUMENT,
                    "%s matches %s and not %s, which are layers of one stacked tensor; match all "
                    "layers, or set scan_layers=false",
                    what, in, out);
    return *in;
}

/* ---- initial values -------------------------------------------------------------------------- */

/* One normal an element by Box and Muller 1958, in double; u in (0, 1]. */
static double normal(const uint32_t bits[2])
{
    double u = (bits[0] + 1.0) * 0x1p-32, v = bits[1] * 0x1p-32;
    return sqrt(-2 * log(u)) * cos(6.283185307179586476925 * v);
}

void ts_init_values(const char *name, double init, uint64_t seed, int64_t first, int64_t count,
                    float *out)
{
    uint64_t h = XXH3_64bits_withSeed(name, strlen(name), seed);
    const uint32_t key[2] = {(uint32_t)h, (uint32_t)(h >> 32)};
#pragma omp parallel for schedule(static) if (count > 4096)
    for (int64_t i = 0; i < count; i++) {
        if (init == TS_INIT_ONES || init == TS_INIT_ZEROS) {
            out[i] = init == TS_INIT_ONES;
            continue;
        }
        uint32_t bits[2];
        ts_threefry(key, (uint32_t)(first + i), (uint32_t)((uint64_t)(first + i) >> 32), bits);
        out[i] = (float)(init * normal(bits));
    }
}

/* ---- parameters ------------------------------------------------------------------------------ */

static ts_value *out_of_memory(ts_builder *b)
{
    return ts__mistake(b, TS_RESOURCE_EXHAUSTED, "memory is out while building graph %s",
                       b->graph->name);
}

static ts_param_info *param_new(ts_builder *b, const char *name, const ts_dim *dims, int rank,
                                int in_dims, double init)
{
    ts_graph *g = b->graph;
    if (!ts__arena_grow(g->arena, &g->param, &g->cap_param, g->n_param, sizeof *g->param))
        return NULL;
    ts_param_info *p = &g->param[g->n_param];
    *p = (ts_param_info){.name = ts_arena_strdup(g->arena, name), .init = init};
    p->file_rank = in_dims ? 2 : rank;
    for (int i = 0; i < rank; i++) p->file_dim[i] = dims[i].size;
    if (in_dims) {
        p->file_dim[0] = p->file_dim[1] = 1;
        for (int i = 0; i < rank; i++) p->file_dim[i >= rank - in_dims] *= dims[i].size;
    }
    return p->name ? p : NULL;
}

static ts_param_info *param_find(ts_graph *g, const char *name)
{
    for (int i = 0; i < g->n_param; i++)
        if (strcmp(g->param[i].name, name) == 0) return &g->param[i];
    return NULL;
}

/* In ts_layers: "model.layers.{0..30:2}.mlp.up_proj.weight", or with the plain number where
 * unrolled. */
static const char *full_name(ts_builder *b, const char *name)
{
    const ts_layer_scope *l = b->layers;
    ts_arena *a = b->graph->arena;
    if (!l) return ts_arena_strdup(a, name);
    int first = l->first + l->position;
    if (!l->stacked) return ts_arena_printf(a, "%s.%d.%s", l->prefix, first, name);
    return ts_arena_printf(a, "%s.{%d..%d:%d}.%s", l->prefix, first,
                           first + (l->count - 1) * l->period, l->period, name);
}

ts_value *ts_param(ts_builder *b, const char *name, const ts_dim *dims, int rank, int in_dims,
                   double init)
{
    if (b->error.code != TS_OK) return b->poison;
    const ts_layer_scope *l = b->layers;
    bool stacked = l && l->stacked;
    const char *full = full_name(b, name);
    if (!full) return out_of_memory(b);
    ts_param_info *p = param_find(b->graph, full);
    if (!p) {
        ts_dim all[TS_MAX_RANK + 1] = {{"layers", stacked ? l->count : 0}};
        if (rank < 0 || rank + stacked > TS_MAX_RANK)
            return ts__mistake(b, TS_INVALID_ARGUMENT, "parameter %s has rank %d; at most %d fit",
                               full, rank, TS_MAX_RANK - stacked);
        for (int i = 0; i < rank; i++) all[i + stacked] = dims[i];
        if (!(p = param_new(b, full, dims, rank, in_dims, init))) return out_of_memory(b);
        p->value = ts_input(b, full, TS_F32, all, rank + stacked);
        if (b->error.code != TS_OK) return b->poison;
        b->graph->n_param++;
        if (stacked) {
            p->first = l->first + l->position;
            p->step = l->period;
            p->count = l->count;
        }
    }
    if (!stacked) return ts__use(b, p->value);
    ts_value *outer = ts__use_in(b, l->repeat->outer, p->value);
    return b->error.code == TS_OK ? ts__repeat_add(b, l->repeat, 1, outer, NULL) : b->poison;
}
