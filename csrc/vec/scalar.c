/* The table in plain C: what the other instruction sets must equal bit for bit. */
#define OX_INLINE static inline          /* lanes/scalar.c says why */
#include "isa/scalar.h"
#define OX_TILE_Q 2
#define OX_TILE_G(mq) 1
#define OX_MOST_G 1
#define OX_WIDEN 4
#define OX_AIM_Q 48
#define OX_UNROLL
#define OX_VEC_NAME ox_vec_scalar
#include "vec/kernels.inc"
