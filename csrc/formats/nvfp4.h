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

/* Tries every scale that sends the largest number to between 3.5 and 9 (6 is the largest e2m1). */
static void ox_quantise_NVFP4(void *dst, const float *src, const float *weights, int64_t columns) {
    ox_nvfp4 *b = dst;
    for (int64_t i = 0; i < columns; i += 64, b++) {
        float cost[64];
        ox_costs(cost, weights ? weights + i : NULL, 64);
        for (int s = 0; s < 4; s++, src += 16) {
            float top = ox_max_abs(src, 16), best = 3.4e38f;
            b->d[s] = 0;
            for (int code = 1; code < 0x7f && top > 0.0f; code++) {
                float d = ox_ue4m3_half((uint8_t)code);
                if (code < 0x7e && d * 18.0f < top) continue;
                float error = ox_scaled_error(src, cost + 16 * s, 16, d, ox_snap_e2m1);
                if (error < best) {
                    best = error;
                    b->d[s] = (uint8_t)code;
                }
                if (d * 7.0f > top) break;
            }
            float inverse = ox_inverse(ox_ue4m3_half(b->d[s]));
            for (int j = 0; j < 8; j++)
                b->nibbles[8 * s + j] = (uint8_t)(ox_e2m1_code(src[j] * inverse) | ox_e2m1_code(src[8 + j] * inverse) << 4);
        }
    }
}

#endif
