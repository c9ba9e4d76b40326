/* MXFP4: 32 numbers in 17 bytes, the 4-bit floats (e2m1) of the OCP microscaling specification under one power of two.
 *
 *   offset 0    1    e: x = 2^(e - 127) value[q]; the table holds 2 value[q], so the scale is halved
 *          1   16    nibbles[j]: low = q[j], high = q[16 + j] */
#ifndef OX_FORMATS_MXFP4_H
#define OX_FORMATS_MXFP4_H

#include "bits.h"

typedef struct {
    uint8_t e;
    uint8_t nibbles[16];
} ox_mxfp4;

static const int8_t ox_e2m1_doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

static void ox_unpack_MXFP4(float *dst, const void *src, int64_t columns) {
    const ox_mxfp4 *b = src;
    for (int64_t i = 0; i < columns; i += 32, b++, dst += 32) {
        float d = ox_e8m0_half(b->e);
        for (int j = 0; j < 16; j++) dst[j] = d * (float)ox_e2m1_doubled[b->nibbles[j] & 15];
        for (int j = 0; j < 16; j++) dst[16 + j] = d * (float)ox_e2m1_doubled[b->nibbles[j] >> 4];
    }
}

#endif
