/* IQ4_NL: 32 numbers in 18 bytes, x = d level[q] with 16 uneven levels.
 *
 *   offset 0    2    d, half
 *          2   16    nibbles[j]: low = q[j], high = q[16 + j] */
#ifndef OX_FORMATS_IQ4_NL_H
#define OX_FORMATS_IQ4_NL_H

#include "bits.h"

typedef struct {
    uint8_t d[2];
    uint8_t nibbles[16];
} ox_iq4_nl;

static const int8_t ox_iq4_levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

static void ox_unpack_IQ4_NL(float *dst, const void *src, int64_t columns) {
    const ox_iq4_nl *b = src;
    for (int64_t i = 0; i < columns; i += 32, b++, dst += 32) {
        float d = ox_half(b->d);
        for (int j = 0; j < 16; j++) dst[j] = d * (float)ox_iq4_levels[b->nibbles[j] & 15];
        for (int j = 0; j < 16; j++) dst[16 + j] = d * (float)ox_iq4_levels[b->nibbles[j] >> 4];
    }
}

#endif
