/* The lanes on AVX2 with FMA and F16C. */
#if defined(__x86_64__)
#include "isa/target.h"
OX_TARGET("avx2,fma,f16c")
#include "isa/avx2.h"
#define OX_TILE_ROWS 4
#define OX_PART_ROWS 4
/* Up to how many rows a panel goes by itself: few where codes are dear to put together, more where a tile of four is as fast as a wide one
 * (docs/kernel-figures.md). */
#define OX_MOST_BY_TILE(family, store, bits)                                                                              \
    ((family) == FAMILY_32 && ((store) == 8 || (store) == 4 || (bits) < 5) ? (store) == 8 ? 24 : 12                       \
     : (family) == FAMILY_256 && ((bits) == 6 || (bits) == 7 || (store) & 1) ? 7 : 8)
#define OX_FEW_OF(family, store, bits) (OX_MOST_BY_TILE(family, store, bits) > 8 ? OX_MOST_BY_TILE(family, store, bits) : 8)
#define OX_LANES_NAME "avx2"
#define OX_LANES_TABLE ox_lanes_avx2
#include "lanes/table.inc"
OX_TARGET_END
#endif
