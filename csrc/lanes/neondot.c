/* The lanes on AArch64 NEON with the dot-product extension (most processors since 2018). */
#if defined(__aarch64__)
#include "isa/target.h"
OX_TARGET("arch=armv8.2-a+dotprod")
#define OX_NEON_DOT
#include "isa/neon.h"
#define OX_TILE_ROWS 4
#define OX_SWEEP
#define OX_LANES_NAME "neondot"
#define OX_LANES_TABLE ox_lanes_neondot
#include "lanes/table.inc"

#if OX_WITH_I8MM
/* The same with products of many rows on the matrix products of FEAT_I8MM, which are a file of their own. */
#undef OX_LANES_NAME
#undef OX_LANES_TABLE
#undef OX_WIDE_INTEGER
#define OX_LANES_NAME "neoni8mm"
#define OX_LANES_TABLE ox_lanes_neoni8mm
#define OX_WIDE_INTEGER(name) i8mm_##name
#define OX_FLOAT(name, bytes)
#define OX_PAIRS(name)
#define OX_I8MM(name) void ox_i8mm_##name(OX_WIDE_ARGS); OX_SWEEP_OR_TILES(name, i8mm_##name, ox_i8mm_##name)
#define OX_FORM32(name, store, bits, off, side) OX_I8MM(name)
#define OX_FORM256(name, store, bits, off, head, side, unit) OX_I8MM(name)
#include "lanes/forms.def"
#undef OX_FLOAT
#undef OX_PAIRS
#undef OX_FORM32
#undef OX_FORM256
/* Instructions per 1,000 multiply-adds in tiles of tiles.h and here: 8 rows of Q8_0 206 and 142, of Q6_K 301 and 176; 6 rows about the same. */
#undef OX_FEW_ROWS
#define OX_FEW_ROWS(family) ((family) == FAMILY_32 || (family) == FAMILY_256 ? 6 : 8)
#include "lanes/entries.inc"
#endif
OX_TARGET_END
#endif
