/* NVFP4: 64 numbers in 36 bytes, 4 sub-blocks of 16 four-bit floats (e2m1, see MXFP4) under an unsigned e4m3 scale each.
 *
 *   offset 0    4    d[s], ue4m3
 *          4   32    nibbles[8 s + j], j < 8: low = q[16 s + j], high = q[16 s + 8 + j] */
#ifndef OX_FORMATS_NVFP4_H
#define OX_FORMATS_NVFP4_H

#include "mxfp4.h"

typedef struct {
    uint8_t d[4];
    uint8_t nibbles[32];
} ox_nvfp4;

static void ox_unpack_NVFP4(float *dst, const void *src, int64_t columns) {
    const ox_nvfp4 *b = src;
    for (int64_t i = 0; i < columns; i += 64, b++) {
        for (int s = 0; s < 4; s++, dst += 16) {
            const uint8_t *nibbles = b->nibbles + 8 * s;
            float d = ox_ue4m3_half(b->d[s]);
            for (int j = 0; j < 8; j++) dst[j] = d * (float)ox_e2m1_doubled[nibbles[j] & 15];
            for (int j = 0; j < 8; j++) dst[8 + j] = d * (float)ox_e2m1_doubled[nibbles[j] >> 4];
        }
    }
}

/* The first scale that is tried: the lowest that sends the largest number to 9 or less, or the highest of all. */
static inline int ox_first_ue4m3(float top) {
    int lo = 1, hi = 0x7e;
    while (lo < hi) {
        int middle = (lo + hi) / 2;
        if (ox_ue4m3_half((uint8_t)middle) * 18.0f < top) lo = middle + 1;
        else hi = middle;
    }
    return lo;
}

/* Tries every scale that sends the largest number to between 3.5 and 9 (6 is the largest e2m1). */
static void ox_quantise_NVFP4(void *dst, const float *src, const float *weights, int64_t columns) {
    ox_nvfp4 *b = dst;
    for (int64_t i = 0; i < columns; i += 256) {
        ox_sheet sheet;
        float top[16], d[16], error[16], best[16];
        int code[16], chosen[16] = {0}, open = 16;
        int8_t codes[256], q[64];
        int there = ox_lay_blocks(&sheet, src + i, weights ? weights + i : NULL, columns - i, 16, 64);
        f32_store(top, ox_max_abs_lanes(sheet.x, 16));
        for (int l = 0; l < 16; l++) {
            code[l] = top[l] > 0.0f ? ox_first_ue4m3(top[l]) : 0x7f; /* 0x7f: no more to try */
            best[l] = OX_NEVER;
        }
        while (open) {
            open = 0;
            for (int l = 0; l < 16; l++) d[l] = ox_ue4m3_half((uint8_t)code[l]);
            f32_store(error, ox_scaled_error(sheet.x, sheet.cost, 16, f32_load(d), ox_snap_e2m1));
            for (int l = 0; l < 16; l++) {
                if (code[l] == 0x7f) continue;
                if (error[l] < best[l]) {
                    best[l] = error[l];
                    chosen[l] = code[l];
                }
                code[l] = d[l] * 7.0f > top[l] ? 0x7f : code[l] + 1;
                open |= code[l] < 0x7f;
            }
        }
        for (int l = 0; l < 16; l++) d[l] = ox_ue4m3_half((uint8_t)chosen[l]);
        ox_snap_sheet(codes, sheet.x, 16, d, ox_code_e2m1);
        for (int l = 0; l < there; l += 4, b++) {
            ox_take(q, codes, 16, l, 4);
            for (int s = 0; s < 4; s++) {
                b->d[s] = (uint8_t)chosen[l + s];
                for (int j = 0; j < 8; j++) b->nibbles[8 * s + j] = (uint8_t)(q[16 * s + j] | q[16 * s + 8 + j] << 4);
            }
        }
    }
}

#endif
