/* Q8_0: 32 numbers in 34 bytes, x = d q.
 *
 *   offset 0    2    d, half
 *          2   32    q[0..31], signed bytes */
#ifndef OX_FORMATS_Q8_0_H
#define OX_FORMATS_Q8_0_H

#include "fit.h"

typedef struct {
    uint8_t d[2];
    int8_t q[32];
} ox_q8_0;

static void ox_unpack_Q8_0(float *dst, const void *src, int64_t columns) {
    const ox_q8_0 *b = src;
    for (int64_t i = 0; i < columns; i += 32, b++, dst += 32) {
        float d = ox_half(b->d);
        for (int j = 0; j < 32; j++) dst[j] = d * (float)b->q[j];
    }
}

/* The scale follows the largest number; at 8 bits no other choice pays, so the weights have no say. */
static void ox_quantise_Q8_0(void *dst, const float *src, const float *weights, int64_t columns) {
    ox_q8_0 *b = dst;
    (void)weights;
    for (int64_t i = 0; i < columns; i += 32, b++, src += 32)
        ox_snap_all(b->q, src, 32, ox_put_scale(b->d, ox_max_abs(src, 32) / 127.0f), ox_snap_byte);
}

#endif
