/* IQ4_XS: 256 numbers in 136 bytes, 8 sub-blocks of 32, x = (d (scale[s] - 32)) level[q] with the levels of IQ4_NL, scale of 6 bits.
 *
 *   offset 0    2    d, half
 *          2    2    high: bits 2 s, 2 s + 1 (of a little-endian word) = bits 4, 5 of scale[s]
 *          4    4    low[s / 2]: nibble s % 2 = bits 0..3 of scale[s]
 *          8  128    nibbles[16 s + j]: low = q[32 s + j], high = q[32 s + 16 + j] */
#ifndef OX_FORMATS_IQ4_XS_H
#define OX_FORMATS_IQ4_XS_H

#include "fit_k.h"
#include "iq4_nl.h"

typedef struct {
    uint8_t d[2];
    uint8_t high[2];
    uint8_t low[4];
    uint8_t nibbles[128];
} ox_iq4_xs;

/* scale[s] - 32 of one sub-block. */
static inline int ox_iq4_xs_scale(const ox_iq4_xs *b, int s) {
    return (int)((b->low[s >> 1] >> 4 * (s & 1) & 15) | (ox_load16(b->high) >> 2 * s & 3) << 4) - 32;
}

static void ox_unpack_IQ4_XS(float *dst, const void *src, int64_t columns) {
    const ox_iq4_xs *b = src;
    for (int64_t i = 0; i < columns; i += 256, b++) {
        float d = ox_half(b->d);
        for (int s = 0; s < 8; s++, dst += 32) {
            const uint8_t *nibbles = b->nibbles + 16 * s;
            float ds = d * (float)ox_iq4_xs_scale(b, s);
            for (int j = 0; j < 16; j++) dst[j] = ds * (float)ox_iq4_levels[nibbles[j] & 15];
            for (int j = 0; j < 16; j++) dst[16 + j] = ds * (float)ox_iq4_levels[nibbles[j] >> 4];
        }
    }
}

static void ox_quantise_IQ4_XS(void *dst, const float *src, const float *weights, int64_t columns) {
    static const ox_k_scaled_kind kind = {.width = 32, .scale_lo = -32.0f, .scale_hi = 31.0f, .from = 90.0f, .to = 132.0f, .steps = 9};
    ox_iq4_xs *b = dst;
    for (int64_t i = 0; i < columns; i += 512) {
        ox_sheet sheet;
        ox_k_scaled fit;
        float d[16];
        int8_t codes[512], q[256];
        int there = ox_lay_blocks(&sheet, src + i, weights ? weights + i : NULL, columns - i, 32, 256);
        ox_fit_k_scaled(&fit, &sheet, &kind, ox_snap_iq4, ox_snap_scale6);
        for (int l = 0; l < 16; l++) d[l] = fit.d[l / 8] * fit.scale[l];
        ox_snap_sheet(codes, sheet.x, 32, d, ox_code_iq4);
        for (int l = 0; l < there; l += 8, b++) {
            ox_take(q, codes, 32, l, 8);
            memset(b, 0, sizeof *b);
            ox_store16(b->d, ox_float_to_half(fit.d[l / 8]));
            unsigned high = 0;
            for (int s = 0; s < 8; s++) {
                unsigned scale = (unsigned)((int)fit.scale[l + s] + 32);
                high |= scale >> 4 << 2 * s;
                b->low[s / 2] |= (uint8_t)((scale & 15) << s % 2 * 4);
                for (int j = 0; j < 16; j++) b->nibbles[16 * s + j] = (uint8_t)(q[32 * s + j] | q[32 * s + 16 + j] << 4);
            }
            ox_store16(b->high, high);
        }
    }
}

#endif
