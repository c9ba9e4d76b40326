/* Q2_K: 256 numbers in 84 bytes, 16 sub-blocks of 16, x = (d scale[s]) q - (dmin min[s]).
 *
 *   offset 0   16    scales[s]: low nibble = scale[s], high nibble = min[s]
 *         16   64    pairs[32 h + j], j < 32: bits 2 k, 2 k + 1 = q[128 h + 32 k + j]
 *         80    2    d, half
 *         82    2    dmin, half */
#ifndef OX_FORMATS_Q2_K_H
#define OX_FORMATS_Q2_K_H

#include "bits.h"

typedef struct {
    uint8_t scales[16];
    uint8_t pairs[64];
    uint8_t d[2], dmin[2];
} ox_q2_k;

static void ox_unpack_Q2_K(float *dst, const void *src, int64_t columns) {
    const ox_q2_k *b = src;
    for (int64_t i = 0; i < columns; i += 256, b++) {
        float d = ox_half(b->d), dmin = ox_half(b->dmin);
        for (int s = 0; s < 16; s++, dst += 16) { /* sub-block s: half s / 8, quarter s / 2 % 4, columns 16 (s % 2) .. of that quarter */
            const uint8_t *pairs = b->pairs + 32 * (s >> 3) + 16 * (s & 1);
            int shift = 2 * (s >> 1 & 3);
            float ds = d * (float)(b->scales[s] & 15), ms = dmin * (float)(b->scales[s] >> 4);
            for (int j = 0; j < 16; j++) dst[j] = ds * (float)(pairs[j] >> shift & 3) - ms;
        }
    }
}

#endif
