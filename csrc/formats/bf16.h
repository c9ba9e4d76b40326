/* BF16: the upper 2 bytes of an f32. */
#ifndef OX_FORMATS_BF16_H
#define OX_FORMATS_BF16_H

#include "bits.h"

static void ox_unpack_BF16(float *dst, const void *src, int64_t columns) {
    const uint8_t *p = src;
    for (int64_t i = 0; i < columns; i++) {
        uint16_t h;
        memcpy(&h, p + 2 * i, 2);
        dst[i] = ox_as_float((uint32_t)h << 16);
    }
}

static void ox_quantise_BF16(void *dst, const float *src, const float *weights, int64_t columns) {
    uint8_t *p = dst;
    (void)weights;
    for (int64_t i = 0; i < columns; i++) ox_store16(p + 2 * i, ox_float_to_brain(src[i]));
}

#endif
