/* IQ3_XXS: 256 numbers in 98 bytes, 8 sub-blocks of 32 = 8 points of 4 columns; |x| = d (0.5 + scale[s]) / 2 magnitude.
 *
 *   offset 0    2    d, half
 *          2   64    point[p]: number of point p (grid of 256), columns 4 p .. 4 p + 3
 *         66   32    signs_scale[s], little-endian words: bits 7 k .. 7 k + 6 = signs of columns 32 s + 8 k .. (8th by parity),
 *                    bits 28..31 = scale[s] */
#ifndef OX_FORMATS_IQ3_XXS_H
#define OX_FORMATS_IQ3_XXS_H

#include "fit_lattice.h"

typedef struct {
    uint8_t d[2];
    uint8_t point[64];
    uint8_t signs_scale[8][4];
} ox_iq3_xxs;

static void ox_unpack_IQ3_XXS(float *dst, const void *src, int64_t columns) {
    const ox_iq3_xxs *b = src;
    for (int64_t i = 0; i < columns; i += 256, b++) {
        float d = ox_half(b->d);
        for (int s = 0; s < 8; s++) {
            uint32_t word = ox_load32(b->signs_scale[s]);
            float ds = d * (0.5f + (float)(word >> 28)) * 0.5f;
            for (int k = 0; k < 4; k++, dst += 8) {
                unsigned signs = ox_even_signs(word >> 7 * k & 127);
                const uint8_t *point = b->point + 8 * s + 2 * k;
                ox_put_point4(dst, ox_grid_iq3_xxs[point[0]], ox_iq3_xxs_levels, signs, ds);
                ox_put_point4(dst + 4, ox_grid_iq3_xxs[point[1]], ox_iq3_xxs_levels, signs >> 4, ds);
            }
        }
    }
}

static void ox_quantise_IQ3_XXS(void *dst, const float *src, const float *weights, int64_t columns) {
    static const ox_lattice_kind kind = {
        .points = ox_grid_iq3_xxs, .runs = ox_runs_iq3_xxs, .uppers = ox_uppers_iq3_xxs,
        .run_count = sizeof ox_uppers_iq3_xxs / sizeof ox_uppers_iq3_xxs[0], .coordinates = 4,
        .levels = ox_iq3_xxs_levels, .signs = 2, .shifts = 0, .width = 32, .codes = 16, .unit = 0.25f,
        .from = 44.0f, .to = 72.0f, .steps = 5,
    };
    ox_iq3_xxs *b = dst;
    ox_lattice_fit fits[2], *fit;
    for (int64_t i = 0, left = 0; i < columns; i += 256, left--, fit++, b++) {
        if (!left) left = ox_fit_lattice(&kind, src + i, weights ? weights + i : NULL, columns - i, fit = fits);
        memset(b, 0, sizeof *b);
        ox_store16(b->d, ox_float_to_half(fit->d));
        for (int p = 0; p < 64; p++) b->point[p] = (uint8_t)fit->point[p];
        for (int s = 0; s < 8; s++) {
            uint32_t word = (uint32_t)fit->scale[s] << 28;
            for (int k = 0; k < 4; k++) word |= (uint32_t)(fit->signs[4 * s + k] & 127) << 7 * k;
            ox_store32(b->signs_scale[s], word);
        }
    }
}

#endif
