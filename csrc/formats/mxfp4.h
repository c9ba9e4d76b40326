/* MXFP4: 32 numbers in 17 bytes, the 4-bit floats (e2m1) of the OCP microscaling specification under one power of two.
 *
 *   offset 0    1    e: x = 2^(e - 127) value[q]; the table holds 2 value[q], so the scale is halved
 *          1   16    nibbles[j]: low = q[j], high = q[16 + j] */
#ifndef OX_FORMATS_MXFP4_H
#define OX_FORMATS_MXFP4_H

#include "fit.h"

typedef struct {
    uint8_t e;
    uint8_t nibbles[16];
} ox_mxfp4;

static const int8_t ox_e2m1_doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

static void ox_unpack_MXFP4(float *dst, const void *src, int64_t columns) {
    const ox_mxfp4 *b = src;
    for (int64_t i = 0; i < columns; i += 32, b++, dst += 32) {
        float d = ox_e8m0_half(b->e);
        for (int j = 0; j < 16; j++) dst[j] = d * (float)ox_e2m1_doubled[b->nibbles[j] & 15];
        for (int j = 0; j < 16; j++) dst[16 + j] = d * (float)ox_e2m1_doubled[b->nibbles[j] >> 4];
    }
}

static const float ox_e2m1_middles[7] = {0.5f, 1.5f, 2.5f, 3.5f, 5.0f, 7.0f, 10.0f};

/* The nearest doubled e2m1 magnitude, and with its sign. */
OX_INLINE ox_f32x16 ox_snap_e2m1(ox_f32x16 v) {
    ox_f32x16 a = f32_abs(v), level = f32_zero();
    for (int k = 0; k < 7; k++)
        level = f32_add(level, f32_select_lt(f32_set1(ox_e2m1_middles[k]), a, f32_set1((float)(ox_e2m1_doubled[k + 1] - ox_e2m1_doubled[k])),
                                             f32_zero()));
    return f32_select_lt(v, f32_zero(), f32_neg(level), level);
}

/* Its code, as a float; zero has no sign. */
OX_INLINE ox_f32x16 ox_code_e2m1(ox_f32x16 v) {
    ox_f32x16 a = f32_abs(v), code = f32_zero();
    for (int k = 0; k < 7; k++) code = f32_add(code, f32_select_lt(f32_set1(ox_e2m1_middles[k]), a, f32_set1(1.0f), f32_zero()));
    ox_f32x16 minus = f32_select_lt(v, f32_zero(), f32_set1(8.0f), f32_zero());
    return f32_add(code, f32_select_lt(f32_zero(), code, minus, f32_zero()));
}

/* Tries the power of two that just holds the largest number, two below and one above; in units of its own size, lest squares of errors vanish. */
static void ox_quantise_MXFP4(void *dst, const float *src, const float *weights, int64_t columns) {
    ox_mxfp4 *b = dst;
    for (int64_t i = 0; i < columns; i += 512) {
        ox_sheet sheet;
        float top[16], unit[16], d[16], error[16], best[16] = {0};
        int chosen[16] = {0};
        int8_t codes[512], q[32];
        int there = ox_lay_blocks(&sheet, src + i, weights ? weights + i : NULL, columns - i, 32, 32);
        f32_store(top, ox_max_abs_lanes(sheet.x, 32));
        for (int l = 0; l < 16; l++) {
            int e = (int)(ox_as_bits(top[l]) >> 23);
            unit[l] = ox_as_float((uint32_t)(e < 254 ? 254 - e : 1) << 23);
        }
        for (int j = 0; j < 32; j++) f32_store(sheet.x + 16 * j, f32_mul(f32_load(sheet.x + 16 * j), f32_load(unit)));
        for (int k = -4; k <= -1; k++) {
            for (int l = 0; l < 16; l++) {
                int e = (int)(ox_as_bits(top[l]) >> 23) + k;
                d[l] = unit[l] * ox_e8m0_half((uint8_t)(e < 0 ? 0 : e));
            }
            f32_store(error, ox_scaled_error(sheet.x, sheet.cost, 32, f32_load(d), ox_snap_e2m1));
            for (int l = 0; l < 16; l++) {
                int e = (int)(ox_as_bits(top[l]) >> 23) + k;
                if (k > -4 && !(error[l] < best[l])) continue;
                best[l] = error[l];
                chosen[l] = e < 0 ? 0 : e;
            }
        }
        for (int l = 0; l < 16; l++) d[l] = unit[l] * ox_e8m0_half((uint8_t)chosen[l]);
        ox_snap_sheet(codes, sheet.x, 32, d, ox_code_e2m1);
        for (int l = 0; l < there; l++, b++) {
            ox_take(q, codes, 32, l, 1);
            b->e = (uint8_t)chosen[l];
            for (int j = 0; j < 16; j++) b->nibbles[j] = (uint8_t)(q[j] | q[16 + j] << 4);
        }
    }
}

#endif
