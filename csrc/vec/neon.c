/* The table on AArch64 NEON: 3 queries x 2 vectors fill 24 of the 32 registers. */
#if defined(__aarch64__)
#include "isa/neon.h"
#define OX_TILE_Q 3
#define OX_TILE_G(mq) 2
#define OX_MOST_G 2
#define OX_WIDEN 6
#define OX_AIM_Q 48
#define OX_VEC_NAME ox_vec_neon
#include "vec/kernels.inc"
#endif
