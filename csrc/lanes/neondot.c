/* The lanes on AArch64 NEON with the dot-product extension (most processors since 2018). */
#if defined(__aarch64__)
#pragma GCC target("arch=armv8.2-a+dotprod")
#define OX_NEON_DOT
#include "isa/neon.h"
#define OX_TILE_ROWS 4
#define OX_LANES_NAME "neondot"
#define OX_LANES_TABLE ox_lanes_neondot
#include "lanes/table.inc"
#endif
