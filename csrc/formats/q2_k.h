/* Q2_K: 256 numbers in 84 bytes, 16 sub-blocks of 16, x = (d scale[s]) q - (dmin min[s]).
 *
 *   offset 0   16    scales[s]: low nibble = scale[s], high nibble = min[s]
 *         16   64    pairs[32 h + j], j < 32: bits 2 k, 2 k + 1 = q[128 h + 32 k + j]
 *         80    2    d, half
 *         82    2    dmin, half */
#ifndef OX_FORMATS_Q2_K_H
#define OX_FORMATS_Q2_K_H

#include "fit_k.h"

typedef struct {
    uint8_t scales[16];
    uint8_t pairs[64];
    uint8_t d[2], dmin[2];
} ox_q2_k;

static void ox_unpack_Q2_K(float *restrict dst, const void *restrict src, int64_t columns) {
    const ox_q2_k *b = src;
    for (int64_t i = 0; i < columns; i += 256, b++) {
        float d = ox_half(b->d), dmin = ox_half(b->dmin);
        for (int s = 0; s < 16; s++, dst += 16) { /* sub-block s: half s / 8, quarter s / 2 % 4, columns 16 (s % 2) .. of that quarter */
            const uint8_t *pairs = b->pairs + 32 * (s >> 3) + 16 * (s & 1);
            int shift = 2 * (s >> 1 & 3);
            float ds = d * (float)(b->scales[s] & 15), ms = dmin * (float)(b->scales[s] >> 4);
            for (int j = 0; j < 16; j++) dst[j] = ds * (float)(pairs[j] >> shift & 3) - ms;
        }
    }
}

static void ox_quantise_Q2_K(void *dst, const float *src, const float *weights, int64_t columns) {
    static const ox_k_affine_kind kind = {.width = 16, .top = 3.0f, .top_scale = 15.0f, .over = 2.0f, .steps = 10};
    ox_q2_k *b = dst;
    for (int64_t i = 0; i < columns; i += 256) {
        ox_sheet sheet;
        ox_k_affine fit;
        int8_t codes[256], q[256];
        int there = ox_lay_blocks(&sheet, src + i, weights ? weights + i : NULL, columns - i, 16, 256);
        ox_fit_k_affine(&fit, &sheet, &kind);
        ox_round_k_affine(codes, &sheet, &kind, &fit);
        for (int l = 0; l < there; l += 16, b++) {
            ox_take(q, codes, 16, l, 16);
            ox_store16(b->d, ox_float_to_half(fit.d[l / 16]));
            ox_store16(b->dmin, ox_float_to_half(fit.dmin[l / 16]));
            for (int s = 0; s < 16; s++) b->scales[s] = (uint8_t)((int)fit.scale[s] | (int)fit.min[s] << 4);
            memset(b->pairs, 0, 64);
            for (int j = 0; j < 256; j++) b->pairs[j / 128 * 32 + j % 32] |= (uint8_t)(q[j] << 2 * (j / 32 % 4));
        }
    }
}

#endif
