/* mesh_help.h – running a partitioned program in tests: a global value goes to the devices by its spec, what they give
 * comes back as one global value, and copies of the same piece must agree to the last bit. */
#ifndef TS_TEST_MESH_HELP_H
#define TS_TEST_MESH_HELP_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "exec/engine.h"
#include "mesh/partition_internal.h"
#include "slow.h"

static inline ts_mesh mesh_of(int64_t data, int64_t fsdp, int64_t tensor, int64_t K, int64_t G)
{
    ts_mesh m;
    ts_error err = {0};
    ts_mesh_options o = {.user = {data, fsdp, tensor}, .n_heads = K > 0, .kv_heads = {K}, .group = {G}};
    if (ts_mesh_make(&o, &m, &err) != TS_OK) fail_msg("%s", err.msg);
    return m;
}

static inline ts_engine *mesh_engine(const char *name, int devices)
{
    ts_engine *e = NULL;
    ts_error err = {0};
    const char *quick = TEST_QUICK_XLA;
    ts_engine_options o = {.struct_size = sizeof o,
                           .name = name,
                           .devices = devices,
                           .xla_flag = &quick,
                           .n_xla_flag = strcmp(name, "xla") == 0 && test_is_slow()};
    if (ts_engine_open(&o, &e, &err) != TS_OK) fail_msg("%s", err.msg);
    return e;
}

/* Copies between a global tensor and one device's piece. */
static inline void mesh_copy(const ts_mesh *m, const ts_spec *s, const ts_type *global, int device,
                             char *whole, char *piece, bool gather)
{
    ts_type local = ts_spec_local(m, s, global);
    int64_t offset[TS_MAX_RANK], n = ts_type_elements(&local);
    size_t size = ts_dtype_bytes(global->dtype);
    ts_spec_offset(m, s, global, device, offset);
    for (int64_t i = 0; i < n; i++) {
        int64_t rest = i, at = 0, scale = 1;
        for (int d = local.rank - 1; d >= 0; d--) {
            at += (rest % local.dim[d].size + offset[d]) * scale;
            rest /= local.dim[d].size;
            scale *= global->dim[d].size;
        }
        if (gather) memcpy(whole + (size_t)at * size, piece + (size_t)i * size, size);
        else memcpy(piece + (size_t)i * size, whole + (size_t)at * size, size);
    }
}

typedef struct mesh_program {
    ts_engine *engine;
    ts_executable *executable;
    const ts_graph *graph;
    int devices;
    ts_buffer **in, **out; /* [devices × n] */
} mesh_program;

static inline mesh_program mesh_compile(ts_engine *e, const ts_graph *g, int devices)
{
    mesh_program p = {.engine = e, .graph = g, .devices = devices};
    ts_error err = {0};
    int n_in = g->top->n_arg, n_out = g->top->n_result;
    if (ts_compile(e, g, &p.executable, &err) != TS_OK) fail_msg("%s", err.msg);
    p.in = ts_alloc_zero((size_t)(devices * n_in + 1) * sizeof *p.in);
    p.out = ts_alloc_zero((size_t)(devices * n_out + 1) * sizeof *p.out);
    for (int d = 0; d < devices; d++) {
        for (int i = 0; i < n_in; i++)
            assert_int_equal(ts_buffer_new(e, d, &g->top->arg[i]->type, &p.in[d * n_in + i], &err), TS_OK);
        for (int i = 0; i < n_out; i++) {
            int replaces = g->output[i].replaces;
            if (replaces >= 0) p.out[d * n_out + i] = p.in[d * n_in + replaces];
            else
                assert_int_equal(ts_buffer_new(e, d, &g->top->result[i]->type, &p.out[d * n_out + i], &err),
                                 TS_OK);
        }
    }
    return p;
}

static inline void mesh_free(mesh_program *p)
{
    int n_in = p->graph->top->n_arg, n_out = p->graph->top->n_result;
    for (int d = 0; d < p->devices; d++) {
        for (int i = 0; i < n_out; i++)
            if (p->graph->output[i].replaces < 0) ts_buffer_free(p->out[d * n_out + i]);
        for (int i = 0; i < n_in; i++) ts_buffer_free(p->in[d * n_in + i]);
    }
    ts_executable_free(p->executable);
    ts_free(p->in);
    ts_free(p->out);
}

static inline void mesh_execute(mesh_program *p)
{
    ts_error err = {0};
    if (ts_execute(p->executable, p->in, p->out, &err) != TS_OK || ts_wait(p->executable, &err) != TS_OK)
        fail_msg("%s", err.msg);
}

