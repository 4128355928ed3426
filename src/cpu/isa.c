/* cpu/isa.c – which instruction sets this machine has, and which of them a run uses.
 *
 * Detection reads CPUID leafs 1, 7.0 and 7.1 and XGETBV: an instruction set counts only when the
 * operating system saves its registers. A choice by name caps our kernels and oneDNN's; oneDNN takes
 * its cap only before its first use in the process, so engines of different names belong in different
 * processes (a later, lower choice still caps ours, and a warning says that oneDNN's stays).
 * With no name and no TESSERA_ISA the best of ours is taken and oneDNN is left to its own detection.
 * The reference kernels never call oneDNN.
 */
#include "base/log.h"
#include "cpu/kernel.h"

#include <cpuid.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>
#include <stdlib.h>

static const char *const names[TS_ISAS] = {"ref", "avx2", "avx512", "avx512_bf16"};

const char *ts_isa_name(ts_isa isa)
{
    return (unsigned)isa < TS_ISAS ? names[isa] : "?";
}

/* The register sets that the operating system saves, by bit of XCR0. */
static uint64_t saved_registers(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

ts_isa ts_isa_detect(void)
{
    enum { YMM = 0x6, ZMM = 0xe6 };
    unsigned a, b, c, d, b7, c7, d7, a71 = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return TS_ISA_REF;
    bool os = c & bit_OSXSAVE, fma = c & bit_FMA, f16c = c & bit_F16C, avx = c & bit_AVX;
    if (!os || !avx || !fma || !f16c || !__get_cpuid_count(7, 0, &a, &b7, &c7, &d7))
        return TS_ISA_REF;
    unsigned subleafs = a;
    uint64_t saved = saved_registers();
    if ((saved & YMM) != YMM || !(b7 & bit_AVX2)) return TS_ISA_REF;
    unsigned need = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
    if ((saved & ZMM) != ZMM || (b7 & need) != need) return TS_ISA_AVX2;
    if (subleafs >= 1 && __get_cpuid_count(7, 1, &a71, &b, &c, &d) && a71 & 1u << 5)
        return TS_ISA_AVX512_BF16;
    return TS_ISA_AVX512;
}

static void cap_onednn(ts_isa isa)
{
    static const dnnl_cpu_isa_t caps[TS_ISAS] = {
        [TS_ISA_AVX2] = dnnl_cpu_isa_avx2,
        [TS_ISA_AVX512] = dnnl_cpu_isa_avx512_core,
        [TS_ISA_AVX512_BF16] = dnnl_cpu_isa_avx512_core_bf16,
    };
    if (isa == TS_ISA_REF) return;
    if (dnnl_set_max_cpu_isa(caps[isa]) == dnnl_success) return;
    if (dnnl_get_effective_cpu_isa() == caps[isa]) return;
    ts_log(TS_LOG_WARNING,
           "oneDNN was used before in this process, so %s caps the kernels of Tessera alone",
           ts_isa_name(isa));
}

ts_status ts_isa_choose(const char *name, ts_isa *out, ts_error *err)
{
    const char *source = "isa";
    ts_isa best = ts_isa_detect();
    *out = best;
    if (!name) {
        name = getenv("TESSERA_ISA");
        source = "TESSERA_ISA";
    }
    if (!name || !*name) return TS_OK;
    char choices[100];
    size_t length = 0;
    for (int i = 0; i <= (int)best; i++)
        length += (size_t)snprintf(choices + length, sizeof choices - length, "%s%s", i ? ", " : "",
                                   names[i]);
    for (int i = 0; i < TS_ISAS; i++) {
        if (strcmp(name, names[i]) != 0) continue;
        if (i > (int)best)
            return TS_ERROR(err, TS_INVALID_ARGUMENT,
                            "%s=%s: this machine's CPU lacks it; it has %s", source, name, choices);
        *out = (ts_isa)i;
        cap_onednn(*out);
        return TS_OK;
    }
    return TS_ERROR(err, TS_INVALID_ARGUMENT, "%s=%s is no instruction set; this machine has %s",
                    source, name, choices);
}
