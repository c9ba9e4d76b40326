/* Q6_K: 256 numbers in 210 bytes, 16 sub-blocks of 16, x = (d scale[s]) (q - 32).
 *
 *   offset 0  128    low[64 h + j], j < 64: low nibble = bits 0..3 of q[128 h + j], high nibble = those of q[128 h + 64 + j]
 *        128   64    high[32 h + j], j < 32: bits 2 k, 2 k + 1 = bits 4, 5 of q[128 h + 32 k + j]
 *        192   16    scale[0..15], signed bytes
 *        208    2    d, half */
#ifndef OX_FORMATS_Q6_K_H
#define OX_FORMATS_Q6_K_H

#include "fit_k.h"

typedef struct {
    uint8_t low[128];
    uint8_t high[64];
    int8_t scale[16];
    uint8_t d[2];
} ox_q6_k;

static void ox_unpack_Q6_K(float *restrict dst, const void *restrict src, int64_t columns) {
    const ox_q6_k *b = src;
    for (int64_t i = 0; i < columns; i += 256, b++) {
        float d = ox_half(b->d);
        for (int s = 0; s < 16; s++, dst += 16) { /* sub-block s: half h, quarter k of it, columns c .. c + 15 of that quarter */
            int h = s >> 3, k = s >> 1 & 3, c = (s & 1) * 16;
            const uint8_t *low = b->low + 64 * h + 32 * (k & 1) + c, *high = b->high + 32 * h + c;
            float ds = d * b->scale[s];
            int up = k >> 1 << 2;
            for (int j = 0; j < 16; j++) dst[j] = ds * (float)(((low[j] >> up & 15) | (high[j] >> 2 * k & 3) << 4) - 32);
        }
    }
}

OX_INLINE ox_f32x16 ox_snap_Q6_K(ox_f32x16 v) {
    return ox_round(ox_clip_lanes(v, -32.0f, 31.0f));
}

static void ox_quantise_Q6_K(void *dst, const float *src, const float *weights, int64_t columns) {
    static const ox_k_scaled_kind kind = {.width = 16, .scale_lo = -128.0f, .scale_hi = 127.0f, .from = 29.0f, .to = 32.5f, .steps = 9};
    ox_q6_k *b = dst;
    for (int64_t i = 0; i < columns; i += 256) {
        ox_sheet sheet;
        ox_k_scaled fit;
        float d[16];
        int8_t codes[256], q[256];
        int there = ox_lay_blocks(&sheet, src + i, weights ? weights + i : NULL, columns - i, 16, 256);
        ox_fit_k_scaled(&fit, &sheet, &kind, ox_snap_Q6_K, ox_snap_byte);
        for (int l = 0; l < 16; l++) d[l] = fit.d[l / 16] * fit.scale[l];
        ox_snap_sheet(codes, sheet.x, 16, d, ox_snap_Q6_K);
        for (int l = 0; l < there; l += 16, b++) {
            ox_take(q, codes, 16, l, 16);
            memset(b, 0, sizeof *b);
            ox_store16(b->d, ox_float_to_half(fit.d[l / 16]));
            for (int s = 0; s < 16; s++) b->scale[s] = (int8_t)fit.scale[s];
            for (int j = 0; j < 256; j++) {
                b->low[j / 128 * 64 + j % 64] |= (uint8_t)(((q[j] + 32) & 15) << j / 64 % 2 * 4);
                b->high[j / 128 * 32 + j % 32] |= (uint8_t)((q[j] + 32) >> 4 << 2 * (j / 32 % 4));
            }
        }
    }
}

#endif
