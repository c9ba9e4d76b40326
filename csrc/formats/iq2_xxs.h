/* IQ2_XXS: 256 numbers in 66 bytes, 8 sub-blocks of 32 = 4 points of 8 columns; |x| = d (0.5 + scale[s]) / 4 magnitude.
 *
 *   offset 0    2    d, half
 *          2   64    groups[s] of 8 bytes: 4 point numbers (grid of 256), then a little-endian word:
 *                    bits 7 k .. 7 k + 6 = signs of point k (8th by parity), bits 28..31 = scale[s] */
#ifndef OX_FORMATS_IQ2_XXS_H
#define OX_FORMATS_IQ2_XXS_H

#include "fit_lattice.h"

typedef struct {
    uint8_t d[2];
    struct {
        uint8_t point[4];
        uint8_t signs_scale[4];
    } groups[8];
} ox_iq2_xxs;

static void ox_unpack_IQ2_XXS(float *dst, const void *src, int64_t columns) {
    const ox_iq2_xxs *b = src;
    for (int64_t i = 0; i < columns; i += 256, b++) {
        float d = ox_half(b->d);
        for (int s = 0; s < 8; s++) {
            uint32_t word = ox_load32(b->groups[s].signs_scale);
            float ds = d * (0.5f + (float)(word >> 28)) * 0.25f;
            for (int k = 0; k < 4; k++, dst += 8)
                ox_put_point8(dst, ox_grid_iq2_xxs[b->groups[s].point[k]], ox_iq2_levels, ox_even_signs(word >> 7 * k & 127), ds);
        }
    }
}

static void ox_quantise_IQ2_XXS(void *dst, const float *src, const float *weights, int64_t columns) {
    static const ox_lattice_kind kind = {
        .points = ox_grid_iq2_xxs, .runs = ox_runs_iq2_xxs, .uppers = ox_uppers_iq2_xxs,
        .run_count = sizeof ox_uppers_iq2_xxs / sizeof ox_uppers_iq2_xxs[0], .coordinates = 8,
        .levels = ox_iq2_levels, .signs = 2, .shifts = 0, .width = 32, .codes = 16, .unit = 0.125f, .from = 24.0f, .to = 56.0f, .steps = 5,
    };
    ox_iq2_xxs *b = dst;
    ox_lattice_fit fits[2], *fit;
    for (int64_t i = 0, left = 0; i < columns; i += 256, left--, fit++, b++) {
        if (!left) left = ox_fit_lattice(&kind, src + i, weights ? weights + i : NULL, columns - i, fit = fits);
        memset(b, 0, sizeof *b);
        ox_store16(b->d, ox_float_to_half(fit->d));
        for (int s = 0; s < 8; s++) {
            uint32_t word = (uint32_t)fit->scale[s] << 28;
            for (int k = 0; k < 4; k++) {
                b->groups[s].point[k] = (uint8_t)fit->point[4 * s + k];
                word |= (uint32_t)(fit->signs[4 * s + k] & 127) << 7 * k;
            }
            ox_store32(b->groups[s].signs_scale, word);
        }
    }
}

#endif
