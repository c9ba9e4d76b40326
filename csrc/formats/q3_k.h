/* Q3_K: 256 numbers in 110 bytes, 16 sub-blocks of 16, x = (d (scale[s] - 32)) (q - 4), q of 3 bits, scale of 6.
 *
 *   offset 0   32    high[j]: bit k = bit 2 of q[32 k + j]
 *         32   64    pairs[32 h + j], j < 32: bits 2 k, 2 k + 1 = bits 0, 1 of q[128 h + 32 k + j]
 *         96    8    scales[j]: low nibble = bits 0..3 of scale[j], high nibble = those of scale[8 + j]
 *        104    4    scales[8 + j], j < 4: bits 2 k, 2 k + 1 = bits 4, 5 of scale[4 k + j]
 *        108    2    d, half */
#ifndef OX_FORMATS_Q3_K_H
#define OX_FORMATS_Q3_K_H

#include "fit_k.h"

typedef struct {
    uint8_t high[32];
    uint8_t pairs[64];
    uint8_t scales[12];
    uint8_t d[2];
} ox_q3_k;

/* scale[s] - 32 of the 16 sub-blocks. */
static inline void ox_q3_k_scales(const ox_q3_k *b, int8_t *scale) {
    for (int s = 0; s < 16; s++)
        scale[s] = (int8_t)(((b->scales[s & 7] >> (s >> 3 << 2) & 15) | (b->scales[8 + (s & 3)] >> 2 * (s >> 2) & 3) << 4) - 32);
}

static void ox_unpack_Q3_K(float *restrict dst, const void *restrict src, int64_t columns) {
    const ox_q3_k *b = src;
    for (int64_t i = 0; i < columns; i += 256, b++) {
        int8_t scale[16];
        float d = ox_half(b->d);
        ox_q3_k_scales(b, scale);
        for (int s = 0; s < 16; s++, dst += 16) {
            const uint8_t *pairs = b->pairs + 32 * (s >> 3) + 16 * (s & 1), *high = b->high + 16 * (s & 1);
            int shift = 2 * (s >> 1 & 3), bit = s >> 1;
            float ds = d * (float)scale[s];
            for (int j = 0; j < 16; j++) dst[j] = ds * (float)(((pairs[j] >> shift & 3) | (high[j] >> bit & 1) << 2) - 4);
        }
    }
}

OX_INLINE ox_f32x16 ox_snap_Q3_K(ox_f32x16 v) {
    return ox_round(ox_clip_lanes(v, -4.0f, 3.0f));
}

static void ox_quantise_Q3_K(void *dst, const float *src, const float *weights, int64_t columns) {
    static const ox_k_scaled_kind kind = {.width = 16, .scale_lo = -32.0f, .scale_hi = 31.0f, .from = 1.8f, .to = 4.6f, .steps = 9};
    ox_q3_k *b = dst;
    for (int64_t i = 0; i < columns; i += 256) {
        ox_sheet sheet;
        ox_k_scaled fit;
        float d[16];
        int8_t codes[256], q[256];
        int there = ox_lay_blocks(&sheet, src + i, weights ? weights + i : NULL, columns - i, 16, 256);
        ox_fit_k_scaled(&fit, &sheet, &kind, ox_snap_Q3_K, ox_snap_scale6);
        for (int l = 0; l < 16; l++) d[l] = fit.d[l / 16] * fit.scale[l];
        ox_snap_sheet(codes, sheet.x, 16, d, ox_snap_Q3_K);
        for (int l = 0; l < there; l += 16, b++) {
            ox_take(q, codes, 16, l, 16);
            memset(b, 0, sizeof *b);
            ox_store16(b->d, ox_float_to_half(fit.d[l / 16]));
            for (int s = 0; s < 16; s++) {
                int scale = (int)fit.scale[s] + 32;
                b->scales[s % 8] |= (uint8_t)((scale & 15) << s / 8 * 4);
                b->scales[8 + s % 4] |= (uint8_t)(scale >> 4 << s / 4 * 2);
            }
            for (int j = 0; j < 256; j++) {
                b->pairs[j / 128 * 32 + j % 32] |= (uint8_t)(((q[j] + 4) & 3) << 2 * (j / 32 % 4));
                b->high[j % 32] |= (uint8_t)((q[j] + 4) >> 2 << j / 32);
            }
        }
    }
}

#endif
