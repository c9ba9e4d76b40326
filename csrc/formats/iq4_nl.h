/* IQ4_NL: 32 numbers in 18 bytes, x = d level[q] with 16 uneven levels.
 *
 *   offset 0    2    d, half
 *          2   16    nibbles[j]: low = q[j], high = q[16 + j] */
#ifndef OX_FORMATS_IQ4_NL_H
#define OX_FORMATS_IQ4_NL_H

#include "fit.h"

typedef struct {
    uint8_t d[2];
    uint8_t nibbles[16];
} ox_iq4_nl;

static const int8_t ox_iq4_levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

static void ox_unpack_IQ4_NL(float *dst, const void *src, int64_t columns) {
    const ox_iq4_nl *b = src;
    for (int64_t i = 0; i < columns; i += 32, b++, dst += 32) {
        float d = ox_half(b->d);
        for (int j = 0; j < 16; j++) dst[j] = d * (float)ox_iq4_levels[b->nibbles[j] & 15];
        for (int j = 0; j < 16; j++) dst[16 + j] = d * (float)ox_iq4_levels[b->nibbles[j] >> 4];
    }
}

static const float ox_iq4_middles[15] = {-115.5f, -93.5f, -74.0f, -57.0f, -42.0f, -28.5f, -16.0f, -4.5f,
                                             7.0f, 19.0f, 31.5f, 45.5f, 61.0f, 79.0f, 101.0f};

static inline int ox_iq4_code(float v) {
    int code = 0;
    for (int k = 0; k < 15; k++) code += v > ox_iq4_middles[k];
    return code;
}

/* The nearest level, as a sum of the gaps below v, so that loops over it vectorise. */
OX_INLINE float ox_snap_iq4(float v) {
    float level = -127.0f;
#define OX_GAP(middle, gap) level += v > middle ? gap : 0.0f
    OX_GAP(-115.5f, 23.0f), OX_GAP(-93.5f, 21.0f), OX_GAP(-74.0f, 18.0f), OX_GAP(-57.0f, 16.0f), OX_GAP(-42.0f, 14.0f);
    OX_GAP(-28.5f, 13.0f), OX_GAP(-16.0f, 12.0f), OX_GAP(-4.5f, 11.0f), OX_GAP(7.0f, 12.0f), OX_GAP(19.0f, 12.0f);
    OX_GAP(31.5f, 13.0f), OX_GAP(45.5f, 15.0f), OX_GAP(61.0f, 16.0f), OX_GAP(79.0f, 20.0f), OX_GAP(101.0f, 24.0f);
#undef OX_GAP
    return level;
}

static void ox_quantise_IQ4_NL(void *dst, const float *src, const float *weights, int64_t columns) {
    ox_iq4_nl *b = dst;
    for (int64_t i = 0; i < columns; i += 32, b++, src += 32) {
        float cost[32];
        ox_costs(cost, weights ? weights + i : NULL, 32);
        float inverse = ox_inverse(ox_put_scale(b->d, ox_fit_scaled(src, cost, 32, ox_snap_iq4, 0, 90.0f, 132.0f, 9)));
        for (int j = 0; j < 16; j++)
            b->nibbles[j] = (uint8_t)(ox_iq4_code(src[j] * inverse) | ox_iq4_code(src[16 + j] * inverse) << 4);
    }
}

#endif
