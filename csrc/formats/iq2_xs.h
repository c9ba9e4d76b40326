/* IQ2_XS: 256 numbers in 74 bytes, 16 sub-blocks of 16 = 2 points of 8 columns; |x| = d (0.5 + scale[s]) / 4 magnitude.
 *
 *   offset 0    2    d, half
 *          2   64    points[p], p < 32, little-endian words: bits 0..8 = point number (grid of 512), bits 9..15 = signs (8th by parity)
 *         66    8    scales[s / 2]: nibble s % 2 = scale[s] */
#ifndef OX_FORMATS_IQ2_XS_H
#define OX_FORMATS_IQ2_XS_H

#include "fit_lattice.h"

typedef struct {
    uint8_t d[2];
    uint8_t points[32][2];
    uint8_t scales[8];
} ox_iq2_xs;

static void ox_unpack_IQ2_XS(float *dst, const void *src, int64_t columns) {
    const ox_iq2_xs *b = src;
    for (int64_t i = 0; i < columns; i += 256, b++) {
        float d = ox_half(b->d);
        for (int p = 0; p < 32; p++, dst += 8) {
            unsigned word = ox_load16(b->points[p]);
            float ds = d * (0.5f + (float)(b->scales[p >> 2] >> 4 * (p >> 1 & 1) & 15)) * 0.25f;
            ox_put_point8(dst, ox_grid_iq2_xs[word & 511], ox_iq2_levels, ox_even_signs(word >> 9), ds);
        }
    }
}

static void ox_quantise_IQ2_XS(void *dst, const float *src, const float *weights, int64_t columns) {
    static const ox_lattice_kind kind = {
        .points = ox_grid_iq2_xs, .runs = ox_runs_iq2_xs, .uppers = ox_uppers_iq2_xs,
        .run_count = sizeof ox_uppers_iq2_xs / sizeof ox_uppers_iq2_xs[0], .coordinates = 8,
        .levels = ox_iq2_levels, .signs = 2, .shifts = 0, .width = 16, .codes = 16, .unit = 0.125f, .from = 24.0f, .to = 56.0f, .steps = 5,
    };
    ox_iq2_xs *b = dst;
    ox_lattice_fit fits[2], *fit;
    for (int64_t i = 0, left = 0; i < columns; i += 256, left--, fit++, b++) {
        if (!left) left = ox_fit_lattice(&kind, src + i, weights ? weights + i : NULL, columns - i, fit = fits);
        memset(b, 0, sizeof *b);
        ox_store16(b->d, ox_float_to_half(fit->d));
        for (int p = 0; p < 32; p++) ox_store16(b->points[p], fit->point[p] | (unsigned)(fit->signs[p] & 127) << 9);
        for (int s = 0; s < 16; s++) b->scales[s / 2] |= (uint8_t)(fit->scale[s] << s % 2 * 4);
    }
}

#endif
