/* The lanes of each instruction set, where this CPU can run them. */
#include "lanes/panel.h"

extern const ox_lanes ox_lanes_scalar, ox_lanes_avx2, ox_lanes_avxvnni, ox_lanes_avx512, ox_lanes_avx512intel, ox_lanes_avx512bf16, ox_lanes_avx512amx, ox_lanes_neon, ox_lanes_neondot, ox_lanes_neoni8mm;
int ox_avx512bf16_agrees(void);         /* whether this processor's bf16 dots are the fused multiply-adds of the other tables, bit for bit */

const ox_lanes *ox_lanes_table(int index)
{
    unsigned has = ox_cpu_features();
    (void)has;
    switch (index) {
    case LANES_SCALAR: return &ox_lanes_scalar;
#if defined(__x86_64__)
    case LANES_AVX2: return has & OX_HAS_AVX2 ? &ox_lanes_avx2 : NULL;
#if __GNUC__ >= 11 || __clang_major__ >= 12
    case LANES_AVXVNNI: return has & OX_HAS_AVX_VNNI ? &ox_lanes_avxvnni : NULL;
#endif
    case LANES_AVX512: return has & OX_HAS_AVX512 ? &ox_lanes_avx512 : NULL;
    case LANES_AVX512INTEL: return has & OX_HAS_AVX512 ? &ox_lanes_avx512intel : NULL;
#if __GNUC__ >= 10 || __clang_major__ >= 9
    case LANES_AVX512BF16: return has & OX_HAS_AVX512 && has & OX_HAS_AVX512_BF16 && ox_avx512bf16_agrees() ? &ox_lanes_avx512bf16 : NULL;
#endif
#if OX_WITH_AMX
    case LANES_AVX512AMX: return has & OX_HAS_AMX && ox_lanes_table(LANES_AVX512BF16) ? &ox_lanes_avx512amx : NULL;
#endif
#endif
#if defined(__aarch64__)
    case LANES_NEON: return &ox_lanes_neon;
    case LANES_NEONDOT: return has & OX_HAS_DOTPROD ? &ox_lanes_neondot : NULL;
#if OX_WITH_I8MM
    case LANES_NEONI8MM: return has & OX_HAS_DOTPROD && has & OX_HAS_I8MM ? &ox_lanes_neoni8mm : NULL;
#endif
#endif
    default: return NULL;
    }
}

int ox_lanes_best(int isa)
{
    if (isa == OX_ISA_AVX2)
        return ox_lanes_table(LANES_AVXVNNI) ? LANES_AVXVNNI : LANES_AVX2;
    if (isa == OX_ISA_NEON)
        return ox_lanes_table(LANES_NEONI8MM) ? LANES_NEONI8MM : ox_lanes_table(LANES_NEONDOT) ? LANES_NEONDOT : LANES_NEON;
    if (isa == OX_ISA_AVX512)
        return ox_lanes_table(LANES_AVX512AMX) ? LANES_AVX512AMX : ox_lanes_table(LANES_AVX512BF16) ? LANES_AVX512BF16
               : ox_core_kind() == OX_CORE_INTEL ? LANES_AVX512INTEL : LANES_AVX512;
    return LANES_SCALAR;
}
