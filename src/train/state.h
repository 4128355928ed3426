/* train/state.h – the model's tensors on an engine: parameters and moments by the names of the graph's
 * inputs, where they come from, and how they are read back.
 *
 * One state serves several executables (train step, evaluation, next token): each binds its inputs to the
 * state's buffers by name and adds its own batch buffers. In files every layer has its own tensor. All names, shapes
 * and element numbers here are of the whole tensor, whichever devices hold its pieces: a file does not know the mesh.
 */
#ifndef TS_TRAIN_STATE_H
#define TS_TRAIN_STATE_H

#include "ckpt/safetensors.h"
#include "exec/engine.h"
#include "nn/nn.h"
#include "train/place.h"

typedef struct ts_state ts_state;

/* Buffers for the parameters and, where the graph has them, the moments of a program (zero), on every device of its
 * mesh. Borrows the engine, and what is placed, until ts_state_free. */
ts_status ts_state_place(ts_engine *e, const ts_placed *p, ts_state **out, ts_error *err);
ts_status ts_state_new(ts_engine *e, const ts_graph *g, ts_state **out,
                       ts_error *err); /* one device */
void ts_state_free(ts_state *s);       /* NULL is fine */
/* A device's buffer of an input "model.…" or "adam.…"; NULL when there is none. Devices share one where they hold the
 * same, nothing writes it and the engine can. spec (may be NULL) gets how it lies on the mesh. */
ts_buffer *ts_state_find(const ts_state *s, const char *name, int device, ts_spec *spec);
const ts_graph *ts_state_graph(const ts_state *s); /* the global one */
int64_t ts_state_parameters(const ts_state *s); /* elements of all parameters */

ts_status ts_state_initialise(ts_state *s, uint64_t seed, ts_error *err);
/* Parameters from tensors under published names; every one must be there with the right shape. Tensors that the
 * model does not know are an error too, but for `lm_head.weight` of a tied model and rotary buffers. */
ts_status ts_state_load(ts_state *s, ts_tensors *t, ts_error *err);
/* The moments "adam.m.NAME", "adam.v.NAME" as well. */
ts_status ts_state_load_moments(ts_state *s, ts_tensors *t, ts_error *err);

/* One layer's tensor: element by element what a file holds. */
typedef struct ts_state_tensor {
    char name[520]; /* "model.layers.3.…" or "adam.m.model.layers.3.…" */
    const ts_param_info *param;
    const ts_state *state;
    int input, layer; /* of the graph; of the stack, 0 where there is none */
    size_t elements;
} ts_state_tensor;
size_t ts_state_tensor_count(const ts_state *s); /* parameters first, then moments */
void ts_state_tensor_at(const ts_state *s, size_t i, ts_state_tensor *out);
/* Elements first … first + n − 1, each from the device that owns it. */
ts_status ts_state_read(const ts_state_tensor *t, uint64_t first, size_t n, float *to,
                        ts_error *err);
/* What one device writes of one layer's tensor into a checkpoint. */
typedef struct ts_state_part {
    ts_state_tensor tensor;
    int device;       /* the owner: at index 0 of every axis that does not split the tensor */
    ts_box box;       /* of the tensor as the graph has it, a layer of it; its published shape is param->file_dim */
    bool frozen;
    const ts_buffer *buffer; /* the device's, of all layers */
    size_t at;               /* where the part begins in the buffer, bytes */
} ts_state_part;
/* Every element of the state once: by device, then as ts_state_tensor_at. Owns: caller, ts_free. */
TS_MUST_CHECK ts_status ts_state_parts(const ts_state *s, ts_state_part **out, size_t *n,
                                       ts_error *err);
/* Elements first … first + n − 1 of a part's box, from its device. */
TS_MUST_CHECK ts_status ts_state_part_read(const ts_state_part *p, uint64_t first, size_t n,
                                           float *to, ts_error *err);

/* DATA_LOSS where devices that hold the same piece of a tensor differ in one bit: names tensor and devices. */
ts_status ts_state_check_replicas(const ts_state *s, ts_error *err);

/* ---- an executable with its own batch buffers ------------------------------------------------ */

typedef struct ts_bound ts_bound;
/* Compiles g (borrowed until ts_bound_free) for one device and binds its inputs: those the state has, and new buffers
 * for the others; outputs that replace an input use its buffer. state may be NULL. */
ts_status ts_bound_new(ts_engine *e, const ts_graph *g, ts_state *state, ts_bound **out,
                       ts_error *err);
/* The same on all devices of a mesh, for up to slots executions in flight, each with batch and result buffers of its
 * own: outputs replace inputs of the state only. file: the program as an engine's load takes it, instead of compiling;
 * or NULL. Borrows what is placed. */
ts_status ts_bound_open(ts_engine *e, const ts_placed *p, ts_state *state, int slots,
                        const char *file, ts_bound **out, ts_error *err);
void ts_bound_free(ts_bound *b); /* waits for what is in flight; NULL is fine */
ts_executable *ts_bound_executable(const ts_bound *b);
/* Writes a whole input of the next execution, each device its piece; one that is not there is a programmer's error and
 * asserted. bytes must be the global input's size. */
ts_status ts_bound_set(ts_bound *b, const char *input, const void *data, size_t bytes,
                       ts_error *err);
/* The same for all executions from now on, before the first of them is in flight. */
ts_status ts_bound_keep(ts_bound *b, const char *input, const void *data, size_t bytes,
                        ts_error *err);
bool ts_bound_has(const ts_bound *b, const char *input);
/* A whole output of the execution waited for last, put together from the devices' pieces. */
ts_status ts_bound_get(ts_bound *b, const char *output, void *data, size_t bytes, ts_error *err);
/* Global; NULL: there is no such output. */
const ts_type *ts_bound_output_type(const ts_bound *b, const char *output);
ts_status ts_bound_dispatch(ts_bound *b, ts_error *err); /* fewer than slots may be in flight */
ts_status ts_bound_wait(ts_bound *b, ts_error *err);     /* for the oldest in flight */
ts_status ts_bound_execute(ts_bound *b, ts_error *err);  /* both, with nothing else in flight */

#endif
