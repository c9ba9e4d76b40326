/* The lanes on AVX-512 with VNNI. */
#if defined(__x86_64__)
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")
#include "isa/avx512.h"
#define OX_TILE_ROWS 8
#define OX_BESIDE_ROWS(store) ((store) == 8 ? 4 : 3)
#ifndef OX_WIDE
#define OX_WIDE 6
#endif
#define OX_LANES_NAME "avx512"
#define OX_LANES_TABLE ox_lanes_avx512
#include "lanes/table.inc"
#endif
