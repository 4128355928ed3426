/* cpu/code.h – a graph as a line of instructions, while it is compiled for the CPU.
 *
 * emit.c flattens regions into one line; coalesce.c lets values share memory; link.c gives every block
 * an address and makes the program that run.c runs. A position is an index into the line.
 *
 * A *block* is memory: a temporary, a constant, an input's or an output's buffer. A *life* is one use
 * of a whole block: written at position first, read for the last time at position last; the ranges are
 * exact within one iteration of the loop it belongs to. A block may have several lives: a carry's are
 * the initial value, the body's argument, the new value and the result, and between two of them others
 * may use the block. A *ref* is an address in a block: an offset, and a stride for each enclosing loop.
 *
 * Invariants: a life's loop encloses every position that touches it; a position inside a loop deeper
 * than the life's counts as that whole loop; blocks merge only when their lives do not meet, or meet at
 * one instruction that may work in place (contact, coalesce.c).
 */
#ifndef TS_CPU_CODE_H
#define TS_CPU_CODE_H

#include "cpu/kernel.h"

enum { TS_CPU_MAX_LOOPS = 8, TS_CPU_ALIGN = 64 };

/* Positions before the first and behind the last instruction. */
enum { TS_CODE_START = -1, TS_CODE_FOREVER = INT32_MAX };

typedef enum ts_code_kind {
    TS_CODE_KERNEL, /* in → out by node's kernel */
    TS_CODE_COPY,   /* in[k] → out[k], all at once (a parallel copy) */
    TS_CODE_STACK,  /* in[0] → out[0], this iteration's slice of a stacked result */
    TS_CODE_ADD,    /* out[0] += in[0], or = in the first iteration */
    TS_CODE_INDEX,  /* out[0] = this device's coordinate on node's axis */
    TS_CODE_COLLECTIVE, /* in[0] → out[0] on all devices at once */
    TS_CODE_BEGIN,
    TS_CODE_END /* of loop */
} ts_code_kind;

typedef struct ts_code_ref {
    int block;
    int64_t offset, stride[TS_CPU_MAX_LOOPS]; /* bytes; stride by depth of the loop */
} ts_code_ref;

typedef struct ts_code_arg {
    ts_code_ref ref;
    int life;
    size_t bytes;
} ts_code_arg;

typedef struct ts_code_instr {
    ts_code_kind kind;
    const ts_node *node;
    const ts_cpu_kernel *kernel; /* KERNEL */
    uint64_t in_place; /* as ts_cpu_kernel's; KERNEL, COLLECTIVE */
    ts_cpu_prepared prepared; /* state: owned until link takes it over */
    int loop;                 /* innermost enclosing, −1 none; BEGIN and END: the loop itself */
    int n_in, n_out;
    ts_code_arg *in, *out;
    int scratch;    /* block, −1 none */
    ts_dtype dtype; /* ADD */
} ts_code_instr;

typedef struct ts_code_loop {
    int parent, depth; /* −1 and 0 outermost */
    int64_t n;
    bool reverse;
    int begin, end; /* positions */
} ts_code_loop;

typedef enum ts_block_kind {
    TS_BLOCK_TEMP,
    TS_BLOCK_CONSTANT,
    TS_BLOCK_INPUT,
    TS_BLOCK_OUTPUT
} ts_block_kind;

typedef struct ts_code_block {
    ts_block_kind kind;
    int index; /* which constant, input, output */
    size_t bytes;
    bool read_only;
    int parent;                               /* merged into: −1 none */
    int64_t offset, stride[TS_CPU_MAX_LOOPS]; /* in parent */
    int first_life, last_life;                /* list of lives, merged ones included */
} ts_code_block;

typedef struct ts_code_life {
    int block, loop;
    int32_t first, last;
    int next;
} ts_code_life;
typedef struct ts_code_use {
    int life, loop;
    int32_t at;
} ts_code_use;

/* A constant, made once at compile. Splats of one bit pattern share the longest. */
typedef struct ts_code_constant {
    const ts_node *node;
    uint64_t bits;
    int block;
} ts_code_constant;

typedef struct ts_code {
    const ts_graph *graph;
    ts_isa isa;
    int threads;
    bool share;         /* false: every value has memory of its own (debugging) */
    ts_arena *arena;    /* arg lists */
    ts_code_arg *value; /* [graph->next_id] where each value is */
    ts_code_instr **instr;
    ts_code_loop *loop;
    ts_code_block *block;
    ts_code_life *life;
    ts_code_use *use;
    ts_code_constant *constant;
    int n_instr, cap_instr, n_loop, cap_loop, n_block, cap_block, n_life, cap_life, n_use, cap_use,
        n_constant, cap_constant;
} ts_code;

/* emit.c */
ts_status ts__code_emit(ts_code *c, const ts_graph *g, ts_error *err);
ts_status ts__code_block_new(ts_code *c, ts_block_kind kind, int index, size_t bytes, int *out,
                             ts_error *err);
ts_status ts__code_life_new(ts_code *c, int block, int32_t first, int loop, int *out,
                            ts_error *err);
void ts__code_free(ts_code *c); /* releases what prepare made and link did not take */
/* view.c: true when the node only gives another shape to its operands' bytes; result o is operand o at offset. */
bool ts__cpu_view(const ts_node *n, int64_t *offset_bytes);
/* coalesce.c */
void ts__code_coalesce(ts_code *c);
/* Down to the block that holds it. */
ts_code_ref ts__code_resolve(const ts_code *c, ts_code_ref ref);
bool ts__code_same_place(const ts_code_ref *a, const ts_code_ref *b);

#endif
