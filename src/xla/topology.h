/* xla/topology.h – accelerator slices by name: "v6e:4x4", and the forms that MaxText's users type. */
#ifndef TS_TOPOLOGY_H
#define TS_TOPOLOGY_H

#include "base/base.h"

typedef struct ts_topology {
    char plugin[16];        /* that compiles for it: "tpu", "cpu" */
    char name[64];          /* as PJRT wants it: "v6e:4x4" */
    char accelerator[32];   /* TPU_ACCELERATOR_TYPE: "v6e-16" */
    int chips, devices;     /* tpu7x: two devices a chip */
    int n_torus;            /* 0: devices without a place, of a cpu */
    /* Sizes, major first, such that device ids are row-major: chips along z, y, x – a name counts them from x on –
     * then the devices of a chip where it has several. */
    int64_t torus[4];
    int64_t capacity_bytes; /* memory of one device that a program may use; 0: unknown */
} ts_topology;

/* "v6e:4x4", "v6e-16" (as 4x4), "tpu7x:2x2x2", "v5e:…", "v5p:…", "cpu:N". INVALID_ARGUMENT names the nearest that
 * exists. slices: compile_topology_num_slices; more than one is refused until meshes span slices. */
TS_MUST_CHECK ts_status ts__topology_parse(const char *text, int64_t slices, ts_topology *out,
                                           ts_error *err);

#endif
