/* IQ2_XS: 256 numbers in 74 bytes, 16 sub-blocks of 16 = 2 points of 8 columns; |x| = d (0.5 + scale[s]) / 4 magnitude.
 *
 *   offset 0    2    d, half
 *          2   64    points[p], p < 32, little-endian words: bits 0..8 = point number (grid of 512), bits 9..15 = signs (8th by parity)
 *         66    8    scales[s / 2]: nibble s % 2 = scale[s] */
#ifndef OX_FORMATS_IQ2_XS_H
#define OX_FORMATS_IQ2_XS_H

#include "lattice.h"

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

#endif
