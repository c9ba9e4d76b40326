/* The codecs on AVX2 with FMA and F16C. */
#if defined(__x86_64__)
#include "isa/target.h"
OX_TARGET("avx2,fma,f16c")
#include "isa/avx2.h"
#define OX_CODECS ox_codecs_avx2
#include "codecs/table.inc"
OX_TARGET_END
#endif
