/* The lanes on AVX-512 with VNNI; and, where the compiler knows them, a second table with bf16 dots. */
#if defined(__x86_64__)
#include "isa/target.h"
OX_TARGET("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")
#include "isa/avx512.h"
#define OX_TILE_ROWS 8
#define OX_BESIDE_ROWS(store) ((store) == 8 ? 4 : 3)
#ifndef OX_WIDE
#define OX_WIDE 6
#endif
#define OX_LANES_NAME "avx512"
#define OX_LANES_TABLE ox_lanes_avx512
#include "lanes/table.inc"

/* The same where every vector instruction of 512 bits starts on one of two ports, dots and all else alike: Intel's without AMX. From 4 rows on tiles are of two panels, which have
 * more chains (a dot takes 5 cycles and two start in each), and of up to 6 rows, so that 5 to 7 and 9 to 12 leave none over; 8 fill a tile of one panel. Steps of a 1B Q4_K_M, ms,
 * by tiles of one panel and of two: 4 rows 56 and 46, 6 rows 67 and 45, 8 rows 59 and 65, 12 rows 98 and 85. */
#undef OX_LANES_NAME
#undef OX_LANES_TABLE
#undef OX_WIDE_INTEGER
#undef OX_MOST_BY_TILE
#undef OX_FULL_TILE
#define OX_LANES_NAME "avx512intel"
#define OX_LANES_TABLE ox_lanes_avx512intel
#define OX_WIDE_INTEGER(name) two_ports_##name
#define OX_MOST_BY_TILE(family, store, bits) ((family) == FAMILY_32 || (family) == FAMILY_256 ? 3 : OX_FEW_ROWS(family))
#define OX_FULL_TILE OX_TILE_ROWS
#include "lanes/entries.inc"
#undef OX_WIDE_INTEGER
#undef OX_MOST_BY_TILE
#undef OX_FULL_TILE
#define OX_WIDE_INTEGER(name) wide_##name

#if __GNUC__ >= 10 || __clang_major__ >= 9
static void fused_pairs(OX_TILE_ARGS) { tile_BF16(c, ldc, panel, then, x, ldx, cols, m); }

OX_TARGET_END
OX_TARGET("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16")
#include "isa/avx512bf16.h"
#undef OX_LANES_NAME
#undef OX_LANES_TABLE
#define OX_LANES_NAME "avx512bf16"
#define OX_LANES_TABLE ox_lanes_avx512bf16
#include "lanes/pairs.inc"
#include "lanes/tight.inc"
#include "lanes/entries.inc"

/* Two pairs of columns a time, numbers of all sizes, many of them where products and sums come to lie about 2^-126. */
int ox_avx512bf16_agrees(void)
{
    enum { COLS = 4, ROWS = 8 };
    OX_ALIGN(64) uint16_t panel[COLS * 16], x[ROWS][COLS];
    OX_ALIGN(64) float fused[ROWS][16], dots[ROWS][16];
    uint64_t seed = 88172645463325252u;
    for (int i = 0; i < 256; i++) {
        const int least = i % 4 ? 40 : 0, span = i % 4 == 0 ? 255 : i % 4 == 1 ? 50 : 12;
        for (int k = 0; k < COLS * (16 + ROWS); k++) {
            seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
            const int high = i % 4 < 2 ? least : k < COLS * 16 ? 55 : 58;        /* of exponents whose sum makes 2^-126: 127 + 1 */
            uint16_t number = (uint16_t)((seed >> 20 & 0x807f) | ((high + (int)((seed >> 40) % (unsigned)span)) << 7));
            if (k < COLS * 16)
                panel[k] = number;
            else
                x[k / COLS - 16][k % COLS] = number & 0x7f80 ? number : 0;
        }
        fused_pairs(fused[0], 16, (const uint8_t *)panel, NULL, (const uint8_t *)x, sizeof x[0], COLS, ROWS);
        dot_tile_BF16(dots[0], 16, (const uint8_t *)panel, NULL, (const uint8_t *)x, sizeof x[0], COLS, ROWS);
        if (memcmp(fused, dots, sizeof fused))
            return 0;
    }
    return 1;
}
#endif

#if OX_WITH_AMX
/* The same with products of many rows on AMX, which are a file of their own. Where that is, two fused multiply-adds start in a cycle and a bf16 dot, which stands for two, in
 * every other one: many rows of bf16 are left to the functions before. */
#undef wide_BF16
#undef wide_TIGHT_BF16
#undef OX_LANES_NAME
#undef OX_LANES_TABLE
#undef OX_WIDE_INTEGER
#undef OX_WHOLE_ROWS
#define OX_LANES_NAME "avx512amx"
#define OX_LANES_TABLE ox_lanes_avx512amx
#define OX_WIDE_INTEGER(name) amx_##name
#undef OX_FEW_ROWS
#define OX_WHOLE_ROWS 16
#undef OX_RANGE_VALUES
#define OX_RANGE_VALUES (1 << 20)      /* 1.3 MB or 1.6; where there are tiles the second cache has 2 MB */
/* A panel's codes are spread for any number of rows, so few rows are left to the vectors. 1536 x 576 and 576 x 1536 on one thread, us without and with AMX,
 * 5, 8, 10 and 14 rows: Q8_0 25.5 and 34, 32 and 41, 42 and 44, 57 and 49; Q5_0 35 and 37, 36 and 43, 49 and 46, 69 and 51; Q4_K 29 and 28, 35 and 31, 46 and 33,
 * 64 and 34; Q6_K 39 and 37, 45 and 40, 60 and 42, 84 and 46. */
#define OX_FEW_ROWS(family) ((family) == FAMILY_256 ? 4 : (family) == FAMILY_32 ? 10 : 15)
#define OX_FLOAT(name, bytes)
#define OX_PAIRS(name)
#define OX_AMX(name, family)                                                                \
    void ox_amx_##name(OX_WIDE_ARGS);                                                       \
    static void amx_##name(OX_WIDE_ARGS)                                                    \
    {                                                                                       \
        if (m <= OX_FEW_ROWS(family))                                                       \
            wide_##name(c, ldc, panel, stride, later, x, ldx, cols, m);                     \
        else                                                                                \
            ox_amx_##name(c, ldc, panel, stride, later, x, ldx, cols, m);                   \
    }
#define OX_FORM32(name, store, bits, off, side) OX_AMX(name, FAMILY_32)
#define OX_FORM256(name, store, bits, off, head, side, unit) OX_AMX(name, FAMILY_256)
#include "lanes/forms.def"
#undef OX_FLOAT
#undef OX_PAIRS
#undef OX_FORM32
#undef OX_FORM256
#include "lanes/entries.inc"
#endif
OX_TARGET_END
#endif
