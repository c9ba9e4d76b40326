/* IQ3_S: 256 numbers in 110 bytes, 8 sub-blocks of 32 = 8 points of 4 columns; |x| = d (1 + 2 scale[s]) magnitude.
 *
 *   offset 0    2    d, half
 *          2   64    low[p]: bits 0..7 of the number of point p (grid of 512), columns 4 p .. 4 p + 3
 *         66    8    high[s]: bit k = bit 8 of the number of point 8 s + k
 *         74   32    signs[g]: bit k = sign of column 8 g + k, set = minus
 *        106    4    scales[s / 2]: nibble s % 2 = scale[s] */
#ifndef OX_FORMATS_IQ3_S_H
#define OX_FORMATS_IQ3_S_H

#include "lattice.h"

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

#endif
