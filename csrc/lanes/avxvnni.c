/* The lanes on AVX2 with AVX-VNNI: 256-bit dpbusd, for processors without AVX-512. */
#if defined(__x86_64__) && (__GNUC__ >= 11 || __clang_major__ >= 12)
#include "isa/target.h"
OX_TARGET("avx2,fma,f16c,avxvnni")
#define OX_AVX_VNNI
#include "isa/avx2.h"
#define OX_TILE_ROWS 4
#define OX_PART_ROWS 5
#define OX_LANES_NAME "avxvnni"
#define OX_LANES_TABLE ox_lanes_avxvnni
#include "lanes/table.inc"
OX_TARGET_END
#endif
