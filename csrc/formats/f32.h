/* F32: the number itself, 4 bytes, little-endian. */
#ifndef OX_FORMATS_F32_H
#define OX_FORMATS_F32_H

#include "bits.h"

static void ox_unpack_F32(float *dst, const void *src, int64_t columns) {
    memcpy(dst, src, (size_t)columns * 4);
}

static void ox_quantise_F32(void *dst, const float *src, const float *weights, int64_t columns) {
    (void)weights;
    memcpy(dst, src, (size_t)columns * 4);
}

#endif
