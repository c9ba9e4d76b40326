/* MXFP4: 32 numbers in 17 bytes, the 4-bit floats (e2m1) of the OCP microscaling specification under one power of two.
 *
 *   offset 0    1    e: x = 2^(e - 127) value[q]; the table holds 2 value[q], so the scale is halved
 *          1   16    nibbles[j]: low = q[j], high = q[16 + j] */
#ifndef OX_FORMATS_MXFP4_H
#define OX_FORMATS_MXFP4_H

#include "fit.h"

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

/* The nearest doubled e2m1 magnitude, and with its sign. */
OX_INLINE float ox_snap_e2m1(float v) {
    float a = ox_abs(v), level = 0.0f;
    level += a > 0.5f ? 1.0f : 0.0f;
    level += a > 1.5f ? 1.0f : 0.0f;
    level += a > 2.5f ? 1.0f : 0.0f;
    level += a > 3.5f ? 1.0f : 0.0f;
    level += a > 5.0f ? 2.0f : 0.0f;
    level += a > 7.0f ? 2.0f : 0.0f;
    level += a > 10.0f ? 4.0f : 0.0f;
    return v < 0.0f ? -level : level;
}

static inline int ox_e2m1_code(float v) {
    float a = ox_abs(v);
    int code = (a > 0.5f) + (a > 1.5f) + (a > 2.5f) + (a > 3.5f) + (a > 5.0f) + (a > 7.0f) + (a > 10.0f);
    return v < 0.0f && code ? code + 8 : code;
}

/* Tries the power of two that just holds the largest number, two below and one above. */
static void ox_quantise_MXFP4(void *dst, const float *src, const float *weights, int64_t columns) {
    ox_mxfp4 *b = dst;
    for (int64_t i = 0; i < columns; i += 32, b++, src += 32) {
        float cost[32], best = 0.0f;
        int power = (int)(ox_as_bits(ox_max_abs(src, 32)) >> 23) - 2, chosen = -1;
        ox_costs(cost, weights ? weights + i : NULL, 32);
        for (int e = power - 2; e <= power + 1; e++) {
            if (e < 0 || e > 254) continue;
            float error = ox_scaled_error(src, cost, 32, ox_e8m0_half((uint8_t)e), ox_snap_e2m1);
            if (chosen < 0 || error < best) {
                best = error;
                chosen = e;
            }
        }
        b->e = (uint8_t)(chosen < 0 ? 0 : chosen);
        float inverse = ox_inverse(ox_e8m0_half(b->e));
        for (int j = 0; j < 16; j++)
            b->nibbles[j] = (uint8_t)(ox_e2m1_code(src[j] * inverse) | ox_e2m1_code(src[16 + j] * inverse) << 4);
    }
}

#endif
