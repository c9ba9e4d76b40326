/* Q8_1: 32 numbers in 36 bytes, x = d q; s = d (q[0] + .. + q[31]) is kept for dot products. An activation format, as files could hold it.
 *
 *   offset 0    2    d, half
 *          2    2    s, half
 *          4   32    q[0..31], signed bytes */
#ifndef OX_FORMATS_Q8_1_H
#define OX_FORMATS_Q8_1_H

#include "fit.h"

typedef struct {
    uint8_t d[2], s[2];
    int8_t q[32];
} ox_q8_1;

static void ox_unpack_Q8_1(float *dst, const void *src, int64_t columns) {
    const ox_q8_1 *b = src;
    for (int64_t i = 0; i < columns; i += 32, b++, dst += 32) {
        float d = ox_half(b->d);
        for (int j = 0; j < 32; j++) dst[j] = d * (float)b->q[j];
    }
}

static void ox_quantise_Q8_1(void *dst, const float *src, const float *weights, int64_t columns) {
    ox_q8_1 *b = dst;
    (void)weights;
    for (int64_t i = 0; i < columns; i += 32, b++, src += 32) {
        float d = ox_put_scale(b->d, ox_max_abs(src, 32) / 127.0f);
        int sum = 0;
        ox_snap_all(b->q, src, 32, d, ox_snap_byte);
        for (int j = 0; j < 32; j++) sum += b->q[j];
        ox_put_scale(b->s, d * (float)sum);
    }
}

#endif
