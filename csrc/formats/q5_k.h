/* Q5_K: 256 numbers in 176 bytes, 8 sub-blocks of 32, x = (d scale[s]) q - (dmin min[s]).
 *
 *   offset 0    2    d, half
 *          2    2    dmin, half
 *          4   12    scales6: 8 six-bit scales and 8 six-bit minima (see ox_get_scales6)
 *         16   32    high[j]: bit s = bit 4 of q[32 s + j]
 *         48  128    nibbles[32 p + j]: low = bits 0..3 of q[64 p + j], high = those of q[64 p + 32 + j] */
#ifndef OX_FORMATS_Q5_K_H
#define OX_FORMATS_Q5_K_H

#include "fit_k.h"

typedef struct {
    uint8_t d[2], dmin[2];
    uint8_t scales6[12];
    uint8_t high[32];
    uint8_t nibbles[128];
} ox_q5_k;

static void ox_unpack_Q5_K(float *dst, const void *src, int64_t columns) {
    const ox_q5_k *b = src;
    for (int64_t i = 0; i < columns; i += 256, b++) {
        uint8_t scale[8], min[8];
        float d = ox_half(b->d), dmin = ox_half(b->dmin);
        ox_get_scales6(b->scales6, scale, min);
        for (int s = 0; s < 8; s += 2) {
            const uint8_t *nibbles = b->nibbles + 16 * s;
            float d0 = d * scale[s], m0 = dmin * min[s], d1 = d * scale[s + 1], m1 = dmin * min[s + 1];
            for (int j = 0; j < 32; j++) dst[j] = d0 * (float)((nibbles[j] & 15) | (b->high[j] >> s & 1) << 4) - m0;
            for (int j = 0; j < 32; j++) dst[32 + j] = d1 * (float)(nibbles[j] >> 4 | (b->high[j] >> (s + 1) & 1) << 4) - m1;
            dst += 64;
        }
    }
}

static void ox_quantise_Q5_K(void *dst, const float *src, const float *weights, int64_t columns) {
    static const ox_k_affine_kind kind = {.width = 32, .top = 31.0f, .top_scale = 63.0f, .over = 3.0f, .steps = 7};
    ox_q5_k *b = dst;
    for (int64_t i = 0; i < columns; i += 512) {
        ox_sheet sheet;
        ox_k_affine fit;
        int8_t codes[512], q[256];
        int there = ox_lay_blocks(&sheet, src + i, weights ? weights + i : NULL, columns - i, 32, 256);
        ox_fit_k_affine(&fit, &sheet, &kind);
        ox_round_k_affine(codes, &sheet, &kind, &fit);
        for (int l = 0; l < there; l += 8, b++) {
            ox_take(q, codes, 32, l, 8);
            ox_store16(b->d, ox_float_to_half(fit.d[l / 8]));
            ox_store16(b->dmin, ox_float_to_half(fit.dmin[l / 8]));
            ox_put_scales6(b->scales6, fit.scale + l, fit.min + l);
            for (int j = 0; j < 128; j++) b->nibbles[j] = (uint8_t)((q[2 * j - j % 32] & 15) | (q[2 * j - j % 32 + 32] & 15) << 4);
            memset(b->high, 0, 32);
            for (int j = 0; j < 256; j++) b->high[j % 32] |= (uint8_t)(q[j] >> 4 << j / 32);
        }
    }
}

#endif