/* Input i from a global tensor. m NULL: one device. */
static inline void mesh_set(mesh_program *p, const ts_mesh *m, const ts_spec *s, const ts_type *global,
                            int i, void *whole)
{
    int n_in = p->graph->top->n_arg;
    for (int d = 0; d < p->devices; d++) {
        ts_buffer *b = p->in[d * n_in + i];
        size_t bytes = ts_type_bytes(&b->type);
        char *piece = m ? ts_alloc(bytes + 1) : whole;
        if (m) mesh_copy(m, s, global, d, whole, piece, false);
        assert_int_equal(ts_upload(b, piece, 0, bytes, NULL), TS_OK);
        if (m) ts_free(piece);
    }
}

/* Output i as a global tensor; devices that hold the same piece must hold the same bits. */
static inline void mesh_get(mesh_program *p, const ts_mesh *m, const ts_spec *s, const ts_type *global,
                            int i, void *whole, const char *what)
{
    int n_out = p->graph->top->n_result;
    for (int d = 0; d < p->devices; d++) {
        ts_buffer *b = p->out[d * n_out + i];
        size_t bytes = ts_type_bytes(&b->type);
        char *piece = ts_alloc(bytes + 1);
        assert_int_equal(ts_download(b, piece, 0, bytes, NULL), TS_OK);
        if (!m) memcpy(whole, piece, bytes);
        else if (ts_spec_owner(m, s, d)) mesh_copy(m, s, global, d, whole, piece, true);
        ts_free(piece);
    }
    for (int d = 0; m && d < p->devices; d++) {
        ts_buffer *b = p->out[d * n_out + i];
        size_t bytes = ts_type_bytes(&b->type);
        char *piece = ts_alloc(bytes + 1), *mine = ts_alloc(bytes + 1);
        assert_int_equal(ts_download(b, piece, 0, bytes, NULL), TS_OK);
        mesh_copy(m, s, global, d, whole, mine, false);
        if (memcmp(piece, mine, bytes) != 0) fail_msg("%s: device %d disagrees with the owner of its piece", what, d);
        ts_free(piece);
        ts_free(mine);
    }
}

/* ---- whole programs -------------------------------------------------------------------------- */

typedef struct mesh_case {
    int64_t data, fsdp, tensor;
} mesh_case;

enum { MESH_MAX_VALUES = 256 };

/* Global inputs or outputs of a graph, in its order. */
typedef struct mesh_values {
    int n;
    void *v[MESH_MAX_VALUES]; /* owns */
} mesh_values;

static inline void mesh_free_values(mesh_values *x)
{
    for (int i = 0; i < x->n; i++) ts_free(x->v[i]);
}

/* One execute of a program of g on a mesh (p NULL: one device), which is freed. */
static inline mesh_values mesh_run(mesh_program *x, const ts_graph *g, const ts_partition *p, mesh_values *in)
{
    const ts_mesh *m = p ? &p->mesh : NULL;
    mesh_values out = {.n = g->top->n_result};
    for (int i = 0; i < in->n; i++)
        mesh_set(x, m, p ? &p->in[i] : NULL, &g->top->arg[i]->type, i, in->v[i]);
    mesh_execute(x);
    for (int i = 0; i < out.n; i++) {
        const ts_type *t = &g->top->result[i]->type;
        out.v[i] = ts_alloc_zero(ts_type_bytes(t) + 1);
        mesh_get(x, m, p ? &p->out[i] : NULL, t, i, out.v[i], g->output[i].name);
    }
    mesh_free(x);
    return out;
}

/* The largest difference of any f32 output, by b's largest element of it; predicates must be equal. */
static inline double mesh_worst(const ts_graph *g, const mesh_values *a, const mesh_values *b, const char **where)
{
    double worst = 0;
    for (int i = 0; i < a->n; i++) {
        const ts_type *t = &g->top->result[i]->type;
        double largest = 0, error = 0;
        for (int64_t k = 0; t->dtype == TS_F32 && k < ts_type_elements(t); k++) {
            double x = ((const float *)a->v[i])[k], y = ((const float *)b->v[i])[k];
            if (!(fabs(x - y) <= error)) error = isfinite(x - y) ? fabs(x - y) : INFINITY;
            if (fabs(y) > largest) largest = fabs(y);
        }
        if (t->dtype == TS_PRED) assert_memory_equal(a->v[i], b->v[i], ts_type_bytes(t));
        double relative = largest > 0 ? error / largest : error;
        if (relative <= worst) continue;
        worst = relative;
        *where = g->output[i].name;
    }
    return worst;
}

#endif
