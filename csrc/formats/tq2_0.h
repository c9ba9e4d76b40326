/* TQ2_0: 256 ternary numbers in 66 bytes, x = d (q - 1).
 *
 *   offset 0   64    pairs[32 h + j], j < 32: bits 2 k, 2 k + 1 = q[128 h + 32 k + j]
 *         64    2    d, half */
#ifndef OX_FORMATS_TQ2_0_H
#define OX_FORMATS_TQ2_0_H

#include "bits.h"

typedef struct {
    uint8_t pairs[64];
    uint8_t d[2];
} ox_tq2_0;

static void ox_unpack_TQ2_0(float *dst, const void *src, int64_t columns) {
    const ox_tq2_0 *b = src;
    for (int64_t i = 0; i < columns; i += 256, b++) {
        float d = ox_half(b->d);
        for (int k = 0; k < 8; k++, dst += 32) {
            const uint8_t *pairs = b->pairs + 32 * (k >> 2);
            for (int j = 0; j < 32; j++) dst[j] = d * (float)((pairs[j] >> 2 * (k & 3) & 3) - 1);
        }
    }
}

#endif
