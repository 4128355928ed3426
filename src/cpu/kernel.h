/* cpu/kernel.h – the contract between the CPU engine and its kernels.
 *
 * A kernel computes one node. The engine asks prepare once, at compile; it may make a oneDNN primitive
 * and says how much scratch it wants. run is called in the step: it allocates nothing, keeps no state
 * between calls but what prepare made, and gives the same bits for the same input and thread count.
 * Operands and results are dense row-major. Parallelism is OpenMP inside the kernel, `threads` wide.
 */
#ifndef TS_CPU_KERNEL_H
#define TS_CPU_KERNEL_H

#include "ir/graph.h"

/* In order: each includes those before it. bf16 products need AVX512_BF16; without it bf16 is storage only. */
typedef enum ts_isa { TS_ISA_REF, TS_ISA_AVX2, TS_ISA_AVX512, TS_ISA_AVX512_BF16, TS_ISAS } ts_isa;
const char *ts_isa_name(ts_isa isa); /* "ref", "avx2", "avx512", "avx512_bf16" */
ts_isa ts_isa_detect(void);          /* by CPUID and XGETBV */
/* Name (or NULL: TESSERA_ISA, else detected) to an isa that this machine has; also caps oneDNN's, which
 * works only before its first use in the process. INVALID_ARGUMENT names the choices. */
ts_status ts_isa_choose(const char *name, ts_isa *out, ts_error *err);

typedef struct ts_cpu_call {
    const ts_node *node;
    void *const *in;  /* one pointer an operand */
    void *const *out; /* one pointer a result */
    void *scratch;    /* prepared->scratch_bytes, 64-byte aligned */
    void *state;      /* prepared->state */
    int threads;
} ts_cpu_call;

typedef struct ts_cpu_prepared {
    size_t scratch_bytes; /* for all threads together */
    void *state;          /* owns; freed by release */
    double flops, bytes;  /* estimate of one call, for stats */
} ts_cpu_prepared;

typedef struct ts_cpu_kernel {
    const char *name; /* ts_cpu_<op>_<dtype>_<isa> or a group's name */
    /* May be NULL: no scratch, no state. */
    ts_status (*prepare)(const ts_node *n, int threads, ts_cpu_prepared *out, ts_error *err);
    void (*run)(const ts_cpu_call *c);
    void (*release)(void *state);
    /* Bit o*8+i: result o may use operand i's buffer, when operand i has the same bytes and dies here. */
    uint64_t in_place;
} ts_cpu_kernel;

/* Plain C, any shape and dtype the op claims: one entry an op (ref/table.c expands ops.def; a missing
 * one fails the build). repeat is the engine's own. */
extern const ts_cpu_kernel ts_cpu_ref[TS_OPS];
/* The fastest kernel for this node at this isa; NULL: take ts_cpu_ref. */
const ts_cpu_kernel *ts_cpu_fast(const ts_node *n, ts_isa isa);

static inline const ts_cpu_kernel *ts_cpu_select(const ts_node *n, ts_isa isa)
{
    const ts_cpu_kernel *k = isa == TS_ISA_REF ? NULL : ts_cpu_fast(n, isa);
    return k ? k : &ts_cpu_ref[n->op];
}

#endif
