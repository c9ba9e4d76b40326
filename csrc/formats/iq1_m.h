/* IQ1_M: 256 numbers in 56 bytes, 16 sub-blocks of 16 = 2 ternary points of 8 columns; x = d (2 scale[s] + 1) (t + shift[p]).
 *
 *   offset 0   32    low[p]: bits 0..7 of the number of point p (grid of 2048, shared with IQ1_S)
 *         32   16    high[p / 2]: nibble p % 2: bits 0..2 = bits 8..10 of the number, bit 3: shift[p] = -1/8 when set, 1/8 when clear
 *         48    8    scales[w], w < 4, little-endian words: bits 3 k .. 3 k + 2 = scale[4 w + k],
 *                    bits 12..15 = nibble w of d (a half, lowest nibble first) */
#ifndef OX_FORMATS_IQ1_M_H
#define OX_FORMATS_IQ1_M_H

#include "iq1_s.h"

typedef struct {
    uint8_t low[32];
    uint8_t high[16];
    uint8_t scales[4][2];
} ox_iq1_m;

static inline float ox_iq1_m_d(const ox_iq1_m *b) {
    unsigned h = 0;
    for (int w = 0; w < 4; w++) h |= (unsigned)(ox_load16(b->scales[w]) >> 12) << 4 * w;
    return ox_half_to_float((uint16_t)h);
}

static void ox_unpack_IQ1_M(float *dst, const void *src, int64_t columns) {
    const ox_iq1_m *b = src;
    for (int64_t i = 0; i < columns; i += 256, b++) {
        float d = ox_iq1_m_d(b);
        for (int p = 0; p < 32; p++, dst += 8) {
            unsigned nibble = b->high[p >> 1] >> 4 * (p & 1) & 15, scale = ox_load16(b->scales[p >> 3]) >> 3 * (p >> 1 & 3) & 7;
            ox_put_ternary(dst, ox_grid_iq1[b->low[p] | (nibble & 7) << 8], nibble & 8 ? -0.125f : 0.125f, d * (float)(2 * scale + 1));
        }
    }
}

static void ox_quantise_IQ1_M(void *dst, const float *src, const float *weights, int64_t columns) {
    static const ox_lattice_kind kind = {
        .points = ox_grid_iq1, .runs = ox_runs_iq1, .uppers = ox_uppers_iq1,
        .run_count = sizeof ox_uppers_iq1 / sizeof ox_uppers_iq1[0], .coordinates = 8,
        .levels = ox_iq1_levels, .signs = 0, .shifts = 2, .width = 16, .codes = 8, .unit = 1.0f, .from = 0.9f, .to = 3.2f, .steps = 6,
    };
    ox_iq1_m *b = dst;
    ox_lattice_fit fits[2], *fit;
    for (int64_t i = 0, left = 0; i < columns; i += 256, left--, fit++, b++) {
        if (!left) left = ox_fit_lattice(&kind, src + i, weights ? weights + i : NULL, columns - i, fit = fits);
        memset(b, 0, sizeof *b);
        unsigned d = ox_float_to_half(fit->d);
        for (int p = 0; p < 32; p++) {
            b->low[p] = (uint8_t)fit->point[p];
            b->high[p / 2] |= (uint8_t)((fit->point[p] >> 8 | fit->shift[p] << 3) << p % 2 * 4);
        }
        for (int w = 0; w < 4; w++) {
            unsigned word = (d >> 4 * w & 15) << 12;
            for (int k = 0; k < 4; k++) word |= (unsigned)fit->scale[4 * w + k] << 3 * k;
            ox_store16(b->scales[w], word);
        }
    }
}

#endif
