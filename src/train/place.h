/* train/place.h – a program of a run on the devices of its mesh: the global graph, and what a device runs.
 *
 * Users of a program speak of global tensors: names, shapes and bytes are those of the global graph. With one device
 * there is no partition and the global graph itself is compiled.
 */
#ifndef TS_PLACE_H
#define TS_PLACE_H

#include "exec/engine.h"
#include "mesh/partition.h"
#include "train/config.h"
#include "train/piece.h"

typedef struct ts_placed {
    const ts_graph *global;     /* borrowed; outlives this */
    const ts_graph *graph;      /* for the engine: the partition's; or the global one, with one device or automatic */
    ts_partition *partition;    /* owned; NULL: one device */
    const ts_axis_rules *rules; /* of the configuration, which outlives this */
    bool automatic;             /* shard_mode=auto: the engine partitions */
} ts_placed;

typedef enum ts_place_how {
    TS_PLACE_TRAIN,  /* says in a warning what cannot be split */
    TS_PLACE_QUIET,  /* another program of the same run: it was said */
    TS_PLACE_SAMPLE, /* the same; and a batch that does not divide stays whole */
} ts_place_how;

/* As the configuration lays it out; c NULL: one device. */
TS_MUST_CHECK ts_status ts_place(const ts_config *c, const ts_graph *global, ts_place_how how,
                                 ts_placed *out, ts_error *err);
ts_placed ts_placed_whole(const ts_graph *global); /* on one device; owns nothing */
void ts_placed_free(ts_placed *p);                 /* what was never placed is fine */

/* For an engine that partitions by itself; p outlives it. Only where p->automatic. */
ts_sharding ts_placed_sharding(const ts_placed *p);
/* Compiled by the engine, or loaded from a file (NULL: none). */
TS_MUST_CHECK ts_status ts_placed_compile(const ts_placed *p, ts_engine *e, const char *file,
                                          ts_executable **out, ts_error *err);

int ts_placed_devices(const ts_placed *p);
const ts_mesh *ts_placed_mesh(const ts_placed *p); /* NULL: one device */
ts_spec ts_placed_in(const ts_placed *p, int input);
ts_spec ts_placed_out(const ts_placed *p, int output);
/* What a device holds of a value of the global graph. */
ts_type ts_placed_local(const ts_placed *p, const ts_spec *s, const ts_type *global);
/* The first device that holds the same piece; for one device itself. */
int ts_placed_home(const ts_placed *p, const ts_spec *s, int device);

#endif
