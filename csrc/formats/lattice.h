/* Expands the points of the IQ lattices (grids.h): magnitudes, signs, and the sign byte that is stored in seven bits. */
#ifndef OX_FORMATS_LATTICE_H
#define OX_FORMATS_LATTICE_H

#include "bits.h"
#include "grids.h"

static const float ox_iq2_levels[4] = {8, 25, 43, 0};
static const float ox_iq1_levels[4] = {-1, 0, 1, 0};
static const float ox_iq3_xxs_levels[8] = {4, 12, 20, 28, 36, 44, 52, 62};
static const float ox_iq3_s_levels[8] = {1, 3, 5, 7, 9, 11, 13, 15};

/* Seven stored signs -> eight: the last makes the number of minus signs even. */
static inline unsigned ox_even_signs(unsigned seven) {
    unsigned fold = seven ^ seven >> 4;
    fold ^= fold >> 2;
    return seven | ((fold ^ fold >> 1) & 1) << 7;
}

/* 8 coordinates of 2 bits, times d, signs by the bits of `signs` (set = minus). */
static inline void ox_put_point8(float *dst, unsigned point, const float *levels, unsigned signs, float d) {
    for (int j = 0; j < 8; j++)
        dst[j] = d * levels[point >> 2 * j & 3] * (1.0f - 2.0f * (float)(signs >> j & 1));
}

/* 4 coordinates of 3 bits, the same way. */
static inline void ox_put_point4(float *dst, unsigned point, const float *levels, unsigned signs, float d) {
    for (int j = 0; j < 4; j++)
        dst[j] = d * levels[point >> 3 * j & 7] * (1.0f - 2.0f * (float)(signs >> j & 1));
}

#endif
