/* The table on AVX2 with FMA and F16C: 2 queries x 2 vectors, or up to 6 x 1, fill up to 12 of the 16 registers. */
#if defined(__x86_64__)
#include "isa/target.h"
OX_TARGET("avx2,fma,f16c")
#include "isa/avx2.h"
#define OX_TILE_Q 6
#define OX_TILE_G(mq) ((mq) < 3 ? 2 : 1)
#define OX_MOST_G 2
#define OX_WIDEN 6
#define OX_AIM_Q 96 /* as many again as elsewhere, since what is read is turned into floats once for each tile */
#define OX_VEC_NAME ox_vec_avx2
#include "vec/kernels.inc"
OX_TARGET_END
#endif
