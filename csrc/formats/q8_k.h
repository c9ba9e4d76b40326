/* Q8_K: 256 numbers in 292 bytes, x = d q; an activation format, as files could hold it.
 *
 *   offset 0    4    d, f32
 *          4  256    q[0..255], signed bytes
 *        260   32    sum[s], s < 16: q[16 s] + .. + q[16 s + 15], signed 16-bit words */
#ifndef OX_FORMATS_Q8_K_H
#define OX_FORMATS_Q8_K_H

#include "fit.h"

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

static void ox_quantise_Q8_K(void *dst, const float *src, const float *weights, int64_t columns) {
    ox_q8_k *b = dst;
    (void)weights;
    for (int64_t i = 0; i < columns; i += 256, b++, src += 256) {
        float d = ox_max_abs(src, 256) / 127.0f;
        ox_snap_all(b->q, src, 256, d, ox_snap_byte);
        ox_store32(b->d, ox_as_bits(d));
        for (int s = 0; s < 16; s++) {
            int sum = 0;
            for (int j = 0; j < 16; j++) sum += b->q[16 * s + j];
            ox_store16(b->sum[s], (unsigned)sum & 0xffff);
        }
    }
}

#endif
