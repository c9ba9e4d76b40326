/* The lanes on AArch64 NEON, any processor. */
#if defined(__aarch64__)
#include "isa/neon.h"
#define OX_TILE_ROWS 4
#define OX_LANES_NAME "neon"
#define OX_LANES_TABLE ox_lanes_neon
#include "lanes/table.inc"
#endif
