/* IQ1_S: 256 numbers in 50 bytes, 8 sub-blocks of 32 = 4 ternary points of 8 columns; x = d (2 scale[s] + 1) (t + shift[s]), t of -1, 0, 1.
 *
 *   offset 0    2    d, half
 *          2   32    low[p]: bits 0..7 of the number of point p (grid of 2048)
 *         34   16    high[s], little-endian words: bits 3 k .. 3 k + 2 = bits 8..10 of the number of point 4 s + k,
 *                    bits 12..14 = scale[s], bit 15: shift[s] = -1/8 when set, 1/8 when clear */
#ifndef OX_FORMATS_IQ1_S_H
#define OX_FORMATS_IQ1_S_H

#include "fit_lattice.h"

typedef struct {
    uint8_t d[2];
    uint8_t low[32];
    uint8_t high[8][2];
} ox_iq1_s;

/* The 8 numbers of a ternary point, shifted and scaled. */
static inline void ox_put_ternary(float *dst, unsigned point, float shift, float d) {
    for (int j = 0; j < 8; j++) dst[j] = d * ((float)(int)(point >> 2 * j & 3) - 1.0f + shift);
}

static void ox_unpack_IQ1_S(float *dst, const void *src, int64_t columns) {
    const ox_iq1_s *b = src;
    for (int64_t i = 0; i < columns; i += 256, b++) {
        float d = ox_half(b->d);
        for (int s = 0; s < 8; s++) {
            unsigned word = ox_load16(b->high[s]);
            float ds = d * (float)(2 * (word >> 12 & 7) + 1), shift = word >> 15 ? -0.125f : 0.125f;
            for (int k = 0; k < 4; k++, dst += 8)
                ox_put_ternary(dst, ox_grid_iq1[b->low[4 * s + k] | (word >> 3 * k & 7) << 8], shift, ds);
        }
    }
}

static void ox_quantise_IQ1_S(void *dst, const float *src, const float *weights, int64_t columns) {
    static const ox_lattice_kind kind = {
        .points = ox_grid_iq1, .runs = ox_runs_iq1, .uppers = ox_uppers_iq1,
        .run_count = sizeof ox_uppers_iq1 / sizeof ox_uppers_iq1[0], .coordinates = 8,
        .levels = ox_iq1_levels, .signs = 0, .shifts = 1, .width = 32, .codes = 8, .unit = 1.0f, .from = 0.9f, .to = 3.2f, .steps = 6,
    };
    ox_iq1_s *b = dst;
    ox_lattice_fit fits[2], *fit;
    for (int64_t i = 0, left = 0; i < columns; i += 256, left--, fit++, b++) {
        if (!left) left = ox_fit_lattice(&kind, src + i, weights ? weights + i : NULL, columns - i, fit = fits);
        memset(b, 0, sizeof *b);
        ox_store16(b->d, ox_float_to_half(fit->d));
        for (int p = 0; p < 32; p++) b->low[p] = (uint8_t)fit->point[p];
        for (int s = 0; s < 8; s++) {
            unsigned word = (unsigned)fit->scale[s] << 12 | (unsigned)fit->shift[4 * s] << 15;
            for (int k = 0; k < 4; k++) word |= (unsigned)(fit->point[4 * s + k] >> 8) << 3 * k;
            ox_store16(b->high[s], word);
        }
    }
}

#endif
