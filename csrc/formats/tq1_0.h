/* TQ1_0: 256 ternary numbers in 54 bytes, x = d (t - 1), five digits a byte.
 *
 *   offset 0   32    fives[j], j < 32: digit k = t[32 k + j], k < 5
 *         32   16    fives[32 + j], j < 16: digit k = t[160 + 16 k + j], k < 5
 *         48    4    fours[j]: digit k = t[240 + 4 k + j], k < 4
 *         52    2    d, half
 *
 * A byte is the fraction 0.t0 t1 t2 t3 t4 in base 3 times 256, rounded up: multiplying by 3 pushes digit after digit over the top. */
#ifndef OX_FORMATS_TQ1_0_H
#define OX_FORMATS_TQ1_0_H

#include "tq2_0.h"

typedef struct {
    uint8_t fives[48];
    uint8_t fours[4];
    uint8_t d[2];
} ox_tq1_0;

static const uint8_t ox_powers_of_3[5] = {1, 3, 9, 27, 81};

/* Digit k of `count` bytes, as floats. */
static inline void ox_tq1_0_digits(float *dst, const uint8_t *bytes, int count, int k, float d) {
    for (int j = 0; j < count; j++) {
        uint8_t rest = (uint8_t)(bytes[j] * ox_powers_of_3[k]);
        dst[j] = d * (float)((rest * 3 >> 8) - 1);
    }
}

static void ox_unpack_TQ1_0(float *restrict dst, const void *restrict src, int64_t columns) {
    const ox_tq1_0 *b = src;
    for (int64_t i = 0; i < columns; i += 256, b++, dst += 256) {
        float d = ox_half(b->d);
        for (int k = 0; k < 5; k++) ox_tq1_0_digits(dst + 32 * k, b->fives, 32, k, d);
        for (int k = 0; k < 5; k++) ox_tq1_0_digits(dst + 160 + 16 * k, b->fives + 32, 16, k, d);
        for (int k = 0; k < 4; k++) ox_tq1_0_digits(dst + 240 + 4 * k, b->fours, 4, k, d);
    }
}

/* Five digits as a byte: the smallest fraction of 256 that holds them. */
static inline uint8_t ox_pack_digits(const int8_t *q, int stride, int count) {
    unsigned number = 0;
    for (int k = 0; k < 5; k++) number = 3 * number + (unsigned)(k < count ? q[k * stride] + 1 : 0);
    return (uint8_t)((number * 256 + 242) / 243);
}

static void ox_quantise_TQ1_0(void *dst, const float *src, const float *weights, int64_t columns) {
    ox_tq1_0 *b = dst;
    for (int64_t i = 0; i < columns; i += 256, b++, src += 256) {
        int8_t q[256];
        ox_fit_ternary(q, src, weights ? weights + i : NULL, b->d);
        for (int j = 0; j < 32; j++) b->fives[j] = ox_pack_digits(q + j, 32, 5);
        for (int j = 0; j < 16; j++) b->fives[32 + j] = ox_pack_digits(q + 160 + j, 16, 5);
        for (int j = 0; j < 4; j++) b->fours[j] = ox_pack_digits(q + 240 + j, 4, 4);
    }
}

#endif
