/* IQ3_S: 256 numbers in 110 bytes, 8 sub-blocks of 32 = 8 points of 4 columns; |x| = d (1 + 2 scale[s]) magnitude.
 *
 *   offset 0    2    d, half
 *          2   64    low[p]: bits 0..7 of the number of point p (grid of 512), columns 4 p .. 4 p + 3
 *         66    8    high[s]: bit k = bit 8 of the number of point 8 s + k
 *         74   32    signs[g]: bit k = sign of column 8 g + k, set = minus
 *        106    4    scales[s / 2]: nibble s % 2 = scale[s] */
#ifndef OX_FORMATS_IQ3_S_H
#define OX_FORMATS_IQ3_S_H

#include "fit_lattice.h"

typedef struct {
    uint8_t d[2];
    uint8_t low[64];
    uint8_t high[8];
    uint8_t signs[32];
    uint8_t scales[4];
} ox_iq3_s;

static void ox_unpack_IQ3_S(float *dst, const void *src, int64_t columns) {
    const ox_iq3_s *b = src;
    for (int64_t i = 0; i < columns; i += 256, b++) {
        float d = ox_half(b->d);
        for (int p = 0; p < 64; p++, dst += 4) {
            int s = p >> 3;
            unsigned point = b->low[p] | (b->high[s] >> (p & 7) & 1) << 8;
            float ds = d * (float)(1 + 2 * (b->scales[s >> 1] >> 4 * (s & 1) & 15));
            ox_put_point4(dst, ox_grid_iq3_s[point], ox_iq3_s_levels, b->signs[p >> 1] >> 4 * (p & 1), ds);
        }
    }
}

static void ox_quantise_IQ3_S(void *dst, const float *src, const float *weights, int64_t columns) {
    static const ox_lattice_kind kind = {
        .points = ox_grid_iq3_s, .runs = ox_runs_iq3_s, .uppers = ox_uppers_iq3_s,
        .run_count = sizeof ox_uppers_iq3_s / sizeof ox_uppers_iq3_s[0], .coordinates = 4,
        .levels = ox_iq3_s_levels, .signs = 1, .shifts = 0, .width = 32, .codes = 16, .unit = 1.0f, .from = 10.0f, .to = 17.0f, .steps = 5,
    };
    ox_iq3_s *b = dst;
    ox_lattice_fit fits[2], *fit;
    for (int64_t i = 0, left = 0; i < columns; i += 256, left--, fit++, b++) {
        if (!left) left = ox_fit_lattice(&kind, src + i, weights ? weights + i : NULL, columns - i, fit = fits);
        memset(b, 0, sizeof *b);
        ox_store16(b->d, ox_float_to_half(fit->d));
        memcpy(b->signs, fit->signs, 32);
        for (int p = 0; p < 64; p++) {
            b->low[p] = (uint8_t)fit->point[p];
            b->high[p / 8] |= (uint8_t)(fit->point[p] >> 8 << p % 8);
        }
        for (int s = 0; s < 8; s++) b->scales[s / 2] |= (uint8_t)(fit->scale[s] << s % 2 * 4);
    }
}

#endif
