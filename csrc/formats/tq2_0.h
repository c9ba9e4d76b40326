/* TQ2_0: 256 ternary numbers in 66 bytes, x = d (q - 1).
 *
 *   offset 0   64    pairs[32 h + j], j < 32: bits 2 k, 2 k + 1 = q[128 h + 32 k + j]
 *         64    2    d, half */
#ifndef OX_FORMATS_TQ2_0_H
#define OX_FORMATS_TQ2_0_H

#include "fit.h"

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

OX_INLINE ox_f32x16 ox_snap_ternary(ox_f32x16 v) {
    return ox_round(ox_clip_lanes(v, -1.0f, 1.0f));
}

/* The best ternary fit of one block: its d, and q of -1, 0, 1. */
static inline void ox_fit_ternary(int8_t *q, const float *src, const float *weights, uint8_t *d) {
    float cost[256];
    ox_costs(cost, weights, 256);
    ox_snap_all(q, src, 256, ox_put_scale(d, ox_fit_row(src, cost, 256, ox_snap_ternary, 1, 0.6f, 4.0f, 35)), ox_snap_ternary);
}

static void ox_quantise_TQ2_0(void *dst, const float *src, const float *weights, int64_t columns) {
    ox_tq2_0 *b = dst;
    for (int64_t i = 0; i < columns; i += 256, b++, src += 256) {
        int8_t q[256];
        ox_fit_ternary(q, src, weights ? weights + i : NULL, b->d);
        memset(b->pairs, 0, 64);
        for (int j = 0; j < 256; j++) b->pairs[j / 128 * 32 + j % 32] |= (uint8_t)((q[j] + 1) << j / 32 % 4 * 2);
    }
}

#endif
