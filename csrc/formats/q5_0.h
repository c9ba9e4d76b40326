/* Q5_0: 32 numbers in 22 bytes, x = d (q - 16).
 *
 *   offset 0    2    d, half
 *          2    4    high: bit j (of a little-endian word) = bit 4 of q[j]
 *          6   16    nibbles[j]: low = bits 0..3 of q[j], high = those of q[16 + j] */
#ifndef OX_FORMATS_Q5_0_H
#define OX_FORMATS_Q5_0_H

#include "fit.h"

typedef struct {
    uint8_t d[2];
    uint8_t high[4];
    uint8_t nibbles[16];
} ox_q5_0;

static void ox_unpack_Q5_0(float *dst, const void *src, int64_t columns) {
    const ox_q5_0 *b = src;
    for (int64_t i = 0; i < columns; i += 32, b++, dst += 32) {
        float d = ox_half(b->d);
        uint32_t high = ox_load32(b->high);
        for (int j = 0; j < 16; j++) dst[j] = d * (float)((int)((b->nibbles[j] & 15) | (high >> j & 1) << 4) - 16);
        for (int j = 0; j < 16; j++) dst[16 + j] = d * (float)((int)(b->nibbles[j] >> 4 | (high >> (16 + j) & 1) << 4) - 16);
    }
}

OX_INLINE ox_f32x16 ox_snap_Q5_0(ox_f32x16 v) {
    return ox_round(ox_clip_lanes(v, -16.0f, 15.0f));
}

static void ox_quantise_Q5_0(void *dst, const float *src, const float *weights, int64_t columns) {
    ox_q5_0 *b = dst;
    for (int64_t i = 0; i < columns; i += 512) {
        ox_sheet sheet;
        float d[16];
        int8_t codes[512], q[32];
        int there = ox_lay_blocks(&sheet, src + i, weights ? weights + i : NULL, columns - i, 32, 32);
        ox_store_halves(d, ox_fit_scaled(sheet.x, sheet.cost, 32, ox_snap_Q5_0, 13.0f, 16.5f, 9));
        ox_snap_sheet(codes, sheet.x, 32, d, ox_snap_Q5_0);
        for (int l = 0; l < there; l++, b++) {
            ox_take(q, codes, 32, l, 1);
            ox_store16(b->d, ox_float_to_half(d[l]));
            uint32_t high = 0;
            for (int j = 0; j < 32; j++) high |= (uint32_t)(q[j] + 16) >> 4 << j;
            for (int j = 0; j < 16; j++) b->nibbles[j] = (uint8_t)(((q[j] + 16) & 15) | ((q[16 + j] + 16) & 15) << 4);
            ox_store32(b->high, high);
        }
    }
}

#endif
