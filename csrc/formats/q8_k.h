/* Q8_K: 256 numbers in 292 bytes, x = d q; an activation format, as files could hold it.
 *
 *   offset 0    4    d, f32
 *          4  256    q[0..255], signed bytes
 *        260   32    sum[s], s < 16: q[16 s] + .. + q[16 s + 15], signed 16-bit words */
#ifndef OX_FORMATS_Q8_K_H
#define OX_FORMATS_Q8_K_H

#include "bits.h"

typedef struct {
    uint8_t d[4];
    int8_t q[256];
    uint8_t sum[16][2];
} ox_q8_k;

static void ox_unpack_Q8_K(float *dst, const void *src, int64_t columns) {
    const ox_q8_k *b = src;
    for (int64_t i = 0; i < columns; i += 256, b++, dst += 256) {
        float d = ox_as_float(ox_load32(b->d));
        for (int j = 0; j < 256; j++) dst[j] = d * (float)b->q[j];
    }
}

#endif
