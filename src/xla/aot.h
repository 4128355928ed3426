/* xla/aot.h – a program compiled for a topology that is not there, in a child process. */
#ifndef TS_AOT_H
#define TS_AOT_H

#include "ir/graph.h"
#include "xla/stablehlo.h"
#include "xla/topology.h"

typedef struct ts_aot_job {
    size_t struct_size;
    const char *plugin;      /* path of the library */
    const ts_topology *topology;
    int replicas;            /* ≤ topology->devices; the first ones of the topology, by id */
    const ts_graph *graph;   /* partitioned already, or global with a sharding; borrowed */
    const ts_sharding *sharding; /* NULL: partitioned already */
    ts_precision precision;  /* as in stablehlo.h */
    const char *const *flag; /* as in compile_options.h */
    int n_flag;
    const char *dump_to;     /* folder that keeps the programs, before and after; "" or NULL: none */
    const char *save_to;     /* compiled_trainstep_file; "" or NULL: none */
    double timeout;          /* seconds; 0: an hour */
} ts_aot_job;

/* Fills all of out but total_seconds. Without network, quietly; a plugin that dies is UNAVAILABLE with its last line.
 * Out of memory on the device is TS_OK with fits = false and the largest buffers by their names in the model; of other
 * memory, or without a figure, RESOURCE_EXHAUSTED with the compiler's words. Owns *out until ts_aot_report_free. */
TS_MUST_CHECK ts_status ts__aot_compile(const ts_aot_job *job, ts_aot_report *out, ts_error *err);

#endif
