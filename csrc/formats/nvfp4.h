/* NVFP4: 64 numbers in 36 bytes, 4 sub-blocks of 16 four-bit floats (e2m1, see MXFP4) under an unsigned e4m3 scale each.
 *
 *   offset 0    4    d[s], ue4m3
 *          4   32    nibbles[8 s + j], j < 8: low = q[16 s + j], high = q[16 s + 8 + j] */
#ifndef OX_FORMATS_NVFP4_H
#define OX_FORMATS_NVFP4_H

#include "mxfp4.h"

typedef struct {
    uint8_t d[4];
    uint8_t nibbles[32];
} ox_nvfp4;

static void ox_unpack_NVFP4(float *dst, const void *src, int64_t columns) {
    const ox_nvfp4 *b = src;
    for (int64_t i = 0; i < columns; i += 64, b++) {
        for (int s = 0; s < 4; s++, dst += 16) {
            const uint8_t *nibbles = b->nibbles + 8 * s;
            float d = ox_ue4m3_half(b->d[s]);
            for (int j = 0; j < 8; j++) dst[j] = d * (float)ox_e2m1_doubled[nibbles[j] & 15];
            for (int j = 0; j < 8; j++) dst[8 + j] = d * (float)ox_e2m1_doubled[nibbles[j] >> 4];
        }
    }
}

#endif
