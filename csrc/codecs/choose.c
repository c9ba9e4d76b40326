/* The codecs of each instruction set. */
#include "codecs.h"
#include "ox.h"

const ox_codec *ox_codecs_of(int isa) {
    switch (isa) {
#if defined(__x86_64__)
    case OX_ISA_AVX2: return ox_codecs_avx2;
    case OX_ISA_AVX512: return ox_codecs_avx512;
#endif
#if defined(__aarch64__)
    case OX_ISA_NEON: return ox_codecs_neon;
#endif
    default: return ox_codecs;
    }
}
