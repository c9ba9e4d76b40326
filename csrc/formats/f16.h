/* F16: IEEE binary16, 2 bytes: sign, 5 exponent bits (bias 15), 10 fraction bits. */
#ifndef OX_FORMATS_F16_H
#define OX_FORMATS_F16_H

#include "bits.h"

static void ox_unpack_F16(float *dst, const void *src, int64_t columns) {
    const uint8_t *p = src;
    for (int64_t i = 0; i < columns; i++) {
        uint16_t h;
        memcpy(&h, p + 2 * i, 2);
        dst[i] = ox_half_to_float(h);
    }
}

static void ox_quantise_F16(void *dst, const float *src, const float *weights, int64_t columns) {
    uint8_t *p = dst;
    (void)weights;
    for (int64_t i = 0; i < columns; i++) ox_store16(p + 2 * i, ox_float_to_half(src[i]));
}

#endif
