/* Q2_0: 64 numbers in 18 bytes, x = d (q - 1).
 *
 *   offset 0    2    d, half
 *          2   16    pairs[j]: bits 2 k, 2 k + 1 = q[4 j + k] */
#ifndef OX_FORMATS_Q2_0_H
#define OX_FORMATS_Q2_0_H

#include "fit.h"

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

OX_INLINE ox_f32x16 ox_snap_Q2_0(ox_f32x16 v) {
    return ox_round(ox_clip_lanes(v, -1.0f, 2.0f));
}

static void ox_quantise_Q2_0(void *dst, const float *src, const float *weights, int64_t columns) {
    ox_q2_0 *b = dst;
    for (int64_t i = 0; i < columns; i += 64, b++, src += 64) {
        float cost[64];
        int8_t q[64];
        ox_costs(cost, weights ? weights + i : NULL, 64);
        float d = ox_put_scale(b->d, ox_fit_row(src, cost, 64, ox_snap_Q2_0, 0, 0.8f, 4.0f, 33));
        ox_snap_all(q, src, 64, d, ox_snap_Q2_0);
        memset(b->pairs, 0, 16);
        for (int j = 0; j < 64; j++) b->pairs[j / 4] |= (uint8_t)((q[j] + 1) << j % 4 * 2);
    }
}

#endif
