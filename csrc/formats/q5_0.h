/* Q5_0: 32 numbers in 22 bytes, x = d (q - 16).
 *
 *   offset 0    2    d, half
 *          2    4    high: bit j (of a little-endian word) = bit 4 of q[j]
 *          6   16    nibbles[j]: low = bits 0..3 of q[j], high = those of q[16 + j] */
#ifndef OX_FORMATS_Q5_0_H
#define OX_FORMATS_Q5_0_H

#include "bits.h"

typedef struct {
    uint8_t d[2];
    uint8_t high[4];
    uint8_t nibbles[16];
} ox_q5_0;

static void ox_unpack_Q5_0(float *dst, const void *src, int64_t columns) {
    const ox_q5_0 *b = src;
    for (int64_t i = 0; i < columns; i += 32, b++, dst += 32) {
        float d = ox_half(b->d);
        uint32_t high = ox_load32(b->high);
        for (int j = 0; j < 16; j++) dst[j] = d * (float)((int)((b->nibbles[j] & 15) | (high >> j & 1) << 4) - 16);
        for (int j = 0; j < 16; j++) dst[16 + j] = d * (float)((int)(b->nibbles[j] >> 4 | (high >> (16 + j) & 1) << 4) - 16);
    }
}

#endif
