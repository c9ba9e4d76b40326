/* The lanes on AVX2 with FMA and F16C. */
#if defined(__x86_64__)
#include "isa/target.h"
OX_TARGET("avx2,fma,f16c")
#include "isa/avx2.h"
#define OX_TILE_ROWS 4
#define OX_PART_ROWS 4
/* Eight rows go two panels at a time where codes are dear to put together (docs/kernel-figures.md). */
#define OX_MOST_BY_TILE(family, store, bits) \
    ((bits) > 5 && (store) < 8 || (family) == FAMILY_256 && (store) & 1 ? 7 : OX_FEW_ROWS(family))
#define OX_LANES_NAME "avx2"
#define OX_LANES_TABLE ox_lanes_avx2
#include "lanes/table.inc"
OX_TARGET_END
#endif
