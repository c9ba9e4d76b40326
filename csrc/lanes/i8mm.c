/* Products of many rows on FEAT_I8MM (sweep.h), for a table of lanes/neondot.c. */
#include "ox.h"
#if OX_WITH_I8MM
#include "isa/target.h"
OX_TARGET("arch=armv8.2-a+dotprod+i8mm")
#define OX_NEON_DOT
#define OX_NEON_I8MM
#include "isa/neon.h"
#define OX_TILE_ROWS 4
#define OX_SWEPT(name) void ox_i8mm_##name(OX_WIDE_ARGS); void ox_i8mm_##name(OX_WIDE_ARGS)
#include "lanes/sweep.h"
OX_TARGET_END
#endif
