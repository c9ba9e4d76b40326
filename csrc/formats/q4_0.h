/* Q4_0: 32 numbers in 18 bytes, x = d (q - 8).
 *
 *   offset 0    2    d, half
 *          2   16    nibbles[j]: low = q[j], high = q[16 + j] */
#ifndef OX_FORMATS_Q4_0_H
#define OX_FORMATS_Q4_0_H

#include "fit.h"

typedef struct {
    uint8_t d[2];
    uint8_t nibbles[16];
} ox_q4_0;

static void ox_unpack_Q4_0(float *dst, const void *src, int64_t columns) {
    const ox_q4_0 *b = src;
    for (int64_t i = 0; i < columns; i += 32, b++, dst += 32) {
        float d = ox_half(b->d);
        for (int j = 0; j < 16; j++) dst[j] = d * (float)((b->nibbles[j] & 15) - 8);
        for (int j = 0; j < 16; j++) dst[16 + j] = d * (float)((b->nibbles[j] >> 4) - 8);
    }
}

static inline float ox_snap_Q4_0(float v) {
    return ox_round(ox_clip(v, -8.0f, 7.0f));
}

static void ox_quantise_Q4_0(void *dst, const float *src, const float *weights, int64_t columns) {
    ox_q4_0 *b = dst;
    for (int64_t i = 0; i < columns; i += 32, b++, src += 32) {
        int8_t q[32];
        float cost[32];
        ox_costs(cost, weights ? weights + i : NULL, 32);
        float d = ox_fit_scaled(src, cost, 32, ox_snap_Q4_0, 0, 5.5f, 8.5f, 9);
        ox_snap_all(q, src, 32, ox_put_scale(b->d, d), ox_snap_Q4_0);
        for (int j = 0; j < 16; j++) b->nibbles[j] = (uint8_t)((q[j] + 8) | (q[16 + j] + 8) << 4);
    }
}

#endif
