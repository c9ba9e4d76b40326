/* What a dot of bf16 pairs is, number by number, for instruction sets that cannot be told to flush as it does. */
#ifndef OX_ISA_FLUSH_H
#define OX_ISA_FLUSH_H
#include "ox.h"
#include <math.h>

/* A bf16 number as a float, zero in place of subnormals. */
OX_INLINE float ox_bf16_flushed(uint32_t h) { return ox_bits_to_f32((h & (h & 0x7f80u ? 0xffffu : 0x8000u)) << 16); }

/* a b + c, rounded once to nearest even as if exponents had no end, then zero if below 2^-126. Where fmaf's result is 2^-126 itself it may have been
 * rounded up from further below than 24 bits would: 2^60 times as large nothing is subnormal, and the difference shows (in such a sum
 * nothing is large: c is below 2^-100, or the sum could not be so small without being a multiple of its last bit). */
OX_INLINE float ox_flushed_fma(float a, float b, float c)
{
    float r = fmaf(a, b, c), size = fabsf(r);
    if (!(size <= 0x1p-126f))
        return r;
    int zero = size < 0x1p-126f;
    if (!zero)
        zero = fabsf(fmaf(fabsf(a) < fabsf(b) ? a * 0x1p60f : a, fabsf(a) < fabsf(b) ? b : b * 0x1p60f, c * 0x1p60f)) < 0x1p-66f;
    return zero ? copysignf(0.0f, r) : r;
}

/* Rows of a panel of pairs (lanes/panel.h) against m rows of x, in plain C; `more`: added to what c holds. */
OX_NOINLINE static void flushed_pairs(float *c, int64_t ldc, const uint8_t *panel, const uint8_t *x, int64_t ldx, int64_t cols, int m, int more)
{
    for (int t = 0; t < m; t++)
        for (int r = 0; r < 16; r++) {
            float acc = more ? c[t * ldc + r] : 0.0f;
            for (int64_t k = 0; k < (cols + 1) / 2; k++) {
                uint16_t w[2], v[2];
                memcpy(w, panel + 64 * k + 4 * r, 4);
                memcpy(v, x + t * ldx + 4 * k, 4);
                for (int i = 1; i >= 0; i--)
                    acc = ox_flushed_fma(ox_bf16_flushed(w[i]), ox_bf16_flushed(v[i]), acc);
            }
            c[t * ldc + r] = acc;
        }
}

#endif
