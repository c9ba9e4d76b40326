/* Q2_0: 64 numbers in 18 bytes, x = d (q - 1).
 *
 *   offset 0    2    d, half
 *          2   16    pairs[j]: bits 2 k, 2 k + 1 = q[4 j + k] */
#ifndef OX_FORMATS_Q2_0_H
#define OX_FORMATS_Q2_0_H

#include "bits.h"

typedef struct {
    uint8_t d[2];
    uint8_t pairs[16];
} ox_q2_0;

static void ox_unpack_Q2_0(float *dst, const void *src, int64_t columns) {
    const ox_q2_0 *b = src;
    for (int64_t i = 0; i < columns; i += 64, b++, dst += 64) {
        float d = ox_half(b->d);
        for (int j = 0; j < 64; j++) dst[j] = d * (float)((b->pairs[j >> 2] >> 2 * (j & 3) & 3) - 1);
    }
}

#endif
