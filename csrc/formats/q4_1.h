/* Q4_1: 32 numbers in 20 bytes, x = d q + m.
 *
 *   offset 0    2    d, half
 *          2    2    m, half
 *          4   16    nibbles[j]: low = q[j], high = q[16 + j] */
#ifndef OX_FORMATS_Q4_1_H
#define OX_FORMATS_Q4_1_H

#include "fit.h"

typedef struct {
    uint8_t d[2], m[2];
    uint8_t nibbles[16];
} ox_q4_1;

static void ox_unpack_Q4_1(float *dst, const void *src, int64_t columns) {
    const ox_q4_1 *b = src;
    for (int64_t i = 0; i < columns; i += 32, b++, dst += 32) {
        float d = ox_half(b->d), m = ox_half(b->m);
        for (int j = 0; j < 16; j++) dst[j] = d * (float)(b->nibbles[j] & 15) + m;
        for (int j = 0; j < 16; j++) dst[16 + j] = d * (float)(b->nibbles[j] >> 4) + m;
    }
}

static void ox_quantise_Q4_1(void *dst, const float *src, const float *weights, int64_t columns) {
    ox_q4_1 *b = dst;
    for (int64_t i = 0; i < columns; i += 512) {
        ox_sheet sheet;
        float d[16], m[16];
        int8_t codes[512], q[32];
        int there = ox_lay_blocks(&sheet, src + i, weights ? weights + i : NULL, columns - i, 32, 32);
        ox_affine fit = ox_fit_affine(sheet.x, sheet.cost, 32, 15.0f, 0, 3.0f, 7);
        ox_store_halves(d, fit.d), ox_store_halves(m, fit.m);
        ox_round_sheet(codes, sheet.x, 32, 15.0f, d, m);
        for (int l = 0; l < there; l++, b++) {
            ox_take(q, codes, 32, l, 1);
            ox_store16(b->d, ox_float_to_half(d[l]));
            ox_store16(b->m, ox_float_to_half(m[l]));
            for (int j = 0; j < 16; j++) b->nibbles[j] = (uint8_t)(q[j] | q[16 + j] << 4);
        }
    }
}

#endif
