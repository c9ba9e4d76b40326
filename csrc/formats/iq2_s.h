/* IQ2_S: 256 numbers in 82 bytes, 16 sub-blocks of 16 = 2 points of 8 columns; |x| = d (0.5 + scale[s]) / 4 magnitude.
 *
 *   offset 0    2    d, half
 *          2   32    low[p]: bits 0..7 of the number of point p (grid of 1024)
 *         34   32    signs[p]: bit k = sign of column k of point p, set = minus
 *         66    8    high[p / 4]: bits 2 k, 2 k + 1 = bits 8, 9 of the number of point 4 (p / 4) + k
 *         74    8    scales[s / 2]: nibble s % 2 = scale[s] */
#ifndef OX_FORMATS_IQ2_S_H
#define OX_FORMATS_IQ2_S_H

#include "lattice.h"

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

#endif
