/* exec/footprint_internal.h – what footprint.c and footprint_fuse.c share: notes on every value of
 * a lowered graph.
 *
 * A value has *memory* where an accelerator's compiler would give it a buffer; else it is computed
 * inside whatever reads it, from the values with memory that it comes from.
 */
#ifndef TS_FOOTPRINT_INTERNAL_H
#define TS_FOOTPRINT_INTERNAL_H

#include "exec/footprint.h"

typedef enum ts_fuse_class {
    TS_FUSE_SOURCE,  /* constants and the like: no operands, no memory */
    TS_FUSE_RENAME,  /* the same bytes under another shape or layout */
    TS_FUSE_MOVE,    /* computed where it is read: slices, broadcasts, conversions */
    TS_FUSE_ELEMENT, /* arithmetic, element by element */
    TS_FUSE_KERNEL,  /* writes memory, but may take the element-wise ops behind it along */
    TS_FUSE_WHOLE    /* writes memory: collectives, loops */
} ts_fuse_class;
ts_fuse_class ts__fuse_class(const ts_node *n);

typedef struct ts_fuse_value {
    bool memory;
    bool kernel; /* a kernel's result, or what the kernel took along: memory unless it goes straight
                    into a loop's stack or sum */
    int order;   /* of its definition; 0: an argument */
    int uses;    /* operands and yields of its region that it is */
    const ts_node *user; /* the last such node; NULL: the region yields it */
    int root;            /* fused: into which memory it goes, an id; or FUSE_… */
    int source;          /* the one large value it is a function of, an id; or FUSE_… */
} ts_fuse_value;
enum { FUSE_NONE = -1, FUSE_MANY = -2, FUSE_UPDATE = -3 };

/* value [g->next_id], zeroed. */
void ts__fuse(const ts_graph *g, ts_fuse_value *value);
/* What a repeat's argument is a slice of, or stands for; NULL: it is a carry, or an input of the
 * graph. */
const ts_value *ts__fuse_outer(const ts_value *arg);

#endif
