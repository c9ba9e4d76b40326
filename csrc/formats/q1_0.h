/* Q1_0: 128 numbers in 18 bytes, x = d where the bit is set, -d where it is clear. Also known as Q1_0_G128.
 *
 *   offset 0    2    d, half
 *          2   16    bits[j]: bit k = that of column 8 j + k */
#ifndef OX_FORMATS_Q1_0_H
#define OX_FORMATS_Q1_0_H

#include "fit.h"

typedef struct {
    uint8_t d[2];
    uint8_t bits[16];
} ox_q1_0;

static void ox_unpack_Q1_0(float *dst, const void *src, int64_t columns) {
    const ox_q1_0 *b = src;
    for (int64_t i = 0; i < columns; i += 128, b++, dst += 128) {
        float d = ox_half(b->d);
        for (int j = 0; j < 128; j++) dst[j] = b->bits[j >> 3] >> (j & 7) & 1 ? d : -d;
    }
}

/* The mean magnitude is the best d for these signs, and these signs are the best for any d > 0. */
static void ox_quantise_Q1_0(void *dst, const float *src, const float *weights, int64_t columns) {
    ox_q1_0 *b = dst;
    for (int64_t i = 0; i < columns; i += 128, b++, src += 128) {
        float cost[128], sum[8] = {0}, total[8] = {0};
        ox_costs(cost, weights ? weights + i : NULL, 128);
        for (int j = 0; j < 128; j++) {
            sum[j % 8] += cost[j] * ox_abs(src[j]);
            total[j % 8] += cost[j];
        }
        ox_put_scale(b->d, ox_sum8(sum) / ox_sum8(total));
        memset(b->bits, 0, 16);
        for (int j = 0; j < 128; j++) b->bits[j / 8] |= (uint8_t)((src[j] >= 0.0f) << j % 8);
    }
}

#endif
