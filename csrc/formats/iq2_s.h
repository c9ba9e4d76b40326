/* IQ2_S: 256 numbers in 82 bytes, 16 sub-blocks of 16 = 2 points of 8 columns; |x| = d (0.5 + scale[s]) / 4 magnitude.
 *
 *   offset 0    2    d, half
 *          2   32    low[p]: bits 0..7 of the number of point p (grid of 1024)
 *         34   32    signs[p]: bit k = sign of column k of point p, set = minus
 *         66    8    high[p / 4]: bits 2 k, 2 k + 1 = bits 8, 9 of the number of point 4 (p / 4) + k
 *         74    8    scales[s / 2]: nibble s % 2 = scale[s] */
#ifndef OX_FORMATS_IQ2_S_H
#define OX_FORMATS_IQ2_S_H

#include "fit_lattice.h"

typedef struct {
    uint8_t d[2];
    uint8_t low[32];
    uint8_t signs[32];
    uint8_t high[8];
    uint8_t scales[8];
} ox_iq2_s;

static void ox_unpack_IQ2_S(float *dst, const void *src, int64_t columns) {
    const ox_iq2_s *b = src;
    for (int64_t i = 0; i < columns; i += 256, b++) {
        float d = ox_half(b->d);
        for (int p = 0; p < 32; p++, dst += 8) {
            unsigned point = b->low[p] | (b->high[p >> 2] >> 2 * (p & 3) & 3) << 8;
            float ds = d * (0.5f + (float)(b->scales[p >> 2] >> 4 * (p >> 1 & 1) & 15)) * 0.25f;
            ox_put_point8(dst, ox_grid_iq2_s[point], ox_iq2_levels, b->signs[p], ds);
        }
    }
}

static void ox_quantise_IQ2_S(void *dst, const float *src, const float *weights, int64_t columns) {
    static const ox_lattice_kind kind = {
        .points = ox_grid_iq2_s, .runs = ox_runs_iq2_s, .uppers = ox_uppers_iq2_s,
        .run_count = sizeof ox_uppers_iq2_s / sizeof ox_uppers_iq2_s[0], .coordinates = 8,
        .levels = ox_iq2_levels, .signs = 1, .shifts = 0, .width = 16, .codes = 16, .unit = 0.125f, .from = 24.0f, .to = 56.0f, .steps = 5,
    };
    ox_iq2_s *b = dst;
    ox_lattice_fit fits[2], *fit;
    for (int64_t i = 0, left = 0; i < columns; i += 256, left--, fit++, b++) {
        if (!left) left = ox_fit_lattice(&kind, src + i, weights ? weights + i : NULL, columns - i, fit = fits);
        memset(b, 0, sizeof *b);
        ox_store16(b->d, ox_float_to_half(fit->d));
        memcpy(b->signs, fit->signs, 32);
        for (int p = 0; p < 32; p++) {
            b->low[p] = (uint8_t)fit->point[p];
            b->high[p / 4] |= (uint8_t)(fit->point[p] >> 8 << p % 4 * 2);
        }
        for (int s = 0; s < 16; s++) b->scales[s / 2] |= (uint8_t)(fit->scale[s] << s % 2 * 4);
    }
}

#endif
