/* IQ4_NL: 32 numbers in 18 bytes, x = d level[q] with 16 uneven levels.
 *
 *   offset 0    2    d, half
 *          2   16    nibbles[j]: low = q[j], high = q[16 + j] */
#ifndef OX_FORMATS_IQ4_NL_H
#define OX_FORMATS_IQ4_NL_H

#include "fit.h"

typedef struct {
    uint8_t d[2];
    uint8_t nibbles[16];
} ox_iq4_nl;

static const int8_t ox_iq4_levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

static void ox_unpack_IQ4_NL(float *dst, const void *src, int64_t columns) {
    const ox_iq4_nl *b = src;
    for (int64_t i = 0; i < columns; i += 32, b++, dst += 32) {
        float d = ox_half(b->d);
        for (int j = 0; j < 16; j++) dst[j] = d * (float)ox_iq4_levels[b->nibbles[j] & 15];
        for (int j = 0; j < 16; j++) dst[16 + j] = d * (float)ox_iq4_levels[b->nibbles[j] >> 4];
    }
}

static const float ox_iq4_middles[15] = {-115.5f, -93.5f, -74.0f, -57.0f, -42.0f, -28.5f, -16.0f, -4.5f,
                                             7.0f, 19.0f, 31.5f, 45.5f, 61.0f, 79.0f, 101.0f};

/* The number of the nearest level, as a float. */
OX_INLINE ox_f32x16 ox_code_iq4(ox_f32x16 v) {
    ox_f32x16 code = f32_zero();
    for (int k = 0; k < 15; k++) code = f32_add(code, f32_select_lt(f32_set1(ox_iq4_middles[k]), v, f32_set1(1.0f), f32_zero()));
    return code;
}

/* The nearest level, as a sum of the gaps below v. */
OX_INLINE ox_f32x16 ox_snap_iq4(ox_f32x16 v) {
    ox_f32x16 level = f32_set1(-127.0f);
    for (int k = 0; k < 15; k++)
        level = f32_add(level, f32_select_lt(f32_set1(ox_iq4_middles[k]), v, f32_set1((float)(ox_iq4_levels[k + 1] - ox_iq4_levels[k])),
                                             f32_zero()));
    return level;
}

static void ox_quantise_IQ4_NL(void *dst, const float *src, const float *weights, int64_t columns) {
    ox_iq4_nl *b = dst;
    for (int64_t i = 0; i < columns; i += 512) {
        ox_sheet sheet;
        float d[16];
        int8_t codes[512], q[32];
        int there = ox_lay_blocks(&sheet, src + i, weights ? weights + i : NULL, columns - i, 32, 32);
        ox_store_halves(d, ox_fit_scaled(sheet.x, sheet.cost, 32, ox_snap_iq4, 90.0f, 132.0f, 9));
        ox_snap_sheet(codes, sheet.x, 32, d, ox_code_iq4);
        for (int l = 0; l < there; l++, b++) {
            ox_take(q, codes, 32, l, 1);
            ox_store16(b->d, ox_float_to_half(d[l]));
            for (int j = 0; j < 16; j++) b->nibbles[j] = (uint8_t)(q[j] | q[16 + j] << 4);
        }
    }
}

#endif
