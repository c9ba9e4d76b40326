/* The codecs on AVX-512 with VNNI. */
#if defined(__x86_64__)
#include "isa/target.h"
OX_TARGET("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")
#include "isa/avx512.h"
#define OX_CODECS ox_codecs_avx512
#include "codecs/table.inc"
OX_TARGET_END
#endif
